//! Service IDs, and the private data by which programs of IP addresses and ports connect: the annex of the
//! specification about connections by IP, in the form in which Linux's rdma_cm writes and reads it.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::{PrivateData, PrivateDataTooLong};

/// A service: a number of 64 bits at which programs listen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
/// As in `TCP port 7471`; a service that is not a port's as a number.
impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{space} port {port}"),
            None => write!(f, "service {:#018x}", self.0),
        }
    }
}

/// A space of port numbers. Ports of different spaces are different services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagrams to an IPoIB interface's groups.
    IpoIb = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// InfiniBand: services of which a program gives the number itself.
    Ib = 0x013f,
}

impl PortSpace {
    const ALL: [Self; 4] = [Self::IpoIb, Self::Tcp, Self::Udp, Self::Ib];
}
impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::IpoIb => "IPoIB",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Ib => "IB",
        })
    }
}

impl ServiceId {
    /// The service of a port.
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }
    /// The space and the port of this service; `None` if the service is not a port's.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = PortSpace::ALL.into_iter().find(|space| self.0 >> 16 == *space as u64)?;
        Some((space, self.0 as u16))
    }
}

/// The first 36 bytes of the private data of a REQ or a SIDR_REQ to a port: the addresses of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpHeader {
    source: SocketAddr,
    destination: IpAddr,
}

/// An error about the addresses in private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpHeaderError {
    /// An address of IPv4 and one of IPv6.
    #[error("a connection from {from} to {to}: both addresses have to be IPv4, or both IPv6")]
    Families {
        /// The source.
        from: IpAddr,
        /// The destination.
        to: IpAddr,
    },
    /// Private data of a version that is not known.
    #[error("private data of version {version:#x}: known is 0")]
    Version {
        /// The version.
        version: u8,
    },
    /// Private data with addresses of a family that is not known.
    #[error("private data with addresses of IP version {version}: known are 4 and 6")]
    IpVersion {
        /// The version of IP.
        version: u8,
    },
}

impl IpHeader {
    /// Bytes in private data.
    pub const BYTES: usize = 36;

    /// A header with these addresses; the port is the source's.
    ///
    /// # Errors
    /// One address is IPv4's and the other IPv6's.
    pub const fn new(source: SocketAddr, destination: IpAddr) -> Result<Self, IpHeaderError> {
        match (source.ip(), destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
                Ok(Self { source, destination })
            }
            (from, to) => Err(IpHeaderError::Families { from, to }),
        }
    }
    /// The address and the port of the side that connects.
    pub const fn source(&self) -> SocketAddr {
        self.source
    }
    /// The address of the side that listens. The port is in the service ID.
    pub const fn destination(&self) -> IpAddr {
        self.destination
    }

    /// Private data of `N` bytes: this header, and the program's data behind it.
    ///
    /// # Errors
    /// The data is longer than the `N` - 36 bytes behind the header.
    pub fn with_data<const N: usize>(&self, data: &[u8]) -> Result<PrivateData<N>, PrivateDataTooLong> {
        const { assert!(N >= Self::BYTES) };
        let too_long = PrivateDataTooLong { len: data.len(), max: N - Self::BYTES };
        let mut all = [0; N];
        let (header, room) = all.split_at_mut(Self::BYTES);
        header.copy_from_slice(&self.build());
        room.get_mut(..data.len()).ok_or(too_long)?.copy_from_slice(data);
        Ok(all.into())
    }
    /// Takes private data apart: the addresses, and the program's data.
    ///
    /// # Errors
    /// The version of the header or the version of IP is not known.
    pub fn parse<const N: usize>(data: &PrivateData<N>) -> Result<(Self, &[u8]), IpHeaderError> {
        const { assert!(N >= Self::BYTES) };
        let (header, rest) = data.bytes().split_at(Self::BYTES);
        let [version, ip_version, port @ ..] = [header[0], header[1] >> 4, header[2], header[3]];
        if version != 0 {
            return Err(IpHeaderError::Version { version });
        }
        let address = |offset: usize| match ip_version {
            4 => {
                let bytes: [u8; 4] = header[offset + 12..offset + 16].try_into().expect("4 bytes");
                Ok(IpAddr::V4(Ipv4Addr::from(bytes)))
            }
            6 => {
                let bytes: [u8; 16] = header[offset..offset + 16].try_into().expect("16 bytes");
                Ok(IpAddr::V6(Ipv6Addr::from(bytes)))
            }
            version => Err(IpHeaderError::IpVersion { version }),
        };
        let source = SocketAddr::new(address(4)?, u16::from_be_bytes(port));
        Ok((Self { source, destination: address(20)? }, rest))
    }
    fn build(&self) -> [u8; Self::BYTES] {
        let mut header = [0; Self::BYTES];
        header[1] = if self.destination.is_ipv4() { 4 << 4 } else { 6 << 4 };
        header[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        for (offset, ip) in [(4, self.source.ip()), (20, self.destination)] {
            match ip {
                IpAddr::V4(ip) => header[offset + 12..offset + 16].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => header[offset..offset + 16].copy_from_slice(&ip.octets()),
            }
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_service_of_its_space() {
        assert_eq!(ServiceId::of_port(PortSpace::Tcp, 7471), ServiceId(0x0106_1d2f));
        assert_eq!(ServiceId::of_port(PortSpace::Udp, 1), ServiceId(0x0111_0001));
        assert_eq!(ServiceId(0x0106_1d2f).port(), Some((PortSpace::Tcp, 7471)));
        assert_eq!(ServiceId(0x1_0106_1d2f).port(), None);
        assert_eq!(ServiceId(0x0106_1d2f).to_string(), "TCP port 7471");
        assert_eq!(ServiceId(5).to_string(), "service 0x0000000000000005");
    }

    #[test]
    fn addresses_stand_where_linux_has_them() {
        let header = IpHeader::new("10.0.0.1:258".parse().unwrap(), "10.0.0.2".parse().unwrap()).unwrap();
        let data = header.with_data::<40>(&[0xaa, 0xbb]).unwrap();
        let mut expected = [0; 40];
        expected[..4].copy_from_slice(&[0, 0x40, 1, 2]);
        expected[16..20].copy_from_slice(&[10, 0, 0, 1]);
        expected[32..38].copy_from_slice(&[10, 0, 0, 2, 0xaa, 0xbb]);
        assert_eq!(data.bytes(), &expected);
        assert_eq!(IpHeader::parse(&data), Ok((header, &[0xaa, 0xbb, 0, 0][..])));

        let header = IpHeader::new("[fe80::1]:9".parse().unwrap(), "fe80::2".parse().unwrap()).unwrap();
        let data = header.with_data::<36>(&[]).unwrap();
        assert_eq!(data.bytes()[..8], [0, 0x60, 0, 9, 0xfe, 0x80, 0, 0]);
        assert_eq!((data.bytes()[19], data.bytes()[35]), (1, 2));
        assert_eq!(IpHeader::parse(&data), Ok((header, &[][..])));
    }

    #[test]
    fn addresses_of_two_families_and_unknown_versions_are_refused() {
        let mixed = IpHeader::new("10.0.0.1:1".parse().unwrap(), "::1".parse().unwrap());
        assert!(matches!(mixed, Err(IpHeaderError::Families { .. })));
        for (bytes, error) in [
            ([1, 0x40], IpHeaderError::Version { version: 1 }),
            ([0, 0x50], IpHeaderError::IpVersion { version: 5 }),
        ] {
            assert_eq!(IpHeader::parse(&PrivateData::<92>::new(&bytes).unwrap()), Err(error));
        }
        let header = IpHeader::new("1.1.1.1:1".parse().unwrap(), "2.2.2.2".parse().unwrap()).unwrap();
        let too_long = PrivateDataTooLong { len: 57, max: 56 };
        assert_eq!(header.with_data::<92>(&[0; 57]), Err(too_long));
    }
}
