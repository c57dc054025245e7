//! InfiniBand ports, whose state the subnet manager sets.

mod scripted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_core::{AsyncEvent, Device, Gid, Lid};
use hca_mlx5::{Mlx5, Options};
use hca_prm::command::vport::PortState;
use hca_prm::{Eqe, EventType, Opcode, PortChangeSubtype};
use scripted::{Managed, Scripted, Wants, commands};

fn options() -> Options {
    let mut options = Options::default();
    options.health_interval = Duration::from_secs(3600);
    options.manager_wait = Duration::from_secs(60);
    options
}
fn managed(managed: Managed) -> Wants {
    Wants { managed, ..Wants::default() }
}
fn change(scripted: &Scripted, what: PortChangeSubtype) {
    scripted.state().event(&Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, what.code()));
}
/// The next event, for ten seconds at most.
fn event(device: &Mlx5) -> AsyncEvent {
    let begun = Instant::now();
    loop {
        if let Some(event) = device.poll_event() {
            return event;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "an event comes");
        std::thread::yield_now();
    }
}
fn lid(device: &Arc<Mlx5>) -> (Lid, bool) {
    (device.port().lid, device.port().active)
}

/// Its link comes up when it is opened, and the manager sees it a moment later.
#[test]
fn opening_waits_until_the_manager_has_made_the_port_active() {
    let scripted = Scripted::serve(managed(Managed { looks: 5, ..Managed::default() }));
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    assert_eq!(lid(&device), (Lid::new(3), true));
    assert_eq!(device.poll_event(), None, "the program has not asked for it");
}

#[test]
fn a_port_that_no_manager_sees_to_is_opened_all_the_same_and_tells_when_one_comes() {
    for state in [PortState::Down, PortState::Init, PortState::Armed] {
        let scripted = Scripted::serve(managed(Managed { state, lid: 0, ..Managed::default() }));
        let mut short = options();
        short.manager_wait = Duration::from_millis(20);
        let device = Mlx5::open(scripted.function(), short).unwrap();
        assert_eq!(lid(&device), (Lid::new(0), false));
        scripted.state().wants.managed = Managed::default();
        change(&scripted, PortChangeSubtype::Active);
        assert_eq!(event(&device), AsyncEvent::PortAddressChanged);
        assert_eq!(event(&device), AsyncEvent::PortActive);
        assert_eq!(lid(&device), (Lid::new(3), true), "it is there when the event is");
    }
}

#[test]
fn who_does_not_want_to_wait_does_not() {
    let scripted = Scripted::serve(managed(Managed { state: PortState::Init, lid: 0, ..Managed::default() }));
    let mut at_once = options();
    at_once.manager_wait = Duration::ZERO;
    let device = Mlx5::open(scripted.function(), at_once).unwrap();
    assert_eq!(lid(&device), (Lid::new(0), false));
    assert_eq!(scripted.state().given(Opcode::QUERY_HCA_VPORT_CONTEXT), 1);
}

#[test]
fn what_the_manager_changes_is_read_again_and_told() {
    let scripted = Scripted::serve(Wants::default());
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    let mut other = commands::GID;
    other[..8].copy_from_slice(&[0xfe, 0xc0, 0, 0, 0, 0, 0, 5]);
    let told = |wants: Managed, what, events: &[AsyncEvent]| {
        scripted.state().wants.managed = wants.clone();
        change(&scripted, what);
        for wanted in events {
            assert_eq!(event(&device), *wanted);
        }
        let port = device.port();
        assert_eq!((port.lid, port.gid), (Lid::new(wants.lid as u16), Gid(wants.gid)));
        assert_eq!(port.active, wants.state == PortState::Active);
    };
    let (new, down) = ([AsyncEvent::PortAddressChanged], [AsyncEvent::PortError]);
    told(Managed { lid: 9, ..Managed::default() }, PortChangeSubtype::Lid, &new);
    told(Managed { lid: 9, gid: other, ..Managed::default() }, PortChangeSubtype::Guid, &new);
    // A link that came up anew, without having been told to be down.
    told(
        Managed { lid: 9, gid: other, state: PortState::Init, looks: 0 },
        PortChangeSubtype::Initialized,
        &down,
    );
    told(
        Managed { lid: 9, gid: other, ..Managed::default() },
        PortChangeSubtype::Active,
        &[AsyncEvent::PortActive],
    );
    // The same once more is no news, so that the next event is that of a change.
    change(&scripted, PortChangeSubtype::ClientRereg);
    change(&scripted, PortChangeSubtype::Active);
    told(Managed { lid: 10, gid: other, ..Managed::default() }, PortChangeSubtype::Lid, &new);
    assert_eq!(device.poll_event(), None);
}
