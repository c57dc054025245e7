//! Commands for completion queues.

use crate::context::Cqc;

commands! {
    list COMMANDS;

    /// Makes a completion queue. The addresses of its pages follow.
    CREATE_CQ => CreateCqIn: 0x110 {
        /// What it shall be.
        CQ_CONTEXT: 0x10 {Cqc},
        /// Its memory is given as a place in registered user memory.
        CQ_UMEM_VALID: 0x5c [31],
    }, CreateCqOut: 0x10 {
        /// The number.
        CQN: 0x08 [23:0],
    }

    /// Takes a completion queue away.
    DESTROY_CQ => DestroyCqIn: 0x10 {
        /// The number.
        CQN: 0x08 [23:0],
    }

    /// Asks how a completion queue is. The addresses of its pages follow the output.
    QUERY_CQ => QueryCqIn: 0x10 {
        /// The number.
        CQN: 0x08 [23:0],
    }, QueryCqOut: 0x110 {
        /// How it is.
        CQ_CONTEXT: 0x10 {Cqc},
    }

    /// Changes a completion queue, or moves it to other memory (`OP_MOD` [`ModifyCqIn::RESIZE`]), whose pages follow.
    MODIFY_CQ => ModifyCqIn: 0x110 {
        /// The number.
        CQN: 0x08 [23:0],
        /// What is changed, see [`modify`]; of a move, [`resize`].
        MODIFY_FIELD_SELECT: 0x0c [31:0],
        /// What it shall be.
        CQ_CONTEXT: 0x10 {Cqc},
    }
}

impl ModifyCqIn {
    /// The variant that moves a completion queue to other memory.
    pub const RESIZE: u32 = 1;
}

/// The mask of the completion queue's fields that a command changes.
pub mod modify {
    /// `CQ_PERIOD`.
    pub const PERIOD: u32 = 1 << 0;
    /// `CQ_MAX_COUNT`.
    pub const COUNT: u32 = 1 << 1;
    /// `OI`.
    pub const OVERRUN: u32 = 1 << 2;
}

/// The mask of the completion queue's fields that a move changes.
pub mod resize {
    /// `LOG_CQ_SIZE`.
    pub const LOG_SIZE: u32 = 1 << 0;
}
