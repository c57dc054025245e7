//! `hca stat`: the counters of this user's running adapters.

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use hca::stat::{DeviceStat, ProcessStat, QpStat, running};
use hca_perf::Failure;
use hca_perf::interrupt::{SLICE, interrupted};
use rustix::termios::tcgetwinsize;
use serde_json::{Map, Value, json};

use crate::args::StatArgs;
use crate::output::{OutputError, show};

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
            show!("{}", as_json(&processes));
        } else if processes.is_empty() {
            let whose =
                args.pid.map_or("no process of this user".to_owned(), |pid| format!("no process {pid}"));
            show!("{whose} shows an adapter");
        } else {
            show!("{}", fitting(&processes, None, size().map(|size| size.0)));
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
    // A screen of its own, which the one before comes back behind.
    let screen = (size().is_some() && !args.json).then(Screen::open).transpose()?;
    let mut before: Option<(Instant, Vec<ProcessStat>)> = None;
    let mut rounds = 0;
    while !interrupted() && args.count.is_none_or(|count| rounds < count) {
        let (now, processes) = (Instant::now(), asked_for(args)?);
        rounds += 1;
        if args.json {
            show!("{}", as_json(&processes));
        } else {
            let passed = before.as_ref().map(|(at, before)| (now - *at, &before[..]));
            let count = match processes.len() {
                1 => "1 process".to_owned(),
                count => format!("{count} processes"),
            };
            let head = format!("{count} with adapters, every {:?}; Ctrl-C ends", args.interval);
            let size = size();
            let shown = format!("{head}\n\n{}", fitting(&processes, passed, size.map(|size| size.0)));
            match size {
                // To the upper left corner, each line to its end, and nothing below.
                Some((_, height)) => {
                    let lines = cut(&shown, height).join("\x1b[K\r\n");
                    write!(out, "\x1b[H{lines}\x1b[J")
                        .and_then(|()| out.flush())
                        .map_err(OutputError::from)?;
                }
                None => show!("{shown}"),
            }
        }
        before = Some((now, processes));
        // A screen stays long enough to be read.
        if args.count == Some(rounds) && screen.is_none() {
            break;
        }
        // The pause between two rounds, in slices, so that Ctrl-C ends it soon.
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

/// Columns and lines of the terminal; `None` if standard output is none.
fn size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    // Some know nothing of their size.
    let or = |told: u16, usual| if told == 0 { usual } else { usize::from(told) };
    Some((or(size.ws_col, 80), or(size.ws_row, 24)))
}

/// The lines that fit; the last one counts the others.
fn cut(text: &str, height: usize) -> Vec<String> {
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    if lines.len() <= height {
        return lines;
    }
    let kept = height.saturating_sub(1);
    let rest = format!("{} more lines; --pid shows one process", lines.len() - kept);
    lines.into_iter().take(kept).chain([rest]).collect()
}

/// Which columns a table has.
#[derive(Clone, Copy)]
struct Shape {
    /// Requests by operation; else one sum of each side.
    by_operation: bool,
    /// Peers of queue pairs.
    has_peers: bool,
}

/// From the widest to the narrowest.
const SHAPES: [Shape; 3] = [
    Shape { by_operation: true, has_peers: true },
    Shape { by_operation: false, has_peers: true },
    Shape { by_operation: false, has_peers: false },
];

/// The first table that fits, or the narrowest.
fn fitting(
    processes: &[ProcessStat],
    before: Option<(Duration, &[ProcessStat])>,
    width: Option<usize>,
) -> String {
    let mut tables = SHAPES.map(|shape| table(processes, before, shape)).into_iter();
    let fits = |table: &String| table.lines().all(|l| width.is_none_or(|width| l.chars().count() <= width));
    let narrowest = tables.next_back().expect("there are three");
    tables.find(fits).unwrap_or(narrowest)
}

/// A row for each process, one for each of its devices, and one for each of their queue pairs. With what there was a
/// while before, figures are those of a second.
fn table(processes: &[ProcessStat], before: Option<(Duration, &[ProcessStat])>, shape: Shape) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let unit = if before.is_some() { "/s" } else { "" };
    let names: &[&str] = if shape.by_operation { &["SEND", "WRITE", "READ", "ATOMIC"] } else { &["REQ"] };
    let mut head = vec!["PROCESS\n DEVICE, QP".to_owned(), "\nSTATE".to_owned()];
    if shape.has_peers {
        head.push("\nPEER".to_owned());
    }
    let first = head.len();
    for (side, _) in COLUMNS {
        head.extend(names.iter().map(|name| format!("{side}{unit}\n{name}")));
    }
    head.extend([format!("{}\nMB", unit.trim_start()), "\nRESENT".to_owned()]);
    table.set_header(head);
    let old = before.map(|(passed, processes)| (passed, index(processes)));
    let row = |first: [String; 3], figures: Vec<String>| -> Vec<String> {
        let [name, state, peer] = first;
        let peer = shape.has_peers.then_some(peer);
        [name, state].into_iter().chain(peer).chain(figures).collect()
    };
    for process in processes {
        table.add_row([format!("{} {}", process.pid, process.name)]);
        for (place, device) in places(&process.devices) {
            let name = [format!(" {}", short(&device.url)), String::new(), String::new()];
            let of = Of { pid: process.pid, url: &device.url, place };
            let key = (of, None);
            table.add_row(row(name, figures(&|name| device.counter(name), key, old.as_ref(), shape)));
            for qp in &device.queue_pairs {
                let peer = qp.peer.as_ref().map_or(String::new(), |(qpn, gid)| {
                    format!("{qpn:#08x} {}", gid.strip_prefix("::ffff:").unwrap_or(gid))
                });
                let name = format!("  {} {:#08x}", qp.service.to_uppercase(), qp.qpn);
                let key = (of, Some(qp.qpn));
                let figures = figures(&|name| qp.counter(name), key, old.as_ref(), shape);
                table.add_row(row([name, qp.state.to_uppercase(), peer], figures));
            }
        }
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if at >= first {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A device of a process. Several of one process may have one name, as those of a domain of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Of<'a> {
    pid: u32,
    url: &'a str,
    /// Its place among those.
    place: usize,
}
/// Of which device and queue pair.
type Key<'a> = (Of<'a>, Option<u32>);
/// The counters of each of them, a while before.
type Old<'a> = (Duration, HashMap<Key<'a>, &'a [(String, u64)]>);

fn index(processes: &[ProcessStat]) -> HashMap<Key<'_>, &[(String, u64)]> {
    let mut all = HashMap::new();
    for process in processes {
        for (place, device) in places(&process.devices) {
            let of = Of { pid: process.pid, url: &device.url, place };
            all.insert((of, None), &device.counters[..]);
            for qp in &device.queue_pairs {
                all.insert((of, Some(qp.qpn)), &qp.counters[..]);
            }
        }
    }
    all
}

/// The devices of a process, each with its place among those of its name.
fn places(devices: &[DeviceStat]) -> impl Iterator<Item = (usize, &DeviceStat)> {
    let before =
        move |at: usize| devices[..at].iter().filter(move |other| other.url == devices[at].url).count();
    devices.iter().enumerate().map(move |(at, device)| (before(at), device))
}

/// The figures of counters: sums, or counts of a second.
fn figures(now: &dyn Fn(&str) -> u64, key: Key<'_>, old: Option<&Old<'_>>, shape: Shape) -> Vec<String> {
    let was = |name: &str| {
        let counters = old.and_then(|(_, all)| all.get(&key));
        counters.and_then(|all| all.iter().find(|(of, _)| of == name)).map_or(0, |c| c.1)
    };
    // A new object has no rates yet.
    let seconds = old.map(|(passed, all)| (passed.as_secs_f64(), all.contains_key(&key)));
    let figure = |name: &str| match seconds {
        None => now(name) as f64,
        Some((_, false)) => 0.0,
        Some((seconds, true)) => now(name).saturating_sub(was(name)) as f64 / seconds,
    };
    let mut figures = Vec::new();
    for (_, names) in COLUMNS {
        if shape.by_operation {
            figures.extend(names.map(|name| short_number(figure(name))));
        } else {
            figures.push(short_number(names.iter().map(|name| figure(name)).sum()));
        }
    }
    figures.push(format!("{:.1}", BYTES.iter().map(|name| figure(name)).sum::<f64>() / 1e6));
    figures.push(short_number(now("retransmitted") as f64));
    figures
}

/// A count in five characters at most, until 10^15.
fn short_number(count: f64) -> String {
    let (mut count, mut unit) = (count.round(), 0);
    if count < 1e5 {
        return format!("{count:.0}");
    }
    while count >= 9999.5 && unit < 4 {
        count /= 1e3;
        unit += 1;
    }
    format!("{count:.0}{}", ["", "k", "M", "G", "T"][unit])
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
        let sums = fitting(&[process(4000)], None, None);
        assert!(sums.contains("5 server\n udp://127.0.0.2 ") && sums.contains("  RC 0x000007"), "{sums}");
        assert!(
            sums.contains("4000") && sums.contains("4.0") && sums.contains("0x000009 127.0.0.3"),
            "{sums}"
        );
        let before = [process(3000)];
        let rates = fitting(&[process(4000)], Some((Duration::from_secs(2), &before)), None);
        assert!(rates.contains("tx/s") && rates.contains(" 500 ") && rates.contains("0.5"), "{rates}");
        let fresh = fitting(&[process(4000)], Some((Duration::from_secs(2), &[])), None);
        assert!(!fresh.contains("2000"), "nothing is known of the second before: {fresh}");
    }

    #[test]
    fn devices_of_one_name_have_figures_of_their_own() {
        // As those of a domain of shared memory have, in one process.
        let with = |sends: [u64; 2]| {
            let [mut first, second] = sends.map(process);
            first.devices.extend(second.devices);
            first.devices.iter_mut().for_each(|device| device.queue_pairs.clear());
            first
        };
        let (before, now) = ([with([1000, 500_000])], [with([3000, 500_000])]);
        let rates = fitting(&now, Some((Duration::from_secs(1), &before)), None);
        let devices: Vec<_> = rates.lines().filter(|line| line.starts_with(" udp://")).collect();
        assert_eq!(devices.len(), 2, "{rates}");
        assert!(devices[0].contains(" 2000 ") && !devices[1].contains("000"), "{rates}");
    }

    #[test]
    fn a_table_has_the_columns_that_fit() {
        for (width, by_operation, has_peers) in [(120, true, true), (80, false, true), (55, false, false)] {
            let table = fitting(&[process(123_456_789)], None, Some(width));
            assert!(table.lines().all(|line| line.chars().count() <= width), "{width}:\n{table}");
            assert_eq!(table.contains("ATOMIC"), by_operation, "{width}:\n{table}");
            assert_eq!(table.contains("PEER"), has_peers, "{width}:\n{table}");
            assert!(table.contains("123M"), "{width}:\n{table}");
        }
    }

    #[test]
    fn numbers_stay_short() {
        for (count, text) in [
            (0.0, "0"),
            (99_999.0, "99999"),
            (100_000.0, "100k"),
            (9_999_499.0, "9999k"),
            (9_999_500.0, "10M"),
            (12e12, "12T"),
        ] {
            assert_eq!(short_number(count), text);
        }
    }

    #[test]
    fn a_screen_ends_with_the_number_of_lines_that_do_not_fit() {
        assert_eq!(cut("a\nb\nc", 3), ["a", "b", "c"]);
        assert_eq!(cut("a\nb\nc", 2), ["a", "2 more lines; --pid shows one process"]);
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
