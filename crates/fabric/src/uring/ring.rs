//! The ring: one multishot receive into provided buffers, and chains of sends.
//!
//! Invariants:
//! 1. `buffers` and `entries` are allocated once, live until the kernel confirmed that the receive ended,
//!    and are leaked if it does not confirm.
//! 2. A buffer belongs to the kernel from [`Ring::give`] until a completion names it, and to this side from then until
//!    this side gives it again. No reference is ever made to a buffer that belongs to the kernel.
//! 3. `header` is boxed, holds no pointers (only lengths, which is what a multishot receive reads), and
//!    lives as long as the buffers.
//! 4. [`Ring::send_chain`] returns only after every send that the kernel took has completed, so the memory that its
//!    entries point to is borrowed for the call.
//! 5. `ring` is closed once, in the process that opened it: a forked child has no copy of the ring's memory, and may
//!    have memory of its own there.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::mem::{ManuallyDrop, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use hca_process::Fork;
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, RecvMsgOut, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::udp::sys::{self, Control, Datagram, TX_BATCH, TxDatagram, TxHeaders};

/// Buffers that are provided to the kernel; a power of two.
const BUFFERS: u16 = 128;
/// Bytes of control messages of one datagram.
const CONTROL_BYTES: usize = 128;
/// What stands before the payload in a buffer: lengths, address, control messages.
const BUFFER_HEAD_BYTES: usize = 16 + sys::NAME_BYTES + CONTROL_BYTES;
/// Bytes of one buffer, a whole number of pages.
const BUFFER_BYTES: usize = (sys::RX_BUFFER_BYTES + BUFFER_HEAD_BYTES).next_multiple_of(4096);
/// Completions that wait at most, beside those that the kernel holds back.
const COMPLETIONS: u32 = 1024;
const GROUP: u16 = 0;
/// Marks completions of the receive; those of sends carry their place in the chain.
const RECV: u64 = u64::MAX;
/// Marks completions that nobody waits for.
const NOBODY: u64 = u64::MAX - 1;
/// Times that the end of the receive is asked for, 10 ms each, before its memory is leaked.
const CANCEL_TRIES: u32 = 20;

#[repr(C, align(4096))]
struct Entries([BufRingEntry; BUFFERS as usize]);

/// Memory that the kernel writes to while the receive is armed.
struct Shared {
    entries: *mut Entries,
    buffers: *mut [u8],
    header: *mut libc::msghdr,
}

impl Shared {
    fn new() -> Self {
        // SAFETY: zeros are valid for all three, which are plain data.
        let (entries, mut header) =
            unsafe { (Box::<Entries>::new_zeroed().assume_init(), Box::new(zeroed::<libc::msghdr>())) };
        header.msg_namelen = sys::NAME_BYTES as _;
        header.msg_controllen = CONTROL_BYTES as _;
        let buffers = vec![0_u8; usize::from(BUFFERS) * BUFFER_BYTES].into_boxed_slice();
        Self {
            entries: Box::into_raw(entries),
            buffers: Box::into_raw(buffers),
            header: Box::into_raw(header),
        }
    }
    /// First byte of a buffer.
    fn buffer(&self, id: u16) -> *mut u8 {
        assert!(id < BUFFERS, "the kernel names buffers that it was given");
        self.buffers.cast::<u8>().wrapping_add(usize::from(id) * BUFFER_BYTES)
    }
    /// Frees the memory.
    ///
    /// # Safety
    /// The kernel touches it no more, and nobody else will.
    unsafe fn free(&self) {
        // SAFETY: all three came from `Box::into_raw`, and the caller gives them up.
        unsafe {
            drop(Box::from_raw(self.entries));
            drop(Box::from_raw(self.buffers));
            drop(Box::from_raw(self.header));
        }
    }
}

/// A ring with its receive.
pub(super) struct Ring {
    ring: ManuallyDrop<IoUring>,
    shared: Shared,
    /// Buffers ever given to the kernel (wrapping).
    tail: u16,
    armed: bool,
    socket: RawFd,
    /// Completed receives in order: buffer and bytes.
    pending: VecDeque<(u16, usize)>,
    headers: Box<TxHeaders>,
    results: [Option<i32>; TX_BATCH],
    /// System calls for receiving; sends are counted by the caller.
    pub(super) recv_calls: u64,
    pub(super) recv_errors: u64,
    /// The kernel refused an entry that it had taken before; nothing is submitted any more.
    pub(super) broken: bool,
    /// Who opened it.
    fork: Fork,
}
// SAFETY: (1, 2) the pointers lead to memory that this value alone owns, together with the kernel.
unsafe impl Send for Ring {}

impl Ring {
    /// Sets a ring up and arms its receive on `socket`, which has to outlive it.
    ///
    /// # Errors
    /// What is missing, and the kernel's reason.
    pub(super) fn open(
        socket: BorrowedFd<'_>,
        single_thread: bool,
    ) -> Result<Self, (&'static str, io::Error)> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).dontfork();
        if single_thread {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        let ring = builder.build(2 * TX_BATCH as u32).map_err(|e| ("io_uring", e))?;
        let shared = Shared::new();
        // SAFETY: (1) the entries live until the ring's receive has ended and the ring is closed.
        let registered = unsafe {
            ring.submitter().register_buf_ring_with_flags(shared.entries as u64, BUFFERS, GROUP, 0)
        };
        if let Err(e) = registered {
            // SAFETY: the kernel did not take it.
            unsafe { shared.free() };
            return Err(("io_uring buffer rings", e));
        }
        let mut me = Self {
            ring: ManuallyDrop::new(ring),
            shared,
            tail: 0,
            armed: false,
            socket: socket.as_raw_fd(),
            pending: VecDeque::with_capacity(usize::from(BUFFERS)),
            headers: TxHeaders::new(),
            results: [None; TX_BATCH],
            recv_calls: 0,
            recv_errors: 0,
            broken: false,
            fork: Fork::new(),
        };
        (0..BUFFERS).for_each(|id| me.give(id));
        me.arm();
        me.enter(0).map_err(|e| ("io_uring submission", e))?;
        me.reap();
        if !me.armed {
            return Err(("io_uring multishot recvmsg", io::ErrorKind::Unsupported.into()));
        }
        Ok(me)
    }

    /// Readable when completions wait.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the ring, and the borrow no longer.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Gives a buffer to the kernel.
    fn give(&mut self, id: u16) {
        let addr = self.shared.buffer(id) as u64;
        let base: *mut BufRingEntry = self.shared.entries.cast();
        // SAFETY: (1) the index is below the number of entries; (2) the kernel reads this entry only
        // after the tail moved past it. The bytes of entry 0 that are the tail are not touched: only
        // the three fields in front of them are written.
        unsafe {
            let entry = &mut *base.add(usize::from(self.tail % BUFFERS));
            entry.set_addr(addr);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: (1) the tail lies in entry 0, aligned, and is shared with the kernel as an atomic.
        unsafe {
            let tail = BufRingEntry::tail(base);
            // Release: pairs with the kernel's acquire of the tail before it reads entries.
            AtomicU16::from_ptr(tail.cast_mut()).store(self.tail, Ordering::Release);
        }
    }

    /// Queues the multishot receive; the next enter submits it.
    fn arm(&mut self) {
        let entry =
            opcode::RecvMsgMulti::new(Fd(self.socket), self.shared.header, GROUP).build().user_data(RECV);
        // SAFETY: (1, 3) header and buffers outlive the request.
        self.armed = unsafe { self.ring.submission().push(&entry) }.is_ok();
    }

    /// Submits what is queued, lets the kernel do the work that waits, and waits for `want` completions.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        let queued = self.ring.submission().len() as u32;
        const GETEVENTS: u32 = 1;
        // SAFETY: no argument is passed.
        let r =
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, want as u32, GETEVENTS, None) };
        match r {
            Ok(_) => Ok(()),
            // The kernel has more completions than fit (EBUSY), is short of memory (EAGAIN), or a signal came.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Sorts completions: received datagrams into `pending`, results of sends into `results`.
    fn reap(&mut self) {
        for c in self.ring.completion() {
            if c.user_data() != RECV {
                if let Some(slot) = self.results.get_mut(c.user_data() as usize) {
                    *slot = Some(c.result());
                }
                continue;
            }
            if !cqueue::more(c.flags()) {
                self.armed = false;
            }
            match (cqueue::buffer_select(c.flags()), c.result()) {
                (Some(id), n) => self.pending.push_back((id, n.max(0) as usize)),
                // Out of buffers, or the thread that had armed it ended: it is armed again.
                (None, e) if e == -libc::ENOBUFS || e == -libc::ECANCELED => {}
                (None, _) => self.recv_errors += 1,
            }
        }
    }

    /// Looks for datagrams, by a system call if none waits already; returns whether one does.
    pub(super) fn poll(&mut self) -> bool {
        self.reap();
        if !self.armed && !self.broken {
            self.arm();
        }
        if self.pending.is_empty() && !self.broken {
            self.recv_calls += 1;
            if self.enter(0).is_err() {
                self.recv_errors += 1;
            }
            self.reap();
        }
        !self.pending.is_empty()
    }

    /// Shows the oldest datagram and gives its buffer back; `None` if none waits.
    pub(super) fn take<R>(&mut self, show: impl FnOnce(Option<Datagram<'_>>) -> R) -> Option<R> {
        let (id, len) = self.pending.pop_front()?;
        // SAFETY: (2) the completion named this buffer, so the kernel leaves it alone until `give`; the
        // length is cut to the buffer's.
        let bytes = unsafe { std::slice::from_raw_parts(self.shared.buffer(id), len.min(BUFFER_BYTES)) };
        // SAFETY: (3) the header is never written after it was made.
        let header = unsafe { &*self.shared.header };
        let datagram = RecvMsgOut::parse(bytes, header).ok().and_then(|out| {
            let (src, src_port) = sys::parse_name(out.name_data())?;
            let control = Control::parse(out.control_data());
            // The payload's lifetime is the buffer's, not the parser's.
            let at = BUFFER_HEAD_BYTES;
            let bytes = &bytes[at..at + out.payload_data().len()];
            Some(Datagram { src, src_port, control, bytes })
        });
        let r = show(datagram);
        self.give(id);
        Some(r)
    }

    /// Sends datagrams in order, by one system call if all goes well; the first refusal ends the chain.
    /// Returns how many left, and why the next did not.
    pub(super) fn send_chain(
        &mut self,
        sends: &[(BorrowedFd<'_>, TxDatagram<'_>)],
    ) -> (usize, Option<io::Error>) {
        let count = sends.len().min(TX_BATCH);
        self.results = [None; TX_BATCH];
        let headers = self.headers.point_at(sends[..count].iter().map(|s| &s.1));
        for (i, (fd, _)) in sends[..count].iter().enumerate() {
            let linked = if i + 1 < count { squeue::Flags::IO_LINK } else { squeue::Flags::empty() };
            let entry = opcode::SendMsg::new(Fd(fd.as_raw_fd()), headers.wrapping_add(i).cast())
                .flags((libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32)
                .build()
                .flags(linked)
                .user_data(i as u64);
            // SAFETY: (4) header and datagram live until the completion.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "the queue has room for a chain and the receive");
        }
        while self.results[..count].iter().any(Option::is_none) {
            // MSG_DONTWAIT has every send complete while it is submitted; this loop is for the rest of
            // a chain, which the kernel may take up a call later.
            if let Err(e) = self.enter(0) {
                self.reap();
                if !self.ring.submission().is_empty() {
                    self.broken = true;
                    let left = self.results[..count].iter().take_while(|r| r.is_some_and(|n| n >= 0)).count();
                    return (left, Some(e));
                }
            }
            self.reap();
        }
        let left = self.results[..count].iter().take_while(|r| r.is_some_and(|n| n >= 0)).count();
        let why = self.results[..count].get(left).and_then(|r| *r).map(|e| io::Error::from_raw_os_error(-e));
        (left, why)
    }

    /// Ends the receive; returns whether the kernel confirmed it.
    fn cancel(&mut self) -> bool {
        if self.broken {
            return !self.armed;
        }
        for _ in 0..CANCEL_TRIES {
            self.reap();
            if !self.armed {
                return true;
            }
            let patience = Timespec::from(Duration::from_millis(10));
            let entry =
                opcode::AsyncCancel2::new(CancelBuilder::user_data(RECV).all()).build().user_data(NOBODY);
            // SAFETY: the entry points to nothing.
            let _ = unsafe { self.ring.submission().push(&entry) };
            let args = io_uring::types::SubmitArgs::new().timespec(&patience);
            let _ = self.ring.submitter().submit_with_args(1, &args);
        }
        self.reap();
        !self.armed
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A forked child inherits the descriptor, but not the queues' memory, and ends nothing of its parent's.
        if self.fork.is_child() {
            return;
        }
        if self.cancel() && self.ring.submitter().unregister_buf_ring(GROUP).is_ok() {
            // SAFETY: (1) the receive has ended, the buffer ring is unregistered, and `self` goes.
            unsafe { self.shared.free() };
        } else {
            tracing::warn!("the kernel did not confirm the end of a receive; its buffers are leaked");
        }
        // SAFETY: (5) nobody uses it behind this.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}
