//! The committed corpus of the fuzz target `message_pair`, through its own function.
#[path = "../../../fuzz/src/message_pair.rs"]
mod message_pair;
mod messages;
mod pair;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_pairs_by_messages_passes() {
    test_support::corpus::run("message_pair", 30, message_pair::message_pair);
}
