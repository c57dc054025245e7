//! The control path against a function that answers commands, and answers them wrong.

mod scripted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_core::{
    Access, AsyncEvent, Device, DeviceError, Gid, Lid, MrInit, Mtu, Pkey, Qkey, QpAttr, QpCap, QpInit,
    QpState, QpType, SrqInit,
};
use hca_mlx5::{Death, Mlx5, OpenError, Options};
use hca_prm::caps::{AtomicCaps, HcaCap};
use hca_prm::command::hca::{HcaCapType, ManagePagesMod};
use hca_prm::command::mkey::CreateMkeyIn;
use hca_prm::{
    CmdStatus, DeliveryStatus, Eqe, EventType, HealthSyndrome, Mkc, Opcode, PagesReqEvent, PortChangeSubtype,
    pas,
};
use scripted::{Scripted, Wants, commands, unwell};
use test_support::waiting::until;

/// Neither the driver's thread nor who waits for a command looks at anything by itself for an hour, so that what is
/// heard was told.
fn options() -> Options {
    let mut options = Options::default();
    options.health_interval = Duration::from_secs(3600);
    options.command_look = Duration::from_secs(3600);
    options
}
fn open(scripted: &Scripted) -> Arc<Mlx5> {
    Mlx5::open(scripted.function(), options()).unwrap()
}
/// Event queues of completions where there are so many vectors: one a CPU, and the first vector is that of others.
fn completion_eqs(vectors: usize) -> usize {
    std::thread::available_parallelism().unwrap().get().min(vectors - 1)
}
fn refused(wants: Wants, options: Options) -> (OpenError, Scripted) {
    let scripted = Scripted::serve(wants);
    (Mlx5::open(scripted.function(), options).unwrap_err(), scripted)
}
/// A function that answers does so within this time, whatever else the machine has to do.
const SILENCE: Duration = Duration::from_secs(3);

#[test]
fn an_adapter_is_started_in_order_and_closing_it_leaves_nothing_behind() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    assert_eq!(device.pages_lent(), 24);
    {
        let state = scripted.state();
        let order: Vec<Opcode> = state.log.iter().map(|(c, _)| *c).collect();
        let expected = [
            Opcode::ENABLE_HCA,
            Opcode::QUERY_ISSI,
            Opcode::SET_ISSI,
            Opcode::QUERY_PAGES,
            Opcode::MANAGE_PAGES,
            Opcode::ACCESS_REG,
            Opcode::QUERY_HCA_CAP,
            Opcode::QUERY_HCA_CAP,
            Opcode::SET_HCA_CAP,
        ];
        assert_eq!(order[..expected.len()], expected);
        let at = |c| order.iter().position(|o| *o == c).unwrap();
        assert!(
            at(Opcode::INIT_HCA) < at(Opcode::ALLOC_UAR) && at(Opcode::ALLOC_UAR) < at(Opcode::CREATE_EQ)
        );
        assert_eq!((state.pages.len(), state.eqs.len(), state.resets), (24, 2 + completion_eqs(4), 1));
        let caps = HcaCap::from_bytes(state.caps_of(HcaCapType::GeneralDevice)).unwrap();
        assert_eq!(caps.get(HcaCap::CMDIF_CHECKSUM), 0);
        let atomic = AtomicCaps::from_bytes(state.caps_of(HcaCapType::Atomic)).unwrap();
        assert_eq!(atomic.get(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE), 1);
    }
    drop(device);
    let state = scripted.end();
    assert_eq!(state.log.last().unwrap().0, Opcode::DISABLE_HCA);
    assert_eq!(
        (state.pages.len(), state.objects.len(), state.resets),
        (0, 0, 1),
        "no second reset is needed"
    );
    assert!(state.faults.is_empty() && !state.enabled && !state.running, "{:?}", state.faults);
}

#[test]
fn an_infiniband_port_tells_its_addresses() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let port = device.port();
    assert_eq!(
        (port.gid, port.lid, port.active_mtu, port.active),
        (Gid(commands::GID), Lid::new(3), Mtu::B4096, true)
    );
    let attr = device.attr();
    assert_eq!(
        (attr.fabric.as_str(), attr.max_pd, attr.max_cqe, attr.max_mr_bytes),
        ("infiniband", 4, (1 << 16) - 1, 1 << 40)
    );
    drop(device);
}

#[test]
fn a_roce_port_is_given_its_link_local_address_and_those_that_are_asked_for() {
    let mut scripted = Scripted::serve(Wants { ethernet: true, ..Wants::default() });
    let mut wanted = options();
    wanted.ip = vec!["10.0.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
    let device = Mlx5::open(scripted.function(), wanted).unwrap();
    let port = device.port();
    assert_eq!(
        (port.gid.ip().to_string().as_str(), port.active_mtu, port.active),
        ("10.0.0.2", Mtu::B4096, true)
    );
    {
        let state = scripted.state();
        assert_eq!(state.roce.len(), 3);
        let (first, second) = (&state.roce[&0], &state.roce[&1]);
        assert_eq!(first[..16], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 7]);
        assert_eq!(second[10..16], [0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!(second[0x12..0x18], commands::MAC);
        assert_eq!((first[0x1a], second[0x1a], second[0x1b]), (1, 0, 2), "IPv6, IPv4, version 2");
    }
    drop(device);
    assert!(scripted.end().roce.is_empty());
    let mut wanted = options();
    wanted.ip = (1..5).map(|i| [10, 0, 0, i].into()).collect();
    let (e, _scripted) = refused(Wants { ethernet: true, ..Wants::default() }, wanted.clone());
    assert!(e.to_string().contains("`ip`") && e.to_string().contains("more addresses"), "{e}");
    let (e, _scripted) = refused(Wants::default(), wanted);
    assert!(e.to_string().contains("its port is InfiniBand"), "{e}");
}

#[test]
fn a_function_that_is_no_such_adapter_is_refused_with_what_it_is() {
    let (e, _f) = refused(Wants { vendor: 0x8086, ..Wants::default() }, options());
    assert!(matches!(e, OpenError::NotConnectX { vendor: 0x8086, device: 0x1014, .. }), "{e}");
    assert!(e.to_string().contains("8086:1014"), "{e}");
    let (e, _f) = refused(Wants { interface: 4, ..Wants::default() }, options());
    assert!(matches!(e, OpenError::Interface { found: 4, .. }), "{e}");
    let (e, _f) = refused(Wants { issi: 1, ..Wants::default() }, options());
    assert!(matches!(e, OpenError::Issi { supported: 1, .. }), "{e}");
    let (e, _f) = refused(Wants { log_size: 7, ..Wants::default() }, options());
    assert!(matches!(e, OpenError::CommandQueue { log_size: 7, log_stride: 6, .. }), "{e}");
    let mut short = options();
    short.start_timeout = Duration::from_millis(5);
    let (e, _f) = refused(Wants { busy_reads: u32::MAX, ..Wants::default() }, short);
    assert!(matches!(e, OpenError::Starting { ms: 5, .. }), "{e}");
}

#[test]
fn every_status_of_a_command_comes_to_the_caller_with_its_syndrome_and_what_helps() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    for status in CmdStatus::ALL.iter().filter(|s| **s != CmdStatus::Ok) {
        scripted.state().wants.status.insert(Opcode::ALLOC_PD, (status.code(), 0x1234_5678));
        let e = device.alloc_pd().unwrap_err();
        let DeviceError::Refused { command, reason, status: code, syndrome, remedy } = e else {
            panic!("{e}")
        };
        assert_eq!(
            (command, reason, code, syndrome),
            ("ALLOC_PD", status.text(), status.code(), 0x1234_5678)
        );
        assert!(!remedy.is_empty());
    }
    scripted.state().wants.status.clear();
    let pd = device.alloc_pd().unwrap();
    device.dealloc_pd(pd).unwrap();
    assert!(device.death().is_none(), "an adapter that refuses lives");
    drop(device);
}

#[test]
fn every_delivery_error_is_told_and_the_slot_serves_again() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    for status in DeliveryStatus::ALL.iter().filter(|s| **s != DeliveryStatus::Ok) {
        scripted.state().wants.delivery.insert(Opcode::ALLOC_PD, status.code());
        let told = device.alloc_pd().unwrap_err().to_string();
        assert!(told.contains("ALLOC_PD was not delivered") && told.contains(status.text()), "{told}");
    }
    scripted.state().wants.delivery.clear();
    for _ in 0..40 {
        let pd = device.alloc_pd().unwrap();
        device.dealloc_pd(pd).unwrap();
    }
    drop(device);
}

#[test]
fn a_refusal_while_it_is_started_is_told_and_the_function_is_reset() {
    for command in
        [Opcode::ENABLE_HCA, Opcode::MANAGE_PAGES, Opcode::SET_HCA_CAP, Opcode::INIT_HCA, Opcode::CREATE_EQ]
    {
        let mut wants = Wants::default();
        wants.status.insert(command, (CmdStatus::NoRes.code(), 7));
        let (e, mut scripted) = refused(wants, options());
        let told = e.to_string();
        assert!(told.contains(command.name().unwrap()) && told.contains("syndrome 0x7"), "{told}");
        let state = scripted.end();
        assert_eq!((state.resets, state.pages.len()), (2, 0), "{command}");
    }
}

#[test]
fn a_command_without_an_answer_ends_the_device_and_every_later_call_fails_at_once() {
    let mut scripted = Scripted::serve(Wants::default());
    let mut short = options();
    short.command_timeout = SILENCE;
    let device = Mlx5::open(scripted.function(), short).unwrap();
    let kept = device.alloc_pd().unwrap();
    scripted.state().wants.silent.insert(Opcode::ALLOC_PD);
    let e = device.alloc_pd().unwrap_err();
    assert!(matches!(e, DeviceError::Dead { .. }) && e.to_string().contains("no answer in time"), "{e}");
    assert_eq!(device.death(), Some(Death::Silent { command: Opcode::ALLOC_PD }));
    let given = scripted.state().log.len();
    let begun = Instant::now();
    for _ in 0..1000 {
        assert!(matches!(device.alloc_pd(), Err(DeviceError::Dead { .. })));
    }
    assert!(begun.elapsed() < 100 * SILENCE, "no later call waits");
    device.dealloc_pd(kept).unwrap();
    assert_eq!(scripted.state().log.len(), given, "nothing more is asked of it");
    until("the program hears of it", || device.poll_event() == Some(AsyncEvent::DeviceFatal));
    assert!(!scripted.state().masters(), "it reaches no memory any more");
    drop(device);
    let state = scripted.end();
    assert_eq!(state.resets, 2, "a dead adapter is reset");
}

#[test]
fn mailboxes_of_a_command_without_an_answer_do_not_keep_the_function_open() {
    let mut scripted = Scripted::serve(Wants::default());
    let mut short = options();
    short.command_timeout = SILENCE;
    let device = Mlx5::open(scripted.function(), short).unwrap();
    scripted.state().wants.silent.insert(Opcode::CREATE_CQ);
    assert!(matches!(device.create_cq(16), Err(DeviceError::Dead { .. })));
    drop(device);
    assert_eq!(scripted.end().resets, 2, "the server is at its end, as its client has gone");
}

#[test]
fn all_who_wait_for_an_answer_hear_when_one_finds_it_dead() {
    let scripted = Scripted::serve(Wants::default());
    let mut short = options();
    short.command_timeout = SILENCE;
    let device = Mlx5::open(scripted.function(), short).unwrap();
    scripted.state().wants.silent.insert(Opcode::ALLOC_PD);
    std::thread::scope(|s| {
        for _ in 0..40 {
            s.spawn(|| assert!(matches!(device.alloc_pd(), Err(DeviceError::Dead { .. }))));
        }
    });
    drop(device);
}

#[test]
fn who_waits_for_an_answer_or_a_slot_is_told_when_there_is_one() {
    let scripted = Scripted::serve(Wants { log_size: 2, ..Wants::default() });
    let mut patient = options();
    patient.command_timeout = Duration::from_secs(3600);
    let device = Mlx5::open(scripted.function(), patient).unwrap();
    for round in 0..20 {
        // Three hold all slots but that of pages, and four wait for one.
        scripted.state().wants.hold.insert(Opcode::ALLOC_PD);
        let (tell, heard) = std::sync::mpsc::channel();
        let (begin, begun) = std::sync::mpsc::channel();
        for _ in 0..7 {
            let (device, tell, begin) = (device.clone(), tell.clone(), begin.clone());
            std::thread::spawn(move || {
                begin.send(rustix::thread::gettid()).unwrap();
                let pd = device.alloc_pd();
                tell.send(pd.is_ok()).unwrap();
                pd.map(|pd| device.dealloc_pd(pd).unwrap())
            });
        }
        let threads: Vec<_> = begun.iter().take(7).collect();
        until("all usual slots are taken", || scripted.state().held() == 3);
        until_asleep(&threads);
        scripted.state().wants.hold.clear();
        let is_notified = |count| {
            for n in 0..count {
                let told = heard.recv_timeout(Duration::from_secs(60));
                told.unwrap_or_else(|_| panic!("{n} of {count} have heard in round {round}"));
            }
        };
        // One answer is enough for it, and for those who wait for its slot.
        scripted.state().let_go(true);
        is_notified(5);
        (0..2).for_each(|_| scripted.state().let_go(false));
        is_notified(2);
    }
    assert!(device.death().is_none());
}

/// Waits until these threads of ours sleep: who still looks would find by himself what he is to be told of.
fn until_asleep(threads: &[rustix::thread::Pid]) {
    let sleeps = |thread: &rustix::thread::Pid| {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
    };
    let mut found = 0;
    until("they sleep", || {
        found = if threads.iter().all(sleeps) { found + 1 } else { 0 };
        // Not just for a reply of the function's.
        found == 5
    });
}

/// Has more wait for answers than there are slots, lets the device die by `kill`, and sees that all hear of it.
fn all_hear(mut options: Options, kill: impl FnOnce(&Scripted, &Arc<Mlx5>), death: Death) {
    let scripted = Scripted::serve(Wants::default());
    // Nobody finds it by the time that has passed.
    options.command_timeout = Duration::from_secs(3600);
    let device = Mlx5::open(scripted.function(), options).unwrap();
    scripted.state().wants.hold.insert(Opcode::ALLOC_PD);
    let (tell, heard) = std::sync::mpsc::channel();
    let (begin, begun) = std::sync::mpsc::channel();
    for _ in 0..40 {
        let (device, tell, begin) = (device.clone(), tell.clone(), begin.clone());
        std::thread::spawn(move || {
            begin.send(rustix::thread::gettid()).unwrap();
            tell.send(device.alloc_pd())
        });
    }
    let threads: Vec<_> = begun.iter().take(40).collect();
    until("all usual slots are taken", || scripted.state().held() == 31);
    until_asleep(&threads);
    kill(&scripted, &device);
    for n in 0..40 {
        let told = heard.recv_timeout(Duration::from_secs(60));
        let told = told.unwrap_or_else(|_| panic!("{n} of 40 have heard"));
        assert!(matches!(told, Err(DeviceError::Dead { .. })), "{told:?}");
    }
    assert_eq!(device.death(), Some(death));
    until("the program hears of it", || device.poll_event() == Some(AsyncEvent::DeviceFatal));
}

#[test]
fn all_who_wait_for_an_answer_or_a_slot_hear_of_a_syndrome() {
    let mut quick = options();
    quick.health_interval = Duration::from_millis(5);
    let kill = |scripted: &Scripted, _: &Arc<Mlx5>| {
        scripted.state().wants.health = unwell(HealthSyndrome::FwInternalErr);
    };
    all_hear(quick, kill, Death::Syndrome { syndrome: 1, extended: 0, power_cycle: false });
}

#[test]
fn all_who_wait_for_an_answer_or_a_slot_hear_when_a_call_finds_the_function_gone() {
    let kill = |scripted: &Scripted, device: &Arc<Mlx5>| {
        scripted.state().wants.hangs_up = true;
        // Pages have a slot of their own, whose doorbell finds nobody.
        let asked = PagesReqEvent::new().with(PagesReqEvent::NUM_PAGES, 1);
        scripted.state().event(&Eqe::of(EventType::PageRequest).with(Eqe::EVENT_DATA, *asked.as_bytes()));
        until("it is found", || device.death().is_some());
    };
    all_hear(options(), kill, Death::Unreachable);
}

#[test]
fn several_commands_are_under_way_at_a_time_and_end_in_any_order() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    scripted.state().wants.hold.insert(Opcode::ALLOC_PD);
    std::thread::scope(|s| {
        let waiting: Vec<_> = (0..4).map(|_| s.spawn(|| device.alloc_pd().unwrap())).collect();
        until("all four are under way", || scripted.state().held() == 4);
        scripted.state().let_go(true);
        scripted.state().let_go(false);
        scripted.state().let_go(true);
        scripted.state().let_go(false);
        let mut got: Vec<_> = waiting.into_iter().map(|w| w.join().unwrap()).collect();
        got.sort_by_key(|pd| pd.index);
        got.dedup();
        assert_eq!(got.len(), 4);
        got.into_iter().for_each(|pd| device.dealloc_pd(pd).unwrap());
    });
    drop(device);
}

#[test]
fn pages_are_given_while_all_other_slots_wait() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    scripted.state().wants.hold.insert(Opcode::ALLOC_PD);
    let before = scripted.state().lent;
    std::thread::scope(|s| {
        for _ in 0..31 {
            // Some find no room in the table of protection domains.
            s.spawn(|| drop(device.alloc_pd()));
        }
        until("all usual slots are taken", || scripted.state().held() == 31);
        let asked = PagesReqEvent::new().with(PagesReqEvent::NUM_PAGES, 700);
        scripted.state().event(&Eqe::of(EventType::PageRequest).with(Eqe::EVENT_DATA, *asked.as_bytes()));
        // The model has no use for them, and soon offers them back.
        until("the pages were given", || scripted.state().lent == before + 700);
        scripted.state().wants.hold.clear();
        (0..31).for_each(|_| scripted.state().let_go(false));
    });
    assert!(scripted.state().faults.is_empty(), "{:?}", scripted.state().faults);
    drop(device);
}

#[test]
fn pages_that_are_asked_for_at_run_time_are_given_and_taken_back() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let ask = |pages: i32| {
        let asked = PagesReqEvent::new().with(PagesReqEvent::NUM_PAGES, pages as u32);
        scripted.state().event(&Eqe::of(EventType::PageRequest).with(Eqe::EVENT_DATA, *asked.as_bytes()));
    };
    let before = device.pages_lent();
    ask(1000);
    until("they are given", || scripted.state().lent == before + 1000);
    // It has no use for them, and offers all back that are beyond what it counts by.
    until("they are taken back", || device.pages_lent() < before + 16);
    // One that has gone astray gets none, and is told so; the next request is met again.
    ask(i32::MAX);
    let refused = (Opcode::MANAGE_PAGES, ManagePagesMod::AllocationFail.code());
    until("it is refused", || scripted.state().log.contains(&refused));
    let lent = scripted.state().lent;
    ask(1);
    until("another one is given", || scripted.state().lent == lent + 1);
    ask(-1);
    until("a page is asked for back", || {
        let takes = (Opcode::MANAGE_PAGES, ManagePagesMod::HcaReturnPages.code());
        scripted.state().log.last() == Some(&takes)
    });
    let counted = || device.counters().iter().find(|c| c.name == "pages_lent").unwrap().value;
    until("both count the same", || counted() == scripted.state().pages.len() as u64);
    drop(device);
    assert!(scripted.end().pages.is_empty());
}

#[test]
fn an_adapter_that_keeps_pages_is_reset() {
    let mut scripted = Scripted::serve(Wants { keeps: 3, ..Wants::default() });
    drop(open(&scripted));
    let state = scripted.end();
    assert_eq!((state.resets, state.pages.len()), (2, 0));
    let takes = (Opcode::MANAGE_PAGES, ManagePagesMod::HcaReturnPages.code());
    assert!(state.log.iter().filter(|c| **c == takes).count() <= 4, "it asks no more when none come");
}

#[test]
fn an_adapter_that_says_to_give_more_pages_than_were_asked_for_is_not_believed() {
    let mut scripted = Scripted::serve(Wants { overstates: 1, ..Wants::default() });
    drop(open(&scripted));
    assert_eq!(scripted.end().resets, 2, "it is reset, as what it has is not known");
}

#[test]
fn an_adapter_is_stopped_when_its_last_user_is_gone_and_not_later() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    // Events keep the driver's thread at work.
    for _ in 0..50 {
        let pd = device.alloc_pd().unwrap();
        device.dealloc_pd(pd).unwrap();
    }
    drop(device);
    let state = scripted.state();
    assert_eq!(state.log.last().unwrap().0, Opcode::DISABLE_HCA);
    assert!(state.pages.is_empty() && state.objects.is_empty());
}

#[test]
fn a_waker_that_drops_the_adapter_on_the_drivers_own_thread_resets_it() {
    use std::sync::Mutex;
    use std::task::{Wake, Waker};
    struct Drops(Mutex<Option<Arc<Mlx5>>>);
    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let drops = Arc::new(Drops(Mutex::new(None)));
    device.set_event_waker(&Waker::from(drops.clone()));
    let change =
        |what: PortChangeSubtype| Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, what.code());
    // While the driver's thread has a command under way, two events come: one that calls the waker, and one behind it
    // that takes a command, which nobody would answer.
    scripted.state().wants.hold.insert(Opcode::QUERY_HCA_VPORT_CONTEXT);
    scripted.state().event(&change(PortChangeSubtype::Lid));
    until("a command is under way", || scripted.state().held() == 1);
    scripted.state().wants.hold.clear();
    scripted.state().event(&change(PortChangeSubtype::Down));
    scripted.state().event(&change(PortChangeSubtype::Lid));
    for _ in 0..3 {
        device.dealloc_pd(device.alloc_pd().unwrap()).unwrap();
    }
    *drops.0.lock().unwrap() = Some(device);
    scripted.state().let_go(false);
    assert_eq!(scripted.end().resets, 2);
}

#[test]
fn commands_overrun_no_event_queue_while_the_drivers_thread_stands_still() {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::{Wake, Waker};
    /// A waker that the driver's thread calls, and that stands still until the test goes on.
    struct Stuck(Sender<()>, Mutex<Receiver<()>>);
    impl Wake for Stuck {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
            let _ = self.1.lock().unwrap().recv();
        }
    }
    let mut scripted = Scripted::serve(Wants::default());
    let mut options = options();
    options.command_look = Duration::from_millis(1);
    options.health_interval = Duration::from_millis(5);
    let device = Mlx5::open(scripted.function(), options).unwrap();
    let (called, was_called) = channel();
    let (go_on, wait) = channel();
    device.set_event_waker(&Waker::from(Arc::new(Stuck(called, Mutex::new(wait)))));
    scripted
        .state()
        .event(&Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, PortChangeSubtype::Down.code()));
    was_called.recv().unwrap();
    for _ in 0..2500 {
        device.dealloc_pd(device.alloc_pd().unwrap()).unwrap();
    }
    drop(go_on);
    let before = scripted.state().health_reads;
    until("its health was looked at", || scripted.state().health_reads > before + 1);
    drop(device);
    assert_eq!(scripted.end().faults, [""; 0]);
}

#[test]
fn port_events_come_to_the_program_and_show_in_the_port() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let change = |what: PortChangeSubtype| {
        scripted.state().event(&Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, what.code()));
    };
    change(PortChangeSubtype::Down);
    until("it is told", || device.poll_event() == Some(AsyncEvent::PortError));
    assert!(!device.port().active);
    change(PortChangeSubtype::Active);
    until("it is told", || device.poll_event() == Some(AsyncEvent::PortActive));
    until("it is active", || device.port().active);
    assert_eq!(device.poll_event(), None);
    drop(device);
}

#[test]
fn events_beyond_a_queues_length_are_all_heard_in_order() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    for round in 0..2000 {
        // No queue's length is a multiple of three, so that one of the round before is another one.
        let (what, told) = match round % 3 {
            0 => (PortChangeSubtype::Down, AsyncEvent::PortError),
            1 => (PortChangeSubtype::Active, AsyncEvent::PortActive),
            _ => (PortChangeSubtype::Lid, AsyncEvent::PortAddressChanged),
        };
        scripted.state().wants.managed.lid = commands::LID + (round + 1) / 3;
        scripted.state().event(&Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, what.code()));
        let mut next = None;
        until("it is told", || {
            next = device.poll_event();
            next.is_some()
        });
        assert_eq!(next, Some(told), "event {round}");
    }
    drop(device);
}

#[test]
fn without_interrupts_events_and_commands_are_found_by_looking() {
    for wants in [Wants { vectors: 0, ..Wants::default() }, Wants { vectors: 1, ..Wants::default() }] {
        let scripted = Scripted::serve(wants);
        let device = open(&scripted);
        let pd = device.alloc_pd().unwrap();
        scripted
            .state()
            .event(&Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, PortChangeSubtype::Down.code()));
        until("it is told", || device.poll_event() == Some(AsyncEvent::PortError));
        device.dealloc_pd(pd).unwrap();
        drop(device);
    }
}

#[test]
fn protection_domains_have_a_limit_and_stay_while_regions_are_in_them() {
    let mut scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let pds: Vec<_> = (0..4).map(|_| device.alloc_pd().unwrap()).collect();
    assert!(matches!(device.alloc_pd(), Err(DeviceError::LimitReached { limit: 4, .. })));
    let memory = device.alloc_memory(100).unwrap();
    let init = MrInit {
        addr: memory.addr(),
        len: 100,
        iova: 0x5000,
        access: Access::LOCAL_WRITE | Access::REMOTE_READ,
    };
    // SAFETY: the memory outlives the region, and nobody looks at it.
    let keys = unsafe { device.reg_mr(pds[0], &init) }.unwrap();
    assert!(matches!(device.dealloc_pd(pds[0]), Err(DeviceError::InUse { users: 1, .. })));
    device.dereg_mr(keys.handle).unwrap();
    assert!(matches!(device.dereg_mr(keys.handle), Err(DeviceError::UnknownHandle { .. })));
    pds.iter().for_each(|pd| device.dealloc_pd(*pd).unwrap());
    assert!(device.dealloc_pd(pds[0]).is_err());
    drop((memory, device));
    assert!(scripted.end().faults.is_empty());
}

#[test]
fn a_region_of_library_memory_is_told_to_the_adapter_by_large_pages() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let pd = device.alloc_pd().unwrap();
    let len = 5 << 20;
    let memory = device.alloc_memory(len).unwrap();
    let addr = memory.addr();
    let init = MrInit {
        addr,
        len,
        iova: addr.addr().get() as u64,
        access: Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    };
    // SAFETY: the memory outlives the region, and nobody looks at it.
    let keys = unsafe { device.reg_mr(pd, &init) }.unwrap();
    {
        let state = scripted.state();
        let input = CreateMkeyIn::from_bytes(&state.mkey).unwrap();
        let context: Mkc = input.get(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
        assert_eq!((context.get(Mkc::LEN), context.get(Mkc::START_ADDR)), (len as u64, init.iova));
        assert_eq!(
            (context.get(Mkc::LOG_PAGE_SIZE), context.get(Mkc::QPN), context.access_mode()),
            (20, 0xff_ffff, 1)
        );
        assert!(
            context.get(Mkc::RW) && context.get(Mkc::LW) && !context.get(Mkc::RR) && !context.get(Mkc::A)
        );
        assert_eq!(keys.rkey.raw() & 0xff, context.get(Mkc::MKEY_7_0));
        let list: Vec<u64> = pas::iter(&state.mkey[CreateMkeyIn::SIZE..]).collect();
        assert_eq!((list.len(), input.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE)), (6, 3));
        assert!(list[..5].windows(2).all(|w| w[1] == w[0] + (1 << 20)) && list[5] == 0);
    }
    device.dereg_mr(keys.handle).unwrap();
    drop((memory, device));
}

#[test]
fn a_region_of_many_small_pages_has_all_of_them_in_its_list() {
    const LEN: usize = 64 << 20;
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let pd = device.alloc_pd().unwrap();
    let memory = device.alloc_memory(LEN).unwrap();
    // Odd, so that nothing but pages of 4 KiB agrees with it.
    let init = MrInit { addr: memory.addr(), len: LEN, iova: 0x7_1000, access: Access::LOCAL_WRITE };
    for _ in 0..3 {
        // SAFETY: the memory outlives the region, and nobody looks at it.
        let keys = unsafe { device.reg_mr(pd, &init) }.unwrap();
        let list: Vec<u64> = pas::iter(&scripted.state().mkey[CreateMkeyIn::SIZE..]).collect();
        assert_eq!(list.len(), LEN / 4096);
        assert!(list.windows(2).all(|w| w[1] == w[0] + 4096));
        device.dereg_mr(keys.handle).unwrap();
    }
    drop((memory, device));
}

#[test]
fn memory_of_the_programs_own_is_refused_by_a_server_with_what_to_take_instead() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    assert!(!device.attr().foreign_memory);
    let pd = device.alloc_pd().unwrap();
    let mut own = vec![0_u8; 8192];
    let addr = core::ptr::NonNull::new(own.as_mut_ptr()).unwrap();
    let init = MrInit { addr, len: 8192, iova: 0, access: Access::empty() };
    // SAFETY: the memory outlives the call, and is not registered.
    let e = unsafe { device.reg_mr(pd, &init) }.unwrap_err().to_string();
    assert!(e.contains("DmaArena") || e.contains("descriptor"), "{e}");
    device.dealloc_pd(pd).unwrap();
    drop(device);
}

/// A message may have begun to fill a request. That comes back by a flush, or nobody could say what became of it.
#[test]
fn a_queue_pair_on_a_shared_queue_is_flushed_before_it_is_reset() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let pd = device.alloc_pd().unwrap();
    let (cq, _poller) = device.create_cq(16).unwrap();
    let (shared, _recv) = device.create_srq(pd, &SrqInit { max_wr: 16, max_sge: 1 }).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let commands = |srq, states: &[QpState]| {
        let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq, cap };
        let qp = device.create_qp(pd, &init).unwrap().handle;
        let before = scripted.state().log.len();
        for state in states {
            let init = *state == QpState::Init;
            let (pkey, access) = (init.then_some(Pkey::DEFAULT), init.then_some(Access::empty()));
            let attr = QpAttr { state: Some(*state), pkey, access, ..QpAttr::default() };
            device.modify_qp(qp, &attr).unwrap();
        }
        scripted.state().log[before..].iter().map(|(opcode, _)| *opcode).collect::<Vec<_>>()
    };
    use QpState::{Error, Init, Reset};
    let [init, error, reset] = [Opcode::RST2INIT_QP, Opcode::QP_2ERR, Opcode::QP_2RST];
    assert_eq!(commands(Some(shared), &[Init, Reset]), [init, error, reset]);
    // Where it is, or holds nothing of others', there is no need to.
    assert_eq!(commands(Some(shared), &[Init, Error, Reset, Reset]), [init, error, reset, reset]);
    assert_eq!(commands(None, &[Init, Reset]), [init, reset]);
}

/// A thread that shows all queue pairs, say, does so while other threads destroy them.
#[test]
fn queues_of_a_queue_pair_that_is_gone_can_go_though_somebody_still_asks_about_it() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let pd = device.alloc_pd().unwrap();
    let (cq, _poller) = device.create_cq(16).unwrap();
    let (shared, _recv) = device.create_srq(pd, &SrqInit { max_wr: 16, max_sge: 1 }).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let init = QpInit { qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, srq: Some(shared), cap };
    let qp = device.create_qp(pd, &init).unwrap().handle;
    let (pkey, qkey) = (Some(Pkey::DEFAULT), Some(Qkey::new(1)));
    device.modify_qp(qp, &QpAttr { state: Some(QpState::Init), pkey, qkey, ..QpAttr::default() }).unwrap();
    device.modify_qp(qp, &QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() }).unwrap();
    scripted.state().wants.hold.insert(Opcode::QUERY_QP);
    std::thread::scope(|s| {
        let asks = s.spawn(|| device.query_qp(qp));
        until("it is asked about", || scripted.state().held() == 1);
        device.destroy_qp(qp).unwrap();
        let gone = (device.destroy_srq(shared), device.destroy_cq(cq));
        scripted.state().let_go(false);
        assert!(asks.join().unwrap().is_err(), "there is none any more");
        gone.0.unwrap();
        gone.1.unwrap();
    });
}

#[test]
fn an_adapter_whose_receive_requests_have_no_room_has_no_entries() {
    let more = |all: &mut commands::AllCaps| _ = all.general.set(HcaCap::MAX_WQE_SZ_RQ, 15);
    let scripted = Scripted::serve(Wants { more, ..Wants::default() });
    let device = open(&scripted);
    assert_eq!(device.attr().max_sge, 0);
    drop(device);
}

#[test]
fn a_clock_that_never_stands_still_is_read_all_the_same() {
    let scripted = Scripted::serve(Wants::default());
    let device = open(&scripted);
    let before = device.clock().expect("it has one").now;
    assert!(device.clock().unwrap().now > before);
    scripted.state().wants.restless = Some(7);
    // The upper half is that of the last look, and the lower one is read again after it.
    assert_eq!(device.clock().map(|clock| clock.now), Some(9 << 32 | 10));
}

#[test]
fn completion_queues_take_turns_at_event_queues_of_which_there_is_one_a_cpu() {
    let scripted = Scripted::serve(Wants { vectors: 3, ..Wants::default() });
    let device = open(&scripted);
    let count = completion_eqs(3);
    let queues: Vec<_> = (0..2 * count).map(|_| device.create_cq(16).unwrap()).collect();
    let state = scripted.state();
    assert_eq!(state.cq_eqs[..count], state.cq_eqs[count..]);
    let distinct: std::collections::BTreeSet<_> = state.cq_eqs.iter().collect();
    assert_eq!((distinct.len(), state.eqs.len()), (count, 2 + count));
    drop(state);
    drop(queues);
}
