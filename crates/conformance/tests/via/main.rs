//! The VI Architecture on the software adapter: the same tests on each fabric, with adapters that the program's calls
//! move and with adapters that have a thread.

mod bed;
#[allow(dead_code)] // the suite of devices has the others of its beds
#[path = "../softhca/beds.rs"]
mod beds;
mod connect;
mod cq;
mod errors;
mod memory;
mod notify;
mod peer;
mod races;
mod rdma;
mod send;
mod states;

use bed::Bed;
use beds::Net;
use softhca::Progress;

hca_conformance::checks! { $
    send {
        messages_of_every_length_arrive_on_every_level,
        a_message_is_gathered_and_scattered_in_the_order_of_its_segments,
        immediate_data_arrives,
        the_status_word_is_in_memory,
        a_descriptor_stays_on_its_queue_until_it_is_taken_off,
        a_post_takes_a_chain_in_its_order,
        a_chain_is_posted_as_a_whole_or_not_at_all,
        a_descriptor_that_is_posted_twice_completes_twice,
        a_queue_takes_as_many_descriptors_as_the_attributes_say,
        all_of_several_sends_end_in_their_order,
        a_thread_that_waits_learns_of_the_last_of_several_sends,
        a_call_that_was_asked_for_ahead_comes_for_a_send_behind_many,
        a_full_send_queue_empties,
        a_descriptor_has_as_many_segments_as_the_attributes_say,
        waits_end_with_their_time,
        two_threads_wait_for_the_two_queues_of_a_vi,
    }
    rdma {
        an_rdma_write_needs_no_descriptor,
        an_rdma_write_with_immediate_data_consumes_a_receive_descriptor,
        an_rdma_read_fetches,
        an_unreliable_vi_writes_and_does_not_read,
        reliable_reception_completes_when_the_data_is_in_the_targets_memory,
        rdma_that_the_memory_does_not_allow_is_refused,
        rdma_that_the_vi_does_not_allow_is_refused,
        rdma_into_memory_of_another_tag_is_refused,
        the_owner_of_refused_memory_is_told,
    }
    errors {
        a_message_without_a_receive_descriptor_ends_a_reliable_connection,
        a_message_without_a_receive_descriptor_is_lost_on_an_unreliable_vi,
        a_message_that_is_too_long_is_a_length_error,
        a_message_that_an_unreliable_vi_can_not_take_is_lost,
        a_misaligned_descriptor_is_refused,
        a_descriptor_outside_of_its_memory_is_refused,
        a_descriptor_of_another_tag_is_refused,
        segments_outside_of_registered_memory_are_protection_errors,
        segments_of_another_tag_are_protection_errors,
        descriptors_of_a_wrong_form_are_format_errors,
        a_message_beyond_the_maximum_transfer_size_is_a_length_error,
        a_failed_descriptor_completes_in_its_turn_and_flushes_those_behind_it,
        a_failed_descriptor_of_an_unreliable_vi_leaves_those_behind_it,
        a_descriptor_that_ends_with_its_post_wakes_who_waits,
        a_failed_receive_of_an_idle_vi_fails_alone,
    }
    states {
        an_idle_vi_takes_receives_and_no_sends,
        a_disconnect_flushes_and_makes_the_vi_idle,
        what_was_delivered_before_a_disconnect_is_not_flushed,
        a_vi_is_connected_again_and_again,
        the_end_of_the_peer_is_an_error_that_is_told_once,
        a_vi_with_descriptors_is_not_destroyed,
        a_vi_that_is_dropped_with_descriptors_lets_their_memory_go,
        attributes_of_an_idle_vi_are_changed,
        attributes_that_the_adapter_lacks_are_refused,
        an_adapter_in_use_is_not_closed,
        a_send_beside_a_disconnect_leaves_no_trace,
    }
    connect {
        a_client_finds_the_server_by_its_discriminator,
        a_vi_knows_whether_its_peer_takes_bytes_from_its_memory,
        nobody_who_waits_is_no_match,
        a_rejection_is_told,
        a_server_that_does_not_answer_is_a_timeout,
        so_many_clients_wait_for_a_server,
        other_attributes_are_refused_on_both_sides,
        of_two_listeners_with_one_discriminator_the_earlier_gets_the_requests,
        a_vi_that_was_rejected_keeps_its_receive_descriptors,
        many_vis_connect_at_once,
    }
    peer {
        peers_connect_whichever_asks_first,
        a_peer_that_does_not_ask_is_a_timeout,
        a_peer_of_other_attributes_is_refused,
        a_client_is_no_peer,
        a_peer_request_is_taken_back_by_a_disconnect,
        a_peer_that_gives_up_while_it_is_accepted_may_ask_again,
    }
    cq {
        a_completion_queue_names_the_queues_in_the_order_of_completions,
        an_attached_queue_is_not_waited_for,
        the_ends_of_writes_are_told_unasked,
        vis_that_threads_create_at_once_have_room_in_their_completion_queue,
        a_completion_queue_that_is_full_loses_entries_and_says_so,
        a_completion_queue_in_use_is_not_destroyed,
        a_completion_queue_wakes_its_waiter,
        several_vis_share_a_completion_queue,
    }
    notify {
        a_receive_calls_once,
        a_send_calls_once,
        a_completion_queue_calls_once,
        calls_are_made_in_the_order_in_which_they_were_asked_for,
        a_callback_may_ask_for_the_next_call,
        a_callback_that_is_never_called_may_use_the_adapter_as_it_goes,
        an_error_that_the_thread_of_callbacks_finds_may_ask_for_a_call,
        no_callback_outlives_its_vi_or_queue,
        a_callback_may_destroy_its_vi,
        a_callback_that_panics_is_the_end_of_no_other,
        an_error_handler_that_panics_leaves_the_adapter_its_thread,
    }
    memory {
        memory_with_posted_descriptors_is_not_deregistered,
        a_refused_deregistration_disturbs_no_post,
        deregistered_memory_is_not_reached,
        a_receive_whose_memory_has_gone_ends_the_connection,
        attributes_of_memory_are_changed,
        a_tag_in_use_is_not_destroyed,
        a_tag_is_free_at_once_when_its_vis_are_gone,
        a_tag_of_another_adapter_is_refused,
    }
}

suite!(loopback_inline, Bed::new(Net::Loopback, Progress::Inline));
suite!(loopback_thread, Bed::new(Net::Loopback, Progress::Adaptive));
suite!(udp_inline, Bed::new(Net::Udp, Progress::Inline));
suite!(udp_thread, Bed::new(Net::Udp, Progress::Adaptive));
suite!(shm_inline, Bed::new(Net::Shm, Progress::Inline));
suite!(shm_thread, Bed::new(Net::Shm, Progress::Adaptive));
suite!(auto_thread, Bed::new(Net::Auto, Progress::Adaptive));
suite!(auto_shared_thread, Bed::new(Net::AutoShared, Progress::Adaptive));
