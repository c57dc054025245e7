//! Reliable datagrams by the safe API.

use super::*;

const QKEY: Qkey = Qkey::new(0x1ee7);

/// A domain at each end, and a connection of end-to-end contexts.
struct Domains {
    domains: [RdDomain; 2],
    contexts: [EeContext; 2],
}

impl Domains {
    fn new(ends: &[End; 2]) -> Self {
        let domains = [0, 1].map(|i| ends[i].context.alloc_rd_domain().unwrap());
        let contexts = Self::connection(&domains);
        Self { domains, contexts }
    }
    fn connection(domains: &[RdDomain; 2]) -> [EeContext; 2] {
        let contexts = [0, 1].map(|i: usize| domains[i].ee_context().build().unwrap());
        let options = ConnectOptions::default();
        for (ours, theirs) in [(0, 1), (1, 0)] {
            let remote = contexts[theirs as usize].endpoint().to_string();
            contexts[ours as usize].connect(&remote.parse().unwrap(), &options).unwrap();
        }
        contexts
    }
    fn qp(&self, ends: &[End; 2], side: usize) -> QueuePair<Rd> {
        let qp = self.domains[side].qp(&ends[side].pd, &ends[side].cq).max_send_wr(32).max_recv_wr(4);
        let qp = qp.build().unwrap();
        qp.activate(QKEY).unwrap();
        qp
    }
    fn peer(&self, to: &QueuePair<Rd>) -> RdPeer {
        self.contexts[0].peer(to.qpn(), QKEY)
    }
}

/// Messages that came to the second end: who received, who sent, and the bytes.
fn messages(ends: &mut [End; 2], count: usize) -> Vec<(hca_core::QpHandle, hca_core::Qpn, Vec<u8>)> {
    let start = std::time::Instant::now();
    let (mut came, [a, b]) = (Vec::new(), ends);
    while came.len() < count {
        assert!(start.elapsed() < Duration::from_secs(20), "only {came:?} came");
        a.cq.poll(&mut a.wcs).for_each(|wc| assert_eq!(wc.status, WcStatus::Success));
        for wc in b.cq.poll(&mut b.wcs) {
            let wc = wc.ok().unwrap();
            came.push((wc.qp, wc.src_qp, wc.payload().unwrap().to_vec()));
        }
    }
    came
}

#[test]
fn one_queue_pair_sends_to_many_and_a_message_has_no_grh_before_it() {
    in_all_modes(|ends| {
        let d = Domains::new(ends);
        let mut from = [d.qp(ends, 0), d.qp(ends, 0)];
        let mut to = [0; 3].map(|_| d.qp(ends, 1));
        for round in 0..5_u8 {
            for (i, qp) in to.iter_mut().enumerate() {
                for _ in 0..2 {
                    qp.post_recv(ends[1].pd.alloc(64).unwrap()).unwrap();
                }
                for qp_from in &mut from {
                    let bytes = ends[0].buf(&[round * 3 + i as u8; 10]);
                    qp_from.send_to(bytes, &d.peer(qp)).unwrap();
                }
            }
            let came = messages(ends, 6);
            for (i, qp) in to.iter().enumerate() {
                for sender in &from {
                    let message = (qp.handle(), sender.qpn(), vec![round * 3 + i as u8; 10]);
                    assert_eq!(came.iter().filter(|m| **m == message).count(), 1, "{came:?}");
                }
                assert_eq!(qp.outstanding().1, 0);
            }
        }
    });
}

#[test]
fn rdma_and_atomics_go_to_the_memory_of_the_peer_that_is_named() {
    in_all_modes(|ends| {
        let d = Domains::new(ends);
        let (mut a, b) = (d.qp(ends, 0), d.qp(ends, 1));
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let window = ends[1].pd.alloc_shared(4096, all).unwrap();
        let (remote, peer) = (window.remote(), d.peer(&b));
        a.post_send(SendRequest::write(ends[0].buf(&[7; 8]), remote.range(..8)).to_peer(&peer)).unwrap();
        let read = SendRequest::read(ends[0].pd.alloc(8).unwrap(), remote.range(..8));
        a.post_send(read.to_peer(&peer)).unwrap();
        let add = SendRequest::fetch_add(ends[0].pd.alloc(8).unwrap(), remote.range(8..16), 3);
        a.post_send(add.to_peer(&peer)).unwrap();
        let swap = SendRequest::compare_swap(ends[0].pd.alloc(8).unwrap(), remote.range(8..16), 3, 9);
        a.post_send(swap.to_peer(&peer)).unwrap();
        let [sent, _] = collect(ends, [4, 0]);
        assert!(sent.iter().all(|c| c.1 == WcStatus::Success), "{sent:?}");
        assert_eq!((bytes(&sent[1].2[0]), window.load_u64(8)), (&[7; 8][..], 9));
        assert_eq!(bytes(&sent[3].2[0]), 3_u64.to_ne_bytes());
    });
}

#[test]
fn a_refused_request_stops_its_queue_pair_until_it_resumes_and_no_other() {
    in_all_modes(|ends| {
        let d = Domains::new(ends);
        let (mut a, mut other, mut b) = (d.qp(ends, 0), d.qp(ends, 0), d.qp(ends, 1));
        let wrong = d.contexts[0].peer(b.qpn(), Qkey::new(QKEY.raw() ^ 1));
        a.send_to(ends[0].buf(b"refused"), &wrong).unwrap();
        a.send_to(ends[0].buf(b"flushed"), &d.peer(&b)).unwrap();
        let [sent, _] = collect(ends, [2, 0]);
        assert_eq!(sent[0].1, WcStatus::RemoteInvalidRd);
        assert_eq!((sent[1].1, bytes(&sent[1].2[0])), (WcStatus::WrFlushed, &b"flushed"[..]));
        assert_eq!(a.query().unwrap().state, QpState::Sqe);
        for qp in [&mut other, &mut a] {
            if qp.query().unwrap().state == QpState::Sqe {
                qp.resume().unwrap();
            }
            b.post_recv(ends[1].pd.alloc(64).unwrap()).unwrap();
            qp.send_to(ends[0].buf(b"heard"), &d.peer(&b)).unwrap();
            assert_eq!(messages(ends, 1), [(b.handle(), qp.qpn(), b"heard".to_vec())]);
        }
        // A context in error takes no requests.
        d.contexts[0].to_error().unwrap();
        while other.outstanding().0 + a.outstanding().0 > 0 {
            ends[0].cq.poll(&mut ends[0].wcs);
        }
        other.send_to(ends[0].buf(b"lost"), &d.peer(&b)).unwrap();
        let [sent, _] = collect(ends, [1, 0]);
        assert_eq!((sent[0].1, bytes(&sent[0].2[0])), (WcStatus::InvalidEecState, &b"lost"[..]));
    });
}

#[test]
fn requests_of_a_receive_queue_complete_as_contexts_take_them() {
    in_all_modes(|ends| {
        let d = Domains::new(ends);
        let second = Domains::connection(&d.domains);
        let (mut a, mut b, mut to) = (d.qp(ends, 0), d.qp(ends, 0), d.qp(ends, 1));
        // More rounds than the queue has places, by two contexts at once: the short message takes the second request, and
        // ends first.
        for round in 0..10_u8 {
            for _ in 0..2 {
                to.post_recv(ends[1].pd.alloc(100_000).unwrap()).unwrap();
            }
            a.send_to(ends[0].buf(&[round; 100_000]), &d.peer(&to)).unwrap();
            b.send_to(ends[0].buf(&[round; 60]), &second[0].peer(to.qpn(), QKEY)).unwrap();
            let mut came = messages(ends, 2);
            came.sort_by_key(|message| message.2.len());
            let expected = [(b.qpn(), vec![round; 60]), (a.qpn(), vec![round; 100_000])];
            assert!(came.into_iter().map(|(_, from, bytes)| (from, bytes)).eq(expected), "round {round}");
            assert_eq!(to.outstanding().1, 0);
        }
    });
}

#[test]
fn a_domain_and_a_context_live_as_long_as_what_needs_them() {
    in_all_modes(|ends| {
        let Domains { domains, contexts } = Domains::new(ends);
        let d = Domains { domains, contexts };
        let (handle, device) = (d.domains[0].handle(), ends[0].context.device().clone());
        let dealloc = || device.reliable_datagrams().unwrap().dealloc_rdd(handle);
        let (mut a, mut b) = (d.qp(ends, 0), d.qp(ends, 1));
        b.post_recv(ends[1].pd.alloc(64).unwrap()).unwrap();
        a.send_to(ends[0].buf(b"on its way"), &d.peer(&b)).unwrap();
        let Domains { domains: [mine, theirs], contexts: [near, far] } = d;
        // The request holds its context until it has completed.
        drop((near, mine, theirs));
        assert!(matches!(dealloc(), Err(DeviceError::InUse { .. })));
        assert_eq!(messages(ends, 1)[0].2, b"on its way");
        while a.outstanding().0 > 0 {
            ends[0].cq.poll(&mut ends[0].wcs);
            ends[1].context.turn();
        }
        assert!(matches!(dealloc(), Err(DeviceError::InUse { users: 1, .. })), "the queue pair's");
        drop(a);
        assert!(matches!(dealloc(), Err(DeviceError::UnknownHandle { .. })), "it went with the queue pair");
        drop(far);
    });
}

#[test]
fn what_is_of_another_context_or_service_is_refused_with_a_remedy() {
    let ends = ends(Progress::Inline);
    let d = Domains::new(&ends);
    let refused = d.domains[0].qp(&ends[1].pd, &ends[1].cq).build().unwrap_err();
    assert!(matches!(refused, BuildError::ForeignContext { what: "protection domain" }), "{refused}");
    let refused = ends[0].pd.qp::<Rd>(&ends[0].cq).build().unwrap_err();
    assert!(refused.to_string().contains("outside of an RD domain"), "{refused}");
    let mut a = d.qp(&ends, 0);
    let foreign = d.contexts[1].peer(a.qpn(), QKEY);
    let refused = a.send_to(ends[0].buf(b"no"), &foreign).unwrap_err();
    assert!(matches!(refused.error, PostRefusal::ForeignEe), "{refused:?}");
    assert_eq!(&refused.request[..], b"no");
    let (rc, idle) = (ends[1].qp::<Rc>(), d.domains[0].ee_context().build().unwrap());
    let refused = idle.connect(&rc.endpoint(), &ConnectOptions::default()).unwrap_err();
    assert!(refused.to_string().ends_with("it connects to one of the service Eec"), "{refused}");
    // The context of another domain is the device's to find.
    let other = ends[0].context.alloc_rd_domain().unwrap();
    let mut b = other.qp(&ends[0].pd, &ends[0].cq).max_send_wr(1).build().unwrap();
    b.activate(QKEY).unwrap();
    b.send_to(ends[0].buf(b"no"), &d.peer(&a)).unwrap();
    let mut ends = ends;
    assert_eq!(collect(&mut ends, [1, 0])[0][0].1, WcStatus::LocalRddViolation);
}
