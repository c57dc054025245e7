//! A lock that its usual thread takes and gives back by plain stores, and at which who only wants work done leaves word
//! instead of waiting; and the [`Barrier`] that makes that possible.
#![deny(unsafe_code)]

mod barrier;
mod sync;
mod thread_word;
mod turn_lock;

pub use barrier::Barrier;
pub use turn_lock::{Guard, TurnLock};
