//! A key-value store that is read by gets: each value is an entry that matches its key, and the server's program
//! sleeps.

use std::collections::HashMap;

use hca::portals::v4::*;
use hca::portals::{Memory, Node, NodeOptions};

const PT: u32 = 9;
type Failure = Box<dyn std::error::Error>;
/// The server: its interface, and each key's entry.
struct Store(Ni, HashMap<u64, MeHandle>);

impl Store {
    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Failure> {
        let memory = self.0.alloc(value.len())?;
        memory.write_at(0, value);
        let me = Me { options: MeOptions::OP_GET, match_bits: key, ..Me::new(memory) };
        let entry = self.0.me_append(PT, &me, ListKind::Priority, key)?;
        // The old value is the first in the list until it goes: there is always one, and it is whole.
        self.1.insert(key, entry).map_or(Ok(()), |old| self.0.me_unlink(old))?;
        Ok(())
    }
}

/// A client: where replies come to, and are told.
struct Reader(Ni, EqHandle, MdHandle, Memory);

impl Reader {
    fn get(&self, store: Process, key: u64) -> Result<Option<Vec<u8>>, Failure> {
        let get = Get::new(self.2, self.3.len() as u64, store, PT);
        self.0.get(&Get { match_bits: key, ..get })?;
        let reply = self.0.eq_wait(self.1)?.event;
        match reply.ni_fail_type {
            NiFail::Ok => Ok(Some(self.3.slice(..reply.mlength as usize).to_vec())),
            NiFail::Dropped => Ok(None),
            other => Err(format!("the get ended with {other:?}").into()),
        }
    }
}

fn main() -> Result<(), Failure> {
    let contexts = [hca::open("loopback://kv")?, hca::open("loopback://kv")?];
    let nodes = Node::open_all(&contexts, &NodeOptions::default())?;
    let open = |n| Ni::init(&nodes[n], NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default());
    let (ni, server) = (open(0)?, open(1)?);
    server.pt_alloc(PtOptions::empty(), None, Some(PT))?;
    let (eq, memory, at) = (ni.eq_alloc(16)?, ni.alloc(1 << 16)?, server.id()?);
    let md = ni.md_bind(&Md { eq: Some(eq), ..Md::new(&memory) })?;
    let (reader, mut store) = (Reader(ni, eq, md, memory), Store(server, HashMap::new()));
    store.put(1, b"one")?;
    store.put(2, &[2; 20_000])?;
    assert_eq!(reader.get(at, 1)?, Some(b"one".to_vec()));
    assert_eq!(reader.get(at, 2)?, Some(vec![2; 20_000]));
    assert_eq!(reader.get(at, 3)?, None);
    store.put(1, b"uno")?;
    assert_eq!(reader.get(at, 1)?, Some(b"uno".to_vec()));
    println!("four reads, and the server's program did nothing");
    Ok(())
}
