//! Errors: the reasons why a fabric can't be opened.

use std::io;
use std::net::IpAddr;

use thiserror::Error;

hca_core::debug_as_display!(OpenError);

/// An error of opening a fabric.
#[derive(Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process or adapter has the address.
    #[error(
        "address in use: another adapter uses {0}, port 4791; take another address of this machine (on loopback any \
         of 127.0.0.2, 127.0.0.3, …), or have all processes share it (share=yes)"
    )]
    InUse(IpAddr),
    /// All slots of a shared address are taken.
    #[error(
        "all {slots} processes that share {local} are there: end one, or let the first one make more slots \
         (share=NUMBER, up to {})",
        crate::MAX_SLOTS
    )]
    SlotsTaken {
        /// The address.
        local: IpAddr,
        /// Processes that may share it.
        slots: usize,
    },
    /// The kernel does not do what a shared address needs.
    #[error(
        "no processes can share {local} here: {doing}: {source}; give each process an address of its own, without share= \
         (on loopback any of 127.0.0.2, 127.0.0.3, …), or have whoever runs this machine allow that call (the container's \
         seccomp profile; gVisor lacks it)"
    )]
    CannotShare {
        /// The address.
        local: IpAddr,
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The processes that share the address do not admit this process.
    #[error(
        "the processes that share {local} do not answer, after {} s: {} made its sockets, and those that hold them may be \
         stopped", .after.as_secs(), process(*.maker)
    )]
    NoAnswer {
        /// The address.
        local: IpAddr,
        /// The process that created the sockets; 0: unknown.
        maker: i32,
        /// The time of the wait.
        after: std::time::Duration,
    },
    /// A process of another user holds the name of the shared address.
    #[error(
        "a process of user {uid} has taken the name by which processes of this user share {local}: it is none of theirs, \
         and has to end"
    )]
    NameTaken {
        /// The address.
        local: IpAddr,
        /// The user.
        uid: u32,
    },
    /// No interface has the address.
    #[error("no interface of this machine has the address {0}; `ip address` lists those that can be used")]
    NotLocal(IpAddr),
    /// No address of this machine has the prefix.
    #[error("no address of this machine has the prefix {prefix}; it has {}", list(.has))]
    NoneWithPrefix {
        /// The prefix.
        prefix: crate::Prefix,
        /// The machine's addresses.
        has: Vec<IpAddr>,
    },
    /// An interface or a prefix has several addresses of this machine.
    #[error("{what} stands for several addresses of this machine: name one of {}, or a longer prefix", list(.has))]
    SeveralAddresses {
        /// The interface or the prefix.
        what: String,
        /// The addresses.
        has: Vec<IpAddr>,
    },
    /// The address does not name one interface.
    #[error(
        "{0} does not name one interface: the ICRC covers the address, so give a unicast address, and with a link-local one \
         that several interfaces have the interface, as in udp://[fe80::1%eth0]"
    )]
    NotUnicast(IpAddr),
    /// A requested feature of the kernel is missing or forbidden.
    #[error(
        "{what} is missing or forbidden here: {source}; plain UDP sockets (udp://) do without it, or have whoever runs \
         this machine allow it (sysctl kernel.io_uring_disabled, the container's seccomp profile)"
    )]
    Unsupported {
        /// The feature.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The operating system refused the call.
    #[error("{doing} for {local}: {source}{}", hca_core::remedy(source))]
    Io {
        /// The operation.
        doing: &'static str,
        /// The address.
        local: IpAddr,
        /// The reason.
        source: io::Error,
    },
    /// Raw Ethernet is not allowed to this program.
    #[error(
        "raw Ethernet frames need CAP_NET_RAW: `sudo setcap cap_net_raw+ep {program}` gives it, or start the program as \
         root; for tests, `unshare -rn` gives it in a network of its own"
    )]
    NeedsNetRaw {
        /// This program.
        program: String,
    },
    /// There is no such interface.
    #[error("there is no interface {name}; this machine has {}", .known.join(", "))]
    NoInterface {
        /// The given value.
        name: String,
        /// The existing interfaces.
        known: Vec<String>,
    },
    /// The interface is down.
    #[error("the interface {name} is down: `ip link set {name} up` brings it up")]
    InterfaceDown {
        /// The name.
        name: String,
    },
    /// The interface carries no Ethernet frames.
    #[error("the interface {name} carries no Ethernet frames (hardware type {kind}); udp:// works over it")]
    NotEthernet {
        /// The name.
        name: String,
        /// The hardware type, as in ARPHRD_ETHER.
        kind: u16,
    },
    /// The interface has no usable address.
    #[error(
        "the interface {name} has no address yet: `ip address add ADDRESS/PREFIX dev {name}` gives it one"
    )]
    NoAddress {
        /// The name.
        name: String,
    },
    /// The address is not one of the interface's.
    #[error("the interface {name} has no address {address}: give one of {}", list(.has))]
    NotOnInterface {
        /// The name.
        name: String,
        /// The given value.
        address: IpAddr,
        /// The interface's addresses.
        has: Vec<IpAddr>,
    },
    /// The kernel's duplicate address detection for the address is still running.
    #[error("the address {address} of {name} is still being checked for duplicates: try again in 2 seconds")]
    Tentative {
        /// The interface.
        name: String,
        /// The address.
        address: IpAddr,
    },
}

fn process(pid: i32) -> String {
    if pid == 0 { "an unknown process".to_owned() } else { format!("process {pid}") }
}

fn list(addresses: &[IpAddr]) -> String {
    if addresses.is_empty() {
        return "none".to_owned();
    }
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}
