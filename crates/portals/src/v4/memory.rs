//! Uses of memory: an initiator's descriptors, and a target's entries.

use hca_matching::{Criteria, Entry, EntryHandle, ListKind, Md as RawMd, Region, SearchOp, Source, Uid};

use super::{
    CtHandle, EqHandle, Error, LeHandle, LeOptions, MdHandle, MdOptions, MeHandle, MeOptions, Ni, options,
};
use crate::Pieces;

/// An initiator's memory descriptor: bytes that operations send, and that receive replies.
#[derive(Clone, Debug)]
#[doc(alias = "ptl_md_t")]
pub struct Md {
    /// The bytes (`start`, `length`, `PTL_IOVEC`).
    pub memory: Pieces,
    /// The options.
    pub options: MdOptions,
    /// The event queue; `None` is `PTL_EQ_NONE`.
    pub eq: Option<EqHandle>,
    /// The counting event; `None` is `PTL_CT_NONE`.
    pub ct: Option<CtHandle>,
}

impl Md {
    /// A descriptor of memory whose operations cause no events.
    pub fn new(memory: impl Into<Pieces>) -> Self {
        Self { memory: memory.into(), options: MdOptions::empty(), eq: None, ct: None }
    }
}

/// A target's list entry, on an interface without matching.
#[derive(Clone, Debug)]
#[doc(alias = "ptl_le_t")]
pub struct Le {
    /// The bytes (`start`, `length`, `PTL_IOVEC`).
    pub memory: Pieces,
    /// The counting event of its operations; `None` is `PTL_CT_NONE`.
    pub ct: Option<CtHandle>,
    /// The user that may send to the entry; `None` is `PTL_UID_ANY`.
    pub uid: Option<Uid>,
    /// The options: accepted operations and reported events.
    pub options: LeOptions,
}

impl Le {
    /// An entry for all users that allows no operations yet.
    pub fn new(memory: impl Into<Pieces>) -> Self {
        Self { memory: memory.into(), ct: None, uid: None, options: LeOptions::empty() }
    }
}

/// A target's match entry.
#[derive(Clone, Debug)]
#[doc(alias = "ptl_me_t")]
pub struct Me {
    /// The bytes (`start`, `length`, `PTL_IOVEC`).
    pub memory: Pieces,
    /// The counting event of its operations; `None` is `PTL_CT_NONE`.
    pub ct: Option<CtHandle>,
    /// The user that may send to the entry, checked after the match; `None` is `PTL_UID_ANY`.
    pub uid: Option<Uid>,
    /// The options: accepted operations and reported events.
    pub options: MeOptions,
    /// The processes whose messages it matches.
    pub match_id: Source,
    /// The match bits of its messages.
    pub match_bits: u64,
    /// The mask of the match bits that are ignored.
    pub ignore_bits: u64,
    /// With [`MeOptions::MANAGE_LOCAL`]: the entry is unlinked as soon as fewer bytes than this are left; 0: never.
    pub min_free: u64,
}

impl Me {
    /// An entry that allows no operations yet, and matches the match bits 0 of every process.
    pub fn new(memory: impl Into<Pieces>) -> Self {
        Self {
            memory: memory.into(),
            ct: None,
            uid: None,
            options: MeOptions::empty(),
            match_id: Source::ANY,
            match_bits: 0,
            ignore_bits: 0,
            min_free: 0,
        }
    }
}

impl Ni {
    /// Makes a memory descriptor.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` for an invalid queue or counting event, unknown options, a vector of more than
    /// [`Limits::max_iovecs`](super::Limits::max_iovecs); `PTL_NO_SPACE`.
    #[doc(alias = "PtlMDBind")]
    pub fn md_bind(&self, md: &Md) -> Result<MdHandle, Error> {
        let bind = || {
            if !MdOptions::all().contains(md.options) {
                return Err(NO_OPTION);
            }
            self.check_pieces(&md.memory, "md.memory")?;
            let raw = RawMd {
                start: md.memory.addr(),
                length: md.memory.len(),
                options: options::md(md.options, md.memory.is_vector()),
                eq: md.eq.map(|eq| eq.of(self.handle(), "md.eq")).transpose()?,
                ct: md.ct.map(|ct| ct.of(self.handle(), "md.ct")).transpose()?,
            };
            self.inner.core.md_bind(raw, md.memory.clone())
        };
        bind().map(|raw| MdHandle::new(self.handle(), raw)).map_err(|e| Error::new("PtlMDBind", e))
    }
    /// Frees a memory descriptor.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`; `PTL_IN_USE` while operations on it are under way.
    #[doc(alias = "PtlMDRelease")]
    pub fn md_release(&self, md: MdHandle) -> Result<(), Error> {
        let release = || {
            let md = md.of(self.handle(), "md")?;
            self.inner.core.with(|ni| ni.engine.md_unlink(md))
        };
        release().map_err(|e| Error::new("PtlMDRelease", e))
    }

    /// Appends an entry to a list of a portal, on an interface without matching. `user_ptr` comes back in its events.
    ///
    /// On the priority list, the entry first takes the headers that wait at the portal; each is reported by an
    /// `*Overflow` event and removed. An entry for one use that takes a header is not linked.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` for an invalid portal or counting event, unknown options, a vector of more than
    /// [`Limits::max_iovecs`](super::Limits::max_iovecs), an interface with matching; `PTL_NO_SPACE`;
    /// `PTL_LIST_TOO_LONG`.
    #[doc(alias = "PtlLEAppend")]
    pub fn le_append(
        &self,
        pt_index: u32,
        le: &Le,
        ptl_list: ListKind,
        user_ptr: u64,
    ) -> Result<LeHandle, Error> {
        self.append(pt_index, self.list_entry(le, user_ptr), &le.memory, ptl_list)
            .map(|raw| LeHandle::new(self.handle(), raw))
            .map_err(|e| Error::new("PtlLEAppend", e))
    }
    /// Unlinks an entry; no event is posted.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` if the entry is no longer linked; `PTL_IN_USE` while operations on it are under way, or its
    /// memory holds bytes of waiting headers.
    #[doc(alias = "PtlLEUnlink")]
    pub fn le_unlink(&self, le: LeHandle) -> Result<(), Error> {
        self.unlink(le.of(self.handle(), "le")).map_err(|e| Error::new("PtlLEUnlink", e))
    }
    /// Searches the headers that wait at a portal, as appending this entry would, without linking the entry.
    ///
    /// [`SearchOp::Only`] leaves each found header and posts a `Search` event; [`SearchOp::Delete`] removes it and
    /// posts the event that appending would post. An entry for one use finds one header, any other entry finds all. A
    /// search without a result posts a `Search` event with [`NiFail::NoMatch`](super::NiFail::NoMatch). With
    /// [`LeOptions::EVENT_CT_OVERFLOW`], the matches are counted, and the end of a search for all as a failure.
    ///
    /// # Errors
    /// As [`le_append`](Self::le_append).
    #[doc(alias = "PtlLESearch")]
    pub fn le_search(&self, pt_index: u32, le: &Le, search_op: SearchOp, user_ptr: u64) -> Result<(), Error> {
        self.search(pt_index, self.list_entry(le, user_ptr), search_op)
            .map_err(|e| Error::new("PtlLESearch", e))
    }

    /// Appends an entry to a list of a portal, on an interface with matching. `user_ptr` comes back in its events.
    ///
    /// On the priority list, the entry is first compared with the headers that wait at the portal, oldest first; each
    /// match is reported by an `*Overflow` event and removed. An entry for one use that matches a header is not linked.
    ///
    /// # Errors
    /// As [`le_append`](Self::le_append); `PTL_ARG_INVALID` also for an interface without matching, and for a
    /// [`Me::match_id`] of the other kind of address.
    #[doc(alias = "PtlMEAppend")]
    pub fn me_append(
        &self,
        pt_index: u32,
        me: &Me,
        ptl_list: ListKind,
        user_ptr: u64,
    ) -> Result<MeHandle, Error> {
        self.append(pt_index, self.match_entry(me, user_ptr), &me.memory, ptl_list)
            .map(|raw| MeHandle::new(self.handle(), raw))
            .map_err(|e| Error::new("PtlMEAppend", e))
    }
    /// Unlinks an entry; no event is posted.
    ///
    /// # Errors
    /// As [`le_unlink`](Self::le_unlink).
    #[doc(alias = "PtlMEUnlink")]
    pub fn me_unlink(&self, me: MeHandle) -> Result<(), Error> {
        self.unlink(me.of(self.handle(), "me")).map_err(|e| Error::new("PtlMEUnlink", e))
    }
    /// Searches the headers that wait at a portal, as appending this entry would, without linking the entry: see
    /// [`le_search`](Self::le_search).
    ///
    /// # Errors
    /// As [`me_append`](Self::me_append).
    #[doc(alias = "PtlMESearch")]
    pub fn me_search(&self, pt_index: u32, me: &Me, search_op: SearchOp, user_ptr: u64) -> Result<(), Error> {
        self.search(pt_index, self.match_entry(me, user_ptr), search_op)
            .map_err(|e| Error::new("PtlMESearch", e))
    }

    fn list_entry(&self, le: &Le, user_ptr: u64) -> Result<Entry, crate::Error> {
        if self.inner.matching {
            return Err(crate::Error::Argument {
                argument: "ni",
                why: "matches, and so has no list entries",
            });
        }
        if !LeOptions::all().contains(le.options) {
            return Err(NO_OPTION);
        }
        let options = MeOptions::from_bits_retain(le.options.bits());
        let region = self.region(&le.memory, options, le.ct, user_ptr)?;
        Ok(Entry { uid: le.uid, ..Entry::new(Criteria::ANY, region) })
    }
    fn match_entry(&self, me: &Me, user_ptr: u64) -> Result<Entry, crate::Error> {
        let error = |argument, why| Err(crate::Error::Argument { argument, why });
        if !self.inner.matching {
            return error("ni", "does not match, and so has no match entries");
        }
        if !MeOptions::all().contains(me.options) {
            return Err(NO_OPTION);
        }
        if me.match_id.is_physical() && self.is_logical() {
            return error("me.match_id", "names nodes where processes are ranks");
        }
        if me.match_id.is_logical() && !self.is_logical() {
            return error("me.match_id", "is a rank where processes are node and process numbers");
        }
        let region =
            Region { min_free: me.min_free, ..self.region(&me.memory, me.options, me.ct, user_ptr)? };
        let criteria =
            Criteria { source: me.match_id, bits: me.match_bits, ignore: me.ignore_bits, ..Criteria::ANY };
        Ok(Entry { uid: me.uid, ..Entry::new(criteria, region) })
    }
    fn region(
        &self,
        memory: &Pieces,
        options: MeOptions,
        ct: Option<CtHandle>,
        user_ptr: u64,
    ) -> Result<Region, crate::Error> {
        self.check_pieces(memory, "memory")?;
        Ok(Region {
            start: memory.addr(),
            length: memory.len(),
            options: options::entry(options, memory.is_vector()),
            user_ptr,
            ct: ct.map(|ct| ct.of(self.handle(), "ct")).transpose()?,
            ..Region::default()
        })
    }
    fn check_pieces(&self, memory: &Pieces, argument: &'static str) -> Result<(), crate::Error> {
        let (value, limit) = (memory.count() as u64, self.limits().max_iovecs.into());
        if memory.is_vector() && value > limit {
            return Err(hca_matching::Error::TooLarge { argument, value, limit }.into());
        }
        Ok(())
    }
    fn append(
        &self,
        pt_index: u32,
        entry: Result<Entry, crate::Error>,
        memory: &Pieces,
        list: ListKind,
    ) -> Result<EntryHandle, crate::Error> {
        self.inner.core.append(pt_index, list, entry?, memory.clone())
    }
    fn unlink(&self, entry: Result<EntryHandle, crate::Error>) -> Result<(), crate::Error> {
        let entry = entry?;
        self.inner.core.with(|ni| ni.engine.unlink(entry))
    }
    fn search(
        &self,
        pt_index: u32,
        entry: Result<Entry, crate::Error>,
        op: SearchOp,
    ) -> Result<(), crate::Error> {
        let entry = entry?;
        // What has come by now is found.
        self.node().progress();
        self.inner.core.with(|ni| ni.engine.search(pt_index, &entry, op))
    }
}

const NO_OPTION: crate::Error =
    crate::Error::Argument { argument: "options", why: "has bits that name no option" };
