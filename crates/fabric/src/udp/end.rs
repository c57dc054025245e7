//! An adapter's end over UDP sockets: all of it except reception, in which plain sockets and io_uring differ.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use hca_core::{Counter, Instant};

use super::multicast::{Groups, MAX_GROUPS};
use super::{Counters, Paths, Receiver, RxSocket, Sender, UdpOptions, sys, tell_hop_limit};
use crate::{MulticastGroups, OpenError, RxOutcome, RxPacket, Tap};

/// The methods of `Fabric` that a fabric leaves to its `end`.
macro_rules! by_end {
    () => {
        fn attr(&self) -> &$crate::FabricAttr {
            &self.end.rx.attr
        }
        fn open_path_of(
            &mut self,
            av: &hca_core::AddressVector,
            ends: $crate::QpEnds,
        ) -> Result<$crate::PathId, $crate::PathError> {
            self.end.sender.paths.open_path(av, ends)
        }
        fn close_path(&mut self, path: $crate::PathId) {
            self.end.sender.paths.close_path(path);
        }
        fn next_deadline(&self) -> Option<hca_core::Instant> {
            self.end.next_deadline()
        }
        fn wait_fd_beside(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.end.wait_fd_beside()
        }
        fn desk(&mut self) -> Option<&mut dyn $crate::ManagementDesk> {
            self.end.rx.desk()
        }
        fn groups(&mut self) -> Option<&mut dyn $crate::MulticastGroups> {
            Some(&mut self.end)
        }
        fn set_tap(&mut self, tap: Option<Box<dyn $crate::Tap>>) {
            self.end.set_tap(tap);
        }
    };
}
pub(crate) use by_end;

/// Takes packets of the own socket.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&RxPacket<'_>);

/// The counters of packets, and the tap that sees them.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) counters: Counters,
    pub(crate) tap: Option<Box<dyn Tap>>,
}

/// An end with its sockets, paths and counters.
pub(crate) struct End {
    pub(crate) rx: RxSocket,
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) account: Account,
    /// The multicast groups, from the first one that was joined on.
    groups: Option<Box<Groups>>,
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
            account: Account::default(),
            groups: None,
        })
    }

    /// Receives from the own socket by `own`, at a shared address, what comes to the desk and the mailbox, and what
    /// comes to multicast groups.
    #[inline]
    pub(crate) fn recv(
        &mut self,
        now: Instant,
        sink: Sink<'_>,
        own: impl FnOnce(&mut Self, Sink<'_>) -> RxOutcome,
    ) -> RxOutcome {
        if self.groups.is_some() || self.rx.shared.is_some() {
            return self.recv_all(now, sink, own);
        }
        own(self, sink)
    }
    fn recv_all(
        &mut self,
        now: Instant,
        sink: Sink<'_>,
        own: impl FnOnce(&mut Self, Sink<'_>) -> RxOutcome,
    ) -> RxOutcome {
        let mut outcome = match self.rx.shared.take() {
            None => own(self, sink),
            Some(mut shared) => {
                let mut outcome = own(self, &mut shared.share.only_own(sink));
                let Self { receiver, account, .. } = self;
                outcome.packets += shared.look(now, receiver, account, sink);
                self.rx.shared = Some(shared);
                outcome
            }
        };
        if let Some(groups) = &mut self.groups {
            outcome.packets += groups.recv(now, &mut self.account, sink);
        }
        outcome
    }

    /// When there is something to do though nothing arrives.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let shared = self.rx.shared.as_ref().and_then(|s| s.share.next_deadline());
        self.sender.retry_at.into_iter().chain(shared).min()
    }

    /// The descriptor to wait for beside the own socket's, at a shared address.
    pub(crate) fn wait_fd_beside(&self) -> Option<BorrowedFd<'_>> {
        self.rx.shared.as_ref().map(|shared| shared.share.wait_fd())
    }

    /// Appends these plain counters, and all others.
    pub(crate) fn append(&self, counters: &Counters, out: &mut Vec<Counter>) {
        counters.append(out);
        let mut push = |name, value| out.push(Counter { name, value });
        push("tx_ident_probes", self.sender.paths.ident_probes);
        push("tx_shared_paths", self.sender.paths.shared_paths);
        self.receiver.flows.counts.append(out);
        self.rx.counters(out);
        let value = self.groups.as_ref().map_or(0, |groups| groups.dropped());
        out.push(Counter { name: "rx_kernel_drops_of_groups", value });
    }

    pub(crate) fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        tell_hop_limit(&self.rx.socket, self.rx.attr.local, tap.is_some());
        if let Some(groups) = &self.groups {
            groups.tell_hop_limit(tap.is_some());
        }
        self.account.tap = tap;
    }
}

impl MulticastGroups for End {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let groups = match &mut self.groups {
            Some(groups) => groups,
            none => {
                let interface = sys::interface_at(self.rx.attr.local, self.rx.interface)?;
                none.insert(Box::new(Groups::new(interface, self.rx.attr.recv_buffer_bytes)?))
            }
        };
        groups.join(group, self.account.tap.is_some())
    }

    fn leave(&mut self, group: IpAddr) {
        if let Some(groups) = &mut self.groups {
            groups.leave(group);
        }
    }

    fn limit(&self) -> u32 {
        MAX_GROUPS
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.groups.as_ref().map(|groups| groups.wait_fd())
    }
}
