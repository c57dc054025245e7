//! Active Messages between two processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hca::Opened;
use hca::am::{Bundle, EndpointId, Message, Parallel, Segment, Source, Tag, Token, Way};

use super::logp::delay;
use super::two::{BULK, Near, ROUNDS, Two, go_on};
use super::{LAYER_COMMAND, way_name};
use crate::batches::per_second;
use crate::{Failure, Setup};

/// Bytes of the segments, and of the longest bulk message.
pub const SEGMENT: usize = BULK;
const TAG: Tag = Tag(0xa3);
const ECHO: u16 = 1;
const REPLIED: u16 = 2;
const SINK: u16 = 3;
const STOP: u16 = 4;
/// How long a far side computes from one call to the next.
pub const SLICE: Duration = Duration::from_millis(1);
/// The name of the far side of [`start_computing`].
const COMPUTES: &str = "computes";
const OFFLOADED: &str = "offloaded";

/// An endpoint with its bundle.
pub struct End {
    bundle: Bundle,
    ep: EndpointId,
    /// Replies to requests of this end.
    replies: Arc<AtomicU64>,
    asked: u64,
    memory: Segment,
    stopped: Arc<AtomicBool>,
    /// A message came back: the other end has gone.
    returned: Arc<AtomicBool>,
    _device: Opened,
}

/// Two endpoints in two processes, of which this one has mapped the other. `time`: of a measurement.
///
/// # Errors
/// A device can't be opened, or the process not be started.
pub fn start(setup: &Setup, way: Way, time: Duration) -> Result<Two<End>, Failure> {
    Two::start(setup, LAYER_COMMAND, &format!("am {}", way_name(way)), time, |opened| End::open(opened, way))
}

/// As [`start`], and the far side computes: it makes a call of its bundle once in a [slice](SLICE). `offloaded`: its
/// device runs the handlers meanwhile.
///
/// # Errors
/// As there.
pub fn start_computing(
    setup: &Setup,
    way: Way,
    offloaded: bool,
    time: Duration,
) -> Result<Two<End>, Failure> {
    let spec = format!("am {} {}", way_name(way), if offloaded { OFFLOADED } else { COMPUTES });
    Two::start(setup, LAYER_COMMAND, &spec, time, |opened| End::open(opened, way))
}

impl End {
    pub(super) fn open(device: Opened, way: Way) -> Result<Self, Failure> {
        let mut bundle = Bundle::open(device.context(), way)?;
        let ep = bundle.endpoint()?;
        bundle.set_tag(ep, TAG)?;
        bundle.set_segment(ep, SEGMENT)?;
        let (replies, stopped) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counts, stops) = (Arc::clone(&replies), Arc::clone(&stopped));
        bundle.set_handler(ep, ECHO, |message, token| {
            let _ = token.reply(REPLIED, message.args());
        })?;
        // Only this thread counts.
        let count = move |_: &Message<'_>, _: Token<'_>| {
            counts.store(counts.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        bundle.set_handler(ep, REPLIED, count)?;
        bundle.set_handler(ep, SINK, |_, _| ())?;
        bundle.set_handler(ep, STOP, move |_, _| stops.store(true, Ordering::Relaxed))?;
        let returned = Arc::<AtomicBool>::default();
        let returns = Arc::clone(&returned);
        bundle.set_error_handler(ep, move |_| returns.store(true, Ordering::Relaxed))?;
        let memory = bundle.alloc(SEGMENT)?;
        Ok(Self { bundle, ep, replies, asked: 0, memory, stopped, returned, _device: device })
    }
}

/// The far side of [`start_computing`].
pub(super) struct Computing {
    bundle: Parallel,
    ep: EndpointId,
    stopped: Arc<AtomicBool>,
    _device: Opened,
}

impl Computing {
    pub(super) fn open(device: Opened, way: Way, how: &str) -> Result<Self, Failure> {
        let End { bundle, ep, stopped, _device, .. } = End::open(device, way)?;
        let bundle = match how {
            COMPUTES => Parallel::new(bundle),
            OFFLOADED => Parallel::offloaded(bundle)?,
            _ => return Err(format!("`{how}` says neither who computes nor who is offloaded").into()),
        };
        Ok(Self { bundle, ep, stopped, _device })
    }
}

impl Near for Computing {
    fn window(&self) -> usize {
        0
    }
    fn ask(&mut self) -> Result<(), Failure> {
        Err("who computes asks nothing".into())
    }
    fn poll(&mut self) -> Result<(), Failure> {
        Ok(self.bundle.with(Bundle::poll).map(drop)?)
    }
    fn settle(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

impl super::two::End for Computing {
    fn introduction(&self) -> Result<String, Failure> {
        Ok(self.bundle.with(|bundle| bundle.name(self.ep))?.to_string())
    }
    fn meet(&mut self, _: &str, _: bool) -> Result<(), Failure> {
        Ok(())
    }
    fn stop(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    fn serve(&mut self) -> Result<bool, Failure> {
        delay(SLICE);
        self.poll()?;
        let stopped = self.stopped.swap(false, Ordering::Relaxed);
        if stopped {
            // As of `End`.
            self.poll()?;
        }
        Ok(stopped)
    }
}

impl Near for End {
    fn window(&self) -> usize {
        self.bundle.options().credits.into()
    }
    #[inline]
    fn ask(&mut self) -> Result<(), Failure> {
        self.asked += 1;
        Ok(self.bundle.request(self.ep, 0, ECHO, &[self.asked as u32, 0])?)
    }
    #[inline]
    fn poll(&mut self) -> Result<(), Failure> {
        self.bundle.poll()?;
        if self.returned.load(Ordering::Relaxed) {
            return Err("a message came back: the other end has gone".into());
        }
        Ok(())
    }
    #[inline]
    fn settle(&mut self) -> Result<(), Failure> {
        while self.replies.load(Ordering::Relaxed) < self.asked {
            self.poll()?;
        }
        Ok(())
    }
    fn bulk_ns(&mut self, size: usize, time: Duration) -> Result<Option<f64>, Failure> {
        let memory = self.memory.clone();
        let rate = per_second(time, 1, || {
            go_on()?;
            Ok::<_, Failure>(self.bundle.request_bulk(
                self.ep,
                0,
                SINK,
                &[],
                Source::Segment(&memory, 0..size),
                0,
            )?)
        })?;
        Ok(Some(1e9 / rate))
    }
}

impl super::two::End for End {
    fn introduction(&self) -> Result<String, Failure> {
        Ok(self.bundle.name(self.ep)?.to_string())
    }
    fn meet(&mut self, other: &str, near: bool) -> Result<(), Failure> {
        if near {
            self.bundle.map(self.ep, 0, &other.parse()?, TAG)?;
        }
        Ok(())
    }
    fn stop(&mut self) -> Result<(), Failure> {
        self.bundle.request(self.ep, 0, STOP, &[])?;
        Ok(self.bundle.flush(Duration::from_secs(10))?)
    }
    fn serve(&mut self) -> Result<bool, Failure> {
        self.bundle.poll()?;
        let stopped = self.stopped.load(Ordering::Relaxed);
        if stopped {
            self.stopped.store(false, Ordering::Relaxed);
            // The answer to the last request leaves before this side blocks.
            self.bundle.poll()?;
        }
        Ok(stopped)
    }
}

impl Two<End> {
    /// Bytes a second of medium requests without replies.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn medium_bytes_per_s(&mut self, size: usize) -> Result<f64, Failure> {
        let (data, time) = (vec![7; size], self.time);
        self.during(|end| {
            let rate = per_second(time, ROUNDS * size, || {
                (0..ROUNDS).try_for_each(|_| end.bundle.request_medium(end.ep, 0, SINK, &[], &data))
            })?;
            Ok(rate)
        })
    }
    /// Bytes a second of bulk requests without replies, from registered memory.
    ///
    /// # Errors
    /// As [`medium_bytes_per_s`](Self::medium_bytes_per_s).
    pub fn bulk_bytes_per_s(&mut self, size: usize) -> Result<f64, Failure> {
        let time = self.time;
        let ns = self.during(|end| end.bulk_ns(size, time))?;
        Ok(ns.map_or(0.0, |ns| size as f64 / ns * 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::super::two::End as _;
    use super::*;

    #[test]
    fn an_end_whose_other_end_has_gone_waits_for_no_reply() {
        for way in [Way::Verbs, Way::Via] {
            let open = || {
                let url = "loopback://am-gone".parse().unwrap();
                End::open(hca::open_exactly(&url).unwrap(), way).unwrap()
            };
            let (mut near, far) = (open(), open());
            let name = far.introduction().unwrap();
            let (done, over) = std::sync::mpsc::channel();
            // With both ends in a thread of its own, so that a wait without an end ends the test.
            std::thread::spawn(move || {
                let far = std::thread::spawn(move || {
                    let mut far = far;
                    while !far.serve().unwrap() {}
                    far
                });
                near.meet(&name, true).unwrap();
                near.stop().unwrap();
                let far = far.join().unwrap();
                // While the end is there: later, the request itself may be refused.
                near.ask().unwrap();
                drop(far);
                done.send(near.settle().is_err())
            });
            assert_eq!(over.recv_timeout(Duration::from_secs(30)), Ok(true), "{way:?}");
        }
    }
}
