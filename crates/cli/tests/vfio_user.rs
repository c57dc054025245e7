//! The command on functions that another process of it serves: `hca serve` and `vfio-user://`.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

fn hca(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hca"));
    command.args(args).env_remove("HCA_DEVICE").stdin(Stdio::null());
    command
}
fn run(args: &[&str]) -> Output {
    hca(args).output().unwrap()
}
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server with two functions.
struct Served {
    folder: PathBuf,
    server: Child,
}

impl Served {
    fn start(name: &str, port: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("hca-vfio-user-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let sockets = ["a", "b"].map(|s| folder.join(s).display().to_string());
        let mut serve = hca(&["serve", "--pci", &sockets[0], "--pci", &sockets[1], "--port", port]);
        let mut server = serve.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(
            said.by_ref().take(2).all(|line| line.unwrap().contains("15b3:1014")),
            "it says where it listens"
        );
        Self { folder, server }
    }
    fn url(&self, function: &str) -> String {
        format!("vfio-user://{}", self.folder.join(function).display())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

#[test]
fn devinfo_tells_of_a_served_function_and_refusals_tell_what_to_do() {
    let served = Served::start("devinfo", "ib");
    let told = run(&["devinfo", "--json", &served.url("a")]);
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("it is JSON");
    assert_eq!(told["device"], served.url("a"));
    assert_eq!(
        (&told["fabric"], &told["port"]["active"], &told["port"]["lid"]),
        (&"infiniband".into(), &true.into(), &1.into())
    );
    assert!(told["counters"]["pages_lent"].as_u64().unwrap() > 0);
    let out = run(&["devinfo", &served.url("b")]);
    let told = text(&out.stdout);
    let lid = told.lines().find_map(|line| line.trim_start().strip_prefix("lid "));
    assert_eq!(lid.map(str::trim_start), Some("0x0002"), "{told}");

    for (url, parts) in [
        ("vfio-user:///nowhere/a.sock".to_owned(), ["/nowhere/a.sock", "start it"]),
        ("vfio://nothing".to_owned(), ["`nothing` is not a PCI address", "lspci"]),
        ("vfio://ffff:ff:1f.7".to_owned(), ["no PCI function ffff:ff:1f.7", "lspci"]),
        (format!("{}?ip=10.0.0.2", served.url("a")), ["`ip`", "InfiniBand"]),
    ] {
        let out = run(&["devinfo", &url]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{url}: {said}");
        assert!(parts.iter().all(|p| said.contains(p)), "{url}: {said}");
    }
    let said = text(&run(&["serve", "--pci", "/tmp/x.sock", "--device", &served.url("a")]).stderr);
    assert!(said.contains("only the software adapter can be served"), "{said}");
}

#[test]
fn two_served_functions_play_ping_pong_by_each_service_on_either_port() {
    // On the Ethernet ports: by what their MACs make, by ARP, by neighbour discovery.
    for (port, own) in [("ib", ""), ("roce", ""), ("roce", "?ip=10.7.0."), ("roce", "?ip=fd00:7::")] {
        let served = Served::start("pingpong", port);
        for service in ["rc", "uc", "ud"] {
            let at = |function: &str, i| match own {
                "" => served.url(function),
                own => format!("{}{own}{i}", served.url(function)),
            };
            let (a, b) = (at("a", 1), at("b", 2));
            let mut waits =
                hca(&["pingpong", service, "--device", &a, "--server", "--port", "0", "--iters", "100"]);
            let mut waits = waits.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(waits.stderr.take().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            let at = line
                .split_once(" --port ")
                .and_then(|(_, at)| at.split(|c: char| !c.is_ascii_digit()).next());
            let at = at.unwrap_or_else(|| panic!("it does not say where it waits: {line}"));
            assert!(line.contains("THIS-HOST"), "{line}");
            let calls =
                run(&["pingpong", service, "--device", &b, "127.0.0.1", "--port", at, "--iters", "100"]);
            let waited = waits.wait_with_output().unwrap();
            let (far, near) = (text(&calls.stdout) + &text(&calls.stderr), text(&waited.stdout));
            assert!(calls.status.success() && waited.status.success(), "{port}{own} {service}: {far}{near}");
            assert!(far.contains("100 iters") && near.contains("100 iters"), "{far}{near}");
        }
    }
}

#[test]
fn perf_measures_between_two_served_functions_and_wants_a_function_for_each_process() {
    let served = Served::start("perf", "ib");
    let (a, b) = (served.url("a"), served.url("b"));
    let common = ["perf", "--device", &a, "--size", "8", "--duration", "0.05", "--json"];
    let out = run(&[&common[..], &["--peer-device", &b]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let rows: Vec<serde_json::Value> =
        text(&out.stdout).lines().map(|row| serde_json::from_str(row).expect("a row is JSON")).collect();
    assert!(rows.len() >= 4 && rows.iter().all(|row| row["fabric"] == "infiniband"), "{}", text(&out.stdout));
    let said = text(&run(&common).stderr);
    assert!(said.contains("one user at a time") && said.contains("--peer-device"), "{said}");
}
