//! The rendezvous in a folder that all processes can write to.
//!
//! All files lie in `DIR/hca-job-ID`. Each appears whole: a process writes it under another name and then links it.
//!
//! | file | meaning |
//! |---|---|
//! | `job` | the number of processes, and a number that distinguishes this job from others with its id |
//! | `rank-R` | the process of this rank has joined; it holds a lock on the file (`flock`) as long as it lives |
//! | `card-R` | the card of this rank |
//! | `b-K-R` | this rank has reached its barrier K |
//! | `b-K` | barrier K is complete, or can't complete; written by rank 0 |
//! | `left-R` | this rank has left |
//! | `abort` | the rank that ended the job, its exit code and its message |
//!
//! The last process that leaves removes the folder. A folder of killed processes stays, and keeps other jobs from using
//! its id.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::card::MAX_CARD_BYTES;
use crate::error::{Doing, JobError};

/// How often a file that is not there yet is looked for, once it has been looked for some times.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of the longest file that is no card.
const MAX_NOTE_BYTES: usize = 1024;

/// A process's place in a job that meets in a folder.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    rank: u32,
    size: u32,
    /// What tells this job from all others.
    pub(crate) name: Box<str>,
    /// How many barriers were passed; `None` once one failed.
    barriers: Mutex<Option<u64>>,
    /// Locked while this process lives.
    _claim: File,
    timeout: Duration,
}

impl Files {
    /// Takes this process's place.
    pub(crate) fn join(
        dir: &Path,
        (rank, size, id): (u32, u32, &str),
        timeout: Duration,
    ) -> Result<Self, JobError> {
        let folder = dir.join(format!("hca-job-{id}"));
        let failed = |source| JobError::Folder { path: folder.clone(), doing: Doing::Join, source };
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        // Another user may have made the folder, to plant files that we would read.
        let found = fs::symlink_metadata(&folder).map_err(failed)?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(Errno::PERM.into()));
        }
        let nonce = crate::job::random();
        place(&folder, "job", format!("{size} {nonce:016x}").as_bytes(), |_| Ok(())).map_err(failed)?;
        let said = read(&folder.join("job"), MAX_NOTE_BYTES).map_err(failed)?.unwrap_or_default();
        let theirs =
            said.split(|b| *b == b' ').next().and_then(|s| core::str::from_utf8(s).ok()?.parse().ok());
        let theirs = theirs.ok_or_else(|| failed(ErrorKind::InvalidData.into()))?;
        if theirs != size {
            return Err(JobError::WrongSize { ours: size, theirs });
        }
        // The lock is taken before the file can be seen under its name.
        let claim = format!("rank-{rank}");
        let said_by = format!("process {}\n", std::process::id());
        let lock =
            |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from);
        let Some(file) = place(&folder, &claim, said_by.as_bytes(), lock).map_err(failed)? else {
            return Err(JobError::RankTaken {
                rank,
                at: format!(" ({})", folder.join(claim).display()).into(),
            });
        };
        let name = format!("{id} {}", String::from_utf8_lossy(&said)).into();
        Ok(Self { folder, rank, size, name, barriers: Mutex::new(Some(0)), _claim: file, timeout })
    }

    pub(crate) fn publish(&self, card: &[u8]) -> Result<(), JobError> {
        match place(&self.folder, &format!("card-{}", self.rank), card, |_| Ok(())) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(JobError::PublishedBefore),
            Err(e) => Err(self.failed(Doing::Publish, e)),
        }
    }

    pub(crate) fn card(&self, rank: u32) -> Result<Vec<u8>, JobError> {
        self.aborted(Doing::Card)?;
        match read(&self.at(&format!("card-{rank}")), MAX_CARD_BYTES) {
            Ok(card) => card.ok_or(JobError::NoCard { rank }),
            Err(e) if e.kind() == ErrorKind::InvalidData => Err(JobError::BadCard { rank }),
            Err(e) => Err(self.failed(Doing::Card, e)),
        }
    }

    pub(crate) fn barrier(&self) -> Result<(), JobError> {
        let mut passed = self.barriers.lock().unwrap_or_else(PoisonError::into_inner);
        let k = passed.take().ok_or(JobError::Broken)?;
        self.aborted(Doing::Barrier)?;
        self.note(&format!("b-{k}-{}", self.rank), b"", Doing::Barrier)?;
        let deadline = hca_process::in_time(self.timeout);
        if self.rank == 0 {
            self.gather(k, deadline)?;
        } else {
            self.wait_for_word(k, deadline)?;
        }
        // All processes have reached this barrier, so no process looks at the last one any more.
        if let Some(last) = k.checked_sub(1) {
            let _ = fs::remove_file(self.at(&format!("b-{last}-{}", self.rank)));
            if self.rank == 0 {
                let _ = fs::remove_file(self.at(&format!("b-{last}")));
            }
        }
        *passed = Some(k + 1);
        Ok(())
    }

    /// Rank 0 looks for all others and tells them.
    fn gather(&self, k: u64, deadline: Instant) -> Result<(), JobError> {
        for rank in 1..self.size {
            let came = format!("b-{k}-{rank}");
            if let Err(e) = self.look(k, &came, rank, deadline) {
                if let JobError::BarrierFailed { rank } = e {
                    self.note(&format!("b-{k}"), format!("left {rank}").as_bytes(), Doing::Barrier)?;
                }
                return Err(e);
            }
        }
        self.note(&format!("b-{k}"), b"ok", Doing::Barrier)
    }

    /// The others wait for rank 0's word.
    fn wait_for_word(&self, k: u64, deadline: Instant) -> Result<(), JobError> {
        let word = format!("b-{k}");
        self.look(k, &word, 0, deadline)?;
        let said = read(&self.at(&word), MAX_NOTE_BYTES).map_err(|e| self.failed(Doing::Barrier, e))?;
        let said = String::from_utf8(said.unwrap_or_default()).unwrap_or_default();
        match said.strip_prefix("left ").and_then(|r| r.parse().ok()) {
            Some(rank) => Err(JobError::BarrierFailed { rank }),
            None => Ok(()),
        }
    }

    /// Waits for a file that the process of this rank makes. Looks each time at one of the other processes, too: without
    /// any of them the barrier fails.
    fn look(&self, k: u64, name: &str, rank: u32, deadline: Instant) -> Result<(), JobError> {
        let path = self.at(name);
        let failed = |e| self.failed(Doing::Barrier, e);
        let mut pause = Duration::from_micros(500);
        let mut other = rank;
        loop {
            // In this order: a process that has left may have made the file before.
            let gone = self.gone(rank)?;
            if path.try_exists().map_err(failed)? {
                return Ok(());
            }
            self.aborted(Doing::Barrier)?;
            if gone {
                return Err(JobError::BarrierFailed { rank });
            }
            other = (other + 1) % self.size;
            // In this order, too. One that came here before it left is missed by nobody.
            if other != self.rank
                && self.gone(other)?
                && !self.at(&format!("b-{k}-{other}")).try_exists().map_err(failed)?
            {
                return Err(JobError::BarrierFailed { rank: other });
            }
            if Instant::now() >= deadline {
                return Err(self.missed(k));
            }
            sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
    }

    /// The error that names the ranks missing at a barrier.
    fn missed(&self, k: u64) -> JobError {
        let came = |rank: &u32| self.at(&format!("b-{k}-{rank}")).try_exists().unwrap_or(false);
        let mut missing = (0..self.size).filter(|r| !came(r));
        // If the last came just now, rank 0 did not tell in time.
        let first = missing.next().unwrap_or(0);
        let missing = missing.count() as u32 + 1;
        JobError::Missed { first, missing, size: self.size, timeout: self.timeout }
    }

    /// Whether a process has left, or came and has ended.
    fn gone(&self, rank: u32) -> Result<bool, JobError> {
        let failed = |e| self.failed(Doing::Barrier, e);
        if self.at(&format!("left-{rank}")).try_exists().map_err(failed)? {
            return Ok(true);
        }
        match File::open(self.at(&format!("rank-{rank}"))) {
            // A process's lock ends with it. On a file system without locks, the time limit decides.
            Ok(file) => Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_ok()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(failed(e)),
        }
    }

    pub(crate) fn abort(&self, code: i32, message: &str) -> Result<(), JobError> {
        let words: String = message.chars().take(200).collect();
        self.note("abort", format!("{} {code} {words}", self.rank).as_bytes(), Doing::Abort)
    }

    /// Whether a process has ended the job.
    fn aborted(&self, doing: Doing) -> Result<(), JobError> {
        let said = read(&self.at("abort"), MAX_NOTE_BYTES).map_err(|e| self.failed(doing, e))?;
        let Some(said) = said else { return Ok(()) };
        let said = String::from_utf8_lossy(&said);
        let mut words = said.splitn(3, ' ');
        let mut number = || words.next().and_then(|w| w.parse::<i64>().ok());
        let (rank, code) = (number().unwrap_or(0) as u32, number().unwrap_or(1) as i32);
        Err(JobError::Aborted { rank, code, message: words.next().unwrap_or("").into() })
    }

    /// Leaves, and takes the folder away if all others have left.
    pub(crate) fn leave(&self) -> Result<(), JobError> {
        self.note(&format!("left-{}", self.rank), b"", Doing::Leave)?;
        let entries = match fs::read_dir(&self.folder) {
            // Another leaving process was quicker.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|e| self.failed(Doing::Leave, e))?,
        };
        let left = entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("left-")).count();
        if left as u32 >= self.size {
            // Two processes may get here. The one that renames the folder removes it, and a new job of this id makes a
            // new folder.
            let away = self.folder.with_extension(format!("over-{:016x}", crate::job::random()));
            if fs::rename(&self.folder, &away).is_ok() {
                let _ = fs::remove_dir_all(away);
            }
        }
        Ok(())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn note(&self, name: &str, text: &[u8], doing: Doing) -> Result<(), JobError> {
        place(&self.folder, name, text, |_| Ok(())).map(|_| ()).map_err(|e| self.failed(doing, e))
    }

    fn failed(&self, doing: Doing, source: io::Error) -> JobError {
        JobError::Folder { path: self.folder.clone(), doing, source }
    }
}

/// Makes a file that appears whole, with its lock or whatever `before` does; `None` if there is one of that name.
fn place(
    folder: &Path,
    name: &str,
    bytes: &[u8],
    before: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<Option<File>> {
    let hidden = folder.join(format!(".new-{:016x}", crate::job::random()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&hidden)?;
    let made = file.write_all(bytes).and_then(|()| before(&file)).and_then(|()| {
        match fs::hard_link(&hidden, folder.join(name)) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(None),
            linked => linked.map(|()| Some(file)),
        }
    });
    let _ = fs::remove_file(&hidden);
    made
}

/// A whole file, or `None` if there is none; one beyond the limit is no valid data.
fn read(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit { Err(ErrorKind::InvalidData.into()) } else { Ok(Some(bytes)) }
}
