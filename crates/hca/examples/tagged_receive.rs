//! Receives by tag, as MPI has them: a message that comes before its receive waits on the overflow list.

use hca::portals::v4::*;
use hca::portals::{Memory, Node, NodeOptions};

const PT: u32 = 4;
type Failure = Box<dyn std::error::Error>;
/// A process, its queue of events, and memory for what comes too early.
struct Mailbox(Ni, EqHandle, Memory);

impl Mailbox {
    fn open(node: &Node) -> Result<Self, Failure> {
        let ni = Ni::init(node, NiOptions::MATCHING | NiOptions::LOGICAL, None, &Limits::default())?;
        let (eq, early) = (ni.eq_alloc(64)?, ni.alloc(1 << 16)?);
        ni.pt_alloc(PtOptions::empty(), Some(eq), Some(PT))?;
        let quiet = MeOptions::EVENT_LINK_DISABLE | MeOptions::EVENT_COMM_DISABLE;
        let options = MeOptions::OP_PUT | MeOptions::MANAGE_LOCAL | quiet;
        let any = Me { options, ignore_bits: u64::MAX, ..Me::new(&early) };
        ni.me_append(PT, &any, ListKind::Overflow, 0)?;
        Ok(Self(ni, eq, early))
    }
    fn send(&self, tag: u64, data: &[u8]) -> Result<(), Failure> {
        let memory = self.0.alloc(data.len())?;
        memory.write_at(0, data);
        let md = self.0.md_bind(&Md::new(memory))?;
        let put = Put::new(md, data.len() as u64, Process::logical(Rank(1)), PT);
        Ok(self.0.put(&Put { match_bits: tag, ..put })?)
    }
    /// Asks for the message of a tag: it comes to this memory, if it is not here already.
    fn post(&self, tag: u64) -> Result<Memory, Failure> {
        let memory = self.0.alloc(64)?;
        let quiet = MeOptions::EVENT_LINK_DISABLE | MeOptions::EVENT_UNLINK_DISABLE;
        let options = MeOptions::OP_PUT | MeOptions::USE_ONCE | quiet;
        self.0.me_append(PT, &Me { options, match_bits: tag, ..Me::new(&memory) }, ListKind::Priority, 0)?;
        Ok(memory)
    }
    /// The message, and whether it came before it was asked for.
    fn wait(&self, posted: &Memory) -> Result<(Vec<u8>, bool), Failure> {
        let Event { kind, start, mlength, .. } = self.0.eq_wait(self.1)?.event;
        let early = kind == EventKind::PutOverflow;
        let memory = if early { &self.2 } else { posted };
        let at = (start - memory.addr()) as usize;
        Ok((memory.slice(at..at + mlength as usize).to_vec(), early))
    }
}

fn main() -> Result<(), Failure> {
    let contexts = [hca::open("loopback://tags")?, hca::open("loopback://tags")?];
    let nodes = Node::open_all(&contexts, &NodeOptions::default())?;
    let (a, b) = (Mailbox::open(&nodes[0])?, Mailbox::open(&nodes[1])?);
    let posted = b.post(3)?;
    (1..=3).try_for_each(|tag| a.send(tag, &[tag as u8; 10]))?;
    assert_eq!(b.wait(&posted)?, (vec![3; 10], false));
    for tag in [2, 1] {
        assert_eq!(b.wait(&b.post(tag)?)?, (vec![tag as u8; 10], true));
    }
    println!("a message found its receive, and two receives found their message");
    Ok(())
}
