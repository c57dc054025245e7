//! `hca ping`: whether a host can be reached, the fabric that reaches it, and the round-trip time.

use std::net::SocketAddr;
use std::time::Duration;

use hca_perf::plan::{Op, Service, Size};
use hca_perf::{Case, DEFAULT_MEMORY, Failure, Pair, PairError};
use serde_json::json;

use crate::args::PingArgs;
use crate::output::show;
use crate::perf::{Listen, device, overrides};

/// How long round trips are measured.
const MEASURED: Duration = Duration::from_millis(300);

/// Runs the command.
pub(crate) fn ping(args: &PingArgs) -> Result<(), Failure> {
    let Some(address) = args.address else {
        let listen = Listen { device: &args.device, memory: DEFAULT_MEMORY, once: args.once, pin: false };
        return listen.at(args.listen.expect("one of both is there"), "hca ping");
    };
    let named = device(&args.device)?;
    let mut pair = Pair::connect(address, named.as_ref(), &overrides(&args.device), None)
        .map_err(|e| said(e, address))?;
    let case = Case { service: Service::Rc, op: Op::Send, size: Size::of(8), foreign: false };
    let row = pair.row(&case, MEASURED).map_err(|e| {
        let port = "let UDP port 4791 in on both sides";
        format!("{address} answers by TCP, and not by RDMA: {port}; the measurement said: {e}")
    })?;
    let opened = pair.opened();
    opened.finish_capture()?;
    let way = match opened.paths_taken() {
        Some((shm, _)) if shm > 0 => "shm",
        Some(_) => "udp",
        None => opened.fabric(),
    };
    let port = opened.device().port();
    let link = port.link.map(|link| link.to_string());
    // Half of one is a row's latency.
    let [p50, p99] = [row.p50_ns, row.p99_ns].map(|half| half * 2);
    if args.json {
        show!(
            "{}",
            json!({
                "address": address.ip().to_string(),
                "device": opened.url().to_string(),
                "gid": port.gid.to_string(),
                "way": way,
                "path_mtu": pair.mtu().bytes(),
                "link": link,
                "round_trip_p50_ns": p50,
                "round_trip_p99_ns": p99,
                "round_trips": row.count,
                "retransmitted": opened.device().counters().iter().find(|c| c.name == "retransmitted").map(|c| c.value),
            })
        );
        return Ok(());
    }
    show!("{} is reached from {} ({})", address.ip(), opened.url(), port.gid);
    show!("  way         {way}{}", link.map_or(String::new(), |link| format!(", {link}")));
    show!("  path MTU    {} bytes", pair.mtu().bytes());
    let [p50, p99] = [p50, p99].map(|ns| ns as f64 / 1e3);
    show!("  round trip  {p50:.1} us (p50), {p99:.1} us (p99) of {} round trips with 8 bytes", row.count);
    Ok(())
}

/// Why nobody answers.
fn said(error: Failure, address: SocketAddr) -> Failure {
    match error.downcast_ref() {
        Some(PairError::Connect { source, .. }) => {
            let ip = address.ip();
            format!("nobody listens at {address}: {source}; start `hca ping --listen {ip}` on that host")
                .into()
        }
        _ => error,
    }
}
