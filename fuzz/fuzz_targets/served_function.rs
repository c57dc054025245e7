//! A hostile client of a served PCI function.
//! Its entry is there under `cargo fuzz` only, as what it calls is.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| softhca_pci::served_function(data));

#[cfg(not(fuzzing))]
fn main() {}
