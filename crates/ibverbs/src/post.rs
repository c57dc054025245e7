//! Work requests: from lists of the program's to requests of the device.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use hca::hca_core::{
    Dest, Payload, PostErrorKind, Qkey, Qpn, RecvPort, RecvWr, RemoteAddr, Rkey, SendFlags, SendOp, SendWr,
    Srqn, UdDest,
};

use crate::abi::{IbvRecvWr, IbvSendWr};
use crate::device::Adapter;
use crate::entry::{self, Errno, INVALID, In, lock, number, sges};
use crate::explain;
use crate::memory::Ah;
use crate::qp::{Qp, Srq};
use crate::window::bind_request;

/// The most inline bytes that one request gathers; devices take no more.
pub(crate) const MAX_INLINE: usize = 1024;

/// Bits of `enum ibv_send_flags`.
const FENCE: u32 = 1;
const SIGNALED: u32 = 1 << 1;
const SOLICITED: u32 = 1 << 2;
pub(crate) const INLINE: u32 = 1 << 3;

/// Fills the operation of a request in, by `enum ibv_wr_opcode`, at the place where the device reads it: an enum that is
/// returned is copied as a whole.
#[inline(always)]
fn fill_operation(op: &mut SendOp, wr: &IbvSendWr) -> Result<(), Errno> {
    let remote = RemoteAddr { addr: wr.addr_or_ah, rkey: Rkey::new(wr.second[0]) };
    let of_atomic = RemoteAddr { addr: wr.addr_or_ah, rkey: Rkey::new(wr.atomic_rkey) };
    let operand = u64::from(wr.second[1]) << 32 | u64::from(wr.second[0]);
    let imm = u32::from_be(wr.imm_or_rkey);
    match wr.opcode {
        0 => *op = SendOp::Write(remote),
        1 => *op = SendOp::WriteImm(remote, imm),
        2 => *op = SendOp::Send,
        3 => *op = SendOp::SendImm(imm),
        4 => *op = SendOp::Read(remote),
        5 => *op = SendOp::CompareSwap { remote: of_atomic, compare: operand, swap: wr.swap },
        6 => *op = SendOp::FetchAdd { remote: of_atomic, add: operand },
        7 => *op = SendOp::LocalInv(Rkey::new(wr.imm_or_rkey)),
        8 => *op = bind_request(In::of(wr.bind_mw.mw.cast()), wr.bind_mw.rkey, &wr.bind_mw.bind_info)?,
        9 => *op = SendOp::SendInv(Rkey::new(wr.imm_or_rkey)),
        _ => return Err(INVALID),
    }
    Ok(())
}

/// The options of a request, by the program's flags.
#[inline(always)]
pub(crate) fn flags(qp: &Qp, set: u32) -> Result<SendFlags, Errno> {
    if set & !(FENCE | SIGNALED | SOLICITED | INLINE) != 0 {
        return Err(INVALID);
    }
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, qp.signals_all || set & SIGNALED != 0);
    flags.set(SendFlags::FENCE, set & FENCE != 0);
    flags.set(SendFlags::SOLICITED, set & SOLICITED != 0);
    Ok(flags)
}

/// Tells the program which request was refused, if it wants to know.
fn name_bad<T>(bad: In<*mut T>, wr: In<T>) {
    let _ = bad.set(wr.raw());
}

/// The reason why a request is not taken.
pub(crate) enum Refused {
    /// By this library.
    Argument(Errno),
    Device(PostErrorKind),
}
impl From<Errno> for Refused {
    fn from(error: Errno) -> Self {
        Self::Argument(error)
    }
}
impl From<PostErrorKind> for Refused {
    fn from(error: PostErrorKind) -> Self {
        Self::Device(error)
    }
}
impl Refused {
    /// The number of the error, which is explained where the program's environment asks for it.
    #[cold]
    pub(crate) fn errno(self, queue: impl FnOnce() -> String, wr_id: u64) -> Errno {
        let (error, why): (_, &dyn core::fmt::Display) = match &self {
            Self::Argument(error) => (*error, &explain::of_errno(*error)),
            Self::Device(kind) => ((*kind).into(), kind),
        };
        if explain::enabled() {
            explain::refused_request(&queue(), wr_id, why);
        }
        error
    }
}

/// Posts one request by `post`, with the inline bytes of several entries gathered on the stack.
#[inline(always)]
fn send(
    qp: &Qp,
    wr: &IbvSendWr,
    post: impl FnOnce(&SendWr<'_>) -> Result<(), PostErrorKind>,
) -> Result<(), Errno> {
    prepare(qp, wr, |request| {
        if let Some(notes) = &qp.adapter.notes {
            notes.send(qp.handle, request);
        }
        post(request)
    })
    .map_err(|refused| refused.errno(|| qp.name(), wr.wr_id))
}
#[inline(always)]
fn prepare(
    qp: &Qp,
    wr: &IbvSendWr,
    post: impl FnOnce(&SendWr<'_>) -> Result<(), PostErrorKind>,
) -> Result<(), Refused> {
    let flags = flags(qp, wr.send_flags)?;
    let mut request =
        SendWr { wr_id: wr.wr_id, op: SendOp::Send, flags, payload: Payload::Sges(&[]), dest: None };
    fill_operation(&mut request.op, wr)?;
    if qp.is_datagram() {
        let ah = In::<Ah>::of(wr.addr_or_ah as usize as *mut Ah).get()?.handle;
        let (qpn, qkey) = (Qpn::new(wr.second[0]), Qkey::new(wr.second[1]));
        request.dest = Some(Dest::from(UdDest { ah, qpn, qkey }));
    } else if qp.is_xrc() {
        request.dest = Some(Dest::Srq(Srqn::new(wr.remote_srqn)));
    }
    if !request.op.has_list() {
        return Ok(post(&request)?);
    }
    let list = sges(wr.sg_list, wr.num_sge)?;
    let is_read = request.op.is_read_or_atomic();
    if wr.send_flags & INLINE != 0 && !is_read {
        let mut bytes = [const { MaybeUninit::uninit() }; MAX_INLINE];
        request.payload = Payload::Inline(entry::inline_bytes(list, &mut bytes).ok_or(INVALID)?);
        return Ok(post(&request)?);
    }
    let mut room = Vec::new();
    request.payload = Payload::Sges(qp.adapter.nulls.replace(list, is_read, &mut room)?);
    Ok(post(&request)?)
}

pub(crate) extern "C" fn post_send(qp: In<Qp>, wr: In<IbvSendWr>, bad: In<*mut IbvSendWr>) -> c_int {
    number(|| {
        let qp = qp.get()?;
        let Some(send_queue) = &qp.send else {
            name_bad(bad, wr);
            return Err(INVALID);
        };
        let mut sending = send_queue.lock();
        let port = &mut *sending.port;
        let first = wr.get().inspect_err(|_| name_bad(bad, wr))?;
        if first.next.is_null() {
            let posted = send(qp, first, |wr| entry::post_send_now(port, wr));
            return posted.inspect_err(|_| name_bad(bad, wr));
        }
        let mut next = wr;
        let mut result = Ok(());
        while let Some(wr) = next.opt() {
            result = send(qp, wr, |wr| entry::post_send(port, wr));
            if result.is_err() {
                name_bad(bad, next);
                break;
            }
            next = In::of(wr.next);
        }
        // The requests before a refused one are taken.
        port.ring();
        result
    })
}

fn recv_one(adapter: &Adapter, port: &mut dyn RecvPort, wr: &IbvRecvWr) -> Result<(), Refused> {
    let list = sges(wr.sg_list, wr.num_sge)?;
    if let Some(notes) = &adapter.notes {
        notes.recv(wr.wr_id, list);
    }
    let mut room = Vec::new();
    let sges = adapter.nulls.replace(list, true, &mut room)?;
    Ok(entry::post_recv(port, &RecvWr { wr_id: wr.wr_id, sges })?)
}

/// Posts a list of receive requests.
fn recv(
    adapter: &Adapter,
    queue: impl Fn() -> String,
    port: &mut dyn RecvPort,
    wr: In<IbvRecvWr>,
    bad: In<*mut IbvRecvWr>,
) -> Result<(), Errno> {
    wr.get()?;
    let mut next = wr;
    let mut result = Ok(());
    while let Some(wr) = next.opt() {
        result = recv_one(adapter, port, wr).map_err(|refused| refused.errno(&queue, wr.wr_id));
        if result.is_err() {
            name_bad(bad, next);
            break;
        }
        next = In::of(wr.next);
    }
    port.ring();
    result
}

pub(crate) extern "C" fn post_recv(qp: In<Qp>, wr: In<IbvRecvWr>, bad: In<*mut IbvRecvWr>) -> c_int {
    number(|| {
        let qp = qp.get()?;
        let Some(port) = &qp.recv else {
            name_bad(bad, wr);
            return Err(INVALID);
        };
        recv(&qp.adapter, || qp.name(), &mut **lock(port), wr, bad)
    })
}

pub(crate) extern "C" fn post_srq_recv(srq: In<Srq>, wr: In<IbvRecvWr>, bad: In<*mut IbvRecvWr>) -> c_int {
    number(|| {
        let srq = srq.get()?;
        recv(&srq.adapter, || srq.name(), &mut **lock(&srq.recv), wr, bad)
    })
}
