//! Memory of queues, as contexts and commands describe it.

use hca_prm::pas;
use hca_vfio::{DmaArena, DmaError};

use crate::shared::{CELL, SharedCells};

/// Bytes of a page of the lists that commands carry, and of those for large queues.
const SMALL: usize = 4096;
const LARGE: usize = 2 << 20;
/// From here on queues are described by large pages.
const LARGE_FROM: usize = 1 << 20;
/// Cells of a doorbell record: a cache line, of which 8 bytes are used.
pub(crate) const RECORD_CELLS: usize = 4;

/// A queue's memory: the queue, which begins with its first page, and behind it the doorbell record.
pub(crate) struct QueueMemory {
    /// All of it.
    pub(crate) cells: SharedCells,
    /// The doorbell record.
    pub(crate) record: SharedCells,
    /// Where the adapter finds the record.
    pub(crate) record_iova: u64,
    /// Bytes of a page, as a power of two less 12.
    pub(crate) log_page_size: u32,
    /// The addresses of the queue's pages, as commands carry them.
    pub(crate) pages: Vec<u8>,
}

impl QueueMemory {
    /// Zeroed memory for a queue of `cells`.
    pub(crate) fn alloc(arena: &DmaArena, cells: usize) -> Result<Self, DmaError> {
        let queue = cells * CELL;
        let page = if queue >= LARGE_FROM { LARGE } else { SMALL };
        let record = queue.next_multiple_of(64);
        let buf = arena.alloc(record + RECORD_CELLS * CELL, page)?;
        let iova = buf.iova().0;
        let list: Vec<u64> = (0..queue.div_ceil(page)).map(|i| iova + (i * page) as u64).collect();
        let mut pages = vec![0; list.len() * pas::ENTRY];
        pas::write(&list, &mut pages).expect("made for as many");
        let cells = SharedCells::of(buf);
        Ok(Self {
            record: cells.part(record / CELL, RECORD_CELLS),
            cells,
            record_iova: iova + record as u64,
            log_page_size: page.trailing_zeros() - SMALL.trailing_zeros(),
            pages,
        })
    }
}
