//! The parameters of LogP, by bursts of short requests with a delay behind each (Culler, Liu, Martin and Yoshikawa).

use std::time::{Duration, Instant};

/// Requests of a burst that shows the gap.
const BURST: usize = 256;

/// The parameters of LogP, in ns, and the gap of a byte in bulk.
#[derive(Clone, Copy, Debug)]
pub struct LogP {
    /// The round trip of a short message.
    pub round_trip: f64,
    /// The processor's time for sending a message.
    pub send: f64,
    /// The processor's time for receiving a message.
    pub receive: f64,
    /// The time between two messages of a long burst.
    pub gap: f64,
    /// The time of a byte between two bulk messages of a long burst; `None` for a layer without them.
    pub byte_gap: Option<f64>,
}

impl LogP {
    /// The latency: what of half of a round trip neither side's processor spends.
    pub fn latency(&self) -> f64 {
        self.round_trip / 2.0 - self.send - self.receive
    }
}

/// A layer between two processes: requests of this one, which the other one answers.
pub trait Bursts {
    /// The error of a call.
    type Error;
    /// The number of requests that may be without an answer.
    fn window(&self) -> usize;
    /// The time of a request and its answer, in ns.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    fn round_trip_ns(&mut self) -> Result<f64, Self::Error>;
    /// The time of a request in bursts of `count`, without the delay behind each, in ns. Answers are taken where a
    /// request waits for room in the window, and behind each delay.
    ///
    /// # Errors
    /// As [`round_trip_ns`](Self::round_trip_ns).
    fn burst_ns(&mut self, count: usize, delay: Duration) -> Result<f64, Self::Error>;
    /// The gap of a byte, where the layer has bulk messages.
    ///
    /// # Errors
    /// As [`round_trip_ns`](Self::round_trip_ns).
    fn byte_gap_ns(&mut self) -> Result<Option<f64>, Self::Error>;
    /// Ends what is written beside the measurement: a capture.
    ///
    /// # Errors
    /// The capture could not be written.
    fn finish(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Measures the parameters of LogP of a layer.
///
/// # Errors
/// A layer's own: its messages can't be sent, or its far side is gone.
pub fn measure<B: Bursts>(layer: &mut B) -> Result<LogP, B::Error> {
    let measured = figures(layer);
    // The capture is kept, however the measurement ended.
    let kept = layer.finish();
    let measured = measured?;
    kept.map(|()| measured)
}

fn figures<B: Bursts>(layer: &mut B) -> Result<LogP, B::Error> {
    let round_trip = layer.round_trip_ns()?;
    // No answer is taken before the window is full: nothing but sending is paid.
    let send = layer.burst_ns((layer.window() / 2).max(1), Duration::ZERO)?;
    let gap = layer.burst_ns(BURST, Duration::ZERO)?;
    // Beyond the gap a longer delay makes each message as much later: the rest is sending and receiving.
    let mut both = f64::INFINITY;
    for times in [2, 3, 4] {
        let delay = Duration::from_nanos((gap * f64::from(times)) as u64);
        both = both.min(layer.burst_ns(BURST, delay)?);
    }
    Ok(LogP { round_trip, send, receive: (both - send).max(0.0), gap, byte_gap: layer.byte_gap_ns()? })
}

/// Waits busily behind a request. Returns the time, which is a step of the clock longer than was asked.
pub(crate) fn delay(time: Duration) -> Duration {
    let begin = Instant::now();
    loop {
        let passed = begin.elapsed();
        if passed >= time {
            return passed;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use super::*;

    /// Two processors and a network in simulated time, in ns.
    #[derive(Clone, Copy, Debug)]
    struct Machine {
        latency: f64,
        send: f64,
        receive: f64,
        gap: f64,
        byte_gap: f64,
    }

    const WINDOW: usize = 64;
    const BASE: Machine =
        Machine { latency: 5000.0, send: 500.0, receive: 400.0, gap: 3000.0, byte_gap: 0.25 };

    /// The state of a burst: the clock, when the network and the far side are free, and when answers come.
    #[derive(Default)]
    struct Run {
        now: f64,
        network: f64,
        far: f64,
        answers: VecDeque<f64>,
    }

    impl Run {
        fn ask(&mut self, of: &Machine) {
            while self.answers.len() == WINDOW {
                self.now = self.now.max(self.answers[0]);
                self.take(of);
            }
            self.now += of.send;
            let leaves = self.now.max(self.network);
            self.network = leaves + of.gap;
            let served = (leaves + of.latency).max(self.far) + of.receive + of.send;
            self.far = served;
            self.answers.push_back(served + of.latency);
        }
        /// Takes the answers that have come.
        fn take(&mut self, of: &Machine) {
            while self.answers.front().is_some_and(|&came| came <= self.now) {
                self.answers.pop_front();
                self.now += of.receive;
            }
        }
    }

    impl Bursts for Machine {
        type Error = Infallible;
        fn window(&self) -> usize {
            WINDOW
        }
        fn round_trip_ns(&mut self) -> Result<f64, Infallible> {
            let mut run = Run::default();
            run.ask(self);
            run.now = run.now.max(run.answers[0]);
            run.take(self);
            Ok(run.now)
        }
        fn burst_ns(&mut self, count: usize, delay: Duration) -> Result<f64, Infallible> {
            let mut run = Run::default();
            // Long enough that the window, which is filled at first, does not count.
            let count = if count < WINDOW { count } else { 100 * count };
            for _ in 0..count {
                run.ask(self);
                if !delay.is_zero() {
                    run.now += delay.as_nanos() as f64;
                    run.take(self);
                }
            }
            Ok(run.now / count as f64 - delay.as_nanos() as f64)
        }
        fn byte_gap_ns(&mut self) -> Result<Option<f64>, Infallible> {
            Ok(Some(self.byte_gap))
        }
    }

    fn parameters(machine: Machine) -> [f64; 5] {
        let Ok(p) = measure(&mut { machine });
        [p.latency(), p.send, p.receive, p.gap, 1000.0 * p.byte_gap.unwrap()]
    }

    /// In simulated time: a longer latency, overhead or gap moves that parameter alone, by as much.
    #[test]
    fn what_is_added_to_a_parameter_moves_that_one_alone_and_by_as_much() {
        let near = |a: f64, b: f64| (a - b).abs() < 20.0;
        let base = parameters(BASE);
        let known = [BASE.latency, BASE.send, BASE.receive, BASE.gap, 1000.0 * BASE.byte_gap];
        assert!(base.iter().zip(known).all(|(&a, b)| near(a, b)), "{base:?} is not {known:?}");
        let moved = [
            Machine { latency: BASE.latency + 2000.0, ..BASE },
            Machine { send: BASE.send + 300.0, ..BASE },
            Machine { receive: BASE.receive + 250.0, ..BASE },
            Machine { gap: BASE.gap + 1500.0, ..BASE },
            Machine { byte_gap: BASE.byte_gap + 0.1, ..BASE },
        ];
        for (which, (machine, by)) in moved.into_iter().zip([2000.0, 300.0, 250.0, 1500.0, 100.0]).enumerate()
        {
            for (i, (now, before)) in parameters(machine).into_iter().zip(base).enumerate() {
                let expected = before + if i == which { by } else { 0.0 };
                assert!(near(now, expected), "parameter {i} is {now}, not {expected}, with {machine:?}");
            }
        }
    }
}
