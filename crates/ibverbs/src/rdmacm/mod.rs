//! librdmacm: connections by the connection manager of this project.
//!
//! | module | contents |
//! |---|---|
//! | `abi` | layouts, with sizes and offsets asserted |
//! | `border` | the border to C, as far as `entry` does not have it: fields that both sides use, addresses |
//! | `device` | devices with their connection managers, found by IP addresses |
//! | `id` | identifiers: creation, destruction, options, and what is known of their connections |
//! | `channel`, `event` | event channels; events, and what taking one does |
//! | `address` | binding, resolving, listening |
//! | `connect` | connecting, accepting, rejecting, disconnecting |
//! | `later` | requests that are repeated, as nobody listens yet |
//! | `qp` | queue pairs of identifiers, and their transitions |
//! | `multicast` | groups |
//! | `endpoint` | `rdma_getaddrinfo`, endpoints, calls that wait |
//! | `sockets` | the calls of sockets over RDMA |
//! | `stream` | their connections |
//! | `changes` | what threads that call them wait for |
//! | `datagram`, `group` | their datagrams; sockets that share a port |
//! | `sets` | sets of sockets and other descriptors, as `epoll` has them |
//! | `text` | names of events |

#[allow(unreachable_pub)] // a layout's fields are the header's
mod abi;
mod address;
mod border;
mod changes;
mod channel;
mod connect;
mod datagram;
mod device;
mod endpoint;
mod event;
mod group;
mod id;
mod later;
mod multicast;
mod qp;
mod sets;
mod sockets;
mod stream;
mod text;
