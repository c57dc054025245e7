//! Memory keys.
//!
//! A key that translates by a list of pages is a memory region of the adapter, over a window that shows these pages
//! side by side, whether they lie in one piece or in many. The adapter chooses the key's index, the driver its lowest
//! byte. A key of all bus addresses has an index that allows no access, and regions behind it, see [`bus`]; a key of a
//! part of the bus addresses allows no access. Keys that translate by other keys are not supported, and work requests
//! change only the rights and the protection domain of a key; the capabilities say so.

pub(crate) mod bus;
#[cfg(test)]
mod tests_bus;
#[cfg(test)]
mod tests_scattered;
#[cfg(test)]
mod tests_umr;

use hca_core::{Access, Device, MrHandle, MrInit, PdHandle};
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, QueryMkeyIn, QueryMkeyOut};
use hca_prm::{AccessMode, CmdIn, CmdStatus, CqeSyndrome, Mkc, Opcode, UmrCtrlSeg, mkey_mask, pas};
use softhca::SoftHca;

use crate::command::caps::LOG_MKEYS;
use crate::command::{Output, Resources, parse};
use crate::function::Function;
use crate::guest::{PageList, Window};
use crate::objects::{Numbered, Objects, gone, has_room, no_window, status};

/// Bytes of the largest page of a key, as a power of two.
const MAX_LOG_PAGE: u32 = 62;
/// Two entries of a list of pages.
const OCTWORD: usize = 2 * pas::ENTRY;
/// Pages and pieces of memory of a key that are looked up in one look.
const PIECES_A_LOOK: usize = 16 << 10;

/// A memory key.
#[derive(Debug)]
pub(crate) struct Mkey {
    region: Option<MrHandle>,
    memory: Option<Window>,
    pd: PdHandle,
    context: Mkc,
    /// Bytes of its list of pages.
    listed: usize,
}

impl Mkey {
    /// The protection domain that it names.
    pub(crate) fn pd(&self) -> PdHandle {
        self.pd
    }

    /// Where `len` bytes lie whose address `key` names, if a queue of this protection domain may write there.
    pub(crate) fn place(&self, pd: PdHandle, key: u32, addr: u64, len: usize) -> Option<(&Window, usize)> {
        self.within(pd, key, addr, len).filter(|_| self.context.get(Mkc::LW))
    }

    /// Copies bytes to an address that `key` names. Returns whether a queue of this protection domain may write there.
    pub(crate) fn store(&self, pd: PdHandle, key: u32, addr: u64, bytes: &[u8]) -> bool {
        self.place(pd, key, addr, bytes.len()).map(|(memory, at)| memory.store(at, bytes)).is_some()
    }

    /// Copies bytes from an address that `key` names. Returns whether a queue of this protection domain may read there.
    pub(crate) fn load(&self, pd: PdHandle, key: u32, addr: u64, into: &mut [u8]) -> bool {
        let place = self.within(pd, key, addr, into.len()).filter(|_| self.context.get(Mkc::LR));
        place.map(|(memory, at)| memory.load(at, into)).is_some()
    }

    fn within(&self, pd: PdHandle, key: u32, addr: u64, len: usize) -> Option<(&Window, usize)> {
        let memory = self.memory.as_ref()?;
        let may =
            pd == self.pd && !self.context.get(Mkc::FREE) && key & 0xff == self.context.get(Mkc::MKEY_7_0);
        let at = usize::try_from(addr.checked_sub(self.context.get(Mkc::START_ADDR))?).ok()?;
        (may && at <= memory.len() && len <= memory.len() - at).then_some((memory, at))
    }

    /// Has it be of this protection domain, and allow what this context says. Its memory and its number stay.
    fn change(&mut self, hca: &SoftHca, pd: PdHandle, context: Mkc) -> Result<(), CqeSyndrome> {
        let wrong = CqeSyndrome::LocalQpOpErr;
        let allowed = if context.get(Mkc::FREE) { Access::empty() } else { access(&context) };
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let memory = self.memory.as_ref().ok_or(wrong)?;
        if allowed.intersects(writes) && !memory.is_writable() {
            return Err(wrong);
        }
        let region = self.region.ok_or(wrong)?;
        self.region = Some(hca.change_mr(region, pd, allowed).map_err(|_| wrong)?.handle);
        (self.pd, self.context) = (pd, context);
        Ok(())
    }

    /// Makes it invalid; the number stays.
    pub(crate) fn release(&mut self, hca: &SoftHca) {
        if let Some(region) = self.region.take() {
            gone("memory key", hca.dereg_mr(region));
        }
        self.memory = None;
    }

    pub(crate) fn destroy(mut self, hca: &SoftHca) {
        self.release(hca);
    }
}

/// The keys that requests may change, and the protection domains that they name.
pub(crate) struct Keys<'a> {
    pub(crate) mkeys: &'a mut Numbered<Mkey>,
    pub(crate) resources: &'a Resources,
}

impl Keys<'_> {
    /// Does what a request asks for: changes the rights of a key, or whose it is. All else is made by commands.
    pub(crate) fn change(
        &mut self,
        hca: &SoftHca,
        key: u32,
        asked: &UmrCtrlSeg,
        requested: &Mkc,
    ) -> Result<(), CqeSyndrome> {
        let wrong = CqeSyndrome::LocalQpOpErr;
        let mask = asked.get(UmrCtrlSeg::MKEY_MASK);
        let rights = [
            (mkey_mask::LR, Mkc::LR),
            (mkey_mask::LW, Mkc::LW),
            (mkey_mask::RR, Mkc::RR),
            (mkey_mask::RW, Mkc::RW),
            (mkey_mask::A, Mkc::A),
            (mkey_mask::FREE, Mkc::FREE),
        ];
        let known = rights.iter().fold(mkey_mask::PD, |all, (bit, _)| all | bit);
        let mkey = self.mkeys.get_mut(&(key >> 8)).ok_or(wrong)?;
        let named = mkey.context.get(Mkc::MKEY_7_0) == key & 0xff;
        let checked = match asked.get(UmrCtrlSeg::CHECK) {
            UmrCtrlSeg::MUST_BE_FREE => mkey.context.get(Mkc::FREE),
            UmrCtrlSeg::MUST_BE_USED => !mkey.context.get(Mkc::FREE),
            _ => true,
        };
        if !named || !checked || mask & !known != 0 || asked.get(UmrCtrlSeg::XLT_OCTOWORDS) != 0 {
            return Err(wrong);
        }
        let (mut context, mut pd) = (mkey.context, mkey.pd);
        for (_, field) in rights.iter().filter(|(bit, _)| mask & bit != 0) {
            context.set(*field, requested.get(*field));
        }
        if mask & mkey_mask::PD != 0 {
            pd = self.resources.pd(requested.get(Mkc::PD)).ok_or(wrong)?;
            context.set(Mkc::PD, requested.get(Mkc::PD));
        }
        mkey.change(hca, pd, context)
    }
}

/// What a key lets its users do.
fn access(context: &Mkc) -> Access {
    [
        (Mkc::LW, Access::LOCAL_WRITE),
        (Mkc::RW, Access::REMOTE_WRITE),
        (Mkc::RR, Access::REMOTE_READ),
        (Mkc::A, Access::REMOTE_ATOMIC),
        (Mkc::EN_RINVAL, Access::REMOTE_INVALIDATE),
    ]
    .into_iter()
    .filter(|(field, _)| context.get(*field))
    .map(|(_, access)| access)
    .collect()
}

/// A byte for keys that nobody may use.
static NOTHING: u8 = 0;

/// Registers a range with the key's lowest byte; the range is valid until the key is released.
#[allow(unsafe_code)] // the contract of `reg_mr`
pub(crate) fn register(
    hca: &SoftHca,
    pd: PdHandle,
    mr: &MrInit,
    tag: u8,
) -> Result<(MrHandle, u32), CmdStatus> {
    // SAFETY: it lies in a window, which is dropped behind `dereg_mr` in `Mkey::release` (or in `bus`), or in cells that
    // an `Aside` frees behind that and nobody but it writes to, or it is `NOTHING`, which lives for ever and belongs to
    // a protection domain that no queue pair has, so nobody writes there. The program whose memory a window shows is another process, or reaches it by copies only.
    let keys = unsafe { hca.reg_mr_tagged(pd, mr, tag) }.map_err(status)?;
    Ok((keys.handle, keys.lkey.raw() >> 8))
}

/// The same of a window, whose first byte has this address for users of the key.
#[allow(unsafe_code)] // the contract of `reg_scattered`
fn register_window(
    hca: &SoftHca,
    pd: PdHandle,
    window: &Window,
    (iova, access): (u64, Access),
    tag: u8,
) -> Result<(MrHandle, u32), CmdStatus> {
    let Some(memory) = window.scattered() else {
        return register(hca, pd, &MrInit { addr: window.addr(), len: window.len(), iova, access }, tag);
    };
    // SAFETY: as in `register`.
    let keys = unsafe { hca.reg_scattered(pd, memory.clone(), (iova, access), tag) }.map_err(status)?;
    Ok((keys.handle, keys.lkey.raw() >> 8))
}

impl Objects {
    /// A key that takes an index and allows nothing.
    fn reserve(&mut self, tag: u8) -> Result<(MrHandle, u32), CmdStatus> {
        let pd = match self.nobody {
            Some(pd) => pd,
            None => *self.nobody.insert(self.hca.alloc_pd().map_err(status)?),
        };
        let addr = core::ptr::NonNull::from(&NOTHING);
        register(&self.hca, pd, &MrInit { addr, len: 1, iova: u64::MAX - 1, access: Access::empty() }, tag)
    }

    /// Makes a key over a window; `pas` follows the command's layout.
    fn create_mkey(
        &mut self,
        window: Option<Result<Window, CmdStatus>>,
        pd: PdHandle,
        command: &CreateMkeyIn,
        pas: &[u8],
    ) -> Result<u32, CmdStatus> {
        self.give_back_for_a_key();
        has_room(self.mkeys.len(), LOG_MKEYS)?;
        let context = command.get(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
        let tag = context.get(Mkc::MKEY_7_0) as u8;
        let unsupported = context.get(Mkc::FREE)
            || command.get(CreateMkeyIn::MKEY_UMEM_VALID)
            || context.get(Mkc::BSF_EN)
            || context.get(Mkc::QPN) != Mkc::ANY_QPN;
        if unsupported {
            return Err(CmdStatus::BadParam);
        }
        let len = context.get(Mkc::LEN);
        let (memory, (region, index)) = match AccessMode::from_code(context.access_mode()) {
            Some(AccessMode::Pa) => (None, self.reserve(tag)?),
            Some(AccessMode::Mtt) if context.get(Mkc::LENGTH64) => return Err(CmdStatus::BadParam),
            Some(AccessMode::Mtt) if len == 0 => (None, self.reserve(tag)?),
            Some(AccessMode::Mtt) => {
                let window = window.ok_or(CmdStatus::IntErr)??;
                if window.table_bytes() > self.max_queue_bytes.saturating_sub(self.table_bytes) {
                    return Err(CmdStatus::NoRes);
                }
                let shown = (context.get(Mkc::START_ADDR), access(&context));
                let registered = register_window(&self.hca, pd, &window, shown, tag)?;
                (Some(window), registered)
            }
            _ => return Err(CmdStatus::BadParam),
        };
        if context.access_mode() == AccessMode::Pa.code() && context.get(Mkc::LENGTH64) {
            self.add_bus_key(index, tag, (pd, context.get(Mkc::LW)));
        }
        self.listed_bytes += pas.len();
        if let Some(window) = &memory {
            self.keys_of.add(window.ranges(), index);
            self.table_bytes += window.table_bytes();
        }
        let listed = pas.len();
        self.mkeys.insert(index, Mkey { region: Some(region), memory, pd, context, listed });
        Ok(index)
    }

    /// Makes keys invalid that name parts of ranges that lie here, so many at most. Returns whether there are more.
    pub(crate) fn release_keys(&mut self, iova: u64, size: u64, most: usize) -> bool {
        let some: Vec<u32> = self.keys_in(iova, size).take(most).collect();
        for index in some {
            let Some(key) = self.mkeys.get_mut(&index) else { continue };
            if let Some(window) = &key.memory {
                self.keys_of.remove(window.ranges(), index);
                self.table_bytes -= window.table_bytes();
            }
            key.release(&self.hca);
        }
        self.keys_in(iova, size).next().is_some()
    }

    fn keys_in(&self, iova: u64, size: u64) -> impl Iterator<Item = u32> {
        let touches = move |key: &Mkey| key.memory.as_ref().is_some_and(|window| window.touches(iova, size));
        self.keys_of.near(iova, size).filter(move |index| self.mkeys.get(index).is_some_and(touches))
    }

    /// Destroys a key.
    pub(crate) fn destroy_mkey(&mut self, index: u32) -> Result<(), CmdStatus> {
        let key = self.mkeys.remove(&index).ok_or(CmdStatus::BadRes)?;
        self.listed_bytes -= key.listed;
        self.remove_bus_key(index);
        if let Some(window) = &key.memory {
            self.keys_of.remove(window.ranges(), index);
            self.table_bytes -= window.table_bytes();
        }
        key.destroy(&self.hca);
        Ok(())
    }
}

/// The pages that a key lists, if it translates by such a list.
fn listed<'a>(command: &CreateMkeyIn, pas: &'a [u8]) -> Result<Option<PageList<'a>>, CmdStatus> {
    let context = command.get(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let (log_page, start, len) =
        (context.get(Mkc::LOG_PAGE_SIZE), context.get(Mkc::START_ADDR), context.get(Mkc::LEN));
    if context.access_mode() != AccessMode::Mtt.code() || len == 0 {
        return Ok(None);
    }
    if log_page > MAX_LOG_PAGE || start.checked_add(len).is_none() {
        return Err(CmdStatus::BadParam);
    }
    let entries = command.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE) as usize;
    let pas = entries.checked_mul(OCTWORD).and_then(|bytes| pas.get(..bytes.min(pas.len())));
    let pas = pas.ok_or(CmdStatus::BadInpLen)?;
    let access = access(&context);
    let write = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let first = start & ((1 << log_page) - 1);
    Ok(Some(PageList { pas, log_page, first, len, write }))
}

impl Function {
    /// Looks up a piece of the memory that a key would have which this command makes. Returns whether there is more.
    pub(crate) fn make_piece(&mut self, input: &[u8]) -> bool {
        let is_one = parse::<CmdIn>(input).is_ok_and(|head| head.opcode() == Opcode::CREATE_MKEY);
        let Some(command) = is_one.then(|| parse::<CreateMkeyIn>(input).ok()).flatten() else { return false };
        let made = match listed(&command, &input[CreateMkeyIn::SIZE..]) {
            Ok(None) => return false,
            Ok(Some(list)) => self.guest.window_bit_by_bit(&list, PIECES_A_LOOK).map_err(no_window),
            Err(status) => Err(status),
        };
        self.commands.window = made.transpose();
        self.commands.window.is_none()
    }

    pub(crate) fn create_mkey(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: CreateMkeyIn = parse(input)?;
        let number = command.get(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY).get(Mkc::PD);
        let pd = self.resources.pd(number).ok_or(CmdStatus::BadRes)?;
        let window = self.commands.window.take();
        let index = self.objects.create_mkey(window, pd, &command, &input[CreateMkeyIn::SIZE..])?;
        out.put(&CreateMkeyOut::new().with(CreateMkeyOut::MKEY_INDEX, index))
    }

    pub(crate) fn query_mkey(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let index = parse::<QueryMkeyIn>(input)?.get(QueryMkeyIn::MKEY_INDEX);
        let key = self.objects.mkeys.get(&index).ok_or(CmdStatus::BadRes)?;
        out.put(&QueryMkeyOut::new().with(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY, key.context))
    }

    pub(crate) fn destroy_mkey(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        self.objects.destroy_mkey(parse::<DestroyMkeyIn>(input)?.get(DestroyMkeyIn::MKEY_INDEX))
    }
}
