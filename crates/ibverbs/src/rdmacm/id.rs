//! Identifiers.

use core::ffi::{c_int, c_void};
use core::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use hca::cm::wire::{CommId, Ece, Req, SidrReq, Transport};
use hca::cm::{Event, IpHeader, Peer, PortSpace, ServiceId, Sink};
use hca::hca_core::{Gid, Pkey};

use super::abi::{IbvSaPathRec, RdmaAddr, RdmaCmId, RdmaEventChannel, RdmaIbAddr, RdmaRoute};
use super::border::{Field, Registry, storage};
use super::channel::{CHANNELS, Channel, Note, What, end};
use super::device::CmDevice;
use super::qp::Link;
use crate::abi::IbvQpInitAttr;
use crate::entry::{Errno, INVALID, In, counted, exports, lock};
use crate::xrc::TARGET;

pub(super) const RC: u32 = 2;
pub(super) const UC: u32 = 3;
pub(super) const UD: u32 = 4;

/// How far an identifier is, in the order of an active one's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Phase {
    #[default]
    Idle,
    Bound,
    Listening,
    AddressResolved,
    RouteResolved,
    /// A request was sent, or an answer to one.
    Connecting,
    /// A peer's request waits for the program's answer.
    Asked,
    Connected,
    /// There was a connection, or a request, and there is none any more.
    Ended,
}

/// A request of a peer.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    Connection(Peer, Req),
    Datagram(Peer, SidrReq),
}

impl Asked {
    fn peer(&self) -> Peer {
        let (Self::Connection(peer, _) | Self::Datagram(peer, _)) = self;
        *peer
    }
    /// The addresses, and the program's data behind them. Programs that connect without addresses, by service IDs, have
    /// private data of another form.
    fn header(&self) -> Option<(IpHeader, &[u8])> {
        match self {
            Self::Connection(_, request) => IpHeader::parse(&request.private_data).ok(),
            Self::Datagram(_, request) => IpHeader::parse(&request.private_data).ok(),
        }
    }
    /// The private data of the peer's program.
    pub(super) fn data(&self) -> Vec<u8> {
        let all: &[u8] = match self {
            Self::Connection(_, request) => request.private_data.bytes(),
            Self::Datagram(_, request) => request.private_data.bytes(),
        };
        self.header().map_or(all, |(_, data)| data).to_vec()
    }
}

/// A multicast group that an identifier is a member of.
pub(super) struct Group {
    pub(super) gid: Gid,
    pub(super) sends_only: bool,
    pub(super) is_attached: bool,
}

/// The state of an identifier beside the fields that the program sees.
#[derive(Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) device: Option<Arc<CmDevice>>,
    /// The services that it is bound to.
    pub(super) bound: Vec<(Arc<CmDevice>, ServiceId)>,
    /// The peer, and the address that it was found by.
    pub(super) to: Option<(Gid, SocketAddr)>,
    /// The connection or the resolution.
    pub(super) comm: Option<CommId>,
    pub(super) asked: Option<Asked>,
    /// The request that was sent, for the case that the path carries less.
    pub(super) sent: Option<(Gid, Req)>,
    /// How often nobody listened to it.
    pub(super) refusals: u32,
    pub(super) link: Option<Link>,
    /// A connection that was refused by this side after the peer had accepted: its end is no event.
    pub(super) has_failed: bool,
    /// Extended connection establishment of a program with a queue pair of its own, and the peer's.
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) traffic_class: u8,
    pub(super) ack_timeout: Option<u8>,
    pub(super) one_family: bool,
    pub(super) shares_port: bool,
    pub(super) groups: Vec<Group>,
    /// The attributes of queue pairs of requests, of an endpoint that listens.
    pub(super) of_requests: Option<Field<IbvQpInitAttr>>,
    /// Private data of a connect, before those that the program gives.
    pub(super) connect_data: Vec<u8>,
    /// The addresses that were resolved for the program to ask for.
    pub(super) found: Vec<super::endpoint::Info>,
}

#[derive(Default)]
struct Counts {
    reported: u32,
    acknowledged: u32,
}

/// An identifier.
#[repr(C)]
pub(crate) struct Id {
    pub(super) c: RdmaCmId,
    pub(super) path: Field<IbvSaPathRec>,
    channel: Mutex<Arc<Channel>>,
    /// Calls wait for their events: the program gave no channel.
    pub(super) waits: AtomicBool,
    state: Mutex<State>,
    counts: Mutex<Counts>,
    counted: Condvar,
}

pub(super) static IDS: Registry<Id> = Registry::new();

/// The number of a port space, as programs give it.
pub(super) fn space(number: u32) -> Result<PortSpace, Errno> {
    match number {
        0x0002 => Ok(PortSpace::IpoIb),
        0x0106 => Ok(PortSpace::Tcp),
        0x0111 => Ok(PortSpace::Udp),
        0x013f => Ok(PortSpace::Ib),
        _ => Err(INVALID),
    }
}

impl Id {
    pub(super) fn new(channel: &Arc<Channel>, context: *mut c_void, ps: u32, qp_type: u32) -> Arc<Self> {
        let address = RdmaAddr {
            src_addr: Field::new(storage(None)),
            dst_addr: Field::new(storage(None)),
            addr: Field::new(RdmaIbAddr::default()),
        };
        let route =
            RdmaRoute { addr: address, path_rec: Field::new(core::ptr::null()), num_paths: Field::new(0) };
        let c = RdmaCmId {
            verbs: Field::null(),
            channel: Field::new(channel.raw()),
            context: Field::new(context),
            qp: Field::null(),
            route,
            ps,
            port_num: Field::new(0),
            event: Field::null(),
            send_cq_channel: Field::null(),
            send_cq: Field::null(),
            recv_cq_channel: Field::null(),
            recv_cq: Field::null(),
            srq: Field::null(),
            pd: Field::null(),
            qp_type: Field::new(qp_type),
        };
        let id = Arc::new(Self {
            c,
            path: Field::new(IbvSaPathRec::default()),
            channel: Mutex::new(Arc::clone(channel)),
            waits: AtomicBool::new(false),
            state: Mutex::default(),
            counts: Mutex::default(),
            counted: Condvar::new(),
        });
        IDS.give(&id);
        id
    }
    /// An identifier; without a channel, calls wait for their events.
    pub(super) fn create(
        channel: In<RdmaEventChannel>,
        context: *mut c_void,
        ps: u32,
        qp_type: Option<u32>,
    ) -> Result<Arc<Self>, Errno> {
        let by_space = match space(ps)? {
            PortSpace::Udp | PortSpace::IpoIb => UD,
            PortSpace::Tcp | PortSpace::Ib => RC,
        };
        let waits = channel.raw().is_null();
        let channel = if waits { Channel::new()? } else { CHANNELS.get(channel)? };
        let id = Self::new(&channel, context, ps, qp_type.unwrap_or(by_space));
        id.waits.store(waits, Ordering::Relaxed);
        Ok(id)
    }
    pub(super) fn raw(&self) -> *mut RdmaCmId {
        (&raw const self.c).cast_mut()
    }
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }
    pub(super) fn channel(&self) -> Arc<Channel> {
        Arc::clone(&lock(&self.channel))
    }
    pub(super) fn space(&self) -> PortSpace {
        space(self.c.ps).unwrap_or(PortSpace::Tcp)
    }
    pub(super) fn is_datagram(&self) -> bool {
        self.c.qp_type.get() == UD
    }
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }
    /// Puts an event into the channel.
    pub(super) fn note(self: &Arc<Self>, what: What) {
        // Under the lock, so that a migration takes the event along.
        lock(&self.channel).push(Note { of: Arc::clone(self), what });
    }

    /// Takes such events out of the channel.
    pub(super) fn forget(self: &Arc<Self>, are: impl Fn(&What) -> bool) {
        drop(lock(&self.channel).take_those(self, are));
    }

    /// The identifier has a device: the program sees its context.
    pub(super) fn set_device(&self, state: &mut State, device: &Arc<CmDevice>) {
        self.c.verbs.set(device.context());
        self.c.port_num.set(1);
        if self.c.pd.get().is_null() {
            self.c.pd.set(device.pd());
        }
        state.device = Some(Arc::clone(device));
    }
    /// The program sees both addresses.
    pub(super) fn set_addresses(&self, from: Option<SocketAddr>, to: Option<SocketAddr>) {
        let gid = |address: Option<SocketAddr>| address.map_or([0; 16], |address| Gid::from(address.ip()).0);
        let route = &self.c.route.addr;
        route.src_addr.set(storage(from));
        route.dst_addr.set(storage(to));
        route.addr.set(RdmaIbAddr { sgid: gid(from), dgid: gid(to), pkey: Pkey::DEFAULT.raw().to_be() });
    }

    /// An event is given to the program.
    pub(super) fn reported(&self) {
        lock(&self.counts).reported += 1;
    }
    pub(super) fn acknowledged(&self) {
        lock(&self.counts).acknowledged += 1;
        self.counted.notify_all();
    }
    /// Waits until the program has acknowledged all events that it was given.
    fn wait_for_acknowledgements(&self) {
        let mut counts = lock(&self.counts);
        while counts.acknowledged < counts.reported {
            counts = self.counted.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Acknowledges the event that a call has waited for.
    pub(super) fn acknowledge_held(&self) {
        let held = self.c.event.replace(core::ptr::null_mut());
        if !held.is_null() {
            let _ = super::event::acknowledge(In::of(held));
        }
    }

    /// Ends what the identifier does. No event of it comes any more.
    pub(super) fn stop(self: &Arc<Self>) {
        let mut state = self.state();
        let bound = std::mem::take(&mut state.bound);
        let is_listening = state.phase == Phase::Listening;
        let comm = state.device.clone().zip(state.comm.take());
        state.phase = Phase::Ended;
        drop(state);
        for (device, service) in bound {
            if is_listening {
                device.agent.unlisten(service);
            }
            device.unbind(service);
        }
        if let Some((device, comm)) = comm {
            device.agent.forget(comm);
        }
        for note in self.channel().take(self) {
            if let What::Request(child) = note.what {
                let _ = IDS.take(In::of(child.raw()));
                child.stop();
            }
        }
    }
    fn destroy(id: In<RdmaCmId>) -> Result<(), Errno> {
        let id = IDS.take(id)?;
        id.stop();
        id.acknowledge_held();
        id.wait_for_acknowledgements();
        if id.waits() {
            end(In::of(id.channel().raw()));
        }
        Ok(())
    }

    /// Moves the identifier with its events to another channel; null: to one of its own, and calls wait.
    pub(super) fn migrate(self: &Arc<Self>, channel: In<RdmaEventChannel>) -> Result<(), Errno> {
        let waits = channel.raw().is_null();
        if waits && self.waits() {
            return Err(INVALID);
        }
        let to = if waits { Channel::new()? } else { CHANNELS.get(channel)? };
        let mut own = lock(&self.channel);
        let from = std::mem::replace(&mut *own, Arc::clone(&to));
        from.take(self).into_iter().for_each(|note| to.push(note));
        drop(own);
        self.c.channel.set(to.raw());
        if self.waits.swap(waits, Ordering::Relaxed) {
            self.acknowledge_held();
            end(In::of(from.raw()));
        }
        Ok(())
    }

    fn set_option(&self, level: c_int, name: c_int, value: *const u8, len: usize) -> Result<(), Errno> {
        const ID: c_int = 0;
        const IB: c_int = 1;
        let value = super::border::bytes(value, len);
        let number = || <[u8; 4]>::try_from(&value[..]).map(i32::from_ne_bytes).map_err(|_| INVALID);
        let byte = || <[u8; 1]>::try_from(&value[..]).map(|[byte]| byte).map_err(|_| INVALID);
        let mut state = self.state();
        match (level, name) {
            (ID, 0) => state.traffic_class = byte()?,
            (ID, 1) => state.shares_port = number()? != 0,
            (ID, 2) => state.one_family = number()? != 0,
            (ID, 3) => state.ack_timeout = Some(byte()?).filter(|timeout| *timeout < 32),
            // A path of the program's: this network finds its own.
            (IB, 1) if value.is_empty() => return Err(INVALID),
            (IB, 1) => {}
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }
}

/// The receiver of the events of an identifier, on one device.
pub(super) struct Ear {
    pub(super) id: Arc<Id>,
    pub(super) device: Arc<CmDevice>,
}

impl Ear {
    pub(super) fn new(id: &Arc<Id>, device: &Arc<CmDevice>) -> Arc<Self> {
        Arc::new(Self { id: Arc::clone(id), device: Arc::clone(device) })
    }
    /// The identifier of a request.
    fn child(&self, comm: CommId, service: ServiceId, asked: Asked) -> Arc<Id> {
        let c = &self.id.c;
        let child = Id::new(&self.id.channel(), c.context.get(), c.ps, c.qp_type.get());
        let (peer, header) = (asked.peer(), asked.header());
        let source = header.as_ref().map_or(SocketAddr::new(peer.gid.ip(), 0), |(header, _)| header.source());
        let here = header.as_ref().map_or(self.device.ip(), |(header, _)| header.destination());
        child.set_addresses(Some(SocketAddr::new(here, service.0 as u16)), Some(source));
        let mut state = child.state();
        child.set_device(&mut state, &self.device);
        if let Asked::Connection(peer, request) = &asked {
            state.link = Some(Link::passive(peer.gid, request));
            state.remote_ece = request.ece;
            // The peer's READs are served here, and those of this side by the peer.
            state.responder_resources = request.initiator_depth;
            state.initiator_depth = request.responder_resources;
            child.c.qp_type.set(match request.transport {
                Transport::Rc => RC,
                Transport::Uc => UC,
                Transport::Xrc => TARGET,
            });
        }
        (state.comm, state.asked, state.phase) = (Some(comm), Some(asked), Phase::Asked);
        drop(state);
        child
    }
}

impl Sink for Ear {
    fn event(&self, event: &Event) -> Option<Arc<dyn Sink>> {
        let child = match event {
            Event::Request { id, service, from, request } => {
                self.child(*id, *service, Asked::Connection(*from, *request))
            }
            Event::SidrRequest { id, from, request } => {
                self.child(*id, request.service_id, Asked::Datagram(*from, *request))
            }
            Event::Delayed { .. } => return None,
            event => {
                self.id.note(What::Cm(Box::new(*event)));
                return None;
            }
        };
        self.id.note(What::Request(Arc::clone(&child)));
        Some(Self::new(&child, &self.device))
    }
}

exports! {
    "RDMACM_1.0" fn rdma_create_id(channel: In<RdmaEventChannel>, to: In<*mut RdmaCmId>, context: *mut c_void, ps: u32) -> c_int {
        counted(|| {
            if to.raw().is_null() {
                return Err(INVALID);
            }
            to.set(Id::create(channel, context, ps, None)?.raw())?;
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rdma_destroy_id(id: In<RdmaCmId>) -> c_int {
        counted(|| Id::destroy(id).map(|()| 0))
    }
    "RDMACM_1.0" fn rdma_migrate_id(id: In<RdmaCmId>, channel: In<RdmaEventChannel>) -> c_int {
        counted(|| IDS.get(id)?.migrate(channel).map(|()| 0))
    }
    "RDMACM_1.0" fn rdma_set_option(id: In<RdmaCmId>, level: c_int, name: c_int, value: *const u8, len: usize) -> c_int {
        counted(|| IDS.get(id)?.set_option(level, name, value, len).map(|()| 0))
    }
}
