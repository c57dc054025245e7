//! Names of events.

use core::ffi::c_char;

use crate::entry::{exports, text};

exports! {
    "RDMACM_1.0" fn rdma_event_str(event: u32) -> *const c_char {
        text(match event {
            0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
            1 => c"RDMA_CM_EVENT_ADDR_ERROR",
            2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
            3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
            4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
            5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
            6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
            7 => c"RDMA_CM_EVENT_UNREACHABLE",
            8 => c"RDMA_CM_EVENT_REJECTED",
            9 => c"RDMA_CM_EVENT_ESTABLISHED",
            10 => c"RDMA_CM_EVENT_DISCONNECTED",
            11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
            12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
            13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
            14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
            15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
            16 => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
            17 => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
            18 => c"RDMA_CM_EVENT_USER",
            19 => c"RDMA_CM_EVENT_INTERNAL",
            _ => c"UNKNOWN EVENT",
        })
    }
}
