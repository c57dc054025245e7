//! Which entry takes a message, where its bytes go, and what follows once they are there.

use crate::entry::Posted;
use crate::handle::Key;
use crate::post::one_less;
use crate::unexpected::Waiting;
use crate::{
    ALIGN_BYTES, EntryHandle, EqHandle, Event, EventKind, Face, Header, Interface, ListKind, MdHandle,
    NiFail, Operation, Options, PortalOptions, Region, Response, Threshold,
};

/// What is to be done with a message.
#[derive(Debug, PartialEq)]
#[must_use]
pub enum Verdict {
    /// An entry takes it: the caller moves the bytes and calls [`Interface::complete`].
    Accept(Delivery),
    /// Nothing takes it, and all that had to be counted or told here was; the initiator is to hear this.
    Refuse(Response),
}

/// A message that an entry has taken and whose bytes are to be moved.
///
/// The entry's memory is the message's until [`Interface::complete`] takes this back.
#[derive(Debug, PartialEq)]
#[must_use = "its entry waits for `Interface::complete`"]
pub struct Delivery {
    /// The message.
    pub header: Header,
    /// Who takes it.
    pub entry: EntryHandle,
    /// The list on which it stands.
    pub list: ListKind,
    /// The memory descriptor (3.3).
    pub md: Option<MdHandle>,
    /// The start of the entry's memory, as it was given.
    pub region_start: u64,
    /// Where in it.
    pub offset: u64,
    /// How many bytes; of an operation on elements, whole ones.
    pub mlength: u64,
    /// The options of the memory.
    pub options: Options,
    /// The header that waits for an entry, if this one is of the overflow list.
    waiting: Option<u32>,
    link: u64,
    /// A place in the event queue is kept for the event.
    reserved: bool,
}

/// Why an entry does not take a message, for [`Interface::explain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The match bits differ.
    Bits,
    /// The initiator is another.
    Source,
    /// The user or the job is another.
    User,
    /// It has no memory.
    NoMemory,
    /// Its memory takes no more operations.
    Inactive,
    /// It would have to be cut off, and may not.
    TooLong,
    /// It matches, and does not do this operation.
    Operation,
    /// It matches, and is not for this user.
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

struct Choice {
    index: u32,
    list: ListKind,
    offset: u64,
    mlength: u64,
}

impl Interface {
    /// Says what is to be done with a message, and takes it to be done: the entry's offset and uses are counted, an
    /// entry that is used up leaves its list, a header that is to wait does so.
    ///
    /// Messages must be shown in the order in which their initiator sent them.
    pub fn deliver(&mut self, header: &Header) -> Verdict {
        let choice = match self.choose(header) {
            Ok(choice) => choice,
            Err(fail) => return self.refuse(header, fail),
        };
        self.take(header, &choice)
    }
    /// Tells each entry that is asked, in order, whether it would take a message (`None`) or why not, up to the one
    /// that decides. For tools: it looks at the entries one by one, and changes nothing.
    pub fn explain(&self, header: &Header, mut tell: impl FnMut(EntryHandle, ListKind, Option<Reason>)) {
        let Ok(portal) = self.portal(header.pt_index) else { return };
        for kind in [ListKind::Priority, ListKind::Overflow] {
            let mut next = portal.list(kind).first();
            while let Some(index) = next {
                let posted = self.entries.at(index);
                let criteria = &posted.entry.criteria;
                let judgement = match (criteria.bits ^ header.match_bits) & !criteria.ignore {
                    0 => judge(self.config.face, posted, header),
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
    /// Takes a delivery back when its bytes are moved, or failed to be: posts the events, counts, and says what the
    /// initiator is to hear.
    ///
    /// # Panics
    /// If the delivery is another interface's.
    pub fn complete(&mut self, delivery: Delivery, fail: NiFail) -> Response {
        let Delivery { ref header, entry, options, .. } = delivery;
        let posted =
            self.entries.get_mut(entry.0).filter(|p| p.pending > 0).expect("a delivery of this interface");
        posted.pending -= 1;
        let region = posted.entry.region.as_ref().expect("its memory stays while operations are under way");
        let (own_eq, ct, user_ptr) = (region.eq, region.ct, region.user_ptr);
        let mlength = if fail == NiFail::Ok { delivery.mlength } else { 0 };
        let portal = self.portals[header.pt_index as usize].as_mut().expect("operations hold it");
        portal.pending -= 1;
        let eq = own_eq.or(portal.eq);
        let quiet = match self.config.face {
            Face::V3 => options.contains(Options::EVENT_END_DISABLE),
            Face::V4 => {
                options.contains(Options::EVENT_COMM_DISABLE)
                    || fail == NiFail::Ok && options.contains(Options::EVENT_SUCCESS_DISABLE)
            }
        };
        if quiet {
            self.release(eq, usize::from(delivery.reserved));
        } else if self.config.face == Face::V3 {
            self.tell_v3(&delivery, end_kind(header.operation), mlength, fail, delivery.reserved);
        } else {
            let event = Event { fail, mlength, ..delivery.event(event_kind(header.operation), user_ptr) };
            self.push(eq, event, None, delivery.reserved);
        }
        if options.contains(Options::EVENT_CT_COMM) {
            self.count(ct, fail, options.contains(Options::EVENT_CT_BYTES).then_some(mlength));
        }
        if let Some(waiting) = delivery.waiting {
            let header = self.headers.at_mut(waiting);
            (header.done, header.mlength) = (Some(fail), mlength);
            if header.claim.is_some() {
                self.finish_claim(waiting);
            }
        }
        if self.entries.get(entry.0).is_some_and(|posted| posted.detaching || posted.auto_unlinked) {
            self.settle(entry.0.index());
        }
        header.response(fail, mlength, delivery.offset, options.contains(Options::ACK_DISABLE))
    }
    /// One of the two events of an operation of 3.3, with the memory descriptor as it is now.
    fn tell_v3(&mut self, delivery: &Delivery, kind: EventKind, mlength: u64, fail: NiFail, reserved: bool) {
        let region = self.entries.at(delivery.entry.0.index()).entry.region.expect("operations hold it");
        let event = Event { fail, mlength, ..delivery.event(kind, region.user_ptr) };
        self.push(self.eq_of(delivery.header.pt_index, &region), event, Some(&region), reserved);
    }

    #[cold]
    fn refuse(&mut self, header: &Header, fail: NiFail) -> Verdict {
        Verdict::Refuse(self.reject(header, fail))
    }
    /// Counts a message that is not even shown to the lists, and says what its initiator is to hear: for callers that see
    /// that it can't be right, by its length for one.
    #[cold]
    pub fn reject(&mut self, header: &Header, fail: NiFail) -> Response {
        match fail {
            NiFail::PermViolation => self.status.permission_violations += 1,
            NiFail::OpViolation => self.status.operation_violations += 1,
            _ => self.status.dropped += 1,
        }
        if self.config.face == Face::V3 && matches!(fail, NiFail::PermViolation | NiFail::OpViolation) {
            self.status.dropped += 1;
        }
        header.response(fail, 0, 0, false)
    }
    /// The entry that a message is for.
    fn choose(&mut self, header: &Header) -> Result<Choice, NiFail> {
        let portal = self.portal(header.pt_index).map_err(|_| NiFail::Dropped)?;
        if self.config.face == Face::V3 && !self.acl.is_empty() {
            let acl = self.acl.get(header.ac_index as usize).copied().flatten();
            if !acl.is_some_and(|acl| acl.admits(header)) {
                return Err(NiFail::PermViolation);
            }
        }
        if portal.disabled {
            return Err(NiFail::PtDisabled);
        }
        if !self.is_legal(header) {
            return Err(NiFail::OpViolation);
        }
        for kind in [ListKind::Priority, ListKind::Overflow] {
            let list = portal.list(kind);
            if list.len() == 0 {
                continue;
            }
            let mut search = list.search(header.match_bits, header.initiator.packed());
            while let Some(index) = list.next(&self.nodes, &mut search) {
                match judge(self.config.face, self.entries.at(index), header) {
                    Judgement::Take { offset, mlength } => {
                        return Ok(Choice { index, list: kind, offset, mlength });
                    }
                    Judgement::Pass(_) => {}
                    Judgement::Fail(Reason::Permission) => return Err(NiFail::PermViolation),
                    Judgement::Fail(_) => return Err(NiFail::OpViolation),
                }
            }
        }
        if portal.options.contains(PortalOptions::FLOWCTRL) {
            self.run_dry(header.pt_index, false);
            return Err(NiFail::PtDisabled);
        }
        Err(NiFail::Dropped)
    }
    /// Whether the interface does such an operation at such a length.
    fn is_legal(&self, header: &Header) -> bool {
        let limits = &self.config.limits;
        let limit = match header.operation {
            Operation::Put | Operation::Get | Operation::GetPut => limits.max_msg_size,
            Operation::Atomic(..) => limits.max_atomic_size,
            Operation::FetchAtomic(..) | Operation::Swap(..) => limits.max_fetch_atomic_size,
        };
        header.length <= limit && header.operation.is_legal(header.length)
    }
    /// Gives a message to an entry.
    #[inline]
    fn take(&mut self, header: &Header, choice: &Choice) -> Verdict {
        let &Choice { index, list, offset, mlength } = choice;
        let posted = self.entries.at(index);
        let region = posted.entry.region.as_ref().expect("it takes a message");
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
        let own_eq = region.eq;
        let portal = self.portals[header.pt_index as usize].as_mut().expect("it has entries");
        let mut reserved = Reserved::default();
        if waits || portal.options.contains(PortalOptions::FLOWCTRL) {
            reserved = match self.make_room(header, options, own_eq, list, unlinks, waits) {
                Ok(reserved) => reserved,
                Err(fail) => return self.refuse(header, fail),
            };
        }

        self.portals[header.pt_index as usize].as_mut().expect("it has entries").pending += 1;
        let link = self.next_link;
        self.next_link += 1;
        let entry = EntryHandle(self.entries.key_at(index));
        let posted = self.entries.at_mut(index);
        posted.entry.region.as_mut().expect("it takes a message").threshold = threshold;
        posted.offset = next_offset;
        posted.pending += 1;
        if goes {
            posted.last_link = link;
            (posted.unlink_reserved, posted.free_reserved) = (reserved.unlink, reserved.free);
            (posted.detaching, posted.auto_unlinked) = (true, unlinks);
        }
        let md = posted.md.map(MdHandle);
        if unlinks {
            self.take_from_list(index);
        }
        let waiting =
            waits.then(|| self.wait(header, index, region_start.wrapping_add(offset), offset, mlength));
        let delivery = Delivery {
            header: *header,
            entry,
            list,
            md,
            region_start,
            offset,
            mlength,
            options,
            waiting,
            link,
            reserved: reserved.comm,
        };
        if self.config.face == Face::V3 && !options.contains(Options::EVENT_START_DISABLE) {
            self.tell_v3(&delivery, start_kind(header.operation), mlength, NiFail::Ok, false);
        }
        Verdict::Accept(delivery)
    }
    /// Keeps room for what a message will leave behind, where running out of it is not to lose anything.
    fn make_room(
        &mut self,
        header: &Header,
        options: Options,
        own_eq: Option<EqHandle>,
        list: ListKind,
        unlinks: bool,
        waits: bool,
    ) -> Result<Reserved, NiFail> {
        let portal = self.portals[header.pt_index as usize].as_ref().expect("it has entries");
        let flow_control = portal.options.contains(PortalOptions::FLOWCTRL);
        let quiet = options.contains(Options::EVENT_FLOWCTRL_DISABLE);
        if waits && self.headers.len() == self.headers.limit() {
            if !flow_control {
                return Err(NiFail::Dropped);
            }
            self.run_dry(header.pt_index, quiet);
            return Err(NiFail::PtDisabled);
        }
        if !flow_control {
            return Ok(Reserved::default());
        }
        let unlink = unlinks && !options.contains(Options::EVENT_UNLINK_DISABLE);
        let reserved = Reserved {
            comm: !options.contains(Options::EVENT_COMM_DISABLE),
            unlink,
            free: unlink && list == ListKind::Overflow,
        };
        let eq = own_eq.or(portal.eq);
        let events = usize::from(reserved.comm) + usize::from(reserved.unlink) + usize::from(reserved.free);
        if !self.reserve(eq, events) {
            self.run_dry(header.pt_index, quiet);
            return Err(NiFail::PtDisabled);
        }
        Ok(reserved)
    }
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
            let kind = match self.config.face {
                Face::V3 => EventKind::Unlink,
                Face::V4 => EventKind::AutoUnlink,
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

impl Delivery {
    /// Where in memory the bytes go: the region's start plus the offset.
    pub const fn start(&self) -> u64 {
        self.region_start.wrapping_add(self.offset)
    }
    fn event(&self, kind: EventKind, user_ptr: u64) -> Event {
        Event {
            list: self.list,
            mlength: self.mlength,
            offset: self.offset,
            start: self.start(),
            user_ptr,
            entry: Some(self.entry),
            md: self.md,
            link: self.link,
            ..Event::of(kind, &self.header)
        }
    }
}

impl Event {
    /// An event with what it takes from a message's header.
    pub(crate) fn of(kind: EventKind, header: &Header) -> Self {
        Self {
            atomic: header.operation.atomic(),
            pt_index: header.pt_index,
            initiator: header.initiator,
            uid: header.uid,
            jid: header.jid,
            match_bits: header.match_bits,
            rlength: header.length,
            remote_offset: header.remote_offset,
            hdr_data: header.hdr_data,
            ..Self::new(kind)
        }
    }
}

/// Whether an entry whose match bits agree takes a message.
fn judge(face: Face, posted: &Posted, header: &Header) -> Judgement {
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
    let refuse = |reason| if face == Face::V3 { Pass(reason) } else { Fail(reason) };
    if posted.entry.uid.is_some_and(|uid| uid != header.uid) {
        return refuse(Reason::Permission);
    }
    if !region.options.contains(rights(header.operation)) {
        return refuse(Reason::Operation);
    }
    let mlength = header.length.min(available);
    let whole = header.operation.atomic().map_or(0, |(_, ty)| mlength % ty.size_bytes() as u64);
    Judgement::Take { offset, mlength: mlength - whole }
}

/// Whether locally managed memory has less room left than it is to have.
fn is_full(region: &Region, offset: u64) -> bool {
    region.min_free > 0
        && region.options.contains(Options::MANAGE_LOCAL)
        && region.length.saturating_sub(offset) < region.min_free
}

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

fn rights(operation: Operation) -> Options {
    match operation {
        Operation::Put | Operation::Atomic(..) => Options::OP_PUT,
        Operation::Get => Options::OP_GET,
        Operation::FetchAtomic(..) | Operation::Swap(..) | Operation::GetPut => {
            Options::OP_PUT | Options::OP_GET
        }
    }
}

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
