//! An end's own names, sizes and choices, which stay as they were when it was opened.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use hca_core::Mtu;
use hca_process::{Fork, check_file_len};
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

use super::error::ShmError;
use super::memory::LINE;
use super::name::{Domain, Listener};
use super::options::{ProcessVm, ShmOptions};
use super::peer::PeerName;
use super::process;
use super::ring::{Barrier, MAX_RING_LINES, MIN_RING_LINES, outbox_bytes};
use crate::{FabricAttr, FabricLink};

/// Addresses that are drawn before one that is free is despaired of.
const ADDRESS_DRAWS: usize = 4;

/// The names of an end, and the options by which it was opened.
pub(super) struct Own {
    pub(super) attr: FabricAttr,
    pub(super) local: PeerName,
    pub(super) domain: Domain,
    /// The page of bits by which peers call, as peers are handed it.
    pub(super) bits_fd: OwnedFd,
    pub(super) ring_lines: u32,
    pub(super) messages: bool,
    pub(super) isolated: bool,
    pub(super) process_vm: ProcessVm,
    pub(super) barrier: Barrier,
    /// The process that opened the end.
    pub(super) fork: Fork,
}

impl Own {
    /// The names of an end at this address.
    pub(super) fn new(
        domain: Domain,
        local: PeerName,
        bits_fd: OwnedFd,
        options: &ShmOptions,
    ) -> Result<Self, ShmError> {
        let ring_lines = ring_lines(options.ring_bytes)?;
        let barrier = barrier();
        let shares = options.messages && !options.isolated;
        let process_vm = if shares { options.process_vm } else { ProcessVm::No };
        let attr = attr(local.address, &domain, options.ring_bytes, barrier, process_vm);
        let (messages, isolated, fork) = (options.messages, options.isolated, Fork::new());
        Ok(Self { attr, local, domain, bits_fd, ring_lines, messages, isolated, process_vm, barrier, fork })
    }
    /// Whether this side's parking is seen by peers without a fence of theirs.
    pub(super) fn has_barriers(&self) -> bool {
        self.barrier == Barrier::System
    }
    /// Whether a peer of this user may use this end's memory, and this end the peer's.
    pub(super) fn trusts(&self, uid: u32) -> bool {
        !self.isolated && self.domain.is_own(uid)
    }
    /// The bytes of an outbox of this end's.
    pub(super) fn outbox_bytes(&self) -> usize {
        outbox_bytes(self.ring_lines)
    }
}

/// The lines of a ring of so many bytes. An outbox that this process may not make is refused now, and not when a peer
/// is met.
pub(super) fn ring_lines(bytes: usize) -> Result<u32, ShmError> {
    let sizes = MIN_RING_LINES as usize * LINE..=MAX_RING_LINES as usize * LINE;
    if !bytes.is_power_of_two() || !sizes.contains(&bytes) {
        return Err(ShmError::Ring { bytes });
    }
    let lines = (bytes / LINE) as u32;
    let bytes = outbox_bytes(lines);
    check_file_len(bytes as u64).map_err(|e| ShmError::Memory { bytes, source: e.into() })?;
    Ok(lines)
}

/// An address of our own, and the socket there. A name that somebody has taken is left to him.
pub(super) fn listen(domain: &Domain, messages: bool) -> Result<(Ipv6Addr, Listener), ShmError> {
    let mut draws = 0;
    loop {
        let address = domain.draw_address(messages)?;
        match domain.listen(address.into()) {
            Ok(listener) => return Ok((address, listener)),
            Err(ShmError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::AddrInUse && draws < ADDRESS_DRAWS => {}
            Err(e) => return Err(e),
        }
        draws += 1;
    }
}

/// Registers for the system's barriers where it has them.
fn barrier() -> Barrier {
    let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
    if membarrier_query().contains(needed) && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok() {
        Barrier::System
    } else {
        Barrier::Fence
    }
}

fn attr(
    local: Ipv6Addr,
    domain: &Domain,
    ring_bytes: usize,
    barrier: Barrier,
    process_vm: ProcessVm,
) -> FabricAttr {
    let mut notes = vec![
        ("domain", domain.describe()),
        ("ring", format!("{ring_bytes} bytes to each peer, and as many from it")),
        ("foreign memory", process::describe(process_vm)),
    ];
    if barrier == Barrier::Fence {
        let cost =
            "membarrier is missing or forbidden: each packet costs a fence; a kernel from 4.16 on has it";
        notes.push(("barrier", cost.into()));
    }
    FabricAttr {
        name: "shm".to_owned(),
        local: local.into(),
        max_mtu: Mtu::B4096,
        // Several queue pairs share a ring, and small packets leave most of their lines empty.
        recv_buffer_bytes: ring_bytes / 2,
        qpn_slot: None,
        link: FabricLink::none(),
        notes,
    }
}
