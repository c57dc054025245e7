//! Asynchronous events: from the device to the contexts whose objects they are about.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};

use hca::hca_core::{AsyncEvent, EventObject};

use crate::abi::{IbvAsyncEvent, IbvContext};
use crate::cq::Cq;
use crate::device::Adapter;
use crate::entry::{Errno, In, cancellable, counted, exports, lock, sleeping};
use crate::event::{Events, Unacknowledged};
use crate::explain;
use crate::qp::{Qp, Srq};

/// Numbers of `enum ibv_event_type`.
mod kind {
    pub(super) const CQ_ERR: u32 = 0;
    pub(super) const QP_FATAL: u32 = 1;
    pub(super) const QP_REQ_ERR: u32 = 2;
    pub(super) const QP_ACCESS_ERR: u32 = 3;
    pub(super) const COMM_EST: u32 = 4;
    pub(super) const SQ_DRAINED: u32 = 5;
    pub(super) const DEVICE_FATAL: u32 = 8;
    pub(super) const PORT_ACTIVE: u32 = 9;
    pub(super) const PORT_ERR: u32 = 10;
    pub(super) const SRQ_ERR: u32 = 14;
    pub(super) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(super) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(super) const GID_CHANGE: u32 = 18;
}

/// An event as a program gets it.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    kind: u32,
    /// The address of the object, or the number of the port.
    element: usize,
}
/// The events of a context.
pub(crate) type ContextEvents = Events<Event>;

/// The number of an event; `None` for one that programs do not know.
fn number(event: AsyncEvent) -> Option<u32> {
    Some(match event {
        AsyncEvent::CqOverrun(_) => kind::CQ_ERR,
        AsyncEvent::CommEstablished(_) => kind::COMM_EST,
        AsyncEvent::SqDrained(_) => kind::SQ_DRAINED,
        AsyncEvent::LastWqeReached(_) => kind::QP_LAST_WQE_REACHED,
        AsyncEvent::QpFatal(_) => kind::QP_FATAL,
        AsyncEvent::QpRequestError(_) => kind::QP_REQ_ERR,
        AsyncEvent::QpAccessError(_) => kind::QP_ACCESS_ERR,
        AsyncEvent::SrqLimitReached(_) => kind::SRQ_LIMIT_REACHED,
        AsyncEvent::PortActive => kind::PORT_ACTIVE,
        AsyncEvent::PortError => kind::PORT_ERR,
        AsyncEvent::PortAddressChanged => kind::GID_CHANGE,
        AsyncEvent::DeviceFatal => kind::DEVICE_FATAL,
        _ => return None,
    })
}

/// An object by its address, with the events of its context.
type Listener = (usize, Arc<ContextEvents>);

/// The objects of an adapter by their handles. A queue pair that was opened several times has several.
#[derive(Default)]
pub(crate) struct Listeners {
    objects: Mutex<HashMap<EventObject, Vec<Listener>>>,
    contexts: Mutex<Vec<Weak<ContextEvents>>>,
    /// Held while events are taken from the device, so that they stay in their order.
    pump: Mutex<()>,
}

impl Listeners {
    pub(crate) fn open(&self, events: &Arc<ContextEvents>) {
        let mut contexts = lock(&self.contexts);
        contexts.retain(|other| other.strong_count() > 0);
        contexts.push(Arc::downgrade(events));
    }
    /// Leads events of an object to a context from now on.
    pub(crate) fn add(&self, of: EventObject, object: usize, events: &Arc<ContextEvents>) {
        lock(&self.objects).entry(of).or_default().push((object, Arc::clone(events)));
    }
    /// Ends that. No event of the object is raised any more, and none waits.
    pub(crate) fn remove(&self, of: EventObject, object: usize) {
        let mut objects = lock(&self.objects);
        let Some(listeners) = objects.get_mut(&of) else { return };
        let Some(at) = listeners.iter().position(|(other, _)| *other == object) else { return };
        let (_, events) = listeners.swap_remove(at);
        if listeners.is_empty() {
            objects.remove(&of);
        }
        drop(objects);
        events.forget(|event| event.element == object);
    }
    /// Calls a function with each queue pair. None is destroyed meanwhile.
    pub(crate) fn queue_pairs(&self, call: impl Fn(&Qp)) {
        for (object, listeners) in &*lock(&self.objects) {
            if matches!(object, EventObject::Qp(_)) {
                let each = listeners.iter().filter_map(|(qp, _)| In::<Qp>::of(*qp as *mut Qp).opt());
                each.for_each(&call);
            }
        }
    }
    fn dispatch(&self, event: AsyncEvent) {
        let Some(kind) = number(event) else { return };
        let object = event.object();
        if matches!(object, EventObject::Port | EventObject::Device) {
            // There is one port.
            let element = usize::from(object == EventObject::Port);
            let contexts = lock(&self.contexts).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
            contexts.iter().for_each(|events| events.push(Event { kind, element }));
            return;
        }
        // Under the lock: an object that is destroyed meanwhile finds the event, and takes it away.
        for (element, events) in lock(&self.objects).get(&object).into_iter().flatten() {
            events.push(Event { kind, element: *element });
        }
    }
}

/// Takes events from the device whenever it raises some.
struct Pump(Weak<Adapter>);
impl Wake for Pump {
    fn wake(self: Arc<Self>) {
        let Some(adapter) = self.0.upgrade() else { return };
        let pumping = lock(&adapter.listeners.pump);
        while let Some(event) = adapter.device().poll_event() {
            explain::event(&adapter, event);
            adapter.listeners.dispatch(event);
        }
        drop(pumping);
        // One that came meanwhile wakes at once.
        adapter.device().set_event_waker(&Waker::from(self));
    }
}
/// Leads the adapter's events to its contexts from now on.
pub(crate) fn pump(adapter: &Arc<Adapter>) {
    Arc::new(Pump(Arc::downgrade(adapter))).wake();
}

/// The acknowledgements of the object of an event; `None` for events of the port and the device.
fn acknowledgements<'a>(event: Event) -> Option<&'a Unacknowledged> {
    match event.kind {
        kind::CQ_ERR => In::of(event.element as *mut Cq).opt().map(|cq| &cq.async_events),
        kind::SRQ_ERR | kind::SRQ_LIMIT_REACHED => {
            In::of(event.element as *mut Srq).opt().map(|srq| &srq.async_events)
        }
        kind::QP_FATAL..=kind::SQ_DRAINED | kind::QP_LAST_WQE_REACHED => {
            In::of(event.element as *mut Qp).opt().map(|qp| &qp.async_events)
        }
        _ => None,
    }
}

cancellable! {
    "IBVERBS_1.1" fn ibv_get_async_event(context: In<IbvContext>, to: In<IbvAsyncEvent>) -> c_int {
        sleeping(|slept| {
            let context = context.context()?;
            if to.raw().is_null() {
                return Err(Errno(libc::EINVAL));
            }
            let note = |event: &Event| _ = acknowledgements(*event).map(Unacknowledged::take);
            match context.events.look(context.adapter.device(), slept, note)? {
                Ok(event) => to.set(IbvAsyncEvent { element: event.element, event_type: event.kind })?,
                Err(sleep) => return Ok(Some(sleep)),
            }
            Ok(None)
        })
    }
}
exports! {
    "IBVERBS_1.1" fn ibv_ack_async_event(event: In<IbvAsyncEvent>) -> () {
        let _ = counted(|| {
            let event = event.get()?;
            let event = Event { kind: event.event_type, element: event.element };
            acknowledgements(event).inspect(|events| events.acknowledge(1));
            Ok(0)
        });
    }
}
