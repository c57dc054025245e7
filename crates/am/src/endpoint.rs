//! Endpoints: a tag, a table of handlers, a table of translations, a segment; and links.

use std::collections::VecDeque;

use crate::lower::{Kept, LinkId};
use crate::message::{Message, Returned, Token};
use crate::segment::{Remote, Segment};
use crate::wire::{Hello, MAX_HEAD_BYTES};
use crate::{EndpointName, EventMask, Tag};

/// An endpoint of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointId(pub(crate) usize);

pub(crate) type Handler = Box<dyn FnMut(&Message<'_>, Token<'_>) + Send>;
pub(crate) type ErrorHandler = Box<dyn FnMut(&Returned<'_>) + Send>;

pub(crate) struct Endpoint {
    pub(crate) name: EndpointName,
    pub(crate) tag: Tag,
    pub(crate) mask: EventMask,
    pub(crate) segment: Option<Segment>,
    pub(crate) handlers: Vec<Option<Handler>>,
    pub(crate) on_return: Option<ErrorHandler>,
    /// The links of the translation table.
    pub(crate) translations: Vec<Option<Translation>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Translation {
    pub(crate) name: EndpointName,
    pub(crate) tag: Tag,
    pub(crate) link: LinkId,
}

/// A link, as the bundle sees it.
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) endpoint: usize,
    /// The peer's hello, once it has come.
    pub(crate) peer: Option<Hello>,
    pub(crate) side: Side,
}

pub(crate) enum Side {
    /// This side has mapped the peer.
    Mapped(Mapped),
    /// The peer has mapped this side. The number is of requests that have ended, and of which the peer was not told.
    Accepted(u16),
}

pub(crate) struct Mapped {
    pub(crate) index: usize,
    /// Requests that were not answered, oldest first.
    pub(crate) open: VecDeque<Open>,
    pub(crate) credits: usize,
    pub(crate) down: bool,
}

impl Link {
    pub(crate) fn segment(&self) -> Remote {
        self.peer.map_or(Remote::default(), |peer| Remote {
            addr: peer.segment_addr,
            len: peer.segment_len,
            key: peer.segment_key,
        })
    }
}

/// Payloads of up to so many bytes are copied beside the head.
pub(crate) const SMALL: usize = 64;

/// A request that was not answered, as it was sent.
pub(crate) struct Open {
    bytes: [u8; MAX_HEAD_BYTES + SMALL],
    len: u8,
    pub(crate) kept: Option<Kept>,
}

impl Open {
    #[inline]
    pub(crate) fn new(head: &[u8], payload: &[u8], kept: Option<Kept>) -> Self {
        let mut open = Self { bytes: [0; MAX_HEAD_BYTES + SMALL], len: head.len() as u8, kept };
        open.bytes[..head.len()].copy_from_slice(head);
        if kept.is_none() {
            let end = head.len() + payload.len();
            open.bytes[head.len()..end].copy_from_slice(payload);
            open.len = end as u8;
        }
        open
    }
    /// The message, if it is not kept below.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}
