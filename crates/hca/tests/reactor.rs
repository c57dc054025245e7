//! A hundred connections, each a task, on one completion queue an end.

use std::time::Duration;

use hca::{
    Access, AsyncQp, AsyncSrq, Completions, ConnectOptions, Inline, Opened, Pd, Qkey, Rc, Reactor, RemoteMr,
    SharedMr, SrqInit, Ud, open_device,
};

const CONNECTIONS: usize = 100;
const ROUNDS: u64 = 20;
/// The longest wait of a test; other programs may keep the machine busy.
const PATIENCE: Duration = Duration::from_secs(120);

struct End {
    opened: Opened,
    pd: Pd,
    reactor: Reactor,
}

fn end(url: &str) -> End {
    let opened = open_device(url).unwrap();
    let pd = opened.context().alloc_pd().unwrap();
    let reactor = Reactor::spawn(opened.context().create_cq(8192).unwrap()).unwrap();
    End { opened, pd, reactor }
}

/// Answers each message with its own bytes, until the far end is gone.
async fn echo(pd: Pd, qp: AsyncQp<Rc>) {
    while let Ok(message) = qp.recv().await {
        let mut answer = pd.alloc(message.len()).unwrap();
        answer.copy_from_slice(&message);
        drop(message);
        if qp.send(answer).await.is_err() {
            return;
        }
    }
}

/// Asks, reads a word of the far end, and adds to it.
async fn ask(pd: Pd, qp: AsyncQp<Rc>, n: u64, word: RemoteMr) {
    let mut buf = pd.alloc(8).unwrap();
    for round in 0..ROUNDS {
        buf.copy_from_slice(&(n << 32 | round).to_ne_bytes());
        let (sent, answer) = tokio::join!(qp.send(buf), qp.recv());
        buf = sent.unwrap();
        assert_eq!(answer.unwrap()[..], buf[..], "connection {n}, round {round}");
        buf = qp.read(buf, word).await.unwrap();
        assert_eq!(buf[..], round.to_ne_bytes(), "connection {n}");
        buf = qp.fetch_add(buf, word, 1).await.unwrap();
        assert_eq!(buf[..], round.to_ne_bytes(), "connection {n}");
    }
}

async fn hundred(url: &str) {
    let (server, client) = (end(url), end(url));
    let words = CONNECTIONS * 8;
    let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mr: SharedMr = server.pd.alloc_shared(words, access).unwrap();
    let srq = AsyncSrq::new(server.pd.create_srq(SrqInit { max_wr: 256, max_sge: 1 }).unwrap());
    srq.post_recvs(server.pd.alloc_many(256, 64).unwrap()).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..CONNECTIONS {
        let s = server.pd.qp::<Rc>(&server.reactor).max_send_wr(8).srq(&srq);
        let s = s.build_async(&server.reactor).unwrap();
        let c = client.pd.qp::<Rc>(&client.reactor).max_send_wr(8).max_recv_wr(8);
        let c = c.build_async(&client.reactor).unwrap();
        c.post_recvs(client.pd.alloc_many(4, 64).unwrap()).unwrap();
        s.connect(&c.endpoint(), &ConnectOptions::default()).unwrap();
        c.connect(&s.endpoint(), &ConnectOptions::default()).unwrap();
        tokio::spawn(echo(server.pd.clone(), s));
        tasks.spawn(ask(client.pd.clone(), c, n as u64, mr.remote().range(n * 8..n * 8 + 8)));
    }
    let all = tokio::time::timeout(PATIENCE, async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    });
    all.await.expect("all connections end");
    for n in 0..CONNECTIONS {
        assert_eq!(mr.load_u64(n * 8), ROUNDS);
    }
    drop(client.opened);
}

#[tokio::test]
async fn a_hundred_connections_share_one_completion_queue_on_a_device_with_a_thread() {
    hundred("auto://").await;
}

#[tokio::test]
async fn a_hundred_connections_share_one_completion_queue_over_udp() {
    hundred("udp://?progress=inline").await;
}

#[tokio::test]
async fn a_hundred_connections_share_one_completion_queue_over_shared_memory() {
    hundred("shm://hundred?progress=inline").await;
}

/// A thread sleeps until a message comes, another posts it, and nobody turns the adapter behind the post. Its first
/// datagram to itself opens the path.
#[test]
fn a_message_to_the_own_adapter_is_taken_while_the_program_sleeps() {
    for n in 0..8 {
        let context = hca::open(&format!("shm://own-{}-{n}", std::process::id())).unwrap();
        let pd = context.alloc_pd().unwrap();
        let (send_cq, mut recv_cq) = (context.create_cq(4).unwrap(), context.create_cq(4).unwrap());
        let mut qp = pd.qp::<Ud>(&recv_cq).send_cq(&send_cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
        qp.activate(Qkey::new(7)).unwrap();
        qp.post_recv(pd.alloc(64).unwrap()).unwrap();
        let own = pd.create_ah(&qp.endpoint().av()).unwrap().peer(qp.qpn(), Qkey::new(7));
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut wcs = Completions::default();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let came = runtime.block_on(async { recv_cq.next(&mut wcs).await.count() });
                tell.send(came).unwrap();
            });
            // The adapter's thread may be asleep by now, or not.
            std::thread::sleep(Duration::from_millis(30));
            qp.send_to(Inline(b"own"), &own).unwrap();
            let came = told.recv_timeout(Duration::from_secs(20));
            // A turn frees the sleeper, so that a failure is told.
            context.turn();
            assert_eq!(came, Ok(1), "adapter {n}");
        });
    }
}
