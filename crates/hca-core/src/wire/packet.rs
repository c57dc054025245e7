//! One transport packet, from BTH to the end of its payload.

use bytemuck::Pod;
use thiserror::Error;

use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Layout, Opcode, Rdeth, Reth, Xrceth,
};

/// An error of parsing a transport packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than the headers of the opcode need.
    #[error("packet of {len} bytes is shorter than the {need} bytes of its headers and padding")]
    Short {
        /// Bytes there.
        len: usize,
        /// Bytes needed.
        need: usize,
    },
    /// No packet has this opcode.
    #[error("opcode {0:#04x} is not defined")]
    UnknownOpcode(u8),
    /// The transport header version is not 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// The opcode has no payload, or the payload's length is not a multiple of 4.
    #[error("payload of {len} bytes (padding included) does not fit the opcode")]
    PayloadLength {
        /// Bytes behind the headers.
        len: usize,
    },
}

/// A parsed packet: views into the bytes that it was parsed from. The ICRC is not part of it.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    layout: &'static Layout,
    payload_end: usize,
}

impl<'a> Packet<'a> {
    /// Parses `bytes`, which begin with the BTH and end before the ICRC.
    ///
    /// # Errors
    /// A fault that the packet alone shows: too short, unknown opcode, wrong version, wrong pad count.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let short = |need| ParseError::Short { len: bytes.len(), need };
        let Some(head) = bytes.first_chunk::<{ Bth::BYTES }>() else { return Err(short(Bth::BYTES)) };
        let bth: &Bth = bytemuck::cast_ref(head);
        let Some(layout) = bth.opcode().layout() else {
            return Err(ParseError::UnknownOpcode(bth.opcode().raw()));
        };
        if bth.version() != 0 {
            return Err(ParseError::Version(bth.version()));
        }
        let headers = usize::from(layout.header_bytes);
        let need = headers + usize::from(bth.pad());
        if bytes.len() < need {
            return Err(short(need));
        }
        let behind = bytes.len() - headers;
        if !behind.is_multiple_of(4) || (!layout.payload && behind != 0) {
            return Err(ParseError::PayloadLength { len: behind });
        }
        Ok(Self { bytes, layout, payload_end: bytes.len() - usize::from(bth.pad()) })
    }
    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> &'a Bth {
        view(self.bytes, 0)
    }
    /// The operation code of the packet.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.bth().opcode()
    }
    /// The payload without padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[usize::from(self.layout.header_bytes)..self.payload_end]
    }
    /// All bytes, padding included, ICRC not.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
    fn ext<T: Pod>(&self, at: u8) -> Option<&'a T> {
        if at == 0 { None } else { Some(view(self.bytes, usize::from(at))) }
    }
    /// RDMA header, where the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.ext(self.layout.reth)
    }
    /// Flush header, where the opcode has one.
    pub fn feth(&self) -> Option<&'a Feth> {
        self.ext(self.layout.feth)
    }
    /// Acknowledgement header, where the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.ext(self.layout.aeth)
    }
    /// Atomic header, where the opcode has one.
    #[inline]
    pub fn atomic(&self) -> Option<&'a AtomicEth> {
        self.ext(self.layout.atomic)
    }
    /// Atomic acknowledgement, where the opcode has one.
    #[inline]
    pub fn atomic_ack(&self) -> Option<&'a AtomicAckEth> {
        self.ext(self.layout.atomic_ack)
    }
    /// Immediate data, where the opcode has it.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.ext::<ImmDt>(self.layout.imm).map(|i| i.data.get())
    }
    /// Key to invalidate, where the opcode has one.
    #[inline]
    pub fn ieth(&self) -> Option<&'a Ieth> {
        self.ext(self.layout.ieth)
    }
    /// Datagram header, where the opcode has one.
    #[inline]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.ext(self.layout.deth)
    }
    /// Reliable datagram header, where the opcode has one.
    pub fn rdeth(&self) -> Option<&'a Rdeth> {
        self.ext(self.layout.rdeth)
    }
    /// XRC header, where the opcode has one.
    pub fn xrceth(&self) -> Option<&'a Xrceth> {
        self.ext(self.layout.xrceth)
    }
}

#[inline]
fn view<T: Pod>(bytes: &[u8], at: usize) -> &T {
    bytemuck::from_bytes(&bytes[at..at + size_of::<T>()])
}

impl core::fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let bth = self.bth();
        let mut s = f.debug_struct("Packet");
        s.field("opcode", &self.opcode()).field("qpn", &bth.dest_qp()).field("psn", &bth.psn());
        if let Some(a) = self.aeth() {
            s.field("aeth", &Syndrome(a));
        }
        if let Some(r) = self.reth() {
            s.field("reth", r);
        }
        s.field("ack_req", &bth.ack_req()).field("payload", &self.payload().len()).finish()
    }
}

struct Syndrome<'a>(&'a Aeth);
impl core::fmt::Debug for Syndrome<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} msn {}", super::Syndrome::decode(self.0.syndrome), self.0.msn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An RC SEND only of 3 bytes and 1 byte of padding.
    const SEND: [u8; 16] = [0x04, 0x50, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 0, 1, b'a', b'b', b'c', 0];

    fn error(bytes: &[u8]) -> ParseError {
        Packet::parse(bytes).expect_err("must be refused")
    }

    #[test]
    fn the_payload_ends_before_the_padding() {
        let packet = Packet::parse(&SEND).unwrap();
        assert_eq!(packet.payload(), b"abc");
        assert_eq!(packet.bytes(), SEND);
        assert_eq!(packet.opcode(), Opcode::rc(crate::wire::PacketOp::SendOnly));
    }

    #[test]
    fn padding_that_is_longer_than_what_is_there_is_refused() {
        assert_eq!(error(&SEND[..12]), ParseError::Short { len: 12, need: 13 });
    }

    #[test]
    fn what_one_packet_alone_shows_to_be_wrong_is_named() {
        let with = |at: usize, byte: u8| {
            let mut bytes = SEND;
            bytes[at] = byte;
            error(&bytes)
        };
        assert_eq!(error(&SEND[..11]), ParseError::Short { len: 11, need: 12 });
        assert_eq!(error(&SEND[..15]), ParseError::PayloadLength { len: 3 });
        assert_eq!(with(0, 0x82), ParseError::UnknownOpcode(0x82));
        assert_eq!(with(1, 0x51), ParseError::Version(1));
        // The headers of a WRITE only, and an acknowledgement with a payload.
        assert_eq!(with(0, 0x0a), ParseError::Short { len: 16, need: 29 });
        let acknowledge = [&[0x11, 0x40][..], &SEND[2..], &[0; 4]].concat();
        assert_eq!(error(&acknowledge), ParseError::PayloadLength { len: 4 });
    }
}
