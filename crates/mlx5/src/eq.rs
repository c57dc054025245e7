//! Event queues.
