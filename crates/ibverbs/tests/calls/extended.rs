//! Extended queue pairs and completion queues.

use super::*;
use crate::abi::{IbvCqEx, IbvCqInitAttrEx, IbvDeviceAttrEx, IbvModifyCqAttr, IbvQpEx, IbvQpInitAttrEx};
use std::sync::atomic::Ordering;

/// A function of an extended object, by its index.
fn op<const N: usize>(ops: &[abi::Slot; N], index: usize) -> usize {
    ops[index] as usize
}

fn cq_attr(wc_flags: u64) -> IbvCqInitAttrEx {
    IbvCqInitAttrEx {
        cqe: 16,
        cq_context: null_mut(),
        channel: null_mut(),
        comp_vector: 0,
        wc_flags,
        comp_mask: 0,
        flags: 0,
        parent_domain: null_mut(),
    }
}

fn qp_attr(pd: *mut IbvPd, cq: *mut IbvCq, send_ops_flags: u64) -> IbvQpInitAttrEx {
    let IbvQpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } = init_attr(cq);
    IbvQpInitAttrEx {
        qp_context,
        send_cq,
        recv_cq,
        srq,
        cap,
        qp_type,
        sq_sig_all,
        comp_mask: 1 | 1 << 6,
        pd,
        xrcd: null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: null_mut(),
        rx_hash_conf: abi::IbvRxHashConf {
            rx_hash_function: 0,
            rx_hash_key_len: 0,
            rx_hash_key: null_mut(),
            rx_hash_fields_mask: 0,
        },
        source_qpn: 0,
        send_ops_flags,
    }
}

/// A pair whose queues are extended ones, with times of completions.
fn extended_pair() -> Pair {
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    let mut attr = cq_attr(0x7f | 1 << 7 | 1 << 11);
    let cq = call!(@ later(context, 120), (context, &raw mut attr) -> *mut IbvCq);
    assert!(!cq.is_null(), "{}", errno());
    // All operations of RC but those of windows, segmentation, FLUSH and ATOMIC WRITE.
    let mut attr = qp_attr(pd, cq, 0x27f);
    let qps = [(); 2].map(|()| call!(@ later(context, 56), (context, &raw mut attr) -> *mut IbvQp));
    assert!(qps.iter().all(|qp| !qp.is_null()), "{}", errno());
    let pair = Pair { context, pd, cq, qps };
    pair.connect();
    pair
}

/// The calls that build and post requests.
struct Builder(*mut IbvQpEx);
impl Builder {
    fn of(qp: *mut IbvQp) -> Self {
        let symbol = common::symbol("ibv_qp_to_qp_ex", "IBVERBS_1.6").unwrap();
        let found = call!(@ symbol, (qp) -> *mut IbvQpEx);
        assert_eq!(found.cast(), qp);
        Self(found)
    }
    fn at(&self, index: usize) -> usize {
        // SAFETY: a queue pair that exists.
        op(unsafe { &(*self.0).ops }, index)
    }
    fn set(&self, wr_id: u64, flags: u32) {
        // SAFETY: a queue pair that exists.
        let qp = unsafe { &*self.0 };
        qp.wr_id.store(wr_id, Ordering::Relaxed);
        qp.wr_flags.store(flags, Ordering::Relaxed);
    }
    fn start(&self) {
        call!(@ self.at(17), (self.0) -> ());
    }
    fn complete(&self) -> c_int {
        call!(@ self.at(18), (self.0) -> c_int)
    }
    fn send_imm(&self, imm: u32) {
        call!(@ self.at(8), (self.0, imm.to_be()) -> ());
    }
    fn inline(&self, bytes: &[u8]) {
        call!(@ self.at(13), (self.0, bytes.as_ptr(), bytes.len()) -> ());
    }
}

fn recv(pair: &Pair, sge: &mut IbvSge, wr_id: u64) {
    let mut wr = IbvRecvWr { wr_id, next: null_mut(), sg_list: &raw mut *sge, num_sge: 1 };
    let mut bad: *mut IbvRecvWr = null_mut();
    assert_eq!(call!(@ slot(pair.context, 216), (pair.qps[1], &raw mut wr, &raw mut bad) -> c_int), 0);
}

#[test]
fn requests_are_built_call_by_call_and_completions_are_read_field_by_field() {
    let pair = extended_pair();
    let mut memory = vec![0u8; 256];
    memory[..4].copy_from_slice(b"wxyz");
    let mr = pair.register(&mut memory);
    let mut into = [64, 128].map(|at| sge(mr, memory.as_ptr().wrapping_add(at), 32));
    into.iter_mut().enumerate().for_each(|(i, sge)| recv(&pair, sge, i as u64));
    let builder = Builder::of(pair.qps[0]);

    builder.start();
    builder.set(7, 0);
    builder.send_imm(0x0a0b_0c0d);
    call!(@ builder.at(15), (builder.0, lkey(mr), memory.as_ptr(), 4) -> ());
    builder.set(8, 2);
    call!(@ builder.at(7), (builder.0) -> ());
    builder.inline(b"inline");
    assert_eq!(builder.complete(), 0);

    // SAFETY: a queue that exists, and that is an extended one.
    let cq = unsafe { &*pair.cq.cast::<IbvCqEx>() };
    let at = |index| op(&cq.ops, index);
    let read = |index| call!(@ at(index), (pair.cq) -> u32);
    let mut found = Vec::new();
    while found.len() < 3 {
        if call!(@ at(0), (pair.cq, 0) -> c_int) == libc::ENOENT {
            continue;
        }
        loop {
            assert_eq!(cq.status.load(Ordering::Relaxed), 0);
            let clock = call!(@ at(13), (pair.cq) -> u64);
            let wall = call!(@ at(17), (pair.cq) -> u64);
            assert!(clock > 0 && wall > 1_600_000_000_000_000_000, "{clock} {wall}");
            found.push((cq.wr_id.load(Ordering::Relaxed), read(3), read(5), read(6), read(7), read(9)));
            if call!(@ at(1), (pair.cq) -> c_int) == libc::ENOENT {
                break;
            }
        }
        call!(@ at(2), (pair.cq) -> ());
    }
    found.sort_by_key(|wc| wc.0);
    // SAFETY: queue pairs that exist.
    let numbers = pair.qps.map(|qp| unsafe { (*qp).qp_num });
    let imm = 0x0a0b_0c0d_u32.to_be();
    assert_eq!(found[0], (0, 128, 4, imm, numbers[1], 2));
    assert_eq!(found[1], (1, 128, 6, 0, numbers[1], 0));
    assert_eq!((found[2].0, found[2].1, found[2].4), (8, 0, numbers[0]));
    assert_eq!((&memory[64..68], &memory[128..134]), (&b"wxyz"[..], &b"inline"[..]));
    assert_eq!(call!(@ at(1), (pair.cq) -> c_int), libc::EINVAL, "no poll was begun");
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    pair.end();
}

#[test]
fn an_error_while_building_is_told_at_the_end_and_nothing_is_posted() {
    let pair = extended_pair();
    let builder = Builder::of(pair.qps[0]);
    assert_eq!(builder.complete(), libc::EINVAL, "nothing was begun");
    for wrong in 0..3 {
        builder.start();
        builder.set(1, 2);
        builder.send_imm(1);
        match wrong {
            0 => builder.inline(&[0; 2000]),
            // Segmentation, which the queue pair was not created with.
            1 => call!(@ builder.at(10), (builder.0, 0, 0, 0) -> ()),
            // A flag that no request has.
            _ => {
                builder.set(2, 1 << 20);
                builder.send_imm(2);
            }
        }
        assert_ne!(builder.complete(), 0, "{wrong}");
    }
    builder.start();
    builder.set(3, 2);
    builder.send_imm(3);
    call!(@ builder.at(19), (builder.0) -> ());
    let mut memory = vec![0u8; 64];
    let mr = pair.register(&mut memory);
    let mut into = sge(mr, memory.as_ptr(), 64);
    (0..3).for_each(|i| recv(&pair, &mut into, i));
    builder.start();
    builder.set(4, 0);
    (0..3).for_each(|_| builder.send_imm(4));
    assert_eq!(builder.complete(), 0);
    // None of the requests before has arrived.
    assert!(pair.completions(3).iter().all(|wc| wc.imm_or_rkey == 4_u32.to_be() && wc.opcode == 128));
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    pair.end();
}

#[test]
fn of_requests_that_are_built_together_all_are_posted_or_none() {
    let pair = extended_pair();
    let builder = Builder::of(pair.qps[0]);
    let mut none = IbvSge { addr: 0, length: 0, lkey: 0 };
    (0..4).for_each(|wr_id| recv(&pair, &mut none, wr_id));
    let send = |wr_id, bytes: &[u8]| {
        builder.set(wr_id, 2);
        builder.send_imm(1);
        builder.inline(bytes);
    };
    // One more than the queue has room for.
    builder.start();
    (10..15).for_each(|wr_id| send(wr_id, b""));
    assert_eq!(builder.complete(), libc::ENOMEM);
    // More inline bytes than the queue pair was created for.
    builder.start();
    send(20, b"");
    send(21, &[0; 300]);
    assert_eq!(builder.complete(), libc::EINVAL);
    builder.start();
    (30..34).for_each(|wr_id| send(wr_id, b""));
    assert_eq!(builder.complete(), 0);
    // Requests of the last list alone are sent.
    let done = pair.completions(8);
    let sent = Vec::from_iter(done.iter().map(|wc| wc.wr_id).filter(|wr_id| *wr_id >= 10));
    assert_eq!(sent, [30, 31, 32, 33]);
    pair.end();
}

#[test]
fn attributes_that_are_not_offered_are_refused() {
    let context = open();
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    for wc_flags in [1 << 8, 1 << 10, 1 << 40] {
        let mut attr = cq_attr(wc_flags);
        assert!(call!(@ later(context, 120), (context, &raw mut attr) -> *mut IbvCq).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    let mut attr = cq_attr(1);
    let cq = call!(@ later(context, 120), (context, &raw mut attr) -> *mut IbvCq);
    let mut moderation = IbvModifyCqAttr { attr_mask: 1, count: 4, period: 10 };
    assert_eq!(call!(@ later(context, 184), (cq, &raw mut moderation) -> c_int), 0);
    moderation.attr_mask = 2;
    assert_eq!(call!(@ later(context, 184), (cq, &raw mut moderation) -> c_int), libc::EINVAL);
    let mut qp = qp_attr(pd, cq, 1 << 10);
    assert!(call!(@ later(context, 56), (context, &raw mut qp) -> *mut IbvQp).is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let mut init = init_attr(cq);
    let plain = call!(ibv_create_qp(pd, &raw mut init) -> *mut IbvQp);
    let symbol = common::symbol("ibv_qp_to_qp_ex", "IBVERBS_1.6").unwrap();
    assert!(call!(@ symbol, (plain) -> *mut IbvQpEx).is_null());
    // SAFETY: plain numbers.
    let mut found: IbvDeviceAttrEx = unsafe { std::mem::zeroed() };
    let query = later(context, 104);
    assert_eq!(call!(@ query, (context, 0, &raw mut found, size_of::<IbvDeviceAttrEx>()) -> c_int), 0);
    assert_eq!((found.hca_core_clock, found.completion_timestamp_mask), (1_000_000, u64::MAX));
    assert_eq!(call!(ibv_destroy_qp(plain) -> c_int), 0);
    assert_eq!(call!(ibv_destroy_cq(cq) -> c_int), 0);
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}
