//! A function: its parts, and the operations on all of them.
//!
//! Calls:
//!
//! | from | call | to |
//! |---|---|---|
//! | the server, for each message | `config_read`, `config_write`, `bar_read`, `bar_write`, `dma_map`, `dma_unmap`, `reset` | here |
//! | the server, in a loop | [`Function::look_at_requests`] of all, [`Function::look_at_places`] of all, [`Function::carry_out`] of all | `bus::uar` (doorbells), `qp`, `cq`, `srq`, `eth` |
//! | `bus::registers`, for a write of the command doorbell | `Function::run_commands` | `command` |
//! | `command`, by operation code | `Function::create_cq` and the like: `(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus>` | `command`, `eq` and the folder of the object, as `cq` |
//! | here and `bus::registers`, for each completion queue that was armed | `Function::armed` | `cq` |
//! | `objects`, `cq`, `port` | `Function::post_event`, `Function::raise` | `eq` |
//! | here, for a range of client memory that goes | `Function::release_memory`, then `Guest::unmap` | `objects`, `guest` |
//! | here, at reset and teardown | `Function::destroy_objects` | `objects` |

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hca_prm::NicInterface;
use rustix::io::Errno;
use softhca::SoftHca;

use crate::bus::interrupts::Interrupts;
use crate::bus::pci::{Config, ConfigEffect};
use crate::bus::registers::Registers;
use crate::bus::uar::DoorbellPages;
use crate::command::{Commands, Resources};
use crate::eq::Eqs;
use crate::eth::Ethernet;
use crate::guest::{Guest, Part};
use crate::objects::{Objects, QUEUE_PAIRS_A_LOOK};
use crate::port::directory::SharedDirectory;
use crate::port::fixed::Fixed;
use crate::port::link::{Link, Wire};
use crate::port::rate::FrameRate;
use crate::script::Script;

/// Keys that are taken back in one look where their memory goes.
const KEYS_A_LOOK: usize = 64;
/// Ranges that are unmapped in one look.
const RANGES_A_LOOK: usize = 4096;

/// The kind of a function's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PortKind {
    /// InfiniBand: addressed by LID and GID.
    #[default]
    InfiniBand,
    /// Ethernet, with RDMA over it (RoCEv2).
    Roce,
}

impl PortKind {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "ib",
            Self::Roce => "roce",
        }
    }
}

impl std::fmt::Display for PortKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for PortKind {
    type Err = UnknownPort;
    fn from_str(s: &str) -> Result<Self, UnknownPort> {
        [Self::InfiniBand, Self::Roce].into_iter().find(|p| p.name() == s).ok_or(UnknownPort)
    }
}

/// No kind of port has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind of port: use ib or roce")]
pub struct UnknownPort;

/// The options of a function.
#[derive(Clone, Debug, Default)]
pub struct FunctionOptions {
    /// The number among the functions of its adapter, from 0; its LID is one more.
    pub number: u16,
    /// The port.
    pub port: PortKind,
    /// Whether the function asks its driver for pages at every command that creates an object, and never for more than
    /// that object needs. An adapter in silicon may ask at any command, but has pages to spare most of the time, which
    /// hides a driver that gives no pages while it waits for a command.
    pub no_spare_pages: bool,
    /// The settings that the operator has fixed, and that the driver can't change.
    pub fixed: Fixed,
    /// For tests: its deviations from correct behaviour.
    pub script: Option<Arc<dyn Script>>,
}

/// A PCI function, as one client at a time sees it.
///
/// A function never blocks and has no thread: a caller hands it the client's messages, and [`look`](Self::look) does
/// the work that doorbells and completions announce.
pub struct Function {
    pub(crate) options: FunctionOptions,
    pub(crate) hca: Arc<SoftHca>,
    pub(crate) directory: SharedDirectory,
    pub(crate) config: Config,
    pub(crate) interrupts: Interrupts,
    pub(crate) registers: Registers,
    pub(crate) pages: DoorbellPages,
    /// A client that has gone may still have the doorbell pages mapped, as the system had none to replace them by.
    has_stale_mapping: bool,
    /// A script has its client hung up on.
    pub(crate) hung_up: bool,
    pub(crate) guest: Guest,
    pub(crate) commands: Commands,
    pub(crate) resources: Resources,
    pub(crate) eqs: Eqs,
    pub(crate) objects: Objects,
    pub(crate) ethernet: Ethernet,
    pub(crate) link: Link,
    /// What its Ethernet frames have of the rate at which it may send, where that is fixed.
    pub(crate) frame_rate: Option<FrameRate>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Function {
    /// A function of the adapter `hca`, in the state after a reset.
    ///
    /// # Errors
    /// The system has no memory for doorbell pages, or no descriptors.
    pub fn new(
        hca: Arc<SoftHca>,
        directory: SharedDirectory,
        options: FunctionOptions,
    ) -> std::io::Result<Self> {
        let registers = Registers::new();
        directory.fix(&options);
        let frame_rate = options.fixed.rate.map(FrameRate::new);
        let mut objects =
            Objects::new(hca.clone(), Wire::of(&options, &hca, &Link::default()), registers.clock());
        objects.pace = frame_rate.as_ref().map(|rate| rate.pace.clone());
        Ok(Self {
            config: Config::new(options.port),
            objects,
            options,
            directory,
            interrupts: Interrupts::new(),
            registers,
            pages: DoorbellPages::new()?,
            has_stale_mapping: false,
            hung_up: false,
            guest: Guest::new(),
            commands: Commands::default(),
            resources: Resources::default(),
            eqs: Eqs::default(),
            ethernet: Ethernet::default(),
            link: Link::default(),
            frame_rate,
            hca,
        })
    }

    /// The options that it was created with.
    pub fn options(&self) -> &FunctionOptions {
        &self.options
    }

    /// How much of the process's the client may have from now on.
    pub(crate) fn set_part(&mut self, part: Part) {
        self.objects.max_queue_bytes = part.queue_bytes;
        self.guest.set_part(part);
    }

    /// Polls all doorbells and completions once, and does a bounded amount of work. Returns whether there was any. That
    /// is for a function alone; of several, each does [`look_at_requests`](Self::look_at_requests), then each
    /// [`look_at_places`](Self::look_at_places), then each [`carry_out`](Self::carry_out).
    pub fn look(&mut self) -> bool {
        let seen = self.look_at_requests();
        self.look_at_places() | self.carry_out() | seen
    }

    /// Polls doorbells, notes the requests that doorbell records announce, and runs a command that was put off. Returns
    /// whether there was any work.
    pub fn look_at_requests(&mut self) -> bool {
        self.look_at_script() | self.look_at_commands() | self.look_at_doorbells() | self.note_requests()
    }

    /// Sees to the doorbell pages that were written.
    fn look_at_doorbells(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.pages.listening() {
            if let Some((doorbell, arm)) = self.pages.take_event(at) {
                any = true;
                self.eq_doorbell(doorbell, arm);
            }
        }
        for at in 0..self.pages.begin_look() {
            if let Some((uar, cqn, word)) = self.pages.take_armed(at) {
                any = true;
                self.armed(uar, cqn, Some(word));
            }
            let named = |queue| {
                self.objects.activate(queue);
                self.ethernet.activate(queue);
            };
            if let Some(uar) = self.pages.take_rung(at, named) {
                any = true;
                self.objects.suspect_all();
                self.ethernet_rung(uar);
            }
        }
        any | self.take_frames()
    }

    /// Maps client memory, given by a descriptor, for the function.
    ///
    /// # Errors
    /// As a number of the operating system: the range overlaps another one, or the descriptor can't be used.
    pub fn dma_map(
        &mut self,
        iova: u64,
        size: u64,
        rights: (bool, bool),
        file: Option<(OwnedFd, u64)>,
    ) -> Result<(), Errno> {
        self.guest.map(iova, size, rights, file)
    }

    /// Ranges that the client may map.
    pub(crate) fn max_dma_maps(&self) -> u32 {
        self.guest.max_maps()
    }

    /// Does a piece of what [`dma_unmap`](Self::dma_unmap) of this range would, where many keys or ranges lie in it.
    /// Returns whether there is more.
    pub(crate) fn unmap_piece(&mut self, iova: u64, size: u64) -> bool {
        self.release_piece(iova, size) || self.guest.unmap(iova, size, RANGES_A_LOOK) == Ok(true)
    }

    /// The same of queue pairs and keys alone.
    fn release_piece(&mut self, iova: u64, size: u64) -> bool {
        // What is refused takes nothing back.
        self.guest.check_unmap(iova, size).is_ok()
            && (self.objects.release_queue_pairs(iova, size, QUEUE_PAIRS_A_LOOK)
                || self.objects.release_keys(iova, size, KEYS_A_LOOK))
    }

    /// Does a piece of what a write to the configuration space would do, as it switches bus mastering off or resets the
    /// function. Returns whether there is more.
    pub(crate) fn piece_before(&mut self, offset: u64, data: &[u8]) -> bool {
        self.config.ends_bus_mastering(offset, data) && self.release_piece(0, u64::MAX)
            || self.config.resets(offset, data) && self.destroy_piece()
    }

    /// Unmaps client memory. After the return the function accesses that memory no more.
    ///
    /// # Errors
    /// As a number of the operating system: nothing is mapped there, or the range cuts a mapping in two.
    pub fn dma_unmap(&mut self, iova: u64, size: u64) -> Result<(), Errno> {
        self.guest.check_unmap(iova, size)?;
        self.release_memory(iova, size);
        self.guest.unmap(iova, size, usize::MAX).map(drop)
    }

    /// Reads the configuration space.
    pub fn config_read(&self, offset: u64, into: &mut [u8]) {
        self.config.read(offset, into);
        if let Some(script) = &self.options.script {
            script.config_read(offset, into);
        }
    }

    /// Writes to the configuration space.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        if let Some(script) = &self.options.script {
            script.config_write(offset, data);
        }
        let before = self.config.bus_master();
        let effect = self.config.write(offset, data);
        let now = self.config.bus_master();
        self.guest.set_bus_master(now);
        if before && !now {
            // What the adapter would reach by itself is as good as unmapped.
            self.release_memory(0, u64::MAX);
        }
        self.interrupts.set_function_mask(self.config.msix_masked());
        if effect == ConfigEffect::Reset {
            self.reset();
        }
    }

    /// Resets the function: all of its objects are destroyed, and its registers are as new. The client's mappings and
    /// the interrupts' eventfds stay.
    ///
    /// After a reset of a function that a driver had set up, the registers report it as disabled until a driver sets it
    /// up again. Linux does not tell the adapter's driver of a reset through sysfs; the driver finds the disabled state
    /// within 2 s, and recovers.
    pub fn reset(&mut self) {
        let was_set_up = self.registers.cmdq != 0;
        if let Some(script) = &self.options.script {
            script.reset();
        }
        self.as_new();
        if was_set_up {
            self.registers.nic_interface = NicInterface::Disabled.code();
        }
    }

    fn as_new(&mut self) {
        self.stop();
        self.config.reset();
        self.guest.set_bus_master(false);
        self.interrupts.reset();
        self.registers.reset();
        self.commands.reset();
        self.pages.clear();
    }

    /// Destroys all objects, as `TEARDOWN_HCA` does.
    pub(crate) fn stop(&mut self) {
        self.destroy_objects();
        self.eqs.clear();
        self.commands.pages.forget_objects();
        self.forget_requests();
        self.free_resources();
    }

    /// Does a piece of what [`disconnect`](Self::disconnect) is about to do. Returns whether there is more.
    pub(crate) fn disconnect_piece(&mut self) -> bool {
        self.destroy_piece() || self.guest.unmap(0, u64::MAX, RANGES_A_LOOK) == Ok(true)
    }

    /// Ends the client's use: [resets](Self::reset) the function, releases the client's memory and eventfds, and
    /// replaces the doorbell pages, which the client may still have mapped. If the system has no memory for new pages,
    /// that is logged, and the caller has to call [`renew`](Self::renew) before another client connects.
    pub fn disconnect(&mut self) {
        self.as_new();
        self.inherit_link();
        self.guest.clear();
        self.interrupts.clear();
        (self.has_stale_mapping, self.hung_up) = (true, false);
        if let Some(script) = &self.options.script {
            script.left();
        }
        if let Err(e) = self.renew() {
            tracing::warn!("function {}: no new doorbell pages yet: {e}", self.options.number);
        }
    }

    /// Replaces doorbell pages that an earlier client may still have mapped.
    ///
    /// # Errors
    /// The system has no memory for doorbell pages, or no descriptors: no new client is accepted.
    pub fn renew(&mut self) -> std::io::Result<()> {
        if self.has_stale_mapping {
            self.pages = DoorbellPages::new()?;
            self.has_stale_mapping = false;
        }
        Ok(())
    }
}
