//! Endpoints: a tag, a table of handlers, a table of translations, a segment; and links.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lower::{Kept, LinkId};
use crate::message::{Message, Returned, Token};
use crate::segment::{Remote, Segment};
use crate::wire::{Hello, MAX_HEAD_BYTES};
use crate::{EndpointName, EventMask, Tag};

/// An endpoint of a bundle: its place there, and a generation that no other endpoint of the process has. The id of an
/// endpoint that was freed is refused, also once another one has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointId {
    place: u32,
    generation: u64,
}

impl EndpointId {
    #[inline]
    pub(crate) fn place(self) -> usize {
        self.place as usize
    }
}

pub(crate) type Handler = Box<dyn FnMut(&Message<'_>, Token<'_>) + Send>;
pub(crate) type ErrorHandler = Box<dyn FnMut(&Returned<'_>) + Send>;

pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) name: EndpointName,
    pub(crate) tag: Tag,
    pub(crate) mask: EventMask,
    pub(crate) segment: Option<Segment>,
    pub(crate) handlers: Vec<Option<Handler>>,
    pub(crate) on_return: Option<ErrorHandler>,
    /// The links of the translation table.
    pub(crate) translations: Vec<Option<Translation>>,
}

impl Endpoint {
    /// No two endpoints have one generation.
    #[inline]
    fn is(&self, id: EndpointId) -> bool {
        self.id.generation == id.generation
    }
}

/// The endpoints of a bundle, by their places. The place of one that was freed is used again.
#[derive(Default)]
pub(crate) struct Endpoints(Vec<Option<Endpoint>>);

impl Endpoints {
    /// The id for an endpoint that is about to be [put](Self::put).
    pub(crate) fn fresh(&self) -> EndpointId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let place = u32::try_from(place).expect("each endpoint has a thread");
        EndpointId { place, generation: LAST.fetch_add(1, Ordering::Relaxed) }
    }
    pub(crate) fn put(&mut self, endpoint: Endpoint) {
        let place = endpoint.id.place();
        if place >= self.0.len() {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place] = Some(endpoint);
    }
    #[inline]
    pub(crate) fn at(&self, id: EndpointId) -> Option<&Endpoint> {
        self.0.get(id.place())?.as_ref().filter(|own| own.is(id))
    }
    #[inline]
    pub(crate) fn at_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.0.get_mut(id.place())?.as_mut().filter(|own| own.is(id))
    }
    pub(crate) fn take(&mut self, id: EndpointId) -> Option<Endpoint> {
        self.0.get_mut(id.place())?.take_if(|own| own.is(id))
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter().flatten()
    }
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
    pub(crate) endpoint: EndpointId,
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
    #[inline]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Way;

    fn endpoint(id: EndpointId) -> Endpoint {
        Endpoint {
            id,
            name: EndpointName { way: Way::Verbs, host: std::net::Ipv4Addr::LOCALHOST.into(), id: 1 },
            tag: Tag::NONE,
            mask: EventMask::None,
            segment: None,
            handlers: Vec::new(),
            on_return: None,
            translations: Vec::new(),
        }
    }

    #[test]
    fn a_freed_place_is_used_again_and_its_first_id_is_refused() {
        let mut table = Endpoints::default();
        let stays = table.fresh();
        table.put(endpoint(stays));
        let mut before = None;
        for _ in 0..100 {
            let id = table.fresh();
            table.put(endpoint(id));
            if let Some(stale) = before.replace(id) {
                assert!(table.at(stale).is_none() && table.at_mut(stale).is_none());
                assert!(table.take(stale).is_none(), "it would take another one");
            }
            assert!(table.at(id).is_some());
            assert!(table.take(id).is_some() && table.take(id).is_none());
        }
        assert_eq!((table.0.len(), table.iter().count()), (2, 1));
        assert!(table.at(stays).is_some());
        // Nor is it an id of another bundle's.
        let mut other = Endpoints::default();
        let first = other.fresh();
        other.put(endpoint(first));
        assert!(other.at(stays).is_none());
    }
}
