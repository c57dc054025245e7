//! For tests and the fuzz target: an adapter, and drivers without a socket that have memory of their own.
//!
//! A [`Driver`] gives commands by slots and mailboxes. On it stand a [`Client`], which makes queues as a driver does and
//! uses them, a [`Pair`] of clients that are connected, and a [`ethernet::Port`].

mod driver;
#[cfg(test)]
pub(crate) mod ethernet;
mod memory;
mod queues;
mod wqe;

use std::fs::File;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicU64;

use hca_core::{Device, Gid};
use hca_fabric::LoopbackNet;
use rustix::fs::{MemfdFlags, SealFlags};
use softhca::{Clock, Options, Progress, SoftHca};

use crate::function::{Function, FunctionOptions};
use crate::port::directory::SharedDirectory;

#[cfg(test)]
pub(crate) use driver::{Answer, COMMANDS};
pub(crate) use driver::{Driver, TestEq, fill_slot};
pub(crate) use queues::{Client, ClientCq, ClientQp, End, Pair, QpShape, Queue, pages, unwritten};
#[cfg(test)]
pub(crate) use queues::{ClientMr, ClientSrq};
pub(crate) use wqe::Wqe;

/// Where a driver's memory begins for the function, and the length of a client's.
pub(crate) const BASE: u64 = 0x7_0000_0000;
pub(crate) const LEN: u64 = 2 << 20;
pub(crate) const PAGE: u64 = 4096;

/// A file that can't be cut.
pub(crate) fn sealed(len: u64) -> File {
    let file = rustix::fs::memfd_create("client", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file.into()
}

/// An adapter, and what its functions share.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) hca: Arc<SoftHca>,
    pub(crate) directory: SharedDirectory,
    /// Entries of the queue into which all queue pairs of a function complete, if not as many as usual.
    pub(crate) completion_entries: Option<u32>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::at(&LoopbackNet::new(), "10.0.0.1")
    }

    /// That of the host with this address in a network.
    pub(crate) fn at(net: &LoopbackNet, addr: &str) -> Self {
        Self::with(net, addr, Clock::Monotonic)
    }

    /// The same by a clock in nanoseconds that a test sets.
    #[cfg(test)]
    pub(crate) fn by_clock(net: &LoopbackNet, addr: &str, clock: Arc<AtomicU64>) -> Self {
        Self::with(net, addr, Clock::Virtual(clock))
    }

    fn with(net: &LoopbackNet, addr: &str, clock: Clock) -> Self {
        let fabric = net.attach(addr.parse().unwrap());
        let options = Options { progress: Progress::Inline, clock, ..Options::default() };
        let hca = SoftHca::open(Box::new(fabric), options).unwrap();
        let directory = SharedDirectory::new(hca.port().gid);
        Self { hca, directory, completion_entries: None }
    }

    /// The adapter's own address.
    pub(crate) fn gid(&self) -> Gid {
        self.hca.port().gid
    }

    /// A client of function `number`, whose memory is mapped.
    pub(crate) fn client(&self, number: u16) -> Client {
        Client::new(self, FunctionOptions { number, ..FunctionOptions::default() }, LEN)
    }

    /// A function that nobody uses.
    pub(crate) fn function(&self, options: FunctionOptions) -> Function {
        let mut function = Function::new(self.hca.clone(), self.directory.clone(), options).unwrap();
        if let Some(entries) = self.completion_entries {
            function.objects.completion_entries = entries;
        }
        function
    }

    /// Hands the adapter's events to those whose objects they are of.
    pub(crate) fn events(&self, clients: &mut [&mut Client]) {
        while let Some(event) = self.hca.poll_event() {
            let taken = clients.iter_mut().any(|c| c.function.take_event(event));
            assert!(taken, "{event:?} is nobody's");
        }
    }
}
