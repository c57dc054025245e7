//! Portals 3.3 between two processes on two adapters, on each fabric, matched by the program's calls and by the adapter.

#[allow(dead_code, reason = "the suite's own beds are more than these")]
#[path = "../softhca/beds.rs"]
mod beds;
mod events;
mod pair;

use beds::Net;
use pair::Bed;

macro_rules! on_every_bed {
    ($($module:ident { $($name:ident)* })*) => {
        macro_rules! bed {
            ($bed:ident, $net:expr, $offload:expr) => {
                mod $bed {
                    use super::*;
                    $(mod $module {
                        use super::*;
                        $(#[test]
                        fn $name() {
                            crate::$module::$name(&Bed { net: $net, offload: $offload });
                        })*
                    })*
                }
            };
        }
        bed!(loopback_host, Net::Loopback, false);
        bed!(loopback_offload, Net::Loopback, true);
        bed!(udp_host, Net::Udp, false);
        bed!(udp_offload, Net::Udp, true);
        bed!(shm_host, Net::Shm, false);
        bed!(shm_offload, Net::Shm, true);
        bed!(auto_host, Net::Auto, false);
        bed!(auto_offload, Net::Auto, true);
    };
}

on_every_bed! {
    events {
        put_start_and_put_end_come_in_order_and_are_linked
    }
}
