//! Peers that are connected and say nothing: adapters of another process, each with a queue pair to this one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hca::{
    CompletionQueue, Completions, ConnectOptions, Context, DeviceUrl, Endpoint, Opened, Pd, QueuePair, Rc,
    open_exactly,
};
use hca_perf::Failure;
use softhca::Progress;

use crate::floor::end_with_starter;
use hca_perf::child::{serve_if_asked, wait_for_end};

/// The first argument of a process that holds idle peers.
const CHILD_COMMAND: &str = "__peers";
/// Adapters of one process: each takes descriptors, of which a process may have 1,024 where nobody raised the limit.
const PEERS_A_PROCESS: usize = 50;
/// How long greetings may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Peers of an adapter.
pub struct Peers {
    pairs: Vec<QueuePair<Rc>>,
    cq: CompletionQueue,
    children: Vec<Child>,
}

impl Peers {
    /// `count` adapters in processes of their own, each of which has received a message from `opened`.
    ///
    /// # Errors
    /// A limit of the device or of the system.
    pub fn connect(opened: &Opened, device: &DeviceUrl, count: usize) -> Result<Self, Failure> {
        let context = opened.context();
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * count.max(1) as u32)?;
        let mut peers = Self { pairs: Vec::new(), cq, children: Vec::new() };
        let mut left = count;
        while left > 0 {
            let here = left.min(PEERS_A_PROCESS);
            peers.add(context, &pd, device, here)?;
            left -= here;
        }
        Ok(peers)
    }

    /// Starts one process of peers, greets each of them, and leaves it blocked.
    fn add(&mut self, context: &Context, pd: &Pd, device: &DeviceUrl, count: usize) -> Result<(), Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD_COMMAND, &device.to_string(), &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut from_child = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        self.children.push(child);
        let child = self.children.last_mut().expect("it was just added");
        let pairs = (0..count).map(|_| pair(pd, &self.cq)).collect::<Result<Vec<_>, _>>()?;
        let ours: Vec<Endpoint> = pairs.iter().map(|qp| qp.endpoint()).collect();
        let to_child = child.stdin.as_mut().expect("its input is a pipe");
        writeln!(to_child, "{}", serde_json::to_string(&ours)?)?;
        let mut line = String::new();
        from_child.read_line(&mut line)?;
        if line.is_empty() {
            return Err("the idle peers could not begin; their message stands above".into());
        }
        let theirs: Vec<Endpoint> = serde_json::from_str(&line)?;
        for (qp, endpoint) in pairs.iter().zip(&theirs) {
            qp.connect(endpoint, &ConnectOptions::default())?;
        }
        let begin = self.pairs.len();
        self.pairs.extend(pairs);
        // So that all of the way there is set up.
        let mut wcs = Completions::default();
        let mut greeted = 0;
        for qp in &mut self.pairs[begin..] {
            qp.send(())?;
        }
        let limit = Instant::now() + PATIENCE;
        while greeted < count {
            context.turn();
            for wc in self.cq.poll(&mut wcs) {
                wc.ok()?;
                greeted += 1;
            }
            if Instant::now() > limit {
                return Err(format!("{greeted} of {count} peers answered").into());
            }
        }
        line.clear();
        from_child.read_line(&mut line)?;
        Ok(())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The end of its input is the end of the child.
            child.stdin = None;
        }
        self.children.iter_mut().for_each(wait_for_end);
    }
}

/// A queue pair with room for one request each way.
///
/// # Errors
/// A limit of the device.
pub fn pair(pd: &Pd, cq: &CompletionQueue) -> Result<QueuePair<Rc>, Failure> {
    let qp = pd.qp::<Rc>(cq).max_send_wr(1).max_recv_wr(1).max_send_sge(1).max_recv_sge(1);
    Ok(qp.max_inline(0).build()?)
}

/// To be called first in `main` of every program that has idle peers: becomes them if that is what this process was
/// started for.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "idle peers", |args| {
        let [device, count] = args else { return Err("two arguments".into()) };
        serve(device, count)
    });
}

fn serve(device: &str, count: &str) -> Result<(), Failure> {
    end_with_starter()?;
    let mut url: DeviceUrl = device.parse()?;
    // Nobody calls them, and a thread each would be no cheaper.
    url.options.progress = Some(Progress::Inline);
    url.options.lazy_acks = Some(true);
    let mut peers = Vec::new();
    for _ in 0..count.parse::<usize>()? {
        let opened = open_exactly(&url)?;
        let pd = opened.context().alloc_pd()?;
        let cq = opened.context().create_cq(2)?;
        let mut qp = pair(&pd, &cq)?;
        qp.post_recv(())?;
        peers.push((opened, cq, qp));
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let theirs: Vec<Endpoint> = serde_json::from_str(&line)?;
    for ((.., qp), endpoint) in peers.iter().zip(&theirs) {
        qp.connect(endpoint, &ConnectOptions::default())?;
    }
    let ours: Vec<Endpoint> = peers.iter().map(|(.., qp)| qp.endpoint()).collect();
    println!("{}", serde_json::to_string(&ours)?);
    let (mut wcs, mut greeted, begin) = (Completions::default(), 0, Instant::now());
    // The acknowledgements may take a turn more.
    let mut rounds_left = 100;
    while greeted < peers.len() || rounds_left > 0 {
        for (opened, cq, _) in &mut peers {
            opened.context().turn();
            for wc in cq.poll(&mut wcs) {
                wc.ok()?;
                greeted += 1;
            }
        }
        if greeted == peers.len() {
            rounds_left -= 1;
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("{greeted} of {} greetings came", peers.len()).into());
        }
    }
    println!("greeted");
    std::io::stdin().lines().for_each(drop);
    Ok(())
}
