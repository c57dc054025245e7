//! Commands for event queues.

use crate::context::Eqc;

commands! {
    list COMMANDS;

    /// Makes an event queue. The addresses of its pages follow.
    CREATE_EQ => CreateEqIn: 0x110 {
        /// What it shall be.
        EQ_CONTEXT_ENTRY: 0x10 {Eqc},
        /// Which events go to it, see [`EventType::mask`](crate::EventType::mask); completion queues name their event
        /// queue themselves.
        EVENT_BITMASK: 0x58 [u64; 4],
    }, CreateEqOut: 0x10 {
        /// The number.
        EQ_NUMBER: 0x08 [7:0],
    }

    /// Takes an event queue away.
    DESTROY_EQ => DestroyEqIn: 0x10 {
        /// The number.
        EQ_NUMBER: 0x08 [7:0],
    }

    /// Asks how an event queue is. The addresses of its pages follow the output.
    QUERY_EQ => QueryEqIn: 0x10 {
        /// The number.
        EQ_NUMBER: 0x08 [7:0],
    }, QueryEqOut: 0x110 {
        /// How it is.
        EQ_CONTEXT_ENTRY: 0x10 {Eqc},
        /// Which events go to it, the first 64.
        EVENT_BITMASK: 0x58 [63:0],
    }

}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventType;

    #[test]
    fn events_of_a_queue_are_bits_of_four_words_the_first_events_in_the_first() {
        let mask = EventType::Cmd.mask();
        assert_eq!(mask, [0x400, 0, 0, 0]);
        let input = CreateEqIn::new().with(CreateEqIn::EVENT_BITMASK, mask);
        assert_eq!(input.as_bytes()[0x58..0x60], [0, 0, 0, 0, 0, 0, 4, 0]);
        assert_eq!(input.get(CreateEqIn::EVENT_BITMASK), mask);
    }
}
