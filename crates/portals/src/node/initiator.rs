//! The initiator's side: operations that begin here, and their answers.

use hca_matching::{Header, NiFail, Operation, Response, ResponseKind, Transfer};

use super::interface::NiState;
use super::peer::{Fetch, Fetched, Flying, Out};
use super::post::{Body, Full, NOTHING};
use super::{Net, State};
use crate::wire::{self, Head};
use crate::{Error, memory};

/// The header of an operation, which is a transfer's, as it goes to the target.
#[inline(always)]
fn header_of(transfer: &Transfer, operation: Operation) -> Header {
    Header {
        operation,
        ack: transfer.ack,
        pt_index: transfer.pt_index,
        ac_index: transfer.ac_index,
        match_bits: transfer.match_bits,
        remote_offset: transfer.remote_offset,
        length: transfer.length,
        hdr_data: transfer.hdr_data,
        ..Header::default()
    }
}

impl Net {
    /// Sends an operation's message; with token 0, nothing is to come back. `copy`: its bytes, if its memory may have
    /// changed.
    #[expect(clippy::too_many_arguments, reason = "an operation and its interface are taken apart here")]
    pub(super) fn send_transfer(
        &mut self,
        peer: u32,
        ni: u8,
        of_ni: &NiState,
        transfer: &Transfer,
        token: u32,
        copy: Option<&[u8]>,
        lent: bool,
    ) -> Result<(), Full> {
        let mut head =
            Head::request(ni, token, &header_of(transfer, transfer.operation), &transfer.operand, lent);
        let body = match copy {
            _ if !transfer.operation.writes() || transfer.length == 0 => Body::None,
            Some(copy) => Body::Bytes(copy),
            None => {
                let memory = of_ni.md_memory(transfer.md).expect("a descriptor has memory");
                if lent {
                    let pieces = memory.remote(transfer.local_offset, transfer.length);
                    return self.send(peer, &mut head, &Body::Where(&pieces));
                }
                Body::Memory(memory, transfer.local_offset, transfer.length as usize)
            }
        };
        self.send(peer, &mut head, &body)
    }
}

impl State {
    /// Begins an operation, and has its target met if that is new.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[cold]
    pub(crate) fn start_and_connect(&mut self, ni: u8, transfer: &Transfer) -> Result<(), Error> {
        self.may_meet = true;
        let result = self.start(ni, transfer);
        self.may_meet = false;
        result
    }
    /// Sends a put that is not answered, if nothing keeps it back: its bytes go with it, its target is connected to, and
    /// nothing waits there. Otherwise nothing is done, and [`start`](Self::start) begins it.
    #[inline(always)]
    pub(crate) fn start_at_once(&mut self, ni: u8, put: &Transfer) -> bool {
        let of_ni = self.nis[ni as usize].as_deref_mut().expect("its interface is open");
        let peer = match of_ni.last {
            Some((target, peer)) if target == put.target => peer,
            _ => match self.route_anew(ni, put.target) {
                Ok(peer) => peer,
                Err(_) => return false,
            },
        };
        let Self { nis, net, eager_bytes, dead, .. } = self;
        let NiState { engine, mds, trace, .. } = nis[ni as usize].as_deref_mut().expect("it was open");
        let of = net.peer(peer);
        let fits = put.length <= *eager_bytes as u64 && put.pt_index | put.ac_index <= u16::MAX.into();
        if !fits || !of.is_clear() || !of.waiting.is_empty() || trace.is_some() || *dead {
            return false;
        }
        if !engine.may_send_at_once(put) {
            return false;
        }
        let Some(Some(memory)) = mds.get(put.md.index() as usize) else { return false };
        let mut head = Head::request(ni, 0, &header_of(put, Operation::Put), &[0; 32], false);
        let body = Body::Memory(memory, put.local_offset, put.length as usize);
        if net.send(peer, &mut head, &body).is_err() {
            return false;
        }
        engine.sent_at_once(put);
        let is_settled = engine.is_settled();
        self.note(ni, is_settled);
        true
    }
    /// Begins an operation.
    ///
    /// # Errors
    /// Refusals of the engine; the target is unknown, or not connected yet.
    #[inline(never)]
    pub(crate) fn start(&mut self, ni: u8, transfer: &Transfer) -> Result<(), Error> {
        self.check(ni, transfer)?;
        let peer = self.route(ni, transfer.target)?;
        if let Some(trace) = &mut self.ni(ni).trace {
            trace.began(transfer);
        }
        self.start_to(peer, ni, transfer)
    }
    fn start_to(&mut self, peer: u32, ni: u8, transfer: &Transfer) -> Result<(), Error> {
        let of = self.peer(peer);
        let clear = of.is_clear() && of.waiting.is_empty();
        let flight = self.ni(ni).engine.begin(transfer)?;
        let unsent = flight.is_sent();
        let copy = self.copy_of(ni, transfer);
        let flying = Flying { flight, ni, unsent, gone: false, copy };
        let of = self.peer(peer);
        if of.is_full() || !of.waiting.is_empty() {
            of.waiting.push_back(flying);
            return Ok(());
        }
        let token = self.peer(peer).flying.insert(flying);
        if !clear || self.post_request(peer, token).is_err() {
            self.wait_for_room(peer, Out::Request(token));
        }
        self.watch();
        Ok(())
    }
    /// The checks that the engine does not make.
    pub(crate) fn check(&self, ni: u8, transfer: &Transfer) -> Result<(), Error> {
        if self.dead {
            return Err(Error::Device);
        }
        let max_length = match transfer.operation {
            Operation::Put if self.is_volatile(ni, transfer) => self.eager_bytes as u64,
            Operation::Put | Operation::Get => wire::MAX_MESSAGE,
            _ => self.eager_bytes as u64,
        };
        // What messages have room for.
        let max_index = u64::from(u16::MAX);
        for (argument, value, limit) in [
            ("length", transfer.length, max_length),
            ("pt_index", transfer.pt_index.into(), max_index),
            ("ac_index", transfer.ac_index.into(), max_index),
        ] {
            if value > limit {
                return Err(hca_matching::Error::TooLarge { argument, value, limit }.into());
            }
        }
        Ok(())
    }
    /// Whether the bytes may change as soon as the call returns.
    #[inline]
    fn is_volatile(&self, ni: u8, transfer: &Transfer) -> bool {
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        transfer.operation.writes() && of_ni.is_volatile(transfer.md)
    }
    /// The bytes of a message that does not leave at once, if they may change meanwhile.
    fn copy_of(&mut self, ni: u8, transfer: &Transfer) -> Option<Box<[u8]>> {
        if !self.is_volatile(ni, transfer) {
            return None;
        }
        let mut copy = vec![0; transfer.length as usize].into_boxed_slice();
        self.ni(ni)
            .md_memory(transfer.md)
            .expect("a descriptor has memory")
            .read(transfer.local_offset, &mut copy);
        Some(copy)
    }
    /// Whether the target fetches the bytes itself.
    #[inline]
    pub(super) fn is_lent(&self, transfer: &Transfer) -> bool {
        transfer.operation == Operation::Put && transfer.length > self.eager_bytes as u64
    }

    /// An answer, with the bytes of a reply.
    pub(super) fn hear_response(&mut self, peer: u32, token: u32, response: &Response, data: &[u8]) {
        let Some(flying) = self.peer(peer).flying.get_mut(token).filter(|flying| flying.gone) else {
            return self.malformed(peer, &"an answer to nothing");
        };
        let transfer = flying.flight.transfer;
        let is_reply = response.kind == ResponseKind::Reply;
        let fits = response.mlength <= transfer.length
            && data.len() as u64 == if is_reply { response.mlength } else { 0 };
        if is_reply != transfer.operation.replies() || !fits {
            return self.malformed(peer, &"an answer that does not go with its operation");
        }
        let flying = self.peer(peer).flying.remove(token).expect("it was looked at");
        if !data.is_empty() && self.ni(flying.ni).engine.takes_answer(&flying.flight) {
            let (md, offset) = transfer.reply.unwrap_or((transfer.md, transfer.local_offset));
            self.ni(flying.ni).md_memory(md).expect("a descriptor has memory").write(offset, data);
        }
        self.finish(peer, flying, response);
    }
    /// Handles a reply whose bytes this node fetches.
    pub(super) fn hear_lent(
        &mut self,
        peer: u32,
        token: u32,
        response: &Response,
        lender: u32,
        pieces: wire::Pieces<'_>,
    ) {
        let fits = |transfer: &Transfer| {
            transfer.operation == Operation::Get
                && response.kind == ResponseKind::Reply
                && response.mlength <= transfer.length
                && response.mlength == pieces.total()
                && response.mlength > 0
        };
        let flying = self.peer(peer).flying.get_mut(token).filter(|flying| flying.gone);
        if !flying.is_some_and(|flying| fits(&flying.flight.transfer)) {
            return self.malformed(peer, &"a reply that does not go with its operation");
        }
        let mut flying = self.peer(peer).flying.remove(token).expect("it was looked at");
        if !self.ni(flying.ni).engine.reply_begins(&mut flying.flight, response) {
            self.post(peer, Out::Fetched { token: lender, fail: NiFail::Ok });
            return self.finish(peer, flying, response);
        }
        let transfer = flying.flight.transfer;
        let (md, offset) = transfer.reply.unwrap_or((transfer.md, transfer.local_offset));
        let memory = self.ni(flying.ni).md_memory(md).expect("a descriptor has memory").clone();
        self.peer(peer).replies += 1;
        let whose = Fetched::Reply { flying, response: *response, lender };
        self.fetch(peer, whose, pieces, &memory, offset, response.mlength);
        self.let_go(memory);
    }
    /// An operation is over.
    pub(super) fn finish(&mut self, peer: u32, flying: Flying, response: &Response) {
        let Flying { flight, ni, unsent, .. } = flying;
        let engine = &mut self.nis[ni as usize].as_mut().expect("operations hold it").engine;
        if unsent {
            engine.sent(&flight, NiFail::Ok);
        }
        if flight.is_answered() {
            match response.kind {
                ResponseKind::None => engine.forget(&flight),
                _ => engine.answered(&flight, response),
            }
        }
        self.after(ni);
        self.let_wait(peer);
    }
    /// Gives a free place of the window to the next waiting operation. Operations without a response leave it at once.
    pub(super) fn let_wait(&mut self, peer: u32) {
        while let Some(of) = self.net.peers[peer as usize].as_mut()
            && !of.is_full()
            && let Some(flying) = of.waiting.pop_front()
        {
            let token = of.flying.insert(flying);
            self.post(peer, Out::Request(token));
        }
    }
    /// Ends an operation whose peer is gone.
    pub(super) fn undeliverable(&mut self, flying: Flying) {
        let Flying { flight, ni, unsent, .. } = flying;
        let fail = NiFail::Undeliverable;
        let engine = &mut self.nis[ni as usize].as_mut().expect("operations hold it").engine;
        if unsent {
            engine.sent(&flight, fail);
        }
        if flight.is_answered() {
            engine.answered(&flight, &Response { kind: ResponseKind::Ack, fail, ..NOTHING });
        }
        self.after(ni);
    }

    /// Fetches bytes out of the peer's memory.
    pub(super) fn fetch(
        &mut self,
        peer: u32,
        whose: Fetched,
        from: wire::Pieces<'_>,
        to: &memory::Pieces,
        offset: u64,
        len: u64,
    ) {
        let reads = super::target::reads(from, &to.sges(offset, len), len);
        let fetch = self.peer(peer).fetches.insert(Fetch { left: reads.len() as u32, whose });
        for (from, to) in reads {
            self.post(peer, Out::Read { fetch, from, to });
            if self.net.peers[peer as usize].is_none() {
                return;
            }
        }
    }
    /// A part of a fetch is here.
    pub(super) fn fetched_part(&mut self, peer: u32, fetch: u32) {
        let of = self.peer(peer);
        let Some(under_way) = of.fetches.get_mut(fetch) else { return };
        under_way.left -= 1;
        if under_way.left > 0 {
            return;
        }
        let Fetch { whose, .. } = of.fetches.remove(fetch).expect("it was looked at");
        match whose {
            Fetched::Put { ni, delivery, token } => {
                let response = self.ni(ni).complete(delivery, NiFail::Ok);
                self.after(ni);
                self.respond(peer, token, &response, &Body::None);
            }
            Fetched::Reply { flying, response, lender } => {
                of.replies -= 1;
                self.post(peer, Out::Fetched { token: lender, fail: NiFail::Ok });
                self.finish(peer, flying, &response);
            }
        }
    }
}
