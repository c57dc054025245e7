//! Keys, ranges, rights and protection domains: accesses that must be refused, and that must change nothing.

use hca_core::{
    Access, AsyncEvent, DeviceError, KeyFault, Lkey, QpState, RemoteAddr, Rkey, SendOp, Sge, WcStatus,
};

use crate::Bed;
use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, wr};

/// WRITE, READ and an atomic to one place.
fn remote_ops(remote: RemoteAddr) -> [SendOp; 4] {
    [
        SendOp::Write(remote),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
    ]
}

/// Connects anew, does the operation with 8 bytes and fails unless it is refused as remote access
/// error, without a byte touched at the target or the initiator, and both sides go to error.
fn refused(a: &Node, b: &Node, target: &Mem, op: SendOp) {
    let p = Pair::between(a, b, Conn { mem_bytes: 4096, ..Conn::default() });
    let before = target.read(0, target.len());
    p.ma.fill(0x77);
    p.a.send(1, op, &[p.ma.sge(64, 8)]);
    p.a.send_cq.ends(1, WcStatus::RemoteAccess);
    target.assert_bytes(0, &before);
    p.ma.assert_untouched_but(0, 0, 0x77);
    p.a.wait_state(QpState::Error);
    p.b.wait_state(QpState::Error);
    p.b.wait_event(AsyncEvent::QpAccessError);
}

pub(crate) fn an_unknown_key_is_refused(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let m = b.mem(4096, ALL);
    let raw = m.keys().rkey.raw();
    for wrong in [0, u32::MAX, raw ^ 1, raw ^ 0x80, raw ^ 0x100, raw ^ 0x8000_0000] {
        refused(&a, &b, &m, SendOp::Write(RemoteAddr { rkey: Rkey::new(wrong), ..m.remote(0) }));
    }
    for op in remote_ops(RemoteAddr { rkey: Rkey::new(raw.wrapping_add(0x101)), ..m.remote(0) }) {
        refused(&a, &b, &m, op);
    }
}

/// The reason why a peer was refused is the owner's: one counter goes up by one.
pub(crate) fn the_owner_learns_why_a_key_was_refused(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let faults = || -> Vec<u64> {
        let counters = b.dev().counters();
        let value = |name| counters.iter().find(|c| c.name == name).map(|c| c.value);
        FAULT_COUNTERS.iter().filter_map(|name| value(*name)).collect()
    };
    if faults().is_empty() {
        return;
    }
    let m = b.mem(4096, ALL);
    let (foreign, plain) = (b.other_pd().mem(4096, ALL), b.mem(4096, Access::LOCAL_WRITE));
    let gone = b.mem(4096, ALL);
    gone.dereg().unwrap();
    let unknown = RemoteAddr { rkey: Rkey::new(m.keys().rkey.raw() ^ 1), ..m.remote(0) };
    for i in 0..4 {
        for (fault, remote, mem) in [
            (KeyFault::Unknown, unknown, &m),
            (KeyFault::Freed, gone.remote(0), &gone),
            (KeyFault::OtherPd, foreign.remote(0), &foreign),
            (KeyFault::Range, m.remote(4096), &m),
            (KeyFault::Right, plain.remote(0), &plain),
        ] {
            let mut want = faults();
            want[usize::from(fault.code()) - 1] += 1;
            refused(&a, &b, mem, remote_ops(remote)[i]);
            assert_eq!(faults(), want, "{fault}");
        }
    }
}
const FAULT_COUNTERS: [&str; KeyFault::ALL.len()] = [
    "rx_refused_unknown_key",
    "rx_refused_freed_key",
    "rx_refused_other_pd",
    "rx_refused_range",
    "rx_refused_right",
];

/// The completion of a request with a bad local key has the reason as its vendor code.
pub(crate) fn a_completion_says_why_its_local_key_was_refused(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if a.dev().counters().iter().all(|c| c.name != FAULT_COUNTERS[0]) {
        return;
    }
    let (m, foreign, gone) = (a.mem(4096, ALL), a.other_pd().mem(4096, ALL), a.mem(4096, ALL));
    let read_only = a.mem(4096, Access::REMOTE_READ);
    gone.dereg().unwrap();
    let (ok, unknown) = (m.sge(0, 8), Lkey::new(m.keys().lkey.raw() ^ 1));
    for (fault, sge) in [
        (KeyFault::Unknown, Sge { lkey: unknown, ..ok }),
        (KeyFault::Freed, gone.sge(0, 8)),
        (KeyFault::OtherPd, foreign.sge(0, 8)),
        (KeyFault::Range, Sge { addr: ok.addr + 4089, ..ok }),
        (KeyFault::Right, read_only.sge(0, 8)),
    ] {
        // A list whose second entry is bad, that the adapter fills.
        let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
        p.a.send(1, SendOp::Read(p.mb.remote(0)), &[ok, sge]);
        let c = p.a.send_cq.ends(1, WcStatus::LocalProtection);
        assert_eq!(KeyFault::from_code(c.vendor_code()), Some(fault), "READ");
        let p = Pair::between(&b, &a, Conn { mem_bytes: 4096, ..Conn::default() });
        p.b.recv(1, &[sge]);
        p.a.send(1, SendOp::Send, &[p.ma.sge(0, 8)]);
        let c = p.b.recv_cq.ends(1, WcStatus::LocalProtection);
        assert_eq!(KeyFault::from_code(c.vendor_code()), Some(fault), "receive");
        if fault == KeyFault::Right {
            continue;
        }
        let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
        p.b.recv(1, &[p.mb.sge(0, 64)]);
        p.a.send(1, SendOp::Send, &[sge]);
        let c = p.a.send_cq.ends(1, WcStatus::LocalProtection);
        assert_eq!(KeyFault::from_code(c.vendor_code()), Some(fault), "SEND");
    }
    // Other failures, and what is flushed behind them, have no code.
    let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
    p.a.send(1, SendOp::Read(RemoteAddr { rkey: Rkey::new(0), ..p.mb.remote(0) }), &[p.ma.sge(0, 8)]);
    assert_eq!(p.a.send_cq.ends(1, WcStatus::RemoteAccess).vendor_code(), 0);
}

pub(crate) fn a_key_taken_back_is_refused(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for i in 0..4 {
        let m = b.mem(4096, ALL);
        m.dereg().unwrap();
        // Another region takes the slot that became free.
        let _next = b.mem(4096, ALL);
        refused(&a, &b, &m, remote_ops(m.remote(0))[i]);
    }
}

pub(crate) fn a_key_of_another_protection_domain_is_refused(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let foreign = b.other_pd().mem(4096, ALL);
    for op in remote_ops(foreign.remote(0)) {
        refused(&a, &b, &foreign, op);
    }
}

pub(crate) fn an_access_outside_the_region_by_one_is_refused(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    // The region is the middle of what its pages hold, so that a byte beside it would be writable.
    let m = b.mem(4096, ALL);
    let len = m.len() as i64;
    for offset in [-1, len - 7, len, -8, i64::MAX / 2] {
        refused(&a, &b, &m, SendOp::Write(m.remote(offset)));
        refused(&a, &b, &m, SendOp::Read(m.remote(offset)));
    }
    refused(&a, &b, &m, SendOp::FetchAdd { remote: m.remote(len), add: 1 });
    refused(&a, &b, &m, SendOp::FetchAdd { remote: m.remote(-8), add: 1 });
    // An address that overflows when the length is added.
    refused(&a, &b, &m, SendOp::Write(RemoteAddr { addr: u64::MAX - 3, ..m.remote(0) }));
    // The very last bytes are fine.
    let p = Pair::between(&a, &b, Conn::default());
    p.a.send(1, SendOp::Write(m.remote(len - 8)), &[p.ma.sge(0, 8)]);
    p.a.send_cq.ok(1);
}

pub(crate) fn a_region_of_odd_length_ends_at_its_last_byte(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let m = b.mem(1001, ALL);
    let p = Pair::between(&a, &b, Conn::default());
    p.a.send(1, SendOp::Write(m.remote(0)), &[p.ma.sge(0, 1001)]);
    p.a.send_cq.ok(1);
    p.a.send(2, SendOp::Write(m.remote(0)), &[p.ma.sge(0, 1002)]);
    p.a.send_cq.ends(2, WcStatus::RemoteAccess);
}

pub(crate) fn a_long_write_out_of_range_writes_nothing(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let m = p.b.node.mem(8192, ALL);
    p.ma.fill(0x99);
    p.a.send(1, SendOp::Write(m.remote(1)), &[p.ma.sge(0, 8192)]);
    p.a.send_cq.ends(1, WcStatus::RemoteAccess);
    p.settle();
    m.assert_bytes(0, &[0; 8192]);
}

pub(crate) fn every_remote_operation_needs_its_right(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC];
    for (i, right) in rights.into_iter().enumerate() {
        let without = b.mem(4096, ALL - right);
        refused(&a, &b, &without, remote_ops(without.remote(0))[i]);
        let with = b.mem(4096, right | Access::LOCAL_WRITE);
        let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
        p.a.send(1, remote_ops(with.remote(0))[i], &[p.ma.sge(0, 8)]);
        p.a.send_cq.ok(1);
    }
    let without = b.mem(4096, ALL - Access::REMOTE_WRITE);
    let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
    p.b.recv(1, &[]);
    p.a.send(1, SendOp::WriteImm(without.remote(0), 1), &[p.ma.sge(0, 8)]);
    p.a.send_cq.ends(1, WcStatus::RemoteAccess);
}

/// The IBA calls an operation that the queue pair does not allow an invalid request, many adapters
/// a remote access error: both are refusals.
pub(crate) fn the_queue_pair_has_to_allow_remote_operations_too(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let m = b.mem(4096, ALL);
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC];
    for (i, right) in rights.into_iter().enumerate() {
        let p = Pair::between(&a, &b, Conn { access: ALL - right, mem_bytes: 4096, ..Conn::default() });
        p.a.send(1, remote_ops(m.remote(0))[i], &[p.ma.sge(0, 8)]);
        let c = p.a.send_cq.next();
        let status = a.world.as_refusal(c.status, WcStatus::RemoteAccess);
        assert!(
            matches!(status, WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest),
            "{right:?}: {}",
            c.status
        );
        m.assert_bytes(0, &[0; 16]);
        let p = Pair::between(&a, &b, Conn { access: right, mem_bytes: 4096, ..Conn::default() });
        p.a.send(1, remote_ops(m.remote(64))[i], &[p.ma.sge(0, 8)]);
        p.a.send_cq.ok(1);
    }
}

pub(crate) fn a_local_entry_has_to_be_covered_by_its_key(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let m = a.mem(4096, ALL);
    let foreign = a.other_pd().mem(4096, ALL);
    let stale = a.mem(4096, ALL);
    stale.dereg().unwrap();
    let ok = m.sge(0, 8);
    let bad = [
        Sge { lkey: hca_core::Lkey::new(ok.lkey.raw() ^ 0x100), ..ok },
        Sge { addr: ok.addr - 1, ..ok },
        Sge { addr: ok.addr + 4096 - 7, ..ok },
        Sge { len: 4097, ..ok },
        Sge { addr: u64::MAX - 3, ..ok },
        foreign.sge(0, 8),
        stale.sge(0, 8),
    ];
    for (i, sge) in bad.into_iter().enumerate() {
        let p = Pair::between(&a, &b, Conn { mem_bytes: 8192, ..Conn::default() });
        let op = if i % 2 == 0 { SendOp::Write(p.mb.remote(0)) } else { SendOp::Read(p.mb.remote(0)) };
        p.a.send(i as u64, op, &[sge]);
        p.a.send_cq.ends(i as u64, WcStatus::LocalProtection);
        p.a.wait_state(QpState::Error);
        p.mb.assert_bytes(0, &[0; 64]);
        // The bad entry may stand anywhere in the list.
        let p = Pair::between(&a, &b, Conn { mem_bytes: 8192, ..Conn::default() });
        p.b.recv(1, &[p.mb.sge(0, 8192)]);
        p.a.send(i as u64, SendOp::Send, &[ok, sge]);
        p.a.send_cq.ends(i as u64, WcStatus::LocalProtection);
        // Neither side's memory changes, however the two reach each other by then.
        for op in [0, 1] {
            let p = Pair::between(&a, &b, Conn { mem_bytes: 8192, ..Conn::default() });
            p.a.send(1, remote_ops(p.mb.remote(0))[op], &[p.ma.sge(0, 8)]);
            p.a.send_cq.ok(1);
            p.settle();
            m.fill(7);
            p.mb.fill(9);
            p.a.send(2, remote_ops(p.mb.remote(0))[op], &[ok, sge]);
            p.a.send_cq.ends(2, WcStatus::LocalProtection);
            m.assert_bytes(0, &[7; 64]);
            p.mb.assert_bytes(0, &[9; 64]);
        }
    }
}

pub(crate) fn memory_that_the_adapter_fills_needs_local_write(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let read_only = a.mem(4096, Access::REMOTE_READ);
    for op in [1, 2] {
        let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
        p.a.send(1, remote_ops(p.mb.remote(0))[op], &[read_only.sge(0, 8)]);
        p.a.send_cq.ends(1, WcStatus::LocalProtection);
        read_only.assert_bytes(0, &[0; 64]);
    }
    let p = Pair::between(&b, &a, Conn { mem_bytes: 4096, ..Conn::default() });
    p.ma.fill(1);
    p.b.recv(1, &[read_only.sge(0, 100)]);
    p.a.send(2, SendOp::Send, &[p.ma.sge(0, 100)]);
    p.b.recv_cq.ends(1, WcStatus::LocalProtection);
    p.a.send_cq.ends(2, WcStatus::RemoteOperation);
    read_only.assert_bytes(0, &[0; 64]);
}

pub(crate) fn a_receive_entry_has_to_be_covered_by_its_key(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let foreign = b.other_pd().mem(4096, ALL);
    let stale = b.mem(4096, ALL);
    stale.dereg().unwrap();
    for m in [&foreign, &stale] {
        let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
        p.ma.fill(1);
        p.b.recv(1, &[m.sge(0, 100)]);
        p.a.send(2, SendOp::Send, &[p.ma.sge(0, 100)]);
        p.b.recv_cq.ends(1, WcStatus::LocalProtection);
        p.a.send_cq.ends(2, WcStatus::RemoteOperation);
        m.assert_bytes(0, &[0; 128]);
    }
}

pub(crate) fn after_deregistration_no_write_lands(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for round in 0..3_u8 {
        let p = Pair::between(&a, &b, Conn { mem_bytes: 64 << 10, ..Conn::default() });
        let target = b.mem(64 << 10, ALL);
        p.access_until_refused(&[SendOp::Write(target.remote(0))], 64 << 10, || {
            let some = usize::from(round) * 1000 + 8;
            a.world.wait("the first bytes", || (target.read(some, 1)[0] != 0).then_some(()));
            target.dereg().unwrap();
            let at_return = target.read(0, 64 << 10);
            a.world.settle();
            target.assert_bytes(0, &at_return);
        });
    }
}

pub(crate) fn after_deregistration_no_receive_or_read_lands(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let m = p.b.node.mem(4096, ALL);
    p.b.recv(1, &[m.sge(0, 4096)]);
    m.dereg().unwrap();
    p.ma.fill(3);
    p.a.send(2, SendOp::Send, &[p.ma.sge(0, 4096)]);
    p.b.recv_cq.ends(1, WcStatus::LocalProtection);
    m.assert_bytes(0, &[0; 4096]);
    // More READs than an adapter has under way at once: whatever it is at, some end later.
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn { mem_bytes: 4096, ..Conn::default() });
    p.mb.fill(3);
    let m = a.mem(64 << 10, ALL);
    let sges: Vec<_> = (0..16).map(|i| [m.sge(i * 4096, 4096)]).collect();
    let reads = sges.iter().zip(1..).map(|(sge, id)| wr(id, SendOp::Read(p.mb.remote(0)), sge));
    p.a.try_send(&reads.collect::<Vec<_>>()).unwrap();
    m.dereg().unwrap();
    m.fill(0);
    let ends = p.a.send_cq.take(16);
    let failed = ends.iter().map(|c| c.status).find(|s| *s != WcStatus::Success);
    assert!(failed.is_none_or(|s| s == WcStatus::LocalProtection), "{failed:?}");
    p.settle();
    m.assert_bytes(0, &[0; 64 << 10]);
}

pub(crate) fn keys_are_not_used_again_soon_and_differ(bed: &dyn Bed) {
    let [a] = Node::open(bed);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..500 {
        let m = a.mem(64, ALL);
        assert!(seen.insert(m.keys().rkey), "{} was given out twice", m.keys().rkey);
    }
    let mut sorted: Vec<u32> = seen.iter().map(|k| k.raw()).collect();
    sorted.sort_unstable();
    let close = sorted.windows(2).filter(|w| w[1] - w[0] <= 2).count();
    assert!(close < 50, "{close} of 500 keys can be had by counting");
}

pub(crate) fn a_region_handle_is_good_once(bed: &dyn Bed) {
    let [a] = Node::open(bed);
    let m = a.mem(64, ALL);
    m.dereg().unwrap();
    let again = a.mem(64, ALL);
    assert_ne!(m.handle(), again.handle());
    let e = m.dereg().unwrap_err();
    assert!(matches!(e, DeviceError::UnknownHandle { .. }), "{e}");
}

pub(crate) fn regions_may_overlap_and_die_one_by_one(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let regions: Vec<Mem> = (0..20).map(|_| p.b.node.mem(4096, ALL)).collect();
    let bytes = pattern(3, 4096);
    p.ma.write(0, &bytes);
    for (i, m) in regions.iter().enumerate() {
        if i % 2 == 0 {
            m.dereg().unwrap();
        }
    }
    for (i, m) in regions.iter().enumerate().filter(|(i, _)| i % 2 == 1) {
        p.a.try_send(&[wr(i as u64, SendOp::Write(m.remote(0)), &[p.ma.sge(0, 4096)])]).unwrap();
        p.a.send_cq.ok(i as u64);
        m.assert_bytes(0, &bytes);
    }
}
