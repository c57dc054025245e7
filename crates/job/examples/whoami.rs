//! Prints this process's rank in its job, and the cards of the other processes.
//!
//! `cargo run -p hca-job --example whoami` runs one process; `hca run -n 4 target/debug/examples/whoami` runs four,
//! like `mpiexec.hydra -n 4 target/debug/examples/whoami`.

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
