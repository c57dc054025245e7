use hca_verbs::*;

fn main() {}

fn misuse(qp: &mut QueuePair<Rc>, mut buf: Buf) {
    qp.send(buf).unwrap();
    buf[0] = 1;
}
