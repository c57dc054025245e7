//! The LogP parameters of VIs and of Active Messages, over verbs and over VIs, on one device.
//!
//! ```text
//! cargo run --release -p hca-benches --bin logp -- [--device URL] [--time SECONDS]
//! ```

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use hca::DeviceUrl;
use hca::am::Way;
use hca_benches::am::{self, Two};
use hca_benches::args::seconds;
use hca_benches::logp::{LogP, measure};
use hca_benches::via::{self, TwoVis};
use hca_perf::{Failure, Setup};

/// Measures LogP: bursts of short requests with a delay behind each, by the method of Culler, Liu, Martin and Yoshikawa.
#[derive(Parser)]
struct Args {
    /// The device of both processes
    #[arg(long, value_name = "URL", default_value = "shm://logp")]
    device: DeviceUrl,
    /// Seconds of a round trip measurement
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = seconds)]
    time: Duration,
}

fn main() -> ExitCode {
    am::child_if_asked();
    via::child_if_asked();
    match all(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("logp: {e}");
            ExitCode::from(2)
        }
    }
}

fn all(args: &Args) -> Result<(), Failure> {
    let cpus = Setup::new(args.device.clone()).cpus.ok_or("two CPUs are needed: one for each process")?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["layer", "RTT ns", "L ns", "o_send ns", "o_recv ns", "g ns", "G ns/KiB", "bulk GB/s"]);
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let mut add = |name: &str, p: LogP| {
        let figures =
            [p.round_trip, p.latency(), p.send, p.receive, p.gap].map(|figure| format!("{figure:.0}"));
        let bulk = p.byte_gap.map(|gap| [format!("{:.0}", 1024.0 * gap), format!("{:.2}", 1.0 / gap)]);
        table.add_row([name.to_owned()].into_iter().chain(figures).chain(bulk.unwrap_or_default()));
    };
    add("VIs", measure(&mut TwoVis::start(&args.device, cpus, args.time)?)?);
    for (name, way) in [("AM over verbs", Way::Verbs), ("AM over VIs", Way::Via)] {
        add(name, measure(&mut Two::start(&args.device, cpus, way)?)?);
    }
    println!("{table}");
    Ok(())
}
