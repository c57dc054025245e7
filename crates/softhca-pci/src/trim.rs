//! Returning memory to the system after a peak of functions.
//!
//! The allocator keeps freed memory: queues are many small pieces, and a piece between them is always still in use. Of
//! 514 MiB that 3,000 queue pairs had taken, 480 MiB stayed in the process after a reset, and 12 MiB after a trim. A
//! trim takes 0.1 ms for a MiB, so another thread does it.
#![allow(unsafe_code)] // `malloc_trim`, with its argument

use std::thread::{Builder, JoinHandle};

/// Bytes that are freed before it is worth the while.
const ENOUGH: usize = 32 << 20;

/// What was freed, and the thread that gives it back.
#[derive(Debug, Default)]
pub(crate) struct Trimmer {
    freed: usize,
    thread: Option<JoinHandle<()>>,
}

impl Trimmer {
    /// So many bytes were freed.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.freed = self.freed.saturating_add(bytes);
    }

    /// Gives back what was freed, if that is enough, and if nobody does so just now.
    pub(crate) fn look(&mut self) {
        let runs = |thread: &JoinHandle<()>| !thread.is_finished();
        if self.freed < ENOUGH || self.thread.as_ref().is_some_and(runs) {
            return;
        }
        self.freed = 0;
        // A system without threads to give has other cares.
        self.thread = Builder::new().name("hca-trim".to_owned()).spawn(trim).ok();
    }
}

/// Has the allocator give back the whole pages of what is free.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and lets go of pages that nobody has, of which nothing is kept.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::{QpShape, Server};

    #[test]
    fn memory_goes_back_once_a_function_that_had_much_is_reset() {
        let server = Server::new();
        let (mut trimmer, mut c) = (Trimmer::default(), server.client(0));
        let cq = c.cq(6);
        c.qp(QpShape::default(), &cq, &cq);
        let held = c.function.objects.count_queue(1 << 16, 32).unwrap().bytes;
        trimmer.count(c.function.take_freed());
        trimmer.look();
        assert!(trimmer.thread.is_none(), "nothing was freed");
        c.function.reset();
        let freed = c.function.take_freed();
        assert!(freed > held && held > ENOUGH, "{freed} bytes");
        assert_eq!(c.function.take_freed(), 0);
        trimmer.count(freed);
        trimmer.look();
        trimmer.thread.take().expect("a thread gives it back").join().unwrap();
        trimmer.count(ENOUGH - 1);
        trimmer.look();
        assert!(trimmer.thread.is_none(), "of a little more there is none");
    }

    #[test]
    fn queues_that_a_driver_destroys_count_as_freed() {
        let server = Server::new();
        let mut c = server.client(0);
        let cq = c.cq(6);
        let qp = c.qp(QpShape::default(), &cq, &cq);
        assert_eq!(c.function.take_freed(), 0);
        c.destroy(qp.qpn).unwrap();
        assert!(c.function.take_freed() > 0);
    }
}
