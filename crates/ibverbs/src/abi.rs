//! Layouts of libibverbs, of release 44 of rdma-core on, with their sizes and offsets asserted.
//!
//! Fields that this library writes while the program may read them are atomics.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// An entry of a table of functions; null: the function is not offered.
pub type Slot = *const ();

/// The layout of `struct ibv_device`.
#[repr(C)]
pub struct IbvDevice {
    pub ops: [Slot; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// The layout of `struct ibv_context`.
#[repr(C)]
pub struct IbvContext {
    pub device: *mut c_void,
    pub ops: [Slot; 32],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: [u64; 5],
    pub abi_compat: usize,
}

/// `struct verbs_context`: the later functions, and the context behind them.
#[repr(C)]
pub struct VerbsContext {
    pub ops: [Slot; 39],
    pub sz: usize,
    pub context: IbvContext,
}

/// The layout of `struct ibv_pd`.
#[repr(C)]
pub struct IbvPd {
    pub context: *mut IbvContext,
    pub handle: u32,
}

/// The layout of `struct ibv_mr`.
#[repr(C)]
pub struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: AtomicPtr<IbvPd>,
    pub addr: AtomicPtr<c_void>,
    pub length: AtomicUsize,
    pub handle: u32,
    pub lkey: AtomicU32,
    pub rkey: AtomicU32,
}

/// The layout of `struct ibv_mr_init_attr`.
#[repr(C)]
pub struct IbvMrInitAttr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
    pub buf: *mut c_void,
}

/// The layout of `struct ibv_mw`.
#[repr(C)]
pub struct IbvMw {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub rkey: AtomicU32,
    pub handle: u32,
    pub kind: u32,
}

/// The layout of `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvMwBindInfo {
    pub mr: *mut IbvMr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: u32,
}

/// The layout of `struct ibv_mw_bind`.
#[repr(C)]
pub struct IbvMwBind {
    pub wr_id: u64,
    pub send_flags: u32,
    pub bind_info: IbvMwBindInfo,
}

/// The layout of `struct ibv_td`, and of `struct ibv_xrcd`.
#[repr(C)]
pub struct IbvTd {
    pub context: *mut IbvContext,
}

/// The layout of `struct ibv_parent_domain_init_attr`.
#[repr(C)]
pub struct IbvParentDomainInitAttr {
    pub pd: *mut IbvPd,
    pub td: *mut IbvTd,
    pub comp_mask: u32,
    pub alloc: Slot,
    pub free: Slot,
    pub pd_context: *mut c_void,
}

/// The layout of `struct ibv_xrcd_init_attr`.
#[repr(C)]
pub struct IbvXrcdInitAttr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

/// The layout of `struct ibv_qp_open_attr`.
#[repr(C)]
pub struct IbvQpOpenAttr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut c_void,
    pub qp_context: *mut c_void,
    pub qp_type: u32,
}

/// The layout of `struct ibv_dm`.
#[repr(C)]
pub struct IbvDm {
    pub context: *mut IbvContext,
    pub memcpy_to_dm: Slot,
    pub memcpy_from_dm: Slot,
    pub comp_mask: u32,
    pub handle: u32,
}

/// The layout of `struct ibv_alloc_dm_attr`.
#[repr(C)]
pub struct IbvAllocDmAttr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

/// The layout of `struct ibv_ece`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvEce {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

/// The layout of `struct ibv_comp_channel`.
#[repr(C)]
pub struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// The mutex and the condition that objects hold, which this library leaves alone.
pub type Unused = [u64; 11];

/// The layout of `struct ibv_cq`.
#[repr(C)]
pub struct IbvCq {
    pub context: *mut IbvContext,
    pub channel: *mut IbvCompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: AtomicU32,
    pub unused: Unused,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// The layout of `struct ibv_cq_ex`.
#[repr(C)]
pub struct IbvCqEx {
    pub cq: IbvCq,
    pub comp_mask: u32,
    pub status: AtomicU32,
    pub wr_id: AtomicU64,
    /// From `start_poll` on.
    pub ops: [Slot; 18],
}

/// The layout of `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub struct IbvCqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut IbvCompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut IbvPd,
}

/// The layout of `struct ibv_modify_cq_attr`.
#[repr(C)]
pub struct IbvModifyCqAttr {
    pub attr_mask: u32,
    pub count: u16,
    pub period: u16,
}

/// The layout of `struct ibv_srq`.
#[repr(C)]
pub struct IbvSrq {
    pub context: *mut IbvContext,
    pub srq_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub handle: u32,
    pub unused: Unused,
    pub events_completed: u32,
}

/// The layout of `struct ibv_qp`.
#[repr(C)]
pub struct IbvQp {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: AtomicU32,
    pub qp_type: u32,
    pub unused: Unused,
    pub events_completed: u32,
}

/// The layout of `struct ibv_qp_ex`. The program writes `wr_id` and `wr_flags`.
#[repr(C)]
pub struct IbvQpEx {
    pub qp_base: IbvQp,
    pub comp_mask: u64,
    pub wr_id: AtomicU64,
    pub wr_flags: AtomicU32,
    /// From `wr_atomic_cmp_swp` on.
    pub ops: [Slot; 22],
}

/// The layout of `struct ibv_data_buf`.
#[repr(C)]
pub struct IbvDataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// The layout of `struct ibv_ah`.
#[repr(C)]
pub struct IbvAh {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub handle: u32,
}

/// The layout of `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// The layout of `struct ibv_send_wr`; the members of its unions by their places.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    /// Immediate data in network byte order, or the key to invalidate.
    pub imm_or_rkey: u32,
    /// The remote address; of a datagram, the address handle.
    pub addr_or_ah: u64,
    /// The key of RDMA and, with the upper half, the first operand of atomics; of a datagram, the number of the queue
    /// pair and the Q_Key.
    pub second: [u32; 2],
    pub swap: u64,
    pub atomic_rkey: u32,
    pub pad: u32,
    pub remote_srqn: u32,
    pub pad_behind: u32,
    pub bind_mw: IbvMw2Bind,
}

/// The member `bind_mw` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvMw2Bind {
    pub mw: *mut IbvMw,
    pub rkey: u32,
    pub bind_info: IbvMwBindInfo,
}

/// The layout of `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
}

/// The layout of `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvWc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_or_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// The layout of `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// The layout of `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// The layout of `struct ibv_rx_hash_conf`.
#[repr(C)]
pub struct IbvRxHashConf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}

/// The layout of `struct ibv_qp_init_attr_ex`, which goes on as that without `_ex` does.
#[repr(C)]
pub struct IbvQpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: IbvRxHashConf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// The layout of `struct ibv_ah_attr`, with its `struct ibv_global_route` in front.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvAhAttr {
    /// Aligned as its two 64-bit numbers.
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// The layout of `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: IbvQpCap,
    pub ah_attr: IbvAhAttr,
    pub alt_ah_attr: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// The layout of `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvSrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// The layout of `struct ibv_srq_init_attr`.
#[repr(C)]
pub struct IbvSrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
}

/// The layout of `struct ibv_srq_init_attr_ex`, which goes on as that without `_ex` does.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub cq: *mut IbvCq,
    pub tm_cap: [u32; 2],
}

/// The layout of `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvPortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}

/// The layout of `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDeviceAttr {
    pub fw_ver: [u8; 64],
    pub node_guid: [u8; 8],
    pub sys_image_guid: [u8; 8],
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ee_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ee_init_rd_atom: u32,
    pub atomic_cap: u32,
    pub max_ee: u32,
    pub max_rdd: u32,
    pub max_mw: u32,
    pub max_raw_ipv6_qp: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_fmr: u32,
    pub max_map_per_fmr: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// The layout of `struct ibv_device_attr_ex`. What this library never offers is `unused`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDeviceAttrEx {
    pub orig_attr: IbvDeviceAttr,
    pub comp_mask: u32,
    pub odp_caps: [u64; 3],
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    /// TCP segmentation, receive side scaling, work queues, pacing, raw packets, tag matching.
    pub tso_caps: [u32; 20],
    pub max_cq_count: u16,
    pub max_cq_period: u16,
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

/// The layout of `struct ibv_values_ex`.
#[repr(C)]
pub struct IbvValuesEx {
    pub comp_mask: u32,
    pub raw_clock: [i64; 2],
}

/// The layout of `struct ibv_async_event`.
#[repr(C)]
pub struct IbvAsyncEvent {
    /// The address of the object, or the number of the port.
    pub element: usize,
    pub event_type: u32,
}

/// The layout of `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvGidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// Asserts the size of each type, and offsets of its fields. A type that has grown has its size of release 44 behind
/// `from`, and a later type its release behind `since`.
macro_rules! layouts {
    ($($t:ident $size:literal $(from $older:literal)? $(since $release:literal)? { $($field:ident $offset:literal),* })*) => {$(
        const _: () = assert!(size_of::<$t>() == $size $(&& $older < $size)? $(&& $release > 44)?);
        $(const _: () = assert!(offset_of!($t, $field) == $offset);)*
    )*};
}
layouts! {
    IbvDevice 664 { node_type 16, name 24, dev_name 88, dev_path 152, ibdev_path 408 }
    IbvContext 328 { device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, mutex 280, abi_compat 320 }
    VerbsContext 648 { ops 0, sz 312, context 320 }
    IbvPd 16 { handle 8 }
    IbvMr 48 { addr 16, length 24, lkey 36, rkey 40 }
    IbvMrInitAttr 72 since 59 { access 8, comp_mask 16, iova 24, addr 32, fd 40, fd_offset 48, dmah 56, buf 64 }
    IbvMw 32 { rkey 16, handle 20, kind 24 }
    IbvMwBindInfo 32 { addr 8, length 16, mw_access_flags 24 }
    IbvMwBind 48 { send_flags 8, bind_info 16 }
    IbvTd 8 { context 0 }
    IbvParentDomainInitAttr 48 { td 8, comp_mask 16, alloc 24, pd_context 40 }
    IbvXrcdInitAttr 12 { fd 4, oflags 8 }
    IbvQpOpenAttr 32 { qp_num 4, xrcd 8, qp_context 16, qp_type 24 }
    IbvDm 32 { memcpy_to_dm 8, memcpy_from_dm 16, comp_mask 24, handle 28 }
    IbvAllocDmAttr 16 { log_align_req 8, comp_mask 12 }
    IbvEce 12 { options 4, comp_mask 8 }
    IbvCompChannel 16 { fd 8 }
    IbvCq 128 { cqe 28, unused 32, comp_events_completed 120 }
    IbvCqEx 288 { comp_mask 128, status 132, wr_id 136, ops 144 }
    IbvCqInitAttrEx 56 { cq_context 8, channel 16, comp_vector 24, wc_flags 32, comp_mask 40, flags 44, parent_domain 48 }
    IbvModifyCqAttr 8 { attr_mask 0, count 4, period 6 }
    IbvSrq 128 { handle 24, unused 32, events_completed 120 }
    IbvQp 160 { qp_num 52, state 56, qp_type 60, unused 64, events_completed 152 }
    IbvQpEx 360 from 352 { comp_mask 160, wr_id 168, wr_flags 176, ops 184 }
    IbvDataBuf 16 { length 8 }
    IbvAh 24 { handle 16 }
    IbvSge 16 { length 8, lkey 12 }
    IbvSendWr 128 { opcode 28, send_flags 32, imm_or_rkey 36, addr_or_ah 40, second 48, swap 56, atomic_rkey 64, remote_srqn 72, bind_mw 80 }
    IbvRecvWr 32 { num_sge 24 }
    IbvWc 48 { status 8, vendor_err 16, imm_or_rkey 24, qp_num 28, src_qp 32, wc_flags 36, sl 44 }
    IbvQpInitAttr 64 { cap 32, qp_type 52, sq_sig_all 56 }
    IbvRxHashConf 24 { rx_hash_key 8, rx_hash_fields_mask 16 }
    IbvQpInitAttrEx 136 { cap 32, sq_sig_all 56, comp_mask 60, pd 64, xrcd 72, create_flags 80, max_tso_header 84, rwq_ind_tbl 88, rx_hash_conf 96, source_qpn 120, send_ops_flags 128 }
    IbvAhAttr 32 { flow_label 16, sgid_index 20, dlid 24, is_global 29, port_num 30 }
    IbvQpAttr 144 { cap 36, ah_attr 56, alt_ah_attr 88, pkey_index 120, port_num 129, alt_timeout 134, rate_limit 136 }
    IbvSrqInitAttr 24 { attr 8 }
    IbvSrqInitAttrEx 64 { attr 8, comp_mask 20, srq_type 24, pd 32, xrcd 40, cq 48, tm_cap 56 }
    IbvPortAttr 56 from 52 { gid_tbl_len 12, pkey_tbl_len 32, lid 34, link_layer 46, port_cap_flags2 48 }
    IbvDeviceAttr 232 { node_guid 64, max_mr_size 80, max_qp 108, atomic_cap 164, max_pkeys 224, phys_port_cnt 227 }
    IbvDeviceAttrEx 400 { comp_mask 232, odp_caps 240, completion_timestamp_mask 264, hca_core_clock 272, device_cap_flags_ex 280, tso_caps 288, max_cq_count 368, max_cq_period 370, max_dm_size 376, pci_atomic_caps 384, xrc_odp_caps 392, phys_port_cnt_ex 396 }
    IbvValuesEx 24 { raw_clock 8 }
    IbvAsyncEvent 16 { element 0, event_type 8 }
    IbvGidEntry 32 { gid_index 16, ndev_ifindex 28 }
}
