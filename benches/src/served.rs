//! An adapter of software that is served as ConnectX functions by a thread of this process.

use std::net::Ipv4Addr;

use hca::cli::Failure;
use hca_fabric::LoopbackNet;
use softhca::{Options, Progress, SoftHca};
use softhca_pci::{PortKind, Served};

/// Serves so many functions, with InfiniBand ports, for as long as what it returns lives.
///
/// # Errors
/// The system refuses.
pub fn serve(functions: usize) -> Result<Served, Failure> {
    let fabric = Box::new(LoopbackNet::new().attach(Ipv4Addr::new(10, 0, 0, 1).into()));
    let hca = SoftHca::open(fabric, Options { progress: Progress::Inline, ..Options::default() })?;
    Ok(Served::start(hca, functions, PortKind::InfiniBand)?)
}
