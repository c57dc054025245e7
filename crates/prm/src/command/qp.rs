//! Commands for queue pairs.

use crate::context::Qpc;

commands! {
    list COMMANDS;

    /// Makes a queue pair, in state reset. The addresses of its pages follow.
    CREATE_QP => CreateQpIn: 0x110 {
        /// Which optional fields of the context hold, see [`optpar`](crate::optpar).
        OPT_PARAM_MASK: 0x10 [31:0],
        /// What it shall be.
        QPC: 0x18 {Qpc},
        /// Its memory is given as a place in registered user memory.
        WQ_UMEM_VALID: 0x10c [31],
    }, CreateQpOut: 0x10 {
        /// The number.
        QPN: 0x08 [23:0],
    }

    /// Takes a queue pair away.
    DESTROY_QP => DestroyQpIn: 0x10 {
        /// The number.
        QPN: 0x08 [23:0],
    }

    /// Asks how a queue pair is. The addresses of its pages follow the output.
    QUERY_QP => QueryQpIn: 0x10 {
        /// The number.
        QPN: 0x08 [23:0],
    }, QueryQpOut: 0x110 {
        /// Which optional fields of the context hold.
        OPT_PARAM_MASK: 0x10 [31:0],
        /// How it is.
        QPC: 0x18 {Qpc},
    }

    /// From reset to initialised.
    RST2INIT_QP => Rst2InitQpIn: 0x110 {
        /// The queue pair.
        QPN: 0x08 [23:0],
        /// Which optional fields of the context are taken over, see [`optpar`](crate::optpar).
        OPT_PARAM_MASK: 0x10 [31:0],
        /// The fields that the transition takes over.
        QPC: 0x18 {Qpc},
    }

    /// Changes an initialised queue pair.
    INIT2INIT_QP => Init2InitQpIn: 0x110 {
        /// The queue pair.
        QPN: 0x08 [23:0],
        /// Which optional fields of the context are taken over, see [`optpar`](crate::optpar).
        OPT_PARAM_MASK: 0x10 [31:0],
        /// The fields that the transition takes over.
        QPC: 0x18 {Qpc},
    }

    /// From initialised to ready to receive.
    INIT2RTR_QP => Init2RtrQpIn: 0x110 {
        /// The queue pair.
        QPN: 0x08 [23:0],
        /// Which optional fields of the context are taken over, see [`optpar`](crate::optpar).
        OPT_PARAM_MASK: 0x10 [31:0],
        /// The fields that the transition takes over.
        QPC: 0x18 {Qpc},
    }

    /// From ready to receive to ready to send.
    RTR2RTS_QP => Rtr2RtsQpIn: 0x110 {
        /// The queue pair.
        QPN: 0x08 [23:0],
        /// Which optional fields of the context are taken over, see [`optpar`](crate::optpar).
        OPT_PARAM_MASK: 0x10 [31:0],
        /// The fields that the transition takes over.
        QPC: 0x18 {Qpc},
    }

    /// Changes a queue pair that is ready to send.
    RTS2RTS_QP => Rts2RtsQpIn: 0x110 {
        /// The queue pair.
        QPN: 0x08 [23:0],
        /// Which optional fields of the context are taken over, see [`optpar`](crate::optpar).
        OPT_PARAM_MASK: 0x10 [31:0],
        /// The fields that the transition takes over.
        QPC: 0x18 {Qpc},
    }

    /// Makes a queue pair ready to send again whose send queue is in error.
    SQERR2RTS_QP => SqErr2RtsQpIn: 0x110 {
        /// The queue pair.
        QPN: 0x08 [23:0],
        /// Which optional fields of the context are taken over, see [`optpar`](crate::optpar).
        OPT_PARAM_MASK: 0x10 [31:0],
        /// The fields that the transition takes over.
        QPC: 0x18 {Qpc},
    }

    /// From any state to error: all requests are flushed.
    QP_2ERR => Qp2ErrIn: 0x10 {
        /// The queue pair.
        QPN: 0x08 [23:0],
    }

    /// From any state to reset: all requests are forgotten.
    QP_2RST => Qp2RstIn: 0x10 {
        /// The queue pair.
        QPN: 0x08 [23:0],
    }

}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::cq::CreateCqIn;
    use crate::command::eq::CreateEqIn;
    use crate::command::mkey::CreateMkeyIn;
    use crate::command::srq::{CreateRmpIn, CreateXrcSrqIn};
    use crate::{Rmpc, Wq};

    #[test]
    fn contexts_and_lists_of_pages_begin_where_stock_drivers_put_them() {
        assert_eq!((CreateQpIn::QPC.offset(), CreateQpIn::SIZE), (0x18, 0x110));
        assert_eq!((CreateCqIn::CQ_CONTEXT.offset(), CreateCqIn::SIZE), (0x10, 0x110));
        assert_eq!((CreateEqIn::EQ_CONTEXT_ENTRY.offset(), CreateEqIn::SIZE), (0x10, 0x110));
        assert_eq!((CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY.offset(), CreateMkeyIn::SIZE), (0x10, 0x110));
        assert_eq!((CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY.offset(), CreateXrcSrqIn::SIZE), (0x10, 0x110));
        // The list of a queue within another context follows that queue, and so the command.
        assert_eq!(CreateRmpIn::CTX.offset() + Rmpc::WQ.offset() + Wq::SIZE, CreateRmpIn::SIZE);
    }

    #[test]
    fn a_transition_lies_as_a_stock_driver_laid_it() {
        let context = Qpc::new().with(Qpc::PM_STATE, 3).with(Qpc::REMOTE_QPN, 0x43);
        let input = Init2RtrQpIn::new().with(Init2RtrQpIn::QPN, 0x42).with(Init2RtrQpIn::QPC, context);
        let bytes = input.as_bytes();
        assert_eq!(bytes[..12], [5, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x42]);
        assert_eq!(bytes[0x18..0x1c], [0, 0, 0x18, 0]);
        assert_eq!(bytes[0x2c..0x30], [0, 0, 0, 0x43]);
    }
}
