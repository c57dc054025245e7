//! Messages over UDP sockets, both ends within this process.

use super::{End, ROUNDS, UDP, ends, one_way};

/// One message of 8 bytes there, and one back, over UDP, each after a poll that finds nothing. A round is both. What the
/// kernel does is not counted.
pub(super) fn ping() {
    let (mut a, mut b) = ends(UDP);
    for end in [&mut a, &mut b] {
        end.post_receives(64, 8);
    }
    for id in 1..=ROUNDS {
        ping_once(&mut a, &mut b, id);
    }
    for id in 1..=ROUNDS {
        counted_ping(&mut a, &mut b, id);
    }
}

#[inline(never)]
fn counted_ping(a: &mut End, b: &mut End, id: u64) {
    ping_once(a, b, id);
}

fn ping_once(a: &mut End, b: &mut End, id: u64) {
    b.cq.poll(&mut b.wcs);
    one_way(a, b, id);
    a.cq.poll(&mut a.wcs);
    one_way(b, a, id);
}
