//! A hostile client of a served PCI function.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softhca_pci::served_function(data));
