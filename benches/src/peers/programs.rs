//! How each peer's program is run, and what it says.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use super::process::{Running, free_port};
use super::{Over, Peer, PeerError, What};

/// The source of the program for Open MPI.
const EXCHANGE: &str = include_str!("exchange.c");
/// How long a run may take: a quarter of a second is asked for.
const RUN_LIMIT: Duration = Duration::from_secs(20);
/// Fewest bytes that sockperf sends.
const SOCKPERF_MIN_BYTES: u64 = 14;
/// Most bytes that sockperf sends.
const SOCKPERF_MAX_BYTES: u64 = 65_507;

/// A program, and how it is told what to use.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    /// `ucx_perftest`, with its tests for latency and streams.
    Ucx {
        latency: &'static str,
        stream: &'static str,
        tls: Option<&'static str>,
        options: &'static [&'static str],
    },
    /// `fi_pingpong`, with a provider.
    Libfabric { provider: &'static str },
    /// `exchange`, by `mpirun`, with its transports.
    OpenMpi { btl: &'static str },
    /// `sockperf ping-pong`.
    Sockperf { tcp: bool },
}

const SHORT: &[&str] = &["-x", "posix", "-d", "memory", "-D", "short"];

const fn ucx(latency: &'static str, stream: &'static str, tls: &'static str) -> Program {
    Program::Ucx { latency, stream, tls: Some(tls), options: &[] }
}
const fn memory(name: &'static str, program: Program) -> Peer {
    Peer { name, over: Over::Memory, program }
}
const fn sockets(name: &'static str, program: Program) -> Peer {
    Peer { name, over: Over::Sockets, program }
}

pub(super) const PEERS: [Peer; 13] = [
    memory("UCX tags", ucx("tag_lat", "tag_bw", "posix,cma")),
    memory(
        "UCX tags (defaults)",
        Program::Ucx { latency: "tag_lat", stream: "tag_bw", tls: None, options: &[] },
    ),
    memory("UCX messages", ucx("ucp_am_lat", "ucp_am_bw", "posix,cma")),
    memory("UCX put", ucx("ucp_put_lat", "ucp_put_bw", "posix,cma")),
    memory(
        "UCX put (uct)",
        Program::Ucx { latency: "put_lat", stream: "put_bw", tls: Some("posix,cma"), options: SHORT },
    ),
    memory("libfabric (shm)", Program::Libfabric { provider: "shm" }),
    memory("Open MPI", Program::OpenMpi { btl: "self,vader" }),
    sockets("UCX tags (tcp)", ucx("tag_lat", "tag_bw", "tcp")),
    sockets("UCX put (tcp)", ucx("ucp_put_lat", "ucp_put_bw", "tcp")),
    sockets("libfabric (udp)", Program::Libfabric { provider: "udp;ofi_rxd" }),
    sockets("libfabric (tcp)", Program::Libfabric { provider: "tcp;ofi_rxm" }),
    sockets("Open MPI (tcp)", Program::OpenMpi { btl: "self,tcp" }),
    sockets("UDP (sockperf)", Program::Sockperf { tcp: false }),
];

impl Program {
    pub(super) fn offers(self, what: What) -> bool {
        match self {
            Self::Ucx { latency, .. } => latency.contains("put") == what.is_put(),
            Self::Libfabric { .. } => what.is_latency() && !what.is_put(),
            Self::OpenMpi { .. } => !what.is_put(),
            Self::Sockperf { .. } => what.is_latency() && !what.is_put() && what.size() <= SOCKPERF_MAX_BYTES,
        }
    }

    /// Whether its receiver lets a message lie unread where the transport put it, instead of having it in memory of its
    /// own: that of `ucx_perftest` does so with active messages that come by value, of more than a cache line (its
    /// option to copy them came after the version that Debian packages). Longer ones are fetched into its buffer.
    pub(super) fn leaves_unread(self, what: What) -> bool {
        const BY_VALUE: std::ops::RangeInclusive<u64> = 65..=8192;
        matches!(self, Self::Ucx { latency: "ucp_am_lat", .. }) && BY_VALUE.contains(&what.size())
    }

    /// Programs that it needs, and the packages that hold them.
    pub(super) fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Ucx { .. } => &[("ucx_perftest", "ucx-utils")],
            Self::Libfabric { .. } => &[("fi_pingpong", "libfabric-bin")],
            Self::OpenMpi { .. } => &[("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev"), ("gcc", "gcc")],
            Self::Sockperf { .. } => &[("sockperf", "sockperf")],
        }
    }

    /// Runs it once, for so many messages; the figure is in ns, or a second.
    pub(super) fn run(self, what: What, count: u64, cpus: (usize, usize)) -> Result<f64, PeerError> {
        match self {
            Self::Ucx { latency, stream, tls, options } => {
                let test = if what.is_latency() { latency } else { stream };
                run_ucx(test, tls, options, what, count, cpus)
            }
            Self::Libfabric { provider } => run_libfabric(provider, what, count, cpus),
            Self::OpenMpi { btl } => run_open_mpi(btl, what, count, cpus),
            Self::Sockperf { tcp } => run_sockperf(tcp, what, cpus),
        }
    }
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|&a| a.to_owned()).collect()
}

/// A server on one CPU, a client on the other; what the client wrote.
fn client_and_server(
    program: &str,
    (client, server): (&[String], &[String]),
    port: u16,
    env: &[(&str, &str)],
    cpus: (usize, usize),
) -> Result<String, PeerError> {
    let mut server = Running::start(Some(cpus.1), program, server, env)?;
    server.listening(port, true)?;
    Running::start(Some(cpus.0), program, client, env)?.finish(RUN_LIMIT)
}

fn run_ucx(
    test: &str,
    tls: Option<&str>,
    options: &[&str],
    what: What,
    count: u64,
    cpus: (usize, usize),
) -> Result<f64, PeerError> {
    let port = free_port()?;
    let mut server = strings(&["-f", "-v", "-t", test]);
    server.extend(strings(options));
    let warm_up = (count / 10).max(1);
    for (option, value) in [("-s", what.size()), ("-n", count), ("-w", warm_up), ("-p", port.into())] {
        server.extend([option.to_owned(), value.to_string()]);
    }
    let client = [&["127.0.0.1".to_owned()], &server[..]].concat();
    let mut env = vec![("UCX_LOG_LEVEL", "error"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
    env.extend(tls.map(|tls| ("UCX_TLS", tls)));
    if tls == Some("tcp") {
        env.push(("UCX_NET_DEVICES", "lo"));
    }
    let said = client_and_server("ucx_perftest", (&client, &server), port, &env, cpus)?;
    ucx_figure(&said, what).ok_or_else(|| silent("ucx_perftest", &said))
}

/// The last line that begins with a number.
fn last_figures(said: &str) -> Option<&str> {
    said.lines().rev().map(str::trim_start).find(|l| l.starts_with(|c: char| c.is_ascii_digit()))
}

/// The last line is `count,p50,average,overall,…` in us, MB/s and messages a second.
fn ucx_figure(said: &str, what: What) -> Option<f64> {
    let line = last_figures(said)?;
    let numbers: Vec<f64> = line.split(',').map_while(|f| f.trim().parse().ok()).collect();
    let (p50_us, rate) = (*numbers.get(1)?, *numbers.get(7)?);
    Some(if what.is_latency() { p50_us * 1e3 } else { what.of_rate(rate) })
}

fn run_libfabric(provider: &str, what: What, count: u64, cpus: (usize, usize)) -> Result<f64, PeerError> {
    let port = free_port()?;
    let common = strings(&["-p", provider, "-e", "rdm", "-m", "tagged", "-I", &count.to_string(), "-S"]);
    let common = [&common[..], &[what.size().to_string()]].concat();
    let server = [&common[..], &strings(&["-B", &port.to_string()])].concat();
    let client = [&common[..], &strings(&["-P", &port.to_string(), "127.0.0.1"])].concat();
    let said = client_and_server("fi_pingpong", (&client, &server), port, &[], cpus)?;
    fi_pingpong_ns(&said).ok_or_else(|| silent("fi_pingpong", &said))
}

/// The last line ends with MB/s, us a message and messages a second.
fn fi_pingpong_ns(said: &str) -> Option<f64> {
    let line = last_figures(said)?;
    let us: f64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    Some(us * 1e3)
}

fn run_sockperf(tcp: bool, what: What, cpus: (usize, usize)) -> Result<f64, PeerError> {
    let port = free_port()?;
    let transport = if tcp { &["--tcp"][..] } else { &[] };
    let common = ["-i", "127.0.0.1", "-p", &port.to_string(), "--nonblocked"].map(str::to_owned);
    let transport = strings(transport);
    let server = [&["server".to_owned()][..], &common, &transport].concat();
    let mut server = Running::start(Some(cpus.1), "sockperf", &server, &[])?;
    server.listening(port, tcp)?;
    let bytes = what.size().max(SOCKPERF_MIN_BYTES).to_string();
    let rest = strings(&["-m", &bytes, "-t", "1"]);
    let client = [&["ping-pong".to_owned()][..], &common, &transport, &rest].concat();
    let said = Running::start(Some(cpus.0), "sockperf", &client, &[])?.finish(RUN_LIMIT)?;
    sockperf_p50_ns(&said).ok_or_else(|| silent("sockperf", &said))
}

/// A line reads `percentile 50.000 =    3.308`, in us.
fn sockperf_p50_ns(said: &str) -> Option<f64> {
    let line = said.lines().find(|l| l.contains("percentile 50.000"))?;
    let us: f64 = line.rsplit_once('=')?.1.trim().parse().ok()?;
    Some(us * 1e3)
}

fn run_open_mpi(btl: &str, what: What, count: u64, cpus: (usize, usize)) -> Result<f64, PeerError> {
    let mut args = strings(&["--bind-to", "none", "--oversubscribe", "-np", "2"]);
    args.extend(strings(&["--mca", "pml", "ob1", "--mca", "btl", btl]));
    if btl.contains("tcp") {
        args.extend(strings(&["--mca", "btl_tcp_if_include", "lo"]));
    }
    args.push(Exchange::built()?.program());
    args.push(if what.is_latency() { "latency" } else { "stream" }.to_owned());
    args.extend([what.size(), count, cpus.0 as u64, cpus.1 as u64].map(|n| n.to_string()));
    // Both are started here, by whoever runs this, who may be root in a container.
    let env = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
    let said = Running::start(None, "mpirun", &args, &env)?.finish(RUN_LIMIT)?;
    let figure: Option<f64> = said.lines().rev().find_map(|l| l.trim().parse().ok());
    let figure = figure.ok_or_else(|| silent("mpirun", &said))?;
    Ok(if what.is_latency() { figure } else { what.of_rate(figure) })
}

fn silent(program: &str, said: &str) -> PeerError {
    let last = said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default();
    PeerError::Said { program: program.to_owned(), said: format!("no figure in its output ({last:?})") }
}

/// The program for Open MPI: a file that has no name any more, so that nothing is left over however this process ends.
struct Exchange(File);

impl Exchange {
    /// The one of this process.
    fn built() -> Result<&'static Self, PeerError> {
        static BUILT: OnceLock<Exchange> = OnceLock::new();
        if let Some(built) = BUILT.get() {
            return Ok(built);
        }
        let dir = std::env::temp_dir().join(format!("hca-peers-{}", std::process::id()));
        let built = Self::build_in(&dir);
        // What was built stays open.
        let _ = std::fs::remove_dir_all(&dir);
        built.map(|built| BUILT.get_or_init(|| built))
    }

    fn build_in(dir: &Path) -> Result<Self, PeerError> {
        let refuse =
            |why| PeerError::Start { what: format!("nothing can be built in {}", dir.display()), why };
        let (source, program) = (dir.join("exchange.c"), dir.join("exchange"));
        std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&source, EXCHANGE)).map_err(refuse)?;
        let args = [&program, &source].map(|p| p.display().to_string());
        let args = [&strings(&["-O2", "-o"])[..], &args].concat();
        match Running::start(None, "mpicc", &args, &[])?.finish(RUN_LIMIT) {
            // The compiler's front end may come by another package than the headers.
            Err(PeerError::Said { said, .. }) if said.contains("mpi.h: No such file") => {
                return Err(PeerError::Missing { program: "mpi.h", package: "libopenmpi-dev" });
            }
            done => done?,
        };
        File::open(program).map(Self).map_err(refuse)
    }

    /// A name by which others find it while this process lives.
    fn program(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_ucx_are_read() {
        let said = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    200000,0.273,2.328,2.328,3.28,3.28,429618,429618\n";
        assert_eq!(ucx_figure(said, What::SendLatency(8)), Some(273.0));
        assert_eq!(ucx_figure(said, What::SendRate), Some(429_618.0));
        assert_eq!(ucx_figure(said, What::PutBandwidth(100)), Some(42_961_800.0));
        let padded = said.replace("200000,", "   1000,");
        assert_eq!(ucx_figure(&padded, What::SendLatency(8)), Some(273.0));
        assert_eq!(ucx_figure("connect() failed: Connection refused\n", What::SendRate), None);
    }

    #[test]
    fn the_figures_of_fi_pingpong_and_sockperf_are_read() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       100k    =100k    1.5m        1.51s      1.06       7.56       0.13\n";
        assert_eq!(fi_pingpong_ns(said), Some(7560.0));
        let said =
            "sockperf: ---> percentile 75.000 =    3.640\nsockperf: ---> percentile 50.000 =    3.308\n";
        assert_eq!(sockperf_p50_ns(said), Some(3308.0));
        assert_eq!(sockperf_p50_ns("sockperf: No messages were received"), None);
    }
}
