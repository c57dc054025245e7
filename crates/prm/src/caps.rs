//! Capabilities of an adapter, in the layouts that `QUERY_HCA_CAP` and `SET_HCA_CAP` carry.
//!
//! A capability is a number where its name begins with `LOG_` (a power of two), `MAX_` or `NUM_`, and a flag otherwise.
//! A query for current values returns the values in use; a query for maxima returns the largest values that a driver
//! may choose before the adapter is started.

mod general;
mod kinds;

pub use general::*;
pub use kinds::*;

pub(crate) const LAYOUTS: &[&[crate::LayoutInfo]] = &[general::LAYOUTS, kinds::LAYOUTS];
