//! Several processes talk by datagrams, without connections, each on a device of its own. Started
//! without arguments it starts them all.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use hca::{Completions, Endpoint, Inline, Qkey, Ud};

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
    let everybody = endpoints.join(" ");
    children.iter_mut().try_for_each(|c| writeln!(c.stdin.take().expect("a pipe"), "{everybody}"))?;
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
    let mut qp = pd.qp::<Ud>(&cq).build()?; // each buffer begins with 40 bytes of GRH
    pd.alloc_many(8, 40 + 256)?.into_iter().try_for_each(|buf| qp.post_recv(buf))?;
    qp.activate(QKEY)?;
    println!("{}", qp.endpoint());
    let everybody = std::io::read_to_string(std::io::stdin())?;
    let others = everybody.split_whitespace().map(str::parse::<Endpoint>).collect::<Result<Vec<_>, _>>()?;
    for other in others.iter().filter(|o| o.gid != context.port().gid) {
        let ah = pd.create_ah(&other.av())?;
        let peer = ah.peer(other.qpn, QKEY);
        qp.send_to(Inline(format!("{name} says hello").as_bytes()), &peer).map_err(|r| r.error)?;
    }
    let (mut wcs, mut heard) = (Completions::default(), 0);
    while heard < NAMES.len() - 1 {
        let wcs = cq.wait(&mut wcs, Some(Duration::from_secs(5)))?;
        for text in wcs.filter_map(|wc| wc.payload().map(<[u8]>::to_vec)) {
            println!("{name} hears: {}", String::from_utf8_lossy(&text));
            heard += 1;
        }
    }
    Ok(())
}
