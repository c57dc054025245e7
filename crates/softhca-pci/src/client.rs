//! One client's connection: its messages, and what each asks of the function.
//!
//! Nothing here waits. A message that has not come whole stays where it is until the rest comes, and while a reply has
//! not left whole nothing more is read, so a client that dawdles keeps nobody waiting but itself.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_vfio::user::Sleeper;
use hca_vfio::user::wire::{
    Area, Capabilities, DeviceInfo, HEADER_BYTES, Header, IRQ_MSIX, IrqAction, IrqData, IrqInfo, Kind,
    MAX_DESCRIPTORS, REGION_CONFIG, RegionInfo, Reply, Request, SetIrqs, Version, Wake, WireError, refusal,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::bus::interrupts::VECTORS;
use crate::bus::pci::CONFIG_BYTES;
use crate::bus::registers::{BAR_BYTES, MAPPED_FROM};
use crate::function::Function;

/// What one message may read or write.
const MAX_TRANSFER: u32 = 64 << 10;
/// Writes of one message; more than QEMU collects.
const MAX_WRITES: usize = 256;
/// Regions and kinds of interrupts that a PCI function has numbers for.
const REGIONS: u32 = 9;
const IRQ_KINDS: u32 = 5;
/// Messages that are seen to in one go.
const BUDGET: usize = 16;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The client has gone.
    #[error("the client has closed the connection")]
    Closed,
    /// What came is no message.
    #[error("what came is no message: {0}")]
    Wire(#[from] WireError),
    /// What came first was no version.
    #[error("the first message has to be VERSION")]
    NoVersion,
    /// Descriptors without end.
    #[error("more than {MAX_DESCRIPTORS} descriptors came with one message")]
    Descriptors,
    /// For tests.
    #[error("a script has it hung up on")]
    Script,
    /// The operating system refuses.
    #[error("the socket: {0}")]
    Socket(Errno),
}

/// A reply that has not left whole.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    /// What has come of the next message, and its descriptors.
    incoming: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    outgoing: VecDeque<Outgoing>,
    agreed: bool,
    can_wake: bool,
    writes_many: bool,
    /// Whether the client has what it needs to wake the server.
    pub(crate) wakes: bool,
    /// A message was done in part, and waits for the rest.
    put_off: bool,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Client {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            incoming: Vec::new(),
            descriptors: Vec::new(),
            outgoing: VecDeque::new(),
            agreed: false,
            can_wake: false,
            writes_many: false,
            wakes: false,
            put_off: false,
        }
    }

    /// Whether a reply waits for the client to read.
    pub(crate) fn is_full(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether a message was done in part.
    pub(crate) fn is_put_off(&self) -> bool {
        self.put_off
    }

    /// Whether nobody has the other end any more, though there may be messages of his.
    pub(crate) fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// Sees to what has come, a bounded piece of it. Returns whether there was any.
    pub(crate) fn serve(&mut self, function: &mut Function, sleeper: &Sleeper) -> Result<bool, Ended> {
        self.send()?;
        let mut any = false;
        for _ in 0..BUDGET {
            if self.is_full() || !self.receive()? {
                break;
            }
            any = true;
            let message = std::mem::take(&mut self.incoming);
            self.put_off = !self.message(function, sleeper, &message)?;
            if self.put_off {
                // Its descriptors are still there, too.
                self.incoming = message;
                break;
            }
            self.send()?;
        }
        Ok(any)
    }

    /// Takes what there is of a message. Returns whether it is whole.
    fn receive(&mut self) -> Result<bool, Ended> {
        loop {
            let want = match self.incoming.first_chunk::<HEADER_BYTES>() {
                None => HEADER_BYTES,
                Some(header) => HEADER_BYTES + Header::parse(header)?.payload_bytes,
            };
            let at = self.incoming.len();
            if at >= HEADER_BYTES && at == want {
                return Ok(true);
            }
            // Never beyond this message, whose descriptors come with its bytes; and no more room than comes.
            self.incoming.resize(want.min(at + MAX_TRANSFER as usize), 0);
            let came = self.some(at);
            self.incoming.truncate(at + came.as_ref().map_or(0, |n| *n));
            match came {
                Ok(0) => return Err(Ended::Closed),
                Ok(_) => {}
                Err(Ended::Socket(Errno::AGAIN)) => return Ok(false),
                Err(Ended::Socket(Errno::INTR)) => {}
                Err(Ended::Socket(Errno::CONNRESET)) => return Err(Ended::Closed),
                Err(e) => return Err(e),
            }
        }
    }

    fn some(&mut self, at: usize) -> Result<usize, Ended> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut self.incoming[at..])];
        let message = recvmsg(&self.socket, into, &mut control, flags).map_err(Ended::Socket)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                self.descriptors.extend(fds);
            }
        }
        let lost = message.flags.contains(ReturnFlags::CTRUNC);
        if lost || self.descriptors.len() > MAX_DESCRIPTORS {
            return Err(Ended::Descriptors);
        }
        Ok(message.bytes)
    }

    /// Sends what can leave.
    fn send(&mut self) -> Result<(), Ended> {
        while let Some(next) = self.outgoing.front_mut() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<BorrowedFd<'_>> = next.descriptors.iter().map(AsFd::as_fd).collect();
            if next.sent == 0 && !fds.is_empty() {
                let taken = control.push(SendAncillaryMessage::ScmRights(&fds));
                assert!(taken, "a reply has fewer descriptors than there is room for");
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &[IoSlice::new(&next.bytes[next.sent..])], &mut control, flags) {
                Ok(sent) => {
                    next.sent += sent;
                    if next.sent == next.bytes.len() {
                        self.outgoing.pop_front();
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Ended::Closed),
                Err(errno) => return Err(Ended::Socket(errno)),
            }
        }
        Ok(())
    }

    /// Does what a whole message asks for, and lays the reply out. `false`: a piece of it, and the rest is to be done in
    /// further calls.
    fn message(&mut self, function: &mut Function, sleeper: &Sleeper, message: &[u8]) -> Result<bool, Ended> {
        let header = message.first_chunk().expect("a message has a header");
        let header = Header::parse(header)?;
        let Kind::Command { no_reply } = header.kind else {
            // Nothing is asked of clients, so no reply means anything.
            self.descriptors.clear();
            return Ok(true);
        };
        let request = match Request::parse(header.command, &message[HEADER_BYTES..]) {
            Ok(request) => request,
            Err(e) => {
                tracing::debug!("a message is refused: {e}");
                let errno = if matches!(e, WireError::Command { .. }) { Errno::NOSYS } else { Errno::INVAL };
                self.descriptors.clear();
                self.refuse(&header, errno, no_reply);
                return Ok(true);
            }
        };
        if !self.agreed && !matches!(request, Request::Version(_)) {
            return Err(Ended::NoVersion);
        }
        if takes_long(function, &request) {
            return Ok(false);
        }
        let (mut buffer, descriptors) = (Vec::new(), std::mem::take(&mut self.descriptors));
        let answer = self.answer(function, sleeper, &request, descriptors, &mut buffer);
        if function.hung_up {
            return Err(Ended::Script);
        }
        match answer {
            Ok(_) if no_reply => {}
            Ok((reply, descriptors)) => {
                let room = if let Request::GetRegionInfo { argsz, .. } = request { argsz } else { 0 };
                self.outgoing.push_back(Outgoing {
                    bytes: reply.build(header.id, room),
                    sent: 0,
                    descriptors,
                });
            }
            Err(errno) => {
                tracing::debug!("{} is refused: {errno}", request.command());
                self.refuse(&header, errno, no_reply);
            }
        }
        Ok(true)
    }

    fn refuse(&mut self, header: &Header, errno: Errno, no_reply: bool) {
        if !no_reply {
            let bytes = refusal(header.id, header.command, errno.raw_os_error() as u32).to_vec();
            self.outgoing.push_back(Outgoing { bytes, sent: 0, descriptors: Vec::new() });
        }
    }

    fn answer<'b>(
        &mut self,
        function: &mut Function,
        sleeper: &Sleeper,
        request: &Request<'_>,
        descriptors: Vec<OwnedFd>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<(Reply<'b>, Vec<OwnedFd>), Errno> {
        let alone = |reply| Ok((reply, Vec::new()));
        match request {
            Request::Version(theirs) => self.version(theirs, function.max_dma_maps()).and_then(alone),
            Request::DmaMap(map) => {
                let file = descriptors.into_iter().next().map(|file| (file, map.offset));
                function.dma_map(map.address, map.size, (map.read, map.write), file)?;
                alone(Reply::DmaMap)
            }
            Request::DmaUnmap(unmap) => {
                function.dma_unmap(unmap.address, unmap.size)?;
                alone(Reply::DmaUnmap(*unmap))
            }
            Request::DeviceGetInfo => alone(Reply::DeviceInfo(DeviceInfo {
                can_reset: true,
                is_pci: true,
                regions: REGIONS,
                irq_kinds: IRQ_KINDS,
            })),
            Request::GetRegionInfo { index, .. } => region(function, *index),
            Request::GetIrqInfo { index } => irq(function, *index).and_then(alone),
            Request::SetIrqs(set) => {
                set_irqs(function, set, descriptors)?;
                alone(Reply::SetIrqs)
            }
            Request::RegionRead { region, offset, count } => {
                read(function, *region, *offset, *count, buffer)?;
                alone(Reply::RegionRead { region: *region, offset: *offset, data: buffer })
            }
            Request::RegionWrite { region, offset, data } => {
                write(function, *region, *offset, data)?;
                let count = data.len() as u32;
                alone(Reply::RegionWrite { region: *region, offset: *offset, count })
            }
            Request::RegionWriteMulti(writes) if self.writes_many => {
                if writes.len() > MAX_WRITES {
                    return Err(Errno::INVAL);
                }
                for w in writes {
                    let data = w.data.get(..w.count as usize).ok_or(Errno::INVAL)?;
                    write(function, w.region, w.offset, data)?;
                }
                alone(Reply::RegionWriteMulti { count: writes.len() as u64 })
            }
            Request::DeviceReset => {
                function.reset();
                alone(Reply::DeviceReset)
            }
            Request::HcaWake if self.can_wake => {
                let descriptors = sleeper.descriptors().map(|fd| fd.try_clone_to_owned());
                let [event, word] = descriptors.map(|fd| fd.map_err(|_| Errno::MFILE));
                let descriptors = vec![event?, word?];
                self.wakes = true;
                Ok((Reply::HcaWake(Wake { word: Some(0) }), descriptors))
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn version(&mut self, theirs: &Version, max_dma_maps: u32) -> Result<Reply<'static>, Errno> {
        if theirs.major != 0 {
            return Err(Errno::PROTONOSUPPORT);
        }
        self.agreed = true;
        self.writes_many = theirs.capabilities.write_multiple;
        self.can_wake = theirs.capabilities.hca_wake;
        let mut capabilities = Capabilities::default();
        // QEMU refuses a server that takes more of them than QEMU itself does, 16.
        capabilities.max_msg_fds = theirs.capabilities.max_msg_fds.clamp(16, MAX_DESCRIPTORS as u32);
        capabilities.max_data_xfer_size = MAX_TRANSFER;
        capabilities.max_dma_maps = max_dma_maps;
        capabilities.write_multiple = self.writes_many;
        capabilities.hca_wake = self.can_wake;
        Ok(Reply::Version(Version { major: 0, minor: 0, capabilities }))
    }
}

/// Does a piece of what would take a request long, whose keys are taken back one by one. Returns whether there is more.
fn takes_long(function: &mut Function, request: &Request<'_>) -> bool {
    match request {
        Request::DmaUnmap(unmap) => function.release_piece(unmap.address, unmap.size),
        Request::RegionWrite { region: REGION_CONFIG, offset, data } => {
            function.release_piece_before(*offset, data)
        }
        Request::RegionWriteMulti(writes) => writes
            .iter()
            .any(|w| w.region == REGION_CONFIG && function.release_piece_before(w.offset, &w.data)),
        _ => false,
    }
}

/// What a region is, with the descriptor of its part that may be mapped.
fn region(function: &Function, index: u32) -> Result<(Reply<'static>, Vec<OwnedFd>), Errno> {
    let size = region_size(index).ok_or(Errno::INVAL)?;
    let there = size > 0;
    let mmap = index == 0;
    let areas = mmap.then(|| vec![Area { offset: MAPPED_FROM, size: BAR_BYTES - MAPPED_FROM }]);
    let file =
        if mmap { Some(function.pages.file().try_clone_to_owned().map_err(|_| Errno::MFILE)?) } else { None };
    let info = RegionInfo { argsz: 0, index, read: there, write: there, mmap, size, offset: 0, areas };
    Ok((Reply::RegionInfo(info), file.into_iter().collect()))
}

/// Bytes of a region; those that a function may have and this one has not are empty.
fn region_size(index: u32) -> Option<u64> {
    match index {
        0 => Some(BAR_BYTES),
        REGION_CONFIG => Some(CONFIG_BYTES as u64),
        _ => (index < REGIONS).then_some(0),
    }
}

fn irq(function: &Function, index: u32) -> Result<Reply<'static>, Errno> {
    if index >= IRQ_KINDS {
        return Err(Errno::INVAL);
    }
    let msix = index == IRQ_MSIX;
    let count = function.interrupts_of(index);
    let info = IrqInfo {
        index,
        count,
        eventfd: count > 0 || msix,
        maskable: msix,
        automasked: false,
        noresize: false,
    };
    Ok(Reply::IrqInfo(info))
}

fn set_irqs(function: &mut Function, set: &SetIrqs<'_>, eventfds: Vec<OwnedFd>) -> Result<(), Errno> {
    if let Some(script) =
        function.options.script.as_ref().filter(|s| set.index != IRQ_MSIX && s.interrupts(set.index) > 0)
    {
        script.listen(set.index, eventfds.into_iter().next());
        return Ok(());
    }
    let interrupts = &mut function.interrupts;
    let (first, count) = (set.start as usize, set.count as usize);
    let count_here = if set.index == IRQ_MSIX { VECTORS } else { 0 };
    if set.index >= IRQ_KINDS || first.checked_add(count).is_none_or(|end| end > count_here) {
        return Err(Errno::INVAL);
    }
    let chosen = |i: usize| match set.data {
        IrqData::Bools(bools) => bools.get(i).is_some_and(|b| *b != 0),
        _ => true,
    };
    match (set.action, set.data) {
        (IrqAction::Trigger, IrqData::EventFds) => {
            if !eventfds.is_empty() && eventfds.len() != count {
                return Err(Errno::INVAL);
            }
            if eventfds.is_empty() {
                (first..first + count).for_each(|vector| interrupts.set(vector, None));
            }
            interrupts.listen(first, eventfds)?;
        }
        (IrqAction::Trigger, IrqData::None) if count == 0 => {
            if set.index == IRQ_MSIX {
                interrupts.clear();
            }
        }
        (IrqAction::Trigger, _) => {
            for i in (0..count).filter(|i| chosen(*i)) {
                interrupts.fire((first + i) as u32);
            }
        }
        (_, IrqData::EventFds) => return Err(Errno::INVAL),
        (action, _) => {
            for i in (0..count).filter(|i| chosen(*i)) {
                interrupts.mask(first + i, action == IrqAction::Mask);
            }
        }
    }
    Ok(())
}

/// Whether a transfer lies within its region.
fn check(region: u32, offset: u64, count: usize) -> Result<(), Errno> {
    let size = region_size(region).ok_or(Errno::INVAL)?;
    let within = offset.checked_add(count as u64).is_some_and(|end| end <= size);
    if within && count <= MAX_TRANSFER as usize { Ok(()) } else { Err(Errno::INVAL) }
}

fn read(
    function: &mut Function,
    region: u32,
    offset: u64,
    count: u32,
    into: &mut Vec<u8>,
) -> Result<(), Errno> {
    check(region, offset, count as usize)?;
    into.resize(count as usize, 0);
    match region {
        0 => function.bar_read(offset, into),
        _ => function.config_read(offset, into),
    }
    Ok(())
}

fn write(function: &mut Function, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
    check(region, offset, data.len())?;
    match region {
        0 => function.bar_write(offset, data),
        _ => function.config_write(offset, data),
    }
    Ok(())
}
