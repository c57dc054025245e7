//! Extended completion queues: completions that a program reads one by one, and field by field.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hca::hca_core::{Completion, CqModeration};

use crate::abi::{IbvContext, IbvCqEx, IbvCqInitAttrEx, IbvModifyCqAttr, IbvWc, Slot};
use crate::cq::{Cq, CqKind, create, is_shown, translated};
use crate::entry::{Errno, INVALID, In, number, pointer, posted};
use crate::held::Held;

/// Fields that completions may have: of `enum ibv_create_cq_wc_flags`, all but those of raw packets and tag matching.
const STANDARD: u64 = 0x7f;
const TIMESTAMP: u64 = 1 << 7;
const WALLCLOCK: u64 = 1 << 11;
/// Bits of `enum ibv_create_cq_attr_flags`: one thread alone uses the queue; it never overflows.
const CREATE_FLAGS: u32 = 0b11;

/// The functions of an extended completion queue, in the order of `struct ibv_cq_ex`.
pub(crate) fn functions() -> [Slot; 18] {
    [
        start_poll as Slot,
        next_poll as Slot,
        end_poll as Slot,
        read_opcode as Slot,
        read_vendor_err as Slot,
        read_byte_len as Slot,
        read_imm_data as Slot,
        read_qp_num as Slot,
        read_src_qp as Slot,
        read_wc_flags as Slot,
        read_nothing as Slot,
        read_sl as Slot,
        read_nothing as Slot,
        read_completion_ts as Slot,
        read_nothing as Slot,
        read_nothing as Slot,
        read_tm_info as Slot,
        read_wallclock_ns as Slot,
    ]
}

/// The completion that a program reads, and its time.
#[derive(Default)]
pub(crate) struct Current {
    wc: IbvWc,
    at: u64,
}

pub(crate) extern "C" fn create_cq_ex(context: In<IbvContext>, attr: In<IbvCqInitAttrEx>) -> *mut Cq {
    pointer(|| {
        const FLAGS: u32 = 1;
        const PARENT: u32 = 1 << 1;
        let attr = attr.get()?;
        let flags = if attr.comp_mask & FLAGS != 0 { attr.flags } else { 0 };
        let unknown = attr.comp_mask & !(FLAGS | PARENT) != 0 || flags & !CREATE_FLAGS != 0;
        if unknown || attr.wc_flags & !(STANDARD | TIMESTAMP | WALLCLOCK) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let depth = c_int::try_from(attr.cqe).map_err(|_| INVALID)?;
        let vector = c_int::try_from(attr.comp_vector).map_err(|_| INVALID)?;
        let timed = attr.wc_flags & (TIMESTAMP | WALLCLOCK) != 0;
        let kind = if timed { CqKind::Timed } else { CqKind::Plain };
        create(context, depth, attr.cq_context, In::of(attr.channel.cast()), vector, kind)
    })
}

pub(crate) extern "C" fn modify_cq(cq: In<Cq>, attr: In<IbvModifyCqAttr>) -> c_int {
    number(|| {
        const MODERATE: u32 = 1;
        let (cq, attr) = (cq.get()?, attr.get()?);
        if attr.attr_mask & !MODERATE != 0 {
            return Err(INVALID);
        }
        if attr.attr_mask & MODERATE != 0 {
            let period = Duration::from_micros(attr.period.into());
            cq.adapter.device().moderate_cq(cq.handle, CqModeration { count: attr.count, period })?;
        }
        Ok(())
    })
}

/// Takes the next completion and shows it; the number of the error that none is there.
fn next(cq: &Cq, state: &mut crate::cq::Polled) -> c_int {
    let mut wc = [Completion::default()];
    let mut at = [0];
    loop {
        let found = match cq.kind {
            CqKind::Plain => state.port.poll(&mut wc),
            CqKind::Timed => state.port.poll_with_times(&mut wc, &mut at).unwrap_or(0),
        };
        if found == 0 {
            return libc::ENOENT;
        }
        if is_shown(&cq.adapter, &wc[0]) {
            break;
        }
    }
    let qp_num = state.last.number(&cq.adapter, &wc[0]);
    let wc = translated(&cq.adapter, &wc[0], qp_num);
    cq.c.status.store(wc.status, Ordering::Relaxed);
    cq.c.wr_id.store(wc.wr_id, Ordering::Relaxed);
    state.current = Current { wc, at: at[0] };
    0
}

extern "C" fn start_poll(cq: In<Cq>, attr: In<u32>) -> c_int {
    let mut result = libc::ENOENT;
    let refused = posted(|| {
        let cq = cq.get()?;
        if attr.opt().is_some_and(|comp_mask| *comp_mask != 0) {
            return Err(INVALID);
        }
        let mut state = cq.port.lock();
        result = next(cq, &mut state);
        if result == 0 {
            Held::begin(state);
        }
        Ok(())
    });
    if refused == 0 { result } else { refused }
}
extern "C" fn next_poll(cq: In<Cq>) -> c_int {
    let mut result = libc::EINVAL;
    let refused = posted(|| {
        let cq = cq.get()?;
        result = cq.port.within(|state| next(cq, state)).ok_or(INVALID)?;
        Ok(())
    });
    if refused == 0 { result } else { refused }
}
extern "C" fn end_poll(cq: In<Cq>) {
    drop(cq.opt().and_then(|cq| cq.port.end()));
}

/// A field of the completion that is read; 0 where none is.
#[inline]
fn field<T: Default>(cq: In<Cq>, read: impl FnOnce(&Current) -> T) -> T {
    cq.opt().and_then(|cq| cq.port.within(|state| read(&state.current))).unwrap_or_default()
}

extern "C" fn read_opcode(cq: In<Cq>) -> u32 {
    field(cq, |current| current.wc.opcode)
}
extern "C" fn read_vendor_err(cq: In<Cq>) -> u32 {
    field(cq, |current| current.wc.vendor_err)
}
extern "C" fn read_byte_len(cq: In<Cq>) -> u32 {
    field(cq, |current| current.wc.byte_len)
}
extern "C" fn read_imm_data(cq: In<Cq>) -> u32 {
    field(cq, |current| current.wc.imm_or_rkey)
}
extern "C" fn read_qp_num(cq: In<Cq>) -> u32 {
    field(cq, |current| current.wc.qp_num)
}
extern "C" fn read_src_qp(cq: In<Cq>) -> u32 {
    field(cq, |current| current.wc.src_qp)
}
extern "C" fn read_wc_flags(cq: In<Cq>) -> u32 {
    field(cq, |current| current.wc.wc_flags)
}
extern "C" fn read_sl(cq: In<Cq>) -> u8 {
    field(cq, |current| current.wc.sl)
}
extern "C" fn read_completion_ts(cq: In<Cq>) -> u64 {
    field(cq, |current| current.at)
}
/// LIDs and path bits, which packets of a RoCE port have not, and fields that are not offered.
extern "C" fn read_nothing(_cq: In<Cq>) -> u32 {
    0
}
extern "C" fn read_tm_info(_cq: In<Cq>, _info: *mut c_void) {}
extern "C" fn read_wallclock_ns(cq: In<Cq>) -> u64 {
    let at = field(cq, |current| current.at);
    let Some(clock) = cq.opt().and_then(|cq| cq.adapter.device().clock()) else { return 0 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.saturating_sub(clock.since(at)).as_nanos()).unwrap_or(u64::MAX)
}

/// The fields of an extended queue before its first poll.
pub(crate) fn empty(cq: crate::abi::IbvCq) -> IbvCqEx {
    IbvCqEx { cq, comp_mask: 0, status: 0.into(), wr_id: 0.into(), ops: functions() }
}
