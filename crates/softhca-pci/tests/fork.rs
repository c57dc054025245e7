//! A process that serves a function and drives it forks: its child's drops end neither, and unmap nothing of the
//! child's.
//!
//! The test has no harness, because a child would lack the harness's threads. An alarm ends a child that hangs.
//!
//! Invariants:
//! 1. The child maps memory, drops inherited objects, and ends by `_exit`.
#![allow(unsafe_code)] // `fork`, with `alarm` and `_exit` in its child

use hca_fabric::LoopbackNet;
use hca_prm::command::hca::EnableHcaIn;
use hca_prm::{CMD_TYPE, CmdQueueEntry};
use hca_vfio::{ArenaOptions, Bar, DmaArena, DmaBuf, PciFunction, UserOptions};
use softhca::{Options, Progress, SoftHca};
use softhca_pci::{PortKind, Served};

const PAGE: usize = 4096;

/// Gives a command by the queue in this memory; whether the function takes it from there, and gives its slot back.
fn is_answered(bar: &Bar, queue: &DmaBuf) -> bool {
    let mut entry = CmdQueueEntry::new()
        .with(CmdQueueEntry::TYPE, CMD_TYPE)
        .with(CmdQueueEntry::INPUT_LENGTH, 16)
        .with(CmdQueueEntry::OUTPUT_LENGTH, 16)
        .with(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, *EnableHcaIn::new().as_bytes())
        .with(CmdQueueEntry::OWNERSHIP, true);
    queue.store(0, entry.as_bytes());
    bar.write32_be(0x18, 1).unwrap();
    // Whoever reads a register hears of the write before.
    bar.read32_be(0).unwrap();
    queue.load(0, entry.as_bytes_mut());
    !entry.get(CmdQueueEntry::OWNERSHIP)
}

fn main() {
    let fabric = LoopbackNet::new().attach("10.0.0.1".parse().unwrap());
    let inline = Options { progress: Progress::Inline, ..Options::default() };
    let adapter = SoftHca::open(Box::new(fabric), inline).unwrap();
    let served = Served::start(adapter, 1, PortKind::InfiniBand).unwrap();
    let function = PciFunction::connect(&served.sockets()[0], UserOptions::default()).unwrap();
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let buf = arena.alloc(PAGE, PAGE).unwrap();
    function.config().unwrap().set_bus_master(true).unwrap();
    let bar = function.bar(0).unwrap();
    bar.write32_be(0x10, (buf.iova().0 >> 32) as u32).unwrap();
    bar.write32_be(0x14, buf.iova().0 as u32).unwrap();
    assert!(is_answered(&bar, &buf), "a command before the fork");
    let at: *mut libc::c_void = buf.addr().as_ptr().cast();

    // SAFETY: (1)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: (1) nothing is replaced, as a child has nothing there.
        let own = unsafe {
            libc::alarm(20);
            libc::mmap(at, PAGE, libc::PROT_READ, flags, -1, 0)
        };
        // Nor does a child let go of what is its parent's.
        let _ = function.let_go();
        drop((buf, arena, bar, function, served));
        let mut there = 0_u8;
        // SAFETY: it looks at no byte of the page, and the answer lives on the stack.
        let kept = unsafe { libc::mincore(at, PAGE, &mut there) } == 0;
        // SAFETY: (1)
        unsafe { libc::_exit(i32::from(own != at) | i32::from(!kept) << 1) };
    }
    let mut status = 0;
    // SAFETY: the status lives on the stack.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(
        status, 0,
        "the child: status {status:#x}, of which 0x7f is the signal, and 0x200 memory of its own lost"
    );

    assert!(served.sockets()[0].exists(), "the parent's socket");
    assert!(is_answered(&bar, &buf), "the function reaches the parent's memory as before");
    function.reset().expect("the function answers as before");
    drop((buf, arena, bar, function));
    let socket = served.sockets()[0].clone();
    drop(served);
    assert!(!socket.exists(), "the socket goes with its server");
    println!("a fork beside a served function: ok");
}
