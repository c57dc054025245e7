//! The client that a fuzzer plays: it gives commands, creates objects and uses them as a driver does, except for the
//! deviations that the input chooses.
//!
//! It shares the layout of slots and requests with the driver of the [`bed`](crate::bed), and is no variant of that: the
//! input chooses each size, number and address that it writes, each of its commands may fail, and its memory overlaps
//! and may go at any time.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hca_core::{Gid, Mtu};
use hca_prm::command::cq::{CreateCqIn, CreateCqOut};
use hca_prm::command::eq::{CreateEqIn, CreateEqOut};
use hca_prm::command::hca::{ManagePagesIn, ManagePagesMod};
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut};
use hca_prm::command::qp::{CreateQpIn, CreateQpOut, Rst2InitQpIn};
use hca_prm::command::resource::AllocXrcdIn;
use hca_prm::command::srq::{
    CreateRmpIn, CreateRmpOut, CreateSrqIn, CreateSrqOut, CreateXrcSrqIn, CreateXrcSrqOut,
};
use hca_prm::{
    AccessMode, Ads, CmdIfBox, CmdOut, CmdQueueEntry, Cqc, Cqe64, DataSeg, EqSt, Eqc, Layout, Mkc, Opcode,
    Qpc, RaddrSeg, Rmpc, RqType, ServiceType, Srqc, Wq, WqType, WqeOpcode, XrcSrqc,
};

use super::Input;
use super::banks::{BANK, Banks};
use super::ethernet::Ethernet;
use crate::bed::{Queue, Wqe, fill_slot, unwritten};
use crate::bus::uar::FIRST_UAR;
use crate::eq::known_events;
use crate::function::Function;
use crate::guest::PAGE;

/// Which bank holds the command slots and mailboxes, and where in it the mailboxes begin.
pub(super) const COMMANDS: usize = 0;
const MAILBOXES: u64 = PAGE;
/// Which holds queues and records, and which data.
const QUEUES: [usize; 2] = [1, 2];
const DATA: [usize; 3] = [3, 4, 5];
/// The most pages that an object's list has.
const MAX_PAGES: u64 = BANK / PAGE;

/// A queue pair as its driver knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub(super) recv: Queue,
    pub(super) send: Queue,
    pub(super) datagrams: bool,
    /// The queue pair is one of extended connections.
    extended: bool,
}

/// A key: where it leads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Key {
    key: u32,
    addr: u64,
}

pub(super) struct Driver {
    pub(super) function: Function,
    doorbells: File,
    pub(super) banks: Banks,
    gid: Gid,
    token: u32,
    /// Pages that the function was lent.
    lent: u64,
    used: [u64; 2],
    pub(super) pds: Vec<u32>,
    pub(super) uars: Vec<u32>,
    pub(super) eqs: Vec<Queue>,
    pub(super) cqs: Vec<Queue>,
    pub(super) srqs: Vec<Queue>,
    pub(super) qps: Vec<Pair>,
    keys: Vec<Key>,
    pub(super) eth: Ethernet,
}

/// The one that a byte chooses of those that there are.
pub(super) fn chosen<T: Copy + Default>(of: &[T], which: u8) -> T {
    if of.is_empty() { T::default() } else { of[usize::from(which) % of.len()] }
}

impl Driver {
    pub(super) fn new(function: Function, gid: Gid) -> Self {
        let doorbells = function.pages.file().try_clone_to_owned().unwrap().into();
        let mut this = Self {
            function,
            doorbells,
            banks: Banks::new(),
            gid,
            token: 1,
            lent: 0,
            used: [0; 2],
            pds: Vec::new(),
            uars: Vec::new(),
            eqs: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            keys: Vec::new(),
            eth: Ethernet::default(),
        };
        for bank in [0, 1, 2, 3, 5] {
            this.banks.map(&mut this.function, bank, (true, true));
        }
        this.attach();
        this
    }

    /// Bus mastering, and the command queue's address.
    pub(super) fn attach(&mut self) {
        let at = Banks::at(COMMANDS);
        self.function.config_write(4, &[6, 0]);
        self.store(0x10, (at >> 32) as u32);
        self.store(0x14, at as u32);
    }

    /// Forgets all objects, as they are gone.
    pub(super) fn forget(&mut self) {
        self.used = [0; 2];
        self.pds.clear();
        self.uars.clear();
        self.eqs.clear();
        self.cqs.clear();
        self.srqs.clear();
        self.qps.clear();
        self.keys.clear();
        self.eth = Ethernet::default();
    }

    pub(super) fn store(&mut self, register: u64, value: u32) {
        self.function.bar_write(register, &value.to_be_bytes());
    }

    /// Memory for a queue. It begins anew when there is no more: what the input asks for may overlap.
    pub(super) fn room(&mut self, which: u8, len: u64) -> u64 {
        let bank = usize::from(which) % QUEUES.len();
        let len = len.next_multiple_of(PAGE);
        if self.used[bank] + len > BANK {
            self.used[bank] = 0;
        }
        let at = self.used[bank];
        self.used[bank] += len.min(BANK);
        Banks::at(QUEUES[bank]) + at
    }

    /// Gives a command, but for the changes that the input has for it and its slot. Returns the output if it was done.
    pub(super) fn give(
        &mut self,
        input: &mut Input<'_>,
        mut command: Vec<u8>,
        output: usize,
    ) -> Option<Vec<u8>> {
        let how = input.byte();
        for _ in 0..how & 3 {
            let (at, byte) = (usize::from(input.word()), input.byte());
            let len = command.len();
            command[at % len] = byte;
        }
        self.token = self.token % 255 + 1;
        let mut mailbox = Banks::at(COMMANDS) + MAILBOXES;
        let write = |at, bytes: &[u8]| self.banks.write(at, bytes);
        let mut entry = fill_slot(&command, output, self.token, &mut mailbox, write);
        if how & 0x1c == 0x1c {
            self.lie(input, &mut entry);
        }
        let slot = u64::from(how >> 5);
        let at = Banks::at(COMMANDS) + slot * CmdQueueEntry::SIZE as u64;
        self.banks.write(at, entry.as_bytes());
        self.store(0x18, 1 << slot);
        let answer = CmdQueueEntry::from_array(self.banks.read(at)?);
        if answer.get(CmdQueueEntry::OWNERSHIP) || answer.get(CmdQueueEntry::STATUS) != 0 {
            return None;
        }
        let mut bytes = answer.get(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA).to_vec();
        bytes.truncate(output);
        let head = CmdOut::from_bytes(&bytes).ok()?;
        (head.get(CmdOut::STATUS) == 0).then_some(bytes)
    }

    /// A slot or mailboxes that are not what they should be.
    fn lie(&mut self, input: &mut Input<'_>, entry: &mut CmdQueueEntry) {
        let what = input.byte();
        let at = input.address();
        match what & 7 {
            0 => _ = entry.set(CmdQueueEntry::INPUT_MAILBOX_POINTER, at),
            1 => _ = entry.set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER, at),
            2 => _ = entry.set(CmdQueueEntry::INPUT_LENGTH, input.long() as u32),
            3 => _ = entry.set(CmdQueueEntry::OUTPUT_LENGTH, input.long() as u32),
            4 => entry.as_bytes_mut()[usize::from(what >> 3)] = input.byte(),
            5 => self.banks.write(at, &input.long().to_be_bytes()),
            _ => {
                // A mailbox that names itself, or any other one.
                let first = entry.get(CmdQueueEntry::INPUT_MAILBOX_POINTER);
                self.banks.write(first + CmdIfBox::NEXT_POINTER.offset() as u64, &at.to_be_bytes());
            }
        }
    }

    /// Gives a command of this layout, with a list of pages behind it.
    pub(super) fn layout<L: Layout>(
        &mut self,
        input: &mut Input<'_>,
        opcode: Opcode,
        mut command: L,
        pages: impl Iterator<Item = u64>,
        output: usize,
    ) -> Option<Vec<u8>> {
        command.as_bytes_mut()[..2].copy_from_slice(&opcode.0.to_be_bytes());
        let mut bytes = command.as_bytes().to_vec();
        bytes.extend(pages.flat_map(u64::to_be_bytes));
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        self.give(input, bytes, output)
    }

    fn made<O: Layout>(
        &mut self,
        input: &mut Input<'_>,
        opcode: Opcode,
        command: impl Layout,
        pages: impl Iterator<Item = u64>,
    ) -> Option<O> {
        let out = self.layout(input, opcode, command, pages, O::SIZE.max(CmdOut::SIZE))?;
        let mut made = O::zeroed();
        let n = O::SIZE.min(out.len());
        made.as_bytes_mut()[..n].copy_from_slice(&out[..n]);
        Some(made)
    }

    /// A command without more than a number, whose output begins with one.
    pub(super) fn numbered(&mut self, input: &mut Input<'_>, opcode: Opcode, number: u32) -> Option<u32> {
        let mut bytes = vec![0; 16];
        bytes[..2].copy_from_slice(&opcode.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&number.to_be_bytes());
        let out = self.give(input, bytes, 0x200)?;
        Some(u32::from_be_bytes(*out[8..].first_chunk()?) & 0xff_ffff)
    }

    /// From new to running, and what every driver makes first.
    pub(super) fn boot(&mut self, input: &mut Input<'_>) {
        self.attach();
        self.numbered(input, Opcode::ENABLE_HCA, 0);
        self.numbered(input, Opcode::SET_ISSI, 1);
        self.lent = 0;
        self.manage_pages(input, ManagePagesMod::AllocationSuccess, 24);
        self.numbered(input, Opcode::INIT_HCA, 0);
        for _ in 0..2 {
            let uar = self.numbered(input, Opcode::ALLOC_UAR, 0);
            self.uars.extend(uar);
        }
        let pd = self.numbered(input, Opcode::ALLOC_PD, 0);
        self.pds.extend(pd);
    }

    fn manage_pages(&mut self, input: &mut Input<'_>, what: ManagePagesMod, count: u32) {
        let command = ManagePagesIn::new()
            .with(ManagePagesIn::OP_MOD, what.code())
            .with(ManagePagesIn::INPUT_NUM_ENTRIES, count);
        let gives = what == ManagePagesMod::AllocationSuccess;
        let first = self.lent;
        self.lent += if gives { u64::from(count) } else { 0 };
        let list = (first..self.lent).map(|i| 0x9_0000_0000 + i * PAGE);
        self.layout(input, Opcode::MANAGE_PAGES, command, list, 16 + 8 * count as usize);
    }

    /// Answers those who ask for pages or offer them, or says something else of pages.
    pub(super) fn answer_pages(&mut self, input: &mut Input<'_>) {
        let [what, count] = input.bytes();
        let what = [
            ManagePagesMod::AllocationSuccess,
            ManagePagesMod::AllocationFail,
            ManagePagesMod::HcaReturnPages,
        ][usize::from(what) % 3];
        self.manage_pages(input, what, count.into());
    }

    /// The doorbell page of a queue: not that of event queues, if there is another one.
    pub(super) fn uar(&self, which: u8) -> u32 {
        chosen(self.uars.get(1..).unwrap_or_default(), which)
    }
    pub(super) fn pd(&self, which: u8) -> u32 {
        chosen(&self.pds, which)
    }
    pub(super) fn pages(at: u64, len: u64) -> impl Iterator<Item = u64> {
        (0..len.div_ceil(PAGE).min(MAX_PAGES)).map(move |i| at + i * PAGE)
    }

    pub(super) fn make_eq(&mut self, input: &mut Input<'_>) {
        let [size, what] = input.bytes();
        let log_size = u32::from(size % 8);
        let at = self.room(size >> 7, 64 << log_size);
        self.banks.write(at, &unwritten(1).repeat(1 << log_size));
        let context = Eqc::new()
            .with(Eqc::LOG_EQ_SIZE, log_size)
            .with(Eqc::UAR_PAGE, FIRST_UAR)
            .with(Eqc::INTR, u32::from(what % 4))
            .with(Eqc::ST, if what & 0x80 == 0 { EqSt::Armed.code() } else { 0 });
        let mask = if what & 0x40 == 0 { known_events() } else { 0 };
        let command = CreateEqIn::new()
            .with(CreateEqIn::EQ_CONTEXT_ENTRY, context)
            .with(CreateEqIn::EVENT_BITMASK, [mask, 0, 0, 0]);
        let out =
            self.made::<CreateEqOut>(input, Opcode::CREATE_EQ, command, Self::pages(at, 64 << log_size));
        let eq = |out: CreateEqOut| {
            let number = out.get(CreateEqOut::EQ_NUMBER);
            Queue { number, at, record: 0, log_size, count: 0 }
        };
        self.eqs.extend(out.map(eq));
    }

    pub(super) fn make_cq(&mut self, input: &mut Input<'_>) {
        let [size, what] = input.bytes();
        let log_size = u32::from(size % 9);
        let (at, record) = (self.room(size >> 7, 64 << log_size), self.room(size >> 7, 64));
        self.banks.write(at, &unwritten(Cqe64::FIRST_OP_OWN).repeat(1 << log_size));
        let context = Cqc::new()
            .with(Cqc::LOG_CQ_SIZE, log_size)
            .with(Cqc::UAR_PAGE, self.uar(what))
            .with(Cqc::C_EQN, chosen(&self.eqs, what >> 4).number)
            .with(Cqc::OI, what & 0x80 != 0)
            .with(Cqc::DBR_ADDR, record);
        let command = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
        let out =
            self.made::<CreateCqOut>(input, Opcode::CREATE_CQ, command, Self::pages(at, 64 << log_size));
        self.cqs.extend(out.map(|out| Queue {
            number: out.get(CreateCqOut::CQN),
            at,
            record,
            log_size,
            count: 0,
        }));
    }

    pub(super) fn make_qp(&mut self, input: &mut Input<'_>) {
        let [kind, sizes, cqs, more] = input.bytes();
        use ServiceType::{Rc, Uc, Ud, Xrc};
        let real = [Rc, Rc, Uc, Ud, Xrc];
        let services = if kind & 8 == 0 { &real[..] } else { ServiceType::ALL };
        let service = services[usize::from(kind & 7) % services.len()];
        let (log_rq, log_sq) = (u32::from(sizes & 7), u32::from(sizes >> 4 & 7));
        let shared = (more & 1 != 0).then(|| chosen(&self.srqs, more >> 4).number);
        let extended = service == Xrc;
        let rq_bytes = if shared.is_some() || extended { 0 } else { 64 << log_rq };
        let bytes = rq_bytes + (64 << log_sq);
        let (at, record) = (self.room(more >> 1, bytes), self.room(more >> 1, 64));
        let rq_type = if shared.is_some() || extended { RqType::Srq } else { RqType::Regular };
        let context = Qpc::new()
            .with(Qpc::ST, service.code())
            .with(Qpc::PD, self.pd(more >> 2))
            .with(Qpc::UAR_PAGE, self.uar(more >> 3))
            .with(Qpc::LOG_RQ_SIZE, log_rq)
            .with(Qpc::LOG_RQ_STRIDE, 2)
            .with(Qpc::LOG_SQ_SIZE, log_sq)
            .with(Qpc::RQ_TYPE, rq_type.code())
            .with(Qpc::SRQN_RMPN_XRQN, shared.unwrap_or(0))
            .with(Qpc::NO_SQ, extended && sizes & 0x80 != 0)
            .with(Qpc::XRCD, 1 + u32::from(sizes >> 3 & 1))
            .with(Qpc::CQN_SND, chosen(&self.cqs, cqs & 15).number)
            .with(Qpc::CQN_RCV, chosen(&self.cqs, cqs >> 4).number)
            .with(Qpc::DBR_ADDR, record);
        let command = CreateQpIn::new().with(CreateQpIn::QPC, context);
        let out = self.made::<CreateQpOut>(input, Opcode::CREATE_QP, command, Self::pages(at, bytes));
        let datagrams = service == Ud;
        self.qps.extend(out.map(|out| {
            let recv = Queue { number: out.get(CreateQpOut::QPN), at, record, log_size: log_rq, count: 0 };
            let send = Queue { at: at + rq_bytes, record: record + 4, log_size: log_sq, ..recv };
            Pair { recv, send, datagrams, extended }
        }));
    }

    /// Changes a queue pair; `peer` chooses to whom it is connected.
    pub(super) fn modify_qp(&mut self, input: &mut Input<'_>, opcode: Opcode, which: u8, peer: u8) {
        let remote = chosen(&self.qps, peer).recv.number;
        let gid = if peer & 0x40 == 0 { self.gid.0 } else { [peer; 16] };
        let path = Ads::new()
            .with(Ads::RGID_RIP, gid)
            .with(Ads::GRH, true)
            .with(Ads::RLID, (peer >> 5).into())
            .with(Ads::ACK_TIMEOUT, 10);
        let context = Qpc::new()
            .with(Qpc::RRE, true)
            .with(Qpc::RWE, true)
            .with(Qpc::RAE, true)
            .with(Qpc::Q_KEY, 0x1111)
            .with(Qpc::MTU, Mtu::B1024.encoding().into())
            .with(Qpc::REMOTE_QPN, remote)
            .with(Qpc::NEXT_RCV_PSN, 7)
            .with(Qpc::NEXT_SEND_PSN, 7)
            .with(Qpc::LOG_RRA_MAX, 2)
            .with(Qpc::LOG_SRA_MAX, 2)
            .with(Qpc::RETRY_COUNT, u32::from(peer >> 4 & 7))
            .with(Qpc::RNR_RETRY, u32::from(peer >> 5))
            .with(Qpc::MIN_RNR_NAK, 1)
            .with(Qpc::PRIMARY_ADDRESS_PATH, path);
        let command = Rst2InitQpIn::new()
            .with(Rst2InitQpIn::QPN, chosen(&self.qps, which).recv.number)
            .with(Rst2InitQpIn::QPC, context);
        self.layout(input, opcode, command, std::iter::empty(), 16);
    }

    /// From reset to ready to send.
    pub(super) fn connect(&mut self, input: &mut Input<'_>, which: u8, peer: u8) {
        for opcode in [Opcode::RST2INIT_QP, Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
            self.modify_qp(input, opcode, which, peer);
        }
    }

    pub(super) fn make_key(&mut self, input: &mut Input<'_>) {
        let [bank, first, pages, rights, tag] = input.bytes();
        let bank = Banks::at(DATA[usize::from(bank) % DATA.len()]);
        let within = u64::from(first) % MAX_PAGES;
        let count = u64::from(pages % 16) + 1;
        // In their order, or not, so that they are shown side by side.
        let step = if pages & 0x80 == 0 { 1 } else { 3 };
        let list = (0..count).map(move |i| (bank + (within + i * step) % MAX_PAGES * PAGE) | 3);
        let (addr, len) = (0x5500_0000_0000 + u64::from(tag & 0xf0) * 8, count * PAGE - u64::from(tag) * 8);
        let mut context = Mkc::new()
            .with(Mkc::LR, true)
            .with(Mkc::LW, rights & 1 == 0)
            .with(Mkc::RR, rights & 2 == 0)
            .with(Mkc::RW, rights & 4 == 0)
            .with(Mkc::A, rights & 8 == 0)
            .with(Mkc::QPN, Mkc::ANY_QPN)
            .with(Mkc::MKEY_7_0, tag.into())
            .with(Mkc::PD, self.pd(rights >> 4))
            .with(Mkc::START_ADDR, addr)
            .with(Mkc::LEN, len)
            .with(Mkc::LOG_PAGE_SIZE, 12);
        // One of the bus's own addresses, of all of them.
        let bus = tag & 0xf == 0xf;
        context.set(Mkc::LENGTH64, bus);
        context.set_access_mode(if bus { AccessMode::Pa } else { AccessMode::Mtt });
        let addr = if bus { bank + within * PAGE } else { addr };
        let command = CreateMkeyIn::new()
            .with(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY, context)
            .with(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, count.div_ceil(2) as u32);
        let out = self.made::<CreateMkeyOut>(input, Opcode::CREATE_MKEY, command, list);
        let key =
            |out: CreateMkeyOut| Key { key: out.get(CreateMkeyOut::MKEY_INDEX) << 8 | u32::from(tag), addr };
        self.keys.extend(out.map(key));
    }

    pub(super) fn make_srq(&mut self, input: &mut Input<'_>) {
        let [kind, size] = input.bytes();
        let log_size = u32::from(size % 8);
        let bytes = 64_u64 << log_size;
        let (at, record) = (self.room(size >> 7, bytes), self.room(size >> 7, 64));
        let entry = |i: u16| {
            let mut entry = [0; 64];
            entry[2..4].copy_from_slice(&(i + 1).to_be_bytes());
            entry
        };
        self.banks.write(at, &(0..1 << log_size).flat_map(entry).collect::<Vec<u8>>());
        let (pd, pages) = (self.pd(kind >> 4), Self::pages(at, bytes));
        let number = match kind & 3 {
            0 | 1 => {
                let wq = Wq::new()
                    .with(Wq::WQ_TYPE, WqType::LinkedList.code())
                    .with(Wq::PD, pd)
                    .with(Wq::LOG_WQ_STRIDE, 6)
                    .with(Wq::LOG_WQ_SZ, log_size)
                    .with(Wq::DBR_ADDR, record);
                let command = CreateRmpIn::new().with(CreateRmpIn::CTX, Rmpc::new().with(Rmpc::WQ, wq));
                let out = self.made::<CreateRmpOut>(input, Opcode::CREATE_RMP, command, pages);
                out.map(|out| out.get(CreateRmpOut::RMPN))
            }
            2 => {
                let context = Srqc::new()
                    .with(Srqc::PD, pd)
                    .with(Srqc::LOG_SRQ_SIZE, log_size)
                    .with(Srqc::LOG_RQ_STRIDE, 2)
                    .with(Srqc::DBR_ADDR, record);
                let command = CreateSrqIn::new().with(CreateSrqIn::SRQ_CONTEXT_ENTRY, context);
                let out = self.made::<CreateSrqOut>(input, Opcode::CREATE_SRQ, command, pages);
                out.map(|out| out.get(CreateSrqOut::SRQN))
            }
            _ => {
                if size & 0x40 != 0 {
                    self.layout(input, Opcode::ALLOC_XRCD, AllocXrcdIn::new(), std::iter::empty(), 16);
                }
                let context = XrcSrqc::new()
                    .with(XrcSrqc::PD, pd)
                    .with(XrcSrqc::XRCD, 1 + u32::from(size >> 3 & 1))
                    .with(XrcSrqc::CQN, chosen(&self.cqs, kind >> 2).number)
                    .with(XrcSrqc::LOG_XRC_SRQ_SIZE, log_size)
                    .with(XrcSrqc::LOG_RQ_STRIDE, 2)
                    .with(XrcSrqc::DBR_ADDR, record);
                let command = CreateXrcSrqIn::new().with(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY, context);
                let out = self.made::<CreateXrcSrqOut>(input, Opcode::CREATE_XRC_SRQ, command, pages);
                out.map(|out| out.get(CreateXrcSrqOut::XRC_SRQN))
            }
        };
        self.srqs.extend(number.map(|number| Queue { number, at, record, log_size, count: 0 }));
    }

    /// A place in memory that a key names, or does not.
    pub(super) fn place(&self, input: &mut Input<'_>) -> (u32, u64, u32) {
        let [which, page, len] = input.bytes();
        let key = chosen(&self.keys, which & 15);
        let tag = if which & 0xf0 == 0xf0 { key.key ^ u32::from(page) } else { key.key };
        // Some lie over a border.
        let at = (u64::from(page / 2) * 1024).wrapping_sub(u64::from(page & 1) * 20);
        (tag, key.addr.wrapping_add(at), u32::from(len) << (which >> 4 & 7))
    }

    /// Posts a request, announces it, and rings.
    pub(super) fn post_send(&mut self, input: &mut Input<'_>) {
        let [which, opcode, what, peer] = input.bytes();
        if self.qps.is_empty() {
            return;
        }
        let at = usize::from(which) % self.qps.len();
        let pair = self.qps[at];
        let opcodes = WqeOpcode::ALL;
        let opcode = opcodes[usize::from(opcode) % opcodes.len()];
        let mut wqe = Wqe::new(opcode).imm(u32::from(peer));
        if what & 1 != 0 {
            wqe = wqe.quiet();
        }
        if pair.datagrams {
            let (gid, lid) = if what & 2 == 0 { (self.gid, 0) } else { (Gid([peer; 16]), peer.into()) };
            wqe = wqe.datagram(gid, lid, chosen(&self.qps, peer).recv.number, 0x1111);
        }
        if pair.extended {
            wqe = wqe.srq(chosen(&self.srqs, peer).number);
        }
        if opcode.code() & 0x18 != 0 && !matches!(opcode, WqeOpcode::Send | WqeOpcode::SendImm) {
            let (key, addr, _) = self.place(input);
            wqe = wqe.to(RaddrSeg::new().with(RaddrSeg::RADDR, addr).with(RaddrSeg::RKEY, key));
        }
        if matches!(opcode, WqeOpcode::AtomicCs | WqeOpcode::AtomicFa) {
            wqe = wqe.atomic(input.long(), 0);
        }
        if what & 4 != 0 {
            let bytes = input.bytes::<12>();
            wqe = wqe.inline(&bytes[..usize::from(what >> 5)]);
        }
        for _ in 0..what >> 3 & 3 {
            let (key, addr, len) = self.place(input);
            wqe = wqe.seg(DataSeg::pointer(len, key, addr));
        }
        let counter = pair.send.count as u16;
        let bytes = wqe.bytes(pair.send.number, counter);
        let size = 64_u64 << pair.send.log_size;
        for (i, part) in bytes.chunks(64).enumerate() {
            self.banks.write(pair.send.at + (((u64::from(counter) + i as u64) * 64) & (size - 1)), part);
        }
        let send = &mut self.qps[at].send;
        send.count = u32::from(counter.wrapping_add(bytes.len().div_ceil(64) as u16));
        let send = *send;
        self.banks.write(send.record, &send.count.to_be_bytes());
        self.ring(which >> 4);
    }

    /// Posts receive requests.
    pub(super) fn post_recv(&mut self, input: &mut Input<'_>) {
        let [which, how] = input.bytes();
        let (key, addr, len) = self.place(input);
        let seg = DataSeg::pointer(len, key, addr);
        let shared = how & 1 != 0;
        let count = if shared { self.srqs.len() } else { self.qps.len() };
        if count == 0 {
            return;
        }
        let at = usize::from(which) % count;
        let queue = if shared { &mut self.srqs[at] } else { &mut self.qps[at].recv };
        let skip = if shared { 16 } else { 0 };
        for _ in 0..=how >> 1 & 7 {
            let slot = u64::from(queue.count & ((1 << queue.log_size) - 1));
            self.banks.write(queue.at + slot * 64 + skip, seg.as_bytes());
            self.banks.write(queue.at + slot * 64 + skip + 16, DataSeg::TERMINATOR.as_bytes());
            queue.count = u32::from((queue.count as u16).wrapping_add(1));
        }
        self.banks.write(queue.record, &queue.count.to_be_bytes());
    }

    /// Rings a doorbell page that is polled.
    pub(super) fn ring(&mut self, which: u8) {
        let at = u64::from(self.uar(which)) * PAGE + 0x800;
        self.doorbells.write_all_at(&[1; 8], at).unwrap();
    }

    /// Takes completions, and arms.
    pub(super) fn arm(&mut self, which: u8, how: u8) {
        let uar = self.uar(how);
        let Some(cq) = (!self.cqs.is_empty()).then(|| {
            let at = usize::from(which) % self.cqs.len();
            &mut self.cqs[at]
        }) else {
            return;
        };
        cq.count = cq.count.wrapping_add(u32::from(how >> 4));
        let ci = cq.count & 0xff_ffff;
        let word = u32::from(how & 3) << 28 | u32::from(how >> 2 & 1) << 24 | ci;
        self.banks.write(cq.record, &ci.to_be_bytes());
        self.banks.write(cq.record + 4, &word.to_be_bytes());
        let mut bell = [0; 8];
        bell[..4].copy_from_slice(&word.to_be_bytes());
        bell[4..].copy_from_slice(&cq.number.to_be_bytes());
        self.function.bar_write(u64::from(uar) * PAGE + 0x20, &bell);
    }
}
