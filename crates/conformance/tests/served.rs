//! The ConnectX driver on functions that the software adapter serves at sockets, all in one process.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use hca_core::{Access, Device, DeviceError, Gid, MrInit};
use hca_fabric::LoopbackNet;
use hca_mlx5::{Mlx5, Options};
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use softhca_pci::{PortKind, Served};

fn serve(functions: usize, port: PortKind) -> Served {
    let fabric = LoopbackNet::new().attach(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    let inline = softhca::Options { progress: Progress::Inline, ..softhca::Options::default() };
    let hca = SoftHca::open(Box::new(fabric), inline).unwrap();
    Served::start(hca, functions, port).unwrap()
}
/// The function; a client that has just gone leaves it free.
fn function(served: &Served, number: usize) -> PciFunction {
    PciFunction::connect(&served.sockets()[number], UserOptions::default()).unwrap()
}
fn open(served: &Served, number: usize) -> Arc<Mlx5> {
    Mlx5::open(function(served, number), Options::default()).unwrap()
}

#[test]
fn the_driver_opens_a_served_function_again_and_again_with_either_port() {
    for port in [PortKind::InfiniBand, PortKind::Roce] {
        let served = serve(2, port);
        for _ in 0..5 {
            let (a, b) = (open(&served, 0), open(&served, 1));
            assert_ne!(a.port().gid, b.port().gid, "each has an address of its own");
            assert!(a.port().gid != Gid::default() && a.port().active && b.port().active);
            assert!(a.pages_lent() > 0 && a.death().is_none());
            assert_eq!(a.attr().fabric, if port == PortKind::Roce { "roce" } else { "infiniband" });
        }
    }
}

#[test]
fn regions_of_all_sizes_come_and_go_on_a_served_function() {
    let served = serve(1, PortKind::InfiniBand);
    let device = open(&served, 0);
    let pd = device.alloc_pd().unwrap();
    for len in [1, 4096, 5000, 1 << 20, (64 << 20) + 1] {
        let memory = device.alloc_memory(len).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        for iova in [0x1000, memory.addr().addr().get() as u64] {
            let init = MrInit { addr: memory.addr(), len, iova, access };
            // SAFETY: the memory outlives the region, and nobody looks at it.
            let keys = unsafe { device.reg_mr(pd, &init) };
            if len > 32 << 20 && iova == 0x1000 {
                // Addresses that agree in 12 bits only take pages of 4 KiB, of which a list has some thousands.
                assert!(matches!(keys, Err(DeviceError::OutOfRange { .. })), "{len} bytes");
                continue;
            }
            let keys = keys.unwrap();
            assert!(matches!(device.dealloc_pd(pd), Err(DeviceError::InUse { .. })));
            device.dereg_mr(keys.handle).unwrap();
        }
    }
    device.dealloc_pd(pd).unwrap();
}

#[test]
fn a_function_that_is_reset_under_its_driver_serves_the_next_one() {
    let served = serve(1, PortKind::InfiniBand);
    for _ in 0..3 {
        let function = function(&served, 0);
        let mut short = Options::default();
        short.command_timeout = Duration::from_millis(100);
        let device = Mlx5::open(function.clone(), short).unwrap();
        let pd = device.alloc_pd().unwrap();
        let memory = device.alloc_memory(8192).unwrap();
        let init = MrInit { addr: memory.addr(), len: 8192, iova: 0, access: Access::LOCAL_WRITE };
        // SAFETY: the memory outlives the device, and nobody looks at it.
        unsafe { device.reg_mr(pd, &init) }.unwrap();
        // Objects and pages are there, and the driver learns of this when it gets no answer.
        function.reset().unwrap();
        drop((device, memory));
    }
    let device = open(&served, 0);
    device.alloc_pd().unwrap();
}
