//! Requests that the other side rejects.

use hca::Rc;
use hca::cm::wire::Reason;
use hca::cm::{ConnectParams, ConnectionError, Listener, connect_with};

use crate::end::{End, LIMIT};
use crate::theirs::{self, Program};

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn a_port_without_a_listener_rejects_on_both_sides() {
    let context = theirs::device();
    let end = End::<Rc>::new(&context);
    let params = ConnectParams { timeout: LIMIT, ..ConnectParams::default() };
    let refused = connect_with(&context, &end.qp, (theirs::address(), 7), &params).unwrap_err();
    let reason = Reason::INVALID_SERVICE_ID;
    assert!(matches!(&refused, ConnectionError::Rejected { reason: r, .. } if *r == reason), "{refused}");
    // The manager of this side runs, as somebody listens.
    let _listener = Listener::bind(&context, "0.0.0.0:0").unwrap();
    let (good, printed) =
        Program::start(&format!("rping -c -a {} -p 7 -C 1", context.port().gid.ip())).output();
    assert!(!good && printed.contains("RDMA_CM_EVENT_REJECTED") && printed.contains("error 8"), "{printed}");
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn a_program_of_this_side_rejects() {
    let context = theirs::device();
    let listener = Listener::bind(&context, "0.0.0.0:0").unwrap();
    let at = listener.address();
    let mut client = Program::start(&format!("rping -c -a {} -p {} -C 1", at.ip(), at.port()));
    listener.accept_within(LIMIT).unwrap().expect("a request in time").reject(b"not today").unwrap();
    let (good, printed) = client.output();
    // 28: rejected by the consumer.
    assert!(!good && printed.contains("RDMA_CM_EVENT_REJECTED") && printed.contains("error 28"), "{printed}");
}
