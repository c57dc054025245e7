//! Calls that sleep, and what a signal or the end of their thread does.

use super::processes::alone;
use super::*;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

unsafe extern "C-unwind" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        result: *mut *mut c_void,
        end: *const libc::timespec,
    ) -> c_int;
}
/// The result of a thread that was cancelled.
const CANCELLED: usize = usize::MAX;
/// The time after which a thread is thought to sleep for ever.
pub(super) const LONG: Duration = Duration::from_secs(10);

/// A call with up to three arguments, and what it has returned.
pub(super) struct Call {
    pub(super) at: usize,
    pub(super) arguments: [usize; 3],
    pub(super) result: c_int,
    pub(super) errno: c_int,
    /// The number of the thread that makes the call, once there is one.
    pub(super) thread: AtomicI32,
}
/// A thread of the C library that makes a call. Nothing here has a destructor: it may be cancelled.
extern "C-unwind" fn make(call: *mut c_void) -> *mut c_void {
    let call: *mut Call = call.cast();
    // SAFETY: a call that lives until the thread is joined; the function takes its arguments in registers.
    unsafe {
        let f: extern "C-unwind" fn(usize, usize, usize) -> c_int = std::mem::transmute((*call).at);
        let [first, second, third] = (*call).arguments;
        (*call).thread.store(libc::gettid(), Ordering::Release);
        (*call).result = f(first, second, third);
        (*call).errno = *libc::__errno_location();
    }
    null_mut()
}
/// Starts the call's thread, which sleeps then.
pub(super) fn start(call: &mut Call) -> libc::pthread_t {
    call.thread.store(0, Ordering::Relaxed);
    // SAFETY: the thread's function has the C calling convention, and room for the thread's name.
    unsafe {
        let run: extern "C" fn(*mut c_void) -> *mut c_void =
            std::mem::transmute(make as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        let mut thread = 0;
        let call = (&raw mut *call).cast();
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), run, call), 0);
        until_asleep(&(*call.cast::<Call>()).thread);
        thread
    }
}
/// Waits until a thread has told its number and sleeps.
fn until_asleep(thread: &AtomicI32) {
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

/// The calls that sleep until there is an event.
fn calls() -> [Call; 3] {
    let context = open();
    let symbol = |name, node| common::symbol(name, node).unwrap();
    let channel = call!(@ symbol("ibv_create_comp_channel", "IBVERBS_1.0"), (context) -> *mut c_void);
    let events = call!(@ symbol("rdma_create_event_channel", "RDMACM_1.0"), () -> *mut c_void);
    let room = || Box::leak(Box::new([0_usize; 4])).as_mut_ptr() as usize;
    let call = |at, first: usize| Call {
        at,
        arguments: [first, room(), room()],
        result: 99,
        errno: 0,
        thread: AtomicI32::new(0),
    };
    [
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
    // In other calls a thread is not cancelled, and the program goes on.
    let at = common::symbol("rpoll", "RDMACM_1.0").unwrap();
    let mut call = Call { at, arguments: [0, 0, 500], result: 99, errno: 0, thread: AtomicI32::new(0) };
    let thread = start(&mut call);
    // SAFETY: as above.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
    assert!(join(thread, LONG).is_some());
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
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
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
    // SAFETY: the thread's function has the C calling convention, and room for the thread's name.
    let thread = unsafe {
        let run: extern "C" fn(*mut c_void) -> *mut c_void =
            std::mem::transmute(end as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        let mut thread = 0;
        let objects = objects.as_mut_ptr().cast();
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), run, objects), 0);
        thread
    };
    assert_eq!(join(thread, LONG), Some(CANCELLED));
}
