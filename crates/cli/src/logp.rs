//! `hca logp`: the parameters of LogP of each layer.

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use hca::Target;
use hca_perf::interrupt::interrupted;
use hca_perf::layers::Kind;
use hca_perf::layers::logp::LogP;
use hca_perf::{Failure, Setup};

use crate::args::LogpArgs;
use crate::output::show;
use crate::perf::device_or;

/// Runs the command.
///
/// # Errors
/// With what to do about it.
pub(crate) fn logp(args: &LogpArgs) -> Result<(), Failure> {
    let mut setup = Setup::new(device_or(&args.device, Target::Udp(None))?);
    setup.peer_device.clone_from(&args.peer_device);
    if args.no_pin {
        setup.cpus = None;
    }
    let layers = if args.layer.is_empty() { &Kind::ALL[..] } else { &args.layer[..] };
    let mut rows = Vec::new();
    let mut failure = None;
    for (i, &layer) in layers.iter().enumerate() {
        if interrupted() {
            break;
        }
        let times = layers[..=i].iter().filter(|named| **named == layer).count();
        let setup = if layers.len() > 1 { of_layer(&setup, layer, times) } else { setup.clone() };
        match layer.logp(&setup, args.duration) {
            Ok(measured) => {
                if args.json {
                    show!("{}", json(layer, &measured));
                }
                rows.push((layer, measured));
            }
            Err(e) => {
                failure = Some(format!("{layer}: {e}"));
                break;
            }
        }
    }
    // Measured layers are shown, however the run ended.
    if !args.json && !rows.is_empty() {
        show!("{}", table(&rows));
    }
    failure.map_or(Ok(()), |e| Err(e.into()))
}

/// The set-up of one of several layers, each of which has a capture file of its own: `run-am-via.pcapng`, and
/// `run-am-via-2.pcapng` where the layer is named for the second time.
fn of_layer(setup: &Setup, layer: Kind, times: usize) -> Setup {
    let mut setup = setup.clone();
    for device in [&mut setup.device].into_iter().chain(setup.peer_device.as_mut()) {
        let Some(file) = &mut device.options.capture else { continue };
        let mut name = layer.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        if times > 1 {
            name.push_str(&format!("-{times}"));
        }
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let end = file.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
        *file = file.with_file_name(format!("{stem}-{name}{end}"));
    }
    setup
}

fn table(rows: &[(Kind, LogP)]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["layer", "RTT ns", "L ns", "o_send ns", "o_recv ns", "g ns", "G ns/KiB", "bulk GB/s"]);
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    for (layer, p) in rows {
        let figures =
            [p.round_trip, p.latency(), p.send, p.receive, p.gap].map(|figure| format!("{figure:.0}"));
        let bulk = p.byte_gap.map(|gap| [format!("{:.0}", 1024.0 * gap), format!("{:.2}", 1.0 / gap)]);
        table.add_row([layer.to_string()].into_iter().chain(figures).chain(bulk.unwrap_or_default()));
    }
    table.trim_fmt()
}

fn json(layer: Kind, p: &LogP) -> serde_json::Value {
    serde_json::json!({
        "layer": layer.to_string(),
        "rtt_ns": p.round_trip,
        "l_ns": p.latency(),
        "o_send_ns": p.send,
        "o_recv_ns": p.receive,
        "g_ns": p.gap,
        "byte_gap_ns": p.byte_gap,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_has_a_capture_of_its_own() {
        let setup = Setup::new("udp://?capture=run.pcapng".parse().unwrap());
        let file = |layer, times| of_layer(&setup, layer, times).device.options.capture.unwrap();
        assert_eq!(file(Kind::Verbs, 1).to_str(), Some("run-verbs.pcapng"));
        assert_eq!(file(Kind::Verbs, 2).to_str(), Some("run-verbs-2.pcapng"));
    }

    #[test]
    fn a_layer_without_bulk_messages_has_its_line() {
        let p = LogP { round_trip: 1000.0, send: 100.0, receive: 50.0, gap: 160.0, byte_gap: None };
        let shown = table(&[(Kind::AmVia, p), (Kind::Verbs, LogP { byte_gap: Some(0.25), ..p })]);
        let lines: Vec<Vec<&str>> = shown.lines().skip(1).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["AM", "over", "VIs", "1000", "350", "100", "50", "160"]);
        assert_eq!(lines[1], ["verbs", "1000", "350", "100", "50", "160", "256", "4.00"]);
        assert_eq!(json(Kind::Verbs, &p)["l_ns"], 350.0);
    }
}
