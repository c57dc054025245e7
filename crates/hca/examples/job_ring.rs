//! The processes of a job add up their ranks around a ring: `hca run -n 4 -- target/debug/examples/job_ring`. Each tells
//! the others its two endpoints by its card; alone, it is its own neighbour.

use hca::{Completions, ConnectOptions, Endpoint, Job, Rc};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Job::from_env()?;
    let context = hca::open("auto://")?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(512)?;
    let (mut left, mut right) = (pd.qp::<Rc>(&cq).build()?, pd.qp::<Rc>(&cq).build()?);
    left.post_recv(pd.alloc(4)?)?;
    job.publish(format!("{} {}", left.endpoint(), right.endpoint()).as_bytes())?;
    job.fence()?; // all have published
    let neighbour = |rank: u32, end: usize| -> Result<Endpoint, Box<dyn std::error::Error>> {
        let card = String::from_utf8(job.card(rank % job.size())?)?;
        Ok(card.split(' ').nth(end).ok_or("two endpoints are on a card")?.parse()?)
    };
    left.connect(&neighbour(job.rank() + job.size() - 1, 1)?, &ConnectOptions::default())?;
    right.connect(&neighbour(job.rank() + 1, 0)?, &ConnectOptions::default())?;
    job.barrier()?; // all are connected

    let (mut sum, mut pass, mut wcs) = (job.rank(), job.rank(), Completions::default());
    for _ in 1..job.size().max(2) {
        right.send_inline(&pass.to_be_bytes())?;
        let mut received = false;
        while !received {
            for wc in cq.wait(&mut wcs, None)? {
                let mut wc = wc.ok()?;
                if let Some(bytes) = wc.payload() {
                    pass = u32::from_be_bytes(bytes.try_into()?);
                    left.post_recv(wc.take_buf().expect("a buffer was posted"))?;
                    received = true;
                }
            }
        }
        sum += pass;
    }
    println!("rank {} of {}: the ranks' sum is {sum}", job.rank(), job.size());
    assert_eq!(sum, (0..job.size()).sum::<u32>());
    job.barrier()?; // nobody leaves before its neighbour has heard of its last message
    job.finalize()?;
    Ok(())
}
