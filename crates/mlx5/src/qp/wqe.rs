//! Entries of send queues, and writing them word by word into the ring.
//!
//! [`hca_prm::wqe`](hca_prm) describes the entries. This module writes their segments as pairs of words, because it
//! does so for each request; the tests read them back by the layouts. An entry that reaches the end of the ring
//! continues at the ring's beginning, at any of its segments.

use hca_core::{Mixed, MixedEntry, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use hca_prm::{DataSeg, WqeOpcode};

use crate::shared::{Block, CELL, Cell, Ring, set_rows};
use crate::sync::Ordering;

/// Cells of a block, in which send queues are counted.
pub(crate) const BLOCK_CELLS: usize = hca_prm::SEND_WQE_BB / CELL;
/// Cells of the longest entry that this driver makes: five blocks.
pub(crate) const MAX_ENTRY_CELLS: usize = 5 * BLOCK_CELLS;
/// Cells before the data, at most: control, and the address of a datagram; or control, remote address, and operands.
const MAX_HEAD_CELLS: usize = 4;
/// Entries of a list, at most.
pub(crate) const MAX_SGE: u32 = (MAX_ENTRY_CELLS - MAX_HEAD_CELLS) as u32;
/// Inline bytes, at most.
pub(crate) const MAX_INLINE: u32 = ((MAX_ENTRY_CELLS - MAX_HEAD_CELLS) * CELL - INLINE_HEAD) as u32;

/// Bytes before inline data.
const INLINE_HEAD: usize = 4;
/// Marks inline data.
const INLINE: u32 = 1 << 31;
/// Completes always, not only in error.
const COMPLETE: u32 = 2 << 2;
/// The peer's completion is solicited.
const SOLICITED: u32 = 1 << 1;
/// Waits for READs and atomics before it.
const FENCE: u32 = 4 << 5;

/// Blocks of an entry with a list of `max_sge`, of which some may be inline, of `max_inline` bytes in all. Where the
/// longest entry has no room for that, it has for the longer of both.
pub(crate) fn blocks_for(max_sge: u32, max_inline: u32) -> u32 {
    let (memory, inline) = (max_sge as usize, inline_cells(max_inline as usize));
    // A list of both has two entries at least, of which each inline one may begin a cell.
    let both = if inline > 0 && memory > 1 { memory - 1 + inline } else { 0 };
    (MAX_HEAD_CELLS + inline.max(memory).max(both)).min(MAX_ENTRY_CELLS).div_ceil(BLOCK_CELLS) as u32
}
/// Cells of such an entry that its data may have.
pub(crate) fn data_cells(max_sge: u32, max_inline: u32) -> usize {
    blocks_for(max_sge, max_inline) as usize * BLOCK_CELLS - MAX_HEAD_CELLS
}
/// Cells of a list of both kinds.
pub(crate) fn mixed_cells(list: &Mixed<'_>) -> usize {
    let cells = list.iter().map(|entry| match entry {
        MixedEntry::Memory(sge) => usize::from(sge.len > 0),
        MixedEntry::Inline(bytes) => inline_cells(bytes.len()),
    });
    cells.sum()
}
/// Cells of so many bytes of inline data.
fn inline_cells(len: usize) -> usize {
    if len == 0 { 0 } else { (INLINE_HEAD + len).div_ceil(CELL) }
}

/// Writes 16 bytes, as rows.
#[inline(always)]
fn put(cell: &Cell, first: u64, second: u64) {
    set_rows(&cell[0], first);
    set_rows(&cell[1], second);
}

/// Writes segments into cells, around their end.
struct Writer<'a> {
    /// A power of two.
    ring: &'a [Cell],
    at: usize,
}

impl Writer<'_> {
    /// The next 16 bytes, as rows.
    #[inline(always)]
    fn put(&mut self, first: u64, second: u64) {
        put(&self.ring[self.at & (self.ring.len() - 1)], first, second);
        self.at += 1;
    }
    /// The next 16 bytes, as they are.
    #[inline(always)]
    fn put_bytes(&mut self, bytes: [u8; CELL]) {
        let both = u128::from_be_bytes(bytes);
        self.put((both >> 64) as u64, both as u64);
    }

    /// A pointer. One to nothing is left out, since a count of 0 stands for 2^31.
    #[inline(always)]
    fn pointer(&mut self, sge: &Sge) {
        if sge.len != 0 {
            let (first, second) = pointer(sge);
            self.put(first, second);
        }
    }

    /// Data in the entry itself.
    fn inline(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let head = u64::from(INLINE | bytes.len() as u32) << 32;
        let (first, rest) = bytes.split_at(bytes.len().min(CELL - INLINE_HEAD));
        let mut cell = [0; CELL];
        cell[..8].copy_from_slice(&head.to_be_bytes());
        cell[INLINE_HEAD..INLINE_HEAD + first.len()].copy_from_slice(first);
        self.put_bytes(cell);
        let (whole, last) = rest.as_chunks();
        for cell in whole {
            self.put_bytes(*cell);
        }
        if !last.is_empty() {
            let mut cell = [0; CELL];
            cell[..last.len()].copy_from_slice(last);
            self.put_bytes(cell);
        }
    }
}

/// A pointer's rows; its length is not 0.
#[inline(always)]
fn pointer(sge: &Sge) -> (u64, u64) {
    // 2^31 is written as 0; the caller sees to it that nothing is longer.
    let count = sge.len & !INLINE;
    (u64::from(count) << 32 | u64::from(sge.lkey.raw()), sge.addr)
}

/// The address of a datagram's peer as it stands in entries, but for Q_Key and queue pair number: six words of two
/// rows.
pub(crate) type UdAddress = [u64; 6];

/// Marks an address that has all its 48 bytes.
const EXTENDED: u64 = 1 << 63;

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub(crate) struct UdTo {
    pub(crate) address: UdAddress,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// The written entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Blocks that it takes.
    pub(crate) blocks: u16,
    pub(crate) opcode: WqeOpcode,
    /// The first 8 bytes, as rows, for the doorbell page.
    pub(crate) bell: u64,
}

/// The constant fields in each control segment of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Control(u64);

impl Control {
    pub(crate) fn of(qpn: u32) -> Self {
        Self(u64::from(qpn) << 8)
    }
}

/// Data that take one segment, as they stand in memory.
pub(crate) struct Segment([u64; 2]);

impl Segment {
    /// A pointer; its length is not 0.
    #[inline(always)]
    pub(crate) fn pointer(sge: &Sge) -> Self {
        let (first, second) = pointer(sge);
        Self([first.to_be(), second.to_be()])
    }
    /// 8 bytes of inline data.
    #[inline(always)]
    pub(crate) fn inline(bytes: [u8; 8]) -> Self {
        // From the first byte in memory on, which is the lowest here.
        let (head, data) = ((INLINE | 8).swap_bytes(), u64::from_le_bytes(bytes));
        Self([u64::from(head) | data << 32, data >> 32].map(u64::to_le))
    }
}

/// Writes a request as the entry that begins at block `at` of a ring.
#[inline(always)]
pub(crate) fn write(ring: &Ring, at: u16, control: &Control, wr: &SendWr<'_>) -> Written {
    let block = ring.block(at.into());
    let head = write_head(block, &wr.op).expect("it was checked");
    let (cells, blocks) = write_payload(ring, at, head.cells, wr.payload);
    Written { blocks, opcode: head.opcode, bell: write_control(block, at, control, &head, wr.flags, cells) }
}

/// Writes a request whose data are one segment as the entry that `block` is, number `at`. `None`: the operation has no
/// data, and nothing was written.
#[inline(always)]
pub(crate) fn write_short(
    block: &Block,
    at: u16,
    control: &Control,
    wr: &SendWr<'_>,
    data: Segment,
) -> Option<Written> {
    let head = write_head(block, &wr.op)?;
    let cell = &block[head.cells];
    cell[0].store(data.0[0], Ordering::Relaxed);
    cell[1].store(data.0[1], Ordering::Relaxed);
    let bell = write_control(block, at, control, &head, wr.flags, head.cells + 1);
    Some(Written { blocks: 1, opcode: head.opcode, bell })
}

/// What the control segment is told of an operation, and how many cells stand before its data.
struct Head {
    opcode: WqeOpcode,
    imm: u32,
    cells: usize,
}

/// Writes what comes before the data, but for the control segment: all of it lies in the entry's first block. `None`: the
/// operation has no data, and this driver has no entry for it.
#[inline(always)]
fn write_head(block: &Block, op: &SendOp) -> Option<Head> {
    let remote = |r: &RemoteAddr| put(&block[1], r.addr, u64::from(r.rkey.raw()) << 32);
    let (opcode, imm, cells) = match op {
        SendOp::Write(r) => {
            remote(r);
            (WqeOpcode::RdmaWrite, 0, 2)
        }
        SendOp::Send => (WqeOpcode::Send, 0, 1),
        SendOp::SendImm(imm) => (WqeOpcode::SendImm, *imm, 1),
        SendOp::SendInv(rkey) => (WqeOpcode::SendInval, rkey.raw(), 1),
        SendOp::WriteImm(r, imm) => {
            remote(r);
            (WqeOpcode::RdmaWriteImm, *imm, 2)
        }
        SendOp::Read(r) => {
            remote(r);
            (WqeOpcode::RdmaRead, 0, 2)
        }
        SendOp::CompareSwap { remote: r, compare, swap } => {
            remote(r);
            put(&block[2], *swap, *compare);
            (WqeOpcode::AtomicCs, 0, 3)
        }
        SendOp::FetchAdd { remote: r, add } => {
            remote(r);
            put(&block[2], *add, 0);
            (WqeOpcode::AtomicFa, 0, 3)
        }
        SendOp::AtomicWrite { .. } | SendOp::Flush { .. } | SendOp::BindMw { .. } | SendOp::LocalInv(_) => {
            return None;
        }
    };
    Some(Head { opcode, imm, cells })
}

/// Writes a datagram, likewise.
pub(crate) fn write_datagram(ring: &Ring, at: u16, control: &Control, wr: &SendWr<'_>, to: &UdTo) -> Written {
    let block = ring.block(at.into());
    let a = &to.address;
    put(&block[1], u64::from(to.qkey) << 32 | a[0], EXTENDED | u64::from(to.qpn) << 32 | a[1]);
    put(&block[2], a[2], a[3]);
    put(&block[3], a[4], a[5]);
    let (opcode, imm) = match wr.op {
        SendOp::SendImm(imm) => (WqeOpcode::SendImm, imm),
        _ => (WqeOpcode::Send, 0),
    };
    let head = Head { opcode, imm, cells: block.len() };
    let (cells, blocks) = write_payload(ring, at, head.cells, wr.payload);
    Written { blocks, opcode, bell: write_control(block, at, control, &head, wr.flags, cells) }
}

/// Writes data behind so many cells of the entry; returns how many it has then, and how many blocks.
#[inline(never)]
fn write_payload(ring: &Ring, at: u16, cells: usize, payload: Payload<'_>) -> (usize, u16) {
    let start = usize::from(at) * BLOCK_CELLS;
    let mut w = Writer { ring: ring.cells(), at: start + cells };
    match payload {
        Payload::Sges(list) => list.iter().for_each(|sge| w.pointer(sge)),
        Payload::Inline(bytes) => w.inline(bytes),
        Payload::Mixed(list) => list.iter().for_each(|entry| match entry {
            MixedEntry::Memory(sge) => w.pointer(&sge),
            MixedEntry::Inline(bytes) => w.inline(bytes),
        }),
    }
    let cells = w.at - start;
    (cells, cells.div_ceil(BLOCK_CELLS) as u16)
}

/// Writes the control segment of an entry of so many cells; returns its first 8 bytes, as rows.
#[inline(always)]
fn write_control(
    block: &Block,
    at: u16,
    control: &Control,
    head: &Head,
    flags: SendFlags,
    cells: usize,
) -> u64 {
    let bell = u64::from(at) << 40 | u64::from(head.opcode.code()) << 32 | control.0 | cells as u64;
    put(&block[0], bell, MODES[usize::from(flags.bits() & 7)] | u64::from(head.imm));
    bell
}

/// Fence, completion and solicited event, by the flags' bits, as the upper row.
const MODES: [u64; 8] = {
    let mut modes = [0; 8];
    let mut i = 0;
    while i < 8 {
        let flags = SendFlags::from_bits_truncate(i as u8);
        let signaled = if flags.contains(SendFlags::SIGNALED) { COMPLETE } else { 0 };
        let fence = if flags.contains(SendFlags::FENCE) { FENCE } else { 0 };
        let solicited = if flags.contains(SendFlags::SOLICITED) { SOLICITED } else { 0 };
        modes[i] = ((signaled | fence | solicited) as u64) << 32;
        i += 1;
    }
    modes
};

/// Writes a list into the receive entry that `cells` are. What is left of it is marked as not there. A place that is
/// longer than an entry can say is longer than any message, too.
#[inline(always)]
pub(crate) fn write_list(cells: &[Cell], sges: &[Sge]) {
    let mut cells = cells.iter();
    for (sge, cell) in sges.iter().filter(|s| s.len != 0).zip(cells.by_ref()) {
        let (first, second) = pointer(&Sge { len: sge.len.min(INLINE), ..*sge });
        put(cell, first, second);
    }
    if let Some(cell) = cells.next() {
        put(cell, u64::from(DataSeg::INVALID_LKEY), 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::Ordering;

    use hca_core::{Lkey, Rkey};
    use hca_prm::{AtomicSeg, CompletionMode, CtrlSeg, FenceMode, InlineSeg, RaddrSeg, UdAdrsVector};
    use proptest::prelude::*;

    use super::*;
    use crate::shared::SharedCells;

    fn sge(addr: u64, len: u32, lkey: u32) -> Sge {
        Sge { addr, len, lkey: Lkey::new(lkey) }
    }
    fn wr<'a>(op: SendOp, flags: SendFlags, payload: Payload<'a>) -> SendWr<'a> {
        SendWr { wr_id: 0, op, flags, payload, dest: None }
    }
    fn ring(cells: usize) -> Ring {
        Ring::new(SharedCells::on_heap(cells))
    }
    /// The entry at a block, read around the ring's end.
    fn read(ring: &Ring, at: u16) -> Vec<u8> {
        let start = usize::from(at) * BLOCK_CELLS;
        let cell = |i: usize| {
            let words = &ring.block(((start + i) / BLOCK_CELLS) as u32)[i % BLOCK_CELLS];
            words.each_ref().map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).concat()
        };
        let cells = CtrlSeg::from_bytes(&cell(0)).unwrap().get(CtrlSeg::DS) as usize;
        (0..cells).flat_map(cell).collect()
    }

    #[test]
    fn a_send_lies_as_a_stock_driver_laid_it() {
        let ring = ring(16);
        let list = [sge(0x55dc_0f76_c000, 0x40, 0x4105)];
        let written =
            write(&ring, 0, &Control::of(0x43), &wr(SendOp::Send, SendFlags::SIGNALED, Payload::Sges(&list)));
        let seen = [0x0000_000a, 0x0000_4302, 0x0000_0008, 0, 0x40, 0x4105, 0x55dc, 0x0f76_c000_u32];
        assert_eq!(read(&ring, 0), seen.map(u32::to_be_bytes).as_flattened());
        assert_eq!(written, Written { blocks: 1, opcode: WqeOpcode::Send, bell: 0x0a_0000_4302 });
    }

    #[test]
    fn an_entry_that_reaches_the_rings_end_goes_on_at_its_begin() {
        let ring = ring(8);
        let data: Vec<u8> = (0..70).collect();
        let remote = RemoteAddr { addr: 0x1122_3344_5566_7788, rkey: Rkey::new(0xa1b2_c3d4) };
        let op = SendOp::WriteImm(remote, 0x0102_0304);
        let w = write(
            &ring,
            0xfff1,
            &Control::of(0x12_3456),
            &wr(op, SendFlags::empty(), Payload::Inline(&data)),
        );
        assert_eq!(w.blocks, 2);
        let entry = read(&ring, 0xfff1);
        let ctrl = CtrlSeg::from_bytes(&entry).unwrap();
        assert_eq!((ctrl.get(CtrlSeg::WQE_INDEX), ctrl.get(CtrlSeg::QP_OR_SQ)), (0xfff1, 0x12_3456));
        assert_eq!(
            (ctrl.get(CtrlSeg::IMM), ctrl.get(CtrlSeg::DS), ctrl.get(CtrlSeg::CE)),
            (0x0102_0304, 7, 0)
        );
        assert_eq!(entry[..8], w.bell.to_be_bytes());
        let raddr = RaddrSeg::from_bytes(&entry[16..]).unwrap();
        assert_eq!((raddr.get(RaddrSeg::RADDR), raddr.get(RaddrSeg::RKEY)), (remote.addr, 0xa1b2_c3d4));
        assert_eq!(entry[32..36], InlineSeg::of(70).as_bytes()[..]);
        assert_eq!(entry[36..106], data[..]);
    }

    #[test]
    fn a_datagram_carries_its_address() {
        let ring = ring(16);
        let address = [0, 0x1234, 0x0000_0000_0203_0405, 0x0607_0040_4000_0000, 0xfe80 << 48, 1];
        let to = UdTo { address, qpn: 0x41, qkey: 0x8001_0000 };
        let list = [sge(4096, 100, 7)];
        let request = wr(SendOp::Send, SendFlags::SOLICITED, Payload::Sges(&list));
        let w = write_datagram(&ring, 1, &Control::of(0x43), &request, &to);
        assert_eq!(w.blocks, 2, "control, three cells of address, a pointer");
        let entry = read(&ring, 1);
        assert!(CtrlSeg::from_bytes(&entry).unwrap().get(CtrlSeg::SE));
        let av = UdAdrsVector::from_bytes(&entry[16..]).unwrap();
        assert_eq!(av.get(UdAdrsVector::Q_KEY), 0x8001_0000);
        assert!(av.get(UdAdrsVector::EXT) && av.get(UdAdrsVector::GRH));
        assert_eq!(av.get(UdAdrsVector::DESTINATION_QP_DCT), 0x41);
        assert_eq!(av.get(UdAdrsVector::RLID_UDP_SPORT), 0x1234);
        assert_eq!(av.rmac(), [2, 3, 4, 5, 6, 7]);
        assert_eq!(av.get(UdAdrsVector::HOP_LIMIT), 0x40);
        assert_eq!(av.get(UdAdrsVector::RGID_RIP)[..2], [0xfe, 0x80]);
    }

    #[test]
    fn atomics_have_their_operands_before_the_pointer() {
        let ring = ring(16);
        let remote = RemoteAddr { addr: 8, rkey: Rkey::new(9) };
        let list = [sge(64, 8, 1)];
        let op = SendOp::CompareSwap { remote, compare: 5, swap: 6 };
        let w = write(&ring, 0, &Control::of(1), &wr(op, SendFlags::FENCE, Payload::Sges(&list)));
        assert_eq!(w.blocks, 1);
        let entry = read(&ring, 0);
        let ctrl = CtrlSeg::from_bytes(&entry).unwrap();
        assert_eq!(FenceMode::from_code(ctrl.get(CtrlSeg::FM)), Some(FenceMode::SmallAndFence));
        assert_eq!(CompletionMode::from_code(ctrl.get(CtrlSeg::CE)), Some(CompletionMode::OnErrorOnly));
        let operands = AtomicSeg::from_bytes(&entry[32..]).unwrap();
        assert_eq!((operands.get(AtomicSeg::SWAP_ADD), operands.get(AtomicSeg::COMPARE)), (6, 5));
        assert_eq!(DataSeg::from_bytes(&entry[48..]).unwrap(), DataSeg::pointer(8, 1, 64));
    }

    #[test]
    fn places_for_nothing_are_left_out_and_2_gib_are_written_as_0() {
        let ring = ring(16);
        let list = [sge(1, 0, 2), sge(3, 1 << 31, 4), sge(5, 0, 6)];
        let w = write(&ring, 0, &Control::of(1), &wr(SendOp::Send, SendFlags::empty(), Payload::Sges(&list)));
        assert_eq!((w.blocks, w.bell & 0x3f), (1, 2));
        assert_eq!(DataSeg::from_bytes(&read(&ring, 0)[16..]).unwrap(), DataSeg::pointer(0, 4, 3));
        let entry = SharedCells::on_heap(4);
        write_list(&entry, &list);
        let places = entry.bytes(0, 4);
        assert_eq!(DataSeg::from_bytes(&places).unwrap(), DataSeg::pointer(0, 4, 3));
        assert!(DataSeg::from_bytes(&places[16..]).unwrap().is_terminator());
    }

    #[test]
    fn places_longer_than_any_message_take_all_of_it() {
        let entry = SharedCells::on_heap(4);
        write_list(&entry, &[sge(3, (1 << 31) + 1, 4), sge(5, u32::MAX, 6), sge(7, 8, 9)]);
        let place = |at| DataSeg::from_bytes(&entry.bytes(at, 1)).unwrap();
        assert_eq!([place(0), place(1)], [DataSeg::pointer(0, 4, 3), DataSeg::pointer(0, 6, 5)]);
        assert_eq!(place(2), DataSeg::pointer(8, 9, 7));
    }

    #[test]
    fn a_full_list_has_no_end_mark() {
        let entry = SharedCells::on_heap(4);
        write_list(&entry, &[sge(1, 1, 1); 4]);
        assert_eq!(DataSeg::from_bytes(&entry.bytes(3, 1)).unwrap(), DataSeg::pointer(1, 1, 1));
    }

    #[test]
    fn the_longest_requests_fit_what_is_reckoned_for_them() {
        assert_eq!((MAX_SGE, MAX_INLINE, blocks_for(MAX_SGE, MAX_INLINE)), (16, 252, 5));
        assert_eq!((blocks_for(0, 0), blocks_for(1, 0), blocks_for(4, 64), blocks_for(0, 12)), (1, 2, 3, 2));
    }

    proptest! {
        #[test]
        fn inline_data_of_any_length_are_there_and_filled_up_with_zeros(
            data in prop::collection::vec(any::<u8>(), 1..=MAX_INLINE as usize), at in any::<u16>(),
        ) {
            let ring = ring(32);
            let w = write(&ring, at, &Control::of(7), &wr(SendOp::Send, SendFlags::empty(), Payload::Inline(&data)));
            let entry = read(&ring, at);
            prop_assert_eq!(entry.len(), CELL + InlineSeg::room(data.len()));
            prop_assert_eq!(usize::from(w.blocks), entry.len().div_ceil(64));
            prop_assert_eq!(&entry[20..20 + data.len()], &data[..]);
            prop_assert!(entry[20 + data.len()..].iter().all(|b| *b == 0));
        }

        #[test]
        fn no_request_takes_more_blocks_than_are_reckoned(
            max_sge in 0..=MAX_SGE, max_inline in 0..=MAX_INLINE, len in any::<prop::sample::Index>(),
            inline in any::<bool>(), kind in 0..4,
        ) {
            let ring = ring(32);
            let remote = RemoteAddr { addr: 8, rkey: Rkey::new(9) };
            let to = UdTo { address: [0; 6], qpn: 1, qkey: 1 };
            let (op, to) = match kind {
                0 => (SendOp::Send, Some(&to)),
                1 => (SendOp::Write(remote), None),
                2 => (SendOp::FetchAdd { remote, add: 1 }, None),
                _ => (SendOp::Send, None),
            };
            let list = vec![sge(0, 8, 0); len.index(max_sge as usize + 1)];
            let bytes = vec![1; len.index(max_inline as usize + 1)];
            let payload = if inline { Payload::Inline(&bytes) } else { Payload::Sges(&list) };
            let request = wr(op, SendFlags::empty(), payload);
            let w = to.map_or_else(
                || write(&ring, 0, &Control::of(7), &request),
                |to| write_datagram(&ring, 0, &Control::of(7), &request, to),
            );
            prop_assert!(u32::from(w.blocks) <= blocks_for(max_sge, max_inline));
        }
    }
}
