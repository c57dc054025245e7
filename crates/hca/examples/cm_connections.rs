//! Connections by RDMA CM between two processes: one by calls that block, and then many by tokio tasks, and how many in
//! a second. The adapter's thread does its work: the tasks sleep between all messages, and a program that turned the
//! adapter in between would make half of the connections. `HCA_DEVICE` names another device.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use hca::cm::{ConnectParams, Listener, connect, connect_async};
use hca::{Completions, Context, Inline, Rc, Reactor};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const TASKS: u32 = 32;
const CONNECTIONS: u32 = 3200;

fn main() -> Result<(), Failure> {
    let device = std::env::var("HCA_DEVICE");
    let context = hca::open(device.as_deref().unwrap_or("auto://?progress=thread"))?;
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve(&context);
    }
    let mut server = Command::new(std::env::current_exe()?).arg("serve").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut line)?;
    let address = line.trim().parse()?;
    let asked = ask_once(&context, address).and_then(|()| ask(&context, address));
    server.kill().and_then(|()| server.wait())?;
    asked
}

#[tokio::main(flavor = "current_thread")]
async fn serve(context: &Context) -> Result<(), Failure> {
    let listener = Listener::bind(context, "0.0.0.0:0")?;
    println!("{}", listener.address());
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(4096)?);
    loop {
        let incoming = listener.accept_async().await?;
        let mut qp = pd.qp::<Rc>(&cq).max_send_wr(4).max_recv_wr(4).build()?;
        qp.post_recv(pd.alloc(64)?)?;
        tokio::spawn(async move { incoming.accept_async(&qp, b"welcome").await?.disconnected().await });
    }
}

/// One connection, by calls that block.
fn ask_once(context: &Context, server: std::net::SocketAddr) -> Result<(), Failure> {
    let mut cq = context.create_cq(16)?;
    let mut qp = context.alloc_pd()?.qp::<Rc>(&cq).max_send_wr(4).max_recv_wr(4).build()?;
    let connection = connect(context, &qp, server, b"the first")?;
    println!(
        "the server says {:?}",
        String::from_utf8_lossy(connection.private_data()).trim_end_matches('\0')
    );
    qp.send_inline(b"hello")?;
    for wc in cq.wait(&mut Completions::with_capacity(1), None)? {
        wc.ok()?;
    }
    connection.disconnect()?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn ask(context: &Context, server: std::net::SocketAddr) -> Result<(), Failure> {
    let (pd, reactor) = (context.alloc_pd()?, Reactor::spawn(context.create_cq(4096)?)?);
    let (begin, mut tasks) = (std::time::Instant::now(), tokio::task::JoinSet::new());
    for _ in 0..TASKS {
        let (context, pd, reactor) = (context.clone(), pd.clone(), reactor.clone());
        tasks.spawn(async move {
            for _ in 0..CONNECTIONS / TASKS {
                let qp = pd.qp::<Rc>(&reactor).max_send_wr(4).max_recv_wr(4).build_async(&reactor)?;
                let connection = connect_async(&context, &qp, server, &ConnectParams::default()).await?;
                qp.send(Inline(b"hello")).await?;
                connection.disconnect_async().await?;
            }
            Ok::<_, Failure>(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<(), _>>()?;
    let a_second = f64::from(CONNECTIONS) / begin.elapsed().as_secs_f64();
    println!("{CONNECTIONS} connections, {a_second:.0} in a second");
    Ok(())
}
