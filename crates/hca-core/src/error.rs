//! Errors of the control path and of posting.

use thiserror::Error;

use crate::{QpAttrMask, QpState, QpType, WcOpcode};

/// Has `Debug` of error types print what `Display` does. A `main` that returns a `Result` prints its error by `Debug`, as
/// `unwrap` and `expect` do, and people read the advice in it only so.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_display {
    ($($t:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $t {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

debug_as_display!(DeviceError, TransitionError, PostErrorKind, PostError);

fn indices(used: &[u32]) -> String {
    used.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// An error of the control path.
#[derive(Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device's limit of objects of this kind is reached.
    #[error(
        "no room for another {what}: the device's limit is {limit}; destroy one, or open the device with a larger limit"
    )]
    LimitReached {
        /// The kind of object.
        what: &'static str,
        /// The device's limit.
        limit: u64,
    },
    /// A requested number is outside the range in the device's attributes.
    #[error("{what} of {value} is out of range: this device takes {min} to {max}")]
    OutOfRange {
        /// The argument.
        what: &'static str,
        /// The given value.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The port's GID table has no entry with this index.
    #[error(
        "the port's GID table has no entry {index}; it has {}, as `hca devinfo` shows", indices(.used)
    )]
    UnusedGidIndex {
        /// The given index.
        index: u32,
        /// The indices that are in use.
        used: Vec<u32>,
    },
    /// The handle names no object (any more).
    #[error("unknown {what} {handle}: it was never created, or was destroyed")]
    UnknownHandle {
        /// Kind of object.
        what: &'static str,
        /// The index in it.
        handle: u32,
    },
    /// Other objects still use this one.
    #[error("{what} is in use by {users} other objects; destroy these first")]
    InUse {
        /// Kind of object.
        what: &'static str,
        /// The number of objects that use it.
        users: u64,
    },
    /// The completion queue has a Portals engine already.
    #[error(
        "completion queue {cq} has a Portals engine already; detach that first, or attach to another queue"
    )]
    HasEngine {
        /// The queue's index.
        cq: u32,
    },
    /// The objects belong to different protection domains.
    #[error("{what} belongs to another protection domain; create both in one")]
    ForeignPd {
        /// Kind of object.
        what: &'static str,
    },
    /// A queue pair transition was refused.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The device does not support the operation.
    #[error("this device does not support {what}")]
    Unsupported {
        /// The requested feature or size.
        what: &'static str,
    },
    /// The address can't be reached from this device.
    #[error("no path from this device to {gid}: {why}")]
    NoPath {
        /// The peer.
        gid: crate::Gid,
        /// The rule.
        why: &'static str,
    },
    /// The membership of a multicast group is refused.
    #[error("multicast group {group}: {why}")]
    Multicast {
        /// The group.
        group: crate::Gid,
        /// The rule, and the remedy.
        why: &'static str,
    },
    /// The system has no memory of this size.
    #[error(
        "{bytes} bytes of memory can't be had; ask for less, or raise the limit of the process or container"
    )]
    OutOfMemory {
        /// The requested feature or size.
        bytes: u64,
    },
    /// The region is gone, and a peer may still change its memory.
    #[error(
        "a process that was dropped may still change the memory of this region; do not free the memory while that \
         process lives"
    )]
    Exposed,
    /// The adapter refused a command.
    #[error("the adapter refused {command}: {reason} (status {status:#x}, syndrome {syndrome:#x}): {remedy}")]
    Refused {
        /// The command's name in the adapter's manual.
        command: &'static str,
        /// The meaning of the status.
        reason: &'static str,
        /// The status.
        status: u32,
        /// The adapter's own code for the fault; its manufacturer documents it.
        syndrome: u32,
        /// The remedy.
        remedy: &'static str,
    },
    /// The device has failed for good.
    #[error("the device is dead: {why}; close it, and open it again, which resets it")]
    Dead {
        /// The reason.
        why: &'static str,
    },
    /// The operating system refused the operation.
    #[error("{doing}: {source}{}", remedy(source))]
    Io {
        /// The operation and its object.
        doing: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl DeviceError {
    /// Refuses a value that is out of range.
    ///
    /// # Errors
    /// [`OutOfRange`](Self::OutOfRange), unless `min <= value <= max`.
    pub fn unless_within(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::OutOfRange { what, value: value.into(), min: min.into(), max: max.into() })
    }
    /// Refuses to destroy what others use.
    ///
    /// # Errors
    /// [`InUse`](Self::InUse), unless there are no users.
    pub fn unless_unused(what: &'static str, users: impl Into<u64>) -> Result<(), Self> {
        match users.into() {
            0 => Ok(()),
            users => Err(Self::InUse { what, users }),
        }
    }
}

/// An error of a queue pair's state transition.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// The transition does not exist.
    #[error("a {qp_type:?} queue pair can't go from {from:?} to {to:?}; it goes to {}", crate::qp::Targets(*qp_type, *from))]
    Illegal {
        /// Service.
        qp_type: QpType,
        /// The present state.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// Required attributes are missing.
    #[error("{from:?} to {to:?} also needs {missing:?}")]
    Missing {
        /// The present state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The attributes that are missing.
        missing: QpAttrMask,
    },
    /// Attributes were given that can't change in this transition.
    #[error("{from:?} to {to:?} can't set {unexpected:?}")]
    Unexpected {
        /// The present state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The attributes that this transition does not take.
        unexpected: QpAttrMask,
    },
    /// An attribute's value is out of range.
    #[error("{what} of {value} is out of range (at most {max})")]
    Value {
        /// The attribute.
        what: &'static str,
        /// The given value.
        value: u64,
        /// The most.
        max: u64,
    },
}

/// The reason why a work request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue is full: as many requests are outstanding as it has entries.
    #[error("the queue is full: {depth} requests are outstanding; poll completions first")]
    QueueFull {
        /// Depth of the queue.
        depth: u32,
    },
    /// The queue pair's state does not take requests.
    #[error(
        "a queue pair in state {0:?} takes no such request: it takes receive requests from INIT on, and send requests from RTS on"
    )]
    WrongState(QpState),
    /// The request has more entries than the queue was created for.
    #[error("{count} scatter/gather entries, but the queue was created for {max}: create it with more")]
    TooManySges {
        /// Entries in the request, at most 65,535.
        count: u16,
        /// Entries allowed.
        max: u32,
    },
    /// The request has more inline bytes than the queue was created for.
    #[error(
        "{len} inline bytes, but the queue was created for {max}: create it with more, or send from registered memory"
    )]
    InlineTooLong {
        /// Bytes in the request, at most 65,535.
        len: u16,
        /// Bytes allowed.
        max: u32,
    },
    /// The message is longer than the service carries.
    #[error("a message of {len} bytes; this service carries at most {}: send it in pieces", 1_u64 << max_log2)]
    MessageTooLong {
        /// Bytes in the request, at most 4,294,967,295.
        len: u32,
        /// Bytes allowed, as a power of two.
        max_log2: u8,
    },
    /// The service does not offer the operation (or not with this payload).
    #[error("a {qp_type:?} queue pair does not offer {op:?} with such a list; RC offers all operations")]
    Unsupported {
        /// Service.
        qp_type: QpType,
        /// The operation.
        op: WcOpcode,
    },
    /// A datagram or an XRC request has no destination of its kind, or a request of another service has one.
    #[error(
        "UD needs the destination of a datagram, XRC the number of a shared receive queue, and other services neither"
    )]
    Destination,
    /// The address handle of a datagram is invalid for this queue pair.
    #[error(
        "the address handle was destroyed, or belongs to another protection domain: create one in the queue pair's domain"
    )]
    AddressHandle,
    /// The local memory of an atomic operation is not exactly 8 bytes.
    #[error("an atomic returns 8 bytes, but the local list has {len}")]
    AtomicLength {
        /// Bytes in the local list, at most 4,294,967,295.
        len: u32,
    },
    /// The queue pair takes receive requests from a shared receive queue.
    #[error("this queue pair takes its receive requests from a shared receive queue; post there")]
    UsesSrq,
    /// The queue pair or queue was destroyed.
    #[error("the queue was destroyed; build a new one")]
    Destroyed,
}
// It is returned in a register: by a pointer to it, all that a post calls would keep that at hand.
const _: () = assert!(size_of::<Result<(), PostErrorKind>>() == 8);

impl PostErrorKind {
    /// [`TooManySges`](Self::TooManySges), of a request with so many entries.
    #[must_use]
    pub fn too_many_sges(count: usize, max: u32) -> Self {
        Self::TooManySges { count: count.try_into().unwrap_or(u16::MAX), max }
    }
    /// [`InlineTooLong`](Self::InlineTooLong), of a request with so many bytes.
    #[must_use]
    pub fn inline_too_long(len: usize, max: u32) -> Self {
        Self::InlineTooLong { len: len.try_into().unwrap_or(u16::MAX), max }
    }
    /// [`MessageTooLong`](Self::MessageTooLong), of a request with so many bytes. `max` is a power of two.
    #[must_use]
    pub fn message_too_long(len: u64, max: u64) -> Self {
        let max_log2 = max.checked_ilog2().unwrap_or(0) as u8;
        Self::MessageTooLong { len: len.try_into().unwrap_or(u32::MAX), max_log2 }
    }
    /// [`AtomicLength`](Self::AtomicLength), of a request with so many bytes.
    #[must_use]
    pub fn atomic_length(len: u64) -> Self {
        Self::AtomicLength { len: len.try_into().unwrap_or(u32::MAX) }
    }
}

/// The error of a batch that was not taken as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("work request {accepted} of the batch: {kind}")]
pub struct PostError {
    /// The number of taken requests: the requests before this index were taken, the others were not.
    pub accepted: usize,
    /// The reason.
    pub kind: PostErrorKind,
}

/// The remedy for a reached limit of descriptors or file sizes, of the process or the system, as the end of a message;
/// empty for any other error.
pub fn remedy(source: &std::io::Error) -> &'static str {
    // The same numbers on every architecture of Linux.
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const EFBIG: i32 = 27;
    match source.raw_os_error() {
        Some(EMFILE) => "; raise this process's limit of descriptors (ulimit -n, RLIMIT_NOFILE)",
        Some(ENFILE) => "; raise the system's limit of descriptors (sysctl fs.file-max)",
        Some(EFBIG) => {
            "; raise this process's limit of file sizes (ulimit -f, RLIMIT_FSIZE), which also limits files in memory"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_tells_its_remedy() {
        // The words before it are the system's.
        let remedy = |number| {
            let source = std::io::Error::from_raw_os_error(number);
            let words = format!("opening a socket: {source}");
            let said = DeviceError::Io { doing: "opening a socket", source }.to_string();
            said.strip_prefix(&words).expect("the operation and the reason come first").to_owned()
        };
        assert!(remedy(24).starts_with("; raise this process's limit"));
        assert!(remedy(23).contains("fs.file-max"));
        assert!(remedy(27).contains("ulimit -f"));
        assert_eq!(remedy(13), "");
    }
}
