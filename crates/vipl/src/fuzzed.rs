//! The fuzz target `vipl_calls`: its input is a sequence of calls of a C program. Handles are those of objects that are
//! there, of objects that are gone, and made up; pointers are null, or point anywhere into the program's memory; memory
//! handles, descriptors, lengths and numbers are any. The corpus runs through it in `cargo test` too.
//!
//! No call panics, hangs, or returns a number that the header does not have. What the program holds at its end can be
//! taken down, and the adapters close.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::abi::{CErrorDescriptor, host_bytes};
use crate::border::{Context, Ptr};
use crate::connect::*;
use crate::cq::*;
use crate::memory::*;
use crate::names::*;
use crate::nic::*;
use crate::queue::*;
use crate::table::Handle;
use crate::vi::*;

/// Calls of one input at most.
const MAX_CALLS: usize = 200;
/// Bytes of the memory that the program registers, and of that for arguments.
const DATA: usize = 16 << 10;
const ARGS: usize = 4 << 10;
/// The most bytes that a call reads or writes behind a pointer to arguments.
const BEHIND: usize = 256;
/// The largest return code.
const LAST_CODE: u32 = 14;
/// Milliseconds that the two VIs of the beginning have to connect.
const CONNECT_MS: u64 = 20_000;

/// How long what is disconnected may keep descriptors.
const PATIENCE: Duration = Duration::from_secs(20);

const NULL: usize = 0;
const SUCCESS: u32 = 0;

/// Bytes of the input; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }
    fn wide(&mut self) -> u64 {
        let bytes = [(); 8].map(|()| self.byte());
        u64::from_le_bytes(bytes)
    }
    /// A number: often small, now and then any.
    fn number(&mut self) -> u64 {
        if self.byte() < 200 { self.byte().into() } else { self.wide() }
    }
}

/// What a handle names.
#[derive(Clone, Copy)]
enum Kind {
    Nic,
    Tag,
    Vi,
    Cq,
    Request,
}
const KINDS: usize = 5;

/// A C program.
struct Program {
    data: Vec<[u64; 8]>,
    args: Vec<[u64; 8]>,
    /// Handles that calls have given, by what they name.
    handles: [Vec<usize>; KINDS],
    memory: Vec<u32>,
}

extern "C" fn on_descriptor(_: Context, _: Handle, _: Handle, _: u64) {
    CALLBACKS.fetch_add(1, Ordering::Relaxed);
}
extern "C" fn on_entry(_: Context, _: Handle, _: Handle, _: i32) {
    CALLBACKS.fetch_add(1, Ordering::Relaxed);
}
extern "C" fn on_error(_: Context, _: &mut CErrorDescriptor) {
    CALLBACKS.fetch_add(1, Ordering::Relaxed);
}
static CALLBACKS: AtomicU32 = AtomicU32::new(0);

impl Program {
    fn new() -> Self {
        let memory = |bytes: usize| vec![[0_u64; 8]; bytes / 64];
        let (data, args) = (memory(DATA), memory(ARGS + BEHIND));
        Self { data, args, handles: Default::default(), memory: Vec::new() }
    }
    fn data_at(&self) -> usize {
        self.data.as_ptr() as usize
    }
    fn args_at(&self) -> usize {
        self.args.as_ptr() as usize
    }
    /// A pointer to arguments, aligned or not, or null.
    fn arg(&self, input: &mut Input<'_>) -> usize {
        match input.byte() {
            0..8 => NULL,
            at @ 8..240 => self.args_at() + usize::from(at % 16) * 64,
            at => self.args_at() + usize::from(at) * 15,
        }
    }
    /// A handle, most often one of this kind.
    fn handle(&self, kind: Kind, input: &mut Input<'_>) -> Handle {
        let byte = input.byte();
        let of = &self.handles[if byte < 16 { usize::from(byte) % KINDS } else { kind as usize }];
        let raw = match byte {
            _ if of.is_empty() => 0,
            16..20 => 0,
            20..24 => input.wide() as usize,
            n => of[usize::from(n / 8) % of.len()],
        };
        Handle::of(raw)
    }
    fn memory_handle(&self, input: &mut Input<'_>) -> u32 {
        match (input.byte(), self.memory.len()) {
            (0..16, _) | (_, 0) => input.wide() as u32,
            (n, len) => self.memory[usize::from(n) % len],
        }
    }
    /// An address: often one of the registered memory.
    fn address(&self, input: &mut Input<'_>) -> u64 {
        match input.byte() {
            0..8 => input.wide(),
            8..12 => 0,
            n => (self.data_at() + usize::from(n) * 64) as u64 + if input.below(8) == 0 { 8 } else { 0 },
        }
    }
    /// The program writes arguments, of the lengths and numbers that most calls take.
    fn write_args(&mut self, input: &mut Input<'_>) {
        let handle = self.handle(Kind::Tag, input).raw() as u64;
        let words = [
            // VIP_VI_ATTRIBUTES: a level, a transfer size, no QOS, a tag, rights.
            [
                1 << input.below(4),
                input.number() << 4,
                u64::from(input.byte() > 240),
                handle,
                1 | 1 << 32,
                0,
                0,
                0,
            ],
            // VIP_MEM_ATTRIBUTES.
            [handle, input.wide(), input.number(), 0, 0, 0, 0, 0],
            // VIP_NET_ADDRESS: 127.x with a discriminator.
            [4 | input.number() << 16, input.wide(), input.wide(), 0, 0, 0, 0, 0],
            [input.wide(), input.wide(), input.wide(), input.wide(), 0, 0, 0, 0],
        ];
        let at = input.below(16);
        self.args[at] = words[input.below(words.len())];
    }
    /// The program writes a descriptor, most of whose fields make sense.
    fn write_descriptor(&mut self, input: &mut Input<'_>) {
        let segments = input.below(5) as u64;
        let control = u64::from(input.byte() & 15);
        let (odd, far) = (input.byte() > 240, input.byte() > 240);
        let reserved = if odd { input.wide() } else { 0 };
        let head = [
            if far { input.wide() } else { 0 },
            u64::from(self.memory_handle(input)) | segments << 32 | control << 48,
            reserved & 0xffff_ffff | u64::from(input.byte()) << 32,
            input.number() & 0xffff_ffff,
        ];
        let segment = |input: &mut Input<'_>| {
            let (addr, handle, len) = (self.address(input), self.memory_handle(input), input.number());
            [addr, u64::from(handle) | len << 32]
        };
        let [[a, b], [c, d]] = [segment(input), segment(input)];
        let at = input.below(self.data.len());
        self.data[at] = [head[0], head[1], head[2], head[3], a, b, c, d];
    }
    fn read_arg(&self) -> usize {
        self.args[0][0] as usize
    }
    /// Notes what a call has written to the beginning of the arguments.
    fn made(&mut self, code: u32, kind: Kind) -> u32 {
        if code == SUCCESS {
            let made = self.read_arg();
            self.handles[kind as usize].push(made);
        }
        code
    }

    /// Opens an adapter.
    fn open(&mut self, url: &str) -> u32 {
        let name = std::ffi::CString::new(url).expect("no zero");
        let code = VipOpenNic(Ptr::of(name.as_ptr() as usize), Ptr::of(self.args_at()));
        self.made(code, Kind::Nic)
    }

    /// One call; returns its code.
    fn call(&mut self, input: &mut Input<'_>) -> u32 {
        let out = self.args_at();
        let which = input.byte();
        match which % 44 {
            0 => VipQueryNic(self.handle(Kind::Nic, input), Ptr::of(self.arg(input))),
            1 => VipQueryVi(
                self.handle(Kind::Vi, input),
                Ptr::of(self.arg(input)),
                Ptr::of(self.arg(input)),
                Ptr::of(self.arg(input)),
                Ptr::of(self.arg(input)),
            ),
            2 => {
                let code = VipCreatePtag(self.handle(Kind::Nic, input), Ptr::of(out));
                self.made(code, Kind::Tag)
            }
            3 => VipDestroyPtag(self.handle(Kind::Nic, input), self.handle(Kind::Tag, input)),
            4 => {
                let (nic, attributes) = (self.handle(Kind::Nic, input), self.arg(input));
                let (send, recv) = (self.handle(Kind::Cq, input), self.handle(Kind::Cq, input));
                let code = VipCreateVi(nic, Ptr::of(attributes), send, recv, Ptr::of(out));
                self.made(code, Kind::Vi)
            }
            5 => VipDestroyVi(self.handle(Kind::Vi, input)),
            6 => VipSetViAttributes(self.handle(Kind::Vi, input), Ptr::of(self.arg(input))),
            7 => {
                let code = VipCreateCQ(self.handle(Kind::Nic, input), input.number(), Ptr::of(out));
                self.made(code, Kind::Cq)
            }
            8 => VipDestroyCQ(self.handle(Kind::Cq, input)),
            9 => VipResizeCQ(self.handle(Kind::Cq, input), input.number()),
            10 => {
                let (nic, at, attributes) =
                    (self.handle(Kind::Nic, input), input.below(DATA / 64) * 64, self.arg(input));
                let addr = if input.byte() < 4 { NULL } else { self.data_at() + at };
                let len = (input.number() as usize).saturating_mul(64).min(DATA - at);
                let code = VipRegisterMem(nic, Ptr::of(addr), len as u64, Ptr::of(attributes), Ptr::of(out));
                if code == SUCCESS {
                    self.memory.push(self.read_arg() as u32);
                }
                code
            }
            11 => VipDeregisterMem(
                self.handle(Kind::Nic, input),
                Ptr::of(self.address(input) as usize),
                self.memory_handle(input),
            ),
            12 => VipSetMemAttributes(
                self.handle(Kind::Nic, input),
                Ptr::of(self.address(input) as usize),
                self.memory_handle(input),
                Ptr::of(self.arg(input)),
            ),
            13 => VipQueryMem(
                self.handle(Kind::Nic, input),
                Ptr::of(self.address(input) as usize),
                self.memory_handle(input),
                Ptr::of(self.arg(input)),
            ),
            14 => VipSendDone(self.handle(Kind::Vi, input), Ptr::of(self.arg(input))),
            15 => VipRecvDone(self.handle(Kind::Vi, input), Ptr::of(self.arg(input))),
            16 => VipSendWait(
                self.handle(Kind::Vi, input),
                u64::from(input.byte() & 1),
                Ptr::of(self.arg(input)),
            ),
            17 => VipRecvWait(
                self.handle(Kind::Vi, input),
                u64::from(input.byte() & 1),
                Ptr::of(self.arg(input)),
            ),
            18 => VipSendNotify(
                self.handle(Kind::Vi, input),
                Context(0),
                (input.byte() > 9).then_some(on_descriptor),
            ),
            19 => VipRecvNotify(
                self.handle(Kind::Vi, input),
                Context(0),
                (input.byte() > 9).then_some(on_descriptor),
            ),
            20 => VipCQDone(self.handle(Kind::Cq, input), Ptr::of(self.arg(input)), Ptr::of(self.arg(input))),
            21 => VipCQWait(
                self.handle(Kind::Cq, input),
                u64::from(input.byte() & 1),
                Ptr::of(self.arg(input)),
                Ptr::of(self.arg(input)),
            ),
            22 => {
                VipCQNotify(self.handle(Kind::Cq, input), Context(0), (input.byte() > 9).then_some(on_entry))
            }
            23 => VipErrorCallback(
                self.handle(Kind::Nic, input),
                Context(0),
                (input.byte() > 9).then_some(on_error),
            ),
            24 => {
                let (nic, local, remote, attributes) =
                    (self.handle(Kind::Nic, input), self.arg(input), self.arg(input), self.arg(input));
                let wait = u64::from(input.byte() & 1);
                let code = VipConnectWait(
                    nic,
                    Ptr::of(local),
                    wait,
                    Ptr::of(remote),
                    Ptr::of(attributes),
                    Ptr::of(out),
                );
                self.made(code, Kind::Request)
            }
            25 => VipConnectAccept(self.handle(Kind::Request, input), self.handle(Kind::Vi, input)),
            26 => VipConnectReject(self.handle(Kind::Request, input)),
            27 => VipConnectRequest(
                self.handle(Kind::Vi, input),
                Ptr::of(self.arg(input)),
                Ptr::of(self.arg(input)),
                u64::from(input.byte() & 1),
                Ptr::of(self.arg(input)),
            ),
            28 => VipDisconnect(self.handle(Kind::Vi, input)),
            29 => VipConnectPeerRequest(
                self.handle(Kind::Vi, input),
                Ptr::of(self.arg(input)),
                Ptr::of(self.arg(input)),
                u64::from(input.byte() & 1),
            ),
            30 => VipConnectPeerDone(self.handle(Kind::Vi, input), Ptr::of(self.arg(input))),
            31 => VipNSInit(self.handle(Kind::Nic, input), Context(0)),
            32 => {
                // No name that a resolver would ask others for.
                let name = [&b"localhost\0"[..], b"\xff\0", b"127.0.0.1\0"][input.below(3)];
                VipNSGetHostByName(
                    self.handle(Kind::Nic, input),
                    Ptr::of(name.as_ptr() as usize),
                    Ptr::of(self.arg(input)),
                    input.number(),
                )
            }
            33 => VipNSShutdown(self.handle(Kind::Nic, input)),
            34 => VipQuerySystemManagementInfo(self.handle(Kind::Nic, input), input.number(), Ptr::of(NULL)),
            35 => VipCloseNic(self.handle(Kind::Nic, input)),
            36 => VipPostRecv(self.handle(Kind::Vi, input), self.address(input), self.memory_handle(input)),
            37..40 => {
                VipPostSend(self.handle(Kind::Vi, input), self.address(input), self.memory_handle(input))
            }
            40 => {
                self.write_args(input);
                SUCCESS
            }
            _ => {
                self.write_descriptor(input);
                SUCCESS
            }
        }
    }

    /// Two adapters, each with a tag, all data registered, a completion queue and a VI; the VIs are connected.
    fn begin(&mut self) {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let url = format!("shm://vipl-{}-{}", std::process::id(), NTH.fetch_add(1, Ordering::Relaxed));
        for side in 0..2 {
            assert_eq!(self.open(&url), SUCCESS, "adapter {side}");
        }
        let mut ends = Vec::new();
        for nic in [0, 1].map(|side| Handle::of(self.handles[Kind::Nic as usize][side])) {
            let out = Ptr::of(self.args_at());
            assert_eq!(VipCreatePtag(nic, Ptr::of(self.args_at())), SUCCESS);
            self.made(SUCCESS, Kind::Tag);
            let tag = self.read_arg() as u64;
            let attributes = self.args_at() + 64;
            self.args[1] = [tag, 1 | 1 << 32, 0, 0, 0, 0, 0, 0];
            let registered = VipRegisterMem(
                nic,
                Ptr::of(self.data_at()),
                DATA as u64,
                Ptr::of(attributes),
                Ptr::of(self.args_at()),
            );
            assert_eq!(registered, SUCCESS);
            self.memory.push(self.read_arg() as u32);
            assert_eq!(VipCreateCQ(nic, 64, out), SUCCESS);
            self.made(SUCCESS, Kind::Cq);
            let cq = Handle::of(self.read_arg());
            self.args[1] = [2, 4096, 0, tag, 1 | 1 << 32, 0, 0, 0];
            assert_eq!(
                VipCreateVi(nic, Ptr::of(attributes), Handle::NONE, cq, Ptr::of(self.args_at())),
                SUCCESS
            );
            self.made(SUCCESS, Kind::Vi);
            let host = NICS.get(nic).map(|adapter| host_bytes(adapter.nic.attributes().host));
            ends.push((Handle::of(self.read_arg()), host.expect("an adapter")));
        }
        self.connect(&ends);
    }
    /// Connects two VIs as peers.
    fn connect(&mut self, ends: &[(Handle, Vec<u8>)]) {
        let line = |host: &[u8], discriminator: u8| {
            let mut bytes = [0; 64];
            (bytes[0], bytes[2]) = (host.len() as u8, 1);
            bytes[4..4 + host.len()].copy_from_slice(host);
            bytes[4 + host.len()] = discriminator;
            std::array::from_fn(|n| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * n + byte])))
        };
        for (side, (vi, host)) in ends.iter().enumerate() {
            (self.args[4], self.args[5]) = (line(host, side as u8), line(&ends[1 - side].1, 1 - side as u8));
            let [local, remote] = [4, 5].map(|n| Ptr::of(self.args_at() + 64 * n));
            assert_eq!(VipConnectPeerRequest(*vi, local, remote, CONNECT_MS), SUCCESS);
        }
        for (vi, _) in ends {
            assert_eq!(VipConnectPeerWait(*vi, Ptr::of(self.args_at())), SUCCESS);
        }
    }

    fn all(&self, kind: Kind) -> Vec<Handle> {
        self.handles[kind as usize].iter().map(|&raw| Handle::of(raw)).collect()
    }
    /// Takes everything down.
    fn end(&self) {
        for request in self.all(Kind::Request) {
            VipConnectReject(request);
        }
        for vi in self.all(Kind::Vi) {
            VipDisconnect(vi);
            // What is on the queues comes off them.
            let begun = Instant::now();
            while VIS.get(vi).is_ok() && VipDestroyVi(vi) != SUCCESS {
                assert!(begun.elapsed() < PATIENCE, "a disconnected VI keeps descriptors");
                for done in [VipSendDone, VipRecvDone] {
                    done(vi, Ptr::of(self.args_at()));
                }
            }
        }
        for cq in self.all(Kind::Cq) {
            VipDestroyCQ(cq);
        }
        for nic in self.all(Kind::Nic).into_iter().filter(|nic| NICS.get(*nic).is_ok()) {
            let lines = self.memory.iter().flat_map(|memory| (0..DATA / 64).map(move |line| (memory, line)));
            for (&memory, line) in lines {
                VipDeregisterMem(nic, Ptr::of(self.data_at() + 64 * line), memory);
            }
            for tag in self.all(Kind::Tag) {
                VipDestroyPtag(nic, tag);
            }
            assert_eq!(VipCloseNic(nic), SUCCESS, "something is left of the adapter");
        }
    }
}

/// The calls of an input.
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "the fuzz target calls it"))]
pub fn calls(data: &[u8]) {
    let (mut input, mut program) = (Input(data), Program::new());
    program.begin();
    for _ in 0..MAX_CALLS {
        if input.0.is_empty() {
            break;
        }
        let code = program.call(&mut input);
        assert!(code <= LAST_CODE, "code {code}");
    }
    program.end();
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_calls_passes() {
        test_support::corpus::run("vipl_calls", 3, super::calls);
    }

    #[test]
    fn calls_at_random_pass() {
        let mut rng = test_support::random::Rng::new(1);
        let inputs = std::env::var("HCA_CALLS_INPUTS").map_or(20, |n| n.parse().expect("a number"));
        for _ in 0..inputs {
            let len = rng.below(1500);
            super::calls(&rng.bytes(len));
        }
    }
}
