//! The messages between the two processes of a measurement: JSON, one message a line.
//!
//! Every field is checked when its line is read, by types that can hold only valid values. Limits that depend on the
//! measured case (its memory, the length of the other side's window) are checked before any object is created for it.

use ::portals::Card;
use hca_core::Mtu;
use hca_verbs::RemoteMr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::plan::Case;
use super::portals as of_portals;

/// Version of these messages; both ends must agree.
pub(super) const PROTOCOL: u32 = 4;
/// Characters of the longest reason that is taken from the other side.
const MAX_WORDS_CHARS: usize = 1000;

/// One of a row's two measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// One message at a time.
    Latency,
    /// As many messages as the queues take.
    Stream,
}

/// What one side needs to know of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EndpointFields")]
pub(super) struct Endpoint {
    /// The queue pair.
    pub(super) qp: hca_verbs::Endpoint,
    /// Memory that it lets the other side reach.
    pub(super) window: RemoteMr,
}

/// The same as the other side says it.
#[derive(Deserialize)]
struct EndpointFields {
    qp: hca_verbs::Endpoint,
    window: RemoteMr,
}

impl TryFrom<EndpointFields> for Endpoint {
    type Error = &'static str;
    fn try_from(EndpointFields { qp, window }: EndpointFields) -> Result<Self, Self::Error> {
        let ends = window.addr.checked_add(window.len).is_some();
        ends.then_some(Self { qp, window }).ok_or("memory that ends beyond all addresses")
    }
}

/// Where the other side's node is, as bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub(super) struct NodeCard(pub(super) Card);

impl TryFrom<Vec<u8>> for NodeCard {
    type Error = &'static str;
    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        Card::from_bytes(&bytes).map(Self).ok_or("bytes that are not a card of a Portals node")
    }
}
impl From<NodeCard> for Vec<u8> {
    fn from(card: NodeCard) -> Self {
        card.0.to_bytes().to_vec()
    }
}

/// What one side says in words: text that a terminal only prints, of limited length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(super) struct Words(String);

impl From<String> for Words {
    fn from(text: String) -> Self {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        Self(text.chars().take(MAX_WORDS_CHARS).map(plain).collect())
    }
}
impl From<Words> for String {
    fn from(words: Words) -> Self {
        words.0
    }
}

/// A message that a [`Channel`](super::channel::Channel) takes.
pub(super) trait Message: DeserializeOwned + Send + 'static {
    /// Whether the message is a heartbeat, which is not handed on.
    fn is_sign_of_life(&self) -> bool;
}

/// From the measuring process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToPeer {
    /// First of all.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
    },
    /// Make a queue pair for this measurement and connect it.
    Prepare {
        /// What will be measured.
        case: Case,
        /// How.
        phase: Phase,
        /// Path MTU.
        mtu: Mtu,
        /// The measuring side's queue pair.
        endpoint: Endpoint,
        /// Whether the measuring side connects by RDMA CM.
        #[serde(default)]
        cm: bool,
    },
    /// Open a Portals node, in place of the one that there is.
    Node {
        /// How.
        settings: of_portals::Settings,
        /// Where the measuring side's is.
        card: NodeCard,
    },
    /// Make an interface of the node for this measurement.
    Move {
        /// What will be measured.
        case: of_portals::Case,
        /// How.
        phase: Phase,
    },
    /// The measurement goes on.
    Going,
    /// The measurement is over: say what you saw.
    Stop,
    /// All is over.
    Bye,
}

impl Message for ToPeer {
    fn is_sign_of_life(&self) -> bool {
        *self == Self::Going
    }
}

/// From the peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FromPeer {
    /// Answer to `Hello`.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The largest path MTU of the device that was opened.
        mtu: Mtu,
    },
    /// Answer to `Prepare`: the peer serves until `Stop`.
    Ready {
        /// The queue pair.
        endpoint: Endpoint,
        /// The port of RDMA CM at which it waits to be connected, if the measuring side wants that.
        #[serde(default)]
        port: Option<u16>,
    },
    /// Answer to `Node`.
    Node {
        /// Where it is.
        card: NodeCard,
    },
    /// Answer to `Move`: the peer serves until `Stop`.
    Listening,
    /// Answer to `Stop`.
    Done {
        /// Messages that arrived.
        received: u64,
        /// Completions with an error.
        errors: u64,
    },
    /// The peer can't go on.
    Failed {
        /// Why, and what to do.
        why: Words,
    },
}

impl Message for FromPeer {
    fn is_sign_of_life(&self) -> bool {
        false
    }
}
