//! Contexts: what the adapter keeps of a queue or a key, and what commands create, modify and query.

mod mkey;
mod qp;
mod queue;

pub use mkey::*;
pub use qp::*;
pub use queue::*;

pub(crate) const LAYOUTS: &[&[crate::LayoutInfo]] = &[qp::LAYOUTS, queue::LAYOUTS, mkey::LAYOUTS];
