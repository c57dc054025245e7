//! Two connected queue pairs, by packets or by messages: the harness of rules that hold for both.
//!
//! A test of such a rule is a function of [`By`], and [`both!`] makes two tests of it. Posts, hosts and expectations
//! are those of `Pair`; here is what differs: the way between the two queue pairs.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test takes some of it, and it is no interface

use std::ops::{Deref, DerefMut};

use crate::messages::{FIRST, M, Msg, PIECE, Ways};
use crate::pair::*;

/// Makes two tests of each function: over packets and over messages. One that is missing here is never used, which the
/// compiler tells.
#[allow(unused_macros)] // not all tests take functions
macro_rules! both {
    ($($rule:ident),+ $(,)?) => {
        $(mod $rule {
            #[test]
            fn by_packets() {
                super::$rule(crate::link::By::Packets);
            }
            #[test]
            fn by_messages() {
                super::$rule(crate::link::By::Messages);
            }
        })+
    };
}
#[allow(unused_imports)] // as above
pub(crate) use both;

/// The way of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Packets,
    Messages,
}

impl By {
    /// Both sides in RTS.
    pub fn rc(self) -> Link {
        self.connected(&Setup::default())
    }
    pub fn connected(self, setup: &Setup) -> Link {
        match self {
            Self::Packets => Link::Packets(Pair::new(setup)),
            Self::Messages => Link::Messages(Ways::new(setup)),
        }
    }
    /// Both sides in RESET.
    pub fn reset(self, setup: &Setup) -> Link {
        match self {
            Self::Packets => Link::Packets(Pair::reset(setup)),
            Self::Messages => Link::Messages(Ways::reset(setup)),
        }
    }
    /// A in RTS, and B where it drops all that comes.
    pub fn one_sided(self, setup: &Setup) -> Link {
        let mut link = self.reset(setup);
        link.ready_to_receive(A, setup);
        link.ready_to_send(A, setup);
        link
    }
    /// Data bytes of one packet or message.
    pub fn unit(self) -> usize {
        if self == Self::Packets { 256 } else { PIECE }
    }
    /// The answer of B to A's nth request (from 0), each of one packet or message.
    pub fn answer(self, n: i32, syndrome: Syndrome) -> Vec<u8> {
        match self {
            Self::Packets => {
                let psn = Setup::default().psn_a.wrapping_add_signed(n) & 0xff_ffff;
                Raw::rc(P::Acknowledge, A, psn).aeth(syndrome).bytes()
            }
            Self::Messages => {
                let number = (Setup::default().psn_a as u16).wrapping_add_signed(n as i16);
                let msg = |kind| Msg::new(kind, A, number).flags(0).done(number);
                match syndrome {
                    // All requests before `done` are.
                    Syndrome::Ack(_) => msg(M::Ack).done(number.wrapping_add(1)).bytes(),
                    _ => msg(M::Nak).extra(syndrome.encode().into()).bytes(),
                }
            }
        }
    }
}

/// Two queue pairs, connected in one of both ways.
pub enum Link {
    Packets(Pair),
    Messages(Ways),
}

/// The same of both.
macro_rules! each {
    ($link:expr, $way:ident => $do:expr) => {
        match $link {
            Link::Packets($way) => $do,
            Link::Messages($way) => $do,
        }
    };
}

impl Deref for Link {
    type Target = Pair;
    fn deref(&self) -> &Pair {
        each!(self, way => way)
    }
}
impl DerefMut for Link {
    fn deref_mut(&mut self) -> &mut Pair {
        each!(self, way => way)
    }
}

impl Link {
    /// Goes on until all is quiet, timers included.
    pub fn run(&mut self) {
        each!(self, way => way.run());
    }
    /// Goes on until all is quiet; A's requests, all that it ever posted, ended like this.
    #[track_caller]
    pub fn ends(&mut self, statuses: &[WcStatus]) {
        self.run();
        self.expect_sends(statuses);
    }
    /// One turn. `false`: all is quiet.
    pub fn turn(&mut self) -> bool {
        each!(self, way => way.turn())
    }
    /// Goes on, without letting a timer fire, until nothing moves.
    pub fn settle(&mut self) {
        each!(self, way => way.settle());
    }
    /// Lets the next timer fire. `false`: there is none.
    pub fn skip(&mut self) -> bool {
        each!(self, way => way.skip())
    }
    /// Lets a side send all that it may, an acknowledgement included.
    pub fn transmit_side(&mut self, side: Side) -> bool {
        match self {
            Self::Packets(pair) => pair.transmit_side(side),
            Self::Messages(ways) => ways.send_side(side) + ways.ack_side(side) > 0,
        }
    }
    /// Lets a side send so many packets or messages at most; the Hello is none of them.
    pub fn transmit_some(&mut self, side: Side, mut max: usize) {
        match self {
            Self::Packets(pair) => {
                let room = core::mem::replace(&mut pair.sink_room, max);
                pair.transmit_side(side);
                pair.sink_room = room;
            }
            Self::Messages(ways) => {
                let burst = core::mem::replace(&mut ways.burst, 1);
                while max > 0 && ways.send_side(side) > 0 {
                    max -= usize::from(ways.log.last().is_some_and(|(_, m)| m.kind != M::Hello));
                }
                ways.burst = burst;
            }
        }
    }
    /// Packets or messages that the way takes in one go.
    pub fn set_room(&mut self, room: usize) {
        match self {
            Self::Packets(pair) => pair.sink_room = room,
            Self::Messages(ways) => ways.room = room,
        }
    }
    /// Lets a side take all that is on its way to it.
    pub fn take_all(&mut self, side: Side) {
        each!(self, way => way.take_all(side));
    }
    /// Lets a side send all that it may, and the other side take all that is on its way to it.
    pub fn flow(&mut self, side: Side) {
        self.transmit_side(side);
        self.take_all(side.other());
    }
    /// Loses all that is on its way.
    pub fn lose(&mut self) {
        each!(self, way => way.lose());
    }
    /// Gives a side what came, or was made by hand.
    pub fn deliver(&mut self, to: Side, bytes: &[u8]) {
        match self {
            Self::Packets(pair) => pair.deliver(to, bytes),
            Self::Messages(ways) => ways.hand(to, bytes),
        }
    }
    /// All packets or messages that a side sent, but Hellos.
    pub fn sent(&self, side: Side) -> Vec<Vec<u8>> {
        match self {
            Self::Packets(pair) => pair.sent(side).map(|s| s.bytes.clone()).collect(),
            Self::Messages(ways) => {
                ways.sent(side).into_iter().filter(|m| m.kind != M::Hello).map(Msg::bytes).collect()
            }
        }
    }
    /// The requests that a side began to send, in order; one that it began again is there again.
    pub fn begun(&self, side: Side) -> Vec<WcOpcode> {
        match self {
            Self::Packets(pair) => pair.ops(side).into_iter().filter_map(of_first_packet).collect(),
            Self::Messages(ways) => {
                let first = ways.sent(side).into_iter().filter(|m| m.has(FIRST));
                first.filter_map(|m| of_message(m.kind)).collect()
            }
        }
    }
    /// The refusals of a side, in order, but those for want of a receive request.
    pub fn naks(&self, side: Side) -> Vec<NakCode> {
        each!(self, way => way.naks(side))
    }
    /// The refusals of B for want of a receive request.
    pub fn rnr_naks(&self) -> u64 {
        self.b.host.counted(Count::RnrNakSent)
    }
    /// The ways' own, where they are by messages.
    pub fn messages(&self) -> Option<&Ways> {
        if let Self::Messages(ways) = self { Some(ways) } else { None }
    }
}

/// The operation that a packet begins.
fn of_first_packet(op: P) -> Option<WcOpcode> {
    Some(match op {
        P::SendFirst | P::SendOnly | P::SendOnlyImm | P::SendOnlyInv => WcOpcode::Send,
        P::WriteFirst | P::WriteOnly | P::WriteOnlyImm => WcOpcode::RdmaWrite,
        P::ReadRequest => WcOpcode::RdmaRead,
        P::CompareSwap => WcOpcode::CompSwap,
        P::FetchAdd => WcOpcode::FetchAdd,
        P::AtomicWrite => WcOpcode::AtomicWrite,
        P::Flush => WcOpcode::Flush,
        _ => return None,
    })
}
fn of_message(kind: M) -> Option<WcOpcode> {
    Some(match kind {
        M::Send | M::SendImm | M::SendInv => WcOpcode::Send,
        M::Write | M::WriteImm => WcOpcode::RdmaWrite,
        M::Read => WcOpcode::RdmaRead,
        M::CompareSwap => WcOpcode::CompSwap,
        M::FetchAdd => WcOpcode::FetchAdd,
        M::AtomicWrite => WcOpcode::AtomicWrite,
        M::Flush => WcOpcode::Flush,
        _ => return None,
    })
}

/// Lets the same posts run over packets and over messages: all that both programs are told is the same. Returns the
/// messages' ends.
pub fn alike(setup: &Setup, what: &str, posts: impl Fn(&mut Pair)) -> Link {
    let [packets, messages] = [By::Packets, By::Messages].map(|by| {
        let mut p = by.connected(setup);
        p.fill(A, 0, 20_000);
        p.fill(B, 400_000, 20_000);
        posts(&mut p);
        p.run();
        p
    });
    for (side, p, m) in [(A, &packets.a, &messages.a), (B, &packets.b, &messages.b)] {
        assert_eq!(p.host.done, m.host.done, "{what}: {side:?}");
        assert_eq!(p.qp.state(), m.qp.state(), "{what}: {side:?}");
        assert_eq!((p.host.atomics, &p.host.invalidated), (m.host.atomics, &m.host.invalidated), "{what}");
        // Behind how many WRITEs: that many packets or messages.
        let flushes = |host: &MockHost| host.flushes.iter().map(|f| (f.0, f.1)).collect::<Vec<_>>();
        assert_eq!(flushes(&p.host), flushes(&m.host), "{what}");
        assert!(p.host.mem == m.host.mem, "{what}: memory of {side:?}");
        for c in [Count::NakAccess, Count::NakInvalid, Count::NakOperational, Count::NakReceived] {
            assert_eq!(p.host.counted(c), m.host.counted(c), "{what}: {side:?} {c:?}");
        }
        assert!(p.host.held.is_none() && m.host.held.is_none());
    }
    messages
}
