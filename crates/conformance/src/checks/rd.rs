//! Reliable datagrams (RD). A device that has none refuses.

use hca_core::{
    Access, Dest, DeviceError, PostErrorKind, Qkey, QpHandle, QpState, QpType, Qpn, RdDest, RddHandle,
    RecvExtra, ReliableDatagrams, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus,
};

use crate::Bed;
use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, Portless, QKEY, Qp, qp_init, wr};

/// The reliable datagrams of an adapter, if it has some.
fn rd(node: &Node) -> Option<&dyn ReliableDatagrams> {
    let rd = node.dev().reliable_datagrams();
    assert_eq!(rd.is_some(), node.dev().attr().abilities.max_rdd > 0, "what the attributes say is so");
    for qp_type in [QpType::Rd, QpType::Eec] {
        let (conn, cq) = (Conn::of(qp_type), node.cq(8));
        let refused = node.dev().create_qp(node.pd.handle, &qp_init(&conn, &cq, &cq, None));
        assert!(matches!(refused.map(drop), Err(DeviceError::Unsupported { .. })), "without a domain");
    }
    rd
}

fn context(node: &Node, rdd: RddHandle) -> Portless {
    Portless::new(node, rd(node).expect("seen before").create_eec(rdd).expect("a context"))
}
fn context_conn(node: &Node) -> Conn {
    Conn::at(QpType::Eec, node)
}
/// Contexts of two domains, connected to each other.
fn connected(conn: &Conn, a: &Side, b: &Side) -> [Portless; 2] {
    let contexts = [context(&a.node, a.domain), context(&b.node, b.domain)];
    connect(conn, &contexts);
    contexts
}
/// Connects two contexts to each other.
fn connect(conn: &Conn, contexts: &[Portless; 2]) {
    for side in 0..2 {
        let peer = &contexts[1 - side];
        contexts[side].connect(conn, (peer.qpn, peer.node.gid()), side);
    }
}

/// An adapter with a domain.
struct Side {
    node: Node,
    domain: RddHandle,
}

impl Side {
    fn new(node: Node) -> Option<Self> {
        let domain = rd(&node)?.alloc_rdd().expect("a domain");
        Some(Self { node, domain })
    }
    /// A queue pair in RTS, in the protection domain of `node`.
    fn qp(&self, node: &Node) -> Qp {
        let qp = self.idle_qp(node);
        qp.to_init(&Conn::of(QpType::Rd));
        qp.go(QpState::Rtr);
        qp.go(QpState::Rts);
        qp
    }
    fn idle_qp(&self, node: &Node) -> Qp {
        let conn = Conn::of(QpType::Rd);
        let (send_cq, recv_cq) = (node.cq(conn.cq_depth), node.cq(conn.cq_depth));
        let init = qp_init(&conn, &send_cq, &recv_cq, None);
        let ports = rd(node).expect("seen before").create_rd_qp(node.pd.handle, self.domain, &init);
        node.qp_of(ports.expect("a queue pair"), &conn, (&send_cq, &recv_cq), None)
    }
}
impl Drop for Side {
    fn drop(&mut self) {
        let _ = rd(&self.node).expect("seen before").dealloc_rdd(self.domain);
    }
}

/// A queue pair with memory of its own, all of which peers may access.
struct End {
    qp: Qp,
    memory: Mem,
}

impl End {
    fn new(side: &Side, node: &Node) -> Self {
        Self { qp: side.qp(node), memory: node.mem(64 << 10, ALL) }
    }
    fn recv(&self, wr_id: u64, offset: usize, len: usize) {
        self.qp.recv(wr_id, &[self.memory.sge(offset, len)]);
    }
    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.memory.sge(offset, 0).addr, rkey: self.memory.keys().rkey }
    }
    fn post_to(&self, dest: RdDest, id: u64, op: SendOp, offset: usize, len: usize) {
        let sges = [self.memory.sge(offset, len)];
        let request = SendWr { dest: Some(Dest::Reliable(dest)), ..wr(id, op, &sges) };
        self.qp.try_send(&[request]).expect("the request is taken");
    }
    /// Ready to send again behind an error.
    fn resume(&self) {
        assert_eq!(self.qp.state(), QpState::Sqe);
        self.qp.go(QpState::Rts);
    }
}

/// Two adapters with a domain each, a connection of contexts between them, and two queue pairs at each, in protection
/// domains of their own.
struct Domains {
    // Dropped in this order.
    from: [End; 2],
    to: [End; 2],
    contexts: [Portless; 2],
    a: Side,
    b: Side,
}

impl Domains {
    fn new(bed: &dyn Bed) -> Option<Self> {
        Self::with(bed, |_| {})
    }
    fn with(bed: &dyn Bed, change: impl FnOnce(&mut Conn)) -> Option<Self> {
        let [a, b] = Node::open(bed);
        let (a, b) = (Side::new(a)?, Side::new(b)?);
        let mut conn = context_conn(&a.node);
        change(&mut conn);
        let contexts = connected(&conn, &a, &b);
        let ends = |side: &Side| [End::new(side, &side.node), End::new(side, &side.node.other_pd())];
        let (from, to) = (ends(&a), ends(&b));
        Some(Self { from, to, contexts, a, b })
    }
    fn dest(&self, to: &End) -> RdDest {
        RdDest { eec: self.contexts[0].handle, qpn: to.qp.qpn, qkey: QKEY }
    }
    fn post(&self, (from, to): (&End, &End), id: u64, op: SendOp, offset: usize, len: usize) {
        from.post_to(self.dest(to), id, op, offset, len);
    }
    /// Posts a request and expects this end.
    #[track_caller]
    fn ends(&self, (from, to): (&End, &End), op: SendOp, len: usize, status: WcStatus) {
        self.post((from, to), 3, op, 0, len);
        from.qp.send_cq.ends(3, status);
    }
    /// Each queue pair sends to each.
    #[track_caller]
    fn assert_work(&self) {
        for (from, to) in self.from.iter().flat_map(|from| self.to.iter().map(move |to| (from, to))) {
            from.memory.write(0, &pattern(9, 3000));
            to.recv(77, 1000, 3000);
            self.ends((from, to), SendOp::Send, 3000, WcStatus::Success);
            assert_eq!(to.qp.recv_cq.ok(77).src_qp, from.qp.qpn);
            to.memory.assert_bytes(1000, &pattern(9, 3000));
        }
    }
}

pub(crate) fn each_message_goes_to_the_queue_pair_that_it_names(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    for (i, len) in [0, 8, 48, 1000, 5000, 30_000].into_iter().enumerate() {
        let seed = i as u64;
        let extras = [(SendOp::Send, RecvExtra::None), (SendOp::SendImm(9), RecvExtra::Imm(9))];
        for (from, (op, extra)) in d.from.iter().zip(extras) {
            from.memory.write(0, &pattern(seed, len));
            for to in d.to.iter().rev() {
                to.recv(seed, 0, len);
                d.post((from, to), seed, op, 0, len);
                let c = to.qp.recv_cq.ok(seed);
                assert_eq!((c.qp, c.src_qp, c.grh), (to.qp.handle, from.qp.qpn, false));
                assert_eq!((c.byte_len, c.extra, c.opcode), (len as u32, extra, WcOpcode::Recv));
                to.memory.assert_bytes(0, &pattern(seed, len));
                assert_eq!(from.qp.send_cq.ok(seed).qp, from.qp.handle);
            }
        }
    }
    for end in d.from.iter().chain(&d.to) {
        end.qp.recv_cq.stays_empty();
    }
}

pub(crate) fn both_ends_of_a_context_send_at_once(bed: &dyn Bed) {
    const N: u64 = 40;
    let Some(d) = Domains::new(bed) else { return };
    let back = |to: &End| RdDest { eec: d.contexts[1].handle, qpn: to.qp.qpn, qkey: QKEY };
    for i in 0..N {
        for end in d.from.iter().chain(&d.to) {
            end.recv(i, 0, 4000);
            end.recv(N + i, 0, 4000);
        }
    }
    for i in 0..N {
        let len = [8, 3000][i as usize % 2];
        for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            d.post((&d.from[x], &d.to[y]), 2 * i + y as u64, SendOp::SendImm(i as u32), 8000, len);
            d.to[x].post_to(back(&d.from[y]), 2 * i + y as u64, SendOp::SendImm(i as u32), 8000, len);
        }
    }
    for end in d.from.iter().chain(&d.to) {
        end.qp.send_cq.all_end(0..2 * N, WcStatus::Success);
        // The messages of each sender come in their order.
        let mut seen = [(Qpn::default(), 0); 2];
        for c in end.qp.recv_cq.take(2 * N as usize) {
            assert_eq!(c.status, WcStatus::Success);
            let of = seen.iter().position(|(qpn, _)| *qpn == c.src_qp);
            let of =
                of.or_else(|| seen.iter().position(|(qpn, _)| *qpn == Qpn::default())).expect("two senders");
            assert_eq!(c.extra, RecvExtra::Imm(seen[of].1));
            seen[of] = (c.src_qp, seen[of].1 + 1);
        }
    }
}

pub(crate) fn rdma_takes_the_keys_of_the_queue_pair_that_it_names(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    let (from, len) = (&d.from[0], 20_000);
    for (i, to) in d.to.iter().enumerate() {
        let seed = 40 + i as u64;
        from.memory.write(0, &pattern(seed, len));
        d.ends((from, to), SendOp::Write(to.remote(8)), len, WcStatus::Success);
        to.memory.assert_bytes(8, &pattern(seed, len));
        from.memory.fill(0);
        d.ends((from, to), SendOp::Read(to.remote(8)), len, WcStatus::Success);
        from.memory.assert_bytes(0, &pattern(seed, len));
        let add = SendOp::FetchAdd { remote: to.remote(32 << 10), add: 5 };
        d.ends((from, to), add, 8, WcStatus::Success);
        d.ends((from, to), add, 8, WcStatus::Success);
        assert_eq!(from.memory.word(0).load(std::sync::atomic::Ordering::Relaxed), 5);
        let swap = SendOp::CompareSwap { remote: to.remote(32 << 10), compare: 10, swap: 1 };
        d.ends((from, to), swap, 8, WcStatus::Success);
        to.recv(7, 0, 0);
        d.ends((from, to), SendOp::WriteImm(to.remote(0), 6), 8, WcStatus::Success);
        let c = to.qp.recv_cq.ok(7);
        assert_eq!(
            (c.src_qp, c.opcode, c.extra),
            (from.qp.qpn, WcOpcode::RecvRdmaWithImm, RecvExtra::Imm(6))
        );
    }
    // The key of the other queue pair's protection domain.
    let [one, two] = &d.to;
    for op in [SendOp::Read(two.remote(0)), SendOp::Write(two.remote(0))] {
        d.ends((from, one), op, 8, WcStatus::RemoteAccess);
        from.resume();
    }
    d.assert_work();
}

/// Posts two more requests behind one that fails.
#[track_caller]
fn fails_alone(d: &Domains, dest: RdDest, op: SendOp, len: usize, status: WcStatus) {
    fails_beside(d, dest, op, len, status);
    d.assert_work();
}
#[track_caller]
fn fails_beside(d: &Domains, dest: RdDest, op: SendOp, len: usize, status: WcStatus) {
    let [from, other] = &d.from;
    from.post_to(dest, 1, op, 0, len);
    for id in 2..4 {
        d.post((from, &d.to[0]), id, SendOp::Send, 0, 8);
    }
    from.qp.send_cq.ends(1, status);
    from.qp.send_cq.all_end(2..4, WcStatus::WrFlushed);
    // The context serves others, and a receive queue that was not ready stays so.
    d.to[1].recv(50, 0, 64);
    d.ends((other, &d.to[1]), SendOp::Send, 64, WcStatus::Success);
    d.to[1].qp.recv_cq.ok(50);
    assert_eq!(d.contexts.each_ref().map(Portless::state), [QpState::Rts; 2]);
    from.resume();
}

pub(crate) fn a_request_that_fails_stops_its_queue_pair_alone(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    let to = &d.to[0];
    let (dest, nowhere) = (d.dest(to), RemoteAddr { addr: to.remote(0).addr + (1 << 20), ..to.remote(0) });
    for op in [SendOp::Write(nowhere), SendOp::Read(nowhere)] {
        fails_alone(&d, dest, op, 3000, WcStatus::RemoteAccess);
    }
    let unaligned = SendOp::FetchAdd { remote: to.remote(4), add: 1 };
    fails_alone(&d, dest, unaligned, 8, WcStatus::RemoteInvalidRequest);
    fails_alone(&d, RdDest { qkey: Qkey::new(7), ..dest }, SendOp::Send, 8, WcStatus::RemoteInvalidRd);
    // At a shared address the upper bits name the process.
    let none = RdDest { qpn: Qpn::new(dest.qpn.raw() ^ 0xff00), ..dest };
    fails_alone(&d, none, SendOp::Send, 8, WcStatus::RemoteInvalidRd);
    // One that is there, and in no domain.
    let rc = d.b.node.qp(&Conn::default());
    fails_alone(&d, RdDest { qpn: rc.qpn, ..dest }, SendOp::Send, 8, WcStatus::RemoteInvalidRd);
    // Longer than the receive request, by packets and within one.
    for len in [200, 5000] {
        to.recv(60, 0, 100);
        fails_beside(&d, dest, SendOp::Send, len, WcStatus::RemoteInvalidRequest);
        to.qp.recv_cq.ends(60, WcStatus::LocalLength);
        d.assert_work();
    }
}

pub(crate) fn a_list_whose_key_does_not_hold_fails_at_its_sender(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    let (from, to) = (&d.from[0], &d.to[0]);
    // The second entry is another protection domain's.
    let foreign = d.from[1].memory.sge(0, 4000);
    let sges = [from.memory.sge(0, 4000), foreign];
    let request = SendWr { dest: Some(Dest::Reliable(d.dest(to))), ..wr(1, SendOp::Send, &sges) };
    from.qp.try_send(&[request]).unwrap();
    from.qp.send_cq.ends(1, WcStatus::LocalProtection);
    from.resume();
    d.assert_work();
    to.qp.recv_cq.stays_empty();
}

pub(crate) fn a_request_needs_a_context_of_its_domain_that_is_connected(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    let (from, dest) = (&d.from[0], d.dest(&d.to[0]));
    let expect = |eec: QpHandle, status: WcStatus| {
        from.post_to(RdDest { eec, ..dest }, 1, SendOp::Send, 0, 8);
        from.qp.send_cq.ends(1, status);
        from.resume();
    };
    let idle = context(&d.a.node, d.a.domain);
    expect(idle.handle, WcStatus::InvalidEecState);
    let other = Side { domain: rd(&d.a.node).unwrap().alloc_rdd().unwrap(), node: d.a.node.clone() };
    let far = Side { domain: rd(&d.b.node).unwrap().alloc_rdd().unwrap(), node: d.b.node.clone() };
    let contexts = connected(&context_conn(&d.a.node), &other, &far);
    expect(contexts[0].handle, WcStatus::LocalRddViolation);
    let gone = idle.handle;
    idle.destroy().unwrap();
    expect(gone, WcStatus::InvalidEecn);
    // A queue pair is none.
    expect(d.from[1].qp.handle, WcStatus::InvalidEecn);
    // The domain of the receiver is that of the context's other end.
    let stranger = End::new(&far, &far.node);
    stranger.recv(1, 0, 64);
    from.post_to(d.dest(&stranger), 1, SendOp::Send, 0, 8);
    from.qp.send_cq.ends(1, WcStatus::RemoteInvalidRd);
    from.resume();
    stranger.qp.recv_cq.stays_empty();
    d.assert_work();
}

pub(crate) fn a_queue_pair_receives_in_the_states_of_the_standard(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    let (from, to) = (&d.from[0], End { qp: d.b.idle_qp(&d.b.node), memory: d.b.node.mem(4096, ALL) });
    let refused = |what: &str| {
        from.post_to(d.dest(&to), 1, SendOp::Send, 0, 8);
        let c = from.qp.send_cq.next();
        assert_eq!((c.wr_id, c.status), (1, WcStatus::RemoteInvalidRd), "{what}");
        from.resume();
    };
    refused("RESET");
    to.qp.to_init(&Conn::of(QpType::Rd));
    to.recv(5, 0, 64);
    refused("INIT");
    to.qp.go(QpState::Rtr);
    d.ends((from, &to), SendOp::Send, 8, WcStatus::Success);
    to.qp.recv_cq.ok(5);
    to.qp.go(QpState::Rts);
    (6..9).for_each(|id| to.recv(id, 0, 64));
    to.qp.go(QpState::Error);
    to.qp.recv_cq.all_end(6..9, WcStatus::WrFlushed);
    refused("ERROR");
    to.recv(9, 0, 64);
    to.qp.recv_cq.ends(9, WcStatus::WrFlushed);
    d.assert_work();
}

pub(crate) fn a_receiver_that_is_not_ready_is_waited_for(bed: &dyn Bed) {
    let Some(d) = Domains::with(bed, |conn| conn.rnr_retry = 7) else { return };
    let (from, to) = (&d.from[0], &d.to[0]);
    from.memory.write(0, &pattern(3, 3000));
    d.post((from, to), 5, SendOp::Send, 0, 3000);
    to.qp.recv_cq.stays_empty();
    to.recv(2, 0, 3000);
    to.qp.recv_cq.ok(2);
    from.qp.send_cq.ok(5);
    to.memory.assert_bytes(0, &pattern(3, 3000));
}

pub(crate) fn a_receiver_that_stays_unready_stops_the_sender_alone(bed: &dyn Bed) {
    let Some(d) = Domains::with(bed, |conn| conn.rnr_retry = 2) else { return };
    d.ends((&d.from[0], &d.to[0]), SendOp::Send, 8, WcStatus::RnrRetryExceeded);
    d.from[0].resume();
    // A late copy of the request takes no receive request any more once the next message has come.
    d.to[1].recv(5, 0, 8);
    d.ends((&d.from[0], &d.to[1]), SendOp::Send, 8, WcStatus::Success);
    d.to[1].qp.recv_cq.ok(5);
    d.assert_work();
}

pub(crate) fn a_queue_pair_that_goes_leaves_the_context_to_others(bed: &dyn Bed) {
    for way in 0..3 {
        let Some(d) = Domains::new(bed) else { return };
        let gone = End::new(&d.a, &d.a.node);
        // It waits for a receive request, and the others wait for it.
        d.post((&gone, &d.to[0]), 1, SendOp::Send, 0, 3000);
        d.to[1].recv(2, 0, 64);
        d.post((&d.from[1], &d.to[1]), 2, SendOp::Send, 0, 64);
        d.a.node.world.settle();
        match way {
            0 => _ = gone.qp.destroy().unwrap(),
            1 => gone.qp.go(QpState::Reset),
            _ => {
                gone.qp.go(QpState::Error);
                gone.qp.send_cq.ends(1, WcStatus::WrFlushed);
            }
        }
        d.from[1].qp.send_cq.ok(2);
        d.to[1].qp.recv_cq.ok(2);
        gone.qp.send_cq.stays_empty();
        d.assert_work();
    }
}

pub(crate) fn a_receiver_that_goes_in_the_middle_of_a_message_is_refused(bed: &dyn Bed) {
    for way in 0..3 {
        let Some(d) = Domains::new(bed) else { return };
        let gone = End::new(&d.b, &d.b.node);
        // More than leaves at once.
        gone.qp.recv(1, &[gone.memory.sge(0, 60_000); 4]);
        gone.recv(2, 0, 8);
        d.from[0].memory.fill(1);
        let sges = [d.from[0].memory.sge(0, 60_000); 4];
        let request = SendWr { dest: Some(Dest::Reliable(d.dest(&gone))), ..wr(1, SendOp::Send, &sges) };
        d.from[0].qp.try_send(&[request]).unwrap();
        d.b.node.world.wait("the first bytes", || (gone.memory.read(8, 1)[0] != 0).then_some(()));
        match way {
            0 => _ = gone.qp.destroy().unwrap(),
            1 => gone.qp.go(QpState::Reset),
            _ => gone.qp.go(QpState::Error),
        }
        // From here on nothing is written, where the queue pair is gone or reset.
        gone.memory.fill(0);
        let sent = d.from[0].qp.send_cq.next();
        // All of the message may have come before.
        if sent.status != WcStatus::Success {
            assert_eq!(sent.status, WcStatus::RemoteInvalidRd);
            d.from[0].resume();
        }
        if way < 2 {
            gone.memory.assert_bytes(0, &[0; 60_000]);
            gone.qp.recv_cq.stays_empty();
        } else {
            let ended = gone.qp.recv_cq.take(2);
            assert!(matches!(ended[0].status, WcStatus::Success | WcStatus::WrFlushed), "{ended:?}");
            assert_eq!((ended[0].wr_id, ended[1].wr_id, ended[1].status), (1, 2, WcStatus::WrFlushed));
        }
        d.assert_work();
    }
}

pub(crate) fn a_context_whose_peer_is_gone_fails_its_queue_pairs(bed: &dyn Bed) {
    let Some(d) = Domains::with(bed, |conn| (conn.timeout, conn.retry_cnt) = (12, 1)) else { return };
    d.contexts[1].destroy().unwrap();
    let [one, two] = &d.from;
    d.post((one, &d.to[0]), 1, SendOp::Send, 0, 8);
    d.post((two, &d.to[0]), 2, SendOp::Send, 0, 8);
    // A thread of the adapter may take the doorbells in any order.
    let ended = [one, two].map(|end| end.qp.send_cq.next().status);
    let expected = [WcStatus::RetryExceeded, WcStatus::InvalidEecState];
    assert!(ended == expected || ended == [expected[1], expected[0]], "{ended:?}");
    d.contexts[0].wait_state(QpState::Error);
    one.resume();
    two.resume();
    // Another connection serves them again.
    let contexts = connected(&context_conn(&d.a.node), &d.a, &d.b);
    d.to[1].recv(3, 0, 64);
    let dest = RdDest { eec: contexts[0].handle, ..d.dest(&d.to[1]) };
    one.post_to(dest, 3, SendOp::Send, 0, 64);
    one.qp.send_cq.ok(3);
    d.to[1].qp.recv_cq.ok(3);
}

pub(crate) fn a_context_that_goes_ends_what_it_has(bed: &dyn Bed) {
    for way in [QpState::Reset, QpState::Error, QpState::Sqe] {
        let Some(d) = Domains::new(bed) else { return };
        let [one, two] = &d.from;
        // Nobody is ready.
        d.post((one, &d.to[0]), 1, SendOp::Send, 0, 8);
        d.a.node.world.settle();
        d.post((two, &d.to[0]), 2, SendOp::Send, 0, 8);
        let status = if way == QpState::Sqe {
            d.contexts[0].destroy().unwrap();
            WcStatus::InvalidEecn
        } else {
            d.contexts[0].go(way);
            WcStatus::InvalidEecState
        };
        // A thread of the adapter may not have begun with the first one.
        let first = one.qp.send_cq.next().status;
        assert!(first == WcStatus::WrFlushed || first == status, "{first:?}");
        two.qp.send_cq.ends(2, status);
        one.resume();
        two.resume();
        if way == QpState::Reset {
            d.contexts[1].go(way);
            // What is left of the connection before has other PSNs.
            let conn = Conn { psn: [0x77_0000, 0x88_0000], ..context_conn(&d.a.node) };
            connect(&conn, &d.contexts);
            d.assert_work();
        }
    }
}

pub(crate) fn a_drained_context_starts_nothing_and_goes_on_later(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    d.contexts[0].go(QpState::Sqd);
    d.to[0].recv(1, 0, 64);
    d.post((&d.from[0], &d.to[0]), 1, SendOp::Send, 0, 64);
    d.to[0].qp.recv_cq.stays_empty();
    d.contexts[0].go(QpState::Rts);
    d.from[0].qp.send_cq.ok(1);
    d.to[0].qp.recv_cq.ok(1);
    d.assert_work();
}

pub(crate) fn the_rights_of_a_context_are_those_of_its_peer(bed: &dyn Bed) {
    let Some(d) = Domains::with(bed, |conn| conn.access = Access::REMOTE_WRITE) else { return };
    let (from, to) = (&d.from[0], &d.to[0]);
    d.ends((from, to), SendOp::Write(to.remote(0)), 64, WcStatus::Success);
    d.ends((from, to), SendOp::Read(to.remote(0)), 64, WcStatus::RemoteAccess);
    from.resume();
    d.assert_work();
}

pub(crate) fn requests_of_rd_name_their_destination_and_no_others_do(bed: &dyn Bed) {
    let Some(d) = Domains::new(bed) else { return };
    let (from, dest) = (&d.from[0], d.dest(&d.to[0]));
    let sges = [from.memory.sge(0, 8)];
    let refused = |qp: &Qp, request: SendWr<'_>| qp.try_send(&[request]).unwrap_err().kind;
    let plain = wr(1, SendOp::Send, &sges);
    assert_eq!(refused(&from.qp, plain), PostErrorKind::Destination);
    let to = |op| SendWr { dest: Some(Dest::Reliable(dest)), ..wr(1, op, &sges) };
    let rc = d.a.node.qp(&Conn::default());
    rc.to_init(&Conn::default());
    rc.to_rts(&Conn { mtu: context_conn(&d.a.node).mtu, ..Conn::default() }, Qpn::new(5), d.b.node.gid(), 0);
    assert_eq!(refused(&rc, to(SendOp::Send)), PostErrorKind::Destination);
    let inv = refused(&from.qp, to(SendOp::SendInv(d.to[0].remote(0).rkey)));
    assert!(matches!(inv, PostErrorKind::Unsupported { qp_type: QpType::Rd, .. }), "{inv}");
    from.qp.send_cq.stays_empty();
    d.assert_work();
}

pub(crate) fn a_domain_its_queue_pairs_and_contexts_go_in_order(bed: &dyn Bed) {
    let [a] = Node::open(bed);
    let Some(device) = rd(&a) else { return };
    let domain = device.alloc_rdd().unwrap();
    let in_use =
        |users| move |e: &DeviceError| matches!(e, DeviceError::InUse { users: n, .. } if *n == users);
    let side = Side { node: a.clone(), domain };
    let (qp, context) = (side.qp(&a), context(&a, domain));
    assert!(device.dealloc_rdd(domain).is_err_and(|e| in_use(2)(&e)));
    assert_eq!(context.destroy().unwrap(), []);
    assert!(device.dealloc_rdd(domain).is_err_and(|e| in_use(1)(&e)));
    assert!(qp.recv_cq.destroy().is_err_and(|e| in_use(1)(&e)));
    qp.destroy().unwrap();
    qp.recv_cq.destroy().unwrap();
    device.dealloc_rdd(domain).unwrap();
    assert!(matches!(device.dealloc_rdd(domain), Err(DeviceError::UnknownHandle { .. })));
    assert!(matches!(device.create_eec(domain), Err(DeviceError::UnknownHandle { .. })));
    // As many domains as the attributes say.
    let max = a.dev().attr().abilities.max_rdd;
    let all = Vec::from_iter((0..max).map(|_| device.alloc_rdd().unwrap()));
    assert!(matches!(device.alloc_rdd(), Err(DeviceError::LimitReached { .. })));
    all.into_iter().for_each(|domain| device.dealloc_rdd(domain).unwrap());
}
