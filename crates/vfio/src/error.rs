//! Errors: why a function can't be opened or accessed, or can't get memory.

use std::io;
use std::path::PathBuf;

use hca_core::remedy;
use thiserror::Error;

use crate::address::PciAddress;
use crate::user::UserError;

hca_core::debug_as_display!(OpenError, FunctionError, DmaError);

/// An error of opening a function.
#[derive(Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The given text is not the address of a PCI function.
    #[error(
        "`{given}` is not a PCI address: write domain:bus:device.function, as in 0000:03:00.0 (`lspci -D` lists them)"
    )]
    Address {
        /// The given value.
        given: String,
    },
    /// The machine has no function with this address.
    #[error("there is no PCI function {address} on this machine: `lspci -D` lists those that there are")]
    NoFunction {
        /// The given value.
        address: PciAddress,
    },
    /// The function is in no IOMMU group, so nothing restricts its memory accesses.
    #[error(
        "the PCI function {address} is in no IOMMU group, so its memory accesses can't be confined: switch the IOMMU on \
         in the firmware (VT-d, AMD-Vi, SMMU), add intel_iommu=on or amd_iommu=on to the kernel's command line, and \
         reboot"
    )]
    NoIommu {
        /// The function.
        address: PciAddress,
    },
    /// The function is bound to another driver than vfio-pci, or to none.
    #[error(
        "the PCI function {address} is bound to {}, not to vfio-pci: `modprobe vfio-pci; \
         echo vfio-pci > /sys/bus/pci/devices/{address}/driver_override; {}echo {address} > \
         /sys/bus/pci/drivers_probe` binds it, as root",
        bound_to.as_deref().unwrap_or("no driver"),
        unbind(*address, bound_to.as_deref())
    )]
    NotBound {
        /// The function.
        address: PciAddress,
        /// The driver that has it.
        bound_to: Option<String>,
    },
    /// Another function of the same IOMMU group is bound to a driver of the kernel.
    #[error(
        "group {group}, in which the PCI function {address} is, can't be used as the kernel still drives {}: bind them \
         to vfio-pci, too (`echo vfio-pci > /sys/bus/pci/devices/{first}/driver_override; echo {first} > \
         /sys/bus/pci/devices/{first}/driver/unbind; echo {first} > /sys/bus/pci/drivers_probe`), or unbind them",
        others_text(others),
        first = others.first().map_or_else(|| "ADDRESS".to_owned(), |(a, _)| a.clone())
    )]
    GroupNotViable {
        /// The function.
        address: PciAddress,
        /// The group.
        group: u32,
        /// The other functions, each with its driver.
        others: Vec<(String, String)>,
    },
    /// The device node of the group, or of vfio itself, does not exist.
    #[error("there is no {}: load the driver with `modprobe {module}`, as root", path.display())]
    NoNode {
        /// The device node.
        path: PathBuf,
        /// The kernel module that creates the node.
        module: &'static str,
    },
    /// This process lacks the permission to open the node.
    #[error(
        "{} belongs to user {uid}, group {gid} (mode {mode:o}), so user {me} may not open it: `chown {me} {}` until it \
         is bound again, or for good the line `SUBSYSTEM==\"vfio\", OWNER=\"{me}\"` in /etc/udev/rules.d/70-vfio.rules",
        path.display(),
        path.display()
    )]
    NoRights {
        /// The device node.
        path: PathBuf,
        /// The node's user id.
        uid: u32,
        /// The node's group id.
        gid: u32,
        /// The permissions.
        mode: u32,
        /// The user id of this process.
        me: u32,
    },
    /// Another process has the function.
    #[error("{} is open in another process: `fuser -v {}` tells which; end it", path.display(), path.display())]
    Busy {
        /// The device node.
        path: PathBuf,
    },
    /// The machine can't isolate the function's interrupts.
    #[error(
        "the machine can't isolate the interrupts of the PCI function {address}: switch interrupt remapping on in the \
         firmware (x2APIC), or, where every user of such functions is trusted with the machine, reload the module \
         with `modprobe vfio_iommu_type1 allow_unsafe_interrupts=1` (iommufd: `modprobe iommufd \
         allow_unsafe_interrupts=1`), as root"
    )]
    NoInterruptRemapping {
        /// The function.
        address: PciAddress,
    },
    /// The kernel's vfio lacks a required part.
    #[error(
        "the kernel's vfio lacks {what}, which every kernel since 4.0 has: is it built in (CONFIG_VFIO_IOMMU_TYPE1)?"
    )]
    Kernel {
        /// The missing part.
        what: &'static str,
    },
    /// The opened device is not a PCI function.
    #[error("{name} is a device, but not a PCI function")]
    NotPci {
        /// The given value.
        name: String,
    },
    /// The socket or its server reported an error.
    #[error(transparent)]
    User(#[from] UserError),
    /// The opened function reported an error.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The operating system refused the call.
    #[error("{doing}: {source}{}", remedy(source))]
    Io {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
}

fn unbind(address: PciAddress, bound_to: Option<&str>) -> String {
    let path = |_| format!("echo {address} > /sys/bus/pci/devices/{address}/driver/unbind; ");
    bound_to.map(path).unwrap_or_default()
}

fn others_text(others: &[(String, String)]) -> String {
    let one = |(address, driver): &(String, String)| format!("{address} by {driver}");
    others.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The reason why an operation on an open function failed.
#[derive(Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// The function has no BAR with this index, or the BAR is not memory.
    #[error(
        "{name} has no BAR {index}: functions have BARs 0 to 5, and the upper half of a 64-bit one has no number"
    )]
    NoBar {
        /// The function.
        name: String,
        /// The BAR's index.
        index: u8,
    },
    /// An access exceeds its region, or is not aligned.
    #[error(
        "no access to {bytes} bytes at {offset:#x} of {region} of {name}: it has {size:#x} bytes, and accesses must be aligned"
    )]
    Range {
        /// The function.
        name: String,
        /// The region.
        region: RegionName,
        /// The offset in the region.
        offset: u64,
        /// The number of accessed bytes.
        bytes: u64,
        /// The region's length.
        size: u64,
    },
    /// The region can't be read, or can't be written.
    #[error("{region} of {name} can't be {what}")]
    Right {
        /// The function.
        name: String,
        /// The region.
        region: RegionName,
        /// `read` or `written`.
        what: &'static str,
    },
    /// The part of a BAR may not be mapped.
    #[error(
        "bytes {offset:#x} to {:#x} of {region} of {name} can't be mapped: {}; use trapped accesses there",
        offset.saturating_add(*bytes),
        areas_text(areas)
    )]
    NotMappable {
        /// The function.
        name: String,
        /// The region.
        region: RegionName,
        /// The offset in the region.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// The parts that may be mapped, each with its offset and its length.
        areas: Vec<(u64, u64)>,
    },
    /// The file behind a part of a BAR is shorter than its server says.
    #[error("the file that the server of {name} gives for {region} ends at {has:#x}, before {needs:#x}")]
    ShortFile {
        /// The function.
        name: String,
        /// The region.
        region: RegionName,
        /// The end of the part in the file.
        needs: u64,
        /// The length of the file.
        has: u64,
    },
    /// Memory space can't be switched off, because register mappings exist.
    #[error(
        "memory space of {name} can't be switched off while {windows} register mappings exist: drop them"
    )]
    StillMapped {
        /// The function.
        name: String,
        /// The number of register mappings.
        windows: usize,
    },
    /// The function has fewer interrupt vectors than were asked for.
    #[error("{name} can't have {asked} MSI-X vectors: use 1 to {has}")]
    Vectors {
        /// The function.
        name: String,
        /// The requested value.
        asked: u32,
        /// The number of vectors that the function has.
        has: u32,
    },
    /// Interrupt vectors are set up already.
    #[error("MSI-X of {name} is set up already, with {vectors} vectors: disable it first")]
    VectorsInUse {
        /// The function.
        name: String,
        /// The number of vectors that are set up.
        vectors: u32,
    },
    /// The function has no reset that leaves other functions alone.
    #[error(
        "{name} can't be reset by itself: it has no function level reset, and shares its bus with others"
    )]
    NoReset {
        /// The function.
        name: String,
    },
    /// The function's description contradicts itself.
    #[error("{name} describes {what} wrongly: {source}")]
    Description {
        /// The function.
        name: String,
        /// The contradictory part.
        what: &'static str,
        /// The reason.
        source: crate::user::wire::WireError,
    },
    /// The function was released by [`PciFunction::let_go`](crate::PciFunction::let_go).
    #[error("{name} was released: open it again, once it is bound to vfio-pci, or served, again")]
    LetGo {
        /// The function.
        name: String,
    },
    /// The function's server refused, or is gone.
    #[error(transparent)]
    User(#[from] UserError),
    /// The operating system refused the call.
    #[error("{doing} of {name}: {source}{}", remedy(source))]
    Io {
        /// The function.
        name: String,
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
}

fn areas_text(areas: &[(u64, u64)]) -> String {
    if areas.is_empty() {
        return "no part of it may be".to_owned();
    }
    let one = |(offset, len): &(u64, u64)| format!("{offset:#x} to {:#x}", offset.saturating_add(*len));
    format!("what may be is {}", areas.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// A region of a function, as error messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionName {
    /// The configuration space.
    Config,
    /// A BAR.
    Bar(u8),
}

impl core::fmt::Display for RegionName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Config => f.write_str("the configuration space"),
            Self::Bar(index) => write!(f, "BAR {index}"),
        }
    }
}

/// The reason why memory is not available, or can't be given to a function.
#[derive(Error)]
#[non_exhaustive]
pub enum DmaError {
    /// The length or the alignment is out of range.
    #[error(
        "a piece of {bytes} bytes, aligned to {align}: use at least 1 byte, and a power of two from 1 to {max_align}"
    )]
    Size {
        /// The requested value.
        bytes: usize,
        /// The alignment.
        align: usize,
        /// The largest alignment.
        max_align: usize,
    },
    /// The memory has no file descriptor, so the function's server can't map it.
    #[error(
        "the {bytes} bytes at {addr:#x} can't be given to {name}: its server maps memory by descriptors, and these have \
         none; take memory from a DmaArena"
    )]
    Foreign {
        /// The function.
        name: String,
        /// The memory's address.
        addr: usize,
        /// The number of bytes.
        bytes: usize,
    },
    /// No device addresses are left.
    #[error(
        "no {bytes} bytes of device addresses are left for {name}: the IOMMU allows {allowed:#x} in all; unmap something"
    )]
    Addresses {
        /// The function.
        name: String,
        /// The requested value.
        bytes: u64,
        /// The number of bytes that the IOMMU allows.
        allowed: u64,
    },
    /// The function has as many mappings as are allowed.
    #[error("{name} has {limit} mappings for DMA, which is the limit: unmap something, or map larger pieces")]
    Mappings {
        /// The function.
        name: String,
        /// The limit.
        limit: u32,
    },
    /// The mapping would exceed the limit of memory that this process may lock.
    #[error(
        "{needed} bytes more can't be locked for {name}: {locked} of {limit} are; raise the limit for this shell \
         (`ulimit -l {}`, as root), for a user in /etc/security/limits.conf (`USER hard memlock unlimited`, and soft), \
         or for a service (`LimitMEMLOCK=infinity`)",
        (locked + needed).div_ceil(1024)
    )]
    Memlock {
        /// The function.
        name: String,
        /// The bytes that the mapping needs.
        needed: u64,
        /// The bytes that are locked already.
        locked: u64,
        /// The limit.
        limit: u64,
    },
    /// The system has no memory of this size.
    #[error("{bytes} bytes of memory can't be had: {doing}: {source}{}", remedy(source))]
    Memory {
        /// The requested number of bytes.
        bytes: usize,
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The function has no such mapping.
    #[error("{name} has no mapping of {bytes} bytes at device address {iova:#x}")]
    NotMapped {
        /// The function.
        name: String,
        /// The address.
        iova: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The function's server refused, or is gone.
    #[error(transparent)]
    User(#[from] UserError),
    /// The operating system refused the call.
    #[error("{doing} {name}: {source}{}", remedy(source))]
    Io {
        /// The function.
        name: String,
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
}
