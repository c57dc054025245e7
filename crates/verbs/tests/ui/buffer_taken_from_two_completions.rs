use hca_verbs::*;

fn main() {}

fn misuse(cq: &mut CompletionQueue, wcs: &mut Completions) {
    let first = cq.poll(wcs).next();
    let second = cq.poll(wcs).next();
    drop((first, second));
}
