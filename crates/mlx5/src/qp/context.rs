//! A queue pair's attributes as the adapter's context has them, and the commands that set them.

use hca_core::{Access, DeviceError, Mtu, Pkey, QpAttr, QpState, QpType};
use hca_prm::command::qp::{
    Init2InitQpIn, Init2RtrQpIn, Qp2ErrIn, Qp2RstIn, Rst2InitQpIn, Rtr2RtsQpIn, Rts2RtsQpIn, SqErr2RtsQpIn,
};
use hca_prm::{Ads, AtomicMode, MtuCode, PathMigration, Qpc, ServiceType, optpar};

use crate::hca::Hca;
use crate::port::Path;

/// Messages between those that ask for an acknowledgement, as a power of two.
const LOG_ACK_REQ_FREQ: u32 = 8;
/// Ports of an adapter, as functions have one.
const PORT: u32 = 1;
/// The longest message of a datagram, as a power of two.
const LOG_UD_MAX: u32 = 12;

/// What of a queue pair is in each of its contexts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) pdn: u32,
    pub(crate) send_cqn: u32,
    pub(crate) recv_cqn: u32,
    pub(crate) counter_set: u32,
}

/// A service, in the adapter's numbers.
pub(crate) fn service(qp_type: QpType) -> ServiceType {
    match qp_type {
        QpType::Rc => ServiceType::Rc,
        QpType::Uc => ServiceType::Uc,
        QpType::Ud => ServiceType::Ud,
        QpType::XrcIni | QpType::XrcTgt => ServiceType::Xrc,
        QpType::Rd | QpType::Eec => unreachable!("the driver creates no reliable datagrams"),
    }
}

/// A state that the adapter tells.
pub(crate) fn state_of(code: u32) -> Option<QpState> {
    use hca_prm::QpState as S;
    Some(match S::from_code(code)? {
        S::Rst => QpState::Reset,
        S::Init => QpState::Init,
        S::Rtr => QpState::Rtr,
        S::Rts => QpState::Rts,
        S::SqEr => QpState::Sqe,
        S::Err => QpState::Error,
        S::Sqd | S::SqDraining => QpState::Sqd,
        _ => return None,
    })
}

/// The context for a transition that sets `attr`, and which of its fields are given beyond those that the transition
/// needs.
pub(crate) fn context(fixed: &Fixed, log_max_msg: u32, attr: &QpAttr, path: Option<&Path>) -> (Qpc, u32) {
    let mut optional = 0;
    let mut c = Qpc::new()
        .with(Qpc::ST, service(fixed.qp_type).code())
        .with(Qpc::PM_STATE, PathMigration::Migrated.code())
        .with(Qpc::PD, fixed.pdn)
        .with(Qpc::CQN_SND, fixed.send_cqn)
        .with(Qpc::CQN_RCV, fixed.recv_cqn)
        .with(Qpc::COUNTER_SET_ID, fixed.counter_set)
        .with(Qpc::LOG_ACK_REQ_FREQ, LOG_ACK_REQ_FREQ)
        .with(Qpc::RETRY_COUNT, attr.retry_cnt.unwrap_or(0).into())
        .with(Qpc::RNR_RETRY, attr.rnr_retry.unwrap_or(0).into())
        .with(Qpc::NEXT_SEND_PSN, attr.sq_psn.map_or(0, |p| p.raw()))
        .with(Qpc::NEXT_RCV_PSN, attr.rq_psn.map_or(0, |p| p.raw()))
        .with(Qpc::REMOTE_QPN, attr.dest_qpn.map_or(0, |q| q.raw()))
        .with(Qpc::LOG_SRA_MAX, log_down(attr.max_rd_atomic))
        .with(Qpc::LOG_RRA_MAX, log_up(attr.max_dest_rd_atomic));
    // What may be given in later transitions as well is said to be given.
    if let Some(access) = attr.access {
        optional |= optpar::RRE | optpar::RWE | optpar::RAE;
        c = c
            .with(Qpc::RRE, access.contains(Access::REMOTE_READ))
            .with(Qpc::RWE, access.contains(Access::REMOTE_WRITE))
            .with(Qpc::RAE, access.contains(Access::REMOTE_ATOMIC));
        if access.contains(Access::REMOTE_ATOMIC) {
            c.set(Qpc::ATOMIC_MODE, AtomicMode::IbSpec.code());
        }
    }
    if let Some(timer) = attr.min_rnr_timer {
        optional |= optpar::RNR_TIMEOUT;
        c = c.with(Qpc::MIN_RNR_NAK, timer.encoding().into());
    }
    if let Some(qkey) = attr.qkey {
        optional |= optpar::Q_KEY;
        c = c.with(Qpc::Q_KEY, qkey.raw());
    }
    if attr.pkey.is_some() {
        optional |= optpar::PKEY_INDEX;
    }
    let (mtu, log_max) = match fixed.qp_type {
        QpType::Ud => (Some(Mtu::B4096), LOG_UD_MAX),
        _ => (attr.path_mtu, log_max_msg),
    };
    if let Some(mtu) = mtu {
        c = c.with(Qpc::MTU, MtuCode::from(mtu).code()).with(Qpc::LOG_MSG_MAX, log_max.min(31));
    }
    // The path's place holds the index of the P_Key and the timeout as well.
    let ads = path
        .map_or(Ads::new(), Path::context)
        .with(Ads::VHCA_PORT_NUM, PORT)
        .with(Ads::ACK_TIMEOUT, attr.timeout.map_or(0, |t| t.encoding().into()));
    (c.with(Qpc::PRIMARY_ADDRESS_PATH, ads), optional)
}

/// What is to be set so that attributes mean what they say, where `all` are those that there are then: a responder that
/// takes no READs and atomics is one that may not be read from, since a count of none can't be told.
pub(crate) fn complete(attr: &QpAttr, all: &QpAttr) -> QpAttr {
    let mut given = *attr;
    if attr.access.is_some() || attr.max_dest_rd_atomic.is_some() {
        given.access = all.access;
        if all.max_dest_rd_atomic == Some(0) {
            given.access = all.access.map(|a| a - (Access::REMOTE_READ | Access::REMOTE_ATOMIC));
        }
    }
    given
}

/// Which optional fields a transition takes, of those that a service has: an adapter refuses others.
fn allowed(qp_type: QpType, from: QpState, to: QpState) -> u32 {
    let early = from == QpState::Init;
    let rights = match qp_type {
        QpType::Rc => optpar::RRE | optpar::RWE | optpar::RAE,
        QpType::Uc => optpar::RWE,
        QpType::Ud => optpar::Q_KEY,
        QpType::XrcIni | QpType::XrcTgt | QpType::Rd | QpType::Eec => 0,
    };
    // What a transition needs is always taken: INIT to RTR the timer.
    let timer = if qp_type == QpType::Rc && !early { optpar::RNR_TIMEOUT } else { 0 };
    match to {
        QpState::Init | QpState::Rtr if early => rights | optpar::PKEY_INDEX,
        QpState::Rts => rights | timer,
        _ => 0,
    }
}

/// As many as asked for at least, as a power of two: what a peer was told that it may do.
fn log_up(count: Option<u8>) -> u32 {
    u32::from(count.unwrap_or(0).max(1)).next_power_of_two().trailing_zeros()
}
/// As many as asked for at most, as a power of two: what a peer has said that it takes.
fn log_down(count: Option<u8>) -> u32 {
    count.unwrap_or(0).max(1).ilog2()
}

/// Gives the command for a transition, to the peer at the end of `path` if there is to be one.
pub(crate) fn command(
    hca: &Hca,
    fixed: &Fixed,
    [from, to]: [QpState; 2],
    attr: &QpAttr,
    path: Option<&Path>,
) -> Result<(), DeviceError> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqe};
    let (qpc, given) = context(fixed, hca.caps.log_max_msg, attr, path);
    let optional = given & allowed(fixed.qp_type, from, to);
    macro_rules! give {
        ($command:ident) => {{
            let input = $command::new()
                .with($command::QPN, fixed.qpn)
                .with($command::OPT_PARAM_MASK, optional)
                .with($command::QPC, qpc);
            hca.exec(&input).map(drop)
        }};
    }
    match (from, to) {
        (_, Reset) => hca.exec(&Qp2RstIn::new().with(Qp2RstIn::QPN, fixed.qpn)).map(drop),
        (_, Error) => hca.exec(&Qp2ErrIn::new().with(Qp2ErrIn::QPN, fixed.qpn)).map(drop),
        (Reset, Init) => give!(Rst2InitQpIn),
        (Init, Init) => give!(Init2InitQpIn),
        (Init, Rtr) => give!(Init2RtrQpIn),
        (Rtr, Rts) => give!(Rtr2RtsQpIn),
        (Rts, Rts) => give!(Rts2RtsQpIn),
        (Sqe, Rts) => give!(SqErr2RtsQpIn),
        // The interface has a command out of it, and none into it.
        _ => {
            let what = "draining send queues by the state SQD, for which these adapters have no command: \
                        post nothing, and wait for the completions";
            return Err(DeviceError::Unsupported { what });
        }
    }?;
    Ok(())
}

/// Refuses what the adapter or its port does not carry.
pub(crate) fn check(hca: &Hca, attr: &QpAttr) -> Result<(), DeviceError> {
    use hca_core::TransitionError::Value;
    let caps = &hca.caps;
    for (what, value, log) in [
        ("max_rd_atomic", attr.max_rd_atomic, caps.log_max_ra_req_qp),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic, caps.log_max_ra_res_qp),
    ] {
        let max = 1_u64 << log.min(7);
        if let Some(value) = value.map(u64::from).filter(|v| *v > max) {
            return Err(Value { what, value, max }.into());
        }
    }
    let active = hca.port.attr().active_mtu.bytes();
    if let Some(mtu) = attr.path_mtu.filter(|m| m.bytes() > active) {
        return Err(Value { what: "path_mtu", value: mtu.bytes().into(), max: active.into() }.into());
    }
    // A port's table has others where a subnet's manager put them there; they are not used.
    if attr.pkey.is_some_and(|p| p != Pkey::DEFAULT) {
        return Err(DeviceError::Unsupported { what: "partition keys but the default one, 0xffff" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hca_core::{AckTimeout, Gid, Psn, Qkey, Qpn, RnrTimer};

    use super::*;

    const FIXED: Fixed =
        Fixed { qpn: 0x43, qp_type: QpType::Rc, pdn: 5, send_cqn: 6, recv_cqn: 7, counter_set: 9 };

    fn path() -> Path {
        Path {
            ethernet: false,
            dgid: Gid([1; 16]),
            sgid_index: 2,
            dlid: 3,
            mac: [0; 6],
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            udp_sport: 0,
            sl: 0,
            rate: 0,
        }
    }

    #[test]
    fn all_attributes_of_a_connection_are_in_its_context() {
        let attr = QpAttr {
            dest_qpn: Some(Qpn::new(0x99)),
            path_mtu: Some(Mtu::B1024),
            rq_psn: Some(Psn::new(0x123)),
            sq_psn: Some(Psn::new(0x456)),
            max_rd_atomic: Some(5),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(RnrTimer::new(12)),
            timeout: Some(AckTimeout::new(14)),
            retry_cnt: Some(7),
            rnr_retry: Some(6),
            access: Some(Access::REMOTE_READ | Access::REMOTE_ATOMIC),
            ..QpAttr::default()
        };
        let (c, optional) = context(&FIXED, 30, &attr, Some(&path()));
        assert_eq!(optional, optpar::RRE | optpar::RWE | optpar::RAE | optpar::RNR_TIMEOUT);
        assert_eq!((c.get(Qpc::ST), c.get(Qpc::PM_STATE)), (0, 3));
        assert_eq!((c.get(Qpc::PD), c.get(Qpc::CQN_SND), c.get(Qpc::CQN_RCV)), (5, 6, 7));
        assert_eq!(c.get(Qpc::COUNTER_SET_ID), 9);
        assert_eq!((c.get(Qpc::REMOTE_QPN), c.get(Qpc::MTU), c.get(Qpc::LOG_MSG_MAX)), (0x99, 3, 30));
        assert_eq!((c.get(Qpc::NEXT_RCV_PSN), c.get(Qpc::NEXT_SEND_PSN)), (0x123, 0x456));
        assert_eq!((c.get(Qpc::LOG_SRA_MAX), c.get(Qpc::LOG_RRA_MAX)), (2, 4), "a peer takes 5, and not 8");
        assert_eq!(c.get(Qpc::ATOMIC_MODE), AtomicMode::IbSpec.code());
        assert_eq!((c.get(Qpc::MIN_RNR_NAK), c.get(Qpc::RETRY_COUNT), c.get(Qpc::RNR_RETRY)), (12, 7, 6));
        assert!(c.get(Qpc::RRE) && !c.get(Qpc::RWE) && c.get(Qpc::RAE));
        let ads = c.get(Qpc::PRIMARY_ADDRESS_PATH);
        assert_eq!((ads.get(Ads::ACK_TIMEOUT), ads.get(Ads::RLID), ads.get(Ads::VHCA_PORT_NUM)), (14, 3, 1));
    }

    #[test]
    fn a_datagram_queue_pair_carries_what_the_link_does() {
        let attr = QpAttr { qkey: Some(Qkey::new(0x1234)), ..QpAttr::default() };
        let fixed = Fixed { qp_type: QpType::Ud, ..FIXED };
        let (c, optional) = context(&fixed, 30, &attr, None);
        assert_eq!((c.get(Qpc::ST), c.get(Qpc::MTU), c.get(Qpc::LOG_MSG_MAX)), (2, 5, 12));
        assert_eq!((c.get(Qpc::Q_KEY), optional), (0x1234, optpar::Q_KEY));
    }

    #[test]
    fn a_responder_that_takes_no_reads_may_not_be_read_from() {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let before = QpAttr { access: Some(all), ..QpAttr::default() };
        let rtr = |n| QpAttr { max_dest_rd_atomic: Some(n), ..QpAttr::default() };
        let given = |n| complete(&rtr(n), &QpAttr { access: Some(all), ..rtr(n) }).access;
        assert_eq!((given(0), given(1)), (Some(Access::REMOTE_WRITE), Some(all)));
        assert_eq!(complete(&QpAttr::default(), &QpAttr { access: Some(all), ..rtr(0) }).access, None);
        assert_eq!(complete(&before, &before).access, Some(all), "nothing was said of READs so far");
    }

    #[test]
    fn what_peers_may_do_is_rounded_up_to_powers_of_two_and_what_is_asked_of_them_down() {
        let counts = [None, Some(0), Some(1), Some(2), Some(3), Some(128)];
        assert_eq!(counts.map(log_up), [0, 0, 0, 1, 2, 7]);
        assert_eq!(counts.map(log_down), [0, 0, 0, 1, 1, 7]);
    }

    #[test]
    fn a_transition_takes_what_its_service_has() {
        use QpState::{Init, Reset, Rtr, Rts, Sqe};
        use QpType::{Rc, Uc, Ud};
        let rights = optpar::RRE | optpar::RWE | optpar::RAE;
        let pkey = optpar::PKEY_INDEX;
        let [init, rtr] = [Init, Rtr].map(|to| [Rc, Uc, Ud].map(|service| allowed(service, Init, to)));
        assert_eq!(init, [rights | pkey, optpar::RWE | pkey, optpar::Q_KEY | pkey]);
        assert_eq!(rtr, init);
        for from in [Rtr, Rts, Sqe] {
            let rts = [Rc, Uc, Ud].map(|service| allowed(service, from, Rts));
            assert_eq!(rts, [rights | optpar::RNR_TIMEOUT, optpar::RWE, optpar::Q_KEY], "{from:?}");
        }
        assert_eq!(allowed(Rc, Reset, Init), 0, "all of it is needed");
    }

    #[test]
    fn every_state_but_suspended_has_a_name_of_ours() {
        use QpState::*;
        let states = [0, 1, 2, 3, 4, 5, 6, 7].map(|code| state_of(code).unwrap());
        // One that drains is one that is drained, to programs.
        assert_eq!(states, [Reset, Init, Rtr, Rts, Sqe, Sqd, Error, Sqd]);
        assert_eq!((state_of(9), state_of(8), state_of(15)), (None, None, None));
    }
}
