//! Datagrams of sockets over RDMA. A socket has a queue pair on each of its devices, with a thread that receives and one
//! that answers those who ask for the socket's port.
//!
//! A message is a datagram behind the sender's port; the sender's address is in the datagram's GRH. The queue pair of an
//! address is asked for once, by a thread, and datagrams wait meanwhile. A datagram that finds no room is dropped.

use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hca::cm::{DatagramListener, UDP_QKEY, resolve};
use hca::verbs::{
    AhCache, Buf, CompletionQueue, Completions, Context, Grh, Pd, RecvQueue, SendQueue, Ud, UdPeer, WcOpcode,
};
use rustix::event::{EventfdFlags, eventfd};

use super::changes::ring;
use super::device::CmDevice;
use super::group::Group;
use super::stream::{Phase, Socket, State, at_device, verbs};
use crate::entry::{Errno, INVALID};

/// The sender's port, before the datagram.
pub(super) const HEADER: usize = 2;
/// Datagrams under way in each direction, of each device.
const DEPTH: usize = 64;
/// Datagrams that wait for the program, and those that wait for an answer with an address's queue pair.
const MAX_ARRIVED: usize = 128;
const MAX_WAITING: usize = 64;
/// Ports that are tried for a socket at all devices.
const PORT_TRIES: usize = 16;
/// Addresses whose queue pairs are known, and paths to them.
const MAX_NAMES: usize = 1024;
/// An address that has been silent so long is asked again: another process may be there.
const SILENCE: Duration = Duration::from_secs(2);

/// The queue pair of one device.
struct Port {
    device: Arc<CmDevice>,
    context: Context,
    pd: Pd,
    queue: SendQueue<Ud>,
    free: Vec<Buf>,
    /// The most bytes of a message.
    most: usize,
    /// Wakes the thread that receives: the socket is closed.
    wake: Arc<OwnedFd>,
}

/// What is known of an address.
struct Name {
    port: usize,
    peer: Option<UdPeer>,
    /// The last answer or datagram from there, or the last question.
    heard: Instant,
    waiting: Vec<Vec<u8>>,
}

/// What a socket of datagrams has beside that of streams.
#[derive(Default)]
pub(super) struct Datagrams {
    ports: Vec<Port>,
    /// How many of their threads receive.
    receiving: usize,
    number: u16,
    /// The groups of the port's addresses, one for each device.
    groups: Vec<Arc<Group>>,
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    names: HashMap<SocketAddr, Name>,
}

impl Datagrams {
    pub(super) fn is_bound(&self) -> bool {
        !self.ports.is_empty()
    }
    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }
    /// Whether there is room for a datagram on each device.
    pub(super) fn has_room(&self) -> bool {
        self.ports.iter().all(|port| !port.free.is_empty())
    }
    /// Wakes the threads, as the socket was closed. The groups that it is no member of any more.
    pub(super) fn close(&self, socket: &Socket) -> Vec<Arc<Group>> {
        self.groups.iter().for_each(|group| group.leave(socket));
        self.ports.iter().for_each(|port| ring(&port.wake));
        self.groups.clone()
    }
    /// Whether all that the program has sent has left.
    fn is_done(&self, port: usize) -> bool {
        self.ports[port].free.len() == DEPTH && self.names.values().all(|name| name.waiting.is_empty())
    }
    /// The device of an address that nothing is known of.
    fn port_to(&self, to: SocketAddr) -> Result<usize, Errno> {
        if self.ports.len() == 1 {
            return Ok(0);
        }
        let device = CmDevice::towards(to.ip())?;
        self.ports.iter().position(|port| Arc::ptr_eq(&port.device, &device)).ok_or(Errno(libc::ENETUNREACH))
    }
    /// Sends a datagram, if there is a buffer for it. Whether the address has to be asked.
    fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> Option<Result<bool, Errno>> {
        let known = self.names.get(&to).map(|name| name.port);
        let port = match known.map_or_else(|| self.port_to(to), Ok) {
            Ok(port) => port,
            Err(e) => return Some(Err(e)),
        };
        if HEADER + bytes.len() > self.ports[port].most {
            return Some(Err(Errno(libc::EMSGSIZE)));
        }
        if known.is_none() {
            if self.names.len() >= MAX_NAMES {
                // Those that are asked stay: their datagrams wait.
                self.names.retain(|_, name| name.peer.is_none());
            }
            if self.names.len() < MAX_NAMES {
                let (heard, waiting) = (Instant::now(), vec![bytes.to_vec()]);
                self.names.insert(to, Name { port, peer: None, heard, waiting });
                return Some(Ok(true));
            }
            return Some(Ok(false));
        }
        let name = self.names.get_mut(&to)?;
        let Some(peer) = &name.peer else {
            if name.waiting.len() < MAX_WAITING {
                name.waiting.push(bytes.to_vec());
            }
            return Some(Ok(false));
        };
        let asks = name.heard.elapsed() > SILENCE;
        let sent = self.ports[name.port].post(self.number, peer, bytes)?;
        if asks {
            name.heard = Instant::now();
        }
        Some(sent.map(|()| asks))
    }
    /// The queue pair of an address was found, or is not there.
    fn learn(&mut self, of: SocketAddr, found: Option<UdPeer>) {
        let Some(name) = self.names.get_mut(&of) else { return };
        let Some(peer) = found else {
            self.names.remove(&of);
            return;
        };
        for bytes in std::mem::take(&mut name.waiting) {
            let _ = self.ports[name.port].post(self.number, &peer, &bytes);
        }
        (name.peer, name.heard) = (Some(peer), Instant::now());
    }
    /// Takes a datagram of a peer.
    fn take(&mut self, port: usize, from: SocketAddr, peer: UdPeer, bytes: &[u8]) {
        if self.names.contains_key(&from) || self.names.len() < MAX_NAMES {
            let fresh = || Name { port, peer: None, heard: Instant::now(), waiting: Vec::new() };
            self.names.entry(from).or_insert_with(fresh);
            self.learn(from, Some(peer));
        }
        self.arrive(from, bytes);
    }
    /// Keeps a datagram for the program, if there is room.
    fn arrive(&mut self, from: SocketAddr, bytes: &[u8]) {
        if self.arrived.len() < MAX_ARRIVED {
            self.arrived.push_back((from, bytes.to_vec()));
        }
    }
}

impl State {
    /// A thread that receives datagrams has ended. Where that was the last one of a socket that goes on, the devices have
    /// failed.
    pub(super) fn receiver_ended(&mut self) {
        let Some(datagrams) = &mut self.datagrams else { return };
        datagrams.receiving = datagrams.receiving.saturating_sub(1);
        if datagrams.receiving == 0 && !self.closing {
            self.phase = Phase::Failed(Errno(libc::EIO));
        }
    }
}

impl Port {
    /// Posts a datagram, if there is a buffer for it.
    fn post(&mut self, from: u16, to: &UdPeer, bytes: &[u8]) -> Option<Result<(), Errno>> {
        let mut buf = self.free.pop()?;
        let len = HEADER + bytes.len();
        let Some(room) = buf.get_mut(..len) else {
            self.free.push(buf);
            return Some(Err(Errno(libc::EMSGSIZE)));
        };
        let (header, data) = room.split_at_mut(HEADER);
        header.copy_from_slice(&from.to_be_bytes());
        data.copy_from_slice(bytes);
        Some(self.queue.send_to(buf.first(len), to).map_err(|_| Errno(libc::EIO)))
    }
    /// The queue pair of a device, the half that receives, and the queue of its completions.
    fn new(device: &Arc<CmDevice>) -> Result<(Self, RecvQueue<Ud>, CompletionQueue), Errno> {
        let no_memory = |_| Errno(libc::ENOMEM);
        let context = verbs(device)?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * DEPTH as u32 + 2)?;
        let depth = DEPTH as u32;
        let built = pd.qp::<Ud>(&cq).max_send_wr(depth).max_recv_wr(depth).build();
        let mut qp = built.map_err(|_| Errno(libc::ENOMEM))?;
        let most = context.port().active_mtu.bytes() as usize;
        for buffer in pd.alloc_many(DEPTH, Grh::BYTES + most).map_err(no_memory)? {
            qp.post_recv(buffer).map_err(|_| Errno(libc::ENOMEM))?;
        }
        let free = pd.alloc_many(DEPTH, most).map_err(no_memory)?;
        qp.activate(UDP_QKEY).map_err(|_| Errno(libc::EIO))?;
        let (queue, recv) = qp.split();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok((Self { device: Arc::clone(device), context, pd, queue, free, most, wake }, recv, cq))
    }
}

impl Socket {
    /// Binds a socket of datagrams to an address; port 0 chooses one.
    pub(super) fn bind_datagrams(self: &Arc<Self>, at: SocketAddr) -> Result<(), Errno> {
        let _choosing = self.choosing()?;
        let is_any = at.ip().is_unspecified();
        let devices = if is_any { CmDevice::all()? } else { vec![CmDevice::at(at.ip())?] };
        // The first device chooses a port, which may be in use at another one.
        let tries = if at.port() == 0 && devices.len() > 1 { PORT_TRIES } else { 1 };
        let is_used = |bound: &Result<(), Errno>| *bound == Err(Errno(libc::EADDRINUSE));
        let mut all = (0..tries).map(|_| self.bind_to_all(at, &devices));
        all.find(|bound| !is_used(bound)).unwrap_or(Err(Errno(libc::EADDRINUSE)))
    }
    fn bind_to_all(self: &Arc<Self>, mut at: SocketAddr, devices: &[Arc<CmDevice>]) -> Result<(), Errno> {
        let is_any = at.ip().is_unspecified();
        if self.state().datagrams.as_ref().is_none_or(Datagrams::is_bound) {
            return Err(INVALID);
        }
        let shares = self.state().shares_port();
        let mut opened: Vec<(Port, RecvQueue<Ud>, CompletionQueue, Arc<Group>)> = Vec::new();
        for device in devices {
            let found = Port::new(device).and_then(|(port, recv, cq)| {
                let group = self.group(&port, &mut at, is_any, shares)?;
                Ok((port, recv, cq, group))
            });
            let found = found.inspect_err(|_| self.unbind(opened.iter().map(|(.., group)| group)))?;
            opened.push(found);
        }
        let groups = Vec::from_iter(opened.iter().map(|(.., group)| Arc::clone(group)));
        let (mut ports, mut gates) = (Vec::new(), Vec::new());
        for (index, (port, recv, cq, group)) in opened.into_iter().enumerate() {
            let (pd, wake) = (port.pd.clone(), Arc::clone(&port.wake));
            let (gate, opens) = channel::<()>();
            ports.push(port);
            gates.push(gate);
            let started = self.thread("hca-rdatagrams", move |socket| {
                // Where another thread is missing, the gate is dropped.
                if opens.recv().is_ok() {
                    socket.receive(index, &pd, recv, cq, &wake, &group);
                    socket.change(State::receiver_ended);
                }
            });
            started.inspect_err(|_| self.unbind(&groups))?;
        }
        self.change(|state| {
            let Some(datagrams) = &mut state.datagrams else { return };
            (datagrams.number, datagrams.receiving) = (at.port(), ports.len());
            (datagrams.ports, datagrams.groups) = (ports, groups);
            state.local = Some(at);
        });
        gates.iter().for_each(|gate| _ = gate.send(()));
        Ok(())
    }
    /// Takes the socket out of the groups of a bind that failed, whose ports are free afterwards.
    fn unbind<'a>(&self, groups: impl IntoIterator<Item = &'a Arc<Group>> + Clone) {
        groups.clone().into_iter().for_each(|group| group.leave(self));
        groups.into_iter().for_each(|group| group.wait_for_end());
        // Datagrams that others of the groups have handed over.
        self.change(|state| state.datagrams.iter_mut().for_each(|datagrams| datagrams.arrived.clear()));
    }
    /// The group of the socket at an address of a device, whose port is chosen if it is 0.
    fn group(
        self: &Arc<Self>,
        port: &Port,
        at: &mut SocketAddr,
        is_any: bool,
        shares: bool,
    ) -> Result<Arc<Group>, Errno> {
        let here = SocketAddr::new(port.device.ip(), at.port());
        let control = port.queue.control();
        if let Some(group) = Group::join(here, self, control, shares) {
            return Ok(group);
        }
        let listener = DatagramListener::bind(&port.context, if is_any { *at } else { here })?;
        at.set_port(listener.address().port());
        Group::create(listener, self, control, shares)
    }
    /// Receives datagrams on one device, until the socket is closed and what it has sent has left.
    fn receive(
        &self,
        at: usize,
        pd: &Pd,
        mut recv: RecvQueue<Ud>,
        mut cq: CompletionQueue,
        wake: &OwnedFd,
        group: &Group,
    ) {
        let mut wcs = Completions::with_capacity(2 * DEPTH);
        let mut paths = AhCache::new(pd, MAX_NAMES);
        loop {
            let arrived = cq.wait_or_readable(&mut wcs, wake.as_fd(), None);
            let _ = rustix::io::read(wake, &mut [0_u8; 8]);
            let Ok(arrived) = arrived else { break };
            let mut state = self.state();
            let from_one = state.peer;
            let Some(datagrams) = &mut state.datagrams else { break };
            let mut of_others = Vec::new();
            for mut wc in arrived {
                let is_recv = wc.opcode == WcOpcode::Recv;
                let from = wc.grh().map(|grh| grh.reply_path().dgid.ip());
                if let (Some(Ok(peer)), Some(from)) = (paths.reply_to(&wc, UDP_QKEY), from)
                    && let Some((port, bytes)) = wc.payload().and_then(<[u8]>::split_first_chunk)
                {
                    let from = SocketAddr::new(from, u16::from_be_bytes(*port));
                    if let Some(other) = group.other(self, from) {
                        of_others.push((other, from, bytes.to_vec()));
                    } else if from_one.is_none_or(|one| one == from) {
                        datagrams.take(at, from, peer, bytes);
                    }
                }
                match wc.take_buf() {
                    Some(buf) if is_recv => _ = recv.post_recv(buf),
                    Some(buf) => datagrams.ports[at].free.push(buf),
                    None => {}
                }
            }
            let is_over = state.closing && state.datagrams.as_ref().is_none_or(|all| all.is_done(at));
            drop(state);
            self.tell();
            for (other, from, bytes) in of_others {
                other.change(|state| _ = state.datagrams.as_mut().map(|all| all.arrive(from, &bytes)));
            }
            if is_over {
                break;
            }
        }
    }
    /// Has datagrams come from an address, and go there, where the program names none.
    pub(super) fn connect_datagrams(self: &Arc<Self>, to: SocketAddr) -> Result<(), Errno> {
        let to = self.bound_towards(to)?;
        self.change(|state| {
            state.peer = Some(to);
            let groups = state.datagrams.iter().flat_map(|datagrams| &datagrams.groups);
            groups.for_each(|group| group.connect(self, to));
        });
        Ok(())
    }
    /// Binds a socket that is not bound, for an address. The address as the device knows it.
    fn bound_towards(self: &Arc<Self>, to: SocketAddr) -> Result<SocketAddr, Errno> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let is_bound = || self.state().datagrams.as_ref().is_some_and(Datagrams::is_bound);
        if is_bound() && !to.ip().is_loopback() {
            return Ok(to);
        }
        let device = CmDevice::towards(to.ip())?;
        let _choosing = self.choosing()?;
        if !is_bound() {
            self.bind_to_all(SocketAddr::new(device.ip(), 0), std::slice::from_ref(&device))?;
        }
        Ok(at_device(to, &device))
    }
    /// Sends a datagram to an address, or to the one that the socket is connected to.
    pub(super) async fn send_datagram(
        self: &Arc<Self>,
        bytes: &[u8],
        to: Option<SocketAddr>,
        waits: bool,
    ) -> Result<usize, Errno> {
        let connected = self.state().peer;
        let to = match to {
            Some(to) => self.bound_towards(to)?,
            None => connected.ok_or(Errno(libc::EDESTADDRREQ))?,
        };
        let asks = self.until(waits, |state| state.datagrams.as_mut()?.send(to, bytes)).await?;
        if asks {
            self.ask(to)?;
        }
        Ok(bytes.len())
    }
    /// Asks for the queue pair of an address, and sends what waits for it.
    fn ask(self: &Arc<Self>, of: SocketAddr) -> Result<(), Errno> {
        let state = self.state();
        let Some(datagrams) = &state.datagrams else { return Ok(()) };
        let Some(port) = datagrams.names.get(&of).map(|name| &datagrams.ports[name.port]) else {
            return Ok(());
        };
        let (context, pd, wake) = (port.context.clone(), port.pd.clone(), Arc::clone(&port.wake));
        drop(state);
        let asks = self.thread("hca-rname", move |socket| {
            let found = resolve(&context, of, &[]).ok().and_then(|found| found.peer(&pd).ok());
            socket.change(|state| _ = state.datagrams.as_mut().map(|all| all.learn(of, found)));
            ring(&wake);
        });
        // The next datagram asks anew. Until then none would wait for an answer.
        let forget =
            |_: &Errno| self.change(|state| _ = state.datagrams.as_mut().map(|all| all.learn(of, None)));
        asks.inspect_err(forget)
    }
    /// Takes the oldest datagram: its sender, and its bytes.
    pub(super) async fn recv_datagram(
        &self,
        peeks: bool,
        waits: bool,
    ) -> Result<(SocketAddr, Vec<u8>), Errno> {
        let look = |state: &mut State| {
            let datagrams = state.datagrams.as_mut()?;
            let found =
                if peeks { datagrams.arrived.front().cloned() } else { datagrams.arrived.pop_front() };
            found.map(Ok)
        };
        self.until(waits, look).await
    }
}
