//! An adapter that is closed, or that its system takes back, while its program still has it.

mod scripted;

use std::any::Any;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use hca_core::{
    AsyncEvent, CqHandle, CqPort, Device, DeviceError, PdHandle, QpCap, QpInit, QpPorts, QpType, SrqInit,
};
use hca_mlx5::{Death, Mlx5, Options};
use hca_prm::{Eqe, EventType, Opcode, PortChangeSubtype};
use scripted::{Link, Scripted, Wants};
use test_support::waiting::until;

fn open(scripted: &Scripted) -> Arc<Mlx5> {
    let mut options = Options::default();
    options.health_interval = Duration::from_secs(3600);
    options.mtu = scripted.state().wants.ethernet.then_some(hca_core::Mtu::B4096);
    Mlx5::open(scripted.function(), options).unwrap()
}
/// A queue pair, with the objects that it needs.
struct Objects {
    pd: PdHandle,
    cq: CqHandle,
    poller: Box<dyn CqPort>,
    qp: QpPorts,
}
impl Objects {
    fn of(device: &Mlx5) -> Self {
        let pd = device.alloc_pd().unwrap();
        let (cq, poller) = device.create_cq(16).unwrap();
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
        let qp = device.create_qp(pd, &init).unwrap();
        Self { pd, cq, poller, qp }
    }
}
fn is_dead(device: &Mlx5, death: Death, told: &str) {
    assert_eq!(device.death(), Some(death));
    let e = device.alloc_pd().unwrap_err();
    assert!(matches!(e, DeviceError::Dead { .. }) && e.to_string().contains(told), "{e}");
}

#[test]
fn closing_stops_the_adapter_and_dropping_it_later_does_nothing_more() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    device.close().unwrap();
    let given = scripted.state().log.clone();
    assert_eq!(given.last().unwrap().0, Opcode::DISABLE_HCA);
    assert!(!scripted.state().masters(), "it reaches no memory any more");
    is_dead(&device, Death::Closed, "the program has closed it");
    assert_eq!(device.poll_event(), Some(AsyncEvent::DeviceFatal));
    assert_eq!(device.pages_lent(), 0);
    device.close().unwrap();
    drop(device);
    let state = scripted.end();
    assert_eq!((state.log.len(), state.resets), (given.len(), 1));
    assert!(state.faults.is_empty(), "{:?}", state.faults);
}

#[test]
fn closing_resets_an_adapter_that_has_objects_and_their_ports_and_handles_live_on() {
    let mut scripted = Scripted::serve(Wants { ethernet: true, link: Some(down()), ..Wants::default() });
    let device = open(&scripted);
    let Objects { pd, cq, poller, qp } = Objects::of(&device);
    device.close().unwrap();
    {
        let state = scripted.state();
        assert_eq!((state.resets, state.masters(), state.given(Opcode::TEARDOWN_HCA)), (2, false, 0));
        assert_eq!(state.wants.link.as_ref().unwrap().admin, 2, "the link is left as it was found");
    }
    is_dead(&device, Death::Closed, "the program has closed it");
    device.destroy_qp(qp.handle).unwrap();
    device.destroy_cq(cq).unwrap();
    device.dealloc_pd(pd).unwrap();
    drop(device);
    assert_eq!(scripted.state().resets, 2, "ports keep the function open");
    drop((poller, qp));
    assert_eq!(scripted.end().resets, 2);
}

#[test]
fn each_port_alone_has_the_adapter_run() {
    for kept in 0..4 {
        let mut scripted = Scripted::serve(Wants { ethernet: true, link: Some(down()), ..Wants::default() });
        let device = open(&scripted);
        let Objects { pd, poller, qp, .. } = Objects::of(&device);
        let srq = device.create_srq(pd, &SrqInit { max_wr: 4, max_sge: 1 }).unwrap().1;
        let mut ports: Vec<Box<dyn Any>> =
            vec![Box::new(qp.send), Box::new(qp.recv), Box::new(poller), Box::new(srq)];
        drop(device);
        let port = ports.swap_remove(kept);
        drop(ports);
        assert!(scripted.state().masters(), "port {kept} is there");
        drop(port);
        assert!(!scripted.state().masters(), "none is there");
        assert!(scripted.end().faults.is_empty());
    }
}

/// A port that its last driver left down.
fn down() -> Link {
    Link { admin: 2, ..Link::default() }
}

#[test]
fn who_waits_for_a_command_when_the_adapter_is_closed_hears_of_it() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    scripted.state().wants.hold.insert(Opcode::ALLOC_PD);
    std::thread::scope(|s| {
        let waits = s.spawn(|| device.alloc_pd());
        until("it is under way", || scripted.state().held() == 1);
        device.close().unwrap();
        let e = waits.join().unwrap().unwrap_err();
        assert!(e.to_string().contains("the program has closed it"), "{e}");
    });
    drop(device);
    assert!(scripted.end().faults.is_empty());
}

/// A waker that closes the adapter.
struct Closes(Arc<Mlx5>, Sender<bool>, Mutex<Receiver<()>>);

impl Wake for Closes {
    fn wake(self: Arc<Self>) {
        let _ = self.2.lock().unwrap().recv();
        let _ = self.1.send(self.0.close().is_ok());
    }
}

/// Whoever closes it waits for the driver's thread, which must not wait for him.
#[test]
fn a_waker_may_close_the_adapter_while_somebody_else_does() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let (closed, was_closed) = channel();
    let (go_on, wait) = channel();
    device.set_event_waker(&Waker::from(Arc::new(Closes(device.clone(), closed, Mutex::new(wait)))));
    let event = Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, PortChangeSubtype::Down.code());
    scripted.state().event(&event);
    std::thread::scope(|s| {
        let closer = s.spawn(|| device.close());
        drop(go_on);
        was_closed.recv_timeout(Duration::from_secs(20)).expect("the waker returns");
        closer.join().unwrap().unwrap();
    });
    is_dead(&device, Death::Closed, "the program has closed it");
}

#[test]
fn a_function_that_the_system_wants_back_is_let_go_of_under_its_program() {
    let mut scripted = Scripted::serve(Wants { ethernet: true, link: Some(down()), ..Wants::default() });
    let device = open(&scripted);
    let pd = device.alloc_pd().unwrap();
    let (cq, poller) = device.create_cq(16).unwrap();
    assert_eq!(scripted.state().wants.link.as_ref().unwrap().admin, 1);
    scripted.state().notice(1);
    {
        // It ends with its client's connection, though the client has the device, and a port.
        until("the function is let go of", || scripted.has_ended());
        let state = scripted.end();
        assert_eq!(state.wants.link.as_ref().unwrap().admin, 2, "the link is left as it was found");
        assert!(!state.masters());
    }
    until("it is told", || device.poll_event() == Some(AsyncEvent::DeviceFatal));
    is_dead(&device, Death::TakenBack, "unbinding it from vfio-pci");
    device.destroy_cq(cq).unwrap();
    device.dealloc_pd(pd).unwrap();
    device.close().unwrap();
    drop((device, poller));
}

#[test]
fn an_error_of_the_bus_ends_the_device() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    scripted.state().notice(0);
    until("it is found", || device.death().is_some());
    until("it is told", || device.poll_event() == Some(AsyncEvent::DeviceFatal));
    is_dead(&device, Death::Bus, "its bus has reported a fatal error");
    assert!(!scripted.state().masters());
    drop(device);
    assert_eq!(scripted.end().resets, 2);
}

#[test]
fn a_server_that_has_reads_of_the_drivers_descriptors_wait_does_not_stop_its_thread() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    scripted.state().have_reads_of_notices_wait();
    let (closed, was_closed) = channel();
    std::thread::scope(|s| {
        s.spawn(|| {
            let event =
                Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, PortChangeSubtype::Down.code());
            scripted.state().event(&event);
            until("it is told", || device.poll_event() == Some(AsyncEvent::PortError));
            device.close().unwrap();
            closed.send(()).unwrap();
        });
        let came = was_closed.recv_timeout(Duration::from_secs(20));
        if came.is_err() {
            // If the thread waits, it goes on now.
            (0..2).for_each(|which| scripted.state().notice(which));
        }
        assert_eq!(came, Ok(()));
    });
    drop(device);
    assert_eq!(scripted.end().resets, 1);
}
