//! Peers that meet while the system has no descriptors, memory or messages for that, or while signals come.
//!
//! Invariants:
//! 1. The handler touches an atomic and the registers that it is given.
#![allow(unsafe_code)] // a handler of signals

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::children::child;
use super::*;
use test_support::filter;
use test_support::roles::say;

/// Runs something while the system says that too many descriptors are on their way.
pub(super) fn with_too_many_on_their_way<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let refused = s.spawn(|| {
            filter::refuse(&[libc::SYS_sendmsg], libc::ETOOMANYREFS);
            run()
        });
        refused.join().unwrap()
    })
}

#[test]
fn a_welcome_that_the_system_does_not_take_is_said_again() {
    let (mut a, mut b, to_b) = two();
    with_too_many_on_their_way(|| (0..10).for_each(|_| _ = recv(&mut b, &mut Vec::new())));
    let to_a = b.open_path(&av(a.attr().local)).unwrap();
    assert!(b.next_deadline().is_some(), "who sleeps says it again as well");
    let mut got = [Vec::new(), Vec::new()];
    send(&mut a, to_b, &[packet(1, 40)]);
    send(&mut b, to_a, &[packet(2, 40)]);
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g.iter().all(|g| g.len() == 1));
    for f in [&a, &b] {
        assert_eq!((counter(f, "peers_linked"), counter(f, "peers_refused")), (1, 0));
        assert_eq!((f.meetings.greetings, f.next_deadline()), (0, None));
    }
}

#[test]
fn a_welcome_that_is_never_taken_ends_the_connection() {
    let d = domain();
    let (mut a, mut b) = (open(&d), open(&d));
    a.open_path(&av(b.attr().local)).unwrap();
    let begin = now();
    let at = |f: &mut ShmFabric, ms| {
        f.recv(begin + Duration::from_millis(ms), RxBudget { packets: 1, bytes: 1 }, &mut |_| {});
    };
    with_too_many_on_their_way(|| (0..50).for_each(|i| at(&mut b, i * 100)));
    at(&mut a, 5000);
    for f in [&a, &b] {
        assert_eq!((f.links.len(), f.meetings.greetings, f.next_deadline()), (0, 0, None));
    }
}

/// Meets a peer whose welcome it has no room for, and once more.
pub(super) fn short_of_descriptors_and_memory(domain: &str) {
    let mut a = open(domain);
    for (resource, met) in [(Resource::Nofile, 1), (Resource::As, 2)] {
        let (mut b, start) = (open(domain), Clock::now());
        let to_b = a.open_path(&av(b.attr().local)).unwrap();
        while counter(&b, "peers_linked") == 0 {
            recv(&mut b, &mut Vec::new());
        }
        let limit = getrlimit(resource);
        let current = Some(if resource == Resource::As { address_space() } else { 0 });
        setrlimit(resource, Rlimit { current, ..limit }).unwrap();
        while a.links.len() > 0 {
            recv(&mut a, &mut Vec::new());
        }
        setrlimit(resource, limit).unwrap();
        while b.links.len() > 0 {
            recv(&mut b, &mut Vec::new());
        }
        let mut got = Vec::new();
        while got.is_empty() || counter(&a, "peers_linked") < met {
            send(&mut a, to_b, &[packet(1, 40)]);
            recv(&mut a, &mut Vec::new());
            recv(&mut b, &mut got);
            assert!(start.elapsed() < Duration::from_secs(10), "{resource:?}: it is not met again");
        }
        assert_eq!((counter(&a, "peers_dropped_garbage"), counter(&a, "accepts_failed")), (0, met));
        drop(b);
        while a.links.len() > 0 {
            recv(&mut a, &mut Vec::new());
        }
    }
    say("met");
}

/// The bytes of address space that this process has, in pages.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|l| l.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    kib.unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_peer_whose_welcome_there_was_no_room_for_is_met_later() {
    let mut helper = child("short", &domain(), None);
    assert_eq!(helper.line(), "met");
    assert!(helper.child.wait().unwrap().success());
}

/// Calls that were interrupted, or done, since the handler is there.
#[cfg(target_arch = "x86_64")]
static CALLS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Stands for the system: every other call is interrupted.
#[cfg(target_arch = "x86_64")]
extern "C" fn interrupts(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let count = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let result = if count.is_multiple_of(2) { -i64::from(libc::EINTR) } else { 0 };
    // SAFETY: (1): the kernel hands the context over, as the action asks for it.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RAX as usize] = result };
}

/// As by a profiler's timer: kernels before 6.0 end `fallocate` for any signal, and later ones that of huge pages.
#[cfg(target_arch = "x86_64")]
#[test]
fn memory_is_made_though_a_signal_interrupts_the_system() {
    use super::super::memory::{Writers, create};
    use test_support::filter::{install, op};
    // SAFETY: (1); the set and the flags are zeros.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = interrupts as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, core::ptr::null_mut()), 0);
    }
    let bytes = 5 << 20;
    let made = std::thread::spawn(move || {
        install(&[
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_fallocate as u32, 0, 1),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_TRAP, 0, 0),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        ]);
        create("hca-test", bytes, Writers::Creator).map(drop)
    });
    made.join().unwrap().expect("it is asked again");
    // Three parts, none of which takes so long that the next signal comes first.
    assert_eq!(CALLS.load(std::sync::atomic::Ordering::Relaxed), 6);
}
