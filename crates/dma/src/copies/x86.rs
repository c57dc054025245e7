//! Moves by assembly: for each length and processor, one of them is the fastest.
//!
//! The invariants are those of the module above.

use core::arch::asm;
use std::sync::OnceLock;

use crate::fault::{lose, survivable};
use crate::word;

/// From here on a string move is quicker, on processors that have a quick one.
const STRING_BYTES: usize = 3072;
/// What is assumed of the largest cache where the system does not tell.
const USUAL_CACHE: u64 = 32 << 20;
/// The most that one of its users has of a larger one: it belongs to tens of processors, and those of a virtual machine
/// share it with others'.
const MOST_CACHE: u64 = 64 << 20;
const PAGE: usize = 4096;
/// Pages that are copied side by side past the caches, so that several rows of memory are open.
const PAGES: usize = 4;

/// What is quickest on this processor.
pub(super) struct Plan {
    wide: bool,
    string: bool,
    /// Lines that lie changed in the caches of one processor are quick to read for the others: they have the last cache
    /// in common.
    pub(super) hands_over: bool,
    pub(super) streaming_bytes: u64,
}

#[inline]
pub(super) fn plan() -> &'static Plan {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| {
        // Vendor "GenuineIntel": others' string moves depend on how source and target lie to each other.
        let vendor = core::arch::x86_64::__cpuid(0);
        let intel = (vendor.ebx, vendor.edx, vendor.ecx) == (0x756e_6547, 0x4965_6e69, 0x6c65_746e);
        // SAFETY: it reads a number.
        let cache = u64::try_from(unsafe { libc::sysconf(libc::_SC_LEVEL3_CACHE_SIZE) }).unwrap_or(0);
        let cache = if cache == 0 { USUAL_CACHE } else { cache };
        Plan {
            wide: std::is_x86_feature_detected!("avx"),
            string: intel && std::is_x86_feature_detected!("ermsb"),
            hands_over: intel,
            streaming_bytes: cache.min(MOST_CACHE) / 4,
        }
    })
}

/// # Safety
/// Both ranges satisfy (1) and do not overlap; at least 128 bytes.
#[inline]
pub(super) unsafe fn move_cached(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(len >= 128);
    let plan = plan();
    // SAFETY: our caller's; instructions that the processor was found to have.
    unsafe {
        if plan.string && len >= STRING_BYTES {
            string_move(to, from, len);
        } else if plan.wide {
            wide_move(to, from, len);
        } else {
            narrow_move(to, from, len);
        }
    }
}

/// # Safety
/// As [`move_cached`]; the direction flag is clear as the ABI demands.
#[inline]
pub(super) unsafe fn string_move(to: *mut u8, from: *const u8, len: usize) {
    let left: usize;
    // SAFETY: our caller's.
    unsafe {
        asm!(
            survivable!(dropped: "rep movsb"),
            inout("rcx") len => left, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
        if left != 0 {
            move_what_is_there(to.add(len - left), from.add(len - left), left);
        }
    }
}

/// Copies what is left of a move that met a page that is not there: all bytes whose pages are there on both sides.
///
/// # Safety
/// As [`move_cached`], or pages are missing.
#[cold]
#[inline(never)]
unsafe fn move_what_is_there(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // As far as one page of either side goes. Its first byte tells whether it is there.
        let within = |addr: usize| PAGE - addr % PAGE;
        let piece = within(to.addr() + at).min(within(from.addr() + at)).min(len - at);
        // SAFETY: our caller's; the piece is within the ranges.
        unsafe {
            match word::load_if_there(from.add(at)) {
                None => lose(),
                Some(byte) => {
                    if word::store_if_there(to.add(at), byte) {
                        (1..piece).for_each(|i| word::store8(to.add(at + i), word::load8(from.add(at + i))));
                    }
                }
            }
        }
        at += piece;
    }
}

/// A move by blocks of four registers, and the loop that it is made of. The last block ends where the range does, and
/// may overlap the one before.
macro_rules! moves_by_blocks {
    (
        $(#[$needs:meta])?
        $moves:ident, $blocks:ident: $bytes:literal bytes by $mov:literal through $register:ident at
        [0 $second:literal $third:literal $fourth:literal], then $end:literal
    ) => {
        /// # Safety
        /// As [`move_cached`], on a processor that has these registers.
        #[inline]
        $(#[$needs])?
        pub(super) unsafe fn $moves(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: our caller's: there is one block at least.
            unsafe {
                $blocks(to, from, len / $bytes);
                if !len.is_multiple_of($bytes) {
                    $blocks(to.add(len - $bytes), from.add(len - $bytes), 1);
                }
            }
        }

        /// # Safety
        /// As [`move_cached`] for so many whole blocks, which are not 0, on a processor that has these registers.
        #[inline]
        $(#[$needs])?
        unsafe fn $blocks(to: *mut u8, from: *const u8, blocks: usize) {
            // SAFETY: our caller's.
            unsafe {
                let left: usize;
                let (to_at, from_at): (*mut u8, *const u8);
                asm!(
                    survivable!(dropped:
                    "5:",
                    concat!($mov, " {a}, [{from}]"),
                    concat!($mov, " {b}, [{from} + ", $second, "]"),
                    concat!($mov, " {c}, [{from} + ", $third, "]"),
                    concat!($mov, " {d}, [{from} + ", $fourth, "]"),
                    concat!($mov, " [{to}], {a}"),
                    concat!($mov, " [{to} + ", $second, "], {b}"),
                    concat!($mov, " [{to} + ", $third, "], {c}"),
                    concat!($mov, " [{to} + ", $fourth, "], {d}"),
                    concat!("add {from}, ", $bytes),
                    concat!("add {to}, ", $bytes),
                    "dec {n}",
                    "jnz 5b"),
                    $end,
                    n = inout(reg) blocks => left,
                    to = inout(reg) to => to_at,
                    from = inout(reg) from => from_at,
                    a = out($register) _, b = out($register) _, c = out($register) _, d = out($register) _,
                    options(nostack)
                );
                if left != 0 {
                    move_what_is_there(to_at, from_at, left * $bytes);
                }
            }
        }
    };
}

moves_by_blocks! {
    #[target_feature(enable = "avx")]
    wide_move, wide_blocks: 128 bytes by "vmovdqu" through ymm_reg at [0 32 64 96], then "vzeroupper"
}
moves_by_blocks! {
    narrow_move, narrow_blocks: 64 bytes by "movups" through xmm_reg at [0 16 32 48], then ""
}

/// Past the caches: whole groups of pages side by side, the rest as the caches take it.
///
/// # Safety
/// As [`move_cached`].
pub(super) unsafe fn move_streaming(to: *mut u8, from: *const u8, len: usize) {
    const GROUP: usize = PAGES * PAGE;
    let head = to.align_offset(64);
    // The stores need whole lines, and a head that `move_cached` takes.
    let head = if head > 0 { head + 128 } else { 0 };
    if !plan().wide || len < head + GROUP {
        // SAFETY: our caller's.
        return unsafe { move_cached(to, from, len) };
    }
    let groups = (len - head) / GROUP;
    let rest = len - head - groups * GROUP;
    // SAFETY: our caller's; head, groups and rest are the range. A short rest begins within the last group.
    unsafe {
        if head > 0 {
            move_cached(to, from, head);
        }
        // Bytes that were placed before are seen before those that the stores below place (4).
        asm!("sfence", options(nostack, preserves_flags));
        for group in 0..groups {
            let at = head + group * GROUP;
            stream_group(to.add(at), from.add(at));
        }
        asm!("sfence", options(nostack, preserves_flags));
        if rest > 0 {
            let rest = rest.max(128);
            move_cached(to.add(len - rest), from.add(len - rest), rest);
        }
    }
}

/// Past the caches in one row, for lengths of some lines and more.
///
/// # Safety
/// As [`move_cached`].
pub(crate) unsafe fn move_passed(to: *mut u8, from: *const u8, len: usize) {
    if !plan().wide {
        // SAFETY: our caller's.
        return unsafe { move_cached(to, from, len) };
    }
    // The stores need whole lines. `move_cached` takes 128 bytes and more, of which some are copied a second time.
    let head = to.align_offset(64);
    let lines = (len - head) / 64;
    let rest = len - head - lines * 64;
    // SAFETY: our caller's; head, lines and rest are the range.
    unsafe {
        if head > 0 {
            move_cached(to, from, 128);
        }
        // Bytes that were placed before are seen before those that the stores below place (4).
        asm!("sfence", options(nostack, preserves_flags));
        stream_lines(to.add(head), from.add(head), lines);
        asm!("sfence", options(nostack, preserves_flags));
        if rest > 0 {
            move_cached(to.add(len - 128), from.add(len - 128), 128);
        }
    }
}

/// Lines by stores that the caches do not keep.
///
/// # Safety
/// As [`move_cached`] for so many lines, which are not 0, on a processor with AVX; `to` is a multiple of 64. Fences
/// follow.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn stream_lines(to: *mut u8, from: *const u8, lines: usize) {
    let left: usize;
    let (to_at, from_at): (*mut u8, *const u8);
    // SAFETY: our caller's.
    unsafe {
        asm!(
            survivable!(dropped:
            "5:",
            "vmovdqu {a}, [{from}]",
            "vmovdqu {b}, [{from} + 32]",
            "vmovntdq [{to}], {a}",
            "vmovntdq [{to} + 32], {b}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {n}",
            "jnz 5b"),
            "vzeroupper",
            n = inout(reg) lines => left,
            to = inout(reg) to => to_at,
            from = inout(reg) from => from_at,
            a = out(ymm_reg) _, b = out(ymm_reg) _,
            options(nostack)
        );
        if left != 0 {
            move_what_is_there(to_at, from_at, left * 64);
        }
    }
}

/// Four pages side by side, by stores that the caches do not keep.
///
/// # Safety
/// As [`move_cached`] for four pages, on a processor with AVX; `to` is a multiple of 64. Fences follow.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn stream_group(to: *mut u8, from: *const u8) {
    let left: usize;
    // SAFETY: our caller's.
    unsafe {
        asm!(
            survivable!(dropped:
            "5:",
            "vmovdqu {a}, [{from}]",
            "vmovdqu {b}, [{from} + 32]",
            "vmovdqu {c}, [{from} + 4096]",
            "vmovdqu {d}, [{from} + 4128]",
            "vmovdqu {e}, [{from} + 8192]",
            "vmovdqu {f}, [{from} + 8224]",
            "vmovdqu {g}, [{from} + 12288]",
            "vmovdqu {h}, [{from} + 12320]",
            "vmovntdq [{to}], {a}",
            "vmovntdq [{to} + 32], {b}",
            "vmovntdq [{to} + 4096], {c}",
            "vmovntdq [{to} + 4128], {d}",
            "vmovntdq [{to} + 8192], {e}",
            "vmovntdq [{to} + 8224], {f}",
            "vmovntdq [{to} + 12288], {g}",
            "vmovntdq [{to} + 12320], {h}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {n}",
            "jnz 5b"),
            "vzeroupper",
            n = inout(reg) PAGE / 64 => left,
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _,
            e = out(ymm_reg) _, f = out(ymm_reg) _, g = out(ymm_reg) _, h = out(ymm_reg) _,
            options(nostack)
        );
        if left != 0 {
            // Bytes that are copied a second time are the same.
            move_what_is_there(to, from, PAGES * PAGE);
        }
    }
}
