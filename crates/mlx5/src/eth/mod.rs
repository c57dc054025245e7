//! Ethernet queues of a RoCE port, on which the driver does ARP and neighbour discovery, because no kernel does so
//! behind vfio.
//!
//! A flow table of the adapter steers these frames to the queues: ARP to the broadcast address and to this port, and
//! ICMPv6 to this port and to the solicited-node groups of its IPv6 addresses, also behind options for routers, which
//! queries of multicast listener discovery have. All other frames of the port belong to RDMA, or are dropped.
//!
//! A thread that needs a peer's MAC sends a question and waits ([`Ethernet::find`]). The driver's thread takes and
//! answers frames when the adapter reports some ([`Ethernet::serve`]), a bounded number each time after all its other
//! work. Both work under one lock, which no thread holds while it waits.
//!
//! Departs from RFC 4861: a learned MAC is valid for 30 s and is then asked for again, whether the peer is reachable or
//! not. Departs from RFC 5227 and RFC 4862: the port announces its addresses without a probe for duplicates; a later
//! conflict is detected.

mod queues;
mod setup;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hca_core::wire::neighbour::{Mac, Station, announcement, question};
use hca_vfio::DmaArena;

use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::error::OpenError;
use crate::neighbours::Neighbours;
use crate::port::Port;
use crate::uar::{Uar, Uars};
use queues::Queues;
use setup::Made;

/// The time that a thread waiting for an answer sleeps before it polls by itself.
const LOOK: Duration = Duration::from_millis(5);
/// The first and the longest interval at which a question is repeated.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The queues, and the neighbours that they have reported.
pub(crate) struct Ethernet {
    state: Mutex<State>,
    /// Something was heard.
    news: Condvar,
    /// What the adapter has made for it.
    made: Made,
    cqn: u32,
    /// The completion queue had an event, which nobody has seen to.
    called: AtomicBool,
}

/// The outcome of a question for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is there.
    At(Mac),
    /// Nobody has told.
    Nobody,
    /// The queues are in error, and nobody can be asked.
    Broken,
}

struct State {
    queues: Queues<Uar>,
    neighbours: Neighbours,
    counters: Counters,
}

/// What was said and heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Frames that came.
    pub(crate) heard: u64,
    /// Frames that left.
    pub(crate) said: u64,
    /// Frames that did not leave, as too many were under way.
    pub(crate) tx_dropped: u64,
}

/// With what the queues are made.
pub(crate) struct Means<'a> {
    pub(crate) cmd: &'a CommandQueue,
    pub(crate) arena: &'a DmaArena,
    pub(crate) caps: &'a Caps,
    pub(crate) uars: &'a Uars,
    /// The event queue of completions.
    pub(crate) eqn: u32,
}

impl Ethernet {
    /// Makes the queues of a RoCE port, and tells its neighbours where its addresses are. `None`: the adapter does not
    /// offer such queues, or refuses them to this function, which is logged.
    pub(crate) fn open(means: &Means<'_>, port: &Port, name: &str) -> Result<Option<Self>, OpenError> {
        let Some(stations) = port.stations() else { return Ok(None) };
        if !means.caps.ethernet_queues {
            tracing::warn!(
                "{name} offers no Ethernet queues: its driver can't ask for peers' MACs, nor answer for its own; tell peers' \
                 by `neigh`"
            );
            return Ok(None);
        }
        let mut made = Made::default();
        let neighbours = Neighbours::new(port.mac(), stations.iter().map(|s| s.ip).collect());
        match setup::queues(means, port, &stations, &mut made) {
            Ok((queues, cqn)) => {
                let state = Mutex::new(State { queues, neighbours, counters: Counters::default() });
                let called = AtomicBool::new(false);
                let this = Self { state, news: Condvar::new(), made, cqn, called };
                this.announce();
                Ok(Some(this))
            }
            Err(setup::Failed::Command(e @ CmdError::Refused { .. })) => {
                made.take_back(means.cmd)
                    .map_err(|source| OpenError::Command { name: name.to_owned(), source })?;
                tracing::warn!(
                    "{name}: {e}; so the driver can't resolve peers' MACs, nor answer for its own; give peers' MACs by `neigh`"
                );
                Ok(None)
            }
            Err(e) => {
                // Nobody knows what of it the adapter has.
                made.leak();
                Err(e.open(name))
            }
        }
    }

    /// Has the adapter take all back.
    pub(crate) fn close(&self, cmd: &CommandQueue) -> Result<(), CmdError> {
        self.made.take_back(cmd)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole between any two of its operations.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn counters(&self) -> Counters {
        self.state().counters
    }

    /// Tells switches which groups this port hears, and all neighbours where its addresses are, and listens from now on.
    fn announce(&self) {
        let mut state = self.state();
        // Who asks because of an announcement is heard by then.
        let reports = state.neighbours.first_reports();
        let announcements: Vec<_> = state.neighbours.own().map(announcement).collect();
        for frame in reports.into_iter().chain(announcements) {
            state.say(&frame);
        }
        state.queues.arm();
    }

    /// The adapter has an event of a completion queue. Returns whether it was this one's, which [`serve`](Self::serve)
    /// sees to.
    pub(crate) fn completed(&self, cqn: u32) -> bool {
        let own = cqn == self.cqn;
        if own {
            self.called.store(true, Ordering::Relaxed);
        }
        own
    }
    /// Takes the frames that came, if there was an event. On the driver's thread.
    pub(crate) fn serve(&self) {
        if !self.called.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut state = self.state();
        state.queues.heard();
        state.receive_frames();
        state.queues.arm();
        drop(state);
        self.news.notify_all();
    }
    /// A completion queue is in error.
    pub(crate) fn failed(&self, cqn: u32) {
        if cqn == self.cqn {
            self.state().queues.fail();
        }
    }

    /// A peer's MAC: as it was told a short while ago, or as it tells now that it is asked, from `own`, before
    /// `patience` ends or `alive` says that nothing can come any more. It is asked once at least.
    pub(crate) fn find<E>(
        &self,
        own: Station,
        peer: IpAddr,
        patience: Duration,
        alive: impl Fn() -> Result<(), E>,
    ) -> Result<Found, E> {
        let begun = Instant::now();
        let mut state = self.state();
        state.neighbours.seek(peer);
        let (mut ask_at, mut pause) = (begun, FIRST_PAUSE);
        let found = loop {
            // An interrupt may be lost.
            state.receive_frames();
            let now = Instant::now();
            if let Some(mac) = state.neighbours.known(peer, now) {
                break Ok(Found::At(mac));
            }
            if let Err(e) = alive() {
                break Err(e);
            }
            if state.queues.broken().is_some() {
                break Ok(Found::Broken);
            }
            if now >= ask_at && question(own, peer).is_some_and(|frame| state.say(&frame)) {
                ask_at = now + pause;
                pause = (pause * 2).min(LAST_PAUSE);
            }
            if now.duration_since(begun) >= patience {
                break Ok(Found::Nobody);
            }
            let waited = self.news.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.neighbours.give_up(peer);
        found
    }
}

impl State {
    /// Takes the frames that came, and answers.
    fn receive_frames(&mut self) {
        let well = self.queues.broken().is_none();
        let mut answers = Vec::new();
        let (neighbours, counters, now) = (&mut self.neighbours, &mut self.counters, Instant::now());
        self.queues.poll(|frame| {
            counters.heard += 1;
            answers.extend(neighbours.receive(&frame, now));
            answers.extend(neighbours.answer_query(&frame));
        });
        for answer in answers {
            self.say(&answer);
        }
        if let Some(status) = self.queues.broken().filter(|_| well) {
            tracing::error!(
                %status, "the Ethernet queues are in error: peers' MACs are no longer resolved; open the adapter again"
            );
        }
    }
    /// Sends a frame. Returns whether there was room.
    fn say(&mut self, frame: &[u8]) -> bool {
        let said = self.queues.send(frame);
        *(if said { &mut self.counters.said } else { &mut self.counters.tx_dropped }) += 1;
        said
    }
}
