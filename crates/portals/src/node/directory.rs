//! Directories: the addresses of other processes.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hca_core::{Gid, Lid, Qpn, SplitMix64};
use hca_matching::{Nid, Pid, Rank};
use hca_verbs::Context;

use super::{Node, NodeOptions};
use crate::OpenError;

hca_core::debug_as_display!(DirectoryError);

/// The address of a node: everything that other nodes need to connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Card {
    /// The node number: the IPv4 address, or a digest of the GID.
    pub nid: Nid,
    /// The process number.
    pub pid: Pid,
    /// The GID of the device.
    pub gid: Gid,
    /// The LID of the device on an InfiniBand subnet; 0 on RoCE.
    pub lid: Lid,
    /// The queue pair that receives the node's datagrams.
    pub datagrams: Qpn,
}

impl Card {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 30;

    /// The bytes to publish.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&self.nid.0.to_be_bytes());
        out[4..8].copy_from_slice(&self.pid.0.to_be_bytes());
        out[8..24].copy_from_slice(&self.gid.0);
        out[24..28].copy_from_slice(&self.datagrams.raw().to_be_bytes());
        out[28..].copy_from_slice(&self.lid.raw().to_be_bytes());
        out
    }
    /// A card from published bytes; `None` if they are not a card.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let datagrams = Some(word(24)).filter(|&raw| raw < 1 << 24).map(Qpn::new)?;
        let gid = Gid(bytes[8..24].try_into().expect("16 bytes"));
        let lid = Lid::new(u16::from_be_bytes([bytes[28], bytes[29]]));
        Some(Self { nid: Nid(word(0)), pid: Pid(word(4)), gid, lid, datagrams })
    }
}

/// An error of looking a process up.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// No process has this rank.
    #[error("the job has no process of rank {}", .rank.0)]
    Rank {
        /// The rank.
        rank: Rank,
    },
    /// No process has these numbers.
    #[error("no process {}:{} is known here", .nid.0, .pid.0)]
    Process {
        /// The node.
        nid: Nid,
        /// The process.
        pid: Pid,
    },
    /// The directory can't be asked.
    #[error("asking for a process's address: {source}")]
    Asking {
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A directory of the other processes. Each process is looked up once, on first use; the call may wait.
pub trait Directory: Send + Sync {
    /// The number of ranks; `None` if the directory has no ranks.
    fn size(&self) -> Option<u32>;
    /// The process of a rank.
    ///
    /// # Errors
    /// No process has this rank, or the directory can't be asked.
    fn by_rank(&self, rank: Rank) -> Result<Card, DirectoryError>;
    /// The process of a node and a number.
    ///
    /// # Errors
    /// No process has these numbers, or the directory can't be asked.
    fn by_process(&self, nid: Nid, pid: Pid) -> Result<Card, DirectoryError> {
        for rank in (0..self.size().unwrap_or(0)).map(Rank) {
            let card = self.by_rank(rank)?;
            if (card.nid, card.pid) == (nid, pid) {
                return Ok(card);
            }
        }
        Err(DirectoryError::Process { nid, pid })
    }
}

/// A directory that is a list of cards, by rank.
#[derive(Clone, Debug, Default)]
pub struct Listed(pub Vec<Card>);

impl Directory for Listed {
    fn size(&self) -> Option<u32> {
        Some(self.0.len() as u32)
    }
    fn by_rank(&self, rank: Rank) -> Result<Card, DirectoryError> {
        self.0.get(rank.0 as usize).copied().ok_or(DirectoryError::Rank { rank })
    }
}

/// A list that grows while nodes of one process open.
impl Directory for Mutex<Listed> {
    fn size(&self) -> Option<u32> {
        self.lock().unwrap_or_else(PoisonError::into_inner).size()
    }
    fn by_rank(&self, rank: Rank) -> Result<Card, DirectoryError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).by_rank(rank)
    }
}

impl Node {
    /// Opens a node on each of several devices; each node's rank is its device's index. The nodes are a job within one
    /// process, for examples and tests. The directory and the rank of `options` are ignored.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_all(contexts: &[Context], options: &NodeOptions) -> Result<Vec<Self>, OpenError> {
        let cards = Arc::new(Mutex::new(Listed::default()));
        (0..)
            .zip(contexts)
            .map(|(rank, context)| {
                let (rank, directory) = (Some(Rank(rank)), cards.clone());
                let node = Self::open(context, NodeOptions { rank, directory, ..options.clone() })?;
                cards.lock().unwrap_or_else(PoisonError::into_inner).0.push(node.card());
                Ok(node)
            })
            .collect()
    }
}

/// The node number of an address.
pub(super) fn nid_of(gid: Gid) -> Nid {
    match gid.ip() {
        IpAddr::V4(ip) => Nid(ip.to_bits()),
        IpAddr::V6(ip) => {
            let halves = ip.to_bits();
            let folded = SplitMix64::mix(halves as u64 ^ SplitMix64::mix((halves >> 64) as u64));
            // Never the wildcard.
            Nid((folded as u32).min(u32::MAX - 1))
        }
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} at {}", self.nid.0, self.pid.0, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let card = Card {
            nid: Nid(1),
            pid: Pid(2),
            gid: Gid([7; 16]),
            lid: Lid::new(0x8001),
            datagrams: Qpn::new(0x12_3456),
        };
        let bytes = card.to_bytes();
        assert_eq!(Card::from_bytes(&bytes), Some(card));
        assert_eq!(Card::from_bytes(&bytes[1..]), None);
        let mut bad = bytes;
        bad[24..28].copy_from_slice(&(1_u32 << 24).to_be_bytes());
        assert_eq!(Card::from_bytes(&bad), None);
    }

    #[test]
    fn a_list_finds_processes_both_ways() {
        let card = |n: u32| Card {
            nid: Nid(n),
            pid: Pid(9),
            gid: Gid([0; 16]),
            lid: Lid::default(),
            datagrams: Qpn::new(n),
        };
        let list = Listed(vec![card(5), card(6)]);
        assert_eq!(list.by_process(Nid(6), Pid(9)).unwrap(), list.by_rank(Rank(1)).unwrap());
        assert!(matches!(list.by_rank(Rank(2)), Err(DirectoryError::Rank { rank: Rank(2) })));
        assert!(list.by_process(Nid(7), Pid(9)).is_err());
    }

    #[test]
    fn the_number_of_an_address_is_its_own_or_a_digest_of_all_of_it() {
        let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
        assert_eq!(nid_of(gid("10.1.2.3")), Nid(0x0a01_0203));
        let addresses = ["fe80::1", "fe80::2", "fe80::1:0:0:1", "fd00::1", "fd00::2", "fd00::1:0:0:1"];
        let numbers: Vec<Nid> = addresses.iter().map(|a| nid_of(gid(a))).collect();
        for (i, number) in numbers.iter().enumerate() {
            assert!(!numbers[..i].contains(number) && number.0 != u32::MAX, "{}", addresses[i]);
        }
        // Of one that would be the wildcard's, another.
        assert_eq!(nid_of(gid("fd00::e93d:7ae0:bd54:757d")), Nid(u32::MAX - 1));
        // Halves that are the same do not take each other away.
        let alike = ["1:2:3:4:1:2:3:4", "5:6:7:8:5:6:7:8"].map(|a| nid_of(gid(a)));
        assert!(alike[0] != alike[1] && !numbers.contains(&alike[0]));
    }
}
