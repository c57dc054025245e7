//! A hostile peer over shared memory.
//! Its entry is there under `cargo fuzz` only, as what it calls is.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_fabric::shm_peer(data));

#[cfg(not(fuzzing))]
fn main() {}
