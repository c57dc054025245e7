//! The ConnectX driver on functions that the software adapter serves at sockets, all in one process.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
fn a_served_function_borrows_pages_as_objects_come_and_gives_all_back_as_they_go() {
    const FOUR_MIB: usize = 4 << 20;
    let served = serve(1, PortKind::InfiniBand);
    let function = function(&served, 0);
    let device = Mlx5::open(function.clone(), Options::default()).unwrap();
    let (first, pd) = (device.pages_lent(), device.alloc_pd().unwrap());
    let memory = device.alloc_memory(FOUR_MIB).unwrap();
    // Addresses that agree in 12 bits only: 1,024 pages, whose list is two pages of the adapter's own.
    let init = MrInit { addr: memory.addr(), len: FOUR_MIB, iova: 0x1000, access: Access::LOCAL_WRITE };
    // SAFETY: the memory outlives the regions, and nobody looks at it.
    let register = || unsafe { device.reg_mr(pd, &init) }.unwrap().handle;
    let (mut regions, mut most) = (Vec::new(), first);
    for _ in 0..3 {
        regions.extend((0..100).map(|_| register()));
        assert!((first + 192..first + 220).contains(&device.pages_lent()), "{}", device.pages_lent());
        most = most.max(device.pages_lent());
        regions.drain(..).for_each(|mr| device.dereg_mr(mr).unwrap());
        let begun = Instant::now();
        while device.pages_lent() >= first + 16 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{} pages stay", device.pages_lent());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("{first} pages at first, {most} with 100 regions");
    // Some are still lent when it is closed.
    regions.extend((0..20).map(|_| register()));
    regions.drain(..).for_each(|mr| device.dereg_mr(mr).unwrap());
    device.dealloc_pd(pd).unwrap();
    drop((memory, device));
    // The command queue's address is still there: where pages are missing, the driver resets the function.
    assert_ne!(function.bar(0).unwrap().read32_be(0x14).unwrap() >> 12, 0, "it was stopped in order");
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
