use hca_verbs::*;

fn main() {}

fn misuse(qp: &mut QueuePair<Rc>) {
    qp.post_recv(vec![0_u8; 4096]).unwrap();
}
