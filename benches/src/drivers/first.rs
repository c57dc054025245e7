//! The first driver: send and receive, where blocking calls sleep until an interrupt.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hca::{
    Buf, CompletionQueue, Completions, ConnectOptions, Endpoint, FrozenBuf, Opened, QueuePair, Rc,
    SendRequest,
};
use hca_perf::batches::per_second;
use hca_perf::layers::two::{self, Near, Two};
use hca_perf::{Failure, Setup};

use super::{CHILD_COMMAND, PATIENCE, silent, take_by_interrupt};

/// Receive requests of a side.
const RECEIVES: usize = 8;
/// How often a far side without messages looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// The first byte of a message says what is asked for.
const ECHO: u8 = 1;
const SINK: u8 = 2;
const STOP: u8 = 3;

/// A side: a queue pair with a completion queue for each direction.
pub struct End {
    qp: QueuePair<Rc>,
    sends: CompletionQueue,
    receives: CompletionQueue,
    wcs: Completions,
    /// A message of each kind.
    messages: [FrozenBuf; 3],
    /// Messages that have come and are not looked at.
    came: VecDeque<u8>,
    back: Vec<Buf>,
    /// Whether an answer is to come.
    open: bool,
    /// How long the other side may take.
    patience: Duration,
    opened: Opened,
}

/// The driver in two processes, with messages of `size` bytes. `time`: of a measurement.
///
/// # Errors
/// A device can't be opened, or the process not be started.
pub fn start(setup: &Setup, size: usize, time: Duration) -> Result<Two<End>, Failure> {
    Two::start(setup, CHILD_COMMAND, &format!("first {size}"), time, |opened| End::open(opened, size))
}

impl End {
    pub(super) fn open(opened: Opened, size: usize) -> Result<Self, Failure> {
        let pd = opened.context().alloc_pd()?;
        let (sends, receives) = (pd.context().create_cq(16)?, pd.context().create_cq(RECEIVES as u32)?);
        let mut qp =
            pd.qp::<Rc>(&sends).recv_cq(&receives).max_send_wr(16).max_recv_wr(RECEIVES as u32).build()?;
        for buf in pd.alloc_many(RECEIVES, size)? {
            qp.post_recv(buf).map_err(|refused| refused.error)?;
        }
        let message = |what| -> Result<FrozenBuf, Failure> {
            let mut buf = pd.alloc(size)?;
            buf.fill(what);
            Ok(buf.freeze())
        };
        let messages = [message(ECHO)?, message(SINK)?, message(STOP)?];
        let (wcs, came, back) = (Completions::with_parts(16, 32), VecDeque::new(), Vec::new());
        Ok(Self { qp, sends, receives, wcs, messages, came, back, open: false, patience: PATIENCE, opened })
    }
    /// Posts the receive requests that came back: the non-blocking receive.
    fn post_receives(&mut self) -> Result<(), Failure> {
        for buf in self.back.drain(..) {
            self.qp.post_recv(buf).map_err(|refused| refused.error)?;
        }
        Ok(())
    }
    /// Sends, and blocks until that has completed.
    fn send(&mut self, what: u8) -> Result<(), Failure> {
        let message = self.messages[usize::from(what) - 1].clone();
        self.qp.post_send(SendRequest::send(message)).map_err(|refused| refused.error)?;
        let (begin, patience) = (Instant::now(), self.patience);
        while take_by_interrupt(&mut self.sends, &mut self.wcs, patience, |_| Ok(()))? == 0 {
            if begin.elapsed() >= patience {
                return Err(silent(patience, "a message was not acknowledged"));
            }
        }
        Ok(())
    }
    /// Blocks until a message has come.
    fn receive(&mut self) -> Result<(), Failure> {
        let (begin, patience) = (Instant::now(), self.patience);
        while self.receive_within(patience)?.is_none() {
            if begin.elapsed() >= patience {
                return Err(silent(patience, "no answer has come"));
            }
        }
        Ok(())
    }
    /// Blocks until a message has come, or an interrupt, at most for so long. Returns the kind of a message.
    fn receive_within(&mut self, longest: Duration) -> Result<Option<u8>, Failure> {
        let Self { receives, wcs, came, back, .. } = self;
        if came.is_empty() {
            take_by_interrupt(receives, wcs, longest, |wc| {
                came.extend(wc.payload().and_then(|bytes| bytes.first()));
                back.extend(wc.take_buf());
                Ok(())
            })?;
        }
        Ok(came.pop_front())
    }
}

impl Near for End {
    fn window(&self) -> usize {
        1
    }
    /// A non-blocking receive, and a blocking send.
    fn ask(&mut self) -> Result<(), Failure> {
        self.settle()?;
        self.post_receives()?;
        self.send(ECHO)?;
        self.open = true;
        Ok(())
    }
    fn poll(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    /// Blocks until the receive has completed.
    fn settle(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.open) {
            self.receive()?;
        }
        Ok(())
    }
}

impl two::End for End {
    fn introduction(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&self.qp.endpoint())?)
    }
    fn meet(&mut self, other: &str, _: bool) -> Result<(), Failure> {
        let options = ConnectOptions { mtu: Some(self.opened.mtu()), ..ConnectOptions::default() };
        let other: Endpoint = serde_json::from_str(other)?;
        Ok(self.qp.connect(&other, &options)?)
    }
    fn stop(&mut self) -> Result<(), Failure> {
        self.send(STOP)
    }
    fn serve(&mut self) -> Result<bool, Failure> {
        let what = self.receive_within(LOOK)?;
        self.post_receives()?;
        if what == Some(ECHO) {
            self.send(ECHO)?;
        }
        Ok(what == Some(STOP))
    }
}

/// Bytes a second of blocking sends, one after the other.
///
/// # Errors
/// A device, or the far side, can't go on.
pub fn bytes_per_s(two: &mut Two<End>) -> Result<f64, Failure> {
    let time = two.time();
    two.during(|end| {
        let size = end.messages[0].len();
        per_second(time, size, || end.send(SINK))
    })
}

#[cfg(test)]
mod tests {
    use hca_perf::layers::two::End as _;

    use super::*;

    fn pair(name: &str) -> [End; 2] {
        let url = format!("loopback://{name}?progress=thread").parse().unwrap();
        let mut ends = [(); 2].map(|()| End::open(hca::open_exactly(&url).unwrap(), 4).unwrap());
        let told = ends.each_ref().map(|end| end.introduction().unwrap());
        ends[0].meet(&told[1], true).unwrap();
        ends[1].meet(&told[0], false).unwrap();
        ends
    }

    #[test]
    fn a_far_side_that_does_not_answer_is_an_error() {
        let [mut near, mut far] = pair("drivers-first-silent");
        near.ask().unwrap();
        near.patience = Duration::from_millis(20);
        let told = near.settle().unwrap_err().to_string();
        assert!(told.contains("no answer has come for 20ms: the other side has ended"), "{told}");
        // The message has come nevertheless, and the next one is answered.
        assert!(!far.serve().unwrap());
        (near.open, near.patience) = (true, PATIENCE);
        near.settle().unwrap();
    }

    #[test]
    fn a_far_side_without_messages_looks_whether_it_is_to_end() {
        let [mut near, mut far] = pair("drivers-first-idle");
        assert!(!far.serve().unwrap());
        near.stop().unwrap();
        assert!(far.serve().unwrap());
    }
}
