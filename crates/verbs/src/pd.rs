//! Protection domains, and the memory in them.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use hca_core::{Access, AddressVector, DeviceError, PdHandle, SrqInit};

use crate::ah::AddressHandle;
use crate::buf::Buf;
use crate::builder::QpBuilder;
use crate::context::Ctx;
use crate::cq::CqRef;
use crate::mr::SharedMr;
use crate::region::Region;
use crate::service::Service;
use crate::srq::Srq;
use crate::{Context, MemoryError, MemoryWindow, QpWindow};

/// The first arena's size; each further one is as large as all before it, up to [`MAX_ARENA`].
const MIN_ARENA: usize = 1 << 20;
/// The largest arena.
const MAX_ARENA: usize = 64 << 20;
/// Requests of at least this many bytes get a region of their own.
const OWN_REGION: usize = 256 << 10;

/// A protection domain: a queue pair can use memory of its own protection domain only.
///
/// Cheap to clone. The device's domain is freed when the last clone, and the last object made from it, is dropped.
#[derive(Clone)]
pub struct Pd {
    pub(crate) core: Arc<PdCore>,
    arenas: Arc<Mutex<Arenas>>,
}

/// What everything in a protection domain holds on to.
pub(crate) struct PdCore {
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) handle: PdHandle,
}

#[derive(Default)]
struct Arenas {
    regions: Vec<Arc<Region>>,
    total: usize,
}

impl Pd {
    pub(crate) fn create(ctx: Arc<Ctx>) -> Result<Self, DeviceError> {
        let handle = ctx.device.alloc_pd()?;
        Ok(Self { core: Arc::new(PdCore { ctx, handle }), arenas: Arc::default() })
    }

    /// The context of the protection domain.
    pub fn context(&self) -> Context {
        Context { ctx: Arc::clone(&self.core.ctx) }
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> PdHandle {
        self.core.handle
    }

    /// Allocates `len` zeroed bytes for local use: as the source of sends, and as the destination of receives, READs
    /// and atomics.
    ///
    /// Small ones are parts of arenas that are registered once (1 MiB and more), so allocation costs no registration;
    /// dropped parts are reused. From 256 KiB on, each allocation has a region of its own, which is deregistered when
    /// its last part is dropped. Arenas stay until the protection domain and all their parts are gone.
    ///
    /// # Errors
    /// The device has no more memory, or no room for another region.
    pub fn alloc(&self, len: usize) -> Result<Buf, MemoryError> {
        if len >= OWN_REGION {
            self.core.ctx.check_region_len(len)?;
            let region = Arc::new(Region::create(&self.core, len, Access::LOCAL_WRITE)?);
            let addr = region.base();
            return Ok(Buf::new(region, addr, len));
        }
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        for region in arenas.regions.iter().rev() {
            if let Some(addr) = region.carve(len) {
                return Ok(Buf::new(Arc::clone(region), addr, len));
            }
        }
        let max = usize::try_from(self.core.ctx.device.attr().max_mr_bytes).unwrap_or(usize::MAX);
        let size = arenas.total.clamp(MIN_ARENA, MAX_ARENA).min(max);
        self.core.ctx.check_region_len(len.max(1))?;
        let region = Arc::new(Region::create(&self.core, size, Access::LOCAL_WRITE)?.into_arena());
        let addr = region.carve(len).expect("a fresh arena is longer than any part");
        arenas.total += size;
        arenas.regions.push(Arc::clone(&region));
        Ok(Buf::new(region, addr, len))
    }

    /// Allocates `count` buffers of `len` bytes each, like [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// Like [`alloc`](Self::alloc); the buffers allocated so far are freed.
    pub fn alloc_many(&self, count: usize, len: usize) -> Result<Vec<Buf>, MemoryError> {
        (0..count).map(|_| self.alloc(len)).collect()
    }

    /// Allocates `len` zeroed bytes in a region of their own, aligned to 4096 bytes. Peers have the rights of `access`,
    /// and local requests have all rights.
    ///
    /// # Errors
    /// The length is 0 or too large, or the device has no more memory or regions.
    pub fn alloc_shared(&self, len: usize, access: Access) -> Result<SharedMr, MemoryError> {
        self.core.ctx.check_region_len(len)?;
        Ok(SharedMr::new(Region::create(&self.core, len, access | Access::LOCAL_WRITE)?))
    }

    /// Registers memory of the program's own, if the device can reach such memory
    /// (`DeviceAttr::foreign_memory`).
    ///
    /// # Safety
    /// `addr .. addr + len` is valid for reads and writes until all clones and ranges of the region are
    /// dropped and all requests with its keys have completed, or [`SharedMr::revoke`] has succeeded. Meanwhile no
    /// reference to these bytes is used, and the program touches them only through the region, or by
    /// atomic or volatile access.
    ///
    /// # Errors
    /// The device reaches only memory of its own, the length is 0 or too large, or the device has no more regions.
    #[allow(unsafe_code)] // hands the caller's promise on
    pub unsafe fn register(
        &self,
        addr: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<SharedMr, MemoryError> {
        let attr = self.core.ctx.device.attr();
        if !attr.foreign_memory {
            return Err(MemoryError::ForeignMemory { device: attr.name.clone() });
        }
        self.core.ctx.check_region_len(len)?;
        // SAFETY: as the caller promised.
        let region = unsafe { Region::register(&self.core, addr, len, access | Access::LOCAL_WRITE, None)? };
        Ok(SharedMr::new(region))
    }

    /// Creates a memory window of type 1, which is bound by a call.
    ///
    /// # Errors
    /// The device's limit, or it has no memory windows (`Abilities::max_mw`).
    pub fn alloc_window(&self) -> Result<MemoryWindow, DeviceError> {
        MemoryWindow::create(&self.core)
    }
    /// Creates a memory window of type 2, which is bound by a request of a queue pair.
    ///
    /// # Errors
    /// As for [`alloc_window`](Self::alloc_window).
    pub fn alloc_qp_window(&self) -> Result<QpWindow, DeviceError> {
        QpWindow::create(&self.core)
    }

    /// Begins to build a queue pair whose queues both complete on `cq`.
    pub fn qp<S: Service>(&self, cq: impl AsRef<CqRef>) -> QpBuilder<'_, S> {
        QpBuilder::new(self, cq.as_ref().clone())
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// The device's limits.
    pub fn create_srq(&self, init: SrqInit) -> Result<Srq, DeviceError> {
        Srq::create(&self.core, init, init.max_wr)
    }
    /// As [`create_srq`](Self::create_srq), of a queue that [`Srq::resize`] may give room for up to `most` outstanding
    /// requests. Completion queues of its queue pairs have entries for as many.
    ///
    /// # Errors
    /// The device's limits.
    pub fn create_srq_up_to(&self, init: SrqInit, most: u32) -> Result<Srq, DeviceError> {
        Srq::create(&self.core, init, most)
    }

    /// Creates an address handle, the path of datagrams.
    ///
    /// # Errors
    /// The device's limits, or no path.
    pub fn create_ah(&self, av: &AddressVector) -> Result<AddressHandle, DeviceError> {
        AddressHandle::create(&self.core, av)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pd").field(&self.core.handle).finish()
    }
}

impl Drop for PdCore {
    fn drop(&mut self) {
        if !self.ctx.forked()
            && let Err(error) = self.ctx.device.dealloc_pd(self.handle)
        {
            tracing::error!(pd = ?self.handle, %error, "the device keeps the protection domain");
        }
    }
}
