//! An array of counters at one process, to which all add by atomic operations; one is read and reset by a swap.

use hca::portals::v4::*;
use hca::portals::{Node, NodeOptions};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PROCESSES: usize = 4;
const COUNTERS: usize = 16;
const ROUNDS: u64 = 100;
const PT: u32 = 0;
const HOME: Process = Process::logical(Rank(0));

/// Adds this process's number to each counter, `ROUNDS` times, and returns when all of it is done.
fn add(ni: &Ni, number: u64) -> Result<(), Failure> {
    let (ct, memory) = (ni.ct_alloc()?, ni.alloc(8)?);
    memory.store_u64(0, number);
    let md = ni.md_bind(&Md { options: MdOptions::EVENT_CT_ACK, ct: Some(ct), ..Md::new(memory) })?;
    for n in 0..ROUNDS * COUNTERS as u64 {
        let remote_offset = n % COUNTERS as u64 * 8;
        let put = Put { remote_offset, ack_req: AckReq::Ct, ..Put::new(md, 8, HOME, PT) };
        ni.atomic(&put, AtomicOp::Sum, Datatype::U64)?;
    }
    assert_eq!(ni.ct_wait(ct, ROUNDS * COUNTERS as u64)?.failure, 0);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let contexts: Vec<_> =
        (0..PROCESSES).map(|_| hca::open("loopback://counters")).collect::<Result<_, _>>()?;
    let nodes = Node::open_all(&contexts, &NodeOptions::default())?;
    let options = NiOptions::NO_MATCHING | NiOptions::LOGICAL;
    let nis: Vec<Ni> = (nodes.iter())
        .map(|node| Ni::init(node, options, None, &Limits::default()))
        .collect::<Result<_, _>>()?;
    let counters = nis[0].alloc(COUNTERS * 8)?;
    nis[0].pt_alloc(PtOptions::empty(), None, Some(PT))?;
    let le = Le { options: LeOptions::OP_PUT | LeOptions::OP_GET, ..Le::new(&counters) };
    nis[0].le_append(PT, &le, ListKind::Priority, 0)?;
    std::thread::scope(|scope| {
        for (number, ni) in (1..).zip(&nis) {
            scope.spawn(move || add(ni, number).expect("all is added"));
        }
    });
    nis[0].atomic_sync();
    let total = ROUNDS * (1..=PROCESSES as u64).sum::<u64>();
    assert!((0..COUNTERS).all(|n| counters.load_u64(n * 8) == total));
    // Counter 3 is read and reset at once.
    let (ni, eq) = (&nis[1], nis[1].eq_alloc(8)?);
    let (zero, before) = (ni.alloc(8)?, ni.alloc(8)?);
    let (put_md, get_md) =
        (ni.md_bind(&Md::new(zero))?, ni.md_bind(&Md { eq: Some(eq), ..Md::new(&before) })?);
    let fetch = Fetch { remote_offset: 3 * 8, ..Fetch::new(get_md, put_md, 8, HOME, PT) };
    ni.swap(&fetch, &[], AtomicOp::Swap, Datatype::U64)?;
    assert!(ni.eq_wait(eq)?.event.is_ok());
    assert_eq!((before.load_u64(0), counters.load_u64(3 * 8)), (total, 0));
    println!("{COUNTERS} counters of {total}, and one was reset");
    Ok(())
}
