//! A driver with an Ethernet port, its queues, and flow tables that steer every received frame to one of the queues.

use hca_prm::command::ethernet::{
    CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut, CreateRqIn, CreateRqOut,
    CreateSqIn, CreateSqOut, CreateTirIn, CreateTirOut, CreateTisIn, CreateTisOut, DestFormat,
    DestinationType, FlowContext, FlowTableContext, FteMatchParam, FteMatchSetLyr24, ModifyRqIn, ModifySqIn,
    QueryRqIn, QueryRqOut, QuerySqIn, QuerySqOut, SetFlowTableRootIn, SetFteIn, Tirc, Tisc,
};
use hca_prm::command::resource::{AllocTransportDomainIn, AllocTransportDomainOut};
use hca_prm::command::vport::{NicVportContext, QueryNicVportContextIn, QueryNicVportContextOut};
use hca_prm::{
    AccessMode, CmdStatus, Command, CompletionMode, Cqe64, CtrlSeg, DataSeg, EthSeg, Mkc, Rqc, Sqc, Wq,
    WqType, WqeOpcode,
};

use super::{Client, ClientCq, PAGE, Queue, Server, pages};
use crate::eth::frame::Mac;
use crate::eth::{ERROR, READY};
use crate::function::{Function, FunctionOptions, PortKind};

/// Sizes of queues, as powers of two, and the stride of receive queues.
pub(crate) const LOG_SIZE: u32 = 4;
pub(crate) const LOG_STRIDE: u32 = 6;
/// The user's numbers of the queues.
pub(crate) const SENDS: u32 = 0xabc;
pub(crate) const RECEIVES: u32 = 0xdef;

/// A driver of an Ethernet port.
pub(crate) struct Port {
    pub(crate) d: Client,
    pub(crate) mac: Mac,
    pub(crate) domain: u32,
    /// The key of the bus's own addresses.
    pub(crate) bus: u32,
    pub(crate) send_cq: ClientCq,
    pub(crate) recv_cq: ClientCq,
    pub(crate) tis: u32,
    pub(crate) sq: Queue,
    pub(crate) rq: Queue,
    pub(crate) tir: u32,
    /// The first table.
    pub(crate) table: u32,
}

/// A request of a send queue, but for its control segment.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) opcode: u32,
    pub(crate) mode: u32,
    pub(crate) head: EthSeg,
    pub(crate) header: Vec<u8>,
    pub(crate) places: Vec<DataSeg>,
}

impl Request {
    /// A frame that stands in the request.
    pub(crate) fn inline(frame: &[u8]) -> Self {
        let (opcode, mode) = (WqeOpcode::Send.code(), CompletionMode::Always.code());
        Self { opcode, mode, head: EthSeg::new(), header: frame.to_vec(), places: Vec::new() }
    }

    pub(crate) fn places(mut self, places: &[DataSeg]) -> Self {
        self.places = places.to_vec();
        self
    }

    pub(crate) fn opcode(mut self, opcode: WqeOpcode) -> Self {
        self.opcode = opcode.code();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let head = self.head.with(EthSeg::INLINE_HDR_SZ, self.header.len() as u32);
        let mut bytes = head.as_bytes()[..14].to_vec();
        bytes.extend(&self.header);
        bytes.resize(bytes.len().next_multiple_of(16).max(16), 0);
        bytes.extend(self.places.iter().flat_map(|place| *place.as_bytes()));
        bytes
    }
}

/// A frame between two addresses with a type of nobody's, as long as it is said.
pub(crate) fn frame(to: Mac, from: Mac, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.extend((0..).map(|i| i as u8).take(len.saturating_sub(14)));
    frame
}

/// What a group or a flow looks at: the outer headers.
pub(crate) fn outer(headers: FteMatchSetLyr24) -> FteMatchParam {
    FteMatchParam::new().with(FteMatchParam::OUTER_HEADERS, headers)
}

impl Port {
    /// One that receives all that comes, of which `requests` have a place of 2 KiB each.
    pub(crate) fn new(server: &Server, number: u16) -> Self {
        Self::with(server, FunctionOptions { number, ..FunctionOptions::default() })
    }
    pub(crate) fn with(server: &Server, options: FunctionOptions) -> Self {
        let mut this = Self::bare_with(server, options);
        let tir = this.tir;
        let group = this.group(this.table, 0..=0, FteMatchSetLyr24::new()).unwrap();
        this.flow(this.table, group, 0, FteMatchSetLyr24::new(), &[(DestinationType::Tir, tir)]).unwrap();
        this
    }

    /// One whose first table is empty.
    pub(crate) fn bare(server: &Server, number: u16) -> Self {
        Self::bare_with(server, FunctionOptions { number, ..FunctionOptions::default() })
    }
    fn bare_with(server: &Server, options: FunctionOptions) -> Self {
        let options = FunctionOptions { port: PortKind::Roce, ..options };
        let mut d = Client::new(server, options, 16 << 20);
        let (send_cq, recv_cq) = (d.cq(6), d.cq(6));
        let domain = d.command(&AllocTransportDomainIn::new()).unwrap();
        let domain = domain.get(AllocTransportDomainOut::TRANSPORT_DOMAIN);
        let nic = d.command(&QueryNicVportContextIn::new()).unwrap();
        let nic = nic.get(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
        let mac = nic.get(NicVportContext::PERMANENT_ADDRESS).mac();
        let nothing = Queue::default();
        let mut this = Self {
            d,
            mac,
            domain,
            bus: 0,
            send_cq,
            recv_cq,
            tis: 0,
            sq: nothing,
            rq: nothing,
            tir: 0,
            table: 0,
        };
        this.bus = this.key(Mkc::new().with(Mkc::LENGTH64, true), AccessMode::Pa, &[]);
        let tisc = Tisc::new().with(Tisc::TRANSPORT_DOMAIN, domain);
        let tis = this.d.command(&CreateTisIn::new().with(CreateTisIn::CTX, tisc)).unwrap();
        this.tis = tis.get(CreateTisOut::TISN);
        this.sq = this.sq(LOG_SIZE);
        this.rq = this.rq(|rqc| rqc);
        this.tir = this.direct(this.rq.number).unwrap();
        this.table = this.table(FlowTableContext::new().with(FlowTableContext::LOG_SIZE, 4)).unwrap();
        this.root(this.table).unwrap();
        this
    }

    /// A key with all rights, but for what the context says.
    pub(crate) fn key(&mut self, context: Mkc, mode: AccessMode, pages: &[u64]) -> u32 {
        let mut context = context
            .with(Mkc::LR, true)
            .with(Mkc::LW, true)
            .with(Mkc::QPN, Mkc::ANY_QPN)
            .with(Mkc::MKEY_7_0, 0x42)
            .with(Mkc::PD, self.d.pd)
            .with(Mkc::LOG_PAGE_SIZE, 12);
        context.set_access_mode(mode);
        self.d.key(context, pages).unwrap()
    }

    /// A send queue that is ready.
    pub(crate) fn sq(&mut self, log_size: u32) -> Queue {
        let (at, record) = (self.d.alloc(64 << log_size, PAGE), self.d.alloc(8, PAGE));
        let wq = Wq::new()
            .with(Wq::PD, self.d.pd)
            .with(Wq::UAR_PAGE, self.d.uar)
            .with(Wq::DBR_ADDR, record)
            .with(Wq::LOG_WQ_STRIDE, 6)
            .with(Wq::LOG_WQ_SZ, log_size);
        let context = Sqc::new()
            .with(Sqc::WQ, wq)
            .with(Sqc::CQN, self.send_cq.cqn)
            .with(Sqc::USER_INDEX, SENDS)
            .with(Sqc::FLUSH_IN_ERROR_EN, true)
            .with(Sqc::TIS_LST_SZ, 1)
            .with(Sqc::TIS_NUM_0, self.tis);
        let command = CreateSqIn::new().with(CreateSqIn::CTX, context);
        let (out, _) = self.d.command_with(&command, &pages(at, 64 << log_size), 0).unwrap();
        let number = out.get(CreateSqOut::SQN);
        self.change_sq(number, 0, READY).unwrap();
        Queue { number, at, record, log_size, count: 0 }
    }

    pub(crate) fn change_sq(&mut self, sqn: u32, from: u32, to: u32) -> Result<(), CmdStatus> {
        let command = ModifySqIn::new()
            .with(ModifySqIn::SQN, sqn)
            .with(ModifySqIn::SQ_STATE, from)
            .with(ModifySqIn::CTX, Sqc::new().with(Sqc::STATE, to));
        self.d.command(&command).map(|_| ())
    }

    pub(crate) fn sq_state(&mut self) -> u32 {
        let query = QuerySqIn::new().with(QuerySqIn::SQN, self.sq.number);
        self.d.command(&query).unwrap().get(QuerySqOut::SQ_CONTEXT).get(Sqc::STATE)
    }

    /// A receive queue that is ready.
    pub(crate) fn rq(&mut self, change: impl Fn(Rqc) -> Rqc) -> Queue {
        let (at, record) = (self.d.alloc(1 << (LOG_SIZE + LOG_STRIDE), PAGE), self.d.alloc(8, PAGE));
        let wq = Wq::new()
            .with(Wq::WQ_TYPE, WqType::Cyclic.code())
            .with(Wq::PD, self.d.pd)
            .with(Wq::DBR_ADDR, record)
            .with(Wq::LOG_WQ_STRIDE, LOG_STRIDE)
            .with(Wq::LOG_WQ_SZ, LOG_SIZE);
        let context = Rqc::new()
            .with(Rqc::WQ, wq)
            .with(Rqc::CQN, self.recv_cq.cqn)
            .with(Rqc::USER_INDEX, RECEIVES)
            .with(Rqc::COUNTER_SET_ID, 1)
            .with(Rqc::FLUSH_IN_ERROR_EN, true);
        let command = CreateRqIn::new().with(CreateRqIn::CTX, change(context));
        let (out, _) = self.d.command_with(&command, &pages(at, 1 << (LOG_SIZE + LOG_STRIDE)), 0).unwrap();
        let number = out.get(CreateRqOut::RQN);
        self.change_rq(number, 0, READY).unwrap();
        Queue { number, at, record, log_size: LOG_SIZE, count: 0 }
    }

    pub(crate) fn change_rq(&mut self, rqn: u32, from: u32, to: u32) -> Result<(), CmdStatus> {
        let command = ModifyRqIn::new()
            .with(ModifyRqIn::RQN, rqn)
            .with(ModifyRqIn::RQ_STATE, from)
            .with(ModifyRqIn::CTX, Rqc::new().with(Rqc::STATE, to));
        self.d.command(&command).map(|_| ())
    }

    pub(crate) fn query_rq(&mut self) -> Rqc {
        let query = QueryRqIn::new().with(QueryRqIn::RQN, self.rq.number);
        self.d.command(&query).unwrap().get(QueryRqOut::RQ_CONTEXT)
    }

    pub(crate) fn direct(&mut self, rqn: u32) -> Result<u32, CmdStatus> {
        self.indirect(Tirc::new().with(Tirc::INLINE_RQN, rqn))
    }

    pub(crate) fn indirect(&mut self, context: Tirc) -> Result<u32, CmdStatus> {
        let context = context.with(Tirc::TRANSPORT_DOMAIN, self.domain);
        let out = self.d.command(&CreateTirIn::new().with(CreateTirIn::CTX, context))?;
        Ok(out.get(CreateTirOut::TIRN))
    }

    pub(crate) fn table(&mut self, context: FlowTableContext) -> Result<u32, CmdStatus> {
        let command = CreateFlowTableIn::new().with(CreateFlowTableIn::FLOW_TABLE_CONTEXT, context);
        self.d.command(&command).map(|out| out.get(CreateFlowTableOut::TABLE_ID))
    }

    pub(crate) fn root(&mut self, table: u32) -> Result<(), CmdStatus> {
        let command = SetFlowTableRootIn::new().with(SetFlowTableRootIn::TABLE_ID, table);
        self.d.command(&command).map(|_| ())
    }

    pub(crate) fn group(
        &mut self,
        table: u32,
        range: core::ops::RangeInclusive<u32>,
        mask: FteMatchSetLyr24,
    ) -> Result<u32, CmdStatus> {
        let command = CreateFlowGroupIn::new()
            .with(CreateFlowGroupIn::TABLE_ID, table)
            .with(CreateFlowGroupIn::START_FLOW_INDEX, *range.start())
            .with(CreateFlowGroupIn::END_FLOW_INDEX, *range.end())
            .with(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, 1)
            .with(CreateFlowGroupIn::MATCH_CRITERIA, outer(mask));
        self.d.command(&command).map(|out| out.get(CreateFlowGroupOut::GROUP_ID))
    }

    /// A flow that leads to these places, or drops what it is for if there are none.
    pub(crate) fn flow(
        &mut self,
        table: u32,
        group: u32,
        index: u32,
        value: FteMatchSetLyr24,
        to: &[(DestinationType, u32)],
    ) -> Result<(), CmdStatus> {
        let context = FlowContext::new()
            .with(FlowContext::GROUP_ID, group)
            .with(FlowContext::FLOW_TAG, 0x100 + index)
            .with(FlowContext::ACTION, if to.is_empty() { 2 } else { 4 })
            .with(FlowContext::DESTINATION_LIST_SIZE, to.len() as u32)
            .with(FlowContext::MATCH_VALUE, outer(value));
        let command = SetFteIn::new()
            .with(SetFteIn::TABLE_ID, table)
            .with(SetFteIn::FLOW_INDEX, index)
            .with(SetFteIn::FLOW_CONTEXT, context);
        let list: Vec<u64> = to
            .iter()
            .map(|(kind, number)| {
                let place = DestFormat::new()
                    .with(DestFormat::DESTINATION_TYPE, kind.code())
                    .with(DestFormat::DESTINATION_ID, *number);
                u64::from_be_bytes(*place.as_bytes())
            })
            .collect();
        self.d.command_with(&command, &list, 0).map(|_| ())
    }

    /// Puts a request into the send queue, and rings. Returns its counter.
    pub(crate) fn post(&mut self, request: &Request) -> u16 {
        let rest = request.bytes();
        let ctrl = CtrlSeg::new()
            .with(CtrlSeg::OPCODE, request.opcode)
            .with(CtrlSeg::CE, request.mode)
            .with(CtrlSeg::DS, ((16 + rest.len()) / 16) as u32);
        let bytes = [&ctrl.as_bytes()[..], &rest].concat();
        let counter = self.sq.count as u16;
        for block in bytes.chunks(64) {
            let slot = u64::from(self.sq.count & ((1 << self.sq.log_size) - 1));
            self.d.write(self.sq.at + 64 * slot, block);
            self.sq.count += 1;
        }
        self.ring();
        counter
    }

    pub(crate) fn ring(&mut self) {
        self.d.write(self.sq.record + 4, &(self.sq.count & 0xffff).to_be_bytes());
        let doorbell = CtrlSeg::new().with(CtrlSeg::QP_OR_SQ, self.sq.number);
        let at = u64::from(self.d.uar) * PAGE + 0x800;
        self.d.function.bar_write(at, &doorbell.as_bytes()[..8]);
    }

    /// Posts places for one frame.
    pub(crate) fn recv(&mut self, places: &[DataSeg]) {
        let slot = u64::from(self.rq.count & ((1 << self.rq.log_size) - 1));
        let mut bytes: Vec<u8> = places.iter().flat_map(|place| *place.as_bytes()).collect();
        if bytes.len() < 1 << LOG_STRIDE {
            bytes.extend(DataSeg::TERMINATOR.as_bytes());
        }
        self.d.write(self.rq.at + (slot << LOG_STRIDE), &bytes);
        self.rq.count += 1;
        self.d.write(self.rq.record, &(self.rq.count & 0xffff).to_be_bytes());
    }

    /// A place of this many bytes, of the bus's own addresses.
    pub(crate) fn place(&mut self, len: u32) -> DataSeg {
        let at = self.d.alloc(len.into(), PAGE);
        DataSeg::pointer(len, self.bus, at)
    }

    /// Posts a place of 2 KiB. Returns where it is.
    pub(crate) fn recv_2k(&mut self) -> u64 {
        let place = self.place(2048);
        self.recv(&[place]);
        place.get(DataSeg::ADDR)
    }

    pub(crate) fn sent(&mut self) -> Option<Cqe64> {
        self.d.poll(&mut self.send_cq)
    }
    pub(crate) fn received(&mut self) -> Option<Cqe64> {
        self.d.poll(&mut self.recv_cq)
    }

    pub(crate) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        self.d.read(at, len)
    }

    /// Whether a command is refused so.
    pub(crate) fn refuses<C: Command>(&mut self, command: &C) -> Option<CmdStatus> {
        self.d.command(command).err()
    }
}

/// A turn of the server.
pub(crate) fn look(ports: &mut [&mut Port]) {
    for step in [Function::look_at_requests, Function::look_at_places, Function::carry_out] {
        for port in ports.iter_mut() {
            step(&mut port.d.function);
        }
    }
}

/// Whether a queue is in error.
pub(crate) fn is_error(state: u32) -> bool {
    state == ERROR
}
