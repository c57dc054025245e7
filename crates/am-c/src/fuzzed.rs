//! The fuzz target `am_calls`: its input is a sequence of calls of a C program, and of calls that its handlers make.
//! Handles and tokens are those of objects that are there, of objects that are gone, and made up; pointers are null, or
//! point anywhere into the program's memory; indices, handlers, lengths and numbers are any. The corpus runs through it
//! in `cargo test` too.
//!
//! No call panics, hangs, or returns a number that the header does not have. At the end all can be taken down.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::border::{Handler, Ptr};
use crate::endpoint::*;
use crate::message::*;

/// Calls of one input at most.
const MAX_CALLS: usize = 200;
/// Bytes of the program's memory, and the most that a call reads or writes behind a pointer to it.
const MEMORY: usize = 8 << 10;
const BEHIND: usize = 4 << 10;
/// The largest return code.
const LAST_CODE: i32 = 5;
const SUCCESS: i32 = 0;
const NULL: usize = 0;
/// Bytes of a segment.
const SEGMENT: usize = 4096;

/// Bytes of the input; zeros behind its end.
#[derive(Default)]
struct Input(Vec<u8>);

impl Input {
    fn byte(&mut self) -> u8 {
        self.0.pop().unwrap_or(0)
    }
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }
    fn wide(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.byte()))
    }
    /// A number: most often small, now and then any.
    fn number(&mut self) -> u64 {
        if self.byte() < 220 { self.below(8) as u64 } else { self.wide() }
    }
    fn int(&mut self) -> c_int {
        self.number() as c_int
    }
    /// A length that the program's memory has behind each pointer, and that a message may have or not.
    fn len(&mut self) -> usize {
        self.below(64) * self.below(BEHIND / 64)
    }
    fn one_of(&mut self, all: &[usize]) -> usize {
        match (self.byte(), all.len()) {
            (0..8, _) | (_, 0) => 0,
            (8..16, _) => self.wide() as usize,
            (n, len) => all[usize::from(n / 8) % len],
        }
    }
}

/// A C program.
#[derive(Default)]
struct Program {
    input: Input,
    memory: Vec<u64>,
    bundles: Vec<usize>,
    endpoints: Vec<usize>,
    names: Vec<CName>,
    /// The token of the last handler that ran.
    token: usize,
    /// Handlers within handlers.
    depth: usize,
}

thread_local! {
    static PROGRAM: RefCell<Program> = RefCell::default();
}

/// Uses the program, which no call holds while it runs.
fn program<T>(f: impl FnOnce(&mut Program) -> T) -> T {
    PROGRAM.with_borrow_mut(f)
}
fn checked(code: i32) -> i32 {
    assert!((0..=LAST_CODE).contains(&code), "code {code}");
    code
}

/// A handler, which replies or not, twice, or makes calls that handlers must not make.
extern "C" fn on_message(token: usize) {
    let calls = program(|p| {
        (p.token, p.depth) = (token, p.depth + 1);
        if p.depth > 2 { 0 } else { p.input.below(4) }
    });
    for _ in 0..calls {
        within(token);
    }
    program(|p| p.depth -= 1);
}
extern "C" fn on_return(_: c_int, _: c_int, _: usize) {
    RETURNS.fetch_add(1, Ordering::Relaxed);
}
static RETURNS: AtomicU32 = AtomicU32::new(0);

fn handler_of(function: extern "C" fn(usize)) -> Handler {
    // SAFETY: a function without parameters is the header's name for one of any; libam calls it with a token first, and
    // by the C calling convention a function may leave further arguments unread.
    unsafe { std::mem::transmute(function) }
}

/// A call of a handler.
fn within(token: usize) {
    let (which, to, count, bytes, offset) =
        program(|p| (p.input.byte(), p.input.int(), p.input.int(), p.input.len(), p.input.number() as usize));
    let (args, data) = program(|p| (p.pointer(), p.pointer()));
    let code = match which % 8 {
        0 | 1 => AM_Reply(token, to, count, Ptr::of(args)),
        2 => AM_ReplyI(token, to, Ptr::of(data), bytes, count, Ptr::of(args)),
        3 => AM_ReplyXfer(token, offset, to, Ptr::of(data), bytes, count, Ptr::of(args)),
        4 => AM_GetSourceEndpoint(token, Ptr::of(data)),
        5 => AM_GetDestEndpoint(token, Ptr::of(data)),
        6 => AM_GetMsgTag(token, Ptr::of(data)),
        _ => call(),
    };
    checked(code);
}

impl Program {
    fn memory_at(&self) -> usize {
        self.memory.as_ptr() as usize
    }
    /// A pointer to the program's memory, aligned or not, or null.
    fn pointer(&mut self) -> usize {
        match self.input.byte() {
            0..8 => NULL,
            at => self.memory_at() + usize::from(at) * 15,
        }
    }
    fn endpoint(&mut self) -> usize {
        let Self { input, endpoints, .. } = self;
        input.one_of(endpoints)
    }
    fn bundle(&mut self) -> usize {
        let Self { input, bundles, .. } = self;
        input.one_of(bundles)
    }
    fn name(&mut self) -> NameArg {
        let text = match (self.input.byte(), self.names.len()) {
            (0..16, _) | (_, 0) => [self.input.byte(); 64],
            (n, len) => self.names[usize::from(n / 16) % len],
        };
        NameArg { text }
    }
    fn word(&self) -> usize {
        self.memory[0] as usize
    }
}

/// One call; returns its code.
fn call() -> i32 {
    let out = program(|p| p.memory_at());
    let (which, ep, bundle, at, to) =
        program(|p| (p.input.byte(), p.endpoint(), p.bundle(), p.input.int(), p.input.int()));
    let (count, bytes, number) = program(|p| (p.input.int(), p.input.len(), p.input.number()));
    let (args, data) = program(|p| (p.pointer(), p.pointer()));
    let code = match which % 36 {
        0 => {
            let code = AM_AllocateBundle(if count == 2 { 3 } else { count }, Ptr::of(out));
            program(|p| {
                if code == SUCCESS {
                    p.bundles.push(p.word());
                }
            });
            code
        }
        1 => AM_FreeBundle(if number == 3 { bundle } else { 0 }),
        2 => allocate(bundle),
        3 => AM_FreeEndpoint(ep),
        4 => AM_MoveEndpoint(ep, bundle, program(Program::bundle)),
        5 => AM_SetSeg(ep, Ptr::of(if number == 3 { data } else { NULL }), bytes),
        6 => AM_GetSeg(ep, Ptr::of(args), Ptr::of(data)),
        7 => AM_MaxSegLength(Ptr::of(data)),
        8 => AM_SetTag(ep, number),
        9 => AM_GetTag(ep, Ptr::of(data)),
        10 => AM_Map(ep, at, program(Program::name), number),
        11 => AM_MapAny(ep, Ptr::of(data), program(Program::name), number),
        12 => AM_UnMap(ep, at),
        13 => AM_GetTranslationInuse(ep, at),
        14 => AM_GetTranslationTag(ep, at, Ptr::of(data)),
        15 => AM_GetTranslationName(ep, at, Ptr::of(data)),
        16 => AM_GetNumTranslations(ep, Ptr::of(data)),
        17 if number == 5 => AM_MaxNumTranslations(Ptr::of(data)),
        17 => AM_SetNumTranslations(ep, count),
        18 => AM_SetExpectedResources(ep, at, count),
        19 => AM_SetHandler(ep, to, (number != 3).then_some(handler_of(on_message))),
        20 if number == 5 => AM_GetNumHandlers(ep, Ptr::of(data)),
        20 => AM_SetHandlerAny(ep, Ptr::of(data), (number != 3).then_some(handler_of(on_message))),
        21 => AM_GetEventMask(ep, Ptr::of(data)),
        22 => AM_SetEventMask(ep, at),
        23 => AM_Init(),
        // The last one is the program's own at its end.
        24 => {
            if number == 3 && AM_Init() == SUCCESS {
                AM_Terminate()
            } else {
                SUCCESS
            }
        }
        25..30 => AM_Request(ep, at, to, count, Ptr::of(args)),
        30..32 => AM_RequestI(ep, at, to, Ptr::of(data), bytes, count, Ptr::of(args)),
        32 => AM_RequestXfer(ep, at, number as usize, to, Ptr::of(data), bytes, count, Ptr::of(args)),
        33 => AM_RequestXferAsync(ep, at, number as usize, to, Ptr::of(data), bytes, count, Ptr::of(args)),
        34 => AM_Reply(program(|p| p.token), to, count, Ptr::of(args)),
        _ => AM_WaitSema(if program(|p| p.bundles.contains(&bundle)) { NULL } else { bundle }),
    };
    if which % 36 == 23 && code == SUCCESS {
        checked(AM_Terminate());
    }
    checked(code)
}

/// Allocates an endpoint with a segment and handlers.
fn allocate(bundle: usize) -> i32 {
    let out = program(|p| p.memory_at());
    let code = AM_AllocateEndpoint(bundle, Ptr::of(out), Ptr::of(out + 64));
    if code == SUCCESS {
        let ep = program(|p| {
            let ep = p.word();
            p.endpoints.push(ep);
            let name = std::array::from_fn(|n| p.memory[8 + n / 8].to_ne_bytes()[n % 8]);
            p.names.push(name);
            ep
        });
        checked(AM_SetSeg(ep, Ptr::of(NULL), SEGMENT));
        for number in 1..6 {
            checked(AM_SetHandler(ep, number, Some(handler_of(on_message))));
        }
        // SAFETY: handler 0 has three arguments, of the sizes of `on_return`'s.
        let returned =
            unsafe { std::mem::transmute::<extern "C" fn(c_int, c_int, usize), Handler>(on_return) };
        checked(AM_SetHandler(ep, 0, Some(returned)));
    }
    code
}

/// Polls all bundles, so that no request waits for one.
fn poll() {
    for bundle in program(|p| p.bundles.clone()) {
        checked(AM_Poll(bundle));
    }
}

/// The calls of an input.
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "the fuzz target calls it"))]
pub fn calls(data: &[u8]) {
    // The library has one device, and so its calls one program.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (way, input) = data.split_first().map_or((0, data), |(first, rest)| (first & 1, rest));
    let input = Input(input.iter().rev().copied().collect());
    program(|p| *p = Program { memory: vec![1; (MEMORY + BEHIND) / 8], ..Program::default() });
    static NTH: AtomicU32 = AtomicU32::new(0);
    let url = format!("shm://am-{}-{}\0", std::process::id(), NTH.fetch_add(1, Ordering::Relaxed));
    checked(AM_SetDevice(Ptr::of(url.as_ptr() as usize), way.into()));
    assert_eq!(AM_Init(), SUCCESS);
    let out = program(|p| p.memory_at());
    for kind in 0..2 {
        assert_eq!(AM_AllocateBundle(kind, Ptr::of(out)), SUCCESS);
        let bundle = program(|p| {
            p.bundles.push(p.word());
            p.word()
        });
        assert_eq!(allocate(bundle), SUCCESS);
    }
    let (endpoints, names) = program(|p| (p.endpoints.clone(), p.names.clone()));
    for (ep, text) in endpoints.iter().zip(names.iter().rev()) {
        assert_eq!(AM_Map(*ep, 0, NameArg { text: *text }, 0), SUCCESS);
    }
    program(|p| p.input = input);
    for _ in 0..MAX_CALLS {
        if program(|p| p.input.0.is_empty()) {
            break;
        }
        call();
        poll();
    }
    poll();
    assert_eq!(AM_Terminate(), SUCCESS);
    assert_eq!(AM_Terminate(), 1, "it was the last");
    program(|p| *p = Program::default());
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_calls_passes() {
        test_support::corpus::run("am_calls", 3, super::calls);
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
