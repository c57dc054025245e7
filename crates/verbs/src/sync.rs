//! The primitives of the slots, which loom replaces in its models.

#[cfg(loom)]
pub(crate) use loom::{
    sync::Arc,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

pub(crate) use hca_turn_lock::{CachePadded, UnsafeCell};
