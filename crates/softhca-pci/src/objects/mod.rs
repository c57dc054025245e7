//! Objects that commands make: keys, completion queues, queue pairs, shared receive queues.
//!
//! Each command is a method of [`Function`], called by the dispatcher in `command` with the whole input and the place
//! for the output. What it returns becomes the output's status; nothing but `Err` has to be said of a failure.

mod cq;
mod mkey;
mod qp;
mod srq;

use crate::function::Function;

/// The objects of a function.
#[derive(Debug, Default)]
pub(crate) struct Objects {}

impl Function {
    /// Destroys all objects, in an order in which none is in use, and forgets those that can't be. When it returns,
    /// the adapter touches no memory of the client's any more.
    pub(crate) fn destroy_objects(&mut self) {}

    /// A range of client memory goes: keys and queues that lie in it, even in part, are made invalid. When it returns,
    /// the adapter touches that memory no more.
    pub(crate) fn release_memory(&mut self, _iova: u64, _size: u64) {}
}
