//! Messages for the matching engine, as instruction counts and wall time see them.
//!
//! Each is of 8 bytes, for a portal of 4.3 with an event queue, and its event is taken.

use std::hint::black_box;

use hca_matching::{
    AckRequest, Config, Criteria, Entry, EqHandle, Header, Interface, Limits, ListKind, Md, MdHandle, NiFail,
    Nid, Operation, Options, Pid, PortalOptions, Process, Region, Response, ResponseKind, Source, Transfer,
    Verdict,
};

const PEER: Process = Process::physical(Nid(1), Pid(2));
/// Steps from one exact entry to the next that have no divisor in common with how many there are.
const STEP: u64 = 61_803;

/// An interface with a portal and its queue.
pub struct Target {
    ni: Interface,
    eq: EqHandle,
    pt: u32,
    bits: u64,
    posted: u64,
}

impl Target {
    fn new() -> Self {
        let limits = Limits { max_entries: 1 << 18, max_list_size: 1 << 18, ..Limits::default() };
        let mut ni = Interface::new(Config { limits, seed: 1, ..Config::default() });
        let eq = ni.eq_alloc(64).expect("the limit is higher");
        let pt = ni.pt_alloc(PortalOptions::empty(), Some(eq), None).expect("all are free");
        Self { ni, eq, pt, bits: 0, posted: 0 }
    }
    fn append(&mut self, criteria: Criteria, options: Options) {
        let region = Region { length: 64, options, ..Region::default() };
        self.ni.append(self.pt, ListKind::Priority, Entry::new(criteria, region)).expect("there is room");
    }
    /// One exact entry that stays.
    pub fn persistent() -> Self {
        let mut target = Self::new();
        target.append(Criteria::exactly(PEER, 0), Options::OP_PUT | Options::EVENT_LINK_DISABLE);
        target
    }
    /// So many exact entries for one message each; every message's is posted anew.
    pub fn once(entries: u64) -> Self {
        let mut target = Self { posted: entries, ..Self::new() };
        (0..entries).for_each(|bits| target.post(bits));
        target
    }
    fn post(&mut self, bits: u64) {
        let options = Options::OP_PUT | Options::USE_ONCE | Options::EVENT_LINK_DISABLE;
        self.append(Criteria::exactly(PEER, bits), options);
    }
    /// So many entries with wildcards, of which the last one takes the messages: they differ in their match bits, or
    /// in their sources.
    pub fn wild(entries: u64, by_source: bool) -> Self {
        let mut target = Self::new();
        for i in 1..=entries {
            // The last one is for the peer, or for its match bits 0.
            let left = entries - i;
            let criteria = match by_source {
                false => Criteria { bits: left << 8, ignore: 0xff, ..Criteria::ANY },
                true => {
                    Criteria { source: Source::physical(Some(Nid(1 + left as u32)), None), ..Criteria::ANY }
                }
            };
            target.append(criteria, Options::OP_PUT | Options::EVENT_LINK_DISABLE);
        }
        target
    }

    #[inline]
    fn put(&mut self, match_bits: u64) {
        let header =
            Header { pt_index: self.pt, match_bits, initiator: PEER, length: 8, ..Header::default() };
        let Verdict::Accept(delivery) = self.ni.deliver(black_box(&header)) else {
            panic!("nothing takes {match_bits}")
        };
        // Here its bytes are moved.
        let delivery = black_box(delivery);
        let _ = black_box(self.ni.complete(delivery, NiFail::Ok));
        self.take_event();
    }
    /// As [`message`](Self::message), for one whose bytes are at hand.
    #[inline]
    pub fn message_at_hand(&mut self) {
        let header = Header { pt_index: self.pt, initiator: PEER, length: 8, ..Header::default() };
        let response = self.ni.place(black_box(&header), |landing| {
            // Here its bytes are moved.
            black_box(landing);
            NiFail::Ok
        });
        black_box(response.fail);
        self.take_event();
    }
    #[inline]
    fn take_event(&mut self) {
        take_event(&mut self.ni, self.eq);
    }
    /// A message for the entry that stays, or for the last one with wildcards.
    #[inline]
    pub fn message(&mut self) {
        self.put(0);
    }
    /// A message for the next exact entry, far from the last one; the entry is posted anew.
    #[inline]
    pub fn message_once(&mut self) {
        self.bits = (self.bits + STEP) % self.posted;
        self.put(self.bits);
        self.take_event();
        self.post(self.bits);
    }
    /// Reads all that a search over the wildcards reads, and says how many bytes that are.
    #[inline]
    pub fn stream(&self) -> usize {
        let (bytes, sum) =
            black_box(&self.ni).wildcard_stream(self.pt, ListKind::Priority).expect("it is there");
        black_box(sum);
        bytes
    }
}

/// An interface with an initiator's memory descriptor and its queue.
pub struct Initiator {
    ni: Interface,
    eq: EqHandle,
    md: MdHandle,
}

impl Initiator {
    /// A descriptor of 64 bytes.
    #[expect(clippy::new_without_default, reason = "it is no value")]
    pub fn new() -> Self {
        let mut ni = Interface::new(Config::default());
        let eq = ni.eq_alloc(64).expect("the limit is higher");
        let md = ni.md_bind(Md { length: 64, eq: Some(eq), ..Md::default() }).expect("the limit is higher");
        Self { ni, eq, md }
    }
    /// A put that is sent at once and wants no answer, whose event is taken.
    #[inline]
    pub fn put_at_once(&mut self) {
        let transfer = self.transfer(AckRequest::None);
        assert!(self.ni.may_send_at_once(black_box(&transfer)), "it is well formed");
        self.ni.sent_at_once(&transfer);
        take_event(&mut self.ni, self.eq);
    }
    #[inline]
    fn transfer(&self, ack: AckRequest) -> Transfer {
        Transfer {
            operation: Operation::Put,
            md: self.md,
            local_offset: 0,
            reply: None,
            length: 8,
            ack,
            target: PEER,
            pt_index: 0,
            ac_index: 0,
            match_bits: 7,
            remote_offset: 0,
            user_ptr: 0,
            hdr_data: 0,
            operand: [0; 32],
        }
    }
    /// A put that is sent, whose event is taken; then its acknowledgement, if it asks for one.
    #[inline]
    pub fn put(&mut self, ack: AckRequest) {
        let transfer = self.transfer(ack);
        let flight = self.ni.begin(black_box(&transfer)).expect("it is well formed");
        self.ni.sent(black_box(&flight), NiFail::Ok);
        take_event(&mut self.ni, self.eq);
        if flight.is_answered() {
            let list = ListKind::Priority;
            let ack = Response { kind: ResponseKind::Ack, fail: NiFail::Ok, mlength: 8, offset: 0, list };
            self.ni.answered(&flight, black_box(&ack));
            take_event(&mut self.ni, self.eq);
        }
    }
}

/// Takes an event where it lies.
#[inline]
fn take_event(ni: &mut Interface, eq: EqHandle) {
    let taken = ni.eq_take(eq, |event, dropped| {
        black_box(event);
        dropped
    });
    black_box(taken.expect("it is there"));
}
