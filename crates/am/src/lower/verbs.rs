//! Links over verbs: a queue pair for each peer, one shared receive queue, inline sends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hca_cm::{ConnectParams, Connection, Incoming, Listener, connect_with};
use hca_core::{AckTimeout, CqHandle, Device, Rkey, SrqInit, WcStatus};
use hca_verbs::{
    Access, Buf, CompletionChannel, CompletionQueue, Completions, ConnectOptions, Context, CqRef, Endpoint,
    FrozenBuf, GatherList, Inline, Notify, OfferedBy, Part, Pd, PostErrorKind, PostRefusal, Rc, RemoteMr,
    SendQueue, SendRequest, SharedMr, SharedRange, Srq, SrqRef,
};

use super::acceptor::{Greeting, Places, Stop};
use super::acceptors::{Acceptors, Serving};
use super::stores::{LONG, Stores};
use super::{
    AN_ANSWER, Event, Kept, LinkId, Listening, Lower, POLLS_A_LOOK, Received, STAGE, STAGES, Sizes, Sleeper,
    Unsent,
};
use crate::bundle::Options;
use crate::segment::{Place, Remote, Segment, Source};
use crate::wire::Hello;
use crate::{EndpointId, EndpointName, Error, Way};

/// The private data of a request to connect, by which other programs are refused.
const MARK: &[u8] = b"hca-am/1";
/// Messages of up to so many bytes are copied into the request.
const MAX_INLINE: usize = 256;
const BATCH: usize = 32;
/// The rights of peers to segments.
const PEERS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
/// In the number of a request: its end is counted.
const ACCESS: u64 = 1;
/// In the number of a request: it writes a copy of bytes of the program's, longer than a message.
const STAGED: u64 = 2;
/// In the number of a request: its message is free with its end.
const PLACED: u64 = 4;
/// In the number of a request: it has no buffer that comes back.
const BARE: u64 = 8;
/// Bytes of memory for long messages that a bundle gets at once.
const CHUNK: usize = 1 << 20;
/// Bytes of a line of the caches.
const LINE: usize = 64;
/// Links for which the shared receive queue has buffers ahead.
const AHEAD: usize = 4;

pub(crate) struct Verbs {
    context: Context,
    recv: CompletionQueue,
    send: CompletionQueue,
    srq: Srq,
    channel: CompletionChannel,
    maker: Arc<Maker>,
    acceptors: Acceptors<Maker, Link, ()>,
    links: Vec<Option<(LinkId, Link)>>,
    /// Queue pairs that the program is about to connect, and whether the peer maps.
    halves: Vec<(LinkId, hca_verbs::QueuePair<Rc>, bool)>,
    count: usize,
    /// Messages of links that are not taken over yet.
    early: Vec<(LinkId, Received)>,
    wcs: Completions,
    send_wcs: Completions,
    /// Parts of completed sends.
    back: Vec<Part>,
    pool: Vec<Buf>,
    /// Free buffers of [`STAGE`] bytes, through which long writes go.
    stages: Vec<Buf>,
    slots: Slots,
    /// Polls until the send queue is looked at.
    until_sends: u32,
}

pub(crate) type Accepting = super::acceptors::Accepting<Maker, Link, ()>;

/// The parts that queue pairs are built of.
pub(crate) struct Maker {
    pd: Pd,
    recv: CqRef,
    send: CqRef,
    srq: SrqRef,
    sizes: Sizes,
    inline: usize,
    ack_timeout: AckTimeout,
    places: Places,
}

pub(crate) struct Link {
    queue: SendQueue<Rc>,
    /// `None` for one that the program connected itself.
    connection: Option<Connection>,
    inline: usize,
    /// Requests since the last signalled one.
    unsignaled: u32,
    /// Writes and reads that have not ended.
    accesses: usize,
    /// Writes of long copies that have not ended.
    staged: usize,
    /// Places of messages that are free with the end of their sends, in the order of these.
    placed: VecDeque<u32>,
    depth: u32,
    accepted: bool,
    /// The peer's CPU takes long messages out of this process's memory.
    near: bool,
    stores: Stores,
    down: bool,
}

/// Memory from which long messages are sent, and which keeps requests until they were answered. The place that was free
/// for the longest time is used next: lines that a peer on another CPU has read lately are slow to write.
#[derive(Default)]
struct Slots {
    chunks: Vec<SharedMr>,
    free: VecDeque<u32>,
    /// Where the message of each place begins in it, and its bytes.
    filled: Vec<(u32, u32)>,
}

impl Slots {
    /// Bytes of a place. A payload begins at a line, so a message begins up to a line behind its place.
    fn stride(sizes: &Sizes) -> usize {
        sizes.message + LINE
    }
    /// Writes a message into a free place; `stores`: for a near peer that takes it out of there. Returns the place, and
    /// its bytes for a request.
    fn fill(
        &mut self,
        Maker { pd, sizes, .. }: &Maker,
        (head, payload): (&[u8], &[u8]),
        stores: Option<&mut Stores>,
    ) -> Result<(u32, SharedRange), Unsent> {
        let stride = Self::stride(sizes);
        if self.free.is_empty() {
            let count = (CHUNK / stride).max(1);
            let memory = pd.alloc_shared(count * stride, Access::empty()).map_err(|_| Unsent::NoMemory)?;
            self.chunks.push(memory);
            let before = self.filled.len();
            self.filled.resize(before + count, (0, 0));
            self.free.extend(before as u32..(before + count) as u32);
        }
        let place = self.free.pop_front().ok_or(Unsent::Full)?;
        let lead = head.len().next_multiple_of(LINE) - head.len();
        self.filled[place as usize] = (lead as u32, (head.len() + payload.len()) as u32);
        let (memory, range) = self.at(place, stride);
        memory.write_at(range.start, head);
        let at = range.start + head.len();
        match stores.filter(|_| payload.len() >= LONG) {
            Some(stores) => stores.store(payload.len(), |passes| match passes {
                true => memory.pass_at(at, payload),
                false => memory.write_at(at, payload),
            }),
            None => memory.write_at(at, payload),
        }
        let sent = memory.range(range);
        Ok((place, sent))
    }
    fn at(&self, place: u32, stride: usize) -> (&SharedMr, Range<usize>) {
        let each = (CHUNK / stride).max(1);
        let (lead, len) = self.filled[place as usize];
        let at = place as usize % each * stride + lead as usize;
        (&self.chunks[place as usize / each], at..at + len as usize)
    }
}

impl Maker {
    fn depth(&self) -> u32 {
        // A bulk message is two requests.
        2 * self.sizes.sends() as u32
    }
    fn build(&self, id: LinkId) -> Result<hca_verbs::QueuePair<Rc>, Error> {
        let builder = self.pd.qp::<Rc>(&self.send).recv_cq(&self.recv).srq(&self.srq).context(id.0);
        let builder = builder.max_send_wr(self.depth()).max_send_sge(1).max_inline(self.inline as u32);
        Ok(builder.access(PEERS).build()?)
    }
    fn link(
        &self,
        qp: hca_verbs::QueuePair<Rc>,
        connection: Option<Connection>,
        hello: &Hello,
        accepted: bool,
    ) -> Result<Link, Error> {
        // RDMA CM leaves the time after which a silent peer is given up at the default.
        qp.control().set_retries(Some(self.ack_timeout), None)?;
        let near = qp.control().query()?.near;
        let (queue, _) = qp.split();
        let (depth, inline) = (self.depth(), self.inline);
        let mut link = Link {
            queue,
            connection,
            inline,
            unsignaled: 0,
            accesses: 0,
            staged: 0,
            placed: VecDeque::new(),
            depth,
            accepted,
            near,
            stores: Stores::default(),
            down: false,
        };
        link.post(SendRequest::send(Inline(&hello.bytes())), false).map_err(|_| Error::Unreachable)?;
        Ok(link)
    }
}

impl Link {
    /// Posts a request. It is signalled if its buffer is to come back, or if it is time for that.
    #[inline(always)]
    fn post<O: OfferedBy<Rc>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
        signal: bool,
    ) -> Result<(), Unsent> {
        if self.down {
            return Err(Unsent::Down);
        }
        let signal = signal || self.unsignaled + 1 >= self.depth / 4;
        match self.queue.post_send(request.signaled(signal)) {
            Ok(()) => {
                self.unsignaled = if signal { 0 } else { self.unsignaled + 1 };
                Ok(())
            }
            Err(refused) => Err(unsent(&refused.error)),
        }
    }
}

#[cold]
fn unsent(error: &PostRefusal) -> Unsent {
    if matches!(error, PostRefusal::Queue(PostErrorKind::QueueFull { .. })) {
        return Unsent::Full;
    }
    tracing::debug!(%error, "the queue pair of a link refuses a message");
    Unsent::Down
}

impl Link {
    /// Does an access within the call, if the peer is near and the device can.
    #[inline]
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    fn carry_out<O: OfferedBy<Rc>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<(), SendRequest<O, L>> {
        if !self.near || self.accesses > 0 || self.down {
            return Err(request);
        }
        self.queue.carry_out(request).map(drop)
    }
    /// Does a write or a read, or posts it.
    #[inline]
    fn access<O: OfferedBy<Rc>, L: GatherList>(&mut self, request: SendRequest<O, L>) -> Result<(), Unsent> {
        let Err(request) = self.carry_out(request) else { return Ok(()) };
        self.post(request.id(ACCESS | BARE), true)?;
        self.accesses += 1;
        Ok(())
    }
}

/// A link that is there.
#[inline]
fn link_in(links: &mut [Option<(LinkId, Link)>], id: LinkId) -> Result<&mut Link, Unsent> {
    match links.get_mut(id.place()) {
        Some(Some((known, link))) if *known == id => Ok(link),
        _ => Err(Unsent::Down),
    }
}

impl Verbs {
    pub(crate) fn open(context: &Context, options: &Options) -> Result<Self, Error> {
        let sizes = Sizes::new(options);
        let inline = MAX_INLINE.min(context.attr().max_inline as usize);
        if inline < crate::wire::MAX_HEAD_BYTES.max(crate::wire::HELLO_BYTES) {
            return Err(Error::Limit { what: "inline bytes of the device", max: inline });
        }
        let links = sizes.max_links as u32;
        let most = (sizes.receives() * (sizes.max_links + AHEAD)) as u32;
        let pd = context.alloc_pd()?;
        let first = (AHEAD * sizes.receives()) as u32;
        let srq = pd.create_srq_up_to(SrqInit { max_wr: first, max_sge: 1 }, most)?;
        let mut recv = context.create_cq(most)?;
        let mut send = context.create_cq(links * 2 * sizes.sends() as u32)?;
        let channel = context.create_channel()?;
        channel.attach(&mut recv);
        channel.attach(&mut send);
        let maker = Maker {
            pd,
            recv: recv.reference(),
            send: send.reference(),
            srq: srq.reference(),
            sizes,
            inline,
            ack_timeout: options.ack_timeout,
            places: Places::new(sizes.max_links),
        };
        let maker = Arc::new(maker);
        let acceptors = Acceptors::new(context, &maker);
        let mut verbs = Self {
            context: context.clone(),
            recv,
            send,
            srq,
            channel,
            maker,
            acceptors,
            links: Vec::new(),
            halves: Vec::new(),
            count: 0,
            early: Vec::new(),
            wcs: Completions::with_capacity(BATCH),
            send_wcs: Completions::with_capacity(BATCH),
            back: Vec::new(),
            pool: Vec::new(),
            stages: Vec::new(),
            slots: Slots::default(),
            until_sends: POLLS_A_LOOK,
        };
        verbs.fill()?;
        Ok(verbs)
    }
    /// Gives the shared receive queue the buffers that the links need.
    fn fill(&mut self) -> Result<(), Error> {
        let sizes = self.maker.sizes;
        let wanted = (sizes.receives() * (self.count + AHEAD)) as u32;
        if self.srq.init().max_wr < wanted && self.srq.query().is_ok_and(|status| status.max_wr < wanted) {
            self.srq.resize(wanted)?;
        }
        while self.srq.outstanding() < wanted {
            let buf = self.maker.pd.alloc(sizes.message)?;
            if self.srq.post_recv(buf).is_err() {
                break;
            }
        }
        Ok(())
    }
    fn add(&mut self, id: LinkId, link: Link) {
        let place = id.place();
        if place >= self.links.len() {
            self.links.resize_with(place + 1, || None);
        }
        self.links[place] = Some((id, link));
        self.count += 1;
        if let Err(error) = self.fill() {
            tracing::warn!(%error, "no more receive buffers: peers have to wait for those that are there");
        }
    }
    #[inline]
    fn link(&mut self, id: LinkId) -> Result<&mut Link, Unsent> {
        link_in(&mut self.links, id)
    }
    fn buffer(&mut self) -> Result<Buf, Unsent> {
        if let Some(buf) = self.pool.pop() {
            return Ok(buf);
        }
        self.maker.pd.alloc(self.maker.sizes.message).map_err(|_| Unsent::NoMemory)
    }
    /// A copy of bytes in registered memory, for a write.
    fn staged(&mut self, bytes: &[u8]) -> Result<(FrozenBuf, usize), Unsent> {
        let len = bytes.len();
        if len <= self.maker.sizes.message {
            let mut buf = self.buffer()?;
            buf[..len].copy_from_slice(bytes);
            return Ok((buf.freeze(), len));
        }
        let free = if len <= STAGE { self.stages.pop() } else { None };
        let made = match free {
            Some(buf) => Ok(buf),
            None => self.maker.pd.alloc(len.max(STAGE)),
        };
        let mut buf = made.map_err(|_| Unsent::NoMemory)?;
        buf[..len].copy_from_slice(bytes);
        Ok((buf.freeze(), len))
    }
    /// Posts a write of bytes, which are copied; `ends`: [`ACCESS`] if its end is counted.
    fn write_bytes(&mut self, id: LinkId, bytes: &[u8], remote: RemoteMr, ends: u64) -> Result<(), Unsent> {
        let counts = bytes.len() > self.maker.sizes.message;
        let link = self.link(id)?;
        if link.carry_out(SendRequest::write(Inline(bytes), remote)).is_ok() {
            return Ok(());
        }
        // The ends of a link that has failed do not count.
        if counts && link.staged >= STAGES && !link.down {
            self.until_sends = 1;
            return Err(Unsent::Full);
        }
        let under_way = link.staged > 0;
        // The end of an earlier piece brings memory.
        let (staged, len) = self.staged(bytes).map_err(|none| if under_way { Unsent::Full } else { none })?;
        let link = self.link(id)?;
        link.post(
            SendRequest::write(staged.slice(..len), remote).id(if counts { ends | STAGED } else { ends }),
            true,
        )?;
        link.staged += usize::from(counts);
        link.accesses += usize::from(ends == ACCESS);
        Ok(())
    }
    /// Sends a message from a place of its own, which is returned.
    fn send_placed(
        &mut self,
        id: LinkId,
        (head, payload): (&[u8], &[u8]),
        number: u64,
    ) -> Result<u32, Unsent> {
        let Self { links, slots, maker, .. } = self;
        let link = link_in(links, id)?;
        let (place, sent) = slots.fill(maker, (head, payload), link.near.then_some(&mut link.stores))?;
        let posted = link.post(SendRequest::send(sent).id(number), number == PLACED);
        posted.inspect_err(|_| slots.free.push_front(place)).map(|()| place)
    }
    fn give_back(&mut self, part: Part) {
        let buf = match part {
            Part::Buf(buf) => buf,
            Part::Frozen(frozen) => match frozen.try_unfreeze() {
                Ok(buf) => buf,
                Err(_) => return,
            },
            Part::Shared(_) => return,
        };
        if buf.len() == STAGE {
            if self.stages.len() < 2 * STAGES {
                self.stages.push(buf);
            }
        } else if buf.len() == self.maker.sizes.message && self.pool.len() < 4 * self.maker.sizes.sends() {
            self.pool.push(buf);
        }
    }
    #[cold]
    fn take_over(&mut self, into: &mut VecDeque<Event>) {
        let fresh = self.acceptors.links();
        for (endpoint, id, link) in fresh {
            self.add(id, link);
            into.push_back(Event::Accepted(endpoint, id));
            let early = std::mem::take(&mut self.early);
            for (of, received) in early {
                if of == id {
                    into.push_back(Event::Received(id, received));
                } else {
                    self.early.push((of, received));
                }
            }
        }
    }
    /// Takes the ends of sends. Returns the links that have failed.
    #[inline]
    fn ends(&mut self) -> Vec<LinkId> {
        let mut failed = Vec::new();
        let Self { send, send_wcs, links, back, slots, .. } = self;
        loop {
            let mut ended = 0;
            for mut wc in send.poll(send_wcs) {
                ended += 1;
                if wc.id & BARE == 0 {
                    back.extend(wc.take_parts());
                }
                let id = LinkId(wc.context);
                if wc.status != WcStatus::Success {
                    failed.push(id);
                } else if wc.id != 0
                    && let Some(Some((known, link))) = links.get_mut(id.place())
                    && *known == id
                {
                    if wc.id & PLACED != 0 {
                        slots.free.extend(link.placed.pop_front());
                    }
                    link.accesses -= usize::from(wc.id & ACCESS != 0);
                    link.staged -= usize::from(wc.id & STAGED != 0);
                }
            }
            if ended < BATCH {
                break;
            }
        }
        while let Some(part) = self.back.pop() {
            self.give_back(part);
        }
        failed
    }
    #[cold]
    fn fail(&mut self, id: LinkId, into: &mut VecDeque<Event>) {
        if let Ok(link) = self.link(id)
            && !link.down
        {
            link.down = true;
            let _ = link.queue.control().to_error();
            into.push_back(Event::Down(id));
        }
    }
}

/// Accepts the peers of an endpoint.
fn serve(listener: &Listener, stop: &Stop, Serving { home, greeting }: &Serving<Maker, Link>) {
    while let Some(Ok(incoming)) = stop.or(listener.accept_async()) {
        if !incoming.private_data().starts_with(MARK) {
            let _ = incoming.reject(b"this endpoint speaks hca-am/1");
            continue;
        }
        let target = home.now();
        let maker = &*target.maker;
        match maker.places.take() {
            Ok(id) => match accept(stop, maker, greeting, incoming, id) {
                Ok(link) => target.inbox.put(target.endpoint, id, link),
                Err(error) => {
                    tracing::debug!(%error, "a peer was not accepted");
                    maker.places.free(id);
                }
            },
            Err(error) => {
                tracing::warn!(%error, "a peer was refused");
                let _ = incoming.reject(b"no link is left");
            }
        }
    }
}

fn accept(
    stop: &Stop,
    maker: &Maker,
    greeting: &Greeting,
    incoming: Incoming,
    id: LinkId,
) -> Result<Link, Error> {
    let qp = maker.build(id)?;
    let accepted = stop.or(incoming.accept_async(&qp.control(), &[])).ok_or(Error::Unreachable)?;
    maker.link(qp, Some(accepted?), &greeting.say(), true)
}

impl Lower for Verbs {
    fn listen(&mut self, endpoint: EndpointId, hello: Hello) -> Result<EndpointName, Error> {
        let host = self.context.port().gid.ip();
        let listener = Listener::bind(&self.context, SocketAddr::new(host, 0))?;
        let name = EndpointName { way: Way::Verbs, host, id: listener.address().port().into() };
        let hello = Hello { host: name.wire_host(), endpoint: name.id, ..hello };
        self.acceptors.start(endpoint, hello, (), move |stop, serving| serve(&listener, stop, &serving))?;
        Ok(name)
    }
    fn unlisten(&mut self, endpoint: EndpointId) {
        drop(self.acceptors.take(endpoint));
    }
    fn take_acceptor(&mut self, endpoint: EndpointId) -> Option<Listening> {
        self.acceptors.take(endpoint).map(Listening::Verbs)
    }
    fn adopt(&mut self, endpoint: EndpointId, listening: Listening, limits: &Hello) -> Result<(), Listening> {
        match listening {
            Listening::Verbs(accepting) => {
                self.acceptors.adopt(endpoint, accepting, limits).map_err(Listening::Verbs)
            }
            other => Err(other),
        }
    }
    fn set_segment(&mut self, endpoint: EndpointId, remote: Remote) -> Result<(), Error> {
        self.acceptors.set_segment(endpoint, remote)
    }
    fn alloc(&mut self, len: usize) -> Result<Segment, Error> {
        Ok(Segment(Place::Verbs(self.maker.pd.alloc_shared(len, PEERS)?)))
    }
    fn connect(&mut self, to: &EndpointName, hello: &Hello, timeout: Duration) -> Result<LinkId, Error> {
        let port = match (to.way, u16::try_from(to.id)) {
            (Way::Verbs, Ok(port)) => port,
            _ => return Err(Error::Name("verbs")),
        };
        let maker = Arc::clone(&self.maker);
        let id = maker.places.take()?;
        let connected = maker.build(id).and_then(|qp| {
            let params =
                ConnectParams { private_data: MARK, timeout: Some(timeout), ..ConnectParams::default() };
            let connection = connect_with(&self.context, &qp, (to.host, port), &params)?;
            maker.link(qp, Some(connection), hello, false)
        });
        let link = connected.inspect_err(|_| maker.places.free(id))?;
        self.add(id, link);
        Ok(id)
    }
    fn half_link(&mut self, accepted: bool) -> Result<(LinkId, Endpoint), Error> {
        let id = self.maker.places.take()?;
        let qp = self.maker.build(id).inspect_err(|_| self.maker.places.free(id))?;
        let endpoint = qp.endpoint();
        self.halves.push((id, qp, accepted));
        Ok((id, endpoint))
    }
    fn join(&mut self, half: LinkId, remote: &Endpoint, hello: &Hello) -> Result<(), Error> {
        let at = self.halves.iter().position(|(id, ..)| *id == half).ok_or(Error::Unreachable)?;
        let (id, qp, accepted) = self.halves.swap_remove(at);
        qp.connect(remote, &ConnectOptions::default())?;
        let link = self.maker.link(qp, None, hello, accepted)?;
        self.add(id, link);
        Ok(())
    }
    fn close(&mut self, id: LinkId) {
        if self.link(id).is_ok() {
            if let Some((_, link)) = self.links[id.place()].take() {
                // With the queue pair went its requests, and nobody reads these places any more.
                let Link { queue, placed, .. } = link;
                drop(queue);
                self.slots.free.extend(placed);
            }
            self.count -= 1;
            self.maker.places.free(id);
            // Requests of the shared queue that the link had taken went with it.
            let _ = self.fill();
        }
    }
    #[inline]
    fn send(&mut self, id: LinkId, head: &[u8], payload: &[u8]) -> Result<(), Unsent> {
        let len = head.len() + payload.len();
        let link = self.link(id)?;
        if len <= link.inline {
            let mut both;
            let bytes = if payload.is_empty() {
                head
            } else {
                both = [0; MAX_INLINE];
                both[..head.len()].copy_from_slice(head);
                both[head.len()..len].copy_from_slice(payload);
                &both[..len]
            };
            return link.post(SendRequest::send(Inline(bytes)), false);
        }
        let place = self.send_placed(id, (head, payload), PLACED)?;
        self.link(id)?.placed.push_back(place);
        Ok(())
    }
    fn send_kept(&mut self, id: LinkId, head: &[u8], payload: &[u8]) -> Result<Kept, Unsent> {
        self.send_placed(id, (head, payload), 0).map(Kept)
    }
    fn kept(&self, _: LinkId, kept: Kept) -> Vec<u8> {
        let (memory, range) = self.slots.at(kept.0, Slots::stride(&self.maker.sizes));
        let mut bytes = vec![0; range.len()];
        memory.read_at(range.start, &mut bytes);
        bytes
    }
    #[inline]
    fn let_go(&mut self, _: LinkId, kept: Kept) {
        self.slots.free.push_back(kept.0);
    }
    fn put(&mut self, id: LinkId, from: &Source<'_>, to: Remote) -> Result<(), Unsent> {
        let remote = RemoteMr { addr: to.addr, rkey: Rkey::new(to.key), len: to.len };
        match from {
            Source::Bytes([]) => Ok(()),
            Source::Bytes(bytes) => self.write_bytes(id, bytes, remote, 0),
            Source::Segment(Segment(Place::Verbs(mr)), range) => {
                let link = self.link(id)?;
                let Err(request) = link.carry_out(SendRequest::write(mr.range(range.clone()), remote)) else {
                    return Ok(());
                };
                link.post(request, false)
            }
            Source::Segment(..) => Err(Unsent::Down),
        }
    }
    #[inline]
    fn is_near(&self, id: LinkId) -> bool {
        matches!(self.links.get(id.place()), Some(Some((_, link))) if link.near)
    }
    fn write(&mut self, id: LinkId, from: &Source<'_>, to: Remote) -> Result<(), Unsent> {
        let remote = RemoteMr { addr: to.addr, rkey: Rkey::new(to.key), len: to.len };
        match from {
            Source::Bytes(bytes) if bytes.len() <= self.maker.inline => {
                self.link(id)?.access(SendRequest::write(Inline(bytes), remote))
            }
            Source::Bytes(bytes) => self.write_bytes(id, bytes, remote, ACCESS),
            Source::Segment(Segment(Place::Verbs(mr)), range) => {
                let link = self.link(id)?;
                // A program that waits for room carries out what it posted, which the adapter's thread does otherwise.
                if link.accesses >= STAGES && range.len() > STAGE && !link.down {
                    self.until_sends = 1;
                    return Err(Unsent::Full);
                }
                link.access(SendRequest::write(mr.range(range.clone()), remote))
            }
            Source::Segment(..) => Err(Unsent::Down),
        }
    }
    #[inline]
    fn read(&mut self, id: LinkId, into: &Segment, range: Range<usize>, from: Remote) -> Result<(), Unsent> {
        let Segment(Place::Verbs(mr)) = into else { return Err(Unsent::Down) };
        let remote = RemoteMr { addr: from.addr, rkey: Rkey::new(from.key), len: from.len };
        self.link(id)?.access(SendRequest::read(mr.range(range), remote))
    }
    #[inline]
    fn accesses(&mut self, id: LinkId, events: &mut VecDeque<Event>) -> Result<usize, Unsent> {
        if self.link(id)?.accesses > 0 {
            self.take_ends(events);
        }
        let link = self.link(id)?;
        if link.down { Err(Unsent::Down) } else { Ok(link.accesses) }
    }
    #[inline]
    fn recycle(&mut self, _: LinkId, received: Received) {
        if let Received::Buf(buf, _) = received
            && let Err(refused) = self.srq.post_recv(buf)
        {
            tracing::debug!(error = %refused.error, "a receive buffer is freed");
        }
    }
    fn look_around(&mut self, into: &mut VecDeque<Event>) {
        for place in 0..self.links.len() {
            let Some((id, link)) = &mut self.links[place] else { continue };
            let id = *id;
            // A WRITE of no bytes needs no key and no receive request, and is acknowledged.
            let probe = SendRequest::write(Inline(&[]), RemoteMr::default());
            let connected = link.connection.as_ref().is_none_or(Connection::is_connected);
            let alive = connected && (link.accepted || link.post(probe, false) != Err(Unsent::Down));
            if !alive {
                self.fail(id, into);
            }
        }
        for (id, received) in std::mem::take(&mut self.early) {
            // One whose handshake has failed has no place.
            if self.maker.places.has(id) {
                self.early.push((id, received));
            } else {
                self.recycle(id, received);
            }
        }
    }
    #[inline]
    fn poll(&mut self, into: &mut VecDeque<Event>) {
        // Nobody waits for the end of a send: its buffer comes back, or its link is found to have failed. Ahead of the
        // messages: a look behind them would have them acknowledged before they are answered.
        let mut failed = Vec::new();
        self.until_sends -= 1;
        if self.until_sends == 0 {
            self.until_sends = POLLS_A_LOOK;
            failed = self.ends();
        }
        loop {
            let mut came = 0;
            for mut wc in self.recv.poll(&mut self.wcs) {
                came += 1;
                let id = LinkId(wc.context);
                let Some(buf) = wc.take_buf() else { continue };
                if wc.status != WcStatus::Success {
                    let _ = self.srq.post_recv(buf);
                    failed.push(id);
                    continue;
                }
                let received = Received::Buf(buf, wc.byte_len as usize);
                match self.links.get(id.place()) {
                    Some(Some((known, _))) if *known == id => into.push_back(Event::Received(id, received)),
                    _ => self.early.push((id, received)),
                }
            }
            if came < BATCH {
                break;
            }
        }
        for id in failed {
            self.fail(id, into);
        }
        if self.acceptors.any_link() {
            self.take_over(into);
        }
    }
    fn arm(&mut self) {
        // The poll behind it has to see what will not be told of.
        self.until_sends = 1;
        self.recv.arm(Notify::Any);
        self.send.arm(Notify::Any);
    }
    fn sleeper(&self) -> Sleeper {
        Sleeper::Verbs(self.channel.clone())
    }
    fn engine_queue(&self) -> Option<(Arc<dyn Device>, CqHandle)> {
        let (device, queue) = (Arc::clone(self.context.device()), self.recv.handle());
        let runs = Arc::clone(&device);
        self.acceptors.inbox().tell_by(move || {
            // Without an engine nobody has to be told.
            let _ = runs.offload().map(|offload| offload.nudge(queue));
        });
        Some((device, queue))
    }
    #[inline]
    fn take_ends(&mut self, into: &mut VecDeque<Event>) {
        for id in self.ends() {
            self.fail(id, into);
        }
    }
    #[inline]
    fn has_room_now(&self, id: LinkId) -> bool {
        let Some(Some((known, link))) = self.links.get(id.place()) else { return true };
        let sent = || link.queue.control().outstanding_sends();
        *known != id || link.down || (sent() + AN_ANSWER <= link.depth && link.staged < STAGES)
    }
}
