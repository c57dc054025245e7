//! SENDs of 8 bytes between reliable queue pairs, each answered by one.

use std::cell::RefCell;
use std::rc::Rc as Shared;

use hca_sim::Sim;
use hca_verbs::{CompletionQueue, Completions, ConnectOptions, QueuePair, Rc};

use super::{Asks, Ends, WINDOW};

struct End {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    wcs: Completions,
    open: usize,
}

impl End {
    fn send(&mut self) {
        self.qp.send_inline(&[1; 8]).expect("there is room");
    }
    /// Takes what has come, and posts its buffers again.
    fn received(&mut self) -> usize {
        let mut received = 0;
        for wc in self.cq.poll(&mut self.wcs) {
            let mut wc = wc.ok().expect("nothing fails");
            if let Some(buf) = wc.take_buf() {
                self.qp.post_recv(buf).expect("there is room");
                received += 1;
            }
        }
        received
    }
}

impl Asks for End {
    fn ask(&mut self) -> bool {
        let may = self.open < WINDOW;
        if may {
            self.open += 1;
            self.send();
        }
        may
    }
    fn answers(&mut self) -> usize {
        let answers = self.received();
        self.open -= answers;
        answers
    }
}

pub(super) fn open(sim: &Sim) -> Ends {
    let [near, mut far] = [0, 1].map(|_| {
        let context = sim.add_node().context();
        let (pd, cq) = (context.alloc_pd().expect("a domain"), context.create_cq(1024).expect("a queue"));
        let mut qp = pd.qp::<Rc>(&cq).build().expect("a queue pair");
        for buf in pd.alloc_many(2 * WINDOW, 64).expect("memory") {
            qp.post_recv(buf).expect("there is room");
        }
        End { qp, cq, wcs: Completions::default(), open: 0 }
    });
    for (one, other) in [(&near, &far), (&far, &near)] {
        one.qp.connect(&other.qp.endpoint(), &ConnectOptions::default()).expect("they connect");
    }
    let serve = Box::new(move || {
        loop {
            let requests = far.received();
            if requests == 0 {
                break;
            }
            (0..requests).for_each(|_| far.send());
        }
    });
    (Shared::new(RefCell::new(near)), serve)
}
