//! Extended reliable connections (XRC): domains, their shared receive queues, and targets that are opened several
//! times.

use core::ffi::c_int;
use core::ptr::null_mut;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hca::hca_core::{ExtendedConnections, QpCap, QpHandle, SrqInit, XrcdHandle};

use crate::abi::{
    IbvContext, IbvQpCap, IbvQpInitAttr, IbvQpOpenAttr, IbvSrqInitAttrEx, IbvTd, IbvXrcdInitAttr,
};
use crate::cq::Cq;
use crate::device::Adapter;
use crate::entry::{Errno, INVALID, In, give, lock, number, pointer};
use crate::memory::Pd;
use crate::qp::{NewQp, Qp, Srq};

/// The number of an initiator in `enum ibv_qp_type`, and that of a target.
pub(crate) const INITIATOR: u32 = 9;
pub(crate) const TARGET: u32 = 10;

/// An XRC domain of the adapter, which a program may open several times.
pub(crate) struct Domain {
    adapter: Arc<Adapter>,
    handle: XrcdHandle,
    opens: Mutex<u32>,
    /// Target queue pairs by their numbers, with how often each is open.
    targets: Mutex<HashMap<u32, (QpHandle, u32)>>,
    file: Option<(u64, u64)>,
}

/// An XRC domain that a context opened.
#[repr(C)]
pub(crate) struct Xrcd {
    c: IbvTd,
    domain: Arc<Domain>,
}

fn xrc(adapter: &Adapter) -> Result<&dyn ExtendedConnections, Errno> {
    adapter.device().xrc().ok_or(Errno(libc::EOPNOTSUPP))
}

impl Domain {
    fn new(adapter: &Arc<Adapter>, file: Option<(u64, u64)>) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            adapter: Arc::clone(adapter),
            handle: xrc(adapter)?.alloc_xrcd()?,
            opens: Mutex::new(1),
            targets: Mutex::default(),
            file,
        }))
    }
    /// The domain of a file, or a new one.
    fn of_file(adapter: &Arc<Adapter>, fd: c_int, flags: c_int) -> Result<Arc<Self>, Errno> {
        if fd == -1 {
            return Self::new(adapter, None);
        }
        let file = file(fd)?;
        let mut files = lock(&adapter.xrc_files);
        if let Some(domain) = files.get(&file).and_then(std::sync::Weak::upgrade) {
            if flags & libc::O_EXCL != 0 {
                return Err(INVALID);
            }
            *lock(&domain.opens) += 1;
            return Ok(domain);
        }
        if flags & libc::O_CREAT == 0 {
            return Err(Errno(libc::EAGAIN));
        }
        let domain = Self::new(adapter, Some(file))?;
        files.insert(file, Arc::downgrade(&domain));
        Ok(domain)
    }
    fn close(&self) -> Result<(), Errno> {
        let mut files = lock(&self.adapter.xrc_files);
        let mut opens = lock(&self.opens);
        if *opens == 1 {
            xrc(&self.adapter)?.dealloc_xrcd(self.handle)?;
            self.file.inspect(|file| _ = files.remove(file));
        }
        *opens -= 1;
        Ok(())
    }
    /// Ends one opening of a target; with the last it is destroyed.
    pub(crate) fn close_target(&self, qpn: u32) -> Result<(), Errno> {
        let mut targets = lock(&self.targets);
        let (handle, opens) = targets.get_mut(&qpn).ok_or(INVALID)?;
        if *opens > 1 {
            *opens -= 1;
            return Ok(());
        }
        self.adapter.device().destroy_qp(*handle)?;
        targets.remove(&qpn);
        Ok(())
    }
}

/// The device and the number of an open file.
fn file(fd: c_int) -> Result<(u64, u64), Errno> {
    let stat = crate::entry::stat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

pub(crate) extern "C" fn open_xrcd(context: In<IbvContext>, attr: In<IbvXrcdInitAttr>) -> *mut Xrcd {
    pointer(|| {
        const FD_AND_FLAGS: u32 = 0b11;
        let (adapter, attr) = (&context.context()?.adapter, attr.get()?);
        if attr.comp_mask != FD_AND_FLAGS {
            return Err(INVALID);
        }
        let domain = Domain::of_file(adapter, attr.fd, attr.oflags)?;
        Ok(give(Xrcd { c: IbvTd { context: context.raw() }, domain }))
    })
}
pub(crate) extern "C" fn close_xrcd(xrcd: In<Xrcd>) -> c_int {
    number(|| {
        let object = xrcd.get()?;
        debug_assert!(!object.c.context.is_null());
        object.domain.close()?;
        xrcd.take().map(drop)
    })
}

/// Creates a target queue pair, which has neither protection domain nor queues.
pub(crate) fn create_target(
    context: In<IbvContext>,
    xrcd: In<Xrcd>,
    attr: &IbvQpInitAttr,
) -> Result<(*mut Qp, QpCap), Errno> {
    let domain = &xrcd.get()?.domain;
    let (handle, qpn) = xrc(&domain.adapter)?.create_xrc_target(domain.handle)?;
    domain.adapter.note(handle, qpn);
    lock(&domain.targets).insert(qpn.raw(), (handle, 1));
    let cap = QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
    let new = NewQp { handle, qpn: qpn.raw(), send: None, recv: None, extended: false };
    Ok((Qp::give(context, new, attr, In::null(), Some(Arc::clone(domain)))?, cap))
}
pub(crate) extern "C" fn open_qp(context: In<IbvContext>, attr: In<IbvQpOpenAttr>) -> *mut Qp {
    pointer(|| {
        const NUMBER_AND_DOMAIN: u32 = 0b11;
        const CONTEXT: u32 = 1 << 2;
        const TYPE: u32 = 1 << 3;
        let attr = attr.get()?;
        let has = |bits| attr.comp_mask & bits == bits;
        if attr.comp_mask & !0xf != 0 || !has(NUMBER_AND_DOMAIN | TYPE) || attr.qp_type != TARGET {
            return Err(INVALID);
        }
        let domain = &In::<Xrcd>::of(attr.xrcd.cast()).get()?.domain;
        let mut targets = lock(&domain.targets);
        let (handle, opens) = targets.get_mut(&attr.qp_num).ok_or(INVALID)?;
        let init = IbvQpInitAttr {
            qp_context: if has(CONTEXT) { attr.qp_context } else { null_mut() },
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: IbvQpCap::default(),
            qp_type: TARGET,
            sq_sig_all: 0,
        };
        let new = NewQp { handle: *handle, qpn: attr.qp_num, send: None, recv: None, extended: false };
        let qp = Qp::give(context, new, &init, In::null(), Some(Arc::clone(domain)))?;
        *opens += 1;
        Ok(qp)
    })
}

pub(crate) extern "C" fn create_srq_ex(context: In<IbvContext>, init: In<IbvSrqInitAttrEx>) -> *mut Srq {
    pointer(|| {
        const TYPE: u32 = 1;
        const PD: u32 = 1 << 1;
        const XRCD_AND_CQ: u32 = 0b1100;
        const BASIC: u32 = 0;
        const XRC: u32 = 1;
        let attr = init.get()?;
        let has = |bits| attr.comp_mask & bits == bits;
        let kind = if has(TYPE) { attr.srq_type } else { BASIC };
        if attr.comp_mask & !0xf != 0 || kind > XRC {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if !has(PD) {
            return Err(INVALID);
        }
        let pd = In::<Pd>::of(attr.pd.cast());
        let owner = pd.get()?;
        let queue = SrqInit { max_wr: attr.attr.max_wr, max_sge: attr.attr.max_sge };
        let plain = In::of(init.raw().cast());
        if kind == BASIC {
            return Srq::create(pd, plain.get()?);
        }
        if !has(XRCD_AND_CQ) {
            return Err(INVALID);
        }
        let domain = &In::<Xrcd>::of(attr.xrcd.cast()).get()?.domain;
        let cq = In::<Cq>::of(attr.cq.cast()).get()?.handle;
        context.context()?;
        let port = xrc(&owner.adapter)?.create_xrc_srq(owner.handle, domain.handle, cq, &queue)?;
        Srq::give(pd, plain.get()?, (port.handle, Some(port.number), port.recv), queue)
    })
}
pub(crate) extern "C" fn get_srq_num(srq: In<Srq>, to: In<u32>) -> c_int {
    number(|| to.set(srq.get()?.number.ok_or(Errno(libc::EOPNOTSUPP))?.raw()))
}
