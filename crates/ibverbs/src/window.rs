//! Memory windows.
//!
//! A window of type 1 is bound by a call of the device, and programs expect a completion of the bind. Two requests that
//! change nothing are its completion: a bind of a hidden window of type 2 without rights for peers, and the return of
//! its key. The completion of the second is the bind's; that of the first, which comes where it fails, is not told.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use hca::hca_core::{
    Access, Lkey, MemoryWindows, MwHandle, MwKeys, MwRange, MwType, Payload, PdHandle, PostErrorKind,
    QpHandle, Rkey, SendFlags, SendOp, SendPort, SendWr,
};

use crate::abi::{IbvMw, IbvMwBind, IbvMwBindInfo};
use crate::device::Adapter;
use crate::entry::{self, Errno, INVALID, In, give, lock, number, pointer};
use crate::import::File;
use crate::memory::{Mr, Pd, ZERO_BASED, access};
use crate::post::{Refused, flags};
use crate::qp::Qp;

/// The number of type 1 in `enum ibv_mw_type`, and that of type 2.
const TYPE_1: u32 = 1;
const TYPE_2: u32 = 2;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    pub(crate) c: IbvMw,
    file: Arc<File>,
    /// The protection domain, which a parent domain may have named that is gone by now.
    pd: PdHandle,
    handle: MwHandle,
    hidden: Mutex<Hidden>,
}

/// The hidden windows of a window of type 1, by queue pair, and the range of the last bind.
#[derive(Default)]
struct Hidden {
    windows: HashMap<QpHandle, MwKeys>,
    range: Option<MwRange>,
}

/// Requests that stand for binds, two for each.
pub(crate) struct Binds {
    /// How many of the second ones have a completion to come, by queue pair and number.
    signaled: Mutex<HashMap<(QpHandle, u64), u32>>,
    /// The number of all first ones: random, as programs choose theirs.
    first: u64,
}

impl Default for Binds {
    fn default() -> Self {
        Self { signaled: Mutex::default(), first: RandomState::new().hash_one(()) }
    }
}

impl Binds {
    fn add(&self, qp: QpHandle, wr_id: u64) {
        *lock(&self.signaled).entry((qp, wr_id)).or_default() += 1;
    }
    /// Whether the completion of a request that took a key back is that of a bind.
    #[cold]
    pub(crate) fn take(&self, qp: QpHandle, wr_id: u64) -> bool {
        let mut signaled = lock(&self.signaled);
        let Some(count) = signaled.get_mut(&(qp, wr_id)) else { return false };
        *count -= 1;
        if *count == 0 {
            signaled.remove(&(qp, wr_id));
        }
        true
    }
    /// Whether the completion of a request is that of the first of a bind's two, whose second follows.
    pub(crate) fn is_first(&self, wr_id: u64) -> bool {
        wr_id == self.first
    }
}

impl Mw {
    fn windows(&self) -> Result<&dyn MemoryWindows, Errno> {
        windows(&self.file.adapter)
    }
    /// Ends a window for the device, this one or a hidden one of it.
    fn end(&self, window: MwHandle) -> Result<(), Errno> {
        self.windows()?.dealloc_mw(window)?;
        self.file.remove_window(window);
        Ok(())
    }
}
fn windows(adapter: &Adapter) -> Result<&dyn MemoryWindows, Errno> {
    adapter.device().windows().ok_or(Errno(libc::EOPNOTSUPP))
}

/// The range that a program names.
pub(crate) fn range(info: &IbvMwBindInfo) -> Result<MwRange, Errno> {
    let mr = In::<Mr>::of(info.mr.cast()).get()?;
    Ok(MwRange {
        lkey: Lkey::new(mr.lkey()),
        addr: info.addr,
        len: info.length,
        access: access(info.mw_access_flags & !ZERO_BASED)?,
        zero_based: info.mw_access_flags & ZERO_BASED != 0,
    })
}
/// The request that binds a window of type 2.
pub(crate) fn bind_request(mw: In<Mw>, rkey: u32, info: &IbvMwBindInfo) -> Result<SendOp, Errno> {
    let window = mw.get()?;
    if window.c.kind != TYPE_2 {
        return Err(INVALID);
    }
    // The program chooses the lowest byte of the key, and no other.
    if (rkey ^ window.c.rkey.load(Ordering::Relaxed)) & !0xff != 0 {
        return Err(INVALID);
    }
    Ok(SendOp::BindMw { rkey: Rkey::new(rkey), range: range(info)? })
}
/// Shows the program the key of a window whose bind was posted.
pub(crate) fn show_key(mw: In<Mw>, rkey: u32) {
    mw.opt().inspect(|window| window.c.rkey.store(rkey, Ordering::Relaxed));
}

pub(crate) extern "C" fn alloc_mw(pd: In<Pd>, kind: u32) -> *mut Mw {
    pointer(|| {
        let owner = pd.get()?;
        let of = match kind {
            TYPE_1 => MwType::One,
            TYPE_2 => MwType::Two,
            _ => return Err(INVALID),
        };
        let keys = windows(&owner.adapter)?.alloc_mw(owner.handle, of)?;
        let c = IbvMw {
            context: owner.c.context,
            pd: pd.raw().cast(),
            rkey: AtomicU32::new(keys.rkey.raw()),
            handle: keys.handle.index,
            kind,
        };
        let file = Arc::clone(&owner.file);
        file.add_window(keys.handle);
        Ok(give(Mw { c, file, pd: owner.handle, handle: keys.handle, hidden: Mutex::default() }))
    })
}

pub(crate) extern "C" fn dealloc_mw(mw: In<Mw>) -> c_int {
    number(|| {
        let window = mw.get()?;
        window.end(window.handle)?;
        for (_, keys) in lock(&window.hidden).windows.drain() {
            window.end(keys.handle)?;
        }
        mw.take().map(drop)
    })
}

/// The two requests that change nothing, of which the second is signaled as the bind is.
fn requests(rkey: Rkey, range: &MwRange, wr_ids: [u64; 2], flags: SendFlags) -> [SendWr<'static>; 2] {
    let range = MwRange { access: Access::empty(), zero_based: false, ..*range };
    let request = |wr_id, op, flags| SendWr { wr_id, op, flags, payload: Payload::Sges(&[]), dest: None };
    [
        request(wr_ids[0], SendOp::BindMw { rkey, range }, flags & SendFlags::FENCE),
        request(wr_ids[1], SendOp::LocalInv(rkey), flags),
    ]
}
/// Posts them.
fn complete(qp: &Qp, port: &mut dyn SendPort, requests: &[SendWr<'_>; 2]) -> Result<(), PostErrorKind> {
    let [_, last] = requests;
    let is_signaled = last.flags.contains(SendFlags::SIGNALED);
    if is_signaled {
        qp.adapter.binds.add(qp.handle, last.wr_id);
    }
    let posted = requests.iter().try_for_each(|request| entry::post_send(port, request));
    port.ring();
    posted.inspect_err(|_| _ = is_signaled && qp.adapter.binds.take(qp.handle, last.wr_id))
}

pub(crate) extern "C" fn bind_mw(qp: In<Qp>, mw: In<Mw>, bind: In<IbvMwBind>) -> c_int {
    number(|| {
        let (qp, window, bind) = (qp.get()?, mw.get()?, bind.get()?);
        let info = &bind.bind_info;
        let flags = flags(qp, bind.send_flags)?;
        let queue = qp.send_queue().filter(|_| qp.binds_windows()).ok_or(INVALID)?;
        if window.c.kind != TYPE_1 {
            return Err(INVALID);
        }
        let mut hidden = lock(&window.hidden);
        let new = if info.length == 0 { None } else { Some(range(info)?) };
        let shown = new.or(hidden.range).ok_or(INVALID)?;
        let mut keys = match hidden.windows.get(&qp.handle) {
            Some(keys) => *keys,
            None => {
                // Windows of queue pairs that are gone serve nobody.
                let is_there = |qp: &QpHandle| window.file.adapter.device().query_qp(*qp).is_ok();
                hidden.windows.retain(|qp, keys| is_there(qp) || window.end(keys.handle).is_err());
                window.windows()?.alloc_mw(window.pd, MwType::Two)?
            }
        };
        // A bind takes another lowest byte than the key has.
        let key = keys.rkey.raw();
        keys.rkey = Rkey::new(key & !0xff | key.wrapping_add(1) & 0xff);
        hidden.windows.insert(qp.handle, keys);
        window.file.add_window(keys.handle);
        let mut sending = queue.lock();
        let port = &mut *sending.port;
        let requests = requests(keys.rkey, &shown, [qp.adapter.binds.first, bind.wr_id], flags);
        let refused = |kind| Refused::Device(kind).errno(|| qp.name(), bind.wr_id);
        // A bind without room for its completion changes nothing.
        for (before, request) in requests.iter().enumerate() {
            port.would_take(request, before).map_err(refused)?;
        }
        let rkey = window.windows()?.bind_mw(window.handle, new.as_ref())?;
        window.c.rkey.store(rkey.raw(), Ordering::Relaxed);
        hidden.range = new;
        complete(qp, port, &requests).map_err(refused)
    })
}
