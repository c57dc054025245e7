//! Linux vfio, on a function that the environment names. The function must be unused, because the test resets it. The
//! environment may also name the number of MiB that the test maps.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hca_vfio::{ArenaOptions, DmaArena, DmaRights, OpenError, PciAddress, PciFunction};

const VARIABLE: &str = "HCA_VFIO_FUNCTION";
const MIB: &str = "HCA_VFIO_MIB";
/// One test at a time has the function.
static FUNCTION: Mutex<()> = Mutex::new(());

fn named() -> PciAddress {
    let address = std::env::var(VARIABLE).unwrap_or_else(|_| panic!("{VARIABLE} names the function"));
    address.parse().unwrap()
}

/// A function that is no function of this machine's is refused whatever the machine has.
#[test]
fn a_function_that_is_not_there_is_refused() {
    let none: PciAddress = "fffe:ff:1f.7".parse().unwrap();
    assert!(matches!(PciFunction::open(none), Err(OpenError::NoFunction { .. })));
}

#[test]
#[ignore = "needs a function bound to vfio-pci"]
fn a_function_is_opened_maps_memory_has_interrupts_and_is_reset() {
    let _alone = FUNCTION.lock();
    let address = named();
    let function = PciFunction::open(address).unwrap_or_else(|e| panic!("{e}"));
    let second = PciFunction::open(address);
    assert!(matches!(second, Err(OpenError::Busy { .. })), "{second:?}");

    let config = function.config().unwrap();
    let ids = (config.vendor_id().unwrap(), config.device_id().unwrap());
    println!("{}: {:04x}:{:04x}, {:?}", function.name(), ids.0, ids.1, config.capabilities().unwrap());
    assert!(ids.0 != 0xffff && !config.bus_master().unwrap());
    for index in 0..6 {
        let Ok(bar) = function.bar(index) else { continue };
        println!("BAR {index}: {:#x} bytes, mappable {:x?}", bar.size(), bar.mappable());
        for (offset, len) in bar.mappable() {
            let window = bar.map(offset, len as usize).unwrap();
            println!("  first word {:#x}, by a call {:#x}", window.load32(0), bar.read32(offset).unwrap());
            assert!(config.set_memory_space(false).is_err(), "registers are mapped");
        }
    }

    let mib: usize = std::env::var(MIB).map_or(64, |mib| mib.parse().expect("a number of MiB"));
    let bytes = mib << 20;
    let begun = Instant::now();
    drop(vec![1_u8; bytes]);
    println!("{mib} MiB of the system written to in {:?}", begun.elapsed());
    let arena = DmaArena::new(&function, ArenaOptions { chunk_bytes: bytes, huge_pages: false });
    let begun = Instant::now();
    let buf = arena.alloc(bytes, 2 << 20).unwrap_or_else(|e| panic!("{e}"));
    println!("{mib} MiB had and mapped at {} in {:?}", buf.iova(), begun.elapsed());
    assert_eq!(buf.iova().0 % (2 << 20), 0);
    drop(buf);
    let begun = Instant::now();
    assert_eq!(arena.trim().unwrap(), bytes);
    println!("unmapped in {:?}", begun.elapsed());

    let mut own = vec![0_u8; 3 << 20];
    let at = NonNull::new(own.as_mut_ptr()).unwrap();
    // SAFETY: the memory lives until it is unmapped below, and nobody reads it.
    let mapping = unsafe { function.dma_map(at, own.len(), DmaRights::ALL) }.unwrap();
    println!("3 MiB of the program's own at {}", mapping.iova());
    function.dma_unmap(mapping).unwrap();

    let vectors = function.msix_vectors().unwrap();
    println!("{vectors} MSI-X vectors");
    if vectors > 0 {
        assert_eq!(function.enable_msix(vectors).unwrap().len() as u32, vectors);
        function.disable_msix().unwrap();
    }
    match function.reset() {
        Ok(()) => println!("reset"),
        Err(e) => println!("not reset: {e}"),
    }
    assert_eq!(config.vendor_id().unwrap(), ids.0);
    drop((arena, config, function));
    // Nothing of it is left open.
    PciFunction::open(address).unwrap_or_else(|e| panic!("{e}"));
}

/// Whoever unbinds it waits until it is closed, though everything of it is still held.
#[test]
#[ignore = "needs a function bound to vfio-pci, and rights to unbind it"]
fn a_function_that_is_unbound_under_its_program_is_let_go_of() {
    let _alone = FUNCTION.lock();
    let address = named();
    let function = PciFunction::open(address).unwrap_or_else(|e| panic!("{e}"));
    let request = function.notices().unwrap().request.expect("the kernel tells of requests");
    let bars: Vec<_> = (0..6).filter_map(|index| function.bar(index).ok()).collect();
    let windows = bars.iter().flat_map(|bar| bar.mappable().into_iter().map(move |area| (bar, area)));
    let windows: Vec<_> = windows.map(|(bar, (at, len))| bar.map(at, len as usize).unwrap()).collect();
    println!("{} windows", windows.len());
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let piece = arena.alloc(4096, 4096).unwrap();

    let unbind = std::thread::spawn(move || {
        let begun = Instant::now();
        let driver = format!("/sys/bus/pci/devices/{address}/driver/unbind");
        std::fs::write(driver, address.to_string()).unwrap();
        begun.elapsed()
    });
    let begun = Instant::now();
    while rustix::io::read(&request, &mut [0_u8; 8]).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the kernel asks for it");
        std::thread::yield_now();
    }
    assert!(!unbind.is_finished(), "it waits");
    function.let_go().unwrap();
    println!("unbound in {:?}", unbind.join().unwrap());
    let driver = std::path::PathBuf::from(format!("/sys/bus/pci/devices/{address}/driver"));
    assert!(!driver.exists());
    for window in &windows {
        window.store32(0, 1);
        assert_eq!(window.load32(0), 1, "it is ordinary memory");
    }
    piece.store(0, &[1; 8]);
    drop((windows, bars, piece, arena, function));

    // `driver_override` names vfio-pci still.
    std::fs::write("/sys/bus/pci/drivers_probe", address.to_string()).unwrap();
    PciFunction::open(address).unwrap_or_else(|e| panic!("{e}"));
}
