//! Functions of providers that this library stands in for: libefa, libhns, libionic, libmana, libmlx4
//! and libmlx5. Programs link to them, and ask a device
//! first whether it is theirs; no device is.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use crate::entry::{set_errno, unsupported};

/// A function of a provider, by what it returns.
macro_rules! refused {
    ($($version:literal $kind:ident $name:ident;)*) => {$(refused!(@$kind $version $name);)*};
    (@pointer $version:literal $name:ident) => {
        crate::entry::exports! { $version fn $name() -> *mut c_void {
            set_errno(libc::EOPNOTSUPP);
            null_mut()
        } }
    };
    (@number $version:literal $name:ident) => {
        crate::entry::exports! { $version fn $name() -> c_int { unsupported() } }
    };
    (@count $version:literal $name:ident) => {
        crate::entry::exports! { $version fn $name() -> isize {
            set_errno(libc::EOPNOTSUPP);
            -1
        } }
    };
    (@no $version:literal $name:ident) => {
        crate::entry::exports! { $version fn $name() -> bool { false } }
    };
    (@nothing $version:literal $name:ident) => {
        crate::entry::exports! { $version fn $name() -> () {} }
    };
}

refused! {
    "MLX5_1.0" number mlx5dv_query_device;
    "MLX5_1.1" pointer mlx5dv_create_cq;
    "MLX5_1.2" number mlx5dv_init_obj;
    "MLX5_1.2" number mlx5dv_set_context_attr;
    "MLX5_1.3" pointer mlx5dv_create_qp;
    "MLX5_1.3" pointer mlx5dv_create_wq;
    "MLX5_1.4" number mlx5dv_get_clock_info;
    "MLX5_1.5" pointer mlx5dv_create_flow_action_esp;
    "MLX5_1.6" number mlx5dv_destroy_flow_matcher;
    "MLX5_1.6" pointer mlx5dv_create_flow;
    "MLX5_1.6" pointer mlx5dv_create_flow_matcher;
    "MLX5_1.7" nothing mlx5dv_devx_free_uar;
    "MLX5_1.7" number mlx5dv_devx_general_cmd;
    "MLX5_1.7" number mlx5dv_devx_obj_destroy;
    "MLX5_1.7" number mlx5dv_devx_obj_modify;
    "MLX5_1.7" number mlx5dv_devx_obj_query;
    "MLX5_1.7" number mlx5dv_devx_query_eqn;
    "MLX5_1.7" number mlx5dv_devx_umem_dereg;
    "MLX5_1.7" pointer mlx5dv_create_flow_action_modify_header;
    "MLX5_1.7" pointer mlx5dv_create_flow_action_packet_reformat;
    "MLX5_1.7" pointer mlx5dv_devx_alloc_uar;
    "MLX5_1.7" pointer mlx5dv_devx_obj_create;
    "MLX5_1.7" pointer mlx5dv_devx_umem_reg;
    "MLX5_1.7" pointer mlx5dv_open_device;
    "MLX5_1.8" no mlx5dv_is_supported;
    "MLX5_1.8" number mlx5dv_devx_cq_modify;
    "MLX5_1.8" number mlx5dv_devx_cq_query;
    "MLX5_1.8" number mlx5dv_devx_ind_tbl_modify;
    "MLX5_1.8" number mlx5dv_devx_ind_tbl_query;
    "MLX5_1.8" number mlx5dv_devx_qp_modify;
    "MLX5_1.8" number mlx5dv_devx_qp_query;
    "MLX5_1.8" number mlx5dv_devx_srq_modify;
    "MLX5_1.8" number mlx5dv_devx_srq_query;
    "MLX5_1.8" number mlx5dv_devx_wq_modify;
    "MLX5_1.8" number mlx5dv_devx_wq_query;
    "MLX5_1.9" nothing mlx5dv_devx_destroy_cmd_comp;
    "MLX5_1.9" number mlx5dv_devx_get_async_cmd_comp;
    "MLX5_1.9" number mlx5dv_devx_obj_query_async;
    "MLX5_1.9" pointer mlx5dv_devx_create_cmd_comp;
    "MLX5_1.10" number mlx5dv_destroy_mkey;
    "MLX5_1.10" number mlx5dv_dr_action_destroy;
    "MLX5_1.10" number mlx5dv_dr_domain_destroy;
    "MLX5_1.10" number mlx5dv_dr_domain_sync;
    "MLX5_1.10" number mlx5dv_dr_matcher_destroy;
    "MLX5_1.10" number mlx5dv_dr_rule_destroy;
    "MLX5_1.10" number mlx5dv_dr_table_destroy;
    "MLX5_1.10" pointer mlx5dv_alloc_dm;
    "MLX5_1.10" pointer mlx5dv_create_mkey;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_dest_ibv_qp;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_dest_table;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_dest_vport;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_drop;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_flow_counter;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_modify_header;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_packet_reformat;
    "MLX5_1.10" pointer mlx5dv_dr_action_create_tag;
    "MLX5_1.10" pointer mlx5dv_dr_domain_create;
    "MLX5_1.10" pointer mlx5dv_dr_matcher_create;
    "MLX5_1.10" pointer mlx5dv_dr_rule_create;
    "MLX5_1.10" pointer mlx5dv_dr_table_create;
    "MLX5_1.10" pointer mlx5dv_qp_ex_from_ibv_qp_ex;
    "MLX5_1.11" count mlx5dv_devx_get_event;
    "MLX5_1.11" nothing mlx5dv_devx_destroy_event_channel;
    "MLX5_1.11" number mlx5dv_devx_subscribe_devx_event;
    "MLX5_1.11" number mlx5dv_devx_subscribe_devx_event_fd;
    "MLX5_1.11" pointer mlx5dv_devx_create_event_channel;
    "MLX5_1.12" nothing mlx5dv_free_var;
    "MLX5_1.12" number mlx5dv_dr_action_modify_flow_meter;
    "MLX5_1.12" number mlx5dv_dump_dr_domain;
    "MLX5_1.12" number mlx5dv_dump_dr_matcher;
    "MLX5_1.12" number mlx5dv_dump_dr_rule;
    "MLX5_1.12" number mlx5dv_dump_dr_table;
    "MLX5_1.12" pointer mlx5dv_alloc_var;
    "MLX5_1.12" pointer mlx5dv_dr_action_create_flow_meter;
    "MLX5_1.13" nothing mlx5dv_pp_free;
    "MLX5_1.13" pointer mlx5dv_pp_alloc;
    "MLX5_1.14" nothing mlx5dv_dr_domain_set_reclaim_device_memory;
    "MLX5_1.14" number mlx5dv_modify_qp_lag_port;
    "MLX5_1.14" number mlx5dv_query_qp_lag_port;
    "MLX5_1.14" pointer mlx5dv_dr_action_create_default_miss;
    "MLX5_1.15" pointer mlx5dv_dr_action_create_dest_devx_tir;
    "MLX5_1.16" pointer mlx5dv_dr_action_create_dest_array;
    "MLX5_1.16" pointer mlx5dv_dr_action_create_flow_sampler;
    "MLX5_1.17" number mlx5dv_dr_action_modify_aso;
    "MLX5_1.17" number mlx5dv_modify_qp_sched_elem;
    "MLX5_1.17" number mlx5dv_modify_qp_udp_sport;
    "MLX5_1.17" number mlx5dv_sched_leaf_destroy;
    "MLX5_1.17" number mlx5dv_sched_leaf_modify;
    "MLX5_1.17" number mlx5dv_sched_node_destroy;
    "MLX5_1.17" number mlx5dv_sched_node_modify;
    "MLX5_1.17" pointer mlx5dv_dr_action_create_aso;
    "MLX5_1.17" pointer mlx5dv_dr_action_create_pop_vlan;
    "MLX5_1.17" pointer mlx5dv_dr_action_create_push_vlan;
    "MLX5_1.17" pointer mlx5dv_sched_leaf_create;
    "MLX5_1.17" pointer mlx5dv_sched_node_create;
    "MLX5_1.18" number mlx5dv_reserved_qpn_alloc;
    "MLX5_1.18" number mlx5dv_reserved_qpn_dealloc;
    "MLX5_1.19" number _mlx5dv_query_port;
    "MLX5_1.19" pointer mlx5dv_devx_umem_reg_ex;
    "MLX5_1.19" pointer mlx5dv_dm_map_op_addr;
    "MLX5_1.20" nothing mlx5dv_dr_domain_allow_duplicate_rules;
    "MLX5_1.20" number _mlx5dv_mkey_check;
    "MLX5_1.20" number mlx5dv_map_ah_to_qp;
    "MLX5_1.20" number mlx5dv_qp_cancel_posted_send_wrs;
    "MLX5_1.21" number mlx5dv_crypto_login;
    "MLX5_1.21" number mlx5dv_crypto_login_query_state;
    "MLX5_1.21" number mlx5dv_crypto_logout;
    "MLX5_1.21" number mlx5dv_dci_stream_id_reset;
    "MLX5_1.21" number mlx5dv_dek_destroy;
    "MLX5_1.21" number mlx5dv_dek_query;
    "MLX5_1.21" number mlx5dv_dr_matcher_set_layout;
    "MLX5_1.21" number mlx5dv_vfio_get_events_fd;
    "MLX5_1.21" number mlx5dv_vfio_process_events;
    "MLX5_1.21" pointer mlx5dv_dek_create;
    "MLX5_1.21" pointer mlx5dv_dr_action_create_dest_ib_port;
    "MLX5_1.21" pointer mlx5dv_get_vfio_device_list;
    "MLX5_1.22" number mlx5dv_dr_aso_other_domain_link;
    "MLX5_1.22" number mlx5dv_dr_aso_other_domain_unlink;
    "MLX5_1.23" number mlx5dv_devx_destroy_eq;
    "MLX5_1.23" number mlx5dv_devx_free_msi_vector;
    "MLX5_1.23" pointer mlx5dv_devx_alloc_msi_vector;
    "MLX5_1.23" pointer mlx5dv_devx_create_eq;
    "MLX5_1.24" number mlx5dv_crypto_login_destroy;
    "MLX5_1.24" number mlx5dv_crypto_login_query;
    "MLX5_1.24" number mlx5dv_destroy_steering_anchor;
    "MLX5_1.24" pointer mlx5dv_create_steering_anchor;
    "MLX5_1.24" pointer mlx5dv_crypto_login_create;
    "MLX5_1.24" pointer mlx5dv_dr_action_create_dest_root_table;
    "EFA_1.0" pointer efadv_create_driver_qp;
    "EFA_1.1" number efadv_query_ah;
    "EFA_1.1" number efadv_query_device;
    "EFA_1.1" pointer efadv_create_qp_ex;
    "EFA_1.2" pointer efadv_cq_from_ibv_cq_ex;
    "EFA_1.2" pointer efadv_create_cq;
    "EFA_1.3" number efadv_query_mr;
    "EFA_1.4" number efadv_query_cq;
    "EFA_1.4" number efadv_query_qp_wqs;
    "EFA_1.5" count efadv_get_max_rq_depth;
    "EFA_1.5" count efadv_get_max_sq_depth;
    "EFA_1.6" pointer efadv_qp_from_ibv_qp_ex;
    "EFA_1.7" pointer efadv_create_comp_cntr;
    "HNS_1.0" no hnsdv_is_supported;
    "HNS_1.0" number hnsdv_query_device;
    "HNS_1.0" pointer hnsdv_create_qp;
    "IONIC_1.0" no ionic_dv_ctx_get_udma_count;
    "IONIC_1.0" no ionic_dv_ctx_get_udma_mask;
    "IONIC_1.0" no ionic_dv_pd_get_udma_mask;
    "IONIC_1.0" number ionic_dv_pd_set_rqcmb;
    "IONIC_1.0" number ionic_dv_pd_set_sqcmb;
    "IONIC_1.0" number ionic_dv_pd_set_udma_mask;
    "MANA_1.0" number manadv_init_obj;
    "MANA_1.0" number manadv_set_context_attr;
    "MLX4_1.0" number mlx4dv_init_obj;
    "MLX4_1.0" number mlx4dv_query_device;
    "MLX4_1.0" number mlx4dv_set_context_attr;
    "MLX4_1.0" pointer mlx4dv_create_qp;
    "MLX5_1.25" number mlx5dv_get_data_direct_sysfs_path;
    "MLX5_1.25" pointer mlx5dv_reg_dmabuf_mr;
    "MLX5_1.25.1" pointer __mlx5dv_create_flow;
    "MLX5_1.26" count mlx5dv_devx_uar_export_dmabuf_fd;
    "MLX5_1.27" number _mlx5dv_get_export_sizes;
    "MLX5_1.27" number mlx5dv_devx_obj_export;
    "MLX5_1.27" pointer mlx5dv_devx_obj_import;
    "MLX5_1.27" number mlx5dv_devx_obj_unimport;
    "MLX5_1.27" number mlx5dv_devx_umem_export;
    "MLX5_1.27" pointer mlx5dv_devx_umem_import;
    "MLX5_1.27" number mlx5dv_devx_umem_unimport;
    "MLX5_1.27" number mlx5dv_var_export;
    "MLX5_1.27" pointer mlx5dv_var_import;
    "MLX5_1.27" number mlx5dv_var_unimport;
}
