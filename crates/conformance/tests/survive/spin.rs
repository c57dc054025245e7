//! A program that spins on its own memory and calls nothing.

use hca_core::Access;
use hca_fabric::{ShmFabric, ShmOptions, max_process_write};
use hca_verbs::{Completions, ConnectOptions, Context, Inline, Rc, SendRequest};
use softhca::{Options, Progress, SoftHca};

use crate::domain;
use crate::own::Own;
use hca_conformance::Ran;

/// The program's memory is written while its adapter sleeps, and nobody is woken for that.
#[test]
fn memory_of_a_program_that_calls_nothing_is_written_without_a_wake_up() {
    if max_process_write() == 0 {
        return eprintln!("skipped: needs restartable sequences (rseq) of the C library");
    }
    let domain = domain();
    let open = |progress| {
        let fabric = ShmFabric::open(&domain, &ShmOptions::default()).unwrap();
        Context::new(SoftHca::open(Box::new(fabric), Options { progress, ..Options::default() }).unwrap())
    };
    let (a, b) = (open(Progress::Inline), open(Progress::Adaptive));
    let queue_pair = |context: &Context| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1024).unwrap());
        let qp = pd.qp::<Rc>(&cq).access(Access::all()).max_inline(8).build().unwrap();
        (pd, cq, qp)
    };
    let ((_, mut cq, mut to_b), (pd, _, to_a)) = (queue_pair(&a), queue_pair(&b));
    let memory = Own::new(4096);
    let target = memory.register(&pd);
    to_b.control().connect(&to_a.endpoint(), &ConnectOptions::default()).unwrap();
    to_a.control().connect(&to_b.endpoint(), &ConnectOptions::default()).unwrap();
    let (remote, mut wcs) = (target.remote(), Completions::with_capacity(16));
    let count = |of: &Context, name| of.counter(name).unwrap();
    let (mut ran, mut value, mut woken) = (Ran::new(), 0_u64, None);
    // The first ones go as messages, until the adapters know each other's memory.
    while count(&a, "process_writes") < 200 {
        value += 1;
        to_b.post_send(SendRequest::write(Inline(&value.to_ne_bytes()), remote)).unwrap();
        while cq.poll(&mut wcs).next().is_none() || target.load_u64(0) != value {
            assert!(ran.tick().as_secs() < 20, "{value} does not arrive");
        }
        if count(&a, "process_writes") == 100 {
            woken = Some(count(&a, "wakeups_sent"));
        }
    }
    // Now and then a timer has its thread awake, and a message comes in between.
    let woken = count(&a, "wakeups_sent") - woken.unwrap();
    assert!(woken < 50, "{woken} wake-ups for 100 writes");
}
