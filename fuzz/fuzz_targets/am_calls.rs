//! Calls of a C program to libam.
//! Its entry is there under `cargo fuzz` only, as what it calls is.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| am::fuzz_calls(data));

#[cfg(not(fuzzing))]
fn main() {}
