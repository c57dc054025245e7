//! Unexpected headers: an entry of the overflow list took them, and they wait for an entry of the priority list.
//!
//! The mirror image of a match list: the headers are stored, and the searching entry has the wildcards. A search for
//! one process and all match bits goes by hash, any other search by a stream over the headers in the order of their
//! arrival.

use crate::chains::{Chains, Seed};
use crate::dense::{self, Block, Dense, NONE};
use crate::handle::Slab;
use crate::{Criteria, CtHandle, EqHandle, Header, NiFail, Options};

/// A header that waits, and where its bytes are.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) header: Header,
    /// The entry that holds the bytes.
    pub(crate) entry: u32,
    pub(crate) start: u64,
    pub(crate) offset: u64,
    pub(crate) mlength: u64,
    /// How the bytes came, once they have.
    pub(crate) done: Option<NiFail>,
    /// Who found it while its bytes were still coming.
    pub(crate) claim: Option<Claim>,
    position: u64,
    chain_prev: u32,
    chain_next: u32,
}

/// Who found a header: what is told, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) options: Options,
    pub(crate) user_ptr: u64,
    pub(crate) eq: Option<EqHandle>,
    pub(crate) ct: Option<CtHandle>,
    /// The entry that was appended; a search has none.
    pub(crate) entry: Option<u32>,
}

impl Waiting {
    pub(crate) fn new(header: Header, entry: u32, start: u64, offset: u64, mlength: u64) -> Self {
        Self {
            header,
            entry,
            start,
            offset,
            mlength,
            done: None,
            claim: None,
            position: 0,
            chain_prev: NONE,
            chain_next: NONE,
        }
    }
}

/// The headers that wait at a portal, oldest first.
#[derive(Debug)]
pub(crate) struct Arrivals {
    rows: Dense<5>,
    exact: Chains,
    next_position: u64,
}

/// How far a question has come. What was found may be taken out meanwhile, nothing else.
pub(crate) struct Cursor {
    exact: u32,
    after: u64,
}

impl Arrivals {
    pub(crate) fn new(seed: Seed) -> Self {
        // The last word is the one that every question wants to be 0.
        Self { rows: Dense::new([0, 0, 0, 0, 1]), exact: Chains::new(seed), next_position: 1 }
    }
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
    pub(crate) fn push(&mut self, headers: &mut Slab<Waiting>, index: u32) {
        let position = self.next_position;
        self.next_position += 1;
        let (bits, source) = key(&headers.at(index).header);
        let words = [bits as u32, (bits >> 32) as u32, source as u32, (source >> 32) as u32, 0];
        self.rows.insert(position, index, words);
        let chain = self.exact.entry(bits, source);
        let prev = std::mem::replace(&mut chain.tail, index);
        match prev {
            NONE => chain.head = index,
            prev => headers.at_mut(prev).chain_next = index,
        }
        let waiting = headers.at_mut(index);
        (waiting.position, waiting.chain_prev, waiting.chain_next) = (position, prev, NONE);
    }
    pub(crate) fn remove(&mut self, headers: &mut Slab<Waiting>, index: u32) {
        let &Waiting { position, chain_prev, chain_next, ref header, .. } = headers.at(index);
        let (bits, source) = key(header);
        if chain_prev != NONE {
            headers.at_mut(chain_prev).chain_next = chain_next;
        }
        if chain_next != NONE {
            headers.at_mut(chain_next).chain_prev = chain_prev;
        }
        self.exact.unlink(bits, source, chain_prev, chain_next);
        self.rows.remove(position);
    }
    /// Begins to look for headers that meet these criteria.
    pub(crate) fn cursor(&self, criteria: &Criteria) -> Cursor {
        let exact = match criteria.is_exact() {
            true => self.exact.head(criteria.bits, criteria.source.packed()),
            false => NONE,
        };
        Cursor { exact, after: 0 }
    }
    /// The next of them.
    pub(crate) fn next(
        &self,
        headers: &Slab<Waiting>,
        criteria: &Criteria,
        cursor: &mut Cursor,
    ) -> Option<u32> {
        loop {
            let index = if criteria.is_exact() {
                (cursor.exact != NONE).then_some(cursor.exact)?
            } else {
                let (from, end) = (self.rows.end_before(cursor.after + 1), self.rows.end_before(u64::MAX));
                let (blocks, first) = self.rows.blocks(from, end);
                self.rows.id(find_arrival(blocks, first, from, end, criteria)?)
            };
            let waiting = headers.at(index);
            (cursor.exact, cursor.after) = (waiting.chain_next, waiting.position);
            if criteria.admits(waiting.header.uid, waiting.header.jid) {
                return Some(index);
            }
        }
    }
}

fn key(header: &Header) -> (u64, u64) {
    (header.match_bits, header.initiator.packed())
}

#[inline(never)]
fn find_arrival(
    blocks: &[Block<5>],
    first: usize,
    from: usize,
    end: usize,
    criteria: &Criteria,
) -> Option<usize> {
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let ([low, high], [care_low, care_high]) = (halves(criteria.bits), halves(!criteria.ignore));
    let [source_low, source_high] = halves(criteria.source.packed());
    let [mask_low, mask_high] = halves(criteria.source.mask());
    dense::find(blocks, first, from, end, |c, lane| {
        ((c[0][lane] ^ low) & care_low)
            | ((c[1][lane] ^ high) & care_high)
            | ((c[2][lane] ^ source_low) & mask_low)
            | ((c[3][lane] ^ source_high) & mask_high)
            | c[4][lane]
    })
}
