//! A gated device: it blocks calls until the test lets them go on (as a device does that still has to resolve a peer's
//! address), refuses calls, and records the arguments of calls.
//!
//! Invariants of the unsafe code:
//! 1. Every call goes unchanged to a device that keeps the invariants.
#![allow(unsafe_code)] // `unsafe impl Device`: all promises are those of the device behind it

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::time::Duration;

use hca_core::{
    AddressVector, AhHandle, AsyncEvent, Counter, CqHandle, CqPort, Device, DeviceAttr, DeviceError,
    DmaMemory, MrHandle, MrInit, MrKeys, PdHandle, PortAttr, QpAttr, QpHandle, QpInit, QpPorts, QpStatus,
    RecvPort, SrqHandle, SrqInit,
};

/// A call that waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    CreateAh,
    CreateQp,
    ModifyQp,
    DestroyQp,
    DeregMr,
}

/// Where calls are held up.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The next such call is held up.
    closed: Option<Call>,
    held: bool,
    /// The next such call is refused.
    refused: Option<Call>,
    /// All calls that have begun.
    calls: Vec<Call>,
    /// Where paths lead, and what queue pairs were told, one after the other.
    paths: Vec<AddressVector>,
    attrs: Vec<QpAttr>,
}

impl Gate {
    /// The next such call is held up.
    pub(super) fn close(&self, call: Call) {
        self.state.lock().unwrap().closed = Some(call);
    }
    /// The next such call is refused.
    pub(super) fn refuse(&self, call: Call) {
        self.state.lock().unwrap().refused = Some(call);
    }
    /// Where the last path leads.
    pub(super) fn path(&self) -> AddressVector {
        *self.state.lock().unwrap().paths.last().expect("there is one")
    }
    /// What a queue pair was told last, of those attributes of which `f` yields something.
    pub(super) fn told<R>(&self, f: impl FnMut(&QpAttr) -> Option<R>) -> Option<R> {
        self.state.lock().unwrap().attrs.iter().rev().find_map(f)
    }
    /// Returns when a call is held up.
    pub(super) fn wait(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| !state.held).unwrap());
    }
    /// The call that is held up goes on.
    pub(super) fn open(&self) {
        let mut state = self.state.lock().unwrap();
        (state.closed, state.held) = (None, false);
        self.changed.notify_all();
    }
    /// How many such calls have begun.
    pub(super) fn calls(&self, call: Call) -> usize {
        self.state.lock().unwrap().calls.iter().filter(|&&of| of == call).count()
    }
    fn pass(&self, call: Call) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(call);
        if state.refused == Some(call) {
            state.refused = None;
            return Err(DeviceError::LimitReached { what: "whatever is asked for", limit: 0 });
        }
        if state.closed == Some(call) {
            (state.closed, state.held) = (None, true);
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| state.held).unwrap());
        }
        Ok(())
    }
}

/// Opens the gate when it is dropped, by a test that fails, too.
pub(super) struct Opens<'a>(pub(super) &'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

pub(super) struct Gated {
    pub(super) of: Arc<dyn Device>,
    pub(super) gate: Arc<Gate>,
}

// SAFETY: (1)
unsafe impl Device for Gated {
    fn create_ah(&self, pd: PdHandle, av: &AddressVector) -> Result<AhHandle, DeviceError> {
        self.gate.state.lock().unwrap().paths.push(*av);
        self.gate.pass(Call::CreateAh)?;
        self.of.create_ah(pd, av)
    }
    fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        self.gate.pass(Call::CreateQp)?;
        self.of.create_qp(pd, init)
    }
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr) -> Result<(), DeviceError> {
        self.gate.state.lock().unwrap().attrs.push(*attr);
        self.gate.pass(Call::ModifyQp)?;
        self.of.modify_qp(qp, attr)
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<Vec<u64>, DeviceError> {
        self.gate.pass(Call::DestroyQp)?;
        self.of.destroy_qp(qp)
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), DeviceError> {
        self.gate.pass(Call::DeregMr)?;
        self.of.dereg_mr(mr)
    }

    fn attr(&self) -> &DeviceAttr {
        self.of.attr()
    }
    fn port(&self) -> PortAttr {
        self.of.port()
    }
    fn counters(&self) -> Vec<Counter> {
        self.of.counters()
    }
    fn alloc_pd(&self) -> Result<PdHandle, DeviceError> {
        self.of.alloc_pd()
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), DeviceError> {
        self.of.dealloc_pd(pd)
    }
    fn alloc_memory(&self, len: usize) -> Result<DmaMemory, DeviceError> {
        self.of.alloc_memory(len)
    }
    unsafe fn reg_mr(&self, pd: PdHandle, mr: &MrInit) -> Result<MrKeys, DeviceError> {
        // SAFETY: (1)
        unsafe { self.of.reg_mr(pd, mr) }
    }
    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        self.of.create_cq(depth)
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DeviceError> {
        self.of.destroy_cq(cq)
    }
    fn create_srq(
        &self,
        pd: PdHandle,
        init: &SrqInit,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        self.of.create_srq(pd, init)
    }
    fn set_srq_limit(&self, srq: SrqHandle, limit: u32) -> Result<(), DeviceError> {
        self.of.set_srq_limit(srq, limit)
    }
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DeviceError> {
        self.of.destroy_srq(srq)
    }
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DeviceError> {
        self.of.destroy_ah(ah)
    }
    fn query_qp(&self, qp: QpHandle) -> Result<QpStatus, DeviceError> {
        self.of.query_qp(qp)
    }
    fn poll_event(&self) -> Option<AsyncEvent> {
        self.of.poll_event()
    }
    fn set_event_waker(&self, waker: &Waker) {
        self.of.set_event_waker(waker);
    }
    fn turn(&self) -> bool {
        self.of.turn()
    }
    fn needs_turns(&self) -> bool {
        self.of.needs_turns()
    }
    fn next_deadline(&self) -> Option<Duration> {
        self.of.next_deadline()
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.of.wait_fd()
    }
}
