use hca_verbs::*;

fn main() {}

fn misuse(qp: &mut QueuePair<Rc>, part: Buf, frozen: FrozenBuf, remote: RemoteMr) {
    qp.read((part, frozen), remote).unwrap();
}
