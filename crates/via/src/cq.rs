//! Completion queues: which work queue has a completed descriptor.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::nic::NicShared;
use crate::notify::Look;
use crate::source::Source;
use crate::{Error, Nic, Queue, ViId};

/// An entry of a completion queue: a work queue with a descriptor that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEntry {
    /// The VI.
    pub vi: ViId,
    /// The work queue. [`Vi::send_done`](crate::Vi::send_done) or [`Vi::recv_done`](crate::Vi::recv_done) takes the
    /// descriptor off.
    pub queue: Queue,
}

/// A completion queue. From [`Nic::create_cq`](crate::Nic::create_cq).
///
/// Each descriptor that completes on an attached work queue adds an entry. A queue that is full loses the entry, and
/// raises [`ErrorKind::Overrun`](crate::ErrorKind::Overrun); the descriptor stays on its work queue.
pub struct Cq {
    source: Arc<Source>,
    nic: Arc<NicShared>,
}

impl Cq {
    pub(crate) fn create(nic: &Nic, entries: u32) -> Result<Self, Error> {
        let shared = nic.shared();
        check_entries(shared, entries)?;
        let room = 2 * shared.attributes.max_descriptors_per_queue;
        let source = Source::create(&shared.context, &shared.waiters, room, Some(entries))?;
        Ok(Self { source, nic: Arc::clone(shared) })
    }
    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }
    pub(crate) fn check(&self, nic: &Arc<NicShared>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.nic, nic) {
            return Ok(());
        }
        Err(Error::Parameter { what: "completion queue", why: "it belongs to another adapter" })
    }
    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.source.with(|state| state.depth().unwrap_or_default() as u32)
    }
    /// Takes the oldest entry (`VipCQDone`). Never waits.
    #[inline]
    pub fn done(&self) -> Option<CqEntry> {
        self.source
            .with(|state| {
                state.next_entry().or_else(|| {
                    state.poll();
                    state.next_entry_or_ask()
                })
            })
            .map(CqEntry::new)
    }
    /// Takes the oldest entry of those that an earlier call has found, without a look at the device: a look behind the
    /// last one is in vain, and sends acknowledgements by themselves that the answers would carry.
    #[inline]
    pub fn more(&self) -> Option<CqEntry> {
        self.source.with(|state| state.next_entry()).map(CqEntry::new)
    }
    /// As [`done`](Self::done), without a request to the peers to acknowledge sends: a look of a program that does not
    /// wait for the ends of its sends. Of the last ones this look never tells.
    #[inline]
    pub fn done_unasked(&self) -> Option<CqEntry> {
        let entry = self.source.with(|state| {
            state.next_entry().or_else(|| {
                state.poll();
                state.next_entry()
            })
        });
        entry.map(CqEntry::new)
    }
    /// Waits for an entry, and takes it (`VipCQWait`); for ever without a `timeout`.
    ///
    /// # Errors
    /// None came in time.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<CqEntry, Error> {
        self.source.wait(timeout, |state| state.next_entry_or_ask()).map(CqEntry::new)
    }
    /// Has `call` called once with the next entry (`VipCQNotify`), by a thread of the adapter.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn notify(&self, call: impl FnOnce(CqEntry) + Send + 'static) -> Result<(), Error> {
        let look = |state: &mut crate::source::State| match state.next_entry_or_ask() {
            Some(entry) => Look::Found(CqEntry::new(entry)),
            None if state.is_closed() => Look::Gone,
            None => Look::Nothing,
        };
        self.nic.notifier.add(&self.source, u64::MAX, look, call)
    }
    /// Sets the number of entries (`VipResizeCQ`). Entries that wait stay.
    ///
    /// # Errors
    /// 0, beyond the adapter's limit, or fewer than wait.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        check_entries(&self.nic, entries)?;
        self.source.with(|state| state.resize(entries as usize))
    }
    /// Whether the queue can be [destroyed](Self::destroy) now.
    ///
    /// # Errors
    /// Work queues are attached to it.
    pub fn check_unused(&self) -> Result<(), Error> {
        match self.source.with(|state| state.users()) {
            0 => Ok(()),
            users => Err(Error::InUse { what: "the completion queue", users }),
        }
    }
    /// Destroys the queue (`VipDestroyCQ`). On return no callback of it is under way, as with
    /// [`Vi::destroy`](crate::Vi::destroy).
    ///
    /// # Errors
    /// Work queues are attached to it. The error gives the queue back.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        if let Err(error) = self.check_unused() {
            return Err((self, error));
        }
        self.source.wait_for_call();
        Ok(())
    }
}

fn check_entries(nic: &NicShared, entries: u32) -> Result<(), Error> {
    if (1..=nic.attributes.max_cq_entries).contains(&entries) {
        return Ok(());
    }
    Err(Error::Parameter { what: "entries", why: "their number is 0, or more than `max_cq_entries`" })
}

impl CqEntry {
    fn new((vi, queue): (ViId, Queue)) -> Self {
        Self { vi, queue }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.nic.is_in_child() {
            return;
        }
        self.source.with(|state| state.close());
        self.nic.waiters.call();
    }
}
impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({} entries)", self.entries())
    }
}
