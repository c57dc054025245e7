//! The `hca` command for its users: exit codes, the contents of its output streams, and error messages.

mod perf;
mod signals;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use signals::{ended_by_ctrl_c, is_whole_capture};

fn hca(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hca"));
    command.args(args).env_remove("HCA_DEVICE").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    hca(args).output().expect("the command can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that fails with this exit code, and returns what it says.
fn refusal(args: &[&str], code: i32) -> String {
    let out = run(args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
    // A ping-pong prints its own address before it looks for the other end's.
    let printed = text(&out.stdout).lines().filter(|l| !l.contains("local address")).count();
    assert_eq!(printed, 0, "{args:?}: errors go to standard error: {}", text(&out.stdout));
    said
}

/// A shared address has its name among those that the kernel keeps for each network namespace, and needs no file.
#[test]
#[ignore = "needs root: a mount namespace of its own"]
fn devices_at_a_shared_address_open_where_proc_is_not_mounted() {
    let script = "mount -t tmpfs none /proc && exec \"$0\" devinfo \"$1\"";
    for device in ["udp://127.71.1.1?share=yes", "auto://127.71.1.1?share=yes"] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_hca"), device]);
        let out = command.env_remove("HCA_DEVICE").stdin(Stdio::null()).output().unwrap();
        assert!(out.status.success(), "{device}: {}", text(&out.stderr));
        assert!(text(&out.stdout).contains("slot"), "{device}: {}", text(&out.stdout));
    }
}

/// Commands that show something in an instant.
const SHOWS: [&[&str]; 5] =
    [&["list"], &["list", "--json"], &["devinfo", "udp://"], &["stat"], &["portals", "trace", "--list"]];

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for args in SHOWS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out =
            hca(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((out.status.code(), &*text(&out.stderr)), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn what_can_not_be_printed_is_a_failure_and_no_panic() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for args in SHOWS {
        let out =
            hca(args).stdout(full()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.starts_with("hca: can't write to standard output: "), "{args:?}: {said}");
    }
    for args in [&["--help"][..], &["perf", "--help"], &["--version"], &["help", "devices"]] {
        let out = hca(args).stdout(full()).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        assert!(text(&out.stderr).starts_with("hca: can't write to standard output: "), "{args:?}");
    }
    let socket = Scratch::new("full.sock");
    let out = hca(&["serve", "--pci", socket.path()]).stdout(full()).output().unwrap();
    let said = text(&out.stderr);
    assert!(
        out.status.code() == Some(1) && said.starts_with("hca: can't write to standard output: "),
        "{said}"
    );
    let status = hca(&["devinfo", "udp://192.0.2.1"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1), "and an error that nobody reads changes no exit code");
}

fn json_lines(out: &Output) -> Vec<serde_json::Value> {
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines = text(&out.stdout);
    lines.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

/// An address of a test's own, which no other process takes.
fn address(salt: u32) -> String {
    let [_, high, middle, low] = (std::process::id() << 4 | salt).to_be_bytes();
    format!("127.{}.{middle}.{low}", 128 | high & 63)
}

/// A file of this test's own, removed at the end.
struct Scratch(std::path::PathBuf);
impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("hca-{}-{name}", std::process::id())))
    }
    fn path(&self) -> &str {
        self.0.to_str().expect("the path is text")
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn help_and_version_succeed_and_name_the_exit_codes() {
    for args in [
        &["--help"][..],
        &["perf", "--help"],
        &["pingpong", "--help"],
        &["devinfo", "--help"],
        &["portals", "trace", "--help"],
        &["run", "--help"],
    ] {
        let out = run(args);
        assert!(out.status.success() && text(&out.stdout).contains("130"), "{args:?}");
    }
    assert!(run(&["--version"]).status.success());
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_what_to_write() {
    for (args, part) in [
        (&["perf", "--device", "tcp://x"][..], "udp://ADDRESS"),
        (&["perf", "--size", "0"], "64K"),
        (&["perf", "--duration", "0"], "0.02"),
        (&["perf", "--op", "swap"], "atomic"),
        (&["perf", "--depth"], "--layer portals"),
        (&["perf", "--op", "get"], "--layer portals"),
        (&["perf", "--layer", "portals", "--op", "send"], "choose other"),
        (&["pingpong", "rc", "--listen", "--connect", "127.0.0.1"], "--connect"),
        (&["stat", "--interval", "2"], "--watch"),
        (&["run", "-n", "2", "--capture", "a.pcapng", "true"], "same file"),
        (&["ping", "somewhere"], "IP address"),
        (&["perf", "--layer", "portals", "--depth", "2000000"], "1000000"),
        (&["perf", "--layer", "portals", "--depth", "1", "--op", "get"], "--op away"),
        (&["perf", "--layer", "portals", "--depth", "1", "--size", "64"], "--size"),
        (&["perf", "--layer", "portals", "--entries", "exact"], "--depth"),
        (&["perf", "--memory", "64M"], "--listen"),
        (&["perf", "--layer", "portals", "--service", "ud"], "--service away"),
        (&["perf", "--layer", "portals", "--cm"], "--cm away"),
        (&["perf", "--layer", "portals", "--offload", "maybe"], "off"),
        (&["portals", "trace", "--scenario", "nothing"], "unexpected"),
        (&["portals", "trace", "/nonexistent/lists.txt"], "/nonexistent/lists.txt"),
        (&["perf", "--fault", "loss=7"], "from 0 to 1"),
        (&["perf", "--progress", "fast"], "adaptive"),
        (&["perf", "--listen", "somewhere"], "IP address"),
        (&["pingpong", "rd"], "ud"),
        (&["pingpong", "rc", "--mtu", "1500"], "4096"),
        (&["pingpong", "rc", "-n", "0"], "1.."),
        (&["devinfo", "udp://10.0.0"], "127.0.0.2"),
        (&["perf", "--eager", "1K"], "Usage: hca perf "),
        (&["run", "-n", "2", "--capture", "a.pcapng", "true"], "Usage: hca run "),
        (&["ping", "--once"], "Usage: hca ping --listen <ADDR[:PORT]> --once ["),
        (&["stat", "--pid", "mine"], "`mine` is no number of a process"),
        (&["fly"], "--help"),
    ] {
        let said = refusal(args, 2);
        assert!(said.contains(part), "{args:?} says {said:?}, which lacks {part:?}");
    }
}

#[test]
fn what_can_not_be_done_is_exit_code_1_and_says_what_to_do() {
    for (args, part) in [
        (&["devinfo", "udp://192.0.2.1"][..], "ip address"),
        (&["devinfo", "udp://no_such_link"], "this machine has"),
        (&["devinfo", "udp://203.0.113.0/24"], "127.0.0.1"),
        (&["perf", "--device", "udp://lo"], "--peer-device"),
        (&["perf", "--device", "loopback://x"], "udp://"),
        (&["perf", "--connect", "127.0.0.1:1"], "--listen"),
        (&["ping", "127.0.0.1:1"], "hca ping --listen 127.0.0.1"),
        (&["perf", "--service", "ud", "--op", "read"], "choose other"),
        (&["devinfo", "shm://a/b"], "shm://lab"),
        (&["devinfo", "shm://lab?dir=/nonexistent"], "mkdir"),
        (&["perf", "--device", "udp://[::1]"], "--peer-device"),
        (&["pingpong", "rc", "--connect", "127.0.0.1", "--port", "1"], "--listen"),
        (&["pingpong", "rc", "--connect", "no-such-host.invalid"], "no address of no-such-host.invalid"),
        (&["pingpong", "ud", "127.0.0.1", "--size", "8192"], "--size"),
        (&["pingpong", "rc", "127.0.0.1", "--port", "1", "-g", "77"], "no entry 77"),
        (&["devinfo", "--capture", "/nonexistent/x.pcapng"], "/nonexistent/x.pcapng"),
        (&["devinfo", "--device", "udp://", "--capture", "/dev/full"], "capture file /dev/full: No space"),
        (
            &["perf", "--op", "send", "--size", "8", "--duration", "0.03", "--plot", "/nonexistent/x.svg"],
            "name another file with --plot",
        ),
    ] {
        let said = refusal(args, 1);
        assert!(said.contains(part), "{args:?} says {said:?}, which lacks {part:?}");
    }
}

#[test]
fn the_environment_names_the_device_and_is_blamed_if_it_is_wrong() {
    let out =
        hca(&["devinfo", "--json"]).env("HCA_DEVICE", "loopback://env?progress=inline").output().unwrap();
    assert_eq!(json_lines(&out)[0]["fabric"], "loopback");
    let out = hca(&["devinfo"]).env("HCA_DEVICE", "nothing").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("HCA_DEVICE"), "{}", text(&out.stderr));
}

#[test]
fn devinfo_takes_its_device_as_other_commands_do() {
    let info = &json_lines(&run(&["devinfo", "--json", "--device", "loopback://named?progress=inline"]))[0];
    assert_eq!(info["fabric"], "loopback");
}

#[test]
fn devinfo_takes_the_words_of_other_commands_and_the_one_of_before() {
    for args in [&["devinfo", "--json", "--fabric", "shm"][..], &["devinfo", "--json", "shm://lab"]] {
        let info = &json_lines(&run(args))[0];
        assert_eq!((&info["fabric"], &info["port"]["gids"][0]["type"]), (&"shm".into(), &"RoCE v2".into()));
    }
    let info = &json_lines(&run(&["devinfo", "--json", "--device", "udp://", "--progress", "thread"]))[0];
    assert_eq!((&info["progress"], &info["port"]["gids"][0]["interface"]), (&"thread".into(), &"lo".into()));
}

#[test]
fn list_tells_what_opens_and_why_the_rest_does_not() {
    let devices = json_lines(&run(&["list", "--json"])).remove(0);
    let of = |name: &str| devices.as_array().unwrap().iter().find(|d| d["device"] == name).cloned();
    assert_eq!(of("auto://").expect("it is listed")["opens"], true);
    let bad = devices.as_array().unwrap().iter().filter(|d| d["opens"] == false);
    assert!(bad.into_iter().all(|d| !d["why"].as_str().unwrap().is_empty()), "{devices}");
}

#[test]
fn ping_tells_the_way_the_path_mtu_and_the_round_trip() {
    let (mut listens, address, _said) = listener_of("ping", &["--once"]);
    let told = &json_lines(&run(&["ping", &address, "--device", "udp://?mtu=1024", "--json"]))[0];
    assert_eq!(
        (&told["way"], &told["path_mtu"], &told["address"]),
        (&"udp".into(), &1024.into(), &"127.0.0.1".into())
    );
    assert!(told["round_trips"].as_u64() > Some(0) && told["round_trip_p50_ns"].as_u64() > Some(0), "{told}");
    assert!(listens.wait().unwrap().success());
}

#[test]
fn a_capture_of_ping_that_a_full_disk_does_not_take_is_told() {
    let (mut listens, address, _said) = listener_of("ping", &["--once"]);
    let said = refusal(&["ping", &address, "--device", "udp://", "--capture", "/dev/full"], 1);
    assert!(said.contains("capture file /dev/full: No space"), "{said}");
    assert!(listens.wait().unwrap().success());
}

#[test]
fn stat_shows_a_running_adapter_by_process_and_queue_pair() {
    let mut waits = hca(&["pingpong", "rc", "--listen", "--port", "0", "--device", "udp://"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It says where it waits once its queue pair is made.
    let mut said = String::new();
    BufReader::new(waits.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let pid = waits.id().to_string();
    // A process that gets no CPU for a second is left out.
    let told = |args: &[&str], part: &str| {
        let begun = std::time::Instant::now();
        loop {
            let out = run(&[&["stat"], args, &["--pid", &pid]].concat());
            if text(&out.stdout).contains(part) || begun.elapsed() > signals::PATIENCE {
                return out;
            }
        }
    };
    let shown = json_lines(&told(&["--json"], "queue_pairs")).remove(0);
    let device = &shown["processes"][0]["devices"][0];
    assert!(device["device"].as_str().unwrap().starts_with("udp://127."), "{shown}");
    assert_eq!(
        (&device["queue_pairs"][0]["service"], &device["counters"]["queue_pairs"]),
        (&"rc".into(), &1.into())
    );
    let watched = told(&["--watch", "--count", "2", "--interval", "0.05"], "tx/s");
    let watched = text(&watched.stdout);
    let begun = std::time::Instant::now();
    assert!(run(&["stat", "--watch", "--count", "1", "--interval", "60"]).status.success());
    assert!(begun.elapsed().as_secs() < 60, "nothing comes behind the last look");
    assert!(watched.contains("tx/s") && watched.contains("RC 0x"), "{watched}");
    waits.kill().unwrap();
    waits.wait().unwrap();
    let out = run(&["stat", "--pid", &pid]);
    assert_eq!(
        (out.status.code(), text(&out.stdout)),
        (Some(3), format!("no process {pid} shows an adapter\n"))
    );
}

#[test]
fn completions_and_manual_pages_are_made() {
    for shell in ["bash", "zsh", "fish"] {
        let out = run(&["completions", shell]);
        let script = text(&out.stdout);
        assert!(out.status.success() && script.contains("pingpong"), "{shell}");
        assert!(!script.contains("run-guard"), "{shell} offers a hidden command");
    }
    let folder = Scratch::new("man");
    assert!(run(&["man", folder.path()]).status.success());
    assert!(std::fs::read_to_string(folder.0.join("hca-perf.1")).unwrap().contains(".TH"));
    std::fs::remove_dir_all(&folder.0).unwrap();
}

#[test]
fn devinfo_tells_limits_port_and_counters() {
    let info = &json_lines(&run(&["devinfo", "udp://?mtu=1024", "--json"]))[0];
    assert_eq!(info["limits"]["max_qp"], 65_533);
    assert_eq!(info["port"]["active_mtu"], 1024);
    assert!(info["port"]["gid"].as_str().unwrap().starts_with("::ffff:127."), "{info}");
    assert!(info["counters"].as_object().unwrap().len() > 5, "{info}");
    assert!(info["recv_buffer_bytes"].as_u64().unwrap() > 0, "{info}");
    let plain = run(&["devinfo"]);
    let plain = text(&plain.stdout);
    for part in ["auto://127.0.0.", "max_qp", "gid", "active_mtu", "receive_buffer"] {
        assert!(plain.contains(part), "{plain}");
    }
    let values = |line: &str| {
        let name = line.trim_start().split(' ').next().expect("a split has a first part");
        let behind = line.find(name).expect("it is there") + name.len();
        behind + line[behind..].len() - line[behind..].trim_start().len()
    };
    let columns: std::collections::BTreeSet<usize> =
        plain.lines().filter(|l| !l.is_empty()).map(values).collect();
    assert_eq!(columns.len(), 1, "all values begin in one column: {plain}");
}

#[test]
fn devinfo_tells_how_local_peers_are_reached() {
    let of = |device: &str| {
        let info = json_lines(&run(&["devinfo", device, "--json"])).remove(0);
        let note = info["notes"]["local peers"].as_str().map(str::to_owned);
        (info["fabric"].as_str().unwrap().to_owned(), note, info["counters"]["paths_by_shm"].as_u64())
    };
    let (fabric, note, counted) = of("auto://");
    assert_eq!((fabric.as_str(), counted), ("auto", Some(0)));
    assert!(note.unwrap().starts_with("by shared memory"));
    assert_eq!(of("auto://?mtu=1024"), ("udp".to_owned(), None, None));
}

#[test]
fn a_trace_tells_why_entries_do_not_take_a_message_and_how_it_ended_by_its_exit_code() {
    let told = run(&["portals", "trace"]);
    let said = text(&told.stdout);
    assert_eq!(told.status.code(), Some(0), "{said}{}", text(&told.stderr));
    for part in ["exact-behind-wildcards", "bits differ in", "PutOverflow", "PtDisabled", "is for user"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(text(&run(&["portals", "trace", "--list"]).stdout).contains("flow-control"));
    let file = Scratch::new("lists.txt");
    let trace = |lines: &str, more: &[&str]| {
        std::fs::write(&file.0, lines).unwrap();
        run(&[&["portals", "trace", file.path()], more].concat())
    };
    let missed = trace("portal 4\npost e portal=4 bits=1\nput portal=4 bits=2 expect=ok\n", &["--json"]);
    assert_eq!(missed.status.code(), Some(3));
    let rows: Vec<serde_json::Value> =
        text(&missed.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[2]["line"]), (3, &3.into()));
    assert_eq!(rows[2]["compared"][0]["why"], "bits differ in 0x3");
    assert_eq!(
        (&rows[2]["outcome"]["fail"], &rows[2]["outcome"]["expected"]),
        (&"Dropped".into(), &false.into())
    );
    let wrong = trace("portal 4\n\npost e portal=5\n", &[]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = text(&wrong.stderr);
    assert!(said.contains("lists.txt:3:") && said.contains("`portal 5`"), "{said}");
}

#[test]
fn perf_draws_prints_and_captures() {
    let (plot, capture) = (Scratch::new("plot.svg"), Scratch::new("run.pcapng"));
    let args = ["perf", "--op", "write", "--size", "8,1K", "--duration", "0.04"];
    let files = ["--plot", plot.path(), "--capture", capture.path(), "--fault", "loss=0.01,seed=7"];
    let out = run(&[&args[..], &files].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let table = text(&out.stdout);
    assert!(table.contains("rc write") && table.contains("1 KiB") && table.contains("p99.9"), "{table}");
    assert!(std::fs::read_to_string(&plot.0).unwrap().contains("</svg>"));
    let captured = std::fs::read(&capture.0).unwrap();
    assert_eq!(captured[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng section begins the file");
    assert!(captured.len() > 1000);
}

/// A listener, where it listens, and what it says (which has to be kept open while it runs).
fn listener() -> (Child, String, BufReader<ChildStderr>) {
    listener_with(&["--once"])
}

fn listener_with(more: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
    listener_of("perf", more)
}
fn listener_of(command: &str, more: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
    let args = [&[command, "--listen", "127.0.0.1:0"], more].concat();
    let mut child = hca(&args).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.split_whitespace().nth(2).unwrap().trim_end_matches(';').to_owned();
    (child, address, said)
}

#[test]
fn perf_measures_against_a_listener() {
    let (mut child, address, mut said) = listener();
    let rows = json_lines(&run(&[
        "perf",
        "--json",
        "--connect",
        &address,
        "--op",
        "read",
        "--size",
        "64",
        "--duration",
        "0.04",
    ]));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["placement"], "unknown");
    let status = child.wait().unwrap();
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    assert!(status.success(), "{text}");
}

#[test]
fn a_silent_client_keeps_nobody_from_a_listener() {
    let (child, address, mut said) = listener_with(&[]);
    let mut silent = std::net::TcpStream::connect(&address).unwrap();
    let args = ["perf", "--json", "--connect", &address, "--op", "send", "--size", "8", "--duration", "0.04"];
    assert_eq!(json_lines(&run(&args)).len(), 1);
    // It is told, and its connection is closed.
    let mut told = String::new();
    silent.read_to_string(&mut told).unwrap();
    assert!(told.contains("sent nothing"), "{told}");
    ended_by_ctrl_c(child);
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    assert!(text.contains("the peer sent nothing for 3s"), "{text}");
}

#[test]
fn a_client_that_goes_silent_in_the_middle_of_a_measurement_is_given_up_on() {
    use rustix::process::{Pid, Signal, kill_process};
    let capture = Scratch::new("stopped-client.pcapng");
    let (mut child, address, mut said) = listener_with(&["--once", "--capture", capture.path()]);
    let args = ["perf", "--connect", &address, "--op", "send", "--size", "8", "--duration", "60"];
    let client = hca(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Packets are there once it measures: more than one buffer of them has been written.
    while std::fs::metadata(&capture.0).map_or(0, |m| m.len()) < 10_000 {
        std::thread::yield_now();
    }
    let stopped = Pid::from_raw(client.id() as i32).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    // When it goes on, it hears of that.
    kill_process(stopped, Signal::CONT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(text.contains("the peer sent nothing for 10s"), "{text}");
    assert!(is_whole_capture(&capture));
    let out = client.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(told.contains("sent nothing for 10s") || told.contains("closed the control channel"), "{told}");
}

/// A listener's answers to lines, each of which it answers; the last one is before it hangs up.
fn told_by(address: &str, lines: &[String]) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut told = String::new();
    for line in lines {
        // The listener may have hung up on an earlier one.
        let _ = stream.write_all(format!("{line}\n").as_bytes());
        told.clear();
        answers.read_line(&mut told).unwrap();
    }
    told
}

#[test]
fn a_listener_refuses_what_no_honest_host_asks_and_serves_the_next() {
    let (child, address, _said) = listener_with(&["--memory", "8M"]);
    let hello = r#"{"hello":{"protocol":4,"device":"nothing","cpu":4000000}}"#;
    let prepare = |size: u64, len: u64| {
        let qp = r#"{"service":"Rc","qpn":5,"psn":7,"mtu":1024,"rd_atomic":16,"gid":"::ffff:127.0.0.99"}"#;
        let window = format!(r#"{{"addr":0,"rkey":1,"len":{len}}}"#);
        let case = format!(r#"{{"service":"rc","op":"write","size":{size}}}"#);
        let endpoint = format!(r#"{{"qp":{qp},"window":{window}}}"#);
        format!(r#"{{"prepare":{{"case":{case},"phase":"latency","mtu":1024,"endpoint":{endpoint}}}}}"#)
    };
    let node = |eager: u64, card: &str| {
        format!(r#"{{"node":{{"settings":{{"offload":false,"eager_bytes":{eager}}},"card":{card}}}}}"#)
    };
    let card = format!("{:?}", [0; 30]);
    for (line, part) in [
        (prepare(0, 64), "a size of 0"),
        (prepare(1 << 31, 64), "a size of 2147483648"),
        (prepare(1 << 30, 1 << 40), "--memory"),
        (prepare(64, 4), "offers 4 bytes of memory"),
        (prepare(64, 72).replace("\"qpn\":5", "\"qpn\":1"), "qpn"),
        (prepare(64, 72).replace("::ffff:127.0.0.99", "ff02::1"), "gid"),
        (prepare(64, 72).replace("\"addr\":0", "\"addr\":18446744073709551615"), "beyond all addresses"),
        (prepare(64, 72).replace("\"write\"", "\"put\""), "rc has no put"),
        (prepare(64, 72).replace("\"mtu\":1024,\"endpoint\"", "\"mtu\":7,\"endpoint\""), "a path MTU of 7"),
        (node(1 << 24, &card), "16777216 bytes with a header"),
        (node(4096, "[1,2,3]"), "not a card"),
        (r#"{"move":{"case":{"op":"put","size":8,"before":{"count":9999999,"entries":"exact"}},"phase":"latency"}}"#.to_owned(), "9999999 entries"),
    ] {
        let told = told_by(&address, &[hello.to_owned(), line.clone()]);
        assert!(told.contains("failed") && told.contains(part), "{line}: {told}");
    }
    let args =
        ["perf", "--json", "--connect", &address, "--op", "write", "--size", "64", "--duration", "0.04"];
    assert_eq!(json_lines(&run(&args)).len(), 1);
    ended_by_ctrl_c(child);
}

#[test]
fn a_stranger_at_the_listener_is_named() {
    let (mut child, address, mut said) = listener();
    std::net::TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    assert!(text.contains("GET / HTTP") && text.contains("same version"), "{text}");
}

/// The end of a ping-pong that waits, where it does, and what it says (which has to be kept open while it runs).
fn pingpong_server(args: &[&str]) -> (Child, std::net::SocketAddr, BufReader<ChildStderr>) {
    let mut child = hca(&[&["pingpong"], args, &["--listen", "--port", "0"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address =
        line.strip_prefix("waiting on ").and_then(|l| l.split_once(';')).and_then(|l| l.0.parse().ok());
    (child, address.unwrap_or_else(|| panic!("the server does not say where it waits: {line:?}")), said)
}

/// Both ends of a ping-pong.
fn bounce(service: &str, more: &[&str]) -> (Output, Output) {
    let common = [&[service, "--iters", "200"][..], more].concat();
    let (server, at, mut said) = pingpong_server(&common);
    let (host, port) = (at.ip().to_string(), at.port().to_string());
    let client = run(&[&["pingpong"], &common[..], &[&host, "--port", &port]].concat());
    let mut server = server.wait_with_output().unwrap();
    said.read_to_end(&mut server.stderr).unwrap();
    (server, client)
}

#[test]
fn both_ends_of_a_pingpong_meet_for_every_service() {
    for (service, more) in [
        ("rc", &[][..]),
        ("rc", &["--chk", "--size", "10000"]),
        ("uc", &["--chk", "--size", "1000"]),
        ("ud", &["--chk", "--size", "1024"]),
        ("rc", &["--cm", "--chk", "--mtu", "4096"]),
        ("uc", &["--cm", "--chk", "--size", "1000"]),
        ("ud", &["--cm", "--chk", "--size", "1024"]),
    ] {
        let (server, client) = bounce(service, more);
        let both = [&server, &client].map(|out| text(&out.stdout) + &text(&out.stderr));
        for (out, said) in [&server, &client].into_iter().zip(&both) {
            assert!(out.status.success(), "{service}: {}{}", both[0], both[1]);
            assert!(said.contains("remote address") && said.contains("usec/iter"), "{service}: {said}");
        }
    }
}

#[test]
fn ends_with_different_path_mtus_say_what_the_cause_may_be() {
    let (server, at, mut said) = pingpong_server(&["rc", "--device", "udp://", "--mtu", "4096"]);
    let (host, port) = (at.ip().to_string(), at.port().to_string());
    let args = ["pingpong", "rc", &host, "--device", "udp://", "--port", &port, "--mtu", "1024"];
    let client = run(&args);
    let server = server.wait_with_output().unwrap();
    let mut near = String::new();
    said.read_to_string(&mut near).unwrap();
    assert_eq!((server.status.code(), client.status.code()), (Some(1), Some(1)), "{near}");
    assert!(near.contains("path MTU (4096 here"), "{near}");
    assert!(near.contains("event: the other end sent a request"), "{near}");
    let far = text(&client.stderr);
    assert!(far.contains("path MTU (1024 here"), "{far}");
}

#[test]
fn a_pingpong_server_waits_on_the_address_of_its_device() {
    let own = address(5);
    let (mut server, at, _said) = pingpong_server(&["rc", "--device", &format!("udp://{own}")]);
    assert_eq!(at.ip().to_string(), own);
    server.kill().unwrap();
    server.wait().unwrap();
    let (mut server, at, _said) = pingpong_server(&["rc", "--bind", "127.0.0.1"]);
    assert_eq!(at.ip().to_string(), "127.0.0.1");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_served_function_is_at_its_socket_until_ctrl_c_and_nobody_else_can_serve_there() {
    let socket = Scratch::new("serve.sock");
    let mut server = hca(&["serve", "--pci", socket.path()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(
        line.contains(socket.path()) && line.contains("loopback://") && line.contains("15b3:1014"),
        "{line}"
    );
    std::os::unix::net::UnixStream::connect(socket.path()).expect("it listens once it says so");

    let said = refusal(&["serve", "--pci", socket.path()], 1);
    assert!(said.contains(socket.path()) && said.contains("another server"), "{said}");

    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(130));
    assert!(!std::path::Path::new(socket.path()).exists(), "the socket is gone with its server");
}

#[test]
fn what_can_not_be_served_is_refused_with_a_reason() {
    let file = Scratch::new("serve.txt");
    std::fs::write(file.path(), "text").unwrap();
    let said = refusal(&["serve", "--pci", file.path()], 1);
    assert!(said.contains("not a socket"), "{said}");
    assert!(std::path::Path::new(file.path()).exists(), "what is no socket stays");
    let said = refusal(&["serve", "--pci", "/nowhere/at/all.sock"], 1);
    assert!(said.contains("/nowhere/at/all.sock"), "{said}");
    let said = refusal(&["serve", "--pci", "/tmp/x.sock", "--device", "udp://?progress=thread"], 1);
    assert!(said.contains("progress="), "{said}");
    assert!(refusal(&["serve"], 2).contains("--pci"));
    assert!(refusal(&["serve", "--pci", "/tmp/x.sock", "--port", "token-ring"], 2).contains("ib or roce"));
    assert!(refusal(&["serve", "--pci", "/tmp/x.sock,ip=10.0.0"], 2).contains("as in ip=10.0.0.5"));
    let roce = |sockets: [&str; 2]| {
        refusal(&["serve", "--port", "roce", "--pci", sockets[0], "--pci", sockets[1]], 1)
    };
    let mac = "mac=02:00:00:00:00:01";
    let said = roce([&format!("/tmp/x.sock,{mac}"), &format!("/tmp/y.sock,{mac}")]);
    assert!(said.contains("/tmp/y.sock: ") && said.contains("give each function a different one"), "{said}");
    let said = roce(["/tmp/x.sock,ip=10.0.0.1", "/tmp/y.sock,ip=::ffff:10.0.0.1"]);
    assert!(said.contains("/tmp/y.sock: ") && said.contains("10.0.0.1"), "{said}");
    let said = roce(["/tmp/x.sock,mac=01:00:00:00:00:01", "/tmp/y.sock"]);
    assert!(said.contains("/tmp/x.sock: ") && said.contains("group"), "{said}");
    let said = roce(["/tmp/x.sock,ip=224.0.0.1", "/tmp/y.sock"]);
    assert!(said.contains("/tmp/x.sock: ") && said.contains("group"), "{said}");
    let said = refusal(&["serve", "--pci", "/tmp/x.sock,ip=10.0.0.1"], 1);
    assert!(said.contains("InfiniBand"), "{said}");
}

/// The command under limits of its shell, as `ulimit -f 64`.
fn limited(limits: &str, args: &[&str]) -> Output {
    let script = format!("{limits} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_hca")]).args(args);
    command.env_remove("HCA_DEVICE").stdin(Stdio::null()).output().expect("there is a shell")
}

#[test]
fn a_limit_of_file_sizes_is_told_and_leaves_the_network() {
    // Blocks of 512 bytes: less than a board, and more than that but less than a ring.
    for blocks in [16, 1024] {
        let limit = format!("ulimit -f {blocks}");
        let out = limited(&limit, &["devinfo", &format!("auto://{}", address(7))]);
        let said = text(&out.stdout) + &text(&out.stderr);
        assert!(out.status.success() && said.contains("ulimit -f"), "{blocks}: {} {said}", out.status);
        let out = limited(&limit, &["devinfo", "shm://limited"]);
        let said = text(&out.stderr);
        assert!(
            out.status.code() == Some(1) && said.contains("ulimit -f"),
            "{blocks}: {} {said}",
            out.status
        );
    }
}

#[test]
fn errors_name_the_limit_of_descriptors() {
    let at = address(8);
    for device in [&format!("auto://{at}"), "shm://limited", &format!("udp://{at}")] {
        for descriptors in 5..=20 {
            let out = limited(&format!("ulimit -n {descriptors}"), &["devinfo", device]);
            let said = text(&out.stdout) + &text(&out.stderr);
            let told = out.status.success() || said.contains("ulimit -n");
            assert!(told, "{device} with {descriptors}: {} {said}", out.status);
        }
    }
}
