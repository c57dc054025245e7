//! A node as one of the processes of a job.

use std::sync::Arc;

use hca_job::{Job, JobError};
use hca_matching::{Jid, Rank};
use hca_verbs::Context;

use crate::{Card, Directory, DirectoryError, Node, NodeOptions, OpenError};

hca_core::debug_as_display!(JoinError);

/// An error of joining a job.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The node can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Publishing to the other processes, or waiting for them, failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The data that rank 0 published is invalid.
    #[error(
        "rank 0 of the job published {length} bytes, which are not a node's card: do all processes run the same version?"
    )]
    Card {
        /// The number of bytes.
        length: usize,
    },
    /// The system gives no random numbers.
    #[error("drawing the job's secret: {0}")]
    Random(std::io::Error),
}

/// The processes of a job, by rank. A card is asked for when it is wanted.
struct Ranks(Arc<Job>);

/// A card, and behind it the job's secret, as rank 0 drew it.
const KEYED: usize = Card::BYTES + 8;

impl Directory for Ranks {
    fn size(&self) -> Option<u32> {
        Some(self.0.size())
    }
    fn by_rank(&self, rank: Rank) -> Result<Card, DirectoryError> {
        if rank.0 >= self.0.size() {
            return Err(DirectoryError::Rank { rank });
        }
        let bytes = self.0.card(rank.0).map_err(|e| DirectoryError::Asking { source: e.into() })?;
        bytes.get(..Card::BYTES).and_then(Card::from_bytes).ok_or(DirectoryError::Rank { rank })
    }
}

impl Node {
    /// Opens a node as one of the processes of a job, and waits until all processes have done so. Ranks are those of
    /// the job, and the node asks the job for the other processes. Nodes without the job's secret, which rank 0 draws,
    /// get no answer. Directory, rank, job and secret of `options` are ignored.
    ///
    /// # Errors
    /// The device's limits; the job can't be asked, or a process does not join in time.
    pub fn join(context: &Context, job: &Arc<Job>, options: NodeOptions) -> Result<Self, JoinError> {
        let options = NodeOptions {
            rank: Some(Rank(job.rank())),
            jid: Jid(job.id()),
            directory: Arc::new(Ranks(Arc::clone(job))),
            ..options
        };
        let node = Self::open(context, options)?;
        let mut card = node.card().to_bytes().to_vec();
        if job.rank() == 0 {
            let mut key = [0; 8];
            rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| JoinError::Random(e.into()))?;
            card.extend(key);
        }
        job.publish(&card)?;
        job.fence()?;
        let first = job.card(0)?;
        let length = first.len();
        let keyed: [u8; KEYED] = first.try_into().map_err(|_| JoinError::Card { length })?;
        let key = keyed.last_chunk().expect("the secret is behind the card");
        node.with(|state| state.set_key(u64::from_be_bytes(*key)));
        Ok(node)
    }
}
