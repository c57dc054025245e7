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
    /// Destroys an object by `end`, unless `check` refuses: then it is there for other threads all the time. `end` gives
    /// it back if it is in use since.
    pub(crate) fn end<E>(
        &self,
        handle: Handle,
        check: impl FnOnce(&T) -> std::result::Result<(), E>,
        end: impl FnOnce(T) -> std::result::Result<(), (T, E)>,
    ) -> Result
    where
        Code: From<E>,
    {
        // Without the lock: a check may call the program's handler of errors.
        check(&*self.get(handle)?)?;
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

#[cfg(test)]
mod tests {
    use hca::via::ViAttributes;

    use super::*;
    use crate::abi::CViAttributes;
    use crate::border::Ptr;
    use crate::{cq, memory, nic, vi};

    fn at<T>(value: &mut T) -> Ptr<T> {
        Ptr::of(&raw mut *value as usize)
    }

    #[test]
    fn an_object_whose_end_is_refused_is_there_all_the_time() {
        const ROUNDS: usize = 50_000;
        let none = || Handle::NONE;
        let (mut adapter, mut tag, mut queue, mut work) = (none(), none(), none(), none());
        let name = std::ffi::CString::new(format!("shm://vipl-table-{}", std::process::id())).unwrap();
        assert_eq!(nic::VipOpenNic(Ptr::of(name.as_ptr() as usize), at(&mut adapter)), 0);
        assert_eq!(memory::VipCreatePtag(adapter, at(&mut tag)), 0);
        assert_eq!(cq::VipCreateCQ(adapter, 16, at(&mut queue)), 0);
        let mut attributes = CViAttributes::of(&ViAttributes::new(&memory::ptag(tag).unwrap()));
        let created = vi::VipCreateVi(adapter, at(&mut attributes), queue, queue, at(&mut work));
        assert_eq!(created, 0);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                for round in 0..ROUNDS {
                    assert!(cq::CQS.get(queue).is_ok(), "the completion queue is hidden in round {round}");
                    assert!(memory::ptag(tag).is_ok(), "the protection tag is hidden in round {round}");
                }
            });
            while !looks.is_finished() {
                assert_eq!(cq::VipDestroyCQ(queue), Code::ErrorResource as u32);
                assert_eq!(memory::VipDestroyPtag(adapter, tag), Code::ErrorResource as u32);
            }
        });
        let ended = [
            vi::VipDestroyVi(work),
            cq::VipDestroyCQ(queue),
            memory::VipDestroyPtag(adapter, tag),
            nic::VipCloseNic(adapter),
        ];
        assert_eq!(ended, [0; 4]);
    }
}
