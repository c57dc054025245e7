//! Posting of messages: at once if the peer's backlog is empty, else by the backlog.

use hca_core::{Completion, PostErrorKind, WcStatus};
use hca_matching::{ListKind, NiFail, Response, ResponseKind};

use super::peer::{Out, WINDOW};
use super::ports::{post_inline, post_read};
use super::{Net, State};
use crate::memory::Pieces;
use crate::wire::{Head, MAX_HEAD, PIECE_BYTES, Piece};

/// Bytes that a message carries inline at most.
pub(super) const MAX_INLINE: usize = 256;
/// Posts that tell nothing, in a row, at most.
const MAX_SILENT: u32 = 16;
/// The bit of a `wr_id` behind which the fetch stands.
const FETCH_SHIFT: u32 = 32;

/// The body of a message, after its head.
pub(super) enum Body<'a> {
    None,
    Bytes(&'a [u8]),
    /// Bytes of memory, from an offset on.
    Memory(&'a Pieces, u64, usize),
    /// Where the bytes are.
    Where(&'a [Piece]),
}

impl Body<'_> {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(_, _, len) => *len,
            Self::Where(pieces) => pieces.len() * PIECE_BYTES,
        }
    }
    #[inline(always)]
    fn write(&self, out: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Bytes(bytes) => out.copy_from_slice(bytes),
            Self::Memory(memory, offset, _) => memory.read(*offset, out),
            Self::Where(pieces) => {
                for (piece, out) in pieces.iter().zip(out.chunks_exact_mut(PIECE_BYTES)) {
                    out.copy_from_slice(&piece.to_bytes());
                }
            }
        }
    }
}

/// There is no room now.
pub(super) struct Full;

/// A post was refused: the queue is full, or the queue pair is no more, which its completions tell.
#[cold]
fn refused(peer: u32, error: PostErrorKind) -> Result<(), Full> {
    if !matches!(error, PostErrorKind::QueueFull { .. }) {
        tracing::debug!(peer, %error, "a queue pair to a Portals peer takes no more requests");
    }
    Err(Full)
}

impl Net {
    /// Posts a message, if there is room for it on the queue pair, the completion queue and among the slots.
    #[inline(always)]
    pub(super) fn send(&mut self, peer: u32, head: &mut Head, body: &Body<'_>) -> Result<(), Full> {
        let Self { peers, ports, in_use, crowded, bundles, .. } = self;
        let of = peers[peer as usize].as_deref_mut().expect("a peer that is there");
        let (outstanding, depth) = (of.outstanding(), of.depth);
        let is_crowded = *in_use >= ports.budget / 2 || outstanding * 2 >= depth;
        if is_crowded && (outstanding >= depth || *in_use >= ports.budget) {
            return Err(Full);
        }
        let begin = head.as_bytes().len();
        let len = begin + body.len();
        if len > ports.max_inline {
            return self.send_slot(peer, head.as_bytes(), body);
        }
        let mut long;
        let message = match head.with_body(body.len()) {
            Some(message) => message,
            None => {
                long = [0; MAX_INLINE];
                long[..begin].copy_from_slice(head.as_bytes());
                &mut long[..len]
            }
        };
        body.write(&mut message[begin..]);
        let signaled = of.silent + 1 >= MAX_SILENT || is_crowded;
        let posted = of.posted.wrapping_add(1);
        let later = *bundles > 0;
        if let Err(error) = post_inline(of.qp(), posted.into(), message, signaled, later) {
            return refused(peer, error);
        }
        of.posted = posted;
        of.silent = if signaled { 0 } else { of.silent + 1 };
        *in_use += 1;
        *crowded |= is_crowded;
        if later {
            self.ring_later(peer);
        }
        Ok(())
    }
    #[inline(never)]
    fn send_slot(&mut self, peer: u32, head: &[u8], body: &Body<'_>) -> Result<(), Full> {
        let slot = self.ports.take_slot().ok_or(Full)?;
        self.ports.write_slot(slot, head, body.len(), |out| body.write(out));
        let of = self.peers[peer as usize].as_mut().expect("a peer that is there");
        let posted = of.posted.wrapping_add(1);
        let later = self.bundles > 0;
        match self.ports.post_slot(of.qp(), posted.into(), slot, head.len() + body.len(), later) {
            Ok(()) => {
                (of.posted, of.silent) = (posted, 0);
                of.slots.push_back((posted, slot));
                self.in_use += 1;
                if later {
                    self.ring_later(peer);
                }
                Ok(())
            }
            Err(error) => {
                self.ports.free_slot(slot);
                refused(peer, error)
            }
        }
    }
    /// Defers the doorbell of a peer's queue pair to the bundle's end.
    #[inline(never)]
    fn ring_later(&mut self, peer: u32) {
        let of = self.peers[peer as usize].as_mut().expect("a peer that is there");
        if !std::mem::replace(&mut of.unrung, true) {
            self.unrung.push(peer);
        }
    }
    /// Tells the device of all that was posted in bundles.
    #[cold]
    pub(super) fn ring(&mut self) {
        for peer in std::mem::take(&mut self.unrung) {
            if let Some(of) = self.peers[peer as usize].as_mut()
                && std::mem::take(&mut of.unrung)
            {
                of.qp().ring();
            }
        }
    }
    fn read(&mut self, peer: u32, fetch: u32, from: Piece, to: &[hca_core::Sge]) -> Result<(), Full> {
        let of = self.peers[peer as usize].as_mut().expect("a peer that is there");
        if of.outstanding() >= of.depth || self.in_use >= self.ports.budget {
            return Err(Full);
        }
        let posted = of.posted.wrapping_add(1);
        let wr_id = u64::from(fetch) << FETCH_SHIFT | u64::from(posted);
        match post_read(of.qp(), wr_id, from.at, to) {
            Ok(()) => {
                (of.posted, of.silent) = (posted, 0);
                self.in_use += 1;
                Ok(())
            }
            Err(error) => refused(peer, error),
        }
    }
}

impl State {
    /// Posts something, now or behind what waits already.
    pub(super) fn post(&mut self, peer: u32, out: Out) {
        let left = if self.peer(peer).is_clear() { self.try_post(peer, out) } else { Some(out) };
        if let Some(out) = left {
            self.wait_for_room(peer, out);
        }
    }
    /// Leaves something in the backlog, to be posted when there is room.
    #[cold]
    pub(super) fn wait_for_room(&mut self, peer: u32, out: Out) {
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        of.answers += u32::from(out.is_answer());
        of.backlog.push_back(out);
        self.block(peer);
    }
    fn block(&mut self, peer: u32) {
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        if of.is_up() && !std::mem::replace(&mut of.blocked, true) {
            self.blocked.push_back(peer);
        }
    }
    /// Tries to post; returns the message if there is no room.
    fn try_post(&mut self, peer: u32, out: Out) -> Option<Out> {
        let sent = match &out {
            Out::Request(token) => return self.post_request(peer, *token).err().map(|Full| out),
            Out::Response { token, response, data } => {
                self.net.send(peer, &mut Head::response(*token, response, None), &Body::Bytes(data))
            }
            Out::Lent { token, response, lender, pieces } => self.net.send(
                peer,
                &mut Head::response(*token, response, Some(*lender)),
                &Body::Where(pieces),
            ),
            Out::Fetched { token, fail } => {
                self.net.send(peer, &mut Head::fetched(*token, *fail), &Body::None)
            }
            Out::Read { fetch, from, to } => self.net.read(peer, *fetch, *from, to),
            Out::Ping => self.net.send(peer, &mut Head::ping(), &Body::None),
            Out::Bye => self.net.send(peer, &mut Head::bye(), &Body::None),
        };
        sent.err().map(|Full| out)
    }
    /// Answers an operation, if its initiator waits for that.
    #[inline(always)]
    pub(super) fn respond(&mut self, peer: u32, token: u32, response: &Response, body: &Body<'_>) {
        if token != 0 {
            self.answer(peer, token, response, body);
        }
    }
    #[inline(never)]
    fn answer(&mut self, peer: u32, token: u32, response: &Response, body: &Body<'_>) {
        if self.peer(peer).is_clear()
            && self.net.send(peer, &mut Head::response(token, response, None), body).is_ok()
        {
            return;
        }
        let mut data = vec![0; body.len()];
        body.write(&mut data);
        self.wait_for_room(peer, Out::Response { token, response: *response, data });
        // A node asks for no more than the window at once; a peer that does must not fill this node's memory.
        if self.peer(peer).answers > WINDOW {
            self.malformed(peer, &"more operations than the window has");
        }
    }

    /// Sends an operation that is kept under a token.
    pub(super) fn post_request(&mut self, peer: u32, token: u32) -> Result<(), Full> {
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        let Some(flying) = of.flying.get_mut(token) else { return Ok(()) };
        let (transfer, ni) = (flying.flight.transfer, flying.ni);
        let answered = flying.flight.is_answered();
        let copy = flying.copy.take();
        let lent = self.is_lent(&transfer);
        let wanted = if answered || lent { token } else { 0 };
        let of_ni = self.nis[ni as usize].as_deref().expect("operations hold their interface");
        let sent = self.net.send_transfer(peer, ni, of_ni, &transfer, wanted, copy.as_deref(), lent);
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        let Some(flying) = of.flying.get_mut(token) else { return Ok(()) };
        if let Err(full) = sent {
            flying.copy = copy;
            return Err(full);
        }
        flying.gone = true;
        if !flying.unsent || lent {
            return Ok(());
        }
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        let flying = of.flying.get_mut(token).expect("it was just there");
        flying.unsent = false;
        self.nis[ni as usize].as_mut().expect("operations hold it").engine.sent(&flying.flight, NiFail::Ok);
        if !answered {
            of.flying.remove(token);
        }
        self.after(ni);
        Ok(())
    }

    /// A request of a connected queue pair has completed, and with it all before it.
    #[inline(never)]
    pub(super) fn request_done(&mut self, wc: &Completion) {
        let Some(peer) = self.peer_of(wc) else { return };
        let of = self.net.peers[peer as usize].as_mut().expect("it was found");
        let upto = wc.wr_id as u32;
        let newly = upto.wrapping_sub(of.done);
        if newly <= of.outstanding() {
            of.done = upto;
            self.net.in_use -= newly;
            while let Some(&(post, slot)) = of.slots.front() {
                if upto.wrapping_sub(post) as i32 >= 0 {
                    of.slots.pop_front();
                    self.net.ports.free_slot(slot);
                } else {
                    break;
                }
            }
        }
        let waits = !of.backlog.is_empty();
        if wc.status != WcStatus::Success {
            return self.lost(peer, &wc.status);
        }
        let fetch = (wc.wr_id >> FETCH_SHIFT) as u32;
        if fetch != 0 {
            self.fetched_part(peer, fetch);
        }
        if waits {
            self.ready.push(peer);
        }
        // Room that was freed here may be what another waits for.
        if let Some(next) = self.blocked.pop_front() {
            if let Some(of) = self.net.peers[next as usize].as_mut() {
                of.blocked = false;
            }
            self.ready.push(next);
        }
    }
    /// Posts what waited, of the peers that have room.
    #[cold]
    pub(super) fn post_backlogs(&mut self) {
        for peer in std::mem::take(&mut self.ready) {
            self.post_backlog(peer);
        }
    }
    pub(super) fn post_backlog(&mut self, peer: u32) {
        while let Some(of) =
            self.net.peers.get_mut(peer as usize).and_then(Option::as_mut).filter(|p| p.is_up())
        {
            let Some(out) = of.backlog.pop_front() else { return self.let_wait(peer) };
            let answers = u32::from(out.is_answer());
            if let Some(out) = self.try_post(peer, out) {
                self.peer(peer).backlog.push_front(out);
                return self.block(peer);
            }
            self.peer(peer).answers -= answers;
        }
    }
}

impl Out {
    /// Whether the peer waits for it, in whose window its operation has a place.
    fn is_answer(&self) -> bool {
        matches!(self, Self::Response { .. })
    }
}

/// What an initiator hears that asked for nothing.
pub(super) const NOTHING: Response =
    Response { kind: ResponseKind::None, fail: NiFail::Ok, mlength: 0, offset: 0, list: ListKind::Priority };

const _: () = assert!(MAX_HEAD <= 128, "a head fits what requests carry inline, or a slot");
