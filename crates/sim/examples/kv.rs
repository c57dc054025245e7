//! A key-value store over SEND and RECV, tested on 50 hostile networks:
//! `cargo run -p hca-sim --example kv`, and `HCA_SIM_SEED=7 HCA_SIM_TRACE=1` before it for one of them.

use std::collections::BTreeMap;

use hca_sim::{LinkProfile, Node, check};
use hca_verbs::{CompletionQueue, Completions, ConnectOptions, Pd, QueuePair, Rc};

type Side = (Pd, CompletionQueue, QueuePair<Rc>);

fn open(node: &Node) -> Side {
    let context = node.context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let qp = pd.qp::<Rc>(&cq).build().unwrap();
    (pd, cq, qp)
}

/// The store: a request is a key and, to put, a value; the answer is the key and what it held.
async fn serve((pd, mut cq, mut qp): Side) {
    let mut store = BTreeMap::new();
    let mut wcs = Completions::default();
    (0..8).for_each(|_| qp.post_recv(pd.alloc(16).unwrap()).unwrap());
    loop {
        for mut wc in cq.next(&mut wcs).await {
            let Some(request) = wc.payload().map(<[u8]>::to_vec) else { continue };
            let (key, value) = (request[0], request.get(8..16).map(<[u8]>::to_vec));
            let mut answer = vec![key; 8];
            answer.extend(
                value.map_or_else(|| store.get(&key).cloned(), |v| store.insert(key, v)).unwrap_or_default(),
            );
            qp.send_inline(&answer).unwrap();
            qp.post_recv(wc.take_buf().unwrap()).unwrap();
        }
    }
}

/// Sends a request and waits for its answer.
async fn call((pd, cq, qp): &mut Side, request: &[u8]) -> Vec<u8> {
    let mut wcs = Completions::default();
    qp.post_recv(pd.alloc(16).unwrap()).unwrap();
    qp.send_inline(request).unwrap();
    loop {
        for wc in cq.next(&mut wcs).await {
            if let Some(answer) = wc.ok().unwrap().payload() {
                return answer[8..].to_vec();
            }
        }
    }
}

fn main() {
    check(0..50, |builder| {
        let sim = builder.links(&LinkProfile::hostile()).build();
        let (a, b) = (sim.add_node(), sim.add_node());
        let (mut client, server) = (open(&a), open(&b));
        client.2.connect(&server.2.endpoint(), &ConnectOptions::default()).unwrap();
        server.2.connect(&client.2.endpoint(), &ConnectOptions::default()).unwrap();
        b.spawn(serve(server));
        sim.block_on(async move {
            for round in 0..100_u64 {
                let key = hca_sim::random() as u8 % 8;
                let put: Vec<u8> = [[key; 8], round.to_le_bytes()].concat();
                call(&mut client, &put).await;
                assert_eq!(call(&mut client, &[key; 8]).await, round.to_le_bytes(), "what was put last");
            }
        })
    });
}
