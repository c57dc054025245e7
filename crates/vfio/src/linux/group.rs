//! Opening a function by container and group.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use vfio_bindings::bindings::vfio;

use super::device::{Iommu, LinuxFunction, inclusive};
use super::sys;
use super::tree::Roots;
use crate::address::PciAddress;
use crate::backend::DmaLimits;
use crate::error::OpenError;

/// Opens a function by its group.
pub(super) fn open(roots: &Roots, address: PciAddress, group: u32) -> Result<LinuxFunction, OpenError> {
    let path = roots.vfio(group);
    let group_fd = roots.node(&path, "vfio-pci")?;
    let viable = sys::group_is_viable(group_fd.as_fd());
    if !viable.map_err(io("asking whether a group can be used"))? {
        // The files told of no other driver; the kernel knows better.
        let others = vec![("another function".to_owned(), "a driver of the kernel's".to_owned())];
        return Err(OpenError::GroupNotViable { address, group, others });
    }
    let container = roots.node(&roots.vfio("vfio"), "vfio")?;
    let fits = sys::container_fits(container.as_fd()).map_err(io("asking for the version of vfio"))?;
    if !fits {
        return Err(OpenError::Kernel { what: "the IOMMU of kind TYPE1v2" });
    }
    let busy = |e: io::Error| match e.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Busy { path: path.clone() },
        _ => OpenError::Io { doing: "adding a group to a container", source: e },
    };
    sys::set_container(group_fd.as_fd(), container.as_fd()).map_err(busy)?;
    sys::set_iommu(container.as_fd())
        .map_err(|e| attach_refusal(address, "choosing the IOMMU of kind TYPE1v2", e))?;
    let device =
        sys::device_of(group_fd.as_fd(), &address.to_string()).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => OpenError::Busy { path: path.clone() },
            _ => OpenError::Io { doing: "opening a function of a group", source: e },
        })?;
    let limits = sys::iommu_info(container.as_fd()).map_err(io("asking what the IOMMU allows"))?;
    let iommu = Container { info: limits, container, group: group_fd };
    LinuxFunction::new(address, device, Box::new(iommu))
}

/// Why a function is not confined. The kernel says `EPERM` where interrupts can't be.
pub(super) fn attach_refusal(address: PciAddress, doing: &'static str, source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::EPERM) => OpenError::NoInterruptRemapping { address },
        _ => OpenError::Io { doing, source },
    }
}

fn io(doing: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { doing, source }
}

/// A container with one group in it.
#[derive(Debug)]
struct Container {
    info: Vec<u8>,
    container: OwnedFd,
    group: OwnedFd,
}

impl Iommu for Container {
    fn map(&self, range: &sys::Range) -> io::Result<()> {
        sys::map(self.container.as_fd(), range)
    }
    fn unmap(&self, iova: u64, len: u64) -> io::Result<u64> {
        sys::unmap(self.container.as_fd(), iova, len)
    }
    fn limits(&self) -> DmaLimits {
        limits(&self.info)
    }
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.group.as_fd(), self.container.as_fd()]
    }
}

/// The default if the kernel reports nothing: the limits of the smallest IOMMU.
const LEAST_ADDRESSES: u64 = 1 << 39;
const MAX_MAPPINGS: u32 = 65_535;

/// Parses the kernel's description. Missing or senseless values keep the limits that every IOMMU has.
fn limits(info: &[u8]) -> DmaLimits {
    let word = |at: usize| info.get(at..at + 4).and_then(|b| b.first_chunk()).map(|b| u32::from_ne_bytes(*b));
    let long = |at: usize| info.get(at..at + 8).and_then(|b| b.first_chunk()).map(|b| u64::from_ne_bytes(*b));
    let mut found = DmaLimits {
        ranges: inclusive([(0, LEAST_ADDRESSES - 1)]),
        page_sizes: 4096,
        max_mappings: MAX_MAPPINGS,
    };
    let flags = word(4).unwrap_or(0);
    if flags & vfio::VFIO_IOMMU_INFO_PGSIZES != 0 {
        found.page_sizes = long(8).filter(|p| *p != 0).unwrap_or(found.page_sizes);
    }
    let caps = flags & vfio::VFIO_IOMMU_INFO_CAPS != 0;
    let mut at = if caps { word(16).unwrap_or(0) as usize } else { 0 };
    // Each capability stands behind the one before, so that there are no circles.
    let mut behind = size_of::<vfio::vfio_iommu_type1_info>();
    while at >= behind {
        let (Some(id), Some(next)) = (word(at), word(at + 4)) else { break };
        match id & 0xffff {
            vfio::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => {
                let count = word(at + 8).unwrap_or(0) as usize;
                let pair = |i| Some((long(at + 16 + 16 * i)?, long(at + 24 + 16 * i)?));
                let ranges: Vec<_> = (0..count).map_while(pair).collect();
                if !ranges.is_empty() {
                    found.ranges = inclusive(ranges);
                }
            }
            vfio::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL => {
                found.max_mappings = word(at + 8).unwrap_or(found.max_mappings);
            }
            _ => {}
        }
        behind = at + 8;
        at = next as usize;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A description as the kernel of an Intel machine makes it: ranges, migration, mappings that are left.
    fn described() -> Vec<u8> {
        let mut b = Vec::new();
        let word = |b: &mut Vec<u8>, w: u32| b.extend(w.to_ne_bytes());
        let long = |b: &mut Vec<u8>, w: u64| b.extend(w.to_ne_bytes());
        word(&mut b, 24 + 48 + 12);
        word(&mut b, 3);
        long(&mut b, 0x4020_1000);
        word(&mut b, 24);
        word(&mut b, 0);
        b.extend(1_u16.to_ne_bytes());
        b.extend(1_u16.to_ne_bytes());
        word(&mut b, 72);
        word(&mut b, 2);
        word(&mut b, 0);
        for n in [0, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff] {
            long(&mut b, n);
        }
        b.extend(3_u16.to_ne_bytes());
        b.extend(1_u16.to_ne_bytes());
        word(&mut b, 0);
        word(&mut b, 65_000);
        b
    }

    #[test]
    fn what_the_iommu_allows_is_taken_from_the_kernel_s_description() {
        let l = limits(&described());
        assert_eq!(l.ranges, [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
        assert_eq!((l.page_sizes, l.max_mappings), (0x4020_1000, 65_000));
        let old = limits(&[24, 0, 0, 0]);
        assert_eq!((old.ranges, old.page_sizes), (vec![0..=LEAST_ADDRESSES - 1], 4096));
    }

    #[test]
    fn interrupts_that_can_not_be_confined_are_told() {
        let address = "0000:03:00.0".parse().unwrap();
        let refused =
            |errno| attach_refusal(address, "attaching", io::Error::from_raw_os_error(errno)).to_string();
        let told = refused(libc::EPERM);
        assert!(told.contains("0000:03:00.0") && told.contains("allow_unsafe_interrupts=1"), "{told}");
        assert!(refused(libc::ENOMEM).starts_with("attaching: Cannot allocate memory"));
    }

    #[test]
    fn a_chain_that_leads_in_circles_ends() {
        let mut b = described();
        b[28..32].copy_from_slice(&24_u32.to_ne_bytes());
        assert_eq!(limits(&b).ranges.len(), 2);
    }

    proptest! {
        #[test]
        fn no_description_is_a_reason_to_panic(
            changes in prop::collection::vec((0..84_usize, any::<u8>()), 0..20),
            cut in 0..=84_usize,
        ) {
            let mut b = described();
            for (at, to) in changes {
                b[at] = to;
            }
            b.truncate(cut);
            let l = limits(&b);
            prop_assert!(l.page_sizes != 0);
            crate::dma::DmaTable::new(&l);
        }
    }
}
