//! Queue pairs of VIs: of either service, with room in their completion queues.

use std::sync::Arc;

use hca_core::{DeviceError, QpHandle, QpState, QpStatus};
use hca_verbs::{
    Access, AckTimeout, BuildError, ConnectError, ConnectOptions, CqRef, Endpoint, OfferedBy, QpControl, Rc,
    Service, Uc, ops,
};

use crate::nic::NicShared;
use crate::queue::Side;
use crate::source::Source;
use crate::{Error, ViAttributes, lock};

/// A queue pair of one of the services.
#[derive(Clone)]
pub(crate) enum Control {
    Rc(QpControl<Rc>),
    Uc(QpControl<Uc>),
}

impl Control {
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self {
            Self::Rc(control) => control.endpoint(),
            Self::Uc(control) => control.endpoint(),
        }
    }
    /// Connects it to a peer's.
    pub(crate) fn connect(&self, remote: &Endpoint) -> Result<(), ConnectError> {
        let options = ConnectOptions::default();
        match self {
            Self::Rc(control) => control.connect(remote, &options),
            Self::Uc(control) => control.connect(remote, &options),
        }
    }
    pub(crate) fn handle(&self) -> QpHandle {
        match self {
            Self::Rc(control) => control.handle(),
            Self::Uc(control) => control.handle(),
        }
    }
    pub(crate) fn to_error(&self) {
        // A queue pair that refuses is one that the device has given up.
        let _ = match self {
            Self::Rc(control) => control.to_error(),
            Self::Uc(control) => control.to_error(),
        };
    }
    pub(crate) fn query(&self) -> Result<QpStatus, DeviceError> {
        match self {
            Self::Rc(control) => control.query(),
            Self::Uc(control) => control.query(),
        }
    }
    /// Whether it was never connected.
    pub(crate) fn is_new(&self) -> bool {
        self.query().is_ok_and(|status| status.state == QpState::Init)
    }
    /// Has a message without a receive descriptor end the connection, instead of waiting for one; and a silent peer
    /// after the given time.
    pub(crate) fn end_without_descriptor(&self, timeout: Option<AckTimeout>) -> Result<(), ConnectError> {
        let Self::Rc(control) = self else { return Ok(()) };
        control.set_retries(timeout, Some(0))
    }
}

/// A queue pair, and its two sides.
pub(crate) type Built = (Control, Side, Side);

/// A queue pair for a VI, on the completion queues of its work queues, which get room for it.
pub(crate) fn build(
    nic: &NicShared,
    attributes: &ViAttributes,
    context: u64,
    send: &Arc<Source>,
    recv: &Arc<Source>,
) -> Result<Built, Error> {
    let depth = nic.attributes.max_descriptors_per_queue;
    let _room_is_kept = lock::lock(&nic.building);
    if Arc::ptr_eq(send, recv) {
        send.quietly(|state| state.grow(2 * depth + 1))?;
    } else {
        send.quietly(|state| state.grow(depth + 1))?;
        recv.quietly(|state| state.grow(depth))?;
    }
    let cqs = [send, recv].map(|source| source.quietly(|state| state.cq()));
    Ok(if attributes.reliability.is_reliable() {
        let (send, recv) = queue_pair::<Rc>(nic, attributes, context, cqs)?.split();
        (Control::Rc(send.control().clone()), Side::RcSend(send), Side::RcRecv(recv))
    } else {
        let (send, recv) = queue_pair::<Uc>(nic, attributes, context, cqs)?.split();
        (Control::Uc(send.control().clone()), Side::UcSend(send), Side::UcRecv(recv))
    })
}

fn queue_pair<S: Service>(
    nic: &NicShared,
    attributes: &ViAttributes,
    context: u64,
    [send, recv]: [CqRef; 2],
) -> Result<hca_verbs::QueuePair<S>, BuildError>
where
    ops::Send: OfferedBy<S>,
{
    let (depth, segments) =
        (nic.attributes.max_descriptors_per_queue, nic.attributes.max_segments_per_descriptor);
    let mut access = Access::empty();
    access.set(Access::REMOTE_WRITE, attributes.enable_rdma_write);
    access.set(Access::REMOTE_READ, attributes.enable_rdma_read && attributes.reliability.is_reliable());
    let pd = attributes.ptag.pd();
    let builder = pd.qp::<S>(&send).send_cq(&send).recv_cq(&recv).access(access).context(context);
    // One more than descriptors asks for their ends.
    let builder = builder.max_send_wr(depth + 1).max_recv_wr(depth).max_inline(nic.max_inline as u32);
    builder.max_send_sge(segments).max_recv_sge(segments).build()
}
