//! Queue pairs between two adapters leave by several UDP source ports, so that switches and receivers' CPUs can tell
//! them apart.

mod ends;

use ends::{End, open};
use hca_fabric::PORTS_PER_PEER;
use softhca::Progress;

#[test]
fn queue_pairs_to_one_peer_have_several_source_ports() {
    let devices: Vec<_> = (0..2).map(|n| open("udp", Progress::Inline, n).expect("there is UDP")).collect();
    let peer = End::new(devices[1].clone());
    let ends: Vec<_> = (0..16).map(|_| End::new(devices[0].clone())).collect();
    for end in &ends {
        end.connect(&peer);
    }
    // Over IPv4 each port is asked once for its Identification.
    let ports = ends[0].counter("tx_ident_probes");
    assert!((5..=u64::from(PORTS_PER_PEER)).contains(&ports), "32 queue pairs have {ports} ports");
    ends.into_iter().for_each(End::close);
    peer.close();
}
