//! The calls that send: requests, and accesses to the segments of peers.

use std::ops::Range;

use crate::bundle::Bundle;
use crate::endpoint::{Link, Mapped, Open, SMALL, Side};
use crate::instrument::{self, Part, mark};
use crate::lower::{LinkId, Lower, Unsent};
use crate::message::{Load, MAX_BULK, Pause};
use crate::segment::{Remote, Segment, Source};
use crate::wire::Head;
use crate::{EndpointId, Error};

/// Bytes of accesses between two looks for what has come, at most, and of a piece that a device writes to a near peer
/// within the post.
const UNATTENDED: usize = 1 << 18;

impl Bundle {
    /// Sends a short request (`AM_Request`). Waits for a credit if there is none, and handles messages meanwhile.
    ///
    /// # Errors
    /// There is no such endpoint, the index is not mapped, there are too many arguments, or the peer has gone.
    #[inline]
    pub fn request(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        handler: u16,
        args: &[u32],
    ) -> Result<(), Error> {
        self.send(endpoint, index, handler, args, &Load::Short, true)
    }
    /// Sends a medium request (`AM_RequestI`). The payload is copied.
    ///
    /// # Errors
    /// As [`request`](Self::request), or the payload is longer than the peer takes.
    pub fn request_medium(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        handler: u16,
        args: &[u32],
        data: &[u8],
    ) -> Result<(), Error> {
        self.send(endpoint, index, handler, args, &Load::Medium(data), true)
    }
    /// Writes into the peer's segment from `offset` on, and then sends the request (`AM_RequestXfer`).
    ///
    /// # Errors
    /// As [`request`](Self::request), or the range does not lie in one of the segments.
    pub fn request_bulk<'s>(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        handler: u16,
        args: &[u32],
        source: impl Into<Source<'s>>,
        offset: u64,
    ) -> Result<(), Error> {
        self.send(endpoint, index, handler, args, &Load::Bulk(source.into(), offset), true)
    }
    /// As [`request`](Self::request), and returns instead of waiting.
    ///
    /// # Errors
    /// As there, or [`Error::NotSent`].
    pub fn try_request(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        handler: u16,
        args: &[u32],
    ) -> Result<(), Error> {
        self.send(endpoint, index, handler, args, &Load::Short, false)
    }
    /// As [`request_medium`](Self::request_medium), and returns instead of waiting.
    ///
    /// # Errors
    /// As there, or [`Error::NotSent`].
    pub fn try_request_medium(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        handler: u16,
        args: &[u32],
        data: &[u8],
    ) -> Result<(), Error> {
        self.send(endpoint, index, handler, args, &Load::Medium(data), false)
    }
    /// As [`request_bulk`](Self::request_bulk), and returns instead of waiting (`AM_RequestXferAsync`).
    ///
    /// # Errors
    /// As there, or [`Error::NotSent`].
    pub fn try_request_bulk<'s>(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        handler: u16,
        args: &[u32],
        source: impl Into<Source<'s>>,
        offset: u64,
    ) -> Result<(), Error> {
        self.send(endpoint, index, handler, args, &Load::Bulk(source.into(), offset), false)
    }

    /// Begins to write into the segment of a mapped peer from `offset` on, by RDMA: no handler runs, and the peer's
    /// program has no part in it. [`sync`](Self::sync) waits for the end. Accesses of a link, and its bulk messages,
    /// are carried out in their order.
    ///
    /// # Errors
    /// There is no such endpoint, the index is not mapped, the range does not lie in one of the segments, or the peer has
    /// gone.
    #[inline]
    pub fn write<'s>(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        source: impl Into<Source<'s>>,
        offset: u64,
    ) -> Result<(), Error> {
        let source = source.into();
        if !source.is_whole() {
            return Err(Error::Segment { offset, len: source.len() as u64, segment: 0 });
        }
        let (id, to) = self.reach(endpoint, index, offset, source.len() as u64)?;
        let most = if self.lower.is_near(id) { UNATTENDED } else { usize::MAX };
        source.each_access(to, most, |piece, to| {
            self.post(true, |lower| lower.write(id, piece, to))?;
            self.attend(piece.len());
            Ok(())
        })
    }
    /// Begins to read from the segment of a mapped peer, from `offset` on, into a range of a segment of this bundle, as
    /// [`write`](Self::write) does.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        offset: u64,
        into: &Segment,
        range: Range<usize>,
    ) -> Result<(), Error> {
        if !Source::Segment(into, range.clone()).is_whole() {
            return Err(Error::Segment { offset, len: range.len() as u64, segment: 0 });
        }
        let (id, from) = self.reach(endpoint, index, offset, range.len() as u64)?;
        self.post(true, |lower| lower.read(id, into, range.clone(), from))?;
        self.attend(range.len());
        Ok(())
    }
    /// Looks for what has come, behind so many bytes of accesses; a short one counts as a line of the caches. A program
    /// that writes and makes no other call would leave the rest of its long writes, and what its peers send, to the
    /// adapter's thread, which works beside it. Handlers run in later calls.
    #[inline]
    fn attend(&mut self, accessed: usize) {
        self.unattended += accessed.max(64);
        if self.unattended >= UNATTENDED {
            self.unattended = 0;
            self.lower.poll(&mut self.events);
        }
    }
    /// Waits until all reads and writes of a mapped index have ended: what was written lies in the peer's memory. No
    /// handler runs meanwhile.
    ///
    /// # Errors
    /// There is no such endpoint, the index is not mapped, or the peer has gone.
    #[inline]
    pub fn sync(&mut self, endpoint: EndpointId, index: usize) -> Result<(), Error> {
        let id = self.link_of(endpoint, index)?;
        let mut pause = Pause::default();
        loop {
            match self.lower.accesses(id, &mut self.events) {
                Ok(0) => return Ok(()),
                Ok(_) => {
                    // A peer that has left answers no access.
                    self.look_at_times();
                    pause.wait(&mut *self.lower, &mut self.events)?;
                }
                Err(_) => return Err(Error::Unreachable),
            }
        }
    }
    /// The link of an index, and a range of its peer's segment.
    #[inline]
    fn reach(
        &self,
        endpoint: EndpointId,
        index: usize,
        offset: u64,
        len: u64,
    ) -> Result<(LinkId, Remote), Error> {
        let id = self.link_of(endpoint, index)?;
        let Some(link) = self.link(id) else { return Err(Error::Unreachable) };
        let segment = link.segment();
        if len > MAX_BULK {
            return Err(Error::Length { len: len as usize, max: MAX_BULK as usize });
        }
        if !segment.has(offset, len) {
            return Err(Error::Segment { offset, len, segment: segment.len });
        }
        Ok((id, segment.part(offset, len)))
    }

    #[inline]
    fn send(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        handler: u16,
        args: &[u32],
        load: &Load<'_>,
        waits: bool,
    ) -> Result<(), Error> {
        instrument::begin();
        let id = self.link_of(endpoint, index)?;
        self.credit(id, waits)?;
        let link = self.link(id).ok_or(Error::Unreachable)?;
        let max_medium = link.peer.map_or(0, |peer| peer.max_medium as usize);
        let segment = link.segment();
        let body = load.check(args, max_medium, segment)?;
        let write = load.write(segment);
        if let Some((source, to)) = write {
            // Behind a WRITE the message has to follow.
            if !waits && !self.lower.has_room(id, &mut self.events) {
                return Err(Error::NotSent);
            }
            // Behind the first piece the others have to follow.
            source.each_piece(to, |piece, to, first| {
                self.post(waits || !first, |lower| lower.put(id, piece, to))
            })?;
        }
        let head = Head::request(handler, args, &body);
        let (head, payload) = (head.bytes(), body.payload());
        mark(Part::SendBookkeeping);
        let waits = waits || write.is_some();
        let kept = if payload.len() > SMALL {
            Some(self.post(waits, |lower| lower.send_kept(id, head, payload))?)
        } else {
            self.post(waits, |lower| lower.send(id, head, payload))?;
            None
        };
        if let Some(Link { side: Side::Mapped(mapped), .. }) = self.link_mut(id) {
            mapped.open.push_back(Open::new(head, payload, kept));
        }
        mark(Part::SendBookkeeping);
        Ok(())
    }
    #[inline]
    fn post<T>(
        &mut self,
        waits: bool,
        mut send: impl FnMut(&mut dyn Lower) -> Result<T, Unsent>,
    ) -> Result<T, Error> {
        match send(&mut *self.lower) {
            Ok(sent) => Ok(sent),
            Err(Unsent::Down) => Err(Error::Unreachable),
            Err(Unsent::NoMemory) => Err(Error::NoMemory),
            Err(Unsent::Full) => self.post_in_time(waits, send),
        }
    }
    /// Sends once there is room, or if there is once the ends of others are taken. Events that come meanwhile are handled
    /// later.
    #[cold]
    fn post_in_time<T>(
        &mut self,
        waits: bool,
        mut send: impl FnMut(&mut dyn Lower) -> Result<T, Unsent>,
    ) -> Result<T, Error> {
        let mut pause = Pause::default();
        self.lower.take_ends(&mut self.events);
        loop {
            match send(&mut *self.lower) {
                Ok(sent) => return Ok(sent),
                Err(Unsent::Down) => return Err(Error::Unreachable),
                Err(Unsent::NoMemory) => return Err(Error::NoMemory),
                Err(Unsent::Full) if !waits => return Err(Error::NotSent),
                Err(Unsent::Full) => {}
            }
            pause.wait(&mut *self.lower, &mut self.events)?;
            // A peer that has left makes no room.
            self.look_at_times();
        }
    }
    /// Waits for a credit.
    #[inline]
    fn credit(&mut self, id: LinkId, waits: bool) -> Result<(), Error> {
        let mut pause = Pause::default();
        loop {
            match self.link(id) {
                Some(Link { side: Side::Mapped(Mapped { open, credits, down: false, .. }), .. }) => {
                    if open.len() < *credits {
                        return Ok(());
                    }
                }
                _ => return Err(Error::Unreachable),
            }
            if !waits {
                return Err(Error::NotSent);
            }
            if self.poll()? == 0 {
                pause.wait(&mut *self.lower, &mut self.events)?;
            }
        }
    }
}
