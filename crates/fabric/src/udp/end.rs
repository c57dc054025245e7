//! An adapter's end over UDP sockets: all of it except reception, in which plain sockets and io_uring differ.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use hca_core::{Counter, Instant};

use super::{Counters, Paths, Receiver, RxSocket, Sender, UdpOptions};
use crate::{OpenError, RxOutcome, RxPacket, Tap};

/// Takes packets of the own socket.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&RxPacket<'_>);

/// An end with its sockets, paths and counters.
pub(crate) struct End {
    pub(crate) rx: RxSocket,
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) counters: Counters,
    pub(crate) tap: Option<Box<dyn Tap>>,
}

impl End {
    pub(crate) fn open(local: IpAddr, options: &UdpOptions, name: &str) -> Result<Self, OpenError> {
        let rx = RxSocket::open(local, options, name)?;
        let paths = Paths::open(local, rx.interface, options.max_paths).map_err(|source| OpenError::Io {
            doing: "opening the send socket",
            local,
            source,
        })?;
        Ok(Self {
            rx,
            receiver: Receiver::new(local),
            sender: Sender::new(local, paths, options.segmentation),
            counters: Counters::default(),
            tap: None,
        })
    }

    /// Receives from the own socket by `own`, and, at a shared address, what comes to the desk and the mailbox.
    #[inline]
    pub(crate) fn recv(
        &mut self,
        now: Instant,
        sink: Sink<'_>,
        own: impl FnOnce(&mut Self, Sink<'_>) -> RxOutcome,
    ) -> RxOutcome {
        let Some(mut shared) = self.rx.shared.take() else { return own(self, sink) };
        let mut outcome = own(self, &mut shared.share.only_own(sink));
        let Self { receiver, counters, tap, .. } = self;
        outcome.packets += shared.look(now, receiver, counters, tap, sink);
        self.rx.shared = Some(shared);
        outcome
    }

    /// When there is something to do though nothing arrives.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let shared = self.rx.shared.as_ref().and_then(|s| s.share.next_deadline());
        self.sender.retry_at.into_iter().chain(shared).min()
    }

    /// The descriptor to wait for, where this one is the own socket's.
    pub(crate) fn wait_fd<'a>(&'a self, own: BorrowedFd<'a>) -> BorrowedFd<'a> {
        self.rx.shared.as_ref().map_or(own, |s| s.share.wait_fd())
    }

    /// Appends these plain counters, and all others.
    pub(crate) fn append(&self, counters: &Counters, out: &mut Vec<Counter>) {
        counters.append(out);
        let mut push = |name, value| out.push(Counter { name, value });
        push("tx_ident_probes", self.sender.paths.ident_probes);
        push("tx_shared_paths", self.sender.paths.shared_paths);
        self.receiver.flows.counts.append(out);
        self.rx.counters(out);
    }

    pub(crate) fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.rx.tell_hop_limit(tap.is_some());
        self.tap = tap;
    }
}
