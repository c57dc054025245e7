//! Doorbells, by which any thread notifies the engine of queue pairs with new requests.
//!
//! A stack of nodes linked through the nodes themselves: a push is one compare-and-swap, the engine
//! takes all at once, so nothing is ever popped singly and there is no ABA.
//!
//! Invariants:
//! 1. A node is on the stack at most once: only the thread that changes `rung` from false to true pushes it, and `rung`
//!    becomes false only after the node was taken off.
//! 2. The stack owns one strong count of each node on it, made by `Arc::into_raw` at the push, and released by
//!    `Arc::from_raw` when the node is taken off.
//! 3. The pushing thread writes `next` before the node is reachable, and the thread that took the stack reads it.
#![allow(unsafe_code)]

use core::ptr;

use crate::sync::{Arc, AtomicBool, AtomicPtr, Ordering};

/// Something that can ring.
pub(crate) trait Ringer: Sized {
    fn link(&self) -> &Link<Self>;
}

/// The part of a node that the stack uses.
pub(crate) struct Link<T> {
    rung: AtomicBool,
    next: AtomicPtr<T>,
    _t: core::marker::PhantomData<fn(&T)>,
}

impl<T> Link<T> {
    pub(crate) fn new() -> Self {
        Self {
            rung: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
            _t: core::marker::PhantomData,
        }
    }
}

/// The stack of nodes that rang.
pub(crate) struct Doorbell<T: Ringer> {
    head: AtomicPtr<T>,
}

impl<T: Ringer> Doorbell<T> {
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Puts `node` on the stack unless it is there.
    #[inline]
    pub(crate) fn ring(&self, node: &Arc<T>) {
        // SeqCst: the engine clears `rung` before it reads the node's queue; who finds it set knows that
        // the engine has yet to do both.
        if node.link().rung.swap(true, Ordering::SeqCst) {
            return;
        }
        let raw = Arc::into_raw(node.clone()).cast_mut();
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            node.link().next.store(head, Ordering::Relaxed);
            // SeqCst: Release pairs with the Acquire in `take`; the total order is for the sleeper, which
            // says that it sleeps and then looks at the stack.
            match self.head.compare_exchange_weak(head, raw, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(h) => head = h,
            }
        }
    }

    /// Whether nothing rang.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::SeqCst).is_null()
    }

    /// Takes all that rang, the last first.
    #[inline]
    pub(crate) fn take(&self) -> Rung<T> {
        if self.head.load(Ordering::Relaxed).is_null() {
            return Rung { head: ptr::null_mut() };
        }
        Rung { head: self.head.swap(ptr::null_mut(), Ordering::SeqCst) }
    }
}

impl<T: Ringer> Drop for Doorbell<T> {
    fn drop(&mut self) {
        self.take().for_each(drop);
    }
}

/// Nodes that were taken off the stack.
pub(crate) struct Rung<T: Ringer> {
    head: *mut T,
}

impl<T: Ringer> Iterator for Rung<T> {
    type Item = Arc<T>;
    fn next(&mut self) -> Option<Arc<T>> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: (2) the stack's count comes to us; the swap in `take` gave this chain to us alone.
        let node = unsafe { Arc::from_raw(self.head) };
        // (3) Relaxed suffices: the Acquire of the swap ordered the pusher's store before us.
        self.head = node.link().next.load(Ordering::Relaxed);
        node.link().rung.store(false, Ordering::SeqCst);
        Some(node)
    }
}

impl<T: Ringer> Drop for Rung<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU32;

    struct Node {
        link: Link<Node>,
        posted: AtomicU32,
    }
    impl Ringer for Node {
        fn link(&self) -> &Link<Self> {
            &self.link
        }
    }

    /// What was posted before a ring is found by the take that clears it, or by a later one.
    #[test]
    fn no_ring_is_lost() {
        loom::model(|| {
            let bell = Arc::new(Doorbell::new());
            let node = Arc::new(Node { link: Link::new(), posted: AtomicU32::new(0) });
            let (b, n) = (bell.clone(), node.clone());
            let t = loom::thread::spawn(move || {
                for i in 1..=2 {
                    n.posted.store(i, Ordering::Release);
                    b.ring(&n);
                }
            });
            let mut seen = 0;
            for n in bell.take() {
                seen = n.posted.load(Ordering::Acquire);
            }
            t.join().unwrap();
            for n in bell.take() {
                seen = n.posted.load(Ordering::Acquire);
            }
            assert_eq!(seen, 2);
        });
    }
}
