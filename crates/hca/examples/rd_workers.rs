//! Reliable datagrams (RD): one connection between two adapters serves all queue pairs of both. Each worker of a server
//! has a queue pair, memory and a thread of its own. The client sends to all of them by one queue pair.

use std::sync::mpsc::{Sender, channel};

use hca::{Completions, ConnectOptions, Endpoint, Inline, Qkey, Qpn, RdDomain};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const QKEY: Qkey = Qkey::new(0x5eed);
const WORKERS: usize = 4;
const TASKS: u32 = 100;

fn main() -> Result<(), Failure> {
    let (to_client, from_server) = channel::<(Endpoint, Vec<Qpn>)>();
    let (to_server, from_client) = channel::<Endpoint>();
    let server = std::thread::spawn(move || -> Result<(), Failure> {
        let context = hca::open("auto://")?;
        let domain = context.alloc_rd_domain()?;
        let link = domain.ee_context().build()?;
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let spawn = |_| {
                scope.spawn({
                    let (domain, tell) = (domain.clone(), tell.clone());
                    move || work(&domain, &tell)
                })
            };
            let workers: Vec<_> = (0..WORKERS).map(spawn).collect();
            to_client.send((link.endpoint(), told.iter().take(WORKERS).collect()))?;
            link.connect(&from_client.recv()?, &ConnectOptions::default())?;
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })
    });

    let context = hca::open("auto://")?;
    let (pd, domain, mut cq) = (context.alloc_pd()?, context.alloc_rd_domain()?, context.create_cq(256)?);
    let link = domain.ee_context().build()?;
    to_server.send(link.endpoint())?;
    let (remote, workers) = from_server.recv()?;
    link.connect(&remote, &ConnectOptions::default())?;
    let mut qp = domain.qp(&pd, &cq).build()?;
    qp.activate(QKEY)?;
    let mut wcs = Completions::default();
    for task in 0..TASKS {
        let worker = link.peer(workers[task as usize % WORKERS], QKEY);
        qp.send_to(Inline(&task.to_ne_bytes()), &worker).map_err(|r| r.error)?;
        for wc in cq.wait(&mut wcs, None)? {
            wc.ok()?;
        }
    }
    server.join().expect("no panic")
}

/// Takes the tasks that are sent to a queue pair of its own.
fn work(domain: &RdDomain, tell: &Sender<Qpn>) -> Result<(), Failure> {
    let (pd, mut cq) = (domain.context().alloc_pd()?, domain.context().create_cq(64)?);
    let mut qp = domain.qp(&pd, &cq).max_send_wr(1).max_recv_wr(16).build()?;
    qp.activate(QKEY)?;
    pd.alloc_many(16, 64)?.into_iter().try_for_each(|buf| qp.post_recv(buf)).map_err(|r| r.error)?;
    tell.send(qp.qpn())?;
    let (mut done, mut wcs) = (0, Completions::default());
    while done < TASKS as usize / WORKERS {
        for wc in cq.wait(&mut wcs, None)? {
            let mut wc = wc.ok()?;
            qp.post_recv(wc.take_buf().expect("a buffer was posted")).map_err(|r| r.error)?;
            done += 1;
        }
    }
    println!("queue pair {} took {done} tasks", qp.qpn());
    Ok(())
}
