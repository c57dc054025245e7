//! `udaddy`: the client resolves the server's queue pair, and sends messages with the number of its own queue pair as
//! immediate data; the server sends as many back.

use std::time::Duration;

use hca::cm::{ConnectionError, DatagramListener, UDP_QKEY, resolve};
use hca::{AddressVector, Context, Qpn, SendRequest, Ud, UdPeer};

use crate::end::{End, LIMIT};
use crate::theirs::{self, Program};

/// Its port, which no option changes.
const PORT: u16 = 7174;
const MESSAGES: usize = 12;
const SIZE: usize = 300;
const GRH_BYTES: usize = 40;

fn end(context: &Context) -> End<Ud> {
    let mut end = End::<Ud>::new(context);
    end.qp.activate(UDP_QKEY).unwrap();
    end.post_recvs(MESSAGES, GRH_BYTES + SIZE);
    end
}
fn send(end: &mut End<Ud>, peer: &UdPeer) {
    for buf in end.pd.alloc_many(MESSAGES, SIZE).unwrap() {
        end.qp.post_send(SendRequest::send(buf).to(peer).imm(end.qp.qpn().raw())).unwrap();
    }
    end.completed(MESSAGES);
}
/// Receives; returns the number that the last message carried.
fn receive(end: &mut End<Ud>) -> Qpn {
    let came = end.received(MESSAGES);
    assert!(came.iter().all(|message| message.len == GRH_BYTES + SIZE));
    Qpn::new(came[0].imm.expect("immediate data"))
}
fn options() -> String {
    format!("-C {MESSAGES} -S {SIZE}")
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn udaddy_resolves_this_adapters_service() {
    let context = theirs::device();
    let listener = DatagramListener::bind(&context, ("0.0.0.0", PORT)).unwrap();
    let at = listener.address();
    let mut end = end(&context);
    let client = Program::start(&format!("udaddy -s {} {}", at.ip(), options()));
    let request = listener.accept_within(LIMIT).unwrap().expect("a request in time");
    let gid = request.from();
    assert_eq!(gid.ip(), theirs::address());
    request.accept(&end.qp, UDP_QKEY, b"").unwrap();
    let qpn = receive(&mut end);
    let av = AddressVector { dgid: gid, ..AddressVector::default() };
    let peer = end.pd.create_ah(&av).unwrap().peer(qpn, UDP_QKEY);
    send(&mut end, &peer);
    let printed = client.succeeds();
    assert!(printed.contains("return status 0"), "{printed}");
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn this_adapter_resolves_udaddys_service() {
    let context = theirs::device();
    let server = Program::start(&format!("udaddy -b {} {}", theirs::address(), options()));
    let mut end = end(&context);
    let service = loop {
        match resolve(&context, (theirs::address(), PORT), b"") {
            Ok(service) => break service,
            // It may not listen yet.
            Err(ConnectionError::Unresolved { .. }) => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => panic!("{e}"),
        }
    };
    let peer = service.peer(&end.pd).unwrap();
    send(&mut end, &peer);
    receive(&mut end);
    let printed = server.succeeds();
    assert!(printed.contains("return status 0"), "{printed}");
}
