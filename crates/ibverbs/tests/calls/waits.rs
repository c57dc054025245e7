//! Calls that sleep, and what a signal or the end of their thread does.

use super::processes::{alone, alone_with};
use super::*;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

unsafe extern "C-unwind" {
    pub(super) fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_testcancel();
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        result: *mut *mut c_void,
        end: *const libc::timespec,
    ) -> c_int;
}
/// The result of a thread that was cancelled.
pub(super) const CANCELLED: usize = usize::MAX;
/// The time after which a thread is thought to sleep for ever.
pub(super) const LONG: Duration = Duration::from_secs(10);

/// A call with up to five arguments, and what it has returned.
pub(super) struct Call {
    pub(super) at: usize,
    pub(super) arguments: [usize; 5],
    pub(super) result: c_int,
    pub(super) errno: c_int,
    /// The number of the thread that makes the call, once there is one.
    pub(super) thread: AtomicI32,
}
impl Call {
    /// A call that was not made yet.
    pub(super) fn new(at: usize, arguments: &[usize]) -> Self {
        let mut all = [0; 5];
        all[..arguments.len()].copy_from_slice(arguments);
        Self { at, arguments: all, result: 99, errno: 0, thread: AtomicI32::new(0) }
    }
}
/// A thread of the C library that makes a call. Nothing here has a destructor: it may be cancelled.
pub(super) extern "C-unwind" fn make(call: *mut c_void) -> *mut c_void {
    let call: *mut Call = call.cast();
    // SAFETY: a call that lives until the thread is joined; the function takes its arguments in registers.
    unsafe {
        type Words = extern "C-unwind" fn(usize, usize, usize, usize, usize) -> c_int;
        let f: Words = std::mem::transmute((*call).at);
        let [first, second, third, fourth, fifth] = (*call).arguments;
        (*call).thread.store(libc::gettid(), Ordering::Release);
        (*call).result = f(first, second, third, fourth, fifth);
        (*call).errno = *libc::__errno_location();
    }
    null_mut()
}
/// Starts the call's thread, which sleeps then.
pub(super) fn start(call: &mut Call) -> libc::pthread_t {
    call.thread.store(0, Ordering::Relaxed);
    let thread = run(make, (&raw mut *call).cast());
    until_asleep(&call.thread);
    thread
}
/// Waits until a thread has told its number and sleeps.
pub(super) fn until_asleep(thread: &AtomicI32) {
    let begun = Instant::now();
    let state = || {
        let stat =
            std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.load(Ordering::Acquire)));
        stat.ok()?.rsplit_once(") ")?.1.chars().next()
    };
    while state() != Some('S') {
        assert!(begun.elapsed() < LONG, "the thread does not sleep: {:?}", state());
        std::thread::yield_now();
    }
}
/// Waits for the end of a thread; its result, or `None` if it goes on.
pub(super) fn join(thread: libc::pthread_t, within: Duration) -> Option<usize> {
    let end = std::time::SystemTime::now() + within;
    let end = end.duration_since(std::time::UNIX_EPOCH).unwrap();
    let end = libc::timespec { tv_sec: end.as_secs() as i64, tv_nsec: end.subsec_nanos().into() };
    let mut result = null_mut();
    // SAFETY: a thread that was not joined, and room for its result.
    let failed = unsafe { pthread_timedjoin_np(thread, &raw mut result, &raw const end) };
    (failed == 0).then_some(result as usize)
}

/// Has a signal handled by a function that does nothing.
pub(super) fn handle(signal: c_int, flags: c_int) {
    extern "C" fn handler(_: c_int) {}
    // SAFETY: all fields may be zero.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler as extern "C" fn(c_int) as usize, flags);
    // SAFETY: a handler that does nothing.
    unsafe { libc::sigaction(signal, &raw const action, null_mut()) };
}

const NONE: *mut c_void = null_mut();

/// The calls that sleep until there is an event.
fn calls() -> [Call; 4] {
    let context = open();
    let symbol = |name, node| common::symbol(name, node).unwrap();
    let channel = call!(@ symbol("ibv_create_comp_channel", "IBVERBS_1.0"), (context) -> *mut c_void);
    let events = call!(@ symbol("rdma_create_event_channel", "RDMACM_1.0"), () -> *mut c_void);
    let room = || Box::leak(Box::new([0_usize; 4])).as_mut_ptr() as usize;
    let call = |at, first: usize| Call::new(at, &[first, room(), room()]);
    // An endpoint whose calls wait for their events.
    let (mut hints, mut found, mut listener) = ([0_i32; 64], NONE, NONE);
    (hints[0], hints[3]) = (1, 0x0106);
    let cm = |name| symbol(name, "RDMACM_1.0");
    let here = c"127.0.0.1".as_ptr();
    let resolved = call!(@ cm("rdma_getaddrinfo"), (here, 0, hints.as_ptr(), &raw mut found) -> c_int);
    assert_eq!(resolved, 0, "{}", errno());
    let created = call!(@ cm("rdma_create_ep"), (&raw mut listener, found, 0, 0) -> c_int);
    assert_eq!((created, call!(@ cm("rdma_listen"), (listener, 4) -> c_int)), (0, 0), "{}", errno());
    call!(@ cm("rdma_freeaddrinfo"), (found) -> ());
    [
        call(cm("rdma_get_request"), listener as usize),
        call(symbol("ibv_get_cq_event", "IBVERBS_1.1"), channel as usize),
        call(symbol("ibv_get_async_event", "IBVERBS_1.1"), context as usize),
        call(symbol("rdma_get_cm_event", "RDMACM_1.0"), events as usize),
    ]
}

/// Programs end the thread that takes their events so: rping, and MVAPICH2.
#[test]
fn a_thread_that_waits_for_an_event_is_cancelled() {
    if !alone("waits::a_thread_that_waits_for_an_event_is_cancelled", "cancel") {
        return;
    }
    for mut call in calls() {
        let thread = start(&mut call);
        // SAFETY: a thread that was not joined.
        assert_eq!(unsafe { pthread_cancel(thread) }, 0);
        assert_eq!(join(thread, LONG), Some(CANCELLED));
    }
}

#[test]
fn a_signal_ends_a_wait_for_an_event_if_its_handler_is_of_that_kind() {
    if !alone("waits::a_signal_ends_a_wait_for_an_event_if_its_handler_is_of_that_kind", "signal") {
        return;
    }
    for mut call in calls() {
        for (flags, ends) in [(libc::SA_RESTART, false), (0, true)] {
            handle(libc::SIGUSR1, flags);
            let thread = start(&mut call);
            // SAFETY: a thread that was not joined.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
            let since = Instant::now();
            let ended = join(thread, if ends { LONG } else { Duration::from_millis(300) });
            assert_eq!(ended.is_some(), ends, "flags {flags:#x}, {:?}", since.elapsed());
            if ends {
                assert_eq!((call.result, call.errno), (-1, libc::EINTR));
            } else {
                // SAFETY: as above.
                assert_eq!(unsafe { pthread_cancel(thread) }, 0);
                assert_eq!(join(thread, LONG), Some(CANCELLED));
            }
        }
    }
}

/// A thread that others have cancelled goes on until it waits, or asks: no call of this library ends it half way.
#[test]
fn a_thread_that_is_cancelled_ends_its_objects_first() {
    if !alone("waits::a_thread_that_is_cancelled_ends_its_objects_first", "cancel") {
        return;
    }
    // Nothing here has a destructor.
    extern "C-unwind" fn end(objects: *mut c_void) -> *mut c_void {
        // SAFETY: objects that live, and the numbers of functions that take them.
        unsafe {
            pthread_cancel(libc::pthread_self());
            let mut next = objects.cast::<[usize; 2]>();
            while (*next)[0] != 0 {
                let destroy: extern "C-unwind" fn(usize) -> c_int = std::mem::transmute((*next)[0]);
                if destroy((*next)[1]) != 0 {
                    return null_mut();
                }
                next = next.add(1);
            }
            pthread_testcancel();
        }
        null_mut()
    }
    let pair = pair();
    let symbol = |name, node| common::symbol(name, node).unwrap();
    let create = symbol("ibv_create_comp_channel", "IBVERBS_1.0");
    let channel = call!(@ create, (pair.context) -> *mut c_void);
    let cq = call!(ibv_create_cq(pair.context, 4, 0, channel, 0) -> *mut IbvCq);
    let mut objects = [
        [symbol("ibv_destroy_cq", "IBVERBS_1.1"), cq as usize],
        [symbol("ibv_destroy_comp_channel", "IBVERBS_1.0"), channel as usize],
        [symbol("ibv_destroy_qp", "IBVERBS_1.1"), pair.qps[0] as usize],
        [symbol("ibv_destroy_qp", "IBVERBS_1.1"), pair.qps[1] as usize],
        [symbol("ibv_destroy_cq", "IBVERBS_1.1"), pair.cq as usize],
        [symbol("ibv_dealloc_pd", "IBVERBS_1.1"), pair.pd as usize],
        [symbol("ibv_close_device", "IBVERBS_1.1"), pair.context as usize],
        [0; 2],
    ];
    assert_eq!(join(run(end, objects.as_mut_ptr().cast()), LONG), Some(CANCELLED));
}

/// A thread of the C library that runs a function.
pub(super) fn run(
    call: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    with: *mut c_void,
) -> libc::pthread_t {
    let mut thread = 0;
    // SAFETY: the function has the C calling convention, and there is room for the thread's name.
    unsafe {
        let call: extern "C" fn(*mut c_void) -> *mut c_void = std::mem::transmute(call);
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), call, with), 0);
    }
    thread
}

/// As `read`, which the calls are in rdma-core: a thread that always finds events is cancelled, too.
#[test]
fn a_thread_that_was_cancelled_takes_no_event() {
    if !alone("waits::a_thread_that_was_cancelled_takes_no_event", "cancel") {
        return;
    }
    // Nothing here has a destructor.
    extern "C-unwind" fn take(call: *mut c_void) -> *mut c_void {
        // SAFETY: the thread is this one.
        unsafe { pthread_cancel(libc::pthread_self()) };
        make(call)
    }
    let symbol = |name| common::symbol(name, "RDMACM_1.0").unwrap();
    let [.., mut call] = calls();
    let channel = call.arguments[0];
    let mut id: *mut c_void = null_mut();
    let created = call!(@ symbol("rdma_create_id"), (channel, &raw mut id, 0, 0x0106) -> c_int);
    let to = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 9_u16.to_be(),
        sin_addr: libc::in_addr { s_addr: 0 },
        sin_zero: [0; 8],
    };
    let resolved = call!(@ symbol("rdma_resolve_addr"), (id, 0, &raw const to, 1000) -> c_int);
    assert_eq!((created, resolved), (0, 0), "{}", errno());
    assert_eq!(join(run(take, (&raw mut call).cast()), LONG), Some(CANCELLED));
    assert_eq!(call.result, 99, "the call did not return");
    // Another thread takes the event.
    assert_eq!(join(start_awake(&mut call), LONG), Some(0));
    assert_eq!(call.result, 0);
}
/// Starts the call's thread, which does not sleep.
fn start_awake(call: &mut Call) -> libc::pthread_t {
    run(make, (&raw mut *call).cast())
}

/// Neither posts nor polls are cancellation points, whatever system calls the adapter makes in them.
#[test]
fn a_thread_that_was_cancelled_posts_and_polls_until_it_asks() {
    const DEPTH: usize = 128;
    const ROUNDS: usize = 50;
    let test = "waits::a_thread_that_was_cancelled_posts_and_polls_until_it_asks";
    // A capture writes to its file now and then.
    const DEVICES: [&str; 2] = ["udp://127.0.0.1?share=yes", "udp://127.0.0.1?share=yes&capture=/dev/null"];
    if DEVICES.into_iter().all(|devices| !alone_with(test, "flood", [("HCA_DEVICES", devices)])) {
        return;
    }
    struct Flood {
        /// Functions.
        post: usize,
        poll: usize,
        qp: *mut IbvQp,
        cq: *mut IbvCq,
        wr: IbvSendWr,
        done: usize,
    }
    // Nothing here has a destructor.
    extern "C-unwind" fn flood(with: *mut c_void) -> *mut c_void {
        let with: *mut Flood = with.cast();
        // SAFETY: it lives until the thread is joined; the functions take their arguments in registers.
        unsafe {
            pthread_cancel(libc::pthread_self());
            type Words = extern "C-unwind" fn(usize, usize, usize) -> c_int;
            let post: Words = std::mem::transmute((*with).post);
            let poll: Words = std::mem::transmute((*with).poll);
            let (qp, cq, wr) = ((*with).qp as usize, (*with).cq as usize, &raw mut (*with).wr as usize);
            let (mut bad, mut wc) = ([0_usize; 1], [IbvWc::default(); 16]);
            for round in 1..=ROUNDS {
                for _ in 0..DEPTH {
                    if post(qp, wr, bad.as_mut_ptr() as usize) != 0 {
                        return null_mut();
                    }
                }
                while (*with).done < round * DEPTH {
                    let got = poll(cq, 16, wc.as_mut_ptr() as usize);
                    if got < 0 || got > 0 && wc[0].status != 0 {
                        return null_mut();
                    }
                    (*with).done += got as usize;
                }
            }
            pthread_testcancel();
        }
        null_mut()
    }
    let mut pair = pair();
    let mut init = init_attr(call!(ibv_create_cq(pair.context, 2 * DEPTH, 0, 0, 0) -> *mut IbvCq));
    init.cap.max_send_wr = DEPTH as u32;
    for qp in &mut pair.qps {
        assert_eq!(call!(ibv_destroy_qp(*qp) -> c_int), 0);
        *qp = call!(ibv_create_qp(pair.pd, &raw mut init) -> *mut IbvQp);
    }
    pair.connect();
    let (post, poll) = (slot(pair.context, 208), slot(pair.context, 96));
    // WRITEs without bytes.
    let (qp, cq, wr) = (pair.qps[0], init.send_cq, send_wr(1, 0, 2));
    let mut with = Flood { post, poll, qp, cq, wr, done: 0 };
    assert_eq!(join(run(flood, (&raw mut with).cast()), 6 * LONG), Some(CANCELLED), "{} done", with.done);
    assert_eq!(with.done, ROUNDS * DEPTH);
}
