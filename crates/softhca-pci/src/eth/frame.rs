//! The contents of a frame: the headers that flow tables match, and its checksums.

use hca_core::wire::ether_type::{IPV4, IPV6, VLAN as CUSTOMER_TAG};
pub(crate) use hca_core::wire::neighbour::Mac;
use hca_prm::command::ethernet::FteMatchSetLyr24;

/// Bytes of an Ethernet address, and of the shortest frame: two addresses and a type.
pub(crate) const MAC: usize = 6;
pub(crate) const MIN_FRAME: usize = 2 * MAC + 2;
/// Bytes of a VLAN tag.
pub(crate) const TAG: usize = 4;
/// The type of frames with an outer VLAN tag.
const SERVICE_TAG: u16 = 0x88a8;
/// Protocols above IP, and headers of IPv6 between.
const TCP: u8 = 6;
const UDP: u8 = 17;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// Headers of IPv6 that are followed.
const MAX_EXTENSIONS: usize = 8;
const IPV6_HEADER: usize = 40;

/// The headers of a frame as bytes of a criterion, which a mask is laid on.
pub(crate) type Fields = [u8; FteMatchSetLyr24::SIZE];

/// Whether frames to this address are for several.
pub(crate) fn is_group(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}

/// The address that a frame is for; the frame has one.
pub(crate) fn destination(frame: &[u8]) -> Mac {
    *frame.first_chunk().expect("no frame is shorter than its header")
}

/// The address that a frame comes from.
pub(crate) fn source(frame: &[u8]) -> Mac {
    *frame[size_of::<Mac>()..].first_chunk().expect("no frame is shorter than its header")
}

/// What is above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct L4 {
    pub(crate) tcp: bool,
    /// Where it begins, and where its data do.
    pub(crate) at: usize,
    pub(crate) data: usize,
    pub(crate) ports: [u8; 4],
    flags: u16,
}

/// The IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    pub(crate) v6: bool,
    /// Where it begins, where what is above it begins, and where that ends: behind it a frame is filled up.
    pub(crate) at: usize,
    pub(crate) above: usize,
    pub(crate) end: usize,
    pub(crate) protocol: u8,
    /// A part of a packet.
    pub(crate) fragment: bool,
    /// TCP or UDP, of a packet that is whole.
    pub(crate) l4: Option<L4>,
}

/// The headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    /// The outermost VLAN tag, if there is one, and whether it is a service provider's.
    pub(crate) tag: Option<(u16, bool)>,
    /// The type, behind tags.
    pub(crate) ethertype: u16,
    pub(crate) ip: Option<Ip>,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

impl Headers {
    /// Those of a frame, which is long enough to be one.
    pub(crate) fn of(frame: &[u8]) -> Self {
        let (tag, ethertype, at) = Self::ethernet(frame);
        let ip = match ethertype {
            IPV4 => ipv4(frame, at),
            IPV6 => ipv6(frame, at),
            _ => None,
        };
        Self { tag, ethertype, ip }
    }

    /// The tag, the type, and where what is behind them begins.
    fn ethernet(frame: &[u8]) -> (Option<(u16, bool)>, u16, usize) {
        let at = 2 * MAC;
        let ethertype = word(frame, at).unwrap_or_default();
        let tagged = matches!(ethertype, CUSTOMER_TAG | SERVICE_TAG);
        match (word(frame, at + 2), word(frame, at + TAG)) {
            (Some(tag), Some(inner)) if tagged => {
                (Some((tag, ethertype == SERVICE_TAG)), inner, at + TAG + 2)
            }
            _ => (None, ethertype, at + 2),
        }
    }

    /// Them as a criterion has them.
    pub(crate) fn fields(&self, frame: &[u8]) -> Fields {
        type F = FteMatchSetLyr24;
        let mut f = F::new();
        let [a, b, c, d, e, g] = destination(frame);
        f.set(F::DMAC_47_16, u32::from_be_bytes([a, b, c, d]))
            .set(F::DMAC_15_0, u32::from_be_bytes([0, 0, e, g]));
        let [a, b, c, d, e, g] = destination(&frame[MAC..]);
        f.set(F::SMAC_47_16, u32::from_be_bytes([a, b, c, d]))
            .set(F::SMAC_15_0, u32::from_be_bytes([0, 0, e, g]));
        f.set(F::ETHERTYPE, self.ethertype.into());
        if let Some((tag, service)) = self.tag {
            let tag = u32::from(tag);
            f.set(F::FIRST_PRIO, tag >> 13)
                .set(F::FIRST_CFI, tag >> 12 & 1 != 0)
                .set(F::FIRST_VID, tag & 0xfff);
            f.set(if service { F::SVLAN_TAG } else { F::CVLAN_TAG }, true);
        }
        if let Some(ip) = &self.ip {
            ip.fields(frame, &mut f);
        }
        *f.as_bytes()
    }
}

impl Ip {
    /// The addresses, from and to.
    pub(crate) fn addresses<'a>(&self, frame: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let (from, len) = if self.v6 { (8, 16) } else { (12, 4) };
        let both = &frame[self.at + from..self.at + from + 2 * len];
        both.split_at(len)
    }

    fn fields(&self, frame: &[u8], f: &mut FteMatchSetLyr24) {
        type F = FteMatchSetLyr24;
        let header = &frame[self.at..];
        let class = if self.v6 { header[0] << 4 | header[1] >> 4 } else { header[1] };
        let hops = if self.v6 { header[7] } else { header[8] };
        f.set(F::IP_VERSION, if self.v6 { 6 } else { 4 })
            .set(F::IP_PROTOCOL, self.protocol.into())
            .set(F::IP_DSCP, u32::from(class >> 2))
            .set(F::IP_ECN, u32::from(class & 3))
            .set(F::TTL_HOPLIMIT, hops.into())
            .set(F::FRAG, self.fragment);
        let (from, to) = self.addresses(frame);
        let wide = |address: &[u8]| {
            let mut wide = [0; 16];
            wide[16 - address.len()..].copy_from_slice(address);
            wide
        };
        f.set(F::SRC_IPV4_SRC_IPV6, wide(from)).set(F::DST_IPV4_DST_IPV6, wide(to));
        let Some(l4) = &self.l4 else { return };
        let [a, b, c, d] = l4.ports.map(u32::from);
        let (from, to) = (a << 8 | b, c << 8 | d);
        if l4.tcp {
            f.set(F::TCP_SPORT, from).set(F::TCP_DPORT, to).set(F::TCP_FLAGS, l4.flags.into());
        } else {
            f.set(F::UDP_SPORT, from).set(F::UDP_DPORT, to);
        }
    }

    /// The sum of what TCP and UDP put before themselves for their checksum.
    fn pseudo_header(&self, frame: &[u8]) -> u64 {
        let (from, to) = self.addresses(frame);
        sum(from) + sum(to) + u64::from(self.protocol) + (self.end - self.above) as u64
    }

    /// The sum over the packet above, which is 0xffff if its checksum is right.
    pub(super) fn sum_above(&self, frame: &[u8]) -> u16 {
        fold(self.pseudo_header(frame) + sum(&frame[self.above..self.end]))
    }
}

fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    let header = frame.get(at..at + 20)?;
    let length = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(word(header, 2)?);
    if header[0] >> 4 != 4 || length < 20 || total < length || at + length > frame.len() {
        return None;
    }
    let fragment = word(header, 6)? & 0x3fff != 0;
    let (above, end) = (at + length, frame.len().min(at + total));
    let whole = !fragment && at + total <= frame.len();
    let l4 = if whole { l4(&frame[..end], above, header[9]) } else { None };
    Some(Ip { v6: false, at, above, end, protocol: header[9], fragment, l4 })
}

fn ipv6(frame: &[u8], at: usize) -> Option<Ip> {
    let header = frame.get(at..at + IPV6_HEADER)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let total = IPV6_HEADER + usize::from(word(header, 4)?);
    let end = frame.len().min(at + total);
    let (mut protocol, mut above, mut fragment) = (header[6], at + IPV6_HEADER, false);
    for _ in 0..MAX_EXTENSIONS {
        let Some(extension) = frame[..end].get(above..above + 8) else { break };
        let length = match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION => 8 + usize::from(extension[1]) * 8,
            FRAGMENT => {
                fragment = true;
                8
            }
            _ => break,
        };
        if above + length > end {
            break;
        }
        (protocol, above) = (extension[0], above + length);
    }
    let whole = !fragment && at + total <= frame.len();
    let l4 = if whole { l4(&frame[..end], above, protocol) } else { None };
    Some(Ip { v6: true, at, above, end, protocol, fragment, l4 })
}

fn l4(packet: &[u8], at: usize, protocol: u8) -> Option<L4> {
    let header = packet.get(at..)?;
    let ports = *header.first_chunk()?;
    let (tcp, length, flags) = match protocol {
        TCP => {
            let offset = word(header.get(..20)?, 12)?;
            (true, usize::from(offset >> 12) * 4, offset & 0x1ff)
        }
        UDP => (false, 8, 0),
        _ => return None,
    };
    let fits = (8..=header.len()).contains(&length) && (!tcp || length >= 20);
    fits.then_some(L4 { tcp, at, data: at + length, ports, flags })
}

/// The sum of bytes as words in big endian.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let odd = last.first().map_or(0, |byte| u64::from(*byte) << 8);
    words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + odd
}

/// A sum in 16 bits, as one's complement adds.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Which checksums of a frame are right, and the sum of its IP packet.
pub(crate) fn check(frame: &[u8], ip: &Ip) -> (bool, bool, u16) {
    let header = ip.v6 || fold(sum(&frame[ip.at..ip.above])) == 0xffff;
    let above = ip.l4.is_some_and(|l4| {
        let unsaid = !l4.tcp && !ip.v6 && word(frame, l4.at + 6) == Some(0);
        unsaid || ip.sum_above(frame) == 0xffff
    });
    (header, above, fold(sum(&frame[ip.at..ip.end])))
}

/// Puts the checksums of the headers into a frame, as a request asks for them.
pub(crate) fn fill_checksums(frame: &mut [u8], of_ip: bool, above: bool) {
    let Some(ip) = Headers::of(frame).ip else { return };
    if of_ip && !ip.v6 {
        put(frame, ip.at + 10, 0);
        let sum = !fold(sum(&frame[ip.at..ip.above]));
        put(frame, ip.at + 10, sum);
    }
    if let Some(l4) = ip.l4.filter(|_| above) {
        let at = l4.at + if l4.tcp { 16 } else { 6 };
        put(frame, at, 0);
        let sum = !ip.sum_above(frame);
        // Of UDP, 0 says that there is none.
        put(frame, at, if sum == 0 && !l4.tcp { 0xffff } else { sum });
    }
}

pub(crate) fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Flags of TCP that belong to the first segment (CWR), and to the last one (FIN, PSH).
const FIRST_FLAGS: u8 = 0x80;
const LAST_FLAGS: u8 = 0x09;

/// Cuts a packet into segments of `mss` bytes behind `header` bytes of headers, each with these headers, changed as it
/// needs. `None`: it is none of TCP or UDP, or its headers end elsewhere.
pub(crate) fn segments(frame: &[u8], header: usize, mss: usize) -> Option<Vec<Vec<u8>>> {
    // The lengths in the headers are not yet right: they are looked at alone.
    let (head, data) = frame.split_at_checked(header)?;
    let mut head = head.to_vec();
    let (_, ethertype, at) = Headers::ethernet(&head);
    let v6 = ethertype == IPV6;
    if head.len() < at + if v6 { IPV6_HEADER } else { 20 } {
        return None;
    }
    let length_of = |head: &mut [u8], at: usize, v6: bool| {
        let (place, from) = if v6 { (at + 4, at + IPV6_HEADER) } else { (at + 2, at) };
        let length = (head.len() - from) as u16;
        put(head, place, length);
    };
    length_of(&mut head, at, v6);
    let l4 = Headers::of(&head).ip.and_then(|ip| ip.l4).filter(|l4| l4.data == header)?;
    let last = data.len().div_ceil(mss).max(1) - 1;
    let mut out = Vec::with_capacity(last + 1);
    for (i, part) in data.chunks(mss).enumerate() {
        let mut segment = head.clone();
        segment.extend_from_slice(part);
        length_of(&mut segment, at, v6);
        if !v6 {
            let id = word(&head, at + 4)?.wrapping_add(i as u16);
            put(&mut segment, at + 4, id);
        }
        if l4.tcp {
            let first = u32::from_be_bytes(*head[l4.at + 4..].first_chunk()?);
            let number = first.wrapping_add((i * mss) as u32);
            segment[l4.at + 4..l4.at + 8].copy_from_slice(&number.to_be_bytes());
            segment[l4.at + 13] &= if i == 0 { 0xff } else { !FIRST_FLAGS };
            segment[l4.at + 13] &= if i == last { 0xff } else { !LAST_FLAGS };
        } else {
            let length = (segment.len() - l4.at) as u16;
            put(&mut segment, l4.at + 4, length);
        }
        fill_checksums(&mut segment, true, true);
        out.push(segment);
    }
    Some(out)
}
