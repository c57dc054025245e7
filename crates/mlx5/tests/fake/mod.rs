//! A function that answers commands as an adapter does, in a thread behind a vfio-user socket, for tests of the
//! control path: it knows no work queues. It checks what the driver does, and does wrong what a test tells it to.
#![allow(dead_code)] // each test uses a part

pub(crate) mod commands;
mod ethernet;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use hca_prm::command::hca::HcaCapType;
use hca_prm::{
    CmdIfBox, CmdOut, CmdQueueEntry, DeliveryStatus, EqDoorbell, Eqe, EventType, HealthBuffer, InitSegment,
    MAILBOX_DATA, Opcode, pas,
};
use hca_vfio::user::wire::{
    Area, Capabilities, DeviceInfo, IRQ_MSIX, IrqData, IrqInfo, REGION_CONFIG, RegionInfo, Reply, Request,
    Version, refusal,
};
use hca_vfio::user::{Channel, Received};
use hca_vfio::{PciFunction, UserOptions};

/// Bytes of BAR 0.
const BAR_BYTES: u64 = 1 << 20;
/// Where doorbell pages begin that may be mapped; the page before them is trapped.
const MAPPED: u64 = 0x1_0000;
const EINVAL: u32 = 22;
/// Slots of the command queue, as a power of two.
pub(crate) const LOG_SLOTS: u32 = 5;

/// The function, from the test's side.
pub(crate) struct Fake {
    socket: PathBuf,
    folder: PathBuf,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

/// Memory of the driver's.
struct Mapped {
    size: u64,
    offset: u64,
    file: OwnedFd,
}

/// An event queue.
pub(crate) struct Queue {
    pages: Vec<u64>,
    log_size: u32,
    vector: u32,
    mask: [u64; 4],
    written: u32,
    /// Up to where the driver said that events were taken.
    taken: u32,
    armed: bool,
}

/// What the function is and has.
pub(crate) struct State {
    maps: BTreeMap<u64, Mapped>,
    uars: OwnedFd,
    command: u16,
    irqs: Vec<OwnedFd>,
    cmdq: u64,
    pub(crate) eqs: BTreeMap<u32, Queue>,
    /// What the test wants.
    pub(crate) wants: Wants,
    /// All commands, in order.
    pub(crate) log: Vec<(Opcode, u32)>,
    pub(crate) resets: u32,
    /// Pages that the driver has lent.
    pub(crate) pages: BTreeSet<u64>,
    pub(crate) enabled: bool,
    pub(crate) running: bool,
    next: u32,
    pub(crate) objects: BTreeSet<(&'static str, u32)>,
    pub(crate) caps: HashMap<u32, Vec<u8>>,
    /// What was created last: the whole input.
    pub(crate) mkey: Vec<u8>,
    pub(crate) roce: BTreeMap<u32, Vec<u8>>,
    /// Which MACs the port is to hear, by kind: single ones (0), groups (1).
    pub(crate) macs: BTreeMap<u32, Vec<[u8; 6]>>,
    counter: u32,
    /// Commands held back, until the test lets them go.
    held: Vec<u32>,
    pub(crate) faults: Vec<String>,
}

/// What a test wants the function to do.
#[derive(Clone)]
pub(crate) struct Wants {
    pub(crate) vendor: u16,
    pub(crate) interface: u32,
    pub(crate) issi: u32,
    pub(crate) ethernet: bool,
    /// The kind of list of MACs that it does not take.
    pub(crate) refuses_list: Option<u32>,
    /// It offers Ethernet queues.
    pub(crate) ethernet_queues: bool,
    pub(crate) boot_pages: u32,
    pub(crate) init_pages: u32,
    /// Commands of this kind end with a status and a syndrome.
    pub(crate) status: HashMap<Opcode, (u32, u32)>,
    /// Commands of this kind are not delivered.
    pub(crate) delivery: HashMap<Opcode, u32>,
    /// Commands of this kind get no answer.
    pub(crate) silent: BTreeSet<Opcode>,
    /// Commands of this kind are held back.
    pub(crate) hold: BTreeSet<Opcode>,
    pub(crate) syndrome: u32,
    pub(crate) stopped: bool,
    pub(crate) busy_reads: u32,
    /// Pages that are not given back when it is stopped.
    pub(crate) keeps: usize,
    /// So many more pages than it gives back it says to give.
    pub(crate) overstates: u32,
    pub(crate) vectors: u32,
    pub(crate) gone: bool,
    /// The server ends at the next message.
    pub(crate) hangs_up: bool,
    pub(crate) log_size: u32,
    /// The link, whose registers a virtual function may not see (`None`). It outlives resets.
    pub(crate) link: Option<Link>,
}

/// The link of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// What it was set to, and what it is once it was raised.
    pub(crate) admin: u32,
    pub(crate) raised: u32,
    /// How often it is looked at before it is up.
    pub(crate) looks: u32,
    /// The longest frame that there can be, may be, and may be for the function.
    pub(crate) most: u32,
    pub(crate) frame: u32,
    pub(crate) own_frame: u32,
    /// What the embedded switch makes of it.
    pub(crate) uplink: u32,
    /// Writes to its registers.
    pub(crate) writes: u32,
}

impl Default for Link {
    /// One that is up.
    fn default() -> Self {
        Self { admin: 1, raised: 1, looks: 0, most: 9978, frame: 4222, own_frame: 4222, uplink: 2, writes: 0 }
    }
}

impl Default for Wants {
    fn default() -> Self {
        Self {
            vendor: 0x15b3,
            interface: 5,
            issi: 2,
            ethernet: false,
            refuses_list: None,
            ethernet_queues: false,
            boot_pages: 16,
            init_pages: 600,
            status: HashMap::new(),
            delivery: HashMap::new(),
            silent: BTreeSet::new(),
            hold: BTreeSet::new(),
            syndrome: 0,
            stopped: false,
            busy_reads: 2,
            keeps: 0,
            overstates: 0,
            vectors: 4,
            gone: false,
            hangs_up: false,
            log_size: LOG_SLOTS,
            link: Some(Link::default()),
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().expect("the function's thread ends with its client");
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

impl Fake {
    /// Serves one client.
    pub(crate) fn serve(wants: Wants) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hca-mlx5-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("function.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let uars = rustix::fs::memfd_create("uars", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&uars, BAR_BYTES).unwrap();
        let state = Arc::new(Mutex::new(State::new(wants, uars)));
        let served = state.clone();
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let channel = Channel::new(stream.into());
            while let Ok(message) = channel.recv(None) {
                if served.lock().unwrap().wants.hangs_up {
                    return;
                }
                let (reply, fds) = served.lock().unwrap().answer(message);
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                if channel.send(&reply, &fds, None).is_err() {
                    break;
                }
            }
        });
        Self { socket, folder, state, thread: Some(thread) }
    }

    /// The function, as a driver opens it.
    pub(crate) fn function(&self) -> PciFunction {
        PciFunction::connect(&self.socket, UserOptions::default()).unwrap()
    }
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
    /// Waits until the function's client is gone, and tells what it left behind.
    pub(crate) fn end(&mut self) -> MutexGuard<'_, State> {
        self.thread.take().unwrap().join().unwrap();
        self.state()
    }
}

impl State {
    fn new(wants: Wants, uars: OwnedFd) -> Self {
        let caps = commands::capabilities(&wants);
        Self {
            maps: BTreeMap::new(),
            uars,
            command: 0,
            irqs: Vec::new(),
            cmdq: 0,
            eqs: BTreeMap::new(),
            wants,
            log: Vec::new(),
            resets: 0,
            pages: BTreeSet::new(),
            enabled: false,
            running: false,
            next: 0x40,
            objects: BTreeSet::new(),
            caps,
            mkey: Vec::new(),
            roce: BTreeMap::new(),
            macs: BTreeMap::new(),
            counter: 0,
            held: Vec::new(),
            faults: Vec::new(),
        }
    }

    fn reset(&mut self) {
        self.resets += 1;
        self.pages.clear();
        self.objects.clear();
        self.eqs.clear();
        self.roce.clear();
        self.macs.clear();
        self.held.clear();
        self.caps = commands::capabilities(&self.wants);
        (self.enabled, self.running, self.cmdq, self.command) = (false, false, 0, 0);
    }
    /// Whether it may reach memory.
    pub(crate) fn masters(&self) -> bool {
        self.command & 4 != 0
    }
    /// Commands of one kind that were given.
    pub(crate) fn given(&self, command: Opcode) -> usize {
        self.log.iter().filter(|(c, _)| *c == command).count()
    }
    /// A number for a new object.
    pub(crate) fn number(&mut self, kind: &'static str) -> u32 {
        self.next += 1;
        self.objects.insert((kind, self.next));
        self.next
    }

    fn answer(&mut self, m: Received) -> (Vec<u8>, Vec<OwnedFd>) {
        let (id, code) = (m.header.id, m.header.command);
        let request = match Request::parse(code, &m.payload) {
            Ok(request) => request,
            Err(_) => return (refusal(id, code, EINVAL).to_vec(), vec![]),
        };
        let mut room = u32::MAX;
        let mut fds = vec![];
        let mut data = vec![];
        let reply = match request {
            Request::Version(_) => {
                let mut capabilities = Capabilities::default();
                capabilities.max_msg_fds = 16;
                Reply::Version(Version { major: 0, minor: 0, capabilities })
            }
            Request::DmaMap(map) => {
                let file = m.descriptors.into_iter().next().expect("memory comes with its descriptor");
                self.maps.insert(map.address, Mapped { size: map.size, offset: map.offset, file });
                Reply::DmaMap
            }
            Request::DmaUnmap(unmap) => {
                self.maps.remove(&unmap.address).expect("what is unmapped was mapped");
                Reply::DmaUnmap(unmap)
            }
            Request::DeviceGetInfo => {
                Reply::DeviceInfo(DeviceInfo { can_reset: true, is_pci: true, regions: 9, irq_kinds: 5 })
            }
            Request::GetRegionInfo { index, argsz } => {
                room = argsz;
                if index == 0 {
                    fds.push(self.uars.try_clone().unwrap());
                }
                Reply::RegionInfo(region(index))
            }
            Request::GetIrqInfo { index } => {
                let count = if index == IRQ_MSIX { self.wants.vectors } else { 0 };
                let (eventfd, maskable, automasked, noresize) = (true, false, false, false);
                Reply::IrqInfo(IrqInfo { index, count, eventfd, maskable, automasked, noresize })
            }
            Request::SetIrqs(set) => {
                self.irqs = if set.data == IrqData::EventFds { m.descriptors } else { vec![] };
                Reply::SetIrqs
            }
            Request::RegionRead { region, offset, count } => {
                data = self.read(region, offset, count as usize);
                Reply::RegionRead { region, offset, data: &data }
            }
            Request::RegionWrite { region, offset, data } => {
                self.write(region, offset, data);
                Reply::RegionWrite { region, offset, count: data.len() as u32 }
            }
            Request::DeviceReset => {
                self.reset();
                Reply::DeviceReset
            }
            _ => return (refusal(id, code, EINVAL).to_vec(), vec![]),
        };
        let message = reply.build(id, room);
        drop(data);
        (message, fds)
    }

    fn read(&mut self, region: u32, offset: u64, count: usize) -> Vec<u8> {
        if region == REGION_CONFIG {
            let mut space = [0_u8; 256];
            space[0..2].copy_from_slice(&self.wants.vendor.to_le_bytes());
            space[2..4].copy_from_slice(&0x1014_u16.to_le_bytes());
            space[4..6].copy_from_slice(&self.command.to_le_bytes());
            return space[offset as usize..][..count].to_vec();
        }
        if self.wants.gone {
            return vec![0xff; count];
        }
        let mut segment = InitSegment::new()
            .with(InitSegment::CMD_INTERFACE_REV, self.wants.interface)
            .with(InitSegment::LOG_CMDQ_SIZE, self.wants.log_size)
            .with(InitSegment::LOG_CMDQ_STRIDE, 6)
            .with(
                InitSegment::HEALTH_BUFFER,
                HealthBuffer::new().with(HealthBuffer::SYND, self.wants.syndrome),
            );
        if offset as usize == InitSegment::INITIALIZING.offset() && self.wants.busy_reads > 0 {
            self.wants.busy_reads -= 1;
            segment.set(InitSegment::INITIALIZING, true);
        }
        if !self.wants.stopped {
            self.counter += 1;
        }
        segment.set(InitSegment::HEALTH_COUNTER, self.counter);
        segment.as_bytes()[offset as usize..][..count].to_vec()
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        if region == REGION_CONFIG {
            if offset == 4 {
                self.command = u16::from_le_bytes(data.try_into().unwrap());
            }
            return;
        }
        let row = u32::from_be_bytes(data.try_into().unwrap());
        match offset {
            0x10 => self.cmdq = u64::from(row) << 32,
            0x14 => self.cmdq = self.cmdq >> 32 << 32 | u64::from(row & !0xfff),
            0x18 => (0..32).filter(|slot| row >> slot & 1 != 0).for_each(|slot| self.run(slot)),
            at if at == MAPPED - 4096 + 0x40 => self.told(row, true),
            at if at == MAPPED - 4096 + 0x48 => self.told(row, false),
            at => self.faults.push(format!("a write to {at:#x}")),
        }
    }

    /// Copies memory of the driver's out.
    pub(crate) fn load(&self, iova: u64, out: &mut [u8]) {
        let (base, m) = self.maps.range(..=iova).next_back().expect("the address is mapped");
        assert!(iova - base + out.len() as u64 <= m.size, "{iova:#x} is not mapped as far");
        assert!(self.command & 4 != 0, "bus mastering is on");
        let n = rustix::io::pread(&m.file, &mut *out, m.offset + (iova - base)).unwrap();
        assert_eq!(n, out.len());
    }
    /// Copies into memory of the driver's.
    pub(crate) fn store(&self, iova: u64, data: &[u8]) {
        let (base, m) = self.maps.range(..=iova).next_back().expect("the address is mapped");
        assert!(iova - base + data.len() as u64 <= m.size, "{iova:#x} is not mapped as far");
        assert!(self.command & 4 != 0, "bus mastering is on");
        let n = rustix::io::pwrite(&m.file, data, m.offset + (iova - base)).unwrap();
        assert_eq!(n, data.len());
    }

    /// A chain of mailboxes: where each is.
    fn chain(&mut self, pointer: u64, len: usize, token: u32) -> Result<Vec<u64>, DeliveryStatus> {
        let (mut at, mut found) = (pointer, vec![]);
        for number in 0..hca_prm::mailboxes(len) {
            if at == 0 || at % 1024 != 0 {
                return Err(DeliveryStatus::BadInPtr);
            }
            let mut image = CmdIfBox::new();
            self.load(at, image.as_bytes_mut());
            if !image.is_signed() {
                return Err(DeliveryStatus::SignatErr);
            }
            if image.get(CmdIfBox::TOKEN) != token {
                return Err(DeliveryStatus::TokErr);
            }
            if image.get(CmdIfBox::BLOCK_NUMBER) != number as u32 {
                return Err(DeliveryStatus::BadBlkNum);
            }
            found.push(at);
            at = image.get(CmdIfBox::NEXT_POINTER);
        }
        if at == 0 { Ok(found) } else { Err(DeliveryStatus::BadOutPtr) }
    }

    fn run(&mut self, slot: u32) {
        let mut image = CmdQueueEntry::new();
        self.load(self.cmdq + u64::from(slot) * 64, image.as_bytes_mut());
        let head = image.get(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA);
        let command = Opcode(u16::from_be_bytes([head[0], head[1]]));
        let op_mod = u32::from(u16::from_be_bytes([head[6], head[7]]));
        self.log.push((command, op_mod));
        if command == Opcode::MANAGE_PAGES && slot != (1 << self.wants.log_size) - 1 {
            self.faults.push(format!("pages by slot {slot}"));
        }
        if self.wants.silent.contains(&command) {
            return;
        }
        if self.wants.hold.contains(&command) {
            self.held.push(slot);
            return;
        }
        self.finish(slot);
    }
    /// Ends a command that was held back; the first of them, or the last.
    pub(crate) fn let_go(&mut self, last: bool) {
        let slot = if last { self.held.pop().unwrap() } else { self.held.remove(0) };
        self.finish(slot);
    }
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    fn finish(&mut self, slot: u32) {
        let at = self.cmdq + u64::from(slot) * 64;
        let mut image = CmdQueueEntry::new();
        self.load(at, image.as_bytes_mut());
        if !image.is_signed() || !image.get(CmdQueueEntry::OWNERSHIP) {
            self.faults.push(format!("slot {slot} is not signed or not given"));
        }
        let before: Vec<u32> = self.eqs.keys().copied().collect();
        let status = self.deliver(&mut image).err().unwrap_or(0);
        image.set(CmdQueueEntry::STATUS, status).set(CmdQueueEntry::OWNERSHIP, false);
        self.store(at, image.as_bytes());
        let mut data = [0; 28];
        data[..4].copy_from_slice(&(1_u32 << slot).to_be_bytes());
        // None for the command that makes the queue: its driver still looks by itself.
        self.event_to(&before, &Eqe::of(EventType::Cmd).with(Eqe::EVENT_DATA, data));
    }

    /// The command of a slot, and its answer: a delivery status if it fails.
    fn deliver(&mut self, image: &mut CmdQueueEntry) -> Result<(), u32> {
        let token = image.get(CmdQueueEntry::TOKEN);
        let head = image.get(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA);
        let command = Opcode(u16::from_be_bytes([head[0], head[1]]));
        if let Some(status) = self.wants.delivery.get(&command) {
            return Err(*status);
        }
        let in_len = image.get(CmdQueueEntry::INPUT_LENGTH) as usize;
        let out_len = image.get(CmdQueueEntry::OUTPUT_LENGTH) as usize;
        let inputs = self.chain(image.get(CmdQueueEntry::INPUT_MAILBOX_POINTER), in_len, token);
        let outputs = self.chain(image.get(CmdQueueEntry::OUTPUT_MAILBOX_POINTER), out_len, token);
        let (inputs, outputs) =
            (inputs.map_err(DeliveryStatus::code)?, outputs.map_err(DeliveryStatus::code)?);
        let mut input = head.to_vec();
        for at in inputs {
            let mut part = [0; MAILBOX_DATA];
            self.load(at, &mut part);
            input.extend(part);
        }
        input.truncate(in_len);
        let mut out = vec![0; out_len.max(16)];
        let outcome = match self.wants.status.get(&command).copied() {
            Some(refused) => Err(refused),
            None => self.command(command, &input, &mut out).map_err(|s| (s.code(), 0)),
        };
        if let Err((status, syndrome)) = outcome {
            out.fill(0);
            let answer = CmdOut::new().with(CmdOut::STATUS, status).with(CmdOut::SYNDROME, syndrome);
            out[..8].copy_from_slice(answer.as_bytes());
        }
        let mut inline = [0; 16];
        inline.copy_from_slice(&out[..16]);
        image.set(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA, inline);
        for (at, part) in outputs.into_iter().zip(out[16..].chunks(MAILBOX_DATA)) {
            self.store(at, part);
        }
        Ok(())
    }

    /// Makes an event queue.
    pub(crate) fn make_eq(&mut self, log_size: u32, vector: u32, mask: [u64; 4], list: &[u8]) -> u32 {
        let pages: Vec<u64> = pas::iter(list).collect();
        assert_eq!(pages.len(), (64_usize << log_size).div_ceil(4096), "the list has all pages");
        let number = self.number("event queue");
        self.eqs.insert(number, Queue { pages, log_size, vector, mask, written: 0, taken: 0, armed: false });
        number
    }
    /// Has all queues that want it have an event.
    pub(crate) fn event(&mut self, event: &Eqe) {
        let all: Vec<u32> = self.eqs.keys().copied().collect();
        self.event_to(&all, event);
    }
    fn event_to(&mut self, queues: &[u32], event: &Eqe) {
        let code = event.get(Eqe::EVENT_TYPE) as usize;
        for number in queues {
            let Some(queue) = self.eqs.get_mut(number) else { continue };
            if queue.mask[code / 64] >> (code % 64) & 1 == 0 {
                continue;
            }
            if queue.written.wrapping_sub(queue.taken) & 0xff_ffff >= 1 << queue.log_size {
                self.faults.push(format!("event queue {number} has overrun"));
                continue;
            }
            let owner = queue.written >> queue.log_size & 1 != 0;
            let at = u64::from(queue.written & ((1 << queue.log_size) - 1)) * 64;
            queue.written += 1;
            let iova = queue.pages[(at / 4096) as usize] + at % 4096;
            self.store(iova, event.with(Eqe::OWNER, owner).as_bytes());
            self.interrupt(*number);
        }
    }
    fn interrupt(&mut self, number: u32) {
        let queue = self.eqs.get_mut(&number).unwrap();
        if std::mem::take(&mut queue.armed)
            && let Some(fd) = self.irqs.get(queue.vector as usize)
        {
            rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
        }
    }
    /// The driver tells how far it took events, and may want to be interrupted by the next.
    fn told(&mut self, row: u32, arms: bool) {
        let doorbell = EqDoorbell::from_bytes(&row.to_be_bytes()).unwrap();
        let (number, taken) = (doorbell.get(EqDoorbell::EQN), doorbell.get(EqDoorbell::CI));
        let Some(queue) = self.eqs.get_mut(&number) else {
            self.faults.push(format!("event queue {number} is told of, and there is none"));
            return;
        };
        queue.taken = taken;
        if !arms {
            return;
        }
        queue.armed = true;
        if queue.written & 0xff_ffff != taken {
            self.interrupt(number);
        }
    }
    /// The capabilities that were set.
    pub(crate) fn caps_of(&self, kind: HcaCapType) -> &[u8] {
        &self.caps[&kind.code()]
    }
}

fn region(index: u32) -> RegionInfo {
    let (size, mmap) = match index {
        0 => (BAR_BYTES, true),
        REGION_CONFIG => (4096, false),
        _ => (0, false),
    };
    let areas = mmap.then(|| vec![Area { offset: MAPPED, size: BAR_BYTES - MAPPED }]);
    RegionInfo { argsz: RegionInfo::MAX_BYTES, index, read: true, write: true, mmap, size, offset: 0, areas }
}
