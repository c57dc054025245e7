//! Traces of each message's way through the match lists, step by step, to find out why no entry matched.

use hca_matching::{Delivery, Interface, Landing};

pub use hca_matching::{EntryHandle, Header, ListKind, NiFail, Operation, Reason, Transfer};

/// A step of a message's way.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// An operation begins at this node.
    Began(Transfer),
    /// A message has arrived.
    Came(Header),
    /// An entry was compared with the message, and takes it or refuses it for a reason.
    Asked {
        /// The entry.
        entry: EntryHandle,
        /// The list of the entry.
        list: ListKind,
        /// The reason why the entry does not take the message.
        refuses: Option<Reason>,
    },
    /// No entry takes the message.
    Refused,
    /// The message's bytes were moved, or the move failed.
    Done {
        /// The entry.
        entry: EntryHandle,
        /// The list on which it stood.
        list: ListKind,
        /// The offset in the entry's memory.
        offset: u64,
        /// Bytes moved.
        mlength: u64,
        /// The result.
        fail: NiFail,
    },
}

/// A callback for each step, under the node's lock: it must be quick, and must not call the node.
pub struct Trace {
    tell: Box<dyn FnMut(&Step) + Send>,
}

impl Trace {
    /// A trace that calls a function with each step.
    pub fn new(tell: impl FnMut(&Step) + Send + 'static) -> Self {
        Self { tell: Box::new(tell) }
    }
    pub(crate) fn began(&mut self, transfer: &Transfer) {
        (self.tell)(&Step::Began(*transfer));
    }
    pub(crate) fn came(&mut self, engine: &Interface, header: &Header) {
        (self.tell)(&Step::Came(*header));
        let mut taken = false;
        engine.explain(header, |entry, list, refuses| {
            taken |= refuses.is_none();
            (self.tell)(&Step::Asked { entry, list, refuses });
        });
        if !taken {
            (self.tell)(&Step::Refused);
        }
    }
    pub(crate) fn done(&mut self, delivery: &Delivery, fail: NiFail) {
        let &Landing { entry, list, offset, mlength, .. } = &**delivery;
        (self.tell)(&Step::Done { entry, list, offset, mlength, fail });
    }
}
