//! The operations on a peer's memory, and the copies between it and a request's local list.

use hca_core::wire::{Placement, Selectivity};
use hca_core::{Access, RemoteAddr, SendOp, WcOpcode};
use hca_fabric::{Bracket, MAX_BRACKET_BYTES};
use hca_transport::LocalError;

use crate::direct::list::{Piece, RequestList};
use crate::objects::direct::ATOMIC_WRITE;

/// An aligned request of so many bytes is seen whole, from however many pieces.
const WHOLE_BYTES: usize = 8;

/// An operation on a peer's memory.
pub(crate) trait Op {
    /// The right to it.
    const RIGHT: Access;
    /// Data comes back.
    const FETCHES: bool;
    /// The request has a local list.
    const LIST: bool = true;
    /// Where it is done; `None` for another operation.
    fn remote(op: &SendOp) -> Option<RemoteAddr>;
    /// Whether a request of one piece may have this length.
    #[inline(always)]
    fn takes(len: u32) -> bool {
        len > 0
    }
    /// As its completion reports it.
    fn opcode(op: &SendOp) -> WcOpcode;
    /// Does it. A request whose local side does not hold, or that the peer has to judge, changes nothing.
    fn carry_out(op: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop>;
}

/// WRITE.
pub(crate) struct Write;
/// READ.
pub(crate) struct Read;
/// Atomic operations.
pub(crate) struct Atomic;
/// ATOMIC WRITE and FLUSH, whose right is `RIGHT`.
pub(crate) struct Placed<const RIGHT: u8>;
/// ATOMIC WRITE.
pub(crate) type AtomicWrite = Placed<{ ATOMIC_WRITE.bits() }>;
/// FLUSH.
pub(crate) type Flush = Placed<{ Access::FLUSH_GLOBAL.bits() }>;

impl Op for Write {
    const RIGHT: Access = Access::REMOTE_WRITE;
    const FETCHES: bool = false;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        if let SendOp::Write(remote) = op { Some(*remote) } else { None }
    }
    #[inline(always)]
    fn opcode(_: &SendOp) -> WcOpcode {
        WcOpcode::RdmaWrite
    }
    #[inline(always)]
    fn carry_out(_: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop> {
        write(bracket, at, piece)
    }
}

impl Op for Read {
    const RIGHT: Access = Access::REMOTE_READ;
    const FETCHES: bool = true;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        if let SendOp::Read(remote) = op { Some(*remote) } else { None }
    }
    #[inline(always)]
    fn opcode(_: &SendOp) -> WcOpcode {
        WcOpcode::RdmaRead
    }
    #[inline(always)]
    fn carry_out(_: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop> {
        read(bracket, at, piece)
    }
}

impl Op for Atomic {
    const RIGHT: Access = Access::REMOTE_ATOMIC;
    const FETCHES: bool = true;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        match op {
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => Some(*remote),
            _ => None,
        }
    }
    #[inline(always)]
    fn takes(len: u32) -> bool {
        len == 8
    }
    #[inline(always)]
    fn opcode(op: &SendOp) -> WcOpcode {
        op.wc_opcode()
    }
    #[inline(always)]
    fn carry_out(op: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop> {
        give(&atomic(bracket, at, op)?.to_ne_bytes(), piece)
    }
}

impl<const BITS: u8> Op for Placed<BITS> {
    const RIGHT: Access = Access::from_bits_truncate(BITS);
    const FETCHES: bool = false;
    const LIST: bool = false;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        target(op, 0).map(|(remote, ..)| remote)
    }
    #[inline(always)]
    fn opcode(op: &SendOp) -> WcOpcode {
        op.wc_opcode()
    }
    #[inline(always)]
    fn carry_out(op: &SendOp, bracket: &mut Bracket<'_>, at: u64, _: &Piece<'_>) -> Result<(), Stop> {
        placed(op, bracket, at)
    }
}

/// The place of an operation in the peer's memory, its length there, and the right to it. `None`: there is no such
/// place, or the peer has to judge.
#[inline(always)]
pub(crate) fn target(op: &SendOp, len: u32) -> Option<(RemoteAddr, u32, Access)> {
    let (remote, len, right) = match *op {
        SendOp::Write(remote) => (remote, len, Access::REMOTE_WRITE),
        SendOp::Read(remote) => (remote, len, Access::REMOTE_READ),
        SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
            (remote, len, Access::REMOTE_ATOMIC)
        }
        SendOp::AtomicWrite { remote, .. } if remote.addr.is_multiple_of(8) => (remote, 8, ATOMIC_WRITE),
        // One of a whole region has any address, so the peer finds it.
        SendOp::Flush {
            remote,
            len,
            placement: Placement::GLOBAL_VISIBILITY,
            selectivity: Selectivity::Range,
        } => (remote, len, Access::FLUSH_GLOBAL),
        _ => return None,
    };
    (len > 0).then_some((remote, len, right))
}

impl Piece<'_> {
    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        match *self {
            Self::Memory(_, len) => len,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// Why a piece was not moved.
pub(crate) enum Stop {
    Local(LocalError),
    /// The peer has to judge.
    Remote,
}
impl From<LocalError> for Stop {
    fn from(e: LocalError) -> Self {
        Self::Local(e)
    }
}

#[inline]
pub(crate) fn move_piece(
    mut bracket: Bracket<'_>,
    at: u64,
    offset: &mut u32,
    list: &RequestList<'_>,
    (op, len): (&SendOp, u32),
) -> Result<usize, Stop> {
    let whole = len;
    let len = ((len - *offset) as usize).min(MAX_BRACKET_BYTES);
    let begin = at + u64::from(*offset);
    // Nothing is moved of a request whose list does not hold; one entry is judged as it is copied.
    let holds = |piece: &Piece<'_>, i: usize, write: bool| match piece {
        Piece::Memory(_, size) if i == 0 && *size < len => {
            list.each(0, whole as usize, write, |_, _| Ok::<_, Stop>(()))
        }
        _ => Ok(()),
    };
    match *op {
        SendOp::Write(_) if whole as usize <= WHOLE_BYTES => {
            let mut word = [0; WHOLE_BYTES];
            list.each::<Stop>(0, len, false, |piece, i| {
                Ok(fetch_local(&piece, &mut word[i..i + piece.len()])?)
            })?;
            bracket.write(begin, &word[..len]).map_err(|_| Stop::Remote)?;
        }
        SendOp::Read(_) if whole as usize <= WHOLE_BYTES => {
            list.each::<Stop>(0, len, true, |_, _| Ok(()))?;
            let mut word = [0; WHOLE_BYTES];
            bracket.read(begin, &mut word[..len]).map_err(|_| Stop::Remote)?;
            list.each(0, len, true, |piece, i| give(&word[i..i + piece.len()], &piece))?;
        }
        SendOp::Write(_) => list.each(*offset, len, false, |piece, i| {
            holds(&piece, i, false)?;
            write(&mut bracket, begin + i as u64, &piece)
        })?,
        SendOp::Read(_) => list.each(*offset, len, true, |piece, i| {
            holds(&piece, i, true)?;
            read(&mut bracket, begin + i as u64, &piece)
        })?,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            // The local side is checked first, as the operation can't be taken back.
            list.each::<Stop>(0, 8, true, |_, _| Ok(()))?;
            let original = atomic(&mut bracket, at, op)?.to_ne_bytes();
            list.each(0, 8, true, |piece, i| give(&original[i..i + piece.len()], &piece))?;
        }
        _ => placed(op, &mut bracket, at)?,
    }
    *offset += len as u32;
    Ok(len)
}

#[allow(unsafe_code)] // the bracket's copies, each with its argument
#[inline(always)]
fn write(bracket: &mut Bracket<'_>, to: u64, piece: &Piece<'_>) -> Result<(), Stop> {
    let written = match *piece {
        Piece::Inline(bytes) => bracket.write(to, bytes),
        // SAFETY: the list was translated by the key table for this call, under the engine's lock; memory of a peer's
        // region that is registered here as well is moved by instructions that do not care.
        Piece::Memory(from, len) => unsafe { bracket.write_from(to, from, len) },
    };
    written.map_err(|_| Stop::Remote)?;
    Ok(crate::memory::dma::copied().map_err(LocalError::from)?)
}

#[allow(unsafe_code)] // as above
#[inline(always)]
fn read(bracket: &mut Bracket<'_>, from: u64, piece: &Piece<'_>) -> Result<(), Stop> {
    match *piece {
        Piece::Inline(_) => Err(Stop::Local(LocalError::Protection)),
        // SAFETY: as in `write`, and the list was checked for writing.
        Piece::Memory(to, len) => unsafe { bracket.read_into(from, to, len) }.map_err(|_| Stop::Remote),
    }
}

/// Does an ATOMIC WRITE or FLUSH.
#[inline(always)]
fn placed(op: &SendOp, bracket: &mut Bracket<'_>, at: u64) -> Result<(), Stop> {
    let done = match *op {
        SendOp::AtomicWrite { value, .. } => bracket.write_word(at, u64::from_ne_bytes(value)),
        SendOp::Flush { len, .. } => bracket.flush(at, len.into()),
        _ => return Err(Stop::Remote),
    };
    done.map_err(|_| Stop::Remote)
}

/// The word's old value.
#[inline(always)]
fn atomic(bracket: &mut Bracket<'_>, at: u64, op: &SendOp) -> Result<u64, Stop> {
    let original = match *op {
        SendOp::CompareSwap { compare, swap, .. } => bracket.compare_swap(at, compare, swap),
        SendOp::FetchAdd { add, .. } => bracket.fetch_add(at, add),
        _ => return Err(Stop::Remote),
    };
    original.map_err(|_| Stop::Remote)
}

/// Loads the bytes of a piece, which are as many as `out` has.
///
/// # Errors
/// The program has unmapped them.
#[allow(unsafe_code)] // as above
#[inline]
pub(crate) fn fetch_local(piece: &Piece<'_>, out: &mut [u8]) -> Result<(), LocalError> {
    match *piece {
        Piece::Inline(bytes) => {
            out.copy_from_slice(bytes);
            Ok(())
        }
        Piece::Memory(from, len) => {
            assert_eq!(len, out.len(), "as many bytes as the piece has");
            // SAFETY: as in `write`.
            Ok(unsafe { crate::memory::dma::load(from, out) }?)
        }
    }
}

/// Places what was fetched in a piece of as many bytes.
#[allow(unsafe_code)] // as above
#[inline(always)]
fn give(fetched: &[u8], piece: &Piece<'_>) -> Result<(), Stop> {
    debug_assert_eq!(fetched.len(), piece.len());
    match *piece {
        Piece::Inline(_) => Err(Stop::Local(LocalError::Protection)),
        Piece::Memory(to, _) => {
            // SAFETY: as in `read`.
            unsafe { crate::memory::dma::store(to, fetched) };
            Ok(())
        }
    }
}
