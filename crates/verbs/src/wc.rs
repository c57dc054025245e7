//! Completions for programs, with the buffers that they give back.

use std::fmt;
use std::ops::Deref;

use hca_core::{Completion, RecvExtra, WcStatus};

use crate::WcError;
use crate::ah::AddressHandle;
use crate::buf::Buf;
use crate::grh::Grh;
use crate::part::{Held, Part};
use crate::pd::Pd;
use crate::slots::Sink;

/// Room for completions and the buffers that they give back: created once, and filled by each poll.
///
/// A program keeps one for each loop. A poll first empties it: buffers that were not taken out are dropped. It grows
/// when a completion gives back more buffers than ever before, and never shrinks.
pub struct Completions {
    pub(crate) raw: Box<[Completion]>,
    /// As many as there are raw ones, of which [`count`](Self::count) are of the last poll.
    pub(crate) records: Box<[Record]>,
    pub(crate) count: usize,
    pub(crate) parts: Parts,
}

/// The parts that completions give back, in a row of places. The first `len` places may hold something. The others, of
/// which there is always one, are empty.
pub(crate) struct Parts {
    places: Vec<Option<Held>>,
    len: usize,
}

impl Parts {
    fn with_capacity(count: usize) -> Self {
        Self { places: (0..=count).map(|_| None).collect(), len: 0 }
    }
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    #[inline(always)]
    fn push(&mut self, held: Held) {
        let place = &mut self.places[self.len];
        // The place is empty, so that nothing is to be dropped.
        core::mem::forget(place.replace(held));
        if matches!(place, Some(Held::Ah(_) | Held::Ee(_))) {
            return drop(place.take());
        }
        self.len += 1;
        if self.len == self.places.len() {
            self.grow();
        }
    }
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.places.resize_with(self.len * 2, || None);
    }
    /// Drops what was not taken out.
    #[inline(never)]
    fn clear(&mut self) {
        for place in &mut self.places[..self.len] {
            drop(place.take());
        }
        self.len = 0;
    }
}

/// One completion: which of the raw ones, and where its parts end.
#[derive(Clone, Copy, Default)]
pub(crate) struct Record {
    pub(crate) context: u64,
    /// Which, and [`GRH_AREA`](Self::GRH_AREA).
    pub(crate) raw: u32,
    pub(crate) parts_end: u32,
}

impl Record {
    /// The queue pair's messages lie behind the area of a GRH.
    pub(crate) const GRH_AREA: u32 = 1 << 31;

    pub(crate) fn raw(&self) -> usize {
        (self.raw & !Self::GRH_AREA) as usize
    }
}

impl Sink<Held> for &mut Parts {
    #[inline(always)]
    fn take(&mut self, held: Held) {
        self.push(held);
    }
}

impl Completions {
    /// Room for at most `count` completions a poll (at least one), each with a buffer.
    pub fn with_capacity(count: usize) -> Self {
        Self::with_parts(count, count)
    }
    /// Room for at most `count` completions a poll (at least one), with `parts` buffers in all.
    pub fn with_parts(count: usize, parts: usize) -> Self {
        let count = count.max(1);
        Self {
            raw: vec![Completion::default(); count].into_boxed_slice(),
            records: vec![Record::default(); count].into_boxed_slice(),
            count: 0,
            parts: Parts::with_capacity(parts),
        }
    }
    /// The most completions of one poll.
    pub fn capacity(&self) -> usize {
        self.raw.len()
    }
    /// The number of completions of the last poll.
    pub fn len(&self) -> usize {
        self.count
    }
    /// Whether the last poll yielded none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// Drops all completions and their buffers.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.count = 0;
        if self.parts.len() > 0 {
            // Most polls give back one, which was taken out.
            match self.parts.places[..] {
                [None, ..] if self.parts.len() == 1 => self.parts.len = 0,
                _ => self.parts.clear(),
            }
        }
    }
    /// The completions of the last poll, oldest first. Buffers that were taken out are not among them.
    #[inline]
    pub fn iter_mut(&mut self) -> Wcs<'_> {
        let Parts { places, len } = &mut self.parts;
        Wcs {
            records: self.records[..self.count].iter(),
            raw: &self.raw,
            parts: &mut places[..*len],
            taken: 0,
        }
    }
}

impl Default for Completions {
    /// Room for 32.
    fn default() -> Self {
        Self::with_capacity(32)
    }
}
impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").field("len", &self.len()).field("capacity", &self.capacity()).finish()
    }
}
impl<'a> IntoIterator for &'a mut Completions {
    type Item = Wc<'a>;
    type IntoIter = Wcs<'a>;
    fn into_iter(self) -> Wcs<'a> {
        self.iter_mut()
    }
}

/// The completions of one poll, oldest first.
#[derive(Default)]
pub struct Wcs<'a> {
    records: std::slice::Iter<'a, Record>,
    raw: &'a [Completion],
    parts: &'a mut [Option<Held>],
    taken: u32,
}

impl<'a> Iterator for Wcs<'a> {
    type Item = Wc<'a>;
    #[inline]
    fn next(&mut self) -> Option<Wc<'a>> {
        let record @ &Record { raw, context, parts_end } = self.records.next()?;
        let c = &self.raw[record.raw()];
        let (parts, rest) = std::mem::take(&mut self.parts).split_at_mut((parts_end - self.taken) as usize);
        self.parts = rest;
        self.taken = parts_end;
        let grh_area = raw & Record::GRH_AREA != 0;
        Some(Wc { id: c.wr_id, context, grh_area, completion: c, parts })
    }
    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.records.size_hint()
    }
}
impl ExactSizeIterator for Wcs<'_> {}
impl fmt::Debug for Wcs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wcs").field("len", &self.len()).finish()
    }
}

/// The end of one work request, with the buffers that it gives back: its own, and on a send queue those of
/// all earlier requests that were not signalled.
///
/// Its result is in the fields of the device's [`Completion`], to which it derefs: `wc.status`, `wc.opcode`,
/// `wc.byte_len`. Its `wr_id` there is the program's number, as [`id`](Self::id) is.
#[derive(Debug)]
pub struct Wc<'a> {
    /// The request's id, as posted.
    pub id: u64,
    /// The number that the queue pair was built with ([`QpBuilder::context`](crate::QpBuilder::context)); 0 for a request
    /// of an [`XrcSrq`](crate::XrcSrq), whose number is in `wc.srq`.
    pub context: u64,
    grh_area: bool,
    completion: &'a Completion,
    parts: &'a mut [Option<Held>],
}

impl Deref for Wc<'_> {
    type Target = Completion;
    #[inline]
    fn deref(&self) -> &Completion {
        self.completion
    }
}

impl<'a> Wc<'a> {
    /// The completion itself, if it is a success.
    ///
    /// # Errors
    /// The request failed: the error names the request, the failure and the remedy. To keep the buffers of a failed
    /// request, take them out before the call.
    #[inline]
    pub fn ok(self) -> Result<Self, WcError> {
        if self.status == WcStatus::Success { Ok(self) } else { Err(self.failure()) }
    }

    /// The error, if the request failed.
    pub fn error(&self) -> Option<WcError> {
        (self.status != WcStatus::Success).then(|| self.failure())
    }
    #[cold]
    fn failure(&self) -> WcError {
        let &Completion { qp, opcode, status, .. } = self.completion;
        WcError { id: self.id, qp, opcode, status, vendor_code: self.completion.vendor_code() }
    }

    /// The immediate data, if the message has any.
    pub fn imm(&self) -> Option<u32> {
        match self.extra {
            RecvExtra::Imm(data) => Some(data),
            RecvExtra::None | RecvExtra::Invalidated(_) => None,
        }
    }

    /// Takes the next buffer out, in the order in which they were posted.
    #[inline]
    pub fn take_buf(&mut self) -> Option<Buf> {
        self.parts.iter_mut().find_map(|slot| match slot.take() {
            Some(Held::Part(Part::Buf(buf))) => Some(buf),
            other => {
                *slot = other;
                None
            }
        })
    }

    /// Takes all buffers out, in the order in which they were posted.
    pub fn take_bufs(&mut self) -> impl Iterator<Item = Buf> {
        self.parts.iter_mut().filter_map(|p| match p.take() {
            Some(Held::Part(Part::Buf(buf))) => Some(buf),
            other => {
                *p = other;
                None
            }
        })
    }

    /// Takes everything out, in the order in which it was posted.
    pub fn take_parts(&mut self) -> impl Iterator<Item = Part> {
        self.parts.iter_mut().filter_map(|p| match p.take() {
            Some(Held::Part(part)) => Some(part),
            Some(Held::Ah(_) | Held::Ee(_)) | None => None,
        })
    }

    /// The GRH of a datagram, with the sender's address and the path. `None` for other completions, for a datagram
    /// without a GRH (within an InfiniBand subnet, from senders that do not ask for one), or if the buffer was taken
    /// out or does not hold the 40 bytes.
    pub fn grh(&self) -> Option<Grh> {
        if !self.grh || self.status != WcStatus::Success {
            return None;
        }
        Grh::parse(self.first_buf()?.first_chunk()?)
    }

    /// The message without its GRH area, as far as it lies in the first buffer; `None` if there is no buffer, if it was
    /// taken out, or if this is not a successful receive.
    pub fn payload(&self) -> Option<&[u8]> {
        if !self.opcode.is_recv() || self.status != WcStatus::Success {
            return None;
        }
        let buf = self.first_buf()?;
        let end = buf.len().min(self.byte_len as usize);
        buf.get(self.payload_start()..end)
    }
    /// Where the message begins in the buffer.
    pub(crate) fn payload_start(&self) -> usize {
        if self.grh_area { Grh::BYTES } else { 0 }
    }

    /// An address handle for the path back to the sender of a datagram; `None` where [`grh`](Self::grh) is.
    ///
    /// # Errors
    /// The device's limits, or no path.
    pub fn reply_ah(&self, pd: &Pd) -> Option<Result<AddressHandle, hca_core::DeviceError>> {
        self.grh().map(|grh| pd.create_ah(&grh.reply_path()))
    }

    fn first_buf(&self) -> Option<&Buf> {
        match self.parts.first()? {
            Some(Held::Part(Part::Buf(buf))) => Some(buf),
            _ => None,
        }
    }
}
