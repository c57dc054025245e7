//! `hca exec`, and unmodified programs that it starts.

#[path = "exec/programs.rs"]
mod programs;
#[path = "exec/rdmacm.rs"]
mod rdmacm;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The device of both programs: they share an address of loopback.
const UDP: &str = "udp://127.0.0.1?share=yes";
const AUTO: &str = "auto://127.0.0.1?share=yes";

fn exec(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hca"));
    command.arg("exec").args(arguments).env_remove("HCA_DEVICE").env_remove("HCA_DEVICES");
    command
}
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_program_is_told_its_devices_and_finds_the_library_first() {
    let show = ["sh", "-c", "echo $HCA_DEVICES; echo $LD_LIBRARY_PATH"];
    let said = exec(&[&["--device", UDP, "--name", "rxe0"][..], &show].concat())
        .env("LD_LIBRARY_PATH", "/elsewhere")
        .output()
        .unwrap();
    let said = text(&said);
    let (devices, path) = said.trim().split_once('\n').unwrap();
    assert_eq!(devices, format!("rxe0={UDP}"));
    assert!(path.ends_with("/hca-libraries:/elsewhere"), "{path}");
    let inherited = exec(&show).env("HCA_DEVICES", "a=udp:// b=auto://").output().unwrap();
    assert!(text(&inherited).starts_with("a=udp:// b=auto://\n"), "{}", text(&inherited));
    assert!(text(&exec(&show).output().unwrap()).starts_with("hca0=auto://?share=yes\n"));
    let by_fabric = exec(&[&["--fabric", "udp"][..], &show].concat()).output().unwrap();
    assert!(text(&by_fabric).starts_with("hca0=udp://?share=yes\n"), "{}", text(&by_fabric));
    // Options alone change these devices, and choose no others.
    let faulty = exec(&[&["--fault", "loss=0.1"][..], &show].concat()).output().unwrap();
    assert!(text(&faulty).starts_with("hca0=auto://?fault=loss=0.1&share=yes\n"), "{}", text(&faulty));
    let list = "a=udp:// b=auto://?share=yes";
    let all =
        exec(&[&["--fault", "loss=0.1"][..], &show].concat()).env("HCA_DEVICES", list).output().unwrap();
    let changed = "a=udp://?fault=loss=0.1 b=auto://?fault=loss=0.1&share=yes\n";
    assert!(text(&all).starts_with(changed), "{}", text(&all));
}

#[test]
fn programs_find_the_files_of_their_devices() {
    let show = "cd /sys/class/infiniband && ls && cat rxe0/ports/1/state rxe0/ports/1/gids/1 \
        rxe0/ports/1/gid_attrs/types/1 && cat rxe0/node_guid && test -c /dev/infiniband/uverbs0 && echo there";
    let said = exec(&["--device", UDP, "--name", "rxe0", "sh", "-c", show]).output().unwrap();
    let said = text(&said);
    let lines: Vec<&str> = said.lines().collect();
    let gid = "0000:0000:0000:0000:0000:ffff:7f00:0001";
    assert_eq!(lines[..4], ["rxe0", "4: ACTIVE", gid, "RoCE v2"], "{said}");
    assert!(lines[4].len() == 19 && lines[5] == "there", "{said}");
}

#[test]
fn files_of_devices_go_once_nobody_has_used_them_for_an_hour() {
    let folder = std::env::temp_dir().join(format!("hca-clean-up-{}", std::process::id()));
    let own = folder.join(format!("hca-{}", rustix::process::geteuid().as_raw()));
    let [old, used, fresh] = ["devices-0", "devices-1", "devices-2"].map(|name| own.join(name));
    for made in [&old, &used, &fresh] {
        std::fs::create_dir_all(made.join("sys")).unwrap();
    }
    std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let two_hours_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    for made in [&old, &used] {
        std::fs::File::open(made).unwrap().set_modified(two_hours_ago).unwrap();
    }
    let mut user = Command::new("sleep").arg("600").env("HCA_PATHS", &used).spawn().unwrap();
    let said = exec(&["--device", UDP, "true"]).env("TMPDIR", &folder).output().unwrap();
    user.kill().unwrap();
    user.wait().unwrap();
    assert!(said.status.success(), "{}", text(&said));
    assert_eq!([&old, &used, &fresh].map(|made| made.exists()), [false, true, true]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// As `systemd-tmpfiles` leaves it behind ten days.
#[test]
fn files_of_devices_that_a_cleaner_took_away_are_made_again() {
    let folder = std::env::temp_dir().join(format!("hca-cleaner-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let show = || {
        let script =
            "cat /sys/class/infiniband/*/node_type && test -c /dev/infiniband/uverbs0 && echo $HCA_PATHS";
        let said = exec(&["--device", UDP, "sh", "-c", script]).env("TMPDIR", &folder).output().unwrap();
        let said = text(&said);
        let (kind, tree) = said.split_once('\n').unwrap_or_else(|| panic!("{said}"));
        assert_eq!(kind, "1: CA", "{said}");
        std::path::PathBuf::from(tree.trim())
    };
    let tree = show();
    for gone in ["sys/class/infiniband", "dev"] {
        std::fs::remove_dir_all(tree.join(gone)).unwrap();
    }
    assert_eq!(show(), tree);
    std::fs::remove_dir_all(folder).unwrap();
}

/// The folder of temporary files may be named from where the command starts, and behind a link.
#[test]
fn files_of_devices_have_their_real_name() {
    let folder = std::env::temp_dir().join(format!("hca-real-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("real")).unwrap();
    std::os::unix::fs::symlink("real", folder.join("link")).unwrap();
    let script = "cd / && cat /sys/class/infiniband/*/node_type && echo $HCA_PATHS";
    for name in ["real", "link"] {
        let mut command = exec(&["--device", UDP, "sh", "-c", script]);
        let said = text(&command.env("TMPDIR", name).current_dir(&folder).output().unwrap());
        let (kind, tree) = said.split_once('\n').unwrap_or_else(|| panic!("{said}"));
        assert_eq!(kind, "1: CA", "{said}");
        assert!(
            std::path::Path::new(tree).starts_with(folder.canonicalize().unwrap().join("real")),
            "{tree}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The loader takes a list of libraries apart at spaces.
#[test]
fn a_command_in_a_folder_with_a_space_preloads_its_libraries() {
    let folder = std::env::temp_dir().join(format!("hca space {}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_hca"));
    for name in ["hca", "deps/libhca_ibverbs.so", "deps/libhca_paths.so", "deps/libhca_heap.so"] {
        std::fs::copy(own.with_file_name(name), folder.join(std::path::Path::new(name).file_name().unwrap()))
            .unwrap();
    }
    let script =
        "cat /sys/class/infiniband/*/node_type; grep -o 'libhca_[a-z]*.so$' /proc/self/maps | sort -u";
    let mut command = Command::new(folder.join("hca"));
    let command =
        command.args(["exec", "--heap", "--device", UDP, "sh", "-c", script]).env_remove("HCA_DEVICES");
    let said = command.output().unwrap();
    assert_eq!(text(&said), "1: CA\nlibhca_heap.so\nlibhca_paths.so\n");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A command beside libraries of which one is missing.
#[test]
fn a_missing_library_for_paths_is_told() {
    let folder = std::env::temp_dir().join(format!("hca-no-paths-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_hca"));
    let command = folder.join("hca");
    std::fs::copy(own, &command).unwrap();
    // The loader does not look at it.
    std::fs::write(folder.join("libhca_ibverbs.so"), "").unwrap();
    let run = |options: &[&str]| {
        let said = Command::new(&command).arg("exec").args(options).args(["--device", UDP, "true"]).output();
        let said = said.unwrap();
        assert!(said.status.success(), "{}", text(&said));
        text(&said)
    };
    assert!(run(&[]).contains("there is no libhca_paths.so beside libhca_ibverbs.so"), "{}", run(&[]));
    assert_eq!(run(&["--no-paths"]), "");
    std::fs::remove_dir_all(folder).unwrap();
}

/// What a shell under `hca exec` says, with two devices.
fn shell(options: &[&str], script: &str) -> String {
    let devices = "rxe0=udp://127.0.0.1?share=yes rxe1=udp://127.0.9.9";
    let said = exec(&[options, &["sh", "-c", script]].concat()).env("HCA_DEVICES", devices).output().unwrap();
    assert!(said.status.success(), "{script}: {}", text(&said));
    text(&said)
}
/// Prints what programs read of the second device, whose address no other process can have.
const SHOW_PORT: &str = "cd /sys/class/infiniband/rxe1/ports/1; cat state rate cap_mask link_layer gids/1 gid_attrs/types/3 \
    gid_attrs/ndevs/1 counters/port_rcv_data; cat /sys/class/infiniband_verbs/uverbs1/ibdev";
const SHOWN_PORT: &str = "4: ACTIVE\n2.5 Gb/sec (1X SDR)\n0x04010000\nEthernet\n0000:0000:0000:0000:0000:ffff:7f00:0909\nRoCE v2\nlo\n0\nrxe1\n";

#[test]
fn sixteen_processes_of_one_job_see_the_files_of_several_devices() {
    let script = format!("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do ({SHOW_PORT}) & done; wait");
    let said = shell(&[], &script);
    for line in SHOWN_PORT.lines() {
        assert_eq!(said.lines().filter(|said| *said == line).count(), 16, "{line}: {said}");
    }
    let without = "ls /sys/class/infiniband/rxe0 2>/dev/null || echo $HCA_PATHS-$LD_PRELOAD-";
    assert_eq!(shell(&["--no-paths"], without), "--\n");
}

#[test]
#[ignore = "needs root: a namespace of its own"]
fn a_namespace_shows_the_files_without_a_preloaded_library() {
    let script =
        format!("test -c /dev/null && test -d /sys/class/net/lo && echo -$LD_PRELOAD- && {SHOW_PORT}");
    assert_eq!(shell(&["--namespace"], &script), format!("--\n{SHOWN_PORT}"));
    assert!(shell(&["--namespace"], "rdma link").contains("link rxe1/1 state ACTIVE"));
}

#[test]
fn rdma_shows_links_and_devices_as_iproute2_does() {
    let rdma = |arguments: &[&str]| {
        let said =
            exec(&[&["--device", UDP, "--name", "rxe0", "rdma"], arguments].concat()).output().unwrap();
        (said.status.code(), text(&said))
    };
    let link = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo \n";
    assert_eq!(rdma(&["link", "show"]), (Some(0), link.into()));
    assert_eq!(rdma(&["link"]), rdma(&["link", "show", "rxe0/1"]));
    let json = r#"[{"ifindex":0,"ifname":"rxe0","netdev":"lo","netdev_index":1,"physical_state":"LINK_UP","port":1,"state":"ACTIVE"}]"#;
    assert_eq!(rdma(&["link", "show", "-j"]), (Some(0), format!("{json}\n")));
    let (code, dev) = rdma(&["-j", "dev", "show"]);
    assert!(code == Some(0) && dev.contains(r#""node_type":"ca""#), "{dev}");
    assert_eq!(rdma(&["link", "show", "other"]), (Some(1), "Wrong device name\n".into()));
}

#[test]
fn devices_are_listed_as_programs_see_them() {
    let devices = |arguments: &[&str], list: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hca"));
        command.arg("devices").args(arguments).env_remove("HCA_DEVICE").env("HCA_DEVICES", list);
        command.output().unwrap()
    };
    let table = text(&devices(&[], "rxe0=udp://10.0.0.1?share=yes auto://lo"));
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["rxe0", "hca1"], "{table}");
    assert_eq!(rows[0][2], "udp://10.0.0.1?share=yes");
    assert!(rows.iter().all(|row| row[1].len() == 16) && rows[0][1] != rows[1][1], "{table}");
    let json = text(&devices(&["--json"], ""));
    assert!(json.starts_with(r#"[{"device":"auto://?share=yes","name":"hca0","node_guid":""#), "{json}");
    let refused = devices(&[], "a=udp:// a=auto://");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("two devices are named a"), "{}", text(&refused));
}

#[test]
fn a_program_that_is_not_there_ends_as_a_shell_does() {
    let said = exec(&["./no-such-program"]).output().unwrap();
    assert_eq!(said.status.code(), Some(127));
    assert!(text(&said).contains("no-such-program"), "{}", text(&said));
}

/// A port that no socket has.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// Runs a program twice, as the server and as its client, and returns what both said.
fn both(device: &str, program: &str, options: &[&str]) -> [String; 2] {
    both_of(device, &[program], options)
}
/// As [`both`], with arguments in front of the port.
fn both_of(device: &str, program: &[&str], options: &[&str]) -> [String; 2] {
    let port = free_port();
    let arguments = [&["--device", device], program, &["-p", &port], options].concat();
    let mut server = exec(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let client = loop {
        // A client that comes too early ends, and leaves the server as it was.
        let client = exec(&[&arguments[..], &["127.0.0.1"]].concat()).output().unwrap();
        let is_over = client.status.success() || server.try_wait().unwrap().is_some();
        if is_over || begun.elapsed() > Duration::from_secs(60) {
            break client;
        }
    };
    if !client.status.success() {
        let _ = server.kill();
    }
    let server = server.wait_with_output().unwrap();
    let case = format!("{program:?} {options:?} on {device}");
    assert!(client.status.success(), "{case}: client: {}\nserver: {}", text(&client), text(&server));
    assert!(server.status.success(), "{case}: server: {}", text(&server));
    [text(&server), text(&client)]
}

#[test]
#[ignore = "needs ibverbs-utils: programs of rdma-core"]
fn devices_are_listed_by_name() {
    let listed = exec(&["--device", UDP, "--name", "rxe0", "ibv_devices"]).output().unwrap();
    assert!(listed.status.success() && text(&listed).contains("rxe0"), "{}", text(&listed));
    let said = exec(&["--device", UDP, "--name", "rxe0", "ibv_devinfo", "-v"]).output().unwrap();
    let said = text(&said);
    for part in ["PORT_ACTIVE", "Ethernet", "::ffff:127.0.0.1, RoCE v2"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
#[ignore = "needs ibverbs-utils: programs of rdma-core"]
fn ping_pongs_of_every_service_run_polling_and_by_events() {
    for device in [UDP, AUTO] {
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
            for options in [&["-g", "1", "-n", "100"][..], &["-g", "1", "-n", "100", "-e"]] {
                let said = both(device, program, options);
                assert!(said.iter().all(|text| text.contains("100 iters in")), "{program}: {said:?}");
            }
        }
        both(device, "ibv_rc_pingpong", &["-g", "3", "-n", "100", "-c"]);
        both(device, "ibv_rc_pingpong", &["-g", "1", "-n", "100", "-t", "-N"]);
        both(device, "ibv_rc_pingpong", &["-g", "1", "-n", "100", "-j"]);
        both(device, "ibv_xsrq_pingpong", &["-g", "1", "-n", "100", "-e"]);
    }
}

/// The counters of the port of a device at [`UDP`] with a name and further options.
fn counters(name: &str, options: &[&str]) -> HashMap<String, u64> {
    let script = format!(
        "for kind in counters hw_counters; do cd /sys/class/infiniband/{name}/ports/1/$kind; for counter in *; do \
        echo $counter $(cat $PWD/$counter); done; done"
    );
    let front = ["--device", UDP, "--name", name];
    let said = exec(&[&front[..], options, &["sh", "-c", &script]].concat()).output().unwrap();
    let said = text(&said);
    let pairs = said.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().expect(&said))).collect()
}

/// As monitors do, by another process than those that are counted; and as a sum of the latter, of which one still runs.
#[test]
#[ignore = "needs ibverbs-utils: programs of rdma-core"]
fn counters_of_the_port_go_on_with_each_process() {
    // A name of its own: other tests have devices at this address, too.
    let name = format!("ctr{}", std::process::id());
    let own = ["--name", &name];
    let of = |counters: &HashMap<String, u64>, name: &str| counters[name];
    let before = counters(&name, &[]);
    let said =
        both_of(UDP, &[&own[..], &["ibv_rc_pingpong"]].concat(), &["-g", "1", "-n", "100", "-s", "64"]);
    assert!(said.iter().all(|text| text.contains("100 iters in")), "{said:?}");
    let after = counters(&name, &[]);
    for name in ["port_xmit_packets", "port_rcv_packets"] {
        assert!(of(&after, name) >= of(&before, name) + 200, "{name}: {before:?} {after:?}");
    }
    // In words of 4 bytes.
    assert!(of(&after, "port_xmit_data") >= of(&before, "port_xmit_data") + 200 * 64 / 4, "{after:?}");
    // The processes that have ended are counted once.
    assert_eq!(counters(&name, &[]), after);
}

#[test]
#[ignore = "needs ibverbs-utils: programs of rdma-core"]
fn asynchronous_events_are_waited_for() {
    let mut watch = exec(&["--device", UDP, "--name", "rxe0", "stdbuf", "-oL", "ibv_asyncwatch"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(line.starts_with("rxe0: async event FD"), "{line}");
}

/// One program of perftest, as `ib_send_lat`, over a service, with a way to post or to wait.
fn perftest(program: &str, service: &str, option: Option<&str>) {
    // A retry only after a second: the machine may be busy.
    let options = [&["-x", "1", "-n", "100", "-F", "-u", "18", "-c", service], option.as_slice()].concat();
    let said = both(UDP, program, &options);
    assert!(said.iter().any(|text| text.contains("100 ")), "{program} {options:?}: {said:?}");
}

#[test]
#[ignore = "needs perftest: its measuring programs"]
fn perftest_measures_each_operation() {
    for program in ["ib_write_lat", "ib_read_bw", "ib_atomic_lat"] {
        perftest(program, "RC", None);
    }
    perftest("ib_send_bw", "UD", Some("-e"));
    perftest("ib_send_lat", "XRC", Some("--use_old_post_send"));
}

/// The network loses packets, doubles them, damages them and brings them into another order. Both programs wait for each
/// other at the end, as acknowledgements get lost, too.
#[test]
#[ignore = "for nightly, needs perftest: ten pairs of its programs"]
fn perftest_measures_over_a_network_that_loses_packets() {
    let name = format!("flt{}", std::process::id());
    let programs = ["ib_send_lat", "ib_send_bw", "ib_write_bw", "ib_read_lat", "ib_atomic_bw"];
    let mut found = HashMap::<String, u64>::new();
    for (seed, (program, service)) in
        programs.into_iter().flat_map(|program| ["XRC", "RC"].map(|service| (program, service))).enumerate()
    {
        let fault = format!("loss=0.02,dup=0.02,reorder=0.02,corrupt=0.01,seed={seed}");
        let options = ["-x", "1", "-n", "200", "-F", "-u", "16", "-c", service];
        let said = both_of(UDP, &["--name", &name, "--fault", &fault, program], &options);
        assert!(said.iter().any(|text| text.contains("200 ")), "{program} {service}: {said:?}");
        for (counter, value) in counters(&name, &["--fault", &fault]) {
            *found.entry(counter).or_default() += value;
        }
    }
    for counter in ["duplicate_request", "out_of_sequence", "rx_icrc_encapsulated"] {
        assert!(found[counter] > 0, "{counter}: {found:?}");
    }
}

#[test]
#[ignore = "for nightly, needs perftest: 32 processes at a time"]
fn perftest_runs_in_sixteen_pairs_at_one_address() {
    std::thread::scope(|scope| {
        for pair in 0..16 {
            scope.spawn(move || perftest(["ib_send_bw", "ib_read_lat"][pair % 2], "RC", None));
        }
    });
}

#[test]
#[ignore = "needs perftest: its measuring programs"]
fn perftest_writes_to_blocks_of_malloc_that_peers_can_map() {
    for (program, size) in [("ib_write_bw", "1048576"), ("ib_write_lat", "8")] {
        let said = both_of(AUTO, &["--heap", program], &["-x", "1", "-n", "100", "-F", "-s", size]);
        assert!(said.iter().any(|text| text.contains("100 ")), "{program}: {said:?}");
    }
}

#[test]
#[ignore = "for nightly: half a minute under valgrind"]
fn a_memory_checker_finds_nothing_in_a_ping_pong() {
    // Its leaks are those of the program. A program that spins gives the adapter's thread its turns.
    let valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=no", "--fair-sched=try"];
    let known = concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/valgrind.supp");
    let checked = [&valgrind[..], &[known, "ibv_rc_pingpong"]].concat();
    both_of(AUTO, &checked, &["-g", "1", "-n", "20"]);
}

/// A C program whose allocations and accesses are checked, and of which nothing is left at its end.
#[test]
#[ignore = "needs libibverbs-dev: compiles a C program with ASan"]
fn address_sanitizer_finds_neither_faults_nor_leaks() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/src/bin/instructions/ibv.c");
    let program = std::env::temp_dir().join(format!("hca-asan-{}", std::process::id()));
    let checks = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let compiled =
        Command::new("cc").args(checks).args([source, "-libverbs", "-o"]).arg(&program).output().unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled));
    let path = program.to_str().unwrap();
    let said = exec(&["--device", AUTO, "--no-paths", path, "256"]).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert!(said.status.success(), "{}", text(&said));
}

#[test]
#[ignore = "a minute and more, for nightly: each program of perftest over each service"]
fn perftest_measures_each_operation_over_each_service() {
    let services: [(&str, &[&str]); 4] = [
        ("send", &["RC", "UC", "UD", "XRC"]),
        ("write", &["RC", "UC", "XRC"]),
        ("read", &["RC", "XRC"]),
        ("atomic", &["RC", "XRC"]),
    ];
    for (operation, services) in services {
        for kind in ["lat", "bw"] {
            for service in services {
                for option in [None, Some("-e"), Some("--use_old_post_send")] {
                    // A write tells its target nothing that it could wait for.
                    let waits = option == Some("-e") && operation == "write";
                    if !waits {
                        perftest(&format!("ib_{operation}_{kind}"), service, option);
                    }
                }
            }
        }
    }
}
