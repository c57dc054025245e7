//! Raw packets for an adapter with live queue pairs.
#![no_main]

#[path = "../src/live_qp/mod.rs"]
mod live_qp;

libfuzzer_sys::fuzz_target!(|data: &[u8]| live_qp::live_qp(data));
