//! A match list: it finds the first matching entry, by hash if the entry's criteria are exact, and by one stream over
//! the others.
//!
//! Every entry has a position, a number that grows along the list with gaps between neighbours. Entries with exact
//! criteria (one process and all match bits) are in chains, one for each pair of process and bits, found by a keyed
//! hash. The other entries are rows of a [`Dense`] array. A search merges the two by position, so an exact entry costs
//! the same at any depth, and only the wildcards before it are compared. The links between entries are stored apart
//! from the entries, so that neighbours are close in memory however large entries are.

use crate::Criteria;
use crate::chains::{Chains, Seed};
use crate::dense::{self, Block, Dense, NONE};

/// Between neighbours, so that others fit in between: 31 of them before the list is numbered anew.
const GAP: u64 = 1 << 32;
const FIRST: u64 = 1 << 62;

/// Where an entry is in its list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    position: u64,
    prev: u32,
    next: u32,
    /// Neighbours among the exact entries of equal criteria.
    chain_prev: u32,
    chain_next: u32,
    is_exact: bool,
}

impl Default for Links {
    fn default() -> Self {
        Self { position: 0, prev: NONE, next: NONE, chain_prev: NONE, chain_next: NONE, is_exact: false }
    }
}

/// The links of all entries, by their index.
#[derive(Debug, Default)]
pub(crate) struct Nodes(Vec<Links>);

impl Nodes {
    #[inline]
    fn at(&self, index: u32) -> &Links {
        &self.0[index as usize]
    }
    #[inline]
    fn at_mut(&mut self, index: u32) -> &mut Links {
        &mut self.0[index as usize]
    }
    /// The entry behind this one.
    pub(crate) fn behind(&self, index: u32) -> Option<u32> {
        let next = self.at(index).next;
        (next != NONE).then_some(next)
    }
}

#[derive(Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
    exact: Chains,
    wild: Dense<6>,
}

/// A search under way. The list stays as it is meanwhile.
pub(crate) struct Search {
    bits: u64,
    source: u64,
    /// The next exact candidate.
    exact: u32,
    /// The next wildcard to look at.
    row: usize,
}

impl List {
    pub(crate) fn new(seed: Seed) -> Self {
        // Bit 0 is asked for without counting: no message has it.
        Self {
            head: NONE,
            tail: NONE,
            len: 0,
            exact: Chains::new(seed),
            wild: Dense::new([1, 0, 0, 0, 0, 0]),
        }
    }
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
    pub(crate) fn wild(&self) -> &Dense<6> {
        &self.wild
    }

    /// Begins to look for entries whose match bits match, and whose source does.
    #[inline(always)]
    pub(crate) fn search(&self, bits: u64, source: u64) -> Search {
        let exact = self.exact.head(bits, source);
        Search { bits, source, exact, row: self.wild.head() }
    }
    /// The first such entry in the order of the list.
    #[inline(always)]
    pub(crate) fn first_for(&self, nodes: &Nodes, bits: u64, source: u64) -> Option<u32> {
        let mut search = self.search(bits, source);
        let wild = self.next_before_exact(nodes, &mut search);
        wild.or(if search.exact == NONE { None } else { Some(search.exact) })
    }
    /// The next such entry in the order of the list. Of those that are not exact, some may come whose source is
    /// another.
    #[inline]
    pub(crate) fn next(&self, nodes: &Nodes, search: &mut Search) -> Option<u32> {
        let wild = self.next_before_exact(nodes, search);
        if wild.is_some() {
            return wild;
        }
        let found = search.exact;
        if found == NONE {
            return None;
        }
        search.exact = nodes.at(found).chain_next;
        Some(found)
    }
    /// The next wildcard, if it comes before the next exact candidate.
    #[inline(always)]
    fn next_before_exact(&self, nodes: &Nodes, search: &mut Search) -> Option<u32> {
        if self.wild.len() == 0 {
            return None;
        }
        let (found, row) = self.next_wild(nodes, search.bits, search.source, search.row, search.exact);
        search.row = row;
        found.then(|| self.wild.id(row - 1))
    }
    /// Looks on from a row as far as the next exact candidate: whether an entry was found, and where to look on then.
    /// Found is the one right before that.
    #[inline(never)]
    fn next_wild(&self, nodes: &Nodes, bits: u64, source: u64, from: usize, exact: u32) -> (bool, usize) {
        let before = if exact == NONE { u64::MAX } else { nodes.at(exact).position };
        let end = self.wild.end_before(before);
        if from >= end {
            return (false, from);
        }
        let (blocks, first) = self.wild.blocks(from, end);
        match find_wild(blocks, first, from, end, bits, source) {
            Some(row) => (true, row + 1),
            None => (false, end),
        }
    }
    /// The first entry.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Links an entry before another, or last of all.
    pub(crate) fn insert(&mut self, nodes: &mut Nodes, index: u32, criteria: &Criteria, before: Option<u32>) {
        if nodes.0.len() <= index as usize {
            nodes.0.resize(index as usize + 1, Links::default());
        }
        let next = before.unwrap_or(NONE);
        let prev = if next == NONE { self.tail } else { nodes.at(next).prev };
        let position = match position_between(nodes, prev, next) {
            Some(position) => position,
            None => {
                self.renumber(nodes);
                position_between(nodes, prev, next).expect("there are gaps now")
            }
        };
        let is_exact = criteria.is_exact();
        *nodes.at_mut(index) = Links { position, prev, next, is_exact, ..Links::default() };
        match prev {
            NONE => self.head = index,
            prev => nodes.at_mut(prev).next = index,
        }
        match next {
            NONE => self.tail = index,
            next => nodes.at_mut(next).prev = index,
        }
        self.len += 1;
        if is_exact {
            self.chain(nodes, index, criteria);
        } else {
            self.wild.insert(position, index, wild_row(criteria));
        }
    }
    /// Unlinks an entry.
    pub(crate) fn remove(&mut self, nodes: &mut Nodes, index: u32, criteria: &Criteria) {
        let links = *nodes.at(index);
        match links.prev {
            NONE => self.head = links.next,
            prev => nodes.at_mut(prev).next = links.next,
        }
        match links.next {
            NONE => self.tail = links.prev,
            next => nodes.at_mut(next).prev = links.prev,
        }
        self.len -= 1;
        if !links.is_exact {
            return self.wild.remove(links.position);
        }
        if links.chain_prev != NONE {
            nodes.at_mut(links.chain_prev).chain_next = links.chain_next;
        }
        if links.chain_next != NONE {
            nodes.at_mut(links.chain_next).chain_prev = links.chain_prev;
        }
        self.exact.unlink(criteria.bits, criteria.source.packed(), links.chain_prev, links.chain_next);
    }

    fn renumber(&mut self, nodes: &mut Nodes) {
        let mut wild = Vec::with_capacity(self.wild.len());
        let (mut index, mut position) = (self.head, FIRST);
        while index != NONE {
            let links = nodes.at_mut(index);
            links.position = position;
            if !links.is_exact {
                wild.push(position);
            }
            position += GAP;
            index = links.next;
        }
        self.wild.renumber(wild.into_iter());
    }
    /// Hangs an exact entry into its chain, by its position.
    fn chain(&mut self, nodes: &mut Nodes, index: u32, criteria: &Criteria) {
        let chain = self.exact.entry(criteria.bits, criteria.source.packed());
        let position = nodes.at(index).position;
        let mut prev = chain.tail;
        while prev != NONE && nodes.at(prev).position > position {
            prev = nodes.at(prev).chain_prev;
        }
        let next = match prev {
            NONE => chain.head,
            prev => nodes.at(prev).chain_next,
        };
        match prev {
            NONE => chain.head = index,
            prev => nodes.at_mut(prev).chain_next = index,
        }
        match next {
            NONE => chain.tail = index,
            next => nodes.at_mut(next).chain_prev = index,
        }
        let links = nodes.at_mut(index);
        (links.chain_prev, links.chain_next) = (prev, next);
    }
}

fn position_between(nodes: &Nodes, prev: u32, next: u32) -> Option<u64> {
    let position = |index: u32| nodes.at(index).position;
    match (prev, next) {
        (NONE, NONE) => Some(FIRST),
        // u64::MAX is left out: it stands for no position.
        (prev, NONE) => position(prev).checked_add(GAP).filter(|&p| p != u64::MAX),
        (NONE, next) => position(next).checked_sub(GAP),
        (prev, next) => {
            let (low, high) = (position(prev), position(next));
            (high - low > 1).then(|| low + (high - low) / 2)
        }
    }
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Node and process number, each in 16 bits. What is equal has equal digests; what differs nearly always has not.
fn digest(source: u64) -> u32 {
    let (low, high) = halves(source);
    let fold = |word: u32| (word ^ word >> 16) & 0xffff;
    fold(high) << 16 | fold(low)
}

/// What counts and how, of the match bits and of the source's digest.
fn wild_row(criteria: &Criteria) -> [u32; 6] {
    let (care_low, care_high) = halves(!criteria.ignore);
    let (low, high) = halves(criteria.bits & !criteria.ignore);
    let (mask_low, mask_high) = halves(criteria.source.mask());
    // Each half counts whole or not at all.
    let mask = mask_high & 0xffff_0000 | mask_low & 0xffff;
    [low, high, care_low, care_high, digest(criteria.source.packed()) & mask, mask]
}

#[inline(never)]
fn find_wild(
    blocks: &[Block<6>],
    first: usize,
    from: usize,
    end: usize,
    bits: u64,
    source: u64,
) -> Option<usize> {
    let ((low, high), source) = (halves(bits), digest(source));
    dense::find(blocks, first, from, end, |c, lane| {
        ((low & c[2][lane]) ^ c[0][lane])
            | ((high & c[3][lane]) ^ c[1][lane])
            | ((source & c[5][lane]) ^ c[4][lane])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Nid, Pid, Process, Source};

    struct Model {
        list: List,
        nodes: Nodes,
        criteria: Vec<Criteria>,
        free: Vec<u32>,
        /// In the order of the list.
        plain: Vec<u32>,
    }

    impl Model {
        fn new() -> Self {
            let (nodes, list) = (Nodes::default(), List::new(Seed::new(1)));
            Self { list, nodes, criteria: Vec::new(), free: Vec::new(), plain: Vec::new() }
        }
        fn insert(&mut self, criteria: Criteria, at: usize) {
            let index = self.free.pop().unwrap_or(self.criteria.len() as u32);
            self.criteria.resize(self.criteria.len().max(index as usize + 1), criteria);
            self.criteria[index as usize] = criteria;
            let before = self.plain.get(at).copied();
            self.list.insert(&mut self.nodes, index, &criteria, before);
            self.plain.insert(at, index);
        }
        fn remove(&mut self, at: usize) {
            let index = self.plain.remove(at);
            self.list.remove(&mut self.nodes, index, &self.criteria[index as usize]);
            self.free.push(index);
        }
        fn found(&self, bits: u64, initiator: Process) -> Vec<u32> {
            let mut search = self.list.search(bits, initiator.packed());
            std::iter::from_fn(|| self.list.next(&self.nodes, &mut search)).collect()
        }
        fn wanted(&self, match_bits: u64, initiator: Process) -> Vec<u32> {
            let header = Header { match_bits, initiator, ..Header::default() };
            self.plain.iter().copied().filter(|&i| self.criteria[i as usize].matches(&header)).collect()
        }
    }

    #[test]
    fn all_matches_come_in_the_order_of_the_list_exact_or_not() {
        let mut model = Model::new();
        let mut rng = test_support::random::Rng::new(7);
        let mut draw = move |n: usize| rng.below(n);
        // In either half of the word.
        let bits = [0, 1, 2 << 40, 3 << 40 | 1];
        for step in 0..20_000 {
            if model.plain.len() > 100 && draw(2) == 0 || model.plain.len() > 200 {
                let at = draw(model.plain.len());
                model.remove(at);
            } else {
                let process = Process::physical(Nid(draw(3) as u32), Pid(draw(3) as u32));
                let criteria = match draw(4) {
                    0 | 1 => Criteria::exactly(process, bits[draw(4)]),
                    2 => Criteria { source: Source::ANY, ..Criteria::exactly(process, bits[draw(4)]) },
                    _ => Criteria {
                        source: Source::physical(Some(process.nid()), None),
                        bits: bits[draw(4)],
                        ignore: [0, 1, 3 << 40, u64::MAX][draw(4)],
                        ..Criteria::ANY
                    },
                };
                // Often at the same place, so that gaps close.
                let len = model.plain.len();
                let at = if step % 3 == 0 { draw(len + 1) } else { len.min(3) };
                model.insert(criteria, at);
            }
            let (bits, from) = (bits[draw(4)], Process::physical(Nid(draw(3) as u32), Pid(draw(3) as u32)));
            assert_eq!(model.found(bits, from), model.wanted(bits, from), "step {step}");
        }
    }

    #[test]
    fn a_front_that_is_inserted_at_again_and_again_keeps_its_order() {
        let mut model = Model::new();
        for i in 0..1000u64 {
            let criteria = Criteria::exactly(Process::default(), i % 2);
            model.insert(if i % 3 == 0 { Criteria::ANY } else { criteria }, usize::from(i > 500));
        }
        assert_eq!(model.found(1, Process::default()), model.wanted(1, Process::default()));
    }
}
