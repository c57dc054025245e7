//! Adapters: where VIs, memory and completion queues come from.

use std::fmt;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hca_core::wire::Placement;
use hca_process::Fork;
use hca_verbs::{AckTimeout, Context};

use crate::event::Handlers;
use crate::memory::MemTable;
use crate::notify::Notifier;
use crate::queue::{MAX_INLINE, MAX_SEGMENTS};
use crate::tasks::Tasks;
use crate::wait::Waiters;
use crate::{Cq, Discriminator, Error, ErrorHandler, MemAttributes, Memory, Ptag, Vi, ViAttributes, ViId};

/// A level of reliability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reliability {
    /// Messages may be lost. None is delivered twice or in part.
    Unreliable,
    /// Each message is delivered once and in order, or the connection ends. A descriptor completes when the peer's
    /// adapter has the message.
    Delivery,
    /// As `Delivery`. A descriptor completes when the message is in the target's memory.
    Reception,
}

impl Reliability {
    /// Whether a failure ends the connection.
    pub fn is_reliable(self) -> bool {
        self != Self::Unreliable
    }
    /// The bit of VIPL.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Unreliable => 1,
            Self::Delivery => 2,
            Self::Reception => 4,
        }
    }
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        [Self::Unreliable, Self::Delivery, Self::Reception].into_iter().find(|level| level.code() == code)
    }
}

/// The options of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicOptions {
    /// The number of descriptors that a work queue takes; at most what the device can.
    pub descriptors_per_queue: u32,
    /// The timeout for an acknowledgement of a reliable VI, which tries seven times more; that of
    /// [`ConnectOptions`](hca_verbs::ConnectOptions) unless given, which gives a silent peer up after 17 s.
    pub ack_timeout: Option<AckTimeout>,
    /// Without a connection manager: the program connects VIs itself, as in a simulation.
    #[doc(hidden)]
    pub by_hand: bool,
}

impl Default for NicOptions {
    fn default() -> Self {
        // One less than a power of two, as the send queue has one request more.
        Self { descriptors_per_queue: 255, ack_timeout: None, by_hand: false }
    }
}

/// The attributes of an adapter (`VIP_NIC_ATTRIBUTES`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAttributes {
    /// The name of the device.
    pub name: String,
    /// The address of the adapter, by which peers connect.
    pub host: IpAddr,
    /// The most bytes of a registered region.
    pub max_register_block_bytes: u64,
    /// The most registered regions.
    pub max_register_regions: u32,
    /// The most VIs.
    pub max_vi: u32,
    /// The most descriptors that a work queue takes.
    pub max_descriptors_per_queue: u32,
    /// The most data segments of a descriptor.
    pub max_segments_per_descriptor: u32,
    /// The most completion queues, with those of VIs without one.
    pub max_cq: u32,
    /// The most entries of a completion queue.
    pub max_cq_entries: u32,
    /// The most bytes of a message.
    pub max_transfer_size: u32,
    /// The most payload of a packet.
    pub native_mtu: u32,
    /// The most protection tags.
    pub max_ptags: u32,
    /// The levels of reliability.
    pub reliability_levels: Vec<Reliability>,
    /// The levels of reliability with RDMA READ.
    pub rdma_read_levels: Vec<Reliability>,
    /// Whether several threads may use one object.
    pub thread_safe: bool,
    /// The most bytes of a discriminator.
    pub max_discriminator_len: usize,
}

impl NicAttributes {
    fn of(context: &Context, options: &NicOptions) -> Self {
        let (attr, port) = (context.attr(), context.port());
        let segments = attr.max_sge.min(MAX_SEGMENTS as u32);
        let visible = attr.abilities.flush.contains(Placement::GLOBAL_VISIBILITY);
        let mut reliable = vec![Reliability::Delivery];
        reliable.extend(visible.then_some(Reliability::Reception));
        Self {
            name: attr.name.clone(),
            host: port.gid.ip(),
            max_register_block_bytes: attr.max_mr_bytes,
            max_register_regions: attr.max_mr,
            max_vi: attr.max_qp,
            max_descriptors_per_queue: options
                .descriptors_per_queue
                .clamp(1, attr.max_qp_wr.saturating_sub(1).max(1)),
            max_segments_per_descriptor: segments,
            max_cq: attr.max_cq,
            max_cq_entries: attr.max_cqe,
            max_transfer_size: 1 << 30,
            native_mtu: port.active_mtu.bytes(),
            max_ptags: attr.max_pd,
            reliability_levels: [&[Reliability::Unreliable], &reliable[..]].concat(),
            rdma_read_levels: reliable,
            thread_safe: true,
            max_discriminator_len: Discriminator::MAX_LEN,
        }
    }
}

pub(crate) struct NicShared {
    /// The fields with threads are dropped first.
    pub(crate) tasks: Tasks,
    pub(crate) notifier: Notifier,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) context: Context,
    pub(crate) attributes: NicAttributes,
    pub(crate) table: Arc<MemTable>,
    pub(crate) handlers: Handlers,
    pub(crate) max_inline: usize,
    pub(crate) ack_timeout: Option<AckTimeout>,
    pub(crate) vis: AtomicUsize,
    /// Held from where a completion queue is given room for a queue pair until that has taken the room.
    pub(crate) building: Mutex<()>,
    fork: Fork,
    /// Keeps the connection manager, so that a request that nobody waits for is refused at once.
    _presence: Option<hca_cm::Listener>,
}

impl NicShared {
    pub(crate) fn next_vi(&self) -> ViId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ViId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
    /// Whether this is a forked child's copy, which drops leave alone: a thread of the parent may have had a lock, and
    /// connections are the parent's.
    pub(crate) fn is_in_child(&self) -> bool {
        self.fork.is_child()
    }
}

/// An adapter (`VipOpenNic`). Clones are the same adapter.
#[derive(Clone)]
pub struct Nic {
    shared: Arc<NicShared>,
}

impl Nic {
    /// Uses a device as an adapter.
    ///
    /// # Errors
    /// The device has no descriptors to wait on, or another program has its connection manager.
    pub fn open(context: &Context) -> Result<Self, Error> {
        Self::open_with(context, &NicOptions::default())
    }
    /// As [`open`](Self::open), with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(context: &Context, options: &NicOptions) -> Result<Self, Error> {
        let waiters = Arc::new(Waiters::new(context)?);
        let host = context.port().gid.ip();
        let managed = context.attr().general_services && !options.by_hand;
        let presence = managed.then(|| hca_cm::Listener::bind(context, (host, 0)));
        let shared = NicShared {
            tasks: Tasks::default(),
            notifier: Notifier::new(&waiters),
            waiters,
            attributes: NicAttributes::of(context, options),
            context: context.clone(),
            table: Arc::default(),
            handlers: Handlers::default(),
            max_inline: MAX_INLINE.min(context.attr().max_inline as usize),
            ack_timeout: options.ack_timeout,
            vis: AtomicUsize::new(0),
            building: Mutex::default(),
            fork: Fork::new(),
            _presence: presence.transpose()?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
    pub(crate) fn shared(&self) -> &Arc<NicShared> {
        &self.shared
    }
    /// Closes the adapter (`VipCloseNic`).
    ///
    /// # Errors
    /// VIs or registered memory exist. The error gives the adapter back.
    pub fn close(self) -> Result<(), (Self, Error)> {
        let users = self.shared.vis.load(Ordering::Relaxed) + self.shared.table.len();
        if users > 0 {
            return Err((self, Error::InUse { what: "the adapter", users }));
        }
        Ok(())
    }
    /// The limits and abilities of the adapter (`VipQueryNic`).
    pub fn attributes(&self) -> &NicAttributes {
        &self.shared.attributes
    }
    /// Sets the handler of asynchronous errors (`VipErrorCallback`); `None`: the default handler, which logs them. It
    /// is called without a lock, by the thread that notices the error: one that polls or waits, or the adapter's own.
    pub fn set_error_handler(&self, handler: Option<ErrorHandler>) {
        self.shared.handlers.set(handler);
    }

    /// Creates a protection tag (`VipCreatePtag`).
    ///
    /// # Errors
    /// The device's limit.
    pub fn create_ptag(&self) -> Result<Ptag, Error> {
        Ptag::create(&self.shared.context)
    }
    /// Allocates and registers zeroed memory, aligned to 4096 bytes.
    ///
    /// # Errors
    /// The length is 0 or too large, the device has no more memory or regions, or the protection tag is of another
    /// adapter.
    pub fn alloc(&self, len: usize, attributes: &MemAttributes) -> Result<Memory, Error> {
        self.check(attributes)?;
        let mr = attributes.ptag.pd().alloc_shared(len, attributes.access())?;
        Ok(Memory::new(&self.shared.table, mr, attributes.clone()))
    }
    /// Registers memory of the program's own (`VipRegisterMem`).
    ///
    /// # Safety
    /// As [`Pd::register`](hca_verbs::Pd::register): `addr .. addr + len` stays valid for reads and writes until
    /// [`Memory::deregister`] has succeeded, or all clones and all descriptors in it are gone. Meanwhile no reference
    /// to these bytes is used.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), or the device reaches only memory that it gave out itself.
    #[allow(unsafe_code)] // hands the caller's promise on
    pub unsafe fn register(
        &self,
        addr: NonNull<u8>,
        len: usize,
        attributes: &MemAttributes,
    ) -> Result<Memory, Error> {
        self.check(attributes)?;
        // SAFETY: as the caller promised.
        let mr = unsafe { attributes.ptag.pd().register(addr, len, attributes.access())? };
        Ok(Memory::new(&self.shared.table, mr, attributes.clone()))
    }
    fn check(&self, attributes: &MemAttributes) -> Result<(), Error> {
        if attributes.ptag.is_of(&self.shared.context) { Ok(()) } else { Err(Error::Ptag) }
    }

    /// Creates a completion queue (`VipCreateCQ`).
    ///
    /// # Errors
    /// The number of entries is 0 or too large, or the device's limit.
    pub fn create_cq(&self, entries: u32) -> Result<Cq, Error> {
        Cq::create(self, entries)
    }
    /// Creates an idle VI (`VipCreateVi`). A work queue with a completion queue tells there of its descriptors.
    ///
    /// # Errors
    /// The adapter does not support an attribute, a part is of another adapter, or the device's limits.
    pub fn create_vi(
        &self,
        attributes: &ViAttributes,
        send_cq: Option<&Cq>,
        recv_cq: Option<&Cq>,
    ) -> Result<Vi, Error> {
        Vi::create(self, attributes, send_cq, recv_cq)
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nic({}, {})", self.attributes().name, self.attributes().host)
    }
}
