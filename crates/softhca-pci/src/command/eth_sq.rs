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
/// Requests that are taken in one look, of all queues of a function together.
const BUDGET: usize = 2048;
/// The state of a queue that sends.
const READY: u32 = 1;

/// A send queue.
#[derive(Debug)]
pub(crate) struct Sq {
    context: Sqc,
    pages: Vec<u64>,
    taken: u16,
    /// Its doorbell was rung, and not all that was announced is taken.
    rung: bool,
}

/// The send queues of a function, by number.
pub(crate) type Sqs = BTreeMap<u32, Sq>;

impl Sq {
    pub(super) fn new(input: &[u8]) -> Result<Self, CmdStatus> {
        let context = parse::<CreateSqIn>(input)?.get(CreateSqIn::CTX);
        let wq = context.get(Sqc::WQ);
        let log_page = wq.get(Wq::LOG_WQ_PG_SZ) + 12;
        let log_size = wq.get(Wq::LOG_WQ_SZ);
        if log_size > MAX_LOG_SIZE || log_page > 30 || wq.get(Wq::LOG_WQ_STRIDE) != LOG_BLOCK {
            return Err(CmdStatus::BadParam);
        }
        let first = u64::from(wq.get(Wq::PAGE_OFFSET)) << (log_page - 6);
        let needed = (first + (1 << (log_size + LOG_BLOCK))).div_ceil(1 << log_page) as usize;
        // No more than are needed: a client is not to have the rest kept.
        let pages: Vec<u64> = pas::iter(&input[CreateSqIn::SIZE..]).take(needed).collect();
        if pages.len() < needed {
            return Err(CmdStatus::BadInpLen);
        }
        Ok(Self { context, pages, taken: 0, rung: false })
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
    /// A doorbell of this page was rung: the next look takes what send queues of it hold.
    pub(crate) fn ethernet_rung(&mut self, uar: u32) {
        let of_page = |sq: &&mut Sq| sq.context.get(Sqc::WQ).get(Wq::UAR_PAGE) == uar;
        for sq in self.commands.eth.queues.values_mut().filter(of_page) {
            sq.rung = sq.context.get(Sqc::STATE) == READY;
        }
    }

    /// Takes a bounded piece of what send queues hold that were rung. Returns whether there was any.
    pub(crate) fn take_frames(&mut self) -> bool {
        let queues = &self.commands.eth.queues;
        let rung: Vec<u32> = queues.iter().filter(|(_, sq)| sq.rung).map(|(sqn, _)| *sqn).collect();
        let mut left = BUDGET;
        for sqn in &rung {
            self.take_frames_of(*sqn, &mut left);
        }
        !rung.is_empty()
    }

    fn take_frames_of(&mut self, sqn: u32, left: &mut usize) {
        let Some(sq) = self.commands.eth.queues.get_mut(&sqn) else { return };
        let cqn = sq.context.get(Sqc::CQN);
        let user = sq.context.get(Sqc::USER_INDEX);
        let Some(end) = sq.announced(&self.guest).filter(|_| sq.context.get(Sqc::STATE) == READY) else {
            sq.rung = false;
            return;
        };
        let mut event = None;
        while *left > 0 {
            let Some((place, wanted)) = sq.next(&self.guest, end) else {
                sq.rung = false;
                break;
            };
            *left -= 1;
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

#[cfg(test)]
mod tests {
    use hca_prm::command::ethernet::CreateSqOut;

    use super::*;
    use crate::command::bed::Driver;
    use crate::function::PortKind;
    use crate::guest::PAGE;
    use crate::path::bed::Server;

    fn create(log_size: u32, uar: u32, record: u64) -> CreateSqIn {
        let wq = Wq::new()
            .with(Wq::UAR_PAGE, uar)
            .with(Wq::DBR_ADDR, record)
            .with(Wq::LOG_WQ_STRIDE, LOG_BLOCK)
            .with(Wq::LOG_WQ_SZ, log_size);
        CreateSqIn::new().with(CreateSqIn::CTX, Sqc::new().with(Sqc::WQ, wq))
    }

    #[test]
    fn of_a_list_of_pages_no_more_are_kept_than_the_queue_needs() {
        for (log_size, kept) in [(0, 1), (6, 1), (7, 2), (MAX_LOG_SIZE, 512)] {
            let mut input = create(log_size, 0, 0).as_bytes().to_vec();
            input.resize(CreateSqIn::SIZE + 1000 * pas::ENTRY, 0);
            assert_eq!(Sq::new(&input).unwrap().pages.len(), kept);
            input.truncate(CreateSqIn::SIZE + (kept - 1) * pas::ENTRY);
            assert_eq!(Sq::new(&input).err(), Some(CmdStatus::BadInpLen));
        }
    }

    #[test]
    fn long_queues_are_taken_a_piece_in_each_look() {
        let mut d = Driver::new(&Server::new(), 0, PortKind::Roce);
        d.boot();
        d.uar();
        let (uar, record, ring) = (d.uar(), d.alloc(PAGE), d.alloc(64 << MAX_LOG_SIZE));
        let pages: Vec<u64> = (0..512).map(|i| ring + i * PAGE).collect();
        for _ in 0..3 {
            let sqc = create(MAX_LOG_SIZE, uar, record).get(CreateSqIn::CTX).with(Sqc::STATE, READY);
            let (out, _) = d.command_with(&create(MAX_LOG_SIZE, uar, record), &pages, 0).unwrap();
            let ready =
                ModifySqIn::new().with(ModifySqIn::SQN, out.get(CreateSqOut::SQN)).with(ModifySqIn::CTX, sqc);
            d.command(&ready).unwrap();
        }
        d.write(record + 4, &(1_u32 << MAX_LOG_SIZE).to_be_bytes());
        d.function.bar_write(u64::from(uar) * PAGE + 0x800, &[1; 8]);
        let mut looks = 0;
        let taken = |d: &Driver| {
            d.function.commands.eth.queues.values().map(|sq| usize::from(sq.taken)).sum::<usize>()
        };
        while taken(&d) < 3 << MAX_LOG_SIZE {
            let before = taken(&d);
            assert!(d.function.look(), "there is more");
            looks += 1;
            assert!((1..=BUDGET).contains(&(taken(&d) - before)), "in look {looks}");
        }
        d.function.look();
        assert!(!d.function.look(), "all were taken");
    }
}
