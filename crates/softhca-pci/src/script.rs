//! For tests: deviations of a function from correct behaviour.
//!
//! A driver has to get along with an adapter that refuses, is slow, or says nothing at all. A [`Script`] in
//! [`FunctionOptions`](crate::FunctionOptions) makes a function behave so. The function asks the script about each
//! command and each register access. Only tests give a function a script.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hca_prm::{CmdIn, CmdStatus, DeliveryStatus, Eqe, EventType, MAX_SLOTS, Opcode};
use hca_vfio::user::wire::IRQ_MSIX;

use crate::bus::interrupts::VECTORS;
use crate::command::parse;
use crate::function::Function;

/// A script's decision about a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The command runs, as without a script.
    Run,
    /// The command does not run now. The function asks the script again at its next look, a millisecond later at most.
    Wait,
    /// The command does not run, and ends with this status and this syndrome; the rest of its output is zeros.
    End(CmdStatus, u32),
    /// The command does not run, and its slot gets this delivery status.
    Undelivered(DeliveryStatus),
    /// The command gets no answer.
    Silent,
    /// The server closes the connection of the client that gave the command.
    HangUp,
}

/// A command that the driver gave.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Its slot in the command queue.
    pub slot: u32,
    /// The whole input.
    pub input: &'a [u8],
    /// How often the function has asked the script about this command before.
    pub tries: u32,
}

impl Given<'_> {
    /// The operation code of the command.
    pub fn opcode(&self) -> Opcode {
        opcode(self.input)
    }
}

/// A source of faults for tests: decides how a function deviates from correct behaviour.
///
/// The server's thread calls the methods between two steps of the function. Each method has a default that changes
/// nothing.
pub trait Script: Debug + Send + Sync {
    /// Decides about a command before it runs.
    fn command(&self, _given: &Given<'_>) -> Turn {
        Turn::Run
    }
    /// Gets a command that has run, and may change its output, which begins with a status.
    fn ran(&self, _input: &[u8], _output: &mut [u8]) {}
    /// Gets the bytes that a client reads from the configuration space, and may change them.
    fn config_read(&self, _offset: u64, _bytes: &mut [u8]) {}
    /// Gets the bytes that a client writes to the configuration space, before the write takes effect.
    fn config_write(&self, _offset: u64, _bytes: &[u8]) {}
    /// Gets the bytes that a client reads from BAR 0 by messages, and may change them.
    fn bar_read(&self, _offset: u64, _bytes: &mut [u8]) {}
    /// An event that the function posts without a cause. The function asks at each look, until the answer is `None`.
    fn event(&self) -> Option<Eqe> {
        None
    }
    /// How many interrupts of a kind, a number of `vfio`'s, the client is told of: MSI-X vectors alone.
    fn interrupts(&self, kind: u32) -> u32 {
        if kind == IRQ_MSIX { VECTORS as u32 } else { 0 }
    }
    /// Gets the eventfd of the first interrupt of a kind other than MSI-X, which the client gives or takes back.
    fn listen(&self, _kind: u32, _eventfd: Option<OwnedFd>) {}
    /// Called after a reset of the function.
    fn reset(&self) {}
    /// Called when the client has disconnected.
    fn left(&self) {}
}

/// Commands that a script has wait.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// A bit for each slot.
    slots: u32,
    tries: [u32; MAX_SLOTS],
}

fn opcode(input: &[u8]) -> Opcode {
    parse::<CmdIn>(input).map_or(Opcode(0), |head| head.opcode())
}

impl Function {
    fn script(&self) -> Option<Arc<dyn Script>> {
        self.options.script.clone()
    }

    /// What becomes of a command; of one that waits that is noted.
    pub(crate) fn ask_script(&mut self, slot: u32, input: &[u8]) -> Turn {
        let Some(script) = self.script() else { return Turn::Run };
        let held = &mut self.commands.held;
        let tries = &mut held.tries[slot as usize];
        let turn = script.command(&Given { slot, input, tries: *tries });
        if turn == Turn::Wait {
            *tries += 1;
            held.slots |= 1 << slot;
        } else {
            *tries = 0;
        }
        self.hung_up |= turn == Turn::HangUp;
        turn
    }

    /// Tells events that a script makes up, and asks it again about commands that wait. Returns whether there were any
    /// that did not go on waiting.
    pub(crate) fn look_at_script(&mut self) -> bool {
        let Some(script) = self.script() else { return false };
        let mut any = false;
        while let Some(event) = script.event() {
            any = true;
            if let Some(kind) = EventType::from_code(event.get(Eqe::EVENT_TYPE)) {
                self.raise(kind, event);
            }
        }
        let held = std::mem::take(&mut self.commands.held.slots);
        if held != 0 {
            self.run_commands(held);
            any |= self.commands.held.slots != held;
        }
        any
    }

    /// Interrupts of a kind, as the client is told.
    pub(crate) fn interrupts_of(&self, kind: u32) -> u32 {
        let own = if kind == IRQ_MSIX { VECTORS as u32 } else { 0 };
        self.options.script.as_ref().map_or(own, |script| script.interrupts(kind))
    }
}
