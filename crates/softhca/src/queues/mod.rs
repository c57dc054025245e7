//! Queues between the program's threads and the engine: rings, their slots, doorbells, completion queues.

#[cfg(not(loom))]
pub(crate) mod attached;
#[cfg(not(loom))]
pub(crate) mod cq;
pub(crate) mod doorbell;
pub(crate) mod ring;
#[cfg(not(loom))]
pub(crate) mod slot;
