//! [`Interface`]: the portal table, event queues, counting events and status of one network interface.

use std::collections::VecDeque;

use bitflags::bitflags;

use crate::chains::Seed;
use crate::counter::{Change, Counter};
use crate::entry::Posted;
use crate::event::EventQueue;
use crate::handle::{Key, MAX_OBJECTS, Slab};
use crate::initiator::MdSlot;
use crate::list::{List, Nodes};
use crate::unexpected::{Arrivals, Waiting};
use crate::{
    CtHandle, EntryHandle, EqHandle, Error, Event, EventKind, Got, Header, Jid, ListKind, MdHandle, Region,
    Released, Source, Transfer, Uid,
};

/// The Portals version, whose rules an [`Interface`] follows where an entry does not set its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// Portals 3.3: start and end events; the search skips an entry that may not take a message; an access control
    /// list.
    V3,
    /// Portals 4.3: single events; an entry that matches and may not take a message ends the search.
    #[default]
    V4,
}

/// The limits of an interface. [`Limits::grant`] returns the limits that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries, on all lists together.
    pub max_entries: u32,
    /// Headers that wait, at all portals together.
    pub max_unexpected_headers: u32,
    /// Memory descriptors.
    pub max_mds: u32,
    /// Counting events.
    pub max_cts: u32,
    /// Event queues.
    pub max_eqs: u32,
    /// Events of a queue.
    pub max_eq_events: u32,
    /// The largest index of a portal.
    pub max_pt_index: u32,
    /// The largest index of the access control list (3.3).
    pub max_ac_index: u32,
    /// Entries of a list.
    pub max_list_size: u32,
    /// Operations that wait for a count, or that were not fetched since it was reached.
    pub max_triggered_ops: u32,
    /// Bytes of a message.
    pub max_msg_size: u64,
    /// Bytes of an atomic operation without a reply.
    pub max_atomic_size: u64,
    /// Bytes of an atomic operation with a reply.
    pub max_fetch_atomic_size: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_entries: 1 << 20,
            max_unexpected_headers: 1 << 16,
            max_mds: 1 << 16,
            max_cts: 1 << 16,
            max_eqs: 1 << 12,
            max_eq_events: 1 << 20,
            max_pt_index: 255,
            max_ac_index: 255,
            max_list_size: 1 << 20,
            max_triggered_ops: 1 << 16,
            max_msg_size: 1 << 40,
            max_atomic_size: 1 << 16,
            max_fetch_atomic_size: 1 << 16,
        }
    }
}

impl Limits {
    /// The largest limits that an interface can have.
    pub const MAX: Self = Self {
        max_entries: MAX_OBJECTS,
        max_unexpected_headers: MAX_OBJECTS,
        max_mds: MAX_OBJECTS,
        max_cts: MAX_OBJECTS,
        max_eqs: MAX_OBJECTS,
        max_eq_events: MAX_OBJECTS,
        max_pt_index: 65_535,
        max_ac_index: 65_535,
        max_list_size: MAX_OBJECTS,
        max_triggered_ops: MAX_OBJECTS,
        max_msg_size: i64::MAX as u64,
        max_atomic_size: 1 << 20,
        max_fetch_atomic_size: 1 << 20,
    };

    /// The granted limits for a request: each limit as requested, as far as possible.
    pub fn grant(asked: &Self) -> Self {
        let max = Self::MAX;
        Self {
            max_entries: asked.max_entries.min(max.max_entries),
            max_unexpected_headers: asked.max_unexpected_headers.min(max.max_unexpected_headers),
            max_mds: asked.max_mds.min(max.max_mds),
            max_cts: asked.max_cts.min(max.max_cts),
            max_eqs: asked.max_eqs.min(max.max_eqs),
            max_eq_events: asked.max_eq_events.min(max.max_eq_events),
            max_pt_index: asked.max_pt_index.min(max.max_pt_index),
            max_ac_index: asked.max_ac_index.min(max.max_ac_index),
            max_list_size: asked.max_list_size.min(max.max_list_size),
            max_triggered_ops: asked.max_triggered_ops.min(max.max_triggered_ops),
            max_msg_size: asked.max_msg_size.min(max.max_msg_size),
            max_atomic_size: asked.max_atomic_size.min(max.max_atomic_size),
            max_fetch_atomic_size: asked.max_fetch_atomic_size.min(max.max_fetch_atomic_size),
        }
    }
}

/// The settings of a new [`Interface`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The Portals version.
    pub version: Version,
    /// Whether entries have match criteria. An entry without criteria takes any message for its portal.
    pub matching: bool,
    /// The requested limits.
    pub limits: Limits,
    /// The seed of the hash by which entries are found: a number that peers do not know.
    pub seed: u64,
    /// Whether [`Interface::released`] lists the entries and memory descriptors that were released. The caller must
    /// take the whole list, which grows until then.
    pub reports_released: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: Version::V4,
            matching: true,
            limits: Limits::default(),
            seed: 0,
            reports_released: false,
        }
    }
}

bitflags! {
    /// The options of a portal (4.3).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PortalOptions: u32 {
        /// A hint that all entries are used once. This implementation makes no use of it, and takes other entries.
        const ONLY_USE_ONCE = 1 << 0;
        /// If a resource runs out, the portal is disabled, and no messages or events are lost: see
        /// [`Interface::pt_enable`].
        const FLOWCTRL = 1 << 1;
        /// A hint that no entry of the priority list refuses messages that are too long. This implementation makes no
        /// use of it, and takes other entries.
        const ONLY_TRUNCATE = 1 << 2;
        /// The order of matching does not matter to the program. It is kept nevertheless.
        const MATCH_UNORDERED = 1 << 3;
        /// The portal begins disabled.
        const ALLOC_DISABLED = 1 << 4;
    }
}

/// The counters of an interface (its status registers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Dropped messages: no portal, a disabled portal, no entry, or no room for the header. In 3.3, all refused
    /// messages.
    pub dropped: u64,
    /// Messages whose sender lacks the permission.
    pub permission_violations: u64,
    /// Messages whose operation the entry, or the interface, does not allow.
    pub operation_violations: u64,
}

/// An entry of the access control list (3.3): the processes that may send to a portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acl {
    /// The processes.
    pub source: Source,
    /// The user; `None` is any.
    pub uid: Option<Uid>,
    /// The job; `None` is any.
    pub jid: Option<Jid>,
    /// The portal; `None` is any.
    pub pt_index: Option<u32>,
}

impl Acl {
    pub(crate) fn admits(&self, header: &Header) -> bool {
        self.source.includes(header.initiator)
            && self.uid.is_none_or(|uid| uid == header.uid)
            && self.jid.is_none_or(|jid| jid == header.jid)
            && self.pt_index.is_none_or(|pt| pt == header.pt_index)
    }
}

#[derive(Debug)]
pub(crate) struct Portal {
    pub(crate) options: PortalOptions,
    pub(crate) eq: Option<EqHandle>,
    pub(crate) disabled: bool,
    pub(crate) priority: List,
    pub(crate) overflow: List,
    pub(crate) arrivals: Arrivals,
    /// Operations under way.
    pub(crate) pending: u32,
    /// Whether a place in its queue is kept for `PtDisabled`.
    pub(crate) notice_reserved: bool,
}

impl Portal {
    pub(crate) fn list(&self, kind: ListKind) -> &List {
        match kind {
            ListKind::Priority => &self.priority,
            ListKind::Overflow => &self.overflow,
        }
    }
    /// Keeps a place for the notice that this portal was disabled, if it is to have one and there is room.
    fn keep_notice(&mut self, eqs: &mut Slab<EventQueue>) {
        if self.options.contains(PortalOptions::FLOWCTRL) && !self.notice_reserved {
            let queue = self.eq.and_then(|eq| eqs.get_mut(eq.0));
            self.notice_reserved = queue.is_some_and(|queue| queue.reserve(1));
        }
    }
    pub(crate) fn list_mut(&mut self, kind: ListKind) -> &mut List {
        match kind {
            ListKind::Priority => &mut self.priority,
            ListKind::Overflow => &mut self.overflow,
        }
    }
}

/// The state of one network interface: its portal table, lists, queues and counts.
///
/// See the [crate's page](crate) for how it is used. It is not shared: a program with several threads locks it.
#[derive(Debug)]
pub struct Interface {
    pub(crate) config: Config,
    seed: Seed,
    pub(crate) portals: Vec<Option<Box<Portal>>>,
    pub(crate) entries: Slab<Posted>,
    pub(crate) nodes: Nodes,
    pub(crate) headers: Slab<Waiting>,
    pub(crate) mds: Slab<MdSlot>,
    pub(crate) eqs: Slab<EventQueue>,
    pub(crate) cts: Slab<Counter>,
    pub(crate) acl: Vec<Option<Acl>>,
    pub(crate) status: Status,
    /// Operations whose count was reached, to be fetched.
    pub(crate) fired: VecDeque<Transfer>,
    /// Of counting events, what is still to be done within the call at hand.
    pub(crate) work: VecDeque<(CtHandle, Change)>,
    /// Operations that wait or were not fetched.
    pub(crate) triggered: u32,
    pub(crate) serial: u64,
    pub(crate) next_link: u64,
    /// Entries and memory descriptors that are gone, to be told.
    released: VecDeque<Released>,
    aborted: bool,
}

impl Interface {
    /// An interface without objects. [`Limits::grant`] gives the limits.
    pub fn new(config: Config) -> Self {
        let limits = Limits::grant(&config.limits);
        Self {
            config: Config { limits, ..config },
            seed: Seed::new(config.seed),
            portals: std::iter::repeat_with(|| None).take(limits.max_pt_index as usize + 1).collect(),
            entries: Slab::new(limits.max_entries),
            nodes: Nodes::default(),
            headers: Slab::new(limits.max_unexpected_headers),
            mds: Slab::new(limits.max_mds),
            eqs: Slab::new(limits.max_eqs),
            cts: Slab::new(limits.max_cts),
            acl: Vec::new(),
            status: Status::default(),
            fired: VecDeque::new(),
            work: VecDeque::new(),
            triggered: 0,
            serial: 0,
            next_link: 1,
            released: VecDeque::new(),
            aborted: false,
        }
    }
    /// The limits that were granted.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }
    /// The counters of the interface.
    pub fn status(&self) -> Status {
        self.status
    }
    /// The next entry or memory descriptor that was released, in the order of release. An object is released when it is
    /// unlinked; when it is used up, no operation on it is under way and no waiting header has bytes in it; or when
    /// waiting headers used it up before it was linked. `None` unless [`Config::reports_released`] is set.
    #[inline]
    pub fn released(&mut self) -> Option<Released> {
        self.released.pop_front()
    }
    /// Whether both [`released`](Self::released) and [`fired`](Self::fired) would return `None`.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.released.is_empty() && self.fired.is_empty()
    }
    /// Whether an entry is posted, or its memory is still in use, by operations under way or by the bytes of waiting
    /// headers.
    #[inline]
    pub fn has_entry(&self, entry: EntryHandle) -> bool {
        self.entries.get(entry.0).is_some()
    }
    /// Whether a memory descriptor exists, or operations under way still need its memory.
    #[inline]
    pub fn has_md(&self, md: MdHandle) -> bool {
        self.mds.get(md.0).is_some()
    }
    pub(crate) fn remove_entry(&mut self, index: u32) {
        if self.config.reports_released {
            self.released.push_back(Released::Entry(EntryHandle(self.entries.key_at(index))));
        }
        self.entries.remove(index);
    }
    pub(crate) fn remove_md(&mut self, md: Key) {
        if self.config.reports_released {
            self.released.push_back(Released::Md(MdHandle(md)));
        }
        self.mds.remove(md.index());
    }
    /// Sets or clears an entry of the access control list (3.3). Until the first call, all processes are admitted.
    ///
    /// # Errors
    /// [`Error::TooLarge`] names an index beyond the limit, [`Error::PtIndex`] a portal that cannot be.
    pub fn set_acl(&mut self, ac_index: u32, acl: Option<Acl>) -> Result<(), Error> {
        let limit = self.config.limits.max_ac_index;
        if ac_index > limit {
            let (value, limit) = (u64::from(ac_index), u64::from(limit));
            return Err(Error::TooLarge { argument: "ac_index", value, limit });
        }
        if let Some(pt_index) =
            acl.and_then(|acl| acl.pt_index).filter(|&i| i > self.config.limits.max_pt_index)
        {
            return Err(Error::PtIndex { pt_index });
        }
        if self.acl.len() <= ac_index as usize {
            self.acl.resize(ac_index as usize + 1, None);
        }
        self.acl[ac_index as usize] = acl;
        Ok(())
    }

    /// Allocates a portal, at the requested index or at any.
    ///
    /// # Errors
    /// [`Error::PtEqNeeded`], [`Error::PtIndex`] (beyond the limit), [`Error::PtInUse`], [`Error::PtFull`], or
    /// [`Error::Handle`] for the queue.
    pub fn pt_alloc(
        &mut self,
        options: PortalOptions,
        eq: Option<EqHandle>,
        wanted: Option<u32>,
    ) -> Result<u32, Error> {
        self.check_eq(eq, "eq")?;
        if options.contains(PortalOptions::FLOWCTRL) && eq.is_none() {
            return Err(Error::PtEqNeeded);
        }
        let pt_index = match wanted {
            Some(pt_index) => match self.portals.get(pt_index as usize) {
                None => return Err(Error::PtIndex { pt_index }),
                Some(Some(_)) => return Err(Error::PtInUse { pt_index }),
                Some(None) => pt_index,
            },
            None => match self.portals.iter().position(Option::is_none) {
                Some(free) => free as u32,
                None => return Err(Error::PtFull { limit: self.portals.len() as u32 }),
            },
        };
        let flow_control = options.contains(PortalOptions::FLOWCTRL);
        if let Some(eq) = eq.filter(|_| flow_control) {
            self.eqs.get_mut(eq.0).expect("it was checked").grow_reserved();
        }
        self.portals[pt_index as usize] = Some(Box::new(Portal {
            options,
            eq,
            disabled: options.contains(PortalOptions::ALLOC_DISABLED),
            priority: List::new(self.seed),
            overflow: List::new(self.seed),
            arrivals: Arrivals::new(self.seed),
            pending: 0,
            notice_reserved: flow_control,
        }));
        Ok(pt_index)
    }
    /// Frees an index of the portal table.
    ///
    /// # Errors
    /// [`Error::PtIndex`], or [`Error::InUse`] while entries, headers or operations are there.
    pub fn pt_free(&mut self, pt_index: u32) -> Result<(), Error> {
        let portal = self.portal(pt_index)?;
        let waiting = portal.arrivals.len() as u32;
        let pending = portal.priority.len() + portal.overflow.len() + waiting + portal.pending;
        if pending > 0 {
            return Err(Error::InUse { argument: "pt_index", pending });
        }
        let portal = self.portals[pt_index as usize].take().expect("it is there");
        let flow_control = portal.options.contains(PortalOptions::FLOWCTRL);
        if let Some(queue) = portal.eq.filter(|_| flow_control).and_then(|eq| self.eqs.get_mut(eq.0)) {
            queue.shrink(portal.notice_reserved);
        }
        Ok(())
    }
    /// Disables a portal, which then takes no more messages. [`pt_pending`](Self::pt_pending) tells when earlier
    /// messages are done.
    ///
    /// # Errors
    /// [`Error::PtIndex`].
    pub fn pt_disable(&mut self, pt_index: u32) -> Result<(), Error> {
        self.portal_mut(pt_index)?.disabled = true;
        Ok(())
    }
    /// Enables a portal, after a call or flow control disabled it.
    ///
    /// Before enabling a portal with flow control, the caller makes room: it takes events and appends entries.
    /// Otherwise the next message disables the portal again. No notice is lost: if the second notice has no room, no
    /// event was taken since the first one, so the first notice is still to be read and stands for both.
    ///
    /// # Errors
    /// [`Error::PtIndex`].
    pub fn pt_enable(&mut self, pt_index: u32) -> Result<(), Error> {
        let (eqs, portal) = (&mut self.eqs, portal_mut(&mut self.portals, pt_index)?);
        portal.disabled = false;
        portal.keep_notice(eqs);
        Ok(())
    }
    /// Whether a portal takes messages.
    ///
    /// # Errors
    /// [`Error::PtIndex`].
    pub fn pt_is_enabled(&self, pt_index: u32) -> Result<bool, Error> {
        Ok(!self.portal(pt_index)?.disabled)
    }
    /// Operations under way at a portal.
    ///
    /// # Errors
    /// [`Error::PtIndex`].
    pub fn pt_pending(&self, pt_index: u32) -> Result<u32, Error> {
        Ok(self.portal(pt_index)?.pending)
    }
    /// The number of entries of a list.
    ///
    /// # Errors
    /// [`Error::PtIndex`].
    pub fn list_len(&self, pt_index: u32, list: ListKind) -> Result<u32, Error> {
        Ok(self.portal(pt_index)?.list(list).len())
    }
    /// The number of headers that wait at a portal.
    ///
    /// # Errors
    /// [`Error::PtIndex`].
    pub fn unexpected_len(&self, pt_index: u32) -> Result<u32, Error> {
        Ok(self.portal(pt_index)?.arrivals.len() as u32)
    }
    /// The bytes that a search over all wildcards of a list reads, and the sum of their words. Benches measure matching
    /// against the time of this sum, which is the time for reading the bytes.
    ///
    /// # Errors
    /// [`Error::PtIndex`].
    pub fn wildcard_stream(&self, pt_index: u32, list: ListKind) -> Result<(usize, u32), Error> {
        let wild = self.portal(pt_index)?.list(list).wild();
        Ok((wild.stream_bytes(), wild.stream_sum()))
    }
    pub(crate) fn portal(&self, pt_index: u32) -> Result<&Portal, Error> {
        self.portals.get(pt_index as usize).and_then(Option::as_deref).ok_or(Error::PtIndex { pt_index })
    }
    pub(crate) fn portal_mut(&mut self, pt_index: u32) -> Result<&mut Portal, Error> {
        portal_mut(&mut self.portals, pt_index)
    }

    /// Creates an event queue that holds `count` events.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoSpace`].
    pub fn eq_alloc(&mut self, count: u32) -> Result<EqHandle, Error> {
        let limit = self.config.limits.max_eq_events;
        if count > limit {
            let (value, limit) = (u64::from(count), u64::from(limit));
            return Err(Error::TooLarge { argument: "count", value, limit });
        }
        let queue = EventQueue::new(count.max(1) as usize, self.config.version == Version::V3);
        let limit = self.eqs.limit();
        self.eqs.insert(queue).map(EqHandle).ok_or(Error::NoSpace { what: "event queues", limit })
    }
    /// Frees an event queue. Later events for it are lost.
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn eq_free(&mut self, eq: EqHandle) -> Result<(), Error> {
        self.check_eq(Some(eq), "eq")?;
        self.eqs.remove(eq.0.index());
        Ok(())
    }
    /// Takes the oldest event.
    ///
    /// # Errors
    /// [`Error::Handle`].
    #[inline]
    pub fn eq_get(&mut self, eq: EqHandle) -> Result<Option<Got>, Error> {
        self.eq_take(eq, |&event, dropped| Got { event, dropped })
    }
    /// Takes the oldest event in place: `show` gets a reference to the event, and whether events between it and the one
    /// taken before were lost. For callers that need a few fields, or another layout, without a copy in between.
    ///
    /// # Errors
    /// [`Error::Handle`].
    #[inline]
    pub fn eq_take<R>(
        &mut self,
        eq: EqHandle,
        show: impl FnOnce(&Event, bool) -> R,
    ) -> Result<Option<R>, Error> {
        self.take_event(eq, "eq", show)
    }
    #[inline]
    fn take_event<R>(
        &mut self,
        eq: EqHandle,
        argument: &'static str,
        show: impl FnOnce(&Event, bool) -> R,
    ) -> Result<Option<R>, Error> {
        let queue = self.eqs.get_mut(eq.0).ok_or(Error::Handle { argument })?;
        let mut notice = None;
        let shown = queue.pop(|event, dropped| {
            if event.kind == EventKind::PtDisabled {
                notice = Some(event.pt_index);
            }
            show(event, dropped)
        });
        if let Some(pt_index) = notice {
            self.keep_notice(pt_index, eq);
        }
        Ok(shown)
    }
    /// Keeps the place of a notice that was taken for the next one of its portal.
    #[cold]
    fn keep_notice(&mut self, pt_index: u32, eq: EqHandle) {
        let (eqs, Ok(portal)) = (&mut self.eqs, portal_mut(&mut self.portals, pt_index)) else { return };
        if portal.eq == Some(eq) {
            portal.keep_notice(eqs);
        }
    }
    /// The number of events in a queue.
    ///
    /// # Errors
    /// [`Error::Handle`].
    #[inline]
    pub fn eq_len(&self, eq: EqHandle) -> Result<usize, Error> {
        Ok(self.eqs.get(eq.0).ok_or(Error::Handle { argument: "eq" })?.len())
    }
    /// 3.3: the memory descriptor of the last event taken from a queue, with its values right after that event.
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn eq_last_md(&self, eq: EqHandle) -> Result<Option<Region>, Error> {
        Ok(self.eqs.get(eq.0).ok_or(Error::Handle { argument: "eq" })?.last_md())
    }
    /// Takes an event of one of several queues, and returns the queue's index too. The search begins at `first`, so
    /// that a caller that increments `first` treats all queues fairly.
    ///
    /// # Errors
    /// [`Error::Handle`]; [`Error::Aborted`] after [`abort`](Self::abort).
    pub fn eq_poll(&mut self, eqs: &[EqHandle], first: usize) -> Result<Option<(usize, Got)>, Error> {
        self.check_aborted()?;
        for which in (0..eqs.len()).map(|i| (first % eqs.len() + i) % eqs.len()) {
            let got = self.take_event(eqs[which], "eqs", |&event, dropped| Got { event, dropped })?;
            if let Some(got) = got {
                return Ok(Some((which, got)));
            }
        }
        Ok(None)
    }
    pub(crate) fn check_eq(&self, eq: Option<EqHandle>, argument: &'static str) -> Result<(), Error> {
        match eq {
            Some(eq) if self.eqs.get(eq.0).is_none() => Err(Error::Handle { argument }),
            _ => Ok(()),
        }
    }
    pub(crate) fn eq_is_empty(&self, eq: EqHandle) -> Option<bool> {
        self.eqs.get(eq.0).map(|queue| queue.len() == 0)
    }
    /// Posts an event where there is a queue for it.
    #[inline(never)]
    pub(crate) fn push(&mut self, eq: Option<EqHandle>, event: Event, md: Option<&Region>, reserved: bool) {
        if let Some(queue) = eq.and_then(|eq| self.eqs.get_mut(eq.0)) {
            queue.push(event, md, reserved);
        }
    }
    pub(crate) fn release(&mut self, eq: Option<EqHandle>, events: usize) {
        if let Some(queue) = eq.and_then(|eq| self.eqs.get_mut(eq.0)) {
            queue.release(events);
        }
    }

    /// Ends all waiting: [`eq_poll`](Self::eq_poll) and [`ct_poll`](Self::ct_poll) return [`Error::Aborted`] from now
    /// on.
    pub fn abort(&mut self) {
        self.aborted = true;
    }
    pub(crate) fn check_aborted(&self) -> Result<(), Error> {
        if self.aborted { Err(Error::Aborted) } else { Ok(()) }
    }
}

fn portal_mut(portals: &mut [Option<Box<Portal>>], pt_index: u32) -> Result<&mut Portal, Error> {
    portals.get_mut(pt_index as usize).and_then(Option::as_deref_mut).ok_or(Error::PtIndex { pt_index })
}
