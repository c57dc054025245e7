//! Wall time between two processes, each beside its floor: ping-pong latency, bandwidth, message rate; and
//! what posting and polling cost inside of one.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use hca::{Completions, ConnectOptions, Inline, Rc, SendRequest, open_exactly};
use hca_benches::floor::{self, Floor};
use hca_perf::{Case, Limit, Op, Pair, Phase, Service, Setup, Size};

/// Floors are measured for so long.
const FLOOR_TIME: Duration = Duration::from_millis(200);

fn main() {
    hca_perf::peer_if_asked();
    floor::far_side_if_asked();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(10)
        .configure_from_args();
    let setup = Setup::new("udp://".parse().expect("it is a device's name"));
    match setup.cpus {
        Some(cpus) => between_processes(&mut criterion, &setup, cpus),
        None => eprintln!("two CPUs are needed for measuring between two processes; left out"),
    }
    inside_one_process(&mut criterion);
    criterion.final_summary();
}

/// A floor's time for one unit, as Criterion wants it: for `iters` units.
fn floor_time(
    floor: Floor,
    cpus: (usize, usize),
    unit_ns: impl Fn(floor::Figures) -> f64,
    iters: u64,
) -> Duration {
    let figures = floor::run(floor, cpus.0, cpus.1, FLOOR_TIME).expect("the floor can be measured");
    Duration::from_nanos((unit_ns(figures) * iters as f64) as u64)
}

fn between_processes(c: &mut Criterion, setup: &Setup, cpus: (usize, usize)) {
    let mut pair = Pair::start(setup).expect("the pair can be started");
    let rc = |op, size| Case { service: Service::Rc, op, size: Size::of(size), foreign: false };

    let mut group = c.benchmark_group("half round trip");
    for op in [Op::Send, Op::Write] {
        group.bench_function(BenchmarkId::new(op.to_string(), 8), |b| {
            b.iter_custom(|n| {
                pair.run(&rc(op, 8), Phase::Latency, Limit::Count(n)).expect("it runs").elapsed / 2
            });
        });
    }
    group.bench_function("floor: bare UDP", |b| {
        b.iter_custom(|n| floor_time(Floor::UdpPingPong, cpus, |f| f.half_rtt_ns, n));
    });
    group.finish();

    let mut group = c.benchmark_group("stream");
    for (op, size) in [(Op::Send, 8_u64), (Op::Write, 64 << 10), (Op::Write, 1 << 20), (Op::Read, 64 << 10)] {
        // Of small messages their number tells, of large ones the bytes.
        group.throughput(if size == 8 { Throughput::Elements(1) } else { Throughput::Bytes(size) });
        group.bench_function(BenchmarkId::new(op.to_string(), size), |b| {
            b.iter_custom(|n| {
                pair.run(&rc(op, size), Phase::Stream, Limit::Count(n)).expect("it runs").elapsed
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("floor: packets of 24 B", |b| {
        b.iter_custom(|n| floor_time(Floor::UdpRate, cpus, |f| 1e9 / f.packets_per_s, n));
    });
    for (name, floor) in [("floor: GSO+GRO", Floor::UdpGoodput), ("floor: TCP", Floor::TcpStream)] {
        group.throughput(Throughput::Bytes(64 << 10));
        group.bench_function(BenchmarkId::new(name, 64 << 10), |b| {
            b.iter_custom(|n| floor_time(floor, cpus, |f| 65_536e9 / f.bytes_per_s, n));
        });
    }
    group.finish();
}

fn inside_one_process(c: &mut Criterion) {
    let opened = open_exactly(&"udp://?progress=inline".parse().expect("a name")).expect("a device");
    let pd = opened.context().alloc_pd().expect("a protection domain");
    let mut cq = opened.context().create_cq(8192).expect("a queue");
    let mut qp = pd.qp::<Rc>(&cq).max_send_wr(4096).max_recv_wr(4096).build().expect("a queue pair");
    qp.connect(&qp.endpoint(), &ConnectOptions::default()).expect("it connects to itself");
    let mut wcs = Completions::with_capacity(64);

    c.bench_function("poll, empty", |b| b.iter(|| cq.poll(&mut wcs).len()));
    // The floor: a receive call on a UDP socket that has nothing.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_nonblocking(true).expect("it can be");
    let mut buf = [0; 64];
    c.bench_function("floor: receive call, empty", |b| b.iter(|| socket.recv(&mut buf).is_err()));

    let window = pd.alloc_shared(64, hca::Access::REMOTE_WRITE).expect("memory");
    let mut group = c.benchmark_group("a batch of 32 writes to itself");
    // The doorbell sends, so a post without it is what the queue costs.
    for (name, rung, completed) in
        [("posted", false, false), ("posted and sent", true, false), ("to its completion", true, true)]
    {
        group.bench_function(name, |b| {
            b.iter_custom(|n| {
                let mut spent = Duration::ZERO;
                for _ in 0..n {
                    let begun = Instant::now();
                    let mut batch = qp.batch();
                    for id in 1..=32 {
                        let write =
                            SendRequest::write(Inline(&[7; 8]), window.remote()).id(id).signaled(id == 32);
                        batch.post_send(write).expect("the queue has room");
                    }
                    if !rung {
                        spent += begun.elapsed();
                    }
                    batch.ring();
                    if rung && !completed {
                        spent += begun.elapsed();
                    }
                    while cq.poll(&mut wcs).len() == 0 {}
                    if completed {
                        spent += begun.elapsed();
                    }
                }
                spent
            });
        });
    }
    // The floor of posting: as many cache lines, written.
    let mut lines = vec![[0_u64; 8]; 32];
    group.bench_function("floor: 32 cache lines written", |b| {
        b.iter(|| std::hint::black_box(&mut lines).fill([7; 8]));
    });
    group.finish();
}
