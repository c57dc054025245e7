//! Memory of the workload that adapters read and write.
//!
//! Invariants:
//! 1. `addr .. addr + len` was allocated with this layout and is freed in `drop` only.
//! 2. Nobody makes a reference to it: the simulation copies bytes in and out here, the adapter by its
//!    own means, and both run on one thread, so that accesses don't race.
//! 3. It outlives every registration: whoever registered it drops it after the adapter, or after
//!    `dereg_mr` has returned; else [`Arena::leak`] is called.
#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use hca_core::{
    Access, Device, DeviceError, MrInit, MrKeys, PdHandle, PostError, RecvPort, RecvWr, SendPort, SendWr,
};

/// A zeroed piece of memory, reached by copies only.
pub(crate) struct Arena {
    addr: NonNull<u8>,
    layout: Layout,
    /// By which requests name the first byte: the same in every run, as true addresses are not.
    iova: u64,
    leaked: bool,
}

impl Arena {
    pub(crate) fn new(len: usize, iova: u64) -> Self {
        let layout = Layout::from_size_align(len, 4096).expect("an arena is small");
        assert!(len > 0, "an arena has bytes");
        // SAFETY: the layout's size is not zero.
        let Some(addr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self { addr, layout, iova, leaked: false }
    }
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
    /// Address of an offset, as requests name it.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.iova + at as u64
    }
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len(), "{at} + {} lies in the arena", bytes.len());
        // SAFETY: (1) and the check above: the range is ours; (2) nobody else accesses it now.
        unsafe { self.addr.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
    pub(crate) fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len(), "{range:?} lies in the arena");
        let mut out = vec![0; range.len()];
        // SAFETY: (1) and the check above: the range is ours; (2) nobody else accesses it now.
        unsafe { self.addr.as_ptr().add(range.start).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
        out
    }
    /// The first difference between the memory at `at` and `expected`, and what is found there.
    pub(crate) fn difference(&self, at: usize, expected: &[u8]) -> Option<(usize, u8)> {
        const STEP: usize = 4096;
        for (n, part) in expected.chunks(STEP).enumerate() {
            let found = self.read(at + n * STEP..at + n * STEP + part.len());
            if found != part {
                let i = (0..part.len()).find(|i| found[*i] != part[*i]).expect("the slices differ");
                return Some((n * STEP + i, found[i]));
            }
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
        assert!(range.end <= self.len(), "{range:?} lies in the arena");
        // SAFETY: (1) and the check above: the offset is within the allocation.
        let addr = unsafe { self.addr.add(range.start) };
        let mr = MrInit { addr, len: range.len(), iova: self.address(range.start), access };
        // SAFETY: (3) the memory outlives the registration, (2) nobody makes references to it.
        unsafe { device.reg_mr(pd, &mr) }
    }
    /// Never frees the memory: an adapter may still know it.
    pub(crate) fn leak(&mut self) {
        self.leaked = true;
    }
}
impl Drop for Arena {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: (1), and (3): no adapter knows it any more.
            unsafe { dealloc(self.addr.as_ptr(), self.layout) }
        }
    }
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
