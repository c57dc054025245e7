//! Queue pairs: service types, states, attributes and the legal transitions.

use crate::{
    AckTimeout, CqHandle, Gid, Lid, Mtu, Pkey, Psn, Qkey, Qpn, RnrTimer, SrqHandle, StaticRate,
    TransitionError,
};

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending end of an extended reliable connection (XRC): the initiator, which has no receive queue.
    XrcIni,
    /// The receiving end of an extended reliable connection (XRC): the target, which has no send queue and belongs to an
    /// XRC domain.
    XrcTgt,
    /// Reliable datagram (RD): a queue pair of an RD domain, whose messages go by end-to-end contexts.
    Rd,
    /// An end-to-end context (RD): the reliable connection of an RD domain to one of another adapter, which has no queues
    /// of its own.
    Eec,
}

impl QpType {
    /// Whether requests of the service are acknowledged, and a lost packet is sent again.
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }
    /// Whether a failed send request stops the send queue alone ([`QpState::Sqe`]).
    pub const fn has_sqe(self) -> bool {
        matches!(self, Self::Uc | Self::Ud | Self::Rd)
    }
    /// The service of the far end of a connection.
    pub const fn peer(self) -> Self {
        match self {
            Self::XrcIni => Self::XrcTgt,
            Self::XrcTgt => Self::XrcIni,
            Self::Rc | Self::Uc | Self::Ud | Self::Rd | Self::Eec => self,
        }
    }
}

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum QpState {
    /// Newly created; takes no requests.
    #[default]
    Reset,
    /// Takes receive requests.
    Init,
    /// Ready to receive: answers its peer.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained: requests under way complete, and no new one starts.
    Sqd,
    /// Send queue error (UC, UD and RD): still receives.
    Sqe,
    /// Error: every request completes as flushed.
    Error,
}

bitflags::bitflags! {
    /// The permitted remote operations (and, for regions, local writes).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u8 {
        /// The adapter may write to the memory for local requests (receive, READ, atomics).
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Peers may invalidate the key by SEND with invalidate (regions only).
        const REMOTE_INVALIDATE = 1 << 4;
        /// Memory windows may be bound to it, and give peers more rights than it has itself (regions only).
        const MW_BIND = 1 << 5;
        /// Peers may FLUSH, so that what they placed is visible to all readers.
        const FLUSH_GLOBAL = 1 << 6;
        /// Peers may FLUSH, so that what they placed survives a loss of power. Only memory that does so has this right.
        const FLUSH_PERSISTENT = 1 << 7;
    }
}

impl Access {
    /// The rights by which peers access memory that is lost with the power: all of theirs but to take keys back, and to
    /// FLUSH for persistence.
    pub const BY_PEERS: Self =
        Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC).union(Self::FLUSH_GLOBAL);
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AddressVector {
    /// The peer's GID; on RoCEv2 its IP address. Zero on InfiniBand: packets go by the LID alone, without a global
    /// header (GRH), which is enough within a subnet.
    pub dgid: Gid,
    /// The peer's LID on InfiniBand; 0 on RoCE, and if the device has to find it by the GID.
    pub dlid: Lid,
    /// Flow label, 20 bits; on RoCEv2 entropy for the UDP source port. 0 lets the device choose, for a connection by
    /// the queue pair's number.
    pub flow_label: u32,
    /// Hop limit (TTL); 0 takes the device's default.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN bits.
    pub traffic_class: u8,
    /// Service level, 0 to 15. On Ethernet its lower three bits are the priority of the frame. A device that sends
    /// through the system's sockets has neither lanes nor tags, and ignores it.
    pub sl: u8,
    /// The highest rate of sending to this peer, for a path that is slower than the port. A device that sends through
    /// the system's sockets leaves rates to the system.
    pub static_rate: StaticRate,
}

/// The initial attributes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Service.
    pub qp_type: QpType,
    /// The completion queue of the send queue.
    pub send_cq: CqHandle,
    /// The completion queue of the receive queue; without meaning for an XRC initiator.
    pub recv_cq: CqHandle,
    /// The shared receive queue, which replaces a receive queue of the queue pair's own.
    pub srq: Option<SrqHandle>,
    /// Limits of the queues.
    pub cap: QpCap,
}

/// Limits of a queue pair's queues. The device may grant more, never less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receive requests (ignored with a shared receive queue).
    pub max_recv_wr: u32,
    /// Entries in a send request's list.
    pub max_send_sge: u32,
    /// Entries in a receive request's list.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline: u32,
}
impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 }
    }
}

/// Attributes for `modify_qp`: those that are `Some` are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpAttr {
    /// The new state; `None` keeps the present state.
    pub state: Option<QpState>,
    /// Partition key.
    pub pkey: Option<Pkey>,
    /// The operations that the peer may execute (RC, UC).
    pub access: Option<Access>,
    /// Queue key (UD).
    pub qkey: Option<Qkey>,
    /// The peer's queue pair (RC, UC).
    pub dest_qpn: Option<Qpn>,
    /// The path to the peer (RC, UC).
    pub av: Option<AddressVector>,
    /// Path MTU (RC, UC).
    pub path_mtu: Option<Mtu>,
    /// The first PSN that is expected.
    pub rq_psn: Option<Psn>,
    /// The first PSN that is sent.
    pub sq_psn: Option<Psn>,
    /// READs and atomics that this side may have outstanding (RC).
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding at this side (RC).
    pub max_dest_rd_atomic: Option<u8>,
    /// The time that an RNR NAK tells the peer to wait (RC).
    pub min_rnr_timer: Option<RnrTimer>,
    /// Local ACK timeout (RC).
    pub timeout: Option<AckTimeout>,
    /// Retries after timeouts and sequence NAKs, 0 to 7 (RC).
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAKs, 0 to 7; 7 is for ever (RC).
    pub rnr_retry: Option<u8>,
    /// Whether to raise an event once the queue has drained (to SQD).
    pub sqd_event: Option<bool>,
}

bitflags::bitflags! {
    /// Names of [`QpAttr`]'s fields, for the transition tables and their errors.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QpAttrMask: u32 {
        /// `pkey`.
        const PKEY = 1;
        /// `access`.
        const ACCESS = 1 << 1;
        /// `qkey`.
        const QKEY = 1 << 2;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 3;
        /// `av`.
        const AV = 1 << 4;
        /// `path_mtu`.
        const PATH_MTU = 1 << 5;
        /// `rq_psn`.
        const RQ_PSN = 1 << 6;
        /// `sq_psn`.
        const SQ_PSN = 1 << 7;
        /// `max_rd_atomic`.
        const MAX_RD_ATOMIC = 1 << 8;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 9;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 10;
        /// `timeout`.
        const TIMEOUT = 1 << 11;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 12;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 13;
        /// `sqd_event`.
        const SQD_EVENT = 1 << 14;
    }
}

impl QpAttr {
    /// Takes over the fields that are given, but for the state.
    pub fn merge(&mut self, given: &Self) {
        macro_rules! set {
            ($($field:ident)*) => { $(if given.$field.is_some() { self.$field = given.$field; })* };
        }
        set!(pkey access qkey dest_qpn av path_mtu rq_psn sq_psn max_rd_atomic max_dest_rd_atomic
             min_rnr_timer timeout retry_cnt rnr_retry sqd_event);
    }
    /// The set of given fields, without the state.
    pub fn mask(&self) -> QpAttrMask {
        use QpAttrMask as M;
        let given = [
            (self.pkey.is_some(), M::PKEY),
            (self.access.is_some(), M::ACCESS),
            (self.qkey.is_some(), M::QKEY),
            (self.dest_qpn.is_some(), M::DEST_QPN),
            (self.av.is_some(), M::AV),
            (self.path_mtu.is_some(), M::PATH_MTU),
            (self.rq_psn.is_some(), M::RQ_PSN),
            (self.sq_psn.is_some(), M::SQ_PSN),
            (self.max_rd_atomic.is_some(), M::MAX_RD_ATOMIC),
            (self.max_dest_rd_atomic.is_some(), M::MAX_DEST_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), M::MIN_RNR_TIMER),
            (self.timeout.is_some(), M::TIMEOUT),
            (self.retry_cnt.is_some(), M::RETRY_CNT),
            (self.rnr_retry.is_some(), M::RNR_RETRY),
            (self.sqd_event.is_some(), M::SQD_EVENT),
        ];
        given.into_iter().filter(|g| g.0).map(|g| g.1).collect()
    }

    /// Checks a transition of a queue pair of type `qp_type` out of state `from`: that it exists, that all required
    /// attributes and only permitted ones are given, and that the values are in range.
    ///
    /// # Errors
    /// The violated rule, with the states and attributes.
    pub fn check(&self, qp_type: QpType, from: QpState) -> Result<(), TransitionError> {
        let to = self.state.unwrap_or(from);
        let Some((required, optional)) = transition(qp_type, from, to) else {
            return Err(TransitionError::Illegal { qp_type, from, to });
        };
        let given = self.mask();
        let missing = required - given;
        if !missing.is_empty() {
            return Err(TransitionError::Missing { from, to, missing });
        }
        let unexpected = given - required - optional;
        if !unexpected.is_empty() {
            return Err(TransitionError::Unexpected { from, to, unexpected });
        }
        for (what, value) in [("retry_cnt", self.retry_cnt), ("rnr_retry", self.rnr_retry)] {
            if let Some(v) = value.filter(|v| *v > 7) {
                return Err(TransitionError::Value { what, value: v.into(), max: 7 });
            }
        }
        Ok(())
    }
}

/// The states that a queue pair of this type goes to from this one, for people.
pub(crate) struct Targets(pub(crate) QpType, pub(crate) QpState);

impl core::fmt::Display for Targets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let legal = |to: &QpState| transition(self.0, self.1, *to).is_some();
        for (i, to) in [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].iter().filter(|to| legal(to)).enumerate() {
            write!(f, "{}{to:?}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The required and the optional attributes of a transition; `None` where there is none.
fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<(QpAttrMask, QpAttrMask)> {
    use QpAttrMask as M;
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let none = M::empty();
    // What each service sets when it leaves RESET, and may set again later.
    let (init, again) = match qp_type {
        QpType::Ud | QpType::Rd => (M::PKEY | M::QKEY, M::QKEY),
        QpType::Uc | QpType::XrcIni => (M::PKEY | M::ACCESS, M::ACCESS),
        QpType::Rc | QpType::XrcTgt | QpType::Eec => (M::PKEY | M::ACCESS, M::ACCESS | M::MIN_RNR_TIMER),
    };
    // The attributes of the sending and the receiving end of a reliable service.
    let sends = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC;
    let receives = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let connect = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    Some(match (from, to) {
        (_, Reset | Error) => (none, none),
        (Reset, Init) => (init, none),
        (Init, Init) => (none, init),
        (Init, Rtr) => match qp_type {
            QpType::Ud | QpType::Rd => (none, init),
            QpType::Uc | QpType::XrcIni => (connect, init),
            QpType::Rc | QpType::XrcTgt | QpType::Eec => (connect | receives, init),
        },
        (Rtr, Rts) => match qp_type {
            QpType::Rc | QpType::XrcIni | QpType::Eec => (sends | M::SQ_PSN, again),
            QpType::Ud | QpType::Uc => (M::SQ_PSN, again),
            QpType::Rd => (none, again),
            QpType::XrcTgt => (M::TIMEOUT | M::SQ_PSN, again),
        },
        // The messages of a queue pair of RD are drained by their end-to-end contexts.
        (_, Sqd) | (Sqd, Rts) if qp_type == QpType::Rd => return None,
        (Rts, Rts) | (Sqd, Rts) => (none, again),
        (Rts, Sqd) => (none, M::SQD_EVENT),
        (Sqd, Sqd) => match qp_type {
            QpType::Ud | QpType::Rd => (none, init),
            QpType::Uc => (none, init | M::AV),
            QpType::Rc | QpType::Eec => (none, init | M::AV | sends | receives),
            QpType::XrcIni => (none, init | M::AV | sends),
            QpType::XrcTgt => (none, init | M::AV | M::TIMEOUT | receives),
        },
        (Sqe, Rts) if qp_type.has_sqe() => (none, again),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each service has to set and may set in each transition.
    #[test]
    fn transitions_take_the_attributes_that_they_need_and_no_others() {
        use QpAttrMask as M;
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        use QpType::{Eec, Rc, Rd, Uc, Ud, XrcIni, XrcTgt};
        const CONNECT: [M; 4] = [M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN];
        const RETRIES: [M; 3] = [M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY];
        const SERVED: [M; 2] = [M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER];
        const STARTED: [M; 2] = [M::SQ_PSN, M::MAX_RD_ATOMIC];
        const CHANGED: [M; 2] = [M::AV, M::MAX_RD_ATOMIC];
        for qp_type in [Rc, Uc, Ud, XrcIni, XrcTgt, Rd, Eec] {
            let first: &[M] =
                if matches!(qp_type, Ud | Rd) { &[M::PKEY, M::QKEY] } else { &[M::PKEY, M::ACCESS] };
            let again: &[M] = match qp_type {
                Ud | Rd => &[M::QKEY],
                Uc | XrcIni => &[M::ACCESS],
                Rc | XrcTgt | Eec => &[M::ACCESS, M::MIN_RNR_TIMER],
            };
            let (connect, start, drained) = match qp_type {
                Ud => (vec![], vec![M::SQ_PSN], vec![]),
                Rd => (vec![], vec![], vec![]),
                Uc => (CONNECT.to_vec(), vec![M::SQ_PSN], vec![M::AV]),
                Rc | Eec => (
                    [&CONNECT[..], &SERVED].concat(),
                    [&RETRIES[..], &STARTED].concat(),
                    [&RETRIES[..], &SERVED, &CHANGED].concat(),
                ),
                XrcIni => {
                    (CONNECT.to_vec(), [&RETRIES[..], &STARTED].concat(), [&RETRIES[..], &CHANGED].concat())
                }
                XrcTgt => (
                    [&CONNECT[..], &SERVED].concat(),
                    vec![M::TIMEOUT, M::SQ_PSN],
                    [&[M::AV, M::TIMEOUT][..], &SERVED].concat(),
                ),
            };
            let drained = [first, &drained].concat();
            let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
            for (from, to) in all.into_iter().flat_map(|from| all.map(|to| (from, to))) {
                let expected: Option<(&[M], &[M])> = match (from, to) {
                    (_, Reset | Error) => Some((&[], &[])),
                    (Reset, Init) => Some((first, &[])),
                    (Init, Init) => Some((&[], first)),
                    (Init, Rtr) => Some((&connect, first)),
                    (Rtr, Rts) => Some((&start, again)),
                    (_, Sqd) | (Sqd, Rts) if qp_type == Rd => None,
                    (Rts | Sqd, Rts) => Some((&[], again)),
                    (Rts, Sqd) => Some((&[], &[M::SQD_EVENT])),
                    (Sqd, Sqd) => Some((&[], &drained)),
                    (Sqe, Rts) if matches!(qp_type, Uc | Ud | Rd) => Some((&[], again)),
                    _ => None,
                };
                let of = |masks: &[M]| masks.iter().copied().collect::<M>();
                let expected = expected.map(|(required, optional)| (of(required), of(optional)));
                assert_eq!(transition(qp_type, from, to), expected, "{qp_type:?}: {from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn retry_counts_have_three_bits() {
        let attr =
            QpAttr { state: Some(QpState::Sqd), retry_cnt: Some(7), rnr_retry: Some(7), ..QpAttr::default() };
        assert_eq!(attr.check(QpType::Rc, QpState::Sqd), Ok(()));
        for attr in [QpAttr { retry_cnt: Some(8), ..attr }, QpAttr { rnr_retry: Some(8), ..attr }] {
            let refused = attr.check(QpType::Rc, QpState::Sqd);
            assert!(matches!(refused, Err(TransitionError::Value { value: 8, max: 7, .. })), "{refused:?}");
        }
    }

    #[test]
    fn rc_needs_its_path_to_become_ready_to_receive() {
        let attr = QpAttr { state: Some(QpState::Rtr), dest_qpn: Some(Qpn::new(9)), ..QpAttr::default() };
        let Err(TransitionError::Missing { missing, .. }) = attr.check(QpType::Rc, QpState::Init) else {
            panic!("must be refused");
        };
        assert!(
            missing.contains(QpAttrMask::AV | QpAttrMask::RQ_PSN) && !missing.contains(QpAttrMask::DEST_QPN)
        );
    }

    #[test]
    fn every_state_goes_to_reset_and_error() {
        use QpState::*;
        for t in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcIni, QpType::XrcTgt, QpType::Rd, QpType::Eec]
        {
            for from in [Reset, Init, Rtr, Rts, Sqd, Sqe, Error] {
                for to in [Reset, Error] {
                    let attr = QpAttr { state: Some(to), ..QpAttr::default() };
                    assert_eq!(attr.check(t, from), Ok(()));
                }
            }
        }
    }

    #[test]
    fn sqe_is_for_unreliable_services_only() {
        let attr = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        assert!(attr.check(QpType::Ud, QpState::Sqe).is_ok());
        for reliable in [QpType::Rc, QpType::XrcIni, QpType::XrcTgt, QpType::Eec] {
            assert!(attr.check(reliable, QpState::Sqe).is_err());
        }
    }

    #[test]
    fn reset_does_not_jump_to_rts() {
        let attr = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        let refused = attr.check(QpType::Rc, QpState::Reset).unwrap_err();
        assert!(matches!(refused, TransitionError::Illegal { .. }));
        assert!(
            refused.to_string().ends_with("from Reset to Rts; it goes to Reset, Init, Error"),
            "{refused}"
        );
    }
}
