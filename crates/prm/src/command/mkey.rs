//! Commands for memory keys.

use crate::context::Mkc;

commands! {
    list COMMANDS;

    /// Makes a memory key. Its translation follows: addresses of pages, or pieces of other keys; room for it is
    /// a multiple of 16 bytes.
    CREATE_MKEY => CreateMkeyIn: 0x110 {
        /// The translation is given as a place in registered user memory.
        MKEY_UMEM_VALID: 0x0c [30],
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
    }

    /// Asks how a memory key is.
    QUERY_MKEY => QueryMkeyIn: 0x10 {
        /// The key's upper 24 bits.
        MKEY_INDEX: 0x08 [23:0],
    }, QueryMkeyOut: 0x130 {
        /// How it is.
        MEMORY_KEY_MKEY_ENTRY: 0x10 {Mkc},
    }
}
