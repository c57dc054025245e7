//! Binding, resolving and listening.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hca::cm::{ServiceId, ephemeral_port};
use hca::hca_core::{Gid, Pkey};

use super::abi::{IbvSaPathRec, RdmaCmId};
use super::border::address;
use super::channel::What;
use super::connect::ends_with_the_program;
use super::device::{CmDevice, bind_all, has_adapter};
use super::event::{Kind, complete};
use super::id::{Ear, IDS, Id, Phase, State};
use super::qp::path_to;
use crate::abi::IbvContext;
use crate::entry::{Errno, INVALID, In, cancellable, counted, exports, free_list, give_list, pointer};
use crate::waiting::waiting;

/// Requests that wait for an answer, where the program does not limit them.
const BACKLOG: usize = 1024;

impl Id {
    /// Binds the identifier to an address; an address of all zeros binds to all devices.
    pub(super) fn bind(self: &Arc<Self>, state: &mut State, to: SocketAddr) -> Result<(), Errno> {
        if state.phase != Phase::Idle {
            return Err(INVALID);
        }
        let is_any = to.ip().to_canonical().is_unspecified();
        let devices = if is_any {
            let fits = |device: &Arc<CmDevice>| match to {
                SocketAddr::V4(_) => device.ip().is_ipv4(),
                SocketAddr::V6(_) => device.ip().is_ipv6() || !state.one_family,
            };
            CmDevice::all()?.into_iter().filter(fits).collect()
        } else {
            vec![CmDevice::at(to.ip())?]
        };
        let port = bind_all(&devices, self.space(), to.port(), state.shares_port)?;
        let service = ServiceId::of_port(self.space(), port);
        if let ([device], false) = (&devices[..], is_any) {
            self.set_device(state, device);
        }
        state.bound = devices.into_iter().map(|device| (device, service)).collect();
        state.phase = Phase::Bound;
        self.set_addresses(Some(SocketAddr::new(to.ip(), port)), None);
        Ok(())
    }

    /// Finds the device for an address. The event says so.
    pub(super) fn resolve_addr(
        self: &Arc<Self>,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<(), Errno> {
        let mut state = self.state();
        if state.phase == Phase::Idle
            && let Some(from) = from
            && (from.port() != 0 || !from.ip().is_unspecified())
        {
            if from.port() != 0 {
                self.bind(&mut state, from)?;
            } else {
                let device = CmDevice::at(from.ip())?;
                self.set_device(&mut state, &device);
            }
        }
        if !matches!(state.phase, Phase::Idle | Phase::Bound) {
            return Err(INVALID);
        }
        let is_any = to.ip().is_unspecified();
        let device = match &state.device {
            Some(device) => Arc::clone(device),
            None if is_any => CmDevice::all()?[0].clone(),
            None => CmDevice::towards(to.ip())?,
        };
        let to = if is_any { SocketAddr::new(device.ip(), to.port()) } else { to };
        if to.ip().to_canonical().is_ipv4() != device.ip().is_ipv4() {
            return Err(Errno(libc::ENETUNREACH));
        }
        let port = match state.bound.first() {
            Some((_, service)) => service.0 as u16,
            None => ephemeral_port(),
        };
        self.set_device(&mut state, &device);
        self.set_addresses(Some(SocketAddr::new(device.ip(), port)), Some(to));
        let gid = Gid::from(to.ip());
        // A loopback address without an adapter stands for the device itself.
        let is_own = to.ip().to_canonical().is_loopback() && !has_adapter(to.ip().to_canonical());
        state.to = Some((if is_own { device.gid } else { gid }, to));
        state.phase = Phase::AddressResolved;
        drop(state);
        self.note(What::Plain(Kind::AddrResolved, 0));
        Ok(())
    }

    pub(super) fn resolve_route(self: &Arc<Self>) -> Result<(), Errno> {
        let mut state = self.state();
        if state.phase != Phase::AddressResolved {
            return Err(INVALID);
        }
        let device = state.device.clone().ok_or(INVALID)?;
        let (to, _) = state.to.ok_or(INVALID)?;
        const EQUAL: u8 = 2;
        self.path.set(IbvSaPathRec {
            dgid: path_to(to, 0).dgid,
            sgid: path_to(device.gid, 0).dgid,
            hop_limit: path_to(to, 0).hop_limit,
            traffic_class: state.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: Pkey::DEFAULT.raw().to_be(),
            mtu_selector: EQUAL,
            mtu: device.agent.mtu().encoding(),
            rate_selector: EQUAL,
            rate: 3,
            packet_life_time_selector: EQUAL,
            packet_life_time: 16,
            ..IbvSaPathRec::default()
        });
        self.c.route.path_rec.set(self.path.at());
        self.c.route.num_paths.set(1);
        state.phase = Phase::RouteResolved;
        drop(state);
        self.note(What::Plain(Kind::RouteResolved, 0));
        Ok(())
    }

    pub(super) fn listen(self: &Arc<Self>, backlog: c_int) -> Result<(), Errno> {
        ends_with_the_program();
        let backlog = usize::try_from(backlog).ok().filter(|backlog| (1..BACKLOG).contains(backlog));
        let mut state = self.state();
        if state.phase == Phase::Idle {
            self.bind(&mut state, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))?;
        }
        if state.phase != Phase::Bound {
            return Err(INVALID);
        }
        for (at, (device, service)) in state.bound.iter().enumerate() {
            let begun = device.agent.listen(*service, backlog.unwrap_or(BACKLOG), Ear::new(self, device));
            if let Err(e) = begun {
                state.bound[..at].iter().for_each(|(device, service)| device.agent.unlisten(*service));
                return Err(e.into());
            }
        }
        state.phase = Phase::Listening;
        Ok(())
    }
}

/// The port of an address that the program sees, in network byte order.
fn port(id: In<RdmaCmId>, local: bool) -> u16 {
    IDS.get(id).map_or(0, |id| {
        let addresses = &id.c.route.addr;
        let bytes = if local { addresses.src_addr.get() } else { addresses.dst_addr.get() }.0;
        u16::from_ne_bytes([bytes[2], bytes[3]])
    })
}

cancellable! {
    "RDMACM_1.0" fn rdma_resolve_addr(id: In<RdmaCmId>, from: In<libc::sockaddr>, to: In<libc::sockaddr>, _timeout_ms: c_int) -> c_int {
        waiting(|| async move {
            let id = IDS.get(id)?;
            let from = if from.raw().is_null() { None } else { Some(address(from)?) };
            id.resolve_addr(from, address(to)?)?;
            complete(&id).await?;
            Ok(0)
        }) as c_int
    }
    "RDMACM_1.0" fn rdma_resolve_route(id: In<RdmaCmId>, _timeout_ms: c_int) -> c_int {
        waiting(|| async move {
            let id = IDS.get(id)?;
            id.resolve_route()?;
            complete(&id).await?;
            Ok(0)
        }) as c_int
    }
}
exports! {
    "RDMACM_1.0" fn rdma_bind_addr(id: In<RdmaCmId>, to: In<libc::sockaddr>) -> c_int {
        counted(|| {
            let (id, to) = (IDS.get(id)?, address(to)?);
            let mut state = id.state();
            id.bind(&mut state, to)?;
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rdma_listen(id: In<RdmaCmId>, backlog: c_int) -> c_int {
        counted(|| IDS.get(id)?.listen(backlog).map(|()| 0))
    }
    "RDMACM_1.0" fn rdma_get_src_port(id: In<RdmaCmId>) -> u16 {
        port(id, true)
    }
    "RDMACM_1.0" fn rdma_get_dst_port(id: In<RdmaCmId>) -> u16 {
        port(id, false)
    }
    "RDMACM_1.0" fn rdma_get_devices(count: In<c_int>) -> *mut *mut IbvContext {
        pointer(|| {
            let contexts = Vec::from_iter(CmDevice::all()?.iter().map(|device| device.context()));
            let list = give_list(&contexts)?;
            // Programs that do not want the number pass null.
            let _ = count.set(contexts.len() as c_int);
            Ok(list)
        })
    }
    "RDMACM_1.0" fn rdma_free_devices(list: In<*mut IbvContext>) -> () {
        free_list(list);
    }
}
