//! Errors of opening an adapter, and their translation to errors of a device.

use std::io;

use hca_core::DeviceError;
use hca_vfio::{DmaError, FunctionError};
use thiserror::Error;

use crate::cmd::CmdError;

hca_core::debug_as_display!(OpenError);

/// An error of opening an adapter.
#[derive(Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The function is not one of these adapters.
    #[error(
        "{name} is {vendor:04x}:{device:04x}, no adapter of the ConnectX family (15b3:…): `lspci -nn -d 15b3:` lists \
         those that there are"
    )]
    NotConnectX {
        /// The function.
        name: String,
        /// The vendor ID of the function.
        vendor: u16,
        /// The device ID of the function.
        device: u16,
    },
    /// The firmware has another command interface.
    #[error(
        "the firmware of {name} has command interface {found}, and this driver speaks 5: it serves ConnectX-4 and later"
    )]
    Interface {
        /// The function.
        name: String,
        /// The found value.
        found: u32,
    },
    /// The adapter does not support the interface version that the driver needs.
    #[error(
        "{name} does not support version 1 of the interface (ISSI), only those of mask {supported:#x}: update its firmware"
    )]
    Issi {
        /// The function.
        name: String,
        /// The supported versions, a bit each.
        supported: u32,
    },
    /// The adapter reports an impossible size of its command queue.
    #[error(
        "{name} says that its command queue has 2^{log_size} slots at 2^{log_stride} bytes, which can't be"
    )]
    CommandQueue {
        /// The function.
        name: String,
        /// Slots, as a power of two.
        log_size: u32,
        /// Bytes of a slot, as a power of two.
        log_stride: u32,
    },
    /// The firmware did not become ready in time.
    #[error("the firmware of {name} is still starting after {ms} ms: wait, or power-cycle the adapter")]
    Starting {
        /// The function.
        name: String,
        /// The time of the wait.
        ms: u128,
    },
    /// All registers read as ones.
    #[error(
        "the registers of {name} read as ones for {ms} ms, as those of a function that is off the bus: see the system's log \
         for errors of its bus, and power-cycle the machine if `lspci` does not show it"
    )]
    Gone {
        /// The function.
        name: String,
        /// The time of the wait.
        ms: u128,
    },
    /// The adapter lacks a feature that the driver needs.
    #[error("{name} lacks {what}, which this driver needs: {remedy}")]
    Lacks {
        /// The function.
        name: String,
        /// The missing part.
        what: &'static str,
        /// The remedy for the user.
        remedy: &'static str,
    },
    /// An option does not fit the adapter.
    #[error("the option `{option}` does not fit {name}: {why}")]
    Option {
        /// The function.
        name: String,
        /// The option.
        option: &'static str,
        /// The rule.
        why: &'static str,
    },
    /// A command failed.
    #[error("starting {name}: {source}")]
    Command {
        /// The function.
        name: String,
        /// The command, and the reason of its failure.
        source: CmdError,
    },
    /// The function can't be used.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// Memory cannot be allocated or mapped.
    #[error(transparent)]
    Memory(#[from] DmaError),
    /// The operating system refused the call.
    #[error("{doing}: {source}{}", hca_core::remedy(source))]
    Io {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// The device error for a lack of memory.
pub(crate) fn memory(source: DmaError) -> DeviceError {
    DeviceError::Io { doing: "getting memory that the adapter can reach", source: io::Error::other(source) }
}

/// The device error for an unusable function.
pub(crate) fn function(source: FunctionError) -> DeviceError {
    DeviceError::Io { doing: "reaching the adapter's registers", source: io::Error::other(source) }
}
