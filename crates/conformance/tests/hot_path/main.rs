//! The hot path between post and completion: no allocation, and no system call except the network's. A contended lock,
//! a sleep or a memory mapping would show as a system call.
//!
//! One thread drives two adapters through the safe verbs: over UDP, over shared memory, over both as `auto://` has it,
//! and those of the ConnectX driver.
#![deny(unsafe_code)]

mod driver;

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use hca_core::Access;
use hca_fabric::{AutoFabric, Fabric, OpenError, ShmFabric, ShmOptions, UdpFabric, UdpOptions};
use hca_verbs::{
    Buf, CompletionQueue, Completions, ConnectOptions, Context, QueuePair, Rc, RemoteMr, SendRequest,
    SharedMr,
};
use softhca::{Options, Progress, SoftHca};
use test_support::counting::{self, Counting};
use test_support::filter;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One end of a connection.
struct End {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    window: SharedMr,
    wcs: Completions,
    spare: Vec<Buf>,
}

const NETWORKS: [&str; 3] = ["udp", "shm", "auto"];

fn open(network: &str, progress: Progress) -> Context {
    let fabric = open_network(network);
    Context::new(SoftHca::open(fabric, Options { progress, ..Options::default() }).expect("an adapter opens"))
}

fn open_network(network: &str) -> Box<dyn Fabric> {
    let pid = std::process::id();
    if network == "shm" {
        let domain = format!("hot-path.{pid}");
        return Box::new(ShmFabric::open(&domain, &ShmOptions::default()).expect("there is shared memory"));
    }
    for host in 1..=254 {
        let ip = Ipv4Addr::new(127, 200 + (pid >> 8 & 31) as u8, pid as u8, host);
        let udp = UdpOptions::default();
        let opened = if network == "auto" {
            AutoFabric::open(IpAddr::V4(ip), &udp, &ShmOptions::default())
                .map(|f| Box::new(f) as Box<dyn Fabric>)
        } else {
            UdpFabric::open(IpAddr::V4(ip), &udp).map(|f| Box::new(f) as Box<dyn Fabric>)
        };
        match opened {
            Ok(fabric) => return fabric,
            Err(OpenError::InUse(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no free loopback address");
}

fn end(context: Context) -> End {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(512).unwrap();
    let qp = pd.qp::<Rc>(&cq).max_send_wr(128).max_recv_wr(128).access(Access::all()).build().unwrap();
    let window = pd.alloc_shared(4096, Access::BY_PEERS - Access::FLUSH_GLOBAL).unwrap();
    let spare = pd.alloc_many(96, 64).unwrap();
    End { context, cq, qp, window, wcs: Completions::with_capacity(64), spare }
}

fn pair(network: &str, progress: Progress) -> (End, End) {
    connected(end(open(network, progress)), end(open(network, progress)))
}

/// Both, connected to each other and with receive requests.
fn connected(mut a: End, mut b: End) -> (End, End) {
    a.qp.control().connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    b.qp.control().connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
    for e in [&mut a, &mut b] {
        for _ in 0..64 {
            let buf = e.spare.pop().unwrap();
            e.qp.post_recv(buf).unwrap();
        }
    }
    (a, b)
}

impl End {
    /// Another end of the same adapter.
    fn again(&self) -> Self {
        end(self.context.clone())
    }
    /// Polls once, reposts receives, keeps other buffers. Returns messages received and requests completed.
    fn poll(&mut self) -> (u32, u32) {
        let (mut received, mut sent) = (0, 0);
        for mut wc in self.cq.poll(&mut self.wcs) {
            assert!(wc.error().is_none(), "{:?}", wc.error());
            if wc.opcode.is_recv() {
                received += 1;
                let buf = wc.take_buf().expect("a receive gives its buffer back");
                self.qp.post_recv(buf).unwrap();
            } else {
                sent += 1;
                self.spare.extend(wc.take_bufs());
            }
        }
        (received, sent)
    }
}

/// Every kind of request, `rounds` times, until all have completed.
fn traffic(a: &mut End, b: &mut End, remote: RemoteMr, rounds: u32) {
    for _ in 0..rounds {
        let buf = a.spare.pop().expect("a buffer is free");
        a.qp.send(buf).unwrap();
        a.qp.send_inline(b"inline").unwrap();
        let local = a.window.range(0..8);
        a.qp.post_send(SendRequest::write(local.clone(), remote.range(64..72)).signaled(false)).unwrap();
        a.qp.read(local.clone(), remote.range(128..136)).unwrap();
        a.qp.post_send(SendRequest::fetch_add(local, remote.range(0..8), 1)).unwrap();
        let (mut received, mut sent) = (0, 0);
        while (received, sent) != (2, 4) {
            sent += a.poll().1;
            received += b.poll().0;
        }
    }
}

/// Traffic until the adapters know each other: over shared memory until the peer's window is mapped here, which it is
/// some turns after a request has asked for it. Returns the rounds.
fn acquaint(a: &mut End, b: &mut End, remote: RemoteMr, network: &str) -> u32 {
    let mut rounds = 0;
    loop {
        traffic(a, b, remote, 100);
        rounds += 100;
        let counters = a.context.counters();
        let is_mapped = counters.iter().any(|c| c.name.ends_with("regions_mapped_now") && c.value > 0);
        if network == "udp" || is_mapped {
            return rounds;
        }
        assert!(rounds < 1_000_000, "{network}: the peer's window is not mapped");
    }
}

#[test]
fn no_allocation_between_post_and_completion() {
    for network in NETWORKS {
        for progress in [Progress::Inline, Progress::Adaptive] {
            allocates_nothing(network, progress);
        }
    }
    let before = counting::calls();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(counting::calls() - before, 2, "the counter counts");
}

fn allocates_nothing(network: &str, progress: Progress) {
    let (mut a, mut b) = pair(network, progress);
    let remote = b.window.remote();
    let before = acquaint(&mut a, &mut b, remote, network);
    traffic(&mut a, &mut b, remote, 100);
    let sends = |e: &End| match network {
        "shm" => 0,
        _ => e.context.counter("send_calls").expect("the fabric counts its calls"),
    };
    let sends_before = sends(&a);
    let calls_before = counting::calls();
    traffic(&mut a, &mut b, remote, 500);
    let calls = counting::calls() - calls_before;
    assert_eq!(calls, 0, "{network}, {progress}: allocations and frees in 2500 requests");
    // A post sends at most once; five posts and at most as many lone acknowledgements a round. Shared memory takes
    // none.
    let most = if network == "udp" { 500 * 10 } else { 0 };
    let made = sends(&a) - sends_before;
    assert!(made <= most, "{network}, {progress}: {made} send calls");
    assert_eq!(b.window.load_u64(0), u64::from(before) + 600);
    drop((a.context, b.context));
}

/// The adapters have met, and the connection is new. The peer's answer to the question for its memory allocates, and comes
/// within the READ where this thread had to wait for a CPU: so the fewest calls of some attempts are looked at.
#[test]
fn the_first_read_behind_a_connect_allocates_nothing() {
    const ATTEMPTS: usize = 8;
    for network in NETWORKS {
        for progress in [Progress::Inline, Progress::Adaptive] {
            let (mut a, mut b) = pair(network, progress);
            let remote = b.window.remote();
            acquaint(&mut a, &mut b, remote, network);
            let mut attempts = (0..ATTEMPTS).map(|_| calls_of_a_first_read(&a, &b));
            assert!(
                attempts.any(|calls| calls == 0),
                "{network}, {progress}: a first READ allocates or frees"
            );
        }
    }
}

/// Allocations and frees of the first READ of a new connection between these adapters.
fn calls_of_a_first_read(a: &End, b: &End) -> u64 {
    let (mut a, mut b) = connected(a.again(), b.again());
    // The queues learn of their new queue pairs by a poll.
    assert_eq!((a.poll(), b.poll()), ((0, 0), (0, 0)));
    let before = counting::calls();
    a.qp.read(a.window.range(0..8), b.window.remote().range(128..136)).unwrap();
    while a.poll().1 == 0 {
        b.poll();
    }
    counting::calls() - before
}

const CHILD: &str = "HOT_PATH_CHILD";

/// This test once more in a process of its own, which ends at the first system call that is not allowed.
fn run_child(test: &str, role: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, role)
        .status()
        .unwrap()
}

#[test]
fn no_system_call_but_the_networks_between_post_and_completion() {
    let Ok(role) = std::env::var(CHILD) else {
        let run = |role: &str| run_child("no_system_call_but_the_networks_between_post_and_completion", role);
        for network in NETWORKS {
            for progress in ["inline", "adaptive"] {
                let role = format!("{network} {progress}");
                assert!(run(&role).success(), "{role}: a system call beside the network's was made");
            }
            let cheat = run(&format!("{network} cheat"));
            assert_eq!(cheat.signal(), Some(libc::SIGSYS), "the filter lets another call pass");
        }
        return;
    };
    let (network, role) = role.split_once(' ').expect("a network, and what to do");
    let progress = if role == "adaptive" { Progress::Adaptive } else { Progress::Inline };
    let (mut a, mut b) = pair(network, progress);
    let remote = b.window.remote();
    acquaint(&mut a, &mut b, remote, network);
    let mut allowed = vec![
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvmmsg,
        libc::SYS_exit_group,
    ];
    if network != "udp" {
        // Once a tick the sockets by which peers meet are looked at, and rings that were idle are parked.
        allowed.extend([
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_membarrier,
        ]);
    }
    if progress == Progress::Adaptive {
        // Where this thread got no processor for a tick, the adapter's thread stands guard and is woken, or, if it met
        // this one at the engine, is told of packets again; and while that has the engine and no processor, this one
        // looks in vain and gives way.
        allowed.extend([libc::SYS_write, libc::SYS_epoll_ctl, libc::SYS_sched_yield]);
    }
    filter::allow_only(&allowed);
    traffic(&mut a, &mut b, remote, 200);
    if role == "cheat" {
        std::thread::yield_now();
    }
    filter::end_at_once();
}
