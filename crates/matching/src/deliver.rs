//! Delivery: the choice of the entry for a message, the place of its bytes, and the effects of its completion.

use std::ops::Deref;

use crate::dense::NONE;
use crate::entry::Posted;
use crate::event::EventQueue;
use crate::handle::{Key, Slab};
use crate::instrument::{Part, mark};
use crate::interface::Portal;
use crate::list::{List, Search};
use crate::post::one_less;
use crate::unexpected::Waiting;
use crate::{
    ALIGN_BYTES, CtHandle, EntryHandle, EqHandle, Event, EventKind, Header, Interface, ListKind, MdHandle,
    NiFail, Operation, Options, PortalOptions, Region, Response, Threshold, Version,
};

/// The decision about a message.
#[derive(Debug, PartialEq)]
#[must_use]
pub enum Verdict {
    /// An entry takes the message: the caller moves the bytes and calls [`Interface::complete`].
    Accept(Delivery),
    /// No entry takes the message. Counts and events of the target are done; the caller sends this response to the
    /// initiator.
    Refuse(Response),
}

/// A message that an entry has taken, and whose bytes the caller has to move.
///
/// The message uses the entry's memory until [`Interface::complete`] takes this value.
#[derive(Debug, PartialEq)]
#[must_use = "its entry waits for `Interface::complete`"]
pub struct Delivery {
    /// The message.
    pub header: Header,
    landing: Landing,
}

impl Deref for Delivery {
    type Target = Landing;
    fn deref(&self) -> &Landing {
        &self.landing
    }
}

/// The place in the target's memory to which the bytes of a message go, or from which they come.
#[derive(Debug, PartialEq)]
pub struct Landing {
    /// The entry that takes the message.
    pub entry: EntryHandle,
    /// The list of the entry.
    pub list: ListKind,
    /// The memory descriptor (3.3).
    pub md: Option<MdHandle>,
    /// The start of the entry's memory, as the program posted it.
    pub region_start: u64,
    /// The offset in the entry's memory.
    pub offset: u64,
    /// The number of bytes; an operation on elements moves whole elements.
    pub mlength: u64,
    /// The options of the memory.
    pub options: Options,
    link: u64,
    /// The header that waits for an entry, if this one is of the overflow list; otherwise [`NONE`].
    waiting: u32,
    /// A place in the event queue is kept for the event.
    reserved: bool,
}
// Larger ones are copied by calls.
const _: () = assert!(size_of::<Verdict>() <= 128);

/// The reason why an entry does not take a message, for [`Interface::explain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The match bits differ.
    Bits,
    /// The entry is for another initiator.
    Source,
    /// The entry is for another user or another job.
    User,
    /// The entry has no memory.
    NoMemory,
    /// The entry's memory takes no more operations.
    Inactive,
    /// The message is too long, and the entry forbids truncation.
    TooLong,
    /// The entry matches, but does not allow this operation.
    Operation,
    /// The entry matches, but is not for this user.
    Permission,
}

enum Judgement {
    Take {
        offset: u64,
        mlength: u64,
    },
    /// The next one is asked.
    Pass(Reason),
    /// The message has failed.
    Fail(Reason),
}

/// The entry that takes a message.
struct Choice {
    /// Which; [`NONE`] if the message has failed.
    index: u32,
    fail: NiFail,
    list: ListKind,
    offset: u64,
    mlength: u64,
}

/// An entry that takes a message and stays as it is.
struct Lasting {
    index: u32,
    offset: u64,
    mlength: u64,
    eq: Option<EqHandle>,
}

impl Choice {
    const fn failed(fail: NiFail) -> Self {
        Self { index: NONE, fail, list: ListKind::Priority, offset: 0, mlength: 0 }
    }
    const fn refused(reason: Reason) -> Self {
        Self::failed(match reason {
            Reason::Permission => NiFail::PermViolation,
            _ => NiFail::OpViolation,
        })
    }
}

impl Interface {
    /// Decides about a message, and applies the decision: counts the entry's offset and uses, unlinks an entry that is
    /// used up, and stores a header that has to wait.
    ///
    /// The caller must deliver messages in the order in which their initiator sent them.
    pub fn deliver(&mut self, header: &Header) -> Verdict {
        match self.land(header) {
            Ok(landing) => Verdict::Accept(Delivery { header: *header, landing }),
            Err(response) => Verdict::Refuse(response),
        }
    }
    /// [Delivers](Self::deliver) a message whose bytes are present, and [completes](Self::complete) it: `place` moves
    /// the bytes, or returns the reason why it can't.
    #[inline(always)]
    pub fn place(&mut self, header: &Header, place: impl FnOnce(&Landing) -> NiFail) -> Response {
        match self.find_lasting(header) {
            Some(found) => self.place_in_lasting(header, found, place),
            // A copy, so that the original need not be in memory.
            None => self.place_in_any(&{ *header }, place),
        }
    }
    #[inline(never)]
    fn place_in_any(&mut self, header: &Header, place: impl FnOnce(&Landing) -> NiFail) -> Response {
        // Looked at where it was put together.
        match &self.land(header) {
            Ok(landing) => {
                mark(Part::Housekeeping);
                let fail = place(landing);
                mark(Part::Bytes);
                self.landed(header, landing, fail)
            }
            Err(response) => *response,
        }
    }
    /// The entry that takes a message, if it is the first candidate of the priority list, and stays as it is: it takes
    /// any number of messages, at offsets that the initiators choose (4.3, without flow control).
    #[inline(always)]
    fn find_lasting(&self, header: &Header) -> Option<Lasting> {
        let portal = self.portals.get(header.pt_index as usize)?.as_deref()?;
        let keeps_nothing = self.config.version == Version::V4
            && !portal.disabled
            && !portal.options.contains(PortalOptions::FLOWCTRL);
        if !keeps_nothing || !self.is_legal(header) {
            return None;
        }
        let (bits, source) = (header.match_bits, header.initiator.packed());
        let index = portal.priority.first_for(&self.nodes, bits, source)?;
        let posted = self.entries.at(index);
        let Judgement::Take { offset, mlength } = judge(Version::V4, posted, header) else { return None };
        let region = posted.entry.region.as_ref()?;
        let lasts = region.threshold == Threshold::Infinite
            && !region.options.intersects(Options::USE_ONCE.union(Options::MANAGE_LOCAL));
        mark(Part::Match);
        if lasts { Some(Lasting { index, offset, mlength, eq: region.eq.or(portal.eq) }) } else { None }
    }
    /// What [`land`](Self::land) and [`landed`](Self::landed) do for an entry that stays as it is: nothing is counted
    /// that could end in between.
    #[inline(always)]
    fn place_in_lasting(
        &mut self,
        header: &Header,
        Lasting { index, offset, mlength, eq }: Lasting,
        place: impl FnOnce(&Landing) -> NiFail,
    ) -> Response {
        let (key, posted) = self.entries.entry_mut(index);
        let region = posted.entry.region.as_ref().expect("it takes a message");
        let (options, user_ptr, ct) = (region.options, region.user_ptr, region.ct);
        let landing = Landing {
            entry: EntryHandle(key),
            list: ListKind::Priority,
            md: None,
            region_start: region.start,
            offset,
            mlength,
            options,
            link: self.next_link,
            waiting: NONE,
            reserved: false,
        };
        self.next_link += 1;
        mark(Part::Housekeeping);
        let fail = place(&landing);
        mark(Part::Bytes);
        let mlength = if fail == NiFail::Ok { mlength } else { 0 };
        landing.tell(header, eq, &mut self.eqs, mlength, fail, user_ptr);
        self.count_landed(options, ct, mlength, fail);
        mark(Part::Event);
        header.response(fail, mlength, offset, ListKind::Priority, options.contains(Options::ACK_DISABLE))
    }
    fn land(&mut self, header: &Header) -> Result<Landing, Response> {
        let choice = self.choose(header);
        mark(Part::Match);
        if choice.index == NONE {
            return Err(self.reject(header, choice.fail));
        }
        match self.config.version {
            Version::V4 => self.take(header, choice),
            Version::V3 => self.begin_v3(header, choice),
        }
    }
    /// Reports, for each entry in the order of the search, whether the entry would take a message (`None`) or why not,
    /// up to the entry that decides. For tools: the method examines the entries one by one, and changes nothing.
    pub fn explain(&self, header: &Header, mut tell: impl FnMut(EntryHandle, ListKind, Option<Reason>)) {
        let Ok(portal) = self.portal(header.pt_index) else { return };
        for kind in [ListKind::Priority, ListKind::Overflow] {
            let mut next = portal.list(kind).first();
            while let Some(index) = next {
                let posted = self.entries.at(index);
                let criteria = &posted.entry.criteria;
                let judgement = match (criteria.bits ^ header.match_bits) & !criteria.ignore {
                    0 => judge(self.config.version, posted, header),
                    _ => Judgement::Pass(Reason::Bits),
                };
                let (reason, ends) = match judgement {
                    Judgement::Take { .. } => (None, true),
                    Judgement::Pass(reason) => (Some(reason), false),
                    Judgement::Fail(reason) => (Some(reason), true),
                };
                tell(EntryHandle(self.entries.key_at(index)), kind, reason);
                if ends {
                    return;
                }
                next = self.nodes.behind(index);
            }
        }
    }
    /// Completes a delivery, whether its bytes were moved or the move failed: posts events, counts, and returns the
    /// response to the initiator.
    ///
    /// # Panics
    /// If the delivery belongs to another interface.
    pub fn complete(&mut self, delivery: Delivery, fail: NiFail) -> Response {
        self.landed(&delivery.header, &delivery.landing, fail)
    }
    fn landed(&mut self, header: &Header, landing: &Landing, fail: NiFail) -> Response {
        let &Landing { entry, options, waiting, .. } = landing;
        let posted = self.entries.get_mut(entry.0).filter(|posted| posted.pending > 0);
        let posted = posted.expect("a delivery of this interface");
        posted.pending -= 1;
        let mut ends = posted.detaching || posted.auto_unlinked;
        let region = posted.entry.region.as_ref().expect("its memory stays while operations are under way");
        let portal = self.portals[header.pt_index as usize].as_mut().expect("operations hold it");
        portal.pending -= 1;
        let (eq, ct) = (region.eq.or(portal.eq), region.ct);
        let mlength = if fail == NiFail::Ok { landing.mlength } else { 0 };
        if self.config.version == Version::V3 {
            self.end_v3(header, landing, mlength, fail);
        } else {
            landing.tell(header, eq, &mut self.eqs, mlength, fail, region.user_ptr);
        }
        self.count_landed(options, ct, mlength, fail);
        if waiting != NONE {
            self.arrived(waiting, mlength, fail);
            ends = self.entries.get(entry.0).is_some_and(|posted| posted.detaching || posted.auto_unlinked);
        }
        mark(Part::Event);
        if ends {
            self.settle(entry.0.index());
            mark(Part::Unlink);
        }
        let &Landing { offset, list, .. } = landing;
        header.response(fail, mlength, offset, list, options.contains(Options::ACK_DISABLE))
    }
    /// Counts a message that an entry took, if it is to be counted.
    #[inline(always)]
    fn count_landed(&mut self, options: Options, ct: Option<CtHandle>, mlength: u64, fail: NiFail) {
        if options.contains(Options::EVENT_CT_COMM) {
            self.count(ct, fail, options.contains(Options::EVENT_CT_BYTES).then_some(mlength));
        }
    }
    /// The bytes of a message whose header waits are there.
    #[cold]
    fn arrived(&mut self, waiting: u32, mlength: u64, fail: NiFail) {
        let header = self.headers.at_mut(waiting);
        (header.done, header.mlength) = (Some(fail), mlength);
        if header.claim.is_some() {
            self.finish_claim(waiting);
        }
    }
    #[inline(never)]
    fn begin_v3(&mut self, header: &Header, choice: Choice) -> Result<Landing, Response> {
        let mlength = choice.mlength;
        let landing = self.take(header, choice)?;
        if !landing.options.contains(Options::EVENT_START_DISABLE) {
            self.tell_v3(header, &landing, start_kind(header.operation), mlength, NiFail::Ok, false);
        }
        Ok(landing)
    }
    #[inline(never)]
    fn end_v3(&mut self, header: &Header, landing: &Landing, mlength: u64, fail: NiFail) {
        if landing.options.contains(Options::EVENT_END_DISABLE) {
            let region = self.entries.at(landing.entry.0.index()).entry.region.expect("operations hold it");
            let eq = self.eq_of(header.pt_index, &region);
            self.release(eq, usize::from(landing.reserved));
        } else {
            self.tell_v3(header, landing, end_kind(header.operation), mlength, fail, landing.reserved);
        }
    }
    /// One of the two events of an operation of 3.3, with the memory descriptor as it is now.
    fn tell_v3(
        &mut self,
        header: &Header,
        landing: &Landing,
        kind: EventKind,
        mlength: u64,
        fail: NiFail,
        reserved: bool,
    ) {
        let region = self.entries.at(landing.entry.0.index()).entry.region.expect("operations hold it");
        let mut event = Event::new(kind);
        landing.fill_event(header, &mut event, kind, mlength, fail, region.user_ptr);
        self.push(self.eq_of(header.pt_index, &region), event, Some(&region), reserved);
    }

    /// Refuses a message without a search of the lists: counts it, and returns the response to the initiator. For
    /// callers that find a message invalid themselves, by its length for example.
    #[cold]
    pub fn reject(&mut self, header: &Header, fail: NiFail) -> Response {
        match fail {
            NiFail::PermViolation => self.status.permission_violations += 1,
            NiFail::OpViolation => self.status.operation_violations += 1,
            _ => self.status.dropped += 1,
        }
        if self.config.version == Version::V3 && matches!(fail, NiFail::PermViolation | NiFail::OpViolation) {
            self.status.dropped += 1;
        }
        header.refused(fail)
    }
    /// The entry that a message is for.
    #[inline(always)]
    fn choose(&mut self, header: &Header) -> Choice {
        if self.config.version == Version::V3 && !self.acl.is_empty() && !self.is_admitted(header) {
            return Choice::failed(NiFail::PermViolation);
        }
        let Ok(portal) = self.portal(header.pt_index) else { return Choice::failed(NiFail::Dropped) };
        if portal.disabled {
            return Choice::failed(NiFail::PtDisabled);
        }
        if !self.is_legal(header) {
            return Choice::failed(NiFail::OpViolation);
        }
        if portal.priority.len() != 0
            && let Some(choice) = self.look(&portal.priority, ListKind::Priority, header)
        {
            return choice;
        }
        if portal.overflow.len() != 0
            && let Some(choice) = self.look(&portal.overflow, ListKind::Overflow, header)
        {
            return choice;
        }
        self.no_match(header.pt_index)
    }
    /// The entry of a list that a message is for.
    #[inline(always)]
    fn look(&self, list: &List, kind: ListKind, header: &Header) -> Option<Choice> {
        let mut search = list.search(header.match_bits, header.initiator.packed());
        let index = list.next(&self.nodes, &mut search)?;
        // Most messages are for the first one whose bits and source match.
        match judge(self.config.version, self.entries.at(index), header) {
            Judgement::Take { offset, mlength } => {
                Some(Choice { index, fail: NiFail::Ok, list: kind, offset, mlength })
            }
            Judgement::Pass(_) => self.look_on(list, kind, header, search),
            Judgement::Fail(reason) => Some(Choice::refused(reason)),
        }
    }
    #[cold]
    fn look_on(&self, list: &List, kind: ListKind, header: &Header, mut search: Search) -> Option<Choice> {
        while let Some(index) = list.next(&self.nodes, &mut search) {
            match judge(self.config.version, self.entries.at(index), header) {
                Judgement::Take { offset, mlength } => {
                    return Some(Choice { index, fail: NiFail::Ok, list: kind, offset, mlength });
                }
                Judgement::Pass(_) => {}
                Judgement::Fail(reason) => return Some(Choice::refused(reason)),
            }
        }
        None
    }
    /// Whether the access control list lets a message in (3.3).
    #[cold]
    fn is_admitted(&self, header: &Header) -> bool {
        let acl = self.acl.get(header.ac_index as usize).copied().flatten();
        acl.is_some_and(|acl| acl.admits(header))
    }
    #[cold]
    fn no_match(&mut self, pt_index: u32) -> Choice {
        let portal = self.portals[pt_index as usize].as_mut().expect("a message is at it");
        if !portal.options.contains(PortalOptions::FLOWCTRL) {
            return Choice::failed(NiFail::Dropped);
        }
        portal.run_dry(&mut self.eqs, pt_index, false);
        Choice::failed(NiFail::PtDisabled)
    }
    /// Whether the interface does such an operation at such a length.
    #[inline(always)]
    fn is_legal(&self, header: &Header) -> bool {
        let limits = &self.config.limits;
        match header.operation {
            Operation::Put | Operation::Get | Operation::GetPut => header.length <= limits.max_msg_size,
            Operation::Atomic(..) => is_legal_atomic(header, limits.max_atomic_size),
            _ => is_legal_atomic(header, limits.max_fetch_atomic_size),
        }
    }
    /// Gives a message to an entry.
    #[inline(always)]
    fn take(&mut self, header: &Header, choice: Choice) -> Result<Landing, Response> {
        let Choice { index, list, offset, mlength, .. } = choice;
        let portal = self.portals[header.pt_index as usize].as_mut().expect("it has entries");
        let (key, posted) = self.entries.entry_mut(index);
        let region = posted.entry.region.as_mut().expect("it takes a message");
        let (options, region_start) = (region.options, region.start);
        let threshold = match options.contains(Options::USE_ONCE) {
            true => Threshold::Count(0),
            false => one_less(region.threshold),
        };
        let local = options.contains(Options::MANAGE_LOCAL);
        let next_offset = if local { offset + mlength } else { posted.offset };
        let goes = region.unlink && (threshold == Threshold::Count(0) || is_full(region, next_offset));
        let unlinks = goes && posted.entry.unlink;
        let waits = list == ListKind::Overflow && !options.contains(Options::UNEXPECTED_HDR_DISABLE);
        let mut reserved = Reserved::default();
        if waits || portal.options.contains(PortalOptions::FLOWCTRL) {
            let waits_full = waits && self.headers.len() == self.headers.limit();
            let (eq, pt_index) = (region.eq.or(portal.eq), header.pt_index);
            reserved = match portal.make_room(&mut self.eqs, eq, pt_index, options, list, unlinks, waits_full)
            {
                Ok(reserved) => reserved,
                Err(fail) => return Err(self.reject(header, fail)),
            };
        }

        portal.pending += 1;
        let link = self.next_link;
        self.next_link += 1;
        region.threshold = threshold;
        posted.offset = next_offset;
        posted.pending += 1;
        let md = posted.md.map(MdHandle);
        if goes {
            posted.last_link = link;
            (posted.unlink_reserved, posted.free_reserved) = (reserved.unlink, reserved.free);
            (posted.detaching, posted.auto_unlinked) = (true, unlinks);
            if unlinks {
                mark(Part::Housekeeping);
                self.take_from_list(index);
                mark(Part::Unlink);
            }
        }
        let waiting = match waits {
            true => self.wait(header, index, region_start.wrapping_add(offset), offset, mlength),
            false => NONE,
        };
        Ok(Landing {
            entry: EntryHandle(key),
            list,
            md,
            region_start,
            offset,
            mlength,
            options,
            link,
            waiting,
            reserved: reserved.comm,
        })
    }
    #[cold]
    fn wait(&mut self, header: &Header, entry: u32, start: u64, offset: u64, mlength: u64) -> u32 {
        let waiting = Waiting::new(*header, entry, start, offset, mlength);
        let index = self.headers.insert(waiting).expect("room was made").index();
        let portal = self.portals[header.pt_index as usize].as_mut().expect("it has entries");
        portal.arrivals.push(&mut self.headers, index);
        self.entries.at_mut(entry).headers += 1;
        index
    }

    /// Ends what was used up, once nothing on it is under way: the memory leaves its entry, the entry is gone when no
    /// header waits whose bytes it holds, and both are told.
    pub(crate) fn settle(&mut self, index: u32) {
        let posted = self.entries.at_mut(index);
        if posted.pending > 0 {
            return;
        }
        if std::mem::take(&mut posted.detaching) {
            let (md, reserved) = (posted.md.take(), posted.unlink_reserved);
            let kind = match self.config.version {
                Version::V3 => EventKind::Unlink,
                Version::V4 => EventKind::AutoUnlink,
            };
            self.tell_end(index, kind, md, reserved);
            if let Some(md) = md {
                self.remove_md(md);
            }
            let posted = self.entries.at_mut(index);
            if !posted.auto_unlinked {
                posted.entry.region = None;
            }
        }
        let posted = self.entries.at_mut(index);
        if posted.auto_unlinked && posted.headers == 0 {
            let reserved = posted.free_reserved;
            if posted.list == ListKind::Overflow {
                self.tell_end(index, EventKind::AutoFree, None, reserved);
            }
            self.remove_entry(index);
        }
    }
    fn tell_end(&mut self, index: u32, kind: EventKind, md: Option<Key>, reserved: bool) {
        let posted = self.entries.at(index);
        let region = posted.entry.region.as_ref().expect("its memory was used up");
        if region.options.contains(Options::EVENT_UNLINK_DISABLE) {
            return;
        }
        let region = *region;
        let event = Event {
            pt_index: posted.pt_index,
            list: posted.list,
            user_ptr: region.user_ptr,
            start: region.start,
            entry: Some(EntryHandle(self.entries.key_at(index))),
            md: md.map(MdHandle),
            link: posted.last_link,
            ..Event::new(kind)
        };
        self.push(self.eq_of(event.pt_index, &region), event, Some(&region), reserved);
    }
}

/// The places in an event queue that are kept for a message.
#[derive(Default)]
struct Reserved {
    comm: bool,
    unlink: bool,
    free: bool,
}

impl Portal {
    /// Keeps room for what a message will leave behind, where running out of it is not to lose anything.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "an entry and its interface are taken apart here")]
    fn make_room(
        &mut self,
        eqs: &mut Slab<EventQueue>,
        eq: Option<EqHandle>,
        pt_index: u32,
        options: Options,
        list: ListKind,
        unlinks: bool,
        headers_full: bool,
    ) -> Result<Reserved, NiFail> {
        let flow_control = self.options.contains(PortalOptions::FLOWCTRL);
        let quiet = options.contains(Options::EVENT_FLOWCTRL_DISABLE);
        if headers_full && !flow_control {
            return Err(NiFail::Dropped);
        }
        let unlink = unlinks && !options.contains(Options::EVENT_UNLINK_DISABLE);
        let reserved = Reserved {
            comm: !options.contains(Options::EVENT_COMM_DISABLE),
            unlink,
            free: unlink && list == ListKind::Overflow,
        };
        if !flow_control {
            return Ok(Reserved::default());
        }
        let events = usize::from(reserved.comm) + usize::from(reserved.unlink) + usize::from(reserved.free);
        let queue = eq.and_then(|eq| eqs.get_mut(eq.0));
        if headers_full || !queue.is_none_or(|queue| queue.reserve(events)) {
            self.run_dry(eqs, pt_index, quiet);
            return Err(NiFail::PtDisabled);
        }
        Ok(reserved)
    }
    /// Disables a portal that has run out of something, and says so.
    fn run_dry(&mut self, eqs: &mut Slab<EventQueue>, pt_index: u32, quiet: bool) {
        self.disabled = true;
        if quiet {
            return;
        }
        let reserved = std::mem::take(&mut self.notice_reserved);
        let event = Event { pt_index, fail: NiFail::PtDisabled, ..Event::new(EventKind::PtDisabled) };
        let Some(queue) = self.eq.and_then(|eq| eqs.get_mut(eq.0)) else { return };
        // One that is still to be read says all, and no event has to give way for another.
        if reserved || !queue.is_full() || !queue.holds_notice(pt_index) {
            queue.push(event, None, reserved);
        }
    }
}

impl Landing {
    /// The address of the bytes: the region's start plus the offset.
    pub const fn start(&self) -> u64 {
        self.region_start.wrapping_add(self.offset)
    }
    /// Posts the one event of an operation of 4.3, if it is to have one.
    #[inline(always)]
    fn tell(
        &self,
        header: &Header,
        eq: Option<EqHandle>,
        eqs: &mut Slab<EventQueue>,
        mlength: u64,
        fail: NiFail,
        user_ptr: u64,
    ) {
        let Some(queue) = eq.and_then(|eq| eqs.get_mut(eq.0)) else { return };
        let quiet = self.options.contains(Options::EVENT_COMM_DISABLE)
            || fail == NiFail::Ok && self.options.contains(Options::EVENT_SUCCESS_DISABLE);
        if quiet {
            queue.release(usize::from(self.reserved));
        } else if let Some(event) = queue.place(self.reserved) {
            self.fill_event(header, event, event_kind(header.operation), mlength, fail, user_ptr);
        }
    }
    /// Fills an event in, field by field.
    #[inline(always)]
    fn fill_event(
        &self,
        header: &Header,
        event: &mut Event,
        kind: EventKind,
        mlength: u64,
        fail: NiFail,
        user_ptr: u64,
    ) {
        event.of(kind, header);
        event.fail = fail;
        event.list = self.list;
        event.mlength = mlength;
        event.offset = self.offset;
        event.start = self.start();
        event.user_ptr = user_ptr;
        event.entry = Some(self.entry);
        event.md = self.md;
        event.link = self.link;
    }
}

impl Event {
    /// Fills in what an event takes from a message's header.
    #[inline(always)]
    pub(crate) fn of(&mut self, kind: EventKind, header: &Header) {
        self.kind = kind;
        self.atomic = header.operation.atomic();
        self.pt_index = header.pt_index;
        self.initiator = header.initiator;
        self.uid = header.uid;
        self.jid = header.jid;
        self.match_bits = header.match_bits;
        self.rlength = header.length;
        self.remote_offset = header.remote_offset;
        self.hdr_data = header.hdr_data;
    }
}

/// Whether an entry whose match bits agree takes a message.
#[inline(always)]
fn judge(version: Version, posted: &Posted, header: &Header) -> Judgement {
    use Judgement::{Fail, Pass};
    let criteria = &posted.entry.criteria;
    if !criteria.source.includes(header.initiator) {
        return Pass(Reason::Source);
    }
    if !criteria.admits(header.uid, header.jid) {
        return Pass(Reason::User);
    }
    let Some(region) = posted.entry.region.as_ref().filter(|_| !posted.detaching) else {
        return Pass(Reason::NoMemory);
    };
    if region.threshold == Threshold::Count(0) || is_full(region, posted.offset) {
        return Pass(Reason::Inactive);
    }
    let offset = offset_of(region, posted.offset, header);
    let available = region.length.saturating_sub(offset);
    if header.length > available && region.options.contains(Options::NO_TRUNCATE) {
        return Pass(Reason::TooLong);
    }
    // From here on it matches: 3.3 still asks the next one, 4.3 does not.
    let refuse = |reason| if version == Version::V3 { Pass(reason) } else { Fail(reason) };
    if posted.entry.uid.is_some_and(|uid| uid != header.uid) {
        return refuse(Reason::Permission);
    }
    if !region.options.contains(rights(header.operation)) {
        return refuse(Reason::Operation);
    }
    let mut mlength = header.length.min(available);
    if let Some((_, ty)) = header.operation.atomic() {
        mlength -= mlength % ty.size_bytes() as u64;
    }
    Judgement::Take { offset, mlength }
}

#[inline(never)]
fn is_legal_atomic(header: &Header, limit: u64) -> bool {
    header.length <= limit && header.operation.is_legal(header.length)
}

/// Whether locally managed memory has less room left than it is to have.
#[inline(always)]
pub(crate) fn is_full(region: &Region, offset: u64) -> bool {
    region.options.contains(Options::MANAGE_LOCAL) && region.length.saturating_sub(offset) < region.min_free
}

#[inline(always)]
fn offset_of(region: &Region, local: u64, header: &Header) -> u64 {
    if !region.options.contains(Options::MANAGE_LOCAL) {
        return header.remote_offset;
    }
    let may_align = region.options.contains(Options::MAY_ALIGN);
    if may_align && !region.options.contains(Options::LOCAL_INC_UH_RLENGTH) {
        let aligned = local.checked_next_multiple_of(ALIGN_BYTES);
        let fits = |&at: &u64| at.checked_add(header.length).is_some_and(|end| end <= region.length);
        return aligned.filter(fits).unwrap_or(local);
    }
    local
}

#[inline(always)]
fn rights(operation: Operation) -> Options {
    match operation {
        Operation::Put | Operation::Atomic(..) => Options::OP_PUT,
        Operation::Get => Options::OP_GET,
        Operation::FetchAtomic(..) | Operation::Swap(..) | Operation::GetPut => {
            Options::OP_PUT | Options::OP_GET
        }
    }
}

#[inline(always)]
fn event_kind(operation: Operation) -> EventKind {
    match operation {
        Operation::Put => EventKind::Put,
        Operation::Get => EventKind::Get,
        Operation::Atomic(..) => EventKind::Atomic,
        Operation::FetchAtomic(..) | Operation::Swap(..) | Operation::GetPut => EventKind::FetchAtomic,
    }
}

fn start_kind(operation: Operation) -> EventKind {
    match end_kind(operation) {
        EventKind::PutEnd => EventKind::PutStart,
        EventKind::GetEnd => EventKind::GetStart,
        _ => EventKind::GetPutStart,
    }
}

fn end_kind(operation: Operation) -> EventKind {
    match operation {
        Operation::Put | Operation::Atomic(..) => EventKind::PutEnd,
        Operation::Get => EventKind::GetEnd,
        Operation::FetchAtomic(..) | Operation::Swap(..) | Operation::GetPut => EventKind::GetPutEnd,
    }
}
