//! Ethernet send queues. What is sent is dropped, since no frame moves here; but each request that wants a completion
//! has one, so that a driver's interface goes on: it asks for its receive queues to be filled, and for its interrupts,
//! by requests that do nothing.

use std::collections::BTreeMap;

use hca_prm::command::ethernet::{CreateSqIn, ModifySqIn, QuerySqIn, QuerySqOut};
use hca_prm::{CmdStatus, CompEvent, Cqe64, CqeOpcode, CtrlSeg, Eqe, EventType, Sqc, Wq, pas};

use super::{Output, parse};
use crate::function::Function;
use crate::guest::Guest;
use crate::objects::cq::Written;

/// Bytes of a block, of which requests are made, as a power of two.
const LOG_BLOCK: u32 = 6;
/// Blocks of a queue, as a power of two.
const MAX_LOG_SIZE: u32 = 15;
/// Units of 16 bytes in a block.
const UNITS: u32 = 4;
/// A request that wants a completion.
const ALWAYS: u32 = 2;
/// The state of a queue that sends.
const READY: u32 = 1;

/// A send queue.
#[derive(Debug)]
pub(crate) struct Sq {
    context: Sqc,
    pages: Vec<u64>,
    taken: u16,
}

/// The send queues of a function, by number.
pub(crate) type Sqs = BTreeMap<u32, Sq>;

impl Sq {
    pub(super) fn new(input: &[u8]) -> Result<Self, CmdStatus> {
        let context = parse::<CreateSqIn>(input)?.get(CreateSqIn::CTX);
        let wq = context.get(Sqc::WQ);
        let pages: Vec<u64> = pas::iter(&input[CreateSqIn::SIZE..]).collect();
        let log_page = wq.get(Wq::LOG_WQ_PG_SZ) + 12;
        let log_size = wq.get(Wq::LOG_WQ_SZ);
        if log_size > MAX_LOG_SIZE || log_page > 30 || wq.get(Wq::LOG_WQ_STRIDE) != LOG_BLOCK {
            return Err(CmdStatus::BadParam);
        }
        if (pages.len() as u64) << log_page < 1 << (log_size + LOG_BLOCK) {
            return Err(CmdStatus::BadInpLen);
        }
        Ok(Self { context, pages, taken: 0 })
    }

    /// Changes the state; a queue that is reset begins anew.
    pub(super) fn modify(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        let state = parse::<ModifySqIn>(input)?.get(ModifySqIn::CTX).get(Sqc::STATE);
        if state == 0 {
            self.taken = 0;
        }
        self.context.set(Sqc::STATE, state);
        Ok(())
    }

    /// The next request of those up to `end`: its place, and whether it wants a completion.
    fn next(&mut self, guest: &Guest, end: u16) -> Option<(u16, bool)> {
        if self.taken == end {
            return None;
        }
        let wq = self.context.get(Sqc::WQ);
        let log_page = wq.get(Wq::LOG_WQ_PG_SZ) + 12;
        let slot = u64::from(self.taken) & ((1 << wq.get(Wq::LOG_WQ_SZ)) - 1);
        let at = (u64::from(wq.get(Wq::PAGE_OFFSET)) << (log_page - 6)) + (slot << LOG_BLOCK);
        let page = self.pages.get((at >> log_page) as usize)?;
        let mut ctrl = CtrlSeg::new();
        guest.read(page.saturating_add(at & ((1 << log_page) - 1)), ctrl.as_bytes_mut()).ok()?;
        let blocks = ctrl.get(CtrlSeg::DS).div_ceil(UNITS).max(1);
        let place = self.taken;
        self.taken =
            if blocks > u32::from(end.wrapping_sub(place)) { end } else { place.wrapping_add(blocks as u16) };
        Some((place, ctrl.get(CtrlSeg::CE) == ALWAYS))
    }

    /// How far the client has written.
    fn announced(&self, guest: &Guest) -> Option<u16> {
        let mut record = [0; 4];
        let at = self.context.get(Sqc::WQ).get(Wq::DBR_ADDR).checked_add(4)?;
        guest.read(at, &mut record).ok()?;
        let [_, _, high, low] = record;
        let end = u16::from_be_bytes([high, low]);
        // More than the queue holds is no count.
        let size = 1_u32 << self.context.get(Sqc::WQ).get(Wq::LOG_WQ_SZ);
        (u32::from(end.wrapping_sub(self.taken)) <= size).then_some(end)
    }
}

impl Function {
    /// A doorbell of this page was rung: takes what send queues of it hold.
    pub(crate) fn ethernet_rung(&mut self, uar: u32) {
        let queues = &self.commands.eth.queues;
        let of_page = |sq: &Sq| sq.context.get(Sqc::WQ).get(Wq::UAR_PAGE) == uar;
        let rung: Vec<u32> = queues.iter().filter(|(_, sq)| of_page(sq)).map(|(sqn, _)| *sqn).collect();
        for sqn in rung {
            self.take_frames(sqn);
        }
    }

    fn take_frames(&mut self, sqn: u32) {
        let Some(sq) = self.commands.eth.queues.get_mut(&sqn) else { return };
        if sq.context.get(Sqc::STATE) != READY {
            return;
        }
        let cqn = sq.context.get(Sqc::CQN);
        let user = sq.context.get(Sqc::USER_INDEX);
        let Some(end) = sq.announced(&self.guest) else { return };
        let mut event = None;
        while let Some((place, wanted)) = sq.next(&self.guest, end) {
            let Some(cq) = self.objects.cqs.get_mut(&cqn).filter(|_| wanted) else { continue };
            let entry = Cqe64::new()
                .with(Cqe64::OPCODE, CqeOpcode::Req.code())
                .with(Cqe64::WQE_COUNTER, place.into())
                .with(Cqe64::QPN, sqn)
                .with(Cqe64::SRQN_USER_INDEX, user);
            match cq.write(entry, false) {
                Written::Event => event = Some(cq.eqn),
                Written::Shown | Written::Nowhere => {}
                Written::Overrun => {
                    self.objects.fail_cq(cqn, hca_prm::CqErrorSyndrome::CqOverrun);
                    break;
                }
            }
        }
        if let Some(eqn) = event {
            let data = CompEvent::new().with(CompEvent::CQ_NUMBER, cqn);
            self.post_event(eqn, Eqe::of(EventType::Comp).with(Eqe::EVENT_DATA, *data.as_bytes()));
        }
        self.post_raised();
    }

    pub(super) fn query_sq(&self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let sqn = parse::<QuerySqIn>(input)?.get(QuerySqIn::SQN);
        let sq = self.commands.eth.queues.get(&sqn).ok_or(CmdStatus::BadRes)?;
        out.put(&QuerySqOut::new().with(QuerySqOut::SQ_CONTEXT, sq.context))
    }
}
