//! System calls that are refused, to this thread and the threads and processes that it starts.
//!
//! Invariants:
//! 1. A filter's program outlives the call that takes it, and `len` is its length; the kernel copies it.
#![allow(unsafe_code)] // `prctl` and `_exit` in a child that lives under a filter

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter};

/// Kills this process at the next system call that is not in `allowed`.
pub fn allow_only(allowed: &[c_long]) {
    judge(allowed, libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS);
}

/// Has these system calls fail with this error from now on.
pub fn refuse(calls: &[c_long], errno: i32) {
    judge(calls, libc::SECCOMP_RET_ERRNO | errno as u32, libc::SECCOMP_RET_ALLOW);
}

/// Has the calls of one system call fail with this error whose arguments have these values, each by its index.
pub fn refuse_with(call: c_long, arguments: &[(u32, u32)], errno: i32) {
    // The number of the system call stands first, and the arguments, of eight bytes each, begin at 16.
    let wanted = arguments.iter().map(|(index, value)| (16 + 8 * index, *value));
    let wanted: Vec<_> = std::iter::once((0, call as u32)).chain(wanted).collect();
    let mut program = Vec::new();
    for (i, (at, value)) in wanted.iter().enumerate() {
        let to_allow = 2 * (wanted.len() - i - 1) as u8 + 1;
        program.push(op(BPF_LD | BPF_W | BPF_ABS, *at, 0, 0));
        program.push(op(BPF_JMP | BPF_JEQ | BPF_K, *value, 0, to_allow));
    }
    program.push(op(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0));
    program.push(op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    install(&program);
}

/// Ends the process without the system calls of an orderly end.
pub fn end_at_once() -> ! {
    // SAFETY: takes no pointer, and runs nothing of this process.
    unsafe { libc::_exit(0) }
}

/// What becomes of calls in the list, and of all others.
fn judge(calls: &[c_long], listed: u32, others: u32) {
    // The number of the system call stands first.
    let mut program = vec![op(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0)];
    let n = calls.len() as u8;
    program.extend(
        calls.iter().enumerate().map(|(i, nr)| op(BPF_JMP | BPF_JEQ | BPF_K, *nr as u32, n - i as u8, 0)),
    );
    program.push(op(BPF_RET | BPF_K, others, 0, 0));
    program.push(op(BPF_RET | BPF_K, listed, 0, 0));
    install(&program);
}

/// One instruction of a filter: its code, its operand, and how many instructions are left out if it is so, or not.
pub fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Puts a filter on this thread, and on all that it starts.
///
/// # Panics
/// If the system refuses it.
pub fn install(program: &[sock_filter]) {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: (1); the first call takes numbers only.
    let taken = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(taken, "a filter of system calls: {}", std::io::Error::last_os_error());
}
