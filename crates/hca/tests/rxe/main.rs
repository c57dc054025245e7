//! Linux's `rdma_rxe` as the judge: it and this adapter talk with each other, and every byte is checked.
//!
//! `vm/run rxe` boots a guest with rxe on one end of a veth pair and these tests on the other, in a network namespace,
//! over `udp://` and `raw://`, IPv4 and IPv6. The far end's program is `rxe_peer`, in the folder of that job. Tests of
//! the module [`lossy`] run while netem loses, doubles, reorders and damages packets in both directions.
//!
//! | variable | what it says |
//! |---|---|
//! | `HCA_RXE_PEER` | where `rxe_peer` listens |
//! | `HCA_RXE_ADDRESS` | the address of rxe's port |
//! | `HCA_RXE_DEVICE` | the adapter of ours |
//! | `HCA_RXE_SECONDS` | how long tests of [`lossy`] last; 10 unless given |
//! | `HCA_RXE_SEED` | what they draw |

mod clean;
mod datagrams;
mod errors;
mod lossy;
mod peer;
mod world;
