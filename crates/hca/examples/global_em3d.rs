//! EM3D, Split-C's first program: electric and magnetic nodes of a random graph, each of which is a weighted sum of its
//! neighbours of the other kind. `hca run -n 8 target/debug/examples/global_em3d`. Each process compares its nodes with
//! those of a sequential run.

use hca::global::{Error, Process, Way};

/// Nodes of each kind of each process, their neighbours, and the steps.
const NODES: usize = 40;
const DEGREE: usize = 4;
const STEPS: usize = 6;

/// A neighbour: its process, its index there, and its weight.
type Edge = (usize, usize, f64);

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = hca::open("auto://")?;
    let mut process = Process::start(&hca::Job::from_env()?, &context, Way::Verbs, 1 << 20)?;
    let (rank, size) = (process.rank(), process.size());
    let values = em3d(&mut process)?;
    assert_eq!(values, sequential(size).map(|kind| kind[rank].clone()), "process {rank}");
    if rank == 0 {
        println!(
            "{size} processes made {STEPS} steps of {} nodes, as a sequential run does",
            2 * size * NODES
        );
    }
    Ok(process.finish()?)
}

/// The neighbours of the nodes of a process, electric or magnetic ones.
fn graph(rank: usize, size: usize, kind: usize) -> Vec<[Edge; DEGREE]> {
    let mut state = (2 * rank + kind) as u64 + 1;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut edge = |_| (next(size), next(NODES), next(100) as f64 / 100.0);
    (0..NODES).map(|_| std::array::from_fn(&mut edge)).collect()
}
/// The values of a process's nodes in the beginning.
fn begin(rank: usize) -> Vec<f64> {
    (0..NODES).map(|i| (rank * NODES + i) as f64).collect()
}

fn em3d(process: &mut Process) -> Result<[Vec<f64>; 2], Error> {
    let (rank, size) = (process.rank(), process.size());
    let arrays = [process.spread::<f64>(NODES)?, process.spread::<f64>(NODES)?];
    for array in &arrays {
        process.save(array, 0, &begin(rank))?;
    }
    process.barrier()?;
    for step in 0..STEPS {
        let (own, other) = (&arrays[step % 2], &arrays[1 - step % 2]);
        let edges = graph(rank, size, step % 2);
        // All neighbours are on their way at the same time.
        let gets = edges.iter().flatten().map(|&(rank, index, _)| process.get(other.at(rank, index)?));
        let gets: Vec<_> = gets.collect::<Result<_, Error>>()?;
        process.sync()?;
        let mut gets = gets.into_iter();
        let mut values = process.load(own, 0, NODES)?;
        for (value, edges) in values.iter_mut().zip(&edges) {
            for ((_, _, weight), got) in edges.iter().zip(&mut gets) {
                *value -= weight * process.take(got)?;
            }
        }
        process.save(own, 0, &values)?;
        process.barrier()?;
    }
    Ok([process.load(&arrays[0], 0, NODES)?, process.load(&arrays[1], 0, NODES)?])
}

/// The values of all nodes, by kind and process.
fn sequential(size: usize) -> [Vec<Vec<f64>>; 2] {
    let mut all = [0, 1].map(|_| (0..size).map(begin).collect::<Vec<_>>());
    for step in 0..STEPS {
        let other = all[1 - step % 2].clone();
        for (rank, own) in all[step % 2].iter_mut().enumerate() {
            for (value, edges) in own.iter_mut().zip(graph(rank, size, step % 2)) {
                for (rank, index, weight) in edges {
                    *value -= weight * other[rank][index];
                }
            }
        }
    }
    all
}
