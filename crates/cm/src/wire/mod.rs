//! The messages of the connection manager as management datagrams.
//!
//! [`Mad::parse`] takes a datagram apart and checks each field; [`Mad::build`] makes one. A value of these types is
//! always one that may stand on the wire. Reserved fields are 0 in a datagram that is built, and skipped in one that is
//! parsed.

mod connect;
mod fields;
mod reason;
mod release;
mod sidr;

pub use connect::{About, Drep, Ece, Ids, Mra, Path, Rej, Rep, Req, Rtu, Transport};
pub use fields::{Bits, CmTimeout, CommId, Guid, Info, PrivateData, PrivateDataTooLong, TransactionId};
pub use reason::{Reason, SidrStatus};
pub use release::{ApStatus, Apr, Dreq, Lap};
pub use sidr::{Refusal, Resolution, SidrRep, SidrReq};

use hca_core::wire::{Be32, MadHeader, method, mgmt_class};
use hca_core::{Mtu, Qpn};

use fields::{Body, Field};

/// The version of the class that these messages are of.
const CLASS_VERSION: u8 = 2;

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = MadHeader::MAD_BYTES;

macro_rules! messages {
    ($($(#[$m:meta])* $name:ident($attr:literal, $wire:literal);)+) => {
        /// The kind of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Kind {
            $($(#[$m])* $name = $attr,)+
        }
        impl Kind {
            /// All kinds, in the order of their attributes.
            pub const ALL: [Self; 11] = [$(Self::$name),+];

            /// The name as the specification writes it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $wire,)+
                }
            }
        }
        /// A message of any kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$m])* $name($name),)+
        }
        impl Message {
            /// The kind of this message.
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Self::$name(_) => Kind::$name,)+
                }
            }
        }
        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })+
    };
}

messages! {
    /// Request for a connection.
    Req(0x10, "REQ");
    /// Message receipt acknowledgement.
    Mra(0x11, "MRA");
    /// Rejection.
    Rej(0x12, "REJ");
    /// Reply to a request for a connection.
    Rep(0x13, "REP");
    /// Ready to use.
    Rtu(0x14, "RTU");
    /// Request for disconnection.
    Dreq(0x15, "DREQ");
    /// Reply to a request for disconnection.
    Drep(0x16, "DREP");
    /// Request for a service ID resolution.
    SidrReq(0x17, "SIDR_REQ");
    /// Response of a service ID resolution.
    SidrRep(0x18, "SIDR_REP");
    /// Load alternate path.
    Lap(0x19, "LAP");
    /// Response about an alternate path.
    Apr(0x1a, "APR");
}

impl Kind {
    fn from_attribute(attribute: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == attribute)
    }
}
impl core::fmt::Display for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// A management datagram of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The transaction. The messages that make one connection have the same; so have a DREQ and its DREP.
    pub transaction: TransactionId,
    /// The message.
    pub message: Message,
}

/// An error of [`Mad::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A datagram that is not 256 bytes long.
    #[error("a datagram of {len} bytes: management datagrams have {MAD_BYTES}")]
    Length {
        /// Its length in bytes.
        len: usize,
    },
    /// A datagram of another class, version or method, or an attribute that the class does not have.
    #[error("not a message of the connection manager: {what} is {value:#x}")]
    Foreign {
        /// The field of the header.
        what: &'static str,
        /// Its value.
        value: u16,
    },
    /// A field of the message has a value that the message can not have.
    #[error("{kind} with a {field} of {value:#x}")]
    Field {
        /// The kind of the message.
        kind: Kind,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The rejection that the sender is owed; `None` if there is none for it.
        owed: Option<Owed>,
    },
}

/// The rejection of a message that can not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The transaction of the message.
    pub transaction: TransactionId,
    /// The IDs, as the rejection has them.
    pub ids: Ids,
    /// The reason.
    pub reason: Reason,
}

/// A field's value that its message can not have.
struct FieldError {
    field: &'static str,
    value: u64,
    reason: Option<Reason>,
}

impl FieldError {
    const fn new(field: &'static str, value: u64, reason: Reason) -> Self {
        Self { field, value, reason: Some(reason) }
    }
    /// An error that is not answered.
    const fn silent(field: &'static str, value: u64) -> Self {
        Self { field, value, reason: None }
    }
}

fn qpn(field: Field, body: &Body) -> Result<Qpn, FieldError> {
    let qpn = Qpn::new(field.get(body) as u32);
    match qpn.is_ordinary() {
        true => Ok(qpn),
        false => Err(FieldError::new("queue pair number", qpn.raw().into(), Reason::NO_QP)),
    }
}
fn mtu(field: Field, body: &Body) -> Result<Mtu, FieldError> {
    let encoding = field.get(body);
    let mtu = Mtu::ALL.into_iter().find(|mtu| u64::from(mtu.encoding()) == encoding);
    mtu.ok_or(FieldError::new("path MTU", encoding, Reason::INVALID_MTU))
}
fn info(length: Field, offset: usize, body: &Body) -> Result<Info, FieldError> {
    let len = length.get(body) as usize;
    let bytes = body.get(offset..offset + len).filter(|_| len <= Info::MAX_BYTES);
    let info = bytes.and_then(|bytes| Info::new(bytes).ok());
    info.ok_or(FieldError::silent("length of the additional information", len as u64))
}

impl Mad {
    /// Takes a datagram apart.
    ///
    /// # Errors
    /// The datagram is none of the connection manager's, or has a field with a value that its message can not have.
    pub fn parse(mad: &[u8]) -> Result<Self, ParseError> {
        let mad: &[u8; MAD_BYTES] = mad.try_into().map_err(|_| ParseError::Length { len: mad.len() })?;
        let (header, body) = mad.split_first_chunk::<{ MadHeader::BYTES }>().expect("256 is more than 24");
        let header: MadHeader = bytemuck::cast(*header);
        let body: &Body = body.try_into().expect("256 bytes without 24");
        let expected = [
            ("base version", header.base_version, 1),
            ("class", header.mgmt_class, mgmt_class::COMM_MGT),
            ("class version", header.class_version, CLASS_VERSION),
            ("method", header.method(), method::SEND),
            ("response bit", header.is_response().into(), 0),
        ];
        if let Some((what, value, _)) = expected.into_iter().find(|(_, value, expected)| value != expected) {
            return Err(ParseError::Foreign { what, value: value.into() });
        }
        let attribute = header.attr_id.get();
        let foreign = ParseError::Foreign { what: "attribute", value: attribute };
        let kind = Kind::from_attribute(attribute).ok_or(foreign)?;
        let transaction = TransactionId(header.tid.get());
        match Message::parse(kind, body, header.attr_mod.get()) {
            Ok(message) => Ok(Self { transaction, message }),
            Err(FieldError { field, value, reason }) => {
                // A REQ has no ID of its receiver: four bytes are reserved there.
                let ids = Ids::parse(body).swapped();
                let ids = if kind == Kind::Req { Ids { local: CommId(0), ..ids } } else { ids };
                let reason = reason.filter(|_| matches!(kind, Kind::Req | Kind::Rep));
                let owed = reason.map(|reason| Owed { transaction, ids, reason });
                Err(ParseError::Field { kind, field, value, owed })
            }
        }
    }

    /// The bytes of this datagram.
    pub fn build(&self) -> [u8; MAD_BYTES] {
        let mut mad = [0; MAD_BYTES];
        let (header, body) =
            mad.split_first_chunk_mut::<{ MadHeader::BYTES }>().expect("256 is more than 24");
        let kind = self.message.kind();
        let transaction = self.transaction.0;
        let class = mgmt_class::COMM_MGT;
        let mut common = MadHeader::new(class, CLASS_VERSION, method::SEND, transaction, kind as u16);
        common.attr_mod = Be32::new(self.message.modifier());
        *header = bytemuck::cast(common);
        self.message.build(body.try_into().expect("256 bytes without 24"));
        mad
    }
}

impl Message {
    /// The attribute modifier of the datagram.
    const fn modifier(&self) -> u32 {
        match self {
            Self::Req(Req { ece, .. }) | Self::Rep(Rep { ece, .. }) => ece.options,
            _ => 0,
        }
    }
    fn parse(kind: Kind, body: &Body, modifier: u32) -> Result<Self, FieldError> {
        Ok(match kind {
            Kind::Req => Req::parse(body, modifier)?.into(),
            Kind::Mra => Mra::parse(body)?.into(),
            Kind::Rej => Rej::parse(body)?.into(),
            Kind::Rep => Rep::parse(body, modifier)?.into(),
            Kind::Rtu => Rtu::parse(body).into(),
            Kind::Dreq => Dreq::parse(body)?.into(),
            Kind::Drep => Drep::parse(body).into(),
            Kind::SidrReq => SidrReq::parse(body).into(),
            Kind::SidrRep => SidrRep::parse(body)?.into(),
            Kind::Lap => Lap { ids: Ids::parse(body) }.into(),
            Kind::Apr => Apr::parse(body).into(),
        })
    }
    fn build(&self, body: &mut Body) {
        match self {
            Self::Req(m) => m.build(body),
            Self::Mra(m) => m.build(body),
            Self::Rej(m) => m.build(body),
            Self::Rep(m) => m.build(body),
            Self::Rtu(m) => m.build(body),
            Self::Dreq(m) => m.build(body),
            Self::Drep(m) => m.build(body),
            Self::SidrReq(m) => m.build(body),
            Self::SidrRep(m) => m.build(body),
            Self::Lap(m) => m.ids.build(body),
            Self::Apr(m) => m.build(body),
        }
    }
}
