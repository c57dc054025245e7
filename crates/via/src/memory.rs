//! Protection tags, registered memory, and the table of memory handles.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use hca_process::Fork;
use hca_verbs::{Access, Context, Pd, RemoteMr, SharedMr, SharedRange};
use rustc_hash::FxHashMap;

use crate::{Descriptor, Error, lock};

/// A memory handle: names registered memory in descriptors, here and at peers. It goes over the wire as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemHandle(pub u32);

/// A protection tag. VIs use only memory of their own tag. Clones are the same tag. From
/// [`Nic::create_ptag`](crate::Nic::create_ptag).
#[derive(Clone)]
pub struct Ptag(Arc<Tag>);

struct Tag {
    id: u64,
    pd: Pd,
}

impl Ptag {
    pub(crate) fn create(context: &Context) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Arc::new(Tag { id, pd: context.alloc_pd()? })))
    }
    pub(crate) fn pd(&self) -> &Pd {
        &self.0.pd
    }
    pub(crate) fn is_of(&self, context: &Context) -> bool {
        Arc::ptr_eq(self.0.pd.context().device(), context.device())
    }
    /// Whether the tag can be [destroyed](Self::destroy) now.
    ///
    /// # Errors
    /// Clones, VIs or memory have the tag.
    pub fn check_unused(&self) -> Result<(), Error> {
        match Arc::strong_count(&self.0) - 1 {
            0 => Ok(()),
            users => Err(Error::InUse { what: "the protection tag", users }),
        }
    }
    /// Destroys the tag (`VipDestroyPtag`).
    ///
    /// # Errors
    /// Clones, VIs or memory have the tag. The error gives the tag back.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.check_unused() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

impl PartialEq for Ptag {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Ptag {}
impl fmt::Debug for Ptag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ptag({})", self.0.id)
    }
}

/// The attributes of registered memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemAttributes {
    /// The protection tag.
    pub ptag: Ptag,
    /// Whether peers may write by RDMA.
    pub enable_rdma_write: bool,
    /// Whether peers may read by RDMA.
    pub enable_rdma_read: bool,
}

impl MemAttributes {
    /// Attributes of memory that peers neither write nor read by RDMA.
    pub fn new(ptag: &Ptag) -> Self {
        Self { ptag: ptag.clone(), enable_rdma_write: false, enable_rdma_read: false }
    }
    /// Attributes of memory that peers write and read by RDMA.
    pub fn rdma(ptag: &Ptag) -> Self {
        Self { ptag: ptag.clone(), enable_rdma_write: true, enable_rdma_read: true }
    }
    pub(crate) fn access(&self) -> Access {
        let mut access = Access::empty();
        access.set(Access::REMOTE_WRITE, self.enable_rdma_write);
        access.set(Access::REMOTE_READ, self.enable_rdma_read);
        access
    }
}

/// A registered region, held by the table, by the program and by posted descriptors.
pub(crate) struct Region {
    mr: SharedMr,
    addr: u64,
    len: usize,
    pub(crate) handle: MemHandle,
    attributes: MemAttributes,
}

impl Region {
    fn new(mr: SharedMr, attributes: MemAttributes) -> Self {
        let RemoteMr { addr, rkey, .. } = mr.remote();
        Self { addr, len: mr.len(), handle: MemHandle(rkey.raw()), mr, attributes }
    }
    /// The offset of an address, if that many bytes lie inside.
    #[inline]
    pub(crate) fn offset(&self, addr: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(addr.checked_sub(self.addr)?).ok()?;
        (offset <= self.len && len <= self.len - offset).then_some(offset)
    }
    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }
    #[inline]
    pub(crate) fn is_of(&self, ptag: &Ptag) -> bool {
        self.attributes.ptag == *ptag
    }
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    #[inline]
    pub(crate) fn mr(&self) -> &SharedMr {
        &self.mr
    }
    #[inline]
    pub(crate) fn range(&self, offset: usize, len: usize) -> SharedRange {
        self.mr.range(offset..offset + len)
    }
}

/// The memory handles of an adapter.
#[derive(Default)]
pub(crate) struct MemTable(RwLock<FxHashMap<MemHandle, Arc<Region>>>);

impl MemTable {
    pub(crate) fn find(&self, handle: MemHandle) -> Option<Arc<Region>> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(&handle).cloned()
    }
    fn put(&self, region: &Arc<Region>) {
        lock::write(&self.0).insert(region.handle, Arc::clone(region));
    }
    fn take(&self, handle: MemHandle) {
        lock::write(&self.0).remove(&handle);
    }
    pub(crate) fn len(&self) -> usize {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).len()
    }
}

/// Registered memory, with its handle. From [`Nic::alloc`](crate::Nic::alloc) or
/// [`Nic::register`](crate::Nic::register).
///
/// Descriptors and data lie in it. Peers and VIs may change it at any time, so it is never a slice: the program copies
/// in and out. It stays registered until it is [deregistered](Self::deregister), or until the last clone is dropped and
/// no posted descriptor needs it.
#[derive(Clone)]
pub struct Memory(Arc<Owner>);

/// The program's side of a region.
struct Owner {
    region: Arc<Region>,
    table: Arc<MemTable>,
    fork: Fork,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child the table may be locked for ever.
        if !self.fork.is_child() {
            self.table.take(self.region.handle);
        }
    }
}

impl Memory {
    pub(crate) fn new(table: &Arc<MemTable>, mr: SharedMr, attributes: MemAttributes) -> Self {
        let region = Arc::new(Region::new(mr, attributes));
        table.put(&region);
        Self(Arc::new(Owner { region, table: Arc::clone(table), fork: Fork::new() }))
    }
    /// The handle, by which descriptors name the memory.
    #[inline]
    pub fn handle(&self) -> MemHandle {
        self.0.region.handle
    }
    /// The address of the first byte, which is a multiple of 4096 for memory of [`Nic::alloc`](crate::Nic::alloc).
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.region.addr
    }
    /// The length in bytes; at least 1.
    #[allow(clippy::len_without_is_empty)] // it has at least one byte
    pub fn len(&self) -> usize {
        self.0.region.len
    }
    /// The protection tag and the rights of peers (`VipQueryMem`).
    pub fn attributes(&self) -> &MemAttributes {
        &self.0.region.attributes
    }
    /// The descriptor at an offset.
    ///
    /// # Errors
    /// The address is no multiple of 64, or a control segment does not lie inside.
    pub fn descriptor(&self, offset: usize) -> Result<Descriptor, Error> {
        let addr = self.addr().wrapping_add(offset as u64);
        Descriptor::at(Arc::clone(&self.0.region), addr)
    }
    /// Copies from `offset` on into `out`.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[inline]
    #[track_caller]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        self.0.region.mr.read_at(offset, out);
    }
    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[inline]
    #[track_caller]
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        self.0.region.mr.write_at(offset, data);
    }
    /// As [`write_at`](Self::write_at), so that a peer on another processor of this machine reads the bytes quickly,
    /// where that is past the caches of this processor: this one reads them more slowly.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[track_caller]
    pub fn pass_at(&self, offset: usize, data: &[u8]) {
        self.0.region.mr.pass_at(offset, data);
    }
    /// A copy of `len` bytes from `offset` on.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[track_caller]
    pub fn to_vec(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read_at(offset, &mut out);
        out
    }

    /// Deregisters the memory (`VipDeregisterMem`). On return neither peers nor VIs access it. Descriptors elsewhere
    /// whose segments lie in it complete with a protection error.
    ///
    /// # Errors
    /// Clones exist, or queues have descriptors that lie in it; or the device refused. The error gives the memory back.
    pub fn deregister(self) -> Result<(), (Self, Error)> {
        let region = self.alone()?;
        let memory = Self(region);
        match memory.0.region.mr.revoke() {
            Ok(()) => Ok(()),
            Err(error) => {
                memory.0.table.put(&memory.0.region);
                Err((memory, error.into()))
            }
        }
    }
    /// Takes the memory out of the table, if nothing but this clone and the table holds it.
    fn alone(self) -> Result<Arc<Owner>, (Self, Error)> {
        // No post looks meanwhile: one finds the memory, or does not because it is alone.
        let mut all = lock::write(&self.0.table.0);
        let users = Arc::strong_count(&self.0) - 1 + Arc::strong_count(&self.0.region) - 2;
        if users > 0 {
            drop(all);
            return Err((self, Error::InUse { what: "the memory", users }));
        }
        all.remove(&self.handle());
        drop(all);
        Ok(self.0)
    }
    /// Sets the attributes (`VipSetMemAttributes`). The memory keeps its addresses and its bytes. Its handle changes:
    /// the device gives it another key.
    ///
    /// # Errors
    /// Clones exist, or descriptors that lie in it are posted; or the device refused. The error gives the memory back,
    /// as it was.
    pub fn set_attributes(self, attributes: &MemAttributes) -> Result<Self, (Self, Error)> {
        if !attributes.ptag.is_of(&self.attributes().ptag.pd().context()) {
            return Err((self, Error::Ptag));
        }
        let owner = self.alone()?;
        let (region, table) = (Arc::clone(&owner.region), Arc::clone(&owner.table));
        drop(owner);
        let Region { mut mr, attributes: old, .. } =
            Arc::into_inner(region).expect("the owner was the only holder");
        match mr.rereg(attributes.ptag.pd(), attributes.access()) {
            Ok(()) => Ok(Self::new(&table, mr, attributes.clone())),
            Err(error) => Err((Self::new(&table, mr, old), error.into())),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} bytes, handle {:#x})", self.addr(), self.len(), self.handle().0)
    }
}
