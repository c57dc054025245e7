//! Event channels.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use hca::cm::Event;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};

use super::abi::{RdmaCmEvent, RdmaEventChannel};
use super::border::Registry;
use super::event::Kind;
use super::id::Id;
use crate::entry::{Errno, In, Sleep, exports, lock, pointer};
use crate::waiting::as_said;

/// An event that waits in a channel, and the identifier that it is reported and acknowledged for.
pub(super) struct Note {
    pub(super) of: Arc<Id>,
    pub(super) what: What,
}

/// The content of an event that waits.
pub(super) enum What {
    /// An event without parameters, with its status.
    Plain(Kind, c_int),
    /// An event of the connection manager.
    Cm(Box<Event>),
    /// A request to a listener; the identifier is the one that the program gets.
    Request(Arc<Id>),
    /// A group was joined; the event has its program's pointer.
    Joined { group: hca::hca_core::Gid, context: usize },
    /// An event that the program has written.
    User { kind: u32, status: c_int, arg: u64 },
}

/// An event channel: events that wait, and a descriptor that counts them.
#[repr(C)]
pub(crate) struct Channel {
    c: RdmaEventChannel,
    fd: OwnedFd,
    waiting: Mutex<VecDeque<Note>>,
}

pub(super) static CHANNELS: Registry<Channel> = Registry::new();

impl Channel {
    /// A channel, which the program has until it is [`end`](Self::end)ed.
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        let c = RdmaEventChannel { fd: fd.as_raw_fd() };
        let channel = Arc::new(Self { c, fd, waiting: Mutex::default() });
        CHANNELS.give(&channel);
        Ok(channel)
    }
    pub(super) fn raw(&self) -> *mut RdmaEventChannel {
        (&raw const self.c).cast_mut()
    }
    pub(super) fn push(&self, note: Note) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back(note);
        // The counter does not overflow: each event of it is in the list.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
    /// Takes the oldest event, which is reported from now on.
    fn pop(&self) -> Option<Note> {
        let mut waiting = lock(&self.waiting);
        let note = waiting.pop_front()?;
        note.of.reported();
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        Some(note)
    }
    /// Takes all events of an identifier.
    pub(super) fn take(&self, of: &Arc<Id>) -> Vec<Note> {
        self.take_those(of, |_| true)
    }
    /// Takes such events of an identifier.
    pub(super) fn take_those(&self, of: &Arc<Id>, are: impl Fn(&What) -> bool) -> Vec<Note> {
        let mut waiting = lock(&self.waiting);
        let (taken, left) = std::mem::take(&mut *waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|note| Arc::ptr_eq(&note.of, of) && are(&note.what));
        *waiting = left.into();
        for _ in &taken {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
        taken
    }
    /// Takes the next event that is the program's, or tells how to sleep until there is one.
    ///
    /// # Errors
    /// There is none, and the program has made the descriptor one that does not block; or a signal came.
    pub(super) fn look(&self, slept: Option<Sleep>) -> Result<Result<*mut RdmaCmEvent, Sleep>, Errno> {
        if let Some(slept) = slept {
            slept.was_woken()?;
        }
        while let Some(note) = self.pop() {
            if let Some(event) = super::event::occur(&note) {
                return Ok(Ok(event));
            }
            note.of.acknowledged();
        }
        if fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
            return Err(Errno(libc::EAGAIN));
        }
        if slept.is_none() {
            super::device::program_sleeps();
        }
        Ok(Err(Sleep::on(self.fd.as_fd(), None, None)))
    }
    /// The next event that is the program's, for a call that does more than wait.
    pub(super) async fn event(&self) -> Result<*mut RdmaCmEvent, Errno> {
        let mut slept = None;
        loop {
            match self.look(slept)? {
                Ok(event) => return Ok(event),
                Err(mut sleep) => {
                    as_said(&mut sleep).await;
                    slept = Some(sleep);
                }
            }
        }
    }
}

/// Ends a channel. Identifiers that are on it keep it until they are gone.
pub(super) fn end(channel: In<RdmaEventChannel>) {
    let _ = CHANNELS.take(channel);
}

exports! {
    "RDMACM_1.0" fn rdma_create_event_channel() -> *mut RdmaEventChannel {
        pointer(|| Ok(Channel::new()?.raw()))
    }
    "RDMACM_1.0" fn rdma_destroy_event_channel(channel: In<RdmaEventChannel>) -> () {
        end(channel);
    }
}
