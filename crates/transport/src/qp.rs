//! The queue pair: its states, its attributes, and the dispatch of its inputs.

mod messages;

use hca_core::wire::{Packet, PacketOp, TransportKind};
use hca_core::{Instant, Mtu, Pkey, QpAttr, QpState, QpType, Qpn, TransitionError, WcStatus};

use crate::completer::is_response;
use crate::connection::{Connection, Path, Variant};
use crate::inbound::failed_recv;
use crate::message::Messages;
use crate::requester::{NEVER, flush};
use crate::responder::Fatal;
use crate::uc::Unreliable;
use crate::ud::Datagram;
use crate::{Count, Host, QpEvent, TxSink};

/// The configuration of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Service.
    pub qp_type: QpType,
    /// The number.
    pub qpn: Qpn,
    /// The most outstanding READs and atomics, on either side; `max_rd_atomic` and `max_dest_rd_atomic` beyond it are
    /// refused.
    pub max_rd_atomic_limit: u8,
    /// Depth of the send queue.
    pub max_send_wr: u32,
    /// The most bytes in flight to the peer: the size of its receive buffer.
    pub window_bytes: u32,
    /// The largest path MTU of the port, which is also the limit of a datagram.
    pub port_mtu: Mtu,
}

/// The data that came with a packet beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxMeta<'a> {
    /// Whether the packet met congestion on its way (CE mark in its IP header).
    pub ce: bool,
    /// The global route header as a UD receive shows it (over IPv4 the IP header in the last 20 bytes). Only UD uses
    /// it; `None` reads as zeros.
    pub grh: Option<&'a [u8; 40]>,
}

/// An acknowledgement that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckOwed {
    /// Whether a receive request was completed since the last acknowledgement left. The program may then answer soon,
    /// so the acknowledgement may wait one turn to share the answer's train. Otherwise it leaves at the end of this
    /// turn.
    pub delivered: bool,
}

/// The services that a queue pair needs from its adapter now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Whether [`Qp::poll_transmit`] may have packets.
    pub transmit: bool,
    /// The acknowledgement that is owed, for [`Qp::poll_ack`].
    pub ack: Option<AckOwed>,
    /// The time at which [`Qp::handle_timeout`] is due.
    pub deadline: Option<Instant>,
}

/// The present send window of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    /// Bytes that may be in flight.
    pub cwnd_bytes: u32,
    /// Bytes in flight.
    pub inflight_bytes: u32,
    /// Smoothed round trip; 0 before the first sample.
    pub srtt_ns: u64,
    /// The variation of the round trip.
    pub rttvar_ns: u64,
}

/// What a queue pair is beyond its state, once it can receive.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a queue pair keeps its variant; a box would cost each packet a miss"
)]
pub(crate) enum Service {
    /// RESET and INIT; the index of the next send request.
    Unconnected {
        index: u32,
    },
    Rc(Connection),
    /// RC with a peer on this machine.
    Local(Messages),
    Uc(Unreliable),
    Ud(Datagram),
}

/// A queue pair as a state machine.
#[derive(Debug)]
pub struct Qp {
    config: QpConfig,
    state: QpState,
    attr: QpAttr,
    pkey: Pkey,
    service: Service,
    /// SQD is to raise its event once the queue has drained.
    drain_event: bool,
    /// The event of the first packet in RTR was raised.
    established: bool,
    /// The next connection goes by messages.
    by_messages: bool,
}

impl Qp {
    /// A queue pair in state RESET.
    pub fn new(config: &QpConfig) -> Self {
        Self {
            config: *config,
            state: QpState::Reset,
            attr: QpAttr { state: Some(QpState::Reset), ..QpAttr::default() },
            pkey: Pkey::default(),
            service: Service::Unconnected { index: 0 },
            drain_event: false,
            established: false,
            by_messages: false,
        }
    }
    /// Sets whether the next connection goes by messages, as between adapters of one machine; both ends must agree. To
    /// be called before the transition to RTR. RC and XRC only.
    pub fn use_messages(&mut self, yes: bool) {
        self.by_messages = yes && Self::may_use_messages(self.config.qp_type);
    }
    /// Whether a connection of this service may go by messages. An end-to-end context goes by packets.
    pub const fn may_use_messages(qp_type: QpType) -> bool {
        matches!(qp_type, QpType::Rc | QpType::XrcIni | QpType::XrcTgt)
    }
    /// Whether the connection goes by messages.
    #[inline]
    pub fn uses_messages(&self) -> bool {
        matches!(self.service, Service::Local(_))
    }
    /// Whether the peer on this machine has told a P_Key that does not match.
    pub fn refuses_peer(&self) -> bool {
        matches!(&self.service, Service::Local(m) if m.responder.refuses_peer())
    }
    /// The service of the queue pair.
    pub fn qp_type(&self) -> QpType {
        self.config.qp_type
    }
    /// The number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }
    pub(crate) fn service(&self) -> &Service {
        &self.service
    }
    pub(crate) fn service_mut(&mut self) -> &mut Service {
        &mut self.service
    }
    /// Whether an event is due once the send queue has drained.
    pub(crate) fn awaits_drain(&self) -> bool {
        self.drain_event
    }
    /// The state of the queue pair.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// All attributes that were set, and the state.
    pub fn attr(&self) -> &QpAttr {
        &self.attr
    }

    /// Sets attributes and changes the state. To ERROR it completes all requests as flushed, those of the send queue
    /// first; to RESET it discards all state, and the host drops its rings itself.
    ///
    /// # Errors
    /// The transition's rules, or a value beyond the limits of [`QpConfig`].
    pub fn modify<H: Host>(
        &mut self,
        _now: Instant,
        attr: &QpAttr,
        host: &mut H,
    ) -> Result<(), TransitionError> {
        attr.check(self.config.qp_type, self.state)?;
        self.check_limits(attr)?;
        let from = self.state;
        let to = attr.state.unwrap_or(from);
        self.attr.merge(attr);
        self.pkey = self.attr.pkey.unwrap_or_default();
        match (from, to) {
            (_, QpState::Reset) => {
                *self = Self::new(&self.config);
                // Its requests are dropped, and their indices are not used again.
                self.service = Service::Unconnected { index: host.sq_posted() };
            }
            (_, QpState::Error) => self.enter_error(host),
            (QpState::Reset, QpState::Init) => {
                self.service = Service::Unconnected { index: host.sq_posted() };
            }
            (QpState::Init, QpState::Rtr) => self.connect(),
            (QpState::Rtr, QpState::Rts) => self.start(),
            _ => self.update(),
        }
        self.set_state(to);
        if from == QpState::Rts && to == QpState::Sqd {
            self.drain_event = attr.sqd_event.unwrap_or(false);
            self.check_drained(host);
        }
        Ok(())
    }

    fn check_limits(&self, attr: &QpAttr) -> Result<(), TransitionError> {
        let limit = u64::from(self.config.max_rd_atomic_limit);
        let mtu = u64::from(self.config.port_mtu.bytes());
        let checks = [
            ("max_rd_atomic", attr.max_rd_atomic.map(u64::from), limit),
            ("max_dest_rd_atomic", attr.max_dest_rd_atomic.map(u64::from), limit),
            ("path_mtu", attr.path_mtu.map(|m| m.bytes().into()), mtu),
        ];
        for (what, value, max) in checks {
            if let Some(value) = value.filter(|v| *v > max) {
                return Err(TransitionError::Value { what, value, max });
            }
        }
        Ok(())
    }
    fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.attr.state = Some(state);
    }
    /// To RTR: the peer is known.
    fn connect(&mut self) {
        let index = self.sq_index();
        let (config, attr) = (&self.config, &self.attr);
        self.service = match config.qp_type {
            QpType::Rc | QpType::XrcIni | QpType::XrcTgt if self.by_messages => {
                Service::Local(Messages::new(config, attr, index))
            }
            QpType::Rc | QpType::XrcIni | QpType::XrcTgt | QpType::Eec => {
                Service::Rc(Connection::new(config, attr, index))
            }
            // Its messages go by end-to-end contexts.
            QpType::Rd => Service::Unconnected { index },
            QpType::Uc => Service::Uc(Unreliable::new(config, attr, index)),
            QpType::Ud => {
                let qkey = attr.qkey.unwrap_or_default();
                Service::Ud(Datagram::new(config.qpn, self.pkey, qkey, config.port_mtu.bytes(), index))
            }
        };
    }
    /// To RTS.
    fn start(&mut self) {
        let psn = self.attr.sq_psn.unwrap_or_default();
        match &mut self.service {
            Service::Rc(c) => c.start(&self.config, &self.attr, psn),
            Service::Local(m) => m.start(&self.config, &self.attr),
            Service::Uc(u) => {
                u.path = Path::new(&self.config, &self.attr);
                u.start(psn);
            }
            Service::Ud(d) => {
                d.qkey = self.attr.qkey.unwrap_or_default();
                d.start(psn);
            }
            Service::Unconnected { .. } => {}
        }
    }
    /// Attributes changed, or sending may go on.
    fn update(&mut self) {
        match &mut self.service {
            Service::Rc(c) => c.update(&self.config, &self.attr),
            Service::Local(m) => m.update(&self.config, &self.attr),
            Service::Uc(u) => {
                u.path = Path::new(&self.config, &self.attr);
                u.posted();
            }
            Service::Ud(d) => {
                (d.pkey, d.qkey) = (self.pkey, self.attr.qkey.unwrap_or_default());
                d.posted();
            }
            Service::Unconnected { .. } => {}
        }
    }
    fn sq_index(&self) -> u32 {
        match &self.service {
            Service::Unconnected { index } => *index,
            Service::Rc(c) => c.requester.una.index,
            Service::Local(m) => m.requester.oldest(),
            Service::Uc(u) => u.index,
            Service::Ud(d) => d.index,
        }
    }
    fn check_drained<H: Host>(&mut self, host: &mut H) {
        if !self.drain_event || self.state != QpState::Sqd {
            return;
        }
        let drained = match &self.service {
            Service::Rc(c) => c.requester.is_drained(),
            Service::Local(m) => m.requester.is_drained(),
            Service::Uc(u) => u.is_drained(),
            Service::Ud(_) | Service::Unconnected { .. } => true,
        };
        if drained {
            self.drain_event = false;
            host.event(QpEvent::SqDrained);
        }
    }

    /// Takes one packet that is for this queue pair's number.
    #[inline]
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Instant,
        rx: &RxMeta<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = packet.bth();
        if !matches!(self.state, QpState::Rts | QpState::Rtr | QpState::Sqd | QpState::Sqe) {
            host.count(Count::DroppedState);
            return;
        }
        if !self.pkey.matches(bth.pkey()) {
            host.count(Count::DroppedPkey);
            return;
        }
        let opcode = packet.opcode();
        let (Some(kind), Some(op)) = (opcode.kind(), opcode.op()) else {
            self.handle_cnp(now, opcode.kind(), host);
            return;
        };
        if rx.ce || bth.fecn() || bth.becn() {
            self.handle_marks(now, rx.ce || bth.fecn(), bth.becn(), host);
        }
        let fits = match (kind, &self.service) {
            (TransportKind::Rc, Service::Rc(c)) => c.path.variant == Variant::Plain,
            (_, Service::Rc(c)) => c.path.variant.takes(kind, is_response(op)),
            (TransportKind::Uc, Service::Uc(_)) | (TransportKind::Ud, Service::Ud(_)) => true,
            _ => false,
        };
        if !fits {
            host.count(Count::DroppedState);
            return;
        }
        self.dispatch(now, rx, op, packet, host);
    }

    #[inline]
    fn dispatch<H: Host>(
        &mut self,
        now: Instant,
        rx: &RxMeta<'_>,
        op: PacketOp,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let rtr = self.state == QpState::Rtr;
        match &mut self.service {
            Service::Rc(c) if is_response(op) => {
                if rtr {
                    host.count(Count::DroppedState);
                    return;
                }
                match c.requester.handle_response(now, &c.path, op, packet, host) {
                    Ok(()) if self.drain_event => self.check_drained(host),
                    Ok(()) => {}
                    Err(status) => self.fail_send(status, host),
                }
            }
            Service::Rc(c) => {
                if rtr && !self.established {
                    self.established = true;
                    host.event(QpEvent::CommEstablished);
                }
                if let Err(fatal) = c.responder.handle_request(&c.path, op, packet, host) {
                    self.fail_request(fatal, host);
                }
            }
            Service::Uc(u) => {
                if rtr && !self.established {
                    self.established = true;
                    host.event(QpEvent::CommEstablished);
                }
                if let Err(status) = u.handle_packet(op, packet, host) {
                    self.fail_recv(status, host);
                }
            }
            Service::Ud(d) => {
                if let Err(status) = d.handle_packet(rx, packet, host) {
                    self.fail_recv(status, host);
                }
            }
            Service::Local(_) | Service::Unconnected { .. } => host.count(Count::DroppedState),
        }
    }

    #[cold]
    fn handle_cnp<H: Host>(&mut self, now: Instant, kind: Option<TransportKind>, host: &mut H) {
        if kind != Some(TransportKind::Cnp) {
            host.count(Count::DroppedInvalid);
            return;
        }
        host.count(Count::CnpReceived);
        self.handle_marks(now, false, true, host);
    }
    /// `forward`: a packet to here met congestion, and the peer is to be told; `backward`: the peer tells us.
    #[cold]
    fn handle_marks<H: Host>(&mut self, now: Instant, forward: bool, backward: bool, host: &mut H) {
        let now_ns = now.as_nanos();
        match &mut self.service {
            Service::Rc(c) => {
                if forward {
                    c.cnp.marked(now_ns, host);
                }
                if backward {
                    c.requester.marked(now_ns);
                }
            }
            Service::Uc(u) if forward => u.cnp.marked(now_ns, host),
            // Whom to tell of a datagram's congestion is known to the program only.
            Service::Ud(_) if forward => host.count(Count::EcnMarked),
            _ => {}
        }
    }

    /// Handles newly posted send or receive requests.
    #[inline]
    pub fn handle_posted<H: Host>(&mut self, _now: Instant, host: &mut H) {
        match self.state {
            QpState::Error => self.flush(WcStatus::WrFlushed, host),
            QpState::Sqe => self.flush_send(WcStatus::WrFlushed, host),
            _ => match &mut self.service {
                Service::Rc(c) => c.requester.posted(),
                Service::Local(m) => m.requester.posted(),
                Service::Uc(u) => u.posted(),
                Service::Ud(d) => d.posted(),
                Service::Unconnected { .. } => {}
            },
        }
    }

    /// Handles timers that are due; to be called at [`next_deadline`](Self::next_deadline). Early calls are harmless.
    pub fn handle_timeout<H: Host>(&mut self, now: Instant, host: &mut H) {
        if let Service::Rc(c) = &mut self.service
            && now.as_nanos() >= c.requester.deadline_ns()
            && let Err(status) = c.requester.timeout(now, &c.path, host)
        {
            self.fail_send(status, host);
        }
        if let Service::Local(m) = &mut self.service
            && let Err(status) = m.requester.timeout(now, &m.path, host)
        {
            self.fail_send(status, host);
        }
    }
    /// The work for the engine after an input, or after packets were taken.
    #[inline(always)]
    pub fn wants(&self) -> Wants {
        let sends = matches!(self.state, QpState::Rts | QpState::Sqd);
        let tells = self.state != QpState::Error;
        let (transmit, ack, at) = match &self.service {
            Service::Rc(c) => {
                let answers = c.responder.wants_transmit();
                let transmit = sends && c.requester.wants_transmit() || answers || c.cnp.is_owed() && tells;
                (transmit, c.responder.ack_owed(), c.requester.deadline_ns())
            }
            Service::Local(m) => {
                let transmit = sends && m.requester.wants_transmit() || m.responder.wants_transmit();
                (transmit, m.responder.ack_owed(), m.requester.deadline_ns())
            }
            Service::Uc(u) => (sends && u.wants_transmit() || u.cnp.is_owed() && tells, None, NEVER),
            Service::Ud(d) => (sends && d.wants_transmit(), None, NEVER),
            Service::Unconnected { .. } => (false, None, NEVER),
        };
        Wants { transmit, ack, deadline: (at != NEVER).then(|| Instant::from_nanos(at)) }
    }
    /// The time at which [`handle_timeout`](Self::handle_timeout) is due.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wants().deadline
    }
    /// Whether [`poll_transmit`](Self::poll_transmit) may have packets; `false` while the queue pair only waits for
    /// acknowledgements, credits or a timer.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.wants().transmit
    }

    /// Sends up to `max_packets` packets and returns their number; fewer if there are no more, or if the sink is full.
    /// Plain acknowledgements are left to [`poll_ack`](Self::poll_ack).
    pub fn poll_transmit<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        host: &mut H,
        tx: &mut T,
        max_packets: usize,
    ) -> usize {
        let mut sent = 0;
        if self.state != QpState::Error {
            match self.poll_cnp(host, tx, max_packets) {
                Some(n) => sent += n,
                None => return 0,
            }
        }
        let left = max_packets - sent;
        let (n, outcome) = match &mut self.service {
            Service::Rc(c) if c.responder.wants_transmit() => c.responder.poll(&c.path, host, tx, left),
            Service::Local(m) if m.responder.wants_transmit() => m.responder.poll(&m.path, host, tx, left),
            _ => (0, Ok(true)),
        };
        sent += n;
        match outcome {
            Ok(true) => {}
            Ok(false) => return sent,
            Err(fatal) => {
                self.fail_request(fatal, host);
                return sent;
            }
        }
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return sent;
        }
        let may_start = self.state == QpState::Rts;
        let max = max_packets - sent;
        let (n, failure) = match &mut self.service {
            Service::Rc(c) => c.requester.poll(now, &c.path, may_start, host, tx, max),
            Service::Local(m) => m.poll_requests(now, may_start, host, tx, max),
            Service::Uc(u) => u.poll(may_start, host, tx, max),
            Service::Ud(d) => d.poll(may_start, host, tx, max),
            Service::Unconnected { .. } => (0, None),
        };
        let sent = sent + n;
        if let Some(status) = failure {
            self.fail_send(status, host);
            if self.state == QpState::Rts && sent < max_packets {
                // It failed alone (RD).
                return sent + self.poll_transmit(now, host, tx, max_packets - sent);
            }
        } else if self.drain_event {
            self.check_drained(host);
        }
        sent
    }

    /// `None`: the sink is full.
    #[inline]
    fn poll_cnp<H: Host, T: TxSink>(&mut self, host: &mut H, tx: &mut T, max: usize) -> Option<usize> {
        let (cnp, path) = match &mut self.service {
            Service::Rc(c) => (&mut c.cnp, &c.path),
            Service::Uc(u) => (&mut u.cnp, &u.path),
            _ => return Some(0),
        };
        if !cnp.is_owed() || max == 0 {
            return Some(0);
        }
        cnp.poll(path.pkey, path.dest_qpn, host, tx).map(|()| 1)
    }

    /// The acknowledgement that is owed, if one is.
    #[inline]
    pub fn ack_owed(&self) -> Option<AckOwed> {
        self.wants().ack
    }
    /// Sends the owed acknowledgement, one for all packets since the last. Returns whether one was sent.
    #[inline]
    pub fn poll_ack<H: Host, T: TxSink>(&mut self, _now: Instant, host: &mut H, tx: &mut T) -> bool {
        match &mut self.service {
            Service::Rc(c) => c.responder.poll_ack(&c.path, host, tx),
            Service::Local(m) => m.responder.poll_ack(&m.path, host, tx),
            _ => false,
        }
    }

    /// Forces the error state: the adapter lost one of its completions.
    pub fn fail<H: Host>(&mut self, _now: Instant, host: &mut H) {
        if !matches!(self.state, QpState::Reset | QpState::Error) {
            self.enter_error(host);
        }
    }
    /// The send window, for counters.
    pub fn window(&self) -> WindowStats {
        match &self.service {
            Service::Rc(c) => c.requester.stats(),
            _ => WindowStats::default(),
        }
    }

    /// Error from outside: nothing is answered any more, but a NAK that brought the error on still leaves.
    fn enter_error<H: Host>(&mut self, host: &mut H) {
        if self.state != QpState::Error {
            self.stop_responder();
        }
        self.end(WcStatus::WrFlushed, host);
    }
    /// Nothing more is answered.
    fn stop_responder(&mut self) {
        match &mut self.service {
            Service::Rc(c) => c.responder.stop(),
            Service::Local(m) => m.responder.stop(),
            _ => {}
        }
    }
    /// To ERROR: the oldest send request completes with `status`, everything else as flushed.
    fn end<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        let first = self.state != QpState::Error;
        let used = self.state != QpState::Reset;
        self.set_state(QpState::Error);
        self.flush(status, host);
        if first && used && host.has_srq() {
            host.event(QpEvent::LastWqeReached);
        }
    }
    fn flush<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        self.flush_send(status, host);
        if let Service::Uc(u) = &mut self.service {
            u.forget_inbound();
        }
        host.flush_recv();
    }
    /// The oldest send request completes with `status`, the others as flushed.
    fn flush_send<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        if let Service::Rc(c) = &mut self.service {
            c.requester.flush(status, host);
            return;
        }
        if let Service::Local(m) = &mut self.service {
            return m.requester.flush(status, host);
        }
        let posted = flush(self.sq_index(), status, host);
        match &mut self.service {
            Service::Unconnected { index } => *index = posted,
            Service::Uc(u) => u.stop(posted),
            Service::Ud(d) => d.stop(posted),
            Service::Rc(_) | Service::Local(_) => {}
        }
    }
    /// The oldest send request failed: RC goes to ERROR, UC and UD stop sending only.
    #[cold]
    pub(crate) fn fail_send<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        if self.config.qp_type.has_sqe() {
            self.set_state(QpState::Sqe);
            self.flush_send(status, host);
        } else if !(ends_request_alone(status) && self.abandon(status, host)) {
            self.stop_responder();
            self.end(status, host);
        }
    }
    /// A request of the peer failed; the NAK, and what was asked for before it, still leave.
    #[cold]
    fn fail_request<H: Host>(&mut self, fatal: Fatal, host: &mut H) {
        if self.state == QpState::Error {
            return;
        }
        if self.config.qp_type == QpType::Eec
            && let Service::Rc(c) = &mut self.service
        {
            return c.responder.refuse_message(fatal.recv, host);
        }
        if let Some(status) = fatal.recv {
            host.complete_recv(&failed_recv(status));
        }
        self.end(WcStatus::WrFlushed, host);
        if let Some(event) = fatal.event {
            host.event(event);
        }
    }
    /// The held receive request can't be carried out.
    #[cold]
    fn fail_recv<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        host.complete_recv(&failed_recv(status));
        self.end(WcStatus::WrFlushed, host);
    }
}

/// Whether a send request of RD that ends so leaves its end-to-end context as it is.
const fn ends_request_alone(status: WcStatus) -> bool {
    !matches!(status, WcStatus::RetryExceeded | WcStatus::BadResponse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connected_queue_pair_takes_less_than_4_kib() {
        let config = QpConfig {
            qp_type: QpType::Rc,
            qpn: Qpn::new(2),
            max_rd_atomic_limit: 16,
            max_send_wr: 128,
            window_bytes: 1 << 20,
            port_mtu: Mtu::B4096,
        };
        let attr = QpAttr { max_rd_atomic: Some(16), max_dest_rd_atomic: Some(16), ..QpAttr::default() };
        let c = Connection::new(&config, &attr, 0);
        let bytes = size_of::<Qp>() + c.requester.heap_bytes() + c.responder.heap_bytes();
        assert!(bytes <= 4096, "{bytes}");
    }
}
