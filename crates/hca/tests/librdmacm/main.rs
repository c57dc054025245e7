//! Linux's rdma_cm as the judge: programs of librdmacm on `rdma_rxe` connect to this adapter and are connected by it.
//!
//! `vm/run cm` boots a guest with rxe on one end of a veth pair and these tests on the other, in a network namespace.
//! Each test starts the program of the far end itself.
//!
//! | variable | what it says |
//! |---|---|
//! | `HCA_CM_DEVICE` | the adapter of ours |
//! | `HCA_CM_ADDRESS` | the address of rxe's port |
//! | `HCA_CM_THEIRS` | the command that starts a program at the far end, as `nsenter -t 1 -m -n` |

mod end;
mod mckey;
mod rejections;
mod rping;
mod theirs;
mod ucmatose;
mod udaddy;
