//! The command line: the commands and their options, and exit codes.

#[cfg(test)]
mod documents;
mod help;
pub(crate) mod pci;

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use hca::{DeviceUrl, FaultSpec};
use hca_perf::layers::{Kind, layer_if_asked};
use hca_perf::plan::{DEFAULT_SIZES, Layer, Memory, Op, Service, Size};
use hca_perf::portals::{DEFAULT_DEPTHS, Depths, Eager, Entries};
use hca_perf::{CONTROL_PORT, DEFAULT_MEMORY, Failure, PEER_COMMAND, PeerArgs, interrupt, peer};
use softhca::Progress;

use self::help::{
    COMPLETIONS_EXAMPLES, DEVICES, DEVICES_EXAMPLES, DEVINFO_EXAMPLES, EXAMPLES, EXEC_EXAMPLES,
    EXEC_EXIT_CODES, EXIT_CODES, LIST_EXAMPLES, LOGP_EXAMPLES, MAN_EXAMPLES, NAMES, PERF_EXAMPLES,
    PERF_FIGURES, PERF_TOPICS, PING_EXAMPLES, PINGPONG_EXAMPLES, RUN_EXAMPLES, RUN_EXIT_CODES,
    SERVE_EXAMPLES, SHOWN_EXIT_CODES, STAT_EXAMPLES, TRACE_EXAMPLES, TRACE_EXIT_CODES,
};
use crate::output::{OutputError, tell};
use crate::{devinfo, exec, list, logp, perf, ping, pingpong, run, serve, stat, trace, warnings};

/// RDMA anywhere: a software host channel adapter, verbs over RoCEv2.
#[derive(Debug, Parser)]
#[command(name = "hca", version, about, after_help = EXIT_CODES,
    after_long_help = format!("{EXAMPLES}\n\n{NAMES}\n\n{EXIT_CODES}"))]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows a device: limits, port, network, counters
    #[command(after_long_help = format!("{DEVINFO_EXAMPLES}\n\n{NAMES}\n\n{EXIT_CODES}"))]
    Devinfo(DevinfoArgs),
    /// Lists devices that can be opened here, and says why others cannot
    #[command(after_long_help = format!("{LIST_EXAMPLES}\n\n{SHOWN_EXIT_CODES}"))]
    List(ListArgs),
    /// Measures latency, bandwidth and message rate between two processes
    #[command(after_help = format!("{PERF_EXAMPLES}\n\n{PERF_TOPICS}\n\n{EXIT_CODES}"))]
    Perf(Box<PerfArgs>),
    /// Measures the parameters of LogP of each layer: latency, overheads, gap, and the gap of a byte
    #[command(after_long_help = format!("{LOGP_EXAMPLES}\n\n{NAMES}\n\n{EXIT_CODES}"))]
    Logp(LogpArgs),
    /// Tells whether a host is reached, by which way, and the round-trip time
    #[command(after_long_help = format!("{PING_EXAMPLES}\n\n{NAMES}\n\n{EXIT_CODES}"))]
    Ping(PingArgs),
    /// Exchanges messages with another host, compatible with ibv_rc_pingpong and its siblings
    #[command(after_long_help = format!("{PINGPONG_EXAMPLES}\n\n{NAMES}\n\n{EXIT_CODES}"))]
    Pingpong(PingpongArgs),
    /// Shows how Portals messages match
    #[command(subcommand)]
    Portals(PortalsCommand),
    /// Starts the processes of a job on this machine; they find each other by PMI-1 (hca-job, MPI)
    #[command(after_long_help = format!("{RUN_EXAMPLES}\n\n{NAMES}\n\n{RUN_EXIT_CODES}"))]
    Run(RunArgs),
    /// Starts a program that speaks libibverbs or librdmacm, unmodified, on a device of this project
    #[command(after_long_help = format!("{EXEC_EXAMPLES}\n\n{NAMES}\n\n{EXEC_EXIT_CODES}"))]
    Exec(ExecArgs),
    /// Serves the software adapter as ConnectX PCI functions at vfio-user sockets
    #[command(after_long_help = format!("{SERVE_EXAMPLES}\n\n{NAMES}\n\n{EXIT_CODES}"))]
    Serve(ServeArgs),
    /// Shows the counters of running adapters of this user, by process and queue pair
    #[command(after_long_help = format!("{STAT_EXAMPLES}\n\n{SHOWN_EXIT_CODES}"))]
    Stat(StatArgs),
    /// Explains what `hca perf` measures, and the fields of its rows
    #[command(after_long_help = format!("{PERF_FIGURES}\n\n{EXIT_CODES}"))]
    PerfFigures,
    /// Lists the devices that programs under `hca exec` see; its help explains the names of devices and their options
    #[command(after_long_help = format!("{DEVICES_EXAMPLES}\n\n{DEVICES}\n\n{EXIT_CODES}"))]
    Devices(ListArgs),
    /// Writes the completions of a shell to standard output
    #[command(after_long_help = format!("{COMPLETIONS_EXAMPLES}\n\n{EXIT_CODES}"))]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes manual pages to a folder
    #[command(after_long_help = format!("{MAN_EXAMPLES}\n\n{EXIT_CODES}"))]
    Man {
        /// The folder, which is made if it is not there
        folder: PathBuf,
    },
    /// The process that outlives `run` when that is killed
    #[command(name = run::guard::COMMAND, hide = true)]
    RunGuard,
    /// The other process of a measurement
    #[command(name = PEER_COMMAND, hide = true)]
    Peer(PeerArgs),
}

/// `hca portals`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PortalsCommand {
    /// Shows which entries each message was compared with, which entry took it, and why the others did not
    #[command(after_long_help = format!("{TRACE_EXAMPLES}\n\n{TRACE_EXIT_CODES}"))]
    Trace(TraceArgs),
}

/// `hca portals trace`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceArgs {
    /// A scenario file; - is standard input (default: the built-in scenarios)
    pub file: Option<PathBuf>,
    /// Built-in scenarios, by name
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with = "file")]
    pub scenario: Vec<String>,
    /// List the built-in scenarios
    #[arg(long, conflicts_with_all = ["file", "scenario"])]
    pub list: bool,
    /// Print one JSON object for each line of the scenario, and nothing else
    #[arg(long)]
    pub json: bool,
}

/// Where the device comes from, for every command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DeviceArgs {
    /// The device, as udp://127.0.0.2 (default: HCA_DEVICE, then as `hca help devices` says)
    #[arg(long, value_name = "URL")]
    pub device: Option<DeviceUrl>,
    /// The network to use; the address is chosen
    #[arg(long, value_enum, conflicts_with = "device")]
    pub fabric: Option<FabricName>,
    /// Progress mode, which says which threads run the adapter: inline, thread or adaptive
    #[arg(long, value_name = "MODE")]
    pub progress: Option<Progress>,
    /// Faults of the network, as loss=0.01,seed=7
    #[arg(long, value_name = "KEY=VALUE,..")]
    pub fault: Option<FaultSpec>,
    /// Write every frame of this end to a pcapng file, for Wireshark
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
}

impl DeviceArgs {
    /// Whether an argument says anything about the device.
    pub(crate) fn is_said(&self) -> bool {
        let Self { device, fabric, progress, fault, capture } = self;
        device.is_some() || fabric.is_some() || progress.is_some() || fault.is_some() || capture.is_some()
    }
}

/// Fabrics that need no address; `hca help devices` explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FabricName {
    Udp,
    Uring,
    Shm,
    Raw,
}

/// `hca devinfo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DevinfoArgs {
    /// The device, as before there was --device
    #[arg(hide = true, conflicts_with_all = ["device", "fabric"])]
    pub url: Option<DeviceUrl>,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `hca list` and `hca devices`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

/// `hca ping`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PingArgs {
    /// The host, which runs `hca ping --listen` or `hca perf --listen`
    #[arg(value_name = "ADDR[:PORT]", value_parser = control_address, required_unless_present_any = ["listen", "once"])]
    pub address: Option<SocketAddr>,
    /// Answer other hosts at this address of this host
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = control_address, conflicts_with_all = ["address", "json"])]
    pub listen: Option<SocketAddr>,
    /// With --listen: end after one host
    #[arg(long, requires = "listen")]
    pub once: bool,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `hca logp`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LogpArgs {
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Layers (default: all)
    #[arg(long, value_name = "LAYER,..", value_enum, value_delimiter = ',')]
    pub layer: Vec<Kind>,
    /// Seconds for a measurement, of which a layer has some twelve
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0.25")]
    pub duration: Duration,
    /// Print one JSON object for each layer, and nothing else
    #[arg(long)]
    pub json: bool,
    /// The device of the peer process (default: the same fabric on an address of its own)
    #[arg(long, value_name = "URL")]
    pub peer_device: Option<DeviceUrl>,
    /// Do not bind each process to a CPU of its own
    #[arg(long)]
    pub no_pin: bool,
}

/// `hca stat`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatArgs {
    /// Show figures of a second, again and again, as top does
    #[arg(long)]
    pub watch: bool,
    /// With --watch: seconds between two looks
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1", requires = "watch")]
    pub interval: Duration,
    /// With --watch: end after so many looks
    #[arg(long, value_name = "N", requires = "watch")]
    pub count: Option<u32>,
    /// Show this process only
    #[arg(long, value_name = "PID", value_parser = process_number)]
    pub pid: Option<u32>,
    /// Print one JSON object; with --watch, one for each look
    #[arg(long)]
    pub json: bool,
}

/// `hca perf`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PerfArgs {
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Programming interface to measure: verbs or portals
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Layer::Verbs)]
    pub layer: Layer,
    /// Operations: send, write, read, atomic; of Portals put, put-ack, get, atomic (default: all of the layer)
    #[arg(long, value_name = "OP,..", value_enum, hide_possible_values = true, value_delimiter = ',')]
    pub op: Vec<Op>,
    /// Transport services: rc, uc, ud
    #[arg(long, value_name = "SERVICE,..", value_enum, hide_possible_values = true, value_delimiter = ',', default_values_t = [Service::Rc])]
    pub service: Vec<Service>,
    /// Message sizes (default: 8,64,256,1K,4K,16K,64K,256K,1M,4M; an atomic has 8 bytes)
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_values_t = DEFAULT_SIZES, hide_default_value = true, conflicts_with = "depth")]
    pub size: Vec<Size>,
    /// Portals: measure puts behind so many other entries, instead of sizes (alone: 0 to 100000)
    #[arg(long, value_name = "ENTRIES,..", num_args = 0..=1, default_missing_value = DEFAULT_DEPTHS)]
    pub depth: Option<Depths>,
    /// Portals: the kind of these entries: exact or wildcard (default: both)
    #[arg(long, value_name = "KIND,..", value_enum, hide_possible_values = true, value_delimiter = ',', hide_default_value = true, default_values_t = [Entries::Exact, Entries::Wildcard], requires = "depth")]
    pub entries: Vec<Entries>,
    /// Portals: on if the adapter matches, off if the program's calls match (default: on)
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub offload: Option<Switch>,
    /// Portals: the longest message that is sent with its header
    #[arg(long, value_delimiter = ',', value_name = "BYTES,..")]
    pub eager: Vec<Eager>,
    /// Use memory of the C library (verbs)
    #[arg(long, conflicts_with = "listen")]
    pub foreign_memory: bool,
    /// Connect queue pairs by RDMA CM (verbs)
    #[arg(long, conflicts_with = "listen")]
    pub cm: bool,
    /// Seconds for each row
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0.8")]
    pub duration: Duration,
    /// Print a JSON object for each row
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
    /// With --listen: memory that one measurement may use
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MEMORY, requires = "listen")]
    pub memory: Memory,
    /// The device of the peer process (default: the same fabric on an address of its own)
    #[arg(long, value_name = "URL", conflicts_with_all = ["listen", "connect"])]
    pub peer_device: Option<DeviceUrl>,
    /// The network namespace of the peer process: a name of `ip netns`, or a path
    #[arg(long, value_name = "NAME", conflicts_with_all = ["listen", "connect"])]
    pub peer_netns: Option<String>,
    /// Do not bind each process to a CPU of its own
    #[arg(long)]
    pub no_pin: bool,
}

impl PerfArgs {
    /// The error of arguments that exclude each other, if there is one.
    fn misuse(&self) -> Option<&'static str> {
        let of_portals = self.depth.is_some() || self.offload.is_some() || !self.eager.is_empty();
        if self.layer == Layer::Verbs && of_portals && self.listen.is_none() {
            return Some("--depth, --offload and --eager are of Portals: add --layer portals");
        }
        if self.layer == Layer::Portals && self.foreign_memory {
            return Some("Portals has memory of its own: leave --foreign-memory away");
        }
        if self.layer == Layer::Portals && self.cm {
            return Some("Portals makes its connections itself: leave --cm away");
        }
        if self.layer == Layer::Portals && self.service != [Service::Rc] {
            return Some("Portals goes over reliable connections: leave --service away");
        }
        let has_of = |layer| self.op.iter().any(|op| !op.is_of(self.layer) && op.is_of(layer));
        if self.layer == Layer::Verbs && has_of(Layer::Portals) {
            return Some("put, put-ack and get are of Portals: add --layer portals");
        }
        if self.layer == Layer::Portals && has_of(Layer::Verbs) {
            return Some(
                "send, write and read are of verbs: leave --layer portals away, or choose other operations",
            );
        }
        (self.depth.is_some() && !self.op.iter().all(|&op| op == Op::Put))
            .then_some("--depth measures puts: leave --op away")
    }
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// `hca pingpong`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PingpongArgs {
    /// Transport service
    #[arg(value_enum)]
    pub service: Service,
    /// The host that waits, as ibv_*_pingpong take it
    #[arg(hide = true, conflicts_with_all = ["listen", "connect"])]
    pub host: Option<String>,
    /// Wait for the other end (as without --connect)
    #[arg(long, alias = "server", conflicts_with = "connect")]
    pub listen: bool,
    /// Connect to the host that waits
    #[arg(long, value_name = "HOST")]
    pub connect: Option<String>,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Connect by RDMA CM, and not over TCP: the other end is `hca pingpong --cm`, or rdma_client and rdma_server with
    /// --size 16 --iters 1
    #[arg(long)]
    pub cm: bool,
    /// TCP port of the exchange, or the port of RDMA CM; 0 takes a free one to wait on
    #[arg(short, long, default_value_t = pingpong::DEFAULT_PORT)]
    pub port: u16,
    /// Address to wait on for the exchange (default: the device's own)
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["host", "connect"])]
    pub bind: Option<std::net::IpAddr>,
    /// Message size in bytes (default: 4096; ud: 1024, or the path MTU if that is less)
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
    /// GID index, for command lines of ibv_*_pingpong; `hca devinfo` lists the indices. A device has one GID
    #[arg(short, long)]
    pub gid_idx: Option<u32>,
    /// Validate received bytes, also those of ibv_*_pingpong, which with -c zero the first byte of each page
    #[arg(short, long)]
    pub chk: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

impl PingpongArgs {
    /// The host to call; `None` waits.
    pub(crate) fn host(&self) -> Option<&str> {
        self.connect.as_deref().or(self.host.as_deref())
    }
}

/// `hca run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Processes to start
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub processes: u32,
    /// The device of each process, passed as HCA_DEVICE.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// End the job after this time
    #[arg(long, value_name = "SECONDS", value_parser = long_seconds)]
    pub timeout: Option<Duration>,
    /// Time between TERM and KILL for processes that must end
    #[arg(long, value_name = "SECONDS", value_parser = long_seconds, default_value = "5")]
    pub grace: Duration,
    /// Begin each line with its rank in brackets (default: several processes on a terminal)
    #[arg(long, overrides_with = "no_prefix")]
    pub prefix: bool,
    /// Print lines unchanged
    #[arg(long)]
    pub no_prefix: bool,
    /// Set an environment variable of the processes; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// The error of arguments that exclude each other, if there is one.
    fn misuse(&self) -> Option<&'static str> {
        (self.device.capture.is_some() && self.processes > 1)
            .then_some("each process would write the same file: start one with --capture, or name no file")
    }
}

/// `hca exec`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// The device (default: those of HCA_DEVICES, then HCA_DEVICE, then auto://?share=yes).
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The name by which the program knows the device
    #[arg(long, default_value = "hca0", value_parser = device_name)]
    pub name: String,
    /// Tell each error completion, refused request and asynchronous error in words on standard error, once
    #[arg(long)]
    pub explain: bool,
    /// Show the files of devices in a user and mount namespace of the program's own, which static programs see, too
    #[arg(long, conflicts_with = "no_paths")]
    pub namespace: bool,
    /// Show no files of devices, and preload nothing: programs with ASan want to be loaded first
    #[arg(long)]
    pub no_paths: bool,
    /// Serve long blocks of malloc, and those aligned to pages, from memory that peers on this machine write to directly
    #[arg(long)]
    pub heap: bool,
    /// Leave registered memory where it is. Otherwise whole pages of a program with one thread move to memory that
    /// peers on this machine write to directly
    #[arg(long)]
    pub keep_memory: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// `hca serve`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// Serve a function at this socket; may be repeated. For an Ethernet port, mac= fixes its address, ip= the IP
    /// addresses that it may use (may be repeated); rate= limits what it sends, as 2.5G in bits a second
    #[arg(long, value_name = "SOCKET[,mac=ADDRESS][,ip=ADDRESS][,rate=RATE]", required = true)]
    pub pci: Vec<pci::PciSocket>,
    /// The adapter behind the functions.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The kind of the functions' ports: ib or roce
    #[arg(long, value_name = "KIND", default_value_t)]
    pub port: softhca_pci::PortKind,
    /// Make each command that creates an object request pages, to test drivers
    #[arg(long)]
    pub no_spare_pages: bool,
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    if exec::rdma::is_meant() {
        return exec::rdma::main();
    }
    layer_if_asked();
    let cli = match parsed() {
        Ok(cli) => cli,
        Err(said) => return tell_of(&said),
    };
    // They take signals by themselves: one passes them on, one takes none, and one becomes another program.
    match &cli.command {
        Command::Run(args) => return run::run(args),
        Command::Exec(args) => return exec::exec(args),
        Command::RunGuard => {
            run::guard::guard();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    warnings::listen();
    // The peer is told to stop by the process that started it.
    let is_peer = matches!(cli.command, Command::Peer(_));
    interrupt::listen(is_peer);
    let shown = |any: Result<bool, Failure>| any.map(|any| if any { None } else { Some(NOTHING) });
    let plain = |done: Result<(), Failure>| done.map(|()| None);
    let result = match cli.command {
        Command::List(args) => shown(list::list(&args)),
        Command::Stat(args) => shown(stat::stat(&args)),
        Command::Ping(args) => plain(ping::ping(&args)),
        Command::Devices(args) => plain(list::named(&args)),
        Command::PerfFigures => plain(explain("perf-figures")),
        Command::Completions { shell } => plain(completions(shell)),
        Command::Man { folder } => plain(man(&folder)),
        Command::Devinfo(args) => plain(devinfo::devinfo(&args)),
        Command::Perf(args) => plain(perf::perf(&args)),
        Command::Logp(args) => plain(logp::logp(&args)),
        Command::Portals(PortalsCommand::Trace(args)) => match trace::trace(&args) {
            Ok(trace::Ended::Otherwise) => return ExitCode::from(3),
            Err(e) if e.is::<trace::TraceError>() => {
                tell!("hca: {e}");
                return ExitCode::from(2);
            }
            other => other.map(|_| None),
        },
        Command::Pingpong(args) => plain(pingpong::pingpong(&args)),
        Command::Serve(args) => plain(serve::serve(&args)),
        Command::Run(_) | Command::RunGuard | Command::Exec(_) => unreachable!("they have returned"),
        Command::Peer(args) => plain(peer::serve_standard_streams(&args)),
    };
    match (interrupt::exit_code(), result) {
        (Some(code), _) if !is_peer => ExitCode::from(code),
        (_, Ok(None)) => ExitCode::SUCCESS,
        (_, Ok(Some(code))) => ExitCode::from(code),
        (_, Err(e)) if e.downcast_ref().is_some_and(OutputError::is_without_reader) => ExitCode::SUCCESS,
        (_, Err(e)) => {
            tell!("hca: {e}");
            ExitCode::from(1)
        }
    }
}

/// The command line, or what clap says of it.
fn parsed() -> Result<Cli, clap::Error> {
    let cli = Cli::try_parse()?;
    let (command, misuse) = match &cli.command {
        Command::Perf(args) => ("perf", args.misuse()),
        Command::Run(args) => ("run", args.misuse()),
        _ => return Ok(cli),
    };
    let Some(why) = misuse else { return Ok(cli) };
    let mut all = Cli::command();
    all.build();
    Err(all.find_subcommand_mut(command).expect("it was named").error(ErrorKind::ArgumentConflict, why))
}

/// Prints help, or an error of usage; the exit code.
fn tell_of(said: &clap::Error) -> ExitCode {
    // An error that nobody reads changes no exit code.
    let printed = said.print().map_err(OutputError::from);
    match printed {
        Err(e) if !said.use_stderr() && !e.is_without_reader() => {
            tell!("hca: {e}");
            ExitCode::from(1)
        }
        _ => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
    }
}

/// Shows the help of a command that is a topic.
fn explain(topic: &str) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    Ok(command
        .find_subcommand_mut(topic)
        .expect("it has run")
        .print_long_help()
        .map_err(OutputError::from)?)
}

/// Exit code of a command that has nothing to show.
const NOTHING: u8 = 3;

/// Writes the completions of a shell, without commands that are hidden.
fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let all = Cli::command();
    let subcommands = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut shown =
        clap::Command::new("hca").version(env!("CARGO_PKG_VERSION")).subcommands(subcommands.cloned());
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown, "hca", &mut script);
    Ok(std::io::stdout().write_all(&script).map_err(OutputError::from)?)
}

/// Writes a page of each command.
fn man(folder: &std::path::Path) -> Result<(), Failure> {
    let said = |e: std::io::Error| format!("{}: {e}; name a folder that can be written", folder.display());
    std::fs::create_dir_all(folder).map_err(said)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(said)?;
    Ok(())
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

fn process_number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no number of a process: `hca stat` shows those with adapters"))
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no variable: write NAME=VALUE")),
    }
}

fn device_name(text: &str) -> Result<String, String> {
    if hca::NamedDevice::is_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is no name of a device: write 1 to 63 letters, digits, `_`, `-` and `.`, no `.` first"
    ))
}

fn path_mtu(text: &str) -> Result<hca_core::Mtu, String> {
    let refuse = || format!("`{text}` is no path MTU: use 256, 512, 1024, 2048 or 4096");
    text.parse().ok().and_then(hca_core::Mtu::from_bytes).ok_or_else(refuse)
}

fn control_address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    text.parse()
        .or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, CONTROL_PORT)))
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
    fn every_command_has_help_with_exit_codes_and_one_explains_devices() {
        let mut command = Cli::command();
        for name in ["devinfo", "exec", "perf", "pingpong", "run", "serve", "ping", "devices"] {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(help.contains("130"), "{name}: {help}");
            let explains = help.contains("udp://ADDRESS ");
            assert_eq!(explains, name == "devices", "devices are explained in one place: {name}");
            assert!(explains || help.contains("hca help devices"), "{name}: {help}");
        }
        let figures = command.find_subcommand_mut("perf-figures").unwrap().render_long_help().to_string();
        for field in hca_perf::FIELDS.split_whitespace() {
            assert!(figures.contains(field), "the help does not document {field}");
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
