//! The list of all checks, and its two uses: a table, and a test for each check.

use crate::Bed;

/// A check's name, `topic::check`, and the check.
pub(crate) type Check = (&'static str, fn(&dyn Bed));

/// Hands the list of all checks to another macro, behind that one's own arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_check {
    ([$($then:tt)+] $($args:tt)*) => {
        $($then)+! {
            $($args)*;
            send_recv: rc_delivers_messages_of_every_size,
                rc_delivers_long_messages,
                rc_works_with_every_path_mtu,
                rc_delivers_immediate_data,
                rc_inline_data_is_copied_at_the_post,
                rc_gathers_and_scatters_lists_in_order,
                rc_lists_may_be_inline_in_part,
                rc_unsignalled_sends_yield_no_completion,
                rc_slots_of_unsignalled_sends_come_back,
                rc_messages_arrive_in_the_order_of_posting,
                rc_messages_flow_both_ways_at_once,
                rc_solicited_flag_reaches_the_receiver,
                rc_send_with_invalidate_takes_the_key_back,
                rc_invalidate_needs_the_right,
                rc_packet_sequence_numbers_wrap,
                rc_nothing_is_lost_or_early_where_sequence_numbers_wrap,
                rc_connects_queue_pairs_of_one_adapter,
                rc_connects_a_queue_pair_to_itself,
                queue_pairs_of_all_services_live_side_by_side;
            rdma: rc_write_places_bytes_at_any_offset_and_length,
                rc_read_fetches_bytes_at_any_offset_and_length,
                what_is_done_within_a_call_is_there_behind_it_and_has_no_completion,
                rc_write_with_immediate_consumes_a_receive,
                rc_write_with_immediate_needs_no_receive_memory,
                rc_zero_length_needs_no_key,
                rc_moves_four_mebibytes,
                rc_read_and_write_take_lists,
                rc_writes_inline,
                rc_more_reads_than_may_be_outstanding_all_complete_in_order,
                rc_reads_beyond_what_the_responder_takes_are_refused,
                rc_operations_of_one_queue_pair_take_effect_in_order,
                rc_fence_waits_for_earlier_reads,
                rc_regions_may_be_named_by_other_addresses,
                rc_both_sides_write_and_read_one_window,
                rc_a_region_of_no_remote_rights_serves_locally;
            foreign: rc_foreign_memory_is_sent_at_every_length,
                rc_foreign_memory_is_written_at_every_length,
                rc_foreign_memory_is_read_at_every_length,
                rc_long_operations_on_foreign_memory_keep_their_order,
                rc_long_operations_on_foreign_memory_need_its_key,
                rc_foreign_memory_of_which_peers_may_not_write_serves_locally,
                rc_read_only_memory_is_sent_and_read;
            atomics: compare_swap_swaps_only_on_a_match,
                fetch_add_returns_the_old_value_and_wraps,
                atomics_complete_in_order_beyond_the_outstanding_limit,
                a_misaligned_atomic_is_an_invalid_request,
                an_atomic_takes_eight_bytes_of_memory,
                adds_of_several_queue_pairs_sum_up_exactly,
                compare_swap_elects_one_winner,
                adds_mix_with_those_of_the_cpu;
            keys: an_unknown_key_is_refused,
                the_owner_learns_why_a_key_was_refused,
                a_completion_says_why_its_local_key_was_refused,
                a_key_taken_back_is_refused,
                a_key_of_another_protection_domain_is_refused,
                an_access_outside_the_region_by_one_is_refused,
                a_region_of_odd_length_ends_at_its_last_byte,
                a_long_write_out_of_range_writes_nothing,
                every_remote_operation_needs_its_right,
                the_queue_pair_has_to_allow_remote_operations_too,
                a_local_entry_has_to_be_covered_by_its_key,
                memory_that_the_adapter_fills_needs_local_write,
                a_receive_entry_has_to_be_covered_by_its_key,
                after_deregistration_no_write_lands,
                after_deregistration_no_receive_or_read_lands,
                keys_are_not_used_again_soon_and_differ,
                a_region_handle_is_good_once,
                regions_may_overlap_and_die_one_by_one;
            qp_states: illegal_transitions_are_refused_and_change_nothing,
                a_transition_names_the_attributes_that_are_missing,
                a_transition_refuses_attributes_that_it_cannot_set,
                attributes_out_of_range_are_refused,
                query_returns_what_was_set,
                each_state_takes_the_requests_it_should,
                receives_posted_in_init_take_messages_later,
                a_queue_pair_in_rtr_answers_and_tells_that_the_peer_connected,
                a_queue_pair_in_init_hears_nothing,
                a_drained_send_queue_holds_requests_until_it_may_send_again,
                draining_waits_for_what_is_under_way,
                draining_raises_no_event_unasked,
                the_error_state_flushes_what_is_queued_and_what_comes,
                reset_forgets_requests_and_the_queue_pair_works_again,
                a_queue_takes_its_whole_depth_again_after_reset,
                queue_pairs_are_destroyed_in_every_state,
                access_rights_can_change_while_connected;
            errors: the_failing_request_tells_why_and_later_ones_are_flushed,
                what_follows_a_failed_request_is_not_carried_out,
                a_receive_that_is_too_small_fails_on_both_sides,
                no_receive_within_the_retries_is_an_error,
                a_receive_posted_late_takes_the_message,
                a_silent_peer_is_told_within_the_time_of_the_settings,
                timeout_zero_waits_for_ever,
                a_destroyed_peer_does_not_answer,
                a_peer_in_error_does_not_answer,
                an_error_of_one_queue_pair_leaves_others_alone,
                a_connection_to_the_wrong_service_or_number_is_not_answered,
                packets_of_a_stranger_are_dropped,
                a_partition_key_mismatch_is_not_answered;
            srq: a_shared_receive_queue_serves_all_its_queue_pairs,
                every_shared_request_is_taken_once,
                the_limit_event_is_raised_once,
                an_empty_shared_queue_is_not_ready,
                an_empty_shared_queue_fails_senders_without_retries,
                an_error_leaves_shared_requests_to_the_others,
                a_destroyed_queue_pair_names_the_shared_requests_that_it_took,
                a_reset_queue_pair_flushes_the_shared_requests_that_it_took,
                a_message_too_long_fails_only_the_request_it_took,
                a_shared_queue_takes_its_depth_and_no_more,
                a_shared_queue_in_use_is_not_destroyed,
                limits_of_shared_queues_are_enforced;
            cq: an_overrun_is_an_event_and_puts_queue_pairs_in_error,
                a_completion_queue_holds_its_depth,
                one_arming_notifies_once,
                arming_for_solicited_passes_over_others,
                arming_for_any_overrides_arming_for_solicited,
                the_descriptor_is_readable_when_a_completion_waits,
                a_blocked_waiter_misses_nothing,
                a_queue_in_use_is_not_destroyed,
                completions_of_a_destroyed_queue_pair_are_not_returned,
                completions_of_queue_pairs_that_are_gone_hold_no_entries,
                a_queue_may_serve_several_queue_pairs_and_both_directions,
                depths_out_of_range_are_refused,
                a_stale_queue_is_refused_to_queue_pairs,
                events_wake_who_waits_for_them,
                a_waker_may_poll_and_arm_again;
            changes: a_completion_queue_that_is_resized_keeps_what_waits_in_it,
                notifications_that_are_held_back_come_by_count_or_time,
                a_queue_without_times_has_none,
                a_shared_queue_that_is_resized_keeps_its_requests,
                a_region_that_is_changed_obeys_its_new_rights_and_domain;
            windows: a_window_of_type_one_is_bound_by_a_call_and_used_through_all_queue_pairs,
                a_window_grants_its_range_and_rights_and_no_more,
                a_window_of_type_two_is_bound_by_a_request_to_one_queue_pair,
                a_bind_or_an_invalidate_that_breaks_a_rule_fails_its_queue_pair,
                a_peer_takes_back_the_window_that_it_was_lent,
                a_region_with_windows_is_neither_deregistered_nor_changed,
                windows_come_and_go_while_peers_read_and_write,
                windows_of_unreliable_connections_and_none_of_datagrams;
            xrc: each_message_goes_to_the_queue_that_it_names,
                one_queue_serves_the_targets_of_its_domain,
                rdma_needs_no_receive_request_and_takes_the_keys_of_the_queue_it_names,
                a_queue_that_is_gone_or_of_another_domain_is_refused,
                an_empty_queue_is_not_ready_whatever_the_others_have,
                a_domain_its_queues_and_targets_go_in_order,
                a_target_that_goes_gives_its_request_back_and_keeps_its_completions,
                a_target_that_goes_in_the_middle_of_a_message_gives_its_request_back,
                a_target_in_error_flushes_what_it_holds_and_leaves_the_queue_to_others,
                a_queue_that_goes_takes_its_completions_along,
                a_queue_that_lost_a_completion_is_refused_to_all_targets,
                a_queue_that_goes_in_the_middle_of_a_message_ends_its_target,
                an_initiator_names_a_queue_and_receives_nothing;
            rd: each_message_goes_to_the_queue_pair_that_it_names,
                both_ends_of_a_context_send_at_once,
                rdma_takes_the_keys_of_the_queue_pair_that_it_names,
                a_request_that_fails_stops_its_queue_pair_alone,
                a_list_whose_key_does_not_hold_fails_at_its_sender,
                a_request_needs_a_context_of_its_domain_that_is_connected,
                a_queue_pair_receives_in_the_states_of_the_standard,
                a_receiver_that_is_not_ready_is_waited_for,
                a_receiver_that_stays_unready_stops_the_sender_alone,
                a_queue_pair_that_goes_leaves_the_context_to_others,
                a_receiver_that_goes_in_the_middle_of_a_message_is_refused,
                a_context_whose_peer_is_gone_fails_its_queue_pairs,
                a_context_that_goes_ends_what_it_has,
                a_drained_context_starts_nothing_and_goes_on_later,
                the_rights_of_a_context_are_those_of_its_peer,
                requests_of_rd_name_their_destination_and_no_others_do,
                a_domain_its_queue_pairs_and_contexts_go_in_order;
            multicast: each_member_gets_one_copy_and_no_other_gets_any,
                messages_to_a_group_loop_back_to_members_on_the_senders_adapter,
                a_member_that_leaves_gets_no_more,
                a_member_with_another_queue_key_drops_its_copy,
                a_member_without_a_receive_drops_its_copy_and_counts,
                a_train_to_a_group_arrives_whole_and_in_order,
                memberships_that_break_a_rule_are_refused,
                groups_and_members_up_to_the_limits_and_no_more,
                a_message_to_a_group_wakes_a_member_that_sleeps;
            placement: an_atomic_write_stores_its_word_and_nothing_else,
                no_reader_sees_a_part_of_an_atomic_write,
                a_flush_completes_behind_the_writes_before_it,
                a_flush_takes_each_range_that_its_key_has,
                what_breaks_their_rules_is_an_invalid_request,
                a_key_that_does_not_allow_them_is_refused_and_its_owner_learns_why,
                the_queue_pair_has_to_allow_them_too,
                a_right_to_flush_is_given_where_the_device_has_it,
                a_window_gives_them_its_range_and_rights;
            uc: uc_delivers_messages_of_every_size,
                uc_writes_with_and_without_immediate,
                uc_drops_what_nobody_receives_and_goes_on,
                uc_keeps_order,
                uc_offers_no_reads_and_no_atomics,
                uc_refuses_a_wrong_key_without_a_word,
                uc_does_not_deliver_into_a_receive_that_is_too_small,
                uc_send_errors_stop_the_send_queue_only,
                uc_packet_sequence_numbers_wrap;
            ud: ud_datagrams_begin_with_forty_bytes_of_grh,
                ud_datagrams_by_lid_alone_come_without_grh_behind_its_room,
                ud_scatters_the_grh_like_any_byte,
                ud_needs_the_queue_key,
                ud_carries_one_packet_at_most,
                ud_drops_what_nobody_receives,
                ud_does_not_deliver_into_a_receive_that_is_too_small,
                ud_to_nobody_succeeds,
                ud_offers_sends_only,
                a_destination_is_for_datagrams_and_only_for_them,
                ud_send_errors_stop_the_send_queue_only,
                ud_refuses_a_destroyed_address_handle,
                ud_refuses_an_address_handle_of_another_domain,
                ud_one_queue_pair_hears_many,
                ud_sends_inline_and_to_itself,
                each_index_of_the_gid_table_names_an_address_that_datagrams_reach,
                the_general_services_queue_pair_has_number_one_and_hears_its_key;
            limits: capabilities_beyond_the_limits_are_refused,
                a_queue_takes_its_depth_and_no_more,
                a_refused_request_leaves_those_before_it_taken,
                a_queue_tells_beforehand_what_it_takes,
                too_much_inline_data_is_refused,
                a_message_beyond_two_to_the_31_is_refused,
                a_domain_in_use_is_not_freed,
                regions_of_a_bad_length_are_refused,
                an_unreachable_address_is_refused,
                objects_come_and_go_without_end,
                many_queue_pairs_are_told_apart,
                memory_of_the_device_is_zeroed;
            shown: the_gid_table_holds_the_ports_gid_and_fits_its_link,
                each_index_of_the_gid_table_names_an_address_that_connections_reach,
                the_gid_table_is_asked_by_index_type_and_interface,
                the_ports_counters_count_what_its_link_carries,
                requests_are_counted_by_operation,
                what_a_queue_pair_did_is_counted_for_it_alone_and_stays_in_the_sum,
                queue_pairs_are_listed_with_their_peers,
                completions_have_times_of_the_devices_clock,
                an_event_names_the_object_that_it_is_about;
            progress: one_sided_operations_need_nothing_of_the_targets_program,
                a_posted_write_lands_though_nobody_polls,
                a_program_that_spins_on_its_memory_turns_the_device,
                a_retry_runs_out_while_the_program_sleeps_on_the_descriptor,
                a_blocked_target_serves_its_peers,
                what_is_posted_while_another_thread_sleeps_is_retried,
                a_turn_by_another_thread_takes_no_wakeup_away,
                polls_between_arming_and_sleeping_leave_the_network_told,
                a_program_may_sleep_on_the_devices_descriptor,
                polls_beside_a_sleep_on_the_devices_descriptor_take_no_wakeup_away,
                turning_an_idle_device_is_harmless;
            portals: an_engine_answers_while_the_target_program_computes,
                an_engine_is_run_at_its_deadline;
            concurrency: four_threads_each_with_a_connection_of_their_own,
                four_threads_on_one_adapter,
                four_adapters_in_four_threads,
                one_thread_posts_while_another_polls,
                four_posting_threads_share_one_completion_queue,
                objects_come_and_go_beside_traffic,
                queue_pairs_are_destroyed_in_full_flight;
        }
    };
}

/// Makes a module with one `#[test]` for each check, all on the same bed.
///
/// The bed is an expression of a type that is a [`Bed`](crate::Bed), evaluated once a test. Attributes
/// in front of the name go to the module, so that `#[cfg(...)]` can leave a bed out.
#[macro_export]
macro_rules! suite {
    ($name:ident, $bed:expr $(, needs = $why:literal)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            /// The tests differ in a name alone: there are thousands, and each is compiled.
            fn run_here(check: &str) {
                $crate::run(&$bed, check);
            }
            $crate::__for_each_check! { [$crate::__tests] [$(#[ignore = $why])?] }
        }
    };
}

/// A test for each check, which `run_here` of the module runs.
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($ignored:tt; $($topic:ident: $($check:ident),+;)+) => {
        $(
            mod $topic {
                $(
                    $crate::__test! {
                        $ignored fn $check() {
                            super::run_here(concat!(stringify!($topic), "::", stringify!($check)));
                        }
                    }
                )+
            }
        )+
    };
}

/// Defines `suite!` for the suite of a layer: a module with one `#[test]` for each check, all on the same bed.
///
/// A check is a function `fn(&Bed)` of a module of the test program, which is listed as `module { check, }`, behind a
/// `$`. `suite!(name, bed)` evaluates the bed once a test; `suite!(name, bed, needs = "reason")` ignores the tests.
#[macro_export]
#[allow(clippy::crate_in_macro_def)] // the checks are the test program's
macro_rules! checks {
    ($d:tt $($module:ident { $($check:ident,)* })*) => {
        macro_rules! suite {
            ($d name:ident, $d bed:expr $d(, needs = $d why:literal)?) => {
                needing! { [$d(#[ignore = $d why])?] $d name, $d bed }
            };
        }
        macro_rules! needing {
            ($d ignored:tt $d name:ident, $d bed:expr) => {
                mod $d name {
                    $(mod $module {
                        #[allow(unused_imports)] // a bed may be made of names of the crate's root
                        use crate::*;
                        $($crate::__test! { $d ignored fn $check() { crate::$module::$check(&$d bed); } })*
                    })*
                }
            };
        }
    };
}

/// A test with the attributes in brackets.
#[doc(hidden)]
#[macro_export]
macro_rules! __test {
    ([$($ignored:tt)*] $($test:tt)+) => {
        $($ignored)*
        #[test]
        $($test)+
    };
}

macro_rules! table {
    (all; $($topic:ident: $($check:ident),+;)+) => {
        &[$($((
            concat!(stringify!($topic), "::", stringify!($check)),
            crate::checks::$topic::$check as fn(&dyn Bed),
        )),+),+]
    };
}

/// Every check of the suite.
pub(crate) static CHECKS: &[Check] = crate::__for_each_check! { [table] all };
