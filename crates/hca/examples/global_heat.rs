//! Heat diffusion on a plate whose rows are spread over the processes: `hca run -n 8 target/debug/examples/global_heat`.
//! Each process compares its rows with those of a sequential run.

use hca::global::{Error, Process, Way};

/// Rows of each process, the columns, and the steps.
const ROWS: usize = 12;
const COLUMNS: usize = 64;
const STEPS: usize = 40;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = hca::open("auto://")?;
    let mut process = Process::start(&hca::Job::from_env()?, &context, Way::Verbs, 1 << 20)?;
    let (rank, size) = (process.rank(), process.size());
    let plate = diffuse(&mut process)?;
    assert_eq!(plate, sequential(size)[rank * ROWS * COLUMNS..][..ROWS * COLUMNS], "process {rank}");
    let mut heat = [plate.iter().sum::<f64>()];
    process.all_reduce(&mut heat, |a, b| a + b)?;
    if rank == 0 {
        let rows = size * ROWS;
        println!(
            "{size} processes, {rows} rows, {STEPS} steps: {:.3} of heat, as in a sequential run",
            heat[0]
        );
    }
    Ok(process.finish()?)
}

/// The heat of a row in the beginning: a hot line on the first one.
fn begin(row: usize) -> [f64; COLUMNS] {
    if row == 0 { [100.0; COLUMNS] } else { [0.0; COLUMNS] }
}
/// The next heat of the rows between the first and the last one, which belong to neighbours.
fn step(rows: &[f64]) -> Vec<f64> {
    let at = |row: usize, column: usize| rows[row * COLUMNS + column];
    let inner = 1..rows.len() / COLUMNS - 1;
    let next = |row: usize, column: usize| {
        let (left, right) = (column.saturating_sub(1), (column + 1).min(COLUMNS - 1));
        let around = at(row - 1, column) + at(row + 1, column) + at(row, left) + at(row, right);
        at(row, column) + (around - 4.0 * at(row, column)) / 8.0
    };
    inner.flat_map(|row| (0..COLUMNS).map(move |column| next(row, column))).collect()
}

fn diffuse(process: &mut Process) -> Result<Vec<f64>, Error> {
    let (rank, size) = (process.rank(), process.size());
    // The neighbours' rows above and below.
    let halo = process.spread::<f64>(2 * COLUMNS)?;
    let mut own: Vec<f64> = (rank * ROWS..(rank + 1) * ROWS).flat_map(begin).collect();
    for _ in 0..STEPS {
        let (first, last) = (&own[..COLUMNS], &own[(ROWS - 1) * COLUMNS..]);
        let mut comes = 0;
        if rank > 0 {
            process.store_bulk(&halo, rank - 1, COLUMNS, first)?;
            comes += 1;
        }
        if rank + 1 < size {
            process.store_bulk(&halo, rank + 1, 0, last)?;
            comes += 1;
        }
        process.store_sync(comes * COLUMNS * size_of::<f64>())?;
        let around = process.load(&halo, 0, 2 * COLUMNS)?;
        // The plate ends as its last row goes on.
        let above = if rank > 0 { &around[..COLUMNS] } else { first };
        let below = if rank + 1 < size { &around[COLUMNS..] } else { last };
        own = step(&[above, &own, below].concat());
        process.barrier()?;
    }
    Ok(own)
}

fn sequential(size: usize) -> Vec<f64> {
    let mut all: Vec<f64> = (0..size * ROWS).flat_map(begin).collect();
    for _ in 0..STEPS {
        let (first, last) = (all[..COLUMNS].to_vec(), all[all.len() - COLUMNS..].to_vec());
        all = step(&[first, all, last].concat());
    }
    all
}
