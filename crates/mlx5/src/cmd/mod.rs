//! The command queue: a page of slots in memory, and a doorbell register with a bit for each.
//!
//! Several commands are under way at a time, one a slot. The last slot is reserved for commands that give or take
//! pages: other commands may wait for pages, and a command that brings pages must not wait for other commands.
//!
//! The thread that submits a command polls the command's slot until the adapter has returned it. The thread first
//! spins, and then sleeps until the event queue of commands reports the end. While the adapter is started or stopped,
//! and on the driver's own thread, no event comes; there the waiting thread sleeps in short naps. A thread that got its
//! answer also takes the events of that queue. So the queue holds at most one event a slot, and does not overrun while
//! the driver's thread has other work. If a command gets no answer in time, the adapter is declared dead, and the slot
//! and the mailboxes, which the adapter may still write, are never used again.
//!
//! The adapter may need pages before it runs a command, and asks for them by the same event queue. Each thread that
//! waits for a command takes such requests and answers them. So no thread waits for the driver's thread, which may not
//! have been started, or may itself wait for a command.

mod error;
mod mailbox;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::ThreadId;
use std::time::Instant;

use hca_prm::{
    CMD_TYPE, CmdIn, CmdOut, CmdQueueEntry, Command, DeliveryStatus, Eqe, EventType, INLINE_DATA,
    InitSegment, Layout, MAX_SLOTS, Opcode, PagesReqEvent,
};
use hca_vfio::mmio::{dma_rmb, doorbell_wmb};
use hca_vfio::{DmaArena, DmaBuf, FunctionError};

pub use error::CmdError;
use mailbox::{Chain, Pool};

use crate::eq::Eq;
use crate::error::OpenError;
use crate::health::{Death, Health};
use crate::options::Options;
use crate::pages::Pages;
use crate::registers::Registers;

/// Bytes of the queue's memory.
const QUEUE_BYTES: usize = 4096;
/// Looks at a slot before the first sleep.
const LOOKS: u32 = 64;
/// Events of commands that are taken at a time.
const MOST_EVENTS: u32 = 1024;
/// The longest sleep where no event tells.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// The command queue.
pub(crate) struct CommandQueue {
    registers: Registers,
    health: Arc<Health>,
    ring: DmaBuf,
    log_stride: u32,
    slots: u32,
    pool: Pool,
    timeout: Duration,
    /// The longest sleep where an event tells.
    look: Duration,
    state: Mutex<State>,
    /// A slot was given back, or the adapter has handed one back, or it is dead.
    changed: Condvar,
    /// Memory that is lent to the adapter.
    pages: Pages,
    /// Where the adapter tells of commands that are done, and asks for pages.
    told: Mutex<Option<Eq>>,
    /// Requests for pages that nobody has seen to, in their order.
    asked: Mutex<VecDeque<Asked>>,
    /// Held by whoever sees to them.
    lending: Mutex<()>,
    /// Whether somebody hears that.
    events: AtomicBool,
    /// The thread that hears of them, and can't wait for itself.
    event_thread: OnceLock<ThreadId>,
}

struct State {
    /// Slots that are not in use, a bit each.
    free: u32,
    token: u8,
}

/// The adapter asks for pages, or (negative) offers some back, as the pages of a function.
struct Asked {
    function: u32,
    pages: i32,
}

/// Which slots a command may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// All but the last.
    Usual,
    /// The last.
    Pages,
}

impl CommandQueue {
    /// Shows the adapter where the queue is, and waits until it has taken it.
    pub(crate) fn open(
        registers: Registers,
        arena: &DmaArena,
        health: Arc<Health>,
        options: &Options,
        name: &str,
    ) -> Result<Self, OpenError> {
        let row = registers.row(InitSegment::LOG_CMDQ_SIZE.offset())?;
        let (log_size, log_stride) =
            (InitSegment::LOG_CMDQ_SIZE.of_row(row), InitSegment::LOG_CMDQ_STRIDE.of_row(row));
        let possible = (1..=MAX_SLOTS.ilog2()).contains(&log_size)
            && log_stride >= CmdQueueEntry::SIZE.ilog2()
            && log_size + log_stride <= QUEUE_BYTES.ilog2();
        if !possible {
            return Err(OpenError::CommandQueue { name: name.to_owned(), log_size, log_stride });
        }
        let ring = arena.alloc(QUEUE_BYTES, QUEUE_BYTES)?;
        let iova = ring.iova().0;
        registers.set_row(InitSegment::CMDQ_PHY_ADDR_63_32.offset(), (iova >> 32) as u32)?;
        // The row's low bits say that the function is used with all it has.
        registers.set_row(InitSegment::CMDQ_PHY_ADDR_31_12.offset(), iova as u32)?;
        let slots = 1 << log_size;
        let free = u32::MAX >> (32 - slots);
        Ok(Self {
            registers,
            health,
            ring,
            log_stride,
            slots,
            pool: Pool::new(arena.clone()),
            timeout: options.command_timeout,
            look: options.command_look,
            state: Mutex::new(State { free, token: 0 }),
            changed: Condvar::new(),
            pages: Pages::new(arena.clone()),
            told: Mutex::new(None),
            asked: Mutex::default(),
            lending: Mutex::default(),
            events: AtomicBool::new(false),
            event_thread: OnceLock::new(),
        })
    }

    /// Gives a command whose input and output are all in their layouts.
    pub(crate) fn exec<C: Command>(&self, input: &C) -> Result<C::Output, CmdError> {
        self.exec_with(input, &[], &mut [])
    }

    /// Gives a command; `tail` follows the input's layout, and what follows the output's comes to `out_tail`.
    pub(crate) fn exec_with<C: Command>(
        &self,
        input: &C,
        tail: &[u8],
        out_tail: &mut [u8],
    ) -> Result<C::Output, CmdError> {
        let all;
        let bytes = if tail.is_empty() {
            input.as_bytes()
        } else {
            all = [input.as_bytes(), tail].concat();
            &all
        };
        let mut out = C::Output::zeroed();
        if out_tail.is_empty() {
            self.run(C::OPCODE, bytes, out.as_bytes_mut())?;
        } else {
            let head = C::Output::SIZE;
            let mut whole = vec![0; head + out_tail.len()];
            self.run(C::OPCODE, bytes, &mut whole)?;
            out.as_bytes_mut().copy_from_slice(&whole[..head]);
            out_tail.copy_from_slice(&whole[head..]);
        }
        Ok(out)
    }

    /// Pages that the adapter has.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The adapter tells there of commands that are done, and asks for pages.
    pub(crate) fn set_events(&self, eq: Eq) {
        *self.told() = Some(eq);
    }
    /// Takes that queue from the adapter.
    pub(crate) fn close_events(&self) -> Result<(), CmdError> {
        let eq = self.told().take();
        eq.map_or(Ok(()), |eq| eq.destroy(self))
    }
    /// Takes what the adapter told of commands, has all who wait look, and arms the queue if there was anything or its
    /// interrupt came. Pages that it asked for are lent by [`lend`](Self::lend).
    pub(crate) fn take_completions(&self, interrupted: bool) -> Result<(), FunctionError> {
        let mut told = self.told();
        let any = self.take_all(&mut told)?;
        if let Some(eq) = told.as_ref().filter(|_| any || interrupted) {
            eq.arm()?;
        }
        drop(told);
        if any {
            self.wake();
        }
        Ok(())
    }
    fn told(&self) -> MutexGuard<'_, Option<Eq>> {
        // It is whole between any two of its operations.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn asked(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        // It is whole between any two of its operations.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all events, but not for ever from an adapter that tells without end; whether there were any.
    fn take_all(&self, told: &mut Option<Eq>) -> Result<bool, FunctionError> {
        let Some(eq) = told else { return Ok(false) };
        for taken in 0..MOST_EVENTS {
            let Some(event) = eq.take()? else { return Ok(taken > 0) };
            if EventType::from_code(event.get(Eqe::EVENT_TYPE)) == Some(EventType::PageRequest) {
                let data = PagesReqEvent::from_bytes(&event.get(Eqe::EVENT_DATA));
                let data = data.expect("an event's data are 28 bytes");
                let pages = data.get(PagesReqEvent::NUM_PAGES) as i32;
                self.asked().push_back(Asked { function: data.get(PagesReqEvent::FUNCTION_ID), pages });
            }
        }
        Ok(true)
    }
    /// The same by who waits for a command, for whom a function that can't be reached is the adapter's death. Those
    /// whose events were taken look.
    fn take_command_events(&self) {
        let any = self.take_all(&mut self.told());
        if any.is_err() {
            self.health.declare(Death::Unreachable);
        }
        if any.unwrap_or(true) {
            self.wake();
        }
    }

    /// Lends the pages that were asked for, and takes back those that were offered, in their order; unless somebody is
    /// about it, who will see to all.
    pub(crate) fn lend(&self) {
        while !self.asked().is_empty() {
            let lending = match self.lending.try_lock() {
                Ok(lending) => lending,
                Err(TryLockError::Poisoned(e)) => e.into_inner(),
                // Whoever has it looks once more when he has let go of it.
                Err(TryLockError::WouldBlock) => return,
            };
            loop {
                let next = self.asked().pop_front();
                let Some(Asked { function, pages }) = next else { break };
                if let Err(e) = self.pages.change(self, function, pages) {
                    tracing::error!(%e, pages, "a request of the adapter failed");
                }
            }
            drop(lending);
        }
    }

    /// From now on that thread hears of commands that are done, and calls [`wake`](Self::wake).
    pub(crate) fn events_on(&self, event_thread: ThreadId) {
        // There is one such thread in an adapter's life.
        let _ = self.event_thread.set(event_thread);
        self.events.store(true, Ordering::Relaxed);
    }
    /// From now on nobody hears of commands that are done.
    pub(crate) fn events_off(&self) {
        self.events.store(false, Ordering::Relaxed);
        self.wake();
    }
    /// The adapter has told of commands that are done, or is dead: has all who wait look.
    pub(crate) fn wake(&self) {
        // Whoever has looked before this holds the lock until it sleeps.
        drop(self.state());
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole between any two of its operations.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn dead(&self, command: Opcode) -> Result<(), CmdError> {
        self.health.death().map_or(Ok(()), |death| Err(CmdError::Dead { command, death }))
    }
    fn silent(&self, command: Opcode) -> CmdError {
        self.health.declare(Death::Silent { command });
        self.wake();
        CmdError::Silent { command, after: self.timeout }
    }

    fn run(&self, command: Opcode, input: &[u8], out: &mut [u8]) -> Result<(), CmdError> {
        self.dead(command)?;
        let memory = |source| CmdError::Memory { command, source };
        let inputs = self.pool.chain(input.len()).map_err(memory)?;
        let outputs = self.pool.chain(out.len()).map_err(memory)?;
        let deadline = hca_process::in_time(self.timeout);
        let lane = if command == Opcode::MANAGE_PAGES { Lane::Pages } else { Lane::Usual };
        let (slot, token) = self.take_slot(command, lane, deadline)?;
        self.write(slot, token, (input, &inputs), (out.len(), &outputs));
        doorbell_wmb();
        let rung = self.registers.set_row(InitSegment::COMMAND_DOORBELL_VECTOR.offset(), 1 << slot);
        if let Err(source) = rung {
            self.health.declare(Death::Unreachable);
            self.wake();
            inputs.leak();
            outputs.leak();
            return Err(CmdError::Function { command, source });
        }
        if let Err(e) = self.wait(command, lane, slot, deadline) {
            inputs.leak();
            outputs.leak();
            return Err(e);
        }
        let outcome = self.read(command, slot, out, &outputs);
        // Its own event may come later, and is the next one's to take.
        self.take_command_events();
        self.give_slot(slot);
        if lane == Lane::Usual {
            self.lend();
        }
        outcome
    }

    fn take_slot(&self, command: Opcode, lane: Lane, deadline: Instant) -> Result<(u32, u8), CmdError> {
        let last = 1_u32 << (self.slots - 1);
        let mine = if lane == Lane::Pages { last } else { !last };
        let mut state = self.state();
        loop {
            self.dead(command)?;
            let free = state.free & mine;
            if free != 0 {
                let slot = free.trailing_zeros();
                state.free &= !(1 << slot);
                // 0 is what memory holds that nobody wrote.
                state.token = state.token.checked_add(1).unwrap_or(1);
                return Ok((slot, state.token));
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                drop(state);
                return Err(self.silent(command));
            };
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    fn give_slot(&self, slot: u32) {
        self.state().free |= 1 << slot;
        self.changed.notify_all();
    }

    fn place(&self, slot: u32) -> usize {
        (slot as usize) << self.log_stride
    }
    fn write(&self, slot: u32, token: u8, (input, inputs): (&[u8], &Chain<'_>), out: (usize, &Chain<'_>)) {
        let (out_len, outputs) = out;
        inputs.fill(token, input);
        outputs.fill(token, &[]);
        let mut inline = [0; INLINE_DATA];
        let head = input.len().min(INLINE_DATA);
        inline[..head].copy_from_slice(&input[..head]);
        let mut image = CmdQueueEntry::new()
            .with(CmdQueueEntry::TYPE, CMD_TYPE)
            .with(CmdQueueEntry::INPUT_LENGTH, input.len() as u32)
            .with(CmdQueueEntry::INPUT_MAILBOX_POINTER, inputs.pointer())
            .with(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, inline)
            .with(CmdQueueEntry::OUTPUT_MAILBOX_POINTER, outputs.pointer())
            .with(CmdQueueEntry::OUTPUT_LENGTH, out_len as u32)
            .with(CmdQueueEntry::TOKEN, token.into())
            .with(CmdQueueEntry::OWNERSHIP, true);
        image.sign();
        self.ring.store(self.place(slot), image.as_bytes());
    }

    /// Whether the adapter has handed the slot back.
    fn is_done(&self, slot: u32) -> bool {
        let word = self.ring.word32(self.place(slot) + CmdQueueEntry::OWNERSHIP.offset());
        // What stands there is big-endian.
        !CmdQueueEntry::OWNERSHIP.of_row(u32::from_be(word.load(Ordering::Acquire)))
    }

    fn wait(&self, command: Opcode, lane: Lane, slot: u32, deadline: Instant) -> Result<(), CmdError> {
        for _ in 0..LOOKS {
            if self.is_done(slot) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let mut nap = Duration::from_micros(20);
        loop {
            // It may wait for pages. Those that bring them do not.
            if lane == Lane::Usual {
                self.take_command_events();
                self.lend();
            }
            if !self.is_notified() && self.health.look_if_due(&self.registers) {
                self.wake();
            }
            let state = self.state();
            if self.is_done(slot) {
                return Ok(());
            }
            self.dead(command)?;
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                drop(state);
                return Err(self.silent(command));
            };
            let longest = if self.is_notified() { self.look } else { nap };
            let sleep = left.min(longest);
            nap = (2 * nap).min(LONGEST_NAP);
            drop(self.changed.wait_timeout(state, sleep));
        }
    }

    /// Whether this thread will be told of a command that is done.
    fn is_notified(&self) -> bool {
        self.events.load(Ordering::Relaxed) && !self.is_event_thread()
    }
    /// Whether this is the thread that hears.
    pub(crate) fn is_event_thread(&self) -> bool {
        self.event_thread.get().copied() == Some(std::thread::current().id())
    }

    fn read(&self, command: Opcode, slot: u32, out: &mut [u8], outputs: &Chain<'_>) -> Result<(), CmdError> {
        dma_rmb();
        let mut image = CmdQueueEntry::new();
        self.ring.load(self.place(slot), image.as_bytes_mut());
        let delivery = image.get(CmdQueueEntry::STATUS);
        if delivery != DeliveryStatus::Ok.code() {
            return Err(CmdError::Delivery { command, status: delivery });
        }
        let inline = image.get(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA);
        let head = out.len().min(INLINE_DATA);
        out[..head].copy_from_slice(&inline[..head]);
        outputs.load(out);
        let answer =
            CmdOut::from_bytes(out).map_err(|_| CmdError::Answer { command, what: "less than a status" })?;
        let (status, syndrome) = (answer.get(CmdOut::STATUS), answer.get(CmdOut::SYNDROME));
        if status != 0 {
            tracing::debug!(%command, status, syndrome, op_mod = op_mod(slot, self), "a command was refused");
            return Err(CmdError::Refused { command, status, syndrome });
        }
        Ok(())
    }
}

/// The variant of the command in a slot, for the log.
fn op_mod(slot: u32, queue: &CommandQueue) -> u32 {
    let mut head = CmdIn::new();
    let at = queue.place(slot) + CmdQueueEntry::COMMAND_INPUT_INLINE_DATA.offset();
    queue.ring.load(at, head.as_bytes_mut());
    head.get(CmdIn::OP_MOD)
}
