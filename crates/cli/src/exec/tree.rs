//! The files by which programs find RDMA devices, as Linux shows them below `/sys/class/infiniband` and
//! `/dev/infiniband`. `hca-paths`, which programs preload, leads them here.
//!
//! The folder is in the user's own folder of temporary files, under a name made of the contents: programs with the same
//! devices share it. It stays until another one is made an hour and more after its last use, and no process of the user
//! knows it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hca::hca_core::{GidEntry, GidType, LinkLayer, LinkSpeed};
use hca::{NamedDevice, Target, open_exactly};
use hca_fabric::{address_in, address_of};

use super::PATHS_VARIABLE;

/// A file's path below the root, and its contents. A device file, which programs look for and do not use, has none: it is
/// a link to a character device that everybody may open.
type File = (String, Option<String>);
/// The file behind device files.
const DEVICE_FILE: &str = "/dev/null";
/// The number of that device.
const DEVICE_NUMBER: &str = "1:3";

/// The files of a port's counters, and what each is the sum of: the port's counters, by the IBA's names, and the
/// device's own. `hca-paths` adds them up as a program opens the file. A name that no device has is 0.
const COUNTERS: [(&str, &str); 23] = [
    ("counters/VL15_dropped", "-"),
    ("counters/link_downed", "-"),
    ("counters/link_error_recovery", "-"),
    ("counters/port_rcv_data", "PortRcvData"),
    ("counters/port_rcv_errors", "PortRcvErrors"),
    ("counters/port_rcv_packets", "PortRcvPkts"),
    ("counters/port_xmit_data", "PortXmitData"),
    ("counters/port_xmit_discards", "PortXmitDiscards"),
    ("counters/port_xmit_packets", "PortXmitPkts"),
    ("counters/symbol_error", "-"),
    ("hw_counters/duplicate_request", "rx_duplicate"),
    ("hw_counters/local_ack_timeout_err", "timeouts"),
    ("hw_counters/np_cnp_sent", "cnp_sent"),
    ("hw_counters/np_ecn_marked_roce_packets", "ecn_marked"),
    ("hw_counters/out_of_buffer", "rx_dropped_no_recv rnr_nak_sent"),
    ("hw_counters/out_of_sequence", "nak_sequence_sent"),
    ("hw_counters/rnr_nak_retry_err", "rnr_nak_received"),
    ("hw_counters/rp_cnp_handled", "cnp_received"),
    ("hw_counters/rx_atomic_requests", "rx_atomic_requests"),
    ("hw_counters/rx_icrc_encapsulated", "icrc_errors"),
    ("hw_counters/rx_read_requests", "rx_read_requests"),
    ("hw_counters/rx_write_requests", "rx_write_requests"),
    ("hw_counters/tx_discards", "PortXmitDiscards"),
];
/// A folder is kept so long after its last use, even if no process uses it.
const KEPT: Duration = Duration::from_secs(3600);
/// Entries of the GID table that are shown.
const GIDS: u32 = 4;

/// The folder with the files of these devices.
///
/// # Errors
/// The system refuses the files, or the folder is another user's.
pub(super) fn tree(devices: &[NamedDevice]) -> io::Result<PathBuf> {
    let mut files = vec![
        ("sys/class/infiniband_verbs/abi_version".to_owned(), Some("6\n".to_owned())),
        ("sys/class/infiniband_cm/abi_version".to_owned(), Some("5\n".to_owned())),
        ("dev/infiniband/rdma_cm".to_owned(), None),
    ];
    let table = COUNTERS.map(|(file, names)| format!("{file}\t{names}\n")).concat();
    files.push(("counters".to_owned(), Some(table)));
    devices.iter().enumerate().for_each(|(place, device)| add(&mut files, place, device));
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let own = own_folder()?;
    let there = own.join(format!("devices-{:016x}", hasher.finish()));
    if there.is_dir() {
        // It was used now; without the right to say so it is cleaned up sooner.
        let _ = fs::File::open(&there).and_then(|folder| folder.set_modified(SystemTime::now()));
        fill(&there, &files)?;
        return Ok(there);
    }
    clean_up(&own);
    // Processes of other namespaces have this number, too.
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos());
    let made = own.join(format!("making-{}-{now}", std::process::id()));
    fill(&made, &files)?;
    match fs::rename(&made, &there) {
        // Another process was quicker.
        Err(_) if there.is_dir() => fs::remove_dir_all(&made)?,
        renamed => renamed?,
    }
    Ok(there)
}

/// Makes the files of a tree that are not there. Cleaners of temporary files take old ones out of a tree in use.
fn fill(tree: &Path, files: &[File]) -> io::Result<()> {
    for (path, contents) in files {
        let path = tree.join(path);
        if path.symlink_metadata().is_ok() {
            continue;
        }
        fs::create_dir_all(path.parent().expect("a file has a folder"))?;
        match contents {
            Some(contents) => fs::write(path, contents)?,
            None => match symlink(DEVICE_FILE, path) {
                // Another process was quicker.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            },
        }
    }
    Ok(())
}

/// Removes folders that were not used for long and that no process names in its environment.
fn clean_up(own: &Path) {
    let is_old = |path: &Path| {
        let used = fs::metadata(path).and_then(|found| found.modified());
        used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age > KEPT))
    };
    let folders = fs::read_dir(own).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut old: Vec<PathBuf> = folders.filter(|path| is_old(path)).collect();
    if old.is_empty() {
        return;
    }
    // Processes of other users can't read the folder.
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(environment) = fs::read(process.path().join("environ")) else { continue };
        let names = |path: &Path| {
            let variable = [PATHS_VARIABLE.as_bytes(), b"=", path.as_os_str().as_bytes()].concat();
            environment.split(|byte| *byte == 0).any(|part| part == variable)
        };
        old.retain(|path| !names(path));
    }
    // What can't be removed stays.
    old.iter().for_each(|path| _ = fs::remove_dir_all(path));
}

/// The rate of a port as Linux shows it. A port without a link has the rate that `ibv_query_port` tells.
fn rate(link: Option<LinkSpeed>) -> String {
    let LinkSpeed { mbps, lanes } = link.unwrap_or(LinkSpeed { mbps: 2_500, lanes: Some(1) });
    let lanes = u32::from(lanes.unwrap_or(1).max(1));
    let names =
        [(2_500, "SDR"), (5_000, "DDR"), (10_000, "QDR"), (14_000, "FDR"), (25_000, "EDR"), (50_000, "HDR")];
    let name = names.iter().find(|(fastest, _)| mbps / lanes <= *fastest).map_or("NDR", |(_, name)| name);
    let tenths = mbps % 1000 / 100;
    let rest = if tenths == 0 { String::new() } else { format!(".{tenths}") };
    format!("{}{rest} Gb/sec ({lanes}X {name})", mbps / 1000)
}

/// The user's own folder, which nobody else writes to.
fn own_folder() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("hca-{uid}"));
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        let what = format!("{} is not a folder that this user alone writes to: remove it", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    // Programs go elsewhere, and the C library tells them the real name.
    folder.canonicalize()
}

/// What the files tell of a port.
struct Port {
    is_up: bool,
    link_layer: LinkLayer,
    link: Option<LinkSpeed>,
    gids: Vec<GidEntry>,
}

impl Port {
    /// The port of a device. A device that only one process can have is not opened: a program of another `hca exec` may
    /// be about to open it. Nor is an adapter behind vfio, which that would reset.
    fn of(device: &NamedDevice) -> Self {
        let mut url = device.url.clone();
        url.options.capture = None;
        let ip = match &url.target {
            Target::Auto(ip) | Target::Udp(ip) | Target::Uring(ip) => *ip,
            _ => None,
        };
        let of_interface = || url.options.interface.as_deref().and_then(|name| address_of(name).ok());
        let of_prefix = || url.options.prefix.and_then(|prefix| address_in(prefix).ok()).map(|(ip, _)| ip);
        let is_raw = matches!(url.target, Target::Raw { .. });
        let ip = ip.or_else(of_interface).or_else(of_prefix).filter(|_| !is_raw);
        let is_function = matches!(url.target, Target::Vfio { .. } | Target::VfioUser { .. });
        let is_shared = url.options.share.is_some_and(|processes| processes > 0);
        let unknown = Self { is_up: true, link_layer: LinkLayer::Ethernet, link: None, gids: Vec::new() };
        if is_function {
            return unknown;
        }
        if let Some(ip) = ip.filter(|_| !is_shared) {
            let interface = url.options.interface.clone().or_else(|| interface_of(ip));
            let gids = GidEntry::of_port(ip.into(), GidType::RoceV2, interface.as_deref());
            return Self { gids, ..unknown };
        }
        let Ok(opened) = open_exactly(&url) else { return Self { is_up: false, ..unknown } };
        let (port, gids) = (opened.device().port(), opened.device().gids());
        Self { is_up: port.active, link_layer: port.link_layer, link: port.link, gids }
    }
}

/// The interface that has an address.
fn interface_of(ip: IpAddr) -> Option<String> {
    if ip.is_loopback() {
        return Some("lo".to_owned());
    }
    let names = fs::read_dir("/sys/class/net").ok()?.flatten();
    let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| address_of(name).is_ok_and(|address| address == ip))
}

/// Adds the files of a device. One that can't be opened now is shown with its port down.
fn add(files: &mut Vec<File>, place: usize, device: &NamedDevice) {
    let name = &device.name;
    let guid = device.node_guid();
    let guid =
        guid.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect::<Vec<_>>().join(":");
    let verbs = format!("sys/class/infiniband_verbs/uverbs{place}");
    files.push((format!("dev/infiniband/uverbs{place}"), None));
    files.extend(
        [("ibdev", name.as_str()), ("abi_version", "1"), ("dev", DEVICE_NUMBER)]
            .map(|(file, text)| (format!("{verbs}/{file}"), Some(format!("{text}\n")))),
    );
    let root = format!("sys/class/infiniband/{name}");
    let mut put = |file: &str, text: &str| files.push((format!("{root}/{file}"), Some(format!("{text}\n"))));
    let version = env!("CARGO_PKG_VERSION");
    for (file, text) in [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", name),
        ("fw_ver", version),
        ("hca_type", "hca"),
        ("board_id", "hca"),
        ("hw_rev", "0"),
        ("device/numa_node", "-1"),
        ("device/vendor", "0x0000"),
        ("device/device", "0x0000"),
        ("device/local_cpus", "ffffffff,ffffffff"),
    ] {
        put(file, text);
    }
    let Port { is_up, link_layer, link, gids } = Port::of(device);
    let ib = link_layer == LinkLayer::InfiniBand;
    for (file, text) in [
        ("state", if is_up { "4: ACTIVE" } else { "1: DOWN" }),
        ("phys_state", if is_up { "5: LinkUp" } else { "3: Disabled" }),
        ("rate", &rate(link)),
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("cap_mask", "0x04010000"),
        ("link_layer", if ib { "InfiniBand" } else { "Ethernet" }),
        ("pkeys/0", "0xffff"),
    ] {
        put(&format!("ports/1/{file}"), text);
    }
    for (counter, _) in COUNTERS {
        put(&format!("ports/1/{counter}"), "0");
    }
    for index in 0..GIDS {
        let entry = gids.iter().find(|entry| entry.index == index);
        let gid = entry.map_or([0; 16], |entry| entry.gid.0);
        let text: Vec<String> = gid.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect();
        put(&format!("ports/1/gids/{index}"), &text.join(":"));
        // Linux shows no attributes of an entry that is not in use.
        let Some(entry) = entry else { continue };
        let kind = if entry.kind == GidType::RoceV2 { "RoCE v2" } else { "IB/RoCE v1" };
        put(&format!("ports/1/gid_attrs/types/{index}"), kind);
        put(&format!("ports/1/gid_attrs/ndevs/{index}"), entry.interface.as_deref().unwrap_or_default());
    }
}

/// The path of a library beside the shared object, if it is there.
pub(super) fn beside(library: &Path, name: &str) -> Option<PathBuf> {
    let path = std::path::absolute(library.with_file_name(name)).ok()?;
    path.is_file().then_some(path)
}
