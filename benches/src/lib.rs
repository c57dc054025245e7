//! Benchmarks beside their floors
