//! Work requests: from lists of the program's to requests of the device.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use hca::hca_core::{
    Dest, Payload, PostErrorKind, Qkey, Qpn, RecvPort, RecvWr, RemoteAddr, Rkey, SendFlags, SendOp, SendWr,
    Sge, Srqn, UdDest,
};

use crate::abi::{IbvRecvWr, IbvSendWr};
use crate::device::Adapter;
use crate::entry::{self, Errno, INVALID, In, posted, refused, sges, told};
use crate::explain;
use crate::held::{Guards, Held, LockedIn};
use crate::memory::Ah;
use crate::qp::{Qp, Srq};
use crate::window::{bind_request, show_key};

/// The most inline bytes that one request gathers; devices take no more.
pub(crate) const MAX_INLINE: usize = 1024;

/// Bits of `enum ibv_send_flags`.
const FENCE: u32 = 1;
const SIGNALED: u32 = 1 << 1;
const SOLICITED: u32 = 1 << 2;
pub(crate) const INLINE: u32 = 1 << 3;
const ALL: u32 = FENCE | SIGNALED | SOLICITED | INLINE;

/// The number of `enum ibv_wr_opcode`, beside 0 for a WRITE, of [`post_send`]'s short way.
const SEND: u32 = 2;

/// Whether requests of this process are looked at before they are posted: they are noted for errors in words, or there
/// was a null region.
static LOOKED_AT: AtomicBool = AtomicBool::new(false);

/// Has all requests from now on looked at before they are posted.
pub(crate) fn look_at_requests() {
    LOOKED_AT.store(true, Ordering::Relaxed);
}
pub(crate) fn are_looked_at() -> bool {
    LOOKED_AT.load(Ordering::Relaxed)
}

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

/// The options of a request, by the program's flags: both have the same bits.
#[inline(always)]
pub(crate) fn flags(qp: &Qp, set: u32) -> Result<SendFlags, Errno> {
    const _: () =
        assert!(SendFlags::FENCE.bits() as u32 == FENCE && SendFlags::SIGNALED.bits() as u32 == SIGNALED);
    const _: () = assert!(SendFlags::SOLICITED.bits() as u32 == SOLICITED);
    if set & !ALL != 0 {
        return Err(INVALID);
    }
    Ok(SendFlags::from_bits_truncate((set & !INLINE) as u8) | qp.always)
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
        post(&request)?;
        if let SendOp::BindMw { rkey, .. } = request.op {
            show_key(In::of(wr.bind_mw.mw.cast()), rkey.raw());
        }
        return Ok(());
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

/// Posts a list of requests. One request of the kind that most have takes a short way: a WRITE or SEND of a connection,
/// whose list has one entry.
pub(crate) extern "C" fn post_send(qp: In<Qp>, wr: In<IbvSendWr>, bad: In<*mut IbvSendWr>) -> c_int {
    told(|| {
        let (Some(object), Some(first)) = (qp.opt(), wr.opt()) else { return post_list(qp, wr, bad) };
        // A SEND and a WRITE differ by one bit.
        const IS_SEND: u64 = entry::shape_of(0, SEND);
        let shape = entry::shape(first);
        if (shape & !IS_SEND ^ object.short_way()) | first.next.expose_provenance() as u64 != 0 {
            return post_list(qp, wr, bad);
        }
        let Some(entry) = In::<Sge>::of(first.sg_list.cast()).opt() else { return post_list(qp, wr, bad) };
        let remote = RemoteAddr { addr: first.addr_or_ah, rkey: Rkey::new(first.second[0]) };
        // The bit of INLINE says of inline bytes what is so: nobody changes them, as they are copied.
        const _: () = assert!(SendFlags::STABLE.bits() as u32 == INLINE);
        let request = SendWr {
            wr_id: first.wr_id,
            op: SendOp::Write(remote),
            flags: SendFlags::from_bits_retain(first.send_flags as u8 | object.always.bits()),
            payload: Payload::Sges(&[]),
            dest: None,
        };
        // In memory: a register for each would be saved for nothing where the device takes the request.
        let mut call = Call { request, wr, bad };
        if shape & IS_SEND != 0 {
            call.request.op = SendOp::Send;
        }
        if first.send_flags & !(ALL & !INLINE) == 0 {
            call.request.payload = Payload::Sges(core::slice::from_ref(entry));
        } else if first.send_flags & !ALL == 0
            && let Some(bytes) = entry::inline_entry(entry)
        {
            call.request.payload = Payload::Inline(bytes);
            // No instruction: the two ways store what they have, instead of both bringing it to registers for that.
            compiler_fence(Ordering::Release);
        } else {
            return post_list(qp, wr, bad);
        }
        let Some(mut sending) = object.try_lock() else { return post_list(qp, wr, bad) };
        match entry::post_send_now(&mut *sending.value().port, &call.request) {
            Ok(()) => sending.end(0),
            Err(kind) => call.refuse(sending, kind),
        }
    })
}
/// A request that is posted, and the arguments of the call.
struct Call<'a> {
    request: SendWr<'a>,
    wr: In<IbvSendWr>,
    bad: In<*mut IbvSendWr>,
}
impl Call<'_> {
    /// Tells the program that the device refuses its request.
    #[cold]
    #[inline(never)]
    fn refuse(&self, sending: LockedIn<'_, Qp>, kind: PostErrorKind) -> c_int {
        name_bad(self.bad, self.wr);
        let qp = sending.object();
        drop(sending);
        refused(Err(Refused::Device(kind).errno(|| qp.name(), self.request.wr_id)))
    }
}
/// Posts a list of requests of any kind.
#[inline(never)]
fn post_list(qp: In<Qp>, wr: In<IbvSendWr>, bad: In<*mut IbvSendWr>) -> c_int {
    refused(qp.get().and_then(|qp| each_of_list(qp, wr, bad)))
}
fn each_of_list(qp: &Qp, wr: In<IbvSendWr>, bad: In<*mut IbvSendWr>) -> Result<(), Errno> {
    let first = wr.get().inspect_err(|_| name_bad(bad, wr))?;
    let Some(send_queue) = qp.send_queue() else {
        name_bad(bad, wr);
        return Err(INVALID);
    };
    let mut sending = send_queue.lock();
    let port = &mut *sending.port;
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
}

/// Posts one receive request by `post`.
#[inline(always)]
fn recv_one(
    adapter: &Adapter,
    wr: &IbvRecvWr,
    post: impl FnOnce(&RecvWr<'_>) -> Result<(), PostErrorKind>,
) -> Result<(), Refused> {
    let list = sges(wr.sg_list, wr.num_sge)?;
    if are_looked_at() {
        return recv_looked_at(adapter, wr.wr_id, list, post);
    }
    Ok(post(&RecvWr { wr_id: wr.wr_id, sges: list })?)
}
#[cold]
fn recv_looked_at(
    adapter: &Adapter,
    wr_id: u64,
    list: &[Sge],
    post: impl FnOnce(&RecvWr<'_>) -> Result<(), PostErrorKind>,
) -> Result<(), Refused> {
    if let Some(notes) = &adapter.notes {
        notes.recv(wr_id, list);
    }
    let mut room = Vec::new();
    let sges = adapter.nulls.replace(list, true, &mut room)?;
    Ok(post(&RecvWr { wr_id, sges })?)
}

/// Posts a list of receive requests.
#[inline(always)]
fn recv(
    adapter: &Adapter,
    queue: impl Fn() -> String,
    port: &Held<Box<dyn RecvPort>>,
    wr: In<IbvRecvWr>,
    bad: In<*mut IbvRecvWr>,
) -> Result<(), Errno> {
    let first = wr.get()?;
    let mut port = port.lock();
    if first.next.is_null() {
        return recv_one(adapter, first, |wr| entry::post_recv_now(&mut **port, wr)).map_err(|refused| {
            name_bad(bad, wr);
            refused.errno(&queue, first.wr_id)
        });
    }
    let mut next = wr;
    let mut result = Ok(());
    while let Some(wr) = next.opt() {
        result = recv_one(adapter, wr, |wr| entry::post_recv(&mut **port, wr))
            .map_err(|refused| refused.errno(&queue, wr.wr_id));
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
    posted(|| {
        let qp = qp.get()?;
        let Some(port) = &qp.recv else {
            name_bad(bad, wr);
            return Err(INVALID);
        };
        recv(&qp.adapter, || qp.name(), port, wr, bad)
    })
}

pub(crate) extern "C" fn post_srq_recv(srq: In<Srq>, wr: In<IbvRecvWr>, bad: In<*mut IbvRecvWr>) -> c_int {
    posted(|| {
        let srq = srq.get()?;
        recv(&srq.adapter, || srq.name(), &srq.recv, wr, bad)
    })
}
