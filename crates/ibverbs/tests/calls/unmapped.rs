//! Programs that unmap memory which is registered: an adapter in silicon has pinned its pages.

use super::processes::alone_with;
use super::*;

const PAGE: usize = 4096;
/// Pages of the memory, of which those of the hole are unmapped.
const LEN: usize = 32 * PAGE;
const HOLE: std::ops::Range<usize> = 9 * PAGE..11 * PAGE;
const SUCCESS: u32 = 0;
const LOCAL_PROTECTION: u32 = 4;
const REMOTE_ACCESS: u32 = 10;

/// A device of the program with one queue pair, and its memory.
struct End {
    context: *mut IbvContext,
    pd: *mut IbvPd,
    cq: *mut IbvCq,
    qp: *mut IbvQp,
    memory: *mut u8,
    mr: *mut IbvMr,
}

/// Ends on the first and on the last device, which may be the same.
fn ends(qp_type: u32) -> [End; 2] {
    let mut count: c_int = 0;
    let list = call!(ibv_get_device_list(&raw mut count) -> *mut *mut c_void);
    [0, count as usize - 1].map(|place| {
        // SAFETY: the list has so many devices.
        let device = unsafe { *list.add(place) };
        let context = call!(ibv_open_device(device) -> *mut IbvContext);
        assert!(!context.is_null(), "{}", errno());
        let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
        let cq = call!(ibv_create_cq(context, 16, 0, 0, 0) -> *mut IbvCq);
        let mut init = IbvQpInitAttr { qp_type, ..init_attr(cq) };
        let qp = call!(ibv_create_qp(pd, &raw mut init) -> *mut IbvQp);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let memory = unsafe { libc::mmap(null_mut(), LEN, protection, flags, -1, 0) }.cast::<u8>();
        let mr = call!(ibv_reg_mr(pd, memory, LEN, 0b111) -> *mut IbvMr);
        assert!(!qp.is_null() && !mr.is_null(), "{}", errno());
        End { context, pd, cq, qp, memory, mr }
    })
}

impl End {
    fn gid(&self) -> [u64; 2] {
        let mut gid = [0u64; 2];
        assert_eq!(call!(ibv_query_gid(self.context, 1, 1, &raw mut gid) -> c_int), 0);
        gid
    }
    fn path(&self) -> IbvAhAttr {
        IbvAhAttr { dgid: self.gid(), hop_limit: 1, is_global: 1, port_num: 1, ..IbvAhAttr::default() }
    }
    fn qpn(&self) -> u32 {
        // SAFETY: a queue pair that exists.
        unsafe { (*self.qp).qp_num }
    }
    fn connect(&self, peer: &Self, psn: u32) {
        let reset = IbvQpAttr::default();
        assert_eq!(modify(self.qp, &reset, 1), 0, "RESET");
        connect_to(self.qp, peer.qpn(), peer.path(), psn);
    }
    fn unmap(&self) {
        // SAFETY: memory of this test, which it does not use there.
        assert_eq!(unsafe { libc::munmap(self.memory.add(HOLE.start).cast(), HOLE.len()) }, 0);
    }
    /// A whole mapping of zeros again.
    fn map(&self) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the place of this test's memory.
        unsafe { libc::mmap(self.memory.cast(), LEN, protection, flags, -1, 0) };
    }
    fn fill(&self) {
        // SAFETY: mapped memory of this test.
        unsafe { self.memory.write_bytes(7, LEN) };
    }
    /// Whether what was filled at the peer is here, but for the hole.
    fn has(&self, len: usize) -> bool {
        // SAFETY: this test's memory without its hole.
        (0..len).step_by(8).filter(|at| !HOLE.contains(at)).all(|at| unsafe { *self.memory.add(at) } == 7)
    }
    fn receive(&self, len: usize) {
        let mut into = sge(self.mr, self.memory, len as u32);
        let mut wr = IbvRecvWr { wr_id: 1, next: null_mut(), sg_list: &raw mut into, num_sge: 1 };
        let mut bad: *mut IbvRecvWr = null_mut();
        assert_eq!(call!(@ slot(self.context, 216), (self.qp, &raw mut wr, &raw mut bad) -> c_int), 0);
    }
    /// Posts a request about `len` bytes from `at` on, here and at the peer.
    fn post(&self, opcode: u32, (at, len): (usize, usize), peer: &Self) {
        let mut entry = sge(self.mr, self.memory.wrapping_add(at), len as u32);
        let mut wr = send_wr(2, opcode, 2);
        (wr.sg_list, wr.num_sge, wr.addr_or_ah) = (&raw mut entry, 1, peer.memory as u64 + at as u64);
        // SAFETY: a region that exists.
        wr.second = [unsafe { (*peer.mr).rkey.load(std::sync::atomic::Ordering::Relaxed) }, 0];
        let mut bad: *mut IbvSendWr = null_mut();
        assert_eq!(call!(@ slot(self.context, 208), (self.qp, &raw mut wr, &raw mut bad) -> c_int), 0);
    }
    /// The status of the next completion.
    fn status(&self) -> u32 {
        let mut wc = [IbvWc::default()];
        while call!(@ slot(self.context, 96), (self.cq, 1, &raw mut wc) -> c_int) == 0 {
            std::thread::yield_now();
        }
        wc[0].status
    }
    fn end(self) {
        assert_eq!(call!(ibv_destroy_qp(self.qp) -> c_int), 0);
        assert_eq!(call!(ibv_dereg_mr(self.mr) -> c_int), 0);
        assert_eq!(call!(ibv_destroy_cq(self.cq) -> c_int), 0);
        assert_eq!(call!(ibv_dealloc_pd(self.pd) -> c_int), 0);
        assert_eq!(call!(ibv_close_device(self.context) -> c_int), 0);
    }
}

/// One adapter whose packets go by a socket, and two that share memory.
const DEVICES: [&str; 2] =
    ["a=udp://127.0.0.1?share=yes", "a=auto://127.0.0.1?share=yes b=auto://127.0.0.1?share=yes"];
const SEND: u32 = 2;
const WRITE: u32 = 0;
const READ: u32 = 4;

#[test]
fn a_program_that_unmaps_registered_memory_lives_on() {
    let test = "unmapped::a_program_that_unmaps_registered_memory_lives_on";
    if DEVICES.into_iter().all(|devices| !alone_with(test, "unmapped", [("HCA_DEVICES", devices)])) {
        return;
    }
    let [a, b] = ends(2);
    let connections = std::cell::Cell::new(0);
    let again = || {
        for end in [&a, &b] {
            end.map();
        }
        // On a busy machine packets of one connection, sent again, come within the next one: they have PSNs far from its.
        let psn = connections.replace(connections.get() + 1) << 12;
        a.connect(&b, psn);
        b.connect(&a, psn);
    };
    // A peer reads what is not there: a refused access. So often that ways which adapters agree on are in use.
    for len in [64, 3 * PAGE, LEN - HOLE.start] {
        for _ in 0..3 {
            again();
            a.fill();
            b.unmap();
            a.post(READ, (HOLE.start, len), &b);
            assert_eq!(a.status(), REMOTE_ACCESS, "READ of {len}");
            again();
            a.unmap();
            a.post(SEND, (HOLE.start, len), &b);
            assert_eq!(a.status(), LOCAL_PROTECTION, "SEND of {len}");
            again();
            a.unmap();
            a.post(WRITE, (HOLE.start, len), &b);
            assert_eq!(a.status(), LOCAL_PROTECTION, "WRITE of {len}");
        }
    }
    // A WRITE to pages that are not there succeeds: nobody sees them.
    for len in [HOLE.start + 8, HOLE.end + 8, LEN] {
        for _ in 0..3 {
            again();
            a.fill();
            b.unmap();
            b.receive(len);
            a.post(SEND, (0, len), &b);
            assert_eq!([a.status(), b.status()], [SUCCESS; 2], "SEND of {len}");
            assert!(b.has(len), "SEND of {len}");
            again();
            a.fill();
            b.unmap();
            a.post(WRITE, (0, len), &b);
            assert_eq!(a.status(), SUCCESS, "WRITE of {len}");
            assert!(b.has(len), "WRITE of {len}");
            again();
            b.fill();
            a.unmap();
            a.post(READ, (0, len), &b);
            assert_eq!(a.status(), SUCCESS, "READ of {len}");
            assert!(a.has(len), "READ of {len}");
        }
    }
    [a, b].into_iter().for_each(End::end);
}

#[test]
fn a_datagram_to_memory_that_is_unmapped_is_received() {
    let test = "unmapped::a_datagram_to_memory_that_is_unmapped_is_received";
    if DEVICES.into_iter().all(|devices| !alone_with(test, "unmapped", [("HCA_DEVICES", devices)])) {
        return;
    }
    const QKEY: u32 = 0x1234;
    let [a, b] = ends(4);
    for end in [&a, &b] {
        let attr = IbvQpAttr { qp_state: 1, port_num: 1, qkey: QKEY, ..IbvQpAttr::default() };
        assert_eq!(modify(end.qp, &attr, 0b111_0001 & !0b1000), 0, "INIT");
        assert_eq!(modify(end.qp, &IbvQpAttr { qp_state: 2, ..attr }, 1), 0, "RTR");
        assert_eq!(modify(end.qp, &IbvQpAttr { qp_state: 3, ..attr }, 0x1_0001), 0, "RTS");
    }
    let mut path = b.path();
    let ah = call!(ibv_create_ah(a.pd, &raw mut path) -> *mut c_void);
    assert!(!ah.is_null(), "{}", errno());
    for _ in 0..3 {
        b.map();
        b.unmap();
        let mut into = sge(b.mr, b.memory.wrapping_add(HOLE.start), 1024);
        let mut wr = IbvRecvWr { wr_id: 1, next: null_mut(), sg_list: &raw mut into, num_sge: 1 };
        let mut bad: *mut IbvRecvWr = null_mut();
        assert_eq!(call!(@ slot(b.context, 216), (b.qp, &raw mut wr, &raw mut bad) -> c_int), 0);
        let mut entry = sge(a.mr, a.memory, 512);
        let mut wr = send_wr(2, SEND, 2);
        (wr.sg_list, wr.num_sge, wr.addr_or_ah, wr.second) = (&raw mut entry, 1, ah as u64, [b.qpn(), QKEY]);
        let mut bad: *mut IbvSendWr = null_mut();
        assert_eq!(call!(@ slot(a.context, 208), (a.qp, &raw mut wr, &raw mut bad) -> c_int), 0);
        assert_eq!([a.status(), b.status()], [SUCCESS; 2]);
    }
    assert_eq!(call!(ibv_destroy_ah(ah) -> c_int), 0);
    [a, b].into_iter().for_each(End::end);
}

/// The kernel pins pages as it registers them, and refuses those that the program itself can not use so.
#[test]
fn memory_that_the_program_can_not_use_so_is_not_registered() {
    const READ: usize = 0b100;
    const WRITE: usize = 0b11;
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    let mapped = |protection: c_int| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let memory = unsafe { libc::mmap(null_mut(), 4 * PAGE, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        memory.cast::<u8>()
    };
    let register = |at: *mut u8, len: usize, rights: usize| {
        let mr = call!(ibv_reg_mr(pd, at, len, rights) -> *mut IbvMr);
        if mr.is_null() { Err(errno()) } else { Ok(mr) }
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let usual = mapped(both);
    let mr = register(usual, 4 * PAGE, READ | WRITE).unwrap();
    let only_read = mapped(libc::PROT_READ);
    assert_eq!(register(only_read, 4 * PAGE, WRITE).err(), Some(libc::EFAULT));
    assert_eq!(register(only_read.wrapping_add(7), 100, WRITE).err(), Some(libc::EFAULT));
    let of_read = register(only_read, 4 * PAGE, READ).unwrap();
    assert_eq!(register(mapped(libc::PROT_NONE), 4 * PAGE, READ).err(), Some(libc::EFAULT));
    let holed = mapped(both);
    // SAFETY: memory of this test, which nobody uses.
    unsafe { libc::munmap(holed.wrapping_add(PAGE).cast(), PAGE) };
    assert_eq!(register(holed, 4 * PAGE, 0).err(), Some(libc::EFAULT));
    assert_eq!(register(holed.wrapping_add(PAGE), 8, 0).err(), Some(libc::EFAULT));
    let whole = register(holed.wrapping_add(2 * PAGE), 2 * PAGE, WRITE).unwrap();
    // A refused change leaves the region as it was.
    assert_eq!(call!(ibv_rereg_mr(mr, 1, 0, holed, 4 * PAGE, 0) -> c_int), -4);
    assert_eq!(errno(), libc::EFAULT);
    for mr in [mr, of_read, whole] {
        assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    }
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}
