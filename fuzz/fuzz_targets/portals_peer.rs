//! A hostile peer of a Portals node.
#![no_main]

#[path = "../src/portals_peer.rs"]
mod portals_peer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    portals_peer::portals_peer(data);
});
