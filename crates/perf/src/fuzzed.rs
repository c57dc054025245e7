//! The fuzz target `control`: its input is the bytes of another host over TCP to `hca perf`, in either direction. The
//! corpus runs through it in `cargo test` too.

use hca::{Opened, open_exactly};

use super::channel::{ControlError, read_line};
use super::control::{Endpoint, FromPeer, Message, ToPeer};
use super::peer::Limits;
use super::plan::Case;
use super::side::Side;
use super::{Layer, Phase, Service, Size, portals};

/// Lines of one input at most.
const MAX_LINES: usize = 64;
/// Memory that one measurement may take.
const MEMORY: u64 = 1 << 20;

/// Takes `data` as lines of both directions of a measurement. A parsed line holds only values of an honest end, and is
/// built again as the same line. A measurement that fits into the given memory is begun.
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "the fuzz target calls it"))]
pub fn control(data: &[u8]) {
    understand(data, true);
}

/// The same; measurements are begun or not.
fn understand(data: &[u8], begins: bool) {
    lines(data, |message: &FromPeer| match message {
        FromPeer::Ready { endpoint, .. } => possible(endpoint),
        FromPeer::Failed { why } => {
            let why = String::from(why.clone());
            assert!(why.chars().count() <= 1000 && !why.chars().any(char::is_control));
        }
        _ => {}
    });
    lines(data, |message: &ToPeer| match message {
        ToPeer::Prepare { case, phase, mtu, endpoint, .. } => {
            assert!(case.service.offers(case.op) && is_size(case.size));
            possible(endpoint);
            if Limits::of_memory(MEMORY).admit(Side::memory(case, *phase)).is_ok() && begins {
                begin(case, *phase, endpoint, *mtu);
            }
        }
        ToPeer::Node { settings, .. } => assert!((1..=1 << 18).contains(&settings.eager_bytes.bytes())),
        ToPeer::Move { case: portals::Case { op, size, before, .. }, .. } => {
            assert!(op.is_of(Layer::Portals) && is_size(*size));
            assert!(before.is_none_or(|before| before.count <= 1 << 20));
        }
        _ => {}
    });
}

fn is_size(size: Size) -> bool {
    (1..=1 << 30).contains(&size.bytes())
}

fn possible(Endpoint { qp, window }: &Endpoint) {
    assert!(qp.qpn.is_ordinary() && !qp.gid.is_multicast());
    assert!(qp.lid.raw() == 0 || qp.lid.is_unicast());
    assert!(window.addr.checked_add(window.len).is_some());
}

/// Reads all lines, and has each message judged.
fn lines<M: Message + serde::Serialize + PartialEq + std::fmt::Debug>(mut data: &[u8], judge: impl Fn(&M)) {
    for _ in 0..MAX_LINES {
        match read_line::<M>(&mut data, || None) {
            Ok(message) => {
                let line = serde_json::to_vec(&message).expect("messages have string keys");
                let again = read_line::<M>(&mut &line[..], || None).expect("what was built is understood");
                assert_eq!(again, message);
                judge(&message);
            }
            Err(ControlError::Closed) => return,
            Err(ControlError::Garbled { line, .. }) => assert!(line.chars().count() <= 60),
            Err(e) => panic!("{e}"),
        }
    }
}

/// Begins a measurement, as the side that answers does.
fn begin(case: &Case, phase: Phase, theirs: &Endpoint, mtu: hca_core::Mtu) {
    thread_local! {
        static DEVICE: Opened = open_exactly(&"loopback://control?progress=inline".parse().expect("a device"))
            .expect("a network inside of the process");
    }
    DEVICE.with(|opened| {
        let Ok(mut side) = Side::new(opened, case, phase) else { return };
        // Nobody is at the other end.
        if side.connect(theirs, mtu).is_ok() && (case.service != Service::Ud || case.size.bytes() <= 256) {
            let _ = (side.post(1), side.post_many(8), side.poll());
        }
    });
}

#[cfg(test)]
mod tests {
    use test_support::corpus::of;

    use super::*;

    #[test]
    fn the_corpus_of_control_passes_whole_cut_off_and_changed() {
        for (_, seed) in of("control", 12) {
            control(&seed);
            for at in 0..seed.len() {
                understand(&seed[..at], false);
                for byte in *b"+9\"" {
                    let mut changed = seed.clone();
                    changed[at] = byte;
                    understand(&changed, false);
                }
            }
        }
    }

    #[test]
    fn the_corpus_holds_what_honest_ends_say_and_what_is_refused() {
        // Inputs that fuzzing found may be neither.
        for (name, seed) in of("control", 12).into_iter().filter(|(name, _)| !name.starts_with("found-")) {
            let bad = name.starts_with("bad-");
            let understood = |line: &[u8]| {
                let line = [line, b"\n"].concat();
                read_line::<ToPeer>(&mut &line[..], || None).is_ok()
                    || read_line::<FromPeer>(&mut &line[..], || None).is_ok()
            };
            let mut all = seed.strip_suffix(b"\n").unwrap_or(&seed).split(|b| *b == b'\n');
            // Texts of a ping-pong are no lines of a measurement.
            let refused = bad || name.contains("ping-pong");
            assert!(if refused { !all.any(understood) } else { all.all(understood) }, "{name}");
        }
    }
}
