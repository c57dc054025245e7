//! `hca perf`: latency, bandwidth and message rate between two processes.
//!
//! | module | contents |
//! |---|---|
//! | `table`, `plot` | the output; JSON is [`hca_perf::Row`] |

mod plot;
mod table;

use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use hca::{DeviceUrl, Options, Target};
use hca_fabric::RawOptions;
use hca_perf::interrupt::interrupted;
use hca_perf::{Case, Failure, Layer, Memory, Pair, Plan, Row, Setup, device_at, peer, portals, probe};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{DeviceArgs, FabricName, PerfArgs, Switch};
use crate::output::{show, tell};

/// The domain of shared memory, unless another is named. Each device of it has an address of its own.
const DEFAULT_DOMAIN: &str = "hca";

/// Runs the command.
///
/// # Errors
/// With what to do about it.
pub(crate) fn perf(args: &PerfArgs) -> Result<(), Failure> {
    match args.listen {
        Some(address) => {
            let listen =
                Listen { device: &args.device, memory: args.memory, once: args.once, pin: !args.no_pin };
            listen.at(address, "hca perf --connect")
        }
        None => measure(args),
    }
}

/// The device that the arguments name; `None` leaves the choice.
pub(crate) fn device(args: &DeviceArgs) -> Result<Option<DeviceUrl>, Failure> {
    let by_fabric = args.fabric.map(|fabric| {
        let target = match fabric {
            FabricName::Udp => Target::Udp(None),
            FabricName::Uring => Target::Uring(None),
            FabricName::Shm => Target::Shm(DEFAULT_DOMAIN.to_owned()),
            FabricName::Raw => Target::Raw { interface: "lo".to_owned(), options: RawOptions::default() },
        };
        DeviceUrl { target, options: Options::default() }
    });
    let named = match args.device.clone().or(by_fabric) {
        Some(url) => Some(url),
        None => hca::device_from_environment()?,
    };
    Ok(named)
}

/// The options of the arguments, beside the device's name.
pub(crate) fn overrides(args: &DeviceArgs) -> Options {
    Options {
        progress: args.progress,
        fault: args.fault.clone(),
        capture: args.capture.clone(),
        ..Options::default()
    }
}

/// The device that the arguments describe, if they say anything of it; `None` leaves it to the environment.
pub(crate) fn device_if_said(args: &DeviceArgs) -> Result<Option<DeviceUrl>, Failure> {
    args.is_said().then(|| device_or(args, Target::Auto(None))).transpose()
}

/// The device that the arguments describe: named, or this one.
pub(crate) fn device_or(args: &DeviceArgs, target: Target) -> Result<DeviceUrl, Failure> {
    let named = device(args)?;
    let url = named.unwrap_or(DeviceUrl { target, options: Options::default() });
    Ok(DeviceUrl { options: url.options.overridden_by(overrides(args)), ..url })
}

/// Measures, and prints as it goes.
fn measure(args: &PerfArgs) -> Result<(), Failure> {
    args.plot.as_deref().map_or(Ok(()), plot::look_at)?;
    let mut pair = match args.connect {
        None => {
            let mut setup = Setup::new(device_or(&args.device, Target::Udp(None))?);
            setup.peer_device.clone_from(&args.peer_device);
            setup.peer_netns.clone_from(&args.peer_netns);
            if args.no_pin {
                setup.cpus = None;
            }
            Pair::start(&setup)?
        }
        Some(address) => {
            let cpu = if args.no_pin { None } else { probe::cpus().first().copied() };
            let device = device(&args.device)?;
            Pair::connect(address, device.as_ref(), &overrides(&args.device), cpu)?
        }
    };
    if args.cm {
        pair.by_cm();
    }
    let cases = Cases::of(args, pair.mtu().bytes());
    if let Some(note) = pair.opened().stand_in() {
        tell!("note: {note}");
    }
    for what in cases.left_out() {
        tell!("left out: {what}");
    }
    if cases.count() == 0 {
        return Err("nothing to measure: choose other operations, services or sizes".into());
    }
    let (rows, failure) = cases.rows(&mut pair, args);
    // The capture is kept, however the measurement ended.
    let kept = pair.opened().finish_capture();
    if !args.json && !rows.is_empty() {
        show!("{}\n", describe(&pair));
        let lay_out = if args.depth.is_some() { table::depth_table } else { table::table };
        show!("{}", lay_out(&rows));
    }
    if let Some(e) = failure {
        return Err(e);
    }
    if let Some(path) = &args.plot
        && !interrupted()
    {
        plot::plot(path, &describe(&pair), &rows)?;
        if !args.json {
            show!("\nDrawn to {}", path.display());
        }
    }
    Ok(kept?)
}

/// The measured cases, by layer.
enum Cases {
    Verbs(Plan),
    Portals(portals::Plan),
}

impl Cases {
    fn of(args: &PerfArgs, mtu: u32) -> Self {
        let ops = if args.op.is_empty() { args.layer.default_ops() } else { &args.op[..] };
        if args.layer == Layer::Verbs {
            return Self::Verbs({
                let plan = Plan::new(&args.service, ops, &args.size, mtu, args.duration);
                plan.with_foreign_memory(args.foreign_memory)
            });
        }
        let default = portals::Settings::default();
        let offload = args.offload.map_or(default.offload, |asked| asked == Switch::On);
        let settings: Vec<_> = match &args.eager[..] {
            [] => vec![portals::Settings { offload, ..default }],
            asked => asked.iter().map(|&size| portals::Settings { offload, eager_bytes: size }).collect(),
        };
        Self::Portals(match &args.depth {
            None => portals::Plan::of_sizes(&settings, ops, &args.size),
            Some(depths) => portals::Plan::of_depths(&settings, &depths.0, &args.entries),
        })
    }
    fn left_out(&self) -> &[String] {
        match self {
            Self::Verbs(plan) => &plan.left_out,
            Self::Portals(plan) => &plan.left_out,
        }
    }
    fn count(&self) -> usize {
        match self {
            Self::Verbs(plan) => plan.cases.len(),
            Self::Portals(plan) => plan.cases.len(),
        }
    }
    /// The rows, and why there are fewer than were asked for, if there are.
    fn rows(&self, pair: &mut Pair, args: &PerfArgs) -> (Vec<Row>, Option<Failure>) {
        match self {
            Self::Verbs(plan) => {
                let name = |case: &Case| format!("{} {} {}", case.service, case.op, case.size);
                rows(&plan.cases, name, |case| pair.row(case, plan.duration), args.json)
            }
            Self::Portals(plan) => {
                let mut nodes: Option<portals::Nodes> = None;
                let measure = |(settings, case): &(portals::Settings, portals::Case)| {
                    let nodes = match nodes.take().filter(|nodes| nodes.settings() == *settings) {
                        Some(there) => nodes.insert(there),
                        None => nodes.insert(pair.nodes(*settings)?),
                    };
                    pair.portals_row(nodes, case, args.duration)
                };
                rows(&plan.cases, |(_, case)| case.to_string(), measure, args.json)
            }
        }
    }
}

/// The rows of a plan, with a bar on standard error while they are measured; and why there are fewer, if
/// there are.
fn rows<C>(
    cases: &[C],
    name: impl Fn(&C) -> String,
    mut measure: impl FnMut(&C) -> Result<Row, Failure>,
    json: bool,
) -> (Vec<Row>, Option<Failure>) {
    let bar = ProgressBar::with_draw_target(Some(cases.len() as u64), bar_target());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}  {msg}");
    bar.set_style(style.expect("the template is well formed"));
    let mut rows = Vec::with_capacity(cases.len());
    for case in cases {
        if interrupted() {
            break;
        }
        bar.set_message(name(case));
        let measured = measure(case);
        bar.inc(1);
        // A row that was cut short says nothing.
        if interrupted() {
            break;
        }
        let row = measured.map_err(|e| format!("{}: {e}", name(case)).into());
        match row.and_then(|row| shown(row, json)) {
            Ok(row) => rows.push(row),
            Err(e) => {
                bar.finish_and_clear();
                return (rows, Some(e));
            }
        }
    }
    bar.finish_and_clear();
    (rows, None)
}

/// A row, which JSON shows at once.
fn shown(row: Row, json: bool) -> Result<Row, Failure> {
    if json {
        show!("{}", row.to_json());
    }
    Ok(row)
}

fn bar_target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// A line that describes the setup of the measurement.
fn describe(pair: &Pair) -> String {
    let opened = pair.opened();
    let stands_in = if opened.stand_in().is_some() { " in place of io_uring" } else { "" };
    let taken = opened
        .paths_taken()
        .map_or(String::new(), |(shm, udp)| format!(" (paths by shared memory: {shm}, by UDP: {udp})"));
    let place = match pair.cpus() {
        (Some(a), Some(b)) => format!("CPUs {a} and {b}"),
        (Some(a), None) => format!("CPU {a} and the peer's host"),
        _ => "unbound".to_owned(),
    };
    format!(
        "{} fabric{stands_in}{taken}, progress {}, path MTU {}, {place}",
        opened.fabric(),
        opened.progress(),
        pair.mtu().bytes()
    )
}

/// Whether the next connection may be taken all the same (accept(2)).
fn is_passing(e: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let of_one_connection = [
        Errno::CONNABORTED,
        Errno::NETDOWN,
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::OPNOTSUPP,
        Errno::NETUNREACH,
        Errno::INTR,
    ];
    let of_want = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let errno = Errno::from_io_error(e);
    errno.is_some_and(|errno| of_one_connection.contains(&errno) || of_want.contains(&errno))
}

/// Serves measurements that other hosts start.
pub(crate) struct Listen<'a> {
    pub(crate) device: &'a DeviceArgs,
    /// Memory that one measurement may use.
    pub(crate) memory: Memory,
    /// It ends after one measurement.
    pub(crate) once: bool,
    /// The process is bound to a CPU.
    pub(crate) pin: bool,
}

impl Listen<'_> {
    /// Serves at an address until it is interrupted; `command` is what the other host starts, but for the address.
    pub(crate) fn at(&self, address: SocketAddr, command: &str) -> Result<(), Failure> {
        let refuse = |e: std::io::Error| {
            format!(
                "can't listen on {address}: {e}; give an address of this host, or another port, with --listen ADDR:PORT"
            )
        };
        let listener = TcpListener::bind(address).map_err(refuse)?;
        listener.set_nonblocking(true).map_err(refuse)?;
        if self.pin
            && let Some(&cpu) = probe::cpus().last()
        {
            probe::pin(cpu)?;
        }
        let named = device(self.device)?.unwrap_or_else(|| device_at(address.ip()));
        let url = DeviceUrl { options: named.options.overridden_by(overrides(self.device)), ..named };
        let own = listener.local_addr().map_err(refuse)?;
        tell!("waiting on {own}; start `{command} {own}` on the other host, end with Ctrl-C");
        while !interrupted() {
            match listener.accept() {
                Ok((stream, from)) => {
                    tell!("measuring with {from}");
                    let served = peer::serve_stream(&stream, &url, self.memory);
                    match served {
                        Err(e) if self.once => return Err(e),
                        Err(e) => tell!("hca: {e}"),
                        Ok(()) => {}
                    }
                    if self.once {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                // A connection that broke before it was taken; or nothing is left to take it with, which passes.
                Err(e) if is_passing(&e) => std::thread::sleep(Duration::from_millis(20)),
                Err(e) => return Err(refuse(e).into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod sample {
    use hca_perf::Service;
    use hca_perf::probe::Placement;

    use hca_perf::Op;

    use super::Row;

    /// A row of plausible figures.
    pub(super) fn row(op: Op, size: u64, p50_ns: u64, gb_per_s: f64) -> Row {
        Row {
            fabric: "udp".into(),
            service: Service::Rc,
            op,
            layer: "verbs".into(),
            size,
            p50_ns,
            p99_ns: p50_ns * 2,
            p999_ns: p50_ns * 3,
            mean_ns: p50_ns + 10,
            max_ns: p50_ns * 9,
            gb_per_s,
            msgs_per_s: gb_per_s * 1e9 / size as f64,
            count: 1000,
            errors: 0,
            progress: "adaptive".into(),
            placement: Placement::Near,
            cpu: Some(0),
            peer_cpu: Some(1),
            offload: None,
            eager_bytes: None,
            depth: None,
            entries: None,
        }
    }
}
