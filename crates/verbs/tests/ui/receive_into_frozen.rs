use hca_verbs::*;

fn main() {}

fn misuse(qp: &mut QueuePair<Rc>, buf: FrozenBuf) {
    qp.post_recv(buf).unwrap();
}
