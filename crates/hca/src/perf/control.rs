//! What the two processes of a measurement tell each other: JSON, one message a line, over the peer's
//! standard input and output, or over TCP between hosts.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use hca_verbs::RemoteMr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::plan::Case;
use super::portals;
use crate::interrupt::{SLICE, interrupted};

/// Version of these messages; both ends must agree.
pub(super) const PROTOCOL: u32 = 3;
/// A line longer than this is no message of ours.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Which of a row's two measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// One message at a time.
    Latency,
    /// As many as the queues take.
    Stream,
}

/// What one side needs to know of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Endpoint {
    /// Its queue pair.
    pub(super) qp: hca_verbs::Endpoint,
    /// Memory that it lets the other side reach.
    pub(super) window: RemoteMr,
}

/// From the measuring process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToPeer {
    /// First of all.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The device to open; `None` leaves it to the peer's own command line.
        device: Option<String>,
        /// The CPU to be bound to.
        cpu: Option<usize>,
    },
    /// Make a queue pair for this measurement and connect it.
    Prepare {
        /// What will be measured.
        case: Case,
        /// How.
        phase: Phase,
        /// Path MTU in bytes.
        mtu: u32,
        /// The measuring side's queue pair.
        endpoint: Endpoint,
    },
    /// Open a Portals node, in place of the one that there is.
    Node {
        /// How.
        settings: portals::Settings,
        /// Where the measuring side's is.
        card: Vec<u8>,
    },
    /// Make an interface of the node for this measurement.
    Move {
        /// What will be measured.
        case: portals::Case,
        /// How.
        phase: Phase,
    },
    /// The measurement is over: say what you saw.
    Stop,
    /// All is over.
    Bye,
}

/// From the peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FromPeer {
    /// Answer to `Hello`.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The device that was opened.
        device: String,
        /// Its largest path MTU in bytes.
        mtu: u32,
        /// The CPU that the peer is bound to.
        cpu: Option<usize>,
    },
    /// Answer to `Prepare`: the peer serves until `Stop`.
    Ready {
        /// Its queue pair.
        endpoint: Endpoint,
    },
    /// Answer to `Node`.
    Node {
        /// Where it is.
        card: Vec<u8>,
        /// Whether the adapter matches.
        offloaded: bool,
    },
    /// Answer to `Move`: the peer serves until `Stop`.
    Listening,
    /// Answer to `Stop`.
    Done {
        /// Messages that arrived.
        received: u64,
        /// Completions with an error.
        errors: u64,
    },
    /// The peer can't go on.
    Failed {
        /// Why, and what to do.
        why: String,
    },
}

/// Why the two processes lost each other.
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
        "the peer said nothing for {0:?}; see whether it hangs, or measures with another host, and run both ends again"
    )]
    Silent(Duration),
    /// The user ended it.
    #[error("it was ended by Ctrl-C")]
    Interrupted,
    /// Something else is at the other end.
    #[error(
        "the peer sent {line:?}, which is no message of `hca perf`: check the address and port, and that both ends run the same version"
    )]
    Garbled {
        /// What came.
        line: String,
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
    /// A message out of turn.
    #[error("the peer sent {0} out of turn: run the same version of `hca` on both ends")]
    OutOfTurn(String),
}

/// One end of the conversation; it yields messages of type `In`.
pub(super) struct Channel<In> {
    out: Box<dyn Write + Send>,
    lines: Receiver<Result<In, ControlError>>,
    /// Messages that were read, and the end of the channel.
    arrived: Arc<AtomicU64>,
    taken: u64,
    /// Ctrl-C is for the process at the other end, which tells this one.
    outlives_ctrl_c: bool,
}

impl<In: DeserializeOwned + Send + 'static> Channel<In> {
    /// A channel over a pair of streams. A thread reads, so that a measuring loop sees in one load
    /// whether a message waits.
    pub(super) fn new(input: impl Read + Send + 'static, out: impl Write + Send + 'static) -> Self {
        let (tx, lines) = channel();
        let arrived = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&arrived);
        std::thread::spawn(move || {
            let mut input = BufReader::new(input);
            loop {
                let message = read_line(&mut input);
                let last = message.is_err();
                // Counted before it can be taken, so that what was taken is never waited for.
                count.fetch_add(1, Ordering::Release);
                if tx.send(message).is_err() || last {
                    return;
                }
            }
        });
        Self { out: Box::new(out), lines, arrived, taken: 0, outlives_ctrl_c: false }
    }

    /// The same for a process that Ctrl-C reaches together with the one that started it, and which ends when that
    /// one says so.
    pub(super) fn outliving_ctrl_c(self) -> Self {
        Self { outlives_ctrl_c: true, ..self }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The channel broke.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(message).expect("messages have string keys");
        line.push(b'\n');
        let written = self.out.write_all(&line).and_then(|()| self.out.flush());
        match written {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(ControlError::Closed),
            other => Ok(other?),
        }
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

    /// Whether what is being done is to end: a message waits, or Ctrl-C was pressed.
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
        message
    }
}

fn read_line<In: DeserializeOwned>(input: &mut impl BufRead) -> Result<In, ControlError> {
    let mut line = String::new();
    if input.take(MAX_LINE_BYTES).read_line(&mut line)? == 0 {
        return Err(ControlError::Closed);
    }
    serde_json::from_str(&line).map_err(|_| ControlError::Garbled { line: line.chars().take(60).collect() })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (Channel<FromPeer>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        (Channel::new(near.try_clone().unwrap(), near), far)
    }

    #[test]
    fn messages_come_over_in_order_and_the_end_is_told() {
        let (mut near, far) = pair();
        let mut far: Channel<ToPeer> = Channel::new(far.try_clone().unwrap(), far);
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
