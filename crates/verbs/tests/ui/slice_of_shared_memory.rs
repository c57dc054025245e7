use hca_verbs::*;

fn main() {}

fn misuse(mr: &SharedMr) -> u8 {
    let bytes: &[u8] = mr;
    bytes[0]
}
