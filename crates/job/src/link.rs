//! A descriptor that carries lines, with a deadline for each call.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hca_process::in_time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::{Doing, JobError, LineFault};
use crate::line::{Line, MAX_LINE_BYTES};

/// Bytes of a line that an error quotes.
const QUOTED: usize = 160;
/// How long a connection that is dropped waits for its last answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that asks and is answered, a line each.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    /// Held for a question and its answer.
    received: Mutex<Received>,
    /// Held while a line is sent.
    send_lock: Mutex<()>,
    timeout: Duration,
}

#[derive(Debug)]
struct Received {
    bytes: Vec<u8>,
    /// How many of them are of the line that was lent last.
    used: usize,
    /// No answer belongs to its question any more.
    broken: bool,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd, timeout: Duration) -> Self {
        let received = Received { bytes: Vec::new(), used: 0, broken: false };
        Self { socket, received: Mutex::new(received), send_lock: Mutex::new(()), timeout }
    }

    /// Asks, and gives the answer of this name to `read`. Whatever keeps question and answer from belonging together
    /// ends the use of the link.
    pub(crate) fn ask<T>(
        &self,
        doing: Doing,
        question: &str,
        answer: &'static str,
        read: impl FnOnce(Line<'_>) -> Result<T, LineFault>,
    ) -> Result<Result<T, Refusal>, JobError> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        if received.broken {
            return Err(JobError::Broken);
        }
        received.broken = true;
        let deadline = in_time(self.timeout);
        self.write(doing, question, deadline)?;
        let line = self.receive_line(doing, &mut received, deadline)?;
        let understood = Line::parse(line).and_then(|l| l.expect(answer)).and_then(|l| {
            let code = l.value("rc").map_or(Ok(0), |_| l.number("rc"))?;
            Ok(if code == 0 { Ok(read(l)?) } else { Err(Refusal::of(code, l)) })
        });
        let said = understood.map_err(|fault| JobError::Line { doing, line: quote(line), fault })?;
        received.broken = false;
        Ok(said)
    }

    /// Hears a line that was not asked for.
    pub(crate) fn next<T>(
        &self,
        doing: Doing,
        wanted: &'static str,
        read: impl FnOnce(Line<'_>) -> Result<T, LineFault>,
    ) -> Result<T, JobError> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let line = self.receive_line(doing, &mut received, in_time(self.timeout))?;
        let understood = Line::parse(line).and_then(|l| l.expect(wanted)).and_then(read);
        understood.map_err(|fault| JobError::Line { doing, line: quote(line), fault })
    }

    /// Sends a line that has no answer, also while another thread waits for an answer.
    pub(crate) fn send_line(&self, doing: Doing, line: &str) -> Result<(), JobError> {
        self.write(doing, line, in_time(self.timeout))
    }

    /// Says a last line, and waits a moment for its answer, whatever that is: a launcher that finds the connection
    /// closed when it answers takes that for a failure.
    pub(crate) fn hang_up(&self, line: &str) {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = in_time(self.timeout.min(CLOSE_TIMEOUT));
        // A failure can't be reported.
        if !std::mem::replace(&mut received.broken, true) && self.write(Doing::Leave, line, deadline).is_ok()
        {
            let _ = self.receive_line(Doing::Leave, &mut received, deadline);
        }
    }

    fn write(&self, doing: Doing, line: &str, deadline: Instant) -> Result<(), JobError> {
        let _alone = self.send_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => self.wait(doing, PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(JobError::Closed { doing }),
                Err(e) => return Err(JobError::Connection { doing, source: e.into() }),
            }
        }
        Ok(())
    }

    /// The next line, without its end.
    fn receive_line<'a>(
        &self,
        doing: Doing,
        received: &'a mut Received,
        deadline: Instant,
    ) -> Result<&'a [u8], JobError> {
        let used = std::mem::take(&mut received.used);
        received.bytes.drain(..used);
        let mut looked = 0;
        loop {
            if let Some(end) = received.bytes[looked..].iter().position(|&b| b == b'\n') {
                received.used = looked + end + 1;
                return Ok(&received.bytes[..looked + end]);
            }
            looked = received.bytes.len();
            if looked > MAX_LINE_BYTES {
                let fault = LineFault::TooLong { limit: MAX_LINE_BYTES };
                return Err(JobError::Line { doing, line: quote(&received.bytes), fault });
            }
            let mut room = [0; 2048];
            match recv(&self.socket, &mut room[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(JobError::Closed { doing }),
                Ok((got, _)) => received.bytes.extend_from_slice(&room[..got]),
                Err(Errno::AGAIN) => self.wait(doing, PollFlags::IN, deadline)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(JobError::Connection { doing, source: e.into() }),
            }
        }
    }

    fn wait(&self, doing: Doing, flags: PollFlags, deadline: Instant) -> Result<(), JobError> {
        match ready(&self.socket, flags, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(JobError::TimedOut { doing, timeout: self.timeout }),
            Err(source) => Err(JobError::Connection { doing, source }),
        }
    }
}

/// Waits until the descriptor is ready; false if it was not by the deadline.
pub(crate) fn ready(fd: impl AsFd, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1 << 30, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&fd, flags)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// A refusal of the other side.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: i64,
    message: Box<str>,
    /// The rank that aborted the job, and its code.
    aborted: Option<(u32, i32)>,
    /// The rank because of which no barrier completes.
    pub(crate) left: Option<u32>,
    /// How many processes it counts; of a server of ours.
    pub(crate) size: Option<u32>,
    /// Which of the reasons of a server of ours.
    pub(crate) reason: Option<Box<str>>,
}

impl Refusal {
    fn of(code: i64, line: Line<'_>) -> Self {
        let aborted = line.rank("aborted").ok().zip(line.number("exitcode").ok());
        let words = line.rest("msg").or_else(|| line.rest("message")).unwrap_or("no reason given");
        let words = words.split(' ').take_while(|w| !w.contains('=')).collect::<Vec<_>>().join(" ");
        let words: String = words.chars().take(QUOTED).collect();
        Self {
            code,
            message: crate::line::message(&words),
            aborted: aborted.map(|(rank, code)| (rank, code as i32)),
            left: line.rank("left").ok(),
            size: line.rank("size").ok(),
            reason: line.value("reason").map(Into::into),
        }
    }

    /// As an error.
    pub(crate) fn error(self, doing: Doing) -> JobError {
        match (self.aborted, self.left) {
            (Some((rank, code)), _) => JobError::Aborted { rank, code, message: self.message },
            (None, Some(rank)) => JobError::BarrierFailed { rank },
            _ => JobError::Refused { doing, code: self.code, message: self.message },
        }
    }

    /// Whether the job was ended by a process.
    pub(crate) fn is_abort(&self) -> bool {
        self.aborted.is_some()
    }
}

fn quote(line: &[u8]) -> Box<str> {
    String::from_utf8_lossy(&line[..line.len().min(QUOTED)]).into()
}
