//! WRITEs, READs and atomics that are done directly on a peer's memory: the accesses that must be refused, however
//! often the same region was accessed before.
//!
//! The target's adapter runs no turn unless a test asks for one. So an effect that is visible before a turn was direct,
//! and an effect of a message is visible only after a turn.
//!
//! Invariants:
//! 1. The memory that is registered outlives its adapter.
//! 2. Posted requests name that memory, and the test accesses it by volatile accesses only.
#![allow(unsafe_code)]

mod carried_out;
mod completions;
#[path = "../ends/mod.rs"]
mod ends;
mod lanes;
mod pieces;
mod polls;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::Waker;
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};

use ends::{End, open, shm_pair};
use hca_core::{
    Access, AckTimeout, AsyncEvent, Completion, Device, Lkey, MrInit, MrKeys, Notify, Payload, PdHandle,
    PostErrorKind, QpAttr, QpState, RecvWr, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use softhca::Progress;

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
const ALL: Access = REMOTE.union(Access::LOCAL_WRITE);
/// Where the granted region begins and ends in the target's memory.
const BEGIN: usize = 1024;
const END: usize = 2048;
/// Long enough for whatever comes at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the initiator's memory is filled with.
const OURS: u8 = 0x55;
const WORD: u64 = 0x5555_5555_5555_5555;

/// Two ends, and a region in the middle of the second one's memory.
struct Pair {
    a: End,
    b: End,
    target: MrKeys,
    /// The first one's memory.
    local: MrKeys,
}

fn register(end: &End, pd: PdHandle, range: core::ops::Range<usize>, access: Access) -> MrKeys {
    let addr = end.memory.addr();
    // SAFETY: (1)
    let addr = unsafe { addr.add(range.start) };
    let init = MrInit { addr, len: range.len(), iova: addr.as_ptr() as u64, access };
    // SAFETY: (1)
    unsafe { end.device.reg_mr(pd, &init) }.unwrap()
}

fn byte(end: &End, at: usize) -> u8 {
    assert!(at < end.memory.len());
    // SAFETY: (1, 2)
    unsafe { end.memory.addr().as_ptr().add(at).read_volatile() }
}

fn put(end: &End, range: core::ops::Range<usize>, value: u8) {
    for at in range {
        assert!(at < end.memory.len());
        // SAFETY: (1, 2)
        unsafe { end.memory.addr().as_ptr().add(at).write_volatile(value) };
    }
}

/// Whether all bytes of an end's memory are this one.
#[track_caller]
fn assert_all(end: &End, value: u8, what: &str) {
    let other = (0..4096).find(|at| byte(end, *at) != value);
    assert_eq!(other, None, "{what}: that byte changed");
}

fn ops(remote: RemoteAddr) -> [(SendOp, Access); 4] {
    [
        (SendOp::Write(remote), Access::REMOTE_WRITE),
        (SendOp::Read(remote), Access::REMOTE_READ),
        (SendOp::FetchAdd { remote, add: 1 }, Access::REMOTE_ATOMIC),
        (SendOp::CompareSwap { remote, compare: 0, swap: 1 }, Access::REMOTE_ATOMIC),
    ]
}

impl Pair {
    /// With what the target's queue pair, its region and the initiator's memory allow.
    fn new(qp: Access, target: Access, local: Access) -> Self {
        Self::between(shm_pair(Progress::Inline), qp, target, local)
    }
    fn between([a, b]: [End; 2], qp: Access, target: Access, local: Access) -> Self {
        b.device.modify_qp(b.rc.handle, &QpAttr { access: Some(qp), ..QpAttr::default() }).unwrap();
        let target = register(&b, b.pd, BEGIN..END, target);
        let local = register(&a, a.pd, 0..4096, local);
        put(&a, 0..4096, OURS);
        Self { a, b, target, local }
    }
    /// That allows all, and over which everything goes directly.
    fn warm() -> Self {
        let mut pair = Self::new(REMOTE, ALL, Access::LOCAL_WRITE);
        pair.warm_up(Access::REMOTE_WRITE);
        pair
    }
    fn remote(&self, offset: i64) -> RemoteAddr {
        let addr = (self.b.memory.addr().as_ptr() as u64 + BEGIN as u64).wrapping_add_signed(offset);
        RemoteAddr { addr, rkey: self.target.rkey }
    }
    fn sge(&self, at: usize, len: u32) -> Sge {
        Sge { addr: (self.a.memory.addr().as_ptr() as usize + at) as u64, len, lkey: self.local.lkey }
    }
    fn try_post(&mut self, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<(), PostErrorKind> {
        let wr = SendWr { wr_id: 7, op, flags, payload: Payload::Sges(sges), dest: None };
        // SAFETY: (1, 2)
        let posted = unsafe { self.a.rc.send.post(&[wr]) };
        self.a.rc.send.ring();
        posted.map_err(|e| e.kind)
    }
    fn post(&mut self, op: SendOp, sge: Sge) {
        self.try_post(op, &[sge], SendFlags::SIGNALED).unwrap();
    }
    /// What the initiator finds without a turn of the target's.
    fn alone(&mut self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.a.cq.poll(&mut one) == 1).then_some(one[0])
    }
    /// How a request ends, with as many turns as it needs.
    fn ends(&mut self) -> Completion {
        for _ in 0..5_000_000 {
            if let Some(c) = self.alone() {
                return c;
            }
            self.b.device.turn();
        }
        panic!("it does not complete");
    }
    /// Repeats an operation until it is done directly, three times in a row. The target has to answer a question before,
    /// for which its adapter may take a millisecond, and beside other programs longer than many messages do.
    fn becomes_direct(&mut self, op: SendOp, sge: Sge) -> bool {
        let (begun, mut direct) = (Instant::now(), 0);
        while direct < 3 && begun.elapsed() < PATIENCE {
            self.post(op, sge);
            direct += 1;
            let c = self.alone().unwrap_or_else(|| {
                direct = 0;
                self.ends()
            });
            assert_eq!(c.status, WcStatus::Success);
        }
        direct == 3
    }
    /// Repeats an operation until it is done directly. Both sides' memory is afterwards as it was before.
    fn warm_up(&mut self, right: Access) {
        let all = ops(self.remote(0));
        let (op, _) = all.into_iter().find(|(_, needs)| *needs == right).unwrap();
        assert!(self.becomes_direct(op, self.sge(0, 8)), "{op:?} always goes as a message");
        put(&self.a, 0..4096, OURS);
        put(&self.b, 0..4096, 0);
    }
    /// Whether a request is done within a call.
    fn carries_out(&mut self, op: SendOp, payload: Payload<'_>) -> bool {
        let wr = SendWr { wr_id: 8, op, flags: SendFlags::SIGNALED, payload, dest: None };
        // SAFETY: (1, 2)
        unsafe { self.a.rc.send.carry_out(&wr) }
    }
    /// Posts what must be refused, and leave both sides' memory alone. Within a call it is not done either.
    #[track_caller]
    fn refused(&mut self, op: SendOp, sge: Sge, status: &[WcStatus], what: &str) {
        assert!(!self.carries_out(op, Payload::Sges(&[sge])), "{what}");
        self.post(op, sge);
        let found = self.ends().status;
        assert_all(&self.b, 0, what);
        assert_all(&self.a, OURS, what);
        assert!(status.contains(&found), "{what}: {found}");
    }
}

const REMOTE_FAULT: &[WcStatus] = &[WcStatus::RemoteAccess, WcStatus::RemoteInvalidRequest];

#[test]
fn what_goes_directly_needs_the_right_of_region_and_queue_pair() {
    for i in 0..4 {
        for of_region in [false, true] {
            let pair = |i: usize| {
                let right = ops(RemoteAddr { addr: 0, rkey: Rkey::new(0) })[i].1;
                let (less, all) = (REMOTE.difference(right), REMOTE);
                let (qp, region) = if of_region { (all, less) } else { (less, all) };
                (Pair::new(qp, region | Access::LOCAL_WRITE, Access::LOCAL_WRITE), less)
            };
            let (mut pair, may) = pair(i);
            let other = [Access::REMOTE_WRITE, Access::REMOTE_READ].into_iter().find(|r| may.contains(*r));
            pair.warm_up(other.expect("one is left"));
            let op = ops(pair.remote(8))[i].0;
            pair.refused(op, pair.sge(8, 8), REMOTE_FAULT, &format!("{op:?}, region {of_region}"));
        }
    }
}

#[test]
fn what_goes_directly_needs_the_key_of_that_region() {
    for i in 0..4 {
        let mut pair = Pair::warm();
        for twist in [1_u32, 0x100, 0x8000_0000] {
            let remote = pair.remote(0);
            let rkey = Rkey::new(remote.rkey.raw() ^ twist);
            let op = ops(RemoteAddr { rkey, ..remote })[i].0;
            pair.refused(op, pair.sge(0, 8), REMOTE_FAULT, "a wrong key");
            pair = Pair::warm();
        }
    }
}

#[test]
fn what_goes_directly_stays_within_the_region() {
    let size = (END - BEGIN) as i64;
    for offset in [-1, -8, -1024, size - 7, size, size + 1, i64::MAX / 2, i64::MIN] {
        for i in 0..2 {
            let mut pair = Pair::warm();
            let op = ops(pair.remote(offset))[i].0;
            pair.refused(op, pair.sge(0, 8), REMOTE_FAULT, &format!("{op:?} at {offset}"));
        }
    }
    for (offset, len) in [(-1, 1), (size, 1), (0, size as u32 + 1), (-1, size as u32 + 1)] {
        let mut pair = Pair::warm();
        let op = SendOp::Write(pair.remote(offset));
        pair.refused(op, pair.sge(0, len), REMOTE_FAULT, &format!("{len} bytes at {offset}"));
    }
    for i in 2..4 {
        for offset in [-8, size] {
            let mut pair = Pair::warm();
            let op = ops(pair.remote(offset))[i].0;
            pair.refused(op, pair.sge(0, 8), REMOTE_FAULT, &format!("{op:?} at {offset}"));
        }
    }
    // Its first and its last byte.
    let mut pair = Pair::warm();
    for offset in [0, size - 1] {
        pair.post(SendOp::Write(pair.remote(offset)), pair.sge(0, 1));
        assert_eq!(pair.alone().map(|c| c.status), Some(WcStatus::Success));
    }
    for at in 0..4096 {
        let expected = if at == BEGIN || at == END - 1 { OURS } else { 0 };
        assert_eq!(byte(&pair.b, at), expected, "byte {at}");
    }
}

#[test]
fn what_is_taken_back_is_not_reached_any_more() {
    for i in 0..4 {
        // The region, the queue pair's right, and the queue pair.
        for how in 0..3 {
            let mut pair = Pair::warm();
            let b = &pair.b;
            match how {
                0 => b.device.dereg_mr(pair.target.handle).unwrap(),
                1 => {
                    let attr = QpAttr { access: Some(Access::empty()), ..QpAttr::default() };
                    b.device.modify_qp(b.rc.handle, &attr).unwrap();
                }
                _ => {
                    let attr = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
                    b.device.modify_qp(b.rc.handle, &attr).unwrap();
                }
            }
            let op = ops(pair.remote(0))[i].0;
            let sge = pair.sge(0, 8);
            assert!(!pair.carries_out(op, Payload::Sges(&[sge])), "{op:?}");
            pair.post(op, sge);
            // A peer in error does not answer.
            let c = if how == 2 { pair.alone() } else { Some(pair.ends()) };
            assert_all(&pair.b, 0, "behind its end");
            assert_all(&pair.a, OURS, "behind its end");
            assert!(c.is_none_or(|c| c.status != WcStatus::Success), "{op:?}, {how}");
        }
    }
}

#[test]
fn a_queue_pair_that_may_not_send_reaches_nothing_directly() {
    let mut pair = Pair::warm();
    let modify = |pair: &Pair, state| {
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        pair.a.device.modify_qp(pair.a.rc.handle, &attr).unwrap();
    };
    modify(&pair, QpState::Sqd);
    pair.post(SendOp::Write(pair.remote(0)), pair.sge(0, 8));
    assert!(pair.alone().is_none(), "the queue is drained");
    assert_all(&pair.b, 0, "drained");
    modify(&pair, QpState::Rts);
    assert_eq!(pair.ends().status, WcStatus::Success);
    assert_eq!(byte(&pair.b, BEGIN), OURS);
    put(&pair.b, 0..4096, 0);
    modify(&pair, QpState::Error);
    pair.refused(SendOp::Write(pair.remote(0)), pair.sge(0, 8), &[WcStatus::WrFlushed], "in error");
}

#[test]
fn a_write_does_not_overtake_what_was_posted_before() {
    // One by one, in one go, and in one go with a list of two.
    for how in 0..3 {
        let mut pair = Pair::warm();
        for round in 0..40 {
            pair.b.recv();
            let two = [pair.sge(0, 4), pair.sge(4, 4)];
            let one = [pair.sge(0, 8)];
            let list: &[Sge] = if how == 2 { &two } else { &one };
            let wr = |op, sges| SendWr {
                wr_id: 7,
                op,
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(sges),
                dest: None,
            };
            let all = [wr(SendOp::Send, &one), wr(SendOp::Write(pair.remote(0)), list)];
            let qp = &mut pair.a.rc;
            for wrs in all.chunks(if how == 0 { 1 } else { 2 }) {
                // SAFETY: (1, 2)
                unsafe { qp.send.post(wrs) }.unwrap();
                qp.send.ring();
            }
            // Nobody has taken the SEND.
            assert_eq!(byte(&pair.b, BEGIN), 0, "{how}, {round}: the WRITE is there before the SEND");
            assert_eq!(pair.ends().status, WcStatus::Success);
            assert_eq!(pair.ends().status, WcStatus::Success);
            assert_eq!(byte(&pair.b, BEGIN), OURS);
            pair.b.next(&*pair.a.device).expect("the SEND arrives");
            put(&pair.b, 0..4096, 0);
        }
    }
}

/// While another thread turns the adapter, what is posted may have to wait for that one's turn.
#[test]
fn a_write_does_not_overtake_what_waits_for_another_threads_turn() {
    let mut pair = Pair::warm();
    let done = AtomicBool::new(false);
    let device = pair.a.device.clone();
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                device.turn();
            }
        });
        let raise = Raise(&done);
        // Where others want the processors, each round takes turns of theirs.
        let begun = Instant::now();
        for round in (0..20_000).take_while(|_| begun.elapsed() < Duration::from_secs(3)) {
            let b = &mut pair.b;
            let sges = [Sge { addr: b.memory.addr().as_ptr() as u64, len: 64, lkey: b.keys.lkey }];
            // SAFETY: (1, 2)
            unsafe { b.rc.recv.post(&[RecvWr { wr_id: 0, sges: &sges }]) }.unwrap();
            b.rc.recv.ring();
            let sge = pair.sge(0, 8);
            pair.post(SendOp::Send, sge);
            pair.post(SendOp::Write(pair.remote(0)), sge);
            assert_eq!(byte(&pair.b, BEGIN), 0, "{round}: the WRITE is there before the SEND");
            for _ in 0..2 {
                assert_eq!(pair.ends().status, WcStatus::Success);
            }
            assert_eq!(byte(&pair.b, BEGIN), OURS);
            pair.b.next(&*pair.a.device).expect("the SEND arrives");
            put(&pair.b, BEGIN..END, 0);
        }
        drop(raise);
    });
}

/// Ends the other thread, in a panic too.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_initiators_own_memory_has_to_allow_it() {
    let protection = &[WcStatus::LocalProtection];
    for i in 0..4 {
        let fetches = i > 0;
        if fetches {
            let mut pair = Pair::new(REMOTE, ALL, Access::empty());
            pair.warm_up(Access::REMOTE_WRITE);
            let op = ops(pair.remote(0))[i].0;
            // What an atomic operation did can't be seen from its effect: the local side is judged first.
            pair.refused(
                op,
                pair.sge(0, 8),
                protection,
                &format!("{op:?} to memory that is not to be written"),
            );
        }
        for what in ["another domain", "the end", "the begin", "no such key"] {
            let mut pair = Pair::warm();
            let a = &pair.a;
            let (pd, range) = match what {
                "another domain" => (a.device.alloc_pd().unwrap(), 0..4096),
                "the end" => (a.pd, 0..15),
                _ => (a.pd, 9..4096),
            };
            let key = register(a, pd, range, Access::LOCAL_WRITE).lkey;
            let lkey = if what == "no such key" { Lkey::new(key.raw() ^ 0x100) } else { key };
            let op = ops(pair.remote(0))[i].0;
            pair.refused(op, Sge { lkey, ..pair.sge(8, 8) }, protection, &format!("{op:?}: {what}"));
        }
    }
}

#[test]
fn an_atomic_operation_of_another_length_is_refused_by_the_post() {
    let mut pair = Pair::warm();
    for len in [0, 4, 7, 9, 16] {
        for i in 2..4 {
            let (op, sge) = (ops(pair.remote(0))[i].0, pair.sge(0, len));
            let refused = pair.try_post(op, &[sge], SendFlags::SIGNALED);
            assert_eq!(refused, Err(PostErrorKind::AtomicLength { len }));
            assert_all(&pair.b, 0, "refused");
            assert_all(&pair.a, OURS, "refused");
        }
    }
    assert!(pair.alone().is_none());
    // The queue pair is none the worse.
    pair.warm_up(Access::REMOTE_ATOMIC);
}

#[test]
fn a_compare_and_swap_compares_with_the_one_and_swaps_in_the_other() {
    let mut pair = Pair::warm();
    let swap = 0x0102_0304_0506_0708;
    for (compare, old, new) in [(WORD, 0, 0), (0, 0, swap), (0, swap, swap)] {
        pair.post(SendOp::CompareSwap { remote: pair.remote(0), compare, swap }, pair.sge(0, 8));
        let c = pair.alone().expect("it is done directly");
        assert_eq!((c.status, c.byte_len), (WcStatus::Success, 8));
        let word = |end: &End, at| u64::from_ne_bytes(core::array::from_fn(|i| byte(end, at + i)));
        assert_eq!((word(&pair.a, 0), word(&pair.b, BEGIN)), (old, new));
    }
}

#[test]
fn nothing_of_a_request_without_bytes_is_seen() {
    let mut pair = Pair::warm();
    for i in 0..2 {
        // Where the region ends, far from it, and by a key that there is not.
        for (offset, rkey) in [(0, 0), (8 << 20, 0), (0, 0x100)] {
            let remote = pair.remote(offset);
            let remote = RemoteAddr { rkey: Rkey::new(remote.rkey.raw() ^ rkey), ..remote };
            pair.post(ops(remote)[i].0, pair.sge(0, 0));
            let c = pair.ends();
            assert_eq!((c.status, c.byte_len), (WcStatus::Success, 0));
            assert_all(&pair.b, 0, "no bytes");
            assert_all(&pair.a, OURS, "no bytes");
        }
    }
}

#[test]
fn the_longest_that_goes_directly_and_one_byte_more_arrive_whole() {
    const LONGEST: usize = hca_fabric::MAX_BRACKET_BYTES;
    let mut pair = Pair::warm();
    let size = LONGEST + 1;
    let mut keys = [&pair.a, &pair.b].map(|end| {
        let memory = end.device.alloc_memory(size + 7).unwrap();
        let init = MrInit { addr: memory.addr(), len: size + 7, iova: 0, access: ALL };
        // SAFETY: (1)
        let keys = unsafe { end.device.reg_mr(end.pd, &init) }.unwrap();
        (memory, keys)
    });
    let [(from, local), (to, target)] = &mut keys;
    let at = |memory: &hca_core::DmaMemory, i: usize| {
        assert!(i < memory.len());
        // SAFETY: (1)
        unsafe { memory.addr().as_ptr().add(i) }
    };
    let fill = |memory: &hca_core::DmaMemory, salt: usize| {
        for i in 0..memory.len() {
            // SAFETY: (1, 2)
            unsafe { at(memory, i).write_volatile(((i * 7 + salt) % 251) as u8) };
        }
    };
    let sge = |addr: u64, len: usize, lkey| Sge { addr, len: len as u32, lkey };
    let remote = |addr| RemoteAddr { addr, rkey: target.rkey };
    let asks = (SendOp::Write(remote(0)), sge(0, 8, local.lkey));
    assert!(pair.becomes_direct(asks.0, asks.1), "the region is not granted");
    for (len, is_read) in [LONGEST, size].into_iter().flat_map(|len| [(len, false), (len, true)]) {
        fill(from, 1);
        fill(to, 2);
        let (op, was, salt) = if is_read {
            (SendOp::Read(remote(3)), (&*from, 1), 2)
        } else {
            (SendOp::Write(remote(3)), (&*to, 2), 1)
        };
        pair.post(op, sge(3, len, local.lkey));
        let alone = pair.alone();
        assert!(alone.is_some() || len > LONGEST, "{op:?} of {len} bytes goes as messages");
        let c = alone.unwrap_or_else(|| pair.ends());
        assert_eq!((c.status, c.byte_len), (WcStatus::Success, if is_read { len as u32 } else { 0 }));
        let (memory, before) = was;
        for i in 0..size + 7 {
            let salt = if (3..3 + len).contains(&i) { salt } else { before };
            // SAFETY: (1, 2)
            let found = unsafe { at(memory, i).read_volatile() };
            assert_eq!(found, ((i * 7 + salt) % 251) as u8, "{op:?} of {len}: byte {i}");
        }
    }
    // The memory goes when the adapters have.
    drop(pair);
}

#[test]
fn what_was_asked_of_a_peer_that_was_not_ready_goes_directly_once_it_is() {
    // They have met, and connect anew; the region is another one.
    let mut pair = Pair::warm();
    for end in [&pair.a, &pair.b] {
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        end.device.modify_qp(end.rc.handle, &reset).unwrap();
    }
    pair.target = register(&pair.b, pair.b.pd, BEGIN..END, ALL);
    let connect = |end: &End, peer: &End| {
        let dgid = hca_core::Gid::from_ip(peer.device.fabric().local);
        ends::connect(&end.device, end.rc.handle, (dgid, peer.rc.qpn), true);
    };
    connect(&pair.a, &pair.b);
    pair.post(SendOp::Write(pair.remote(0)), pair.sge(0, 8));
    for _ in 0..2000 {
        pair.a.device.turn();
        pair.b.device.turn();
    }
    connect(&pair.b, &pair.a);
    assert_eq!(pair.ends().status, WcStatus::Success);
    assert!(
        pair.becomes_direct(SendOp::Write(pair.remote(0)), pair.sge(0, 8)),
        "it was refused once, and goes as a message for ever"
    );
}

#[test]
fn the_end_of_a_neighbours_process_is_told_to_who_waits_for_it() {
    let mut pair = Pair::warm();
    // With no timeout a request waits for as long as its peer lives.
    for (end, peer) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        end.device.modify_qp(end.rc.handle, &reset).unwrap();
        let dgid = hca_core::Gid::from_ip(peer.device.fabric().local);
        let forever = Some(AckTimeout::new(0));
        ends::connect_with(&end.device, end.rc.handle, (dgid, peer.rc.qpn), forever);
    }
    // There is no receive request, now or later.
    for _ in 0..2 {
        pair.post(SendOp::Send, pair.sge(0, 8));
    }
    for _ in 0..1000 {
        assert_eq!(pair.alone(), None);
        pair.b.device.turn();
    }
    let Pair { mut a, b, .. } = pair;
    drop(b);
    let mut ended = [Completion::default(); 2];
    let mut found = 0;
    let begun = Instant::now();
    while found < 2 {
        found += a.cq.poll(&mut ended[found..]);
        assert!(begun.elapsed() < Duration::from_secs(60), "{found} of two requests have ended");
    }
    assert_eq!(ended.map(|c| c.status), [WcStatus::RetryExceeded, WcStatus::WrFlushed]);
}

/// A queue pair that may not reach a region does not keep others from it that may.
#[test]
fn a_refusal_to_one_queue_pair_is_none_to_another() {
    let mut pair = Pair::warm();
    let remote = pair.remote(0);
    // Of another protection domain, at the target.
    let (pa, pb) = (pair.a.pd, pair.b.device.alloc_pd().unwrap());
    let [mut qa, qb] = [(&pair.a, pa), (&pair.b, pb)].map(|(end, pd)| {
        let (send_cq, recv_cq, cap) = (end.cq_handle, end.cq_handle, hca_core::QpCap::default());
        let init = hca_core::QpInit { qp_type: hca_core::QpType::Rc, send_cq, recv_cq, srq: None, cap };
        end.device.create_qp(pd, &init).unwrap()
    });
    for (end, own, peer, to) in [(&pair.a, &qa, &pair.b, &qb), (&pair.b, &qb, &pair.a, &qa)] {
        let dgid = hca_core::Gid::from_ip(peer.device.fabric().local);
        ends::connect(&end.device, own.handle, (dgid, to.qpn), true);
    }
    let sges = [pair.sge(0, 8)];
    let (op, flags) = (SendOp::Write(remote), SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 9, op, flags, payload: Payload::Sges(&sges), dest: None };
    // SAFETY: (1, 2)
    unsafe { qa.send.post_now(&wr) }.unwrap();
    assert_eq!(pair.ends().status, WcStatus::RemoteAccess);
    // The refusal has come by now, or comes meanwhile.
    for _ in 0..2000 {
        pair.a.device.turn();
        pair.b.device.turn();
    }
    // One whose last region is another looks the key up again.
    let other = register(&pair.b, pair.b.pd, 0..64, ALL);
    let first = core::mem::replace(&mut pair.target, other);
    let addr = pair.b.memory.addr().as_ptr() as u64;
    let to_other = SendOp::Write(RemoteAddr { addr, rkey: other.rkey });
    assert!(pair.becomes_direct(to_other, pair.sge(0, 8)), "the other region is not reached");
    pair.target = first;
    pair.post(SendOp::Write(remote), pair.sge(0, 8));
    assert!(pair.alone().is_some(), "the region was granted to this queue pair");
}

#[test]
fn an_aligned_request_of_8_bytes_from_two_pieces_is_seen_whole() {
    for is_read in [false, true] {
        let mut pair = Pair::new(REMOTE, ALL, Access::LOCAL_WRITE);
        pair.warm_up(Access::REMOTE_WRITE);
        let (target, done) = (pair.b.memory.addr().as_ptr() as usize + BEGIN, AtomicBool::new(false));
        let word = |at: usize| {
            // SAFETY: (1, 2)
            unsafe { core::ptr::with_exposed_provenance::<u64>(at).read_volatile() }
        };
        let set = |at: usize, value: u64| {
            // SAFETY: (1, 2)
            unsafe { core::ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(value) };
        };
        let _ = pair.b.memory.addr().as_ptr().expose_provenance();
        let here = pair.a.memory.addr().as_ptr().expose_provenance();
        let is_whole = |word: u64| word == 0 || word == u64::MAX;
        set(target, 0);
        set(here, 0);
        let torn = std::thread::scope(|s| {
            let other = s.spawn(|| {
                let (mut torn, mut value) = (0, 0_u64);
                while !done.load(Ordering::Relaxed) {
                    if is_read {
                        value = !value;
                        set(target, value);
                    } else {
                        torn += u32::from(!is_whole(word(target)));
                    }
                }
                torn
            });
            let raise = Raise(&done);
            let (mut torn, begun) = (0, Instant::now());
            for _ in (0..200_000).take_while(|_| begun.elapsed() < Duration::from_secs(3)) {
                let sges = [pair.sge(0, 4), pair.sge(4, 4)];
                let op = ops(pair.remote(0))[usize::from(is_read)].0;
                if !is_read {
                    set(here, !word(here));
                }
                pair.try_post(op, &sges, SendFlags::SIGNALED).unwrap();
                assert_eq!(pair.ends().status, WcStatus::Success);
                torn += u32::from(!is_whole(word(here)));
            }
            drop(raise);
            torn + other.join().unwrap()
        });
        assert_eq!(torn, 0, "looks that saw half, of a READ: {is_read}");
    }
}
