//! The reasons of rejections, and the outcomes of service ID resolutions.

use core::fmt;

/// The reason of a rejection: a number of the wire; the known ones have names.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u16);

macro_rules! reasons {
    ($($value:literal $name:ident $text:literal;)+) => {
        impl Reason {
            $(#[doc = concat!("The reason ", $value, ": ", $text, ".")]
            pub const $name: Self = Self($value);)+

            const fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    1 NO_QP "no queue pair available";
    2 NO_EEC "no end-to-end context available";
    3 NO_RESOURCES "no resources available";
    4 TIMEOUT "timeout";
    5 UNSUPPORTED "unsupported request";
    6 INVALID_COMM_ID "invalid communication ID";
    7 INVALID_COMM_INSTANCE "invalid communication instance";
    8 INVALID_SERVICE_ID "invalid service ID";
    9 INVALID_TRANSPORT_TYPE "invalid transport service type";
    10 STALE_CONNECTION "stale connection";
    11 RDC_NOT_EXIST "reliable datagram channel does not exist";
    12 INVALID_GID "primary GID rejected";
    13 INVALID_LID "primary LID rejected";
    14 INVALID_SL "invalid primary service level";
    15 INVALID_TRAFFIC_CLASS "invalid primary traffic class";
    16 INVALID_HOP_LIMIT "invalid primary hop limit";
    17 INVALID_PACKET_RATE "invalid primary packet rate";
    18 INVALID_ALT_GID "alternate GID rejected";
    19 INVALID_ALT_LID "alternate LID rejected";
    20 INVALID_ALT_SL "invalid alternate service level";
    21 INVALID_ALT_TRAFFIC_CLASS "invalid alternate traffic class";
    22 INVALID_ALT_HOP_LIMIT "invalid alternate hop limit";
    23 INVALID_ALT_PACKET_RATE "invalid alternate packet rate";
    24 PORT_CM_REDIRECT "connection manager and port redirection";
    25 PORT_REDIRECT "port redirection";
    26 INVALID_MTU "invalid path MTU";
    27 INSUFFICIENT_RESPONDER_RESOURCES "insufficient responder resources";
    28 CONSUMER_DEFINED "rejected by the program";
    29 INVALID_RNR_RETRY "invalid RNR retry count";
    30 DUPLICATE_LOCAL_COMM_ID "duplicate local communication ID";
    31 INVALID_CLASS_VERSION "invalid class version";
    32 INVALID_FLOW_LABEL "invalid primary flow label";
    33 INVALID_ALT_FLOW_LABEL "invalid alternate flow label";
    35 VENDOR_OPTION_NOT_SUPPORTED "vendor option not supported";
}

/// The reason in words, with its number.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text().unwrap_or("unknown reason"), self.0)
    }
}
impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The status of a service ID resolution: a number of the wire; the known ones have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The queue pair and its Q_Key follow.
    pub const SUCCESS: Self = Self(0);
    /// Nobody listens at the service ID.
    pub const UNSUPPORTED: Self = Self(1);
    /// The program rejects the request.
    pub const REJECTED: Self = Self(2);
    /// The program has no queue pair.
    pub const NO_QP: Self = Self(3);
    /// The program is elsewhere.
    pub const REDIRECT: Self = Self(4);
    /// The version of the class is not supported.
    pub const UNSUPPORTED_VERSION: Self = Self(5);
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::SUCCESS => "success",
            Self::UNSUPPORTED => "nobody listens at the service ID",
            Self::REJECTED => "rejected by the program",
            Self::NO_QP => "no queue pair",
            Self::REDIRECT => "redirected",
            Self::UNSUPPORTED_VERSION => "unsupported class version",
            _ => "unknown status",
        };
        write!(f, "{text} ({})", self.0)
    }
}
