//! Messages of Active Messages.
#![no_main]

#[path = "../src/active_messages.rs"]
mod active_messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| active_messages::active_messages(data));
