//! Device names: `auto://ADDRESS`, `udp://ADDRESS`, `uring://ADDRESS`, `shm://DOMAIN`, `raw://INTERFACE`,
//! `loopback://NAME`, `vfio://FUNCTION`, `vfio-user://SOCKET`, with `?option=value`.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;
use std::path::PathBuf;
use std::time::Duration;

use hca_core::{Gid, Lid, Mtu};
use hca_fabric::{FaultPlan, FaultPlanError, MAX_SLOTS, Prefix, ProcessVm, RawOptions, RoceVersion};
use softhca::Progress;
use thiserror::Error;

hca_core::debug_as_display!(UrlError);

/// The number of processes that may share an address by `share=yes`.
pub const SHARED_BY: u16 = 64;
/// The longest wait for a port that a name can ask for, in seconds.
const MAX_WAIT: u32 = 3600;

/// The name of a device, parsed.
///
/// ```text
/// auto://10.0.0.2                             UDP sockets, and shared memory with peers on this machine
/// auto://                                     the same on a free loopback address
/// udp://127.0.0.2                             UDP sockets, bound to this address
/// udp://[fd00::2]?mtu=1024                    IPv6, with a smaller path MTU
/// udp://[fe80::2%eth0]                        an interface's link-local address; `%` and the interface may be left out
///                                             where no other one has the address
/// udp://                                      UDP sockets on a free loopback address
/// auto://eth0                                 the same on the address of this interface
/// auto://10.1.0.0/16                          the same on this host's address with this prefix
/// auto://10.0.0.2?share=yes                   an address that other processes of this user open, too
/// uring://127.0.0.2?progress=inline           io_uring; the calling thread does the adapter's work
/// shm://lab                                   shared memory: the processes of this machine that name this domain
/// shm://lab?dir=/run/lab                      the same, between containers that share this folder
/// raw://eth0?ip=10.0.0.2&vlan=7               Ethernet frames on this interface (needs CAP_NET_RAW)
/// raw://eth0?share=yes                        the same, and other processes of this user open it, too
/// loopback://lab?fault=loss=0.01,seed=7       inside this process, losing one packet in a hundred
/// udp://10.0.0.2?capture=/tmp/run.pcapng      every frame into a file that Wireshark opens
/// vfio://0000:03:00.0                         a ConnectX adapter that is bound to vfio-pci
/// vfio://0000:03:00.0?ip=10.0.0.2             its Ethernet port, by RoCE
/// vfio://0000:03:00.0?ip=10.0.0.2&neigh=10.1.0.3=02:00:00:00:00:03
///                                             the same, with the MAC of the router in front of a peer
/// vfio-user:///run/a.sock                     one that a server offers at this socket, as `hca serve` does
/// ```
///
/// A value may hold any character as `%XX`; it has to for `&`, `%` and space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUrl {
    /// The network that carries the packets, and the address of the device.
    pub target: Target,
    /// The options of the device.
    pub options: Options,
}

/// The network that carries the packets, and the address of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The default: RoCEv2 over UDP sockets, and shared memory between RC queue pairs if the peer is such a device of
    /// the same user on this machine. `None` takes the address of [`Options::interface`] or of [`Options::prefix`], else
    /// the first free loopback address from 127.0.0.2 on.
    Auto(Option<IpAddr>),
    /// RoCEv2 over UDP sockets; `None` as for `Auto`.
    Udp(Option<IpAddr>),
    /// RoCEv2 over UDP by io_uring, or by plain sockets if the kernel has no io_uring; `None` as for `Auto`.
    Uring(Option<IpAddr>),
    /// Shared memory between processes of this machine; devices of one domain reach each other.
    Shm(String),
    /// RoCE frames on an Ethernet interface. On the loopback interface, a missing address selects a free one.
    Raw {
        /// The interface's name.
        interface: String,
        /// `ip=ADDRESS`, `roce=1|2` and `vlan=ID`. The number of processes is [`Options::share`].
        options: RawOptions,
    },
    /// A network inside this process; devices of one name reach each other.
    Loopback(String),
    /// A ConnectX adapter of this machine, by the address of its PCI function.
    Vfio {
        /// The function, as `lspci -D` writes it.
        function: String,
        /// `ip=`, `neigh=`, `lid=`, `mtu=`, `raise=` and `wait=`.
        options: Box<PciOptions>,
    },
    /// A ConnectX adapter that a server offers at a socket.
    VfioUser {
        /// The socket.
        socket: PathBuf,
        /// `ip=`, `neigh=`, `lid=`, `mtu=`, `raise=` and `wait=`.
        options: Box<PciOptions>,
    },
}

/// Options of an adapter behind vfio, whose addresses and port no kernel manages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciOptions {
    /// `ip=ADDRESS,…`: the port's addresses, beside the link-local one (Ethernet).
    pub ip: Vec<IpAddr>,
    /// `neigh=ADDRESS=MAC,…`: peers' MACs, used without a question (Ethernet); for peers behind a router, the router's
    /// MAC.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// `lid=GID=LID,…`: LIDs of peers that are known only by their GIDs (InfiniBand). Endpoints of queue pairs contain
    /// the LID.
    pub lids: Vec<(Gid, Lid)>,
    /// `mtu=256|512|1024|2048|4096`: the largest path MTU (Ethernet).
    pub mtu: Option<Mtu>,
    /// `raise=yes|no`: whether a port that was left down is raised (Ethernet).
    pub raise: Option<bool>,
    /// `wait=SECONDS`: the time that opening waits for the port to be up (Ethernet) or active (InfiniBand).
    pub wait: Option<Duration>,
}

/// Options of a device; `None` selects the device's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `progress=inline|thread|adaptive`.
    pub progress: Option<Progress>,
    /// `acks=eager|lazy`: with `progress=inline`, whether a polled message is acknowledged at once, or with the
    /// program's answer or next call; see [`softhca::Options::lazy_acks`].
    pub lazy_acks: Option<bool>,
    /// `fault=KEY=VALUE,…`: the network's faults; see [`FaultSpec`].
    pub fault: Option<FaultSpec>,
    /// `capture=FILE`: every frame, sent and received, as pcapng.
    pub capture: Option<PathBuf>,
    /// `mtu=256|512|1024|2048|4096`: the largest path MTU.
    pub mtu: Option<Mtu>,
    /// `dir=`, `users=`, `ring=`, `isolated=` and `process_vm=`, for `shm://`; `auto://` takes the last three.
    pub shm: Option<Box<ShmSettings>>,
    /// `share=yes|no|NUMBER`: the number of processes of this user that may open the same address, each with an adapter
    /// of its own; 0: only this process. The first process at the address decides. Without an address the processes are
    /// at 127.0.0.1. For `auto://`, `udp://`, `uring://` and `raw://`.
    pub share: Option<u16>,
    /// `%INTERFACE` behind a link-local address: the address's interface. Without an address, as in `auto://eth0`: the
    /// interface whose address the device takes, see [`hca_fabric::address_of`].
    pub interface: Option<String>,
    /// `auto://10.1.0.0/16`: the prefix of the address of this host that the device takes.
    pub prefix: Option<Prefix>,
}

/// Options of shared memory; `None` selects the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShmSettings {
    /// `dir=FOLDER`: the folder that holds the sockets by which processes find each other.
    pub dir: Option<PathBuf>,
    /// `users=own|any`: the users whose processes are accepted as peers.
    pub users: Option<Users>,
    /// `ring=BYTES`: the size of the ring to each peer.
    pub ring: Option<usize>,
    /// `isolated=yes|no`: whether only the rings are shared with peers.
    pub isolated: Option<bool>,
    /// `process_vm=no|yes|any`: whether peers fetch long messages from the process if the library did not allocate
    /// their memory, and write there by the kernel while the adapter sleeps.
    pub process_vm: Option<ProcessVm>,
}

/// The users whose processes are accepted as peers over shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Processes of the same user.
    Own,
    /// Processes of any user.
    Any,
}

/// The faults of a device's network, by seed, as `loss=0.01,dup=0.001,delay=0.1:10us-2ms,seed=7`: the text of a
/// [`FaultPlan`], checked. The same seed draws the same faults; each direction is drawn on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec(String);

impl FaultSpec {
    /// A fresh plan from the text.
    pub fn plan(&self) -> FaultPlan {
        self.0.parse().expect("the text was checked when the value was made")
    }
}

/// An error of parsing a device name.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UrlError {
    /// No `://`.
    #[error("`{url}` is not a device name: write SCHEME://, for example auto:// or udp://127.0.0.2")]
    NoScheme {
        /// The given text.
        url: String,
    },
    /// The scheme is unknown.
    #[error(
        "unknown scheme `{scheme}` in `{url}`: use auto://ADDRESS, udp://ADDRESS, uring://ADDRESS, shm://DOMAIN, raw://INTERFACE, \
         loopback://NAME, vfio://FUNCTION or vfio-user://SOCKET"
    )]
    UnknownScheme {
        /// The given text.
        url: String,
        /// The scheme.
        scheme: String,
    },
    /// The address does not parse.
    #[error(
        "`{address}` in `{url}` is neither an IP address nor a prefix nor an interface's name: write an address of this machine, as in \
         {scheme}://127.0.0.2 or {scheme}://[::1], or {scheme}://eth0 or {scheme}://10.1.0.0/16 for the address there"
    )]
    Address {
        /// The given text.
        url: String,
        /// The scheme.
        scheme: &'static str,
        /// The address.
        address: String,
    },
    /// The scheme takes no address, or needs a name.
    #[error("`{url}`: {rule}")]
    Place {
        /// The given text.
        url: String,
        /// The rule, and a valid form.
        rule: &'static str,
    },
    /// The option is unknown.
    #[error(
        "unknown option `{option}`: use progress=, acks=, fault=, capture= or mtu=, with auto://, udp://, uring:// and raw:// \
         share=, with shm:// dir= or users=, with shm:// and auto:// ring=, isolated= or process_vm=, with raw:// ip=, roce= \
         or vlan=, and with vfio:// and vfio-user:// ip=, neigh=, lid=, raise= or wait="
    )]
    UnknownOption {
        /// The name of the option.
        option: String,
    },
    /// The option is given twice.
    #[error("option `{option}` is given twice: leave one out")]
    Repeated {
        /// The name of the option.
        option: String,
    },
    /// The faults do not parse.
    #[error("fault: {0}")]
    Fault(FaultPlanError),
    /// The value does not fit.
    #[error("`{value}` is not a value of {option}: {rule}")]
    Value {
        /// The option's name.
        option: &'static str,
        /// The given text.
        value: String,
        /// The permitted values.
        rule: &'static str,
    },
}

impl FromStr for DeviceUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let no_scheme = || UrlError::NoScheme { url: url.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(no_scheme)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut items: Vec<&str> = query.split('&').filter(|i| !i.is_empty()).collect();
        let bare = place.strip_prefix('[').and_then(|p| p.strip_suffix(']')).unwrap_or(place);
        let (bare, interface) = match bare.split_once('%') {
            Some((address, interface)) if matches!(scheme, "auto" | "udp" | "uring") => {
                (address, Some(interface))
            }
            _ => (bare, None),
        };
        let named = matches!(scheme, "auto" | "udp" | "uring") && interface.is_none();
        let prefix: Option<Prefix> = place.parse().ok().filter(|_| named);
        let whole = (named && is_interface_name(place)).then_some(place);
        let address = |scheme: &'static str| {
            let none = bare.is_empty() || prefix.is_some() || whole.is_some();
            let parsed = if none { Ok(None) } else { bare.parse::<IpAddr>().map(Some) };
            parsed.map_err(|_| UrlError::Address { url: url.to_owned(), scheme, address: place.to_owned() })
        };
        let rule = |rule| UrlError::Place { url: url.to_owned(), rule };
        let target = match scheme {
            "auto" => Target::Auto(address("auto")?),
            "udp" => Target::Udp(address("udp")?),
            "uring" => Target::Uring(address("uring")?),
            "shm" if place.is_empty() => {
                return Err(rule(
                    "shared memory needs a domain that its processes have in common, as in shm://lab",
                ));
            }
            "shm" => Target::Shm(decode("DOMAIN", place)?),
            "raw" if place.is_empty() => {
                return Err(rule("raw:// needs an interface, as in raw://eth0; `ip link` lists them"));
            }
            "raw" => Target::Raw { interface: decode("INTERFACE", place)?, options: parse_raw(&mut items)? },
            "loopback" if place.is_empty() => {
                return Err(rule("a loopback network needs a name, as in loopback://lab"));
            }
            "loopback" => Target::Loopback(decode("NAME", place)?),
            "vfio" if place.is_empty() => {
                return Err(rule(
                    "vfio:// needs a PCI function, as in vfio://0000:03:00.0; `lspci -D -d 15b3:` lists them",
                ));
            }
            "vfio" => Target::Vfio {
                function: decode("FUNCTION", place)?,
                options: PciOptions::parse(&mut items)?.into(),
            },
            "vfio-user" if place.is_empty() => {
                return Err(rule(
                    "vfio-user:// needs a socket, as in vfio-user:///run/a.sock, where `hca serve` listens",
                ));
            }
            "vfio-user" => Target::VfioUser {
                socket: decode("SOCKET", place)?.into(),
                options: PciOptions::parse(&mut items)?.into(),
            },
            _ => {
                return Err(UrlError::UnknownScheme { url: url.to_owned(), scheme: scheme.to_owned() });
            }
        };
        let mut options = Options::parse(&items)?;
        options.prefix = prefix;
        options.interface = whole.map(str::to_owned);
        if let Some(name) = interface {
            let link_local = bare.parse().is_ok_and(|ip: Ipv6Addr| ip.is_unicast_link_local());
            if !link_local || name.is_empty() || name.contains(['/', '%', ']', ' ']) {
                return Err(rule("an interface belongs to a link-local address, as in udp://[fe80::1%eth0]"));
            }
            options.interface = Some(name.to_owned());
        }
        if matches!(target, Target::Vfio { .. } | Target::VfioUser { .. }) && options != Options::default() {
            return Err(rule(
                "progress=, acks=, fault=, capture=, share= and options of shared memory belong to the software adapter; leave them \
                 out here",
            ));
        }
        let may_share =
            matches!(target, Target::Auto(_) | Target::Udp(_) | Target::Uring(_) | Target::Raw { .. });
        if options.share.is_some() && !may_share {
            return Err(rule(
                "share= belongs to auto://ADDRESS, udp://ADDRESS, uring://ADDRESS and raw://INTERFACE; leave it out here",
            ));
        }
        match (&options.shm, &target) {
            (None, _) | (_, Target::Shm(_)) => {}
            (Some(shm), Target::Auto(_)) if shm.dir.is_none() && shm.users.is_none() => {}
            (_, Target::Auto(_)) => {
                return Err(rule("dir= and users= belong to shm://DOMAIN; leave them out here"));
            }
            _ => {
                return Err(rule(
                    "dir= and users= belong to shm://DOMAIN, and ring=, isolated= and process_vm= to it and auto://ADDRESS; leave \
                     them out here",
                ));
            }
        }
        Ok(Self { target, options })
    }
}

impl fmt::Display for DeviceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bracketed = |ip: &Option<IpAddr>| match (ip, &self.options.interface) {
            (None, Some(interface)) => interface.clone(),
            (None, None) => self.options.prefix.map(|p| p.to_string()).unwrap_or_default(),
            (Some(IpAddr::V4(v4)), _) => v4.to_string(),
            (Some(IpAddr::V6(v6)), None) => format!("[{v6}]"),
            (Some(IpAddr::V6(v6)), Some(interface)) => format!("[{v6}%{interface}]"),
        };
        match &self.target {
            Target::Auto(ip) => write!(f, "auto://{}", bracketed(ip))?,
            Target::Udp(ip) => write!(f, "udp://{}", bracketed(ip))?,
            Target::Uring(ip) => write!(f, "uring://{}", bracketed(ip))?,
            Target::Shm(domain) => write!(f, "shm://{}", encode(domain))?,
            Target::Raw { interface, .. } => write!(f, "raw://{}", encode(interface))?,
            Target::Loopback(name) => write!(f, "loopback://{}", encode(name))?,
            Target::Vfio { function, .. } => write!(f, "vfio://{}", encode(function))?,
            Target::VfioUser { socket, .. } => {
                write!(f, "vfio-user://{}", encode(&socket.to_string_lossy()))?;
            }
        }
        let pci = match &self.target {
            Target::Vfio { options, .. } | Target::VfioUser { options, .. } => options.items(),
            _ => [const { None }; 6],
        };
        let o = &self.options;
        let raw = match &self.target {
            Target::Raw { options, .. } => *options,
            _ => RawOptions::default(),
        };
        let shm = o.shm.as_deref().cloned().unwrap_or_default();
        let given = [
            raw.ip.map(|ip| format!("ip={ip}")),
            (raw.version != RoceVersion::default()).then(|| format!("roce={}", raw.version)),
            raw.vlan.map(|id| format!("vlan={id}")),
            o.progress.map(|p| format!("progress={p}")),
            o.lazy_acks.map(|lazy| format!("acks={}", if lazy { "lazy" } else { "eager" })),
            o.fault.as_ref().map(|s| format!("fault={}", encode(&s.0))),
            o.capture.as_ref().map(|c| format!("capture={}", encode(&c.to_string_lossy()))),
            o.mtu.map(|m| format!("mtu={}", m.bytes())),
            o.share.map(|n| format!("share={}", share_name(n))),
            shm.dir.as_ref().map(|d| format!("dir={}", encode(&d.to_string_lossy()))),
            shm.users.map(|u| format!("users={}", if u == Users::Any { "any" } else { "own" })),
            shm.ring.map(|r| format!("ring={r}")),
            shm.isolated.map(|yes| format!("isolated={}", if yes { "yes" } else { "no" })),
            shm.process_vm.map(|p| format!("process_vm={}", process_vm_name(p))),
        ];
        for (i, option) in pci.into_iter().chain(given).flatten().enumerate() {
            write!(f, "{}{option}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl Options {
    /// Parses the options after the `?`.
    fn parse(items: &[&str]) -> Result<Self, UrlError> {
        let mut options = Self::default();
        for item in items {
            let (name, raw) = item.split_once('=').unwrap_or((item, ""));
            let value = decode("an option", raw)?;
            let repeated = match name {
                "progress" => options.progress.replace(parse_progress(&value)?).is_some(),
                "acks" => options.lazy_acks.replace(parse_acks(&value)?).is_some(),
                "fault" => options.fault.replace(value.parse()?).is_some(),
                "capture" if value.is_empty() => {
                    let rule = "give the file to write, as in capture=run.pcapng";
                    return Err(UrlError::Value { option: "capture", value, rule });
                }
                "capture" => options.capture.replace(value.into()).is_some(),
                "mtu" => options.mtu.replace(parse_mtu(&value)?).is_some(),
                "share" => options.share.replace(parse_share(&value)?).is_some(),
                "dir" if value.is_empty() => {
                    let rule = "give the folder that the processes share, as in dir=/run/lab";
                    return Err(UrlError::Value { option: "dir", value, rule });
                }
                "dir" => options.shm().dir.replace(value.into()).is_some(),
                "users" => options.shm().users.replace(parse_users(&value)?).is_some(),
                "ring" => options.shm().ring.replace(parse_ring(&value)?).is_some(),
                "isolated" => options.shm().isolated.replace(parse_isolated(&value)?).is_some(),
                "process_vm" => options.shm().process_vm.replace(parse_process_vm(&value)?).is_some(),
                _ => return Err(UrlError::UnknownOption { option: name.to_owned() }),
            };
            if repeated {
                return Err(UrlError::Repeated { option: name.to_owned() });
            }
        }
        Ok(options)
    }

    fn shm(&mut self) -> &mut ShmSettings {
        self.shm.get_or_insert_default()
    }

    /// These options, overridden by the options that `over` gives.
    #[must_use]
    pub fn overridden_by(self, over: Self) -> Self {
        Self {
            progress: over.progress.or(self.progress),
            lazy_acks: over.lazy_acks.or(self.lazy_acks),
            fault: over.fault.or(self.fault),
            capture: over.capture.or(self.capture),
            mtu: over.mtu.or(self.mtu),
            shm: over.shm.or(self.shm),
            share: over.share.or(self.share),
            interface: over.interface.or(self.interface),
            prefix: over.prefix.or(self.prefix),
        }
    }
}

impl FromStr for FaultSpec {
    type Err = UrlError;
    fn from_str(s: &str) -> Result<Self, UrlError> {
        s.parse::<FaultPlan>().map_err(UrlError::Fault)?;
        Ok(Self(s.to_owned()))
    }
}
impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PciOptions {
    /// Takes what belongs to an adapter behind vfio out of the options.
    fn parse(items: &mut Vec<&str>) -> Result<Self, UrlError> {
        let mut options = Self::default();
        let mut rest = Vec::new();
        for item in items.drain(..) {
            let (name, raw) = item.split_once('=').unwrap_or((item, ""));
            let value = decode("an option", raw)?;
            let parts = || value.split(',');
            let pairs = || parts().map(|p| p.split_once('=').unwrap_or((p, "")));
            let refuse = |option, rule| UrlError::Value { option, value: value.clone(), rule };
            let repeated = match name {
                "ip" => {
                    let all: Option<Vec<IpAddr>> = parts().map(|p| p.parse().ok()).collect();
                    let rule = "give addresses of the port's own, as in ip=10.0.0.2 or ip=10.0.0.2,fd00::2";
                    !std::mem::replace(&mut options.ip, all.ok_or_else(|| refuse("ip", rule))?).is_empty()
                }
                "neigh" => {
                    let one = |(ip, mac): (&str, &str)| Some((ip.parse().ok()?, parse_mac(mac)?));
                    let rule = "give each peer's address and MAC, as in neigh=10.0.0.3=02:00:00:00:00:03";
                    let all: Option<Vec<_>> = pairs().map(one).collect();
                    let all = all.ok_or_else(|| refuse("neigh", rule))?;
                    !std::mem::replace(&mut options.neighbours, all).is_empty()
                }
                "lid" => {
                    let lid = |s: &str| s.parse().ok().filter(|lid| (1..0xc000).contains(lid)).map(Lid::new);
                    let one = |(gid, l): (&str, &str)| Some((Gid::from_ip(gid.parse().ok()?), lid(l)?));
                    let rule = "give each peer's GID and its LID of 1 to 49151, as in lid=fe80::5=7";
                    let all: Option<Vec<_>> = pairs().map(one).collect();
                    let all = all.ok_or_else(|| refuse("lid", rule))?;
                    !std::mem::replace(&mut options.lids, all).is_empty()
                }
                "mtu" => options.mtu.replace(parse_mtu(&value)?).is_some(),
                "raise" => {
                    let yes = match value.as_str() {
                        "yes" => true,
                        "no" => false,
                        _ => {
                            return Err(refuse(
                                "raise",
                                "give yes, so that a port that is down is raised, or no",
                            ));
                        }
                    };
                    options.raise.replace(yes).is_some()
                }
                "wait" => {
                    let seconds = value.parse().ok().filter(|s: &u32| *s <= MAX_WAIT);
                    let seconds =
                        seconds.ok_or_else(|| refuse("wait", "give 0 to 3600 seconds, as in wait=30"))?;
                    options.wait.replace(Duration::from_secs(seconds.into())).is_some()
                }
                _ => {
                    rest.push(item);
                    continue;
                }
            };
            if repeated {
                return Err(UrlError::Repeated { option: name.to_owned() });
            }
        }
        *items = rest;
        Ok(options)
    }

    /// The options that are given, as they are written.
    fn items(&self) -> [Option<String>; 6] {
        let list =
            |name, parts: Vec<String>| (!parts.is_empty()).then(|| format!("{name}={}", parts.join(",")));
        let mac = |mac: &[u8; 6]| mac.map(|b| format!("{b:02x}")).join(":");
        [
            list("ip", self.ip.iter().map(IpAddr::to_string).collect()),
            list("neigh", self.neighbours.iter().map(|(ip, m)| format!("{ip}={}", mac(m))).collect()),
            list("lid", self.lids.iter().map(|(gid, lid)| format!("{gid}={}", lid.raw())).collect()),
            self.mtu.map(|mtu| format!("mtu={}", mtu.bytes())),
            self.raise.map(|yes| format!("raise={}", if yes { "yes" } else { "no" })),
            self.wait.map(|wait| format!("wait={}", wait.as_secs())),
        ]
    }
}

/// Whether a text can be an interface's name: it has a letter, and nothing that an address, a prefix or an option needs.
fn is_interface_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_graphic() && !b"/:%[]?&".contains(&b);
    text.bytes().all(fits) && text.bytes().any(|b| b.is_ascii_alphabetic())
}

fn parse_share(value: &str) -> Result<u16, UrlError> {
    match value {
        "yes" => Ok(SHARED_BY),
        "no" => Ok(0),
        n => n.parse().ok().filter(|n| (1..=MAX_SLOTS).contains(n)).ok_or_else(|| UrlError::Value {
            option: "share",
            value: value.to_owned(),
            rule: "use yes (64 processes), no, or the number of processes, 1 to 250",
        }),
    }
}

fn share_name(processes: u16) -> String {
    match processes {
        0 => "no".to_owned(),
        SHARED_BY => "yes".to_owned(),
        n => n.to_string(),
    }
}

fn parse_mac(s: &str) -> Option<[u8; 6]> {
    let byte = |p: &str| u8::from_str_radix(p, 16).ok().filter(|_| p.len() == 2 && !p.starts_with('+'));
    let bytes: Option<Vec<u8>> = s.split(':').map(byte).collect();
    bytes?.try_into().ok()
}

/// Takes what belongs to a raw device's place out of the options.
fn parse_raw(items: &mut Vec<&str>) -> Result<RawOptions, UrlError> {
    let (mut ip, mut version, mut vlan) = (None, None, None);
    let mut rest = Vec::new();
    for item in items.drain(..) {
        let (name, raw) = item.split_once('=').unwrap_or((item, ""));
        let value = decode("an option", raw)?;
        let refuse = |option, rule| UrlError::Value { option, value: value.clone(), rule };
        let repeated = match name {
            "ip" => {
                let parsed = value.parse::<IpAddr>();
                let rule = "give an address of the interface, as in ip=10.0.0.2 or ip=fd00::2";
                ip.replace(parsed.map_err(|_| refuse("ip", rule))?).is_some()
            }
            "roce" => {
                let parsed = match value.as_str() {
                    "1" => Ok(RoceVersion::V1),
                    "2" => Ok(RoceVersion::V2),
                    _ => Err(refuse("roce", "use 1 or 2")),
                };
                version.replace(parsed?).is_some()
            }
            "vlan" => {
                let parsed = value.parse::<u16>().ok().filter(|id| (1..=4094).contains(id));
                vlan.replace(parsed.ok_or_else(|| refuse("vlan", "a VLAN is 1 to 4094"))?).is_some()
            }
            _ => {
                rest.push(item);
                continue;
            }
        };
        if repeated {
            return Err(UrlError::Repeated { option: name.to_owned() });
        }
    }
    *items = rest;
    Ok(RawOptions { ip, version: version.unwrap_or_default(), vlan, ..RawOptions::default() })
}

fn parse_progress(value: &str) -> Result<Progress, UrlError> {
    value.parse().map_err(|_| UrlError::Value {
        option: "progress",
        value: value.to_owned(),
        rule: "use inline, thread or adaptive",
    })
}

fn parse_acks(value: &str) -> Result<bool, UrlError> {
    match value {
        "eager" => Ok(false),
        "lazy" => Ok(true),
        _ => Err(UrlError::Value { option: "acks", value: value.to_owned(), rule: "use eager or lazy" }),
    }
}

fn parse_mtu(value: &str) -> Result<Mtu, UrlError> {
    value.parse().ok().and_then(Mtu::from_bytes).ok_or_else(|| UrlError::Value {
        option: "mtu",
        value: value.to_owned(),
        rule: "a path MTU is 256, 512, 1024, 2048 or 4096",
    })
}

fn parse_isolated(value: &str) -> Result<bool, UrlError> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(UrlError::Value {
            option: "isolated",
            value: value.to_owned(),
            rule: "give yes, so that no memory but the message rings is shared, or no",
        }),
    }
}

const PROCESS_VM: [(ProcessVm, &str); 3] =
    [(ProcessVm::No, "no"), (ProcessVm::Yes, "yes"), (ProcessVm::Any, "any")];

fn process_vm_name(value: ProcessVm) -> &'static str {
    PROCESS_VM.iter().find(|(p, _)| *p == value).map_or("yes", |(_, name)| name)
}

fn parse_process_vm(value: &str) -> Result<ProcessVm, UrlError> {
    let found = PROCESS_VM.iter().find(|(_, name)| *name == value);
    found.map(|(p, _)| *p).ok_or_else(|| UrlError::Value {
        option: "process_vm",
        value: value.to_owned(),
        rule: "give yes, no, or any, which lets all processes of this user read this one where Yama restricts that",
    })
}

fn parse_users(value: &str) -> Result<Users, UrlError> {
    match value {
        "own" => Ok(Users::Own),
        "any" => Ok(Users::Any),
        _ => Err(UrlError::Value {
            option: "users",
            value: value.to_owned(),
            rule: "use own (processes of this user are peers) or any",
        }),
    }
}

fn parse_ring(value: &str) -> Result<usize, UrlError> {
    let (digits, unit) = match value.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => value.strip_suffix(['M', 'm']).map_or((value, 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
    bytes.filter(|b| b.is_power_of_two() && (1 << 16..=1 << 26).contains(b)).ok_or_else(|| UrlError::Value {
        option: "ring",
        value: value.to_owned(),
        rule: "a ring has a power of two of bytes, from 64K to 64M",
    })
}

/// Takes `%XX` apart.
fn decode(what: &'static str, s: &str) -> Result<String, UrlError> {
    let refuse = |rule| UrlError::Value { option: what, value: s.to_owned(), rule };
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || bytes.next().and_then(|d| char::from(d).to_digit(16));
        match (digit(), digit()) {
            (Some(hi), Some(lo)) => out.push((hi * 16 + lo) as u8),
            _ => return Err(refuse("two hexadecimal digits follow a %; write %25 for % itself")),
        }
    }
    String::from_utf8(out).map_err(|_| refuse("the bytes are not UTF-8"))
}

fn encode(s: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/,=:".contains(&b);
    s.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests;
