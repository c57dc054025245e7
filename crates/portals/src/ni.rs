//! The parts of a network interface that both versions share: calls on its engine, under the node's lock, and waiting.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use hca_matching::{
    Config, Count, CtHandle, Entry, EntryHandle, EqHandle, Event, Got, Limits, ListKind, Md, MdHandle,
    MdOptions, Operation, Place, Region, Transfer, Triggered,
};

use crate::memory::Pieces;
use crate::node::{Kind, NiState, State};
use crate::trace::Trace;
use crate::{Error, Node, wire};

/// An interface that is open; dropped, it is closed.
pub(crate) struct NiCore {
    node: Node,
    kind: Kind,
    /// The kind's number.
    ni: u8,
}

impl NiCore {
    /// # Errors
    /// One of this kind is open on the node.
    pub(crate) fn open(node: &Node, kind: Kind, config: Config) -> Result<Self, Error> {
        let directory = &node.options().directory;
        let size = directory.size();
        let eager = node.options().eager_bytes as u64;
        let asked = config.limits;
        let limits = Limits {
            max_msg_size: asked.max_msg_size.min(wire::MAX_MESSAGE),
            max_atomic_size: asked.max_atomic_size.min(eager),
            max_fetch_atomic_size: asked.max_fetch_atomic_size.min(eager),
            ..asked
        };
        let config = Config { limits, ..config };
        node.with(|state| {
            let slot = state.ni_slot(kind.index());
            if slot.is_some() {
                return Err(Error::InterfaceOpen);
            }
            *slot = Some(Box::new(NiState::new(kind, config, size)));
            Ok(())
        })?;
        Ok(Self { node: node.clone(), kind, ni: kind.index() })
    }
    /// The version's own object of an open interface, for another call that opens it.
    pub(crate) fn object_of(node: &Node, kind: Kind) -> Option<Arc<dyn Any + Send + Sync>> {
        node.with(|state| state.ni_slot(kind.index()).as_ref()?.object.as_ref()?.upgrade())
    }
    /// Stores the version's own object for [`object_of`](Self::object_of).
    pub(crate) fn set_object(&self, object: Weak<dyn Any + Send + Sync>) {
        self.look(|ni| ni.object = Some(object));
    }
    /// The granted limits.
    pub(crate) fn limits(&self) -> Limits {
        self.look(|ni| *ni.engine.limits())
    }
    /// Looks at the interface, or changes what nothing follows from.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&mut NiState) -> R) -> R {
        self.state(|state| f(state.ni(self.ni())))
    }
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }
    #[inline]
    fn ni(&self) -> u8 {
        self.ni
    }
    #[inline]
    fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.node.with(f)
    }

    /// A call on the engine, and what follows from it.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        f: impl FnOnce(&mut NiState) -> Result<R, hca_matching::Error>,
    ) -> Result<R, Error> {
        self.state(|state| {
            let result = f(state.ni(self.ni()));
            state.after(self.ni());
            Ok(result?)
        })
    }
    /// The same, where memory comes with it.
    pub(crate) fn with_memory<R>(
        &self,
        memory: Pieces,
        f: impl FnOnce(&mut NiState, Pieces) -> Result<R, hca_matching::Error>,
    ) -> Result<R, Error> {
        // This one is dropped when the lock is given back.
        let kept = memory.clone();
        let result = self.state(|state| {
            if !state.owns(&memory) {
                return Err(Error::Argument {
                    argument: "memory",
                    why: "it is registered with another node, and this one's device can't reach it",
                });
            }
            let result = f(state.ni(self.ni()), memory);
            state.after(self.ni());
            Ok(result?)
        });
        drop(kept);
        result
    }
    pub(crate) fn append(
        &self,
        pt_index: u32,
        list: ListKind,
        entry: Entry,
        memory: Pieces,
    ) -> Result<EntryHandle, Error> {
        self.insert(Place::Last(pt_index, list), entry, memory)
    }
    pub(crate) fn insert(&self, place: Place, entry: Entry, memory: Pieces) -> Result<EntryHandle, Error> {
        self.with_memory(memory, |ni, memory| {
            let handle = ni.engine.insert(place, entry)?;
            ni.set_entry_memory(handle, memory);
            Ok(handle)
        })
    }
    /// A descriptor of 4.3.
    pub(crate) fn md_bind(&self, md: Md, memory: Pieces) -> Result<MdHandle, Error> {
        self.with_memory(memory, |ni, memory| {
            let handle = ni.engine.md_bind(md)?;
            ni.set_md_memory(handle, memory);
            ni.set_md_volatile(handle, md.options.contains(MdOptions::VOLATILE));
            Ok(handle)
        })
    }
    /// A descriptor of 3.3 that is attached to no entry.
    pub(crate) fn md_bind_region(&self, region: Region, memory: Pieces) -> Result<MdHandle, Error> {
        self.with_memory(memory, |ni, memory| {
            let handle = ni.engine.md_bind_region(region)?;
            ni.set_md_memory(handle, memory);
            Ok(handle)
        })
    }
    /// A descriptor of 3.3 on an entry.
    pub(crate) fn attach(
        &self,
        entry: EntryHandle,
        region: Region,
        memory: Pieces,
    ) -> Result<MdHandle, Error> {
        self.with_memory(memory, |ni, memory| {
            let handle = ni.engine.attach(entry, region)?;
            ni.set_md_memory(handle, memory);
            Ok(handle)
        })
    }
    /// The values of a descriptor of 3.3, and the memory that they are of.
    pub(crate) fn md_values(&self, md: MdHandle) -> Result<(Region, Pieces), Error> {
        self.with(|ni| ni.md_values(md))
    }
    /// New values for a descriptor of 3.3, with the memory that they are of; yields the old ones.
    pub(crate) fn md_update(
        &self,
        md: MdHandle,
        new: Region,
        memory: Pieces,
        test: Option<EqHandle>,
    ) -> Result<(Region, Pieces), Error> {
        // What has come by now counts.
        self.node.progress();
        self.with_memory(memory, |ni, memory| {
            let old = ni.md_values(md)?;
            // Whether it leaves when it is used up is no value of its.
            let unlink = old.0.unlink;
            ni.engine.md_update(md, Some(Region { unlink, ..new }), test)?;
            ni.set_md_memory(md, memory);
            Ok(old)
        })
    }
    /// Begins an operation, if it is a put that can leave at once and is not answered. `false`: nothing was done, and
    /// [`start`](Self::start) begins it, or says why it can't.
    #[inline(always)]
    pub(crate) fn start_at_once(&self, transfer: &Transfer) -> bool {
        let ni = self.ni();
        transfer.operation == Operation::Put
            && !transfer.is_answered()
            && self.state(|state| {
                let sent = state.start_at_once(ni, transfer);
                state.make_room();
                sent
            })
    }
    /// Begins an operation.
    #[inline(never)]
    pub(crate) fn start(&self, transfer: &Transfer) -> Result<(), Error> {
        let ni = self.ni();
        let done = self.state(|state| {
            state.start(ni, transfer)?;
            state.make_room();
            Ok(())
        });
        match done {
            Ok(()) => Ok(()),
            Err(refused) => self.start_anew(transfer, refused),
        }
    }
    /// Begins an operation that was refused, if its target was only still to be found, or to be met.
    #[cold]
    fn start_anew(&self, transfer: &Transfer, refused: Error) -> Result<(), Error> {
        let Error::Target { target } = refused else { return Err(refused) };
        let ni = self.ni();
        if self.state(|state| state.is_unknown(ni, target) || state.is_unconnected(ni, target)) {
            self.find(target)?;
            self.node.meet(ni, target)?;
        }
        // Otherwise another thread may have met it meanwhile.
        self.state(|state| state.start_and_connect(ni, transfer))
    }
    /// Has something done when a count is reached.
    pub(crate) fn trigger(&self, ct: CtHandle, threshold: u64, what: Triggered) -> Result<(), Error> {
        if let Triggered::Transfer(transfer) = &what {
            let unknown = self.state(|state| {
                state.check(self.ni(), transfer)?;
                let ni = state.ni(self.ni());
                if !ni.in_range(transfer.target) {
                    return Err(Error::Target { target: transfer.target });
                }
                Ok(state.is_unknown(self.ni(), transfer.target))
            })?;
            if unknown {
                self.find_out(transfer.target)?;
            }
        }
        self.with(|ni| ni.engine.trigger(ct, threshold, what))
    }
    /// Finds out where a process is, if that is not known.
    pub(crate) fn find(&self, process: hca_matching::Process) -> Result<(), Error> {
        match self.state(|state| state.is_unknown(self.ni(), process)) {
            true => self.find_out(process),
            false => Ok(()),
        }
    }
    /// Finds out where a process is, or where it is now, if it was lost.
    #[cold]
    fn find_out(&self, target: hca_matching::Process) -> Result<(), Error> {
        match self.look_up(target) {
            Err(error) if !self.state(|state| state.trust(self.ni(), target)) => Err(error),
            _ => Ok(()),
        }
    }
    /// Asks the directory where a target is.
    #[cold]
    fn look_up(&self, target: hca_matching::Process) -> Result<(), Error> {
        let directory = &self.node.options().directory;
        let map = self.state(|state| state.ni(self.ni()).map.clone());
        let (card, rank) = match map {
            None if self.kind.is_logical() => (directory.by_rank(target.rank())?, Some(target.rank())),
            None => (directory.by_process(target.nid(), target.pid())?, None),
            Some(map) => {
                let at = target.rank().0 as usize;
                let &(nid, pid) = map.get(at).ok_or(Error::Target { target })?;
                (directory.by_process(nid, pid)?, None)
            }
        };
        self.state(|state| state.learn(card, rank));
        Ok(())
    }

    /// Takes the oldest event of a queue, which is shown where it lies.
    #[inline(always)]
    pub(crate) fn eq_take<R>(
        &self,
        eq: EqHandle,
        show: impl FnOnce(&Event, bool) -> R,
    ) -> Result<Option<R>, Error> {
        let ni = self.ni();
        // Built here, and not handed through the results of the calls between.
        let mut shown = None;
        self.state(|state| {
            if state.ni(ni).engine.eq_len(eq)? > 0 || state.progress() {
                let engine = &mut state.ni(ni).engine;
                engine.eq_take(eq, |event, dropped| shown = Some(show(event, dropped)))?;
            }
            Ok::<_, Error>(())
        })?;
        Ok(shown)
    }
    /// Takes an event of one of several queues, waiting for it; without a timeout for ever.
    pub(crate) fn eq_poll(
        &self,
        eqs: &[EqHandle],
        timeout: Option<Duration>,
    ) -> Result<Option<(usize, Got)>, Error> {
        self.node.wait(timeout, |state| {
            let ni = state.ni(self.ni());
            let found = ni.engine.eq_poll(eqs, ni.turn)?;
            // The next one is asked first then.
            ni.turn = found.map_or(ni.turn, |(which, _)| which + 1);
            Ok(found)
        })
    }
    /// Waits until one of several counting events has reached its test, successes and failures together.
    pub(crate) fn ct_poll(
        &self,
        cts: &[(CtHandle, u64)],
        timeout: Option<Duration>,
    ) -> Result<Option<(usize, Count)>, Error> {
        self.node.wait(timeout, |state| {
            let ni = state.ni(self.ni());
            let found = ni.engine.ct_poll(cts, ni.turn)?;
            // The next one is asked first then.
            ni.turn = found.map_or(ni.turn, |(which, _)| which + 1);
            Ok(found)
        })
    }
    /// As [`eq_poll`](Self::eq_poll) of one queue, for a future.
    pub(crate) fn poll_eq(&self, cx: &mut TaskContext<'_>, eq: EqHandle) -> Poll<Result<Got, Error>> {
        self.node.poll_ready(cx, |state| {
            let ni = state.ni(self.ni());
            Ok(ni.engine.eq_poll(&[eq], 0)?.map(|(_, got)| got))
        })
    }
    /// As [`ct_poll`](Self::ct_poll) of one counting event, for a future.
    pub(crate) fn poll_ct(
        &self,
        cx: &mut TaskContext<'_>,
        ct: CtHandle,
        test: u64,
    ) -> Poll<Result<Count, Error>> {
        self.node.poll_ready(cx, |state| {
            let ni = state.ni(self.ni());
            Ok(ni.engine.ct_poll(&[(ct, test)], 0)?.map(|(_, count)| count))
        })
    }
    /// Waits until `ready` yields something of the interface.
    pub(crate) fn wait_for<R>(
        &self,
        mut ready: impl FnMut(&mut NiState) -> Result<Option<R>, hca_matching::Error>,
    ) -> Result<R, Error> {
        let found = self.node.wait(None, |state| Ok(ready(state.ni(self.ni()))?))?;
        Ok(found.expect("it waits for ever"))
    }
    /// The value of a counting event, after what has come.
    pub(crate) fn ct_get(&self, ct: CtHandle) -> Result<Count, Error> {
        self.state(|state| {
            state.progress();
            Ok(state.ni(self.ni()).engine.ct_get(ct)?)
        })
    }
    pub(crate) fn start_bundle(&self) {
        self.state(|state| state.start_bundle(self.ni()));
    }
    pub(crate) fn end_bundle(&self) {
        self.state(|state| state.end_bundle(self.ni()));
    }
    /// Ends all waiting on this interface.
    pub(crate) fn abort(&self) {
        self.state(|state| state.ni(self.ni()).engine.abort());
        self.node.wake_all();
    }
    /// Sets the trace of each message's way.
    pub(crate) fn set_trace(&self, trace: Option<Trace>) {
        self.state(|state| state.ni(self.ni()).trace = trace.map(Box::new));
    }
}

impl Drop for NiCore {
    fn drop(&mut self) {
        self.node.close_ni(self.ni());
    }
}
