//! Protection domains, memory regions and address handles.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hca::hca_core::{Access, AddressVector, AhHandle, Gid, Lid, MrInit, MrKeys, PdHandle, StaticRate};
use rustix::fs::FileType;

use crate::abi::{IbvAh, IbvAhAttr, IbvContext, IbvMr, IbvMrInitAttr, IbvPd, IbvWc};
use crate::buffer::Buffer;
use crate::context::GIDS;
use crate::device::Adapter;
use crate::dm::Memory;
use crate::domain::Td;
use crate::entry::{Errno, INVALID, In, counted, exports, give, lock, number, pointer, reg_mr, stat};
use crate::import::File;
use crate::mapping::Mapping;
use crate::moved;
use crate::null::Null;

/// A protection domain, or a parent domain.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) c: IbvPd,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) file: Arc<File>,
    pub(crate) handle: PdHandle,
    /// Parent domains of a protection domain.
    pub(crate) users: AtomicU32,
    /// The protection domain that a parent domain stands for.
    pub(crate) parent: Option<Parent>,
}
/// The protection domain and the thread domain of a parent domain.
pub(crate) struct Parent {
    pub(crate) pd: In<Pd>,
    pub(crate) td: In<Td>,
}

impl Pd {
    /// The domain of a handle, once more.
    pub(crate) fn import(context: In<IbvContext>, handle: u32) -> Result<*mut Self, Errno> {
        let file = Arc::clone(&context.context()?.file);
        let found = file.pds.get(handle)?;
        Ok(Self::give(context, file, found, handle))
    }
    fn give(context: In<IbvContext>, file: Arc<File>, handle: PdHandle, number: u32) -> *mut Self {
        let c = IbvPd { context: context.raw(), handle: number };
        let adapter = Arc::clone(&file.adapter);
        give(Self { c, adapter, file, handle, users: AtomicU32::new(0), parent: None })
    }
    /// Whether it is no parent domain and has none.
    pub(crate) fn is_unused(&self) -> bool {
        self.parent.is_none() && self.users.load(Ordering::Relaxed) == 0
    }
}

/// A memory region, or an import of one.
#[repr(C)]
pub(crate) struct Mr {
    c: IbvMr,
    file: Arc<File>,
    region: Arc<Region>,
    is_import: bool,
}
/// The registration that a region and its imports share.
pub(crate) struct Region {
    adapter: Arc<Adapter>,
    registered: Mutex<Registered>,
    backing: Backing,
}
/// The registration of a region, which `ibv_rereg_mr` changes.
struct Registered {
    keys: MrKeys,
    /// The address of the first byte in requests.
    iova: u64,
    len: usize,
    pd: PdHandle,
    access: Access,
    /// Memory of the program.
    program: Option<moved::Registered>,
}
/// Whose memory a region has.
pub(crate) enum Backing {
    /// The program's.
    Program,
    /// Device memory, which outlives its regions.
    Dm(Arc<Memory>),
    /// Of a descriptor.
    Mapped { _mapping: Mapping },
    /// None: a null region.
    Null(Null),
}

/// Memory that is to be registered.
pub(crate) struct Range {
    pub(crate) addr: *mut c_void,
    pub(crate) len: usize,
    pub(crate) iova: u64,
    pub(crate) access: Access,
}
impl Range {
    /// # Errors
    /// Null, no bytes, the end of all memory, or rights of peers to write where the program does not let the device
    /// write.
    pub(crate) fn mr_init(&self) -> Result<MrInit, Errno> {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if self.len == 0 || self.access.intersects(writes) && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(INVALID);
        }
        let addr = NonNull::new(self.addr.cast::<u8>()).ok_or(Errno(libc::EFAULT))?;
        (self.addr as usize).checked_add(self.len).ok_or(INVALID)?;
        Ok(MrInit { addr, len: self.len, iova: self.iova, access: self.access })
    }
    /// As [`mr_init`](Self::mr_init), of memory of the program's.
    ///
    /// # Errors
    /// As there; or it is not mapped, or not so that the device may do what the rights say.
    fn of_program(&self) -> Result<MrInit, Errno> {
        let init = self.mr_init()?;
        let may = hca_process::can_access(init.addr, init.len, self.access.contains(Access::LOCAL_WRITE));
        if may { Ok(init) } else { Err(Errno(libc::EFAULT)) }
    }
    /// Notes memory of the program, which is registered next: its pages may move.
    fn note(&self, adapter: &Adapter) -> moved::Registered {
        let start = self.addr.expose_provenance();
        moved::Registered::new(start..start + self.len, adapter.moves_memory)
    }
}

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    c: IbvAh,
    adapter: Arc<Adapter>,
    pub(crate) handle: AhHandle,
}

/// The flag of `enum ibv_access_flags` by which the first byte has address 0.
pub(crate) const ZERO_BASED: u32 = 1 << 5;
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
/// The port is not 1, there is no GID where packets go by one, or the table of GIDs has no such index.
pub(crate) fn address(attr: &IbvAhAttr) -> Result<AddressVector, Errno> {
    if attr.port_num != 1 || attr.sl > 15 {
        return Err(INVALID);
    }
    let has_gid = attr.is_global != 0;
    if !has_gid && attr.dlid == 0 || has_gid && u32::from(attr.sgid_index) >= GIDS {
        return Err(INVALID);
    }
    let [high, low] = attr.dgid.map(u64::to_ne_bytes);
    let mut dgid = [0; 16];
    dgid[..8].copy_from_slice(&high);
    dgid[8..].copy_from_slice(&low);
    Ok(AddressVector {
        dgid: if has_gid { Gid(dgid) } else { Gid::default() },
        dlid: Lid::new(attr.dlid),
        flow_label: attr.flow_label & 0xf_ffff,
        hop_limit: if has_gid { attr.hop_limit } else { 0 },
        traffic_class: attr.traffic_class,
        sl: attr.sl,
        static_rate: StaticRate::new(attr.static_rate),
    })
}
/// The path, as a query tells it.
pub(crate) fn address_attr(av: &AddressVector) -> IbvAhAttr {
    IbvAhAttr {
        dgid: halves(av.dgid),
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

/// Registers memory. The program is shown `addr` as its address.
pub(crate) fn register(
    pd: In<Pd>,
    range: &Range,
    addr: *mut c_void,
    backing: Backing,
) -> Result<*mut Mr, Errno> {
    let owner = pd.get()?;
    let init = range.mr_init()?;
    let program = matches!(backing, Backing::Program).then(|| range.note(&owner.adapter));
    let keys = reg_mr(owner.adapter.device(), owner.handle, &init)?;
    note(&owner.adapter, &keys, range.iova, range.len, range.access);
    let &Range { len, iova, access, .. } = range;
    let registered = Registered { keys, iova, len, pd: owner.handle, access, program };
    let adapter = Arc::clone(&owner.adapter);
    let region = Arc::new(Region { adapter, registered: Mutex::new(registered), backing });
    let handle = owner.file.mrs.add(Arc::clone(&region));
    Ok(Mr::give(pd, owner, addr, region, handle, false))
}
/// Remembers a region, where errors are to be explained.
fn note(adapter: &Adapter, keys: &MrKeys, first: u64, len: usize, access: Access) {
    if let Some(notes) = &adapter.notes {
        notes.region([keys.lkey.raw(), keys.rkey.raw()], first, len, access);
    }
}
/// Registers memory of the program's.
fn register_own(pd: In<Pd>, addr: *mut c_void, len: usize, iova: u64, flags: u32) -> Result<*mut Mr, Errno> {
    pd.get()?;
    let range = Range { addr, len, iova, access: access(flags)? };
    range.of_program()?;
    register(pd, &range, addr, Backing::Program)
}

impl Region {
    /// Ends it for the device.
    ///
    /// # Errors
    /// It has ended, or the device keeps it.
    pub(crate) fn end(&self) -> Result<(), Errno> {
        let Self { adapter, registered, backing } = self;
        let keys = lock(registered).keys;
        adapter.device().dereg_mr(keys.handle)?;
        drop(lock(registered).program.take());
        self.forget(&keys);
        match backing {
            Backing::Null(null) => adapter.nulls.end(adapter, keys.lkey.raw(), null)?,
            Backing::Dm(memory) => _ = memory.users.fetch_sub(1, Ordering::Relaxed),
            Backing::Program | Backing::Mapped { .. } => {}
        }
        Ok(())
    }
    /// Forgets keys, which are given back.
    fn forget(&self, keys: &MrKeys) {
        if let Some(notes) = &self.adapter.notes {
            notes.freed(keys.lkey.raw());
            notes.freed(keys.rkey.raw());
        }
    }
}

impl Mr {
    fn give(
        pd: In<Pd>,
        owner: &Pd,
        addr: *mut c_void,
        region: Arc<Region>,
        handle: u32,
        is_import: bool,
    ) -> *mut Self {
        let registered = lock(&region.registered);
        let c = IbvMr {
            context: owner.c.context,
            pd: AtomicPtr::new(pd.raw().cast()),
            addr: AtomicPtr::new(addr),
            length: AtomicUsize::new(registered.len),
            handle,
            lkey: AtomicU32::new(registered.keys.lkey.raw()),
            rkey: AtomicU32::new(registered.keys.rkey.raw()),
        };
        drop(registered);
        give(Self { c, file: Arc::clone(&owner.file), region, is_import })
    }
    /// The region of a handle, once more. It has no address, as in rdma-core.
    pub(crate) fn import(pd: In<Pd>, handle: u32) -> Result<*mut Self, Errno> {
        let owner = pd.get()?;
        let region = owner.file.mrs.get(handle)?;
        Ok(Self::give(pd, owner, core::ptr::null_mut(), region, handle, true))
    }
    pub(crate) fn lkey(&self) -> u32 {
        self.c.lkey.load(Ordering::Relaxed)
    }
    fn dereg(&self) -> Result<(), Errno> {
        // One that an import has ended is unknown to the device.
        self.region.end()?;
        self.file.mrs.remove(self.c.handle);
        Ok(())
    }
    /// Changes the domain and the rights, and the memory if a range is given.
    fn change(
        &self,
        pd: In<Pd>,
        access: Option<Access>,
        memory: Option<(*mut c_void, usize)>,
    ) -> Result<(), Errno> {
        let device = self.region.adapter.device();
        let mut registered = lock(&self.region.registered);
        let domain = pd.opt().map_or(registered.pd, |pd| pd.handle);
        let access = access.unwrap_or(registered.access);
        let (keys, program) = match memory {
            Some((addr, len)) => {
                let range = Range { addr, len, iova: addr as u64, access };
                let init = range.of_program()?;
                let program = range.note(&self.region.adapter);
                let keys = reg_mr(device, domain, &init)?;
                // The old registration is given up last, so that a refusal leaves it as it was.
                if let Err(e) = device.dereg_mr(registered.keys.handle) {
                    let _ = device.dereg_mr(keys.handle);
                    return Err(e.into());
                }
                self.c.addr.store(addr, Ordering::Relaxed);
                self.c.length.store(len, Ordering::Relaxed);
                (keys, Some(program))
            }
            None => (device.rereg_mr(registered.keys.handle, domain, access)?, registered.program.take()),
        };
        self.region.forget(&registered.keys);
        let len = self.c.length.load(Ordering::Relaxed);
        let iova = memory.map_or(registered.iova, |(addr, _)| addr as u64);
        note(&self.region.adapter, &keys, iova, len, access);
        *registered = Registered { keys, iova, len, pd: domain, access, program };
        self.c.lkey.store(keys.lkey.raw(), Ordering::Relaxed);
        self.c.rkey.store(keys.rkey.raw(), Ordering::Relaxed);
        if !pd.raw().is_null() {
            self.c.pd.store(pd.raw().cast(), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Numbers of `enum ibv_rereg_mr_err_code`: the arguments are wrong, and the region is as it was; the change failed.
const REREG_INPUT: c_int = -1;
const REREG_COMMAND: c_int = -4;

fn rereg(
    mr: In<Mr>,
    flags: c_int,
    pd: In<Pd>,
    (addr, len): (*mut c_void, usize),
    rights: c_int,
) -> Result<(), (c_int, Errno)> {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;
    let input = |e: Errno| (REREG_INPUT, e);
    let object = mr.get().map_err(input)?;
    let has = |bit| flags & bit != 0;
    let wrong = flags & !(TRANSLATION | PD | ACCESS) != 0
        || object.is_import
        || !matches!(object.region.backing, Backing::Program)
        || has(TRANSLATION) && (addr.is_null() || len == 0)
        || has(PD) && pd.raw().is_null()
        || rights != 0 && !has(ACCESS);
    if wrong {
        return Err(input(INVALID));
    }
    // The kernel refuses that, behind rdma-core's checks.
    if flags == 0 {
        return Err((REREG_COMMAND, INVALID));
    }
    let command = |e: Errno| (REREG_COMMAND, e);
    let rights = if has(ACCESS) { Some(access(rights as u32).map_err(command)?) } else { None };
    let pd = if has(PD) { pd } else { In::null() };
    object.change(pd, rights, has(TRANSLATION).then_some((addr, len))).map_err(command)
}

/// Registers a part of what a descriptor stands for.
fn register_fd(
    pd: In<Pd>,
    (offset, len): (u64, usize),
    iova: u64,
    fd: c_int,
    flags: u32,
) -> Result<*mut Mr, Errno> {
    pd.get()?;
    let access = access(flags)?;
    let page = rustix::param::page_size() as u64;
    let before = offset % page;
    let bytes = len.checked_add(before as usize).filter(|_| len > 0).ok_or(INVALID)?;
    // The kernel maps what is behind the end of a file, too.
    let file = stat(fd)?;
    let is_inside =
        offset.checked_add(len as u64).is_some_and(|end| i128::from(end) <= i128::from(file.st_size));
    if FileType::from_raw_mode(file.st_mode) == FileType::RegularFile && !is_inside {
        return Err(INVALID);
    }
    let mapping = Mapping::of_fd(fd, offset - before, bytes, access.contains(Access::LOCAL_WRITE))?;
    let addr = mapping.first().as_ptr().wrapping_add(before as usize).cast();
    register(
        pd,
        &Range { addr, len, iova, access },
        offset as *mut c_void,
        Backing::Mapped { _mapping: mapping },
    )
}

/// Bits of `enum ibv_mr_init_attr_mask`.
mod init_mask {
    pub(super) const IOVA: u64 = 1;
    pub(super) const ADDR: u64 = 1 << 1;
    pub(super) const FD: u64 = 1 << 2;
    pub(super) const FD_OFFSET: u64 = 1 << 3;
    pub(super) const DMAH: u64 = 1 << 4;
    pub(super) const BUF: u64 = 1 << 5;
    pub(super) const KNOWN: u64 = IOVA | ADDR | FD | FD_OFFSET | DMAH | BUF;
}
fn register_ex(pd: In<Pd>, attr: &IbvMrInitAttr) -> Result<*mut Mr, Errno> {
    use init_mask::*;
    let has = |bits| attr.comp_mask & bits == bits;
    if attr.comp_mask & !KNOWN != 0 || has(DMAH) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if has(BUF) {
        let inside = In::<Buffer>::of(attr.buf.cast()).get()?.holds(pd, attr.addr, attr.length);
        if !inside || !has(ADDR) || attr.comp_mask & (FD | FD_OFFSET) != 0 {
            return Err(INVALID);
        }
    }
    if has(FD) && has(FD_OFFSET) && !has(ADDR) {
        let iova = if has(IOVA) { attr.iova } else { 0 };
        return register_fd(pd, (attr.fd_offset, attr.length), iova, attr.fd, attr.access as u32);
    }
    if !has(ADDR) || attr.comp_mask & (FD | FD_OFFSET) != 0 {
        return Err(INVALID);
    }
    let iova = if has(IOVA) { attr.iova } else { attr.addr as u64 };
    register_own(pd, attr.addr, attr.length, iova, attr.access as u32)
}

/// The path back to the sender of a datagram, from its completion and the header before its data.
fn path_back(
    context: In<IbvContext>,
    port: u8,
    wc: &IbvWc,
    header: In<[u8; 40]>,
) -> Result<IbvAhAttr, Errno> {
    const GRH: u32 = 1;
    let context = context.context()?;
    let mut attr = IbvAhAttr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..IbvAhAttr::default()
    };
    if wc.wc_flags & GRH == 0 {
        return Ok(attr);
    }
    let bytes = header.get()?;
    let class = u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes"));
    let gid = |at: usize| Gid(bytes[at..at + 16].try_into().expect("16 bytes"));
    attr.is_global = 1;
    let own;
    if is_ipv4(bytes) {
        // Behind 20 bytes without meaning.
        let address =
            |at: usize| Gid::from_ip([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]].into());
        own = address(36);
        attr.dgid = halves(address(32));
        (attr.traffic_class, attr.hop_limit) = (bytes[21], bytes[28]);
    } else if class >> 28 == 6 {
        own = gid(24);
        attr.dgid = halves(gid(8));
        attr.flow_label = class & 0xf_ffff;
        (attr.traffic_class, attr.hop_limit) = ((class >> 20) as u8, bytes[7]);
    } else {
        return Err(INVALID);
    }
    attr.sgid_index = context.gid_index(own).ok_or(INVALID)?;
    Ok(attr)
}
/// Whether a datagram's header is one of IPv4, at its end. An address of IPv6 may have the same bytes there: its checksum
/// tells both apart.
fn is_ipv4(header: &[u8; 40]) -> bool {
    const VERSION_AND_LENGTH: u8 = 0x45;
    let sum =
        || header[20..].chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum::<u32>();
    header[20] == VERSION_AND_LENGTH && (header[0] >> 4 != 6 || sum().is_multiple_of(0xffff))
}
/// A GID as the two numbers of a structure.
fn halves(gid: Gid) -> [u64; 2] {
    [0, 8].map(|at| u64::from_ne_bytes(gid.0[at..at + 8].try_into().expect("8 bytes")))
}
fn create_ah(pd: In<Pd>, attr: &IbvAhAttr) -> Result<*mut Ah, Errno> {
    let owner = pd.get()?;
    let handle = owner.adapter.device().create_ah(owner.handle, &address(attr)?)?;
    let c = IbvAh { context: owner.c.context, pd: pd.raw().cast(), handle: handle.index };
    Ok(give(Ah { c, adapter: Arc::clone(&owner.adapter), handle }))
}

exports! {
    "IBVERBS_1.1" fn ibv_alloc_pd(context: In<IbvContext>) -> *mut Pd {
        pointer(|| {
            let file = Arc::clone(&context.context()?.file);
            let handle = file.adapter.device().alloc_pd()?;
            let number = file.pds.add(handle);
            Ok(Pd::give(context, file, handle, number))
        })
    }
    "IBVERBS_1.1" fn ibv_dealloc_pd(pd: In<Pd>) -> c_int {
        number(|| {
            let object = pd.get()?;
            if object.users.load(Ordering::Relaxed) > 0 {
                return Err(Errno(libc::EBUSY));
            }
            match &object.parent {
                Some(Parent { pd, td }) => {
                    pd.get()?.users.fetch_sub(1, Ordering::Relaxed);
                    td.opt().inspect(|td| _ = td.users.fetch_sub(1, Ordering::Relaxed));
                }
                None => {
                    object.adapter.device().dealloc_pd(object.handle)?;
                    object.file.pds.remove(object.c.handle);
                }
            }
            pd.take().map(drop)
        })
    }
    "IBVERBS_1.1" fn ibv_reg_mr(pd: In<Pd>, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
        pointer(|| register_own(pd, addr, length, addr as u64, access as u32))
    }
    "IBVERBS_1.7" fn ibv_reg_mr_iova(pd: In<Pd>, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut Mr {
        pointer(|| register_own(pd, addr, length, iova, access as u32))
    }
    "IBVERBS_1.8" fn ibv_reg_mr_iova2(pd: In<Pd>, addr: *mut c_void, length: usize, iova: u64, access: u32) -> *mut Mr {
        pointer(|| register_own(pd, addr, length, iova, access))
    }
    "IBVERBS_1.1" fn ibv_dereg_mr(mr: In<Mr>) -> c_int {
        number(|| {
            mr.get()?.dereg()?;
            mr.take().map(drop)
        })
    }
    "IBVERBS_1.1" fn ibv_rereg_mr(mr: In<Mr>, flags: c_int, pd: In<Pd>, addr: *mut c_void, length: usize, access: c_int) -> c_int {
        let mut code = REREG_INPUT;
        let done = number(|| rereg(mr, flags, pd, (addr, length), access).map_err(|(failed, e)| {
            code = failed;
            e
        }));
        if done == 0 { 0 } else { code }
    }
    "IBVERBS_1.12" fn ibv_reg_dmabuf_mr(pd: In<Pd>, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut Mr {
        pointer(|| register_fd(pd, (offset, length), iova, fd, access as u32))
    }
    "IBVERBS_1.15" fn ibv_reg_mr_ex(pd: In<Pd>, attr: In<IbvMrInitAttr>) -> *mut Mr {
        pointer(|| register_ex(pd, attr.get()?))
    }
    "IBVERBS_1.17" fn ibv_reg_buf_mr(pd: In<Pd>, buffer: In<Buffer>, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
        pointer(|| {
            if !buffer.get()?.holds(pd, addr, length) {
                return Err(INVALID);
            }
            register_own(pd, addr, length, addr as u64, access as u32)
        })
    }
    "IBVERBS_1.1" fn ibv_create_ah(pd: In<Pd>, attr: In<IbvAhAttr>) -> *mut Ah {
        pointer(|| create_ah(pd, attr.get()?))
    }
    "IBVERBS_1.1" fn ibv_init_ah_from_wc(context: In<IbvContext>, port: u8, wc: In<IbvWc>, grh: In<[u8; 40]>, to: In<IbvAhAttr>) -> c_int {
        counted(|| {
            to.set(path_back(context, port, wc.get()?, grh)?)?;
            Ok(0)
        })
    }
    "IBVERBS_1.1" fn ibv_create_ah_from_wc(pd: In<Pd>, wc: In<IbvWc>, grh: In<[u8; 40]>, port: u8) -> *mut Ah {
        pointer(|| create_ah(pd, &path_back(In::of(pd.get()?.c.context), port, wc.get()?, grh)?))
    }
    "IBVERBS_1.1" fn ibv_destroy_ah(ah: In<Ah>) -> c_int {
        number(|| {
            let object = ah.get()?;
            object.adapter.device().destroy_ah(object.handle)?;
            ah.take().map(drop)
        })
    }
}
