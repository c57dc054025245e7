//! One node of the workload: its adapter, memory, keys and queues.

use core::ops::Range;
use std::sync::Arc;

use hca_core::{
    Access, Completion, CqHandle, CqPort, Device, DeviceError, ExtendedConnections, MemoryWindows, MrKeys,
    MwHandle, MwKeys, MwRange, MwType, PdHandle, RddHandle, RecvPort, Rkey, SrqHandle, SrqInit, Srqn,
    XrcdHandle,
};

use super::zone::Zone;
use crate::arena::Arena;
use crate::checker::{Breach, Ledger, Order, Shadow};
use crate::{Node, Rng};

/// Bytes between regions, which belong to none.
const GUARD: usize = 64;
/// Bytes that peers may read only, and bytes of another protection domain.
const FIXED_BYTES: usize = 16 << 10;
/// Bytes of a region that the peer of one connection alone works with, and how many there are.
pub(super) const OWN_BYTES: usize = 8 << 10;
const OWNS: usize = 4;
/// Regions that a host has at all times.
pub(super) const HOST_REGIONS: u32 = 4;
/// Entries of each completion queue unless it is to overrun: more than all requests together.
pub(super) const CQ_DEPTH: u32 = 8192;

/// A part of the arena with a region over it.
pub(super) struct Region {
    pub(super) zone: Zone,
    pub(super) keys: MrKeys,
}

pub(super) struct Srq {
    pub(super) handle: SrqHandle,
    pub(super) port: Box<dyn RecvPort>,
    pub(super) ledger: Ledger,
    pub(super) depth: u32,
    pub(super) buffer: usize,
    pub(super) limit: SrqLimit,
}

impl Srq {
    fn new((handle, port): (SrqHandle, Box<dyn RecvPort>), (depth, buffer): (u32, usize)) -> Self {
        Self { handle, port, ledger: Ledger::new(Order::Any), depth, buffer, limit: SrqLimit::default() }
    }
}

/// The XRC domain of a node: shared receive queues by their numbers.
pub(super) struct XrcDomain {
    pub(super) handle: XrcdHandle,
    pub(super) queues: Vec<(Srqn, Srq)>,
}

impl XrcDomain {
    /// Shared receive queues of a domain.
    pub(super) const QUEUES: usize = 2;

    /// All queues complete on one completion queue, so that the order of a connection's messages is seen.
    fn new(
        device: &dyn Device,
        pd: PdHandle,
        cq: CqHandle,
        sizes: (u32, usize),
    ) -> Result<Self, DeviceError> {
        let xrc = xrc_of(device)?;
        let handle = xrc.alloc_xrcd()?;
        let mut queues = Vec::new();
        for _ in 0..Self::QUEUES {
            let init = SrqInit { max_wr: sizes.0, max_sge: 4 };
            let port = xrc.create_xrc_srq(pd, handle, cq, &init)?;
            queues.push((port.number, Srq::new((port.handle, port.recv), sizes)));
        }
        Ok(Self { handle, queues })
    }
    /// Takes the queues and the domain down.
    pub(super) fn close(&self, device: &dyn Device) -> Result<(), DeviceError> {
        for (_, srq) in &self.queues {
            device.destroy_srq(srq.handle)?;
        }
        xrc_of(device)?.dealloc_xrcd(self.handle)
    }
}

/// The extended reliable connections of an adapter.
pub(super) fn xrc_of(device: &dyn Device) -> Result<&dyn ExtendedConnections, DeviceError> {
    device.xrc().ok_or(DeviceError::Unsupported { what: "extended reliable connections" })
}

pub(super) struct Cq {
    pub(super) handle: CqHandle,
    pub(super) port: Box<dyn CqPort>,
    pub(super) depth: u32,
    /// Completions taken since the last look at events.
    pub(super) taken: usize,
    /// A completion was lost.
    pub(super) overran: bool,
    /// It is still to be seen that it was full then.
    pub(super) unproven: bool,
}

impl Cq {
    pub(super) fn new(device: &dyn Device, depth: u32) -> Result<Self, DeviceError> {
        let (handle, port) = device.create_cq(depth)?;
        Ok(Self { handle, port, depth, taken: 0, overran: false, unproven: false })
    }
}

/// The limit event of a shared receive queue: it comes once, and when fewer requests are left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SrqLimit {
    /// 0: none is armed.
    pub(super) armed: u32,
    /// The fewest requests that were outstanding since.
    low: usize,
    /// Posted since the last look.
    pub(super) fresh: usize,
    /// The event came.
    pub(super) fired: bool,
}

impl SrqLimit {
    pub(super) fn arm(&mut self, limit: u32, outstanding: usize) {
        (self.armed, self.low) = (limit, outstanding);
    }
    /// All completions have been taken: what may be said of the event. Up to `held` of the requests that
    /// are outstanding are in use by messages under way, and count no more. Returns whether it came.
    pub(super) fn look(&mut self, outstanding: usize, held: usize) -> Result<bool, String> {
        self.low = self.low.min(outstanding);
        let (fired, fresh) = (core::mem::take(&mut self.fired), core::mem::take(&mut self.fresh));
        let (armed, low) = (self.armed as usize, self.low);
        if fired {
            self.armed = 0;
        }
        match fired {
            true if armed == 0 => Err("the limit event came, but is not armed".into()),
            true if low >= armed + held + fresh => {
                Err(format!("the limit event came at {low} or more requests, and the limit is {armed}"))
            }
            false if low < armed => {
                Err(format!("only {low} requests were left, the limit is {armed}, and no event came"))
            }
            _ => Ok(fired),
        }
    }
}

pub(super) struct Host {
    pub(super) device: Arc<dyn Device>,
    pub(super) pd: PdHandle,
    /// That of `foreign`.
    other_pd: PdHandle,
    pub(super) arena: Arena,
    pub(super) shadow: Shadow,
    /// For local use only.
    pub(super) local: Region,
    /// A part of it, for receive buffers: senders must not use it up.
    pub(super) recv_zone: Zone,
    /// Another part of the region, by where its buffers begin: one of the longest for each receive queue. A queue that
    /// holds no request takes one if that zone has no room. Else requests could wait for ever for a queue whose memory
    /// is held by other queues, which have no use for it.
    pub(super) spares: Vec<usize>,
    /// For everything.
    pub(super) remote: Region,
    /// Ranges for regions that the peer of one connection alone works with.
    pub(super) owns: Vec<Range<usize>>,
    /// Readable by peers.
    pub(super) readable: Region,
    /// Of another protection domain.
    pub(super) foreign: Region,
    pub(super) cqs: Vec<Cq>,
    /// The program looks at no completion now; it did so at some time.
    pub(super) is_deaf: bool,
    pub(super) was_deaf: bool,
    pub(super) srq: Option<Srq>,
    pub(super) xrc: Option<XrcDomain>,
    /// The domain of its reliable datagrams.
    pub(super) rdd: Option<RddHandle>,
    /// Counts crashes.
    pub(super) epoch: u32,
    /// A word that all peers add 1 to: offset, values seen, additions posted.
    pub(super) shared_word: Range<usize>,
    pub(super) shared_seen: Vec<u64>,
    pub(super) shared_posted: u64,
    /// Registered regions: the arena may be freed when none is left.
    pub(super) regions: Vec<MrKeys>,
    /// Memory windows, which go before the regions.
    windows: Vec<MwHandle>,
}

impl Host {
    pub(super) fn new(
        node: &Node,
        bytes: usize,
        epoch: u32,
        cq_depth: u32,
        [srq, xrc]: [Option<(u32, usize)>; 2],
        (spares, spare_bytes): (usize, usize),
        rng: &mut Rng,
    ) -> Result<Self, DeviceError> {
        let device = node.device();
        let (pd, other_pd) = (device.alloc_pd()?, device.alloc_pd()?);
        let rest = bytes - 2 * FIXED_BYTES - OWNS * OWN_BYTES - (4 + OWNS) * GUARD;
        let (shared_bytes, remote_bytes) = ((rest * 5 / 8) & !63, (rest / 4) & !63);
        let spare_bytes = spare_bytes.next_multiple_of(64);
        let local_bytes = shared_bytes + spares * spare_bytes;
        // A region that peers reach stands on pages of its own, behind its guard.
        let mut parts = [local_bytes, remote_bytes, FIXED_BYTES, FIXED_BYTES].map(|len| GUARD + len).to_vec();
        parts.extend([GUARD + OWN_BYTES; OWNS]);
        let foreign = rng.chance(0.3);
        let arena = Arena::new(&*device, &parts, foreign, (node.index() as u64 + 1) << 40)?;
        let bytes = parts.iter().sum();
        let mut fill = vec![0; bytes];
        let spare = GUARD + shared_bytes..GUARD + local_bytes;
        for at in (0..bytes).step_by(8).filter(|at| !spare.contains(at)) {
            fill[at..at + 8].copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        arena.write(0, &fill);
        let mut shadow = Shadow::new(fill);
        let mut regions = Vec::new();
        let mut at = 0;
        let mut region = |len: usize, pd, access| -> Result<Region, DeviceError> {
            let range = at + GUARD..at + GUARD + len;
            at = range.end;
            let keys = arena.register(&*device, pd, range.clone(), access)?;
            regions.push(keys);
            Ok(Region { zone: Zone::new(range), keys })
        };
        let all = Access::LOCAL_WRITE | Access::BY_PEERS;
        let mut local = region(local_bytes, pd, Access::LOCAL_WRITE | Access::MW_BIND)?;
        let start = local.zone.all().start;
        let (middle, end) = (start + shared_bytes * 5 / 8, start + shared_bytes);
        local.zone = Zone::new(start..middle);
        let recv_zone = Zone::new(middle..end);
        let spares = (0..spares).map(|n| end + n * spare_bytes).collect();
        let mut remote = region(remote_bytes, pd, all | Access::MW_BIND)?;
        let readable = region(FIXED_BYTES, pd, Access::REMOTE_READ)?;
        let foreign = region(FIXED_BYTES, other_pd, all)?;
        let owns = (0..OWNS).map(|n| {
            let start = foreign.zone.all().end + n * (GUARD + OWN_BYTES) + GUARD;
            start..start + OWN_BYTES
        });
        let owns = owns.collect();
        let mut cqs = Vec::new();
        for _ in 0..rng.between(1, 3) {
            cqs.push(Cq::new(&*device, cq_depth)?);
        }
        let srq = match srq {
            Some(sizes) => {
                Some(Srq::new(device.create_srq(pd, &SrqInit { max_wr: sizes.0, max_sge: 4 })?, sizes))
            }
            None => None,
        };
        let xrc = match xrc {
            Some(sizes) => Some(XrcDomain::new(&*device, pd, cqs[cqs.len() - 1].handle, sizes)?),
            None => None,
        };
        let shared_word = remote.zone.take(8, 8, rng).expect("the zone is empty");
        arena.write(shared_word.start, &[0; 8]);
        shadow.write(shared_word.start, &[0; 8]);
        shadow.open(shared_word.clone());
        Ok(Self {
            device,
            pd,
            other_pd,
            arena,
            shadow,
            local,
            recv_zone,
            spares,
            remote,
            owns,
            readable,
            foreign,
            cqs,
            is_deaf: false,
            was_deaf: false,
            srq,
            xrc,
            rdd: None,
            epoch,
            shared_word,
            shared_seen: Vec::new(),
            shared_posted: 0,
            regions,
            windows: Vec::new(),
        })
    }

    /// Takes everything from the completion queues, unless the program does not look at them.
    pub(super) fn drain(&mut self, out: &mut Vec<Completion>) {
        let mut some = [Completion::default(); 32];
        for cq in self.cqs.iter_mut().filter(|_| !self.is_deaf) {
            loop {
                let n = cq.port.poll(&mut some);
                out.extend_from_slice(&some[..n]);
                cq.taken += n;
                if n == 0 {
                    break;
                }
            }
        }
    }

    /// Compares the memory with what it should be.
    pub(super) fn check_memory(&self) -> Result<(), Breach> {
        self.shadow.compare(|at, expected| self.arena.difference(at, expected))
    }

    /// The program writes its own memory.
    pub(super) fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.arena.write(at, bytes);
        self.shadow.write(at, bytes);
    }

    /// Registers a range for its own.
    pub(super) fn register(&mut self, range: Range<usize>, access: Access) -> Result<MrKeys, DeviceError> {
        let keys = self.arena.register(&*self.device, self.pd, range, access)?;
        self.regions.push(keys);
        Ok(keys)
    }
    pub(super) fn deregister(&mut self, keys: MrKeys) -> Result<(), DeviceError> {
        self.regions.retain(|r| r.handle != keys.handle);
        self.device.dereg_mr(keys.handle)
    }
    /// A memory window, if the adapter has them.
    pub(super) fn alloc_window(&mut self, kind: MwType) -> Result<MwKeys, DeviceError> {
        let keys = self.windows_of()?.alloc_mw(self.pd, kind)?;
        self.windows.push(keys.handle);
        Ok(keys)
    }
    /// Binds a window of type 1 to all that peers work with; returns its key.
    pub(super) fn bind_window(&self, window: MwHandle) -> Result<Rkey, DeviceError> {
        let range = self.window_range(&self.remote.keys, self.remote.zone.all());
        self.windows_of()?.bind_mw(window, Some(&range))
    }
    /// A range of a region as a window shows it: peers may do everything.
    pub(super) fn window_range(&self, region: &MrKeys, range: Range<usize>) -> MwRange {
        let access = Access::BY_PEERS;
        let (addr, len) = (self.arena.address(range.start), range.len() as u64);
        MwRange { lkey: region.lkey, addr, len, access, zero_based: false }
    }
    pub(super) fn dealloc_window(&mut self, window: MwHandle) -> Result<(), DeviceError> {
        self.windows.retain(|w| *w != window);
        self.windows_of()?.dealloc_mw(window)
    }
    fn windows_of(&self) -> Result<&dyn MemoryWindows, DeviceError> {
        self.device.windows().ok_or(DeviceError::Unsupported { what: "memory windows" })
    }
    /// Gives back all memory and the protection domains, on which nothing stands any more.
    pub(super) fn close_memory(&mut self) -> Result<(), DeviceError> {
        while let Some(window) = self.windows.last().copied() {
            self.dealloc_window(window)?;
        }
        while let Some(keys) = self.regions.last().copied() {
            self.deregister(keys)?;
        }
        self.device.dealloc_pd(self.pd)?;
        self.device.dealloc_pd(self.other_pd)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        while let Some(window) = self.windows.last().copied() {
            let _ = self.dealloc_window(window);
        }
        for r in self.regions.drain(..) {
            if self.device.dereg_mr(r.handle).is_err() {
                self.arena.leak();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_event_has_to_come_once_and_only_below_the_limit() {
        let mut l = SrqLimit::default();
        assert_eq!(l.look(0, 0), Ok(false));
        l.arm(3, 5);
        assert_eq!(l.look(3, 0), Ok(false));
        let mut missed = l;
        assert!(missed.look(2, 0).unwrap_err().contains("no event came"));
        let mut early = l;
        early.fired = true;
        assert!(early.look(3, 0).unwrap_err().contains("at 3 or more"));
        early = l;
        early.fired = true;
        assert_eq!(early.look(3, 1), Ok(true), "one may be in use");
        early.fired = true;
        assert!(early.look(1, 0).unwrap_err().contains("not armed"));
    }
}
