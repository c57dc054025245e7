//! Why an adapter can't be opened, and what of that a device's callers see.

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
    /// The function is none of these adapters'.
    #[error(
        "{name} is {vendor:04x}:{device:04x}, no adapter of the ConnectX family (15b3:…): `lspci -nn -d 15b3:` lists \
         those that there are"
    )]
    NotConnectX {
        /// The function.
        name: String,
        /// Who made it.
        vendor: u16,
        /// Which one it is.
        device: u16,
    },
    /// The firmware speaks another command interface.
    #[error(
        "the firmware of {name} has command interface {found}, and this driver speaks 5: it serves ConnectX-4 and later"
    )]
    Interface {
        /// The function.
        name: String,
        /// The found value.
        found: u32,
    },
    /// It does not know the interface version that the driver needs.
    #[error(
        "{name} does not support version 1 of the interface (ISSI), only those of mask {supported:#x}: update its firmware"
    )]
    Issi {
        /// The function.
        name: String,
        /// Versions that it speaks, a bit each.
        supported: u32,
    },
    /// Its command queue has a shape that can't be.
    #[error(
        "{name} says that its command queue has 2^{log_size} slots at 2^{log_stride} bytes, which can't be"
    )]
    CommandQueue {
        /// The function.
        name: String,
        /// Slots, as a power of two.
        log_size: u32,
        /// Bytes of one, as a power of two.
        log_stride: u32,
    },
    /// The firmware does not get ready.
    #[error("the firmware of {name} is still starting after {ms} ms: wait, or power-cycle the adapter")]
    Starting {
        /// The function.
        name: String,
        /// How long it was waited for.
        ms: u128,
    },
    /// The registers read as ones only.
    #[error(
        "the registers of {name} read as ones for {ms} ms, as those of a function that is off the bus: see the system's log \
         for errors of its bus, and power-cycle the machine if `lspci` does not show it"
    )]
    Gone {
        /// The function.
        name: String,
        /// How long it was waited for.
        ms: u128,
    },
    /// It lacks something that the driver can't do without.
    #[error("{name} lacks {what}, which this driver needs: {remedy}")]
    Lacks {
        /// The function.
        name: String,
        /// The missing part.
        what: &'static str,
        /// What to do.
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
        /// Which, and why.
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
