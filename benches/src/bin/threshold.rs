//! From which length on foreign memory is fetched by process_vm rather than sent through the ring: both in interleaved
//! pairs, by length, hot and cold. The row is the ratio of the two bandwidths; above 1 the fetch is quicker. What is
//! shorter than the adapter fetches (`PROCESS_MIN`, `PROCESS_READ_MIN`) goes through the ring both times.
//!
//! `threshold [send|write|read][-hot|-cold] [KIB]` measures a part of it.
#![deny(unsafe_code)]

use std::time::Duration;

use clap::Parser;
use hca::DeviceUrl;
use hca_benches::duo::{self, Duo, ForeignOp, Kind};
use hca_benches::ratio::{interleave, summary};
use hca_perf::Failure;

const COLD_BYTES: usize = 256 << 20;
const TIME: Duration = Duration::from_millis(60);
const SIZES: [usize; 8] = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Parts of the table.
const PARTS: [&str; 9] =
    ["send", "send-hot", "send-cold", "write", "write-hot", "write-cold", "read", "read-hot", "read-cold"];

/// Measures foreign memory, fetched by process_vm beside sent through the ring.
#[derive(Parser)]
struct Args {
    /// Only this part
    #[arg(value_name = "PART", value_parser = PARTS)]
    only: Option<String>,
    /// Only lengths of so many KiB or more, as a look at one end of the table need not take minutes
    #[arg(value_name = "KIB", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=4096))]
    from: u16,
}

fn main() -> Result<(), Failure> {
    duo::child_if_asked();
    let Args { only, from } = Args::parse();
    let from = usize::from(from) << 10;
    let [a, b, ..] = *hca_perf::probe::cpus() else { return Err("two CPUs are needed".into()) };
    println!("op     bytes     memory  fetched GB/s  ring GB/s  ratio (low-high)  pairs placement");
    for (op, name) in [(ForeignOp::Send, "send"), (ForeignOp::Write, "write"), (ForeignOp::Read, "read")] {
        for cold in [false, true] {
            let memory = if cold { "cold" } else { "hot" };
            if only.as_deref().is_some_and(|o| !format!("{name}-{memory}").starts_with(o)) {
                continue;
            }
            for size in SIZES.into_iter().filter(|s| *s >= from) {
                let span = if cold { COLD_BYTES } else { size };
                let start = |url: &str| -> Result<Duo, Failure> {
                    let device: DeviceUrl = url.parse()?;
                    Duo::start(&device, (a, b), Kind::Foreign { op, span }, size)
                };
                let mut fetched = start("shm://threshold?progress=inline")?;
                let mut ring = start("shm://threshold?progress=inline&process_vm=no")?;
                let samples = interleave(
                    (a, b),
                    || fetched.foreign_bytes_per_s(TIME),
                    || ring.foreign_bytes_per_s(TIME),
                )?;
                if let Some(r) = summary(&samples) {
                    println!(
                        "{name:5} {size:8} {memory:7} {:12.2} {:10.2}  {:5.2} ({:.2}-{:.2})  {} {}",
                        r.ours / 1e9,
                        r.floor / 1e9,
                        r.median,
                        r.low,
                        r.high,
                        r.pairs,
                        r.placement
                    );
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_none_is_refused() {
        let parsed = |args: &[&str]| Args::try_parse_from([&["threshold"], args].concat()).is_ok();
        assert!(parsed(&[]) && PARTS.iter().all(|part| parsed(&[part, "64"])));
        for wrong in [&["sned"][..], &["send", "64k"], &["send", "4097"], &["send", "64", "1"]] {
            assert!(!parsed(wrong), "{wrong:?}");
        }
    }
}
