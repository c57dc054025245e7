//! Contexts: tables of functions, and the attributes of the device and its port.

use core::ffi::c_int;
use core::ptr::null;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use hca::hca_core::{AtomicScope, GidType, LinkLayer, LinkSpeed, MAX_MESSAGE_BYTES, Mtu, Pkey};

use crate::abi::{
    IbvContext, IbvDeviceAttr, IbvDeviceAttrEx, IbvGidEntry, IbvPortAttr, IbvValuesEx, Slot, VerbsContext,
};
use crate::async_event::ContextEvents;
use crate::cq::{poll_cq, req_notify_cq};
use crate::cq_ex::{create_cq_ex, modify_cq};
use crate::device::{Adapter, NamedDevice};
use crate::dm::{alloc_dm, free_dm, reg_dm_mr};
use crate::domain::{alloc_parent_domain, alloc_td, dealloc_td};
use crate::entry::{Errno, INVALID, In, counted, exports, give, number, pointer};
use crate::import::File;
use crate::null::alloc_null_mr;
use crate::post::{post_recv, post_send, post_srq_recv};
use crate::qp::create_qp_ex;
use crate::window::{alloc_mw, bind_mw, dealloc_mw};
use crate::xrc::{close_xrcd, create_srq_ex, get_srq_num, open_qp, open_xrcd};

/// The entries of the GID table. All have the port's GID, and are of RoCE v2: programs have fixed ideas of the index.
pub(crate) const GIDS: u32 = 4;

/// A context that a program opened.
#[repr(C)]
pub(crate) struct Context {
    c: VerbsContext,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) file: Arc<File>,
    /// The command descriptor.
    _command: Option<OwnedFd>,
    /// Asynchronous events.
    pub(crate) events: Arc<ContextEvents>,
}

/// The place of a function of `struct ibv_context` by its offset there.
const fn at(offset: usize) -> usize {
    (offset - 8) / 8
}
/// The place of a function of `struct verbs_context`, by its offset before the `ibv_context`.
const fn before(offset: usize) -> usize {
    (320 - offset) / 8
}

impl Context {
    pub(crate) fn open(device: In<NamedDevice>) -> Result<*mut IbvContext, Errno> {
        let (file, command) = File::create(device)?;
        Self::of(file, || command)
    }
    /// A context of a file, which takes the command descriptor if nothing is refused.
    pub(crate) fn of(
        file: Arc<File>,
        command: impl FnOnce() -> Option<OwnedFd>,
    ) -> Result<*mut IbvContext, Errno> {
        let adapter = Arc::clone(&file.adapter);
        let events = Arc::new(ContextEvents::new()?);
        adapter.listeners.open(&events);
        let mut ops: [Slot; 32] = [null(); 32];
        ops[at(64)] = alloc_mw as Slot;
        ops[at(72)] = bind_mw as Slot;
        ops[at(80)] = dealloc_mw as Slot;
        ops[at(96)] = poll_cq as Slot;
        ops[at(104)] = req_notify_cq as Slot;
        ops[at(168)] = post_srq_recv as Slot;
        ops[at(208)] = post_send as Slot;
        ops[at(216)] = post_recv as Slot;
        let mut later: [Slot; 39] = [null(); 39];
        later[before(320)] = query_port as Slot;
        later[before(304)] = alloc_null_mr as Slot;
        later[before(264)] = reg_dm_mr as Slot;
        later[before(256)] = alloc_dm as Slot;
        later[before(248)] = free_dm as Slot;
        later[before(208)] = alloc_parent_domain as Slot;
        later[before(200)] = dealloc_td as Slot;
        later[before(192)] = alloc_td as Slot;
        later[before(184)] = modify_cq as Slot;
        later[before(128)] = query_rt_values as Slot;
        later[before(120)] = create_cq_ex as Slot;
        later[before(104)] = query_device_ex as Slot;
        later[before(64)] = open_qp as Slot;
        later[before(56)] = create_qp_ex as Slot;
        later[before(48)] = get_srq_num as Slot;
        later[before(40)] = create_srq_ex as Slot;
        later[before(32)] = open_xrcd as Slot;
        later[before(24)] = close_xrcd as Slot;
        let command = command();
        let c = VerbsContext {
            ops: later,
            sz: size_of::<VerbsContext>(),
            context: IbvContext {
                device: file.device().raw().cast(),
                ops,
                cmd_fd: command.as_ref().map_or(events.fd().as_raw_fd(), AsRawFd::as_raw_fd),
                async_fd: events.fd().as_raw_fd(),
                num_comp_vectors: 1,
                mutex: [0; 5],
                abi_compat: usize::MAX,
            },
        };
        file.opened();
        let context = give(Self { c, adapter, file, _command: command, events });
        Ok(context.wrapping_byte_add(core::mem::offset_of!(VerbsContext, context)).cast())
    }

    /// The first index of a GID in the table.
    pub(crate) fn gid_index(&self, gid: hca::hca_core::Gid) -> Option<u8> {
        // All entries are the port's own.
        (self.adapter.device().port().gid == gid).then_some(1)
    }
    /// Checks the number of the port, which is 1.
    fn port(&self, number: u32) -> Result<hca::hca_core::PortAttr, Errno> {
        if number == 1 { Ok(self.adapter.device().port()) } else { Err(INVALID) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.file.closed();
    }
}

/// The attributes of the port.
fn port_attr(context: &Context, port: u32) -> Result<IbvPortAttr, Errno> {
    let port = context.port(port)?;
    let (active_width, active_speed) = width_and_speed(port.link);
    let (state, phys_state) = if port.active { (4, 5) } else { (1, 3) };
    Ok(IbvPortAttr {
        state,
        max_mtu: Mtu::B4096.encoding().into(),
        active_mtu: port.active_mtu.encoding().into(),
        gid_tbl_len: GIDS as c_int,
        // Connection management, and GIDs that are IP addresses.
        port_cap_flags: 1 << 16 | 1 << 26,
        max_msg_sz: MAX_MESSAGE_BYTES as u32,
        pkey_tbl_len: 1,
        lid: port.lid.raw(),
        max_vl_num: 1,
        active_width,
        active_speed,
        phys_state,
        // Programs use GIDs, and no LIDs, on Ethernet: a network without a link has GIDs alone, too.
        link_layer: if port.link_layer == LinkLayer::InfiniBand { 1 } else { 2 },
        ..IbvPortAttr::default()
    })
}

/// The encodings of a link's width and of the speed of its lanes. A link without a speed has the lowest.
fn width_and_speed(link: Option<LinkSpeed>) -> (u8, u8) {
    let Some(LinkSpeed { mbps, lanes }) = link else { return (1, 1) };
    let lanes = lanes.unwrap_or(1).max(1);
    let width = match lanes {
        2 => 16,
        4 => 2,
        8 => 4,
        12 => 8,
        _ => 1,
    };
    // The fastest lane of each encoding, in Mbit/s.
    let speeds = [(2_500, 1), (5_000, 2), (10_000, 4), (14_000, 16), (25_000, 32), (50_000, 64)];
    let lane = mbps / u32::from(lanes);
    let speed = speeds.iter().find(|(fastest, _)| lane <= *fastest).map_or(128, |(_, speed)| *speed);
    (width, speed)
}

fn device_attr(context: &Context) -> Result<IbvDeviceAttr, Errno> {
    let attr = context.adapter.device().attr();
    let can = attr.abilities;
    // Port events, system image GUID, RNR NAKs; the current state is checked; windows and memory management.
    let caps = [
        (1 << 7 | 1 << 10 | 1 << 11 | 1 << 12, true),
        (1 << 13, can.srq_resize),
        (1 << 17 | 1 << 21 | 1 << 24, can.max_mw > 0),
        (1 << 20, can.max_xrcd > 0),
    ];
    let device_cap_flags = caps.iter().filter(|(_, has)| *has).fold(0, |flags, (bits, _)| flags | bits);
    let guid = context.file.device().get()?.guid;
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from;
    }
    let rd_atomic = attr.max_rd_atomic.into();
    Ok(IbvDeviceAttr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: attr.max_mr_bytes,
        page_size_cap: 0xffff_f000,
        vendor_id: 0,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: attr.max_qp,
        max_qp_wr: attr.max_qp_wr,
        device_cap_flags,
        max_sge: attr.max_sge,
        max_sge_rd: attr.max_sge,
        max_cq: attr.max_cq,
        max_cqe: attr.max_cqe,
        max_mr: attr.max_mr,
        max_pd: attr.max_pd,
        max_qp_rd_atom: rd_atomic,
        max_ee_rd_atom: 0,
        max_res_rd_atom: attr.max_qp.saturating_mul(rd_atomic),
        max_qp_init_rd_atom: rd_atomic,
        max_ee_init_rd_atom: 0,
        atomic_cap: match attr.atomics {
            AtomicScope::None => 0,
            AtomicScope::Hca => 1,
            AtomicScope::Cpu => 2,
        },
        max_ee: 0,
        max_rdd: 0,
        max_mw: can.max_mw,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: can.max_mcast_grp,
        max_mcast_qp_attach: can.max_mcast_qp_attach,
        max_total_mcast_qp_attach: can.max_mcast_grp.saturating_mul(can.max_mcast_qp_attach),
        max_ah: attr.max_ah,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: attr.max_srq,
        max_srq_wr: attr.max_srq_wr,
        max_srq_sge: attr.max_sge,
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: 1,
    })
}

fn device_attr_ex(context: &Context) -> Result<IbvDeviceAttrEx, Errno> {
    let orig_attr = device_attr(context)?;
    let device = context.adapter.device();
    let clock = device.clock();
    let moderation = device.attr().abilities.cq_moderation.unwrap_or_default();
    Ok(IbvDeviceAttrEx {
        orig_attr,
        comp_mask: 0,
        odp_caps: [0; 3],
        completion_timestamp_mask: if clock.is_some() { u64::MAX } else { 0 },
        hca_core_clock: clock.map_or(0, |clock| clock.khz.into()),
        device_cap_flags_ex: orig_attr.device_cap_flags.into(),
        tso_caps: [0; 20],
        max_cq_count: moderation.count,
        max_cq_period: u16::try_from(moderation.period.as_micros()).unwrap_or(u16::MAX),
        max_dm_size: crate::dm::MAX_BYTES as u64,
        pci_atomic_caps: [0; 3],
        xrc_odp_caps: 0,
        phys_port_cnt_ex: 1,
    })
}

/// Tells the device's clock: its ticks stand in the place of nanoseconds, as time stamps have them.
extern "C" fn query_rt_values(context: In<IbvContext>, values: In<IbvValuesEx>) -> c_int {
    number(|| {
        const RAW_CLOCK: u32 = 1;
        let clock = context.context()?.adapter.device().clock();
        if values.get()?.comp_mask & !RAW_CLOCK != 0 {
            return Err(INVALID);
        }
        let clock = clock.ok_or(Errno(libc::EOPNOTSUPP))?;
        let known = values.get()?.comp_mask & RAW_CLOCK;
        values.set(IbvValuesEx { comp_mask: known, raw_clock: [0, clock.now as i64] })
    })
}

extern "C" fn query_port(context: In<IbvContext>, port: u8, attr: In<IbvPortAttr>, bytes: usize) -> c_int {
    number(|| {
        let found = port_attr(context.context()?, port.into())?;
        attr.zero(bytes)?;
        attr.set_prefix(&found, bytes)
    })
}

extern "C" fn query_device_ex(
    context: In<IbvContext>,
    input: In<u32>,
    attr: In<IbvDeviceAttrEx>,
    bytes: usize,
) -> c_int {
    number(|| {
        let asks_more = input.opt().is_some_and(|comp_mask| *comp_mask != 0);
        if asks_more || bytes < size_of::<IbvDeviceAttr>() {
            return Err(INVALID);
        }
        let found = device_attr_ex(context.context()?)?;
        attr.zero(bytes)?;
        attr.set_prefix(&found, bytes)
    })
}

/// The GID at an index of the table.
fn gid(context: &Context, port: u32, index: u32) -> Result<[u8; 16], Errno> {
    let port = context.port(port)?;
    if index < GIDS { Ok(port.gid.0) } else { Err(INVALID) }
}
/// The type of the GIDs, in the numbering of `enum ibv_gid_type`.
fn gid_type(context: &Context) -> u32 {
    let first = context.adapter.device().gids().first().map(|entry| entry.kind);
    if first == Some(GidType::Ib) { 0 } else { 2 }
}
fn gid_entry(context: &Context, index: u32) -> Result<IbvGidEntry, Errno> {
    let gid = gid(context, 1, index)?;
    Ok(IbvGidEntry { gid, gid_index: index, port_num: 1, gid_type: gid_type(context), ndev_ifindex: 0 })
}

exports! {
    "IBVERBS_1.1" fn ibv_open_device(device: In<NamedDevice>) -> *mut IbvContext {
        pointer(|| Context::open(device))
    }
    "IBVERBS_1.1" fn ibv_close_device(context: In<IbvContext>) -> c_int {
        number(|| context.whole().take().map(drop))
    }
    "IBVERBS_1.1" fn ibv_query_device(context: In<IbvContext>, attr: In<IbvDeviceAttr>) -> c_int {
        number(|| attr.set(device_attr(context.context()?)?))
    }
    "IBVERBS_1.1" fn ibv_query_port(context: In<IbvContext>, port: u8, attr: In<IbvPortAttr>) -> c_int {
        // The structure ended before `port_cap_flags2` when programs linked to this function.
        number(|| attr.set_prefix(&port_attr(context.context()?, port.into())?, 48))
    }
    "IBVERBS_1.16" fn ibv_query_port_speed(context: In<IbvContext>, port: u32, to: In<u64>) -> c_int {
        number(|| {
            // In units of 100 Mbit/s.
            let link = context.context()?.port(port)?.link.ok_or(Errno(libc::EOPNOTSUPP))?;
            to.set(u64::from(link.mbps / 100))
        })
    }
    "IBVERBS_1.1" fn ibv_query_gid(context: In<IbvContext>, port: u8, index: c_int, to: In<[u8; 16]>) -> c_int {
        counted(|| {
            let index = u32::try_from(index).map_err(|_| INVALID)?;
            to.set(gid(context.context()?, port.into(), index)?)?;
            Ok(0)
        })
    }
    "IBVERBS_PRIVATE_34" fn ibv_query_gid_type(context: In<IbvContext>, port: u8, index: u32, to: In<u32>) -> c_int {
        counted(|| {
            let context = context.context()?;
            gid(context, port.into(), index)?;
            // Here 0 stands for InfiniBand and RoCE v1.
            to.set(u32::from(gid_type(context) == 2))?;
            Ok(0)
        })
    }
    "IBVERBS_1.11" fn _ibv_query_gid_ex(context: In<IbvContext>, port: u32, index: u32, to: In<IbvGidEntry>, flags: u32, bytes: usize) -> c_int {
        number(|| {
            let context = context.context()?;
            context.port(port)?;
            if flags != 0 || bytes < size_of::<IbvGidEntry>() {
                return Err(INVALID);
            }
            let entry = gid_entry(context, index)?;
            to.zero(bytes)?;
            to.set_prefix(&entry, bytes)
        })
    }
    "IBVERBS_1.11" fn _ibv_query_gid_table(context: In<IbvContext>, to: In<IbvGidEntry>, room: usize, flags: u32, bytes: usize) -> isize {
        let found = counted(|| {
            let context = context.context()?;
            if flags != 0 || bytes != size_of::<IbvGidEntry>() || room < GIDS as usize {
                return Err(INVALID);
            }
            for index in 0..GIDS {
                to.set_at(index as usize, room, gid_entry(context, index)?)?;
            }
            Ok(GIDS as c_int)
        });
        // The error is the result here.
        if found < 0 { -(libc::EINVAL as isize) } else { found as isize }
    }
    "IBVERBS_1.1" fn ibv_query_pkey(context: In<IbvContext>, port: u8, index: c_int, to: In<u16>) -> c_int {
        counted(|| {
            context.context()?.port(port.into())?;
            if index != 0 {
                return Err(INVALID);
            }
            to.set(Pkey::DEFAULT.raw().to_be())?;
            Ok(0)
        })
    }
    "IBVERBS_1.5" fn ibv_get_pkey_index(context: In<IbvContext>, port: u8, pkey: u16) -> c_int {
        counted(|| {
            context.context()?.port(port.into())?;
            if u16::from_be(pkey) == Pkey::DEFAULT.raw() { Ok(0) } else { Err(INVALID) }
        })
    }
}
