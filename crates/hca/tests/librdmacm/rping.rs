//! `rping`: the client tells the server of a text, which the server reads; then of a buffer, which the server writes
//! the text to. Each step is told by a message with an address, a key and a length.

use hca::cm::Listener;
use hca::{Access, Context, Rc, RemoteMr, Rkey};

use crate::end::{End, LIMIT, Message, accept, call};
use crate::theirs::{self, Program};

const ROUNDS: usize = 20;

/// The message, as `rping` has it.
fn told(Message { buf, len, .. }: &Message) -> RemoteMr {
    assert_eq!(*len, 16);
    let number = |at: std::ops::Range<usize>| buf[at].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    RemoteMr { addr: number(0..8), rkey: Rkey::new(number(8..12) as u32), len: number(12..16) }
}
fn tell(memory: &RemoteMr) -> Vec<u8> {
    let (rkey, len) = (memory.rkey.raw().to_be_bytes(), (memory.len as u32).to_be_bytes());
    [&memory.addr.to_be_bytes()[..], &rkey, &len].concat()
}

/// The next message of the peer; its buffer is posted again.
fn next(end: &mut End<Rc>) -> RemoteMr {
    let message = end.received(1).remove(0);
    let memory = told(&message);
    end.qp.post_recv(message.buf).unwrap();
    memory
}
fn say(end: &mut End<Rc>, memory: &RemoteMr) {
    end.qp.send_inline(&tell(memory)).unwrap();
    end.completed(1);
}

fn serve(context: &Context, size: usize) {
    let listener = Listener::bind(context, "0.0.0.0:0").unwrap();
    let at = listener.address();
    let mut end = End::new(context);
    end.post_recvs(4, 16);
    let client =
        Program::start(&format!("rping -c -a {} -p {} -C {ROUNDS} -S {size} -v -V", at.ip(), at.port()));
    let connection = accept(&listener, &end);
    for round in 1..=ROUNDS {
        let source = next(&mut end);
        let text = end.pd.alloc(source.len as usize).unwrap();
        end.qp.read(text, source).unwrap();
        let text = end.completed(1).remove(0);
        say(&mut end, &RemoteMr::default());
        let target = next(&mut end);
        end.qp.write(text, target).unwrap();
        end.completed(1);
        if round < ROUNDS {
            say(&mut end, &RemoteMr::default());
        }
    }
    end.qp.send_inline(&tell(&RemoteMr::default())).unwrap();
    end.completed_last(1);
    assert!(connection.wait_disconnected(LIMIT).unwrap());
    let printed = client.succeeds();
    assert_eq!(printed.lines().filter(|line| line.contains("rdma-ping-")).count(), ROUNDS, "{printed}");
}

fn ask(context: &Context, port: u16, size: usize) {
    let server = Program::start(&format!("rping -s -a {} -p {port} -S {size} -v -V", theirs::address()));
    let mut end = End::new(context);
    end.post_recvs(4, 16);
    let connection = call(&end, port);
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let [start, back] = [0; 2].map(|_| end.pd.alloc_shared(size, rights).unwrap());
    for round in 0..ROUNDS {
        // A text that ends: the server writes it up to its 0.
        let mut text = format!("rdma-ping-{round}: ").into_bytes();
        text.resize(size - 1, b'A' + round as u8);
        text.push(0);
        start.write_at(0, &text);
        say(&mut end, &start.remote());
        next(&mut end);
        say(&mut end, &back.remote());
        next(&mut end);
        let mut came = vec![0; size];
        back.read_at(0, &mut came);
        assert!(came == text, "round {round}: another text comes back");
    }
    connection.disconnect().unwrap();
    let printed = server.succeeds();
    assert_eq!(printed.lines().filter(|line| line.contains("rdma-ping-")).count(), ROUNDS, "{printed}");
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn rping_connects_to_this_adapter_and_its_text_comes_back() {
    let context = theirs::device();
    for size in [64, 4000, 60_000] {
        serve(&context, size);
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn this_adapter_connects_to_rping_and_the_text_comes_back() {
    let context = theirs::device();
    for (port, size) in [(7481, 64), (7482, 4000), (7483, 60_000)] {
        ask(&context, port, size);
    }
}
