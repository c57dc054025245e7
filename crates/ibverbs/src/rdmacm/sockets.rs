//! The calls of sockets over RDMA, which are not offered yet.

use core::ffi::c_int;

use crate::entry::unsupported;

macro_rules! refused {
    ($($version:literal $kind:ident $($name:ident)*;)*) => {$($(refused!(@$kind $version $name);)*)*};
    (@number $version:literal $name:ident) => {
        crate::entry::exports! { $version fn $name() -> c_int {
            unsupported();
            -1
        } }
    };
    (@count $version:literal $name:ident) => {
        crate::entry::exports! { $version fn $name() -> isize {
            unsupported();
            -1
        } }
    };
}

refused! {
    "RDMACM_1.0" number rsocket rbind rlisten raccept rconnect rshutdown rclose rpoll rselect;
    "RDMACM_1.0" number rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl riounmap;
    "RDMACM_1.0" count rrecv rrecvfrom rrecvmsg rsend rsendto rsendmsg rread rreadv rwrite rwritev riomap riowrite;
    "RDMACM_1.5" number repoll_create repoll_ctl repoll_wait;
}
