//! Signals that end the command: soon, with their exit codes, and with all files whole.

use super::*;

/// The longest wait for the end of a command, which takes its turn beside other programs.
pub(super) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Presses Ctrl-C once, which ends the command soon, with 130.
pub(super) fn ended_by_ctrl_c(child: Child) -> Output {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (ended, came) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output().unwrap()));
    let out = came.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let said = came.recv().unwrap();
        panic!("it goes on after Ctrl-C: {}{}", text(&said.stdout), text(&said.stderr));
    });
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    out
}

/// A file of packets that ends where a block of it ends.
pub(super) fn is_whole_capture(file: &Scratch) -> bool {
    let bytes = std::fs::read(&file.0).unwrap();
    let mut rest = &bytes[..];
    while let Some(len) = rest.get(4..8) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        let Some(behind) = rest.get(len..) else { return false };
        rest = behind;
    }
    rest.is_empty() && !bytes.is_empty()
}

#[test]
fn ctrl_c_ends_a_pingpong_whose_server_is_silent() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let capture = Scratch::new("silent-server.pcapng");
    let args = ["pingpong", "rc", "127.0.0.1", "--port", &port, "--capture", capture.path()];
    let client = hca(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Once its address has come, it waits for ours.
    let mut stream = silent.accept().unwrap().0;
    stream.read_exact(&mut [0; 50]).unwrap();
    ended_by_ctrl_c(client);
    assert!(is_whole_capture(&capture));
}

#[test]
fn ctrl_c_ends_a_pingpong_whose_client_is_silent() {
    let (server, at, mut said) = pingpong_server(&["rc"]);
    let _silent = std::net::TcpStream::connect(at).unwrap();
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("called by"), "{line}");
    ended_by_ctrl_c(server);
}

#[test]
fn ctrl_c_ends_a_listener_whose_client_is_silent() {
    let (child, address, mut said) = listener();
    let _silent = std::net::TcpStream::connect(address).unwrap();
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("measuring with"), "{line}");
    ended_by_ctrl_c(child);
}

#[test]
fn ctrl_c_ends_a_listener_in_the_middle_of_a_measurement() {
    let capture = Scratch::new("listener.pcapng");
    let (child, address, said) = listener_with(&["--once", "--capture", capture.path()]);
    let args = ["perf", "--connect", &address, "--op", "send", "--size", "8", "--duration", "60"];
    let client = hca(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Packets are there once it measures: more than one buffer of them has been written.
    while std::fs::metadata(&capture.0).map_or(0, |m| m.len()) < 10_000 {
        std::thread::yield_now();
    }
    ended_by_ctrl_c(child);
    assert!(is_whole_capture(&capture));
    let told = client.wait_with_output().unwrap();
    assert_eq!(told.status.code(), Some(1));
    assert!(text(&told.stderr).contains("Ctrl-C"), "{}", text(&told.stderr));
    drop(said);
}

#[test]
fn ctrl_c_ends_a_measurement_whose_listener_is_silent() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let capture = Scratch::new("silent-listener.pcapng");
    let args = ["perf", "--connect", &address, "--capture", capture.path()];
    let child = hca(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It waits for the answer to its first line.
    let mut stream = BufReader::new(silent.accept().unwrap().0);
    stream.read_line(&mut String::new()).unwrap();
    ended_by_ctrl_c(child);
    assert!(is_whole_capture(&capture));
}

#[test]
fn ctrl_c_ends_both_processes_with_130() {
    let capture = Scratch::new("ctrl-c.pcapng");
    let child =
        hca(&["perf", "--op", "send", "--size", "8", "--duration", "60", "--capture", capture.path()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    // It measures once its peer runs.
    let peer = child_of(&child);
    ended_by_ctrl_c(child);
    assert!(is_whole_capture(&capture));
    assert!(!std::path::Path::new(&format!("/proc/{peer}")).exists(), "the peer is gone");
}

/// The number of the process that this one has started, once it has.
fn child_of(child: &Child) -> String {
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    loop {
        let list = std::fs::read_to_string(&children).unwrap();
        if let Some(first) = list.split_whitespace().next() {
            return first.to_owned();
        }
        std::thread::yield_now();
    }
}

/// A `hca logp` that measures a layer, and the number of its other process.
fn logp(layer: &str, capture: &Scratch) -> (Child, String) {
    let args = ["logp", "--layer", layer, "--duration", "60", "--capture", capture.path()];
    let child = hca(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // More than one buffer of packets has been written.
    while std::fs::metadata(&capture.0).map_or(0, |m| m.len()) < 10_000 {
        std::thread::yield_now();
    }
    let other = child_of(&child);
    (child, other)
}

/// Waits until a process has ended.
fn until_gone(process: &str) {
    let begun = std::time::Instant::now();
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().unwrap_or_default().chars().next()
    };
    while !matches!(state(), None | Some('Z')) {
        assert!(begun.elapsed() < PATIENCE, "process {process} goes on");
        // Between two looks at another process, which tells nobody of its end.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn ctrl_c_ends_both_processes_of_logp_and_no_row_is_shown() {
    for layer in ["verbs", "via", "am", "global", "portals"] {
        let capture = Scratch::new("ctrl-c-logp.pcapng");
        let (child, other) = logp(layer, &capture);
        // A terminal tells both.
        let pid = rustix::process::Pid::from_raw(other.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let out = ended_by_ctrl_c(child);
        assert_eq!((text(&out.stdout), text(&out.stderr)), Default::default(), "{layer}");
        assert!(is_whole_capture(&capture), "{layer}");
        until_gone(&other);
    }
}

#[test]
fn no_process_of_logp_outlives_the_one_that_started_it() {
    for layer in ["verbs", "via", "am", "am-via", "global"] {
        let capture = Scratch::new("killed-logp.pcapng");
        let (mut child, other) = logp(layer, &capture);
        child.kill().unwrap();
        child.wait().unwrap();
        until_gone(&other);
    }
}

#[test]
fn the_end_of_the_other_process_of_logp_is_told() {
    for layer in ["verbs", "portals", "global"] {
        let capture = Scratch::new("half-logp.pcapng");
        let (child, other) = logp(layer, &capture);
        let pid = rustix::process::Pid::from_raw(other.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let near = child.id().to_string();
        until_gone(&near);
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{layer}: {}", text(&out.stderr));
        assert!(text(&out.stderr).starts_with("hca: "), "{layer}: {}", text(&out.stderr));
        if layer == "global" {
            let told = "the far side has ended (signal: 9 (SIGKILL)): ";
            assert!(text(&out.stderr).contains(told), "{}", text(&out.stderr));
        }
    }
}

fn ignores_sighup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0
}

#[test]
fn signals_that_end_the_command_leave_no_socket_files() {
    let folder = std::env::temp_dir().join(format!("hca-{}-signals", std::process::id()));
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&folder).unwrap();
    let in_folder = || std::fs::read_dir(&folder).unwrap().count();
    let device = format!("shm://signals?dir={}", folder.display());
    let both = [(rustix::process::Signal::TERM, 143), (rustix::process::Signal::HUP, 129)];
    // Whoever started the tests may have SIGHUP ignored (nohup), which the command heeds.
    for (signal, code) in both.into_iter().take(if ignores_sighup() { 1 } else { 2 }) {
        let (mut server, ..) = pingpong_server(&["rc", "--device", &device, "--bind", "127.0.0.1"]);
        assert_eq!(in_folder(), 1, "the adapter's socket");
        rustix::process::kill_process(rustix::process::Pid::from_child(&server), signal).unwrap();
        let status = server.wait().unwrap();
        assert_eq!((status.code(), in_folder()), (Some(code), 0), "{signal:?} at a ping-pong: {status}");
        let socket = folder.join("serve.sock");
        let args = ["serve", "--pci", socket.to_str().unwrap()];
        let mut server = hca(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&server), signal).unwrap();
        let status = server.wait().unwrap();
        assert_eq!((status.code(), in_folder()), (Some(code), 0), "{signal:?} at a server: {status}");
    }
    std::fs::remove_dir(&folder).unwrap();
}
