//! Windows, groups, device memory, null regions, changed regions, domains, XRC.

use super::processes::alone;
use super::*;
use crate::abi::{
    IbvAllocDmAttr, IbvMw, IbvMwBind, IbvMwBindInfo, IbvParentDomainInitAttr, IbvQpInitAttrEx, IbvQpOpenAttr,
    IbvSrq, IbvSrqAttr, IbvSrqInitAttrEx, IbvXrcdInitAttr,
};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;

const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const MW_BIND: u32 = 16;
const ZERO_BASED: u32 = 32;

impl Pair {
    fn register_with(&self, memory: &mut [u8], access: u32) -> *mut IbvMr {
        let mr = call!(ibv_reg_mr(self.pd, memory.as_mut_ptr(), memory.len(), access) -> *mut IbvMr);
        assert!(!mr.is_null(), "{}", errno());
        mr
    }
    /// Posts one request of the first queue pair, with one entry.
    fn post(&self, mut wr: IbvSendWr, mut entry: IbvSge) -> c_int {
        (wr.sg_list, wr.num_sge) = (&raw mut entry, 1);
        self.post_as_is(&mut wr)
    }
    fn post_as_is(&self, wr: &mut IbvSendWr) -> c_int {
        let mut bad: *mut IbvSendWr = null_mut();
        call!(@ slot(self.context, 208), (self.qps[0], &raw mut *wr, &raw mut bad) -> c_int)
    }
    /// An RDMA request of 8 bytes, and the status of its completion.
    fn rdma(&self, opcode: u32, from: IbvSge, addr: u64, rkey: u32) -> u32 {
        let wr = IbvSendWr { addr_or_ah: addr, second: [rkey, 0], ..send_wr(5, opcode, 2) };
        assert_eq!(self.post(wr, from), 0);
        let mut wc = [IbvWc::default()];
        while call!(@ slot(self.context, 96), (self.cq, 1, &raw mut wc) -> c_int) == 0 {}
        assert_eq!(wc[0].wr_id, 5);
        wc[0].status
    }
    fn write(&self, from: IbvSge, addr: u64, rkey: u32) -> u32 {
        self.rdma(0, from, addr, rkey)
    }
}

fn rkey(mw: *mut IbvMw) -> u32 {
    // SAFETY: a window that exists.
    unsafe { (*mw).rkey.load(Ordering::Relaxed) }
}
fn dereg(mr: *mut IbvMr) -> c_int {
    call!(ibv_dereg_mr(mr) -> c_int)
}

#[test]
fn a_window_of_type_1_is_bound_with_a_completion_and_shows_its_range_alone() {
    let pair = pair();
    let mut memory = vec![0u8; 256];
    memory[..8].copy_from_slice(b"through!");
    let mr = pair.register_with(&mut memory, LOCAL_WRITE | MW_BIND);
    let base = memory.as_ptr();
    let mw = call!(@ slot(pair.context, 64), (pair.pd, 1) -> *mut IbvMw);
    let bind = |length: u64, flags| {
        let info = IbvMwBindInfo { mr, addr: base as u64 + 64, length, mw_access_flags: flags };
        let mut bind = IbvMwBind { wr_id: 77, send_flags: 2, bind_info: info };
        call!(@ slot(pair.context, 72), (pair.qps[1], mw, &raw mut bind) -> c_int)
    };
    assert_eq!(bind(1024, REMOTE_WRITE), libc::EINVAL, "beyond the region");
    for _ in 0..3 {
        assert_eq!(bind(8, REMOTE_WRITE), 0);
        let wc = pair.completions(1);
        assert_eq!((wc[0].wr_id, wc[0].opcode), (77, 5));
    }
    let from = sge(mr, base, 8);
    assert_eq!(pair.write(from, base as u64 + 64, rkey(mw)), 0);
    assert_eq!(&memory[64..72], b"through!");
    assert_eq!(dereg(mr), libc::EBUSY, "the window is bound to it");
    let key = rkey(mw);
    assert_eq!(bind(0, 0), 0);
    assert_eq!(pair.completions(1)[0].opcode, 5);
    assert_eq!(pair.write(from, base as u64 + 64, key), 10, "a remote access error: the key is taken back");
    assert_eq!(call!(@ slot(pair.context, 80), (mw) -> c_int), 0);
    assert_eq!(dereg(mr), 0);
    pair.end();
}

/// Two requests of the library stand for it.
#[test]
fn a_bind_that_is_flushed_has_one_completion() {
    const WR_FLUSH_ERR: u32 = 5;
    let pair = pair();
    let mut memory = vec![0u8; 256];
    let mr = pair.register_with(&mut memory, LOCAL_WRITE | MW_BIND);
    let mw = call!(@ slot(pair.context, 64), (pair.pd, 1) -> *mut IbvMw);
    let bind_with = |wr_id, send_flags| {
        let info =
            IbvMwBindInfo { mr, addr: memory.as_ptr() as u64, length: 8, mw_access_flags: REMOTE_READ };
        let mut bind = IbvMwBind { wr_id, send_flags, bind_info: info };
        call!(@ slot(pair.context, 72), (pair.qps[1], mw, &raw mut bind) -> c_int)
    };
    let bind = |wr_id| bind_with(wr_id, 2);
    assert_eq!([bind_with(69, 0), bind(70)], [0; 2]);
    assert_eq!(pair.completions(1)[0].wr_id, 70);
    assert_eq!(modify(pair.qps[1], &IbvQpAttr { qp_state: 6, ..IbvQpAttr::default() }, 1), 0);
    assert_eq!([bind(71), bind(72)], [0; 2]);
    // One by one, and beyond the last.
    for expected in [(1, 71), (1, 72), (0, 0)] {
        let mut wc = [IbvWc::default()];
        let got = call!(@ slot(pair.context, 96), (pair.cq, 1, &raw mut wc) -> c_int);
        assert_eq!((got, wc[0].wr_id), expected);
        assert!(got == 0 || (wc[0].status, wc[0].opcode) == (WR_FLUSH_ERR, 5), "{}", wc[0].status);
    }
    assert_eq!([bind(73), bind(74)], [0; 2]);
    let mut wc = [IbvWc::default(); 4];
    assert_eq!(call!(@ slot(pair.context, 96), (pair.cq, 4, &raw mut wc) -> c_int), 2);
    assert_eq!([wc[0].wr_id, wc[1].wr_id], [73, 74]);
    // Without a signal a bind has an error, but one.
    assert_eq!([bind_with(75, 0), bind(76), bind_with(76, 0)], [0; 3]);
    for expected in [(1, 75), (1, 76), (1, 76), (0, 0)] {
        let mut wc = [IbvWc::default()];
        let got = call!(@ slot(pair.context, 96), (pair.cq, 1, &raw mut wc) -> c_int);
        assert_eq!((got, wc[0].wr_id), expected);
        assert!(got == 0 || wc[0].status == WR_FLUSH_ERR, "{}", wc[0].status);
    }
    assert_eq!(call!(@ slot(pair.context, 80), (mw) -> c_int), 0);
    assert_eq!(dereg(mr), 0);
    pair.end();
}

#[test]
fn a_window_keeps_nothing_for_queue_pairs_that_are_gone() {
    if !alone("objects::a_window_keeps_nothing_for_queue_pairs_that_are_gone", "full") {
        return;
    }
    let mut pair = pair();
    let mut memory = vec![0u8; 256];
    let mr = pair.register_with(&mut memory, LOCAL_WRITE | MW_BIND);
    let alloc = |kind: u32| call!(@ slot(pair.context, 64), (pair.pd, kind) -> *mut IbvMw);
    let mw = alloc(1);
    // Now all windows but one are there.
    let mut others = Vec::from_iter(std::iter::repeat_with(|| alloc(2)).take_while(|mw| !mw.is_null()));
    assert_eq!(call!(@ slot(pair.context, 80), (others.pop().unwrap()) -> c_int), 0);
    let mut init = init_attr(pair.cq);
    for _ in 0..2 {
        let info =
            IbvMwBindInfo { mr, addr: memory.as_ptr() as u64, length: 8, mw_access_flags: REMOTE_READ };
        let mut bind = IbvMwBind { wr_id: 70, send_flags: 2, bind_info: info };
        let bound = call!(@ slot(pair.context, 72), (pair.qps[1], mw, &raw mut bind) -> c_int);
        assert_eq!(bound, 0);
        pair.completions(1);
        for qp in &mut pair.qps {
            assert_eq!(call!(ibv_destroy_qp(*qp) -> c_int), 0);
            *qp = call!(ibv_create_qp(pair.pd, &raw mut init) -> *mut IbvQp);
        }
        pair.connect();
    }
}

#[test]
fn a_bind_that_finds_no_room_leaves_the_window_as_it_was() {
    let pair = pair();
    let mut memory = vec![0u8; 256];
    memory[..8].copy_from_slice(b"through!");
    let mr = pair.register_with(&mut memory, LOCAL_WRITE | MW_BIND);
    let base = memory.as_ptr();
    let mw = [1, 2].map(|kind| call!(@ slot(pair.context, 64), (pair.pd, kind) -> *mut IbvMw));
    let info =
        |at: u64| IbvMwBindInfo { mr, addr: base as u64 + at, length: 8, mw_access_flags: REMOTE_WRITE };
    let bind = |at: u64| {
        let mut bind = IbvMwBind { wr_id: 77, send_flags: 2, bind_info: info(at) };
        call!(@ slot(pair.context, 72), (pair.qps[1], mw[0], &raw mut bind) -> c_int)
    };
    let post = |mut wr: IbvSendWr| {
        let mut bad: *mut IbvSendWr = null_mut();
        call!(@ slot(pair.context, 208), (pair.qps[1], &raw mut wr, &raw mut bad) -> c_int)
    };
    assert_eq!(bind(64), 0);
    pair.completions(1);
    // Messages that wait for receive requests of the peer: then there is room for one request, and for none.
    (0..3).for_each(|_| assert_eq!(post(send_wr(1, 2, 2)), 0));
    let keys = mw.map(rkey);
    for _ in 0..2 {
        assert_eq!(bind(128), libc::ENOMEM);
        let _ = post(send_wr(1, 2, 2));
    }
    let bind_mw = abi::IbvMw2Bind { mw: mw[1], rkey: keys[1] ^ 1, bind_info: info(192) };
    assert_eq!(post(IbvSendWr { bind_mw, ..send_wr(2, 8, 2) }), libc::ENOMEM);
    assert_eq!(mw.map(rkey), keys);
    assert_eq!(pair.write(sge(mr, base, 8), base as u64 + 64, keys[0]), 0);
    assert_eq!(&memory[64..72], b"through!");
    for qp in pair.qps {
        assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
    }
    assert_eq!(mw.map(|mw| call!(@ slot(pair.context, 80), (mw) -> c_int)), [0; 2]);
    assert_eq!(dereg(mr), 0);
    pair.end_without_queue_pairs();
}

#[test]
fn a_window_of_type_2_is_bound_by_a_request_and_its_key_is_taken_back_by_another() {
    let pair = pair();
    let mut memory = vec![0u8; 64];
    let mr = pair.register_with(&mut memory, LOCAL_WRITE | MW_BIND);
    let mw = call!(@ slot(pair.context, 64), (pair.pd, 2) -> *mut IbvMw);
    let key = rkey(mw) ^ 1;
    let mut bind = send_wr(1, 8, 2);
    let info = IbvMwBindInfo { mr, addr: memory.as_ptr() as u64, length: 64, mw_access_flags: REMOTE_READ };
    bind.bind_mw = abi::IbvMw2Bind { mw, rkey: key, bind_info: info };
    assert_eq!(pair.post_as_is(&mut bind), 0);
    let mut back = IbvSendWr { imm_or_rkey: key, ..send_wr(2, 7, 2) };
    assert_eq!(pair.post_as_is(&mut back), 0);
    assert_eq!(
        pair.completions(2).iter().map(|wc| (wc.wr_id, wc.opcode)).collect::<Vec<_>>(),
        [(1, 5), (2, 6)]
    );
    bind.bind_mw.rkey = key ^ 0x100;
    assert_eq!(pair.post_as_is(&mut bind), libc::EINVAL, "another key than the window's");
    assert_eq!(call!(@ slot(pair.context, 80), (mw) -> c_int), 0);
    assert_eq!(dereg(mr), 0);
    pair.end();
}

#[test]
fn device_memory_is_copied_to_and_from_and_its_regions_begin_at_zero() {
    let pair = pair();
    let mut attr = IbvAllocDmAttr { length: 128, log_align_req: 3, comp_mask: 0 };
    let alloc = later(pair.context, 256);
    let dm = call!(@ alloc, (pair.context, &raw mut attr) -> *mut abi::IbvDm);
    assert!(!dm.is_null());
    // SAFETY: device memory that exists.
    let (to_dm, from_dm) = unsafe { ((*dm).memcpy_to_dm as usize, (*dm).memcpy_from_dm as usize) };
    let mut memory = vec![0u8; 64];
    assert_eq!(call!(@ to_dm, (dm, 16, b"device m".as_ptr(), 8) -> c_int), 0);
    assert_eq!(call!(@ to_dm, (dm, 121, b"device m".as_ptr(), 8) -> c_int), libc::EINVAL);
    assert_eq!(call!(@ from_dm, (memory.as_mut_ptr(), dm, usize::MAX, 8) -> c_int), libc::EINVAL);
    let register = |offset: usize, flags| call!(@ later(pair.context, 264), (pair.pd, dm, offset, 64, flags) -> *mut IbvMr);
    assert!(register(16, LOCAL_WRITE).is_null() && register(65, ZERO_BASED).is_null());
    let of_dm = register(16, LOCAL_WRITE | ZERO_BASED);
    let mr = pair.register_with(&mut memory, LOCAL_WRITE | REMOTE_WRITE);
    // SAFETY: a region that exists.
    let key = unsafe { (*mr).rkey.load(Ordering::Relaxed) };
    assert_eq!(pair.write(sge(of_dm, std::ptr::null(), 8), memory.as_ptr() as u64, key), 0);
    assert_eq!(&memory[..8], b"device m");
    assert_eq!(call!(@ later(pair.context, 248), (dm) -> c_int), libc::EBUSY);
    assert_eq!((dereg(of_dm), dereg(mr)), (0, 0));
    assert_eq!(call!(@ later(pair.context, 248), (dm) -> c_int), 0);
    attr.length = 1 << 30;
    assert!(call!(@ alloc, (pair.context, &raw mut attr) -> *mut c_void).is_null());
    pair.end();
}

#[test]
fn a_null_region_gives_zeros_and_takes_what_is_lost() {
    let pair = pair();
    let null = call!(@ later(pair.context, 304), (pair.pd) -> *mut IbvMr);
    assert!(!null.is_null(), "{}", errno());
    let mut memory = vec![7u8; 64];
    let mr = pair.register_with(&mut memory, LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ);
    // SAFETY: a region that exists.
    let key = unsafe { (*mr).rkey.load(Ordering::Relaxed) };
    let nowhere = sge(null, 0xdead_0000 as *const u8, 8);
    // A read into it, and a write from it.
    assert_eq!(pair.rdma(4, nowhere, memory.as_ptr() as u64, key), 0);
    assert_eq!(pair.write(nowhere, memory.as_ptr() as u64, key), 0);
    assert_eq!((&memory[..8], memory[8]), (&[0; 8][..], 7));
    let key = lkey(null);
    assert_eq!((dereg(null), dereg(mr)), (0, 0));
    let gone = IbvSge { addr: 0, length: 8, lkey: key };
    assert_eq!(pair.rdma(0, gone, 0, 0), 4, "a local protection error");
    pair.end();
}

#[test]
fn a_null_region_that_is_refused_leaves_nothing() {
    if !alone("objects::a_null_region_that_is_refused_leaves_nothing", "full") {
        return;
    }
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    // SAFETY: numbers.
    let mut attr: abi::IbvDeviceAttr = unsafe { std::mem::zeroed() };
    assert_eq!(call!(ibv_query_device(context, &raw mut attr) -> c_int), 0);
    let mut of_dm = IbvAllocDmAttr { length: 64, log_align_req: 0, comp_mask: 0 };
    let dm = call!(@ later(context, 256), (context, &raw mut of_dm) -> *mut c_void);
    let reg = || call!(@ later(context, 264), (pd, dm, 0, 64, ZERO_BASED) -> *mut IbvMr);
    // All regions that the device has but one: a null region takes two.
    let mut last = reg();
    let mut count = 1;
    while count < attr.max_mr {
        last = reg();
        if last.is_null() {
            break;
        }
        count += 1;
    }
    if !last.is_null() {
        assert_eq!(dereg(last), 0);
    } else {
        panic!("{count} regions of {}", attr.max_mr);
    }
    let null = call!(@ later(context, 304), (pd) -> *mut IbvMr);
    assert_eq!((null, errno()), (null_mut(), libc::ENOMEM));
    assert!(!reg().is_null(), "it has left a region");
}

#[test]
fn a_region_is_changed_in_place() {
    let pair = pair();
    let (mut first, mut second) = (vec![1u8; 64], vec![2u8; 128]);
    let mr = pair.register_with(&mut first, LOCAL_WRITE);
    let rereg = |flags: u32, pd: *mut IbvPd, addr: *mut u8, len: usize, access: u32| call!(ibv_rereg_mr(mr, flags, pd, addr, len, access) -> c_int);
    assert_eq!(rereg(8, null_mut(), null_mut(), 0, 0), -1);
    assert_eq!((rereg(0, null_mut(), null_mut(), 0, 0), errno()), (-4, libc::EINVAL), "no change");
    assert_eq!(rereg(1, null_mut(), null_mut(), 0, 0), -1, "no memory");
    assert_eq!(rereg(1, null_mut(), second.as_mut_ptr(), 128, 1), -1, "rights that are not to be changed");
    assert_eq!(
        (rereg(4, null_mut(), null_mut(), 0, 1 << 15), errno()),
        (-4, libc::EINVAL),
        "an unknown right"
    );
    assert_eq!(rereg(1, null_mut(), second.as_mut_ptr(), 128, 0), 0);
    assert_eq!(rereg(4, null_mut(), null_mut(), 0, LOCAL_WRITE | REMOTE_WRITE), 0);
    let pd = call!(ibv_alloc_pd(pair.context) -> *mut IbvPd);
    assert_eq!(rereg(2, pd, null_mut(), 0, 0), 0);
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), libc::EBUSY, "the region is in it");
    assert_eq!(rereg(2, pair.pd, null_mut(), 0, 0), 0);
    // SAFETY: a region that exists.
    let (key, addr) = unsafe { ((*mr).rkey.load(Ordering::Relaxed), (*mr).addr.load(Ordering::Relaxed)) };
    assert_eq!(addr.cast(), second.as_mut_ptr());
    assert_eq!(pair.write(sge(mr, second.as_ptr(), 8), second.as_ptr() as u64 + 64, key), 0);
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(dereg(mr), 0);
    pair.end();
}

#[test]
fn memory_of_a_descriptor_is_a_region() {
    let pair = pair();
    // SAFETY: a name that ends with zero.
    let fd = unsafe { libc::memfd_create(c"dmabuf".as_ptr(), 0) };
    // SAFETY: the descriptor was just made.
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.set_len(8192).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"of a fd!", 4100).unwrap();
    let register = common::symbol("ibv_reg_dmabuf_mr", "IBVERBS_1.12").unwrap();
    let mr = call!(@ register, (pair.pd, 4100, 64, 0x1000, file.as_raw_fd(), 1) -> *mut IbvMr);
    assert!(!mr.is_null(), "{}", errno());
    let mut memory = vec![0u8; 64];
    let to = pair.register_with(&mut memory, LOCAL_WRITE | REMOTE_WRITE);
    // SAFETY: a region that exists.
    let key = unsafe { (*to).rkey.load(Ordering::Relaxed) };
    assert_eq!(pair.write(sge(mr, 0x1000 as *const u8, 8), memory.as_ptr() as u64, key), 0);
    assert_eq!(&memory[..8], b"of a fd!");
    assert_eq!((dereg(mr), dereg(to)), (0, 0));
    assert!(call!(@ register, (pair.pd, 0, 64, 0, -1isize, 1) -> *mut IbvMr).is_null());
    assert_eq!(errno(), libc::EBADF);
    for (offset, len) in [(8192 - 32, 64), (8192, 64), (usize::MAX, 64), (1 << 40, 64)] {
        let beyond = call!(@ register, (pair.pd, offset, len, 0, file.as_raw_fd(), 1) -> *mut IbvMr);
        assert!(beyond.is_null() && errno() == libc::EINVAL, "{offset}: beyond the end, {}", errno());
    }
    pair.end();
}

#[test]
fn a_parent_domain_is_its_protection_domain() {
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    let mut none = 0u32;
    let td = call!(@ later(context, 192), (context, &raw mut none) -> *mut abi::IbvTd);
    let mut attr = IbvParentDomainInitAttr {
        pd,
        td,
        comp_mask: 0,
        alloc: std::ptr::null(),
        free: std::ptr::null(),
        pd_context: null_mut(),
    };
    let create = later(context, 208);
    let parent = call!(@ create, (context, &raw mut attr) -> *mut IbvPd);
    let mut memory = [0u8; 64];
    let mr = call!(ibv_reg_mr(parent, memory.as_mut_ptr(), 64, 1) -> *mut IbvMr);
    assert!(!mr.is_null(), "{}", errno());
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), libc::EBUSY);
    assert_eq!(call!(@ later(context, 200), (td) -> c_int), libc::EBUSY);
    attr.pd = parent;
    assert!(call!(@ create, (context, &raw mut attr) -> *mut c_void).is_null(), "a parent's parent");
    attr.pd = null_mut();
    assert!(call!(@ create, (context, &raw mut attr) -> *mut c_void).is_null());
    assert_eq!(dereg(mr), 0);
    assert_eq!(call!(ibv_dealloc_pd(parent) -> c_int), 0);
    assert_eq!(call!(@ later(context, 200), (td) -> c_int), 0);
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}

#[test]
fn a_target_is_opened_again_and_lives_as_long_as_one_opening() {
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    let cq = call!(ibv_create_cq(context, 16, 0, 0, 0) -> *mut IbvCq);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let open_xrcd = |oflags| {
        let mut attr = IbvXrcdInitAttr { comp_mask: 3, fd: file.as_raw_fd(), oflags };
        call!(@ later(context, 32), (context, &raw mut attr) -> *mut c_void)
    };
    assert!(open_xrcd(0).is_null(), "the file has no domain");
    assert_eq!(errno(), libc::EAGAIN);
    let xrcd = open_xrcd(libc::O_CREAT);
    let again = open_xrcd(0);
    assert!(!xrcd.is_null() && !again.is_null() && open_xrcd(libc::O_CREAT | libc::O_EXCL).is_null());
    let mut srq_attr = IbvSrqInitAttrEx {
        srq_context: null_mut(),
        attr: IbvSrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 },
        comp_mask: 0xf,
        srq_type: 1,
        pd,
        xrcd,
        cq,
        tm_cap: [0; 2],
    };
    let srq = call!(@ later(context, 40), (context, &raw mut srq_attr) -> *mut IbvSrq);
    let mut number = 0u32;
    assert_eq!(call!(@ later(context, 48), (srq, &raw mut number) -> c_int), 0);
    assert_ne!(number, 0);

    // SAFETY: numbers and null pointers.
    let mut init: IbvQpInitAttrEx = unsafe { std::mem::zeroed() };
    (init.qp_type, init.comp_mask, init.xrcd) = (10, 2, xrcd);
    let target = call!(@ later(context, 56), (context, &raw mut init) -> *mut IbvQp);
    assert!(!target.is_null(), "{}", errno());
    // SAFETY: a queue pair that exists.
    let qp_num = unsafe { (*target).qp_num };
    let mut attr = IbvQpOpenAttr { comp_mask: 0xb, qp_num, xrcd: again, qp_context: null_mut(), qp_type: 10 };
    let opened = call!(@ later(context, 64), (context, &raw mut attr) -> *mut IbvQp);
    assert!(!opened.is_null(), "{}", errno());
    assert_eq!(call!(ibv_destroy_qp(target) -> c_int), 0);
    let to_init = IbvQpAttr { qp_state: 1, port_num: 1, ..IbvQpAttr::default() };
    assert_eq!(modify(opened, &to_init, 0b11_1001), 0, "it is there still");
    let close = later(context, 24);
    assert_eq!(call!(@ close, (xrcd) -> c_int), 0);
    assert_eq!(call!(@ close, (again) -> c_int), libc::EBUSY);
    let mut bad: *mut IbvSendWr = null_mut();
    let mut wr = send_wr(1, 2, 0);
    assert_eq!(call!(@ slot(context, 208), (opened, &raw mut wr, &raw mut bad) -> c_int), libc::EINVAL);
    assert_eq!(call!(ibv_destroy_qp(opened) -> c_int), 0);
    assert!(call!(@ later(context, 64), (context, &raw mut attr) -> *mut c_void).is_null());
    assert_eq!(call!(ibv_destroy_srq(srq) -> c_int), 0);
    assert_eq!(call!(@ close, (again) -> c_int), 0);
    assert_eq!(call!(ibv_destroy_cq(cq) -> c_int), 0);
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}

#[test]
fn a_datagram_is_answered_by_its_completion_and_a_group_is_joined() {
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    let cq = call!(ibv_create_cq(context, 16, 0, 0, 0) -> *mut IbvCq);
    let mut init = init_attr(cq);
    init.qp_type = 4;
    let qp = call!(ibv_create_qp(pd, &raw mut init) -> *mut IbvQp);
    let attr = IbvQpAttr { port_num: 1, qkey: 0x11, ..IbvQpAttr::default() };
    for (state, mask) in [(1, 0x71), (2, 1), (3, 1 | 1 << 16)] {
        assert_eq!(modify(qp, &IbvQpAttr { qp_state: state, ..attr }, mask), 0, "{state}");
    }
    let mut memory = vec![0u8; 256];
    let mr = call!(ibv_reg_mr(pd, memory.as_mut_ptr(), 256, 1) -> *mut IbvMr);
    let mut gid = [0u8; 16];
    assert_eq!(call!(ibv_query_gid(context, 1, 1, &raw mut gid) -> c_int), 0);
    let pair = Pair { context, pd, cq, qps: [qp; 2] };
    let receive = || {
        let mut entry = sge(mr, memory.as_ptr(), 128);
        let mut wr = IbvRecvWr { wr_id: 1, next: null_mut(), sg_list: &raw mut entry, num_sge: 1 };
        let mut bad: *mut IbvRecvWr = null_mut();
        assert_eq!(call!(@ slot(context, 216), (qp, &raw mut wr, &raw mut bad) -> c_int), 0);
    };
    let send = |ah: *mut c_void, qpn| {
        let wr = IbvSendWr { addr_or_ah: ah as u64, second: [qpn, 0x11], ..send_wr(2, 2, 0) };
        assert_eq!(pair.post(wr, sge(mr, memory.as_ptr().wrapping_add(200), 8)), 0);
        pair.completions(1)[0]
    };
    // SAFETY: a queue pair that exists.
    let own = unsafe { (*qp).qp_num };
    let halves = [0, 8].map(|at| u64::from_ne_bytes(gid[at..at + 8].try_into().unwrap()));
    let mut to_self =
        IbvAhAttr { dgid: halves, hop_limit: 9, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
    let ah = call!(ibv_create_ah(pd, &raw mut to_self) -> *mut c_void);
    receive();
    let mut wc = send(ah, own);
    // RoCEv2 over IPv4.
    assert_eq!((wc.byte_len, wc.src_qp, wc.wc_flags, wc.sl), (48, own, 1, 2));
    let back = call!(ibv_create_ah_from_wc(pd, &raw mut wc, memory.as_ptr(), 1) -> *mut c_void);
    assert!(!back.is_null(), "{}", errno());
    receive();
    assert_eq!(send(back, own).src_qp, own);

    let mut group = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\x01\x02\x03";
    let attach = |gid: &mut [u8; 16]| call!(ibv_attach_mcast(qp, gid.as_mut_ptr(), 0) -> c_int);
    assert_eq!(attach(&mut gid), libc::EINVAL, "no group's");
    let joined = attach(&mut group);
    // A device in memory has no groups.
    assert!(joined == 0 || joined == libc::EOPNOTSUPP, "{joined}");
    if joined == 0 {
        assert_eq!(attach(&mut group), 0, "once more");
        assert_eq!(call!(ibv_detach_mcast(qp, group.as_mut_ptr(), 0) -> c_int), 0);
        assert_ne!(call!(ibv_detach_mcast(qp, group.as_mut_ptr(), 0) -> c_int), 0, "it is no member");
    }
    for ah in [ah, back] {
        assert_eq!(call!(ibv_destroy_ah(ah) -> c_int), 0);
    }
    assert_eq!(dereg(mr), 0);
    assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
    pair.end_without_queue_pairs();
}

#[test]
fn a_buffer_is_registered_by_attributes() {
    let pair = pair();
    let symbol = |name, node| common::symbol(name, node).unwrap();
    let mut buffer: *mut c_void = null_mut();
    let alloc = symbol("ibv_alloc_buf", "IBVERBS_1.17");
    let memory = call!(@ alloc, (pair.pd, 8192, &raw mut buffer) -> *mut u8);
    assert!(!memory.is_null() && !buffer.is_null());
    let mut attr = abi::IbvMrInitAttr {
        length: 4096,
        access: 1,
        comp_mask: 1 | 1 << 1 | 1 << 5,
        iova: 0x5000,
        addr: memory.wrapping_add(4096).cast(),
        fd: -1,
        fd_offset: 0,
        dmah: null_mut(),
        buf: buffer,
    };
    let register = symbol("ibv_reg_mr_ex", "IBVERBS_1.15");
    let register = |attr: &mut abi::IbvMrInitAttr| call!(@ register, (pair.pd, &raw mut *attr) -> *mut IbvMr);
    let mr = register(&mut attr);
    assert!(!mr.is_null(), "{}", errno());
    assert_eq!(dereg(mr), 0);
    attr.length = 4097;
    assert!(register(&mut attr).is_null() && errno() == libc::EINVAL, "beyond the buffer");
    attr.comp_mask = 1 << 4;
    assert!(register(&mut attr).is_null() && errno() == libc::EOPNOTSUPP, "no DMA handles");
    let mr =
        call!(@ symbol("ibv_reg_buf_mr", "IBVERBS_1.17"), (pair.pd, buffer, memory, 8192, 1) -> *mut IbvMr);
    assert_eq!(dereg(mr), 0);
    assert_eq!(call!(@ symbol("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18"), (buffer) -> c_int), -1);
    call!(@ symbol("ibv_free_buf", "IBVERBS_1.17"), (buffer) -> ());
    pair.end();
}

/// Calls a function of a later node.
macro_rules! of_node {
    ($name:ident $node:literal ($($arg:expr),*) -> $ret:ty) => {
        call!(@ common::symbol(stringify!($name), $node).expect(stringify!($name)), ($($arg),*) -> $ret)
    };
}

/// A context by a duplicate of another's command descriptor, of which the library is the owner.
fn import_device(of: *mut IbvContext) -> *mut IbvContext {
    // SAFETY: a context that is open.
    let command = unsafe { libc::dup((*of).cmd_fd) };
    let context = of_node!(ibv_import_device "IBVERBS_1.10" (command) -> *mut IbvContext);
    assert!(!context.is_null(), "{}", errno());
    // SAFETY: both contexts are open.
    unsafe {
        assert_eq!((*context).cmd_fd, command);
        assert!((*context).device == (*of).device && (*context).async_fd != (*of).async_fd);
    }
    context
}
fn import_pd(context: *mut IbvContext, handle: u32) -> *mut IbvPd {
    of_node!(ibv_import_pd "IBVERBS_1.10" (context, handle) -> *mut IbvPd)
}
fn import_mr(pd: *mut IbvPd, handle: u32) -> *mut IbvMr {
    of_node!(ibv_import_mr "IBVERBS_1.10" (pd, handle) -> *mut IbvMr)
}

#[test]
fn objects_are_imported_by_the_descriptor_of_a_context_and_by_handles() {
    let pair = pair();
    let context = import_device(pair.context);
    // SAFETY: a domain that exists.
    let pd = import_pd(context, unsafe { (*pair.pd).handle });
    assert!(!pd.is_null(), "{}", errno());
    // Memory of the imported domain works with the queue pairs of the other one.
    let mut memory = vec![0u8; 64];
    memory[..8].copy_from_slice(b"imported");
    let base = memory.as_mut_ptr();
    let mr = call!(ibv_reg_mr(pd, base, 64, LOCAL_WRITE | REMOTE_WRITE) -> *mut IbvMr);
    assert!(!mr.is_null(), "{}", errno());
    // SAFETY: a region that exists.
    let again = import_mr(pair.pd, unsafe { (*mr).handle });
    assert!(!again.is_null(), "{}", errno());
    let of = |mr: *mut IbvMr| {
        // SAFETY: a region that exists.
        let mr = unsafe { &*mr };
        let numbers = [&mr.lkey, &mr.rkey].map(|key| key.load(Ordering::Relaxed));
        (numbers, mr.length.load(Ordering::Relaxed), mr.handle, mr.addr.load(Ordering::Relaxed))
    };
    let (first, second) = (of(mr), of(again));
    assert_eq!((second.0, second.1, second.2), (first.0, 64, first.2));
    assert!(second.3.is_null() && first.3.cast() == base);
    assert_eq!(pair.write(sge(again, base, 8), base as u64 + 32, first.0[1]), 0);
    assert_eq!(&memory[32..40], b"imported");
    let rereg = call!(ibv_rereg_mr(again, 4, 0, 0, 0, LOCAL_WRITE) -> c_int);
    assert_eq!((rereg, errno()), (-1, libc::EINVAL), "an import is not changed");
    // One of them ends the region, and the other one is let go of.
    assert_eq!(dereg(again), 0);
    assert_eq!(pair.write(sge(mr, base, 8), base as u64 + 32, first.0[1]), 4, "a local protection error");
    assert_eq!(dereg(mr), libc::EINVAL);
    of_node!(ibv_unimport_mr "IBVERBS_1.10" (mr) -> ());
    assert!(import_mr(pd, first.2).is_null());
    assert_eq!(errno(), libc::ENOENT);

    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), libc::EBUSY, "queue pairs are in it");
    of_node!(ibv_unimport_pd "IBVERBS_1.10" (pd) -> ());
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
    pair.end();
}

#[test]
fn a_queue_pair_tells_the_index_of_the_gid_that_it_was_given() {
    let pair = pair();
    let index = |qp| {
        let (mut attr, mut init) = (IbvQpAttr::default(), init_attr(null_mut()));
        assert_eq!(call!(ibv_query_qp(qp, &raw mut attr, 0, &raw mut init) -> c_int), 0);
        (attr.qp_state, attr.ah_attr.sgid_index)
    };
    assert_eq!(index(pair.qps[0]), (3, 0));
    let mut gid = [0u64; 2];
    assert_eq!(call!(ibv_query_gid(pair.context, 1, 3, &raw mut gid) -> c_int), 0);
    let path = IbvAhAttr { dgid: gid, sgid_index: 3, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
    assert_eq!(modify(pair.qps[0], &IbvQpAttr::default(), 1), 0);
    // SAFETY: a queue pair that exists.
    connect_to(pair.qps[0], unsafe { (*pair.qps[1]).qp_num }, path, 0);
    assert_eq!(index(pair.qps[0]), (3, 3));
    assert_eq!(modify(pair.qps[0], &IbvQpAttr::default(), 1), 0);
    assert_eq!(index(pair.qps[0]), (0, 0), "a reset forgets it");
    let mut beyond = IbvAhAttr { sgid_index: 4, ..path };
    assert!(call!(ibv_create_ah(pair.pd, &raw mut beyond) -> *mut c_void).is_null());
    assert_eq!(errno(), libc::EINVAL);
    let query = common::symbol("_ibv_query_gid_ex", "IBVERBS_1.11").unwrap();
    let mut entry = [0_u64; 4];
    let at = |index: u32| call!(@ query, (pair.context, 1, index, &raw mut entry, 0, 32) -> c_int);
    assert_eq!([3, 4, u32::MAX].map(at), [0, libc::EINVAL, libc::EINVAL]);
    pair.end();
}

#[test]
fn what_a_program_leaves_open_ends_with_the_last_context_of_its_file() {
    let (pair, left) = (pair(), open());
    let other = import_device(left);
    let pd = call!(ibv_alloc_pd(left) -> *mut IbvPd);
    let cq = call!(ibv_create_cq(left, 16, 0, 0, 0) -> *mut IbvCq);
    let mut init = init_attr(cq);
    let qp = call!(ibv_create_qp(pd, &raw mut init) -> *mut IbvQp);
    let mut memory = vec![0u8; 64];
    let rights = LOCAL_WRITE | REMOTE_WRITE | MW_BIND;
    let mr = call!(ibv_reg_mr(pd, memory.as_mut_ptr(), 64, rights) -> *mut IbvMr);
    let mw = call!(@ slot(left, 64), (pd, 1) -> *mut IbvMw);
    assert!(!qp.is_null() && !mr.is_null() && !mw.is_null(), "{}", errno());
    let mut gid = [0u64; 2];
    assert_eq!(call!(ibv_query_gid(left, 1, 1, &raw mut gid) -> c_int), 0);
    let path = IbvAhAttr { dgid: gid, hop_limit: 1, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
    assert_eq!(modify(pair.qps[0], &IbvQpAttr::default(), 1), 0);
    // SAFETY: queue pairs that exist.
    let (ours, theirs) = unsafe { ((*pair.qps[0]).qp_num, (*qp).qp_num) };
    connect_to(pair.qps[0], theirs, path, 0);
    connect_to(qp, ours, path, 0);
    let info = IbvMwBindInfo { mr, addr: memory.as_ptr() as u64, length: 64, mw_access_flags: REMOTE_WRITE };
    let mut bind = IbvMwBind { wr_id: 1, send_flags: 2, bind_info: info };
    assert_eq!(call!(@ slot(left, 72), (qp, mw, &raw mut bind) -> c_int), 0);
    let own = pair.register(&mut [0u8; 64]);
    let mut bytes = *b"written!";
    let from = pair.register(&mut bytes);
    // SAFETY: a region that exists.
    let rkey = unsafe { (*mr).rkey.load(Ordering::Relaxed) };
    let write = || pair.write(sge(from, bytes.as_ptr(), 8), memory.as_ptr() as u64, rkey);
    assert_eq!(write(), 0);
    assert_eq!(call!(ibv_close_device(left) -> c_int), 0);
    assert_eq!(write(), 0, "another context has the file");
    assert_eq!(call!(ibv_close_device(other) -> c_int), 0);
    assert_eq!(write(), 12, "nobody answers");
    assert_eq!(dereg(mr), libc::EINVAL, "the region has ended, too, and the window that was bound to it");
    assert_eq!([dereg(own), dereg(from)], [0; 2]);
    pair.end();
}

#[test]
fn device_memory_is_imported_and_ends_once() {
    let context = open();
    let other = import_device(context);
    let pd = call!(ibv_alloc_pd(other) -> *mut IbvPd);
    let mut attr = IbvAllocDmAttr { length: 128, log_align_req: 0, comp_mask: 0 };
    let dm = call!(@ later(context, 256), (context, &raw mut attr) -> *mut abi::IbvDm);
    // SAFETY: device memory that exists.
    let handle = unsafe { (*dm).handle };
    let again = of_node!(ibv_import_dm "IBVERBS_1.13" (other, handle) -> *mut abi::IbvDm);
    assert!(!again.is_null(), "{}", errno());
    // SAFETY: device memory that exists.
    let (to_dm, from_dm) = unsafe { ((*dm).memcpy_to_dm as usize, (*again).memcpy_from_dm as usize) };
    let mut seen = [0u8; 4];
    assert_eq!(call!(@ to_dm, (dm, 60, b"both".as_ptr(), 4) -> c_int), 0);
    assert_eq!(call!(@ from_dm, (seen.as_mut_ptr(), again, 60, 4) -> c_int), 0);
    assert_eq!(&seen, b"both");
    let mr = call!(@ later(other, 264), (pd, again, 0, 64, LOCAL_WRITE | ZERO_BASED) -> *mut IbvMr);
    assert!(!mr.is_null(), "{}", errno());
    assert_eq!(call!(@ later(context, 248), (dm) -> c_int), libc::EBUSY, "the import's region is in it");
    assert_eq!(dereg(mr), 0);
    assert_eq!(call!(@ later(context, 248), (dm) -> c_int), 0);
    assert!(call!(@ later(other, 264), (pd, again, 0, 64, ZERO_BASED) -> *mut c_void).is_null());
    assert_eq!(call!(@ later(other, 248), (again) -> c_int), libc::EINVAL, "it is freed");
    of_node!(ibv_unimport_dm "IBVERBS_1.13" (again) -> ());
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    // The file is there as long as one of its contexts is.
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
    let third = import_device(other);
    assert!(of_node!(ibv_import_dm "IBVERBS_1.13" (third, handle) -> *mut c_void).is_null());
    assert_eq!(errno(), libc::ENOENT);
    for context in [other, third] {
        assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
    }
}

#[test]
fn what_is_no_open_context_of_this_process_is_not_imported() {
    if !processes::alone("objects::what_is_no_open_context_of_this_process_is_not_imported", "fork") {
        return;
    }
    let refused = |command: c_int| {
        assert!(of_node!(ibv_import_device "IBVERBS_1.10" (command) -> *mut c_void).is_null());
        errno()
    };
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!([refused(-1), refused(file.as_raw_fd())], [libc::EINVAL; 2]);
    let (context, other) = (open(), open());
    // SAFETY: a context that is open.
    let command = unsafe { libc::dup((*context).cmd_fd) };
    // A child has the descriptor, and not the objects.
    // SAFETY: the child calls this library, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = of_node!(ibv_import_device "IBVERBS_1.10" (command) -> *mut c_void);
        let is_right = found.is_null() && errno() == libc::EOPNOTSUPP;
        // SAFETY: it ends the child.
        unsafe { libc::_exit(c_int::from(!is_right)) };
    }
    let mut status = 1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // Handles are those of a file, and not of a device.
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    // SAFETY: a domain that exists.
    let handle = unsafe { (*pd).handle };
    assert!(import_pd(other, handle).is_null());
    assert_eq!(errno(), libc::ENOENT);
    assert!(import_pd(context, handle ^ 0x100).is_null());
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    for context in [context, other] {
        assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
    }
    assert_eq!(refused(command), libc::EOPNOTSUPP, "it is closed");
    // SAFETY: the descriptor is this test's.
    unsafe { libc::close(command) };
}

/// A header of IPv6 may have bytes that a header of IPv4 has at its place: its checksum tells both apart.
#[test]
fn the_path_back_of_a_datagram_is_that_of_its_headers_version() {
    let context = open();
    let mut own = [0_u8; 16];
    assert_eq!(call!(ibv_query_gid(context, 1, 1, &raw mut own) -> c_int), 0);
    let mut peer = *b"\xfe\x80\0\0\0\0\0\0\x02\0\0\0\x45\0\x12\x34";
    let mut wc = IbvWc { wc_flags: 1, ..IbvWc::default() };
    let mut header = [0_u8; 40];
    (header[0], header[6], header[7]) = (0x60, 17, 9);
    header[8..24].copy_from_slice(&peer);
    header[24..].copy_from_slice(&own);
    let mut back = IbvAhAttr::default();
    let mut path = |header: &[u8; 40]| {
        let result =
            call!(ibv_init_ah_from_wc(context, 1, &raw mut wc, header.as_ptr(), &raw mut back) -> c_int);
        let [high, low] = back.dgid.map(u64::to_ne_bytes);
        (result, [high, low].concat(), back.hop_limit)
    };
    assert_eq!(path(&header), (0, peer.to_vec(), 9), "{}", errno());
    // One of IPv4 behind bytes that look like the beginning of IPv6, as some adapters leave them.
    header[20..].copy_from_slice(b"\x45\0\0\x14\0\0\0\0\x07\x11\0\0\x7f\0\0\x02\x7f\0\0\x01");
    header[36..].copy_from_slice(&own[12..]);
    let sum = header[20..].chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[30..32].copy_from_slice(&sum.to_be_bytes());
    peer = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x02";
    assert_eq!(path(&header), (0, peer.to_vec(), 7), "{}", errno());
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}
