//! The initiator's half of what the faces share: memory descriptors, and the events and counts of what they send.

use crate::post::one_less;
use crate::{
    AckRequest, Error, Event, EventKind, Face, Interface, Md, MdHandle, MdOptions, NiFail, Operation,
    Options, Region, Response, ResponseKind, Threshold, Transfer,
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
    /// What was asked for.
    pub transfer: Transfer,
    link: u64,
}

impl Flight {
    /// Whether [`Interface::sent`] is to be called: the message carries bytes.
    pub const fn is_sent(&self) -> bool {
        self.transfer.operation.writes()
    }
    /// Whether [`Interface::answered`] is to be called, by what comes back or by what can't.
    pub const fn is_answered(&self) -> bool {
        self.transfer.operation.replies() || !matches!(self.transfer.ack, AckRequest::None)
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

    /// Checks a message's arguments.
    pub(crate) fn check_transfer(&self, transfer: &Transfer) -> Result<(), Error> {
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
    fn check_range(
        &self,
        md: MdHandle,
        argument: &'static str,
        offset: u64,
        length: u64,
    ) -> Result<(), Error> {
        let region = self.md_region(md).map_err(|_| Error::Handle { argument })?;
        if region.threshold == Threshold::Count(0) {
            return Err(Error::Inactive { argument });
        }
        let available = region.length;
        match offset.checked_add(length) {
            Some(end) if end <= available => Ok(()),
            _ => Err(Error::Range { argument, offset, length, available }),
        }
    }
    /// Begins a message: its memory descriptors are in use until its completions were told.
    ///
    /// # Errors
    /// [`Error::Handle`], [`Error::Range`], [`Error::TooLarge`], [`Error::Atomic`]; [`Error::Inactive`] (3.3).
    pub fn begin(&mut self, transfer: &Transfer) -> Result<Flight, Error> {
        self.check_transfer(transfer)?;
        let flight = Flight { transfer: *transfer, link: self.next_link };
        self.next_link += 1;
        if flight.is_sent() {
            *self.md_pending(transfer.md) += 1;
        }
        if flight.is_answered() {
            *self.md_pending(flight.answer_md()) += 1;
        }
        if self.config.face == Face::V3 && flight.is_sent() {
            let region = self.md_region(transfer.md).expect("it was checked");
            if !region.options.contains(Options::EVENT_START_DISABLE) {
                let event = flight.event(EventKind::SendStart, transfer.md, &region);
                self.push(region.eq, event, Some(&region), false);
            }
        }
        Ok(flight)
    }
    /// The bytes of a message have left its memory, or failed to. For messages that [carry](Flight::is_sent) any.
    pub fn sent(&mut self, flight: &Flight, fail: NiFail) {
        let md = flight.transfer.md;
        let bytes = flight.transfer.length;
        let kind = if self.config.face == Face::V3 { EventKind::SendEnd } else { EventKind::Send };
        let event = Event { fail, mlength: bytes, ..Event::new(kind) };
        self.told(flight, md, event, MdOptions::EVENT_CT_SEND, Some(bytes));
    }
    /// What came back for a message, or that nothing will ([`NiFail::Undeliverable`]). For messages that
    /// [expect](Flight::is_answered) it.
    pub fn answered(&mut self, flight: &Flight, response: &Response) {
        let md = flight.answer_md();
        let Response { fail, mlength, offset, .. } = *response;
        if flight.transfer.operation.replies() {
            let kind = if self.config.face == Face::V3 { EventKind::ReplyEnd } else { EventKind::Reply };
            let event = Event { fail, mlength, offset, ..Event::new(kind) };
            return self.told(flight, md, event, MdOptions::EVENT_CT_REPLY, Some(mlength));
        }
        let event = Event { fail, mlength, offset, ..Event::new(EventKind::Ack) };
        // That an operation is over counts as one, whatever it moved.
        let bytes = (response.kind != ResponseKind::CompleteAck).then_some(mlength);
        self.told(flight, md, event, MdOptions::EVENT_CT_ACK, bytes);
    }

    /// Nothing comes back for a message that [expected](Flight::is_answered) it: its target keeps acknowledgements back.
    pub fn forget(&mut self, flight: &Flight) {
        let md = flight.answer_md();
        *self.md_pending(md) -= 1;
        if self.config.face == Face::V3 {
            self.settle_md(md);
        }
    }

    /// One completion: the event with what it has of its own, and the count.
    fn told(&mut self, flight: &Flight, md: MdHandle, event: Event, counted: MdOptions, bytes: Option<u64>) {
        *self.md_pending(md) -= 1;
        if self.config.face == Face::V3 {
            return self.told_v3(flight, md, event);
        }
        let MdSlot::Bound(bound) = self.mds.get(md.0).expect("messages hold it") else { return };
        let (region, options) = (bound.region, bound.options);
        let Event { kind, fail, mlength, offset, .. } = event;
        let quiet = fail == NiFail::Ok && options.contains(MdOptions::EVENT_SUCCESS_DISABLE)
            || kind == EventKind::Send && options.contains(MdOptions::EVENT_SEND_DISABLE)
            || kind == EventKind::Ack && flight.transfer.ack != AckRequest::Full;
        if !quiet {
            let event = Event { fail, mlength, offset, ..flight.event(kind, md, &region) };
            let event = Event { user_ptr: flight.transfer.user_ptr, ..event };
            self.push(region.eq, event, None, false);
        }
        if options.contains(counted) {
            let bytes = bytes.filter(|_| options.contains(MdOptions::EVENT_CT_BYTES));
            self.count(region.ct, fail, bytes);
        }
    }
    fn told_v3(&mut self, flight: &Flight, md: MdHandle, event: Event) {
        let mut region = self.md_region(md).expect("messages hold it");
        if region.threshold == Threshold::Count(0) {
            // It takes no more, this included.
            self.status.dropped += 1;
            return self.settle_md(md);
        }
        let Event { kind, fail, mlength, offset, .. } = event;
        let of_flight =
            |kind, region: &Region| Event { fail, mlength, offset, ..flight.event(kind, md, region) };
        if kind == EventKind::ReplyEnd && !region.options.contains(Options::EVENT_START_DISABLE) {
            self.push(region.eq, of_flight(EventKind::ReplyStart, &region), Some(&region), false);
        }
        region.threshold = one_less(region.threshold);
        let ends = region.threshold == Threshold::Count(0) && region.unlink;
        match self.mds.get_mut(md.0).expect("messages hold it") {
            MdSlot::Bound(bound) => {
                bound.region = region;
                bound.ends |= ends;
                bound.last_link = flight.link;
            }
            &mut MdSlot::Attached(entry) => {
                let posted = self.entries.at_mut(entry);
                posted.entry.region = Some(region);
                if ends {
                    posted.last_link = flight.link;
                    (posted.detaching, posted.auto_unlinked) = (true, posted.entry.unlink);
                    if posted.entry.unlink && posted.linked {
                        self.take_from_list(entry);
                    }
                }
            }
        }
        if kind == EventKind::Ack || !region.options.contains(Options::EVENT_END_DISABLE) {
            self.push(region.eq, of_flight(kind, &region), Some(&region), false);
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
    fn md_pending(&mut self, md: MdHandle) -> &mut u32 {
        match self.mds.get_mut(md.0).expect("messages hold it") {
            MdSlot::Bound(bound) => &mut bound.pending,
            &mut MdSlot::Attached(entry) => &mut self.entries.at_mut(entry).pending,
        }
    }
}

impl Flight {
    fn answer_md(&self) -> MdHandle {
        self.transfer.reply.map_or(self.transfer.md, |(md, _)| md)
    }
    fn event(&self, kind: EventKind, md: MdHandle, region: &Region) -> Event {
        let Transfer { operation, local_offset, length, target, pt_index, .. } = self.transfer;
        Event {
            atomic: operation.atomic(),
            pt_index,
            initiator: target,
            match_bits: self.transfer.match_bits,
            rlength: length,
            remote_offset: self.transfer.remote_offset,
            start: region.start.wrapping_add(local_offset),
            user_ptr: region.user_ptr,
            hdr_data: self.transfer.hdr_data,
            md: Some(md),
            link: self.link,
            ..Event::new(kind)
        }
    }
}
