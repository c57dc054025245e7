//! libibverbs and librdmacm on the adapters of this project: one shared object with the version nodes of
//! libibverbs.so.1, of librdmacm.so.1, and of provider libraries that programs link to.
//!
//! Programs do not add this crate. `hca exec` starts an unmodified program with it; `DESIGN.md` tells what is offered.
//!
//! | module | contents |
//! |---|---|
//! | `abi` | layouts, with sizes and offsets asserted |
//! | `entry` | the border to C: raw pointers, null, `errno`, panics |
//! | `waiting` | calls that wait in the middle of what they do |
//! | `device` | devices by `HCA_DEVICES`, and adapters, of which a process has one a device |
//! | `context` | contexts: tables of functions, attributes of device and port |
//! | `memory` | protection domains, regions, address handles |
//! | `moved` | registered memory that is moved to pages that peers can map |
//! | `null`, `dm`, `mapping` | null regions, device memory, and the memory behind them |
//! | `buffer` | buffers that programs allocate for registration |
//! | `domain` | thread domains and parent domains |
//! | `window` | memory windows |
//! | `xrc` | extended reliable connections |
//! | `multicast` | groups |
//! | `cq` | completion queues, channels, their events |
//! | `cq_ex` | extended completion queues, which are read field by field |
//! | `async_event` | events of objects, the port and the device |
//! | `event` | lists of events, and their acknowledgements |
//! | `explain` | errors in words |
//! | `forked` | copies of memory that peers map, for forked children |
//! | `heap` | blocks for the allocator of `hca exec --heap` |
//! | `held` | a lock that one call takes and a later one releases |
//! | `import` | contexts and objects by descriptors and handles |
//! | `qp` | queue pairs and shared receive queues |
//! | `post`, `qp_ex` | work requests, in lists and built call by call |
//! | `rdmacm` | librdmacm |
//! | `text` | names of numbers |
//! | `rest` | functions that are not offered |
//! | `providers` | functions of libmlx5, libefa and others, all of which refuse |
#![deny(unsafe_code)]
// They panic where standard error can not be written, which is to change no result.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

#[allow(missing_docs, unreachable_pub)] // a layout's fields are the header's
mod abi;
mod async_event;
mod buffer;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod domain;
mod entry;
mod event;
mod explain;
mod forked;
mod heap;
mod held;
mod import;
mod mapping;
mod memory;
mod moved;
mod multicast;
mod null;
mod post;
mod providers;
mod qp;
mod qp_ex;
mod rdmacm;
mod rest;
mod text;
mod waiting;
mod window;
mod xrc;
