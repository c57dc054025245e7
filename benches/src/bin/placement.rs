//! Costs of spinning, yielding and sleeping where processes share CPUs: every kind of wait in every placement, with
//! the built-in figures and with others.
//!
//! ```text
//! cargo run --release -p hca-benches --bin placement -- [--fabric shm,udp] [--placement NAME,..] [--load NAME,..]
//!     [--wait poll,block] [--progress MODE,..] [--setting WORDS,..] [--json] [--time SECONDS]
//! ```

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use hca::DeviceUrl;
use hca_benches::args::seconds;
use hca_benches::placed::{self, Job, Load, Outcome, Setting, Wait};
use hca_perf::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use softhca::{Patience, Progress};

const EXAMPLES: &str = "\
Examples:
  placement --setting built-in               every placement, load and wait, as it comes
  placement --load ping-pong --wait poll --progress inline --rounds 5
  placement --load ping-pong --wait block --progress adaptive --placement apart,together
  placement --load stream-4k,stream-64k --wait poll --progress inline --setting spin,look,built-in
  placement --load stream-64k --wait block --progress adaptive --setting sleep,look,built-in
  placement --fabric shm --json

All of it is over two thousand rows, and takes most of an hour. Settings differ by the wait: spin,
yield each look (each 16, 64, 256) and others for one that polls; sleep, look 5 us and longer for
one that blocks; where the adapter has a thread also thread sleeps, thread 5 us and longer. The
built-in one is in every list.

Columns: half of a round trip, or a READ from post to completion, p50 and p99 of the pair that
fares worst; messages and bytes a second of all pairs together; CPU time a second of all their
processes.";

/// Measures waits of processes that share CPUs.
#[derive(Parser)]
#[command(after_long_help = EXAMPLES)]
struct Args {
    /// What carries the messages
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm", "udp"])]
    fabric: Vec<Fabric>,
    /// Which processes run where
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["apart", "crowded", "together", "computing"])]
    placement: Vec<Placement>,
    /// What they do
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["ping-pong", "stream", "stream-4k", "stream-64k", "read"])]
    load: Vec<Load>,
    /// How programs wait
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["poll", "block"])]
    wait: Vec<Wait>,
    /// Who does the adapters' work
    #[arg(long, value_delimiter = ',', default_values = ["inline", "thread", "adaptive"])]
    progress: Vec<Progress>,
    /// Only settings that have one of these in their names, as `built-in`
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    setting: Vec<String>,
    /// One JSON object a line, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    time: Duration,
    /// How often each is run, in turns; the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fabric {
    /// Shared memory.
    Shm,
    /// UDP sockets.
    Udp,
}

impl Fabric {
    fn device(self) -> DeviceUrl {
        let url = match self {
            // A domain of its own, so that nobody else is in it.
            Self::Shm => format!("shm://placement-{}", std::process::id()),
            Self::Udp => "udp://".to_owned(),
        };
        url.parse().expect("it is a device's name")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Placement {
    /// Two processes, a CPU each.
    Apart,
    /// Four processes on two CPUs: two pairs, each on both.
    Crowded,
    /// Two processes on one CPU.
    Together,
    /// Two processes, a CPU each, on which another program computes all the time.
    Computing,
}

impl Placement {
    fn pairs(self, (a, b): (usize, usize)) -> Vec<(usize, usize)> {
        match self {
            Self::Apart | Self::Computing => vec![(a, b)],
            Self::Crowded => vec![(a, b), (b, a)],
            Self::Together => vec![(a, a)],
        }
    }
    fn computing(self, (a, b): (usize, usize)) -> Vec<usize> {
        if self == Self::Computing { vec![a, b] } else { Vec::new() }
    }
}

/// The name of a choice, as it is asked for.
fn name(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().expect("no choice is hidden").get_name().to_owned()
}

/// The figures that waits are measured with, each list beside the built-in ones.
fn settings(wait: Wait, progress: Progress) -> Vec<Setting> {
    let built_in = Patience::default();
    let setting = |name, patience| Setting { name, patience };
    let polling = |name, looks, looks_in_company, sleep_factor| {
        setting(name, Patience { looks, looks_in_company, sleep_factor, ..built_in })
    };
    let hold = |name, hold_percent| setting(name, Patience { hold_percent, ..built_in });
    let waiting = |name, us: u64| setting(name, Patience { wait_ns: us * 1000, ..built_in });
    let thread = |name, us: u64| setting(name, Patience { thread_ns: us * 1000, ..built_in });
    let mut all = vec![setting("built-in", built_in)];
    match wait {
        Wait::Poll => all.extend([
            polling("spin", u32::MAX, u32::MAX, 0),
            polling("yield each look", 1, 1, 0),
            polling("yield each 16", 16, 16, 0),
            polling("yield each 64", 64, 64, 0),
            polling("yield each 256", 256, 256, 0),
            polling("64, in company 1", 64, 1, 0),
            polling("64, in company 8, beside computing", 64, 8, built_in.sleep_factor),
            polling("256, in company 1, beside computing", 256, 1, built_in.sleep_factor),
            hold("hold 100 %", 100),
            hold("hold 400 %", 400),
        ]),
        Wait::Block => all.extend([
            waiting("sleep", 0),
            waiting("look 5 us", 5),
            waiting("look 20 us", 20),
            waiting("look 100 us", 100),
            waiting("look 200 us", 200),
        ]),
    }
    if progress != Progress::Inline {
        all.extend([
            thread("thread sleeps", 0),
            thread("thread 5 us", 5),
            thread("thread 20 us", 20),
            thread("thread 100 us", 100),
        ]);
    }
    all
}

/// One run.
struct Row {
    fabric: Fabric,
    placement: Placement,
    job: Job,
}

impl Row {
    fn names(&self) -> [String; 6] {
        let job = &self.job;
        [
            name(&self.fabric),
            name(&self.placement),
            name(&job.load),
            name(&job.wait),
            job.progress.to_string(),
            job.setting.name.to_owned(),
        ]
    }

    fn bytes_per_s(&self, o: &Outcome) -> f64 {
        o.rate * self.job.load.message_bytes() as f64
    }

    fn cells(&self, o: &Outcome) -> Vec<String> {
        let us = |ns: u64| if ns == 0 { String::new() } else { format!("{:.2}", ns as f64 / 1e3) };
        let bytes = if self.job.load.is_stream() {
            format!("{:.2}", self.bytes_per_s(o) / 1e9)
        } else {
            String::new()
        };
        let mut cells = self.names().to_vec();
        cells.extend([
            us(o.p50_ns),
            us(o.p99_ns),
            format!("{:.1}", o.rate / 1e3),
            bytes,
            format!("{:.2}", o.cpus),
        ]);
        cells
    }

    fn json(&self, o: &Outcome) -> serde_json::Value {
        let [fabric, placement, load, wait, progress, setting] = self.names();
        serde_json::json!({
            "fabric": fabric, "placement": placement, "load": load, "wait": wait, "progress": progress,
            "setting": setting, "p50_ns": o.p50_ns, "p99_ns": o.p99_ns, "rate": o.rate,
            "bytes_per_s": self.bytes_per_s(o), "cpus": o.cpus,
        })
    }
}

fn main() -> ExitCode {
    placed::child_if_asked();
    match all(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("placement: {e}");
            ExitCode::from(2)
        }
    }
}

/// All that was asked for.
fn rows(args: &Args) -> Vec<Row> {
    let asked =
        |s: &Setting| args.setting.is_empty() || args.setting.iter().any(|w| s.name.contains(w.as_str()));
    let time = args.time;
    let mut rows = Vec::new();
    for &fabric in &args.fabric {
        for &placement in &args.placement {
            for &load in &args.load {
                for &wait in &args.wait {
                    for &progress in &args.progress {
                        // Over shared memory, and inline, a READ is no work of the program that waits.
                        if load == Load::Read && (fabric == Fabric::Shm || progress == Progress::Inline) {
                            continue;
                        }
                        let settings = settings(wait, progress).into_iter().filter(asked);
                        rows.extend(settings.map(|setting| Row {
                            fabric,
                            placement,
                            job: Job { load, wait, progress, setting, time },
                        }));
                    }
                }
            }
        }
    }
    rows
}

fn all(args: &Args) -> Result<(), Failure> {
    let [a, b, ..] = *hca_perf::probe::cpus() else { return Err("two CPUs are needed".into()) };
    let rows = rows(args);
    if rows.is_empty() {
        return Err("nothing of that is measured: no wait has such a setting, or reads over shared memory or inline were asked for".into());
    }
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(u64::from(args.rounds) * rows.len() as u64), target);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}  {msg}");
    bar.set_style(style.expect("the template is well formed"));
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "fabric",
        "placement",
        "load",
        "wait",
        "progress",
        "setting",
        "p50 us",
        "p99 us",
        "k messages/s",
        "GB/s",
        "CPUs",
    ]);
    table.column_iter_mut().skip(6).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let mut outcomes = vec![Vec::new(); rows.len()];
    for _ in 0..args.rounds {
        for (row, outcomes) in rows.iter().zip(&mut outcomes) {
            bar.set_message(row.names().join(" "));
            let (pairs, computing) = (row.placement.pairs((a, b)), row.placement.computing((a, b)));
            match placed::run(&row.fabric.device(), &row.job, &pairs, &computing) {
                Ok(outcome) => outcomes.push(outcome),
                Err(e) => eprintln!("left out: {}: {e}", row.names().join(" ")),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if outcomes.iter().all(Vec::is_empty) {
        return Err("no run succeeded".into());
    }
    for (row, outcomes) in rows.iter().zip(&outcomes) {
        match Outcome::median(outcomes) {
            Some(outcome) if args.json => println!("{}", row.json(&outcome)),
            Some(outcome) => drop(table.add_row(row.cells(&outcome))),
            None => {}
        }
    }
    if !args.json {
        println!("{table}");
    }
    Ok(())
}
