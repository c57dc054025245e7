//! Calls and messages for the Portals engine.
#![no_main]

#[path = "../src/matching.rs"]
mod matching;

libfuzzer_sys::fuzz_target!(|data: &[u8]| matching::matching(data));
