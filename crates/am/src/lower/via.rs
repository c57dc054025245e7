//! Links over the VI Architecture, as AMVIA version 3 has them: a VI for each peer, two completion queues a bundle, and
//! descriptors and buffers of the link in one registered region.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_core::{CqHandle, Device};
use hca_verbs::{Context, Endpoint};
use hca_via::{
    Cq, CqEntry, Discriminator, Listener, MemAttributes, MemHandle, Memory, NetAddress, Nic, NicOptions,
    Ptag, Queue, Reliability, RemoteAddress, Request, Segment as ViaSegment, Vi, ViAttributes, ViId, ViState,
};

use super::acceptor::{Places, Stop, lock};
use super::acceptors::{Acceptors, Serving};
use super::stores::{LONG, Stores};
use super::{
    AN_ANSWER, Event, Kept, LinkId, Listening, Lower, POLLS_A_LOOK, Received, STAGE, STAGES, Sizes, Sleeper,
    Unsent,
};
use crate::bundle::Options;
use crate::instrument::{self, Part, mark};
use crate::segment::{Place, Remote, Segment, Source};
use crate::wire::Hello;
use crate::{EndpointId, EndpointName, Error, Way};

/// Bytes of a descriptor of two segments.
const DESCRIPTOR: usize = 64;
/// The most bytes of a bulk message.
const MAX_TRANSFER: u32 = 1 << 30;

pub(crate) struct Via {
    maker: Arc<Maker>,
    queues: Queues,
    acceptors: Acceptors<Maker, Link, Closing>,
    links: Vec<Option<(LinkId, Link)>>,
    /// Links by the names of their VIs.
    vis: HashMap<ViId, LinkId>,
    /// Entries of links that are not taken over yet.
    early: Vec<CqEntry>,
    /// Links that have failed, of which the bundle was not told.
    failed: Vec<LinkId>,
    pool: Vec<Vec<u8>>,
    /// Polls until the send queue is looked at.
    until_sends: u32,
}

pub(crate) type Accepting = super::acceptors::Accepting<Maker, Link, Closing>;

/// Closes a listener when it is dropped, so that who waits at it finds the end.
pub(crate) struct Closing(Arc<Listener>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The two completion queues of a bundle.
#[derive(Clone)]
pub(crate) struct Queues {
    recv: Arc<Cq>,
    send: Arc<Cq>,
    /// The entry that ended a sleep.
    found: Arc<Mutex<VecDeque<CqEntry>>>,
}

impl Queues {
    pub(super) fn sleep(&self, timeout: Duration) -> Result<(), Error> {
        match self.recv.wait(Some(timeout)) {
            Ok(entry) => {
                lock(&self.found).push_back(entry);
                Ok(())
            }
            Err(hca_via::Error::TimedOut(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The parts that VIs are built of.
pub(crate) struct Maker {
    nic: Nic,
    ptag: Ptag,
    queues: Queues,
    sizes: Sizes,
    places: Places,
}

/// A link: a VI with its descriptors and buffers.
pub(crate) struct Link {
    vi: Vi,
    memory: Memory,
    sizes: Sizes,
    /// The places of the send queue's descriptors, in the order of their posts; `None` for one with memory of its own.
    posted: VecDeque<Posted>,
    free: Vec<u32>,
    /// Of each place: whether the queue, and whether the caller, still needs it.
    held: Vec<[bool; 2]>,
    lens: Vec<usize>,
    /// Writes and reads that have not ended.
    accesses: usize,
    /// Writes of long copies that have not ended.
    staged: usize,
    /// Free memory of [`STAGE`] bytes, through which long writes go.
    stages: Vec<Memory>,
    accepted: bool,
    /// The peer's CPU takes long messages out of this process's memory.
    near: bool,
    stores: Stores,
    down: bool,
}

enum Posted {
    Place(u32),
    /// Memory that is free when the descriptor has completed.
    Staged(Option<Memory>, u32),
    /// The same of a write or a read whose end is counted.
    Access(Option<Memory>, u32),
}

impl Link {
    /// Bytes of a place: a descriptor, and a message.
    fn stride(sizes: &Sizes) -> usize {
        DESCRIPTOR + sizes.message
    }
    fn offset(&self, place: usize) -> usize {
        place * Self::stride(&self.sizes)
    }
    /// The place of the send queue with this number: those of the receive queue are first.
    fn send_offset(&self, place: u32) -> usize {
        self.offset(self.sizes.receives() + place as usize)
    }
    /// A VI with its memory, and with all receive descriptors posted.
    fn build(maker: &Maker, accepted: bool) -> Result<Self, Error> {
        let sizes = maker.sizes;
        let attributes = ViAttributes {
            reliability: Reliability::Delivery,
            max_transfer_size: MAX_TRANSFER,
            ..ViAttributes::new(&maker.ptag)
        };
        let vi = maker.nic.create_vi(&attributes, Some(&maker.queues.send), Some(&maker.queues.recv))?;
        let sends = sizes.sends() as u32;
        let bytes = Self::stride(&sizes) * (sizes.receives() + sizes.sends());
        let memory = maker.nic.alloc(bytes, &MemAttributes::new(&maker.ptag))?;
        let link = Self {
            vi,
            memory,
            sizes,
            posted: VecDeque::new(),
            free: (0..sends).rev().collect(),
            held: vec![[false; 2]; sends as usize],
            lens: vec![0; sends as usize],
            accesses: 0,
            staged: 0,
            stages: Vec::new(),
            accepted,
            near: false,
            stores: Stores::default(),
            down: false,
        };
        for place in 0..sizes.receives() {
            link.post_receive(place)?;
        }
        Ok(link)
    }
    fn post_receive(&self, place: usize) -> Result<(), Error> {
        let offset = self.offset(place);
        let descriptor = self.memory.descriptor(offset)?;
        let segment = ViaSegment::new(&self.memory, offset + DESCRIPTOR, self.sizes.message as u32);
        descriptor.write(&Request::new(&[segment]))?;
        mark(Part::RecycleReceive);
        let posted = self.vi.post_recv(&descriptor);
        mark(Part::PostReceive);
        Ok(posted?)
    }
    fn take_place(&mut self) -> Result<u32, Unsent> {
        if self.down {
            return Err(Unsent::Down);
        }
        self.free.pop().ok_or(Unsent::Full)
    }
    fn post(&mut self, offset: usize, request: &Request<'_>) -> Result<(), Unsent> {
        let written = self.memory.descriptor(offset).and_then(|made| made.write(request).map(|()| made));
        mark(Part::BuildSend);
        let posted = written.and_then(|descriptor| self.vi.post_send(&descriptor));
        mark(Part::PostSend);
        posted.map_err(|error| {
            tracing::debug!(%error, "the VI of a link refuses a descriptor");
            Unsent::Down
        })
    }
    /// Sends a message; `keep`: the caller frees its place.
    fn send(&mut self, head: &[u8], payload: &[u8], keep: bool) -> Result<u32, Unsent> {
        let place = self.take_place()?;
        let (offset, len) = (self.send_offset(place), head.len() + payload.len());
        self.memory.write_at(offset + DESCRIPTOR, head);
        let at = offset + DESCRIPTOR + head.len();
        if payload.len() >= LONG && self.near {
            self.stores.store(payload.len(), |passes| match passes {
                true => self.memory.pass_at(at, payload),
                false => self.memory.write_at(at, payload),
            });
        } else if !payload.is_empty() {
            self.memory.write_at(at, payload);
        }
        let segment = ViaSegment::new(&self.memory, offset + DESCRIPTOR, len as u32);
        self.post(offset, &Request::new(&[segment])).inspect_err(|_| self.free.push(place))?;
        self.posted.push_back(Posted::Place(place));
        self.held[place as usize] = [true, keep];
        self.lens[place as usize] = len;
        Ok(place)
    }
    /// Posts an RDMA; the descriptor has a place of its own, which is returned.
    fn rdma(&mut self, request: &Request<'_>) -> Result<u32, Unsent> {
        let place = self.take_place()?;
        self.post(self.send_offset(place), request).inspect_err(|_| self.free.push(place))?;
        Ok(place)
    }
    /// Posts an RDMA WRITE of bytes, which lie behind the descriptor until it has completed. `None`: they do not fit.
    fn rdma_of(&mut self, bytes: &[u8], to: Remote) -> Option<Result<u32, Unsent>> {
        (bytes.len() <= self.sizes.message).then(|| {
            let place = self.take_place()?;
            let offset = self.send_offset(place);
            self.memory.write_at(offset + DESCRIPTOR, bytes);
            let segment = ViaSegment::new(&self.memory, offset + DESCRIPTOR, bytes.len() as u32);
            let posted = self.post(offset, &Request::write(&[segment], there(to)));
            posted.inspect_err(|_| self.free.push(place)).map(|()| place)
        })
    }
    /// Writes into the peer's memory.
    fn put(&mut self, segments: &[ViaSegment], staged: Option<Memory>, to: Remote) -> Result<(), Unsent> {
        let place = self.rdma(&Request::write(segments, there(to)))?;
        self.staged += usize::from(staged.is_some());
        self.posted.push_back(Posted::Staged(staged, place));
        Ok(())
    }
    /// As [`put`](Self::put), and its end is counted.
    fn write(&mut self, segment: ViaSegment, staged: Option<Memory>, to: Remote) -> Result<(), Unsent> {
        let place = self.rdma(&Request::write(&[segment], there(to)))?;
        self.staged += usize::from(staged.is_some());
        self.posted.push_back(Posted::Access(staged, place));
        self.accesses += 1;
        Ok(())
    }
    /// One side does not need a place any more: 0 the queue, 1 the caller.
    fn release(&mut self, place: u32, side: usize) {
        let held = &mut self.held[place as usize];
        held[side] = false;
        if *held == [false; 2] {
            self.free.push(place);
        }
    }
    /// A write has ended.
    fn unstage(&mut self, memory: Option<Memory>, place: u32) {
        self.free.push(place);
        self.staged -= usize::from(memory.is_some());
        self.stages.extend(memory.filter(|memory| memory.len() == STAGE));
    }
    /// Takes the descriptor of an entry off the send queue. Returns whether it did well.
    fn collect(&mut self) -> bool {
        let done = self.vi.send_done();
        mark(Part::SendDone);
        let Some(done) = done else { return true };
        match self.posted.pop_front() {
            Some(Posted::Place(place)) => self.release(place, 0),
            Some(Posted::Staged(memory, place)) => self.unstage(memory, place),
            Some(Posted::Access(memory, place)) => {
                self.unstage(memory, place);
                self.accesses -= usize::from(done.status.is_ok());
            }
            None => {}
        }
        mark(Part::RecycleSend);
        done.status.is_ok()
    }
}

fn there(remote: Remote) -> RemoteAddress {
    RemoteAddress { addr: remote.addr, handle: MemHandle(remote.key) }
}

impl Via {
    pub(crate) fn open(context: &Context, options: &Options, by_hand: bool) -> Result<Self, Error> {
        let sizes = Sizes::new(options);
        let descriptors_per_queue = sizes.sends().max(sizes.receives()) as u32;
        let ack_timeout = Some(options.ack_timeout);
        let nic = Nic::open_with(context, &NicOptions { descriptors_per_queue, ack_timeout, by_hand })?;
        let entries = descriptors_per_queue * sizes.max_links as u32;
        let queues = Queues {
            recv: Arc::new(nic.create_cq(entries)?),
            send: Arc::new(nic.create_cq(entries)?),
            found: Arc::default(),
        };
        nic.set_error_handler(Some(Arc::new(|error| tracing::debug!(%error, "a link has failed"))));
        let ptag = nic.create_ptag()?;
        let places = Places::new(sizes.max_links);
        let maker = Arc::new(Maker { nic, ptag, queues: queues.clone(), sizes, places });
        let acceptors = Acceptors::new(context, &maker);
        Ok(Self {
            maker,
            queues,
            acceptors,
            links: Vec::new(),
            vis: HashMap::new(),
            early: Vec::new(),
            failed: Vec::new(),
            pool: Vec::new(),
            until_sends: POLLS_A_LOOK,
        })
    }
    /// A copy in registered memory.
    fn stage(&mut self, id: LinkId, bytes: &[u8]) -> Result<(ViaSegment, Memory), Unsent> {
        let maker = Arc::clone(&self.maker);
        let link = self.link(id)?;
        // One that has failed says so when it is to post.
        if link.staged >= STAGES && !link.down {
            return Err(Unsent::Full);
        }
        let free = if bytes.len() <= STAGE { link.stages.pop() } else { None };
        let made = match free {
            Some(memory) => Ok(memory),
            None => maker.nic.alloc(bytes.len().max(STAGE), &MemAttributes::new(&maker.ptag)),
        };
        // The end of an earlier piece brings memory.
        let under_way = link.staged > 0;
        let staged = made.map_err(|_| if under_way { Unsent::Full } else { Unsent::NoMemory })?;
        staged.write_at(0, bytes);
        Ok((ViaSegment::new(&staged, 0, bytes.len() as u32), staged))
    }
    fn add(&mut self, id: LinkId, link: Link) {
        let place = id.place();
        if place >= self.links.len() {
            self.links.resize_with(place + 1, || None);
        }
        self.vis.insert(link.vi.id(), id);
        self.links[place] = Some((id, link));
    }
    fn link(&mut self, id: LinkId) -> Result<&mut Link, Unsent> {
        match self.links.get_mut(id.place()) {
            Some(Some((known, link))) if *known == id => Ok(link),
            _ => Err(Unsent::Down),
        }
    }
    /// Tells of links that have failed, behind the messages that have come over them.
    #[inline]
    fn tell_failed(&mut self, into: &mut VecDeque<Event>) {
        while let Some(id) = self.failed.pop() {
            self.fail(id, into);
        }
    }
    #[cold]
    fn fail(&mut self, id: LinkId, into: &mut VecDeque<Event>) {
        if let Ok(link) = self.link(id)
            && !link.down
        {
            link.down = true;
            into.push_back(Event::Down(id));
        }
    }
    #[cold]
    fn take_over(&mut self, into: &mut VecDeque<Event>) {
        let fresh = self.acceptors.links();
        if fresh.is_empty() {
            return;
        }
        for (endpoint, id, link) in fresh {
            self.add(id, link);
            into.push_back(Event::Accepted(endpoint, id));
        }
        for entry in std::mem::take(&mut self.early) {
            self.enter(entry, into);
        }
    }
    /// Takes the descriptor of an entry.
    fn enter(&mut self, entry: CqEntry, into: &mut VecDeque<Event>) {
        let Some(&id) = self.vis.get(&entry.vi) else {
            // Of a link that was closed, or of one whose handshake is about to end.
            if self.early.len() < self.maker.sizes.max_links * self.maker.sizes.receives() {
                self.early.push(entry);
            }
            return;
        };
        if entry.queue == Queue::Send {
            if !self.link(id).is_ok_and(Link::collect) {
                self.failed.push(id);
            }
            return;
        }
        let mut bytes = self.pool.pop().unwrap_or_default();
        let Some(Some((_, link))) = self.links.get_mut(id.place()) else { return };
        let done = link.vi.recv_done();
        mark(Part::RecvDone);
        let Some(done) = done else {
            self.pool.push(bytes);
            return;
        };
        if !done.status.is_ok() {
            self.failed.push(id);
            return;
        }
        let offset = (done.descriptor.addr() - link.memory.addr()) as usize;
        bytes.resize(done.length as usize, 0);
        link.memory.read_at(offset + DESCRIPTOR, &mut bytes);
        let place = offset / Link::stride(&link.sizes);
        into.push_back(Event::Received(id, Received::Copy(bytes, place as u32)));
        mark(Part::ProcessReceived);
    }
    /// Takes the send descriptors of an entry and of those behind it. Returns whether there were some.
    fn enter_ends(&mut self, mut next: Option<CqEntry>, into: &mut VecDeque<Event>) -> bool {
        mark(Part::CqDoneSend);
        let any = next.is_some();
        while let Some(entry) = next {
            self.enter(entry, into);
            next = self.queues.send.more();
            mark(Part::CqDoneSend);
        }
        any
    }
}

/// Accepts the peers of an endpoint.
fn serve(listener: &Listener, stop: &Stop, Serving { home, greeting }: &Serving<Maker, Link>) {
    while let Ok(request) = listener.wait(None) {
        if stop.is_asked() {
            return;
        }
        let target = home.now();
        let maker = &*target.maker;
        let id = match maker.places.take() {
            Ok(id) => id,
            Err(error) => {
                tracing::warn!(%error, "a peer was refused");
                request.reject();
                continue;
            }
        };
        let accepted = Link::build(maker, true).and_then(|mut link| {
            request.accept(&link.vi)?;
            greet(&mut link, &greeting.say())?;
            Ok(link)
        });
        match accepted {
            Ok(link) => target.inbox.put(target.endpoint, id, link),
            Err(error) => {
                tracing::debug!(%error, "a peer was not accepted");
                maker.places.free(id);
            }
        }
    }
}

fn greet(link: &mut Link, hello: &Hello) -> Result<(), Error> {
    link.near = link.vi.is_near();
    link.send(&hello.bytes(), &[], false).map(drop).map_err(|_| Error::Unreachable)
}

fn discriminator(id: u64) -> Result<Discriminator, Error> {
    let mut bytes = *b"hca-am/1\0\0\0\0\0\0\0\0";
    bytes[8..].copy_from_slice(&id.to_be_bytes());
    Ok(Discriminator::new(&bytes)?)
}

/// A number that no other endpoint has.
fn unique() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

impl Lower for Via {
    fn listen(&mut self, endpoint: EndpointId, hello: Hello) -> Result<EndpointName, Error> {
        let name = EndpointName { way: Way::Via, host: self.maker.nic.attributes().host, id: unique() };
        let listener = Arc::new(self.maker.nic.listen(discriminator(name.id)?)?);
        let hello = Hello { host: name.wire_host(), endpoint: name.id, ..hello };
        let closing = Closing(Arc::clone(&listener));
        self.acceptors
            .start(endpoint, hello, closing, move |stop, serving| serve(&listener, stop, &serving))?;
        Ok(name)
    }
    fn unlisten(&mut self, endpoint: EndpointId) {
        drop(self.acceptors.take(endpoint));
    }
    fn take_acceptor(&mut self, endpoint: EndpointId) -> Option<Listening> {
        self.acceptors.take(endpoint).map(Listening::Via)
    }
    fn adopt(&mut self, endpoint: EndpointId, listening: Listening, limits: &Hello) -> Result<(), Listening> {
        match listening {
            Listening::Via(accepting) => {
                self.acceptors.adopt(endpoint, accepting, limits).map_err(Listening::Via)
            }
            other => Err(other),
        }
    }
    fn set_segment(&mut self, endpoint: EndpointId, remote: Remote) -> Result<(), Error> {
        self.acceptors.set_segment(endpoint, remote)
    }
    fn alloc(&mut self, len: usize) -> Result<Segment, Error> {
        let attributes = MemAttributes::rdma(&self.maker.ptag);
        Ok(Segment(Place::Via(self.maker.nic.alloc(len, &attributes)?)))
    }
    fn connect(&mut self, to: &EndpointName, hello: &Hello, timeout: Duration) -> Result<LinkId, Error> {
        if to.way != Way::Via {
            return Err(Error::Name("via"));
        }
        let there = NetAddress { host: to.host, discriminator: discriminator(to.id)? };
        let maker = Arc::clone(&self.maker);
        let id = maker.places.take()?;
        let connected = Link::build(&maker, false).and_then(|mut link| {
            link.vi.connect(discriminator(hello.endpoint)?, &there, Some(timeout))?;
            greet(&mut link, hello)?;
            Ok(link)
        });
        self.add(id, connected.inspect_err(|_| maker.places.free(id))?);
        Ok(id)
    }
    fn half_link(&mut self, accepted: bool) -> Result<(LinkId, Endpoint), Error> {
        let id = self.maker.places.take()?;
        let link = Link::build(&self.maker, accepted).inspect_err(|_| self.maker.places.free(id))?;
        let endpoint = link.vi.endpoint_by_hand();
        self.add(id, link);
        Ok((id, endpoint))
    }
    fn join(&mut self, half: LinkId, remote: &Endpoint, hello: &Hello) -> Result<(), Error> {
        let link = self.link(half).map_err(|_| Error::Unreachable)?;
        link.vi.connect_by_hand(remote)?;
        greet(link, hello)
    }
    fn close(&mut self, id: LinkId) {
        if let Ok(link) = self.link(id) {
            let vi = link.vi.id();
            self.vis.remove(&vi);
            self.links[id.place()] = None;
            self.maker.places.free(id);
        }
    }
    #[inline]
    fn send(&mut self, id: LinkId, head: &[u8], payload: &[u8]) -> Result<(), Unsent> {
        self.link(id)?.send(head, payload, false).map(drop)
    }
    fn send_kept(&mut self, id: LinkId, head: &[u8], payload: &[u8]) -> Result<Kept, Unsent> {
        self.link(id)?.send(head, payload, true).map(Kept)
    }
    fn kept(&self, id: LinkId, kept: Kept) -> Vec<u8> {
        match self.links.get(id.place()) {
            Some(Some((known, link))) if *known == id => {
                link.memory.to_vec(link.send_offset(kept.0) + DESCRIPTOR, link.lens[kept.0 as usize])
            }
            _ => Vec::new(),
        }
    }
    fn let_go(&mut self, id: LinkId, kept: Kept) {
        if let Ok(link) = self.link(id) {
            link.release(kept.0, 1);
        }
    }
    fn put(&mut self, id: LinkId, from: &Source<'_>, to: Remote) -> Result<(), Unsent> {
        match from {
            Source::Bytes([]) => Ok(()),
            Source::Bytes(bytes) => {
                let link = self.link(id)?;
                if let Some(place) = link.rdma_of(bytes, to) {
                    link.posted.push_back(Posted::Staged(None, place?));
                    return Ok(());
                }
                let (segment, staged) = self.stage(id, bytes)?;
                self.link(id)?.put(&[segment], Some(staged), to)
            }
            Source::Segment(Segment(Place::Via(memory)), range) => {
                let segment = ViaSegment::new(memory, range.start, range.len() as u32);
                self.link(id)?.put(&[segment], None, to)
            }
            Source::Segment(..) => Err(Unsent::Down),
        }
    }
    fn is_near(&self, id: LinkId) -> bool {
        matches!(self.links.get(id.place()), Some(Some((_, link))) if link.near)
    }
    fn write(&mut self, id: LinkId, from: &Source<'_>, to: Remote) -> Result<(), Unsent> {
        match from {
            Source::Bytes([]) => Ok(()),
            Source::Bytes(bytes) => {
                let link = self.link(id)?;
                if let Some(place) = link.rdma_of(bytes, to) {
                    link.posted.push_back(Posted::Access(None, place?));
                    link.accesses += 1;
                    return Ok(());
                }
                let (segment, staged) = self.stage(id, bytes)?;
                self.link(id)?.write(segment, Some(staged), to)
            }
            Source::Segment(Segment(Place::Via(memory)), range) => {
                let segment = ViaSegment::new(memory, range.start, range.len() as u32);
                self.link(id)?.write(segment, None, to)
            }
            Source::Segment(..) => Err(Unsent::Down),
        }
    }
    fn read(&mut self, id: LinkId, into: &Segment, range: Range<usize>, from: Remote) -> Result<(), Unsent> {
        let Segment(Place::Via(memory)) = into else { return Err(Unsent::Down) };
        let segment = ViaSegment::new(memory, range.start, range.len() as u32);
        let link = self.link(id)?;
        let place = link.rdma(&Request::read(&[segment], there(from)))?;
        link.posted.push_back(Posted::Access(None, place));
        link.accesses += 1;
        Ok(())
    }
    fn accesses(&mut self, id: LinkId, events: &mut VecDeque<Event>) -> Result<usize, Unsent> {
        self.take_ends(events);
        let link = self.link(id)?;
        if link.down { Err(Unsent::Down) } else { Ok(link.accesses) }
    }
    #[inline]
    fn recycle(&mut self, id: LinkId, received: Received) {
        let Received::Copy(bytes, place) = received else { return };
        self.pool.push(bytes);
        if let Ok(link) = self.link(id)
            && let Err(error) = link.post_receive(place as usize)
        {
            tracing::debug!(%error, "a receive descriptor is not posted again");
        }
    }
    fn look_around(&mut self, into: &mut VecDeque<Event>) {
        for place in 0..self.links.len() {
            let Some((id, link)) = &mut self.links[place] else { continue };
            let id = *id;
            // A WRITE of no bytes needs no handle and no receive descriptor, and is acknowledged.
            let alive = link.vi.state() == ViState::Connected
                && (link.accepted || link.put(&[], None, Remote::default()) != Err(Unsent::Down));
            if !alive {
                self.fail(id, into);
            }
        }
        let (vis, places) = (&self.vis, &self.maker.places);
        self.early.retain(|entry| vis.contains_key(&entry.vi) || places.any_to_come(vis.len()));
    }
    #[inline]
    fn poll(&mut self, into: &mut VecDeque<Event>) {
        instrument::begin();
        instrument::hold();
        let mut any = false;
        if self.acceptors.any_link() {
            self.take_over(into);
        }
        self.until_sends -= 1;
        if self.until_sends == 0 {
            self.until_sends = POLLS_A_LOOK;
            // Ahead of the messages: a look behind them would have them acknowledged before they are answered. Nobody
            // waits for the end of a send: its place comes back, or its link is found to have failed.
            let first = self.queues.send.done_unasked();
            any |= self.enter_ends(first, into);
        }
        let mut found = std::mem::take(&mut *lock(&self.queues.found));
        let mut next = found.pop_front().or_else(|| self.queues.recv.done());
        mark(Part::CqDoneReceive);
        while let Some(entry) = next {
            any = true;
            self.enter(entry, into);
            next = found.pop_front().or_else(|| self.queues.recv.more());
            mark(Part::CqDoneReceive);
        }
        self.tell_failed(into);
        if !any {
            instrument::undo();
        }
    }
    fn arm(&mut self) {
        // The poll behind it has to see what will not be told of.
        self.until_sends = 1;
    }
    fn sleeper(&self) -> Sleeper {
        Sleeper::Via(self.queues.clone())
    }
    fn engine_queue(&self) -> Option<(Arc<dyn Device>, CqHandle)> {
        None
    }
    fn take_ends(&mut self, into: &mut VecDeque<Event>) {
        loop {
            let first = self.queues.send.done();
            if !self.enter_ends(first, into) {
                break;
            }
        }
        self.tell_failed(into);
    }
    #[inline]
    fn has_room_now(&self, id: LinkId) -> bool {
        let Some(Some((known, link))) = self.links.get(id.place()) else { return true };
        *known != id || link.down || (link.free.len() >= AN_ANSWER as usize && link.staged < STAGES)
    }
}
