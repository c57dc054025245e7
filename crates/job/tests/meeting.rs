//! Jobs in a folder or at an address, with threads of the test, and with processes of the example.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hca_job::{Job, JobError, MAX_CARD_BYTES, Settings};

const PATIENT: Settings = Settings { timeout: Duration::from_secs(60) };
/// Longer than a thread or a process of this test waits for a CPU.
const HASTY: Settings = Settings { timeout: Duration::from_secs(3) };

/// A folder of this test's own, removed at the end.
struct Folder(PathBuf);
impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hca-job-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
    fn url(&self, rank: u32, size: u32) -> String {
        format!("file://{}?rank={rank}&size={size}&id=run", self.0.display())
    }
    fn entries(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An address that nobody has: loopback has 16 million, and outgoing connections come from the first.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{}:7000", 64 + (high & 63), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn tcp(at: &str, rank: u32, size: u32) -> String {
    format!("tcp://{at}?rank={rank}&size={size}&id=run")
}

/// What each rank does, by its rendezvous.
fn each<T: Send>(size: u32, url: impl Fn(u32) -> String + Sync, of: impl Fn(Job) -> T + Sync) -> Vec<T> {
    thread::scope(|s| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (url, of) = (&url, &of);
                s.spawn(move || of(Job::join(&url(rank), PATIENT).unwrap_or_else(|e| panic!("{rank}: {e}"))))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// A job as it should go.
fn whole(job: Job) -> u32 {
    let card = |rank: u32| vec![rank as u8; [3, MAX_CARD_BYTES][rank as usize % 2]];
    job.publish(&card(job.rank())).unwrap();
    assert!(matches!(job.publish(b"again"), Err(JobError::PublishedBefore)));
    job.fence().unwrap();
    for rank in 0..job.size() {
        assert_eq!(job.card(rank).unwrap(), card(rank));
    }
    (0..5).for_each(|_| job.barrier().unwrap());
    job.finalize().unwrap();
    job.id()
}

#[test]
fn ranks_meet_in_a_folder_and_leave_nothing_behind() {
    let folder = Folder::new("whole");
    let first = each(6, |r| folder.url(r, 6), whole);
    assert_eq!(folder.entries(), 0, "the last one cleans up");
    let second = each(6, |r| folder.url(r, 6), whole);
    assert!(first.iter().all(|id| *id == first[0]) && second.iter().all(|id| *id == second[0]));
    assert_ne!(first[0], second[0], "each run has an id of its own");
}

#[test]
fn who_comes_and_goes_at_once_was_there() {
    let folder = Folder::new("haste");
    for _ in 0..150 {
        each(
            3,
            |r| folder.url(r, 3),
            |job| {
                job.fence().unwrap();
                job.finalize().unwrap();
            },
        );
    }
    assert_eq!(folder.entries(), 0);
}

#[test]
fn ranks_meet_at_an_address_in_any_order_of_coming() {
    let at = address();
    let ids = each(6, |r| tcp(&at, r, 6), whole);
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_ne!(each(2, |r| tcp(&at, r, 2), whole)[0], ids[0], "and the address is free again");
}

#[test]
fn two_processes_of_one_rank_are_refused_and_so_is_one_that_comes_again() {
    let folder = Folder::new("twice");
    let at = address();
    for url in [&|r| folder.url(r, 2), &|r| tcp(&at, r, 2)] as [&dyn Fn(u32) -> String; 2] {
        let zero = Job::join(&url(0), PATIENT).unwrap();
        let one = Job::join(&url(1), PATIENT).unwrap();
        let e = Job::join(&url(1), PATIENT).unwrap_err();
        assert!(matches!(e, JobError::RankTaken { rank: 1, .. }), "{e}");
        assert!(e.to_string().contains("another id"), "{e}");
        drop(one);
        let e = Job::join(&url(1), PATIENT).unwrap_err();
        assert!(matches!(e, JobError::RankTaken { rank: 1, .. }), "{e}");
        drop(zero);
    }
    let _first = Job::join(&folder.url(0, 2), PATIENT).unwrap();
    let e = Job::join(&folder.url(0, 2), PATIENT).unwrap_err();
    assert!(matches!(e, JobError::RankTaken { rank: 0, .. }), "{e}");
}

#[test]
fn a_second_rank_0_finds_the_address_taken() {
    let at = address();
    let _zero = Job::join(&tcp(&at, 0, 2), PATIENT).unwrap();
    let e = Job::join(&tcp(&at, 0, 2), PATIENT).unwrap_err();
    assert!(matches!(e, JobError::Listen { .. }), "{e}");
    assert!(e.to_string().contains(&at), "{e}");
}

#[test]
fn processes_that_were_told_other_sizes_or_ids_are_refused() {
    let folder = Folder::new("size");
    let at = address();
    let _folder = Job::join(&folder.url(0, 2), PATIENT).unwrap();
    let _address = Job::join(&tcp(&at, 0, 2), PATIENT).unwrap();
    for url in [folder.url(1, 3), tcp(&at, 1, 3)] {
        let e = Job::join(&url, PATIENT).unwrap_err();
        assert!(matches!(e, JobError::WrongSize { ours: 3, theirs: 2 }), "{e}");
    }
    let e = Job::join(&format!("tcp://{at}?rank=1&size=2&id=other"), PATIENT).unwrap_err();
    assert!(matches!(e, JobError::WrongJob { .. }), "{e}");
}

#[test]
fn who_is_missed_is_named() {
    let folder = Folder::new("missed");
    let zero = Job::join(&folder.url(0, 4), HASTY).unwrap();
    let two = Job::join(&folder.url(2, 4), HASTY).unwrap();
    for result in
        thread::scope(|s| [s.spawn(|| zero.barrier()), s.spawn(|| two.barrier())].map(|t| t.join().unwrap()))
    {
        let e = result.unwrap_err();
        assert!(matches!(e, JobError::Missed { first: 1, missing: 2, size: 4, .. }), "{e}");
    }
    assert!(matches!(zero.barrier(), Err(JobError::Broken)));
    let e = Job::join(&tcp(&address(), 1, 2), HASTY).unwrap_err();
    assert!(matches!(e, JobError::Connect { .. }) && e.to_string().contains("rank 0"), "{e}");
    let at = address();
    let e = Job::join(&tcp(&at, 0, 2), HASTY).unwrap().barrier().unwrap_err();
    assert!(matches!(e, JobError::TimedOut { .. }), "{e}");
}

#[test]
fn rank_0_serves_until_all_have_left_or_says_who_has_not() {
    let at = address();
    let zero = Job::join(&tcp(&at, 0, 2), HASTY).unwrap();
    let one = Job::join(&tcp(&at, 1, 2), PATIENT).unwrap();
    thread::scope(|s| {
        let fence = s.spawn(|| one.fence());
        zero.publish(b"zero").unwrap();
        // A hasty one: the other may not have come yet.
        let _ = zero.fence();
        let _ = fence.join().unwrap();
    });
    let e = zero.finalize().unwrap_err();
    assert!(matches!(e, JobError::StillPresent { present: 1, .. }), "{e}");
    // It goes on serving for as long as the process lives.
    one.finalize().unwrap();
}

#[test]
fn a_rank_0_that_is_dropped_serves_those_who_still_read() {
    let at = address();
    let cards = each(
        3,
        |r| tcp(&at, r, 3),
        |job| {
            job.publish(&[job.rank() as u8]).unwrap();
            job.fence().unwrap();
            if job.rank() == 0 {
                return Vec::new();
            }
            // Nobody knows here whether rank 0 is gone already; the other barrier of the others tells them.
            while job.barrier().is_ok() {}
            job.card(0).unwrap()
        },
    );
    assert_eq!(cards, [vec![], vec![0], vec![0]]);
}

#[test]
fn who_comes_after_rank_0_has_left_is_told_so_and_not_that_nobody_is_there() {
    let at = address();
    drop(Job::join(&tcp(&at, 0, 3), PATIENT).unwrap());
    let one = Job::join(&tcp(&at, 1, 3), HASTY).unwrap();
    let e = one.barrier().unwrap_err();
    assert!(matches!(e, JobError::BarrierFailed { rank: 0 }), "{e}");
    drop(one);
    // Also behind another one that has come and gone.
    Job::join(&tcp(&at, 2, 3), HASTY).unwrap().finalize().unwrap();
    // All have left: the address is free.
    let again = std::time::Instant::now();
    while Job::join(&tcp(&at, 0, 3), HASTY).is_err() {
        assert!(again.elapsed() < PATIENT.timeout);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_abort_is_heard_without_a_launcher() {
    let folder = Folder::new("abort");
    let at = address();
    for url in [&|r| folder.url(r, 3), &|r| tcp(&at, r, 3)] as [&(dyn Fn(u32) -> String + Sync); 2] {
        let heard = each(3, url, |job| {
            job.fence().unwrap();
            if job.rank() == 1 {
                job.abort(9, "no more").unwrap();
            }
            job.barrier().unwrap_err()
        });
        for e in heard {
            assert!(
                matches!(&e, JobError::Aborted { rank: 1, code: 9, message } if &**message == "no more"),
                "{e}"
            );
        }
    }
}

#[test]
fn a_time_limit_may_be_beyond_what_the_clock_counts() {
    let settings = Settings { timeout: Duration::MAX };
    let (folder, at) = (Folder::new("for-ever"), address());
    for url in [&|r| folder.url(r, 2), &|r| tcp(&at, r, 2)] as [&(dyn Fn(u32) -> String + Sync); 2] {
        let meet = |rank| {
            let job = Job::join(&url(rank), settings).unwrap();
            job.publish(b"card").unwrap();
            job.fence().unwrap();
            assert_eq!(job.card(1 - rank).unwrap(), b"card");
            job.finalize().unwrap();
        };
        thread::scope(|s| [0, 1].map(|rank| s.spawn(move || meet(rank))).map(|t| t.join().unwrap()));
    }
}

#[test]
fn a_barrier_in_a_folder_fails_for_one_that_has_left_though_another_is_still_to_come() {
    let folder = Folder::new("still-to-come");
    // In the order of their ranks, each of them could wait for the one that is still to come.
    for (left, to_come, waits) in [(2, 1, 0), (2, 0, 1), (0, 1, 2)] {
        let jobs = [0, 1, 2].map(|rank| Some(Job::join(&folder.url(rank, 3), PATIENT).unwrap()));
        let [mut left, to_come, waits] = [left, to_come, waits].map({
            let mut jobs = jobs;
            move |rank: usize| (rank as u32, jobs[rank].take())
        });
        drop(left.1.take());
        let begun = std::time::Instant::now();
        let failed = waits.1.as_ref().unwrap().barrier();
        assert!(matches!(failed, Err(JobError::BarrierFailed { rank }) if rank == left.0), "{failed:?}");
        assert!(begun.elapsed() < PATIENT.timeout / 2);
        let late = to_come.1.as_ref().unwrap().barrier();
        assert!(matches!(late, Err(JobError::BarrierFailed { .. })), "{late:?}");
    }
}

#[test]
fn a_barrier_fails_without_a_launcher_when_one_has_left() {
    let folder = Folder::new("left");
    let at = address();
    for url in [&|r| folder.url(r, 3), &|r| tcp(&at, r, 3)] as [&(dyn Fn(u32) -> String + Sync); 2] {
        let failed = each(3, url, |job| {
            job.fence().unwrap();
            (job.rank() != 2).then(|| job.barrier().unwrap_err())
        });
        for e in failed.into_iter().flatten() {
            // Rank 0 may hear of it first, and leave.
            assert!(matches!(e, JobError::BarrierFailed { rank: 2 | 0 }), "{e}");
        }
    }
}

#[test]
fn strangers_at_the_address_keep_nobody_out() {
    use std::io::{Read, Write};
    let at = address();
    let zero = Job::join(&tcp(&at, 0, 2), PATIENT).unwrap();
    let mut web = std::net::TcpStream::connect(&at).unwrap();
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let silent: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(&at).unwrap()).collect();
    let one = Job::join(&tcp(&at, 1, 2), PATIENT).unwrap();
    thread::scope(|s| {
        s.spawn(|| zero.barrier().unwrap());
        one.barrier().unwrap();
    });
    let mut told = String::new();
    let _ = web.read_to_string(&mut told);
    assert!(told.contains("reason=stranger"), "{told}");
    drop(silent);
}

#[test]
fn lines_behind_a_greeting_are_heard() {
    use std::io::{BufRead, BufReader, Write};
    let at = address();
    let zero = Job::join(&tcp(&at, 0, 2), PATIENT).unwrap();
    let mut one = std::net::TcpStream::connect(&at).unwrap();
    one.write_all(b"cmd=initack pmiid=1 size=2 job=run\ncmd=get_appnum\n").unwrap();
    let lines = BufReader::new(one).lines().map(Result::unwrap);
    let last = lines.take(5).last().unwrap();
    assert_eq!(last, "cmd=appnum appnum=0");
    drop(zero);
}

#[test]
fn folders_that_can_not_be_used_are_named() {
    let url = "file:///nonexistent/lab?rank=0&size=1";
    let e = Job::join(url, PATIENT).unwrap_err();
    assert!(matches!(&e, JobError::Folder { .. }) && e.to_string().contains("/nonexistent/lab"), "{e}");
    // What others put there under the name of the job is not followed.
    let folder = Folder::new("link");
    let elsewhere = Folder::new("elsewhere");
    std::os::unix::fs::symlink(&elsewhere.0, folder.0.join("hca-job-run")).unwrap();
    let e = Job::join(&folder.url(0, 1), PATIENT).unwrap_err();
    assert!(matches!(e, JobError::Folder { .. }), "{e}");
    assert_eq!(elsewhere.entries(), 0);
}

/// The example, which cargo builds beside the tests.
fn whoami() -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let mut command = Command::new(path.join("examples/whoami"));
    for name in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID", "HCA_JOB", "HCA_JOB_TIMEOUT"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn started(url: &str) -> Child {
    whoami().env("HCA_JOB", url).spawn().unwrap()
}

#[test]
fn processes_meet_in_a_folder_and_at_an_address() {
    let folder = Folder::new("processes");
    let at = address();
    for url in [&|r| folder.url(r, 3), &|r| tcp(&at, r, 3)] as [&dyn Fn(u32) -> String; 2] {
        // The last first: nobody needs rank 0 to be there before.
        let all: Vec<Child> = (0..3).rev().map(|r| started(&url(r))).collect();
        let pids: Vec<u32> = all.iter().map(Child::id).collect();
        for (at, child) in all.into_iter().enumerate() {
            let out = child.wait_with_output().unwrap();
            assert!(out.status.success(), "{}", text(&out.stderr));
            let rank = 2 - at;
            let next = pids[2 - (rank + 1) % 3];
            let said = text(&out.stdout);
            assert!(said.starts_with(&format!("rank {rank} of 3 in job ")), "{said}");
            assert!(said.contains(&format!("next is process {next} of rank {}", (rank + 1) % 3)), "{said}");
        }
    }
    assert_eq!(folder.entries(), 0);
}

#[test]
fn a_process_that_is_killed_is_not_waited_for() {
    let folder = Folder::new("killed");
    let at = address();
    for url in [&|r| folder.url(r, 3), &|r| tcp(&at, r, 3)] as [&dyn Fn(u32) -> String; 2] {
        let zero = Job::join(&url(0), PATIENT).unwrap();
        let mut killed = started(&url(1));
        let other = Job::join(&url(2), PATIENT).unwrap();
        // The example has come to its fence then, and waits at the barrier behind it.
        thread::scope(|s| {
            s.spawn(|| zero.fence().unwrap());
            other.fence().unwrap();
        });
        killed.kill().unwrap();
        killed.wait().unwrap();
        thread::scope(|s| {
            let waits = s.spawn(|| other.barrier());
            assert!(matches!(zero.barrier(), Err(JobError::BarrierFailed { rank: 1 })));
            assert!(matches!(waits.join().unwrap(), Err(JobError::BarrierFailed { rank: 1 })));
        });
    }
}

/// What the example says, alone, with these variables.
fn refusal(variables: &[(&str, &str)]) -> String {
    let Output { status, stderr, .. } = whoami().envs(variables.iter().copied()).output().unwrap();
    assert_eq!(status.code(), Some(1), "{variables:?}");
    text(&stderr)
}

#[test]
fn a_process_without_a_launcher_is_alone_and_one_with_half_of_one_says_so() {
    let out = whoami().output().unwrap();
    assert!(text(&out.stdout).starts_with("rank 0 of 1"), "{}", text(&out.stderr));
    for (variables, part) in [
        (&[("PMI_FD", "3"), ("PMI_RANK", "0")][..], "PMI_SIZE"),
        (&[("PMI_FD", "77"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")], "77"),
        (&[("PMI_PORT", "127.0.0.1:1"), ("PMI_ID", "0"), ("HCA_JOB_TIMEOUT", "1")], "127.0.0.1:1"),
        (&[("HCA_JOB", "tcp://127.0.0.1:1?rank=1&size=2"), ("HCA_JOB_TIMEOUT", "0.1")], "127.0.0.1:1"),
        (&[("HCA_JOB", "here")], "here"),
        (&[("HCA_JOB_TIMEOUT", "long")], "HCA_JOB_TIMEOUT"),
    ] {
        let said = refusal(variables);
        assert!(said.contains(part), "{variables:?}: {said}");
    }
}
