//! Send requests: reading them from the client's queues, and posting them to the adapter.
//!
//! The function copies each request once into its own memory, and parses the copy. A malformed request, or one that the
//! adapter refuses, is an operation error of its queue pair: its completion comes when all requests before it have
//! ended, and the requests behind it are flushed.
#![allow(unsafe_code)] // `SendPort::post`, with its argument

use hca_core::{
    AddressVector, Dest, Device, Payload, PdHandle, PostErrorKind, Qkey, QpState, QpType, Qpn, RemoteAddr,
    Rkey, SendFlags, SendOp, SendWr, Sge, Srqn, UdDest,
};
use hca_prm::{
    AtomicSeg, CompletionMode, CqeSyndrome, CtrlSeg, EventType, FenceMode, Mkc, RaddrSeg, SEND_WQE_BB,
    UdAdrsVector, UmrCtrlSeg, WQE_DS_UNIT, WqeOpcode, XrcSeg,
};

use super::aside::Aside;
use super::segments::{Data, Places, Segments};
use crate::cq::complete::{Shown, ended};
use crate::guest::Window;
use crate::mkey::bus::Names;
use crate::objects::{Addresses, address_key};
use crate::port::directory::Directory;
use crate::qp::modify::{destination, named};
use crate::qp::{Barrier, MAX_SEND_SGE, Qp, Service, WorkQueue};

/// Bytes of the longest request.
const MAX_WQE: usize = hca_prm::MAX_WQE_DS as usize * WQE_DS_UNIT;
/// Requests of one queue that are taken in one look.
const BUDGET: usize = 64;
/// Address handles that a function keeps.
const MAX_ADDRESSES: usize = 1024;

/// What a posted request is known by when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendId {
    /// The counter of its first block.
    pub(crate) counter: u16,
    /// The operation, as the driver gave it.
    pub(crate) opcode: u8,
    /// Whether its success is reported.
    pub(crate) signaled: bool,
    /// Whether bytes of it were set aside.
    pub(crate) aside: bool,
}

impl SendId {
    fn pack(self) -> u64 {
        let flags = u64::from(self.signaled) | u64::from(self.aside) << 1;
        u64::from(self.counter) | u64::from(self.opcode) << 16 | flags << 24
    }
    pub(crate) fn of(id: u64) -> Self {
        let flag = |bit: u32| id >> bit & 1 != 0;
        Self { counter: id as u16, opcode: (id >> 16) as u8, signaled: flag(24), aside: flag(25) }
    }
}

/// Where a request is read to, and the places that it lists.
pub(crate) struct Room {
    bytes: [u8; MAX_WQE],
    sges: Places,
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: [0; MAX_WQE], sges: [Sge::default(); MAX_SEND_SGE as usize] }
    }
}

/// A request as it was read.
struct Wqe<'a> {
    ctrl: CtrlSeg,
    /// What is behind that.
    rest: &'a [u8],
}

impl<'a> Wqe<'a> {
    fn read(queue: &Window, sq: &WorkQueue, bytes: &'a mut [u8; MAX_WQE]) -> Self {
        load(queue, sq, 0, &mut bytes[..CtrlSeg::SIZE]);
        let (ctrl, rest) = bytes.split_first_chunk_mut().expect("longer than a segment");
        let ctrl = CtrlSeg::from_array(*ctrl);
        let len = ctrl.get(CtrlSeg::DS) as usize * WQE_DS_UNIT;
        if len <= CtrlSeg::SIZE || len > 1 << (sq.log_size + sq.log_stride) {
            return Self { ctrl, rest: &[] };
        }
        // The control segment stays as it was read first.
        let rest = &mut rest[..len - CtrlSeg::SIZE];
        load(queue, sq, CtrlSeg::SIZE, rest);
        Self { ctrl, rest }
    }

    fn len(&self) -> usize {
        CtrlSeg::SIZE + self.rest.len()
    }

    fn blocks(&self) -> u16 {
        self.len().div_ceil(SEND_WQE_BB) as u16
    }
    fn code(&self) -> u8 {
        self.ctrl.get(CtrlSeg::OPCODE) as u8
    }
    fn signaled(&self) -> bool {
        self.ctrl.get(CtrlSeg::CE) >= CompletionMode::Always.code()
    }
    fn flags(&self) -> SendFlags {
        let fence = self.ctrl.get(CtrlSeg::FM) >= FenceMode::Fence.code();
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::FENCE, fence);
        flags.set(SendFlags::SOLICITED, self.ctrl.get(CtrlSeg::SE));
        flags
    }
}

/// Bytes of the next request from `from` on; it goes on at the queue's beginning where that ends.
fn load(queue: &Window, sq: &WorkQueue, from: usize, mut into: &mut [u8]) {
    let size = 1_usize << (sq.log_size + sq.log_stride);
    let mut at = (usize::from(sq.next) << sq.log_stride) + from;
    while !into.is_empty() {
        let (now, later) = into.split_at_mut(into.len().min(size - (at & (size - 1))));
        queue.load(sq.at + (at & (size - 1)), now);
        at += now.len();
        into = later;
    }
}

/// What the adapter is to do.
struct Request<'a> {
    op: SendOp,
    data: Data<'a>,
    to: To,
}

/// Where a request goes.
enum To {
    /// To the peer of its queue pair.
    Peer,
    /// Where a datagram's address leads.
    Address(UdAdrsVector),
    /// To a shared receive queue of the peer's domain.
    Srq(Srqn),
}

/// Understands a request; `None`: nothing is to be done.
fn understand<'a>(
    wqe: &Wqe<'a>,
    service: Service,
    sges: &mut Places,
) -> Result<Option<Request<'a>>, CqeSyndrome> {
    let wrong = CqeSyndrome::LocalQpOpErr;
    let sane = wqe.ctrl.get(CtrlSeg::DS) as usize * WQE_DS_UNIT == wqe.len();
    let opcode = WqeOpcode::from_code(wqe.code().into()).filter(|_| sane).ok_or(wrong)?;
    let qp_type = match service {
        _ if opcode == WqeOpcode::Nop => return Ok(None),
        Service::Real(qp_type) => qp_type,
        Service::Inert { sends: true } if matches!(opcode, WqeOpcode::Send | WqeOpcode::SendImm) => {
            return Ok(None);
        }
        Service::Inert { .. } => return Err(wrong),
    };
    let mut rest = Segments::of(wqe.rest);
    let remote = |rest: &mut Segments<'_>| {
        let seg = RaddrSeg::from_array(rest.take()?);
        Ok(RemoteAddr { addr: seg.get(RaddrSeg::RADDR), rkey: Rkey::new(seg.get(RaddrSeg::RKEY)) })
    };
    let imm = wqe.ctrl.get(CtrlSeg::IMM);
    let to = match qp_type {
        QpType::Ud => To::Address(UdAdrsVector::from_array(rest.take()?)),
        QpType::XrcIni => To::Srq(Srqn::new(XrcSeg::from_array(rest.take()?).get(XrcSeg::XRC_SRQN))),
        QpType::Rc | QpType::Uc | QpType::XrcTgt | QpType::Rd | QpType::Eec => To::Peer,
    };
    if matches!(&to, To::Address(to) if !to.get(UdAdrsVector::EXT)) {
        return Err(wrong);
    }
    let op = match opcode {
        WqeOpcode::Send => SendOp::Send,
        WqeOpcode::SendImm => SendOp::SendImm(imm),
        WqeOpcode::SendInval => SendOp::SendInv(Rkey::new(imm)),
        WqeOpcode::RdmaWrite => SendOp::Write(remote(&mut rest)?),
        WqeOpcode::RdmaWriteImm => SendOp::WriteImm(remote(&mut rest)?, imm),
        WqeOpcode::RdmaRead => SendOp::Read(remote(&mut rest)?),
        WqeOpcode::AtomicCs => {
            let (remote, seg) = (remote(&mut rest)?, AtomicSeg::from_array(rest.take()?));
            let (compare, swap) = (seg.get(AtomicSeg::COMPARE), seg.get(AtomicSeg::SWAP_ADD));
            SendOp::CompareSwap { remote, compare, swap }
        }
        WqeOpcode::AtomicFa => {
            let (remote, seg) = (remote(&mut rest)?, AtomicSeg::from_array(rest.take()?));
            SendOp::FetchAdd { remote, add: seg.get(AtomicSeg::SWAP_ADD) }
        }
        _ => return Err(wrong),
    };
    let data = Data::read(rest, sges)?;
    // What is read has to go somewhere.
    if op.is_read_or_atomic() && !matches!(data, Data::Places(_)) {
        Err(wrong)
    } else {
        Ok(Some(Request { op, data, to }))
    }
}

/// What came of looking for a datagram's destination.
enum Found {
    There(UdDest),
    /// Nobody has the address: the datagram is lost, as in a network.
    Nowhere,
    /// There is no room until those that are in use are not any more.
    Later,
}

/// A datagram's destination, with an address handle.
fn address(
    pd: PdHandle,
    to: &UdAdrsVector,
    addresses: &mut Addresses,
    directory: &mut Directory,
    shown: &Shown<'_>,
) -> Found {
    if addresses.is_waited_for {
        if addresses.in_flight > 0 {
            return Found::Later;
        }
        addresses.is_waited_for = false;
        for (_, ah) in addresses.handles.drain() {
            crate::objects::gone("address handle", shown.hca.destroy_ah(ah));
        }
    }
    let lid = to.get(UdAdrsVector::RLID_UDP_SPORT);
    // Between Ethernet ports there always is a GRH, and the bit is reserved. Between InfiniBand ports all that is about
    // a GRH means nothing without the bit: UCX leaves there what stood in that place of the queue before.
    let header = shown.wire.ethernet || to.get(UdAdrsVector::GRH) || lid == 0;
    let global = if header { *to } else { UdAdrsVector::new() };
    let (by_gid, by_lid) = named(global.get(UdAdrsVector::RGID_RIP), header, lid);
    let dgid = destination(directory, (by_gid, by_lid)).filter(|_| !directory.is_down(by_gid, by_lid));
    let Some(dgid) = dgid else { return Found::Nowhere };
    let mut hop_limit = global.get(UdAdrsVector::HOP_LIMIT) as u8;
    if dgid == directory.own() {
        let source = header.then(|| global.get(UdAdrsVector::SRC_ADDR_INDEX));
        let functions = (shown.wire.number, to.get(UdAdrsVector::DESTINATION_QP_DCT));
        hop_limit = directory.mark(functions, source, by_gid, hop_limit);
    }
    let av = AddressVector {
        dgid,
        flow_label: global.get(UdAdrsVector::FLOW_LABEL),
        hop_limit,
        traffic_class: global.get(UdAdrsVector::TCLASS) as u8,
        ..AddressVector::default()
    };
    let there = |ah| {
        let (qpn, qkey) = (to.get(UdAdrsVector::DESTINATION_QP_DCT), to.get(UdAdrsVector::Q_KEY));
        Found::There(UdDest { ah, qpn: Qpn::new(qpn), qkey: Qkey::new(qkey) })
    };
    let key = (pd, address_key(&av));
    if let Some(ah) = addresses.handles.get(&key) {
        return there(*ah);
    }
    if addresses.handles.len() >= MAX_ADDRESSES {
        addresses.is_waited_for = true;
        return Found::Later;
    }
    match shown.hca.create_ah(pd, &av) {
        Ok(ah) => {
            addresses.handles.insert(key, ah);
            there(ah)
        }
        Err(e) => {
            tracing::debug!("a datagram has no path: {e}");
            Found::Nowhere
        }
    }
}

/// What became of a request.
enum Step {
    Taken,
    /// It waits; all behind it do, too.
    Waits,
}

/// Looks how many requests are announced. Returns whether there are new ones.
pub(crate) fn note(qp: &mut Qp) -> bool {
    let Some(memory) = qp.memory.as_ref().filter(|_| qp.sq.is_some() && !qp.in_reset) else { return false };
    let announced = memory.record.load32(4) as u16;
    core::mem::replace(&mut qp.announced, announced) != announced
}

/// Takes the requests that were noted of a queue pair's send queue. Returns whether there were any.
pub(crate) fn take(
    qp: &mut Qp,
    room: &mut Room,
    addresses: &mut Addresses,
    directory: &mut Directory,
    names: &mut Names<'_>,
    shown: &mut Shown<'_>,
) -> bool {
    let (Some(memory), Some(sq)) = (&qp.memory, qp.sq) else { return false };
    let posted = qp.announced;
    if posted == sq.next || memory.queues.is_none() {
        return false;
    }
    if usize::from(posted.wrapping_sub(sq.next)) > 1 << sq.log_size {
        return shown.fail_queue_pair(qp, EventType::WqCatasError);
    }
    let mut posts = false;
    for _ in 0..BUDGET {
        let Some(sq) = qp.sq.filter(|sq| sq.next != posted) else { break };
        match take_one(qp, &sq, room, addresses, directory, names, shown) {
            Ok(Step::Taken) => posts |= qp.held > 0,
            Ok(Step::Waits) => break,
            Err(()) => return shown.fail_queue_pair(qp, EventType::WqCatasError),
        }
    }
    if let Some(port) = qp.send.as_mut().filter(|_| posts) {
        port.ring();
    }
    qp.sq.is_some_and(|now| now.next != sq.next)
}

/// Takes one request. `Err`: the queue pair is to be given up.
fn take_one(
    qp: &mut Qp,
    sq: &WorkQueue,
    room: &mut Room,
    addresses: &mut Addresses,
    directory: &mut Directory,
    names: &mut Names<'_>,
    shown: &mut Shown<'_>,
) -> Result<Step, ()> {
    if let Some(barrier) = qp.barrier {
        return Ok(pass_barrier(qp, barrier, shown));
    }
    let Some(queue) = qp.memory.as_ref().and_then(|m| m.queues.as_ref()) else { return Ok(Step::Waits) };
    let wqe = Wqe::read(queue, sq, &mut room.bytes);
    // An entry that claims to be longer than what was announced ends there.
    let left = qp.announced.wrapping_sub(sq.next);
    let blocks = wqe.blocks().clamp(1, left);
    let (counter, opcode) = (sq.next, wqe.code());
    let stop = |wrong, qp: &mut Qp| {
        qp.barrier = Some(Barrier { counter, blocks, opcode, signaled: wqe.signaled(), wrong });
        Ok(Step::Taken)
    };
    if qp.send_failed {
        return stop(Some(CqeSyndrome::WrFlushErr), qp);
    }
    if qp.is_inert() && qp.inert_state != QpState::Rts {
        return Ok(Step::Waits);
    }
    if wqe.blocks() > left {
        return stop(Some(CqeSyndrome::LocalQpOpErr), qp);
    }
    let is_umr = wqe.code() == WqeOpcode::Umr.code() as u8;
    if is_umr && qp.service == (Service::Inert { sends: false }) {
        return stop(change_key(&wqe, names).err(), qp);
    }
    let Request { op, data, to } = match understand(&wqe, qp.service, &mut room.sges) {
        Ok(Some(request)) => request,
        Ok(None) => return stop(None, qp),
        Err(wrong) => return stop(Some(wrong), qp),
    };
    if !is_heard(qp, directory, shown) {
        // Nobody answers, as in a network that knows who sends, or whose link is down.
        return stop(qp.is_reliable().then_some(CqeSyndrome::TransportRetryExcErr), qp);
    }
    let dest = match to {
        To::Peer => None,
        To::Srq(number) => Some(Dest::Srq(number)),
        To::Address(to) => match address(qp.pd, &to, addresses, directory, shown) {
            Found::There(dest) => Some(dest.into()),
            Found::Nowhere => return stop(None, qp),
            Found::Later => return Ok(Step::Waits),
        },
    };
    let datagram = matches!(dest, Some(Dest::Datagram(_)));
    let aside = matches!(data, Data::Mixed(_));
    let mut count = match data {
        Data::Inline(_) => 0,
        Data::Places(listed) => listed,
        Data::Mixed(segments) => match set_aside(qp, segments, &mut room.sges, names) {
            Ok(Some(listed)) => listed,
            Ok(None) => return Ok(Step::Waits),
            Err(wrong) => return stop(Some(wrong), qp),
        },
    };
    names.translate(qp.pd, &mut room.sges, &mut count);
    let payload = if let Data::Inline(bytes) = data {
        Payload::Inline(bytes)
    } else {
        Payload::Sges(&room.sges[..count])
    };
    if datagram && bytes_of(&payload) > u64::from(shown.wire.longest_datagram) {
        return stop(Some(CqeSyndrome::LocalLengthErr), qp);
    }
    let Some(port) = &mut qp.send else { return Err(()) };
    let wr_id = SendId { counter, opcode, signaled: wqe.signaled(), aside }.pack();
    let wr = SendWr { wr_id, op, flags: wqe.flags(), payload, dest };
    // SAFETY: the memory is the client's, which is another process or reaches it by copies, as keys were made for.
    match unsafe { port.post(&[wr]) }.map_err(|e| e.kind) {
        Ok(()) => {
            qp.held += 1;
            if let Some(memory) = qp.aside.as_mut().filter(|_| aside) {
                memory.posted();
            }
            addresses.in_flight += u32::from(datagram);
            if let Some(sq) = &mut qp.sq {
                sq.next = sq.next.wrapping_add(blocks);
            }
            Ok(Step::Taken)
        }
        Err(PostErrorKind::QueueFull { .. } | PostErrorKind::WrongState(_)) => Ok(Step::Waits),
        Err(PostErrorKind::MessageTooLong { .. }) => stop(Some(CqeSyndrome::LocalLengthErr), qp),
        Err(PostErrorKind::Destroyed) => Err(()),
        Err(e) => {
            tracing::debug!("a request is refused: {e}");
            stop(Some(CqeSyndrome::LocalQpOpErr), qp)
        }
    }
}

/// Has a request change a key.
fn change_key(wqe: &Wqe<'_>, names: &mut Names<'_>) -> Result<(), CqeSyndrome> {
    let mut rest = Segments::of(wqe.rest);
    let (asked, requested) = (UmrCtrlSeg::from_array(rest.take()?), Mkc::from_array(rest.take()?));
    let keys = names.keys.as_mut().ok_or(CqeSyndrome::LocalQpOpErr)?;
    keys.change(names.hca, wqe.ctrl.get(CtrlSeg::UMR_MKEY), &asked, &requested)
}

fn bytes_of(payload: &Payload<'_>) -> u64 {
    match payload {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Sges(places) => places.iter().map(|place| u64::from(place.len)).sum(),
        Payload::Mixed(list) => list.message_bytes(),
    }
}

/// Lists the bytes of a request that stand in it in pieces, or beside places. `None`: there is no room for now.
fn set_aside(
    qp: &mut Qp,
    segments: Segments<'_>,
    places: &mut Places,
    names: &Names<'_>,
) -> Result<Option<usize>, CqeSyndrome> {
    let memory = match &mut qp.aside {
        Some(memory) => memory,
        // An adapter that has no region left for it has no way to do what is asked.
        none => none.insert(Aside::new(names.hca, qp.pd).map_err(|_| CqeSyndrome::LocalQpOpErr)?),
    };
    memory.list(segments, places)
}

/// Whether the peer of a queue pair is connected to it, or to nobody.
fn is_heard(qp: &mut Qp, directory: &Directory, shown: &Shown<'_>) -> bool {
    if qp.heard.0 != directory.version() {
        qp.heard = (directory.version(), directory.is_heard(shown.number(qp.handle)));
    }
    qp.heard.1
}

/// Ends the request at which the queue stopped, once all before it have ended.
fn pass_barrier(qp: &mut Qp, barrier: Barrier, shown: &mut Shown<'_>) -> Step {
    if qp.held > 0 {
        return Step::Waits;
    }
    // The queue pair may have failed meanwhile.
    let wrong = if qp.send_failed { Some(CqeSyndrome::WrFlushErr) } else { barrier.wrong };
    qp.barrier = None;
    if let Some(sq) = &mut qp.sq {
        sq.next = barrier.counter.wrapping_add(barrier.blocks);
    }
    if wrong.is_some() || barrier.signaled {
        ended(qp, barrier.counter, barrier.opcode, wrong, shown);
    }
    if wrong.is_some() && !qp.send_failed {
        qp.send_failed = true;
        // The send queues of unreliable services fail alone.
        if qp.is_reliable() {
            qp.fail(shown.hca);
        }
    }
    Step::Taken
}
