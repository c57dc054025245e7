//! How an adapter is opened.

use core::net::IpAddr;
use core::time::Duration;

use hca_core::{Gid, Lid, Mtu};

/// How an adapter is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Addresses of a RoCE port, beside its link-local one. The first is the port's GID. No duplicate address detection
    /// is done.
    pub ip: Vec<IpAddr>,
    /// Whether the link of an Ethernet port that was left down is raised while the adapter is open, and its frames are
    /// made long enough for [`mtu`](Self::mtu). It is left as it was found. A virtual function has the link of its
    /// physical one, and nothing to raise.
    pub raise_port: bool,
    /// How long opening waits for a link that it raised to be there.
    pub link_wait: Duration,
    /// How long opening waits until the subnet's manager has made an InfiniBand port active. Each open of a physical
    /// function resets its link, and before the manager has seen that the port has no LID. A port that is not active by
    /// then is opened all the same, and [`PortActive`](hca_core::AsyncEvent::PortActive) tells when it is.
    pub manager_wait: Duration,
    /// The largest packet of a RoCE port: its `active_mtu` is no larger, and its frames are made long enough. The
    /// network between two ports must carry frames that are 126 bytes longer. `None`: what the port's frames hold as
    /// they were set, 1024 where the network's MTU is 1500.
    pub mtu: Option<Mtu>,
    /// MAC addresses of peers of a RoCE port, which are believed without asking. That of a peer behind a router is the
    /// router's.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// How long a peer of a RoCE port may take to tell its MAC, when it is asked by ARP or neighbour discovery: so long
    /// may making an address handle, and connecting a queue pair, take. On the driver's own thread, where wakers are
    /// called, nothing waits: the driver asks an unknown peer, and the call fails.
    pub neighbour_timeout: Duration,
    /// LIDs of peers of an InfiniBand port that the program knows by their GID alone, where an address vector has no
    /// LID. One that is not named either is 0: an adapter that is served finds it by the GID; on a subnet of cables
    /// nothing does.
    pub lids: Vec<(Gid, Lid)>,
    /// How long a command may take before the adapter is declared dead.
    pub command_timeout: Duration,
    /// How long a thread that waits for a command sleeps before it looks without an interrupt: the cost of a lost
    /// interrupt.
    pub command_look: Duration,
    /// How long the firmware may take to start.
    pub start_timeout: Duration,
    /// How often the driver's thread looks whether the adapter lives.
    pub health_interval: Duration,
    /// Events that may arrive while the driver's thread does not run: entries of each event queue, 256 or more, rounded
    /// up to a power of two, and at most what the adapter takes. More end the adapter.
    pub event_queue_entries: u32,
    /// Whether to use interrupts. Without them the driver's thread looks each millisecond.
    pub interrupts: bool,
    /// Doorbell pages for queues.
    pub uars: u32,
    /// Whether a request that is posted by itself, and is not longer than 64 bytes, is written to the doorbell page as
    /// a whole (BlueFlame), by queue pairs that have found a doorbell register of their own: three for each page. It
    /// spares an adapter in silicon a read of the queue where such stores leave the processor as one. vfio maps
    /// doorbell pages so that they do not, and then eight of them cost more than the read does; so this is for
    /// measuring that.
    pub blueflame: bool,
    /// Whether memory is taken from huge pages of the system where it has some; not over vfio-user, whose servers have
    /// to rely on the pages being there.
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
