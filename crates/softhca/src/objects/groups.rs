//! The members of multicast groups.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The slots of each group's members, which exist.
#[derive(Default)]
pub(crate) struct Groups(pub(crate) BTreeMap<IpAddr, Vec<u32>>);
