use hca_verbs::*;

fn main() {}

fn misuse(qp: &mut QueuePair<Rc>, bytes: Vec<u8>) {
    qp.send(bytes).unwrap();
}
