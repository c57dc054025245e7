//! A send queue at its poster's side.

use hca_core::{PdHandle, QpType};

use crate::objects::direct::PostersLane;
use crate::objects::qp_shared::QpShared;
use crate::queues::ring::Producer;
use crate::queues::slot::SendHeader;
use crate::sync::Arc;

/// A send queue, as who posts has it.
pub(crate) struct SendQueue {
    pub(crate) qp: Arc<QpShared>,
    pub(crate) ring: Producer<SendHeader>,
    pub(crate) qp_type: QpType,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// The longest message.
    pub(crate) max_message: u32,
    pub(crate) pd: PdHandle,
    /// The queue pair is of a type that has one peer, and whose requests name no destination.
    pub(crate) is_connected: bool,
    /// The way to the peer's memory that was used last.
    pub(crate) lane: Option<PostersLane>,
}
