//! Ethernet send queues: each request is read once, and its frame is assembled in the server's memory and given to the
//! switch.
//!
//! A malformed request, or one that names memory that the queue may not reach, completes with an error and puts the
//! queue into the error state, as hardware does. The requests behind it are flushed if the driver asked for that.

use core::time::Duration;

use hca_core::PdHandle;
use hca_prm::command::ethernet::{CreateSqIn, CreateSqOut, ModifySqIn, QuerySqOut};
use hca_prm::{
    CmdStatus, CompletionMode, Cqe64, CqeOpcode, CqeSyndrome, CtrlSeg, DataSeg, EthSeg, InlineSeg,
    MAX_WQE_DS, SEND_WQE_BB, Sqc, WQE_DS_UNIT, Wq, WqeOpcode,
};

use super::frame::{MIN_FRAME, destination, fill_checksums, segments};
use super::reach::Reach;
use super::ring::Ring;
use super::uses::Thing;
use super::{ERROR, Ethernet, READY, RESET, may_change};
use crate::command::{Output, caps, parse};
use crate::cq::Written;
use crate::cq::complete::error_entry;
use crate::function::Function;
use crate::guest::Guest;
use crate::objects::{Objects, Raised};

/// Bytes of a block, of which requests are made, as a power of two.
const LOG_BLOCK: u32 = SEND_WQE_BB.ilog2();
/// Blocks of a queue, as a power of two.
pub(super) const MAX_LOG_SIZE: u32 = 15;
/// What may be taken in one look, of all queues of a function together: a request is one, and so is each copy of a
/// frame.
pub(super) const BUDGET: usize = 2048;
/// Bytes of frames, as well.
pub(super) const BYTES: usize = 256 << 10;
/// Bytes of a packet that is to be cut, and of its segments.
const MAX_PACKET: usize = (1 << crate::command::caps::LOG_LSO) + MAX_WQE;
const MAX_SEGMENTS: usize = 4096;
/// Bytes of the longest request.
const MAX_WQE: usize = MAX_WQE_DS as usize * WQE_DS_UNIT;
/// Where the frame's first bytes stand in a request, and where data follow if there are no more of them.
const HEADER_AT: usize = DATA_AT - HEADER_START;
const DATA_AT: usize = CtrlSeg::SIZE + EthSeg::SIZE;
/// Bytes of the frame that the Ethernet segment holds itself, at its end.
const HEADER_START: usize = 2;
/// The checksums that a request asks for.
const IP_CHECKSUM: u32 = 0x40;
const L4_CHECKSUM: u32 = 0x80;
/// The byte counter's bits of an inline segment.
const INLINE_MASK: u32 = 0x3ff;
/// Where the doorbell record has the counter of requests.
const RECORD: u64 = 4;

/// A send queue.
#[derive(Debug)]
pub(super) struct Sq {
    context: Sqc,
    ring: Ring,
    pd: Option<PdHandle>,
    state: u32,
    pub(super) taken: u16,
    /// What the doorbell record said when the queue was reset. Drivers leave it there; it announces nothing until a
    /// doorbell names the queue, or it is another one.
    stale: Option<u16>,
    /// Its doorbell was rung, and not all that was announced is taken.
    rung: bool,
}

/// The parsed contents of a request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Frames(Vec<Vec<u8>>),
}

/// A request as it was read.
struct Wqe {
    place: u16,
    ctrl: CtrlSeg,
    bytes: Vec<u8>,
}

impl Wqe {
    fn is_signaled(&self) -> bool {
        self.ctrl.get(CtrlSeg::CE) >= CompletionMode::Always.code()
    }
}

impl Sq {
    /// The doorbell page on which it announces its work.
    pub(super) fn uar(&self) -> u32 {
        self.context.get(Sqc::WQ).get(Wq::UAR_PAGE)
    }

    fn new(context: Sqc, pd: Option<PdHandle>, list: &[u8]) -> Result<Self, CmdStatus> {
        caps::check_clock(context.get(Sqc::TS_FORMAT))?;
        let ring = Ring::new(&context.get(Sqc::WQ), MAX_LOG_SIZE, LOG_BLOCK..=LOG_BLOCK, list)?;
        Ok(Self { context, ring, pd, state: RESET, taken: 0, stale: None, rung: false })
    }

    /// The memory that the request names.
    fn names(&self) -> Vec<Thing> {
        let wq = self.context.get(Sqc::WQ);
        let mut names = vec![Thing::Cq(self.context.get(Sqc::CQN))];
        names.extend(self.pd.map(|_| Thing::Pd(wq.get(Wq::PD))));
        names.extend(self.sends().then(|| Thing::Tis(self.context.get(Sqc::TIS_NUM_0))));
        names
    }

    /// Whether it has an interface to send by.
    fn sends(&self) -> bool {
        self.context.get(Sqc::TIS_LST_SZ) != 0
    }

    /// How far the client has written; more than the queue holds is no count.
    fn announced(&mut self, guest: &Guest) -> Option<u16> {
        let end = self.ring.counter(guest, RECORD)?;
        if self.stale == Some(end) {
            return None;
        }
        self.stale = None;
        (u32::from(end.wrapping_sub(self.taken)) <= self.ring.entries()).then_some(end)
    }

    /// The next request of those up to `end`.
    fn next(&mut self, guest: &Guest, end: u16) -> Option<Wqe> {
        let (place, there) = (self.taken, end.wrapping_sub(self.taken));
        if there == 0 {
            return None;
        }
        let mut ctrl = CtrlSeg::new();
        self.ring.read(guest, place, ctrl.as_bytes_mut()).ok()?;
        let len = (ctrl.get(CtrlSeg::DS) as usize * WQE_DS_UNIT).max(CtrlSeg::SIZE);
        let blocks = len.div_ceil(SEND_WQE_BB) as u16;
        if blocks > there {
            // What stands there is no request.
            self.taken = end;
            return Some(Wqe { place, ctrl, bytes: Vec::new() });
        }
        let mut bytes = vec![0; len];
        self.ring.read(guest, place, &mut bytes).ok()?;
        // The control segment stays as it was read first.
        bytes[..CtrlSeg::SIZE].copy_from_slice(ctrl.as_bytes());
        self.taken = place.wrapping_add(blocks);
        Some(Wqe { place, ctrl, bytes })
    }

    /// The parsed contents of a request.
    fn understand(&self, wqe: &Wqe, reach: &Reach<'_>, largest: usize) -> Result<Asked, CqeSyndrome> {
        let wrong = CqeSyndrome::LocalQpOpErr;
        if wqe.bytes.is_empty() {
            return Err(wrong);
        }
        let cut = match WqeOpcode::from_code(wqe.ctrl.get(CtrlSeg::OPCODE)) {
            Some(WqeOpcode::Nop) => return Ok(Asked::Nothing),
            Some(WqeOpcode::Send) => false,
            Some(WqeOpcode::Lso) => true,
            _ => return Err(wrong),
        };
        let head = wqe.bytes.get(CtrlSeg::SIZE..).and_then(|rest| rest.first_chunk()).ok_or(wrong)?;
        let head = EthSeg::from_array(*head);
        if !self.sends() {
            return Err(wrong);
        }
        let (flags, header) = (head.get(EthSeg::CS_FLAGS), head.get(EthSeg::INLINE_HDR_SZ) as usize);
        let most = if cut { MAX_PACKET } else { largest };
        let mut frame = self.gather(&wqe.bytes, header, reach, most)?;
        let frames = if cut {
            let mss = head.get(EthSeg::MSS) as usize;
            if mss == 0 || frame.len() / mss > MAX_SEGMENTS {
                return Err(wrong);
            }
            segments(&frame, header, mss).ok_or(wrong)?
        } else {
            if frame.len() >= MIN_FRAME {
                fill_checksums(&mut frame, flags & IP_CHECKSUM != 0, flags & L4_CHECKSUM != 0);
            }
            vec![frame]
        };
        let fits = frames.iter().all(|frame| (MIN_FRAME..=largest).contains(&frame.len()));
        if fits { Ok(Asked::Frames(frames)) } else { Err(CqeSyndrome::LocalLengthErr) }
    }

    /// Puts a frame together: what stands in the request, and what its data segments name.
    fn gather(
        &self,
        wqe: &[u8],
        header: usize,
        reach: &Reach<'_>,
        most: usize,
    ) -> Result<Vec<u8>, CqeSyndrome> {
        let wrong = CqeSyndrome::LocalQpOpErr;
        let mut frame = wqe.get(HEADER_AT..HEADER_AT + header).ok_or(wrong)?.to_vec();
        let more = header.saturating_sub(HEADER_START).next_multiple_of(WQE_DS_UNIT);
        let mut rest = wqe.get(DATA_AT + more..).unwrap_or_default();
        while let Some(seg) = rest.first_chunk() {
            let seg = DataSeg::from_array(*seg);
            if seg.get(DataSeg::INLINE) {
                let len = (seg.get(DataSeg::BYTE_COUNT) & INLINE_MASK) as usize;
                frame.extend_from_slice(rest.get(InlineSeg::SIZE..InlineSeg::SIZE + len).ok_or(wrong)?);
                rest = rest.get(InlineSeg::room(len)..).unwrap_or_default();
            } else {
                let (from, len) = (frame.len(), crate::qp::recv::byte_count(&seg) as usize);
                if len > most.saturating_sub(from) {
                    return Err(CqeSyndrome::LocalLengthErr);
                }
                frame.resize(from + len, 0);
                reach.read(self.pd, &seg, &mut frame[from..])?;
                rest = &rest[DataSeg::SIZE..];
            }
        }
        Ok(frame)
    }
}

impl Ethernet {
    /// Changes the state; a queue that is reset begins anew.
    pub(super) fn modify_sq(&mut self, command: &ModifySqIn, guest: &Guest) -> Result<(), CmdStatus> {
        let sq = self.sqs.named(command.get(ModifySqIn::SQN))?;
        let (from, to) = (command.get(ModifySqIn::SQ_STATE), command.get(ModifySqIn::CTX).get(Sqc::STATE));
        if from != sq.state || !may_change(from, to) {
            return Err(CmdStatus::BadResState);
        }
        if from != to {
            sq.state = to;
            // What is announced is flushed.
            sq.rung = to == ERROR;
        }
        if to == RESET {
            sq.taken = 0;
            sq.stale = sq.ring.counter(guest, RECORD);
        }
        Ok(())
    }

    /// A doorbell names this queue, if it is one of Ethernet: what its record says is of now.
    pub(crate) fn activate(&mut self, sqn: u32) {
        if let Some(sq) = self.sqs.get_mut(sqn) {
            sq.stale = None;
        }
    }

    pub(super) fn query_sq(&mut self, sqn: u32, out: &mut Output) -> Result<(), CmdStatus> {
        let sq = self.sqs.named(sqn)?;
        let wq = sq.context.get(Sqc::WQ).with(Wq::HW_COUNTER, sq.taken.into());
        let context = sq.context.with(Sqc::STATE, sq.state).with(Sqc::WQ, wq);
        out.put(&QuerySqOut::new().with(QuerySqOut::SQ_CONTEXT, context))
    }

    pub(super) fn destroy_sq(&mut self, sqn: u32) -> Result<(), CmdStatus> {
        let sq = self.sqs.remove(sqn)?;
        sq.names().into_iter().for_each(|thing| self.uses.remove(thing));
        Ok(())
    }
}

/// Writes a completion of an Ethernet queue. Returns whether the client can see it, or could never have.
pub(super) fn complete(objects: &mut Objects, cqn: u32, entry: Cqe64, urgent: bool) -> bool {
    let Some(cq) = objects.cqs.get_mut(&cqn) else { return true };
    match cq.write(entry, urgent, objects.clock.now_ns()) {
        Written::Event => {
            let eqn = cq.eqn;
            objects.raised.push_back(Raised::Completion { eqn, cqn });
            true
        }
        Written::Shown => true,
        Written::Nowhere => false,
        Written::Overrun => {
            objects.fail_cq(cqn, hca_prm::CqErrorSyndrome::CqOverrun);
            objects.end_failed();
            false
        }
    }
}

impl Function {
    /// What an Ethernet queue names has to be there. Returns its protection domain, if it has one.
    pub(super) fn queue_names(&self, wq: &Wq, cqn: u32) -> Result<Option<PdHandle>, CmdStatus> {
        self.objects.usable_cq(cqn)?;
        Ok(self.resources.pd(wq.get(Wq::PD)))
    }

    pub(super) fn create_sq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let context = parse::<CreateSqIn>(input)?.get(CreateSqIn::CTX);
        let wq = context.get(Sqc::WQ);
        let pd = self.queue_names(&wq, context.get(Sqc::CQN))?;
        let sq = Sq::new(context, pd, &input[CreateSqIn::SIZE..])?;
        let there = !sq.sends() || self.ethernet.tises.get(context.get(Sqc::TIS_NUM_0)).is_some();
        if !there || !self.pages.is_given(wq.get(Wq::UAR_PAGE)) {
            return Err(CmdStatus::BadRes);
        }
        let names = sq.names();
        let number = self.ethernet.sqs.insert(sq)?;
        names.into_iter().for_each(|thing| self.ethernet.uses.add(thing));
        out.put(&CreateSqOut::new().with(CreateSqOut::SQN, number))
    }

    /// A doorbell of this page was rung: the next look takes what send queues of it hold.
    pub(crate) fn ethernet_rung(&mut self, uar: u32) {
        let of_page = |(_, sq): &(u32, &mut Sq)| sq.uar() == uar;
        for (_, sq) in self.ethernet.sqs.iter_mut().filter(of_page) {
            sq.rung = sq.state != RESET;
        }
    }

    /// Takes a bounded piece of what send queues hold that were rung. Returns whether there was any.
    pub(crate) fn take_frames(&mut self) -> bool {
        let mut rung: Vec<u32> =
            self.ethernet.sqs.iter_mut().filter(|(_, sq)| sq.rung).map(|(sqn, _)| sqn).collect();
        if rung.is_empty() {
            return false;
        }
        // One with more than a look takes is not always the first.
        let first = self.ethernet.looks % rung.len();
        rung.rotate_left(first);
        self.ethernet.looks = self.ethernet.looks.wrapping_add(1);
        let (mut left, mut bytes) = (BUDGET, BYTES);
        for sqn in rung {
            self.take_frames_of(sqn, &mut left, &mut bytes);
        }
        self.post_raised();
        // Those that wait for their rate are nothing to do.
        left < BUDGET || self.frame_rate.is_none()
    }

    /// How long until frames may leave that wait for the function's rate, if there are any.
    pub(crate) fn frames_leave_in(&self) -> Option<Duration> {
        let rate = self.frame_rate.as_ref()?;
        let waits = self.ethernet.sqs.values().any(|sq| sq.rung && sq.state == READY);
        waits.then(|| rate.opens_in(self.hca.now()))
    }

    fn take_frames_of(&mut self, sqn: u32, left: &mut usize, bytes: &mut usize) {
        let Self { ethernet, objects, guest, directory, options, frame_rate, hca, .. } = self;
        let now = hca.now();
        let Some(sq) = ethernet.sqs.get_mut(sqn) else { return };
        // The page is shared with queues of RDMA, whose doorbells say nothing of this one.
        let Some(end) = sq.announced(guest).filter(|end| *end != sq.taken) else {
            sq.rung = false;
            return;
        };
        let (addresses, mut switch) = (directory.lock(), directory.switch());
        let largest = switch.largest(options.number);
        while *left > 0 && *bytes > 0 {
            if sq.state == READY && frame_rate.as_mut().is_some_and(|rate| !rate.may_leave(now)) {
                break;
            }
            let Some(wqe) = sq.next(guest, end) else {
                sq.rung = false;
                break;
            };
            *left -= 1;
            let asked = match sq.state {
                READY => sq.understand(&wqe, &Reach::new(guest, objects), largest),
                _ if sq.context.get(Sqc::FLUSH_IN_ERROR_EN) => Err(CqeSyndrome::WrFlushErr),
                _ => continue,
            };
            if let Ok(Asked::Frames(frames)) = &asked {
                for frame in frames {
                    // Segments beyond are lost: one request is not to have more of the thread's time than others.
                    if *left == 0 {
                        break;
                    }
                    *bytes = bytes.saturating_sub(frame.len());
                    if !switch.may_send(options.number, frame) {
                        ethernet.seen.count_refused(options.number);
                        continue;
                    }
                    ethernet.seen.count_sent(&destination(frame), frame.len());
                    if let Some(rate) = frame_rate {
                        rate.left(now, frame.len());
                    }
                    let copies = switch.send(options.number, frame, &|address| addresses.is_here(address));
                    *left = left.saturating_sub(copies);
                }
            }
            let opcode = wqe.ctrl.get(CtrlSeg::OPCODE);
            let entry = match asked {
                Ok(_) if !wqe.is_signaled() => continue,
                Ok(_) => Cqe64::new()
                    .with(Cqe64::OPCODE, CqeOpcode::Req.code())
                    .with(Cqe64::WQE_COUNTER, wqe.place.into())
                    .with(Cqe64::S_WQE_OPCODE, opcode),
                Err(syndrome) => {
                    sq.state = ERROR;
                    error_entry(true, syndrome, wqe.place, opcode as u8)
                }
            };
            let entry =
                entry.with(Cqe64::QPN, sqn).with(Cqe64::SRQN_USER_INDEX, sq.context.get(Sqc::USER_INDEX));
            if !complete(objects, sq.context.get(Sqc::CQN), entry, asked_badly(&entry)) {
                (sq.state, sq.rung) = (ERROR, false);
                break;
            }
        }
    }
}

/// Whether a completion tells of an error.
fn asked_badly(entry: &Cqe64) -> bool {
    entry.get(Cqe64::OPCODE) != CqeOpcode::Req.code()
}
