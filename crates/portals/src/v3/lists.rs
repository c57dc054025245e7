//! Match entries and memory descriptors.

use hca_matching::{Criteria, Entry, EqHandle as RawEq, ListKind, MdHandle as RawMd, Place, PortalOptions};

use super::error::{Error, ReturnCode};
use super::handle::{EqHandle, MatchId, MdHandle, MeHandle, NiHandle};
use super::md::{Md, MdOptions, Position, Unlink};
use super::ni::Ni;
use crate::Pieces;
use crate::node::NiState;

type Refused = hca_matching::Error;

impl Ni {
    /// Makes a match entry at the front or the end of a portal's list. The entry takes no messages until a descriptor
    /// is [attached](Self::md_attach).
    ///
    /// A message matches if `match_id` includes its source, and its match bits equal the entry's in all bits that are
    /// not ignored.
    ///
    /// # Errors
    /// `PTL_PT_INDEX_INVALID`, `PTL_NO_SPACE`, `PTL_ME_LIST_TOO_LONG`.
    #[doc(alias = "PtlMEAttach")]
    pub fn me_attach(
        &self,
        pt_index: u32,
        match_id: impl Into<MatchId>,
        match_bits: u64,
        ignore_bits: u64,
        unlink: Unlink,
        position: Position,
    ) -> Result<MeHandle, Error> {
        let call = "PtlMEAttach";
        let entry = entry(match_id.into(), match_bits, ignore_bits, unlink);
        let place = match position {
            Position::Before => Place::First(pt_index, ListKind::Priority),
            Position::After => Place::Last(pt_index, ListKind::Priority),
        };
        let raw = self.inner.core.with(|ni| {
            open_portal(ni, pt_index)?;
            ni.engine.insert(place, entry)
        });
        raw.map(|raw| MeHandle { ni: self.inner.id, raw }).map_err(|error| Error::new(call, error))
    }
    /// Makes a match entry on a portal whose list is empty, and returns the portal: preferably one that was never used.
    ///
    /// # Errors
    /// `PTL_PT_FULL`, `PTL_NO_SPACE`.
    #[doc(alias = "PtlMEAttachAny")]
    pub fn me_attach_any(
        &self,
        match_id: impl Into<MatchId>,
        match_bits: u64,
        ignore_bits: u64,
        unlink: Unlink,
    ) -> Result<(u32, MeHandle), Error> {
        let entry = entry(match_id.into(), match_bits, ignore_bits, unlink);
        let made = self.inner.core.with(|ni| {
            let pt_index = free_portal(ni)?;
            Ok((pt_index, ni.engine.append(pt_index, ListKind::Priority, entry)?))
        });
        let (pt_index, raw) = made.map_err(|error| Error::new("PtlMEAttachAny", error))?;
        Ok((pt_index, MeHandle { ni: self.inner.id, raw }))
    }
    /// Makes a match entry right before or behind another one.
    ///
    /// # Errors
    /// `PTL_ME_INVALID`, `PTL_NO_SPACE`, `PTL_ME_LIST_TOO_LONG`.
    #[doc(alias = "PtlMEInsert")]
    pub fn me_insert(
        &self,
        base: MeHandle,
        match_id: impl Into<MatchId>,
        match_bits: u64,
        ignore_bits: u64,
        unlink: Unlink,
        position: Position,
    ) -> Result<MeHandle, Error> {
        let call = "PtlMEInsert";
        let place = self.beside(call, base, position)?;
        let entry = entry(match_id.into(), match_bits, ignore_bits, unlink);
        let raw = self.inner.core.with(|ni| ni.engine.insert(place, entry));
        raw.map(|raw| MeHandle { ni: self.inner.id, raw }).map_err(|error| Error::new(call, error))
    }
    /// Takes an entry off its list, with its descriptor if it has one. No event is posted.
    ///
    /// # Errors
    /// `PTL_ME_INVALID`; `PTL_ME_IN_USE` while operations on it are under way.
    #[doc(alias = "PtlMEUnlink")]
    pub fn me_unlink(&self, me: MeHandle) -> Result<(), Error> {
        let call = "PtlMEUnlink";
        self.check(call, "entry", me.ni)?;
        self.inner.core.with(|ni| ni.engine.unlink(me.raw)).map_err(|error| Error::new(call, error))
    }

    /// Attaches a descriptor to an entry without a descriptor. `unlink` tells whether the descriptor is unlinked when
    /// it is used up.
    ///
    /// # Errors
    /// `PTL_ME_INVALID`; `PTL_ME_IN_USE`: it has one; `PTL_MD_ILLEGAL`, `PTL_SEGV`, `PTL_EQ_INVALID`, `PTL_NO_SPACE`.
    #[doc(alias = "PtlMDAttach")]
    pub fn md_attach(&self, me: MeHandle, md: &Md, unlink: Unlink) -> Result<MdHandle, Error> {
        let call = "PtlMDAttach";
        self.check(call, "entry", me.ni)?;
        self.check_md(call, md)?;
        let attached = self.inner.core.attach(me.raw, md.region(unlink), md.memory.clone());
        attached.map(|raw| MdHandle { ni: self.inner.id, raw }).map_err(|error| Error::new(call, error))
    }
    /// Creates a descriptor without an entry: as the source of puts, or as the destination of gets.
    ///
    /// # Errors
    /// `PTL_MD_ILLEGAL`, `PTL_SEGV`, `PTL_EQ_INVALID`, `PTL_NO_SPACE`.
    #[doc(alias = "PtlMDBind")]
    pub fn md_bind(&self, md: &Md, unlink: Unlink) -> Result<MdHandle, Error> {
        let call = "PtlMDBind";
        self.check_md(call, md)?;
        let bound = self.inner.core.md_bind_region(md.region(unlink), md.memory.clone());
        bound.map(|raw| MdHandle { ni: self.inner.id, raw }).map_err(|error| Error::new(call, error))
    }
    /// Unlinks a descriptor, attached or not. Its entry is unlinked, too, if the entry was created with
    /// [`Unlink::Unlink`]. No event is posted.
    ///
    /// # Errors
    /// `PTL_MD_INVALID`; `PTL_MD_IN_USE` while operations on it are under way.
    #[doc(alias = "PtlMDUnlink")]
    pub fn md_unlink(&self, md: MdHandle) -> Result<(), Error> {
        let call = "PtlMDUnlink";
        self.check(call, "md", md.ni)?;
        self.inner.core.with(|ni| ni.engine.md_unlink(md.raw)).map_err(|error| Error::new(call, error))
    }
    /// Gives a descriptor new values, if the given queue is empty, and returns the old ones. Test and update are one
    /// atomic step: no message is matched in between. Without new values, the call only returns the present ones. The
    /// next message goes to the beginning of the memory again. The descriptor's `unlink` setting stays unchanged.
    ///
    /// The call handles all messages that arrived before it first. A queue counts as empty from the moment at which its
    /// last event was taken: a message that is still being received with
    /// [`EVENT_START_DISABLE`](MdOptions::EVENT_START_DISABLE) has no event until it ends.
    ///
    /// # Errors
    /// `PTL_MD_NO_UPDATE`: the queue is not empty, or operations on the descriptor are under way; `PTL_MD_INVALID`,
    /// `PTL_MD_ILLEGAL`, `PTL_SEGV`, `PTL_EQ_INVALID`.
    #[doc(alias = "PtlMDUpdate")]
    pub fn md_update(&self, md: MdHandle, new: Option<&Md>, test: Option<EqHandle>) -> Result<Md, Error> {
        let call = "PtlMDUpdate";
        self.check(call, "md", md.ni)?;
        let test = self.raw_eq(call, "test", test)?;
        let updated = match new {
            Some(new) => {
                self.check_md(call, new)?;
                self.inner.core.md_update(md.raw, new.region(Unlink::Retain), new.memory.clone(), test)
            }
            None => self.inner.core.md_values(md.raw),
        };
        self.run_handlers();
        match updated {
            Ok((region, memory)) => Ok(Md::of(self.inner.id, &region, memory)),
            Err(error) => {
                let busy = matches!(error, crate::Error::Refused(Refused::InUse { .. }));
                let error = Error::new(call, error);
                Err(if busy { error.with_code(ReturnCode::MdNoUpdate) } else { error })
            }
        }
    }
    /// An extension of other implementations: [`me_insert`](Self::me_insert), [`md_attach`](Self::md_attach) and the
    /// test of [`md_update`](Self::md_update) in one atomic step. If the named queue is not empty, nothing is created.
    ///
    /// # Errors
    /// As [`me_insert`](Self::me_insert), [`md_attach`](Self::md_attach) and [`md_update`](Self::md_update).
    #[doc(alias = "PtlMEMDPost")]
    #[expect(clippy::too_many_arguments, reason = "as many as the interface's function has")]
    pub fn me_md_post(
        &self,
        base: MeHandle,
        match_id: impl Into<MatchId>,
        match_bits: u64,
        ignore_bits: u64,
        me_unlink: Unlink,
        position: Position,
        md: &Md,
        md_unlink: Unlink,
        test: Option<EqHandle>,
    ) -> Result<(MeHandle, MdHandle), Error> {
        let call = "PtlMEMDPost";
        let place = self.beside(call, base, position)?;
        let test = self.raw_eq(call, "test", test)?;
        self.check_md(call, md)?;
        let entry = entry(match_id.into(), match_bits, ignore_bits, me_unlink);
        let region = md.region(md_unlink);
        self.node().progress();
        let posted = self.inner.core.with_memory(md.memory.clone(), |ni, memory| {
            if let Some(test) = test
                && ni.engine.eq_len(test).map_err(|_| Refused::Handle { argument: "test" })? > 0
            {
                return Err(Refused::NoUpdate { argument: "test" });
            }
            let me = ni.engine.insert(place, entry)?;
            match ni.engine.attach(me, region) {
                Ok(raw) => {
                    ni.set_md_memory(raw, memory);
                    Ok((me, raw))
                }
                Err(refused) => {
                    ni.engine.unlink(me).expect("it was just made");
                    Err(refused)
                }
            }
        });
        self.run_handlers();
        let (me, md): (_, RawMd) = posted.map_err(|error| Error::new(call, error))?;
        Ok((MeHandle { ni: self.inner.id, raw: me }, MdHandle { ni: self.inner.id, raw: md }))
    }

    pub(super) fn check(
        &self,
        call: &'static str,
        argument: &'static str,
        ni: NiHandle,
    ) -> Result<(), Error> {
        if ni == self.inner.id { Ok(()) } else { Err(Error::handle(call, argument)) }
    }
    pub(super) fn raw_eq(
        &self,
        call: &'static str,
        argument: &'static str,
        eq: Option<EqHandle>,
    ) -> Result<Option<RawEq>, Error> {
        let Some(eq) = eq else { return Ok(None) };
        self.check(call, argument, eq.ni)?;
        Ok(Some(eq.raw))
    }
    fn beside(&self, call: &'static str, base: MeHandle, position: Position) -> Result<Place, Error> {
        self.check(call, "place", base.ni)?;
        Ok(match position {
            Position::Before => Place::Before(base.raw),
            Position::After => Place::After(base.raw),
        })
    }
    fn check_md(&self, call: &'static str, md: &Md) -> Result<(), Error> {
        let illegal = |why| Err(Error::argument(call, ReturnCode::MdIllegal, "md", why));
        self.raw_eq(call, "eq", md.eq)?;
        if MdOptions::all().intersection(md.options) != md.options {
            return illegal("an option that the interface does not have");
        }
        if md.options.contains(MdOptions::IOVEC) && !md.memory.is_vector() {
            return illegal("IOVEC is set, and the memory is no vector");
        }
        if pieces(&md.memory) > u64::from(self.limits().max_md_iovecs) {
            return illegal("the memory has more pieces than max_md_iovecs");
        }
        Ok(())
    }
}

fn pieces(memory: &Pieces) -> u64 {
    if memory.is_vector() { memory.count() as u64 } else { 0 }
}

fn entry(match_id: MatchId, bits: u64, ignore: u64, unlink: Unlink) -> Entry {
    let criteria = Criteria { source: match_id.source(), bits, ignore, uid: match_id.uid, jid: match_id.jid };
    Entry::bare(criteria, unlink == Unlink::Unlink)
}

/// All portals of 3.3 are there from the start; here one is when it is first used.
fn open_portal(ni: &mut NiState, pt_index: u32) -> Result<(), Refused> {
    match ni.engine.pt_alloc(PortalOptions::empty(), None, Some(pt_index)) {
        Ok(_) | Err(Refused::PtInUse { .. }) => Ok(()),
        Err(refused) => Err(refused),
    }
}

/// A portal without entries.
fn free_portal(ni: &mut NiState) -> Result<u32, Refused> {
    ni.engine.pt_alloc(PortalOptions::empty(), None, None).or_else(|full| {
        let last = ni.engine.limits().max_pt_index;
        (0..=last).find(|&pt| ni.engine.list_len(pt, ListKind::Priority) == Ok(0)).ok_or(full)
    })
}
