//! Portals between processes of a job: by `hca run`, by `mpiexec.hydra`, over shared memory and UDP, at one address and
//! across two network namespaces, and a process that dies.

use std::os::fd::AsFd;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca::portals::v4::*;
use hca::portals::{Node, NodeOptions};
use hca_job::{Job, Settings};
use test_support::namespaces::{Namespace, Wire};

// The examples that `hca run` starts.
#[path = "../../hca/examples/global_em3d.rs"]
mod global_em3d;
#[path = "../../hca/examples/global_heat.rs"]
mod global_heat;
#[path = "../../hca/examples/global_ring.rs"]
mod global_ring;
#[path = "../../hca/examples/global_sorts.rs"]
mod global_sorts;
#[path = "../../hca/examples/job_counters.rs"]
mod job_counters;
#[path = "../../hca/examples/job_puts.rs"]
mod job_puts;

/// What the process of a job does, when it is this binary, and on which device.
const MODE: &str = "HCA_TEST_MODE";
const DEVICE: &str = "HCA_TEST_DEVICE";
/// The network namespaces of the processes, for each rank in turn; without it they are in the launcher's.
const NAMESPACES: &str = "HCA_TEST_NAMESPACES";

const PATIENCE: Duration = Duration::from_secs(100);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs this binary in each process of a job.
fn job(launcher: &mut Command, device: &str, mode: &str) -> Output {
    launcher.arg(std::env::current_exe().unwrap());
    launcher.args(["--exact", "process_of_a_job", "--ignored", "--nocapture"]);
    launcher.env_remove("HCA_DEVICE").env(MODE, mode).env(DEVICE, device);
    launcher.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    launcher.output().unwrap()
}

fn hca_run(size: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hca"));
    command.args(["run", "--timeout", "120", "-n", &size.to_string()]);
    command
}

fn all_are_done(out: &Output, size: u32) {
    let said = text(&out.stdout);
    assert!(out.status.success(), "{said}{}", text(&out.stderr));
    assert_eq!(said.matches("all is there\n").count(), size as usize, "{said}");
}

/// What a rank sends to another: as many bytes as are neither all eager nor all lent, and tell the two apart.
fn bytes(from: u32, to: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(7) as u8 ^ (from * 16 + to) as u8).collect()
}

const SHORT: usize = 100;
const LONG: usize = 100_000;

struct Here {
    job: Arc<Job>,
    ni: Ni,
    eq: EqHandle,
    pt: u32,
}

impl Here {
    fn join() -> Self {
        let job = Arc::new(Job::from_env_with(Settings { timeout: Duration::from_secs(110) }).unwrap());
        if let Ok(namespaces) = std::env::var(NAMESPACES) {
            let paths: Vec<_> = namespaces.split(' ').collect();
            enter(paths[job.rank() as usize % paths.len()]);
        }
        let context = hca::open(&std::env::var(DEVICE).unwrap()).unwrap();
        let node = Node::join(&context, &job, NodeOptions::default()).unwrap();
        let options = NiOptions::MATCHING | NiOptions::LOGICAL;
        let ni = Ni::init(&node, options, None, &Limits::default()).unwrap();
        let eq = ni.eq_alloc(1024).unwrap();
        let pt = ni.pt_alloc(PtOptions::empty(), Some(eq), Some(4)).unwrap();
        Self { job, ni, eq, pt }
    }
    fn rank(&self) -> u32 {
        self.job.rank()
    }
    fn others(&self) -> Vec<u32> {
        (0..self.job.size()).filter(|&rank| rank != self.rank()).collect()
    }
    /// The ranks before and behind this one, in a ring of three or more.
    fn neighbours(&self) -> Vec<u32> {
        let size = self.job.size();
        assert!(size > 2, "a ring of {size}");
        [1, size - 1].map(|distance| (self.rank() + distance) % size).into()
    }
    /// The next event of a kind; others are told of in `seen`.
    fn event(&self, kind: EventKind) -> Event {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (got, _) = self.ni.eq_poll(&[self.eq], Some(left)).unwrap().expect("an event in time");
            if got.event.kind == kind {
                return got.event;
            }
        }
    }
}

/// Has this thread, and what it starts, be in a network namespace.
fn enter(path: &str) {
    let namespace = std::fs::File::open(path).unwrap();
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
}

/// Every process puts a short and a long message to each of some others, and adds to a counter of each.
fn exchange(partners: fn(&Here) -> Vec<u32>) {
    let here = Here::join();
    let partners = partners(&here);
    let size = here.job.size() as usize;
    let inbox = here.ni.alloc(size * (SHORT + LONG)).unwrap();
    let counter = here.ni.alloc(8).unwrap();
    let ct = here.ni.ct_alloc().unwrap();
    let place = |rank: u32, len: usize| {
        let start = rank as usize * (SHORT + LONG) + if len == SHORT { 0 } else { SHORT };
        start..start + len
    };
    for &from in &partners {
        for len in [SHORT, LONG] {
            let me = Me {
                match_id: Source::logical(Some(Rank(from))),
                match_bits: len as u64,
                options: MeOptions::OP_PUT
                    | MeOptions::USE_ONCE
                    | MeOptions::EVENT_LINK_DISABLE
                    | MeOptions::EVENT_UNLINK_DISABLE,
                ..Me::new(inbox.slice(place(from, len)))
            };
            here.ni.me_append(here.pt, &me, ListKind::Priority, 0).unwrap();
        }
    }
    let me = Me {
        match_bits: 1,
        ct: Some(ct),
        options: MeOptions::OP_PUT
            | MeOptions::EVENT_CT_COMM
            | MeOptions::EVENT_COMM_DISABLE
            | MeOptions::EVENT_LINK_DISABLE,
        ..Me::new(&counter)
    };
    here.ni.me_append(here.pt, &me, ListKind::Priority, 0).unwrap();
    here.job.barrier().unwrap();

    let acks = here.ni.ct_alloc().unwrap();
    for &to in &partners {
        for len in [LONG, SHORT] {
            let source = here.ni.alloc(len).unwrap();
            source.write_at(0, &bytes(here.rank(), to, len));
            let md = Md { ct: Some(acks), options: MdOptions::EVENT_CT_ACK, ..Md::new(&source) };
            let md = here.ni.md_bind(&md).unwrap();
            let target = Process::logical(Rank(to));
            let put = Put {
                match_bits: len as u64,
                ack_req: AckReq::Ct,
                ..Put::new(md, len as u64, target, here.pt)
            };
            here.ni.put(&put).unwrap();
        }
        let one = here.ni.alloc(8).unwrap();
        one.store_u64(0, u64::from(here.rank()) + 1);
        let md = here.ni.md_bind(&Md::new(&one)).unwrap();
        let put = Put { match_bits: 1, ..Put::new(md, 8, Process::logical(Rank(to)), here.pt) };
        here.ni.atomic(&put, AtomicOp::Sum, Datatype::U64).unwrap();
    }
    for _ in 0..2 * partners.len() {
        let event = here.event(EventKind::Put);
        let (from, len) = (event.initiator.rank().0, event.mlength as usize);
        assert_eq!((event.ni_fail_type, event.match_bits), (NiFail::Ok, len as u64));
        let mut got = vec![0; len];
        inbox.read_at(place(from, len).start, &mut got);
        assert!(got == bytes(from, here.rank(), len), "{len} bytes of rank {from}");
    }
    let wanted = partners.len() as u64;
    let (count, _) = here.ni.ct_poll(&[(ct, wanted)], Some(PATIENCE)).unwrap().expect("counts in time");
    assert_eq!((count.success, count.failure), (wanted, 0));
    let sum: u64 = partners.iter().map(|rank| u64::from(*rank) + 1).sum();
    assert_eq!(counter.load_u64(0), sum);
    let (count, _) = here.ni.ct_poll(&[(acks, 2 * wanted)], Some(PATIENCE)).unwrap().expect("counts in time");
    assert_eq!((count.success, count.failure), (2 * wanted, 0));
    assert_eq!(here.ni.node().connections(), partners.len());
    here.job.barrier().unwrap();
    println!("all is there");
    here.job.finalize().unwrap();
}

/// Rank 1 dies with messages of the others under way to it; they hear of it, and go on with each other.
fn one_dies() {
    let here = Here::join();
    let inbox = here.ni.alloc(LONG).unwrap();
    let options = MeOptions::OP_PUT | MeOptions::OP_GET | MeOptions::EVENT_LINK_DISABLE;
    let me = Me { ignore_bits: u64::MAX, options, ..Me::new(&inbox) };
    here.ni.me_append(here.pt, &me, ListKind::Priority, 0).unwrap();
    here.job.barrier().unwrap();
    if here.rank() == 1 {
        // It hears one message, and is gone as by a kill: nothing is said goodbye to.
        here.event(EventKind::Put);
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
    let eq = here.ni.eq_alloc(1024).unwrap();
    let md = here.ni.md_bind(&Md { eq: Some(eq), ..Md::new(&inbox) }).unwrap();
    let dead = Process::logical(Rank(1));
    let failed = |event: &Event| event.ni_fail_type == NiFail::Undeliverable;
    here.ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, dead, here.pt) }).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "nobody says that rank 1 is gone");
        here.ni.get(&Get::new(md, 8, dead, here.pt)).unwrap();
        let got = here.ni.eq_wait(eq).unwrap();
        if failed(&got.event) {
            break;
        }
    }
    // The third one is there as before.
    let other = Process::logical(Rank(2 - here.rank()));
    let eq = here.ni.eq_alloc(16).unwrap();
    let md = here.ni.md_bind(&Md { eq: Some(eq), ..Md::new(&inbox) }).unwrap();
    here.ni.get(&Get::new(md, LONG as u64, other, here.pt)).unwrap();
    let (got, _) = here.ni.eq_poll(&[eq], Some(PATIENCE)).unwrap().expect("a reply in time");
    assert_eq!((got.event.kind, got.event.ni_fail_type), (EventKind::Reply, NiFail::Ok));
    println!("rank {} goes on", here.rank());
    // Whoever is done waits until the other has fetched its bytes, too.
    here.event(EventKind::Get);
    std::process::exit(0);
}

#[test]
#[ignore = "needs a launcher: other tests start it as a process of a job"]
fn process_of_a_job() {
    match std::env::var(MODE).unwrap().as_str() {
        "all to all" => exchange(Here::others),
        "neighbours" => exchange(Here::neighbours),
        "one dies" => one_dies(),
        "example job_puts" => job_puts::main().unwrap(),
        "example job_counters" => job_counters::main().unwrap(),
        "example global_em3d" => global_em3d::main().unwrap(),
        "example global_heat" => global_heat::main().unwrap(),
        "example global_ring" => global_ring::main().unwrap(),
        "example global_sorts" => global_sorts::main().unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn two_processes_find_each_other_and_talk() {
    for device in ["auto://", "udp://"] {
        all_are_done(&job(&mut hca_run(2), device, "all to all"), 2);
    }
}

#[test]
fn sixteen_processes_at_one_address_find_each_other_and_talk() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    for scheme in ["auto", "udp"] {
        let device = format!("{scheme}://127.89.{high}.{}?share=yes", low.clamp(1, 254));
        for mode in ["neighbours", "all to all"] {
            all_are_done(&job(&mut hca_run(16), &device, mode), 16);
        }
    }
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn sixteen_processes_at_two_addresses_of_two_namespaces_find_each_other_and_talk() {
    let wire = Wire::with_addresses(4500).unwrap();
    let namespaces = wire.0.each_ref().map(Namespace::path).join(" ");
    // One name serves both hosts.
    for device in ["auto://10.77.0.0/24?share=yes", "udp://10.77.0.0/24?share=yes", "raw://wire?share=yes"] {
        for mode in ["neighbours", "all to all"] {
            all_are_done(&job(hca_run(16).env(NAMESPACES, &namespaces), device, mode), 16);
        }
    }
}

#[test]
fn the_examples_of_jobs_put_lines_and_add_to_counters() {
    // The examples name their device themselves.
    for (example, lines) in [
        ("job_puts", ["rank 0 of 2 was put: rank 1 of process ", "rank 1 of 2 was put: rank 0 of process "]),
        ("job_counters", ["rank 0 of 2 reads 16 counters of 150", "rank 1 of 2 reads 16 counters of 150"]),
    ] {
        let out = job(&mut hca_run(2), "auto://", &format!("example {example}"));
        let said = text(&out.stdout);
        assert!(out.status.success(), "{example}: {said}{}", text(&out.stderr));
        assert!(lines.iter().all(|line| said.contains(line)), "{example}: {said}");
    }
}

#[test]
fn the_examples_of_global_memory_give_what_sequential_runs_give() {
    for (example, line) in [
        ("global_ring", "processes: 8, sum of their ranks: 28\n"),
        ("global_sorts", "8 processes sorted 16000 keys in two ways, as a sequential sort does\n"),
        ("global_em3d", "8 processes made 6 steps of 640 nodes, as a sequential run does\n"),
        ("global_heat", "8 processes, 96 rows, 40 steps: 6400.000 of heat, as in a sequential run\n"),
    ] {
        for device in ["auto://", "udp://"] {
            let mut launcher = hca_run(8);
            launcher.args(["--device", device]);
            let out = job(&mut launcher, device, &format!("example {example}"));
            let said = text(&out.stdout);
            assert!(out.status.success(), "{example}: {said}{}", text(&out.stderr));
            assert!(said.contains(line), "{example}: {said}");
        }
    }
}

#[test]
fn eight_processes_find_each_other_and_talk() {
    for device in ["auto://", "udp://"] {
        all_are_done(&job(&mut hca_run(8), device, "all to all"), 8);
    }
}

#[test]
#[ignore = "needs mpiexec.hydra, of the package mpich"]
fn processes_of_another_launcher_find_each_other_and_talk() {
    for device in ["auto://", "udp://"] {
        let mut hydra = Command::new("mpiexec.hydra");
        all_are_done(&job(hydra.args(["-n", "4"]), device, "all to all"), 4);
    }
}

#[test]
fn a_process_that_dies_is_undeliverable_and_the_others_go_on() {
    for device in ["auto://", "udp://"] {
        // No launcher, which would end the others.
        let folder = std::env::temp_dir().join(format!("hca-dies-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let start = |rank: u32| {
            let mut process = Command::new(std::env::current_exe().unwrap());
            let url = format!("file://{}?rank={rank}&size=3&id={}", folder.display(), &device[..3]);
            process.args(["--exact", "process_of_a_job", "--ignored", "--nocapture"]);
            process.env_remove("HCA_DEVICE").env("HCA_JOB", url).env(MODE, "one dies").env(DEVICE, device);
            process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let processes = [0, 1, 2].map(start);
        for (rank, process) in processes.into_iter().enumerate() {
            let out = process.wait_with_output().unwrap();
            let said = format!("{device}: {}{}", text(&out.stdout), text(&out.stderr));
            match rank {
                1 => assert_eq!(out.status.code(), None, "{said}"),
                _ => assert!(said.contains(&format!("rank {rank} goes on\n")), "{said}"),
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
