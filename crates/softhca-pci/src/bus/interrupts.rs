//! MSI-X: vectors as eventfds, masks, and pending bits.
//!
//! A vector is masked by the client's messages, by the configuration space (all of them), or by its own entry in the
//! table. A client that is a virtual machine monitor, or that gives eventfds, keeps the table to itself; so an entry
//! that was never written masks nothing. An interrupt of a masked vector, or of a vector without an eventfd, is
//! pending.

use std::os::fd::{AsFd, OwnedFd};

use hca_vfio::user::{Signals, can_be_eventfd};
use rustix::io::Errno;

/// Vectors that a function has.
pub(crate) const VECTORS: usize = 32;
/// Bytes of a vector's entry in the table: address, data, control.
const ENTRY: usize = 16;
/// The bit in an entry's control word, which is its last, that masks it.
const MASKED: u8 = 1;

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<OwnedFd>,
    masked: bool,
    pending: bool,
    written: bool,
    entry: [u8; ENTRY],
}

/// A function's interrupts.
#[derive(Debug)]
pub(crate) struct Interrupts {
    vectors: Vec<Vector>,
    all_masked: bool,
    /// Made when there is the first eventfd.
    signals: Option<Signals>,
}

impl Interrupts {
    pub(crate) fn new() -> Self {
        let mut this = Self {
            vectors: (0..VECTORS).map(|_| Vector::default()).collect(),
            all_masked: false,
            signals: None,
        };
        this.reset();
        this
    }

    /// Signals a vector. One that there is not is the client's fault, and nothing.
    pub(crate) fn fire(&mut self, vector: u32) {
        if let Some(v) = self.vectors.get_mut(vector as usize) {
            v.pending = true;
            self.deliver(vector as usize);
        }
    }

    /// Signals a vector that is pending, if nothing keeps it back.
    fn deliver(&mut self, vector: usize) {
        let v = &mut self.vectors[vector];
        let masked = self.all_masked || v.masked || v.written && v.entry[12] & MASKED != 0;
        if masked || !v.pending {
            return;
        }
        if let (Some(eventfd), Some(signals)) = (&v.eventfd, &self.signals) {
            v.pending = false;
            signals.send(eventfd.as_fd());
        }
    }

    fn deliver_all(&mut self) {
        for vector in 0..VECTORS {
            self.deliver(vector);
        }
    }

    /// Sets the eventfds of vectors from `first` on, or takes them away.
    ///
    /// # Errors
    /// One of them is no eventfd, or the system has nothing to signal them by. Then nothing is set.
    pub(crate) fn listen(&mut self, first: usize, eventfds: Vec<Option<OwnedFd>>) -> Result<(), Errno> {
        for eventfd in eventfds.iter().flatten() {
            if !can_be_eventfd(eventfd) {
                tracing::warn!("a descriptor for an interrupt was refused: it is no eventfd");
                return Err(Errno::INVAL);
            }
        }
        if self.signals.is_none() && eventfds.iter().any(Option::is_some) {
            let signals = Signals::new().inspect_err(|errno| {
                tracing::warn!(
                    "interrupts of a client were refused, as they need asynchronous requests (io_setup): {errno}; a \
                     kernel without them, a filter of system calls or the limit fs.aio-max-nr can be why"
                );
            });
            self.signals = Some(signals?);
        }
        for (i, eventfd) in eventfds.into_iter().enumerate() {
            self.set(first + i, eventfd);
        }
        Ok(())
    }

    /// Sets a vector's eventfd, or takes it away.
    fn set(&mut self, vector: usize, eventfd: Option<OwnedFd>) {
        if let Some(v) = self.vectors.get_mut(vector) {
            v.eventfd = eventfd;
            self.deliver(vector);
        }
    }

    /// Masks a vector, or lets it through again.
    pub(crate) fn mask(&mut self, vector: usize, masked: bool) {
        if let Some(v) = self.vectors.get_mut(vector) {
            v.masked = masked;
            self.deliver(vector);
        }
    }

    /// Masks all vectors, or lets them through as each one's own mask says.
    pub(crate) fn set_function_mask(&mut self, masked: bool) {
        if self.all_masked != masked {
            self.all_masked = masked;
            self.deliver_all();
        }
    }

    /// Masks and pending signals are as new; eventfds stay.
    pub(crate) fn reset(&mut self) {
        self.all_masked = false;
        for v in &mut self.vectors {
            (v.masked, v.pending, v.written) = (false, false, false);
            v.entry = [0; ENTRY];
            v.entry[12] = MASKED;
        }
    }

    /// Lets go of all eventfds.
    pub(crate) fn clear(&mut self) {
        for v in &mut self.vectors {
            v.eventfd = None;
        }
    }

    /// A byte of the table.
    pub(crate) fn table_byte(&self, offset: u64) -> u8 {
        let entry = self.vectors.get((offset / ENTRY as u64) as usize);
        entry.map_or(0, |v| v.entry[(offset % ENTRY as u64) as usize])
    }

    /// Writes a byte of the table.
    pub(crate) fn write_table_byte(&mut self, offset: u64, byte: u8) {
        let (vector, at) = ((offset / ENTRY as u64) as usize, (offset % ENTRY as u64) as usize);
        if let Some(v) = self.vectors.get_mut(vector) {
            v.written = true;
            v.entry[at] = match at {
                0 => byte & !3,
                12 => byte & MASKED,
                13..=15 => 0,
                _ => byte,
            };
            self.deliver(vector);
        }
    }

    /// A byte of the array of pending bits.
    pub(crate) fn pending_byte(&self, offset: u64) -> u8 {
        let first = offset.saturating_mul(8);
        (0..8)
            .filter(|bit| self.vectors.get(first.saturating_add(*bit) as usize).is_some_and(|v| v.pending))
            .fold(0, |b, bit| b | 1 << bit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    fn line() -> (OwnedFd, OwnedFd) {
        let ours = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        (ours.try_clone().unwrap(), ours)
    }

    fn came(line: &OwnedFd) -> bool {
        rustix::io::read(line, &mut [0_u8; 8]).is_ok()
    }

    #[test]
    fn what_is_fired_while_masked_is_pending_and_comes_when_unmasked() {
        let (fd, line) = line();
        let mut i = Interrupts::new();
        i.listen(9, vec![Some(fd)]).unwrap();
        i.fire(9);
        assert!(came(&line), "an entry that nobody wrote masks nothing");
        i.mask(9, true);
        i.fire(9);
        i.fire(9);
        assert_eq!((came(&line), i.pending_byte(1)), (false, 1 << 1));
        i.mask(9, false);
        assert_eq!((came(&line), came(&line), i.pending_byte(1)), (true, false, 0));
        i.set_function_mask(true);
        i.fire(9);
        assert!(!came(&line));
        i.set_function_mask(false);
        assert!(came(&line));
    }

    #[test]
    fn an_eventfd_whose_counter_is_full_keeps_nobody_waiting() {
        let line = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&line, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, fired) = std::sync::mpsc::channel();
        let (copy, theirs) = (line.try_clone().unwrap(), line.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut i = Interrupts::new();
            i.listen(3, vec![Some(copy)]).unwrap();
            i.fire(3);
            // The client has the same flags, and changes them.
            let flags = fcntl_getfl(&theirs).unwrap();
            fcntl_setfl(&theirs, flags - OFlags::NONBLOCK).unwrap();
            i.fire(3);
            done.send(i.pending_byte(0)).unwrap();
        });
        let fired = fired.recv_timeout(std::time::Duration::from_secs(60));
        // If it was kept waiting, it goes on now.
        assert!(came(&line));
        assert_eq!(fired, Ok(0));
    }

    /// The flag and the counter are the client's to change at any moment, also just before a signal.
    #[test]
    fn a_client_that_changes_its_eventfds_flags_meanwhile_keeps_nobody_waiting() {
        const TIMES: u32 = 3_000;
        let line = eventfd(0, EventfdFlags::empty()).unwrap();
        let (stop, fired) = (AtomicBool::new(false), AtomicU32::new(0));
        let mut i = Interrupts::new();
        i.listen(3, vec![line.try_clone().ok()]).unwrap();
        let set = |flag: bool| {
            let flags = fcntl_getfl(&line).unwrap() - OFlags::NONBLOCK;
            fcntl_setfl(&line, if flag { flags | OFlags::NONBLOCK } else { flags }).unwrap();
        };
        let long_after = || std::time::Instant::now() + std::time::Duration::from_secs(60);
        let waited = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    i.fire(3);
                    fired.fetch_add(1, Ordering::Relaxed);
                }
            });
            let waited = (0..TIMES).find(|_| {
                set(true);
                came(&line);
                let _ = rustix::io::write(&line, &(u64::MAX - 1).to_ne_bytes());
                set(false);
                let (before, end) = (fired.load(Ordering::Relaxed), long_after());
                while fired.load(Ordering::Relaxed).wrapping_sub(before) < 2 {
                    if std::time::Instant::now() > end {
                        return true;
                    }
                    std::thread::yield_now();
                }
                false
            });
            stop.store(true, Ordering::Relaxed);
            // If it was kept waiting, it goes on now.
            set(true);
            came(&line);
            waited
        });
        assert_eq!(waited, None, "it waits for the client");
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap().into();
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        for fd in [pipe.into(), file, socket.into()] {
            let (good, line) = line();
            let mut i = Interrupts::new();
            assert_eq!(i.listen(0, vec![Some(good), Some(fd)]), Err(Errno::INVAL));
            i.fire(0);
            assert!(!came(&line), "nothing was set");
        }
        let mut i = Interrupts::new();
        let (fd, line) = line();
        i.listen(0, vec![Some(fd)]).unwrap();
        i.fire(0);
        assert!(came(&line));
    }

    #[test]
    fn an_entry_of_the_table_masks_once_it_was_written() {
        let (fd, line) = line();
        let mut i = Interrupts::new();
        i.listen(1, vec![Some(fd)]).unwrap();
        assert_eq!(i.table_byte(16 + 12), 1, "as the standard has it after a reset");
        for (at, byte) in [0xff_u8, 0xe0, 0xe0, 0xfe].into_iter().enumerate() {
            i.write_table_byte(16 + at as u64, byte);
        }
        assert_eq!(i.table_byte(16), 0xfc);
        i.fire(1);
        assert!(!came(&line));
        i.write_table_byte(16 + 12, 0);
        assert!(came(&line));
    }

    #[test]
    fn a_vector_without_an_eventfd_is_pending_until_it_has_one() {
        let (fd, line) = line();
        let mut i = Interrupts::new();
        i.fire(2);
        i.fire(VECTORS as u32);
        i.fire(u32::MAX);
        i.listen(2, vec![Some(fd)]).unwrap();
        assert!(came(&line));
        i.set(VECTORS, None);
        assert_eq!((i.table_byte(1 << 40), i.pending_byte(u64::MAX)), (0, 0));
        i.write_table_byte(1 << 40, 1);
    }
}
