//! `ucmatose`: the server sends messages on each connection, the client sends as many back, and the server disconnects.

use hca::cm::{Connection, Listener};
use hca::{Context, Rc};

use crate::end::{End, LIMIT, accept, call};
use crate::theirs::{self, Program};

const CONNECTIONS: usize = 8;
const MESSAGES: usize = 12;
const SIZE: usize = 300;

fn ends(context: &Context) -> Vec<End<Rc>> {
    let mut ends: Vec<_> = (0..CONNECTIONS).map(|_| End::new(context)).collect();
    ends.iter_mut().for_each(|end| end.post_recvs(MESSAGES, SIZE));
    ends
}
fn send(end: &mut End<Rc>) {
    for buf in end.pd.alloc_many(MESSAGES, SIZE).unwrap() {
        end.qp.send(buf).unwrap();
    }
}
fn receive(end: &mut End<Rc>) {
    assert!(end.received(MESSAGES).iter().all(|message| message.len == SIZE));
}

fn options() -> String {
    format!("-c {CONNECTIONS} -C {MESSAGES} -S {SIZE}")
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn ucmatose_makes_connections_to_this_adapter() {
    let context = theirs::device();
    let listener = Listener::bind(&context, "0.0.0.0:0").unwrap();
    let at = listener.address();
    let mut ends = ends(&context);
    let client = Program::start(&format!("ucmatose -s {} -p {} {}", at.ip(), at.port(), options()));
    let connections: Vec<_> = ends.iter().map(|end| accept(&listener, end)).collect();
    ends.iter_mut().for_each(send);
    ends.iter_mut().for_each(|end| drop(end.completed(MESSAGES)));
    ends.iter_mut().for_each(receive);
    connections.into_iter().for_each(|connection| connection.disconnect().unwrap());
    let printed = client.succeeds();
    assert!(printed.contains("return status 0"), "{printed}");
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn this_adapter_makes_connections_to_ucmatose() {
    let context = theirs::device();
    let server = Program::start(&format!("ucmatose -b {} -p 7485 {}", theirs::address(), options()));
    let mut ends = ends(&context);
    let connections: Vec<Connection> = ends.iter().map(|end| call(end, 7485)).collect();
    ends.iter_mut().for_each(receive);
    ends.iter_mut().for_each(send);
    ends.iter_mut().for_each(|end| end.completed_last(MESSAGES));
    for connection in &connections {
        assert!(connection.wait_disconnected(LIMIT).unwrap());
    }
    let printed = server.succeeds();
    assert!(printed.contains("return status 0"), "{printed}");
}
