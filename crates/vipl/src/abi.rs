//! The layouts and numbers of `include/vipl.h`. All are plain numbers, so that any bytes of a C program are a value.

use std::net::IpAddr;

use hca::via::{
    Discriminator, Error, NetAddress, Reliability, RemoteAttributes, ReturnCode, ViAttributes, ViState,
};

use crate::border::Ptr;
use crate::memory;
use crate::table::Handle;

/// A return code other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Code {
    NotDone = 1,
    InvalidParameter,
    ErrorResource,
    Timeout,
    Reject,
    InvalidReliabilityLevel,
    InvalidMtu,
    InvalidQos,
    InvalidPtag,
    InvalidRdmaRead,
    DescriptorError,
    InvalidState,
    ErrorNameService,
    NoMatch,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Code>;

impl From<ReturnCode> for Code {
    fn from(code: ReturnCode) -> Self {
        match code {
            ReturnCode::InvalidParameter => Self::InvalidParameter,
            ReturnCode::Timeout => Self::Timeout,
            ReturnCode::Reject => Self::Reject,
            ReturnCode::InvalidReliabilityLevel => Self::InvalidReliabilityLevel,
            ReturnCode::InvalidMtu => Self::InvalidMtu,
            ReturnCode::InvalidPtag => Self::InvalidPtag,
            ReturnCode::InvalidRdmaRead => Self::InvalidRdmaRead,
            ReturnCode::InvalidState => Self::InvalidState,
            ReturnCode::ErrorNameService => Self::ErrorNameService,
            ReturnCode::NoMatch => Self::NoMatch,
            _ => Self::ErrorResource,
        }
    }
}
impl From<Error> for Code {
    fn from(error: Error) -> Self {
        error.code().into()
    }
}

/// `VIP_VI_ATTRIBUTES`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CViAttributes {
    reliability: u16,
    max_transfer_size: u64,
    qos: usize,
    ptag: Handle,
    enable_rdma_write: i32,
    enable_rdma_read: i32,
}

/// `VIP_MEM_ATTRIBUTES`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CMemAttributes {
    pub(crate) ptag: Handle,
    pub(crate) enable_rdma_write: i32,
    pub(crate) enable_rdma_read: i32,
}

/// `VIP_NIC_ATTRIBUTES`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CNicAttributes {
    pub(crate) name: [u8; 64],
    pub(crate) hardware_version: u64,
    pub(crate) provider_version: u64,
    pub(crate) nic_address_len: u16,
    pub(crate) local_nic_address: usize,
    pub(crate) thread_safe: i32,
    pub(crate) max_discriminator_len: u16,
    pub(crate) max_register_bytes: u64,
    pub(crate) max_register_regions: u64,
    pub(crate) max_register_block_bytes: u64,
    pub(crate) max_vi: u64,
    pub(crate) max_descriptors_per_queue: u64,
    pub(crate) max_segments_per_desc: u64,
    pub(crate) max_cq: u64,
    pub(crate) max_cq_entries: u64,
    pub(crate) max_transfer_size: u64,
    pub(crate) native_mtu: u64,
    pub(crate) max_ptags: u64,
    pub(crate) reliability_levels: u16,
    pub(crate) rdma_read_levels: u16,
}

/// `VIP_ERROR_DESCRIPTOR`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CErrorDescriptor {
    pub(crate) nic: Handle,
    pub(crate) vi: Handle,
    pub(crate) cq: Handle,
    pub(crate) descriptor: usize,
    pub(crate) op_code: u64,
    pub(crate) resource: u32,
    pub(crate) error: u32,
}

/// `VIP_AUTODISCOVERY_LIST`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CDiscovery {
    pub(crate) hops: u64,
    pub(crate) addresses: Ptr<CNetAddress>,
    pub(crate) len: u64,
}

/// The lengths at the beginning of a `VIP_NET_ADDRESS`, whose bytes follow.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CNetAddress {
    pub(crate) host_len: u16,
    pub(crate) discriminator_len: u16,
}

// As a C compiler lays them out for a machine with pointers of 64 bits: tests/c.rs asks one.
const _: () = assert!(size_of::<CViAttributes>() == 40 && size_of::<CMemAttributes>() == 16);
const _: () = assert!(size_of::<CNicAttributes>() == 200 && size_of::<CErrorDescriptor>() == 48);
const _: () = assert!(size_of::<CDiscovery>() == 24 && size_of::<CNetAddress>() == 4);

/// The bit of a level of reliability.
pub(crate) fn level_code(level: Reliability) -> u16 {
    match level {
        Reliability::Unreliable => 1,
        Reliability::Delivery => 2,
        Reliability::Reception => 4,
    }
}

/// The number of a state.
pub(crate) fn state_code(state: ViState) -> u32 {
    match state {
        ViState::Idle => 0,
        ViState::Connected => 1,
        ViState::ConnectPending => 2,
        ViState::Error => 3,
    }
}

impl CViAttributes {
    pub(crate) fn parse(&self) -> Result<ViAttributes> {
        let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
        let reliability = levels.into_iter().find(|&level| level_code(level) == self.reliability);
        let reliability = reliability.ok_or(Code::InvalidReliabilityLevel)?;
        if self.qos != 0 {
            return Err(Code::InvalidQos);
        }
        if self.enable_rdma_read != 0 && !reliability.is_reliable() {
            return Err(Code::InvalidRdmaRead);
        }
        Ok(ViAttributes {
            reliability,
            max_transfer_size: u32::try_from(self.max_transfer_size).map_err(|_| Code::InvalidMtu)?,
            ptag: memory::ptag(self.ptag)?,
            enable_rdma_write: self.enable_rdma_write != 0,
            enable_rdma_read: self.enable_rdma_read != 0,
        })
    }
    pub(crate) fn of(attributes: &ViAttributes) -> Self {
        Self {
            reliability: level_code(attributes.reliability),
            max_transfer_size: attributes.max_transfer_size.into(),
            qos: 0,
            ptag: memory::handle_of(&attributes.ptag),
            enable_rdma_write: attributes.enable_rdma_write.into(),
            enable_rdma_read: attributes.enable_rdma_read.into(),
        }
    }
    /// The attributes of a peer's VI, whose protection tag has no handle here.
    pub(crate) fn of_remote(attributes: &RemoteAttributes) -> Self {
        Self {
            reliability: level_code(attributes.reliability),
            max_transfer_size: attributes.max_transfer_size.into(),
            qos: 0,
            ptag: Handle::NONE,
            enable_rdma_write: attributes.enable_rdma_write.into(),
            enable_rdma_read: attributes.enable_rdma_read.into(),
        }
    }
}

/// The bytes of a host's address.
pub(crate) fn host_bytes(host: IpAddr) -> Vec<u8> {
    match host {
        IpAddr::V4(host) => host.octets().to_vec(),
        IpAddr::V6(host) => host.octets().to_vec(),
    }
}

/// A host's address of its bytes.
fn host_of(bytes: &[u8]) -> Result<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Ok(four.into());
    }
    <[u8; 16]>::try_from(bytes).map(Into::into).map_err(|_| Code::InvalidParameter)
}

impl Ptr<CNetAddress> {
    /// Reads the host's address and the bytes of the discriminator.
    fn parts(self) -> Result<(Vec<u8>, Vec<u8>)> {
        let CNetAddress { host_len, discriminator_len } = self.read()?;
        if host_len > 16 || usize::from(discriminator_len) > Discriminator::MAX_LEN {
            return Err(Code::InvalidParameter);
        }
        let mut bytes = self.bytes_behind(usize::from(host_len) + usize::from(discriminator_len))?;
        let discriminator = bytes.split_off(host_len.into());
        Ok((bytes, discriminator))
    }
    /// The host of an address.
    pub(crate) fn host(self) -> Result<IpAddr> {
        host_of(&self.parts()?.0)
    }
    /// The discriminator of a local address. The host may be left out, as the adapter has one.
    pub(crate) fn local(self, own: IpAddr) -> Result<Discriminator> {
        let (host, discriminator) = self.parts()?;
        if !host.is_empty() && host_of(&host)? != own {
            return Err(Code::InvalidParameter);
        }
        Ok(Discriminator::new(&discriminator)?)
    }
    /// The address of a peer.
    pub(crate) fn remote(self) -> Result<NetAddress> {
        let (host, discriminator) = self.parts()?;
        Ok(NetAddress { host: host_of(&host)?, discriminator: Discriminator::new(&discriminator)? })
    }
    /// Writes an address.
    pub(crate) fn set(self, host: IpAddr, discriminator: &[u8]) -> Result {
        let mut bytes = host_bytes(host);
        let host_len = bytes.len() as u16;
        bytes.extend_from_slice(discriminator);
        self.write(CNetAddress { host_len, discriminator_len: discriminator.len() as u16 })?;
        self.write_bytes_behind(&bytes)
    }
}
