//! The link of an Ethernet port: raised when it is opened, and left as it was found.

mod scripted;

use std::time::Duration;

use hca_core::{Device, Mtu};
use hca_mlx5::{Mlx5, Options};
use hca_prm::Opcode;
use scripted::{Link, Scripted, Wants};

/// Set to be up, set to be down, and not to be raised by a driver.
const UP: u32 = 1;
const DOWN: u32 = 2;
const DISABLED: u32 = 4;

/// As a kernel's driver leaves a port: down, the embedded switch with it, and with frames of an ordinary network.
fn left() -> Link {
    Link { admin: DOWN, frame: 1522, own_frame: 1522, uplink: 0, ..Link::default() }
}
fn ethernet(link: Option<Link>) -> Scripted {
    Scripted::serve(Wants { ethernet: true, link, ..Wants::default() })
}
fn options() -> Options {
    let mut options = Options::default();
    options.health_interval = Duration::from_secs(3600);
    options.mtu = Some(Mtu::B4096);
    options
}
fn link(scripted: &Scripted) -> Link {
    scripted.state().wants.link.clone().unwrap()
}

#[test]
fn a_port_that_was_left_down_is_up_while_it_is_open_and_is_left_down_again() {
    let mut scripted = ethernet(Some(left()));
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    let raised = Link { admin: UP, frame: 4222, own_frame: 4222, uplink: 2, writes: 4, ..left() };
    assert_eq!(link(&scripted), raised);
    let port = device.port();
    assert_eq!((port.active, port.active_mtu), (true, Mtu::B4096));
    assert!(device.poll_event().is_none(), "the program has not asked for it");
    drop(device);
    let state = scripted.end();
    assert_eq!(state.wants.link, Some(Link { writes: 8, ..left() }));
    assert_eq!(state.resets, 1, "it was stopped as it should be");
    let last = state.log.iter().rposition(|(c, _)| *c == Opcode::ACCESS_REG).unwrap();
    assert!(last < state.log.iter().position(|(c, _)| *c == Opcode::TEARDOWN_HCA).unwrap());
}

#[test]
fn a_port_that_is_up_and_takes_long_frames_is_let_alone() {
    for found in [Link::default(), Link { frame: 9978, own_frame: 9978, ..Link::default() }] {
        let mut scripted = ethernet(Some(found.clone()));
        let device = Mlx5::open(scripted.function(), options()).unwrap();
        assert_eq!(device.port().active_mtu, Mtu::B4096);
        drop(device);
        assert_eq!(scripted.end().wants.link, Some(found), "nothing was written");
    }
    // What a driver can't raise, and ports of InfiniBand.
    let disabled = Link { admin: DISABLED, ..Link::default() };
    let scripted = ethernet(Some(disabled.clone()));
    assert!(!Mlx5::open(scripted.function(), options()).unwrap().port().active);
    assert_eq!(link(&scripted), disabled);
    let scripted = Scripted::serve(Wants { link: Some(left()), ..Wants::default() });
    drop(Mlx5::open(scripted.function(), Options::default()).unwrap());
    assert_eq!(link(&scripted), left());
    let scripted = Scripted::serve(Wants::default());
    let mut options = options();
    options.mtu = Some(Mtu::B1024);
    let e = Mlx5::open(scripted.function(), options).unwrap_err().to_string();
    assert!(e.contains("`mtu`") && e.contains("subnet manager"), "{e}");
}

#[test]
fn a_virtual_function_that_may_do_nothing_to_its_link_is_opened() {
    let mut scripted = ethernet(None);
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    assert!(device.port().active);
    drop(device);
    assert_eq!(scripted.end().resets, 1);
    // One that sees it, and may change nothing.
    let refused = [Opcode::MODIFY_VPORT_STATE, Opcode::QUERY_VPORT_STATE].map(|c| (c, (3, 7)));
    let wants = Wants { ethernet: true, link: Some(left()), status: refused.into(), ..Wants::default() };
    let mut scripted = Scripted::serve(wants);
    drop(Mlx5::open(scripted.function(), options()).unwrap());
    assert_eq!(scripted.end().wants.link, Some(Link { writes: 6, ..left() }));
}

#[test]
fn a_port_is_raised_as_far_as_it_goes_and_as_was_asked_for() {
    // The longest frame that there is.
    let scripted = ethernet(Some(Link { most: 2200, ..left() }));
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    assert_eq!(
        (device.port().active_mtu, link(&scripted).frame, link(&scripted).own_frame),
        (Mtu::B2048, 2200, 2200)
    );
    drop(device);
    // Small packets: frames are long enough, and stay so.
    let small = |frame| {
        let scripted = ethernet(Some(Link { frame, own_frame: frame, ..left() }));
        let mut options = options();
        options.mtu = Some(Mtu::B1024);
        let device = Mlx5::open(scripted.function(), options).unwrap();
        (device.port().active_mtu, link(&scripted).frame, link(&scripted).own_frame)
    };
    assert_eq!(small(1522), (Mtu::B1024, 1522, 1522));
    assert_eq!(small(9978), (Mtu::B1024, 9978, 9978));
    assert_eq!(small(600), (Mtu::B1024, 1150, 1150));
    // As its system had set its frames.
    let scripted = ethernet(Some(left()));
    let mut unasked = options();
    unasked.mtu = None;
    let device = Mlx5::open(scripted.function(), unasked).unwrap();
    assert_eq!((device.port().active, device.port().active_mtu), (true, Mtu::B1024));
    assert_eq!((link(&scripted).admin, link(&scripted).frame, link(&scripted).own_frame), (UP, 1522, 1522));
    drop(device);
    // Nothing at all.
    let scripted = ethernet(Some(left()));
    let mut options = options();
    options.raise_port = false;
    let device = Mlx5::open(scripted.function(), options).unwrap();
    assert_eq!((device.port().active, device.port().active_mtu), (false, Mtu::B1024));
    assert_eq!(link(&scripted), left());
}

#[test]
fn a_port_that_takes_its_time_to_come_up_is_up_when_it_is_open() {
    let scripted = ethernet(Some(Link { looks: 5, ..left() }));
    let device = Mlx5::open(scripted.function(), options()).unwrap();
    assert_eq!((device.port().active, link(&scripted).looks), (true, 0));
}

#[test]
fn a_port_that_does_not_come_up_is_waited_for_and_opened_all_the_same() {
    let mut scripted = ethernet(Some(Link { raised: DOWN, ..left() }));
    let mut options = options();
    options.link_wait = Duration::from_millis(20);
    let device = Mlx5::open(scripted.function(), options).unwrap();
    assert_eq!((device.port().active, link(&scripted).admin), (false, UP));
    drop(device);
    assert_eq!(scripted.end().wants.link, Some(Link { raised: DOWN, writes: 8, ..left() }));
}

#[test]
fn a_link_is_left_as_it_was_found_where_the_adapter_can_not_be_opened() {
    let mut scripted = ethernet(Some(left()));
    let mut options = options();
    options.ip = (2..9).map(|last| format!("10.0.0.{last}").parse().unwrap()).collect();
    let e = Mlx5::open(scripted.function(), options).unwrap_err();
    assert!(e.to_string().contains("more addresses"), "{e}");
    assert_eq!(scripted.end().wants.link, Some(Link { writes: 8, ..left() }));
}
