//! Extended reliable connections (XRC): one connection serves all workers of a server, each with a shared receive queue,
//! memory and a thread of its own. The client names a worker's queue in each request.

use std::sync::mpsc::{Sender, channel};

use hca::{Completions, ConnectOptions, Endpoint, Inline, SendRequest, SrqInit, Srqn, Xrc, XrcDomain};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const WORKERS: usize = 4;
const TASKS: u32 = 100;

fn main() -> Result<(), Failure> {
    let (to_client, from_server) = channel::<(Endpoint, Vec<Srqn>)>();
    let (to_server, from_client) = channel::<Endpoint>();
    let server = std::thread::spawn(move || -> Result<(), Failure> {
        let context = hca::open("auto://")?;
        let domain = context.alloc_xrc_domain()?;
        let target = domain.target().build()?;
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let spawn = |_| {
                scope.spawn({
                    let (domain, tell) = (domain.clone(), tell.clone());
                    move || work(&domain, &tell)
                })
            };
            let workers: Vec<_> = (0..WORKERS).map(spawn).collect();
            to_client.send((target.endpoint(), told.iter().take(WORKERS).collect()))?;
            target.connect(&from_client.recv()?, &ConnectOptions::default())?;
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })
    });

    let context = hca::open("auto://")?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(256)?;
    let mut qp = pd.qp::<Xrc>(&cq).build()?;
    to_server.send(qp.endpoint())?;
    let (target, queues) = from_server.recv()?;
    qp.connect(&target, &ConnectOptions::default())?;
    let mut wcs = Completions::default();
    for task in 0..TASKS {
        let queue = queues[task as usize % WORKERS];
        qp.post_send(SendRequest::send(Inline(&task.to_ne_bytes())).to_srq(queue)).map_err(|r| r.error)?;
        for wc in cq.wait(&mut wcs, None)? {
            wc.ok()?;
        }
    }
    server.join().expect("no panic")
}

/// Takes the tasks that are sent to a queue of its own.
fn work(domain: &XrcDomain, tell: &Sender<Srqn>) -> Result<(), Failure> {
    let pd = domain.context().alloc_pd()?;
    let mut cq = domain.context().create_cq(64)?;
    let mut srq = domain.create_srq(&pd, &cq, SrqInit { max_wr: 16, max_sge: 1 })?;
    pd.alloc_many(16, 64)?.into_iter().try_for_each(|buf| srq.post_recv(buf)).map_err(|r| r.error)?;
    tell.send(srq.number())?;
    let (mut done, mut wcs) = (0, Completions::default());
    while done < TASKS as usize / WORKERS {
        for wc in cq.wait(&mut wcs, None)? {
            let mut wc = wc.ok()?;
            srq.post_recv(wc.take_buf().expect("a buffer was posted")).map_err(|r| r.error)?;
            done += 1;
        }
    }
    println!("queue {} took {done} tasks", srq.number());
    Ok(())
}
