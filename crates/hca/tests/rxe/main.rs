//! Interoperation with Linux's `rdma_rxe`: rxe and this adapter communicate, and every byte is checked.
//!
//! `vm/run rxe` boots a guest with rxe on one end of a veth pair and these tests on the other, in a network namespace,
//! over `udp://` and `raw://`, IPv4 and IPv6. The far end's program is `rxe_peer`, in the folder of that job. Tests of
//! the module [`lossy`] run while netem loses, doubles, reorders and damages packets in both directions.
//!
//! | variable | meaning |
//! |---|---|
//! | `HCA_RXE_PEER` | the address at which `rxe_peer` listens |
//! | `HCA_RXE_ADDRESS` | the address of rxe's port |
//! | `HCA_RXE_DEVICE` | this project's adapter |
//! | `HCA_RXE_SECONDS` | the duration of tests of [`lossy`]; 10 unless given |
//! | `HCA_RXE_SEED` | the seed of their random decisions |

mod clean;
mod datagrams;
mod errors;
mod extended;
mod flush;
mod lossy;
mod peer;
mod world;
