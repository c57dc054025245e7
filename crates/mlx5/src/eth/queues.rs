//! The Ethernet queues: a send queue whose entries hold whole frames, a receive queue in which each entry always names
//! the same buffer, and the completion queue of both.

use std::sync::atomic::Ordering;

use hca_core::WcStatus;
use hca_prm::{
    CI_MASK, CompletionMode, CqArm, CqDbr, CtrlSeg, DataSeg, EthSeg, QpDbr, WQ_COUNTER_MASK, WqeOpcode,
};
use hca_vfio::mmio::dma_wmb;

use crate::cqe::{CQE_CELLS, Cqe, Kind};
use crate::qp::send::Bell;
use crate::shared::{CELL, Cell, Ring, SharedCells};

/// Cells of a block of the send queue.
const BLOCK_CELLS: usize = 4;
/// Blocks that each frame takes in the send queue.
const FRAME_BLOCKS: u16 = 2;
/// Frames that are under way at most, as a power of two.
const LOG_SENDS: u32 = 4;
/// Blocks of the send queue, as a power of two.
pub(super) const LOG_SEND_BLOCKS: u32 = LOG_SENDS + FRAME_BLOCKS.ilog2();
/// Frames that may wait to be read, as a power of two.
pub(super) const LOG_RECVS: u32 = 6;
/// Entries of the completion queue, as a power of two: it has room for all that both queues may have.
pub(super) const LOG_CQ: u32 = LOG_RECVS + 1;
/// What stands before a frame in its entry, whose segment for Ethernet holds the first two bytes of the frame.
const HEAD: usize = CtrlSeg::SIZE + EthSeg::SIZE - 2;
/// Bytes of frames that fill two blocks, not less and not more: what ARP and neighbour discovery need.
pub(crate) const FRAME_BYTES: core::ops::RangeInclusive<usize> =
    BLOCK_CELLS * CELL - HEAD + 1..=FRAME_BLOCKS as usize * BLOCK_CELLS * CELL - HEAD;

/// Memory of the queues.
pub(super) struct Parts {
    pub(super) cq: SharedCells,
    pub(super) cq_record: SharedCells,
    pub(super) send: SharedCells,
    pub(super) recv: SharedCells,
    /// Records of the send queue and of the receive queue.
    pub(super) records: [SharedCells; 2],
    /// Buffers, all of the same length.
    pub(super) frames: SharedCells,
}

/// The queues of an adapter.
pub(super) struct Queues<B> {
    parts: Parts,
    cq: Ring,
    send: Ring,
    bell: B,
    numbers: Numbers,
    /// Completions taken, without end.
    taken: u32,
    /// Events of the completion queue.
    events: u32,
    /// Blocks of the send queue that were announced, and that have ended.
    sent: u16,
    ended: u16,
    /// Receive requests that were announced.
    posted: u16,
    /// Why they are of no use any more.
    broken: Option<WcStatus>,
}

/// Numbers of the queues.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) cqn: u32,
    pub(super) sqn: u32,
    /// The key of the buffers, which lie one after the other at this address.
    pub(super) lkey: u32,
    pub(super) frames: u64,
}

impl<B: Bell> Queues<B> {
    /// Queues that the adapter has made; all receive requests are posted.
    pub(super) fn new(parts: Parts, bell: B, numbers: Numbers) -> Self {
        let (cq, send) = (Ring::new(parts.cq.clone()), Ring::new(parts.send.clone()));
        let mut this = Self {
            parts,
            cq,
            send,
            bell,
            numbers,
            taken: 0,
            events: 0,
            sent: 0,
            ended: 0,
            posted: 0,
            broken: None,
        };
        for at in 0..1 << LOG_RECVS {
            let place = numbers.frames + (at * this.frame_cells() * CELL) as u64;
            let entry = DataSeg::pointer((this.frame_cells() * CELL) as u32, numbers.lkey, place);
            write(&this.parts.recv[at..=at], entry.as_bytes());
        }
        this.post(1 << LOG_RECVS);
        this
    }

    fn frame_cells(&self) -> usize {
        self.parts.frames.len() >> LOG_RECVS
    }
    fn post(&mut self, more: u16) {
        self.posted = self.posted.wrapping_add(more);
        dma_wmb();
        let record = self.parts.records[1].word32(QpDbr::RCV_COUNTER.offset());
        record.store(u32::from(self.posted).to_be(), Ordering::Release);
    }

    /// Why they are of no use any more, if they are not.
    pub(super) fn broken(&self) -> Option<WcStatus> {
        self.broken
    }
    /// The completion queue is in error.
    pub(super) fn fail(&mut self) {
        self.broken.get_or_insert(WcStatus::General);
    }

    /// Sends a frame. Returns whether it could: there is room for so many at a time, of certain lengths.
    pub(super) fn send(&mut self, frame: &[u8]) -> bool {
        let room = self.send.blocks() as u16 - self.sent.wrapping_sub(self.ended);
        if room < FRAME_BLOCKS || !FRAME_BYTES.contains(&frame.len()) || self.broken.is_some() {
            return false;
        }
        let cells = (HEAD + frame.len()).div_ceil(CELL);
        let ctrl = CtrlSeg::new()
            .with(CtrlSeg::WQE_INDEX, self.sent.into())
            .with(CtrlSeg::OPCODE, WqeOpcode::Send.code())
            .with(CtrlSeg::QP_OR_SQ, self.numbers.sqn)
            .with(CtrlSeg::DS, cells as u32)
            .with(CtrlSeg::CE, CompletionMode::Always.code());
        let start = u32::from(u16::from_be_bytes([frame[0], frame[1]]));
        let eth = EthSeg::new()
            .with(EthSeg::INLINE_HDR_SZ, frame.len() as u32)
            .with(EthSeg::INLINE_HDR_START, start);
        let entry = [ctrl.as_bytes(), eth.as_bytes(), &frame[2..]].concat();
        let (first, second) = entry.split_at(BLOCK_CELLS * CELL);
        write(self.send.block(self.sent.into()), first);
        write(self.send.block(u32::from(self.sent) + 1), second);
        let turn = (self.sent / FRAME_BLOCKS) & 1 != 0;
        self.sent = self.sent.wrapping_add(FRAME_BLOCKS);
        dma_wmb();
        let record = self.parts.records[0].word32(QpDbr::SND_COUNTER.offset());
        record.store(u32::from(self.sent).to_be(), Ordering::Release);
        let [doorbell, ..] = entry.as_chunks::<8>().0 else { unreachable!("it has a head") };
        self.bell.ring(turn, u64::from_be_bytes(*doorbell));
        true
    }

    /// Takes what has come, as many completions as there is room for, and gives their places back: those of the
    /// completion queue first, so that it has room for what the others may make.
    pub(super) fn poll(&mut self, mut frame: impl FnMut(Vec<u8>)) {
        let (mut frames, mut ended) = (0, self.ended);
        for _ in 0..1 << LOG_CQ {
            let Some(cqe) = Cqe::ready(&self.cq, self.taken, LOG_CQ) else { break };
            self.taken = self.taken.wrapping_add(1);
            match cqe.kind() {
                // All before it have ended as well. What is not under way does not end.
                Kind::Sent => {
                    let behind = cqe.place().wrapping_add(FRAME_BLOCKS);
                    if behind.wrapping_sub(ended) <= self.sent.wrapping_sub(ended) {
                        ended = behind;
                    }
                }
                Kind::Received => {
                    let cells = self.frame_cells();
                    let at = usize::from(cqe.place()) % (1 << LOG_RECVS) * cells;
                    frame(read(&self.parts.frames[at..at + cells], cqe.byte_count() as usize));
                    frames += 1;
                }
                Kind::SendFailed | Kind::RecvFailed => _ = self.broken.get_or_insert(cqe.status()),
                Kind::Other => {}
            }
        }
        let record = self.parts.cq_record.word32(CqDbr::UPDATE_CI.offset());
        record.store((self.taken & CI_MASK).to_be(), Ordering::Release);
        if frames > 0 {
            // The record before the requests.
            self.post(frames);
        }
        self.ended = ended;
    }

    /// An event of the completion queue came: it was armed.
    pub(super) fn heard(&mut self) {
        self.events = self.events.wrapping_add(1);
    }
    /// Has the next completion make an event.
    pub(super) fn arm(&self) {
        let word = (self.events & 3) << 28 | CqArm::Next.code() << 24 | self.taken & CI_MASK;
        self.parts.cq_record.word32(CqDbr::ARM_CI.offset()).store(word.to_be(), Ordering::Release);
        dma_wmb();
        self.bell.arm(u64::from(word) << 32 | u64::from(self.numbers.cqn));
    }
}

/// Writes bytes to cells; the last word is filled up with zeros.
fn write(cells: &[Cell], bytes: &[u8]) {
    for (word, bytes) in cells.as_flattened().iter().zip(bytes.chunks(8)) {
        let mut filled = [0; 8];
        filled[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(filled), Ordering::Relaxed);
    }
}
/// Reads as many bytes as there are, at most.
fn read(cells: &[Cell], len: usize) -> Vec<u8> {
    let words = cells.as_flattened().iter().take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Cells of each part: the completion queue, the send queue, the receive queue.
pub(super) const CELLS: [usize; 3] = [CQE_CELLS << LOG_CQ, BLOCK_CELLS << LOG_SEND_BLOCKS, 1 << LOG_RECVS];
const _: () = assert!(1 << LOG_CQ >= (1 << LOG_RECVS) + (1 << LOG_SENDS) && WQ_COUNTER_MASK == 0xffff);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use hca_prm::{Cqe64, CqeOpcode, ErrCqe};

    use super::*;
    use crate::cqe;

    /// What was rung, and what was armed.
    #[derive(Clone, Default)]
    struct Bells(Arc<[AtomicU64; 3]>);

    impl Bell for Bells {
        fn ring(&self, turn: bool, first: u64) {
            self.0[usize::from(turn)].store(first, Ordering::Relaxed);
        }
        fn has_flames(&self) -> bool {
            false
        }
        fn ring_whole(&self, _turn: bool, _entry: &[u8; 64]) {
            unreachable!("there are none")
        }
        fn arm(&self, what: u64) {
            self.0[2].store(what, Ordering::Relaxed);
        }
        fn nudge(&self) {}
    }

    const SQN: u32 = 0x12;
    const FRAME: usize = 256;

    struct Bed {
        queues: Queues<Bells>,
        bells: Bells,
        cq: SharedCells,
        written: u32,
    }

    fn bed() -> Bed {
        let [cq, send, recv] = CELLS.map(SharedCells::on_heap);
        cqe::clear(&cq);
        let record = || SharedCells::on_heap(4);
        let parts = Parts {
            cq: cq.clone(),
            cq_record: record(),
            send,
            recv,
            records: [record(), record()],
            frames: SharedCells::on_heap((FRAME / CELL) << LOG_RECVS),
        };
        let bells = Bells::default();
        let numbers = Numbers { cqn: 5, sqn: SQN, lkey: 0x77, frames: 0x10_0000 };
        Bed { queues: Queues::new(parts, bells.clone(), numbers), bells, cq, written: 0 }
    }

    impl Bed {
        fn complete(&mut self, entry: Cqe64) {
            cqe::tests::write(&self.cq, self.written, LOG_CQ, entry);
            self.written += 1;
        }
        fn received(&mut self, place: u16, frame: &[u8], len: u32) {
            let at = usize::from(place) % (1 << LOG_RECVS) * FRAME / CELL;
            write(&self.queues.parts.frames[at..at + FRAME / CELL], frame);
            let opcode = CqeOpcode::RespSend.code();
            let entry = Cqe64::new().with(Cqe64::OPCODE, opcode).with(Cqe64::BYTE_CNT, len);
            self.complete(entry.with(Cqe64::WQE_COUNTER, place.into()));
        }
        fn poll(&mut self) -> Vec<Vec<u8>> {
            let mut frames = Vec::new();
            self.queues.poll(|frame| frames.push(frame));
            frames
        }
        fn posted(&self) -> u32 {
            u32::from_be(self.queues.parts.records[1].word32(0).load(Ordering::Relaxed))
        }
    }

    #[test]
    fn a_frame_stands_whole_in_its_entry() {
        let mut b = bed();
        let frame: Vec<u8> = (1..=86).collect();
        assert!(b.queues.send(&frame));
        let entry = b.queues.parts.send.bytes(0, 2 * BLOCK_CELLS);
        // NOP or SEND, block 0, the queue, 8 units; completes always.
        assert_eq!(entry[..12], [0, 0, 0, 0x0a, 0, 0, SQN as u8, 8, 0, 0, 0, 8]);
        assert_eq!(entry[16..32], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 86, 1, 2]);
        assert_eq!(entry[30..30 + 86], frame);
        assert_eq!(b.bells.0[0].load(Ordering::Relaxed), 0x0a_0000_1208);
        let record = b.queues.parts.records[0].word32(4).load(Ordering::Relaxed);
        assert_eq!(u32::from_be(record), 2);
        assert!(b.queues.send(&frame));
        assert_eq!(b.bells.0[1].load(Ordering::Relaxed), 0x020a_0000_1208, "block 2");
    }

    #[test]
    fn frames_that_would_take_more_or_less_than_two_blocks_are_refused() {
        let mut b = bed();
        let (least, most) = (*FRAME_BYTES.start(), *FRAME_BYTES.end());
        assert_eq!((least, most), (35, 98));
        assert!(!b.queues.send(&vec![0; least - 1]) && !b.queues.send(&vec![0; most + 1]));
        assert!(b.queues.send(&vec![0; least]) && b.queues.send(&vec![0; most]));
    }

    #[test]
    fn as_many_frames_are_under_way_as_there_is_room_for_also_when_the_counter_comes_round() {
        let mut b = bed();
        for round in 0..0x1_0000_u32 / 32 + 2 {
            let first = (round * 32) as u16;
            for i in 0..1 << LOG_SENDS {
                assert!(b.queues.send(&[0; 42]), "{i} of round {round}");
            }
            assert!(!b.queues.send(&[0; 42]), "round {round}");
            let last = first.wrapping_add(30);
            b.complete(Cqe64::new().with(Cqe64::WQE_COUNTER, last.into()));
            assert!(b.poll().is_empty());
        }
    }

    #[test]
    fn frames_that_are_not_under_way_do_not_end() {
        let mut b = bed();
        assert!(b.queues.send(&[0; 42]) && b.queues.send(&[0; 42]));
        for place in [4, 0x8000, 0xffff, 0x40] {
            b.complete(Cqe64::new().with(Cqe64::WQE_COUNTER, place));
        }
        assert!(b.poll().is_empty());
        let room = (0..1 << LOG_SENDS).take_while(|_| b.queues.send(&[0; 42])).count();
        assert_eq!(room, (1 << LOG_SENDS) - 2);
    }

    #[test]
    fn what_came_is_read_and_its_buffer_posted_again() {
        let mut b = bed();
        assert_eq!(b.posted(), 64);
        let last = b.queues.parts.recv.bytes(63, 1);
        let place = 0x10_0000 + 63 * FRAME as u64;
        assert_eq!(last, DataSeg::pointer(FRAME as u32, 0x77, place).as_bytes());
        b.received(0, &[7; 60], 60);
        b.received(1, &[8; 61], 61);
        assert_eq!(b.poll(), [vec![7; 60], vec![8; 61]]);
        assert_eq!((b.posted(), b.poll().len()), (66, 0));
        let told = b.queues.parts.cq_record.word32(0).load(Ordering::Relaxed);
        assert_eq!(u32::from_be(told), 2);
        // Whatever the adapter says, no more is read than there is.
        b.received(0xffff, &[9; 60], u32::MAX);
        assert_eq!(b.poll()[0].len(), FRAME);
    }

    #[test]
    fn no_request_is_posted_before_its_place_in_the_completion_queue_is_free() {
        let mut b = bed();
        for i in 0..1_u16 << LOG_RECVS {
            b.received(i, &[7; 60], 60);
        }
        let word = |cells: &SharedCells| u32::from_be(cells.word32(0).load(Ordering::Relaxed));
        let (posted, taken) = (b.queues.parts.records[1].clone(), b.queues.parts.cq_record.clone());
        b.queues.poll(|_| assert!(word(&posted) - (1 << LOG_RECVS) <= word(&taken)));
        assert_eq!((word(&posted), word(&taken)), (128, 64));
    }

    #[test]
    fn an_error_breaks_them_and_says_why() {
        let mut b = bed();
        let entry = ErrCqe::new()
            .with(ErrCqe::SYNDROME, hca_prm::CqeSyndrome::LocalProtErr.code())
            .with(ErrCqe::OPCODE, CqeOpcode::ReqErr.code());
        b.complete(Cqe64::from_bytes(entry.as_bytes()).unwrap());
        b.poll();
        assert_eq!(b.queues.broken(), Some(WcStatus::LocalProtection));
        assert!(!b.queues.send(&[0; 42]));
    }

    #[test]
    fn arming_says_how_far_it_was_read_and_how_many_events_there_were() {
        let mut b = bed();
        b.received(0, &[7; 60], 60);
        b.poll();
        b.queues.arm();
        assert_eq!(b.bells.0[2].load(Ordering::Relaxed), 0x0000_0001_0000_0005);
        b.queues.heard();
        b.queues.arm();
        assert_eq!(b.bells.0[2].load(Ordering::Relaxed), 0x1000_0001_0000_0005);
    }
}
