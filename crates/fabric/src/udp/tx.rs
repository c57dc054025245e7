//! Sending: trains are sealed with ICRCs, sent and counted; trains that did not leave are kept or dropped.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use hca_core::Instant;

use super::end::Account;
use super::path::Paths;
use super::sys::{self, TX_BATCH, TxDatagram, TxHeaders};
use crate::icrc::Icrc;
use crate::{Direction, PacketHeader, PathId, Tap, TapFrame, Train, TxBatch};

/// When the kernel took nothing, it is asked again after this time.
const RETRY_AFTER: Duration = Duration::from_micros(100);

/// What became of a send call.
pub(crate) enum Step {
    /// This many trains are done, sent or lost.
    Done(usize),
    /// Nothing goes now.
    Blocked,
}

/// What an error of a send call means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No room now.
    Blocked,
    /// A signal came; call again.
    Interrupted,
    /// The error of an earlier packet; this one was not tried.
    Earlier,
    /// Too long for the way; or an earlier packet was, of which a router has told, and this one was not tried.
    TooLong,
    /// Possibly that the kernel or the interface does not cut trains.
    Uncut,
    /// No buffers.
    NoBuffers,
    /// Anything else.
    Other,
}

impl Refusal {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::Blocked,
            Some(libc::EINTR) => Self::Interrupted,
            Some(
                libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENETDOWN,
            ) => Self::Earlier,
            Some(libc::EMSGSIZE) => Self::TooLong,
            Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP) => Self::Uncut,
            Some(libc::ENOBUFS | libc::ENOMEM) => Self::NoBuffers,
            _ => Self::Other,
        }
    }
    /// Possibly that of an earlier packet, which a second call does not meet.
    pub(crate) fn may_be_earlier(self) -> bool {
        matches!(self, Self::Earlier | Self::TooLong)
    }
}

/// What a send call works with.
pub(crate) struct Sender {
    pub(crate) local: IpAddr,
    pub(crate) paths: Paths,
    pub(crate) icrc: Icrc,
    headers: Box<TxHeaders>,
    /// The kernel is to cut trains.
    pub(crate) cuts: bool,
    /// For people: that it refuses to, on the first path where it does.
    pub(crate) note: Option<(&'static str, String)>,
    noted: bool,
    /// When trains that the kernel did not take are to be sent again.
    pub(crate) retry_at: Option<Instant>,
}

impl Sender {
    pub(crate) fn new(local: IpAddr, paths: Paths, cuts: bool) -> Self {
        Self {
            local,
            paths,
            icrc: Icrc::new(),
            headers: TxHeaders::new(),
            cuts,
            note: None,
            noted: false,
            retry_at: None,
        }
    }

    /// Sends all waiting trains that the kernel takes. What one socket has no room for holds up its own path alone.
    #[inline]
    pub(crate) fn send(&mut self, now: Instant, batch: &mut TxBatch, account: &mut Account) {
        self.retry_at = None;
        self.paths.lead(batch);
        let mut held = 0;
        while batch.trains().len() > held {
            match self.step(now, batch, account) {
                Step::Done(n) => batch.advance(n),
                Step::Blocked => held += self.blocked(now, held, batch, account),
            }
        }
    }

    /// The socket of the oldest train takes nothing now: its path's trains go behind the others, in front of the last
    /// `held`, which wait already. How many they are; they are sent again in a while.
    #[cold]
    pub(crate) fn blocked(
        &mut self,
        now: Instant,
        held: usize,
        batch: &mut TxBatch,
        account: &mut Account,
    ) -> usize {
        account.counters.tx_blocked += 1;
        self.retry_at = Some(now + RETRY_AFTER);
        let trains = batch.trains();
        let (path, others) = (trains[0].path, trains.len() - held);
        batch.put_behind(path, others)
    }

    /// Whether a train leaves in one piece, on an open path.
    #[cfg(feature = "io-uring")]
    pub(crate) fn takes(&self, train: &Train) -> bool {
        self.paths.get(train.path).is_some_and(|p| train.is_single() || self.cuts && p.cuts)
    }

    /// Whether trains to this path are cut by the kernel.
    #[inline]
    fn cuts(&self, id: PathId) -> bool {
        self.cuts && self.paths.get(id).is_some_and(|p| p.cuts)
    }

    /// Sends the oldest train, and those behind it that leave by the same call.
    #[inline]
    pub(crate) fn step(&mut self, now: Instant, batch: &mut TxBatch, account: &mut Account) -> Step {
        let Some(&first) = batch.trains().first() else { return Step::Done(0) };
        if self.paths.get(first.path).is_none() {
            account.counters.tx_lost_closed += first.packets() as u64;
            Step::Done(1)
        } else if !first.is_single() && !self.cuts(first.path) {
            self.send_uncut(now, first, batch, account)
        } else {
            self.send_group(now, first.path, batch, account)
        }
    }

    /// How many of the oldest trains leave by one call on one path.
    fn group(&self, path: PathId, batch: &TxBatch, most: usize) -> usize {
        let fits = |t: &&Train| t.path == path && (t.is_single() || self.cuts(path));
        batch.trains().iter().take(most).take_while(fits).count()
    }

    /// Sends the oldest trains, as far as they are for one path, by one call.
    fn send_group(&mut self, now: Instant, id: PathId, batch: &mut TxBatch, account: &mut Account) -> Step {
        let count = self.group(id, batch, TX_BATCH);
        let mut tried_again = false;
        loop {
            self.seal_group(id, count, batch);
            account.counters.send_calls += 1;
            let error = match self.call(id, count, batch) {
                Ok(sent) => {
                    batch.take_flips_back(sent, count);
                    account.counters.tx_trains += sent as u64;
                    self.account(now, id, batch.trains()[..sent].iter().copied(), batch, account);
                    return Step::Done(sent);
                }
                Err(e) => e,
            };
            batch.take_flips_back(0, count);
            let first = batch.trains()[0];
            match self.refused(id, Refusal::of(&error), first, tried_again, account) {
                Some(step) => return step,
                None => tried_again |= Refusal::of(&error).may_be_earlier(),
            }
            if !first.is_single() && !self.cuts(id) {
                return Step::Done(0);
            }
        }
    }

    /// Puts ICRCs on the oldest trains, which are for one path.
    #[inline]
    fn seal_group(&mut self, id: PathId, count: usize, batch: &mut TxBatch) {
        self.paths.ensure_ident_known(id);
        for ahead in 0..count {
            let train = batch.trains()[ahead];
            self.seal(&train, ahead, batch);
        }
    }

    /// Puts ICRCs on a train before which `ahead` others leave on its path.
    #[inline]
    pub(crate) fn seal(&mut self, train: &Train, ahead: usize, batch: &mut TxBatch) {
        let path = self.paths.get(train.path).expect("the caller looked");
        let ident = path.ident(ahead);
        if batch.lent(train).is_empty() {
            path.seal(&mut self.icrc, ident, train.segment, batch.bytes_mut(train));
        } else {
            path.seal_lent(&mut self.icrc, ident, train, batch);
        }
        batch.apply_flips(train);
    }

    /// A train as a datagram, and the descriptor that it leaves by.
    #[cfg(feature = "io-uring")]
    pub(crate) fn datagram<'a>(
        &'a self,
        train: &Train,
        batch: &'a TxBatch,
    ) -> (std::os::fd::BorrowedFd<'a>, TxDatagram<'a>) {
        let path = self.paths.get(train.path).expect("the caller looked");
        let segment = if train.is_single() { 0 } else { train.segment };
        (self.paths.socket_of(path), path.datagram(batch.bytes(train), (0, &[]), segment))
    }

    #[inline]
    fn call(&mut self, id: PathId, count: usize, batch: &TxBatch) -> io::Result<usize> {
        let path = self.paths.get(id).expect("the caller looked");
        let trains = batch.trains();
        if count == 1
            && trains[0].is_single()
            && let Some(socket) = path.own_socket()
            && batch.lent(&trains[0]).is_empty()
        {
            return sys::send_one(socket.as_fd(), batch.bytes(&trains[0])).map(|()| 1);
        }
        let datagram = |t: &Train| {
            let lent = (t.start, batch.lent(t));
            path.datagram(batch.bytes(t), lent, if t.is_single() { 0 } else { t.segment })
        };
        let fd = self.paths.socket_of(path);
        if count == 1 {
            return self.headers.send(fd, &[datagram(&trains[0])]);
        }
        let mut datagrams: [TxDatagram<'_>; TX_BATCH] = [path.datagram(&[], (0, &[]), 0); TX_BATCH];
        for (d, t) in datagrams.iter_mut().zip(&trains[..count]) {
            *d = datagram(t);
        }
        self.headers.send(fd, &datagrams[..count])
    }

    /// Counts datagrams that left on a path, and shows them to the tap.
    #[inline]
    pub(crate) fn account(
        &mut self,
        now: Instant,
        id: PathId,
        left: impl Iterator<Item = Train>,
        batch: &TxBatch,
        account: &mut Account,
    ) {
        let mut ahead = 0;
        for t in left {
            account.counters.tx_packets += t.packets() as u64;
            account.counters.tx_bytes += t.len as u64;
            if let Some(tap) = &mut account.tap {
                self.tapped(now, ahead, &t, batch.bytes(&t), tap);
            }
            ahead += 1;
        }
        if let Some(path) = self.paths.get_mut(id) {
            path.sent(ahead);
        }
    }

    /// What to do about a refusal of the train `first`; `None`: call again.
    pub(crate) fn refused(
        &mut self,
        id: PathId,
        why: Refusal,
        first: Train,
        tried_again: bool,
        account: &mut Account,
    ) -> Option<Step> {
        let packets = first.packets() as u64;
        if why == Refusal::Earlier {
            account.counters.tx_refused += 1;
        }
        match why {
            Refusal::Blocked => return Some(Step::Blocked),
            Refusal::Interrupted => return None,
            Refusal::Earlier if !tried_again => return None,
            Refusal::TooLong if !tried_again => {
                self.doubt(id);
                return None;
            }
            Refusal::Earlier => account.counters.tx_lost_unreachable += packets,
            Refusal::Uncut | Refusal::TooLong if packets > 1 && self.cuts(id) => {
                self.uncut(id);
                return None;
            }
            Refusal::NoBuffers => account.counters.tx_lost_no_buffers += packets,
            Refusal::Uncut | Refusal::TooLong | Refusal::Other => account.counters.tx_lost_other += packets,
        }
        self.doubt(id);
        Some(Step::Done(1))
    }

    /// Trains to this path leave packet by packet from now on, unless their packets are refused as well.
    fn uncut(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(id) {
            path.cuts = false;
            path.doubt_ident();
        }
    }

    /// Tells people of a path whose trains the kernel refused, and whose packets it takes.
    fn note_uncut(&mut self, id: PathId) {
        if let Some(path) = self.paths.get(id)
            && !path.cuts
            && !self.noted
        {
            self.noted = true;
            let text = format!(
                "trains to {} leave packet by packet, as the kernel refuses to cut them: it can't, or the way there takes \
                 no packets of this size",
                path.peer()
            );
            self.note = Some(("segmentation", text));
        }
    }

    fn doubt(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(id) {
            path.doubt_ident();
        }
    }

    /// Sends a train packet by packet.
    fn send_uncut(&mut self, now: Instant, train: Train, batch: &mut TxBatch, account: &mut Account) -> Step {
        batch.take_in();
        let count = train.packets().min(TX_BATCH);
        let part = Train { len: train.len.min(count * train.segment), ..train };
        let mut tried_again = false;
        let done = loop {
            self.paths.ensure_ident_known(train.path);
            let path = self.paths.get(train.path).expect("the caller looked");
            for (ahead, packet) in batch.bytes_mut(&part).chunks_mut(train.segment).enumerate() {
                path.seal(&mut self.icrc, path.ident(ahead), train.segment, packet);
            }
            batch.apply_flips(&part);
            let mut datagrams: [TxDatagram<'_>; TX_BATCH] = [path.datagram(&[], (0, &[]), 0); TX_BATCH];
            for (d, packet) in datagrams.iter_mut().zip(batch.bytes(&part).chunks(train.segment)) {
                *d = path.datagram(packet, (0, &[]), 0);
            }
            account.counters.send_calls += 1;
            match self.headers.send(self.paths.socket_of(path), &datagrams[..count]) {
                Ok(sent) => {
                    let packets = (0..sent).map(|k| {
                        let at = k * part.segment;
                        Train { start: part.start + at, len: part.segment.min(part.len - at), ..part }
                    });
                    self.account(now, train.path, packets, batch, account);
                    batch.apply_flips(&part);
                    self.note_uncut(train.path);
                    break sent;
                }
                Err(e) => {
                    batch.apply_flips(&part);
                    let why = Refusal::of(&e);
                    if (why == Refusal::Uncut || why == Refusal::TooLong && tried_again)
                        && let Some(path) = self.paths.get_mut(train.path)
                    {
                        // It was none of cutting: the way takes nothing of this size, or nothing at all.
                        path.cuts = true;
                    }
                    let one = Train { len: train.segment, ..train };
                    match self.refused(train.path, why, one, tried_again, account) {
                        Some(Step::Blocked) => return Step::Blocked,
                        Some(Step::Done(_)) => break 1,
                        None => tried_again |= why.may_be_earlier(),
                    }
                }
            }
        };
        if done == train.packets() {
            account.counters.tx_uncut_trains += 1;
            return Step::Done(1);
        }
        batch.advance_packets(done);
        Step::Done(0)
    }

    /// Shows the packets of a datagram that left behind `ahead` others on its path.
    #[cold]
    fn tapped(&self, now: Instant, ahead: usize, train: &Train, bytes: &[u8], tap: &mut Box<dyn Tap>) {
        let Some(path) = self.paths.get(train.path) else { return };
        let header = PacketHeader {
            src: self.local,
            dst: path.peer(),
            src_port: path.src_port,
            traffic_class: path.traffic_class(),
            hop_limit: path.hop_limit(),
        };
        let (direction, version) = (Direction::Tx, crate::RoceVersion::V2);
        for (k, payload) in bytes.chunks(train.segment).enumerate() {
            let ident = path.ident(ahead).wrapping_add(k as u16);
            tap.frame(now, &TapFrame { direction, version, header, ident, payload });
        }
    }
}
