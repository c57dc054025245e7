//! A server of one function for one client: a trapped BAR, a BAR with a mappable part, eight interrupts, and client
//! memory that the server accesses by the received descriptors. A test can make the server misbehave.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use hca_vfio::user::serve::{Answer, Function, MappedRegion, Region, Session};
use hca_vfio::user::wire::{
    Area, Capabilities, Command, DeviceInfo, DmaMap, DmaUnmap, IRQ_ERROR, IRQ_MSIX, IRQ_REQUEST,
    REGION_CONFIG,
};
use hca_vfio::user::{Channel, ChannelError, Received, Sleeper};
use rustix::io::{Errno, pread, pwrite};

/// BAR 0: trapped.
pub(crate) const TRAPPED_BYTES: usize = 4096;
/// BAR 2: of it, these can be mapped.
pub(crate) const SPARSE_BYTES: u64 = 0x4000;
pub(crate) const AREA: Area = Area { offset: 0x1000, size: 0x2000 };
/// Where BAR 2 begins in its file.
pub(crate) const FILE_OFFSET: u64 = 0x8000;
pub(crate) const VECTORS: u32 = 8;

/// What the server does instead of what it should.
pub(crate) enum Instead {
    /// What it should.
    Proper,
    /// Sends these bytes, and these descriptors.
    Raw(Vec<u8>, Vec<OwnedFd>),
    /// Sends several of these.
    Pieces(Vec<(Vec<u8>, Vec<OwnedFd>)>),
    /// Sends these bytes and closes the connection.
    Last(Vec<u8>),
    /// Says nothing, and goes on listening.
    Silence,
    /// Closes the connection.
    Death,
}

type Hook = Box<dyn FnMut(&Received) -> Instead + Send>;

pub(crate) struct State {
    pub(crate) config: Vec<u8>,
    pub(crate) trapped: Vec<u8>,
    pub(crate) sparse: OwnedFd,
    pub(crate) irqs: Vec<Option<OwnedFd>>,
    /// Interrupts of kinds 3 and 4: errors of the bus, and requests to let go; how many there are of each.
    pub(crate) notices: [Option<OwnedFd>; 2],
    pub(crate) has_notices: u32,
    /// How many came with each message.
    pub(crate) irq_batches: Vec<usize>,
    pub(crate) maps: BTreeMap<u64, (DmaMap, OwnedFd)>,
    pub(crate) unmaps: u32,
    pub(crate) resets: u32,
    pub(crate) capabilities: Capabilities,
    pub(crate) device: DeviceInfo,
    pub(crate) sleeper: Option<Sleeper>,
    pub(crate) hook: Option<Hook>,
    /// Asked before the next reply, and what came back.
    pub(crate) asks: Vec<Vec<u8>>,
    pub(crate) answers: Vec<Received>,
    pub(crate) closed: bool,
}

pub(crate) struct Server {
    pub(crate) path: PathBuf,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn file(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("served", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

fn config() -> Vec<u8> {
    let mut c = vec![0; 256];
    let mut put = |at: usize, bytes: &[u8]| c[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0xb3, 0x15, 0x14, 0x10]);
    // A last user left bus mastering on.
    put(4, &[4, 0, 0x10, 0]);
    put(0x34, &[0x40]);
    put(0x40, &[0x11, 0x60, (VECTORS - 1) as u8, 0, 0x00, 0x20, 0, 0, 0x02, 0x30, 0, 0]);
    put(0x60, &[0x10, 0x00, 2, 0]);
    c
}

impl Server {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hca-served-{}-{n}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let state = Arc::new(Mutex::new(State {
            config: config(),
            trapped: vec![0; TRAPPED_BYTES],
            sparse: file(FILE_OFFSET + SPARSE_BYTES),
            irqs: (0..VECTORS).map(|_| None).collect(),
            notices: [None, None],
            has_notices: 1,
            irq_batches: Vec::new(),
            maps: BTreeMap::new(),
            unmaps: 0,
            resets: 0,
            capabilities: Capabilities::default(),
            device: DeviceInfo { can_reset: true, is_pci: true, regions: 9, irq_kinds: 5 },
            sleeper: None,
            hook: None,
            asks: Vec::new(),
            answers: Vec::new(),
            closed: false,
        }));
        let for_thread = state.clone();
        let thread = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            serve(&Channel::new(socket.into()), &for_thread);
            for_thread.lock().unwrap().closed = true;
        });
        Self { path, state, thread: Some(thread) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
    /// Mappings that there are, and how many were taken back.
    pub(crate) fn mapped_and_unmapped(&self) -> (usize, u32) {
        let state = self.state();
        (state.maps.len(), state.unmaps)
    }
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    /// From now on, asks what to do instead.
    pub(crate) fn hook(&self, hook: impl FnMut(&Received) -> Instead + Send + 'static) {
        self.state().hook = Some(Box::new(hook));
    }
    /// Answers this command, now and later, with these bytes as a proper reply's payload.
    pub(crate) fn answers(&self, to: Command, payload: Vec<u8>) {
        self.hook(move |r| match r.header.command == to.code() {
            true => Instead::Raw(reply_bytes(r, &payload), Vec::new()),
            false => Instead::Proper,
        });
    }
    /// Waits until the client has closed the connection and all is served.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A reply with any payload.
pub(crate) fn reply_bytes(to: &Received, payload: &[u8]) -> Vec<u8> {
    let mut out = [to.header.id.to_ne_bytes(), to.header.command.to_ne_bytes()].concat();
    for word in [16 + payload.len() as u32, 1, 0] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(payload);
    out
}

fn pieces(channel: &Channel, pieces: &[(Vec<u8>, Vec<OwnedFd>)]) -> Result<(), ChannelError> {
    pieces.iter().try_for_each(|(bytes, fds)| {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        channel.send(bytes, &fds, None)
    })
}

fn serve(channel: &Channel, state: &Mutex<State>) {
    let mut session = Session::new();
    loop {
        let received = match channel.recv(None) {
            Ok(r) => r,
            Err(ChannelError::Closed) => return,
            Err(e) => panic!("{e}"),
        };
        let asks = core::mem::take(&mut state.lock().unwrap().asks);
        for ask in asks {
            // A client that is gone is found out by the next call.
            if channel.send(&ask, &[], None).is_err() {
                return;
            }
            let Ok(answer) = channel.recv(None) else { return };
            state.lock().unwrap().answers.push(answer);
        }
        let mut state = state.lock().unwrap();
        let instead = state.hook.as_mut().map_or(Instead::Proper, |h| h(&received));
        let sent = match instead {
            Instead::Proper => state.proper(channel, &mut session, received),
            Instead::Raw(bytes, fds) => pieces(channel, &[(bytes, fds)]),
            Instead::Pieces(all) => pieces(channel, &all),
            Instead::Last(bytes) => {
                let _ = channel.send(&bytes, &[], None);
                return;
            }
            Instead::Silence => Ok(()),
            Instead::Death => return,
        };
        if sent.is_err() {
            return;
        }
    }
}

impl Function for State {
    fn info(&self) -> DeviceInfo {
        self.device
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn region(&self, index: u32) -> Region<'_> {
        match index {
            0 => Region { bytes: TRAPPED_BYTES as u64, mapped: None },
            2 => {
                let (file, offset, areas) = (self.sparse.as_fd(), FILE_OFFSET, &[AREA]);
                Region { bytes: SPARSE_BYTES, mapped: Some(MappedRegion { file, offset, areas }) }
            }
            REGION_CONFIG => Region { bytes: self.config.len() as u64, mapped: None },
            _ => Region::default(),
        }
    }
    fn read(&mut self, index: u32, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes(index)[offset as usize..][..into.len()]);
    }
    fn write(&mut self, index: u32, offset: u64, data: &[u8]) {
        self.bytes(index)[offset as usize..][..data.len()].copy_from_slice(data);
    }
    fn interrupts(&self, kind: u32) -> u32 {
        match kind {
            IRQ_MSIX => VECTORS,
            IRQ_ERROR | IRQ_REQUEST => self.has_notices,
            _ => 0,
        }
    }
    fn listen(&mut self, kind: u32, first: u32, eventfds: Vec<Option<OwnedFd>>) -> Result<(), Errno> {
        let all = match kind {
            IRQ_MSIX => &mut self.irqs[..],
            _ => core::slice::from_mut(&mut self.notices[(kind - IRQ_ERROR) as usize]),
        };
        if kind == IRQ_MSIX && eventfds.iter().all(Option::is_some) {
            self.irq_batches.push(eventfds.len());
        }
        for (irq, eventfd) in all[first as usize..].iter_mut().zip(eventfds) {
            *irq = eventfd;
        }
        Ok(())
    }
    fn fire(&mut self, _kind: u32, _interrupt: u32) {
        panic!("the client asks for none");
    }
    fn mask(&mut self, _kind: u32, _interrupt: u32, _masked: bool) {
        panic!("the client masks none");
    }
    fn dma_map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno> {
        self.maps.insert(map.address, (*map, file.ok_or(Errno::INVAL)?));
        Ok(())
    }
    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno> {
        let (map, _) = self.maps.remove(&unmap.address).ok_or(Errno::NOENT)?;
        assert_eq!(map.size, unmap.size);
        self.unmaps += 1;
        Ok(())
    }
    fn reset(&mut self) {
        self.resets += 1;
    }
}

impl State {
    /// Answers as a server does that is well.
    fn proper(
        &mut self,
        channel: &Channel,
        session: &mut Session,
        mut received: Received,
    ) -> Result<(), ChannelError> {
        let sleeper = self.sleeper.take();
        let answer = session.answer(self, sleeper.as_ref(), &mut received);
        self.sleeper = sleeper;
        match answer.unwrap_or_else(|e| panic!("{e}")) {
            Answer::Reply { bytes, descriptors } => pieces(channel, &[(bytes, descriptors)]),
            other => panic!("a client waits for replies: {other:?}"),
        }
    }

    fn bytes(&mut self, region: u32) -> &mut [u8] {
        match region {
            0 => &mut self.trapped,
            REGION_CONFIG => &mut self.config,
            other => panic!("region {other} is trapped"),
        }
    }

    /// Has an interrupt come.
    pub(crate) fn interrupt(&self, vector: usize) {
        let event = self.irqs[vector].as_ref().expect("the interrupt is set up");
        rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Has an error of the bus (0) or a request to let go (1) be told.
    pub(crate) fn notice(&self, which: usize) {
        let event = self.notices[which].as_ref().expect("it is set up");
        rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
    }

    fn find(&self, at: u64, len: usize) -> (&OwnedFd, u64) {
        let (start, (map, fd)) = self.maps.range(..=at).next_back().expect("it is mapped");
        assert!(at + len as u64 <= start + map.size, "{at:#x} is not mapped");
        (fd, map.offset + (at - start))
    }
    /// Reads the client's memory by the descriptor that came for it.
    pub(crate) fn dma_read(&self, at: u64, len: usize) -> Vec<u8> {
        let (fd, offset) = self.find(at, len);
        let mut out = vec![0; len];
        assert_eq!(pread(fd, &mut out[..], offset).unwrap(), len);
        out
    }
    /// Writes it.
    pub(crate) fn dma_write(&self, at: u64, data: &[u8]) {
        let (fd, offset) = self.find(at, data.len());
        assert_eq!(pwrite(fd, data, offset).unwrap(), data.len());
    }
    /// Reads the part of BAR 2 that the client may map.
    pub(crate) fn sparse_word(&self, at: u64) -> [u8; 8] {
        let mut out = [0; 8];
        pread(&self.sparse, &mut out[..], FILE_OFFSET + at).unwrap();
        out
    }
}
