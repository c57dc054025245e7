//! Queries of the kernel's tables of interfaces, routes and neighbours (rtnetlink), and of UDP sockets (sock_diag).
//!
//! The kernel answers within the call that sends the request, so this module never waits: if no answer is there when
//! the module reads it, the query has no answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, Protocol, Socket, Type};

use crate::own::Prefix;
use crate::raw::frame::Mac;

/// Bytes of one answer: an interface's with all its statistics and virtual functions.
// Numbers of <linux/if_link.h> that libc does not have.
const IFLA_GSO_MAX_SEGS: u16 = 40;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const ANSWER_BYTES: usize = 1 << 15;
const HEADER_BYTES: usize = 16;
/// Bytes of `ifinfomsg`, `ifaddrmsg`, `rtmsg` and `ndmsg`.
const LINK_BYTES: usize = 16;
const ADDR_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;
const NEIGH_BYTES: usize = 12;
// Of <linux/sock_diag.h> and <linux/inet_diag.h>: the bytes of `inet_diag_req_v2`, where `inet_diag_msg` has the inode.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const DIAG_BYTES: usize = 56;
const DIAG_INODE_AT: usize = 68;
/// States of a neighbour whose hardware address can be used.
const USABLE: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_PERMANENT
    | libc::NUD_NOARP;

/// An interface.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// As in `ARPHRD_ETHER`.
    pub(crate) kind: u16,
    pub(crate) flags: u32,
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: u32,
    /// Packets and bytes in a frame that it may be given uncut.
    pub(crate) uncut: (usize, usize),
}

/// An address of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) link: u32,
    /// Duplicates are still being looked for.
    pub(crate) tentative: bool,
}

impl Address {
    /// Whether another address lies in this one's network.
    pub(crate) fn holds(&self, other: IpAddr) -> bool {
        Prefix::new(self.ip, self.prefix).is_some_and(|prefix| prefix.holds(other))
    }
}

/// Where packets to an address go from an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To a host on the link: the address itself, or a gateway's.
    Via(IpAddr),
    /// The address is one of this machine's.
    Local,
    /// Nowhere.
    None,
}

/// What the kernel's table holds of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) mac: Mac,
    /// Not confirmed for a while.
    pub(crate) stale: bool,
}

/// A socket to the kernel's tables.
pub(crate) struct Netlink {
    socket: Socket,
    answer: Box<[u8]>,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        Self::to(libc::NETLINK_ROUTE)
    }

    /// To the table of sockets ([`udp_socket`](Self::udp_socket)).
    pub(crate) fn to_sockets() -> io::Result<Self> {
        Self::to(libc::NETLINK_SOCK_DIAG)
    }

    fn to(table: i32) -> io::Result<Self> {
        let domain = Domain::from(libc::AF_NETLINK);
        let kind = Type::RAW.nonblocking().cloexec();
        let socket = Socket::new(domain, kind, Some(Protocol::from(table)))?;
        Ok(Self { socket, answer: vec![0; ANSWER_BYTES].into_boxed_slice(), sequence: 0 })
    }

    /// The interface of this name.
    pub(crate) fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut zero_ended = name.as_bytes().to_vec();
        zero_ended.push(0);
        let request =
            Request::new(libc::RTM_GETLINK, 0, &[0; LINK_BYTES]).attribute(libc::IFLA_IFNAME, &zero_ended);
        let mut found = None;
        self.ask(request, |kind, body| found = found.take().or_else(|| parse_link(kind, body)))?;
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The names of all interfaces.
    pub(crate) fn link_names(&mut self) -> io::Result<Vec<String>> {
        let request = Request::new(libc::RTM_GETLINK, libc::NLM_F_DUMP as u16, &[0; LINK_BYTES]);
        let mut names = Vec::new();
        self.ask(request, |kind, body| names.extend(parse_link(kind, body).map(|l| l.name)))?;
        Ok(names)
    }

    /// The addresses of all interfaces.
    pub(crate) fn addresses(&mut self) -> io::Result<Vec<Address>> {
        let request = Request::new(libc::RTM_GETADDR, libc::NLM_F_DUMP as u16, &[0; ADDR_BYTES]);
        let mut all = Vec::new();
        self.ask(request, |kind, body| all.extend(parse_address(kind, body)))?;
        Ok(all)
    }

    /// Where packets from `src` to `dst` go by this interface.
    pub(crate) fn route(&mut self, link: u32, src: IpAddr, dst: IpAddr) -> io::Result<Route> {
        let mut head = [0; ROUTE_BYTES];
        head[0] = family(dst);
        let bits = if dst.is_ipv4() { 32 } else { 128 };
        (head[1], head[2]) = (bits, bits);
        let request = Request::new(libc::RTM_GETROUTE, 0, &head)
            .attribute(libc::RTA_DST, &octets(dst))
            .attribute(libc::RTA_SRC, &octets(src))
            .attribute(libc::RTA_OIF, &link.to_ne_bytes());
        let mut found = Route::None;
        let asked = self.ask(request, |kind, body| {
            if kind == libc::RTM_NEWROUTE {
                found = parse_route(dst, body);
            }
        });
        match asked.map_err(|e| (e.raw_os_error(), e)) {
            Ok(()) => Ok(found),
            Err((Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES | libc::EINVAL), _)) => {
                Ok(Route::None)
            }
            Err((_, e)) => Err(e),
        }
    }

    /// What the table holds of a neighbour; `None` if nothing that can be used.
    pub(crate) fn neighbour(&mut self, link: u32, ip: IpAddr) -> io::Result<Option<Neighbour>> {
        let request = Request::new(libc::RTM_GETNEIGH, 0, &neigh_head(link, ip, 0))
            .attribute(libc::NDA_DST, &octets(ip));
        let mut found = None;
        let asked = self.ask(request, |kind, body| found = parse_neighbour(kind, body));
        match asked {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
            Ok(()) => Ok(found),
        }
    }

    /// Has the kernel find out, or confirm, a neighbour's address. Needs CAP_NET_ADMIN.
    pub(crate) fn probe(&mut self, link: u32, ip: IpAddr) -> io::Result<()> {
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_ACK) as u16;
        let request = Request::new(libc::RTM_NEWNEIGH, flags, &neigh_head(link, ip, libc::NTF_USE))
            .attribute(libc::NDA_DST, &octets(ip));
        self.ask(request, |_, _| {})
    }

    /// The inode of the UDP socket that takes what comes to this address and port from anywhere. `None`: there is none,
    /// or the kernel was built without telling.
    pub(crate) fn udp_socket(&mut self, local: SocketAddr) -> io::Result<Option<u32>> {
        let mut head = [0; DIAG_BYTES];
        head[..2].copy_from_slice(&[family(local.ip()), libc::IPPROTO_UDP as u8]);
        head[4..8].fill(0xff);
        // What comes from a remote port 0 and address 0 to this one. A lookup by packet has local behind remote.
        head[10..12].copy_from_slice(&local.port().to_be_bytes());
        let octets = octets(local.ip());
        head[28..][..octets.len()].copy_from_slice(&octets);
        // No cookie.
        head[48..].fill(0xff);
        let mut found = None;
        let asked = self.ask(Request::new(SOCK_DIAG_BY_FAMILY, 0, &head), |kind, body| {
            found = word(body, DIAG_INODE_AT).filter(|_| kind == SOCK_DIAG_BY_FAMILY);
        });
        match asked {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
            Ok(()) => Ok(found),
        }
    }

    /// Sends a request and gives each message of the answer to `each`, as its kind and what follows the header.
    fn ask(&mut self, request: Request, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let dump = request.flags & libc::NLM_F_DUMP as u16 != 0;
        send(&self.socket, &request.finish(self.sequence), SendFlags::NOSIGNAL)?;
        loop {
            let len = match recv(self.socket.as_fd(), &mut self.answer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => len,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            let mut rest = &self.answer[..len];
            while let Some((message, next)) = cut_message(rest) {
                rest = next;
                if message.sequence != self.sequence {
                    continue;
                }
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return error_of(message.body),
                    _ => each(message.kind, message.body),
                }
                if !dump {
                    return Ok(());
                }
            }
        }
    }
}

fn error_of(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map(|b| i32::from_ne_bytes(*b)) {
        Some(0) => Ok(()),
        Some(negative) => Err(io::Error::from_raw_os_error(negative.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A request that is being put together.
struct Request {
    flags: u16,
    bytes: Vec<u8>,
}

impl Request {
    fn new(kind: u16, flags: u16, head: &[u8]) -> Self {
        let flags = flags | libc::NLM_F_REQUEST as u16;
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(head);
        Self { flags, bytes }
    }
    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }
    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The first message, and what follows it; `None` at the end, or where a length lies.
fn cut_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let head = bytes.first_chunk::<HEADER_BYTES>()?;
    let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let body = bytes.get(HEADER_BYTES..len)?;
    let kind = u16::from_ne_bytes([head[4], head[5]]);
    let sequence = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
    let rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((Message { kind, sequence, body }, rest))
}

/// The value of the first attribute of this kind behind a head of `head` bytes.
fn attribute(body: &[u8], head: usize, wanted: u16) -> Option<&[u8]> {
    const KIND: u16 = 0x3fff;
    let mut rest = body.get(head..)?;
    loop {
        let [l0, l1, k0, k1] = *rest.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = rest.get(4..len)?;
        if u16::from_ne_bytes([k0, k1]) & KIND == wanted {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|b| IpAddr::V4(Ipv4Addr::from_octets(*b))),
        16 => bytes.first_chunk::<16>().map(|b| IpAddr::V6(Ipv6Addr::from_octets(*b))),
        _ => None,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn neigh_head(link: u32, ip: IpAddr, flags: u8) -> [u8; NEIGH_BYTES] {
    let mut head = [0; NEIGH_BYTES];
    head[0] = family(ip);
    head[4..8].copy_from_slice(&link.to_ne_bytes());
    head[10] = flags;
    head
}

fn parse_link(kind: u16, body: &[u8]) -> Option<Link> {
    if kind != libc::RTM_NEWLINK {
        return None;
    }
    let name = attribute(body, LINK_BYTES, libc::IFLA_IFNAME)?;
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    Some(Link {
        index: word(body, 4)?,
        name: String::from_utf8_lossy(name).into_owned(),
        kind: u16::from_ne_bytes(*body.get(2..)?.first_chunk()?),
        flags: word(body, 8)?,
        mac: attribute(body, LINK_BYTES, libc::IFLA_ADDRESS).and_then(|a| a.try_into().ok()),
        mtu: attribute(body, LINK_BYTES, libc::IFLA_MTU).and_then(|v| word(v, 0))?,
        uncut: {
            let limit =
                |name| attribute(body, LINK_BYTES, name).and_then(|v| word(v, 0)).unwrap_or(1) as usize;
            (limit(IFLA_GSO_MAX_SEGS), limit(IFLA_GSO_MAX_SIZE))
        },
    })
}

fn parse_address(kind: u16, body: &[u8]) -> Option<Address> {
    if kind != libc::RTM_NEWADDR {
        return None;
    }
    // IFA_LOCAL is this end's, where there is one; IFA_ADDRESS may be the other end's.
    let ip =
        attribute(body, ADDR_BYTES, libc::IFA_LOCAL).or(attribute(body, ADDR_BYTES, libc::IFA_ADDRESS))?;
    let tentative = u32::from(*body.get(2)?) & libc::IFA_F_TENTATIVE != 0;
    Some(Address { ip: ip_of(ip)?, prefix: *body.get(1)?, link: word(body, 4)?, tentative })
}

fn parse_route(dst: IpAddr, body: &[u8]) -> Route {
    let via = attribute(body, ROUTE_BYTES, libc::RTA_VIA).and_then(|v| ip_of(v.get(2..)?));
    let gateway = attribute(body, ROUTE_BYTES, libc::RTA_GATEWAY).and_then(ip_of).or(via);
    match body.get(7).copied() {
        Some(libc::RTN_LOCAL) => Route::Local,
        Some(libc::RTN_UNICAST) => Route::Via(gateway.unwrap_or(dst)),
        _ => Route::None,
    }
}

fn parse_neighbour(kind: u16, body: &[u8]) -> Option<Neighbour> {
    if kind != libc::RTM_NEWNEIGH {
        return None;
    }
    let state = u16::from_ne_bytes(*body.get(8..)?.first_chunk()?);
    let mac = attribute(body, NEIGH_BYTES, libc::NDA_LLADDR)?.try_into().ok()?;
    (state & USABLE != 0).then_some(Neighbour { mac, stale: state & libc::NUD_STALE != 0 })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_socket_of_a_udp_port_is_told_by_its_inode() {
        let mut table = Netlink::to_sockets().unwrap();
        for ip in [IpAddr::from([127, 0, 0, 9]), Ipv6Addr::LOCALHOST.into()] {
            let Ok(socket) = UdpSocket::bind((ip, 0)) else { continue };
            let local = socket.local_addr().unwrap();
            // It is the same with a connected one beside it, which takes only what comes from its peer.
            let flow = UdpSocket::bind((ip, 0)).unwrap();
            flow.connect(local).unwrap();
            let found = table.udp_socket(local).unwrap();
            let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
            assert_eq!(found, Some(inode as u32), "{local}");
            assert_eq!(table.udp_socket(flow.local_addr().unwrap()).unwrap(), None, "it is connected");
            drop(socket);
            assert_eq!(table.udp_socket(local).unwrap(), None);
        }
    }
}
