//! Multicast groups of datagram queue pairs. A device that has none refuses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use hca_core::{
    AhHandle, DeviceError, Gid, Multicast, Notify, Qkey, QpCap, QpType, Qpn, RecvExtra, SendOp, SendWr,
    UdDest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, QKEY, Qp, wr};
use crate::{Bed, Feature};

/// Bytes of a message.
const LEN: usize = 64;
const GRH: usize = 40;
/// Bytes of a receive request's place.
const PLACE: usize = 256;

/// The groups of an adapter, if it has some.
fn multicast(node: &Node) -> Option<&dyn Multicast> {
    let (multicast, abilities) = (node.dev().multicast(), node.dev().attr().abilities);
    assert_eq!(multicast.is_some(), abilities.max_mcast_grp > 0, "what the attributes say is so");
    assert_eq!(multicast.is_some(), abilities.max_mcast_qp_attach > 0, "what the attributes say is so");
    multicast
}

/// A group that no other check uses, of the IP version of an adapter.
fn group_for(node: &Node) -> Gid {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = std::process::id() << 12 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xfff;
    let [_, b, c, d] = n.to_be_bytes();
    match node.gid().ip() {
        IpAddr::V4(_) => Ipv4Addr::new(239, b, c, d).into(),
        IpAddr::V6(_) => {
            IpAddr::from(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, (n >> 16) as u16, n as u16)).into()
        }
    }
}

/// A datagram queue pair in RTS with memory for its messages.
struct End {
    qp: Qp,
    memory: Mem,
}

impl End {
    fn on(node: &Node) -> Self {
        Self::with(node, &Conn::of(QpType::Ud))
    }
    fn with(node: &Node, conn: &Conn) -> Self {
        let qp = node.qp(conn);
        qp.to_init(conn);
        qp.to_rts(conn, qp.qpn, node.gid(), 0);
        Self { memory: node.mem(32 * PLACE, ALL), qp }
    }
    fn join(&self, group: Gid) -> Result<(), DeviceError> {
        self.qp.node.dev().multicast().expect("seen before").attach_mcast(self.qp.handle, group)
    }
    fn leave(&self, group: Gid) -> Result<(), DeviceError> {
        self.qp.node.dev().multicast().expect("seen before").detach_mcast(self.qp.handle, group)
    }
    /// A receive request, whose place is that of its number.
    fn recv(&self, id: u64) {
        self.qp.recv(id, &[self.memory.sge(id as usize * PLACE, PLACE)]);
    }
    fn to(&self, group: Gid) -> AhHandle {
        self.qp.node.ah(group)
    }
    /// Sends a message that is known by its number.
    fn send(&self, ah: AhHandle, qkey: Qkey, id: u64) {
        self.memory.write(31 * PLACE, &pattern(id, LEN));
        let dest = Some(UdDest { ah, qpn: Qpn::MULTICAST, qkey }.into());
        let sges = [self.memory.sge(31 * PLACE, LEN)];
        self.qp.try_send(&[SendWr { dest, ..wr(id, SendOp::SendImm(id as u32), &sges) }]).unwrap();
        self.qp.send_cq.ok(id);
    }
    /// Fails unless a message of this number, from this queue pair, came to the receive request of number `recv`.
    #[track_caller]
    fn got(&self, recv: u64, id: u64, from: &Self, group: Gid) {
        let c = self.qp.recv_cq.ok(recv);
        assert_eq!((c.byte_len as usize, c.grh, c.extra), (GRH + LEN, true, RecvExtra::Imm(id as u32)));
        assert_eq!((c.src_qp, c.qp), (from.qp.qpn, self.qp.handle));
        let at = recv as usize * PLACE;
        self.memory.assert_bytes(at + GRH, &pattern(id, LEN));
        let grh = self.memory.read(at, GRH);
        let (src, dst) = match (from.qp.node.gid().ip(), group.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (src.octets().to_vec(), dst.octets().to_vec()),
            _ => (from.qp.node.gid().0.to_vec(), group.0.to_vec()),
        };
        assert!(grh.ends_with(&[src, dst].concat()), "source and group stand in the header: {grh:02x?}");
    }
    #[track_caller]
    fn got_nothing(&self) {
        self.qp.recv_cq.stays_empty();
    }
    /// A counter of this queue pair's own, where the device has such.
    fn counter(&self, name: &str) -> Option<u64> {
        let counters = self.qp.node.dev().qp_counters(self.qp.handle).ok()?;
        counters.iter().find(|c| c.name == name).map(|c| c.value)
    }
}

/// Adapters that have groups, on a network that loses nothing.
fn open<const N: usize>(bed: &dyn Bed) -> Option<[Node; N]> {
    let nodes = Node::open(bed);
    let all = nodes.iter().all(|node| multicast(node).is_some());
    (all && bed.can(Feature::Lossless)).then_some(nodes)
}

pub(crate) fn each_member_gets_one_copy_and_no_other_gets_any(bed: &dyn Bed) {
    let Some([a, b]) = open(bed) else { return };
    let (group, other) = (group_for(&a), group_for(&a));
    let [sender, near, near2, stranger] = [(); 4].map(|()| End::on(&a));
    let [far, far2, elsewhere] = [(); 3].map(|()| End::on(&b));
    let members = [&near, &near2, &far, &far2];
    members.iter().for_each(|member| member.join(group).unwrap());
    elsewhere.join(other).unwrap();
    for end in [&sender, &near, &near2, &stranger, &far, &far2, &elsewhere] {
        (0..4).for_each(|id| end.recv(id));
    }
    // The sender is no member.
    let ah = sender.to(group);
    for id in 0..2 {
        sender.send(ah, QKEY, id);
        members.iter().for_each(|member| member.got(id, id, &sender, group));
    }
    elsewhere.send(elsewhere.to(other), QKEY, 2);
    elsewhere.got(0, 2, &elsewhere, other);
    for end in [&sender, &near, &near2, &stranger, &far, &far2, &elsewhere] {
        end.got_nothing();
    }
}

pub(crate) fn messages_to_a_group_loop_back_to_members_on_the_senders_adapter(bed: &dyn Bed) {
    let Some([a, b]) = open(bed) else { return };
    let group = group_for(&a);
    let [sender, beside] = [(); 2].map(|()| End::on(&a));
    let far = End::on(&b);
    let members = [&sender, &beside, &far];
    members.iter().for_each(|member| member.join(group).unwrap());
    members.iter().for_each(|member| (0..4).for_each(|id| member.recv(id)));
    for (id, from) in [(0, &sender), (1, &far), (2, &beside)] {
        from.send(from.to(group), QKEY, id);
        members.iter().for_each(|member| member.got(id, id, from, group));
    }
    members.iter().for_each(|member| member.got_nothing());
}

pub(crate) fn a_member_that_leaves_gets_no_more(bed: &dyn Bed) {
    let Some([a, b]) = open(bed) else { return };
    let group = group_for(&a);
    let sender = End::on(&a);
    let [stays, leaves, far] = [End::on(&b), End::on(&b), End::on(&a)];
    let members = [&stays, &leaves, &far];
    members.iter().for_each(|member| member.join(group).unwrap());
    members.iter().for_each(|member| (0..4).for_each(|id| member.recv(id)));
    let ah = sender.to(group);
    sender.send(ah, QKEY, 0);
    members.iter().for_each(|member| member.got(0, 0, &sender, group));
    leaves.leave(group).unwrap();
    sender.send(ah, QKEY, 1);
    stays.got(1, 1, &sender, group);
    far.got(1, 1, &sender, group);
    leaves.got_nothing();
    // The last member on an adapter goes with its queue pair.
    stays.qp.destroy().unwrap();
    sender.send(ah, QKEY, 2);
    far.got(2, 2, &sender, group);
    leaves.got_nothing();
    leaves.join(group).unwrap();
    sender.send(ah, QKEY, 3);
    far.got(3, 3, &sender, group);
    leaves.got(1, 3, &sender, group);
    far.leave(group).unwrap();
    leaves.leave(group).unwrap();
    sender.send(ah, QKEY, 4);
    leaves.got_nothing();
}

pub(crate) fn a_member_with_another_queue_key_drops_its_copy(bed: &dyn Bed) {
    let Some([a, b]) = open(bed) else { return };
    let group = group_for(&a);
    let sender = End::on(&a);
    let [has, differs] = [(); 2].map(|()| End::on(&b));
    let wrong = Qkey::new(QKEY.raw() ^ 1);
    differs.qp.modify(&hca_core::QpAttr { qkey: Some(wrong), ..hca_core::QpAttr::default() }).unwrap();
    for member in [&has, &differs] {
        member.join(group).unwrap();
        (0..2).for_each(|id| member.recv(id));
    }
    let ah = sender.to(group);
    sender.send(ah, QKEY, 0);
    has.got(0, 0, &sender, group);
    differs.got_nothing();
    assert!(
        differs.counter("rx_dropped_qkey").is_none_or(|n| n == 1)
            && has.counter("rx_dropped_qkey").is_none_or(|n| n == 0)
    );
    sender.send(ah, wrong, 1);
    differs.got(0, 1, &sender, group);
    has.got_nothing();
}

pub(crate) fn a_member_without_a_receive_drops_its_copy_and_counts(bed: &dyn Bed) {
    let Some([a, b]) = open(bed) else { return };
    let group = group_for(&a);
    let sender = End::on(&a);
    let [has, lacks] = [(); 2].map(|()| End::on(&b));
    for member in [&has, &lacks] {
        member.join(group).unwrap();
    }
    (0..3).for_each(|id| has.recv(id));
    let ah = sender.to(group);
    for id in 0..2 {
        sender.send(ah, QKEY, id);
        has.got(id, id, &sender, group);
    }
    sender.qp.node.world.wait_no_recv(1, 2);
    lacks.got_nothing();
    assert!(lacks.counter("rx_dropped_no_recv").is_none_or(|n| n == 2));
    lacks.recv(0);
    lacks.got_nothing();
    sender.send(ah, QKEY, 2);
    lacks.got(0, 2, &sender, group);
    has.got(2, 2, &sender, group);
}

pub(crate) fn a_train_to_a_group_arrives_whole_and_in_order(bed: &dyn Bed) {
    const TRAIN: u64 = 24;
    let Some([a, b]) = open(bed) else { return };
    let group = group_for(&a);
    let sender = End::on(&a);
    let members = [End::on(&a), End::on(&b), End::on(&b)];
    for member in &members {
        member.join(group).unwrap();
        (0..TRAIN).for_each(|id| member.recv(id));
    }
    let dest = Some(UdDest { ah: sender.to(group), qpn: Qpn::MULTICAST, qkey: QKEY }.into());
    let sges: Vec<_> = (0..TRAIN).map(|id| [sender.memory.sge(id as usize * PLACE, LEN)]).collect();
    for id in 0..TRAIN {
        sender.memory.write(id as usize * PLACE, &pattern(id, LEN));
    }
    let of = |id: u64| SendWr { dest, ..wr(id, SendOp::SendImm(id as u32), &sges[id as usize]) };
    sender.qp.try_send(&(0..TRAIN).map(of).collect::<Vec<_>>()).unwrap();
    (0..TRAIN).for_each(|id| _ = sender.qp.send_cq.ok(id));
    for member in &members {
        (0..TRAIN).for_each(|id| member.got(id, id, &sender, group));
        member.got_nothing();
    }
}

pub(crate) fn memberships_that_break_a_rule_are_refused(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let Some(groups) = multicast(&node) else { return };
    let end = End::on(&node);
    let group = group_for(&node);
    let refused = |r: Result<(), DeviceError>| match r {
        Err(DeviceError::Multicast { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    end.join(group).unwrap();
    assert!(refused(end.join(group)).contains("already"));
    end.leave(group).unwrap();
    assert!(refused(end.leave(group)).contains("no member"));
    let of_other = if node.gid().is_ipv4() { "ff0e::1234" } else { "239.1.2.3" };
    let no_groups = [node.gid(), Gid([0; 16]), Gid::from_ip("192.0.2.1".parse().unwrap())];
    for gid in no_groups {
        assert!(refused(end.join(gid)).contains("no group's"), "{gid}");
        assert!(refused(end.leave(gid)).contains("no group's"), "{gid}");
    }
    assert!(refused(end.join(Gid::from_ip(of_other.parse().unwrap()))).contains("IP version"));
    for kind in [QpType::Rc, QpType::Uc] {
        let connected = node.qp(&Conn::of(kind));
        assert!(refused(groups.attach_mcast(connected.handle, group)).contains("connected"));
    }
    let gone = node.qp(&Conn::of(QpType::Ud));
    gone.destroy().unwrap();
    for r in [groups.attach_mcast(gone.handle, group), groups.detach_mcast(gone.handle, group)] {
        assert!(matches!(r, Err(DeviceError::UnknownHandle { .. })), "{r:?}");
    }
}

pub(crate) fn groups_and_members_up_to_the_limits_and_no_more(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let Some(groups) = multicast(&node) else { return };
    let abilities = node.dev().attr().abilities;
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let (conn, cq) = (Conn { cap, ..Conn::of(QpType::Ud) }, node.cq(4));
    let limit_reached = |r: Result<(), DeviceError>, limit: u32| {
        assert!(matches!(r, Err(DeviceError::LimitReached { limit: l, .. }) if l == limit.into()), "{r:?}");
    };
    let group = group_for(&node);
    let mut members: Vec<_> =
        (0..=abilities.max_mcast_qp_attach).map(|_| node.qp_on(&conn, &cq, &cq, None)).collect();
    let late = members.pop().expect("one more than may be");
    members.iter().for_each(|member| groups.attach_mcast(member.handle, group).unwrap());
    limit_reached(groups.attach_mcast(late.handle, group), abilities.max_mcast_qp_attach);
    drop(members.pop());
    groups.attach_mcast(late.handle, group).unwrap();
    drop(members);
    // That group stays one of them.
    let mut joined = vec![group];
    while joined.len() < abilities.max_mcast_grp as usize {
        joined.push(group_for(&node));
        groups.attach_mcast(late.handle, joined[joined.len() - 1]).unwrap();
    }
    let one_more = group_for(&node);
    limit_reached(groups.attach_mcast(late.handle, one_more), abilities.max_mcast_grp);
    groups.detach_mcast(late.handle, joined[0]).unwrap();
    groups.attach_mcast(late.handle, one_more).unwrap();
}

pub(crate) fn a_message_to_a_group_wakes_a_member_that_sleeps(bed: &dyn Bed) {
    let Some([a, b]) = open(bed) else { return };
    if !bed.can(Feature::WaitFd) {
        return;
    }
    let group = group_for(&a);
    let (sender, member) = (End::on(&a), End::on(&b));
    // The first descriptor is there before the group is, the other one is not.
    let fd = |cq: &crate::node::Cq| {
        cq.with_port(|p| p.wait_fd().expect("a descriptor").try_clone_to_owned().expect("a copy"))
    };
    let before = fd(&member.qp.recv_cq);
    member.join(group).unwrap();
    (0..4).for_each(|id| member.recv(id));
    let ah = sender.to(group);
    for id in 0..3 {
        let fd = if id == 0 { before.try_clone().unwrap() } else { fd(&member.qp.recv_cq) };
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        // Quiet is the adapter once nothing moves any more.
        member.qp.node.world.settle();
        member.qp.recv_cq.arm(Notify::Any);
        assert!(member.qp.recv_cq.with_port(|p| p.poll(&mut [hca_core::Completion::default()])) == 0);
        let dest = Some(UdDest { ah, qpn: Qpn::MULTICAST, qkey: QKEY }.into());
        sender.memory.write(31 * PLACE, &pattern(id, LEN));
        let sges = [sender.memory.sge(31 * PLACE, LEN)];
        sender.qp.try_send(&[SendWr { dest, ..wr(id, SendOp::SendImm(id as u32), &sges) }]).unwrap();
        // Its own adapter alone is turned for the sender.
        sender.qp.node.world.wait_idle("the sender's completion", || {
            sender.qp.node.dev().turn();
            sender.qp.send_cq.try_next()
        });
        let n = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("a poll");
        assert_eq!(n, 1, "the member sleeps on\n{}", member.qp.node.world.report());
        member.got(id, id, &sender, group);
    }
}
