//! Whole RoCEv2 frames, from Ethernet to ICRC: for captures, for raw sockets and for tools.
//!
//! ```
//! use hca_core::wire::frame::{Frame, FrameHead};
//! use hca_core::wire::{BthFlags, Opcode, PacketBuilder, PacketOp};
//! use hca_core::{Psn, Qpn};
//!
//! let packet = PacketBuilder::new(Opcode::rc(PacketOp::SendOnly), Qpn::new(7), Psn::new(1))
//!     .payload(b"hello")
//!     .build()
//!     .unwrap();
//! let head = FrameHead::new("127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap(), 49152).unwrap();
//! let mut frame = Vec::new();
//! head.write(&packet, &mut frame);
//! let parsed = Frame::parse(&frame).unwrap();
//! assert!(parsed.icrc_ok());
//! assert_eq!(parsed.packet.payload(), b"hello");
//! ```

use core::net::IpAddr;

use bytemuck::Pod;
use thiserror::Error;

use super::icrc::IpFlow;
use super::{
    Be16, Bth, EthernetHeader, ICRC_BYTES, Ipv4Header, Ipv6Header, Packet, ParseError, ROCEV2_PORT,
    UdpHeader, VlanTag, checksum, ether_type,
};

/// The most VLAN tags of a frame.
pub const MAX_VLAN_TAGS: usize = 2;

/// An error of parsing a RoCEv2 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A header, or the data that it announces, is truncated.
    #[error("frame ends after {len} bytes, but its {what} needs {need}")]
    Short {
        /// The header that is truncated.
        what: &'static str,
        /// Bytes there.
        len: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The EtherType is neither IPv4 nor IPv6.
    #[error("EtherType {0:#06x} is neither IPv4 nor IPv6")]
    EtherType(u16),
    /// The version field of the IP header does not fit the EtherType.
    #[error("IP version {version} in a frame of EtherType {ether_type:#06x}")]
    IpVersion {
        /// The EtherType of the frame.
        ether_type: u16,
        /// The version in the header.
        version: u8,
    },
    /// The IPv4 header is not 20 bytes long; RoCEv2 carries no options.
    #[error("IPv4 header of {0} bytes; RoCEv2 has 20")]
    Ipv4Options(usize),
    /// The packet is a fragment of an IPv4 datagram.
    #[error("IPv4 fragment; RoCEv2 packets are not fragmented")]
    Fragment,
    /// The protocol is not UDP.
    #[error("IP protocol {0} is not UDP")]
    Protocol(u8),
    /// The UDP port is not RoCEv2's.
    #[error("UDP destination port {0} is not that of RoCEv2 (4791)")]
    Port(u16),
    /// IP and UDP do not agree on the length.
    #[error("UDP length {udp} in an IP payload of {ip} bytes")]
    UdpLength {
        /// The length in the UDP header.
        udp: usize,
        /// The payload length in the IP header.
        ip: usize,
    },
    /// The transport packet is malformed.
    #[error(transparent)]
    Packet(#[from] ParseError),
}

/// The network header of a [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network<'a> {
    /// IPv4.
    V4(&'a Ipv4Header),
    /// IPv6.
    V6(&'a Ipv6Header),
}

/// A parsed frame: views into the bytes that it was parsed from.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Ethernet header.
    pub ethernet: &'a EthernetHeader,
    /// VLAN tags, outermost first.
    pub vlan: [Option<&'a VlanTag>; MAX_VLAN_TAGS],
    /// IP header.
    pub network: Network<'a>,
    /// UDP header.
    pub udp: &'a UdpHeader,
    /// Transport packet.
    pub packet: Packet<'a>,
    /// The ICRC field of the frame.
    pub icrc: u32,
}

impl<'a> Frame<'a> {
    /// Parses a frame from its Ethernet header on. Bytes behind the IP packet (Ethernet's padding and check sequence)
    /// are ignored. A wrong ICRC is not an error (see [`icrc_ok`](Self::icrc_ok)), because a super-frame that a capture
    /// took before segmentation has one.
    ///
    /// # Errors
    /// The first header that does not fit a RoCEv2 packet, and the reason.
    pub fn parse(frame: &'a [u8]) -> Result<Self, FrameError> {
        let mut rest = frame;
        let ethernet: &EthernetHeader = take(&mut rest, "Ethernet header")?;
        let mut kind = ethernet.ether_type.get();
        let mut vlan = [None; MAX_VLAN_TAGS];
        for slot in &mut vlan {
            if kind == ether_type::VLAN {
                let tag: &VlanTag = take(&mut rest, "VLAN tag")?;
                kind = tag.ether_type.get();
                *slot = Some(tag);
            }
        }
        let (network, protocol, ip_payload) = match kind {
            ether_type::IPV4 => parse_ipv4(&mut rest)?,
            ether_type::IPV6 => parse_ipv6(&mut rest)?,
            other => return Err(FrameError::EtherType(other)),
        };
        if protocol != UdpHeader::PROTOCOL {
            return Err(FrameError::Protocol(protocol));
        }
        let mut rest = rest.get(..ip_payload).ok_or(FrameError::Short {
            what: "IP payload",
            len: rest.len(),
            need: ip_payload,
        })?;
        let udp: &UdpHeader = take(&mut rest, "UDP header")?;
        if udp.dst_port.get() != ROCEV2_PORT {
            return Err(FrameError::Port(udp.dst_port.get()));
        }
        let udp_len = usize::from(udp.len.get());
        if udp_len != ip_payload {
            return Err(FrameError::UdpLength { udp: udp_len, ip: ip_payload });
        }
        let Some((packet, icrc)) = rest.split_last_chunk::<ICRC_BYTES>() else {
            return Err(FrameError::Short { what: "ICRC", len: rest.len(), need: Bth::BYTES + ICRC_BYTES });
        };
        let packet = Packet::parse(packet)?;
        Ok(Self { ethernet, vlan, network, udp, packet, icrc: u32::from_le_bytes(*icrc) })
    }

    /// The flow that the packet belongs to.
    pub fn flow(&self) -> IpFlow {
        let src_port = self.udp.src_port.get();
        match self.network {
            Network::V4(h) => IpFlow::V4 { src: h.src(), dst: h.dst(), src_port },
            Network::V6(h) => IpFlow::V6 { src: h.src(), dst: h.dst(), src_port },
        }
    }
    /// The correct ICRC of the frame's headers and bytes.
    pub fn expected_icrc(&self) -> u32 {
        let (ident, flags) = match self.network {
            Network::V4(h) => (h.ident.get(), h.flags_offset.get()),
            Network::V6(_) => (0, 0),
        };
        self.flow().icrc_with_flags(ident, flags, self.packet.bytes())
    }
    /// Whether the frame carries the correct ICRC.
    pub fn icrc_ok(&self) -> bool {
        self.icrc == self.expected_icrc()
    }
    /// The headers, as [`FrameHead::write`] takes them to build this frame again. Only the outermost VLAN tag is kept.
    pub fn head(&self) -> FrameHead {
        let (traffic_class, hop_limit, ident, flags, flow_label) = match self.network {
            Network::V4(h) => (h.tos, h.ttl, h.ident.get(), h.flags_offset.get(), 0),
            Network::V6(h) => (h.traffic_class(), h.hop_limit, 0, 0, h.flow_label()),
        };
        FrameHead {
            src_mac: self.ethernet.src,
            dst_mac: self.ethernet.dst,
            vlan: self.vlan[0].map(|tag| (tag.priority(), tag.vid())),
            flow: self.flow(),
            traffic_class,
            hop_limit,
            ident,
            flags,
            flow_label,
            udp_checksum: self.udp.checksum.get() != 0,
        }
    }
}

/// Cuts a header off the front of `rest`.
fn take<'a, T: Pod>(rest: &mut &'a [u8], what: &'static str) -> Result<&'a T, FrameError> {
    let (head, tail) = rest.split_at_checked(size_of::<T>()).ok_or(FrameError::Short {
        what,
        len: rest.len(),
        need: size_of::<T>(),
    })?;
    *rest = tail;
    Ok(bytemuck::from_bytes(head))
}

/// The header, the protocol behind it, and the bytes that it says to follow.
fn parse_ipv4<'a>(rest: &mut &'a [u8]) -> Result<(Network<'a>, u8, usize), FrameError> {
    let h: &Ipv4Header = take(rest, "IPv4 header")?;
    if h.version() != 4 {
        return Err(FrameError::IpVersion { ether_type: ether_type::IPV4, version: h.version() });
    }
    if h.header_bytes() != Ipv4Header::BYTES {
        return Err(FrameError::Ipv4Options(h.header_bytes()));
    }
    if h.is_fragment() {
        return Err(FrameError::Fragment);
    }
    let total = usize::from(h.total_len.get());
    let payload = total.checked_sub(Ipv4Header::BYTES).ok_or(FrameError::Short {
        what: "IPv4 header",
        len: total,
        need: Ipv4Header::BYTES,
    })?;
    Ok((Network::V4(h), h.protocol, payload))
}

/// Like [`parse_ipv4`].
fn parse_ipv6<'a>(rest: &mut &'a [u8]) -> Result<(Network<'a>, u8, usize), FrameError> {
    let h: &Ipv6Header = take(rest, "IPv6 header")?;
    if h.version() != 6 {
        return Err(FrameError::IpVersion { ether_type: ether_type::IPV6, version: h.version() });
    }
    Ok((Network::V6(h), h.next_header, usize::from(h.payload_len.get())))
}

/// The headers before the BTH, as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Ethernet source address.
    pub src_mac: [u8; 6],
    /// Ethernet destination address.
    pub dst_mac: [u8; 6],
    /// Priority and identifier of a VLAN tag.
    pub vlan: Option<(u8, u16)>,
    /// IP addresses and UDP source port.
    pub flow: IpFlow,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// IPv4 Identification.
    pub ident: u16,
    /// IPv4 flags and fragment offset.
    pub flags: u16,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Whether the UDP header carries a checksum: adapters send none on IPv4, the RFC wants one on IPv6.
    pub udp_checksum: bool,
}

impl FrameHead {
    /// Headers of a flow: no MAC addresses, no VLAN, hop limit 64, DF set, a UDP checksum on IPv6 only,
    /// all else 0. `None` if the addresses are of different IP versions.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Option<Self> {
        Some(Self {
            src_mac: [0; 6],
            dst_mac: [0; 6],
            vlan: None,
            flow: IpFlow::new(src, dst, src_port)?,
            traffic_class: 0,
            hop_limit: 64,
            ident: 0,
            flags: Ipv4Header::DONT_FRAGMENT,
            flow_label: 0,
            udp_checksum: src.is_ipv6(),
        })
    }

    /// Appends a frame to `out`: these headers with their lengths and checksums, `packet` (BTH to
    /// padding), and its ICRC.
    ///
    /// # Panics
    /// When `packet` is shorter than a BTH, or longer than IP can carry.
    pub fn write(&self, packet: &[u8], out: &mut Vec<u8>) {
        let icrc = self.flow.icrc_with_flags(self.ident, self.flags, packet);
        self.write_parts(packet, &icrc.to_le_bytes(), out);
    }

    /// Like [`write`](Self::write), for a `payload` that ends with its ICRC.
    ///
    /// # Panics
    /// When `payload` is longer than IP can carry.
    pub fn write_with_icrc(&self, payload: &[u8], out: &mut Vec<u8>) {
        self.write_parts(payload, &[], out);
    }

    fn write_parts(&self, packet: &[u8], icrc: &[u8], out: &mut Vec<u8>) {
        let room = usize::from(u16::MAX) - Ipv4Header::BYTES;
        let udp_len = UdpHeader::BYTES + packet.len() + icrc.len();
        assert!(udp_len <= room, "a UDP datagram of {udp_len} bytes; IP carries at most {room}");
        let udp_len = udp_len as u16;

        let ip_type = match self.flow {
            IpFlow::V4 { .. } => ether_type::IPV4,
            IpFlow::V6 { .. } => ether_type::IPV6,
        };
        let outer = if self.vlan.is_some() { ether_type::VLAN } else { ip_type };
        let ethernet = EthernetHeader { dst: self.dst_mac, src: self.src_mac, ether_type: Be16::new(outer) };
        out.extend_from_slice(bytemuck::bytes_of(&ethernet));
        if let Some((priority, vid)) = self.vlan {
            out.extend_from_slice(bytemuck::bytes_of(&VlanTag::new(priority, vid, ip_type)));
        }
        let src_port = match self.flow {
            IpFlow::V4 { src, dst, src_port } => {
                let mut ip = Ipv4Header::new(src, dst, udp_len + Ipv4Header::BYTES as u16);
                ip.tos = self.traffic_class;
                ip.ttl = self.hop_limit;
                ip.ident = Be16::new(self.ident);
                ip.flags_offset = Be16::new(self.flags);
                out.extend_from_slice(bytemuck::bytes_of(&ip.with_checksum()));
                src_port
            }
            IpFlow::V6 { src, dst, src_port } => {
                let ip =
                    Ipv6Header::new(src, dst, udp_len, self.traffic_class, self.flow_label, self.hop_limit);
                out.extend_from_slice(bytemuck::bytes_of(&ip));
                src_port
            }
        };
        let mut udp = UdpHeader {
            src_port: Be16::new(src_port),
            dst_port: Be16::new(ROCEV2_PORT),
            len: Be16::new(udp_len),
            checksum: Be16::new(0),
        };
        if self.udp_checksum {
            udp.checksum = Be16::new(self.checksum_of(&udp, packet, icrc));
        }
        out.extend_from_slice(bytemuck::bytes_of(&udp));
        out.extend_from_slice(packet);
        out.extend_from_slice(icrc);
    }

    /// The UDP checksum: over the pseudo header, the UDP header and all behind it.
    fn checksum_of(&self, udp: &UdpHeader, packet: &[u8], icrc: &[u8]) -> u16 {
        let numbers = [[0, UdpHeader::PROTOCOL], udp.len.get().to_be_bytes()].concat();
        let sum = |src: &[u8], dst: &[u8]| {
            checksum::of(&[src, dst, &numbers, bytemuck::bytes_of(udp), packet, icrc])
        };
        let sum = match self.flow {
            IpFlow::V4 { src, dst, .. } => sum(&src.octets(), &dst.octets()),
            IpFlow::V6 { src, dst, .. } => sum(&src.octets(), &dst.octets()),
        };
        // A sum of 0 would mean "none"; its other representation is sent instead.
        if sum == 0 { 0xffff } else { sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A notification packet as a ConnectX-4 Lx sent it, padded to nothing, ICRC included.
    const CNP: [u8; 74] = [
        0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00, // Ethernet
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, // IPv4
        0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01, // its addresses
        0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, // UDP
        0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, // BTH
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // reserved
        0x82, 0xfd, 0x00, 0x2a, // ICRC
    ];

    #[test]
    fn the_frame_of_an_adapter_is_parsed_and_built_again() {
        let frame = Frame::parse(&CNP).unwrap();
        assert!(frame.icrc_ok() && frame.packet.bth().becn());
        let mut again = Vec::new();
        frame.head().write(frame.packet.bytes(), &mut again);
        assert_eq!(again, CNP);
    }

    #[test]
    fn padding_of_the_link_is_left_alone_and_a_cut_frame_is_refused() {
        let padded = [&CNP[..], &[0xee; 9]].concat();
        assert!(Frame::parse(&padded).unwrap().icrc_ok());
        for len in 0..CNP.len() {
            assert!(matches!(Frame::parse(&CNP[..len]), Err(FrameError::Short { .. })), "{len} bytes");
        }
    }

    #[test]
    fn every_header_that_is_not_of_rocev2_is_named() {
        let with = |at: usize, byte: u8| {
            let mut f = CNP;
            f[at] = byte;
            Frame::parse(&f).map(|f| f.icrc_ok())
        };
        assert_eq!(with(12, 0x09), Err(FrameError::EtherType(0x0900)));
        assert_eq!(with(14, 0x65), Err(FrameError::IpVersion { ether_type: ether_type::IPV4, version: 6 }));
        assert_eq!(with(14, 0x46), Err(FrameError::Ipv4Options(24)));
        assert_eq!(with(20, 0x20), Err(FrameError::Fragment));
        assert_eq!(with(23, 6), Err(FrameError::Protocol(6)));
        assert_eq!(with(37, 0xb8), Err(FrameError::Port(4792)));
        assert_eq!(with(39, 0x24), Err(FrameError::UdpLength { udp: 36, ip: 40 }));
        assert_eq!(with(42, 0x82), Err(FrameError::Packet(ParseError::UnknownOpcode(0x82))));
        assert!(matches!(with(17, 0x13), Err(FrameError::Short { what: "IPv4 header", len: 19, .. })));
    }

    #[test]
    fn the_icrc_covers_identification_and_flags_but_not_what_routers_change() {
        let with = |at: usize| {
            let mut f = CNP;
            f[at] ^= 0x80;
            Frame::parse(&f).unwrap().icrc_ok()
        };
        for (at, covered) in [
            (15, false), // TOS
            (18, true),  // Identification
            (20, true),  // flags
            (22, false), // TTL
            (24, false), // IPv4 checksum
            (26, true),  // source
            (33, true),  // destination
            (34, true),  // source port
            (40, false), // UDP checksum
            (44, true),  // P_Key
            (46, false), // FECN
            (47, true),  // destination queue pair
            (69, true),  // payload
            (73, true),  // the ICRC itself
        ] {
            assert_eq!(!with(at), covered, "byte {at}");
        }
    }

    #[test]
    fn a_frame_with_two_vlan_tags_over_ipv6_is_parsed() {
        let mut head = FrameHead::new("::1".parse().unwrap(), "::2".parse().unwrap(), 50_000).unwrap();
        head.vlan = Some((3, 100));
        let mut one = Vec::new();
        head.write(Frame::parse(&CNP).unwrap().packet.bytes(), &mut one);
        assert_eq!(Frame::parse(&one).unwrap().head(), FrameHead { flags: 0, ..head });
        let outer = VlanTag::new(1, 7, ether_type::VLAN);
        let two = [&one[..14], bytemuck::bytes_of(&outer), &one[14..]].concat();
        let frame = Frame::parse(&two).unwrap();
        assert!(frame.icrc_ok());
        assert_eq!(frame.vlan.map(|t| t.map(VlanTag::vid)), [Some(7), Some(100)]);
        let three = [&two[..14], bytemuck::bytes_of(&outer), &two[14..]].concat();
        assert_eq!(Frame::parse(&three).unwrap_err(), FrameError::EtherType(ether_type::VLAN));
    }
}
