//! The server's side: PCI functions that clients drive at sockets.
//!
//! | what | for |
//! |---|---|
//! | [`Function`] | what a server brings: regions, interrupts, memory, a reset |
//! | [`Session`] | what each message of one client asks of a function, and the reply; no socket, no waiting |
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
    /// What of it a client may map; the rest is reached by messages.
    pub mapped: Option<MappedRegion<'a>>,
}

/// The part of a region that a client may map.
#[derive(Debug)]
pub struct MappedRegion<'a> {
    /// The file that holds it.
    pub file: BorrowedFd<'a>,
    /// Where in the file the region begins.
    pub offset: u64,
    /// The areas of the region.
    pub areas: &'a [Area],
}

/// A PCI function behind a socket. Each method is what a message asks for; a refusal is a number of the operating system.
///
/// The numbers of regions and of kinds of interrupts are those of Linux's vfio. [`Session`] checks them, and that a
/// range lies within what the function says it has, before it calls.
pub trait Function {
    /// What it is: a PCI function that can be reset, unless told.
    fn info(&self) -> DeviceInfo {
        DeviceInfo { can_reset: true, is_pci: true, regions: REGIONS, irq_kinds: IRQ_KINDS }
    }

    /// What its server takes. `hca_wake` is offered where there is a [`Sleeper`](super::Sleeper), whatever this says.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// A region.
    fn region(&self, index: u32) -> Region<'_>;

    /// Reads from a region.
    fn read(&mut self, index: u32, offset: u64, into: &mut [u8]);

    /// Writes to a region.
    fn write(&mut self, index: u32, offset: u64, data: &[u8]);

    /// Interrupts of a kind.
    fn interrupts(&self, kind: u32) -> u32;

    /// Sets the eventfds of interrupts from `first` on, or takes them away.
    ///
    /// # Errors
    /// One of them can't be signalled; then nothing is set.
    fn listen(&mut self, kind: u32, first: u32, eventfds: Vec<Option<OwnedFd>>) -> Result<(), Errno>;

    /// Signals an interrupt.
    fn fire(&mut self, kind: u32, interrupt: u32);

    /// Keeps an interrupt back, or lets it through again.
    fn mask(&mut self, kind: u32, interrupt: u32, masked: bool);

    /// Lets the function reach memory, which the descriptor stands for.
    ///
    /// # Errors
    /// The range overlaps another one, or the descriptor is missing or of no use.
    fn dma_map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno>;

    /// Takes memory back. When it returns nothing touches it any more.
    ///
    /// # Errors
    /// Nothing is mapped there, or the range cuts a mapping in two.
    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno>;

    /// Resets it.
    fn reset(&mut self);

    /// Does a bounded piece of what would take a request long, before it is done. Returns whether there is more: the
    /// request waits then, and others are served meanwhile.
    fn prepare(&mut self, _request: &Request<'_>) -> bool {
        false
    }

    /// Whether the client is to be hung up on instead of answered.
    fn hangs_up(&self) -> bool {
        false
    }
}
