//! Glances: words in memory by which a poller sees, without a call of the fabric, that there is no input.
//!
//! Invariants:
//! 1. An [`InputWord`] points to a word that the word's owner keeps in that place as long as the `InputWord` lives.
#![allow(unsafe_code)]

use core::ptr::{self, NonNull};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A word that changes when something comes.
pub(crate) struct InputWord {
    at: NonNull<AtomicU32>,
    /// Its value while nothing has come.
    quiet: u32,
    /// `None`: it is static.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the word is reached as an atomic, and its owner is shared by threads.
unsafe impl Send for InputWord {}

impl InputWord {
    /// The word that `find` finds in its owner, and its value while nothing has come.
    pub(crate) fn new<T: Send + Sync + 'static>(
        owner: &Arc<T>,
        find: impl for<'a> FnOnce(&'a T) -> &'a AtomicU32,
        quiet: u32,
    ) -> Self {
        Self { at: NonNull::from(find(owner)), quiet, owner: Some(owner.clone()) }
    }
    /// One that never changes.
    pub(crate) fn silent() -> Self {
        static WORD: AtomicU32 = AtomicU32::new(0);
        Self { at: NonNull::from(&WORD), quiet: 0, owner: None }
    }
    #[inline(always)]
    fn is_quiet(&self) -> bool {
        // SAFETY: (1) it was borrowed from the owner, which is neither moved nor changed while it is shared.
        let word = unsafe { self.at.as_ref() };
        // Relaxed: who finds a change looks again, by the fabric.
        word.load(Ordering::Relaxed) == self.quiet
    }
}

/// The words that show whether a fabric has input, for a poller that polls often without result. A glance is valid
/// until the next call of the fabric; before the first one it shows words that never change.
pub struct Glance {
    input: InputWord,
    /// Changes when something comes by other ways.
    others: InputWord,
}

impl Default for Glance {
    fn default() -> Self {
        Self { input: InputWord::silent(), others: InputWord::silent() }
    }
}

impl Glance {
    /// Looks for input at this word, whose value is `quiet` while nothing has come; `others` makes the word that tells of
    /// other input, where the owner is another one than before.
    #[inline]
    pub(crate) fn look_at<T: Send + Sync + 'static>(
        &mut self,
        owner: &Arc<T>,
        find: impl for<'a> FnOnce(&'a T) -> &'a AtomicU32,
        quiet: u32,
        others: impl FnOnce() -> InputWord,
    ) {
        let input = &mut self.input;
        if input.owner.as_ref().is_some_and(|of| ptr::addr_eq(Arc::as_ptr(of), Arc::as_ptr(owner))) {
            (input.at, input.quiet) = (NonNull::from(find(owner)), quiet);
        } else {
            *self = Self { input: InputWord::new(owner, find, quiet), others: others() };
        }
    }
    /// Whether no input has arrived.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.input.is_quiet() && self.others.is_quiet()
    }
}
