//! Adopted memory: memory of the program's own as buffers, and as memory that peers use.
//!
//! Invariants of the unsafe code:
//! 1. An [`Owner`] is boxed before its `bytes` are called, and is neither moved nor used until it is given back or
//!    dropped. By the contract of its trait its bytes stay at their address meanwhile, and no other code writes them.
//! 2. The region that holds the owner gives it out, or drops it, after the device has released the bytes.
#![allow(unsafe_code)]

use std::any::{Any, TypeId};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use hca_core::Access;
use thiserror::Error;

use crate::region::{Memory, Region};
use crate::{Buf, FrozenBuf, MemoryError, Pd, SharedMr};

/// An owner of bytes that no other code writes: `Vec<u8>`, `Box<[u8]>`; with the features of these names
/// `bytes::BytesMut` and `memmap2::MmapMut`.
///
/// # Safety
/// The bytes stay valid, initialised and at their address until the owner is used again or dropped, though the borrow
/// of [`bytes`](Self::bytes) has ended; until then no other code reads or writes them.
pub unsafe trait OwnedBytes: Send + Sync + 'static {
    /// The bytes.
    fn bytes(&mut self) -> &mut [u8];
}

/// An owner of bytes that are only read: `Arc<[u8]>`, `&'static [u8]`, `String`; with the features of these names
/// `bytes::Bytes` and `memmap2::Mmap`.
///
/// # Safety
/// The bytes stay valid, initialised and at their address until the owner is dropped, though the borrow of
/// [`bytes`](Self::bytes) has ended; until then no code writes them.
pub unsafe trait FrozenBytes: Send + Sync + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

// SAFETY: of all these the bytes lie on the heap or in a mapping, and stay there when the owner moves; the owner is the
// only way to them.
macro_rules! owned_bytes {
    ($($(#[$attr:meta])* $t:ty),+ $(,)?) => {$(
        $(#[$attr])*
        // SAFETY: as above.
        unsafe impl OwnedBytes for $t {
            fn bytes(&mut self) -> &mut [u8] {
                self
            }
        }
    )+};
}
owned_bytes!(
    Vec<u8>,
    Box<[u8]>,
    #[cfg(feature = "bytes")]
    bytes::BytesMut,
    #[cfg(feature = "memmap2")]
    memmap2::MmapMut,
);

// SAFETY: of all these the bytes lie on the heap, in a mapping or in the program, and are not written while the owner is
// there.
macro_rules! frozen_bytes {
    ($($(#[$attr:meta])* $t:ty),+ $(,)?) => {$(
        $(#[$attr])*
        // SAFETY: as above.
        unsafe impl FrozenBytes for $t {
            fn bytes(&self) -> &[u8] {
                self.as_ref()
            }
        }
    )+};
}
frozen_bytes!(
    Arc<[u8]>,
    &'static [u8],
    String,
    #[cfg(feature = "bytes")]
    bytes::Bytes,
    #[cfg(feature = "memmap2")]
    memmap2::Mmap,
);

/// An owner of a region's bytes, as the program gave it.
pub(crate) struct Owner {
    value: NonNull<dyn Any + Send + Sync>,
    /// Known without a look at the value (1).
    kind: TypeId,
}

// SAFETY: it owns the value, which may go to other threads and be seen by several.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// Boxes an owner, and asks for its bytes then (1).
    fn new<T: Send + Sync + 'static>(
        owner: T,
        bytes: impl FnOnce(&mut T) -> NonNull<[u8]>,
    ) -> (Self, NonNull<[u8]>) {
        let owner: *mut T = Box::into_raw(Box::new(owner));
        // SAFETY: it was just boxed, and no other reference exists.
        let bytes = bytes(unsafe { &mut *owner });
        // SAFETY: a box is never null.
        let value = unsafe { NonNull::new_unchecked(owner as *mut (dyn Any + Send + Sync)) };
        (Self { value, kind: TypeId::of::<T>() }, bytes)
    }

    /// Whether it is a `T`.
    pub(crate) fn is<T: 'static>(&self) -> bool {
        self.kind == TypeId::of::<T>()
    }

    /// The owner; the device has released its bytes (2).
    pub(crate) fn into_inner<T: 'static>(self) -> Option<T> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the box that `new` made, taken once.
        let boxed: Box<dyn Any + Send + Sync> = unsafe { Box::from_raw(this.value.as_ptr()) };
        boxed.downcast::<T>().ok().map(|value| *value)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the box that `new` made; it was not taken.
        drop(unsafe { Box::from_raw(self.value.as_ptr()) });
    }
}

impl Pd {
    /// Registers memory of the program's own, as a buffer: requests send from it and receive into it without a copy,
    /// and [`Buf::into_owner`] gives the owner back. Not every device can reach such memory
    /// ([`DeviceAttr::foreign_memory`](hca_core::DeviceAttr)), and each call is a registration: [`alloc`](Self::alloc)
    /// is better for many small buffers.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # async fn example(pd: &Pd, qp: &AsyncQp<Rc>) -> Result<(), Box<dyn std::error::Error>> {
    /// let text = vec![7_u8; 1 << 20];
    /// let buf = qp.send(pd.adopt(text)?).await?;
    /// let text: Vec<u8> = buf.into_owner().expect("all of it, and nobody else has it");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The device reaches only memory of its own, the length is 0 or too large, or the device has no more regions; the
    /// memory comes back.
    pub fn adopt<T: OwnedBytes>(&self, owner: T) -> Result<Buf, NotAdopted<T>> {
        let bytes = |owner: &mut T| NonNull::from(owner.bytes());
        self.adopt_owner(owner, Access::LOCAL_WRITE, bytes)
            .map(|(region, addr, len)| Buf::new(Arc::new(region), addr, len))
    }

    /// Registers memory of the program that is only read, like [`adopt`](Self::adopt): requests send from it, and
    /// [`FrozenBuf::into_owner`] gives the owner back.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub fn adopt_frozen<T: FrozenBytes>(&self, owner: T) -> Result<FrozenBuf, NotAdopted<T>> {
        let bytes = |owner: &mut T| NonNull::from(owner.bytes());
        // Frozen at once, and for ever: its region lets nobody write.
        self.adopt_owner(owner, Access::empty(), bytes)
            .map(|(region, addr, len)| Buf::new(Arc::new(region), addr, len).freeze())
    }

    /// Registers memory of the program's own as memory that peers read and write, like
    /// [`alloc_shared`](Self::alloc_shared). The owner is dropped with the last clone of the region.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub fn adopt_shared<T: OwnedBytes>(&self, owner: T, access: Access) -> Result<SharedMr, NotAdopted<T>> {
        let bytes = |owner: &mut T| NonNull::from(owner.bytes());
        self.adopt_owner(owner, access | Access::LOCAL_WRITE, bytes).map(|(region, ..)| SharedMr::new(region))
    }

    fn adopt_owner<T: Send + Sync + 'static>(
        &self,
        owner: T,
        access: Access,
        bytes: impl FnOnce(&mut T) -> NonNull<[u8]>,
    ) -> Result<(Region, NonNull<u8>, usize), NotAdopted<T>> {
        let attr = self.core.ctx.device.attr();
        if !attr.foreign_memory {
            return Err(NotAdopted {
                owner,
                error: MemoryError::ForeignMemory { device: attr.name.clone() },
            });
        }
        let (owner, bytes) = Owner::new(owner, bytes);
        let (addr, len) = (bytes.cast::<u8>(), bytes.len());
        let registered = self.core.ctx.check_region_len(len).and_then(|()| {
            // SAFETY: (1), (2): the region holds the owner from here on; what is read only is not written, as `access`
            // says.
            Ok(unsafe { Region::register(&self.core, addr, len, access, None)? })
        });
        match registered {
            Ok(mut region) => {
                region.hold(Memory::Program(owner));
                Ok((region, addr, len))
            }
            Err(error) => {
                let owner = owner.into_inner().expect("it was just given");
                Err(NotAdopted { owner, error })
            }
        }
    }
}

/// The error of an adoption, with the program's memory.
#[derive(Error)]
#[error("{error}")]
pub struct NotAdopted<T> {
    /// The memory, as it was given.
    pub owner: T,
    /// The reason.
    pub error: MemoryError,
}

impl<T> fmt::Debug for NotAdopted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
