//! The adapters of one check, and waits for their results.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hca_core::{AsyncEvent, Device, WcStatus};

use crate::{Bed, Feature, Pause, Ran};

/// All adapters of one check. Waiting turns them all, since with some devices nobody else does.
pub(crate) struct World {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// Asynchronous events that were taken, an entry a device, oldest first.
    events: Vec<Mutex<Vec<AsyncEvent>>>,
    name: String,
    patience: Duration,
    passive: bool,
    lossless: bool,
}

impl World {
    pub(crate) fn open(bed: &dyn Bed, n: usize) -> Arc<Self> {
        let devices = bed.open(n);
        assert_eq!(devices.len(), n, "{} opened the wrong number of adapters", bed.name());
        Arc::new(Self {
            events: devices.iter().map(|_| Mutex::default()).collect(),
            devices,
            name: bed.name(),
            patience: bed.patience(),
            passive: bed.can(Feature::Passive),
            lossless: bed.can(Feature::Lossless),
        })
    }

    /// What a request that the peer refuses may end as. A responder that refused is in error and answers
    /// no retransmission, so that a refusal that the network lost looks like silence.
    pub(crate) fn as_refusal(&self, got: WcStatus, want: WcStatus) -> WcStatus {
        use WcStatus::{RemoteAccess, RemoteInvalidRequest, RemoteOperation, RetryExceeded};
        let refusal = matches!(want, RemoteAccess | RemoteInvalidRequest | RemoteOperation);
        if refusal && got == RetryExceeded && !self.lossless { want } else { got }
    }

    /// Turns every adapter once; whether any did something.
    pub(crate) fn turn(&self) -> bool {
        self.devices.iter().fold(false, |moved, d| d.turn() | moved)
    }

    /// Turns all adapters until `ready` yields something.
    ///
    /// # Panics
    /// When the bed's patience ends, with `what` and all counters that are not zero.
    pub(crate) fn wait<T>(&self, what: &str, ready: impl FnMut() -> Option<T>) -> T {
        self.wait_calling(what, ready, || self.turn())
    }

    /// Waits and calls no adapter; they have to move by themselves.
    pub(crate) fn wait_idle<T>(&self, what: &str, ready: impl FnMut() -> Option<T>) -> T {
        self.wait_calling(what, ready, || false)
    }

    fn wait_calling<T>(
        &self,
        what: &str,
        mut ready: impl FnMut() -> Option<T>,
        mut between: impl FnMut() -> bool,
    ) -> T {
        let (mut ran, mut pause) = (Ran::new(), Pause::new());
        loop {
            if let Some(v) = ready() {
                return v;
            }
            let moved = between();
            assert!(
                ran.tick() < self.patience,
                "{}: waited {:?} in vain for {what}\n{}",
                self.name,
                self.patience,
                self.report()
            );
            pause.rest(moved);
        }
    }

    /// Lets everything arrive that is still under way: turns until all adapters were quiet for a while, or
    /// for long where they never are, as while a peer is asked again and again whether it is ready.
    pub(crate) fn settle(&self) {
        let (long, many) = (Duration::from_millis(100), 250);
        let quiet = Duration::from_millis(if self.passive { 5 } else { 2 });
        let start = Instant::now();
        let (mut since, mut quiet_turns, mut turns, mut pause) = (start, 0, 0, Pause::new());
        while (since.elapsed() < quiet || quiet_turns < 20) && (start.elapsed() < long || turns < many) {
            quiet_turns += 1;
            turns += 1;
            let moved = self.turn();
            if moved {
                (since, quiet_turns) = (Instant::now(), 0);
            }
            pause.rest(moved);
        }
    }

    /// Waits until an adapter that counts datagrams without a receive has dropped `n`; lets all arrive at others.
    pub(crate) fn wait_no_recv(&self, device: usize, n: u64) {
        let dropped = || {
            let counters = self.devices[device].counters();
            counters.iter().find(|c| c.name == "rx_dropped_no_recv").map(|c| c.value)
        };
        if self.lossless && dropped().is_some() {
            self.wait(&format!("{n} messages without a receive"), || (dropped() >= Some(n)).then_some(()));
        }
        self.settle();
    }

    /// All events of one adapter so far.
    pub(crate) fn events(&self, device: usize) -> Vec<AsyncEvent> {
        self.take_events(device).clone()
    }

    fn take_events(&self, device: usize) -> MutexGuard<'_, Vec<AsyncEvent>> {
        let mut seen = lock(&self.events[device]);
        while let Some(e) = self.devices[device].poll_event() {
            seen.push(e);
        }
        seen
    }

    /// Waits until an adapter has raised `event`.
    pub(crate) fn wait_event(&self, device: usize, event: AsyncEvent) {
        self.wait(&format!("{event:?} (seen: {:?})", self.events(device)), || {
            self.take_events(device).contains(&event).then_some(())
        });
    }

    /// How often an adapter has raised `event`.
    pub(crate) fn count_events(&self, device: usize, event: AsyncEvent) -> usize {
        self.take_events(device).iter().filter(|e| **e == event).count()
    }

    /// Counters that are not zero, an adapter a line.
    pub(crate) fn report(&self) -> String {
        let mut out = String::new();
        for (i, device) in self.devices.iter().enumerate() {
            let _ = write!(out, "adapter {i} {}:", device.port().gid);
            for c in device.counters().iter().filter(|c| c.value != 0) {
                let _ = write!(out, " {}={}", c.name, c.value);
            }
            let _ = writeln!(out, " events={:?}", self.events(i));
        }
        out
    }
}

/// Raises a flag when dropped, so that other threads end even if this one panics.
pub(crate) struct RaiseOnDrop<'a>(pub(crate) &'a AtomicBool);
impl Drop for RaiseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The lock's content, whether or not another check's thread panicked.
pub(crate) fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
