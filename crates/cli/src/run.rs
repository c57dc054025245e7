//! `hca run`: starts the processes of a job on this machine, serves PMI-1 to them, and waits for all of them to end.
//!
//! Each process leads a process group of its own. An ended process is not reaped before the end of the job: until then
//! its number stands for its group, and a signal reaches no other process. The remaining processes of a group are
//! killed at the end. A process that left its group is not followed. If this process is killed, at any point, its
//! [`guard`] ends the groups, and each started process is killed with this process's main thread, which started it.
//!
//! The main thread waits for signals, processes and times, and never writes: [`output`] has threads for that.

pub(crate) mod guard;
mod output;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hca::DEVICE_VARIABLE;
use hca_job::JobError;
use hca_job::server::{Abort, Event, NotPmi, Server};
use hca_job::tether::tether;
use hca_perf::interrupt::is_ignored;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use thiserror::Error;

use self::guard::Guard;
use self::output::{Bell, Outputs, Sources, Stream};
use crate::args::RunArgs;
use crate::output::{OutputError, tell};
use crate::perf::device_if_said;

/// The exit code of a shell that does not find a program.
const NOT_FOUND: u8 = 127;
/// What `timeout` ends with.
const TIMED_OUT: u8 = 124;
/// How long words of this process have to be read, once it is to end at once.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The reason why a job was not started, or is not seen to its end.
#[derive(Debug, Error)]
enum RunError {
    #[error("can't start {program:?}: {source}; give its path, or the name of a program in PATH")]
    Program { program: std::ffi::OsString, source: io::Error },
    #[error("can't start rank {rank}: {source}; `ulimit -u` and `ulimit -n` show limits that may cause this")]
    Start { rank: u32, source: io::Error },
    #[error("can't watch the processes: {0}")]
    Watch(#[source] io::Error),
    #[error(transparent)]
    Job(#[from] JobError),
}

impl RunError {
    fn code(&self) -> u8 {
        if matches!(self, Self::Program { .. }) { NOT_FOUND } else { 1 }
    }
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let started = Wakes::new().and_then(|wakes| Ok((OwnOutput::new(&wakes)?, wakes)));
    let (own_output, wakes) = match started {
        Ok(both) => both,
        Err(e) => {
            tell!("hca: {}", RunError::Watch(e));
            return ExitCode::FAILURE;
        }
    };
    let device = match device_if_said(&args.device) {
        Ok(device) => device.map(|url| url.to_string()),
        Err(e) => {
            tell!("hca: {e}");
            return ExitCode::FAILURE;
        }
    };
    match Running::start(args, device, wakes, own_output.clone()).and_then(Running::see_the_end) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            own_output.say(&e);
            own_output.0.wait_idle(args.grace);
            ExitCode::from(e.code())
        }
    }
}

/// This process's own messages, on standard error, in order with the passed-on output.
#[derive(Clone)]
struct OwnOutput(Stream);

impl OwnOutput {
    fn new(wakes: &Wakes) -> io::Result<Self> {
        Ok(Self(Stream::start("hca-run-errors", io::stderr(), &wakes.room, &wakes.idle)?))
    }

    fn say(&self, words: &dyn std::fmt::Display) {
        self.0.push(format!("hca: {words}\n").into_bytes());
    }
}

/// A process of the job.
struct Process {
    rank: u32,
    child: Child,
    /// The number, and its group's.
    pid: Pid,
    ended: Option<End>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Code(i32),
    Signal(i32),
}

/// The reason why all processes are ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    /// One failed.
    Failed(u32, End),
    /// One asked for it.
    Abort(Abort),
    /// A signal asked this process to end.
    Told(i32),
    /// The limit.
    TimedOut,
}

impl Cause {
    /// The exit code of this process.
    fn code(&self) -> u8 {
        match self {
            Self::Failed(_, End::Code(code)) => code_of(*code),
            Self::Failed(_, End::Signal(signal)) | Self::Told(signal) => ((128 + signal) & 0xff) as u8,
            Self::Abort(abort) => code_of(abort.code),
            Self::TimedOut => TIMED_OUT,
        }
    }
}

/// An exit code that is not 0.
fn code_of(code: i32) -> u8 {
    if (1..=255).contains(&code) { code as u8 } else { 1 }
}

/// What wakes this process.
struct Wakes {
    /// Those that end this process.
    signals: Vec<(i32, UnixStream)>,
    child: UnixStream,
    /// The server has heard something.
    heard: Bell,
    /// All output is passed on.
    idle: Bell,
    /// For the thread that reads output: there is room for more.
    room: Bell,
}

impl Wakes {
    fn new() -> io::Result<Self> {
        let on = |signal| -> io::Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal, write)?;
            Ok(read)
        };
        let mut signals = Vec::new();
        // `nohup` ignores SIGHUP, so that the program continues.
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|s| *s != SIGHUP || !is_ignored(*s)) {
            signals.push((signal, on(signal)?));
        }
        let (heard, idle, room) = (Bell::new()?, Bell::new()?, Bell::new()?);
        Ok(Self { signals, child: on(SIGCHLD)?, heard, idle, room })
    }

    /// Waits for something, until then; the signals that came to end this process.
    fn wait(&self, until: Option<Instant>) -> io::Result<Vec<i32>> {
        let left = until.map(|u| u.saturating_duration_since(Instant::now()));
        let left = left.map(|l| Timespec::try_from(l).unwrap_or(Timespec { tv_sec: 1 << 30, tv_nsec: 0 }));
        let others = [self.child.as_fd(), self.heard.as_fd(), self.idle.as_fd()];
        let sources = self.signals.iter().map(|(_, fd)| fd.as_fd()).chain(others);
        let mut fds: Vec<_> = sources.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => return Ok(Vec::new()),
            done => done?,
        };
        let mut signals = Vec::new();
        for (at, fd) in fds.iter().enumerate() {
            // One byte a signal, and eight of a counter.
            let ready = fd.revents().contains(PollFlags::IN);
            let came = if ready { rustix::io::read(fd, &mut [0; 8]).unwrap_or(0) } else { 0 };
            if let Some((signal, _)) = self.signals.get(at) {
                signals.extend(std::iter::repeat_n(*signal, came));
            }
        }
        Ok(signals)
    }
}

/// A job that runs.
struct Running {
    processes: Vec<Process>,
    /// The device name of each process, if the arguments name a device.
    device: Option<String>,
    /// None once all processes have ended.
    server: Option<Server>,
    guard: Guard,
    outputs: Option<Outputs>,
    wakes: Wakes,
    own_output: OwnOutput,
    /// Events of the server.
    heard: Arc<Mutex<Vec<Event>>>,
    cause: Option<Cause>,
    /// The number of signals that asked this process to end.
    signals: u32,
    /// The job took too long.
    timed_out: bool,
    grace: Duration,
    /// When all are ended for taking too long.
    limit: Option<Instant>,
    /// The time at which processes that were asked to end are killed.
    kill_at: Option<Instant>,
}

impl Running {
    fn start(
        args: &RunArgs,
        device: Option<String>,
        wakes: Wakes,
        own_output: OwnOutput,
    ) -> Result<Self, RunError> {
        let guard = Guard::start().map_err(RunError::Watch)?;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let name = format!("hca-{}-{:x}", std::process::id(), nanoseconds());
        let server = Server::start(args.processes, &name, {
            let (heard, wake) = (heard.clone(), wakes.heard.clone());
            move |event| {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                wake.ring();
            }
        })?;
        let several = args.processes > 1;
        let prefix = args.prefix || !args.no_prefix && several && io::stdout().is_terminal();
        let mut running = Self {
            processes: Vec::new(),
            device,
            server: Some(server),
            guard,
            outputs: None,
            wakes,
            own_output,
            heard,
            cause: None,
            signals: 0,
            timed_out: false,
            grace: args.grace,
            limit: None,
            kill_at: None,
        };
        // A single process may as well have this one's own streams.
        let mut sources =
            (several || prefix).then(|| running.sources()).transpose().map_err(RunError::Watch)?;
        for rank in 0..args.processes {
            if let Err(e) = running.start_one(rank, args, sources.as_mut().map(|s| (s, prefix))) {
                running.signal_all(Signal::KILL);
                running.finish();
                return Err(e);
            }
        }
        let (room, idle) = (running.wakes.room.clone(), running.wakes.idle.clone());
        let outputs = sources.map(|s| s.pass_on(&room, &idle)).transpose();
        running.outputs = outputs.map_err(RunError::Watch)?;
        running.limit = args.timeout.map(|t| Instant::now() + t);
        Ok(running)
    }

    /// Sources of output that go to this process's streams.
    fn sources(&self) -> io::Result<Sources> {
        let (room, idle) = (&self.wakes.room, &self.wakes.idle);
        Ok(Sources::new(Stream::start("hca-run-lines", io::stdout(), room, idle)?, self.own_output.0.clone()))
    }

    fn start_one(
        &mut self,
        rank: u32,
        args: &RunArgs,
        sources: Option<(&mut Sources, bool)>,
    ) -> Result<(), RunError> {
        let failed = |source| RunError::Start { rank, source };
        let seat = self.server.as_ref().expect("the job begins").attach(rank)?;
        // The next process is started when this one has it, and it is closed here.
        fcntl_setfd(&seat, FdFlags::empty()).map_err(|e| failed(e.into()))?;
        let (program, rest) = args.command.split_first().expect("clap asks for a program");
        let mut command = Command::new(program);
        command.args(rest).process_group(0);
        for name in ["PMI_PORT", "PMI_ID", "PMI_SPAWNED", hca_job::JOB_VARIABLE] {
            command.env_remove(name);
        }
        command.env("PMI_FD", seat.as_raw_fd().to_string());
        command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", args.processes.to_string());
        if let Some(device) = &self.device {
            command.env(DEVICE_VARIABLE, device);
        }
        command.envs(args.env.iter().map(|(name, value)| (name, value)));
        // A process in its own group can't read the terminal.
        if rank > 0 || io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if sources.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        tether(&mut command, self.guard.pipe());
        let mut child = command.spawn().map_err(|source| match source.raw_os_error() {
            Some(code)
                if [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE]
                    .iter()
                    .any(|e| e.raw_os_error() == code) =>
            {
                failed(source)
            }
            _ => RunError::Program { program: program.clone(), source },
        })?;
        let pid = Pid::from_raw(child.id() as i32).expect("a process has a number");
        if let Some((sources, prefix)) = sources {
            let out = child.stdout.take().expect("its output is a pipe");
            let err = child.stderr.take().expect("its errors are a pipe");
            sources.add(prefix.then_some(rank), out.into(), err.into()).map_err(failed)?;
        }
        self.processes.push(Process { rank, child, pid, ended: None });
        Ok(())
    }

    /// Waits for all processes to end; returns this one's exit code.
    fn see_the_end(mut self) -> Result<u8, RunError> {
        let done = self.watch();
        if done.is_err() {
            self.signal_all(Signal::KILL);
        }
        self.finish();
        done.map_err(RunError::Watch)?;
        let is_lost = self.tell_of_lost_output();
        Ok(match self.cause {
            // SIGPIPE follows from the lost output.
            None | Some(Cause::Failed(_, End::Signal(SIGPIPE))) if is_lost => 1,
            cause => cause.map_or(0, |cause| cause.code()),
        })
    }

    /// Whether output of the processes could not be written, as on a full disk.
    fn tell_of_lost_output(&self) -> bool {
        let Some(source) = self.outputs.as_ref().and_then(Outputs::failure) else {
            return self.own_output.0.failure().is_some();
        };
        self.own_output.say(&OutputError::from(io::Error::from(source)));
        self.own_output.0.wait_idle(self.grace);
        true
    }

    fn watch(&mut self) -> io::Result<()> {
        while self.look()? {
            let until = [self.limit, self.kill_at].into_iter().flatten().min();
            for signal in self.wakes.wait(until)? {
                self.signals(signal);
            }
            if self.limit.is_some_and(|at| at <= Instant::now()) {
                (self.limit, self.timed_out) = (None, true);
                self.end_all(Cause::TimedOut, Signal::TERM);
            }
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.kill_at = None;
                for timed_out in self.processes.iter().filter(|p| p.ended.is_none()) {
                    let (rank, grace) = (timed_out.rank, self.grace);
                    self.own_output
                        .say(&format_args!("rank {rank} did not end within {grace:?}, and is killed"));
                }
                self.signal_all(Signal::KILL);
            }
        }
        Ok(())
    }

    /// Collects processes that have ended, and abort requests; returns false once no process is left.
    fn look(&mut self) -> io::Result<bool> {
        let mut failed = None;
        let mut ended = Vec::new();
        for process in self.processes.iter_mut().filter(|p| p.ended.is_none()) {
            let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let Some(status) = waitid(WaitId::Pid(process.pid), how)? else { continue };
            let end = match status.terminating_signal() {
                Some(signal) => End::Signal(signal),
                None => End::Code(status.exit_status().unwrap_or(1)),
            };
            process.ended = Some(end);
            ended.push(process.rank);
            // Of several that are found at once, one that a signal ended was hardly ended by the failure of others.
            if end != End::Code(0) && !matches!(failed, Some((_, End::Signal(_)))) {
                let by_signal = matches!(end, End::Signal(_));
                failed = failed.filter(|_| !by_signal).or(Some((process.rank, end)));
            }
        }
        // A process that aborts the job may end at once: its word counts, and not its end.
        self.server.iter().for_each(|server| ended.iter().for_each(|rank| server.hear(*rank)));
        self.handle_events();
        if let Some((rank, end)) = failed {
            self.end_all(Cause::Failed(rank, end), Signal::TERM);
        }
        // After all processes were checked: those that wait for an ended one are informed now, and fail, too.
        let server = self.server.iter();
        server.for_each(|server| ended.iter().for_each(|rank| server.ended(*rank)));
        Ok(self.processes.iter().any(|p| p.ended.is_none()))
    }

    /// Handles the server's events.
    fn handle_events(&mut self) {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner));
        for event in heard {
            match event {
                Event::Abort(abort) => self.end_all(Cause::Abort(abort), Signal::TERM),
                Event::NotPmi(NotPmi { rank, line, fault }) => self.own_output.say(&format_args!(
                    "rank {rank} does not speak PMI-1 and is removed from the job, whose barriers fail from now on: it sent {line:?} on the descriptor PMI_FD, and {fault}; check that nothing else writes there, and that its program speaks PMI-1"
                )),
                _ => {}
            }
        }
    }

    /// Forwards a signal to end to all processes; a second one kills them.
    fn signals(&mut self, signal: i32) {
        self.signals += 1;
        if self.signals > 1 {
            self.kill_at = None;
            self.signal_all(Signal::KILL);
        } else {
            let pass_on = match signal {
                SIGINT => Signal::INT,
                SIGHUP => Signal::HUP,
                _ => Signal::TERM,
            };
            // The signal counts even if a process failed before: the others get the same signal.
            self.cause.get_or_insert(Cause::Told(signal));
            self.signal_all(pass_on);
            self.kill_at.get_or_insert(Instant::now() + self.grace);
        }
    }

    /// Ends all, for the first cause only.
    fn end_all(&mut self, cause: Cause, by: Signal) {
        if self.cause.is_some() {
            return;
        }
        let others = self.processes.iter().filter(|p| p.ended.is_none()).count();
        let all = if others > 0 { "; all others are ended" } else { "" };
        let say = |words: std::fmt::Arguments<'_>| self.own_output.say(&words);
        match &cause {
            Cause::Failed(rank, End::Code(code)) => {
                say(format_args!("rank {rank} ended with exit code {code}{all}"));
            }
            Cause::Failed(rank, End::Signal(signal)) => {
                say(format_args!("rank {rank} was ended by signal {signal}{}{all}", named(*signal)));
            }
            Cause::Abort(a) => {
                say(format_args!("rank {} aborted the job with code {}: {}", a.rank, a.code, a.message));
            }
            Cause::TimedOut => {
                say(format_args!("the job takes longer than --timeout allows; all processes are ended"));
            }
            Cause::Told(_) => {}
        }
        self.cause = Some(cause);
        self.signal_all(by);
        self.kill_at = Some(Instant::now() + self.grace);
    }

    /// Signals all groups; one whose leader has ended may have others, and one that is empty takes no harm.
    fn signal_all(&self, signal: Signal) {
        for process in &self.processes {
            let _ = kill_process_group(process.pid, signal);
        }
    }

    /// The end: what groups have left is killed, processes are reaped, and output is passed on.
    fn finish(&mut self) {
        for process in self.processes.iter().filter(|p| p.ended.is_some()) {
            let _ = kill_process_group(process.pid, Signal::KILL);
        }
        for process in &mut self.processes {
            // Nothing can be done for one that can't be waited for.
            let _ = process.child.wait();
        }
        self.guard.dismiss();
        // It hears first what processes said before their end.
        self.server = None;
        self.handle_events();
        self.own_output.0.tell_when_idle();
        self.outputs.iter().for_each(Outputs::end);
        self.pass_on_the_rest();
    }

    /// Waits until all output is passed on, as long as its reader wants. After a signal to end, or the job's timeout,
    /// the reader has a time limit.
    fn pass_on_the_rest(&mut self) {
        let grace = if self.signals > 1 { self.grace.min(LAST_WORDS) } else { self.grace };
        let mut give_up = (self.signals > 0 || self.timed_out).then(|| Instant::now() + grace);
        while !self.all_is_passed_on() {
            let now = Instant::now();
            if give_up.is_some_and(|at| at <= now) {
                return self.drop_the_rest();
            }
            if self.limit.is_some_and(|at| at <= now) {
                self.limit = None;
                self.cause.get_or_insert(Cause::TimedOut);
                give_up.get_or_insert(now + self.grace);
            }
            let Ok(signals) = self.wakes.wait([self.limit, give_up].into_iter().flatten().min()) else {
                return;
            };
            for signal in signals {
                self.cause.get_or_insert(Cause::Told(signal));
                self.signals += 1;
                let limit = if self.signals > 1 { now } else { now + self.grace };
                give_up = Some(give_up.map_or(limit, |at| at.min(limit)));
            }
        }
    }

    fn all_is_passed_on(&self) -> bool {
        self.own_output.0.waiting() == 0 && self.outputs.iter().all(Outputs::are_over)
    }

    /// Reports dropped output on standard error.
    fn drop_the_rest(&self) {
        let waiting = self.outputs.as_ref().map_or(0, Outputs::waiting);
        if self.own_output.0.waiting() == 0 && waiting > 0 {
            let words = "of the processes' output are dropped, since no program reads the standard output of `hca run`";
            self.own_output.say(&format_args!("at least {waiting} bytes {words}"));
            self.own_output.0.wait_idle(LAST_WORDS);
        }
    }
}

/// The name of a signal, in brackets.
fn named(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// What tells jobs of one process number apart.
fn nanoseconds() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        for (cause, code) in [
            (Cause::Failed(0, End::Code(3)), 3),
            (Cause::Failed(0, End::Signal(11)), 139),
            (Cause::Told(SIGINT), 130),
            (Cause::Told(SIGTERM), 143),
            (Cause::Told(SIGHUP), 129),
            (Cause::TimedOut, 124),
            (Cause::Abort(Abort { rank: 0, code: 7, message: "".into() }), 7),
            (Cause::Abort(Abort { rank: 0, code: 0, message: "".into() }), 1),
            (Cause::Abort(Abort { rank: 0, code: -1, message: "".into() }), 1),
            (Cause::Abort(Abort { rank: 0, code: 256, message: "".into() }), 1),
        ] {
            assert_eq!(cause.code(), code, "{cause:?}");
        }
    }
}
