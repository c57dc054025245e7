//! Each process of a job puts a line to every other one, and waits for theirs:
//! `hca run -n 4 -- target/debug/examples/job_puts`. Alone, it puts its line to itself.

use std::sync::Arc;

use hca::Job;
use hca::portals::v4::*;
use hca::portals::{Node, NodeOptions};

const PT: u32 = 4;
const LINE: usize = 64;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Arc::new(Job::from_env()?);
    let context = hca::open("auto://")?;
    let node = Node::join(&context, &job, NodeOptions::default())?;
    let ni = Ni::init(&node, NiOptions::MATCHING | NiOptions::LOGICAL, None, &Limits::default())?;
    let (rank, size) = (job.rank(), job.size());

    // A place for the line of each process, which matches its rank alone.
    let (eq, inbox) = (ni.eq_alloc(64)?, ni.alloc(size as usize * LINE)?);
    ni.pt_alloc(PtOptions::empty(), Some(eq), Some(PT))?;
    let place = |rank: u32| rank as usize * LINE..(rank as usize + 1) * LINE;
    for from in 0..size {
        let options = MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE;
        let match_id = Source::logical(Some(Rank(from)));
        let me = Me { match_id, options, ..Me::new(inbox.slice(place(from))) };
        ni.me_append(PT, &me, ListKind::Priority, 0)?;
    }
    job.barrier()?; // all places are there

    let (line, acks) = (format!("rank {rank} of process {}", std::process::id()), ni.ct_alloc()?);
    let memory = ni.alloc(line.len())?;
    memory.write_at(0, line.as_bytes());
    let md = ni.md_bind(&Md { ct: Some(acks), options: MdOptions::EVENT_CT_ACK, ..Md::new(&memory) })?;
    for to in 0..size {
        let put = Put::new(md, line.len() as u64, Process::logical(Rank(to)), PT);
        ni.put(&Put { ack_req: AckReq::Ct, ..put })?;
    }
    for _ in 0..size {
        let Event { initiator, mlength, ni_fail_type, .. } = ni.eq_wait(eq)?.event;
        assert_eq!(ni_fail_type, NiFail::Ok);
        let from = initiator.rank().0;
        let mut text = vec![0; mlength as usize];
        inbox.read_at(place(from).start, &mut text);
        let text = String::from_utf8(text)?;
        assert!(text.starts_with(&format!("rank {from} of process ")), "{text}");
        println!("rank {rank} of {size} was put: {text}");
    }
    assert_eq!(ni.ct_wait(acks, size.into())?.failure, 0);
    job.barrier()?; // nobody leaves while others put
    job.finalize()?;
    Ok(())
}
