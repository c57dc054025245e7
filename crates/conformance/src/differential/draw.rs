//! The generator of random scripts. Scripts avoid the following cases, whose outcome the IBA leaves open:
//!
//! - memory that two requests access at once, one of them writing, unless the order of one queue pair (with a fence if
//!   needed) rules them; so each request gets places of its own until all is quiet;
//! - sends of the far side while a request of the near side is to fail: the number of sends that still arrive is open;
//! - a late receive request while the retries of the sender are limited;
//! - a local key that goes while its request is under way: the bytes may have been read before;
//! - a change of state, or the end of a queue pair, beside requests that are under way and do not wait for anything;
//! - two queue pairs that take from one shared receive queue at once;
//! - the content of a receive buffer that ended in error, of a target whose WRITE with immediate found no receive
//!   request, and of the 40 bytes of GRH: these are written anew before a comparison;
//! - more unreliable packets at once than a socket's buffer holds, since UDP would drop some;
//! - unreliable services on adapters with a thread: the script can't know whether a message was dropped, or is about to
//!   arrive.

use std::collections::VecDeque;

use hca_core::{Mtu, QpType, SendFlags, WcStatus};
use test_support::random::Rng;

use super::script::{
    Act, Config, Cqs, Data, Far, KeyOf, Op, Part, Piece, Region, Request, Script, Side, slot,
};
use crate::mem::pattern;

/// Requests of one queue at once.
pub(super) const DEPTH: u32 = 128;
/// Entries in a list.
pub(super) const SGES: u32 = 5;
const GRH: usize = 40;
/// ACK timeout and retries that no delay of this machine uses up.
const PATIENT: (u8, u8) = (16, 7);

/// A place that is in use until all is quiet.
#[derive(Clone, Copy)]
struct Claim {
    side: Side,
    slot: usize,
    off: usize,
    len: usize,
    write: bool,
}

/// A receive request that is posted, or about to be.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) room: usize,
    pub(super) parts: Vec<Part>,
}

/// Draws one script.
pub(super) struct Draw {
    pub(super) rng: Rng,
    pub(super) config: Config,
    regions: [Region; slot::COUNT],
    pub(super) acts: Vec<Act>,
    claims: Vec<Claim>,
    /// What is left to be moved until all is quiet.
    pub(super) budget: usize,
    next_wr: u64,
    /// Receive requests posted and not consumed: of each pair on each side, or of the side's shared queue (at pair 0).
    pub(super) waiting: Vec<[VecDeque<Waiting>; 2]>,
    /// Regions whose keys were taken back.
    pub(super) gone: [[bool; slot::COUNT]; 2],
    /// Regions that had another key before.
    pub(super) renewed: [[bool; slot::COUNT]; 2],
}

/// The script of a seed, of reliable connections that nothing hurries only, or of all services.
pub(super) fn script(seed: u64, reliable: bool) -> Script {
    let mut rng = Rng::new(seed);
    let mut config = config(&mut rng);
    if reliable {
        config.pairs.fill(QpType::Rc);
        // A thread may be kept from its processor for longer than a short timeout.
        config.timeout = PATIENT;
    }
    let psn = [rng.next_u64(), rng.next_u64()].map(psn);
    let waiting = config.pairs.iter().map(|_| Default::default()).collect();
    let regions = config.regions();
    let mut draw = Draw {
        rng,
        config,
        regions,
        acts: Vec::new(),
        claims: Vec::new(),
        budget: 0,
        next_wr: 1,
        waiting,
        gone: Default::default(),
        renewed: Default::default(),
    };
    for _ in 0..2 + draw.rng.below(4) {
        draw.scene();
    }
    let Draw { config, acts, .. } = draw;
    let content = pattern(seed, regions.iter().map(|r| r.len).max().unwrap_or(0) + 16 * slot::COUNT);
    Script { config, psn, acts, content }
}

/// A first PSN, one in four so that it wraps soon.
pub(super) fn psn(random: u64) -> u32 {
    if random.is_multiple_of(4) {
        0xff_fff0 + (random >> 8) as u32 % 16
    } else {
        (random >> 8) as u32 & 0xff_ffff
    }
}

fn config(rng: &mut Rng) -> Config {
    let first = if rng.one_in(6) { rng.of(&[QpType::Uc, QpType::Ud]) } else { QpType::Rc };
    let mut pairs = vec![first];
    if rng.one_in(3) {
        pairs.push(rng.of(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]));
    }
    // Receive requests for datagrams have a place for the GRH, which is known by where it stands.
    let mixed = pairs.contains(&QpType::Ud) && pairs.iter().any(|&t| t != QpType::Ud);
    Config {
        pairs,
        mtu: rng.of(&[Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096, Mtu::B4096]),
        cqs: rng.of(&[Cqs::Queue, Cqs::QueuePair, Cqs::Adapter]),
        srq: if mixed { [false; 2] } else { [rng.one_in(4), rng.one_in(4)] },
        rnr_retry: rng.of(&[7, 7, 7, 0, 1, 3]),
        max_rd_atomic: rng.of(&[1, 2, 8]),
        max_inline: rng.of(&[0, 64, 256]),
        timeout: if rng.one_in(12) { (13, 1) } else { PATIENT },
        long: rng.one_in(6),
    }
}

impl Draw {
    pub(super) fn service(&self, pair: usize) -> QpType {
        self.config.pairs[pair]
    }
    pub(super) fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }
    pub(super) fn psns(&mut self) -> [u32; 2] {
        [self.rng.next_u64(), self.rng.next_u64()].map(psn)
    }
    /// Where a queue pair's receive requests come from.
    fn queue(&self, side: Side, pair: usize) -> usize {
        if self.config.srq[side] { 0 } else { pair }
    }
    pub(super) fn waiting(&mut self, side: Side, pair: usize) -> &mut VecDeque<Waiting> {
        let queue = self.queue(side, pair);
        &mut self.waiting[queue][side]
    }

    /// All is quiet: every place is free but those of receive requests that are still posted.
    pub(super) fn begin(&mut self) {
        self.claims.clear();
        self.budget = match self.config.pairs.iter().all(|&t| t == QpType::Rc) {
            true if self.config.long => 1 << 20,
            true => 100 << 10,
            false => 32 << 10,
        };
        for queue in 0..self.waiting.len() {
            for side in 0..2 {
                for part in self.waiting[queue][side].iter().flat_map(|w| w.parts.clone()) {
                    let Part { slot, off, len, .. } = part;
                    self.claims.push(Claim { side, slot, off, len, write: true });
                }
            }
        }
    }

    fn claim(&mut self, wanted: Claim) -> bool {
        let collides = |c: &Claim| {
            (c.write || wanted.write)
                && (c.side, c.slot) == (wanted.side, wanted.slot)
                && c.off < wanted.off + wanted.len
                && wanted.off < c.off + c.len
        };
        let free = !self.claims.iter().any(collides);
        if free {
            self.claims.push(wanted);
        }
        free
    }

    /// A free place of `len` bytes in one of these regions, `align`ed.
    fn place(
        &mut self,
        side: Side,
        slots: &[usize],
        len: usize,
        align: usize,
        write: bool,
    ) -> Option<(usize, usize)> {
        for _ in 0..12 {
            let slot = self.rng.of(slots);
            let room = self.regions[slot].len;
            if self.gone[side][slot] || len > room {
                continue;
            }
            // Ends are worth a visit.
            let off = match self.rng.below(8) {
                0 => 0,
                1 => room - len,
                _ => self.rng.below(room - len + 1),
            };
            let off = off / align * align;
            if self.claim(Claim { side, slot, off, len, write }) {
                return Some((slot, off));
            }
        }
        None
    }

    /// A place in a region of the peer's for one operation of a kind.
    pub(super) fn far(&mut self, peer: Side, kind: Reach, len: usize) -> Option<Far> {
        let (slots, align, write): (&[usize], _, _) = match kind {
            Reach::Write => (&[0, 0, 1, 1, slot::WRITE_ONLY, 5, 6, 7], 1, true),
            Reach::Read => (&[0, 0, 1, 1, slot::READ_ONLY, 5, 6, 7], 1, false),
            Reach::Both => (&[0, 1, 5, 6, 7], 1, true),
            Reach::Atomic => (&[0, 1, 5, 6, 7], 8, true),
        };
        let (slot, off) = self.place(peer, slots, len, align, write)?;
        Some(Far { slot, off, key: KeyOf::Good })
    }

    /// A list over `len` bytes of one's own, which are read or written.
    pub(super) fn parts(&mut self, side: Side, len: usize, write: bool) -> Option<Vec<Part>> {
        let readable: &[usize] = &[0, 0, 1, 1, slot::LOCAL, slot::READ_ONLY, slot::WRITE_ONLY];
        let writable: &[usize] = &[0, 0, 1, 1, slot::LOCAL, slot::WRITE_ONLY];
        let count = 1 + if self.rng.one_in(2) { 0 } else { self.rng.below(SGES as usize - 1) };
        let mut parts = Vec::new();
        let mut left = len;
        for i in 0..count {
            let len = if i + 1 == count { left } else { self.rng.below(left + 1) };
            let slots = if len > 2000 {
                &[slot::MAIN, slot::FOREIGN]
            } else if write {
                writable
            } else {
                readable
            };
            let (slot, off) = self.place(side, slots, len, 1, write)?;
            parts.push(Part { slot, off, len, key: KeyOf::Good });
            left -= len;
        }
        if len == 0 && self.rng.one_in(2) {
            parts.clear();
        }
        Some(parts)
    }

    /// A length worth a try, within the budget.
    pub(super) fn length(&mut self, pair: usize) -> usize {
        let mtu = self.config.mtu.bytes() as usize;
        let len = match self.rng.below(10) {
            0 => 0,
            1 => 1,
            2 => 8,
            3 | 4 => 47 + self.rng.below(19),
            5 => mtu - 1 + self.rng.below(3),
            6 => 2 * mtu - 1 + self.rng.below(3),
            7 => self.rng.below(6000),
            8 => self.rng.of(&[4096, 8192, 16 << 10]) - 1 + self.rng.below(3),
            _ if self.config.long => self.rng.of(&[64 << 10, 300 << 10]) - 1 + self.rng.below(3),
            _ => self.rng.below(200),
        };
        let len = match self.service(pair) {
            QpType::Ud => len.min(mtu),
            _ => len,
        };
        let len = if len <= self.budget { len } else { self.rng.below(65) };
        self.budget = self.budget.saturating_sub(len);
        len
    }

    fn flags(&mut self, unsignalled: bool) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, !unsignalled || self.rng.one_in(2));
        flags.set(SendFlags::FENCE, self.rng.one_in(6));
        flags.set(SendFlags::SOLICITED, self.rng.one_in(6));
        flags
    }

    pub(super) fn request(&mut self, op: Op, data: Data) -> Request {
        let flags = self.flags(true);
        Request { wr_id: self.wr_id(), op, flags, data, expect: WcStatus::Success, wrong_qkey: false }
    }

    /// Bytes to send or write.
    pub(super) fn data(&mut self, side: Side, len: usize) -> Data {
        if len <= self.config.max_inline as usize && self.rng.one_in(3) {
            return Data::Inline(pattern(self.rng.next_u64(), len));
        }
        let parts = self.parts(side, len, false).unwrap_or_default();
        if self.config.max_inline > 0 && self.rng.one_in(4) { self.mixed(parts) } else { Data::Parts(parts) }
    }

    /// The same list with inline bytes in the place of short parts, and of the begin or the end of one.
    fn mixed(&mut self, parts: Vec<Part>) -> Data {
        let max = self.config.max_inline as usize;
        let cut = self.rng.below(parts.len().max(1));
        let mut pieces = Vec::new();
        for (i, part) in parts.into_iter().enumerate() {
            let short = part.len <= max / 16 && self.rng.one_in(2);
            let len = if short { part.len } else { self.rng.below(part.len.min(max / 2) + 1) };
            let inline = Piece::Inline(pattern(self.rng.next_u64(), len));
            let rest = part.len - len;
            match self.rng.below(2) {
                _ if short => pieces.push(inline),
                _ if i != cut => pieces.push(Piece::Part(part)),
                0 => pieces.extend([inline, Piece::Part(Part { off: part.off + len, len: rest, ..part })]),
                _ => pieces.extend([Piece::Part(Part { len: rest, ..part }), inline]),
            }
        }
        Data::Mixed(pieces)
    }

    /// A request that succeeds, or several that their queue's order rules.
    pub(super) fn good(&mut self, side: Side, pair: usize) -> Vec<Request> {
        if self.service(pair) == QpType::Rc && self.rng.one_in(4) {
            return self.chain(side, pair);
        }
        let len = self.length(pair);
        let kinds = match self.service(pair) {
            QpType::Rc => 10,
            QpType::Uc => 6,
            QpType::Ud => 3,
            kind @ (QpType::XrcIni | QpType::XrcTgt | QpType::Rd | QpType::Eec) => {
                unreachable!("no script has {kind:?}")
            }
        };
        let op = match self.rng.below(kinds) {
            0 | 1 => Op::Send,
            2 => Op::SendImm(self.rng.next_u32()),
            kind @ (3..=5) => {
                // The bytes first: their number may shrink.
                let data = self.data(side, len);
                let Some(far) = self.far(1 - side, Reach::Write, data.len()) else { return Vec::new() };
                let imm = self.rng.next_u32();
                let op = if kind == 5 { Op::WriteImm(far, imm) } else { Op::Write(far) };
                return vec![self.request(op, data)];
            }
            6 | 7 => {
                let Some(parts) = self.parts(side, len, true) else { return Vec::new() };
                let data = Data::Parts(parts);
                let Some(far) = self.far(1 - side, Reach::Read, data.len()) else { return Vec::new() };
                return vec![self.request(Op::Read(far), data)];
            }
            kind => {
                let Some(far) = self.far(1 - side, Reach::Atomic, 8) else { return Vec::new() };
                let op = match kind {
                    8 => Op::FetchAdd(far, self.rng.next_u64()),
                    _ => Op::CompareSwap(far, self.rng.next_u64(), self.rng.next_u64()),
                };
                return self.answered(side, op, 8).into_iter().collect();
            }
        };
        let data = self.data(side, len);
        vec![self.request(op, data)]
    }

    /// A READ or an atomic with a place for what comes back.
    pub(super) fn answered(&mut self, side: Side, op: Op, len: usize) -> Option<Request> {
        let parts = self.parts(side, len, true)?;
        Some(self.request(op, Data::Parts(parts)))
    }

    /// Requests of one queue pair to one place, in an order that counts.
    fn chain(&mut self, side: Side, pair: usize) -> Vec<Request> {
        let mut out = Vec::new();
        if self.rng.one_in(2) {
            let Some(far) = self.far(1 - side, Reach::Atomic, 8) else { return out };
            let value = self.rng.next_u64();
            out.extend(self.inline_or_not(side, Op::Write(far), &value.to_ne_bytes()));
            let compare = if self.rng.one_in(3) { !value } else { value };
            let ops = [
                Op::CompareSwap(far, compare, self.rng.next_u64()),
                Op::FetchAdd(far, self.rng.next_u64()),
                Op::Read(far),
                Op::FetchAdd(far, 1),
            ];
            let ops = &ops[..1 + self.rng.below(4)];
            for (i, &op) in ops.iter().enumerate() {
                let mut request = self.answered(side, op, 8);
                if i == 3 {
                    // Without the fence it may come before the READ is answered.
                    request.iter_mut().for_each(|r| r.flags |= SendFlags::FENCE);
                }
                out.extend(request);
            }
            return out;
        }
        let len = self.length(pair).max(1);
        let (Some(far), Some(back)) = (self.far(1 - side, Reach::Both, len), self.parts(side, len, true))
        else {
            return out;
        };
        // The last of two WRITEs counts; a READ sees what was written before it; a fenced request sees what was read.
        for _ in 0..1 + self.rng.below(2) {
            let data = self.data(side, len);
            if data.len() == len {
                out.push(self.request(Op::Write(far), data));
            }
        }
        out.push(self.request(Op::Read(far), Data::Parts(back.clone())));
        if self.rng.one_in(2) {
            let data = self.data(side, len);
            if data.len() == len {
                let mut over = self.request(Op::Write(far), data);
                over.flags |= SendFlags::FENCE;
                out.push(over);
            }
        } else {
            let mut onward = self.request(Op::Send, Data::Parts(back));
            onward.flags |= SendFlags::FENCE;
            out.push(onward);
        }
        out
    }

    fn inline_or_not(&mut self, side: Side, op: Op, bytes: &[u8]) -> Option<Request> {
        if bytes.len() <= self.config.max_inline as usize {
            return Some(self.request(op, Data::Inline(bytes.to_vec())));
        }
        let parts = self.parts(side, bytes.len(), false)?;
        Some(self.request(op, Data::Parts(parts)))
    }

    /// Up to `n` requests that succeed, the last one signalled. A receive request that already waits may be too small
    /// for a message; that one is left out.
    pub(super) fn batch(&mut self, side: Side, pair: usize, n: usize) -> Vec<Request> {
        let mut out: Vec<Request> = Vec::new();
        let peer = 1 - side;
        let mut taken = 0;
        for _ in 0..n {
            for request in self.good(side, pair) {
                if request.op.consumes_recv() {
                    let needs = self.needs(pair, &request);
                    if self.waiting(peer, pair).get(taken).is_some_and(|w| w.room < needs) {
                        continue;
                    }
                    taken += 1;
                }
                out.push(request);
            }
        }
        if let Some(last) = out.last_mut() {
            last.flags |= SendFlags::SIGNALED;
        }
        out
    }

    /// Bytes that a message takes of its receive request.
    pub(super) fn needs(&self, pair: usize, request: &Request) -> usize {
        match request.op {
            Op::WriteImm(..) => 0,
            _ if self.service(pair) == QpType::Ud => GRH + request.data.len(),
            _ => request.data.len(),
        }
    }

    /// Posts receive requests that fit these messages, but for those that wait already. Returns how many messages
    /// found room: places may be exhausted.
    pub(super) fn recvs_for(&mut self, side: Side, pair: usize, requests: &[Request]) -> (Vec<Act>, bool) {
        let needs: Vec<usize> =
            requests.iter().filter(|r| r.op.consumes_recv()).map(|r| self.needs(pair, r)).collect();
        let mut acts = Vec::new();
        let have = self.waiting(side, pair).len();
        // One that was left over may be too small for a message that was not drawn with a look at it.
        if self.waiting(side, pair).iter().zip(&needs).any(|(w, need)| w.room < *need) {
            return (acts, false);
        }
        for &need in needs.iter().skip(have) {
            let Some(act) = self.recv(side, pair, need) else { return (acts, false) };
            acts.push(act);
        }
        (acts, true)
    }

    /// A receive request of at least `need` bytes, which waits from now on.
    pub(super) fn recv(&mut self, side: Side, pair: usize, need: usize) -> Option<Act> {
        let ud = self.service(pair) == QpType::Ud;
        let spare = if self.rng.one_in(2) { 0 } else { self.rng.below(100) };
        let parts = if ud {
            // The GRH in an entry of its own, so that it can be told from what is promised.
            let (slot, off) = self.place(side, &[slot::MAIN, slot::LOCAL], GRH, 1, true)?;
            let rest = self.parts(side, need.max(GRH) - GRH + spare, true)?;
            let head = Part { slot, off, len: GRH, key: KeyOf::Good };
            std::iter::once(head).chain(rest).take(SGES as usize).collect()
        } else {
            self.parts(side, need + spare, true)?
        };
        let room = parts.iter().map(|p: &Part| p.len).sum();
        if room < need {
            return None;
        }
        self.waiting(side, pair).push_back(Waiting { room, parts: parts.clone() });
        Some(Act::Recv { side, pair, wr_id: self.wr_id(), parts })
    }

    /// These messages have arrived. What nobody promised the content of is written anew.
    pub(super) fn consumed(&mut self, side: Side, pair: usize, requests: &[Request]) {
        let ud = self.service(pair) == QpType::Ud;
        for _ in requests.iter().filter(|r| r.op.consumes_recv()) {
            let taken = self.waiting(side, pair).pop_front();
            if let Some(part) = taken.filter(|_| ud).and_then(|w| w.parts.first().copied()) {
                self.acts.push(Act::Fill { side, part });
            }
        }
    }
}

/// What an operation does at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Write,
    Read,
    /// Both, one after the other.
    Both,
    Atomic,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_scripts_of_a_run_hold_every_step_every_operation_and_every_end() {
        let mut seen = HashSet::new();
        let word =
            |text: String| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
        for seed in 0..200 {
            let Script { config, acts, .. } = script(seed, false);
            seen.extend(config.pairs.iter().map(|t| format!("{t:?}")));
            for act in acts {
                seen.insert(word(format!("{act:?}")));
                let Act::Post { requests, .. } = act else { continue };
                for r in requests {
                    seen.insert(format!("operation {}", word(format!("{:?}", r.op))));
                    seen.insert(format!("ends as {:?}", r.expect));
                    let size = match r.data.len() {
                        0 => "empty",
                        1..=46 => "small",
                        47..=65 => "about a line",
                        66..=4096 => "a packet",
                        4097..=65_000 => "packets",
                        _ => "long",
                    };
                    seen.insert(size.to_owned());
                }
            }
        }
        let steps =
            "Recv Post Turn Await Hold Dereg Rereg Fill State Drain Allow Reset Rebuild Rise Destroy Limit";
        let operations = "Send SendImm SendInv Write WriteImm Read CompareSwap FetchAdd";
        let ends = "Success RemoteAccess RemoteInvalidRequest RemoteOperation LocalProtection WrFlushed RetryExceeded \
                    RnrRetryExceeded";
        let mut all: Vec<String> = steps.split_whitespace().map(str::to_owned).collect();
        all.extend(operations.split_whitespace().map(|o| format!("operation {o}")));
        all.extend(ends.split_whitespace().map(|e| format!("ends as {e}")));
        all.extend(
            ["Rc", "Uc", "Ud", "empty", "small", "about a line", "a packet", "packets", "long"]
                .map(Into::into),
        );
        let missing: Vec<&String> = all.iter().filter(|a| !seen.contains(*a)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
