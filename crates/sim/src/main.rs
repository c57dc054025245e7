//! `hca-sim`: random workloads on random networks, one for each seed.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io::{self, ErrorKind, IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use hca_fabric::{Capture, Tap};
use hca_sim::{Mix, Report, Violation, Workload};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use thiserror::Error;

/// Runs random programs on simulated adapters and a hostile network, and checks every promise that
/// their services make. A violation prints the command that replays it, and ends with exit code 1.
#[derive(Parser)]
#[command(name = "hca-sim", version)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Run this seed only.
    #[arg(long, conflicts_with_all = ["seeds", "start"])]
    seed: Option<u64>,
    /// Nodes share machines, and reach each other there by shared memory, as adapters on `auto://` do.
    #[arg(long)]
    near: bool,
    /// Services that the programs do not use, separated by commas.
    #[arg(long, value_name = "SERVICES", value_delimiter = ',')]
    without: Vec<Without>,
    /// Print every event.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write every frame, as it was sent, to this pcapng file.
    #[arg(long, value_name = "FILE", requires = "seed")]
    capture: Option<PathBuf>,
    /// Threads, 1024 at most; each runs a seed at a time. 0: as many as there are CPUs.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    threads: u16,
    /// Go on after a violation, and list the seeds that failed.
    #[arg(long)]
    keep_going: bool,
}

/// The reason why the command fails.
#[derive(Debug, Error)]
enum Failure {
    /// A violation, or that something was not tested.
    #[error("{0}")]
    Found(String),
    /// The capture can't be written.
    #[error("hca-sim: {}: {source}", path.display())]
    Capture { path: PathBuf, source: io::Error },
    /// Standard output can't be written to.
    #[error("hca-sim: can't write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// A service that the programs may do without.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Without {
    /// Memory windows, which are bound and taken back while peers work through them
    Windows,
    /// ATOMIC WRITE and FLUSH
    Placement,
    /// Datagrams to multicast groups, of which both ends are members
    Multicast,
    /// Extended reliable connections (XRC)
    Xrc,
    /// Reliable datagrams.
    Rd,
    /// Connections and resolutions by a connection manager on each node.
    Cm,
}

impl Args {
    fn mix(&self) -> Mix {
        let with = |service| !self.without.contains(&service);
        Mix {
            windows: with(Without::Windows),
            placement: with(Without::Placement),
            multicast: with(Without::Multicast),
            xrc: with(Without::Xrc),
            rd: with(Without::Rd),
            cm: with(Without::Cm),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A panic in a run is part of its report.
    hca_sim::report_panics_only();
    let done = match args.seed {
        Some(seed) => one(&args, seed),
        None => many(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has gone, as `head` does once it has what it wants.
        Err(Failure::Output(e)) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            // There is nowhere to say that nobody reads.
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::FAILURE
        }
    }
}

fn workload(args: &Args) -> Workload {
    let near = if args.near { " --near" } else { "" };
    let names = args.without.iter().filter_map(|w| Some(w.to_possible_value()?.get_name().to_owned()));
    let names: Vec<_> = names.collect();
    let without = if names.is_empty() { String::new() } else { format!(" --without {}", names.join(",")) };
    let replay = format!("cargo run --release -p hca-sim -- --trace{near}{without}");
    Workload::new().mix(args.mix()).near(args.near).replay(replay)
}

fn one(args: &Args, seed: u64) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut workload = workload(args).print_trace(args.trace);
    let capture = match args.capture.as_deref() {
        Some(path) => Some((path, capture(path)?)),
        None => None,
    };
    if let Some((_, tap)) = &capture {
        workload = workload.tap(Some(Box::new(Arc::clone(tap))));
    }
    let found = workload.run(seed).map_err(|v| Failure::Found(v.to_string()));
    let written = capture.map_or(Ok(()), |(path, mut tap)| tap.flush().map_err(|e| of_capture(path, e)));
    let report = found?;
    let printed = print_summary(&report, args, begun.elapsed());
    let printed =
        printed.and_then(|()| writeln!(stdout(), "trace hash of seed {seed}: {:016x}", report.trace_hash));
    written?;
    Ok(printed?)
}

fn of_capture(path: &Path, source: io::Error) -> Failure {
    Failure::Capture { path: path.to_owned(), source }
}
fn capture(path: &Path) -> Result<Arc<Mutex<impl Tap + use<>>>, Failure> {
    let created = Capture::create(path).map_err(|e| of_capture(path, e))?;
    Ok(Arc::new(Mutex::new(created.with_wall_at_zero(Duration::ZERO))))
}

/// In so many runs everything that can happen is sure to happen.
const ALL_HAPPENS_FROM: u64 = 1000;

/// What the threads of a run share.
struct Shared {
    next: AtomicU64,
    stop: AtomicBool,
    sum: Mutex<Report>,
    violations: Mutex<Vec<Violation>>,
    bar: ProgressBar,
}

fn many(args: &Args) -> Result<(), Failure> {
    let begun = Instant::now();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if args.threads == 0 { cpus } else { args.threads.into() };
    let shared = Shared {
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        sum: Mutex::default(),
        violations: Mutex::default(),
        bar: progress_bar(args.seeds),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(args, &shared));
        }
    });
    shared.bar.finish_and_clear();
    let sum = *shared.sum.lock().expect("no thread panicked");
    let printed = print_summary(&sum, args, begun.elapsed());
    let mut violations = shared.violations.into_inner().expect("no thread panicked");
    violations.sort_by_key(|v| v.seed);
    if let Some(first) = violations.first() {
        let seeds: Vec<String> = violations.iter().map(|v| v.seed.to_string()).collect();
        let of_all = format!("{} of {} seeds failed: {}", seeds.len(), sum.runs, seeds.join(" "));
        return Err(Failure::Found(format!("{first}\n{of_all}")));
    }
    let printed = printed.and_then(|()| writeln!(stdout(), "no violation in {} seeds", HumanCount(sum.runs)));
    let all = sum.happenings(args.near, args.mix());
    let never: Vec<&str> = all.into_iter().filter(|(_, n)| *n == 0).map(|(what, _)| what.trim()).collect();
    if sum.runs >= ALL_HAPPENS_FROM && !never.is_empty() {
        let never = never.join(", ");
        return Err(Failure::Found(format!("these never happened, and so were not tested: {never}")));
    }
    Ok(printed?)
}

fn work(args: &Args, shared: &Shared) {
    let mut sum = Report::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let n = shared.next.fetch_add(1, Ordering::Relaxed);
        if n >= args.seeds {
            break;
        }
        match workload(args).run(args.start.wrapping_add(n)) {
            Ok(report) => sum += report,
            Err(violation) => {
                sum.runs += 1;
                shared.violations.lock().expect("no thread panics while it holds this").push(violation);
                if !args.keep_going {
                    shared.stop.store(true, Ordering::Relaxed);
                }
            }
        }
        shared.bar.inc(1);
    }
    *shared.sum.lock().expect("no thread panics while it holds this") += sum;
}

fn progress_bar(seeds: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} seeds, {per_sec}, {eta} left")
            .expect("the template is right");
    let bar = ProgressBar::new(seeds).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn print_summary(r: &Report, args: &Args, took: Duration) -> io::Result<()> {
    let mut out = stdout();
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["what", "how many"]);
    let moved = [
        ("seeds", r.runs),
        ("connections", r.connections),
        ("requests that succeeded", r.requests),
        ("messages received", r.messages),
        ("bytes moved", r.bytes),
        ("packets sent", r.net.sent),
        ("faults injected", r.net.faults() + r.crashes),
    ];
    let rest = [("comparisons of a whole memory", r.memory_checks), ("events", r.events)];
    for (what, n) in moved.into_iter().chain(r.happenings(args.near, args.mix())).chain(rest) {
        table.add_row([what.to_string(), HumanCount(n).to_string()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(out, "{table}")?;
    let virtual_time = Duration::from_nanos(r.virtual_ns);
    let recovery = Duration::from_nanos(r.recovery_ns);
    writeln!(
        out,
        "the longest wait of a request once all faults had ended: {:.1} ms",
        recovery.as_secs_f64() * 1e3
    )?;
    writeln!(out, "{:.1} s of virtual time in {:.1} s", virtual_time.as_secs_f64(), took.as_secs_f64())
}
