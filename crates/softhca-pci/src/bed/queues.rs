//! A driver that makes queues and uses them, and two of them that are connected.

use std::ops::{Deref, DerefMut};

use hca_core::{Device, Gid, Mtu};
#[cfg(test)]
use hca_prm::XrcSrqc;
use hca_prm::command::cq::{CreateCqIn, CreateCqOut};
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut};
use hca_prm::command::qp::{CreateQpIn, CreateQpOut, DestroyQpIn, QueryQpIn, QueryQpOut, Rst2InitQpIn};
use hca_prm::command::resource::{AllocPdIn, AllocPdOut};
#[cfg(test)]
use hca_prm::command::resource::{AllocXrcdIn, AllocXrcdOut};
use hca_prm::command::srq::{CreateRmpIn, CreateRmpOut};
#[cfg(test)]
use hca_prm::command::srq::{CreateXrcSrqIn, CreateXrcSrqOut};
use hca_prm::{
    AccessMode, Ads, CmdStatus, Cqc, Cqe64, DataSeg, Eqe, EventType, Mkc, Opcode, Qpc, RaddrSeg, Rmpc,
    RqType, ServiceType, Wq, WqType, optpar,
};

use super::{BASE, Driver, PAGE, Server, TestEq, Wqe};
use crate::eq::known_events;
use crate::function::{Function, FunctionOptions};

/// A driver that has booted, with a protection domain, a doorbell page and an event queue.
pub(crate) struct Client {
    driver: Driver,
    pub(crate) pd: u32,
    pub(crate) uar: u32,
    pub(crate) eq: TestEq,
    /// READs and atomics of connections that it makes, in each direction, as a power of two.
    pub(crate) reads: u32,
}

impl Deref for Client {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

/// A completion queue as its driver knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientCq {
    pub(crate) cqn: u32,
    pub(crate) ring: u64,
    pub(crate) record: u64,
    pub(crate) log_size: u32,
    pub(crate) ci: u32,
    pub(crate) sn: u32,
}

/// A queue that only takes or only gives, as its driver knows it: its number, where its entries and its record are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) number: u32,
    pub(crate) at: u64,
    pub(crate) record: u64,
    pub(crate) log_size: u32,
    /// Entries that were posted, or taken.
    pub(crate) count: u32,
}

/// An entry of a queue that nobody has written.
pub(crate) fn unwritten(last: u8) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[63] = last;
    entry
}

/// A queue pair as its driver knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientQp {
    pub(crate) qpn: u32,
    pub(crate) rq: u64,
    pub(crate) sq: u64,
    pub(crate) record: u64,
    pub(crate) log_rq: u32,
    pub(crate) log_sq: u32,
    pub(crate) rq_pi: u16,
    pub(crate) sq_pi: u16,
    pub(crate) st: ServiceType,
}

/// How a queue pair is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpShape {
    pub(crate) st: ServiceType,
    pub(crate) log_rq: u32,
    pub(crate) log_sq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) clock: u32,
}

impl Default for QpShape {
    fn default() -> Self {
        Self { st: ServiceType::Rc, log_rq: 4, log_sq: 6, srq: None, clock: 0 }
    }
}

/// Bytes of a receive request, as a power of two.
pub(crate) const LOG_RQ_STRIDE: u32 = 6;

/// A registered part of the client's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientMr {
    pub(crate) key: u32,
    /// Where it is for keys, and for the function.
    pub(crate) addr: u64,
    pub(crate) iova: u64,
}

impl Client {
    pub(crate) fn new(server: &Server, options: FunctionOptions, memory: u64) -> Self {
        let mut driver = Driver::with_memory(server, options, memory);
        driver.boot();
        driver.uar();
        let uar = driver.uar();
        let pd = driver.command(&AllocPdIn::new()).unwrap().get(AllocPdOut::PD);
        // Not of commands, nor of pages, which it would have to lend.
        let others = [EventType::Cmd, EventType::PageRequest];
        let known = |event: &EventType| event.mask()[0] & known_events() != 0 && !others.contains(event);
        let events: Vec<EventType> = EventType::ALL.iter().copied().filter(known).collect();
        let eq = driver.eq(8, 0, &events);
        Self { driver, pd, uar, eq, reads: 2 }
    }

    pub(crate) fn cq(&mut self, log_size: u32) -> ClientCq {
        let bytes = (64_u64 << log_size).next_multiple_of(PAGE);
        let (ring, record) = (self.alloc(bytes, PAGE), self.alloc(8, 64));
        self.write(ring, &unwritten(Cqe64::FIRST_OP_OWN).repeat(1 << log_size));
        let context = Cqc::new()
            .with(Cqc::LOG_CQ_SIZE, log_size)
            .with(Cqc::UAR_PAGE, self.uar)
            .with(Cqc::C_EQN, self.eq.eqn)
            .with(Cqc::DBR_ADDR, record);
        let command = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
        let (out, _) = self.command_with(&command, &pages(ring, bytes), 0).unwrap();
        ClientCq { cqn: out.get(CreateCqOut::CQN), ring, record, log_size, ci: 0, sn: 0 }
    }

    /// Takes a completion, if there is one.
    pub(crate) fn poll(&self, cq: &mut ClientCq) -> Option<Cqe64> {
        let slot = u64::from(cq.ci & ((1 << cq.log_size) - 1));
        let bytes: [u8; 64] = self.read(cq.ring + slot * 64, 64).try_into().unwrap();
        if !Cqe64::is_ready(bytes[63], cq.ci, cq.log_size) {
            return None;
        }
        cq.ci += 1;
        self.write(cq.record, &(cq.ci & 0xff_ffff).to_be_bytes());
        Some(Cqe64::from_array(bytes))
    }

    /// Arms a completion queue, and rings.
    pub(crate) fn arm(&mut self, cq: &ClientCq, solicited: bool) {
        let word = (cq.sn & 3) << 28 | u32::from(solicited) << 24 | cq.ci & 0xff_ffff;
        self.write(cq.record + 4, &word.to_be_bytes());
        self.driver.function.armed(self.uar, cq.cqn, Some(word));
    }

    /// Takes an event: its type and data.
    pub(crate) fn event(&mut self) -> Option<(EventType, [u8; 28])> {
        let entry = self.driver.event(&mut self.eq)?;
        Some((EventType::from_code(entry.get(Eqe::EVENT_TYPE)).unwrap(), entry.get(Eqe::EVENT_DATA)))
    }

    /// All events that there are.
    pub(crate) fn all_events(&mut self) -> Vec<EventType> {
        std::iter::from_fn(|| self.event()).map(|(event, _)| event).collect()
    }

    pub(crate) fn qp(&mut self, shape: QpShape, send_cq: &ClientCq, recv_cq: &ClientCq) -> ClientQp {
        self.try_qp(shape, send_cq, recv_cq).unwrap()
    }

    pub(crate) fn try_qp(
        &mut self,
        shape: QpShape,
        send_cq: &ClientCq,
        recv_cq: &ClientCq,
    ) -> Result<ClientQp, CmdStatus> {
        let QpShape { st, log_rq, log_sq, srq, clock } = shape;
        let rq_bytes = if srq.is_some() { 0 } else { 1_u64 << (log_rq + LOG_RQ_STRIDE) };
        let bytes = (rq_bytes + (64 << log_sq)).next_multiple_of(PAGE);
        let (queues, record) = (self.alloc(bytes, PAGE), self.alloc(8, 64));
        let rq_type = if srq.is_some() { RqType::Srq } else { RqType::Regular };
        // As Linux does, which names no protection domain for the queue pair by which it would change keys.
        let pd = if st == ServiceType::RegUmr { 0 } else { self.pd };
        let context = Qpc::new()
            .with(Qpc::ST, st.code())
            .with(Qpc::PD, pd)
            .with(Qpc::UAR_PAGE, self.uar)
            .with(Qpc::LOG_RQ_SIZE, log_rq)
            .with(Qpc::LOG_RQ_STRIDE, LOG_RQ_STRIDE - 4)
            .with(Qpc::LOG_SQ_SIZE, log_sq)
            .with(Qpc::RQ_TYPE, rq_type.code())
            .with(Qpc::SRQN_RMPN_XRQN, srq.unwrap_or(0))
            .with(Qpc::CQN_SND, send_cq.cqn)
            .with(Qpc::CQN_RCV, recv_cq.cqn)
            .with(Qpc::USER_INDEX, 0xabc)
            .with(Qpc::TS_FORMAT, clock)
            .with(Qpc::DBR_ADDR, record);
        let command = CreateQpIn::new().with(CreateQpIn::QPC, context);
        let (out, _) = self.command_with(&command, &pages(queues, bytes), 0)?;
        let qpn = out.get(CreateQpOut::QPN);
        let sq = queues + rq_bytes;
        Ok(ClientQp { qpn, rq: queues, sq, record, log_rq, log_sq, rq_pi: 0, sq_pi: 0, st })
    }

    pub(crate) fn change(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        optional: u32,
        context: Qpc,
    ) -> Result<(), CmdStatus> {
        let mut command = Rst2InitQpIn::new()
            .with(Rst2InitQpIn::QPN, qpn)
            .with(Rst2InitQpIn::OPT_PARAM_MASK, optional)
            .with(Rst2InitQpIn::QPC, context);
        command.as_bytes_mut()[..2].copy_from_slice(&opcode.0.to_be_bytes());
        self.command(&command).map(drop)
    }

    /// Brings a queue pair to RTS, connected to the peer at `gid`.
    pub(crate) fn connect(&mut self, qp: &ClientQp, gid: Gid, peer: u32) {
        self.connect_by(qp, Ads::new().with(Ads::RGID_RIP, gid.0).with(Ads::GRH, true), peer, (14, 7));
    }

    /// Brings a queue pair to RTS, with this path, and a timeout and retries.
    pub(crate) fn connect_by(&mut self, qp: &ClientQp, path: Ads, peer: u32, (timeout, retries): (u32, u32)) {
        let flags = |q: Qpc| q.with(Qpc::RRE, true).with(Qpc::RWE, true).with(Qpc::RAE, true);
        let first = flags(Qpc::new()).with(Qpc::Q_KEY, 0x1111);
        self.change(Opcode::RST2INIT_QP, qp.qpn, 0, first).unwrap();
        let rtr = Qpc::new()
            .with(Qpc::MTU, Mtu::B1024.encoding().into())
            .with(Qpc::REMOTE_QPN, peer)
            .with(Qpc::NEXT_RCV_PSN, 7)
            .with(Qpc::LOG_RRA_MAX, self.reads)
            .with(Qpc::MIN_RNR_NAK, 1)
            .with(Qpc::PRIMARY_ADDRESS_PATH, path);
        let optional = if qp.st == ServiceType::Rc { optpar::RRE } else { 0 };
        self.change(Opcode::INIT2RTR_QP, qp.qpn, optional, flags(rtr)).unwrap();
        let path = Ads::new().with(Ads::ACK_TIMEOUT, timeout);
        let rts = Qpc::new()
            .with(Qpc::NEXT_SEND_PSN, 7)
            .with(Qpc::LOG_SRA_MAX, self.reads)
            .with(Qpc::RETRY_COUNT, retries)
            .with(Qpc::RNR_RETRY, 7)
            .with(Qpc::PRIMARY_ADDRESS_PATH, path);
        self.change(Opcode::RTR2RTS_QP, qp.qpn, 0, rts).unwrap();
    }

    pub(crate) fn query(&mut self, qp: &ClientQp) -> Qpc {
        let command = QueryQpIn::new().with(QueryQpIn::QPN, qp.qpn);
        self.command(&command).unwrap().get(QueryQpOut::QPC)
    }

    pub(crate) fn destroy(&mut self, qpn: u32) -> Result<(), CmdStatus> {
        self.command(&DestroyQpIn::new().with(DestroyQpIn::QPN, qpn)).map(drop)
    }

    /// Registers pages of the client's, in the order given.
    pub(crate) fn try_mr(
        &mut self,
        pages: &[u64],
        start: u64,
        len: u64,
        change: impl Fn(Mkc) -> Mkc,
    ) -> Result<u32, CmdStatus> {
        let mut context = Mkc::new()
            .with(Mkc::LR, true)
            .with(Mkc::LW, true)
            .with(Mkc::RR, true)
            .with(Mkc::RW, true)
            .with(Mkc::A, true)
            .with(Mkc::QPN, Mkc::ANY_QPN)
            .with(Mkc::MKEY_7_0, 0x42)
            .with(Mkc::PD, self.pd)
            .with(Mkc::START_ADDR, start)
            .with(Mkc::LEN, len)
            .with(Mkc::LOG_PAGE_SIZE, 12);
        context.set_access_mode(AccessMode::Mtt);
        let pages: Vec<u64> = pages.iter().map(|page| page | 3).collect();
        self.key(change(context), &pages)
    }

    /// A key with this context.
    pub(crate) fn key(&mut self, context: Mkc, pages: &[u64]) -> Result<u32, CmdStatus> {
        let command = CreateMkeyIn::new()
            .with(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY, context)
            .with(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, pages.len().div_ceil(2) as u32);
        let mut list = pages.to_vec();
        list.resize(pages.len().next_multiple_of(2), 0);
        let (out, _) = self.command_with(&command, &list, 0)?;
        Ok(out.get(CreateMkeyOut::MKEY_INDEX) << 8 | context.get(Mkc::MKEY_7_0))
    }

    /// A registered buffer; its addresses for keys are others than for the function.
    pub(crate) fn mr(&mut self, len: u64) -> ClientMr {
        let iova = self.alloc(len.next_multiple_of(PAGE), PAGE);
        let addr = 0x5500_0000_0000 + (iova - BASE);
        let key = self.try_mr(&pages(iova, len), addr, len, |context| context).unwrap();
        ClientMr { key, addr, iova }
    }

    /// Memory for a shared receive queue of 2^`log_size` entries, and the command's list of its pages.
    fn srq_memory(&mut self, log_size: u32) -> (ClientSrq, Vec<u64>) {
        let bytes = (64_u64 << log_size).next_multiple_of(PAGE);
        let (list, record) = (self.alloc(bytes, PAGE), self.alloc(8, 64));
        for i in 0..1_u16 << log_size {
            self.write(list + 64 * u64::from(i) + 2, &(i + 1).to_be_bytes());
        }
        let last = (1 << log_size) - 1;
        (ClientSrq { rmpn: 0, list, record, head: 0, tail: last, posted: 0 }, pages(list, bytes))
    }

    pub(crate) fn rmp(&mut self, log_size: u32) -> ClientSrq {
        let (srq, pages) = self.srq_memory(log_size);
        let wq = Wq::new()
            .with(Wq::WQ_TYPE, WqType::LinkedList.code())
            .with(Wq::PD, self.pd)
            .with(Wq::LOG_WQ_STRIDE, 6)
            .with(Wq::LOG_WQ_SZ, log_size)
            .with(Wq::DBR_ADDR, srq.record);
        let command = CreateRmpIn::new().with(CreateRmpIn::CTX, Rmpc::new().with(Rmpc::WQ, wq));
        let (out, _) = self.command_with(&command, &pages, 0).unwrap();
        ClientSrq { rmpn: out.get(CreateRmpOut::RMPN), ..srq }
    }

    /// A domain of extended connections.
    #[cfg(test)]
    pub(crate) fn xrcd(&mut self) -> u32 {
        self.command(&AllocXrcdIn::new()).unwrap().get(AllocXrcdOut::XRCD)
    }

    /// A shared receive queue of a domain of extended connections.
    #[cfg(test)]
    pub(crate) fn try_xrc_srq(
        &mut self,
        log_size: u32,
        (xrcd, cqn): (u32, u32),
        user_index: u32,
    ) -> Result<ClientSrq, CmdStatus> {
        let (srq, pages) = self.srq_memory(log_size);
        let context = XrcSrqc::new()
            .with(XrcSrqc::LOG_XRC_SRQ_SIZE, log_size)
            .with(XrcSrqc::LOG_RQ_STRIDE, 6 - 4)
            .with(XrcSrqc::XRCD, xrcd)
            .with(XrcSrqc::CQN, cqn)
            .with(XrcSrqc::USER_INDEX, user_index)
            .with(XrcSrqc::PD, self.pd)
            .with(XrcSrqc::DBR_ADDR, srq.record);
        let command = CreateXrcSrqIn::new().with(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY, context);
        let (out, _) = self.command_with(&command, &pages, 0)?;
        Ok(ClientSrq { rmpn: out.get(CreateXrcSrqOut::XRC_SRQN), ..srq })
    }

    /// A target of a domain, as Linux makes it: without a doorbell page and a record, and with queues that mean
    /// nothing.
    #[cfg(test)]
    pub(crate) fn try_target(&mut self, xrcd: u32) -> Result<ClientQp, CmdStatus> {
        self.try_target_with(xrcd, 0)
    }

    /// The same, with a completion queue that means nothing.
    #[cfg(test)]
    pub(crate) fn try_target_with(&mut self, xrcd: u32, cqn: u32) -> Result<ClientQp, CmdStatus> {
        let context = Qpc::new()
            .with(Qpc::ST, ServiceType::Xrc.code())
            .with(Qpc::PD, self.pd)
            .with(Qpc::NO_SQ, true)
            .with(Qpc::RQ_TYPE, RqType::Srq.code())
            .with(Qpc::XRCD, xrcd)
            .with(Qpc::CQN_SND, cqn)
            .with(Qpc::CQN_RCV, cqn)
            .with(Qpc::USER_INDEX, 0xff_ffff);
        let (out, _) = self.command_with(&CreateQpIn::new().with(CreateQpIn::QPC, context), &[], 0)?;
        let (qpn, st) = (out.get(CreateQpOut::QPN), ServiceType::Xrc);
        Ok(ClientQp { qpn, rq: 0, sq: 0, record: 0, log_rq: 0, log_sq: 0, rq_pi: 0, sq_pi: 0, st })
    }

    /// Posts to a shared receive queue. Returns the entry's index.
    pub(crate) fn post_srq(&self, srq: &mut ClientSrq, place: &DataSeg) -> u16 {
        let index = srq.head;
        assert_ne!(index, srq.tail, "an entry stays, so that the last one has a next one");
        let at = srq.list + 64 * u64::from(index);
        srq.head = u16::from_be_bytes(self.read(at + 2, 2).try_into().unwrap());
        self.write(at + 16, place.as_bytes());
        self.write(at + 32, DataSeg::TERMINATOR.as_bytes());
        srq.posted = srq.posted.wrapping_add(1);
        self.write(srq.record, &u32::from(srq.posted).to_be_bytes());
        index
    }

    /// Takes an entry of a shared receive queue back.
    pub(crate) fn free_srq(&self, srq: &mut ClientSrq, index: u16) {
        self.write(srq.list + 64 * u64::from(srq.tail) + 2, &index.to_be_bytes());
        srq.tail = index;
    }

    pub(crate) fn post_recv(&self, qp: &mut ClientQp, places: &[DataSeg]) {
        let slot = u64::from(qp.rq_pi) & ((1 << qp.log_rq) - 1);
        let at = qp.rq + (slot << LOG_RQ_STRIDE);
        let mut bytes: Vec<u8> = places.iter().flat_map(|seg| *seg.as_bytes()).collect();
        if bytes.len() < 1 << LOG_RQ_STRIDE {
            bytes.extend(DataSeg::TERMINATOR.as_bytes());
        }
        self.write(at, &bytes);
        qp.rq_pi = qp.rq_pi.wrapping_add(1);
        self.write(qp.record, &u32::from(qp.rq_pi).to_be_bytes());
    }

    /// Writes a request without announcing it. Returns its counter.
    pub(crate) fn put_send(&self, qp: &mut ClientQp, wqe: &Wqe) -> u16 {
        let counter = qp.sq_pi;
        let bytes = wqe.bytes(qp.qpn, counter);
        let size = 64_u64 << qp.log_sq;
        for (i, part) in bytes.chunks(64).enumerate() {
            let at = ((u64::from(counter) + i as u64) * 64) & (size - 1);
            self.write(qp.sq + at, part);
        }
        qp.sq_pi = qp.sq_pi.wrapping_add(bytes.len().div_ceil(64) as u16);
        counter
    }
    pub(crate) fn announce(&mut self, qp: &ClientQp) {
        self.write(qp.record + 4, &u32::from(qp.sq_pi).to_be_bytes());
        self.driver.function.objects.suspect_all();
    }
    pub(crate) fn post_send(&mut self, qp: &mut ClientQp, wqe: &Wqe) -> u16 {
        let counter = self.put_send(qp, wqe);
        self.announce(qp);
        counter
    }
}

/// A shared receive queue as its driver knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSrq {
    pub(crate) rmpn: u32,
    pub(crate) list: u64,
    record: u64,
    head: u16,
    tail: u16,
    posted: u16,
}

/// The pages of a range.
pub(crate) fn pages(at: u64, len: u64) -> Vec<u64> {
    (at..at + len).step_by(PAGE as usize).collect()
}

impl ClientMr {
    pub(crate) fn seg(&self, from: u64, len: u32) -> DataSeg {
        DataSeg::pointer(len, self.key, self.addr + from)
    }
    pub(crate) fn remote(&self, from: u64) -> RaddrSeg {
        RaddrSeg::new().with(RaddrSeg::RADDR, self.addr + from).with(RaddrSeg::RKEY, self.key)
    }
}

/// Two connected queue pairs, each with its completion queues and a registered buffer.
pub(crate) struct Pair {
    pub(crate) server: Server,
    pub(crate) a: End,
    pub(crate) b: End,
}

/// One side of a [`Pair`].
pub(crate) struct End {
    pub(crate) client: Client,
    pub(crate) qp: ClientQp,
    pub(crate) send_cq: ClientCq,
    pub(crate) recv_cq: ClientCq,
    pub(crate) mr: ClientMr,
}

impl End {
    pub(crate) fn new(server: &Server, number: u16, shape: QpShape) -> Self {
        let mut client = server.client(number);
        let (send_cq, recv_cq) = (client.cq(6), client.cq(6));
        let qp = client.qp(shape, &send_cq, &recv_cq);
        let mr = client.mr(1 << 18);
        Self { client, qp, send_cq, recv_cq, mr }
    }
    pub(crate) fn post(&mut self, wqe: &Wqe) -> u16 {
        self.client.post_send(&mut self.qp, wqe)
    }
    pub(crate) fn recv(&mut self, from: u64, len: u32) {
        let seg = self.mr.seg(from, len);
        self.client.post_recv(&mut self.qp, &[seg]);
    }
    pub(crate) fn sent(&mut self) -> Option<Cqe64> {
        self.client.poll(&mut self.send_cq)
    }
    pub(crate) fn received(&mut self) -> Option<Cqe64> {
        self.client.poll(&mut self.recv_cq)
    }
    pub(crate) fn fill(&self, from: u64, bytes: &[u8]) {
        self.client.write(self.mr.iova + from, bytes);
    }
    pub(crate) fn bytes(&self, from: u64, len: usize) -> Vec<u8> {
        self.client.read(self.mr.iova + from, len)
    }
}

impl Pair {
    pub(crate) fn new(shape: QpShape) -> Self {
        Self::over(Server::new(), [0, 1], shape)
    }
    /// On the functions with these numbers.
    pub(crate) fn over(server: Server, numbers: [u16; 2], shape: QpShape) -> Self {
        let [mut a, mut b] = numbers.map(|number| End::new(&server, number, shape));
        let gid = server.hca.port().gid;
        a.client.connect(&a.qp, gid, b.qp.qpn);
        b.client.connect(&b.qp, gid, a.qp.qpn);
        Self { server, a, b }
    }

    /// Looks at both sides until `done` yields something, or what was to come did not.
    pub(crate) fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            self.look();
            if let Some(t) = done(self) {
                return t;
            }
            assert!(std::time::Instant::now() < end, "{what} does not come");
        }
    }
    pub(crate) fn look(&mut self) {
        for step in [Function::look_at_requests, Function::look_at_places, Function::carry_out] {
            step(&mut self.a.client.function);
            step(&mut self.b.client.function);
        }
        self.server.events(&mut [&mut self.a.client, &mut self.b.client]);
    }
    pub(crate) fn sent(&mut self) -> Cqe64 {
        self.until("a completion of A's", |p| p.a.sent())
    }
    pub(crate) fn received(&mut self) -> Cqe64 {
        self.until("a message to B", |p| p.b.received())
    }
}
