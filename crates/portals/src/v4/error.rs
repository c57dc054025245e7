//! Return codes of the interface, and the errors that carry them.

use std::fmt;

use hca_matching::Error as Refused;

use crate::DirectoryError;

hca_core::debug_as_display!(Error);

/// The return codes of 4.3, with the numbers of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReturnCode {
    /// `PTL_OK`: success; the call returns `Ok`.
    Ok = 0,
    /// `PTL_ARG_INVALID`: an argument is not valid; [`Error`] names it.
    ArgInvalid = 1,
    /// `PTL_CT_NONE_REACHED`: the timeout passed before a counting event reached its test.
    /// [`Ni::ct_poll`](super::Ni::ct_poll) yields `None`.
    CtNoneReached = 2,
    /// `PTL_EQ_DROPPED`: an event is returned, and others before it were lost: [`Got::dropped`](super::Got::dropped).
    EqDropped = 3,
    /// `PTL_EQ_EMPTY`: no event. [`Ni::eq_get`](super::Ni::eq_get) and [`Ni::eq_poll`](super::Ni::eq_poll) yield
    /// `None`.
    EqEmpty = 4,
    /// `PTL_FAIL`: a lower layer failed: the device, the directory or the operating system.
    Fail = 5,
    /// `PTL_IGNORED`: the map was set before, and stays.
    Ignored = 6,
    /// `PTL_IN_USE`: the object is still in use.
    InUse = 7,
    /// `PTL_LIST_TOO_LONG`: the list has the maximum length.
    ListTooLong = 8,
    /// `PTL_NO_INIT`: never returned here, as a [`Node`](crate::Node) and an [`Ni`](super::Ni) are initialised when
    /// they exist.
    NoInit = 9,
    /// `PTL_NO_SPACE`: a limit is reached, or memory is used up.
    NoSpace = 10,
    /// `PTL_PID_IN_USE`: the process number is in use.
    PidInUse = 11,
    /// `PTL_PT_FULL`: all portals are allocated.
    PtFull = 12,
    /// `PTL_PT_EQ_NEEDED`: flow control needs an event queue.
    PtEqNeeded = 13,
    /// `PTL_PT_IN_USE`: the portal that was asked for is allocated.
    PtInUse = 14,
    /// `PTL_ABORTED`: waiting was ended by [`Ni::abort`](super::Ni::abort).
    Aborted = 15,
}

impl ReturnCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::Ok,
        Self::ArgInvalid,
        Self::CtNoneReached,
        Self::EqDropped,
        Self::EqEmpty,
        Self::Fail,
        Self::Ignored,
        Self::InUse,
        Self::ListTooLong,
        Self::NoInit,
        Self::NoSpace,
        Self::PidInUse,
        Self::PtFull,
        Self::PtEqNeeded,
        Self::PtInUse,
        Self::Aborted,
    ];

    /// The number in C.
    pub const fn as_c(self) -> i32 {
        self as i32
    }
    /// The name in C.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "PTL_OK",
            Self::ArgInvalid => "PTL_ARG_INVALID",
            Self::CtNoneReached => "PTL_CT_NONE_REACHED",
            Self::EqDropped => "PTL_EQ_DROPPED",
            Self::EqEmpty => "PTL_EQ_EMPTY",
            Self::Fail => "PTL_FAIL",
            Self::Ignored => "PTL_IGNORED",
            Self::InUse => "PTL_IN_USE",
            Self::ListTooLong => "PTL_LIST_TOO_LONG",
            Self::NoInit => "PTL_NO_INIT",
            Self::NoSpace => "PTL_NO_SPACE",
            Self::PidInUse => "PTL_PID_IN_USE",
            Self::PtFull => "PTL_PT_FULL",
            Self::PtEqNeeded => "PTL_PT_EQ_NEEDED",
            Self::PtInUse => "PTL_PT_IN_USE",
            Self::Aborted => "PTL_ABORTED",
        }
    }
    /// The remedy.
    const fn advice(self) -> &'static str {
        match self {
            Self::ArgInvalid => "give values that the call's documentation allows",
            Self::Fail => "the log tells more",
            Self::Ignored => "an interface is mapped once: go on with the map that it has",
            Self::InUse => "wait for the events of what is under way, then ask again",
            Self::ListTooLong => "unlink entries, or ask for a larger max_list_size",
            Self::NoSpace => "free some, or ask for larger limits where the interface is made",
            Self::PidInUse => "ask for any process number, or open a node with this one",
            Self::PtFull => "free a portal, or ask for a larger max_pt_index",
            Self::PtEqNeeded => "give the portal an event queue, or leave FLOWCTRL out",
            Self::PtInUse => "ask for any portal, or for another one",
            Self::Aborted => "free what the interface has, and drop it",
            Self::Ok | Self::CtNoneReached | Self::EqDropped | Self::EqEmpty | Self::NoInit => "go on",
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
#[error("{call}: {source}: {code}: {}", .code.advice())]
pub struct Error {
    call: &'static str,
    code: ReturnCode,
    source: Box<crate::Error>,
}

impl Error {
    /// The interface's return code.
    pub fn code(&self) -> ReturnCode {
        self.code
    }
    /// The call, by its name in C.
    pub fn call(&self) -> &'static str {
        self.call
    }
    /// The cause behind the code.
    pub fn reason(&self) -> &crate::Error {
        &self.source
    }
    #[cold]
    pub(super) fn new(call: &'static str, source: crate::Error) -> Self {
        Self { call, code: code_of(&source), source: Box::new(source) }
    }
    #[cold]
    pub(super) fn with_code(call: &'static str, code: ReturnCode, source: crate::Error) -> Self {
        Self { call, code, source: Box::new(source) }
    }
}

fn code_of(error: &crate::Error) -> ReturnCode {
    use crate::Error as E;
    match error {
        E::Refused(refused) => code_of_refusal(refused),
        E::Target { .. } | E::Argument { .. } => ReturnCode::ArgInvalid,
        E::Directory(DirectoryError::Rank { .. } | DirectoryError::Process { .. }) => ReturnCode::ArgInvalid,
        E::InterfaceOpen => ReturnCode::InUse,
        E::PidInUse { .. } => ReturnCode::PidInUse,
        E::MapSet => ReturnCode::Ignored,
        E::Memory(_) => ReturnCode::NoSpace,
        E::Directory(_) | E::Connect(_) | E::DeviceRefused(_) | E::Device | E::Io { .. } => ReturnCode::Fail,
    }
}

fn code_of_refusal(refused: &Refused) -> ReturnCode {
    match refused {
        Refused::PtInUse { .. } => ReturnCode::PtInUse,
        Refused::PtFull { .. } => ReturnCode::PtFull,
        Refused::PtEqNeeded => ReturnCode::PtEqNeeded,
        Refused::NoSpace { .. } => ReturnCode::NoSpace,
        Refused::ListTooLong { .. } => ReturnCode::ListTooLong,
        Refused::InUse { .. } => ReturnCode::InUse,
        Refused::Aborted => ReturnCode::Aborted,
        _ => ReturnCode::ArgInvalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_codes_have_the_numbers_of_c() {
        for (number, code) in ReturnCode::ALL.into_iter().enumerate() {
            assert_eq!(code.as_c(), number as i32, "{code}");
        }
        assert_eq!((ReturnCode::Aborted.as_c(), ReturnCode::NoSpace.as_c()), (15, 10));
    }

    #[test]
    fn an_error_says_what_where_why_and_what_to_do() {
        let error = Error::new("PtlPTAlloc", Refused::PtInUse { pt_index: 7 }.into());
        assert_eq!(
            error.to_string(),
            "PtlPTAlloc: portal 7 is in use: PTL_PT_IN_USE: ask for any portal, or for another one"
        );
        assert_eq!(error.code(), ReturnCode::PtInUse);
    }
}
