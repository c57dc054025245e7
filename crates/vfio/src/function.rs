//! A PCI function, of the kernel or of a vfio-user server.

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
    /// The system wants the function back, for example to unbind it from vfio-pci: it waits, and repeats the request,
    /// until the function is closed or [`PciFunction::let_go`] is called.
    pub request: Option<OwnedFd>,
}

/// A PCI function that this process drives. Clones are the same function; it is closed when the last one is gone, and
/// with it all windows on registers, mappings and arenas.
///
/// Bus mastering is off when a function is opened, so that nothing which its last user left reaches memory: a driver
/// resets it, maps memory, and switches bus mastering on by [`ConfigSpace::set_bus_master`].
#[derive(Clone)]
pub struct PciFunction(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// Dropped first: what it lets the device reach ends with it, before the memory goes.
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) dma: DmaTable,
    /// Vectors that are set up.
    msix: Mutex<u32>,
    /// Whoever holds a window on registers holds a clone.
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
    /// Where the kernel has iommufd and this process may open its nodes, it goes that way, else by the function's
    /// group.
    ///
    /// # Errors
    /// Each reason that lies with the machine's set-up is an [`OpenError`] of its own, whose text names the command
    /// that mends it.
    pub fn open(address: PciAddress) -> Result<Self, OpenError> {
        let backend = linux::open(address)?;
        Self::start(backend)
    }

    /// Opens the function that a vfio-user server offers at a socket.
    ///
    /// # Errors
    /// There is no socket, its server speaks something else or does not answer, or the device is no PCI function.
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

    /// Its name, as it can be opened by: `vfio://0000:03:00.0` or `vfio-user:///run/a.sock`.
    pub fn name(&self) -> &str {
        self.0.backend.name()
    }

    /// The configuration space of the function.
    ///
    /// # Errors
    /// It does not describe one.
    pub fn config(&self) -> Result<ConfigSpace, FunctionError> {
        ConfigSpace::of(self)
    }

    /// One of its BARs, 0 to 5.
    ///
    /// # Errors
    /// There is none of this number, or it holds ports instead of memory.
    pub fn bar(&self, index: u8) -> Result<Bar, FunctionError> {
        Bar::of(self, index)
    }

    fn msix(&self) -> MutexGuard<'_, u32> {
        // A number is whole at any time.
        self.0.msix.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// MSI-X vectors that it has.
    ///
    /// # Errors
    /// It does not say.
    pub fn msix_vectors(&self) -> Result<u32, FunctionError> {
        self.0.backend.irqs(IRQ_MSIX)
    }

    /// Has its first `vectors` MSI-X interrupts count up an eventfd each. They are non-blocking: reading one gives how
    /// often its interrupt came since, or `EAGAIN`. Dropping one ends nothing.
    ///
    /// # Errors
    /// There are not as many, or some are set up already.
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

    /// Closes the function although clones and register mappings exist, which releases it to the system. It accesses no
    /// memory any more; calls fail ([`FunctionError::LetGo`]), and register mappings show private memory. A forked
    /// child changes nothing by it.
    ///
    /// # Errors
    /// Something could not be taken from under who holds it. All that could be is closed.
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

    /// Resets the function: nothing of what it was doing goes on. Interrupts are disabled, bus mastering is off,
    /// memory space is on, mappings for DMA stay.
    ///
    /// # Errors
    /// It can't be reset by itself, or is gone.
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

    /// Maps memory that is not from an arena for the device. The mapping is of whole pages, so the device can reach
    /// what lies beside the memory on its first and last page as well; [`DmaMapping::iova`] is that of its first byte.
    ///
    /// Over vfio-user it is refused ([`DmaError::Foreign`]): the server has no way to this memory. A
    /// [`DmaArena`](crate::DmaArena) serves both kinds.
    ///
    /// # Safety
    /// The pages stay mapped in this process, and nobody relies on what they hold where the device may write, until
    /// [`dma_unmap`](Self::dma_unmap) has returned `Ok`, or the function is closed. Where that returns an error they
    /// stay until the function is closed.
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

    /// Takes a mapping back. When it has returned `Ok`, the device can reach the memory no more.
    ///
    /// # Errors
    /// It is none of this function's, or the device can't be kept from it: the memory then has to stay.
    pub fn dma_unmap(&self, mapping: DmaMapping) -> Result<(), DmaError> {
        self.0.dma.unmap(&*self.0.backend, mapping)
    }

    /// How to wake the function's server after a doorbell was written to mapped registers. `None`: it needs no waking,
    /// as hardware, or polls by itself.
    pub fn waker(&self) -> Option<Waker> {
        self.0.backend.waker()
    }
}
