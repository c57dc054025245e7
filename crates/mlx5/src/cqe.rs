//! Completion queue entries.
