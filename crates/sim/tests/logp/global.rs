//! Puts of global memory, each answered once it is carried out.

use std::cell::RefCell;
use std::rc::Rc;

use hca_am::Way;
use hca_global::{Joining, Process, Spread};
use hca_sim::Sim;

use super::am::options;
use super::{Asks, Ends, WINDOW};
use crate::name_of;

struct Puts {
    process: Process,
    word: Spread<u64>,
}

impl Asks for Puts {
    fn ask(&mut self) -> bool {
        let may = self.process.is_met(1) && self.process.outstanding() < WINDOW as u64;
        if may {
            let word = self.word.at(1, 0).expect("there are two processes");
            self.process.put(word, 7).expect("the other process is there");
        }
        may
    }
    fn answers(&mut self) -> usize {
        let before = self.process.outstanding();
        self.process.poll().expect("the link is there");
        (before - self.process.outstanding()) as usize
    }
}

pub(super) fn open(sim: &Sim, way: Way) -> Ends {
    let [mut near, mut far] = [0, 1].map(|n| {
        let context = sim.add_node().context();
        Joining::open_by_hand(&context, way, name_of(sim, way, n), &options()).expect("a process")
    });
    let (ours, a) = near.half_link(false).expect("there is room");
    let (theirs, b) = far.half_link(true).expect("there is room");
    near.connect_by_hand(ours, &b, Some((1, name_of(sim, way, 1)))).expect("they connect");
    far.connect_by_hand(theirs, &a, None).expect("they connect");
    let (near, mut far) = (near.join_by_hand(0, 2), far.join_by_hand(1, 2));
    let serve = Box::new(move || while far.poll().expect("the link is there") > 0 {});
    let word = near.word_by_hand();
    (Rc::new(RefCell::new(Puts { process: near, word })), serve)
}
