//! RDMA WRITE into a window that a peer shares: the peer posts nothing, and only reads its memory. The two ends are a
//! thread each, with a device of its own.

use std::sync::mpsc::channel;

use hca::Access;
use hca::{Completions, ConnectOptions, Endpoint, Inline, Rc, RemoteMr, SendRequest};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TEXT: &[u8] = b"written by somebody else";
/// Where the flag lies that says that the text is there.
const FLAG: usize = 64;

fn main() -> Result<(), Failure> {
    let (to_writer, from_owner) = channel::<(Endpoint, RemoteMr)>();
    let (to_owner, from_writer) = channel::<Endpoint>();

    let owner = std::thread::spawn(move || -> Result<(), Failure> {
        let context = hca::open("auto://")?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(256)?;
        let qp = pd.qp::<Rc>(&cq).build()?;
        let window = pd.alloc_shared(4096, Access::REMOTE_WRITE)?;
        to_writer.send((qp.endpoint(), window.remote()))?;
        qp.connect(&from_writer.recv()?, &ConnectOptions::default())?;

        window.wait_until(FLAG, |flag| flag == 1);
        let mut text = [0; TEXT.len()];
        window.read_at(0, &mut text);
        println!("in the window: {}", String::from_utf8_lossy(&text));
        assert_eq!(text, TEXT);
        Ok(())
    });

    let context = hca::open("auto://")?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(256)?;
    let mut qp = pd.qp::<Rc>(&cq).build()?;
    to_owner.send(qp.endpoint())?;
    let (endpoint, window) = from_owner.recv()?;
    qp.connect(&endpoint, &ConnectOptions::default())?;
    let flag = 1_u64.to_ne_bytes();
    let mut batch = qp.batch(); // one doorbell; the flag lands after the text
    batch.post_send(SendRequest::write(Inline(TEXT), window).signaled(false)).map_err(|r| r.error)?;
    batch.post_send(SendRequest::write(Inline(&flag), window.try_range(FLAG..)?)).map_err(|r| r.error)?;
    batch.ring();
    let mut wcs = Completions::default();
    for wc in cq.wait(&mut wcs, None)? {
        wc.ok()?;
    }
    owner.join().expect("no panic")
}
