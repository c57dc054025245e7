//! Paths: a peer, and the fields of the IP header on the way to it.

use hca_core::{AddressVector, Instant};

use super::peer::PeerName;
use super::ring::Attributes;
use crate::{PathError, PathId};

/// Paths at most.
const MAX_PATHS: usize = 1 << 20;
/// Bits of a [`PathId`] that are the slot; the others tell a reused slot from its predecessor.
const SLOT_BITS: u32 = 20;
/// Hop limit where the address vector leaves it open.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// One path.
pub(super) struct Path {
    pub(super) peer: PeerName,
    pub(super) attributes: Attributes,
    refs: u32,
    /// The link to the peer, as last seen.
    pub(super) link: u32,
    /// Nobody was at the peer's address: when to look again.
    pub(super) retry_at: Instant,
}

struct Slot {
    generation: u32,
    path: Option<Path>,
}

/// All paths of an adapter.
#[derive(Default)]
pub(super) struct Paths {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_key: std::collections::HashMap<(PeerName, u8, u8), PathId>,
}

impl Paths {
    /// The path to a peer; those with equal header fields are one.
    pub(super) fn open(&mut self, peer: PeerName, av: &AddressVector) -> Result<PathId, PathError> {
        let hop_limit = if av.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { av.hop_limit };
        let attributes = Attributes { traffic_class: av.traffic_class, hop_limit };
        let key = (peer, attributes.traffic_class, hop_limit);
        if let Some(&id) = self.by_key.get(&key) {
            self.get_mut(id).expect("paths by key are open").refs += 1;
            return Ok(id);
        }
        if self.by_key.len() == MAX_PATHS {
            return Err(PathError::Limit(MAX_PATHS));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, path: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.path = Some(Path { peer, attributes, refs: 1, link: u32::MAX, retry_at: Instant::ZERO });
        let id = PathId(index | slot.generation << SLOT_BITS);
        self.by_key.insert(key, id);
        Ok(id)
    }

    pub(super) fn close(&mut self, id: PathId) {
        let Some(path) = self.get_mut(id) else { return };
        path.refs -= 1;
        if path.refs > 0 {
            return;
        }
        let key = (path.peer, path.attributes.traffic_class, path.attributes.hop_limit);
        let index = id.0 & ((1 << SLOT_BITS) - 1);
        let slot = &mut self.slots[index as usize];
        slot.path = None;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> SLOT_BITS);
        self.free.push(index);
        self.by_key.remove(&key);
    }

    pub(super) fn get(&self, id: PathId) -> Option<&Path> {
        let slot = self.slots.get((id.0 & ((1 << SLOT_BITS) - 1)) as usize)?;
        if slot.generation == id.0 >> SLOT_BITS { slot.path.as_ref() } else { None }
    }
    #[inline]
    pub(super) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        let slot = self.slots.get_mut((id.0 & ((1 << SLOT_BITS) - 1)) as usize)?;
        if slot.generation == id.0 >> SLOT_BITS { slot.path.as_mut() } else { None }
    }
}
