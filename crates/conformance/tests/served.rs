//! The ConnectX driver on functions that the software adapter serves at sockets, all in one process.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hca_core::{Access, AddressVector, Device, DeviceError, Gid, Lid, MrInit, Qkey};
use hca_fabric::{Fabric, LoopbackNet, Tap, TapFrame};
use hca_mlx5::{Mlx5, Options};
use hca_verbs::{Buf, Completions, ConnectOptions, Context, Inline, Rc, SendRequest, Uc, Ud};
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use softhca_pci::{PortKind, Served, ServerOptions};

fn serve(functions: usize, port: PortKind) -> Served {
    serve_as(functions, port.into())
}
fn serve_as(functions: usize, how: ServerOptions) -> Served {
    let fabric = LoopbackNet::new().attach(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    let inline = softhca::Options { progress: Progress::Inline, ..softhca::Options::default() };
    let hca = SoftHca::open(Box::new(fabric), inline).unwrap();
    Served::start(hca, functions, how).unwrap()
}
/// The function; a client that has just gone leaves it free.
fn function(served: &Served, number: usize) -> PciFunction {
    // Many tests share the CPUs, so a server that is well may be late.
    let options = UserOptions::default().deadline(Duration::from_secs(60));
    PciFunction::connect(&served.sockets()[number], options).unwrap()
}
fn open(served: &Served, number: usize) -> Arc<Mlx5> {
    Mlx5::open(function(served, number), Options::default()).unwrap()
}

#[test]
fn the_driver_opens_a_served_function_again_and_again_with_either_port() {
    for port in [PortKind::InfiniBand, PortKind::Roce] {
        let served = serve(2, port);
        for _ in 0..5 {
            let (a, b) = (open(&served, 0), open(&served, 1));
            assert_ne!(a.port().gid, b.port().gid, "each has an address of its own");
            assert!(a.port().gid != Gid::default() && a.port().active && b.port().active);
            assert!(a.pages_lent() > 0 && a.death().is_none());
            assert_eq!(a.attr().fabric, if port == PortKind::Roce { "roce" } else { "infiniband" });
        }
    }
}

/// They ask for pages at each command that makes something; while the driver starts, too.
#[test]
fn the_driver_lends_pages_to_functions_that_have_none_to_spare() {
    for port in [PortKind::InfiniBand, PortKind::Roce] {
        let served = serve_as(2, ServerOptions { no_spare_pages: true, ..port.into() });
        let [a, b] = [0, 1].map(|i| open(&served, i));
        let first = a.pages_lent();
        let [ca, cb] = [&a, &b].map(|device| Context::new(device.clone()));
        let [pa, pb] = [&ca, &cb].map(|c| c.alloc_pd().unwrap());
        let [qa_cq, mut qb_cq] = [&ca, &cb].map(|c| c.create_cq(1024).unwrap());
        let (mut qa, mut qb) = (pa.qp::<Rc>(&qa_cq).build().unwrap(), pb.qp::<Rc>(&qb_cq).build().unwrap());
        qa.connect(&qb.endpoint(), &ConnectOptions::default()).unwrap();
        qb.connect(&qa.endpoint(), &ConnectOptions::default()).unwrap();
        qb.post_recv(pb.alloc(8).unwrap()).unwrap();
        qa.post_send(SendRequest::send(Inline(b"no pages"))).unwrap();
        assert_eq!(&receive(&mut qb_cq)[..], b"no pages");
        assert!(a.pages_lent() >= first + 3, "a domain, a queue of completions, a queue pair");
        drop((qa, qa_cq, pa, ca));
        let begun = Instant::now();
        while a.pages_lent() > first {
            assert!(begun.elapsed() < Duration::from_secs(10), "each comes back with what had it");
            std::thread::yield_now();
        }
        assert!(a.death().is_none());
    }
}

#[test]
fn regions_of_all_sizes_come_and_go_on_a_served_function() {
    let served = serve(1, PortKind::InfiniBand);
    let device = open(&served, 0);
    let pd = device.alloc_pd().unwrap();
    for len in [1, 4096, 5000, 1 << 20, (64 << 20) + 1, 1 << 30] {
        let memory = device.alloc_memory(len).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        for iova in [0x1000, memory.addr().addr().get() as u64] {
            let init = MrInit { addr: memory.addr(), len, iova, access };
            // Addresses that agree in 12 bits only take pages of 4 KiB: of the longest, 262,144.
            let begun = Instant::now();
            // SAFETY: the memory outlives the region, and nobody looks at it.
            let keys = unsafe { device.reg_mr(pd, &init) }.unwrap();
            println!("{len} bytes at {iova:#x}: {:?}, {} pages lent", begun.elapsed(), device.pages_lent());
            assert!(matches!(device.dealloc_pd(pd), Err(DeviceError::InUse { .. })));
            device.dereg_mr(keys.handle).unwrap();
        }
    }
    device.dealloc_pd(pd).unwrap();
}

/// Four of four queue pairs' doorbell registers on one page, of which three are given to one each.
#[test]
fn requests_that_go_to_the_doorbell_page_whole_arrive() {
    let served = serve(2, PortKind::InfiniBand);
    let mut options = Options::default();
    (options.blueflame, options.uars) = (true, 1);
    let [a, b] = [0, 1].map(|i| Context::new(Mlx5::open(function(&served, i), options.clone()).unwrap()));
    let [pa, pb] = [&a, &b].map(|c| c.alloc_pd().unwrap());
    // As often as registers would be used up, if they did not come back.
    for round in 0..3 {
        let [ca, mut cb] = [&a, &b].map(|c| c.create_cq(1024).unwrap());
        let pairs = [(); 4].map(|()| {
            let (qa, mut qb) = (pa.qp::<Rc>(&ca).build().unwrap(), pb.qp::<Rc>(&cb).build().unwrap());
            qa.connect(&qb.endpoint(), &ConnectOptions::default()).unwrap();
            qb.connect(&qa.endpoint(), &ConnectOptions::default()).unwrap();
            qb.post_recv(pb.alloc(8).unwrap()).unwrap();
            (qa, qb)
        });
        let (mut senders, _receivers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        for (i, qa) in senders.iter_mut().enumerate() {
            let bytes = [round, i as u8, 3, 4, 5, 6, 7, 8];
            qa.post_send(SendRequest::send(Inline(&bytes))).unwrap();
            assert_eq!(receive(&mut cb)[..], bytes);
        }
    }
}

/// Polls for a received message, for ten seconds at most.
fn receive(cq: &mut hca_verbs::CompletionQueue) -> Buf {
    let (mut wcs, begun) = (Completions::default(), Instant::now());
    loop {
        assert!(begun.elapsed() < Duration::from_secs(10), "a message comes");
        for wc in cq.poll(&mut wcs) {
            let mut wc = wc.ok().unwrap();
            if wc.opcode.is_recv() {
                return wc.take_buf().unwrap();
            }
        }
    }
}

/// The traffic classes of frames.
#[derive(Clone, Default)]
struct Classes(Arc<Mutex<BTreeSet<u8>>>);

impl Tap for Classes {
    fn frame(&mut self, _now: hca_core::Instant, frame: &TapFrame<'_>) {
        self.0.lock().unwrap().insert(frame.header.traffic_class);
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn connections_of_roce_ports_carry_the_class_that_they_were_given() {
    let classes = Classes::default();
    let mut fabric = LoopbackNet::new().attach(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    fabric.set_tap(Some(Box::new(classes.clone())));
    let inline = softhca::Options { progress: Progress::Inline, ..softhca::Options::default() };
    let hca = SoftHca::open(Box::new(fabric), inline).unwrap();
    let served = Served::start(hca, 2, PortKind::Roce).unwrap();
    let side = |i| {
        let pd = Context::new(open(&served, i)).alloc_pd().unwrap();
        let cq = pd.context().create_cq(1024).unwrap();
        (pd, cq)
    };
    let ((pd_a, cq_a), (pd_b, mut cq_b)) = (side(0), side(1));
    let mut a = pd_a.qp::<Rc>(&cq_a).build().unwrap();
    let mut b = pd_b.qp::<Rc>(&cq_b).build().unwrap();
    let options = ConnectOptions { traffic_class: 0xa4, sl: 5, ..ConnectOptions::default() };
    b.post_recv(pd_b.alloc(8).unwrap()).unwrap();
    b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
    a.connect(&b.endpoint(), &options).unwrap();
    a.post_send(SendRequest::send(Inline(b"of class"))).unwrap();
    assert_eq!(&receive(&mut cq_b)[..], b"of class");
    let seen = classes.0.lock().unwrap();
    assert!(seen.iter().any(|class| class & !3 == 0xa4), "{seen:x?}");
}

#[test]
fn queue_pairs_of_infiniband_ports_reach_each_other_by_lid_alone() {
    let served = serve(2, PortKind::InfiniBand);
    let side = |i| {
        let pd = Context::new(open(&served, i)).alloc_pd().unwrap();
        let cq = pd.context().create_cq(1024).unwrap();
        (pd, cq)
    };
    let ((pd_a, cq_a), (pd_b, mut cq_b)) = (side(0), side(1));
    let message = |text: &[u8]| {
        let mut buf = pd_a.alloc(text.len()).unwrap();
        buf.copy_from_slice(text);
        buf
    };
    macro_rules! connected {
        ($service:ident) => {{
            let mut a = pd_a.qp::<$service>(&cq_a).build().unwrap();
            let mut b = pd_b.qp::<$service>(&cq_b).build().unwrap();
            b.post_recv(pd_b.alloc(64).unwrap()).unwrap();
            let (here, there) = (a.endpoint(), b.endpoint());
            assert_eq!((here.lid.raw(), there.lid.raw()), (1, 2));
            b.connect(&here, &ConnectOptions::default()).unwrap();
            a.connect(&there, &ConnectOptions::default()).unwrap();
            let path = a.query().unwrap().attr.av.unwrap();
            assert_eq!((path.dgid, path.dlid), (Gid::default(), there.lid), "no global header");
            a.send(message(b"connected")).unwrap();
            assert_eq!(&receive(&mut cq_b)[..9], b"connected");
        }};
    }
    connected!(Rc);
    connected!(Uc);
    let qkey = Qkey::new(0x77);
    let mut a = pd_a.qp::<Ud>(&cq_a).build().unwrap();
    let mut b = pd_b.qp::<Ud>(&cq_b).build().unwrap();
    a.activate(qkey).unwrap();
    b.activate(qkey).unwrap();
    for av in [b.endpoint().av(), AddressVector { dlid: b.endpoint().lid, ..AddressVector::default() }] {
        b.post_recv(pd_b.alloc(40 + 64).unwrap()).unwrap();
        let peer = pd_a.create_ah(&av).unwrap().peer(b.qpn(), qkey);
        a.post_send(SendRequest::send(message(b"datagram")).to(&peer)).unwrap();
        assert_eq!(&receive(&mut cq_b)[40..48], b"datagram");
    }
    let nobody = AddressVector { dlid: Lid::new(0xc000), ..AddressVector::default() };
    let e = pd_a.create_ah(&nobody).unwrap_err().to_string();
    assert!(e.contains("1 to 49151"), "{e}");
}

#[test]
fn a_served_function_borrows_pages_as_objects_come_and_gives_all_back_as_they_go() {
    const FOUR_MIB: usize = 4 << 20;
    let served = serve(1, PortKind::InfiniBand);
    let function = function(&served, 0);
    let device = Mlx5::open(function.clone(), Options::default()).unwrap();
    let (first, pd) = (device.pages_lent(), device.alloc_pd().unwrap());
    let memory = device.alloc_memory(FOUR_MIB).unwrap();
    // Addresses that agree in 12 bits only: 1,024 pages, whose list is two pages of the adapter's own.
    let init = MrInit { addr: memory.addr(), len: FOUR_MIB, iova: 0x1000, access: Access::LOCAL_WRITE };
    // SAFETY: the memory outlives the regions, and nobody looks at it.
    let register = || unsafe { device.reg_mr(pd, &init) }.unwrap().handle;
    let (mut regions, mut most) = (Vec::new(), first);
    for _ in 0..3 {
        regions.extend((0..100).map(|_| register()));
        assert!((first + 192..first + 220).contains(&device.pages_lent()), "{}", device.pages_lent());
        most = most.max(device.pages_lent());
        regions.drain(..).for_each(|mr| device.dereg_mr(mr).unwrap());
        let begun = Instant::now();
        while device.pages_lent() >= first + 16 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{} pages stay", device.pages_lent());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("{first} pages at first, {most} with 100 regions");
    // Some are still lent when it is closed.
    regions.extend((0..20).map(|_| register()));
    regions.drain(..).for_each(|mr| device.dereg_mr(mr).unwrap());
    device.dealloc_pd(pd).unwrap();
    drop((memory, device));
    // The command queue's address is still there: where pages are missing, the driver resets the function.
    assert_ne!(function.bar(0).unwrap().read32_be(0x14).unwrap() >> 12, 0, "it was stopped in order");
}

#[test]
fn a_function_that_is_reset_under_its_driver_serves_the_next_one() {
    let served = serve(1, PortKind::InfiniBand);
    for _ in 0..3 {
        let function = function(&served, 0);
        let mut short = Options::default();
        // Long enough for a server that waits for a processor.
        short.command_timeout = Duration::from_secs(1);
        let device = Mlx5::open(function.clone(), short).unwrap();
        let pd = device.alloc_pd().unwrap();
        let memory = device.alloc_memory(8192).unwrap();
        let init = MrInit { addr: memory.addr(), len: 8192, iova: 0, access: Access::LOCAL_WRITE };
        // SAFETY: the memory outlives the device, and nobody looks at it.
        unsafe { device.reg_mr(pd, &init) }.unwrap();
        // Objects and pages are there, and the driver learns of this when it gets no answer.
        function.reset().unwrap();
        drop((device, memory));
    }
    let device = open(&served, 0);
    device.alloc_pd().unwrap();
}
