//! The data path: work requests to posts, completions to entries.

use crate::function::Function;

/// What the data path keeps of a function.
#[derive(Debug, Default)]
pub(crate) struct Path {}

impl Function {
    /// A doorbell of this page was rung: looks at the doorbell records of all queues that use the page.
    pub(crate) fn rung(&mut self, _uar: u32) {}

    /// Takes completions from the adapter and shows them to the client. Returns whether there were any.
    pub(crate) fn look_at_completions(&mut self) -> bool {
        false
    }
}
