//! Network namespaces, made by tests and benches and gone with them.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace, which lives until this and all sockets in it are gone.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// A new one, its loopback interface up.
    ///
    /// # Errors
    /// Why there can be none: it takes root, or `unshare -rn`.
    pub fn new() -> Result<Self, String> {
        let make = || {
            #[allow(
                deprecated,
                reason = "a thread of its own, which shares nothing but the network namespace"
            )]
            rustix::thread::unshare(UnshareFlags::NEWNET).map_err(|e| {
                format!("network namespaces can't be made here ({e}); they can as root, or by `unshare -rn`")
            })?;
            ip("link set lo up")?;
            File::open("/proc/thread-self/ns/net").map(Self).map_err(|e| e.to_string())
        };
        std::thread::spawn(make).join().expect("it does not panic")
    }

    /// Runs something in it. Sockets that it opens, and threads and processes that it starts, stay in there.
    pub fn within<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|s| {
            let inside = s.spawn(move || {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("it was made by us");
                run()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// By which other processes find it, as long as this lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Two namespaces, each with one end of a veth pair, called `wire` in both.
pub struct Wire(pub [Namespace; 2]);

impl Wire {
    /// Makes both, with the link up and no addresses.
    ///
    /// # Errors
    /// Why that is not possible here.
    pub fn new(mtu: u32) -> Result<Self, String> {
        let wire = Self([Namespace::new()?, Namespace::new()?]);
        let far = wire.0[1].path();
        wire.within(0, || {
            ip(&format!("link add wire mtu {mtu} type veth peer name wire mtu {mtu} netns {far}"))?;
            ip("link set wire up")
        })?;
        wire.within(1, || ip("link set wire up"))?;
        Ok(wire)
    }

    /// Makes both, with an IPv4 and an IPv6 address at each end: 10.77.0.1 and .2, fd77::1 and ::2.
    ///
    /// # Errors
    /// Why that is not possible here.
    pub fn with_addresses(mtu: u32) -> Result<Self, String> {
        let wire = Self::new(mtu)?;
        for end in 0..2 {
            wire.within(end, || {
                ip(&format!("addr add 10.77.0.{}/24 dev wire", end + 1))?;
                ip(&format!("addr add fd77::{}/64 dev wire nodad", end + 1))
            })?;
        }
        Ok(wire)
    }

    /// Runs something at one of the ends.
    pub fn within<T: Send>(&self, end: usize, run: impl FnOnce() -> T + Send) -> T {
        self.0[end].within(run)
    }
}

/// Runs `ip` in this thread's namespace, and gives what it printed.
///
/// # Errors
/// What it complained of, or that it is not installed.
pub fn ip(arguments: &str) -> Result<String, String> {
    let out = Command::new("ip").args(arguments.split(' ')).output().map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}
