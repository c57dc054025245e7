//! The first program: two adapters, a reliable connection, one message.

use hca::{Completions, ConnectOptions, Rc};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two adapters in one process. In a real program each side opens one.
    let (a, b) = (hca::open("auto://")?, hca::open("auto://")?);
    let (pd_a, pd_b) = (a.alloc_pd()?, b.alloc_pd()?);
    let (mut cq_a, mut cq_b) = (a.create_cq(256)?, b.create_cq(256)?);
    let mut qp_a = pd_a.qp::<Rc>(&cq_a).build()?;
    let mut qp_b = pd_b.qp::<Rc>(&cq_b).build()?;

    // An endpoint is one line of text: send it over any channel.
    qp_a.connect(&qp_b.endpoint(), &ConnectOptions::default())?;
    qp_b.connect(&qp_a.endpoint(), &ConnectOptions::default())?;

    qp_b.post_recv(pd_b.alloc(64)?)?;
    let mut buf = pd_a.alloc(5)?;
    buf.copy_from_slice(b"hello");
    qp_a.send(buf)?; // the queue owns the buffer until the request completes

    let mut wcs = Completions::default();
    for wc in cq_b.wait(&mut wcs, None)? {
        let mut wc = wc.ok()?;
        let buf = wc.take_buf().expect("a receive gives its buffer back");
        println!("b received {:?}", String::from_utf8_lossy(&buf[..wc.byte_len as usize]));
    }
    for wc in cq_a.wait(&mut wcs, None)? {
        println!("a has its buffer back: {:?}", wc.ok()?.take_buf());
    }
    Ok(())
}
