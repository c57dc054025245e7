//! Counting events, and the triggered operations that wait for them.

use std::collections::BTreeMap;

use crate::{Count, CtHandle, Error, Interface, NiFail, Transfer, Triggered};

#[derive(Debug, Default)]
pub(crate) struct Counter {
    count: Count,
    /// By threshold, then in the order in which they were asked for.
    waiting: BTreeMap<(u64, u64), Triggered>,
}

impl Counter {
    pub(crate) fn count(&self) -> Count {
        self.count
    }
    /// Whether successes and failures together are so many.
    #[inline]
    pub(crate) fn has_reached(&self, threshold: u64) -> bool {
        self.count.success.saturating_add(self.count.failure) >= threshold
    }
    pub(crate) fn set(&mut self, count: Count) {
        self.count = count;
    }
    /// As in C: an increment of 2^64 - n takes n away.
    #[inline]
    pub(crate) fn add(&mut self, by: Count) {
        self.count.success = self.count.success.wrapping_add(by.success);
        self.count.failure = self.count.failure.wrapping_add(by.failure);
    }
    /// `serial` grows from call to call.
    pub(crate) fn wait(&mut self, threshold: u64, serial: u64, operation: Triggered) {
        self.waiting.insert((threshold, serial), operation);
    }
    /// The next operation whose threshold is reached.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Triggered> {
        let (&(threshold, _), _) = self.waiting.first_key_value()?;
        if !self.has_reached(threshold) {
            return None;
        }
        self.waiting.pop_first().map(|(_, operation)| operation)
    }
    /// Forgets what waits; says how many that were.
    pub(crate) fn cancel(&mut self) -> u32 {
        let cancelled = self.waiting.len() as u32;
        self.waiting.clear();
        cancelled
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Add(Count),
    Set(Count),
}

impl Interface {
    /// Makes a counting event, at zero.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn ct_alloc(&mut self) -> Result<CtHandle, Error> {
        let limit = self.cts.limit();
        self.cts
            .insert(Counter::default())
            .map(CtHandle)
            .ok_or(Error::NoSpace { what: "counting events", limit })
    }
    /// Frees a counting event. Triggered operations that wait for it are dropped, and later events are not counted.
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn ct_free(&mut self, ct: CtHandle) -> Result<(), Error> {
        self.ct_cancel_triggered(ct)?;
        self.cts.remove(ct.0.index());
        Ok(())
    }
    /// The counts of a counting event.
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn ct_get(&self, ct: CtHandle) -> Result<Count, Error> {
        Ok(self.counter(ct, "ct")?.count())
    }
    /// The first of several counting events that has reached its test, successes and failures together, from `first`
    /// on.
    ///
    /// # Errors
    /// [`Error::Handle`]; [`Error::Aborted`] after [`abort`](Self::abort).
    pub fn ct_poll(&self, cts: &[(CtHandle, u64)], first: usize) -> Result<Option<(usize, Count)>, Error> {
        self.check_aborted()?;
        for which in (0..cts.len()).map(|i| (first % cts.len() + i) % cts.len()) {
            let counter = self.counter(cts[which].0, "cts")?;
            if counter.has_reached(cts[which].1) {
                return Ok(Some((which, counter.count())));
            }
        }
        Ok(None)
    }
    /// Sets a counting event, which may trigger operations that wait for it.
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn ct_set(&mut self, ct: CtHandle, count: Count) -> Result<(), Error> {
        self.counter(ct, "ct")?;
        self.change(ct, Change::Set(count));
        Ok(())
    }
    /// Increments a counting event: successes or failures, not both. Counts wrap, so an increment of 2^64 - n, which is
    /// -n in C, takes n away.
    ///
    /// # Errors
    /// [`Error::Handle`], [`Error::Increment`].
    pub fn ct_inc(&mut self, ct: CtHandle, by: Count) -> Result<(), Error> {
        self.counter(ct, "ct")?;
        check_increment(by)?;
        self.change(ct, Change::Add(by));
        Ok(())
    }
    /// Drops the operations that wait for a counting event, and returns their number.
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn ct_cancel_triggered(&mut self, ct: CtHandle) -> Result<u32, Error> {
        let counter = self.cts.get_mut(ct.0).ok_or(Error::Handle { argument: "ct" })?;
        let cancelled = counter.cancel();
        self.triggered -= cancelled;
        Ok(cancelled)
    }
    /// Runs an operation as soon as a counting event has reached a threshold, or at once if it has already. Operations
    /// run in the order of their thresholds; operations with equal thresholds run in the order of the calls.
    ///
    /// # Errors
    /// [`Error::Handle`], [`Error::Increment`], [`Error::NoSpace`], and the errors of [`begin`](Self::begin).
    pub fn trigger(&mut self, ct: CtHandle, threshold: u64, operation: Triggered) -> Result<(), Error> {
        self.counter(ct, "trig_ct")?;
        match &operation {
            Triggered::Transfer(transfer) => self.check_transfer(transfer)?,
            Triggered::CtInc(ct, by) => {
                self.counter(*ct, "ct")?;
                check_increment(*by)?;
            }
            Triggered::CtSet(ct, _) => drop(self.counter(*ct, "ct")?),
        }
        let limit = self.config.limits.max_triggered_ops;
        if self.triggered >= limit {
            return Err(Error::NoSpace { what: "triggered operations", limit });
        }
        self.triggered += 1;
        self.serial += 1;
        let counter = self.cts.get_mut(ct.0).expect("it was checked");
        counter.wait(threshold, self.serial, operation);
        self.change(ct, Change::Add(Count::default()));
        Ok(())
    }
    /// The next triggered message whose count was reached: the caller sends it now.
    pub fn fired(&mut self) -> Option<Transfer> {
        let transfer = self.fired.pop_front()?;
        self.triggered -= 1;
        Some(transfer)
    }
    /// Whether [`fired`](Self::fired) would return `None`.
    #[inline]
    pub fn fired_is_empty(&self) -> bool {
        self.fired.is_empty()
    }
    /// Counts one operation, or its bytes.
    #[inline]
    pub(crate) fn count(&mut self, ct: Option<CtHandle>, fail: NiFail, bytes: Option<u64>) {
        let Some(ct) = ct else { return };
        let by = match fail {
            NiFail::Ok => Count { success: bytes.unwrap_or(1), failure: 0 },
            _ => Count { success: 0, failure: 1 },
        };
        self.change(ct, Change::Add(by));
    }
    /// Changes a counting event, and does what that sets off, and what this sets off in turn. Each operation is done
    /// once, so it ends.
    fn change(&mut self, ct: CtHandle, change: Change) {
        self.work.push_back((ct, change));
        while let Some((ct, change)) = self.work.pop_front() {
            let Some(counter) = self.cts.get_mut(ct.0) else { continue };
            match change {
                Change::Add(by) => counter.add(by),
                Change::Set(count) => counter.set(count),
            }
            while let Some(operation) = counter.pop() {
                let (ct, change) = match operation {
                    Triggered::Transfer(transfer) => {
                        self.fired.push_back(transfer);
                        continue;
                    }
                    Triggered::CtInc(ct, by) => (ct, Change::Add(by)),
                    Triggered::CtSet(ct, count) => (ct, Change::Set(count)),
                };
                self.triggered -= 1;
                self.work.push_back((ct, change));
            }
        }
    }
    pub(crate) fn check_ct(&self, ct: Option<CtHandle>, argument: &'static str) -> Result<(), Error> {
        ct.map_or(Ok(()), |ct| self.counter(ct, argument).map(drop))
    }
    fn counter(&self, ct: CtHandle, argument: &'static str) -> Result<&Counter, Error> {
        self.cts.get(ct.0).ok_or(Error::Handle { argument })
    }
}

fn check_increment(by: Count) -> Result<(), Error> {
    if by.success != 0 && by.failure != 0 { Err(Error::Increment { argument: "increment" }) } else { Ok(()) }
}
