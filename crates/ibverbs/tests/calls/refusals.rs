//! What public functions do with bad arguments: null, objects that were destroyed, objects of another kind, objects in
//! use. Where rdma-core reads through a wrong pointer, so does this library, and no test passes one.

use super::*;
use crate::abi::{
    IbvAllocDmAttr, IbvMw, IbvParentDomainInitAttr, IbvQpInitAttrEx, IbvSrq, IbvSrqAttr, IbvSrqInitAttr,
    IbvSrqInitAttrEx, IbvXrcdInitAttr,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a function returns for null in the place of each argument, with `errno`. A number that no function returns
/// stands for any.
const ANY: c_int = c_int::MIN;
const OF_NULL: &[(c_int, c_int, &str)] = &[
    (
        libc::EINVAL,
        libc::EINVAL,
        "_ibv_query_gid_ex ibv_attach_mcast ibv_close_device ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah
        ibv_destroy_comp_channel ibv_destroy_cq ibv_destroy_qp ibv_destroy_srq ibv_detach_mcast ibv_modify_qp
        ibv_modify_srq ibv_query_device ibv_query_port ibv_query_port_speed ibv_query_qp ibv_query_srq ibv_resize_cq",
    ),
    // Null.
    (
        0,
        libc::EINVAL,
        "ibv_alloc_buf ibv_alloc_pd ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_channel
        ibv_create_cq ibv_create_qp ibv_create_srq ibv_get_device_name ibv_import_dm ibv_import_mr
        ibv_import_pd ibv_open_device ibv_qp_to_qp_ex ibv_reg_buf_mr ibv_reg_dmabuf_mr ibv_reg_mr ibv_reg_mr_ex ibv_reg_mr_iova ibv_reg_mr_iova2",
    ),
    (
        -1,
        libc::EINVAL,
        "ibv_get_async_event ibv_get_cq_event ibv_get_device_index ibv_get_pkey_index ibv_init_ah_from_wc
        ibv_query_gid ibv_query_gid_type ibv_query_pkey ibv_rereg_mr rdma_accept rdma_ack_cm_event rdma_bind_addr
        rdma_connect rdma_create_ep rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq
        rdma_create_srq_ex rdma_destroy_id rdma_disconnect rdma_establish rdma_get_cm_event rdma_get_remote_ece
        rdma_get_request rdma_getaddrinfo rdma_init_qp_attr rdma_join_multicast rdma_join_multicast_ex
        rdma_leave_multicast rdma_listen rdma_migrate_id rdma_notify rdma_query_addrinfo rdma_reject rdma_reject_ece
        rdma_resolve_addr rdma_resolve_addrinfo rdma_resolve_route rdma_set_local_ece rdma_set_option
        rdma_write_cm_event repoll_wait rrecvmsg rsendmsg",
    ),
    (-libc::EINVAL, libc::EINVAL, "_ibv_query_gid_table"),
    // Not offered.
    (
        libc::EOPNOTSUPP,
        libc::EOPNOTSUPP,
        "_ibv_query_comp_cntr_caps ibv_dealloc_dmah ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
        ibv_qp_attach_comp_cntr ibv_query_ece ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_resolve_eth_l2_from_gid
        ibv_set_comp_cntr ibv_set_ece ibv_set_err_comp_cntr",
    ),
    (
        0,
        libc::EOPNOTSUPP,
        "ibv_alloc_dmah ibv_create_comp_cntr",
    ),
    (-1, libc::EOPNOTSUPP, "ibv_dm_export_dmabuf_fd"),
    (-1, libc::ENODATA, "ibv_export_buf_dmabuf_fd"),
    // The descriptor is 0, and no context's.
    (0, libc::EINVAL, "ibv_import_device"),
    // The descriptor is 0, and no socket of this library.
    (
        -1,
        libc::EBADF,
        "raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite rlisten
        repoll_ctl rread rreadv rrecv rrecvfrom rsend rsendto rsetsockopt rshutdown rwrite rwritev",
    ),
    (-1, libc::EAFNOSUPPORT, "rsocket"),
    // Numbers, of which 0 is a good one or an unknown one.
    (
        0,
        0,
        "ibv_dofork_range ibv_dontfork_range ibv_fork_init ibv_get_device_guid
        ibv_query_qp_data_in_order mbps_to_ibv_rate mult_to_ibv_rate rpoll",
    ),
    (-1, 0, "ibv_rate_to_mbps ibv_rate_to_mult ibv_read_sysfs_file"),
    (2, 0, "ibv_is_fork_initialized"),
    // Texts, lists and channels are made without arguments.
    (
        ANY,
        0,
        "ibv_event_type_str ibv_get_device_list ibv_get_sysfs_path ibv_node_type_str ibv_port_state_str
        ibv_wc_status_str rdma_create_event_channel rdma_event_str",
    ),
    (ANY, ANY, "rdma_get_devices"),
    // A set of no members, whose number is a descriptor.
    (ANY, 0, "repoll_create"),
    // Nothing to return, or a port of an identifier: what else the register has is anything.
    (ANY, libc::EINVAL, "ibv_ack_async_event ibv_free_buf"),
    (
        ANY,
        0,
        "ibv_ack_cq_events ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
        ibv_free_device_list ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd rdma_destroy_ep
        rdma_destroy_event_channel rdma_destroy_qp rdma_destroy_srq rdma_free_devices rdma_freeaddrinfo
        rdma_get_dst_port rdma_get_src_port",
    ),
];
/// It waits for ever, as `select` does.
const WAITS: &str = "rselect";

fn clear_errno() {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = 0 };
}

/// The public functions of both libraries with a node that has them.
fn functions() -> BTreeMap<&'static str, &'static str> {
    let texts = [include_str!("../../symbols.txt"), include_str!("../../symbols-rdmacm.txt")];
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split(' ').rev().collect::<Vec<_>>());
    let all = words.map(|words| (words[0], words[1]));
    all.filter(|(_, node)| node.starts_with("IBVERBS_") || node.starts_with("RDMACM_")).collect()
}

#[test]
fn each_function_refuses_null_and_says_why() {
    let functions = functions();
    let mut seen = BTreeSet::from([WAITS]);
    for (returned, number, names) in OF_NULL {
        for name in names.split_whitespace() {
            assert!(seen.insert(name), "{name} is in the table twice");
            let node = functions.get(name).unwrap_or_else(|| panic!("{name} is no public function"));
            let at = common::symbol(name, node).unwrap();
            clear_errno();
            let word = call!(@ at, (0, 0, 0, 0, 0, 0) -> isize);
            let found = word as c_int;
            if matches!(name, "ibv_get_device_list" | "rdma_get_devices") {
                // SAFETY: a list is one allocation of the C library's, or null.
                unsafe { libc::free(word as *mut c_void) };
            }
            assert!(*returned == ANY || found == *returned, "{name}: {found}, {}", errno());
            assert!(*number == ANY || errno() == *number, "{name}: {found}, {}", errno());
        }
    }
    assert_eq!(functions.into_keys().collect::<BTreeSet<_>>(), seen, "functions without a row");
}

#[test]
fn functions_of_tables_refuse_null_too() {
    let pair = pair();
    let context = pair.context;
    // Those of the context itself, and the later ones before it: they return a number, or null.
    let of_context = (8..264).step_by(8).map(|offset| slot(context, offset));
    let later = (24..=320).step_by(8).filter(|offset| *offset != 112).map(|offset| later(context, offset));
    // A queue pair's and a completion queue's: pointers behind the structures of release 44.
    let words = |object: *mut c_void, from: usize, to: usize| {
        // SAFETY: objects of this library have the extended layout.
        (from..to).step_by(8).map(move |at| unsafe { object.byte_add(at).cast::<usize>().read() })
    };
    let of_qp = words(pair.qps[0].cast(), 184, 352);
    let of_cq = words(pair.cq.cast(), 144, 288);
    let functions: Vec<usize> =
        of_context.chain(later).chain(of_qp).chain(of_cq).filter(|at| *at != 0).collect();
    assert!(functions.len() > 60, "{}", functions.len());
    for at in functions {
        call!(@ at, (0, 0, 0, 0, 0, 0) -> isize);
    }
    pair.end();
}

/// The functions of the header answer `EOPNOTSUPP` for the null entries, as those of a device in silicon without counters
/// do.
#[test]
fn what_no_device_has_is_refused_and_no_attribute_promises_it() {
    let pair = pair();
    // Of counters: destroy, create, attach, read; then those of flows and of receive side scaling.
    for offset in [272, 280, 288, 296, 80, 96, 136, 144, 152, 160, 168] {
        assert_eq!(later(pair.context, offset), 0, "{offset}");
    }
    let mut ece = [1_u32, 2, 0];
    for name in ["ibv_query_ece", "ibv_set_ece"] {
        let at = common::symbol(name, "IBVERBS_1.10").unwrap();
        assert_eq!(call!(@ at, (pair.qps[0], &raw mut ece) -> c_int), libc::EOPNOTSUPP, "{name}");
        assert_eq!(ece, [0; 3], "{name}");
    }
    let mut caps = [7_u8; 64];
    let at = common::symbol("_ibv_query_comp_cntr_caps", "IBVERBS_1.18").unwrap();
    assert_eq!(call!(@ at, (pair.context, &raw mut caps, 64) -> c_int), libc::EOPNOTSUPP);
    assert_eq!(caps, [0; 64]);
    let mut attr = std::mem::MaybeUninit::<abi::IbvDeviceAttrEx>::zeroed();
    let bytes = size_of::<abi::IbvDeviceAttrEx>();
    assert_eq!(call!(@ later(pair.context, 104), (pair.context, 0, &raw mut attr, bytes) -> c_int), 0);
    // SAFETY: numbers, which the call has written.
    let attr = unsafe { attr.assume_init() };
    assert_eq!((attr.odp_caps, attr.tso_caps, attr.xrc_odp_caps), ([0; 3], [0; 20], 0));
    // Raw packets, flow steering that the kernel manages, and inner checksums.
    assert_eq!(attr.device_cap_flags_ex & (1 << 18 | 1 << 26 | 1 << 29 | 1 << 34 | 1 << 35 | 1 << 36), 0);
    pair.end();
}

/// Calls of librdmacm, each of which begins with an identifier.
const OF_ID: &str = "rdma_accept rdma_bind_addr rdma_connect rdma_create_qp rdma_create_qp_ex rdma_create_srq
    rdma_create_srq_ex rdma_destroy_id rdma_disconnect rdma_establish rdma_get_remote_ece rdma_init_qp_attr
    rdma_join_multicast
    rdma_join_multicast_ex rdma_leave_multicast rdma_listen rdma_migrate_id rdma_notify rdma_query_addrinfo rdma_reject
    rdma_reject_ece rdma_resolve_addr rdma_resolve_addrinfo rdma_resolve_route rdma_set_local_ece rdma_set_option
    rdma_write_cm_event rdma_get_request rdma_destroy_ep rdma_destroy_qp rdma_destroy_srq rdma_get_src_port
    rdma_get_dst_port";

#[test]
fn objects_of_librdmacm_that_are_gone_or_of_another_kind_are_refused() {
    let functions = functions();
    let of = |name: &str| common::symbol(name, functions[name]).unwrap();
    let channel = call!(@ of("rdma_create_event_channel"), () -> *mut c_void);
    let mut id: *mut c_void = null_mut();
    assert_eq!(call!(@ of("rdma_create_id"), (channel, &raw mut id, 0, 0x0106) -> c_int), 0);
    assert_eq!(call!(@ of("rdma_destroy_id"), (id) -> c_int), 0);
    // Room for what a call reads or writes elsewhere.
    let mut room = [0_u64; 64];
    let at = room.as_mut_ptr();
    for wrong in [id, channel, 0x1000 as *mut c_void, at.cast()] {
        for name in OF_ID.split_whitespace() {
            clear_errno();
            let found = call!(@ of(name), (wrong, at, at, at, at, at) -> isize) as c_int;
            let has_no_result = name.starts_with("rdma_get_s") || name.starts_with("rdma_get_d");
            let is_void = has_no_result || name.starts_with("rdma_destroy_") && name != "rdma_destroy_id";
            assert!(is_void || (found, errno()) == (-1, libc::EINVAL), "{name}: {found}, {}", errno());
        }
    }
    assert_eq!(room, [0; 64]);
    // A channel, an event and a list.
    for wrong in [id, 0x1000 as *mut c_void, at.cast()] {
        for name in ["rdma_create_id", "rdma_get_cm_event", "rdma_ack_cm_event"] {
            let found = call!(@ of(name), (wrong, at, 0, 0x0106) -> c_int);
            assert_eq!((found, errno()), (-1, libc::EINVAL), "{name}");
        }
        call!(@ of("rdma_destroy_event_channel"), (wrong) -> ());
        call!(@ of("rdma_freeaddrinfo"), (wrong) -> ());
    }
    call!(@ of("rdma_destroy_event_channel"), (channel) -> ());
    call!(@ of("rdma_destroy_event_channel"), (channel) -> ());
    assert_eq!(call!(@ of("rdma_get_cm_event"), (channel, at) -> c_int), -1);
}

/// An object, and how it is destroyed.
#[derive(Clone, Copy)]
struct Object {
    at: *mut c_void,
    destroy: usize,
}
impl Object {
    #[track_caller]
    fn new<T>(at: *mut T, destroy: usize) -> Self {
        assert!(!at.is_null(), "{}", errno());
        Self { at: at.cast(), destroy }
    }
    fn named<T>(at: *mut T, destroy: &str) -> Self {
        let node = functions()[destroy];
        Self::new(at, common::symbol(destroy, node).unwrap())
    }
    fn end(self) -> c_int {
        call!(@ self.destroy, (self.at) -> c_int)
    }
}

#[test]
fn what_another_object_uses_is_busy_until_that_one_is_gone() {
    let context = open();
    let at = |offset| later(context, offset);
    let pd = Object::named(call!(ibv_alloc_pd(context) -> *mut c_void), "ibv_dealloc_pd");
    let cq = Object::named(call!(ibv_create_cq(context, 16, 0, 0, 0) -> *mut c_void), "ibv_destroy_cq");
    let mut memory = [0_u8; 4096];
    let bytes = memory.as_mut_ptr();
    let mut none = 0_u32;
    let mut dm_attr = IbvAllocDmAttr { length: 64, log_align_req: 0, comp_mask: 0 };
    let dm = Object::new(call!(@ at(256), (context, &raw mut dm_attr) -> *mut c_void), at(248));
    let td = Object::new(call!(@ at(192), (context, &raw mut none) -> *mut c_void), at(200));
    let mut xrcd_attr = IbvXrcdInitAttr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
    let xrcd = Object::new(call!(@ at(32), (context, &raw mut xrcd_attr) -> *mut c_void), at(24));
    let attr = IbvSrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let mut plain = IbvSrqInitAttr { srq_context: null_mut(), attr };
    let srq = Object::named(call!(ibv_create_srq(pd.at, &raw mut plain) -> *mut IbvSrq), "ibv_destroy_srq");

    let mr = || Object::named(call!(ibv_reg_mr(pd.at, bytes, 4096, 1) -> *mut IbvMr), "ibv_dereg_mr");
    let mw = || Object::new(call!(@ slot(context, 64), (pd.at, 2) -> *mut IbvMw), slot(context, 80));
    let ah = || {
        let mut gid = [0_u64; 2];
        assert_eq!(call!(ibv_query_gid(context, 1, 1, &raw mut gid) -> c_int), 0);
        let mut to = IbvAhAttr { dgid: gid, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
        Object::named(call!(ibv_create_ah(pd.at, &raw mut to) -> *mut c_void), "ibv_destroy_ah")
    };
    let parent = || {
        let (pd, td) = (pd.at.cast(), td.at.cast());
        let (alloc, free) = (std::ptr::null(), std::ptr::null());
        let mut attr = IbvParentDomainInitAttr { pd, td, comp_mask: 0, alloc, free, pd_context: null_mut() };
        Object::named(call!(@ at(208), (context, &raw mut attr) -> *mut c_void), "ibv_dealloc_pd")
    };
    let dm_mr = || Object::named(call!(@ at(264), (pd.at, dm.at, 0, 64, 33) -> *mut IbvMr), "ibv_dereg_mr");
    let qp = |kind, srq: *mut c_void| {
        let mut init = init_attr(cq.at.cast());
        (init.qp_type, init.srq) = (kind, srq.cast());
        Object::named(call!(ibv_create_qp(pd.at, &raw mut init) -> *mut IbvQp), "ibv_destroy_qp")
    };
    let target = || {
        // SAFETY: numbers and null pointers.
        let mut init: IbvQpInitAttrEx = unsafe { std::mem::zeroed() };
        (init.qp_type, init.comp_mask, init.xrcd) = (10, 2, xrcd.at.cast());
        Object::named(call!(@ at(56), (context, &raw mut init) -> *mut IbvQp), "ibv_destroy_qp")
    };
    let xrc_srq = || {
        let (pd, xrcd, cq) = (pd.at.cast(), xrcd.at.cast(), cq.at.cast());
        let mut init = IbvSrqInitAttrEx {
            srq_context: null_mut(),
            attr,
            comp_mask: 0xf,
            srq_type: 1,
            pd,
            xrcd,
            cq,
            tm_cap: [0; 2],
        };
        Object::named(call!(@ at(40), (context, &raw mut init) -> *mut IbvSrq), "ibv_destroy_srq")
    };
    let rc = || qp(2, null_mut());
    let with_srq = || qp(2, srq.at);
    type Case<'a> = (&'a str, Object, &'a dyn Fn() -> Object);
    let cases: [Case<'_>; 15] = [
        ("a domain with a region", pd, &mr),
        ("a domain with a window", pd, &mw),
        ("a domain with an address handle", pd, &ah),
        ("a domain with a parent", pd, &parent),
        ("a domain with a region of device memory", pd, &dm_mr),
        ("a domain with a queue pair", pd, &rc),
        ("a domain with an XRC queue", pd, &xrc_srq),
        ("device memory with a region", dm, &dm_mr),
        ("a thread domain with a parent", td, &parent),
        ("an XRC domain with a target", xrcd, &target),
        ("an XRC domain with a queue", xrcd, &xrc_srq),
        ("completions of a queue pair", cq, &rc),
        ("completions of an XRC queue", cq, &xrc_srq),
        ("a shared queue with a queue pair", srq, &with_srq),
        ("a domain with a datagram queue pair", pd, &|| qp(4, null_mut())),
    ];
    for (what, used, user) in cases {
        let user = user();
        assert_eq!(used.end(), libc::EBUSY, "{what}");
        assert_eq!(user.end(), 0, "{what}");
    }

    // A member of a group stays until it has left.
    let member = qp(4, null_mut());
    let group = [0_u32, 0, 0xffff_u32.to_be(), 0xef01_0203_u32.to_be()];
    assert_eq!(call!(ibv_attach_mcast(member.at, group.as_ptr(), 0) -> c_int), 0);
    assert_eq!(member.end(), libc::EBUSY);
    assert_eq!(call!(ibv_detach_mcast(member.at, group.as_ptr(), 0) -> c_int), 0);
    assert_eq!([member, dm, td, xrcd, srq, cq, pd].map(Object::end), [0; 7]);
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}
