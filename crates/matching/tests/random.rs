//! The engine beside a plain model, step by step: returned values, every event, counts, status, lists, and released
//! objects.
//!
//! `HCA_MATCHING_STEPS` and `HCA_MATCHING_SEED` choose the number of steps and the seed; a failure prints both.

mod model;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;

use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::*;
use model::Model;
use test_support::random::Rng;
use test_support::seeds::{number, seeds};

const EVENTS: u32 = 12;
const HEADERS: u32 = 10;
/// The second one with flow control.
const PORTALS: [bool; 2] = [false, true];

struct Draw(Rng);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n as usize) as u64
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0.of(choices)
    }
    fn process(&mut self) -> Process {
        Process::physical(Nid(self.below(2) as u32), Pid(self.below(2) as u32))
    }
}

struct Pair {
    draw: Draw,
    ni: Interface,
    model: Model,
    eqs: Vec<EqHandle>,
    ct: CtHandle,
    flights: Vec<(Delivery, model::InFlight)>,
    /// Some of the handles there ever were.
    handles: Vec<EntryHandle>,
    mds: Vec<MdHandle>,
    /// Those that were not told to be gone.
    entries_there: HashSet<EntryHandle>,
    mds_there: HashSet<MdHandle>,
}

impl Pair {
    fn new(version: Version, seed: u64) -> Self {
        let limits = Limits { max_unexpected_headers: HEADERS, ..Limits::default() };
        let mut ni =
            Interface::new(Config { version, limits, seed, reports_released: true, ..Config::default() });
        let eqs: Vec<_> = PORTALS.iter().map(|_| ni.eq_alloc(EVENTS).unwrap()).collect();
        for (&flow_control, &eq) in PORTALS.iter().zip(&eqs) {
            let options = if flow_control { PortalOptions::FLOWCTRL } else { PortalOptions::empty() };
            ni.pt_alloc(options, Some(eq), None).unwrap();
        }
        let ct = ni.ct_alloc().unwrap();
        let model = Model::new(version, &PORTALS, EVENTS as usize, HEADERS as usize);
        let draw = Draw(Rng::new(seed));
        Self {
            draw,
            ni,
            model,
            eqs,
            ct,
            flights: Vec::new(),
            handles: Vec::new(),
            mds: Vec::new(),
            entries_there: HashSet::new(),
            mds_there: HashSet::new(),
        }
    }

    fn criteria(&mut self) -> Criteria {
        let draw = &mut self.draw;
        let process = draw.process();
        let bits = draw.below(3);
        let uid = draw.one_in(8).then(|| Uid(draw.below(2) as u32));
        let exact = Criteria { uid, ..Criteria::exactly(process, bits) };
        match draw.below(10) {
            0..5 => exact,
            5..7 => Criteria { source: Source::ANY, ..exact },
            7..9 => Criteria {
                source: Source::physical(Some(process.nid()), None),
                ignore: draw.below(4),
                ..exact
            },
            _ => Criteria { uid, ..Criteria::ANY },
        }
    }
    fn region(&mut self) -> Region {
        let draw = &mut self.draw;
        let mut options = Options::empty();
        for (option, one_in) in [
            (Options::MANAGE_LOCAL, 3),
            (Options::NO_TRUNCATE, 4),
            (Options::MAY_ALIGN, 2),
            (Options::ACK_DISABLE, 8),
            (Options::UNEXPECTED_HDR_DISABLE, 8),
            (Options::LOCAL_INC_UH_RLENGTH, 2),
            (Options::EVENT_LINK_DISABLE, 2),
            (Options::EVENT_COMM_DISABLE, 4),
            (Options::EVENT_FLOWCTRL_DISABLE, 8),
            (Options::EVENT_SUCCESS_DISABLE, 6),
            (Options::EVENT_OVER_DISABLE, 6),
            (Options::EVENT_UNLINK_DISABLE, 4),
            (Options::EVENT_CT_COMM, 2),
            (Options::EVENT_CT_OVERFLOW, 2),
            (Options::EVENT_CT_BYTES, 2),
            (Options::EVENT_START_DISABLE, 4),
            (Options::EVENT_END_DISABLE, 4),
        ] {
            options.set(option, draw.one_in(one_in));
        }
        options.set(Options::USE_ONCE, !draw.one_in(4));
        options.set(Options::OP_PUT, !draw.one_in(10));
        options.set(Options::OP_GET, !draw.one_in(10));
        let length = draw.of(&[0, 8, 24, 64, 100]);
        let min_free = if options.contains(Options::MANAGE_LOCAL) { draw.of(&[0, 1, 16]) } else { 0 };
        let threshold = match draw.below(4) {
            0 => Threshold::Count(1 + draw.below(3) as u32),
            _ => Threshold::Infinite,
        };
        let ct = draw.one_in(2).then_some(self.ct);
        let unlink = self.model.version == Version::V4 || draw.one_in(2);
        let (start, user_ptr) = (draw.below(1 << 40), draw.below(1000));
        Region { start, length, options, threshold, min_free, user_ptr, eq: None, ct, unlink }
    }
    fn header(&mut self) -> Header {
        let draw = &mut self.draw;
        let operation = match draw.below(6) {
            0..3 => Operation::Put,
            3 => Operation::Get,
            4 => Operation::Atomic(AtomicOp::Sum, Datatype::U64),
            _ => Operation::FetchAtomic(AtomicOp::Sum, Datatype::U64),
        };
        Header {
            operation,
            ack: draw.of(&[AckRequest::None, AckRequest::Full, AckRequest::Count, AckRequest::Complete]),
            initiator: draw.process(),
            uid: Uid(draw.below(2) as u32),
            jid: Jid(0),
            pt_index: if draw.one_in(50) { 2 } else { draw.below(2) as u32 },
            ac_index: 0,
            match_bits: draw.below(3),
            remote_offset: draw.of(&[0, 0, 8, 60, 200]),
            length: draw.below(6) * 8,
            hdr_data: draw.below(1000),
        }
    }

    fn insert(&mut self) {
        let bare = self.model.version == Version::V3 && self.draw.one_in(3);
        let criteria = self.criteria();
        let region = (!bare).then(|| self.region());
        let uid = self.draw.one_in(8).then(|| Uid(self.draw.below(2) as u32));
        let unlink = self.model.version == Version::V4 || self.draw.one_in(2);
        let entry = Entry { criteria, uid, unlink, region };
        let pt = self.draw.below(2) as usize;
        let v4 = self.model.version == Version::V4;
        let mut list = if v4 && self.draw.one_in(2) { ListKind::Overflow } else { ListKind::Priority };
        let posted = &self.model.posted;
        let beside = self.draw.below(posted.len().max(1) as u64) as usize;
        let beside = posted.get(beside).filter(|p| p.linked).map(|p| (p.handle, p.pt, p.list, beside));
        let (place, pt, at) = match (self.draw.below(5), beside) {
            (0, Some((handle, pt, kind, at))) => {
                list = kind;
                (Place::Before(handle), pt, at)
            }
            (1, Some((handle, pt, kind, at))) => {
                list = kind;
                (Place::After(handle), pt, at + 1)
            }
            (2, _) => (Place::First(pt as u32, list), pt, 0),
            _ => (Place::Last(pt as u32, list), pt, posted.len()),
        };
        let handle = self.ni.insert(place, entry).unwrap();
        self.model.insert(handle, at, pt, list, entry);
        self.handles.push(handle);
        self.entries_there.insert(handle);
        if self.handles.len() > 40 {
            let old = self.draw.below(40) as usize;
            self.handles.swap_remove(old);
        }
    }
    fn deliver(&mut self) {
        let header = self.header();
        let mut takes = None;
        self.ni.explain(&header, |entry, list, reason| takes = reason.is_none().then_some((entry, list)));
        if self.draw.one_in(4) {
            return self.place(&header, takes);
        }
        let verdict = self.ni.deliver(&header);
        match (verdict, self.model.deliver(&header)) {
            (Verdict::Accept(delivery), Ok(flight)) => {
                assert_eq!(
                    (delivery.entry, delivery.offset, delivery.mlength),
                    (flight.holder, flight.offset, flight.mlength)
                );
                assert_eq!(takes, Some((delivery.entry, delivery.list)), "as it is explained");
                self.flights.push((delivery, flight));
                if !self.draw.one_in(4) {
                    self.complete();
                }
            }
            (Verdict::Refuse(response), Err(fail)) => {
                let over = header.ack == AckRequest::Complete && !header.operation.replies();
                assert_eq!(response.fail, if over { NiFail::Ok } else { fail });
            }
            (verdict, wanted) => panic!("{verdict:?}, and the model says {:?}", wanted.map(|f| f.holder)),
        }
    }
    /// A message whose bytes are at hand.
    fn place(&mut self, header: &Header, takes: Option<(EntryHandle, ListKind)>) {
        let fail = if self.draw.one_in(10) { NiFail::Segv } else { NiFail::Ok };
        let mut landed = None;
        let response = self.ni.place(header, |landing| {
            assert_eq!(takes, Some((landing.entry, landing.list)));
            landed = Some((landing.entry, landing.offset, landing.mlength));
            fail
        });
        match self.model.deliver(header) {
            Ok(flight) => {
                assert_eq!(landed, Some((flight.holder, flight.offset, flight.mlength)));
                assert_eq!(response, self.model.complete(flight, fail));
            }
            Err(fail) => {
                let over = header.ack == AckRequest::Complete && !header.operation.replies();
                assert_eq!((landed, response.fail), (None, if over { NiFail::Ok } else { fail }));
            }
        }
    }
    fn complete(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let which = self.draw.below(self.flights.len() as u64) as usize;
        let (delivery, flight) = self.flights.swap_remove(which);
        let fail = if self.draw.one_in(10) { NiFail::Undeliverable } else { NiFail::Ok };
        assert_eq!(self.ni.complete(delivery, fail), self.model.complete(flight, fail));
    }
    fn search(&mut self) {
        let (criteria, region) = (self.criteria(), self.region());
        let (pt, entry) = (self.draw.below(2), Entry::new(criteria, region));
        let op = self.draw.of(&[SearchOp::Only, SearchOp::Delete]);
        self.ni.search(pt as u32, &entry, op).unwrap();
        self.model.search(pt as usize, &entry, op);
    }
    fn memory(&mut self) {
        if self.draw.one_in(3) && !self.mds.is_empty() {
            let (md, region) = (self.draw.of(&self.mds), self.region());
            let test = self.draw.one_in(3).then(|| self.draw.below(2) as usize);
            let old = self.ni.md_update(md, Some(region), test.map(|which| self.eqs[which]));
            assert_eq!(old, self.model.md_update(md, region, test));
        } else if self.draw.one_in(2) && !self.handles.is_empty() {
            let (handle, region) = (self.draw.of(&self.handles), self.region());
            let md = self.ni.attach(handle, region);
            assert_eq!(md.map(drop), self.model.attach(handle, region, md.ok()));
            self.mds.extend(md);
            self.mds_there.extend(md);
        } else if !self.mds.is_empty() {
            let which = self.draw.below(self.mds.len() as u64) as usize;
            let md = self.mds.swap_remove(which);
            assert_eq!(self.ni.md_unlink(md), self.model.md_unlink(md));
        }
    }
    fn get(&mut self, all: bool) {
        for (pt, &eq) in self.eqs.iter().enumerate() {
            for _ in 0..if all { u64::MAX } else { self.draw.below(8) } {
                let got = self.ni.eq_get(eq).unwrap();
                let wanted = self.model.take_event(pt);
                let plain = |event: Event| Event { link: 0, sequence: 0, ..event };
                assert_eq!(got.map(|got| (plain(got.event), got.dropped)), wanted);
                if wanted.is_none() {
                    break;
                }
            }
        }
    }
    /// Who is told to be gone is gone from the model, and nobody else is.
    fn check_released(&mut self) {
        while let Some(released) = self.ni.released() {
            let (was_there, is_there) = match released {
                Released::Entry(entry) => (self.entries_there.remove(&entry), self.ni.has_entry(entry)),
                Released::Md(md) => (self.mds_there.remove(&md), self.ni.has_md(md)),
            };
            assert!(was_there && !is_there, "{released:?} is gone, once");
        }
        let posted = &self.model.posted;
        assert!(posted.iter().all(|p| self.entries_there.contains(&p.handle) && self.ni.has_entry(p.handle)));
        assert_eq!(posted.len(), self.entries_there.len());
        let mds: Vec<_> = posted.iter().filter_map(|p| p.md).collect();
        assert!(mds.iter().all(|&md| self.ni.has_md(md) && self.mds_there.contains(&md)));
        assert_eq!(mds.len(), self.mds_there.len());
    }
    fn step(&mut self) {
        match self.draw.below(40) {
            0..8 if self.model.posted.len() < 30 => self.insert(),
            0..22 => self.deliver(),
            22..25 => self.complete(),
            25..29 if !self.handles.is_empty() => {
                let live = &self.model.posted;
                let handle = match live.get(self.draw.below(live.len().max(1) as u64) as usize) {
                    Some(posted) if !self.draw.one_in(4) => posted.handle,
                    _ => self.draw.of(&self.handles),
                };
                assert_eq!(self.ni.unlink(handle), self.model.unlink(handle));
            }
            25..31 if self.model.version == Version::V4 => self.search(),
            25..31 => self.memory(),
            31 => {
                let pt = self.draw.below(2);
                if self.draw.one_in(4) {
                    self.ni.pt_disable(pt as u32).unwrap();
                    self.model.portals[pt as usize].disabled = true;
                }
            }
            32..35 => {
                let pt = self.draw.below(2);
                self.ni.pt_enable(pt as u32).unwrap();
                self.model.enable(pt as usize);
            }
            _ => self.get(false),
        }
        self.check_released();
        let status = Status {
            dropped: self.model.status.dropped,
            permission_violations: self.model.status.permission_violations,
            operation_violations: self.model.status.operation_violations,
        };
        assert_eq!(self.ni.status(), status);
        assert_eq!(self.ni.ct_get(self.ct), Ok(self.model.count));
        for (pt, portal) in self.model.portals.iter().enumerate() {
            assert_eq!(self.ni.pt_is_enabled(pt as u32), Ok(!portal.disabled));
            for list in [ListKind::Priority, ListKind::Overflow] {
                let linked =
                    self.model.posted.iter().filter(|p| (p.pt, p.list, p.linked) == (pt, list, true));
                assert_eq!(self.ni.list_len(pt as u32, list), Ok(linked.count() as u32));
            }
        }
    }
}

fn run(version: Version) {
    // A million for the two of them.
    let steps = number("HCA_MATCHING_STEPS").unwrap_or(500_000);
    let first = number("HCA_MATCHING_SEED").unwrap_or(1);
    // Fresh ones now and then, as a portal that is disabled or a queue that is full hides much.
    for seed in seeds(None, first, steps.div_ceil(2_000)) {
        let mut pair = Pair::new(version, seed);
        for step in 0..steps.min(2_000) {
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| pair.step()));
            assert!(result.is_ok(), "{version:?}: HCA_MATCHING_SEED={seed} HCA_MATCHING_STEPS={}", step + 1);
        }
        while !pair.flights.is_empty() {
            pair.complete();
        }
        pair.get(true);
    }
}

#[test]
fn an_interface_of_4_3_does_as_its_model_for_many_random_steps() {
    run(Version::V4);
}

#[test]
fn an_interface_of_3_3_does_as_its_model_for_many_random_steps() {
    run(Version::V3);
}
