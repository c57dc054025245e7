//! The creation of queue pairs, with their ports.

use hca_core::{DeviceError, MAX_MESSAGE_BYTES, PdHandle, QpCap, QpInit, QpPorts, QpType, Qpn, RecvPort};
use hca_turn_lock::Barrier;

use crate::drive::shared::Shared;
use crate::engine::Engine;
use crate::limits::GENERAL_SERVICES;
use crate::objects::qp::{QpRes, RecvQueue};
use crate::objects::qp_shared::QpShared;
use crate::objects::send_queue::SendQueue;
use crate::options::Progress;
use crate::ports::recv::QpRecvPort;
use crate::ports::send::QpSendPort;
use crate::queues::ring::{Cell, ring};
use crate::queues::slot::{RecvHeader, SendHeader};
use crate::sync::Arc;

/// The attributes that a queue pair is created with: an XRC initiator receives nothing.
fn as_created(init: &QpInit) -> Result<QpInit, DeviceError> {
    match init.qp_type {
        QpType::XrcTgt => Err(DeviceError::Unsupported { what: "an XRC target outside of an XRC domain" }),
        QpType::XrcIni => {
            let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap };
            Ok(QpInit { recv_cq: init.send_cq, srq: None, cap, ..*init })
        }
        QpType::Rd => Err(DeviceError::Unsupported { what: "a queue pair of RD outside of an RD domain" }),
        QpType::Eec => {
            Err(DeviceError::Unsupported { what: "an end-to-end context outside of an RD domain" })
        }
        QpType::Rc | QpType::Uc | QpType::Ud => Ok(*init),
    }
}

impl Engine {
    /// Creates the queue pair of number 1.
    pub(crate) fn create_general_services_qp(
        &mut self,
        hca: &Arc<Shared>,
        pd: PdHandle,
        init: &QpInit,
    ) -> Result<QpPorts, DeviceError> {
        if init.qp_type != QpType::Ud {
            return Err(DeviceError::Unsupported { what: "a general services queue pair that is connected" });
        }
        if self.core.general_services.is_some() {
            return Err(DeviceError::InUse { what: "general services queue pair", users: 1 });
        }
        let ports = self.create_qp(hca, pd, init, Some(GENERAL_SERVICES))?;
        self.core.general_services = Some(ports.handle.index);
        if let Some(desk) = self.network.desk() {
            desk.read(true);
        }
        Ok(ports)
    }

    pub(crate) fn create_qp(
        &mut self,
        hca: &Arc<Shared>,
        pd: PdHandle,
        init: &QpInit,
        number: Option<Qpn>,
    ) -> Result<QpPorts, DeviceError> {
        self.create_any_qp(hca, pd, &as_created(init)?, number)
    }

    /// The same, of any type that has queues.
    pub(crate) fn create_any_qp(
        &mut self,
        hca: &Arc<Shared>,
        pd: PdHandle,
        init: &QpInit,
        number: Option<Qpn>,
    ) -> Result<QpPorts, DeviceError> {
        let cap = init.cap;
        self.check_qp(pd, init)?;
        let recv_pd = self.recv_pd(pd, init)?;
        let (handle, qpn) = self.next_qp(number)?;
        let inline = (cap.max_inline as usize).div_ceil(size_of::<Cell>());
        // Lists of both kinds have two entries at least.
        let list = if cap.max_send_sge > 1 { cap.max_send_sge as usize } else { 0 };
        let named = matches!(init.qp_type, QpType::Ud | QpType::XrcIni | QpType::Rd);
        let cells = (cap.max_send_sge as usize).max(list + inline) + usize::from(named);
        let (send_ring, sq) = ring::<SendHeader>(cap.max_send_wr, cells);
        let may_be_near =
            self.network.has_near() && init.qp_type == QpType::Rc && hca.progress != Progress::Thread;
        let qp_shared = Arc::new(QpShared::new(handle, may_be_near));
        let (rq, recv) = match init.srq {
            Some(s) => (RecvQueue::Shared(s.index), None),
            None if init.qp_type == QpType::XrcIni => (RecvQueue::Own(ring::<RecvHeader>(0, 0).1), None),
            None => {
                let (ring, rq) = ring::<RecvHeader>(cap.max_recv_wr, cap.max_recv_sge as usize);
                let (hca, qp, max_sge) = (hca.clone(), qp_shared.clone(), cap.max_recv_sge);
                let port = QpRecvPort { barrier: Barrier::of_system(), hca, qp, ring, max_sge };
                (RecvQueue::Own(rq), Some(Box::new(port) as Box<dyn RecvPort>))
            }
        };
        let cqs = [init.send_cq.index, init.recv_cq.index];
        self.insert_qp(init.qp_type, qpn, QpRes::new(qp_shared.clone(), (pd, recv_pd), cap, cqs, sq, rq));
        *self.cq_users(init.send_cq)? += 1;
        *self.cq_users(init.recv_cq)? += 1;
        if let Some(srq) = init.srq.and_then(|s| self.core.tables.srqs.at_mut(s.index)) {
            srq.users += 1;
        }
        self.use_pd(pd)?.users += 1;
        let queue = SendQueue {
            qp: qp_shared,
            ring: send_ring,
            pd,
            qp_type: init.qp_type,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline,
            max_message: if init.qp_type == QpType::Ud {
                self.max_mtu.bytes()
            } else {
                MAX_MESSAGE_BYTES as u32
            },
            is_connected: matches!(init.qp_type, QpType::Rc | QpType::Uc),
            lane: None,
        };
        let send = QpSendPort { hca: hca.clone(), queue };
        Ok(QpPorts { handle, qpn, cap, send: Box::new(send), recv })
    }
}
