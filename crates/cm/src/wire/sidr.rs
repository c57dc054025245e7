//! Service ID resolution: the messages that find the queue pair of a datagram service.

use hca_core::{Pkey, Qkey, Qpn};

use super::connect::comm_id;
use super::fields::{Body, CommId, Field, Info, PrivateData, at};
use super::reason::SidrStatus;
use super::{FieldError, info, qpn};
use crate::ServiceId;

/// SIDR_REQ: asks for the queue pair of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SidrReq {
    /// The sender's ID of the request.
    pub request_id: CommId,
    /// Partition key.
    pub pkey: Pkey,
    /// The service.
    pub service_id: ServiceId,
    /// Private data.
    pub private_data: PrivateData<{ SidrReq::PRIVATE_BYTES }>,
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 216;
    const REQUEST_ID: Field = at(0, 0, 32);
    const PKEY: Field = at(4, 0, 16);
    const SERVICE_ID: Field = at(8, 0, 64);
    const PRIVATE_DATA: usize = 16;

    pub(super) fn parse(body: &Body) -> Self {
        Self {
            request_id: comm_id(Self::REQUEST_ID, body),
            pkey: Pkey::new(Self::PKEY.get(body) as u16),
            service_id: ServiceId(Self::SERVICE_ID.get(body)),
            private_data: PrivateData::parse(body, Self::PRIVATE_DATA),
        }
    }
    pub(super) fn build(&self, body: &mut Body) {
        Self::REQUEST_ID.set(body, self.request_id.0.into());
        Self::PKEY.set(body, self.pkey.raw().into());
        Self::SERVICE_ID.set(body, self.service_id.0);
        self.private_data.build(body, Self::PRIVATE_DATA);
    }
}

/// The result of a service ID resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// The service's queue pair.
    Found {
        /// Its number.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: Qkey,
    },
    /// No queue pair; the status is never [`SidrStatus::SUCCESS`].
    Refused(Refusal),
}

/// A status of a refused resolution: any but success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal(SidrStatus);

impl Refusal {
    /// Nobody listens at the service ID.
    pub const UNSUPPORTED: Self = Self(SidrStatus::UNSUPPORTED);
    /// The program rejects the request.
    pub const REJECTED: Self = Self(SidrStatus::REJECTED);

    /// A refusal with this status; `None` for success.
    pub fn new(status: SidrStatus) -> Option<Self> {
        (status != SidrStatus::SUCCESS).then_some(Self(status))
    }
    /// The status on the wire.
    pub const fn status(self) -> SidrStatus {
        self.0
    }
}

/// SIDR_REP: the answer to a SIDR_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The ID that the request has.
    pub request_id: CommId,
    /// The result.
    pub resolution: Resolution,
    /// The service.
    pub service_id: ServiceId,
    /// Additional information.
    pub info: Info,
    /// Private data.
    pub private_data: PrivateData<{ SidrRep::PRIVATE_BYTES }>,
}

impl SidrRep {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 136;
    const REQUEST_ID: Field = at(0, 0, 32);
    const STATUS: Field = at(4, 0, 8);
    const INFO_LENGTH: Field = at(5, 0, 8);
    const QPN: Field = at(8, 0, 24);
    const SERVICE_ID: Field = at(12, 0, 64);
    const QKEY: Field = at(20, 0, 32);
    const INFO: usize = 24;
    const PRIVATE_DATA: usize = 96;

    pub(super) fn parse(body: &Body) -> Result<Self, FieldError> {
        let status = SidrStatus(Self::STATUS.get(body) as u8);
        Ok(Self {
            request_id: comm_id(Self::REQUEST_ID, body),
            resolution: match Refusal::new(status) {
                Some(refusal) => Resolution::Refused(refusal),
                None => Resolution::Found {
                    qpn: qpn(Self::QPN, body)?,
                    qkey: Qkey::new(Self::QKEY.get(body) as u32),
                },
            },
            service_id: ServiceId(Self::SERVICE_ID.get(body)),
            info: info(Self::INFO_LENGTH, Self::INFO, body)?,
            private_data: PrivateData::parse(body, Self::PRIVATE_DATA),
        })
    }
    pub(super) fn build(&self, body: &mut Body) {
        Self::REQUEST_ID.set(body, self.request_id.0.into());
        match self.resolution {
            Resolution::Refused(refusal) => Self::STATUS.set(body, refusal.status().0.into()),
            Resolution::Found { qpn, qkey } => {
                Self::QPN.set(body, qpn.raw().into());
                Self::QKEY.set(body, qkey.raw().into());
            }
        }
        Self::INFO_LENGTH.set(body, self.info.bytes().len() as u64);
        Self::SERVICE_ID.set(body, self.service_id.0);
        self.info.build(body, Self::INFO);
        self.private_data.build(body, Self::PRIVATE_DATA);
    }
}
