//! Portals 3.3 between two processes on two adapters, on each fabric, matched by the program's calls and by the adapter.

#[allow(dead_code, reason = "the suite's own beds are more than these")]
#[path = "../softhca/beds.rs"]
mod beds;
mod events;
mod pair;
mod transfer;

use beds::Net;
use pair::Bed;

macro_rules! on_every_bed {
    ($($module:ident { $($name:ident)* })*) => {
        macro_rules! bed {
            ($bed:ident, $net:expr, $offload:expr) => {
                mod $bed {
                    use super::*;
                    $(mod $module {
                        use super::*;
                        $(#[test]
                        fn $name() {
                            crate::$module::$name(&Bed { net: $net, offload: $offload });
                        })*
                    })*
                }
            };
        }
        bed!(loopback_host, Net::Loopback, false);
        bed!(loopback_offload, Net::Loopback, true);
        bed!(udp_host, Net::Udp, false);
        bed!(udp_offload, Net::Udp, true);
        bed!(shm_host, Net::Shm, false);
        bed!(shm_offload, Net::Shm, true);
        bed!(auto_host, Net::Auto, false);
        bed!(auto_offload, Net::Auto, true);
    };
}

on_every_bed! {
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
