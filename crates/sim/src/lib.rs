//! Many adapters, one seed, a hostile network: deterministic simulation for verbs programs
