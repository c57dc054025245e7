//! Network namespaces for tests: two of them with a veth pair between, made by the test and gone with it.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Two namespaces, each with one end of a veth pair, called `wire` in both.
pub(crate) struct Wire {
    ends: [File; 2],
}

impl Wire {
    /// Makes both, with the link up and no addresses; or says why that is not possible here.
    pub(crate) fn new(mtu: u32) -> Result<Self, String> {
        let ends = [new_namespace()?, new_namespace()?];
        let wire = Self { ends };
        let far = format!("/proc/{}/fd/{}", std::process::id(), fd_number(&wire.ends[1]));
        wire.within(0, || {
            ip("link set lo up")?;
            let made = format!("link add wire mtu {mtu} type veth peer name wire mtu {mtu} netns {far}");
            ip(&made)?;
            ip("link set wire up")
        })?;
        wire.within(1, || {
            ip("link set lo up")?;
            ip("link set wire up")
        })?;
        Ok(wire)
    }

    /// Both, with an IPv4 and an IPv6 address at each end: 10.77.0.1 and .2, fd77::1 and ::2.
    pub(crate) fn with_addresses(mtu: u32) -> Result<Self, String> {
        let wire = Self::new(mtu)?;
        for end in 0..2 {
            wire.within(end, || {
                ip(&format!("addr add 10.77.0.{}/24 dev wire", end + 1))?;
                ip(&format!("addr add fd77::{}/64 dev wire nodad", end + 1))
            })?;
        }
        Ok(wire)
    }

    /// Runs something within one of the namespaces. Sockets that it opens stay in there.
    pub(crate) fn within<T: Send>(&self, end: usize, run: impl FnOnce() -> T + Send) -> T {
        let ns = &self.ends[end];
        std::thread::scope(|s| {
            let inside = s.spawn(move || {
                move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("it was made by us");
                run()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

fn fd_number(file: &File) -> i32 {
    use std::os::fd::AsRawFd;
    file.as_raw_fd()
}

fn new_namespace() -> Result<File, String> {
    let make = || {
        #[allow(deprecated, reason = "a thread of its own, which shares nothing but the network namespace")]
        rustix::thread::unshare(UnshareFlags::NEWNET).map_err(|e| {
            format!("network namespaces can't be made here ({e}); they can as root, or by `unshare -rn`")
        })?;
        File::open("/proc/thread-self/ns/net").map_err(|e| e.to_string())
    };
    std::thread::spawn(make).join().expect("it does not panic")
}

/// Runs `ip` in this thread's namespace.
pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    let out = Command::new("ip").args(arguments.split(' ')).output().map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}
