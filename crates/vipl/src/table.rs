//! Handles: numbers that name objects. A number is given once, so that a stale handle names nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use crate::abi::{Code, Result};

/// A handle of any kind, as C programs hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct Handle(usize);

impl Handle {
    /// The null pointer.
    pub(crate) const NONE: Self = Self(0);

    #[cfg(any(test, fuzzing))]
    pub(crate) const fn of(raw: usize) -> Self {
        Self(raw)
    }
    #[cfg(any(test, fuzzing))]
    pub(crate) const fn raw(self) -> usize {
        self.0
    }
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
    /// A handle that no object had.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The objects of a kind.
pub(crate) struct Table<T>(LazyLock<RwLock<HashMap<Handle, Arc<T>>>>);

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(RwLock::default))
    }
    /// The object that a handle names.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>> {
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(&handle).cloned().ok_or(Code::InvalidParameter)
    }
    pub(crate) fn put(&self, handle: Handle, object: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(object));
    }
    /// Takes an object out, unless another thread is within a call that uses it.
    pub(crate) fn take(&self, handle: Handle) -> Result<T> {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let object = objects.remove(&handle).ok_or(Code::InvalidParameter)?;
        Arc::try_unwrap(object).map_err(|object| {
            objects.insert(handle, object);
            Code::ErrorResource
        })
    }
    /// Takes all objects out that fit.
    pub(crate) fn take_all(&self, fits: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.extract_if(|_, object| fits(object)).map(|(_, object)| object).collect()
    }
    /// Destroys an object by `end`, which gives it back if it is in use.
    pub(crate) fn end<E>(
        &self,
        handle: Handle,
        end: impl FnOnce(T) -> std::result::Result<(), (T, E)>,
    ) -> Result
    where
        Code: From<E>,
    {
        end(self.take(handle)?).map_err(|(object, error)| {
            self.put(handle, object);
            error.into()
        })
    }
    /// The handle of the first object that fits.
    pub(crate) fn find(&self, fits: impl Fn(&T) -> bool) -> Option<Handle> {
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        objects.iter().find(|(_, object)| fits(object)).map(|(&handle, _)| handle)
    }
}

/// Locks a mutex whose value is whole between any two operations.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
