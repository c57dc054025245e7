//! Memory windows. A device that has none refuses.

use std::sync::atomic::Ordering;

use hca_core::{
    Access, AsyncEvent, DeviceError, MemoryWindows, MwHandle, MwKeys, MwRange, MwType, PostErrorKind,
    QpState, QpType, RecvExtra, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, wr};
use crate::{Bed, Feature};

const RW: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// A region that peers reach through windows alone.
const HIDDEN: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

/// The windows of an adapter, if it has some.
fn windows(node: &Node) -> Option<&dyn MemoryWindows> {
    let windows = node.dev().windows();
    assert_eq!(windows.is_some(), node.dev().attr().abilities.max_mw > 0, "what the attributes say is so");
    windows
}

/// A window; destroyed when dropped.
struct Mw<'a> {
    node: &'a Node,
    keys: MwKeys,
}
impl<'a> Mw<'a> {
    fn new(node: &'a Node, kind: MwType) -> Self {
        let keys = windows(node).expect("seen before").alloc_mw(node.pd.handle, kind).expect("a window");
        Self { node, keys }
    }
    fn bind(&self, range: Option<&MwRange>) -> Result<Rkey, DeviceError> {
        windows(self.node).expect("seen before").bind_mw(self.keys.handle, range)
    }
    /// Its key with another lowest byte.
    fn key(&self, n: u32) -> Rkey {
        Rkey::new(self.keys.rkey.raw() ^ (n & 0xff))
    }
    fn dealloc(&self) -> Result<(), DeviceError> {
        windows(self.node).expect("seen before").dealloc_mw(self.keys.handle)
    }
}
impl Drop for Mw<'_> {
    fn drop(&mut self) {
        let _ = self.dealloc();
    }
}

fn range(m: &Mem, offset: usize, len: u64, access: Access) -> MwRange {
    let sge = m.sge(offset, 0);
    MwRange { lkey: sge.lkey, addr: sge.addr, len, access, zero_based: false }
}
fn at(rkey: Rkey, addr: u64) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}
/// Carries out an operation of A on 8 bytes, which ends so.
#[track_caller]
fn op(p: &Pair, op: SendOp, want: WcStatus) {
    p.a.send(7, op, &[p.ma.sge(0, 8)]);
    p.a.send_cq.ends(7, want);
}
/// A request of B that is carried out by its adapter alone.
#[track_caller]
fn local(p: &Pair, op: SendOp, want: WcStatus) {
    p.b.send(8, op, &[]);
    let c = p.b.send_cq.ends(8, want);
    assert_eq!(c.opcode, op.wc_opcode());
}

pub(crate) fn a_window_of_type_one_is_bound_by_a_call_and_used_through_all_queue_pairs(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if windows(&b).is_none() {
        return;
    }
    let hidden = b.mem(4096, HIDDEN);
    let mw = Mw::new(&b, MwType::One);
    let pairs = [(); 2].map(|()| Pair::between(&a, &b, Conn::default()));
    let first = mw.bind(Some(&range(&hidden, 64, 64, RW | Access::REMOTE_ATOMIC))).unwrap();
    let base = hidden.sge(64, 0).addr;
    for (i, p) in pairs.iter().enumerate() {
        p.ma.write(0, &pattern(i as u64, 8));
        for round in 0..3 {
            op(p, SendOp::Write(at(first, base + 8 * i as u64)), WcStatus::Success);
            p.settle();
            hidden.assert_bytes(64 + 8 * i, &pattern(i as u64, 8));
            op(p, SendOp::Read(at(first, base + 8 * i as u64)), WcStatus::Success);
            let remote = at(first, base + 32);
            op(p, SendOp::FetchAdd { remote, add: 1 }, WcStatus::Success);
            assert_eq!(hidden.word(96).load(Ordering::Relaxed), 3 * i as u64 + round + 1);
            p.ma.write(0, &pattern(i as u64, 8));
        }
    }
    // A long message, in many packets.
    let long = Pair::between(&a, &b, Conn { mem_bytes: 64 << 10, ..Conn::default() });
    let wide = b.mem(64 << 10, HIDDEN);
    let whole = Mw::new(&b, MwType::One);
    let key = whole.bind(Some(&range(&wide, 0, 64 << 10, RW))).unwrap();
    long.ma.write(0, &pattern(3, 64 << 10));
    for op in [SendOp::Write(at(key, wide.sge(0, 0).addr)), SendOp::Read(at(key, wide.sge(0, 0).addr))] {
        long.a.send(1, op, &[long.ma.sge(0, 64 << 10)]);
        long.a.send_cq.ok(1);
        wide.assert_bytes(0, &pattern(3, 64 << 10));
    }
    // Bound anew: the old key is none any more.
    let second = mw.bind(Some(&range(&hidden, 0, 8, Access::REMOTE_READ))).unwrap();
    assert_ne!(first, second);
    op(&pairs[0], SendOp::Read(at(second, hidden.sge(0, 0).addr)), WcStatus::Success);
    op(&pairs[0], SendOp::Read(at(first, base)), WcStatus::RemoteAccess);
    let third = mw.bind(None).unwrap();
    assert!(third != second && windows(&b).unwrap().query_mw(mw.keys.handle).unwrap().range.is_none());
    op(&pairs[1], SendOp::Read(at(second, hidden.sge(0, 0).addr)), WcStatus::RemoteAccess);
}

pub(crate) fn a_window_grants_its_range_and_rights_and_no_more(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if windows(&b).is_none() {
        return;
    }
    let hidden = b.mem(4096, HIDDEN);
    hidden.fill(5);
    let (mw, elsewhere) = (Mw::new(&b, MwType::One), b.other_pd());
    let key = mw.bind(Some(&range(&hidden, 64, 64, Access::REMOTE_READ))).unwrap();
    let base = hidden.sge(64, 0).addr;
    let bad = [
        SendOp::Write(at(key, base)),
        SendOp::FetchAdd { remote: at(key, base), add: 1 },
        SendOp::Read(at(key, base - 1)),
        SendOp::Read(at(key, base + 57)),
        SendOp::Read(at(key, u64::MAX - 3)),
        SendOp::Read(at(hidden.keys().rkey, base)),
        SendOp::Read(at(mw.keys.rkey, base)),
    ];
    for refused in bad {
        op(&Pair::between(&a, &b, Conn::default()), refused, WcStatus::RemoteAccess);
    }
    op(&Pair::between(&a, &elsewhere, Conn::default()), SendOp::Read(at(key, base)), WcStatus::RemoteAccess);
    op(&Pair::between(&a, &b, Conn::default()), SendOp::Read(at(key, base)), WcStatus::Success);
    hidden.assert_bytes(0, &[5; 256]);
    // The key of a window is none of a local entry, and windows are within what the region allows.
    let p = Pair::between(&b, &a, Conn::default());
    let entry = hca_core::Sge { lkey: hca_core::Lkey::new(key.raw()), ..hidden.sge(64, 8) };
    p.a.send(1, SendOp::Write(p.mb.remote(0)), &[entry]);
    p.a.send_cq.ends(1, WcStatus::LocalProtection);
    let (closed, fixed) = (b.mem(64, ALL - Access::MW_BIND), b.mem(64, Access::MW_BIND));
    let foreign = elsewhere.mem(64, ALL);
    for (refused, why) in [
        (range(&closed, 0, 8, Access::REMOTE_READ), "no windows"),
        (range(&fixed, 0, 8, Access::REMOTE_WRITE), "no writes"),
        (range(&fixed, 0, 65, Access::REMOTE_READ), "too long"),
        (range(&fixed, 0, 0, Access::REMOTE_READ), "nothing"),
        (range(&foreign, 0, 8, Access::REMOTE_READ), "another domain"),
        (MwRange { zero_based: true, ..range(&hidden, 0, 8, Access::REMOTE_READ) }, "zero-based"),
    ] {
        assert!(mw.bind(Some(&refused)).is_err(), "{why}");
    }
    op(&Pair::between(&a, &b, Conn::default()), SendOp::Read(at(key, base)), WcStatus::Success);
}

pub(crate) fn a_window_of_type_two_is_bound_by_a_request_to_one_queue_pair(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn::default());
    let hidden = b.mem(4096, HIDDEN);
    if windows(&b).is_none() {
        let bind = SendOp::BindMw { rkey: Rkey::new(1), range: range(&hidden, 0, 8, RW) };
        let refused = p.b.try_send(&[wr(1, bind, &[])]).unwrap_err();
        assert!(matches!(refused.kind, PostErrorKind::Unsupported { .. }), "{refused:?}");
        return;
    }
    let other = Pair::between(&a, &b, Conn::default());
    let mw = Mw::new(&b, MwType::Two);
    assert!(mw.bind(Some(&range(&hidden, 0, 8, RW))).is_err(), "by a request alone");
    for round in 1..4_u32 {
        let key = mw.key(round);
        let shown = MwRange { zero_based: round == 2, ..range(&hidden, 512, 64, RW) };
        let base = if shown.zero_based { 0 } else { shown.addr };
        // The peer is told behind the bind, and uses it at once.
        p.a.recv(1, &[p.ma.sge(512, 8)]);
        p.b.send(2, SendOp::BindMw { rkey: key, range: shown }, &[]);
        p.b.send(3, SendOp::Send, &[p.mb.sge(512, 8)]);
        p.a.recv_cq.ok(1);
        p.ma.write(0, &pattern(round.into(), 8));
        op(&p, SendOp::Write(at(key, base + 8)), WcStatus::Success);
        hidden.assert_bytes(520, &pattern(round.into(), 8));
        op(&p, SendOp::Read(at(key, base + 8)), WcStatus::Success);
        assert_eq!(p.b.send_cq.ok(2).opcode, WcOpcode::BindMw);
        p.b.send_cq.ok(3);
        let told = windows(&b).unwrap().query_mw(mw.keys.handle).unwrap();
        assert_eq!((told.kind, told.pd, told.rkey), (MwType::Two, b.pd.handle, key));
        assert_eq!((told.range, told.qp), (Some(shown), Some(p.b.handle)));
        local(&p, SendOp::LocalInv(key), WcStatus::Success);
    }
    // Behind a READ that is under way, and unsignalled.
    let key = mw.key(9);
    let bind = SendOp::BindMw { rkey: key, range: range(&hidden, 0, 64, RW) };
    let (list, none) = ([p.mb.sge(0, 4096)], []);
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(12, bind, &none) };
    p.b.try_send(&[wr(11, SendOp::Read(p.ma.remote(0)), &list), quiet]).unwrap();
    p.b.send(13, SendOp::Read(p.ma.remote(0)), &[p.mb.sge(0, 8)]);
    p.b.send_cq.all_end([11, 13], WcStatus::Success);
    op(&p, SendOp::Write(at(key, hidden.sge(0, 0).addr)), WcStatus::Success);
    op(&other, SendOp::Write(at(key, hidden.sge(0, 0).addr)), WcStatus::RemoteAccess);
    // A queue pair that goes takes its windows along.
    p.b.destroy().unwrap();
    assert_eq!(windows(&b).unwrap().query_mw(mw.keys.handle).unwrap().range, None);
    hidden.dereg().unwrap();
}

pub(crate) fn a_bind_or_an_invalidate_that_breaks_a_rule_fails_its_queue_pair(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if windows(&b).is_none() {
        return;
    }
    let hidden = b.mem(4096, HIDDEN);
    let (one, two, bound) = (Mw::new(&b, MwType::One), Mw::new(&b, MwType::Two), Mw::new(&b, MwType::Two));
    let elsewhere = b.other_pd();
    let foreign = Mw::new(&elsewhere, MwType::Two);
    let holder = Pair::between(&a, &b, Conn::default());
    let good = range(&hidden, 0, 64, RW);
    local(&holder, SendOp::BindMw { rkey: bound.key(1), range: good }, WcStatus::Success);
    let one_key = one.bind(Some(&good)).unwrap();
    let bind = |rkey, range| SendOp::BindMw { rkey, range };
    for (i, refused) in [
        bind(two.key(0), good),
        bind(one.key(1), good),
        bind(foreign.key(1), good),
        bind(bound.key(2), good),
        bind(Rkey::new(hidden.keys().rkey.raw() ^ 1), good),
        bind(two.key(1), range(&hidden, 0, 0, RW)),
        bind(two.key(1), range(&hidden, 4095, 2, RW)),
        bind(two.key(1), MwRange { access: Access::LOCAL_WRITE, ..good }),
        SendOp::LocalInv(two.key(0)),
        SendOp::LocalInv(bound.key(1)),
        SendOp::LocalInv(one_key),
        SendOp::LocalInv(hidden.keys().rkey),
        SendOp::LocalInv(Rkey::new(0x1234_5678)),
    ]
    .into_iter()
    .enumerate()
    {
        let p = Pair::between(&a, &b, Conn::default());
        p.b.send(1, refused, &[]);
        p.b.send(2, SendOp::Write(p.ma.remote(0)), &[p.mb.sge(0, 8)]);
        assert_eq!(p.b.send_cq.next().status, WcStatus::MwBind, "{i}: {refused:?}");
        p.b.send_cq.ends(2, WcStatus::WrFlushed);
        p.b.wait_state(QpState::Error);
    }
    let p = Pair::between(&a, &b, Conn::default());
    let refused = p.b.try_send(&[wr(1, bind(two.key(1), good), &[p.mb.sge(0, 8)])]).unwrap_err();
    assert!(matches!(refused.kind, PostErrorKind::Unsupported { .. }), "{refused:?}");
    op(&holder, SendOp::Write(at(bound.key(1), good.addr)), WcStatus::Success);
}

pub(crate) fn a_peer_takes_back_the_window_that_it_was_lent(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    if windows(&b).is_none() {
        return;
    }
    let hidden = b.mem(4096, HIDDEN);
    let (one, two) = (Mw::new(&b, MwType::One), Mw::new(&b, MwType::Two));
    let good = range(&hidden, 0, 64, RW);
    let p = Pair::between(&a, &b, Conn::default());
    for round in 1..4 {
        let key = two.key(round);
        local(&p, SendOp::BindMw { rkey: key, range: good }, WcStatus::Success);
        p.b.recv(1, &[p.mb.sge(0, 8)]);
        // The WRITE before the SEND lands, as it is allowed by then.
        p.ma.write(0, &pattern(round.into(), 8));
        p.a.send(2, SendOp::Write(at(key, good.addr)), &[p.ma.sge(0, 8)]);
        p.a.send(3, SendOp::SendInv(key), &[p.ma.sge(0, 8)]);
        let c = p.b.recv_cq.ok(1);
        assert_eq!(c.extra, RecvExtra::Invalidated(key));
        hidden.assert_bytes(0, &pattern(round.into(), 8));
        p.a.send_cq.all_end([2, 3], WcStatus::Success);
        assert_eq!(windows(&b).unwrap().query_mw(two.keys.handle).unwrap().range, None);
    }
    hidden.fill(9);
    op(&p, SendOp::Write(at(two.key(3), good.addr)), WcStatus::RemoteAccess);
    hidden.assert_bytes(0, &[9; 64]);
    // Not one of type 1, nor one of another queue pair.
    let holder = Pair::between(&a, &b, Conn::default());
    local(&holder, SendOp::BindMw { rkey: two.key(5), range: good }, WcStatus::Success);
    for key in [one.bind(Some(&good)).unwrap(), two.key(5), two.key(6)] {
        let p = Pair::between(&a, &b, Conn::default());
        p.b.recv(1, &[p.mb.sge(0, 8)]);
        p.a.send(2, SendOp::SendInv(key), &[p.ma.sge(0, 8)]);
        let c = p.a.send_cq.next();
        assert_ne!(c.status, WcStatus::Success);
        p.b.wait_state(QpState::Error);
    }
    op(&holder, SendOp::Write(at(two.key(5), good.addr)), WcStatus::Success);
}

pub(crate) fn a_region_with_windows_is_neither_deregistered_nor_changed(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let Some(device) = windows(&b) else { return };
    let hidden = b.mem(4096, HIDDEN);
    let mw = Mw::new(&b, MwType::One);
    let key = mw.bind(Some(&range(&hidden, 0, 64, RW))).unwrap();
    let refused = hidden.dereg().unwrap_err();
    assert!(matches!(refused, DeviceError::InUse { .. }), "{refused}");
    if b.dev().attr().abilities.mr_rereg {
        let refused = b.dev().rereg_mr(hidden.handle(), b.pd.handle, HIDDEN).unwrap_err();
        assert!(matches!(refused, DeviceError::InUse { .. }), "{refused}");
    }
    let p = Pair::between(&a, &b, Conn::default());
    op(&p, SendOp::Write(at(key, hidden.sge(0, 0).addr)), WcStatus::Success);
    // A window that goes lets go of it, and its domain.
    let other = b.other_pd();
    let there = Mw::new(&other, MwType::Two);
    assert!(matches!(b.dev().dealloc_pd(other.pd.handle), Err(DeviceError::InUse { .. })));
    there.dealloc().unwrap();
    mw.dealloc().unwrap();
    let unknown =
        |refused: Result<(), DeviceError>| matches!(refused, Err(DeviceError::UnknownHandle { .. }));
    assert!(unknown(mw.dealloc()) && unknown(device.query_mw(mw.keys.handle).map(drop)));
    assert!(unknown(device.bind_mw(MwHandle { generation: 77, ..mw.keys.handle }, None).map(drop)));
    hidden.dereg().unwrap();
    hidden.fill(3);
    op(&p, SendOp::Write(at(key, hidden.sge(0, 0).addr)), WcStatus::RemoteAccess);
    hidden.assert_bytes(0, &[3; 64]);
}

pub(crate) fn windows_come_and_go_while_peers_read_and_write(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let Some(_) = windows(&b) else { return };
    let rounds = if bed.can(Feature::Lossless) { 30 } else { 5 };
    let hidden = b.mem(64 << 10, HIDDEN);
    let mw = Mw::new(&b, MwType::One);
    for round in 0..rounds {
        let p = Pair::between(&a, &b, Conn { mem_bytes: 64 << 10, ..Conn::default() });
        hidden.fill(0);
        let key = mw.bind(Some(&range(&hidden, 0, 32 << 10, RW))).unwrap();
        let base = hidden.sge(0, 0).addr;
        let ops = [SendOp::Write(at(key, base)), SendOp::Read(at(key, base))];
        p.access_until_refused(&ops, 32 << 10, || {
            b.world.wait("the first bytes", || (hidden.read(8, 1)[0] != 0).then_some(()));
            // By another bind, by none, or with a bind of other rights: what was is not reached by this key.
            let next = match round % 3 {
                0 => mw.bind(None),
                1 => mw.bind(Some(&range(&hidden, 32 << 10, 64, RW))),
                _ => mw.bind(Some(&range(&hidden, 0, 32 << 10, Access::REMOTE_READ))),
            };
            assert_ne!(next.unwrap(), key);
            let at_return = hidden.read(0, 32 << 10);
            b.world.settle();
            hidden.assert_bytes(0, &at_return);
        });
        hidden.assert_untouched_but(0, 32 << 10, 0);
    }
    assert!(!b.events().iter().any(|event| matches!(event, AsyncEvent::DeviceFatal)));
}

pub(crate) fn windows_of_unreliable_connections_and_none_of_datagrams(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let Some(_) = windows(&b) else { return };
    let hidden = b.mem(4096, HIDDEN);
    let two = Mw::new(&b, MwType::Two);
    let bind = SendOp::BindMw { rkey: two.key(1), range: range(&hidden, 0, 64, RW) };
    let ud = Conn::of(QpType::Ud);
    let qp = b.qp(&ud);
    qp.to_init(&ud);
    qp.to_rts(&ud, qp.qpn, b.gid(), 0);
    let refused = qp.try_send(&[wr(1, bind, &[])]).unwrap_err();
    assert!(matches!(refused.kind, PostErrorKind::Unsupported { .. }), "{refused:?}");
    let p = Pair::between(&a, &b, Conn::of(QpType::Uc));
    local(&p, bind, WcStatus::Success);
    if bed.can(Feature::Lossless) {
        p.ma.fill(6);
        op(&p, SendOp::Write(at(two.key(1), hidden.sge(0, 0).addr)), WcStatus::Success);
        b.world.wait("the bytes", || (hidden.read(0, 8) == [6; 8]).then_some(()));
    }
    local(&p, SendOp::LocalInv(two.key(1)), WcStatus::Success);
    p.ma.fill(7);
    op(&p, SendOp::Write(at(two.key(1), hidden.sge(0, 0).addr)), WcStatus::Success);
    p.settle();
    assert_ne!(hidden.read(0, 1), [7]);
}
