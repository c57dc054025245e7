//! A program's signals come to its own threads: the library's threads block them.

use std::time::{Duration, Instant};

use hca::cm::Listener;
use hca::{DeviceUrl, open_exactly};

/// SIGINT, SIGUSR1, SIGALRM, SIGTERM and SIGCHLD, a bit each, as `/proc` shows them.
const OF_THE_PROGRAM: u64 = 1 << (2 - 1) | 1 << (10 - 1) | 1 << (14 - 1) | 1 << (15 - 1) | 1 << (17 - 1);

/// The threads of this process that the library named, each with the signals that it blocks.
fn threads() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?.trim().to_owned();
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        Some((name, u64::from_str_radix(blocked.trim(), 16).ok()?))
    };
    tasks.filter_map(|task| of(task.unwrap())).filter(|(name, _)| name.starts_with("hca-")).collect()
}

#[test]
fn a_librarys_threads_take_no_signals_of_the_program() {
    let open = |name: &str| open_exactly(&name.parse::<DeviceUrl>().unwrap()).unwrap();
    let (adaptive, threaded) = (open("udp://?progress=adaptive"), open("udp://?progress=thread"));
    let _shared = open("udp://127.91.7.3?share=yes");
    // Their connection managers have threads, as the devices have none.
    let inline = [0; 2].map(|_| open("udp://?progress=inline"));
    let _listeners = [&adaptive, &threaded, &inline[0], &inline[1]]
        .map(|device| Listener::bind(device.context(), "0.0.0.0:0").unwrap());
    // A thread takes its name when it runs.
    let begin = Instant::now();
    let found = loop {
        let found = threads();
        let there = |name| found.iter().filter(|(is, _)| is == name).count() >= 2;
        if ["hca-progress", "hca-cm"].into_iter().all(there) {
            break found;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "threads are missing: {found:?}");
        std::thread::yield_now();
    };
    for (name, blocked) in found {
        assert_eq!(blocked & OF_THE_PROGRAM, OF_THE_PROGRAM, "{name} takes signals: {blocked:x}");
    }
}
