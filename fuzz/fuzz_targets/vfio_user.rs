//! Messages of vfio-user.
#![no_main]

#[path = "../src/vfio_user.rs"]
mod vfio_user;

libfuzzer_sys::fuzz_target!(|data: &[u8]| vfio_user::vfio_user(data));
