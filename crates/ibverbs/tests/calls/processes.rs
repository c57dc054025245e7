//! Threads, forks and ends of processes.

use super::*;
use std::process::Command;

/// The variable by which a test knows that it runs in a process of its own.
const ALONE: &str = "HCA_TEST_ALONE";

/// Runs this test in a process of its own, which ends with 0; `true` in that process.
pub(super) fn alone(test: &str, how: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let own = std::env::current_exe().unwrap();
    let mut process = Command::new(own);
    let process = process.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, how);
    let said = process.output().unwrap();
    assert!(said.status.success(), "{how}: {:?} {}", said.status, String::from_utf8_lossy(&said.stderr));
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

#[test]
fn a_forked_child_opens_the_device_anew_and_the_parent_goes_on() {
    if !alone("processes::a_forked_child_opens_the_device_anew_and_the_parent_goes_on", "fork") {
        return;
    }
    let before = pair();
    exchange(&before);
    // SAFETY: the child calls this library, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = pair();
        exchange(&own);
        own.end();
        // What it has inherited is the parent's: it is refused, or has no effect there.
        let _ = call!(ibv_destroy_qp(before.qps[0]) -> c_int);
        // SAFETY: it ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    exchange(&before);
    before.end();
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
