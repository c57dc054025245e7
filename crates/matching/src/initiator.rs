//! The initiator's half that both versions share: memory descriptors, and events and counts of sent messages.

use crate::post::one_less;
use crate::{
    AckRequest, Error, Event, EventKind, Interface, Jid, ListKind, Md, MdHandle, MdOptions, NiFail,
    Operation, Options, Region, Response, ResponseKind, Threshold, Transfer, Uid, Version,
};

/// A memory descriptor.
#[derive(Debug)]
pub(crate) enum MdSlot {
    /// Of an entry, which holds its values (3.3).
    Attached(u32),
    /// An initiator's.
    Bound(Bound),
}

#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) region: Region,
    options: MdOptions,
    pub(crate) pending: u32,
    /// Used up, and gone when `pending` is 0 (3.3).
    ends: bool,
    last_link: u64,
}

/// A message under way, from [`Interface::begin`] to its last completion.
#[derive(Debug, PartialEq)]
#[must_use = "its memory descriptors wait for `Interface::sent` and `Interface::answered`"]
pub struct Flight {
    /// The requested value.
    pub transfer: Transfer,
    link: u64,
    /// 3.3: its reply has begun, which used its descriptor.
    has_begun: bool,
}

impl Flight {
    /// Whether the caller calls [`Interface::sent`]: the message carries bytes.
    pub const fn is_sent(&self) -> bool {
        self.transfer.operation.writes()
    }
    /// Whether the caller calls [`Interface::answered`], with the response or the failure.
    pub const fn is_answered(&self) -> bool {
        self.transfer.is_answered()
    }
}

impl Region {
    /// Whether a range lies inside.
    #[inline(always)]
    fn has(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Interface {
    /// Makes a memory descriptor for an initiator (4.3).
    ///
    /// # Errors
    /// [`Error::Handle`], [`Error::NoSpace`].
    pub fn md_bind(&mut self, md: Md) -> Result<MdHandle, Error> {
        let Md { start, length, options, eq, ct } = md;
        self.bind(Region { start, length, eq, ct, ..Region::default() }, options)
    }
    /// Makes a memory descriptor that is attached to no entry (3.3).
    ///
    /// # Errors
    /// [`Error::Handle`], [`Error::NoSpace`].
    pub fn md_bind_region(&mut self, region: Region) -> Result<MdHandle, Error> {
        self.bind(region, MdOptions::empty())
    }
    fn bind(&mut self, region: Region, options: MdOptions) -> Result<MdHandle, Error> {
        self.check_eq(region.eq, "eq")?;
        self.check_ct(region.ct, "ct")?;
        let limit = self.mds.limit();
        let slot = MdSlot::Bound(Bound { region, options, pending: 0, ends: false, last_link: 0 });
        self.mds.insert(slot).map(MdHandle).ok_or(Error::NoSpace { what: "memory descriptors", limit })
    }

    /// Checks a message's arguments, as [`begin`](Self::begin) does.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    #[inline]
    pub(crate) fn check_transfer(&self, transfer: &Transfer) -> Result<(), Error> {
        // Most are puts.
        let is_put = transfer.operation == Operation::Put && transfer.reply.is_none();
        if is_put && transfer.length <= self.config.limits.max_msg_size {
            return self.check_range(transfer.md, "md", transfer.local_offset, transfer.length);
        }
        self.check_any_transfer(transfer)
    }
    #[inline(never)]
    fn check_any_transfer(&self, transfer: &Transfer) -> Result<(), Error> {
        let Transfer { operation, length, .. } = *transfer;
        let limits = &self.config.limits;
        let limit = match operation {
            Operation::Put | Operation::Get | Operation::GetPut => limits.max_msg_size,
            Operation::Atomic(..) => limits.max_atomic_size,
            Operation::FetchAtomic(..) | Operation::Swap(..) => limits.max_fetch_atomic_size,
        };
        if length > limit {
            return Err(Error::TooLarge { argument: "length", value: length, limit });
        }
        if let Some((op, ty)) = operation.atomic().filter(|_| !operation.is_legal(length)) {
            return Err(Error::Atomic { op, ty, length });
        }
        self.check_range(transfer.md, "md", transfer.local_offset, length)?;
        match transfer.reply {
            Some((md, offset)) => self.check_range(md, "reply", offset, length),
            None if operation.replies() && operation.writes() => Err(Error::Handle { argument: "reply" }),
            None => Ok(()),
        }
    }
    #[inline]
    fn check_range(
        &self,
        md: MdHandle,
        argument: &'static str,
        offset: u64,
        length: u64,
    ) -> Result<(), Error> {
        let region = self.region_of(md).ok_or(Error::Handle { argument })?;
        if region.threshold == Threshold::Count(0) {
            return Err(Error::Inactive { argument });
        }
        match region.has(offset, length) {
            true => Ok(()),
            false => Err(Error::Range { argument, offset, length, available: region.length }),
        }
    }
    /// Begins a message: its memory descriptors are in use until its completions are reported.
    ///
    /// # Errors
    /// [`Error::Handle`], [`Error::Range`], [`Error::TooLarge`], [`Error::Atomic`]; [`Error::Inactive`] (3.3).
    pub fn begin(&mut self, transfer: &Transfer) -> Result<Flight, Error> {
        self.check_transfer(transfer)?;
        let link = self.next_link;
        self.next_link += 1;
        if transfer.operation.writes() {
            *self.md_pending(transfer.md) += 1;
        }
        if transfer.is_answered() {
            *self.md_pending(transfer.answer_md()) += 1;
        }
        if self.config.version == Version::V3 && transfer.operation.writes() {
            self.begin_v3_send(transfer, link);
        }
        Ok(Flight { transfer: *transfer, link, has_begun: false })
    }
    /// Whether a put may be sent with [`sent_at_once`](Self::sent_at_once) as its beginning and its end: no answer is
    /// wanted, and [`begin`](Self::begin) would take it.
    #[inline(always)]
    pub fn may_send_at_once(&self, put: &Transfer) -> bool {
        let is_plain = put.operation == Operation::Put && put.reply.is_none() && !put.is_answered();
        let in_limit = put.length <= self.config.limits.max_msg_size;
        let Some(region) = self.region_of(put.md) else { return false };
        let is_active = region.threshold != Threshold::Count(0);
        is_plain && in_limit && is_active && region.has(put.local_offset, put.length)
    }
    /// Reports that a message that [may](Self::may_send_at_once) was sent, to the end.
    #[inline(always)]
    pub fn sent_at_once(&mut self, put: &Transfer) {
        if self.config.version == Version::V3 {
            // A copy, so that the original need not be in memory.
            return self.sent_at_once_v3(&{ *put });
        }
        let end = End::sent(NiFail::Ok, put.length);
        let link = self.next_link;
        self.next_link += 1;
        self.told_v4(put, link, put.md, end, MdOptions::EVENT_CT_SEND, true);
    }
    #[inline(never)]
    fn sent_at_once_v3(&mut self, put: &Transfer) {
        let flight = self.begin(put).expect("it was checked");
        self.sent(&flight, NiFail::Ok);
    }
    /// Reports that the bytes of a message have left its memory, or failed to. For messages that
    /// [carry](Flight::is_sent) bytes.
    pub fn sent(&mut self, flight: &Flight, fail: NiFail) {
        let Transfer { md, length, .. } = flight.transfer;
        let end = End::sent(fail, length);
        self.told(flight, md, end, MdOptions::EVENT_CT_SEND, true);
    }
    /// Whether the response to a message will find an active memory descriptor. In 3.3 the descriptor may be inactive;
    /// the bytes are then dropped.
    #[inline]
    pub fn takes_answer(&self, flight: &Flight) -> bool {
        let is_active = |md| self.md_region(md).is_ok_and(|region| region.threshold != Threshold::Count(0));
        self.config.version == Version::V4 || is_active(flight.transfer.answer_md())
    }
    /// Reports that the bytes of a reply begin to come, for callers that pass the reply to
    /// [`answered`](Self::answered) only later. Returns whether they are [taken](Self::takes_answer); in 3.3 the
    /// descriptor then has one use less from now on.
    pub fn reply_begins(&mut self, flight: &mut Flight, reply: &Response) -> bool {
        let takes = self.takes_answer(flight);
        if takes && self.config.version == Version::V3 {
            flight.has_begun = true;
            self.begin_v3_reply(flight, End::answered(EventKind::ReplyStart, reply));
        }
        takes
    }
    /// Takes the response to a message, or its failure ([`NiFail::Undeliverable`]). For messages that
    /// [expect](Flight::is_answered) a response.
    pub fn answered(&mut self, flight: &Flight, response: &Response) {
        let md = flight.transfer.answer_md();
        let (kind, counted) = match flight.transfer.operation.replies() {
            true => (EventKind::Reply, MdOptions::EVENT_CT_REPLY),
            false => (EventKind::Ack, MdOptions::EVENT_CT_ACK),
        };
        // That an operation is over counts as one, whatever it moved.
        let has_bytes = kind == EventKind::Reply || response.kind != ResponseKind::CompleteAck;
        self.told(flight, md, End::answered(kind, response), counted, has_bytes);
    }

    /// Reports that no response will come for a message that [expected](Flight::is_answered) one, because its target
    /// withholds acknowledgements.
    pub fn forget(&mut self, flight: &Flight) {
        let md = flight.transfer.answer_md();
        *self.md_pending(md) -= 1;
        if self.config.version == Version::V3 {
            self.settle_md(md);
        }
    }

    /// One completion: its event and its count.
    #[inline]
    fn told(&mut self, flight: &Flight, md: MdHandle, end: End, counted: MdOptions, has_bytes: bool) {
        if self.config.version == Version::V3 {
            return self.told_v3(flight, md, end);
        }
        *self.md_pending(md) -= 1;
        self.told_v4(&flight.transfer, flight.link, md, end, counted, has_bytes);
    }
    #[inline(always)]
    fn told_v4(
        &mut self,
        transfer: &Transfer,
        link: u64,
        md: MdHandle,
        end: End,
        counted: MdOptions,
        has_bytes: bool,
    ) {
        let Some(MdSlot::Bound(bound)) = self.mds.get(md.0) else {
            unreachable!("messages hold their memory descriptor, and none is attached in 4.3")
        };
        let (options, ct) = (bound.options, bound.region.ct);
        let quiet = end.fail == NiFail::Ok && options.contains(MdOptions::EVENT_SUCCESS_DISABLE)
            || end.kind == EventKind::Send && options.contains(MdOptions::EVENT_SEND_DISABLE)
            || end.kind == EventKind::Ack && transfer.ack != AckRequest::Full;
        if !quiet
            && let Some(queue) = bound.region.eq.and_then(|eq| self.eqs.get_mut(eq.0))
            && let Some(place) = queue.place(false)
        {
            transfer.fill_event(link, place, md, bound.region.start, transfer.user_ptr, end);
        }
        if options.contains(counted) {
            let bytes = (has_bytes && options.contains(MdOptions::EVENT_CT_BYTES)).then_some(end.mlength);
            self.count(ct, end.fail, bytes);
        }
    }
    /// 3.3: bytes are to leave, which counts as a use from now on: who begins more than a descriptor takes is refused.
    #[cold]
    fn begin_v3_send(&mut self, transfer: &Transfer, link: u64) {
        let region = self.use_once_v3(transfer.md, link);
        if !region.options.contains(Options::EVENT_START_DISABLE) {
            let end = End { kind: EventKind::SendStart, ..End::sent(NiFail::Ok, 0) };
            self.tell_v3_of(transfer, link, transfer.md, &region, end);
        }
    }
    /// Counts a use of a descriptor that is active; yields its values from then on.
    fn use_once_v3(&mut self, md: MdHandle, link: u64) -> Region {
        let mut region = self.md_region(md).expect("messages hold it");
        region.threshold = one_less(region.threshold);
        let ends = region.threshold == Threshold::Count(0) && region.unlink;
        match self.mds.get_mut(md.0).expect("messages hold it") {
            MdSlot::Bound(bound) => {
                bound.region = region;
                bound.ends |= ends;
                bound.last_link = link;
            }
            &mut MdSlot::Attached(entry) => {
                let posted = self.entries.at_mut(entry);
                posted.entry.region = Some(region);
                if ends {
                    posted.last_link = link;
                    (posted.detaching, posted.auto_unlinked) = (true, posted.entry.unlink);
                    if posted.entry.unlink && posted.linked {
                        self.take_from_list(entry);
                    }
                }
            }
        }
        region
    }
    /// 3.3: the bytes of a reply come, which counts as a use from now on.
    fn begin_v3_reply(&mut self, Flight { transfer, link, .. }: &Flight, end: End) {
        let md = transfer.answer_md();
        let region = self.use_once_v3(md, *link);
        if !region.options.contains(Options::EVENT_START_DISABLE) {
            self.tell_v3_of(transfer, *link, md, &region, end);
        }
    }
    fn tell_v3_of(&mut self, transfer: &Transfer, link: u64, md: MdHandle, region: &Region, end: End) {
        let mut event = Event::new(end.kind);
        transfer.fill_event(link, &mut event, md, region.start, region.user_ptr, end);
        self.push(region.eq, event, Some(region), false);
    }
    #[cold]
    fn told_v3(&mut self, flight: &Flight, md: MdHandle, mut end: End) {
        let Flight { transfer, link, has_begun } = flight;
        *self.md_pending(md) -= 1;
        if end.kind != EventKind::Send && !has_begun {
            if self.md_region(md).is_ok_and(|region| region.threshold == Threshold::Count(0)) {
                // It takes no more, this included.
                self.status.dropped += 1;
                return self.settle_md(md);
            }
            match end.kind {
                EventKind::Reply => self.begin_v3_reply(flight, End { kind: EventKind::ReplyStart, ..end }),
                _ => drop(self.use_once_v3(md, *link)),
            }
        }
        let region = self.md_region(md).expect("messages hold it");
        end.kind = match end.kind {
            EventKind::Reply => EventKind::ReplyEnd,
            EventKind::Send => EventKind::SendEnd,
            kind => kind,
        };
        if end.kind == EventKind::Ack || !region.options.contains(Options::EVENT_END_DISABLE) {
            self.tell_v3_of(transfer, *link, md, &region, end);
        }
        self.settle_md(md);
    }
    /// Ends a memory descriptor that is used up, once nothing on it is under way.
    fn settle_md(&mut self, md: MdHandle) {
        match self.mds.get(md.0).expect("messages hold it") {
            &MdSlot::Attached(entry) => self.settle(entry),
            MdSlot::Bound(bound) if bound.ends && bound.pending == 0 => {
                let (region, link) = (bound.region, bound.last_link);
                let user_ptr = region.user_ptr;
                let event = Event { user_ptr, md: Some(md), link, ..Event::new(EventKind::Unlink) };
                self.remove_md(md.0);
                self.push(region.eq, event, Some(&region), false);
            }
            MdSlot::Bound(_) => {}
        }
    }
    #[inline]
    fn md_pending(&mut self, md: MdHandle) -> &mut u32 {
        match self.mds.get_mut(md.0).expect("messages hold it") {
            MdSlot::Bound(bound) => &mut bound.pending,
            &mut MdSlot::Attached(entry) => &mut self.entries.at_mut(entry).pending,
        }
    }
}

/// How a message, or a part of it, ended.
#[derive(Clone, Copy)]
struct End {
    /// The event of 4.3, or one of 3.3.
    kind: EventKind,
    fail: NiFail,
    mlength: u64,
    offset: u64,
    list: ListKind,
}

impl End {
    #[inline(always)]
    fn sent(fail: NiFail, mlength: u64) -> Self {
        Self { kind: EventKind::Send, fail, mlength, offset: 0, list: ListKind::Priority }
    }
    #[inline]
    fn answered(kind: EventKind, &Response { fail, mlength, offset, list, .. }: &Response) -> Self {
        Self { kind, fail, mlength, offset, list }
    }
}

impl Transfer {
    /// Whether a response to the message will come.
    pub const fn is_answered(&self) -> bool {
        self.operation.replies() || !matches!(self.ack, AckRequest::None)
    }
    #[inline]
    fn answer_md(&self) -> MdHandle {
        match self.reply {
            Some((md, _)) => md,
            None => self.md,
        }
    }
    /// Fills an event in, field by field.
    #[inline(always)]
    fn fill_event(&self, link: u64, event: &mut Event, md: MdHandle, start: u64, user_ptr: u64, end: End) {
        let is_sent = matches!(end.kind, EventKind::Send | EventKind::SendStart | EventKind::SendEnd);
        let local_offset = match self.reply {
            Some((_, offset)) if !is_sent => offset,
            _ => self.local_offset,
        };
        event.kind = end.kind;
        event.fail = end.fail;
        event.list = end.list;
        event.atomic = self.operation.atomic();
        event.pt_index = self.pt_index;
        event.initiator = self.target;
        event.uid = Uid(0);
        event.jid = Jid(0);
        event.match_bits = self.match_bits;
        event.rlength = self.length;
        event.mlength = end.mlength;
        event.remote_offset = self.remote_offset;
        event.offset = end.offset;
        event.start = start.wrapping_add(local_offset);
        event.user_ptr = user_ptr;
        event.hdr_data = self.hdr_data;
        event.entry = None;
        event.md = Some(md);
        event.link = link;
    }
}
