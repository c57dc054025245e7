//! Accesses of memory that is not there any more, which do not end the program.
//!
//! A program may unmap memory that an adapter knows: an adapter in silicon has pinned its pages and goes on. An access
//! by the processor is a fault, SIGSEGV or SIGBUS. After [`survive`], a fault of an access of this crate is resumed
//! behind the access:
//!
//! | access | afterwards |
//! |---|---|
//! | a store | its bytes are dropped, as nobody can see the page |
//! | a load, an atomic operation | the bytes are lost, of which [`has_lost`] tells the caller |
//!
//! Each access in assembly has an entry in a section of its own: the instructions' addresses, and where to go on. The
//! kernel's copies from and to programs do the same. An access that does not fault costs nothing.
//!
//! | fault | here |
//! |---|---|
//! | no mapping at the address, no page of the file | resumed |
//! | a mapping that nobody may read, and the program has no handler | resumed |
//! | another access that the mapping forbids | the program's handler, or its end |
//! | a write of memory that [`hold_writers`](crate::hold_writers) moves | done again, once it has moved |
//! | of other code | the program's handler, or its end |
//!
//! Invariants:
//! 1. The entries between the section's ends were made by [`survivable!`], which describes instructions of its own.
//! 2. The handler calls nothing but system calls, and touches nothing but atomics and the thread's own registers.
//! 3. What the handler goes on to, if a fault is none of ours, was a program's action when ours took its place. It does
//!    not change.
#![allow(unsafe_code)] // signals, and the table of a section

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::hold::has_waited;

/// The assembly of one access, `2:` to `3:`, with its entry: what becomes of the access, and where to go on.
macro_rules! survivable {
    // A store or a part of several accesses, which goes on behind them.
    (dropped: $($line:expr),+) => {
        concat!("2:\n", $($line, "\n",)+ "3:\n",
            ".pushsection hca_dma_faults,\"aR\",@progbits\n.balign 4\n",
            ".long 2b - ., 3b - ., 3b - ., 0\n",
            ".popsection")
    };
    // A load or an atomic operation, whose register is cleared before it goes on.
    (lost: $line:expr, $clear:expr) => {
        concat!("2:\n", $line, "\n3:\n",
            ".pushsection .text.hca_dma_lost,\"ax\",@progbits\n",
            "4:\n", $clear, "\njmp 3b\n",
            ".popsection\n",
            ".pushsection hca_dma_faults,\"aR\",@progbits\n.balign 4\n",
            ".long 2b - ., 3b - ., 4b - ., 1\n",
            ".popsection")
    };
    // As above; whoever looks at the register knows by itself.
    (told: $line:expr, $clear:expr) => {
        concat!("2:\n", $line, "\n3:\n",
            ".pushsection .text.hca_dma_lost,\"ax\",@progbits\n",
            "4:\n", $clear, "\njmp 3b\n",
            ".popsection\n",
            ".pushsection hca_dma_faults,\"aR\",@progbits\n.balign 4\n",
            ".long 2b - ., 3b - ., 4b - ., 0\n",
            ".popsection")
    };
}
pub(crate) use survivable;

/// The signals of faults.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The code of a fault that a mapping forbids.
const FORBIDDEN: c_int = 2;
/// So often a program may put its own action over ours, and ours goes over that.
const LAYERS: usize = 8;
/// Threads that may have lost bytes at a time, and not looked yet.
const LOSERS: usize = 64;

/// An entry of the section: distances from the places where they stand.
#[repr(C)]
struct Entry {
    begin: i32,
    end: i32,
    resume: i32,
    is_lost: u32,
}

unsafe extern "C" {
    // The linker's names for the ends of the section.
    static __start_hca_dma_faults: [Entry; 0];
    static __stop_hca_dma_faults: [Entry; 0];
    // `sigaction`, which programs replace by functions of their own.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

fn entries() -> &'static [Entry] {
    // SAFETY: (1) the ends of one section of entries, which nobody writes.
    unsafe {
        let begin = (&raw const __start_hca_dma_faults).cast::<Entry>();
        let end = (&raw const __stop_hca_dma_faults).cast::<Entry>();
        core::slice::from_raw_parts(begin, (end.addr() - begin.addr()) / size_of::<Entry>())
    }
}

fn target(of: &i32) -> usize {
    (&raw const *of).addr().wrapping_add_signed(*of as isize)
}

/// Where to go on behind an access at this address, and whether its bytes are lost. `None`: there is none of ours.
fn find(at: usize) -> Option<(usize, bool)> {
    let found = entries().iter().find(|entry| (target(&entry.begin)..target(&entry.end)).contains(&at))?;
    Some((target(&found.resume), found.is_lost != 0))
}

/// The threads that lost bytes; 0 stands for none. The last place says that there were more of them.
static LOST: [AtomicI32; LOSERS] = [const { AtomicI32::new(0) }; LOSERS];
/// How many threads are in the list, at most.
static LOST_COUNT: AtomicI32 = AtomicI32::new(0);

pub(crate) fn thread() -> i32 {
    // SAFETY: it tells a number.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Notes that the calling thread lost bytes.
pub(crate) fn lose() {
    let this = thread();
    if LOST.iter().any(|slot| slot.load(Ordering::Relaxed) == this) {
        return;
    }
    // Without a free place it is forgotten: so many threads can't all be between an access and the look after it.
    let is_noted =
        |slot: &AtomicI32| slot.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if LOST.iter().any(is_noted) {
        LOST_COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether loads or atomic operations of this thread have lost bytes since the last call.
#[inline(always)]
pub fn has_lost() -> bool {
    LOST_COUNT.load(Ordering::Relaxed) != 0 && has_this_lost()
}
#[cold]
#[inline(never)]
fn has_this_lost() -> bool {
    let this = thread();
    let found = LOST.iter().find(|slot| slot.load(Ordering::Relaxed) == this);
    found.inspect(|slot| {
        slot.store(0, Ordering::Relaxed);
        LOST_COUNT.fetch_sub(1, Ordering::Relaxed);
    });
    found.is_some()
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
/// Our actions, each over one of the program's: by layer, and by signal.
static BELOW: [[OnceLock<libc::sigaction>; 2]; LAYERS] = [const { [const { OnceLock::new() }; 2] }; LAYERS];
const HANDLERS: [Handler; LAYERS] = [
    on_fault::<0>,
    on_fault::<1>,
    on_fault::<2>,
    on_fault::<3>,
    on_fault::<4>,
    on_fault::<5>,
    on_fault::<6>,
    on_fault::<7>,
];

/// Has faults of this crate's accesses resumed, from now on and in all threads. A program's own handlers get the faults
/// of other code. A program that replaces the handler undoes it until the next call, which is quick: callers repeat it
/// as they register memory.
pub fn survive() {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (which, signal) in SIGNALS.into_iter().enumerate() {
        let Some(now) = exchange(signal, None) else { continue };
        if HANDLERS.iter().any(|ours| now.sa_sigaction == *ours as *const () as usize) {
            continue;
        }
        // A layer over the same action, or the next one: one that is in use stays what it is (3).
        let fits = |layer: &&[OnceLock<libc::sigaction>; 2]| {
            layer[which].get().is_none_or(|below| below.sa_sigaction == now.sa_sigaction)
        };
        let Some(layer) = BELOW.iter().position(|layer| fits(&layer)) else { continue };
        BELOW[layer][which].get_or_init(|| now);
        let mut ours = now;
        ours.sa_sigaction = HANDLERS[layer] as *const () as usize;
        ours.sa_flags =
            now.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART) | libc::SA_SIGINFO | libc::SA_ONSTACK;
        exchange(signal, Some(&ours));
    }
}

/// Whether [`survive`] was called.
pub fn survives() -> bool {
    BELOW[0][0].get().is_some()
}

/// Sets a signal's action, if there is one to set; returns the one before.
fn exchange(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let mut old = MaybeUninit::uninit();
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: an action or null, and room for one, which is filled if the call succeeds.
    unsafe { (__sigaction(signal, new, old.as_mut_ptr()) == 0).then(|| old.assume_init()) }
}

extern "C" fn on_fault<const LAYER: usize>(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let which = usize::from(signal == SIGNALS[1]);
    let below = BELOW[LAYER][which].get();
    // SAFETY: the kernel hands over both, as the action asks for them.
    let (code, at, registers) = unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        ((*info).si_code, (*info).si_addr().addr(), registers)
    };
    let ip = &mut registers[libc::REG_RIP as usize];
    if signal == libc::SIGSEGV && code == FORBIDDEN && has_waited(at) {
        return;
    }
    if is_missing(signal, code, at, below)
        && let Some((resume, is_lost)) = find(*ip as usize)
    {
        if is_lost {
            lose();
        }
        *ip = resume as i64;
        return;
    }
    go_on(signal, info, context, below);
}

/// Whether the program can't see the page that a fault was about.
fn is_missing(signal: c_int, code: c_int, at: usize, below: Option<&libc::sigaction>) -> bool {
    const NO_MAPPING: c_int = 1;
    const NO_PAGE: c_int = 2;
    match code {
        _ if signal == libc::SIGBUS => code >= NO_PAGE,
        NO_MAPPING => true,
        // A handler may be about to allow the access.
        FORBIDDEN => below.is_none_or(|below| below.sa_sigaction == libc::SIG_DFL) && !is_readable(at),
        _ => false,
    }
}

/// Whether the program could read at an address, by a system call that reads there before it finds that it is told to do
/// nothing.
fn is_readable(at: usize) -> bool {
    const NONE_SUCH: c_int = -1;
    // SAFETY: the call changes nothing: there is no such way to change a mask. The thread's error number is that of the
    // code where the fault was.
    unsafe {
        let error = libc::__errno_location();
        let before = *error;
        let asked =
            libc::syscall(libc::SYS_rt_sigprocmask, NONE_SUCH, at & !7, null_mut::<c_void>(), 8_usize);
        let is_refused = asked == -1 && *error == libc::EFAULT;
        *error = before;
        !is_refused
    }
}

/// Does what the signal did before.
fn go_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, below: Option<&libc::sigaction>) {
    // SAFETY: as in `on_fault`.
    let is_sent = unsafe { (*info).si_code } <= 0;
    let (to, flags) = below.map_or((libc::SIG_DFL, 0), |below| (below.sa_sigaction, below.sa_flags));
    if to == libc::SIG_IGN && is_sent {
        return;
    }
    if to == libc::SIG_DFL || to == libc::SIG_IGN || flags & libc::SA_RESETHAND != 0 {
        // SAFETY: all zeros is the default action.
        exchange(signal, Some(&unsafe { core::mem::zeroed() }));
    }
    if to == libc::SIG_DFL || to == libc::SIG_IGN {
        // A fault comes again, as the access does.
        if is_sent {
            // SAFETY: a signal to this thread, which it takes as it leaves the handler.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    // SAFETY: (3) a handler of the program, with the arguments of its kind; the mask is that of its action.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            core::mem::transmute::<usize, Handler>(to)(signal, info, context);
        } else {
            core::mem::transmute::<usize, extern "C" fn(c_int)>(to)(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;
    use crate::{Caching, compare_swap, copy, fetch_add, load, load_as, load_u64, store, store_as};

    const PAGE: usize = 4096;
    /// Pages of a hole's surroundings: enough for copies past the caches.
    const PAGES: usize = 12;
    const LEN: usize = PAGES * PAGE;
    const HOLE: core::ops::Range<usize> = 5 * PAGE..7 * PAGE;

    fn map(protection: c_int, at: usize, len: usize) -> *mut u8 {
        let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
        // SAFETY: new memory, or an address that is this test's.
        let at = unsafe {
            libc::mmap(
                at as *mut c_void,
                len,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }
    /// Pages of which some are not there, or forbidden.
    fn with_hole(is_forbidden: bool) -> *mut u8 {
        /// Far from where the kernel maps by itself: another test's thread would get the hole.
        static PLACE: AtomicUsize = AtomicUsize::new(0x1100_0000_0000);
        let place = PLACE.fetch_add(LEN + PAGE, Ordering::Relaxed);
        let at = map(libc::PROT_READ | libc::PROT_WRITE, place, LEN);
        if is_forbidden {
            map(libc::PROT_NONE, at.addr() + HOLE.start, HOLE.len());
        } else {
            // SAFETY: this test's own pages.
            assert_eq!(unsafe { libc::munmap(at.add(HOLE.start).cast(), HOLE.len()) }, 0);
        }
        at
    }

    /// The program's page that its own handler maps.
    static WANTED: AtomicUsize = AtomicUsize::new(0);
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn own_handler(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: what the kernel tells.
        let at = unsafe { (*info).si_addr() }.addr();
        assert_eq!(at & !(PAGE - 1), WANTED.load(Ordering::Relaxed), "a fault of the program's own");
        map(libc::PROT_READ | libc::PROT_WRITE, at & !(PAGE - 1), PAGE);
    }
    fn has_own_handler() {
        // SAFETY: an action of a handler of this test.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = own_handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()), 0);
        }
    }
    /// An access of the program's own, to a page that its handler maps.
    fn own_fault() {
        let page = map(libc::PROT_NONE, 0, PAGE);
        WANTED.store(page.addr(), Ordering::Relaxed);
        let before = TAKEN.load(Ordering::Relaxed);
        // SAFETY: the handler maps it.
        unsafe { page.write_volatile(1) };
        assert_eq!(TAKEN.load(Ordering::Relaxed), before + 1);
    }

    type Way = (&'static str, unsafe fn(*mut u8, *const u8, usize));
    fn ways() -> Vec<Way> {
        // SAFETY: of these functions: that of `copy`, and both ranges may have holes.
        unsafe fn stored(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: the source has no hole where this is called so.
            unsafe { store(to, core::slice::from_raw_parts(from, len)) };
        }
        // SAFETY: as above.
        unsafe fn loaded(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: the target has no hole where this is called so.
            unsafe { load(from, core::slice::from_raw_parts_mut(to, len)) };
        }
        // SAFETY: as above.
        unsafe fn cached(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: our caller's.
            unsafe { copy(to, from, len, Caching::Cached) };
        }
        // SAFETY: as above.
        unsafe fn streamed(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: our caller's.
            unsafe { copy(to, from, len, Caching::Streaming) };
        }
        // SAFETY: as above.
        unsafe fn passed(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: our caller's.
            unsafe { crate::copies::x86::move_passed(to, from, len) };
        }
        // SAFETY: as above.
        unsafe fn words(to: *mut u8, from: *const u8, len: usize) {
            for at in (0..len).step_by(8) {
                // SAFETY: our caller's.
                unsafe { store_as(to.add(at), &load_u64(from.add(at)).to_ne_bytes(), Caching::Cached) };
            }
        }
        // SAFETY: as above.
        unsafe fn pieces(to: *mut u8, from: *const u8, len: usize) {
            for at in (0..len).step_by(1024) {
                let mut bytes = [0; 1024];
                // SAFETY: our caller's.
                unsafe {
                    load_as(from.add(at), &mut bytes, Caching::Cached);
                    store(to.add(at), &bytes);
                }
            }
        }
        vec![
            ("store", stored),
            ("load", loaded),
            ("copy", cached),
            ("past the caches", streamed),
            ("past the caches in one row", passed),
            ("words", words),
            ("pieces", pieces),
        ]
    }

    #[test]
    fn what_is_not_there_is_dropped_or_told_and_all_else_is_copied() {
        let source: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8 | 1).collect();
        for round in 0..3 {
            // With the default action, with a handler of the program before ours, and with one that replaced ours.
            if round > 0 {
                has_own_handler();
            } else {
                // Rust's library has one.
                // SAFETY: all zeros is the default action.
                exchange(libc::SIGSEGV, Some(&unsafe { core::mem::zeroed() }));
            }
            survive();
            for is_forbidden in [false, true] {
                // The program's handler of the later rounds may allow an access that is forbidden.
                if is_forbidden && round > 0 {
                    continue;
                }
                for (what, way) in ways() {
                    let hole = with_hole(is_forbidden);
                    let mut out = vec![0; LEN];
                    // SAFETY: memory of this test, but for the hole.
                    unsafe {
                        *libc::__errno_location() = libc::EDOM;
                        if what != "load" {
                            way(hole, source.as_ptr(), LEN);
                            assert!(!has_lost(), "{what}: {round}");
                        } else {
                            copy(hole, source.as_ptr(), LEN, Caching::Cached);
                        }
                        for range in [0..HOLE.start, HOLE.end..LEN] {
                            let there = core::slice::from_raw_parts(hole.add(range.start), range.len());
                            assert!(there == &source[range], "{what} to a hole, {round}");
                        }
                        if what != "store" {
                            way(out.as_mut_ptr(), hole, LEN);
                            assert!(has_lost() && !has_lost(), "{what}: {round}");
                            for range in [0..HOLE.start, HOLE.end..LEN] {
                                assert!(out[range.clone()] == source[range], "{what} from a hole, {round}");
                            }
                            assert!(out[HOLE].iter().all(|b| *b == 0), "{what}: {round}");
                        }
                        assert_eq!(compare_swap(hole.add(HOLE.start), 0, 1), 0);
                        assert!(has_lost(), "compare and swap: {round}");
                        assert_eq!(fetch_add(hole.add(HOLE.start), 1), 0);
                        assert_eq!(*libc::__errno_location(), libc::EDOM, "{what}: {round}");
                        assert!(has_lost() && !std::thread::spawn(has_lost).join().unwrap(), "fetch and add");
                        libc::munmap(hole.cast(), LEN);
                    }
                }
            }
            if round > 0 {
                own_fault();
            }
        }
        // A program that is asked has said what it does with the fault.
        let forbidden = map(libc::PROT_NONE, 0, PAGE);
        WANTED.store(forbidden.addr(), Ordering::Relaxed);
        // SAFETY: the program's handler maps it.
        unsafe {
            store(forbidden, &[7; 8]);
            assert_eq!(*forbidden, 7);
        }
    }

    #[test]
    fn a_file_that_was_cut_has_no_pages_there() {
        survive();
        // SAFETY: a file of this test, and its mapping.
        unsafe {
            let file = libc::memfd_create(c"cut".as_ptr(), 0);
            assert!(file >= 0 && libc::ftruncate(file, 2 * PAGE as i64) == 0);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(null_mut(), 2 * PAGE, both, libc::MAP_SHARED, file, 0).cast::<u8>();
            assert_eq!(libc::ftruncate(file, PAGE as i64), 0);
            store(at.add(PAGE - 256), &[3; 512]);
            assert_eq!(*at.add(PAGE - 1), 3);
            let mut out = [0; 512];
            assert!(!has_lost());
            load(at.add(PAGE - 256), &mut out);
            assert!(has_lost() && out[..256] == [3; 256] && out[256..] == [0; 256]);
            libc::close(file);
        }
    }
}
