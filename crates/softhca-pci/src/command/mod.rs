//! Commands: slots and mailboxes in the client's memory, and the dispatch to methods.
//!
//! A write of the command doorbell names slots. The function reads each slot once, runs its command at once, and hands
//! the slot back, with an event if an event queue subscribes to command completions. A malformed slot or mailbox gets a
//! delivery status; a command that fails gets a status in its output. A slot in memory that the function can't reach
//! gets no answer, because there is no place to write one; the driver's own timeout ends its waiting.
//!
//! A method of a command takes the whole input and the [`Output`], zeroed and as long as the driver has room for. The
//! method writes the output's layout and the data behind the layout; the dispatcher writes status and syndrome.

pub(crate) mod caps;
mod hca;
mod pages;
pub(crate) mod resource;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_caps;
#[cfg(test)]
mod tests_garbage;
#[cfg(test)]
mod tests_limits;
#[cfg(test)]
mod tests_pages;
#[cfg(test)]
mod tests_script;

use std::collections::BTreeMap;

use hca_prm::{
    CMD_TYPE, CmdIfBox, CmdIn, CmdInterCompEvent, CmdOut, CmdQueueEntry, CmdStatus, DeliveryStatus, Eqe,
    EventType, INLINE_DATA, Layout, MAILBOX_ALIGN, MAILBOX_DATA, MAX_SLOTS, NicInterface, Opcode, mailboxes,
};

use crate::function::Function;
use crate::guest::{Fault, PAGE, Window};
use crate::script::{Held, Turn};
pub(crate) use pages::Pages;
pub(crate) use resource::{Numbers, Resources};

/// The longest input: a list of a million pages of a key, and the rest of the command.
const MAX_INPUT: usize = (8 << 20) + 4096;
/// The longest output.
const MAX_OUTPUT: usize = 256 << 10;
/// The cost that a function's commands may have between two looks at it: bytes of input and output, and of queues and
/// tables that are made or go, and so much more for each command. Beyond it, slots whose doorbell was rung wait, and each
/// look runs one.
const BUDGET: usize = 16 << 20;
const COMMAND_COST: usize = 64 << 10;
/// That of an object that a command looks at to find whether it names another one.
const OBJECT_COST: usize = 64;
/// Mailboxes of an input that are read in one look.
const BOXES_A_LOOK: usize = 1024;
// A doorbell has a bit for each slot.
const _: () = assert!(MAX_SLOTS == u32::BITS as usize);

/// How far a driver has brought its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// Nothing but `ENABLE_HCA` is done.
    #[default]
    Disabled,
    /// It is set up: interface, pages, capabilities.
    Enabled,
    /// Objects are made.
    Running,
}

/// The state of a function's commands.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    pub(crate) phase: Phase,
    /// Version of the interface.
    pub(crate) issi: u32,
    pub(crate) pages: Pages,
    pub(crate) port: crate::port::Port,
    pub(crate) caps: caps::Chosen,
    /// Slots whose commands wait for pages, a bit each.
    waiting: u32,
    pub(crate) held: Held,
    /// Slots whose doorbell was rung and that are to be run, a bit each.
    rung: u32,
    /// The cost of commands since the last look.
    spent: usize,
    /// The command that is done bit by bit.
    long: Option<Long>,
    /// The memory of a key that is about to be made.
    pub(crate) window: Option<Result<Window, CmdStatus>>,
    /// Slots that could not be answered, as they were: they are not run again as long as they are the same.
    lost: BTreeMap<u32, CmdQueueEntry>,
}

/// A command that is done bit by bit: while it is, no other one of its function's is.
#[derive(Debug)]
struct Long {
    slot: u32,
    /// The slot as it was read.
    entry: CmdQueueEntry,
    /// What was read of the input, and how many mailboxes that are, and where the next one is.
    input: Vec<u8>,
    boxes: usize,
    next: u64,
}

impl Commands {
    /// As new, but for what was spent: resets bring no more time.
    pub(crate) fn reset(&mut self) {
        *self = Self { spent: self.spent, ..Self::default() };
    }

    /// A command looks through so many objects, which counts as so many bytes of its input.
    pub(crate) fn charge(&mut self, objects: usize) {
        self.spent += objects * OBJECT_COST;
    }

    /// A command looks up the pages that its input lists at once: each may take as long as one that is copied.
    fn charge_pages(&mut self, input: &[u8]) {
        self.spent += input.len() / hca_prm::pas::ENTRY * PAGE as usize;
    }

    /// A command took as long as all of a look may: others wait for the next one.
    pub(crate) fn charge_all(&mut self) {
        self.spent = self.spent.max(BUDGET);
    }

    /// Whether no other command runs before the next look.
    #[cfg(test)]
    pub(crate) fn is_all_spent(&self) -> bool {
        self.spent >= BUDGET
    }

    /// What was spent is forgotten, as by a look.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn refill(&mut self) {
        self.spent = 0;
    }
}

/// The place for a command's output.
#[derive(Debug)]
pub(crate) struct Output {
    bytes: Vec<u8>,
}

impl Output {
    pub(crate) fn new(len: usize) -> Self {
        Self { bytes: vec![0; len] }
    }

    /// Puts a layout at the beginning.
    pub(crate) fn put<L: Layout>(&mut self, layout: &L) -> Result<(), CmdStatus> {
        self.put_at(0, layout.as_bytes())
    }

    /// Puts bytes somewhere.
    pub(crate) fn put_at(&mut self, at: usize, bytes: &[u8]) -> Result<(), CmdStatus> {
        let end = at.checked_add(bytes.len());
        let place = end.and_then(|end| self.bytes.get_mut(at..end)).ok_or(CmdStatus::BadOutpLen)?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    /// Bytes that there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What was put, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn finish(&mut self, status: CmdStatus, syndrome: u32) {
        if status != CmdStatus::Ok {
            self.bytes.fill(0);
        }
        let head = CmdOut::new().with(CmdOut::STATUS, status.code()).with(CmdOut::SYNDROME, syndrome);
        // The lengths were checked when the slot was read.
        self.bytes[..CmdOut::SIZE].copy_from_slice(head.as_bytes());
    }
}

/// The layout that an input begins with.
pub(crate) fn parse<L: Layout>(input: &[u8]) -> Result<L, CmdStatus> {
    let mut layout = L::zeroed();
    let head = input.get(..L::SIZE).ok_or(CmdStatus::BadInpLen)?;
    layout.as_bytes_mut().copy_from_slice(head);
    Ok(layout)
}

/// The reason why a slot was not run.
enum Undelivered {
    /// It waits for pages, and is run anew when they may be there.
    Waits,
    /// A script has it wait, or never end.
    Held,
    /// The driver is told so.
    Status(DeliveryStatus),
    /// The driver can't be told.
    Fault(Fault),
}

impl From<DeliveryStatus> for Undelivered {
    fn from(status: DeliveryStatus) -> Self {
        Self::Status(status)
    }
}

impl Function {
    /// Runs the commands of the slots whose bit is set, and then those that have waited for pages; as many as may be
    /// run before the next look.
    pub(crate) fn run_commands(&mut self, slots: u32) {
        self.commands.rung |= slots;
        self.run_rung();
        // What ran may have brought pages; whoever still lacks some asks for them and waits on.
        if self.commands.waiting != 0 && !self.commands.pages.are_asked_for() {
            self.commands.rung |= std::mem::take(&mut self.commands.waiting);
            self.run_rung();
        }
        // Those that are still to be run have not heard of it.
        if self.commands.rung == 0 {
            self.forget_refusal();
        }
        self.offer_pages();
    }

    /// Runs a command that was put off, if there is one. Returns whether there was. From now on commands may cost anew.
    pub(crate) fn look_at_commands(&mut self) -> bool {
        let any = self.commands.rung != 0;
        if any {
            // One is run in any case.
            self.commands.spent = BUDGET - 1;
            self.run_commands(0);
        }
        self.commands.spent = 0;
        any
    }

    fn run_rung(&mut self) {
        while self.commands.rung != 0 && self.commands.spent < BUDGET {
            let rung = |slot: &u32| self.commands.rung & 1 << slot != 0;
            let long = self.commands.long.as_ref().map(|long| long.slot).filter(rung);
            let slot = long.unwrap_or(self.commands.rung.trailing_zeros());
            self.commands.rung &= !(1 << slot);
            let open = self.registers.nic_interface == NicInterface::Full.code();
            if open && let Err(fault) = self.run_slot(slot) {
                tracing::debug!(slot, "a command was lost: {fault}");
            }
        }
    }

    fn run_slot(&mut self, slot: u32) -> Result<(), Fault> {
        let at = self.registers.cmdq.saturating_add(u64::from(slot) * CmdQueueEntry::SIZE as u64);
        let mut entry = CmdQueueEntry::new();
        self.guest.read(at, entry.as_bytes_mut())?;
        if !entry.get(CmdQueueEntry::OWNERSHIP) {
            return Ok(());
        }
        if self.commands.lost.remove(&slot).is_some_and(|lost| lost.as_bytes() == entry.as_bytes()) {
            self.commands.lost.insert(slot, entry);
            return Ok(());
        }
        let asked = entry;
        let done = self.run_and_answer(slot, at, entry);
        if done.is_err() {
            self.commands.lost.insert(slot, asked);
        }
        done
    }

    /// Runs the command of a slot that is the device's, and hands the slot back.
    fn run_and_answer(&mut self, slot: u32, at: u64, mut entry: CmdQueueEntry) -> Result<(), Fault> {
        let length = |field, most| (entry.get(field) as usize).min(most);
        let bytes =
            length(CmdQueueEntry::INPUT_LENGTH, MAX_INPUT) + length(CmdQueueEntry::OUTPUT_LENGTH, MAX_OUTPUT);
        self.commands.spent += COMMAND_COST + bytes;
        // The command that makes the queue of these events is still waited for by looking.
        let eqn = self.eqs.of_type(EventType::Cmd);
        let status = match self.run_entry(slot, &mut entry) {
            Ok(()) => DeliveryStatus::Ok,
            Err(Undelivered::Waits) => {
                self.commands.waiting |= 1 << slot;
                return Ok(());
            }
            Err(Undelivered::Held) => return Ok(()),
            Err(Undelivered::Status(status)) => status,
            Err(Undelivered::Fault(fault)) => return Err(fault),
        };
        entry.set(CmdQueueEntry::STATUS, status.code()).set(CmdQueueEntry::OWNERSHIP, false).sign();
        let bytes = entry.as_bytes();
        self.guest.write(at + 32, &bytes[32..48])?;
        // The owner bit comes last: the driver may look at any time.
        let last = bytes.last_chunk().expect("a slot has more than four bytes");
        self.guest.store32(at + 60, u32::from_be_bytes(*last))?;
        if let Some(eqn) = eqn
            && self.eqs.of_type(EventType::Cmd) == Some(eqn)
        {
            let done = CmdInterCompEvent::new().with(CmdInterCompEvent::COMMAND_COMPLETION_VECTOR, 1 << slot);
            self.post_event(eqn, Eqe::of(EventType::Cmd).with(Eqe::EVENT_DATA, *done.as_bytes()));
        }
        Ok(())
    }

    /// Runs a command; what it puts out lies in the entry and in its mailboxes then.
    fn run_entry(&mut self, slot: u32, entry: &mut CmdQueueEntry) -> Result<(), Undelivered> {
        if entry.get(CmdQueueEntry::TYPE) != CMD_TYPE {
            return Err(DeliveryStatus::BadDescr.into());
        }
        let length = |field| entry.get(field) as usize;
        let input_len = length(CmdQueueEntry::INPUT_LENGTH);
        if !(CmdIn::SIZE..=MAX_INPUT).contains(&input_len) {
            return Err(DeliveryStatus::BadInpLen.into());
        }
        let output_len = length(CmdQueueEntry::OUTPUT_LENGTH);
        if !(CmdOut::SIZE..=MAX_OUTPUT).contains(&output_len) {
            return Err(DeliveryStatus::BadOutpLen.into());
        }
        let mut long = self.read_input(slot, entry, input_len)?;
        if long.boxes < mailboxes(input_len) {
            return Err(self.go_on(long));
        }
        long.input.truncate(input_len);
        let mut places = Vec::new();
        let first = entry.get(CmdQueueEntry::OUTPUT_MAILBOX_POINTER);
        self.walk(entry, first, 0..mailboxes(output_len), DeliveryStatus::BadOutPtr, |at, _| {
            places.push(at);
        })?;

        let input = &long.input;
        let out = match self.ask_script(slot, input) {
            Turn::Run if self.awaits_pages(input) => return Err(Undelivered::Waits),
            Turn::Run if self.ends_all(input) && self.destroy_piece() => return Err(self.go_on(long)),
            Turn::Run if self.make_piece(input) => return Err(self.go_on(long)),
            Turn::Run => self.run(input, output_len),
            Turn::End(status, syndrome) => {
                let mut out = Output::new(output_len);
                out.finish(status, syndrome);
                out
            }
            Turn::Undelivered(status) => return Err(status.into()),
            Turn::Wait | Turn::Silent | Turn::HangUp => return Err(Undelivered::Held),
        };
        let (head, rest) = out.bytes.split_at(output_len.min(INLINE_DATA));
        let mut inline = [0; INLINE_DATA];
        inline[..head.len()].copy_from_slice(head);
        entry.set(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA, inline);
        for (at, part) in places.into_iter().zip(rest.chunks(MAILBOX_DATA)) {
            self.guest.write(at, part).map_err(Undelivered::Fault)?;
        }
        Ok(())
    }

    /// Reads a command's input: so much of it as may be read in one look, behind what was read of it before.
    fn read_input(
        &mut self,
        slot: u32,
        entry: &CmdQueueEntry,
        input_len: usize,
    ) -> Result<Long, Undelivered> {
        let same = |long: &Long| long.slot == slot && long.entry.as_bytes() == entry.as_bytes();
        let mut long = match self.commands.long.take().filter(same) {
            Some(long) => long,
            None => {
                self.guest.forget_making();
                let input = entry.get(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA).to_vec();
                let next = entry.get(CmdQueueEntry::INPUT_MAILBOX_POINTER);
                Long { slot, entry: *entry, input, boxes: 0, next }
            }
        };
        let boxes = long.boxes..mailboxes(input_len).min(long.boxes + BOXES_A_LOOK);
        long.boxes = boxes.end;
        let input = &mut long.input;
        long.next = self.walk(entry, long.next, boxes, DeliveryStatus::BadInPtr, |_, part| {
            input.extend_from_slice(&part.get(CmdIfBox::MAILBOX_DATA));
        })?;
        Ok(long)
    }

    /// The next look goes on with a command.
    fn go_on(&mut self, long: Long) -> Undelivered {
        self.commands.rung |= 1 << long.slot;
        self.commands.spent = BUDGET;
        self.commands.long = Some(long);
        Undelivered::Held
    }

    /// Follows a chain of mailboxes from the one at `at` on, which has the first of these numbers. Returns where the
    /// one behind them is.
    fn walk(
        &self,
        entry: &CmdQueueEntry,
        mut at: u64,
        blocks: core::ops::Range<usize>,
        pointer: DeliveryStatus,
        mut each: impl FnMut(u64, &CmdIfBox),
    ) -> Result<u64, Undelivered> {
        for block in blocks {
            if at == 0 || !at.is_multiple_of(MAILBOX_ALIGN) {
                return Err(pointer.into());
            }
            let mut part = CmdIfBox::new();
            self.guest.read(at, part.as_bytes_mut()).map_err(|_| pointer)?;
            if part.get(CmdIfBox::TOKEN) != entry.get(CmdQueueEntry::TOKEN) {
                return Err(DeliveryStatus::TokErr.into());
            }
            if part.get(CmdIfBox::BLOCK_NUMBER) as usize != block {
                return Err(DeliveryStatus::BadBlkNum.into());
            }
            each(at, &part);
            at = part.get(CmdIfBox::NEXT_POINTER);
        }
        Ok(at)
    }

    /// Does what an input asks for.
    fn run(&mut self, input: &[u8], output_len: usize) -> Output {
        let mut out = Output::new(output_len);
        let before = self.objects.held_bytes();
        let result = parse::<CmdIn>(input).and_then(|head| {
            // The memory of other queues is counted by itself.
            if matches!(head.opcode(), Opcode::CREATE_CQ | Opcode::MODIFY_CQ) {
                self.commands.charge_pages(input);
            }
            let result = self.dispatch(head.opcode(), input, &mut out);
            match result {
                Ok(()) => self.commands.pages.count(head.opcode()),
                Err(status) => tracing::debug!("{} is refused: {status}", head.opcode()),
            }
            result
        });
        // Memory that is taken or let go of takes as long as memory that is copied.
        self.commands.spent += before.abs_diff(self.objects.held_bytes());
        out.finish(result.err().unwrap_or(CmdStatus::Ok), 0);
        if let Some(script) = &self.options.script {
            script.ran(input, out.bytes_mut());
        }
        out
    }

    /// Whether a command may be given now.
    fn check_phase(&self, opcode: Opcode) -> Result<(), CmdStatus> {
        let needs = match opcode {
            Opcode::ENABLE_HCA | Opcode::DISABLE_HCA | Opcode::NOP => Phase::Disabled,
            Opcode::TEARDOWN_HCA => Phase::Running,
            _ if opcode.0 >> 8 == 1 || opcode == Opcode::ACCESS_REG => Phase::Enabled,
            _ => Phase::Running,
        };
        let there = match self.commands.phase {
            Phase::Disabled => needs == Phase::Disabled,
            Phase::Enabled => needs != Phase::Running,
            Phase::Running => true,
        };
        if there { Ok(()) } else { Err(CmdStatus::BadSysState) }
    }

    fn dispatch(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        self.check_phase(opcode)?;
        if self.missing_pages(input) > 0 {
            return Err(CmdStatus::NoRes);
        }
        match opcode.0 {
            0x100..0x200 => self.setup_command(opcode, input, out),
            0x200..0x500 => self.queue_command(opcode, input, out),
            0x50d | 0x740..0x780 => self.port_command(opcode, input, out),
            0x500..0x600 => self.qp_command(opcode, input, out),
            0x700..0x740 | 0x90c..0x910 => self.srq_command(opcode, input, out),
            0x800..0x900 => self.resource_command(opcode, input, out),
            0x900..0xa00 => self.ethernet_command(opcode, input, out),
            _ => Err(CmdStatus::BadOp),
        }
    }

    fn queue_command(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_MKEY => self.create_mkey(input, out),
            Opcode::QUERY_MKEY => self.query_mkey(input, out),
            Opcode::DESTROY_MKEY => self.destroy_mkey(input, out),
            Opcode::QUERY_SPECIAL_CONTEXTS => self.query_special_contexts(out),
            Opcode::CREATE_EQ => self.create_eq(input, out),
            Opcode::DESTROY_EQ => self.destroy_eq(input),
            Opcode::QUERY_EQ => self.query_eq(input, out),
            Opcode::CREATE_CQ => self.create_cq(input, out),
            Opcode::DESTROY_CQ => self.destroy_cq(input, out),
            Opcode::QUERY_CQ => self.query_cq(input, out),
            Opcode::MODIFY_CQ => self.modify_cq(input, out),
            _ => Err(CmdStatus::BadOp),
        }
    }

    fn qp_command(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_QP => self.create_qp(input, out),
            Opcode::DESTROY_QP => self.destroy_qp(input, out),
            Opcode::QUERY_QP => self.query_qp(input, out),
            Opcode::RST2INIT_QP
            | Opcode::INIT2RTR_QP
            | Opcode::RTR2RTS_QP
            | Opcode::RTS2RTS_QP
            | Opcode::SQERR2RTS_QP
            | Opcode::SQD_RTS_QP
            | Opcode::INIT2INIT_QP
            | Opcode::QP_2ERR
            | Opcode::QP_2RST => self.modify_qp(opcode, input, out),
            _ => Err(CmdStatus::BadOp),
        }
    }

    fn srq_command(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_SRQ => self.create_srq(input, out),
            Opcode::DESTROY_SRQ => self.destroy_srq(input, out),
            Opcode::QUERY_SRQ => self.query_srq(input, out),
            Opcode::ARM_RQ => self.arm_rq(input, out),
            Opcode::CREATE_XRC_SRQ => self.create_xrc_srq(input, out),
            Opcode::DESTROY_XRC_SRQ => self.destroy_xrc_srq(input, out),
            Opcode::QUERY_XRC_SRQ => self.query_xrc_srq(input, out),
            Opcode::ARM_XRC_SRQ => self.arm_xrc_srq(input, out),
            Opcode::CREATE_RMP => self.create_rmp(input, out),
            Opcode::MODIFY_RMP => self.modify_rmp(input, out),
            Opcode::DESTROY_RMP => self.destroy_rmp(input, out),
            Opcode::QUERY_RMP => self.query_rmp(input, out),
            _ => Err(CmdStatus::BadOp),
        }
    }
}
