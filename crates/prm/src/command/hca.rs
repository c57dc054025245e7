//! Commands that set the adapter up: enabling, the interface's version, pages, capabilities, identity, registers.

use crate::codes::codes;
use crate::layout;

commands! {
    list COMMANDS;

    /// Makes the function usable; the first command of all.
    ENABLE_HCA => EnableHcaIn: 0x10 {
    }, EnableHcaOut: 0xc {
    }

    /// Makes the function unusable; the last command of all.
    DISABLE_HCA => DisableHcaIn: 0x10 {
    }, DisableHcaOut: 0xc {
    }

    /// Starts the adapter, after its capabilities are set and the pages for that are given.
    INIT_HCA => InitHcaIn: 0x20 {
    }

    /// Stops the adapter.
    TEARDOWN_HCA => TeardownHcaIn: 0x10 {
        /// A [`TeardownProfile`] code.
        PROFILE: 0x08 [15:0],
    }

    /// Asks which versions of the interface the adapter speaks.
    QUERY_ISSI => QueryIssiIn: 0x10 {
    }, QueryIssiOut: 0x70 {
        /// The version in use.
        CURRENT_ISSI: 0x08 [15:0],
        /// A bit for each version that the adapter speaks, bit 0 for version 0.
        SUPPORTED_ISSI_DW0: 0x6c [31:0],
    }

    /// Sets the version of the interface; before it, version 0 is in use.
    SET_ISSI => SetIssiIn: 0x10 {
        /// The version to use, 1 for all that this crate describes.
        CURRENT_ISSI: 0x08 [15:0],
    }

    /// Asks how many pages the adapter wants now; `OP_MOD` is a [`QueryPagesMod`] code.
    QUERY_PAGES => QueryPagesIn: 0x10 {
    }, QueryPagesOut: 0x10 {
        /// The function that wants them.
        FUNCTION_ID: 0x08 [15:0],
        /// Pages of 4 KiB that it wants; a negative number gives that many back.
        NUM_PAGES: 0x0c [31:0],
    }

    /// Gives pages to the adapter, or takes them back; `OP_MOD` is a [`ManagePagesMod`] code. The pages' addresses
    /// follow the input when they are given, and the output when they are taken; see [`pas`](crate::pas).
    MANAGE_PAGES => ManagePagesIn: 0x10 {
        /// The function meant, 0 for the one that the command is given to.
        FUNCTION_ID: 0x08 [15:0],
        /// Pages given, or the most to be taken back.
        INPUT_NUM_ENTRIES: 0x0c [31:0],
    }, ManagePagesOut: 0x10 {
        /// Pages that came back.
        OUTPUT_NUM_ENTRIES: 0x08 [31:0],
    }

    /// Asks what the adapter can do; `OP_MOD` is made by [`HcaCapType::op_mod`].
    QUERY_HCA_CAP => QueryHcaCapIn: 0x10 {
        /// The function meant is not the one that the command is given to.
        OTHER_FUNCTION: 0x08 [31],
    }, QueryHcaCapOut: 0x1010 {
        /// The capabilities, in the layout of their type.
        CAPABILITY: 0x10 [u8; 4096],
    }

    /// Chooses what the adapter shall do, before it is started; `OP_MOD` is the [`HcaCapType`] code shifted by 1.
    SET_HCA_CAP => SetHcaCapIn: 0x1010 {
        /// The function meant is not the one that the command is given to.
        OTHER_FUNCTION: 0x08 [31],
        /// The capabilities, in the layout of their type.
        CAPABILITY: 0x10 [u8; 4096],
    }

    /// Asks who made the adapter.
    QUERY_ADAPTER => QueryAdapterIn: 0x10 {
    }, QueryAdapterOut: 0x110 {
        /// Who made it.
        QUERY_ADAPTER_STRUCT: 0x10 {AdapterParamBlock},
    }

    /// Tells the firmware which driver it serves.
    SET_DRIVER_VERSION => SetDriverVersionIn: 0x50 {
        /// Text, such as `Linux,mlx5_core,1.0`, with zeros after it.
        DRIVER_VERSION: 0x10 [u8; 64],
    }

    /// Reads or writes a register; `OP_MOD` is an [`AccessRegMod`] code. The register's bytes follow the input, and
    /// the output.
    ACCESS_REG => AccessRegIn: 0x10 {
        /// Which register: a [`RegisterId`](crate::register::RegisterId) code.
        REGISTER_ID: 0x08 [15:0],
    }, AccessRegOut: 0x10 {
    }

    /// Does nothing, and thereby shows that commands are run.
    NOP => NopIn: 0x10 {
    }
}

layout! {
    list LAYOUTS;

    /// The adapter's vendor and board.
    pub struct AdapterParamBlock: 0x100 {
        /// The maker's number at the IEEE.
        IEEE_VENDOR_ID: 0x18 [23:0],
        /// The maker's number on the PCI bus.
        VSD_VENDOR_ID: 0x1c [15:0],
        /// The end of that text; its last 16 bytes are the board's name (PSID).
        VSD_CONTD_PSID: 0xf0 [u8; 16],
    }
}

codes! {
    /// The kind of capabilities that a query is about.
    pub enum HcaCapType {
        GeneralDevice = 0x0 "general ones",
        EthernetOffload = 0x1 "work that the adapter spares the processor on Ethernet",
        Odp = 0x2 "memory that is not there until it is used",
        Atomic = 0x3 "atomic operations",
        Roce = 0x4 "RDMA over Ethernet",
        IpoibOffload = 0x5 "work that the adapter spares the processor on IP over InfiniBand",
        IpoibEnhancedOffload = 0x6 "more such work",
        NicFlowTable = 0x7 "tables of flows",
        EswitchFlowTable = 0x8 "tables of flows of the embedded switch",
        Eswitch = 0x9 "the embedded switch",
        Qos = 0xc "quality of service",
        Debug = 0xd "means to look into the adapter",
        NvmeOverFabrics = 0xe "storage targets",
        DeviceMemory = 0xf "memory on the adapter",
        Tls = 0x11 "transport layer security",
        VirtioEmulation = 0x13 "emulated functions",
        DeviceEvent = 0x14 "events",
        Ipsec = 0x15 "security of IP",
        Crypto = 0x1a "encryption",
        Shampo = 0x1d "headers split from data",
        Macsec = 0x1f "security of Ethernet",
        GeneralDevice2 = 0x20 "general ones, continued",
        PortSelection = 0x25 "the choice among ports",
        AdvVirtualization = 0x26 "virtual functions",
        AdvRdma = 0x28 "more of RDMA",
    }

    /// The kind of pages that a query is about.
    pub enum QueryPagesMod {
        Boot = 0x1 "pages that the adapter needs before it is started",
        Init = 0x2 "pages that the adapter needs to be started",
        Regular = 0x3 "pages that the adapter wants now",
    }

    /// The operation on pages.
    pub enum ManagePagesMod {
        AllocationFail = 0x0 "the driver has none to give",
        AllocationSuccess = 0x1 "the driver gives pages",
        HcaReturnPages = 0x2 "the driver takes pages back",
    }

    /// The way of stopping the adapter.
    pub enum TeardownProfile {
        GracefulClose = 0x0 "all objects were destroyed before",
        ForceClose = 0x1 "at once",
        PrepareFastTeardown = 0x2 "ready to be stopped by the register of the network interface",
    }

    /// The operation on a register.
    pub enum AccessRegMod {
        Write = 0x0 "written",
        Read = 0x1 "read",
    }
}

impl HcaCapType {
    /// The `OP_MOD` of a query for the values in use, or for the largest allowed values.
    #[must_use]
    pub const fn op_mod(self, current: bool) -> u32 {
        self.code() << 1 | current as u32
    }

    /// The inverse of [`HcaCapType::op_mod`]; `None` for an unknown type.
    #[must_use]
    pub const fn from_op_mod(op_mod: u32) -> Option<(Self, bool)> {
        match Self::from_code(op_mod >> 1) {
            Some(kind) => Some((kind, op_mod & 1 != 0)),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_query_names_its_type_above_the_bit_for_current() {
        assert_eq!(HcaCapType::Roce.op_mod(true), 9);
        assert_eq!(HcaCapType::from_op_mod(8), Some((HcaCapType::Roce, false)));
        assert_eq!(HcaCapType::from_op_mod(0x14), None);
    }

    #[test]
    fn an_input_begins_with_its_operation_code() {
        let input = SetIssiIn::new().with(SetIssiIn::CURRENT_ISSI, 1);
        assert_eq!(input.as_bytes(), &[1, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    }
}
