//! `uring://` on a machine whose kernel forbids io_uring, as containers often do.
#![deny(unsafe_code)]

use std::process::{Command, Output, Stdio};

/// Runs the command where io_uring is forbidden.
fn run(args: &[&str]) -> Output {
    let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
    let inside = std::thread::spawn(move || {
        test_support::filter::refuse(&[libc::SYS_io_uring_setup], libc::EPERM);
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
    assert!(said.contains("plain sockets are used instead"), "{said}");
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
    assert!(text(&out.stderr).contains("plain sockets are used instead"), "{}", text(&out.stderr));
    let out = run(&[&args[..], &["--json"]].concat());
    let row: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(row["fabric"], "udp");
    assert!(text(&out.stderr).contains("plain sockets are used instead"), "{}", text(&out.stderr));
}
