//! A measured row, and its JSON form.

use serde::{Deserialize, Serialize};

use super::plan::{Op, Service};
use super::portals::Entries;
use crate::probe::Placement;

/// The results of one row; printed by `--json` as one object a line.
///
/// Fields are only ever added. Latencies are one way (half of a round trip) for send and write, and
/// post to completion for read and atomic; of Portals one way for put, from the call to the event for the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The fabric that carried the packets: `udp`, `uring`, …
    pub fabric: String,
    /// Transport service: `rc`, `uc`, `ud`.
    pub service: Service,
    /// Operation: `send`, `write`, `read`, `atomic`; of Portals `put`, `put-ack`, `get`, `atomic`.
    pub op: Op,
    /// The programming interface that was measured: `verbs`, `portals`.
    pub layer: String,
    /// Bytes a message.
    pub size: u64,
    /// Latency that half of the messages stayed below, in ns.
    pub p50_ns: u64,
    /// Latency that 99 % of the messages stayed below, in ns.
    pub p99_ns: u64,
    /// Latency that 99.9 % of the messages stayed below, in ns.
    pub p999_ns: u64,
    /// Mean latency, in ns.
    pub mean_ns: u64,
    /// Longest latency, in ns.
    pub max_ns: u64,
    /// Payload of a stream of such messages, in 10^9 bytes a second.
    pub gb_per_s: f64,
    /// Messages of that stream a second.
    pub msgs_per_s: f64,
    /// Messages that were timed for the latencies.
    pub count: u64,
    /// Messages that were lost or completed with an error, in both measurements.
    pub errors: u64,
    /// The progress mode: `inline`, `thread`, `adaptive`.
    pub progress: String,
    /// The placement of the CPUs of both processes: `near`, `far`, `mixed` (it changed), `unknown`.
    pub placement: Placement,
    /// The CPU that the measuring process was bound to, if any.
    pub cpu: Option<usize>,
    /// The CPU that the peer process was bound to, if any.
    pub peer_cpu: Option<usize>,
    /// Portals: whether the adapter matched; otherwise the program's calls did.
    #[serde(default)]
    pub offload: Option<bool>,
    /// Portals: the longest message that goes with its header.
    #[serde(default)]
    pub eager_bytes: Option<u64>,
    /// Portals: the number of entries before the matching one, if that was measured.
    #[serde(default)]
    pub depth: Option<u64>,
    /// Portals: the kind of these entries: `exact`, `wildcard`.
    #[serde(default)]
    pub entries: Option<Entries>,
}

/// The fields of a row, in their order.
pub const FIELDS: &str = "fabric service op layer size p50_ns p99_ns p999_ns mean_ns max_ns gb_per_s \
     msgs_per_s count errors progress placement cpu peer_cpu offload eager_bytes depth entries";

impl Row {
    /// The row as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a row has string keys and finite numbers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(op: Op, size: u64, p50_ns: u64, gb_per_s: f64) -> Row {
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

    #[test]
    fn fields_are_never_renamed_and_never_removed() {
        let json: serde_json::Value = serde_json::from_str(&row(Op::Send, 8, 2700, 0.5).to_json()).unwrap();
        let names: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let promised = [
            "fabric",
            "service",
            "op",
            "layer",
            "size",
            "p50_ns",
            "p99_ns",
            "p999_ns",
            "mean_ns",
            "max_ns",
            "gb_per_s",
            "msgs_per_s",
            "count",
            "errors",
            "progress",
            "placement",
            "cpu",
            "peer_cpu",
            "offload",
            "eager_bytes",
            "depth",
            "entries",
        ];
        let missing: Vec<_> = promised.iter().filter(|p| !names.contains(p)).collect();
        assert!(missing.is_empty(), "programs read these fields: {missing:?}");
        assert_eq!(names.len(), promised.len(), "list the new field here, and in the help of `hca perf`");
        assert!(FIELDS.split_whitespace().eq(promised), "the help names every field");
    }

    #[test]
    fn words_are_lower_case() {
        let text = row(Op::Atomic, 8, 1, 1.0).to_json();
        for part in [r#""service":"rc""#, r#""op":"atomic""#, r#""placement":"near""#] {
            assert!(text.contains(part), "{text}");
        }
    }
}
