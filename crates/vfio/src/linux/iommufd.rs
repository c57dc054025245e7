//! Opening a function by its own node and `/dev/iommu`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::device::{Iommu, LinuxFunction, inclusive};
use super::group::attach_refusal;
use super::sys;
use super::tree::Roots;
use crate::address::PciAddress;
use crate::backend::DmaLimits;
use crate::error::OpenError;

/// Opens a function by its own node. `None`: this process may not, or the kernel does not do it; its group may serve.
pub(super) fn open(
    roots: &Roots,
    address: PciAddress,
    node: &Path,
) -> Result<Option<LinuxFunction>, OpenError> {
    let opened = roots.node(&roots.iommu(), "iommufd").and_then(|i| Ok((i, roots.node(node, "vfio-pci")?)));
    let (iommufd, device) = match opened {
        Ok(both) => both,
        Err(busy @ OpenError::Busy { .. }) => return Err(busy),
        Err(e) => {
            tracing::debug!(%e, "no iommufd");
            return Ok(None);
        }
    };
    if let Err(e) = sys::bind(device.as_fd(), iommufd.as_fd()) {
        return bind_refusal(address, node, e).map_or(Ok(None), Err);
    }
    let io = |doing| move |source| OpenError::Io { doing, source };
    let ioas = sys::ioas_alloc(iommufd.as_fd()).map_err(io("making an address space"))?;
    let refusal = |e| attach_refusal(address, "putting a function into its address space", e);
    sys::attach(device.as_fd(), ioas).map_err(refusal)?;
    let (ranges, alignment) =
        sys::ioas_ranges(iommufd.as_fd(), ioas).map_err(io("asking what the IOMMU allows"))?;
    let iommu = AddressSpace { iommufd, ioas, ranges, alignment };
    LinuxFunction::new(address, device, Box::new(iommu)).map(Some)
}

/// Why the kernel does not give a function to an iommufd; `None`: its group may serve.
fn bind_refusal(address: PciAddress, node: &Path, source: io::Error) -> Option<OpenError> {
    match source.raw_os_error() {
        Some(libc::EBUSY) => Some(OpenError::Busy { path: node.to_owned() }),
        Some(libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP) => None,
        _ => Some(attach_refusal(address, "giving a function to an iommufd", source)),
    }
}

/// An address space with one function in it.
#[derive(Debug)]
struct AddressSpace {
    iommufd: OwnedFd,
    ioas: u32,
    ranges: Vec<(u64, u64)>,
    alignment: u64,
}

impl Iommu for AddressSpace {
    fn map(&self, range: &sys::Range) -> io::Result<()> {
        sys::ioas_map(self.iommufd.as_fd(), self.ioas, range)
    }
    fn unmap(&self, iova: u64, len: u64) -> io::Result<u64> {
        sys::ioas_unmap(self.iommufd.as_fd(), self.ioas, iova, len)
    }
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.iommufd.as_fd()]
    }
    fn limits(&self) -> DmaLimits {
        DmaLimits {
            ranges: inclusive(self.ranges.iter().copied()),
            page_sizes: self.alignment.max(1).next_power_of_two(),
            // There is no limit but memory.
            max_mappings: u32::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_that_can_not_be_confined_are_told_as_the_kernel_tells_them_with_the_binding() {
        let address = "0000:03:00.0".parse().unwrap();
        let told = |errno| {
            let refused = bind_refusal(
                address,
                Path::new("/dev/vfio/devices/vfio3"),
                io::Error::from_raw_os_error(errno),
            );
            refused.map(|e| e.to_string())
        };
        let unsafe_interrupts = told(libc::EPERM).unwrap();
        assert!(
            unsafe_interrupts.contains("modprobe iommufd allow_unsafe_interrupts=1"),
            "{unsafe_interrupts}"
        );
        assert!(told(libc::EBUSY).unwrap().contains("vfio3 is open in another process"));
        assert_eq!(told(libc::ENOTTY), None);
        assert!(told(libc::ENOMEM).unwrap().starts_with("giving a function to an iommufd: "));
    }
}
