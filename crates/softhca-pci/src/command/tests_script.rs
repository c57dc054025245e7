//! Deviations of a function that a script causes.

use std::sync::{Arc, Mutex};

use hca_prm::command::hca::*;
use hca_prm::command::resource::{AllocPdIn, AllocPdOut};
use hca_prm::*;

use crate::bed::{Answer, Driver, Server};
use crate::function::PortKind;
use crate::script::{Given, Script, Turn};

/// Does the same with each allocation of a protection domain; all it sees is counted.
#[derive(Debug)]
struct Simple {
    turn: Mutex<Turn>,
    event: Mutex<Option<Eqe>>,
    seen: Mutex<Vec<(u32, u32)>>,
}

impl Script for Simple {
    fn command(&self, given: &Given<'_>) -> Turn {
        if given.opcode() != Opcode::ALLOC_PD {
            return Turn::Run;
        }
        self.seen.lock().unwrap().push((given.slot, given.tries));
        *self.turn.lock().unwrap()
    }
    fn ran(&self, input: &[u8], output: &mut [u8]) {
        if input[..2] == Opcode::QUERY_ISSI.0.to_be_bytes() {
            output[4..8].copy_from_slice(&[1, 2, 3, 4]);
        }
    }
    fn bar_read(&self, offset: u64, bytes: &mut [u8]) {
        if offset == 4 {
            bytes[1] = 99;
        }
    }
    fn config_read(&self, offset: u64, bytes: &mut [u8]) {
        if offset == 0 {
            bytes[0] = 0x86;
        }
    }
    fn event(&self) -> Option<Eqe> {
        self.event.lock().unwrap().take()
    }
}

fn scripted(turn: Turn) -> (Driver, Arc<Simple>) {
    let mut d = Driver::new(&Server::new(), 0, PortKind::InfiniBand);
    let script = Arc::new(Simple { turn: turn.into(), event: Mutex::default(), seen: Mutex::default() });
    d.function.options.script = Some(script.clone());
    d.boot();
    (d, script)
}

#[test]
fn a_command_is_refused_or_not_delivered_as_a_script_says() {
    let (mut d, script) = scripted(Turn::End(CmdStatus::BadSysState, 0x1234));
    let input = *AllocPdIn::new().as_bytes();
    let Answer::Delivered(status, out) = d.give(&input, AllocPdOut::SIZE) else { panic!("it is answered") };
    let head = CmdOut::from_bytes(&out[..CmdOut::SIZE]).unwrap();
    assert_eq!((status, head.get(CmdOut::SYNDROME)), (CmdStatus::BadSysState, 0x1234));
    assert!(out[CmdOut::SIZE..].iter().all(|b| *b == 0), "no number was given");
    *script.turn.lock().unwrap() = Turn::Undelivered(DeliveryStatus::TokErr);
    assert_eq!(d.give(&input, AllocPdOut::SIZE), Answer::Undelivered(DeliveryStatus::TokErr));
    *script.turn.lock().unwrap() = Turn::Run;
    d.command(&AllocPdIn::new()).unwrap();
    let Answer::Delivered(_, out) = d.give(QueryIssiIn::new().as_bytes(), QueryIssiOut::SIZE) else {
        panic!("it is answered")
    };
    assert_eq!(out[4..8], [1, 2, 3, 4], "the script changed what was put out");
    assert_eq!(d.load(4) >> 16 & 0xff, 99, "and what was read");
    let mut vendor = [0; 2];
    d.function.config_read(0, &mut vendor);
    assert_eq!(vendor, [0x86, 0x15]);
}

#[test]
fn a_command_waits_until_a_script_lets_it_run_and_others_run_meanwhile() {
    let (mut d, script) = scripted(Turn::Wait);
    let input = *AllocPdIn::new().as_bytes();
    assert_eq!(d.give(&input, AllocPdOut::SIZE), Answer::Lost);
    assert!(!d.function.look(), "there is nothing to do but wait");
    d.put(3, QueryIssiIn::new().as_bytes(), QueryIssiOut::SIZE);
    d.store(0x18, 1 << 3);
    assert!(matches!(d.answer(3), Answer::Delivered(CmdStatus::Ok, _)));
    *script.turn.lock().unwrap() = Turn::Run;
    assert!(d.function.look());
    assert!(matches!(d.answer(0), Answer::Delivered(CmdStatus::Ok, _)));
    assert_eq!(*script.seen.lock().unwrap(), [(0, 0), (0, 1), (0, 2)]);
    // A reset forgets those that wait.
    *script.turn.lock().unwrap() = Turn::Wait;
    assert_eq!(d.give(&input, AllocPdOut::SIZE), Answer::Lost);
    d.function.reset();
    d.attach();
    assert!(!d.function.look());
    assert_eq!(d.answer(0), Answer::Lost);
}

#[test]
fn a_command_that_is_never_answered_is_asked_about_once() {
    let (mut d, script) = scripted(Turn::Silent);
    assert_eq!(d.give(AllocPdIn::new().as_bytes(), AllocPdOut::SIZE), Answer::Lost);
    assert!(!d.function.look());
    assert_eq!((d.answer(0), script.seen.lock().unwrap().len()), (Answer::Lost, 1));
}

#[test]
fn an_event_that_a_script_makes_up_is_told() {
    let (mut d, script) = scripted(Turn::Run);
    d.uar();
    let mut eq = d.eq(4, 0, &[EventType::PortChange]);
    *script.event.lock().unwrap() = Some(Eqe::of(EventType::PortChange).with(Eqe::EVENT_SUB_TYPE, 1));
    assert!(d.function.look());
    assert_eq!(d.event(&mut eq).unwrap().get(Eqe::EVENT_SUB_TYPE), 1);
    assert!(!d.function.look());
}
