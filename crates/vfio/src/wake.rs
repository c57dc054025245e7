//! Wake-ups of a server that polls doorbells and may sleep. The negotiation is in [`user::wire`](crate::user::wire).

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::mmio::{Mmio, Register};
use crate::signal::Signals;

/// Whether a descriptor that another process has sent can be an eventfd: it is no file, pipe, socket or device. Writes
/// to one of those may block, or end the process by a signal.
pub fn can_be_eventfd(fd: impl AsFd) -> bool {
    // Not even stat tells eventfds from the other objects of the system without a file.
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Unknown)
}

/// Takes the count of an eventfd that another process has as well. Returns whether it was not 0.
///
/// The call never waits: whether reads wait is a flag that all who have the descriptor share, and may have changed, so
/// this read says for itself that it does not. On kernels before 5.8, whoever changes the flag, and takes the count at
/// the same time, still has this call wait.
pub fn take_count(eventfd: impl AsFd) -> bool {
    let mut count = [0_u8; 8];
    let into = &mut [IoSliceMut::new(&mut count)];
    match preadv2(&eventfd, into, u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            let mut fds = [PollFd::new(&eventfd, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
            ready && rustix::io::read(&eventfd, &mut count).is_ok()
        }
        taken => taken.is_ok(),
    }
}

/// The waker of a function's server, for use after a doorbell was written. Clones wake the same server.
#[derive(Clone)]
pub struct Waker {
    /// Not 0: the server sleeps, or is about to. Its barrier runs on the processors of this process, too.
    sleeps: Option<Register<u32>>,
    inner: Arc<Inner>,
}

struct Inner {
    event: OwnedFd,
    /// By which a wake never waits, though the server may have filled the eventfd and changed its flags.
    signals: Option<Signals>,
    /// The same, where that barrier does not run here.
    sleeps: Option<Register<u32>>,
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tells_of_sleep = self.sleeps.is_some() || self.inner.sleeps.is_some();
        f.debug_struct("Waker").field("tells_of_sleep", &tells_of_sleep).finish_non_exhaustive()
    }
}

impl Waker {
    /// `sleeps` is the word's 4 bytes.
    pub(crate) fn new(event: OwnedFd, sleeps: Option<Mmio>) -> Self {
        // The server's `membarrier` then runs on the processors of this process as well.
        let light = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        let word = sleeps.map(|w| w.register(0));
        let (sleeps, fenced) = if light { (word, None) } else { (None, word) };
        Self { sleeps, inner: Arc::new(Inner { event, signals: Signals::new().ok(), sleeps: fenced }) }
    }

    /// Wakes the server if it sleeps; to be called after each doorbell, or after the last of several. While the server
    /// is awake the call costs a load, and no system call.
    #[inline(always)]
    pub fn after_doorbell(&self) {
        // The doorbell has to be seen by a server whose word is not seen here.
        compiler_fence(Ordering::SeqCst);
        if self.sleeps.as_ref().is_none_or(|word| word.load() != 0) {
            self.after_fence();
        }
    }
    #[cold]
    fn after_fence(&self) {
        if let Some(word) = &self.inner.sleeps {
            fence(Ordering::SeqCst);
            if word.load() == 0 {
                return;
            }
        }
        self.wake();
    }

    fn wake(&self) {
        // A counter that is full wakes as well, and a server that is gone needs no waking.
        match &self.inner.signals {
            Some(signals) => signals.send(self.inner.event.as_fd()),
            None => _ = rustix::io::write(&self.inner.event, &1_u64.to_ne_bytes()),
        }
    }
}

/// The server's half of a waker: the word, and the eventfd on which it sleeps.
///
/// A turn of the server without work ends like this:
///
/// ```text
/// sleeper.announce();             // the word, then a barrier in all processes that asked for it
/// if doorbells_are_quiet() {      // look once more at all of them
///     wait for the eventfd, with a timer of a millisecond if `announce` said that the barrier is missing
/// }
/// sleeper.awake();
/// ```
#[derive(Debug)]
pub struct Sleeper {
    event: OwnedFd,
    file: OwnedFd,
    mapping: crate::mapping::Mapping,
}

impl AsFd for Sleeper {
    /// The eventfd on which to sleep.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Sleeper {
    /// A sleeper whose word says that the server is awake.
    ///
    /// # Errors
    /// The system has no memory or no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let page = rustix::param::page_size();
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let file = crate::memory::memfd("hca-wake", page as u64)?;
        let mapping = crate::mapping::Mapping::of_file(file.as_fd(), 0, page, 1)?;
        Ok(Self { event, file, mapping })
    }

    /// The descriptors that go to a client with [`wire::Wake`](crate::user::wire::Wake): the eventfd, and the word's
    /// file, where the word is at offset 0.
    pub fn descriptors(&self) -> [std::os::fd::BorrowedFd<'_>; 2] {
        [self.event.as_fd(), self.file.as_fd()]
    }

    fn word(&self) -> &AtomicU32 {
        crate::memory::word_of(&self.mapping)
    }

    /// Announces that the server is about to sleep. Returns whether each client that rings meanwhile is sure to see the
    /// announcement, or the server is sure to see the doorbell at its next poll. If `false`, the server must sleep for
    /// a millisecond at most.
    pub fn announce(&self) -> bool {
        self.word().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }

    /// Announces that the server polls again, and discards earlier wakes.
    pub fn awake(&self) {
        self.word().store(0, Ordering::SeqCst);
        // Nothing to take: nobody woke it.
        let _ = take_count(&self.event);
    }
}

#[cfg(test)]
mod tests {
    use test_support::waiting::ends;

    use super::*;
    use crate::mapping::Mapping;

    fn woken(s: &Sleeper) -> bool {
        let mut count = [0_u8; 8];
        rustix::io::read(s, &mut count).is_ok()
    }

    #[test]
    fn a_server_is_woken_if_it_sleeps_and_not_bothered_if_it_does_not() {
        let server = Sleeper::new().unwrap();
        let [event, file] = server.descriptors().map(|d| d.try_clone_to_owned().unwrap());
        let page = rustix::param::page_size();
        let word = Mmio::new(Mapping::of_file(file.as_fd(), 0, page, 1).unwrap(), 0, 4, ());
        let waker = Waker::new(event, Some(word));
        waker.after_doorbell();
        assert!(!woken(&server));
        server.announce();
        waker.clone().after_doorbell();
        assert!(woken(&server));
        server.announce();
        waker.after_doorbell();
        server.awake();
        assert!(!woken(&server), "what woke it is forgotten");
        waker.after_doorbell();
        assert!(!woken(&server));
    }

    #[test]
    fn a_client_that_has_reads_of_the_eventfd_wait_does_not_stop_the_server() {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let server = Arc::new(Sleeper::new().unwrap());
        let event = server.descriptors()[0].try_clone_to_owned().unwrap();
        fcntl_setfl(&event, fcntl_getfl(&event).unwrap() - OFlags::NONBLOCK).unwrap();
        let (done, awake) = std::sync::mpsc::channel();
        let other = server.clone();
        std::thread::spawn(move || {
            other.awake();
            done.send(()).unwrap();
        });
        let came = awake.recv_timeout(std::time::Duration::from_secs(60));
        // If it was kept waiting, it goes on now.
        rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(came, Ok(()));
        server.awake();
        let mut fds = [PollFd::new(&event, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0), "what woke it is taken");
    }

    #[test]
    fn a_server_that_fills_its_eventfd_and_has_writes_wait_stops_no_client() {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let server = Sleeper::new().unwrap();
        let waker = Waker::new(server.descriptors()[0].try_clone_to_owned().unwrap(), None);
        rustix::io::write(&server.event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&server, fcntl_getfl(&server).unwrap() - OFlags::NONBLOCK).unwrap();
        ends("the server is woken", move || (0..100).for_each(|_| waker.after_doorbell()));
    }

    #[test]
    fn a_server_that_does_not_say_whether_it_sleeps_is_woken_each_time() {
        let server = Sleeper::new().unwrap();
        let waker = Waker::new(server.descriptors()[0].try_clone_to_owned().unwrap(), None);
        waker.after_doorbell();
        assert!(woken(&server));
    }
}
