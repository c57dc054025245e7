//! Wake-ups of waiting threads and tasks: for events, for completions, by descriptors and by wakers.

mod ends;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use ends::{End, open, send, shm_pair, try_post};
use hca_core::{
    AsyncEvent, Completion, Device, Notify, PdHandle, SendFlags, SendOp, SrqHandle, SrqInit, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softhca::{Progress, SoftHca};
use test_support::waiting::ends;
use test_support::wakers;

/// Longer than anything here takes on a machine that is busy with other work.
const LONG: Duration = Duration::from_secs(20);

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

/// Raises events at will: a shared receive queue without requests.
struct Raiser {
    device: Arc<SoftHca>,
    srq: SrqHandle,
}

impl Raiser {
    fn new(device: &Arc<SoftHca>, pd: PdHandle) -> Self {
        let (srq, _) = device.create_srq(pd, &SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
        Self { device: device.clone(), srq }
    }
    fn raise(&self) -> AsyncEvent {
        self.device.set_srq_limit(self.srq, 1).unwrap();
        AsyncEvent::SrqLimitReached(self.srq)
    }
}

fn device(progress: Progress) -> (Arc<SoftHca>, Raiser) {
    let device = open("udp", progress, 0).expect("every kernel has this network");
    let raiser = Raiser::new(&device, device.alloc_pd().unwrap());
    (device, raiser)
}

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicU32);

impl Count {
    fn woken(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Does something when it is woken.
struct Does<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[test]
fn an_event_that_came_before_the_descriptor_was_made_makes_it_readable() {
    for progress in Progress::ALL {
        let (device, raiser) = device(progress);
        let event = raiser.raise();
        assert!(is_readable(device.wait_fd().unwrap()), "{progress}");
        assert_eq!(device.poll_event(), Some(event));
        assert!(!is_readable(device.wait_fd().unwrap()), "{progress}: it was taken");
        raiser.raise();
        assert!(is_readable(device.wait_fd().unwrap()), "{progress}");
    }
}

#[test]
fn all_who_wait_for_an_event_are_woken() {
    for progress in Progress::ALL {
        let (device, raiser) = device(progress);
        let waiters = [(); 3].map(|()| Arc::new(Count::default()));
        waiters.iter().for_each(|w| device.set_event_waker(&Waker::from(w.clone())));
        // One that asks twice is woken once.
        device.set_event_waker(&Waker::from(waiters[0].clone()));
        raiser.raise();
        let woken = || waiters.each_ref().map(|w| w.woken());
        // The adapter's thread may have taken one, to call it soon.
        let begun = Instant::now();
        while woken().contains(&0) && begun.elapsed() < LONG {
            std::thread::yield_now();
        }
        assert_eq!(woken(), [1; 3], "{progress}");
        raiser.raise();
        assert_eq!(woken(), [1; 3], "{progress}: they ask anew for each");
    }
}

#[test]
fn an_event_that_nobody_takes_leaves_those_asleep_who_wait_for_completions() {
    for progress in Progress::ALL {
        let (device, raiser) = device(progress);
        let (_, mut cq) = device.create_cq(16).unwrap();
        let _ = device.wait_fd().unwrap();
        let _ = cq.wait_fd().unwrap();
        raiser.raise();
        cq.arm(Notify::Any);
        assert_eq!(cq.poll(&mut [Completion::default()]), 0);
        assert!(!is_readable(cq.wait_fd().unwrap()), "{progress}");
        assert!(is_readable(device.wait_fd().unwrap()), "{progress}");
    }
}

#[test]
fn a_waker_of_events_may_look_at_once() {
    for progress in Progress::ALL {
        let (device, raiser) = device(progress);
        let (tell, told) = mpsc::channel();
        let waker = {
            let device = device.clone();
            Waker::from(Arc::new(Does(move || {
                device.turn();
                device.counters();
                tell.send(device.poll_event()).unwrap();
            })))
        };
        device.set_event_waker(&waker);
        let event = ends("an event is raised", move || raiser.raise());
        assert_eq!(told.recv_timeout(LONG), Ok(Some(event)), "{progress}");
    }
}

#[test]
fn a_waker_of_events_may_look_while_it_is_cloned_and_dropped() {
    for progress in Progress::ALL {
        let (device, raiser) = device(progress);
        let looks = device.clone();
        let waker = wakers::running(move || {
            looks.turn();
            assert!(looks.poll_event().is_none());
        });
        ends("wakers are set", move || (0..2).for_each(|_| device.set_event_waker(&waker)));
        drop(raiser);
    }
}

#[test]
fn a_waker_of_completions_may_use_the_adapter_at_once() {
    for progress in Progress::ALL {
        let [mut a, mut b] = shm_pair(progress);
        let (tell, told) = mpsc::channel();
        let device = b.device.clone();
        let waker = Waker::from(Arc::new(Does(move || {
            device.turn();
            device.counters();
            tell.send(()).unwrap();
        })));
        ends("a message is sent", move || {
            b.recv();
            b.cq.set_waker(&waker);
            b.cq.arm(Notify::Any);
            send(&mut a.rc, SendFlags::SIGNALED);
            loop {
                a.device.turn();
                b.device.turn();
                if told.try_recv().is_ok() {
                    break;
                }
                std::thread::yield_now();
            }
            assert!(b.next(&*a.device).is_some(), "{progress}");
            a.close();
            b.close();
        });
    }
}

#[test]
fn a_program_that_posts_and_never_polls_answers_its_peers() {
    for fabric in ["udp", "shm"] {
        let devices =
            [0, 1].map(|n| open(fabric, Progress::Adaptive, n).expect("every kernel has this network"));
        let [mut a, mut b] = devices.map(End::new);
        a.connect(&b);
        b.connect(&a);
        b.recv();
        let mut one = [Completion::default()];
        // More often than the adapter's thread looks. Nobody takes what is sent, as it is unreliable.
        let mut beats = 0;
        while a.cq.poll(&mut one) == 0 {
            if beats == 50 {
                send(&mut a.rc, SendFlags::SIGNALED);
            }
            beats += 1;
            // Whoever has the engine may not run now, and the queue be full.
            let _ = try_post(&mut b.uc, &[SendOp::Send], SendFlags::empty());
            std::thread::yield_now();
        }
        assert_eq!(one[0].status, WcStatus::Success, "{fabric}");
        a.close();
        b.close();
    }
}

/// Messages come while another thread polls another queue on and on, and once it has ended that.
#[test]
fn who_sleeps_on_a_descriptor_is_woken_beside_who_polls_and_behind() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let [mut a, mut b] = shm_pair(progress);
        let (handle, mut polled) = a.device.create_cq(4).unwrap();
        let _ = a.cq.wait_fd().unwrap();
        let mut one = [Completion::default()];
        for polls_on in [true, false, true, false] {
            b.recv();
            a.recv();
            a.cq.arm(Notify::Any);
            assert_eq!(a.cq.poll(&mut one), 0);
            for _ in 0..1000 {
                assert_eq!(polled.poll(&mut [Completion::default()]), 0);
            }
            send(&mut b.rc, SendFlags::empty());
            let begun = Instant::now();
            while !is_readable(a.cq.wait_fd().unwrap()) {
                assert!(begun.elapsed() < LONG, "{progress}, {polls_on}: it sleeps on");
                b.device.turn();
                if polls_on {
                    polled.poll(&mut [Completion::default()]);
                } else {
                    std::thread::yield_now();
                }
            }
            while a.cq.poll(&mut one) == 0 {}
            assert_eq!(one[0].status, WcStatus::Success);
            send(&mut a.rc, SendFlags::SIGNALED);
            for _ in 0..2 {
                while b.cq.poll(&mut one) == 0 && a.cq.poll(&mut one) == 0 {}
            }
        }
        drop(polled);
        a.device.destroy_cq(handle).unwrap();
        a.close();
        b.close();
    }
}

#[test]
fn who_waits_beside_a_full_ring_sleeps_until_it_is_tried_again() {
    // The peer stands still: nobody turns it.
    let [mut a, b] = shm_pair(Progress::Inline);
    let _ = a.cq.wait_fd().unwrap();
    let blocked = |a: &End| a.counter("tx_blocked");
    let before = blocked(&a);
    while blocked(&a) == before {
        for _ in 0..64 {
            send(&mut a.uc, SendFlags::empty());
        }
        // On a busy machine its time may have come between two calls.
        let rests = |_| {
            a.device.turn();
            a.device.next_deadline() != Some(Duration::ZERO)
        };
        assert!((0..1000).any(rests), "it would look again and again");
    }
    a.close();
    b.close();
}

/// Fills the ring to a peer that stands still with datagrams of a connection, until the rest of them is lost.
fn fill(a: &mut End) {
    let lost = |a: &End| a.counter("tx_lost_full");
    let before = lost(a);
    while lost(a) == before {
        for _ in 0..64 {
            let _ = try_post(&mut a.uc, &[SendOp::Send], SendFlags::empty());
        }
        a.device.turn();
    }
}

/// Whether an adapter rests for longer than it does where nobody calls, and is not about to look again and again.
fn rests(a: &End) -> bool {
    let long = |d: Option<Duration>| d.is_none_or(|d| d > Duration::from_millis(2));
    // On a busy machine its time may have come between two calls.
    (0..1000).any(|_| {
        a.device.turn();
        long(a.device.next_deadline())
    })
}

#[test]
fn who_waits_with_messages_for_a_full_ring_rests_until_it_is_called() {
    let [mut a, mut b] = shm_pair(Progress::Inline);
    let _ = a.cq.wait_fd().unwrap();
    // They have met.
    b.recv();
    send(&mut a.rc, SendFlags::SIGNALED);
    let mut one = [Completion::default()];
    while a.cq.poll(&mut one) == 0 {
        b.device.turn();
    }
    fill(&mut a);
    let before = a.counter("tx_messages_blocked");
    send(&mut a.rc, SendFlags::SIGNALED);
    assert!(a.counter("tx_messages_blocked") > before);
    assert!(rests(&a), "it looks again and again");
    // Before it sleeps it looks once more.
    a.cq.arm(Notify::Any);
    while is_readable(a.cq.wait_fd().unwrap()) {
        a.device.turn();
        a.device.next_deadline();
    }
    b.recv();
    for _ in 0..1000 {
        b.device.turn();
    }
    assert!(is_readable(a.cq.wait_fd().unwrap()), "there is room, and nobody called");
    while a.cq.poll(&mut one) == 0 {
        b.device.turn();
    }
    assert_eq!(one[0].status, WcStatus::Success);
    a.close();
    b.close();
}

/// The peer's process is there, and does not prove to be at its address, as nobody turns it.
#[test]
fn who_waits_with_messages_for_a_peers_proof_rests() {
    let [mut a, mut b] = [0, 1].map(|n| End::new(open("auto", Progress::Inline, n).expect("it is there")));
    a.connect(&b);
    b.connect(&a);
    let _ = a.cq.wait_fd().unwrap();
    send(&mut a.rc, SendFlags::SIGNALED);
    assert!(rests(&a), "it looks again and again");
    b.recv();
    let mut one = [Completion::default()];
    while a.cq.poll(&mut one) == 0 {
        b.device.turn();
    }
    assert_eq!(one[0].status, WcStatus::Success);
    a.close();
    b.close();
}
