//! Requests with inline bytes beside pointers, or in several pieces.
//!
//! A request to the adapter has inline bytes in one piece, or names registered memory. So the inline bytes of other
//! requests are copied to registered memory of the queue pair, and the request to the adapter names them there. The
//! bytes of one request lie side by side; their room is freed as requests end, in order.

use core::cell::Cell;
use core::ptr::NonNull;
use std::collections::VecDeque;
use std::sync::Arc;

use hca_core::{Access, Device, Lkey, MrHandle, MrInit, PdHandle, Sge};
use hca_prm::{CmdStatus, CqeSyndrome};
use softhca::SoftHca;

use super::segments::{Part, Places, Segments};
use crate::mkey;
use crate::objects::gone;

/// Bytes of the memory: eight of the longest requests, and many of those that there are.
const BYTES: usize = 8 << 10;

/// Memory of a queue pair for bytes of its requests.
pub(crate) struct Aside {
    hca: Arc<SoftHca>,
    region: MrHandle,
    lkey: Lkey,
    // A vector, whose bytes stay where they are however it is moved; and cells, as the adapter reads others meanwhile.
    memory: Vec<Cell<u8>>,
    /// Where the bytes of the next request begin, counted without end, and where those under way do.
    next: usize,
    first: usize,
    /// Where the bytes of each request under way end, in order.
    ends: VecDeque<usize>,
    /// Where those of the request that is being put together do.
    staged: usize,
}

impl Aside {
    /// Memory of a queue pair in this protection domain.
    pub(crate) fn new(hca: &Arc<SoftHca>, pd: PdHandle) -> Result<Self, CmdStatus> {
        let memory = vec![Cell::new(0); BYTES];
        let addr = NonNull::from(memory.as_slice()).cast();
        let init = MrInit { addr, len: BYTES, iova: 0, access: Access::empty() };
        let (region, index) = mkey::register(hca, pd, &init, 0)?;
        let (hca, lkey) = (hca.clone(), Lkey::new(index << 8));
        Ok(Self { hca, region, lkey, memory, next: 0, first: 0, ends: VecDeque::new(), staged: 0 })
    }

    /// Lists where the bytes of a request are, with those in it set aside. `None`: there is no room until other requests
    /// have ended. Nothing is kept before [`posted`](Self::posted).
    pub(crate) fn list(
        &mut self,
        mut rest: Segments<'_>,
        places: &mut Places,
    ) -> Result<Option<usize>, CqeSyndrome> {
        let (mut parts, mut len) = (rest, 0);
        while let Some(part) = parts.part()? {
            len += if let Part::Bytes(bytes) = part { bytes.len() } else { 0 };
        }
        let rest_of_round = BYTES - self.next % BYTES;
        let mut at = self.next + if rest_of_round < len { rest_of_round } else { 0 };
        if at + len - self.first > BYTES {
            return Ok(None);
        }
        let mut count = 0;
        while let Some(part) = rest.part()? {
            let place = match part {
                Part::Place(place) => place,
                Part::Bytes([]) => continue,
                Part::Bytes(bytes) => {
                    let from = at % BYTES;
                    for (cell, byte) in self.memory[from..].iter().zip(bytes) {
                        cell.set(*byte);
                    }
                    at += bytes.len();
                    Sge { addr: from as u64, len: bytes.len() as u32, lkey: self.lkey }
                }
            };
            *places.get_mut(count).ok_or(CqeSyndrome::LocalQpOpErr)? = place;
            count += 1;
        }
        self.staged = at;
        Ok(Some(count))
    }

    /// The request that was listed last is under way.
    pub(crate) fn posted(&mut self) {
        self.next = self.staged;
        self.ends.push_back(self.next);
    }

    /// The oldest request of those whose bytes were set aside has ended.
    pub(crate) fn ended(&mut self) {
        self.first = self.ends.pop_front().unwrap_or(self.first);
    }

    /// None is under way any more.
    pub(crate) fn empty(&mut self) {
        (self.next, self.first) = (0, 0);
        self.ends.clear();
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let done = self.hca.dereg_mr(self.region);
        if done.is_err() {
            // The adapter may read it still.
            core::mem::forget(core::mem::take(&mut self.memory));
        }
        gone("region of a queue pair's own", done);
    }
}
