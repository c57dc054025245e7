//! Extended reliable connections (XRC). A device that has none refuses.

use std::sync::Arc;

use hca_core::{
    AsyncEvent, Dest, DeviceError, ExtendedConnections, PostErrorKind, QpAttr, QpState, QpType, Qpn,
    RecvExtra, RemoteAddr, SendOp, SendWr, SrqInit, Srqn, WcOpcode, WcStatus, XrcdHandle,
};

use crate::Bed;
use crate::mem::{Mem, pattern};
use crate::node::{Cq, Node};
use crate::qp::{ALL, Conn, Portless, Qp, Srq, wr};

/// The extended connections of an adapter, if it has some.
fn xrc(node: &Node) -> Option<&dyn ExtendedConnections> {
    let xrc = node.dev().xrc();
    assert_eq!(xrc.is_some(), node.dev().attr().abilities.max_xrcd > 0, "what the attributes say is so");
    if xrc.is_none() {
        let conn = Conn::of(QpType::XrcIni);
        let cq = node.cq(8);
        let refused = node.dev().create_qp(node.pd.handle, &crate::qp::qp_init(&conn, &cq, &cq, None));
        assert!(matches!(refused.map(drop), Err(DeviceError::Unsupported { .. })));
    }
    xrc
}

/// A shared receive queue of a domain, with a completion queue and memory of its own.
struct Queue {
    srq: Arc<Srq>,
    number: Srqn,
    cq: Arc<Cq>,
    memory: Mem,
}

impl Queue {
    fn new(node: &Node, xrcd: XrcdHandle) -> Self {
        let cq = node.cq(64);
        let init = SrqInit { max_wr: 64, max_sge: 1 };
        let port = xrc(node).expect("seen before").create_xrc_srq(node.pd.handle, xrcd, cq.handle, &init);
        let port = port.expect("a queue");
        let srq = node.srq_of(port.handle, port.recv);
        Self { srq, number: port.number, cq, memory: node.mem(64 << 10, ALL) }
    }
    fn recv(&self, wr_id: u64, offset: usize, len: usize) {
        self.srq.recv(wr_id, &[self.memory.sge(offset, len)]);
    }
    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.memory.sge(offset, 0).addr, rkey: self.memory.keys().rkey }
    }
}

/// An initiator at `a` that is connected to a target of a domain at `b`.
fn connected(a: &Node, b: &Node, xrcd: XrcdHandle) -> (Qp, Portless) {
    connected_as(Conn::at(QpType::XrcIni, a), a, b, xrcd)
}
fn connected_as(ini: Conn, a: &Node, b: &Node, xrcd: XrcdHandle) -> (Qp, Portless) {
    let target = xrc(b).expect("seen before").create_xrc_target(xrcd).expect("a target");
    let (from, to) = (a.qp(&ini), Portless::new(b, target));
    from.to_init(&ini);
    to.connect(&Conn::at(QpType::XrcTgt, b), (from.qpn, a.gid()), 1);
    from.to_rts(&ini, to.qpn, b.gid(), 0);
    (from, to)
}

/// A connection to a domain with two queues in protection domains of their own.
struct Xrc {
    // Dropped in this order.
    from: Qp,
    to: Portless,
    queues: [Queue; 2],
    domain: XrcdHandle,
    b: Node,
    a: Node,
    memory: Mem,
}

impl Xrc {
    fn new(bed: &dyn Bed) -> Option<Self> {
        let [a, b] = Node::open(bed);
        let domain = xrc(&b)?.alloc_xrcd().expect("a domain");
        let queues = [Queue::new(&b, domain), Queue::new(&b.other_pd(), domain)];
        let (from, to) = connected(&a, &b, domain);
        let memory = a.mem(64 << 10, ALL);
        Some(Self { from, to, queues, domain, b, a, memory })
    }
    fn post(&self, srq: Srqn, id: u64, op: SendOp, offset: usize, len: usize) {
        let sges = [self.memory.sge(offset, len)];
        let request = SendWr { dest: Some(Dest::Srq(srq)), ..wr(id, op, &sges) };
        self.from.try_send(&[request]).expect("the request is taken");
    }
    /// Posts to a queue and expects this end.
    #[track_caller]
    fn ends(&self, srq: Srqn, op: SendOp, len: usize, status: WcStatus) {
        self.post(srq, 3, op, 0, len);
        self.from.send_cq.ends(3, status);
    }
}

pub(crate) fn each_message_goes_to_the_queue_that_it_names(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let [one, two] = x.queues.each_ref().map(|q| q.number);
    assert!(one != two && one != Srqn::default() && two != Srqn::default());
    for (i, len) in [0, 8, 48, 1000, 5000, 30_000].into_iter().enumerate() {
        let seed = i as u64;
        x.memory.write(0, &pattern(seed, len));
        for q in &x.queues {
            q.recv(seed, 0, len);
        }
        let extras = [(SendOp::Send, RecvExtra::None), (SendOp::SendImm(9), RecvExtra::Imm(9))];
        for (q, (op, extra)) in x.queues.iter().rev().zip(extras) {
            x.post(q.number, seed, op, 0, len);
            let c = q.cq.ok(seed);
            assert_eq!((c.qp, c.srq), (x.to.handle, q.number));
            assert_eq!((c.byte_len, c.extra, c.src_qp), (len as u32, extra, Qpn::default()));
            q.memory.assert_bytes(0, &pattern(seed, len));
            let sent = x.from.send_cq.ok(seed);
            assert_eq!((sent.qp, sent.srq), (x.from.handle, Srqn::default()));
        }
    }
    for q in &x.queues {
        q.cq.stays_empty();
    }
}

pub(crate) fn one_queue_serves_the_targets_of_its_domain(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let (from, to) = connected(&x.a, &x.b, x.domain);
    let q = &x.queues[0];
    for round in 0..8 {
        q.recv(2 * round, 0, 64);
        x.post(q.number, 1, SendOp::Send, 0, 64);
        assert_eq!(q.cq.ok(2 * round).qp, x.to.handle);
        x.from.send_cq.ok(1);
        q.recv(2 * round + 1, 0, 64);
        let sges = [x.memory.sge(0, 64)];
        let request = SendWr { dest: Some(Dest::Srq(q.number)), ..wr(2, SendOp::Send, &sges) };
        from.try_send(&[request]).unwrap();
        assert_eq!(q.cq.ok(2 * round + 1).qp, to.handle);
        from.send_cq.ok(2);
    }
}

pub(crate) fn rdma_needs_no_receive_request_and_takes_the_keys_of_the_queue_it_names(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let len = 20_000;
    for (i, q) in x.queues.iter().enumerate() {
        let seed = 40 + i as u64;
        x.memory.write(0, &pattern(seed, len));
        x.ends(q.number, SendOp::Write(q.remote(8)), len, WcStatus::Success);
        q.memory.assert_bytes(8, &pattern(seed, len));
        x.memory.fill(0);
        x.ends(q.number, SendOp::Read(q.remote(8)), len, WcStatus::Success);
        x.memory.assert_bytes(0, &pattern(seed, len));
        let add = SendOp::FetchAdd { remote: q.remote(32 << 10), add: 5 };
        x.ends(q.number, add, 8, WcStatus::Success);
        x.ends(q.number, add, 8, WcStatus::Success);
        assert_eq!(x.memory.word(0).load(std::sync::atomic::Ordering::Relaxed), 5);
        q.recv(7, 0, 0);
        x.ends(q.number, SendOp::WriteImm(q.remote(0), 6), 8, WcStatus::Success);
        let c = q.cq.ok(7);
        let expected = (q.number, WcOpcode::RecvRdmaWithImm, RecvExtra::Imm(6));
        assert_eq!((c.srq, c.opcode, c.extra), expected);
    }
    // READs of both protection domains at once.
    for (i, q) in x.queues.iter().cycle().take(6).enumerate() {
        x.post(q.number, i as u64, SendOp::Read(q.remote(8)), i * 10_000, 10_000);
    }
    x.from.send_cq.all_end(0..6, WcStatus::Success);
    for i in 0..6 {
        x.memory.assert_bytes(i * 10_000 + 8, &pattern(40 + (i as u64 & 1), len)[8..1000]);
    }
    // The key of the other queue's domain.
    let [one, two] = &x.queues;
    x.ends(one.number, SendOp::Read(two.remote(0)), 8, WcStatus::RemoteAccess);
    x.b.wait_event(AsyncEvent::QpAccessError(x.to.handle));
}

pub(crate) fn a_queue_that_is_gone_or_of_another_domain_is_refused(bed: &dyn Bed) {
    for case in 0..4 {
        let Some(x) = Xrc::new(bed) else { return };
        let other = xrc(&x.b).unwrap().alloc_xrcd().unwrap();
        let foreign = Queue::new(&x.b, other);
        let number = match case {
            0 => Srqn::new(0xff_fffe),
            1 => foreign.number,
            _ => {
                x.queues[0].srq.destroy().unwrap();
                x.queues[0].number
            }
        };
        // A queue in the place of the one that is gone has another number.
        let next = Queue::new(&x.b, x.domain);
        next.recv(1, 0, 64);
        foreign.recv(1, 0, 64);
        let op = if case == 3 { SendOp::Write(foreign.remote(0)) } else { SendOp::Send };
        x.ends(number, op, 8, WcStatus::RemoteAccess);
        x.b.wait_event(AsyncEvent::QpAccessError(x.to.handle));
        assert_eq!(x.to.state(), QpState::Error);
        next.cq.stays_empty();
        foreign.cq.stays_empty();
    }
}

pub(crate) fn an_empty_queue_is_not_ready_whatever_the_others_have(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let [one, two] = &x.queues;
    two.recv(1, 0, 64);
    x.post(one.number, 5, SendOp::Send, 0, 64);
    two.cq.stays_empty();
    one.recv(2, 0, 64);
    one.cq.ok(2);
    x.from.send_cq.ok(5);
    x.post(two.number, 6, SendOp::Send, 0, 64);
    two.cq.ok(1);
    x.from.send_cq.ok(6);
}

pub(crate) fn a_domain_its_queues_and_targets_go_in_order(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let Some(device) = xrc(&b) else { return };
    let domain = device.alloc_xrcd().unwrap();
    let in_use =
        |users| move |e: &DeviceError| matches!(e, DeviceError::InUse { users: n, .. } if *n == users);
    let queue = Queue::new(&b, domain);
    let (from, to) = connected(&a, &b, domain);
    assert!(device.dealloc_xrcd(domain).is_err_and(|e| in_use(2)(&e)));
    assert!(queue.cq.destroy().is_err_and(|e| in_use(1)(&e)));
    assert_eq!(to.destroy().unwrap(), []);
    assert!(device.dealloc_xrcd(domain).is_err_and(|e| in_use(1)(&e)));
    queue.srq.destroy().unwrap();
    queue.cq.destroy().unwrap();
    device.dealloc_xrcd(domain).unwrap();
    assert!(matches!(device.dealloc_xrcd(domain), Err(DeviceError::UnknownHandle { .. })));
    assert!(matches!(device.create_xrc_target(domain), Err(DeviceError::UnknownHandle { .. })));
    drop(from);
    // No queue of a domain is a queue pair's own.
    let domain = device.alloc_xrcd().unwrap();
    let queue = Queue::new(&b, domain);
    let init = crate::qp::qp_init(&Conn::default(), &queue.cq, &queue.cq, Some(&queue.srq));
    assert!(matches!(b.dev().create_qp(b.pd.handle, &init).map(drop), Err(DeviceError::Unsupported { .. })));
    drop(queue);
    device.dealloc_xrcd(domain).unwrap();
    // As many domains as the attributes say.
    let max = b.dev().attr().abilities.max_xrcd;
    let all = Vec::from_iter((0..max).map(|_| device.alloc_xrcd().unwrap()));
    assert!(matches!(device.alloc_xrcd(), Err(DeviceError::LimitReached { .. })));
    all.into_iter().for_each(|domain| device.dealloc_xrcd(domain).unwrap());
}

pub(crate) fn a_target_that_goes_gives_its_request_back_and_keeps_its_completions(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let q = &x.queues[0];
    q.recv(1, 0, 64);
    q.recv(2, 0, 64);
    x.ends(q.number, SendOp::Send, 8, WcStatus::Success);
    assert_eq!(x.to.destroy().unwrap(), [], "its requests are those of the queue");
    let c = q.cq.ok(1);
    assert_eq!(c.qp, x.to.handle);
    let (from, to) = connected(&x.a, &x.b, x.domain);
    let sges = [x.memory.sge(0, 64)];
    from.try_send(&[SendWr { dest: Some(Dest::Srq(q.number)), ..wr(2, SendOp::Send, &sges) }]).unwrap();
    assert_eq!(q.cq.ok(2).qp, to.handle);
    from.send_cq.ok(2);
}

pub(crate) fn a_target_that_goes_in_the_middle_of_a_message_gives_its_request_back(bed: &dyn Bed) {
    for way in [QpState::Reset, QpState::Error] {
        let Some(x) = Xrc::new(bed) else { return };
        let q = &x.queues[0];
        q.recv(1, 0, 60_000);
        x.memory.fill(1);
        x.post(q.number, 1, SendOp::Send, 0, 60_000);
        x.b.world.wait("the first bytes", || (q.memory.read(8, 1)[0] != 0).then_some(()));
        if way == QpState::Reset {
            let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
            x.b.dev().modify_qp(x.to.handle, &reset).unwrap();
        } else {
            assert_eq!(x.to.destroy().unwrap(), []);
        }
        // From here on nothing is written, and the request is used up or serves another target.
        q.memory.fill(0);
        let first = q.cq.try_next();
        let (from, to) = connected(&x.a, &x.b, x.domain);
        if first.is_none() {
            let sges = [x.memory.sge(0, 8)];
            let request = SendWr { dest: Some(Dest::Srq(q.number)), ..wr(2, SendOp::Send, &sges) };
            from.try_send(&[request]).unwrap();
            assert_eq!((q.cq.ok(1).qp, q.memory.read(0, 8)), (to.handle, vec![1; 8]));
            from.send_cq.ok(2);
        }
        q.memory.assert_bytes(8, &[0; 59_000]);
        q.cq.stays_empty();
    }
}

pub(crate) fn a_target_in_error_flushes_what_it_holds_and_leaves_the_queue_to_others(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let q = &x.queues[0];
    (0..4).for_each(|id| q.recv(id, 0, 60_000));
    x.memory.fill(1);
    (0..4).for_each(|id| x.post(q.number, id, SendOp::Send, 0, 60_000));
    x.b.world.wait("the first bytes", || (q.memory.read(8, 1)[0] != 0).then_some(()));
    let error = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
    x.b.dev().modify_qp(x.to.handle, &error).unwrap();
    x.b.world.settle();
    let mut next = 0;
    while let Some(c) = q.cq.try_next() {
        assert_eq!((c.wr_id, c.qp, c.srq), (next, x.to.handle, q.number));
        assert!(matches!(c.status, WcStatus::Success | WcStatus::WrFlushed), "{}", c.status);
        next += 1;
    }
    // The others are still the queue's.
    let (from, to) = connected(&x.a, &x.b, x.domain);
    for id in next..4 {
        let sges = [x.memory.sge(0, 8)];
        let request = SendWr { dest: Some(Dest::Srq(q.number)), ..wr(id, SendOp::Send, &sges) };
        from.try_send(&[request]).unwrap();
        assert_eq!(q.cq.ok(id).qp, to.handle);
        from.send_cq.ok(id);
    }
}

pub(crate) fn a_queue_that_goes_takes_its_completions_along(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let [a, b] = [&x.queues[0], &x.queues[1]];
    // Both on one completion queue, which has room for no more.
    let cq = x.b.cq(8);
    let queues = [(); 2].map(|()| {
        let init = SrqInit { max_wr: 4, max_sge: 1 };
        let port = xrc(&x.b).unwrap().create_xrc_srq(x.b.pd.handle, x.domain, cq.handle, &init).unwrap();
        (x.b.srq_of(port.handle, port.recv), port.number)
    });
    for round in 0..3 {
        for (srq, number) in &queues {
            for id in 0..4 {
                srq.recv(id, &[a.memory.sge(0, 64)]);
                x.ends(*number, SendOp::Send, 8, WcStatus::Success);
            }
        }
        if round < 2 {
            assert_eq!(cq.take(8).iter().filter(|c| c.srq == queues[1].1).count(), 4);
        }
    }
    queues[0].0.destroy().unwrap();
    for id in 0..4 {
        assert_eq!(cq.ok(id).srq, queues[1].1, "only the completions of the other queue are left");
    }
    cq.stays_empty();
    assert_eq!(x.b.count_events(AsyncEvent::CqOverrun(cq.handle)), 0);
    // The connection goes on.
    b.recv(9, 0, 64);
    x.ends(b.number, SendOp::Send, 8, WcStatus::Success);
    b.cq.ok(9);
}

pub(crate) fn a_queue_that_lost_a_completion_is_refused_to_all_targets(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let (later, to) = connected(&x.a, &x.b, x.domain);
    let cq = x.b.cq(2);
    let init = SrqInit { max_wr: 16, max_sge: 1 };
    let port = xrc(&x.b).unwrap().create_xrc_srq(x.b.pd.handle, x.domain, cq.handle, &init).unwrap();
    let srq = x.b.srq_of(port.handle, port.recv);
    (0..16).for_each(|id| srq.recv(id, &[x.queues[0].memory.sge(0, 64)]));
    (0..8).for_each(|id| x.post(port.number, id, SendOp::Send, 0, 8));
    x.b.wait_event(AsyncEvent::CqOverrun(cq.handle));
    x.b.world.wait("the target's end", || (x.to.state() == QpState::Error).then_some(()));
    // A target that comes later completes nothing there either.
    let sges = [x.memory.sge(0, 8)];
    later.try_send(&[SendWr { dest: Some(Dest::Srq(port.number)), ..wr(1, SendOp::Send, &sges) }]).unwrap();
    later.send_cq.ends(1, WcStatus::RemoteAccess);
    assert_eq!(to.state(), QpState::Error);
    srq.destroy().unwrap();
}

pub(crate) fn a_queue_that_goes_in_the_middle_of_a_message_ends_its_target(bed: &dyn Bed) {
    let mut rounds = 0;
    for _ in 0..40 {
        let Some(mut x) = Xrc::new(bed) else { return };
        // An initiator that gives up soon.
        let ini = Conn { timeout: 14, retry_cnt: 3, ..Conn::at(QpType::XrcIni, &x.a) };
        (x.from, x.to) = connected_as(ini, &x.a, &x.b, x.domain);
        let q = &x.queues[0];
        for id in 0..32 {
            q.recv(id, 0, 60_000);
        }
        x.memory.fill(1);
        for id in 0..32 {
            x.post(q.number, id, SendOp::Send, 0, 60_000);
        }
        // It may do so while the target waits for a processor, before anything is there.
        let begins = x.b.world.wait("the first bytes", || {
            let begins = q.memory.read(8, 1)[0] != 0;
            (begins || x.from.state() == QpState::Error).then_some(begins)
        });
        if !begins {
            continue;
        }
        q.srq.destroy().unwrap();
        // From here on nothing is written.
        q.memory.fill(0);
        let mut ends = x.from.send_cq.take(32).into_iter().map(|c| c.status).peekable();
        while ends.next_if_eq(&WcStatus::Success).is_some() {}
        ends.for_each(|status| assert_ne!(status, WcStatus::Success));
        q.memory.assert_bytes(0, &[0; 60_000]);
        rounds += 1;
        if rounds == 4 {
            return;
        }
    }
    panic!("{rounds} of 4 messages begin");
}

pub(crate) fn an_initiator_names_a_queue_and_receives_nothing(bed: &dyn Bed) {
    let Some(x) = Xrc::new(bed) else { return };
    let sges = [x.memory.sge(0, 8)];
    let refused = x.from.try_send(&[wr(1, SendOp::Send, &sges)]).unwrap_err();
    assert_eq!(refused.kind, PostErrorKind::Destination);
    let named = SendWr { dest: Some(Dest::Srq(x.queues[0].number)), ..wr(1, SendOp::Send, &sges) };
    let rc = crate::qp::Pair::between(&x.a, &x.b, Conn::default());
    assert_eq!(rc.a.try_send(&[named]).unwrap_err().kind, PostErrorKind::Destination);
    let inv = SendWr { op: SendOp::LocalInv(hca_core::Rkey::new(1)), ..named };
    assert!(matches!(x.from.try_send(&[inv]).unwrap_err().kind, PostErrorKind::Unsupported { .. }));
    rc.assert_works();
    assert_eq!(x.to.state(), QpState::Rts);
}
