//! Beds for the software adapter: every fabric in every progress mode.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hca_conformance::{Bed, Feature};
use hca_core::{Device, Gid};
use hca_fabric::{
    AutoFabric, Fabric, FaultPlan, Faulty, LoopbackNet, ShmFabric, ShmOptions, UdpFabric, UdpOptions,
    UringFabric, UringOptions,
};
use softhca::{Options, Progress, SoftHca};

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Net {
    /// Queues in this process, IPv4 addresses.
    Loopback,
    /// The same with IPv6 addresses.
    Loopback6,
    /// UDP sockets on 127.0.0.0/8.
    Udp,
    /// The same through io_uring, or plain sockets where the kernel has none.
    Uring,
    /// UDP sockets of adapters that share one address.
    Shared,
    /// The same through io_uring.
    SharedUring,
    /// UDP sockets, and shared memory between queue pairs of the service RC, both ends in this process.
    Auto,
    /// The same of adapters that share one address.
    AutoShared,
    /// Rings in shared memory, both ends in this process.
    Shm,
    /// The same, and no memory but the rings is shared.
    ShmIsolated,
}

/// Software adapters on one kind of network.
#[derive(Clone, Copy)]
pub(crate) struct SoftBed {
    pub(crate) net: Net,
    pub(crate) progress: Progress,
    /// Faults in the text form of [`FaultPlan`]; the seed is the adapter's number.
    pub(crate) faults: Option<&'static str>,
}

impl SoftBed {
    pub(crate) const fn new(net: Net, progress: Progress) -> Self {
        Self { net, progress, faults: None }
    }
    pub(crate) const fn with_faults(self, faults: &'static str) -> Self {
        Self { faults: Some(faults), ..self }
    }
    fn open_one(self, fabric: Box<dyn Fabric>, number: u64) -> Arc<dyn Device> {
        let fabric = match self.faults {
            None => fabric,
            Some(text) => {
                let mut plan: FaultPlan = text.parse().expect("a fault plan");
                plan.seed = number + 1;
                Box::new(Faulty::new(fabric, plan))
            }
        };
        let options = Options { progress: self.progress, ..Options::default() };
        SoftHca::open(fabric, options).expect("the adapter opens")
    }
}

impl Bed for SoftBed {
    fn name(&self) -> String {
        format!("{:?} {}{}", self.net, self.progress, if self.faults.is_some() { " faulty" } else { "" })
    }
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>> {
        let loopback = LoopbackNet::new();
        let domain = format!("conformance.{}", std::process::id());
        let mut shared = None;
        (0..n)
            .map(|i| {
                let last = i as u8 + 1;
                let fabric: Box<dyn Fabric> = match self.net {
                    Net::Loopback => Box::new(loopback.attach(Ipv4Addr::new(10, 0, 0, last).into())),
                    Net::Loopback6 => {
                        let a = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into());
                        Box::new(loopback.attach(a.into()))
                    }
                    Net::Auto => on_own_address(|a| {
                        AutoFabric::open(a, &UdpOptions::default(), &ShmOptions::default())
                            .map(|f| Box::new(f) as _)
                    }),
                    Net::Udp => on_own_address(|a| {
                        UdpFabric::open(a, &UdpOptions::default()).map(|f| Box::new(f) as _)
                    }),
                    Net::Shm | Net::ShmIsolated => {
                        let options = ShmOptions {
                            // Faults are of packets.
                            messages: self.faults.is_none(),
                            isolated: matches!(self.net, Net::ShmIsolated),
                            ..ShmOptions::default()
                        };
                        Box::new(ShmFabric::open(&domain, &options).expect("it opens"))
                    }
                    Net::Uring => uring(),
                    Net::Shared | Net::SharedUring | Net::AutoShared => {
                        let options = UdpOptions { slots: 16, ..UdpOptions::default() };
                        let open = |a| match self.net {
                            Net::Shared => {
                                UdpFabric::open(a, &options).map(|f| Box::new(f) as Box<dyn Fabric>)
                            }
                            Net::AutoShared => AutoFabric::open(a, &options, &ShmOptions::default())
                                .map(|f| Box::new(f) as _),
                            _ => UringFabric::open_or_udp(
                                a,
                                &UringOptions { udp: options, ..UringOptions::default() },
                            ),
                        };
                        let fabric = match shared {
                            None => on_own_address(open),
                            Some(a) => open(a).expect("the address has room"),
                        };
                        shared = Some(fabric.attr().local);
                        fabric
                    }
                };
                self.open_one(fabric, i as u64)
            })
            .collect()
    }
    fn can(&self, feature: Feature) -> bool {
        match feature {
            Feature::Lossless => self.faults.is_none(),
            Feature::Passive => self.progress != Progress::Inline,
            Feature::WaitFd | Feature::Drain => true,
            _ => false,
        }
    }
    fn silent_gid(&self) -> Option<Gid> {
        Some(match self.net {
            Net::Loopback => Ipv4Addr::new(10, 0, 0, 250).into(),
            Net::Loopback6 | Net::Shm | Net::ShmIsolated => {
                IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 250)).into()
            }
            // Addresses of tests end in 2 to 251.
            Net::Udp | Net::Uring | Net::Auto | Net::AutoShared | Net::Shared | Net::SharedUring => {
                Ipv4Addr::new(127, 255, 0, 253).into()
            }
        })
    }
}

/// io_uring, or plain sockets where the kernel has none.
pub(crate) fn uring() -> Box<dyn Fabric> {
    on_own_address(|a| UringFabric::open_or_udp(a, &UringOptions::default()))
}

/// Opens something on a loopback address that no other test uses: a range for each process, and the
/// next address where somebody else is there already.
pub(crate) fn on_own_address<T, E: std::fmt::Display>(open: impl Fn(IpAddr) -> Result<T, E>) -> T {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    let mut last = String::new();
    for _ in 0..50 {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // 127.16.0.0 to 127.239.255.255, 250 addresses in each /24.
        let [_, _, b, c] = (pid.wrapping_mul(2654) + n / 250).to_be_bytes();
        match open(Ipv4Addr::new(127, 16 + b % 224, c, 2 + (n % 250) as u8).into()) {
            Ok(t) => return t,
            Err(e) => last = e.to_string(),
        }
    }
    panic!("50 addresses in a row could not be had: {last}");
}
