//! A plain model of the rules: vectors, and loops over them.

use std::collections::VecDeque;

use hca_matching::*;

pub(crate) struct Queue {
    pub(crate) events: VecDeque<Event>,
    pub(crate) capacity: usize,
    pub(crate) dropped: bool,
}

pub(crate) struct Posted {
    pub(crate) handle: EntryHandle,
    pub(crate) entry: Entry,
    pub(crate) md: Option<MdHandle>,
    pub(crate) pt: usize,
    pub(crate) list: ListKind,
    pub(crate) linked: bool,
    offset: u64,
    pending: u32,
    headers: u32,
    /// The memory is used up and waits to be told of.
    ending: bool,
    /// So is the entry.
    leaving: bool,
    keeps_unlink: bool,
    keeps_free: bool,
}

struct Waiting {
    number: u64,
    header: Header,
    holder: EntryHandle,
    offset: u64,
    start: u64,
    mlength: u64,
    done: Option<NiFail>,
    claim: Option<(Region, Option<EntryHandle>)>,
}

#[derive(Clone, Copy)]
pub(crate) struct InFlight {
    number: u64,
    pub(crate) header: Header,
    pub(crate) holder: EntryHandle,
    pub(crate) offset: u64,
    pub(crate) mlength: u64,
    waits: bool,
    keeps: bool,
}

pub(crate) struct Portal {
    pub(crate) flow_control: bool,
    pub(crate) disabled: bool,
    keeps_notice: bool,
    pub(crate) queue: Queue,
}

pub(crate) struct Model {
    pub(crate) version: Version,
    pub(crate) portals: Vec<Portal>,
    /// In the order of their lists, both lists of all portals.
    pub(crate) posted: Vec<Posted>,
    waiting: Vec<Waiting>,
    in_flight: Vec<InFlight>,
    pub(crate) status: Status,
    pub(crate) count: Count,
    max_headers: usize,
    next: u64,
}

fn has(region: &Region, option: Options) -> bool {
    region.options.contains(option)
}

impl Model {
    pub(crate) fn new(version: Version, flow_control: &[bool], events: usize, max_headers: usize) -> Self {
        let portal = |&flow_control: &bool| Portal {
            flow_control,
            disabled: false,
            keeps_notice: flow_control,
            queue: Queue {
                events: VecDeque::new(),
                capacity: events + usize::from(flow_control),
                dropped: false,
            },
        };
        Self {
            version,
            portals: flow_control.iter().map(portal).collect(),
            posted: Vec::new(),
            waiting: Vec::new(),
            in_flight: Vec::new(),
            status: Status::default(),
            count: Count::default(),
            max_headers,
            next: 0,
        }
    }
    fn kept(&self, pt: usize) -> usize {
        let messages = self.in_flight.iter().filter(|f| f.header.pt_index as usize == pt && f.keeps).count();
        let entries = self.posted.iter().filter(|p| p.pt == pt);
        let ends: usize = entries.map(|p| usize::from(p.keeps_unlink) + usize::from(p.keeps_free)).sum();
        messages + ends + usize::from(self.portals[pt].keeps_notice)
    }
    /// Whoever kept a place has given it up before.
    fn push(&mut self, pt: usize, event: Event) {
        let kept = self.kept(pt);
        let queue = &mut self.portals[pt].queue;
        if queue.events.len() + kept >= queue.capacity {
            queue.dropped = true;
            if queue.events.pop_front().is_none() {
                return;
            }
        }
        queue.events.push_back(event);
    }
    fn blank(kind: EventKind) -> Event {
        let header = Header::default();
        let Header { initiator, uid, jid, .. } = header;
        Event {
            kind,
            fail: NiFail::Ok,
            list: ListKind::Priority,
            atomic: None,
            pt_index: 0,
            initiator,
            uid,
            jid,
            match_bits: 0,
            rlength: 0,
            mlength: 0,
            remote_offset: 0,
            offset: 0,
            start: 0,
            user_ptr: 0,
            hdr_data: 0,
            entry: None,
            md: None,
            link: 0,
            sequence: 0,
        }
    }
    fn of(kind: EventKind, h: &Header) -> Event {
        Event {
            atomic: h.operation.atomic(),
            pt_index: h.pt_index,
            initiator: h.initiator,
            uid: h.uid,
            jid: h.jid,
            match_bits: h.match_bits,
            rlength: h.length,
            remote_offset: h.remote_offset,
            hdr_data: h.hdr_data,
            ..Self::blank(kind)
        }
    }
    fn find(&self, handle: EntryHandle) -> Option<usize> {
        self.posted.iter().position(|p| p.handle == handle)
    }
    fn bump(&mut self, region: &Region, fail: NiFail, bytes: u64) {
        if region.ct.is_none() {
            return;
        }
        match fail {
            NiFail::Ok => self.count.success += if has(region, Options::EVENT_CT_BYTES) { bytes } else { 1 },
            _ => self.count.failure += 1,
        }
    }

    pub(crate) fn insert(&mut self, handle: EntryHandle, at: usize, pt: usize, list: ListKind, entry: Entry) {
        let posted = Posted {
            handle,
            entry,
            md: None,
            pt,
            list,
            linked: true,
            offset: 0,
            pending: 0,
            headers: 0,
            ending: false,
            leaving: false,
            keeps_unlink: false,
            keeps_free: false,
        };
        self.posted.insert(at, posted);
        if list == ListKind::Priority && self.claim_all(handle) {
            return;
        }
        let Some(region) = entry.region else { return };
        if self.version == Version::V4 && !has(&region, Options::EVENT_LINK_DISABLE) {
            let event = Event {
                pt_index: pt as u32,
                list,
                user_ptr: region.user_ptr,
                start: region.start,
                entry: Some(handle),
                ..Self::blank(EventKind::Link)
            };
            self.push(pt, event);
        }
    }
    fn fits(region: &Region, offset: u64, header: &Header) -> bool {
        let offset = if has(region, Options::MANAGE_LOCAL) { offset } else { header.remote_offset };
        !has(region, Options::NO_TRUNCATE) || header.length <= region.length.saturating_sub(offset)
    }
    fn claim_all(&mut self, handle: EntryHandle) -> bool {
        let at = self.find(handle).unwrap();
        let (entry, pt) = (self.posted[at].entry, self.posted[at].pt);
        let Some(region) = entry.region else { return false };
        let mut uses = region.threshold;
        if has(&region, Options::USE_ONCE) {
            uses = Threshold::Count(1);
        }
        let candidates: Vec<u64> =
            self.waiting.iter().filter(|w| w.header.pt_index as usize == pt).map(|w| w.number).collect();
        for number in candidates {
            let Some(w) = self.waiting.iter_mut().find(|w| w.number == number && w.claim.is_none()) else {
                continue;
            };
            let p = self.posted.iter_mut().find(|p| p.handle == handle).unwrap();
            if !entry.criteria.matches(&w.header) || !Self::fits(&region, p.offset, &w.header) {
                continue;
            }
            w.claim = Some((region, Some(handle)));
            if let Threshold::Count(n) = &mut uses {
                *n = n.saturating_sub(1);
            }
            let mut full = false;
            if has(&region, Options::MANAGE_LOCAL | Options::LOCAL_INC_UH_RLENGTH) {
                p.offset = (p.offset + w.header.length).min(region.length);
                full = region.min_free > 0 && region.length - p.offset < region.min_free;
            }
            p.pending += 1;
            let last = full || uses == Threshold::Count(0);
            (p.ending, p.leaving, p.linked) = (last, last, !last);
            self.finish_claim(number);
            if last {
                return true;
            }
        }
        if !has(&region, Options::USE_ONCE) {
            let at = self.find(handle).unwrap();
            self.posted[at].entry.region = Some(Region { threshold: uses, ..region });
        }
        false
    }
    fn finish_claim(&mut self, number: u64) {
        let Some(at) =
            self.waiting.iter().position(|w| w.number == number && w.claim.is_some() && w.done.is_some())
        else {
            return;
        };
        let w = self.waiting.remove(at);
        let (region, entry) = w.claim.unwrap();
        let kind = match w.header.operation {
            Operation::Put => EventKind::PutOverflow,
            Operation::Get => EventKind::GetOverflow,
            Operation::Atomic(..) => EventKind::AtomicOverflow,
            _ => EventKind::FetchAtomicOverflow,
        };
        self.tell_found(kind, &w, &region, entry);
        if let Some(at) = entry.and_then(|entry| self.find(entry)) {
            self.posted[at].pending -= 1;
            self.settle(at);
        }
        let at = self.find(w.holder).unwrap();
        self.posted[at].headers -= 1;
        self.settle(at);
    }
    fn tell_found(&mut self, kind: EventKind, w: &Waiting, region: &Region, entry: Option<EntryHandle>) {
        let event = Event {
            fail: w.done.unwrap_or(NiFail::Ok),
            list: ListKind::Overflow,
            mlength: w.mlength,
            offset: w.offset,
            start: w.start,
            user_ptr: region.user_ptr,
            entry,
            ..Self::of(kind, &w.header)
        };
        self.tell_over(event, region);
    }
    fn tell_over(&mut self, event: Event, region: &Region) {
        let success = event.fail == NiFail::Ok && has(region, Options::EVENT_SUCCESS_DISABLE);
        if !has(region, Options::EVENT_OVER_DISABLE) && !success {
            self.push(event.pt_index as usize, event);
        }
        if has(region, Options::EVENT_CT_OVERFLOW) {
            self.bump(region, event.fail, event.mlength);
        }
    }
    pub(crate) fn search(&mut self, pt: usize, entry: &Entry, op: SearchOp) {
        let region = entry.region.unwrap();
        let mut uses = region.threshold;
        if has(&region, Options::USE_ONCE) {
            uses = Threshold::Count(1);
        }
        let mut found = false;
        let candidates: Vec<u64> = self.waiting.iter().map(|w| w.number).collect();
        for number in candidates {
            if uses == Threshold::Count(0) {
                break;
            }
            let Some(at) = self.waiting.iter().position(|w| w.number == number) else { continue };
            let w = &mut self.waiting[at];
            if w.header.pt_index as usize != pt
                || w.claim.is_some()
                || !entry.criteria.matches(&w.header)
                || !Self::fits(&region, 0, &w.header)
            {
                continue;
            }
            found = true;
            if let Threshold::Count(n) = &mut uses {
                *n -= 1;
            }
            match op {
                SearchOp::Only => {
                    let w = self.waiting.remove(at);
                    self.tell_found(EventKind::Search, &w, &region, None);
                    self.waiting.insert(at, w);
                }
                SearchOp::Delete => {
                    w.claim = Some((region, None));
                    self.finish_claim(number);
                }
            }
        }
        if !found {
            let event = Event {
                pt_index: pt as u32,
                fail: NiFail::NoMatch,
                user_ptr: region.user_ptr,
                ..Self::blank(EventKind::Search)
            };
            self.tell_over(event, &region);
        } else if uses != Threshold::Count(0) && has(&region, Options::EVENT_CT_OVERFLOW) {
            self.bump(&region, NiFail::NoMatch, 0);
        }
    }
    pub(crate) fn unlink(&mut self, handle: EntryHandle) -> Result<(), Error> {
        let at = self.find(handle).filter(|&at| self.posted[at].linked);
        let at = at.ok_or(Error::Handle { argument: "entry" })?;
        let pending = self.posted[at].pending + self.posted[at].headers;
        if pending > 0 {
            return Err(Error::InUse { argument: "entry", pending });
        }
        self.posted.remove(at);
        Ok(())
    }
    fn run_dry(&mut self, pt: usize, quiet: bool) -> NiFail {
        self.portals[pt].disabled = true;
        if !quiet {
            let event =
                Event { pt_index: pt as u32, fail: NiFail::PtDisabled, ..Self::blank(EventKind::PtDisabled) };
            let kept = std::mem::take(&mut self.portals[pt].keeps_notice);
            let unread = self.portals[pt].queue.events.iter().any(|e| e.kind == EventKind::PtDisabled);
            if kept || self.has_room(pt) || !unread {
                self.push(pt, event);
            }
        }
        NiFail::PtDisabled
    }
    fn has_room(&self, pt: usize) -> bool {
        self.portals[pt].queue.events.len() + self.kept(pt) < self.portals[pt].queue.capacity
    }
    pub(crate) fn take_event(&mut self, pt: usize) -> Option<(Event, bool)> {
        let event = self.portals[pt].queue.events.pop_front()?;
        let portal = &mut self.portals[pt];
        portal.keeps_notice |= event.kind == EventKind::PtDisabled;
        Some((event, std::mem::take(&mut portal.queue.dropped)))
    }
    pub(crate) fn enable(&mut self, pt: usize) {
        let room = self.has_room(pt);
        let portal = &mut self.portals[pt];
        portal.disabled = false;
        portal.keeps_notice |= portal.flow_control && room;
    }

    /// The entry that a message is for, its offset and length.
    fn choose(&mut self, h: &Header) -> Result<(usize, u64, u64), NiFail> {
        let pt = h.pt_index as usize;
        let portal = self.portals.get(pt).ok_or(NiFail::Dropped)?;
        if portal.disabled {
            return Err(NiFail::PtDisabled);
        }
        for list in [ListKind::Priority, ListKind::Overflow] {
            for (at, p) in self.posted.iter().enumerate() {
                if (p.pt, p.list, p.linked) != (pt, list, true) || !p.entry.criteria.matches(h) || p.ending {
                    continue;
                }
                let Some(region) = &p.entry.region else { continue };
                let local = has(region, Options::MANAGE_LOCAL);
                let full = local && region.min_free > 0 && region.length - p.offset < region.min_free;
                if region.threshold == Threshold::Count(0) || full {
                    continue;
                }
                let mut offset = if local { p.offset } else { h.remote_offset };
                if local && has(region, Options::MAY_ALIGN) && !has(region, Options::LOCAL_INC_UH_RLENGTH) {
                    let aligned = offset.div_ceil(16) * 16;
                    if aligned + h.length <= region.length {
                        offset = aligned;
                    }
                }
                let room = region.length.saturating_sub(offset);
                if h.length > room && has(region, Options::NO_TRUNCATE) {
                    continue;
                }
                let needs = match h.operation {
                    Operation::Put | Operation::Atomic(..) => Options::OP_PUT,
                    Operation::Get => Options::OP_GET,
                    _ => Options::OP_PUT | Options::OP_GET,
                };
                let wrong_user = p.entry.uid.is_some_and(|uid| uid != h.uid);
                if (wrong_user || !has(region, needs)) && self.version == Version::V3 {
                    continue;
                }
                if wrong_user {
                    return Err(NiFail::PermViolation);
                }
                if !has(region, needs) {
                    return Err(NiFail::OpViolation);
                }
                let mut mlength = h.length.min(room);
                if let Some((_, ty)) = h.operation.atomic() {
                    mlength -= mlength % ty.size_bytes() as u64;
                }
                return Ok((at, offset, mlength));
            }
        }
        if self.portals[pt].flow_control {
            return Err(self.run_dry(pt, false));
        }
        Err(NiFail::Dropped)
    }
    pub(crate) fn deliver(&mut self, h: &Header) -> Result<InFlight, NiFail> {
        let result = self.try_deliver(h);
        match result.as_ref().err() {
            None => {}
            Some(NiFail::PermViolation) => self.status.permission_violations += 1,
            Some(NiFail::OpViolation) => self.status.operation_violations += 1,
            Some(_) => self.status.dropped += 1,
        }
        result
    }
    fn try_deliver(&mut self, h: &Header) -> Result<InFlight, NiFail> {
        let (at, offset, mlength) = self.choose(h)?;
        let pt = h.pt_index as usize;
        let p = &self.posted[at];
        let mut region = p.entry.region.unwrap();
        let (list, quiet) = (p.list, has(&region, Options::EVENT_FLOWCTRL_DISABLE));
        if has(&region, Options::USE_ONCE) {
            region.threshold = Threshold::Count(1);
        }
        if let Threshold::Count(n) = &mut region.threshold {
            *n -= 1;
        }
        let local = has(&region, Options::MANAGE_LOCAL);
        let next = if local { offset + mlength } else { p.offset };
        let full = local && region.min_free > 0 && region.length - next < region.min_free;
        let ending = (full || region.threshold == Threshold::Count(0)) && region.unlink;
        let leaving = ending && p.entry.unlink;
        let waits = list == ListKind::Overflow && !has(&region, Options::UNEXPECTED_HDR_DISABLE);
        let flow_control = self.portals[pt].flow_control;
        if waits && self.waiting.len() == self.max_headers {
            return Err(if flow_control { self.run_dry(pt, quiet) } else { NiFail::Dropped });
        }
        let keeps = flow_control && !has(&region, Options::EVENT_COMM_DISABLE);
        let keeps_unlink = flow_control && leaving && !has(&region, Options::EVENT_UNLINK_DISABLE);
        let keeps_free = keeps_unlink && list == ListKind::Overflow;
        let needed = usize::from(keeps) + usize::from(keeps_unlink) + usize::from(keeps_free);
        let queue = &self.portals[pt].queue;
        if flow_control && queue.events.len() + self.kept(pt) + needed > queue.capacity {
            return Err(self.run_dry(pt, quiet));
        }
        let p = &mut self.posted[at];
        p.entry.region = Some(region);
        p.offset = next;
        p.pending += 1;
        if ending {
            (p.ending, p.leaving) = (true, leaving);
            (p.keeps_unlink, p.keeps_free, p.linked) = (keeps_unlink, keeps_free, !leaving);
        }
        self.next += 1;
        let flight =
            InFlight { number: self.next, header: *h, holder: p.handle, offset, mlength, waits, keeps };
        if waits {
            p.headers += 1;
            self.waiting.push(Waiting {
                number: self.next,
                header: *h,
                holder: p.handle,
                offset,
                start: region.start.wrapping_add(offset),
                mlength,
                done: None,
                claim: None,
            });
        }
        let md = p.md;
        self.in_flight.push(flight);
        if self.version == Version::V3 && !has(&region, Options::EVENT_START_DISABLE) {
            let kind = match h.operation {
                Operation::Put | Operation::Atomic(..) => EventKind::PutStart,
                Operation::Get => EventKind::GetStart,
                _ => EventKind::GetPutStart,
            };
            let event = Event { md, ..Self::done(kind, &flight, &region, list, mlength, NiFail::Ok) };
            self.push(pt, event);
        }
        Ok(flight)
    }
    fn done(
        kind: EventKind,
        f: &InFlight,
        region: &Region,
        list: ListKind,
        mlength: u64,
        fail: NiFail,
    ) -> Event {
        Event {
            fail,
            list,
            mlength,
            offset: f.offset,
            start: region.start.wrapping_add(f.offset),
            user_ptr: region.user_ptr,
            entry: Some(f.holder),
            ..Self::of(kind, &f.header)
        }
    }
    pub(crate) fn complete(&mut self, f: InFlight, fail: NiFail) -> Response {
        self.in_flight.retain(|other| other.number != f.number);
        let at = self.find(f.holder).unwrap();
        let p = &mut self.posted[at];
        p.pending -= 1;
        let (region, list, md, pt) = (p.entry.region.unwrap(), p.list, p.md, p.pt);
        let mlength = if fail == NiFail::Ok { f.mlength } else { 0 };
        let operation = f.header.operation;
        let (kind, tells) = match self.version {
            Version::V4 => (
                match operation {
                    Operation::Put => EventKind::Put,
                    Operation::Get => EventKind::Get,
                    Operation::Atomic(..) => EventKind::Atomic,
                    _ => EventKind::FetchAtomic,
                },
                !has(&region, Options::EVENT_COMM_DISABLE)
                    && (fail != NiFail::Ok || !has(&region, Options::EVENT_SUCCESS_DISABLE)),
            ),
            Version::V3 => (
                match operation {
                    Operation::Put | Operation::Atomic(..) => EventKind::PutEnd,
                    Operation::Get => EventKind::GetEnd,
                    _ => EventKind::GetPutEnd,
                },
                !has(&region, Options::EVENT_END_DISABLE),
            ),
        };
        if tells {
            let event = Event { md, ..Self::done(kind, &f, &region, list, mlength, fail) };
            self.push(pt, event);
        }
        if has(&region, Options::EVENT_CT_COMM) {
            self.bump(&region, fail, mlength);
        }
        if f.waits {
            let w = self.waiting.iter_mut().find(|w| w.number == f.number).unwrap();
            (w.done, w.mlength) = (Some(fail), mlength);
            self.finish_claim(f.number);
        }
        if let Some(at) = self.find(f.holder) {
            self.settle(at);
        }
        let ok = Response { kind: ResponseKind::None, fail, mlength, offset: f.offset, list };
        match f.header.ack {
            _ if operation.replies() => Response { kind: ResponseKind::Reply, ..ok },
            _ if has(&region, Options::ACK_DISABLE) => ok,
            AckRequest::None => ok,
            AckRequest::Full => Response { kind: ResponseKind::Ack, ..ok },
            AckRequest::Count => Response { kind: ResponseKind::CountAck, ..ok },
            AckRequest::Complete => Response {
                kind: ResponseKind::CompleteAck,
                fail: NiFail::Ok,
                mlength: 0,
                offset: 0,
                list: ListKind::Priority,
            },
        }
    }
    fn settle(&mut self, at: usize) {
        let p = &mut self.posted[at];
        if p.pending > 0 {
            return;
        }
        if std::mem::take(&mut p.ending) {
            p.keeps_unlink = false;
            let md = p.md.take();
            let kind = if self.version == Version::V3 { EventKind::Unlink } else { EventKind::AutoUnlink };
            self.tell_end(at, kind, md);
            if !self.posted[at].leaving {
                self.posted[at].entry.region = None;
            }
        }
        let p = &mut self.posted[at];
        if p.leaving && p.headers == 0 {
            p.keeps_free = false;
            if p.list == ListKind::Overflow {
                self.tell_end(at, EventKind::AutoFree, None);
            }
            self.posted.remove(at);
        }
    }
    fn tell_end(&mut self, at: usize, kind: EventKind, md: Option<MdHandle>) {
        let p = &self.posted[at];
        let region = p.entry.region.unwrap();
        if !has(&region, Options::EVENT_UNLINK_DISABLE) {
            let event = Event {
                pt_index: p.pt as u32,
                list: p.list,
                user_ptr: region.user_ptr,
                start: region.start,
                entry: Some(p.handle),
                md,
                ..Self::blank(kind)
            };
            self.push(p.pt, event);
        }
    }
    pub(crate) fn attach(
        &mut self,
        handle: EntryHandle,
        region: Region,
        md: Option<MdHandle>,
    ) -> Result<(), Error> {
        let at = self.find(handle).filter(|&at| self.posted[at].linked);
        let p = &mut self.posted[at.ok_or(Error::Handle { argument: "entry" })?];
        if p.entry.region.is_some() {
            return Err(Error::InUse { argument: "entry", pending: 1 });
        }
        (p.entry.region, p.md, p.offset) = (Some(region), md, 0);
        Ok(())
    }
    pub(crate) fn md_unlink(&mut self, md: MdHandle) -> Result<(), Error> {
        let at = self.posted.iter().position(|p| p.md == Some(md)).ok_or(Error::Handle { argument: "md" })?;
        let p = &mut self.posted[at];
        if p.pending > 0 {
            return Err(Error::InUse { argument: "md", pending: p.pending });
        }
        (p.entry.region, p.md) = (None, None);
        if p.entry.unlink {
            self.posted.remove(at);
        }
        Ok(())
    }
    pub(crate) fn md_update(
        &mut self,
        md: MdHandle,
        new: Region,
        test: Option<usize>,
    ) -> Result<Region, Error> {
        let at = self.posted.iter().position(|p| p.md == Some(md)).ok_or(Error::Handle { argument: "md" })?;
        if test.is_some_and(|pt| !self.portals[pt].queue.events.is_empty()) {
            return Err(Error::NoUpdate { argument: "test" });
        }
        let p = &mut self.posted[at];
        if p.pending > 0 {
            return Err(Error::InUse { argument: "md", pending: p.pending });
        }
        p.offset = 0;
        Ok(p.entry.region.replace(new).unwrap())
    }
}
