//! A key-value store over SEND and RECV on 50 hostile networks; `HCA_SIM_SEED=7 HCA_SIM_TRACE=1` replays one.

use hca_sim::{LinkProfile, Node, check};
use hca_verbs::{CompletionQueue, Completions, ConnectOptions, Pd, QueuePair, Rc};
type Side = (Pd, CompletionQueue, QueuePair<Rc>);

fn open(node: &Node) -> Side {
    let context = node.context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
    let qp = pd.qp::<Rc>(&cq).build().unwrap();
    (pd, cq, qp)
}

/// The store: a request is a key and, to put, 8 bytes of value; the answer is what it holds then.
async fn serve((pd, mut cq, mut qp): Side) {
    let (mut store, mut wcs) = ([[0; 8]; 256], Completions::default());
    (0..8).for_each(|_| qp.post_recv(pd.alloc(16).unwrap()).unwrap());
    loop {
        for mut wc in cq.next(&mut wcs).await {
            let Some(request) = wc.payload() else { continue };
            let held = &mut store[usize::from(request[0])];
            *held = request.get(1..9).map_or(*held, |value| value.try_into().unwrap());
            qp.send_inline(held).unwrap();
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
                return answer.to_vec();
            }
        }
    }
}

fn main() {
    check(0..50, |builder| {
        let sim = builder.links(&LinkProfile::hostile()).build();
        let (client, b) = (sim.add_node(), sim.add_node());
        let (mut client, server) = (open(&client), open(&b));
        client.2.connect(&server.2.endpoint(), &ConnectOptions::default()).unwrap();
        server.2.connect(&client.2.endpoint(), &ConnectOptions::default()).unwrap();
        b.spawn(serve(server));
        sim.block_on(async move {
            for round in 0..100_u64 {
                let (key, value) = (hca_sim::random() as u8, round.to_le_bytes());
                call(&mut client, &[&[key][..], &value].concat()).await;
                assert_eq!(call(&mut client, &[key]).await, value, "what was put last");
            }
        })
    });
}
