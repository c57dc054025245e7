//! The ports that nobody names: those of binds to port 0, and the own ports of connections.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const FIRST: u16 = 49_152;
const COUNT: u32 = 1 << 14;

/// A port of the dynamic range (49,152 to 65,535).
///
/// A process takes them in turns from a random one on, so that a port that was given back is not chosen next.
pub fn ephemeral_port() -> u16 {
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(RandomState::new().hash_one(0) as u32));
    FIRST + (NEXT.fetch_add(1, Relaxed) % COUNT) as u16
}

/// The ports that a bind to a port tries: that port alone, and for port 0 each [ephemeral one](ephemeral_port).
pub fn ports_to_bind(asked: u16) -> impl Iterator<Item = u16> {
    let tries = if asked == 0 { COUNT } else { 1 };
    (0..tries).map(move |_| if asked == 0 { ephemeral_port() } else { asked })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn a_process_chooses_each_port_before_it_chooses_one_again() {
        let chosen: HashSet<u16> = (0..4).flat_map(|_| super::ports_to_bind(0).take(1000)).collect();
        assert_eq!((chosen.len(), chosen.iter().all(|port| *port >= super::FIRST)), (4000, true));
        assert!(super::ports_to_bind(7).eq([7]));
    }
}
