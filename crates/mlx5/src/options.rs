//! How an adapter is opened.

use core::net::IpAddr;
use core::time::Duration;

use hca_core::{Gid, Lid, Mtu};

/// The options of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Addresses of a RoCE port, beside its link-local one. The first is the port's GID. No duplicate address detection
    /// is done.
    pub ip: Vec<IpAddr>,
    /// Whether to raise an Ethernet port's link that was left down, and to make its frames long enough for
    /// [`mtu`](Self::mtu), while the adapter is open. Closing restores the earlier state. A virtual function has the
    /// link of its physical function, and has nothing to raise.
    pub raise_port: bool,
    /// The time that opening waits for a raised link to come up.
    pub link_wait: Duration,
    /// The time that opening waits for the subnet manager to activate an InfiniBand port. Each open of a physical
    /// function resets its link, and the port has no LID until the subnet manager has discovered the port. A port that
    /// is not active by then is opened nevertheless, and [`PortActive`](hca_core::AsyncEvent::PortActive) reports its
    /// activation.
    pub manager_wait: Duration,
    /// The largest packet of a RoCE port: its `active_mtu` is at most this, and its frames are made long enough. The
    /// network between two ports must carry frames that are 126 bytes longer. `None`: the largest packet that fits the
    /// port's present frame length, 1024 bytes with a network MTU of 1500.
    pub mtu: Option<Mtu>,
    /// MAC addresses of peers of a RoCE port, which are used without a question. The MAC of a peer behind a router is
    /// the router's.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// The time limit for a peer of a RoCE port to answer a question for its MAC by ARP or neighbour discovery.
    /// Creating an address handle, and connecting a queue pair, may take that long. On the driver's own thread, where
    /// wakers are called, no call waits: the driver asks an unknown peer, and the call fails.
    pub neighbour_timeout: Duration,
    /// LIDs of an InfiniBand port's peers by GID, for address vectors without a LID. The LID of a peer that is not
    /// listed is 0: a served software adapter finds the peer by its GID, but on a real subnet the peer can't be
    /// reached.
    pub lids: Vec<(Gid, Lid)>,
    /// The time limit of a command, after which the adapter is declared dead.
    pub command_timeout: Duration,
    /// The time that a thread waiting for a command sleeps before it polls without an interrupt: the cost of a lost
    /// interrupt.
    pub command_look: Duration,
    /// The time limit of the firmware's start.
    pub start_timeout: Duration,
    /// The interval of the driver thread's health checks.
    pub health_interval: Duration,
    /// The entries of each event queue: the number of events that may arrive while the driver's thread does not run. At
    /// least 256, rounded up to a power of two, and at most the adapter's limit. An overrun makes the adapter unusable.
    pub event_queue_entries: u32,
    /// Whether to use interrupts. Without interrupts the driver's thread polls each millisecond.
    pub interrupts: bool,
    /// The number of doorbell pages for queues.
    pub uars: u32,
    /// Whether a single posted request of at most 64 bytes is written whole to the doorbell page (BlueFlame). Only
    /// queue pairs with a doorbell register of their own, three for each page, do so. BlueFlame saves an adapter in
    /// silicon a read of the queue if such stores leave the processor as one transaction. With vfio's mappings of
    /// doorbell pages they do not, and eight stores then cost more than the read; so this option is for measurements.
    pub blueflame: bool,
    /// Whether to take memory from the system's huge pages, if it has some; not over vfio-user, whose servers rely on
    /// pages that can't disappear.
    pub huge_pages: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ip: Vec::new(),
            raise_port: true,
            link_wait: Duration::from_secs(5),
            manager_wait: Duration::from_secs(20),
            mtu: None,
            neighbours: Vec::new(),
            neighbour_timeout: Duration::from_secs(3),
            lids: Vec::new(),
            command_timeout: Duration::from_secs(60),
            command_look: Duration::from_millis(100),
            start_timeout: Duration::from_secs(120),
            health_interval: Duration::from_secs(1),
            event_queue_entries: 4096,
            interrupts: true,
            uars: 4,
            blueflame: false,
            huge_pages: false,
        }
    }
}
