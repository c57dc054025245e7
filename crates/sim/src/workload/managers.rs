//! Connections by the connection manager, beside the other work of a run.
//!
//! Each node runs a connection manager on queue pair 1. Programs ask other nodes for connections and resolutions. Over
//! each connection a message goes both ways, and then the side that asked ends it. Among nodes that live both sides see
//! each connection alike, every request is answered, and nothing is left.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use hca_cm::wire::{
    Bits, CmTimeout, CommId, Info, Kind, MAD_BYTES, Path, PrivateData, Reason, Refusal, Rep, Req, Resolution,
};
use hca_cm::{Config, Event, Machine, PortSpace, Resolve, ServiceId, SidrAnswer, Transmit};
use hca_core::{AckTimeout, AddressVector, Device, Gid, Instant, Lid, Mtu, Pkey, Qkey, QpType, Qpn};
use hca_verbs::{
    AhCache, CompletionQueue, Completions, ConnectOptions, Context, Endpoint, Grh, Inline, Pd, QueuePair, Rc,
    Ud,
};
use std::sync::Arc;

use super::report::Report;
use super::world::Checked;
use crate::{Rng, Sim};

/// The services with a listener, and behind them one without.
const SERVICES: u16 = 3;
const LISTENED: u16 = SERVICES - 1;
const GENERAL_SERVICES: Qpn = Qpn::new(1);
const GENERAL_SERVICES_QKEY: Qkey = Qkey::new(0x8001_0000);
/// Datagrams that a manager has room for, and those that leave at a time.
const DATAGRAMS: u32 = 64;
/// Once a node has crashed, programs wait so long for what a connection's peer has to do.
const PATIENCE: Duration = Duration::from_millis(200);
/// Regions that a manager's buffers take of its adapter.
pub(super) const REGIONS: u32 = 1;
/// The depth of the completion queue of all connections of a node.
const DATA_CQ: u32 = 256;
/// A message is repeated after some 5 ms, and so for 80 ms: longer than all faults of a run last.
const RESPONSE_TIMEOUT: CmTimeout = CmTimeout::new(10);
const ACK_TIMEOUT: AckTimeout = AckTimeout::new(8);
/// The timeout of the connections' queue pairs.
const DATA_TIMEOUT: AckTimeout = AckTimeout::new(14);

/// A connection or a resolution that a program asks for, and the answer of the peer's program.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) at: Duration,
    pub(super) from: usize,
    pub(super) to: usize,
    service: u16,
    /// It is a resolution.
    datagram: bool,
    rejected: bool,
    /// The peer's program thinks for so long, and the connection lasts so long once its messages are there.
    pause: Duration,
}

impl Call {
    pub(super) fn new(rng: &mut Rng, nodes: usize, heal: Duration) -> Self {
        let from = rng.below(nodes as u64) as usize;
        let itself = rng.chance(0.05);
        let to = if itself { from } else { (from + 1 + rng.below(nodes as u64 - 1) as usize) % nodes };
        Self {
            at: heal.mul_f64(rng.below(900) as f64 / 1000.0),
            from,
            to,
            service: rng.pick(&[0, 0, 1, 1, 1, 2]),
            datagram: rng.chance(0.25),
            rejected: rng.chance(0.15),
            pause: Duration::from_micros(rng.pick(&[0, 0, 50, 3_000])),
        }
    }
    fn service(&self) -> ServiceId {
        ServiceId::of_port(if self.datagram { PortSpace::Udp } else { PortSpace::Tcp }, self.service)
    }
}

/// One side's view of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum View {
    #[default]
    Pending,
    Established,
    Ended,
}

/// The side of a connection that asked for it, and the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Asking = 0,
    Asked = 1,
}

impl Side {
    fn other(self) -> usize {
        1 - self as usize
    }
}

/// One side of a connection.
struct Leg {
    call: usize,
    side: Side,
    /// The request, until it is answered.
    request: Option<(Gid, Box<Req>)>,
    qp: Option<QueuePair<Rc>>,
    sent: bool,
    received: bool,
    closed: bool,
    /// When the program does what is next: it answers, or ends the connection.
    acts_at: Option<Instant>,
}

impl Leg {
    fn new(call: usize, side: Side) -> Self {
        let (sent, received, closed) = (false, false, false);
        Self { call, side, request: None, qp: None, sent, received, closed, acts_at: None }
    }
}

/// The connection manager of a node, and its programs.
struct Manager {
    machine: Machine,
    mtu: Mtu,
    gsi: QueuePair<Ud>,
    paths: AhCache,
    /// Datagrams, and the completions of those that left.
    heard: CompletionQueue,
    left: CompletionQueue,
    /// Completions of all connections.
    data: CompletionQueue,
    wcs: Completions,
    legs: BTreeMap<CommId, Leg>,
    /// Calls by the resolutions that they asked for.
    resolving: BTreeMap<CommId, usize>,
    pd: Pd,
}

/// The connection managers of all nodes.
pub(super) struct Managers {
    sim: Sim,
    seed: u64,
    calls: Vec<Call>,
    /// Calls that have not begun.
    due: BTreeSet<(Instant, usize)>,
    nodes: Vec<Option<Manager>>,
    /// What each side has seen at last, and whether the connection was ever established there.
    views: Vec<[View; 2]>,
    established: Vec<[bool; 2]>,
    asked: Vec<bool>,
    /// A node crashed: its peers can not know all.
    crashed: bool,
    resolved: u64,
}

/// Private data of a message of a call.
fn data_of<const N: usize>(call: usize, kind: Kind) -> PrivateData<N> {
    let call = (call as u64).to_be_bytes();
    PrivateData::new(&[&call[..], &(kind as u16).to_be_bytes()].concat()).expect("10 bytes fit")
}
/// The message that a side sends.
fn message(call: usize, side: usize) -> [u8; 8] {
    (call as u64 * 2 + side as u64).to_be_bytes()
}

impl Manager {
    fn open(device: Arc<dyn Device>, guid: u64, rng: &mut Rng) -> Result<Self, String> {
        let context = Context::with_seed(device, rng.next_u64());
        let text = |e: &dyn core::fmt::Display| e.to_string();
        let pd = context.alloc_pd().map_err(|e| text(&e))?;
        let cq = |depth| context.create_cq(depth).map_err(|e| text(&e));
        let (heard, left, data) = (cq(DATAGRAMS)?, cq(DATAGRAMS)?, cq(DATA_CQ)?);
        let gsi = pd.qp::<Ud>(&heard).send_cq(&left).general_services().max_inline(MAD_BYTES as u32);
        let gsi = gsi.max_send_wr(DATAGRAMS).max_recv_wr(DATAGRAMS).build();
        let mut gsi = gsi.map_err(|e| text(&e))?;
        for _ in 0..DATAGRAMS {
            let buf = pd.alloc(Grh::BYTES + MAD_BYTES).map_err(|e| text(&e))?;
            gsi.post_recv(buf).map_err(|e| text(&e))?;
        }
        gsi.activate(GENERAL_SERVICES_QKEY).map_err(|e| text(&e))?;
        let mut machine = Machine::new(Config {
            guid: hca_cm::wire::Guid(guid),
            seed: rng.next_u64(),
            max_wait: Duration::from_secs(2),
            answer_memory: Duration::from_millis(200),
            ..Config::default()
        });
        for service in 0..LISTENED {
            for space in [PortSpace::Tcp, PortSpace::Udp] {
                let service = ServiceId::of_port(space, service);
                machine.listen(service, 64).map_err(|e| text(&e))?;
            }
        }
        Ok(Self {
            machine,
            mtu: context.port().active_mtu,
            gsi,
            paths: AhCache::new(&pd, 64),
            heard,
            left,
            data,
            wcs: Completions::default(),
            legs: BTreeMap::new(),
            resolving: BTreeMap::new(),
            pd,
        })
    }

    /// A queue pair of a connection, which can receive the peer's message.
    fn queue_pair(&self, call: usize, side: Side) -> Result<QueuePair<Rc>, String> {
        let context = call as u64 * 2 + side as u64;
        let qp = self.pd.qp::<Rc>(&self.data).max_send_wr(2).max_recv_wr(2).context(context).build();
        let mut qp = qp.map_err(|e| e.to_string())?;
        let buf = self.pd.alloc(16).map_err(|e| e.to_string())?;
        qp.post_recv(buf).map_err(|e| e.to_string())?;
        Ok(qp)
    }

    /// Takes the datagrams that are there. Returns whether there were any.
    fn hear(&mut self, now: Instant) -> Result<bool, String> {
        let (mut any, mut back) = (false, Vec::new());
        for mut wc in self.heard.poll(&mut self.wcs) {
            any = true;
            let from = wc.grh().filter(|_| wc.src_qp == GENERAL_SERVICES).map(|grh| grh.sgid);
            if let (Some(from), Some(mad)) = (from, wc.payload()) {
                self.machine.handle(now, from.into(), mad);
            }
            back.extend(wc.take_buf());
        }
        for buf in back {
            self.gsi.post_recv(buf).map_err(|e| e.to_string())?;
        }
        Ok(any)
    }
    /// Sends what the machine wants to send, as far as there is room.
    fn send(&mut self) -> Result<(), String> {
        while self.left.poll(&mut self.wcs).count() > 0 {}
        while self.gsi.control().outstanding_sends() < DATAGRAMS
            && let Some(Transmit { to, mad }) = self.machine.poll_transmit()
        {
            let av = AddressVector { dgid: to.gid, ..AddressVector::default() };
            let peer = self.paths.ah(&av).map_err(|e| e.to_string())?;
            let peer = peer.peer(GENERAL_SERVICES, GENERAL_SERVICES_QKEY);
            self.gsi.send_to(Inline(&mad[..]), &peer).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
    fn is_idle(&self) -> bool {
        self.machine.is_empty() && self.legs.is_empty() && self.resolving.is_empty()
    }
}

impl Managers {
    pub(super) fn new(sim: &Sim, calls: Vec<Call>) -> Self {
        let due = calls.iter().enumerate().map(|(n, call)| (Instant::ZERO + call.at, n)).collect();
        Self {
            sim: sim.clone(),
            seed: sim.seed(),
            due,
            nodes: Vec::new(),
            views: vec![[View::Pending; 2]; calls.len()],
            established: vec![[false; 2]; calls.len()],
            asked: vec![false; calls.len()],
            crashed: false,
            resolved: 0,
            calls,
        }
    }
    fn broken<T>(&self, n: usize, what: &str) -> Checked<T> {
        Err(self.sim.violation(format!("the connection manager of n{n}: {what}")))
    }
    fn sure<T>(&self, n: usize, done: Result<T, String>) -> Checked<T> {
        done.or_else(|what| self.broken(n, &what))
    }

    /// A node begins.
    pub(super) fn open(&mut self, n: usize, life: u32) -> Checked<()> {
        if self.calls.is_empty() {
            return Ok(());
        }
        let guid = n as u64 + 1;
        let mut rng = Rng::new(self.seed ^ guid << 32 ^ u64::from(life));
        let opened = Manager::open(self.sim.node(n).device(), guid, &mut rng);
        let manager = self.sure(n, opened)?;
        self.nodes.resize_with(self.nodes.len().max(n + 1), || None);
        self.nodes[n] = Some(manager);
        Ok(())
    }
    /// Regions of each adapter that its manager holds.
    pub(super) fn regions(&self) -> usize {
        if self.calls.is_empty() { 0 } else { REGIONS as usize }
    }
    /// A node is gone.
    pub(super) fn crash(&mut self, n: usize) {
        let Some(manager) = self.nodes.get_mut(n).and_then(Option::take) else { return };
        self.crashed = true;
        for leg in manager.legs.values() {
            self.views[leg.call][leg.side as usize] = View::Ended;
        }
        // Nothing tells a side that waits for its peer. Its program gives up some time later.
        let at = self.sim.now() + PATIENCE;
        for leg in self.nodes.iter_mut().flatten().flat_map(|m| m.legs.values_mut()) {
            leg.acts_at.get_or_insert(at);
        }
    }
    /// All nodes end.
    pub(super) fn close(&mut self) {
        self.nodes.clear();
    }
    /// Whether all that was asked for has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.due.is_empty() && self.nodes.iter().flatten().all(Manager::is_idle)
    }
    /// For people: what has not ended.
    pub(super) fn outstanding(&self) -> String {
        let mut out = String::new();
        for (n, manager) in self.nodes.iter().enumerate() {
            let Some(manager) = manager.as_ref().filter(|m| !m.is_idle()) else { continue };
            let legs: Vec<_> = manager.legs.values().map(|leg| (leg.call, leg.side, leg.closed)).collect();
            out.push_str(&format!(
                "\n  the connection manager of n{n}: {} entries, connections {legs:?}, resolutions {:?}",
                manager.machine.len(),
                manager.resolving,
            ));
        }
        out
    }
    pub(super) fn count(&self, report: &mut Report) {
        report.managed = self.established.iter().filter(|sides| sides[1]).count() as u64;
        report.resolved = self.resolved;
    }
    /// When something is due next.
    pub(super) fn next_due(&self) -> impl Iterator<Item = Instant> {
        let machines = self.nodes.iter().flatten().filter_map(|m| m.machine.deadline());
        let legs = self.nodes.iter().flatten().flat_map(|m| m.legs.values().filter_map(|leg| leg.acts_at));
        machines.chain(legs).chain(self.due.first().map(|(at, _)| *at))
    }

    /// Does what can be done now. Returns whether something was.
    pub(super) fn step(&mut self, now: Instant) -> Checked<bool> {
        let mut any = false;
        while let Some(&(at, call)) = self.due.first().filter(|(at, _)| *at <= now) {
            any = true;
            self.due.remove(&(at, call));
            self.begin(now, call)?;
        }
        for n in 0..self.nodes.len() {
            // The node is out of its place meanwhile, so that views of both sides can be looked at.
            let Some(mut manager) = self.nodes[n].take() else { continue };
            let done = self.step_of(now, n, &mut manager);
            self.nodes[n] = Some(manager);
            any |= done?;
        }
        Ok(any)
    }
    fn step_of(&mut self, now: Instant, n: usize, m: &mut Manager) -> Checked<bool> {
        let heard = m.hear(now);
        let mut any = self.sure(n, heard)?;
        any |= self.take_data(now, n, m)?;
        if m.machine.deadline().is_some_and(|at| at <= now) {
            m.machine.handle_timeout(now);
            any = true;
        }
        let due: Vec<_> = m.legs.iter().filter(|(_, leg)| leg.acts_at.is_some_and(|at| at <= now)).collect();
        let due: Vec<_> = due.into_iter().map(|(id, _)| *id).collect();
        for id in due {
            any = true;
            self.act(now, n, m, id)?;
        }
        while let Some(event) = m.machine.poll_event() {
            any = true;
            self.on_event(now, n, m, event)?;
        }
        let sent = m.send();
        self.sure(n, sent)?;
        Ok(any)
    }

    /// A program asks. One whose node is down asks nobody.
    fn begin(&mut self, now: Instant, nth: usize) -> Checked<()> {
        let call = self.calls[nth].clone();
        let to = Gid::from_ip(self.sim.net().address(call.to));
        let Some(m) = &mut self.nodes[call.from] else { return Ok(()) };
        self.sim.note(format!("n{} asks n{} by its connection manager: call {nth}", call.from, call.to));
        if call.datagram {
            let ask = Resolve {
                to: to.into(),
                service: call.service(),
                pkey: Pkey::DEFAULT,
                timeout: RESPONSE_TIMEOUT,
                retries: 15,
                private_data: data_of(nth, Kind::SidrReq),
            };
            let id = m.machine.resolve(now, &ask).map_err(|e| self.sim.violation(e.to_string()))?;
            m.resolving.insert(id, nth);
            return Ok(());
        }
        let qp = m.queue_pair(nth, Side::Asking).map_err(|what| self.sim.violation(what))?;
        let ours = qp.endpoint();
        let request = Req {
            service_id: call.service(),
            local_qpn: ours.qpn,
            starting_psn: ours.psn,
            responder_resources: ours.rd_atomic,
            initiator_depth: ours.rd_atomic,
            remote_response_timeout: RESPONSE_TIMEOUT,
            local_response_timeout: RESPONSE_TIMEOUT,
            max_cm_retries: Bits::MAX,
            path_mtu: m.mtu,
            primary: Path {
                local_gid: ours.gid,
                remote_gid: to,
                local_ack_timeout: ACK_TIMEOUT,
                ..Path::default()
            },
            private_data: data_of(nth, Kind::Req),
            ..Req::default()
        };
        let id =
            m.machine.connect(now, to.into(), &request).map_err(|e| self.sim.violation(e.to_string()))?;
        m.legs.insert(id, Leg { qp: Some(qp), ..Leg::new(nth, Side::Asking) });
        Ok(())
    }

    /// Takes the completions of connections.
    fn take_data(&mut self, now: Instant, n: usize, m: &mut Manager) -> Checked<bool> {
        let mut done = Vec::new();
        for wc in m.data.poll(&mut m.wcs) {
            let arrived = wc.opcode.is_recv().then(|| wc.payload().map(<[u8]>::to_vec));
            done.push((wc.context, wc.error().map(|e| e.to_string()), arrived));
        }
        for (context, error, arrived) in &done {
            let (call, side) = ((context / 2) as usize, (context % 2) as usize);
            let found = m.legs.iter_mut().find(|(_, leg)| leg.call == call && leg.side as usize == side);
            // Completions of a queue pair that is gone are gone with it.
            let Some((id, leg)) = found else {
                return self.broken(n, &format!("a completion of call {call}, which has ended"));
            };
            if let Some(error) = error {
                let excused = self.crashed || leg.closed || self.views[call][leg.side.other()] == View::Ended;
                if !excused {
                    return self.broken(n, &format!("a request of call {call} failed: {error}"));
                }
                leg.acts_at.get_or_insert(now);
                continue;
            }
            match arrived {
                None => leg.sent = true,
                Some(bytes) if bytes.as_deref() == Some(&message(call, leg.side.other())[..]) => {
                    leg.received = true;
                    let id = *id;
                    // The message may overtake the RTU.
                    let _ = m.machine.established(now, id);
                }
                Some(bytes) => return self.broken(n, &format!("the message of call {call} is {bytes:?}")),
            }
            if leg.side == Side::Asking && leg.sent && leg.received {
                leg.acts_at = Some(now + self.calls[call].pause);
            }
        }
        Ok(!done.is_empty())
    }

    /// The program answers a request, or ends a connection.
    fn act(&mut self, now: Instant, n: usize, m: &mut Manager, id: CommId) -> Checked<()> {
        let leg = m.legs.get_mut(&id).expect("it is due");
        leg.acts_at = None;
        let (call, request) = (leg.call, leg.request.take());
        if leg.closed {
            return Ok(());
        }
        let Some((from, request)) = request else {
            let asked = m.machine.disconnect(now, id, data_of(call, Kind::Dreq));
            // A connection that is not there yet, though its peer is gone, ends by itself.
            return self.excused(asked.is_ok(), n, || format!("call {call} can not be ended: {asked:?}"));
        };
        if self.calls[call].rejected {
            let data = data_of(call, Kind::Rej);
            let done = m.machine.reject(now, id, Reason::CONSUMER_DEFINED, Info::EMPTY, data);
            leg.closed = true;
            self.views[call][1] = View::Ended;
            return self.sure(n, done.map_err(|e| e.to_string()));
        }
        let done = m.queue_pair(call, Side::Asked).and_then(|qp| {
            let ours = qp.endpoint();
            connect(&qp, from, request.local_qpn, request.path_mtu, request.starting_psn)?;
            let reply = Rep {
                local_qpn: ours.qpn,
                starting_psn: ours.psn,
                responder_resources: ours.rd_atomic,
                initiator_depth: ours.rd_atomic,
                private_data: data_of(call, Kind::Rep),
                ..Rep::default()
            };
            m.machine.accept(now, id, &reply).map_err(|e| e.to_string())?;
            Ok(qp)
        });
        let qp = self.sure(n, done)?;
        m.legs.get_mut(&id).expect("it is there").qp = Some(qp);
        Ok(())
    }

    fn on_event(&mut self, now: Instant, n: usize, m: &mut Manager, event: Event) -> Checked<()> {
        self.sim.note(format!("n{n}: {event:?}").chars().take(160).collect::<String>());
        match event {
            Event::Request { id, from, request, service } => {
                let call = u64::from_be_bytes(*request.private_data.bytes().first_chunk().expect("92 bytes"));
                let call = call as usize;
                let is_right = self.calls.get(call).is_some_and(|c| c.service() == service && c.to == n)
                    && request.private_data == data_of(call, Kind::Req);
                if !is_right || (core::mem::replace(&mut self.asked[call], true) && !self.crashed) {
                    return self.broken(n, &format!("a request that nobody made, or made once: {request:?}"));
                }
                let acts_at = Some(now + self.calls[call].pause);
                let request = Some((from.gid, Box::new(request)));
                m.legs.insert(id, Leg { request, acts_at, ..Leg::new(call, Side::Asked) });
                Ok(())
            }
            Event::Reply { id, reply } => {
                let leg = m.legs.get_mut(&id).expect("a call");
                let (call, mtu) = (leg.call, m.mtu);
                if reply.private_data != data_of(call, Kind::Rep) {
                    return self.broken(n, &format!("the reply to call {call} is {reply:?}"));
                }
                let to = Gid::from_ip(self.sim.net().address(self.calls[call].to));
                let qp = leg.qp.as_mut().expect("who asks has a queue pair");
                let ready = connect(qp, to, reply.local_qpn, mtu, reply.starting_psn).and_then(|()| {
                    m.machine.ready(id, data_of(call, Kind::Rtu)).map_err(|e| e.to_string())?;
                    qp.send_inline(&message(call, 0)).map_err(|e| e.to_string())
                });
                self.sure(n, ready)?;
                self.has_begun(call, Side::Asking);
                Ok(())
            }
            Event::Established { id, private_data } => {
                let leg = m.legs.get_mut(&id).expect("a call");
                let call = leg.call;
                if private_data != PrivateData::EMPTY && private_data != data_of(call, Kind::Rtu) {
                    return self.broken(n, &format!("the RTU of call {call} has {private_data:?}"));
                }
                let qp = leg.qp.as_mut().expect("who accepted has a queue pair");
                let sent = qp.send_inline(&message(call, 1)).map_err(|e| e.to_string());
                self.sure(n, sent)?;
                leg.acts_at = self.crashed.then(|| now + PATIENCE);
                self.has_begun(call, Side::Asked);
                Ok(())
            }
            Event::Rejected { id, reason, private_data, .. } => {
                let call = self.ended(n, m, id)?;
                let right = match reason {
                    Reason::INVALID_SERVICE_ID => self.calls[call].service >= LISTENED,
                    Reason::CONSUMER_DEFINED => {
                        self.calls[call].rejected && private_data == data_of(call, Kind::Rej)
                    }
                    _ => false,
                };
                self.excused(right, n, || format!("call {call} was rejected: {reason}, {private_data:?}"))
            }
            Event::Failed { id, failure } => {
                let call = self.ended(n, m, id)?;
                self.excused(false, n, || format!("call {call}: {failure}"))
            }
            Event::Disconnected { id, cause, .. } => {
                let call = self.ended(n, m, id)?;
                let right = cause == hca_cm::Cause::Peer && self.views[call][0] != View::Pending;
                self.excused(right, n, || format!("call {call} was disconnected: {cause:?}"))
            }
            Event::DisconnectDone { id, answered, .. } => {
                let call = self.ended(n, m, id)?;
                self.excused(answered, n, || format!("nobody answered the end of call {call}"))
            }
            Event::Gone { id } => match m.legs.remove(&id) {
                Some(leg) if leg.closed => Ok(()),
                _ => self.broken(n, &format!("{id} is gone without an end")),
            },
            Event::SidrRequest { id, request, .. } => {
                let call =
                    u64::from_be_bytes(*request.private_data.bytes().first_chunk().expect("216 bytes"));
                let call = call as usize;
                if request.private_data != data_of(call, Kind::SidrReq) || call >= self.calls.len() {
                    return self.broken(n, &format!("a resolution that nobody asked for: {request:?}"));
                }
                let found =
                    Resolution::Found { qpn: Qpn::new(call as u32 + 2), qkey: Qkey::new(call as u32) };
                let refused = Resolution::Refused(Refusal::REJECTED);
                let resolution = if self.calls[call].rejected { refused } else { found };
                let answer = SidrAnswer { resolution, private_data: data_of(call, Kind::SidrRep) };
                let done = m.machine.answer(now, id, &answer).map_err(|e| e.to_string());
                self.sure(n, done)
            }
            Event::Resolved { id, resolution, private_data, .. } => {
                let Some(call) = m.resolving.remove(&id) else {
                    return self.broken(n, "a second resolution");
                };
                let right = match resolution {
                    Resolution::Found { qpn, qkey } => {
                        self.resolved += 1;
                        !self.calls[call].rejected
                            && (qpn.raw(), qkey.raw()) == (call as u32 + 2, call as u32)
                            && private_data == data_of(call, Kind::SidrRep)
                    }
                    Resolution::Refused(_) => {
                        self.calls[call].rejected || self.calls[call].service >= LISTENED
                    }
                };
                self.excused(right, n, || format!("call {call} is resolved as {resolution:?}"))
            }
            Event::Unresolved { id } => {
                let call = m.resolving.remove(&id);
                self.excused(false, n, || format!("nobody answered call {call:?}"))
            }
            _ => Ok(()),
        }
    }
    fn has_begun(&mut self, call: usize, side: Side) {
        self.views[call][side as usize] = View::Established;
        self.established[call][side as usize] = true;
    }
    /// A connection has ended: its queue pair goes.
    fn ended(&mut self, n: usize, m: &mut Manager, id: CommId) -> Checked<usize> {
        let Some(leg) = m.legs.get_mut(&id).filter(|leg| !leg.closed) else {
            return self.broken(n, &format!("a second end of {id}"));
        };
        (leg.closed, leg.qp) = (true, None);
        self.views[leg.call][leg.side as usize] = View::Ended;
        Ok(leg.call)
    }
    /// What is wrong unless a node crashed.
    fn excused(&self, right: bool, n: usize, what: impl FnOnce() -> String) -> Checked<()> {
        if right || self.crashed { Ok(()) } else { self.broken(n, &what()) }
    }
    /// At the end of a run: both sides saw each connection alike.
    pub(super) fn agree(&self) -> Checked<()> {
        let differs = self.established.iter().position(|sides| sides[0] != sides[1]);
        match differs.filter(|_| !self.crashed) {
            None => Ok(()),
            Some(call) => {
                let n = self.calls[call].from;
                self.broken(n, &format!("one side of call {call} was connected, the other was not"))
            }
        }
    }
}

/// Connects a queue pair to the peer's, whose first PSN to send is `psn`.
fn connect(qp: &QueuePair<Rc>, gid: Gid, qpn: Qpn, mtu: Mtu, psn: hca_core::Psn) -> Result<(), String> {
    let ours = qp.endpoint();
    let (service, rd_atomic) = (QpType::Rc, ours.rd_atomic);
    let remote = Endpoint { service, qpn, psn: ours.psn, mtu, rd_atomic, gid, lid: Lid::default() };
    let options = ConnectOptions { psn: Some(psn), timeout: DATA_TIMEOUT, ..ConnectOptions::default() };
    qp.control().connect(&remote, &options).map_err(|e| e.to_string())
}
