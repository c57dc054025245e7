//! Health reports of the function, and conditions that end the device.

mod scripted;

use std::sync::Arc;
use std::time::Duration;

use hca_core::{AsyncEvent, Device};
use hca_mlx5::{Death, Mlx5, OpenError, Options};
use hca_prm::{HealthBuffer, HealthSyndrome, NicInterface, Opcode};
use scripted::{Scripted, Wants, unwell};
use test_support::waiting::until;

fn options() -> Options {
    let mut options = Options::default();
    options.health_interval = Duration::from_millis(5);
    options
}
fn open(scripted: &Scripted) -> Arc<Mlx5> {
    Mlx5::open(scripted.function(), options()).unwrap()
}
fn reports(device: &Mlx5) -> u64 {
    device.counters().iter().find(|c| c.name == "health_reports").unwrap().value
}
fn mild(syndrome: HealthSyndrome) -> HealthBuffer {
    HealthBuffer::new().with(HealthBuffer::SYND, syndrome.code())
}

#[test]
fn a_report_that_asks_for_no_reset_is_told_and_the_adapter_goes_on() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    scripted.state().wants.health = mild(HealthSyndrome::HighTempErr);
    until("it is found", || reports(&device) == 1);
    let pd = device.alloc_pd().unwrap();
    device.dealloc_pd(pd).unwrap();
    // Another one is another report, and one that comes again is, too.
    scripted.state().wants.health = mild(HealthSyndrome::FfserErr);
    until("the other one is found", || reports(&device) == 2);
    scripted.state().wants.health = HealthBuffer::new();
    let reads = |scripted: &Scripted| scripted.state().health_reads;
    let before = reads(&scripted);
    until("it was looked at", || reads(&scripted) > before + 20);
    scripted.state().wants.health = mild(HealthSyndrome::FfserErr);
    until("it is found again", || reports(&device) == 3);
    assert_eq!((device.death(), device.poll_event()), (None, None));
    drop(device);
    assert_eq!(scripted.end().resets, 1, "it was stopped as it should be");
}

#[test]
fn what_asks_for_a_reset_ends_the_device_with_its_meaning() {
    let cycle = unwell(HealthSyndrome::TrustLockdownErr).with(HealthBuffer::CRR, true);
    let of = |syndrome: HealthSyndrome, power_cycle| Death::Syndrome {
        syndrome: syndrome.code(),
        extended: 0,
        power_cycle,
    };
    for (health, nic, death, told) in [
        (
            unwell(HealthSyndrome::HighTempErr),
            NicInterface::Full,
            of(HealthSyndrome::HighTempErr, false),
            "too hot",
        ),
        (cycle, NicInterface::Full, of(HealthSyndrome::TrustLockdownErr, true), "power-cycle"),
        (HealthBuffer::new(), NicInterface::Disabled, Death::Disabled, "interface is disabled"),
        (HealthBuffer::new(), NicInterface::SwReset, Death::Resets, "resets its firmware"),
        (
            HealthBuffer::new().with(HealthBuffer::FW_VERSION, u32::MAX),
            NicInterface::Full,
            Death::Gone,
            "left the bus",
        ),
    ] {
        let scripted = Scripted::serve(Wants::default());
        let device = open(&scripted);
        (scripted.state().wants.health, scripted.state().wants.nic) = (health, nic);
        until("it is found", || device.death().is_some());
        assert_eq!(device.death(), Some(death));
        let error = device.alloc_pd().unwrap_err().to_string();
        assert!(error.contains(told) && error.contains("open it again"), "{error}");
        until("the program hears of it", || device.poll_event() == Some(AsyncEvent::DeviceFatal));
        assert!(!scripted.state().masters(), "it reaches no memory any more");
    }
}

#[test]
fn a_health_counter_that_stands_still_or_registers_of_ones_end_the_device() {
    for (stopped, death) in [(true, Death::Stopped), (false, Death::Gone)] {
        let scripted = Scripted::serve(Wants::default());
        let device = open(&scripted);
        scripted.state().wants.stopped = stopped;
        scripted.state().wants.gone = !stopped;
        until("it is found", || device.death().is_some());
        assert_eq!(device.death(), Some(death));
    }
}

/// The driver's thread is not there yet, and the command would be waited for for a minute.
#[test]
fn an_adapter_that_dies_while_it_is_started_is_found_by_who_waits_for_it() {
    let wants = Wants { silent: [Opcode::INIT_HCA].into(), ..Wants::default() };
    let scripted = Scripted::serve(Wants { health: unwell(HealthSyndrome::DeadIrisc), ..wants });
    let mut options = options();
    options.command_timeout = Duration::from_secs(60);
    let e = Mlx5::open(scripted.function(), options).unwrap_err();
    assert!(e.to_string().contains("processors does not answer"), "{e}");
}

#[test]
fn a_function_that_is_off_the_bus_is_not_taken_for_one_that_starts() {
    let scripted = Scripted::serve(Wants { gone: true, ..Wants::default() });
    let mut options = options();
    options.start_timeout = Duration::from_millis(5);
    let e = Mlx5::open(scripted.function(), options).unwrap_err();
    assert!(matches!(e, OpenError::Gone { ms: 5, .. }), "{e}");
}
