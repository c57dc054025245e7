//! Endpoints that move from one bundle to another.

use crate::bundle::Bundle;
use crate::endpoint::{Endpoint, Translation};
use crate::lower::{Event, Listening};
use crate::{EndpointId, Error};

/// An endpoint between two bundles, from [`Bundle::detach`]. Dropped, it is removed.
pub struct Detached {
    own: Endpoint,
    listening: Listening,
    /// Entries of its table of handlers.
    handlers: u16,
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Detached({})", self.own.name)
    }
}

impl Bundle {
    /// Takes an endpoint out of the bundle, to [attach](Self::attach) it to another one (`AM_MoveEndpoint`). Its name,
    /// tag, handlers and event mask go with it. A peer that maps it meanwhile is unreachable for it.
    ///
    /// # Errors
    /// There is no such endpoint. Or it has links, which stay in their bundle: it has mapped peers, or peers have mapped
    /// it. Or it has a segment, which is registered for its bundle.
    pub fn detach(&mut self, endpoint: EndpointId) -> Result<Detached, Error> {
        if self.at(endpoint)?.segment.is_some() {
            return Err(Error::InUse { what: "the segment of the endpoint", users: 1 });
        }
        // Links that peers have made lately count.
        self.lower.poll(&mut self.events);
        let links = self.links.iter().flatten().filter(|link| link.endpoint == endpoint).count();
        let fresh = |event: &&Event| matches!(event, Event::Accepted(of, _) if *of == endpoint);
        // The link of a lost mapping may have gone. In another bundle its number would be that of any link.
        let lost = |to: &&Translation| self.link(to.link).is_none();
        let lost = self.at(endpoint)?.translations.iter().flatten().filter(lost).count();
        let users = links + lost + self.events.iter().filter(fresh).count();
        if users > 0 {
            return Err(Error::InUse { what: "links of the endpoint", users });
        }
        let listening = self.lower.take_acceptor(endpoint).ok_or(Error::Endpoint)?;
        let own = self.endpoints.take(endpoint).ok_or(Error::Endpoint)?;
        Ok(Detached { own, listening, handlers: self.options.handlers })
    }
    /// Adds an endpoint that was taken out of another bundle.
    ///
    /// # Errors
    /// The other bundle stands on another device or another way, or has longer tables of handlers. The endpoint comes
    /// back.
    #[allow(clippy::result_large_err)] // the endpoint comes back by value
    pub fn attach(&mut self, detached: Detached) -> Result<EndpointId, (Detached, Error)> {
        let Detached { own, listening, handlers } = detached;
        let id = self.endpoints.fresh();
        let adopted = match handlers <= self.options.handlers {
            true => self.lower.adopt(id, listening, &self.hello()),
            false => Err(listening),
        };
        match adopted {
            Ok(()) => {
                let Endpoint { handlers: mut table, .. } = own;
                table.resize_with(self.options.handlers.into(), || None);
                self.endpoints.put(Endpoint { id, handlers: table, ..own });
                Ok(id)
            }
            Err(listening) => {
                let what = "the other bundle: its device, its way, or its tables of handlers";
                Err((Detached { own, listening, handlers }, Error::InUse { what, users: 1 }))
            }
        }
    }
}
