//! One network interface of a node: the matching engine, and the memory of its handles.

use std::any::Any;
use std::sync::{Arc, Weak};

use hca_matching::{
    Config, Delivery, EntryHandle, Header, Interface, Landing, MdHandle, NiFail, Nid, Operation, Pid,
    Process, Rank, Region, Released, Response, Verdict,
};

use super::State;
use super::hello::{Identity, NO_RANK};
use super::peer::Flying;
use crate::memory::Pieces;
use crate::trace::Trace;

/// The kind of a node's interface; interfaces of the two versions do not exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// 4.3.
    V4 { matching: bool, logical: bool },
    /// 3.3.
    V3,
}

impl Kind {
    /// How many kinds there are.
    pub(crate) const COUNT: usize = 5;

    pub(crate) const fn index(self) -> u8 {
        match self {
            Self::V4 { matching, logical } => (matching as u8) << 1 | logical as u8,
            Self::V3 => 4,
        }
    }
    pub(crate) const fn is_logical(self) -> bool {
        matches!(self, Self::V4 { logical: true, .. })
    }
}

/// An interface, and the objects of its handles.
pub(crate) struct NiState {
    pub(crate) engine: Interface,
    kind: Kind,
    /// Ranks, as the program mapped them; without, they are those of the job.
    pub(crate) map: Option<Arc<[(Nid, Pid)]>>,
    /// The last target, and the peer that it is.
    pub(super) last: Option<(Process, u32)>,
    /// Ranks of the job.
    size: Option<u32>,
    entries: Vec<Option<Pieces>>,
    pub(super) mds: Vec<Option<Pieces>>,
    /// Which of these may be changed by the program as soon as a call returns; no longer than the last that may.
    volatile_mds: Vec<bool>,
    pub(crate) trace: Option<Box<Trace>>,
    /// Bundles that are open.
    pub(super) bundles: u32,
    /// It is being closed: it takes nothing, and begins nothing.
    closing: bool,
    /// The program's object of it, for opening it once more.
    pub(crate) object: Option<Weak<dyn Any + Send + Sync>>,
    /// Which of several queues or counts is asked first: the one behind that which had something last.
    pub(crate) turn: usize,
}

impl NiState {
    pub(crate) fn new(kind: Kind, config: Config, size: Option<u32>) -> Self {
        let engine = Interface::new(Config { reports_released: true, ..config });
        Self {
            engine,
            kind,
            map: None,
            last: None,
            size,
            entries: Vec::new(),
            mds: Vec::new(),
            volatile_mds: Vec::new(),
            trace: None,
            bundles: 0,
            closing: false,
            object: None,
            turn: 0,
        }
    }
    /// The rank that a target is, where targets are ranks.
    #[inline]
    pub(super) fn rank_of(&self, target: Process) -> Option<Rank> {
        self.kind.is_logical().then(|| target.rank())
    }
    /// The process that a target is, as far as that is known here.
    #[inline]
    pub(super) fn process(&self, target: Process) -> Option<(Nid, Pid)> {
        match &self.map {
            _ if !self.kind.is_logical() => Some((target.nid(), target.pid())),
            Some(map) => map.get(target.rank().0 as usize).copied(),
            None => None,
        }
    }
    /// Maps ranks to processes; `false`: they are mapped already.
    pub(crate) fn set_map(&mut self, map: Vec<(Nid, Pid)>) -> bool {
        if self.map.is_some() {
            return false;
        }
        (self.map, self.last) = (Some(map.into()), None);
        true
    }
    /// Whether there can be such a target.
    pub(crate) fn in_range(&self, target: Process) -> bool {
        let ranks = self.map.as_ref().map(|map| map.len() as u32).or(self.size);
        !self.kind.is_logical() || ranks.is_none_or(|ranks| target.rank().0 < ranks)
    }
    /// It takes nothing more, and begins nothing more.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }
    /// How a peer is called here; `None`: it has no rank.
    #[inline]
    pub(super) fn process_of(&self, identity: &Identity) -> Option<Process> {
        if !self.kind.is_logical() {
            return Some(Process::physical(identity.nid, identity.pid));
        }
        let rank = match &self.map {
            None => identity.rank,
            Some(map) if map.get(identity.rank.0 as usize) == Some(&(identity.nid, identity.pid)) => {
                identity.rank
            }
            Some(map) => {
                let at = map.iter().position(|&process| process == (identity.nid, identity.pid))?;
                Rank(at as u32)
            }
        };
        (rank != NO_RANK).then(|| Process::logical(rank))
    }

    /// The memory that an entry has from now on.
    pub(crate) fn set_entry_memory(&mut self, entry: EntryHandle, memory: Pieces) {
        set(&mut self.entries, entry.index(), memory);
    }
    /// The memory that a descriptor has from now on.
    pub(crate) fn set_md_memory(&mut self, md: MdHandle, memory: Pieces) {
        set(&mut self.mds, md.index(), memory);
    }
    /// Whether a descriptor's bytes may be changed by the program as soon as a call returns.
    pub(crate) fn set_md_volatile(&mut self, md: MdHandle, is_volatile: bool) {
        let at = md.index() as usize;
        if is_volatile && self.volatile_mds.len() <= at {
            self.volatile_mds.resize(at + 1, false);
        }
        if let Some(slot) = self.volatile_mds.get_mut(at) {
            *slot = is_volatile;
        }
    }
    #[inline]
    pub(super) fn is_volatile(&self, md: MdHandle) -> bool {
        self.volatile_mds.get(md.index() as usize).is_some_and(|&is_volatile| is_volatile)
    }
    #[inline]
    pub(crate) fn md_memory(&self, md: MdHandle) -> Option<&Pieces> {
        self.mds.get(md.index() as usize)?.as_ref()
    }
    /// The values of a descriptor of 3.3, and its memory.
    pub(crate) fn md_values(&self, md: MdHandle) -> Result<(Region, Pieces), hca_matching::Error> {
        let region = self.engine.md_region(md)?;
        Ok((region, self.md_memory(md).expect("a descriptor has memory").clone()))
    }
    /// Where a message's bytes go to or come from.
    #[inline]
    pub(super) fn memory_of(&self, landing: &Landing) -> &Pieces {
        memory_of(&self.entries, &self.mds, landing)
    }
    /// Takes a put whose bytes are present.
    #[inline(always)]
    pub(super) fn place(&mut self, header: &Header, data: &[u8]) -> Response {
        let Self { engine, entries, mds, .. } = self;
        engine.place(header, |landing| {
            memory_of(entries, mds, landing).write(landing.offset, &data[..landing.mlength as usize]);
            NiFail::Ok
        })
    }
    #[inline]
    pub(super) fn deliver(&mut self, header: &Header) -> Verdict {
        if let Some(trace) = &mut self.trace {
            trace.came(&self.engine, header);
        }
        self.engine.deliver(header)
    }
    #[inline]
    pub(super) fn complete(&mut self, delivery: Delivery, fail: NiFail) -> Response {
        if let Some(trace) = &mut self.trace {
            trace.done(&delivery, fail);
        }
        self.engine.complete(delivery, fail)
    }
    fn release(&mut self, released: Released) -> Option<Pieces> {
        match released {
            Released::Entry(entry) => self.entries.get_mut(entry.index() as usize)?.take(),
            Released::Md(md) => self.mds.get_mut(md.index() as usize)?.take(),
        }
    }
}

#[inline]
fn memory_of<'a>(entries: &'a [Option<Pieces>], mds: &'a [Option<Pieces>], landing: &Landing) -> &'a Pieces {
    let memory = match landing.md {
        Some(md) => mds.get(md.index() as usize),
        None => entries.get(landing.entry.index() as usize),
    };
    memory.and_then(Option::as_ref).expect("what takes messages has memory")
}

fn set(table: &mut Vec<Option<Pieces>>, index: u32, memory: Pieces) {
    if table.len() <= index as usize {
        table.resize(index as usize + 1, None);
    }
    table[index as usize] = Some(memory);
}
impl State {
    /// An interface that is open.
    #[inline]
    pub(crate) fn ni(&mut self, ni: u8) -> &mut NiState {
        self.nis[ni as usize].as_mut().expect("its interface is open")
    }
    /// Whether memory is registered with this node.
    pub(crate) fn owns(&self, memory: &Pieces) -> bool {
        memory.is_of(&self.net.ports.pd)
    }
    pub(crate) fn ni_slot(&mut self, ni: u8) -> &mut Option<Box<NiState>> {
        &mut self.nis[ni as usize]
    }
    /// Does the work that the engine left: triggered operations, memory to release.
    #[inline(always)]
    pub(crate) fn after(&mut self, ni: u8) {
        let is_settled = self.ni(ni).engine.is_settled();
        self.note(ni, is_settled);
    }
    /// The same where it is known whether the engine left any.
    #[inline(always)]
    pub(super) fn note(&mut self, ni: u8, is_settled: bool) {
        self.found = true;
        if !is_settled {
            self.settle(ni);
        }
    }
    #[cold]
    fn settle(&mut self, ni: u8) {
        // Operations that trigger others come back here; the outer call does them all.
        if std::mem::replace(&mut self.in_after, true) {
            return;
        }
        loop {
            let of = self.nis[ni as usize].as_mut().expect("its interface is open");
            if let Some(released) = of.engine.released() {
                if let Some(memory) = of.release(released) {
                    self.let_go(memory);
                }
            } else if let Some(transfer) = of.engine.fired() {
                self.start_fired(ni, &transfer);
            } else {
                break;
            }
        }
        self.in_after = false;
    }
    /// From now on operations may be left until the bundle's end.
    pub(crate) fn start_bundle(&mut self, ni: u8) {
        self.ni(ni).bundles += 1;
        self.net.bundles += 1;
    }
    /// Ends a bundle, if one is open, and has what was left in bundles begin.
    pub(crate) fn end_bundle(&mut self, ni: u8) {
        let open = &mut self.ni(ni).bundles;
        if *open > 0 {
            *open -= 1;
            self.net.bundles -= 1;
        }
        self.net.ring();
    }
    /// Begins an operation whose count was reached. If it can't begin, it is reported as undeliverable, unless its
    /// descriptor is gone.
    #[cold]
    fn start_fired(&mut self, ni: u8, transfer: &hca_matching::Transfer) {
        if self.ni(ni).is_closing() {
            return;
        }
        let is_plain = transfer.operation == Operation::Put && !transfer.is_answered();
        if is_plain && self.start_at_once(ni, transfer) {
            return;
        }
        let Err(error) = self.start(ni, transfer) else { return };
        tracing::warn!(%error, "starting a triggered operation failed");
        if let Ok(flight) = self.ni(ni).engine.begin(transfer) {
            let unsent = flight.is_sent();
            self.undeliverable(Flying { flight, ni, unsent, gone: false, copy: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_matching::{Jid, Md, Uid};

    use super::*;

    const RANKS: Kind = Kind::V4 { matching: true, logical: true };
    const NUMBERS: Kind = Kind::V4 { matching: true, logical: false };

    fn open(kind: Kind, size: Option<u32>) -> NiState {
        NiState::new(kind, Config::default(), size)
    }
    fn identity(nid: u32, pid: u32, rank: Rank) -> Identity {
        Identity { nid: Nid(nid), pid: Pid(pid), rank, uid: Uid(0), jid: Jid(0), incarnation: 1 }
    }

    /// Messages name them so.
    #[test]
    fn each_kind_of_interface_has_a_number() {
        let v4 = |matching, logical| Kind::V4 { matching, logical };
        let kinds = [v4(false, false), v4(false, true), v4(true, false), v4(true, true), Kind::V3];
        assert_eq!(kinds.map(Kind::index), [0, 1, 2, 3, 4]);
        assert_eq!(kinds.len(), Kind::COUNT);
    }

    #[test]
    fn a_map_says_who_has_a_rank_and_is_set_once() {
        let (a, b) = ((Nid(1), Pid(2)), (Nid(3), Pid(4)));
        let mut ni = open(RANKS, None);
        let called = |ni: &NiState, identity| ni.process_of(&identity).map(|process| process.rank().0);
        assert_eq!(ni.process(Process::logical(Rank(0))), None, "the job knows");
        assert_eq!(called(&ni, identity(1, 2, Rank(7))), Some(7));
        assert_eq!(called(&ni, identity(1, 2, NO_RANK)), None);
        ni.last = Some((Process::logical(Rank(0)), 5));
        assert!(ni.set_map(vec![b, a, b]));
        assert_eq!(ni.last, None, "another process has that rank now");
        assert!(!ni.set_map(vec![a]));
        let processes = [0, 1, 2, 3].map(|rank| ni.process(Process::logical(Rank(rank))));
        assert_eq!(processes, [Some(b), Some(a), Some(b), None]);
        // Its own rank where the map has it there, else the first.
        assert_eq!([0, 1, 2, 3].map(|rank| called(&ni, identity(3, 4, Rank(rank)))), [0, 0, 2, 0].map(Some));
        assert_eq!(called(&ni, identity(1, 2, Rank(0))), Some(1));
        assert_eq!(called(&ni, identity(1, 4, Rank(0))), None);
    }

    #[test]
    fn targets_are_in_range_of_the_map_or_of_the_job() {
        let in_range = |ni: &NiState| [1, 2, 3].map(|rank| ni.in_range(Process::logical(Rank(rank))));
        let mut ni = open(RANKS, Some(2));
        assert_eq!(in_range(&ni), [true, false, false]);
        ni.set_map(vec![(Nid(1), Pid(2)); 3]);
        assert_eq!(in_range(&ni), [true, true, false]);
        assert_eq!(in_range(&open(RANKS, None)), [true; 3]);
        let numbers = open(NUMBERS, Some(0));
        let process = Process::physical(Nid(9), Pid(9));
        assert!(numbers.in_range(process));
        assert_eq!(numbers.process(process), Some((Nid(9), Pid(9))));
        assert_eq!(numbers.process_of(&identity(9, 9, Rank(1))), Some(process));
    }

    #[test]
    fn a_descriptor_is_volatile_until_another_has_its_place() {
        let mut ni = open(NUMBERS, None);
        let mds: Vec<MdHandle> = (0..4).map(|_| ni.engine.md_bind(Md::default()).unwrap()).collect();
        let volatile = |ni: &NiState| mds.iter().map(|md| ni.is_volatile(*md)).collect::<Vec<_>>();
        ni.set_md_volatile(mds[3], false);
        assert!(ni.volatile_mds.is_empty(), "there is none");
        ni.set_md_volatile(mds[2], true);
        ni.set_md_volatile(mds[0], true);
        assert_eq!(volatile(&ni), [true, false, true, false]);
        ni.set_md_volatile(mds[2], false);
        assert_eq!(volatile(&ni), [true, false, false, false]);
    }
}
