//! Marks between the parts of a short request and its reply over VIs, by which benches measure each part. Without the
//! feature `instrument` the marks do nothing.

/// A part of a request and its reply, at the side that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Finding the link and a credit, and keeping the request until it is answered.
    SendBookkeeping,
    /// Writing the message and its descriptor.
    BuildSend,
    /// Posting a send descriptor (`VipPostSend`).
    PostSend,
    /// Looking at the completion queue of receives (`VipCQDone`).
    CqDoneReceive,
    /// Taking a completed receive descriptor (`VipRecvDone`).
    RecvDone,
    /// Copying the message out of its place, and giving the credit back.
    ProcessReceived,
    /// Parsing a message.
    ReadData,
    /// Finding and calling the handler.
    Act,
    /// Writing a receive descriptor anew.
    RecycleReceive,
    /// Posting a receive descriptor (`VipPostRecv`).
    PostReceive,
    /// Looking at the completion queue of sends (`VipCQDone`).
    CqDoneSend,
    /// Taking a completed send descriptor (`VipSendDone`).
    SendDone,
    /// Making the place of a send descriptor free.
    RecycleSend,
}

impl Part {
    /// All parts, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::SendBookkeeping,
        Self::BuildSend,
        Self::PostSend,
        Self::CqDoneReceive,
        Self::RecvDone,
        Self::ProcessReceived,
        Self::ReadData,
        Self::Act,
        Self::RecycleReceive,
        Self::PostReceive,
        Self::CqDoneSend,
        Self::SendDone,
        Self::RecycleSend,
    ];
}

#[cfg(not(feature = "instrument"))]
mod marks {
    use super::Part;

    #[inline(always)]
    pub(crate) fn begin() {}
    #[inline(always)]
    pub(crate) fn hold() {}
    #[inline(always)]
    pub(crate) fn undo() {}
    #[inline(always)]
    pub(crate) fn mark(_: Part) {}
}

#[cfg(feature = "instrument")]
mod marks {
    use hca_core::marks;

    use super::Part;

    pub(crate) use marks::{begin, hold, undo};

    /// Ends a part: the time since the last mark is counted for it.
    #[inline]
    pub(crate) fn mark(part: Part) {
        marks::mark(part as usize);
    }
}

pub(crate) use marks::*;
