//! Devices that choose the fabric by path: shared memory or UDP, the same at both ends.

use hca::{CompletionQueue, Completions, ConnectOptions, Opened, Pd, QueuePair, Rc, Uc, open_device};

/// A device on an address that nobody has, with options.
fn device(name: &str) -> Opened {
    open_device(name).unwrap_or_else(|e| panic!("{e}"))
}

fn count(of: &Opened, name: &str) -> u64 {
    let counters = of.device().counters();
    counters.iter().find(|c| c.name == name).map_or(0, |c| c.value)
}

/// A message each way, over a new reliable connection.
fn exchange(a: &Opened, b: &Opened) -> Result<(), String> {
    let (a, b) = (a.context(), b.context());
    let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let (mut cq_a, mut cq_b) = (a.create_cq(256).unwrap(), b.create_cq(256).unwrap());
    let mut qp_a = pd_a.qp::<Rc>(&cq_a).build().unwrap();
    let mut qp_b = pd_b.qp::<Rc>(&cq_b).build().unwrap();
    qp_a.connect(&qp_b.endpoint(), &ConnectOptions::default()).unwrap();
    qp_b.connect(&qp_a.endpoint(), &ConnectOptions::default()).unwrap();
    message((&mut qp_a, &pd_a, &mut cq_a), (&mut qp_b, &pd_b, &mut cq_b))?;
    message((&mut qp_b, &pd_b, &mut cq_b), (&mut qp_a, &pd_a, &mut cq_a))
}

type End<'a> = (&'a mut QueuePair<Rc>, &'a Pd, &'a mut CompletionQueue);

fn message(from: End<'_>, to: End<'_>) -> Result<(), String> {
    to.0.post_recv(to.1.alloc(64).unwrap()).unwrap();
    let mut buf = from.1.alloc(5).unwrap();
    buf.copy_from_slice(b"hello");
    from.0.send(buf).unwrap();
    let mut wcs = Completions::default();
    for wc in from.2.wait(&mut wcs, None).unwrap() {
        wc.ok().map_err(|e| e.to_string())?;
    }
    for wc in to.2.wait(&mut wcs, None).unwrap() {
        let mut wc = wc.ok().map_err(|e| e.to_string())?;
        let buf = wc.take_buf().expect("a receive gives its buffer back");
        assert_eq!(&buf[..wc.byte_len as usize], b"hello");
    }
    Ok(())
}

/// Paths by shared memory and by UDP, of both ends.
fn taken(a: &Opened, b: &Opened) -> [(u64, u64); 2] {
    [a, b].map(|d| (count(d, "paths_by_shm"), count(d, "paths_by_udp")))
}

#[test]
fn reliable_connections_on_one_machine_go_by_shared_memory_and_others_by_udp() {
    let (a, b) = (device("auto://"), device("auto://"));
    exchange(&a, &b).unwrap();
    assert_eq!(taken(&a, &b), [(1, 0), (1, 0)]);
    assert_eq!((count(&a, "shm_tx_messages") > 0, count(&a, "shm_peers_linked")), (true, 1));
    let (pd_a, pd_b) = (a.context().alloc_pd().unwrap(), b.context().alloc_pd().unwrap());
    let (cq_a, cq_b) = (a.context().create_cq(256).unwrap(), b.context().create_cq(256).unwrap());
    let qp_a = pd_a.qp::<Uc>(&cq_a).build().unwrap();
    let qp_b = pd_b.qp::<Uc>(&cq_b).build().unwrap();
    qp_b.connect(&qp_a.endpoint(), &ConnectOptions::default()).unwrap();
    assert_eq!(taken(&a, &b), [(1, 0), (1, 1)]);
}

#[test]
fn a_peer_on_udp_or_with_layers_of_packets_is_reached_by_udp() {
    for peer in ["udp://", "auto://?mtu=1024", "auto://?fault=dup=0.01,seed=3"] {
        let (a, b) = (device("auto://"), device(peer));
        exchange(&a, &b).unwrap_or_else(|e| panic!("{peer}: {e}"));
        assert_eq!((count(&a, "paths_by_shm"), count(&a, "paths_by_udp")), (0, 1), "{peer}");
    }
}

#[test]
fn a_device_that_comes_back_to_its_address_is_met_again() {
    let a = device("auto://");
    // An address that no other test takes meanwhile.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let name = format!("auto://127.84.{high}.{}", low.clamp(1, 254));
    let mut b = device(&name);
    for round in 1..=5 {
        exchange(&a, &b).unwrap_or_else(|e| panic!("round {round}: {e}"));
        drop(b);
        b = device(&name);
    }
    assert_eq!(taken(&a, &b), [(5, 0), (0, 0)]);
}

#[test]
fn a_device_reaches_itself() {
    let a = device("auto://");
    exchange(&a, &a).unwrap();
    assert_eq!((count(&a, "paths_by_shm"), count(&a, "paths_by_udp")), (2, 0));
}

/// A device at an address of its test's own, which others share.
fn at_one_address(salt: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("auto://127.{salt}.{high}.{}?share=4", low.clamp(1, 254))
}

#[test]
fn devices_at_one_address_reach_each_other_themselves_and_devices_elsewhere_by_shared_memory() {
    let name = at_one_address(85);
    let (a, b, c) = (device(&name), device(&name), device("auto://"));
    exchange(&a, &b).unwrap();
    exchange(&c, &a).unwrap();
    exchange(&b, &c).unwrap();
    exchange(&b, &b).unwrap();
    assert_eq!([&a, &b, &c].map(|d| count(d, "paths_by_shm")), [2, 4, 2]);
    assert_eq!([&a, &b, &c].map(|d| count(d, "paths_by_udp")), [0; 3]);
}

#[test]
fn a_device_that_comes_back_to_its_slot_is_met_again() {
    // With two slots the one that comes gets that of the one that went.
    let name = at_one_address(86).replace("share=4", "share=2");
    let a = device(&name);
    for round in 1..=5 {
        let b = device(&name);
        exchange(&a, &b).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    assert_eq!((count(&a, "paths_by_shm"), count(&a, "paths_by_udp")), (5, 0));
}

#[test]
fn an_address_that_is_shared_now_and_one_adapters_then_is_met_as_it_is() {
    let a = device("auto://");
    let shared = at_one_address(87);
    let alone = shared.replace("?share=4", "");
    for round in 1..=6 {
        let b = device(if round % 2 == 0 { &shared } else { &alone });
        exchange(&a, &b).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    assert_eq!((count(&a, "paths_by_shm"), count(&a, "paths_by_udp")), (6, 0));
}

#[test]
fn devices_that_cannot_share_an_address_have_each_their_own_and_reach_each_other() {
    // The filter is on this thread and on those that it starts.
    let inside = std::thread::spawn(|| {
        let option = [(1, libc::SOL_SOCKET as u32), (2, libc::SO_ATTACH_REUSEPORT_CBPF as u32)];
        test_support::filter::refuse_with(libc::SYS_setsockopt, &option, libc::EPERM);
        let name = at_one_address(88);
        let (a, b) = (device(&name), device(&name));
        assert_ne!(a.url(), b.url());
        exchange(&a, &b).unwrap();
        assert_eq!(taken(&a, &b), [(1, 0), (1, 0)]);
    });
    inside.join().unwrap();
}
