//! Portals 4.3 on the software adapter: the same tests on each fabric, matched by the program's calls and by the
//! adapter.

mod atomics;
mod bed;
#[allow(dead_code)] // the suite of devices has the others of its beds
#[path = "../softhca/beds.rs"]
mod beds;
mod ct;
mod eq;
mod get;
mod ground;
mod many;
mod md;
mod me;
mod ni;
mod pt;
mod put;
#[path = "../softhca/raw.rs"]
mod raw;
mod triggered;
mod waits;

use bed::Bed;
use beds::Net;
use softhca::Progress;

hca_conformance::checks! { $
    ni {
        all_four_kinds_work_at_once_and_apart,
        an_interface_that_is_open_is_opened_again_as_the_same,
        many_threads_open_and_close_one_interface,
        options_are_one_of_each_pair,
        a_process_number_is_the_nodes,
        a_process_is_known_by_numbers_and_by_rank,
        a_map_is_set_once,
        a_process_that_is_not_on_the_map_has_no_rank,
        targets_that_nobody_knows_are_refused,
        sources_of_the_other_kind_of_address_are_refused,
        limits_are_granted_as_far_as_they_go,
        each_limit_is_reached_and_said,
        handles_of_other_interfaces_are_refused,
        options_without_a_name_are_refused,
        entries_of_the_other_kind_are_refused,
        an_interface_that_is_closed_takes_nothing,
        a_target_that_is_gone_is_undeliverable,
        waits_sleep_after_a_peer_was_lost,
        abort_ends_each_kind_of_wait,
        abort_wakes_who_sleeps,
        bundles_and_atomic_sync_lose_nothing,
        status_registers_count_apart,
        a_directory_that_can_t_be_asked_is_a_failure,
        errors_name_the_call_the_argument_and_the_code,
        the_adapter_matches_where_it_is_asked_to,
        the_adapter_places_messages_while_the_target_calls_nothing,
        memory_of_another_node_is_refused,
        nodes_that_are_opened_together_know_each_other,
        a_node_of_other_eager_bytes_is_a_stranger,
    }
    pt {
        a_portal_is_allocated_where_it_is_wanted,
        a_disabled_portal_takes_nothing_until_it_is_enabled,
        alloc_disabled_begins_disabled,
        disabling_waits_for_what_is_under_way,
        only_use_once_and_only_truncate_are_hints,
        match_unordered_keeps_the_order_all_the_same,
        flowctrl_disables_where_no_entry_matches,
        flowctrl_disables_where_headers_run_out,
        headers_that_run_out_without_flow_control_drop_the_message,
        flowctrl_disables_where_the_event_queue_is_full,
        event_flowctrl_disable_leaves_pt_disabled_out,
        a_long_message_to_a_full_portal_is_refused_whole,
    }
    md {
        event_ct_send_counts_what_was_sent,
        event_ct_reply_counts_replies,
        event_ct_ack_counts_acknowledgements,
        event_ct_bytes_counts_bytes_of_all_that_is_counted,
        event_success_disable_leaves_failures_to_be_told,
        event_send_disable_leaves_the_others_to_be_told,
        unordered_and_unreliable_change_nothing,
        volatile_bytes_may_change_as_soon_as_the_call_returns,
        a_descriptor_is_in_use_while_its_operations_are_under_way,
        memory_lives_as_long_as_a_descriptor_needs_it,
        bytes_that_a_descriptor_does_not_have_are_refused,
    }
    me {
        op_put_and_op_get_are_rights,
        use_once_uses_the_entry_up,
        match_bits_and_ignore_bits_choose_the_entry,
        match_id_chooses_the_initiator,
        manage_local_appends_messages_and_min_free_ends_it,
        may_align_begins_messages_at_multiples_of_16,
        no_truncate_passes_on_what_does_not_fit,
        is_accessible_changes_nothing,
        event_link_disable_leaves_link_out,
        event_comm_disable_leaves_operations_out,
        event_success_disable_leaves_what_ended_well_out,
        event_unlink_disable_leaves_auto_unlink_and_auto_free_out,
        event_over_disable_leaves_overflow_events_and_searches_out,
        event_ct_comm_overflow_and_bytes_count,
        a_message_to_the_overflow_list_waits_for_its_entry,
        unexpected_hdr_disable_forgets_messages,
        local_inc_uh_rlength_counts_headers_that_waited,
        search_only_leaves_what_it_finds,
        a_persistent_search_finds_all_and_fails_only_on_nothing,
        search_delete_takes_what_it_finds,
        unlink_takes_an_entry_off_its_list,
        unlinking_races_with_messages_without_harm,
        list_entries_have_the_options_of_match_entries,
        memory_that_is_only_read_here_is_sent,
        gets_and_atomics_wait_on_the_overflow_list_too,
        acknowledgements_and_replies_name_the_list,
        searching_again_and_again_finds_what_comes,
    }
    put {
        a_put_lands_with_its_events,
        puts_of_every_length_land_whole,
        a_put_of_many_reads_lands_whole,
        a_process_puts_to_itself,
        a_put_without_matching_takes_the_first_entry,
        ranks_put_to_ranks,
        a_put_that_nothing_takes_is_dropped_and_counted,
        a_put_that_the_entry_does_not_do_is_an_operation_violation,
        a_put_of_another_user_is_a_permission_violation,
        a_put_that_does_not_fit_is_truncated,
        a_put_behind_the_end_moves_nothing,
        acknowledgements_of_each_kind_are_told_and_counted,
        an_operation_completed_ack_comes_for_what_failed_too,
        vectors_are_gathered_and_scattered,
        puts_of_a_pair_match_in_their_order,
        threads_share_an_interface,
        puts_without_an_answer_that_wait_for_the_window_all_leave,
        vectors_of_as_many_pieces_as_are_granted_are_sent_and_fetched,
    }
    get {
        a_get_fetches_with_its_events,
        gets_of_every_length_fetch_all,
        a_get_of_many_reads_fetches_all,
        a_get_that_does_not_fit_is_truncated,
        a_get_that_nothing_answers_fails_by_its_reply,
        a_process_gets_from_itself,
    }
    atomics {
        every_legal_pair_is_done_by_atomic,
        every_legal_pair_is_done_by_fetch_atomic,
        every_legal_pair_is_done_by_swap,
        atomics_are_of_whole_elements_up_to_the_limit,
        an_atomic_that_is_truncated_keeps_whole_elements,
        many_initiators_sum_into_one_cell,
        elements_of_vectors_lie_across_their_pieces,
    }
    eq {
        a_full_queue_says_once_that_events_were_lost,
        waiting_on_several_says_which,
        waiting_ends_with_its_time,
        eq_wait_waits_for_the_peer,
        a_queue_that_is_freed_is_gone,
        who_waits_on_a_queue_that_is_freed_is_told,
        a_queue_beyond_what_there_is_room_for_is_refused,
    }
    ct {
        a_count_is_set_and_incremented,
        waiting_takes_successes_and_failures_together,
        waiting_on_several_says_which_and_ends_with_its_time,
        ct_wait_waits_for_the_peer,
    }
    waits {
        a_future_yields_the_event_that_its_task_is_woken_for,
        a_future_that_is_dropped_takes_no_event,
        futures_of_several_queues_each_yield_their_own,
        a_future_yields_a_count_that_is_reached,
        who_awaits_is_told_of_an_abort_and_of_a_queue_that_is_freed,
        a_descriptor_is_readable_when_there_is_an_event,
        futures_and_the_descriptor_work_on_tokio,
    }
    triggered {
        a_triggered_put_leaves_when_the_count_is_reached,
        a_triggered_get_fetches_when_the_count_is_reached,
        triggered_atomics_of_each_kind_are_done,
        triggered_counts_set_off_each_other,
        thresholds_are_reached_in_their_order_whatever_the_order_of_the_calls,
        cancelled_operations_are_not_done,
        every_kind_counts_towards_max_triggered_ops,
        an_incoming_message_triggers_another,
        illegal_triggered_operations_are_refused_when_they_are_asked_for,
        a_triggered_operation_to_who_is_gone_is_undeliverable,
        a_triggered_operation_that_can_t_begin_any_more_is_undeliverable,
    }
}

suite!(loopback_host, Bed::new(Net::Loopback, Progress::Inline, false));
suite!(loopback_adapter, Bed::new(Net::Loopback, Progress::Adaptive, true));
suite!(udp_host, Bed::new(Net::Udp, Progress::Inline, false));
suite!(udp_adapter, Bed::new(Net::Udp, Progress::Adaptive, true));
suite!(shm_host, Bed::new(Net::Shm, Progress::Inline, false));
suite!(shm_adapter, Bed::new(Net::Shm, Progress::Adaptive, true));
suite!(auto_host, Bed::new(Net::Auto, Progress::Adaptive, false));
suite!(auto_adapter, Bed::new(Net::Auto, Progress::Adaptive, true));
suite!(auto_shared_adapter, Bed::new(Net::AutoShared, Progress::Adaptive, true));
suite!(uring_host, Bed::new(Net::Uring, Progress::Inline, false));
suite!(uring_adapter, Bed::new(Net::Uring, Progress::Adaptive, true));
suite!(
    raw_host,
    Bed::raw(Progress::Inline, false),
    needs = "needs root: Ethernet interfaces in network namespaces"
);
suite!(
    raw_adapter,
    Bed::raw(Progress::Adaptive, true),
    needs = "needs root: Ethernet interfaces in network namespaces"
);
