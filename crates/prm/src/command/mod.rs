//! Commands: the layout of each one's input and output.
//!
//! Every input begins with [`CmdIn`], every output with [`CmdOut`], and each command's layouts have those fields too.
//! `new` of an input has the operation code in it. What follows a layout as a list of any length, such as the
//! addresses of pages, is no field of it; see [`pas`](crate::pas).

use crate::layout;
use crate::layout::Layout;
use crate::opcode::Opcode;

/// The input of a command.
pub trait Command: Layout {
    /// What the command asks for.
    const OPCODE: Opcode;
    /// What comes back.
    type Output: Layout;
}

/// Declares commands: the operation code, the layout of the input, the layout of the output. The fields that all
/// inputs or all outputs begin with are added.
macro_rules! commands {
    (list $list:ident; $(
        $(#[$meta:meta])*
        $opcode:ident => $input:ident: $input_size:literal { $($input_fields:tt)* },
        $output:ident: $output_size:literal { $($output_fields:tt)* }
    )*) => {
        $crate::layout! {
            list $list;
            $(
                $(#[$meta])*
                pub struct $input: $input_size, opcode $opcode {
                    /// The operation code.
                    OPCODE: 0x00 [31:16],
                    /// The user context that the command is given in, 0 for the driver's own; reserved in commands
                    /// that no user context can give.
                    UID: 0x00 [15:0],
                    /// A variant of the command.
                    OP_MOD: 0x04 [15:0],
                    $($input_fields)*
                }

                #[doc = concat!("Output of [`", stringify!($input), "`].")]
                pub struct $output: $output_size {
                    /// A [`CmdStatus`](crate::CmdStatus) code.
                    STATUS: 0x00 [31:24],
                    /// Where the firmware found a fault, in its own terms; for those who can ask its makers.
                    SYNDROME: 0x04 [31:0],
                    $($output_fields)*
                }
            )*
        }
        $(
            impl $crate::command::Command for $input {
                const OPCODE: $crate::Opcode = $crate::Opcode::$opcode;
                type Output = $output;
            }
        )*
    };
}

pub mod counter;
pub mod cq;
pub mod eq;
pub mod ethernet;
pub mod hca;
pub mod mkey;
pub mod qp;
pub mod resource;
pub mod srq;
pub mod vport;

pub(crate) const LAYOUTS: &[&[crate::LayoutInfo]] = &[
    HEADERS,
    counter::COMMANDS,
    counter::LAYOUTS,
    cq::COMMANDS,
    eq::COMMANDS,
    ethernet::COMMANDS,
    ethernet::LAYOUTS,
    hca::COMMANDS,
    hca::LAYOUTS,
    mkey::COMMANDS,
    qp::COMMANDS,
    resource::COMMANDS,
    srq::COMMANDS,
    vport::COMMANDS,
    vport::LAYOUTS,
];

layout! {
    list HEADERS;

    /// What every command's input begins with.
    pub struct CmdIn: 0x08 {
        /// The operation code, see [`CmdIn::opcode`].
        OPCODE: 0x00 [31:16],
        /// The user context that the command is given in.
        UID: 0x00 [15:0],
        /// A variant of the command.
        OP_MOD: 0x04 [15:0],
    }

    /// What every command's output begins with.
    pub struct CmdOut: 0x08 {
        /// A [`CmdStatus`](crate::CmdStatus) code.
        STATUS: 0x00 [31:24],
        /// Where the firmware found a fault, in its own terms.
        SYNDROME: 0x04 [31:0],
    }
}

impl CmdIn {
    /// The operation code.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        Opcode(self.get(Self::OPCODE) as u16)
    }
}
