//! Commands for shared receive queues: of version 0 of the interface, of extended reliable connections, and receive
//! memory pools (RMP), which are the shared receive queues of version 1.

use crate::context::{Rmpc, Srqc, XrcSrqc};

commands! {
    list COMMANDS;

    /// Makes a shared receive queue. The addresses of its pages follow.
    CREATE_SRQ => CreateSrqIn: 0x110 {
        /// What it shall be.
        SRQ_CONTEXT_ENTRY: 0x10 {Srqc},
    }, CreateSrqOut: 0x10 {
        /// The number.
        SRQN: 0x08 [23:0],
    }

    /// Takes a shared receive queue away.
    DESTROY_SRQ => DestroySrqIn: 0x10 {
        /// The number.
        SRQN: 0x08 [23:0],
    }

    /// Asks how a shared receive queue is. The addresses of its pages follow the output.
    QUERY_SRQ => QuerySrqIn: 0x10 {
        /// The number.
        SRQN: 0x08 [23:0],
    }, QuerySrqOut: 0x110 {
        /// How it is.
        SRQ_CONTEXT_ENTRY: 0x10 {Srqc},
    }

    /// Arms a shared receive queue: an event when it has few requests left. `OP_MOD` is [`ArmRqIn::SRQ`].
    ARM_RQ => ArmRqIn: 0x10 {
        /// The number.
        SRQ_NUMBER: 0x08 [23:0],
        /// How few.
        LWM: 0x0c [15:0],
    }

    /// Makes a shared receive queue of extended reliable connections. The addresses of its pages follow.
    CREATE_XRC_SRQ => CreateXrcSrqIn: 0x110 {
        /// What it shall be.
        XRC_SRQ_CONTEXT_ENTRY: 0x10 {XrcSrqc},
    }, CreateXrcSrqOut: 0x10 {
        /// The number.
        XRC_SRQN: 0x08 [23:0],
    }

    /// Takes a shared receive queue of extended reliable connections away.
    DESTROY_XRC_SRQ => DestroyXrcSrqIn: 0x10 {
        /// The number.
        XRC_SRQN: 0x08 [23:0],
    }

    /// Asks how a shared receive queue of extended reliable connections is. The addresses of its pages follow the
    /// output.
    QUERY_XRC_SRQ => QueryXrcSrqIn: 0x10 {
        /// The number.
        XRC_SRQN: 0x08 [23:0],
    }, QueryXrcSrqOut: 0x110 {
        /// How it is.
        XRC_SRQ_CONTEXT_ENTRY: 0x10 {XrcSrqc},
    }

    /// Arms a shared receive queue of extended reliable connections. `OP_MOD` is [`ArmXrcSrqIn::XRC_SRQ`].
    ARM_XRC_SRQ => ArmXrcSrqIn: 0x10 {
        /// The number.
        XRC_SRQN: 0x08 [23:0],
        /// How few.
        LWM: 0x0c [15:0],
    }

    /// Makes a receive memory pool. The addresses of its pages follow.
    CREATE_RMP => CreateRmpIn: 0x110 {
        /// What it shall be.
        CTX: 0x20 {Rmpc},
    }, CreateRmpOut: 0x10 {
        /// The number.
        RMPN: 0x08 [23:0],
    }

    /// Changes a receive memory pool; thereby it is armed.
    MODIFY_RMP => ModifyRmpIn: 0x110 {
        /// The state that it has now.
        RMP_STATE: 0x08 [31:28],
        /// The number.
        RMPN: 0x08 [23:0],
        /// `LWM` of the queue is changed.
        LWM: 0x14 [0],
        /// What it shall be.
        CTX: 0x20 {Rmpc},
    }

    /// Takes a receive memory pool away.
    DESTROY_RMP => DestroyRmpIn: 0x10 {
        /// The number.
        RMPN: 0x08 [23:0],
    }

    /// Asks how a receive memory pool is. The addresses of its pages follow the output.
    QUERY_RMP => QueryRmpIn: 0x10 {
        /// The number.
        RMPN: 0x08 [23:0],
    }, QueryRmpOut: 0x110 {
        /// How it is.
        RMP_CONTEXT: 0x20 {Rmpc},
    }
}

impl ArmRqIn {
    /// The type of a number that names a shared receive queue.
    pub const SRQ: u32 = 1;
}

impl ArmXrcSrqIn {
    /// The type of a number that names a shared receive queue of extended reliable connections.
    pub const XRC_SRQ: u32 = 1;
}
