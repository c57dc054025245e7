//! What the adapter can do.

/// What the driver uses of the capabilities.
#[derive(Clone, Debug)]
pub(crate) struct Caps {
    /// Queue pairs, as a power of two.
    pub(crate) log_max_qp: u32,
    /// WQEs of a queue, as a power of two.
    pub(crate) log_max_qp_sz: u32,
    /// Completion queues, as a power of two.
    pub(crate) log_max_cq: u32,
    /// Entries of a completion queue, as a power of two.
    pub(crate) log_max_cq_sz: u32,
    /// Shared receive queues, as a power of two.
    pub(crate) log_max_srq: u32,
    /// WQEs of a shared receive queue, as a power of two.
    pub(crate) log_max_srq_sz: u32,
    /// Protection domains, as a power of two.
    pub(crate) log_max_pd: u32,
    /// Memory keys, as a power of two.
    pub(crate) log_max_mkey: u32,
    /// Bytes of a message, as a power of two.
    pub(crate) log_max_msg: u32,
    /// READs and atomics outstanding as requester, as a power of two.
    pub(crate) log_max_ra_req_qp: u32,
    /// The same as responder.
    pub(crate) log_max_ra_res_qp: u32,
    /// Bytes of a send WQE.
    pub(crate) max_wqe_sz_sq: u32,
    /// Bytes of a receive WQE.
    pub(crate) max_wqe_sz_rq: u32,
    /// Bytes of a pair of BlueFlame registers, as a power of two.
    pub(crate) log_bf_reg_size: u32,
    /// Whether user indexes come with completions (1) or queue pair numbers do (0).
    pub(crate) cqe_version: u32,
    /// Whether the port is an Ethernet one.
    pub(crate) ethernet: bool,
    /// Whether atomics are offered.
    pub(crate) atomic: bool,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            log_max_qp: 12,
            log_max_qp_sz: 12,
            log_max_cq: 12,
            log_max_cq_sz: 14,
            log_max_srq: 10,
            log_max_srq_sz: 12,
            log_max_pd: 10,
            log_max_mkey: 16,
            log_max_msg: 30,
            log_max_ra_req_qp: 4,
            log_max_ra_res_qp: 4,
            max_wqe_sz_sq: 512,
            max_wqe_sz_rq: 512,
            log_bf_reg_size: 9,
            cqe_version: 1,
            ethernet: false,
            atomic: true,
        }
    }
}
