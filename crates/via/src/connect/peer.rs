//! Peer-to-peer connections: both sides ask, in any order.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hca_cm::Connection;
use hca_verbs::Context;

use super::hello::{Hello, Kind, Refusal};
use super::{Discriminator, NetAddress, RemoteAttributes, ask, end_of, listener, mismatch, timed_out};
use crate::queue_pair::Control;
use crate::tasks::{Alarm, Stop, before};
use crate::vi::ViShared;
use crate::{Error, Vi, ViState};

/// What has come of a peer request.
pub(crate) type PeerOutcome = Result<RemoteAttributes, Error>;

/// The first pause before a peer that has not asked yet is asked again, and the longest one.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A peer request under way. It holds neither the VI nor its protection tag, which the program may destroy meanwhile.
struct Meeting {
    vi: Weak<ViShared>,
    attempt: u64,
    context: Context,
    attributes: RemoteAttributes,
    ours: NetAddress,
    theirs: NetAddress,
    end: Option<Instant>,
}

impl Vi {
    /// Begins to connect to a VI whose program asks for this one in the same way (`VipConnectPeerRequest`). Never waits:
    /// [`peer_done`](Self::peer_done) and [`peer_wait`](Self::peer_wait) tell the end.
    ///
    /// # Errors
    /// The VI is not idle, or both addresses are the same.
    pub fn peer_request(
        &self,
        local: Discriminator,
        remote: &NetAddress,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let vi = self.shared();
        let ours = NetAddress { host: vi.nic.attributes.host, discriminator: local };
        if ours == *remote {
            return Err(Error::Parameter { what: "remote address", why: "it is the local one" });
        }
        let (attempt, control, attributes) = vi.begin()?;
        let stop = Arc::<Stop>::default();
        let mut link = vi.link();
        (link.peer, link.leave) = (None, Some(Arc::clone(&stop)));
        drop(link);
        let means = (stop, vi.nic.tasks.alarm());
        let context = vi.nic.context.clone();
        let (vi_of, end) = (Arc::downgrade(vi), end_of(timeout));
        let meeting = Meeting { vi: vi_of, attempt, context, attributes, ours, theirs: *remote, end };
        let spawned = vi.nic.tasks.spawn(meet(meeting, control, timeout, means));
        if spawned.is_err() {
            vi.fail(attempt, None);
        }
        spawned
    }
    /// The attributes of the peer's VI, once a peer request has ended (`VipConnectPeerDone`); `None` while it is under
    /// way.
    ///
    /// # Errors
    /// The request has failed, which is told once; or there is none.
    pub fn peer_done(&self) -> Result<Option<RemoteAttributes>, Error> {
        outcome(self.shared(), &mut self.shared().link().peer)
    }
    /// Waits for the end of a peer request (`VipConnectPeerWait`), which its time limit brings at the latest.
    ///
    /// # Errors
    /// As [`peer_done`](Self::peer_done).
    pub fn peer_wait(&self) -> Result<RemoteAttributes, Error> {
        let vi = self.shared();
        let mut link = vi.link();
        loop {
            if let Some(remote) = outcome(vi, &mut link.peer)? {
                return Ok(remote);
            }
            link = vi.wait_change(link, None);
        }
    }
}

fn outcome(vi: &ViShared, peer: &mut Option<PeerOutcome>) -> Result<Option<RemoteAttributes>, Error> {
    match peer {
        Some(Ok(remote)) => Ok(Some(remote.clone())),
        Some(Err(_)) => peer.take().expect("it is there").map(Some),
        None if vi.state() == ViState::ConnectPending => Ok(None),
        None => Err(Error::State { state: vi.state(), needs: "there is no peer request" }),
    }
}

/// Makes the connection, and tells the VI.
async fn meet(
    meeting: Meeting,
    control: Control,
    timeout: Option<Duration>,
    (stop, alarm): (Arc<Stop>, Alarm),
) {
    let Some(met) = stop.or(meeting.meet(control, &alarm)).await else { return };
    let met = met.map_err(|error| match error {
        Error::TimedOut(_) => Error::TimedOut(timeout.unwrap_or_default()),
        error => timed_out(error, timeout),
    });
    let (Some(vi), attempt) = (meeting.vi.upgrade(), meeting.attempt) else { return };
    let done = met
        .and_then(|(connection, remote)| vi.succeed(attempt, connection, &remote, Some(Ok(remote.clone()))));
    if let Err(error) = done {
        vi.fail(attempt, Some(Err(error)));
    }
}

type Met = Result<(Connection, RemoteAttributes), Error>;

impl Meeting {
    /// The side with the lower address asks, and the other one waits to be asked.
    async fn meet(&self, control: Control, alarm: &Alarm) -> Met {
        if self.ours < self.theirs {
            return self.ask(&control, alarm).await;
        }
        let Some(end) = self.end else { return self.wait(control).await };
        before(alarm.sleep_until(end), self.wait(control))
            .await
            .unwrap_or(Err(Error::TimedOut(Duration::ZERO)))
    }
    fn hello(&self) -> Hello {
        let [local, remote] = [self.ours, self.theirs].map(|address| address.discriminator);
        Hello { kind: Kind::Peer, local, remote, attributes: self.attributes.clone() }
    }
    /// Asks again and again while the other side does not wait yet.
    async fn ask(&self, control: &Control, alarm: &Alarm) -> Met {
        let mut pause = PAUSE;
        loop {
            match ask(&self.context, control, self.theirs.host, &self.hello(), self.end).await {
                Err(Error::NoMatch) => {}
                asked => return asked,
            }
            let again = Instant::now() + pause;
            if self.end.is_some_and(|end| end <= again) {
                return Err(Error::TimedOut(Duration::ZERO));
            }
            alarm.sleep_until(again).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
    /// Waits to be asked. A peer that has asked and gives up before it is connected, or before its request came here,
    /// may ask again.
    async fn wait(&self, mut control: Control) -> Met {
        let listener = listener::bind(&self.context, &self.ours.discriminator)?;
        loop {
            let incoming = listener.accept_async().await?;
            let hello = Hello::parse(incoming.private_data());
            let host = incoming.source().ip();
            let wanted = |hello: &Hello| {
                let from = NetAddress { host, discriminator: hello.local };
                hello.kind == Kind::Peer && from == self.theirs && hello.remote == self.ours.discriminator
            };
            let Some(hello) = hello.filter(wanted) else {
                listener::refuse(incoming, Refusal::NoMatch);
                continue;
            };
            if let Some(refusal) = mismatch(&self.attributes, &hello.attributes) {
                listener::refuse(incoming, refusal);
                return Err(refusal.error());
            }
            match listener::accept(incoming, &control, &self.hello()).await {
                Ok(connection) => return Ok((connection, hello.attributes)),
                Err(error) => tracing::debug!(%error, "a peer has given its request up"),
            }
            let vi = self.vi.upgrade().ok_or(Error::Rejected)?;
            control = vi.try_again(self.attempt)?;
        }
    }
}
