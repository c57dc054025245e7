//! Runs the tests, with one mutant after the other.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::build::Program;

/// Bytes of address space that a test program may have: a mutant that asks for ever more ends.
const ADDRESS_SPACE_KIB: u64 = 8 << 20;
/// Seconds of CPU that a group of tests may take beyond ten times what it takes without mutants.
const SPARE_CPU_SECONDS: u64 = 3;
/// Seconds that it may take beyond thirty times as much, whatever else the machine does: at first, and alone.
pub(crate) const HASTE: f64 = 15.0;
pub(crate) const PATIENCE: f64 = 60.0;
/// What all of a program's threads sleep for when nobody will wake them: a busy machine leaves them runnable.
const ASLEEP: Duration = Duration::from_secs(8);

/// A test.
pub(crate) struct Test {
    pub(crate) program: usize,
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// By place: whether the test reaches it.
    pub(crate) seen: Vec<bool>,
    /// How many mutants it caught.
    caught: AtomicU64,
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A test failed.
    Caught,
    /// A test used all its CPU time, which it does on an idle machine, too.
    CaughtByTime,
    /// A test slept, or the machine was busy.
    TooLong,
    Missed,
    /// No test comes by.
    Unreached,
    /// It does not compile.
    Unviable,
}

/// How a run of a program ended.
enum End {
    Passed,
    Failed(Option<String>),
    CpuTime,
    Asleep,
    TooLong,
}

pub(crate) struct Trials {
    pub(crate) programs: Vec<Program>,
    pub(crate) tests: Vec<Test>,
}

impl Trials {
    /// Runs each test by itself, without mutants: which places it reaches, and how long it takes.
    pub(crate) fn new(
        programs: Vec<Program>,
        numbers: usize,
        scratch: &Path,
        jobs: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self, String> {
        let mut tests = Vec::new();
        for (program, runs) in programs.iter().enumerate() {
            let all = names(runs, &[])?;
            let ignored = names(runs, &["--ignored"])?;
            for name in all.into_iter().filter(|name| !ignored.contains(name)) {
                tests.push(Test { program, name, seconds: 0.0, seen: Vec::new(), caught: AtomicU64::new(0) });
            }
        }
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let found: Mutex<HashMap<usize, (f64, Vec<bool>)>> = Mutex::default();
        let failed: Mutex<Option<String>> = Mutex::default();
        std::thread::scope(|scope| {
            for job in 0..jobs {
                let (tests, programs, next, found, failed, done) =
                    (&tests, &programs, &next, &found, &failed, &done);
                let file = scratch.join(format!("seen-{job}"));
                scope.spawn(move || {
                    while let Some((at, test)) =
                        Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, tests.get(n)?)))
                    {
                        let program = &programs[test.program];
                        match alone(program, &test.name, numbers, &file) {
                            Ok(seen) => drop(found.lock().expect("no panics").insert(at, seen)),
                            Err(error) => *failed.lock().expect("no panics") = Some(error),
                        }
                        progress(done.fetch_add(1, Relaxed) + 1, tests.len());
                    }
                });
            }
        });
        if let Some(error) = failed.into_inner().expect("no panics") {
            return Err(error);
        }
        let mut found = found.into_inner().expect("no panics");
        for (at, test) in tests.iter_mut().enumerate() {
            (test.seconds, test.seen) = found.remove(&at).expect("it ran");
        }
        Ok(Self { programs, tests })
    }

    /// Runs the tests that come by a mutant's place.
    pub(crate) fn run(&self, number: u32, place: u32, spare_seconds: f64) -> Outcome {
        let mut tests: Vec<&Test> = self.tests.iter().filter(|test| test.seen[place as usize]).collect();
        if tests.is_empty() {
            return Outcome::Unreached;
        }
        // Those that caught other mutants before and the quick ones first.
        let cost = |test: &Test| (test.seconds + 0.001) / (1 + test.caught.load(Relaxed)) as f64;
        tests.sort_by_cached_key(|test| (cost(test) * 1e9) as u64);
        // Short groups first, then longer ones.
        let (mut from, mut limit) = (0, 0.05);
        while from < tests.len() {
            let mut seconds = 0.0;
            let fits = |test: &&&Test| {
                seconds += test.seconds;
                seconds <= limit
            };
            let count = tests[from..].iter().take_while(fits).count().max(1);
            let outcome = self.group(&tests[from..from + count], number, spare_seconds);
            if outcome != Outcome::Missed {
                return outcome;
            }
            from += count;
            limit *= 8.0;
        }
        Outcome::Missed
    }

    fn group(&self, tests: &[&Test], number: u32, spare_seconds: f64) -> Outcome {
        let mutant = number.to_string();
        for (at, program) in self.programs.iter().enumerate() {
            let tests: Vec<_> = tests.iter().filter(|test| test.program == at).collect();
            if tests.is_empty() {
                continue;
            }
            let seconds: f64 = tests.iter().map(|test| test.seconds).sum();
            let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
            match run(program, &names, ("MUTANT", &mutant), (seconds, spare_seconds)) {
                End::Passed => {}
                End::TooLong => return Outcome::TooLong,
                End::CpuTime | End::Asleep => return Outcome::CaughtByTime,
                End::Failed(name) => {
                    if let Some(test) = name.and_then(|name| tests.iter().find(|test| test.name == name)) {
                        test.caught.fetch_add(1, Relaxed);
                    }
                    return Outcome::Caught;
                }
            }
        }
        Outcome::Missed
    }
}

/// Runs all tests of programs with a mutant built in.
pub(crate) fn run_whole(programs: &[Program]) -> Outcome {
    const USUAL_SECONDS: f64 = 20.0;
    for program in programs {
        match run(program, &[], ("MUTANT", "none"), (USUAL_SECONDS, PATIENCE)) {
            End::Passed => {}
            End::Failed(_) => return Outcome::Caught,
            End::CpuTime | End::Asleep | End::TooLong => return Outcome::CaughtByTime,
        }
    }
    Outcome::Missed
}

/// What takes too long without anything beside it takes too long.
pub(crate) fn by_time(outcome: Outcome) -> Outcome {
    if outcome == Outcome::TooLong { Outcome::CaughtByTime } else { outcome }
}

fn names(program: &Program, args: &[&str]) -> Result<Vec<String>, String> {
    let failed = |e: String| format!("{} does not list its tests: {e}", program.path.display());
    let mut command = Command::new(&program.path);
    let said = command.current_dir(&program.folder).args(["--list", "--format=terse"]).args(args).output();
    let said = String::from_utf8(said.map_err(|e| failed(e.to_string()))?.stdout)
        .map_err(|e| failed(e.to_string()))?;
    Ok(said.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn alone(program: &Program, name: &str, numbers: usize, file: &Path) -> Result<(f64, Vec<bool>), String> {
    fs::write(file, vec![0; numbers + 1]).map_err(|e| format!("{} can't be written: {e}", file.display()))?;
    let path = file.to_str().expect("a path of this tool's own");
    let begun = Instant::now();
    if !matches!(run(program, &[name], ("MUTANT_SEEN", path), (60.0, PATIENCE)), End::Passed) {
        return Err(format!("{name} of {} fails without mutants", program.path.display()));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let seen = fs::read(file).map_err(|e| format!("{path} can't be read: {e}"))?;
    Ok((seconds, seen.into_iter().map(|byte| byte != 0).collect()))
}

/// Runs some tests of a program, one after the other, until one fails.
fn run(program: &Program, tests: &[&str], (key, value): (&str, &str), (usual, spare): (f64, f64)) -> End {
    let cpu = SPARE_CPU_SECONDS + (usual * 10.0).ceil() as u64;
    let limits = format!("ulimit -c 0 && ulimit -v {ADDRESS_SPACE_KIB} && ulimit -t {cpu} && exec \"$@\"");
    let mut child = Command::new("sh")
        .args(["-c", &limits, "sh"])
        .arg(&program.path)
        .args(["--exact", "--test-threads=1"])
        .args(tests)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env(key, value)
        .env("RUST_BACKTRACE", "0")
        // The same cases each time, and a failing one is not made simpler or written down.
        .env("PROPTEST_RNG_SEED", "1")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a shell");
    let until = Instant::now() + Duration::from_secs_f64(spare + usual * 30.0);
    let out = BufReader::new(child.stdout.take().expect("it is piped"));
    let (told, failure) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in out.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if let Some(name) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
                let _ = told.send(name.trim_end_matches(" - should panic").to_owned());
            }
        }
    });
    // The channel closes with the program's output.
    let mut asleep_since = None;
    let how = loop {
        match failure.recv_timeout(Duration::from_millis(250)) {
            Ok(name) => break End::Failed(Some(name)),
            Err(RecvTimeoutError::Disconnected) => return ended(&mut child, until),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = Instant::now();
        asleep_since = if is_asleep(child.id()) { asleep_since.or(Some(now)) } else { None };
        if asleep_since.is_some_and(|since| now - since >= ASLEEP) {
            break End::Asleep;
        }
        if now >= until {
            break End::TooLong;
        }
    };
    end(&mut child);
    how
}

/// Whether all threads of a process sleep.
fn is_asleep(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        // The state follows the name, which is in parentheses.
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S "))
    })
}

fn ended(child: &mut Child, until: Instant) -> End {
    use std::os::unix::process::ExitStatusExt;
    const SIGKILL: i32 = 9;
    const SIGXCPU: i32 = 24;
    loop {
        match child.try_wait().expect("a child of this process") {
            Some(status) if status.success() => return End::Passed,
            Some(status) if matches!(status.signal(), Some(SIGKILL | SIGXCPU)) => return End::CpuTime,
            Some(_) => return End::Failed(None),
            None if Instant::now() >= until => {
                end(child);
                return End::TooLong;
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Ends a program and what it has started.
fn end(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.wait();
}
