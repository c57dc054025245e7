//! The receiving side of queue pair 1, and the thread that runs a manager which its device does not run.

use std::sync::Arc;

use hca_verbs::{Buf, CompletionQueue, Completions, Gid, Grh, Pd, RecvQueue, Ud, WaitError, Wcs};

use super::manager::{Core, GENERAL_SERVICES, UntilGone};
use crate::wire::MAD_BYTES;

/// The receiving side of queue pair 1, and the completions of its sends.
pub(super) struct Port {
    cq: CompletionQueue,
    sent: CompletionQueue,
    rq: RecvQueue<Ud>,
    wcs: Completions,
    left: Completions,
    inbox: Inbox,
    _pd: Pd,
    /// The last field: the receiving half of the queue pair goes before it.
    _until_gone: UntilGone,
}

/// Datagrams that have come, with their senders, and buffers to be posted again.
#[derive(Default)]
struct Inbox {
    heard: Vec<(Gid, Buf)>,
    back: Vec<Buf>,
}

impl Inbox {
    fn take(&mut self, got: Wcs<'_>) {
        for mut wc in got {
            let from = wc.grh().filter(|_| wc.src_qp == GENERAL_SERVICES).map(|grh| grh.sgid);
            let is_whole = wc.payload().is_some_and(|mad| mad.len() == MAD_BYTES);
            match (from.filter(|_| is_whole), wc.take_buf()) {
                (Some(from), Some(buf)) => self.heard.push((from, buf)),
                (_, buf) => self.back.extend(buf),
            }
        }
    }
}

impl Port {
    pub(super) fn new(
        pd: Pd,
        cq: CompletionQueue,
        sent: CompletionQueue,
        rq: RecvQueue<Ud>,
        until_gone: UntilGone,
    ) -> Self {
        let (wcs, left) = (Completions::default(), Completions::default());
        Self { cq, sent, rq, wcs, left, inbox: Inbox::default(), _pd: pd, _until_gone: until_gone }
    }
    /// Takes the datagrams that are there. Returns whether more may be.
    pub(super) fn poll(&mut self) -> bool {
        let got = self.cq.poll(&mut self.wcs);
        self.inbox.take(got);
        self.wcs.len() == self.wcs.capacity()
    }
    /// Takes the completions of sends that are there.
    pub(super) fn poll_sent(&mut self) {
        while self.sent.poll(&mut self.left).count() > 0 {}
    }
    /// The datagrams that have come, with their senders.
    pub(super) fn heard(&self) -> impl Iterator<Item = (Gid, &[u8])> {
        self.inbox.heard.iter().map(|(from, buf)| (*from, &buf[Grh::BYTES..]))
    }
    /// The datagrams were handled: their buffers are posted again.
    pub(super) fn done(&mut self) -> Result<(), String> {
        let Inbox { heard, back } = &mut self.inbox;
        back.extend(heard.drain(..).map(|(_, buf)| buf));
        back.drain(..).try_for_each(|buf| self.rq.post_recv(buf).map_err(|refused| refused.to_string()))
    }

    /// Runs a manager until it has ended.
    pub(super) fn run(mut self, core: &Arc<Core>) {
        loop {
            core.runs();
            let next = core.turn(&mut self);
            if let Err(error) = self.done() {
                return core.stop(&error);
            }
            let wait = core.sleeps_for();
            let got = match next {
                Next::End => return,
                Next::Receive => self.cq.wait_or_readable(&mut self.wcs, core.bell(), wait),
                Next::Send => match self.sent.wait(&mut self.left, wait) {
                    Ok(_) | Err(WaitError::TimedOut(_)) => Ok(self.cq.poll(&mut self.wcs)),
                    Err(e) => Err(e),
                },
            };
            match got {
                Ok(got) => self.inbox.take(got),
                Err(WaitError::TimedOut(_)) => {}
                Err(e) => return core.stop(&e.to_string()),
            }
        }
    }
}

/// The thing that the thread waits for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Datagrams.
    Receive,
    /// A message that leaves.
    Send,
    End,
}
