//! The process's side of PMI-1.
//!
//! ```text
//! process                                launcher
//! cmd=init pmi_version=1 …           ──► cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
//! cmd=get_maxes                      ──► cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
//! cmd=get_my_kvsname                 ──► cmd=my_kvsname kvsname=NAME
//! cmd=put kvsname=NAME key=K value=V ──► cmd=put_result rc=0
//! cmd=barrier_in                     ──► cmd=barrier_out                            once all are in
//! cmd=get kvsname=NAME key=K         ──► cmd=get_result rc=0 value=V
//! cmd=finalize                       ──► cmd=finalize_ack
//! ```
//!
//! Over `PMI_PORT`, and over the TCP rendezvous, `cmd=initack pmiid=ID` goes before, and is answered by `cmd=initack`,
//! `cmd=set size=N`, `cmd=set rank=R` and `cmd=set debug=0`.

use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::card::{Joined, KEY_BYTES, MIN_VALUE_BYTES, key, split};
use crate::error::{Doing, JobError, LineFault};
use crate::line::{Line, word};
use crate::link::{Link, Refusal};

/// How often a server that is not there yet is looked for.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A process's place in a job that is served.
#[derive(Debug)]
pub(crate) struct Pmi {
    link: Link,
    /// The name of the job's values.
    pub(crate) name: Box<str>,
    /// Bytes of the longest value.
    value_limit: usize,
}

/// The result of a greeting over TCP.
pub(crate) struct Greeted {
    pub(crate) link: Link,
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

impl Pmi {
    /// Agrees on the version and asks for the limits.
    pub(crate) fn start(link: Link) -> Result<Self, JobError> {
        let doing = Doing::Join;
        let version = link
            .ask(doing, "cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init", |l| {
                Ok((l.number("pmi_version")?, l.number("pmi_subversion")?))
            })?
            .map_err(|r| r.error(doing))?;
        if version.0 != 1 {
            return Err(JobError::Version { version: version.0, subversion: version.1 });
        }
        let (key, value) = link
            .ask(doing, "cmd=get_maxes\n", "maxes", |l| {
                Ok((l.number("keylen_max")?, l.number("vallen_max")?))
            })?
            .map_err(|r| r.error(doing))?;
        // Both count the zero byte at the end of a string in C.
        let value_limit = usize::try_from(value).unwrap_or(0).saturating_sub(1);
        if key < KEY_BYTES as i64 || value_limit < MIN_VALUE_BYTES - 1 {
            return Err(JobError::Limits { key, value });
        }
        let name = link
            .ask(doing, "cmd=get_my_kvsname\n", "my_kvsname", |l| {
                l.value("kvsname")
                    .filter(|n| !n.is_empty())
                    .map(Box::from)
                    .ok_or(LineFault::Lacks { key: "kvsname" })
            })?
            .map_err(|r| r.error(doing))?;
        Ok(Self { link, name, value_limit })
    }

    pub(crate) fn publish(&self, rank: u32, card: &[u8]) -> Result<(), JobError> {
        for (part, value) in split(card, self.value_limit.max(MIN_VALUE_BYTES)).iter().enumerate() {
            let question = format!("cmd=put kvsname={} key={} value={value}\n", self.name, key(rank, part));
            self.link
                .ask(Doing::Publish, &question, "put_result", |_| Ok(()))?
                .map_err(|r| r.error(Doing::Publish))?;
        }
        Ok(())
    }

    pub(crate) fn barrier(&self) -> Result<(), JobError> {
        self.link
            .ask(Doing::Barrier, "cmd=barrier_in\n", "barrier_out", |_| Ok(()))?
            .map_err(|r| r.error(Doing::Barrier))
    }

    pub(crate) fn card(&self, rank: u32) -> Result<Vec<u8>, JobError> {
        let bad = || JobError::BadCard { rank };
        let first = self.get(rank, 0)?.ok_or(JobError::NoCard { rank })?;
        let mut card = Joined::first(&first).ok_or_else(bad)?;
        for part in 1..card.parts() {
            card.push(&self.get(rank, part)?.ok_or_else(bad)?).ok_or_else(bad)?;
        }
        card.card().ok_or_else(bad)
    }

    /// A value, or `None` if there is none.
    fn get(&self, rank: u32, part: usize) -> Result<Option<Box<str>>, JobError> {
        let question = format!("cmd=get kvsname={} key={}\n", self.name, key(rank, part));
        let value = |l: Line<'_>| l.value("value").map(Box::from).ok_or(LineFault::Lacks { key: "value" });
        match self.link.ask(Doing::Card, &question, "get_result", value)? {
            Ok(value) => Ok(Some(value)),
            Err(refused) if refused.is_abort() => Err(refused.error(Doing::Card)),
            // No launcher says by its code whether a key is missing or the question was wrong.
            Err(_) => Ok(None),
        }
    }

    /// Asks the launcher to end all processes.
    pub(crate) fn abort(&self, code: i32, message: &str) -> Result<(), JobError> {
        self.link.send_line(Doing::Abort, &format!("cmd=abort exitcode={code} message={}\n", word(message)))
    }

    pub(crate) fn leave(&self) -> Result<(), JobError> {
        self.link
            .ask(Doing::Leave, "cmd=finalize\n", "finalize_ack", |_| Ok(()))?
            .map_err(|r| r.error(Doing::Leave))
    }

    /// Leaves, with no more than a moment's wait.
    pub(crate) fn hang_up(&self) {
        self.link.hang_up("cmd=finalize\n");
    }
}

/// Connects to a launcher (`PMI_PORT`), which assigns the rank.
pub(crate) fn greet_launcher(address: &str, id: &str, timeout: Duration) -> Result<Greeted, JobError> {
    let link = Link::new(connect(address, Instant::now())?, timeout);
    link.ask(Doing::Join, &format!("cmd=initack pmiid={id}\n"), "initack", |_| Ok(()))?
        .map_err(|r| r.error(Doing::Join))?;
    greeted(link)
}

/// Connects to rank 0 of the TCP rendezvous, which may come later.
pub(crate) fn greet_rank_zero(
    address: &str,
    (rank, size, id): (u32, u32, &str),
    timeout: Duration,
) -> Result<Greeted, JobError> {
    let link = Link::new(connect(address, hca_process::in_time(timeout))?, timeout);
    let question = format!("cmd=initack pmiid={rank} size={size} job={id}\n");
    let said = link.ask(Doing::Join, &question, "initack", |l| Ok(l.value("job") == Some(id)))?;
    let ours = || -> Box<str> { id.into() };
    let same = said.map_err(|refused: Refusal| match (refused.reason.as_deref(), refused.size) {
        (Some("size"), Some(theirs)) => JobError::WrongSize { ours: size, theirs },
        (Some("taken"), _) => JobError::RankTaken { rank, at: "".into() },
        (Some("job"), _) => JobError::WrongJob { ours: ours() },
        _ => refused.error(Doing::Join),
    })?;
    if !same {
        return Err(JobError::WrongJob { ours: ours() });
    }
    let greeted = greeted(link)?;
    if greeted.size != size {
        return Err(JobError::WrongSize { ours: size, theirs: greeted.size });
    }
    Ok(greeted)
}

/// What follows a greeting.
fn greeted(link: Link) -> Result<Greeted, JobError> {
    let size = link.next(Doing::Join, "set", |l| l.rank("size"))?;
    let rank = link.next(Doing::Join, "set", |l| l.rank("rank"))?;
    link.next(Doing::Join, "set", |l| l.number("debug"))?;
    Ok(Greeted { link, rank, size })
}

/// Connects, and retries until the deadline while no server listens.
fn connect(address: &str, deadline: Instant) -> Result<OwnedFd, JobError> {
    let failed = |source| JobError::Connect { address: address.into(), source };
    loop {
        let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
        for at in address.to_socket_addrs().map_err(failed)? {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
            match TcpStream::connect_timeout(&at, left) {
                // An outgoing connection may get the very port that it connects to, and so connect to itself.
                Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                    last = std::io::ErrorKind::ConnectionRefused.into();
                }
                Ok(stream) => {
                    // One question waits for its answer: there is nothing to gather.
                    stream.set_nodelay(true).map_err(failed)?;
                    return Ok(stream.into());
                }
                Err(e) => last = e,
            }
        }
        if Instant::now() >= deadline {
            return Err(failed(last));
        }
        sleep(RETRY_INTERVAL);
    }
}
