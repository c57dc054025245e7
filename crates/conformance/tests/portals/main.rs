//! Portals 4.3 on the software adapter: the same tests on each fabric, matched by the program's calls and by the adapter.

mod bed;
#[allow(dead_code)] // the suite of devices has the others of its beds
#[path = "../softhca/beds.rs"]
mod beds;
mod put;

use bed::Bed;
use beds::Net;
use softhca::Progress;

macro_rules! checks {
    ($d:tt $($module:ident { $($check:ident,)* })*) => {
        macro_rules! suite {
            ($d name:ident, $d bed:expr) => {
                mod $d name {
                    $(mod $module {
                        #[allow(unused_imports)]
                        use crate::*;
                        $(#[test] fn $check() { crate::$module::$check(&$d bed); })*
                    })*
                }
            };
        }
    };
}

checks! { $
    put {
        a_put_lands_with_its_events,
    }
}

suite!(loopback_host, Bed::new(Net::Loopback, Progress::Inline, false));
suite!(loopback_adapter, Bed::new(Net::Loopback, Progress::Adaptive, true));
suite!(udp_host, Bed::new(Net::Udp, Progress::Inline, false));
suite!(udp_adapter, Bed::new(Net::Udp, Progress::Adaptive, true));
suite!(shm_host, Bed::new(Net::Shm, Progress::Inline, false));
suite!(shm_adapter, Bed::new(Net::Shm, Progress::Adaptive, true));
suite!(auto_host, Bed::new(Net::Auto, Progress::Adaptive, false));
suite!(auto_adapter, Bed::new(Net::Auto, Progress::Adaptive, true));
