//! A lock that its usual thread takes and releases by plain stores, and at which other threads may leave a note for the
//! holder instead of waiting.
//!
//! It suits data that one thread uses nearly always and other threads rarely: an adapter's engine, a Portals node. A
//! thread that took the lock often enough in a row becomes the lock's *favourite* and executes no locked instruction
//! from then on. Another thread that wants the lock pays for both sides, once, by a barrier on all processors
//! ([`Barrier`]).
//!
//! ```
//! use hca_turn_lock::{INNER, TurnLock};
//!
//! let work: TurnLock<Vec<u32>, INNER> = TurnLock::new(vec![1, 2]);
//! let mut guard = work.lock();
//! guard.push(3);
//! // Another thread leaves a note and returns: the holder does the work again.
//! assert!(work.lock_or_notify_holder().is_none());
//! assert!(guard.unlock(), "word was left");
//! assert_eq!(work.turn_or_notify_holder(|v| v.drain(..).sum::<u32>()), Some(6));
//! ```
//!
//! # Levels
//!
//! A thread can hold one lock of each level as a favourite at the same time: one lock of level [`OUTER`], and within
//! that one lock of level [`INNER`]. A second lock of the same level the thread takes by a locked instruction, like any
//! other thread.
//!
//! | module | contents |
//! |---|---|
//! | `turn_lock` | [`TurnLock`] and its protocol |
//! | `thread_word` | by which a thread says that it is inside |
//! | `exclusion` | [`Exclusion`]: keeps the frequent user of a list out for as long as it is changed |
//! | `barrier` | [`Barrier`]: a memory barrier that the rarer side pays for both |
#![deny(unsafe_code)]

mod barrier;
mod exclusion;
mod sync;
#[doc(hidden)]
pub use crossbeam_utils::CachePadded;
pub use sync::UnsafeCell;
mod thread_word;
mod turn_lock;

pub use barrier::Barrier;
pub use exclusion::{Exclusion, Inside};
pub use thread_word::{INNER, OUTER};
pub use turn_lock::{Guard, TurnLock};
