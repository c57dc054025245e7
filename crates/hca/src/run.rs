//! `hca run`: starts the processes of a job on this machine, serves PMI-1 to them, and sees all of them end.
//!
//! Each process leads a process group of its own. One that has ended is not reaped before the end of the job: for so long its
//! number stands for its group, and a signal reaches nobody else. What a group has left is killed at the end. A
//! process that left its group is on its own. Where this process is killed, its [`guard`] ends the groups.

pub(crate) mod guard;
mod output;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hca_job::JobError;
use hca_job::server::{Abort, Server};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use thiserror::Error;

use self::guard::Guard;
use self::output::Outputs;
use crate::cli::RunArgs;
use crate::open::DEVICE_VARIABLE;

/// What a shell ends with when it finds no program.
const NOT_FOUND: u8 = 127;
/// What `timeout` ends with.
const TIMED_OUT: u8 = 124;

/// Why a job was not started, or is not seen to its end.
#[derive(Debug, Error)]
enum RunError {
    #[error("{program:?} can't be started: {source}; give its path, or the name of a program in PATH")]
    Program { program: std::ffi::OsString, source: io::Error },
    #[error(
        "rank {rank} can't be started: {source}; `ulimit -u` and `ulimit -n` show what may be in the way"
    )]
    Start { rank: u32, source: io::Error },
    #[error("the processes can't be watched: {0}")]
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
    match Running::start(args).and_then(Running::see_the_end) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("hca: {e}");
            ExitCode::from(e.code())
        }
    }
}

/// A process of the job.
struct Process {
    rank: u32,
    child: Child,
    /// Its number, and its group's.
    pid: Pid,
    ended: Option<End>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Code(i32),
    Signal(i32),
}

/// Why all processes are ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    /// One failed.
    Failed(u32, End),
    /// One asked for it.
    Abort(Abort),
    /// This process was told to end.
    Told(i32),
    /// The limit.
    TimedOut,
}

impl Cause {
    /// What this process ends with.
    fn code(&self) -> u8 {
        match self {
            Self::Failed(_, End::Code(code)) => code_of(*code),
            Self::Failed(_, End::Signal(signal)) | Self::Told(signal) => ((128 + signal) & 0xff) as u8,
            Self::Abort(abort) => code_of(abort.code),
            Self::TimedOut => TIMED_OUT,
        }
    }
}

/// An exit code that tells of a failure.
fn code_of(code: i32) -> u8 {
    if (1..=255).contains(&code) { code as u8 } else { 1 }
}

/// What wakes this process.
struct Wakes {
    int: UnixStream,
    term: UnixStream,
    child: UnixStream,
    /// A process asked to end all.
    abort: Arc<OwnedFd>,
}

impl Wakes {
    fn new() -> io::Result<Self> {
        let on = |signal| -> io::Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal, write)?;
            Ok(read)
        };
        let abort = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { int: on(SIGINT)?, term: on(SIGTERM)?, child: on(SIGCHLD)?, abort })
    }

    /// Waits for something, until then; the signals that came to end this process.
    fn wait(&self, until: Option<Instant>) -> io::Result<Vec<i32>> {
        let left = until.map(|u| u.saturating_duration_since(Instant::now()));
        let left = left.map(|l| Timespec::try_from(l).unwrap_or(Timespec { tv_sec: 1 << 30, tv_nsec: 0 }));
        let sources = [self.int.as_fd(), self.term.as_fd(), self.child.as_fd(), self.abort.as_fd()];
        let mut fds = sources.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => return Ok(Vec::new()),
            done => done?,
        };
        let mut told = Vec::new();
        for (at, fd) in sources.iter().enumerate() {
            // One byte a signal, and eight of the counter.
            let ready = fds[at].revents().contains(PollFlags::IN);
            let came = if ready { rustix::io::read(fd, &mut [0; 8]).unwrap_or(0) } else { 0 };
            if at < 2 {
                told.extend(std::iter::repeat_n([SIGINT, SIGTERM][at], came));
            }
        }
        Ok(told)
    }
}

/// A job that runs.
struct Running {
    processes: Vec<Process>,
    server: Server,
    guard: Guard,
    outputs: Option<Outputs>,
    wakes: Wakes,
    abort: Arc<Mutex<Option<Abort>>>,
    cause: Option<Cause>,
    grace: Duration,
    /// When all are ended for taking too long.
    limit: Option<Instant>,
    /// When those are killed that were told to end.
    kill_at: Option<Instant>,
}

impl Running {
    fn start(args: &RunArgs) -> Result<Self, RunError> {
        let wakes = Wakes::new().map_err(RunError::Watch)?;
        let guard = Guard::start().map_err(RunError::Watch)?;
        let abort = Arc::new(Mutex::new(None));
        let name = format!("hca-{}-{:x}", std::process::id(), nanoseconds());
        let server = Server::start(args.processes, &name, {
            let (abort, wake) = (abort.clone(), wakes.abort.clone());
            move |asked| {
                *abort.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked);
                // It is full only when it has not been read yet.
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }
        })?;
        let several = args.processes > 1;
        let prefix = args.prefix || !args.no_prefix && several && io::stdout().is_terminal();
        let mut running = Self {
            processes: Vec::new(),
            server,
            guard,
            outputs: None,
            wakes,
            abort,
            cause: None,
            grace: args.grace,
            limit: None,
            kill_at: None,
        };
        // A single process may as well have this one's own streams.
        let mut sources = (several || prefix).then(output::Sources::new);
        for rank in 0..args.processes {
            if let Err(e) = running.start_one(rank, args, sources.as_mut().map(|s| (s, prefix))) {
                running.signal_all(Signal::KILL);
                running.bury();
                return Err(e);
            }
        }
        running.outputs = sources.map(output::Sources::pass_on).transpose().map_err(RunError::Watch)?;
        running.limit = args.timeout.map(|t| Instant::now() + t);
        Ok(running)
    }

    fn start_one(
        &mut self,
        rank: u32,
        args: &RunArgs,
        sources: Option<(&mut output::Sources, bool)>,
    ) -> Result<(), RunError> {
        let failed = |source| RunError::Start { rank, source };
        let seat = self.server.seat(rank)?;
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
        if let Some(device) = &args.device {
            command.env(DEVICE_VARIABLE, device.to_string());
        }
        command.envs(args.env.iter().map(|(name, value)| (name, value)));
        // In a group of its own nobody reads a terminal.
        if rank > 0 || io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if sources.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
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
        self.guard.watch(pid);
        if let Some((sources, prefix)) = sources {
            let out = child.stdout.take().expect("its output is a pipe");
            let err = child.stderr.take().expect("its errors are a pipe");
            sources.add(prefix.then_some(rank), out.into(), err.into()).map_err(failed)?;
        }
        self.processes.push(Process { rank, child, pid, ended: None });
        Ok(())
    }

    /// Sees all processes end; what this one ends with.
    fn see_the_end(mut self) -> Result<u8, RunError> {
        let done = self.watch();
        if done.is_err() {
            self.signal_all(Signal::KILL);
        }
        self.bury();
        done.map_err(RunError::Watch)?;
        Ok(self.cause.map_or(0, |cause| cause.code()))
    }

    fn watch(&mut self) -> io::Result<()> {
        while self.look()? {
            let until = [self.limit, self.kill_at].into_iter().flatten().min();
            for signal in self.wakes.wait(until)? {
                self.told(signal);
            }
            if self.limit.is_some_and(|at| at <= Instant::now()) {
                self.limit = None;
                self.end_all(Cause::TimedOut, Signal::TERM);
            }
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.kill_at = None;
                for late in self.processes.iter().filter(|p| p.ended.is_none()) {
                    eprintln!("hca: rank {} did not end within {:?}, and is killed", late.rank, self.grace);
                }
                self.signal_all(Signal::KILL);
            }
        }
        Ok(())
    }

    /// Looks who has ended, and who asked to end all; false once nobody is left.
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
        let asked = self.abort.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(abort) = asked {
            self.end_all(Cause::Abort(abort), Signal::TERM);
        }
        if let Some((rank, end)) = failed {
            self.end_all(Cause::Failed(rank, end), Signal::TERM);
        }
        // Behind all looks: who waits for one that has ended hears of it now, and fails, too.
        ended.into_iter().for_each(|rank| self.server.ended(rank));
        Ok(self.processes.iter().any(|p| p.ended.is_none()))
    }

    /// This process was told to end: so are all others, and killed if it is told again.
    fn told(&mut self, signal: i32) {
        if matches!(self.cause, Some(Cause::Told(_))) {
            self.kill_at = None;
            self.signal_all(Signal::KILL);
        } else {
            let pass_on = if signal == SIGINT { Signal::INT } else { Signal::TERM };
            // It counts even where a process failed before: they are told what this one was told.
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
        match &cause {
            Cause::Failed(rank, End::Code(code)) => {
                eprintln!("hca: rank {rank} ended with exit code {code}{all}");
            }
            Cause::Failed(rank, End::Signal(signal)) => {
                eprintln!("hca: rank {rank} was ended by signal {signal}{}{all}", named(*signal));
            }
            Cause::Abort(a) => {
                eprintln!("hca: rank {} aborted the job with code {}: {}", a.rank, a.code, a.message);
            }
            Cause::TimedOut => {
                eprintln!("hca: the job takes longer than --timeout allows; all processes are ended");
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

    /// The end: what groups have left is killed, output passed on, and processes are reaped.
    fn bury(&mut self) {
        for process in self.processes.iter().filter(|p| p.ended.is_some()) {
            let _ = kill_process_group(process.pid, Signal::KILL);
        }
        if let Some(outputs) = self.outputs.take() {
            outputs.finish();
        }
        for process in &mut self.processes {
            // Nothing can be done for one that can't be waited for.
            let _ = process.child.wait();
        }
        self.guard.dismiss();
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
