//! Portals 3.3 between two processes on two adapters, on each fabric, matched by the program's calls and by the
//! adapter.

#[allow(dead_code, reason = "the suite's own beds are more than these")]
#[path = "../softhca/beds.rs"]
mod beds;

mod acl;
mod calls;
mod codes;
mod events;
#[path = "../portals/ground.rs"]
mod ground;
mod handlers;
mod lists;
mod md;
mod pair;
mod queues;
#[path = "../softhca/raw.rs"]
mod raw;
mod receive;
mod transfer;

use beds::Net;
use ground::Ground;
use pair::Bed;

macro_rules! on_every_bed {
    ($($module:ident { $($name:ident)* })*) => {
        macro_rules! bed {
            ($bed:ident, $on:expr, $offload:expr, $ignored:tt) => {
                mod $bed {
                    use super::*;
                    $(mod $module {
                        use super::*;
                        $(hca_conformance::__test! {
                            $ignored fn $name() {
                                crate::$module::$name(&Bed { on: $on, offload: $offload });
                            }
                        })*
                    })*
                }
            };
        }
        bed!(loopback_host, Ground::Soft(Net::Loopback), false, []);
        bed!(loopback_offload, Ground::Soft(Net::Loopback), true, []);
        bed!(udp_host, Ground::Soft(Net::Udp), false, []);
        bed!(udp_offload, Ground::Soft(Net::Udp), true, []);
        bed!(shm_host, Ground::Soft(Net::Shm), false, []);
        bed!(shm_offload, Ground::Soft(Net::Shm), true, []);
        bed!(auto_host, Ground::Soft(Net::Auto), false, []);
        bed!(auto_offload, Ground::Soft(Net::Auto), true, []);
        bed!(uring_host, Ground::Soft(Net::Uring), false, []);
        bed!(uring_offload, Ground::Soft(Net::Uring), true, []);
        bed!(raw_host, Ground::Raw, false, [#[ignore = "needs root: Ethernet interfaces in network namespaces"]]);
        bed!(raw_offload, Ground::Raw, true, [#[ignore = "needs root: Ethernet interfaces in network namespaces"]]);
    };
}

on_every_bed! {
    acl {
        entry_0_admits_the_own_user_and_the_others_nobody_until_they_are_set
        ac_entry_selects_by_process_user_job_and_portal
        a_violation_is_counted_and_so_is_the_drop_at_any_portal
    }
    calls {
        ni_init_takes_the_nodes_process_number_or_is_ptl_pid_invalid_and_again_yields_the_same_interface
        ni_fini_ends_an_interface_and_its_handles
        a_put_to_a_node_whose_interface_is_closed_is_dropped
        ni_status_reads_drop_count_and_permissions_violations_and_others_are_ptl_sr_index_invalid
        ni_dist_tells_this_process_this_node_and_others_apart
        ni_handle_knows_its_own_while_they_name_something_and_others_are_ptl_handle_invalid
        get_uid_get_id_and_get_jid_tell_the_nodes
        ni_eq_dump_lists_the_queues_and_what_they_hold
        limits_are_granted_as_asked_or_as_there_can_be
        past_max_mes_and_max_mds_is_ptl_no_space_and_past_max_me_list_ptl_me_list_too_long
        max_eqs_is_the_last_queue
        max_pt_index_and_max_ac_index_are_the_largest
    }
    codes {
        ptl_me_invalid_is_an_entry_that_is_gone_or_anothers
        ptl_md_invalid_is_a_descriptor_that_is_gone_or_anothers
        ptl_eq_invalid_is_a_queue_that_is_gone_or_anothers
        ptl_pt_index_invalid_is_beyond_the_table_or_what_a_message_can_name
        ptl_ac_index_invalid_is_beyond_the_list_or_what_a_message_can_name
        ptl_md_illegal_is_a_descriptor_or_a_part_that_cannot_be
        ptl_segv_is_memory_of_another_node
        ptl_me_in_use_and_ptl_md_in_use_last_until_what_is_under_way_has_ended
        ptl_process_invalid_is_nobody_the_node_can_find
        ptl_fail_is_what_is_below_and_its_error_says_what
        nothing_has_changed_where_a_call_was_refused
    }
    events {
        put_start_and_put_end_tell_all_fields
        get_start_and_get_end_at_the_target_reply_start_and_reply_end_at_the_initiator
        get_put_start_and_get_put_end_come_at_the_target
        send_start_and_send_end_enclose_what_leaves
        ack_tells_what_became_of_a_put_and_comes_only_where_it_is_asked_for
        unlink_comes_last_and_is_linked_to_what_used_the_descriptor_up
        event_start_disable_leaves_the_start_events_out
        event_end_disable_leaves_the_end_events_out_and_keeps_acks
        both_disabled_leave_the_ack_alone
        a_start_comes_before_the_bytes_of_a_long_put_and_its_end_with_them
        the_descriptor_in_an_event_is_as_it_was_right_after_it
        sequence_counts_the_events_of_a_queue
        undeliverable_is_told_where_nobody_answers
        undeliverable_is_told_of_a_target_that_has_gone
    }
    handlers {
        a_handler_gets_each_event_in_order_and_eq_get_finds_none
        a_handler_runs_in_calls_that_look_for_other_events
        a_wait_runs_the_handlers_that_bring_about_what_it_waits_for
        a_handler_is_dropped_where_it_may_call_portals
        a_wait_that_sees_only_handled_events_still_ends_in_time
        a_handler_may_call_portals
        a_handler_that_sends_to_itself_is_called_again_and_not_within_itself
        a_handler_may_free_its_own_queue
        a_handler_hears_of_lost_events
        threads_share_an_interface_and_a_handler_is_never_in_two_of_them
        a_handler_that_panics_is_called_for_the_next_event_all_the_same
    }
    lists {
        me_attach_before_and_after_go_to_the_ends_of_the_list
        me_insert_before_and_after_go_beside_an_entry
        me_attach_any_takes_portals_without_entries_until_it_is_ptl_pt_full
        an_entry_without_a_descriptor_takes_nothing
        match_bits_decide_but_for_the_ignored_ones
        match_id_selects_by_node_process_user_and_job_each_of_them_or_any
        me_unlink_takes_the_entry_with_its_descriptor_and_says_nothing
        retain_and_unlink_of_both_objects
        md_unlink_takes_the_entry_with_it_if_that_was_to_go
        a_thousand_exact_entries_each_take_their_own
    }
    md {
        op_put_and_op_get_say_what_is_taken
        an_entry_whose_descriptor_may_not_take_a_message_passes_it_on
        offsets_are_managed_locally_unless_manage_remote
        truncate_cuts_off_and_without_it_what_is_too_long_is_rejected
        max_size_makes_it_inactive_as_soon_as_less_is_left
        max_size_counts_only_where_it_is_set_and_messages_do_not_say_where
        a_threshold_counts_what_comes_and_at_0_it_is_inactive
        a_threshold_counts_what_an_initiator_is_told_of
        an_inactive_descriptor_sends_nothing_and_says_so
        a_reply_to_an_inactive_descriptor_is_dropped_with_its_bytes
        an_attached_descriptor_can_be_sent_from
        md_update_tells_the_old_values_and_sets_the_new_ones
        md_update_keeps_whether_the_descriptor_leaves
        md_update_is_made_only_if_the_queue_is_empty
        me_md_post_makes_both_only_if_the_queue_is_empty
    }
    queues {
        eq_get_takes_the_oldest_and_none_is_ptl_eq_empty
        ptl_eq_dropped_tells_once_that_events_were_lost_oldest_first
        eq_wait_sleeps_until_an_event_comes
        eq_wait_timeout_and_eq_poll_come_back_without_an_event
        eq_poll_tells_of_which_queue_and_is_fair_to_all
        a_queue_that_is_freed_ends_the_wait_for_it
        events_for_a_queue_that_is_freed_are_lost_and_their_messages_are_not
    }
    receive {
        md_update_closes_the_race_with_messages_that_come_meanwhile
        me_md_post_closes_it_in_one_call
    }
    transfer {
        put_moves_bytes_of_every_length
        get_fetches_bytes_of_every_length
        put_and_get_reach_this_process_too
        put_region_sends_a_part
        get_region_fills_a_part
        a_get_that_is_cut_off_replies_with_what_there_is
        get_put_exchanges
        get_put_goes_up_to_max_getput_md
        iovecs_gather_and_scatter_at_every_length
        parts_of_iovecs_begin_and_end_inside_of_pieces
        an_iovec_of_as_many_pieces_as_max_md_iovecs_goes_as_a_long_message
        messages_to_no_entry_are_dropped_counted_and_told_to_who_asks
        ack_disable_keeps_acks_back
        a_thousand_puts_of_mixed_lengths_arrive_in_order
        an_offset_beyond_the_memory_takes_no_bytes_or_is_passed_on
    }
}
