//! Wall time between two processes, each beside its floor.

fn main() {}
