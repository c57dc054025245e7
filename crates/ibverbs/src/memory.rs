//! Protection domains, memory regions and address handles.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::sync::Arc;

use hca::hca_core::{Access, AddressVector, AhHandle, Gid, Lid, MrHandle, MrInit, PdHandle, StaticRate};

use crate::abi::{IbvAh, IbvAhAttr, IbvContext, IbvMr, IbvPd};
use crate::async_event::ContextEvents;
use crate::device::Adapter;
use crate::entry::{Errno, INVALID, In, exports, give, number, pointer, reg_mr};

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) c: IbvPd,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) handle: PdHandle,
}
impl Pd {
    /// The asynchronous events of the context.
    pub(crate) fn events(&self) -> Result<Arc<ContextEvents>, Errno> {
        Ok(Arc::clone(&In::of(self.c.context).context()?.events))
    }
}

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    c: IbvMr,
    adapter: Arc<Adapter>,
    handle: MrHandle,
}
/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    c: IbvAh,
    adapter: Arc<Adapter>,
    pub(crate) handle: AhHandle,
}

/// Flags of `enum ibv_access_flags` that programs set for speed, and that any device may leave alone.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;
/// Rights, as (the program's bit, ours).
const RIGHTS: [(u32, Access); 7] = [
    (1, Access::LOCAL_WRITE),
    (1 << 1, Access::REMOTE_WRITE),
    (1 << 2, Access::REMOTE_READ),
    (1 << 3, Access::REMOTE_ATOMIC),
    (1 << 4, Access::MW_BIND),
    (1 << 8, Access::FLUSH_GLOBAL),
    (1 << 9, Access::FLUSH_PERSISTENT),
];

/// Rights by the program's flags.
///
/// # Errors
/// A flag is unknown, or of what is not offered (zero-based and on-demand regions).
pub(crate) fn access(flags: u32) -> Result<Access, Errno> {
    let known = RIGHTS.iter().fold(OPTIONAL_ACCESS, |known, (bit, _)| known | bit);
    if flags & !known != 0 {
        return Err(INVALID);
    }
    Ok(RIGHTS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, right)| *right).collect())
}
/// The program's flags of rights.
pub(crate) fn access_flags(access: Access) -> u32 {
    RIGHTS.iter().filter(|(_, right)| access.contains(*right)).fold(0, |flags, (bit, _)| flags | bit)
}

/// The path that a program describes.
///
/// # Errors
/// The port is not 1, or there is no GID where packets go by one.
pub(crate) fn address(attr: &IbvAhAttr) -> Result<AddressVector, Errno> {
    if attr.port_num != 1 || attr.sl > 15 {
        return Err(INVALID);
    }
    if attr.is_global == 0 && attr.dlid == 0 {
        return Err(INVALID);
    }
    let [high, low] = attr.dgid.map(u64::to_ne_bytes);
    let mut dgid = [0; 16];
    dgid[..8].copy_from_slice(&high);
    dgid[8..].copy_from_slice(&low);
    let global = attr.is_global != 0;
    Ok(AddressVector {
        dgid: if global { Gid(dgid) } else { Gid::default() },
        dlid: Lid::new(attr.dlid),
        flow_label: attr.flow_label & 0xf_ffff,
        hop_limit: if global { attr.hop_limit } else { 0 },
        traffic_class: attr.traffic_class,
        sl: attr.sl,
        static_rate: StaticRate::new(attr.static_rate),
    })
}
/// The path, as a query tells it.
pub(crate) fn address_attr(av: &AddressVector) -> IbvAhAttr {
    let half = |at: usize| u64::from_ne_bytes(av.dgid.0[at..at + 8].try_into().expect("8 bytes"));
    IbvAhAttr {
        dgid: [half(0), half(8)],
        flow_label: av.flow_label,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
        dlid: av.dlid.raw(),
        sl: av.sl,
        static_rate: av.static_rate.encoding(),
        is_global: u8::from(av.dgid != Gid::default()),
        port_num: 1,
        ..IbvAhAttr::default()
    }
}

/// Registers memory; null addresses and empty ranges are refused, as are rights of peers to write where the program
/// does not let the device write.
fn register(pd: In<Pd>, addr: *mut c_void, length: usize, iova: u64, flags: u32) -> Result<*mut Mr, Errno> {
    let owner = pd.get()?;
    let access = access(flags)?;
    let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if length == 0 || access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
        return Err(INVALID);
    }
    let first = NonNull::new(addr.cast::<u8>()).ok_or(Errno(libc::EFAULT))?;
    (addr as usize).checked_add(length).ok_or(INVALID)?;
    let keys =
        reg_mr(owner.adapter.device(), owner.handle, &MrInit { addr: first, len: length, iova, access })?;
    let c = IbvMr {
        context: owner.c.context,
        pd: pd.raw().cast(),
        addr,
        length,
        handle: keys.handle.index,
        lkey: keys.lkey.raw(),
        rkey: keys.rkey.raw(),
    };
    Ok(give(Mr { c, adapter: Arc::clone(&owner.adapter), handle: keys.handle }))
}

exports! {
    "IBVERBS_1.1" fn ibv_alloc_pd(context: In<IbvContext>) -> *mut Pd {
        pointer(|| {
            let adapter = Arc::clone(&context.context()?.adapter);
            let handle = adapter.device().alloc_pd()?;
            Ok(give(Pd { c: IbvPd { context: context.raw(), handle: handle.index }, adapter, handle }))
        })
    }
    "IBVERBS_1.1" fn ibv_dealloc_pd(pd: In<Pd>) -> c_int {
        number(|| {
            let object = pd.get()?;
            object.adapter.device().dealloc_pd(object.handle)?;
            pd.take().map(drop)
        })
    }
    "IBVERBS_1.1" fn ibv_reg_mr(pd: In<Pd>, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
        pointer(|| register(pd, addr, length, addr as u64, access as u32))
    }
    "IBVERBS_1.7" fn ibv_reg_mr_iova(pd: In<Pd>, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut Mr {
        pointer(|| register(pd, addr, length, iova, access as u32))
    }
    "IBVERBS_1.8" fn ibv_reg_mr_iova2(pd: In<Pd>, addr: *mut c_void, length: usize, iova: u64, access: u32) -> *mut Mr {
        pointer(|| register(pd, addr, length, iova, access))
    }
    "IBVERBS_1.1" fn ibv_dereg_mr(mr: In<Mr>) -> c_int {
        number(|| {
            let object = mr.get()?;
            object.adapter.device().dereg_mr(object.handle)?;
            mr.take().map(drop)
        })
    }
    "IBVERBS_1.1" fn ibv_create_ah(pd: In<Pd>, attr: In<IbvAhAttr>) -> *mut Ah {
        pointer(|| {
            let owner = pd.get()?;
            let handle = owner.adapter.device().create_ah(owner.handle, &address(attr.get()?)?)?;
            let c = IbvAh { context: owner.c.context, pd: pd.raw().cast(), handle: handle.index };
            Ok(give(Ah { c, adapter: Arc::clone(&owner.adapter), handle }))
        })
    }
    "IBVERBS_1.1" fn ibv_destroy_ah(ah: In<Ah>) -> c_int {
        number(|| {
            let object = ah.get()?;
            object.adapter.device().destroy_ah(object.handle)?;
            ah.take().map(drop)
        })
    }
}
