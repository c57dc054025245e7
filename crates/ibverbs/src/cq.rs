//! Completion queues, and channels of their events.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::{Wake, Waker};

use hca::hca_core::{
    Completion, CqHandle, CqPort, EventObject, Notify, QpHandle, RecvExtra, WcOpcode, WcStatus,
};

use crate::abi::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvWc};
use crate::cq_ex::{Current, empty};
use crate::device::Adapter;
use crate::entry::{
    self, Errno, INVALID, In, cancellable, exports, failed, give, number, pointer, posted, sleeping, told,
};
use crate::event::{Events, Unacknowledged};
use crate::held::{Guards, Held, LockedIn};

/// A handle that no queue pair has.
const NO_QP: QpHandle = QpHandle { index: u32::MAX, generation: u32::MAX };
/// Completions that one call to the device returns.
const BATCH: usize = 16;

/// A completion channel.
#[repr(C)]
pub(crate) struct CompChannel {
    c: IbvCompChannel,
    adapter: Arc<Adapter>,
    /// Addresses of completion queues.
    events: Arc<Events<usize>>,
    users: AtomicU32,
}

/// The notification of a queue: an event of its channel, once for each time that it was armed.
struct Notification {
    events: Arc<Events<usize>>,
    armed: AtomicBool,
    /// The queue's address, once it has one.
    cq: std::sync::OnceLock<usize>,
}
impl Wake for Notification {
    fn wake(self: Arc<Self>) {
        if let Some(&cq) = self.cq.get() {
            self.events.push_if(cq, || self.armed.swap(false, Ordering::AcqRel));
        }
    }
}

/// Whether the completions of a queue have times.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CqKind {
    Plain,
    Timed,
}

/// The state of polls: the port, and the completion that a program reads field by field.
pub(crate) struct Polled {
    pub(crate) last: Last,
    pub(crate) port: Box<dyn CqPort>,
    pub(crate) current: Current,
    /// Room for what the device returns, which is not cleared between polls.
    batch: [Completion; BATCH],
}

/// A completion queue. Each is an extended one.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) c: IbvCqEx,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) handle: CqHandle,
    pub(crate) kind: CqKind,
    pub(crate) port: Held<Polled>,
    notification: Option<Arc<Notification>>,
    channel: In<CompChannel>,
    completion_events: Unacknowledged,
    pub(crate) async_events: Unacknowledged,
}

impl Guards for Cq {
    type Value = Polled;
    #[inline(always)]
    fn held(&self) -> &Held<Polled> {
        &self.port
    }
}

pub(crate) fn create(
    context: In<IbvContext>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: In<CompChannel>,
    vector: c_int,
    kind: CqKind,
) -> Result<*mut Cq, Errno> {
    let owner = context.context()?;
    let (adapter, events) = (Arc::clone(&owner.adapter), Arc::clone(&owner.events));
    let depth = u32::try_from(cqe).ok().filter(|&depth| depth > 0).ok_or(INVALID)?;
    if vector != 0 {
        return Err(INVALID);
    }
    let (handle, mut port) = match kind {
        CqKind::Plain => adapter.device().create_cq(depth)?,
        CqKind::Timed => adapter.device().create_timed_cq(depth)?,
    };
    let notification = channel.opt().map(|channel| {
        let events = Arc::clone(&channel.events);
        channel.users.fetch_add(1, Ordering::Relaxed);
        Arc::new(Notification { events, armed: AtomicBool::new(false), cq: std::sync::OnceLock::new() })
    });
    if let Some(notification) = &notification {
        port.wait_by_waker();
        port.set_waker(&Waker::from(Arc::clone(notification)));
    }
    let c = IbvCq {
        context: context.raw(),
        channel: channel.raw().cast(),
        cq_context,
        handle: handle.index,
        cqe: AtomicU32::new(depth),
        unused: [0; 11],
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let port = Held::new(Polled {
        last: Last(NO_QP, Number(0)),
        port,
        current: Current::default(),
        batch: [Completion::default(); BATCH],
    });
    let cq = give(Cq {
        c: empty(c),
        adapter,
        handle,
        kind,
        port,
        notification: notification.clone(),
        channel,
        completion_events: Unacknowledged::default(),
        async_events: Unacknowledged::default(),
    });
    In::of(cq).get()?.adapter.listeners.add(EventObject::Cq(handle), cq as usize, &events);
    // A queue is armed once it is known to the program, and so by then to its notification.
    if let Some(notification) = &notification {
        let _ = notification.cq.set(cq as usize);
    }
    Ok(cq)
}

/// The queue pair of the last completion, and its number.
pub(crate) struct Last(QpHandle, Number);
/// The number of a queue pair, in the upper half of a word as a completion has it.
#[derive(Clone, Copy)]
pub(crate) struct Number(u64);

impl Last {
    /// The number of a completion's queue pair.
    #[inline(always)]
    pub(crate) fn number(&mut self, adapter: &Arc<Adapter>, wc: &Completion) -> Number {
        self.known(wc).unwrap_or_else(|| self.look(adapter, wc))
    }
    /// The same, if it was that of the last completion.
    #[inline(always)]
    fn known(&self, wc: &Completion) -> Option<Number> {
        // One comparison.
        let word = |qp: QpHandle| u64::from(qp.generation) << 32 | u64::from(qp.index);
        (word(self.0) == word(wc.qp)).then_some(self.1)
    }
    #[inline(never)]
    fn look(&mut self, adapter: &Arc<Adapter>, wc: &Completion) -> Number {
        *self = Self(wc.qp, Number(u64::from(adapter.qpn(wc.qp)) << 32));
        self.1
    }
}

/// The words of a success without more to tell; `None` for another completion.
#[inline(always)]
fn plain(wc: &Completion, qp_num: Number) -> Option<[u64; 6]> {
    let opcode = PLAIN[wc.opcode as usize];
    let extra = match wc.extra {
        RecvExtra::None => 0,
        RecvExtra::Imm(_) => 1,
        RecvExtra::Invalidated(_) => 2,
    };
    // One comparison for all of them.
    if wc.status as u8 | u8::from(wc.grh) | extra | opcode as u8 != 0 {
        return None;
    }
    Some([wc.wr_id, opcode, u64::from(wc.byte_len) << 32, qp_num.0, wc.src_qp.raw().into(), 0])
}
/// Stores a completion as the program sees it.
#[inline(always)]
pub(crate) fn translate(
    adapter: &Arc<Adapter>,
    wc: &Completion,
    qp_num: Number,
    to: &mut MaybeUninit<IbvWc>,
) {
    match plain(wc, qp_num) {
        Some(words) => entry::set_words(to, words),
        None => translate_any(adapter, wc, qp_num, to),
    }
}
/// Whether the program is shown a completion: not that of a request that stands for half a bind.
#[inline(always)]
pub(crate) fn is_shown(adapter: &Adapter, wc: &Completion) -> bool {
    wc.opcode != WcOpcode::BindMw || wc.status == WcStatus::Success || !adapter.binds.is_first(wc.wr_id)
}
/// A completion as the program sees it.
pub(crate) fn translated(adapter: &Arc<Adapter>, wc: &Completion, qp_num: Number) -> IbvWc {
    let mut to = [IbvWc::default()];
    if let Ok([to]) = In::of(&raw mut to[0]).places(1) {
        translate(adapter, wc, qp_num, to);
    }
    to[0]
}
#[inline(never)]
fn translate_any(adapter: &Arc<Adapter>, wc: &Completion, qp_num: Number, to: &mut MaybeUninit<IbvWc>) {
    if let Some(notes) = adapter.notes.as_ref().filter(|_| wc.status != WcStatus::Success) {
        notes.completion(adapter, wc);
    }
    const GRH: u32 = 1;
    const WITH_IMM: u32 = 1 << 1;
    const WITH_INV: u32 = 1 << 3;
    let mut flags = if wc.grh { GRH } else { 0 };
    let imm_or_rkey = match wc.extra {
        RecvExtra::None => 0,
        RecvExtra::Imm(data) => {
            flags |= WITH_IMM;
            data.to_be()
        }
        RecvExtra::Invalidated(rkey) => {
            flags |= WITH_INV;
            rkey.raw()
        }
    };
    let is_bind = wc.opcode == WcOpcode::LocalInv && adapter.binds.take(wc.qp, wc.wr_id);
    to.write(IbvWc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: opcode(if is_bind { WcOpcode::BindMw } else { wc.opcode }),
        vendor_err: wc.vendor_code().into(),
        byte_len: if wc.status == WcStatus::Success { wc.byte_len } else { 0 },
        imm_or_rkey,
        qp_num: (qp_num.0 >> 32) as u32,
        src_qp: wc.src_qp.raw(),
        wc_flags: flags,
        sl: if wc.grh { adapter.packet_type } else { 0 },
        ..IbvWc::default()
    });
}

/// The number of an operation in `enum ibv_wc_opcode`.
#[inline(always)]
const fn opcode(opcode: WcOpcode) -> u32 {
    match opcode {
        WcOpcode::Send => 0,
        WcOpcode::RdmaWrite => 1,
        WcOpcode::RdmaRead => 2,
        WcOpcode::CompSwap => 3,
        WcOpcode::FetchAdd => 4,
        WcOpcode::BindMw => 5,
        WcOpcode::LocalInv => 6,
        WcOpcode::Flush => 8,
        WcOpcode::AtomicWrite => 9,
        WcOpcode::Recv => 128,
        WcOpcode::RecvRdmaWithImm => 129,
    }
}

/// By [`WcOpcode`]: the status and the operation of a success as one word of a completion, whose lower half is not 0
/// where there is more to find out. A match in the place of this table takes four instructions more.
const PLAIN: [u64; WcOpcode::RecvRdmaWithImm as usize + 1] = {
    use WcOpcode::*;
    let all = [
        Send,
        RdmaWrite,
        RdmaRead,
        CompSwap,
        FetchAdd,
        AtomicWrite,
        Flush,
        BindMw,
        LocalInv,
        Recv,
        RecvRdmaWithImm,
    ];
    let mut plain = [0; WcOpcode::RecvRdmaWithImm as usize + 1];
    let mut i = 0;
    while i < all.len() {
        plain[all[i] as usize] = (opcode(all[i]) as u64) << 32 | matches!(all[i], LocalInv) as u64;
        i += 1;
    }
    plain
};

impl Polled {
    /// Stores what the device has returned in the first places of `out`. Returns how many the program is shown.
    #[inline(always)]
    fn show(&mut self, adapter: &Arc<Adapter>, got: usize, out: In<IbvWc>) -> Result<usize, Errno> {
        let (places, mut shown) = (out.places(got)?, 0);
        for wc in &self.batch[..got] {
            if is_shown(adapter, wc) {
                translate(adapter, wc, self.last.number(adapter, wc), &mut places[shown]);
                shown += 1;
            }
        }
        Ok(shown)
    }
    /// Stores the one completion that the device has returned, if there is nothing to find out about it.
    #[inline(always)]
    fn show_one(&mut self, out: In<IbvWc>) -> bool {
        let wc = &self.batch[0];
        let (Some(qp_num), Ok([to])) = (self.last.known(wc), out.places(1)) else { return false };
        let Some(words) = plain(wc, qp_num) else { return false };
        entry::set_words(to, words);
        true
    }
}
impl Cq {
    /// Stores completions of any kind, which the device has returned. Returns their number.
    #[cold]
    #[inline(never)]
    fn show_all(&self, mut locked: LockedIn<'_, Self>, got: usize, out: In<IbvWc>) -> c_int {
        let shown = locked.value().show(&self.adapter, got, out);
        drop(locked);
        match shown {
            // The program takes that for an empty queue.
            Ok(0) => failed(self.polls(got as c_int, out)),
            shown => failed(shown.map(|shown| shown as c_int)),
        }
    }
}

/// Polls. Most polls have room for as many completions as one call to the device returns, or for fewer.
pub(crate) extern "C" fn poll_cq(cq: In<Cq>, room: c_int, out: In<IbvWc>) -> c_int {
    told(|| {
        let Some(object) = cq.opt() else { return poll_often(cq, room, out) };
        // A negative number is a large one, too.
        if room as u32 > BATCH as u32 {
            return poll_often(cq, room, out);
        }
        let Some(mut locked) = object.try_lock() else { return poll_often(cq, room, out) };
        let polled = locked.value();
        let got = polled.port.poll(&mut polled.batch[..room as usize]);
        // The most frequent one, without a loop.
        if got == 1 && polled.show_one(out) {
            return locked.end(1);
        }
        if got == 0 { locked.end(0) } else { locked.object().show_all(locked, got, out) }
    })
}
/// A poll with more room than that, or with none, or beside a call of another thread.
#[inline(never)]
fn poll_often(cq: In<Cq>, room: c_int, out: In<IbvWc>) -> c_int {
    failed(cq.get().and_then(|cq| cq.polls(room, out)))
}
impl Cq {
    fn polls(&self, room: c_int, out: In<IbvWc>) -> Result<c_int, Errno> {
        let room = usize::try_from(room).map_err(|_| INVALID)?;
        let mut polled = self.port.lock();
        let (polled, mut found) = (&mut *polled, 0);
        while found < room {
            let want = BATCH.min(room - found);
            let got = polled.port.poll(&mut polled.batch[..want]).min(want);
            if got > 0 {
                found += polled.show(&self.adapter, got, out.behind(found))?;
            }
            if got < want {
                break;
            }
        }
        Ok(found as c_int)
    }
}

pub(crate) extern "C" fn req_notify_cq(cq: In<Cq>, solicited_only: c_int) -> c_int {
    posted(|| {
        let cq = cq.get()?;
        if let Some(notification) = &cq.notification {
            notification.armed.store(true, Ordering::Release);
        }
        cq.port.lock().port.arm(if solicited_only == 0 { Notify::Any } else { Notify::Solicited });
        Ok(())
    })
}

cancellable! {
    "IBVERBS_1.1" fn ibv_get_cq_event(channel: In<CompChannel>, to: In<*mut Cq>, cq_context: In<*mut c_void>) -> c_int {
        sleeping(|slept| {
            let channel = channel.get()?;
            let note = |cq: &usize| _ = In::of(*cq as *mut Cq).opt().map(|cq| cq.completion_events.take());
            let cq = match channel.events.look(channel.adapter.device(), slept, note)? {
                Ok(cq) => cq as *mut Cq,
                Err(sleep) => return Ok(Some(sleep)),
            };
            let object = In::of(cq).get()?;
            to.set(cq)?;
            cq_context.set(object.c.cq.cq_context)?;
            Ok(None)
        })
    }
}

exports! {
    "IBVERBS_1.1" fn ibv_create_cq(context: In<IbvContext>, cqe: c_int, cq_context: *mut c_void, channel: In<CompChannel>, vector: c_int) -> *mut Cq {
        pointer(|| create(context, cqe, cq_context, channel, vector, CqKind::Plain))
    }
    "IBVERBS_1.1" fn ibv_resize_cq(cq: In<Cq>, cqe: c_int) -> c_int {
        number(|| {
            let cq = cq.get()?;
            let depth = cq.port.lock().port.resize(u32::try_from(cqe).map_err(|_| INVALID)?)?;
            cq.c.cq.cqe.store(depth, Ordering::Relaxed);
            Ok(())
        })
    }
    "IBVERBS_1.1" fn ibv_destroy_cq(cq: In<Cq>) -> c_int {
        number(|| {
            let object = cq.get()?;
            object.adapter.device().destroy_cq(object.handle)?;
            if let Some(notification) = &object.notification {
                notification.armed.store(false, Ordering::Release);
                notification.events.forget(|other| *other == cq.raw() as usize);
            }
            object.adapter.listeners.remove(EventObject::Cq(object.handle), cq.raw() as usize);
            object.completion_events.wait();
            object.async_events.wait();
            object.channel.opt().inspect(|channel| {
                channel.users.fetch_sub(1, Ordering::Relaxed);
            });
            cq.take().map(drop)
        })
    }
    "IBVERBS_1.0" fn ibv_create_comp_channel(context: In<IbvContext>) -> *mut CompChannel {
        pointer(|| {
            let adapter = Arc::clone(&context.context()?.adapter);
            let events = Arc::new(Events::new()?);
            let c = IbvCompChannel { context: context.raw(), fd: events.fd().as_raw_fd(), refcnt: 0 };
            Ok(give(CompChannel { c, adapter, events, users: AtomicU32::new(0) }))
        })
    }
    "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: In<CompChannel>) -> c_int {
        number(|| {
            if channel.get()?.users.load(Ordering::Relaxed) > 0 {
                return Err(Errno(libc::EBUSY));
            }
            channel.take().map(drop)
        })
    }
    "IBVERBS_1.1" fn ibv_ack_cq_events(cq: In<Cq>, count: u32) -> () {
        if let Some(cq) = cq.opt() {
            cq.completion_events.acknowledge(count);
        }
    }
}
