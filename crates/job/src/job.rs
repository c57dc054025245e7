//! [`Job`]: a process's membership in its job.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use hca_process::Fork;

use crate::card::MAX_CARD_BYTES;
use crate::environment::{self, Found};
use crate::error::JobError;
use crate::files::Files;
use crate::inherited;
use crate::link::Link;
use crate::pmi::{Greeted, Pmi, greet_launcher, greet_rank_zero};
use crate::server::Server;
use crate::url::{JobUrl, MAX_SIZE, Place};

/// The environment variable that limits each call, in seconds.
pub const TIMEOUT_VARIABLE: &str = "HCA_JOB_TIMEOUT";

/// The job that this process found in its environment, as long as a clone of it exists.
static FOUND: Mutex<Option<Weak<Inner>>> = Mutex::new(None);

/// The settings of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The time limit of a call's wait for an answer, or for the other processes; 60 s by default.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(60) }
    }
}

/// A process's membership in its job. Clones are the same membership.
///
/// All calls block, for [`Settings::timeout`] at most. The drop of the last clone leaves the job, too. It does not wait
/// for other processes, and waits at most a second for the launcher's answer (`mpiexec.hydra` ends a job in which a
/// process ends before the answer). A thread of rank 0 of a `tcp://` rendezvous goes on to serve those that have joined,
/// and for [`Settings::timeout`] those that are still to come.
#[derive(Clone, Debug)]
pub struct Job {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    rank: u32,
    size: u32,
    id: u32,
    way: Way,
    timeout: Duration,
    published: AtomicBool,
    fenced: AtomicBool,
    left: AtomicBool,
    fork: Fork,
}

#[derive(Debug)]
enum Way {
    /// The only process of its job; its card.
    Alone(Mutex<Option<Vec<u8>>>),
    /// A launcher, or rank 0, serves; rank 0 of a TCP rendezvous has the server.
    Served { pmi: Pmi, server: Mutex<Option<Server>> },
    /// A folder.
    Files(Files),
}

impl Job {
    /// The job that the environment names: see the [crate's page](crate). A second call in the same process returns the
    /// same job, as long as the first one lives.
    ///
    /// # Errors
    /// [`JobError::Value`], [`JobError::Missing`] and others name the fault in the environment; [`JobError::Left`] if
    /// this process was in the job before; the other errors tell why the other processes can't be found.
    pub fn from_env() -> Result<Self, JobError> {
        Self::from_env_with(Settings::default())
    }

    /// The job that the environment names, with settings, which the environment overrides.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_env_with(settings: Settings) -> Result<Self, JobError> {
        let mut known = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = known.as_ref().and_then(Weak::upgrade) {
            return Ok(Self { inner });
        }
        let variable = |name: &str| std::env::var_os(name);
        let timeout = environment::timeout(variable)?.unwrap_or(settings.timeout);
        let settings = Settings { timeout };
        let found = environment::find(variable)?;
        if known.is_some() && found != Found::Alone {
            return Err(JobError::Left);
        }
        let job = match found {
            Found::Alone => Self::alone(),
            Found::Rendezvous(url) => Self::meet(&url, settings)?,
            Found::Port { address, id } => {
                let Greeted { link, rank, size } = greet_launcher(&address, &id, timeout)?;
                Self::served(link, (rank, size), None, settings)?
            }
            Found::Descriptor { fd, rank, size } => {
                let taken = inherited::take(fd).map_err(|source| JobError::Descriptor { fd, source })?;
                Self::over(taken.ok_or(JobError::Left)?, rank, size, settings)?
            }
        };
        *known = Some(Arc::downgrade(&job.inner));
        Ok(job)
    }

    /// A job of this process alone.
    pub fn alone() -> Self {
        let name = format!("alone {} {:016x}", std::process::id(), random());
        Self::new((0, 1), &name, Way::Alone(Mutex::new(None)), Settings::default())
    }

    /// The job that a text names, as `HCA_JOB` does.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn join(url: &str, settings: Settings) -> Result<Self, JobError> {
        Self::meet(&JobUrl::parse(url)?, settings)
    }

    /// A job over a stream socket whose other end speaks PMI-1, as `PMI_FD` names one.
    ///
    /// # Errors
    /// [`JobError::NoSuchRank`], [`JobError::Value`] for the numbers; others for the other end's answers.
    pub fn over(socket: OwnedFd, rank: u32, size: u32, settings: Settings) -> Result<Self, JobError> {
        Self::served(Link::new(socket, settings.timeout), (rank, size), None, settings)
    }

    fn meet(url: &JobUrl, settings: Settings) -> Result<Self, JobError> {
        let (rank, size) = (url.rank, url.size);
        let place = (rank, size, &*url.id);
        match &url.place {
            Place::Folder(dir) => {
                let files = Files::join(dir, place, settings.timeout)?;
                let name = files.name.clone();
                Ok(Self::new((rank, size), &name, Way::Files(files), settings))
            }
            Place::Address(address) if rank == 0 => {
                let failed = |source| JobError::Listen { address: address.clone(), source };
                let listener = TcpListener::bind(&**address).map_err(failed)?;
                let name = format!("{}-{:016x}", url.id, random());
                let server = Server::listening(size, &name, listener, &url.id)?;
                let link = Link::new(server.attach(0)?, settings.timeout);
                Self::served(link, (rank, size), Some(server), settings)
            }
            Place::Address(address) => {
                let greeted = greet_rank_zero(address, place, settings.timeout)?;
                Self::served(greeted.link, (greeted.rank, greeted.size), None, settings)
            }
        }
    }

    fn served(
        link: Link,
        (rank, size): (u32, u32),
        server: Option<Server>,
        settings: Settings,
    ) -> Result<Self, JobError> {
        if !(1..=MAX_SIZE).contains(&size) {
            let value = size.to_string().into();
            return Err(JobError::Value { name: "size", value, wanted: "a number from 1 to 1048576" });
        }
        if rank >= size {
            return Err(JobError::NoSuchRank { rank, size });
        }
        let pmi = Pmi::start(link)?;
        let name = pmi.name.clone();
        Ok(Self::new((rank, size), &name, Way::Served { pmi, server: Mutex::new(server) }, settings))
    }

    fn new((rank, size): (u32, u32), name: &str, way: Way, settings: Settings) -> Self {
        let inner = Inner {
            rank,
            size,
            id: digest(name),
            way,
            timeout: settings.timeout,
            published: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            left: AtomicBool::new(false),
            fork: Fork::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The rank of this process, from 0.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// The number of processes of the job.
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// A number of the job: the same for all of its processes, most likely different for another job, and neither 0 nor
    /// `u32::MAX`.
    pub fn id(&self) -> u32 {
        self.inner.id
    }

    /// Publishes this process's card, of at most [`MAX_CARD_BYTES`]. Only once; other processes see the card after the
    /// next [`fence`](Self::fence).
    ///
    /// # Errors
    /// [`JobError::CardTooLong`], [`JobError::PublishedBefore`], and errors of the connection.
    pub fn publish(&self, card: &[u8]) -> Result<(), JobError> {
        let inner = self.present()?;
        if card.len() > MAX_CARD_BYTES {
            return Err(JobError::CardTooLong { bytes: card.len(), limit: MAX_CARD_BYTES });
        }
        if inner.published.swap(true, Ordering::AcqRel) {
            return Err(JobError::PublishedBefore);
        }
        match &inner.way {
            Way::Alone(own) => *own.lock().unwrap_or_else(PoisonError::into_inner) = Some(card.to_vec()),
            Way::Served { pmi, .. } => pmi.publish(inner.rank, card)?,
            Way::Files(files) => files.publish(card)?,
        }
        Ok(())
    }

    /// Waits until all processes have called this; afterwards the cards that they published before can be read.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn fence(&self) -> Result<(), JobError> {
        self.barrier()?;
        self.inner.fenced.store(true, Ordering::Release);
        Ok(())
    }

    /// The card of a rank, at any time after the first [`fence`](Self::fence). Each call requests the card again.
    ///
    /// # Errors
    /// [`JobError::NoSuchRank`], [`JobError::BeforeFence`]; [`JobError::NoCard`] and [`JobError::BadCard`] if that
    /// process published no card; and errors of the connection.
    pub fn card(&self, rank: u32) -> Result<Vec<u8>, JobError> {
        let inner = self.present()?;
        if rank >= inner.size {
            return Err(JobError::NoSuchRank { rank, size: inner.size });
        }
        if !inner.fenced.load(Ordering::Acquire) {
            return Err(JobError::BeforeFence);
        }
        match &inner.way {
            Way::Alone(own) => {
                let own = own.lock().unwrap_or_else(PoisonError::into_inner);
                own.clone().ok_or(JobError::NoCard { rank })
            }
            Way::Served { pmi, .. } => pmi.card(rank),
            Way::Files(files) => files.card(rank),
        }
    }

    /// Waits until all processes have called this.
    ///
    /// # Errors
    /// [`JobError::BarrierFailed`] as soon as a process has ended or left; [`JobError::Aborted`];
    /// [`JobError::TimedOut`] or [`JobError::Missed`]; and errors of the connection. The job is unusable then.
    pub fn barrier(&self) -> Result<(), JobError> {
        match &self.present()?.way {
            Way::Alone(_) => Ok(()),
            Way::Served { pmi, .. } => pmi.barrier(),
            Way::Files(files) => files.barrier(),
        }
    }

    /// Ends the job: the launcher ends all processes, this one too, and takes `code` as its exit code; without a
    /// launcher, the next call of the other processes returns [`JobError::Aborted`]. This call returns, also while
    /// another thread waits at a barrier; the process is expected to exit afterwards.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn abort(&self, code: i32, message: &str) -> Result<(), JobError> {
        match &self.present()?.way {
            Way::Alone(_) => Ok(()),
            Way::Served { pmi, .. } => pmi.abort(code, message),
            Way::Files(files) => files.abort(code, message),
        }
    }

    /// Leaves the job, for all clones; a second call does nothing. Rank 0 of a `tcp://` rendezvous serves the others,
    /// and so waits until all of them have left.
    ///
    /// # Errors
    /// [`JobError::StillPresent`], and errors of the connection.
    pub fn finalize(&self) -> Result<(), JobError> {
        let inner = &*self.inner;
        if inner.left.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match &inner.way {
            Way::Alone(_) => Ok(()),
            Way::Files(files) => files.leave(),
            Way::Served { pmi, server } => {
                pmi.leave()?;
                let server = server.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(server) = server else { return Ok(()) };
                server.wait_all_left(inner.timeout).map_err(|present| {
                    server.linger(Duration::ZERO);
                    JobError::StillPresent { present, timeout: inner.timeout }
                })
            }
        }
    }

    /// The place, unless it was left.
    fn present(&self) -> Result<&Inner, JobError> {
        if self.inner.left.load(Ordering::Acquire) { Err(JobError::Left) } else { Ok(&self.inner) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The place is the parent's.
        if *self.left.get_mut() || self.fork.is_child() {
            return;
        }
        match &mut self.way {
            Way::Alone(_) => {}
            // No process can be informed.
            Way::Files(files) => drop(files.leave()),
            Way::Served { pmi, server } => {
                pmi.hang_up();
                if let Some(server) = server.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
                    server.linger(self.timeout);
                }
            }
        }
    }
}

/// A hash of a name: FNV-1a, except the values that layers above use for "any" and "none".
fn digest(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    if hash == 0 || hash == u32::MAX { 1 } else { hash }
}

/// A random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // A system without it: the clock and the process tell apart what there is.
        _ => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            now.as_nanos() as u64 ^ u64::from(std::process::id()) << 48
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_is_rank_0_of_1_and_reads_its_own_card() {
        let job = Job::alone();
        assert_eq!((job.rank(), job.size()), (0, 1));
        assert!(matches!(job.card(0), Err(JobError::BeforeFence)));
        job.fence().unwrap();
        assert!(matches!(job.card(0), Err(JobError::NoCard { rank: 0 })));
        job.publish(b"me").unwrap();
        assert!(matches!(job.publish(b"again"), Err(JobError::PublishedBefore)));
        assert_eq!(job.card(0).unwrap(), b"me");
        assert!(matches!(job.card(1), Err(JobError::NoSuchRank { rank: 1, size: 1 })));
        job.finalize().unwrap();
        job.finalize().unwrap();
        assert!(matches!(job.barrier(), Err(JobError::Left)));
    }

    #[test]
    fn the_longest_card_is_taken_and_a_longer_one_refused() {
        let job = Job::alone();
        let e = job.publish(&[0; MAX_CARD_BYTES + 1]).unwrap_err();
        assert!(matches!(e, JobError::CardTooLong { bytes: 65537, limit: 65536 }), "{e}");
        job.publish(&[0; MAX_CARD_BYTES]).unwrap();
    }

    #[test]
    fn ids_are_those_of_fnv_and_never_any_or_none() {
        assert_eq!(digest(""), 0x811c_9dc5);
        assert_eq!(digest("foobar"), 0xbf9c_f968);
        assert_ne!(Job::alone().id(), Job::alone().id());
    }
}
