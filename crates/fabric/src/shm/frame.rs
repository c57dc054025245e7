//! The header of the messages over a socket.

pub(super) const MAGIC: [u8; 8] = *b"hca-shm\n";
/// Version of messages and of the layout of memory.
pub(super) const VERSION: u16 = 5;
/// Bytes of every message.
pub(super) const BYTES: usize = 96;
pub(super) const KIND_AT: usize = 10;

/// The reason why something received is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HelloFault {
    /// It is something else.
    #[error("the peer does not speak this protocol")]
    Magic,
    /// Another release.
    #[error("the peer speaks version {0}, this side {VERSION}: run the same release on both sides")]
    Version(u16),
    /// A field is out of range.
    #[error("the peer's {0} is out of range")]
    Field(&'static str),
    /// It is longer or shorter, or has other descriptors.
    #[error("the message has the wrong length or number of descriptors")]
    Length,
}

/// A message of this kind, of which only the header is there.
pub(super) fn header(kind: u8) -> [u8; BYTES] {
    let mut m = [0; BYTES];
    m[..8].copy_from_slice(&MAGIC);
    m[8..10].copy_from_slice(&VERSION.to_le_bytes());
    m[KIND_AT] = kind;
    m
}

/// The kind of a message.
pub(super) fn check_header(m: &[u8; BYTES]) -> Result<u8, HelloFault> {
    if m[..8] != MAGIC {
        return Err(HelloFault::Magic);
    }
    let version = u16::from_le_bytes([m[8], m[9]]);
    if version != VERSION {
        return Err(HelloFault::Version(version));
    }
    Ok(m[KIND_AT])
}
