//! Small messages over shared memory take the quick way, and mean the same as those that do not.

mod ends;

use ends::{End, open, send};
use hca_core::SendFlags;
use softhca::Progress;

/// Sends so many messages one by one; returns how many of them came the quick way.
fn exchange(a: &mut End, b: &mut End, count: u64, flags: SendFlags) -> u64 {
    let before = b.counter("rx_messages_quick");
    for _ in 0..count {
        b.recv();
        send(&mut a.rc, flags);
        let received = b.next(&*a.device).expect("the message arrives");
        assert_eq!((received.byte_len, received.solicited), (7, flags.contains(SendFlags::SOLICITED)));
        a.next(&*b.device).expect("the SEND completes");
    }
    b.counter("rx_messages_quick") - before
}

#[test]
fn plain_sends_take_the_quick_way_and_others_the_long_one() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let [mut a, mut b] =
            [0, 1].map(|n| End::new(open("shm", progress, n).expect("there is shared memory")));
        a.connect(&b);
        b.connect(&a);
        // Until both have met, and the link is known.
        exchange(&mut a, &mut b, 8, SendFlags::SIGNALED);
        // Whole turns, and the adapter's thread, take the long way.
        let quick = exchange(&mut a, &mut b, 80, SendFlags::SIGNALED);
        assert!(quick >= 10, "{progress}: {quick} of 80 came the quick way");
        let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
        assert_eq!(exchange(&mut a, &mut b, 20, solicited), 0, "{progress}");
        a.close();
        b.close();
    }
}
