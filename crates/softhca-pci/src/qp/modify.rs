//! Commands that change a queue pair's state or attributes.

use hca_core::{
    Access, AckTimeout, AddressVector, Device, DeviceError, Gid, Lid, Pkey, Psn, Qkey, QpAttr, QpHandle,
    QpState, QpType, Qpn, RnrTimer,
};
use hca_prm::command::qp::{DestroyQpIn, Rst2InitQpIn};
use hca_prm::{Ads, CmdStatus, MtuCode, Opcode, QpState as StateCode, Qpc, optpar};
use softhca::SoftHca;

use super::Service;
use crate::command::{Output, parse};
use crate::function::Function;
use crate::objects::{Objects, gone, status};
use crate::port::directory::{Connection, Directory};

impl Objects {
    /// Carries out a command that changes a queue pair's state or attributes.
    pub(crate) fn modify_qp(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        optional: u32,
        asked: &Qpc,
        directory: &mut Directory,
    ) -> Result<(), CmdStatus> {
        self.activate(qpn);
        let qp = self.qps.get(&qpn).ok_or(CmdStatus::BadRes)?;
        let (froms, to) = transition(opcode).ok_or(CmdStatus::BadOp)?;
        if !froms.is_empty() && !froms.contains(&self.state_of(qp)?) {
            return Err(CmdStatus::BadQpState);
        }
        let rate = asked.get(Qpc::PRIMARY_ADDRESS_PATH).get(Ads::STAT_RATE);
        if optional & foreign(qp.service) != 0 || (opcode == Opcode::INIT2RTR_QP && rate != 0) {
            return Err(CmdStatus::BadParam);
        }
        if to == QpState::Reset {
            self.take_all_completions(directory);
        }
        self.leave_counters(qpn);
        let Self { hca, qps, addresses, has_dropped_packets, .. } = self;
        let qp = qps.get_mut(&qpn).ok_or(CmdStatus::BadRes)?;
        let mut context = qp.context;
        set_fields(opcode, optional, asked, &mut context);
        if let Service::Real(qp_type) = qp.service {
            let mut attr = attributes(opcode, qp_type, optional, &context, directory)?;
            let in_sqe = opcode == Opcode::SQERR2RTS_QP
                && hca.query_qp(qp.handle).map_err(status)?.state == QpState::Rts;
            // Before it hears anybody.
            if let (Some(av), Some(remote)) = (attr.av, attr.dest_qpn) {
                let (handle, remote) = (qp.handle, remote.raw());
                let here = av.dgid == directory.own();
                let strangers = directory.connect(qpn, Connection { handle, remote, here });
                for stranger in &strangers {
                    let attr = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
                    gone("connection of a stranger", hca.modify_qp(*stranger, &attr));
                }
                if !strangers.is_empty() {
                    drop_packets_under_way(hca);
                    *has_dropped_packets = true;
                }
            }
            // An error that the adapter knows nothing of ends here.
            if !in_sqe && let Err(e) = modify(hca, qp.handle, &mut attr, directory) {
                if attr.av.is_some() {
                    directory.disconnect(qpn);
                }
                return Err(status(e));
            }
        } else {
            qp.inert_state = to;
        }
        qp.context = context;
        qp.in_reset = to == QpState::Reset;
        match to {
            QpState::Reset => {
                directory.disconnect(qpn);
                if qp.is_datagram() {
                    addresses.in_flight -= qp.held.min(addresses.in_flight);
                }
                qp.empty();
            }
            QpState::Error => qp.send_failed = true,
            QpState::Rts if opcode == Opcode::SQERR2RTS_QP => qp.send_failed = false,
            _ => {}
        }
        Ok(())
    }
}

/// From which states a command leads, all where none is named, and to which.
fn transition(opcode: Opcode) -> Option<(&'static [StateCode], QpState)> {
    use StateCode as S;
    Some(match opcode {
        Opcode::RST2INIT_QP => (&[S::Rst], QpState::Init),
        Opcode::INIT2INIT_QP => (&[S::Init], QpState::Init),
        Opcode::INIT2RTR_QP => (&[S::Init], QpState::Rtr),
        Opcode::RTR2RTS_QP => (&[S::Rtr], QpState::Rts),
        Opcode::RTS2RTS_QP => (&[S::Rts], QpState::Rts),
        Opcode::SQERR2RTS_QP => (&[S::SqEr], QpState::Rts),
        Opcode::SQD_RTS_QP => (&[S::Sqd], QpState::Rts),
        Opcode::QP_2ERR => (&[], QpState::Error),
        Opcode::QP_2RST => (&[], QpState::Reset),
        _ => return None,
    })
}

/// Which optional fields a service has not: who names one is refused.
fn foreign(service: Service) -> u32 {
    let reliable = optpar::RRE
        | optpar::RAE
        | optpar::RNR_TIMEOUT
        | optpar::SRA_MAX
        | optpar::RRA_MAX
        | optpar::RETRY_COUNT
        | optpar::RNR_RETRY
        | optpar::ACK_TIMEOUT;
    match service {
        Service::Real(QpType::Rc | QpType::XrcIni | QpType::XrcTgt) => optpar::Q_KEY,
        Service::Real(QpType::Rd | QpType::Eec) => unreachable!("no command creates reliable datagrams"),
        Service::Real(QpType::Uc) => optpar::Q_KEY | reliable,
        Service::Real(QpType::Ud) => {
            optpar::RWE | optpar::PRIMARY_ADDR_PATH | optpar::ALT_ADDR_PATH | optpar::PM_STATE | reliable
        }
        Service::Inert { .. } => 0,
    }
}

/// Sets those fields of a context that a command sets.
fn set_fields(opcode: Opcode, optional: u32, asked: &Qpc, context: &mut Qpc) {
    let set = |context: &mut Qpc, bit: u32, always: bool, fields: &[hca_prm::Field<Qpc, u32>]| {
        if always || optional & bit != 0 {
            for field in fields {
                context.set(*field, asked.get(*field));
            }
        }
    };
    let flags = |context: &mut Qpc, always: bool| {
        for (bit, field) in [(optpar::RRE, Qpc::RRE), (optpar::RWE, Qpc::RWE), (optpar::RAE, Qpc::RAE)] {
            if always || optional & bit != 0 {
                context.set(field, asked.get(field));
            }
        }
    };
    let first = opcode == Opcode::RST2INIT_QP;
    let (rtr, rts) = (opcode == Opcode::INIT2RTR_QP, opcode == Opcode::RTR2RTS_QP);
    flags(context, first);
    set(context, optpar::Q_KEY, first, &[Qpc::Q_KEY]);
    set(context, optpar::PM_STATE, first, &[Qpc::PM_STATE]);
    set(context, optpar::COUNTER_SET_ID, first, &[Qpc::COUNTER_SET_ID]);
    set(context, optpar::RNR_TIMEOUT, rtr, &[Qpc::MIN_RNR_NAK]);
    set(context, optpar::RRA_MAX, rtr, &[Qpc::LOG_RRA_MAX]);
    set(context, optpar::SRA_MAX, rts, &[Qpc::LOG_SRA_MAX]);
    set(context, optpar::RETRY_COUNT, rts, &[Qpc::RETRY_COUNT]);
    set(context, optpar::RNR_RETRY, rts, &[Qpc::RNR_RETRY]);
    set(context, 0, rts, &[Qpc::NEXT_SEND_PSN, Qpc::LOG_ACK_REQ_FREQ]);
    set(context, 0, rtr, &[Qpc::MTU, Qpc::LOG_MSG_MAX, Qpc::REMOTE_QPN, Qpc::NEXT_RCV_PSN]);
    let asked_path = asked.get(Qpc::PRIMARY_ADDRESS_PATH);
    let path = context.get(Qpc::PRIMARY_ADDRESS_PATH);
    let timeout = asked_path.get(Ads::ACK_TIMEOUT);
    let path = match opcode {
        Opcode::INIT2RTR_QP => {
            let (pkey, port) = (path.get(Ads::PKEY_INDEX), path.get(Ads::VHCA_PORT_NUM));
            asked_path.with(Ads::PKEY_INDEX, pkey).with(Ads::VHCA_PORT_NUM, port)
        }
        Opcode::RST2INIT_QP => path
            .with(Ads::PKEY_INDEX, asked_path.get(Ads::PKEY_INDEX))
            .with(Ads::VHCA_PORT_NUM, asked_path.get(Ads::VHCA_PORT_NUM)),
        Opcode::RTR2RTS_QP => path.with(Ads::ACK_TIMEOUT, timeout),
        _ if optional & optpar::ACK_TIMEOUT != 0 => path.with(Ads::ACK_TIMEOUT, timeout),
        _ => path,
    };
    context.set(Qpc::PRIMARY_ADDRESS_PATH, path);
}

/// The rights of peers through a queue pair.
fn access(context: &Qpc) -> Access {
    [(Qpc::RRE, Access::REMOTE_READ), (Qpc::RWE, Access::REMOTE_WRITE), (Qpc::RAE, Access::REMOTE_ATOMIC)]
        .into_iter()
        .filter(|(field, _)| context.get(*field))
        .map(|(_, access)| access)
        .collect()
}

/// By what a path leads on: by its GID, if it has one, or by its LID; the other one is none.
pub(crate) fn named(gid: [u8; 16], grh: bool, lid: u32) -> (Gid, Lid) {
    if gid != [0; 16] && (grh || lid == 0) {
        (Gid(gid), Lid::new(0))
    } else {
        (Gid::default(), Lid::new(lid as u16))
    }
}

/// Where a path leads. The addresses of functions here lead to the adapter's own.
pub(crate) fn destination(directory: &Directory, (gid, lid): (Gid, Lid)) -> Option<Gid> {
    if gid == Gid::default() { directory.route_lid(lid) } else { Some(directory.route_gid(gid)) }
}

/// A queue pair that answers nothing: the adapter gives no queue pair the number of management, and drops what is for
/// one that it has not.
const NOBODY: Qpn = Qpn::new(0);

/// To whom a context connects its queue pair.
fn peer(context: &Qpc, directory: &Directory) -> (AddressVector, Qpn) {
    let path = context.get(Qpc::PRIMARY_ADDRESS_PATH);
    let (gid, lid) = (path.get(Ads::RGID_RIP), path.get(Ads::RLID));
    let Some(dgid) = destination(directory, named(gid, path.get(Ads::GRH), lid)) else {
        return nobody(directory);
    };
    let mut traffic_class = path.get(Ads::TCLASS) as u8;
    if path.rmac() != [0; 6] {
        // RoCE has a place of its own for the class of service.
        traffic_class = (path.get(Ads::DSCP) << 2) as u8 | traffic_class & 3;
    }
    let av = AddressVector {
        dgid,
        flow_label: path.get(Ads::FLOW_LABEL),
        hop_limit: path.get(Ads::HOP_LIMIT) as u8,
        traffic_class,
        ..AddressVector::default()
    };
    (av, Qpn::new(context.get(Qpc::REMOTE_QPN)))
}

/// The peer of who is connected to an address that nobody has: packets leave, and no answer comes.
fn nobody(directory: &Directory) -> (AddressVector, Qpn) {
    (AddressVector { dgid: directory.own(), ..AddressVector::default() }, NOBODY)
}

/// Takes packets that queue pairs of this adapter have sent to it, while the receiver is not ready and drops them.
fn drop_packets_under_way(hca: &SoftHca) {
    const TURNS: usize = 64;
    for _ in 0..TURNS {
        if !hca.turn() {
            break;
        }
    }
}

/// Has the adapter change a queue pair. An adapter in silicon does not ask whether there is a way to the peer, so one
/// to which the network has none is nobody.
fn modify(hca: &SoftHca, qp: QpHandle, attr: &mut QpAttr, directory: &Directory) -> Result<(), DeviceError> {
    match hca.modify_qp(qp, attr) {
        Err(e @ (DeviceError::NoPath { .. } | DeviceError::Io { .. })) if attr.av.is_some() => {
            tracing::debug!("a connection leads nowhere: {e}");
            let (av, remote) = nobody(directory);
            (attr.av, attr.dest_qpn) = (Some(av), Some(remote));
            hca.modify_qp(qp, attr)
        }
        done => done,
    }
}

/// The attributes of a change of state, for the adapter.
fn attributes(
    opcode: Opcode,
    qp_type: QpType,
    optional: u32,
    context: &Qpc,
    directory: &Directory,
) -> Result<QpAttr, CmdStatus> {
    let (_, to) = transition(opcode).ok_or(CmdStatus::BadOp)?;
    let mut attr = QpAttr { state: Some(to), ..QpAttr::default() };
    if matches!(to, QpState::Reset | QpState::Error) {
        return Ok(attr);
    }
    let connected = qp_type != QpType::Ud;
    // The ends of a reliable service that it has.
    let sends = matches!(qp_type, QpType::Rc | QpType::XrcIni);
    let receives = matches!(qp_type, QpType::Rc | QpType::XrcTgt);
    let entering = matches!(opcode, Opcode::RST2INIT_QP | Opcode::INIT2INIT_QP);
    if entering {
        attr.pkey = Some(Pkey::DEFAULT);
    }
    if connected && (entering || optional & (optpar::RRE | optpar::RWE | optpar::RAE) != 0) {
        attr.access = Some(access(context));
    }
    if !connected && (entering || optional & optpar::Q_KEY != 0) {
        attr.qkey = Some(Qkey::new(context.get(Qpc::Q_KEY)));
    }
    let rnr = RnrTimer::new(context.get(Qpc::MIN_RNR_NAK) as u8);
    if opcode == Opcode::INIT2RTR_QP && connected {
        let mtu = MtuCode::from_code(context.get(Qpc::MTU)).and_then(MtuCode::mtu);
        attr.path_mtu = Some(mtu.ok_or(CmdStatus::BadParam)?);
        let (av, remote) = peer(context, directory);
        (attr.av, attr.dest_qpn) = (Some(av), Some(remote));
        attr.rq_psn = Some(Psn::new(context.get(Qpc::NEXT_RCV_PSN)));
        if receives {
            attr.max_dest_rd_atomic = Some(1 << context.get(Qpc::LOG_RRA_MAX));
            attr.min_rnr_timer = Some(rnr);
        }
    }
    if opcode == Opcode::RTR2RTS_QP {
        attr.sq_psn = Some(Psn::new(context.get(Qpc::NEXT_SEND_PSN)));
        if sends || receives {
            let timeout = context.get(Qpc::PRIMARY_ADDRESS_PATH).get(Ads::ACK_TIMEOUT);
            attr.timeout = Some(AckTimeout::new(timeout as u8));
        }
        if sends {
            attr.retry_cnt = Some(context.get(Qpc::RETRY_COUNT) as u8);
            attr.rnr_retry = Some(context.get(Qpc::RNR_RETRY) as u8);
            attr.max_rd_atomic = Some(1 << context.get(Qpc::LOG_SRA_MAX));
        }
    }
    let later = !entering && opcode != Opcode::INIT2RTR_QP;
    if receives && later && optional & optpar::RNR_TIMEOUT != 0 {
        attr.min_rnr_timer = Some(rnr);
    }
    Ok(attr)
}

impl Function {
    /// All commands that change a queue pair's state or attributes, told apart by `opcode`.
    pub(crate) fn modify_qp(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        _out: &mut Output,
    ) -> Result<(), CmdStatus> {
        let (qpn, optional, asked) = if matches!(opcode, Opcode::QP_2ERR | Opcode::QP_2RST) {
            (parse::<DestroyQpIn>(input)?.get(DestroyQpIn::QPN), 0, Qpc::new())
        } else {
            // The layouts of all of these are alike.
            let command: Rst2InitQpIn = parse(input)?;
            let optional = command.get(Rst2InitQpIn::OPT_PARAM_MASK);
            (command.get(Rst2InitQpIn::QPN), optional, command.get(Rst2InitQpIn::QPC))
        };
        let mut directory = self.directory.lock();
        let done = self.objects.modify_qp(opcode, qpn, optional, &asked, &mut directory);
        if std::mem::take(&mut self.objects.has_dropped_packets) {
            self.commands.charge_all();
        }
        done
    }
}
