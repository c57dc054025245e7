//! The fuzz target `served_function`: its input drives a client that writes anything anywhere, to a function beside two
//! others, whose clients keep the rules and talk to each other. The corpus runs through it in `cargo test` too.
//!
//! The first byte of an input chooses the port, and whether the function is booted. Then come records: a byte that
//! names an operation, and the operation's arguments. Time is virtual. Most records create or use objects as drivers
//! do, except for a few bytes that the input chooses; so a short input reaches deep states.
//!
//! For every input: nothing panics, and every turn ends. Memory that is not mapped, or not mapped for writing, stays
//! unchanged, and its contents (all of it secrets) appear nowhere else. The other two clients send and receive
//! undisturbed. After a reset, and when the client has gone, the adapter has as much room as before, and the next
//! driver finds a function without a trace of this client.

mod banks;
mod driver;
mod ethernet;
mod honest;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_core::{AsyncEvent, Device};
use hca_fabric::LoopbackNet;
use hca_prm::{EqDoorbell, InitSegment, NicInterface, Opcode};
use softhca::{Clock, Limits, Options, Progress, SoftHca};

use crate::bed::{Queue, Server, sealed};
use crate::bus::registers::{BAR_BYTES, MSIX_TABLE};
use crate::bus::uar::FIRST_UAR;
use crate::eth::gateway::Gateway;
use crate::function::{Function, FunctionOptions, PortKind};
use crate::guest::PAGE;
use crate::port::directory::SharedDirectory;

use banks::{BANK, BANKS, Banks, has_secret};
use driver::Driver;
use honest::{Honest, room};

/// Records of one input at most.
const MAX_RECORDS: usize = 160;
/// Entries of the adapter's queue, so few that it overflows where much completes at once.
const COMPLETIONS: u32 = 256;
/// What a turn lets pass, in nanoseconds.
const STEP: u64 = 10_000;
/// A port of the switch that no function has, and its address: what comes there is looked at.
const OTHER: u16 = 9;
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Of all kinds few, so that an input reaches the limits.
const LIMITS: Limits = Limits { qps: 14, cqs: 8, srqs: 6, mrs: 20, pds: 12, ahs: 12 };

/// Runs one input, and panics if one of the module's promises does not hold.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "the fuzz target's"))]
pub fn served_function(data: &[u8]) {
    run(data).end();
}

/// Runs one input, and leaves the bed as it is then.
fn run(data: &[u8]) -> Bed {
    let mut input = Input(data);
    let setup = input.byte();
    let mut bed = Bed::new(setup);
    if setup & 2 == 0 {
        bed.driver.boot(&mut Input(&[]));
    }
    for _ in 0..MAX_RECORDS {
        if input.0.is_empty() {
            break;
        }
        bed.record(&mut input);
    }
    bed
}

/// What is left of an input. Behind its end there are zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let [byte] = self.bytes();
        byte
    }
    fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }
    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let n = N.min(self.0.len());
        bytes[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        bytes
    }
    fn some(&mut self, most: u8) -> &[u8] {
        let len = usize::from(self.byte() % most).min(self.0.len());
        let (some, rest) = self.0.split_at(len);
        self.0 = rest;
        some
    }
    /// An address for the function: in a bank, at the end of one, or any.
    fn address(&mut self) -> u64 {
        let how = self.byte();
        let bank = Banks::at(usize::from(how >> 4) % BANKS);
        match how & 7 {
            0 => 0,
            1..=4 => bank + u64::from(self.word()) * 8 % BANK,
            5 => bank.wrapping_add(BANK).wrapping_sub(self.byte().into()),
            6 => u64::MAX - u64::from(self.byte()),
            _ => self.long(),
        }
    }
}

/// The adapter, its functions, and who uses them.
struct Bed {
    clock: Arc<AtomicU64>,
    server: Server,
    driver: Driver,
    honest: Honest,
    /// How many objects the adapter had room for before the client did anything.
    room: [usize; 6],
}

impl Bed {
    fn new(setup: u8) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let options = Options {
            progress: Progress::Inline,
            lazy_acks: true,
            seed: Some(1),
            clock: Clock::Virtual(clock.clone()),
            limits: LIMITS,
            ..Options::default()
        };
        let fabric = LoopbackNet::new().attach("10.0.0.1".parse().expect("an address"));
        let hca = SoftHca::open(Box::new(fabric), options).unwrap();
        let directory = SharedDirectory::new(hca.port().gid);
        directory.switch().open(OTHER, OTHER_MAC);
        directory.switch().gateway =
            Some(Gateway::new([2, 0, 0, 0, 0, 1], "10.0.0.1".parse().expect("an address")));
        let server = Server { hca, directory, completion_entries: Some(COMPLETIONS) };
        let port = if setup & 1 == 0 { PortKind::InfiniBand } else { PortKind::Roce };
        let function = server.function(FunctionOptions { port, ..FunctionOptions::default() });
        let honest = Honest::new(&server);
        let room = room(&server.hca);
        let driver = Driver::new(function, server.gid());
        Self { clock, server, driver, honest, room }
    }

    /// A turn of the server.
    fn look(&mut self) {
        self.clock.fetch_add(STEP, Ordering::Relaxed);
        for step in [Function::look_at_requests, Function::look_at_places, Function::carry_out] {
            step(&mut self.driver.function);
            self.honest.step(step);
        }
        self.server.hca.turn();
        while let Some(frame) = self.server.directory.switch().receive(OTHER) {
            assert!(frame.bytes.len() >= 14 && !has_secret(&frame.bytes), "a secret has left");
        }
        while let Some(event) = self.server.hca.poll_event() {
            if !self.driver.function.take_event(event) {
                let harmless = matches!(event, AsyncEvent::CommEstablished(_));
                assert!(!self.honest.take(event) || harmless, "{event:?} for who keeps the rules");
            }
        }
    }

    /// One message between those that keep the rules comes, whatever the other one does.
    fn talk(&mut self) {
        self.honest.post();
        for _ in 0..200 {
            self.look();
            if self.honest.has_heard() {
                return;
            }
        }
        panic!("a message between those that keep the rules does not come");
    }

    fn record(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        match what & 0x1f {
            0..=3 => (0..=what >> 6).for_each(|_| self.look()),
            4 => _ = self.clock.fetch_add(1 << (input.byte() % 36), Ordering::Relaxed),
            5 => self.talk(),
            6 => self.driver.make_eq(input),
            7 => self.driver.make_cq(input),
            8 | 9 => self.driver.make_qp(input),
            10 => self.driver.make_key(input),
            11 => self.driver.make_srq(input),
            12 => self.driver.make_ethernet(input, what >> 5),
            13 => self.connect(input),
            14 => self.modify(input),
            15..=17 => self.driver.post_send(input),
            18 => self.driver.post_recv(input),
            19 => self.frames(input, what >> 5),
            20 => self.driver.arm(what >> 5, input.byte()),
            21 => self.events(input),
            22 => self.scribble(input),
            23 => self.registers(input, what >> 5),
            24 => self.raw(input),
            25 => self.about_object(input),
            26 => self.map_bank(input),
            27 => self.unmap_bank(input),
            28 => self.map_anything(input),
            29 => self.unmap_anything(input),
            30 => self.reset(what >> 5),
            _ if what & 0x80 == 0 => self.driver.ring(what >> 5),
            _ => self.driver.answer_pages(input),
        }
    }

    /// Ethernet requests, and frames that come from somebody else.
    fn frames(&mut self, input: &mut Input<'_>, how: u8) {
        match how {
            0..=2 => self.driver.post_frames(how, input.byte()),
            3 | 4 => self.driver.post_frame(input),
            5 => self.driver.post_places(input),
            _ => {
                let frame = self.driver.frame(input);
                self.server.directory.switch().send(OTHER, &frame, &|_| false);
            }
        }
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let [one, other] = input.bytes();
        self.driver.connect(input, one, other);
        if one & 0x80 != 0 {
            self.driver.connect(input, other, one & 0x7f);
        }
    }

    fn modify(&mut self, input: &mut Input<'_>) {
        let [opcode, which, peer] = input.bytes();
        let opcodes = [
            Opcode::RST2INIT_QP,
            Opcode::INIT2RTR_QP,
            Opcode::RTR2RTS_QP,
            Opcode::RTS2RTS_QP,
            Opcode::SQERR2RTS_QP,
            Opcode::SQD_RTS_QP,
            Opcode::INIT2INIT_QP,
            Opcode::QP_2ERR,
            Opcode::QP_2RST,
        ];
        self.driver.modify_qp(input, opcodes[usize::from(opcode) % opcodes.len()], which, peer);
    }

    /// An event queue was read so far, and is armed.
    fn events(&mut self, input: &mut Input<'_>) {
        let [which, how] = input.bytes();
        let Some(eq) = self.driver.eqs.get_mut(usize::from(which)) else { return };
        eq.count = eq.count.wrapping_add(u32::from(how >> 1));
        let word =
            EqDoorbell::new().with(EqDoorbell::EQN, eq.number).with(EqDoorbell::CI, eq.count & 0xff_ffff);
        let at = if how & 1 == 0 { hca_prm::EQ_ARM } else { hca_prm::EQ_CI } as u64;
        self.driver.function.bar_write(u64::from(FIRST_UAR) * PAGE + at, hca_prm::Layout::as_bytes(&word));
    }

    /// Any bytes anywhere in memory of the client's: queues, records, keys' data.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let pair = self.driver.qps.get(usize::from(how & 7)).copied().unwrap_or_default();
        let cq = self.driver.cqs.get(usize::from(how & 7)).copied().unwrap_or_default();
        let srq = self.driver.srqs.get(usize::from(how & 7)).copied().unwrap_or_default();
        let offset = u64::from(input.byte()) * 4;
        let at = match how >> 4 & 7 {
            0 => pair.send.at + offset,
            1 => pair.recv.at + offset,
            2 => pair.recv.record + offset % 8,
            3 => cq.record + offset % 8,
            4 => srq.at + offset,
            5 => srq.record,
            _ => input.address(),
        };
        let bytes = input.some(64).to_vec();
        self.driver.banks.write(at, &bytes);
    }

    /// Registers and configuration, at any place.
    fn registers(&mut self, input: &mut Input<'_>, how: u8) {
        let place = input.long();
        let data = input.some(24).to_vec();
        let function = &mut self.driver.function;
        let at = match how & 3 {
            0 => place % 0x4000,
            1 => MSIX_TABLE + place % 0x200,
            2 => u64::from(FIRST_UAR) * PAGE + place % (4 * PAGE),
            _ => place % BAR_BYTES,
        };
        match how {
            0..=2 => function.bar_write(at, &data),
            3 => function.bar_write(place, &data),
            4 => function.bar_read(at, &mut vec![0; data.len() + 1]),
            5 => function.bar_read(place, &mut vec![0; data.len() + 1]),
            6 => function.config_read(place, &mut vec![0; data.len() + 1]),
            _ => function.config_write(place % 0x100, &data),
        }
    }

    /// Any command with any body.
    fn raw(&mut self, input: &mut Input<'_>) {
        let which = input.word();
        let opcode = Opcode::ALL.get(usize::from(which)).map_or(which, |opcode| opcode.0);
        let mut command = vec![0; 16 + usize::from(input.byte()) * 8];
        command[..2].copy_from_slice(&opcode.to_be_bytes());
        for _ in 0..input.byte() % 24 {
            let at = 2 + usize::from(input.word()) % (command.len() - 2);
            command[at] = input.byte();
        }
        for _ in 0..input.byte() % 8 {
            command.extend(input.address().to_be_bytes());
        }
        let output = 16 + usize::from(input.byte()) * 32;
        self.driver.give(input, command, output);
    }

    /// A command that names an object of the client's, or of another one.
    fn about_object(&mut self, input: &mut Input<'_>) {
        let [kind, which] = input.bytes();
        let number = |of: &[Queue]| of.get(usize::from(which & 15)).map_or(which.into(), |q| q.number);
        let d = &self.driver;
        let pair = d.qps.get(usize::from(which & 15)).map_or(self.honest.qpn(), |pair| pair.recv.number);
        let (opcode, number) = match kind % 16 {
            0 => (Opcode::DESTROY_EQ, number(&d.eqs)),
            1 => (Opcode::QUERY_EQ, number(&d.eqs)),
            2 => (Opcode::DESTROY_CQ, number(&d.cqs)),
            3 => (Opcode::QUERY_CQ, number(&d.cqs)),
            4 | 5 => (Opcode::DESTROY_QP, pair),
            6 => (Opcode::QUERY_QP, pair),
            7 => (Opcode::DESTROY_MKEY, which.into()),
            8 => (Opcode::QUERY_MKEY, which.into()),
            9 => (Opcode::DESTROY_RMP, number(&d.srqs)),
            10 => (Opcode::DESTROY_SRQ, number(&d.srqs)),
            11 => (Opcode::DEALLOC_PD, d.pds.first().copied().unwrap_or_default()),
            12 => (Opcode::DEALLOC_UAR, d.uars.get(usize::from(which & 3)).copied().unwrap_or_default()),
            13 => (Opcode::ALLOC_PD, 0),
            14 => (Opcode::ALLOC_UAR, 0),
            _ => (Opcode::TEARDOWN_HCA, 0),
        };
        let given = self.driver.numbered(input, opcode, number);
        match opcode {
            Opcode::ALLOC_PD => self.driver.pds.extend(given),
            Opcode::ALLOC_UAR => self.driver.uars.extend(given),
            _ => {}
        }
    }

    fn map_bank(&mut self, input: &mut Input<'_>) {
        let [bank, rights] = input.bytes();
        let rights = [(true, true), (true, true), (true, false), (false, true), (false, false)]
            [usize::from(rights) % 5];
        let driver = &mut self.driver;
        driver.banks.map(&mut driver.function, usize::from(bank) % BANKS, rights);
    }

    /// Takes memory back, as a guest does that ends in the middle of its work.
    fn unmap_bank(&mut self, input: &mut Input<'_>) {
        let bank = usize::from(input.byte()) % BANKS;
        self.unmap(Banks::at(bank), BANK);
    }

    fn unmap(&mut self, iova: u64, size: u64) {
        if self.driver.function.dma_unmap(iova, size).is_ok() {
            self.driver.banks.unmapped(iova, size);
        }
    }

    /// Memory at any place, from a file of any kind.
    fn map_anything(&mut self, input: &mut Input<'_>) {
        let (iova, how) = (input.address(), input.byte());
        let (pages, offset) = (u64::from(input.byte()), u64::from(input.byte()));
        let file = match how >> 5 {
            0 => None,
            1 => Some(rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).unwrap()),
            2 => Some(self.driver.function.pages.file().try_clone_to_owned().unwrap()),
            _ => Some(sealed(8 * PAGE).into()),
        };
        let (at, size) = if how & 16 == 0 { (iova & !(PAGE - 1), pages * PAGE) } else { (iova, pages * 8) };
        let offset = if how & 8 == 0 { offset % 8 * PAGE } else { offset };
        let file = file.map(|file| (file, offset));
        let _ = self.driver.function.dma_map(at, size, (how & 1 == 0, how & 2 == 0), file);
    }

    fn unmap_anything(&mut self, input: &mut Input<'_>) {
        let (iova, size) = (input.address(), input.address());
        self.unmap(iova, size);
    }

    /// A reset, and what is left then: nothing.
    fn reset(&mut self, how: u8) {
        let gone = how & 3 == 3;
        match how & 3 {
            0 => self.driver.function.reset(),
            // By configuration, and by the driver's register.
            1 => self.driver.function.config_write(0x68, &[0, 0x80]),
            2 => self.driver.store(0x14, InitSegment::NIC_INTERFACE.in_row(0, NicInterface::SwReset.code())),
            _ => {
                self.driver.function.disconnect();
                self.driver.banks.all_unmapped();
            }
        }
        if how & 3 != 2 {
            self.check_gone();
        }
        self.driver.forget();
        if gone {
            let driver = &mut self.driver;
            (0..BANKS).for_each(|bank| driver.banks.map(&mut driver.function, bank, (true, true)));
        }
        self.driver.boot(&mut Input(&[]));
    }

    /// The adapter has nothing of the function any more, nor has the directory.
    fn check_gone(&mut self) {
        // Keys that nobody reaches go bit by bit.
        while self.driver.function.give_back() {}
        assert_eq!(room(&self.server.hca), self.room, "objects are left behind");
        assert!(!self.server.directory.lock().knows(0), "addresses are left behind");
        assert!(!self.server.directory.switch().knows(0), "a port is left behind");
    }

    /// The client goes. The next one finds the function as new, and those that keep the rules talk.
    fn end(mut self) {
        self.talk();
        self.driver.banks.check();
        self.driver.function.disconnect();
        self.driver.banks.all_unmapped();
        self.check_gone();
        self.look();
        self.driver.banks.check();
        self.honest.check();
        self.driver.forget();
        let driver = &mut self.driver;
        (0..BANKS).for_each(|bank| driver.banks.map(&mut driver.function, bank, (true, true)));
        driver.boot(&mut Input(&[]));
        assert!(driver.pds.len() == 1 && driver.uars.len() == 2, "the next driver does not start");
        self.talk();
    }
}
