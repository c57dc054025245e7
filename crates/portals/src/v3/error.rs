//! Return codes, and the errors that carry them.

use std::fmt;

use hca_matching::Error as Refusal;

use crate::DirectoryError;

hca_core::debug_as_display!(Error);

/// The return codes of 3.3 (`PTL_*`), in the order of the C interface's reference implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReturnCode {
    /// Success.
    Ok = 0,
    /// An index beyond the access control list.
    AcIndexInvalid = 1,
    /// An event was taken, and some before it were lost: [`Got::dropped`](super::Got::dropped).
    EqDropped = 2,
    /// There is no event: `None`.
    EqEmpty = 3,
    /// No such event queue.
    EqInvalid = 4,
    /// A lower layer failed: the device, or the directory of processes.
    Fail = 5,
    /// No such handle.
    HandleInvalid = 6,
    /// No such interface. Can't occur: each node has one interface of this kind.
    IfaceInvalid = 7,
    /// An invalid descriptor, or a range outside of a descriptor's memory.
    MdIllegal = 8,
    /// No such descriptor, or one that is inactive.
    MdInvalid = 9,
    /// Operations on the descriptor are under way.
    MdInUse = 10,
    /// The update was not made: the queue is not empty, or operations on the descriptor are under way.
    MdNoUpdate = 11,
    /// No such match entry.
    MeInvalid = 12,
    /// The entry has a descriptor, or operations on it are under way.
    MeInUse = 13,
    /// The list has the maximum number of entries.
    MeListTooLong = 14,
    /// No such interface. Can't occur: a call borrows its interface.
    NiInvalid = 15,
    /// The library is not initialized. Can't occur: without a node there is no interface to call.
    NoInit = 16,
    /// A limit of the interface is reached, or there is no memory.
    NoSpace = 17,
    /// The process number is not available.
    PidInvalid = 18,
    /// No such process.
    ProcessInvalid = 19,
    /// All portals are in use.
    PtFull = 20,
    /// No such portal.
    PtIndexInvalid = 21,
    /// Memory that the interface can't reach.
    Segv = 22,
    /// No such status register.
    SrIndexInvalid = 23,
    /// Unknown. Can't occur.
    UnknownError = 24,
}

impl ReturnCode {
    /// The code's name in the C interface.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "PTL_OK",
            Self::AcIndexInvalid => "PTL_AC_INDEX_INVALID",
            Self::EqDropped => "PTL_EQ_DROPPED",
            Self::EqEmpty => "PTL_EQ_EMPTY",
            Self::EqInvalid => "PTL_EQ_INVALID",
            Self::Fail => "PTL_FAIL",
            Self::HandleInvalid => "PTL_HANDLE_INVALID",
            Self::IfaceInvalid => "PTL_IFACE_INVALID",
            Self::MdIllegal => "PTL_MD_ILLEGAL",
            Self::MdInvalid => "PTL_MD_INVALID",
            Self::MdInUse => "PTL_MD_IN_USE",
            Self::MdNoUpdate => "PTL_MD_NO_UPDATE",
            Self::MeInvalid => "PTL_ME_INVALID",
            Self::MeInUse => "PTL_ME_IN_USE",
            Self::MeListTooLong => "PTL_ME_LIST_TOO_LONG",
            Self::NiInvalid => "PTL_NI_INVALID",
            Self::NoInit => "PTL_NO_INIT",
            Self::NoSpace => "PTL_NO_SPACE",
            Self::PidInvalid => "PTL_PID_INVALID",
            Self::ProcessInvalid => "PTL_PROCESS_INVALID",
            Self::PtFull => "PTL_PT_FULL",
            Self::PtIndexInvalid => "PTL_PT_INDEX_INVALID",
            Self::Segv => "PTL_SEGV",
            Self::SrIndexInvalid => "PTL_SR_INDEX_INVALID",
            Self::UnknownError => "PTL_UNKNOWN_ERROR",
        }
    }
    /// The remedy.
    const fn advice(self) -> &'static str {
        match self {
            Self::EqInvalid => "name an event queue that this interface allocated and that was not freed",
            Self::MdInvalid => {
                "name a descriptor of this interface that was not unlinked or used up, or update it with a threshold"
            }
            Self::MeInvalid => "name an entry of this interface that was not unlinked or used up",
            Self::HandleInvalid => "ask the interface that gave the handle out",
            Self::MdInUse | Self::MeInUse => "take the events of what is under way first",
            Self::MdNoUpdate => "take what is in the queue, then update again",
            Self::MdIllegal => "describe memory and options as the limits of the interface allow",
            Self::MeListTooLong | Self::NoSpace | Self::PtFull => {
                "unlink or free what is no longer needed, or open the interface with higher limits"
            }
            Self::PtIndexInvalid => "name a portal up to the limit max_pt_index",
            Self::AcIndexInvalid => "name an entry up to the limit max_ac_index",
            Self::ProcessInvalid => "name a process of the job by its own node and process numbers",
            Self::PidInvalid => "ask for the number of the node, or for any",
            Self::Segv => "allocate or register the memory with the interface's own node",
            Self::SrIndexInvalid => "name one of the registers of StatusRegister",
            Self::Ok
            | Self::EqDropped
            | Self::EqEmpty
            | Self::Fail
            | Self::IfaceInvalid
            | Self::NiInvalid
            | Self::NoInit
            | Self::UnknownError => "see the cause",
        }
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a call was refused; nothing has changed then.
#[derive(thiserror::Error)]
#[error("{call}: {source} ({code}; {})", code.advice())]
pub struct Error {
    call: &'static str,
    code: ReturnCode,
    source: crate::Error,
}

impl Error {
    /// The interface's own code.
    pub fn code(&self) -> ReturnCode {
        self.code
    }
    /// The interface's function that was called.
    pub fn call(&self) -> &'static str {
        self.call
    }
    /// The cause of this return code.
    pub fn cause(&self) -> &crate::Error {
        &self.source
    }
    pub(super) fn new(call: &'static str, source: impl Into<crate::Error>) -> Self {
        let source = source.into();
        Self { call, code: code_of(&source), source }
    }
    /// With a code of the call's own.
    pub(super) fn with_code(self, code: ReturnCode) -> Self {
        Self { code, ..self }
    }
    pub(super) fn argument(
        call: &'static str,
        code: ReturnCode,
        argument: &'static str,
        why: &'static str,
    ) -> Self {
        Self { call, code, source: crate::Error::Argument { argument, why } }
    }
    /// Something is named that is not there.
    pub(super) fn handle(call: &'static str, argument: &'static str) -> Self {
        Self::new(call, Refusal::Handle { argument })
    }
}

fn code_of(error: &crate::Error) -> ReturnCode {
    match error {
        crate::Error::Refused(refusal) => code_of_refusal(refusal),
        crate::Error::Target { .. } => ReturnCode::ProcessInvalid,
        crate::Error::Directory(DirectoryError::Asking { .. }) => ReturnCode::Fail,
        crate::Error::Directory(_) => ReturnCode::ProcessInvalid,
        crate::Error::PidInUse { .. } => ReturnCode::PidInvalid,
        crate::Error::Argument { argument, .. } => code_of_argument(argument),
        crate::Error::Memory(_) => ReturnCode::NoSpace,
        _ => ReturnCode::Fail,
    }
}

fn code_of_refusal(refusal: &Refusal) -> ReturnCode {
    match *refusal {
        Refusal::Handle { argument } => match argument {
            "eq" | "eqs" | "test" => ReturnCode::EqInvalid,
            "entry" | "place" => ReturnCode::MeInvalid,
            "md" | "reply" => ReturnCode::MdInvalid,
            _ => ReturnCode::HandleInvalid,
        },
        Refusal::PtIndex { .. } => ReturnCode::PtIndexInvalid,
        Refusal::PtFull { .. } => ReturnCode::PtFull,
        Refusal::NoSpace { .. } => ReturnCode::NoSpace,
        Refusal::ListTooLong { .. } => ReturnCode::MeListTooLong,
        Refusal::InUse { argument: "md", .. } => ReturnCode::MdInUse,
        Refusal::InUse { .. } => ReturnCode::MeInUse,
        Refusal::TooLarge { argument, .. } => code_of_argument(argument),
        Refusal::Range { .. } | Refusal::Options { .. } => ReturnCode::MdIllegal,
        Refusal::Inactive { .. } => ReturnCode::MdInvalid,
        Refusal::NoUpdate { .. } => ReturnCode::MdNoUpdate,
        _ => ReturnCode::Fail,
    }
}

fn code_of_argument(argument: &str) -> ReturnCode {
    match argument {
        "ac_index" => ReturnCode::AcIndexInvalid,
        "pt_index" => ReturnCode::PtIndexInvalid,
        "count" => ReturnCode::NoSpace,
        "memory" => ReturnCode::Segv,
        "length" | "md" => ReturnCode::MdIllegal,
        _ => ReturnCode::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbered_in_order() {
        assert_eq!(ReturnCode::Ok as u8, 0);
        assert_eq!(ReturnCode::UnknownError as u8, 24);
        assert_eq!(ReturnCode::MdNoUpdate.to_string(), "PTL_MD_NO_UPDATE");
    }

    #[test]
    fn an_error_names_call_and_argument_and_says_why_and_what_to_do() {
        let told = Error::handle("PtlMDUnlink", "md").to_string();
        assert!(
            told.starts_with(
                "PtlMDUnlink: md names nothing that is there (PTL_MD_INVALID; name a descriptor"
            )
        );
    }
}
