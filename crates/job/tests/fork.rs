//! A member of a job that forks: its child's drops neither leave the job nor end its server.
//!
//! The test has no harness, because a child would lack the harness's threads. An alarm ends a child that hangs.
//!
//! Invariants:
//! 1. The child drops inherited objects, which allocates at most, and ends by `_exit`.
#![allow(unsafe_code)] // `fork`, with `alarm` and `_exit` in its child

use std::thread;
use std::time::Duration;

use hca_job::{Job, Settings};

/// Drops this in a child as well; the child has to end by itself.
fn drop_in_child<T>(what: &str, value: T) -> T {
    // SAFETY: (1)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: takes no pointer.
        unsafe { libc::alarm(20) };
        drop(value);
        // SAFETY: (1)
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status lives on the stack.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "{what}: the child ended with status {status:#x}, of which 0x7f is the signal");
    value
}

fn join(url: &str, rank: u32) -> Job {
    let url = format!("{url}?rank={rank}&size=2&id=fork");
    Job::join(&url, Settings { timeout: Duration::from_secs(20) }).unwrap()
}

/// Both members meet, the first is dropped in a child, and both meet again and part.
fn check(url: &str) {
    let others = url.to_owned();
    let other = thread::spawn(move || {
        let job = join(&others, 1);
        job.publish(b"one").unwrap();
        job.fence().unwrap();
        job.fence().unwrap();
        job.finalize().unwrap();
    });
    let job = join(url, 0);
    job.publish(b"zero").unwrap();
    job.fence().unwrap();
    let job = drop_in_child(url, job);
    assert_eq!(job.card(1).unwrap(), b"one", "{url}: behind a child's drops");
    job.fence().unwrap();
    job.finalize().unwrap();
    other.join().unwrap();
    println!("a child of a member over {url}: ok");
}

fn main() {
    let folder = std::env::temp_dir().join(format!("hca-job-fork-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    check(&format!("file://{}", folder.display()));
    std::fs::remove_dir(&folder).expect("whoever left last took the job's folder away");
    // An address that nobody has; a port that is free now may be another program's later.
    let [.., high, low] = std::process::id().to_be_bytes();
    check(&format!("tcp://127.62.{high}.{}:7000", low.clamp(1, 254)));
}
