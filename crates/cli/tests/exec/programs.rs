//! Unmodified programs that stand on libraries of others: pyverbs, libfabric, UCX, Open MPI.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::rdmacm::{Server, client, pair};
use super::{AUTO, UDP, exec, free_port, text};

/// The folder of the programs' sources.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec");

#[test]
#[ignore = "for nightly, needs python3-pyverbs"]
fn pyverbs_does_every_kind_of_queue() {
    let script = format!("{SOURCES}/verbs.py");
    let said = exec(&["--device", AUTO, "/usr/bin/python3", &script]).output().unwrap();
    assert!(said.status.success(), "{}", text(&said));
    assert_eq!(text(&said), "rc\nwindow\nsrq\ncq_ex\nud\n");
}

/// A block of malloc that peers can map is like any other, in a forked child, too.
#[test]
fn long_blocks_of_malloc_can_be_mapped_by_peers_and_are_copied_for_children() {
    let script = format!("{SOURCES}/heap.py");
    let said = exec(&["--device", AUTO, "--heap", "python3", &script]).output().unwrap();
    assert!(said.status.success(), "{}", text(&said));
    assert_eq!(text(&said), "as malloc's\n");
}

/// Peers reach registered memory of an unmodified program as they reach memory of the library.
#[test]
#[ignore = "needs libibverbs-dev: compiles a C program"]
fn registered_memory_is_moved_where_peers_can_map_it_and_back_again() {
    let program = compiled("cc", "moved", &["-libverbs", "-pthread"]);
    let path = program.to_str().unwrap();
    let moved = exec(&["--device", AUTO, path]).output().unwrap();
    let stayed = exec(&["--device", AUTO, "--keep-memory", path, "keep"]).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert_eq!((text(&moved).as_str(), moved.status.success()), ("moved, and as before\n", true));
    assert_eq!((text(&stayed).as_str(), stayed.status.success()), ("stayed\n", true));
}

/// Programs unmap, forbid and copy registered memory as any other.
#[test]
#[ignore = "needs libibverbs-dev: compiles a C program"]
fn moved_memory_is_as_other_memory_to_a_program_and_its_children() {
    let program = compiled("cc", "moved_odd", &["-libverbs", "-pthread"]);
    let done = exec(&["--device", AUTO, program.to_str().unwrap()]).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert_eq!((text(&done).as_str(), done.status.success()), ("nothing lost\n", true));
}

/// Allocators open files as they begin, before any other library of the program has.
#[test]
fn an_allocator_that_reads_a_file_as_it_begins_waits_for_nobody() {
    let library = compiled("cc", "allocator", &["-shared", "-fPIC", "-pthread"]);
    let said = exec(&["--device", UDP, "cat", "/sys/class/infiniband/hca0/node_type"])
        .env("LD_PRELOAD", &library)
        .output()
        .unwrap();
    std::fs::remove_file(&library).unwrap();
    assert_eq!((text(&said).as_str(), said.status.code()), ("1: CA\n", Some(0)));
}

/// libfabric looks for interfaces other than that of loopback.
#[test]
#[ignore = "for nightly, needs libfabric-bin: fi_pingpong"]
fn libfabric_has_connected_datagram_and_reliable_endpoints() {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent: the address of this host on the way there is asked for.
    socket.connect("192.0.2.1:9").expect("an interface besides that of loopback");
    let ip = socket.local_addr().unwrap().ip().to_string();
    let device = format!("auto://{ip}?share=yes");
    let listed = text(&exec(&["--device", &device, "fi_info", "-p", "verbs"]).output().unwrap());
    for kind in ["FI_EP_MSG", "FI_EP_DGRAM", "FI_EP_RDM"] {
        assert!(listed.contains(kind), "{kind}: {listed}");
    }
    for endpoint in ["msg", "dgram", "rdm"] {
        let port = free_port();
        let common = ["fi_pingpong", "-p", "verbs", "-e", endpoint, "-I", "100", "-B", &port];
        let mut server = Server::start(&[&["--device", &device], &common[..]].concat());
        let common = ["fi_pingpong", "-p", "verbs", "-e", endpoint, "-I", "100", "-P", &port, &ip];
        let said = client(&device, &common, &mut server);
        assert!(said.contains("=100"), "{endpoint}: {said}");
        assert!(server.output().status.success(), "{endpoint}");
    }
}

#[test]
#[ignore = "for nightly, needs ucx-utils: ucx_perftest"]
fn ucx_has_tags_put_get_and_active_messages_over_rc_and_ud() {
    let listed = text(&exec(&["--device", AUTO, "ucx_info", "-d"]).output().unwrap());
    for transport in ["rc_verbs", "ud_verbs"] {
        let row = format!("Transport: {transport}\n#         Device: hca0:1\n");
        assert!(listed.contains(&row), "{transport}: {listed}");
    }
    for transport in ["rc_v", "ud_v"] {
        for kind in ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_get", "ucp_am_lat"] {
            let port = free_port();
            let tls = format!("UCX_TLS={transport},self");
            let common = ["env", &tls, "UCX_NET_DEVICES=hca0:1", "ucx_perftest", "-p", &port];
            let mut server = Server::start(&[&["--device", AUTO], &common[..]].concat());
            let more = ["-t", kind, "-n", "1000", "-w", "100", "127.0.0.1"];
            let said = client(AUTO, &[&common[..], &more].concat(), &mut server);
            assert!(said.contains("Final:"), "{transport} {kind}: {said}");
        }
    }
}

/// A program of our own, as those of the package exchange addresses over TCP. UCX's cache of registrations unmaps memory
/// that is registered and receives datagrams.
#[test]
#[ignore = "for nightly, needs libucx-dev"]
fn ucx_listens_and_connects_by_socket_addresses_of_librdmacm() {
    let program = compiled("cc", "ucx-sockaddr", &["-lucp", "-lucs"]);
    for device in [UDP, AUTO] {
        for transport in ["rc_v", "ud_v"] {
            let port = free_port();
            let tls = format!("UCX_TLS={transport},self");
            let env = ["env", &tls, "UCX_NET_DEVICES=hca0:1", "UCX_SOCKADDR_TLS_PRIORITY=rdmacm"];
            let server = [&env[..], &[program.to_str().unwrap(), &port]].concat();
            let [served, said] = pair(device, &port, &server, &[&server[..], &["127.0.0.1"]].concat());
            assert!(
                served.contains("served") && said.contains("all came back"),
                "{transport}: {served}{said}"
            );
        }
    }
    std::fs::remove_file(program).unwrap();
}

/// librspreload makes sockets over RDMA of a program's sockets. Its release for Debian 12 has no `accept4` and no `epoll`.
#[test]
#[ignore = "for nightly, needs iperf3 and librspreload"]
fn a_program_of_plain_sockets_runs_over_rdma() {
    const PRELOAD: &str = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so.1";
    let datagrams = ["-u", "-b", "20M", "-n", "400K"];
    for more in [
        &["-n", "4M"][..],
        &["-n", "4M", "-R"],
        &["-n", "4M", "-P", "4"],
        &datagrams,
        &[&datagrams[..], &["-P", "3"]].concat(),
    ] {
        let port = free_port();
        let common = ["env", PRELOAD, "iperf3", "-p", &port];
        // Waits until the port is claimed at the device, and not of the kernel.
        let client = [&common[..], &["-c", "127.0.0.1"], more].concat();
        let [_, said] = pair(UDP, &port, &[&common[..], &["-s", "-1"]].concat(), &client);
        assert!(said.contains("receiver"), "{more:?}: {said}");
    }
}

/// Compiles a program of [`SOURCES`], into a file of its own for each call.
fn compiled(compiler: &str, name: &str, libraries: &[&str]) -> std::path::PathBuf {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let program = std::env::temp_dir().join(format!("hca-{name}-{}-{call}", std::process::id()));
    let source = format!("{SOURCES}/{name}.c");
    let mut command = Command::new(compiler);
    let compiled = command.args(["-O1", "-o"]).arg(&program).arg(source).args(libraries).output().unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled));
    program
}
/// The program whose ranks check what they get.
fn ranks_program() -> std::path::PathBuf {
    compiled("mpicc", "ranks", &[])
}

/// Two network namespaces with a link stand for two machines: each rank has an adapter at the address of its own.
#[test]
#[ignore = "for nightly, needs root and libopenmpi-dev: network namespaces"]
fn ranks_of_open_mpi_reach_those_of_another_network_namespace() {
    let program = ranks_program();
    let script = format!("{SOURCES}/far-ranks.sh");
    let said = Command::new("sh").arg(script).arg(env!("CARGO_BIN_EXE_hca")).arg(&program).output().unwrap();
    std::fs::remove_file(program).unwrap();
    assert!(said.status.success(), "{}", text(&said));
    // mpirun may warn, last, that a program which it started was quicker than it (`setpgid`).
    assert!(text(&said).lines().any(|line| line == "16 ranks, 0 wrong"), "{}", text(&said));
}

#[test]
#[ignore = "for nightly, needs root, libopenmpi-dev, slurmd, slurmctld and munge"]
fn ranks_that_srun_starts_reach_each_other() {
    let program = ranks_program();
    let script = format!("{SOURCES}/slurm.sh");
    let mut srun = Command::new("sh");
    let said = srun.arg(script).arg(env!("CARGO_BIN_EXE_hca")).arg(&program).arg("8").output().unwrap();
    std::fs::remove_file(program).unwrap();
    assert!(said.status.success(), "{}", text(&said));
    assert!(text(&said).contains("8 ranks, 0 wrong\n"), "{}", text(&said));
}

/// Starts a program of Open MPI over UCX with so many ranks.
fn mpirun(ranks: &str, program: &std::path::Path) -> Command {
    let mut mpirun = exec(&["--device", AUTO, "mpirun", "-n", ranks, "--oversubscribe"]);
    mpirun.args(["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib"]).arg(program);
    mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    mpirun.env("UCX_TLS", "rc_v,ud_v,self").env("UCX_NET_DEVICES", "hca0:1");
    mpirun
}

#[test]
#[ignore = "for nightly, needs libopenmpi-dev: mpicc and mpirun"]
fn ranks_of_open_mpi_reach_each_other_by_messages_and_puts() {
    let program = ranks_program();
    for ranks in ["2", "16"] {
        let said = mpirun(ranks, &program).output().unwrap();
        assert!(said.status.success(), "{}", text(&said));
        assert_eq!(text(&said), format!("{ranks} ranks, 0 wrong\n"));
    }
    std::fs::remove_file(program).unwrap();
}

/// Solves equations, transposes, updates at random and transforms, and checks the results. The program lets some updates
/// at random be wrong, and some are, over TCP, too.
#[test]
#[ignore = "for nightly, needs hpcc: a minute with 8 ranks"]
fn ranks_run_the_hpc_challenge() {
    let folder = std::env::temp_dir().join(format!("hca-hpcc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(format!("{SOURCES}/hpccinf.txt"), folder.join("hpccinf.txt")).unwrap();
    let said = mpirun("8", "hpcc".as_ref()).current_dir(&folder).output().unwrap();
    let results = std::fs::read_to_string(folder.join("hpccoutf.txt")).unwrap_or_default();
    std::fs::remove_dir_all(folder).unwrap();
    assert!(said.status.success(), "{}", text(&said));
    let lines = |part: &str| results.lines().filter(|line| line.contains(part)).collect::<Vec<_>>();
    assert_eq!((lines("Success=1").len(), lines("PTRANS_residual=0").len()), (1, 1), "{results}");
    let passed = lines("(passed)").len();
    assert_eq!((passed, lines("errors in").len()), (4, 4), "{results}");
    let failed = lines("tests completed and failed residual checks");
    assert!(failed.len() == 2 && failed.iter().all(|line| line.trim().starts_with("0 ")), "{results}");
}
