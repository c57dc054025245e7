//! A server on tokio with one shared receive queue, and 32 clients: a task for each connection on both sides, endpoints
//! exchanged over TCP.

use hca::{AsyncQp, AsyncSrq, ConnectOptions, Pd, Rc, Reactor, SrqInit};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const CLIENTS: u32 = 32;

async fn serve(pd: Pd, reactor: Reactor, srq: AsyncSrq, mut stream: TcpStream) -> Result<(), Failure> {
    let qp = pd.qp::<Rc>(&reactor).max_send_wr(8).srq(&srq).build_async(&reactor)?;
    qp.connect(&qp.endpoint().exchange_async(&mut stream).await?, &ConnectOptions::default())?;
    loop {
        let request = qp.recv().await?; // its buffer goes back to the shared queue when it is dropped
        let number = u32::from_be_bytes(request[..].try_into()?);
        qp.send(hca::Inline(&number.wrapping_mul(2).to_be_bytes())).await?;
    }
}

async fn ask(pd: Pd, reactor: Reactor, mut stream: TcpStream, number: u32) -> Result<u32, Failure> {
    let qp: AsyncQp<Rc> = pd.qp::<Rc>(&reactor).max_send_wr(8).max_recv_wr(8).build_async(&reactor)?;
    qp.post_recv(pd.alloc(64)?)?;
    qp.connect(&qp.endpoint().exchange_async(&mut stream).await?, &ConnectOptions::default())?;
    qp.send(hca::Inline(&number.to_be_bytes())).await?;
    Ok(u32::from_be_bytes(qp.recv().await?[..].try_into()?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let (server, client) = (hca::open("auto://")?, hca::open("auto://")?);
    let (server_pd, pd) = (server.alloc_pd()?, client.alloc_pd()?);
    let srq = AsyncSrq::new(server_pd.create_srq(SrqInit { max_wr: 256, max_sge: 1 })?);
    srq.post_recvs(server_pd.alloc_many(256, 64)?)?;
    let serving = Reactor::spawn(server.create_cq(4096)?)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(server_pd.clone(), serving.clone(), srq.clone(), stream));
        }
    });
    let (reactor, mut asked) = (Reactor::spawn(client.create_cq(4096)?)?, tokio::task::JoinSet::new());
    for number in 0..CLIENTS {
        let (pd, reactor) = (pd.clone(), reactor.clone());
        asked.spawn(async move { ask(pd, reactor, TcpStream::connect(address).await?, number).await });
    }
    let mut sum = 0;
    while let Some(answer) = asked.join_next().await {
        sum += answer??;
    }
    println!("{CLIENTS} clients were answered; the sum is {sum}");
    assert_eq!(sum, (0..CLIENTS).map(|n| n * 2).sum::<u32>());
    Ok(())
}
