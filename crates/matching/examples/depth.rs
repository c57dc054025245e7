//! The cost of a message by the depth of the match list.
//!
//! Exact entries: a message for any of n posted entries, with its event, and a new post of the entry. Wildcards: a
//! message for the last of n entries, beside the time for reading the bytes of their array. Run it with `--release`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hca_matching::*;

const ROUNDS: usize = 9;
/// Without optimisation the figures mean nothing, and a few turns show that it runs.
const LESS: u32 = if cfg!(debug_assertions) { 1000 } else { 1 };

fn interface() -> Result<(Interface, EqHandle, u32), Error> {
    let limits = Limits { max_entries: 1 << 18, max_list_size: 1 << 18, ..Limits::default() };
    let mut ni = Interface::new(Config { limits, seed: 1, ..Config::default() });
    let eq = ni.eq_alloc(1024)?;
    let pt = ni.pt_alloc(PortalOptions::empty(), Some(eq), None)?;
    Ok((ni, eq, pt))
}

fn exact(bits: u64) -> Entry {
    let options =
        Options::OP_PUT | Options::USE_ONCE | Options::EVENT_LINK_DISABLE | Options::EVENT_UNLINK_DISABLE;
    let region = Region { length: 64, options, ..Region::default() };
    Entry::new(Criteria::exactly(Process::physical(Nid(1), Pid(2)), bits), region)
}

/// Nanoseconds of the best of some rounds.
fn best(turns: u32, mut round: impl FnMut()) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed());
    }
    best.as_nanos() as f64 / f64::from(turns)
}

fn exact_cost(n: u64, step: u64) -> Result<f64, Error> {
    let (mut ni, eq, pt) = interface()?;
    for bits in 0..n {
        ni.append(pt, ListKind::Priority, exact(bits))?;
    }
    let initiator = Process::physical(Nid(1), Pid(2));
    let mut bits = 0;
    let turns = 200_000 / LESS;
    Ok(best(turns, || {
        for _ in 0..turns {
            bits = (bits + step) % n;
            let header = Header { pt_index: pt, match_bits: bits, initiator, length: 8, ..Header::default() };
            let Verdict::Accept(delivery) = ni.deliver(&header) else { panic!("{bits} is posted") };
            let _ = black_box(ni.complete(delivery, NiFail::Ok));
            black_box(ni.eq_get(eq).unwrap());
            ni.append(pt, ListKind::Priority, exact(bits)).unwrap();
        }
    }))
}

/// Reading 256 bytes, about what an entry and its links are, of n such pieces at random: one, then the next.
fn memory_cost(n: u64, step: u64) -> f64 {
    let memory = vec![[0u64; 32]; n as usize];
    let (mut at, turns) = (0, 200_000 / LESS);
    best(turns, || {
        for _ in 0..turns {
            at = (at + step) % n;
            at += black_box(&memory)[at as usize].iter().step_by(8).sum::<u64>();
        }
    })
}

fn wildcard_cost(n: u64, by_source: bool) -> Result<(f64, f64, usize), Error> {
    let (mut ni, _, pt) = interface()?;
    for bits in 0..n {
        let options = Options::OP_PUT | Options::EVENT_COMM_DISABLE | Options::EVENT_LINK_DISABLE;
        let region = Region { length: 64, options, ..Region::default() };
        let criteria = match by_source {
            false => Criteria { bits: bits << 8, ignore: 0xff, ..Criteria::ANY },
            true => Criteria { source: Source::physical(Some(Nid(bits as u32)), None), ..Criteria::ANY },
        };
        ni.append(pt, ListKind::Priority, Entry::new(criteria, region))?;
    }
    let initiator = Process::physical(Nid(n as u32 - 1), Pid(7));
    let header =
        Header { pt_index: pt, match_bits: (n - 1) << 8 | 7, initiator, length: 8, ..Header::default() };
    let turns = 20_000 / LESS;
    let matching = best(turns, || {
        for _ in 0..turns {
            let Verdict::Accept(delivery) = ni.deliver(black_box(&header)) else { panic!("it is posted") };
            let _ = black_box(ni.complete(delivery, NiFail::Ok));
        }
    });
    let mut bytes = 0;
    let stream = best(turns, || {
        for _ in 0..turns {
            let (read, sum) = black_box(&ni).wildcard_stream(pt, ListKind::Priority).unwrap();
            bytes = read;
            black_box(sum);
        }
    });
    Ok((matching, stream, bytes))
}

fn main() -> Result<(), Error> {
    println!("exact entries          in order     at random   memory at random");
    for n in [1, 10, 100, 1_000, 10_000, 100_000] {
        // A step without a common divisor comes by all of them.
        let (in_order, at_random) = (exact_cost(n, 1)?, exact_cost(n, 61_803)?);
        let memory = memory_cost(n, 61_803);
        println!("{n:>7}           {in_order:>8.1} ns   {at_random:>8.1} ns   {memory:>8.1} ns");
    }
    for by_source in [false, true] {
        println!(
            "wildcards     message     their bytes             ratio   that differ in {}",
            if by_source { "their source" } else { "their bits" }
        );
        for n in [1, 10, 100, 1_000, 10_000] {
            let (matching, stream, bytes) = wildcard_cost(n, by_source)?;
            let ratio = matching / stream;
            println!("{n:>7}   {matching:>8.1} ns   {stream:>8.1} ns of {bytes:>7} B   {ratio:>5.2}");
        }
    }
    Ok(())
}
