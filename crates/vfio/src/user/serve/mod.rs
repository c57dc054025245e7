//! The server's side: PCI functions that clients drive at sockets.
//!
//! | item | use |
//! |---|---|
//! | [`Function`] | the server's part: regions, interrupts, memory, a reset |
//! | [`Session`] | the handling of one client's messages: calls of the function, and replies; no socket, no waiting |
//! | [`Connection`] | a session over a socket that never waits, for a loop that has more to do |
//! | [`Listener`] | the socket's place in the file system |

mod connection;
mod listener;
mod session;
#[cfg(test)]
mod tests;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::wire::{Area, Capabilities, DeviceInfo, DmaMap, DmaUnmap, Request};

pub use connection::{Connection, Ended};
pub use listener::{ListenError, Listener};
pub use session::{Answer, NoVersion, Session};

/// Regions and kinds of interrupts that a PCI function has numbers for.
const REGIONS: u32 = 9;
const IRQ_KINDS: u32 = 5;

/// A region of a function.
#[derive(Debug, Default)]
pub struct Region<'a> {
    /// The length; 0: the function has none.
    pub bytes: u64,
    /// The part that a client may map; the client accesses the rest by messages.
    pub mapped: Option<MappedRegion<'a>>,
}

/// The part of a region that a client may map.
#[derive(Debug)]
pub struct MappedRegion<'a> {
    /// The file that holds it.
    pub file: BorrowedFd<'a>,
    /// The region's offset in the file.
    pub offset: u64,
    /// The mappable areas of the region.
    pub areas: &'a [Area],
}

/// A PCI function behind a socket. Each method carries out one kind of message; a refusal is an error number of the
/// operating system.
///
/// The numbers of regions and of kinds of interrupts are those of Linux's vfio. [`Session`] checks these numbers, and
/// that a range lies within the function's region, before it calls a method.
pub trait Function {
    /// The description of the device; by default a PCI function that can be reset.
    fn info(&self) -> DeviceInfo {
        DeviceInfo { can_reset: true, is_pci: true, regions: REGIONS, irq_kinds: IRQ_KINDS }
    }

    /// The capabilities of the server. `hca_wake` is offered if there is a [`Sleeper`](super::Sleeper), regardless of
    /// this value.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The description of a region.
    fn region(&self, index: u32) -> Region<'_>;

    /// Reads from a region.
    fn read(&mut self, index: u32, offset: u64, into: &mut [u8]);

    /// Writes to a region.
    fn write(&mut self, index: u32, offset: u64, data: &[u8]);

    /// The number of interrupts of a kind.
    fn interrupts(&self, kind: u32) -> u32;

    /// Sets or removes the eventfds of interrupts from `first` on.
    ///
    /// # Errors
    /// One of the eventfds can't be signalled; then nothing is set.
    fn listen(&mut self, kind: u32, first: u32, eventfds: Vec<Option<OwnedFd>>) -> Result<(), Errno>;

    /// Signals an interrupt.
    fn fire(&mut self, kind: u32, interrupt: u32);

    /// Masks or unmasks an interrupt.
    fn mask(&mut self, kind: u32, interrupt: u32, masked: bool);

    /// Maps client memory, which the descriptor holds, for the function.
    ///
    /// # Errors
    /// The range overlaps another one, or the descriptor is missing or of no use.
    fn dma_map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno>;

    /// Unmaps client memory. After the return the function accesses that memory no more.
    ///
    /// # Errors
    /// Nothing is mapped there, or the range cuts a mapping in two.
    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno>;

    /// Resets the function.
    fn reset(&mut self);

    /// Does a bounded part of a long request's work in advance. Returns whether more is left: the request then waits,
    /// and other clients are served meanwhile.
    fn prepare(&mut self, _request: &Request<'_>) -> bool {
        false
    }

    /// Whether the server closes the connection instead of answering.
    fn hangs_up(&self) -> bool {
        false
    }
}
