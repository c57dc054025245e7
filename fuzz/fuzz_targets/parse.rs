//! Any bytes as a transport packet and as a frame.
#![no_main]

#[path = "../src/parse.rs"]
mod parse;

libfuzzer_sys::fuzz_target!(|data: &[u8]| parse::parse(data));
