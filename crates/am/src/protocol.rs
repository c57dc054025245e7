//! The protocol of links: requests are answered in their order, and credits come back with the answers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::bundle::Bundle;
use crate::endpoint::{Link, Side};
use crate::instrument::{self, Part, mark};
use crate::lower::{Event, LinkId, Received};
use crate::message::{Answer, Message, Returned, Token, surely};
use crate::segment::{Remote, Segment};
use crate::wire::{Body, Call, Frame, Head, Hello, parse};
use crate::{EndpointId, Reason, Tag};

impl Bundle {
    #[inline]
    pub(crate) fn link(&self, id: LinkId) -> Option<&Link> {
        self.links.get(id.place())?.as_ref().filter(|link| link.id == id)
    }
    #[inline]
    pub(crate) fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(id.place())?.as_mut().filter(|link| link.id == id)
    }
    pub(crate) fn put(&mut self, link: Link) {
        let place = link.id.place();
        if place >= self.links.len() {
            self.links.resize_with(place + 1, || None);
        }
        self.links[place] = Some(link);
    }
    pub(crate) fn end(&mut self, id: LinkId) {
        if self.link(id).is_some() {
            self.lower.close(id);
            self.links[id.place()] = None;
        }
    }
    #[inline]
    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Received(id, received) => {
                if let Err(what) = self.receive(id, &received) {
                    tracing::warn!(what, "a peer breaks the protocol: its link ends");
                    self.lose(id);
                }
                self.lower.recycle(id, received);
                self.go_on_with_panic();
            }
            Event::Accepted(endpoint, id) => {
                if self.endpoints.at(endpoint).is_some() {
                    self.put(Link { id, endpoint, peer: None, side: Side::Accepted(0) });
                } else {
                    self.lower.close(id);
                }
            }
            Event::Down(id) => {
                self.lose(id);
                self.go_on_with_panic();
            }
        }
    }
    #[inline]
    pub(crate) fn go_on_with_panic(&mut self) {
        if let Some(panic) = self.panic.take() {
            resume_unwind(panic);
        }
    }
    /// A link has failed: what was not answered comes back.
    #[cold]
    pub(crate) fn lose(&mut self, id: LinkId) {
        let Some(link) = self.link_mut(id) else { return };
        let (endpoint, Side::Mapped(mapped)) = (link.endpoint, &mut link.side) else {
            return self.end(id);
        };
        mapped.down = true;
        let (index, open) = (mapped.index, std::mem::take(&mut mapped.open));
        let back: Vec<Vec<u8>> = open
            .iter()
            .map(|open| open.kept.map_or_else(|| open.bytes().to_vec(), |kept| self.lower.kept(id, kept)))
            .collect();
        for kept in open.iter().filter_map(|open| open.kept) {
            self.lower.let_go(id, kept);
        }
        // The link stays in its place, so that the index is known to be lost until the program unmaps it.
        self.lower.close(id);
        for bytes in back {
            self.give_back(endpoint, index, Reason::Unreachable, &bytes);
        }
    }
    /// Calls the error handler with a request.
    #[cold]
    fn give_back(&mut self, endpoint: EndpointId, index: usize, reason: Reason, bytes: &[u8]) {
        let Ok(Frame::Request(call)) = parse(bytes) else { return };
        self.tell_returned(endpoint, index, reason, &call);
    }
    #[cold]
    fn tell_returned(&mut self, endpoint: EndpointId, index: usize, reason: Reason, call: &Call<'_>) {
        let data = call.body.payload();
        let range = if let Body::Bulk { offset, len } = call.body { Some((offset, len)) } else { None };
        let args = &call.args.read();
        let is_medium = matches!(call.body, Body::Medium(_));
        let returned = Returned { reason, index, handler: call.handler, args, data, range, is_medium };
        let Some(endpoint) = self.endpoints.at_mut(endpoint) else { return };
        match &mut endpoint.on_return {
            Some(handler) => {
                // Its panic goes on once the bundle is in order.
                let told = catch_unwind(AssertUnwindSafe(|| handler(&returned)));
                self.panic = told.err().or(self.panic.take());
            }
            None => tracing::warn!(%reason, index, handler = call.handler, "a message came back"),
        }
    }

    /// Handles a message. The error is a rule that the peer breaks.
    #[inline]
    fn receive(&mut self, id: LinkId, received: &Received) -> Result<(), &'static str> {
        instrument::begin();
        let (credits, max_medium) = (self.options.credits, self.options.max_medium as u32);
        let Some(link) = self.link_mut(id) else { return Ok(()) };
        let endpoint = link.endpoint;
        let frame = match parse(received.bytes()) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::debug!(%error, "bytes of a peer are no message");
                return Err("bytes that are no message");
            }
        };
        mark(Part::ReadData);
        match (frame, &mut link.side) {
            (Frame::Hello(hello), side) => {
                if link.peer.is_some() {
                    return Err("a second hello");
                }
                if let Side::Mapped(mapped) = side {
                    mapped.credits = credits.min(hello.credits).into();
                }
                // The places that messages are sent from are as long as the messages that this side takes.
                link.peer = Some(Hello { max_medium: hello.max_medium.min(max_medium), ..hello });
                Ok(())
            }
            _ if link.peer.is_none() => Err("a message before the hello"),
            (Frame::Request(call), Side::Accepted(_)) => {
                self.serve(id, endpoint, &call);
                mark(Part::Act);
                Ok(())
            }
            (Frame::Reply { acks, call }, Side::Mapped(_)) => {
                self.close_requests(id, usize::from(acks) + 1)?;
                mark(Part::ProcessReceived);
                self.take_reply(id, endpoint, &call);
                mark(Part::Act);
                Ok(())
            }
            (Frame::Ack(acks), Side::Mapped(_)) => self.close_requests(id, acks.into()).map(drop),
            (Frame::Returned { acks, reason }, Side::Mapped(mapped)) => {
                let (index, at) = (mapped.index, usize::from(acks));
                let back = mapped.open.get(at).ok_or("an answer without a request")?;
                let bytes = match back.kept {
                    Some(kept) => self.lower.kept(id, kept),
                    None => back.bytes().to_vec(),
                };
                self.close_requests(id, at + 1)?;
                self.give_back(endpoint, index, reason, &bytes);
                Ok(())
            }
            (Frame::Request(_), Side::Mapped(_)) => Err("a request against the direction of the link"),
            (_, Side::Accepted(_)) => Err("an answer against the direction of the link"),
        }
    }
    /// The oldest requests have ended.
    #[inline]
    fn close_requests(&mut self, id: LinkId, count: usize) -> Result<(), &'static str> {
        let Some(Some(Link { side: Side::Mapped(mapped), .. })) = self.links.get_mut(id.place()) else {
            return Ok(());
        };
        if count > mapped.open.len() {
            return Err("an answer without a request");
        }
        for open in mapped.open.drain(..count) {
            if let Some(kept) = open.kept {
                self.lower.let_go(id, kept);
            }
        }
        Ok(())
    }
    #[inline]
    fn take_reply(&mut self, id: LinkId, endpoint: EndpointId, call: &Call<'_>) {
        let mut answered = false;
        let refused = self.dispatch_caught(id, endpoint, call, false, &mut answered).err();
        if refused.is_some_and(|reason| reason != Reason::HandlerPanicked)
            && let Some(Link { side: Side::Mapped(mapped), .. }) = self.link(id)
        {
            let index = mapped.index;
            self.tell_returned(endpoint, index, Reason::ReplyRejected, call);
        }
    }
    /// Handles a request, and sees to it that it is answered.
    #[inline]
    fn serve(&mut self, id: LinkId, endpoint: EndpointId, call: &Call<'_>) {
        let mut answered = false;
        let handled = self.dispatch_caught(id, endpoint, call, true, &mut answered);
        let threshold = (self.options.credits / 2).max(1);
        let Some(link) = self.link_mut(id) else { return };
        let Side::Accepted(owed) = &mut link.side else { return };
        if answered {
            *owed = 0;
        } else if let Err(reason) = handled {
            let head = Head::returned(std::mem::take(owed), reason);
            let _ = surely(&mut *self.lower, &mut self.events, |lower| lower.send(id, head.bytes(), &[]));
        } else {
            *owed += 1;
            let owed = *owed;
            if owed >= threshold {
                self.pay(id);
            } else if owed == 1 && !self.owing.contains(&id) {
                self.owing.push(id);
            }
        }
    }
    /// Calls a handler. Its panic goes on once the message is done with.
    #[inline]
    fn dispatch_caught(
        &mut self,
        id: LinkId,
        endpoint: EndpointId,
        call: &Call<'_>,
        is_request: bool,
        answered: &mut bool,
    ) -> Result<(), Reason> {
        match catch_unwind(AssertUnwindSafe(|| self.dispatch(id, endpoint, call, is_request, answered))) {
            Ok(handled) => handled,
            Err(thrown) => {
                self.panic = Some(thrown);
                Err(Reason::HandlerPanicked)
            }
        }
    }
    /// Calls the handler of a request or a reply.
    #[inline]
    fn dispatch(
        &mut self,
        id: LinkId,
        at: EndpointId,
        call: &Call<'_>,
        is_request: bool,
        answered: &mut bool,
    ) -> Result<(), Reason> {
        let Self { lower, events, links, endpoints, way, in_run, .. } = self;
        let Some(Some(Link { peer: Some(peer), side, .. })) = links.get(id.place()) else {
            return Err(Reason::BadEndpoint);
        };
        let Some(endpoint) = endpoints.at_mut(at) else { return Err(Reason::BadEndpoint) };
        if is_request && !endpoint.tag.admits(Tag(peer.tag)) {
            return Err(Reason::BadTag);
        }
        if let Body::Bulk { offset, len } = call.body {
            let own = endpoint.segment.as_ref().map(Segment::remote).unwrap_or_default();
            if offset > own.len {
                return Err(Reason::BadSegmentOffset);
            }
            if !own.has(offset, len) {
                return Err(Reason::BadLength);
            }
        }
        let Some(Some(handler)) = endpoint.handlers.get_mut(usize::from(call.handler)) else {
            return Err(Reason::BadHandler);
        };
        let message = Message {
            args: &call.args.read(),
            body: call.body,
            endpoint: at,
            way: *way,
            peer,
            segment: endpoint.segment.as_ref(),
            is_request,
        };
        let token = if is_request {
            let acks = if let Side::Accepted(owed) = side { *owed } else { 0 };
            let remote = Remote { addr: peer.segment_addr, len: peer.segment_len, key: peer.segment_key };
            let max_medium = peer.max_medium as usize;
            Token(Some(Answer {
                lower: &mut **lower,
                events,
                link: id,
                acks,
                max_medium,
                peer: remote,
                answered,
                waits: !*in_run,
            }))
        } else {
            Token(None)
        };
        handler(&message, token);
        Ok(())
    }
    /// Tells a peer of its requests that have ended without a reply.
    fn pay(&mut self, id: LinkId) {
        let Some(Link { side: Side::Accepted(owed), .. }) = self.link_mut(id) else { return };
        let acks = std::mem::take(owed);
        if acks > 0 {
            let head = Head::ack(acks);
            // A link that has failed is told of by an event.
            let _ = surely(&mut *self.lower, &mut self.events, |lower| lower.send(id, head.bytes(), &[]));
        }
    }
    pub(crate) fn settle(&mut self) {
        for id in std::mem::take(&mut self.owing) {
            self.pay(id);
        }
    }
}
