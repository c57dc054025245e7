//! Address handles, and paths to peers.
//!
//! The adapter has no address handles: a datagram's address is in its work queue entry. So a handle is an entry of a
//! table of the driver. Sending threads read entries without a lock while other threads create and destroy handles:
//! each entry has a tag with its generation, which changes around each change of the address, and a reader checks the
//! tag before and after it reads the address.

use core::sync::atomic::fence;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hca_core::{AddressVector, AhHandle, DeviceError, Gid, PdHandle};
use hca_prm::{Ads, UdAdrsVector};

use crate::caps::Caps;
use crate::hca::Hca;
use crate::port::Path;
use crate::qp::wqe::UdAddress;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::Table;

/// Address handles are the driver's own, so this is no limit of the adapter.
pub(crate) const LIMIT: u32 = 1 << 20;
/// Handles whose memory is had at a time.
const CHUNK: usize = 1 << 10;

/// All address handles.
pub(crate) struct Ahs {
    control: Mutex<Table<PdHandle>>,
    addresses: Arc<AhTable>,
}

impl Ahs {
    pub(crate) fn new(_caps: &Caps) -> Self {
        let control = Mutex::new(Table::new("address handle", LIMIT));
        Self { control, addresses: Arc::new(AhTable::new()) }
    }
    fn control(&self) -> MutexGuard<'_, Table<PdHandle>> {
        // It is whole between any two of its operations.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn create(
        &self,
        hca: &Arc<Hca>,
        pd: PdHandle,
        av: &AddressVector,
    ) -> Result<AhHandle, DeviceError> {
        let address = hca.path(av)?.address();
        hca.pds.hold(pd, |pdn| {
            let mut control = self.control();
            let (index, generation) = control.insert(pd)?;
            let handle = AhHandle { index, generation };
            self.addresses.set(handle, pdn, &address);
            Ok(handle)
        })
    }
    pub(crate) fn destroy(&self, hca: &Arc<Hca>, ah: AhHandle) -> Result<(), DeviceError> {
        let mut control = self.control();
        let pd = control.remove(ah.index, ah.generation)?;
        self.addresses.clear(ah);
        hca.pds.release(pd);
        Ok(())
    }
    /// The addresses, for sending.
    pub(crate) fn addresses(&self) -> &Arc<AhTable> {
        &self.addresses
    }
}

/// The addresses by handle.
pub(crate) struct AhTable(Box<[OnceLock<Box<[Place]>>]>);

#[derive(Default)]
struct Place {
    /// [`live`] of the handle's generation while there is one.
    tag: AtomicU64,
    pdn: AtomicU32,
    words: [AtomicU64; 6],
}

/// The tag of a place that holds the handle of a generation.
const fn live(generation: u32) -> u64 {
    1 << 32 | generation as u64
}

impl AhTable {
    pub(crate) fn new() -> Self {
        Self((0..LIMIT as usize / CHUNK).map(|_| OnceLock::new()).collect())
    }
    fn place(&self, ah: AhHandle) -> Option<&Place> {
        self.0.get(ah.index as usize / CHUNK)?.get()?.get(ah.index as usize % CHUNK)
    }

    /// Sets the address of a new handle. By one thread at a time.
    pub(crate) fn set(&self, ah: AhHandle, pdn: u32, address: &UdAddress) {
        let chunk = &self.0[ah.index as usize / CHUNK];
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| Place::default()).collect());
        let place = &chunk[ah.index as usize % CHUNK];
        // Release: the tag was cleared before, and who reads any of these sees that behind.
        fence(Ordering::Release);
        place.pdn.store(pdn, Ordering::Relaxed);
        for (to, word) in place.words.iter().zip(address) {
            to.store(*word, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `address`.
        place.tag.store(live(ah.generation), Ordering::Release);
    }
    /// The handle is destroyed.
    pub(crate) fn clear(&self, ah: AhHandle) {
        if let Some(place) = self.place(ah) {
            place.tag.store(0, Ordering::Relaxed);
        }
    }
    /// The address of a handle, if there is one of this domain.
    #[inline]
    pub(crate) fn address(&self, ah: AhHandle, pdn: u32) -> Option<UdAddress> {
        let place = self.place(ah)?;
        // Acquire: pairs with the Release in `set`.
        if place.tag.load(Ordering::Acquire) != live(ah.generation) {
            return None;
        }
        let found = place.pdn.load(Ordering::Relaxed);
        let address = core::array::from_fn(|i| place.words[i].load(Ordering::Relaxed));
        // Acquire: where any of these is of a later handle, the tag is seen as that, or as cleared.
        fence(Ordering::Acquire);
        let same = place.tag.load(Ordering::Relaxed) == live(ah.generation);
        (same && found == pdn).then_some(address)
    }
}

impl Path {
    /// The UDP source port on RoCE, else the peer's LID.
    fn port_or_lid(&self) -> u32 {
        if self.ethernet { self.udp_sport.into() } else { self.dlid.into() }
    }

    /// Whether packets are to have a global header. The bit is reserved between Ethernet ports, whose packets all have
    /// one.
    fn grh(&self) -> bool {
        !self.ethernet && self.dgid != Gid::default()
    }

    /// The service level, or the priority on Ethernet, of which there are eight.
    fn level(&self) -> u32 {
        u32::from(self.sl) & if self.ethernet { 7 } else { 15 }
    }

    /// As it stands in work queue entries.
    pub(crate) fn address(&self) -> UdAddress {
        // A priority stands in the upper three of the four bits.
        let level = self.level() << u32::from(self.ethernet);
        let mut v = UdAdrsVector::new()
            .with(UdAdrsVector::STATIC_RATE, self.rate)
            .with(UdAdrsVector::SL_ETH_PRIO, level)
            .with(UdAdrsVector::RLID_UDP_SPORT, self.port_or_lid())
            .with(UdAdrsVector::TCLASS, self.traffic_class.into())
            .with(UdAdrsVector::HOP_LIMIT, self.hop_limit.into())
            .with(UdAdrsVector::GRH, self.grh())
            .with(UdAdrsVector::SRC_ADDR_INDEX, self.sgid_index)
            .with(UdAdrsVector::FLOW_LABEL, self.flow_label)
            .with(UdAdrsVector::RGID_RIP, self.dgid.0);
        v.set_rmac(self.mac);
        let words: &[[u8; 8]] = v.as_bytes().as_chunks().0;
        core::array::from_fn(|i| u64::from_be_bytes(words[i]))
    }

    /// As it stands in contexts of queue pairs.
    pub(crate) fn context(&self) -> Ads {
        let mut path = Ads::new()
            .with(Ads::GRH, self.grh())
            .with(Ads::STAT_RATE, self.rate)
            .with(Ads::SRC_ADDR_INDEX, self.sgid_index)
            .with(Ads::HOP_LIMIT, self.hop_limit.into())
            .with(Ads::TCLASS, self.traffic_class.into())
            .with(Ads::FLOW_LABEL, self.flow_label)
            .with(Ads::RGID_RIP, self.dgid.0);
        if self.ethernet {
            path.set(Ads::UDP_SPORT, self.udp_sport.into());
            // RoCE takes the class of service from here, and the congestion bits from its own control.
            path.set(Ads::DSCP, u32::from(self.traffic_class) >> 2);
            path.set(Ads::ETH_PRIO, self.level());
            path.set_rmac(self.mac);
        } else {
            path.set(Ads::RLID, self.dlid.into());
            path.set(Ads::SL, self.level());
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(index: u32, generation: u32) -> AhHandle {
        AhHandle { index, generation }
    }

    #[test]
    fn an_address_is_found_by_its_own_handle_and_in_its_own_domain() {
        let t = AhTable::new();
        assert_eq!(t.address(handle(5, 0), 1), None);
        t.set(handle(5, 0), 1, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(t.address(handle(5, 0), 1), Some([1, 2, 3, 4, 5, 6]));
        assert_eq!(t.address(handle(5, 0), 2), None, "another domain's");
        assert_eq!(t.address(handle(5, 1), 1), None, "a later one's");
        assert_eq!(t.address(handle(6, 0), 1), None);
        assert_eq!(t.address(handle(LIMIT, 0), 1), None);
        t.clear(handle(5, 0));
        assert_eq!(t.address(handle(5, 0), 1), None);
        t.set(handle(5, 1), 1, &[7; 6]);
        assert_eq!((t.address(handle(5, 0), 1), t.address(handle(5, 1), 1)), (None, Some([7; 6])));
    }

    #[test]
    fn a_reader_gets_a_whole_address_or_none_while_the_place_changes_hands() {
        let t = AhTable::new();
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                for generation in 0..20_000 {
                    t.set(handle(0, generation), 1, &[u64::from(generation); 6]);
                    t.clear(handle(0, generation));
                }
            });
            while !writer.is_finished() {
                for generation in 0..64 {
                    let generation = generation * 311;
                    if let Some(address) = t.address(handle(0, generation), 1) {
                        assert_eq!(address, [u64::from(generation); 6]);
                    }
                }
            }
        });
    }

    fn path(ethernet: bool) -> Path {
        Path {
            ethernet,
            dgid: Gid([7; 16]),
            sgid_index: 3,
            mac: if ethernet { [2, 3, 4, 5, 6, 7] } else { [0; 6] },
            dlid: if ethernet { 0 } else { 9 },
            hop_limit: 64,
            traffic_class: 0x1a,
            flow_label: 0xf_0001,
            udp_sport: 0xc123,
            sl: 0xb,
            rate: 3,
        }
    }

    #[test]
    fn a_path_without_a_gid_has_no_global_header() {
        let path = Path { dgid: Gid::default(), ..path(false) };
        let bytes: Vec<u8> = path.address().iter().flat_map(|w| w.to_be_bytes()).collect();
        let (v, c) = (UdAdrsVector::from_bytes(&bytes).unwrap(), path.context());
        assert_eq!((v.get(UdAdrsVector::GRH), c.get(Ads::GRH)), (false, false));
        assert_eq!((v.get(UdAdrsVector::RLID_UDP_SPORT), c.get(Ads::RLID)), (9, 9));
    }

    #[test]
    fn a_path_is_the_same_in_entries_and_in_contexts() {
        for ethernet in [false, true] {
            let path = path(ethernet);
            let bytes: Vec<u8> = path.address().iter().flat_map(|w| w.to_be_bytes()).collect();
            let (v, c) = (UdAdrsVector::from_bytes(&bytes).unwrap(), path.context());
            assert_eq!((v.get(UdAdrsVector::GRH), c.get(Ads::GRH)), (!ethernet, !ethernet));
            assert_eq!((v.get(UdAdrsVector::RGID_RIP), c.get(Ads::RGID_RIP)), ([7; 16], [7; 16]));
            assert_eq!((v.get(UdAdrsVector::SRC_ADDR_INDEX), c.get(Ads::SRC_ADDR_INDEX)), (3, 3));
            assert_eq!((v.get(UdAdrsVector::FLOW_LABEL), c.get(Ads::FLOW_LABEL)), (0xf_0001, 0xf_0001));
            assert_eq!((v.get(UdAdrsVector::TCLASS), c.get(Ads::TCLASS)), (0x1a, 0x1a));
            assert_eq!((v.get(UdAdrsVector::HOP_LIMIT), c.get(Ads::HOP_LIMIT)), (64, 64));
            assert_eq!((v.rmac(), c.rmac()), (path.mac, path.mac));
            assert_eq!((v.get(UdAdrsVector::STATIC_RATE), c.get(Ads::STAT_RATE)), (3, 3));
            let level = (v.get(UdAdrsVector::SL_ETH_PRIO), c.get(Ads::SL), c.get(Ads::ETH_PRIO));
            assert_eq!(level, if ethernet { (3 << 1, 0, 3) } else { (0xb, 0xb, 0) });
            assert_eq!(c.get(Ads::DSCP), if ethernet { 0x1a >> 2 } else { 0 });
            let at = v.get(UdAdrsVector::RLID_UDP_SPORT);
            if ethernet {
                assert_eq!((at, c.get(Ads::UDP_SPORT)), (0xc123, 0xc123));
            } else {
                assert_eq!((at, c.get(Ads::RLID)), (9, 9));
            }
        }
    }
}
