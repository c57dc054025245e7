//! `hca run`: processes that find each other, and how a job ends.

use std::io::{BufRead, BufReader, PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hca_job::{Job, JobError, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

/// What the process of a job does, when it is this binary.
const MODE: &str = "HCA_TEST_MODE";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn hca_run(args: &[&str]) -> Command {
    // Whatever starts the tests may ignore a signal, as `nohup` does.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_hca"), "run"])
        .args(args)
        .env_remove("HCA_DEVICE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a script of the shell in each process.
fn shell(args: &[&str], script: &str) -> Output {
    hca_run(&[args, &["sh", "-c", script]].concat()).output().unwrap()
}

/// Runs this binary in each process.
fn job(args: &[&str], mode: &str) -> Output {
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().expect("the path is text");
    let program = [this, "--exact", "process_of_a_job", "--ignored", "--nocapture"];
    hca_run(&[args, &program].concat()).env(MODE, mode).output().unwrap()
}

fn lines(out: &Output) -> Vec<String> {
    text(&out.stdout).lines().map(str::to_owned).collect()
}

/// Waits until no such process runs any more.
fn gone(pid: &str) {
    let begun = Instant::now();
    // Who has ended and is not reaped yet, in a container without an init, is gone as well.
    let runs = || {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|s| !s.is_empty() && !s.starts_with('Z'))
    };
    while runs() {
        assert!(begun.elapsed() < Duration::from_secs(30), "process {pid} goes on");
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs a launcher: other tests start it as a process of a job"]
fn process_of_a_job() {
    let job = Job::from_env_with(Settings { timeout: Duration::from_secs(50) }).unwrap();
    match std::env::var(MODE).unwrap().as_str() {
        "meet" => {
            job.publish(&job.rank().to_be_bytes()).unwrap();
            job.fence().unwrap();
            let next = (job.rank() + 1) % job.size();
            assert_eq!(job.card(next).unwrap(), next.to_be_bytes());
            println!("rank {} of {} of {:x}", job.rank(), job.size(), job.id());
            job.finalize().unwrap();
        }
        "one ends in a barrier" => {
            if job.rank() != 1 {
                let e = job.barrier().unwrap_err();
                assert!(matches!(e, JobError::BarrierFailed { rank: 1 }), "{e}");
                println!("rank {} knows", job.rank());
            }
            // As a program that knows of no job.
            std::process::exit(0);
        }
        "one fails in a barrier" => {
            if job.rank() == 2 {
                std::process::exit(5);
            }
            // The others fail because of it, rank 0 among them.
            job.barrier().unwrap();
        }
        "abort" => {
            job.fence().unwrap();
            if job.rank() == 2 {
                job.abort(9, "out of rope").unwrap();
            }
            let _ = job.barrier();
            // It is ended here.
            std::thread::park();
        }
        "abort and end" => {
            job.abort(9, "out of rope").unwrap();
            std::process::exit(1);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn processes_find_each_other() {
    for size in [1, 2, 8] {
        let out = job(&["-n", &size.to_string()], "meet");
        assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
        let said = text(&out.stdout);
        let id = said.lines().find_map(|l| l.split_once(" of ")?.1.split_once(" of ")).unwrap().1;
        for rank in 0..size {
            assert!(said.contains(&format!("rank {rank} of {size} of {id}\n")), "{said}");
        }
    }
}

#[test]
fn a_barrier_fails_when_a_process_ends_and_nothing_hangs() {
    let out = job(&["-n", "3"], "one ends in a barrier");
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    assert!(said.contains("rank 0 knows") && said.contains("rank 2 knows"), "{said}");
}

#[test]
fn who_leaves_its_connection_to_a_child_has_ended_all_the_same() {
    let script = "[ $PMI_RANK != 1 ] && exec \"$0\" --exact process_of_a_job --ignored --nocapture; sleep 1000 & exit 0";
    let this = std::env::current_exe().unwrap();
    let args = ["-n", "3", "sh", "-c", script, this.to_str().expect("the path is text")];
    let out = hca_run(&args).env(MODE, "one ends in a barrier").output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
    assert!(text(&out.stdout).contains("rank 0 knows"), "{}", text(&out.stdout));
}

#[test]
fn the_exit_code_is_of_the_failure_and_not_of_those_that_follow_from_it() {
    for _ in 0..5 {
        let out = job(&["-n", "4"], "one fails in a barrier");
        assert_eq!(out.status.code(), Some(5), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains("rank 2 ended with exit code 5"), "{}", text(&out.stderr));
    }
}

#[test]
fn an_abort_ends_all_with_its_code() {
    let out = job(&["-n", "4"], "abort");
    assert_eq!(out.status.code(), Some(9), "{}", text(&out.stderr));
    assert!(
        text(&out.stderr).contains("rank 2 aborted the job with code 9: out of rope"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn an_abort_counts_also_if_its_process_ends_at_once() {
    for _ in 0..40 {
        let out = job(&["-n", "1"], "abort and end");
        assert_eq!(out.status.code(), Some(9), "{}", text(&out.stderr));
    }
}

#[test]
fn the_first_failure_ends_all_and_is_the_exit_code() {
    let out = shell(&["-n", "3"], "[ $PMI_RANK = 1 ] && exit 3; sleep 1000");
    assert_eq!(out.status.code(), Some(3));
    assert!(
        text(&out.stderr).contains("rank 1 ended with exit code 3; all others are ended"),
        "{}",
        text(&out.stderr)
    );
    let out = shell(&["-n", "3"], "[ $PMI_RANK = 2 ] && kill -SEGV $$; sleep 1000");
    assert_eq!(out.status.code(), Some(139));
    assert!(text(&out.stderr).contains("rank 2 was ended by signal 11 (SIGSEGV)"), "{}", text(&out.stderr));
}

#[test]
fn who_does_not_end_when_told_is_killed() {
    // It fails once the other one does not hear any more.
    let script = "if [ $PMI_RANK = 1 ]; then trap '' TERM; : >\"$0\"; sleep 1000; sleep 1000; fi
        while [ ! -e \"$0\" ]; do :; done; exit 4";
    let flag = std::env::temp_dir().join(format!("hca-run-{}-stubborn", std::process::id()));
    let out = shell_at(&["-n", "2", "--grace", "0.2"], script, &flag);
    let _ = std::fs::remove_file(&flag);
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
    assert!(
        text(&out.stderr).contains("rank 1 did not end within 200ms, and is killed"),
        "{}",
        text(&out.stderr)
    );
}

/// A script with a path as its `$0`.
fn shell_at(args: &[&str], script: &str, path: &Path) -> Output {
    let path = path.to_str().expect("the path is text");
    hca_run(&[args, &["sh", "-c", script, path]].concat()).output().unwrap()
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    let out = shell(&["-n", "2", "--timeout", "0.2"], "sleep 1000");
    assert_eq!(out.status.code(), Some(124));
    assert!(text(&out.stderr).contains("--timeout"), "{}", text(&out.stderr));
}

#[test]
fn a_program_that_is_not_there_is_named_once() {
    let out = hca_run(&["-n", "4", "/nonexistent/program"]).output().unwrap();
    assert_eq!(out.status.code(), Some(127));
    let said = text(&out.stderr);
    assert_eq!(said.matches("/nonexistent/program").count(), 1, "{said}");
}

#[test]
fn wrong_usage_says_what_to_write() {
    for (args, part) in [
        (&["-n", "0", "true"][..], "1..=4096"),
        (&["-n", "2"], "PROGRAM"),
        (&["true"], "--processes"),
        (&["-n", "2", "--env", "X", "true"], "NAME=VALUE"),
        (&["-n", "2", "--timeout", "soon", "true"], "0.02"),
        (&["-n", "2", "--device", "tcp://x", "true"], "udp://ADDRESS"),
    ] {
        let out = hca_run(args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(text(&out.stderr).contains(part), "{args:?}: {}", text(&out.stderr));
    }
}

#[test]
fn lines_come_whole_and_with_their_rank() {
    let script =
        "i=0; while [ $i -lt 300 ]; do printf '%s-' $PMI_RANK; printf '%s\\n' $PMI_RANK; i=$((i+1)); done
        printf '%s at last' $PMI_RANK; printf 'e%s' $PMI_RANK >&2";
    let out = shell(&["-n", "4", "--prefix"], script);
    let said = lines(&out);
    for rank in 0..4 {
        let line = format!("[{rank}] {rank}-{rank}");
        assert_eq!(said.iter().filter(|l| **l == line).count(), 300, "{rank}");
        assert!(said.contains(&format!("[{rank}] {rank} at last")));
        assert!(text(&out.stderr).contains(&format!("[{rank}] e{rank}\n")));
    }
    assert_eq!(said.len(), 4 * 301);
    let bare = shell(&["-n", "2"], "echo $PMI_RANK");
    let mut bare = lines(&bare);
    bare.sort();
    assert_eq!(bare, ["0", "1"], "no prefix where nobody looks");
    let single = shell(&["-n", "1"], "printf whole");
    assert_eq!(text(&single.stdout), "whole", "a single process writes by itself");
}

#[test]
fn a_line_of_any_length_is_passed_on() {
    let out = shell(&["-n", "2", "--no-prefix"], "head -c 3000000 /dev/zero | tr '\\0' $PMI_RANK");
    let said = text(&out.stdout);
    assert!(said.lines().all(|l| l.bytes().all(|b| b == l.as_bytes()[0])), "lines do not mix");
    assert_eq!(said.bytes().filter(|b| *b == b'1').count(), 3_000_000);
    assert_eq!(said.bytes().filter(|b| *b == b'0').count(), 3_000_000);
}

#[test]
fn variables_reach_the_processes_and_those_of_another_launcher_do_not() {
    let script = "echo \"$HCA_DEVICE $X $Y $PMI_SIZE ${PMI_PORT-none} ${HCA_JOB-none}\"";
    let args = ["-n", "1", "--device", "shm://lab", "--env", "X=a=b", "--env", "Y=", "sh", "-c", script];
    let outer = [("PMI_SIZE", "7"), ("PMI_PORT", "h:1"), ("HCA_JOB", "here"), ("HCA_DEVICE", "udp://")];
    let out = hca_run(&args).envs(outer).output().unwrap();
    assert_eq!(text(&out.stdout), "shm://lab a=b  1 none none\n", "{}", text(&out.stderr));
}

#[test]
fn rank_0_reads_the_input_and_the_others_find_none() {
    let mut command = hca_run(&["-n", "3", "--prefix", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), "[0] hello\n");
}

/// A job whose processes each say a line first.
fn started(
    args: &[&str],
    script: &str,
    says: usize,
) -> (Child, Vec<String>, BufReader<std::process::ChildStdout>) {
    let mut child = hca_run(&[args, &["sh", "-c", script]].concat()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let said = (0..says)
        .map(|_| {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        })
        .collect();
    (child, said, out)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

#[test]
fn ctrl_c_term_and_hup_are_passed_on() {
    for (by, name, code) in
        [(Signal::INT, "INT", 130), (Signal::TERM, "TERM", 143), (Signal::HUP, "HUP", 129)]
    {
        let script = format!("trap 'echo heard; kill $!; exit 0' {name}; sleep 1000 & echo there; wait");
        let (mut child, said, mut out) = started(&["-n", "3"], &script, 3);
        assert_eq!(said, ["there"; 3]);
        signal(&child, by);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "heard\n".repeat(3), "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn a_second_ctrl_c_kills() {
    let (mut child, _, _out) = started(
        &["-n", "2", "--grace", "1000"],
        "trap 'echo no' INT; echo $$; while :; do sleep 1000; done",
        2,
    );
    signal(&child, Signal::INT);
    signal(&child, Signal::INT);
    // Both may have come as one.
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it goes on");
        signal(&child, Signal::INT);
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn what_processes_leave_in_their_group_ends_with_the_job() {
    let out = shell(&["-n", "2"], "sleep 1000 & echo $!");
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let left = lines(&out);
    assert_eq!(left.len(), 2);
    left.iter().for_each(|pid| gone(pid));
}

#[test]
fn a_launcher_that_is_killed_leaves_nobody_behind() {
    let script = "trap '' TERM; sleep 1000 & echo $$; echo $!; wait; while :; do sleep 1000; done";
    let (mut child, pids, _out) = started(&["-n", "2"], script, 4);
    child.kill().unwrap();
    child.wait().unwrap();
    pids.iter().for_each(|pid| gone(pid));
}

/// How long anything may take that is not to hang.
const SOON: Duration = Duration::from_secs(40);

/// How a launcher ends that is not to hang.
fn end_of(mut child: Child, case: &str) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > SOON {
            child.kill().unwrap();
            panic!("{case}: it goes on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a pipe that nobody reads takes no more. `false`: the launcher has ended before.
fn full(pipe: &PipeWriter, child: &mut Child) -> bool {
    let begun = Instant::now();
    let takes_more = || {
        let mut fds = [PollFd::new(pipe, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    while takes_more() {
        if child.try_wait().unwrap().is_some() && takes_more() {
            return false;
        }
        assert!(begun.elapsed() < SOON, "nobody fills the pipe");
        std::thread::yield_now();
    }
    true
}

#[test]
fn output_that_a_full_disk_does_not_take_is_told_and_fails() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let run = |script: &str| hca_run(&["-n", "2", "sh", "-c", script]);
    for script in ["test $PMI_RANK = 1 || echo a line", "while echo a line; do :; done"] {
        let out = run(script).stdout(full()).output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{script}: {said}");
        assert!(said.contains("hca: can't write to standard output: No space left on device"), "{said}");
    }
    let out = run("test $PMI_RANK = 1 || echo a line; exit 7").stdout(full()).output().unwrap();
    assert_eq!(out.status.code(), Some(7), "the code of a process that failed comes first");
    let status = run("test $PMI_RANK = 1 || echo a line >&2").stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1), "errors of the processes are output, too");
    // A reader that has gone has seen enough.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = run("test $PMI_RANK = 1 || echo a line").stdout(writer).output().unwrap();
    assert_eq!((out.status.code(), &*text(&out.stderr)), (Some(0), ""));
}

#[test]
fn a_pipe_that_nobody_reads_keeps_nothing_from_ending() {
    for (errors_too, by, code) in [
        (false, Some(Signal::INT), 130),
        (false, Some(Signal::TERM), 143),
        (true, Some(Signal::TERM), 143),
        (true, Some(Signal::HUP), 129),
        (false, None, 124),
        (true, None, 124),
    ] {
        let case = format!("{by:?}, errors too: {errors_too}");
        let (_unread, filled) = pipe().unwrap();
        let started = |limit: &[&str]| {
            let script = "while :; do echo a line that nobody reads; done";
            let args = [&["-n", "2", "--grace", "0.1"], limit, &["sh", "-c", script]].concat();
            let mut command = hca_run(&args);
            command.stdout(filled.try_clone().unwrap());
            if errors_too {
                command.stderr(filled.try_clone().unwrap());
            }
            command.spawn().unwrap()
        };
        // Beside other work the time may be over before the pipe is full.
        let limits: &[&[&str]] = match by {
            Some(_) => &[&[]],
            None => &[&["--timeout", "1"], &["--timeout", "5"], &["--timeout", "25"]],
        };
        let child = limits.iter().find_map(|limit| {
            let mut child = started(limit);
            full(&filled, &mut child).then_some(child)
        });
        let child = child.unwrap_or_else(|| panic!("{case}: it ends before the pipe is full"));
        by.into_iter().for_each(|by| signal(&child, by));
        assert_eq!(end_of(child, &case).code(), Some(code), "{case}");
    }
}

#[test]
fn ranks_that_have_ended_lose_nothing_to_a_reader_who_comes_late() {
    let (mut late, filled) = pipe().unwrap();
    let script =
        "i=0; while [ $i -lt 4000 ]; do echo $PMI_RANK of a line that is read late; i=$((i+1)); done";
    let mut command = hca_run(&["-n", "3", "--grace", "0.02", "sh", "-c", script]);
    let mut child = command.stdout(filled.try_clone().unwrap()).spawn().unwrap();
    assert!(full(&filled, &mut child), "it ends before the pipe is full");
    drop((command, filled));
    let mut said = String::new();
    late.read_to_string(&mut said).unwrap();
    assert_eq!(end_of(child, "late").code(), Some(0));
    for rank in 0..3 {
        let line = format!("{rank} of a line that is read late");
        assert_eq!(said.lines().filter(|l| *l == line).count(), 4000, "{rank}");
    }
}

/// A launcher of so many ranks, and a pipe that ends when it, its ranks and all of theirs have ended.
fn traced(ranks: u32, script: &str) -> (Child, impl Fn(&str)) {
    let (mut ends, held) = pipe().unwrap();
    let hca = env!("CARGO_BIN_EXE_hca");
    let mut command = Command::new("sh");
    // The ninth descriptor is open in all of them.
    command.args(["-c", "exec 9>&1 >/dev/null; exec \"$@\"", "sh", hca, "run", "-n", &ranks.to_string()]);
    command.args(["sh", "-c", script]).stdin(Stdio::null()).stdout(held).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    drop(command);
    let (told, ended) = channel();
    std::thread::spawn(move || told.send(ends.read_to_end(&mut Vec::new()).map(drop)));
    let all_end = move |case: &str| match ended.recv_timeout(SOON) {
        Ok(end) => end.unwrap(),
        Err(_) => panic!("{case}: somebody goes on"),
    };
    (child, all_end)
}

#[test]
fn a_launcher_that_is_killed_while_it_starts_ranks_leaves_nobody_behind() {
    const RANKS: u32 = 8;
    for nth in 0..RANKS {
        // The first thing that this rank does is to kill its launcher, which starts the next one meanwhile.
        let script =
            format!("[ $PMI_RANK = {nth} ] && kill -9 $PPID; sleep 1000 & while :; do sleep 1000; done");
        let (mut child, all_end) = traced(RANKS, &script);
        assert!(!child.wait().unwrap().success());
        all_end(&format!("killed by rank {nth}"));
    }
}

#[test]
fn a_launcher_that_is_killed_with_its_guard_leaves_no_rank_behind() {
    let (mut child, all_end) = traced(3, "exec sleep 1000");
    let guard = || {
        let pid = child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is_guard = |pid: &&str| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("run-guard")
        };
        children.split_whitespace().find(is_guard).and_then(|pid| Pid::from_raw(pid.parse().unwrap()))
    };
    let begun = Instant::now();
    let guard = loop {
        match guard() {
            Some(guard) => break guard,
            None => assert!(begun.elapsed() < SOON, "there is no guard"),
        }
        std::thread::yield_now();
    };
    kill_process(guard, Signal::KILL).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    all_end("without a guard");
}

#[test]
fn who_does_not_speak_pmi_is_named_with_what_he_said() {
    let long = "x".repeat(5000);
    for (said, shown, why) in [
        ("GET / HTTP/1.1", "\"GET / HTTP/1.1\"", "it is not made of key=value"),
        ("cmd=dance", "\"cmd=dance\"", "PMI-1 has no such request"),
        (&long, "\"xxxxxxxx", "the line is longer than 4096 bytes"),
    ] {
        // The others end by themselves, as programs do that know of no job.
        let script = "[ $PMI_RANK = 1 ] && echo \"$0\" >&$PMI_FD; exit 0";
        let out = hca_run(&["-n", "3", "bash", "-c", script, said]).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{said}");
        let told = text(&out.stderr);
        let line = told.lines().find(|l| l.contains("rank 1 does not speak PMI-1")).unwrap_or_default();
        assert!(line.contains(shown) && line.contains(why), "{said}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(line.len() < 400, "{line}");
    }
}
