//! Says who it is in its job, and what the others published.
//!
//! `cargo run -p hca-job --example whoami` is alone; `hca run -n 4 target/debug/examples/whoami` are four, as are
//! `mpiexec.hydra -n 4 target/debug/examples/whoami`.

use hca_job::{Job, JobError};

fn main() -> Result<(), JobError> {
    let job = Job::from_env()?;
    let (rank, size) = (job.rank(), job.size());
    job.publish(format!("process {} of rank {rank}", std::process::id()).as_bytes())?;
    job.fence()?;
    let next = job.card((rank + 1) % size)?;
    println!("rank {rank} of {size} in job {:08x}: next is {}", job.id(), String::from_utf8_lossy(&next));
    // Nobody leaves while others still read.
    job.barrier()?;
    job.finalize()
}
