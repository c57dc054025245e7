//! Contexts: the adapter's state of a queue or a key, which commands create, modify and query.

mod mkey;
mod qp;
mod queue;

pub use mkey::*;
pub use qp::*;
pub use queue::*;

pub(crate) const LAYOUTS: &[&[crate::LayoutInfo]] = &[qp::LAYOUTS, queue::LAYOUTS, mkey::LAYOUTS];
