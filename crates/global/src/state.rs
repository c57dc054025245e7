//! What the handlers of a process change.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_am::{Bundle, EndpointId, Error as AmError, Message, Reason, Segment, Token};
use rustc_hash::FxHashMap;

/// Requests.
pub(crate) const READ: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const STORE: u16 = 3;
pub(crate) const STORED: u16 = 4;
pub(crate) const CALL: u16 = 5;
pub(crate) const BARRIER: u16 = 6;
pub(crate) const DATA: u16 = 7;
pub(crate) const BYE: u16 = 8;
/// Replies.
pub(crate) const VALUE: u16 = 9;
pub(crate) const DONE: u16 = 10;

/// A procedure that runs at the process that has the memory.
pub(crate) type Procedure = Box<dyn FnMut(&Segment, &[u64]) -> u64 + Send>;

/// A part of a collective's message, with the length of all of it, if the sender says that.
type Part = (Option<u32>, Vec<u8>);

#[derive(Default)]
pub(crate) struct State {
    /// Values that have come, by the numbers of their reads.
    pub(crate) values: FxHashMap<u32, Vec<u8>>,
    /// Reads, writes and calls that have ended.
    pub(crate) ended: u64,
    /// Bytes that stores have brought.
    pub(crate) stored: u64,
    /// Messages of barriers, by epoch and round.
    pub(crate) arrived: FxHashMap<(u32, u32), u32>,
    /// Parts of messages of collectives, by their number and their sender.
    pub(crate) parts: FxHashMap<(u32, u32), VecDeque<Part>>,
    /// Processes that have said good-bye.
    pub(crate) left: Vec<bool>,
    pub(crate) procedures: Vec<Procedure>,
    /// Messages that came back: the process, the reason and the handler.
    pub(crate) back: Vec<(usize, Reason, u16)>,
}

pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The arguments with a place and a length.
pub(crate) fn place(args: &[u32]) -> Option<(u64, usize)> {
    let &[low, high, len, ..] = args else { return None };
    Some((u64::from(high) << 32 | u64::from(low), len as usize))
}
pub(crate) fn words(offset: u64) -> [u32; 2] {
    [offset as u32, (offset >> 32) as u32]
}
/// Whether bytes lie in a segment.
fn inside(segment: &Segment, offset: u64, len: usize) -> bool {
    usize::try_from(offset).is_ok_and(|offset| offset <= segment.len() && len <= segment.len() - offset)
}

/// Replies; a requester that is gone is noticed elsewhere.
fn answer(replied: Result<(), AmError>) {
    drop(replied);
}

/// Sets the handlers. Requests that name places outside of the segment are dropped: no process of this library sends
/// any.
pub(crate) fn handlers(
    bundle: &mut Bundle,
    ep: EndpointId,
    state: &Arc<Mutex<State>>,
) -> Result<(), AmError> {
    bundle.set_handler(ep, READ, |message: &Message<'_>, token: Token<'_>| {
        let (Some(segment), Some((offset, len))) = (message.segment(), place(message.args())) else { return };
        if len <= 4096 && inside(segment, offset, len) {
            let mut bytes = [0; 4096];
            segment.read_at(offset as usize, &mut bytes[..len]);
            answer(token.reply_medium(VALUE, &[message.arg(3)], &bytes[..len]));
        }
    })?;
    bundle.set_handler(ep, WRITE, |message, token| {
        if put(message).is_some() {
            answer(token.reply(DONE, &[]));
        }
    })?;
    let own = Arc::clone(state);
    bundle.set_handler(ep, STORE, move |message, _| {
        if let Some(len) = put(message) {
            lock(&own).stored += len as u64;
        }
    })?;
    // The bytes are there.
    let own = Arc::clone(state);
    bundle.set_handler(ep, STORED, move |message, _| {
        lock(&own).stored += message.range().map_or(0, |range| range.len() as u64);
    })?;
    let own = Arc::clone(state);
    bundle.set_handler(ep, CALL, move |message, token| {
        let (Some(segment), [_, _, args @ ..]) = (message.segment(), message.args()) else { return };
        let args: Vec<u64> =
            args.chunks_exact(2).map(|pair| u64::from(pair[1]) << 32 | u64::from(pair[0])).collect();
        let mut state = lock(&own);
        if let Some(procedure) = state.procedures.get_mut(message.arg(1) as usize) {
            let value = procedure(segment, &args);
            answer(token.reply_medium(VALUE, &[message.arg(0)], &value.to_le_bytes()));
        } else {
            answer(token.reply_medium(VALUE, &[message.arg(0)], &[]));
        }
    })?;
    let own = Arc::clone(state);
    bundle.set_handler(ep, BARRIER, move |message, _| {
        *lock(&own).arrived.entry((message.arg(0), message.arg(1))).or_default() += 1;
    })?;
    let own = Arc::clone(state);
    bundle.set_handler(ep, DATA, move |message, _| {
        let key = (message.arg(0), message.arg(1));
        let part = (message.args().get(2).copied(), message.data().to_vec());
        lock(&own).parts.entry(key).or_default().push_back(part);
    })?;
    let own = Arc::clone(state);
    bundle.set_handler(ep, BYE, move |message, _| {
        if let Some(left) = lock(&own).left.get_mut(message.arg(0) as usize) {
            *left = true;
        }
    })?;
    let own = Arc::clone(state);
    bundle.set_handler(ep, VALUE, move |message, _| {
        // A request for it ends nothing.
        if message.is_request() {
            return;
        }
        let mut state = lock(&own);
        state.ended += 1;
        state.values.insert(message.arg(0), message.data().to_vec());
    })?;
    let own = Arc::clone(state);
    bundle.set_handler(ep, DONE, move |message, _| {
        lock(&own).ended += u64::from(!message.is_request());
    })?;
    let own = Arc::clone(state);
    bundle.set_error_handler(ep, move |back| lock(&own).back.push((back.index, back.reason, back.handler)))
}

/// Writes the payload to the place that the arguments name.
fn put(message: &Message<'_>) -> Option<usize> {
    let (segment, (offset, _)) = (message.segment()?, place(message.args())?);
    let len = message.data().len();
    inside(segment, offset, len).then(|| segment.write_at(offset as usize, message.data()))?;
    Some(len)
}
