//! The end of ours: a queue pair that waits for its completions.

use std::time::Duration;

use hca::cm::{ConnectParams, Connection, ConnectionError, Listener, connect_with, wire::Reason};
use hca::{Access, Buf, CompletionQueue, Completions, Context, Pd, QueuePair, Rc, Service, Wc, WcStatus};

use crate::theirs;

/// The time that anything may take.
pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

pub(crate) struct End<S: Service> {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair<S>,
    sent: usize,
    /// The peer ends the connection once it has what was sent last.
    parts: bool,
    back: Vec<Buf>,
    came: Vec<Message>,
}

/// A message that came.
pub(crate) struct Message {
    pub(crate) buf: Buf,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
}

impl<S: Service> End<S> {
    pub(crate) fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256).unwrap();
        let rights = if S::TYPE == hca::hca_core::QpType::Ud {
            Access::empty()
        } else {
            Access::REMOTE_WRITE | Access::REMOTE_READ
        };
        let qp = pd.qp::<S>(&cq).max_send_wr(64).max_recv_wr(64).access(rights).build().unwrap();
        Self {
            context: context.clone(),
            pd,
            cq,
            qp,
            sent: 0,
            parts: false,
            back: Vec::new(),
            came: Vec::new(),
        }
    }
    pub(crate) fn post_recvs(&mut self, count: usize, len: usize) {
        for buf in self.pd.alloc_many(count, len).unwrap() {
            self.qp.post_recv(buf).unwrap();
        }
    }
    /// Waits until so many SENDs, WRITEs and READs have completed; returns their buffers.
    pub(crate) fn completed(&mut self, count: usize) -> Vec<Buf> {
        while self.sent < count {
            self.poll();
        }
        self.sent -= count;
        std::mem::take(&mut self.back)
    }
    /// As [`completed`](Self::completed), of what the peer ends the connection for. Linux's rxe delivers a message, and
    /// then acknowledges it, unless the program that got it has ended the connection meanwhile.
    pub(crate) fn completed_last(&mut self, count: usize) {
        self.parts = true;
        self.completed(count);
    }
    /// The next `count` messages.
    pub(crate) fn received(&mut self, count: usize) -> Vec<Message> {
        while self.came.len() < count {
            self.poll();
        }
        self.came.drain(..count).collect()
    }
    /// Whether a message has come.
    pub(crate) fn has_received(&mut self) -> bool {
        let mut wcs = Completions::with_capacity(1);
        for wc in self.cq.poll(&mut wcs) {
            self.take(wc);
        }
        !self.came.is_empty()
    }
    fn poll(&mut self) {
        let mut wcs = Completions::with_capacity(1);
        for wc in self.cq.wait(&mut wcs, LIMIT).expect("a completion") {
            self.take(wc);
        }
    }
    fn take(&mut self, wc: Wc<'_>) {
        if self.parts && wc.status == WcStatus::WrFlushed {
            self.sent += usize::from(!wc.opcode.is_recv());
            return;
        }
        let mut wc = wc.ok().unwrap();
        if wc.opcode.is_recv() {
            let buf = wc.take_buf().expect("a receive has its buffer");
            self.came.push(Message { buf, len: wc.byte_len as usize, imm: wc.imm() });
        } else {
            self.sent += 1;
            self.back.extend(wc.take_buf());
        }
    }
}

/// The connection of a peer that a program of the far end makes.
pub(crate) fn accept(listener: &Listener, end: &End<Rc>) -> Connection {
    let incoming = listener.accept_within(LIMIT).unwrap().expect("a request in time");
    assert_eq!(incoming.source().ip(), theirs::address());
    incoming.accept(&end.qp, b"").unwrap()
}

/// A connection to a program that was just started: it may not listen yet.
pub(crate) fn call(end: &End<Rc>, port: u16) -> Connection {
    let params = ConnectParams { timeout: LIMIT, ..ConnectParams::default() };
    loop {
        match connect_with(&end.context, &end.qp, (theirs::address(), port), &params) {
            Ok(connection) => return connection,
            Err(ConnectionError::Rejected { reason: Reason::INVALID_SERVICE_ID, .. }) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => panic!("{e}"),
        }
    }
}
