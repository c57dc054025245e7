//! RoCEv2 over io_uring: one multishot receive into provided buffers, batches to several peers by one
//! system call.
//!
//! A train to one peer leaves by a plain system call, which is quicker. The ring is entered when it is polled. Several
//! threads may drive an engine under a lock, one after the other; the setup flags that bind a ring to one thread
//! (`SINGLE_ISSUER`, `DEFER_TASKRUN`) are therefore set only if the caller promises one thread by
//! [`UringOptions::single_thread`]. When the thread that armed the receive ends, the kernel ends the receive too, and
//! the next call arms it again.

mod ring;

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use hca_core::{Counter, Instant};

use crate::udp::sys::TX_BATCH;
use crate::udp::{End, Refusal, Sink, Step, by_end};
use crate::{Fabric, OpenError, RxBudget, RxOutcome, RxPacket, TxBatch, UdpFabric, UdpOptions};
use ring::Ring;

/// The options of a [`UringFabric`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringOptions {
    /// The options of the UDP sockets.
    pub udp: UdpOptions,
    /// Whether the thread that opens the fabric is the only one that ever calls it, which lets the kernel save work.
    /// Calls by another thread then find nothing, and are counted as errors.
    pub single_thread: bool,
}

/// A fabric of RoCEv2 over UDP sockets, through io_uring.
pub struct UringFabric {
    // Before the socket that it receives from: dropped first.
    ring: Ring,
    end: End,
}

impl UringFabric {
    /// Opens the adapter's end at an address of this machine.
    ///
    /// # Errors
    /// As [`UdpFabric::open`], and [`OpenError::Unsupported`] where the kernel lacks a required feature.
    pub fn open(local: IpAddr, options: &UringOptions) -> Result<Self, OpenError> {
        let end = End::open(local, &options.udp, "uring")?;
        let ring = Ring::open(end.rx.socket.as_fd(), options.single_thread)
            .map_err(|(what, source)| OpenError::Unsupported { what, source })?;
        Ok(Self { ring, end })
    }

    /// Opens the adapter's end, over plain sockets where io_uring is missing or forbidden; a note in
    /// [`FabricAttr`](crate::FabricAttr) says so then.
    ///
    /// # Errors
    /// As [`UdpFabric::open`].
    pub fn open_or_udp(local: IpAddr, options: &UringOptions) -> Result<Box<dyn Fabric>, OpenError> {
        match Self::open(local, options) {
            Ok(fabric) => Ok(Box::new(fabric)),
            Err(OpenError::Unsupported { what, source }) => {
                let mut fabric = UdpFabric::open(local, &options.udp)?;
                let note =
                    format!("plain sockets are used instead: {what} is missing or forbidden here ({source})");
                fabric.note("io_uring", note);
                Ok(Box::new(fabric))
            }
            Err(e) => Err(e),
        }
    }

    /// Sends the oldest trains, which are for several paths, by one system call, but not the last `held`.
    fn send_chain(&mut self, now: Instant, held: usize, batch: &mut TxBatch) -> Step {
        let mut trains = [batch.trains()[0]; TX_BATCH];
        let mut count = 0;
        let most = TX_BATCH.min(batch.trains().len() - held);
        for t in &batch.trains()[..most] {
            if self.end.sender.paths.get(t.path).is_none() {
                break;
            }
            trains[count] = *t;
            count += 1;
        }
        let trains = &trains[..count];
        for t in trains {
            self.end.sender.paths.ensure_ident_known(t.path);
        }
        for (i, t) in trains.iter().enumerate() {
            let ahead = trains[..i].iter().filter(|o| o.path == t.path).count();
            self.end.sender.seal(t, ahead, batch);
        }
        let sends: [_; TX_BATCH] = std::array::from_fn(|i| {
            let t = trains.get(i).unwrap_or(&trains[0]);
            self.end.sender.datagram(t, batch)
        });
        self.end.account.counters.send_calls += 1;
        let (sent, why) = self.ring.send_chain(&sends[..count]);
        for t in &trains[sent..] {
            batch.apply_flips(t);
        }
        for t in &trains[..sent] {
            self.end.account.counters.tx_trains += 1;
            self.end.sender.account(now, t.path, std::iter::once(*t), batch, &mut self.end.account);
            batch.advance(1);
        }
        let Some(error) = why else { return Step::Done(0) };
        let (first, why) = (trains[sent], Refusal::of(&error));
        match self.end.sender.refused(first.path, why, first, false, &mut self.end.account) {
            Some(step) => step,
            // Tried again by itself, by the call that knows what to do next.
            None => self.end.sender.step(now, batch, &mut self.end.account),
        }
    }
}

impl Fabric for UringFabric {
    by_end!();

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        self.end.sender.retry_at = None;
        self.end.sender.paths.lead(batch);
        let mut held = 0;
        while batch.trains().len() > held {
            let first = batch.trains()[0];
            let most = TX_BATCH.min(batch.trains().len() - held);
            let chain = !self.ring.broken
                && batch.trains()[..most].iter().all(|t| self.end.sender.takes(t))
                && batch.trains()[..most].iter().any(|t| t.path != first.path);
            let step = if chain {
                self.send_chain(now, held, batch)
            } else {
                self.end.sender.step(now, batch, &mut self.end.account)
            };
            match step {
                Step::Done(n) => batch.advance(n),
                Step::Blocked => held += self.end.sender.blocked(now, held, batch, &mut self.end.account),
            }
        }
        self.end.rx.attr.notes.extend(self.end.sender.note.take());
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let Self { ring, end } = self;
        end.recv(now, sink, |end, sink| recv_own(ring, end, now, budget, sink))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.fd())
    }

    fn prepare_wait(&mut self) -> bool {
        self.end.rx.prepare_wait();
        self.ring.poll()
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        let mut counters = self.end.account.counters;
        counters.recv_calls += self.ring.recv_calls;
        counters.recv_errors += self.ring.recv_errors;
        self.end.append(&counters, out);
    }
}

/// Gives the packets of the own socket to the sink.
#[inline]
fn recv_own(ring: &mut Ring, end: &mut End, now: Instant, budget: RxBudget, sink: Sink<'_>) -> RxOutcome {
    let End { receiver, account, .. } = end;
    let mut outcome = RxOutcome::default();
    let mut bytes = 0;
    ring.poll();
    loop {
        let over = outcome.packets >= budget.packets || bytes >= budget.bytes;
        if over && ring.poll() {
            outcome.more = true;
            return outcome;
        }
        let taken = ring.take(|datagram| {
            let datagram = datagram?;
            let good = receiver.deliver(now, &datagram, account, sink);
            Some((good, datagram.bytes.len()))
        });
        match taken {
            None => return outcome,
            Some(None) => {}
            Some(Some((good, len))) => {
                outcome.packets += good;
                bytes += len;
            }
        }
    }
}
