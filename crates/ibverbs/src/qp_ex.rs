//! The posting interface of extended queue pairs: requests are built call by call, and posted together.
//!
//! `wr_start` takes the lock of the send queue, and `wr_complete` or `wr_abort` releases it. An error of a call is
//! kept, and `wr_complete` returns it; then none of the requests is posted.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::Ordering;

use hca::hca_core::{
    Dest, Lkey, Payload, PostErrorKind, Qkey, Qpn, RemoteAddr, Rkey, SendFlags, SendOp, SendPort, SendWr,
    Sge, Srqn, UdDest,
};

use hca::hca_core::wire::{Placement, Selectivity};

use crate::abi::{IbvDataBuf, IbvMwBindInfo, IbvSge, Slot};
use crate::entry::{self, Errno, INVALID, In, posted, sges};
use crate::held::Held;
use crate::memory::Ah;
use crate::null::Nulls;
use crate::post::{INLINE, MAX_INLINE, Refused, flags};
use crate::qp::Qp;
use crate::window::{Mw, bind_request, show_key};

/// Operations by the bits of `enum ibv_qp_create_send_ops_flags`.
const WRITES: u64 = 0b11;
const SENDS: u64 = 0b1100;
const READ: u64 = 1 << 4;
const ATOMICS: u64 = 0b11 << 5;
const WINDOWS: u64 = 0b11 << 7;
const SEND_INV: u64 = 1 << 9;
const PLACEMENT: u64 = 0b11 << 11;

/// The operations of a service (`enum ibv_qp_type`).
pub(crate) fn offered(qp_type: u32) -> u64 {
    match qp_type {
        2 => WRITES | SENDS | READ | ATOMICS | SEND_INV | WINDOWS | PLACEMENT,
        3 => WRITES | SENDS | WINDOWS,
        4 => SENDS,
        9 => WRITES | SENDS | READ | ATOMICS | SEND_INV,
        _ => 0,
    }
}

/// The functions of an extended queue pair, in the order of `struct ibv_qp_ex`.
pub(crate) fn functions() -> [Slot; 22] {
    [
        wr_atomic_cmp_swp as Slot,
        wr_atomic_fetch_add as Slot,
        wr_bind_mw as Slot,
        wr_local_inv as Slot,
        wr_rdma_read as Slot,
        wr_rdma_write as Slot,
        wr_rdma_write_imm as Slot,
        wr_send as Slot,
        wr_send_imm as Slot,
        wr_send_inv as Slot,
        wr_refused as Slot,
        wr_set_ud_addr as Slot,
        wr_set_xrc_srqn as Slot,
        wr_set_inline_data as Slot,
        wr_set_inline_data_list as Slot,
        wr_set_sge as Slot,
        wr_set_sge_list as Slot,
        wr_start as Slot,
        wr_complete as Slot,
        wr_abort as Slot,
        wr_atomic_write as Slot,
        wr_flush as Slot,
    ]
}

/// A request that is being built.
struct Built {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    dest: Option<Dest>,
    local: Local,
}

/// The local side of a request: a part of one of the two lists in [`Build`].
enum Local {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

/// The requests between `wr_start` and `wr_complete`.
#[derive(Default)]
pub(crate) struct Build {
    requests: Vec<Built>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    error: Option<Errno>,
}

impl Build {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = None;
    }
    /// A request as the device takes it.
    fn request(&self, built: &Built) -> SendWr<'_> {
        let payload = match &built.local {
            Local::Sges(range) => Payload::Sges(&self.sges[range.clone()]),
            Local::Inline(range) => Payload::Inline(&self.bytes[range.clone()]),
        };
        SendWr { wr_id: built.wr_id, op: built.op, flags: built.flags, payload, dest: built.dest }
    }
    /// Hands a request on to a call of the device.
    fn hand_on(
        &self,
        qp: &Qp,
        built: &Built,
        call: impl FnOnce(&SendWr<'_>) -> Result<(), PostErrorKind>,
    ) -> Result<(), Errno> {
        call(&self.request(built)).map_err(|kind| Refused::Device(kind).errno(|| qp.name(), built.wr_id))
    }
    fn post_one(
        &self,
        qp: &Qp,
        built: &Built,
        post: impl FnOnce(&SendWr<'_>) -> Result<(), PostErrorKind>,
    ) -> Result<(), Errno> {
        if let Some(notes) = &qp.adapter.notes {
            notes.send(qp.handle, &self.request(built));
        }
        self.hand_on(qp, built, post)
    }
    /// Posts all requests, or none if one of them is refused.
    fn post(&self, qp: &Qp, port: &mut dyn SendPort) -> Result<(), Errno> {
        if let Some(error) = self.error {
            let last = self.requests.last().map_or(0, |built| built.wr_id);
            return Err(Refused::Argument(error).errno(|| qp.name(), last));
        }
        if let [one] = &self.requests[..] {
            return self.post_one(qp, one, |wr| entry::post_send_now(port, wr));
        }
        for (before, built) in self.requests.iter().enumerate() {
            self.hand_on(qp, built, |wr| port.would_take(wr, before))?;
        }
        let posted = self
            .requests
            .iter()
            .try_for_each(|built| self.post_one(qp, built, |wr| entry::post_send(port, wr)));
        // A device that did not know may refuse one yet, behind others that it has taken.
        port.ring();
        posted
    }
    fn last(&mut self) -> Result<&mut Built, Errno> {
        self.requests.last_mut().ok_or(INVALID)
    }
    fn inline(&mut self, parts: impl Iterator<Item = Sge>) -> Result<(), Errno> {
        let start = self.bytes.len();
        for part in parts {
            let from = self.bytes.len();
            if from - start + part.len as usize > MAX_INLINE {
                return Err(INVALID);
            }
            self.bytes.resize(from + part.len as usize, 0);
            entry::copy_inline(&part, &mut self.bytes[from..]);
        }
        let end = self.bytes.len();
        self.last()?.local = Local::Inline(start..end);
        Ok(())
    }
    fn memory(&mut self, nulls: &Nulls, list: &[Sge]) -> Result<(), Errno> {
        let (start, writes) = (self.sges.len(), self.last()?.op.is_read_or_atomic());
        let mut room = Vec::new();
        self.sges.extend_from_slice(nulls.replace(list, writes, &mut room)?);
        let end = self.sges.len();
        self.last()?.local = Local::Sges(start..end);
        Ok(())
    }
}

/// Runs a call within a sequence, and keeps its error; a call outside of one has no effect.
fn build(qp: In<Qp>, call: impl FnOnce(&Qp, &mut Build) -> Result<(), Errno>) {
    let _ = posted(|| {
        let qp = qp.get()?;
        let Some(send) = qp.send_queue() else { return Err(INVALID) };
        let done = send.within(|sending| {
            let build = &mut sending.build;
            if let Err(e) = call(qp, build) {
                build.error.get_or_insert(e);
            }
        });
        done.ok_or(INVALID)
    });
}
/// Begins a request with the number and the flags that the program has set.
fn begin(qp: In<Qp>, op: SendOp) {
    begin_with(qp, || Ok(op));
}
/// As [`begin`], with an operation that may be refused.
fn begin_with(qp: In<Qp>, op: impl FnOnce() -> Result<SendOp, Errno>) {
    build(qp, |qp, build| {
        let op = op()?;
        let (wr_id, set) = (qp.c.wr_id.load(Ordering::Relaxed), qp.c.wr_flags.load(Ordering::Relaxed));
        // The calls that set the data say whether it is inline.
        let flags = flags(qp, set & !INLINE)?;
        build.requests.push(Built { wr_id, op, flags, dest: None, local: Local::Sges(0..0) });
        Ok(())
    });
}
fn remote(rkey: u32, addr: u64) -> RemoteAddr {
    RemoteAddr { addr, rkey: Rkey::new(rkey) }
}

extern "C" fn wr_start(qp: In<Qp>) {
    let _ = posted(|| {
        let Some(send) = qp.get()?.send_queue() else { return Err(INVALID) };
        let mut sending = send.lock();
        sending.build.clear();
        Held::begin(sending);
        Ok(())
    });
}
extern "C" fn wr_complete(qp: In<Qp>) -> c_int {
    posted(|| {
        let qp = qp.get()?;
        let mut sending = qp.send_queue().and_then(Held::end).ok_or(INVALID)?;
        let sending = &mut *sending;
        sending.build.post(qp, &mut *sending.port)
    })
}
extern "C" fn wr_abort(qp: In<Qp>) {
    drop(qp.opt().and_then(|qp| qp.send_queue()).and_then(Held::end));
}

extern "C" fn wr_atomic_cmp_swp(qp: In<Qp>, rkey: u32, addr: u64, compare: u64, swap: u64) {
    begin(qp, SendOp::CompareSwap { remote: remote(rkey, addr), compare, swap });
}
extern "C" fn wr_atomic_fetch_add(qp: In<Qp>, rkey: u32, addr: u64, add: u64) {
    begin(qp, SendOp::FetchAdd { remote: remote(rkey, addr), add });
}
extern "C" fn wr_rdma_read(qp: In<Qp>, rkey: u32, addr: u64) {
    begin(qp, SendOp::Read(remote(rkey, addr)));
}
extern "C" fn wr_rdma_write(qp: In<Qp>, rkey: u32, addr: u64) {
    begin(qp, SendOp::Write(remote(rkey, addr)));
}
extern "C" fn wr_rdma_write_imm(qp: In<Qp>, rkey: u32, addr: u64, imm: u32) {
    begin(qp, SendOp::WriteImm(remote(rkey, addr), u32::from_be(imm)));
}
extern "C" fn wr_send(qp: In<Qp>) {
    begin(qp, SendOp::Send);
}
extern "C" fn wr_send_imm(qp: In<Qp>, imm: u32) {
    begin(qp, SendOp::SendImm(u32::from_be(imm)));
}
extern "C" fn wr_send_inv(qp: In<Qp>, rkey: u32) {
    begin(qp, SendOp::SendInv(Rkey::new(rkey)));
}
extern "C" fn wr_bind_mw(qp: In<Qp>, mw: In<Mw>, rkey: u32, info: In<IbvMwBindInfo>) {
    begin_with(qp, || bind_request(mw, rkey, info.get()?).inspect(|_| show_key(mw, rkey)));
}
extern "C" fn wr_local_inv(qp: In<Qp>, rkey: u32) {
    begin(qp, SendOp::LocalInv(Rkey::new(rkey)));
}
extern "C" fn wr_atomic_write(qp: In<Qp>, rkey: u32, addr: u64, word: In<[u8; 8]>) {
    begin_with(qp, || Ok(SendOp::AtomicWrite { remote: remote(rkey, addr), value: *word.get()? }));
}
extern "C" fn wr_flush(qp: In<Qp>, rkey: u32, addr: u64, len: usize, placement: u8, level: u8) {
    begin_with(qp, || {
        let placement = Placement::from_bits(placement).filter(|p| !p.is_empty()).ok_or(INVALID)?;
        let selectivity = match level {
            0 => Selectivity::Range,
            1 => Selectivity::Region,
            _ => return Err(INVALID),
        };
        let len = u32::try_from(len).map_err(|_| INVALID)?;
        Ok(SendOp::Flush { remote: remote(rkey, addr), len, placement, selectivity })
    });
}
/// An operation that queue pairs are not created with.
extern "C" fn wr_refused(qp: In<Qp>) {
    build(qp, |_, _| Err(Errno(libc::EOPNOTSUPP)));
}

extern "C" fn wr_set_ud_addr(qp: In<Qp>, ah: In<Ah>, qpn: u32, qkey: u32) {
    build(qp, |_, build| {
        let ah = ah.get()?.handle;
        build.last()?.dest = Some(Dest::from(UdDest { ah, qpn: Qpn::new(qpn), qkey: Qkey::new(qkey) }));
        Ok(())
    });
}
extern "C" fn wr_set_xrc_srqn(qp: In<Qp>, number: u32) {
    build(qp, |_, build| {
        build.last()?.dest = Some(Dest::Srq(Srqn::new(number)));
        Ok(())
    });
}
extern "C" fn wr_set_sge(qp: In<Qp>, lkey: u32, addr: u64, length: u32) {
    build(qp, |qp, build| {
        build.memory(&qp.adapter.nulls, &[Sge { addr, len: length, lkey: Lkey::new(lkey) }])
    });
}
extern "C" fn wr_set_sge_list(qp: In<Qp>, count: usize, list: *mut IbvSge) {
    build(qp, |qp, build| {
        build.memory(&qp.adapter.nulls, sges(list, c_int::try_from(count).map_err(|_| INVALID)?)?)
    });
}
extern "C" fn wr_set_inline_data(qp: In<Qp>, addr: *mut c_void, length: usize) {
    build(qp, |_, build| build.inline([inline_part(addr, length)?].into_iter()));
}
extern "C" fn wr_set_inline_data_list(qp: In<Qp>, count: usize, list: In<IbvDataBuf>) {
    build(qp, |_, build| {
        let mut parts = Vec::new();
        for i in 0..count {
            let part = list.at(i)?;
            parts.push(inline_part(part.addr, part.length)?);
        }
        build.inline(parts.into_iter())
    });
}
/// A piece of the program's memory whose bytes are to be copied.
fn inline_part(addr: *mut c_void, length: usize) -> Result<Sge, Errno> {
    if length > MAX_INLINE || addr.is_null() && length > 0 {
        return Err(INVALID);
    }
    Ok(Sge { addr: addr as u64, len: length as u32, lkey: Lkey::new(0) })
}
