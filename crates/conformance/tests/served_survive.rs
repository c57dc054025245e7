//! Faults of a served function, as the ConnectX driver sees them: refusals, event queues that overflow, a server that
//! ends. Cases of the suite (keys, completion queues that overrun, deregistration under traffic) are not repeated.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as Task, Wake, Waker};
use std::time::{Duration, Instant};

use hca_core::{AsyncEvent, Device, DeviceError, Qkey, WcStatus};
use hca_fabric::LoopbackNet;
use hca_mlx5::{Death, Mlx5, Options};
use hca_verbs::{Completions, ConnectOptions, Context, Rc, Ud};
use hca_vfio::{PciFunction, UserOptions};
use hca_via::{
    AsyncError, ErrorKind, MemAttributes, Nic, NicOptions, Reliability, Request, Status, ViAttributes,
    ViState,
};
use softhca::{Limits, Progress, SoftHca};
use softhca_pci::{PortKind, Served};
use test_support::waiting::until;

/// Long enough for whatever comes at all.
const PATIENCE: Duration = Duration::from_secs(30);

fn serve(functions: usize, limits: Limits) -> Served {
    let fabric = LoopbackNet::new().attach(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    let inline = softhca::Options { progress: Progress::Inline, limits, ..softhca::Options::default() };
    Served::start(SoftHca::open(Box::new(fabric), inline).unwrap(), functions, PortKind::InfiniBand).unwrap()
}
fn open(served: &Served, number: usize, options: Options) -> Arc<Mlx5> {
    let function = PciFunction::connect(&served.sockets()[number], UserOptions::default()).unwrap();
    Mlx5::open(function, options).unwrap()
}
/// The driver looks at the adapter's health often.
fn watchful() -> Options {
    let mut options = Options::default();
    options.health_interval = Duration::from_millis(5);
    options
}
#[test]
fn what_a_served_function_refuses_is_told_and_what_goes_makes_room() {
    // The function takes two for itself: of completions, and of memory for queues.
    let served = serve(1, Limits { qps: 3, srqs: 2, mrs: 4, pds: 4, ..Limits::default() });
    let context = Context::new(open(&served, 0, Options::default()));
    for _ in 0..3 {
        let pds: Vec<_> = std::iter::from_fn(|| context.alloc_pd().ok()).collect();
        assert_eq!(pds.len(), 4);
        let refused = context.alloc_pd().unwrap_err();
        let DeviceError::Refused { command, reason, .. } = refused else { panic!("{refused}") };
        assert_eq!((command, reason), ("ALLOC_PD", "the adapter has no more of these"));
        let pd = &pds[0];
        let cq = context.create_cq(1024).unwrap();
        let qps: Vec<_> = (0..3).map(|_| pd.qp::<Rc>(&cq).build().unwrap()).collect();
        let told = pd.qp::<Rc>(&cq).build().expect_err("there are three").to_string();
        assert!(told.contains("CREATE_QP") && told.contains("no more of these"), "{told}");
        drop((qps, cq, pds));
    }
    assert!(context.poll_event().is_none());
}

/// Keeps the driver's thread until it is told to go on.
struct Sits {
    came: AtomicBool,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Sits {
    fn wake(self: Arc<Self>) {
        if !self.came.swap(true, Ordering::AcqRel) {
            self.go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
    }
}

/// Completion queues with an event each, more than the driver's event queue has room for, while its thread is kept from
/// reading that: a waker of the program's does not come back.
#[test]
fn an_event_queue_that_overflows_is_a_syndrome_that_ends_the_device() {
    const QUEUES: usize = 600;
    let served = serve(1, Limits::default());
    let mut options = watchful();
    options.event_queue_entries = 512;
    // So that there is one queue for all of them, however many CPUs there are.
    options.interrupts = false;
    let device = open(&served, 0, options);
    let pd = Context::new(device.clone()).alloc_pd().unwrap();
    let qkey = Qkey::new(7);
    let mut queues: Vec<_> = (0..=QUEUES)
        .map(|_| {
            let cq = pd.context().create_cq(2).unwrap();
            let qp = pd.qp::<Ud>(&cq).max_send_wr(1).max_recv_wr(1).build().unwrap();
            qp.activate(qkey).unwrap();
            (cq, qp)
        })
        .collect();
    let peer = pd.create_ah(&queues[0].1.endpoint().av()).unwrap().peer(queues[0].1.qpn(), qkey);
    let (go_on, kept) = mpsc::channel();
    let sits = Arc::new(Sits { came: AtomicBool::new(false), go_on: Mutex::new(kept) });
    let mut wcs = Completions::default();
    for (n, (cq, qp)) in queues.iter_mut().enumerate() {
        let waker = if n == 0 { Waker::from(sits.clone()) } else { Waker::noop().clone() };
        assert!(cq.poll_next(&mut Task::from_waker(&waker), &mut wcs).is_pending(), "and is armed");
        qp.send_to(pd.alloc(16).unwrap(), &peer).unwrap();
        if n == 0 {
            until("the driver's thread is kept", || sits.came.load(Ordering::Acquire));
        }
    }
    for (cq, _) in &mut queues {
        until("each has its completion", || cq.poll(&mut wcs).count() == 1);
    }
    assert_eq!(device.death(), None, "nobody has looked");
    go_on.send(()).unwrap();
    until("it is found", || device.death().is_some());
    assert!(matches!(device.death(), Some(Death::Syndrome { .. })), "{:?}", device.death());
    let told = device.alloc_pd().unwrap_err();
    assert!(matches!(told, DeviceError::Dead { .. }) && told.to_string().contains("event queue"), "{told}");
    until("the program hears of it", || device.poll_event() == Some(AsyncEvent::DeviceFatal));
    // The next one finds all as new.
    drop((wcs, queues, peer, pd, device));
    open(&served, 0, Options::default()).alloc_pd().unwrap();
}

#[test]
fn vis_are_told_that_their_adapter_has_failed() {
    let served = serve(1, Limits::default());
    let context = Context::new(open(&served, 0, watchful()));
    let nic = Nic::open_with(&context, &NicOptions { by_hand: true, ..NicOptions::default() }).unwrap();
    let (tell, told) = mpsc::channel();
    nic.set_error_handler(Some(Arc::new(move |error| tell.send(*error).unwrap())));
    let ptag = nic.create_ptag().unwrap();
    let descriptor = nic.alloc(4096, &MemAttributes::new(&ptag)).unwrap().descriptor(0).unwrap();
    descriptor.write(&Request::new(&[])).unwrap();
    // Reliable ones need the state SQD, which the driver does not have.
    let attributes = ViAttributes { reliability: Reliability::Unreliable, ..ViAttributes::new(&ptag) };
    let vis = [(); 2].map(|()| nic.create_vi(&attributes, None, None).unwrap());
    for (vi, other) in [(0, 1), (1, 0)] {
        vis[vi].connect_by_hand(&vis[other].endpoint_by_hand()).unwrap();
        vis[vi].post_recv(&descriptor).unwrap();
    }
    drop(served);
    for vi in &vis {
        let ended = vi.recv_wait(Some(PATIENCE)).unwrap();
        assert_eq!(ended.status.error(), Status::TRANSPORT_ERROR);
        let kind = ErrorKind::Catastrophic;
        assert_eq!(told.recv_timeout(PATIENCE), Ok(AsyncError { kind, vi: vi.id() }));
        assert_eq!(vi.state(), ViState::Error);
    }
}

/// One waits for messages without end, and one is sending.
#[test]
fn when_the_server_ends_who_waits_is_woken_and_every_request_ends_once() {
    const REQUESTS: u64 = 16;
    let served = serve(2, Limits::default());
    let devices = [0, 1].map(|i| open(&served, i, watchful()));
    let side = |device: &Arc<Mlx5>| {
        let pd = Context::new(device.clone()).alloc_pd().unwrap();
        let cq = pd.context().create_cq(64).unwrap();
        let qp = pd.qp::<Rc>(&cq).max_send_wr(REQUESTS as u32).max_recv_wr(REQUESTS as u32).build().unwrap();
        (pd, cq, qp)
    };
    let [(pd_a, mut cq_a, mut a), (pd_b, mut cq_b, mut b)] = [side(&devices[0]), side(&devices[1])];
    a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
    b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
    let (tell, told) = mpsc::channel();
    let receiver = std::thread::spawn(move || {
        for id in 0..REQUESTS {
            b.post_recv_id(id, pd_b.alloc(64).unwrap()).unwrap();
        }
        let (mut wcs, mut ended, mut messages) = (Completions::default(), Vec::new(), 0);
        while (ended.len() as u64) < REQUESTS {
            for wc in cq_b.wait(&mut wcs, None).unwrap() {
                match wc.ok() {
                    Ok(mut wc) => {
                        messages += 1;
                        b.post_recv_id(wc.id, wc.take_buf().unwrap()).unwrap();
                    }
                    Err(failed) => ended.push((failed.id, failed.status)),
                }
                tell.send(messages).unwrap();
            }
        }
        assert_eq!(cq_b.poll(&mut wcs).count(), 0, "each ends once");
        (ended, b)
    });
    let (stop, mut wcs) = (AtomicBool::new(false), Completions::default());
    let mut served = Some(served);
    let (mut posted, mut sent, mut failed) = (0_u64, 0_u64, 0_u64);
    // Until the receiver hears nothing any more, and all that was posted has ended.
    let begun = Instant::now();
    while !stop.load(Ordering::Relaxed) || posted > sent + failed {
        assert!(begun.elapsed() < PATIENCE, "{posted} posted, {sent} sent, {failed} failed");
        while failed == 0 && a.send(pd_a.alloc(64).unwrap()).is_ok() {
            posted += 1;
        }
        for wc in cq_a.poll(&mut wcs) {
            match wc.ok() {
                Ok(_) => sent += 1,
                Err(e) => {
                    assert_eq!(e.status, WcStatus::Fatal);
                    failed += 1;
                }
            }
        }
        if told.try_iter().any(|messages| messages > 1000) {
            // In the middle of it.
            drop(served.take());
            stop.store(true, Ordering::Relaxed);
        }
    }
    let begun = Instant::now();
    while !receiver.is_finished() {
        assert!(begun.elapsed() < PATIENCE, "who waits is not woken");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (mut ended, _b) = receiver.join().unwrap();
    ended.sort_by_key(|(id, _)| *id);
    assert_eq!(ended.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (0..REQUESTS).collect::<Vec<_>>());
    assert!(ended.iter().all(|(_, status)| *status == WcStatus::Fatal), "{ended:?}");
    for device in &devices {
        until("each finds it", || device.death() == Some(Death::Unreachable));
        assert!(matches!(device.alloc_pd(), Err(DeviceError::Dead { .. })));
    }
}
