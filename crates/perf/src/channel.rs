//! The control channel between the two processes of a measurement: standard input and output of the peer, or TCP
//! between hosts.
//!
//! Every wait has a limit if the other end is on another host. A measuring process sends a heartbeat each
//! [`HEARTBEAT`]; the other end gives up on a process that stays silent on its turn. The reading thread checks the
//! clock, so that the measuring loop need not.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use serde::Serialize;
use thiserror::Error;

use super::control::{Message, PROTOCOL, ToPeer};
use crate::interrupt::{SLICE, interrupted};

/// A line longer than this is no message of ours.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Messages that were read and not taken; the other end waits to send more.
const MAX_QUEUED: usize = 4;
/// The interval of heartbeats of a measuring process to another host.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The time that another host may leave messages unread.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// The idle time and the interval of TCP keepalive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;
/// In place of a time: this end owes an answer.
const OUR_TURN: u64 = u64::MAX;

/// The reason why the two processes lost each other.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(super) enum ControlError {
    /// The other end is gone.
    #[error("the peer closed the control channel; its own message, above or on its host, says why")]
    Closed,
    /// The channel broke.
    #[error("the control channel broke: {0}; check that both hosts are up and run the command again")]
    Io(#[from] std::io::Error),
    /// Nothing came.
    #[error(
        "the peer sent nothing for {0:?}; check whether it hangs, or measures with another host, and run both ends again"
    )]
    Silent(Duration),
    /// The other end does not read.
    #[error("the peer did not read for {0:?}; see whether it hangs, and run both ends again")]
    Deaf(Duration),
    /// The user ended it.
    #[error("it was ended by Ctrl-C")]
    Interrupted,
    /// Something else is at the other end.
    #[error(
        "the peer sent {line:?}, which is not a message of `hca perf` ({why}): check the address and port, and that both ends run the same version"
    )]
    Garbled {
        /// The beginning of the received line.
        line: String,
        /// The reason.
        why: String,
    },
    /// Another version.
    #[error(
        "the peer speaks version {theirs} of the control protocol, this end {PROTOCOL}: run the same version of `hca` on both ends"
    )]
    Version {
        /// The peer's.
        theirs: u32,
    },
    /// The peer reports an error.
    #[error("the peer: {0}")]
    Peer(String),
    /// More than this end gives.
    #[error(
        "the measurement needs {needed} MiB of memory, and this end has {given} MiB: measure smaller messages, or start it with a larger --memory"
    )]
    Memory {
        /// The needed memory, in MiB.
        needed: u64,
        /// The allowed memory, in MiB.
        given: u64,
    },
    /// The other side's memory is shorter than the messages that go there.
    #[error(
        "the peer offers {len} bytes of memory for messages that need {needed}: run the same version of `hca` on both ends"
    )]
    Window {
        /// The offered length.
        len: u64,
        /// The needed length.
        needed: u64,
    },
    /// A message out of turn.
    #[error("the peer sent {0} out of turn: run the same version of `hca` on both ends")]
    OutOfTurn(String),
}

/// Whose turn it is, and since when.
struct Turn {
    begun: Instant,
    /// When this end spoke last, in ms since `begun`; [`OUR_TURN`] while it owes an answer.
    spoke: AtomicU64,
}

impl Turn {
    fn ours(&self) {
        self.spoke.store(OUR_TURN, Ordering::Relaxed);
    }
    fn theirs(&self) {
        self.spoke.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
    /// Whether the other end, heard last at `heard`, has said nothing for this time, though it was its turn.
    fn is_silent_for(&self, limit: Duration, heard: Instant) -> bool {
        match self.spoke.load(Ordering::Relaxed) {
            OUR_TURN => false,
            ms => heard.max(self.begun + Duration::from_millis(ms)).elapsed() > limit,
        }
    }
}

/// One end of the conversation; it yields messages of type `In`.
pub(super) struct Channel<In> {
    out: Box<dyn Write + Send>,
    lines: Receiver<Result<In, ControlError>>,
    /// Messages that were read, and the end of the channel.
    arrived: Arc<AtomicU64>,
    taken: u64,
    turn: Arc<Turn>,
    /// The time of the next heartbeat.
    beat_at: Option<Instant>,
    /// Ctrl-C is for the process at the other end, which tells this one.
    outlives_ctrl_c: bool,
}

impl<In: Message> Channel<In> {
    /// A channel over a pair of streams. A thread reads, so that a measuring loop sees in one load whether a message
    /// waits. With a limit of silence, reads of the input return from time to time.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn new(
        input: impl Read + Send + 'static,
        out: impl Write + Send + 'static,
        silence: Option<Duration>,
    ) -> std::io::Result<Self> {
        let (tx, lines) = sync_channel(MAX_QUEUED);
        let arrived = Arc::new(AtomicU64::new(0));
        let turn = Arc::new(Turn { begun: Instant::now(), spoke: AtomicU64::new(0) });
        let (count, whose) = (Arc::clone(&arrived), Arc::clone(&turn));
        std::thread::Builder::new().name("hca-control".to_owned()).spawn(move || {
            let mut input = BufReader::new(input);
            let mut heard = whose.begun;
            loop {
                let message: Result<In, _> =
                    read_line(&mut input, || silence.filter(|&limit| whose.is_silent_for(limit, heard)));
                heard = Instant::now();
                if message.as_ref().is_ok_and(In::is_sign_of_life) {
                    continue;
                }
                let last = message.is_err();
                // Counted before the message can be taken, so that the count never lags behind.
                count.fetch_add(1, Ordering::Release);
                if tx.send(message).is_err() || last {
                    return;
                }
            }
        })?;
        Ok(Self { out: Box::new(out), lines, arrived, taken: 0, turn, beat_at: None, outlives_ctrl_c: false })
    }

    /// A channel to another host, which may be silent for so long when it is its turn.
    ///
    /// # Errors
    /// The connection is broken, or there is no thread.
    pub(super) fn over_tcp(stream: &TcpStream, silence: Option<Duration>) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
        set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
        set_socket_keepalive(stream, true)?;
        Self::new(stream.try_clone()?, stream.try_clone()?, silence)
    }

    /// The same for a process that shares Ctrl-C with its parent, and ends on the parent's message.
    pub(super) fn outliving_ctrl_c(self) -> Self {
        Self { outlives_ctrl_c: true, ..self }
    }

    /// The same for a measuring process that sends heartbeats.
    pub(super) fn beating(self) -> Self {
        Self { beat_at: Some(Instant::now() + HEARTBEAT), ..self }
    }

    /// Sends a heartbeat if it is due.
    #[inline]
    pub(super) fn heartbeat(&mut self, now: Instant) {
        if self.beat_at.is_some_and(|at| at <= now) {
            self.beat_at = Some(now + HEARTBEAT);
            // The thread that reads reports a broken channel.
            let _ = self.send(&ToPeer::Going);
        }
    }

    /// Sends a message. Whether the other end has hung up is told by [`recv`](Self::recv).
    ///
    /// # Errors
    /// The channel broke, or the other end does not read.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(message).expect("messages have string keys");
        line.push(b'\n');
        let written = self.out.write_all(&line).and_then(|()| self.out.flush());
        self.turn.theirs();
        written.or_else(|e| match e.kind() {
            // The thread that reads reports it, behind the last message of the other end, which tells why.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Ok(()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(ControlError::Deaf(WRITE_LIMIT)),
            _ => Err(e.into()),
        })
    }

    /// Whether a message, or the end of the channel, waits to be taken by [`recv`](Self::recv).
    #[inline]
    pub(super) fn arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed) != self.taken
    }

    /// Whether Ctrl-C ends this conversation.
    #[inline]
    fn interrupted(&self) -> bool {
        !self.outlives_ctrl_c && interrupted()
    }

    /// Whether the current phase ends: a message waits, or Ctrl-C was pressed.
    #[inline]
    pub(super) fn over(&self) -> bool {
        self.arrived() || self.interrupted()
    }

    /// The next message. One that has arrived is given even after Ctrl-C.
    ///
    /// # Errors
    /// The channel broke, the other end is no `hca perf`, nothing came in `patience`, or Ctrl-C was pressed.
    pub(super) fn recv(&mut self, patience: Option<Duration>) -> Result<In, ControlError> {
        let begin = Instant::now();
        let message = loop {
            let left = patience.map_or(SLICE, |limit| limit.saturating_sub(begin.elapsed()));
            match self.lines.recv_timeout(left.min(SLICE)) {
                Ok(message) => break message,
                Err(RecvTimeoutError::Disconnected) => return Err(ControlError::Closed),
                Err(RecvTimeoutError::Timeout) if self.interrupted() => {
                    return Err(ControlError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(limit) = patience.filter(|limit| begin.elapsed() >= *limit) {
                return Err(ControlError::Silent(limit));
            }
        };
        self.taken += 1;
        self.turn.ours();
        message
    }
}

/// Reads a line, unless `silent` says meanwhile that the other end has been silent for too long.
pub(super) fn read_line<In: Message>(
    input: &mut impl BufRead,
    silent: impl Fn() -> Option<Duration>,
) -> Result<In, ControlError> {
    let mut line = Vec::new();
    loop {
        if let Some(limit) = silent() {
            return Err(ControlError::Silent(limit));
        }
        let came = match input.fill_buf() {
            Ok([]) if line.is_empty() => return Err(ControlError::Closed),
            Ok([]) => break,
            Ok(came) => came,
            Err(e) => match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => continue,
                _ => return Err(e.into()),
            },
        };
        let end = came.iter().position(|&b| b == b'\n');
        let used = end.map_or(came.len(), |at| at + 1);
        line.extend_from_slice(&came[..used]);
        input.consume(used);
        if end.is_some() || line.len() > MAX_LINE_BYTES {
            break;
        }
    }
    serde_json::from_slice(&line).map_err(|e| ControlError::Garbled {
        line: String::from_utf8_lossy(&line).chars().take(60).collect(),
        why: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::control::FromPeer;
    use super::*;

    fn pair() -> (Channel<FromPeer>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        (Channel::over_tcp(&near, None).unwrap(), far)
    }

    #[test]
    fn messages_come_over_in_order_and_the_end_is_told() {
        let (mut near, far) = pair();
        let mut far: Channel<ToPeer> = Channel::over_tcp(&far, None).unwrap();
        near.send(&ToPeer::Stop).unwrap();
        near.send(&ToPeer::Bye).unwrap();
        assert_eq!(far.recv(None).unwrap(), ToPeer::Stop);
        assert_eq!(far.recv(None).unwrap(), ToPeer::Bye);
        far.send(&FromPeer::Done { received: 3, errors: 0 }).unwrap();
        assert_eq!(near.recv(None).unwrap(), FromPeer::Done { received: 3, errors: 0 });
    }

    #[test]
    fn a_stranger_at_the_other_end_is_named() {
        let (mut near, mut far) = pair();
        far.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").unwrap();
        let text = near.recv(None).unwrap_err().to_string();
        assert!(text.contains("SSH-2.0") && text.contains("port"), "{text}");
    }

    #[test]
    fn a_line_without_an_end_is_not_kept() {
        let endless = vec![b'7'; 4 * MAX_LINE_BYTES];
        let mut far = BufReader::new(&endless[..]);
        let e = read_line::<FromPeer>(&mut far, || None).unwrap_err();
        assert!(matches!(e, ControlError::Garbled { .. }), "{e}");
        let left = far.get_ref().len();
        assert!(left > MAX_LINE_BYTES, "{left} bytes are left unread");
    }

    #[test]
    fn whoever_sends_a_byte_now_and_then_is_silent_all_the_same() {
        /// A byte each time, and never the end of a line.
        struct Trickle;
        impl Read for Trickle {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                into[0] = b' ';
                Ok(1)
            }
        }
        let silence = Some(Duration::from_millis(20));
        let mut near: Channel<ToPeer> = Channel::new(Trickle, std::io::sink(), silence).unwrap();
        let e = near.recv(None).unwrap_err();
        assert!(matches!(e, ControlError::Silent(_) | ControlError::Garbled { .. }), "{e}");
    }

    #[test]
    fn messages_that_nobody_takes_are_left_to_their_sender() {
        let flood = b"\"stop\"\n".repeat(10_000);
        let read = Arc::new(AtomicU64::new(0));
        struct Counted(std::io::Cursor<Vec<u8>>, Arc<AtomicU64>);
        impl Read for Counted {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                self.1.fetch_add(1, Ordering::SeqCst);
                self.0.read(into)
            }
        }
        let input = Counted(std::io::Cursor::new(flood), Arc::clone(&read));
        let mut near: Channel<ToPeer> = Channel::new(input, std::io::sink(), None).unwrap();
        assert_eq!(near.recv(None).unwrap(), ToPeer::Stop);
        // One buffer has been read, and no more than that, while some messages of it wait.
        assert_eq!(read.load(Ordering::SeqCst), 1);
        assert!(near.arrived.load(Ordering::SeqCst) <= MAX_QUEUED as u64 + 2);
    }

    #[test]
    fn a_sign_of_life_is_not_handed_on() {
        let (near, far) = pair();
        let mut far: Channel<ToPeer> = Channel::over_tcp(&far, None).unwrap();
        let mut near = near.beating();
        near.heartbeat(Instant::now() + 2 * HEARTBEAT);
        near.send(&ToPeer::Stop).unwrap();
        assert_eq!(far.recv(None).unwrap(), ToPeer::Stop);
        assert!(!far.arrived());
    }

    #[test]
    fn the_last_message_of_an_end_that_has_hung_up_is_taken_though_nothing_can_be_sent() {
        let (mut near, far) = pair();
        let mut other: Channel<ToPeer> = Channel::over_tcp(&far, None).unwrap();
        other.send(&FromPeer::Done { received: 1, errors: 0 }).unwrap();
        far.shutdown(std::net::Shutdown::Both).unwrap();
        for _ in 0..100 {
            near.send(&ToPeer::Stop).unwrap();
        }
        assert_eq!(near.recv(None).unwrap(), FromPeer::Done { received: 1, errors: 0 });
        assert!(near.recv(None).is_err());
    }

    #[test]
    fn the_end_of_the_channel_wakes_a_loop() {
        let (mut near, far) = pair();
        far.shutdown(std::net::Shutdown::Both).unwrap();
        while !near.arrived() {
            std::thread::yield_now();
        }
        assert!(matches!(near.recv(None), Err(ControlError::Closed)));
        assert!(matches!(
            near.recv(Some(Duration::ZERO)),
            Err(ControlError::Closed | ControlError::Silent(_))
        ));
    }
}
