//! The adapter: the order in which it is started and stopped, and the state that its objects share.

use core::ops::Deref;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use hca_core::wire::neighbour::{Mac, Station};
use hca_core::{AddressVector, DeviceError, Gid};
use hca_prm::command::hca::{
    AccessRegIn, AccessRegMod, DisableHcaIn, EnableHcaIn, InitHcaIn, QueryIssiIn, QueryIssiOut,
    QueryPagesMod, SetDriverVersionIn, SetIssiIn, TeardownHcaIn, TeardownProfile,
};
use hca_prm::register::{HostEndianness, RegisterId};
use hca_prm::{CMD_INTERFACE_REV, CmdStatus, Command, InitSegment};
use hca_process::Fork;
use hca_vfio::{ArenaOptions, Bar, DmaArena, FunctionError, PciFunction};

use crate::ah::Ahs;
use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::counters::CounterSet;
use crate::cq::Cqs;
use crate::driver_thread::{DriverThread, Signals};
use crate::error::OpenError;
use crate::eth::{Ethernet, Found, Means};
use crate::events::{EventFd, Events};
use crate::health::{Death, Health};
use crate::infiniband;
use crate::link::Link;
use crate::memory::Lent;
use crate::mr::Mrs;
use crate::options::Options;
use crate::pd::Pds;
use crate::port::{Path, Port};
use crate::qp::Qps;
use crate::registers::Registers;
use crate::serve::{Eqs, Later, open_events};
use crate::srq::Srqs;
use crate::uar::{Doorbells, EventUar, Uars};

/// The vendor ID of these adapters.
const VENDOR: u16 = 0x15b3;
/// Event queues of completions, at most: each takes memory of its own.
const MOST_COMPLETION_EQS: u32 = 16;
/// Sleeps while the firmware starts.
const START_NAP: Duration = Duration::from_millis(2);
/// How long registers may read as ones after a reset. The bus allows a second.
const MOST_ONES: Duration = Duration::from_secs(10);

/// An adapter that runs, as all have it who use it. When the last one is gone it is stopped, on that thread.
pub(crate) struct Hca {
    core: Arc<Core>,
    driver_thread: DriverThread,
    /// Whether it surely is stopped, once that was tried. Held by whoever is about it.
    closed: Mutex<Option<bool>>,
    fork: Fork,
}

impl Deref for Hca {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Hca {
    fn drop(&mut self) {
        // A child has neither the registers nor the thread, and the adapter is its parent's.
        if self.fork.is_child() {
            return;
        }
        self.stop_once();
        // On the driver's own thread, which may be about to give commands: there is nobody who would answer.
        self.health.declare(Death::Closed);
    }
}

impl Hca {
    /// Starts the adapter. If that fails, it is reset.
    pub(crate) fn open(function: PciFunction, options: &Options) -> Result<Arc<Self>, OpenError> {
        let arena = ArenaOptions { huge_pages: options.huge_pages, ..ArenaOptions::default() };
        // It keeps what the adapter was given until that is reset, also where the start fails.
        let arena = DmaArena::new(&function, arena);
        let started = Core::start(&function, &arena, options).and_then(|(core, signals)| {
            let core = Arc::new(core);
            let driver_thread = DriverThread::start(&core, core.bell.clone(), signals);
            let driver_thread = driver_thread.map_err(|source| {
                core.link().restore_if_possible(&core.cmd);
                OpenError::Io { doing: "starting the driver's thread", source }
            })?;
            core.cmd.events_on(driver_thread.thread());
            Ok(Arc::new(Self { core, driver_thread, closed: Mutex::default(), fork: Fork::new() }))
        });
        if started.is_err() {
            quiet(&function);
        }
        started
    }

    /// Stops the adapter, and everything that is asked of it fails from then on.
    pub(crate) fn close(&self) -> Result<(), DeviceError> {
        // The adapter is the parent's.
        if self.fork.is_child() {
            return Ok(());
        }
        let stopped = self.stop_once();
        self.health.declare(Death::Closed);
        if self.release_dead() || stopped { Ok(()) } else { self.health.check_alive() }
    }
    /// Stops it, unless that was done, or is being done by who waits for this thread. Returns whether it surely is.
    fn stop_once(&self) -> bool {
        let mut closed = match self.closed.try_lock() {
            Ok(closed) => closed,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            // Whoever closes it waits for this thread.
            Err(TryLockError::WouldBlock) if self.cmd.is_event_thread() => return false,
            Err(TryLockError::WouldBlock) => self.closed.lock().unwrap_or_else(PoisonError::into_inner),
        };
        if closed.is_none() {
            self.cmd.events_off();
            self.driver_thread.leave();
            *closed = Some(self.core.shut());
        }
        *closed == Some(true)
    }
}

/// What the driver's thread has of it.
pub(crate) struct Core {
    /// Taken for dead or not.
    pub(crate) health: Arc<Health>,
    /// The adapter's capabilities.
    pub(crate) caps: Caps,
    /// The port.
    pub(crate) port: Port,
    /// The counters of its queue pairs.
    pub(crate) counter_set: CounterSet,
    /// The Ethernet queues that find an Ethernet port's peers, if the adapter supports them.
    pub(crate) ethernet: Option<Ethernet>,
    neighbour_timeout: Duration,
    /// The changes that the driver made to the link.
    link: Mutex<Link>,
    /// Doorbell pages.
    pub(crate) uars: Uars,
    /// Memory that programs have.
    pub(crate) lent: Arc<Lent>,
    pub(crate) pds: Pds,
    pub(crate) mrs: Mrs,
    pub(crate) cqs: Cqs,
    pub(crate) srqs: Srqs,
    pub(crate) ahs: Ahs,
    pub(crate) qps: Qps,
    /// Asynchronous events for the program.
    pub(crate) events: Events,
    pub(crate) cmd: CommandQueue,
    pub(crate) eqs: Mutex<Option<Eqs>>,
    /// The work of events that others than the driver's thread have taken.
    pub(crate) put_off: Mutex<Vec<Later>>,
    pub(crate) registers: Registers,
    /// Whether it is kept from all memory for certain, once what has to be done when it dies was done.
    pub(crate) dead_released: Mutex<Option<bool>>,
    /// Event queues that completion queues take turns at.
    completion_eqs: Vec<u32>,
    next_eq: AtomicUsize,
    arena: DmaArena,
    function: PciFunction,
    /// Wakes the driver's thread.
    bell: Arc<EventFd>,
}

impl Core {
    fn start(
        function: &PciFunction,
        arena: &DmaArena,
        options: &Options,
    ) -> Result<(Self, Signals), OpenError> {
        let name = function.name().to_owned();
        let bar = prepare(function)?;
        let registers = Registers::new(bar.clone());
        wait_for_firmware(&registers, &name, options.start_timeout)?;
        let health = Arc::new(Health::new(options.health_interval));
        let cmd = CommandQueue::open(registers.clone(), arena, health.clone(), options, &name)?;
        wait_for_firmware(&registers, &name, options.start_timeout)?;
        let failed = |source| OpenError::Command { name: name.clone(), source };

        let caps = boot(&cmd, &name)?;
        let interrupts = interrupts(function, options)?;
        let notices = function.notices()?;
        let uar = EventUar::open(&cmd, &bar, &name)?;
        // From here on any command may wait for pages.
        open_events(&cmd, arena, &uar, &caps).map_err(|e| e.open(&name))?;
        let uars = Uars::open(&cmd, uar, &name, Doorbells::of(options, &caps), function.waker())?;
        let no_fd = |source| OpenError::Io { doing: "making eventfds for events", source };
        let (events, bell) = (Events::new().map_err(no_fd)?, Arc::new(EventFd::new().map_err(no_fd)?));
        let mut link = Link::default();
        let opened: Result<_, OpenError> = (|| {
            // Before there is a queue of asynchronous events, as it is none for the program.
            link.raise(&cmd, &caps, options).map_err(failed)?;
            infiniband::wait_for_manager(&cmd, &caps, options).map_err(failed)?;
            let entries = options.event_queue_entries;
            let eqs = Eqs::open(&cmd, arena, uars.events(), &caps, entries, interrupts.len() as u32)
                .map_err(|e| e.open(&name))?;
            let counter_set = CounterSet::open(&cmd).map_err(failed)?;
            let port = Port::open(&cmd, &caps, options, &name)?;
            let means =
                Means { cmd: &cmd, arena, caps: &caps, uars: &uars, eqn: eqs.completion_numbers()[0] };
            let ethernet = Ethernet::open(&means, &port, &name)?;
            eqs.arm(&cmd)?;
            if caps.driver_version {
                cmd.exec(&driver_version()).map_err(failed)?;
            }
            Ok((eqs, port, ethernet, counter_set))
        })();
        let (eqs, port, ethernet, counter_set) = opened.inspect_err(|_| link.restore_if_possible(&cmd))?;
        let this = Self {
            health,
            uars,
            port,
            counter_set,
            ethernet,
            neighbour_timeout: options.neighbour_timeout,
            link: Mutex::new(link),
            lent: Arc::default(),
            pds: Pds::new(1 << caps.log_max_pd),
            mrs: Mrs::new(1 << caps.log_max_mkey),
            cqs: Cqs::new(&caps),
            srqs: Srqs::new(&caps),
            ahs: Ahs::new(&caps),
            qps: Qps::new(&caps),
            events,
            caps,
            cmd,
            completion_eqs: eqs.completion_numbers(),
            next_eq: AtomicUsize::new(0),
            eqs: Mutex::new(Some(eqs)),
            put_off: Mutex::default(),
            registers,
            dead_released: Mutex::default(),
            arena: arena.clone(),
            function: function.clone(),
            bell,
        };
        Ok((this, Signals { interrupts, notices }))
    }

    /// Gives a command whose input and output are all in their layouts.
    pub(crate) fn exec<C: Command>(&self, input: &C) -> Result<C::Output, CmdError> {
        self.exec_with(input, &[], &mut [])
    }
    /// Gives a command; `tail` follows the input's layout (a list of pages), and what follows the output's comes to
    /// `out_tail`.
    pub(crate) fn exec_with<C: Command>(
        &self,
        input: &C,
        tail: &[u8],
        out_tail: &mut [u8],
    ) -> Result<C::Output, CmdError> {
        let outcome = self.cmd.exec_with(input, tail, out_tail);
        if outcome.is_err() && self.health.is_dead() {
            self.wake_driver_thread();
        }
        outcome
    }
    /// The way to a peer. On an Ethernet port that may have to ask for the peer's MAC, and to wait for the answer.
    pub(crate) fn path(&self, av: &AddressVector) -> Result<Path, DeviceError> {
        self.port.path(av, |own, peer| self.ask_for(own, peer))
    }
    fn ask_for(&self, own: Station, peer: IpAddr) -> Result<Mac, DeviceError> {
        let unknown = |why| DeviceError::NoPath { gid: Gid::from_ip(peer), why };
        let Some(eth) = &self.ethernet else {
            return Err(unknown(
                "its MAC is not known, and this function has no Ethernet queues to ask for it, as a warning said when it \
                 was opened: give it, as in ?neigh=10.0.0.3=02:00:00:00:00:03, or take the peer's link-local GID",
            ));
        };
        // Nothing else is done meanwhile on the driver's own thread.
        let patience = if self.cmd.is_event_thread() { Duration::ZERO } else { self.neighbour_timeout };
        match eth.find(own, peer, patience, || self.check_alive())? {
            Found::At(mac) => Ok(mac),
            Found::Nobody => Err(unknown(
                "nobody tells its MAC by ARP or neighbour discovery: see that the peer is up and in this network; of a peer \
                 behind a router give the router's, as in ?neigh=10.1.0.3=02:00:00:00:00:03",
            )),
            Found::Broken => Err(unknown(
                "its MAC is not known, and the Ethernet queues that would ask for it are in error, as was logged: open the \
                 adapter anew, or give the MAC, as in ?neigh=10.0.0.3=02:00:00:00:00:03",
            )),
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        // It is whole between any two of its operations.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Has the driver's thread look at once.
    pub(crate) fn wake_driver_thread(&self) {
        self.bell.signal();
    }
    /// The number of an event queue for a completion queue: they take turns.
    pub(crate) fn completion_eq(&self) -> u32 {
        let turn = self.next_eq.fetch_add(1, Ordering::Relaxed);
        self.completion_eqs[turn % self.completion_eqs.len()]
    }
    /// Memory for queues and programs: zeroed, whole pages, contiguous for the adapter.
    pub(crate) fn arena(&self) -> &DmaArena {
        &self.arena
    }
    /// The function.
    pub(crate) fn function(&self) -> &PciFunction {
        &self.function
    }
    /// Pages that the adapter has.
    pub(crate) fn pages_lent(&self) -> usize {
        self.cmd.pages().count()
    }
    /// Fails if the adapter is dead.
    pub(crate) fn check_alive(&self) -> Result<(), DeviceError> {
        self.health.check_alive()
    }

    /// Somebody wants the function back, and waits until it is closed: the link is left as it was found, and everything
    /// that holds the function open is closed.
    pub(crate) fn hand_back(&self) {
        if self.function.is_let_go() {
            return;
        }
        tracing::error!(
            "the system wants {} back, as when it is unbound from vfio-pci: it is let go of, and its program hears that the \
             device is dead",
            self.function.name()
        );
        if !self.health.is_dead() {
            self.link().restore_if_possible(&self.cmd);
        }
        // Whether it is kept from memory does not matter: closing it does that.
        let _ = self.kill(Death::TakenBack);
        if let Err(e) = self.function.let_go() {
            tracing::error!(%e, "a part of the function stays open: the system waits until the program ends");
        }
    }

    /// Whether programs have made objects that they have not destroyed.
    fn has_objects(&self) -> bool {
        // All others are in a domain.
        self.pds.any() || self.cqs.any()
    }

    /// Stops it, or resets it where that is not possible. Returns whether either was done.
    fn shut(&self) -> bool {
        let stopped = if self.function.is_let_go() {
            // Closing it has reset it.
            return true;
        } else if let Some(death) = self.health.death() {
            tracing::warn!(%death, "a dead adapter is closed: it is reset");
            false
        } else if self.cmd.is_event_thread() {
            // Within a waker, while events are being taken.
            tracing::warn!("an adapter is closed on its driver's own thread: it is reset");
            false
        } else if self.has_objects() {
            tracing::debug!("an adapter is closed with objects on it: it is reset");
            self.link().restore_if_possible(&self.cmd);
            false
        } else {
            match self.stop() {
                Ok(0) => true,
                Ok(kept) => {
                    tracing::warn!(kept, "the adapter did not return all pages: it is reset");
                    false
                }
                Err(e) => {
                    tracing::warn!(%e, "stopping the adapter failed: it is reset");
                    false
                }
            }
        };
        if stopped {
            let off =
                self.function.disable_msix().and_then(|()| self.function.config()?.set_bus_master(false));
            if let Err(e) = off {
                tracing::warn!(%e, "disabling the function failed");
            }
            return true;
        }
        quiet(&self.function)
    }

    fn let_go_of_port(&self) -> Result<(), CmdError> {
        if let Some(eth) = &self.ethernet {
            eth.close(&self.cmd)?;
        }
        self.port.close(&self.cmd)?;
        let eqs = self.eqs.lock().unwrap_or_else(PoisonError::into_inner).take();
        eqs.map_or(Ok(()), |eqs| eqs.close(&self.cmd))
    }

    /// Stops the adapter, in the opposite order of its start. Returns how many pages it keeps.
    fn stop(&self) -> Result<usize, CmdError> {
        let let_go = self.let_go_of_port();
        // Whatever came of that: the link is not only this function's.
        self.link().restore(&self.cmd).and(let_go)?;
        self.counter_set.close(&self.cmd)?;
        self.cmd.close_events()?;
        self.uars.close(&self.cmd)?;
        let stop = TeardownHcaIn::new().with(TeardownHcaIn::PROFILE, TeardownProfile::GracefulClose.code());
        self.cmd.exec(&stop)?;
        let kept = self.cmd.pages().take_all(&self.cmd)?;
        self.cmd.exec(&DisableHcaIn::new())?;
        Ok(kept)
    }
}

/// Has a function that may still be at work reach no memory any more. Returns whether it surely does not.
fn quiet(function: &PciFunction) -> bool {
    let Err(e) = function.reset() else { return true };
    tracing::warn!(%e, "resetting the function failed; bus mastering is switched off");
    let off = function.config().and_then(|c| c.set_bus_master(false));
    if let Err(e) = &off {
        tracing::warn!(%e, "switching off bus mastering failed, too");
    }
    off.is_ok()
}

/// Checks what the function is, has it forget its last user, and lets it reach memory.
fn prepare(function: &PciFunction) -> Result<Arc<Bar>, OpenError> {
    let config = function.config()?;
    let (vendor, device) = (config.vendor_id()?, config.device_id()?);
    if vendor != VENDOR {
        return Err(OpenError::NotConnectX { name: function.name().to_owned(), vendor, device });
    }
    match function.reset() {
        // A machine may have given it no way; commands then fail if its last user left it in use.
        Err(e @ FunctionError::NoReset { .. }) => {
            tracing::warn!(%e, "the function keeps the state that its last user left");
        }
        other => other?,
    }
    let bar = Arc::new(function.bar(0)?);
    config.set_bus_master(true)?;
    Ok(bar)
}

/// Waits until the firmware has started, and checks that it speaks this command interface.
fn wait_for_firmware(registers: &Registers, name: &str, timeout: Duration) -> Result<(), OpenError> {
    let begun = Instant::now();
    loop {
        let row = registers.row(InitSegment::INITIALIZING.offset())?;
        if !InitSegment::INITIALIZING.of_row(row) {
            break;
        }
        let limit = if row == u32::MAX { timeout.min(MOST_ONES) } else { timeout };
        if begun.elapsed() >= limit {
            let (name, ms) = (name.to_owned(), limit.as_millis());
            let gone = row == u32::MAX;
            return Err(if gone { OpenError::Gone { name, ms } } else { OpenError::Starting { name, ms } });
        }
        std::thread::sleep(START_NAP);
    }
    let found = registers.get(InitSegment::CMD_INTERFACE_REV)?;
    if found != CMD_INTERFACE_REV {
        return Err(OpenError::Interface { name: name.to_owned(), found });
    }
    Ok(())
}

/// Has the adapter use version 1 of its interface.
fn set_issi(cmd: &CommandQueue, name: &str) -> Result<(), OpenError> {
    const VERSION: u32 = 1;
    let failed = |source| OpenError::Command { name: name.to_owned(), source };
    let supported = match cmd.exec(&QueryIssiIn::new()) {
        Ok(answer) => answer.get(QueryIssiOut::SUPPORTED_ISSI_DW0),
        // A firmware that has version 0 alone does not know the command.
        Err(e) if e.is(CmdStatus::BadOp) => 1,
        Err(e) => return Err(failed(e)),
    };
    if supported >> VERSION & 1 == 0 {
        return Err(OpenError::Issi { name: name.to_owned(), supported });
    }
    cmd.exec(&SetIssiIn::new().with(SetIssiIn::CURRENT_ISSI, VERSION)).map_err(failed)?;
    Ok(())
}

/// Takes the adapter from reset to running.
fn boot(cmd: &CommandQueue, name: &str) -> Result<Caps, OpenError> {
    let failed = |source| OpenError::Command { name: name.to_owned(), source };
    cmd.exec(&EnableHcaIn::new()).map_err(failed)?;
    set_issi(cmd, name)?;
    cmd.pages().satisfy(cmd, QueryPagesMod::Boot).map_err(failed)?;
    set_endianness(cmd).map_err(failed)?;
    let caps = Caps::negotiate(cmd).map_err(failed)?;
    cmd.pages().satisfy(cmd, QueryPagesMod::Init).map_err(failed)?;
    cmd.exec(&InitHcaIn::new()).map_err(failed)?;
    Ok(caps)
}

/// Tells the adapter the host's byte order.
fn set_endianness(cmd: &CommandQueue) -> Result<(), CmdError> {
    let order = HostEndianness::new().with(HostEndianness::HE, cfg!(target_endian = "big"));
    let input = AccessRegIn::new()
        .with(AccessRegIn::OP_MOD, AccessRegMod::Write.code())
        .with(AccessRegIn::REGISTER_ID, RegisterId::HostEndianness.code());
    match cmd.exec_with(&input, order.as_bytes(), &mut [0; HostEndianness::SIZE]) {
        // A virtual function may not set it: its physical one has.
        Err(CmdError::Refused { .. }) | Ok(_) => Ok(()),
        Err(e) => Err(e),
    }
}

/// The driver's description for the firmware.
fn driver_version() -> SetDriverVersionIn {
    let mut text = [0; 64];
    let version = concat!("hca-mlx5,", env!("CARGO_PKG_VERSION"));
    text[..version.len()].copy_from_slice(version.as_bytes());
    SetDriverVersionIn::new().with(SetDriverVersionIn::DRIVER_VERSION, text)
}

/// One interrupt for commands and asynchronous events, and one for completions a CPU, as far as there are as many.
fn interrupts(function: &PciFunction, options: &Options) -> Result<Vec<OwnedFd>, OpenError> {
    let has = function.msix_vectors()?;
    if has == 0 || !options.interrupts {
        return Ok(Vec::new());
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    Ok(function.enable_msix(has.min(1 + cpus.min(MOST_COMPLETION_EQS)))?)
}
