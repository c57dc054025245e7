//! A server on tokio with one shared receive queue, and 32 clients: a task for each connection on both sides. Half of the
//! clients connect by RDMA CM, the others exchange endpoints over TCP.

use std::net::SocketAddr;

use hca::cm::{ConnectParams, Incoming, Listener, connect_async};
use hca::{AsyncQp, AsyncSrq, ConnectOptions, Context, Pd, Rc, Reactor, SrqInit};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const CLIENTS: u32 = 32;

/// The objects that each side needs for a queue pair.
#[derive(Clone)]
struct Side {
    context: Context,
    pd: Pd,
    reactor: Reactor,
}

impl Side {
    fn new() -> Result<Self, Failure> {
        let context = hca::open("auto://")?;
        let (pd, reactor) = (context.alloc_pd()?, Reactor::spawn(context.create_cq(4096)?)?);
        Ok(Self { context, pd, reactor })
    }
}

async fn answer(qp: &AsyncQp<Rc>) -> Result<(), Failure> {
    loop {
        let request = qp.recv().await?; // its buffer goes back to the shared queue when it is dropped
        let number = u32::from_be_bytes(request[..].try_into()?);
        qp.send(hca::Inline(&number.wrapping_mul(2).to_be_bytes())).await?;
    }
}

async fn ask(qp: &AsyncQp<Rc>, number: u32) -> Result<u32, Failure> {
    qp.send(hca::Inline(&number.to_be_bytes())).await?;
    Ok(u32::from_be_bytes(qp.recv().await?[..].try_into()?))
}

async fn serve_over_tcp(side: Side, srq: AsyncSrq, mut stream: TcpStream) -> Result<(), Failure> {
    let qp = side.pd.qp::<Rc>(&side.reactor).max_send_wr(8).srq(&srq).build_async(&side.reactor)?;
    qp.connect(&qp.endpoint().exchange_async(&mut stream).await?, &ConnectOptions::default())?;
    answer(&qp).await
}

async fn serve(side: Side, srq: AsyncSrq, incoming: Incoming) -> Result<(), Failure> {
    let qp = side.pd.qp::<Rc>(&side.reactor).max_send_wr(8).srq(&srq).build_async(&side.reactor)?;
    let _connection = incoming.accept_async(&qp, b"").await?;
    answer(&qp).await // ends with the connection
}

async fn client(side: Side, cm: SocketAddr, tcp: SocketAddr, number: u32) -> Result<u32, Failure> {
    let qp = side.pd.qp::<Rc>(&side.reactor).max_send_wr(8).max_recv_wr(8).build_async(&side.reactor)?;
    qp.post_recv(side.pd.alloc(64)?)?;
    if number.is_multiple_of(2) {
        let connection = connect_async(&side.context, &qp, cm, &ConnectParams::default()).await?;
        let answer = ask(&qp, number).await?;
        connection.disconnect_async().await?;
        return Ok(answer);
    }
    let mut stream = TcpStream::connect(tcp).await?;
    qp.connect(&qp.endpoint().exchange_async(&mut stream).await?, &ConnectOptions::default())?;
    ask(&qp, number).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let (server, side) = (Side::new()?, Side::new()?);
    let srq = AsyncSrq::new(server.pd.create_srq(SrqInit { max_wr: 256, max_sge: 1 })?);
    srq.post_recvs(server.pd.alloc_many(256, 64)?)?;
    let (cm, tcp) = (Listener::bind(&server.context, "0.0.0.0:0")?, TcpListener::bind("127.0.0.1:0").await?);
    let (cm_address, tcp_address) = (cm.address(), tcp.local_addr()?);
    tokio::spawn({
        let (server, srq) = (server.clone(), srq.clone());
        async move {
            while let Ok(incoming) = cm.accept_async().await {
                tokio::spawn(serve(server.clone(), srq.clone(), incoming));
            }
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = tcp.accept().await {
            tokio::spawn(serve_over_tcp(server.clone(), srq.clone(), stream));
        }
    });
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        asked.spawn(client(side.clone(), cm_address, tcp_address, number));
    }
    let mut sum = 0;
    while let Some(answer) = asked.join_next().await {
        sum += answer??;
    }
    println!("{CLIENTS} clients were answered; the sum is {sum}");
    assert_eq!(sum, (0..CLIENTS).map(|n| n * 2).sum::<u32>());
    Ok(())
}
