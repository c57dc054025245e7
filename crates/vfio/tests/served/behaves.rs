//! A driver's operations on a served function.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hca_vfio::user::Sleeper;
use hca_vfio::user::wire::{Capabilities, Kind, Reply, Request};
use hca_vfio::{
    ArenaOptions, Bar, Capability, ConfigSpace, DmaArena, DmaBuf, DmaError, DmaMapping, DmaRights,
    FunctionError, Mmio, OpenError, PciFunction, Registers, UserError, UserOptions, Waker,
};

use super::server::{AREA, SPARSE_BYTES, Server, TRAPPED_BYTES, VECTORS};

pub(crate) fn open(server: &Server) -> PciFunction {
    PciFunction::connect(server.path(), UserOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn capabilities(change: impl FnOnce(&mut Capabilities)) -> Capabilities {
    let mut c = Capabilities::default();
    change(&mut c);
    c
}

#[test]
fn a_function_says_what_it_is_and_may_reach_no_memory_when_it_is_opened() {
    let mut server = Server::new();
    let function = open(&server);
    assert_eq!(function.name(), format!("vfio-user://{}", server.path().display()));
    let config = function.config().unwrap();
    assert_eq!((config.vendor_id().unwrap(), config.device_id().unwrap()), (0x15b3, 0x1014));
    assert_eq!(config.bytes(), 256);
    let listed = [(0x11, 0x40), (0x10, 0x60)].map(|(id, offset)| Capability { id, offset });
    assert_eq!(config.capabilities().unwrap(), listed);
    let msix = config.msix().unwrap().unwrap();
    assert_eq!((u32::from(msix.vectors), msix.table_bar, msix.table_offset), (VECTORS, 0, 0x2000));
    assert_eq!((msix.pending_bar, msix.pending_offset), (2, 0x3000));
    assert_eq!(function.msix_vectors().unwrap(), VECTORS);

    // The last user left bus mastering on.
    assert!(!config.bus_master().unwrap());
    assert_eq!(server.state().config[4], 2);
    config.set_bus_master(true).unwrap();
    assert!(config.bus_master().unwrap());
    config.write8(0x80, 1).unwrap();
    config.write16(0x82, 0x0302).unwrap();
    config.write32(0x84, 0x0706_0504).unwrap();
    assert_eq!(server.state().config[0x80..0x88], [1, 0, 2, 3, 4, 5, 6, 7]);
    assert_eq!((config.read8(0x82).unwrap(), config.read32(0x80).unwrap()), (2, 0x0302_0001));
    for outside in [config.read32(0x102).err(), config.read16(0xff).err(), config.write32(256, 0).err()] {
        assert!(matches!(outside, Some(FunctionError::Range { size: 256, .. })), "{outside:?}");
    }
    assert!(!server.state().closed);
    drop((config, function));
    server.join();
    assert!(server.state().closed, "closing the last clone closes the connection");
}

#[test]
fn a_list_of_capabilities_that_leads_in_circles_ends() {
    let server = Server::new();
    server.state().config[0x61] = 0x40;
    let config = open(&server).config().unwrap();
    assert_eq!(config.capabilities().unwrap().len(), 2);
    server.state().config[0x61] = 0x3c;
    assert_eq!(config.capabilities().unwrap().len(), 2, "a place within the header");
    server.state().config[6] = 0;
    assert!(config.capabilities().unwrap().is_empty() && config.msix().unwrap().is_none());
}

#[test]
fn trapped_registers_are_read_and_written_in_either_order_of_bytes() {
    let server = Server::new();
    let bar = open(&server).bar(0).unwrap();
    assert_eq!((bar.size(), bar.mappable()), (TRAPPED_BYTES as u64, vec![]));
    bar.write32_be(0x10, 0x0102_0304).unwrap();
    bar.write64_be(0x18, 0x0102_0304_0506_0708).unwrap();
    bar.write32(0x20, 7).unwrap();
    bar.write64(0x28, 8).unwrap();
    let state = server.state();
    assert_eq!(state.trapped[0x10..0x14], [1, 2, 3, 4]);
    assert_eq!(state.trapped[0x18..0x20], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(state.trapped[0x20..0x24], 7_u32.to_ne_bytes());
    drop(state);
    assert_eq!(
        (bar.read32_be(0x10).unwrap(), bar.read64_be(0x18).unwrap()),
        (0x0102_0304, 0x0102_0304_0506_0708)
    );
    assert_eq!((bar.read32(0x20).unwrap(), bar.read64(0x28).unwrap()), (7, 8));
    for at in [2, TRAPPED_BYTES as u64, u64::MAX - 3] {
        assert!(matches!(bar.read32(at), Err(FunctionError::Range { .. })), "{at:#x}");
        assert!(matches!(bar.write64(at, 0), Err(FunctionError::Range { .. })), "{at:#x}");
    }
    let told = bar.map(0, 4096).unwrap_err().to_string();
    assert!(told.contains("BAR 0") && told.contains("no part of it may be"), "{told}");
}

#[test]
fn a_mapped_part_of_a_bar_is_the_server_s_memory_and_the_rest_can_not_be_mapped() {
    let server = Server::new();
    let function = open(&server);
    let bar = function.bar(2).unwrap();
    assert_eq!(bar.mappable(), [(AREA.offset, AREA.size)]);
    let window = bar.map(AREA.offset, AREA.size as usize).unwrap();
    window.store64_be(0x800, 0x0102_0304_0506_0708);
    assert_eq!(server.state().sparse_word(0x1800), [1, 2, 3, 4, 5, 6, 7, 8]);
    let inner = bar.map(0x1808, 16).unwrap();
    inner.store32_be(4, 9);
    assert_eq!(window.load32_be(0x80c), 9);
    assert_eq!(inner.len(), 16);
    for (offset, len) in
        [(0, 4096), (0xff8, 16), (0x2ff8, 16), (0x3000, 8), (0x1004, 4), (0x1000, 0), (u64::MAX - 7, 64)]
    {
        let told = bar.map(offset, len).unwrap_err().to_string();
        assert!(told.contains("what may be is 0x1000 to 0x3000"), "{told}");
    }
    assert!(matches!(function.bar(1), Err(FunctionError::NoBar { index: 1, .. })));
    assert!(matches!(function.bar(6), Err(FunctionError::NoBar { index: 6, .. })));
    assert_eq!(bar.size(), SPARSE_BYTES);

    let config = function.config().unwrap();
    let refused = config.set_memory_space(false);
    assert!(matches!(refused, Err(FunctionError::StillMapped { windows: 2, .. })), "{refused:?}");
    drop((window, inner));
    config.set_memory_space(false).unwrap();
    assert_eq!(server.state().config[4], 0);
}

#[test]
fn registers_are_reached_by_the_window_where_there_is_one_and_by_calls_elsewhere() {
    let server = Server::new();
    let function = open(&server);
    let mapped = function.bar(2).unwrap().registers(AREA.offset + 0x100, 0x40).unwrap();
    let called = function.bar(0).unwrap().registers(0x100, 0x40).unwrap();
    assert!(mapped.window().is_some() && called.window().is_none() && called.offset() == 0x100);
    for r in [&mapped, &called] {
        r.write32_be(4, 0x0102_0304).unwrap();
        r.write64_be(8, 0x0506_0708_090a_0b0c).unwrap();
        assert_eq!((r.read32_be(4).unwrap(), r.read64_be(8).unwrap()), (0x0102_0304, 0x0506_0708_090a_0b0c));
        for at in [2, 0x40, u64::MAX - 3] {
            assert!(matches!(r.read32_be(at), Err(FunctionError::Range { size: 0x40, .. })), "{at:#x}");
            assert!(matches!(r.write64_be(at, 0), Err(FunctionError::Range { .. })), "{at:#x}");
        }
    }
    assert_eq!(server.state().sparse_word(0x1108), [5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(server.state().trapped[0x104..0x110], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let bar = function.bar(2).unwrap();
    assert!(bar.registers(0, 16).unwrap().window().is_none(), "beside what may be mapped");
    for (offset, len) in [(SPARSE_BYTES, 8), (4, 8), (0, 0), (u64::MAX - 7, 16)] {
        assert!(matches!(bar.registers(offset, len), Err(FunctionError::Range { .. })), "{offset:#x}");
    }
}

/// Clones may be used from several threads at once.
#[test]
fn all_of_a_function_may_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<PciFunction>();
    shared::<(Bar, Registers, Mmio, ConfigSpace, Waker)>();
    shared::<(DmaArena, DmaBuf, DmaMapping)>();
}

#[test]
fn a_window_keeps_the_function_open() {
    let mut server = Server::new();
    let window = open(&server).bar(2).unwrap().map(AREA.offset, 64).unwrap();
    window.store32(0, 1);
    assert!(!server.state().closed);
    drop(window);
    server.join();
}

fn count(event: &OwnedFd) -> Option<u64> {
    let mut out = [0; 8];
    rustix::io::read(event, &mut out).ok().map(|_| u64::from_ne_bytes(out))
}

#[test]
fn interrupts_count_up_the_eventfd_of_their_vector() {
    let server = Server::new();
    server.state().capabilities = capabilities(|c| c.max_msg_fds = 2);
    let function = open(&server);
    let events = function.enable_msix(5).unwrap();
    assert_eq!(server.state().irq_batches, [2, 2, 1], "as many at a time as the server takes");
    assert_eq!(events.iter().map(count).collect::<Vec<_>>(), [None; 5]);
    for vector in [0, 4, 4] {
        server.state().interrupt(vector);
    }
    assert_eq!(events.iter().map(count).collect::<Vec<_>>(), [Some(1), None, None, None, Some(2)]);

    let again = function.enable_msix(1);
    assert!(matches!(again, Err(FunctionError::VectorsInUse { vectors: 5, .. })), "{again:?}");
    function.disable_msix().unwrap();
    assert!(server.state().irqs.iter().all(Option::is_none));
    for asked in [0, VECTORS + 1] {
        let refused = function.enable_msix(asked);
        assert!(matches!(refused, Err(FunctionError::Vectors { has: VECTORS, .. })), "{refused:?}");
    }
    assert_eq!(function.enable_msix(VECTORS).unwrap().len(), VECTORS as usize);
}

#[test]
fn errors_of_the_bus_and_requests_to_let_go_count_up_eventfds_of_their_own() {
    let server = Server::new();
    let function = open(&server);
    let notices = function.notices().unwrap();
    let (error, request) = (notices.error.unwrap(), notices.request.unwrap());
    assert_eq!((count(&error), count(&request)), (None, None));
    server.state().notice(1);
    server.state().notice(1);
    assert_eq!((count(&error), count(&request)), (None, Some(2)));
    server.state().notice(0);
    assert_eq!((count(&error), count(&request)), (Some(1), None));
    // One that knows of neither.
    let server = Server::new();
    server.state().has_notices = 0;
    let notices = open(&server).notices().unwrap();
    assert!(notices.error.is_none() && notices.request.is_none());
    let server = Server::new();
    server.state().device.irq_kinds = 3;
    let notices = open(&server).notices().unwrap();
    assert!(notices.error.is_none() && notices.request.is_none(), "it has no such kinds");
}

/// Clones, windows, mappings and memory of it live, and are dropped later.
#[test]
fn a_function_that_was_let_go_of_is_closed_whoever_still_has_it() {
    let mut server = Server::new();
    let function = open(&server);
    let clone = function.clone();
    let bar = function.bar(2).unwrap();
    let window = bar.map(AREA.offset, 4096).unwrap();
    let part = window.part(64, 64);
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let piece = arena.alloc(4096, 4096).unwrap();
    window.store64(0, 7);
    assert_eq!(server.state().sparse_word(AREA.offset), 7_u64.to_ne_bytes());

    clone.let_go().unwrap();
    server.join();
    assert!(server.state().closed, "its server hears that the client is gone");
    // Whoever writes on does no harm, and nobody sees it.
    window.store64(0, 9);
    part.store64(8, 9);
    assert_eq!((window.load64(0), part.load64(8)), (9, 9));
    assert_eq!(server.state().sparse_word(AREA.offset), 7_u64.to_ne_bytes());
    piece.store(0, &[1; 8]);
    let refused = [
        bar.read32(0).err(),
        function.bar(0).err(),
        bar.map(AREA.offset, 4096).err(),
        function.reset().err(),
        function.notices().err(),
    ];
    for e in refused {
        let told = e.expect("it is gone").to_string();
        assert!(told.contains("was released") && told.contains("open it again"), "{told}");
    }
    drop((piece, arena));
    function.let_go().unwrap();
}

#[test]
fn a_reset_leaves_no_interrupts_and_no_bus_mastering() {
    let server = Server::new();
    let function = open(&server);
    let config = function.config().unwrap();
    config.set_bus_master(true).unwrap();
    let _events = function.enable_msix(2).unwrap();
    function.reset().unwrap();
    let state = server.state();
    assert_eq!((state.resets, state.config[4]), (1, 2));
    assert!(state.irqs.iter().all(Option::is_none));
    drop(state);
    function.enable_msix(2).unwrap();

    let rigid = Server::new();
    rigid.state().device.can_reset = false;
    assert!(matches!(open(&rigid).reset(), Err(FunctionError::NoReset { .. })));
}

#[test]
fn the_device_reads_and_writes_arena_memory_by_the_descriptor_that_it_is_given() {
    let server = Server::new();
    let function = open(&server);
    let arena = DmaArena::new(&function, ArenaOptions { chunk_bytes: 64 << 10, huge_pages: false });
    assert_eq!(arena.mapped_bytes(), 0);
    let buf = arena.alloc(100, 1).unwrap();
    let second = arena.alloc(8192, 8192).unwrap();
    assert_eq!((buf.len(), second.len(), server.state().maps.len()), (4096, 8192, 1));
    assert!(second.iova().0.is_multiple_of(8192) && second.addr().addr().get().is_multiple_of(8192));

    buf.store(10, b"from the driver");
    second.word64(8).store(7_u64.to_be(), Ordering::Relaxed);
    let state = server.state();
    assert_eq!(state.dma_read(buf.iova().0 + 10, 15), b"from the driver");
    assert_eq!(state.dma_read(second.iova().0 + 8, 8), 7_u64.to_be_bytes());
    state.dma_write(second.iova().0 + 4096, b"from the device");
    drop(state);
    let mut out = [0; 15];
    second.load(4096, &mut out);
    assert_eq!(&out, b"from the device");
    assert_eq!(second.word32(12).load(Ordering::Relaxed), 7_u32.to_be());

    // What is given back comes again, and holds nothing of what was there.
    let at = buf.iova();
    drop(buf);
    let again = arena.alloc(4096, 4096).unwrap();
    assert_eq!(again.iova(), at);
    let mut out = [1; 32];
    again.load(0, &mut out);
    assert_eq!(out, [0; 32]);
    assert_eq!(arena.trim().unwrap(), 0);
    drop((again, second));
    assert_eq!(arena.trim().unwrap(), 64 << 10);
    assert_eq!((server.mapped_and_unmapped(), arena.mapped_bytes()), ((0, 1), 0));
}

#[test]
fn pieces_beyond_64_mib_go_back_with_their_chunk() {
    let server = Server::new();
    let arena = DmaArena::new(&open(&server), ArenaOptions::default());
    let short = arena.alloc(64 << 20, 1).unwrap();
    let long = arena.alloc((64 << 20) + 1, 1).unwrap();
    let bytes = [short.len(), long.len()];
    drop(short);
    assert_eq!(arena.mapped_bytes(), bytes[0] + bytes[1], "the short one may come again");
    drop(long);
    assert_eq!((server.mapped_and_unmapped(), arena.mapped_bytes()), ((1, 1), bytes[0]));
}

#[test]
fn long_pieces_have_chunks_of_their_own_and_lie_as_huge_pages_do() {
    let server = Server::new();
    let function = open(&server);
    let arena = DmaArena::new(&function, ArenaOptions { chunk_bytes: 4096, huge_pages: true });
    let long = arena.alloc((3 << 20) + 1, 2 << 20).unwrap();
    assert_eq!(arena.mapped_bytes(), 4 << 20, "whole huge pages, whether there are any or not");
    assert!(!arena.is_huge(), "a server does not take pages that the system has set aside");
    assert!(long.iova().0.is_multiple_of(2 << 20) && long.addr().addr().get().is_multiple_of(2 << 20));
    let pieces: Vec<_> = (0..255).map(|_| arena.alloc(4096, 1).unwrap()).collect();
    assert_eq!(arena.mapped_bytes(), 4 << 20);
    let mut at: Vec<u64> = pieces.iter().map(|p| p.iova().0).collect();
    at.sort_unstable();
    at.dedup();
    assert_eq!(at.len(), 255, "no two are one");
    for (bytes, align) in [(0, 1), (1, 3), (1, 4 << 20), (usize::MAX, 1), (isize::MAX as usize, 1)] {
        let refused = arena.alloc(bytes, align);
        assert!(matches!(refused, Err(DmaError::Size { .. } | DmaError::Memory { .. })), "{refused:?}");
    }
}

#[test]
fn memory_outlives_its_arena_as_long_as_a_piece_is_held_and_is_unmapped_then() {
    let mut server = Server::new();
    let function = open(&server);
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let (held, leaked) = (arena.alloc(1, 1).unwrap(), arena.alloc(1, 1).unwrap());
    let leaked_at = leaked.iova();
    leaked.leak();
    assert_ne!(arena.alloc(1, 1).unwrap().iova(), leaked_at);
    drop((arena, function));
    held.store(0, &[5]);
    assert_eq!(server.state().dma_read(held.iova().0, 1), [5]);
    drop(held);
    server.join();
    assert_eq!(server.mapped_and_unmapped(), (0, 1));
}

#[test]
fn memory_without_a_descriptor_is_refused() {
    let server = Server::new();
    let function = open(&server);
    let mut own = [0_u8; 64];
    let at = core::ptr::NonNull::new(own.as_mut_ptr()).unwrap();
    // SAFETY: it is refused; else the memory would live until the function is closed.
    #[allow(unsafe_code)]
    let refused = unsafe { function.dma_map(at, own.len(), DmaRights::ALL) }.unwrap_err();
    assert!(matches!(refused, DmaError::Foreign { .. }), "{refused}");
    assert!(refused.to_string().contains("take memory from a DmaArena"), "{refused}");
    // Its addresses are free again.
    let arena = DmaArena::new(&function, ArenaOptions::default());
    assert_eq!(arena.alloc(1, 1).unwrap().iova().0, 2 << 20);
}

#[test]
fn pieces_are_aligned_for_the_device_however_short_chunks_are() {
    let server = Server::new();
    let arena = DmaArena::new(&open(&server), ArenaOptions { chunk_bytes: 4096, huge_pages: false });
    let mut held = vec![arena.alloc(4096, 1).unwrap(), arena.alloc(4096, 1).unwrap()];
    for align in [8192, 64 << 10, 2 << 20] {
        let buf = arena.alloc(1, align).unwrap();
        let (here, there) = (buf.addr().addr().get(), buf.iova().0);
        assert!(here.is_multiple_of(align) && there.is_multiple_of(align as u64), "{align:#x}: {there:#x}");
        held.push(buf);
    }
    // A chunk that lies less aligned does not serve, though it is free.
    drop(held.remove(1));
    assert!(arena.alloc(1, 2 << 20).unwrap().iova().0.is_multiple_of(2 << 20));
}

#[test]
fn no_more_is_mapped_than_the_server_takes() {
    let server = Server::new();
    server.state().capabilities = capabilities(|c| c.max_dma_maps = 2);
    let arena = DmaArena::new(&open(&server), ArenaOptions { chunk_bytes: 4096, huge_pages: false });
    let held = [arena.alloc(1, 1).unwrap(), arena.alloc(1, 1).unwrap()];
    assert!(matches!(arena.alloc(1, 1), Err(DmaError::Mappings { limit: 2, .. })));
    drop(held);
    arena.alloc(1, 1).unwrap();
}

#[test]
fn mappings_are_whole_pages_of_the_sizes_that_the_server_takes() {
    for (pgsizes, bytes) in [(4096, 4096), (0x20_0000 | 0x1_0000, 0x1_0000), (0, 4096), (1 << 63, 2 << 20)] {
        let server = Server::new();
        server.state().capabilities = capabilities(|c| c.pgsizes = pgsizes);
        let arena = DmaArena::new(&open(&server), ArenaOptions { chunk_bytes: 4096, huge_pages: false });
        let buf = arena.alloc(1, 1).unwrap();
        assert_eq!((arena.mapped_bytes(), buf.iova().0 % bytes as u64), (bytes, 0), "{pgsizes:#x}");
    }
}

#[test]
fn a_server_that_asks_for_memory_by_messages_gets_what_is_mapped_and_nothing_else() {
    let server = Server::new();
    let function = open(&server);
    let arena = DmaArena::new(&function, ArenaOptions { chunk_bytes: 8192, huge_pages: false });
    let buf = arena.alloc(8192, 1).unwrap();
    buf.store(100, b"asked for");
    let at = buf.iova().0;
    let ask = |r: Request<'_>| r.build(77, false);
    server.state().asks = vec![
        ask(Request::DmaRead { address: at + 100, count: 9 }),
        ask(Request::DmaWrite { address: at + 200, data: b"written" }),
        ask(Request::DmaRead { address: at + 8190, count: 3 }),
        ask(Request::DmaRead { address: at - 1, count: 1 }),
        ask(Request::DmaWrite { address: u64::MAX, data: b"x" }),
        ask(Request::DeviceReset),
        [&ask(Request::DeviceReset)[..2], &[99, 0], &ask(Request::DeviceReset)[4..]].concat(),
        ask(Request::DmaRead { address: at, count: 1 << 20 }),
    ];
    assert_eq!(function.config().unwrap().vendor_id().unwrap(), 0x15b3, "the call goes on meanwhile");
    let state = server.state();
    let mut answers = state.answers.iter();
    let mut next = || answers.next().unwrap();
    let read = next();
    let parsed = Reply::parse(11, &read.payload).unwrap();
    assert_eq!((read.header.id, parsed), (77, Reply::DmaRead { address: at + 100, data: b"asked for" }));
    assert_eq!(Reply::parse(12, &next().payload).unwrap(), Reply::DmaWrite { address: at + 200, count: 7 });
    let refusals: Vec<_> = (0..6).map(|_| next().header.kind).collect();
    let kind = |errno| Kind::Refusal { errno };
    assert_eq!(
        refusals,
        [14, 14, 14, 95, 38, 14].map(kind),
        "outside, outside, outside, not ours, unknown, too long"
    );
    drop(state);
    let mut out = [0; 7];
    buf.load(200, &mut out);
    assert_eq!(&out, b"written");
    // What is unmapped is not answered any more.
    drop(buf);
    arena.trim().unwrap();
    server.state().asks = vec![ask(Request::DmaRead { address: at, count: 1 })];
    function.config().unwrap();
    assert_eq!(server.state().answers.last().unwrap().header.kind, kind(14));
}

#[test]
fn transfers_as_long_as_any_may_be_go_through_a_socket_that_holds_less() {
    let server = Server::new();
    let function = open(&server);
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let buf = arena.alloc(2 << 20, 1).unwrap();
    let pattern: Vec<u8> = (0..1_u32 << 18).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_ne_bytes()).collect();
    buf.store(0, &pattern);
    let at = buf.iova().0;
    server.state().asks = vec![
        Request::DmaRead { address: at, count: 1 << 20 }.build(1, false),
        Request::DmaWrite { address: at + (1 << 20), data: &pattern }.build(2, false),
    ];
    function.config().unwrap();
    let state = server.state();
    let read = Reply::parse(11, &state.answers[0].payload).unwrap();
    assert!(read == Reply::DmaRead { address: at, data: &pattern }, "1 MiB is as it was");
    let mut out = vec![0; 1 << 20];
    buf.load(1 << 20, &mut out);
    assert!(out == pattern, "1 MiB came as it was sent");
}

#[test]
fn a_server_that_can_be_woken_is_and_one_that_can_not_is_left_alone() {
    let server = Server::new();
    server.state().sleeper = Some(Sleeper::new().unwrap());
    let function = open(&server);
    let waker = function.waker().unwrap();
    let woken = || {
        let mut count = [0; 8];
        rustix::io::read(server.state().sleeper.as_ref().unwrap(), &mut count).is_ok()
    };
    waker.after_doorbell();
    assert!(!woken(), "it polls");
    server.state().sleeper.as_ref().unwrap().announce();
    waker.after_doorbell();
    assert!(woken());
    server.state().sleeper.as_ref().unwrap().awake();
    waker.after_doorbell();
    assert!(!woken());
    assert!(open(&Server::new()).waker().is_none());
}

#[test]
fn threads_take_turns_at_a_function() {
    let server = Server::new();
    let function = open(&server);
    let arena = DmaArena::new(&function, ArenaOptions { chunk_bytes: 4096, huge_pages: false });
    std::thread::scope(|s| {
        for t in 0..4_u64 {
            let (bar, arena) = (function.bar(0).unwrap(), arena.clone());
            s.spawn(move || {
                for i in 0..50 {
                    let buf = arena.alloc(1 + (i as usize % 3) * 4096, 1).unwrap();
                    buf.store(0, &t.to_ne_bytes());
                    bar.write64(8 * t, i).unwrap();
                    assert_eq!(bar.read64(8 * t).unwrap(), i);
                    assert_eq!(buf.word64(0).load(Ordering::Relaxed), t);
                    drop(buf);
                    if i % 8 == 0 {
                        arena.trim().unwrap();
                    }
                }
            });
        }
    });
    arena.trim().unwrap();
    assert_eq!((arena.mapped_bytes(), server.state().maps.len()), (0, 0));
}

#[test]
fn what_is_no_pci_function_and_where_no_server_is_are_refused() {
    let server = Server::new();
    server.state().device.is_pci = false;
    let refused = PciFunction::connect(server.path(), UserOptions::default());
    assert!(matches!(refused, Err(OpenError::NotPci { .. })), "{refused:?}");
    let nowhere = std::env::temp_dir().join("hca-vfio-nobody.sock");
    let refused = PciFunction::connect(&nowhere, UserOptions::default().deadline(Duration::from_secs(1)));
    let Err(e @ OpenError::User(UserError::Connect { .. })) = refused else { panic!("{refused:?}") };
    assert!(e.to_string().contains("hca-vfio-nobody.sock: No such file"), "{e}");
    let long = std::env::temp_dir().join("x".repeat(200));
    let refused = PciFunction::connect(&long, UserOptions::default());
    assert!(matches!(refused, Err(OpenError::User(UserError::Connect { .. }))), "{refused:?}");
}
