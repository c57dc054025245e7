//! The command line: what can be asked for, and how each part ends.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::perf::plan::{DEFAULT_SIZES, Layer, Memory, Op, Service, Size};
use crate::perf::portals::{DEFAULT_DEPTHS, Depths, Eager, Entries};
use crate::url::{DeviceUrl, FaultSpec};
use crate::{devinfo, interrupt, perf, pingpong, run, trace, warnings};
use softhca::Progress;

pub use crate::interrupt::interrupted;

/// The fields of a row of `hca perf --json`, in their order.
pub const PERF_FIELDS: &str = "fabric service op layer size p50_ns p99_ns p999_ns mean_ns max_ns gb_per_s \
     msgs_per_s count errors progress placement cpu peer_cpu offload eager_bytes depth entries";

const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

const DEVICES: &str = "\
Devices:
  auto://ADDRESS      as udp://, and shared memory by itself where the peer of a reliable connection is
                      an auto:// device of this user on this machine (default, but for perf: udp://)
  udp://ADDRESS       RoCEv2 over UDP sockets, bound to ADDRESS, port 4791
  uring://ADDRESS     the same through io_uring, or plain sockets (with a note) where the kernel has none;
                      without ADDRESS a free loopback one is taken
  shm://DOMAIN        shared memory between the processes of this machine that name the DOMAIN
  raw://INTERFACE     Ethernet frames on an interface, with ?ip=ADDRESS&roce=1|2&vlan=ID (needs CAP_NET_RAW)
  loopback://NAME     inside one process
  vfio://FUNCTION     a ConnectX adapter bound to vfio-pci, as vfio://0000:03:00.0, with ?ip=ADDRESS
  vfio-user://SOCKET  one that a server offers at a socket, as `hca serve` does
 with ?option=value, joined by &: progress=inline|thread|adaptive, mtu=BYTES, capture=FILE.pcapng,
 fault=loss=P,dup=P,reorder=P,corrupt=P,delay=P:MIN-MAX,seed=N (P from 0 to 1; tx.loss, rx.loss for one
 direction; delays as 10us or 2ms). With shm:// also dir=FOLDER (sockets there, for containers that share
 it), users=own|any (whose processes are peers), and with shm:// and auto:// ring=BYTES (64K to 64M, to
 each peer), isolated=yes|no (no memory but the rings is shared) and process_vm=yes|no|any (whether long
 messages out of the program's own memory are fetched from its process; any: also where Yama asks).
 The environment variable HCA_DEVICE takes the place of a device that is not given.";

const EXAMPLES: &str = "\
Examples:
  hca devinfo                                   limits and counters of the default device
  hca perf                                      latency, bandwidth and rate between two processes
  hca perf --op send --size 8,4K --plot a.svg   two rows, and a drawing
  hca perf --listen 10.0.0.1                    on one host, and on another:
  hca perf --connect 10.0.0.1
  hca perf --layer portals                      the same of Portals
  hca portals trace                             why a message does not match
  hca pingpong rc --server                      against ibv_rc_pingpong on another host
  hca run -n 4 ./program                        four processes that know each other
  hca serve --pci /tmp/a.sock                   the adapter as a PCI function, for a virtual machine";

const PERF_EXAMPLES: &str = "\
Examples:
  hca perf
  hca perf --op write --size 64K,1M --duration 3
  hca perf --service ud --op send --json
  hca perf --fault loss=0.01,seed=7 --capture lossy.pcapng
  hca perf --layer portals --fabric shm
  hca perf --layer portals --depth 0,1000,100000      what entries before the right one cost
  hca perf --layer portals --op put --eager 1K,4K,16K --size 512,2K,8K,32K
  hca perf --layer portals --offload off --op put-ack
  hca perf --device raw://v0 --peer-netns far --peer-device raw://v1
  hca perf --listen 10.0.0.1          (first host)
  hca perf --connect 10.0.0.1         (second host)

Latency is one way (half of a round trip) for send and write, and from post to completion for read
and atomic. With --layer portals it is one way for put (half of a round trip, each side told by an event),
and from the call to the event for put-ack, get and atomic (fetch-add of as many words as the size has).
Streams of short puts are acknowledged every 64th, and the target takes the event of each. gb_per_s is 10^9 bytes of payload a second. A write of more than 8 bytes is timed with an
8-byte flag written behind it, since the order inside one long write is not promised.

Fields of --json, one object a row, only ever added to:
  fabric service op layer size p50_ns p99_ns p999_ns mean_ns max_ns gb_per_s msgs_per_s count errors
  progress placement cpu peer_cpu offload eager_bytes depth entries
The last four are null but for --layer portals, and depth and entries but for --depth. placement says how the CPUs of both processes stood: near, far, mixed (it changed), unknown. Compare
only rows of one placement.

--listen serves one host after the other, and gives up on one that is silent while nothing is measured.";

/// RDMA anywhere: a software host channel adapter, verbs over RoCEv2.
#[derive(Debug, Parser)]
#[command(name = "hca", version, about, after_help = EXIT_CODES,
    after_long_help = format!("{EXAMPLES}\n\n{DEVICES}\n\n{EXIT_CODES}"))]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows what a device is and can: limits, port, what its fabric found, counters
    #[command(after_long_help = format!("{DEVICES}\n\n{EXIT_CODES}"))]
    Devinfo(DevinfoArgs),
    /// Measures latency, bandwidth and message rate between two processes
    #[command(after_long_help = format!("{PERF_EXAMPLES}\n\n{DEVICES}\n\n{EXIT_CODES}"))]
    Perf(Box<PerfArgs>),
    /// Looks into Portals: why a message does not match
    #[command(subcommand)]
    Portals(PortalsCommand),
    /// Bounces messages with another host; speaks the exchange of ibv_rc_pingpong and its sisters
    #[command(after_long_help = format!("{PINGPONG_EXAMPLES}\n\n{DEVICES}\n\n{EXIT_CODES}"))]
    Pingpong(PingpongArgs),
    /// Starts the processes of a job here, which find each other by hca-job, or by MPI
    #[command(after_long_help = format!("{RUN_EXAMPLES}\n\n{DEVICES}\n\n{RUN_EXIT_CODES}"))]
    Run(RunArgs),
    /// Serves the software adapter as ConnectX PCI functions at vfio-user sockets
    #[cfg(feature = "pci")]
    #[command(after_long_help = format!("{SERVE_EXAMPLES}\n\n{DEVICES}\n\n{EXIT_CODES}"))]
    Serve(ServeArgs),
    /// The process that outlives `run` when that is killed
    #[command(name = run::guard::COMMAND, hide = true)]
    RunGuard,
    /// The other process of a measurement
    #[command(name = perf::PEER_COMMAND, hide = true)]
    Peer(PeerArgs),
}

/// The peer of a measurement, as the measuring process starts it.
#[derive(Clone, Debug, Parser)]
pub struct PeerArgs {
    /// The device to open
    pub device: DeviceUrl,
    /// The network namespace to be in
    #[arg(long)]
    pub netns: Option<PathBuf>,
    /// The CPU to be bound to
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// `hca portals`.
#[derive(Clone, Debug, Subcommand)]
pub enum PortalsCommand {
    /// Tells each message's way through match lists: which entries were asked, which took it, and why not
    #[command(after_long_help = format!("{TRACE_EXAMPLES}\n\n{TRACE_EXIT_CODES}"))]
    Trace(TraceArgs),
}

const TRACE_EXAMPLES: &str = "\
Examples:
  hca portals trace                                 all scenarios that come with the command
  hca portals trace --scenario unexpected
  hca portals trace my-lists.txt                    one's own
  hca portals trace --json - < my-lists.txt

A scenario is a text, a statement a line; # begins a comment:
  portal 4                                          flow-control, only-use-once, only-truncate, events=COUNT
  post inbox portal=4 bits=0x10 ignore=0xf          also list=priority|overflow, from=any|SENDER|NODE:PROCESS
                                                    (* is any), uid=, length=64, min-free=, options=put,get,
                                                    use-once,manage-local,may-align,no-truncate,no-header
  put portal=4 bits=0x17 length=8                   also get, fetch-add; offset=, by=SENDER
  put portal=4 bits=0x99 expect=dropped             or ok, disabled, permission, operation
  sender b uid=1000                                 another process; the first one is called a
  unlink inbox
  disable 4
  enable 4

Fields of --json, one object a line of the scenario, only ever added to: scenario line statement compared
(entry list bits ignore from takes why) outcome (fail entry mlength offset text wanted expected) events
(event entry mlength text).

All of it happens in this process. In the table, - is an entry that was asked and did not take the message,
= the one that did; > is what its sender hears, ! an event at the target.";

const TRACE_EXIT_CODES: &str = "Exit codes: 0 success, 1 failed, 2 wrong usage or a scenario that is none, 3 a message ended \
     otherwise than its line expects, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

/// `hca portals trace`.
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// A scenario file; - is standard input (default: the scenarios that come with the command)
    pub file: Option<PathBuf>,
    /// Scenarios that come with the command, by name
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with = "file")]
    pub scenario: Vec<String>,
    /// List these scenarios
    #[arg(long, conflicts_with_all = ["file", "scenario"])]
    pub list: bool,
    /// Print one JSON object a line of the scenario, and nothing else
    #[arg(long)]
    pub json: bool,
}

/// Where the device comes from, for every command.
#[derive(Clone, Debug, Default, Args)]
pub struct DeviceArgs {
    /// The device to use, as udp://127.0.0.2 (default: HCA_DEVICE, then auto://; for perf udp://)
    #[arg(long, value_name = "URL")]
    pub device: Option<DeviceUrl>,
    /// What carries the packets, on an address that is chosen
    #[arg(long, value_enum, conflicts_with = "device")]
    pub fabric: Option<FabricName>,
    /// Who does the adapter's work: inline, thread or adaptive
    #[arg(long, value_name = "MODE")]
    pub progress: Option<Progress>,
    /// Faults of the network, as loss=0.01,seed=7
    #[arg(long, value_name = "KEY=VALUE,..")]
    pub fault: Option<FaultSpec>,
    /// Write every frame of this end to a file that Wireshark opens
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
}

/// Fabrics that need no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FabricName {
    /// UDP sockets.
    Udp,
    /// UDP through io_uring, or through plain sockets where the kernel has none.
    Uring,
    /// Shared memory between processes of this machine.
    Shm,
    /// Ethernet frames on the loopback interface.
    Raw,
}

/// `hca devinfo`.
#[derive(Clone, Debug, Args)]
pub struct DevinfoArgs {
    /// The device (default: HCA_DEVICE, then auto://)
    pub url: Option<DeviceUrl>,
    /// The same, as other commands take it
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub device: Option<DeviceUrl>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write every frame to a file that Wireshark opens
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
}

/// `hca perf`.
#[derive(Clone, Debug, Args)]
pub struct PerfArgs {
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Programming interface to measure
    #[arg(long, value_enum, default_value_t = Layer::Verbs)]
    pub layer: Layer,
    /// Operations to measure (default: all of the layer)
    #[arg(long, value_enum, value_delimiter = ',')]
    pub op: Vec<Op>,
    /// Transport services to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Service::Rc])]
    pub service: Vec<Service>,
    /// Message sizes, as 8,4096,64K,4M (an atomic has 8 bytes)
    #[arg(long, value_delimiter = ',', default_values_t = DEFAULT_SIZES)]
    pub size: Vec<Size>,
    /// Portals: puts past so many other entries, in place of sizes (alone: 0 to 100000)
    #[arg(long, value_name = "ENTRIES,..", num_args = 0..=1, default_missing_value = DEFAULT_DEPTHS)]
    pub depth: Option<Depths>,
    /// Portals: which entries these are
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Entries::Exact, Entries::Wildcard])]
    pub entries: Vec<Entries>,
    /// Portals: whether the adapter matches, or the program's calls do (default: on)
    #[arg(long, value_enum)]
    pub offload: Option<Switch>,
    /// Portals: the longest message that goes with its header; of several, each has its rows
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    pub eager: Vec<Eager>,
    /// Seconds for each row
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0.8")]
    pub duration: Duration,
    /// Print one JSON object a row, and nothing else, to standard output
    #[arg(long)]
    pub json: bool,
    /// Draw latency and bandwidth against size
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Be the peer of a measurement that another host starts with --connect
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = control_address, conflicts_with_all = ["connect", "plot", "json"])]
    pub listen: Option<SocketAddr>,
    /// Measure against a host that runs --listen
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = control_address)]
    pub connect: Option<SocketAddr>,
    /// With --listen: end after one measurement
    #[arg(long, requires = "listen")]
    pub once: bool,
    /// With --listen: memory that one measurement may take here
    #[arg(long, value_name = "BYTES", default_value_t = perf::DEFAULT_MEMORY)]
    pub memory: Memory,
    /// The device of the peer process (default: the same fabric on an address of its own)
    #[arg(long, value_name = "URL", conflicts_with_all = ["listen", "connect"])]
    pub peer_device: Option<DeviceUrl>,
    /// Run the peer process in this network namespace: a name of `ip netns`, or a path
    #[arg(long, value_name = "NAME", conflicts_with_all = ["listen", "connect"])]
    pub peer_netns: Option<String>,
    /// Leave the processes unbound instead of binding each to a CPU of its own
    #[arg(long)]
    pub no_pin: bool,
}

impl PerfArgs {
    /// What does not go together, if anything.
    fn misuse(&self) -> Option<&'static str> {
        let of_portals = self.depth.is_some() || self.offload.is_some() || !self.eager.is_empty();
        if self.layer == Layer::Verbs && of_portals && self.listen.is_none() {
            return Some("--depth, --offload and --eager are of Portals: add --layer portals");
        }
        if self.layer == Layer::Portals && self.service != [Service::Rc] {
            return Some("Portals goes over reliable connections: leave --service away");
        }
        (self.depth.is_some() && !self.op.iter().all(|&op| op == Op::Put))
            .then_some("--depth measures puts: leave --op away")
    }
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

const PINGPONG_EXAMPLES: &str = "\
Examples:
  hca pingpong rc --server           says where it waits, as 127.0.0.2:18515; then, beside it:
  hca pingpong rc 127.0.0.2
  hca pingpong rc --server --device udp://10.0.0.1            then, on another host:
  ibv_rc_pingpong -g 1 10.0.0.1                               (the GID index of a RoCEv2 GID)
  hca pingpong ud 10.0.0.2 --device udp://10.0.0.1 --size 1024   against ibv_ud_pingpong -g 1 -s 1024

The end that waits does so on its device's own address, and says which on standard error.
Both ends need the same size and iters.";

/// `hca pingpong`.
#[derive(Clone, Debug, Args)]
pub struct PingpongArgs {
    /// Transport service
    #[arg(value_enum)]
    pub service: Service,
    /// The host that waits; left out: this one waits
    #[arg(conflicts_with = "server")]
    pub host: Option<String>,
    /// Wait for the other end (as when HOST is left out)
    #[arg(long)]
    pub server: bool,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// TCP port of the exchange; 0 takes a free one to wait on
    #[arg(short, long, default_value_t = pingpong::DEFAULT_PORT)]
    pub port: u16,
    /// Address to wait on for the exchange (default: the device's own)
    #[arg(long, value_name = "ADDR", conflicts_with = "host")]
    pub bind: Option<std::net::IpAddr>,
    /// Bytes a message (default: 4096; ud: 1024, or the path MTU if that is less)
    #[arg(short, long)]
    pub size: Option<Size>,
    /// Messages in each direction
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: u32,
    /// Path MTU in bytes (rc and uc)
    #[arg(short, long, default_value = "1024", value_parser = path_mtu)]
    pub mtu: hca_core::Mtu,
    /// Receive requests to keep posted
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub rx_depth: u32,
    /// GID index, for command lines of ibv_*_pingpong; a device has one GID, so only 0 is taken
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=0))]
    pub gid_idx: u32,
    /// Validate received bytes, which ibv_*_pingpong send, too; with -c they zero the first byte of each page
    #[arg(short, long)]
    pub chk: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

const RUN_EXAMPLES: &str = "\
Examples:
  hca run -n 4 ./program --its-option
  hca run -n 2 --device shm://lab --prefix ./program
  hca run -n 8 --timeout 60 --env RUST_LOG=debug -- ./program

Each process finds the others by PMI-1 (PMI_FD, PMI_RANK, PMI_SIZE), as under mpiexec. Rank 0 reads
this command's standard input where that is no terminal; the others have none. Output comes line by
line. When one fails, all others are told to end (TERM), and killed after --grace; so they are at
Ctrl-C. Who reads the output has as long, then; before, nothing is dropped. Name a device that each can open: auto://, udp://, shm://lab; an address serves one only.";

const RUN_EXIT_CODES: &str = "\
Exit codes: 0 all processes succeeded; that of the first that failed, 128 and its number if a
signal ended it; 124 after --timeout, 127 if the program can't be started, 1 failed otherwise,
2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

/// `hca run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Processes to start
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub processes: u32,
    /// The device of each process, by HCA_DEVICE, as auto:// or shm://lab
    #[arg(long, value_name = "URL")]
    pub device: Option<DeviceUrl>,
    /// End the job if it takes longer
    #[arg(long, value_name = "SECONDS", value_parser = long_seconds)]
    pub timeout: Option<Duration>,
    /// How long processes that are told to end have until they are killed
    #[arg(long, value_name = "SECONDS", value_parser = long_seconds, default_value = "5")]
    pub grace: Duration,
    /// Begin each line with its rank in brackets (default: several processes on a terminal)
    #[arg(long, overrides_with = "no_prefix")]
    pub prefix: bool,
    /// Leave lines as they are
    #[arg(long)]
    pub no_prefix: bool,
    /// Give the processes a variable of the environment; may be given again
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// The program, and what it is given
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

#[cfg(feature = "pci")]
const SERVE_EXAMPLES: &str = "\
Examples:
  hca serve --pci /tmp/a.sock --pci /tmp/b.sock           two functions, which reach each other
  hca serve --pci /tmp/a.sock --device udp://10.0.0.1     one that reaches other hosts, too
  hca serve --pci /tmp/a.sock --port roce                 with an Ethernet port, for RoCE

A line for each function says when clients may come. A client is QEMU 10.1 or later, with its memory in a
memory-backend-memfd with share=on, and
  -device '{\"driver\":\"vfio-user-pci\",\"rombar\":0,\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/a.sock\"}}'
or another driver that speaks vfio-user. Each socket has one client at a time; when it goes, the next one
finds the function as new. All functions share the adapter and its address. Without a device they reach
each other only (loopback://). Ctrl-C ends it.";

/// `hca serve`.
#[cfg(feature = "pci")]
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Serve a function at this socket; may be given again
    #[arg(long, value_name = "SOCKET", required = true)]
    pub pci: Vec<PathBuf>,
    /// The adapter behind the functions (default: HCA_DEVICE, then loopback://)
    #[arg(long, value_name = "URL")]
    pub device: Option<DeviceUrl>,
    /// What port the functions have: ib or roce
    #[arg(long, value_name = "KIND", default_value_t)]
    pub port: softhca_pci::PortKind,
}

/// What a command reports when it could not do its work.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    // Both take signals by themselves: one passes them on, the other takes none.
    match &cli.command {
        Command::Run(args) => return run::run(args),
        Command::RunGuard => {
            run::guard::guard();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    warnings::listen();
    // The peer is told to stop by the process that started it.
    let peer = matches!(cli.command, Command::Peer(_));
    if let Command::Perf(args) = &cli.command
        && let Some(why) = args.misuse()
    {
        Cli::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
    interrupt::listen(peer);
    let result = match cli.command {
        Command::Devinfo(args) => devinfo::devinfo(&args),
        Command::Perf(args) => perf::perf(&args),
        Command::Portals(PortalsCommand::Trace(args)) => match trace::trace(&args) {
            Ok(trace::Ended::Otherwise) => return ExitCode::from(3),
            Err(e) if e.is::<trace::TraceError>() => {
                eprintln!("hca: {e}");
                return ExitCode::from(2);
            }
            other => other.map(|_| ()),
        },
        Command::Pingpong(args) => pingpong::pingpong(&args),
        #[cfg(feature = "pci")]
        Command::Serve(args) => crate::serve::serve(&args),
        Command::Run(_) | Command::RunGuard => unreachable!("they have returned"),
        Command::Peer(args) => perf::peer::serve_standard_streams(&args),
    };
    match (interrupt::exit_code(), result) {
        (Some(code), _) if !peer => ExitCode::from(code),
        (_, Ok(())) => ExitCode::SUCCESS,
        (_, Err(e)) => {
            eprintln!("hca: {e}");
            ExitCode::from(1)
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let refuse = || format!("`{text}` is no time from 0.02 to 3600 seconds");
    let s = text.parse::<f64>().map_err(|_| refuse())?;
    if (0.02..=3600.0).contains(&s) { Ok(Duration::from_secs_f64(s)) } else { Err(refuse()) }
}

fn long_seconds(text: &str) -> Result<Duration, String> {
    let refuse = || format!("`{text}` is no time from 0.02 to 1000000 seconds");
    let s = text.parse::<f64>().map_err(|_| refuse())?;
    if (0.02..=1e6).contains(&s) { Ok(Duration::from_secs_f64(s)) } else { Err(refuse()) }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no variable: write NAME=VALUE")),
    }
}

fn path_mtu(text: &str) -> Result<hca_core::Mtu, String> {
    let refuse = || format!("`{text}` is no path MTU: use 256, 512, 1024, 2048 or 4096");
    text.parse().ok().and_then(hca_core::Mtu::from_bytes).ok_or_else(refuse)
}

fn control_address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    text.parse()
        .or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, perf::CONTROL_PORT)))
        .map_err(|_| format!("`{text}` is no address: write an IP address, or ADDRESS:PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_exit_codes_and_the_devices() {
        let mut command = Cli::command();
        let serve = cfg!(feature = "pci").then_some("serve");
        for name in ["devinfo", "perf", "pingpong", "run"].into_iter().chain(serve) {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(help.contains("130") && help.contains("udp://ADDRESS"), "{name}: {help}");
        }
        let perf = command.find_subcommand_mut("perf").unwrap().render_long_help().to_string();
        for field in PERF_FIELDS.split_whitespace() {
            assert!(perf.contains(field), "the help does not document {field}");
        }
    }

    #[test]
    fn control_addresses_take_a_port_or_the_usual_one() {
        assert_eq!(control_address("10.0.0.1").unwrap(), "10.0.0.1:18516".parse().unwrap());
        assert_eq!(control_address("10.0.0.1:99").unwrap(), "10.0.0.1:99".parse().unwrap());
        assert_eq!(control_address("::1").unwrap(), "[::1]:18516".parse().unwrap());
        assert_eq!(control_address("[::1]:7").unwrap(), "[::1]:7".parse().unwrap());
        assert!(control_address("host").unwrap_err().contains("host"));
    }
}
