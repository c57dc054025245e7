//! Pages that the driver lends to the adapter. The model keeps nothing in them; it keeps account, since drivers do.

use std::collections::BTreeSet;

use hca_prm::command::hca::{
    ManagePagesIn, ManagePagesMod, ManagePagesOut, QueryPagesIn, QueryPagesMod, QueryPagesOut,
};
use hca_prm::{CmdStatus, pas};

use super::{Output, Phase, parse};
use crate::function::Function;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages that are asked for before the interface is set up, and before the adapter is started.
const BOOT: usize = 16;
const INIT: usize = 8;
/// More than these are not taken.
const MAX_PAGES: usize = 1 << 16;

/// The pages that a function has been given.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    held: BTreeSet<u64>,
    /// Pages that were asked for at run time, beyond the first ones.
    extra: usize,
}

impl Pages {
    /// How many are missing to be started.
    pub(crate) fn wanted(&self) -> usize {
        (BOOT + INIT + self.extra).saturating_sub(self.held.len())
    }
}

impl Function {
    pub(super) fn query_pages(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: QueryPagesIn = parse(input)?;
        let held = self.commands.pages.held.len();
        let wanted = match QueryPagesMod::from_code(command.get(QueryPagesIn::OP_MOD)) {
            Some(QueryPagesMod::Boot) => BOOT.saturating_sub(held),
            Some(QueryPagesMod::Init | QueryPagesMod::Regular) => self.commands.pages.wanted(),
            _ => return Err(CmdStatus::BadParam),
        };
        out.put(&QueryPagesOut::new().with(QueryPagesOut::NUM_PAGES, wanted as u32))
    }

    pub(super) fn manage_pages(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: ManagePagesIn = parse(input)?;
        let count = command.get(ManagePagesIn::INPUT_NUM_ENTRIES) as usize;
        match ManagePagesMod::from_code(command.get(ManagePagesIn::OP_MOD)) {
            Some(ManagePagesMod::AllocationFail) => {
                tracing::warn!("the driver has no pages to lend");
                Ok(())
            }
            Some(ManagePagesMod::AllocationSuccess) => self.give_pages(&input[ManagePagesIn::SIZE..], count),
            Some(ManagePagesMod::HcaReturnPages) => self.return_pages(count, out),
            _ => Err(CmdStatus::BadParam),
        }
    }

    fn give_pages(&mut self, list: &[u8], count: usize) -> Result<(), CmdStatus> {
        let held = &mut self.commands.pages.held;
        if count > MAX_PAGES - held.len() {
            return Err(CmdStatus::LimErr);
        }
        let given: BTreeSet<u64> = pas::iter(list).take(count).collect();
        if list.len() / pas::ENTRY < count {
            return Err(CmdStatus::BadInpLen);
        }
        let wrong = given.iter().any(|page| page % PAGE != 0 || held.contains(page));
        if wrong || given.len() < count {
            return Err(CmdStatus::BadParam);
        }
        held.extend(given);
        Ok(())
    }

    /// Gives back what is not needed: nothing of the first ones while objects may be made.
    fn return_pages(&mut self, count: usize, out: &mut Output) -> Result<(), CmdStatus> {
        let pages = &mut self.commands.pages;
        let needed = if self.commands.phase == Phase::Running { BOOT + INIT + pages.extra } else { 0 };
        let room = out.len().saturating_sub(ManagePagesOut::SIZE) / pas::ENTRY;
        let back = pages.held.len().saturating_sub(needed).min(count);
        if back > room {
            return Err(CmdStatus::BadOutpLen);
        }
        for i in 0..back {
            let page = pages.held.pop_last().expect("there are as many");
            out.put_at(ManagePagesOut::SIZE + i * pas::ENTRY, &page.to_be_bytes())?;
        }
        out.put(&ManagePagesOut::new().with(ManagePagesOut::OUTPUT_NUM_ENTRIES, back as u32))
    }
}
