//! The fuzz target `connection_manager`: its input is messages of peers, calls of the program and times, in
//! any order, for a machine with few places. The corpus runs through it in `cargo test` too.
//!
//! The input is a list of steps: a byte that says which, and the bytes that its arguments take. An input that ends
//! within a step has zeros there. A message is the machine's own last one, or one of another machine that answers it,
//! with some of its bytes changed; or bytes as they come.
//!
//! All may be refused, and nothing may panic. The machine never holds more than its limits. Each connection has at most
//! one closing event, and one end behind it. When all is forgotten and enough time has passed, the machine is empty.

use std::collections::HashSet;
use std::time::Duration;

use hca_cm::wire::{
    CmTimeout, CommId, Guid, Info, MAD_BYTES, Mad, PrivateData, Reason, Refusal, Rep, Req, Resolution,
};
use hca_cm::{Config, Event, Machine, Peer, PortSpace, Resolve, ServiceId, SidrAnswer};
use hca_core::{Gid, Instant, Pkey, Qkey, Qpn};

const MAX_STEPS: usize = 256;
const MAX_ENTRIES: usize = 8;
const BACKLOG: usize = 3;
const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
}

/// A machine and what it has told.
struct Side {
    machine: Machine,
    ids: Vec<CommId>,
    /// Connections that have had their closing event, and those that are gone.
    closed: HashSet<CommId>,
    gone: HashSet<CommId>,
    sent: Vec<[u8; MAD_BYTES]>,
}

impl Side {
    fn new(number: u64) -> Self {
        let config =
            Config { guid: Guid(number), seed: number << 33, max_entries: MAX_ENTRIES, ..Config::default() };
        let mut machine = Machine::new(config);
        machine.listen(SERVICE, BACKLOG).expect("nobody listens yet");
        Self { machine, ids: Vec::new(), closed: HashSet::new(), gone: HashSet::new(), sent: Vec::new() }
    }
    fn settle(&mut self) {
        assert!(self.machine.len() <= MAX_ENTRIES);
        while let Some(transmit) = self.machine.poll_transmit() {
            Mad::parse(&transmit.mad[..]).expect("what it sends can be parsed");
            self.sent.push(*transmit.mad);
        }
        let older = self.sent.len().saturating_sub(16);
        self.sent.drain(..older);
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Request { id, .. } | Event::SidrRequest { id, .. } => self.ids.push(id),
                Event::Rejected { id, .. }
                | Event::Failed { id, .. }
                | Event::Disconnected { id, .. }
                | Event::DisconnectDone { id, .. } => {
                    assert!(!self.gone.contains(&id) && self.closed.insert(id), "{id} ends twice");
                }
                Event::Gone { id } => assert!(self.gone.insert(id), "{id} is gone twice"),
                _ => {}
            }
        }
    }
    fn call(&mut self, now: Instant, to: Peer, input: &mut Input<'_>) {
        let (machine, which) = (&mut self.machine, input.byte());
        let byte = input.byte();
        let id = self.ids.get(usize::from(byte) % (self.ids.len() + 1)).copied();
        let id = id.unwrap_or(CommId(byte.into()));
        match which % 9 {
            0 => {
                let request = Req {
                    service_id: SERVICE,
                    local_qpn: Qpn::new(0x100 + u32::from(byte)),
                    ..Req::default()
                };
                self.ids.extend(machine.connect(now, to, &request));
            }
            1 => {
                let reply = Rep { local_qpn: Qpn::new(0x200 + u32::from(byte)), ..Rep::default() };
                let _ = machine.accept(now, id, &reply);
            }
            2 => drop(machine.ready(id, PrivateData::EMPTY)),
            3 => drop(machine.reject(now, id, Reason::CONSUMER_DEFINED, Info::EMPTY, PrivateData::EMPTY)),
            4 => drop(machine.disconnect(now, id, PrivateData::EMPTY)),
            5 => machine.forget(now, id),
            6 => {
                let ask = Resolve {
                    to,
                    service: SERVICE,
                    pkey: Pkey::DEFAULT,
                    timeout: CmTimeout::new(byte % 32),
                    retries: byte % 16,
                    private_data: PrivateData::EMPTY,
                };
                self.ids.extend(machine.resolve(now, &ask));
            }
            7 => {
                let resolution = match byte % 2 {
                    0 => Resolution::Found { qpn: Qpn::new(7), qkey: Qkey::new(7) },
                    _ => Resolution::Refused(Refusal::REJECTED),
                };
                let _ = machine.answer(now, id, &SidrAnswer { resolution, private_data: PrivateData::EMPTY });
            }
            _ => {
                machine.unlisten(now, SERVICE);
                let _ = machine.listen(SERVICE, BACKLOG);
            }
        }
    }
}

/// Runs one input.
pub(crate) fn connection_manager(data: &[u8]) {
    let mut input = Input(data);
    let mut sides = [Side::new(1), Side::new(2)];
    let peers = [1, 2].map(|last| Peer::from(Gid::from(std::net::Ipv4Addr::new(10, 0, 0, last))));
    let mut now = Instant::ZERO;
    for _ in 0..MAX_STEPS {
        if input.0.is_empty() {
            break;
        }
        let step = input.byte();
        let side = usize::from(step >> 7);
        match step % 4 {
            0 => sides[side].call(now, peers[1 - side], &mut input),
            1 => now = now + Duration::from_millis(1 << (input.byte() % 20)),
            2 => {
                // A message of the other side, with up to three of its bytes changed.
                let from = &sides[1 - side].sent;
                let which = usize::from(input.byte()) % (from.len() + 1);
                let mut mad = from.get(which).map_or([0; MAD_BYTES], |mad| *mad);
                for _ in 0..input.byte() % 4 {
                    let at = usize::from(input.byte());
                    mad[at] ^= input.byte();
                }
                let stranger = step & 0x40 != 0;
                let from = if stranger { Gid([7; 16]).into() } else { peers[1 - side] };
                sides[side].machine.handle(now, from, &mad);
            }
            _ => {
                let len = input.0.len().min(usize::from(input.byte()) + 1);
                let (mad, rest) = input.0.split_at(len.min(input.0.len()));
                sides[side].machine.handle(now, peers[1 - side], mad);
                input.0 = rest;
            }
        }
        sides[side].machine.handle_timeout(now);
        sides.iter_mut().for_each(Side::settle);
    }
    for side in &mut sides {
        side.machine.unlisten(now, SERVICE);
        for id in std::mem::take(&mut side.ids) {
            side.machine.forget(now, id);
        }
        while let Some(at) = side.machine.deadline() {
            assert!(at.since(Instant::ZERO) < Duration::from_secs(1 << 20), "a wait without an end");
            side.machine.handle_timeout(at);
            side.settle();
        }
        side.settle();
        assert!(side.machine.is_empty(), "{} are left", side.machine.len());
    }
}
