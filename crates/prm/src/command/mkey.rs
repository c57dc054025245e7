//! Commands for memory keys.

use crate::context::Mkc;

commands! {
    list COMMANDS;

    /// Makes a memory key. Its translation follows: addresses of pages, or [`Klm`](crate::Klm) entries; room for it is
    /// a multiple of 16 bytes.
    CREATE_MKEY => CreateMkeyIn: 0x110 {
        /// The translation may be read back.
        PG_ACCESS: 0x0c [31],
        /// The translation is given as a place in registered user memory.
        MKEY_UMEM_VALID: 0x0c [30],
        /// Data go another way over the bus.
        DATA_DIRECT: 0x0c [29],
        /// What it shall be.
        MEMORY_KEY_MKEY_ENTRY: 0x10 {Mkc},
        /// Units of 16 bytes of translation that follow.
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE: 0x60 [31:0],
    }, CreateMkeyOut: 0x10 {
        /// The key's upper 24 bits.
        MKEY_INDEX: 0x08 [23:0],
    }

    /// Takes a memory key away.
    DESTROY_MKEY => DestroyMkeyIn: 0x10 {
        /// The key's upper 24 bits.
        MKEY_INDEX: 0x08 [23:0],
    }, DestroyMkeyOut: 0x10 {
    }

    /// Asks how a memory key is.
    QUERY_MKEY => QueryMkeyIn: 0x10 {
        /// The key's upper 24 bits.
        MKEY_INDEX: 0x08 [23:0],
        /// The translation is read as well.
        PG_ACCESS: 0x0c [31],
    }, QueryMkeyOut: 0x130 {
        /// How it is.
        MEMORY_KEY_MKEY_ENTRY: 0x10 {Mkc},
        /// The translation's first 16 bytes.
        KLM0_PAS_MTT0_1: 0x110 [u8; 16],
        /// The next 16.
        KLM1_PAS_MTT2_3: 0x120 [u8; 16],
    }
}
