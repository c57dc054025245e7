use hca_verbs::*;

fn main() {}

fn misuse(qp: &mut QueuePair<Uc>, buf: Buf, remote: RemoteMr) {
    qp.post_send(SendRequest::read(buf, remote)).unwrap();
}
