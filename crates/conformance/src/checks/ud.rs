//! Unreliable datagrams: the GRH, Q_Keys, address handles.

use std::net::IpAddr;

use hca_core::{
    AddressVector, AhHandle, DeviceError, Gid, Mixed, Mtu, Payload, PostErrorKind, Qkey, QpAttr, QpState,
    QpType, RecvExtra, SendOp, SendWr, Sge, UdDest, WcStatus,
};

use crate::checks::placement::{flush_range, write_word};
use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, QKEY, Qp, wr};
use crate::{Bed, Feature};

/// Two datagram queue pairs in RTS, with an address handle from A to B.
struct Ud {
    a: Qp,
    b: Qp,
    ma: Mem,
    mb: Mem,
    ah: AhHandle,
}

fn ready(node: &Node) -> Qp {
    let conn = Conn::of(QpType::Ud);
    let qp = node.qp(&conn);
    qp.to_init(&conn);
    qp.to_rts(&conn, qp.qpn, node.gid(), 0);
    qp
}

impl Ud {
    fn new(bed: &dyn Bed) -> Self {
        let [a, b] = Node::open(bed);
        let ah = a.ah(b.gid());
        Self { a: ready(&a), b: ready(&b), ma: a.mem(16384, ALL), mb: b.mem(16384, ALL), ah }
    }
    fn to_b(&self) -> UdDest {
        UdDest { ah: self.ah, qpn: self.b.qpn, qkey: QKEY }
    }
}

fn to<'a>(dest: UdDest, id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr { dest: Some(dest.into()), ..wr(id, op, sges) }
}

/// Fails unless the 40 bytes in front of a datagram name sender and receiver.
fn assert_grh(grh: &[u8], from: Gid, to: Gid) {
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // The IPv4 header stands in the last 20 of the 40 bytes.
            let ip = &grh[20..40];
            assert_eq!(ip[0], 0x45, "version and header length");
            assert_eq!(ip[9], 17, "protocol");
            assert_eq!((&ip[12..16], &ip[16..20]), (&from.octets()[..], &to.octets()[..]));
        }
        _ => {
            assert_eq!(grh[0] >> 4, 6, "version");
            assert!(matches!(grh[6], 17 | 27), "next header {}", grh[6]);
            assert_eq!((&grh[8..24], &grh[24..40]), (&from.0[..], &to.0[..]));
        }
    }
}

pub(crate) fn ud_datagrams_begin_with_forty_bytes_of_grh(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let u = Ud::new(bed);
    let mtu = u.a.node.dev().port().active_mtu.bytes() as usize;
    for (id, len) in [(1, 0), (2, 1), (3, 64), (4, mtu)] {
        let bytes = pattern(id, len);
        u.ma.write(0, &bytes);
        u.mb.fill(0x33);
        u.b.recv(id, &[u.mb.sge(8, 8000)]);
        u.a.try_send(&[to(u.to_b(), id, SendOp::Send, &[u.ma.sge(0, len)])]).unwrap();
        u.a.send_cq.ok(id);
        let c = u.b.recv_cq.ok(id);
        assert_eq!((c.byte_len as usize, c.grh, c.src_qp), (len + 40, true, u.a.qpn));
        assert_grh(&u.mb.read(8, 40), u.a.node.gid(), u.b.node.gid());
        u.mb.assert_bytes(48, &bytes);
        u.mb.assert_untouched_but(8, len + 40, 0x33);
    }
}

pub(crate) fn each_index_of_the_gid_table_names_an_address_that_datagrams_reach(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let u = Ud::new(bed);
    for (id, entry) in u.b.node.dev().gids().into_iter().enumerate() {
        let (id, to_b) = (id as u64, UdDest { ah: u.a.node.ah(entry.gid), ..u.to_b() });
        u.b.recv(id, &[u.mb.sge(0, 512)]);
        u.a.try_send(&[to(to_b, id, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
        u.a.send_cq.ok(id);
        assert_eq!(u.b.recv_cq.ok(id).byte_len, 64 + 40, "{entry:?}");
        // The sender is found in its own table by what the receiver sees.
        let from = u.a.node.dev().gids().into_iter().find(|e| e.index == entry.index).expect("it is like B");
        assert_grh(&u.mb.read(0, 40), from.gid, entry.gid);
    }
}

pub(crate) fn the_general_services_queue_pair_has_number_one_and_hears_its_key(bed: &dyn Bed) {
    const GENERAL_KEY: Qkey = Qkey::new(0x8001_0000);
    let u = Ud::new(bed);
    let node = &u.b.node;
    if !node.dev().attr().general_services {
        assert!(node.general_services().is_err(), "what the attributes deny is not there");
        return;
    }
    let conn = Conn::of(QpType::Ud);
    for round in 0..2 {
        let general = node.general_services().expect("the attributes promise it");
        assert_eq!(general.qpn.raw(), 1);
        assert!(matches!(node.general_services(), Err(DeviceError::InUse { .. })), "there is one at a time");
        general.modify(&QpAttr { qkey: Some(GENERAL_KEY), ..conn.init() }).unwrap();
        general.to_rts(&conn, general.qpn, node.gid(), 0);
        if !bed.can(Feature::Lossless) {
            return;
        }
        let bytes = pattern(round, 256);
        u.ma.write(0, &bytes);
        general.recv(round, &[u.mb.sge(0, 512)]);
        // A privileged key stands for the sender's own, which does not fit.
        for qkey in [QKEY, GENERAL_KEY] {
            let dest = UdDest { ah: u.ah, qpn: general.qpn, qkey };
            u.a.try_send(&[to(dest, round, SendOp::Send, &[u.ma.sge(0, 256)])]).unwrap();
            u.a.send_cq.ok(round);
        }
        u.a.modify(&QpAttr { qkey: Some(GENERAL_KEY), ..QpAttr::default() }).unwrap();
        let dest = UdDest { ah: u.ah, qpn: general.qpn, qkey: GENERAL_KEY };
        u.a.try_send(&[to(dest, round, SendOp::Send, &[u.ma.sge(0, 256)])]).unwrap();
        u.a.send_cq.ok(round);
        let c = general.recv_cq.ok(round);
        assert_eq!((c.byte_len, c.src_qp), (256 + 40, u.a.qpn));
        u.mb.assert_bytes(40, &bytes);
        u.a.modify(&QpAttr { qkey: Some(QKEY), ..QpAttr::default() }).unwrap();
    }
}

/// Within a subnet of InfiniBand; other networks have a header with each datagram.
pub(crate) fn ud_datagrams_by_lid_alone_come_without_grh_behind_its_room(bed: &dyn Bed) {
    let u = Ud::new(bed);
    let dlid = u.b.node.dev().port().lid;
    if dlid.raw() == 0 || !bed.can(Feature::Lossless) {
        return;
    }
    let av = AddressVector { dlid, ..AddressVector::default() };
    let ah = u.a.node.dev().create_ah(u.a.node.pd.handle, &av).expect("an address handle");
    for (id, ah, grh) in [(1, ah, false), (2, u.ah, true), (3, ah, false)] {
        let bytes = pattern(id, 100);
        u.ma.write(0, &bytes);
        u.mb.fill(0x33);
        u.b.recv(id, &[u.mb.sge(8, 8000)]);
        u.a.try_send(&[to(UdDest { ah, ..u.to_b() }, id, SendOp::Send, &[u.ma.sge(0, 100)])]).unwrap();
        u.a.send_cq.ok(id);
        let c = u.b.recv_cq.ok(id);
        assert_eq!((c.byte_len as usize, c.grh, c.src_qp), (140, grh, u.a.qpn));
        u.mb.assert_bytes(48, &bytes);
        u.mb.assert_untouched_but(8, 140, 0x33);
    }
}

pub(crate) fn ud_scatters_the_grh_like_any_byte(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let u = Ud::new(bed);
    u.ma.write(0, &pattern(1, 100));
    u.b.recv(1, &[u.mb.sge(1000, 40), u.mb.sge(0, 100)]);
    u.b.recv(2, &[u.mb.sge(2000, 7), u.mb.sge(3000, 200)]);
    for id in [1, 2] {
        u.a.try_send(&[to(u.to_b(), id, SendOp::SendImm(id as u32), &[u.ma.sge(0, 100)])]).unwrap();
        assert_eq!(u.b.recv_cq.ok(id).extra, RecvExtra::Imm(id as u32));
    }
    u.mb.assert_bytes(0, &pattern(1, 100));
    assert_grh(&u.mb.read(1000, 40), u.a.node.gid(), u.b.node.gid());
    u.mb.assert_bytes(3033, &pattern(1, 100));
}

pub(crate) fn ud_needs_the_queue_key(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let u = Ud::new(bed);
    u.b.recv(1, &[u.mb.sge(0, 200)]);
    let wrong = UdDest { qkey: Qkey::new(QKEY.raw() ^ 1), ..u.to_b() };
    u.a.try_send(&[to(wrong, 1, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
    u.a.send_cq.ok(1);
    u.b.recv_cq.stays_empty();
    // Bit 31 takes the sending queue pair's own Q_Key, which is the right one here.
    let own = UdDest { qkey: Qkey::new(0x8000_0000), ..u.to_b() };
    u.a.try_send(&[to(own, 2, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
    u.b.recv_cq.ok(1);
    u.a.send_cq.ok(2);
    // And that own one may be wrong: nothing with bit 31 set goes out as it stands.
    let qkey = Some(Qkey::new(0x7777));
    u.a.modify(&hca_core::QpAttr { qkey, ..hca_core::QpAttr::default() }).unwrap();
    u.b.recv(3, &[u.mb.sge(0, 200)]);
    u.a.try_send(&[to(own, 3, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
    u.a.send_cq.ok(3);
    u.b.recv_cq.stays_empty();
}

pub(crate) fn ud_carries_one_packet_at_most(bed: &dyn Bed) {
    let u = Ud::new(bed);
    let mtu = u.a.node.dev().port().active_mtu.bytes();
    let (m, dest) = (u.a.node.mem(8192, ALL), u.to_b());
    let e = u.a.try_send(&[to(dest, 1, SendOp::Send, &[m.sge(0, mtu as usize + 1)])]).unwrap_err();
    assert_eq!(e.kind, PostErrorKind::message_too_long(u64::from(mtu) + 1, mtu.into()));
    assert!(mtu <= Mtu::B4096.bytes());
    assert_eq!(u.a.state(), QpState::Rts);
}

pub(crate) fn ud_drops_what_nobody_receives(bed: &dyn Bed) {
    let u = Ud::new(bed);
    for id in 0..5 {
        u.a.try_send(&[to(u.to_b(), id, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
    }
    u.a.send_cq.all_end(0..5, WcStatus::Success);
    u.a.node.world.wait_no_recv(1, 5);
    u.b.recv(9, &[u.mb.sge(0, 200)]);
    u.b.recv_cq.stays_empty();
    if bed.can(Feature::Lossless) {
        u.a.try_send(&[to(u.to_b(), 9, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
        u.b.recv_cq.ok(9);
    }
}

/// Adapters differ in whether the datagram is dropped or fails the receive; none may deliver it.
pub(crate) fn ud_does_not_deliver_into_a_receive_that_is_too_small(bed: &dyn Bed) {
    let u = Ud::new(bed);
    u.ma.fill(9);
    u.b.recv(1, &[u.mb.sge(0, 100)]);
    u.a.try_send(&[to(u.to_b(), 1, SendOp::Send, &[u.ma.sge(0, 61)])]).unwrap();
    u.a.send_cq.ok(1);
    u.a.node.world.settle();
    if let Some(c) = u.b.recv_cq.try_next() {
        assert_eq!((c.wr_id, c.status), (1, WcStatus::LocalLength));
    }
    u.mb.assert_untouched_but(0, 100, 0);
}

pub(crate) fn ud_to_nobody_succeeds(bed: &dyn Bed) {
    let u = Ud::new(bed);
    let nobody = UdDest { qpn: hca_core::Qpn::new(u.b.qpn.raw() ^ 0x5555), ..u.to_b() };
    u.a.try_send(&[to(nobody, 1, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
    u.a.send_cq.ok(1);
    if let Some(gid) = bed.silent_gid() {
        let dest = UdDest { ah: u.a.node.ah(gid), ..u.to_b() };
        u.a.try_send(&[to(dest, 2, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
        u.a.send_cq.ok(2);
    }
    assert_eq!(u.a.state(), QpState::Rts);
}

pub(crate) fn ud_offers_sends_only(bed: &dyn Bed) {
    let u = Ud::new(bed);
    let remote = u.mb.remote(0);
    for op in [
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 1),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::SendInv(remote.rkey),
        write_word(remote, 1),
        flush_range(remote, 8),
    ] {
        let e = u.a.try_send(&[to(u.to_b(), 1, op, &[u.ma.sge(0, 8)])]).unwrap_err();
        assert!(matches!(e.kind, PostErrorKind::Unsupported { qp_type: QpType::Ud, .. }), "{op:?}: {e}");
    }
}

pub(crate) fn a_destination_is_for_datagrams_and_only_for_them(bed: &dyn Bed) {
    let u = Ud::new(bed);
    let e = u.a.try_send(&[wr(1, SendOp::Send, &[u.ma.sge(0, 8)])]).unwrap_err();
    assert_eq!(e.kind, PostErrorKind::Destination);
    let p = crate::qp::Pair::between(&u.a.node, &u.b.node, Conn::default());
    let e = p.a.try_send(&[to(u.to_b(), 1, SendOp::Send, &[p.ma.sge(0, 8)])]).unwrap_err();
    assert_eq!(e.kind, PostErrorKind::Destination);
}

/// A send with a bad key puts an unreliable queue pair in SQE: later sends are flushed, receives
/// stay. Leaves it there.
pub(crate) fn send_error_stops_the_send_queue_only(qp: &Qp, m: &Mem, dest: Option<UdDest>) {
    let good = [m.sge(0, 64)];
    let bad = [Sge { lkey: hca_core::Lkey::new(good[0].lkey.raw() ^ 0x100), ..good[0] }];
    let dest = dest.map(Into::into);
    let one = |id, sges| SendWr { dest, ..wr(id, SendOp::Send, sges) };
    qp.try_send(&[one(1, &bad), one(2, &good), one(3, &good)]).unwrap();
    qp.send_cq.ends(1, WcStatus::LocalProtection);
    qp.send_cq.all_end(2..4, WcStatus::WrFlushed);
    assert_eq!(qp.state(), QpState::Sqe);
    qp.try_send(&[one(4, &good)]).unwrap();
    qp.send_cq.ends(4, WcStatus::WrFlushed);
    assert_eq!(qp.state(), QpState::Sqe);
}

pub(crate) fn ud_send_errors_stop_the_send_queue_only(bed: &dyn Bed) {
    let u = Ud::new(bed);
    u.a.recv(5, &[u.ma.sge(4096, 200)]);
    send_error_stops_the_send_queue_only(&u.a, &u.ma, Some(u.to_b()));
    if bed.can(Feature::Lossless) {
        let back = UdDest { ah: u.b.node.ah(u.a.node.gid()), qpn: u.a.qpn, qkey: QKEY };
        u.b.try_send(&[to(back, 1, SendOp::Send, &[u.mb.sge(0, 64)])]).unwrap();
        u.a.recv_cq.ok(5);
    }
    u.a.go(QpState::Rts);
    u.a.try_send(&[to(u.to_b(), 6, SendOp::Send, &[u.ma.sge(0, 64)])]).unwrap();
    u.a.send_cq.ok(6);
}

/// A destroyed address handle is refused at the post or fails the request; nothing is sent.
pub(crate) fn ud_refuses_a_destroyed_address_handle(bed: &dyn Bed) {
    let u = Ud::new(bed);
    u.b.recv(1, &[u.mb.sge(0, 200)]);
    u.a.node.dev().destroy_ah(u.ah).unwrap();
    let r = u.a.node.dev().destroy_ah(u.ah);
    assert!(matches!(r, Err(hca_core::DeviceError::UnknownHandle { .. })), "{r:?}");
    if u.a.try_send(&[to(u.to_b(), 1, SendOp::Send, &[u.ma.sge(0, 64)])]).is_ok() {
        assert_ne!(u.a.send_cq.next().status, WcStatus::Success);
        assert_eq!(u.a.state(), QpState::Sqe);
    }
    u.b.recv_cq.stays_empty();
}

pub(crate) fn ud_refuses_an_address_handle_of_another_domain(bed: &dyn Bed) {
    let u = Ud::new(bed);
    u.b.recv(1, &[u.mb.sge(0, 200)]);
    let foreign = u.a.node.other_pd();
    let dest = UdDest { ah: foreign.ah(u.b.node.gid()), ..u.to_b() };
    if u.a.try_send(&[to(dest, 1, SendOp::Send, &[u.ma.sge(0, 64)])]).is_ok() {
        assert_ne!(u.a.send_cq.next().status, WcStatus::Success);
    }
    u.b.recv_cq.stays_empty();
}

pub(crate) fn ud_one_queue_pair_hears_many(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let nodes: [Node; 3] = Node::open(bed);
    let hub = ready(&nodes[2]);
    let mh = nodes[2].mem(16384, ALL);
    let qps: Vec<(Qp, Mem)> = (0..6).map(|i| (ready(&nodes[i % 3]), nodes[i % 3].mem(4096, ALL))).collect();
    for i in 0..6 {
        hub.recv(i, &[mh.sge(i as usize * 1024, 1024)]);
    }
    for (i, (qp, m)) in qps.iter().enumerate() {
        m.write(0, &pattern(i as u64, 500));
        let dest = UdDest { ah: qp.node.ah(nodes[2].gid()), qpn: hub.qpn, qkey: QKEY };
        qp.try_send(&[to(dest, 1, SendOp::SendImm(i as u32), &[m.sge(0, 500)])]).unwrap();
        qp.send_cq.ok(1);
    }
    for c in hub.recv_cq.take(6) {
        let RecvExtra::Imm(i) = c.extra else { panic!("no immediate data") };
        let i = i as usize;
        assert_eq!(c.src_qp, qps[i].0.qpn);
        let at = c.wr_id as usize * 1024;
        assert_grh(&mh.read(at, 40), nodes[i % 3].gid(), nodes[2].gid());
        mh.assert_bytes(at + 40, &pattern(i as u64, 500));
    }
}

pub(crate) fn ud_sends_inline_and_to_itself(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let [a] = Node::open(bed);
    let (qp, m) = (ready(&a), a.mem(4096, ALL));
    let dest = UdDest { ah: a.ah(a.gid()), qpn: qp.qpn, qkey: QKEY };
    qp.recv(1, &[m.sge(0, 200)]);
    let bytes = pattern(1, 50);
    let inline = SendWr { payload: Payload::Inline(&bytes), ..to(dest, 2, SendOp::Send, &[]) };
    qp.try_send(&[inline]).unwrap();
    qp.send_cq.ok(2);
    let c = qp.recv_cq.ok(1);
    assert_eq!((c.byte_len, c.src_qp), (90, qp.qpn));
    m.assert_bytes(40, &bytes);
    assert_grh(&m.read(0, 40), a.gid(), a.gid());
    // In part: a header before what lies in memory.
    qp.recv(3, &[m.sge(0, 200)]);
    m.write(1000, &pattern(2, 30));
    let entries = [Sge { len: 50, ..Sge::default() }, m.sge(1000, 30)];
    let payload = Payload::Mixed(Mixed { entries: &entries, inline: 1, bytes: &bytes });
    qp.try_send(&[SendWr { payload, ..to(dest, 4, SendOp::Send, &[]) }]).unwrap();
    qp.send_cq.ok(4);
    assert_eq!(qp.recv_cq.ok(3).byte_len, 120);
    m.assert_bytes(40, &[&bytes[..], &pattern(2, 30)].concat());
}
