use hca_verbs::*;

fn main() {}

fn misuse(qp: &mut QueuePair<Ud>, buf: Buf) {
    qp.post_send(SendRequest::send(buf)).unwrap();
}
