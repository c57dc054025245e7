//! A peer on this machine that is not an adapter: it can behave as a stopped or hostile adapter.

use hca_core::{AddressVector, Device, Gid, Instant, MrKeys, Qpn};
use hca_fabric::{Fabric, GrantId, LinkId, Notice, QpGuard, RxBudget, ShmFabric, ShmOptions};
use softhca::SoftHca;

use super::{End, connect};

/// A peer that a queue pair of an end is connected to.
pub struct Stranger {
    pub fabric: ShmFabric,
    /// The link to the end's adapter.
    pub link: LinkId,
}

impl Stranger {
    /// Connects to an end, whose reliable queue pair is connected to this peer.
    pub fn of(end: &End) -> Self {
        let domain = format!("ends.{}", std::process::id());
        let mut fabric = ShmFabric::open(&domain, &ShmOptions::default()).unwrap();
        connect(&end.device, end.rc.handle, (Gid::from_ip(fabric.attr().local), Qpn::new(77)), true);
        let dgid = Gid::from_ip(end.device.fabric().local);
        let path = fabric.open_path(&AddressVector { dgid, ..AddressVector::default() }).unwrap();
        let link = loop {
            turn(&mut fabric, &end.device);
            if let Some(link) = fabric.link_of(path) {
                break link;
            }
        };
        Self { fabric, link }
    }
    /// Asks for the region of a key, and takes the answer.
    pub fn ask(&mut self, end: &End, key: u32) -> Notice {
        self.fabric.ask_grant(self.link, key, end.rc.qpn.raw()).unwrap();
        loop {
            turn(&mut self.fabric, &end.device);
            if let Some(notice) = self.fabric.next_notice() {
                break notice;
            }
        }
    }
}

/// A peer that was granted a region of an adapter's.
pub struct Peer {
    pub fabric: ShmFabric,
    pub grant: GrantId,
    pub guard: QpGuard,
}

impl Peer {
    /// Connects to an end, and gets a grant of the end's memory, which is registered for it.
    pub fn of(end: &End) -> (Self, MrKeys) {
        let mut stranger = Stranger::of(end);
        let keys = end.open_to_writes();
        let Notice::Granted { grant, granted, .. } = stranger.ask(end, keys.rkey.raw()) else {
            panic!("it is granted")
        };
        let Stranger { mut fabric, link } = stranger;
        let guard = fabric.qp_guard(link, end.rc.handle.index, granted.qp_word).expect("the board is there");
        (Self { fabric, grant, guard }, keys)
    }
}

fn turn(fabric: &mut ShmFabric, device: &SoftHca) {
    let budget = RxBudget { packets: 64, bytes: 1 << 20 };
    fabric.recv(Instant::ZERO, budget, &mut |_| {});
    device.turn();
}
