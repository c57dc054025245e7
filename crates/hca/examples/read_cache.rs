//! A key-value store that many clients GET from by RDMA READ: the server's program sleeps. Each client is a task, all on
//! one completion queue; a value that changes while it is read is read again.

use hca::{Access, AsyncQp, Buf, ConnectOptions, Rc, Reactor, RemoteMr, SharedMr};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const CLIENTS: u64 = 16;
/// A slot: a version before the value, the value, and the version behind it.
const SLOT: usize = 64;
const VALUE: std::ops::Range<usize> = 8..56;

fn put(table: &SharedMr, key: usize, version: u64, value: &[u8]) {
    table.store_u64(key * SLOT + 56, version);
    table.write_at(key * SLOT + VALUE.start, value);
    table.store_u64(key * SLOT, version);
}

async fn get(qp: &AsyncQp<Rc>, mut slot: Buf, table: RemoteMr, key: usize) -> Result<Buf, Failure> {
    loop {
        slot = qp.read(slot, table.try_range(key * SLOT..(key + 1) * SLOT)?).await?;
        if slot[..8] == slot[56..] {
            return Ok(slot);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let (server, client) = (hca::open("auto://")?, hca::open("auto://")?);
    let (server_pd, pd) = (server.alloc_pd()?, client.alloc_pd()?);
    let (server_cq, reactor) = (server.create_cq(4096)?, Reactor::spawn(client.create_cq(4096)?)?);
    let table = server_pd.alloc_shared(CLIENTS as usize * SLOT, Access::REMOTE_READ)?;
    (0..CLIENTS).for_each(|key| put(&table, key as usize, 1, format!("value of {key}").as_bytes()));
    let (mut tasks, mut served) = (tokio::task::JoinSet::new(), Vec::new());
    for key in 0..CLIENTS as usize {
        let theirs = server_pd.qp::<Rc>(&server_cq).build()?;
        let qp = pd.qp::<Rc>(&reactor).build_async(&reactor)?;
        theirs.connect(&qp.endpoint(), &ConnectOptions::default())?;
        qp.connect(&theirs.endpoint(), &ConnectOptions::default())?;
        served.push(theirs);
        let (slot, table) = (pd.alloc(SLOT)?, table.remote());
        tasks.spawn(async move { get(&qp, slot, table, key).await });
    }
    while let Some(slot) = tasks.join_next().await {
        println!("{}", String::from_utf8_lossy(&slot??[VALUE]).trim_end_matches('\0'));
    }
    Ok(())
}
