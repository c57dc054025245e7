//! Null regions: requests read zeros from them, at any address, and what is written there is lost.
//!
//! No device has such a region. Entries that name one are replaced as requests are posted: by memory that is always
//! zero where the request reads, and by memory that nobody reads where it writes.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hca::hca_core::{Access, Lkey, MrHandle, Sge};

use crate::device::Adapter;
use crate::entry::{Errno, INVALID, In, lock, pointer, reg_mr};
use crate::mapping::Mapping;
use crate::memory::{Backing, Mr, Pd, Range, register};
use crate::post::look_at_requests;
use crate::qp::Qp;

/// The most bytes of an entry that names a null region.
const MAX_BYTES: usize = 16 << 20;

/// The null regions of an adapter, by their keys.
#[derive(Default)]
pub(crate) struct Nulls {
    /// Whether there ever was one: else no request is looked at.
    any: AtomicBool,
    /// The key of the zeros, and both addresses.
    by_key: Mutex<HashMap<u32, Places>>,
}
#[derive(Clone, Copy)]
struct Places {
    zeros: Sge,
    sink: u64,
}

/// The parts of a null region beside the region of its key.
pub(crate) struct Null {
    zeros: MrHandle,
    _zeros: Arc<Mapping>,
    _sink: Mapping,
}

impl Nulls {
    /// The list, with entries of null regions replaced; `room` is used where there are some.
    #[inline]
    pub(crate) fn replace<'a>(
        &self,
        list: &'a [Sge],
        writes: bool,
        room: &'a mut Vec<Sge>,
    ) -> Result<&'a [Sge], Errno> {
        if self.any.load(Ordering::Relaxed) { self.look(list, writes, room) } else { Ok(list) }
    }
    #[cold]
    fn look<'a>(&self, list: &'a [Sge], writes: bool, room: &'a mut Vec<Sge>) -> Result<&'a [Sge], Errno> {
        let by_key = lock(&self.by_key);
        for entry in list {
            let Some(places) = by_key.get(&entry.lkey.raw()) else {
                room.push(*entry);
                continue;
            };
            if entry.len as usize > MAX_BYTES {
                return Err(INVALID);
            }
            let place = if writes { Sge { addr: places.sink, ..*entry } } else { places.zeros };
            room.push(Sge { len: entry.len, ..place });
        }
        Ok(room)
    }
    /// Ends a null region. Its own region is deregistered already.
    pub(crate) fn end(&self, adapter: &Adapter, key: u32, null: &Null) -> Result<(), Errno> {
        lock(&self.by_key).remove(&key);
        Ok(adapter.device().dereg_mr(null.zeros)?)
    }
}

pub(crate) extern "C" fn alloc_null_mr(pd: In<Pd>) -> *mut Mr {
    pointer(|| {
        let owner = pd.get()?;
        let (zeros, sink) = (Arc::new(Mapping::zeroed(MAX_BYTES)?), Mapping::zeroed(MAX_BYTES)?);
        let init = |memory: &Mapping, access| Range {
            addr: memory.first().as_ptr().cast(),
            len: MAX_BYTES,
            iova: memory.first().as_ptr() as u64,
            access,
        };
        let of_zeros = init(&zeros, Access::empty());
        let keys = reg_mr(owner.adapter.device(), owner.handle, &of_zeros.mr_init()?)?;
        let range = init(&sink, Access::LOCAL_WRITE);
        let places = Places {
            zeros: Sge { addr: of_zeros.iova, len: 0, lkey: Lkey::new(keys.lkey.raw()) },
            sink: range.iova,
        };
        let null = Null { zeros: keys.handle, _zeros: Arc::clone(&zeros), _sink: sink };
        let registered = register(pd, &range, core::ptr::null_mut(), Backing::Null(null));
        // Before the zeros are unmapped.
        let mr = registered.inspect_err(|_| _ = owner.adapter.device().dereg_mr(keys.handle))?;
        let nulls = &owner.adapter.nulls;
        lock(&nulls.by_key).insert(In::of(mr).get()?.lkey(), places);
        nulls.any.store(true, Ordering::Relaxed);
        look_at_requests();
        owner.adapter.listeners.queue_pairs(Qp::look_at_requests);
        Ok(mr)
    })
}
