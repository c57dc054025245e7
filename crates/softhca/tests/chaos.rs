//! Random requests between two adapters on one machine, while regions, rights and queue pairs change: all succeed, in
//! their order, and leave in memory what a model says. `SEED` is the first seed, `SEEDS` how many there are.
//!
//! Invariants:
//! 1. The memory that is registered outlives its adapter, or is leaked.
//! 2. Posted requests name that memory, and the test reads it by volatile accesses only.
#![allow(unsafe_code)] // posts and registers, as a program does

mod ends;

use core::ptr::NonNull;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ends::{End, PATIENT, Qp, connect_with, shm_pair};
use hca_core::{
    Access, Completion, Device, DmaMemory, Gid, MrInit, MrKeys, Payload, QpAttr, QpCap, QpInit, QpState,
    QpType, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use softhca::Progress;

/// Bytes of each region.
const LEN: usize = 1 << 20;
const QPS: usize = 3;
/// Each queue pair has a part of each region.
const PART: usize = LEN / QPS / 8 * 8;
const STEPS: usize = 4000;
const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32 ^ self.0 >> 11 & 0x7fff_ffff
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// The length of a request: mostly a few bytes.
    fn len(&mut self) -> usize {
        let most = [64, 64, 64, 8, 4096, 40_000, 200_000, PART][self.below(8)];
        1 + self.below(most)
    }
}

/// A region, and what it holds.
struct Area {
    at: NonNull<u8>,
    access: Access,
    keys: MrKeys,
    model: Vec<u8>,
    _memory: Option<DmaMemory>,
}

impl Area {
    /// Of the adapter's memory, or the program's own.
    fn new(end: &End, is_own: bool, access: Access, random: &mut Random) -> Self {
        let memory = (!is_own).then(|| end.device.alloc_memory(LEN).unwrap());
        let own = || NonNull::from(Box::leak(vec![0_u8; LEN].into_boxed_slice())).cast();
        let at: NonNull<u8> = memory.as_ref().map_or_else(own, |memory| memory.addr());
        let model: Vec<u8> = (0..LEN / 8).flat_map(|_| random.next().to_ne_bytes()).collect();
        // SAFETY: (1), and nobody else has it yet.
        unsafe { at.as_ptr().copy_from_nonoverlapping(model.as_ptr(), LEN) };
        Self { at, access, keys: Self::register(end, at, access), model, _memory: memory }
    }
    fn register(end: &End, at: NonNull<u8>, access: Access) -> MrKeys {
        let init = MrInit { addr: at, len: LEN, iova: at.as_ptr() as u64, access };
        // SAFETY: (1, 2)
        unsafe { end.device.reg_mr(end.pd, &init) }.unwrap()
    }
    /// Ends all that peers know of it; the keys stay.
    fn change(&mut self, end: &End) {
        self.keys = end.device.rereg_mr(self.keys.handle, end.pd, self.access).unwrap();
    }
    fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr { addr: self.at.as_ptr() as u64 + at as u64, rkey: self.keys.rkey }
    }
    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.at.as_ptr() as u64 + at as u64, len: len as u32, lkey: self.keys.lkey }
    }
    /// Where it holds something else.
    fn wrong(&self) -> Option<usize> {
        (0..LEN).step_by(8).find(|at| {
            // SAFETY: (1, 2)
            let there = unsafe { self.at.as_ptr().add(*at).cast::<[u8; 8]>().read_volatile() };
            there != self.model[*at..*at + 8]
        })
    }
}

fn queue_pair(end: &End) -> Qp {
    let (send_cq, recv_cq) = (end.cq_handle, end.cq_handle);
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, ..QpCap::default() };
    let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap };
    let ports = end.device.create_qp(end.pd, &init).unwrap();
    Qp { handle: ports.handle, qpn: ports.qpn, send: ports.send, recv: ports.recv.unwrap() }
}

/// Two adapters in this thread, which turns them when it likes.
struct Bed {
    random: Random,
    ends: [End; 2],
    pairs: Vec<[Qp; 2]>,
    /// Of the first end: what requests send from and fetch to. Of the second one: what they reach, and receive to.
    sources: Vec<Area>,
    fetched: Vec<Area>,
    targets: Vec<Area>,
    received: Vec<Area>,
    /// Requests that are not completed, by queue pair; and of receive requests how many.
    under_way: Vec<VecDeque<u64>>,
    to_receive: usize,
    /// Receive requests, by queue pair, that are posted later than what they are for.
    late: VecDeque<(usize, Sge)>,
    posted: u64,
    /// The next request of the queue pair waits for what those before it fetch.
    fence: [bool; QPS],
}

impl Bed {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let ends = shm_pair(Progress::Inline);
        let pairs = (0..QPS).map(|_| [queue_pair(&ends[0]), queue_pair(&ends[1])]).collect();
        let mut areas = |end: &End, count: usize, access| -> Vec<_> {
            (0..count).map(|n| Area::new(end, n % 2 == 1, access, &mut random)).collect()
        };
        let own = Access::LOCAL_WRITE;
        let (sources, fetched) = (areas(&ends[0], 2, own), areas(&ends[0], 2, own));
        let (targets, received) = (areas(&ends[1], 4, own | RIGHTS), areas(&ends[1], 2, own));
        let under_way = vec![VecDeque::new(); QPS];
        let (to_receive, late, posted, fence) = (0, VecDeque::new(), 0, [false; QPS]);
        let mut bed = Self {
            random,
            ends,
            pairs,
            sources,
            fetched,
            targets,
            received,
            under_way,
            to_receive,
            late,
            posted,
            fence,
        };
        (0..QPS).for_each(|pair| bed.connect(pair));
        bed
    }
    fn connect(&mut self, pair: usize) {
        for n in 0..2 {
            let to = (Gid::from_ip(self.ends[1 - n].device.fabric().local), self.pairs[pair][1 - n].qpn);
            connect_with(&self.ends[n].device, self.pairs[pair][n].handle, to, Some(PATIENT));
        }
        self.allow(pair, Access::empty());
    }
    /// Another word of the target's queue pair, which allows all that is done.
    fn allow(&mut self, pair: usize, more: Access) {
        let attr = QpAttr { access: Some(RIGHTS | more), ..QpAttr::default() };
        self.ends[1].device.modify_qp(self.pairs[pair][1].handle, &attr).unwrap();
    }

    /// Posts a request, and does in the models what it will do.
    fn post(&mut self) {
        let pair = self.random.below(QPS);
        if self.under_way[pair].len() > 30 {
            return;
        }
        let len = self.random.len().min(PART);
        let [mut there, mut here] = [(); 2].map(|()| pair * PART + self.random.below(PART - len + 1));
        let (target, n) = (self.random.below(4), self.random.below(2));
        let (source, fetched) = (&self.sources[n], &mut self.fetched[n]);
        let target = &mut self.targets[target];
        let flags =
            if self.fence[pair] { SendFlags::SIGNALED | SendFlags::FENCE } else { SendFlags::SIGNALED };
        let kind = self.random.below(8);
        self.fence[pair] = (4..7).contains(&kind);
        let (op, sges) = match kind {
            0..4 => {
                target.model[there..there + len].copy_from_slice(&source.model[here..here + len]);
                let cut = if self.random.below(3) == 0 { self.random.below(len) } else { 0 };
                let parts = [source.sge(here, cut), source.sge(here + cut, len - cut)];
                (SendOp::Write(target.remote(there)), if cut > 0 { parts.to_vec() } else { vec![parts[1]] })
            }
            4 | 5 => {
                fetched.model[here..here + len].copy_from_slice(&target.model[there..there + len]);
                (SendOp::Read(target.remote(there)), vec![fetched.sge(here, len)])
            }
            6 => {
                (there, here) =
                    (there.min(pair * PART + PART - 8) & !7, here.min(pair * PART + PART - 8) & !7);
                let (at, add) = (there..there + 8, self.random.next());
                let old = u64::from_ne_bytes(target.model[at.clone()].try_into().unwrap());
                fetched.model[here..here + 8].copy_from_slice(&old.to_ne_bytes());
                target.model[at].copy_from_slice(&old.wrapping_add(add).to_ne_bytes());
                (SendOp::FetchAdd { remote: target.remote(there), add }, vec![fetched.sge(here, 8)])
            }
            _ => {
                let to = &mut self.received[self.random.below(2)];
                to.model[there..there + len].copy_from_slice(&source.model[here..here + len]);
                self.late.push_back((pair, to.sge(there, len)));
                self.to_receive += 1;
                (SendOp::Send, vec![source.sge(here, len)])
            }
        };
        self.posted += 1;
        self.under_way[pair].push_back(self.posted);
        let wr = SendWr { wr_id: self.posted, op, flags, payload: Payload::Sges(&sges), dest: None };
        let send = &mut self.pairs[pair][0].send;
        let (at_once, rings) = (self.random.below(3) == 0, self.random.below(2) == 0);
        // SAFETY: (1, 2)
        unsafe { if at_once { send.post_now(&wr) } else { send.post_one(&wr) } }.unwrap();
        // Or with the next one, or when all is to end.
        if rings {
            send.ring();
        }
    }

    /// Posts the oldest receive request that is still to be posted.
    fn receive(&mut self) -> bool {
        let Some((pair, sge)) = self.late.pop_front() else { return false };
        let recv = &mut self.pairs[pair][1].recv;
        // SAFETY: (1, 2)
        unsafe { recv.post(&[RecvWr { wr_id: 0, sges: &[sge] }]) }.unwrap();
        recv.ring();
        true
    }

    /// Takes what completed, which is no error, and in order.
    fn poll(&mut self) {
        let mut wcs = [Completion::default(); 16];
        let count = self.ends[0].cq.poll(&mut wcs);
        for wc in &wcs[..count] {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            let pair = self.pairs.iter().position(|[own, _]| own.handle == wc.qp).expect("it is there");
            assert_eq!(self.under_way[pair].pop_front(), Some(wc.wr_id), "the order");
        }
        let count = self.ends[1].cq.poll(&mut wcs);
        for wc in &wcs[..count] {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            self.to_receive -= 1;
        }
    }
    /// Has all end, and compares memory with the models.
    fn settle(&mut self) {
        self.pairs.iter_mut().for_each(|[own, _]| own.send.ring());
        while self.receive() {}
        let begun = Instant::now();
        while self.to_receive > 0 || !self.under_way.iter().all(VecDeque::is_empty) {
            self.poll();
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?} never end", self.under_way);
        }
        self.fence = [false; QPS];
        let all = [&self.sources, &self.fetched, &self.targets, &self.received];
        for (n, area) in all.into_iter().flatten().enumerate() {
            assert_eq!(area.wrong(), None, "area {n} is not as its model");
        }
    }

    /// What changes while requests are under way.
    fn change(&mut self) {
        let (n, pair) = (self.random.below(2), self.random.below(QPS));
        match self.random.below(7) {
            // A pause as a program makes it, by which adapters park their rings; nothing waits for its length.
            0 => std::thread::sleep(Duration::from_micros(300 * self.random.below(8) as u64)),
            // Whoever asks for this is about to sleep.
            1 | 2 => _ = self.ends[n].device.next_deadline(),
            3 => {
                let more = if n == 0 { Access::FLUSH_GLOBAL } else { Access::empty() };
                self.allow(pair, more);
            }
            4 | 5 => self.targets[self.random.below(4)].change(&self.ends[1]),
            _ => match self.random.below(3) {
                0 => self.sources[n].change(&self.ends[0]),
                1 => self.fetched[n].change(&self.ends[0]),
                _ => self.received[n].change(&self.ends[1]),
            },
        }
    }
    /// What changes while none is.
    fn exchange(&mut self) {
        let pair = self.random.below(QPS);
        match self.random.below(4) {
            0 => {
                let end = &self.ends[1];
                let target = &mut self.targets[self.random.below(4)];
                end.device.dereg_mr(target.keys.handle).unwrap();
                target.keys = Area::register(end, target.at, target.access);
            }
            1 => {
                let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
                for (end, qp) in self.ends.iter().zip(&self.pairs[pair]) {
                    end.device.modify_qp(qp.handle, &reset).unwrap();
                }
                self.connect(pair);
            }
            2 => {
                let new = [queue_pair(&self.ends[0]), queue_pair(&self.ends[1])];
                let old = std::mem::replace(&mut self.pairs[pair], new);
                for (end, qp) in self.ends.iter().zip(old) {
                    end.device.destroy_qp(qp.handle).unwrap();
                }
                self.connect(pair);
            }
            _ => {}
        }
    }
    fn step(&mut self) {
        match self.random.below(40) {
            0..12 => self.post(),
            12..22 => _ = self.ends[0].device.turn(),
            22..32 => _ = self.ends[1].device.turn(),
            32..38 => self.change(),
            _ => _ = self.receive(),
        }
        self.poll();
        if self.random.below(200) == 0 {
            self.settle();
            self.exchange();
        }
    }
}

#[test]
fn whatever_changes_meanwhile_requests_succeed_and_do_what_they_say() {
    let number = |name, or| std::env::var(name).map_or(or, |n| n.parse().expect("it is a number"));
    let first = number("SEED", 33);
    for seed in first..first + number("SEEDS", 4) {
        println!("seed {seed}");
        let mut bed = Bed::new(seed);
        (0..STEPS).for_each(|_| bed.step());
        bed.settle();
    }
}
