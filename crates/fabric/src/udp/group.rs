//! The UDP sockets of a shared address: one a slot and the desk, among which the kernel steers.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant as WallTime};

use hca_core::wire::ROCEV2_PORT;
use rustix::net::{RecvFlags, recv};

use super::{bound, sys};
use crate::OpenError;
use crate::paths::{chance, scoped};
use crate::share::{OF_SLOT, STEERING, Sockets, once_free, program, wait_for};

/// How long the packet to oneself may take, and how often it is sent.
const PROOF_PATIENCE: Duration = Duration::from_millis(200);
const PROOFS: u32 = 3;
/// Packets that a slot's socket may hold from the process before.
const MAX_LEFT: usize = 1 << 16;

/// The sockets at an address, behind the desk one for each slot.
pub(super) struct Group {
    pub(super) local: IpAddr,
    /// The interface of a link-local address; 0: it is none.
    pub(super) interface: u32,
}

impl Sockets for Group {
    fn local(&self) -> IpAddr {
        self.local
    }

    fn place(&self) -> String {
        format!("{:x}", self.interface)
    }

    fn make(&self, slots: u16) -> Result<Vec<OwnedFd>, OpenError> {
        let Self { local, interface } = *self;
        // In a group with sockets of earlier processes, new ones would get other indices.
        once_free(|| bound(local, interface, false))?;
        let mut sockets =
            (0..=slots).map(|_| bound(local, interface, true)).collect::<Result<Vec<_>, _>>()?;
        sys::steer(sockets[0].as_fd(), &program::steering(slots))
            .map_err(|source| OpenError::CannotShare { local, doing: STEERING, source })?;
        let desk = sockets.pop();
        Ok(desk.into_iter().chain(sockets).map(OwnedFd::from).collect())
    }

    /// Empties the slot's socket, and sends a packet to it.
    fn prove(&self, slot: u8, others: &[OwnedFd]) -> io::Result<()> {
        let Self { local, interface } = *self;
        let socket = &others[usize::from(slot)];
        let mut packet = [0; 2048];
        for _ in 0..MAX_LEFT {
            if recv(socket, &mut packet[..], RecvFlags::DONTWAIT).is_err() {
                break;
            }
        }
        let sender = UdpSocket::bind(scoped(local, 0, interface))?;
        let nonce = chance().to_be_bytes();
        let proof = [&[0, 0, 0, 0, 0, slot][..], &OF_SLOT, &nonce].concat();
        let to = scoped(local, ROCEV2_PORT, interface);
        for _ in 0..PROOFS {
            sender.send_to(&proof, to)?;
            let until = WallTime::now() + PROOF_PATIENCE;
            while WallTime::now() < until {
                match recv(socket, &mut packet[..], RecvFlags::DONTWAIT) {
                    Ok((len, _)) if packet[..len] == proof[..] => return Ok(()),
                    Ok(_) => {}
                    Err(_) => wait_for(socket, until),
                }
            }
        }
        Err(io::Error::other("a packet to a process's own queue pair did not reach it"))
    }
}
