//! Errors of commands.

use core::time::Duration;
use std::io;

use hca_core::DeviceError;
use hca_prm::{CmdStatus, DeliveryStatus, Opcode};
use hca_vfio::{DmaError, FunctionError};
use thiserror::Error;

use crate::health::Death;

hca_core::debug_as_display!(CmdError);

/// The reason why a command failed.
#[derive(Error)]
#[non_exhaustive]
pub enum CmdError {
    /// The firmware refused the command.
    #[error(
        "the adapter refused {command}: {} (status {status:#x}, syndrome {syndrome:#x}): {}",
        status_text(*status),
        status_remedy(*status)
    )]
    Refused {
        /// The command.
        command: Opcode,
        /// A [`CmdStatus`] code.
        status: u32,
        /// The firmware's own code for the fault.
        syndrome: u32,
    },
    /// The command did not reach the firmware.
    #[error(
        "{command} was not delivered: {} (delivery status {status:#x}): a fault of this driver or of the adapter, please report it",
        delivery_text(*status)
    )]
    Delivery {
        /// The command.
        command: Opcode,
        /// A [`DeliveryStatus`] code.
        status: u32,
    },
    /// The command got no answer, and the adapter is considered dead.
    #[error(
        "{command} got no answer for {} s: the adapter is considered dead; close it, and open it again, which resets it",
        after.as_secs_f32()
    )]
    Silent {
        /// The command.
        command: Opcode,
        /// The time of the wait.
        after: Duration,
    },
    /// The adapter was dead before.
    #[error(
        "{command} was not submitted, as the adapter is dead: {death}; close it, and open it again, which resets it"
    )]
    Dead {
        /// The command.
        command: Opcode,
        /// The reason of the adapter's death.
        death: Death,
    },
    /// The answer is invalid for the command.
    #[error("the adapter answered {command} with {what}: update its firmware, or report it")]
    Answer {
        /// The command.
        command: Opcode,
        /// The fault of the answer.
        what: &'static str,
    },
    /// The adapter asked for more memory than any adapter needs.
    #[error(
        "the adapter asked for {asked} pages of 4 KiB and has {lent} already; the limit is {most}, so it got none; reset it, and update its firmware if this happens again"
    )]
    Greedy {
        /// The number of requested pages.
        asked: usize,
        /// The number of pages that the adapter has.
        lent: usize,
        /// The limit of pages.
        most: usize,
    },
    /// The doorbell can't be written.
    #[error("giving {command} to the adapter: {source}")]
    Function {
        /// The command.
        command: Opcode,
        /// The reason.
        source: FunctionError,
    },
    /// There is no memory for the command's mailboxes.
    #[error("memory for {command}: {source}")]
    Memory {
        /// The command.
        command: Opcode,
        /// The reason.
        source: DmaError,
    },
}

impl CmdError {
    /// Whether the firmware refused it with this status.
    pub(crate) fn is(&self, status: CmdStatus) -> bool {
        matches!(self, Self::Refused { status: s, .. } if *s == status.code())
    }
}

/// A status in words.
fn status_text(code: u32) -> &'static str {
    CmdStatus::from_code(code).map_or("an unknown status", CmdStatus::text)
}

/// A delivery status in words.
fn delivery_text(code: u32) -> &'static str {
    DeliveryStatus::from_code(code).map_or("an unknown status", DeliveryStatus::text)
}

/// The remedy of the error.
fn status_remedy(code: u32) -> &'static str {
    use CmdStatus as S;
    match CmdStatus::from_code(code) {
        Some(S::IntErr) => {
            "close the device and open it again, which resets it; update the firmware if this happens again"
        }
        Some(S::BadOp) => "update the firmware, or ask the host's administrator what this function may do",
        Some(S::BadParam | S::BadOutpLen | S::BadInpLen | S::LimErr | S::IxErr) => {
            "ask for less (the device's attributes have the limits); if the attributes allow the value, please report it"
        }
        Some(S::NoRes) => "destroy some, or close other devices of the adapter",
        Some(S::ResBusy) => "destroy the objects that use it first",
        Some(S::NotReady) => "try again later",
        Some(S::BadSysState) => "close the device and open it again, which resets it",
        Some(S::BadQpState | S::BadResState | S::BadRes) => {
            "an error may have changed its state meanwhile: query it; else please report it"
        }
        Some(S::BadSizeOutsCqes) => "poll the completions first",
        _ => "please report it",
    }
}

impl From<CmdError> for DeviceError {
    fn from(e: CmdError) -> Self {
        let name = |c: Opcode| c.name().unwrap_or("a command");
        match e {
            CmdError::Refused { command, status, syndrome } => Self::Refused {
                command: name(command),
                reason: status_text(status),
                status,
                syndrome,
                remedy: status_remedy(status),
            },
            CmdError::Silent { command, .. } => Self::Dead { why: Death::Silent { command }.text() },
            CmdError::Dead { death, .. } => Self::Dead { why: death.text() },
            e @ (CmdError::Delivery { .. } | CmdError::Answer { .. } | CmdError::Greedy { .. }) => {
                Self::Io { doing: "submitting a command to the adapter", source: io::Error::other(e) }
            }
            CmdError::Function { source, .. } => crate::error::function(source),
            CmdError::Memory { source, .. } => crate::error::memory(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_tells_what_it_is_and_what_helps() {
        for status in CmdStatus::ALL {
            let e = CmdError::Refused { command: Opcode::CREATE_QP, status: status.code(), syndrome: 0xabc };
            let (told, code) = (e.to_string(), format!("status {:#x}, syndrome 0xabc", status.code()));
            assert!(
                told.contains("CREATE_QP") && told.contains(status.text()) && told.contains(&code),
                "{told}"
            );
            let device = DeviceError::from(e).to_string();
            assert!(
                device.contains("CREATE_QP") && device.contains(status.text()) && device.contains(&code),
                "{device}"
            );
        }
        for status in DeliveryStatus::ALL {
            let e = CmdError::Delivery { command: Opcode::CREATE_QP, status: status.code() };
            assert!(e.to_string().contains(status.text()), "{e}");
            assert!(DeviceError::from(e).to_string().contains(status.text()));
        }
        let unknown = CmdError::Refused { command: Opcode(0x999), status: 0x77, syndrome: 1 }.to_string();
        assert!(
            unknown.contains("command 0x999") && unknown.contains("unknown status (status 0x77"),
            "{unknown}"
        );
    }
}
