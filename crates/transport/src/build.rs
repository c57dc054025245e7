//! Building packets: this module writes the headers in place, and the caller fills in the payload.

use bytemuck::Pod;
use hca_core::AhHandle;
use hca_core::wire::{AtomicEth, Bth, Deth, Opcode, Rdeth};

use crate::{Host, LocalError, TxSink};

/// The opcode byte of a CNP.
pub(crate) const CNP: Opcode = Opcode::CNP;
/// Reserved bytes behind the BTH of a CNP.
pub(crate) const CNP_PAYLOAD: usize = 16;

/// Bytes of the longest extended headers: those of an atomic operation by RD.
const MAX_EXT: usize = size_of::<Rdeth>() + size_of::<Deth>() + size_of::<AtomicEth>();

/// Extended headers in the order in which they follow the BTH.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ext {
    bytes: [u8; MAX_EXT],
    len: usize,
}

impl Ext {
    /// No extended header.
    #[inline]
    pub(crate) fn none() -> Self {
        Self { bytes: [0; MAX_EXT], len: 0 }
    }
    /// Appends one.
    #[inline]
    pub(crate) fn push<E: Pod>(&mut self, header: &E) {
        let bytes = bytemuck::bytes_of(header);
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
    /// Only this one.
    #[inline]
    pub(crate) fn one<E: Pod>(header: &E) -> Self {
        let mut ext = Self::none();
        ext.push(header);
        ext
    }
}

/// Bytes of padding behind a payload of `len` bytes.
#[inline]
pub(crate) const fn pad(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

/// Sends the `len` bytes of a request's list from `offset` on, behind these headers: from where they lie, if they may be
/// and the message has more packets, or as a copy. `Ok(false)`: the sink has no room.
#[inline(always)]
pub(crate) fn send_packet<H: Host, T: TxSink>(
    (index, offset, len, alone): (u32, u32, u32, bool),
    bth: &Bth,
    ext: &Ext,
    host: &mut H,
    tx: &mut T,
) -> Result<bool, LocalError> {
    let long = !alone && tx.in_place_from().is_some_and(|least| len >= least) && pad(len as usize) == 0;
    let place = if long { host.in_place(index, offset, len) } else { None };
    let Some(body) = reserve_packet(tx, None, bth, ext, len as usize) else { return Ok(false) };
    if let Some(place) = place {
        tx.commit_in_place(Bth::BYTES + ext.len, place);
        return Ok(true);
    }
    if len > 0 {
        host.gather(index, offset, body)?;
    }
    tx.commit();
    Ok(true)
}

/// Reserves a packet, writes its headers and padding, and returns where its payload of `payload` bytes
/// goes. The packet leaves by [`TxSink::commit`]. `None`: the sink has no room.
#[inline(always)]
pub(crate) fn reserve_packet<'t, T: TxSink>(
    tx: &'t mut T,
    to: Option<AhHandle>,
    bth: &Bth,
    ext: &Ext,
    payload: usize,
) -> Option<&'t mut [u8]> {
    let headers = Bth::BYTES + ext.len;
    let padding = usize::from(pad(payload));
    let out = tx.reserve(to, headers + payload + padding)?;
    let (head, rest) = out.split_first_chunk_mut::<{ Bth::BYTES }>().expect("a BTH was reserved");
    *head = bytemuck::cast(*bth);
    if ext.len > 0 {
        rest[..ext.len].copy_from_slice(&ext.bytes[..ext.len]);
    }
    let (body, tail) = rest[ext.len..].split_at_mut(payload);
    if padding > 0 {
        tail.fill(0);
    }
    Some(body)
}
