//! Errors of jobs, when processes look for each other.

use core::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// The reason why a call on a job failed.
#[derive(Error)]
#[non_exhaustive]
pub enum JobError {
    /// A variable of the environment, or a part of a rendezvous, has a wrong value.
    #[error("{name} is `{value}`, but must be {wanted}; correct it, or unset it")]
    Value {
        /// The variable, or the parameter of `HCA_JOB`.
        name: &'static str,
        /// The present value.
        value: Box<str>,
        /// The allowed values.
        wanted: &'static str,
    },
    /// A variable, or a part of a rendezvous, is missing.
    #[error("{beside} is set and {name} is not: the launcher must set both")]
    Missing {
        /// The missing part.
        name: &'static str,
        /// The variable or part that requires it.
        beside: &'static str,
    },
    /// The rank is not below the size.
    #[error("rank {rank} is not in a job of {size} processes: ranks go from 0 to {}", size - 1)]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// The number of processes of the job.
        size: u32,
    },
    /// The descriptor that `PMI_FD` names can't be taken over.
    #[error(
        "PMI_FD is {fd}, which is no open stream socket here: {source}; a program between the launcher and this one may have closed it"
    )]
    Descriptor {
        /// The descriptor.
        fd: i32,
        /// The system's error.
        source: io::Error,
    },
    /// The launcher's connection was taken over before, and has ended.
    #[error(
        "this process has left its job, or could not join it, and can't join a second time: keep a clone of the first `Job`"
    )]
    Left,
    /// No server answers at the address.
    #[error("nobody serves a job at {address}: {source}; is the launcher, or rank 0, running there?")]
    Connect {
        /// The address.
        address: Box<str>,
        /// The system's error.
        source: io::Error,
    },
    /// Rank 0 can't serve at the address.
    #[error(
        "rank 0 can't serve the job at {address}: {source}; end the program that uses the address, or give all processes another one"
    )]
    Listen {
        /// The address.
        address: Box<str>,
        /// The system's error.
        source: io::Error,
    },
    /// A folder or file of the rendezvous can't be used.
    #[error("{doing} with {path:?}: {source}; all processes of the job must be able to read and write there")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// The operation.
        doing: Doing,
        /// The system's error.
        source: io::Error,
    },
    /// A connection broke.
    #[error("the connection to the launcher broke while {doing}: {source}")]
    Connection {
        /// The operation.
        doing: Doing,
        /// The system's error.
        source: io::Error,
    },
    /// The launcher, or rank 0, closed the connection.
    #[error("the launcher closed the connection while {doing}: it has ended, or ends the job")]
    Closed {
        /// The operation.
        doing: Doing,
    },
    /// The other side did not answer in time.
    #[error(
        "no answer for {timeout:?} while {doing}; a process may hang, or may not have been started: HCA_JOB_TIMEOUT gives more time, in seconds"
    )]
    TimedOut {
        /// The operation.
        doing: Doing,
        /// The limit.
        timeout: Duration,
    },
    /// Some processes did not reach a barrier in time.
    #[error(
        "{missing} of {size} processes did not come to the barrier within {timeout:?}, rank {first} the first of them: was it started, with the same HCA_JOB? HCA_JOB_TIMEOUT gives more time, in seconds"
    )]
    Missed {
        /// The first rank that did not reach it.
        first: u32,
        /// The number of processes that did not.
        missing: u32,
        /// The number of processes.
        size: u32,
        /// The limit.
        timeout: Duration,
    },
    /// A line is not a line of PMI-1, or not the expected one.
    #[error("the launcher sent {line:?} while {doing}: {fault}; does it speak PMI-1?")]
    Line {
        /// The operation.
        doing: Doing,
        /// The line, or its beginning.
        line: Box<str>,
        /// The fault of the line.
        fault: LineFault,
    },
    /// The launcher refused.
    #[error("the launcher refused while {doing}, with code {code}: {message}")]
    Refused {
        /// The operation.
        doing: Doing,
        /// The launcher's error code.
        code: i64,
        /// The message.
        message: Box<str>,
    },
    /// The launcher speaks another version.
    #[error("the launcher speaks PMI {version}.{subversion}, this side 1.1; Slurm: use --mpi=pmi2")]
    Version {
        /// The version of the protocol.
        version: i64,
        /// The subversion of the protocol.
        subversion: i64,
    },
    /// The launcher's limits leave no room for a card.
    #[error(
        "the launcher takes keys of {key} and values of {value} bytes; a card needs keys of 24 and values of 64"
    )]
    Limits {
        /// Bytes of the longest key.
        key: i64,
        /// Bytes of the longest value.
        value: i64,
    },
    /// The connection is out of step since an earlier error.
    #[error("an earlier error made the connection to the launcher unusable: end this process")]
    Broken,
    /// The card is too long.
    #[error("the card has {bytes} bytes, {limit} at most are allowed")]
    CardTooLong {
        /// The length of the card.
        bytes: usize,
        /// [`MAX_CARD_BYTES`](crate::MAX_CARD_BYTES).
        limit: usize,
    },
    /// This process has published a card already.
    #[error("this process has published its card already: publish once")]
    PublishedBefore,
    /// Cards can be read only after a fence.
    #[error("cards of other processes can be read after a fence: call `fence` first")]
    BeforeFence,
    /// The process passed the fence without a card.
    #[error("rank {rank} has published no card: it must call `publish` before `fence`")]
    NoCard {
        /// The rank.
        rank: u32,
    },
    /// The published data is not a card.
    #[error(
        "the data that rank {rank} published is not a card: does another program, or another version, take part in the job?"
    )]
    BadCard {
        /// The rank.
        rank: u32,
    },
    /// Another process has the rank.
    #[error(
        "rank {rank} is in use: two processes have one rank, or one was started again; start the job again, with another id{at}"
    )]
    RankTaken {
        /// The rank.
        rank: u32,
        /// The place of that record: ` (PATH)`, or empty.
        at: Box<str>,
    },
    /// Processes disagree about the size of the job.
    #[error(
        "the size of the job is {ours} in this process and {theirs} in the others: give all the same size"
    )]
    WrongSize {
        /// The size in this process's environment.
        ours: u32,
        /// The size in the other processes' environment.
        theirs: u32,
    },
    /// Another job serves at the address.
    #[error(
        "another job, not `{ours}`, uses this address: give each job its own address, and all its processes one id"
    )]
    WrongJob {
        /// The id in this process's environment.
        ours: Box<str>,
    },
    /// A process called `abort`.
    #[error("rank {rank} aborted the job with code {code}: {message}")]
    Aborted {
        /// Which.
        rank: u32,
        /// The exit code.
        code: i32,
        /// The message.
        message: Box<str>,
    },
    /// A barrier can't complete, because a process has ended or left.
    #[error("the barrier can't complete: rank {rank} has ended or left the job")]
    BarrierFailed {
        /// Which.
        rank: u32,
    },
    /// A process did not leave the job in time.
    #[error(
        "{present} processes have not left the job after {timeout:?}; they lose their server when rank 0 ends: all must call `finalize`"
    )]
    StillPresent {
        /// The number of present processes.
        present: u32,
        /// The limit.
        timeout: Duration,
    },
    /// The system refused a thread or a descriptor.
    #[error("no {what} to serve the job: {source}")]
    System {
        /// The requested value.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// As `Display`, for a `main` that returns the error.
impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The fault in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LineFault {
    /// The line has no end within the limit.
    #[error("the line is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The line has bytes that are not printable text.
    #[error("it is not text")]
    NotText,
    /// A word of the line is not a pair.
    #[error("it is not made of key=value")]
    NotPairs,
    /// The line does not answer the request.
    #[error("the answer begins with cmd={wanted}")]
    Unexpected {
        /// The expected answer.
        wanted: &'static str,
    },
    /// A value is missing.
    #[error("it lacks {key}=")]
    Lacks {
        /// The key.
        key: &'static str,
    },
    /// A value is not a number, or is out of range.
    #[error("{key}= has no possible value")]
    Value {
        /// The key.
        key: &'static str,
    },
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doing {
    /// Joining the job.
    Join,
    /// Publishing a card.
    Publish,
    /// Reading a card.
    Card,
    /// Waiting for all other processes.
    Barrier,
    /// Ending the job for all processes.
    Abort,
    /// Leaving.
    Leave,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "joining the job",
            Self::Publish => "publishing a card",
            Self::Card => "reading a card",
            Self::Barrier => "waiting for the others",
            Self::Abort => "aborting the job",
            Self::Leave => "leaving the job",
        })
    }
}
