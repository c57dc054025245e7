//! The latency of `CompletionQueue::next` on a runtime of one thread that parks, compared with a polling loop. Another
//! thread of the process echoes, and polls all the time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use hca::{CompletionQueue, Completions, ConnectOptions, Context, Pd, QueuePair, Rc};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const MESSAGES: usize = 2000;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        match future.as_mut().poll(&mut Task::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn side(context: &Context) -> Result<(Pd, CompletionQueue, QueuePair<Rc>), Failure> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(256)?;
    let mut qp = pd.qp::<Rc>(&cq).build()?;
    pd.alloc_many(8, 4096)?.into_iter().try_for_each(|buf| qp.post_recv(buf))?;
    Ok((pd, cq, qp))
}

fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "auto://".to_owned());
    let (server, client) = (hca::open(&url)?, hca::open(&url)?);
    let (server_pd, mut server_cq, mut server_qp) = side(&server)?;
    let (pd, mut cq, mut qp) = side(&client)?;
    server_qp.connect(&qp.endpoint(), &ConnectOptions::default())?;
    qp.connect(&server_qp.endpoint(), &ConnectOptions::default())?;
    let end = Arc::new(AtomicBool::new(false));
    let ends = end.clone();
    let delay = |n: usize| Duration::from_micros(50 + (n * 37 % 400) as u64);
    let echo = thread::spawn(move || {
        let (mut wcs, mut n) = (Completions::default(), 0);
        while !ends.load(Ordering::Relaxed) {
            for wc in server_cq.poll(&mut wcs) {
                let mut wc = wc.ok().expect("it goes well");
                if wc.opcode.is_recv() {
                    // Long enough that the client sleeps.
                    let until = Instant::now() + delay(n);
                    n += 1;
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    server_qp.post_recv(server_pd.alloc(4096).expect("memory")).expect("room");
                    drop(wc.take_buf());
                    server_qp.send_inline(b"answer").expect("room");
                }
            }
        }
    });
    let mut wcs = Completions::default();
    let mut count = 0;
    for (name, face) in [("poll", 0), ("next", 1), ("wait", 2), ("poll", 0), ("next", 1), ("wait", 2)] {
        let mut late = Vec::new();
        for _ in 0..MESSAGES {
            let due = delay(count);
            count += 1;
            let began = Instant::now();
            qp.send_inline(b"question")?;
            let mut answered = false;
            while !answered {
                let came = match face {
                    0 => cq.poll(&mut wcs),
                    1 => block_on(cq.next(&mut wcs)),
                    _ => cq.wait(&mut wcs, None)?,
                };
                for wc in came {
                    answered |= wc.ok()?.opcode.is_recv();
                }
            }
            late.push(began.elapsed().saturating_sub(due));
            qp.post_recv(pd.alloc(4096)?)?;
        }
        late.sort();
        let at = |per_mille: usize| late[MESSAGES * per_mille / 1000];
        println!("{url} {name}: median {:?}, 90 % {:?}, 99 % {:?}", at(500), at(900), at(990));
    }
    end.store(true, Ordering::Relaxed);
    echo.join().expect("the server ends well");
    Ok(())
}
