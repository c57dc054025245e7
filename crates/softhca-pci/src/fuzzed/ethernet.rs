//! The Ethernet side of the client that a fuzzer plays.

use hca_prm::command::ethernet::{
    CreateFlowGroupIn, CreateFlowTableIn, CreateRqIn, CreateRqtIn, CreateSqIn, CreateTirIn, CreateTisIn,
    DestFormat, DestinationType, FlowContext, FlowTableContext, FteMatchParam, FteMatchSetLyr24, ModifyRqIn,
    ModifySqIn, Rqtc, SetFlowTableRootIn, SetFteIn, Tirc, Tisc,
};
use hca_prm::{CtrlSeg, DataSeg, EthSeg, Layout, Opcode, Rqc, Sqc, Wq, WqType, WqeOpcode};

use super::Input;
use super::driver::{Driver, chosen};
use crate::bed::Queue;

/// What it has made.
#[derive(Debug, Default)]
pub(super) struct Ethernet {
    domain: u32,
    tis: u32,
    pub(super) sqs: Vec<Queue>,
    pub(super) rqs: Vec<Queue>,
    tirs: Vec<u32>,
    rqts: Vec<u32>,
    tables: Vec<u32>,
    groups: Vec<u32>,
}

impl Driver {
    pub(super) fn make_ethernet(&mut self, input: &mut Input<'_>, what: u8) {
        match what {
            0 | 1 => self.make_sq(input),
            2 => self.make_rq(input),
            3 => self.make_tir(input),
            4 => self.make_table(input),
            5 => self.make_group(input),
            6 => self.make_flow(input),
            _ => {
                // All that comes goes to one queue.
                self.make_rq(input);
                for make in [Self::make_tir, Self::make_table, Self::make_group, Self::make_flow] {
                    make(self, &mut Input(&[]));
                }
            }
        }
    }

    /// Makes something whose number stands in the output where all have it.
    fn numbered_layout(
        &mut self,
        input: &mut Input<'_>,
        opcode: Opcode,
        command: impl Layout,
        list: impl Iterator<Item = u64>,
    ) -> Option<u32> {
        let out = self.layout(input, opcode, command, list, 16)?;
        Some(u32::from_be_bytes([0, out[9], out[10], out[11]]))
    }

    /// What all queues and interfaces need.
    fn need_domain(&mut self) {
        if self.eth.domain == 0 {
            let nothing = &mut Input(&[]);
            self.eth.domain = self.numbered(nothing, Opcode::ALLOC_TRANSPORT_DOMAIN, 0).unwrap_or_default();
            let tisc = Tisc::new().with(Tisc::TRANSPORT_DOMAIN, self.eth.domain);
            let command = CreateTisIn::new().with(CreateTisIn::CTX, tisc);
            let tis = self.numbered_layout(nothing, Opcode::CREATE_TIS, command, std::iter::empty());
            self.eth.tis = tis.unwrap_or_default();
        }
    }

    /// A send queue, that sends.
    fn make_sq(&mut self, input: &mut Input<'_>) {
        self.need_domain();
        let [size, cq] = input.bytes();
        let log_size = u32::from(size % 8);
        let (at, record) = (self.room(size >> 7, 64 << log_size), self.room(size >> 7, 64));
        let wq = Wq::new()
            .with(Wq::PD, self.pd(cq >> 4))
            .with(Wq::LOG_WQ_STRIDE, 6)
            .with(Wq::LOG_WQ_SZ, log_size)
            .with(Wq::UAR_PAGE, self.uar(size))
            .with(Wq::DBR_ADDR, record);
        let context = Sqc::new()
            .with(Sqc::WQ, wq)
            .with(Sqc::CQN, chosen(&self.cqs, cq).number)
            .with(Sqc::FLUSH_IN_ERROR_EN, cq & 0x80 != 0)
            .with(Sqc::TIS_LST_SZ, 1)
            .with(Sqc::TIS_NUM_0, self.eth.tis);
        let command = CreateSqIn::new().with(CreateSqIn::CTX, context);
        let made = self.numbered_layout(input, Opcode::CREATE_SQ, command, Self::pages(at, 64 << log_size));
        let Some(number) = made else { return };
        self.eth.sqs.push(Queue { number, at, record: record + 4, log_size, count: 0 });
        let ready = ModifySqIn::new()
            .with(ModifySqIn::SQN, number)
            .with(ModifySqIn::CTX, context.with(Sqc::STATE, 1));
        self.layout(input, Opcode::MODIFY_SQ, ready, std::iter::empty(), 16);
    }

    /// A receive queue, that receives.
    fn make_rq(&mut self, input: &mut Input<'_>) {
        self.need_domain();
        let [size, cq] = input.bytes();
        let log_size = u32::from(size % 8);
        let (at, record) = (self.room(size >> 7, 64 << log_size), self.room(size >> 7, 64));
        let wq = Wq::new()
            .with(Wq::WQ_TYPE, WqType::Cyclic.code())
            .with(Wq::PD, self.pd(cq >> 4))
            .with(Wq::LOG_WQ_STRIDE, 6)
            .with(Wq::LOG_WQ_SZ, log_size)
            .with(Wq::DBR_ADDR, record);
        let context = Rqc::new()
            .with(Rqc::WQ, wq)
            .with(Rqc::CQN, chosen(&self.cqs, cq).number)
            .with(Rqc::VSD, size & 0x10 != 0)
            .with(Rqc::FLUSH_IN_ERROR_EN, cq & 0x80 != 0);
        let command = CreateRqIn::new().with(CreateRqIn::CTX, context);
        let made = self.numbered_layout(input, Opcode::CREATE_RQ, command, Self::pages(at, 64 << log_size));
        let Some(number) = made else { return };
        self.eth.rqs.push(Queue { number, at, record, log_size, count: 0 });
        let ready = ModifyRqIn::new()
            .with(ModifyRqIn::RQN, number)
            .with(ModifyRqIn::CTX, Rqc::new().with(Rqc::STATE, 1));
        self.layout(input, Opcode::MODIFY_RQ, ready, std::iter::empty(), 16);
    }

    /// An interface that leads to a queue, or to a list of some.
    fn make_tir(&mut self, input: &mut Input<'_>) {
        self.need_domain();
        let [what, fields] = input.bytes();
        let last = self.eth.rqs.last().copied().unwrap_or_default().number;
        let mut context = Tirc::new()
            .with(Tirc::TRANSPORT_DOMAIN, self.eth.domain)
            .with(Tirc::INLINE_RQN, last)
            .with(Tirc::RX_HASH_FN, u32::from(fields >> 6));
        if what & 1 != 0 {
            let count = self.eth.rqs.len().min(4) as u32;
            let list = Rqtc::new().with(Rqtc::RQT_MAX_SIZE, 4).with(Rqtc::RQT_ACTUAL_SIZE, count);
            let numbers: Vec<u32> = self.eth.rqs.iter().map(|rq| rq.number).chain([0]).collect();
            let pairs: Vec<u64> = numbers
                .chunks(2)
                .map(|p| u64::from(p[0]) << 32 | p.get(1).map_or(0, |n| (*n).into()))
                .collect();
            let command = CreateRqtIn::new().with(CreateRqtIn::RQT_CONTEXT, list);
            let rqt = self.numbered_layout(input, Opcode::CREATE_RQT, command, pairs.into_iter());
            self.eth.rqts.extend(rqt);
            let rqt = self.eth.rqts.last().copied().unwrap_or_default();
            context.set(Tirc::DISP_TYPE, 1).set(Tirc::INDIRECT_TABLE, rqt);
            let mut asked = context.get(Tirc::RX_HASH_FIELD_SELECTOR_OUTER);
            asked.as_bytes_mut().copy_from_slice(&[fields << 6, 0, 0, fields]);
            context.set(Tirc::RX_HASH_FIELD_SELECTOR_OUTER, asked);
        }
        let command = CreateTirIn::new().with(CreateTirIn::CTX, context);
        let tir = self.numbered_layout(input, Opcode::CREATE_TIR, command, std::iter::empty());
        self.eth.tirs.extend(tir);
    }

    /// A table, which is the first one.
    fn make_table(&mut self, input: &mut Input<'_>) {
        let [size, miss] = input.bytes();
        let before = self.eth.tables.last().copied().unwrap_or_default();
        let context = FlowTableContext::new()
            .with(FlowTableContext::LOG_SIZE, 4 + u32::from(size % 4))
            .with(FlowTableContext::TABLE_MISS_ACTION, u32::from(miss & 1))
            .with(FlowTableContext::TABLE_MISS_ID, before);
        let command = CreateFlowTableIn::new()
            .with(CreateFlowTableIn::TABLE_TYPE, u32::from(size >> 5))
            .with(CreateFlowTableIn::FLOW_TABLE_CONTEXT, context);
        let table = self.numbered_layout(input, Opcode::CREATE_FLOW_TABLE, command, std::iter::empty());
        self.eth.tables.extend(table);
        if miss & 2 == 0 {
            let root = self.eth.tables.last().copied().unwrap_or_default();
            let command = SetFlowTableRootIn::new().with(SetFlowTableRootIn::TABLE_ID, root);
            self.layout(input, Opcode::SET_FLOW_TABLE_ROOT, command, std::iter::empty(), 16);
        }
    }

    /// The headers that a group looks at, or a flow is for.
    fn criterion(input: &mut Input<'_>, what: u8) -> FteMatchParam {
        type F = FteMatchSetLyr24;
        let mut headers = F::new();
        match what & 7 {
            0 => {}
            1 => _ = headers.set(F::ETHERTYPE, input.word().into()),
            2 => _ = headers.set(F::DMAC_47_16, input.long() as u32),
            3 => _ = headers.set(F::IP_VERSION, u32::from(input.byte() & 15)),
            4 => _ = headers.set(F::UDP_DPORT, input.word().into()),
            5 => _ = headers.set(F::CVLAN_TAG, true).set(F::FIRST_VID, u32::from(input.byte())),
            6 => headers.as_bytes_mut()[usize::from(input.byte() % 64)] = input.byte(),
            _ => headers.as_bytes_mut().fill(0xff),
        }
        FteMatchParam::new().with(FteMatchParam::OUTER_HEADERS, headers)
    }

    fn make_group(&mut self, input: &mut Input<'_>) {
        let [what, first, len] = input.bytes();
        let start = u32::from(first % 16);
        let command = CreateFlowGroupIn::new()
            .with(CreateFlowGroupIn::TABLE_ID, self.eth.tables.last().copied().unwrap_or_default())
            .with(CreateFlowGroupIn::START_FLOW_INDEX, start)
            .with(CreateFlowGroupIn::END_FLOW_INDEX, start + u32::from(len % 8))
            .with(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, u32::from(what >> 4) ^ 1)
            .with(CreateFlowGroupIn::MATCH_CRITERIA, Self::criterion(input, what));
        let group = self.numbered_layout(input, Opcode::CREATE_FLOW_GROUP, command, std::iter::empty());
        self.eth.groups.extend(group);
    }

    fn make_flow(&mut self, input: &mut Input<'_>) {
        let [what, index, places, which] = input.bytes();
        let place = |i: u8| {
            let table = i & 1 != 0 && which & 1 != 0;
            let (kind, of) = if table {
                (DestinationType::FlowTable, &self.eth.tables)
            } else {
                (DestinationType::Tir, &self.eth.tirs)
            };
            let number = if which & 2 == 0 { of.last().copied().unwrap_or_default() } else { chosen(of, i) };
            let place = DestFormat::new()
                .with(DestFormat::DESTINATION_TYPE, kind.code())
                .with(DestFormat::DESTINATION_ID, number);
            u64::from_be_bytes(*place.as_bytes())
        };
        let count = places % 4 + 1;
        let list: Vec<u64> = (0..count).map(place).collect();
        let context = FlowContext::new()
            .with(FlowContext::GROUP_ID, self.eth.groups.last().copied().unwrap_or_default())
            .with(FlowContext::FLOW_TAG, u32::from(index))
            .with(FlowContext::ACTION, 4 ^ u32::from(places >> 4))
            .with(FlowContext::DESTINATION_LIST_SIZE, count.into())
            .with(FlowContext::MATCH_VALUE, Self::criterion(input, what));
        let command = SetFteIn::new()
            .with(SetFteIn::TABLE_ID, self.eth.tables.last().copied().unwrap_or_default())
            .with(SetFteIn::OP_MOD, u32::from(what >> 7))
            .with(SetFteIn::MODIFY_ENABLE_MASK, 7)
            .with(SetFteIn::FLOW_INDEX, u32::from(index % 16))
            .with(SetFteIn::FLOW_CONTEXT, context);
        self.layout(input, Opcode::SET_FLOW_TABLE_ENTRY, command, list.into_iter(), 16);
    }

    /// Requests that do nothing, but ask for completions.
    pub(super) fn post_frames(&mut self, which: u8, count: u8) {
        if self.eth.sqs.is_empty() {
            return;
        }
        let at = usize::from(which) % self.eth.sqs.len();
        let queue = &mut self.eth.sqs[at];
        for _ in 0..count {
            let slot = u64::from(queue.count & ((1 << queue.log_size) - 1));
            self.banks.write(queue.at + slot * 64, &[0, 0, 0, 0, 0, 0, 0, which, 0, 0, 0, 8]);
            queue.count = u32::from((queue.count as u16).wrapping_add(1));
        }
        self.banks.write(queue.record, &queue.count.to_be_bytes());
        self.ring(which);
    }

    /// Headers of a frame, to somebody.
    pub(super) fn frame(&self, input: &mut Input<'_>) -> Vec<u8> {
        let [to, kind] = input.bytes();
        let own = self.function.mac();
        let to = [[0xff; 6], super::OTHER_MAC, own, [2, 0, 0, 0, 0, 1], [0x33, 0x33, 0, 0, 0, to]]
            [usize::from(to % 5)];
        let mut frame = [&to[..], if kind & 0x40 == 0 { &own } else { &super::OTHER_MAC }].concat();
        if kind & 0x80 != 0 {
            frame.extend([0x81, 0, 0x20, kind]);
        }
        match kind & 7 {
            0 => frame.extend([
                8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 10, 0,
            ]),
            1 => {
                frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
                frame.extend([0, 80, 0, 90, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
            }
            2 => frame
                .extend([8, 0, 0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80]),
            3 => frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1]),
            4 => frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, kind, 9, 1, 1, 1, 1]),
            _ => frame.extend([0x88, 0xb5]),
        }
        frame.extend(input.some(64));
        frame.resize(frame.len().max(14), 0);
        frame
    }

    /// A request that sends, and rings.
    pub(super) fn post_frame(&mut self, input: &mut Input<'_>) {
        let [which, how] = input.bytes();
        if self.eth.sqs.is_empty() {
            return;
        }
        let at = usize::from(which) % self.eth.sqs.len();
        let mut frame = self.frame(input);
        let cut = how & 1 != 0;
        if how & 2 != 0 {
            frame.truncate(usize::from(input.byte() % 64));
        }
        let len = frame.len();
        let head = EthSeg::new()
            .with(EthSeg::CS_FLAGS, u32::from(how & 0xc0))
            .with(EthSeg::MSS, if cut { u32::from(input.word() % 2048) } else { 0 })
            .with(EthSeg::INLINE_HDR_SZ, len as u32);
        let mut bytes = [&head.as_bytes()[..14], &frame].concat();
        bytes.resize(bytes.len().next_multiple_of(16).max(16), 0);
        for _ in 0..how >> 3 & 3 {
            let (key, addr, len) = self.place(input);
            bytes.extend(DataSeg::pointer(len, key, addr).as_bytes());
        }
        let opcode = if cut { WqeOpcode::Lso } else { WqeOpcode::Send };
        let ctrl = CtrlSeg::new()
            .with(CtrlSeg::OPCODE, opcode.code())
            .with(CtrlSeg::CE, if how & 4 == 0 { 2 } else { 0 })
            .with(CtrlSeg::DS, (bytes.len() / 16 + 1) as u32);
        let bytes = [&ctrl.as_bytes()[..], &bytes].concat();
        let queue = &mut self.eth.sqs[at];
        for block in bytes.chunks(64) {
            let slot = u64::from(queue.count & ((1 << queue.log_size) - 1));
            self.banks.write(queue.at + slot * 64, block);
            queue.count = u32::from((queue.count as u16).wrapping_add(1));
        }
        self.banks.write(queue.record, &queue.count.to_be_bytes());
        self.ring(which);
    }

    /// Places for frames.
    pub(super) fn post_places(&mut self, input: &mut Input<'_>) {
        let [which, how] = input.bytes();
        if self.eth.rqs.is_empty() {
            return;
        }
        let at = usize::from(which) % self.eth.rqs.len();
        let places: Vec<DataSeg> = (0..how % 4)
            .map(|_| {
                let (key, addr, len) = self.place(input);
                DataSeg::pointer(len, key, addr)
            })
            .chain([DataSeg::TERMINATOR])
            .collect();
        let bytes: Vec<u8> = places.iter().flat_map(|place| *place.as_bytes()).collect();
        let queue = &mut self.eth.rqs[at];
        for _ in 0..=how >> 5 {
            let slot = u64::from(queue.count & ((1 << queue.log_size) - 1));
            self.banks.write(queue.at + slot * 64, &bytes);
            queue.count = u32::from((queue.count as u16).wrapping_add(1));
        }
        self.banks.write(queue.record, &queue.count.to_be_bytes());
    }
}
