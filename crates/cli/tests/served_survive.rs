//! Served functions whose clients are killed, and a server that stands still: with processes of the command, and the
//! driver in this process.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hca::hca_core::{Device, DeviceError};
use hca::{Completions, ConnectOptions, Context, QueuePair, Rc};
use hca_mlx5::{Death, Mlx5, Options};
use hca_vfio::{PciFunction, UserOptions};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

/// Long enough for whatever comes at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// A server that lives answers within this time, whatever else the machine has to do; one that stands still does not.
const SILENCE: Duration = Duration::from_secs(4);
/// Bytes of a message.
const BYTES: usize = 3000;

fn hca(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hca"));
    command.args(args).env_remove("HCA_DEVICE").stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    command
}

/// A server in a process of its own.
struct Served {
    folder: PathBuf,
    server: Child,
}

impl Served {
    fn start(name: &str, functions: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("hca-served-survive-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let sockets: Vec<_> = functions.iter().map(|f| folder.join(f).display().to_string()).collect();
        let mut args = vec!["serve"];
        args.extend(sockets.iter().flat_map(|socket| ["--pci", socket.as_str()]));
        let mut server = hca(&args).spawn().unwrap();
        let said = BufReader::new(server.stdout.take().unwrap()).lines().take(functions.len());
        assert!(said.map(Result::unwrap).all(|line| line.contains("15b3:1014")), "it says where it listens");
        Self { folder, server }
    }
    fn url(&self, function: &str) -> String {
        format!("vfio-user://{}", self.folder.join(function).display())
    }
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.server.id() as i32).unwrap(), signal).unwrap();
    }
    /// The function is free soon, and a driver starts on it.
    fn opens(&self, function: &str) {
        let begun = Instant::now();
        loop {
            let out = hca(&["devinfo", &self.url(function)]).stderr(Stdio::piped()).output().unwrap();
            if out.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(
                said.contains("closed the connection") && begun.elapsed() < PATIENCE,
                "{function}: {said}"
            );
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Two queue pairs on two functions that send messages whose bytes are known, one after the other.
struct Talk {
    ends: [(Context, hca::Pd, hca::CompletionQueue, QueuePair<Rc>); 2],
    wcs: Completions,
}

impl Talk {
    fn between(served: &Served, functions: [&str; 2]) -> Self {
        let mut ends = functions.map(|function| {
            let context = hca::open(&served.url(function)).unwrap();
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(64).unwrap();
            let qp = pd.qp::<Rc>(&cq).max_send_wr(8).max_recv_wr(8).build().unwrap();
            (context, pd, cq, qp)
        });
        let there = [1, 0].map(|i: usize| ends[i].3.endpoint());
        for (end, there) in ends.iter_mut().zip(&there) {
            end.3.connect(there, &ConnectOptions::default()).unwrap();
        }
        Self { ends, wcs: Completions::default() }
    }

    /// A message each way.
    fn exchange(&mut self, round: u64) {
        let text = |from: usize| -> Vec<u8> {
            (0..BYTES as u64).map(|i| (round * 31 + i * 7 + from as u64) as u8).collect()
        };
        for (from, (_, pd, _, qp)) in self.ends.iter_mut().enumerate() {
            qp.post_recv(pd.alloc(BYTES).unwrap()).unwrap();
            let mut buf = pd.alloc(BYTES).unwrap();
            buf.copy_from_slice(&text(from));
            qp.send(buf).unwrap();
        }
        let begun = Instant::now();
        let mut owed = [2, 2];
        while owed != [0, 0] {
            assert!(begun.elapsed() < PATIENCE, "message {round} does not come");
            for (to, (_, _, cq, _)) in self.ends.iter_mut().enumerate() {
                for wc in cq.poll(&mut self.wcs) {
                    let mut wc = wc.ok().expect("nothing of theirs fails");
                    if wc.opcode.is_recv() {
                        let buf = wc.take_buf().unwrap();
                        assert!(buf[..] == text(1 - to)[..], "message {round} is another one");
                    }
                    owed[to] -= 1;
                }
            }
        }
    }
}

/// Two functions are used by processes that are killed, two by this one, which must not notice.
#[test]
fn killed_clients_harm_nobody_and_the_next_ones_find_all_as_new() {
    let served = Served::start("kill", &["a", "b", "c", "d"]);
    let (stop, messages) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut talk = Talk::between(&served, ["c", "d"]);
    let honest = {
        let (stop, messages) = (stop.clone(), messages.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                talk.exchange(messages.fetch_add(1, Ordering::Relaxed));
            }
        })
    };
    let more = |what: &str| {
        let (before, begun) = (messages.load(Ordering::Relaxed), Instant::now());
        while messages.load(Ordering::Relaxed) < before + 20 {
            assert!(begun.elapsed() < PATIENCE && !honest.is_finished(), "{what}: the others are held up");
            std::thread::yield_now();
        }
    };
    // In the middle of traffic: something was measured, and the next is being.
    for op in ["send", "write", "read"] {
        let (a, b) = (served.url("a"), served.url("b"));
        // So many that it goes on for as long as the others may take for their messages.
        let sizes: Vec<String> = (1..=200).map(|n| (n * 328).to_string()).collect();
        let sizes = sizes.join(",");
        let what = ["--duration", "0.3", "--json", "--op", op, "--size", &sizes];
        let args = [&["perf", "--device", &a, "--peer-device", &b][..], &what].concat();
        let mut killed = hca(&args).stderr(Stdio::piped()).spawn().unwrap();
        let mut rows = BufReader::new(killed.stdout.take().unwrap()).lines();
        let seen = rows.by_ref().take(1).map_while(Result::ok).count();
        if seen == 0 {
            let out = killed.wait_with_output().unwrap();
            panic!("{args:?} measures nothing: {}", String::from_utf8_lossy(&out.stderr));
        }
        more("before a kill");
        assert!(killed.try_wait().unwrap().is_none(), "{args:?} has ended by itself");
        killed.kill().unwrap();
        killed.wait().unwrap();
        more("after a kill");
        served.opens("a");
        // The command has a process for each side; this one ends when it finds the other one gone.
        served.opens("b");
    }
    // In the middle of whatever a driver that starts or stops does.
    for millis in 0..12 {
        let mut killed = hca(&["devinfo", &served.url("a")]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        killed.kill().unwrap();
        killed.wait().unwrap();
        more("beside drivers that start");
    }
    // Their functions serve others, with the right bytes.
    let mut next = Talk::between(&served, ["a", "b"]);
    (0..50).for_each(|round| next.exchange(round));
    stop.store(true, Ordering::Relaxed);
    honest.join().unwrap();
}

#[test]
fn a_server_that_stands_still_ends_the_device_and_serves_again_when_it_goes_on() {
    let served = Served::start("stop", &["a"]);
    let connect = || {
        let wait = UserOptions::default().deadline(SILENCE);
        PciFunction::connect(&served.folder.join("a"), wait).unwrap()
    };
    let mut options = Options::default();
    options.command_timeout = SILENCE;
    let device = Mlx5::open(connect(), options.clone()).unwrap();
    let pd = device.alloc_pd().unwrap();
    served.signal(Signal::STOP);
    let begun = Instant::now();
    let told = device.alloc_pd().unwrap_err();
    // The first of the two limits, or the look at its health, ends it.
    assert!(
        matches!(device.death(), Some(Death::Unreachable | Death::Silent { .. })),
        "{:?}",
        device.death()
    );
    let text = told.to_string();
    assert!(text.contains("answer") && text.contains("in time") && text.contains("open"), "{text}");
    for _ in 0..100 {
        let told = device.alloc_pd().unwrap_err();
        assert!(matches!(told, DeviceError::Dead { .. }), "{told}");
    }
    device.dealloc_pd(pd).unwrap();
    drop(device);
    assert!(begun.elapsed() < PATIENCE, "no call waits without end");
    served.signal(Signal::CONT);
    let device = Mlx5::open(connect(), options).unwrap();
    device.alloc_pd().unwrap();
}

/// Processor time that a process has used, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit_once(')').unwrap().1;
    behind_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
}

/// Whether the server answers the first message of a client, which says that it speaks version 0.0.
fn agrees_on_a_version(mut client: UnixStream) -> bool {
    let payload = [&[0, 0, 0, 0][..], b"{}\0"].concat();
    let mut message = vec![1, 0, 1, 0];
    message.extend((16 + payload.len() as u32).to_le_bytes());
    message.extend([0; 8]);
    message.extend(payload);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = [0; 16];
    let answered = client.write_all(&message).and_then(|()| client.read_exact(&mut head));
    // The number and command of the request; the flags of a reply without an error.
    answered.is_ok() && head[..4] == [1, 0, 1, 0] && head[8..] == [1, 0, 0, 0, 0, 0, 0, 0]
}

#[test]
fn a_server_without_descriptors_sleeps_while_a_client_waits_and_lets_it_in_once_there_are_some() {
    let served = Served::start("descriptors", &["a"]);
    let pid = Pid::from_raw(served.server.id() as i32).unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", served.server.id())).unwrap();
    let open: Vec<u64> =
        open.map(|fd| fd.unwrap().file_name().into_string().unwrap().parse().unwrap()).collect();
    let free = (0..).find(|n| !open.contains(n)).unwrap();
    // One with which no descriptor can be made, and one with which not even those that there are can be waited on.
    for limit in [free, 1] {
        let set = |current| {
            let limit = Rlimit { current, ..getrlimit(Resource::Nofile) };
            prlimit(Some(pid), Resource::Nofile, limit).unwrap()
        };
        let had = set(Some(limit));
        let waits = UnixStream::connect(served.folder.join("a")).unwrap();
        // The server does not sleep before it has tried.
        std::thread::sleep(Duration::from_millis(50));
        let before = ticks(served.server.id());
        // A server that spins has used most of this time; one that sleeps tries again six times.
        std::thread::sleep(Duration::from_millis(600));
        let used = ticks(served.server.id()) - before;
        assert!(used < 20, "with a limit of {limit} the server worked for {used}0 ms of 600");
        set(had.current);
        assert!(agrees_on_a_version(waits), "the client that has waited is let in");
        served.opens("a");
    }
}
