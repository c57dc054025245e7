//! The handling of one client's messages: calls of the function, and replies.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::{Function, Region};
use crate::user::wire::{
    Capabilities, Header, IRQ_MSIX, IrqAction, IrqData, IrqInfo, Kind, MAX_DESCRIPTORS, MultiWrite,
    RegionInfo, Reply, Request, SetIrqs, Version, Wake, WireError, refusal,
};
use crate::user::{Received, Sleeper};

/// Writes of one message; more than QEMU collects.
const MAX_WRITES: usize = 256;
/// Descriptors of one message, and ranges, that QEMU knows: it refuses a server that names more than it names itself, or
/// than these.
const USUAL_DESCRIPTORS: u32 = 16;
const USUAL_RANGES: u32 = 65_535;

/// The outcome of a message.
#[derive(Debug)]
pub enum Answer {
    /// A part of the message's work is done: the caller gives the same message again, after other clients had their
    /// turn.
    Later,
    /// The message is done, and asks for no reply.
    Nothing,
    /// The message is done or refused, and this is the reply.
    Reply {
        /// The whole message.
        bytes: Vec<u8>,
        /// The descriptors that travel with it.
        descriptors: Vec<OwnedFd>,
    },
}

/// The client's first message was not VERSION.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the first message has to be VERSION")]
pub struct NoVersion;

/// One client's session: the negotiated version and capabilities.
#[derive(Debug, Default)]
pub struct Session {
    /// None before the client's VERSION has come.
    agreed: Option<Capabilities>,
    wakes: bool,
}

impl Session {
    /// The session of a client that has not sent a message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the client can wake the server.
    pub fn wakes(&self) -> bool {
        self.wakes
    }

    /// Carries out a message, and takes its descriptors if it succeeds.
    ///
    /// # Errors
    /// The client's first message is not VERSION: the caller closes the connection.
    pub fn answer(
        &mut self,
        function: &mut impl Function,
        sleeper: Option<&Sleeper>,
        message: &mut Received,
    ) -> Result<Answer, NoVersion> {
        let Received { header, payload, descriptors } = message;
        let Kind::Command { no_reply } = header.kind else {
            // Nothing is asked of clients, so no reply means anything.
            descriptors.clear();
            return Ok(Answer::Nothing);
        };
        let request = match Request::parse(header.command, payload) {
            Ok(request) => request,
            Err(e) => {
                tracing::debug!("a message is refused: {e}");
                descriptors.clear();
                let errno = if matches!(e, WireError::Command { .. }) { Errno::NOSYS } else { Errno::INVAL };
                return Ok(refuse(header, errno, no_reply));
            }
        };
        let is_version = matches!(request, Request::Version(_));
        let agreed = self.agreed.or(is_version.then(Capabilities::default)).ok_or(NoVersion)?;
        if let Err(errno) = check(function, &agreed, &request) {
            tracing::debug!("{} is refused: {errno}", request.command());
            descriptors.clear();
            return Ok(refuse(header, errno, no_reply));
        }
        if function.prepare(&request) {
            return Ok(Answer::Later);
        }
        let mut buffer = Vec::new();
        let came = core::mem::take(descriptors);
        Ok(match self.reply(function, (&agreed, sleeper), &request, came, &mut buffer) {
            Ok(_) if no_reply => Answer::Nothing,
            Ok((reply, descriptors)) => {
                let room = if let Request::GetRegionInfo { argsz, .. } = request { argsz } else { 0 };
                Answer::Reply { bytes: reply.build(header.id, room), descriptors }
            }
            Err(errno) => {
                tracing::debug!("{} is refused: {errno}", request.command());
                refuse(header, errno, no_reply)
            }
        })
    }

    fn reply<'b>(
        &mut self,
        function: &mut impl Function,
        (agreed, sleeper): (&Capabilities, Option<&Sleeper>),
        request: &Request<'_>,
        descriptors: Vec<OwnedFd>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<(Reply<'b>, Vec<OwnedFd>), Errno> {
        let reply = match request {
            Request::Version(theirs) => self.version(theirs, function.capabilities(), sleeper.is_some())?,
            Request::DmaMap(map) => {
                function.dma_map(map, descriptors.into_iter().next())?;
                Reply::DmaMap
            }
            Request::DmaUnmap(unmap) => {
                function.dma_unmap(unmap)?;
                Reply::DmaUnmap(*unmap)
            }
            Request::DeviceGetInfo => Reply::DeviceInfo(function.info()),
            Request::GetRegionInfo { index, .. } => return region_info(function, *index),
            Request::GetIrqInfo { index } => Reply::IrqInfo(irq_info(function, *index)?),
            Request::SetIrqs(set) => {
                set_irqs(function, set, descriptors)?;
                Reply::SetIrqs
            }
            &Request::RegionRead { region, offset, count } => {
                buffer.resize(count as usize, 0);
                function.read(region, offset, buffer);
                Reply::RegionRead { region, offset, data: buffer }
            }
            &Request::RegionWrite { region, offset, data } => {
                function.write(region, offset, data);
                Reply::RegionWrite { region, offset, count: data.len() as u32 }
            }
            Request::RegionWriteMulti(writes) => {
                for w in writes {
                    function.write(w.region, w.offset, written(w)?);
                }
                Reply::RegionWriteMulti { count: writes.len() as u64 }
            }
            Request::DeviceReset => {
                function.reset();
                Reply::DeviceReset
            }
            Request::HcaWake if agreed.hca_wake => {
                let descriptors =
                    sleeper.ok_or(Errno::NOSYS)?.descriptors().map(|fd| fd.try_clone_to_owned());
                let [event, word] = descriptors.map(|fd| fd.map_err(|_| Errno::MFILE));
                let descriptors = vec![event?, word?];
                self.wakes = true;
                return Ok((Reply::HcaWake(Wake { word: Some(0) }), descriptors));
            }
            _ => return Err(Errno::NOSYS),
        };
        Ok((reply, Vec::new()))
    }

    fn version(
        &mut self,
        theirs: &Version,
        ours: Capabilities,
        can_be_woken: bool,
    ) -> Result<Reply<'static>, Errno> {
        if theirs.major != 0 {
            return Err(Errno::PROTONOSUPPORT);
        }
        let descriptors = theirs.capabilities.max_msg_fds.clamp(USUAL_DESCRIPTORS, MAX_DESCRIPTORS as u32);
        let capabilities = Capabilities {
            max_msg_fds: ours.max_msg_fds.min(descriptors),
            max_dma_maps: ours.max_dma_maps.min(theirs.capabilities.max_dma_maps.max(USUAL_RANGES)),
            write_multiple: ours.write_multiple && theirs.capabilities.write_multiple,
            hca_wake: can_be_woken && theirs.capabilities.hca_wake,
            ..ours
        };
        self.agreed = Some(capabilities);
        Ok(Reply::Version(Version { major: 0, minor: 0, capabilities }))
    }
}

fn refuse(header: &Header, errno: Errno, no_reply: bool) -> Answer {
    if no_reply {
        return Answer::Nothing;
    }
    let bytes = refusal(header.id, header.command, errno.raw_os_error() as u32).to_vec();
    Answer::Reply { bytes, descriptors: Vec::new() }
}

fn region(function: &impl Function, index: u32) -> Result<Region<'_>, Errno> {
    if index < function.info().regions { Ok(function.region(index)) } else { Err(Errno::INVAL) }
}

/// The description of a region, with the descriptor of its mappable part.
fn region_info(function: &impl Function, index: u32) -> Result<(Reply<'static>, Vec<OwnedFd>), Errno> {
    let Region { bytes, mapped } = region(function, index)?;
    let there = bytes > 0;
    let (mmap, offset) = (mapped.is_some(), mapped.as_ref().map_or(0, |m| m.offset));
    let file = mapped.as_ref().map(|m| m.file.try_clone_to_owned().map_err(|_| Errno::MFILE)).transpose()?;
    let areas = mapped.map(|m| m.areas.to_vec());
    let info = RegionInfo { argsz: 0, index, read: there, write: there, mmap, size: bytes, offset, areas };
    Ok((Reply::RegionInfo(info), file.into_iter().collect()))
}

fn irq_info(function: &impl Function, index: u32) -> Result<IrqInfo, Errno> {
    if index >= function.info().irq_kinds {
        return Err(Errno::INVAL);
    }
    let (count, msix) = (function.interrupts(index), index == IRQ_MSIX);
    let eventfd = count > 0 || msix;
    Ok(IrqInfo { index, count, eventfd, maskable: msix, automasked: false, noresize: false })
}

fn set_irqs(function: &mut impl Function, set: &SetIrqs<'_>, eventfds: Vec<OwnedFd>) -> Result<(), Errno> {
    let &SetIrqs { index, start, count, action, data } = set;
    let all = if index < function.info().irq_kinds { function.interrupts(index) } else { 0 };
    if index >= function.info().irq_kinds || start.checked_add(count).is_none_or(|end| end > all) {
        return Err(Errno::INVAL);
    }
    let chosen = (0..count).filter(|i| match data {
        IrqData::Bools(bools) => bools.get(*i as usize).is_some_and(|b| *b != 0),
        _ => true,
    });
    match (action, data) {
        (IrqAction::Trigger, IrqData::EventFds) if eventfds.is_empty() => {
            function.listen(index, start, none(count))
        }
        (IrqAction::Trigger, IrqData::EventFds) if eventfds.len() != count as usize => Err(Errno::INVAL),
        (IrqAction::Trigger, IrqData::EventFds) => {
            function.listen(index, start, eventfds.into_iter().map(Some).collect())
        }
        (IrqAction::Trigger, IrqData::None) if count == 0 => function.listen(index, 0, none(all)),
        (IrqAction::Trigger, _) => {
            chosen.for_each(|i| function.fire(index, start + i));
            Ok(())
        }
        (_, IrqData::EventFds) => Err(Errno::INVAL),
        (action, _) => {
            chosen.for_each(|i| function.mask(index, start + i, action == IrqAction::Mask));
            Ok(())
        }
    }
}

fn none(count: u32) -> Vec<Option<OwnedFd>> {
    (0..count).map(|_| None).collect()
}

/// Whether a request that does much is one that can be done, before anything of it is.
fn check(function: &impl Function, agreed: &Capabilities, request: &Request<'_>) -> Result<(), Errno> {
    match request {
        &Request::RegionRead { region, offset, count } => {
            check_transfer(function, agreed, region, offset, count as usize)
        }
        &Request::RegionWrite { region, offset, data } => {
            check_transfer(function, agreed, region, offset, data.len())
        }
        Request::RegionWriteMulti(_) if !agreed.write_multiple => Err(Errno::NOSYS),
        Request::RegionWriteMulti(writes) if writes.len() > MAX_WRITES => Err(Errno::INVAL),
        Request::RegionWriteMulti(writes) => writes
            .iter()
            .try_for_each(|w| check_transfer(function, agreed, w.region, w.offset, written(w)?.len())),
        Request::DeviceReset if !function.info().can_reset => Err(Errno::NOSYS),
        _ => Ok(()),
    }
}

/// Whether a transfer lies within its region, and is no longer than was agreed.
fn check_transfer(
    function: &impl Function,
    agreed: &Capabilities,
    index: u32,
    offset: u64,
    count: usize,
) -> Result<(), Errno> {
    let bytes = region(function, index)?.bytes;
    let within = offset.checked_add(count as u64).is_some_and(|end| end <= bytes);
    if within && count <= agreed.max_data_xfer_size as usize { Ok(()) } else { Err(Errno::INVAL) }
}

/// The bytes that one of several writes writes.
fn written(write: &MultiWrite) -> Result<&[u8], Errno> {
    write.data.get(..write.count as usize).ok_or(Errno::INVAL)
}
