//! A hostile peer over shared memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_fabric::shm_peer(data));
