//! A function of the software adapter, served in a thread. Its script causes the faults that a test asks for, and
//! records the driver's actions.
#![allow(dead_code)] // each test uses a part

pub(crate) mod commands;
mod link;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hca_fabric::LoopbackNet;
use hca_prm::caps::{HcaCap, RoceCap};
use hca_prm::command::eq::CreateEqIn;
use hca_prm::command::hca::{HcaCapType, QueryHcaCapIn, QueryHcaCapOut};
use hca_prm::command::vport::{ModifyNicVportContextIn, NicVportContext, PortState};
use hca_prm::{
    CmdOut, CmdStatus, Command, DeliveryStatus, Eqe, EventType, HealthBuffer, HealthSyndrome, InitSegment,
    Layout, NicInterface, Opcode, PagesReqEvent,
};
use hca_vfio::user::wire::{IRQ_ERROR, IRQ_MSIX, IRQ_REQUEST};
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use softhca_pci::{Given, PortKind, Script, Served, ServerOptions, Turn};

pub(crate) use link::Link;

/// Slots of the command queue, as a power of two.
pub(crate) const LOG_SLOTS: u32 = 5;

/// The function, from the test's side.
pub(crate) struct Scripted {
    served: Served,
    script: Arc<Account>,
}

/// What the script has and knows.
#[derive(Debug)]
struct Account {
    state: Mutex<State>,
    left: Condvar,
}

/// What the function is and has, as far as its commands tell.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// What the test wants.
    pub(crate) wants: Wants,
    /// All commands, in order.
    pub(crate) log: Vec<(Opcode, u32)>,
    pub(crate) resets: u32,
    pub(crate) health_reads: u32,
    /// Pages that the driver has lent, and how many it ever lent.
    pub(crate) pages: BTreeSet<u64>,
    pub(crate) lent: usize,
    pub(crate) enabled: bool,
    pub(crate) running: bool,
    pub(crate) objects: BTreeSet<(&'static str, u32)>,
    /// Capabilities that were set, by kind.
    pub(crate) caps: HashMap<u32, Vec<u8>>,
    /// What was created last: the whole input.
    pub(crate) mkey: Vec<u8>,
    pub(crate) roce: BTreeMap<u32, Vec<u8>>,
    /// Which MACs the port is to hear, by kind: single ones (0), groups (1).
    pub(crate) macs: BTreeMap<u32, Vec<[u8; 6]>>,
    pub(crate) faults: Vec<String>,
    /// Event queues, by number.
    pub(crate) eqs: BTreeMap<u32, Queue>,
    /// The event queues that completion queues were made with.
    pub(crate) cq_eqs: Vec<u32>,
    /// All inputs of commands that were run, in order.
    pub(crate) inputs: Vec<(Opcode, Vec<u8>)>,
    /// What tells of errors of the bus, and of requests to let go.
    notices: [Option<OwnedFd>; 2],
    /// What the configuration space's command register holds.
    command: u16,
    /// Slots of commands that are held back, until the test lets them go; and of those that it let go.
    held: Vec<u32>,
    let_go: BTreeSet<u32>,
    /// Slots of commands that wait for pages.
    pub(crate) waiting: Vec<u32>,
    events: VecDeque<Eqe>,
    left: bool,
}

/// An event queue: the events that it hears, a bit for each of the first 64.
#[derive(Debug)]
pub(crate) struct Queue(u64);

impl Queue {
    pub(crate) fn events(&self) -> u64 {
        self.0
    }
}

/// What a test wants the function to do.
#[derive(Clone, Debug)]
pub(crate) struct Wants {
    pub(crate) vendor: u16,
    pub(crate) interface: u32,
    pub(crate) issi: u32,
    pub(crate) ethernet: bool,
    /// The kind of list of MACs that it does not take.
    pub(crate) refuses_list: Option<u32>,
    /// Events that it does not know, a bit each.
    pub(crate) unknown_events: u64,
    /// What it can beside or instead of what all can.
    pub(crate) more: fn(&mut commands::AllCaps),
    /// UDP source ports can be the driver's choice, and are not before it sets that.
    pub(crate) source_ports: bool,
    /// How much of the headers its port says that requests carry.
    pub(crate) inline_mode: u32,
    /// It offers Ethernet queues.
    pub(crate) ethernet_queues: bool,
    /// Commands of this kind end with a status and a syndrome.
    pub(crate) status: HashMap<Opcode, (u32, u32)>,
    /// Commands of this kind are not delivered.
    pub(crate) delivery: HashMap<Opcode, u32>,
    /// Commands of this kind get no answer.
    pub(crate) silent: BTreeSet<Opcode>,
    /// Commands of this kind are held back.
    pub(crate) hold: BTreeSet<Opcode>,
    /// Commands of this kind, all where there is none, ask for a page and wait for it, once there is a queue of events
    /// that hears of it.
    pub(crate) asks: Option<BTreeSet<Opcode>>,
    /// What the firmware reports of its health.
    pub(crate) health: HealthBuffer,
    /// What the function's interface is used for.
    pub(crate) nic: NicInterface,
    pub(crate) stopped: bool,
    /// Both halves of its clock count looks at the clock from here on.
    pub(crate) restless: Option<u32>,
    pub(crate) busy_reads: u32,
    /// Pages that are not given back when it is stopped.
    pub(crate) keeps: usize,
    /// So many more pages than it gives back it says to give.
    pub(crate) overstates: u32,
    pub(crate) vectors: u32,
    pub(crate) gone: bool,
    /// The server hangs up at the next command.
    pub(crate) hangs_up: bool,
    pub(crate) log_size: u32,
    /// What the subnet's manager has made of an InfiniBand port.
    pub(crate) managed: Managed,
    /// The link, whose registers a virtual function may not see (`None`). It outlives resets.
    pub(crate) link: Option<Link>,
}

/// What the subnet's manager has made of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Managed {
    pub(crate) state: PortState,
    pub(crate) lid: u32,
    pub(crate) gid: [u8; 16],
    /// How often the port is looked at before the manager comes; until then it is initialised, without a LID.
    pub(crate) looks: u32,
}

impl Default for Managed {
    fn default() -> Self {
        Self { state: PortState::Active, lid: commands::LID, gid: commands::GID, looks: 0 }
    }
}

/// What firmware reports that asks for a reset.
pub(crate) fn unwell(syndrome: HealthSyndrome) -> HealthBuffer {
    HealthBuffer::new().with(HealthBuffer::SYND, syndrome.code()).with(HealthBuffer::RFR, true)
}

impl Default for Wants {
    fn default() -> Self {
        Self {
            vendor: 0x15b3,
            interface: 5,
            issi: 2,
            ethernet: false,
            refuses_list: None,
            unknown_events: 0,
            more: |_| {},
            source_ports: false,
            inline_mode: 0,
            ethernet_queues: false,
            status: HashMap::new(),
            delivery: HashMap::new(),
            silent: BTreeSet::new(),
            hold: BTreeSet::new(),
            asks: Some(BTreeSet::new()),
            health: HealthBuffer::new(),
            nic: NicInterface::Full,
            stopped: false,
            restless: None,
            busy_reads: 2,
            keeps: 0,
            overstates: 0,
            vectors: 4,
            gone: false,
            hangs_up: false,
            log_size: LOG_SLOTS,
            managed: Managed::default(),
            link: Some(Link::default()),
        }
    }
}

impl Scripted {
    /// Serves a function.
    pub(crate) fn serve(wants: Wants) -> Self {
        let inline = softhca::Options { progress: Progress::Inline, ..softhca::Options::default() };
        let fabric = LoopbackNet::new().attach([10, 0, 0, 1].into());
        let hca = SoftHca::open(Box::new(fabric), inline).unwrap();
        let port = if wants.ethernet { PortKind::Roce } else { PortKind::InfiniBand };
        let state = Mutex::new(State { wants, ..State::default() });
        let script = Arc::new(Account { state, left: Condvar::new() });
        let options = ServerOptions { script: Some(script.clone()), ..port.into() };
        Self { served: Served::start(hca, 1, options).unwrap(), script }
    }

    /// The function, as a driver opens it.
    pub(crate) fn function(&self) -> PciFunction {
        PciFunction::connect(&self.served.sockets()[0], UserOptions::default()).unwrap()
    }
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.script.state()
    }
    /// Whether the function's client is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().left
    }
    /// Waits until the function's client is gone, and tells what it left behind.
    pub(crate) fn end(&mut self) -> MutexGuard<'_, State> {
        let wait = Duration::from_secs(20);
        let state = self.script.state();
        let left = self.script.left.wait_timeout_while(state, wait, |state| !state.left);
        let (state, over) = left.unwrap_or_else(PoisonError::into_inner);
        assert!(!over.timed_out(), "the function's client has not gone");
        state
    }
}

impl Account {
    fn state(&self) -> MutexGuard<'_, State> {
        // A test that failed while it held it says why.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Script for Account {
    fn command(&self, given: &Given<'_>) -> Turn {
        self.state().command(given)
    }
    fn ran(&self, input: &[u8], output: &mut [u8]) {
        self.state().ran(input, output);
    }
    fn config_read(&self, offset: u64, bytes: &mut [u8]) {
        if offset == 0 && bytes.len() >= 2 {
            bytes[..2].copy_from_slice(&self.state().wants.vendor.to_le_bytes());
        }
    }
    fn config_write(&self, offset: u64, bytes: &[u8]) {
        if let (4, Some(bytes)) = (offset, bytes.first_chunk()) {
            self.state().command = u16::from_le_bytes(*bytes);
        }
    }
    fn bar_read(&self, offset: u64, bytes: &mut [u8]) {
        self.state().read(offset as usize, bytes);
    }
    fn event(&self) -> Option<Eqe> {
        self.state().events.pop_front()
    }
    fn interrupts(&self, kind: u32) -> u32 {
        match kind {
            IRQ_MSIX => self.state().wants.vectors,
            IRQ_ERROR | IRQ_REQUEST => 1,
            _ => 0,
        }
    }
    fn listen(&self, kind: u32, eventfd: Option<OwnedFd>) {
        self.state().notices[(kind - IRQ_ERROR) as usize] = eventfd;
    }
    fn reset(&self) {
        let mut state = self.state();
        state.resets += 1;
        state.forget();
    }
    fn left(&self) {
        self.state().left = true;
        self.left.notify_all();
    }
}

impl State {
    /// Whether it may reach memory.
    pub(crate) fn masters(&self) -> bool {
        self.command & 4 != 0
    }
    /// Commands of one kind that were given.
    pub(crate) fn given(&self, command: Opcode) -> usize {
        self.log.iter().filter(|(c, _)| *c == command).count()
    }
    /// Has the function tell of an event.
    pub(crate) fn event(&mut self, event: &Eqe) {
        self.events.push_back(*event);
    }
    /// Whether it has told of all events.
    pub(crate) fn has_told(&self) -> bool {
        self.events.is_empty()
    }
    /// Has an error of the bus (0), or a request to let go (1), be told.
    pub(crate) fn notice(&self, which: usize) {
        let event = self.notices[which].as_ref().expect("it is set up");
        rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
    }
    /// Has reads of the descriptors of such notices wait: their flags are the driver's as well.
    pub(crate) fn have_reads_of_notices_wait(&self) {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        for event in self.notices.iter().flatten() {
            fcntl_setfl(event, fcntl_getfl(event).unwrap() - OFlags::NONBLOCK).unwrap();
        }
    }
    /// What the commands of one kind have given, in order.
    pub(crate) fn all<C: Command>(&self) -> Vec<C> {
        let given = self.inputs.iter().filter(|(opcode, _)| *opcode == C::OPCODE);
        given.map(|(_, input)| commands::head(input)).collect()
    }
    /// Ends a command that was held back; the first of them, or the last.
    pub(crate) fn let_go(&mut self, last: bool) {
        let slot = if last { self.held.pop().unwrap() } else { self.held.remove(0) };
        self.let_go.insert(slot);
    }
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }
    /// The capabilities that were set.
    pub(crate) fn caps_of(&self, kind: HcaCapType) -> &[u8] {
        &self.caps[&kind.code()]
    }

    fn command(&mut self, given: &Given<'_>) -> Turn {
        let (command, slot, wants) = (given.opcode(), given.slot, &self.wants);
        if given.tries == 0 {
            let op_mod = u32::from(u16::from_be_bytes([given.input[6], given.input[7]]));
            self.log.push((command, op_mod));
            if command == Opcode::MANAGE_PAGES && slot != (1 << wants.log_size) - 1 {
                self.faults.push(format!("pages by slot {slot}"));
            }
        }
        let delivery = wants.delivery.get(&command).and_then(|code| DeliveryStatus::from_code(*code));
        if wants.hangs_up {
            Turn::HangUp
        } else if wants.silent.contains(&command) {
            Turn::Silent
        } else if self.let_go.remove(&slot) {
            Turn::Run
        } else if given.tries == 0 && wants.hold.contains(&command) {
            self.held.push(slot);
            Turn::Wait
        } else if given.tries == 0 && self.asks_for_pages(command) {
            self.waiting.push(slot);
            let one = PagesReqEvent::new().with(PagesReqEvent::NUM_PAGES, 1);
            self.event(&Eqe::of(EventType::PageRequest).with(Eqe::EVENT_DATA, *one.as_bytes()));
            Turn::Wait
        } else if self.held.contains(&slot) || self.waiting.contains(&slot) {
            Turn::Wait
        } else if let Some(status) = delivery {
            Turn::Undelivered(status)
        } else if let Some((status, syndrome)) = wants.status.get(&command) {
            Turn::End(CmdStatus::from_code(*status).unwrap(), *syndrome)
        } else if command == Opcode::SET_L2_TABLE_ENTRY || command == Opcode::DELETE_L2_TABLE_ENTRY {
            // It is no switch's manager, and does as if it were.
            self.ran(given.input, &mut [0; CmdOut::SIZE]);
            Turn::End(CmdStatus::Ok, 0)
        } else if self.is_refused(command, given.input) {
            Turn::End(CmdStatus::BadParam, 0)
        } else {
            Turn::Run
        }
    }

    fn asks_for_pages(&self, command: Opcode) -> bool {
        let asks = self.wants.asks.as_ref().is_none_or(|these| these.contains(&command));
        let last = matches!(command, Opcode::MANAGE_PAGES | Opcode::DESTROY_EQ);
        let pages = EventType::PageRequest.mask()[0];
        let heard = self.eqs.values().any(|eq| eq.events() & pages != 0);
        heard && asks && !last
    }

    /// What a function refuses that is not as the model is.
    fn is_refused(&self, command: Opcode, input: &[u8]) -> bool {
        match command {
            Opcode::ACCESS_REG => self.wants.link.is_none(),
            Opcode::MODIFY_VPORT_STATE => self.wants.link.is_none(),
            Opcode::CREATE_EQ => events(input) & self.wants.unknown_events != 0,
            Opcode::MODIFY_NIC_VPORT_CONTEXT => {
                let (context, lists) = nic_context(input);
                let kind = context.get(NicVportContext::ALLOWED_LIST_TYPE);
                lists && self.wants.refuses_list == Some(kind)
            }
            _ => false,
        }
    }

    /// Registers, as a test wants them.
    fn read(&mut self, offset: usize, bytes: &mut [u8]) {
        let health =
            InitSegment::HEALTH_BUFFER.offset()..InitSegment::HEALTH_BUFFER.offset() + HealthBuffer::SIZE;
        if health.contains(&offset) && offset == health.start + HealthBuffer::SYND.offset() {
            self.health_reads += 1;
            let found = HealthBuffer::SYND.of_row(u32::from_be_bytes(bytes.try_into().unwrap()));
            if found != 0 {
                self.faults.push(format!("the model has syndrome {found:#x}"));
            }
        }
        let wants = &mut self.wants;
        if wants.gone {
            bytes.fill(0xff);
            return;
        }
        // What is not as the model has it, row by row.
        let mut segment = InitSegment::new();
        let at = offset & !3;
        let differs = if at == InitSegment::CMD_INTERFACE_REV.offset() {
            segment.set(InitSegment::CMD_INTERFACE_REV, wants.interface);
            true
        } else if at == InitSegment::LOG_CMDQ_SIZE.offset() {
            segment
                .set(InitSegment::LOG_CMDQ_SIZE, wants.log_size)
                .set(InitSegment::LOG_CMDQ_STRIDE, 6)
                .set(InitSegment::NIC_INTERFACE, wants.nic.code());
            true
        } else if at == InitSegment::INITIALIZING.offset() {
            segment.set(InitSegment::INITIALIZING, wants.busy_reads > 0);
            wants.busy_reads = wants.busy_reads.saturating_sub(1);
            true
        } else if health.contains(&at) {
            segment.set(InitSegment::HEALTH_BUFFER, wants.health);
            true
        } else if let (Some(looks), 0x1000 | 0x1004) = (&mut wants.restless, at) {
            segment.set(InitSegment::INTERNAL_TIMER_H, *looks).set(InitSegment::INTERNAL_TIMER_L, *looks);
            *looks += 1;
            true
        } else {
            at == InitSegment::HEALTH_COUNTER.offset() && wants.stopped
        };
        if differs {
            bytes.copy_from_slice(&segment.as_bytes()[offset..][..bytes.len()]);
        }
    }

    /// Capabilities, as a test wants them.
    fn show_caps(&self, input: &[u8], output: &mut [u8]) {
        let asked = QueryHcaCapIn::from_bytes(&input[..QueryHcaCapIn::SIZE]).unwrap();
        let kind = HcaCapType::from_op_mod(asked.get(QueryHcaCapIn::OP_MOD));
        let place = &mut output[QueryHcaCapOut::CAPABILITY.offset()..];
        let (queues, more) = (self.wants.ethernet_queues, self.wants.more);
        match kind {
            Some((HcaCapType::GeneralDevice, _)) => commands::AllCaps::change(
                place,
                |all| &mut all.general,
                |all| {
                    all.general.set(HcaCap::LOG_MAX_PD, 2).set(HcaCap::UPLINK_FOLLOW, true);
                    if !queues {
                        all.general.set(HcaCap::ETH_NET_OFFLOADS, false).set(HcaCap::NIC_FLOW_TABLE, false);
                    }
                    more(all);
                },
            ),
            Some((HcaCapType::Roce, current)) => commands::AllCaps::change(
                place,
                |all| &mut all.roce,
                |all| {
                    all.roce.set(RoceCap::ROCE_ADDRESS_TABLE_SIZE, 3);
                    more(all);
                    if !current && self.wants.source_ports {
                        all.roce.set(RoceCap::SW_R_ROCE_SRC_UDP_PORT, true);
                    }
                },
            ),
            Some((HcaCapType::EthernetOffload, _)) => {
                commands::AllCaps::change(place, |all| &mut all.ethernet, more);
            }
            _ => {}
        }
    }
}

/// Changes the layout that stands at the beginning of these bytes.
fn change<L: Layout>(bytes: &mut [u8], with: impl FnOnce(&mut L)) {
    let mut layout = L::zeroed();
    layout.as_bytes_mut().copy_from_slice(&bytes[..L::SIZE]);
    with(&mut layout);
    bytes[..L::SIZE].copy_from_slice(layout.as_bytes());
}

/// The events that a queue is to hear.
fn events(input: &[u8]) -> u64 {
    commands::head::<CreateEqIn>(input).get(CreateEqIn::EVENT_BITMASK)[0]
}

/// The context that a port is to have, and whether a list of MACs is meant.
fn nic_context(input: &[u8]) -> (NicVportContext, bool) {
    use hca_prm::command::vport::NicVportFieldSelect;
    let command = ModifyNicVportContextIn::from_bytes(&input[..ModifyNicVportContextIn::SIZE]).unwrap();
    let select = command.get(ModifyNicVportContextIn::FIELD_SELECT);
    let context = command.get(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
    (context, select.get(NicVportFieldSelect::ADDRESSES_LIST))
}
