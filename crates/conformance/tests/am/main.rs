//! Active Messages on the software adapter: the same tests over verbs and over VIs, on several fabrics. And the global
//! memory that stands on them.

mod bed;
#[allow(dead_code)] // the suite of devices has the others of its beds
#[path = "../softhca/beds.rs"]
mod beds;
mod failures;
mod global;
mod killed;
mod messages;
mod offload;
mod peers;
mod returned;
mod waits;

use bed::Bed;
use beds::Net;
use hca_am::Way;
use softhca::Progress;

hca_conformance::checks! { $
    messages {
        short_requests_with_every_number_of_arguments_arrive,
        medium_requests_of_every_length_arrive,
        a_medium_message_is_as_long_as_both_bundles_take,
        a_bulk_request_is_in_the_segment_when_its_handler_runs,
        replies_of_each_kind_come_back,
        medium_replies_keep_their_bytes_until_they_are_taken,
        requests_are_handled_in_their_order,
        a_request_without_a_reply_gives_its_credit_back,
        a_message_names_its_sender,
        two_endpoints_map_each_other,
        an_endpoint_maps_itself,
        one_endpoint_maps_many,
    }
    returned {
        a_request_with_another_tag_comes_back,
        a_request_for_a_handler_that_is_not_there_comes_back,
        a_reply_without_a_handler_is_rejected,
        a_reply_has_no_reply,
        calls_out_of_range_are_refused,
        a_translation_table_has_the_length_that_was_asked_for,
        a_handler_that_panics_returns_its_request,
        a_panic_within_a_map_leaves_no_link,
        an_error_handler_that_panics_leaves_the_link,
        a_handler_may_only_reply,
        a_segment_that_peers_know_is_not_changed,
        an_index_is_unmapped_and_mapped_again,
        a_freed_endpoint_is_gone,
        a_message_to_a_freed_endpoint_does_not_reach_the_next_one,
    }
    failures {
        a_request_beyond_the_credits_is_not_sent,
        credits_exhausted_both_ways_are_no_deadlock,
        a_handler_that_blocks_holds_its_own_bundle_only,
        a_peer_that_leaves_is_told,
        an_endpoint_with_a_lost_mapping_stays_in_its_bundle,
        nobody_there_is_an_error,
        links_have_a_limit,
    }
    waits {
        a_wait_ends_with_a_message,
        a_wait_ends_with_its_time,
        a_wait_needs_a_mask,
        times_without_an_end_are_times,
        several_threads_use_a_parallel_bundle,
    }
}

suite!(verbs_shm_inline, Bed::new(Net::Shm, Progress::Inline, Way::Verbs));
suite!(via_shm_inline, Bed::new(Net::Shm, Progress::Inline, Way::Via));
suite!(verbs_udp_inline, Bed::new(Net::Udp, Progress::Inline, Way::Verbs));
suite!(via_udp_inline, Bed::new(Net::Udp, Progress::Inline, Way::Via), needs = "for nightly");
suite!(verbs_udp_thread, Bed::new(Net::Udp, Progress::Adaptive, Way::Verbs), needs = "for nightly");
suite!(via_udp_thread, Bed::new(Net::Udp, Progress::Adaptive, Way::Via), needs = "for nightly");
suite!(verbs_shm_thread, Bed::new(Net::Shm, Progress::Adaptive, Way::Verbs), needs = "for nightly");
suite!(via_shm_thread, Bed::new(Net::Shm, Progress::Adaptive, Way::Via), needs = "for nightly");
suite!(verbs_auto_thread, Bed::new(Net::Auto, Progress::Adaptive, Way::Verbs), needs = "for nightly");
suite!(
    via_auto_shared_thread,
    Bed::new(Net::AutoShared, Progress::Adaptive, Way::Via),
    needs = "for nightly"
);
