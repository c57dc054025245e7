//! Writes into memory of peers' processes, by the kernel, where the peer has granted a region that the library did not
//! allocate: nothing is mapped, and nobody is woken.
//!
//! The initiator writes to the file of the process's memory (`/proc/PID/mem`), within a bracket as any access. The file
//! stands for the memory, not for the pid, so no process that has the pid later is ever written to.
//!
//! An initiator that was stopped within a bracket must not write when it goes on, as the owner can't take pages away
//! that are its program's own. So the look at the terms and the system call are one restartable sequence (`rseq`): a
//! thread that was interrupted in between begins the sequence anew, and finds the terms that hold then. A thread that
//! is stopped is either before that look, or behind the call. The kernel ends the call without a stop in between.
//!
//! Invariants:
//! 1. The kernel reads the local range only, which the caller guarantees to be mapped, and writes to the peer's memory
//!    only.
//! 2. The thread's area of restartable sequences is where the C library says, and lives as long as the thread. Nobody
//!    else of this thread is within a sequence: the field is ours from its store to its clearing.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The most bytes of one write; 0 where this thread has no restartable sequences. The peer fetches longer ones. Where
/// the processor has no fast copies of a few bytes, the kernel copies from the last byte to the first at times, and a
/// program that looks at the last byte would find it there before the others.
pub fn max_process_write() -> usize {
    match sequence::area() {
        None => 0,
        Some(_) if sequence::copies_rise() => 32 << 10,
        Some(_) => 31,
    }
}

/// The memory of another process.
#[derive(Debug)]
pub(super) struct ProcessMemory(OwnedFd);

/// The words that the board must hold for a write.
pub(super) struct Held<'a> {
    pub(super) generation_now: &'a AtomicU32,
    pub(super) generation: u32,
    pub(super) qp_word_now: *const u64,
    pub(super) qp_word: u64,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Whole,
    /// The terms did not hold: nothing was written.
    Stale,
    /// This thread has no restartable sequences, or the local memory is not there.
    Unable,
    /// The memory, or a part of it, can't be written.
    Fault,
}

impl ProcessMemory {
    /// Opens the memory of a process, if that has this word at this address.
    pub(super) fn open(pid: i32, addr: u64, word: u64) -> Result<Self, Errno> {
        let path = format!("/proc/{pid}/mem");
        let memory = Self(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?);
        let mut there = [0; 8];
        let read = rustix::io::pread(&memory.0, &mut there, addr)?;
        if read == there.len() && u64::from_ne_bytes(there) == word { Ok(memory) } else { Err(Errno::SRCH) }
    }

    /// Writes to an address of the process, if the terms hold.
    ///
    /// # Safety
    /// `from .. from + len` is mapped and readable for the call.
    pub(super) unsafe fn write(&self, to: u64, from: *const u8, len: usize, held: &Held<'_>) -> Written {
        let Some(area) = sequence::area() else { return Written::Unable };
        #[cfg(test)]
        super::process::tests::behind_the_copy();
        loop {
            // SAFETY: (1) our caller's; (2) the area is this thread's.
            match unsafe { sequence::pwrite(area, self.0.as_raw_fd(), to, from, len, held) } {
                sequence::ABORTED => {}
                sequence::STALE => return Written::Stale,
                written if written == len as isize => return Written::Whole,
                // The own memory is not there: who sends by messages finds that, too.
                failed if failed == -(libc::EFAULT as isize) => return Written::Unable,
                _ => return Written::Fault,
            }
        }
    }
}

/// Whether all threads of a process are stopped by a signal, or have ended, so that none is within a system call.
pub(super) fn is_stopped(pid: i32) -> bool {
    let state = |task: std::io::Result<std::fs::DirEntry>| -> Option<bool> {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        Some(matches!(stat.get(stat.rfind(')')? + 2..)?.bytes().next(), Some(b'T' | b'Z' | b'X')))
    };
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut states = tasks.map(state).peekable();
    states.peek().is_some() && states.all(|stopped| stopped == Some(true))
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod sequence {
    use core::arch::asm;
    use std::sync::OnceLock;

    use super::Held;

    pub(super) const STALE: isize = -5000;
    pub(super) const ABORTED: isize = -5001;
    /// Tests interrupt between the look and the call, which has to last for that.
    const PAUSES: usize = if cfg!(test) { 32 } else { 0 };

    /// Where the thread's area is from the thread pointer on, if the C library has registered it (glibc 2.35 and
    /// later).
    fn offset() -> Option<isize> {
        static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
        *OFFSET.get_or_init(|| {
            let symbol = |name: &core::ffi::CStr| {
                // SAFETY: the name ends with a zero.
                let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                (!at.is_null()).then_some(at)
            };
            let (offset, size) = (symbol(c"__rseq_offset")?, symbol(c"__rseq_size")?);
            // SAFETY: glibc's variables of these types, which do not change.
            let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
            (size > 0).then_some(offset)
        })
    }

    /// Whether the kernel copies from the first byte to the last, at all lengths (FSRM).
    pub(super) fn copies_rise() -> bool {
        static RISE: OnceLock<bool> = OnceLock::new();
        *RISE.get_or_init(|| {
            use core::arch::x86_64::{__cpuid, __cpuid_count};
            const FSRM: u32 = 1 << 4;
            __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FSRM != 0
        })
    }

    /// The area of this thread, if the kernel knows it.
    pub(super) fn area() -> Option<*mut u8> {
        let offset = offset()?;
        let thread: *mut u8;
        // SAFETY: (2) the thread pointer's own address is its first word.
        unsafe { asm!("mov {}, fs:0", out(reg) thread, options(nostack, preserves_flags, readonly)) };
        let area = thread.wrapping_offset(offset);
        // SAFETY: (2) the second word is the CPU's number, or negative while the kernel does not know the area.
        let cpu = unsafe { area.add(4).cast::<i32>().read_volatile() };
        (cpu >= 0).then_some(area)
    }

    /// Calls pwrite if the terms hold, in one restartable sequence. The result of the call, or one of those above.
    ///
    /// # Safety
    /// The area is this thread's, which is in no sequence; the local range is mapped.
    #[inline(never)]
    pub(super) unsafe fn pwrite(
        area: *mut u8,
        fd: i32,
        to: u64,
        from: *const u8,
        len: usize,
        held: &Held<'_>,
    ) -> isize {
        let mut result = libc::SYS_pwrite64 as isize;
        // SAFETY: our caller's. The sequence ends with the call: behind it the kernel finds the thread outside. It has
        // no side effect before. The signature before the place where it goes on when it was interrupted is the one
        // that glibc registers.
        unsafe {
            asm!(
                "lea rcx, [rip + 87f]",
                "mov qword ptr [{area} + 8], rcx",
                "82:",
                "mov ecx, dword ptr [{generation_now}]",
                "cmp ecx, {generation:e}",
                "jne 85f",
                "mov rcx, qword ptr [{qp_word_now}]",
                "cmp rcx, {qp_word}",
                "jne 85f",
                ".rept {pauses}",
                "pause",
                ".endr",
                "syscall",
                "83:",
                "jmp 86f",
                "85:",
                "mov rax, {stale}",
                "jmp 86f",
                ".pushsection .text.rseq_abort, \"ax\"",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "84:",
                "mov rax, {aborted}",
                "jmp 86f",
                ".popsection",
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "87:",
                ".long 0, 0",
                ".quad 82b",
                ".quad 83b - 82b",
                ".quad 84b",
                ".popsection",
                "86:",
                "mov qword ptr [{area} + 8], 0",
                area = in(reg) area,
                generation_now = in(reg) held.generation_now.as_ptr(),
                generation = in(reg) held.generation,
                qp_word_now = in(reg) held.qp_word_now,
                qp_word = in(reg) held.qp_word,
                pauses = const PAUSES,
                stale = const STALE,
                aborted = const ABORTED,
                inout("rax") result,
                in("rdi") fd as isize,
                in("rsi") from,
                in("rdx") len,
                in("r10") to,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))))]
mod sequence {
    use super::Held;

    pub(super) const STALE: isize = -5000;
    pub(super) const ABORTED: isize = -5001;

    pub(super) fn area() -> Option<*mut u8> {
        None
    }
    pub(super) fn copies_rise() -> bool {
        false
    }
    /// # Safety
    /// Is not called.
    pub(super) unsafe fn pwrite(_: *mut u8, _: i32, _: u64, _: *const u8, _: usize, _: &Held<'_>) -> isize {
        STALE
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    static WORD: AtomicU64 = AtomicU64::new(0x0123_4567_89ab_cdef);

    fn own() -> ProcessMemory {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        ProcessMemory::open(pid, (&raw const WORD).addr() as u64, WORD.load(Ordering::Relaxed)).unwrap()
    }

    #[test]
    fn a_write_is_done_while_the_terms_hold_and_not_otherwise() {
        if max_process_write() == 0 {
            return eprintln!("skipped: no restartable sequences here");
        }
        let (memory, target) = (own(), AtomicU64::new(1));
        let (generation, qp_word) = (AtomicU32::new(7), AtomicU64::new(9));
        let write = |value: u64, generation_then, qp_word_then| {
            let held = Held {
                generation_now: &generation,
                generation: generation_then,
                qp_word_now: qp_word.as_ptr(),
                qp_word: qp_word_then,
            };
            let to = (&raw const target).expose_provenance() as u64;
            // SAFETY: (1) the value lives.
            unsafe { memory.write(to, (&raw const value).cast(), 8, &held) }
        };
        assert_eq!((write(2, 7, 9), target.load(Ordering::Relaxed)), (Written::Whole, 2));
        assert_eq!((write(3, 8, 9), target.load(Ordering::Relaxed)), (Written::Stale, 2));
        assert_eq!((write(3, 7, 8), target.load(Ordering::Relaxed)), (Written::Stale, 2));
        let held =
            Held { generation_now: &generation, generation: 7, qp_word_now: qp_word.as_ptr(), qp_word: 9 };
        // SAFETY: (1) the byte lives.
        assert_eq!(unsafe { memory.write(8, [1_u8].as_ptr(), 1, &held) }, Written::Fault);
    }

    static GENERATION: AtomicU32 = AtomicU32::new(0);
    static TARGET: AtomicU64 = AtomicU64::new(0);
    static TARGET_THEN: AtomicU64 = AtomicU64::new(0);

    /// Ends the terms, and notes what stands in the target.
    extern "C" fn interrupt(_: i32) {
        GENERATION.fetch_add(1, Ordering::SeqCst);
        TARGET_THEN.store(TARGET.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Interrupted at any moment by a handler that ends the terms: nothing is written behind that.
    #[test]
    fn a_writer_that_is_interrupted_at_any_moment_looks_once_more() {
        if max_process_write() == 0 {
            return eprintln!("skipped: no restartable sequences here");
        }
        const ROUNDS: u32 = 1000;
        let (memory, qp_word) = (own(), AtomicU64::new(9));
        // SAFETY: the handler stores to atomics alone; the set and the flags are zeros.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = interrupt as extern "C" fn(i32) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, core::ptr::null_mut()), 0);
        }
        // SAFETY: takes nothing.
        let writer = unsafe { libc::pthread_self() };
        let round = std::sync::Arc::new(AtomicU32::new(0));
        let begun = std::sync::Arc::clone(&round);
        let interrupts = std::thread::spawn(move || {
            for i in 1..=ROUNDS {
                while begun.load(Ordering::Acquire) != i {
                    std::hint::spin_loop();
                }
                (0..i * 7 % 501).for_each(|_| std::hint::spin_loop());
                // SAFETY: the writer lives: it joins this thread.
                assert_eq!(unsafe { libc::pthread_kill(writer, libc::SIGUSR2) }, 0);
            }
        });
        for i in 1..=ROUNDS {
            let generation = GENERATION.load(Ordering::SeqCst);
            let qp_word_now = qp_word.as_ptr();
            let held = Held { generation_now: &GENERATION, generation, qp_word_now, qp_word: 9 };
            round.store(i, Ordering::Release);
            let mut value = 0_u64;
            let end = loop {
                value += 1;
                let to = (&raw const TARGET).expose_provenance() as u64;
                // SAFETY: (1) the value lives.
                let written = unsafe { memory.write(to, (&raw const value).cast(), 8, &held) };
                if written != Written::Whole {
                    break written;
                }
            };
            assert_eq!(end, Written::Stale);
            assert_eq!(TARGET.load(Ordering::SeqCst), TARGET_THEN.load(Ordering::SeqCst), "round {i}");
        }
        interrupts.join().unwrap();
    }

    #[test]
    fn a_process_without_the_word_is_not_opened() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        assert!(ProcessMemory::open(pid, (&raw const WORD).addr() as u64, 1).is_err());
        assert!(ProcessMemory::open(pid, 8, 1).is_err());
    }

    #[test]
    fn this_process_is_not_stopped() {
        assert!(!is_stopped(rustix::process::getpid().as_raw_nonzero().get()));
        assert!(!is_stopped(i32::MAX));
    }
}
