//! A network that loses, doubles, reorders and corrupts packets by seed: a reliable connection still delivers every
//! message once and in order, and the counters show the retransmissions.

use hca::{Completions, ConnectOptions, FrozenBuf, Rc, SendRequest};

const MESSAGES: u64 = 200;
const FAULTS: &str =
    "loopback://faulty?progress=inline&fault=loss=0.05,dup=0.02,reorder=0.02,corrupt=0.02,seed=";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = std::env::args().nth(1).unwrap_or("7".into());
    let sender = hca::open(&format!("{FAULTS}{seed}"))?;
    let receiver = hca::open("loopback://faulty?progress=inline")?;
    let (pd, receiver_pd) = (sender.alloc_pd()?, receiver.alloc_pd()?);
    let (mut send_cq, mut recv_cq) = (sender.create_cq(512)?, receiver.create_cq(512)?);
    let mut qp = pd.qp::<Rc>(&send_cq).max_send_wr(256).build()?;
    let mut peer = receiver_pd.qp::<Rc>(&recv_cq).max_recv_wr(256).build()?;
    qp.connect(&peer.endpoint(), &ConnectOptions::default())?;
    peer.connect(&qp.endpoint(), &ConnectOptions::default())?;

    for buf in receiver_pd.alloc_many(MESSAGES as usize, 5000)? {
        peer.post_recv(buf)?;
    }
    for n in 0..MESSAGES {
        let mut message = pd.alloc(5000)?; // two packets
        message.fill(n as u8);
        let message: FrozenBuf = message.freeze();
        qp.post_send(SendRequest::send(message).id(n)).map_err(|r| r.error)?;
    }
    let (mut sent, mut received, mut wcs) = (0, 0, Completions::default());
    while sent < MESSAGES || received < MESSAGES {
        for wc in send_cq.poll(&mut wcs) {
            assert_eq!(wc.ok()?.id, sent, "completed in order");
            sent += 1;
        }
        for wc in recv_cq.poll(&mut wcs) {
            let wc = wc.ok()?;
            let payload = wc.payload().expect("it was received");
            assert!(payload.len() == 5000 && payload.iter().all(|b| *b == received as u8));
            received += 1;
        }
    }
    println!("seed {seed}: {received} messages of two packets each, once and in order");
    for c in sender.counters().iter().filter(|c| c.value > 0) {
        println!("  {:<28}{}", c.name, c.value);
    }
    Ok(())
}
