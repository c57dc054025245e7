//! The target's side: how arriving messages are handled.

use hca_core::Sge;
use hca_matching::instrument::{self, Part};
use hca_matching::{Delivery, Header, NiFail, Operation, Response, ResponseKind, Verdict, atomic};

use super::State;
use super::interface::NiState;
use super::peer::{Fetched, Lending, Out};
use super::ports::{MAX_READ, MAX_SGE};
use super::post::Body;
use crate::wire::{self, Behind, Message, Piece, Request, WireError};

impl State {
    /// A message came.
    #[inline(always)]
    pub(super) fn heard(&mut self, peer: u32, bytes: &[u8]) {
        instrument::begin();
        if !self.take_put(peer, bytes) {
            self.hear(peer, bytes);
        }
    }
    /// Takes a message that is a put with its bytes to an interface that is open here, as most are. `false`: nothing was
    /// done.
    #[inline(always)]
    fn take_put(&mut self, peer: u32, bytes: &[u8]) -> bool {
        let Self { net, nis, .. } = self;
        let of = net.peer(peer);
        let Some(wire::Put { ni, token, mut header, data }) = wire::parse_put(bytes) else { return false };
        let Some(Some(of_ni)) = nis.get_mut(ni as usize) else { return false };
        if !of.is_up() || of_ni.is_closing() || of_ni.trace.is_some() {
            return false;
        }
        let Some(initiator) = of_ni.process_of(&of.identity) else { return false };
        (header.initiator, header.uid, header.jid) = (initiator, of.identity.uid, of.identity.jid);
        instrument::mark(Part::Inspect);
        let response = of_ni.place(&header, data);
        let is_settled = of_ni.engine.is_settled();
        self.note(ni, is_settled);
        self.respond(peer, token, &response, &Body::None);
        true
    }
    /// As [`heard`](Self::heard), of any message.
    #[inline(never)]
    fn hear(&mut self, peer: u32, bytes: &[u8]) {
        if !self.peer(peer).listens() {
            // Of a connection that this side has given up for a later one of the same peer.
            return;
        }
        self.found = true;
        if !self.peer(peer).is_up() {
            // It knows this side, or could not have sent.
            self.is_up(peer);
        }
        if let Some(behind) = wire::is_request(bytes) {
            let mut request = Request::default();
            return match wire::parse_request(bytes, &mut request) {
                Err(error) => self.hear_nonsense(peer, bytes, &error),
                Ok(data) if behind == Behind::Bytes => self.hear_request(peer, &mut request, data),
                Ok(pieces) => self.hear_request_lent(peer, &mut request, pieces, bytes),
            };
        }
        match Message::parse(bytes) {
            Ok(Message::Response(token, response, data)) => self.hear_response(peer, token, &response, data),
            Ok(Message::ResponseLent(token, response, lender, pieces)) => {
                self.hear_lent(peer, token, &response, lender, pieces);
            }
            Ok(Message::Fetched(token, fail)) => self.hear_fetched(peer, token, fail),
            Ok(Message::Bye) => self.gone(peer),
            Ok(Message::Ping) => {}
            Err(error) => self.hear_nonsense(peer, bytes, &error),
        }
    }
    #[cold]
    fn hear_nonsense(&mut self, peer: u32, bytes: &[u8], error: &WireError) {
        // The answer names the interface, if that can be read.
        let ni = wire::interface_of(bytes).and_then(|ni| self.nis.get_mut(ni as usize)?.as_mut());
        if let Some(ni) = ni {
            let _ = ni.engine.reject(&Header::default(), NiFail::OpViolation);
        }
        self.malformed(peer, error);
    }

    /// The interface that a message is for; its header gets its sender, as the connection knows it.
    fn admit(&mut self, peer: u32, request: &mut Request<'_>) -> Option<&mut NiState> {
        let Self { net, nis, .. } = self;
        let identity = &net.peer(peer).identity;
        let ni = nis.get_mut(request.ni as usize)?.as_deref_mut().filter(|ni| !ni.is_closing())?;
        let header = &mut request.header;
        header.initiator = ni.process_of(identity)?;
        (header.uid, header.jid) = (identity.uid, identity.jid);
        Some(ni)
    }
    /// An interface that is not open here takes nothing, and one that is takes nothing of a process without a rank there.
    #[cold]
    fn no_interface(&mut self, peer: u32, request: &Request<'_>) {
        let ni = self.nis.get_mut(request.ni as usize).and_then(Option::as_deref_mut);
        let response = match ni.filter(|ni| !ni.is_closing()) {
            Some(ni) => ni.engine.reject(&request.header, NiFail::Dropped),
            None => request.header.refused(NiFail::Dropped),
        };
        self.respond(peer, request.token, &response, &Body::None);
    }
    fn hear_request(&mut self, peer: u32, request: &mut Request<'_>, data: &[u8]) {
        let Some(ni) = self.admit(peer, request) else { return self.no_interface(peer, request) };
        let header = &request.header;
        let carried = if header.operation.writes() { header.length } else { 0 };
        if data.len() as u64 != carried {
            let response = ni.engine.reject(header, NiFail::OpViolation);
            return self.respond(peer, request.token, &response, &Body::None);
        }
        let Some(delivery) = self.deliver(peer, request, header) else { return };
        match header.operation {
            Operation::Get => self.serve_get(peer, request, delivery),
            _ => self.combine(peer, request, delivery, data),
        }
    }
    /// Delivers a message to an entry; if there is none, answers it.
    fn deliver(&mut self, peer: u32, request: &Request<'_>, header: &Header) -> Option<Delivery> {
        match self.ni(request.ni).deliver(header) {
            Verdict::Accept(delivery) => Some(delivery),
            Verdict::Refuse(response) => {
                self.after(request.ni);
                self.respond(peer, request.token, &response, &Body::None);
                None
            }
        }
    }
    fn serve_get(&mut self, peer: u32, request: &Request<'_>, delivery: Delivery) {
        let (offset, len) = (delivery.offset, delivery.mlength);
        let memory = self.ni(request.ni).memory_of(&delivery).clone();
        if len <= self.eager_bytes as u64 {
            let mut data = vec![0; len as usize];
            memory.read(offset, &mut data);
            let response = self.ni(request.ni).complete(delivery, NiFail::Ok);
            self.after(request.ni);
            self.let_go(memory);
            return self.respond(peer, request.token, &response, &Body::Bytes(&data));
        }
        if self.peer(peer).lendings.is_full() {
            let _ = self.ni(request.ni).complete(delivery, NiFail::Dropped);
            self.after(request.ni);
            self.let_go(memory);
            return self.malformed(peer, &"more gets than the window has");
        }
        let (kind, list) = (ResponseKind::Reply, delivery.list);
        let response = Response { kind, fail: NiFail::Ok, mlength: len, offset, list };
        let pieces = memory.remote(offset, len);
        self.let_go(memory);
        let lender = self.peer(peer).lendings.insert(Lending { ni: request.ni, delivery });
        self.post(peer, Out::Lent { token: request.token, response, lender, pieces });
        self.watch();
    }
    /// Handles the end of a fetch.
    fn hear_fetched(&mut self, peer: u32, token: u32, fail: NiFail) {
        let Some(Lending { ni, delivery }) = self.peer(peer).lendings.remove(token) else {
            return self.malformed(peer, &"it fetched memory that was not lent");
        };
        // The initiator has its reply already.
        let _ = self.ni(ni).complete(delivery, fail);
        self.after(ni);
    }
    /// Atomic operations and exchanges, and puts that are traced. They are atomic among each other: all are done here, under the node's lock.
    fn combine(&mut self, peer: u32, request: &Request<'_>, delivery: Delivery, data: &[u8]) {
        let (offset, len) = (delivery.offset, delivery.mlength as usize);
        let operation = request.header.operation;
        let ni = self.ni(request.ni);
        let memory = ni.memory_of(&delivery);
        let mut bytes = vec![0; len];
        memory.read(offset, &mut bytes);
        let mut before = if operation.replies() { bytes.clone() } else { Vec::new() };
        let done = match operation.atomic() {
            None => {
                bytes.copy_from_slice(&data[..len]);
                Ok(())
            }
            Some((op, ty)) => {
                let operand = if op.needs_operand() { &request.operand[..ty.size_bytes()] } else { &[] };
                atomic::apply(op, ty, &mut bytes, &data[..len], operand, None)
            }
        };
        let fail = if done.is_ok() { NiFail::Ok } else { NiFail::OpViolation };
        if done.is_ok() {
            memory.write(offset, &bytes);
        } else {
            before.clear();
        }
        let response = ni.complete(delivery, fail);
        self.after(request.ni);
        self.respond(peer, request.token, &response, &Body::Bytes(&before));
    }
    /// As [`hear_request`](Self::hear_request) of `message`, behind whose head the memory is named that has the bytes.
    #[inline(never)]
    fn hear_request_lent(&mut self, peer: u32, request: &mut Request<'_>, pieces: &[u8], message: &[u8]) {
        let pieces = match wire::pieces(pieces) {
            Ok(pieces) => pieces,
            Err(error) => return self.hear_nonsense(peer, message, &error),
        };
        let Some(ni) = self.admit(peer, request) else { return self.no_interface(peer, request) };
        let header = &request.header;
        let good =
            header.operation == Operation::Put && pieces.total() == header.length && request.token != 0;
        if !good {
            let response = ni.engine.reject(header, NiFail::OpViolation);
            return self.respond(peer, request.token, &response, &Body::None);
        }
        let Some(delivery) = self.deliver(peer, request, header) else { return };
        if delivery.mlength == 0 || self.peer(peer).is_full_of_puts() {
            let fail = if delivery.mlength == 0 { NiFail::Ok } else { NiFail::Dropped };
            let response = self.ni(request.ni).complete(delivery, fail);
            self.after(request.ni);
            return self.respond(peer, request.token, &response, &Body::None);
        }
        let memory = self.ni(request.ni).memory_of(&delivery).clone();
        let (offset, len) = (delivery.offset, delivery.mlength);
        let whose = Fetched::Put { ni: request.ni, delivery, token: request.token };
        self.fetch(peer, whose, pieces, &memory, offset, len);
        self.let_go(memory);
    }
}

/// Cuts a fetch of `len` bytes into READs: each from one piece there, into a few pieces here.
pub(super) fn reads(from: wire::Pieces<'_>, to: &[Sge], len: u64) -> Vec<(Piece, Vec<Sge>)> {
    let mut out = Vec::new();
    let mut to = to.iter().copied().filter(|sge| sge.len > 0);
    let mut open = to.next();
    let mut left = len;
    for mut piece in from.iter() {
        while piece.len > 0 && left > 0 {
            let most = u64::from(piece.len).min(MAX_READ).min(left);
            let (mut list, mut taken) = (Vec::new(), 0);
            while let Some(sge) = &mut open
                && taken < most
                && list.len() < MAX_SGE
            {
                let n = (most - taken).min(sge.len.into()) as u32;
                list.push(Sge { len: n, ..*sge });
                taken += u64::from(n);
                (sge.addr, sge.len) = (sge.addr + u64::from(n), sge.len - n);
                if sge.len == 0 {
                    open = to.next();
                }
            }
            assert!(taken > 0, "an entry's memory is as long as what it takes");
            out.push((Piece { len: taken as u32, ..piece }, list));
            piece.at.addr = piece.at.addr.wrapping_add(taken);
            piece.len -= taken as u32;
            left -= taken;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::post::NOTHING;
    use super::*;
    use hca_core::{Lkey, RemoteAddr, Rkey};

    #[test]
    fn a_fetch_is_cut_where_pieces_of_either_side_end() {
        let from: Vec<u8> = [(100, 10), (0, 0), (500, 30)]
            .into_iter()
            .flat_map(|(addr, len)| Piece { at: RemoteAddr { addr, rkey: Rkey::new(1) }, len }.to_bytes())
            .collect();
        let response = wire::Head::response(1, &NOTHING, Some(2));
        let bytes = [response.as_bytes(), &from].concat();
        let Ok(Message::ResponseLent(.., pieces)) = Message::parse(&bytes) else { panic!() };
        let sge = |addr, len| Sge { addr, len, lkey: Lkey::new(3) };
        let cut = |to: &[Sge], len| -> Vec<_> {
            (reads(pieces, to, len).iter())
                .map(|(from, to)| {
                    (from.at.addr, from.len, to.iter().map(|s| (s.addr, s.len)).collect::<Vec<_>>())
                })
                .collect()
        };
        let to = [sge(1, 4), sge(2000, 0), sge(11, 1), sge(21, 1), sge(31, 1), sge(41, 33)];
        assert_eq!(
            cut(&to, 38),
            [
                (100, 7, vec![(1, 4), (11, 1), (21, 1), (31, 1)]),
                (107, 3, vec![(41, 3)]),
                (500, 28, vec![(44, 28)])
            ]
        );
        // The last piece here is longer than what is left there.
        let to = [sge(1, 4), sge(11, 36)];
        assert_eq!(cut(&to, 40), [(100, 10, vec![(1, 4), (11, 6)]), (500, 30, vec![(17, 30)])]);
    }
}
