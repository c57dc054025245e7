//! An adapter that nobody uses does not wake up.
//!
//! It has no test harness, so that the only other threads of the process are the adapters'.

mod ends;

use std::fs;
use std::time::Duration;

use ends::{End, open, send};
use hca_core::SendFlags;
use softhca::Progress;

/// What the adapter calls its thread.
const THREAD: &str = "hca-progress";
/// An adapter has settled once it slept for this long.
const ASLEEP: Duration = Duration::from_millis(50);
/// How often it is given this time to settle.
const TRIES: u32 = 100;
/// How long it is watched after that.
const WATCHED: Duration = Duration::from_millis(400);
/// How often it is watched at most: a thread that the machine kept from running settles late. An adapter that wakes up
/// regularly does so whenever it is watched.
const LOOKS: u32 = 10;
/// Wake-ups that may be seen.
const STRAY: u64 = 3;

/// Context switches of all threads of adapters, and how many threads there are.
fn switches() -> (u64, usize) {
    let (mut sum, mut threads) = (0, 0);
    for task in fs::read_dir("/proc/self/task").expect("proc is mounted") {
        let task = task.expect("a thread's directory").path();
        if !fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == THREAD) {
            continue;
        }
        let status = fs::read_to_string(task.join("status")).expect("the thread lives");
        let counts = status.lines().filter_map(|l| l.split_once("ctxt_switches:"));
        sum += counts.map(|(_, n)| n.trim().parse::<u64>().expect("a number")).sum::<u64>();
        threads += 1;
    }
    (sum, threads)
}

/// The switches once all `threads` have begun and sleep.
fn settle(threads: usize) -> Option<u64> {
    let mut before = switches();
    for _ in 0..TRIES {
        std::thread::sleep(ASLEEP);
        let now = switches();
        if now == before && now.1 == threads {
            return Some(now.0);
        }
        before = now;
    }
    None
}

fn check(fabric: &str, progress: Progress) {
    let Some(devices) = [0, 1].map(|n| open(fabric, progress, n)).into_iter().collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let [mut a, mut b]: [End; 2] =
        devices.into_iter().map(End::new).collect::<Vec<_>>().try_into().ok().unwrap();
    a.connect(&b);
    b.connect(&a);
    for _ in 0..20 {
        b.recv();
        // What is not signalled is acknowledged after the probe's time only.
        send(&mut a.rc, SendFlags::empty());
        send(&mut a.uc, SendFlags::empty());
        for _ in 0..2 {
            assert!(b.next(&*a.device).is_some(), "{fabric} {progress}: a message is lost");
        }
    }
    let threads = if progress == Progress::Inline { 0 } else { 2 };
    let mut woken = u64::MAX;
    for _ in 0..LOOKS {
        let Some(before) = settle(threads) else {
            panic!(
                "{fabric} {progress}: an idle adapter did not sleep for {ASLEEP:?} once in {:?}",
                TRIES * ASLEEP
            );
        };
        std::thread::sleep(WATCHED);
        woken = switches().0 - before;
        if woken <= STRAY {
            break;
        }
    }
    assert!(woken <= STRAY, "{fabric} {progress}: {woken} wake-ups of idle adapters in {WATCHED:?}");
    a.close();
    b.close();
    println!("idle over {fabric}, progress {progress}: {woken} wake-ups in {WATCHED:?}");
}

fn main() {
    for fabric in ["udp", "uring"] {
        for progress in Progress::ALL {
            check(fabric, progress);
        }
    }
}
