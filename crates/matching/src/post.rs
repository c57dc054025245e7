//! A target program's operations on its lists: appending, inserting, searching, unlinking, and the memory descriptors
//! of 3.3.

use crate::deliver::is_full;
use crate::entry::Posted;
use crate::initiator::MdSlot;
use crate::unexpected::{Claim, Waiting};
use crate::{
    Criteria, Entry, EntryHandle, EqHandle, Error, Event, EventKind, Header, Interface, ListKind, MdHandle,
    NiFail, Operation, Options, Place, Region, Threshold, Version,
};

/// The effect of a search on the headers that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SearchOp {
    /// The header is reported, and stays.
    Only,
    /// The header is reported as if an entry had been appended, and is removed.
    Delete,
}

impl Interface {
    /// Appends an entry to a list of a portal: [`insert`](Self::insert) at [`Place::Last`].
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn append(&mut self, pt_index: u32, list: ListKind, entry: Entry) -> Result<EntryHandle, Error> {
        self.insert(Place::Last(pt_index, list), entry)
    }
    /// Puts an entry into a list.
    ///
    /// On the priority list, the entry is first compared with the headers that wait at the portal, oldest first. Each
    /// one that matches is reported by an `*Overflow` event and removed, without a check of rights. An entry that these
    /// headers use up is not linked, and its handle is invalid.
    ///
    /// # Errors
    /// [`Error::PtIndex`], [`Error::Handle`] for the place, the queue or the counting event, [`Error::Options`],
    /// [`Error::NoSpace`], [`Error::ListTooLong`].
    pub fn insert(&mut self, place: Place, entry: Entry) -> Result<EntryHandle, Error> {
        let (pt_index, list, before) = self.resolve(place)?;
        self.check_entry(list, &entry)?;
        let limit = self.config.limits.max_list_size;
        if self.portal(pt_index)?.list(list).len() >= limit {
            return Err(Error::ListTooLong { limit });
        }
        let limit = self.entries.limit();
        let posted = Posted::new(entry, pt_index, list);
        let key = self.entries.insert(posted).ok_or(Error::NoSpace { what: "entries", limit })?;
        let handle = EntryHandle(key);
        if list == ListKind::Priority && self.claim_all(pt_index, key.index()) {
            return Ok(handle);
        }
        let portal = self.portals[pt_index as usize].as_mut().expect("it was resolved");
        portal.list_mut(list).insert(&mut self.nodes, key.index(), &entry.criteria, before);
        self.entries.at_mut(key.index()).linked = true;
        let region = entry.region.as_ref().filter(|r| !r.options.contains(Options::EVENT_LINK_DISABLE));
        if let (Version::V4, Some(region)) = (self.config.version, region) {
            let event = Event {
                pt_index,
                list,
                user_ptr: region.user_ptr,
                start: region.start,
                entry: Some(handle),
                ..Event::new(EventKind::Link)
            };
            self.push(self.eq_of(pt_index, region), event, None, false);
        }
        Ok(handle)
    }
    /// Unlinks an entry; no event is posted. A memory descriptor that is attached goes with it.
    ///
    /// # Errors
    /// [`Error::Handle`]; [`Error::InUse`] while operations on it are under way, or its memory holds bytes of waiting
    /// headers.
    pub fn unlink(&mut self, entry: EntryHandle) -> Result<(), Error> {
        let posted =
            self.entries.get(entry.0).filter(|p| p.linked).ok_or(Error::Handle { argument: "entry" })?;
        let pending = posted.pending + posted.headers;
        if pending > 0 {
            return Err(Error::InUse { argument: "entry", pending });
        }
        if let Some(md) = posted.md {
            self.remove_md(md);
        }
        self.take_from_list(entry.0.index());
        self.remove_entry(entry.0.index());
        Ok(())
    }
    /// Searches the headers that wait at a portal, as appending an entry would, without linking the entry.
    ///
    /// [`SearchOp::Only`] posts a `Search` event for each header that it finds, [`SearchOp::Delete`] the event that
    /// appending would post. An entry for one use finds one header, any other entry finds all. A search without a
    /// result posts a `Search` event that failed with [`NiFail::NoMatch`]. Where matches are counted, the end of a search
    /// for all is counted as a failure, whether it found any or not. A message found by `Only` may still be arriving.
    ///
    /// # Errors
    /// [`Error::PtIndex`], [`Error::Handle`], [`Error::Options`].
    pub fn search(&mut self, pt_index: u32, entry: &Entry, op: SearchOp) -> Result<(), Error> {
        self.portal(pt_index)?;
        self.check_entry(ListKind::Priority, entry)?;
        let Some(region) = entry.region else {
            return Err(Error::Options { argument: "entry", why: "a search needs the region's options" });
        };
        let claim = Claim {
            options: region.options,
            user_ptr: region.user_ptr,
            eq: self.eq_of(pt_index, &region),
            ct: region.ct,
            entry: None,
        };
        let (mut uses, mut found) = (uses(&region), false);
        let mut cursor = self.portal(pt_index)?.arrivals.cursor(&entry.criteria);
        while uses != Threshold::Count(0) {
            let portal = self.portal(pt_index)?;
            let Some(index) = portal.arrivals.next(&self.headers, &entry.criteria, &mut cursor) else {
                break;
            };
            if !fits(&region, region.length, &self.headers.at(index).header) {
                continue;
            }
            (uses, found) = (one_less(uses), true);
            match op {
                SearchOp::Only => self.tell_claim(EventKind::Search, index, &claim),
                SearchOp::Delete => self.claim(pt_index, index, claim),
            }
        }
        if !found {
            let event = Event {
                pt_index,
                fail: NiFail::NoMatch,
                user_ptr: region.user_ptr,
                ..Event::new(EventKind::Search)
            };
            self.tell_overflow(event, &claim, 0);
        } else if uses != Threshold::Count(0) && claim.options.contains(Options::EVENT_CT_OVERFLOW) {
            self.count(claim.ct, NiFail::NoMatch, None);
        }
        Ok(())
    }

    /// Attaches a memory descriptor to an entry that has none (3.3).
    ///
    /// # Errors
    /// [`Error::Handle`]; [`Error::InUse`] if one is attached; [`Error::NoSpace`]; [`Error::Options`] in 4.3.
    pub fn attach(&mut self, entry: EntryHandle, region: Region) -> Result<MdHandle, Error> {
        if self.config.version == Version::V4 {
            return Err(Error::Options { argument: "entry", why: "an entry has its memory from the start" });
        }
        let posted =
            self.entries.get(entry.0).filter(|p| p.linked).ok_or(Error::Handle { argument: "entry" })?;
        if posted.entry.region.is_some() {
            return Err(Error::InUse { argument: "entry", pending: 1 });
        }
        self.check_region(&region)?;
        let limit = self.mds.limit();
        let md = self.mds.insert(MdSlot::Attached(entry.0.index()));
        let md = md.ok_or(Error::NoSpace { what: "memory descriptors", limit })?;
        let posted = self.entries.at_mut(entry.0.index());
        posted.entry.region = Some(region);
        (posted.md, posted.offset) = (Some(md), 0);
        Ok(MdHandle(md))
    }
    /// Unlinks a memory descriptor, attached or not; no event is posted. Its entry goes too if [`Entry::unlink`] says
    /// so.
    ///
    /// # Errors
    /// [`Error::Handle`]; [`Error::InUse`] while operations on it are under way.
    pub fn md_unlink(&mut self, md: MdHandle) -> Result<(), Error> {
        let slot = self.mds.get(md.0).ok_or(Error::Handle { argument: "md" })?;
        let pending = self.pending_of(slot);
        if pending > 0 {
            return Err(Error::InUse { argument: "md", pending });
        }
        let attached = if let &MdSlot::Attached(entry) = slot { Some(entry) } else { None };
        self.remove_md(md.0);
        if let Some(entry) = attached {
            let posted = self.entries.at_mut(entry);
            (posted.entry.region, posted.md) = (None, None);
            if posted.entry.unlink {
                self.take_from_list(entry);
                self.remove_entry(entry);
            }
        }
        Ok(())
    }
    /// Gives a memory descriptor new values, provided that the named queue, if any, is empty (3.3), and returns the old
    /// values. Without new values the call only returns the present ones. The local offset restarts at 0.
    ///
    /// # Errors
    /// [`Error::Handle`]; [`Error::NoUpdate`] if the queue is not empty; [`Error::InUse`] while operations under way
    /// use the memory of the old values.
    pub fn md_update(
        &mut self,
        md: MdHandle,
        new: Option<Region>,
        test: Option<EqHandle>,
    ) -> Result<Region, Error> {
        let old = self.md_region(md)?;
        let Some(new) = new else { return Ok(old) };
        self.check_region(&new)?;
        match test.map(|eq| self.eq_is_empty(eq)) {
            Some(None) => return Err(Error::Handle { argument: "test" }),
            Some(Some(false)) => return Err(Error::NoUpdate { argument: "test" }),
            _ => {}
        }
        let pending = self.pending_of(self.mds.get(md.0).expect("it was read"));
        if pending > 0 {
            return Err(Error::InUse { argument: "md", pending });
        }
        match self.mds.get_mut(md.0).expect("it was read") {
            MdSlot::Attached(entry) => {
                let posted = self.entries.at_mut(*entry);
                posted.entry.region = Some(new);
                posted.offset = 0;
            }
            MdSlot::Bound(bound) => bound.region = new,
        }
        Ok(old)
    }
    /// The values of a memory descriptor; its threshold is the number of operations that are left.
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn md_region(&self, md: MdHandle) -> Result<Region, Error> {
        self.region_of(md).copied().ok_or(Error::Handle { argument: "md" })
    }
    #[inline(always)]
    pub(crate) fn region_of(&self, md: MdHandle) -> Option<&Region> {
        match self.mds.get(md.0)? {
            MdSlot::Bound(bound) => Some(&bound.region),
            MdSlot::Attached(entry) => self.entries.at(*entry).entry.region.as_ref(),
        }
    }

    fn pending_of(&self, slot: &MdSlot) -> u32 {
        match slot {
            MdSlot::Attached(entry) => self.entries.at(*entry).pending,
            MdSlot::Bound(bound) => bound.pending,
        }
    }
    fn resolve(&self, place: Place) -> Result<(u32, ListKind, Option<u32>), Error> {
        let beside = |entry: EntryHandle| {
            let posted =
                self.entries.get(entry.0).filter(|p| p.linked).ok_or(Error::Handle { argument: "place" })?;
            Ok((posted.pt_index, posted.list))
        };
        Ok(match place {
            Place::First(pt_index, list) => (pt_index, list, self.portal(pt_index)?.list(list).first()),
            Place::Last(pt_index, list) => {
                self.portal(pt_index)?;
                (pt_index, list, None)
            }
            Place::Before(entry) => {
                let (pt_index, list) = beside(entry)?;
                (pt_index, list, Some(entry.0.index()))
            }
            Place::After(entry) => {
                let (pt_index, list) = beside(entry)?;
                (pt_index, list, self.nodes.behind(entry.0.index()))
            }
        })
    }
    fn check_region(&self, region: &Region) -> Result<(), Error> {
        self.check_eq(region.eq, "eq")?;
        self.check_ct(region.ct, "ct")
    }
    fn check_entry(&self, list: ListKind, entry: &Entry) -> Result<(), Error> {
        if self.config.version == Version::V3 && list == ListKind::Overflow {
            return Err(Error::Options { argument: "list", why: "3.3 has no overflow list" });
        }
        if !self.config.matching && entry.criteria != Criteria::ANY {
            return Err(Error::Options { argument: "criteria", why: "the interface does not match" });
        }
        let Some(region) = &entry.region else {
            return match self.config.version {
                Version::V3 => Ok(()),
                Version::V4 => {
                    Err(Error::Options { argument: "region", why: "an entry has its memory from the start" })
                }
            };
        };
        self.check_region(region)
    }

    /// Where the events of a region at a portal go.
    #[inline]
    pub(crate) fn eq_of(&self, pt_index: u32, region: &Region) -> Option<EqHandle> {
        region.eq.or_else(|| self.portals[pt_index as usize].as_ref().and_then(|portal| portal.eq))
    }
    pub(crate) fn take_from_list(&mut self, index: u32) {
        let posted = self.entries.at_mut(index);
        posted.linked = false;
        let (pt_index, list) = (posted.pt_index, posted.list);
        let portal = self.portals[pt_index as usize].as_mut().expect("its entries hold it");
        portal.list_mut(list).remove(&mut self.nodes, index, &posted.entry.criteria);
    }

    /// Gives a new entry the headers that it matches; says whether they used it up.
    fn claim_all(&mut self, pt_index: u32, index: u32) -> bool {
        let portal = self.portals[pt_index as usize].as_ref().expect("it was resolved");
        if portal.arrivals.len() == 0 {
            return false;
        }
        let Entry { criteria, region: Some(region), .. } = self.entries.at(index).entry else { return false };
        let claim = Claim {
            options: region.options,
            user_ptr: region.user_ptr,
            eq: self.eq_of(pt_index, &region),
            ct: region.ct,
            entry: Some(index),
        };
        let moves = region.options.contains(Options::LOCAL_INC_UH_RLENGTH | Options::MANAGE_LOCAL);
        let mut uses = uses(&region);
        let mut cursor = portal.arrivals.cursor(&criteria);
        loop {
            let portal = self.portals[pt_index as usize].as_ref().expect("it was resolved");
            let Some(header) = portal.arrivals.next(&self.headers, &criteria, &mut cursor) else { break };
            let posted = self.entries.at_mut(index);
            let length = self.headers.at(header).header.length;
            if !fits(&region, region.length - posted.offset, &self.headers.at(header).header) {
                continue;
            }
            uses = one_less(uses);
            if moves {
                posted.offset += length.min(region.length - posted.offset);
            }
            let full = moves && is_full(&region, posted.offset);
            let last = full || uses == Threshold::Count(0);
            posted.pending += 1;
            (posted.detaching, posted.auto_unlinked) = (last, last);
            self.claim(pt_index, header, claim);
            if last {
                return true;
            }
        }
        let region = self.entries.at_mut(index).entry.region.as_mut().expect("it was read");
        if region.threshold != Threshold::Infinite {
            region.threshold = uses;
        }
        false
    }
    /// Takes a header out; who found it hears of it when the bytes are there.
    fn claim(&mut self, pt_index: u32, header: u32, claim: Claim) {
        let portal = self.portals[pt_index as usize].as_mut().expect("a header waits there");
        portal.arrivals.remove(&mut self.headers, header);
        let waiting = self.headers.at_mut(header);
        waiting.claim = Some(claim);
        if waiting.done.is_some() {
            self.finish_claim(header);
        }
    }
    /// Tells who found a header of it, and forgets it.
    pub(crate) fn finish_claim(&mut self, header: u32) {
        let Waiting { claim, entry, header: Header { operation, .. }, .. } = self.headers.at(header);
        let (claim, overflow, operation) = (claim.expect("it was found"), *entry, *operation);
        let kind = match operation {
            Operation::Put => EventKind::PutOverflow,
            Operation::Get => EventKind::GetOverflow,
            Operation::Atomic(..) => EventKind::AtomicOverflow,
            Operation::FetchAtomic(..) | Operation::Swap(..) | Operation::GetPut => {
                EventKind::FetchAtomicOverflow
            }
        };
        self.tell_claim(kind, header, &claim);
        self.headers.remove(header);
        if let Some(entry) = claim.entry {
            self.entries.at_mut(entry).pending -= 1;
            self.settle(entry);
        }
        self.entries.at_mut(overflow).headers -= 1;
        self.settle(overflow);
    }
    fn tell_claim(&mut self, kind: EventKind, header: u32, claim: &Claim) {
        let waiting = self.headers.at(header);
        let fail = waiting.done.unwrap_or(NiFail::Ok);
        let mut event = Event {
            fail,
            list: ListKind::Overflow,
            mlength: waiting.mlength,
            offset: waiting.offset,
            start: waiting.start,
            user_ptr: claim.user_ptr,
            entry: claim.entry.map(|entry| EntryHandle(self.entries.key_at(entry))),
            ..Event::new(kind)
        };
        event.of(kind, &waiting.header);
        self.tell_overflow(event, claim, waiting.mlength);
    }
    fn tell_overflow(&mut self, event: Event, claim: &Claim, bytes: u64) {
        let options = claim.options;
        let quiet = options.contains(Options::EVENT_OVER_DISABLE)
            || event.fail == NiFail::Ok && options.contains(Options::EVENT_SUCCESS_DISABLE);
        if !quiet {
            self.push(claim.eq, event, None, false);
        }
        if options.contains(Options::EVENT_CT_OVERFLOW) {
            let bytes = options.contains(Options::EVENT_CT_BYTES).then_some(bytes);
            self.count(claim.ct, event.fail, bytes);
        }
    }
}

fn uses(region: &Region) -> Threshold {
    if region.options.contains(Options::USE_ONCE) { Threshold::Count(1) } else { region.threshold }
}

pub(crate) fn one_less(uses: Threshold) -> Threshold {
    match uses {
        Threshold::Infinite => Threshold::Infinite,
        Threshold::Count(n) => Threshold::Count(n.saturating_sub(1)),
    }
}

/// Whether a header's message would match as far as its length goes, with so many bytes left.
fn fits(region: &Region, left: u64, header: &Header) -> bool {
    let available = match region.options.contains(Options::MANAGE_LOCAL) {
        true => left,
        false => region.length.saturating_sub(header.remote_offset),
    };
    !region.options.contains(Options::NO_TRUNCATE) || header.length <= available
}
