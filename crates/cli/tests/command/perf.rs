//! `hca perf` and `hca logp`: measurements, and their rows.

use super::*;

#[test]
fn perf_on_auto_says_which_way_the_paths_went() {
    let of = |args: &[&str]| {
        let args =
            [&["perf", "--device", "auto://", "--size", "8", "--op", "send", "--duration", "0.03"], args];
        text(&run(&args.concat()).stdout).to_owned()
    };
    let both = of(&["--service", "rc"]);
    assert!(both.contains("by UDP: 0)") && !both.contains("by shared memory: 0"), "{both}");
    let far = of(&["--service", "rc", "--peer-device", "udp://"]);
    assert!(far.contains("by shared memory: 0") && !far.contains("by UDP: 0)"), "{far}");
}

#[test]
fn an_error_of_the_peer_process_is_told_once() {
    let said = refusal(&["perf", "--peer-netns", "no-such-namespace"], 1);
    assert_eq!(said.matches("no-such-namespace").count(), 1, "{said}");
}

#[test]
fn perf_prints_one_object_a_row_and_nothing_else() {
    let args = ["perf", "--json", "--size", "8,64K", "--duration", "0.04"];
    let rows = json_lines(&run(&args));
    let seen: Vec<_> =
        rows.iter().map(|r| (r["op"].as_str().unwrap(), r["size"].as_u64().unwrap())).collect();
    let wanted = [
        ("send", 8),
        ("send", 65536),
        ("write", 8),
        ("write", 65536),
        ("read", 8),
        ("read", 65536),
        ("atomic", 8),
    ];
    assert_eq!(seen, wanted);
    for row in &rows {
        assert_eq!((row["fabric"].as_str(), row["service"].as_str()), (Some("udp"), Some("rc")));
        assert_eq!(row["errors"], 0, "{row}");
        let ns = |f: &str| row[f].as_u64().unwrap();
        assert!(ns("p50_ns") > 0 && ns("p50_ns") <= ns("p99_ns") && ns("p99_ns") <= ns("p999_ns"), "{row}");
        assert!(row["gb_per_s"].as_f64().unwrap() > 0.0 && row["count"].as_u64().unwrap() > 0, "{row}");
    }
}

/// The rows of a short measurement of RC, UC and UD.
fn of_every_service(more: &[&str]) -> Vec<serde_json::Value> {
    let args = ["perf", "--json", "--service", "rc,uc,ud", "--duration", "0.04"];
    json_lines(&run(&[&args[..], more].concat()))
}

#[test]
fn perf_measures_every_service_in_every_progress_mode() {
    for mode in ["inline", "thread", "adaptive"] {
        let rows = of_every_service(&["--op", "send,write", "--size", "64,4096", "--progress", mode]);
        assert_eq!(rows.len(), 10, "{mode}");
        for row in rows {
            assert_eq!(row["progress"], mode);
            assert!(row["count"].as_u64().unwrap() > 0, "{row}");
        }
    }
}

#[test]
fn perf_measures_every_service_connected_by_cm() {
    let rows = of_every_service(&["--cm", "--size", "64", "--op", "send,write"]);
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|row| row["count"].as_u64().unwrap() > 0), "{rows:?}");
}

#[test]
fn perf_measures_every_service_over_shared_memory() {
    for mode in ["inline", "thread", "adaptive"] {
        let rows = of_every_service(&["--size", "8,4096", "--fabric", "shm", "--progress", mode]);
        assert_eq!(rows.len(), 13, "{mode}");
        for row in rows {
            assert_eq!(row["fabric"], "shm", "{row}");
            // The others lose what a receiver without a processor has no request for.
            assert!(row["service"] != "rc" || row["errors"] == 0, "{row}");
            assert!(row["count"].as_u64().unwrap() > 0, "{row}");
        }
    }
    let of_malloc = ["perf", "--json", "--foreign-memory", "--op", "send,write,read", "--size", "8,4096"];
    let rows = json_lines(&run(&[&of_malloc[..], &["--duration", "0.04", "--fabric", "shm"]].concat()));
    assert!(rows.len() == 6 && rows.iter().all(|row| row["errors"] == 0), "{rows:?}");
    let info = &json_lines(&run(&["devinfo", "shm://lab?ring=64K", "--json"]))[0];
    assert!(info["port"]["gid"].as_str().unwrap().starts_with("fd"), "{info}");
    assert_eq!(info["recv_buffer_bytes"], 32768);
}

/// A window of these sizes ends between two requests that are signalled.
#[test]
fn perf_counts_what_completes_while_a_stream_ends() {
    let args = ["perf", "--fabric", "shm", "--op", "send", "--size", "4097,4608,5000,9000,10000,12000"];
    let rows = json_lines(&run(&[&args[..], &["--duration", "0.04", "--json"]].concat()));
    for row in rows {
        assert_eq!(row["errors"], 0, "{row}");
    }
}

/// Rows of Portals, all of which measured something.
fn portals_rows(more: &[&str]) -> Vec<serde_json::Value> {
    let args = ["perf", "--layer", "portals", "--json", "--duration", "0.04"];
    let rows = json_lines(&run(&[&args[..], more].concat()));
    for row in &rows {
        assert_eq!((row["layer"].as_str(), row["errors"].as_u64()), (Some("portals"), Some(0)), "{row}");
        assert!(row["count"].as_u64().unwrap() > 0, "{row}");
    }
    rows
}

#[test]
fn logp_measures_every_layer() {
    let lines = json_lines(&run(&["logp", "--fabric", "shm", "--duration", "0.02", "--json"]));
    let layers: Vec<&str> = lines.iter().filter_map(|line| line["layer"].as_str()).collect();
    let all =
        ["verbs", "VIs", "AM over verbs", "AM over VIs", "global over verbs", "global over VIs", "Portals"];
    assert_eq!(layers, all);
    for line in &lines {
        for field in ["rtt_ns", "o_send_ns", "g_ns", "byte_gap_ns"] {
            assert!(line[field].as_f64().is_some_and(|ns| ns > 0.0), "{field} of {line}");
        }
        let [rtt, l, send, receive] =
            ["rtt_ns", "l_ns", "o_send_ns", "o_recv_ns"].map(|field| line[field].as_f64().unwrap());
        assert!((rtt / 2.0 - send - receive - l).abs() < 1.0, "{line}");
    }
}

#[test]
fn logp_captures_each_layer_in_a_file_of_its_own_and_says_if_one_is_not_written() {
    let folder = std::env::temp_dir().join(format!("hca-logp-capture-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let logp = |layers, file: &str| {
        run(&[
            "logp",
            "--fabric",
            "udp",
            "--duration",
            "0.02",
            "--json",
            "--layer",
            layers,
            "--capture",
            file,
        ])
    };
    assert!(logp("verbs,am-via", &path("a.b.pcapng")).status.success());
    assert!(logp("via", &path("one")).status.success());
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["a.b-am-via.pcapng", "a.b-verbs.pcapng", "one"]);
    for file in files {
        assert!(std::fs::metadata(folder.join(&file)).unwrap().len() > 1000, "{file:?}");
    }
    // Layers that were measured before are shown.
    std::fs::create_dir(folder.join("two-am.pcapng")).unwrap();
    let half = run(&["logp", "--duration", "0.02", "--layer", "verbs,am", "--capture", &path("two.pcapng")]);
    assert_eq!((half.status.code(), text(&half.stdout).matches("verbs").count()), (Some(1), 1), "{half:?}");
    std::fs::remove_dir_all(&folder).unwrap();
    for layer in ["verbs", "via", "am", "global", "portals"] {
        let full = logp(layer, "/dev/full");
        let said = String::from_utf8_lossy(&full.stderr);
        assert!(!full.status.success() && said.contains("can't write the capture file"), "{layer}: {said}");
    }
}

#[test]
fn perf_measures_portals_on_every_fabric_matched_by_the_adapter_and_by_the_program() {
    let each = |op| [8, 65536].map(|size| (op, size));
    let wanted = [&each("put")[..], &each("put-ack"), &each("get"), &each("atomic")[..1]].concat();
    for (fabric, offload, mode) in [
        ("udp", "on", "adaptive"),
        ("udp", "off", "inline"),
        ("uring", "on", "inline"),
        ("shm", "on", "thread"),
        ("shm", "off", "adaptive"),
    ] {
        let more = ["--fabric", fabric, "--offload", offload, "--progress", mode, "--size", "8,64K"];
        let rows = portals_rows(&more);
        let seen: Vec<_> =
            rows.iter().map(|r| (r["op"].as_str().unwrap(), r["size"].as_u64().unwrap())).collect();
        assert_eq!(seen, wanted, "{fabric} {offload} {mode}");
        for row in rows {
            assert!(row["gb_per_s"].as_f64().unwrap() > 0.0 && row["depth"].is_null(), "{row}");
            assert_eq!((&row["offload"], &row["eager_bytes"]), (&(offload == "on").into(), &4096.into()));
        }
    }
}

#[test]
fn perf_measures_what_entries_before_the_right_one_cost() {
    let rows = portals_rows(&["--depth", "0,100", "--fabric", "shm"]);
    let seen: Vec<_> =
        rows.iter().map(|r| (r["entries"].as_str().unwrap(), r["depth"].as_u64().unwrap())).collect();
    assert_eq!(seen, [("exact", 0), ("exact", 100), ("wildcard", 0), ("wildcard", 100)]);
    let plot = Scratch::new("depth.svg");
    let args =
        ["perf", "--layer", "portals", "--depth", "0,10", "--entries", "wildcard", "--duration", "0.04"];
    let out = run(&[&args[..], &["--plot", plot.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("ns/entry"), "{}", text(&out.stdout));
    assert!(std::fs::read_to_string(&plot.0).unwrap().contains("</svg>"));
}

#[test]
fn perf_measures_portals_by_the_longest_message_that_goes_with_its_header() {
    let rows = portals_rows(&["--op", "put,atomic", "--eager", "512,8K", "--size", "1K,4K"]);
    let seen: Vec<_> = rows
        .iter()
        .map(|r| (r["eager_bytes"].as_u64().unwrap(), r["op"].as_str().unwrap(), r["size"].as_u64().unwrap()))
        .collect();
    let wanted = [
        (512, "put", 1024),
        (512, "put", 4096),
        (8192, "put", 1024),
        (8192, "put", 4096),
        (8192, "atomic", 1024),
        (8192, "atomic", 4096),
    ];
    assert_eq!(seen, wanted);
}
