//! What another host says over TCP to `hca perf` and `hca pingpong`.
//! Its entry is there under `cargo fuzz` only, as what it calls is.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    hca_perf::fuzz_control(data);
    hca_cli::fuzz_ping_pong(data);
});

#[cfg(not(fuzzing))]
fn main() {}
