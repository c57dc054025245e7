//! Threads, forks and ends of processes.

use super::*;
use std::process::Command;

/// The variable by which a test knows that it runs in a process of its own.
const ALONE: &str = "HCA_TEST_ALONE";

/// Runs this test in a process of its own, which ends with 0; `true` in that process.
pub(super) fn alone(test: &str, how: &str) -> bool {
    alone_with(test, how, [("HCA_TEST_HOW", how)])
}
/// As [`alone`], with variables, the first of which tells the runs apart.
pub(super) fn alone_with<S: AsRef<std::ffi::OsStr> + Copy, const N: usize>(
    test: &str,
    how: &str,
    variables: [(&str, S); N],
) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let own = std::env::current_exe().unwrap();
    let mut process = Command::new(own);
    let process = process.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, how);
    process.envs(variables);
    let said = process.output().unwrap();
    assert!(
        said.status.success(),
        "{how}, {}: {:?} {}",
        variables[0].1.as_ref().display(),
        said.status,
        String::from_utf8_lossy(&said.stderr)
    );
    false
}

/// A message of 4 bytes from one queue pair of a pair to the other.
fn exchange(pair: &Pair) {
    let mut memory = vec![0u8; 64];
    memory[..4].copy_from_slice(b"ping");
    let mr = pair.register(&mut memory);
    let mut into = sge(mr, memory.as_ptr().wrapping_add(32), 32);
    let mut wr = IbvRecvWr { wr_id: 1, next: null_mut(), sg_list: &raw mut into, num_sge: 1 };
    let mut bad: *mut IbvRecvWr = null_mut();
    assert_eq!(call!(@ slot(pair.context, 216), (pair.qps[1], &raw mut wr, &raw mut bad) -> c_int), 0);
    let mut from = sge(mr, memory.as_ptr(), 4);
    let mut wr = send_wr(2, 2, 2);
    (wr.sg_list, wr.num_sge) = (&raw mut from, 1);
    let mut bad: *mut IbvSendWr = null_mut();
    assert_eq!(call!(@ slot(pair.context, 208), (pair.qps[0], &raw mut wr, &raw mut bad) -> c_int), 0);
    pair.completions(2);
    assert_eq!(&memory[32..36], b"ping");
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
}

/// Forks. The child opens the device anew, and ends well; then the parent goes on.
fn forked(child_also: impl FnOnce()) {
    // SAFETY: the child calls this library, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = pair();
        exchange(&own);
        own.end();
        child_also();
        // SAFETY: it ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_forked_child_opens_the_device_anew_and_the_parent_goes_on() {
    if !alone("processes::a_forked_child_opens_the_device_anew_and_the_parent_goes_on", "fork") {
        return;
    }
    let before = pair();
    exchange(&before);
    // What the child has inherited is the parent's: it is refused, or has no effect there.
    forked(|| _ = call!(ibv_destroy_qp(before.qps[0]) -> c_int));
    exchange(&before);
    before.end();
}

#[test]
fn a_program_forks_in_every_state_of_its_queues() {
    if !alone("processes::a_program_forks_in_every_state_of_its_queues", "fork") {
        return;
    }
    let context = open();
    forked(|| {});
    let pair = pair();
    // With a completion that nobody has taken, and a request that waits for its message.
    let post = |qp, wr: &mut IbvSendWr| {
        let mut bad: *mut IbvSendWr = null_mut();
        call!(@ slot(pair.context, 208), (qp, &raw mut *wr, &raw mut bad) -> c_int)
    };
    let mut receive = IbvRecvWr { wr_id: 1, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
    let mut bad: *mut IbvRecvWr = null_mut();
    for _ in 0..2 {
        let posted = call!(@ slot(pair.context, 216), (pair.qps[1], &raw mut receive, &raw mut bad) -> c_int);
        assert_eq!(posted, 0);
    }
    assert_eq!(post(pair.qps[0], &mut send_wr(2, 2, 2)), 0);
    forked(|| {});
    // With a thread that sleeps on a channel, and an armed queue.
    let create = common::symbol("ibv_create_comp_channel", "IBVERBS_1.0").unwrap();
    let channel = call!(@ create, (context) -> *mut c_void) as usize;
    let cq = call!(ibv_create_cq(context, 4, 0, channel, 0) -> *mut IbvCq);
    assert_eq!(call!(@ slot(context, 104), (cq, 0) -> c_int), 0);
    std::thread::spawn(move || {
        let (mut cq, mut given): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        call!(ibv_get_cq_event(channel, &raw mut cq, &raw mut given) -> c_int)
    });
    forked(|| {});
    pair.completions(2);
    // With queue pairs in the error state, and one in RESET.
    assert_eq!(modify(pair.qps[1], &IbvQpAttr { qp_state: 6, ..IbvQpAttr::default() }, 1), 0);
    let mut init = init_attr(pair.cq);
    let fresh = call!(ibv_create_qp(pair.pd, &raw mut init) -> *mut IbvQp);
    forked(|| {});
    assert_eq!(call!(ibv_destroy_qp(fresh) -> c_int), 0);
    let own = self::pair();
    exchange(&own);
    own.end();
}

#[test]
fn the_library_outlives_its_handle() {
    if !alone("processes::the_library_outlives_its_handle", "dlclose") {
        return;
    }
    let pair = pair();
    exchange(&pair);
    common::close();
    exchange(&pair);
    pair.end();
}

#[test]
fn a_program_has_signal_handlers_of_its_own() {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    /// Signals that the program's threads took, and those that threads of the library took.
    static TAKEN: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
    extern "C" fn handler(_: c_int) {
        let mut name = [0_u8; 16];
        // SAFETY: room for a thread's name.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        TAKEN[usize::from(name.starts_with(b"hca"))].fetch_add(1, Relaxed);
    }
    if !alone("processes::a_program_has_signal_handlers_of_its_own", "signals") {
        return;
    }
    // SAFETY: the handler calls what handlers may. Calls that it interrupts are not begun anew.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, null_mut()), 0);
        let every = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut()), 0);
    }
    while TAKEN[0].load(Relaxed) < 100 {
        let own = pair();
        (0..20).for_each(|_| exchange(&own));
        own.end();
    }
    assert_eq!(TAKEN[1].load(Relaxed), 0, "the library's threads take none");
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: room for the action.
    let now = unsafe {
        assert_eq!(libc::sigaction(libc::SIGALRM, std::ptr::null(), now.as_mut_ptr()), 0);
        now.assume_init()
    };
    assert_eq!(now.sa_sigaction, handler as *const () as usize, "the handler is the program's still");
}

/// Forbids what the default profile of containers forbids, for this process and its children.
pub(super) fn forbid(calls: &[libc::c_long]) {
    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ERRNO: u32 = 0x0005_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let step = |code, k, jt| libc::sock_filter { code, jt, jf: 0, k };
    let mut steps = vec![step(LOAD, 0, 0)];
    for (i, call) in calls.iter().enumerate() {
        steps.push(step(IF_EQUAL, *call as u32, (calls.len() - i) as u8));
    }
    steps.push(step(RETURN, ALLOW, 0));
    steps.push(step(RETURN, ERRNO | libc::EPERM as u32, 0));
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program's steps live during the call, and each jump of it stays within.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_seccomp, 1, 0, &raw const program)
    };
    assert_eq!(done, 0, "{}", errno());
}

#[test]
fn a_program_runs_where_system_calls_are_forbidden_with_thousands_of_descriptors_open() {
    let test =
        "processes::a_program_runs_where_system_calls_are_forbidden_with_thousands_of_descriptors_open";
    if !alone(test, "seccomp") {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the limits, and then limits that were read.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(8192);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    let wanted = limit.rlim_cur.saturating_sub(256).min(4096);
    let files: Vec<_> = (0..wanted).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    forbid(&[
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_kcmp,
        libc::SYS_pidfd_getfd,
        libc::SYS_mlock,
        libc::SYS_mbind,
    ]);
    let pair = pair();
    exchange(&pair);
    pair.end();
    drop(files);
}

#[test]
fn a_program_ends_with_everything_open() {
    let test = "processes::a_program_ends_with_everything_open";
    if ["exit", "_exit"].into_iter().all(|how| !alone(test, how)) {
        return;
    }
    let pair = pair();
    exchange(&pair);
    let context = pair.context as usize;
    std::thread::spawn(move || {
        let mut event = abi::IbvAsyncEvent { element: 0, event_type: 0 };
        call!(ibv_get_async_event(context, &raw mut event) -> c_int)
    });
    // SAFETY: both end the process.
    unsafe { if std::env::var(ALONE).unwrap() == "exit" { libc::exit(0) } else { libc::_exit(0) } }
}

/// Tells another process the number of a queue pair, and is told that of the peer.
fn exchange_numbers(pipe: &std::os::unix::net::UnixStream, qp: *mut IbvQp) -> u32 {
    use std::io::{Read as _, Write as _};
    let (mut pipe, mut number) = (pipe, [0; 4]);
    // SAFETY: a queue pair that exists.
    pipe.write_all(&unsafe { (*qp).qp_num }.to_ne_bytes()).unwrap();
    pipe.read_exact(&mut number).unwrap();
    u32::from_ne_bytes(number)
}

/// An adapter in silicon acknowledges what a program receives, whatever the program does next.
#[test]
fn a_message_whose_receiver_ends_at_once_has_arrived() {
    let test = "processes::a_message_whose_receiver_ends_at_once_has_arrived";
    let devices = ["udp://127.0.0.1?share=yes", "auto://127.0.0.1?share=yes"];
    // As `hca exec` does: `_exit` is caught there.
    let paths = std::env::current_exe().unwrap().with_file_name("libhca_paths.so");
    let runs = |device| {
        let variables = [("HCA_DEVICES", device), ("LD_PRELOAD", paths.to_str().unwrap())];
        ["exit", "_exit"].into_iter().all(|how| !alone_with(test, how, variables))
    };
    if devices.into_iter().all(runs) {
        return;
    }
    let [mine, other] = std::os::unix::net::UnixStream::pair().map(<[_; 2]>::from).unwrap();
    // SAFETY: neither process has threads that hold locks yet, and the child ends by exit.
    let child = unsafe { libc::fork() };
    let pipe = if child == 0 { other } else { mine };
    let own = pair();
    let mut init = init_attr(own.cq);
    let qp = call!(ibv_create_qp(own.pd, &raw mut init) -> *mut IbvQp);
    let mut gid = [0u64; 2];
    assert_eq!(call!(ibv_query_gid(own.context, 1, 1, &raw mut gid) -> c_int), 0);
    let path = IbvAhAttr { dgid: gid, hop_limit: 1, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
    // Repeated after a second: the machine may be busy.
    connect_with(qp, exchange_numbers(&pipe, qp), path, 0, 18);
    if child == 0 {
        let mut wr = IbvRecvWr { wr_id: 1, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut bad: *mut IbvRecvWr = null_mut();
        assert_eq!(call!(@ slot(own.context, 216), (qp, &raw mut wr, &raw mut bad) -> c_int), 0);
        exchange_numbers(&pipe, qp);
        own.completions(1);
        // SAFETY: both end the process, with everything open.
        unsafe { if std::env::var(ALONE).unwrap() == "exit" { libc::exit(0) } else { libc::_exit(0) } };
    }
    exchange_numbers(&pipe, qp);
    let mut wr = send_wr(2, 2, 2);
    let mut bad: *mut IbvSendWr = null_mut();
    assert_eq!(call!(@ slot(own.context, 208), (qp, &raw mut wr, &raw mut bad) -> c_int), 0);
    own.completions(1);
    // SAFETY: the child's number, and no wish to know its status.
    assert_eq!(unsafe { libc::waitpid(child, null_mut(), 0) }, child);
}

#[test]
fn many_threads_post_poll_create_and_destroy() {
    let shared = pair();
    let (context, pd) = (shared.context as usize, shared.pd as usize);
    std::thread::scope(|scope| {
        for thread in 0..64 {
            scope.spawn(move || {
                for _ in 0..2 {
                    if thread % 4 == 0 {
                        let own = pair();
                        exchange(&own);
                        own.end();
                    }
                    let mut memory = vec![0u8; 64];
                    let mr = call!(ibv_reg_mr(pd, memory.as_mut_ptr(), 64, 1) -> *mut IbvMr);
                    let cq = call!(ibv_create_cq(context, 4, 0, 0, 0) -> *mut IbvCq);
                    let mut init = init_attr(cq);
                    let qp = call!(ibv_create_qp(pd, &raw mut init) -> *mut IbvQp);
                    assert!(!mr.is_null() && !qp.is_null(), "{}", errno());
                    let mut wc = [IbvWc::default()];
                    assert_eq!(call!(@ slot(context as *mut _, 96), (cq, 1, &raw mut wc) -> c_int), 0);
                    // In use, then not.
                    assert_eq!(call!(ibv_destroy_cq(cq) -> c_int), libc::EBUSY);
                    assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
                    assert_eq!(call!(ibv_destroy_cq(cq) -> c_int), 0);
                    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
                }
            });
        }
    });
    exchange(&shared);
    shared.end();
}

#[test]
fn a_wrong_list_of_devices_has_none() {
    use std::os::unix::ffi::OsStrExt as _;
    let test = "processes::a_wrong_list_of_devices_has_none";
    let bytes = std::ffi::OsStr::from_bytes(b"a=udp://127.0.0.1?capture=\xff");
    let wrong = [
        ("HCA_DEVICES", std::ffi::OsStr::new("wrong, all of it")),
        ("HCA_DEVICES", bytes),
        ("HCA_DEVICE", bytes),
    ];
    if wrong.into_iter().all(|wrong| !alone_with(test, "wrong", [wrong])) {
        return;
    }
    let mut count: c_int = 77;
    let list = call!(ibv_get_device_list(&raw mut count) -> *mut *mut c_void);
    assert_eq!((list, errno(), count), (null_mut(), libc::EINVAL, 0));
}
