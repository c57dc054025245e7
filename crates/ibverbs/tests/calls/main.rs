//! Calls as C programs make them: through the loaded object, with its layouts.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/abi.rs"]
mod abi;
#[path = "../common/mod.rs"]
mod common;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use abi::{
    IbvAhAttr, IbvContext, IbvCq, IbvMr, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr,
    IbvRecvWr, IbvSendWr, IbvSge, IbvWc,
};

/// The type of a function: all arguments are numbers or pointers.
macro_rules! call {
    ($name:ident($($arg:expr),*) -> $ret:ty) => {
        call!(@ common::symbol(stringify!($name), "IBVERBS_1.1").expect(stringify!($name)), ($($arg),*) -> $ret)
    };
    (@ $at:expr, ($($arg:expr),*) -> $ret:ty) => {{
        // SAFETY: the function has the C calling convention, and takes its arguments in registers.
        let f: extern "C" fn($(call!(@word $arg)),*) -> $ret = unsafe { std::mem::transmute::<usize, _>($at) };
        f($($arg as usize),*)
    }};
    (@word $arg:expr) => { usize };
}

mod events;
mod extended;
mod objects;
mod processes;
mod rdmacm;
mod refusals;
mod sockets;
mod unmapped;
mod waits;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A later function, which lies `offset` bytes before the context.
fn later(context: *mut IbvContext, offset: usize) -> usize {
    // SAFETY: a context that is open has the table before it.
    unsafe { *context.byte_sub(offset).cast::<usize>() }
}

/// A function of the table in a context.
fn slot(context: *mut IbvContext, offset: usize) -> usize {
    // SAFETY: a context that is open.
    unsafe { (*context).ops[(offset - 8) / 8] as usize }
}

fn open() -> *mut IbvContext {
    let mut count: c_int = 0;
    let list = call!(ibv_get_device_list(&raw mut count) -> *mut *mut c_void);
    assert_eq!(count, 1, "the default device");
    // SAFETY: a list of one device and of the null that ends it.
    let (device, end) = unsafe { (*list, *list.add(1)) };
    assert!(!device.is_null() && end.is_null());
    let context = call!(ibv_open_device(device) -> *mut IbvContext);
    assert!(!context.is_null(), "{}", errno());
    call!(ibv_free_device_list(list) -> ());
    context
}

struct Pair {
    context: *mut IbvContext,
    pd: *mut IbvPd,
    cq: *mut IbvCq,
    qps: [*mut IbvQp; 2],
}

fn init_attr(cq: *mut IbvCq) -> IbvQpInitAttr {
    let cap =
        IbvQpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 32 };
    IbvQpInitAttr {
        qp_context: null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: null_mut(),
        cap,
        qp_type: 2,
        sq_sig_all: 0,
    }
}

fn modify(qp: *mut IbvQp, attr: &IbvQpAttr, mask: u32) -> c_int {
    call!(ibv_modify_qp(qp, &raw const *attr, mask) -> c_int)
}

/// Two queue pairs that are connected to each other.
fn pair() -> Pair {
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    let cq = call!(ibv_create_cq(context, 16, 0, 0, 0) -> *mut IbvCq);
    let mut init = init_attr(cq);
    let qps = [(); 2].map(|()| call!(ibv_create_qp(pd, &raw mut init) -> *mut IbvQp));
    assert!(qps.iter().all(|qp| !qp.is_null()), "{}", errno());
    let pair = Pair { context, pd, cq, qps };
    pair.connect();
    pair
}

/// Brings a queue pair of a connection from RESET to RTS. Requests of both ends begin at `psn`.
fn connect_to(qp: *mut IbvQp, dest_qp_num: u32, ah_attr: IbvAhAttr, psn: u32) {
    connect_with(qp, dest_qp_num, ah_attr, psn, 14);
}
/// As [`connect_to`], with the code of the time after which a request is repeated.
fn connect_with(qp: *mut IbvQp, dest_qp_num: u32, ah_attr: IbvAhAttr, psn: u32, timeout: u8) {
    let attr = IbvQpAttr {
        rq_psn: psn,
        sq_psn: psn,
        qp_state: 1,
        port_num: 1,
        qp_access_flags: 0b1110,
        path_mtu: 3,
        dest_qp_num,
        ah_attr,
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        ..IbvQpAttr::default()
    };
    assert_eq!(modify(qp, &attr, 0b11_1001), 0, "INIT");
    assert_eq!(modify(qp, &IbvQpAttr { qp_state: 2, ..attr }, 0x12_9181), 0, "RTR");
    assert_eq!(modify(qp, &IbvQpAttr { qp_state: 3, ..attr }, 0x1_2e01), 0, "RTS");
}

impl Pair {
    fn connect(&self) {
        let mut gid = [0u64; 2];
        assert_eq!(call!(ibv_query_gid(self.context, 1, 1, &raw mut gid) -> c_int), 0);
        for (qp, peer) in [(self.qps[0], self.qps[1]), (self.qps[1], self.qps[0])] {
            let path =
                IbvAhAttr { dgid: gid, hop_limit: 1, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
            // SAFETY: a queue pair that exists.
            connect_to(qp, unsafe { (*peer).qp_num }, path, 0);
        }
    }
    fn register(&self, memory: &mut [u8]) -> *mut IbvMr {
        let mr = call!(ibv_reg_mr(self.pd, memory.as_mut_ptr(), memory.len(), 1) -> *mut IbvMr);
        assert!(!mr.is_null(), "{}", errno());
        mr
    }
    /// Polls so many completions, of which each is a success.
    fn completions(&self, count: usize) -> Vec<IbvWc> {
        let mut all = Vec::new();
        while all.len() < count {
            let mut wc = [IbvWc::default(); 4];
            let got = call!(@ slot(self.context, 96), (self.cq, 4, &raw mut wc) -> c_int);
            assert!(got >= 0);
            all.extend_from_slice(&wc[..got as usize]);
        }
        assert!(all.len() == count && all.iter().all(|wc| wc.status == 0), "{}", all.len());
        all
    }
    fn end(self) {
        for qp in self.qps {
            assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
        }
        self.end_without_queue_pairs();
    }
    fn end_without_queue_pairs(self) {
        assert_eq!(call!(ibv_destroy_cq(self.cq) -> c_int), 0);
        assert_eq!(call!(ibv_dealloc_pd(self.pd) -> c_int), 0);
        assert_eq!(call!(ibv_close_device(self.context) -> c_int), 0);
    }
}

/// A request without data.
fn send_wr(wr_id: u64, opcode: u32, send_flags: u32) -> IbvSendWr {
    IbvSendWr {
        wr_id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode,
        send_flags,
        imm_or_rkey: 0,
        addr_or_ah: 0,
        second: [0; 2],
        swap: 0,
        atomic_rkey: 0,
        pad: 0,
        remote_srqn: 0,
        pad_behind: 0,
        // SAFETY: numbers and null pointers.
        bind_mw: unsafe { std::mem::zeroed() },
    }
}

fn lkey(mr: *mut IbvMr) -> u32 {
    // SAFETY: a region that exists.
    unsafe { (*mr).lkey.load(std::sync::atomic::Ordering::Relaxed) }
}

fn sge(mr: *mut IbvMr, addr: *const u8, length: u32) -> IbvSge {
    IbvSge { addr: addr as u64, length, lkey: lkey(mr) }
}

#[test]
fn lists_of_requests_are_taken_up_to_the_refused_one_and_inline_bytes_are_gathered() {
    let pair = pair();
    let mut memory = vec![0u8; 256];
    memory[..6].copy_from_slice(b"abcdef");
    let mr = pair.register(&mut memory);
    let base = memory.as_mut_ptr();
    let mut into = [sge(mr, base.wrapping_add(64), 32), sge(mr, base.wrapping_add(128), 32)];
    let mut second = IbvRecvWr { wr_id: 2, next: null_mut(), sg_list: &raw mut into[1], num_sge: 1 };
    let mut first = IbvRecvWr { wr_id: 1, next: &raw mut second, sg_list: &raw mut into[0], num_sge: 1 };
    let mut bad_recv: *mut IbvRecvWr = null_mut();
    let post_recv = slot(pair.context, 216);
    let posted = call!(@ post_recv, (pair.qps[1], &raw mut first, &raw mut bad_recv) -> c_int);
    assert_eq!(posted, 0);

    let mut parts = [sge(mr, base.wrapping_add(3), 3), sge(mr, base, 3)];
    let send = |wr_id, next, opcode, send_flags| IbvSendWr { next, ..send_wr(wr_id, opcode, send_flags) };
    // The last has an opcode that no request has.
    let mut refused = send(12, null_mut(), 77, 2);
    let mut with_data = send(11, &raw mut refused, 3, 2 | 8);
    (with_data.sg_list, with_data.num_sge) = (parts.as_mut_ptr(), 2);
    with_data.imm_or_rkey = 0x0102_0304_u32.to_be();
    let mut empty = send(10, &raw mut with_data, 2, 2);
    let mut bad: *mut IbvSendWr = null_mut();
    let posted = call!(@ slot(pair.context, 208), (pair.qps[0], &raw mut empty, &raw mut bad) -> c_int);
    assert_eq!((posted, bad), (libc::EINVAL, &raw mut refused));

    let mut found = pair.completions(4);
    found.sort_by_key(|wc| wc.wr_id);
    assert_eq!(found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 10, 11]);
    assert_eq!((found[0].opcode, found[0].byte_len), (128, 0));
    assert_eq!((found[1].byte_len, found[1].imm_or_rkey, found[1].wc_flags), (6, 0x0102_0304_u32.to_be(), 2));
    // SAFETY: a queue pair that exists.
    assert_eq!(found[1].qp_num, unsafe { (*pair.qps[1]).qp_num });
    assert_eq!(&memory[128..134], b"defabc");

    // A single inline entry is read during the call.
    let mut again = IbvRecvWr { wr_id: 3, next: null_mut(), sg_list: &raw mut into[0], num_sge: 1 };
    let posted = call!(@ post_recv, (pair.qps[1], &raw mut again, &raw mut bad_recv) -> c_int);
    assert_eq!(posted, 0);
    let inline = |mut list: Vec<IbvSge>| {
        let mut wr = send(13, null_mut(), 2, 2 | 8);
        (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
        let mut bad: *mut IbvSendWr = null_mut();
        let posted = call!(@ slot(pair.context, 208), (pair.qps[0], &raw mut wr, &raw mut bad) -> c_int);
        assert_eq!(bad.is_null(), posted == 0);
        posted
    };
    let mut own = *b"inline";
    assert_eq!(inline(vec![sge(mr, own.as_mut_ptr(), 6)]), 0);
    own.fill(0);
    for refused in [
        vec![sge(mr, null_mut(), 6)],
        vec![sge(mr, base, 256)],
        vec![sge(mr, base, 3), sge(mr, null_mut(), 1)],
        vec![sge(mr, base, 256); 5],
    ] {
        assert_eq!(inline(refused), libc::EINVAL);
    }
    assert_eq!(pair.completions(2).len(), 2);
    assert_eq!(&memory[64..70], b"inline", "{own:?}");
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    pair.end();
}

#[test]
fn lists_of_common_requests_are_posted_whole_and_polled_with_much_room() {
    const LISTS: u64 = 20;
    let pair = pair();
    let cq = call!(ibv_create_cq(pair.context, 64, 0, 0, 0) -> *mut IbvCq);
    let mut init = init_attr(cq);
    init.cap.max_send_wr = 64;
    let qps = [(); 2].map(|()| call!(ibv_create_qp(pair.pd, &raw mut init) -> *mut IbvQp));
    let wide = Pair { context: pair.context, pd: pair.pd, cq, qps };
    wide.connect();
    let mut memory = vec![0u8; 64];
    let base = memory.as_mut_ptr();
    let mr = call!(ibv_reg_mr(wide.pd, base, 64, 3) -> *mut IbvMr);
    // SAFETY: a region that exists.
    let rkey = unsafe { (*mr).rkey.load(std::sync::atomic::Ordering::Relaxed) };
    let mut entry = sge(mr, base, 8);
    let mut write = |wr_id, next| {
        let mut wr = IbvSendWr { next, ..send_wr(wr_id, 0, 2) };
        (wr.sg_list, wr.num_sge, wr.addr_or_ah, wr.second) = (&raw mut entry, 1, base as u64 + 32, [rkey, 0]);
        wr
    };
    for list in 0..LISTS {
        let mut second = write(2 * list + 1, null_mut());
        let mut first = write(2 * list, &raw mut second);
        let mut bad: *mut IbvSendWr = null_mut();
        assert_eq!(call!(@ slot(wide.context, 208), (wide.qps[0], &raw mut first, &raw mut bad) -> c_int), 0);
    }
    let mut found = 0;
    while found < 2 * LISTS {
        let mut wc = [IbvWc::default(); 64];
        let got = call!(@ slot(wide.context, 96), (wide.cq, 64, &raw mut wc) -> c_int);
        for wc in &wc[..usize::try_from(got).unwrap()] {
            assert_eq!((wc.status, wc.wr_id, wc.opcode), (0, found, 1));
            // SAFETY: a queue pair that exists.
            assert_eq!(wc.qp_num, unsafe { (*wide.qps[0]).qp_num });
            found += 1;
        }
    }
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    for qp in pair.qps {
        assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
    }
    assert_eq!(call!(ibv_destroy_cq(pair.cq) -> c_int), 0);
    wide.end();
}

#[test]
fn objects_that_others_use_are_busy() {
    let pair = pair();
    let mut memory = vec![0u8; 64];
    assert_eq!(call!(ibv_dealloc_pd(pair.pd) -> c_int), libc::EBUSY);
    assert_eq!(call!(ibv_destroy_cq(pair.cq) -> c_int), libc::EBUSY);
    let mr = pair.register(&mut memory);
    let pd = pair.pd;
    let create = common::symbol("ibv_create_comp_channel", "IBVERBS_1.0").unwrap();
    let destroy = common::symbol("ibv_destroy_comp_channel", "IBVERBS_1.0").unwrap();
    let channel = call!(@ create, (pair.context) -> *mut c_void);
    let cq = call!(ibv_create_cq(pair.context, 1, 0, channel, 0) -> *mut IbvCq);
    assert_eq!(call!(@ destroy, (channel) -> c_int), libc::EBUSY);
    assert_eq!(call!(ibv_destroy_cq(cq) -> c_int), 0);
    assert_eq!(call!(@ destroy, (channel) -> c_int), 0);
    for qp in pair.qps {
        assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
    }
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), libc::EBUSY, "the region is in it");
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(call!(ibv_destroy_cq(pair.cq) -> c_int), 0);
    assert_eq!(call!(ibv_close_device(pair.context) -> c_int), 0);
}

#[test]
fn null_and_numbers_out_of_range_are_invalid() {
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    let cq = call!(ibv_create_cq(context, 4, 0, 0, 0) -> *mut IbvCq);
    let mut port = IbvPortAttr::default();
    assert_eq!(call!(ibv_query_port(context, 2, &raw mut port) -> c_int), libc::EINVAL);
    assert_eq!(call!(ibv_query_port(context, 1, 0) -> c_int), libc::EINVAL);
    for null in [
        call!(ibv_open_device(0) -> *mut c_void),
        call!(ibv_alloc_pd(0) -> *mut c_void),
        call!(ibv_create_cq(context, 0, 0, 0, 0) -> *mut c_void),
        call!(ibv_create_cq(context, -1isize, 0, 0, 0) -> *mut c_void),
        call!(ibv_create_cq(context, 4, 0, 0, 1) -> *mut c_void),
        call!(ibv_create_qp(pd, 0) -> *mut c_void),
        call!(ibv_create_ah(pd, 0) -> *mut c_void),
        // No bytes; rights of peers without the right to write here; an unknown right; the end of all memory.
        call!(ibv_reg_mr(pd, &raw mut port, 0, 1) -> *mut c_void),
        call!(ibv_reg_mr(pd, &raw mut port, 8, 2) -> *mut c_void),
        call!(ibv_reg_mr(pd, &raw mut port, 8, 1 << 15) -> *mut c_void),
        call!(ibv_reg_mr(pd, 4096, usize::MAX, 1) -> *mut c_void),
    ] {
        assert!(null.is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    for function in ["ibv_dealloc_pd", "ibv_dereg_mr", "ibv_destroy_cq", "ibv_destroy_qp", "ibv_destroy_srq"]
    {
        let at = common::symbol(function, "IBVERBS_1.1").unwrap();
        assert_eq!(call!(@ at, (0) -> c_int), libc::EINVAL, "{function}");
    }
    let mut init = init_attr(cq);
    for (kind, expected) in
        [(8, libc::EOPNOTSUPP), (0xff, libc::EOPNOTSUPP), (5, libc::EINVAL), (10, libc::EINVAL)]
    {
        init.qp_type = kind;
        assert!(call!(ibv_create_qp(pd, &raw mut init) -> *mut c_void).is_null());
        assert_eq!(errno(), expected, "type {kind}");
    }
    init.qp_type = 2;
    let qp = call!(ibv_create_qp(pd, &raw mut init) -> *mut IbvQp);
    let attr = IbvQpAttr { qp_state: 1, port_num: 1, ..IbvQpAttr::default() };
    for (what, attr, mask) in [
        ("an unknown bit", attr, 1 << 30),
        ("an unknown state", IbvQpAttr { qp_state: 9, ..attr }, 1),
        ("port 2", IbvQpAttr { port_num: 2, ..attr }, 0b11_1001),
        ("a P_Key beyond the table", IbvQpAttr { pkey_index: 1, ..attr }, 0b11_1001),
        ("an attribute that is missing", attr, 1),
    ] {
        assert_eq!(modify(qp, &attr, mask), libc::EINVAL, "{what}");
    }
    // SAFETY: a queue pair that exists.
    assert_eq!(unsafe { (*qp).state.load(std::sync::atomic::Ordering::Relaxed) }, 0, "it is in RESET still");
    let mut wr: *mut c_void = null_mut();
    assert_eq!(call!(@ slot(context, 208), (qp, 0, &raw mut wr) -> c_int), libc::EINVAL);
    assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
    assert_eq!(call!(ibv_destroy_cq(cq) -> c_int), 0);
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}
