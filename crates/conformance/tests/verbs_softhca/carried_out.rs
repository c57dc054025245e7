//! Requests that are done within a call, by the safe API.

use hca_fabric::{ShmFabric, ShmOptions};

use super::*;

const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Two queue pairs, and memory of the second end's.
fn pair(ends: &[End; 2]) -> (QueuePair<Rc>, QueuePair<Rc>, SharedMr) {
    let qp = |end: &End| {
        let builder = end.pd.qp::<Rc>(&end.cq).max_send_wr(32).max_recv_wr(32).max_inline(256);
        builder.access(RIGHTS).build().unwrap()
    };
    let (a, b) = (qp(&ends[0]), qp(&ends[1]));
    connect(&a, &b);
    let target = ends[1].pd.alloc_shared(4096, RIGHTS).unwrap();
    (a, b, target)
}

/// Writes until a WRITE is done within the call, which is when the peer has answered that it may.
fn reach(ends: &mut [End; 2], a: &mut QueuePair<Rc>, target: &SharedMr) {
    while let Err(write) = a.sq.carry_out(SendRequest::write(Inline(&[0; 8]), target.remote())) {
        a.post_send(write).unwrap();
        collect(ends, [1, 0]);
    }
}

#[test]
fn an_access_to_a_near_peer_gives_its_list_back_and_has_no_completion() {
    let domain = format!("carried-out.{}", std::process::id());
    for progress in [Progress::Inline, Progress::Adaptive] {
        let open = |_: &str| Box::new(ShmFabric::open(&domain, &ShmOptions::default()).unwrap()) as _;
        let mut ends = ends_on(progress, open);
        let (mut a, _b, target) = pair(&ends);
        reach(&mut ends, &mut a, &target);
        let word = |at: usize| {
            let mut word = [0; 8];
            target.read_at(at, &mut word);
            word
        };
        // The adapter's thread may be at it: then the request comes back.
        let mut buf = ends[0].buf(&[7; 8]);
        let mut write = SendRequest::write(buf, target.remote());
        buf = loop {
            write = match a.sq.carry_out(write) {
                Ok(buf) => break buf,
                Err(write) => write,
            };
        };
        assert_eq!(word(0), [7; 8], "{progress}");
        target.write_at(16, &[9; 8]);
        let mut read = SendRequest::read(buf, target.remote().range(16..));
        buf = loop {
            read = match a.sq.carry_out(read) {
                Ok(buf) => break buf,
                Err(read) => read,
            };
        };
        assert_eq!(&buf[..], [9; 8], "{progress}");
        let mut add = SendRequest::fetch_add(buf, target.remote(), 1);
        buf = loop {
            add = match a.sq.carry_out(add) {
                Ok(buf) => break buf,
                Err(add) => add,
            };
        };
        assert!(buf[..] == [7; 8] && word(0) == (u64::from_ne_bytes([7; 8]) + 1).to_ne_bytes());
        // More inline bytes than the queue takes.
        let bytes = vec![5; 4000];
        while a.sq.carry_out(SendRequest::write(Inline(&bytes), target.remote())).is_err() {}
        assert_eq!((word(0), word(3992)), ([5; 8], [5; 8]));
        assert_eq!(ends[0].cq.poll(&mut ends[0].wcs).count(), 0, "nothing completes");
        assert_eq!(a.control().outstanding_sends(), 0);
    }
}

#[test]
fn a_request_that_is_not_done_comes_back_as_it_was() {
    in_all_modes(|ends| {
        let (mut a, mut b, target) = pair(ends);
        a.post_send(SendRequest::write(Inline(&[0; 8]), target.remote())).unwrap();
        collect(ends, [1, 0]);
        let write = SendRequest::write(ends[0].buf(&[7; 8]), target.remote()).id(3);
        let Err(write) = a.sq.carry_out(write) else { panic!("the peer is not near") };
        let mut word = [1; 8];
        target.read_at(0, &mut word);
        assert_eq!(word, [0; 8], "nothing was done");
        a.post_send(write).unwrap();
        let [sent, _] = collect(ends, [1, 0]);
        assert_eq!((sent[0].1, bytes(&sent[0].2[0])), (WcStatus::Success, &[7; 8][..]));
        // A post tells why a wrong one is refused.
        let write = SendRequest::write(ends[1].buf(&[8; 8]), target.remote());
        let Err(write) = a.sq.carry_out(write) else { panic!("of another domain") };
        assert_eq!(a.post_send(write).unwrap_err().error, PostRefusal::ForeignPd { entry: 0 });
        b.post_recv(ends[1].pd.alloc(8).unwrap()).unwrap();
        let Err(send) = a.sq.carry_out(SendRequest::send(Inline(b"hello"))) else { panic!("a SEND") };
        a.post_send(send).unwrap();
        collect(ends, [1, 1]);
    });
}
