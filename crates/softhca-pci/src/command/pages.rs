//! Pages that the driver lends to the adapter. The model stores nothing in them; it only counts them, since drivers do.
//!
//! An adapter keeps the contexts of its objects in these pages, so its need grows and shrinks with the number of
//! objects. While the adapter runs it asks for pages by events. A command that creates an object without room for its
//! context waits until the driver has answered, and fails if the driver has no pages. Other commands run meanwhile,
//! among them those that bring pages. A driver that does not subscribe to such events is never asked.
//!
//! A function without pages to spare ([`FunctionOptions::no_spare_pages`](crate::FunctionOptions::no_spare_pages))
//! keeps one page for each object, and gives the page back when the object is destroyed. For a driver that does not
//! subscribe to such events the function creates only the objects that a subscription needs: event queues and doorbell
//! pages.

use std::collections::BTreeSet;

use hca_prm::command::hca::{
    ManagePagesIn, ManagePagesMod, ManagePagesOut, QueryPagesIn, QueryPagesMod, QueryPagesOut,
};
use hca_prm::command::mkey::CreateMkeyIn;
use hca_prm::{CmdIn, CmdStatus, Cqc, Eqe, EventType, Mkc, Opcode, PagesReqEvent, Qpc, Rmpc, pas};

use super::{Output, Phase, parse};
use crate::function::Function;
use crate::objects::Objects;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes that are kept of an object: its context, and of a key the list of its pages besides.
const QP: usize = Qpc::SIZE.next_power_of_two();
const CQ: usize = Cqc::SIZE;
const SRQ: usize = Rmpc::SIZE.next_power_of_two();
const MKEY: usize = Mkc::SIZE;
/// Pages that are asked for before the interface is set up, and before the adapter is started.
const BOOT: usize = 16;
const INIT: usize = 8;
/// Beyond the first ones, pages are asked for in multiples of this, and given back when there are as many to spare.
const STEP: usize = 16;
/// More than these are not taken.
const MAX_PAGES: usize = 1 << 16;

/// The pages that a function has been given.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    held: BTreeSet<u64>,
    /// Pages that the driver was asked for and has not given.
    asked: usize,
    /// The driver was asked to take pages back, and has not.
    offered: bool,
    /// The driver has said that it has none.
    refused: bool,
    /// Things that commands have made, as far as they have a page each where there are none to spare.
    objects_made: usize,
}

impl Pages {
    /// A command was done, which may have made something, or taken it away.
    pub(super) fn count(&mut self, opcode: Opcode) {
        if makes(opcode) {
            self.objects_made += 1;
        } else if takes_away(opcode) {
            self.objects_made = self.objects_made.saturating_sub(1);
        }
    }
    /// All that commands have made is gone.
    pub(crate) fn forget_objects(&mut self) {
        self.objects_made = 0;
    }

    /// Whether the driver was asked for some and has not answered.
    pub(crate) fn are_asked_for(&self) -> bool {
        self.asked > 0
    }
}

/// Whether a command makes something that has a page of its own where there are none to spare.
fn makes(opcode: Opcode) -> bool {
    let name = opcode.name().unwrap_or_default();
    let hears = matches!(opcode, Opcode::CREATE_EQ | Opcode::ALLOC_UAR);
    opcode == Opcode::SET_FLOW_TABLE_ENTRY
        || !hears && (name.starts_with("CREATE_") || name.starts_with("ALLOC_"))
}

/// Whether a command takes such a thing away.
fn takes_away(opcode: Opcode) -> bool {
    let name = opcode.name().unwrap_or_default();
    let hears = matches!(opcode, Opcode::DESTROY_EQ | Opcode::DEALLOC_UAR);
    opcode == Opcode::DELETE_FLOW_TABLE_ENTRY
        || !hears && (name.starts_with("DESTROY_") || name.starts_with("DEALLOC_"))
}

/// Bytes that are kept of what a command makes.
fn bytes_of(opcode: Opcode, input: &[u8]) -> usize {
    match opcode {
        Opcode::CREATE_QP => QP,
        Opcode::CREATE_CQ => CQ,
        Opcode::CREATE_SRQ | Opcode::CREATE_XRC_SRQ | Opcode::CREATE_RMP => SRQ,
        Opcode::CREATE_MKEY => MKEY + input.len().saturating_sub(CreateMkeyIn::SIZE),
        _ => 0,
    }
}

/// Bytes that are kept of all objects.
fn bytes_kept(objects: &Objects) -> usize {
    objects.qps.len() * QP
        + objects.cqs.len() * CQ
        + objects.srqs.len() * SRQ
        + objects.mkeys.len() * MKEY
        + objects.listed_bytes
}

impl Function {
    /// How many pages are missing for it to be started.
    pub(super) fn wanted_pages(&self) -> usize {
        self.pages_for(0, 1).saturating_sub(self.commands.pages.held.len())
    }

    /// Pages for all that there is, and for `more` bytes; `step` is what they are counted in beyond the first ones.
    fn pages_for(&self, more: usize, step: usize) -> usize {
        if self.options.no_spare_pages {
            let lists = (self.objects.listed_bytes + more).div_ceil(PAGE as usize);
            return BOOT + self.commands.pages.objects_made + lists;
        }
        let pages = (bytes_kept(&self.objects) + more).div_ceil(PAGE as usize);
        BOOT + if pages <= INIT { INIT } else { pages.next_multiple_of(step) }
    }

    /// What pages are asked for and given back in multiples of.
    fn step(&self) -> usize {
        if self.options.no_spare_pages { 1 } else { STEP }
    }

    /// Bytes that will be kept of what a command makes.
    fn bytes_of(&self, opcode: Opcode, input: &[u8]) -> usize {
        if !self.options.no_spare_pages {
            return bytes_of(opcode, input);
        }
        let list = bytes_of(opcode, input).saturating_sub(MKEY) * usize::from(opcode == Opcode::CREATE_MKEY);
        if makes(opcode) { PAGE as usize + list } else { 0 }
    }

    pub(super) fn query_pages(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: QueryPagesIn = parse(input)?;
        let held = self.commands.pages.held.len();
        let wanted = match QueryPagesMod::from_code(command.get(QueryPagesIn::OP_MOD)) {
            Some(QueryPagesMod::Boot) => BOOT.saturating_sub(held),
            Some(QueryPagesMod::Init) => self.wanted_pages(),
            Some(QueryPagesMod::Regular) => self.pages_for(0, self.step()).saturating_sub(held),
            _ => return Err(CmdStatus::BadParam),
        };
        out.put(&QueryPagesOut::new().with(QueryPagesOut::NUM_PAGES, wanted as u32))
    }

    pub(super) fn manage_pages(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: ManagePagesIn = parse(input)?;
        let count = command.get(ManagePagesIn::INPUT_NUM_ENTRIES) as usize;
        match ManagePagesMod::from_code(command.get(ManagePagesIn::OP_MOD)) {
            Some(ManagePagesMod::AllocationFail) => {
                tracing::warn!("the driver has no pages to give");
                (self.commands.pages.asked, self.commands.pages.refused) = (0, true);
                Ok(())
            }
            Some(ManagePagesMod::AllocationSuccess) => self.give_pages(&input[ManagePagesIn::SIZE..], count),
            Some(ManagePagesMod::HcaReturnPages) => self.return_pages(count, out),
            _ => Err(CmdStatus::BadParam),
        }
    }

    fn give_pages(&mut self, list: &[u8], count: usize) -> Result<(), CmdStatus> {
        let pages = &mut self.commands.pages;
        if count > MAX_PAGES - pages.held.len() {
            return Err(CmdStatus::LimErr);
        }
        let given: BTreeSet<u64> = pas::iter(list).take(count).collect();
        if list.len() / pas::ENTRY < count {
            return Err(CmdStatus::BadInpLen);
        }
        let wrong = given.iter().any(|page| page % PAGE != 0 || pages.held.contains(page));
        if wrong || given.len() < count {
            return Err(CmdStatus::BadParam);
        }
        pages.held.extend(given);
        pages.asked = pages.asked.saturating_sub(count);
        Ok(())
    }

    /// Gives back what is not needed: nothing of the first ones while objects may be made.
    fn return_pages(&mut self, count: usize, out: &mut Output) -> Result<(), CmdStatus> {
        let running = self.commands.phase == Phase::Running;
        let needed = if running { self.pages_for(0, self.step()) } else { 0 };
        let pages = &mut self.commands.pages;
        let room = out.len().saturating_sub(ManagePagesOut::SIZE) / pas::ENTRY;
        let back = pages.held.len().saturating_sub(needed).min(count);
        if back > room {
            return Err(CmdStatus::BadOutpLen);
        }
        for i in 0..back {
            let page = pages.held.pop_last().expect("there are as many");
            out.put_at(ManagePagesOut::SIZE + i * pas::ENTRY, &page.to_be_bytes())?;
        }
        pages.offered = false;
        out.put(&ManagePagesOut::new().with(ManagePagesOut::OUTPUT_NUM_ENTRIES, back as u32))
    }

    /// How many pages are missing for what a command makes; 0 where it is done without them, as nobody would be asked.
    pub(super) fn missing_pages(&self, input: &[u8]) -> usize {
        let Ok(head) = parse::<CmdIn>(input) else { return 0 };
        let more = self.bytes_of(head.opcode(), input);
        let asks = self.lends_pages() || self.options.no_spare_pages;
        if more == 0 || self.commands.phase != Phase::Running || !asks {
            return 0;
        }
        let needed = self.pages_for(more, 1);
        needed.saturating_sub(self.commands.pages.held.len())
    }

    /// Whether the driver hears of pages that are wanted.
    pub(super) fn lends_pages(&self) -> bool {
        self.eqs.of_type(EventType::PageRequest).is_some()
    }

    /// Whether a command has to wait for pages, which the driver is asked for then.
    pub(super) fn awaits_pages(&mut self, input: &[u8]) -> bool {
        let missing = self.missing_pages(input);
        let pages = &self.commands.pages;
        let nobody = pages.refused || !self.lends_pages();
        if missing == 0 || nobody || pages.held.len() + missing > MAX_PAGES {
            return false;
        }
        if !pages.are_asked_for() {
            let asked = missing.next_multiple_of(self.step()).min(MAX_PAGES - pages.held.len());
            self.commands.pages.asked = asked;
            self.request_pages(asked as i32);
        }
        true
    }

    /// Who waited for pages that there are none of has heard of it.
    pub(super) fn forget_refusal(&mut self) {
        self.commands.pages.refused = false;
    }

    /// Asks the driver to take pages back, if there are many to spare.
    pub(super) fn offer_pages(&mut self) {
        let pages = &self.commands.pages;
        let pending = pages.offered || pages.are_asked_for();
        if self.commands.phase != Phase::Running || pending || !self.lends_pages() {
            return;
        }
        let needed = self.pages_for(0, self.step());
        let spare = self.commands.pages.held.len().saturating_sub(needed);
        if spare >= self.step() {
            self.commands.pages.offered = true;
            self.request_pages(-(spare as i32));
        }
    }

    /// An event queue has gone, and with it the requests in it if it was the one that hears them.
    pub(crate) fn forget_requests(&mut self) {
        if !self.lends_pages() {
            (self.commands.pages.asked, self.commands.pages.offered) = (0, false);
        }
    }

    /// Asks for pages, or (negative) offers some.
    fn request_pages(&mut self, pages: i32) {
        let asked = PagesReqEvent::new().with(PagesReqEvent::NUM_PAGES, pages as u32);
        let event = Eqe::of(EventType::PageRequest).with(Eqe::EVENT_DATA, *asked.as_bytes());
        self.raise(EventType::PageRequest, event);
    }
}
