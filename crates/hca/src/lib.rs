//! RDMA anywhere: open a device by name; the hca command
