//! How those that wait are told: descriptors, asynchronous events, and words for runs beside the engine.

#[cfg(not(loom))]
pub(crate) mod events;
#[cfg(not(loom))]
pub(crate) mod fd;
pub(crate) mod runs;
