//! The private data of connection requests, replies and rejections.

use crate::{Discriminator, Error, Reliability, RemoteAttributes};

const MAGIC: [u8; 4] = *b"VIA1";
/// Bytes of requests and replies.
pub(crate) const HELLO_BYTES: usize = 13 + 2 * Discriminator::MAX_LEN;
/// Bytes of rejections.
pub(crate) const REFUSAL_BYTES: usize = 5;

const RDMA_WRITE: u8 = 1;
const RDMA_READ: u8 = 2;

/// The kind of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ClientServer = 0,
    Peer = 1,
}

/// What a side says of itself when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: Kind,
    /// The discriminator of the sender, and of the receiver.
    pub(crate) local: Discriminator,
    pub(crate) remote: Discriminator,
    pub(crate) attributes: RemoteAttributes,
}

impl Hello {
    pub(crate) fn bytes(&self) -> [u8; HELLO_BYTES] {
        let RemoteAttributes { reliability, max_transfer_size, enable_rdma_write, enable_rdma_read } =
            self.attributes;
        let write = if enable_rdma_write { RDMA_WRITE } else { 0 };
        let read = if enable_rdma_read { RDMA_READ } else { 0 };
        let mut out = [0; HELLO_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..7].copy_from_slice(&[self.kind as u8, reliability.code(), write | read]);
        out[7..11].copy_from_slice(&max_transfer_size.to_be_bytes());
        for (i, discriminator) in [self.local, self.remote].iter().enumerate() {
            let (bytes, at) = (discriminator.bytes(), 13 + i * Discriminator::MAX_LEN);
            out[11 + i] = bytes.len() as u8;
            out[at..at + bytes.len()].copy_from_slice(bytes);
        }
        out
    }
    /// `None` for private data of another program.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.first_chunk()?;
        if bytes[..4] != MAGIC {
            return None;
        }
        let kind = match bytes[4] {
            0 => Kind::ClientServer,
            1 => Kind::Peer,
            _ => return None,
        };
        let discriminator = |i: usize| {
            let at = 13 + i * Discriminator::MAX_LEN;
            Discriminator::new(bytes[at..at + Discriminator::MAX_LEN].get(..bytes[11 + i].into())?).ok()
        };
        Some(Self {
            kind,
            local: discriminator(0)?,
            remote: discriminator(1)?,
            attributes: RemoteAttributes {
                reliability: Reliability::of_code(bytes[5])?,
                max_transfer_size: u32::from_be_bytes(bytes[7..11].try_into().expect("4 bytes")),
                enable_rdma_write: bytes[6] & RDMA_WRITE != 0,
                enable_rdma_read: bytes[6] & RDMA_READ != 0,
            },
        })
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoMatch = 1,
    Rejected = 2,
    Reliability = 3,
    Mtu = 4,
}

impl Refusal {
    pub(crate) fn bytes(self) -> [u8; REFUSAL_BYTES] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, self as u8]
    }
    /// The refusal by a VI; `None` for one by another program.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REFUSAL_BYTES] = bytes.first_chunk()?;
        let known = [Self::NoMatch, Self::Rejected, Self::Reliability, Self::Mtu];
        known.into_iter().find(|refusal| refusal.bytes() == *bytes)
    }
    pub(crate) fn error(self) -> Error {
        match self {
            Self::NoMatch => Error::NoMatch,
            Self::Rejected => Error::Rejected,
            Self::Reliability => Error::Reliability,
            Self::Mtu => Error::Mtu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let [local, remote] = [&b"me"[..], &[9; 16]].map(|bytes| Discriminator::new(bytes).unwrap());
        let attributes = RemoteAttributes {
            reliability: Reliability::Reception,
            max_transfer_size: 0x0102_0304,
            enable_rdma_write: false,
            enable_rdma_read: true,
        };
        Hello { kind: Kind::Peer, local, remote, attributes }
    }

    #[test]
    fn a_hello_is_parsed_to_the_same() {
        let bytes = hello().bytes();
        assert!(bytes.len() <= 56, "a request has no more room");
        assert_eq!(Hello::parse(&bytes), Some(hello()));
    }

    #[test]
    fn bytes_that_are_no_hello_are_none() {
        let good = hello().bytes();
        for (at, value) in [(0, b'X'), (4, 2), (5, 3), (11, 0), (12, 17)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Hello::parse(&bytes), None, "byte {at}");
        }
        assert_eq!(Hello::parse(&good[..HELLO_BYTES - 1]), None);
        assert_eq!(Refusal::parse(b"VIA1\x09"), None);
        assert_eq!(Refusal::parse(&Refusal::Mtu.bytes()), Some(Refusal::Mtu));
    }
}
