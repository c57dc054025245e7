//! Messages, calls and times for the connection manager.
#![no_main]

#[path = "../src/connection_manager.rs"]
mod connection_manager;

libfuzzer_sys::fuzz_target!(|data: &[u8]| connection_manager::connection_manager(data));
