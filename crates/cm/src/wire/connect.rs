//! The messages that make a connection: REQ, MRA, REJ, REP, RTU.

use hca_core::{AckTimeout, Gid, Lid, Mtu, Pkey, Psn, Qkey, Qpn};

use super::fields::{Bits, Body, CmTimeout, CommId, Field, Guid, Info, PrivateData, at};
use super::reason::Reason;
use super::{FieldError, mtu, qpn};
use crate::ServiceId;

/// The transport service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection: the sender's queue pair is an initiator, and the receiver's a target.
    Xrc,
}

/// The primary path of a connection, as the side that asks for the connection has it: the local side is that side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Path {
    /// LID of the local port.
    pub local_lid: Lid,
    /// LID of the remote port.
    pub remote_lid: Lid,
    /// GID of the local port.
    pub local_gid: Gid,
    /// GID of the remote port.
    pub remote_gid: Gid,
    /// Flow label.
    pub flow_label: Bits<20>,
    /// Rate of packets.
    pub packet_rate: Bits<6>,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: Bits<4>,
    /// Whether the path stays within one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout: the packet lifetime there and back, and the local ACK delay.
    pub local_ack_timeout: AckTimeout,
}

/// Extended connection establishment: what the adapters of one vendor agree on beyond the specification. Without a
/// vendor there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ece {
    /// The vendor.
    pub vendor: Bits<24>,
    /// Options, which are the vendor's.
    pub options: u32,
}

/// REQ: asks for a connection.
///
/// A message may name an alternate path as well. Parsing skips the alternate path, and a message that is built has
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Req {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The service that the connection is for.
    pub service_id: ServiceId,
    /// The sender's adapter.
    pub local_ca_guid: Guid,
    /// The sender's Q_Key; unused by connections.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// The time that the receiver has for a response.
    pub remote_response_timeout: CmTimeout,
    /// The transport service.
    pub transport: Transport,
    /// Whether the sender supports end-to-end flow control.
    pub flow_control: bool,
    /// The first PSN that the receiver sends on the connection.
    pub starting_psn: Psn,
    /// The time that the sender needs for a response.
    pub local_response_timeout: CmTimeout,
    /// Retries of the receiver's send queue.
    pub retry_count: Bits<3>,
    /// Partition key.
    pub pkey: Pkey,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// RNR retries of the receiver's send queue.
    pub rnr_retry_count: Bits<3>,
    /// Retries of the receiver's messages of the connection manager.
    pub max_cm_retries: Bits<4>,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The path.
    pub primary: Path,
    /// Extended connection establishment that the sender offers.
    pub ece: Ece,
    /// Private data.
    pub private_data: PrivateData<{ Req::PRIVATE_BYTES }>,
}

mod req {
    use super::{Field, at};
    pub(super) const LOCAL_COMM_ID: Field = at(0, 0, 32);
    pub(super) const VENDOR_ID: Field = at(5, 0, 24);
    pub(super) const SERVICE_ID: Field = at(8, 0, 64);
    pub(super) const LOCAL_CA_GUID: Field = at(16, 0, 64);
    pub(super) const LOCAL_QKEY: Field = at(28, 0, 32);
    pub(super) const LOCAL_QPN: Field = at(32, 0, 24);
    pub(super) const RESPONDER_RESOURCES: Field = at(35, 0, 8);
    pub(super) const INITIATOR_DEPTH: Field = at(39, 0, 8);
    pub(super) const REMOTE_RESPONSE_TIMEOUT: Field = at(43, 0, 5);
    pub(super) const TRANSPORT: Field = at(43, 5, 2);
    pub(super) const FLOW_CONTROL: Field = at(43, 7, 1);
    pub(super) const STARTING_PSN: Field = at(44, 0, 24);
    pub(super) const LOCAL_RESPONSE_TIMEOUT: Field = at(47, 0, 5);
    pub(super) const RETRY_COUNT: Field = at(47, 5, 3);
    pub(super) const PKEY: Field = at(48, 0, 16);
    pub(super) const PATH_MTU: Field = at(50, 0, 4);
    pub(super) const RNR_RETRY_COUNT: Field = at(50, 5, 3);
    pub(super) const MAX_CM_RETRIES: Field = at(51, 0, 4);
    pub(super) const SRQ: Field = at(51, 4, 1);
    pub(super) const EXTENDED_TRANSPORT: Field = at(51, 5, 3);
    pub(super) const LOCAL_LID: Field = at(52, 0, 16);
    pub(super) const REMOTE_LID: Field = at(54, 0, 16);
    pub(super) const LOCAL_GID: usize = 56;
    pub(super) const REMOTE_GID: usize = 72;
    pub(super) const FLOW_LABEL: Field = at(88, 0, 20);
    pub(super) const PACKET_RATE: Field = at(91, 2, 6);
    pub(super) const TRAFFIC_CLASS: Field = at(92, 0, 8);
    pub(super) const HOP_LIMIT: Field = at(93, 0, 8);
    pub(super) const SL: Field = at(94, 0, 4);
    pub(super) const SUBNET_LOCAL: Field = at(94, 4, 1);
    pub(super) const LOCAL_ACK_TIMEOUT: Field = at(95, 0, 5);
    pub(super) const PRIVATE_DATA: usize = 140;
}

/// The transport service type that says that the extended one counts, and XRC's of these.
const EXTENDED: u64 = 3;
const XRC: u64 = 1;

fn bits<const N: u32>(field: Field, body: &Body) -> Bits<N> {
    Bits::at_most(field.get(body) as u32)
}
fn gid(body: &Body, offset: usize) -> Gid {
    let mut gid = [0; 16];
    gid.copy_from_slice(&body[offset..offset + 16]);
    Gid(gid)
}
pub(super) fn comm_id(field: Field, body: &Body) -> CommId {
    CommId(field.get(body) as u32)
}

impl Path {
    fn parse(body: &Body) -> Self {
        Self {
            local_lid: Lid::new(req::LOCAL_LID.get(body) as u16),
            remote_lid: Lid::new(req::REMOTE_LID.get(body) as u16),
            local_gid: gid(body, req::LOCAL_GID),
            remote_gid: gid(body, req::REMOTE_GID),
            flow_label: bits(req::FLOW_LABEL, body),
            packet_rate: bits(req::PACKET_RATE, body),
            traffic_class: req::TRAFFIC_CLASS.get(body) as u8,
            hop_limit: req::HOP_LIMIT.get(body) as u8,
            sl: bits(req::SL, body),
            subnet_local: req::SUBNET_LOCAL.get(body) != 0,
            local_ack_timeout: AckTimeout::new(req::LOCAL_ACK_TIMEOUT.get(body) as u8),
        }
    }
    fn build(&self, body: &mut Body) {
        req::LOCAL_LID.set(body, self.local_lid.raw().into());
        req::REMOTE_LID.set(body, self.remote_lid.raw().into());
        body[req::LOCAL_GID..][..16].copy_from_slice(&self.local_gid.0);
        body[req::REMOTE_GID..][..16].copy_from_slice(&self.remote_gid.0);
        req::FLOW_LABEL.set(body, self.flow_label.get().into());
        req::PACKET_RATE.set(body, self.packet_rate.get().into());
        req::TRAFFIC_CLASS.set(body, self.traffic_class.into());
        req::HOP_LIMIT.set(body, self.hop_limit.into());
        req::SL.set(body, self.sl.get().into());
        req::SUBNET_LOCAL.set(body, self.subnet_local.into());
        req::LOCAL_ACK_TIMEOUT.set(body, self.local_ack_timeout.encoding().into());
    }
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 92;

    /// The options of a vendor are in the attribute modifier of the datagram.
    pub(super) fn parse(body: &Body, modifier: u32) -> Result<Self, FieldError> {
        let transport = match (req::TRANSPORT.get(body), req::EXTENDED_TRANSPORT.get(body)) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (EXTENDED, XRC) => Transport::Xrc,
            (value, _) => {
                return Err(FieldError::new("transport service type", value, Reason::INVALID_TRANSPORT_TYPE));
            }
        };
        Ok(Self {
            local_comm_id: comm_id(req::LOCAL_COMM_ID, body),
            service_id: ServiceId(req::SERVICE_ID.get(body)),
            local_ca_guid: Guid(req::LOCAL_CA_GUID.get(body)),
            local_qkey: Qkey::new(req::LOCAL_QKEY.get(body) as u32),
            local_qpn: qpn(req::LOCAL_QPN, body)?,
            responder_resources: req::RESPONDER_RESOURCES.get(body) as u8,
            initiator_depth: req::INITIATOR_DEPTH.get(body) as u8,
            remote_response_timeout: CmTimeout::new(req::REMOTE_RESPONSE_TIMEOUT.get(body) as u8),
            transport,
            flow_control: req::FLOW_CONTROL.get(body) != 0,
            starting_psn: Psn::new(req::STARTING_PSN.get(body) as u32),
            local_response_timeout: CmTimeout::new(req::LOCAL_RESPONSE_TIMEOUT.get(body) as u8),
            retry_count: bits(req::RETRY_COUNT, body),
            pkey: Pkey::new(req::PKEY.get(body) as u16),
            path_mtu: mtu(req::PATH_MTU, body)?,
            rnr_retry_count: bits(req::RNR_RETRY_COUNT, body),
            max_cm_retries: bits(req::MAX_CM_RETRIES, body),
            srq: req::SRQ.get(body) != 0,
            primary: Path::parse(body),
            ece: Ece { vendor: bits(req::VENDOR_ID, body), options: modifier },
            private_data: PrivateData::parse(body, req::PRIVATE_DATA),
        })
    }
    pub(super) fn build(&self, body: &mut Body) {
        req::LOCAL_COMM_ID.set(body, self.local_comm_id.0.into());
        req::VENDOR_ID.set(body, self.ece.vendor.get().into());
        req::SERVICE_ID.set(body, self.service_id.0);
        req::LOCAL_CA_GUID.set(body, self.local_ca_guid.0);
        req::LOCAL_QKEY.set(body, self.local_qkey.raw().into());
        req::LOCAL_QPN.set(body, self.local_qpn.raw().into());
        req::RESPONDER_RESOURCES.set(body, self.responder_resources.into());
        req::INITIATOR_DEPTH.set(body, self.initiator_depth.into());
        req::REMOTE_RESPONSE_TIMEOUT.set(body, self.remote_response_timeout.encoding().into());
        let (transport, extended) = match self.transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (EXTENDED, XRC),
        };
        req::TRANSPORT.set(body, transport);
        req::EXTENDED_TRANSPORT.set(body, extended);
        req::FLOW_CONTROL.set(body, self.flow_control.into());
        req::STARTING_PSN.set(body, self.starting_psn.raw().into());
        req::LOCAL_RESPONSE_TIMEOUT.set(body, self.local_response_timeout.encoding().into());
        req::RETRY_COUNT.set(body, self.retry_count.get().into());
        req::PKEY.set(body, self.pkey.raw().into());
        req::PATH_MTU.set(body, self.path_mtu.encoding().into());
        req::RNR_RETRY_COUNT.set(body, self.rnr_retry_count.get().into());
        req::MAX_CM_RETRIES.set(body, self.max_cm_retries.get().into());
        req::SRQ.set(body, self.srq.into());
        self.primary.build(body);
        self.private_data.build(body, req::PRIVATE_DATA);
    }
}

/// The two IDs of a connection, as the sender of a message has them. All messages but REQ and those of SIDR begin with
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ids {
    /// The sender's ID.
    pub local: CommId,
    /// The receiver's ID.
    pub remote: CommId,
}

impl Ids {
    const LOCAL: Field = at(0, 0, 32);
    const REMOTE: Field = at(4, 0, 32);

    pub(super) fn parse(body: &Body) -> Self {
        Self { local: comm_id(Self::LOCAL, body), remote: comm_id(Self::REMOTE, body) }
    }
    pub(super) fn build(self, body: &mut Body) {
        Self::LOCAL.set(body, self.local.0.into());
        Self::REMOTE.set(body, self.remote.0.into());
    }
    /// The IDs as the receiver has them.
    #[must_use]
    pub const fn swapped(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }
}

/// The message that a REJ or an MRA is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Another message.
    Other,
}

const ABOUT: Field = at(8, 0, 2);

impl About {
    fn parse(body: &Body, field: &'static str) -> Result<Self, FieldError> {
        match ABOUT.get(body) {
            0 => Ok(Self::Req),
            1 => Ok(Self::Rep),
            2 => Ok(Self::Other),
            value => Err(FieldError::silent(field, value)),
        }
    }
    fn build(self, body: &mut Body) {
        ABOUT.set(body, self as u64);
    }
}

/// MRA: a message was received, and its answer takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The IDs.
    pub ids: Ids,
    /// The message that was received.
    pub about: About,
    /// The time until the answer.
    pub service_timeout: CmTimeout,
    /// Private data.
    pub private_data: PrivateData<{ Mra::PRIVATE_BYTES }>,
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 222;
    const SERVICE_TIMEOUT: Field = at(9, 0, 5);
    const PRIVATE_DATA: usize = 10;

    pub(super) fn parse(body: &Body) -> Result<Self, FieldError> {
        Ok(Self {
            ids: Ids::parse(body),
            about: About::parse(body, "message MRAed")?,
            service_timeout: CmTimeout::new(Self::SERVICE_TIMEOUT.get(body) as u8),
            private_data: PrivateData::parse(body, Self::PRIVATE_DATA),
        })
    }
    pub(super) fn build(&self, body: &mut Body) {
        self.ids.build(body);
        self.about.build(body);
        Self::SERVICE_TIMEOUT.set(body, self.service_timeout.encoding().into());
        self.private_data.build(body, Self::PRIVATE_DATA);
    }
}

/// REJ: rejects a message, or ends a connection that its sender does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The IDs. The local one is 0 where the sender has no connection.
    pub ids: Ids,
    /// The message that is rejected.
    pub about: About,
    /// The reason.
    pub reason: Reason,
    /// Additional information.
    pub info: Info,
    /// Private data.
    pub private_data: PrivateData<{ Rej::PRIVATE_BYTES }>,
}

impl Rej {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 148;
    const INFO_LENGTH: Field = at(9, 0, 7);
    const REASON: Field = at(10, 0, 16);
    const INFO: usize = 12;
    const PRIVATE_DATA: usize = 84;

    pub(super) fn parse(body: &Body) -> Result<Self, FieldError> {
        Ok(Self {
            ids: Ids::parse(body),
            about: About::parse(body, "message rejected")?,
            reason: Reason(Self::REASON.get(body) as u16),
            info: super::info(Self::INFO_LENGTH, Self::INFO, body)?,
            private_data: PrivateData::parse(body, Self::PRIVATE_DATA),
        })
    }
    pub(super) fn build(&self, body: &mut Body) {
        self.ids.build(body);
        self.about.build(body);
        Self::INFO_LENGTH.set(body, self.info.bytes().len() as u64);
        Self::REASON.set(body, self.reason.0.into());
        self.info.build(body, Self::INFO);
        self.private_data.build(body, Self::PRIVATE_DATA);
    }
}

/// REP: accepts a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rep {
    /// The IDs.
    pub ids: Ids,
    /// The sender's Q_Key; unused by connections.
    pub local_qkey: Qkey,
    /// The sender's queue pair; it may be 0 where there is a target of XRC.
    pub local_qpn: Qpn,
    /// The sender's target of XRC, in the place of an end-to-end context; 0 for other services.
    pub local_eecn: Qpn,
    /// The first PSN that the receiver sends on the connection.
    pub starting_psn: Psn,
    /// READs and atomics that the sender serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// The time that the sender's adapter takes for an acknowledgement, 4.096 us x 2^n.
    pub target_ack_delay: Bits<5>,
    /// The answer to an alternate path of the REQ.
    pub failover_accepted: Bits<2>,
    /// Whether the sender supports end-to-end flow control.
    pub flow_control: bool,
    /// RNR retries of the receiver's send queue.
    pub rnr_retry_count: Bits<3>,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's adapter.
    pub local_ca_guid: Guid,
    /// Extended connection establishment that the sender agrees to.
    pub ece: Ece,
    /// Private data.
    pub private_data: PrivateData<{ Rep::PRIVATE_BYTES }>,
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 196;
    const LOCAL_QKEY: Field = at(8, 0, 32);
    const LOCAL_QPN: Field = at(12, 0, 24);
    const LOCAL_EECN: Field = at(16, 0, 24);
    const STARTING_PSN: Field = at(20, 0, 24);
    /// The bytes of the vendor, from the first one.
    const VENDOR_ID: [Field; 3] = [at(15, 0, 8), at(19, 0, 8), at(23, 0, 8)];
    const RESPONDER_RESOURCES: Field = at(24, 0, 8);
    const INITIATOR_DEPTH: Field = at(25, 0, 8);
    const TARGET_ACK_DELAY: Field = at(26, 0, 5);
    const FAILOVER_ACCEPTED: Field = at(26, 5, 2);
    const FLOW_CONTROL: Field = at(26, 7, 1);
    const RNR_RETRY_COUNT: Field = at(27, 0, 3);
    const SRQ: Field = at(27, 3, 1);
    const LOCAL_CA_GUID: Field = at(28, 0, 64);
    const PRIVATE_DATA: usize = 36;

    /// The options of a vendor are in the attribute modifier of the datagram.
    pub(super) fn parse(body: &Body, modifier: u32) -> Result<Self, FieldError> {
        let vendor = Self::VENDOR_ID.iter().fold(0, |vendor, byte| vendor << 8 | byte.get(body) as u32);
        let local_eecn = Qpn::new(Self::LOCAL_EECN.get(body) as u32);
        let is_target = Self::LOCAL_QPN.get(body) == 0 && local_eecn.is_ordinary();
        Ok(Self {
            ids: Ids::parse(body),
            local_qkey: Qkey::new(Self::LOCAL_QKEY.get(body) as u32),
            local_qpn: if is_target { Qpn::new(0) } else { qpn(Self::LOCAL_QPN, body)? },
            local_eecn,
            starting_psn: Psn::new(Self::STARTING_PSN.get(body) as u32),
            responder_resources: Self::RESPONDER_RESOURCES.get(body) as u8,
            initiator_depth: Self::INITIATOR_DEPTH.get(body) as u8,
            target_ack_delay: bits(Self::TARGET_ACK_DELAY, body),
            failover_accepted: bits(Self::FAILOVER_ACCEPTED, body),
            flow_control: Self::FLOW_CONTROL.get(body) != 0,
            rnr_retry_count: bits(Self::RNR_RETRY_COUNT, body),
            srq: Self::SRQ.get(body) != 0,
            local_ca_guid: Guid(Self::LOCAL_CA_GUID.get(body)),
            ece: Ece { vendor: Bits::at_most(vendor), options: modifier },
            private_data: PrivateData::parse(body, Self::PRIVATE_DATA),
        })
    }
    pub(super) fn build(&self, body: &mut Body) {
        self.ids.build(body);
        Self::LOCAL_QKEY.set(body, self.local_qkey.raw().into());
        Self::LOCAL_QPN.set(body, self.local_qpn.raw().into());
        Self::LOCAL_EECN.set(body, self.local_eecn.raw().into());
        Self::STARTING_PSN.set(body, self.starting_psn.raw().into());
        Self::RESPONDER_RESOURCES.set(body, self.responder_resources.into());
        Self::INITIATOR_DEPTH.set(body, self.initiator_depth.into());
        Self::TARGET_ACK_DELAY.set(body, self.target_ack_delay.get().into());
        Self::FAILOVER_ACCEPTED.set(body, self.failover_accepted.get().into());
        Self::FLOW_CONTROL.set(body, self.flow_control.into());
        Self::RNR_RETRY_COUNT.set(body, self.rnr_retry_count.get().into());
        Self::SRQ.set(body, self.srq.into());
        Self::LOCAL_CA_GUID.set(body, self.local_ca_guid.0);
        for (byte, shift) in Self::VENDOR_ID.into_iter().zip([16, 8, 0]) {
            byte.set(body, (self.ece.vendor.get() >> shift & 0xff).into());
        }
        self.private_data.build(body, Self::PRIVATE_DATA);
    }
}

macro_rules! ids_and_data {
    ($(#[$m:meta])* $name:ident) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct $name {
            /// The IDs.
            pub ids: Ids,
            /// Private data.
            pub private_data: PrivateData<{ $name::PRIVATE_BYTES }>,
        }
        impl $name {
            /// Bytes of private data.
            pub const PRIVATE_BYTES: usize = 224;
            const PRIVATE_DATA: usize = 8;

            pub(super) fn parse(body: &Body) -> Self {
                Self { ids: Ids::parse(body), private_data: PrivateData::parse(body, Self::PRIVATE_DATA) }
            }
            pub(super) fn build(&self, body: &mut Body) {
                self.ids.build(body);
                self.private_data.build(body, Self::PRIVATE_DATA);
            }
        }
    };
}
ids_and_data!(
    /// RTU: the sender of the REQ is ready to use the connection.
    Rtu
);
ids_and_data!(
    /// DREP: the answer to a DREQ.
    Drep
);
