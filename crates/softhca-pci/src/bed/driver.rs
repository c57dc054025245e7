//! A driver that gives commands by slots and mailboxes.

use std::os::fd::OwnedFd;

use hca_prm::command::eq::{CreateEqIn, CreateEqOut};
use hca_prm::command::hca::{
    AccessRegIn, AccessRegMod, AccessRegOut, DisableHcaIn, EnableHcaIn, InitHcaIn, ManagePagesIn,
    ManagePagesMod, ManagePagesOut, QueryPagesIn, QueryPagesMod, QueryPagesOut, SetIssiIn, TeardownHcaIn,
};
use hca_prm::command::resource::{AllocUarIn, AllocUarOut};
use hca_prm::register::RegisterId;
use hca_prm::{
    CMD_TYPE, CmdIfBox, CmdOut, CmdQueueEntry, CmdStatus, Command, DeliveryStatus, EQ_ARM, EQ_CI, EqDoorbell,
    Eqc, Eqe, EventType, INLINE_DATA, Layout, MAILBOX_DATA, mailboxes, pas,
};
use rustix::event::{EventfdFlags, eventfd};

use super::memory::Memory;
use super::{BASE, PAGE, Server, pages, unwritten};
use crate::bus::uar::FIRST_UAR;
use crate::function::{Function, FunctionOptions, PortKind};

/// Where the command slots begin for the function, the mailboxes behind them, and where these end.
pub(crate) const COMMANDS: u64 = 0x5_0000_0000;
const MAILBOXES: u64 = COMMANDS + 0x10_0000;
const COMMANDS_LEN: u64 = 16 << 20;
/// Bytes of memory beside them, if a driver needs no other number.
const MEMORY: u64 = 16 << 20;
/// The page lists' own addresses need not be mapped.
const LENT: u64 = 0x9_0000_0000;

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was done, or not.
    Delivered(CmdStatus, Vec<u8>),
    /// It did not get there.
    Undelivered(DeliveryStatus),
    /// The slot was not handed back.
    Lost,
}

pub(crate) struct Driver {
    pub(crate) function: Function,
    pub(crate) commands: Memory,
    pub(crate) memory: Memory,
    mailbox: u64,
    token: u32,
    /// The doorbell page of event queues that are made.
    pub(crate) eq_uar: u32,
}

impl Driver {
    pub(crate) fn new(server: &Server, number: u16, port: PortKind) -> Self {
        Self::with(server, FunctionOptions { number, port, ..FunctionOptions::default() })
    }
    pub(crate) fn with(server: &Server, options: FunctionOptions) -> Self {
        Self::with_memory(server, options, MEMORY)
    }
    /// One with so many bytes of memory beside its commands.
    pub(crate) fn with_memory(server: &Server, options: FunctionOptions, len: u64) -> Self {
        let mut driver = Self {
            function: server.function(options),
            commands: Memory::new(COMMANDS, COMMANDS_LEN),
            memory: Memory::new(BASE, len),
            mailbox: MAILBOXES,
            token: 1,
            eq_uar: FIRST_UAR,
        };
        driver.map();
        driver.attach();
        driver
    }

    pub(crate) fn map(&mut self) {
        self.try_map().unwrap();
    }
    pub(crate) fn try_map(&mut self) -> Result<(), rustix::io::Errno> {
        let commands = self.commands.map(&mut self.function);
        commands.and(self.memory.map(&mut self.function))
    }

    /// Bus mastering, and the command queue's address.
    pub(crate) fn attach(&mut self) {
        self.function.config_write(4, &[6, 0]);
        self.store(0x10, (COMMANDS >> 32) as u32);
        self.store(0x14, COMMANDS as u32);
    }

    pub(crate) fn load(&mut self, register: u64) -> u32 {
        let mut bytes = [0; 4];
        self.function.bar_read(register, &mut bytes);
        u32::from_be_bytes(bytes)
    }
    pub(crate) fn store(&mut self, register: u64, value: u32) {
        self.function.commands.refill();
        self.function.bar_write(register, &value.to_be_bytes());
    }

    fn memory_at(&self, iova: u64) -> &Memory {
        if iova < BASE { &self.commands } else { &self.memory }
    }
    pub(crate) fn write(&self, iova: u64, bytes: &[u8]) {
        self.memory_at(iova).write(iova, bytes);
    }
    pub(crate) fn read(&self, iova: u64, len: usize) -> Vec<u8> {
        self.memory_at(iova).read(iova, len)
    }
    /// Memory of the driver's, by the function's address.
    pub(crate) fn alloc(&mut self, len: u64, align: u64) -> u64 {
        self.memory.alloc(len, align)
    }

    pub(crate) fn slot_at(slot: u32) -> u64 {
        COMMANDS + u64::from(slot) * CmdQueueEntry::SIZE as u64
    }

    /// Fills a slot, without a doorbell.
    pub(crate) fn put(&mut self, slot: u32, input: &[u8], output_len: usize) -> CmdQueueEntry {
        self.token = self.token % 255 + 1;
        let write = |at, bytes: &[u8]| self.commands.write(at, bytes);
        let entry = fill_slot(input, output_len, self.token, &mut self.mailbox, write);
        self.write(Self::slot_at(slot), entry.as_bytes());
        entry
    }

    /// What a slot holds after its doorbell.
    pub(crate) fn answer(&self, slot: u32) -> Answer {
        let entry = CmdQueueEntry::from_bytes(&self.read(Self::slot_at(slot), CmdQueueEntry::SIZE)).unwrap();
        if entry.get(CmdQueueEntry::OWNERSHIP) {
            return Answer::Lost;
        }
        assert!(entry.is_signed());
        let status = DeliveryStatus::from_code(entry.get(CmdQueueEntry::STATUS)).unwrap();
        if status != DeliveryStatus::Ok {
            return Answer::Undelivered(status);
        }
        let mut output = entry.get(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA).to_vec();
        let len = entry.get(CmdQueueEntry::OUTPUT_LENGTH) as usize;
        let mut at = entry.get(CmdQueueEntry::OUTPUT_MAILBOX_POINTER);
        for _ in 0..mailboxes(len) {
            let part = CmdIfBox::from_bytes(&self.read(at, CmdIfBox::SIZE)).unwrap();
            output.extend_from_slice(&part.get(CmdIfBox::MAILBOX_DATA));
            at = part.get(CmdIfBox::NEXT_POINTER);
        }
        output.truncate(len);
        let head = CmdOut::from_bytes(&output).unwrap();
        Answer::Delivered(CmdStatus::from_code(head.get(CmdOut::STATUS)).unwrap(), output)
    }

    /// Mailboxes begin anew.
    pub(crate) fn rewind(&mut self) {
        self.mailbox = MAILBOXES;
    }

    /// Gives a command by slot 0.
    pub(crate) fn give(&mut self, input: &[u8], output_len: usize) -> Answer {
        self.rewind();
        self.put(0, input, output_len);
        self.store(0x18, 1);
        self.answer(0)
    }

    /// Gives a command whose input is followed by a list; returns what follows the output, too.
    pub(crate) fn command_with<C: Command>(
        &mut self,
        input: &C,
        list: &[u64],
        room: usize,
    ) -> Result<(C::Output, Vec<u8>), CmdStatus> {
        let mut bytes = input.as_bytes().to_vec();
        bytes.resize(C::SIZE + list.len() * pas::ENTRY, 0);
        pas::write(list, &mut bytes[C::SIZE..]).unwrap();
        let mut answer = self.give(&bytes, C::Output::SIZE + room);
        // One that is done bit by bit.
        while answer == Answer::Lost && self.function.look_at_commands() {
            answer = self.answer(0);
        }
        match answer {
            Answer::Delivered(CmdStatus::Ok, out) => {
                let mut layout = C::Output::zeroed();
                layout.as_bytes_mut().copy_from_slice(&out[..C::Output::SIZE]);
                Ok((layout, out[C::Output::SIZE..].to_vec()))
            }
            Answer::Delivered(status, _) => Err(status),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn command<C: Command>(&mut self, input: &C) -> Result<C::Output, CmdStatus> {
        self.command_with(input, &[], 0).map(|(out, _)| out)
    }

    /// Reads or writes a register; `bytes` are what it is afterwards.
    pub(crate) fn register(
        &mut self,
        id: RegisterId,
        how: AccessRegMod,
        bytes: &mut [u8],
    ) -> Result<(), CmdStatus> {
        let head = AccessRegIn::new()
            .with(AccessRegIn::OP_MOD, how.code())
            .with(AccessRegIn::REGISTER_ID, id.code());
        let mut input = head.as_bytes().to_vec();
        input.extend_from_slice(bytes);
        match self.give(&input, AccessRegOut::SIZE + bytes.len()) {
            Answer::Delivered(CmdStatus::Ok, out) => {
                bytes.copy_from_slice(&out[AccessRegOut::SIZE..]);
                Ok(())
            }
            Answer::Delivered(status, _) => Err(status),
            other => panic!("{other:?}"),
        }
    }

    /// Lends the pages that are asked for. Returns how many.
    pub(crate) fn lend(&mut self, which: QueryPagesMod) -> u32 {
        let query = QueryPagesIn::new().with(QueryPagesIn::OP_MOD, which.code());
        let wanted = self.command(&query).unwrap().get(QueryPagesOut::NUM_PAGES);
        let first = if which == QueryPagesMod::Boot { LENT } else { LENT + 0x100 * PAGE };
        let pages = pages(first, u64::from(wanted) * PAGE);
        let give = ManagePagesIn::new()
            .with(ManagePagesIn::OP_MOD, ManagePagesMod::AllocationSuccess.code())
            .with(ManagePagesIn::INPUT_NUM_ENTRIES, wanted);
        self.command_with(&give, &pages, 0).unwrap();
        wanted
    }

    /// Asks for up to `most` pages back.
    pub(crate) fn take_back(&mut self, most: u32) -> Vec<u64> {
        let take = ManagePagesIn::new()
            .with(ManagePagesIn::OP_MOD, ManagePagesMod::HcaReturnPages.code())
            .with(ManagePagesIn::INPUT_NUM_ENTRIES, most);
        let (out, list) = self.command_with(&take, &[], most as usize * pas::ENTRY).unwrap();
        pas::iter(&list).take(out.get(ManagePagesOut::OUTPUT_NUM_ENTRIES) as usize).collect()
    }

    /// From new to running.
    pub(crate) fn boot(&mut self) {
        self.command(&EnableHcaIn::new()).unwrap();
        self.command(&SetIssiIn::new().with(SetIssiIn::CURRENT_ISSI, 1)).unwrap();
        self.lend(QueryPagesMod::Boot);
        self.lend(QueryPagesMod::Init);
        self.command(&InitHcaIn::new()).unwrap();
    }

    /// From running to nothing, with all pages.
    pub(crate) fn shut(&mut self) -> usize {
        self.command(&TeardownHcaIn::new()).unwrap();
        let back = self.take_back(100).len();
        self.command(&DisableHcaIn::new()).unwrap();
        back
    }

    pub(crate) fn uar(&mut self) -> u32 {
        self.command(&AllocUarIn::new()).unwrap().get(AllocUarOut::UAR)
    }

    /// Makes an event queue on the doorbell page `eq_uar`, which has to be there.
    pub(crate) fn eq(&mut self, log_size: u32, vector: u32, events: &[EventType]) -> TestEq {
        let at = self.alloc(64 << log_size, PAGE);
        let (eqn, log_size) = (self.try_eq(at, log_size, vector, events).unwrap(), log_size);
        self.write(at, &unwritten(1).repeat(1 << log_size));
        TestEq { eqn, at, log_size, read: 0 }
    }

    pub(crate) fn try_eq(
        &mut self,
        at: u64,
        log_size: u32,
        vector: u32,
        events: &[EventType],
    ) -> Result<u32, CmdStatus> {
        let mask = [events.iter().fold(0, |mask, event| mask | event.mask()[0]), 0, 0, 0];
        let context = Eqc::new()
            .with(Eqc::LOG_EQ_SIZE, log_size)
            .with(Eqc::UAR_PAGE, self.eq_uar)
            .with(Eqc::INTR, vector);
        let command = CreateEqIn::new()
            .with(CreateEqIn::EQ_CONTEXT_ENTRY, context)
            .with(CreateEqIn::EVENT_BITMASK, mask);
        let pages = pages(at, (64_u64 << log_size).min(2048 * PAGE));
        self.command_with(&command, &pages, 0).map(|(out, _)| out.get(CreateEqOut::EQ_NUMBER))
    }

    /// The next event of a queue.
    pub(crate) fn event(&self, eq: &mut TestEq) -> Option<Eqe> {
        let at = eq.at + u64::from(eq.read & ((1 << eq.log_size) - 1)) * 64;
        let entry = Eqe::from_bytes(&self.read(at, 64)).unwrap();
        (entry.get(Eqe::OWNER) == Eqe::sw_owner(eq.read, eq.log_size)).then(|| {
            eq.read += 1;
            entry
        })
    }

    /// Tells how far a queue was read.
    pub(crate) fn consume(&mut self, eq: &TestEq, arm: bool) {
        let at = if arm { EQ_ARM } else { EQ_CI } as u64;
        let word = EqDoorbell::new().with(EqDoorbell::EQN, eq.eqn).with(EqDoorbell::CI, eq.read & 0xff_ffff);
        self.function.bar_write(u64::from(FIRST_UAR) * PAGE + at, word.as_bytes());
    }

    /// Listens to a vector.
    pub(crate) fn line(&mut self, vector: usize) -> Line {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        self.function.interrupts.listen(vector, vec![fd.try_clone().ok()]).unwrap();
        Line(fd)
    }
}

/// A chain of mailboxes at `mailbox`; returns the first one's address.
fn chain(bytes: &[u8], token: u32, mailbox: &mut u64, write: &impl Fn(u64, &[u8])) -> u64 {
    let count = bytes.len().div_ceil(MAILBOX_DATA);
    if count == 0 {
        return 0;
    }
    let first = *mailbox;
    for (i, data) in bytes.chunks(MAILBOX_DATA).enumerate() {
        let mut part = CmdIfBox::new();
        part.as_bytes_mut()[..data.len()].copy_from_slice(data);
        let next = if i + 1 == count { 0 } else { *mailbox + 1024 };
        part.set(CmdIfBox::NEXT_POINTER, next)
            .set(CmdIfBox::BLOCK_NUMBER, i as u32)
            .set(CmdIfBox::TOKEN, token);
        write(*mailbox, part.as_bytes());
        *mailbox += 1024;
    }
    first
}

/// What a slot holds for a command, whose mailboxes are written where `mailbox` says. It is moved behind them.
pub(crate) fn fill_slot(
    input: &[u8],
    output_len: usize,
    token: u32,
    mailbox: &mut u64,
    write: impl Fn(u64, &[u8]),
) -> CmdQueueEntry {
    let mut inline = [0; INLINE_DATA];
    let head = input.len().min(INLINE_DATA);
    inline[..head].copy_from_slice(&input[..head]);
    let input_box = chain(&input[head..], token, mailbox, &write);
    let output_box = chain(&vec![0; mailboxes(output_len) * MAILBOX_DATA], token, mailbox, &write);
    let mut entry = CmdQueueEntry::new()
        .with(CmdQueueEntry::TYPE, CMD_TYPE)
        .with(CmdQueueEntry::INPUT_LENGTH, input.len() as u32)
        .with(CmdQueueEntry::INPUT_MAILBOX_POINTER, input_box)
        .with(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, inline)
        .with(CmdQueueEntry::OUTPUT_MAILBOX_POINTER, output_box)
        .with(CmdQueueEntry::OUTPUT_LENGTH, output_len as u32)
        .with(CmdQueueEntry::TOKEN, token)
        .with(CmdQueueEntry::OWNERSHIP, true);
    entry.sign();
    entry
}

#[derive(Clone, Copy)]
pub(crate) struct TestEq {
    pub(crate) eqn: u32,
    pub(crate) at: u64,
    pub(crate) log_size: u32,
    pub(crate) read: u32,
}

pub(crate) struct Line(OwnedFd);

impl Line {
    /// How often the vector was signalled since the last call.
    pub(crate) fn count(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }
}
