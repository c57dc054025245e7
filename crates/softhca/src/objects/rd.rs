//! RD: domains, and the parts of queue pairs and end-to-end contexts in it. `engine::rd` says how they work.

use std::collections::{HashMap, VecDeque};

use hca_core::{Qkey, Qpn, RddHandle, SrqHandle};

use crate::limits::MAX_RDD;
use crate::objects::qp_shared::QpShared;
use crate::objects::slab::Slab;
use crate::queues::ring::Consumer;
use crate::queues::slot::SendHeader;
use crate::sync::Arc;

/// An RD domain: how many queue pairs and contexts belong to it, and the slots of the contexts.
pub(crate) struct Rdd {
    pub(crate) users: u64,
    pub(crate) contexts: Vec<u32>,
}

/// What RD has in the tables.
pub(crate) struct RdTables {
    pub(crate) rdds: Slab<Rdd>,
    /// The slots of receive queues, by the number of their queue pair.
    pub(crate) queues: HashMap<u32, u32>,
}

impl Default for RdTables {
    fn default() -> Self {
        Self { rdds: Slab::new("RD domain", MAX_RDD), queues: HashMap::new() }
    }
}

/// The receive queue of a queue pair: who may send to it, and where its requests complete.
pub(crate) struct RdRecv {
    pub(crate) rdd: RddHandle,
    pub(crate) qkey: Qkey,
    /// The queue pair is in a state in which it receives.
    pub(crate) receives: bool,
    pub(crate) qp: Arc<QpShared>,
    pub(crate) cq: u32,
}

/// The part of a queue pair or context in RD.
pub(crate) enum Rd {
    Queue(Queue),
    Context(Context),
}

/// A queue pair.
pub(crate) struct Queue {
    pub(crate) rdd: RddHandle,
    /// Its receive queue.
    pub(crate) srq: SrqHandle,
    pub(crate) place: Place,
}

/// Where the send queue of a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Home,
    /// At home, and the context in this slot is called.
    Waits(u32),
    /// At the context in this slot.
    Served(u32),
}

/// An end-to-end context.
pub(crate) struct Context {
    pub(crate) rdd: RddHandle,
    /// The slot of the queue pair whose send queue is here, and its number.
    pub(crate) serves: Option<(u32, Qpn)>,
    /// The index behind the request that is served, or was served last.
    pub(crate) posted: u32,
    /// That request has failed.
    pub(crate) failed: bool,
    /// The slots of the queue pairs that wait.
    pub(crate) waiting: VecDeque<u32>,
    /// An empty send queue, for the place of the one that is not where it belongs.
    pub(crate) spare: Option<Consumer<SendHeader>>,
}

impl Rd {
    /// The index behind the requests that the machine may have.
    pub(crate) fn posted(&self, sq: &Consumer<SendHeader>) -> u32 {
        match self {
            Self::Queue(_) => sq.tail(),
            Self::Context(context) => context.posted,
        }
    }
    /// The number of the queue pair that a context serves.
    pub(crate) fn served(&self) -> Option<Qpn> {
        if let Self::Context(context) = self { context.serves.map(|(_, qpn)| qpn) } else { None }
    }
    /// A send request has ended with an error.
    pub(crate) fn request_failed(&mut self) {
        if let Self::Context(context) = self {
            context.failed = true;
        }
    }
}

/// Where the receive requests of a context come from.
pub(crate) struct ContextRecv {
    pub(crate) rdd: RddHandle,
    /// The slot of the receive queue that the request under way is for.
    pub(crate) entered: u32,
    /// The slot of the queue that the held request was taken from.
    pub(crate) taken_from: u32,
}
