//! Names of numbers, and the rates of paths.

use core::ffi::{CStr, c_char, c_int};

use crate::entry::{exports, text};

/// The name at an index.
fn named(names: &'static [&'static CStr], index: c_int, unknown: &'static CStr) -> *const c_char {
    text(usize::try_from(index).ok().and_then(|index| names.get(index).copied()).unwrap_or(unknown))
}

const NODE_TYPES: [&CStr; 4] =
    [c"unknown", c"InfiniBand channel adapter", c"InfiniBand switch", c"InfiniBand router"];
const PORT_STATES: [&CStr; 6] =
    [c"no state change", c"PORT_DOWN", c"PORT_INIT", c"PORT_ARMED", c"PORT_ACTIVE", c"PORT_ACTIVE_DEFER"];
const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local queue pair operation error",
    c"local end-to-end context operation error",
    c"local protection error",
    c"work request flushed",
    c"memory window bind error",
    c"bad response",
    c"local access error",
    c"remote invalid request",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation",
    c"remote invalid RD request",
    c"remote aborted",
    c"invalid end-to-end context number",
    c"invalid end-to-end context state",
    c"fatal device error",
    c"response timeout",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous incomplete",
];
const EVENTS: [&CStr; 20] = [
    c"completion queue error",
    c"queue pair fatal error",
    c"queue pair request error",
    c"queue pair access error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration failed",
    c"device fatal error",
    c"port active",
    c"port error",
    c"LID changed",
    c"P_Key table changed",
    c"subnet manager changed",
    c"shared receive queue error",
    c"shared receive queue limit reached",
    c"last receive request reached",
    c"client reregistration",
    c"GID table changed",
    c"work queue fatal error",
];

/// Rates by `enum ibv_rate`: the multiple of 2.5 Gbit/s, where it is one, and Mbit/s.
const RATES: [(c_int, c_int); 25] = [
    (-1, -1),
    (-1, -1),
    (1, 2_500),
    (4, 10_000),
    (12, 30_000),
    (2, 5_000),
    (8, 20_000),
    (16, 40_000),
    (24, 60_000),
    (32, 80_000),
    (48, 120_000),
    (-1, 14_062),
    (-1, 56_250),
    (-1, 112_500),
    (-1, 168_750),
    (-1, 25_781),
    (-1, 103_125),
    (-1, 206_250),
    (-1, 309_375),
    (11, 28_125),
    (20, 50_000),
    (160, 400_000),
    (240, 600_000),
    (320, 800_000),
    (480, 1_200_000),
];
/// A rate by its number; that of no rate for others.
fn rate(number: c_int) -> (c_int, c_int) {
    usize::try_from(number).ok().and_then(|number| RATES.get(number).copied()).unwrap_or((-1, -1))
}
/// The number of the first rate that fits; 0, the port's own rate, if none does.
fn rate_number(fits: impl Fn((c_int, c_int)) -> bool) -> c_int {
    RATES.iter().position(|&rate| rate != (-1, -1) && fits(rate)).unwrap_or(0) as c_int
}

exports! {
    "IBVERBS_1.1" fn ibv_node_type_str(kind: c_int) -> *const c_char {
        named(&NODE_TYPES, kind, c"unknown")
    }
    "IBVERBS_1.1" fn ibv_port_state_str(state: c_int) -> *const c_char {
        named(&PORT_STATES, state, c"invalid state")
    }
    "IBVERBS_1.1" fn ibv_wc_status_str(status: c_int) -> *const c_char {
        named(&STATUSES, status, c"unknown")
    }
    "IBVERBS_1.1" fn ibv_event_type_str(event: c_int) -> *const c_char {
        named(&EVENTS, event, c"unknown")
    }
    "IBVERBS_1.0" fn ibv_rate_to_mult(number: c_int) -> c_int { rate(number).0 }
    "IBVERBS_1.0" fn mult_to_ibv_rate(mult: c_int) -> c_int { rate_number(|rate| mult > 0 && rate.0 == mult) }
    "IBVERBS_1.1" fn ibv_rate_to_mbps(number: c_int) -> c_int { rate(number).1 }
    "IBVERBS_1.1" fn mbps_to_ibv_rate(mbps: c_int) -> c_int { rate_number(|rate| rate.1 == mbps) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_found_again_by_multiple_and_by_speed() {
        for number in 2..25 {
            let (mult, mbps) = rate(number);
            assert_eq!(rate_number(|rate| rate.1 == mbps), number);
            assert!(mult == -1 || rate_number(|rate| rate.0 == mult) == number);
        }
        assert_eq!((rate(-1), rate(25), rate(0)), ((-1, -1), (-1, -1), (-1, -1)));
    }
}
