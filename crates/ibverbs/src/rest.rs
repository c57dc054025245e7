//! Public functions that are not offered, or that have nothing to do here.

use core::ffi::{c_char, c_int, c_void};

use crate::abi::IbvEce;
use crate::entry::{Errno, In, exports, pointer, text, unsupported};

/// The answer of functions that are not offered and return a pointer: null, and `errno`.
fn none() -> *mut c_void {
    pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

exports! {
    "IBVERBS_1.1" fn ibv_resolve_eth_l2_from_gid() -> c_int { unsupported() }
    "IBVERBS_1.10" fn ibv_query_ece(_qp: In<c_void>, ece: In<IbvEce>) -> c_int {
        let _ = ece.zero(size_of::<IbvEce>());
        unsupported()
    }
    "IBVERBS_1.10" fn ibv_set_ece() -> c_int { unsupported() }
    "IBVERBS_1.15" fn ibv_alloc_dmah() -> *mut c_void { none() }
    "IBVERBS_1.15" fn ibv_dealloc_dmah() -> c_int { unsupported() }
    "IBVERBS_1.16" fn ibv_dm_export_dmabuf_fd() -> c_int {
        unsupported();
        -1
    }
    "IBVERBS_1.18" fn ibv_create_comp_cntr() -> *mut c_void { none() }
    "IBVERBS_1.18" fn ibv_destroy_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn ibv_set_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn ibv_set_err_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn ibv_inc_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn ibv_inc_err_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn ibv_read_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn ibv_read_err_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn ibv_qp_attach_comp_cntr() -> c_int { unsupported() }
    "IBVERBS_1.18" fn _ibv_query_comp_cntr_caps(_context: In<c_void>, caps: In<u8>, bytes: usize) -> c_int {
        let _ = caps.zero(bytes);
        unsupported()
    }
    // The order in which the bytes of a message arrive is not promised.
    "IBVERBS_1.14" fn ibv_query_qp_data_in_order() -> c_int { 0 }
    // A forked child has its own copy of all pages; the adapter of the parent stays the parent's.
    "IBVERBS_1.1" fn ibv_fork_init() -> c_int { 0 }
    "IBVERBS_1.1" fn ibv_dontfork_range() -> c_int { 0 }
    "IBVERBS_1.1" fn ibv_dofork_range() -> c_int { 0 }
    // IBV_FORK_UNNEEDED: memory of regions needs no preparation.
    "IBVERBS_1.13" fn ibv_is_fork_initialized() -> c_int { 2 }
    "IBVERBS_1.0" fn ibv_get_sysfs_path() -> *const c_char { text(c"/sys") }
    "IBVERBS_1.0" fn ibv_read_sysfs_file() -> c_int { -1 }
    // Structures of the kernel, which has no part in this.
    "IBVERBS_1.1" fn ibv_copy_ah_attr_from_kern() -> () {}
    "IBVERBS_1.0" fn ibv_copy_path_rec_from_kern() -> () {}
    "IBVERBS_1.0" fn ibv_copy_path_rec_to_kern() -> () {}
    "IBVERBS_1.0" fn ibv_copy_qp_attr_from_kern() -> () {}
}
