//! Global memory: each process of a job stores into its neighbour's memory, and all add up what they have got.
//!
//!     hca run -n 8 target/debug/examples/global_ring

use hca::global::{Error, Process, Way};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = hca::open("auto://")?;
    let mut process = Process::start(&hca::Job::from_env()?, &context, Way::Verbs, 1 << 20)?;
    let sum = ring(&mut process)?;
    if process.rank() == 0 {
        println!("processes: {}, sum of their ranks: {sum}", process.size());
    }
    Ok(process.finish()?)
}

fn ring(process: &mut Process) -> Result<u64, Error> {
    let heard = process.spread::<u64>(1)?;
    let next = (process.rank() + 1) % process.size();
    process.store(heard.at(next, 0)?, process.rank() as u64)?;
    process.store_sync(size_of::<u64>())?;
    let mut sum = process.load(&heard, 0, 1)?;
    process.all_reduce(&mut sum, |a, b| a + b)?;
    Ok(sum[0])
}
