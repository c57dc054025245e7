//! Links that the program connects itself: for a simulation, whose time stands still within a call, so that nothing in
//! it may wait. Its programs use the calls that return instead of waiting.

use std::collections::VecDeque;

use hca_verbs::Context;

use crate::bundle::{Bundle, Options};
use crate::endpoint::{Link, Mapped, Side, Translation};
use crate::lower::LinkId;
use crate::{EndpointId, EndpointName, Error, Tag, Way};

/// One side of a link that is not connected yet.
#[derive(Debug)]
pub struct HalfLink(LinkId);

impl Bundle {
    /// A bundle whose links are all made by hand.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    #[doc(hidden)]
    pub fn open_by_hand(context: &Context, way: Way, options: &Options) -> Result<Self, Error> {
        Self::build(context, way, options, true)
    }
    /// Adds an endpoint that nobody maps by a connection manager, with a segment.
    ///
    /// # Errors
    /// The device's limits.
    #[doc(hidden)]
    pub fn endpoint_by_hand(&mut self, name: EndpointName, segment: usize) -> Result<EndpointId, Error> {
        let id = self.endpoints.fresh();
        let memory = self.lower.alloc(segment)?;
        self.add_endpoint(id, name);
        self.at_mut(id)?.segment = Some(memory);
        Ok(id)
    }
    /// One side of a link, and its queue pair. `accepts`: requests come over it.
    ///
    /// # Errors
    /// The device's limits.
    #[doc(hidden)]
    pub fn half_link(&mut self, accepts: bool) -> Result<(HalfLink, hca_verbs::Endpoint), Error> {
        let (id, endpoint) = self.lower.half_link(accepts)?;
        Ok((HalfLink(id), endpoint))
    }
    /// Connects a side to the peer's queue pair. `maps`: the index, the name and the tag of the peer, on the side that
    /// sends requests.
    ///
    /// # Errors
    /// There is no such endpoint, or the device refuses.
    #[doc(hidden)]
    pub fn join(
        &mut self,
        half: HalfLink,
        endpoint: EndpointId,
        remote: &hca_verbs::Endpoint,
        maps: Option<(usize, EndpointName, Tag)>,
    ) -> Result<(), Error> {
        let HalfLink(id) = half;
        let own = self.at(endpoint)?;
        let hello = self.hello_of(own, maps.map_or(own.tag, |(_, _, tag)| tag));
        self.lower.join(id, remote, &hello)?;
        let side = match maps {
            None => Side::Accepted(0),
            Some((index, name, tag)) => {
                self.at_mut(endpoint)?.translations[index] = Some(Translation { name, tag, link: id });
                Side::Mapped(Mapped { index, open: VecDeque::new(), credits: 0, down: false })
            }
        };
        self.put(Link { id, endpoint, peer: None, side });
        Ok(())
    }
}
