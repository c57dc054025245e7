//! A completion queue on a tokio runtime, over a device in memory.

mod fake;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fake::Fake;
use hca_verbs::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn tasks_of_one_thread_talk_and_a_dropped_future_loses_nothing() {
    let context = Context::with_seed(Fake::new(), 1);
    let pd = context.alloc_pd().unwrap();
    let (a_cq, b_cq) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
    let mut a = pd.qp::<Rc>(&a_cq).max_send_wr(8).max_recv_wr(8).build().unwrap();
    let mut b = pd.qp::<Rc>(&b_cq).max_send_wr(8).max_recv_wr(8).build().unwrap();
    a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
    b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
    b.post_recv(pd.alloc(8).unwrap()).unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime(), async {
        let (mut a_cq, mut b_cq) = (AsyncCq::new(a_cq).unwrap(), AsyncCq::new(b_cq).unwrap());
        let mut wcs = Completions::default();
        let none = tokio::time::timeout(Duration::from_millis(1), b_cq.next(&mut wcs)).await;
        assert!(none.is_err());
        let echo = tokio::task::spawn_local(async move {
            for _ in 0..100 {
                let mut answered = false;
                while !answered {
                    for wc in b_cq.next(&mut wcs).await.unwrap() {
                        let mut wc = wc.ok().unwrap();
                        if wc.opcode.is_recv() {
                            b.send(wc.take_buf().unwrap()).unwrap();
                        } else {
                            answered = true;
                            b.post_recv(wc.take_buf().unwrap()).unwrap();
                        }
                    }
                }
            }
            b
        });
        let mut wcs = Completions::default();
        let mut spare = Some(pd.alloc(8).unwrap());
        let mut message = Some(pd.alloc(8).unwrap());
        for i in 0..100_u64 {
            a.post_recv(spare.take().unwrap()).unwrap();
            let mut buf = message.take().unwrap();
            buf.copy_from_slice(&i.to_ne_bytes());
            a.send(buf).unwrap();
            while spare.is_none() || message.is_none() {
                for wc in a_cq.next(&mut wcs).await.unwrap() {
                    let mut wc = wc.ok().unwrap();
                    let back = wc.take_buf();
                    if wc.opcode.is_recv() { spare = back } else { message = back }
                }
            }
            assert_eq!(spare.as_deref(), Some(&i.to_ne_bytes()[..]));
        }
        drop(echo.await.unwrap());
    });
}

#[test]
fn a_queue_without_a_descriptor_comes_back() {
    let fake = Fake::new();
    fake.faults.no_descriptor.store(true, Relaxed);
    let context = Context::with_seed(fake, 1);
    let runtime = runtime();
    let _guard = runtime.enter();
    let refused = AsyncCq::new(context.create_cq(4).unwrap()).unwrap_err();
    assert!(matches!(refused.error, WaitError::Device(_)));
    assert_eq!(refused.cq.depth(), 4);
}
