//! Why a function can't be opened, reached or given memory.

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
    /// What was given is no address of a PCI function.
    #[error(
        "`{given}` is not a PCI address: write domain:bus:device.function, as in 0000:03:00.0 (`lspci -D` lists them)"
    )]
    Address {
        /// The given value.
        given: String,
    },
    /// There is no such function.
    #[error("there is no PCI function {address} on this machine: `lspci -D` lists those that there are")]
    NoFunction {
        /// The one that was given.
        address: PciAddress,
    },
    /// Nothing stands between the function and the machine's memory.
    #[error(
        "the PCI function {address} is in no IOMMU group, so its memory accesses can't be confined: switch the IOMMU on \
         in the firmware (VT-d, AMD-Vi, SMMU), add intel_iommu=on or amd_iommu=on to the kernel's command line, and \
         reboot"
    )]
    NoIommu {
        /// The function.
        address: PciAddress,
    },
    /// Another driver has the function, or none.
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
    /// A neighbour of the function, from which the IOMMU can't tell it, belongs to the kernel.
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
        /// The other functions, and the driver that has each.
        others: Vec<(String, String)>,
    },
    /// There is no node for the group or for vfio itself.
    #[error("there is no {}: load the driver with `modprobe {module}`, as root", path.display())]
    NoNode {
        /// The device node.
        path: PathBuf,
        /// The module that makes it.
        module: &'static str,
    },
    /// This process may not open the node.
    #[error(
        "{} belongs to user {uid}, group {gid} (mode {mode:o}), so user {me} may not open it: `chown {me} {}` until it \
         is bound again, or for good the line `SUBSYSTEM==\"vfio\", OWNER=\"{me}\"` in /etc/udev/rules.d/70-vfio.rules",
        path.display(),
        path.display()
    )]
    NoRights {
        /// The device node.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
        /// The group's number.
        gid: u32,
        /// The permissions.
        mode: u32,
        /// Who this process is.
        me: u32,
    },
    /// Another process has the function.
    #[error("{} is open in another process: `fuser -v {}` tells which; end it", path.display(), path.display())]
    Busy {
        /// The device node.
        path: PathBuf,
    },
    /// Interrupts of the function could not be confined.
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
    /// The kernel's vfio is not as it is expected.
    #[error(
        "the kernel's vfio lacks {what}, which every kernel since 4.0 has: is it built in (CONFIG_VFIO_IOMMU_TYPE1)?"
    )]
    Kernel {
        /// The missing part.
        what: &'static str,
    },
    /// What was opened is something else.
    #[error("{name} is a device, but not a PCI function")]
    NotPci {
        /// The one that was given.
        name: String,
    },
    /// A socket or its server.
    #[error(transparent)]
    User(#[from] UserError),
    /// The function itself does not answer as one.
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

/// The reason why something can't be done with a function that is open.
#[derive(Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// There is no such BAR, or it has no memory.
    #[error(
        "{name} has no BAR {index}: functions have BARs 0 to 5, and the upper half of a 64-bit one has no number"
    )]
    NoBar {
        /// The function.
        name: String,
        /// Which BAR.
        index: u8,
    },
    /// An access does not fit its region.
    #[error(
        "no access to {bytes} bytes at {offset:#x} of {region} of {name}: it has {size:#x} bytes, and accesses must be aligned"
    )]
    Range {
        /// The function.
        name: String,
        /// The region.
        region: RegionName,
        /// Where.
        offset: u64,
        /// The number.
        bytes: u64,
        /// The region's length.
        size: u64,
    },
    /// The region can't be written, or not be read.
    #[error("{region} of {name} can't be {what}")]
    Right {
        /// The function.
        name: String,
        /// The region.
        region: RegionName,
        /// `read` or `written`.
        what: &'static str,
    },
    /// This part of a BAR may not be mapped.
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
        /// Where.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// What may be mapped: where each part begins, and its length.
        areas: Vec<(u64, u64)>,
    },
    /// The file behind a part of a BAR is shorter than its server says.
    #[error("the file that the server of {name} gives for {region} ends at {has:#x}, before {needs:#x}")]
    ShortFile {
        /// The function.
        name: String,
        /// The region.
        region: RegionName,
        /// Where the part ends.
        needs: u64,
        /// Where the file ends.
        has: u64,
    },
    /// Registers are mapped, and would be gone.
    #[error(
        "memory space of {name} can't be switched off while {windows} register mappings exist: drop them"
    )]
    StillMapped {
        /// The function.
        name: String,
        /// The number.
        windows: usize,
    },
    /// So many interrupts are not possible.
    #[error("{name} can't have {asked} MSI-X vectors: use 1 to {has}")]
    Vectors {
        /// The function.
        name: String,
        /// The requested value.
        asked: u32,
        /// What there is.
        has: u32,
    },
    /// They are set up already.
    #[error("MSI-X of {name} is set up already, with {vectors} vectors: disable it first")]
    VectorsInUse {
        /// The function.
        name: String,
        /// The number.
        vectors: u32,
    },
    /// The function can't be reset by itself.
    #[error(
        "{name} can't be reset by itself: it has no function level reset, and shares its bus with others"
    )]
    NoReset {
        /// The function.
        name: String,
    },
    /// It says something of itself that can't be.
    #[error("{name} describes {what} wrongly: {source}")]
    Description {
        /// The function.
        name: String,
        /// What.
        what: &'static str,
        /// The reason.
        source: crate::user::wire::WireError,
    },
    /// It was let go of.
    #[error("{name} was released: open it again, once it is bound to vfio-pci, or served, again")]
    LetGo {
        /// The function.
        name: String,
    },
    /// The server of the function refused, or is gone.
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

/// A region, for people.
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
    /// Nothing was asked for, or more than there can be.
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
    /// A server can only reach memory that stands behind a descriptor.
    #[error(
        "the {bytes} bytes at {addr:#x} can't be given to {name}: its server maps memory by descriptors, and these have \
         none; take memory from a DmaArena"
    )]
    Foreign {
        /// The function.
        name: String,
        /// Where the memory lies.
        addr: usize,
        /// How many bytes.
        bytes: usize,
    },
    /// Addresses for the device are used up.
    #[error(
        "no {bytes} bytes of device addresses are left for {name}: the IOMMU allows {allowed:#x} in all; unmap something"
    )]
    Addresses {
        /// The function.
        name: String,
        /// The requested value.
        bytes: u64,
        /// What the IOMMU allows.
        allowed: u64,
    },
    /// There are too many mappings.
    #[error("{name} has {limit} mappings for DMA, which is the limit: unmap something, or map larger pieces")]
    Mappings {
        /// The function.
        name: String,
        /// The limit.
        limit: u32,
    },
    /// More memory would be locked than this process may lock.
    #[error(
        "{needed} bytes more can't be locked for {name}: {locked} of {limit} are; raise the limit for this shell \
         (`ulimit -l {}`, as root), for a user in /etc/security/limits.conf (`USER hard memlock unlimited`, and soft), \
         or for a service (`LimitMEMLOCK=infinity`)",
        (locked + needed).div_ceil(1024)
    )]
    Memlock {
        /// The function.
        name: String,
        /// What the mapping needs.
        needed: u64,
        /// What is locked already.
        locked: u64,
        /// The limit.
        limit: u64,
    },
    /// No memory.
    #[error("{bytes} bytes of memory can't be had: {doing}: {source}{}", remedy(source))]
    Memory {
        /// The number.
        bytes: usize,
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// There is no such mapping.
    #[error("{name} has no mapping of {bytes} bytes at device address {iova:#x}")]
    NotMapped {
        /// The function.
        name: String,
        /// The address.
        iova: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// The server of the function refused, or is gone.
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
