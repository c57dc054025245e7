//! The cost of a message that is handed to an engine on the same CPU, and of one that is handed back: two processes, each
//! a program and an engine of its own thread, all of which yield while they wait.
//!
//! A message goes from the program to its engine, from that to the other engine, and from that to the other program;
//! each step is a number in a line of its own.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, yield_now};
use std::time::{Duration, Instant};

use super::{Far, Figures, Line, START_LIMIT, Shared};
use hca_perf::batches::median_ns;

/// Lines that are shared: two apart, since processors fetch lines by twos.
pub(super) const LINES: usize = 12;

/// The steps of a round trip, each the word that tells it.
#[derive(Clone, Copy)]
enum Step {
    ToNearEngine,
    ToFarEngine,
    ToFar,
    BackToFarEngine,
    BackToNearEngine,
    BackToNear,
}

struct Steps<'a>(&'a [Line]);

impl Steps<'_> {
    fn word(&self, step: Step) -> &AtomicU64 {
        &self.0[2 * step as usize].0[0]
    }
    fn tell(&self, step: Step, number: u64) {
        self.word(step).store(number, Ordering::Release);
    }
    /// Yields until the step is at this number; `false`: it is over.
    fn wait(&self, step: Step, number: u64, over: impl Fn() -> bool) -> bool {
        while self.word(step).load(Ordering::Acquire) != number {
            if over() {
                return false;
            }
            yield_now();
        }
        true
    }
    /// Hands on what comes by two steps, each by the next one.
    fn hand_on(&self, ways: [[Step; 2]; 2], over: impl Fn() -> bool + Copy) {
        for number in 1.. {
            for [from, to] in ways {
                if !self.wait(from, number, over) {
                    return;
                }
                self.tell(to, number);
            }
        }
    }
}

/// Measures for `time`.
pub(super) fn near(shared: &Shared, far: &mut Far, time: Duration) -> io::Result<Figures> {
    far.port(shared)?;
    let begin = Instant::now();
    let limit = time + START_LIMIT;
    let steps = Steps(shared.lines());
    let ended = AtomicBool::new(false);
    let over = || ended.load(Ordering::Relaxed);
    scope(|s| {
        // On this thread's CPU, as it inherits that.
        s.spawn(|| {
            use Step::{BackToNear, BackToNearEngine, ToFarEngine, ToNearEngine};
            steps.hand_on([[ToNearEngine, ToFarEngine], [BackToNearEngine, BackToNear]], over);
        });
        let mut number = 0;
        let measured = median_ns(time, 2, || {
            number += 1;
            steps.tell(Step::ToNearEngine, number);
            let came = steps.wait(Step::BackToNear, number, || begin.elapsed() > limit);
            came.then_some(()).ok_or_else(|| io::Error::other("the floor's far side is gone"))
        });
        ended.store(true, Ordering::Relaxed);
        Ok(Figures { half_rtt_ns: measured?, ..Figures::default() })
    })
}

/// The far side, until it is told to stop.
pub(super) fn far(shared: &Shared) -> io::Result<()> {
    let steps = Steps(shared.lines());
    let stop = shared.stop.word();
    let over = || stop.load(Ordering::Acquire) != 0;
    shared.port.store(1);
    scope(|s| {
        s.spawn(|| {
            use Step::{BackToFarEngine, BackToNearEngine, ToFar, ToFarEngine};
            steps.hand_on([[ToFarEngine, ToFar], [BackToFarEngine, BackToNearEngine]], over);
        });
        let mut number = 1;
        while steps.wait(Step::ToFar, number, over) {
            steps.tell(Step::BackToFarEngine, number);
            number += 1;
        }
    });
    Ok(())
}
