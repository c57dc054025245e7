//! The hello protocol, by which two nodes connect: datagrams in which each node names itself and the queue pair that
//! the peer connects to.
//!
//! Both sides behave alike: each side repeats its hello until the peer has named this side's queue pair, and answers
//! each hello of a peer that is not connected yet. So either side may begin, or both at once.
//!
//! Hellos may arrive late. Each side numbers its queue pairs, and ignores a hello that names an earlier queue pair than
//! the newest known one. While two sides connect, a side that receives a hello with a later queue pair connects its
//! existing queue pair to that one. If the side created a new queue pair instead, the peer would have to do so, too,
//! and so on for ever.

use hca_core::{Gid, Lid, Mtu, Psn, QpType, Qpn};
use hca_matching::{Jid, Nid, Pid, Rank, Uid};
use hca_verbs::Endpoint;

const MAGIC: [u8; 4] = *b"PTLS";
const VERSION: u8 = 1;
const IS_UP: u8 = 1;

/// Bytes of a hello.
pub(crate) const HELLO_BYTES: usize = 88;

/// The identity of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) nid: Nid,
    pub(crate) pid: Pid,
    /// In its job; [`NO_RANK`] where it has none.
    pub(crate) rank: Rank,
    pub(crate) uid: Uid,
    pub(crate) jid: Jid,
    /// A new number each time that a node is opened, which tells a restarted node from its predecessor.
    pub(crate) incarnation: u64,
}

/// The rank of a process without one.
pub(crate) const NO_RANK: Rank = Rank(u32::MAX);

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) from: Identity,
    /// The secret of the job.
    pub(crate) key: u64,
    /// The queue pair for this peer.
    pub(crate) endpoint: Endpoint,
    /// Which of the sender's queue pairs it is, counted by the sender: a later one takes the place of an earlier one.
    pub(crate) attempt: u32,
    /// Where datagrams to the sender go.
    pub(crate) datagrams: Qpn,
    /// The peer's queue pair, as far as it is known.
    pub(crate) peer_qpn: Option<Qpn>,
    /// The sender needs no answer.
    pub(crate) is_up: bool,
    /// Bytes that go with their header: what one side sends so, the other has room for.
    pub(crate) eager_bytes: u32,
}

impl Hello {
    pub(crate) fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let Identity { nid, pid, rank, uid, jid, incarnation } = self.from;
        put(&MAGIC);
        put(&[VERSION, if self.is_up { IS_UP } else { 0 }, self.endpoint.rd_atomic, 0]);
        for word in [nid.0, pid.0, rank.0, uid.0, jid.0] {
            put(&word.to_be_bytes());
        }
        put(&self.endpoint.lid.raw().to_be_bytes());
        put(&(self.endpoint.mtu.bytes() as u16).to_be_bytes());
        put(&incarnation.to_be_bytes());
        put(&self.key.to_be_bytes());
        let peer_qpn = self.peer_qpn.map_or(u32::MAX, Qpn::raw);
        for word in [self.endpoint.qpn.raw(), self.endpoint.psn.raw(), self.datagrams.raw(), peer_qpn] {
            put(&word.to_be_bytes());
        }
        put(&self.endpoint.gid.0);
        put(&self.eager_bytes.to_be_bytes());
        put(&self.attempt.to_be_bytes());
        out
    }
    /// `None`: it is none, or of another version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.first_chunk()?;
        if bytes[..4] != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let number = |at: usize| Some(word(at)).filter(|&raw| raw < 1 << 24);
        let endpoint = Endpoint {
            service: QpType::Rc,
            qpn: Qpn::new(number(48)?),
            psn: Psn::new(number(52)?),
            mtu: Mtu::from_bytes(half(30).into())?,
            rd_atomic: bytes[6],
            gid: Gid(bytes[64..80].try_into().expect("16 bytes")),
            lid: Lid::new(half(28)),
        };
        Some(Self {
            from: Identity {
                nid: Nid(word(8)),
                pid: Pid(word(12)),
                rank: Rank(word(16)),
                uid: Uid(word(20)),
                jid: Jid(word(24)),
                incarnation: long(32),
            },
            key: long(40),
            endpoint,
            attempt: word(84),
            datagrams: Qpn::new(number(56)?),
            peer_qpn: number(60).map(Qpn::new),
            is_up: bytes[5] & IS_UP != 0,
            eager_bytes: word(80),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        let endpoint: Endpoint =
            "rc,qpn=0x000012,psn=0x00abcd,mtu=1024,rd=16,gid=::ffff:127.0.0.1,lid=49151".parse().unwrap();
        let from = Identity {
            nid: Nid(1),
            pid: Pid(2),
            rank: Rank(3),
            uid: Uid(4),
            jid: Jid(5),
            incarnation: 6 << 40,
        };
        for (peer_qpn, is_up) in [(None, false), (Some(Qpn::new(9)), true)] {
            let hello = Hello {
                from,
                key: 7,
                endpoint,
                attempt: 3,
                datagrams: Qpn::new(8),
                peer_qpn,
                is_up,
                eager_bytes: 4096,
            };
            let bytes = hello.to_bytes();
            assert_eq!(Hello::parse(&bytes), Some(hello));
            for cut in 0..HELLO_BYTES {
                assert_eq!(Hello::parse(&bytes[..cut]), None);
            }
            for at in [0, 4, 30, 48, 52, 56] {
                let mut bad = bytes;
                bad[at] ^= 0x80;
                assert_eq!(Hello::parse(&bad), None, "byte {at}");
            }
            // Numbers of queue pairs and packets have 24 bits.
            for at in [48, 52, 56] {
                let mut bad = bytes;
                bad[at..at + 4].copy_from_slice(&(1_u32 << 24).to_be_bytes());
                assert_eq!(Hello::parse(&bad), None, "byte {at}");
            }
        }
    }
}
