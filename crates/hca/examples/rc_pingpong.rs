//! Two ends of a reliable connection bounce a message and print the round-trip time. Each end is a thread with a device
//! of its own; two processes would exchange the endpoints over any channel.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use hca::{Completions, ConnectOptions, Endpoint, QueuePair, Rc};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: u32 = 200;

fn main() -> Result<(), Failure> {
    let (to_pong, from_ping) = channel();
    let (to_ping, from_pong) = channel();
    let pong = std::thread::spawn(move || end(false, &to_ping, &from_ping));
    // Each end lives until the other has heard that its last message arrived.
    let _ping = end(true, &to_pong, &from_pong)?;
    pong.join().expect("no panic").map(drop)
}

fn end(first: bool, ours: &Sender<Endpoint>, theirs: &Receiver<Endpoint>) -> Result<QueuePair<Rc>, Failure> {
    let context = hca::open("auto://")?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(256)?;
    let mut qp = pd.qp::<Rc>(&cq).build()?;
    for _ in 0..8 {
        qp.post_recv(pd.alloc(64)?)?;
    }
    ours.send(qp.endpoint())?;
    qp.connect(&theirs.recv()?, &ConnectOptions::default())?;

    let begin = Instant::now();
    if first {
        qp.send_inline(b"ping")?;
    }
    let (mut wcs, mut received, mut sent) = (Completions::default(), 0, 0);
    while received < ROUNDS || sent < ROUNDS {
        for wc in cq.poll(&mut wcs) {
            let mut wc = wc.ok()?;
            let Some(buf) = wc.take_buf() else {
                sent += 1;
                continue;
            };
            qp.post_recv(buf)?;
            received += 1;
            if !first || received < ROUNDS {
                qp.send_inline(if first { b"ping" } else { b"pong" })?;
            }
        }
    }
    if first {
        println!("{ROUNDS} round trips of {:?}", begin.elapsed() / ROUNDS);
    }
    Ok(qp)
}
