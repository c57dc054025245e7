//! The fast path between two queue pairs by messages, as a host's engine uses it; other messages take the general path.

use super::{Msg, Ways};
use crate::pair::*;

/// The data bytes of a message of one line at most.
const LINE_DATA_BYTES: u32 = 48;

/// The messages of one side that took the fast path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quick {
    /// The number of SENDs that the side sent.
    pub sent: usize,
    /// The number of SENDs that the side took.
    pub took: usize,
    /// The side's own requests that those SENDs acknowledged: SENDs and WRITEs.
    pub sends_done: usize,
    pub writes_done: usize,
}

/// A lane stays what it was: only somebody else takes it away.
#[track_caller]
fn kept(before: Lanes, qp: &Qp) {
    let now = qp.lanes();
    assert!(now.sends >= before.sends && now.takes >= before.takes, "{before:?} became {now:?}");
}

impl Ways {
    /// Whether the next message that may goes the quick way.
    pub(super) fn is_quick(&mut self) -> bool {
        self.turns += 1;
        match self.quick {
            0 => false,
            1 => true,
            n => !self.turns.is_multiple_of(n),
        }
    }

    /// Lets a side send its next requests, as far as they are plain SENDs with nothing to be sent before them. `true`:
    /// no request is left.
    pub fn send_quick(&mut self, side: Side) -> bool {
        self.send_quick_at_most(side, usize::MAX).1
    }
    /// The same, with at most `max` requests. Returns how many were sent, and whether none is left.
    pub fn send_quick_at_most(&mut self, side: Side, max: usize) -> (usize, bool) {
        let room = self.room.saturating_sub(self.way[side as usize].len()).min(max);
        let now = self.instant();
        let Node { qp, host } = self.node(side);
        let lanes = qp.lanes();
        if !lanes.sends {
            return (0, false);
        }
        let (posted, mut out) = (host.sq_posted(), Vec::new());
        loop {
            let mut lane = qp.lane().expect("it sends");
            let index = lane.next();
            if index == posted || out.len() == room || !lane.has_credit() {
                break;
            }
            let Posted { request, addr, bad } = host.sq[index.wrapping_sub(SQ_BASE) as usize];
            let plain = request.op.is_plain_send()
                && !request.flags.intersects(SendFlags::FENCE | SendFlags::SOLICITED)
                && request.len <= LINE_DATA_BYTES;
            if !plain || bad {
                break;
            }
            let mut bytes: Vec<u8> = lane.head().into_iter().flat_map(u32::to_ne_bytes).collect();
            bytes.extend(&host.mem[addr..addr + request.len as usize]);
            out.push(bytes);
            lane.sent(now);
            kept(lanes, qp);
        }
        let mut lane = qp.lane().expect("it sends");
        let all = lane.next() == posted;
        if !out.is_empty() {
            let owes = lane.told_along(|| host.recv_credits());
            assert_eq!(owes, qp.ack_owed().is_some(), "an acknowledgement is owed");
            kept(lanes, qp);
        }
        let sent = out.len();
        self.went[side as usize].sent += sent;
        for bytes in out {
            self.log.push((side, Msg::parse(&bytes)));
            self.way[side as usize].push_back(bytes);
        }
        (sent, all)
    }

    /// Lets a side take a message. `false`: the message is for the general path, and nothing was done.
    pub fn take_quick(&mut self, side: Side, bytes: &[u8]) -> bool {
        self.try_to_take(side, bytes).is_some()
    }

    fn try_to_take(&mut self, side: Side, bytes: &[u8]) -> Option<()> {
        let Node { qp, host } = self.node(side);
        let (head, data) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        if data.len() > LINE_DATA_BYTES as usize {
            return None;
        }
        let words = head.as_chunks::<4>().0;
        let head = core::array::from_fn(|i| u32::from_ne_bytes(words[i]));
        let lanes = qp.lanes();
        if plain_send_to(head)? != qpn(side).raw() || !lanes.takes || host.srq {
            return None;
        }
        let mut lane = qp.lane().expect("it takes");
        let count = lane.accepts(head)?;
        assert!(host.held.is_none(), "a receive request is held, of another message");
        let recv = host.rq.pop_front_if(|recv| !recv.bad && recv.len >= data.len())?;
        host.mem[recv.addr..recv.addr + data.len()].copy_from_slice(data);
        lane.took();
        let mut went = Quick { took: 1, ..Quick::default() };
        let oldest = lane.oldest();
        for index in (0..count).map(|n| oldest.wrapping_add(n)) {
            match host.send_request(index).op.wc_opcode() {
                WcOpcode::Send => went.sends_done += 1,
                WcOpcode::RdmaWrite => went.writes_done += 1,
                other => panic!("{other:?} is no request that a SEND says to be done"),
            }
            host.complete_send(index, WcStatus::Success, 0);
        }
        let wants_transmit = count > 0 && lane.completed(count);
        host.done.push(Done::Recv(
            recv.id,
            RecvDone {
                status: WcStatus::Success,
                opcode: WcOpcode::Recv,
                byte_len: data.len() as u32,
                extra: RecvExtra::None,
                solicited: false,
                src_qp: Qpn::default(),
                grh: false,
            },
        ));
        assert!(qp.wants_transmit() >= wants_transmit && qp.ack_owed().is_some());
        if !wants_transmit {
            kept(lanes, qp);
        }
        let all = &mut self.went[side as usize];
        all.took += 1;
        all.sends_done += went.sends_done;
        all.writes_done += went.writes_done;
        Some(())
    }
}
