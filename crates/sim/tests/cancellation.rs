//! Requests whose futures are dropped at any moment, on hostile networks: no buffer, no completion and no message is
//! lost.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_sim::{LinkProfile, Node, check, sleep, timeout};
use hca_verbs::{AsyncQp, Buf, ConnectOptions, Pd, Rc, Reactor, RequestError, SendRequest};

const MESSAGES: u64 = 60;
const DEPTH: u32 = 8;

fn open(node: &Node) -> (Pd, AsyncQp<Rc>) {
    let context = node.context();
    let pd = context.alloc_pd().unwrap();
    let (reactor, driver) = Reactor::new(context.create_cq(256).unwrap());
    node.spawn(driver);
    let qp = pd.qp::<Rc>(&reactor).max_send_wr(DEPTH).max_recv_wr(32).build_async(&reactor).unwrap();
    qp.post_recvs(pd.alloc_many(32, 8).unwrap()).unwrap();
    (pd, qp)
}

/// What became of a message: which of the three is for chance to say.
#[derive(Default)]
struct Outcomes {
    awaited: u64,
    cancelled: u64,
    left: u64,
}

/// Sends a message, but loses patience at any moment.
async fn impatient(qp: AsyncQp<Rc>, buf: Buf, id: u64) -> Option<Buf> {
    let patience = Duration::from_micros(hca_sim::random() % 400);
    sleep(Duration::from_micros(hca_sim::random() % 200)).await;
    match timeout(patience, qp.request(SendRequest::send(buf).id(id))).await {
        Ok(sent) => Some(sent.unwrap()),
        Err(_) => None,
    }
}

#[test]
fn dropped_requests_lose_neither_buffer_nor_completion_nor_message() {
    let mut all = Outcomes::default();
    let outcomes = std::cell::RefCell::new(&mut all);
    check(0..60, |builder| {
        let sim = builder.links(&LinkProfile::hostile()).build();
        let (near, far) = (sim.add_node(), sim.add_node());
        let ((pd, qp), (_far_pd, far_qp)) = (open(&near), open(&far));
        qp.connect(&far_qp.endpoint(), &ConnectOptions::default()).unwrap();
        far_qp.connect(&qp.endpoint(), &ConnectOptions::default()).unwrap();
        let seen = sim.block_on(async move {
            let tasks: Vec<_> = (0..MESSAGES)
                .map(|id| {
                    let mut buf = pd.alloc(8).unwrap();
                    buf.copy_from_slice(&id.to_le_bytes());
                    hca_sim::spawn(impatient(qp.clone(), buf, id))
                })
                .collect();
            let receiver = hca_sim::spawn(async move {
                let mut got = BTreeSet::new();
                // Receives are cancelled as well: the next one has the message.
                while let Ok(message) = timeout(Duration::from_secs(60), async {
                    loop {
                        let patience = Duration::from_micros(hca_sim::random() % 50);
                        if let Ok(message) = timeout(patience, far_qp.recv()).await {
                            return message.unwrap();
                        }
                    }
                })
                .await
                {
                    let id = u64::from_le_bytes(message[..].try_into().unwrap());
                    assert!(got.insert(id), "message {id} came twice");
                    if id == u64::MAX {
                        break;
                    }
                }
                (got, far_qp) // which answers until the last message is acknowledged
            });
            let (mut posted, mut seen) = (BTreeSet::new(), Outcomes::default());
            let mut buffers = BTreeSet::new();
            for (id, task) in tasks.into_iter().enumerate() {
                if let Some(buf) = task.await.unwrap() {
                    assert_eq!(buf[..], (id as u64).to_le_bytes());
                    assert!(posted.insert(id as u64) && buffers.insert(id as u64));
                    seen.awaited += 1;
                }
            }
            while let Some(left) = qp.reclaim().await {
                match left.result {
                    Ok(()) => {
                        assert!(posted.insert(left.id));
                        seen.left += 1;
                    }
                    Err(RequestError::Cancelled) => seen.cancelled += 1,
                    Err(error) => panic!("request {}: {error}", left.id),
                }
                let id = left.id;
                assert!(buffers.insert(id), "the buffer of request {id} came back twice");
                assert_eq!(left.into_bufs().next().unwrap()[..], id.to_le_bytes());
            }
            assert_eq!(buffers.len() as u64, MESSAGES, "each buffer came back");
            assert_eq!(qp.outstanding().0, 0);
            let mut last = pd.alloc(8).unwrap();
            last.fill(0xff);
            qp.send(last).await.unwrap();
            posted.insert(u64::MAX);
            let (got, _far_qp) = receiver.await.unwrap();
            assert_eq!(got, posted, "what was posted has arrived, and nothing else");
            seen
        })?;
        let mut sum = outcomes.borrow_mut();
        sum.awaited += seen.awaited;
        sum.cancelled += seen.cancelled;
        sum.left += seen.left;
        Ok(())
    });
    // Else the seeds test nothing.
    let Outcomes { awaited, cancelled, left } = all;
    assert!(
        awaited > 0 && cancelled > 0 && left > 0,
        "awaited {awaited}, cancelled {cancelled}, left {left}"
    );
}
