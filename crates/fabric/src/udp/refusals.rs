//! Tests of calls that the kernel refuses at run time, and their effect on trains and on the flow's
//! Identification.
//!
//! A seccomp filter, which any process may put on a thread of its own, answers the chosen send calls with
//! an error; the sockets are real. The thread ends with the filter, and the fabric goes on without.

use std::net::{IpAddr, SocketAddr};

use hca_core::wire::ROCEV2_PORT;
use hca_core::{AddressVector, Counter, Gid, Instant};
use socket2::{Domain, Protocol, Socket, Type};
use test_support::namespaces::Namespace;
use test_support::{addresses, filter};

use super::{UdpFabric, UdpOptions};
use crate::{Fabric, OpenError, PathId, RxBudget, TxBatch};

pub(super) const NOW: Instant = Instant::from_nanos(1_000_000);
pub(super) const BUDGET: RxBudget = RxBudget { packets: 1024, bytes: 1 << 20 };

/// Calls that can be told apart.
#[derive(Clone, Copy)]
pub(super) enum Call {
    /// One packet on a connected socket.
    Packet,
    /// One train, or one packet with control messages.
    Train,
    /// Several datagrams.
    Several,
    /// The probe that learns a flow's Identification.
    Probe,
    /// To receive one datagram, and all that is told of it.
    Receive,
}
use Call::{Packet, Probe, Receive, Several, Train};

/// Runs `f` on a thread whose `calls` fail with `errno`.
pub(super) fn refusing<R: Send>(calls: &[Call], errno: i32, f: impl FnOnce() -> R + Send) -> R {
    let program = program(calls, errno);
    std::thread::scope(|s| {
        let run = s.spawn(move || {
            filter::install(&program);
            f()
        });
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The filter as BPF: for each call a group that returns the error, and at the end what lets pass.
fn program(calls: &[Call], errno: i32) -> Vec<libc::sock_filter> {
    let load = |at: u32| filter::op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0);
    let equal = |k: u32, jt, jf| filter::op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, jt, jf);
    let end = |k: u32| filter::op(libc::BPF_RET | libc::BPF_K, k, 0, 0);
    let refuse = end(libc::SECCOMP_RET_ERRNO | errno as u32);
    // In `seccomp_data`: the call's number, and the low half of `sendto`'s address.
    let (number, address) = (load(0), load(16 + 4 * 8));
    let mut out = Vec::new();
    for call in calls {
        match call {
            Train => out.extend([number, equal(libc::SYS_sendmsg as u32, 0, 1), refuse]),
            Several => out.extend([number, equal(libc::SYS_sendmmsg as u32, 0, 1), refuse]),
            Receive => out.extend([number, equal(libc::SYS_recvmsg as u32, 0, 1), refuse]),
            Packet => {
                out.extend([number, equal(libc::SYS_sendto as u32, 0, 3), address, equal(0, 0, 1), refuse]);
            }
            Probe => {
                out.extend([number, equal(libc::SYS_sendto as u32, 0, 3), address, equal(0, 1, 0), refuse]);
            }
        }
    }
    out.push(end(libc::SECCOMP_RET_ALLOW));
    out
}

/// Two fabrics, the path from the first to the second, and a batch.
pub(super) struct Ends {
    pub(super) a: UdpFabric,
    pub(super) b: UdpFabric,
    pub(super) path: PathId,
    pub(super) batch: TxBatch,
}

impl Ends {
    pub(super) fn between(mut a: UdpFabric, b: UdpFabric) -> Self {
        let dgid = Gid::from_ip(b.attr().local);
        let path = a.open_path(&AddressVector { dgid, ..AddressVector::default() }).unwrap();
        Self { a, b, path, batch: TxBatch::with_capacity(1 << 20) }
    }
    pub(super) fn new(salt: u32) -> Self {
        let mut ends = Self::between(open(2 * salt), open(2 * salt + 1));
        // The receiver knows the flow's numbers.
        ends.put(0, 1, 20);
        ends.send();
        assert_eq!(ends.receive(1), [packet(0, 20)]);
        ends
    }
    /// Packets of equal length: one train, as long as it is one.
    pub(super) fn put(&mut self, first: u32, count: u32, len: usize) {
        for n in first..first + count {
            self.batch.reserve(self.path, len).unwrap().copy_from_slice(&packet(n, len));
            self.batch.commit();
        }
    }
    pub(super) fn send(&mut self) {
        self.a.send(NOW, &mut self.batch);
    }
    pub(super) fn send_refused(&mut self, calls: &[Call], errno: i32) {
        let (a, batch) = (&mut self.a, &mut self.batch);
        refusing(calls, errno, move || a.send(NOW, batch));
    }
    pub(super) fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        // Loopback delivers before the send call returns.
        for _ in 0..count + 8 {
            self.b.recv(NOW, BUDGET, &mut |p| got.push(p.bytes.to_vec()));
        }
        got
    }
    /// The next Identification is what the kernel will give.
    #[track_caller]
    pub(super) fn expect_certain(&mut self) {
        let ours = self.a.end.sender.paths.get(self.path).unwrap().ident(0);
        assert_eq!(
            ours,
            self.a.end.sender.paths.kernel_ident(self.path),
            "the Identification that comes next"
        );
    }
}

pub(super) fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut p: Vec<u8> = (0..len).map(|i| (i as u32).wrapping_mul(7).wrapping_add(number) as u8).collect();
    p[5] = 0;
    p[8..12].copy_from_slice(&number.to_be_bytes());
    p
}

fn open(salt: u32) -> UdpFabric {
    addresses::at_free(salt, |addr| match UdpFabric::open(addr, &UdpOptions::default()) {
        Ok(f) => Some(f),
        Err(OpenError::InUse(_)) => None,
        Err(e) => panic!("{e}"),
    })
}

pub(super) fn counter(fabric: &UdpFabric, name: &str) -> u64 {
    let mut all: Vec<Counter> = Vec::new();
    fabric.counters(&mut all);
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
}

#[test]
fn what_the_kernel_has_no_room_for_stays_and_leaves_later() {
    let mut e = Ends::new(1);
    let probes = counter(&e.a, "tx_ident_probes");
    for (first, count) in [(1, 1), (2, 4)] {
        e.put(first, count, 24);
        e.send_refused(&[Packet, Train, Several], libc::EAGAIN);
        assert_eq!(e.batch.trains().len(), 1, "nothing left");
        assert!(e.a.next_deadline().is_some_and(|at| at > NOW), "it is tried again without being asked");
        assert_eq!(e.receive(1), Vec::<Vec<u8>>::new());
        e.send();
        assert!(e.batch.is_empty());
        assert_eq!(e.a.next_deadline(), None);
        let sent: Vec<_> = (first..first + count).map(|n| packet(n, 24)).collect();
        assert_eq!(e.receive(sent.len()), sent);
    }
    assert_eq!(counter(&e.a, "tx_blocked"), 2);
    assert_eq!(counter(&e.a, "tx_lost_no_buffers") + counter(&e.a, "tx_lost_other"), 0);
    assert_eq!(counter(&e.a, "tx_ident_probes"), probes, "the kernel used up no number");
    assert_eq!(counter(&e.b, "icrc_ident_solved"), 0);
    e.expect_certain();
}

#[test]
fn what_finds_no_buffers_is_lost_and_counted_and_the_identification_is_learned_again() {
    for (salt, calls, errno, name) in [
        (2, [Packet, Train], libc::ENOBUFS, "tx_lost_no_buffers"),
        (3, [Packet, Train], libc::ENOMEM, "tx_lost_no_buffers"),
        (4, [Packet, Several], libc::EPERM, "tx_lost_other"),
    ] {
        let mut e = Ends::new(salt);
        let probes = counter(&e.a, "tx_ident_probes");
        e.put(1, 1, 24);
        e.send_refused(&calls, errno);
        assert!(e.batch.is_empty());
        assert_eq!(counter(&e.a, name), 1, "{name}");
        assert_eq!(counter(&e.a, "tx_ident_probes"), probes, "only when it is needed");
        // As if the kernel had numbered what it threw away.
        e.a.end.sender.paths.use_up_ident(e.path);
        e.put(2, 3, 24);
        e.send();
        assert_eq!(counter(&e.a, "tx_ident_probes"), probes + 1);
        e.expect_certain();
        assert_eq!(e.receive(3), [packet(2, 24), packet(3, 24), packet(4, 24)]);
        e.put(5, 1, 24);
        e.send();
        assert_eq!(e.receive(1), [packet(5, 24)]);
        assert_eq!(counter(&e.a, "tx_ident_probes"), probes + 1, "once");
    }
}

#[test]
fn a_kernel_that_will_not_cut_trains_gets_packets_with_the_right_identification() {
    for (salt, errno) in [(5, libc::EIO), (6, libc::EINVAL), (7, libc::EOPNOTSUPP), (8, libc::EMSGSIZE)] {
        let mut e = Ends::new(salt);
        let probes = counter(&e.a, "tx_ident_probes");
        // As if the kernel had numbered the train and then refused it.
        e.a.end.sender.paths.use_up_ident(e.path);
        e.put(1, 5, 24);
        e.send_refused(&[Train], errno);
        assert!(e.batch.is_empty());
        assert!(!e.a.end.sender.paths.get(e.path).unwrap().cuts && e.a.end.sender.cuts);
        assert!(e.a.attr().notes.iter().any(|n| n.0 == "segmentation"), "people are told");
        // That a train is too long is believed when it is said twice.
        let probes = probes + 1 + u64::from(errno == libc::EMSGSIZE);
        assert_eq!(counter(&e.a, "tx_ident_probes"), probes);
        e.expect_certain();
        assert_eq!(e.receive(5), (1..6).map(|n| packet(n, 24)).collect::<Vec<_>>());
        // From now on without asking, also in more than one call.
        e.put(6, 40, 24);
        e.send();
        assert_eq!(e.receive(40), (6..46).map(|n| packet(n, 24)).collect::<Vec<_>>());
        e.expect_certain();
        assert_eq!(counter(&e.a, "tx_uncut_trains"), 2);
        assert_eq!(counter(&e.a, "tx_lost_other"), 0);
        assert_eq!(counter(&e.a, "tx_ident_probes"), probes);
    }
}

/// Says as a router that an earlier packet of the path was too long for the way. The next call on its socket is told.
fn tell_of_a_long_packet(e: &Ends) {
    let (IpAddr::V4(near), IpAddr::V4(far)) = (e.a.attr().local, e.b.attr().local) else { unreachable!() };
    let port = e.a.end.sender.paths.get(e.path).unwrap().src_port;
    let mut message = [0; 36];
    // Fragmentation needed, to 1400 bytes; the packet's IP header; its ports.
    (message[0], message[1], message[8], message[17]) = (3, 4, 0x45, libc::IPPROTO_UDP as u8);
    message[6..8].copy_from_slice(&1400_u16.to_be_bytes());
    message[20..24].copy_from_slice(&near.octets());
    message[24..28].copy_from_slice(&far.octets());
    message[28..30].copy_from_slice(&port.to_be_bytes());
    message[30..32].copy_from_slice(&ROCEV2_PORT.to_be_bytes());
    let sum: u32 = message.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let router = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    router.bind(&SocketAddr::from((far, 0)).into()).unwrap();
    router.send_to(&message, &SocketAddr::from((near, 0)).into()).unwrap();
}

#[test]
#[ignore = "needs root: a network namespace"]
fn that_an_earlier_packet_was_too_long_loses_no_other_and_says_nothing_of_trains() {
    for (salt, count, uncertain) in [(16, 1, false), (17, 4, false), (18, 1, true)] {
        // The kernel remembers what the router said.
        Namespace::new().unwrap().within(|| {
            let mut e = Ends::new(salt);
            if uncertain {
                e.a.end.sender.paths.use_up_ident(e.path);
                e.a.end.sender.paths.get_mut(e.path).unwrap().doubt_ident();
            }
            tell_of_a_long_packet(&e);
            e.put(1, count, 24);
            e.send();
            assert_eq!(e.receive(4), (1..=count).map(|n| packet(n, 24)).collect::<Vec<_>>());
            assert!(e.a.end.sender.paths.get(e.path).unwrap().cuts);
            assert!(!e.a.attr().notes.iter().any(|n| n.0 == "segmentation"), "{:?}", e.a.attr().notes);
            assert_eq!((counter(&e.a, "tx_lost_other"), counter(&e.a, "tx_shared_paths")), (0, 0));
            assert_eq!(counter(&e.b, "icrc_errors"), 0);
            e.expect_certain();
        });
    }
}

#[test]
#[cfg(not(loom))]
fn what_is_found_at_run_time_is_told_through_layers() {
    use crate::{AutoFabric, FaultPlan, Faulty, ShmOptions};
    let address = |salt| addresses::at_free(salt, |addr| UdpFabric::open(addr, &UdpOptions::default()).ok());
    let (a, b) = (address(42), address(43));
    let auto = AutoFabric::beside(a, &ShmOptions::default()).unwrap();
    let before = auto.notes();
    let mut a = Faulty::new(Box::new(auto), FaultPlan::default());
    let dgid = Gid::from_ip(b.attr().local);
    let path = a.open_path(&AddressVector { dgid, ..AddressVector::default() }).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    for n in 0..4 {
        batch.reserve(path, 24).unwrap().copy_from_slice(&packet(n, 24));
        batch.commit();
    }
    refusing(&[Train], libc::EIO, || a.send(NOW, &mut batch));
    // Packets behind each other, of one length, leave as a train.
    assert_eq!(a.notes().len(), before.len() + 1);
    assert!(a.notes().iter().any(|n| n.0 == "segmentation"), "{:?}", a.notes());
    assert!(before.iter().all(|note| a.notes().contains(note)));
}

#[test]
fn a_path_that_takes_no_trains_leaves_the_others_theirs() {
    let mut e = Ends::new(14);
    let mut other = open(40);
    let dgid = Gid::from_ip(other.attr().local);
    let path = e.a.open_path(&AddressVector { dgid, ..AddressVector::default() }).unwrap();
    e.put(1, 5, 24);
    e.send_refused(&[Train], libc::EMSGSIZE);
    assert_eq!(e.receive(5).len(), 5);
    let trains = counter(&e.a, "tx_uncut_trains");
    e.path = path;
    e.put(6, 5, 24);
    e.send();
    assert_eq!(counter(&e.a, "tx_uncut_trains"), trains, "the other path's are cut by the kernel");
    let mut got = Vec::new();
    other.recv(NOW, BUDGET, &mut |p| got.push(p.bytes.to_vec()));
    assert_eq!(got, (6..11).map(|n| packet(n, 24)).collect::<Vec<_>>());
}

#[test]
fn a_path_without_room_holds_up_no_other() {
    let mut e = Ends::new(15);
    let mut other = open(41);
    let dgid = Gid::from_ip(other.attr().local);
    let (full, free) = (e.path, e.a.open_path(&AddressVector { dgid, ..AddressVector::default() }).unwrap());
    // Trains to one peer find no room, and single packets to the other do: they are different calls.
    for n in 0..3 {
        e.path = full;
        e.put(10 * n, 4, 24);
        e.path = free;
        e.put(10 * n + 4, 1, 20);
    }
    e.send_refused(&[Train], libc::EAGAIN);
    let mut got = Vec::new();
    (0..8).for_each(|_| _ = other.recv(NOW, BUDGET, &mut |p| got.push(p.bytes.to_vec())));
    assert_eq!(got, [packet(4, 20), packet(14, 20), packet(24, 20)]);
    assert_eq!((e.batch.trains().len(), counter(&e.a, "tx_blocked")), (3, 1));
    // What comes meanwhile stands behind.
    e.path = full;
    e.put(30, 2, 24);
    e.send();
    let sent = [0..4, 10..14, 20..24, 30..32].into_iter().flatten();
    assert_eq!(e.receive(14), sent.map(|n| packet(n, 24)).collect::<Vec<_>>());
    assert!(e.batch.is_empty() && e.a.next_deadline().is_none());
}

#[test]
fn an_interface_that_goes_is_loss_that_is_counted_and_one_that_comes_back_is_used() {
    for (salt, errno) in [(11, libc::ENETDOWN), (12, libc::ENETUNREACH), (13, libc::EHOSTUNREACH)] {
        let mut e = Ends::new(salt);
        for n in 1..4 {
            e.put(n, 1, 24);
            e.send_refused(&[Packet], errno);
            assert!(e.batch.is_empty(), "nothing waits for an interface");
        }
        assert_eq!(counter(&e.a, "tx_lost_unreachable"), 3);
        e.put(4, 3, 24);
        e.send();
        assert_eq!(e.receive(3), [packet(4, 24), packet(5, 24), packet(6, 24)]);
        e.expect_certain();
    }
}

#[test]
fn a_single_packet_that_is_refused_says_nothing_of_trains() {
    let mut e = Ends::new(9);
    e.put(1, 1, 24);
    e.send_refused(&[Packet], libc::EINVAL);
    assert!(e.batch.is_empty() && e.a.end.sender.paths.get(e.path).unwrap().cuts);
    assert_eq!(counter(&e.a, "tx_lost_other"), 1);
    e.put(2, 4, 24);
    e.send();
    assert_eq!(e.receive(4).len(), 4);
    assert_eq!(counter(&e.a, "tx_uncut_trains"), 0);
}

#[test]
fn where_the_identification_cannot_be_learned_again_the_path_goes_by_the_shared_socket() {
    let mut e = Ends::new(10);
    e.put(1, 1, 24);
    e.put(2, 1, 28);
    e.put(3, 1, 20);
    e.send_refused(&[Packet, Probe, Several], libc::ENOBUFS);
    // The first was lost; the others left by the shared socket, which needs a header's control messages.
    assert!(e.batch.is_empty());
    let lost = counter(&e.a, "tx_lost_no_buffers");
    let got = e.receive(2);
    assert_eq!(lost + got.len() as u64, 3);
    assert_eq!(counter(&e.a, "tx_shared_paths"), 1);
    e.put(4, 4, 24);
    e.send();
    assert_eq!(e.receive(4), (4..8).map(|n| packet(n, 24)).collect::<Vec<_>>());
}
