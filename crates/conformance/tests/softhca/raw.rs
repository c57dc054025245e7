//! A bed of raw Ethernet: two adapters in two network namespaces with a veth pair between; more of them in namespaces
//! of their own around a bridge.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hca_conformance::{Bed, Feature};
use hca_core::{Device, Gid};
use hca_fabric::{OpenError, RawFabric, RawOptions, RoceVersion};
use softhca::{Options, Progress, SoftHca};
use test_support::namespaces::{Namespace, ip};

/// Software adapters on raw Ethernet.
pub(crate) struct RawBed {
    pub(crate) version: RoceVersion,
    pub(crate) progress: Progress,
}

impl Bed for RawBed {
    fn name(&self) -> String {
        format!("RoCEv{} {}", self.version, self.progress)
    }
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>> {
        let wire = Wire::shared().as_ref().unwrap_or_else(|why| panic!("{why}"));
        (0..n).map(|i| opened(wire.adapter(i, n, self.version), self.progress)).collect()
    }
    fn can(&self, feature: Feature) -> bool {
        can(feature, self.progress)
    }
    fn silent_gid(&self) -> Option<Gid> {
        Some(Ipv4Addr::new(10, 77, 255, 253).into())
    }
}

pub(crate) fn opened(fabric: Result<RawFabric, OpenError>, progress: Progress) -> Arc<dyn Device> {
    let fabric = fabric.unwrap_or_else(|e| panic!("{e}"));
    let options = Options { progress, ..Options::default() };
    SoftHca::open(Box::new(fabric), options).expect("the adapter opens")
}

pub(crate) fn can(feature: Feature, progress: Progress) -> bool {
    match feature {
        Feature::Lossless | Feature::WaitFd | Feature::Drain => true,
        Feature::Passive => progress != Progress::Inline,
        _ => false,
    }
}

/// An address of a network that no other adapter of this process has.
pub(crate) fn next_address(network: u32) -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::from(network + n / 250 * 256 + 1 + n % 250)
}

/// Namespaces for adapters. The first two hold one end each of a veth pair, `wire`; all are on a bridge by `lan`.
pub(crate) struct Wire {
    places: [Namespace; PLACES],
    /// The bridge's; it goes with its namespace.
    hub: Namespace,
    /// The adapters that were opened on addresses of their own.
    opened: AtomicU32,
}

/// Adapters of one check at most.
const PLACES: usize = 4;
/// Adapters after which the kernel is told to forget the neighbours that it has learned. Its table is one for all
/// namespaces, and full at 1,024: behind that no address is resolved, for as long as half a minute.
const FORGET_AFTER: u32 = 64;

impl Wire {
    /// Those of this process, made when they are first asked for; or why there are none.
    pub(crate) fn shared() -> &'static Result<Self, String> {
        static WIRE: OnceLock<Result<Wire, String>> = OnceLock::new();
        WIRE.get_or_init(Self::make)
    }

    fn make() -> Result<Self, String> {
        let wire = Self {
            places: [Namespace::new()?, Namespace::new()?, Namespace::new()?, Namespace::new()?],
            hub: Namespace::new()?,
            opened: AtomicU32::new(0),
        };
        let hub = &wire.hub;
        wire.within(0, || {
            let far = wire.places[1].path();
            ip(&format!("link add wire mtu 4500 type veth peer name wire mtu 4500 netns {far}"))?;
            ip("link set wire up")
        })?;
        wire.within(1, || ip("link set wire up"))?;
        hub.within(|| {
            ip("link add hub type bridge")?;
            ip("link set hub up mtu 4500")
        })?;
        for place in 0..PLACES {
            wire.within(place, || {
                let far = hub.path();
                let end =
                    format!("link add name lan mtu 4500 type veth peer name lan{place} mtu 4500 netns {far}");
                ip(&end)?;
                ip("link set lan up")
            })?;
            hub.within(|| {
                ip(&format!("link set lan{place} master hub up"))?;
                until_forwarding(&format!("lan{place}"))
            })?;
        }
        Ok(wire)
    }

    /// Opens the fabric of one of `of` adapters, on an address of its own.
    fn adapter(&self, place: usize, of: usize, version: RoceVersion) -> Result<RawFabric, OpenError> {
        let (link, network) = if of <= 2 { ("wire", 0x0a4d_0000) } else { ("lan", 0x0a4e_0000) };
        let address = next_address(network);
        if self.opened.fetch_add(1, Ordering::Relaxed) % FORGET_AFTER == FORGET_AFTER - 1 {
            self.forget_neighbours();
        }
        self.within(place, || {
            ip(&format!("addr add {address}/16 dev {link}")).unwrap_or_else(|e| panic!("{e}"));
            let options = RawOptions { ip: Some(IpAddr::V4(address)), version, ..RawOptions::default() };
            RawFabric::open(link, &options)
        })
    }

    /// Has the kernel forget all neighbours. Neighbours in use are resolved again.
    fn forget_neighbours(&self) {
        for place in 0..PLACES {
            self.within(place, || ip("neigh flush all")).unwrap_or_else(|e| panic!("{e}"));
        }
    }

    pub(crate) fn within<T: Send>(&self, place: usize, run: impl FnOnce() -> T + Send) -> T {
        self.places[place].within(run)
    }
}

/// Waits until a port of the bridge passes frames on.
fn until_forwarding(port: &str) -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        if ip(&format!("-d link show {port}"))?.contains("state forwarding") {
            return Ok(());
        }
        std::thread::yield_now();
    }
    Err(format!("the bridge's {port} does not begin to pass frames on"))
}
