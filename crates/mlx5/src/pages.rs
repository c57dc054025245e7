//! Pages lent to the adapter, which keeps its own tables in them.
//!
//! The driver counts the pages and knows their addresses, so that no page comes back twice and none is missing when the
//! adapter is stopped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hca_prm::command::hca::{
    ManagePagesIn, ManagePagesMod, ManagePagesOut, QueryPagesIn, QueryPagesMod, QueryPagesOut,
};
use hca_prm::{Opcode, pas};
use hca_vfio::{DmaArena, DmaBuf, DmaError};

use crate::cmd::{CmdError, CommandQueue};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that one command gives or takes.
const BATCH: usize = 512;
/// Pages that the adapter gets at most, 4 GiB: some times what any of the family asks for. One that asks for more has
/// gone astray, and would have the system end programs for want of memory.
const MOST: usize = 1 << 20;

/// The pages that the adapter has.
pub(crate) struct Pages {
    arena: DmaArena,
    lent: Mutex<BTreeMap<u64, DmaBuf>>,
    most: usize,
    /// As whose pages the adapter was given those of its start.
    function: AtomicU32,
}

impl Pages {
    pub(crate) fn new(arena: DmaArena) -> Self {
        Self { arena, lent: Mutex::new(BTreeMap::new()), most: MOST, function: AtomicU32::new(0) }
    }
    fn lent(&self) -> MutexGuard<'_, BTreeMap<u64, DmaBuf>> {
        // It is whole between any two of its operations.
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// How many it has.
    pub(crate) fn count(&self) -> usize {
        self.lent().len()
    }

    /// Asks what it wants at this point of its start, and gives that.
    pub(crate) fn satisfy(&self, cmd: &CommandQueue, when: QueryPagesMod) -> Result<(), CmdError> {
        let asked = cmd.exec(&QueryPagesIn::new().with(QueryPagesIn::OP_MOD, when.code()))?;
        let function = asked.get(QueryPagesOut::FUNCTION_ID);
        self.function.store(function, Ordering::Relaxed);
        self.change(cmd, function, asked.get(QueryPagesOut::NUM_PAGES) as i32)
    }

    /// Gives that many pages, or takes them back if the number is negative.
    pub(crate) fn change(&self, cmd: &CommandQueue, function: u32, pages: i32) -> Result<(), CmdError> {
        match usize::try_from(pages) {
            Ok(more) => self.give(cmd, function, more),
            Err(_) => self.take(cmd, function, pages.unsigned_abs() as usize).map(|_| ()),
        }
    }

    fn give(&self, cmd: &CommandQueue, function: u32, pages: usize) -> Result<(), CmdError> {
        let lent = self.count();
        if pages > self.most.saturating_sub(lent) {
            self.refuse(cmd, function);
            return Err(CmdError::Greedy { asked: pages, lent, most: self.most });
        }
        let mut left = pages;
        while left > 0 {
            let batch = left.min(BATCH);
            let had: Result<Vec<DmaBuf>, DmaError> =
                (0..batch).map(|_| self.arena.alloc(PAGE, PAGE)).collect();
            let had = match had {
                Ok(had) => had,
                Err(source) => {
                    self.refuse(cmd, function);
                    return Err(CmdError::Memory { command: Opcode::MANAGE_PAGES, source });
                }
            };
            let iovas: Vec<u64> = had.iter().map(|b| b.iova().0).collect();
            let mut list = vec![0; batch * pas::ENTRY];
            pas::write(&iovas, &mut list).expect("the list has room for all of them");
            // They are the adapter's from before it hears of them until it surely has none of them.
            self.lent().extend(iovas.iter().copied().zip(had));
            let input = ManagePagesIn::new()
                .with(ManagePagesIn::OP_MOD, ManagePagesMod::AllocationSuccess.code())
                .with(ManagePagesIn::FUNCTION_ID, function)
                .with(ManagePagesIn::INPUT_NUM_ENTRIES, batch as u32);
            let given = cmd.exec_with(&input, &list, &mut []);
            if let Err(e @ CmdError::Refused { .. }) = given {
                let mut lent = self.lent();
                for iova in iovas {
                    lent.remove(&iova);
                }
                return Err(e);
            }
            given?;
            left -= batch;
        }
        tracing::debug!(pages, lent = self.count(), "pages given to the adapter");
        Ok(())
    }

    /// Tells the adapter that there are none.
    fn refuse(&self, cmd: &CommandQueue, function: u32) {
        let input = ManagePagesIn::new()
            .with(ManagePagesIn::OP_MOD, ManagePagesMod::AllocationFail.code())
            .with(ManagePagesIn::FUNCTION_ID, function);
        if let Err(e) = cmd.exec(&input) {
            tracing::warn!(%e, "telling the adapter that there are no pages for it failed");
        }
    }

    /// Takes up to that many back, and returns how many that were. It ends when the adapter gives none.
    pub(crate) fn take(&self, cmd: &CommandQueue, function: u32, pages: usize) -> Result<usize, CmdError> {
        let command = Opcode::MANAGE_PAGES;
        let mut taken = 0;
        while taken < pages {
            let batch = (pages - taken).min(BATCH);
            let input = ManagePagesIn::new()
                .with(ManagePagesIn::OP_MOD, ManagePagesMod::HcaReturnPages.code())
                .with(ManagePagesIn::FUNCTION_ID, function)
                .with(ManagePagesIn::INPUT_NUM_ENTRIES, batch as u32);
            let mut list = vec![0; batch * pas::ENTRY];
            let came =
                cmd.exec_with(&input, &[], &mut list)?.get(ManagePagesOut::OUTPUT_NUM_ENTRIES) as usize;
            if came > batch {
                return Err(CmdError::Answer { command, what: "more pages than were asked for" });
            }
            let mut lent = self.lent();
            for iova in pas::iter(&list).take(came) {
                if lent.remove(&iova).is_none() {
                    return Err(CmdError::Answer { command, what: "a page that it does not have" });
                }
            }
            drop(lent);
            if came == 0 {
                break;
            }
            taken += came;
        }
        Ok(taken)
    }

    /// Takes all back, once the adapter is stopped. Returns how many it keeps.
    pub(crate) fn take_all(&self, cmd: &CommandQueue) -> Result<usize, CmdError> {
        let had = self.count();
        self.take(cmd, self.function.load(Ordering::Relaxed), had)?;
        Ok(self.count())
    }
}
