//! Pages that the function asks for while a command waits for them.

mod scripted;

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::time::{Duration, Instant};

use hca_core::{AsyncEvent, Device};
use hca_mlx5::{Mlx5, Options};
use hca_prm::{CqError, Eqe, EventType, Opcode, PortChangeSubtype};
use scripted::{Scripted, Wants};

fn options() -> Options {
    let mut options = Options::default();
    options.health_interval = Duration::from_secs(3600);
    options.command_timeout = Duration::from_secs(10);
    options
}

/// Firmware may ask for pages at any command.
#[test]
fn every_command_of_the_start_and_the_stop_may_wait_for_pages() {
    for (ethernet, vectors) in [(true, 4), (false, 4), (true, 0)] {
        let wants = Wants { ethernet, ethernet_queues: ethernet, asks: None, vectors, ..Wants::default() };
        let mut scripted = Scripted::serve(wants);
        let device = Mlx5::open(scripted.function(), options()).unwrap();
        let started = scripted.state().log.len();
        let lent = scripted.state().lent;
        assert!(lent > 24 + 5, "{} pages were asked for", lent - 24);
        drop(device);
        let state = scripted.end();
        assert!(state.log.len() > started);
        assert_eq!((state.resets, state.pages.len(), state.objects.len()), (1, 0, 0));
        assert!(state.faults.is_empty(), "{:?}", state.faults);
    }
}

#[test]
fn the_drivers_thread_lends_pages_for_a_command_of_its_own() {
    let scripted = Scripted::serve(Wants::default());
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    let lent = device.pages_lent();
    let asks = BTreeSet::from([Opcode::QUERY_HCA_VPORT_CONTEXT]);
    scripted.state().wants.asks = Some(asks);
    let (told, heard) = channel();
    device.set_event_waker(&Arc::new(Tells(Mutex::new(Some(told)), None)).into());
    let other = Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, PortChangeSubtype::Lid.code());
    scripted.state().wants.managed.lid = 9;
    scripted.state().event(&other);
    heard.recv_timeout(Duration::from_secs(20)).expect("the event comes");
    assert_eq!(device.poll_event(), Some(AsyncEvent::PortAddressChanged));
    assert_eq!((device.port().lid.raw(), device.pages_lent()), (9, lent + 1));
    assert!(scripted.state().waiting.is_empty());
}

/// A waker that says that it was called, and returns when it may.
struct Tells(Mutex<Option<std::sync::mpsc::Sender<()>>>, Option<Mutex<std::sync::mpsc::Receiver<()>>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        if let Some(told) = self.0.lock().unwrap().take() {
            told.send(()).unwrap();
            if let Some(may_return) = &self.1 {
                may_return.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
            }
        }
    }
}

#[test]
fn an_event_of_an_object_that_is_gone_is_none_of_one_that_has_its_number_then() {
    let scripted = Scripted::serve(Wants::default());
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    let (told, heard) = channel();
    let (release, may_return) = channel();
    device.set_event_waker(&Arc::new(Tells(Mutex::new(Some(told)), Some(Mutex::new(may_return)))).into());
    let port =
        |change: PortChangeSubtype| Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, change.code());
    scripted.state().event(&port(PortChangeSubtype::Down));
    heard.recv_timeout(Duration::from_secs(20)).expect("the waker is called");
    // The driver's thread is within the waker, and does not see these. One is of the number that is given out next.
    for cqn in 1..16 {
        let failed = CqError::new().with(CqError::CQN, cqn);
        scripted.state().event(&Eqe::of(EventType::CqError).with(Eqe::EVENT_DATA, *failed.as_bytes()));
    }
    while !scripted.state().has_told() {
        std::thread::yield_now();
    }
    let _cq = device.create_cq(16).unwrap();
    release.send(()).unwrap();
    scripted.state().event(&port(PortChangeSubtype::Active));
    let (begun, mut events) = (Instant::now(), Vec::new());
    while events.last() != Some(&AsyncEvent::PortActive) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{events:?}");
        events.extend(device.poll_event());
        std::thread::yield_now();
    }
    assert_eq!(events, [AsyncEvent::PortError, AsyncEvent::PortActive]);
}

#[test]
fn who_waits_lends_pages_while_the_drivers_thread_is_within_a_waker() {
    let scripted = Scripted::serve(Wants::default());
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    let (told, heard) = channel();
    let (release, may_return) = channel();
    device.set_event_waker(&Arc::new(Tells(Mutex::new(Some(told)), Some(Mutex::new(may_return)))).into());
    let down = Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, PortChangeSubtype::Down.code());
    scripted.state().event(&down);
    heard.recv_timeout(Duration::from_secs(20)).expect("the waker is called");
    scripted.state().wants.asks = Some(BTreeSet::from([Opcode::ALLOC_PD]));
    let lent = device.pages_lent();
    let pd = device.alloc_pd().unwrap();
    assert_eq!(device.pages_lent(), lent + 1);
    release.send(()).unwrap();
    device.dealloc_pd(pd).unwrap();
}
