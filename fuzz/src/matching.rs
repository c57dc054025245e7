//! What the fuzz target `matching` does with its input: calls and messages for the Portals engine, in any order, with
//! handles of what is there, of what is gone, and made up. The corpus runs through it in `cargo test` too.
//!
//! | bytes | what they say |
//! |---|---|
//! | 0 | bit 0: the version; bit 1: without match criteria; bits 2 and 3: which portals have flow control |
//!
//! Then come calls: a byte that says which, and the bytes that its arguments take. An input that ends within a call has
//! zeros there.
//!
//! All may be refused, and nothing may panic. No message reaches beyond its entry's memory, which is there as long as
//! anything is under way on it; each entry and memory descriptor is told to be gone once, when it is. At the end all
//! that is under way ends, all that is left can be taken down, and an interface that is empty again holds as much as a
//! new one.

use std::collections::HashSet;

use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::*;

/// Calls of one input at most.
const MAX_CALLS: usize = 512;
const PORTALS: u32 = 3;
const EVENTS: u32 = 6;
const LIMITS: Limits = Limits {
    max_entries: 16,
    max_unexpected_headers: 6,
    max_mds: 8,
    max_cts: 4,
    max_eqs: 4,
    max_eq_events: 16,
    max_pt_index: PORTALS - 1,
    max_ac_index: 3,
    max_list_size: 12,
    max_triggered_ops: 8,
    max_msg_size: 1 << 20,
    max_atomic_size: 64,
    max_fetch_atomic_size: 32,
};

/// Runs one input. Panics on whatever must not happen.
pub(crate) fn matching(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.byte());
    for _ in 0..MAX_CALLS {
        if input.0.is_empty() {
            break;
        }
        world.call(&mut input);
        world.check();
    }
    world.end();
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
    fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
    fn length(&mut self) -> u64 {
        self.of(&[8, 0, 1, 16, 24, 40, 64, 100, 1 << 20, u64::MAX])
    }
    fn process(&mut self) -> Process {
        let byte = u32::from(self.byte());
        Process::physical(Nid(byte & 1), Pid(byte >> 1 & 1))
    }
    fn operation(&mut self) -> Operation {
        let kind = self.byte();
        let (op, ty) = (AtomicOp::from_number(kind >> 3), Datatype::from_number(self.byte() % 14));
        match (kind & 7, op, ty) {
            (3, Some(op), Some(ty)) => Operation::Atomic(op, ty),
            (4, Some(op), Some(ty)) => Operation::FetchAtomic(op, ty),
            (5, Some(op), Some(ty)) => Operation::Swap(op, ty),
            (1, ..) => Operation::Get,
            (6, ..) => Operation::GetPut,
            _ => Operation::Put,
        }
    }
    fn ack(&mut self) -> AckRequest {
        self.of(&[AckRequest::None, AckRequest::Full, AckRequest::Count, AckRequest::Complete])
    }
    fn fail(&mut self) -> NiFail {
        self.of(&[NiFail::Ok, NiFail::Ok, NiFail::Undeliverable, NiFail::Segv])
    }
    fn count(&mut self) -> Count {
        let byte = u64::from(self.byte());
        Count { success: byte & 7, failure: byte >> 6 }
    }
    /// One of those that there were, or a made-up one.
    fn handle<T: Copy>(&mut self, known: &[T], made_up: impl Fn(u64) -> T) -> T {
        let byte = self.byte();
        match known.len() {
            0 => made_up(u64::from(byte) << 20),
            _ if byte == 255 => made_up(u64::from(self.word())),
            n => known[usize::from(byte) % n],
        }
    }
}

/// A message that was begun here.
struct Begun {
    flight: Flight,
    is_sent: bool,
    is_answered: bool,
}

struct World {
    ni: Interface,
    version: Version,
    matching: bool,
    entries: Vec<EntryHandle>,
    mds: Vec<MdHandle>,
    eqs: Vec<EqHandle>,
    cts: Vec<CtHandle>,
    deliveries: Vec<Delivery>,
    begun: Vec<Begun>,
    /// Those that were not told to be gone.
    entries_there: HashSet<EntryHandle>,
    mds_there: HashSet<MdHandle>,
}

impl World {
    fn new(flags: u8) -> Self {
        let version = if flags & 1 == 0 { Version::V4 } else { Version::V3 };
        let matching = flags & 2 == 0;
        let config = Config { version, matching, limits: LIMITS, seed: 7, reports_released: true };
        let mut ni = Interface::new(config);
        let eqs = vec![ni.eq_alloc(EVENTS).unwrap(), ni.eq_alloc(1).unwrap()];
        for (pt, eq) in [eqs[0], eqs[0], eqs[1]].into_iter().enumerate() {
            let flow_control = flags >> 2 >> pt & 1 != 0;
            let options = if flow_control { PortalOptions::FLOWCTRL } else { PortalOptions::empty() };
            ni.pt_alloc(options, Some(eq), None).unwrap();
        }
        let cts = vec![ni.ct_alloc().unwrap(), ni.ct_alloc().unwrap()];
        Self {
            ni,
            version,
            matching,
            entries: Vec::new(),
            mds: Vec::new(),
            eqs,
            cts,
            deliveries: Vec::new(),
            begun: Vec::new(),
            entries_there: HashSet::new(),
            mds_there: HashSet::new(),
        }
    }
    fn call(&mut self, input: &mut Input<'_>) {
        match input.byte() % 32 {
            0..=5 => self.insert(input),
            6..=12 => self.deliver(input),
            13..=16 => self.complete(input),
            17 => drop(self.ni.unlink(input.handle(&self.entries, EntryHandle::from_bits))),
            18 => self.search(input),
            19 => self.attach(input),
            20 => self.memory(input),
            21 | 22 => self.begin(input),
            23 | 24 => self.ends(input),
            25 => self.counts(input),
            26 => self.trigger(input),
            27 => self.portals(input),
            28 => self.queues(input),
            _ => drop(self.ni.eq_get(input.handle(&self.eqs, EqHandle::from_bits))),
        }
    }

    fn criteria(&self, input: &mut Input<'_>) -> Criteria {
        if !self.matching && input.byte() != 255 {
            return Criteria::ANY;
        }
        let exact = Criteria::exactly(input.process(), u64::from(input.byte() & 3));
        let kind = input.byte();
        let criteria = Criteria { uid: (kind & 16 != 0).then_some(Uid(1)), ..exact };
        match kind & 7 {
            0..=3 => criteria,
            4 => Criteria { source: Source::ANY, ..criteria },
            5 => Criteria { ignore: 1, ..criteria },
            6 => Criteria { source: Source::physical(Some(Nid(0)), None), ..criteria },
            _ => Criteria::ANY,
        }
    }
    fn region(&mut self, input: &mut Input<'_>) -> Region {
        let length = input.length().min(1 << 20);
        let flags = input.byte();
        Region {
            // For `deliver` to know it.
            start: length << 32,
            length,
            options: Options::from_bits_truncate(input.word()),
            threshold: match flags & 3 {
                0 | 1 => Threshold::Infinite,
                2 => Threshold::Count(u32::from(input.byte() % 4)),
                _ => Threshold::Count(1),
            },
            min_free: if flags & 4 != 0 { input.length() } else { 0 },
            user_ptr: 0,
            eq: (flags & 8 != 0).then(|| input.handle(&self.eqs, EqHandle::from_bits)),
            ct: (flags & 16 != 0).then(|| input.handle(&self.cts, CtHandle::from_bits)),
            unlink: flags & 32 == 0,
        }
    }
    fn entry(&mut self, input: &mut Input<'_>) -> Entry {
        let criteria = self.criteria(input);
        let flags = input.byte();
        let region = (flags & 7 != 0).then(|| self.region(input));
        Entry { criteria, uid: (flags & 8 != 0).then_some(Uid(0)), unlink: flags & 16 == 0, region }
    }
    fn insert(&mut self, input: &mut Input<'_>) {
        let entry = self.entry(input);
        let kind = input.byte();
        let list = if kind & 1 == 0 { ListKind::Priority } else { ListKind::Overflow };
        let pt = u32::from(kind >> 4) % (PORTALS + 1);
        let place = match kind >> 1 & 7 {
            0 => Place::First(pt, list),
            1 => Place::Before(input.handle(&self.entries, EntryHandle::from_bits)),
            2 => Place::After(input.handle(&self.entries, EntryHandle::from_bits)),
            _ => Place::Last(pt, list),
        };
        if let Ok(entry) = self.ni.insert(place, entry) {
            assert!(self.entries_there.insert(entry), "a handle of its own");
            self.entries.push(entry);
        }
    }
    fn deliver(&mut self, input: &mut Input<'_>) {
        let (operation, ack, initiator, flags) =
            (input.operation(), input.ack(), input.process(), input.byte());
        let header = Header {
            operation,
            ack,
            initiator,
            uid: Uid(u32::from(flags & 1)),
            jid: Jid(0),
            pt_index: u32::from(input.byte()) % (PORTALS + 1),
            ac_index: u32::from(input.byte() & 7),
            match_bits: u64::from(input.byte() & 3),
            remote_offset: input.of(&[0, 0, 8, 60, u64::MAX]),
            length: input.length(),
            hdr_data: 0,
        };
        let mut takes = None;
        self.ni.explain(&header, |entry, _, reason| takes = reason.is_none().then_some(entry));
        let check = |landing: &Landing| {
            assert_eq!(takes, Some(landing.entry));
            let end = landing.offset.saturating_add(landing.mlength);
            assert!(landing.mlength <= header.length);
            assert!(landing.mlength == 0 || end <= landing.region_start >> 32, "{landing:?}");
        };
        if flags & 6 == 6 {
            let response = self.ni.place(&header, |landing| {
                check(landing);
                NiFail::Ok
            });
            assert!(response.fail == NiFail::Ok || response.mlength == 0);
            return;
        }
        match self.ni.deliver(&header) {
            Verdict::Accept(delivery) => {
                check(&delivery);
                self.deliveries.push(delivery);
            }
            Verdict::Refuse(response) => assert_eq!(response.mlength, 0),
        }
    }
    fn complete(&mut self, input: &mut Input<'_>) {
        if !self.deliveries.is_empty() {
            let which = usize::from(input.byte()) % self.deliveries.len();
            let delivery = self.deliveries.swap_remove(which);
            let fail = input.fail();
            let response = self.ni.complete(delivery, fail);
            assert!(fail == NiFail::Ok || response.mlength == 0);
        }
    }
    fn search(&mut self, input: &mut Input<'_>) {
        let (entry, kind) = (self.entry(input), input.byte());
        let op = if kind & 1 == 0 { SearchOp::Only } else { SearchOp::Delete };
        let _ = self.ni.search(u32::from(kind >> 1) % (PORTALS + 1), &entry, op);
    }
    fn attach(&mut self, input: &mut Input<'_>) {
        let region = self.region(input);
        let entry = input.handle(&self.entries, EntryHandle::from_bits);
        self.has_made(|ni| ni.attach(entry, region));
    }
    fn memory(&mut self, input: &mut Input<'_>) {
        let (kind, region) = (input.byte(), self.region(input));
        let md = input.handle(&self.mds, MdHandle::from_bits);
        match kind % 4 {
            0 => drop(self.ni.md_unlink(md)),
            1 => {
                let test = (kind & 4 != 0).then(|| input.handle(&self.eqs, EqHandle::from_bits));
                let _ = self.ni.md_update(md, (kind & 8 == 0).then_some(region), test);
            }
            2 if self.version == Version::V3 => self.has_made(|ni| ni.md_bind_region(region)),
            _ => {
                let Region { start, length, eq, ct, .. } = region;
                let options = MdOptions::from_bits_truncate(region.options.bits());
                self.has_made(|ni| ni.md_bind(Md { start, length, options, eq, ct }));
            }
        }
    }
    fn has_made(&mut self, make: impl FnOnce(&mut Interface) -> Result<MdHandle, Error>) {
        if let Ok(md) = make(&mut self.ni) {
            assert!(self.mds_there.insert(md), "a handle of its own");
            self.mds.push(md);
        }
    }

    fn transfer(&mut self, input: &mut Input<'_>) -> Transfer {
        let (operation, flags) = (input.operation(), input.byte());
        let reply = (flags & 1 != 0).then(|| {
            let md = input.handle(&self.mds, MdHandle::from_bits);
            (md, u64::from(flags >> 4))
        });
        Transfer {
            operation,
            md: input.handle(&self.mds, MdHandle::from_bits),
            local_offset: if flags & 2 == 0 { 0 } else { input.length() },
            reply,
            length: input.length(),
            ack: input.ack(),
            target: Process::default(),
            pt_index: 0,
            ac_index: 0,
            match_bits: 0,
            remote_offset: 0,
            user_ptr: u64::from(flags & 4),
            hdr_data: 0,
            operand: [0; 32],
        }
    }
    fn begin(&mut self, input: &mut Input<'_>) {
        let transfer = self.transfer(input);
        if transfer.user_ptr != 0 && self.ni.may_send_at_once(&transfer) {
            self.ni.sent_at_once(&transfer);
        } else if let Ok(flight) = self.ni.begin(&transfer) {
            let (is_sent, is_answered) = (!flight.is_sent(), !flight.is_answered());
            self.begun.push(Begun { flight, is_sent, is_answered });
            self.forget_ended();
        }
    }
    /// One of the two ends of a message that was begun.
    fn ends(&mut self, input: &mut Input<'_>) {
        if self.begun.is_empty() {
            return;
        }
        let which = usize::from(input.byte()) % self.begun.len();
        let (fail, begun) = (input.fail(), &mut self.begun[which]);
        let answers = begun.is_sent || !begun.is_answered && input.byte() & 1 == 0;
        if answers {
            let kind = match begun.flight.transfer.ack {
                _ if begun.flight.transfer.operation.replies() => ResponseKind::Reply,
                AckRequest::Complete => ResponseKind::CompleteAck,
                AckRequest::Count => ResponseKind::CountAck,
                _ => ResponseKind::Ack,
            };
            let mlength = begun.flight.transfer.length;
            begun.is_answered = true;
            if fail == NiFail::Segv {
                self.ni.forget(&begun.flight);
                return self.forget_ended();
            }
            self.ni.answered(
                &begun.flight,
                &Response { kind, fail, mlength, offset: 0, list: ListKind::Priority },
            );
        } else {
            begun.is_sent = true;
            self.ni.sent(&begun.flight, fail);
        }
        self.forget_ended();
    }
    fn forget_ended(&mut self) {
        self.begun.retain(|begun| !(begun.is_sent && begun.is_answered));
    }
    fn counts(&mut self, input: &mut Input<'_>) {
        let (kind, ct, by) = (input.byte(), input.handle(&self.cts, CtHandle::from_bits), input.count());
        match kind % 8 {
            0..=2 => drop(self.ni.ct_inc(ct, by)),
            3 => drop(self.ni.ct_set(ct, by)),
            4 => drop(self.ni.ct_cancel_triggered(ct)),
            5 => drop(self.ni.ct_poll(&[(ct, by.success), (self.cts[0], by.failure)], usize::from(kind))),
            6 => drop(self.ni.ct_free(ct)),
            _ => self.cts.extend(self.ni.ct_alloc()),
        }
    }
    fn trigger(&mut self, input: &mut Input<'_>) {
        let (kind, count) = (input.byte(), input.count());
        let [on, ct] = [(); 2].map(|()| input.handle(&self.cts, CtHandle::from_bits));
        let operation = match kind % 4 {
            0 => Triggered::CtInc(ct, count),
            1 => Triggered::CtSet(ct, count),
            2 => Triggered::Transfer(self.transfer(input)),
            _ => {
                self.ni.fired();
                return;
            }
        };
        let _ = self.ni.trigger(on, u64::from(kind >> 4), operation);
    }
    fn portals(&mut self, input: &mut Input<'_>) {
        let (kind, eq) = (input.byte(), input.handle(&self.eqs, EqHandle::from_bits));
        let pt = u32::from(kind >> 4) % (PORTALS + 1);
        match kind % 8 {
            0 | 1 => drop(self.ni.pt_enable(pt)),
            2 => drop(self.ni.pt_disable(pt)),
            3 => drop(self.ni.pt_free(pt)),
            4 | 5 => {
                let options = PortalOptions::from_bits_truncate(u32::from(input.byte()));
                let _ = self.ni.pt_alloc(options, (kind & 8 == 0).then_some(eq), Some(pt));
            }
            _ => {
                let source = Source::exactly(input.process());
                let acl = Acl { source, uid: None, jid: None, pt_index: (kind & 8 != 0).then_some(pt) };
                let _ = self.ni.set_acl(pt, (input.byte() & 3 != 0).then_some(acl));
            }
        }
    }
    fn queues(&mut self, input: &mut Input<'_>) {
        let (kind, eq) = (input.byte(), input.handle(&self.eqs, EqHandle::from_bits));
        match kind % 8 {
            0..=3 => drop(self.ni.eq_poll(&[self.eqs[0], eq], usize::from(kind))),
            4 => drop(self.ni.eq_last_md(eq)),
            5 => drop(self.ni.eq_len(eq)),
            6 => drop(self.ni.eq_free(eq)),
            _ => self.eqs.extend(self.ni.eq_alloc(u32::from(kind >> 3))),
        }
    }

    /// Who is told to be gone is gone, and was there; what is under way has its memory.
    fn check(&mut self) {
        while let Some(released) = self.ni.released() {
            let (was_there, is_there) = match released {
                Released::Entry(entry) => (self.entries_there.remove(&entry), self.ni.has_entry(entry)),
                Released::Md(md) => (self.mds_there.remove(&md), self.ni.has_md(md)),
            };
            assert!(was_there && !is_there, "{released:?}");
        }
        assert!(self.entries_there.iter().all(|&entry| self.ni.has_entry(entry)));
        assert!(self.mds_there.iter().all(|&md| self.ni.has_md(md)));
        assert!(self.deliveries.iter().all(|delivery| self.entries_there.contains(&delivery.entry)));
        let mds = self.begun.iter().map(|begun| (begun, begun.flight.transfer));
        assert!(mds.filter(|(begun, _)| !begun.is_sent).all(|(_, t)| self.mds_there.contains(&t.md)));
    }
    fn end(&mut self) {
        let zeros = &mut Input(&[]);
        while !self.deliveries.is_empty() {
            self.complete(zeros);
        }
        while !self.begun.is_empty() {
            self.ends(zeros);
        }
        while self.ni.fired().is_some() {}
        for pt in 0..PORTALS {
            if self.ni.pt_pending(pt).is_err() {
                continue;
            }
            assert_eq!(self.ni.pt_pending(pt), Ok(0));
            let once = self.ni.limits().max_unexpected_headers;
            let all =
                Region { threshold: Threshold::Count(once), options: Options::USE_ONCE, ..Region::default() };
            while self.ni.unexpected_len(pt) != Ok(0) {
                self.ni.search(pt, &Entry::new(Criteria::ANY, all), SearchOp::Delete).unwrap();
            }
        }
        self.check();
        for entry in std::mem::take(&mut self.entries) {
            assert_eq!(self.ni.unlink(entry).is_ok(), self.entries_there.contains(&entry), "{entry:?}");
            self.check();
        }
        for md in std::mem::take(&mut self.mds) {
            assert_eq!(self.ni.md_unlink(md).is_ok(), self.mds_there.contains(&md), "{md:?}");
            self.check();
        }
        assert!(self.entries_there.is_empty() && self.mds_there.is_empty());
        for pt in 0..PORTALS {
            let there = self.ni.pt_pending(pt).is_ok();
            assert_eq!(self.ni.pt_free(pt).is_ok(), there);
        }
        for ct in &self.cts {
            let _ = self.ni.ct_free(*ct);
        }
        self.holds_as_much_as_a_new_one();
    }
    /// Nothing was lost of what the limits grant, nor of the places of a queue that outlived all others.
    fn holds_as_much_as_a_new_one(&mut self) {
        let old = self.eqs.iter().copied().find(|&eq| self.ni.eq_len(eq).is_ok());
        let events = if old == Some(self.eqs[0]) { Some(EVENTS) } else { None };
        let eq = match old {
            Some(eq) => eq,
            None => self.ni.eq_alloc(EVENTS).unwrap(),
        };
        while self.ni.eq_get(eq).unwrap().is_some() {}
        let pt = self.ni.pt_alloc(PortalOptions::FLOWCTRL, Some(eq), Some(0)).unwrap();
        if let Some(events) = events {
            self.ni
                .set_acl(0, Some(Acl { source: Source::ANY, uid: None, jid: None, pt_index: None }))
                .unwrap();
            let options = Options::OP_PUT | Options::EVENT_LINK_DISABLE | Options::EVENT_START_DISABLE;
            let region = Region { options, ..Region::default() };
            let entry = self.ni.append(pt, ListKind::Priority, Entry::new(Criteria::ANY, region)).unwrap();
            let header = Header { pt_index: pt, ..Header::default() };
            for _ in 0..events {
                let Verdict::Accept(delivery) = self.ni.deliver(&header) else { panic!("a place was lost") };
                let _ = self.ni.complete(delivery, NiFail::Ok);
            }
            assert!(matches!(self.ni.deliver(&header), Verdict::Refuse(_)), "there are no more");
            self.ni.unlink(entry).unwrap();
        }
        let limits = *self.ni.limits();
        let region = Region { options: Options::EVENT_LINK_DISABLE, ..Region::default() };
        let other = self.ni.pt_alloc(PortalOptions::empty(), None, Some(1)).unwrap();
        let entry = Entry::new(Criteria::ANY, region);
        let mut append = |pt| self.ni.append(pt, ListKind::Priority, entry);
        for _ in 0..limits.max_list_size {
            append(pt).unwrap();
        }
        for _ in limits.max_list_size..limits.max_entries {
            append(other).unwrap();
        }
        assert!(append(other).is_err());
        for _ in 0..limits.max_mds {
            self.ni.md_bind(Md::default()).unwrap();
        }
        let ct = self.ni.ct_alloc().unwrap();
        for _ in 1..limits.max_cts {
            self.ni.ct_alloc().unwrap();
        }
        for _ in 0..limits.max_triggered_ops {
            self.ni.trigger(ct, 1, Triggered::CtSet(ct, Count::default())).unwrap();
        }
        assert!(self.ni.trigger(ct, 1, Triggered::CtSet(ct, Count::default())).is_err());
    }
}
