//! `hca stat`: the counters of this user's running adapters.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use hca::stat::{DeviceStat, ProcessStat, QpStat, running};
use hca_perf::Failure;
use hca_perf::interrupt::{SLICE, interrupted};
use serde_json::{Map, Value, json};

use crate::args::StatArgs;

/// Columns of requests: those of this side, and of the peer.
const COLUMNS: [(&str, [&str; 4]); 2] = [
    ("tx", ["tx_send_requests", "tx_write_requests", "tx_read_requests", "tx_atomic_requests"]),
    ("rx", ["rx_send_requests", "rx_write_requests", "rx_read_requests", "rx_atomic_requests"]),
];
/// Bytes of both directions.
const BYTES: [&str; 6] =
    ["tx_send_bytes", "tx_write_bytes", "tx_read_bytes", "rx_send_bytes", "rx_write_bytes", "rx_read_bytes"];

/// Runs the command; whether there was anything to show.
pub(crate) fn stat(args: &StatArgs) -> Result<bool, Failure> {
    if !args.watch {
        let processes = asked_for(args)?;
        if args.json {
            println!("{}", as_json(&processes));
        } else if processes.is_empty() {
            println!("no process of this user has an adapter open");
        } else {
            println!("{}", table(&processes, None));
        }
        return Ok(!processes.is_empty());
    }
    watch(args)?;
    Ok(true)
}

fn asked_for(args: &StatArgs) -> Result<Vec<ProcessStat>, Failure> {
    let own = std::process::id();
    let mut processes = running()?;
    processes.retain(|p| p.pid != own && args.pid.is_none_or(|pid| p.pid == pid) && !p.devices.is_empty());
    Ok(processes)
}

/// Shows the table again and again, until Ctrl-C.
fn watch(args: &StatArgs) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let is_terminal = out.is_terminal();
    // A screen of its own, which the one before comes back behind.
    let _screen = (is_terminal && !args.json).then(Screen::open).transpose()?;
    let mut before: Option<(Instant, Vec<ProcessStat>)> = None;
    let mut rounds = 0;
    while !interrupted() && args.count.is_none_or(|count| rounds < count) {
        let (now, processes) = (Instant::now(), asked_for(args)?);
        rounds += 1;
        if args.json {
            writeln!(out, "{}", as_json(&processes))?;
        } else {
            let passed = before.as_ref().map(|(at, before)| (now - *at, &before[..]));
            let head =
                format!("hca stat: {} processes, every {:?}; Ctrl-C ends", processes.len(), args.interval);
            let shown = format!("{head}\n\n{}\n", table(&processes, passed));
            if is_terminal {
                // To the upper left corner, each line to its end, and nothing below.
                write!(out, "\x1b[H{}\x1b[J", shown.replace('\n', "\x1b[K\r\n"))?;
            } else {
                write!(out, "{shown}")?;
            }
        }
        out.flush()?;
        before = Some((now, processes));
        while now.elapsed() < args.interval && !interrupted() {
            std::thread::sleep(SLICE.min(args.interval.saturating_sub(now.elapsed())));
        }
    }
    Ok(())
}

/// The terminal's second screen, without a cursor.
struct Screen;

impl Screen {
    fn open() -> std::io::Result<Self> {
        std::io::stdout().write_all(b"\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(Self)
    }
}
impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = std::io::stdout();
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
}

/// What one queue pair, or all of a device together, have counted.
type Count<'a> = Box<dyn Fn(&str) -> u64 + 'a>;

/// A row for each device, and below it one for each of its queue pairs. With what there was a while before, figures are
/// those of a second.
fn table(processes: &[ProcessStat], before: Option<(Duration, &[ProcessStat])>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let unit = if before.is_some() { "/s" } else { "" };
    let mut head: Vec<String> = ["PID", "DEVICE / QP", "STATE", "PEER"].map(str::to_owned).to_vec();
    for (side, _) in COLUMNS {
        head.extend(["SEND", "WRITE", "READ", "ATOMIC"].map(|op| format!("{side} {op}{unit}")));
    }
    head.extend([format!("MB{unit}"), "RESENT".to_owned()]);
    table.set_header(head);
    let old = before.map(|(passed, processes)| (passed, index(processes)));
    for process in processes {
        for device in &process.devices {
            let place = format!("{} {}", process.name, short(&device.url));
            let whole: Count<'_> = Box::new(|name| device.counter(name));
            let row = [process.pid.to_string(), place, String::new(), String::new()];
            add(&mut table, row, &whole, (process.pid, &device.url, None), old.as_ref());
            for qp in &device.queue_pairs {
                let own: Count<'_> = Box::new(|name| qp.counter(name));
                let peer = qp.peer.as_ref().map_or(String::new(), |(qpn, gid)| format!("{qpn:#08x} {gid}"));
                let name = format!("  {} {:#08x}", qp.service.to_uppercase(), qp.qpn);
                let row = [String::new(), name, qp.state.to_uppercase(), peer];
                add(&mut table, row, &own, (process.pid, &device.url, Some(qp.qpn)), old.as_ref());
            }
        }
    }
    for column in table.column_iter_mut().skip(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Of which process, device and queue pair.
type Key<'a> = (u32, &'a str, Option<u32>);
/// The counters of each of them, a while before.
type Old<'a> = (Duration, HashMap<Key<'a>, &'a [(String, u64)]>);

fn index(processes: &[ProcessStat]) -> HashMap<Key<'_>, &[(String, u64)]> {
    let mut all = HashMap::new();
    for process in processes {
        for device in &process.devices {
            all.insert((process.pid, device.url.as_str(), None), &device.counters[..]);
            for qp in &device.queue_pairs {
                all.insert((process.pid, device.url.as_str(), Some(qp.qpn)), &qp.counters[..]);
            }
        }
    }
    all
}

fn add(table: &mut Table, first: [String; 4], now: &Count<'_>, key: Key<'_>, old: Option<&Old<'_>>) {
    let was = |name: &str| {
        let counters = old.and_then(|(_, all)| all.get(&key));
        counters.and_then(|all| all.iter().find(|(of, _)| of == name)).map_or(0, |c| c.1)
    };
    // Of what was not there before, nothing is known of a second.
    let seconds = old.map(|(passed, all)| (passed.as_secs_f64(), all.contains_key(&key)));
    let figure = |name: &str| match seconds {
        None => now(name) as f64,
        Some((_, false)) => 0.0,
        Some((seconds, true)) => now(name).saturating_sub(was(name)) as f64 / seconds,
    };
    let mut row = first.to_vec();
    for (_, names) in COLUMNS {
        row.extend(names.map(|name| format!("{:.0}", figure(name))));
    }
    row.push(format!("{:.1}", BYTES.iter().map(|name| figure(name)).sum::<f64>() / 1e6));
    row.push(now("retransmitted").to_string());
    table.add_row(row);
}

/// A device's name without its options.
fn short(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

fn as_json(processes: &[ProcessStat]) -> Value {
    let counters = |all: &[(String, u64)]| -> Map<String, Value> {
        all.iter().map(|(name, value)| (name.clone(), (*value).into())).collect()
    };
    let qp = |qp: &QpStat| {
        json!({
            "qpn": qp.qpn,
            "service": qp.service.to_lowercase(),
            "state": qp.state.to_lowercase(),
            "peer_qpn": qp.peer.as_ref().map(|p| p.0),
            "peer_gid": qp.peer.as_ref().map(|p| p.1.clone()),
            "counters": counters(&qp.counters),
        })
    };
    let device = |device: &DeviceStat| {
        json!({
            "device": device.url,
            "counters": counters(&device.counters),
            "queue_pairs": device.queue_pairs.iter().map(qp).collect::<Vec<_>>(),
        })
    };
    let process = |process: &ProcessStat| {
        json!({
            "pid": process.pid,
            "name": process.name,
            "devices": process.devices.iter().map(device).collect::<Vec<_>>(),
        })
    };
    json!({ "processes": processes.iter().map(process).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(sends: u64) -> ProcessStat {
        let counters =
            vec![("tx_send_requests".to_owned(), sends), ("tx_send_bytes".to_owned(), sends * 1000)];
        let peer = Some((9, "::ffff:127.0.0.3".to_owned()));
        let (service, state) = ("Rc".to_owned(), "Rts".to_owned());
        let qp = QpStat { qpn: 7, service, state, peer, counters: counters.clone() };
        let device = DeviceStat { url: "udp://127.0.0.2?mtu=1024".into(), counters, queue_pairs: vec![qp] };
        ProcessStat { pid: 5, name: "server".into(), devices: vec![device] }
    }

    #[test]
    fn a_table_has_sums_and_then_figures_of_a_second() {
        let sums = table(&[process(4000)], None).to_string();
        assert!(sums.contains("server udp://127.0.0.2 ") && sums.contains("RC 0x000007"), "{sums}");
        assert!(sums.contains("4000") && sums.contains("4.0") && sums.contains("::ffff:127.0.0.3"), "{sums}");
        let before = [process(3000)];
        let rates = table(&[process(4000)], Some((Duration::from_secs(2), &before))).to_string();
        assert!(rates.contains("tx SEND/s") && rates.contains(" 500 ") && rates.contains("0.5"), "{rates}");
        let fresh = table(&[process(4000)], Some((Duration::from_secs(2), &[]))).to_string();
        assert!(!fresh.contains("2000"), "nothing is known of the second before: {fresh}");
    }

    #[test]
    fn json_has_numbers_by_name() {
        let told = as_json(&[process(3)]);
        let device = &told["processes"][0]["devices"][0];
        assert_eq!(device["counters"]["tx_send_requests"], 3);
        assert_eq!(device["queue_pairs"][0]["peer_qpn"], 9);
        assert_eq!(
            (&device["queue_pairs"][0]["service"], &told["processes"][0]["pid"]),
            (&"rc".into(), &5.into())
        );
    }
}
