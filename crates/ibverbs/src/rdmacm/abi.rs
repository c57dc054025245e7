//! Layouts of librdmacm, of release 44 of rdma-core on, with their sizes and offsets asserted.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

use super::border::Field;
use crate::abi::{IbvAhAttr, IbvContext, IbvQpInitAttr};
use crate::cq::{CompChannel, Cq};
use crate::memory::Pd;
use crate::qp::{Qp, Srq};

/// The layout of `struct sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct SockaddrStorage(pub [u8; 128]);

/// The layout of `struct rdma_ib_addr`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct RdmaIbAddr {
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
    pub pkey: u16,
}

/// The layout of `struct rdma_addr`.
#[repr(C)]
pub struct RdmaAddr {
    pub src_addr: Field<SockaddrStorage>,
    pub dst_addr: Field<SockaddrStorage>,
    pub addr: Field<RdmaIbAddr>,
}

/// The layout of `struct ibv_sa_path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvSaPathRec {
    /// Aligned as its two 64-bit numbers.
    pub dgid: [u64; 2],
    pub sgid: [u64; 2],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

/// The layout of `struct rdma_route`.
#[repr(C)]
pub struct RdmaRoute {
    pub addr: RdmaAddr,
    pub path_rec: Field<*const IbvSaPathRec>,
    pub num_paths: Field<c_int>,
}

/// The layout of `struct rdma_event_channel`.
#[repr(C)]
pub struct RdmaEventChannel {
    pub fd: c_int,
}

/// The layout of `struct rdma_cm_id`.
#[repr(C)]
pub struct RdmaCmId {
    pub verbs: Field<*mut IbvContext>,
    pub channel: Field<*mut RdmaEventChannel>,
    pub context: Field<*mut c_void>,
    pub qp: Field<*mut Qp>,
    pub route: RdmaRoute,
    pub ps: u32,
    pub port_num: Field<u8>,
    pub event: Field<*mut RdmaCmEvent>,
    pub send_cq_channel: Field<*mut CompChannel>,
    pub send_cq: Field<*mut Cq>,
    pub recv_cq_channel: Field<*mut CompChannel>,
    pub recv_cq: Field<*mut Cq>,
    pub srq: Field<*mut Srq>,
    pub pd: Field<*mut Pd>,
    pub qp_type: Field<u32>,
}

/// The layout of `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaConnParam {
    pub private_data: *const u8,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

impl RdmaConnParam {
    /// The parameters of an event that has none.
    pub const NONE: Self = Self {
        private_data: core::ptr::null(),
        private_data_len: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    };
}

/// The layout of `struct rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaUdParam {
    pub private_data: *const u8,
    pub private_data_len: u8,
    pub ah_attr: IbvAhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// The parameters of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union RdmaEventParam {
    pub conn: RdmaConnParam,
    pub ud: RdmaUdParam,
    pub arg: u64,
}

/// The layout of `struct rdma_cm_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaCmEvent {
    pub id: *const RdmaCmId,
    pub listen_id: *const RdmaCmId,
    pub event: u32,
    pub status: c_int,
    pub param: RdmaEventParam,
}

/// The layout of `struct rdma_addrinfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaAddrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: u32,
    pub ai_dst_len: u32,
    pub ai_src_addr: *const SockaddrStorage,
    pub ai_dst_addr: *const SockaddrStorage,
    pub ai_src_canonname: *const c_char,
    pub ai_dst_canonname: *const c_char,
    pub ai_route_len: usize,
    pub ai_route: *const c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *const u8,
    pub ai_next: *const RdmaAddrinfo,
}

/// The layout of `struct rdma_cm_join_mc_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaCmJoinMcAttrEx {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

/// The layout of `struct ibv_ece`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvEce {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

/// The head of `struct ibv_qp_init_attr_ex`, whose later fields the contexts' own function takes.
#[repr(C)]
pub struct QpInitAttrExHead {
    pub plain: IbvQpInitAttr,
    pub comp_mask: u32,
    pub pd: *mut Pd,
}

/// Asserts the size of each type, and offsets of its fields.
macro_rules! layouts {
    ($($t:ident $size:literal { $($field:ident $offset:literal),* })*) => {$(
        const _: () = assert!(size_of::<$t>() == $size);
        $(const _: () = assert!(offset_of!($t, $field) == $offset);)*
    )*};
}
const _: () = assert!(size_of::<SockaddrStorage>() == size_of::<libc::sockaddr_storage>());
layouts! {
    RdmaIbAddr 40 { sgid 0, dgid 16, pkey 32 }
    RdmaAddr 296 { src_addr 0, dst_addr 128, addr 256 }
    IbvSaPathRec 64 { sgid 16, dlid 32, raw_traffic 36, flow_label 40, reversible 48, pkey 54, sl 56, mtu 58, preference 63 }
    RdmaRoute 312 { addr 0, path_rec 296, num_paths 304 }
    RdmaEventChannel 4 { fd 0 }
    RdmaCmId 416 { channel 8, context 16, qp 24, route 32, ps 344, port_num 348, event 352, send_cq_channel 360, recv_cq 384, srq 392, pd 400, qp_type 408 }
    RdmaConnParam 24 { private_data_len 8, rnr_retry_count 13, srq 14, qp_num 16 }
    RdmaUdParam 56 { private_data_len 8, ah_attr 16, qp_num 48, qkey 52 }
    RdmaCmEvent 80 { listen_id 8, event 16, status 20, param 24 }
    RdmaAddrinfo 96 { ai_src_len 16, ai_src_addr 24, ai_src_canonname 40, ai_route_len 56, ai_connect_len 72, ai_next 88 }
    RdmaCmJoinMcAttrEx 16 { join_flags 4, addr 8 }
    IbvEce 12 { options 4, comp_mask 8 }
}
