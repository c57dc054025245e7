//! `uring://` on a machine whose kernel forbids io_uring, as containers often do.
#![cfg(feature = "cli")]
#![deny(unsafe_code)]

use std::process::{Command, Output, Stdio};

/// System calls refused for the calling thread and what it starts.
///
/// Invariants: (1) the program of the filter outlives the call that takes it, and `len` is its length.
#[allow(unsafe_code)]
mod forbid {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};

    /// Has `io_uring_setup` fail with EPERM from now on.
    pub(crate) fn io_uring() {
        let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut program = [
            // The number of the system call stands first.
            op(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
            op(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
            op(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
            op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        rustix::thread::set_no_new_privs(true).unwrap();
        // SAFETY: (1) `program` lives until the end of this function, and `filter` has its length.
        let refused =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
        assert_eq!(refused, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Runs the command where io_uring is forbidden.
fn run(args: &[&str]) -> Output {
    let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
    let inside = std::thread::spawn(move || {
        forbid::io_uring();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hca"));
        command.args(args).env_remove("HCA_DEVICE").stdin(Stdio::null()).output().unwrap()
    });
    inside.join().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn devinfo_says_that_plain_sockets_serve_instead() {
    let out = run(&["devinfo", "uring://"]);
    let said = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(said.contains("plain sockets serve instead"), "{said}");
    let out = run(&["devinfo", "uring://", "--json"]);
    let info: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(info["fabric"], "udp");
    assert!(info["notes"]["io_uring"].as_str().unwrap().contains("plain sockets"), "{info}");
}

#[test]
fn perf_measures_and_says_what_carried_the_packets() {
    let args = ["perf", "--fabric", "uring", "--op", "send", "--size", "8", "--duration", "0.04"];
    let out = run(&args);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("udp fabric in place of io_uring"), "{}", text(&out.stdout));
    assert!(text(&out.stderr).contains("plain sockets serve instead"), "{}", text(&out.stderr));
    let out = run(&[&args[..], &["--json"]].concat());
    let row: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(row["fabric"], "udp");
    assert!(text(&out.stderr).contains("plain sockets serve instead"), "{}", text(&out.stderr));
}
