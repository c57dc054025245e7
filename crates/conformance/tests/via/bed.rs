//! Adapters and connected VIs to test on.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hca_conformance::{Bed as _, Pause};
use hca_verbs::Context;
use hca_via::{
    AsyncError, Descriptor, Discriminator, Done, Error, MemAttributes, Memory, NetAddress, Nic, Ptag,
    Reliability, Request, ReturnCode, Segment, Status, Vi, ViAttributes,
};
use softhca::Progress;

use crate::beds::{Net, SoftBed};

/// How long what has to come may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const LEVELS: [Reliability; 3] =
    [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
/// Bytes of the memory of a side. Descriptors are in the first half, data in the second.
pub(crate) const MEMORY: usize = 1 << 19;
pub(crate) const DATA: usize = MEMORY / 2;

#[derive(Clone, Copy)]
pub(crate) struct Bed {
    net: Net,
    pub(crate) progress: Progress,
}

impl Bed {
    pub(crate) const fn new(net: Net, progress: Progress) -> Self {
        Self { net, progress }
    }
    /// Whether each message says which of the peer's have come.
    pub(crate) fn acknowledges_by_answers(&self) -> bool {
        matches!(self.net, Net::Shm)
    }
    /// Whether reliable connections of the adapters go by shared memory.
    pub(crate) fn is_near(&self) -> bool {
        matches!(self.net, Net::Shm | Net::Auto | Net::AutoShared)
    }
    pub(crate) fn contexts(&self, n: usize) -> Vec<Context> {
        SoftBed::new(self.net, self.progress).open(n).into_iter().map(Context::new).collect()
    }
    /// Two sides that are not connected.
    pub(crate) fn sides(&self) -> [Side; 2] {
        let contexts = self.contexts(2);
        [0, 1].map(|i| Side::new(&contexts[i]))
    }
    /// Two connected sides, with Reliable Delivery.
    pub(crate) fn pair(&self) -> Pair {
        self.pair_of(Reliability::Delivery)
    }
    pub(crate) fn pair_of(&self, reliability: Reliability) -> Pair {
        self.pair_with(|_, attributes| ViAttributes { reliability, ..attributes })
    }
    pub(crate) fn pair_with(&self, with: impl Fn(usize, ViAttributes) -> ViAttributes) -> Pair {
        let [a, b] = self.sides();
        let [vi_a, vi_b] = [(0, &a), (1, &b)].map(|(i, side)| side.vi_with(|attributes| with(i, attributes)));
        connect((&a, &vi_a), (&b, &vi_b)).expect("they connect");
        Pair { a: End { side: a, vi: vi_a }, b: End { side: b, vi: vi_b } }
    }
}

/// An adapter with memory.
pub(crate) struct Side {
    pub(crate) nic: Nic,
    pub(crate) ptag: Ptag,
    pub(crate) memory: Memory,
    pub(crate) errors: Arc<Mutex<Vec<AsyncError>>>,
}

impl Side {
    pub(crate) fn new(context: &Context) -> Self {
        let nic = Nic::open(context).expect("an adapter opens");
        let ptag = nic.create_ptag().unwrap();
        let memory = nic.alloc(MEMORY, &MemAttributes::rdma(&ptag)).unwrap();
        let errors = Arc::<Mutex<Vec<AsyncError>>>::default();
        let told = errors.clone();
        nic.set_error_handler(Some(Arc::new(move |error| told.lock().unwrap().push(*error))));
        Self { nic, ptag, memory, errors }
    }
    pub(crate) fn vi(&self) -> Vi {
        self.vi_with(|attributes| attributes)
    }
    pub(crate) fn vi_with(&self, with: impl FnOnce(ViAttributes) -> ViAttributes) -> Vi {
        self.nic.create_vi(&with(ViAttributes::new(&self.ptag)), None, None).unwrap()
    }
    /// The `i`-th descriptor.
    pub(crate) fn descriptor(&self, i: usize) -> Descriptor {
        self.memory.descriptor(i * 1024).unwrap()
    }
    /// The `i`-th descriptor, written.
    pub(crate) fn written(&self, i: usize, request: &Request<'_>) -> Descriptor {
        let descriptor = self.descriptor(i);
        descriptor.write(request).unwrap();
        descriptor
    }
    /// Data at an offset of the second half.
    pub(crate) fn data(&self, offset: usize, len: usize) -> Segment {
        Segment::new(&self.memory, DATA + offset, len as u32)
    }
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.memory.to_vec(DATA + offset, len)
    }
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.memory.write_at(DATA + offset, bytes);
    }
    /// The asynchronous errors so far.
    pub(crate) fn told(&self) -> Vec<AsyncError> {
        self.errors.lock().unwrap().clone()
    }
}

/// A side with a VI.
pub(crate) struct End {
    pub(crate) side: Side,
    pub(crate) vi: Vi,
}

impl End {
    /// Posts the `i`-th descriptor to receive `len` bytes.
    pub(crate) fn receive(&self, i: usize, offset: usize, len: usize) -> Descriptor {
        let descriptor = self.side.written(i, &Request::new(&[self.side.data(offset, len)]));
        self.vi.post_recv(&descriptor).unwrap();
        descriptor
    }
    /// Posts the `i`-th descriptor to send `len` bytes.
    pub(crate) fn send(&self, i: usize, offset: usize, len: usize) -> Descriptor {
        self.post(i, &Request::new(&[self.side.data(offset, len)]))
    }
    /// Posts the `i`-th descriptor to the send queue.
    pub(crate) fn post(&self, i: usize, request: &Request<'_>) -> Descriptor {
        let descriptor = self.side.written(i, request);
        self.vi.post_send(&descriptor).unwrap();
        descriptor
    }
}

/// Two connected VIs.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
}

impl Pair {
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, ready: impl FnMut() -> Option<T>) -> T {
        until(&[&self.a.vi, &self.b.vi], what, ready)
    }
    /// The next descriptor off the send queue of `a`.
    #[track_caller]
    pub(crate) fn sent(&self) -> Done {
        self.until("a send", || self.a.vi.send_done())
    }
    /// The next descriptor off the receive queue of `b`.
    #[track_caller]
    pub(crate) fn received(&self) -> Done {
        self.until("a receive", || self.b.vi.recv_done())
    }
    /// Waits until the VI of `b` has this state.
    #[track_caller]
    pub(crate) fn until_lost(&self) {
        self.until("the end of both connections", || {
            let both = [&self.a.vi, &self.b.vi];
            both.iter().all(|vi| vi.state() == hca_via::ViState::Error).then_some(())
        });
    }
}

/// Moves VIs until something is there.
#[track_caller]
pub(crate) fn until<T>(vis: &[&Vi], what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let (end, mut pause) = (Instant::now() + PATIENCE, Pause::new());
    loop {
        if let Some(found) = ready() {
            return found;
        }
        for vi in vis {
            let _ = vi.query();
        }
        pause.rest(false);
        assert!(Instant::now() < end, "{what} has not come in {PATIENCE:?}");
    }
}

pub(crate) fn name(text: &str) -> Discriminator {
    Discriminator::new(text.as_bytes()).unwrap()
}

/// Connects two VIs, as client and server.
pub(crate) fn connect(client: (&Side, &Vi), server: (&Side, &Vi)) -> Result<(), Error> {
    let listener = server.0.nic.listen(name("pair")).unwrap();
    let to = NetAddress { host: server.0.nic.attributes().host, discriminator: name("pair") };
    std::thread::scope(|s| {
        let asks = s.spawn(|| client.1.connect(name("client"), &to, Some(PATIENCE)).map(drop));
        let accepted = listener.wait(Some(PATIENCE)).unwrap().accept(server.1);
        asks.join().unwrap().and(accepted)
    })
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 * 7 + 1) as u8).collect()
}

#[track_caller]
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ReturnCode {
    result.expect_err("it is refused").code()
}

/// The error of a descriptor that failed.
#[track_caller]
pub(crate) fn error(done: &Done) -> Status {
    assert!(done.status.contains(Status::DONE), "{done:?}");
    done.status.error()
}
