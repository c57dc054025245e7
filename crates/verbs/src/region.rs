//! Registered regions, which all their parts keep alive.
//!
//! Invariants of the unsafe code:
//! 1. `base .. base + len` is valid from registration until the region is dropped: it is the device's own memory, held
//!    in `memory`, or memory of a program that guaranteed so ([`crate::Pd::register`]).
//! 2. Memory is freed only after `dereg_mr` has confirmed that the device no longer accesses it; otherwise it is leaked
//!    and logged.
#![allow(unsafe_code)]

use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hca_core::{Access, DeviceError, DmaMemory, Lkey, MrInit, MrKeys};

use crate::adopt::Owner;
use crate::arena::FreeRanges;
use crate::pd::PdCore;
use crate::shared::SharedBytes;

/// The owner of a region's bytes.
pub(crate) enum Memory {
    Dma(#[allow(dead_code)] DmaMemory), // held, never read
    Program(Owner),
}

/// A registered region.
pub(crate) struct Region {
    pub(crate) pd: Arc<PdCore>,
    keys: MrKeys,
    bytes: SharedBytes,
    access: Access,
    memory: Option<Memory>,
    /// The free ranges, if parts of the region are allocated.
    free: Option<Mutex<FreeRanges>>,
    /// The device has released the memory already.
    revoked: AtomicBool,
}

impl Region {
    /// Registers memory of the device's own.
    pub(crate) fn create(pd: &Arc<PdCore>, len: usize, access: Access) -> Result<Self, DeviceError> {
        let memory = pd.ctx.device.alloc_memory(len)?;
        let addr = memory.addr();
        // SAFETY: (1), (2): `memory` is held by the region and released after `dereg_mr`; `DmaMemory` is zeroed and has
        // no other user.
        unsafe { Self::register(pd, addr, len, access, Some(Memory::Dma(memory))) }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// `addr .. addr + len` stays valid until the region is dropped, and is touched as memory that
    /// others change.
    pub(crate) unsafe fn register(
        pd: &Arc<PdCore>,
        addr: NonNull<u8>,
        len: usize,
        access: Access,
        memory: Option<Memory>,
    ) -> Result<Self, DeviceError> {
        let init = MrInit { addr, len, iova: addr.addr().get() as u64, access };
        // SAFETY: as the caller promised.
        let keys = unsafe { pd.ctx.device.reg_mr(pd.handle, &init)? };
        // SAFETY: (1), as the caller promised.
        let bytes = unsafe { SharedBytes::new(addr, len) };
        let revoked = AtomicBool::new(false);
        Ok(Self { pd: Arc::clone(pd), keys, bytes, access, memory, free: None, revoked })
    }

    /// The region as one of which parts are given out.
    pub(crate) fn into_arena(mut self) -> Self {
        self.free = Some(Mutex::new(FreeRanges::new(self.len())));
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.bytes.addr()
    }
    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }
    pub(crate) fn access(&self) -> Access {
        self.access
    }
    pub(crate) fn keys(&self) -> &MrKeys {
        &self.keys
    }
    #[inline]
    pub(crate) fn lkey(&self) -> Lkey {
        self.keys.lkey
    }

    /// Moves the region to another protection domain of the device and changes its rights.
    pub(crate) fn rereg(&mut self, pd: &Arc<PdCore>, access: Access) -> Result<(), DeviceError> {
        self.keys = pd.ctx.device.rereg_mr(self.keys.handle, pd.handle, access)?;
        (self.pd, self.access) = (Arc::clone(pd), access);
        Ok(())
    }

    /// Takes `len` zeroed bytes out of an arena; `None` if it has no such piece.
    pub(crate) fn carve(&self, len: usize) -> Option<NonNull<u8>> {
        let free = self.free.as_ref()?;
        let carved = free.lock().unwrap_or_else(PoisonError::into_inner).carve(len)?;
        // SAFETY: (1); `carve` gives out bytes inside of the region, each to one owner at a time.
        unsafe {
            let addr = self.base().add(carved.start);
            addr.write_bytes(0, carved.dirty);
            Some(addr)
        }
    }

    /// Takes a part back; without meaning for a region that is no arena.
    pub(crate) fn give_back(&self, addr: NonNull<u8>, len: usize) {
        if let Some(free) = &self.free {
            let start = addr.addr().get() - self.base().addr().get();
            free.lock().unwrap_or_else(PoisonError::into_inner).give_back(start, len);
        }
    }

    /// Holds the owner of the bytes from here on.
    pub(crate) fn hold(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// Deregisters the region, and returns the program's owner of the bytes. `None`: the owner is not a `T`, or the
    /// device does not release the memory; the region is unchanged.
    pub(crate) fn take_owner<T: 'static>(&mut self) -> Option<T> {
        let is_t = matches!(&self.memory, Some(Memory::Program(owner)) if owner.is::<T>());
        if !is_t || self.pd.ctx.forked() || self.revoke().is_err() {
            return None;
        }
        match self.memory.take() {
            Some(Memory::Program(owner)) => owner.into_inner(),
            _ => None,
        }
    }

    /// Takes the keys back; on return the device touches the memory no more.
    pub(crate) fn revoke(&self) -> Result<(), DeviceError> {
        if !self.revoked.swap(true, Ordering::AcqRel)
            && let Err(e) = self.pd.ctx.device.dereg_mr(self.keys.handle)
        {
            self.revoked.store(false, Ordering::Release);
            return Err(e);
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let let_go = if self.pd.ctx.forked() {
            false
        } else {
            self.revoke()
                .inspect_err(|error| {
                    tracing::error!(region = %self.keys.handle, len = self.len(), %error, "leaking memory: the device does not release it");
                })
                .is_ok()
        };
        if !let_go {
            mem::forget(self.memory.take());
        }
    }
}
