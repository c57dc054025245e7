//! Shared receive queues, and the receive request that a message is being placed into.

use hca_core::{PdHandle, Sge, SrqHandle, SrqStatus};

use crate::objects::rd::RdRecv;
use crate::objects::xrc::XrcSrq;
use crate::queues::ring::{Consumer, Producer, ring};
use crate::queues::slot::RecvHeader;

/// A shared receive queue.
pub(crate) struct SrqEntry {
    pub(crate) handle: SrqHandle,
    pub(crate) pd: PdHandle,
    pub(crate) ring: Consumer<RecvHeader>,
    /// Requests that were taken and given back unused.
    pub(crate) returned: Vec<(u64, Vec<Sge>)>,
    pub(crate) depth: u32,
    pub(crate) max_sge: u32,
    /// The event is raised when fewer are left; 0: disarmed.
    pub(crate) limit: u32,
    pub(crate) users: u32,
    /// It belongs to an XRC domain.
    pub(crate) xrc: Option<XrcSrq>,
    /// It is the receive queue of a queue pair of RD.
    pub(crate) rd: Option<Box<RdRecv>>,
}

impl SrqEntry {
    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.ring.published().wrapping_sub(self.ring.head()) + self.returned.len() as u32
    }
    /// Its attributes.
    pub(crate) fn status(&self) -> SrqStatus {
        SrqStatus { max_wr: self.depth, max_sge: self.max_sge, limit: self.limit }
    }
    /// Moves to another ring, with its poster's end of the present one, which becomes that of the other. Returns the
    /// requests that wait, if it has no room for them; then nothing is done.
    pub(crate) fn resize(&mut self, posted: &mut Producer<RecvHeader>, depth: u32) -> Result<(), u32> {
        let seen = self.ring.refresh();
        let unposted = posted.filled().wrapping_sub(seen);
        let wait = self.waiting() + unposted;
        if wait > depth {
            return Err(wait);
        }
        let (mut to, end) = ring(depth, self.max_sge as usize);
        let fill = |to: &mut Producer<RecvHeader>, from: &Consumer<RecvHeader>, index| {
            let (header, cells) = from.at(index);
            let filled = to.push(*header, cells.iter().copied());
            assert!(filled.is_ok(), "room for all {wait} was counted");
        };
        let head = self.ring.head();
        (0..seen.wrapping_sub(head)).for_each(|i| fill(&mut to, &self.ring, head.wrapping_add(i)));
        to.publish();
        // Requests that no doorbell told of yet stay so.
        posted.publish();
        self.ring.refresh();
        (0..unposted).for_each(|i| fill(&mut to, &self.ring, seen.wrapping_add(i)));
        (*posted, self.ring, self.depth) = (to, end, depth);
        self.limit = self.limit.min(depth);
        Ok(())
    }
    /// Whether the limit event is due; disarms it.
    pub(crate) fn limit_reached(&mut self) -> bool {
        let reached = self.limit > 0 && self.waiting() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }
}

/// A receive request that a message is being placed into. One of an own queue stays in its slot meanwhile,
/// one of a shared queue is copied out.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) active: bool,
    pub(crate) wr_id: u64,
    /// The first entry of its list, in which most messages end.
    pub(crate) first: Sge,
    /// The list, of a shared queue's request.
    pub(crate) sges: Vec<Sge>,
}
