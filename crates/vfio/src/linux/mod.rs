//! Functions of this machine, by the kernel's vfio.
//!
//! | file | contents |
//! |---|---|
//! | `tree` | the files in `/sys` and `/dev` about a function, and the errors that follow from them |
//! | `group` | opening by container and group: TYPE1v2, in all kernels that have vfio |
//! | `iommufd` | opening by the function's own node and `/dev/iommu` |
//! | `device` | the common part of both ways, once the function is open |
//! | `sys` | the system calls |

mod device;
mod group;
mod iommufd;
mod sys;
mod tree;

use crate::address::PciAddress;
use crate::backend::Backend;
use crate::error::OpenError;

/// Opens a function that is bound to vfio-pci.
pub(crate) fn open(address: PciAddress) -> Result<Box<dyn Backend>, OpenError> {
    let roots = tree::Roots::of_system();
    let found = tree::find(&roots, address)?;
    if let Some(node) = &found.node
        && let Some(function) = iommufd::open(&roots, address, node)?
    {
        return Ok(Box::new(function));
    }
    Ok(Box::new(group::open(&roots, address, found.group)?))
}
