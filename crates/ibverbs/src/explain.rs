//! Errors in words, on standard error, where `HCA_EXPLAIN` asks for it: error completions, refused requests and calls,
//! asynchronous events. Each is told once.
//!
//! Requests and regions are noted only then; a program without it pays one comparison a request.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex};

use hca::hca_core::{
    Access, AsyncEvent, Completion, DeviceError, EventObject, KeyFault, Payload, QpHandle, RemoteAddr,
    SendOp, SendWr, Sge, WcStatus,
};

use crate::device::{Adapter, is_set};
use crate::entry::{Errno, lock};
use crate::post::look_at_requests;

/// The environment variable that asks for it.
const VARIABLE: &str = "HCA_EXPLAIN";
/// The requests that are remembered, and the errors that were told.
const MAX_REQUESTS: usize = 8192;
const MAX_TOLD: usize = 4096;

static ENABLED: LazyLock<bool> = LazyLock::new(|| is_set(VARIABLE));
static TOLD: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

pub(crate) fn enabled() -> bool {
    *ENABLED
}

/// Says something on standard error. Where that can't be written, the words are lost, and the call goes on.
pub(crate) fn say(words: core::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(format_args!("hca: {words}\n"));
}
/// Tells an error, once for each `what`.
fn tell(what: String, words: &str) {
    let mut told = lock(&TOLD);
    if told.len() < MAX_TOLD && told.insert(what) {
        say(format_args!("{words}"));
    }
}

/// A refused call of the control path.
#[cold]
pub(crate) fn refused(error: &DeviceError) {
    if enabled() {
        let words = error.to_string();
        tell(words.clone(), &format!("a call was refused: {words}"));
    }
}
/// A refused request of a queue pair or a shared receive queue, which `queue` names.
#[cold]
pub(crate) fn refused_request(queue: &str, wr_id: u64, why: &dyn core::fmt::Display) {
    if enabled() {
        tell(
            format!("{queue} {why}"),
            &format!("{queue}: request {wr_id:#x} was refused as it was posted: {why}"),
        );
    }
}

/// Records of an adapter's requests and regions.
#[derive(Default)]
pub(crate) struct Notes {
    requests: Mutex<VecDeque<Noted>>,
    regions: Mutex<HashMap<u32, Region>>,
}
struct Noted {
    /// The queue pair of a send request; of a receive request `None`, as shared queues serve several.
    qp: Option<QpHandle>,
    wr_id: u64,
    op: Option<SendOp>,
    list: Vec<Sge>,
    inline: usize,
}
#[derive(Clone, Copy)]
struct Region {
    first: u64,
    len: u64,
    access: Access,
    exists: bool,
}

impl Notes {
    pub(crate) fn new() -> Option<Box<Self>> {
        enabled().then(|| {
            look_at_requests();
            Box::default()
        })
    }
    fn push(&self, noted: Noted) {
        let mut requests = lock(&self.requests);
        if requests.len() == MAX_REQUESTS {
            requests.pop_front();
        }
        requests.push_back(noted);
    }
    #[cold]
    pub(crate) fn send(&self, qp: QpHandle, wr: &SendWr<'_>) {
        let (list, inline) = match wr.payload {
            Payload::Sges(list) => (list.to_vec(), 0),
            Payload::Inline(bytes) => (Vec::new(), bytes.len()),
            Payload::Mixed(mixed) => (Vec::new(), mixed.bytes.len()),
        };
        self.push(Noted { qp: Some(qp), wr_id: wr.wr_id, op: Some(wr.op), list, inline });
    }
    #[cold]
    pub(crate) fn recv(&self, wr_id: u64, list: &[Sge]) {
        self.push(Noted { qp: None, wr_id, op: None, list: list.to_vec(), inline: 0 });
    }
    /// A new registration under two keys, which may be the same.
    pub(crate) fn region(&self, keys: [u32; 2], first: u64, len: usize, access: Access) {
        let region = Region { first, len: len as u64, access, exists: true };
        lock(&self.regions).extend(keys.map(|key| (key, region)));
    }
    /// A key that is given back.
    pub(crate) fn freed(&self, key: u32) {
        if let Some(region) = lock(&self.regions).get_mut(&key) {
            region.exists = false;
        }
    }

    /// The rights of a key, of an access that failed.
    fn of_key(&self, key: u32, addr: u64, len: u64, needs: Access) -> String {
        let Some(region) = lock(&self.regions).get(&key).copied() else {
            return format!("no region of this process has key {key:#x}");
        };
        let end = region.first.saturating_add(region.len);
        if !region.exists {
            format!("key {key:#x} was freed: its region is deregistered")
        } else if addr < region.first || addr.saturating_add(len) > end {
            format!(
                "key {key:#x} names {:#x} to {end:#x}, and {addr:#x} to {:#x} is not inside",
                region.first,
                addr.saturating_add(len)
            )
        } else if !region.access.contains(needs) {
            format!("key {key:#x} allows {:?}, and the access needs {needs:?}", region.access)
        } else {
            format!("key {key:#x} covers {addr:#x} to {:#x}", addr.saturating_add(len))
        }
    }

    /// The request of a completion, in words, and what was wrong with its keys: the newest with its number.
    fn request(&self, wc: &Completion) -> (String, String) {
        let requests = lock(&self.requests);
        let is_recv = wc.opcode.is_recv();
        let found = requests
            .iter()
            .rev()
            .find(|r| r.wr_id == wc.wr_id && if is_recv { r.qp.is_none() } else { r.qp == Some(wc.qp) });
        let Some(noted) = found else { return (String::new(), String::new()) };
        let bytes = noted.inline as u64 + noted.list.iter().map(|sge| u64::from(sge.len)).sum::<u64>();
        let words = match &noted.op {
            None => format!(", a receive request with room for {bytes} bytes,"),
            Some(op) => match needs(op) {
                Some((RemoteAddr { addr, rkey }, _)) => {
                    format!(
                        ", {} of {bytes} bytes at {addr:#x} of the peer with key {:#x},",
                        name(op),
                        rkey.raw()
                    )
                }
                None => format!(", {} of {bytes} bytes,", name(op)),
            },
        };
        (words, self.wrong_keys(wc.status, noted, bytes))
    }
    /// The mismatches between a request and the regions of its keys, in words.
    fn wrong_keys(&self, status: WcStatus, noted: &Noted, bytes: u64) -> String {
        let mut words = String::new();
        if status == WcStatus::LocalProtection {
            let writes = noted.op.is_none_or(SendOp::is_read_or_atomic);
            let needs = if writes { Access::LOCAL_WRITE } else { Access::empty() };
            for (i, sge) in noted.list.iter().enumerate() {
                let found = self.of_key(sge.lkey.raw(), sge.addr, sge.len.into(), needs);
                let _ = write!(words, "; entry {i}: {found}");
            }
        }
        if let (WcStatus::RemoteAccess, Some((to, needs))) = (status, noted.op.as_ref().and_then(needs)) {
            // Only where the peer is of this process.
            if lock(&self.regions).contains_key(&to.rkey.raw()) {
                let _ = write!(words, "; {}", self.of_key(to.rkey.raw(), to.addr, bytes, needs));
            }
        }
        words
    }

    /// An error completion.
    #[cold]
    pub(crate) fn completion(&self, adapter: &Adapter, wc: &Completion) {
        let (qpn, code) = (adapter.qpn(wc.qp), wc.vendor_code());
        let what = format!("{:?} {:?} {:?} {code}", wc.qp, wc.status, wc.opcode);
        let local = matches!(wc.status, WcStatus::LocalProtection | WcStatus::LocalAccess);
        let fault = KeyFault::from_code(code).filter(|_| local);
        let (request, wrong) = self.request(wc);
        let fault = fault.map_or(String::new(), |fault| format!(": {fault}"));
        let (wr_id, status, advice) = (wc.wr_id, wc.status, advice(wc.status));
        tell(
            what,
            &format!(
                "queue pair {qpn}: request {wr_id:#x}{request} ended with: {status}{fault}{wrong}; {advice}"
            ),
        );
    }
}

fn name(op: &SendOp) -> &'static str {
    match op {
        SendOp::Send => "a SEND",
        SendOp::SendImm(_) => "a SEND with immediate data",
        SendOp::SendInv(_) => "a SEND with invalidate",
        SendOp::Write(_) => "an RDMA WRITE",
        SendOp::WriteImm(..) => "an RDMA WRITE with immediate data",
        SendOp::Read(_) => "an RDMA READ",
        SendOp::CompareSwap { .. } => "a compare and swap",
        SendOp::FetchAdd { .. } => "a fetch and add",
        SendOp::AtomicWrite { .. } => "an ATOMIC WRITE",
        SendOp::Flush { .. } => "a FLUSH",
        SendOp::BindMw { .. } => "a bind of a memory window",
        SendOp::LocalInv(_) => "the return of a window's key",
    }
}
/// The target of an operation, and the right that it needs there.
fn needs(op: &SendOp) -> Option<(RemoteAddr, Access)> {
    match *op {
        SendOp::Write(to) | SendOp::WriteImm(to, _) | SendOp::AtomicWrite { remote: to, .. } => {
            Some((to, Access::REMOTE_WRITE))
        }
        SendOp::Read(to) => Some((to, Access::REMOTE_READ)),
        SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
            Some((remote, Access::REMOTE_ATOMIC))
        }
        SendOp::Flush { remote, .. } => Some((remote, Access::FLUSH_GLOBAL)),
        _ => None,
    }
}

/// Advice about a status.
fn advice(status: WcStatus) -> &'static str {
    use WcStatus as S;
    match status {
        S::LocalLength => {
            "post receive requests with as much room as the longest message (on UD 40 bytes more)"
        }
        S::LocalProtection | S::LocalAccess => {
            "compare the entries with ibv_reg_mr: address, length, key, rights, domain"
        }
        S::WrFlushed => {
            "see the queue pair's first error, or the change to the error state; then RESET, INIT, RTR, RTS"
        }
        S::MwBind => {
            "the region needs IBV_ACCESS_MW_BIND, the range has to be inside, the window of type 2 not bound"
        }
        S::RemoteInvalidRequest => {
            "the peer's receive request is too short, or its queue pair takes fewer READs at a time (max_dest_rd_atomic)"
        }
        S::RemoteAccess => {
            "compare address and key with those that the peer sent, and the rights with its ibv_reg_mr and qp_access_flags"
        }
        S::RemoteOperation => {
            "see the peer: its queue pair went to the error state, or its receive request was refused"
        }
        S::RetryExceeded => {
            "is the peer's queue pair in RTR or RTS, and are dest_qp_num, dgid, PSNs and the network those that both use?"
        }
        S::RnrRetryExceeded => "the peer posts too few receive requests; an rnr_retry of 7 waits without end",
        S::Fatal => "the device has failed: close it, and open it again",
        _ => "both ends have to agree about the service, the PSNs and the queue pairs' numbers",
    }
}

/// An asynchronous event.
#[cold]
pub(crate) fn event(adapter: &Adapter, event: AsyncEvent) {
    if !enabled() {
        return;
    }
    let what = match event.object() {
        EventObject::Qp(qp) => format!("queue pair {}", adapter.qpn(qp)),
        EventObject::Cq(cq) => format!("completion queue {}", cq.index),
        EventObject::Srq(srq) => format!("shared receive queue {}", srq.index),
        EventObject::Port => "port 1".to_owned(),
        _ => "the device".to_owned(),
    };
    let words = match event {
        AsyncEvent::CqOverrun(_) => {
            "it overflowed, and completions are lost: create it with more entries, or poll sooner"
        }
        AsyncEvent::QpFatal(_) => "an error that no request can report; it is in the error state",
        AsyncEvent::QpRequestError(_) => {
            "the peer sent a request that the service does not have; it is in the error state"
        }
        AsyncEvent::QpAccessError(qp) => return access_error(adapter, qp, &what),
        AsyncEvent::PortError => "it carries no packets: see the network interface",
        AsyncEvent::PortAddressChanged => "its address has changed: peers need the new one",
        AsyncEvent::DeviceFatal => "it is unusable: close it, and open it again",
        // No errors: the program asked for them, or they come with each connection.
        _ => return,
    };
    tell(format!("{event:?}"), &format!("{what}: {words}"));
}
/// The refusal of a peer's access, with the reasons that the queue pair has counted.
fn access_error(adapter: &Adapter, qp: QpHandle, what: &str) {
    let reasons = [
        ("rx_refused_unknown_key", KeyFault::Unknown),
        ("rx_refused_freed_key", KeyFault::Freed),
        ("rx_refused_other_pd", KeyFault::OtherPd),
        ("rx_refused_range", KeyFault::Range),
        ("rx_refused_right", KeyFault::Right),
    ];
    let device = adapter.device();
    // Where nothing is counted by queue pair, the adapter's sums name the reason.
    let counters = device
        .qp_counters(qp)
        .ok()
        .filter(|of_qp| reasons.iter().any(|(name, _)| of_qp.iter().any(|c| c.name == *name)));
    let counters = counters.unwrap_or_else(|| device.counters());
    let counted = |name: &str| counters.iter().any(|counter| counter.name == name && counter.value > 0);
    let why = reasons
        .iter()
        .filter(|(name, _)| counted(name))
        .map(|(_, fault)| fault.to_string())
        .collect::<Vec<_>>();
    let why = if why.is_empty() {
        "the queue pair's qp_access_flags lack the right".to_owned()
    } else {
        why.join("; or ")
    };
    tell(
        format!("access {qp:?}"),
        &format!(
            "{what}: a peer's access was refused: {why}; it is in the error state. Compare with ibv_reg_mr here and the address and key that the peer uses"
        ),
    );
}

/// The reason of a refused request that no device saw.
pub(crate) fn of_errno(error: Errno) -> &'static str {
    match error.0 {
        libc::EOPNOTSUPP => "an operation that the queue pair was not created with",
        _ => {
            "a wrong argument: an unknown opcode or flag, a list or address handle that is null, or too many inline bytes"
        }
    }
}
