//! The choice of the queue pairs that are polled.
//!
//! Active queue pairs, and their shared receive queues, are read in each look. A queue pair without work for some looks
//! becomes dormant: nobody reads it, and packets for it wait in the adapter. It becomes active again when a doorbell
//! names it, when a packet arrives for it, and by commands; by then its driver's receive requests are taken first. A
//! doorbell can hide another one that was written to the same place, and receive requests for a queue pair in error
//! have no doorbell. So some dormant queue pairs are read now and then, all of them soon after a doorbell, and all
//! before the server sleeps.
//!
//! A target of extended connections takes places from any queue of its domain. Where these are many, it does not become
//! active: what arrives for it waits until each queue was read, some in each look, and is delivered then.

use hca_core::QpHandle;

use crate::function::Function;
use crate::guest::Guest;
use crate::mkey::bus::Names;
use crate::objects::{Numbered, Objects};
use crate::qp::Qp;
use crate::qp::recv::take_shared;
use crate::srq::Srq;
use crate::srq::xrc::{Domain, Due, QUEUES_A_LOOK};

/// Looks in vain before a queue pair becomes dormant. In tests they are dormant most of the time.
const PATIENCE: u32 = if cfg!(test) { 2 } else { 1024 };
/// Dormant queue pairs that are looked at in one look, while a doorbell may have been for any of them.
const SUSPECTS: usize = 16;

/// What is known of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    /// It is in the list of those that are looked at.
    awake: bool,
    /// The adapter lets wait what comes for it.
    is_dormant: bool,
    /// It is dormant, and in the list of those for which queues are read.
    is_called: bool,
    /// Looks since it had something to do.
    quiet: u32,
    /// It has been given more places than were taken in the last look.
    pub(crate) more: bool,
}

/// The queue pairs of a function.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Those that are awake.
    pub(crate) awake: Vec<u32>,
    /// The shared receive queues of these.
    pub(crate) shared: Vec<u32>,
    /// The domains of extended connections of these, each with its shared receive queues.
    pub(crate) domains: Vec<u32>,
    /// Those that the adapter is to wake as soon as their places were taken.
    activated: Vec<QpHandle>,
    /// Targets for which something waits until their domain has read so far.
    called: Vec<(u32, Due)>,
    /// All of them, and which one's turn it is.
    all: Vec<u32>,
    next: usize,
    /// So many from that one on may have had a doorbell that nobody saw.
    suspects: usize,
}

impl Watched {
    pub(crate) fn insert(&mut self, number: u32) {
        self.all.push(number);
    }
    /// A queue pair that is awake takes places from a shared receive queue.
    fn wake_shared(&mut self, number: u32, srqs: &mut Numbered<Srq>) {
        let Some(srq) = srqs.get_mut(&number) else { return };
        if srq.awake == 0 {
            self.shared.push(number);
        }
        srq.awake += 1;
    }
    /// Such a queue pair is dormant, or has gone.
    fn forget_shared(shared: &mut Vec<u32>, number: u32, srqs: &mut Numbered<Srq>) {
        let Some(srq) = srqs.get_mut(&number) else { return };
        srq.awake -= 1;
        if srq.awake == 0 {
            shared.retain(|n| *n != number);
        }
    }
    /// A target that is awake takes places from the shared receive queues of its domain.
    fn wake_domain(&mut self, number: u32, xrcds: &mut Numbered<Domain>) {
        let Some(domain) = xrcds.get_mut(&number) else { return };
        if domain.awake == 0 {
            self.domains.push(number);
        }
        domain.awake += 1;
    }
    /// Such a target is dormant, or has gone.
    fn forget_domain(domains: &mut Vec<u32>, number: u32, xrcds: &mut Numbered<Domain>) {
        let Some(domain) = xrcds.get_mut(&number) else { return };
        domain.awake -= 1;
        if domain.awake == 0 {
            domains.retain(|n| *n != number);
        }
    }
    /// A queue pair has gone.
    pub(crate) fn remove(
        &mut self,
        number: u32,
        qp: &Qp,
        (srqs, xrcds): (&mut Numbered<Srq>, &mut Numbered<Domain>),
    ) {
        self.all.retain(|n| *n != number);
        self.awake.retain(|n| *n != number);
        self.called.retain(|(n, _)| *n != number);
        if !qp.watch.awake {
            return;
        }
        if let Some(srq) = qp.srq {
            Self::forget_shared(&mut self.shared, srq, srqs);
        }
        if let Some(xrcd) = qp.xrcd {
            Self::forget_domain(&mut self.domains, xrcd, xrcds);
        }
    }
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Qp {
    /// It was found to have something to do.
    pub(crate) fn stirred(&mut self, stirred: bool) -> bool {
        if stirred {
            self.watch.quiet = 0;
        }
        stirred
    }

    /// Whether its records say that there is something.
    fn has_work(&self) -> bool {
        let Some(memory) = self.memory.as_ref().filter(|_| !self.in_reset) else { return false };
        let says = |at, known| memory.record.load32(at) as u16 != known;
        self.sq.is_some() && says(4, self.announced) || self.rq.is_some_and(|rq| says(0, rq.next))
    }

    /// Whether it has nothing under way.
    fn is_idle(&self) -> bool {
        let all_taken = self.memory.is_none() || self.sq.is_none_or(|sq| sq.next == self.announced);
        self.held == 0 && self.barrier.is_none() && all_taken
    }
}

impl Objects {
    /// A queue pair is looked at from now on.
    pub(crate) fn activate(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(&number).filter(|qp| !qp.watch.awake) else { return };
        if qp.watch.is_dormant {
            self.watched.activated.push(qp.handle);
        }
        if qp.watch.is_called {
            self.watched.called.retain(|(n, _)| *n != number);
        }
        qp.watch = Watch { awake: true, ..Watch::default() };
        self.watched.awake.push(number);
        if let Some(srq) = qp.srq {
            self.watched.wake_shared(srq, &mut self.srqs);
        }
        if let Some(xrcd) = qp.xrcd {
            self.watched.wake_domain(xrcd, &mut self.xrcds);
        }
    }

    /// A doorbell was rung, which may have hidden another one.
    pub(crate) fn suspect_all(&mut self) {
        self.watched.suspects = self.watched.all.len();
    }

    /// Those that have something waiting for them at the adapter are looked at.
    pub(crate) fn activate_called(&mut self) {
        for handle in self.hca.called(|qp| self.number_of(qp).is_some()) {
            let Some(number) = self.number_of(handle) else { continue };
            let Self { watched, qps, xrcds, .. } = self;
            let Some(qp) = qps.get_mut(&number) else { continue };
            match qp.xrcd.and_then(|xrcd| xrcds.get(&xrcd)).filter(|domain| domain.is_large()) {
                None => self.activate(number),
                Some(domain) if !qp.watch.is_called => {
                    qp.watch.is_called = true;
                    watched.called.push((number, domain.due()));
                }
                Some(_) => {}
            }
        }
    }

    /// Reads queues of domains with many of them, for targets for which something waits, and delivers it where all were
    /// read. Returns whether something waits.
    pub(crate) fn read_for_called(&mut self, guest: &Guest) -> bool {
        let Self { watched, qps, srqs, xrcds, hca, raised, buses, .. } = self;
        let any = !watched.called.is_empty();
        let (mut left, mut names) = (QUEUES_A_LOOK, Names { hca, guest, buses, keys: None });
        watched.called.retain_mut(|(number, due)| {
            let Some(qp) = qps.get_mut(number) else { return false };
            let domain = qp.xrcd.and_then(|xrcd| xrcds.get_mut(&xrcd));
            if let Some(domain) = domain.filter(|domain| !domain.has_read(due)) {
                domain.read_some(&mut left, |number| {
                    let srq = srqs.get_mut(number);
                    srq.is_some_and(|srq| {
                        take_shared(*number, srq, &mut names, raised);
                        srq.more
                    })
                });
                if !domain.has_read(due) {
                    return true;
                }
            }
            qp.watch.is_called = false;
            names.hca.deliver(qp.handle);
            false
        });
        any
    }

    /// Places of all that are awake were taken: what has waited for some of them comes, once they have all that they
    /// were given.
    pub(crate) fn wake_activated(&mut self) {
        let Self { watched, qps, srqs, xrcds, by_index, hca, .. } = self;
        watched.activated.retain(|handle| {
            let qp = by_index.get(&handle.index).and_then(|number| qps.get(number));
            let shared = |number: &u32| srqs.get(number).is_some_and(|srq| srq.more);
            let domain = |qp: &Qp| qp.xrcd.and_then(|number| xrcds.get(&number));
            let any_shared = |qp: &Qp| {
                qp.srq.is_some_and(|number| shared(&number)) || domain(qp).is_some_and(|domain| domain.more)
            };
            let more = qp.is_some_and(|qp| qp.handle == *handle && (qp.watch.more || any_shared(qp)));
            if !more {
                hca.wake(*handle);
            }
            more
        });
    }

    /// Looks at those that may have had a doorbell. Returns whether there are any left.
    pub(crate) fn look_at_suspects(&mut self) -> bool {
        let count = self.watched.suspects.min(SUSPECTS);
        self.watched.suspects -= count;
        self.poll_dormant(count);
        count > 0
    }

    /// Looks at up to this many dormant queue pairs. Returns whether one has something to do.
    pub(crate) fn poll_dormant(&mut self, count: usize) -> bool {
        let mut any = false;
        for _ in 0..count.min(self.watched.all.len()) {
            self.watched.next = (self.watched.next + 1) % self.watched.all.len();
            let number = self.watched.all[self.watched.next];
            if self.qps.get(&number).is_some_and(|qp| !qp.watch.awake && qp.has_work()) {
                self.activate(number);
                any = true;
            }
        }
        any
    }

    /// Makes queue pairs dormant that had nothing to do for a while.
    pub(crate) fn park_idle(&mut self) {
        let Self { watched, qps, srqs, xrcds, hca, .. } = self;
        let Watched { shared, domains, activated, .. } = watched;
        watched.awake.retain(|number| {
            let Some(qp) = qps.get_mut(number) else { return false };
            qp.watch.quiet = if qp.is_idle() { qp.watch.quiet + 1 } else { 0 };
            let large = qp.xrcd.and_then(|xrcd| xrcds.get(&xrcd)).is_some_and(Domain::is_large);
            if qp.watch.quiet < if large { 1 } else { PATIENCE } {
                return true;
            }
            let is_dormant = !qp.is_inert() && hca.make_dormant(qp.handle);
            if is_dormant || qp.is_inert() {
                qp.watch = Watch { is_dormant, ..Watch::default() };
                // Of a large domain, before all was read: it sleeps on.
                activated.retain(|handle| *handle != qp.handle);
                if let Some(srq) = qp.srq {
                    Watched::forget_shared(shared, srq, srqs);
                }
                if let Some(xrcd) = qp.xrcd {
                    Watched::forget_domain(domains, xrcd, xrcds);
                }
                return false;
            }
            qp.watch.quiet = 0;
            true
        });
    }
}

impl Function {
    /// Looks at so many queue pairs to which nothing has drawn attention. Returns whether one has something to do.
    pub(crate) fn poll_dormant(&mut self, count: usize) -> bool {
        self.objects.poll_dormant(count)
    }
}
