//! Unmodified programs of librdmacm: Debian's rdmacm-utils.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::{AUTO, UDP, exec, free_port, text};

/// A server and its client get so much time.
const LIMIT: Duration = Duration::from_secs(60);

/// A program that ends with the test.
pub(super) struct Server(Option<Child>);

impl Server {
    pub(super) fn start(arguments: &[&str]) -> Self {
        let child = exec(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self(Some(child))
    }
    fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }
    /// The output of the program until its end, which is waited for.
    pub(super) fn output(mut self) -> std::process::Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}
impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a client until it is successful: one that comes before its server listens is rejected at once.
pub(super) fn client(device: &str, arguments: &[&str], server: &mut Server) -> String {
    let begun = Instant::now();
    loop {
        let said = exec(&[&["--device", device], arguments].concat()).output().unwrap();
        if said.status.success() {
            return text(&said);
        }
        let case = format!("{arguments:?} on {device}: {}", text(&said));
        assert!(begun.elapsed() < LIMIT && !server.has_ended(), "{case}");
    }
}

/// Whether a process at a shared address of this machine has claimed a port of connections or of datagrams.
fn is_claimed(port: &str) -> bool {
    let port: u16 = port.parse().unwrap();
    let names =
        [0x0106_u32, 0x0111, 0x013f].map(|space| format!("/service/{:016x}", space << 16 | u32::from(port)));
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().any(|line| names.iter().any(|name| line.ends_with(name)))
}

/// Whether rping's server has failed by itself, behind its client's end: its thread has asked for the next event when
/// the main thread had destroyed the channel, before the main thread ended the program.
fn asked_behind_its_end(said: &str) -> bool {
    let end = "DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\nrdma_get_cm_event: Invalid argument";
    said.trim_end().ends_with(end)
}

/// Runs a server and its client to the end of both, and returns what both said. They begin anew if some connections
/// came before the server listens: such a server waits for more than the client makes.
pub(super) fn pair(device: &str, port: &str, server: &[&str], clients: &[&str]) -> [String; 2] {
    let begun = Instant::now();
    loop {
        let mut running = Server::start(&[&["--device", device], server].concat());
        while !is_claimed(port) && !running.has_ended() {
            assert!(begun.elapsed() < LIMIT, "{server:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        let client = exec(&[&["--device", device], clients].concat()).output().unwrap();
        if client.status.success() {
            let said = running.output();
            if said.status.success() {
                return [text(&said), text(&client)];
            }
            let in_time = begun.elapsed() < LIMIT;
            assert!(in_time && asked_behind_its_end(&text(&said)), "{server:?} on {device}: {}", text(&said));
            continue;
        }
        assert!(begun.elapsed() < LIMIT, "{clients:?} on {device}: {}", text(&client));
    }
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn rping_reads_and_writes_over_ipv4_ipv6_and_shared_memory() {
    for (device, at) in [(UDP, "127.0.0.1"), ("udp://[::1]?share=yes", "::1"), (AUTO, "127.0.0.1")] {
        let port = free_port();
        let [server, client] = pair(
            device,
            &port,
            &["rping", "-s", "-a", at, "-p", &port, "-v", "-C", "3"],
            &["rping", "-c", "-a", at, "-p", &port, "-v", "-C", "3"],
        );
        for said in [server, client] {
            assert!(said.contains("ping data: rdma-ping-2: CDEFGHIJ"), "{device}: {said}");
        }
    }
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn a_server_that_stays_serves_one_client_after_the_other() {
    let port = free_port();
    let mut server = Server::start(&["--device", UDP, "rping", "-s", "-P", "-a", "127.0.0.1", "-p", &port]);
    for _ in 0..3 {
        client(UDP, &["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "10"], &mut server);
    }
    assert!(!server.has_ended());
}

/// The moments reach from the start of the program to data on the connection.
#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn a_server_outlives_clients_that_are_killed_at_any_moment() {
    let port = free_port();
    let mut server = Server::start(&["--device", UDP, "rping", "-s", "-P", "-a", "127.0.0.1", "-p", &port]);
    let endless = ["--device", UDP, "rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "1000000"];
    for moment in [0, 20, 40, 80, 160, 320] {
        let client = Server::start(&endless);
        std::thread::sleep(Duration::from_millis(moment));
        drop(client);
    }
    client(UDP, &["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "10"], &mut server);
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn programs_connect_with_endpoints_and_with_event_channels() {
    let port = free_port();
    let ends = ["-s", "127.0.0.1", "-p", &port];
    pair(UDP, &port, &["rdma_server", "-p", &port], &[&["rdma_client"][..], &ends].concat());
    // These end well even if their message fails.
    for service in ["r", "x"] {
        let server = ["--explain", "rdma_xserver", "-c", service, "-p", &port];
        let said =
            pair(UDP, &port, &server, &[&["--explain", "rdma_xclient", "-c", service][..], &ends].concat());
        assert!(!said.concat().contains("hca: "), "{service}: {said:?}");
    }
    let many = ["-c", "5", "-C", "10", "-p", &port];
    let [server, client] = pair(
        UDP,
        &port,
        &[&["ucmatose"][..], &many].concat(),
        &[&["ucmatose", "-s", "127.0.0.1", "-b", "127.0.0.1"][..], &many].concat(),
    );
    assert!(server.contains("return status 0") && client.contains("return status 0"), "{server}{client}");
}

/// The programs' devices stay open until they end.
#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn a_capture_is_complete_when_its_program_ends() {
    let port = free_port();
    let file = std::env::temp_dir().join(format!("hca-capture-{}.pcapng", std::process::id()));
    let capture = ["--capture", file.to_str().unwrap()];
    let server = [&capture[..], &["rdma_server", "-p", &port]].concat();
    pair(UDP, &port, &server, &["rdma_client", "-s", "127.0.0.1", "-p", &port]);
    // The reply, the end of the connection and a message each way have their frames.
    let frames = std::fs::read(&file).unwrap();
    assert!(frames.len() > 1000, "{}", frames.len());
    std::fs::remove_file(file).unwrap();
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn an_address_of_loopback_without_an_adapter_reaches_the_own_device() {
    let port = free_port();
    let device = "udp://127.0.0.4?share=yes";
    pair(device, &port, &["rdma_server", "-p", &port], &["rdma_client", "-s", "127.0.0.9", "-p", &port]);
}

/// Its port is always the same, so that no other test runs it.
#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn datagram_services_are_found() {
    let many = ["-c", "5", "-C", "10"];
    let [server, client] = pair(
        UDP,
        "7174",
        &[&["udaddy"][..], &many].concat(),
        &[&["udaddy", "-s", "127.0.0.1", "-b", "127.0.0.1"][..], &many].concat(),
    );
    assert!(server.contains("return status 0") && client.contains("return status 0"), "{server}{client}");
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn a_server_listens_on_each_of_its_devices() {
    let port = free_port();
    // Addresses that no other test has: a device whose address is taken is left out.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let [a, b, own] = [90, 91, 92].map(|net| format!("127.{net}.{high}.{}", low.clamp(1, 254)));
    let two = format!("a=udp://{a}?share=yes b=udp://{b}?share=yes");
    let device = format!("udp://{own}?share=yes");
    let mut command = exec(&["rping", "-s", "-P", "-p", &port]);
    command.env("HCA_DEVICES", two).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Server(Some(command.spawn().unwrap()));
    for at in [&a, &b] {
        client(&device, &["rping", "-c", "-a", at, "-p", &port, "-C", "2"], &mut server);
    }
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn connections_are_made_and_ended_by_the_hundred() {
    let port = free_port();
    let mut server = Server::start(&["--device", UDP, "cmtime", "-c", "100", "-p", &port]);
    let said = client(UDP, &["cmtime", "-s", "127.0.0.1", "-c", "100", "-p", &port], &mut server);
    assert!(said.contains("disconnect"), "{said}");
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn members_of_a_group_receive_what_is_sent_to_it() {
    let group = ["--device", UDP, "mckey", "-m", "239.77.1.2", "-b", "127.0.0.1", "-C", "10"];
    let mut member = Server::start(&group);
    let begun = Instant::now();
    // What is sent before it has joined is lost.
    while !member.has_ended() {
        let sender = exec(&[&group[..], &["-s"]].concat()).output().unwrap();
        assert!(text(&sender).contains("return status 0"), "{}", text(&sender));
        assert!(begun.elapsed() < LIMIT);
    }
    let said = text(&member.output());
    assert!(said.contains("return status 0"), "{said}");
}

/// Each first connects to exchange its parameters; then the server listens anew.
#[test]
#[ignore = "needs perftest: its measuring programs"]
fn perftest_connects_by_librdmacm() {
    for program in ["ib_send_lat", "ib_read_lat"] {
        let port = free_port();
        let server = [program, "-R", "-n", "200", "-F", "-p", &port];
        let said = pair(UDP, &port, &server, &[&server[..], &["127.0.0.1"]].concat());
        assert!(said.iter().any(|text| text.contains(" 200 ")), "{program}: {said:?}");
    }
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn sockets_over_rdma_carry_streams_and_write_to_mapped_memory() {
    for program in ["rstream", "riostream"] {
        let port = free_port();
        // `b` blocks, `n` does not; `v` has each byte checked.
        for mode in ["b", "n"] {
            let common = [program, "-p", &port, "-I", "10", "-C", "20", "-S", "10000", "-T", "v", "-T", mode];
            let mut server = Server::start(&[&["--device", UDP], &common[..]].concat());
            let said = client(UDP, &[&common[..], &["-s", "127.0.0.1"]].concat(), &mut server);
            assert!(said.contains("custom"), "{program}: {said}");
            let said = server.output();
            assert!(said.status.success(), "{program}: {}", text(&said));
        }
    }
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn a_file_is_copied_over_rdma() {
    let folder = std::env::temp_dir().join(format!("hca-rcopy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    let content: Vec<u8> = (0..300_000_u32).flat_map(|i| i.to_le_bytes()).collect();
    std::fs::write(&from, &content).unwrap();
    let port = free_port();
    let mut server = Server::start(&["--device", UDP, "rcopy", "-p", &port]);
    let remote = format!("127.0.0.1:{to}");
    client(UDP, &["rcopy", &from, &remote, "-p", &port], &mut server);
    assert!(std::fs::read(&to).unwrap() == content);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "needs rdmacm-utils: programs of librdmacm"]
fn datagrams_of_sockets_over_rdma_are_answered() {
    let port = free_port();
    // The server never ends by itself.
    let mut server = Server::start(&["--device", UDP, "udpong", "-p", &port, "-T", "b"]);
    for modes in [&["-T", "b"][..], &["-T", "n", "-T", "e"], &["-T", "a"]] {
        let common = ["udpong", "-s", "127.0.0.1", "-p", &port, "-C", "50", "-S", "1000"];
        let said = client(UDP, &[&common[..], modes].concat(), &mut server);
        assert!(said.contains("custom"), "{modes:?}: {said}");
    }
}
