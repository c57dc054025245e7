//! Registered descriptors, which a forked child does not keep.
//!
//! A descriptor that many processes hold keeps its file open. A child that a program forks for another purpose would
//! hold the file, too, as long as the child lives. The C library runs a function of this module in every such child:
//! each registered descriptor then leads to an empty file of the child. Its number stays taken, so a drop that the
//! child inherited closes nothing else.
//!
//! Invariants:
//! 1. A node is never freed, and its list of descriptors never moves.
//! 2. The function in the child makes only loads, stores and two system calls, as POSIX allows there.
#![allow(unsafe_code)] // a function that the C library calls in the child

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Stands for no descriptor.
const NONE: i32 = -1;

/// The descriptors of one registration.
struct Node {
    taken: AtomicBool,
    fds: Box<[AtomicI32]>,
    next: AtomicPtr<Node>,
}

/// The nodes, the youngest first.
static NODES: AtomicPtr<Node> = AtomicPtr::new(null_mut());

fn nodes() -> impl Iterator<Item = &'static Node> {
    let mut at = NODES.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: (1)
        let node = unsafe { at.as_ref() }?;
        at = node.next.load(Ordering::Relaxed);
        Some(node)
    })
}

/// A node for so many descriptors that nobody has.
fn free_node(len: usize) -> &'static Node {
    let claims = |n: &&Node| {
        n.fds.len() >= len
            && !n.taken.load(Ordering::Relaxed)
            && n.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    if let Some(node) = nodes().find(claims) {
        return node;
    }
    let fds = (0..len).map(|_| AtomicI32::new(NONE)).collect();
    let node: &'static Node =
        Box::leak(Box::new(Node { taken: AtomicBool::new(true), fds, next: AtomicPtr::default() }));
    let mut first = NODES.load(Ordering::Acquire);
    loop {
        node.next.store(first, Ordering::Relaxed);
        match NODES.compare_exchange(
            first,
            std::ptr::from_ref(node).cast_mut(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return node,
            Err(other) => first = other,
        }
    }
}

/// A registration of descriptors: as long as the value lives, a forked child gets an empty file in place of each
/// descriptor.
#[must_use = "they are registered as long as this lives"]
pub struct NotInChildren(&'static Node);

impl NotInChildren {
    /// Registers descriptors. The descriptors have to stay open at least as long as the returned value.
    pub fn new(fds: &[BorrowedFd<'_>]) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the function may run in a child (2). Without memory for the handler children keep descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(give_up)) };
        });
        let node = free_node(fds.len());
        for (place, fd) in node.fds.iter().zip(fds) {
            place.store(fd.as_raw_fd(), Ordering::Relaxed);
        }
        Self(node)
    }
}

impl Drop for NotInChildren {
    fn drop(&mut self) {
        for place in &self.0.fds {
            place.store(NONE, Ordering::Relaxed);
        }
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Runs in a child, whose only thread this is.
extern "C" fn give_up() {
    // SAFETY: (2) a call without pointers.
    let empty = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    for place in nodes().flat_map(|n| n.fds.iter()) {
        let fd = place.load(Ordering::Relaxed);
        if fd != NONE && empty >= 0 {
            // SAFETY: (2) both are descriptors of this process; the registered one keeps its number.
            unsafe { libc::dup3(empty, fd, libc::O_CLOEXEC) };
            // What the child opens under this number later is for its own children, too.
            place.store(NONE, Ordering::Relaxed);
        }
    }
    if empty >= 0 {
        // SAFETY: the descriptor is this function's own.
        unsafe { libc::close(empty) };
    }
}
