//! An open PCI function, of the kernel or of a vfio-user server.

use core::fmt;
use core::ptr::NonNull;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hca_process::Fork;
use rustix::event::{EventfdFlags, eventfd};

use crate::address::PciAddress;
use crate::backend::{Backend, DmaRights};
use crate::bar::Bar;
use crate::config::ConfigSpace;
use crate::dma::{DmaMapping, DmaTable};
use crate::error::{DmaError, FunctionError, OpenError};
use crate::mmio::Held;
use crate::user::UserOptions;
use crate::user::wire::{IRQ_ERROR, IRQ_MSIX, IRQ_REQUEST};
use crate::wake::Waker;
use crate::{linux, user};

/// Notices of a function beside its interrupts: non-blocking eventfds. `None`: the function has no such notice.
#[derive(Debug)]
pub struct Notices {
    /// The bus has reported a fatal error; results of the device's last operations are not reliable.
    pub error: Option<OwnedFd>,
    /// The system requests the function back, for example to unbind it from vfio-pci. The system waits, and repeats the
    /// request, until the function is closed or [`PciFunction::let_go`] is called.
    pub request: Option<OwnedFd>,
}

/// A PCI function that this process drives. Clones are the same function; the function is closed when the last clone is
/// dropped, and with it all windows on registers, mappings and arenas.
///
/// Bus mastering is off when a function is opened, so that leftover operations of an earlier user reach no memory. A
/// driver resets the function, maps memory, and switches bus mastering on by [`ConfigSpace::set_bus_master`].
#[derive(Clone)]
pub struct PciFunction(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// Dropped first: the device's access to memory ends with it, before the memory is freed.
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) dma: DmaTable,
    /// Vectors that are set up.
    msix: Mutex<u32>,
    /// Each window on registers holds a clone.
    pub(crate) windows: Arc<()>,
    /// Windows on registers that there are; `None`: the function was let go of.
    shown: Mutex<Option<Vec<Weak<Held>>>>,
    /// Whose it is.
    pub(crate) fork: Fork,
}

impl fmt::Debug for PciFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PciFunction").field(&self.name()).finish()
    }
}

impl PciFunction {
    /// Opens a function of this machine that is bound to vfio-pci.
    ///
    /// If the kernel has iommufd and this process may open its nodes, the function is opened through iommufd, else
    /// through its IOMMU group.
    ///
    /// # Errors
    /// Each fault of the machine's set-up is an [`OpenError`] of its own, whose text names the command that mends the
    /// fault.
    pub fn open(address: PciAddress) -> Result<Self, OpenError> {
        let backend = linux::open(address)?;
        Self::start(backend)
    }

    /// Opens the function that a vfio-user server offers at a socket.
    ///
    /// # Errors
    /// There is no socket, its server speaks another protocol or does not answer, or the device is not a PCI function.
    pub fn connect(socket: &Path, options: UserOptions) -> Result<Self, OpenError> {
        let backend = user::connect(socket, options)?;
        Self::start(Box::new(backend))
    }

    fn start(backend: Box<dyn Backend>) -> Result<Self, OpenError> {
        if !backend.device().is_pci {
            return Err(OpenError::NotPci { name: backend.name().to_owned() });
        }
        let dma = DmaTable::new(&backend.dma_limits());
        let (msix, windows, shown) = (Mutex::new(0), Arc::new(()), Mutex::new(Some(Vec::new())));
        let this = Self(Arc::new(Inner { backend, dma, msix, windows, shown, fork: Fork::new() }));
        let config = this.config()?;
        config.set_bus_master(false)?;
        config.set_memory_space(true)?;
        Ok(this)
    }

    /// The function's name, by which it can be opened: `vfio://0000:03:00.0` or `vfio-user:///run/a.sock`.
    pub fn name(&self) -> &str {
        self.0.backend.name()
    }

    /// The configuration space of the function.
    ///
    /// # Errors
    /// The function describes no configuration space.
    pub fn config(&self) -> Result<ConfigSpace, FunctionError> {
        ConfigSpace::of(self)
    }

    /// The BAR of an index, 0 to 5.
    ///
    /// # Errors
    /// The function has no BAR with this index, or the BAR holds I/O ports instead of memory.
    pub fn bar(&self, index: u8) -> Result<Bar, FunctionError> {
        Bar::of(self, index)
    }

    fn msix(&self) -> MutexGuard<'_, u32> {
        // A number is whole at any time.
        self.0.msix.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of MSI-X vectors.
    ///
    /// # Errors
    /// The function does not report the number.
    pub fn msix_vectors(&self) -> Result<u32, FunctionError> {
        self.0.backend.irqs(IRQ_MSIX)
    }

    /// Connects each of the first `vectors` MSI-X interrupts to an eventfd. The eventfds are non-blocking: a read
    /// returns the number of interrupts since the last read, or fails with `EAGAIN`. A server shares this flag, and may
    /// change it; [`user::take_count`](crate::user::take_count) never waits. Dropping an eventfd disables nothing.
    ///
    /// # Errors
    /// The function has fewer vectors, or some are set up already.
    pub fn enable_msix(&self, vectors: u32) -> Result<Vec<OwnedFd>, FunctionError> {
        let name = || self.name().to_owned();
        let mut set_up = self.msix();
        if *set_up != 0 {
            return Err(FunctionError::VectorsInUse { name: name(), vectors: *set_up });
        }
        let has = self.msix_vectors()?;
        if !(1..=has).contains(&vectors) {
            return Err(FunctionError::Vectors { name: name(), asked: vectors, has });
        }
        let fds: Vec<OwnedFd> = (0..vectors).map(|_| self.eventfd()).collect::<Result<_, _>>()?;
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.0.backend.set_irqs(IRQ_MSIX, &borrowed)?;
        *set_up = vectors;
        Ok(fds)
    }
    fn eventfd(&self) -> Result<OwnedFd, FunctionError> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map_err(|e| FunctionError::Io {
            name: self.name().to_owned(),
            doing: "making eventfds for interrupts",
            source: e.into(),
        })
    }

    /// Reports bus errors, and requests to release the function, by an eventfd each.
    ///
    /// # Errors
    /// The system has no descriptors left, or the function is gone.
    pub fn notices(&self) -> Result<Notices, FunctionError> {
        let backend = &self.0.backend;
        let one = |kind| -> Result<Option<OwnedFd>, FunctionError> {
            if backend.irqs(kind)? == 0 {
                return Ok(None);
            }
            let fd = self.eventfd()?;
            backend.set_irqs(kind, &[fd.as_fd()])?;
            Ok(Some(fd))
        };
        Ok(Notices { error: one(IRQ_ERROR)?, request: one(IRQ_REQUEST)? })
    }

    /// Closes the function although clones and register mappings exist, which releases the function to the system.
    /// Afterwards the function accesses no memory; calls fail ([`FunctionError::LetGo`]), and register mappings show
    /// private memory. In a forked child the call changes nothing.
    ///
    /// # Errors
    /// A descriptor or a mapping could not be replaced while others hold it. All the rest is closed.
    pub fn let_go(&self) -> Result<(), FunctionError> {
        // What a child has at these addresses is its own.
        if self.0.fork.is_child() {
            return Ok(());
        }
        let mut shown = self.shown();
        let detached = shown.take().into_iter().flatten().filter_map(|held| held.upgrade());
        let detached = detached.map(|held| held.detach()).fold(Ok(()), Result::and);
        self.0.backend.let_go()?;
        detached.map_err(|e| FunctionError::Io {
            name: self.name().to_owned(),
            doing: "taking the windows on registers",
            source: e.into(),
        })
    }
    pub(crate) fn shown(&self) -> MutexGuard<'_, Option<Vec<Weak<Held>>>> {
        // It is whole between any two of its operations.
        self.0.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Whether the function was released.
    pub fn is_let_go(&self) -> bool {
        self.shown().is_none()
    }
    pub(crate) fn was_let_go(&self) -> FunctionError {
        FunctionError::LetGo { name: self.name().to_owned() }
    }

    /// Disables MSI-X, if it is set up.
    ///
    /// # Errors
    /// The function is gone.
    pub fn disable_msix(&self) -> Result<(), FunctionError> {
        let mut set_up = self.msix();
        if *set_up != 0 {
            self.0.backend.clear_irqs(IRQ_MSIX)?;
            *set_up = 0;
        }
        Ok(())
    }

    /// Resets the function, and ends all its operations. Afterwards interrupts are disabled, bus mastering is off,
    /// memory space is on, and mappings for DMA stay.
    ///
    /// # Errors
    /// The function has no reset that leaves other functions alone, or is gone.
    pub fn reset(&self) -> Result<(), FunctionError> {
        if !self.0.backend.device().can_reset {
            return Err(FunctionError::NoReset { name: self.name().to_owned() });
        }
        self.disable_msix()?;
        let config = self.config()?;
        config.set_bus_master(false)?;
        self.0.backend.reset()?;
        // The kernel puts back what stood there before; a server need not.
        config.set_bus_master(false)?;
        config.set_memory_space(true)
    }

    /// Whether memory that is not from an arena can be mapped ([`dma_map`](Self::dma_map)).
    pub fn takes_foreign(&self) -> bool {
        self.0.backend.takes_foreign()
    }

    /// Maps memory that is not from an arena for the device. The mapping is of whole pages, so the device can also
    /// access the other bytes of the first and the last page; [`DmaMapping::iova`] is the device address of the
    /// memory's first byte.
    ///
    /// Over vfio-user the call is refused ([`DmaError::Foreign`]), because the server has no access to this memory. A
    /// [`DmaArena`](crate::DmaArena) serves both kinds.
    ///
    /// # Safety
    /// Until [`dma_unmap`](Self::dma_unmap) has returned `Ok`, or the function is closed, the caller keeps the pages
    /// mapped in this process, and no code relies on the contents of memory that the device may write. If `dma_unmap`
    /// returns an error this holds until the function is closed.
    ///
    /// # Errors
    /// A limit is hit, or the memory can't be mapped.
    #[allow(unsafe_code)] // a promise that is asked for, and handed on to the kernel
    pub unsafe fn dma_map(
        &self,
        memory: NonNull<u8>,
        bytes: usize,
        rights: DmaRights,
    ) -> Result<DmaMapping, DmaError> {
        self.0.dma.map_foreign(&*self.0.backend, memory, bytes, rights)
    }

    /// Ends a mapping. After `Ok` the device can no longer access the memory.
    ///
    /// # Errors
    /// The mapping belongs to another function, or could not be removed from the device: the memory then has to stay
    /// mapped in this process.
    pub fn dma_unmap(&self, mapping: DmaMapping) -> Result<(), DmaError> {
        self.0.dma.unmap(&*self.0.backend, mapping)
    }

    /// The waker of the function's server, for use after a doorbell was written to mapped registers. `None`: the
    /// function is hardware, or its server polls without sleeping.
    pub fn waker(&self) -> Option<Waker> {
        self.0.backend.waker()
    }
}
