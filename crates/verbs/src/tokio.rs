//! A completion queue on a tokio runtime.
//!
//! Invariants of the unsafe code:
//! 1. The registered descriptor is an [`OwnedFd`] that the registration owns: it stays open, and the same, until the
//!    registration is dropped.
#![allow(unsafe_code)]

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context as TaskContext, Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use hca_core::Notify;
use thiserror::Error;

use crate::wait::wait_readable;
use crate::wc::Wcs;
use crate::{CompletionQueue, Completions, Reactor, WaitError};

/// A completion queue whose tokio task makes the device's progress: no adapter thread is needed, and no thread blocks.
/// The task sleeps on the device's one descriptor.
#[derive(Debug)]
pub struct AsyncCq {
    cq: CompletionQueue,
    fd: AsyncFd<OwnedFd>,
}

impl AsyncCq {
    /// Registers the queue's descriptor with the current runtime.
    ///
    /// # Errors
    /// The device has no descriptor, or the runtime can't take it; the queue comes back.
    ///
    /// # Panics
    /// There is no current runtime, or its I/O is off.
    #[allow(clippy::result_large_err)] // the queue comes back by value
    pub fn new(mut cq: CompletionQueue) -> Result<Self, NotAsync> {
        match register(&mut cq) {
            Ok(fd) => Ok(Self { cq, fd }),
            Err(error) => Err(NotAsync { cq, error }),
        }
    }

    /// The next completions. The future may be dropped at any await; nothing is lost.
    ///
    /// # Errors
    /// The runtime is shutting down, or the operating system refused to poll the descriptor.
    pub async fn next<'w>(&mut self, wcs: &'w mut Completions) -> Result<Wcs<'w>, WaitError> {
        poll_fn(|cx| poll_completions(&mut self.cq, &self.fd, cx, wcs)).await?;
        Ok(wcs.iter_mut())
    }

    /// The queue, for polls without waiting, and for building queue pairs.
    pub fn cq(&mut self) -> &mut CompletionQueue {
        &mut self.cq
    }
    /// Returns the queue as it was.
    pub fn into_inner(self) -> CompletionQueue {
        self.cq
    }
    /// A reference with which another task can build queue pairs.
    pub fn reference(&self) -> crate::CqRef {
        self.cq.reference()
    }
}

impl AsRef<crate::CqRef> for AsyncCq {
    fn as_ref(&self) -> &crate::CqRef {
        self.cq.as_ref()
    }
}

hca_core::debug_as_display!(NotAsync);

/// Fills `wcs`, or has the task woken when there is something to fill it with.
fn poll_completions(
    cq: &mut CompletionQueue,
    fd: &AsyncFd<OwnedFd>,
    cx: &mut TaskContext<'_>,
    wcs: &mut Completions,
) -> Poll<Result<(), WaitError>> {
    if cq.fill(wcs) > 0 {
        return Poll::Ready(Ok(()));
    }
    loop {
        cq.arm(Notify::Any);
        if cq.fill(wcs) > 0 {
            return Poll::Ready(Ok(()));
        }
        let mut guard = ready!(fd.poll_read_ready(cx))?;
        if cq.fill(wcs) > 0 {
            return Poll::Ready(Ok(()));
        }
        // The runtime sees edges only. While the descriptor stays readable there is none, so its readiness is kept and
        // the device's progress made again; else it is cleared.
        let level = guard.try_io(|fd| {
            let readable = wait_readable(fd.as_fd(), Some(std::time::Duration::ZERO))?;
            readable.then_some(()).ok_or_else(|| std::io::ErrorKind::WouldBlock.into())
        });
        if let Ok(result) = level {
            result?;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }
}

impl Reactor {
    /// A reactor on a completion queue, whose driver is spawned as a task of the current runtime. Where only the
    /// program's calls move the device, the driver sleeps on the device's descriptor.
    ///
    /// # Errors
    /// The device has no descriptor, or the runtime can't take it.
    ///
    /// # Panics
    /// There is no current runtime, or its I/O is off where the driver needs that.
    pub fn spawn(mut cq: CompletionQueue) -> Result<Self, WaitError> {
        if !cq.needs_turns() {
            // The adapter's thread wakes it: a descriptor has to be made ready for each sleep.
            let (reactor, driver) = Self::new(cq);
            ::tokio::spawn(driver);
            return Ok(reactor);
        }
        let fd = register(&mut cq)?;
        let (reactor, driver) = Self::new(cq);
        ::tokio::spawn(async move {
            let drive = poll_fn(|cx| driver.drive(cx, |cq, wcs, cx| poll_completions(cq, &fd, cx, wcs)));
            if let Err(error) = drive.await {
                tracing::error!(%error, "a reactor's driver ends: its tasks get no more completions");
            }
        });
        Ok(reactor)
    }
}

fn register(cq: &mut CompletionQueue) -> Result<AsyncFd<OwnedFd>, WaitError> {
    let fd = cq.wait_fd()?.try_clone_to_owned()?;
    // SAFETY: (1).
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(registered.map_err(std::io::Error::from)?)
}

/// The error of [`AsyncCq::new`], which gives the completion queue back.
#[derive(Error)]
#[error("{error}")]
pub struct NotAsync {
    /// The queue, as it was given.
    pub cq: CompletionQueue,
    /// The reason.
    pub error: WaitError,
}
