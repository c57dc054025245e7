//! Signals to eventfds that other processes share, without ever blocking the sender.
//!
//! A write to an eventfd blocks while the counter has no room, unless the file is non-blocking. Every holder of the
//! eventfd can change the counter and that flag. The end of an asynchronous request that names an eventfd
//! (`IOCB_FLAG_RESFD`) never blocks: a counter without room stays unchanged. So a signal is an asynchronous request to
//! read zero bytes of an empty file that this process owns. The request ends before the call that submits it returns.
//!
//! Invariants of the unsafe code:
//!
//! 1. `context` is one that `io_setup` has made, for this value alone, until `drop`.
//! 2. The kernel reads a request only during the call that submits it, and writes completions only to the place that
//!    `io_getevents` is given.
#![allow(unsafe_code)] // four system calls that no crate offers, with their arguments

use std::ffi::{c_long, c_ulong};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use hca_process::memory_file;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

/// A request as the kernel has it, `struct iocb`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Request {
    data: u64,
    /// A key and flags, whose order depends on the machine's; both are 0.
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}
const _: () = assert!(size_of::<Request>() == 64);

/// To read, `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`.
const SIGNALS: u32 = 1;
/// Ends that are collected in one go, of four numbers each (`struct io_event`).
const ENDS: usize = 16;
type End = [u64; 4];

/// What signals eventfds that other processes share. A signal never waits, whatever they do to the eventfd.
#[derive(Debug)]
pub struct Signals {
    context: c_ulong,
    empty: OwnedFd,
}

impl Signals {
    /// Asks the system for asynchronous requests.
    ///
    /// # Errors
    /// The system has none, or none left: a kernel without them, a filter of system calls or the limit fs.aio-max-nr
    /// can be why.
    pub fn new() -> Result<Self, Errno> {
        let empty = memory_file("hca-signals", MemfdFlags::empty(), 0)?;
        let mut context: c_ulong = 0;
        // SAFETY: it writes a name of the context that it makes, and nothing else.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ENDS as c_long, &raw mut context) };
        result(made)?;
        Ok(Self { context, empty })
    }

    /// Adds 1 to an eventfd's counter, if there is room. What is no eventfd is left alone.
    pub fn send(&self, eventfd: BorrowedFd<'_>) {
        let mut sent = self.submit(eventfd);
        if sent == Err(Errno::AGAIN) {
            // The ends of all before are still there.
            self.collect();
            sent = self.submit(eventfd);
        }
        if let Err(errno) = sent {
            tracing::debug!("a signal is lost: {errno}");
        }
    }

    fn submit(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let number = |fd: &dyn AsRawFd| fd.as_raw_fd() as u32;
        let request = Request {
            opcode: READ,
            file: number(&self.empty),
            flags: SIGNALS,
            eventfd: number(&eventfd),
            ..Request::default()
        };
        let list = [&raw const request];
        // SAFETY: (1), (2): a list of one request, which names no memory to be read to.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1 as c_long, list.as_ptr()) };
        result(taken)
    }

    /// Makes room for further ends.
    fn collect(&self) {
        let mut ends = [End::default(); ENDS];
        let none = std::ptr::null_mut::<libc::timespec>();
        loop {
            let (fewest, most) = (0 as c_long, ENDS as c_long);
            let into = ends.as_mut_ptr();
            // SAFETY: (1), (2): there is room for so many ends; as none has to come, it does not wait.
            let taken =
                unsafe { libc::syscall(libc::SYS_io_getevents, self.context, fewest, most, into, none) };
            if taken < most {
                return;
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // In a child of a fork there is no such context, and this does nothing.
        // SAFETY: (1) nobody uses it any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn result(returned: c_long) -> Result<(), Errno> {
    if returned >= 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&errno).unwrap_or(Errno::IO))
}
