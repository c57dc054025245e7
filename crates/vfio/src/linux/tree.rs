//! The files in `/sys` and `/dev` about a function, and the reasons why the function can't be opened.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::address::PciAddress;
use crate::error::OpenError;

/// Where the system's files are, and how nodes are opened: others in tests.
pub(super) struct Roots {
    pub(super) sys: PathBuf,
    pub(super) dev: PathBuf,
    pub(super) open: fn(&Path) -> io::Result<OwnedFd>,
}

impl Roots {
    pub(super) fn of_system() -> Self {
        let open = |path: &Path| {
            let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
            Ok(OwnedFd::from(file))
        };
        Self { sys: "/sys".into(), dev: "/dev".into(), open }
    }
    fn device(&self, address: impl core::fmt::Display) -> PathBuf {
        self.sys.join(format!("bus/pci/devices/{address}"))
    }
    /// The node of vfio that stands for containers, or for a group.
    pub(super) fn vfio(&self, name: impl core::fmt::Display) -> PathBuf {
        self.dev.join(format!("vfio/{name}"))
    }
    /// The node of iommufd.
    pub(super) fn iommu(&self) -> PathBuf {
        self.dev.join("iommu")
    }

    /// Opens a node, and explains why it can't be.
    pub(super) fn node(&self, path: &Path, module: &'static str) -> Result<OwnedFd, OpenError> {
        (self.open)(path).map_err(|source| refusal(path, module, source))
    }
}

fn refusal(path: &Path, module: &'static str, source: io::Error) -> OpenError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => OpenError::NoNode { path, module },
        Some(libc::EBUSY) => OpenError::Busy { path },
        Some(libc::EACCES | libc::EPERM) => {
            let of = fs::metadata(&path);
            let (uid, gid, mode) = of.map_or((0, 0, 0), |m| (m.uid(), m.gid(), m.mode() & 0o777));
            OpenError::NoRights { path, uid, gid, mode, me: rustix::process::geteuid().as_raw() }
        }
        _ => OpenError::Io { doing: "opening a node of vfio", source },
    }
}

/// A function that can be opened, as far as files tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) group: u32,
    /// The function's own node, where the kernel makes one.
    pub(super) node: Option<PathBuf>,
}

/// Looks a function up.
pub(super) fn find(roots: &Roots, address: PciAddress) -> Result<Found, OpenError> {
    let device = roots.device(address);
    if !device.exists() {
        return Err(OpenError::NoFunction { address });
    }
    let group = link_name(&device.join("iommu_group")).and_then(|g| g.parse().ok());
    let group = group.ok_or(OpenError::NoIommu { address })?;
    let bound_to = link_name(&device.join("driver"));
    if !bound_to.as_deref().is_some_and(is_vfio) {
        return Err(OpenError::NotBound { address, bound_to });
    }
    let others = held_by_kernel(roots, &device);
    if !others.is_empty() {
        return Err(OpenError::GroupNotViable { address, group, others });
    }
    Ok(Found { group, node: own_node(roots, &device) })
}

/// The last part of where a link leads.
fn link_name(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Drivers that hand functions to programs: the general one, and those for single makers (`mlx5_vfio_pci`).
fn is_vfio(driver: &str) -> bool {
    driver == "vfio-pci" || driver.ends_with("vfio-pci") || driver.ends_with("vfio_pci")
}

/// Functions of the same group that the kernel drives, with the driver of each. Bridges and stubs do no harm.
fn held_by_kernel(roots: &Roots, device: &Path) -> Vec<(String, String)> {
    let Ok(members) = fs::read_dir(device.join("iommu_group/devices")) else { return Vec::new() };
    let names = members.filter_map(|m| m.ok()?.file_name().into_string().ok());
    let harmless = |driver: &str| is_vfio(driver) || matches!(driver, "pci-stub" | "pcieport");
    let driven = names.filter_map(|n| link_name(&roots.device(&n).join("driver")).map(|d| (n, d)));
    let mut held: Vec<_> = driven.filter(|(_, driver)| !harmless(driver)).collect();
    held.sort();
    held
}

fn own_node(roots: &Roots, device: &Path) -> Option<PathBuf> {
    let mut names = fs::read_dir(device.join("vfio-dev")).ok()?;
    let name = names.find_map(|n| n.ok()?.file_name().into_string().ok())?;
    let node = roots.vfio("devices").join(name);
    (node.exists() && roots.iommu().exists()).then_some(node)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const FUNCTION: &str = "0000:03:00.0";
    const NEIGHBOUR: &str = "0000:03:00.1";

    /// A made-up machine, which is gone when it is dropped.
    struct Machine {
        root: PathBuf,
        roots: Roots,
    }
    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
    impl Machine {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let n = COUNT.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir().join(format!("hca-vfio-{}-{n}", std::process::id()));
            let (sys, dev) = (root.join("sys"), root.join("dev"));
            fs::create_dir_all(sys.join("bus/pci/devices")).unwrap();
            fs::create_dir_all(dev.join("vfio/devices")).unwrap();
            let roots = Roots { sys, dev, open: Roots::of_system().open };
            Self { root, roots }
        }
        fn function(&self, address: &str, group: Option<u32>, driver: Option<&str>) -> &Self {
            let device = self.roots.device(address);
            fs::create_dir_all(&device).unwrap();
            if let Some(group) = group {
                let at = self.roots.sys.join(format!("kernel/iommu_groups/{group}"));
                fs::create_dir_all(at.join("devices").join(address)).unwrap();
                symlink(&at, device.join("iommu_group")).unwrap();
            }
            if let Some(driver) = driver {
                symlink(self.roots.sys.join("bus/pci/drivers").join(driver), device.join("driver")).unwrap();
            }
            self
        }
        fn find(&self) -> Result<Found, OpenError> {
            find(&self.roots, FUNCTION.parse().unwrap())
        }
        fn told(&self) -> String {
            self.find().unwrap_err().to_string()
        }
    }

    #[track_caller]
    fn tells(told: &str, parts: &[&str]) {
        for part in parts {
            assert!(told.contains(part), "`{part}` is not in: {told}");
        }
    }

    #[test]
    fn a_function_that_is_not_there_is_told() {
        let m = Machine::new();
        assert!(matches!(m.find(), Err(OpenError::NoFunction { .. })));
        tells(&m.told(), &[FUNCTION, "lspci -D"]);
    }

    #[test]
    fn a_function_without_an_iommu_is_told_how_to_switch_one_on() {
        let m = Machine::new();
        m.function(FUNCTION, None, Some("mlx5_core"));
        assert!(matches!(m.find(), Err(OpenError::NoIommu { .. })));
        tells(&m.told(), &["intel_iommu=on", "amd_iommu=on", "firmware"]);
    }

    #[test]
    fn a_function_of_another_driver_is_told_how_to_bind_it() {
        let m = Machine::new();
        m.function(FUNCTION, Some(7), Some("mlx5_core"));
        let Err(OpenError::NotBound { bound_to, .. }) = m.find() else { panic!("{:?}", m.find()) };
        assert_eq!(bound_to.as_deref(), Some("mlx5_core"));
        tells(
            &m.told(),
            &[
                "bound to mlx5_core",
                "echo vfio-pci > /sys/bus/pci/devices/0000:03:00.0/driver_override",
                "echo 0000:03:00.0 > /sys/bus/pci/devices/0000:03:00.0/driver/unbind",
                "echo 0000:03:00.0 > /sys/bus/pci/drivers_probe",
            ],
        );
        let unbound = Machine::new();
        unbound.function(FUNCTION, Some(7), None);
        tells(&unbound.told(), &["bound to no driver", "drivers_probe"]);
        assert!(!unbound.told().contains("unbind;"), "{}", unbound.told());
    }

    #[test]
    fn a_group_of_which_the_kernel_drives_a_part_is_told_with_the_function_and_its_driver() {
        let m = Machine::new();
        m.function(FUNCTION, Some(7), Some("vfio-pci")).function(NEIGHBOUR, Some(7), Some("mlx5_core"));
        m.function("0000:03:01.0", Some(7), Some("pcieport")).function("0000:03:02.0", Some(7), None);
        let Err(OpenError::GroupNotViable { group: 7, others, .. }) = m.find() else { panic!() };
        assert_eq!(others, [(NEIGHBOUR.to_owned(), "mlx5_core".to_owned())]);
        tells(
            &m.told(),
            &[
                "group 7",
                "0000:03:00.1 by mlx5_core",
                "devices/0000:03:00.1/driver/unbind",
                "driver_override",
            ],
        );
    }

    #[test]
    fn a_function_is_found_with_its_group_and_with_its_own_node_where_there_is_one() {
        let m = Machine::new();
        m.function(FUNCTION, Some(7), Some("vfio-pci")).function(NEIGHBOUR, Some(7), Some("mlx5_vfio_pci"));
        assert_eq!(m.find().unwrap(), Found { group: 7, node: None });
        fs::create_dir_all(m.roots.device(FUNCTION).join("vfio-dev/vfio3")).unwrap();
        assert_eq!(m.find().unwrap().node, None, "the node itself is missing");
        let node = m.roots.dev.join("vfio/devices/vfio3");
        fs::write(&node, "").unwrap();
        assert_eq!(m.find().unwrap().node, None, "the kernel has no iommufd");
        fs::write(m.roots.iommu(), "").unwrap();
        assert_eq!(m.find().unwrap().node, Some(node));
    }

    #[test]
    fn a_node_that_is_missing_is_told_with_the_module_that_makes_it() {
        let m = Machine::new();
        let refused = m.roots.node(&m.roots.vfio(7), "vfio-pci").unwrap_err();
        assert!(matches!(refused, OpenError::NoNode { .. }));
        tells(&refused.to_string(), &["vfio/7", "modprobe vfio-pci"]);
    }

    #[test]
    fn a_node_of_somebody_else_is_told_with_its_owner_and_the_ways_to_change_that() {
        let mut m = Machine::new();
        let node = m.roots.vfio(7);
        fs::write(&node, "").unwrap();
        m.roots.open = |_| Err(io::Error::from_raw_os_error(libc::EACCES));
        let refused = m.roots.node(&node, "vfio-pci").unwrap_err();
        let OpenError::NoRights { uid, me, .. } = &refused else { panic!("{refused}") };
        assert_eq!(uid, me, "this test has made the file");
        tells(&refused.to_string(), &["vfio/7 belongs to user", "chown", "/etc/udev/rules.d"]);
    }

    #[test]
    fn a_node_that_another_process_has_open_is_told_with_the_way_to_find_it() {
        let mut m = Machine::new();
        m.roots.open = |_| Err(io::Error::from_raw_os_error(libc::EBUSY));
        let refused = m.roots.node(&m.roots.vfio(7), "vfio-pci").unwrap_err();
        assert!(matches!(refused, OpenError::Busy { .. }));
        tells(&refused.to_string(), &["open in another process", "fuser -v"]);
        m.roots.open = |_| Err(io::Error::from_raw_os_error(libc::EMFILE));
        let refused = m.roots.node(&m.roots.vfio(7), "vfio-pci").unwrap_err();
        tells(&refused.to_string(), &["opening a node", "RLIMIT_NOFILE"]);
    }
}
