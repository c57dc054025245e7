//! The committed fuzz corpus through the fuzz target's own function, and messages at random.

#[path = "../../../fuzz/src/vfio_user.rs"]
mod vfio_user;

use proptest::prelude::*;

fn seeds() -> Vec<Vec<u8>> {
    test_support::corpus::of("vfio_user", 20).into_iter().map(|(_, seed)| seed).collect()
}

#[test]
fn the_corpus_of_vfio_user_passes() {
    for seed in seeds() {
        vfio_user::vfio_user(&seed);
        for at in 0..seed.len() {
            vfio_user::vfio_user(&seed[..at]);
        }
    }
}

proptest! {
    #[test]
    fn messages_with_some_bytes_changed_are_understood_or_refused(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        more in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let seeds = seeds();
        let mut message = seeds[which.index(seeds.len())].clone();
        for (at, to) in changes {
            let at = at.index(message.len());
            message[at] = to;
        }
        message.extend(more);
        vfio_user::vfio_user(&message);
    }

    #[test]
    fn any_bytes_are_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        vfio_user::vfio_user(&bytes);
    }
}
