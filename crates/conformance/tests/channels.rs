//! Completion channels, and events by object, over the software adapter in all progress modes.

use std::os::fd::AsFd;
use std::time::Duration;

use hca_core::{Access, AsyncEvent, EventObject, Notify};
use hca_fabric::LoopbackNet;
use hca_verbs::*;
use softhca::{Options, Progress, SoftHca};

const PATIENCE: Duration = Duration::from_secs(20);
const QUEUES: usize = 16;

/// An adapter at each end, with queue pairs between them, each on a completion queue of its own.
struct Bed {
    a: Vec<(CompletionQueue, QueuePair<Rc>)>,
    b: Vec<(CompletionQueue, QueuePair<Rc>)>,
    contexts: [Context; 2],
    pds: [Pd; 2],
}

fn bed(progress: Progress, count: usize) -> Bed {
    let net = LoopbackNet::new();
    let contexts = ["10.0.0.1", "10.0.0.2"].map(|addr| {
        let fabric = Box::new(net.attach(addr.parse().unwrap()));
        let options = Options { progress, seed: Some(7), ..Options::default() };
        Context::with_seed(SoftHca::open(fabric, options).unwrap(), 3)
    });
    let pds = contexts.each_ref().map(|context| context.alloc_pd().unwrap());
    let side = |i: usize| -> Vec<(CompletionQueue, QueuePair<Rc>)> {
        (0..count)
            .map(|_| {
                let cq = contexts[i].create_cq(64).unwrap();
                let qp = pds[i].qp::<Rc>(&cq).max_send_wr(16).max_recv_wr(16).max_inline(8).build().unwrap();
                (cq, qp)
            })
            .collect()
    };
    let (a, b) = (side(0), side(1));
    for ((_, a), (_, b)) in a.iter().zip(&b) {
        a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
        b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
    }
    Bed { a, b, contexts, pds }
}

impl Bed {
    fn send(&mut self, i: usize) {
        let buf = self.pds[1].alloc(8).unwrap();
        self.b[i].1.post_recv(buf).unwrap();
        self.a[i].1.post_send(SendRequest::send(Inline(&(i as u64).to_ne_bytes())).signaled(true)).unwrap();
    }
    fn channel(&mut self) -> CompletionChannel {
        let channel = self.contexts[1].create_channel().unwrap();
        for (cq, _) in &mut self.b {
            channel.attach(cq);
            cq.arm(Notify::Any);
        }
        channel
    }
    /// Polls a queue of the receiver dry, armed anew before.
    fn drain(&mut self, i: usize, wcs: &mut Completions) -> usize {
        let (cq, _) = &mut self.b[i];
        cq.arm(Notify::Any);
        let mut came = 0;
        loop {
            let polled = cq.poll(wcs);
            if polled.len() == 0 {
                return came;
            }
            for wc in polled {
                assert_eq!(wc.ok().unwrap().payload(), Some(&(i as u64).to_ne_bytes()[..]));
                came += 1;
            }
        }
    }
    fn named(&self, cq: hca_core::CqHandle) -> usize {
        self.b.iter().position(|(of, _)| of.handle() == cq).expect("a queue of the channel")
    }
}

/// A thread that moves the sender, as its program would, until the body ends or panics.
fn with_sender_moved(contexts: &[Context; 2], body: impl FnOnce()) {
    struct Ends<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    let context = contexts[0].clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                context.turn();
                std::thread::yield_now();
            }
        });
        let _ends = Ends(&done);
        body();
    });
}

#[test]
fn a_channel_names_each_queue_that_has_something_and_no_other() {
    for progress in Progress::ALL {
        let mut bed = bed(progress, QUEUES);
        let channel = bed.channel();
        let contexts = bed.contexts.clone();
        assert_eq!(channel.poll(), None, "{progress}");
        with_sender_moved(&contexts, || {
            let mut wcs = Completions::default();
            for round in 0..20 {
                let busy = [round % QUEUES, (round * 7 + 3) % QUEUES];
                let wanted = if busy[0] == busy[1] { 2 } else { 1 };
                busy.iter().for_each(|&i| bed.send(i));
                let mut came = [0; QUEUES];
                while busy.iter().any(|&i| came[i] < wanted) {
                    let i = bed.named(
                        channel.wait(Some(PATIENCE)).unwrap_or_else(|e| panic!("{progress} {round}: {e}")),
                    );
                    came[i] += bed.drain(i, &mut wcs);
                }
                let idle = (0..QUEUES).filter(|i| !busy.contains(i)).map(|i| came[i]).sum::<usize>();
                assert_eq!(idle, 0, "{progress} {round}");
            }
        });
    }
}

#[test]
fn a_channel_is_one_descriptor_for_a_loop() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    for progress in Progress::ALL {
        let mut bed = bed(progress, QUEUES);
        let channel = bed.channel();
        let contexts = bed.contexts.clone();
        with_sender_moved(&contexts, || {
            let mut wcs = Completions::default();
            for i in 0..QUEUES {
                bed.send(i);
                let mut came = 0;
                while came == 0 {
                    while let Some(cq) = channel.poll() {
                        let of = bed.named(cq);
                        assert_eq!(of, i, "{progress}");
                        came += bed.drain(of, &mut wcs);
                    }
                    if came > 0 {
                        break;
                    }
                    let limit = Timespec::try_from(PATIENCE).unwrap();
                    let n =
                        poll(&mut [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)], Some(&limit));
                    assert!(n.unwrap_or(1) > 0, "{progress}: nothing woke the loop");
                }
            }
        });
    }
}

#[test]
fn a_channel_that_names_nothing_in_time_says_so() {
    for progress in Progress::ALL {
        let mut bed = bed(progress, 1);
        let channel = bed.channel();
        let e = channel.wait(Some(Duration::from_millis(5))).unwrap_err();
        assert!(matches!(e, WaitError::TimedOut(_)), "{progress}: {e}");
    }
}

#[test]
fn a_future_of_a_channel_ends_on_tokio() {
    for progress in Progress::ALL {
        let mut bed = bed(progress, QUEUES);
        let channel = bed.channel();
        let contexts = bed.contexts.clone();
        with_sender_moved(&contexts, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut wcs = Completions::default();
                for i in [3, 0, 15] {
                    bed.send(i);
                    let mut came = 0;
                    while came == 0 {
                        let cq = tokio::time::timeout(PATIENCE, channel.next()).await.expect("in time");
                        assert_eq!(bed.named(cq), i);
                        came += bed.drain(i, &mut wcs);
                    }
                }
            });
        });
    }
}

/// Has the queue pair of the receiver refuse an access, which is an event of it.
fn offend(bed: &mut Bed, i: usize) {
    let readable = bed.pds[1].alloc_shared(8, Access::REMOTE_READ).unwrap();
    bed.a[i].1.write(Inline(&[0; 8]), readable.remote().range(..)).unwrap();
}

#[test]
fn events_go_to_who_waits_for_their_object_whoever_takes_them_from_the_device() {
    for progress in Progress::ALL {
        let mut bed = bed(progress, 3);
        let contexts = bed.contexts.clone();
        let handles: Vec<_> = bed.b.iter().map(|(_, qp)| qp.handle()).collect();
        with_sender_moved(&contexts, || {
            let waits: Vec<_> = handles
                .iter()
                .map(|&qp| {
                    let context = contexts[1].clone();
                    std::thread::spawn(move || {
                        let wanted = EventObject::Qp(qp);
                        loop {
                            let event = context.wait_event_of(wanted, Some(PATIENCE)).unwrap();
                            assert_eq!(event.object(), wanted);
                            if event == AsyncEvent::QpAccessError(qp) {
                                return;
                            }
                        }
                    })
                })
                .collect();
            (0..3).rev().for_each(|i| offend(&mut bed, i));
            waits.into_iter().for_each(|wait| wait.join().unwrap());
        });
    }
}

#[test]
fn events_of_others_stay_for_who_asks_for_any() {
    let mut bed = bed(Progress::Thread, 2);
    let [first, second] = [0, 1].map(|i| EventObject::Qp(bed.b[i].1.handle()));
    offend(&mut bed, 0);
    let contexts = bed.contexts.clone();
    let context = &contexts[1];
    while context.poll_event_of(first).is_none_or(|e| !matches!(e, AsyncEvent::QpAccessError(_))) {
        std::thread::yield_now();
    }
    offend(&mut bed, 1);
    assert_eq!(context.poll_event_of(EventObject::Port), None);
    let mut came = Vec::new();
    while !came.iter().any(|e| matches!(e, AsyncEvent::QpAccessError(_))) {
        came.push(context.wait_event(Some(PATIENCE)).unwrap());
    }
    assert!(came.iter().all(|e| e.object() == second), "{came:?}");
}

#[test]
fn times_are_refused_by_a_queue_that_was_created_without_them() {
    let mut bed = bed(Progress::Thread, 1);
    let (mut wcs, mut times) = (Completions::default(), Vec::new());
    let refused = bed.a[0].0.poll_with_times(&mut wcs, &mut times).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("the queue was created without them"), "{refused}");
}
