//! An adapter that nobody uses does not wake up.
//!
//! It has no test harness, so that the only other threads of the process are the adapters'.
//!
//! Invariants:
//! 1. The memory that peers write to is an end's, which lives.
#![allow(unsafe_code)]

mod ends;

use std::fs;
use std::time::Duration;

use ends::{End, open, post, send};
use hca_core::{Device, RemoteAddr, SendFlags, SendOp};
use softhca::Progress;

/// What the adapter calls its thread.
const THREAD: &str = "hca-progress";
/// An adapter has settled once it slept for this long so many times in a row.
const ASLEEP: Duration = Duration::from_millis(50);
const IN_A_ROW: u32 = 3;
/// How often it is given this time to settle.
const TRIES: u32 = 100;
/// How long it is watched after that.
const WATCHED: Duration = Duration::from_millis(400);
/// How often it is watched at most: a thread that the machine kept from running settles late. An adapter that wakes up
/// regularly does so whenever it is watched.
const LOOKS: u32 = 10;
/// Wake-ups that may be seen.
const STRAY: u64 = 3;
/// WRITEs of each adapter that the other one's program waits for.
const ROUNDS: u64 = 200;

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

/// The switches once all `threads` have begun and sleep: several times in a row, as a thread that the machine keeps from
/// running looks as if it slept.
fn settle(threads: usize) -> Option<u64> {
    let (mut before, mut quiet) = (switches(), 0);
    for _ in 0..TRIES {
        std::thread::sleep(ASLEEP);
        let now = switches();
        quiet = if now == before && now.1 == threads { quiet + 1 } else { 0 };
        if quiet == IN_A_ROW {
            return Some(now.0);
        }
        before = now;
    }
    None
}

/// WRITEs there and back by programs that look at their memory and call nothing, where a thread does the adapter's work.
fn spin(progress: Progress, ends: [&mut End; 2]) {
    let keys = ends.each_ref().map(|end| end.open_to_writes());
    for n in 0..ROUNDS {
        for from in [0, 1] {
            let (at, to) = (8 * n, 1 - from);
            let RemoteAddr { addr, rkey } = ends[to].remote(&keys[to]);
            post(
                &mut ends[from].rc,
                &[SendOp::Write(RemoteAddr { addr: addr + at, rkey })],
                SendFlags::empty(),
            );
            // SAFETY: (1)
            while unsafe { ((addr + at) as *const u8).read_volatile() } == 0 {
                if progress == Progress::Inline {
                    for end in &ends {
                        end.device.turn();
                    }
                }
                std::hint::spin_loop();
            }
        }
    }
    for (end, keys) in ends.into_iter().zip(keys) {
        end.device.dereg_mr(keys.handle).expect("nobody uses it any more");
    }
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
    spin(progress, [&mut a, &mut b]);
    let threads = if progress == Progress::Inline { 0 } else { 2 };
    let mut woken = u64::MAX;
    for _ in 0..LOOKS {
        let Some(before) = settle(threads) else {
            panic!(
                "{fabric} {progress}: an idle adapter did not sleep for {ASLEEP:?} {IN_A_ROW} times in a row in {:?}",
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
