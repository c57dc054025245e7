//! A barrier in a tree, carried out by counting events and triggered puts: a process reports its arrival, and waits.

use std::sync::atomic::{AtomicUsize, Ordering};

use hca::portals::v4::*;
use hca::portals::{Node, NodeOptions};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const PROCESSES: u32 = 6;
const EPOCHS: u64 = 20;
/// Portals: that all of a branch are there goes up, the release comes down.
const UP: u32 = 1;
const DOWN: u32 = 2;

/// A portal that counts what comes.
fn counter(ni: &Ni, pt_index: u32) -> Result<CtHandle, Failure> {
    let ct = ni.ct_alloc()?;
    ni.pt_alloc(PtOptions::empty(), None, Some(pt_index))?;
    let options = LeOptions::OP_PUT | LeOptions::EVENT_CT_COMM;
    ni.le_append(pt_index, &Le { ct: Some(ct), options, ..Le::new(ni.alloc(0)?) }, ListKind::Priority, 0)?;
    Ok(ct)
}

fn run(ni: &Ni, [up, down]: [CtHandle; 2], there: &AtomicUsize) -> Result<(), Failure> {
    let (me, md) = (ni.id()?.rank().0, ni.md_bind(&Md::new(ni.alloc(0)?))?);
    let children: Vec<u32> = (2 * me + 1..2 * me + 3).filter(|&child| child < PROCESSES).collect();
    let to = |rank, pt_index| Put::new(md, 0, Process::logical(Rank(rank)), pt_index);
    for epoch in 1..=EPOCHS {
        let all = epoch * (1 + children.len() as u64);
        if me > 0 {
            ni.triggered_put(&to((me - 1) / 2, UP), up, all)?;
        }
        let (done, count) = if me == 0 { (up, all) } else { (down, epoch) };
        children.iter().try_for_each(|&child| ni.triggered_put(&to(child, DOWN), done, count))?;
        there.fetch_add(1, Ordering::SeqCst);
        ni.ct_inc(up, CtEvent { success: 1, failure: 0 })?;
        ni.ct_wait(done, count)?;
        assert!(there.load(Ordering::SeqCst) >= epoch as usize * PROCESSES as usize, "all are there");
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let contexts: Vec<_> =
        (0..PROCESSES).map(|_| hca::open("loopback://barrier")).collect::<Result<_, _>>()?;
    let nodes = Node::open_all(&contexts, &NodeOptions::default())?;
    let open = |node| Ni::init(node, NiOptions::NO_MATCHING | NiOptions::LOGICAL, None, &Limits::default());
    let nis: Vec<Ni> = nodes.iter().map(open).collect::<Result<_, _>>()?;
    let counters = nis.iter().map(|ni| Ok([counter(ni, UP)?, counter(ni, DOWN)?]));
    let counters: Vec<_> = counters.collect::<Result<_, Failure>>()?;
    let there = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (ni, counters) in nis.iter().zip(counters) {
            scope.spawn(move || run(ni, counters, there).expect("a barrier"));
        }
    });
    println!("{PROCESSES} processes met {EPOCHS} times");
    Ok(())
}
