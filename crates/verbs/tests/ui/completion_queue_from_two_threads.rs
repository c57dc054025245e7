use hca_verbs::*;

fn main() {}

fn misuse(cq: &CompletionQueue) {
    std::thread::scope(|s| {
        s.spawn(|| cq.depth());
    });
}
