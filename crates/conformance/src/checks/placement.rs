//! ATOMIC WRITE and FLUSH. A device that does not have them refuses them.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use hca_core::wire::{Placement, Selectivity};
use hca_core::{
    Access, AsyncEvent, DeviceError, KeyFault, MwRange, MwType, Payload, PostErrorKind, QpState, QpType,
    RemoteAddr, Rkey, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

use crate::Bed;
use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, wr};

const VISIBLE: Placement = Placement::GLOBAL_VISIBILITY;
const PERSISTENT: Placement = Placement::PERSISTENCE;
/// Rights of a region that peers write and FLUSH.
const FLUSHED: Access = ALL.union(Access::FLUSH_GLOBAL);

pub(crate) fn write_word(remote: RemoteAddr, value: u64) -> SendOp {
    SendOp::AtomicWrite { remote, value: value.to_ne_bytes() }
}
fn flush(remote: RemoteAddr, len: u32, placement: Placement, selectivity: Selectivity) -> SendOp {
    SendOp::Flush { remote, len, placement, selectivity }
}
pub(crate) fn flush_range(remote: RemoteAddr, len: u32) -> SendOp {
    flush(remote, len, VISIBLE, Selectivity::Range)
}

/// Whether the adapter has both; one without refuses them, as its attributes say.
fn has_both(p: &Pair) -> bool {
    let abilities = p.a.node.dev().attr().abilities;
    let refused = |op| {
        let refusal = p.a.try_send(&[wr(1, op, &[])]).unwrap_err().kind;
        assert!(matches!(refusal, PostErrorKind::Unsupported { qp_type: QpType::Rc, .. }), "{refusal}");
    };
    if !abilities.atomic_write {
        refused(write_word(p.mb.remote(0), 1));
    }
    if abilities.flush.is_empty() {
        refused(flush_range(p.mb.remote(0), 8));
    }
    abilities.atomic_write && abilities.flush.contains(VISIBLE)
}

/// Posts a request without a list, which succeeds.
#[track_caller]
fn done(p: &Pair, op: SendOp) {
    p.a.send(1, op, &[]);
    let c = p.a.send_cq.ok(1);
    assert_eq!((c.opcode, c.byte_len), (op.wc_opcode(), 0));
}

pub(crate) fn an_atomic_write_stores_its_word_and_nothing_else(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    if !has_both(&p) {
        return;
    }
    p.mb.fill(0x77);
    for (at, value) in [(16, 1), (16, u64::MAX - 1), (0, 0x0102_0304_0506_0708), (p.mb.len() - 8, 3)] {
        done(&p, write_word(p.mb.remote(at as i64), value));
        assert_eq!(p.mb.word(at).load(Acquire), value);
        p.mb.assert_untouched_but(at, 8, 0x77);
        p.mb.write(at, &[0x77; 8]);
    }
    // It has no list, of memory or inline.
    let op = write_word(p.mb.remote(0), 1);
    let inline = SendWr { payload: Payload::Inline(&[0; 8]), ..wr(1, op, &[]) };
    for wr in [wr(1, op, &[p.ma.sge(0, 8)]), inline, wr(1, flush_range(p.mb.remote(0), 8), &[p.ma.sge(0, 8)])]
    {
        let refusal = p.a.try_send(&[wr]).unwrap_err().kind;
        assert!(matches!(refusal, PostErrorKind::Unsupported { qp_type: QpType::Rc, .. }), "{refusal}");
    }
    done(&p, op);
}

pub(crate) fn no_reader_sees_a_part_of_an_atomic_write(bed: &dyn Bed) {
    const N: u64 = 300;
    let p = Pair::rc(bed);
    if !has_both(&p) {
        return;
    }
    let halves = 0x0000_0001_0000_0001_u64;
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut last = 0;
            while !over.load(Acquire) {
                let word = p.mb.word(40).load(Acquire);
                assert!(word.is_multiple_of(halves) && word >= last, "{word:#x} behind {last:#x}");
                last = word;
                std::thread::yield_now();
            }
        });
        for i in 1..=N {
            p.a.send(i, write_word(p.mb.remote(40), i * halves), &[]);
            p.a.send_cq.ok(i);
        }
        over.store(true, Release);
        reader.join().expect("words are whole, and come in order");
    });
    assert_eq!(p.mb.word(40).load(Acquire), N * halves);
}

pub(crate) fn a_flush_completes_behind_the_writes_before_it(bed: &dyn Bed) {
    const LEN: usize = 50_000;
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn { mem_bytes: LEN, ..Conn::default() });
    if !has_both(&p) {
        return;
    }
    let m = b.mem(LEN, FLUSHED);
    for (round, selectivity) in
        [Selectivity::Range, Selectivity::Region].into_iter().cycle().take(8).enumerate()
    {
        let data = pattern(round as u64, LEN);
        p.ma.write(0, &data);
        // Nothing but the FLUSH is reported.
        let silent = |op, sge| SendWr { flags: SendFlags::empty(), ..wr(0, op, sge) };
        let pieces = [p.ma.sge(0, 8), p.ma.sge(8, LEN - 16)];
        let (small, long) = (
            silent(SendOp::Write(m.remote(0)), &pieces[..1]),
            silent(SendOp::Write(m.remote(8)), &pieces[1..]),
        );
        let last = u64::from_ne_bytes(data[LEN - 8..].try_into().expect("8 bytes"));
        let word = silent(write_word(m.remote(LEN as i64 - 8), last), &[]);
        let flush = flush(m.remote(0), LEN as u32, VISIBLE, selectivity);
        p.a.try_send(&[small, long, word, wr(9, flush, &[])]).unwrap();
        assert_eq!(p.a.send_cq.ok(9).opcode, WcOpcode::Flush);
        m.assert_bytes(0, &data);
    }
}

pub(crate) fn a_flush_takes_each_range_that_its_key_has(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn::default());
    if !has_both(&p) {
        return;
    }
    let m = b.mem(1001, FLUSHED);
    for (at, len) in [(0, 1), (0, 1001), (1000, 1), (3, 5)] {
        done(&p, flush_range(m.remote(at), len));
    }
    // A whole region has any address in it or not, and any length.
    for (at, len) in [(0, 1001), (-1, 0), (5000, u32::MAX)] {
        done(&p, flush(m.remote(at), len, VISIBLE, Selectivity::Region));
    }
    // One of no bytes needs no key.
    done(&p, flush_range(RemoteAddr { addr: 1, rkey: Rkey::new(0) }, 0));
    // Many at once, beyond the limit on those that are outstanding.
    let p = Pair::between(&a, &b, Conn { max_rd_atomic: 3, max_dest_rd_atomic: 3, ..Conn::default() });
    for i in 0..50 {
        let op = if i % 2 == 0 { flush_range(m.remote(8), 8) } else { write_word(m.remote(8), i) };
        p.a.send(i, op, &[]);
    }
    p.a.send_cq.all_end(0..50, WcStatus::Success);
    m.assert_bytes(8, &49_u64.to_ne_bytes());
}

/// The counters of refused keys, in the order of [`KeyFault::ALL`], if the adapter has them.
fn refusals(node: &Node) -> Vec<u64> {
    let counters = node.dev().counters();
    counters.iter().filter(|c| c.name.starts_with("rx_refused_")).map(|c| c.value).collect()
}

/// Connects anew and posts a request that is refused so, changes nothing, and ends both sides.
fn refused(a: &Node, b: &Node, target: &Mem, op: SendOp, want: WcStatus, why: Option<KeyFault>) {
    let p = Pair::between(a, b, Conn { mem_bytes: 4096, ..Conn::default() });
    let (before, mut counts) = (target.read(0, target.len()), refusals(b));
    p.a.send(1, op, &[]);
    let c = p.a.send_cq.ends(1, want);
    assert_eq!(c.opcode, op.wc_opcode(), "{op:?}");
    target.assert_bytes(0, &before);
    p.a.wait_state(QpState::Error);
    p.b.wait_state(QpState::Error);
    let invalid = want == WcStatus::RemoteInvalidRequest;
    p.b.wait_event(if invalid { AsyncEvent::QpRequestError } else { AsyncEvent::QpAccessError });
    if let (Some(why), false) = (why, counts.is_empty()) {
        counts[usize::from(why.code()) - 1] += 1;
        assert_eq!(refusals(b), counts, "{op:?}: {why}");
    }
}

pub(crate) fn what_breaks_their_rules_is_an_invalid_request(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if !has_both(&Pair::between(&a, &b, Conn::default())) {
        return;
    }
    let m = b.mem(4096, FLUSHED);
    let near = m.remote(0);
    for op in [
        write_word(m.remote(1), 1),
        write_word(m.remote(4), 1),
        write_word(m.remote(4090), 1),
        flush(near, 8, Placement::empty(), Selectivity::Range),
        flush(near, 8, Placement::empty(), Selectivity::Region),
        flush(near, 8, Placement::from_bits_retain(0b101), Selectivity::Range),
    ] {
        refused(&a, &b, &m, op, WcStatus::RemoteInvalidRequest, None);
    }
}

pub(crate) fn a_key_that_does_not_allow_them_is_refused_and_its_owner_learns_why(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if !has_both(&Pair::between(&a, &b, Conn::default())) {
        return;
    }
    let (m, foreign) = (b.mem(4096, FLUSHED), b.other_pd().mem(4096, FLUSHED));
    let (still, fixed) = (b.mem(4096, ALL), b.mem(4096, FLUSHED - Access::REMOTE_WRITE));
    let gone = b.mem(4096, FLUSHED);
    gone.dereg().unwrap();
    let unknown = RemoteAddr { rkey: Rkey::new(m.keys().rkey.raw() ^ 1), ..m.remote(0) };
    let access = |mem: &Mem, op, why| refused(&a, &b, mem, op, WcStatus::RemoteAccess, Some(why));
    for (why, remote, mem) in [
        (KeyFault::Unknown, unknown, &m),
        (KeyFault::Freed, gone.remote(0), &gone),
        (KeyFault::OtherPd, foreign.remote(0), &foreign),
    ] {
        access(mem, write_word(remote, 1), why);
        access(mem, flush_range(remote, 8), why);
        access(mem, flush(remote, 8, VISIBLE, Selectivity::Region), why);
    }
    for at in [-8, 4096] {
        access(&m, write_word(m.remote(at), 1), KeyFault::Range);
        access(&m, flush_range(m.remote(at), 8), KeyFault::Range);
    }
    access(&m, flush_range(m.remote(4089), 8), KeyFault::Range);
    access(&m, flush_range(m.remote(0), u32::MAX), KeyFault::Range);
    access(&fixed, write_word(fixed.remote(0), 1), KeyFault::Right);
    access(&still, flush_range(still.remote(0), 8), KeyFault::Right);
    access(&still, flush(still.remote(0), 8, VISIBLE, Selectivity::Region), KeyFault::Right);
    // Memory that is lost with the power promises nothing else.
    for placement in [PERSISTENT, VISIBLE | PERSISTENT] {
        access(&m, flush(m.remote(0), 8, placement, Selectivity::Range), KeyFault::Right);
        access(&m, flush(m.remote(0), 8, placement, Selectivity::Region), KeyFault::Right);
    }
}

pub(crate) fn the_queue_pair_has_to_allow_them_too(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if !has_both(&Pair::between(&a, &b, Conn::default())) {
        return;
    }
    let m = b.mem(4096, FLUSHED);
    for (right, op) in [
        (Access::REMOTE_WRITE, write_word(m.remote(0), 1)),
        (Access::FLUSH_GLOBAL, flush_range(m.remote(0), 8)),
        (Access::FLUSH_GLOBAL, flush(m.remote(0), 8, VISIBLE, Selectivity::Region)),
    ] {
        let p = Pair::between(&a, &b, Conn { access: Access::all() - right, ..Conn::default() });
        p.a.send(1, op, &[]);
        p.a.send_cq.ends(1, WcStatus::RemoteAccess);
        m.assert_bytes(0, &[0; 8]);
        // Other rights are no matter.
        let p = Pair::between(&a, &b, Conn { access: right, ..Conn::default() });
        done(&p, op);
        m.word(0).store(0, Relaxed);
    }
}

/// A device registers no region for a FLUSH that it does not have: the answer would promise what is not so.
pub(crate) fn a_right_to_flush_is_given_where_the_device_has_it(bed: &dyn Bed) {
    let [_, b] = Node::open(bed);
    let flush = b.dev().attr().abilities.flush;
    let m = b.mem(4096, ALL);
    let rereg = b.dev().attr().abilities.mr_rereg;
    for (placement, right) in [(VISIBLE, Access::FLUSH_GLOBAL), (PERSISTENT, Access::FLUSH_PERSISTENT)] {
        let registered = b.try_reg_for(b.pd.handle, 4096, ALL | right);
        if flush.contains(placement) {
            registered.unwrap();
            continue;
        }
        assert!(matches!(registered, Err(DeviceError::Unsupported { .. })), "{registered:?}");
        if rereg {
            let changed = b.dev().rereg_mr(m.handle(), b.pd.handle, ALL | right);
            assert!(matches!(changed, Err(DeviceError::Unsupported { .. })), "{changed:?}");
            m.assert_bytes(0, &[0; 8]);
        }
    }
}

pub(crate) fn a_window_gives_them_its_range_and_rights(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let Some(windows) = b.dev().windows() else { return };
    if !has_both(&Pair::between(&a, &b, Conn::default())) {
        return;
    }
    let hidden = b.mem(4096, Access::LOCAL_WRITE | Access::MW_BIND);
    let mw = windows.alloc_mw(b.pd.handle, MwType::One).unwrap();
    let bind = |access| {
        let sge = hidden.sge(64, 0);
        let range = MwRange { lkey: sge.lkey, addr: sge.addr, len: 64, access, zero_based: false };
        windows.bind_mw(mw.handle, Some(&range)).unwrap()
    };
    let p = Pair::between(&a, &b, Conn::default());
    let rkey = bind(Access::REMOTE_WRITE | Access::FLUSH_GLOBAL);
    let at = |offset| RemoteAddr { rkey, ..hidden.remote(offset) };
    done(&p, write_word(at(72), 5));
    done(&p, flush_range(at(64), 64));
    done(&p, flush(at(0), 0, VISIBLE, Selectivity::Region));
    hidden.assert_bytes(72, &5_u64.to_ne_bytes());
    for (op, why) in [
        (write_word(at(56), 1), KeyFault::Range),
        (flush_range(at(65), 64), KeyFault::Range),
        (flush(at(64), 8, PERSISTENT, Selectivity::Region), KeyFault::Right),
    ] {
        refused(&a, &b, &hidden, op, WcStatus::RemoteAccess, Some(why));
    }
    let rkey = bind(Access::REMOTE_READ);
    let at = |offset| RemoteAddr { rkey, ..hidden.remote(offset) };
    for op in [write_word(at(72), 1), flush_range(at(64), 64), flush(at(64), 0, VISIBLE, Selectivity::Region)]
    {
        refused(&a, &b, &hidden, op, WcStatus::RemoteAccess, Some(KeyFault::Right));
    }
    windows.dealloc_mw(mw.handle).unwrap();
}
