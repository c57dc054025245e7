//! An echo server and its client as tasks of one tokio runtime, which turns both devices by their descriptors: no
//! adapter has a thread, and no thread blocks in a call or spins.

use hca::{AsyncCq, Completions, ConnectOptions, Context, Pd, QueuePair, Rc};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const MESSAGES: usize = 100;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let (server, client) = (hca::open("udp://?progress=inline")?, hca::open("udp://?progress=inline")?);
    let (server_pd, server_cq, server_qp) = side(&server)?;
    let (client_pd, client_cq, client_qp) = side(&client)?;
    server_qp.connect(&client_qp.endpoint(), &ConnectOptions::default())?;
    client_qp.connect(&server_qp.endpoint(), &ConnectOptions::default())?;
    let server = tokio::spawn(echo(server_pd, server_cq, server_qp));
    ask(client_pd, client_cq, client_qp).await?;
    server.abort();
    Ok(())
}

fn side(context: &Context) -> Result<(Pd, AsyncCq, QueuePair<Rc>), Failure> {
    let pd = context.alloc_pd()?;
    let cq = AsyncCq::new(context.create_cq(256)?).map_err(|e| e.error)?;
    let mut qp = pd.qp::<Rc>(&cq).build()?;
    pd.alloc_many(8, 4096)?.into_iter().try_for_each(|buf| qp.post_recv(buf))?;
    Ok((pd, cq, qp))
}

async fn echo(pd: Pd, mut cq: AsyncCq, mut qp: QueuePair<Rc>) -> Result<(), Failure> {
    let mut wcs = Completions::default();
    loop {
        for wc in cq.next(&mut wcs).await? {
            let mut wc = wc.ok()?;
            if wc.opcode.is_recv() {
                let len = wc.byte_len as usize;
                qp.post_recv(pd.alloc(4096)?)?;
                qp.send(wc.take_buf().expect("a buffer was posted").first(len)).map_err(|r| r.error)?;
            }
        }
    }
}

async fn ask(pd: Pd, mut cq: AsyncCq, mut qp: QueuePair<Rc>) -> Result<(), Failure> {
    let mut wcs = Completions::default();
    for n in 0..MESSAGES {
        qp.send_inline(&n.to_ne_bytes())?;
        let mut answered = false;
        while !answered {
            for wc in cq.next(&mut wcs).await?.filter(|wc| wc.opcode.is_recv()) {
                answered |= wc.ok()?.payload() == Some(&n.to_ne_bytes()[..]);
                qp.post_recv(pd.alloc(4096)?)?;
            }
        }
    }
    println!("{MESSAGES} messages echoed");
    Ok(())
}
