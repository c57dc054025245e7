//! Paths: a peer, and the fields of the IP header on the way to it.

use hca_core::{AddressVector, Instant};

use super::peer::PeerName;
use super::ring::Attributes;
use crate::paths::{PathTable, hop_limit};
use crate::{PathError, PathId};

/// One path.
pub(super) struct Path {
    pub(super) peer: PeerName,
    pub(super) attributes: Attributes,
    /// The link to the peer, as last seen.
    pub(super) link: u32,
    /// Nobody was at the peer's address: when to look again.
    pub(super) retry_at: Instant,
}

/// All paths of an adapter.
pub(super) type Paths = PathTable<(PeerName, Attributes), Path>;

impl Paths {
    /// The path to a peer; those with equal header fields are one.
    pub(super) fn open(
        &mut self,
        peer: PeerName,
        av: &AddressVector,
        link: u32,
    ) -> Result<PathId, PathError> {
        let attributes = Attributes { traffic_class: av.traffic_class, hop_limit: hop_limit(av.hop_limit) };
        let key = (peer, attributes);
        let found = self.find(&key)?;
        let id = found
            .unwrap_or_else(|| self.insert(key, Path { peer, attributes, link, retry_at: Instant::ZERO }));
        self.get_mut(id).expect("it is open").link = link;
        Ok(id)
    }
}
