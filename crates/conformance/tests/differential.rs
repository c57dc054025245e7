//! The same random scripts over UDP, shared memory and loopback: memory, completions, their order, events and states
//! are the same.
//!
//! A failure tells its seed; `HCA_DIFFERENTIAL_SEED=n` plays only that script, `HCA_DIFFERENTIAL_SCRIPTS=n` plays more
//! of them, others each time the first seed (`HCA_DIFFERENTIAL_FIRST`) is another.

#[allow(dead_code, reason = "shared with the suite")]
#[path = "softhca/beds.rs"]
mod beds;

use beds::{Net, SoftBed};
use hca_conformance::{Bed, differ};
use softhca::Progress;
use test_support::seeds::{number, seeds};

/// Scripts of each test, unless the environment says otherwise.
const SCRIPTS: u64 = 200;

/// Tells which script it was if something panics.
struct Telling(u64);

impl Drop for Telling {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}: replay it by HCA_DIFFERENTIAL_SEED={}", self.0, self.0);
        }
    }
}

/// Plays some scripts on each of these networks.
fn scripts_on(share: u64, count: u64, nets: &[(Net, Progress)]) {
    let beds: Vec<SoftBed> = nets.iter().map(|&(net, progress)| SoftBed::new(net, progress)).collect();
    let beds: Vec<&dyn Bed> = beds.iter().map(|b| b as &dyn Bed).collect();
    let count = number("HCA_DIFFERENTIAL_SCRIPTS").unwrap_or(count);
    let first = number("HCA_DIFFERENTIAL_FIRST").unwrap_or(0).wrapping_add(share * 1_000_000);
    for seed in seeds(number("HCA_DIFFERENTIAL_SEED"), first, count) {
        let _telling = Telling(seed);
        if let Err(what) = differ(&beds, seed) {
            panic!("{what}");
        }
    }
}

#[test]
fn scripts_come_out_the_same_over_udp_shared_memory_and_loopback() {
    use Net::{Loopback, Shm, Udp};
    scripts_on(0, SCRIPTS, &[Udp, Shm, Loopback].map(|net| (net, Progress::Inline)));
}

#[test]
fn scripts_come_out_the_same_in_every_mode_of_progress() {
    let shm = Progress::ALL.map(|progress| (Net::Shm, progress));
    scripts_on(1, SCRIPTS / 3, &[&[(Net::Udp, Progress::Adaptive)], &shm[..]].concat());
}

/// A script that once came out otherwise: behind a READ whose response was lent came a request that was refused, and
/// what had become of the loan was dropped in the error that follows.
#[test]
fn a_read_is_answered_before_the_refusal_behind_it() {
    let bed = SoftBed::new(Net::Shm, Progress::Adaptive);
    for _ in 0..4 {
        if let Err(what) = differ(&[&bed as &dyn Bed], 1_235_515_746) {
            panic!("{what}");
        }
    }
}
