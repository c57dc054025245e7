//! DREQ, which ends a connection, and the messages about other paths (LAP, APR), which are refused.

use hca_core::Qpn;

use super::connect::Ids;
use super::fields::{Body, Field, PrivateData, at};
use super::{FieldError, qpn};

/// DREQ: asks for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Dreq {
    /// The IDs.
    pub ids: Ids,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data.
    pub private_data: PrivateData<{ Dreq::PRIVATE_BYTES }>,
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 220;
    const REMOTE_QPN: Field = at(8, 0, 24);
    const PRIVATE_DATA: usize = 12;

    pub(super) fn parse(body: &Body) -> Result<Self, FieldError> {
        Ok(Self {
            ids: Ids::parse(body),
            remote_qpn: qpn(Self::REMOTE_QPN, body)?,
            private_data: PrivateData::parse(body, Self::PRIVATE_DATA),
        })
    }
    pub(super) fn build(&self, body: &mut Body) {
        self.ids.build(body);
        Self::REMOTE_QPN.set(body, self.remote_qpn.raw().into());
        self.private_data.build(body, Self::PRIVATE_DATA);
    }
}

/// LAP: asks for another alternate path. Only the IDs are parsed, for the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Lap {
    /// The IDs.
    pub ids: Ids,
}

/// APR: the answer to a LAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Apr {
    /// The IDs.
    pub ids: Ids,
    /// The status.
    pub status: ApStatus,
}

/// The status of an APR: a number of the wire; those that are sent have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ApStatus(pub u8);

impl ApStatus {
    /// The sender has no such connection.
    pub const INVALID_COMM_ID: Self = Self(1);
    /// The sender has no alternate paths.
    pub const UNSUPPORTED: Self = Self(2);
}

impl Apr {
    const STATUS: Field = at(9, 0, 8);

    pub(super) fn parse(body: &Body) -> Self {
        Self { ids: Ids::parse(body), status: ApStatus(Self::STATUS.get(body) as u8) }
    }
    pub(super) fn build(&self, body: &mut Body) {
        self.ids.build(body);
        Self::STATUS.set(body, self.status.0.into());
    }
}
