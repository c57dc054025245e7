//! Commands for ports, which are virtual ones of a function: their state, addresses and tables; and management
//! datagrams.

use crate::codes::codes;
use crate::layout;

commands! {
    list COMMANDS;

    /// Has the firmware answer a management datagram. `OP_MOD` is made of the bits of [`MadIfcIn`].
    MAD_IFC => MadIfcIn: 0x110 {
        /// The datagram.
        MAD: 0x10 [u8; 256],
    }, MadIfcOut: 0x110 {
        /// The answer.
        RESPONSE_MAD_PACKET: 0x10 [u8; 256],
    }

    /// Asks how an InfiniBand port is.
    QUERY_HCA_VPORT_CONTEXT => QueryHcaVportContextIn: 0x10 {
    }, QueryHcaVportContextOut: 0x210 {
        /// How it is.
        HCA_VPORT_CONTEXT: 0x10 {HcaVportContext},
    }

    /// Changes an InfiniBand port.
    MODIFY_HCA_VPORT_CONTEXT => ModifyHcaVportContextIn: 0x210 {
        /// It is another function's.
        OTHER_VPORT: 0x08 [31],
        /// What it shall be.
        HCA_VPORT_CONTEXT: 0x10 {HcaVportContext},
    }

    /// Asks for addresses of an InfiniBand port. GIDs of 16 bytes follow the output.
    QUERY_HCA_VPORT_GID => QueryHcaVportGidIn: 0x10 {
        /// Which one; 0xffff for all.
        GID_INDEX: 0x0c [15:0],
    }, QueryHcaVportGidOut: 0x10 {
        /// How many follow.
        GIDS_NUM: 0x0c [31:16],
    }

    /// Asks for partition keys of an InfiniBand port. [`VportPkey`] entries follow the output.
    QUERY_HCA_VPORT_PKEY => QueryHcaVportPkeyIn: 0x10 {
        /// Which one; 0xffff for all.
        PKEY_INDEX: 0x0c [15:0],
    }, QueryHcaVportPkeyOut: 0x10 {
    }

    /// Asks how a function's network interface is.
    QUERY_NIC_VPORT_CONTEXT => QueryNicVportContextIn: 0x10 {
    }, QueryNicVportContextOut: 0x110 {
        /// How it is, and then the list.
        NIC_VPORT_CONTEXT: 0x10 {NicVportContext},
    }

    /// Changes a function's network interface.
    MODIFY_NIC_VPORT_CONTEXT => ModifyNicVportContextIn: 0x200 {
        /// What is changed.
        FIELD_SELECT: 0x0c {NicVportFieldSelect},
        /// What it shall be, and then a list.
        NIC_VPORT_CONTEXT: 0x100 {NicVportContext},
    }

    /// Asks whether a function's port is up. `OP_MOD` is a [`VportStateMod`] code.
    QUERY_VPORT_STATE => QueryVportStateIn: 0x10 {
    }, QueryVportStateOut: 0x10 {
        /// What it shall be, a [`VportAdmin`] code.
        ADMIN_STATE: 0x0c [7:4],
        /// What it is: down (0), up (1).
        STATE: 0x0c [3:0],
    }

    /// Sets whether a function's port shall be up. `OP_MOD` is a [`VportStateMod`] code.
    MODIFY_VPORT_STATE => ModifyVportStateIn: 0x10 {
        /// What it shall be, a [`VportAdmin`] code.
        ADMIN_STATE: 0x0c [7:4],
    }

    /// Sets an address of a RoCE port.
    SET_ROCE_ADDRESS => SetRoceAddressIn: 0x30 {
        /// The one that was given.
        ROCE_ADDRESS_INDEX: 0x08 [31:16],
        /// The port, from 1.
        VHCA_PORT_NUM: 0x08 [3:0],
        /// The address; all zero takes it away.
        ROCE_ADDRESS: 0x10 {RoceAddr},
    }

    /// Asks for an address of a RoCE port.
    QUERY_ROCE_ADDRESS => QueryRoceAddressIn: 0x10 {
        /// The one that was given.
        ROCE_ADDRESS_INDEX: 0x08 [31:16],
    }, QueryRoceAddressOut: 0x30 {
        /// The address.
        ROCE_ADDRESS: 0x10 {RoceAddr},
    }

    /// Sets an Ethernet address that frames are received for.
    SET_L2_TABLE_ENTRY => SetL2TableEntryIn: 0x40 {
        /// Which entry.
        TABLE_INDEX: 0x14 [23:0],
        /// The address.
        MAC_ADDRESS: 0x20 {MacAddress},
    }

    /// Takes an entry of that table away.
    DELETE_L2_TABLE_ENTRY => DeleteL2TableEntryIn: 0x40 {
        /// Which entry.
        TABLE_INDEX: 0x14 [23:0],
    }
}

layout! {
    list LAYOUTS;

    /// The state of an InfiniBand port.
    pub struct HcaVportContext: 0x200 {
        /// What is changed, in a change.
        FIELD_SELECT: 0x00 [31:0],
        /// The link's state, numbered as in a PortInfo: 5 is up.
        PORT_PHYSICAL_STATE: 0x20 [15:12],
        /// What the virtual port follows: down (0), up (1), the link (2).
        VPORT_STATE_POLICY: 0x20 [11:8],
        /// The port's state: a [`PortState`] code.
        PORT_STATE: 0x20 [7:4],
        /// The virtual port's state: a [`PortState`] code.
        VPORT_STATE: 0x20 [3:0],
        /// The GUID of the whole adapter.
        SYSTEM_IMAGE_GUID: 0x28 [63:0],
        /// The GUID of the port.
        PORT_GUID: 0x30 [63:0],
        /// The GUID of the function.
        NODE_GUID: 0x38 [63:0],
        /// What the port can do, as in a PortInfo.
        CAP_MASK1: 0x40 [31:0],
        /// Which of that is changed, in a change.
        CAP_MASK1_FIELD_SELECT: 0x44 [31:0],
        /// Which of that is changed, in a change.
        CAP_MASK2_FIELD_SELECT: 0x4c [31:0],
        /// The local identifier.
        LID: 0x60 [31:16],
        /// How long an answer may take, as in a PortInfo.
        SUBNET_TIMEOUT: 0x60 [4:0],
        /// The subnet manager's local identifier.
        SM_LID: 0x64 [31:16],
        /// The subnet manager's service level.
        SM_SL: 0x64 [15:12],
    }

    /// A partition key in the answer to [`QueryHcaVportPkeyIn`].
    pub struct VportPkey: 0x4 {
        /// The key.
        PKEY: 0x00 [15:0],
    }

    /// The state of a function's network interface.
    pub struct NicVportContext: 0x100 {
        /// How much of the headers each send request must carry.
        MIN_WQE_INLINE_MODE: 0x00 [26:24],
        /// Multicast does not loop back.
        DISABLE_MC_LOCAL_LB: 0x00 [2],
        /// Unicast does not loop back.
        DISABLE_UC_LOCAL_LB: 0x00 [1],
        /// RDMA over Ethernet is on.
        ROCE_EN: 0x00 [0],
        /// The largest frame.
        MTU: 0x24 [15:0],
        /// The GUID of the whole adapter.
        SYSTEM_IMAGE_GUID: 0x28 [63:0],
        /// The GUID of the port.
        PORT_GUID: 0x30 [63:0],
        /// The GUID of the function.
        NODE_GUID: 0x38 [63:0],
        /// All multicast addresses are received.
        PROMISC_MC: 0xf0 [30],
        /// Everything is received.
        PROMISC_ALL: 0xf0 [29],
        /// Which list follows: an [`AllowedListType`] code.
        ALLOWED_LIST_TYPE: 0xf0 [26:24],
        /// Entries of that list: [`MacAddress`], or VLANs.
        ALLOWED_LIST_SIZE: 0xf0 [11:0],
        /// The interface's own address.
        PERMANENT_ADDRESS: 0xf4 {MacAddress},
    }

    /// The fields of a function's network interface that a command changes.
    pub struct NicVportFieldSelect: 0x4 {
        /// `DISABLE_UC_LOCAL_LB`.
        DISABLE_UC_LOCAL_LB: 0x00 [11],
        /// `DISABLE_MC_LOCAL_LB`.
        DISABLE_MC_LOCAL_LB: 0x00 [10],
        /// `MTU`.
        MTU: 0x00 [6],
        /// `PROMISC_UC`, `PROMISC_MC`, `PROMISC_ALL`.
        PROMISC: 0x00 [4],
        /// `PERMANENT_ADDRESS`.
        PERMANENT_ADDRESS: 0x00 [3],
        /// The list.
        ADDRESSES_LIST: 0x00 [2],
        /// `ROCE_EN`.
        ROCE_EN: 0x00 [1],
    }

    /// An entry that holds an Ethernet address.
    pub struct MacAddress: 0x8 {
        /// The upper part.
        MAC_ADDR_47_32: 0x00 [15:0],
        /// The lower part.
        MAC_ADDR_31_0: 0x04 [31:0],
    }

    /// An entry of a RoCE port's table of addresses.
    pub struct RoceAddr: 0x20 {
        /// The GID: an IPv6 address, or an IPv4 one as `::ffff:a.b.c.d`.
        SOURCE_L3_ADDRESS: 0x00 [u8; 16],
        /// The Ethernet address, upper part.
        SOURCE_MAC_47_32: 0x10 [15:0],
        /// The Ethernet address, lower part.
        SOURCE_MAC_31_0: 0x14 [31:0],
        /// Which IP: a [`RoceL3Type`] code.
        ROCE_L3_TYPE: 0x18 [11:8],
        /// Which RoCE: a [`RoceVersion`] code.
        ROCE_VERSION: 0x18 [7:0],
    }
}

macro_rules! mac {
    ($layout:ident, $upper:ident, $lower:ident) => {
        impl $layout {
            /// The Ethernet address of the entry.
            #[must_use]
            pub fn mac(&self) -> [u8; 6] {
                let [_, _, a, b] = self.get(Self::$upper).to_be_bytes();
                let [c, d, e, f] = self.get(Self::$lower).to_be_bytes();
                [a, b, c, d, e, f]
            }

            /// Sets the Ethernet address.
            pub fn set_mac(&mut self, [a, b, c, d, e, f]: [u8; 6]) -> &mut Self {
                self.set(Self::$upper, u32::from_be_bytes([0, 0, a, b]));
                self.set(Self::$lower, u32::from_be_bytes([c, d, e, f]))
            }
        }
    };
}

mac!(MacAddress, MAC_ADDR_47_32, MAC_ADDR_31_0);
mac!(RoceAddr, SOURCE_MAC_47_32, SOURCE_MAC_31_0);

codes! {
    /// State of a port, numbered as in a PortInfo.
    pub enum PortState {
        Nop = 0 "not said",
        Down = 1 "down",
        Init = 2 "initialised: the link is up, and the subnet manager has not been here",
        Armed = 3 "armed: the subnet manager is at work",
        Active = 4 "active",
    }

    /// The list of a network interface's context.
    pub enum AllowedListType {
        CurrentUcMacAddress = 0 "addresses",
        CurrentMcMacAddress = 1 "multicast addresses",
        VlanList = 2 "VLANs",
    }

    /// The object whose state a query is about.
    pub enum VportStateMod {
        VnicVport = 0 "that of the function's own port",
        EswVport = 1 "that of a port of the embedded switch",
        Uplink = 2 "that of the link",
    }

    /// The requested state of a port, in [`QueryVportStateOut::ADMIN_STATE`].
    pub enum VportAdmin {
        Down = 0 "down",
        Up = 1 "up",
        Follow = 2 "as the link is",
    }

    /// The version of RoCE of a GID.
    pub enum RoceVersion {
        V1 = 0 "frames with a type of their own",
        V2 = 2 "UDP",
    }

    /// The version of IP of a GID.
    pub enum RoceL3Type {
        Ipv4 = 0 "IPv4",
        Ipv6 = 1 "IPv6",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_is_put_together_from_its_parts() {
        let mut address = RoceAddr::new();
        address.set_mac([2, 3, 4, 5, 6, 7]);
        assert_eq!(address.as_bytes()[0x12..0x18], [2, 3, 4, 5, 6, 7]);
        assert_eq!(address.mac(), [2, 3, 4, 5, 6, 7]);
        let mut address = MacAddress::new();
        address.set_mac([2, 3, 4, 5, 6, 7]);
        assert_eq!(address.as_bytes(), &[0, 0, 2, 3, 4, 5, 6, 7]);
    }
}
