//! A process and a launcher: this crate's launcher, a lying one, and a silent one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use hca_job::server::{Event, Server};
use hca_job::{Doing, Job, JobError, LineFault, MAX_CARD_BYTES, Settings};
use proptest::prelude::*;

const PATIENT: Settings = Settings { timeout: Duration::from_secs(60) };
/// Longer than the launcher's thread waits for a CPU.
const HASTY: Settings = Settings { timeout: Duration::from_secs(3) };

fn server(size: u32) -> Server {
    Server::start(size, "test", |_| {}).unwrap()
}

/// Each rank of a job as a thread.
fn ranks<T: Send>(server: &Server, size: u32, each: impl Fn(Job) -> T + Sync) -> Vec<T> {
    thread::scope(|s| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (seat, each) = (server.attach(rank).unwrap(), &each);
                s.spawn(move || each(Job::over(seat, rank, size, PATIENT).unwrap()))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn many_ranks_read_each_others_cards_of_all_lengths() {
    let card = |rank: u32| -> Vec<u8> {
        let len = [0, 1, 600, 5000, MAX_CARD_BYTES][rank as usize % 5];
        (0..len).map(|i| (i as u32 * 31 + rank) as u8).collect()
    };
    let ids = ranks(&server(24), 24, |job| {
        assert!(matches!(job.card(0), Err(JobError::BeforeFence)));
        job.publish(&card(job.rank())).unwrap();
        assert!(matches!(job.publish(b"x"), Err(JobError::PublishedBefore)));
        job.fence().unwrap();
        for step in 0..6 {
            let of = (job.rank() + step * 5) % 24;
            assert_eq!(job.card(of).unwrap(), card(of));
        }
        assert!(matches!(job.card(24), Err(JobError::NoSuchRank { rank: 24, size: 24 })));
        job.barrier().unwrap();
        job.finalize().unwrap();
        assert!(matches!(job.card(0), Err(JobError::Left)));
        job.id()
    });
    assert!(ids.iter().all(|id| *id == ids[0] && *id != 0));
}

#[test]
fn a_rank_without_a_card_is_named() {
    ranks(&server(2), 2, |job| {
        if job.rank() == 0 {
            job.publish(b"zero").unwrap();
        }
        job.fence().unwrap();
        assert_eq!(job.card(0).unwrap(), b"zero");
        assert!(matches!(job.card(1), Err(JobError::NoCard { rank: 1 })));
        job.barrier().unwrap();
    });
}

#[test]
fn threads_of_a_process_ask_at_a_time() {
    ranks(&server(2), 2, |job| {
        job.publish(&[job.rank() as u8; 2000]).unwrap();
        job.fence().unwrap();
        thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| (0..50).for_each(|i| assert_eq!(job.card(i % 2).unwrap(), [(i % 2) as u8; 2000])));
            }
        });
        job.barrier().unwrap();
    });
}

#[test]
fn a_barrier_fails_for_those_who_wait_when_one_leaves_or_is_dropped() {
    for finalizes in [true, false] {
        let failed = ranks(&server(3), 3, |job| {
            job.fence().unwrap();
            if job.rank() == 1 {
                if finalizes {
                    job.finalize().unwrap();
                }
                return true;
            }
            matches!(job.barrier(), Err(JobError::BarrierFailed { rank: 1 }))
        });
        assert_eq!(failed, [true; 3], "finalizes: {finalizes}");
    }
}

#[test]
fn a_barrier_fails_when_the_launcher_says_that_one_has_ended() {
    let server = server(2);
    let waits = server.attach(0).unwrap();
    let waits = thread::spawn(move || Job::over(waits, 0, 2, PATIENT).unwrap().barrier());
    // It keeps its socket open, as a child that it left behind would.
    let _kept = server.attach(1).unwrap();
    server.ended(1);
    assert!(matches!(waits.join().unwrap(), Err(JobError::BarrierFailed { rank: 1 })));
}

#[test]
fn an_abort_reaches_the_launcher_and_all_who_wait_or_ask() {
    let (told, heard) = channel();
    let server = Server::start(3, "test", move |event| told.send(event).unwrap()).unwrap();
    let ended = ranks(&server, 3, |job| {
        job.fence().unwrap();
        if job.rank() == 2 {
            job.abort(7, "out of rope").unwrap();
        }
        // Behind the fence nobody comes to a second barrier but who hears of the abort.
        match if job.rank() == 0 { job.barrier() } else { job.barrier().and_then(|()| job.card(0).map(drop)) }
        {
            Err(JobError::Aborted { rank, code, message }) => (rank, code, message),
            other => panic!("{other:?}"),
        }
    });
    assert!(ended.iter().all(|e| *e == (2, 7, "out of rope".into())), "{ended:?}");
    let Event::Abort(abort) = heard.recv().unwrap() else { panic!("it asked to end the job") };
    assert_eq!((abort.rank, abort.code, &*abort.message), (2, 7, "out of rope"));
}

/// While the server has not come to a process's lines, the process says as much as its socket takes, and ends.
#[test]
fn all_is_heard_that_a_process_has_said_before_its_end() {
    for ended in [false, true] {
        let (told, heard) = channel();
        let (go_on, goes_on) = channel::<()>();
        let report = move |event| {
            let waits = matches!(event, Event::NotPmi(_));
            told.send(event).unwrap();
            if waits {
                goes_on.recv().unwrap();
            }
        };
        let server = Server::start(2, "test", report).unwrap();
        let [mut seat, mut other] = [0, 1].map(|rank| UnixStream::from(server.attach(rank).unwrap()));
        rustix::net::sockopt::set_socket_send_buffer_size(&seat, 1 << 20).unwrap();
        other.write_all(b"no PMI-1\n").unwrap();
        let Event::NotPmi(_) = heard.recv().unwrap() else { panic!("the server waits with its report") };
        let long = format!("cmd=get_maxes pad={}\n", "x".repeat(4000)).repeat(36);
        seat.write_all(long.as_bytes()).unwrap();
        seat.write_all(b"cmd=abort exitcode=7\n").unwrap();
        if ended {
            server.ended(0);
        }
        let hears = thread::spawn(move || {
            server.hear(0);
            server
        });
        // Behind this the order is given, or comes still; the lines are heard by it, whichever comes first.
        go_on.send(()).unwrap();
        let _server = hears.join().unwrap();
        let abort = heard.try_recv();
        assert!(matches!(&abort, Ok(Event::Abort(abort)) if abort.code == 7), "ended: {ended}: {abort:?}");
    }
}

#[test]
fn who_has_heard_a_process_knows_of_its_abort() {
    let (told, heard) = channel();
    let server = Server::start(1, "test", move |event| told.send(event).unwrap()).unwrap();
    let mut seat = UnixStream::from(server.attach(0).unwrap());
    seat.write_all(b"cmd=abort exitcode=7 message=out_of_rope\n").unwrap();
    drop(seat);
    server.hear(0);
    assert!(matches!(heard.try_recv(), Ok(Event::Abort(abort)) if abort.code == 7));
    server.hear(1);
}

#[test]
fn a_process_aborts_while_another_thread_of_it_waits() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (came, waits) = channel();
    let launcher = thread::spawn(move || {
        let mut asked = Vec::new();
        for line in BufReader::new(ours.try_clone().unwrap()).lines() {
            asked.push(line.unwrap());
            match asked.len() {
                at @ 1..=3 => (&ours).write_all([INIT, MAXES, NAME][at - 1]).unwrap(),
                4 => came.send(()).unwrap(),
                _ => break,
            }
        }
        asked.split_off(3)
    });
    let job = Job::over(theirs.into(), 0, 2, PATIENT).unwrap();
    let barrier = thread::spawn({
        let job = job.clone();
        move || job.barrier()
    });
    waits.recv().unwrap();
    job.abort(3, "right now").unwrap();
    assert_eq!(launcher.join().unwrap(), ["cmd=barrier_in", "cmd=abort exitcode=3 message=right_now"]);
    assert!(matches!(barrier.join().unwrap(), Err(JobError::Closed { doing: Doing::Barrier })));
}

#[test]
fn a_server_that_dies_is_told_and_not_waited_for() {
    let server = server(2);
    let job = Job::over(server.attach(0).unwrap(), 0, 2, PATIENT).unwrap();
    let waits = thread::spawn({
        let job = job.clone();
        move || job.barrier()
    });
    drop(server);
    assert!(matches!(waits.join().unwrap(), Err(JobError::Closed { doing: Doing::Barrier })));
    assert!(matches!(job.barrier(), Err(JobError::Broken)), "no answer belongs to a question any more");
}

#[test]
fn who_waits_in_vain_is_told_after_the_limit() {
    let server = server(2);
    let job = Job::over(server.attach(0).unwrap(), 0, 2, HASTY).unwrap();
    let e = job.barrier().unwrap_err();
    assert!(matches!(e, JobError::TimedOut { doing: Doing::Barrier, .. }), "{e}");
    assert!(e.to_string().contains("HCA_JOB_TIMEOUT"), "{e}");
}

#[test]
fn a_seat_is_given_out_once() {
    let server = server(1);
    let _seat = server.attach(0).unwrap();
    assert!(matches!(server.attach(0), Err(JobError::RankTaken { rank: 0, .. })));
    assert!(matches!(server.attach(1), Err(JobError::NoSuchRank { rank: 1, size: 1 })));
    assert!(matches!(Server::start(0, "x", |_| {}), Err(JobError::Value { .. })));
}

/// A launcher that answers these lines, one to a question, and then hangs up or stays silent.
fn scripted(answers: &[&[u8]], then_silent: bool) -> (OwnedFd, thread::JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let answers: Vec<Vec<u8>> = answers.iter().map(|a| a.to_vec()).collect();
    let thread = thread::spawn(move || {
        let mut questions = Vec::new();
        let mut reader = BufReader::new(ours.try_clone().unwrap());
        for answer in answers {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return questions;
            }
            questions.push(line.trim_end().to_owned());
            if (&ours).write_all(&answer).is_err() {
                return questions;
            }
        }
        if then_silent {
            let _ = reader.read_to_end(&mut Vec::new());
        }
        questions
    });
    (theirs.into(), thread)
}

const INIT: &[u8] = b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
const MAXES: &[u8] = b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=80\n";
const NAME: &[u8] = b"cmd=my_kvsname kvsname=kvs_7\n";
const PUT: &[u8] = b"cmd=put_result rc=0 msg=success\n";
const OUT: &[u8] = b"cmd=barrier_out\n";

fn joined(answers: &[&[u8]]) -> (Result<Job, JobError>, thread::JoinHandle<Vec<String>>) {
    let (socket, thread) = scripted(answers, false);
    (Job::over(socket, 1, 2, PATIENT), thread)
}

#[test]
fn the_words_are_those_of_pmi_1() {
    let got = b"cmd=get_result rc=0 msg=success value=c1-1-3-Zm9v\n";
    let (socket, launcher) = scripted(&[INIT, MAXES, NAME, PUT, OUT, got, b"cmd=finalize_ack\n"], false);
    let job = Job::over(socket, 1, 2, PATIENT).unwrap();
    job.publish(b"foo").unwrap();
    job.fence().unwrap();
    assert_eq!(job.card(0).unwrap(), b"foo");
    job.finalize().unwrap();
    let asked = launcher.join().unwrap();
    assert_eq!(
        asked,
        [
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=get_maxes",
            "cmd=get_my_kvsname",
            "cmd=put kvsname=kvs_7 key=hca-1-0 value=c1-1-3-Zm9v",
            "cmd=barrier_in",
            "cmd=get kvsname=kvs_7 key=hca-0-0",
            "cmd=finalize",
        ]
    );
}

#[test]
fn no_line_is_longer_than_launchers_read() {
    let long_name = format!("cmd=my_kvsname kvsname={}\n", "k".repeat(255));
    let maxes = b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n";
    let mut answers = vec![INIT, maxes, long_name.as_bytes()];
    answers.extend([PUT; 200]);
    let (socket, launcher) = scripted(&answers, false);
    let job = Job::over(socket, 1, 2, PATIENT).unwrap();
    job.publish(&[0xff; MAX_CARD_BYTES]).unwrap();
    drop(job);
    let asked = launcher.join().unwrap();
    assert!(asked.len() > 100);
    assert!(asked.iter().all(|l| l.len() < 1024), "{}", asked.iter().map(String::len).max().unwrap());
}

#[test]
fn a_launcher_that_does_not_speak_pmi_1_is_told_apart() {
    use JobError as E;
    type Check = fn(&JobError) -> bool;
    let long = [b'x'; 5000];
    let cases: &[(&[&[u8]], Check)] = &[
        (&[], |e| matches!(e, E::Closed { doing: Doing::Join })),
        (&[b"\n"], |e| {
            matches!(e, E::Line { fault: LineFault::Unexpected { wanted: "response_to_init" }, .. })
        }),
        (&[b"HTTP/1.1 400 Bad Request\n"], |e| matches!(e, E::Line { fault: LineFault::NotPairs, .. })),
        (&[b"\xff\xfe\n"], |e| matches!(e, E::Line { fault: LineFault::NotText, .. })),
        (&[&long], |e| matches!(e, E::Line { fault: LineFault::TooLong { limit: 4096 }, .. })),
        (&[b"cmd=response_to_init rc=0\n"], |e| {
            matches!(e, E::Line { fault: LineFault::Lacks { key: "pmi_version" }, .. })
        }),
        (&[b"cmd=response_to_init rc=x\n"], |e| {
            matches!(e, E::Line { fault: LineFault::Value { key: "rc" }, .. })
        }),
        (&[b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n"], |e| {
            matches!(e, E::Version { version: 2, subversion: 0 })
        }),
        (
            &[b"cmd=response_to_init rc=-1 msg=no_seat_left\n"],
            |e| matches!(e, E::Refused { code: -1, message, .. } if &**message == "no seat left"),
        ),
        (&[INIT, b"cmd=maxes kvsname_max=256 keylen_max=8 vallen_max=80\n"], |e| {
            matches!(e, E::Limits { key: 8, .. })
        }),
        (&[INIT, b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=16\n"], |e| {
            matches!(e, E::Limits { value: 16, .. })
        }),
        (&[INIT, b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=-5\n"], |e| {
            matches!(e, E::Limits { value: -5, .. })
        }),
        (&[INIT, MAXES, b"cmd=my_kvsname kvsname=\n"], |e| {
            matches!(e, E::Line { fault: LineFault::Lacks { key: "kvsname" }, .. })
        }),
        (&[INIT, MAXES], |e| matches!(e, E::Closed { .. })),
    ];
    for (answers, check) in cases {
        let e = joined(answers).0.map(drop).unwrap_err();
        assert!(check(&e), "{answers:?}: {e:?}");
    }
}

#[test]
fn a_launcher_that_lies_about_a_card_gets_no_more_than_an_error() {
    type Check = fn(&JobError) -> bool;
    let cases: &[(&[&[u8]], Check)] = &[
        (&[b"cmd=get_result rc=-1 msg=key_not_found value=unknown\n"], |e| {
            matches!(e, JobError::NoCard { rank: 0 })
        }),
        (&[b"cmd=get_result rc=1\n"], |e| matches!(e, JobError::NoCard { rank: 0 })),
        (&[b"cmd=get_result rc=0 value=hello\n"], |e| matches!(e, JobError::BadCard { rank: 0 })),
        (&[b"cmd=get_result rc=0 value=c1-999999999-64-Zg\n"], |e| {
            matches!(e, JobError::BadCard { rank: 0 })
        }),
        (&[b"cmd=get_result rc=0 value=c1-2-6-Zm9v\n", b"cmd=get_result rc=-1\n"], |e| {
            matches!(e, JobError::BadCard { rank: 0 })
        }),
        (&[b"cmd=get_result rc=0\n"], |e| {
            matches!(e, JobError::Line { fault: LineFault::Lacks { key: "value" }, .. })
        }),
        (&[b"cmd=put_result rc=0\n"], |e| {
            matches!(e, JobError::Line { fault: LineFault::Unexpected { wanted: "get_result" }, .. })
        }),
    ];
    for (last, check) in cases {
        let answers = [&[INIT, MAXES, NAME, OUT], *last].concat();
        let job = joined(&answers).0.unwrap();
        job.fence().unwrap();
        let e = job.card(0).unwrap_err();
        assert!(check(&e), "{last:?}: {e:?}");
    }
}

#[test]
fn a_launcher_that_falls_silent_in_the_middle_of_a_line_is_waited_for_no_longer_than_the_limit() {
    let (socket, _launcher) = scripted(&[INIT, b"cmd=maxes kvsname_max=2"], true);
    let e = Job::over(socket, 1, 2, HASTY).map(drop).unwrap_err();
    assert!(matches!(e, JobError::TimedOut { doing: Doing::Join, .. }), "{e:?}");
}

#[test]
fn ranks_and_sizes_that_can_not_be_are_refused() {
    let socket = || OwnedFd::from(UnixStream::pair().unwrap().0);
    assert!(matches!(Job::over(socket(), 2, 2, PATIENT), Err(JobError::NoSuchRank { rank: 2, size: 2 })));
    assert!(matches!(Job::over(socket(), 0, 0, PATIENT), Err(JobError::Value { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever a launcher answers, the process has a job or an error, soon and without a panic.
    #[test]
    fn no_answers_hang_a_process_or_make_it_panic(
        answers in proptest::collection::vec(prop_oneof![
            3 => Just(INIT.to_vec()), 3 => Just(MAXES.to_vec()), 3 => Just(NAME.to_vec()), 2 => Just(OUT.to_vec()),
            2 => "cmd=[a-z_]{0,12}( (rc|value|kvsname|keylen_max|vallen_max|pmi_version)=[0-9a-zA-Z-]{0,9}){0,4}\n"
                .prop_map(String::into_bytes),
            1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(|mut b| { b.push(b'\n'); b }),
        ], 0..8)
    ) {
        let answers: Vec<&[u8]> = answers.iter().map(Vec::as_slice).collect();
        let (job, launcher) = joined(&answers);
        if let Ok(job) = job {
            let _ = job.publish(b"card");
            let _ = job.fence();
            let _ = job.card(0);
            let _ = job.finalize();
        }
        launcher.join().unwrap();
    }

    /// Whatever processes say, the server serves one that speaks PMI-1 beside them.
    #[test]
    fn no_process_keeps_the_server_from_the_others(said in proptest::collection::vec(any::<u8>(), 0..300)) {
        let server = server(2);
        let odd = UnixStream::from(server.attach(1).unwrap());
        let _ = (&odd).write_all(&said);
        let job = Job::over(server.attach(0).unwrap(), 0, 2, PATIENT).unwrap();
        job.publish(b"card").unwrap();
        drop(odd);
        server.ended(1);
        prop_assert!(job.barrier().is_err());
    }
}
