//! The checks, by topic.

pub(crate) mod atomics;
pub(crate) mod changes;
pub(crate) mod concurrency;
pub(crate) mod cq;
pub(crate) mod errors;
pub(crate) mod foreign;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod multicast;
pub(crate) mod placement;
pub(crate) mod portals;
pub(crate) mod progress;
pub(crate) mod qp_states;
pub(crate) mod rd;
pub(crate) mod rdma;
pub(crate) mod send_recv;
pub(crate) mod shown;
pub(crate) mod srq;
pub(crate) mod uc;
pub(crate) mod ud;
pub(crate) mod windows;
pub(crate) mod xrc;
