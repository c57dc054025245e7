//! The processes of a job add to counters at rank 0, and each reads the sums back by a get:
//! `hca run -n 4 -- target/debug/examples/job_counters`.

use std::sync::Arc;

use hca::Job;
use hca::portals::v4::*;
use hca::portals::{Node, NodeOptions};

const PT: u32 = 0;
const COUNTERS: u64 = 16;
const ROUNDS: u64 = 50;
const HOME: Process = Process::logical(Rank(0));

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Arc::new(Job::from_env()?);
    let context = hca::open("auto://")?;
    let node = Node::join(&context, &job, NodeOptions::default())?;
    let ni = Ni::init(&node, NiOptions::NO_MATCHING | NiOptions::LOGICAL, None, &Limits::default())?;
    let bytes = COUNTERS as usize * 8;
    if job.rank() == 0 {
        ni.pt_alloc(PtOptions::empty(), None, Some(PT))?;
        let le = Le { options: LeOptions::OP_PUT | LeOptions::OP_GET, ..Le::new(ni.alloc(bytes)?) };
        ni.le_append(PT, &le, ListKind::Priority, 0)?;
    }
    job.barrier()?; // the counters are there

    let (done, own) = (ni.ct_alloc()?, ni.alloc(8)?);
    own.store_u64(0, u64::from(job.rank()) + 1);
    let md = ni.md_bind(&Md { options: MdOptions::EVENT_CT_ACK, ct: Some(done), ..Md::new(own) })?;
    for n in 0..ROUNDS * COUNTERS {
        let remote_offset = n % COUNTERS * 8;
        let put = Put { remote_offset, ack_req: AckReq::Ct, ..Put::new(md, 8, HOME, PT) };
        ni.atomic(&put, AtomicOp::Sum, Datatype::U64)?;
    }
    assert_eq!(ni.ct_wait(done, ROUNDS * COUNTERS)?.failure, 0);
    job.barrier()?; // all have added

    let (read, sums) = (ni.ct_alloc()?, ni.alloc(bytes)?);
    let md = ni.md_bind(&Md { options: MdOptions::EVENT_CT_REPLY, ct: Some(read), ..Md::new(&sums) })?;
    ni.get(&Get::new(md, bytes as u64, HOME, PT))?;
    assert_eq!(ni.ct_wait(read, 1)?.failure, 0);
    let all = ROUNDS * (1..=u64::from(job.size())).sum::<u64>();
    assert!((0..COUNTERS as usize).all(|n| sums.load_u64(n * 8) == all));
    println!("rank {} of {} reads {COUNTERS} counters of {all}", job.rank(), job.size());
    job.barrier()?; // rank 0 stays until all have read
    job.finalize()?;
    Ok(())
}
