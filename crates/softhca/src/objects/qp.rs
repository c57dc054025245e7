//! What the adapter keeps of a queue pair beside its transport machine.

use core::net::IpAddr;

use hca_core::{PdHandle, QpCap, QpInfo};
use hca_fabric::{LinkId, PathId, PeerName};
use hca_transport::Count;

use crate::objects::direct::{DirectPeer, DirectWork};
use crate::objects::dormant::Dormancy;
use crate::objects::machine::Machine;
use crate::objects::pace::Pace;
use crate::objects::qp_shared::QpShared;
use crate::objects::rd::{ContextRecv, Rd};
use crate::objects::srq::Held;
use crate::objects::xrc::XrcRecv;
use crate::queues::ring::Consumer;
use crate::queues::slot::{RecvHeader, SendHeader};
use crate::sync::Arc;

/// Where a queue pair's receive requests come from.
pub(crate) enum RecvQueue {
    Own(Consumer<RecvHeader>),
    Shared(u32),
    Xrc(XrcRecv),
    /// That of a queue pair of RD, from which end-to-end contexts take: its slot in the table of shared ones.
    Datagrams(u32),
    Context(ContextRecv),
}

/// A queue pair without its machine.
pub(crate) struct QpRes {
    pub(crate) shared: Arc<QpShared>,
    /// That of the keys that peers name.
    pub(crate) pd: PdHandle,
    /// That of its send requests: an end-to-end context has those of the queue pair that it serves.
    pub(crate) send_pd: PdHandle,
    /// That of its receive requests: a shared queue has one of its own.
    pub(crate) recv_pd: PdHandle,
    /// The queue pairs whose requests complete here: itself, or those that an end-to-end context serves.
    pub(crate) sender: Arc<QpShared>,
    pub(crate) receiver: Arc<QpShared>,
    /// What it has to do with RD, if anything.
    pub(crate) rd: Option<Box<Rd>>,
    pub(crate) cap: QpCap,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) sq: Consumer<SendHeader>,
    pub(crate) rq: RecvQueue,
    pub(crate) held: Held,
    pub(crate) path: Option<PathId>,
    pub(crate) peer: Option<IpAddr>,
    /// The name of its peer, where messages go by its path.
    pub(crate) near_peer: Option<PeerName>,
    /// A peer on this machine that has been met.
    pub(crate) direct: Option<DirectPeer>,
    pub(crate) direct_work: DirectWork,
    /// The peer's number by which the engine lists it, if its peer may be on this machine.
    pub(crate) listed: Option<u32>,
    /// The link by which its messages come and go, once one has.
    pub(crate) link: Option<LinkId>,
    /// The word that peers see of this queue pair, and its number among all words of the adapter.
    pub(crate) word: u64,
    pub(crate) words: u32,
    /// Keys that its peer asked for and that never were.
    pub(crate) guesses: crate::objects::direct::Guesses,
    /// The rate at which it sends, where that is limited.
    pub(crate) pace: Option<Arc<Pace>>,
    /// What was counted for it alone.
    pub(crate) counts: [u64; Count::COUNT],
}

impl QpRes {
    /// The link to its peer on this machine, also where it has asked that for nothing itself.
    pub(crate) fn peer_link(&self) -> Option<LinkId> {
        self.direct.as_ref().map(|direct| direct.link).or(self.link)
    }
    /// Those of a queue pair in RESET. `pds`: its protection domain, and that of its receive requests. `cqs`: where
    /// sends and receives complete.
    pub(crate) fn new(
        shared: Arc<QpShared>,
        (pd, recv_pd): (PdHandle, PdHandle),
        cap: QpCap,
        [send_cq, recv_cq]: [u32; 2],
        sq: Consumer<SendHeader>,
        rq: RecvQueue,
    ) -> Self {
        Self {
            sender: shared.clone(),
            receiver: shared.clone(),
            shared,
            pd,
            send_pd: pd,
            recv_pd,
            rd: None,
            cap,
            send_cq,
            recv_cq,
            sq,
            rq,
            held: Held::default(),
            path: None,
            peer: None,
            near_peer: None,
            direct: None,
            direct_work: DirectWork::default(),
            listed: None,
            link: None,
            word: 0,
            words: 0,
            guesses: crate::objects::direct::Guesses::default(),
            pace: None,
            counts: [0; Count::COUNT],
        }
    }
}

/// Whether a queue pair is connected to a peer on this machine, whose memory it may reach.
pub(crate) fn is_near(machine: &Machine, res: &QpRes) -> bool {
    machine.uses_messages() && res.pace.is_none()
}

/// A queue pair.
pub(crate) struct QpEntry {
    pub(crate) machine: Machine,
    pub(crate) res: QpRes,
    /// It is in the engine's list of those that want to send.
    pub(crate) ready: bool,
    /// It is in the engine's list of those that owe an acknowledgement, since this turn.
    pub(crate) ack_since: Option<u64>,
    /// The engine's timers hold an entry for it at this time.
    pub(crate) timer: Option<hca_core::Instant>,
    pub(crate) dormancy: Dormancy,
}

impl QpEntry {
    /// Whether its packets can carry its acknowledgements.
    #[inline(always)]
    pub(crate) fn answers(&self) -> bool {
        !matches!(self.res.rq, RecvQueue::Xrc(_))
    }
    /// Its entry in the list of all queue pairs.
    pub(crate) fn info(&self) -> QpInfo {
        let attr = self.machine.attr();
        QpInfo {
            handle: self.res.shared.handle,
            qpn: self.machine.qpn(),
            qp_type: self.machine.qp_type(),
            state: self.machine.state(),
            dest_qpn: attr.dest_qpn,
            dest_gid: attr.av.map(|av| av.dgid),
        }
    }
}
