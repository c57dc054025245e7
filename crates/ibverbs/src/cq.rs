//! Completion queues, and channels of their events.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};

use hca::hca_core::{Completion, CqHandle, CqPort, Notify, RecvExtra, WcOpcode, WcStatus};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::abi::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvWc};
use crate::cq_ex::{Current, empty};
use crate::device::Adapter;
use crate::entry::{Errno, INVALID, In, counted, exports, give, lock, number, pointer};
use crate::held::Held;

/// Completions that one call to the device returns.
const BATCH: usize = 16;

/// The events of a channel: addresses of completion queues, and a descriptor that counts them.
struct Events {
    fd: OwnedFd,
    waiting: Mutex<VecDeque<usize>>,
}

impl Events {
    fn push(&self, cq: usize) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back(cq);
        // The counter does not overflow: each event of it is in the list.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
    /// Takes the oldest event. Does not wait: the descriptor counts what the list has.
    fn pop(&self) -> Option<usize> {
        let mut waiting = lock(&self.waiting);
        let cq = waiting.pop_front()?;
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        Some(cq)
    }
    /// Takes all events of a queue.
    fn forget(&self, cq: usize) {
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|&other| other != cq);
        for _ in waiting.len()..before {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

/// A completion channel.
#[repr(C)]
pub(crate) struct CompChannel {
    c: IbvCompChannel,
    adapter: Arc<Adapter>,
    events: Arc<Events>,
    users: AtomicU32,
}

/// The notification of a queue: an event of its channel, once for each time that it was armed.
struct Notification {
    events: Arc<Events>,
    armed: AtomicBool,
    /// The queue's address, once it has one.
    cq: std::sync::OnceLock<usize>,
}
impl Wake for Notification {
    fn wake(self: Arc<Self>) {
        if let Some(&cq) = self.cq.get()
            && self.armed.swap(false, Ordering::AcqRel)
        {
            self.events.push(cq);
        }
    }
}

/// Whether the completions of a queue have times.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CqKind {
    Plain,
    Timed,
}

/// What polls share: the port, and the completion that a program reads field by field.
pub(crate) struct Polled {
    pub(crate) port: Box<dyn CqPort>,
    pub(crate) current: Current,
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
    /// Events that were taken and not acknowledged yet.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
}

pub(crate) fn create(
    context: In<IbvContext>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: In<CompChannel>,
    vector: c_int,
    kind: CqKind,
) -> Result<*mut Cq, Errno> {
    let adapter = Arc::clone(&context.context()?.adapter);
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
    let port = Held::new(Polled { port, current: Current::default() });
    let cq = give(Cq {
        c: empty(c),
        adapter,
        handle,
        kind,
        port,
        notification: notification.clone(),
        channel,
        unacknowledged: Mutex::new(0),
        acknowledged: Condvar::new(),
    });
    // A queue is armed once it is known to the program, and so by then to its notification.
    if let Some(notification) = &notification {
        let _ = notification.cq.set(cq as usize);
    }
    Ok(cq)
}

/// Waits for an event of a channel, while the adapter makes progress.
fn wait(channel: &CompChannel) -> Result<usize, Errno> {
    let device = channel.adapter.device();
    let events = &channel.events;
    loop {
        if let Some(cq) = events.pop() {
            return Ok(cq);
        }
        if fcntl_getfl(&events.fd)?.contains(OFlags::NONBLOCK) {
            return Err(Errno(libc::EAGAIN));
        }
        let timeout = device.next_deadline().and_then(|d| Timespec::try_from(d).ok());
        let turn_fd = device.turn_fd();
        let mut fds = [PollFd::new(&events.fd, PollFlags::IN), PollFd::new(&events.fd, PollFlags::IN)];
        let mut used = 1;
        if let Some(fd) = &turn_fd {
            fds[1] = PollFd::new(fd, PollFlags::IN);
            used = 2;
        }
        poll(&mut fds[..used], timeout.as_ref())?;
        if fds[0].revents().is_empty() {
            device.turn();
        }
    }
}

/// A completion as the program sees it.
pub(crate) fn translate(adapter: &Adapter, wc: &Completion) -> IbvWc {
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
    IbvWc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: opcode(wc.opcode),
        vendor_err: wc.vendor_code().into(),
        byte_len: if wc.status == WcStatus::Success { wc.byte_len } else { 0 },
        imm_or_rkey,
        qp_num: adapter.qpn(wc.qp),
        src_qp: wc.src_qp.raw(),
        wc_flags: flags,
        ..IbvWc::default()
    }
}

/// The number of an operation in `enum ibv_wc_opcode`.
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

pub(crate) extern "C" fn poll_cq(cq: In<Cq>, room: c_int, out: In<IbvWc>) -> c_int {
    counted(|| {
        let cq = cq.get()?;
        let room = usize::try_from(room).map_err(|_| INVALID)?;
        let mut polled = cq.port.lock();
        let mut found = 0;
        let mut batch = [Completion::default(); BATCH];
        while found < room {
            let want = BATCH.min(room - found);
            let got = polled.port.poll(&mut batch[..want]);
            for wc in &batch[..got] {
                out.set_at(found, room, translate(&cq.adapter, wc))?;
                found += 1;
            }
            if got < want {
                break;
            }
        }
        Ok(found as c_int)
    })
}

pub(crate) extern "C" fn req_notify_cq(cq: In<Cq>, solicited_only: c_int) -> c_int {
    number(|| {
        let cq = cq.get()?;
        if let Some(notification) = &cq.notification {
            notification.armed.store(true, Ordering::Release);
        }
        cq.port.lock().port.arm(if solicited_only == 0 { Notify::Any } else { Notify::Solicited });
        Ok(())
    })
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
                notification.events.forget(cq.raw() as usize);
            }
            let mut unacknowledged = lock(&object.unacknowledged);
            while *unacknowledged > 0 {
                let waited = object.acknowledged.wait(unacknowledged);
                unacknowledged = waited.unwrap_or_else(PoisonError::into_inner);
            }
            drop(unacknowledged);
            object.channel.opt().inspect(|channel| {
                channel.users.fetch_sub(1, Ordering::Relaxed);
            });
            cq.take().map(drop)
        })
    }
    "IBVERBS_1.0" fn ibv_create_comp_channel(context: In<IbvContext>) -> *mut CompChannel {
        pointer(|| {
            let adapter = Arc::clone(&context.context()?.adapter);
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
            let c = IbvCompChannel { context: context.raw(), fd: fd.as_fd().as_raw_fd(), refcnt: 0 };
            let events = Arc::new(Events { fd, waiting: Mutex::default() });
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
    "IBVERBS_1.1" fn ibv_get_cq_event(channel: In<CompChannel>, to: In<*mut Cq>, cq_context: In<*mut c_void>) -> c_int {
        counted(|| {
            let cq = wait(channel.get()?)? as *mut Cq;
            let object = In::of(cq).get()?;
            *lock(&object.unacknowledged) += 1;
            to.set(cq)?;
            cq_context.set(object.c.cq.cq_context)?;
            Ok(0)
        })
    }
    "IBVERBS_1.1" fn ibv_ack_cq_events(cq: In<Cq>, count: u32) -> () {
        if let Some(cq) = cq.opt() {
            let mut unacknowledged = lock(&cq.unacknowledged);
            *unacknowledged = unacknowledged.saturating_sub(count);
            cq.acknowledged.notify_all();
        }
    }
}
