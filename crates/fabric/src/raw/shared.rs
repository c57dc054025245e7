//! The sockets that all processes at a shared address on raw Ethernet hold: the desk, a packet socket for the frames
//! that name no process, and the UDP socket that holds the port. Frames for a process come to a packet socket of its own.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::place::{self, Place};
use super::sys;
use super::{ETH_P_ALL, RawOptions, tap};
use crate::OpenError;
use crate::share::program::Part;
use crate::share::{Sockets, once_free};

/// The index of the guard, behind the desk.
pub(super) const GUARD: usize = 0;

/// The sockets at an address of an interface.
pub(super) struct Held<'a> {
    pub(super) place: &'a Place,
    pub(super) options: &'a RawOptions,
}

impl Sockets for Held<'_> {
    fn local(&self) -> IpAddr {
        self.place.local
    }

    /// Adapters of other kinds, versions and VLANs at the address are refused, as without `share=`.
    fn place(&self) -> String {
        let RawOptions { version, vlan, .. } = self.options;
        format!("raw/{:x}/{version}/{}", self.place.link, vlan.unwrap_or(0))
    }

    fn make(&self, slots: u16) -> Result<Vec<OwnedFd>, OpenError> {
        let local = self.place.local;
        let desk = tap(self.place, self.options, Some((slots, Part::Desk)), &mut Vec::new())?.socket;
        sys::bind(&desk, self.place.link, ETH_P_ALL).map_err(|source| OpenError::Io {
            doing: "binding to the interface",
            local,
            source,
        })?;
        let guard = once_free(|| place::guard(self.place))?;
        Ok(vec![desk.into(), guard.into()])
    }

    /// A packet socket is each process's own: it holds no frames of others, and its filter is the process's.
    fn prove(&self, _slot: u8, _others: &[OwnedFd]) -> io::Result<()> {
        Ok(())
    }
}
