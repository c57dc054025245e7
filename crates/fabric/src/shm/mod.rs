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
//! | `options`, `error` | options; errors |
//! | `name` | domains, addresses, listening sockets |
//! | `socket`, `frame`, `hello`, `note` | sockets; messages over them, with descriptors |
//! | `meetings`, `link`, `path`, `rounds` | the state of meetings; of a peer; of a path; of the rings that are polled |
//! | `memory` | mappings, and all access to them |
//! | `ring` | packets one way, credits the other; parking |
//! | `bell` | calling a consumer that does not poll |
//! | `board`, `grant`, `grants`, `pages` | direct access to memory: the board, grants, their tables, shared pages |
//! | `access`, `bracket`, `take_back` | an access; both sides of its bracket; revocations under way |
//! | `process`, `process_write` | memory of the program's own, fetched from the peer's process or written there |
//! | `own`, `shown` | names and options of an end; the frames that a tap is shown |
//! | `fabric` | an end: the parts above, and their opening |
//! | `meet`, `proof`, `proving` | connecting, accepting, peers that leave; proofs of addresses of the network |
//! | `rx`, `tx`, `sink`; `lines` | the data path; the fast path of small messages |
//! | `granting`, `reach`, `lend`, `revoke` | granting, accessing, lending, taking back, as an end does it |
//!
//! Packets have no IP header and no ICRC: nothing between two processes can damage a packet. A tap gets both, as they
//! would be on a wire. A packet is lost only with its receiver, or when the receiver leaves its ring full for so long
//! that waiting would harm other peers.

#[cfg(not(loom))]
mod access;
mod bell;
#[cfg(not(loom))]
mod board;
mod bracket;
#[cfg(not(loom))]
mod chance;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fabric;
#[cfg(not(loom))]
mod frame;
#[cfg(all(any(test, fuzzing), not(loom)))]
mod fuzzed;
#[cfg(not(loom))]
mod grant;
#[cfg(not(loom))]
mod granting;
#[cfg(not(loom))]
mod grants;
#[cfg(not(loom))]
mod hello;
#[cfg(not(loom))]
mod lend;
#[cfg(not(loom))]
mod lines;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod meet;
#[cfg(not(loom))]
mod meetings;
mod memory;
#[cfg(not(loom))]
mod name;
#[cfg(not(loom))]
mod note;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod own;
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
mod proving;
#[cfg(not(loom))]
mod reach;
#[cfg(not(loom))]
mod revoke;
mod ring;
#[cfg(not(loom))]
mod rounds;
#[cfg(not(loom))]
mod rx;
#[cfg(not(loom))]
mod shown;
#[cfg(not(loom))]
mod sink;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
mod take_back;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod tx;

#[cfg(not(loom))]
pub use access::{Bracket, Reach, Way};
#[cfg(not(loom))]
pub use chance::{Refusable, ShmChance};
#[cfg(not(loom))]
pub use error::{GrantError, ShmError};
#[cfg(not(loom))]
pub use fabric::ShmFabric;
#[cfg(fuzzing)]
pub use fuzzed::shm_peer;
#[cfg(not(loom))]
pub use grant::{
    AccessError, Denied, Grant, GrantId, Granted, LinkId, MAX_ASKED, MAX_BRACKET_BYTES, MAX_GRANTED_REGIONS,
    MAX_LOAN_PLACES, MAX_MAPPED, MAX_MAPPED_OF_PEER, MAX_QP_WORDS, Notice, QpGuard, Revocation,
};
#[cfg(not(loom))]
pub use lines::{Found, LINE_DATA_BYTES, LineData, LineMessage, LineSink, LineTx, Lines};
#[cfg(not(loom))]
pub use options::{ProcessVm, ShmOptions};
#[cfg(not(loom))]
pub use pages::{MAX_SHARED_ALLOCATIONS, SharedPages};
#[cfg(not(loom))]
pub use peer::PeerName;
#[cfg(not(loom))]
pub use process::{FetchError, LoanTerms, Places, ProcessLoan};
#[cfg(not(loom))]
pub use process_write::max_process_write;
#[cfg(not(loom))]
pub use sink::ShmSink;
#[cfg(not(loom))]
pub use take_back::{TakeBack, TakeBackId};
#[cfg(not(loom))]
pub use tx::ShmTx;
