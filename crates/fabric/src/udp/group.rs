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

/// Whether the kernel steers: two packets of one flow go to two sockets. A kernel without steering may accept the program.
fn steers(local: IpAddr, interface: u32) -> Result<(), OpenError> {
    let cannot = |source| OpenError::CannotShare { local, doing: STEERING, source };
    let first = bound(scoped(local, 0, interface), true)?;
    let at = first.local_addr().map_err(cannot)?.as_socket().expect("it is one of IP");
    let group = [first, bound(at, true)?];
    sys::steer(group[0].as_fd(), &program::by_first_byte()).map_err(cannot)?;
    let sender = UdpSocket::bind(scoped(local, 0, interface)).map_err(|source| OpenError::Io {
        doing: "opening a UDP socket",
        local,
        source,
    })?;
    for (index, socket) in (0..).zip(group.map(OwnedFd::from)) {
        sender.send_to(&[index], at).map_err(cannot)?;
        wait_for(&socket, WallTime::now() + PROOF_PATIENCE);
        let mut got = [0xff];
        if recv(&socket, &mut got[..], RecvFlags::DONTWAIT).is_err() || got != [index] {
            return Err(cannot(io::Error::other("a packet did not reach the socket that it was steered to")));
        }
    }
    Ok(())
}

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
        let at = scoped(local, ROCEV2_PORT, interface);
        // Before the address is looked at: it may be in use as an earlier process could not share it.
        steers(local, interface)?;
        // In a group with sockets of earlier processes, new ones would get other indices.
        once_free(|| bound(at, false))?;
        let mut sockets = (0..=slots).map(|_| bound(at, true)).collect::<Result<Vec<_>, _>>()?;
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
