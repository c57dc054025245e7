//! Several processes talk by datagrams: everybody tells everybody, no connections. Started without
//! arguments it starts the others; each process has a device, and so an address, of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hca::core::{AddressVector, Qkey};
use hca::{Completions, Endpoint, Inline, SendRequest, Ud};

type Failure = Box<dyn std::error::Error>;

const NAMES: [&str; 3] = ["Ada", "Grace", "Lynn"];
const QKEY: Qkey = Qkey::new(0xc4a7);

fn main() -> Result<(), Failure> {
    if let Some(name) = std::env::args().nth(1) {
        return chat(&name);
    }
    let mut children = NAMES.map(|name| {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.arg(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started")
    });
    let mut outs = children.each_mut().map(|c| BufReader::new(c.stdout.take().expect("a pipe")).lines());
    let endpoints: Vec<String> =
        outs.iter_mut().map(|o| o.next().expect("an endpoint")).collect::<Result<_, _>>()?;
    for child in &mut children {
        writeln!(child.stdin.take().expect("a pipe"), "{}", endpoints.join(" "))?;
    }
    for (mut child, out) in children.into_iter().zip(outs) {
        out.for_each(|line| println!("{}", line.expect("text")));
        assert!(child.wait()?.success());
    }
    Ok(())
}

fn chat(name: &str) -> Result<(), Failure> {
    let context = hca::open("auto://")?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(256)?;
    let mut qp = pd.qp::<Ud>(&cq).build()?;
    pd.alloc_many(16, 40 + 256)?.into_iter().try_for_each(|buf| qp.post_recv(buf))?;
    qp.activate(QKEY)?;
    println!("{}", qp.endpoint());
    let everybody = std::io::read_to_string(std::io::stdin())?;
    let others = everybody.split_whitespace().map(str::parse::<Endpoint>).collect::<Result<Vec<_>, _>>()?;
    for other in others.iter().filter(|o| o.gid != context.port().gid) {
        let ah = pd.create_ah(&AddressVector { dgid: other.gid, ..AddressVector::default() })?;
        let hello = format!("{name} says hello to {}", other.gid.ip());
        qp.post_send(SendRequest::send(Inline(hello.as_bytes())).to(&ah.peer(other.qpn, QKEY)))
            .map_err(|r| r.error)?;
    }
    let (mut wcs, mut heard, end) = (Completions::default(), 0, Instant::now() + Duration::from_secs(5));
    while heard < NAMES.len() - 1 && Instant::now() < end {
        for wc in cq.wait(&mut wcs, Some(Duration::from_secs(5)))? {
            heard += usize::from(wc.opcode.is_recv());
            wc.payload().iter().for_each(|text| println!("{name} hears: {}", String::from_utf8_lossy(text)));
        }
    }
    Ok(())
}
