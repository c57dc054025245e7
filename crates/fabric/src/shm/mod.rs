//! RoCE packets between processes of one machine, through rings in shared memory; beside them messages of reliable
//! connections, and direct access to granted memory.
//!
//! Every adapter of a domain has an address of its own, drawn at random when it is opened, and a UNIX socket of that
//! name. An adapter that opens a path connects to that socket. Each side hands over the memory that it writes
//! ([`ring`]). From then on the socket only wakes a sleeping side, and shows when the other side is gone: the kernel
//! closes a process's sockets however the process ends, and frees memory without a name with the last process that maps
//! it.
//!
//! | module | contents |
//! |---|---|
//! | `name` | domains, addresses, listening sockets |
//! | `cred` | the user and process at the other end of a socket |
//! | `hello` | messages over a socket, with descriptors |
//! | `meet` | connecting, accepting, peers that leave |
//! | `link`, `path` | the state of a peer; of a path |
//! | `memory` | mappings, and all access to them |
//! | `ring` | packets one way, credits the other; parking |
//! | `bell` | calling a consumer that does not poll |
//! | `rx`, `tx`; `lines` | the data path; the fast path of small messages |
//! | `grant`, `grants`, `note`, `pages` | direct access to memory: grants, and the messages about them |
//! | `proof` | adapters on addresses of the network: each proves that it is there |
//! | `access`, `bracket`, `revoke` | an access; both sides of its bracket; taking memory back |
//! | `process` | memory of the program's own, fetched from the peer's process |
//! | `process_write` | the same written by the kernel, where the peer sleeps |
//!
//! Packets have no IP header and no ICRC: nothing between two processes can damage a packet. A tap gets both, as they
//! would be on a wire. A packet is lost only with its receiver, or when the receiver leaves its ring full for so long
//! that waiting would harm other peers.

#[cfg(not(loom))]
mod access;
mod bell;
mod bracket;
#[cfg(not(loom))]
mod chance;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fabric;
#[cfg(all(any(test, fuzzing), not(loom)))]
mod fuzzed;
#[cfg(not(loom))]
mod grant;
#[cfg(not(loom))]
mod grants;
#[cfg(not(loom))]
mod hello;
#[cfg(not(loom))]
mod lines;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod meet;
mod memory;
#[cfg(not(loom))]
mod name;
#[cfg(not(loom))]
mod note;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod path;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod process_write;
#[cfg(not(loom))]
mod proof;
#[cfg(not(loom))]
mod revoke;
mod ring;
#[cfg(not(loom))]
mod rx;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod tx;

#[cfg(not(loom))]
pub use access::{Bracket, Reach, Way};
#[cfg(not(loom))]
pub use chance::{Refusable, ShmChance};
#[cfg(not(loom))]
pub use error::ShmError;
#[cfg(not(loom))]
pub use fabric::{ProcessVm, ShmFabric, ShmOptions};
#[cfg(fuzzing)]
pub use fuzzed::shm_peer;
#[cfg(not(loom))]
pub use grant::{
    AccessError, Denied, Grant, GrantError, GrantId, Granted, LinkId, MAX_ASKED, MAX_BRACKET_BYTES,
    MAX_GRANTED_REGIONS, MAX_LOAN_PLACES, MAX_MAPPED, MAX_MAPPED_OF_PEER, MAX_QP_WORDS, Notice, QpGuard,
    Revocation,
};
#[cfg(not(loom))]
pub use lines::{Found, LINE_DATA_BYTES, LineData, LineMessage, LineSink, LineTx, Lines};
#[cfg(not(loom))]
pub use pages::{MAX_SHARED_ALLOCATIONS, SharedPages};
#[cfg(not(loom))]
pub use peer::PeerName;
#[cfg(not(loom))]
pub use process::{FetchError, LoanTerms, Places, ProcessLoan};
#[cfg(not(loom))]
pub use process_write::max_process_write;
#[cfg(not(loom))]
pub use revoke::{TakeBack, TakeBackId};
#[cfg(not(loom))]
pub use rx::ShmSink;
#[cfg(not(loom))]
pub use tx::ShmTx;
