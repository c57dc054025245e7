//! The networks of an adapter.

use core::any::Any;
use core::ops::{Deref, DerefMut};

use hca_core::{AddressVector, Instant, Qpn};
use hca_fabric::{AutoFabric, Fabric, PathError, PathId, RxBudget, RxOutcome, RxPacket, ShmFabric};

/// The networks of an adapter: one of packets, which this derefs to, and where there is one that of the peers on this
/// machine.
pub(crate) enum Network {
    /// Packets alone.
    Packets(Box<dyn Fabric>),
    /// Peers on this machine alone, which exchange packets, too.
    Near(Box<ShmFabric>),
    /// Both.
    Both(Box<AutoFabric>),
}

impl Network {
    pub(crate) fn new(mut fabric: Box<dyn Fabric>) -> Self {
        let found = &mut *fabric as &mut dyn Any;
        if found.downcast_ref().is_some_and(ShmFabric::has_messages) {
            return Self::Near(expect(fabric));
        }
        if found.downcast_mut().is_some_and(|auto: &mut AutoFabric| auto.near().is_some()) {
            return Self::Both(expect(fabric));
        }
        Self::Packets(fabric)
    }

    /// Whether there is a network of the peers on this machine.
    #[inline(always)]
    pub(crate) fn has_near(&self) -> bool {
        !matches!(self, Self::Packets(_))
    }

    /// The network of the peers on this machine, if there is one.
    #[inline(always)]
    pub(crate) fn near(&mut self) -> Option<&mut ShmFabric> {
        match self {
            Self::Near(near) => Some(near),
            Self::Both(both) => both.near(),
            Self::Packets(_) => None,
        }
    }

    /// Opens a path for messages within [`near`](Self::near). `None`: the peer gets packets.
    pub(crate) fn open_messages(
        &mut self,
        av: &AddressVector,
        peer: Qpn,
    ) -> Result<Option<PathId>, PathError> {
        match self {
            Self::Near(near) => near.open_messages(av, peer),
            Self::Both(both) => both.open_messages(av, peer),
            Self::Packets(_) => Ok(None),
        }
    }

    /// Receives the packets that do not come [near](Self::near).
    #[inline]
    pub(crate) fn recv_packets(
        &mut self,
        now: Instant,
        budget: RxBudget,
        sink: &mut dyn FnMut(&RxPacket<'_>),
    ) -> RxOutcome {
        match self {
            Self::Near(_) => RxOutcome::default(),
            Self::Both(both) => both.recv(now, budget, sink),
            Self::Packets(fabric) => fabric.recv(now, budget, sink),
        }
    }
}

/// The fabric of this type.
fn expect<F: Fabric>(fabric: Box<dyn Fabric>) -> Box<F> {
    let fabric: Box<dyn Any> = fabric;
    fabric.downcast().expect("it was found to be one")
}

impl Deref for Network {
    type Target = dyn Fabric;
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Packets(fabric) => &**fabric,
            Self::Near(near) => &**near,
            Self::Both(both) => &**both,
        }
    }
}
impl DerefMut for Network {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Packets(fabric) => &mut **fabric,
            Self::Near(near) => &mut **near,
            Self::Both(both) => &mut **both,
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_fabric::ShmOptions;

    use super::*;

    #[test]
    fn the_network_of_near_peers_is_found_where_it_has_messages() {
        let domain = format!("boxes.{}", std::process::id());
        let open = |messages| {
            let options = ShmOptions { messages, ..ShmOptions::default() };
            Box::new(ShmFabric::open(&domain, &options).expect("there is shared memory")) as Box<dyn Fabric>
        };
        assert!(Network::new(open(true)).near().is_some());
        assert!(Network::new(open(false)).near().is_none(), "it has no messages");
    }
}
