//! Registered memory of a check.
//!
//! Invariants:
//! 1. While a [`Mem`] is registered its bytes are accessed through atomics and the copies of `hca-dma` only, never
//!    through references to plain data: adapters and peers change them meanwhile.
//! 2. The region is deregistered before its memory is freed.
//! 3. While it is not registered no other code accesses the bytes, and a holder with exclusive access may read and
//!    write them.
#![allow(unsafe_code)]

use core::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use hca_core::{Access, DeviceError, DmaMemory, MrHandle, MrInit, MrKeys, RemoteAddr, Sge};

use crate::node::{Node, Pd};
use crate::world::lock;

/// Pages that were mapped.
struct Pages(NonNull<u8>, usize);
// SAFETY: it only ends the mapping.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: (2) nothing uses them any more.
        let gone = unsafe { munmap(self.0.as_ptr().cast(), self.1) };
        gone.expect("what was mapped is unmapped");
    }
}

/// Memory from the device, registered.
pub(crate) struct Mem {
    pd: Arc<Pd>,
    keys: MrKeys,
    iova: u64,
    len: usize,
    access: Access,
    live: Mutex<bool>,
    memory: DmaMemory,
}

impl Node {
    /// `len` zeroed bytes with these rights.
    pub(crate) fn mem(&self, len: usize, access: Access) -> Mem {
        Mem::register(self.pd.clone(), len, access, None)
    }
    /// Memory that requests name by addresses from `iova` on.
    pub(crate) fn mem_at(&self, len: usize, access: Access, iova: u64) -> Mem {
        Mem::register(self.pd.clone(), len, access, Some(iova))
    }
    /// Memory of the program's own, which begins 24 bytes behind a page.
    pub(crate) fn foreign_mem(&self, len: usize, access: Access) -> Mem {
        const AFTER: usize = 24;
        let mut owner = vec![0_u64; (len + 4096 + AFTER).div_ceil(8)].into_boxed_slice();
        let start = owner.as_mut_ptr().cast::<u8>();
        let skip = start.align_offset(4096) + AFTER;
        // SAFETY: (1) the bytes lie within `owner`, which holds 4095 and `AFTER` more than `len`, is zeroed, and is
        // not touched until it is dropped.
        let memory = unsafe {
            let addr = NonNull::new_unchecked(start.add(skip));
            DmaMemory::new(addr, len, Box::new(owner))
        };
        Mem::register_memory(self.pd.clone(), memory, len, access, None)
    }
    /// Memory of the program's own that holds `bytes`, and that nobody writes to: its pages are read-only.
    pub(crate) fn read_only_mem(&self, bytes: &[u8], access: Access) -> Mem {
        let (len, flags) = (bytes.len(), MapFlags::PRIVATE);
        // SAFETY: (3) pages of their own, which are written to before anything else knows them.
        let addr = unsafe {
            let at =
                mmap_anonymous(ptr::null_mut(), len, ProtFlags::WRITE, flags).expect("the system has memory");
            at.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len);
            mprotect(at, len, MprotectFlags::READ).expect("memory may be read-only");
            NonNull::new_unchecked(at.cast::<u8>())
        };
        // SAFETY: (1) the pages stay until their owner is dropped.
        let memory = unsafe { DmaMemory::new(addr, len, Box::new(Pages(addr, len))) };
        Mem::register_memory(self.pd.clone(), memory, len, access, None)
    }
    /// Tries to register `len` bytes of fresh memory and takes the registration back.
    pub(crate) fn try_reg(&self, pd: hca_core::PdHandle, len: usize) -> Result<(), DeviceError> {
        self.try_reg_for(pd, len, Access::LOCAL_WRITE)
    }
    /// The same with these rights.
    pub(crate) fn try_reg_for(
        &self,
        pd: hca_core::PdHandle,
        len: usize,
        access: Access,
    ) -> Result<(), DeviceError> {
        let memory = self.dev().alloc_memory(4096)?;
        let addr = memory.addr();
        let init = MrInit { addr, len, iova: addr.as_ptr() as u64, access };
        // SAFETY: (2) nothing uses the region, and it goes before `memory`. A `len` beyond the memory is
        // used with a length that has to be refused only.
        let keys = unsafe { self.dev().reg_mr(pd, &init) }?;
        self.dev().dereg_mr(keys.handle)
    }
}

impl Mem {
    fn register(pd: Arc<Pd>, len: usize, access: Access, iova: Option<u64>) -> Self {
        let memory = pd.dev.alloc_memory(len).expect("the device has memory");
        assert_eq!(memory.addr().as_ptr() as usize % 4096, 0, "memory of a device is aligned to 4096 bytes");
        assert!(memory.len() >= len);
        Self::register_memory(pd, memory, len, access, iova)
    }

    fn register_memory(
        pd: Arc<Pd>,
        memory: DmaMemory,
        len: usize,
        access: Access,
        iova: Option<u64>,
    ) -> Self {
        let addr = memory.addr();
        let iova = iova.unwrap_or(addr.as_ptr() as u64);
        // SAFETY: (2) `drop` deregisters before it frees, and (1) no reference to the bytes is made.
        let keys = unsafe { pd.dev.reg_mr(pd.handle, &MrInit { addr, len, iova, access }) }
            .expect("the region is registered");
        Self { pd, keys, iova, len, access, live: Mutex::new(true), memory }
    }

    /// Writes all bytes at once while they are not registered.
    pub(crate) fn replace(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        assert_eq!(bytes.len(), self.len);
        self.dereg()?;
        // SAFETY: (3), and `memory` holds at least `len` bytes.
        unsafe { self.memory.addr().as_ptr().copy_from(bytes.as_ptr(), self.len) };
        self.register_again()
    }
    /// Takes the keys back if that was not done, and yields the bytes.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>, DeviceError> {
        if *lock(&self.live) {
            self.dereg()?;
        }
        // SAFETY: (3), and `memory` holds at least `len` bytes, all of which were zeroed once.
        Ok(unsafe { core::slice::from_raw_parts(self.memory.addr().as_ptr(), self.len) }.to_vec())
    }
    /// Registers the same bytes again, whether or not they are registered; other keys are theirs now.
    pub(crate) fn register_again(&mut self) -> Result<(), DeviceError> {
        if *lock(&self.live) {
            self.dereg()?;
        }
        let init = MrInit { addr: self.memory.addr(), len: self.len, iova: self.iova, access: self.access };
        // SAFETY: (1) and (2), as when it was registered at first.
        self.keys = unsafe { self.pd.dev.reg_mr(self.pd.handle, &init) }?;
        *lock(&self.live) = true;
        Ok(())
    }

    /// Moves the region to a domain of its adapter, with these rights.
    pub(crate) fn rereg(&mut self, to: &Node, access: Access) -> Result<(), DeviceError> {
        self.keys = self.pd.dev.rereg_mr(self.keys.handle, to.pd.handle, access)?;
        (self.pd, self.access) = (to.pd.clone(), access);
        Ok(())
    }

    /// What the device gave.
    pub(crate) fn keys(&self) -> MrKeys {
        self.keys
    }
    /// The handle.
    pub(crate) fn handle(&self) -> MrHandle {
        self.keys.handle
    }
    /// An entry for `len` bytes from `offset` on.
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.iova + offset as u64, len: u32::try_from(len).unwrap(), lkey: self.keys.lkey }
    }
    /// The address by which peers name the byte at `offset`, which may lie outside.
    pub(crate) fn remote(&self, offset: i64) -> RemoteAddr {
        RemoteAddr { addr: self.iova.wrapping_add_signed(offset), rkey: self.keys.rkey }
    }
    /// Takes the keys back.
    pub(crate) fn dereg(&self) -> Result<(), DeviceError> {
        let r = self.pd.dev.dereg_mr(self.keys.handle);
        if r.is_ok() {
            *lock(&self.live) = false;
        }
        r
    }

    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset + len <= self.memory.len());
        // SAFETY: the assertion keeps it inside of the allocation.
        unsafe { self.memory.addr().add(offset) }
    }
    /// The word at `offset`, a multiple of 8.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % 8, 0);
        // SAFETY: (1) valid as long as `self`, and only reached through atomics; memory and offset are aligned to 8 bytes.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).as_ptr().cast()) }
    }
    /// Writes bytes at `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: (1) the copy makes no reference; `at` keeps it inside of the allocation.
        unsafe { hca_dma::store(self.at(offset, bytes.len()).as_ptr(), bytes) };
    }
    /// Reads `len` bytes at `offset`.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        // SAFETY: (1) the copy makes no reference; `at` keeps it inside of the allocation.
        unsafe { hca_dma::load(self.at(offset, len).as_ptr(), &mut out) };
        out
    }
    /// Fills all of it with one byte.
    pub(crate) fn fill(&self, byte: u8) {
        self.write(0, &vec![byte; self.len]);
    }
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Fails unless the bytes at `offset` are these.
    #[track_caller]
    pub(crate) fn assert_bytes(&self, offset: usize, want: &[u8]) {
        let got = self.read(offset, want.len());
        // Whole slices first: byte by byte, without optimisation, takes a fifth of the suite's time.
        if got != want {
            let i = (0..want.len()).find(|&i| got[i] != want[i]).expect("they differ");
            panic!("byte {i} of {} at offset {offset} is {:#04x}, not {:#04x}", want.len(), got[i], want[i]);
        }
    }
    /// Fails unless all bytes outside of `offset .. offset + len` are `byte`.
    #[track_caller]
    pub(crate) fn assert_untouched_but(&self, offset: usize, len: usize, byte: u8) {
        let all = self.read(0, self.len());
        let mut want = vec![byte; all.len()];
        let (start, end) = (offset.min(all.len()), (offset + len).min(all.len()));
        want[start..end].copy_from_slice(&all[start..end]);
        if all != want {
            let i = (0..all.len()).find(|&i| all[i] != want[i]).expect("they differ");
            panic!("byte {i} was written ({:#04x}), outside of {offset}..{}", all[i], offset + len);
        }
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        if *lock(&self.live) {
            let _ = self.pd.dev.dereg_mr(self.keys.handle);
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_ne_bytes());
    }
    out.truncate(len);
    out
}
