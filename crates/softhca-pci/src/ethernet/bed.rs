//! For tests: a driver with an Ethernet port, its queues, and tables that lead all that comes to one of them.

use hca_prm::command::cq::{CreateCqIn, CreateCqOut};
use hca_prm::command::ethernet::{
    CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut, CreateRqIn, CreateRqOut,
    CreateSqIn, CreateSqOut, CreateTirIn, CreateTirOut, CreateTisIn, CreateTisOut, DestFormat,
    DestinationType, FlowContext, FlowTableContext, FteMatchParam, FteMatchSetLyr24, ModifyRqIn, ModifySqIn,
    QueryRqIn, QueryRqOut, QuerySqIn, QuerySqOut, SetFlowTableRootIn, SetFteIn, Tirc, Tisc,
};
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut};
use hca_prm::command::resource::{AllocPdIn, AllocPdOut, AllocTransportDomainIn, AllocTransportDomainOut};
use hca_prm::command::vport::{NicVportContext, QueryNicVportContextIn, QueryNicVportContextOut};
use hca_prm::{
    AccessMode, CmdStatus, Command, CompletionMode, Cqc, Cqe64, CtrlSeg, DataSeg, EthSeg, Mkc, Rqc, Sqc, Wq,
    WqType, WqeOpcode,
};

use super::frame::Mac;
use super::{ERROR, READY};
use crate::command::bed::{Driver, TestEq};
use crate::function::{Function, PortKind};
use crate::path::bed::Server;
use crate::uar::PAGE;

/// Sizes of queues, as powers of two, and the stride of receive queues.
pub(super) const LOG_SIZE: u32 = 4;
pub(super) const LOG_STRIDE: u32 = 6;
/// The user's numbers of the queues.
pub(super) const SENDS: u32 = 0xabc;
pub(super) const RECEIVES: u32 = 0xdef;

/// A queue as its driver knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    pub(super) number: u32,
    pub(super) at: u64,
    pub(super) record: u64,
    pub(super) log_size: u32,
    pub(super) count: u32,
}

/// A driver of an Ethernet port.
pub(super) struct Port {
    pub(super) d: Driver,
    pub(super) mac: Mac,
    pub(super) uar: u32,
    pub(super) pd: u32,
    pub(super) domain: u32,
    /// The key of the bus's own addresses.
    pub(super) bus: u32,
    pub(super) eq: TestEq,
    pub(super) send_cq: Queue,
    pub(super) recv_cq: Queue,
    pub(super) tis: u32,
    pub(super) sq: Queue,
    pub(super) rq: Queue,
    pub(super) tir: u32,
    /// The first table.
    pub(super) table: u32,
}

/// A request of a send queue, but for its control segment.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) opcode: u32,
    pub(super) mode: u32,
    pub(super) head: EthSeg,
    pub(super) header: Vec<u8>,
    pub(super) places: Vec<DataSeg>,
}

impl Request {
    /// A frame that stands in the request.
    pub(super) fn inline(frame: &[u8]) -> Self {
        let (opcode, mode) = (WqeOpcode::Send.code(), CompletionMode::Always.code());
        Self { opcode, mode, head: EthSeg::new(), header: frame.to_vec(), places: Vec::new() }
    }

    pub(super) fn places(mut self, places: &[DataSeg]) -> Self {
        self.places = places.to_vec();
        self
    }

    pub(super) fn opcode(mut self, opcode: WqeOpcode) -> Self {
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
pub(super) fn frame(to: Mac, from: Mac, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.extend((0..).map(|i| i as u8).take(len.saturating_sub(14)));
    frame
}

/// What a group or a flow looks at: the outer headers.
pub(super) fn outer(headers: FteMatchSetLyr24) -> FteMatchParam {
    FteMatchParam::new().with(FteMatchParam::OUTER_HEADERS, headers)
}

impl Port {
    /// One that receives all that comes, of which `requests` have a place of 2 KiB each.
    pub(super) fn new(server: &Server, number: u16) -> Self {
        let mut this = Self::bare(server, number);
        let tir = this.tir;
        let group = this.group(this.table, 0..=0, FteMatchSetLyr24::new()).unwrap();
        this.flow(this.table, group, 0, FteMatchSetLyr24::new(), &[(DestinationType::Tir, tir)]).unwrap();
        this
    }

    /// One whose first table is empty.
    pub(super) fn bare(server: &Server, number: u16) -> Self {
        let mut d = Driver::new(server, number, PortKind::Roce);
        d.boot();
        d.uar();
        let (uar, eq) = (d.uar(), d.eq(6, 0, &[]));
        let pd = d.command(&AllocPdIn::new()).unwrap().get(AllocPdOut::PD);
        let domain = d.command(&AllocTransportDomainIn::new()).unwrap();
        let domain = domain.get(AllocTransportDomainOut::TRANSPORT_DOMAIN);
        let nic = d.command(&QueryNicVportContextIn::new()).unwrap();
        let nic = nic.get(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
        let mac = nic.get(NicVportContext::PERMANENT_ADDRESS).mac();
        let nothing = Queue::default();
        let mut this = Self {
            d,
            mac,
            uar,
            pd,
            domain,
            bus: 0,
            eq,
            send_cq: nothing,
            recv_cq: nothing,
            tis: 0,
            sq: nothing,
            rq: nothing,
            tir: 0,
            table: 0,
        };
        this.bus = this.key(Mkc::new().with(Mkc::LENGTH64, true), AccessMode::Pa, &[]);
        (this.send_cq, this.recv_cq) = (this.cq(6), this.cq(6));
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
    pub(super) fn key(&mut self, context: Mkc, mode: AccessMode, pages: &[u64]) -> u32 {
        let mut context = context
            .with(Mkc::LR, true)
            .with(Mkc::LW, true)
            .with(Mkc::QPN, Mkc::ANY_QPN)
            .with(Mkc::MKEY_7_0, 0x42)
            .with(Mkc::PD, self.pd)
            .with(Mkc::LOG_PAGE_SIZE, 12);
        context.set_access_mode(mode);
        self.exact_key(context, pages)
    }

    pub(super) fn exact_key(&mut self, context: Mkc, pages: &[u64]) -> u32 {
        let command = CreateMkeyIn::new()
            .with(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY, context)
            .with(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, pages.len().div_ceil(2) as u32);
        let mut list = pages.to_vec();
        list.resize(pages.len().next_multiple_of(2), 0);
        let (out, _) = self.d.command_with(&command, &list, 0).unwrap();
        out.get(CreateMkeyOut::MKEY_INDEX) << 8 | context.get(Mkc::MKEY_7_0)
    }

    pub(super) fn cq(&mut self, log_size: u32) -> Queue {
        let (at, record) = (self.d.alloc(64 << log_size), self.d.alloc(8));
        let mut unwritten = [0; 64];
        unwritten[63] = Cqe64::FIRST_OP_OWN;
        self.d.write(at, &unwritten.repeat(1 << log_size));
        let context = Cqc::new()
            .with(Cqc::LOG_CQ_SIZE, log_size)
            .with(Cqc::UAR_PAGE, self.uar)
            .with(Cqc::C_EQN, self.eq.eqn)
            .with(Cqc::DBR_ADDR, record);
        let command = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
        let (out, _) = self.d.command_with(&command, &pages(at, 64 << log_size), 0).unwrap();
        Queue { number: out.get(CreateCqOut::CQN), at, record, log_size, count: 0 }
    }

    /// A send queue that is ready.
    pub(super) fn sq(&mut self, log_size: u32) -> Queue {
        let (at, record) = (self.d.alloc(64 << log_size), self.d.alloc(8));
        let wq = Wq::new()
            .with(Wq::PD, self.pd)
            .with(Wq::UAR_PAGE, self.uar)
            .with(Wq::DBR_ADDR, record)
            .with(Wq::LOG_WQ_STRIDE, 6)
            .with(Wq::LOG_WQ_SZ, log_size);
        let context = Sqc::new()
            .with(Sqc::WQ, wq)
            .with(Sqc::CQN, self.send_cq.number)
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

    pub(super) fn change_sq(&mut self, sqn: u32, from: u32, to: u32) -> Result<(), CmdStatus> {
        let command = ModifySqIn::new()
            .with(ModifySqIn::SQN, sqn)
            .with(ModifySqIn::SQ_STATE, from)
            .with(ModifySqIn::CTX, Sqc::new().with(Sqc::STATE, to));
        self.d.command(&command).map(|_| ())
    }

    pub(super) fn sq_state(&mut self) -> u32 {
        let query = QuerySqIn::new().with(QuerySqIn::SQN, self.sq.number);
        self.d.command(&query).unwrap().get(QuerySqOut::SQ_CONTEXT).get(Sqc::STATE)
    }

    /// A receive queue that is ready.
    pub(super) fn rq(&mut self, change: impl Fn(Rqc) -> Rqc) -> Queue {
        let (at, record) = (self.d.alloc(1 << (LOG_SIZE + LOG_STRIDE)), self.d.alloc(8));
        let wq = Wq::new()
            .with(Wq::WQ_TYPE, WqType::Cyclic.code())
            .with(Wq::PD, self.pd)
            .with(Wq::DBR_ADDR, record)
            .with(Wq::LOG_WQ_STRIDE, LOG_STRIDE)
            .with(Wq::LOG_WQ_SZ, LOG_SIZE);
        let context = Rqc::new()
            .with(Rqc::WQ, wq)
            .with(Rqc::CQN, self.recv_cq.number)
            .with(Rqc::USER_INDEX, RECEIVES)
            .with(Rqc::COUNTER_SET_ID, 1)
            .with(Rqc::FLUSH_IN_ERROR_EN, true);
        let command = CreateRqIn::new().with(CreateRqIn::CTX, change(context));
        let (out, _) = self.d.command_with(&command, &pages(at, 1 << (LOG_SIZE + LOG_STRIDE)), 0).unwrap();
        let number = out.get(CreateRqOut::RQN);
        self.change_rq(number, 0, READY).unwrap();
        Queue { number, at, record, log_size: LOG_SIZE, count: 0 }
    }

    pub(super) fn change_rq(&mut self, rqn: u32, from: u32, to: u32) -> Result<(), CmdStatus> {
        let command = ModifyRqIn::new()
            .with(ModifyRqIn::RQN, rqn)
            .with(ModifyRqIn::RQ_STATE, from)
            .with(ModifyRqIn::CTX, Rqc::new().with(Rqc::STATE, to));
        self.d.command(&command).map(|_| ())
    }

    pub(super) fn query_rq(&mut self) -> Rqc {
        let query = QueryRqIn::new().with(QueryRqIn::RQN, self.rq.number);
        self.d.command(&query).unwrap().get(QueryRqOut::RQ_CONTEXT)
    }

    pub(super) fn direct(&mut self, rqn: u32) -> Result<u32, CmdStatus> {
        self.indirect(Tirc::new().with(Tirc::INLINE_RQN, rqn))
    }

    pub(super) fn indirect(&mut self, context: Tirc) -> Result<u32, CmdStatus> {
        let context = context.with(Tirc::TRANSPORT_DOMAIN, self.domain);
        let out = self.d.command(&CreateTirIn::new().with(CreateTirIn::CTX, context))?;
        Ok(out.get(CreateTirOut::TIRN))
    }

    pub(super) fn table(&mut self, context: FlowTableContext) -> Result<u32, CmdStatus> {
        let command = CreateFlowTableIn::new().with(CreateFlowTableIn::FLOW_TABLE_CONTEXT, context);
        self.d.command(&command).map(|out| out.get(CreateFlowTableOut::TABLE_ID))
    }

    pub(super) fn root(&mut self, table: u32) -> Result<(), CmdStatus> {
        let command = SetFlowTableRootIn::new().with(SetFlowTableRootIn::TABLE_ID, table);
        self.d.command(&command).map(|_| ())
    }

    pub(super) fn group(
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
    pub(super) fn flow(
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
    pub(super) fn post(&mut self, request: &Request) -> u16 {
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

    pub(super) fn ring(&mut self) {
        self.d.write(self.sq.record + 4, &(self.sq.count & 0xffff).to_be_bytes());
        self.d.function.bar_write(u64::from(self.uar) * PAGE + 0x800, &[1; 8]);
    }

    /// Posts places for one frame.
    pub(super) fn recv(&mut self, places: &[DataSeg]) {
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
    pub(super) fn place(&mut self, len: u32) -> DataSeg {
        let at = self.d.alloc(len.into());
        DataSeg::pointer(len, self.bus, at)
    }

    /// Posts a place of 2 KiB. Returns where it is.
    pub(super) fn recv_2k(&mut self) -> u64 {
        let place = self.place(2048);
        self.recv(&[place]);
        place.get(DataSeg::ADDR)
    }

    fn poll(d: &Driver, cq: &mut Queue) -> Option<Cqe64> {
        let slot = u64::from(cq.count & ((1 << cq.log_size) - 1));
        let bytes: [u8; 64] = d.read(cq.at + slot * 64, 64).try_into().unwrap();
        Cqe64::is_ready(bytes[63], cq.count, cq.log_size).then(|| {
            cq.count += 1;
            d.write(cq.record, &cq.count.to_be_bytes());
            Cqe64::from_array(bytes)
        })
    }
    pub(super) fn sent(&mut self) -> Option<Cqe64> {
        Self::poll(&self.d, &mut self.send_cq)
    }
    pub(super) fn received(&mut self) -> Option<Cqe64> {
        Self::poll(&self.d, &mut self.recv_cq)
    }

    pub(super) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        self.d.read(at, len)
    }

    /// Whether a command is refused so.
    pub(super) fn refuses<C: Command>(&mut self, command: &C) -> Option<CmdStatus> {
        self.d.command(command).err()
    }
}

/// The pages of a range.
pub(super) fn pages(at: u64, len: u64) -> Vec<u64> {
    (0..len.div_ceil(PAGE)).map(|i| at + i * PAGE).collect()
}

/// A turn of the server.
pub(super) fn look(ports: &mut [&mut Port]) {
    for step in [Function::look_at_requests, Function::look_at_places, Function::carry_out] {
        for port in ports.iter_mut() {
            step(&mut port.d.function);
        }
    }
}

/// Whether a queue is in error.
pub(super) fn is_error(state: u32) -> bool {
    state == ERROR
}
