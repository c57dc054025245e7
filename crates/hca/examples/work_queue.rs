//! A work queue on an epoll of the program's own: jobs go out by SEND, their numbers as immediate data, and results come
//! back likewise. A job is a factor and the bytes that it is for.

use std::io::Read;
use std::os::unix::net::UnixStream;

use hca::{CompletionQueue, Completions, ConnectOptions, Inline, Notify, Pd, QueuePair, Rc, SendRequest};
use rustix::{buffer::spare_capacity, event::epoll};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const WORKERS: usize = 2;
const JOBS: u32 = 40;
const STOP: u64 = 1;

fn side(stream: &mut UnixStream) -> Result<(Pd, CompletionQueue, QueuePair<Rc>), Failure> {
    let pd = hca::open("auto://")?.alloc_pd()?;
    let cq = pd.context().create_cq(256)?;
    let mut qp = pd.qp::<Rc>(&cq).build()?;
    pd.alloc_many(16, 256)?.into_iter().try_for_each(|buf| qp.post_recv(buf))?;
    qp.connect(&qp.endpoint().exchange(stream)?, &ConnectOptions::default())?;
    Ok((pd, cq, qp))
}

/// Adds the bytes of each job, until the job without a body.
fn work(mut stream: UnixStream) -> Result<(), Failure> {
    let (_pd, mut cq, mut qp) = side(&mut stream)?;
    let mut wcs = Completions::default();
    loop {
        for wc in cq.wait(&mut wcs, None)? {
            let mut wc = wc.ok()?;
            let (Some(job), Some([factor, body @ ..])) = (wc.imm(), wc.payload()) else { continue };
            if body.is_empty() {
                stream.read_to_end(&mut Vec::new())?; // it has heard that this job has come
                return Ok(());
            }
            let sum: u32 = body.iter().map(|&b| u32::from(b) * u32::from(*factor)).sum();
            qp.post_send(SendRequest::send(Inline(&sum.to_be_bytes())).imm(job)).map_err(|r| r.error)?;
            qp.post_recv(wc.take_buf().expect("a buffer was posted"))?;
        }
    }
}

fn main() -> Result<(), Failure> {
    let (mut ours, theirs): (Vec<_>, Vec<_>) =
        (0..WORKERS).map(|_| UnixStream::pair().expect("sockets")).unzip();
    let threads: Vec<_> = theirs.into_iter().map(|stream| std::thread::spawn(|| work(stream))).collect();
    let mut sides = ours.iter_mut().map(side).collect::<Result<Vec<_>, _>>()?;
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (n, (_, cq, _)) in sides.iter_mut().enumerate() {
        epoll::add(&poller, cq.wait_fd()?, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN)?;
    }
    let (mut next, mut results, mut wcs) = (0, 0, Completions::default());
    let give = |pd: &Pd, qp: &mut QueuePair<Rc>, job: u32| -> Result<(), Failure> {
        let mut buf = pd.alloc(101)?;
        buf.fill(job as u8);
        buf[0] = 2;
        Ok(qp.post_send(SendRequest::send(buf).imm(job)).map_err(|r| r.error)?)
    };
    for (pd, _, qp) in &mut sides {
        give(pd, qp, next)?;
        next += 1;
    }
    loop {
        for (pd, cq, qp) in &mut sides {
            cq.arm(Notify::Any); // then a last look, and only then a sleep
            let mut free = 0;
            for wc in cq.poll(&mut wcs) {
                let mut wc = wc.ok()?;
                let Some(job) = wc.imm() else { continue };
                assert_eq!(wc.payload(), Some(&(job % 256 * 200).to_be_bytes()[..]), "job {job}");
                let buf = wc.take_buf().expect("a buffer was posted");
                (results, free) = (results + 1, free + 1);
                qp.post_recv(buf)?;
            }
            for _ in 0..free.min(JOBS - next) {
                give(pd, qp, next)?;
                next += 1;
            }
        }
        if results == JOBS {
            break;
        }
        epoll::wait(&poller, spare_capacity(&mut Vec::with_capacity(WORKERS)), None)?;
    }
    for (_, cq, qp) in &mut sides {
        qp.post_send(SendRequest::send(Inline(&[0])).imm(0).id(STOP)).map_err(|r| r.error)?;
        let mut stopped = false;
        while !stopped {
            for wc in cq.wait(&mut wcs, None)? {
                stopped |= wc.ok()?.id == STOP;
            }
        }
        qp.control().drain(cq, None, |_| {})?;
    }
    drop(ours);
    threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))?;
    println!("{results} jobs by {WORKERS} workers");
    Ok(())
}
