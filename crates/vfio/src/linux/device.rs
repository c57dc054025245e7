//! An open function, by iommufd or by its group.

use core::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio;

use super::sys;
use crate::address::PciAddress;
use crate::backend::{Backend, DmaLimits, DmaMemory, DmaRights, Region, RegionFile};
use crate::error::{DmaError, FunctionError, OpenError};
use crate::iova::Iova;
use crate::user::wire::{DeviceInfo, IRQ_ERROR, MAX_IRQS, RegionInfo};
use crate::wake::Waker;

/// The mechanism that confines the function's memory accesses.
pub(super) trait Iommu: fmt::Debug + Send + Sync {
    fn map(&self, range: &sys::Range) -> io::Result<()>;
    /// Returns how many bytes that were.
    fn unmap(&self, iova: u64, len: u64) -> io::Result<u64>;
    fn limits(&self) -> DmaLimits;
    /// What has to be closed for others to have the function, in this order, after the function itself.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
}

/// A function of this machine.
///
/// The device is closed before what confines it, as fields are dropped in order.
#[derive(Debug)]
pub(super) struct LinuxFunction {
    name: String,
    info: DeviceInfo,
    device: Arc<Device>,
    iommu: Box<dyn Iommu>,
    /// It was let go of: its descriptors are those of an eventfd.
    gone: AtomicBool,
    /// What its descriptors become then: whoever reads, writes, maps or controls it is refused.
    nothing: OwnedFd,
}

/// The descriptor of a function, which is its regions' file, too.
#[derive(Debug)]
struct Device(OwnedFd);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
impl RegionFile for Device {
    fn has_length(&self) -> bool {
        false
    }
}

impl LinuxFunction {
    pub(super) fn new(
        address: PciAddress,
        device: OwnedFd,
        iommu: Box<dyn Iommu>,
    ) -> Result<Self, OpenError> {
        let asked = sys::device_info(device.as_fd());
        let (flags, regions, irq_kinds) =
            asked.map_err(|source| OpenError::Io { doing: "asking what a function is", source })?;
        let info = DeviceInfo {
            can_reset: flags & vfio::VFIO_DEVICE_FLAGS_RESET != 0,
            is_pci: flags & vfio::VFIO_DEVICE_FLAGS_PCI != 0,
            regions,
            irq_kinds,
        };
        let nothing = eventfd(0, EventfdFlags::CLOEXEC);
        let nothing = nothing.map_err(|e| OpenError::Io { doing: "making an eventfd", source: e.into() })?;
        let (name, device) = (format!("vfio://{address}"), Arc::new(Device(device)));
        Ok(Self { name, info, device, iommu, gone: AtomicBool::new(false), nothing })
    }

    fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> FunctionError {
        let (name, gone) = (self.name.clone(), self.gone.load(Ordering::Acquire));
        move |source| {
            if gone { FunctionError::LetGo { name } } else { FunctionError::Io { name, doing, source } }
        }
    }
}

impl Backend for LinuxFunction {
    fn name(&self) -> &str {
        &self.name
    }
    fn device(&self) -> DeviceInfo {
        self.info
    }

    fn region(&self, index: u32) -> Result<Region, FunctionError> {
        let bytes = sys::region_info(self.device.as_fd(), index).map_err(self.io("asking about a region"))?;
        let info = RegionInfo::parse(&bytes).map_err(|source| FunctionError::Description {
            name: self.name.clone(),
            what: "one of its regions",
            source,
        })?;
        Ok(Region { info, file: Some(self.device.clone()) })
    }

    fn read(&self, region: &RegionInfo, offset: u64, into: &mut [u8]) -> Result<(), FunctionError> {
        let at = region.offset + offset;
        let read = rustix::io::pread(&*self.device, &mut *into, at).map_err(io::Error::from);
        let read = read.and_then(|n| whole(n, into.len()));
        read.map_err(self.io("reading registers"))
    }
    fn write(&self, region: &RegionInfo, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        let at = region.offset + offset;
        let written = rustix::io::pwrite(&*self.device, data, at).map_err(io::Error::from);
        let written = written.and_then(|n| whole(n, data.len()));
        written.map_err(self.io("writing registers"))
    }

    fn irqs(&self, kind: u32) -> Result<u32, FunctionError> {
        if self.info.irq_kinds <= kind {
            return Ok(0);
        }
        let asked = match sys::irq_info(self.device.as_fd(), kind) {
            // A function that is not on PCI Express reports no errors.
            Err(e) if kind == IRQ_ERROR && e.raw_os_error() == Some(libc::EINVAL) => return Ok(0),
            asked => asked,
        };
        let (flags, count) = asked.map_err(self.io("asking about interrupts"))?;
        let by_eventfd = flags & vfio::VFIO_IRQ_INFO_EVENTFD != 0;
        Ok(if by_eventfd { count.min(MAX_IRQS) } else { 0 })
    }
    fn set_irqs(&self, kind: u32, eventfds: &[BorrowedFd<'_>]) -> Result<(), FunctionError> {
        sys::set_irqs(self.device.as_fd(), kind, eventfds).map_err(self.io("setting interrupts up"))
    }
    fn clear_irqs(&self, kind: u32) -> Result<(), FunctionError> {
        sys::set_irqs(self.device.as_fd(), kind, &[]).map_err(self.io("turning interrupts off"))
    }
    fn reset(&self) -> Result<(), FunctionError> {
        sys::reset(self.device.as_fd()).map_err(self.io("the reset"))
    }

    fn takes_huge_pages(&self) -> bool {
        true
    }
    fn takes_foreign(&self) -> bool {
        true
    }
    fn dma_limits(&self) -> DmaLimits {
        self.iommu.limits()
    }

    fn dma_map(&self, at: Iova, memory: &DmaMemory<'_>, rights: DmaRights) -> Result<(), DmaError> {
        let DmaRights { read, write } = rights;
        let range = sys::Range { addr: memory.addr(), iova: at.0, len: memory.len() as u64, read, write };
        self.iommu.map(&range).map_err(|source| {
            let limits = Limits::of_process();
            map_refusal(&self.name, range.len, source, &limits, self.iommu.limits().max_mappings)
        })
    }

    fn dma_unmap(&self, at: Iova, len: u64) -> Result<(), DmaError> {
        let io = |source| DmaError::Io { name: self.name.clone(), doing: "unmapping memory of", source };
        match self.iommu.unmap(at.0, len) {
            Ok(bytes) if bytes == len => Ok(()),
            Ok(_) => Err(DmaError::NotMapped { name: self.name.clone(), iova: at.0, bytes: len }),
            // What was mapped went with the descriptors.
            Err(_) if self.gone.load(Ordering::Acquire) => Ok(()),
            Err(source) => Err(io(source)),
        }
    }

    fn let_go(&self) -> Result<(), FunctionError> {
        self.gone.store(true, Ordering::Release);
        let all = std::iter::once(self.device.as_fd()).chain(self.iommu.descriptors());
        let closed = all.map(|fd| sys::hollow(fd, self.nothing.as_fd())).fold(Ok(()), Result::and);
        closed.map_err(|source| FunctionError::Io {
            name: self.name.clone(),
            doing: "closing the descriptors",
            source,
        })
    }

    fn waker(&self) -> Option<Waker> {
        None
    }
}

fn whole(done: usize, asked: usize) -> io::Result<()> {
    if done == asked { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The locked memory of this process, and its limit.
struct Limits {
    locked: u64,
    /// `None`: as much as there is.
    limit: Option<u64>,
}

impl Limits {
    fn of_process() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self { locked: locked_bytes(&status), limit }
    }
}

/// The memory that a process has locked for itself and for devices, from its status file, in KiB.
fn locked_bytes(status: &str) -> u64 {
    let of = |name| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    [of("VmLck:"), of("VmPin:")].into_iter().flatten().fold(0, |sum, kib| sum.saturating_add(kib << 10))
}

/// Why the kernel did not map: it says no more than `ENOMEM` where the limit of locked memory is hit.
fn map_refusal(name: &str, needed: u64, source: io::Error, of: &Limits, max_mappings: u32) -> DmaError {
    let name = name.to_owned();
    match (source.raw_os_error(), of.limit) {
        (Some(libc::ENOMEM), Some(limit)) if of.locked.saturating_add(needed) > limit => {
            DmaError::Memlock { name, needed, locked: of.locked, limit }
        }
        (Some(libc::ENOSPC), _) => DmaError::Mappings { name, limit: max_mappings },
        _ => DmaError::Io { name, doing: "mapping memory for", source },
    }
}

/// A range of either interface as this crate's type.
pub(super) fn inclusive(ranges: impl IntoIterator<Item = (u64, u64)>) -> Vec<RangeInclusive<u64>> {
    ranges.into_iter().map(|(first, last)| first..=last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_locked_memory_is_told_with_what_is_needed_and_how_to_raise_it() {
        let limits = Limits { locked: 1 << 20, limit: Some(8 << 20) };
        let no_memory = || io::Error::from_raw_os_error(libc::ENOMEM);
        let refused = map_refusal("vfio://0000:03:00.0", 64 << 20, no_memory(), &limits, 65_535);
        let told = refused.to_string();
        assert!(matches!(refused, DmaError::Memlock { needed: 0x400_0000, limit: 0x80_0000, .. }), "{told}");
        for part in ["67108864 bytes", "1048576 of 8388608", "ulimit -l 66560", "limits.conf", "LimitMEMLOCK"]
        {
            assert!(told.contains(part), "`{part}` is not in: {told}");
        }
        // Within the limit it is the system's memory that is short.
        let refused = map_refusal("f", 1 << 20, no_memory(), &limits, 65_535);
        assert!(matches!(refused, DmaError::Io { .. }), "{refused}");
        let unlimited = Limits { locked: 0, limit: None };
        assert!(matches!(map_refusal("f", 1, no_memory(), &unlimited, 1), DmaError::Io { .. }));
        let full = map_refusal("f", 1, io::Error::from_raw_os_error(libc::ENOSPC), &unlimited, 9);
        assert!(full.to_string().contains("9 mappings"), "{full}");
    }

    #[test]
    fn locked_memory_is_read_from_a_process_s_status() {
        assert_eq!(locked_bytes("VmPeak:\t 9 kB\nVmLck:\t      16 kB\nVmPin:\t       4 kB\n"), 20 << 10);
        assert_eq!(locked_bytes("VmLck: x kB\n"), 0);
        assert_eq!(locked_bytes(""), 0);
    }

    /// What confines nothing, by a socket.
    #[derive(Debug)]
    struct Open(OwnedFd);
    impl Iommu for Open {
        fn map(&self, _: &sys::Range) -> io::Result<()> {
            Ok(())
        }
        fn unmap(&self, _: u64, _: u64) -> io::Result<u64> {
            Err(io::ErrorKind::NotConnected.into())
        }
        fn limits(&self) -> DmaLimits {
            DmaLimits { ranges: Vec::new(), page_sizes: 4096, max_mappings: 1 }
        }
        fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
            vec![self.0.as_fd()]
        }
    }

    /// Whether a socket's other end is closed.
    fn is_closed(reader: &OwnedFd) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    }

    #[test]
    fn letting_go_closes_all_descriptors_though_others_hold_their_numbers() {
        let [(device_end, device), (iommu_end, iommu)] = [(); 2].map(|()| {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            (OwnedFd::from(ours), OwnedFd::from(theirs))
        });
        let nothing = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let info = DeviceInfo { can_reset: true, is_pci: true, regions: 9, irq_kinds: 5 };
        let (device, iommu) = (Arc::new(Device(device)), Box::new(Open(iommu)));
        let name = "vfio://0000:03:00.0".to_owned();
        let function = LinuxFunction { name, info, device, iommu, gone: AtomicBool::new(false), nothing };
        let file = function.device.clone();
        let unmap = || function.dma_unmap(Iova(0), 4096);
        assert!(unmap().is_err() && !is_closed(&device_end) && !is_closed(&iommu_end));
        function.let_go().unwrap();
        assert!(is_closed(&device_end) && is_closed(&iommu_end));
        // What the device reached went with them.
        unmap().unwrap();
        let region = RegionInfo {
            argsz: RegionInfo::BYTES,
            index: 0,
            read: true,
            write: true,
            mmap: false,
            size: 4096,
            offset: 0,
            areas: None,
        };
        for refused in [
            function.read(&region, 0, &mut [0; 4]).err(),
            function.write(&region, 0, &[0; 4]).err(),
            function.reset().err(),
            function.irqs(2).err(),
            function.set_irqs(2, &[]).err(),
        ] {
            assert!(matches!(refused, Some(FunctionError::LetGo { .. })), "{refused:?}");
        }
        let page = rustix::param::page_size();
        assert!(crate::mapping::Mapping::of_file(file.as_fd(), 0, page, 1).is_err(), "it can't be mapped");
    }
}
