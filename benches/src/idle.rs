//! What an adapter costs while nobody uses it: wake-ups, and memory for each queue pair.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use hca::{CompletionQueue, ConnectOptions, Context, DeviceUrl, Endpoint, QueuePair, Rc, open_exactly};
use hca_core::Qpn;
use hca_perf::Failure;

use hca_perf::child::serve_if_asked;

/// The first argument of a process that is looked at while it idles.
const CHILD_COMMAND: &str = "__idle";
/// How long an idle process is looked at.
const WATCHED: Duration = Duration::from_secs(3);
/// After this time a process that stopped polling has settled.
const SETTLED: Duration = Duration::from_millis(300);
/// Queue pairs whose memory is weighed.
const WEIGHED_PAIRS: u32 = 8192;

/// Connected queue pairs that nobody uses.
pub struct Crowd {
    _pairs: Vec<QueuePair<Rc>>,
    _cq: CompletionQueue,
}

impl Crowd {
    /// `count` queue pairs with queues of one entry, ready to send to their own device, which knows
    /// nothing of them.
    ///
    /// # Errors
    /// A limit of the device.
    pub fn connect(context: &Context, count: u32) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * count.max(1))?;
        let pair = |_| -> Result<_, Failure> {
            let qp = pd.qp::<Rc>(&cq).max_send_wr(1).max_recv_wr(1).max_send_sge(1).max_recv_sge(1);
            let qp = qp.max_inline(0).build()?;
            let nobody = Endpoint { qpn: Qpn::new(0xff_fffe), ..qp.endpoint() };
            qp.connect(&nobody, &ConnectOptions::default())?;
            Ok(qp)
        };
        let pairs = (0..count).map(pair).collect::<Result<_, _>>()?;
        Ok(Self { _pairs: pairs, _cq: cq })
    }
}

/// Bytes of memory that a connected queue pair with queues of one entry takes.
///
/// # Errors
/// The device can't be opened, or a limit of it.
pub fn bytes_per_pair(device: &DeviceUrl) -> Result<f64, Failure> {
    let opened = open_exactly(device)?;
    // Tables and arenas that grow by steps have grown before.
    let _first = Crowd::connect(opened.context(), WEIGHED_PAIRS)?;
    let before = resident_bytes("self")?;
    let _second = Crowd::connect(opened.context(), WEIGHED_PAIRS)?;
    Ok((resident_bytes("self")? - before) / f64::from(WEIGHED_PAIRS))
}

fn resident_bytes(pid: &str) -> Result<f64, Failure> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: f64 = statm.split_whitespace().nth(1).ok_or("statm has a second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64)
}

/// How often a second all threads together of an idle process that has opened `device` and connected
/// `pairs` queue pairs wake up.
///
/// # Errors
/// The process can't be started or looked at.
pub fn wakeups_per_s(device: &DeviceUrl, pairs: u32) -> Result<f64, Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([CHILD_COMMAND, &device.to_string(), &pairs.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = String::new();
    BufReader::new(child.stdout.take().ok_or("the child's output is a pipe")?).read_line(&mut ready)?;
    std::thread::sleep(SETTLED);
    let before = switches(child.id())?;
    std::thread::sleep(WATCHED);
    let after = switches(child.id())?;
    // The end of its input is the end of the child.
    drop(child.stdin.take());
    child.wait()?;
    if ready.trim() != "ready" {
        return Err("the idle process could not open its device; its message stands above".into());
    }
    Ok((after - before) as f64 / WATCHED.as_secs_f64())
}

/// Context switches of all threads of a process.
fn switches(pid: u32) -> Result<u64, Failure> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let counts = status.lines().filter_map(|l| l.split_once("ctxt_switches:"));
        sum += counts.filter_map(|(_, n)| n.trim().parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}

/// To be called first in `main` of every program that watches idle processes: becomes one if that is
/// what this process was started for.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "idle", |args| {
        let [device, pairs] = args else { return Err("two arguments".into()) };
        let opened = open_exactly(&device.parse()?)?;
        let _crowd = Crowd::connect(opened.context(), pairs.parse()?)?;
        println!("ready");
        std::io::stdin().lines().for_each(drop);
        Ok(())
    });
}
