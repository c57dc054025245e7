//! Opening devices by name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::env::VarError;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hca_core::{Device, DeviceError, Mtu};
use hca_fabric::{
    AutoFabric, Capture, Fabric, FabricAttr, Faulty, LoopbackNet, OpenError as FabricError, RawFabric,
    RawOptions, ShmError, ShmFabric, ShmOptions, Tap, UdpFabric, UdpOptions, address_in, address_of,
    interface_index,
};
#[cfg(feature = "uring")]
use hca_fabric::{UringFabric, UringOptions};
#[cfg(feature = "vfio")]
use hca_mlx5::Mlx5;
use hca_process::PerProcess;
use hca_verbs::Context;
#[cfg(feature = "vfio")]
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use thiserror::Error;

use crate::url::{DeviceUrl, Options, Target, UrlError, Users};

hca_core::debug_as_display!(OpenError);

/// The environment variable that overrides the name given to [`open`].
pub const DEVICE_VARIABLE: &str = "HCA_DEVICE";

/// Loopback addresses that are tried for a device without one: from 127.0.0.2 on.
const LOOPBACK_TRIES: u32 = 4096;

/// The interface on which every machine can choose among addresses.
const LOOPBACK_INTERFACE: &str = "lo";

/// An error of opening a device.
#[derive(Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is wrong.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The name in the environment is wrong.
    #[error("{DEVICE_VARIABLE} in the environment: {0}")]
    Environment(UrlError),
    /// The name in the environment is no text.
    #[error("{DEVICE_VARIABLE} in the environment has bytes that are no UTF-8: leave them out")]
    EnvironmentBytes,
    /// The crate was built without such devices.
    #[error(
        "{url}: this program was built without the feature `{feature}` of the crate hca: add it to the features in Cargo.toml, or name another device"
    )]
    NotBuilt {
        /// The device.
        url: Box<DeviceUrl>,
        /// The feature that adds such devices.
        feature: &'static str,
    },
    /// The network can't be opened.
    #[error("{url}: {source}")]
    Fabric {
        /// The device.
        url: Box<DeviceUrl>,
        /// The reason and the remedy.
        source: FabricError,
    },
    /// The shared memory can't be opened.
    #[error("{url}: {source}")]
    Shm {
        /// The device.
        url: Box<DeviceUrl>,
        /// The reason and the remedy.
        source: ShmError,
    },
    /// All tried loopback addresses are in use.
    #[error(
        "{LOOPBACK_TRIES} loopback addresses from 127.0.0.2 on are in use: close a device, or name an address, as in udp://127.1.2.3"
    )]
    NoFreeAddress,
    /// The adapter can't be opened.
    #[error("{url}: {source}")]
    Device {
        /// The device.
        url: Box<DeviceUrl>,
        /// The reason.
        source: DeviceError,
    },
    /// The PCI function can't be opened.
    #[cfg(feature = "vfio")]
    #[error("{url}: {source}")]
    Function {
        /// The device.
        url: Box<DeviceUrl>,
        /// The reason and the remedy.
        source: Box<hca_vfio::OpenError>,
    },
    /// The adapter behind the PCI function can't be started.
    #[cfg(feature = "vfio")]
    #[error("{url}: {source}")]
    Adapter {
        /// The device.
        url: Box<DeviceUrl>,
        /// The reason and the remedy.
        source: Box<hca_mlx5::OpenError>,
    },
    /// The capture file can't be written.
    #[error("can't write the capture file {path}: {source}; name another one with capture=")]
    Capture {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
}

/// Opens a device by name, and returns its context. `auto://` is RoCEv2 over UDP, and uses shared memory for reliable
/// connections to other `auto://` devices of the same user on this machine; the counters `paths_by_shm` and
/// `paths_by_udp` of the device show the choices, and `udp://` always uses UDP. `HCA_DEVICE` overrides the name, so
/// that an unchanged program runs on another device.
///
/// ```
/// let context = hca::open("loopback://readme?progress=inline")?;
/// println!("{}: {}", context.attr().name, context.port().gid);
/// # Ok::<(), hca::OpenError>(())
/// ```
///
/// # Errors
/// The name is wrong, or the device can't be opened; the error names the remedy.
pub fn open(name: &str) -> Result<Context, OpenError> {
    Ok(open_device(name)?.context().clone())
}

/// Opens a device by name, like [`open`], and returns the adapter beside the context.
///
/// # Errors
/// Like [`open`].
pub fn open_device(name: &str) -> Result<Opened, OpenError> {
    match device_from_environment()? {
        Some(url) => open_exactly(&url),
        None => open_exactly(&name.parse()?),
    }
}

/// The device that the environment names.
///
/// # Errors
/// The environment names no valid device.
pub fn device_from_environment() -> Result<Option<DeviceUrl>, OpenError> {
    match std::env::var(DEVICE_VARIABLE) {
        Ok(name) if !name.is_empty() => name.parse().map(Some).map_err(OpenError::Environment),
        Err(VarError::NotUnicode(_)) => Err(OpenError::EnvironmentBytes),
        _ => Ok(None),
    }
}

/// Opens the device of this name, regardless of the environment.
///
/// # Errors
/// The device can't be opened.
pub fn open_exactly(url: &DeviceUrl) -> Result<Opened, OpenError> {
    if matches!(url.target, Target::Vfio { .. } | Target::VfioUser { .. }) {
        return open_function(url);
    }
    let options = &url.options;
    let (mut fabric, url) = bare_fabric(url)?;
    let fabric_name = fabric.attr().name.clone();
    if let Some(fault) = &options.fault {
        fabric = Box::new(Faulty::new(fabric, fault.plan()));
    }
    let capture = options.capture.as_deref().map(CaptureFile::create).transpose()?.unwrap_or_default();
    if let Some((_, capture)) = &capture.0 {
        fabric.set_tap(Some(Box::new(Arc::clone(capture))));
    }
    let settings = softhca::Options {
        progress: options.progress.unwrap_or_default(),
        lazy_acks: options.lazy_acks.unwrap_or_default(),
        mtu: options.mtu,
        ..softhca::Options::default()
    };
    let device = SoftHca::open(fabric, settings)
        .map_err(|source| OpenError::Device { url: Box::new(url.clone()), source })?;
    let context = Context::new(Arc::clone(&device) as Arc<dyn Device>);
    crate::stat::show(url.to_string(), context.device());
    Ok(Opened { url, soft: Some(device), context, fabric_name, capture })
}

/// Opens an adapter behind vfio.
#[cfg(feature = "vfio")]
fn open_function(url: &DeviceUrl) -> Result<Opened, OpenError> {
    let (function, options) = match &url.target {
        Target::Vfio { function, options } => (function.parse().and_then(PciFunction::open), options),
        Target::VfioUser { socket, options } => {
            (PciFunction::connect(socket, UserOptions::default()), options)
        }
        _ => unreachable!("only these are opened here"),
    };
    let function = function
        .map_err(|source| OpenError::Function { url: Box::new(url.clone()), source: source.into() })?;
    let mut settings = hca_mlx5::Options::default();
    settings.ip.clone_from(&options.ip);
    settings.neighbours.clone_from(&options.neighbours);
    settings.lids.clone_from(&options.lids);
    settings.mtu = options.mtu;
    settings.raise_port = options.raise.unwrap_or(settings.raise_port);
    settings.link_wait = options.wait.unwrap_or(settings.link_wait);
    settings.manager_wait = options.wait.unwrap_or(settings.manager_wait);
    let device = Mlx5::open(function, settings)
        .map_err(|source| OpenError::Adapter { url: Box::new(url.clone()), source: source.into() })?;
    let fabric_name = device.attr().fabric.clone();
    let context = Context::new(device as Arc<dyn Device>);
    crate::stat::show(url.to_string(), context.device());
    Ok(Opened { url: url.clone(), soft: None, context, fabric_name, capture: CaptureFile::default() })
}

#[cfg(not(feature = "vfio"))]
fn open_function(url: &DeviceUrl) -> Result<Opened, OpenError> {
    Err(OpenError::NotBuilt { url: Box::new(url.clone()), feature: "vfio" })
}

/// The network that a name asks for, and the name with its address.
type Named = Result<(Box<dyn Fabric>, DeviceUrl), OpenError>;

fn bare_fabric(url: &DeviceUrl) -> Named {
    let url = &*with_address(url)?;
    match &url.target {
        Target::Auto(ip) => match auto_at(*ip, url, None) {
            Err(OpenError::Fabric { source: why @ FabricError::CannotShare { .. }, .. }) => {
                auto_alone(*ip, url, &why)
            }
            opened => opened,
        },
        Target::Udp(None) => first_free(&|ip| udp(ip, url), url, &|ip| Target::Udp(Some(ip))),
        Target::Udp(Some(ip)) => at(&|ip| udp(ip, url), *ip, url.clone()),
        #[cfg(feature = "uring")]
        Target::Uring(None) => first_free(&|ip| uring(ip, url), url, &|ip| Target::Uring(Some(ip))),
        #[cfg(feature = "uring")]
        Target::Uring(Some(ip)) => at(&|ip| uring(ip, url), *ip, url.clone()),
        Target::Shm(domain) => shm(domain, url),
        Target::Raw { interface, options } => {
            let at = |ip| RawOptions { ip, ..*options };
            let target = |ip| Target::Raw { interface: interface.clone(), options: at(Some(ip)) };
            if interface == LOOPBACK_INTERFACE && options.ip.is_none() {
                return first_free(&|ip| raw(interface, at(Some(ip)), url), url, &target);
            }
            match raw(interface, at(options.ip), url) {
                Ok(fabric) => {
                    let target = target(fabric.attr().local);
                    Ok((fabric, DeviceUrl { target, options: url.options.clone() }))
                }
                Err(source) => Err(OpenError::Fabric { url: Box::new(url.clone()), source }),
            }
        }
        Target::Loopback(name) => Ok((Box::new(loopback(name)), url.clone())),
        Target::Vfio { .. } | Target::VfioUser { .. } => {
            unreachable!("an adapter behind vfio has a network of its own")
        }
        #[cfg(not(feature = "uring"))]
        Target::Uring(_) => Err(OpenError::NotBuilt { url: Box::new(url.clone()), feature: "uring" }),
    }
}

/// The name with the address of its interface or of its prefix, if it has one of these and no address.
fn with_address(url: &DeviceUrl) -> Result<Cow<'_, DeviceUrl>, OpenError> {
    let place = match (&url.target, &url.options.interface, url.options.prefix) {
        (Target::Auto(None) | Target::Udp(None) | Target::Uring(None), Some(interface), _) => {
            address_of(interface).map(|ip| (ip, interface.clone()))
        }
        (Target::Auto(None) | Target::Udp(None) | Target::Uring(None), None, Some(prefix)) => {
            address_in(prefix)
        }
        _ => return Ok(Cow::Borrowed(url)),
    };
    let (ip, interface) = place.map_err(|source| OpenError::Fabric { url: Box::new(url.clone()), source })?;
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut options = url.options.clone();
    options.prefix = None;
    options.interface = link_local.then_some(interface);
    let target = match url.target {
        Target::Udp(_) => Target::Udp(Some(ip)),
        Target::Uring(_) => Target::Uring(Some(ip)),
        _ => Target::Auto(Some(ip)),
    };
    Ok(Cow::Owned(DeviceUrl { target, options }))
}

/// Opens a network on an address.
type Opener<'a> = &'a dyn Fn(IpAddr) -> Result<Box<dyn Fabric>, FabricError>;

fn udp(ip: IpAddr, url: &DeviceUrl) -> Result<Box<dyn Fabric>, FabricError> {
    Ok(Box::new(UdpFabric::open(ip, &udp_options(url)?)?))
}

fn udp_options(url: &DeviceUrl) -> Result<UdpOptions, FabricError> {
    let interface = url.options.interface.as_deref().map_or(Ok(0), interface_index)?;
    let slots = url.options.share.unwrap_or_default();
    Ok(UdpOptions { interface, slots, ..UdpOptions::default() })
}

/// UDP and shared memory at an address, or at the first free one on loopback, with a note about sharing.
fn auto_at(ip: Option<IpAddr>, url: &DeviceUrl, note: Option<&str>) -> Named {
    let open = |ip| auto(ip, url, note);
    match ip {
        None => first_free(&open, url, &|ip| Target::Auto(Some(ip))),
        Some(ip) => at(&open, ip, url.clone()),
    }
}

/// An address for this device alone, where the kernel has none shared: the given one, or another loopback address if
/// that is in use and a loopback address, too.
fn auto_alone(ip: Option<IpAddr>, url: &DeviceUrl, why: &FabricError) -> Named {
    tracing::warn!(device = %url, %why, "the device takes an address of its own");
    let note = format!("none, this device has an address of its own: {why}");
    let mut own = url.clone();
    own.options.share = None;
    match auto_at(ip, &own, Some(&note)) {
        Err(OpenError::Fabric { source: FabricError::InUse(at), .. }) if at.is_loopback() && at.is_ipv4() => {
            auto_at(None, &own, Some(&note))
        }
        opened => opened,
    }
}

/// UDP, and shared memory with peers on this machine. Faults, captures and a smaller path MTU apply to packets: with
/// one of them, the device does not listen on shared memory, and all its peers are reached by UDP.
fn auto(ip: IpAddr, url: &DeviceUrl, note: Option<&str>) -> Result<Box<dyn Fabric>, FabricError> {
    let by_memory = all_messages(&url.options);
    if by_memory {
        // Before the UDP end, which may start a thread.
        ShmFabric::register_while_alone();
    }
    let mut udp = UdpFabric::open(ip, &udp_options(url)?)?;
    if let Some(note) = note {
        udp.note("shared address", note.to_owned());
    }
    if by_memory {
        return Ok(Box::new(AutoFabric::beside(udp, &shm_options(&url.options))?));
    }
    Ok(Box::new(udp))
}

/// Plain sockets where the kernel has no io_uring, or forbids it; [`Opened::stand_in`] says so then.
#[cfg(feature = "uring")]
fn uring(ip: IpAddr, url: &DeviceUrl) -> Result<Box<dyn Fabric>, FabricError> {
    let udp = udp_options(url)?;
    UringFabric::open_or_udp(ip, &UringOptions { udp, ..UringOptions::default() })
}

/// Whether nothing is asked for that is of packets.
fn all_messages(options: &Options) -> bool {
    options.fault.is_none() && options.capture.is_none() && options.mtu.is_none()
}

fn shm_options(options: &Options) -> ShmOptions {
    let settings = options.shm.as_deref().cloned().unwrap_or_default();
    ShmOptions {
        ring_bytes: settings.ring.unwrap_or(ShmOptions::default().ring_bytes),
        folder: settings.dir,
        any_user: settings.users == Some(Users::Any),
        isolated: settings.isolated.unwrap_or(false),
        process_vm: settings.process_vm.unwrap_or_default(),
        messages: all_messages(options),
    }
}

fn shm(domain: &str, url: &DeviceUrl) -> Named {
    match ShmFabric::open(domain, &shm_options(&url.options)) {
        Ok(fabric) => Ok((Box::new(fabric), url.clone())),
        Err(source) => Err(OpenError::Shm { url: Box::new(url.clone()), source }),
    }
}

fn raw(interface: &str, options: RawOptions, url: &DeviceUrl) -> Result<Box<dyn Fabric>, FabricError> {
    let options = RawOptions { slots: url.options.share.unwrap_or_default(), ..options };
    Ok(Box::new(RawFabric::open(interface, &options)?))
}

fn at(open: Opener<'_>, ip: IpAddr, url: DeviceUrl) -> Named {
    match open(ip) {
        Ok(fabric) => Ok((fabric, url)),
        Err(source) => Err(OpenError::Fabric { url: Box::new(url), source }),
    }
}

/// The first free loopback address. Devices that share an address begin with 127.0.0.1, which no other device takes
/// unless its name says so: all processes that give the same name are at the same address. The others begin behind it.
fn first_free(open: Opener<'_>, url: &DeviceUrl, target: &dyn Fn(IpAddr) -> Target) -> Named {
    let name = |ip| DeviceUrl { target: target(ip), options: url.options.clone() };
    let first = u32::from(Ipv4Addr::new(
        127,
        0,
        0,
        if url.options.share.is_some_and(|slots| slots > 0) { 1 } else { 2 },
    ));
    for ip in (first..first + LOOPBACK_TRIES).map(|n| IpAddr::V4(n.into())) {
        match open(ip) {
            Err(FabricError::InUse(_) | FabricError::SlotsTaken { .. } | FabricError::NameTaken { .. }) => {}
            Ok(fabric) => return Ok((fabric, name(ip))),
            Err(source) => return Err(OpenError::Fabric { url: Box::new(name(ip)), source }),
        }
    }
    Err(OpenError::NoFreeAddress)
}

/// The next address of the loopback network of this name in this process.
fn loopback(name: &str) -> impl Fabric + use<> {
    static NETS: PerProcess<Mutex<HashMap<String, (LoopbackNet, u32)>>> = PerProcess::new();
    let mut nets = NETS.get().lock().unwrap_or_else(PoisonError::into_inner);
    let (net, used) = nets.entry(name.to_owned()).or_insert_with(|| (LoopbackNet::new(), 0));
    *used += 1;
    net.attach(IpAddr::V4((u32::from(Ipv4Addr::new(10, 0, 0, 0)) + *used).into()))
}

/// A device that was opened by name.
pub struct Opened {
    url: DeviceUrl,
    soft: Option<Arc<SoftHca>>,
    context: Context,
    fabric_name: String,
    capture: CaptureFile,
}

/// A capture that the device writes to and its owner asks about.
type SharedCapture = Arc<Mutex<Capture>>;

/// The capture file of a device, if the device has one; the file may be flushed after the device has gone.
#[derive(Clone, Default)]
pub struct CaptureFile(Option<(PathBuf, SharedCapture)>);

impl std::fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CaptureFile").field(&self.0.as_ref().map(|(path, _)| path)).finish()
    }
}

impl CaptureFile {
    fn create(path: &Path) -> Result<Self, OpenError> {
        let refuse = |source| OpenError::Capture { path: path.display().to_string(), source };
        let file = Capture::create(path).map_err(refuse)?;
        Ok(Self(Some((path.to_owned(), Arc::new(Mutex::new(file))))))
    }
    /// Flushes the file, if there is one.
    ///
    /// # Errors
    /// The file could not be written, now or earlier.
    pub fn finish(&self) -> Result<(), OpenError> {
        let Some((path, capture)) = &self.0 else { return Ok(()) };
        let flushed = capture.lock().unwrap_or_else(PoisonError::into_inner).flush();
        flushed.map_err(|source| OpenError::Capture { path: path.display().to_string(), source })
    }
}

impl Opened {
    /// The device's name, with the address that was chosen.
    pub fn url(&self) -> &DeviceUrl {
        &self.url
    }
    /// The context: the root of all verbs objects of this device.
    pub fn context(&self) -> &Context {
        &self.context
    }
    /// The adapter as the device trait.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.context.device()
    }
    /// The adapter, if it is the one in software.
    pub fn soft(&self) -> Option<&Arc<SoftHca>> {
        self.soft.as_ref()
    }
    /// The network that carries the packets: `auto`, `udp`, `uring`, `shm`, `raw`, `loopback`; `roce` or `infiniband`
    /// of an adapter behind vfio.
    pub fn fabric(&self) -> &str {
        &self.fabric_name
    }
    /// The reason why the device uses another network than its name says, if it does: `uring://` on a kernel without
    /// io_uring.
    pub fn stand_in(&self) -> Option<String> {
        let mut notes = self.fabric_attr()?.notes.into_iter();
        notes.find(|(what, _)| *what == "io_uring").map(|(what, note)| format!("{what}: {note}"))
    }
    /// For a device that chooses the fabric by path: the numbers of paths over shared memory and over UDP so far.
    pub fn paths_taken(&self) -> Option<(u64, u64)> {
        let counters = self.device().counters();
        let count = |name| counters.iter().find(|c| c.name == name).map(|c| c.value);
        count("paths_by_shm").zip(count("paths_by_udp"))
    }
    /// The attributes of a software adapter's network.
    pub fn fabric_attr(&self) -> Option<FabricAttr> {
        self.soft.as_ref().map(|soft| soft.fabric())
    }
    /// The device's progress mode. An adapter behind vfio works by itself, as with an adapter thread.
    pub fn progress(&self) -> Progress {
        self.soft.as_ref().map_or(Progress::Thread, |soft| soft.progress())
    }
    /// Sends the acknowledgements that the device owes its peers, for a process that ends with the device open. Hardware
    /// owes none.
    pub fn acknowledge(&self) {
        self.soft.as_ref().inspect(|soft| soft.acknowledge_all());
    }
    /// The same without a wait for a lock, and without an allocation: for a process that ends in a signal handler.
    pub fn acknowledge_at_once(&self) {
        self.soft.as_ref().inspect(|soft| soft.acknowledge_at_once());
    }
    /// Flushes the capture file, if there is one.
    ///
    /// # Errors
    /// The file could not be written, now or earlier.
    pub fn finish_capture(&self) -> Result<(), OpenError> {
        self.capture.finish()
    }
    /// The capture file, which a program keeps that gives the device away.
    pub fn capture(&self) -> CaptureFile {
        self.capture.clone()
    }
    /// The largest path MTU of the device.
    pub fn mtu(&self) -> Mtu {
        self.context.port().active_mtu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_share_an_address_are_at_one_that_no_other_device_takes_by_itself() {
        let open = |name: &str| bare_fabric(&name.parse().unwrap()).unwrap();
        let _alone = open("udp://");
        let [a, b] = ["udp://?share=yes", "auto://?share=yes"].map(open);
        assert_eq!(a.1.to_string(), "udp://127.0.0.1?share=yes");
        assert_eq!(b.1.to_string(), "auto://127.0.0.1?share=yes");
    }

    #[test]
    fn an_interface_and_a_prefix_give_the_address_there() {
        for name in ["auto://lo?share=yes", "auto://127.0.0.0/8?share=yes"] {
            let url = name.parse().unwrap();
            assert_eq!(with_address(&url).unwrap().to_string(), "auto://127.0.0.1?share=yes");
        }
        for (name, parts) in [
            ("udp://no_such_link", ["no_such_link", "lo"]),
            ("udp://203.0.113.0/24", ["203.0.113.0/24", "127.0.0.1"]),
        ] {
            let error = with_address(&name.parse().unwrap()).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    #[cfg(not(feature = "uring"))]
    fn a_device_that_was_not_built_names_its_feature() {
        let Err(e) = open_exactly(&"uring://".parse().unwrap()) else { panic!("uring:// is opened") };
        assert!(e.to_string().contains("`uring`"), "{e}");
    }
}
