//! What happens between post and completion, and what does not: no allocation, and no system call but
//! the network's. A system call is how a lock that is contended, a sleep or a memory mapping would show.
//!
//! One thread drives two adapters over UDP through the safe verbs.
#![deny(unsafe_code)]

#[path = "../../../hca-core/tests/counting/mod.rs"]
mod counting;
#[allow(dead_code, reason = "shared")]
#[path = "../filter/mod.rs"]
mod filter;

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use hca_core::Access;
use hca_fabric::{OpenError, UdpFabric, UdpOptions};
use hca_verbs::{
    Buf, CompletionQueue, Completions, ConnectOptions, Context, QueuePair, Rc, RemoteMr, SendRequest,
    SharedMr,
};
use softhca::{Options, Progress, SoftHca};

/// One end of a connection.
struct End {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    window: SharedMr,
    wcs: Completions,
    spare: Vec<Buf>,
}

fn open(progress: Progress) -> Context {
    let pid = std::process::id();
    for host in 1..=254 {
        let ip = Ipv4Addr::new(127, 200 + (pid >> 8 & 31) as u8, pid as u8, host);
        match UdpFabric::open(IpAddr::V4(ip), &UdpOptions::default()) {
            Ok(fabric) => {
                let options = Options { progress, ..Options::default() };
                return Context::new(SoftHca::open(Box::new(fabric), options).expect("an adapter opens"));
            }
            Err(OpenError::InUse(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no free loopback address");
}

fn end(progress: Progress) -> End {
    let context = open(progress);
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(512).unwrap();
    let qp = pd.qp::<Rc>(&cq).max_send_wr(128).max_recv_wr(128).access(Access::all()).build().unwrap();
    let window = pd.alloc_shared(4096, Access::all()).unwrap();
    let spare = pd.alloc_many(96, 64).unwrap();
    End { context, cq, qp, window, wcs: Completions::with_capacity(64), spare }
}

fn pair(progress: Progress) -> (End, End) {
    let (mut a, mut b) = (end(progress), end(progress));
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

#[test]
fn no_allocation_between_post_and_completion() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        allocates_nothing(progress);
    }
    let before = counting::calls();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(counting::calls() - before, 2, "the counter counts");
}

fn allocates_nothing(progress: Progress) {
    let (mut a, mut b) = pair(progress);
    let remote = b.window.remote();
    traffic(&mut a, &mut b, remote, 200);
    let sends = |e: &End| e.context.counter("send_calls").expect("the fabric counts its calls");
    let sends_before = sends(&a);
    let before = counting::calls();
    traffic(&mut a, &mut b, remote, 500);
    assert_eq!(counting::calls() - before, 0, "{progress}: allocations and frees in 2500 requests");
    // A post sends at most once; five posts and at most as many lone acknowledgements a round.
    assert!(sends(&a) - sends_before <= 500 * 10, "{} send calls", sends(&a) - sends_before);
    assert_eq!(b.window.load_u64(0), 700);
    drop((a.context, b.context));
}

const CHILD: &str = "HOT_PATH_CHILD";

/// This test once more in a process of its own, which ends at the first system call that is not allowed.
fn run_child(role: &str) -> std::process::ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "no_system_call_but_the_networks_between_post_and_completion", "--nocapture"])
        .env(CHILD, role)
        .status()
        .unwrap()
}

#[test]
fn no_system_call_but_the_networks_between_post_and_completion() {
    let Ok(role) = std::env::var(CHILD) else {
        for progress in ["inline", "adaptive"] {
            assert!(run_child(progress).success(), "{progress}: a system call beside the network's was made");
        }
        assert!(!run_child("cheat").success(), "the filter lets another system call pass");
        return;
    };
    let progress = if role == "adaptive" { Progress::Adaptive } else { Progress::Inline };
    let (mut a, mut b) = pair(progress);
    let remote = b.window.remote();
    traffic(&mut a, &mut b, remote, 100);
    let mut allowed = vec![
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvmmsg,
        libc::SYS_exit_group,
    ];
    if progress == Progress::Adaptive {
        // Where this thread got no processor for a tick, the adapter's thread stands guard and is woken; and while that
        // has the engine and no processor, this one looks in vain and gives way.
        allowed.extend([libc::SYS_write, libc::SYS_sched_yield]);
    }
    filter::allow_only(&allowed);
    traffic(&mut a, &mut b, remote, 200);
    if role == "cheat" {
        std::thread::yield_now();
    }
    filter::end_at_once();
}
