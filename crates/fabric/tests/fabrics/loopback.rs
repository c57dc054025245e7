//! The suite over the loopback network.

use hca_fabric::LoopbackNet;

#[test]
fn the_suite_passes_over_loopback() {
    let net = LoopbackNet::new();
    let a = net.attach("10.0.0.1".parse().unwrap());
    let b = net.attach("10.0.0.2".parse().unwrap());
    crate::suite::run(Box::new(a), Box::new(b));
}
