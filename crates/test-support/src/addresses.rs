//! Loopback addresses of 127.0.0.0/8, of which every test process draws others.

use std::net::{IpAddr, Ipv4Addr};

/// How many addresses are tried before there is none.
pub const ATTEMPTS: u32 = 64;

/// [`ATTEMPTS`] loopback addresses that are likely free: other ones in each process, and for each salt in it.
pub fn loopback(salt: u32) -> impl Iterator<Item = IpAddr> {
    let seed = std::process::id().wrapping_mul(0x9e37_79b9).wrapping_add(salt.wrapping_mul(0x85eb_ca6b));
    (0..ATTEMPTS).map(move |attempt| {
        let bits = seed.wrapping_add(attempt.wrapping_mul(0x00c2_b2ae)) & 0x00ff_ffff;
        // Neither the network's own addresses nor 127.0.0.1, which all programs use.
        Ipv4Addr::from(0x7f00_0000 | bits.clamp(0x100, 0xff_fffe)).into()
    })
}

/// What `open` makes of the first of these addresses for which it returns anything; `None` means that the address is in
/// use.
///
/// # Panics
/// If all of them are in use.
pub fn at_free<T>(salt: u32, open: impl FnMut(IpAddr) -> Option<T>) -> T {
    loopback(salt).find_map(open).unwrap_or_else(|| panic!("no free loopback address in {ATTEMPTS} attempts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_the_loopback_network_and_differ() {
        let all: std::collections::HashSet<_> = (0..50).flat_map(loopback).collect();
        assert!(all.iter().all(IpAddr::is_loopback));
        assert!(all.len() > 49 * ATTEMPTS as usize, "{} addresses", all.len());
    }

    #[test]
    fn an_address_in_use_is_passed_over() {
        let mut tried = 0;
        let taken = at_free(1, |at| {
            tried += 1;
            (tried == 3).then_some(at)
        });
        assert_eq!(Some(taken), loopback(1).nth(2));
    }
}
