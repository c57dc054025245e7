//! `hca ping`: whether a host is reached, by which way, and how long a round trip takes.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use hca_perf::plan::{Op, Service, Size};
use hca_perf::{Case, Failure, Pair};
use serde_json::json;

use crate::args::PingArgs;
use crate::perf::{device, overrides};

/// How long the other host may take to answer at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long round trips are measured.
const MEASURED: Duration = Duration::from_millis(300);

/// Runs the command.
pub(crate) fn ping(args: &PingArgs) -> Result<(), Failure> {
    let began = Instant::now();
    if let Err(e) = TcpStream::connect_timeout(&args.address, PATIENCE) {
        let ip = args.address.ip();
        return Err(format!(
            "{} is not reached by TCP: {e}; start `hca perf --listen {ip}` there, and see that its firewall lets TCP port \
             {} and UDP port 4791 in",
            args.address,
            args.address.port()
        )
        .into());
    }
    let connect = began.elapsed();
    let mut pair =
        Pair::connect(args.address, device(&args.device)?.as_ref(), &overrides(&args.device), None)?;
    let case = Case { service: Service::Rc, op: Op::Send, size: Size::of(8) };
    let row = pair.row(&case, MEASURED).map_err(|e| {
        format!(
            "{} answers by TCP, and not by RDMA: {e}; see that UDP port 4791 is let in on both sides",
            args.address
        )
    })?;
    let opened = pair.opened();
    let way = match opened.paths_taken() {
        Some((shm, _)) if shm > 0 => "shared memory",
        Some(_) => "UDP",
        None => opened.fabric(),
    };
    let port = opened.device().port();
    let link = port.link.map(|link| link.to_string());
    // Half of one is a row's latency.
    let [p50, p99] = [row.p50_ns, row.p99_ns].map(|half| half * 2);
    if args.json {
        println!(
            "{}",
            json!({
                "address": args.address.ip().to_string(),
                "device": opened.url().to_string(),
                "gid": port.gid.to_string(),
                "way": way,
                "path_mtu": pair.mtu().bytes(),
                "link": link,
                "round_trip_p50_ns": p50,
                "round_trip_p99_ns": p99,
                "round_trips": row.count,
                "retransmitted": opened.device().counters().iter().find(|c| c.name == "retransmitted").map(|c| c.value),
                "tcp_connect_us": connect.as_micros() as u64,
            })
        );
        return Ok(());
    }
    println!("{} is reached from {} ({})", args.address.ip(), opened.url(), port.gid);
    println!("  way         {way}{}", link.map_or(String::new(), |link| format!(", {link}")));
    println!("  path MTU    {} bytes", pair.mtu().bytes());
    println!(
        "  round trip  {:.1} us (p99 {:.1} us), {} of 8 bytes",
        p50 as f64 / 1e3,
        p99 as f64 / 1e3,
        row.count
    );
    Ok(())
}
