//! Connections between nodes: the hello protocol, the directory, and keepalives.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use hca_core::{Lid, SplitMix64};
use hca_matching::Nid;
use hca_verbs::{Completions, Ud};

use super::super::hello::{HELLO_BYTES, NO_RANK};
use super::super::ports::QKEY;
use super::super::{Directory, DirectoryError, incarnation_of};
use super::*;
use crate::v4::{CtEvent, ReturnCode};

#[test]
fn nodes_of_other_seeds_have_other_incarnations() {
    let mut all: Vec<u64> = (0..64).map(|bit| incarnation_of(1 << bit)).chain([incarnation_of(0)]).collect();
    all.extend((0..64).map(|bit| SplitMix64::mix(1 << bit)));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn who_has_another_secret_or_other_slots_is_a_stranger() {
    let bed = Bed::new(|o| o);
    let hello = bed.hello(1, 1, 20);
    let gid = hello.endpoint.gid;
    let counts = || (bed.node.counts().strangers, bed.node.connections());
    bed.deliver(gid, &Hello { key: KEY + 1, ..hello });
    assert_eq!(counts(), (1, 0));
    bed.deliver(gid, &Hello { eager_bytes: EAGER as u32 + 1, ..hello });
    assert_eq!(counts(), (2, 0));
    // The job's secret comes after the node was opened.
    bed.node.with(|state| state.set_key(KEY + 1));
    bed.deliver(gid, &hello);
    assert_eq!(counts(), (3, 0));
    bed.deliver(gid, &Hello { key: KEY + 1, ..hello });
    assert_eq!(counts(), (3, 1));
}

#[test]
fn a_hello_of_an_earlier_queue_pair_is_passed_over_and_one_of_a_later_ends_the_connection() {
    let bed = Bed::new(|o| o);
    let (first, second, third) = (bed.hello(1, 1, 20), bed.hello(1, 2, 21), bed.hello(1, 3, 22));
    let gid = first.endpoint.gid;
    let seen = || (bed.look(|peer| peer.theirs.unwrap()), bed.node.counts().lost);
    bed.meet(&second);
    bed.deliver(gid, &first);
    assert_eq!(seen(), ((second.endpoint, 2), 0));
    bed.deliver(gid, &third);
    assert_eq!(seen(), ((third.endpoint, 3), 1));
    // The same while they meet.
    bed.deliver(gid, &second);
    assert_eq!(seen(), ((third.endpoint, 3), 1));
}

#[test]
fn a_process_has_the_rank_that_it_says_last() {
    let bed = Bed::new(|o| o);
    let hello = bed.hello(1, 1, 20);
    let of = |rank| bed.node.with(|state| state.by_rank.get(&rank).copied());
    let says = |pid, rank| {
        let from = Identity { pid: Pid(pid), rank, ..hello.from };
        bed.deliver(hello.endpoint.gid, &Hello { from, ..hello });
    };
    says(7, Rank(1));
    let first = of(Rank(1)).unwrap();
    says(7, Rank(2));
    assert_eq!((of(Rank(1)), of(Rank(2))), (None, Some(first)));
    // Another one says that it has this rank: it stays with that one.
    says(8, Rank(2));
    let second = of(Rank(2)).unwrap();
    assert_ne!(first, second);
    says(7, Rank(3));
    assert_eq!((of(Rank(2)), of(Rank(3))), (Some(second), Some(first)));
    says(7, Rank(3));
    assert_eq!((of(Rank(2)), of(Rank(3))), (Some(second), Some(first)));
    says(7, NO_RANK);
    assert_eq!((of(Rank(3)), of(NO_RANK)), (None, None));
}

#[test]
fn a_rank_is_spoken_to_that_has_said_hello_though_the_job_does_not_know_it() {
    let bed = Bed::new(|o| o);
    bed.meet(&bed.hello(1, 1, 20));
    let (ni, md, _) = interface_of(&bed.node, NiOptions::MATCHING | NiOptions::LOGICAL);
    ni.put(&Put::new(md, 8, Process::logical(Rank(1)), 0)).unwrap();
    assert_eq!(bed.look(Peer::outstanding), 1);
    // Nobody is the rank of those who have none.
    let (physical, md, _) = interface(&bed.node);
    physical.put(&Put::new(md, 8, physical.phys_id(), 0)).unwrap();
    let none = ni.put(&Put::new(md, 8, Process::logical(NO_RANK), 0));
    assert_eq!(none.unwrap_err().code(), ReturnCode::ArgInvalid);
}

#[test]
fn a_rank_that_is_met_is_found_by_it() {
    let bed = Bed::new(|o| o);
    bed.list();
    let (ni, md, _) = interface_of(&bed.node, NiOptions::MATCHING | NiOptions::LOGICAL);
    ni.put(&Put::new(md, 8, Process::logical(Rank(1)), 0)).unwrap();
    let found = bed.node.with(|state| (state.by_rank.get(&Rank(1)).copied(), only(state)));
    assert_eq!(found.0, Some(found.1));
}

#[test]
fn a_map_takes_the_place_of_the_jobs_ranks() {
    let bed = Bed::new(|o| o);
    let hello = bed.hello(1, 1, 20);
    bed.meet(&hello);
    let (ni, ..) = interface_of(&bed.node, NiOptions::MATCHING | NiOptions::LOGICAL);
    let card = bed.node.card();
    ni.set_map(vec![(hello.from.nid, hello.from.pid), (card.nid, card.pid)]).unwrap();
    bed.node.with(|state| {
        let (ni, peer) = (kind(state), only(state));
        let rank = |rank| Process::logical(Rank(rank));
        assert!(!state.is_unknown(ni, rank(1)), "this process is known");
        assert_eq!(state.route(ni, rank(0)).unwrap(), peer);
        assert!(state.route(ni, rank(1)).is_err(), "this process is still to be met");
        assert!(state.is_unconnected(ni, rank(1)));
    });
}

/// A directory that counts what it is asked, and can't be asked for a while.
struct Asked {
    of: Arc<dyn Directory>,
    times: AtomicU32,
    fails: AtomicBool,
}

impl Directory for Asked {
    fn size(&self) -> Option<u32> {
        self.of.size()
    }
    fn by_rank(&self, rank: Rank) -> Result<Card, DirectoryError> {
        self.times.fetch_add(1, Relaxed);
        self.of.by_rank(rank)
    }
    fn by_process(&self, nid: Nid, pid: Pid) -> Result<Card, DirectoryError> {
        self.times.fetch_add(1, Relaxed);
        match self.fails.load(Relaxed) {
            true => Err(DirectoryError::Asking { source: "nobody answers".into() }),
            false => self.of.by_process(nid, pid),
        }
    }
}

#[test]
fn the_directory_is_asked_once_a_process_and_once_more_behind_a_loss() {
    let kept = Mutex::new(None);
    let bed = Bed::new(|o| {
        let asked = Asked { of: o.directory, times: AtomicU32::new(0), fails: AtomicBool::new(false) };
        let asked = Arc::new(asked);
        *kept.lock().unwrap() = Some(Arc::clone(&asked));
        NodeOptions { directory: asked, ..o }
    });
    let asked = kept.lock().unwrap().take().unwrap();
    let times = || asked.times.load(Relaxed);
    let (ni, md, _) = interface(&bed.node);
    let to = bed.list();
    let put = |to| ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) });
    put(to).unwrap();
    put(to).unwrap();
    assert_eq!(times(), 1);
    let later = ni.ct_alloc().unwrap();
    (0..2).for_each(|_| ni.triggered_put(&Put::new(md, 8, to, 0), later, 1).unwrap());
    assert_eq!(times(), 1);
    let loses = || bed.node.with(|state| state.lost(only(state), &"a test loses it"));
    loses();
    put(to).unwrap();
    assert_eq!(times(), 2, "it may be elsewhere now");
    // Who can't be asked can't say that it is.
    loses();
    asked.fails.store(true, Relaxed);
    put(to).unwrap();
    assert_eq!((times(), bed.node.connections()), (3, 1));
    bed.node.with(|state| {
        let ni = kind(state);
        assert!(!state.is_unknown(ni, to));
        assert!(state.trust(ni, to), "another thread has trusted the card meanwhile");
    });
    let error = put(Process::physical(to.nid(), Pid(99))).unwrap_err();
    assert_eq!((error.code(), times()), (ReturnCode::Fail, 4), "{error}");
    drop(ni);
    let (ni, md, _) = interface_of(&bed.node, NiOptions::MATCHING | NiOptions::LOGICAL);
    let beyond = ni.put(&Put::new(md, 8, Process::logical(Rank(5)), 0)).unwrap_err();
    assert_eq!((beyond.code(), times()), (ReturnCode::ArgInvalid, 4), "nobody has it");
}

#[test]
fn only_processes_that_the_directory_told_of_are_asked_for_again() {
    let bed = Bed::new(|o| o);
    let stale = || bed.node.with(|state| state.stale.len());
    // One that said hello by itself.
    bed.meet(&bed.hello(1, 1, 20));
    bed.node.with(|state| state.lost(only(state), &"a test loses it"));
    assert_eq!(stale(), 0);
    // This one.
    let (ni, md, _) = interface(&bed.node);
    ni.put(&Put::new(md, 8, ni.phys_id(), 0)).unwrap();
    bed.node.with(|state| state.lost(only(state), &"a test loses it"));
    assert_eq!(stale(), 0);
    ni.put(&Put::new(md, 8, bed.list(), 0)).unwrap();
    bed.node.with(|state| state.lost(only(state), &"a test loses it"));
    assert_eq!(stale(), 1);
}

#[test]
fn who_speaks_to_a_process_first_is_told_that_it_cant_be_met() {
    for call in [Call::CreateAh, Call::CreateQp] {
        let bed = Bed::new(|o| o);
        let (ni, md, _) = interface(&bed.node);
        let put = Put::new(md, 8, bed.list(), 0);
        bed.gate.refuse(call);
        let error = ni.put(&put).unwrap_err();
        assert_eq!((error.code(), bed.node.connections()), (ReturnCode::Fail, 0), "{call:?}: {error}");
        assert!(bed.node.with(|state| state.leaving.is_empty()));
        ni.put(&put).unwrap();
        assert_eq!(bed.node.connections(), 1);
    }
}

#[test]
fn what_a_count_sets_off_has_its_target_met() {
    let bed = Bed::new(|o| o);
    let (ni, md, failures) = interface(&bed.node);
    let ct = ni.ct_alloc().unwrap();
    let put = Put { ack_req: AckReq::Ack, ..Put::new(md, 8, bed.list(), 0) };
    ni.triggered_put(&put, ct, 1).unwrap();
    assert_eq!(bed.node.connections(), 0);
    ni.ct_inc(ct, CtEvent { success: 1, failure: 0 }).unwrap();
    assert_eq!((bed.node.connections(), ni.ct_get(failures).unwrap().failure), (1, 0));
    assert_eq!(bed.look(|peer| peer.backlog.len()), 1);
}

#[test]
fn a_connection_leads_where_the_card_says_and_slots_are_asked_for_again_soon() {
    let bed = Bed::new(|o| o);
    let Hello { from: Identity { nid, pid, .. }, datagrams, endpoint, .. } = bed.hello(1, 1, 20);
    let (gid, lid) = (endpoint.gid, Lid::new(5));
    bed.cards.lock().unwrap().0.push(Card { nid, pid, gid, lid, datagrams });
    let (ni, md, _) = interface(&bed.node);
    ni.put(&Put::new(md, 8, Process::physical(nid, pid), 0)).unwrap();
    assert_eq!((bed.gate.path().dgid, bed.gate.path().dlid), (gid, lid));
    bed.meet(&bed.hello(1, 1, 20));
    // 10 us.
    assert_eq!(bed.gate.told(|attr| attr.min_rnr_timer), Some(hca_core::RnrTimer::new(1)));
}

#[test]
fn an_answer_to_who_knows_this_side_asks_for_no_other() {
    let bed = Bed::new(|o| o);
    let pd = bed.sim.node(THERE).context().alloc_pd().unwrap();
    let mut cq = pd.context().create_cq(16).unwrap();
    let mut ud = pd.qp::<Ud>(&cq).max_send_wr(1).max_recv_wr(8).build().unwrap();
    ud.activate(QKEY).unwrap();
    (0..8).for_each(|_| ud.post_recv(pd.alloc(Grh::BYTES + HELLO_BYTES).unwrap()).unwrap());
    let hello = Hello { datagrams: ud.qpn(), ..bed.hello(1, 1, 20) };
    bed.deliver(hello.endpoint.gid, &hello);
    let ours = bed.look(|peer| peer.ours.unwrap());
    bed.deliver(hello.endpoint.gid, &Hello { peer_qpn: Some(ours.qpn), ..hello });
    assert!(bed.look(|peer| peer.is_up()));
    bed.sim.run_for(Duration::from_millis(5)).unwrap();
    let mut wcs = Completions::default();
    let heard: Vec<_> = (cq.poll(&mut wcs))
        .map(|wc| Hello::parse(wc.ok().unwrap().payload().unwrap()).unwrap())
        .map(|hello| (hello.is_up, hello.peer_qpn, hello.endpoint))
        .collect();
    let told = |is_up| (is_up, Some(hello.endpoint.qpn), ours);
    assert_eq!(heard, [told(false), told(true)]);
}

#[test]
fn a_timer_is_due_at_its_time() {
    let bed = Bed::new(|o| o);
    bed.sim.run_for(Duration::from_millis(1)).unwrap();
    let now = bed.node.now();
    for (at, is_due) in [(now + Duration::from_nanos(1), false), (now, true)] {
        let ran = bed.node.with(|state| {
            state.timer = Some(at);
            state.run_timers()
        });
        assert_eq!((ran, bed.node.with(|state| state.timer.is_none())), (is_due, is_due));
    }
}

/// Each peer's hellos are by their own time, though the node has one timer.
#[test]
fn each_process_is_greeted_at_its_own_times() {
    let bed = Bed::new(|o| o);
    let hello = bed.hello(1, 1, 20);
    let begin = bed.node.now();
    let greets = |pid| {
        let identity = Identity { pid: Pid(pid), incarnation: 0, ..hello.from };
        let Hello { datagrams, endpoint: Endpoint { gid, lid, .. }, .. } = hello;
        let card = Card { nid: identity.nid, pid: identity.pid, gid, lid, datagrams };
        bed.node.with(|state| {
            let work = state.new_peer(identity, card, None).1;
            state.queued_work.push(work);
        });
    };
    let tries = |pid: u32| {
        bed.node.with(|state| match &state.net.peers[pid as usize - 1].as_ref().unwrap().stage {
            Stage::Connecting(meeting) => meeting.tries,
            Stage::Up => 0,
        })
    };
    let mut seen = Vec::new();
    for ms in 0..=70 {
        if ms == 0 || ms == 7 {
            greets(1 + ms / 7);
        }
        bed.node.with(State::run_timers);
        if [0, 19, 20, 26, 27, 59, 60, 66, 67].contains(&ms) {
            seen.push((ms, tries(1), if ms >= 7 { tries(2) } else { 0 }));
        }
        bed.sim.run_for(Duration::from_millis(1)).unwrap();
    }
    assert_eq!(bed.node.now().since(begin), Duration::from_millis(71));
    let due = [
        (0, 1, 0),
        (19, 1, 1),
        (20, 2, 1),
        (26, 2, 1),
        (27, 2, 2),
        (59, 2, 2),
        (60, 3, 2),
        (66, 3, 2),
        (67, 3, 3),
    ];
    assert_eq!(seen, due);
}

#[test]
fn a_process_whose_queue_pair_is_not_made_in_time_is_given_up() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let bed = Bed::new(|o| NodeOptions { connect_timeout: TIMEOUT, ..o });
    let (ni, md, _) = interface(&bed.node);
    let (to, deadline) = (bed.list(), bed.node.now() + TIMEOUT);
    let put = || ni.put(&Put::new(md, 8, to, 0)).unwrap();
    bed.meanwhile(Call::CreateAh, put, || {
        bed.sim.run_for(Duration::from_secs(1)).unwrap();
        let timer = bed.node.with(|state| {
            state.timer = Some(state.clock.now());
            assert!(state.run_timers());
            state.timer
        });
        assert_eq!(timer, Some(deadline), "there is nothing to be done before");
        bed.sim.run_until(deadline).unwrap();
        assert!(bed.node.with(State::run_timers));
        assert_eq!((bed.node.connections(), bed.node.counts().lost), (0, 1));
    });
    assert_eq!(bed.node.connections(), 1, "the put has it met once more");
}

#[test]
fn a_peer_that_owes_an_answer_is_asked_for_a_sign_of_life() {
    const KEEPALIVE: Duration = Duration::from_secs(1);
    let bed = Bed::new(|o| NodeOptions { keepalive: KEEPALIVE, ..o });
    bed.meet(&bed.hello(1, 1, 20));
    let (ni, md, _) = interface(&bed.node);
    // The time of meeting is over.
    bed.node.with(|state| state.timer = None);
    let begin = bed.node.now() + Duration::from_secs(30);
    bed.sim.run_until(begin).unwrap();
    let put = Put { ack_req: AckReq::Ack, ..Put::new(md, 8, bed.list(), 0) };
    let at = |ms: u64| {
        bed.node.with(|state| {
            // As if nothing of what was sent were known to be lost.
            state.clock =
                Clock::Given(Arc::new(move || (begin + Duration::from_millis(ms)).since(Instant::ZERO)));
            state.run_timers();
            let timer = state.timer.map(|timer| timer.since(begin).as_millis());
            let peer = only(state);
            (state.net.peer(peer).posted, timer)
        })
    };
    ni.put(&put).unwrap();
    assert_eq!(at(0), (1, Some(1000)));
    assert_eq!(at(999), (1, Some(1000)));
    assert_eq!(at(1000), (2, Some(2000)));
    // Another timer fires in between.
    bed.node.with(|state| state.timer = Some(begin));
    assert_eq!(at(1400), (2, Some(2000)));
    assert_eq!(at(2000), (3, Some(3000)));
    // The transport asks by itself for what will tell.
    bed.node.with(|state| {
        let peer = only(state);
        state.net.ports.budget = 4;
        state.post(peer, Out::Ping);
        state.net.ports.budget = 100;
        assert_eq!(state.net.peer(peer).silent, 0);
    });
    assert_eq!(at(3000), (4, Some(4000)));
}

#[test]
fn hellos_go_on_behind_one_that_could_not_be_sent() {
    let bed = Bed::new(|o| o);
    let target = open(&bed.sim, THERE, &bed.cards, |o| o);
    let (gid, port) = (bed.gid(THERE), bed.sim.node(THERE).context().port());
    let to = hca_core::AddressVector { dgid: gid, dlid: port.lid, ..Default::default() };
    let path = bed.node.inner.maker.pd.create_ah(&to).unwrap();
    bed.node.with(|state| state.net.ports.fail_hellos(path));
    let (ni, md, ct) = interface(&bed.node);
    let to = Process::physical(target.card().nid, target.card().pid);
    ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
    let (_there, ..) = interface(&target);
    for _ in 0..200 {
        bed.sim.run_for(Duration::from_millis(20)).unwrap();
        for node in [&bed.node, &target] {
            (0..33).for_each(|_| _ = node.progress());
        }
    }
    let count = ni.ct_get(ct).unwrap();
    assert_eq!((count.success, count.failure), (0, 1), "there is no portal");
    assert_eq!((bed.node.counts().connected, bed.node.counts().lost), (1, 0));
}

/// What the device's poll has yielded of a connection that was no more comes back once.
#[test]
fn a_receive_slot_that_is_polled_behind_its_connection_comes_back_once() {
    let bed = Bed::new(|o| o);
    bed.meet(&bed.hello(1, 1, 20));
    let after = bed.hello(2, 1, 21);
    bed.meanwhile(Call::DestroyQp, bed.hears(after.endpoint.gid, after), || {
        bed.node.with(|state| {
            let (&attempt, leaving) = state.leaving.iter().next().unwrap();
            let handle = leaving.peer.handle.unwrap();
            let before = state.net.ports.used_slots().len();
            let of = |qp| Completion { qp, ..Completion::default() };
            state.polled_late(&of(handle), 3);
            let another = hca_core::QpHandle { index: handle.index + 1, ..handle };
            state.polled_late(&of(another), 4);
            state.ended(super::super::device_work::Which { peer: 0, attempt }, Ok(vec![3, 4]));
            assert_eq!(state.net.ports.used_slots()[before..], [4]);
        });
    });
}

#[test]
fn a_node_that_goes_says_so() {
    let bed = Bed::new(|o| o);
    let target = open(&bed.sim, THERE, &bed.cards, |o| o);
    let (ni, md, ct) = interface(&bed.node);
    let (there, ..) = interface(&target);
    let to = Process::physical(target.card().nid, target.card().pid);
    ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
    let moves = |nodes: &[&Node]| {
        bed.sim.run_for(Duration::from_millis(1)).unwrap();
        nodes.iter().for_each(|node| (0..33).for_each(|_| _ = node.progress()));
    };
    while ni.ct_get(ct).unwrap().failure == 0 {
        moves(&[&bed.node, &target]);
    }
    assert_eq!((bed.node.connections(), target.connections()), (1, 1));
    drop((there, target));
    for _ in 0..10 {
        moves(&[&bed.node]);
    }
    assert_eq!((bed.node.connections(), bed.node.counts().lost), (0, 0));
}
