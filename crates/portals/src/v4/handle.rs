//! Handles: each names an object of one kind, of one interface.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// The handle of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ptl_handle_ni_t")]
pub struct NiHandle(NonZeroU64);

impl NiHandle {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).expect("nobody opens 2^64 interfaces"))
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $raw:ident) => {
        $(#[$doc])*
        ///
        /// A handle of a freed object, or of another interface, is refused where it is used.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            ni: NiHandle,
            raw: hca_matching::$raw,
        }

        impl $name {
            pub(super) fn new(ni: NiHandle, raw: hca_matching::$raw) -> Self {
                Self { ni, raw }
            }
            /// The interface that the object belongs to.
            #[doc(alias = "PtlNIHandle")]
            pub fn ni(self) -> NiHandle {
                self.ni
            }
            /// The engine's handle, if it is of this interface.
            #[inline]
            pub(super) fn of(self, ni: NiHandle, argument: &'static str) -> Result<hca_matching::$raw, crate::Error> {
                if self.ni == ni { Ok(self.raw) } else { Err(foreign_handle(argument)) }
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({}:{:?})"), self.ni.0, self.raw)
            }
        }
    };
}

handle! { /// Names an initiator's memory descriptor.
#[doc(alias = "ptl_handle_md_t")] MdHandle, MdHandle }
handle! { /// Names an entry of an interface without matching.
#[doc(alias = "ptl_handle_le_t")] LeHandle, EntryHandle }
handle! { /// Names an entry of an interface with matching.
#[doc(alias = "ptl_handle_me_t")] MeHandle, EntryHandle }
impl MeHandle {
    /// The handle as the steps of a [trace](crate::trace) name it.
    pub fn traced(self) -> hca_matching::EntryHandle {
        self.raw
    }
}
impl LeHandle {
    /// The handle as the steps of a [trace](crate::trace) name it.
    pub fn traced(self) -> hca_matching::EntryHandle {
        self.raw
    }
}
handle! { /// Names an event queue.
#[doc(alias = "ptl_handle_eq_t")] EqHandle, EqHandle }
handle! { /// Names a counting event.
#[doc(alias = "ptl_handle_ct_t")] CtHandle, CtHandle }

#[cold]
fn foreign_handle(argument: &'static str) -> crate::Error {
    crate::Error::Argument { argument, why: "is a handle of another interface" }
}
