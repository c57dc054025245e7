//! Empty polls, which read a few words only.

use super::*;

/// A WRITE that is longer than one access moves goes on with each turn: with the first poll behind its post, though the
/// polls before that were in vain.
#[test]
fn a_poll_goes_on_with_what_a_post_left_whatever_the_polls_before_it_found() {
    const LEN: usize = 2 << 20;
    const PIECES: usize = LEN / hca_fabric::MAX_BRACKET_BYTES;
    let mut pair = Pair::new(REMOTE, ALL, Access::LOCAL_WRITE);
    let large = |end: &End, access| {
        let memory = end.device.alloc_memory(LEN).unwrap();
        let addr = memory.addr();
        let init = MrInit { addr, len: LEN, iova: addr.as_ptr() as u64, access };
        // SAFETY: (1)
        let keys = unsafe { end.device.reg_mr(end.pd, &init) }.unwrap();
        (memory, keys)
    };
    let ((from, ours), (to, theirs)) = (large(&pair.a, Access::LOCAL_WRITE), large(&pair.b, ALL));
    let remote = RemoteAddr { addr: to.addr().as_ptr() as u64, rkey: theirs.rkey };
    let sge = |len| Sge { addr: from.addr().as_ptr() as u64, len, lkey: ours.lkey };
    let mut direct = 0;
    while direct < 3 {
        pair.post(SendOp::Write(remote), sge(8));
        direct += 1;
        if pair.alone().is_none() {
            direct = 0;
            assert_eq!(pair.ends().status, WcStatus::Success);
        }
    }
    for _ in 0..30 {
        for _ in 0..20 {
            assert!(pair.alone().is_none());
        }
        pair.post(SendOp::Write(remote), sge(LEN as u32));
        let in_vain = (0..1000).take_while(|_| pair.alone().is_none()).count();
        assert!(in_vain <= PIECES, "{in_vain} polls in vain for {PIECES} pieces");
    }
    let Pair { a, b, .. } = pair;
    for (end, keys) in [(&a, ours), (&b, theirs)] {
        end.device.dereg_mr(keys.handle).unwrap();
    }
}
