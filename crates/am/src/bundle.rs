//! Bundles: endpoints that are polled together, and the calls of programs.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use hca_process::{after, in_time};
use hca_verbs::{AckTimeout, Context};

use crate::endpoint::{Endpoint, Endpoints, Link, Mapped, Side, Translation};
use crate::lower::{Event, LinkId, Lower, Sleeper, Verbs, Via};
use crate::message::{Message, Pause, Returned, Token};
use crate::segment::Segment;
use crate::wire::Hello;
use crate::{EndpointId, EndpointName, Error, EventMask, Tag, Way};

/// The options of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The requests to one peer that may wait for their answers, at most; the peer's setting counts as well. 1 to 256.
    pub credits: u16,
    /// The most bytes of a medium message that the endpoints take and send, at most 64 KiB; the peer's setting counts as
    /// well.
    pub max_medium: usize,
    /// The most links: peers that were mapped, and peers that have mapped an endpoint of the bundle.
    pub max_links: usize,
    /// Entries of a handler table.
    pub handlers: u16,
    /// Entries of a translation table at first.
    pub translations: usize,
    /// How long a map waits for the peer.
    pub map_timeout: Duration,
    /// While the program polls or waits, mapped peers are asked for a sign of life so often.
    pub probe_interval: Duration,
    /// The time that a peer's adapter has for an acknowledgement; a silent peer is given up after eight such times.
    pub ack_timeout: AckTimeout,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credits: 16,
            max_medium: 4096,
            max_links: 64,
            handlers: 256,
            translations: 256,
            map_timeout: Duration::from_secs(20),
            probe_interval: Duration::from_millis(100),
            // 0.27 s.
            ack_timeout: AckTimeout::new(16),
        }
    }
}

/// Entries of a translation table at most (`AM_MaxNumTranslations`): as many as the links of a bundle.
pub const MAX_TRANSLATIONS: usize = 1 << 16;
/// Polls between two looks at the clock, at most.
const POLLS_A_CLOCK: u32 = 256;

/// Messages that a run of the device handles at most.
const A_RUN: usize = 64;

/// A sequential bundle: a set of endpoints that are polled together, by one thread at a time.
///
/// Handlers are called by [`poll`](Self::poll), and by calls that wait. A handler runs to its end before the next one
/// begins.
pub struct Bundle {
    pub(crate) lower: Box<dyn Lower>,
    pub(crate) options: Options,
    pub(crate) way: Way,
    pub(crate) endpoints: Endpoints,
    pub(crate) links: Vec<Option<Link>>,
    pub(crate) events: VecDeque<Event>,
    /// Links whose peers have to be told of requests that have ended.
    pub(crate) owing: Vec<LinkId>,
    /// The panic of a handler, until its message is done with.
    pub(crate) panic: Option<Box<dyn std::any::Any + Send>>,
    /// The device runs it, whose thread must not wait.
    pub(crate) in_run: bool,
    /// A run has handled something that a [wait](Self::wait) is to tell of.
    told: bool,
    /// Bytes of accesses since the last look for what has come behind them.
    pub(crate) unattended: usize,
    next_look: Instant,
    /// The last look at the clock, and the polls from one to the next.
    clock: (Instant, u32),
    until_clock: u32,
}

impl Bundle {
    /// A bundle on a device, with the layer below of choice (`AM_AllocateBundle`).
    ///
    /// # Errors
    /// The device's limits; over VIs also a device without descriptors to wait on.
    pub fn open(context: &Context, way: Way) -> Result<Self, Error> {
        Self::open_with(context, way, &Options::default())
    }
    /// As [`open`](Self::open), with options.
    ///
    /// # Errors
    /// As [`open`](Self::open), or an option is out of its range.
    pub fn open_with(context: &Context, way: Way, options: &Options) -> Result<Self, Error> {
        Self::build(context, way, options, false)
    }
    pub(crate) fn build(
        context: &Context,
        way: Way,
        options: &Options,
        by_hand: bool,
    ) -> Result<Self, Error> {
        if !(1..=256).contains(&options.credits) {
            return Err(Error::Limit { what: "credits, from 1", max: 256 });
        }
        if options.max_medium > 1 << 16 {
            return Err(Error::Limit { what: "max_medium", max: 1 << 16 });
        }
        if !(1..=1 << 16).contains(&options.max_links) {
            return Err(Error::Limit { what: "max_links, from 1", max: 1 << 16 });
        }
        if options.translations > MAX_TRANSLATIONS {
            return Err(Error::Limit { what: "translations", max: MAX_TRANSLATIONS });
        }
        let lower: Box<dyn Lower> = match way {
            Way::Verbs => Box::new(Verbs::open(context, options)?),
            Way::Via => Box::new(Via::open(context, options, by_hand)?),
        };
        Ok(Self {
            lower,
            options: *options,
            way,
            endpoints: Endpoints::default(),
            links: Vec::new(),
            events: VecDeque::new(),
            owing: Vec::new(),
            panic: None,
            in_run: false,
            told: false,
            unattended: 0,
            next_look: in_time(options.probe_interval),
            clock: (Instant::now(), 1),
            until_clock: 1,
        })
    }
    /// The options that it was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What an endpoint says first.
    pub(crate) fn hello_of(&self, own: &Endpoint, tag: Tag) -> Hello {
        let segment = own.segment.as_ref().map(Segment::remote).unwrap_or_default();
        Hello {
            tag: tag.0,
            host: own.name.wire_host(),
            endpoint: own.name.id,
            segment_addr: segment.addr,
            segment_len: segment.len,
            segment_key: segment.key,
            ..self.hello()
        }
    }
    pub(crate) fn hello(&self) -> Hello {
        let (credits, max_medium) = (self.options.credits, self.options.max_medium as u32);
        Hello { credits, max_medium, ..Hello::default() }
    }
    /// Adds an endpoint, with the tag [`Tag::NONE`] (`AM_AllocateEndpoint`).
    ///
    /// # Errors
    /// The device's limits, or the system starts no thread.
    pub fn endpoint(&mut self) -> Result<EndpointId, Error> {
        let id = self.endpoints.fresh();
        let name = self.lower.listen(id, self.hello())?;
        self.add_endpoint(id, name);
        Ok(id)
    }
    pub(crate) fn add_endpoint(&mut self, id: EndpointId, name: EndpointName) {
        self.endpoints.put(Endpoint {
            id,
            name,
            tag: Tag::NONE,
            mask: EventMask::None,
            segment: None,
            handlers: std::iter::repeat_with(|| None).take(self.options.handlers.into()).collect(),
            on_return: None,
            translations: vec![None; self.options.translations],
        });
    }
    /// Removes an endpoint (`AM_FreeEndpoint`). Its peers get back what they send to it from then on.
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn free_endpoint(&mut self, endpoint: EndpointId) -> Result<(), Error> {
        // Its handlers are dropped at the end.
        let _own = self.endpoints.take(endpoint).ok_or(Error::Endpoint)?;
        self.lower.unlisten(endpoint);
        for place in 0..self.links.len() {
            if let Some(link) = self.links[place].take_if(|link| link.endpoint == endpoint) {
                if let Side::Mapped(mapped) = &link.side {
                    mapped
                        .open
                        .iter()
                        .filter_map(|open| open.kept)
                        .for_each(|kept| self.lower.let_go(link.id, kept));
                }
                self.lower.close(link.id);
            }
        }
        Ok(())
    }
    #[inline]
    pub(crate) fn at(&self, endpoint: EndpointId) -> Result<&Endpoint, Error> {
        // By hand: an error that is made beforehand is dropped in each call.
        match self.endpoints.at(endpoint) {
            Some(own) => Ok(own),
            None => Err(Error::Endpoint),
        }
    }
    pub(crate) fn at_mut(&mut self, endpoint: EndpointId) -> Result<&mut Endpoint, Error> {
        self.endpoints.at_mut(endpoint).ok_or(Error::Endpoint)
    }
    /// The name of an endpoint, by which peers map it.
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn name(&self, endpoint: EndpointId) -> Result<EndpointName, Error> {
        Ok(self.at(endpoint)?.name)
    }
    /// The tag of an endpoint (`AM_GetTag`).
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn tag(&self, endpoint: EndpointId) -> Result<Tag, Error> {
        Ok(self.at(endpoint)?.tag)
    }
    /// Sets the tag of an endpoint (`AM_SetTag`), for requests that are handled from now on.
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn set_tag(&mut self, endpoint: EndpointId, tag: Tag) -> Result<(), Error> {
        self.at_mut(endpoint)?.tag = tag;
        Ok(())
    }
    /// Sets which events end a [`wait`](Self::wait) (`AM_SetEventMask`); none at first.
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn set_event_mask(&mut self, endpoint: EndpointId, mask: EventMask) -> Result<(), Error> {
        self.at_mut(endpoint)?.mask = mask;
        Ok(())
    }
    /// Sets a handler, in the place of an earlier one (`AM_SetHandler`).
    ///
    /// # Errors
    /// There is no such endpoint; or the number is 0, which is the error handler's, or beyond the table.
    pub fn set_handler(
        &mut self,
        endpoint: EndpointId,
        handler: u16,
        call: impl FnMut(&Message<'_>, Token<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        let endpoint = self.at_mut(endpoint)?;
        let len = endpoint.handlers.len();
        if handler == 0 || usize::from(handler) >= len {
            return Err(Error::Handler { handler, len });
        }
        endpoint.handlers[usize::from(handler)] = Some(Box::new(call));
        Ok(())
    }
    /// Sets a handler at the lowest number that has none (`AM_SetHandlerAny`).
    ///
    /// # Errors
    /// There is no such endpoint, or the table is full.
    pub fn set_handler_any(
        &mut self,
        endpoint: EndpointId,
        call: impl FnMut(&Message<'_>, Token<'_>) + Send + 'static,
    ) -> Result<u16, Error> {
        let handlers = &self.at(endpoint)?.handlers;
        let (users, free) = (handlers.len(), handlers.iter().skip(1).position(Option::is_none));
        let handler = free.ok_or(Error::InUse { what: "the handler table", users })? as u16 + 1;
        self.set_handler(endpoint, handler, call)?;
        Ok(handler)
    }
    /// Sets the handler of returned messages: handler 0. Without one they are logged.
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn set_error_handler(
        &mut self,
        endpoint: EndpointId,
        call: impl FnMut(&Returned<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        self.at_mut(endpoint)?.on_return = Some(Box::new(call));
        Ok(())
    }
    /// Gives an endpoint a segment of zeroed memory, into which peers write by bulk messages (`AM_SetSeg`).
    ///
    /// # Errors
    /// There is no such endpoint; peers have mapped it, or it has mapped peers, which were told of no segment or of
    /// another one; or the device has no memory.
    pub fn set_segment(&mut self, endpoint: EndpointId, len: usize) -> Result<Segment, Error> {
        let mapped = self.at(endpoint)?.translations.iter().flatten().count();
        if mapped > 0 {
            return Err(Error::InUse { what: "the endpoint: peers that know its segment", users: mapped });
        }
        let segment = self.lower.alloc(len)?;
        self.lower.set_segment(endpoint, segment.remote())?;
        self.at_mut(endpoint)?.segment = Some(segment.clone());
        Ok(segment)
    }
    /// Allocates memory from which bulk messages go without a copy.
    ///
    /// # Errors
    /// The device has no memory.
    pub fn alloc(&mut self, len: usize) -> Result<Segment, Error> {
        self.lower.alloc(len)
    }
    /// The segment of an endpoint (`AM_GetSeg`).
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn segment(&self, endpoint: EndpointId) -> Result<Option<Segment>, Error> {
        Ok(self.at(endpoint)?.segment.clone())
    }

    /// Maps a peer's endpoint at an index of the translation table, with the tag that it is expected to have
    /// (`AM_Map`). Waits for the peer's adapter, not for its program.
    ///
    /// # Errors
    /// There is no such endpoint; the index is beyond the table, or in use; no endpoint has the name; no answer came in
    /// time; or a limit is reached.
    ///
    /// # Panics
    /// A handler of a message that came meanwhile has panicked: its panic goes on, and the peer is not mapped.
    pub fn map(
        &mut self,
        endpoint: EndpointId,
        index: usize,
        peer: &EndpointName,
        tag: Tag,
    ) -> Result<(), Error> {
        let own = self.at(endpoint)?;
        match own.translations.get(index) {
            None => return Err(Error::Index { index, len: own.translations.len() }),
            Some(Some(_)) => return Err(Error::InUse { what: "the index", users: 1 }),
            Some(None) => {}
        }
        let hello = self.hello_of(own, tag);
        let timeout = self.options.map_timeout;
        let end = in_time(timeout);
        let id = self.lower.connect(peer, &hello, timeout)?;
        let mapped = Mapped { index, open: VecDeque::new(), credits: 0, down: false };
        self.put(Link { id, endpoint, peer: None, side: Side::Mapped(mapped) });
        // Handlers of other messages run meanwhile, and may panic.
        match catch_unwind(AssertUnwindSafe(|| self.hear_hello(id, end, timeout))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.end(id);
                return Err(error);
            }
            Err(panic) => {
                self.end(id);
                resume_unwind(panic);
            }
        }
        // A handler that ran meanwhile has no bundle, so the endpoint is still there.
        self.at_mut(endpoint)?.translations[index] = Some(Translation { name: *peer, tag, link: id });
        Ok(())
    }
    /// Waits until a peer's adapter has said hello, which it does without its program.
    fn hear_hello(&mut self, id: LinkId, end: Instant, timeout: Duration) -> Result<(), Error> {
        let mut pause = Pause::default();
        loop {
            match self.link(id) {
                Some(Link { peer: Some(_), .. }) => return Ok(()),
                Some(Link { side: Side::Mapped(Mapped { down: false, .. }), .. }) => {}
                _ => return Err(Error::Unreachable),
            }
            if Instant::now() >= end {
                return Err(Error::TimedOut(timeout));
            }
            if self.poll()? == 0 {
                pause.wait(&mut *self.lower, &mut self.events)?;
            }
        }
    }
    /// Gives an endpoint's translation table so many entries (`AM_SetNumTranslations`), at most 65,536. Entries up to
    /// there keep their mappings. How many peers can be mapped at a time is the bundle's limit of
    /// [links](Options::max_links).
    ///
    /// # Errors
    /// There is no such endpoint, the number is too large, or an entry beyond it is mapped.
    pub fn set_translations(&mut self, endpoint: EndpointId, count: usize) -> Result<(), Error> {
        if count > MAX_TRANSLATIONS {
            return Err(Error::Limit { what: "translations", max: MAX_TRANSLATIONS });
        }
        let table = &mut self.at_mut(endpoint)?.translations;
        let users = table.iter().skip(count).flatten().count();
        if users > 0 {
            return Err(Error::InUse { what: "translations beyond the new end of the table", users });
        }
        table.resize(count, None);
        Ok(())
    }
    /// The entries of an endpoint's translation table (`AM_GetNumTranslations`).
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn translations(&self, endpoint: EndpointId) -> Result<usize, Error> {
        Ok(self.at(endpoint)?.translations.len())
    }
    /// Maps a peer at the lowest index that is free (`AM_MapAny`).
    ///
    /// # Errors
    /// As [`map`](Self::map), or the table is full.
    pub fn map_any(&mut self, endpoint: EndpointId, peer: &EndpointName, tag: Tag) -> Result<usize, Error> {
        let table = &self.at(endpoint)?.translations;
        let (users, free) = (table.len(), table.iter().position(Option::is_none));
        let index = free.ok_or(Error::InUse { what: "the translation table", users })?;
        self.map(endpoint, index, peer, tag)?;
        Ok(index)
    }
    /// Unmaps an index (`AM_UnMap`). Requests that were not answered come back as unreachable.
    ///
    /// # Errors
    /// There is no such endpoint, or the index is not mapped.
    ///
    /// # Panics
    /// The error handler has panicked.
    pub fn unmap(&mut self, endpoint: EndpointId, index: usize) -> Result<(), Error> {
        let link = self.link_of(endpoint, index)?;
        self.lose(link);
        self.end(link);
        self.at_mut(endpoint)?.translations[index] = None;
        self.go_on_with_panic();
        Ok(())
    }
    /// The name and the tag of a mapped index (`AM_GetTranslationName`, `AM_GetTranslationTag`); `None` where none is
    /// mapped (`AM_GetTranslationInuse`).
    ///
    /// # Errors
    /// There is no such endpoint.
    pub fn mapped(&self, endpoint: EndpointId, index: usize) -> Result<Option<(EndpointName, Tag)>, Error> {
        let entry = self.at(endpoint)?.translations.get(index).copied().flatten();
        Ok(entry.map(|translation| (translation.name, translation.tag)))
    }
    /// The link of a mapped index.
    #[inline]
    pub(crate) fn link_of(&self, endpoint: EndpointId, index: usize) -> Result<LinkId, Error> {
        let table = &self.at(endpoint)?.translations;
        match table.get(index) {
            Some(Some(translation)) => Ok(translation.link),
            _ => Err(Error::Index { index, len: table.len() }),
        }
    }
    /// The number of requests to a mapped index that were not answered.
    ///
    /// # Errors
    /// There is no such endpoint, or the index is not mapped.
    #[inline]
    pub fn outstanding(&self, endpoint: EndpointId, index: usize) -> Result<usize, Error> {
        let id = self.link_of(endpoint, index)?;
        Ok(match self.link(id) {
            Some(Link { side: Side::Mapped(mapped), .. }) => mapped.open.len(),
            _ => 0,
        })
    }
    /// Whether the peer of a mapped index is there, as far as was noticed.
    ///
    /// # Errors
    /// There is no such endpoint, or the index is not mapped.
    pub fn is_reachable(&self, endpoint: EndpointId, index: usize) -> Result<bool, Error> {
        let id = self.link_of(endpoint, index)?;
        Ok(matches!(self.link(id), Some(Link { side: Side::Mapped(Mapped { down: false, .. }), .. })))
    }
    /// The most bytes of a medium message to a mapped index (`AM_MaxMedium`), and the bytes of the peer's segment.
    ///
    /// # Errors
    /// There is no such endpoint, or the index is not mapped.
    pub fn limits(&self, endpoint: EndpointId, index: usize) -> Result<(usize, u64), Error> {
        let id = self.link_of(endpoint, index)?;
        let peer = self.link(id).and_then(|link| link.peer).ok_or(Error::Unreachable)?;
        Ok((peer.max_medium as usize, peer.segment_len))
    }

    /// Handles the messages that have come (`AM_Poll`). Returns their number. A request is left for a later poll while
    /// its link has no room for an answer: the peer's adapter has to acknowledge earlier ones first.
    ///
    /// # Errors
    /// The system refused.
    ///
    /// # Panics
    /// A handler has panicked: its panic goes on, once the bundle is in order. The request was returned to its sender. The
    /// same with the error handler.
    #[inline]
    pub fn poll(&mut self) -> Result<usize, Error> {
        if self.events.is_empty() {
            self.lower.poll(&mut self.events);
        }
        let mut handled = 0;
        for _ in 0..self.events.len() {
            if !self.may_handle_next() {
                break;
            }
            let Some(event) = self.events.pop_front() else { break };
            handled += usize::from(matches!(event, Event::Received(..)));
            self.handle(event);
        }
        if !self.owing.is_empty() {
            self.settle();
        }
        self.look_at_times();
        Ok(handled)
    }
    /// Whether the next event is none, or one whose answer has room: no call waits for room in the middle of a poll.
    #[inline]
    fn may_handle_next(&mut self) -> bool {
        let Some(Event::Received(id, _)) = self.events.front() else { return true };
        let id = *id;
        match self.link(id) {
            Some(Link { side: Side::Accepted(_), .. }) => self.lower.has_room(id, &mut self.events),
            _ => true,
        }
    }
    #[inline]
    pub(crate) fn look_at_times(&mut self) {
        self.until_clock -= 1;
        if self.until_clock == 0 {
            self.look_at_clock();
        }
    }
    /// A program that polls seldom looks at the clock more often, so that it notices in time whom it has lost.
    #[cold]
    fn look_at_clock(&mut self) {
        let now = Instant::now();
        let (last, polls) = self.clock;
        let often = (now - last) * 4 < self.options.probe_interval;
        let polls = if often { (2 * polls).min(POLLS_A_CLOCK) } else { (polls / 4).max(1) };
        (self.clock, self.until_clock) = ((now, polls), polls);
        self.look_around(now);
    }
    /// Handles messages on the device's thread, so many at most.
    pub(crate) fn run(&mut self) -> Left {
        self.lower.poll(&mut self.events);
        let mut left = Left::Nothing;
        for handled in 0.. {
            if handled == A_RUN && !self.events.is_empty() {
                left = Left::More;
                break;
            }
            if !self.may_handle_next() {
                left = Left::NoRoom;
                break;
            }
            let Some(event) = self.events.pop_front() else { break };
            self.told |= self.ends_a_wait(&event);
            self.handle(event);
        }
        if !self.owing.is_empty() {
            self.settle();
        }
        self.look_at_times();
        left
    }
    fn look_around(&mut self, now: Instant) {
        if now >= self.next_look {
            self.next_look = after(now, self.options.probe_interval);
            self.lower.look_around(&mut self.events);
        }
    }
    /// Waits until a message has come for an endpoint whose mask asks for that (`AM_WaitSema`). Returns whether it has;
    /// `false` after the time. [`poll`](Self::poll) then handles it.
    ///
    /// # Errors
    /// No endpoint asks for events, or the system refused to wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.has_event()? {
                return Ok(true);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            if let Some(sleeper) = self.before_sleep() {
                sleeper.sleep(left.unwrap_or(Duration::MAX).min(self.options.probe_interval))?;
            }
        }
    }
    /// Whether an endpoint has what its mask asks for.
    pub(crate) fn has_event(&mut self) -> Result<bool, Error> {
        if !self.endpoints.iter().any(|own| own.mask == EventMask::NotEmpty) {
            return Err(Error::NoEvents);
        }
        if std::mem::take(&mut self.told) {
            return Ok(true);
        }
        self.lower.poll(&mut self.events);
        // Links that peers have just made are entered, so that their messages are known.
        while let Some(Event::Accepted(..)) = self.events.front() {
            if let Some(event) = self.events.pop_front() {
                self.handle(event);
            }
        }
        Ok(self.events.iter().any(|event| self.ends_a_wait(event)))
    }
    fn asks(&self, endpoint: EndpointId) -> bool {
        self.endpoints.at(endpoint).is_some_and(|own| own.mask == EventMask::NotEmpty)
    }
    /// Whether an endpoint's mask asks for an event.
    fn ends_a_wait(&self, event: &Event) -> bool {
        match event {
            Event::Accepted(endpoint, _) => self.asks(*endpoint),
            Event::Received(id, _) | Event::Down(id) => {
                self.link(*id).is_some_and(|link| self.asks(link.endpoint))
            }
        }
    }
    /// Asks for a wake-up; `None` if something has come meanwhile.
    pub(crate) fn before_sleep(&mut self) -> Option<Sleeper> {
        let before = self.events.len();
        self.look_around(Instant::now());
        self.lower.arm();
        self.lower.poll(&mut self.events);
        (self.events.len() == before).then(|| self.lower.sleeper())
    }
    /// Waits until all requests to all peers were answered, or have come back.
    ///
    /// # Errors
    /// Some were not in time.
    pub fn flush(&mut self, timeout: Duration) -> Result<(), Error> {
        let end = in_time(timeout);
        let mut pause = Pause::default();
        let open = |link: &Link| matches!(&link.side, Side::Mapped(mapped) if !mapped.open.is_empty());
        while self.links.iter().flatten().any(open) {
            if Instant::now() >= end {
                return Err(Error::TimedOut(timeout));
            }
            if self.poll()? == 0 {
                pause.wait(&mut *self.lower, &mut self.events)?;
            }
        }
        Ok(())
    }
}

/// The messages that a [run](Bundle::run) leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// All that came was handled.
    Nothing,
    /// There is more, for another run.
    More,
    /// There is more, whose answers have no room yet.
    NoRoom,
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (endpoints, links) = (self.endpoints.iter().count(), self.links.iter().flatten().count());
        write!(f, "Bundle({} endpoints, {} links, {:?})", endpoints, links, self.way)
    }
}
