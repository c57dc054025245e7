//! Operations of an initiator, to run at once or when a count is reached.

use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::{AckRequest, Count, Operation, Process, Transfer, Triggered};

use super::{AckReq, CtHandle, Error, MdHandle, Ni};

/// The arguments of a put, and of an atomic operation without a reply.
///
/// ```
/// # use portals::v4::{AckReq, MdHandle, Process, Put};
/// # fn f(md: MdHandle, peer: Process) -> Put {
/// Put { match_bits: 7, ack_req: AckReq::Ct, ..Put::new(md, 8, peer, 4) }
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The memory that is sent.
    pub md: MdHandle,
    /// The offset in the descriptor.
    pub local_offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The acknowledgement that is wanted.
    pub ack_req: AckReq,
    /// The target process.
    pub target_id: Process,
    /// The portal of the target.
    pub pt_index: u32,
    /// The bits that the target's entry must match.
    pub match_bits: u64,
    /// The offset in the entry's memory, unless the target manages it.
    pub remote_offset: u64,
    /// The program's value in the events of this process.
    pub user_ptr: u64,
    /// The header data for the event at the target.
    pub hdr_data: u64,
}

impl Put {
    /// A put of the first `length` bytes of `md` to the start of a portal's entry; no acknowledgement, all else 0.
    pub const fn new(md: MdHandle, length: u64, target_id: Process, pt_index: u32) -> Self {
        Self {
            md,
            local_offset: 0,
            length,
            ack_req: AckReq::None,
            target_id,
            pt_index,
            match_bits: 0,
            remote_offset: 0,
            user_ptr: 0,
            hdr_data: 0,
        }
    }
    #[inline(always)]
    fn transfer(&self, md: hca_matching::MdHandle, operation: Operation) -> Transfer {
        Transfer {
            operation,
            md,
            local_offset: self.local_offset,
            reply: None,
            length: self.length,
            ack: self.ack_req.to_engine(),
            target: self.target_id,
            pt_index: self.pt_index,
            ac_index: 0,
            match_bits: self.match_bits,
            remote_offset: self.remote_offset,
            user_ptr: self.user_ptr,
            hdr_data: self.hdr_data,
            operand: [0; 32],
        }
    }
}

/// The arguments of a get.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// The memory that receives the bytes.
    pub md: MdHandle,
    /// The offset in the descriptor.
    pub local_offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The process that the bytes come from.
    pub target_id: Process,
    /// The portal of the target.
    pub pt_index: u32,
    /// The bits that the target's entry must match.
    pub match_bits: u64,
    /// The offset in the entry's memory, unless the target manages it.
    pub remote_offset: u64,
    /// The program's value in the events of this process.
    pub user_ptr: u64,
}

impl Get {
    /// A get of the first `length` bytes of a portal's entry to the start of `md`; all else 0.
    pub const fn new(md: MdHandle, length: u64, target_id: Process, pt_index: u32) -> Self {
        Self {
            md,
            local_offset: 0,
            length,
            target_id,
            pt_index,
            match_bits: 0,
            remote_offset: 0,
            user_ptr: 0,
        }
    }
}

/// The arguments of an atomic operation with a reply.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    /// The memory that receives the target's old bytes.
    pub get_md: MdHandle,
    /// The offset in the descriptor.
    pub local_get_offset: u64,
    /// The memory that is sent.
    pub put_md: MdHandle,
    /// The offset in the descriptor.
    pub local_put_offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The target process.
    pub target_id: Process,
    /// The portal of the target.
    pub pt_index: u32,
    /// The bits that the target's entry must match.
    pub match_bits: u64,
    /// The offset in the entry's memory, unless the target manages it.
    pub remote_offset: u64,
    /// The program's value in the events of this process.
    pub user_ptr: u64,
    /// The header data for the event at the target.
    pub hdr_data: u64,
}

impl Fetch {
    /// An atomic operation of the first `length` bytes of `put_md` on the start of a portal's entry. The entry's old
    /// bytes go to the start of `get_md`; all other fields are 0.
    pub const fn new(
        get_md: MdHandle,
        put_md: MdHandle,
        length: u64,
        target_id: Process,
        pt_index: u32,
    ) -> Self {
        Self {
            get_md,
            local_get_offset: 0,
            put_md,
            local_put_offset: 0,
            length,
            target_id,
            pt_index,
            match_bits: 0,
            remote_offset: 0,
            user_ptr: 0,
            hdr_data: 0,
        }
    }
}

type Begun = Result<Transfer, crate::Error>;

impl Ni {
    /// Sends bytes to a target.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` for an invalid memory descriptor, a range outside of it, a length beyond
    /// [`Limits::max_msg_size`](super::Limits::max_msg_size), or beyond
    /// [`max_volatile_size`](super::Limits::max_volatile_size) for volatile memory, and an unknown target; `PTL_FAIL`
    /// if the path to the target can't be resolved, or the device has failed.
    #[doc(alias = "PtlPut")]
    #[inline]
    pub fn put(&self, put: &Put) -> Result<(), Error> {
        if let Ok(md) = put.md.of(self.handle(), "md")
            && self.check_target(put.target_id).is_ok()
            && self.inner.core.start_at_once(&put.transfer(md, Operation::Put))
        {
            return Ok(());
        }
        self.put_slowly("PtlPut", put, Operation::Put)
    }
    /// Fetches bytes from a target.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    #[doc(alias = "PtlGet")]
    pub fn get(&self, get: &Get) -> Result<(), Error> {
        self.begin("PtlGet", self.of_get(get))
    }
    /// Combines bytes with those of a target. Operations: `Min` to `Bxor`.
    ///
    /// # Errors
    /// As [`put`](Self::put); `PTL_ARG_INVALID` also for an operation of [`swap`](Self::swap), one that the type does
    /// not have ([`AtomicOp::takes`]), a length that is no multiple of the type's, and one beyond
    /// [`Limits::max_atomic_size`](super::Limits::max_atomic_size).
    #[doc(alias = "PtlAtomic")]
    pub fn atomic(&self, put: &Put, operation: AtomicOp, datatype: Datatype) -> Result<(), Error> {
        self.put_slowly("PtlAtomic", put, Operation::Atomic(operation, datatype))
    }
    /// Combines bytes with those of a target, and fetches the target's old bytes. Operations: `Min` to `Bxor`.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic); the limit is
    /// [`max_fetch_atomic_size`](super::Limits::max_fetch_atomic_size).
    #[doc(alias = "PtlFetchAtomic")]
    pub fn fetch_atomic(&self, fetch: &Fetch, operation: AtomicOp, datatype: Datatype) -> Result<(), Error> {
        self.begin("PtlFetchAtomic", self.of_fetch(fetch, Operation::FetchAtomic(operation, datatype), &[]))
    }
    /// Exchanges bytes with a target: always, on a condition with `operand`, or under the mask `operand`. Operations:
    /// `Swap` to `Mswap`; of all but `Swap`, the length is one element, and so is the operand.
    ///
    /// # Errors
    /// As [`fetch_atomic`](Self::fetch_atomic); `PTL_ARG_INVALID` also for an operand that is shorter than an element.
    #[doc(alias = "PtlSwap")]
    pub fn swap(
        &self,
        fetch: &Fetch,
        operand: &[u8],
        operation: AtomicOp,
        datatype: Datatype,
    ) -> Result<(), Error> {
        self.begin("PtlSwap", self.of_fetch(fetch, Operation::Swap(operation, datatype), operand))
    }

    /// A [`put`](Self::put) that runs when a counting event, successes and failures together, reaches a threshold, or
    /// at once if it has already. Operations of one counting event run in the order of their thresholds; operations
    /// with equal thresholds run in the order of the calls.
    ///
    /// # Errors
    /// As [`put`](Self::put); `PTL_ARG_INVALID` also for an invalid counting event; `PTL_NO_SPACE` if
    /// [`Limits::max_triggered_ops`](super::Limits::max_triggered_ops) operations wait already.
    #[doc(alias = "PtlTriggeredPut")]
    pub fn triggered_put(&self, put: &Put, trig_ct: CtHandle, threshold: u64) -> Result<(), Error> {
        self.trigger("PtlTriggeredPut", self.of_put(put, Operation::Put), trig_ct, threshold)
    }
    /// A [`get`](Self::get) that runs when a counting event reaches a threshold.
    ///
    /// # Errors
    /// As [`triggered_put`](Self::triggered_put).
    #[doc(alias = "PtlTriggeredGet")]
    pub fn triggered_get(&self, get: &Get, trig_ct: CtHandle, threshold: u64) -> Result<(), Error> {
        self.trigger("PtlTriggeredGet", self.of_get(get), trig_ct, threshold)
    }
    /// An [`atomic`](Self::atomic) that runs when a counting event reaches a threshold.
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic) and [`triggered_put`](Self::triggered_put).
    #[doc(alias = "PtlTriggeredAtomic")]
    pub fn triggered_atomic(
        &self,
        put: &Put,
        operation: AtomicOp,
        datatype: Datatype,
        trig_ct: CtHandle,
        threshold: u64,
    ) -> Result<(), Error> {
        let begun = self.of_put(put, Operation::Atomic(operation, datatype));
        self.trigger("PtlTriggeredAtomic", begun, trig_ct, threshold)
    }
    /// A [`fetch_atomic`](Self::fetch_atomic) that runs when a counting event reaches a threshold.
    ///
    /// # Errors
    /// As [`fetch_atomic`](Self::fetch_atomic) and [`triggered_put`](Self::triggered_put).
    #[doc(alias = "PtlTriggeredFetchAtomic")]
    pub fn triggered_fetch_atomic(
        &self,
        fetch: &Fetch,
        operation: AtomicOp,
        datatype: Datatype,
        trig_ct: CtHandle,
        threshold: u64,
    ) -> Result<(), Error> {
        let begun = self.of_fetch(fetch, Operation::FetchAtomic(operation, datatype), &[]);
        self.trigger("PtlTriggeredFetchAtomic", begun, trig_ct, threshold)
    }
    /// A [`swap`](Self::swap) that runs when a counting event reaches a threshold. The operand is copied by this call,
    /// the bytes when the swap runs.
    ///
    /// # Errors
    /// As [`swap`](Self::swap) and [`triggered_put`](Self::triggered_put).
    #[doc(alias = "PtlTriggeredSwap")]
    pub fn triggered_swap(
        &self,
        fetch: &Fetch,
        operand: &[u8],
        operation: AtomicOp,
        datatype: Datatype,
        trig_ct: CtHandle,
        threshold: u64,
    ) -> Result<(), Error> {
        let begun = self.of_fetch(fetch, Operation::Swap(operation, datatype), operand);
        self.trigger("PtlTriggeredSwap", begun, trig_ct, threshold)
    }
    /// A [`ct_inc`](Self::ct_inc) that runs when another counting event reaches a threshold.
    ///
    /// # Errors
    /// As [`ct_inc`](Self::ct_inc) and [`triggered_put`](Self::triggered_put).
    #[doc(alias = "PtlTriggeredCTInc")]
    pub fn triggered_ct_inc(
        &self,
        ct: CtHandle,
        increment: Count,
        trig_ct: CtHandle,
        threshold: u64,
    ) -> Result<(), Error> {
        let what = ct.of(self.handle(), "ct").map(|ct| Triggered::CtInc(ct, increment));
        self.wait_for_count("PtlTriggeredCTInc", what, trig_ct, threshold)
    }
    /// A [`ct_set`](Self::ct_set) that runs when another counting event, or the same one, reaches a threshold.
    ///
    /// # Errors
    /// As [`ct_set`](Self::ct_set) and [`triggered_put`](Self::triggered_put).
    #[doc(alias = "PtlTriggeredCTSet")]
    pub fn triggered_ct_set(
        &self,
        ct: CtHandle,
        new_ct: Count,
        trig_ct: CtHandle,
        threshold: u64,
    ) -> Result<(), Error> {
        let what = ct.of(self.handle(), "ct").map(|ct| Triggered::CtSet(ct, new_ct));
        self.wait_for_count("PtlTriggeredCTSet", what, trig_ct, threshold)
    }

    fn of_put(&self, put: &Put, operation: Operation) -> Begun {
        let md = put.md.of(self.handle(), "md")?;
        self.check_target(put.target_id)?;
        Ok(put.transfer(md, operation))
    }
    fn of_get(&self, get: &Get) -> Begun {
        let md = get.md.of(self.handle(), "md")?;
        self.check_target(get.target_id)?;
        Ok(Transfer {
            operation: Operation::Get,
            md,
            local_offset: get.local_offset,
            reply: None,
            length: get.length,
            ack: AckRequest::None,
            target: get.target_id,
            pt_index: get.pt_index,
            ac_index: 0,
            match_bits: get.match_bits,
            remote_offset: get.remote_offset,
            user_ptr: get.user_ptr,
            hdr_data: 0,
            operand: [0; 32],
        })
    }
    fn of_fetch(&self, fetch: &Fetch, operation: Operation, operand: &[u8]) -> Begun {
        let md = fetch.put_md.of(self.handle(), "put_md")?;
        let get_md = fetch.get_md.of(self.handle(), "get_md")?;
        self.check_target(fetch.target_id)?;
        let mut cell = [0; 32];
        if let Operation::Swap(op, ty) = operation
            && op.needs_operand()
        {
            let size = ty.size_bytes();
            let why = "is shorter than an element";
            let given = operand.get(..size).ok_or(crate::Error::Argument { argument: "operand", why })?;
            cell[..size].copy_from_slice(given);
        }
        Ok(Transfer {
            operation,
            md,
            local_offset: fetch.local_put_offset,
            reply: Some((get_md, fetch.local_get_offset)),
            length: fetch.length,
            ack: AckRequest::None,
            target: fetch.target_id,
            pt_index: fetch.pt_index,
            ac_index: 0,
            match_bits: fetch.match_bits,
            remote_offset: fetch.remote_offset,
            user_ptr: fetch.user_ptr,
            hdr_data: fetch.hdr_data,
            operand: cell,
        })
    }
    /// A rank has no node.
    #[inline]
    fn check_target(&self, target: Process) -> Result<(), crate::Error> {
        if self.is_logical() && target.nid().0 != 0 {
            let why = "is node and process numbers where processes are ranks";
            return Err(crate::Error::Argument { argument: "target_id", why });
        }
        Ok(())
    }
    #[inline(never)]
    fn put_slowly(&self, call: &'static str, put: &Put, operation: Operation) -> Result<(), Error> {
        self.begin(call, self.of_put(put, operation))
    }
    fn begin(&self, call: &'static str, transfer: Begun) -> Result<(), Error> {
        let begun = transfer.and_then(|transfer| self.inner.core.start(&transfer));
        begun.map_err(|e| Error::new(call, e))
    }
    fn trigger(
        &self,
        call: &'static str,
        begun: Begun,
        trig_ct: CtHandle,
        threshold: u64,
    ) -> Result<(), Error> {
        self.wait_for_count(call, begun.map(Triggered::Transfer), trig_ct, threshold)
    }
    fn wait_for_count(
        &self,
        call: &'static str,
        what: Result<Triggered, crate::Error>,
        trig_ct: CtHandle,
        threshold: u64,
    ) -> Result<(), Error> {
        let trigger = || {
            let ct = trig_ct.of(self.handle(), "trig_ct")?;
            self.inner.core.trigger(ct, threshold, what?)
        };
        trigger().map_err(|e| Error::new(call, e))
    }
}
