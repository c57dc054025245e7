//! Devices with their connection managers, found by IP addresses.

use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use hca::cm::{Agent, CmError, ConnectionError, PortSpace, ServiceId, ports_to_bind};
use hca::hca_core::{Device, DeviceError, Gid};
use hca_process::{PerProcess, as_library};

use super::border::Field;
use crate::abi::{IbvContext, IbvXrcdInitAttr};
use crate::context::Context;
use crate::device::named_devices;
use crate::entry::{Errno, In, lock, made};
use crate::explain;
use crate::memory::{Pd, ibv_alloc_pd};
use crate::xrc::{Xrcd, open_xrcd};

/// A device whose context this library has open for the connections of the program, until the process ends.
pub(crate) struct CmDevice {
    /// The context that identifiers have.
    context: Field<*mut IbvContext>,
    /// The protection domain of queue pairs for which the program gives none.
    pd: Field<*mut Pd>,
    /// The XRC domain of identifiers' targets and queues, once one needs it.
    xrcd: Mutex<Option<Field<*mut Xrcd>>>,
    pub(super) agent: Agent,
    pub(super) gid: Gid,
    /// Services that identifiers of this process are bound to, and how many are.
    bound: Mutex<HashMap<ServiceId, u32>>,
}

/// The devices of this process, opened when the first identifier needs one.
static DEVICES: PerProcess<Mutex<Vec<Arc<CmDevice>>>> = PerProcess::new();

impl CmDevice {
    fn open(at: usize) -> Result<Self, Errno> {
        let context = In::of(Context::open(In::of(at as *mut _))?);
        let adapter = &context.context()?.adapter;
        let agent = Agent::of(adapter.verbs()).map_err(|e| {
            explain::say(format_args!("device {}: {e}", adapter.device().attr().name));
            Errno(libc::ENODEV)
        })?;
        let pd = Field::new(made(ibv_alloc_pd(context))?);
        let gid = agent.gid();
        let context = Field::new(context.raw());
        Ok(Self { context, pd, xrcd: Mutex::default(), agent, gid, bound: Mutex::default() })
    }
    /// All devices that can be opened.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn all() -> Result<Vec<Arc<Self>>, Errno> {
        let mut open = lock(DEVICES.get());
        if open.is_empty() {
            let named = named_devices()?;
            open.extend(named.iter().filter_map(|at| Self::open(*at).ok()).map(Arc::new));
        }
        if open.is_empty() { Err(Errno(libc::ENODEV)) } else { Ok(open.clone()) }
    }
    pub(super) fn context(&self) -> *mut IbvContext {
        self.context.get()
    }
    pub(super) fn pd(&self) -> *mut Pd {
        self.pd.get()
    }
    /// The XRC domain that identifiers share.
    pub(super) fn xrcd(&self) -> Result<*mut Xrcd, Errno> {
        let mut domain = lock(&self.xrcd);
        if let Some(there) = &*domain {
            return Ok(there.get());
        }
        const FD_AND_FLAGS: u32 = 0b11;
        let mut attr = IbvXrcdInitAttr { comp_mask: FD_AND_FLAGS, fd: -1, oflags: libc::O_CREAT };
        let new = made(open_xrcd(In::of(self.context()), In::of(&raw mut attr)))?;
        *domain = Some(Field::new(new));
        Ok(new)
    }
    pub(super) fn device(&self) -> Result<&dyn Device, Errno> {
        Ok(In::of(self.context.get()).context()?.adapter.device())
    }
    pub(super) fn ip(&self) -> IpAddr {
        self.gid.ip()
    }
    /// The device at an address.
    pub(super) fn at(ip: IpAddr) -> Result<Arc<Self>, Errno> {
        let all = Self::all()?;
        if let Some(device) = all.iter().find(|device| device.ip() == ip.to_canonical()) {
            return Ok(Arc::clone(device));
        }
        // As in Linux, the addresses of loopback are those of the first device, where no device has them.
        let first = all.into_iter().next().filter(|_| ip.to_canonical().is_loopback());
        first.ok_or(Errno(libc::ENODEV))
    }
    /// The device from which packets go to an address.
    pub(super) fn towards(ip: IpAddr) -> Result<Arc<Self>, Errno> {
        let ip = ip.to_canonical();
        if let Ok(device) = Self::at(ip) {
            return Ok(device);
        }
        let all = Self::all()?;
        let of_family = |device: &&Arc<Self>| device.ip().is_ipv4() == ip.is_ipv4();
        let from = route(ip);
        let routed = all.iter().find(|device| Some(device.ip()) == from);
        routed.or_else(|| all.iter().find(of_family)).cloned().ok_or(Errno(libc::ENODEV))
    }

    /// Has requests for a service come to this process.
    ///
    /// # Errors
    /// `EADDRINUSE`: an identifier is bound to the service here, unless they share it, or another process is.
    pub(super) fn bind(&self, service: ServiceId, shares: bool) -> Result<(), Errno> {
        let mut bound = lock(&self.bound);
        match bound.get_mut(&service) {
            Some(users) if shares => *users += 1,
            Some(_) => return Err(Errno(libc::EADDRINUSE)),
            None => {
                self.agent.claim(service)?;
                bound.insert(service, 1);
            }
        }
        Ok(())
    }
    pub(super) fn unbind(&self, service: ServiceId) {
        let mut bound = lock(&self.bound);
        let Some(users) = bound.get_mut(&service) else { return };
        *users -= 1;
        if *users == 0 {
            bound.remove(&service);
            self.agent.release(service);
        }
    }
}

/// Binds a port on all of the devices; port 0 chooses one.
pub(super) fn bind_all(
    devices: &[Arc<CmDevice>],
    space: PortSpace,
    port: u16,
    shares: bool,
) -> Result<u16, Errno> {
    for port in ports_to_bind(port) {
        let service = ServiceId::of_port(space, port);
        let bound = devices.iter().take_while(|device| device.bind(service, shares).is_ok()).count();
        if bound == devices.len() {
            return Ok(port);
        }
        devices[..bound].iter().for_each(|device| device.unbind(service));
    }
    Err(Errno(libc::EADDRINUSE))
}

/// The address of this machine from which the kernel sends to an address.
fn route(to: IpAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = as_library(|| UdpSocket::bind(any)).ok()?;
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip().to_canonical())
}

/// Whether a socket of this machine receives what is sent to the port of RoCEv2 at an address.
pub(super) fn has_adapter(ip: IpAddr) -> bool {
    const PORT: u16 = 4791;
    // As the kernel lists addresses: words of four bytes, each a number of this machine's byte order.
    let text = |octets: &[u8]| -> String {
        let words = octets.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("4 bytes")));
        words.map(|word| format!("{word:08X}")).collect()
    };
    let (list, address, any) = match ip {
        IpAddr::V4(ip) => ("/proc/net/udp", text(&ip.octets()), text(&[0; 4])),
        IpAddr::V6(ip) => ("/proc/net/udp6", text(&ip.octets()), text(&[0; 16])),
    };
    let sockets = std::fs::read_to_string(list).unwrap_or_default();
    let local = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    let wanted = [address, any].map(|address| format!("{address}:{PORT:04X}"));
    sockets.lines().filter_map(local).any(|found| wanted.contains(&found))
}

impl From<ConnectionError> for Errno {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Cm(CmError::InUse { .. }) => Self(libc::EADDRINUSE),
            ConnectionError::Cm(CmError::Full { .. }) => Self(libc::ENOMEM),
            ConnectionError::Device(DeviceError::InUse { .. }) => Self(libc::EADDRINUSE),
            ConnectionError::Device(e) => e.into(),
            ConnectionError::NoGeneralServices { .. } => Self(libc::ENODEV),
            _ => Self(libc::EINVAL),
        }
    }
}

/// The program is about to sleep until a connection manager wakes it.
pub(super) fn program_sleeps() {
    // Without opening devices: those that are closed wake nobody.
    let open = lock(DEVICES.get()).clone();
    open.iter().for_each(|device| device.agent.program_sleeps());
}
