//! The command where its output can't be written.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], stdout: Stdio) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hca-sim")).args(arguments).stdout(stdout).output().unwrap()
}
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

const WAYS: [&[&str]; 3] = [&["--seed", "1"], &["--seed", "1", "--trace"], &["--seeds", "1", "--start", "1"]];

#[test]
fn a_full_disk_is_told_and_is_a_failure() {
    for arguments in WAYS {
        let out = run(arguments, full().into());
        let told = text(&out.stderr);
        assert!(told.starts_with("hca-sim: can't write to standard output: "), "{arguments:?}: {told}");
        assert_eq!((told.lines().count(), out.status.code()), (1, Some(1)), "{arguments:?}: {told}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    for arguments in WAYS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = run(arguments, writer.into());
        assert_eq!((text(&out.stderr), out.status.code()), ("", Some(0)), "{arguments:?}");
    }
}

#[test]
fn a_capture_that_is_cut_off_is_told() {
    let out = run(&["--seed", "1", "--capture", "/dev/full"], Stdio::null());
    let told = text(&out.stderr);
    assert!(told.starts_with("hca-sim: /dev/full: ") && out.status.code() == Some(1), "{told}");
}
