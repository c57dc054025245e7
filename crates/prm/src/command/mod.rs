//! Commands: the layout of each one's input and output.
//!
//! Every input begins with [`CmdIn`], every output with [`CmdOut`], and each command's layouts include these fields.
//! `new` of an input sets the operation code. A list of any length behind a layout, such as the addresses of pages, is
//! not a field of the layout; see [`pas`](crate::pas).

use crate::layout;
use crate::layout::{Layout, LayoutInfo};
use crate::opcode::Opcode;

/// The input of a command.
pub trait Command: Layout {
    /// The command's operation code.
    const OPCODE: Opcode;
    /// The layout of the command's output.
    type Output: Layout;
}

/// The description of a command without its types: for tools that show commands, and for code that checks received
/// commands.
#[derive(Clone, Copy, Debug)]
pub struct CommandInfo {
    /// The command's operation code.
    pub opcode: Opcode,
    /// The layout of the input, without the list that follows some inputs.
    pub input: LayoutInfo,
    /// The layout of the output, without the list that follows some outputs.
    pub output: LayoutInfo,
}

impl CommandInfo {
    /// The description of `C`.
    #[must_use]
    pub const fn of<C: Command>() -> Self {
        Self { opcode: C::OPCODE, input: LayoutInfo::of::<C>(), output: LayoutInfo::of::<C::Output>() }
    }

    /// The command of this operation code, if this crate describes its layouts.
    #[must_use]
    pub fn find(opcode: Opcode) -> Option<&'static Self> {
        Self::all().find(|info| info.opcode == opcode)
    }

    /// All commands whose layouts this crate describes.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        let modules = [
            counter::INFOS,
            cq::INFOS,
            eq::INFOS,
            ethernet::INFOS,
            hca::INFOS,
            mkey::INFOS,
            qp::INFOS,
            resource::INFOS,
            srq::INFOS,
            vport::INFOS,
        ];
        modules.into_iter().flatten()
    }
}

/// Declares commands: the operation code, the layout of the input, the layout of the output. The fields that all
/// inputs or all outputs begin with are added. Without one of its own, the output is a [`StatusOut`].
macro_rules! commands {
    (list $list:ident; $(
        $(#[$meta:meta])*
        $opcode:ident => $input:ident: $input_size:literal { $($input_fields:tt)* }
        $(, $output:ident: $output_size:literal { $($output_fields:tt)* })?
    )*) => {
        $crate::layout! {
            list $list;
            $(
                $(#[$meta])*
                pub struct $input: $input_size, opcode $opcode {
                    /// The operation code.
                    OPCODE: 0x00 [31:16],
                    /// A variant of the command.
                    OP_MOD: 0x04 [15:0],
                    $($input_fields)*
                }

                $(#[doc = concat!("Output of [`", stringify!($input), "`].")]
                pub struct $output: $output_size {
                    /// A [`CmdStatus`](crate::CmdStatus) code.
                    STATUS: 0x00 [31:24],
                    /// Where the firmware found a fault, in its own terms; for those who can ask its makers.
                    SYNDROME: 0x04 [31:0],
                    $($output_fields)*
                })?
            )*
        }
        pub(crate) const INFOS: &[$crate::command::CommandInfo] = &[$($crate::command::CommandInfo::of::<$input>()),*];

        $(
            impl $crate::command::Command for $input {
                const OPCODE: $crate::Opcode = $crate::Opcode::$opcode;
                type Output = commands!(@output $($output)?);
            }
        )*
    };
    (@output) => { $crate::command::StatusOut };
    (@output $output:ident) => { $output };
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

    /// The beginning of every command's input.
    pub struct CmdIn: 0x08 {
        /// The operation code, see [`CmdIn::opcode`].
        OPCODE: 0x00 [31:16],
        /// A variant of the command.
        OP_MOD: 0x04 [15:0],
    }

    /// The beginning of every command's output.
    pub struct CmdOut: 0x08 {
        /// A [`CmdStatus`](crate::CmdStatus) code.
        STATUS: 0x00 [31:24],
        /// Where the firmware found a fault, in its own terms.
        SYNDROME: 0x04 [31:0],
    }

    /// The output of a command that tells nothing else.
    pub struct StatusOut: 0x10 {
        /// A [`CmdStatus`](crate::CmdStatus) code.
        STATUS: 0x00 [31:24],
        /// Where the firmware found a fault, in its own terms.
        SYNDROME: 0x04 [31:0],
    }
}

impl CmdIn {
    /// The operation code of the command.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        Opcode(self.get(Self::OPCODE) as u16)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_command_has_an_operation_code_of_its_own_and_begins_as_all_do() {
        let mut codes = HashSet::new();
        for info in CommandInfo::all() {
            assert!(codes.insert(info.opcode), "{}", info.opcode);
            assert!(info.opcode.name().is_some(), "{}", info.opcode);
            for (layout, header) in [(&info.input, CmdIn::FIELDS), (&info.output, CmdOut::FIELDS)] {
                for (field, wanted) in layout.fields.iter().zip(header) {
                    assert_eq!((field.name, field.start), (wanted.name, wanted.start), "{}", layout.name);
                }
            }
            assert!(info.input.size >= 16 && info.output.size >= 8, "{}", info.opcode);
            assert_eq!(CommandInfo::find(info.opcode).unwrap().input.name, info.input.name);
        }
        assert!(CommandInfo::find(Opcode(0)).is_none());
    }

    #[test]
    fn a_command_is_named_in_its_layouts_as_in_its_operation_code() {
        for info in CommandInfo::all() {
            let layout = info.input.name.strip_suffix("In").unwrap().to_lowercase();
            let name = info.opcode.name().unwrap().replace('_', "").to_lowercase();
            let same = match layout.as_str() {
                "qp2err" | "qp2rst" => name == format!("{}qp", &layout[2..]),
                "setfte" | "deletefte" => name == layout.replace("fte", "flowtableentry"),
                _ => name == layout,
            };
            assert!(same, "{} is {}", info.input.name, info.opcode);
            let output = info.output.name.strip_suffix("Out").unwrap();
            assert!(["Status", info.input.name.strip_suffix("In").unwrap()].contains(&output), "{output}");
        }
    }
}
