//! What the fuzz target `message_pair` does with its input: two queue pairs connected by messages, each of which posts,
//! sends, takes and waits in the order that the input says. The corpus runs through it in `cargo test` too.
//!
//! | bytes | what they say |
//! |---|---|
//! | 0 | bit 0: messages are forged and harmed; numbers, READs outstanding, shared receive queue; bits 6 and 7: who goes the quick way |
//! | 1 | what each side reaches of the other's memory; 0: nothing |
//! | 2 | messages that a way takes; 0: any number |
//! | 3 | requests of either side, three bytes each, which follow |
//!
//! Then come turns, two bytes each: what is done and by which side, and how far. Where messages are forged, some turns
//! take more bytes. Where none is, all has to end well, whoever has which turn.

use hca_core::{QpState, Qpn, SendFlags};
use hca_transport::HEAD_BYTES;

use crate::messages::plan::{Act, Harm, Plan, finish, harmed, play, reach};
use crate::messages::{M, Msg, Ways};
use crate::pair::ops::Op;
use crate::pair::{Setup, Side, remote};

/// Turns of one input at most.
const MAX_TURNS: usize = 256;
/// Data bytes of a forged message at most; a longer one is refused for its length.
const MAX_DATA: usize = 4100;

/// Runs one input. Panics on whatever must not happen.
pub(crate) fn message_pair(data: &[u8]) {
    let mut input = Input(data);
    let Some([flags, seed, room, counts]) = input.take() else { return };
    let hostile = flags & 1 != 0;
    let setup = setup(flags, hostile);
    let mut p = Ways::reset(&setup);
    p.room = if room == 0 { usize::MAX } else { 1 + usize::from(room % 6) };
    p.quick = u32::from(flags >> 6);
    reach(&mut p, u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut plans = [(Side::A, 1 + counts % 8), (Side::B, counts / 16)]
        .map(|(side, count)| Plan::new(side, (0..count).map_while(|_| input.take().map(op)).collect()));
    for _ in 0..MAX_TURNS {
        let Some([kind, far]) = input.take() else { break };
        let side = if kind & 16 == 0 { Side::A } else { Side::B };
        match kind & 15 {
            12 | 13 if hostile => forge(&mut p, side, far, &mut input),
            14 if hostile => harm(&mut p, side, far, &mut input),
            15 if hostile => upset(&mut p, &plans[side as usize], far),
            kind => play(&mut p, &mut plans, &setup, act(kind, side, far)),
        }
    }
    finish(&mut p, &mut plans, &setup);
    // Each request has ended once, whatever came; or well.
    plans.iter().for_each(|plan| if hostile { plan.check_ended(&mut p) } else { plan.check(&mut p) });
}

struct Input<'a>(&'a [u8]);
impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

fn setup(flags: u8, hostile: bool) -> Setup {
    let rd_atomic = 1 + (flags >> 3 & 3);
    let setup = Setup {
        // The numbers of one side, or of both, begin anew on the way.
        psn_a: if flags & 2 == 0 { 0xfffd } else { 5 },
        psn_b: if flags & 4 == 0 { 0xff_fffe } else { 0x7ffe },
        rd_atomic,
        dest_rd_atomic: rd_atomic,
        srq_b: flags & 32 != 0,
        ..Setup::default()
    };
    if hostile {
        Setup { timeout: 10, retry_cnt: 1, rnr_retry: 3, ..setup }
    } else {
        // For ever: however long the input lets a side be silent.
        Setup { timeout: 0, ..setup }
    }
}

/// A request: operation and flags, and how long it is.
fn op([kind, low, high]: [u8; 3]) -> (Op, SendFlags) {
    let len = u32::from(u16::from_le_bytes([low, high])) % 13_000;
    let op = match kind & 7 {
        0 | 1 => Op::Send(len),
        2 | 3 => Op::Write(len),
        4 => Op::WriteImm(len),
        5 | 6 => Op::Read(len),
        _ => Op::Add,
    };
    let mut flags = SendFlags::SIGNALED;
    flags.set(SendFlags::SIGNALED, kind & 8 == 0);
    flags.set(SendFlags::FENCE, kind & 16 != 0);
    (op, flags)
}

fn act(kind: u8, side: Side, far: u8) -> Act {
    let some = 1 + usize::from(far % 8);
    match kind {
        0 => Act::Ready(side),
        1 | 2 => Act::Post(side),
        3 => Act::PostAtOnce(side, some),
        4 | 5 => Act::Recv(side),
        6 | 7 => Act::Send(side, some),
        8 => Act::Ack(side),
        9 | 10 => Act::Take(side, some),
        11 => Act::Pass(1 << (far % 30)),
        _ => Act::Drain(side),
    }
}

/// The number of the last request of a side that left, or the first one.
fn last_number(p: &Ways, side: Side) -> u16 {
    let asked = |(from, m): &&(Side, Msg)| *from == side && (m.kind as u8) < M::Hello as u8;
    p.log.iter().rev().find(asked).map_or(0, |(_, m)| m.number)
}

/// Gives a side a message that nobody sent: its kind, how far its numbers are off, and what it carries.
fn forge(p: &mut Ways, to: Side, kind: u8, input: &mut Input<'_>) {
    let Some([off, extra, carries, low, high]) = input.take() else { return };
    let [off, done_off] = [off & 15, off >> 4].map(|n| u16::from(n).wrapping_sub(8));
    let len = u32::from(u16::from_le_bytes([low, high]));
    let mut msg = Msg::new(M::Send, to, last_number(p, to.other()).wrapping_add(off))
        .done(last_number(p, to).wrapping_add(done_off))
        .extra(if extra == 255 { u32::MAX } else { extra.into() });
    if carries & 1 != 0 {
        let addr = if carries & 2 == 0 { 64 } else { usize::MAX - 7 };
        msg = msg.remote(remote(addr), if carries & 4 == 0 { len } else { 8 });
    }
    if carries & 8 != 0 {
        msg = msg.data(len as usize % MAX_DATA);
    }
    if carries & 16 != 0 {
        msg = msg.data(8);
    }
    if carries & 32 != 0 {
        msg.to = Qpn::new(0x33);
    }
    let mut bytes = msg.bytes();
    bytes[0] = kind;
    p.hand(to, &bytes);
}

/// Harms the next message that is on its way to a side.
fn harm(p: &mut Ways, to: Side, which: u8, input: &mut Input<'_>) {
    let way = to.other() as usize;
    let (Some([at]), Some(message)) = (input.take(), p.way[way].pop_front()) else { return };
    let at = usize::from(at);
    let harm = match which % 6 {
        0 => Harm::Flip(at, 1 << (which >> 5)),
        1 => Harm::Cut(at),
        2 => Harm::Twice,
        3 => Harm::Kind(at as u8),
        4 => Harm::Nudge(4 + at % (HEAD_BYTES - 4), (which >> 4) as i8 - 8),
        _ => {
            p.way[way].push_back(message);
            return;
        }
    };
    for message in harmed(message, &harm).into_iter().rev() {
        p.way[way].push_front(message);
    }
}

/// What befalls a side from outside.
fn upset(p: &mut Ways, plan: &Plan, which: u8) {
    let side = plan.side;
    match which % 4 {
        0 if plan.steps_to_ready < 2 => p.state(side, QpState::Error),
        1 => p.with(side, |_, qp, host| qp.peer_gone(host)),
        2 => p.with(side, |now, qp, host| qp.unreachable(now, host)),
        _ => p.node(side).host.revoked = !p.node(side).host.revoked,
    }
}
