//! The adapter's objects: their tables, queue pairs and their parts, and what is known of peers on this machine.

pub(crate) mod direct;
pub(crate) mod dormant;
pub(crate) mod groups;
pub(crate) mod machine;
pub(crate) mod pace;
pub(crate) mod parts;
pub(crate) mod qp;
pub(crate) mod qp_shared;
pub(crate) mod rd;
pub(crate) mod regions;
pub(crate) mod send_queue;
pub(crate) mod slab;
pub(crate) mod srq;
pub(crate) mod stream;
pub(crate) mod tables;
pub(crate) mod xrc;
