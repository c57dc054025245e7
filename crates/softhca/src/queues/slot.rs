//! The slots of send and receive queues: their headers, and their cells, which hold lists, inline bytes and
//! destinations.

use core::mem::MaybeUninit;

use hca_core::{AhHandle, Dest, FlatOp, Lkey, Qkey, QpHandle, Qpn, RdDest, SendFlags, Sge, UdDest};
use hca_transport::{LocalError, UdTarget};

use crate::queues::ring::{Cell, Header};

/// The header of a send queue slot, one cache line. The first cell of a datagram's slot is its destination.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct SendHeader {
    pub(crate) wr_id: u64,
    pub(crate) op: FlatOp,
    pub(crate) len: u32,
    /// Entries in the list; one that is inline as a whole has none.
    pub(crate) sges: u8,
    pub(crate) place: Place,
    pub(crate) dest: DestKind,
    pub(crate) flags: SendFlags,
}
const _: () = assert!(size_of::<SendHeader>() == 64);

/// The meaning of the first cell of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DestKind {
    /// A part of the list or of the inline bytes, as all cells.
    None,
    /// The destination of a datagram.
    Datagram,
    /// The number of the shared receive queue that a request of XRC names.
    Srq,
    /// The destination of a reliable datagram.
    Reliable,
}

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In memory, which the cells list.
    Memory,
    /// In the cells.
    Slot,
    /// Some here, some there: in cells behind the list, whose entries say so.
    Both,
}

#[allow(unsafe_code)] // one by one into a slot
impl Header for SendHeader {
    #[inline(always)]
    fn put(self, slot: &mut MaybeUninit<Self>) {
        let Self { wr_id, op, len, sges, place, dest, flags } = self;
        let to = slot.as_mut_ptr();
        // SAFETY: each is a field of the slot, and they are all there are.
        unsafe {
            (&raw mut (*to).wr_id).write(wr_id);
            (&raw mut (*to).op).write(op);
            (&raw mut (*to).len).write(len);
            (&raw mut (*to).sges).write(sges);
            (&raw mut (*to).place).write(place);
            (&raw mut (*to).dest).write(dest);
            (&raw mut (*to).flags).write(flags);
        }
    }
}

/// The header of a receive queue slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvHeader {
    pub(crate) wr_id: u64,
    /// The first entry of the list; a request of one has nothing in its cells.
    pub(crate) first: Cell,
    /// Bytes that the list takes.
    pub(crate) room: u64,
    pub(crate) sges: u8,
}
impl Header for RecvHeader {}

impl RecvHeader {
    /// The list of a request, whose slot has these cells.
    pub(crate) fn list<'a>(&'a self, cells: &'a [Cell]) -> impl Iterator<Item = Sge> + 'a {
        let list =
            if self.sges == 1 { core::slice::from_ref(&self.first) } else { &cells[..self.sges.into()] };
        list.iter().copied().map(cell_to_sge)
    }
}

pub(crate) const fn sge_to_cell(s: Sge) -> Cell {
    [s.addr, s.len as u64 | (s.lkey.raw() as u64) << 32]
}
#[inline]
pub(crate) const fn cell_to_sge(c: Cell) -> Sge {
    Sge { addr: c[0], len: c[1] as u32, lkey: Lkey::new((c[1] >> 32) as u32) }
}

/// Marks the address of an entry whose bytes are in the slot: the last 64 KiB of all addresses, where a list of both kinds
/// names no memory.
const IN_SLOT: u64 = !0xffff;

const fn is_in_slot(addr: u64) -> bool {
    addr & IN_SLOT == IN_SLOT
}

/// An entry of a list of both kinds that is memory.
pub(crate) const fn entry_to_cell(s: Sge) -> Cell {
    // Memory with the mark becomes bytes that no slot has, so that the request fails.
    sge_to_cell(Sge { addr: if is_in_slot(s.addr) { u64::MAX } else { s.addr }, ..s })
}
/// An entry whose bytes are in the slot, `at` bytes behind the beginning of the list.
pub(crate) const fn slot_bytes_to_cell(at: usize, len: usize) -> Cell {
    [IN_SLOT | at as u64, len as u64]
}
/// The bytes of an entry that are in the slot; `None`: it is memory.
#[inline]
pub(crate) fn in_slot<'a>(
    cells: &'a [Cell],
    h: &SendHeader,
    s: &Sge,
) -> Option<Result<&'a [u8], LocalError>> {
    if h.place != Place::Both || !is_in_slot(s.addr) {
        return None;
    }
    let (at, len) = ((s.addr & !IN_SLOT) as usize, s.len as usize);
    let bytes: &[u8] = bytemuck::cast_slice(list(cells, h));
    Some(bytes.get(at..at.saturating_add(len)).ok_or(LocalError::Length))
}

pub(crate) const fn dest_to_cell(dest: Dest) -> (DestKind, Cell) {
    match dest {
        Dest::Datagram(d) => (DestKind::Datagram, datagram_to_cell(d)),
        Dest::Srq(number) => (DestKind::Srq, [number.raw() as u64, 0]),
        Dest::Reliable(d) => (DestKind::Reliable, reliable_to_cell(d)),
    }
}
const fn datagram_to_cell(d: UdDest) -> Cell {
    let (ah, generation) = (d.ah.index as u64, d.ah.generation as u64);
    [ah | generation << 32, d.qpn.raw() as u64 | (d.qkey.raw() as u64) << 32]
}
const fn reliable_to_cell(d: RdDest) -> Cell {
    let (index, generation) = (d.eec.index as u64, d.eec.generation as u64);
    [index | generation << 32, d.qpn.raw() as u64 | (d.qkey.raw() as u64) << 32]
}
pub(crate) const fn cell_to_reliable(c: Cell) -> RdDest {
    RdDest {
        eec: QpHandle { index: c[0] as u32, generation: (c[0] >> 32) as u32 },
        qpn: Qpn::new(c[1] as u32),
        qkey: Qkey::new((c[1] >> 32) as u32),
    }
}
pub(crate) const fn cell_to_target(c: Cell) -> UdTarget {
    UdTarget {
        ah: AhHandle { index: c[0] as u32, generation: (c[0] >> 32) as u32 },
        qpn: Qpn::new(c[1] as u32),
        qkey: Qkey::new((c[1] >> 32) as u32),
    }
}

/// Walks the pieces of a scatter/gather list that lie in `offset .. offset + len`.
#[inline]
pub(crate) fn pieces<E: From<LocalError>>(
    sges: impl Iterator<Item = Sge>,
    offset: u32,
    len: usize,
    mut f: impl FnMut(Sge, usize) -> Result<(), E>,
) -> Result<(), E> {
    if len == 0 {
        return Ok(());
    }
    let (mut skip, mut done) = (offset, 0);
    for s in sges {
        let Some(room) = s.len.checked_sub(skip).filter(|room| *room > 0) else {
            skip -= s.len;
            continue;
        };
        let n = (room as usize).min(len - done);
        f(Sge { addr: s.addr.wrapping_add(skip.into()), len: n as u32, lkey: s.lkey }, done)?;
        done += n;
        if done == len {
            return Ok(());
        }
        skip = 0;
    }
    Err(LocalError::Length.into())
}

/// So many bytes of an entry, from `offset` on, if it has them.
#[inline]
pub(crate) fn part_of(s: Sge, offset: u32, len: usize) -> Option<Sge> {
    let room = s.len.checked_sub(offset)?;
    let part = Sge { addr: s.addr.wrapping_add(offset.into()), len: len as u32, lkey: s.lkey };
    (len <= room as usize).then_some(part)
}

#[inline]
pub(crate) fn entries(cells: &[Cell], h: &SendHeader) -> impl Iterator<Item = Sge> {
    list(cells, h)[..usize::from(h.sges)].iter().copied().map(cell_to_sge)
}

/// The cells of a request's list or inline bytes.
#[inline]
pub(crate) fn list<'a>(cells: &'a [Cell], h: &SendHeader) -> &'a [Cell] {
    &cells[usize::from(h.dest != DestKind::None)..]
}

#[cfg(test)]
mod tests {
    use hca_core::SendOp;

    use super::*;

    #[test]
    fn memory_is_told_from_bytes_in_the_slot_wherever_its_region_lies_for_peers() {
        let header = |place| SendHeader {
            wr_id: 1,
            op: FlatOp::new(&SendOp::Send),
            len: 16,
            sges: 2,
            place,
            dest: DestKind::None,
            flags: SendFlags::empty(),
        };
        let h = header(Place::Both);
        for addr in [0, 4096, 1 << 63, 1 << 63 | 4096, 0xffff_ffff_fffe_0000] {
            let memory = Sge { addr, len: 8, lkey: Lkey::new(5) };
            let cells = [entry_to_cell(memory), slot_bytes_to_cell(32, 8), [u64::from_ne_bytes([7; 8]), 0]];
            let [first, second] = [0, 1].map(|i| cell_to_sge(cells[i]));
            assert_eq!((first.addr, first.len, first.lkey), (addr, 8, memory.lkey));
            assert!(in_slot(&cells, &h, &first).is_none(), "{addr:#x}");
            assert_eq!(in_slot(&cells, &h, &second).and_then(Result::ok), Some(&[7; 8][..]));
        }
        // Memory among the marked addresses is refused, wherever bytes of the slot are.
        for addr in [IN_SLOT, IN_SLOT | 32, u64::MAX - 7] {
            let memory = Sge { addr, len: 8, lkey: Lkey::new(5) };
            let cells = [entry_to_cell(memory), slot_bytes_to_cell(32, 8), [7; 2]];
            let refused = in_slot(&cells, &h, &cell_to_sge(cells[0]));
            assert!(matches!(refused, Some(Err(LocalError::Length))), "{addr:#x}");
        }
    }
}
