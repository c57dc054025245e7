//! The end of programs that call `_exit` or `_Exit`, which run no handler of the program's end. A library that has
//! something to do even then names a function: libibverbs of this project sends the acknowledgements that it owes.

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The function of a library. It waits for no lock, as a signal handler may end the process.
type Last = extern "C" fn();

static LAST: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// The process that has it to do. A child that was made by `vfork` has this memory, too.
static PROCESS: AtomicI32 = AtomicI32::new(0);

fn process() -> c_int {
    // SAFETY: it has no arguments.
    unsafe { libc::getpid() }
}

/// Has a function called before this process ends by `_exit`; the last one counts.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn hca_before_exit(last: Last) {
    LAST.store(last as *mut c_void, Ordering::Relaxed);
    // Release: pairs with the Acquire of `end`.
    PROCESS.store(process(), Ordering::Release);
}

/// Ends the process.
pub(crate) fn end(status: c_int) -> ! {
    // Acquire: pairs with the Release of `hca_before_exit`.
    if PROCESS.load(Ordering::Acquire) == process() {
        let last = LAST.swap(null_mut(), Ordering::Relaxed);
        if !last.is_null() {
            // SAFETY: the address of a function of this type, whose object stays.
            let last: Last = unsafe { transmute(last) };
            last();
        }
    }
    loop {
        // SAFETY: it takes a number, and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

#[cfg(not(test))]
mod calls {
    use super::*;

    #[unsafe(no_mangle)]
    extern "C" fn _exit(status: c_int) -> ! {
        end(status)
    }
    #[unsafe(no_mangle)]
    extern "C" fn _Exit(status: c_int) -> ! {
        end(status)
    }
}
