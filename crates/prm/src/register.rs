//! Registers of ports and of management, which [`AccessRegIn`](crate::command::hca::AccessRegIn) reads and writes.

use crate::codes::codes;
use crate::layout;

codes! {
    /// The register that an access names.
    pub enum RegisterId {
        Pcap = 0x5001 "capabilities of a port (PCAP)",
        Pmlp = 0x5002 "the port's lanes (PMLP)",
        Pmtu = 0x5003 "packet sizes of a port (PMTU)",
        Ptys = 0x5004 "speeds of a port (PTYS)",
        Paos = 0x5006 "whether a port is up (PAOS)",
        Pfcc = 0x5007 "flow control of a port (PFCC)",
        Ppcnt = 0x5008 "counters of a port (PPCNT)",
        Pude = 0x5009 "a port has gone up or down (PUDE)",
        Pptb = 0x500b "priorities and buffers of a port (PPTB)",
        Pbmc = 0x500c "buffers of a port (PBMC)",
        Pelc = 0x500e "loopbacks of a port (PELC)",
        Pvlc = 0x500f "virtual lanes of a port (PVLC)",
        Pmpe = 0x5010 "events of a port's module (PMPE)",
        Pmaos = 0x5012 "whether a port's module is up (PMAOS)",
        Pplm = 0x5023 "error correction of a port (PPLM)",
        Pddr = 0x5031 "diagnosis of a port (PDDR)",
        Pcmr = 0x5041 "checks that a port makes (PCMR)",
        Pcam = 0x507f "which port registers there are (PCAM)",
        NodeDesc = 0x6001 "the node description",
        HostEndianness = 0x7004 "the byte order of the host",
        Mtcap = 0x9009 "which temperatures there are (MTCAP)",
        Mtmp = 0x900a "a temperature (MTMP)",
        Mcia = 0x9014 "the memory of a port's module (MCIA)",
        Mfrl = 0x9028 "resets of the firmware (MFRL)",
        Mcam = 0x907f "which management registers there are (MCAM)",
        Dtor = 0xc00e "how long things may take (DTOR)",
    }
}

codes! {
    /// The requested state of a port, in [`Paos::ADMIN_STATUS`].
    pub enum PortAdmin {
        Up = 1 "up",
        Down = 2 "down, as its driver wants it",
        UpOnce = 3 "up until it goes down",
        Disabled = 4 "down, as the system wants it",
    }

    /// The current state of a port, in [`Paos::OPER_STATUS`].
    pub enum PortOper {
        Up = 1 "up",
        Down = 2 "down",
    }
}

layout! {
    list LAYOUTS;

    /// The speeds of a port (PTYS).
    pub struct Ptys: 0x40 {
        /// The port, from 1.
        LOCAL_PORT: 0x00 [23:16],
        /// Which protocols are meant, [`Ptys::IB`] or [`Ptys::EN`].
        PROTO_MASK: 0x00 [2:0],
        /// Speeds of Ethernet that the port has, a bit each.
        ETH_PROTO_CAPABILITY: 0x0c [31:0],
        /// Widths of InfiniBand that the port has: 1, 2, 4 for one, two, four lanes, and so on.
        IB_LINK_WIDTH_CAPABILITY: 0x10 [31:16],
        /// Speeds of InfiniBand that the port has, numbered as in a PortInfo: 1 for SDR, 2 for DDR, and so on.
        IB_PROTO_CAPABILITY: 0x10 [15:0],
        /// Speeds of Ethernet that may be used.
        ETH_PROTO_ADMIN: 0x18 [31:0],
        /// Widths of InfiniBand that may be used.
        IB_LINK_WIDTH_ADMIN: 0x1c [31:16],
        /// Speeds of InfiniBand that may be used.
        IB_PROTO_ADMIN: 0x1c [15:0],
        /// The speed of Ethernet in use, by the newer numbers.
        EXT_ETH_PROTO_OPER: 0x20 [31:0],
        /// The speed of Ethernet in use.
        ETH_PROTO_OPER: 0x24 [31:0],
        /// The width of InfiniBand in use.
        IB_LINK_WIDTH_OPER: 0x28 [31:16],
        /// The speed of InfiniBand in use.
        IB_PROTO_OPER: 0x28 [15:0],
    }

    /// The packet sizes of a port (PMTU).
    pub struct Pmtu: 0x10 {
        /// The port, from 1.
        LOCAL_PORT: 0x00 [23:16],
        /// The largest that it can take: bytes of payload on InfiniBand, of a frame on Ethernet.
        MAX_MTU: 0x04 [31:16],
        /// The largest that it may take.
        ADMIN_MTU: 0x08 [31:16],
        /// The largest that it takes now.
        OPER_MTU: 0x0c [31:16],
    }

    /// The virtual lanes of a port (PVLC).
    pub struct Pvlc: 0x10 {
        /// The port, from 1.
        LOCAL_PORT: 0x00 [23:16],
        /// How many it has, numbered as in a PortInfo: 1 for one, 2 for two, 3 for four, 4 for eight.
        VL_HW_CAP: 0x04 [3:0],
        /// How many it may use.
        VL_ADMIN: 0x08 [3:0],
        /// How many it uses.
        VL_OPERATIONAL: 0x0c [3:0],
    }

    /// The administrative and operational state of a port (PAOS).
    pub struct Paos: 0x10 {
        /// The port, from 1.
        LOCAL_PORT: 0x00 [23:16],
        /// What it shall be, a [`PortAdmin`] code.
        ADMIN_STATUS: 0x00 [11:8],
        /// What it is, a [`PortOper`] code.
        OPER_STATUS: 0x00 [3:0],
        /// `ADMIN_STATUS` is written.
        ASE: 0x04 [31],
        /// When an event is made of a change: 0 never, 1 always, 2 once.
        E: 0x04 [1:0],
    }

    /// The node description, which the fabric's manager shows.
    pub struct NodeDesc: 0x40 {
    }

    /// The byte order of the host.
    pub struct HostEndianness: 0x10 {
        /// The host is big-endian.
        HE: 0x00 [31],
    }
}

impl Ptys {
    /// InfiniBand in [`Ptys::PROTO_MASK`].
    pub const IB: u32 = 1 << 0;
    /// Ethernet in [`Ptys::PROTO_MASK`].
    pub const EN: u32 = 1 << 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_raised_and_widened_by_these_bytes() {
        // The rows of paos_reg and pmtu_reg in Linux's mlx5_ifc.h.
        let up = Paos::new()
            .with(Paos::LOCAL_PORT, 1)
            .with(Paos::ADMIN_STATUS, PortAdmin::Up.code())
            .with(Paos::ASE, true);
        assert_eq!(up.as_bytes(), &[0, 1, 1, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let is_down = [0, 1, 2, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let is_down = Paos::from_bytes(&is_down).unwrap();
        assert_eq!(PortAdmin::from_code(is_down.get(Paos::ADMIN_STATUS)), Some(PortAdmin::Down));
        assert_eq!(PortOper::from_code(is_down.get(Paos::OPER_STATUS)), Some(PortOper::Down));
        assert_eq!((is_down.get(Paos::E), is_down.get(Paos::ASE)), (1, false));
        let wide = Pmtu::new().with(Pmtu::LOCAL_PORT, 1).with(Pmtu::ADMIN_MTU, 4222);
        assert_eq!(wide.as_bytes(), &[0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0x7e, 0, 0, 0, 0, 0, 0]);
    }
}
