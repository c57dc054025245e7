//! Requests for connections that are repeated because nobody listens yet.
//!
//! Programs agree by a first connection, and then one of them listens anew while the other one connects (perftest's
//! `-R`). They rely on the time that a kernel takes for the resolution of an address and of a route. Here resolution
//! takes no time, so the time is given when it is needed: behind a rejection. One thread repeats the requests, and ends
//! when there are none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use hca_process::PerProcess;

use super::connect;
use super::id::Id;
use crate::entry::lock;

/// The wait for the first repetition; each further wait is twice as long.
const FIRST: Duration = Duration::from_millis(2);
/// Repetitions of a request: the last is 62 ms behind the first rejection.
const TRIES: u32 = 5;
/// The thread looks at its list at least so often.
const LOOK: Duration = Duration::from_millis(4);

#[derive(Default)]
struct Later {
    waiting: Vec<(Instant, Weak<Id>)>,
    has_thread: bool,
}

static LATER: PerProcess<Mutex<Later>> = PerProcess::new();

/// Repeats the request of an identifier, which was rejected, a little later. Returns whether it will be.
pub(super) fn repeat(id: &Arc<Id>) -> bool {
    let mut state = id.state();
    if state.refusals >= TRIES || state.sent.is_none() {
        return false;
    }
    let at = Instant::now() + FIRST * (1 << state.refusals);
    state.refusals += 1;
    drop(state);
    let mut later = lock(LATER.get());
    if !later.has_thread && hca_process::spawn("hca-cm-later", run).is_err() {
        return false;
    }
    later.has_thread = true;
    later.waiting.push((at, Arc::downgrade(id)));
    true
}

fn run() {
    loop {
        let now = Instant::now();
        let mut later = lock(LATER.get());
        let (due, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut later.waiting).into_iter().partition(|(at, _)| *at <= now);
        later.waiting = waiting;
        let next = later.waiting.iter().map(|(at, _)| at.saturating_duration_since(now)).min();
        later.has_thread = next.is_some() || !due.is_empty();
        let ends = !later.has_thread;
        drop(later);
        if ends {
            return;
        }
        due.iter().filter_map(|(_, id)| id.upgrade()).for_each(|id| again(&id, connect::once_more));
        if let Some(next) = next.filter(|_| due.is_empty()) {
            std::thread::sleep(next.min(LOOK));
        }
    }
}

/// Repeats a request. A panic, which its hook has told, is the end of that request, and not of the others.
fn again(id: &Arc<Id>, once_more: impl FnOnce(&Arc<Id>)) {
    if catch_unwind(AssertUnwindSafe(|| once_more(id))).is_err() {
        connect::fail(id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::Channel;
    use super::super::id::Phase;
    use super::*;

    #[test]
    fn a_request_whose_repetition_panics_has_its_event_and_is_the_only_one_to_fail() {
        let channel = Channel::new().unwrap();
        let ids = [(); 3].map(|()| Id::new(&channel, std::ptr::null_mut(), 0x106, 2));
        ids.iter().for_each(|id| id.state().phase = Phase::Connecting);
        for (n, id) in ids.iter().enumerate() {
            again(id, |id| {
                let _state = id.state();
                assert_ne!(n, 1, "for the test");
            });
        }
        assert_eq!([0, 1, 2].map(|n| channel.take(&ids[n]).len()), [0, 1, 0]);
        assert!(ids[1].state().phase == Phase::Ended);
    }
}
