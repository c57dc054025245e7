//! An ordered array, laid out for the search for the first row that matches.
//!
//! The rows are kept by columns, in blocks of [`LANES`], so that the compiler compares several rows at once and memory
//! is read once, front to back. Removing a row leaves a hole, which matches nothing. Holes are removed before they make
//! up a quarter of the searched rows.

/// The rows of a block.
pub(crate) const LANES: usize = 32;
/// No row of the caller's.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Block<const C: usize>([[u32; LANES]; C]);

#[derive(Clone, Copy, Debug)]
struct Row {
    position: u64,
    /// What the caller knows the row by; [`NONE`] in a hole.
    id: u32,
}

/// Rows of `C` words in the order of their positions.
#[derive(Debug)]
pub(crate) struct Dense<const C: usize> {
    blocks: Vec<Block<C>>,
    rows: Vec<Row>,
    /// Rows before this one are holes.
    head: usize,
    live: usize,
    hole: [u32; C],
}

impl<const C: usize> Dense<C> {
    /// `hole` is a row that no question agrees with.
    pub(crate) const fn new(hole: [u32; C]) -> Self {
        Self { blocks: Vec::new(), rows: Vec::new(), head: 0, live: 0, hole }
    }
    /// The first row that is worth looking at.
    #[inline]
    pub(crate) fn head(&self) -> usize {
        self.head
    }
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.live
    }
    pub(crate) fn id(&self, row: usize) -> u32 {
        self.rows[row].id
    }
    /// The bytes that looking through all rows reads.
    pub(crate) fn stream_bytes(&self) -> usize {
        size_of::<Block<C>>() * (self.rows.len().div_ceil(LANES) - self.head / LANES)
    }
    /// All columns' words added up: what it takes to read them.
    pub(crate) fn stream_sum(&self) -> u32 {
        sum(self.blocks(self.head, self.rows.len()).0)
    }
    /// One past the last row whose position is below this one.
    #[inline]
    pub(crate) fn end_before(&self, position: u64) -> usize {
        match self.rows.get(self.head) {
            Some(first) if first.position < position => {
                if self.rows[self.rows.len() - 1].position < position {
                    return self.rows.len();
                }
                self.rows.partition_point(|row| row.position < position)
            }
            _ => self.head,
        }
    }
    /// The blocks with the rows from `from` on and before `end`, and the number of their first row.
    #[inline]
    pub(crate) fn blocks(&self, from: usize, end: usize) -> (&[Block<C>], usize) {
        let first = from / LANES;
        (self.blocks.get(first..end.div_ceil(LANES)).unwrap_or(&[]), first * LANES)
    }

    /// Puts a row in, at its position among the others.
    pub(crate) fn insert(&mut self, position: u64, id: u32, words: [u32; C]) {
        let mut at = self.rows.partition_point(|row| row.position < position);
        self.live += 1;
        let reuses = at > 0 && self.rows[at - 1].id == NONE;
        at -= usize::from(reuses);
        // Holes at the front keep their old positions, which may lie behind this one.
        self.head = self.head.min(at);
        if reuses {
            return self.write(at, Row { position, id }, &words);
        }
        if self.rows.len().is_multiple_of(LANES) {
            self.blocks.push(Block(self.hole.map(|word| [word; LANES])));
        }
        self.rows.push(Row { position, id });
        for row in (at + 1..self.rows.len()).rev() {
            let words = self.read(row - 1);
            self.write(row, self.rows[row - 1], &words);
        }
        self.write(at, Row { position, id }, &words);
    }
    /// Takes out the row at this position.
    pub(crate) fn remove(&mut self, position: u64) {
        let row = self.rows.partition_point(|row| row.position < position);
        assert!(self.rows[row].position == position && self.rows[row].id != NONE, "a row is there");
        self.live -= 1;
        if self.live == 0 {
            self.rows.clear();
            self.blocks.clear();
            self.head = 0;
            return;
        }
        let hole = self.hole;
        self.write(row, Row { position, id: NONE }, &hole);
        while self.rows[self.head].id == NONE {
            self.head += 1;
        }
        let holes = self.rows.len() - self.head - self.live;
        if holes > self.live / 4 + LANES || self.head > self.live + LANES {
            self.squeeze();
        }
    }
    /// Gives the rows, in their order, new positions.
    pub(crate) fn renumber(&mut self, mut positions: impl Iterator<Item = u64>) {
        self.squeeze();
        for row in &mut self.rows {
            row.position = positions.next().expect("a position a row");
        }
    }

    fn squeeze(&mut self) {
        let mut to = 0;
        for from in self.head..self.rows.len() {
            if self.rows[from].id != NONE {
                let words = self.read(from);
                self.write(to, self.rows[from], &words);
                to += 1;
            }
        }
        self.rows.truncate(to);
        self.blocks.truncate(to.div_ceil(LANES));
        let hole = self.hole;
        for lane in to..self.blocks.len() * LANES {
            self.write_words(lane, &hole);
        }
        self.head = 0;
    }
    fn read(&self, row: usize) -> [u32; C] {
        let block = &self.blocks[row / LANES].0;
        std::array::from_fn(|column| block[column][row % LANES])
    }
    fn write(&mut self, at: usize, row: Row, words: &[u32; C]) {
        self.rows[at] = row;
        self.write_words(at, words);
    }
    fn write_words(&mut self, at: usize, words: &[u32; C]) {
        let block = &mut self.blocks[at / LANES].0;
        for (column, word) in block.iter_mut().zip(words) {
            column[at % LANES] = *word;
        }
    }
}

#[inline(never)]
fn sum<const C: usize>(blocks: &[Block<C>]) -> u32 {
    let mut sums = [0u32; LANES];
    for Block(block) in blocks {
        for column in block {
            for (sum, word) in sums.iter_mut().zip(column) {
                *sum = sum.wrapping_add(*word);
            }
        }
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}

/// Of some blocks of which the first begins with row `first`: the first row from `from` on and before `end` for which
/// `differs` is 0.
///
/// It goes into functions that take the slice and are not inlined: there the compiler knows its alignment, and has
/// registers for what is looked for.
#[inline(always)]
pub(crate) fn find<const C: usize>(
    blocks: &[Block<C>],
    first: usize,
    from: usize,
    end: usize,
    differs: impl Fn(&[[u32; LANES]; C], usize) -> u32,
) -> Option<usize> {
    // By number, since the compiler sees from it that each block is aligned as the first one is.
    #[expect(clippy::needless_range_loop, reason = "it is not needless")]
    for number in 0..blocks.len() {
        let block = &blocks[number].0;
        let mut same = [0u32; LANES];
        for (lane, same) in same.iter_mut().enumerate() {
            *same = if differs(block, lane) == 0 { u32::MAX } else { 0 };
        }
        if same.iter().fold(0, |any, &lane| any | lane) != 0 {
            let at = first + number * LANES;
            let mut rows = (at..).zip(same).filter(|(_, same)| *same != 0).map(|(row, _)| row);
            if let Some(row) = rows.find(|row| (from..end).contains(row)) {
                return Some(row);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use test_support::random::Rng;

    use super::*;

    /// Rows of one word, where 0 is a hole.
    fn find(dense: &Dense<1>, from: usize, end: usize, word: u32) -> Option<u32> {
        let (blocks, first) = dense.blocks(from, end);
        super::find(blocks, first, from, end, |c, lane| c[0][lane] ^ word).map(|row| dense.id(row))
    }

    #[test]
    fn rows_keep_the_order_of_their_positions_whatever_comes_and_goes() {
        let mut dense = Dense::<1>::new([0]);
        let mut plain: Vec<(u64, u32)> = Vec::new();
        let mut rng = Rng::new(1);
        for id in 0..4000u32 {
            let x = rng.next_u64();
            let position = x >> 16;
            if plain.len() > 40 && x.is_multiple_of(3) || plain.len() > 300 {
                let gone = plain.remove(x as usize / 7 % plain.len());
                dense.remove(gone.0);
            } else {
                let at = plain.partition_point(|p| p.0 < position);
                plain.insert(at, (position, id));
                dense.insert(position, id, [1 + id % 5]);
            }
            if id % 500 == 0 {
                dense.renumber((1..).map(|i| i * 1000));
                plain.iter_mut().zip(1..).for_each(|(p, i)| p.0 = i * 1000);
            }
            let word = 1 + id % 6;
            let wanted = plain.iter().find(|p| 1 + p.1 % 5 == word).map(|p| p.1);
            assert_eq!(find(&dense, dense.head(), dense.end_before(u64::MAX), word), wanted);
            let before = plain[plain.len() / 2].0;
            let wanted = plain.iter().filter(|p| p.0 < before).find(|p| 1 + p.1 % 5 == word).map(|p| p.1);
            assert_eq!(find(&dense, dense.head(), dense.end_before(before), word), wanted);
            assert_eq!(dense.len(), plain.len());
        }
    }

    #[test]
    fn a_queue_that_loses_its_front_does_not_look_at_it_again() {
        let mut dense = Dense::<1>::new([0]);
        for i in 0..1000u32 {
            dense.insert(u64::from(i) + 1, i, [1]);
        }
        for i in 0..990u64 {
            dense.remove(i + 1);
            assert!(dense.stream_bytes() <= 2 * size_of::<Block<1>>() * (dense.len() / LANES + 2));
        }
        assert_eq!(find(&dense, dense.head(), dense.end_before(u64::MAX), 1), Some(990));
    }
}
