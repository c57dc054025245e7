//! Packet sizes and their codes.

use hca_core::Mtu;

use crate::codes::codes;

codes! {
    /// The payload of a packet, in [`Qpc::MTU`](crate::Qpc::MTU).
    pub enum MtuCode {
        B256 = 1 "256 bytes",
        B512 = 2 "512 bytes",
        B1024 = 3 "1024 bytes",
        B2048 = 4 "2048 bytes",
        B4096 = 5 "4096 bytes",
        RawEthernet = 7 "what an Ethernet frame holds",
    }
}

impl MtuCode {
    /// The InfiniBand MTU of the code, if there is one.
    #[must_use]
    pub const fn mtu(self) -> Option<Mtu> {
        match self {
            Self::B256 => Some(Mtu::B256),
            Self::B512 => Some(Mtu::B512),
            Self::B1024 => Some(Mtu::B1024),
            Self::B2048 => Some(Mtu::B2048),
            Self::B4096 => Some(Mtu::B4096),
            Self::RawEthernet => None,
        }
    }
}

impl From<Mtu> for MtuCode {
    fn from(mtu: Mtu) -> Self {
        match mtu {
            Mtu::B256 => Self::B256,
            Mtu::B512 => Self::B512,
            Mtu::B1024 => Self::B1024,
            Mtu::B2048 => Self::B2048,
            Mtu::B4096 => Self::B4096,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_size_of_infiniband_has_its_code() {
        for mtu in Mtu::ALL {
            assert_eq!(MtuCode::from(mtu).mtu(), Some(mtu));
            assert_eq!(MtuCode::from(mtu).code(), u32::from(mtu.encoding()));
        }
        assert_eq!(MtuCode::from_code(6), None);
    }
}
