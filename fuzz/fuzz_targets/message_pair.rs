//! Two queue pairs connected by messages, and who has the next turn.
#![no_main]

#[path = "../src/message_pair.rs"]
mod message_pair;
#[path = "../../crates/transport/tests/messages/mod.rs"]
mod messages;
#[path = "../../crates/transport/tests/pair/mod.rs"]
mod pair;

libfuzzer_sys::fuzz_target!(|data: &[u8]| message_pair::message_pair(data));
