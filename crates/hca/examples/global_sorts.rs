//! Sample sort and radix sort in global memory: `hca run -n 8 target/debug/examples/global_sorts`. Each process compares
//! its part with that of a sequential sort.

use hca::global::{Error, Process, Way};

/// Keys of each process.
const KEYS: usize = 2000;
/// Samples of each process.
const SAMPLES: usize = 8;
/// The values of a digit of the radix sort.
const DIGITS: usize = 256;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = hca::open("auto://")?;
    let mut process = Process::start(&hca::Job::from_env()?, &context, Way::Verbs, 1 << 20)?;
    let (rank, size) = (process.rank(), process.size());
    let mut expected: Vec<u32> = (0..size).flat_map(keys).collect();
    expected.sort_unstable();

    let (first, part) = sample_sort(&mut process)?;
    assert_eq!(part, expected[first..first + part.len()], "sample sort, process {rank}");
    assert_eq!(
        radix_sort(&mut process)?,
        expected[rank * KEYS..(rank + 1) * KEYS],
        "radix sort, process {rank}"
    );
    if rank == 0 {
        println!("{size} processes sorted {} keys in two ways, as a sequential sort does", size * KEYS);
    }
    Ok(process.finish()?)
}

/// The keys that a process has in the beginning.
fn keys(rank: usize) -> Vec<u32> {
    let mut state = rank as u64 + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..KEYS).map(next).collect()
}

/// Each process sorts the keys between two splitters, which come from samples of all keys. Returns the place of its
/// first key among all, and its keys.
fn sample_sort(process: &mut Process) -> Result<(usize, Vec<u32>), Error> {
    let (rank, size) = (process.rank(), process.size());
    let mut own = keys(rank);
    own.sort_unstable();
    // Process 0 chooses the splitters.
    let samples = process.spread::<u32>(SAMPLES * size)?;
    let mine: Vec<u32> = own.iter().copied().step_by(KEYS / SAMPLES).take(SAMPLES).collect();
    process.store_bulk(&samples, 0, SAMPLES * rank, &mine)?;
    process.all_store_sync()?;
    let mut all = process.load(&samples, 0, SAMPLES * size)?;
    all.sort_unstable();
    let mut splitters: Vec<u32> = (1..size).map(|i| all[SAMPLES * i]).collect();
    process.broadcast(0, &mut splitters)?;
    // The sizes of all parts tell each process where to store.
    let ends = splitters.iter().map(|&splitter| own.partition_point(|&key| key < splitter)).chain([KEYS]);
    let bounds: Vec<usize> = [0].into_iter().chain(ends).collect();
    let counts: Vec<u64> = bounds.windows(2).map(|pair| (pair[1] - pair[0]) as u64).collect();
    let (mut before, mut totals) = (counts.clone(), counts.clone());
    process.scan(&mut before, |a, b| a + b)?;
    process.all_reduce(&mut totals, |a, b| a + b)?;
    let parts = process.spread::<u32>(KEYS * size.min(4))?;
    for to in 0..size {
        let at = (before[to] - counts[to]) as usize;
        process.store_bulk(&parts, to, at, &own[bounds[to]..bounds[to + 1]])?;
    }
    process.all_store_sync()?;
    let mut part = process.load(&parts, 0, totals[rank] as usize)?;
    part.sort_unstable();
    Ok((totals[..rank].iter().sum::<u64>() as usize, part))
}

/// In each pass the keys go to their places in the order of one digit. Returns the keys of this process.
fn radix_sort(process: &mut Process) -> Result<Vec<u32>, Error> {
    let (rank, size) = (process.rank(), process.size());
    let arrays = [process.spread::<u32>(KEYS)?, process.spread::<u32>(KEYS)?];
    process.save(&arrays[0], 0, &keys(rank))?;
    for pass in 0..4 {
        let (from, to) = (&arrays[pass % 2], &arrays[1 - pass % 2]);
        let digit = |key: &u32| (key >> (8 * pass)) as usize % DIGITS;
        let mut own = process.load(from, 0, KEYS)?;
        own.sort_by_key(digit);
        let mut counts = vec![0_u64; DIGITS];
        own.iter().for_each(|key| counts[digit(key)] += 1);
        let (mut before, mut totals) = (counts.clone(), counts.clone());
        process.scan(&mut before, |a, b| a + b)?;
        process.all_reduce(&mut totals, |a, b| a + b)?;
        // The keys of one digit lie side by side: those of lower ranks first.
        let (mut at, mut rest) = (0, &own[..]);
        for value in 0..DIGITS {
            let mut place = (at + before[value] - counts[value]) as usize;
            let (mut run, others) = rest.split_at(counts[value] as usize);
            while !run.is_empty() {
                let count = run.len().min(KEYS - place % KEYS);
                process.store_bulk(to, place / KEYS % size, place % KEYS, &run[..count])?;
                (place, run) = (place + count, &run[count..]);
            }
            (at, rest) = (at + totals[value], others);
        }
        process.all_store_sync()?;
    }
    process.load(&arrays[0], 0, KEYS)
}
