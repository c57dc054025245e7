//! Connecting, accepting, rejecting and disconnecting.

use core::ffi::c_int;
use std::sync::{Arc, Once};
use std::time::Duration;

use hca::Endpoint;
use hca::cm::wire::{Bits, Ece, PrivateData, Reason, Refusal, Rep, Req, Resolution};
use hca::cm::{Agent, IpHeader, Resolve, ServiceId, SidrAnswer, UDP_QKEY, wire};
use hca::hca_core::{AckTimeout, Lid, Mtu, Pkey, Psn, QpType, Qpn};

use super::abi::{IbvEce, RdmaCmId, RdmaConnParam};
use super::border::bytes;
use super::channel::What;
use super::device::CmDevice;
use super::event::{Kind, complete};
use super::id::{Asked, Ear, IDS, Id, Phase, RC, State, UC, UD};
use super::qp::{self, fresh_psn};
use crate::entry::{Errno, INVALID, In, at_exit, cancellable, counted, exports, last};
use crate::waiting::waiting;
use crate::xrc::{INITIATOR, TARGET};

/// The retries of a connection for which the program says nothing.
const RETRIES: u8 = 7;
/// The number that asks for as many READs at a time as the device has.
const MOST: u8 = 0xff;
/// A program that ends waits so long for its last messages to leave.
const AT_EXIT: Duration = Duration::from_millis(500);

/// The parameters of a program's connect or accept.
struct Params {
    private_data: Vec<u8>,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    qp_num: u32,
}

impl Params {
    fn new(id: &Id, state: &State, device: &CmDevice, given: In<RdmaConnParam>) -> Result<Self, Errno> {
        let has_srq = !id.c.srq.get().is_null();
        let Some(param) = given.opt() else {
            return Ok(Self {
                private_data: state.connect_data.clone(),
                responder_resources: None,
                initiator_depth: None,
                flow_control: true,
                retry_count: RETRIES,
                rnr_retry_count: RETRIES,
                srq: has_srq,
                qp_num: 0,
            });
        };
        let most = device.device()?.attr().max_rd_atomic;
        let depth = |asked: u8| match asked {
            MOST => Ok(None),
            asked if asked > most && !id.is_datagram() => Err(INVALID),
            asked => Ok(Some(asked)),
        };
        let given = bytes(param.private_data, param.private_data_len.into());
        Ok(Self {
            private_data: [&state.connect_data[..], &given].concat(),
            responder_resources: depth(param.responder_resources)?,
            initiator_depth: depth(param.initiator_depth)?,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: has_srq || param.srq != 0,
            qp_num: param.qp_num,
        })
    }
}

fn endpoint(id: &Id, device: &CmDevice, qpn: u32, psn: u32, rd_atomic: u8) -> Endpoint {
    Endpoint {
        service: match id.c.qp_type.get() {
            UC => QpType::Uc,
            INITIATOR => QpType::XrcIni,
            _ => QpType::Rc,
        },
        qpn: Qpn::new(qpn),
        psn: Psn::new(psn),
        mtu: device.agent.mtu(),
        rd_atomic,
        gid: device.gid,
        lid: Lid::default(),
    }
}

impl Id {
    fn connect(self: &Arc<Self>, given: In<RdmaConnParam>) -> Result<(), Errno> {
        ends_with_the_program();
        let mut state = self.state();
        if state.phase != Phase::RouteResolved {
            return Err(INVALID);
        }
        let (device, (peer, to)) = state.device.clone().zip(state.to).ok_or(INVALID)?;
        let params = Params::new(self, &state, &device, given)?;
        if !matches!(self.c.qp_type.get(), RC | UC | UD | INITIATOR) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let service = ServiceId::of_port(self.space(), to.port());
        let source = std::net::SocketAddr::new(device.ip(), self.source_port());
        let header = IpHeader::new(source, to.ip().to_canonical()).map_err(|_| INVALID)?;
        let sink = Ear::new(self, &device);
        if self.is_datagram() {
            let model = Agent::request(&endpoint(self, &device, 0, 0, 0), peer);
            let ask = Resolve {
                to: peer.into(),
                service,
                pkey: Pkey::DEFAULT,
                timeout: model.remote_response_timeout,
                retries: model.max_cm_retries.get() as u8,
                private_data: header.with_data(&params.private_data).map_err(|_| INVALID)?,
            };
            state.comm = Some(device.agent.resolve(&ask, sink)?);
            state.phase = Phase::Connecting;
            return Ok(());
        }
        let most = device.device()?.attr().max_rd_atomic;
        let qpn = qp::number(self, params.qp_num)?;
        state.responder_resources = params.responder_resources.unwrap_or(most);
        state.initiator_depth = params.initiator_depth.unwrap_or(most);
        let model = Agent::request(&endpoint(self, &device, qpn, fresh_psn(), most), peer);
        let timeout = state.ack_timeout.map(AckTimeout::new);
        let primary = wire::Path {
            traffic_class: state.traffic_class,
            local_ack_timeout: timeout.unwrap_or(model.primary.local_ack_timeout),
            ..model.primary
        };
        let request = Req {
            service_id: service,
            responder_resources: state.responder_resources,
            initiator_depth: state.initiator_depth,
            flow_control: params.flow_control,
            retry_count: Bits::at_most(params.retry_count.into()),
            rnr_retry_count: Bits::at_most(params.rnr_retry_count.into()),
            srq: params.srq,
            primary,
            ece: state.local_ece,
            private_data: header.with_data(&params.private_data).map_err(|_| INVALID)?,
            ..model
        };
        state.sent = Some((peer, request));
        state.comm = Some(device.agent.connect(peer, &request, sink)?);
        state.phase = Phase::Connecting;
        Ok(())
    }
    /// The port of this side, as the program sees it.
    fn source_port(&self) -> u16 {
        let bytes = self.c.route.addr.src_addr.get().0;
        u16::from_be_bytes([bytes[2], bytes[3]])
    }

    fn accept(self: &Arc<Self>, given: In<RdmaConnParam>) -> Result<(), Errno> {
        ends_with_the_program();
        let mut state = self.state();
        let (device, comm) = state.device.clone().zip(state.comm).ok_or(INVALID)?;
        let asked = state.asked.filter(|_| state.phase == Phase::Asked).ok_or(INVALID)?;
        let params = Params::new(self, &state, &device, given)?;
        let qpn = qp::number(self, params.qp_num)?;
        let request = match asked {
            Asked::Connection(_, request) => request,
            Asked::Datagram(..) => {
                let private_data = PrivateData::new(&params.private_data).map_err(|_| INVALID)?;
                let resolution = Resolution::Found { qpn: Qpn::new(qpn), qkey: UDP_QKEY };
                let answer = SidrAnswer { resolution, private_data };
                let answered = device.agent.call(|cm, now| cm.answer(now, comm, &answer));
                answered.map_err(|_| self.not_accepted())?;
                state.phase = Phase::Connected;
                return Ok(());
            }
        };
        // What the program does not limit is what the peer asked for, as far as the device has it.
        let most = device.device()?.attr().max_rd_atomic;
        state.responder_resources = params.responder_resources.unwrap_or(state.responder_resources.min(most));
        state.initiator_depth = params.initiator_depth.unwrap_or(state.initiator_depth.min(most));
        let psn = state.link.as_ref().ok_or(INVALID)?.rq_psn;
        let private_data = PrivateData::new(&params.private_data).map_err(|_| INVALID)?;
        qp::ready(self, &state).inspect_err(|_| qp::stop(self))?;
        let is_target = self.c.qp_type.get() == TARGET;
        let reply = Rep {
            local_eecn: Qpn::new(if is_target { qpn } else { 0 }),
            responder_resources: state.responder_resources,
            initiator_depth: state.initiator_depth,
            flow_control: params.flow_control,
            rnr_retry_count: Bits::at_most(params.rnr_retry_count.into()),
            srq: params.srq || is_target,
            // The vendor is that of the request.
            ece: Ece { vendor: state.remote_ece.vendor, ..state.local_ece },
            private_data,
            ..Agent::reply(&endpoint(self, &device, qpn, psn, most), &request)
        };
        let accepted = device.agent.call(|cm, now| cm.accept(now, comm, &reply));
        accepted.map_err(|_| self.not_accepted())?;
        state.phase = Phase::Connecting;
        Ok(())
    }
    /// The peer waits for no answer any more: the queue pair gives its requests back.
    fn not_accepted(&self) -> Errno {
        qp::stop(self);
        INVALID
    }

    fn reject(self: &Arc<Self>, reason: Reason, data: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let (device, comm) = state.device.clone().zip(state.comm).ok_or(INVALID)?;
        if let Some(Asked::Datagram(..)) = state.asked {
            let private_data = PrivateData::new(data).map_err(|_| INVALID)?;
            let answer = SidrAnswer { resolution: Resolution::Refused(Refusal::REJECTED), private_data };
            let answered = device.agent.call(|cm, now| cm.answer(now, comm, &answer));
            answered.map_err(|_| INVALID)?;
        } else {
            let data = PrivateData::new(data).map_err(|_| INVALID)?;
            let info = wire::Info::EMPTY;
            let rejected = device.agent.call(|cm, now| cm.reject(now, comm, reason, info, data));
            rejected.map_err(|_| INVALID)?;
        }
        (state.phase, state.link) = (Phase::Ended, None);
        Ok(())
    }

    /// Ends the connection. Returns whether an event of the end is to come.
    fn disconnect(self: &Arc<Self>) -> Result<bool, Errno> {
        let state = self.state();
        let (device, comm) = state.device.clone().zip(state.comm).ok_or(INVALID)?;
        let is_connection = !self.is_datagram();
        qp::stop(self);
        if state.phase == Phase::Ended || !is_connection {
            return Ok(false);
        }
        if matches!(state.phase, Phase::Asked) {
            return Err(INVALID);
        }
        // The peer may have ended it already.
        let _ = device.agent.call(|cm, now| cm.disconnect(now, comm, PrivateData::EMPTY));
        Ok(true)
    }
    /// Says that the program's own queue pair is ready.
    fn establish(&self) -> Result<(), Errno> {
        let mut state = self.state();
        let (device, comm) = state.device.clone().zip(state.comm).ok_or(INVALID)?;
        if !self.c.qp.get().is_null() {
            return Err(INVALID);
        }
        device.agent.call(|cm, _| cm.ready(comm, PrivateData::EMPTY)).map_err(|_| INVALID)?;
        state.phase = Phase::Connected;
        Ok(())
    }
    /// A message came through the queue pair: the peer is ready.
    fn notify(&self, event: u32) -> Result<(), Errno> {
        const COMM_EST: u32 = 4;
        let state = self.state();
        let (device, comm) = state.device.clone().zip(state.comm).ok_or(INVALID)?;
        if event != COMM_EST {
            return Err(INVALID);
        }
        device.agent.call(|cm, now| cm.established(now, comm)).map_err(|_| INVALID)
    }
}

/// Asks again, as the path carries only packets of a smaller MTU. Returns whether it does.
pub(super) fn again(id: &Arc<Id>) -> bool {
    let mut state = id.state();
    let Some((_, request)) = &mut state.sent else { return false };
    let Some(mtu) = Mtu::from_bytes(request.path_mtu.bytes() / 2) else { return false };
    request.path_mtu = mtu;
    ask_again(id, &mut state)
}
/// Asks again, as nobody listened before. The program hears of an error.
pub(super) fn once_more(id: &Arc<Id>) {
    let mut state = id.state();
    // The identifier may be gone meanwhile.
    if state.phase == Phase::Connecting && !ask_again(id, &mut state) {
        drop(state);
        fail(id);
    }
}
/// Nobody asks again. The program hears of an error.
pub(super) fn fail(id: &Arc<Id>) {
    let mut state = id.state();
    if state.phase == Phase::Connecting {
        state.phase = Phase::Ended;
        drop(state);
        id.note(What::Plain(Kind::Unreachable, -libc::EHOSTUNREACH));
    }
}
/// Sends the request of an identifier once more, as a new one.
fn ask_again(id: &Arc<Id>, state: &mut State) -> bool {
    let (Some(device), Some(before)) = (state.device.clone(), state.comm) else { return false };
    let Some((peer, request)) = &state.sent else { return false };
    device.agent.forget(before);
    state.comm = device.agent.connect(*peer, request, Ear::new(id, &device)).ok();
    state.comm.is_some()
}

/// Has the connections ended, and the requests of peers answered, when the program ends without doing so, as a kernel
/// does for its programs.
pub(super) fn ends_with_the_program() {
    extern "C" fn end() {
        last("hca-cm-end", AT_EXIT, || IDS.all().iter().for_each(Id::stop));
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| at_exit(end));
}

cancellable! {
    "RDMACM_1.0" fn rdma_connect(id: In<RdmaCmId>, param: In<RdmaConnParam>) -> c_int {
        waiting(|| async move {
            let id = IDS.get(id)?;
            id.connect(param)?;
            complete(&id).await?;
            Ok(0)
        }) as c_int
    }
    "RDMACM_1.0" fn rdma_accept(id: In<RdmaCmId>, param: In<RdmaConnParam>) -> c_int {
        waiting(|| async move {
            let id = IDS.get(id)?;
            id.accept(param)?;
            if !id.is_datagram() {
                complete(&id).await?;
            } else if id.waits() {
                id.acknowledge_held();
            }
            Ok(0)
        }) as c_int
    }
    "RDMACM_1.0" fn rdma_disconnect(id: In<RdmaCmId>) -> c_int {
        waiting(|| async move {
            let id = IDS.get(id)?;
            if id.disconnect()? {
                complete(&id).await?;
            }
            Ok(0)
        }) as c_int
    }
}
exports! {
    "RDMACM_1.0" fn rdma_reject(id: In<RdmaCmId>, data: *const u8, len: u8) -> c_int {
        counted(|| IDS.get(id)?.reject(Reason::CONSUMER_DEFINED, &bytes(data, len.into())).map(|()| 0))
    }
    "RDMACM_1.3" fn rdma_reject_ece(id: In<RdmaCmId>, data: *const u8, len: u8) -> c_int {
        counted(|| IDS.get(id)?.reject(Reason::VENDOR_OPTION_NOT_SUPPORTED, &bytes(data, len.into())).map(|()| 0))
    }
    "RDMACM_1.2" fn rdma_establish(id: In<RdmaCmId>) -> c_int {
        counted(|| IDS.get(id)?.establish().map(|()| 0))
    }
    "RDMACM_1.0" fn rdma_notify(id: In<RdmaCmId>, event: u32) -> c_int {
        counted(|| IDS.get(id)?.notify(event).map(|()| 0))
    }
    // Devices have no extended connection establishment, so that it is that of programs with queue pairs of their own.
    "RDMACM_1.3" fn rdma_set_local_ece(id: In<RdmaCmId>, ece: In<IbvEce>) -> c_int {
        counted(|| {
            let (id, given) = (IDS.get(id)?, ece.get()?);
            let vendor = Bits::new(given.vendor_id).ok_or(INVALID)?;
            if !id.c.qp.get().is_null() || given.vendor_id == 0 || given.comp_mask != 0 {
                return Err(INVALID);
            }
            id.state().local_ece = Ece { vendor, options: given.options };
            Ok(0)
        })
    }
    "RDMACM_1.3" fn rdma_get_remote_ece(id: In<RdmaCmId>, ece: In<IbvEce>) -> c_int {
        counted(|| {
            let id = IDS.get(id)?;
            if !id.c.qp.get().is_null() {
                return Err(INVALID);
            }
            let Ece { vendor, options } = id.state().remote_ece;
            ece.set(IbvEce { vendor_id: vendor.get(), options, comp_mask: 0 })?;
            Ok(0)
        })
    }
}
