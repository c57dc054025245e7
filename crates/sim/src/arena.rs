//! Arenas: memory of the workload, which adapters read and write.
//!
//! Invariants:
//! 1. Each part owns its memory, which is freed when the part is dropped.
//! 2. No reference to the memory leaves this module: the simulation copies bytes in and out, and compares them where they
//!    lie; the adapter has its own means, and both run on one thread, so that accesses don't race.
//! 3. The memory outlives every registration: the code that registered it drops it after the adapter, or after
//!    `dereg_mr` has returned; else it calls [`Arena::leak`].
#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;

use hca_core::{
    Access, Device, DeviceError, DmaMemory, MrInit, MrKeys, PdHandle, PostError, RecvPort, RecvWr, SendPort,
    SendWr,
};

/// Zeroed memory in one or several allocations, reached by copies only.
pub(crate) struct Arena {
    /// Where each begins, and its memory.
    parts: Vec<(usize, DmaMemory)>,
    len: usize,
    /// By which requests name the first byte: the same in every run, as true addresses are not.
    iova: u64,
}

impl Arena {
    /// Parts of these lengths, each an allocation of its own, which begins at a page. The first is memory of the
    /// program's if `foreign` says so, the others are the adapter's.
    pub(crate) fn new(
        device: &dyn Device,
        lens: &[usize],
        foreign: bool,
        iova: u64,
    ) -> Result<Self, DeviceError> {
        let mut arena = Self { parts: Vec::with_capacity(lens.len()), len: 0, iova };
        for (n, &len) in lens.iter().enumerate() {
            let memory = if foreign && n == 0 { of_program(len) } else { device.alloc_memory(len)? };
            arena.parts.push((arena.len, memory));
            arena.len += len;
        }
        Ok(arena)
    }
    /// Address of an offset, as requests name it.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.iova + at as u64
    }
    /// The piece of a range that lies in one part.
    fn piece(&self, range: &Range<usize>) -> (NonNull<u8>, usize) {
        assert!(range.start < range.end && range.end <= self.len, "{range:?} lies in the arena");
        let after = self.parts.partition_point(|(start, _)| *start <= range.start);
        let end = self.parts.get(after).map_or(self.len, |(start, _)| *start);
        let (start, memory) = &self.parts[after - 1];
        // SAFETY: (1) and the check above: the offset is within the part.
        let addr = unsafe { memory.addr().add(range.start - start) };
        (addr, end.min(range.end) - range.start)
    }
    pub(crate) fn write(&self, at: usize, mut bytes: &[u8]) {
        let mut range = at..at + bytes.len();
        while !range.is_empty() {
            let (addr, len) = self.piece(&range);
            // SAFETY: (1): the piece is ours; (2) nobody else accesses it now.
            unsafe { addr.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) }
            (range.start, bytes) = (range.start + len, &bytes[len..]);
        }
    }
    pub(crate) fn read(&self, mut range: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        let mut rest = &mut out[..];
        while !range.is_empty() {
            let (addr, len) = self.piece(&range);
            // SAFETY: (1): the piece is ours; (2) nobody else accesses it now.
            unsafe { addr.as_ptr().copy_to_nonoverlapping(rest.as_mut_ptr(), len) }
            (range.start, rest) = (range.start + len, &mut rest[len..]);
        }
        out
    }
    /// The first difference between the memory at `at` and `expected`, and what is found there.
    pub(crate) fn difference(&self, at: usize, expected: &[u8]) -> Option<(usize, u8)> {
        let mut done = 0;
        while done < expected.len() {
            let (addr, len) = self.piece(&(at + done..at + expected.len()));
            // SAFETY: (1): the piece is ours; (2) nobody else accesses it before the comparison has ended.
            let found = unsafe { core::slice::from_raw_parts(addr.as_ptr(), len) };
            let wanted = &expected[done..done + len];
            if found != wanted {
                let i = (0..len).find(|i| found[*i] != wanted[*i]).expect("the slices differ");
                return Some((done + i, found[i]));
            }
            done += len;
        }
        None
    }
    /// Registers a range.
    pub(crate) fn register(
        &self,
        device: &dyn Device,
        pd: PdHandle,
        range: Range<usize>,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        let (addr, len) = self.piece(&range);
        assert_eq!(len, range.len(), "{range:?} lies in one part");
        let mr = MrInit { addr, len: range.len(), iova: self.address(range.start), access };
        // SAFETY: (3) the memory outlives the registration, (2) nobody makes references to it.
        unsafe { device.reg_mr(pd, &mr) }
    }
    /// Never frees the memory: an adapter may still know it.
    pub(crate) fn leak(&mut self) {
        self.parts.drain(..).for_each(core::mem::forget);
    }
}

/// Zeroed memory that no adapter gave out.
fn of_program(len: usize) -> DmaMemory {
    let mut pages = vec![0_u128; len.div_ceil(size_of::<u128>())];
    let addr = NonNull::new(pages.as_mut_ptr()).expect("a vector has an address").cast();
    // SAFETY: zeroed memory of at least this length, which the vector frees when the part is dropped; moving the vector
    // leaves it where it is.
    unsafe { DmaMemory::new(addr, len, Box::new(pages)) }
}

/// Posts requests whose lists name memory of arenas only.
pub(crate) fn post_send(port: &mut dyn SendPort, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
    // SAFETY: (2) nobody makes references to an arena's memory; the workload writes no range that a
    // request in flight reads, which its ledger of ranges sees to.
    unsafe { port.post(wrs) }
}

/// Posts receive requests whose lists name memory of arenas only.
pub(crate) fn post_recv(port: &mut dyn RecvPort, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: (2) nobody makes references to an arena's memory.
    unsafe { port.post(wrs) }
}
