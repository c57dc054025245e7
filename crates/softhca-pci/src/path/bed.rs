//! For tests: a client with memory of its own, without a socket, that makes queues as a driver does and uses them.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hca_core::{Device, Gid, Mtu};
use hca_fabric::LoopbackNet;
use hca_prm::command::cq::{CreateCqIn, CreateCqOut};
use hca_prm::command::eq::{CreateEqIn, CreateEqOut};
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut};
use hca_prm::command::qp::{CreateQpIn, CreateQpOut, DestroyQpIn, QueryQpIn, QueryQpOut, Rst2InitQpIn};
use hca_prm::command::resource::{AllocPdIn, AllocPdOut};
use hca_prm::command::srq::{CreateRmpIn, CreateRmpOut};
use hca_prm::{
    AccessMode, Ads, AtomicSeg, CmdStatus, CompletionMode, Cqc, Cqe64, CtrlSeg, DataSeg, EqSt, Eqc, Eqe,
    EventType, InlineSeg, Layout, Mkc, Opcode, Qpc, RaddrSeg, Rmpc, RqType, ServiceType, UdAdrsVector, Wq,
    WqType, WqeOpcode, optpar,
};
use rustix::fs::{MemfdFlags, SealFlags};
use softhca::{Options, Progress, SoftHca};

use crate::command::Output;
use crate::directory::SharedDirectory;
use crate::function::{Function, FunctionOptions};

/// Where the client's memory begins for the function, and its length.
pub(crate) const BASE: u64 = 0x7_0000_0000;
pub(crate) const LEN: u64 = 2 << 20;
pub(crate) const PAGE: u64 = 4096;

/// A file that can't be cut.
pub(crate) fn sealed(len: u64) -> File {
    let file = rustix::fs::memfd_create("client", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file.into()
}

/// An adapter, and what its functions share.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) hca: Arc<SoftHca>,
    pub(crate) directory: SharedDirectory,
    /// Entries of the queue into which all queue pairs of a function complete, if not as many as usual.
    pub(crate) completion_entries: Option<u32>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::at(&LoopbackNet::new(), "10.0.0.1")
    }

    /// That of the host with this address in a network.
    pub(crate) fn at(net: &LoopbackNet, addr: &str) -> Self {
        let fabric = net.attach(addr.parse().unwrap());
        let options = Options { progress: Progress::Inline, ..Options::default() };
        let hca = SoftHca::open(Box::new(fabric), options).unwrap();
        let directory = SharedDirectory::new(hca.port().gid);
        Self { hca, directory, completion_entries: None }
    }

    /// The adapter's own address.
    pub(crate) fn gid(&self) -> Gid {
        self.hca.port().gid
    }

    /// A client of function `number`, whose memory is mapped.
    pub(crate) fn client(&self, number: u16) -> Client {
        let mut function = self.function(FunctionOptions { number, ..FunctionOptions::default() });
        let file = sealed(LEN);
        let copy: OwnedFd = file.try_clone().unwrap().into();
        function.guest.set_bus_master(true);
        function.dma_map(BASE, LEN, (true, true), Some((copy, 0))).unwrap();
        let mut client = Client { function, file, used: 0, pd: 0, uar: 0, eqn: 0, eq_at: 0, eq_read: 0 };
        client.set_up();
        client
    }

    /// A function that nobody uses.
    pub(crate) fn function(&self, options: FunctionOptions) -> Function {
        let mut function = Function::new(self.hca.clone(), self.directory.clone(), options).unwrap();
        if let Some(entries) = self.completion_entries {
            function.objects.completion_entries = entries;
        }
        function
    }

    /// Hands the adapter's events to those whose objects they are of.
    pub(crate) fn events(&self, clients: &mut [&mut Client]) {
        while let Some(event) = self.hca.poll_event() {
            let taken = clients.iter_mut().any(|c| c.function.take_event(event));
            assert!(taken, "{event:?} is nobody's");
        }
    }
}

/// A client: its function, and its memory.
pub(crate) struct Client {
    pub(crate) function: Function,
    pub(crate) file: File,
    used: u64,
    pub(crate) pd: u32,
    pub(crate) uar: u32,
    eqn: u32,
    eq_at: u64,
    eq_read: u32,
}

/// A command, as the dispatcher calls it.
pub(super) type Method = fn(&mut Function, &[u8], &mut Output) -> Result<(), CmdStatus>;

const LOG_EQ: u32 = 8;

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
    #[allow(dead_code)] // shown by a test that fails
    pub(crate) st: ServiceType,
}

/// How a queue pair is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpShape {
    pub(crate) st: ServiceType,
    pub(crate) log_rq: u32,
    pub(crate) log_sq: u32,
    pub(crate) srq: Option<u32>,
}

impl Default for QpShape {
    fn default() -> Self {
        Self { st: ServiceType::Rc, log_rq: 4, log_sq: 6, srq: None }
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
    fn set_up(&mut self) {
        self.function.pages.alloc().unwrap();
        self.uar = self.function.pages.alloc().unwrap();
        let input = AllocPdIn::new();
        let out: AllocPdOut =
            self.call(input.as_bytes(), |f, i, o| f.resource_command(Opcode::ALLOC_PD, i, o)).unwrap();
        self.pd = out.get(AllocPdOut::PD);
        self.eq_at = self.alloc(PAGE * 4, PAGE);
        let context = Eqc::new()
            .with(Eqc::LOG_EQ_SIZE, LOG_EQ)
            .with(Eqc::UAR_PAGE, crate::uar::FIRST_UAR)
            .with(Eqc::ST, EqSt::Armed.code());
        let command = CreateEqIn::new()
            .with(CreateEqIn::EQ_CONTEXT_ENTRY, context)
            .with(CreateEqIn::EVENT_BITMASK, [u64::MAX, 0, 0, 0]);
        let input = with_pages(command.as_bytes(), self.eq_at, PAGE * 4);
        let out: CreateEqOut = self.call(&input, Function::create_eq).unwrap();
        self.eqn = out.get(CreateEqOut::EQ_NUMBER);
    }

    pub(crate) fn call<O: Layout>(&mut self, input: &[u8], method: Method) -> Result<O, CmdStatus> {
        let mut out = Output::new(O::SIZE);
        method(&mut self.function, input, &mut out)?;
        let mut layout = O::zeroed();
        layout.as_bytes_mut().copy_from_slice(out.bytes());
        Ok(layout)
    }

    /// Memory of the client's, by the function's address.
    pub(crate) fn alloc(&mut self, len: u64, align: u64) -> u64 {
        let at = self.used.next_multiple_of(align);
        self.used = at + len;
        assert!(self.used <= LEN, "the client has no more memory");
        BASE + at
    }
    pub(crate) fn write(&self, iova: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, iova - BASE).unwrap();
    }
    pub(crate) fn read(&self, iova: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, iova - BASE).unwrap();
        bytes
    }

    pub(crate) fn cq(&mut self, log_size: u32) -> ClientCq {
        let bytes = (64_u64 << log_size).next_multiple_of(PAGE);
        let (ring, record) = (self.alloc(bytes, PAGE), self.alloc(8, 64));
        let mut unwritten = [0; 64];
        unwritten[63] = Cqe64::FIRST_OP_OWN;
        self.write(ring, &unwritten.repeat(1 << log_size));
        let context = Cqc::new()
            .with(Cqc::LOG_CQ_SIZE, log_size)
            .with(Cqc::UAR_PAGE, self.uar)
            .with(Cqc::C_EQN, self.eqn)
            .with(Cqc::DBR_ADDR, record);
        let command = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
        let input = with_pages(command.as_bytes(), ring, bytes);
        let out: CreateCqOut = self.call(&input, Function::create_cq).unwrap();
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
        self.function.rung(self.uar, Some(cq.cqn));
    }

    /// Takes an event: its type and data.
    pub(crate) fn event(&mut self) -> Option<(EventType, [u8; 28])> {
        let slot = u64::from(self.eq_read & ((1 << LOG_EQ) - 1));
        let bytes: [u8; 64] = self.read(self.eq_at + slot * 64, 64).try_into().unwrap();
        let entry = Eqe::from_array(bytes);
        // The memory was zero before the first round, whose owner bit is 0.
        let fresh = entry.get(Eqe::OWNER) == Eqe::sw_owner(self.eq_read, LOG_EQ);
        let there = bytes != [0; 64];
        if !fresh || !there {
            return None;
        }
        self.eq_read += 1;
        self.write(self.eq_at + slot * 64, &[0; 64]);
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
        let QpShape { st, log_rq, log_sq, srq } = shape;
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
            .with(Qpc::DBR_ADDR, record);
        let command = CreateQpIn::new().with(CreateQpIn::QPC, context);
        let input = with_pages(command.as_bytes(), queues, bytes);
        let out: CreateQpOut = self.call(&input, Function::create_qp)?;
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
        let command = Rst2InitQpIn::new()
            .with(Rst2InitQpIn::QPN, qpn)
            .with(Rst2InitQpIn::OPT_PARAM_MASK, optional)
            .with(Rst2InitQpIn::QPC, context);
        self.function.modify_qp(opcode, command.as_bytes(), &mut Output::new(16))
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
            .with(Qpc::LOG_RRA_MAX, 2)
            .with(Qpc::MIN_RNR_NAK, 1)
            .with(Qpc::PRIMARY_ADDRESS_PATH, path);
        self.change(Opcode::INIT2RTR_QP, qp.qpn, optpar::RRE, flags(rtr)).unwrap();
        let path = Ads::new().with(Ads::ACK_TIMEOUT, timeout);
        let rts = Qpc::new()
            .with(Qpc::NEXT_SEND_PSN, 7)
            .with(Qpc::LOG_SRA_MAX, 2)
            .with(Qpc::RETRY_COUNT, retries)
            .with(Qpc::RNR_RETRY, 7)
            .with(Qpc::PRIMARY_ADDRESS_PATH, path);
        self.change(Opcode::RTR2RTS_QP, qp.qpn, 0, rts).unwrap();
    }

    pub(crate) fn query(&mut self, qp: &ClientQp) -> Qpc {
        let command = QueryQpIn::new().with(QueryQpIn::QPN, qp.qpn);
        let out: QueryQpOut = self.call(command.as_bytes(), Function::query_qp).unwrap();
        out.get(QueryQpOut::QPC)
    }

    pub(crate) fn destroy(&mut self, qpn: u32) -> Result<(), CmdStatus> {
        let command = DestroyQpIn::new().with(DestroyQpIn::QPN, qpn);
        self.function.destroy_qp(command.as_bytes(), &mut Output::new(16))
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
        let context = change(context);
        let octwords = pages.len().div_ceil(2) as u32;
        let command = CreateMkeyIn::new()
            .with(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY, context)
            .with(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octwords);
        let mut input = command.as_bytes().to_vec();
        input.extend(pages.iter().flat_map(|page| (page | 3).to_be_bytes()));
        input.resize(input.len().next_multiple_of(16), 0);
        let out: CreateMkeyOut = self.call(&input, Function::create_mkey)?;
        Ok(out.get(CreateMkeyOut::MKEY_INDEX) << 8 | context.get(Mkc::MKEY_7_0))
    }

    /// A registered buffer; its addresses for keys are others than for the function.
    pub(crate) fn mr(&mut self, len: u64) -> ClientMr {
        let iova = self.alloc(len.next_multiple_of(PAGE), PAGE);
        let addr = 0x5500_0000_0000 + (iova - BASE);
        let pages: Vec<u64> = (iova..iova + len).step_by(PAGE as usize).collect();
        let key = self.try_mr(&pages, addr, len, |context| context).unwrap();
        ClientMr { key, addr, iova }
    }

    pub(crate) fn rmp(&mut self, log_size: u32) -> ClientSrq {
        let bytes = (64_u64 << log_size).next_multiple_of(PAGE);
        let (list, record) = (self.alloc(bytes, PAGE), self.alloc(8, 64));
        for i in 0..1_u16 << log_size {
            self.write(list + 64 * u64::from(i) + 2, &(i + 1).to_be_bytes());
        }
        let wq = Wq::new()
            .with(Wq::WQ_TYPE, WqType::LinkedList.code())
            .with(Wq::PD, self.pd)
            .with(Wq::LOG_WQ_STRIDE, 6)
            .with(Wq::LOG_WQ_SZ, log_size)
            .with(Wq::DBR_ADDR, record);
        let command = CreateRmpIn::new().with(CreateRmpIn::CTX, Rmpc::new().with(Rmpc::WQ, wq));
        let input = with_pages(command.as_bytes(), list, bytes);
        let out: CreateRmpOut = self.call(&input, Function::create_rmp).unwrap();
        let last = (1 << log_size) - 1;
        ClientSrq { rmpn: out.get(CreateRmpOut::RMPN), list, record, head: 0, tail: last, posted: 0 }
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
        self.function.rung(self.uar, None);
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

/// A command and the pages of a range.
pub(crate) fn with_pages(command: &[u8], at: u64, len: u64) -> Vec<u8> {
    let mut input = command.to_vec();
    input.extend((at..at + len).step_by(PAGE as usize).flat_map(u64::to_be_bytes));
    input
}

impl ClientMr {
    pub(crate) fn seg(&self, from: u64, len: u32) -> DataSeg {
        DataSeg::pointer(len, self.key, self.addr + from)
    }
    pub(crate) fn remote(&self, from: u64) -> RaddrSeg {
        RaddrSeg::new().with(RaddrSeg::RADDR, self.addr + from).with(RaddrSeg::RKEY, self.key)
    }
}

/// A request of a send queue that is being put together.
#[derive(Clone, Debug)]
pub(crate) struct Wqe {
    ctrl: CtrlSeg,
    rest: Vec<u8>,
}

impl Wqe {
    pub(crate) fn new(opcode: WqeOpcode) -> Self {
        let ctrl = CtrlSeg::new()
            .with(CtrlSeg::OPCODE, opcode.code())
            .with(CtrlSeg::CE, CompletionMode::Always.code());
        Self { ctrl, rest: Vec::new() }
    }
    pub(crate) fn quiet(mut self) -> Self {
        self.ctrl.set(CtrlSeg::CE, 0);
        self
    }
    pub(crate) fn solicited(mut self) -> Self {
        self.ctrl.set(CtrlSeg::SE, true);
        self
    }
    pub(crate) fn opcode(mut self, code: u32) -> Self {
        self.ctrl.set(CtrlSeg::OPCODE, code);
        self
    }
    pub(crate) fn imm(mut self, imm: u32) -> Self {
        self.ctrl.set(CtrlSeg::IMM, imm);
        self
    }
    pub(crate) fn to(mut self, remote: RaddrSeg) -> Self {
        self.rest.extend(remote.as_bytes());
        self
    }
    pub(crate) fn datagram(self, gid: Gid, lid: u32, qpn: u32, qkey: u32) -> Self {
        self.datagram_of_class(gid, lid, qpn, qkey, 0)
    }
    /// A datagram with a traffic class.
    pub(crate) fn datagram_of_class(mut self, gid: Gid, lid: u32, qpn: u32, qkey: u32, class: u32) -> Self {
        let to = UdAdrsVector::new()
            .with(UdAdrsVector::Q_KEY, qkey)
            .with(UdAdrsVector::EXT, true)
            .with(UdAdrsVector::DESTINATION_QP_DCT, qpn)
            .with(UdAdrsVector::RLID_UDP_SPORT, lid)
            .with(UdAdrsVector::GRH, gid != Gid::default())
            .with(UdAdrsVector::TCLASS, class)
            .with(UdAdrsVector::RGID_RIP, gid.0);
        self.rest.extend(to.as_bytes());
        self
    }
    /// A datagram between Ethernet ports, as their drivers address it: by MAC and GID, with a UDP port where a LID
    /// would be.
    pub(crate) fn ethernet_datagram(mut self, gid: Gid, port: u32, qpn: u32, qkey: u32) -> Self {
        let mut to = UdAdrsVector::new()
            .with(UdAdrsVector::Q_KEY, qkey)
            .with(UdAdrsVector::EXT, true)
            .with(UdAdrsVector::DESTINATION_QP_DCT, qpn)
            .with(UdAdrsVector::RLID_UDP_SPORT, port)
            .with(UdAdrsVector::RGID_RIP, gid.0);
        to.set_rmac([2, 0, 0, 0, 0, 1]);
        self.rest.extend(to.as_bytes());
        self
    }
    pub(crate) fn atomic(mut self, swap_add: u64, compare: u64) -> Self {
        let seg = AtomicSeg::new().with(AtomicSeg::SWAP_ADD, swap_add).with(AtomicSeg::COMPARE, compare);
        self.rest.extend(seg.as_bytes());
        self
    }
    pub(crate) fn seg(mut self, seg: DataSeg) -> Self {
        self.rest.extend(seg.as_bytes());
        self
    }
    pub(crate) fn inline(mut self, bytes: &[u8]) -> Self {
        let from = self.rest.len();
        self.rest.extend(InlineSeg::of(bytes.len() as u32).as_bytes());
        self.rest.extend(bytes);
        self.rest.resize(from + InlineSeg::room(bytes.len()), 0);
        self
    }
    pub(crate) fn bytes(&self, qpn: u32, counter: u16) -> Vec<u8> {
        let ds = (CtrlSeg::SIZE + self.rest.len()) / 16;
        let ctrl = self
            .ctrl
            .with(CtrlSeg::QP_OR_SQ, qpn)
            .with(CtrlSeg::WQE_INDEX, counter.into())
            .with(CtrlSeg::DS, ds as u32);
        let mut bytes = ctrl.as_bytes().to_vec();
        bytes.extend(&self.rest);
        bytes
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
