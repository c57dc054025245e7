//! Where the adapter's thread runs beside programs that spin on their memory, and how soon.

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Sleeps between two looks at where the program runs.
const LOOK_EVERY: u32 = 8;
/// The nice value that the thread asks for.
const NICE: i32 = -5;

/// The CPUs and the priority of a thread in GUARD that finds no CPU free.
///
/// Such a thread takes a CPU from a program that spins, for microseconds. It is woken at the least cost on the CPU where
/// the peer's program sends, and at the greatest on the CPU of its own program, by an interrupt from the other one. So
/// it leaves the CPU of its own program. The scheduler lets it run at once only as long as it had no more of the CPU
/// than the program there; else it waits for a tick, up to 4 ms. Where the system allows it (CAP_SYS_NICE, or
/// RLIMIT_NICE), the thread asks for more.
#[derive(Default)]
pub(crate) struct Seat {
    home: Option<Home>,
    /// The CPU that the thread has left, if it has left home.
    left: u32,
    sleeps: u32,
}

/// What the thread had before.
struct Home {
    cpus: CpuSet,
    nice: i32,
}

impl Home {
    fn now() -> Option<Self> {
        Some(Self { cpus: sched_getaffinity(None).ok()?, nice: getpriority_process(None).ok()? })
    }
}

impl Seat {
    /// The thread is about to sleep again. `program`: the CPU of its program.
    pub(crate) fn take(&mut self, program: u32) {
        self.sleeps = self.sleeps.wrapping_add(1);
        let is_there = self.home.is_some() && self.left == program;
        if is_there || !self.sleeps.is_multiple_of(LOOK_EVERY) || program as usize >= CpuSet::MAX_CPU {
            return;
        }
        let Some(home) = self.home.take().or_else(Home::now) else { return };
        let mut cpus = home.cpus;
        cpus.unset(program as usize);
        // On one CPU whatever the thread has more is taken from its program.
        if cpus.count() > 0 && sched_setaffinity(None, &cpus).is_ok() {
            let _ = setpriority_process(None, NICE.min(home.nice));
            self.home = Some(home);
        }
        self.left = program;
    }
    /// Whether the thread runs beside a program that spins.
    pub(crate) fn is_taken(&self) -> bool {
        self.home.is_some()
    }
    /// The thread has a CPU of its own, or has nothing more to do: it goes back to what it had.
    pub(crate) fn leave(&mut self) {
        if let Some(home) = self.home.take() {
            let _ = sched_setaffinity(None, &home.cpus);
            let _ = setpriority_process(None, home.nice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken_beside(seat: &mut Seat, program: u32) -> CpuSet {
        (0..LOOK_EVERY).for_each(|_| seat.take(program));
        sched_getaffinity(None).unwrap()
    }

    #[test]
    fn a_thread_leaves_the_cpu_of_its_program_and_comes_back() {
        let of_a_thread = || {
            let (home, nice) = (sched_getaffinity(None).unwrap(), getpriority_process(None).unwrap());
            let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| home.is_set(*cpu)).collect();
            let mut seat = Seat::default();
            for cpu in &cpus {
                let there = taken_beside(&mut seat, *cpu as u32);
                let alone = cpus.len() == 1;
                assert_eq!((there.is_set(*cpu), there.count()), (alone, (cpus.len() as u32 - 1).max(1)));
            }
            let raised = getpriority_process(None).unwrap();
            let is_raised = cpus.len() > 1 && raised == NICE.min(nice);
            assert!(is_raised || raised == nice, "{raised} behind {nice}, as the system allows");
            let before = sched_getaffinity(None).unwrap();
            assert_eq!(taken_beside(&mut seat, u32::MAX), before, "no such CPU");
            seat.leave();
            seat.leave();
            assert_eq!((sched_getaffinity(None).unwrap(), getpriority_process(None).unwrap()), (home, nice));
        };
        std::thread::spawn(of_a_thread).join().unwrap();
    }
}
