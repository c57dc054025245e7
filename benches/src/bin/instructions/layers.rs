//! VIs and Active Messages, both ends within this process. A round is a message there and one back.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hca::am::{Bundle, EndpointId, Tag, Way};
use hca::global::{GlobalPtr, Joining, Options, Process};
use hca::via::{
    Descriptor, Discriminator, MemAttributes, NetAddress, Nic, Request, Segment, Vi, ViAttributes,
};
use hca::{Opened, open_exactly};
use hca_core::AckTimeout;
use hca_perf::Failure;

use super::{BURST, ROUNDS};

/// Descriptors of a queue, and the bytes that each has with its data.
const SLOTS: usize = 64;
const SLOT_BYTES: usize = 128;

/// A VI, and descriptors that go round.
struct ViEnd {
    vi: Vi,
    sends: Vec<Descriptor>,
    _device: Opened,
}

fn vi_end(device: &str) -> Result<(ViEnd, Nic), Failure> {
    let device = open_exactly(&device.parse()?)?;
    let nic = Nic::open(device.context())?;
    let ptag = nic.create_ptag()?;
    let memory = nic.alloc(2 * SLOTS * SLOT_BYTES, &MemAttributes::new(&ptag))?;
    let vi = nic.create_vi(&ViAttributes::new(&ptag), None, None)?;
    let mut sends = Vec::new();
    for slot in 0..2 * SLOTS {
        let descriptor = memory.descriptor(slot * SLOT_BYTES)?;
        let data = Segment::new(&memory, slot * SLOT_BYTES + SLOT_BYTES / 2, 8);
        descriptor.write(&Request::new(&[data]))?;
        if slot < SLOTS { vi.post_recv(&descriptor)? } else { sends.push(descriptor) }
    }
    Ok((ViEnd { vi, sends, _device: device }, nic))
}

/// A message of 8 bytes there and one back, between two VIs with Reliable Delivery.
pub(super) fn via_ping(device: &str) {
    let make = || -> Result<_, Failure> {
        let ((a, _), (b, nic)) = (vi_end(device)?, vi_end(device)?);
        let discriminator = Discriminator::new(b"count")?;
        let listener = nic.listen(discriminator)?;
        let to = NetAddress { host: nic.attributes().host, discriminator };
        std::thread::scope(|s| {
            let asks = s.spawn(|| a.vi.connect(discriminator, &to, None).map(drop));
            let accepted = listener.wait(None)?.accept(&b.vi);
            asks.join().expect("it does not panic").and(accepted)
        })?;
        Ok((a, b))
    };
    let (mut a, mut b) = make().expect("a connection within a process can always be made");
    // Until they have met.
    for _ in 0..4 * BURST {
        via_ping_once(&mut a, &mut b);
    }
    for _ in 0..ROUNDS {
        counted_via_ping(&mut a, &mut b);
    }
}

#[inline(never)]
fn counted_via_ping(a: &mut ViEnd, b: &mut ViEnd) {
    via_ping_once(a, b);
}

fn via_ping_once(a: &mut ViEnd, b: &mut ViEnd) {
    via_one_way(a, b);
    via_one_way(b, a);
}

fn via_one_way(from: &mut ViEnd, to: &mut ViEnd) {
    let descriptor = from.sends.pop().expect("sends complete");
    from.vi.post_send(descriptor).expect("the queue has room");
    let done = loop {
        if let Some(done) = to.vi.recv_done() {
            break done;
        }
    };
    assert!(done.status.is_ok());
    to.vi.post_recv(done.descriptor).expect("the queue has room");
    // Sends complete some time later.
    if from.sends.len() < SLOTS / 2
        && let Some(done) = from.vi.send_done()
    {
        assert!(done.status.is_ok());
        from.sends.push(done.descriptor);
    }
}

/// Two bundles, of which the first has mapped the second.
struct Bundles {
    asks: Bundle,
    answers: Bundle,
    ep: EndpointId,
    replies: Arc<AtomicU64>,
    asked: u64,
    devices: [Opened; 2],
}

const ECHO: u16 = 1;
const REPLIED: u16 = 2;
const SINK: u16 = 3;
const TAG: Tag = Tag(7);
/// Bytes of a medium message.
const MEDIUM: usize = 4096;
/// Pairs of bundles that are made until one is as a case needs it.
const PAIRS: usize = 4;

fn bundles(device: &str, way: Way) -> Result<Bundles, Failure> {
    let open = || -> Result<_, Failure> {
        let device = open_exactly(&device.parse()?)?;
        let mut bundle = Bundle::open(device.context(), way)?;
        let ep = bundle.endpoint()?;
        bundle.set_tag(ep, TAG)?;
        Ok((device, bundle, ep))
    };
    let ((near, mut asks, ep), (far, mut answers, to)) = (open()?, open()?);
    let replies = Arc::<AtomicU64>::default();
    let counts = Arc::clone(&replies);
    asks.set_handler(ep, REPLIED, move |_, _| {
        counts.fetch_add(1, Ordering::Relaxed);
    })?;
    answers.set_handler(to, ECHO, |message, token| {
        let _ = token.reply(REPLIED, message.args());
    })?;
    answers.set_handler(to, SINK, |_, _| ())?;
    asks.map(ep, 0, &answers.name(to)?, TAG)?;
    Ok(Bundles { asks, answers, ep, replies, asked: 0, devices: [near, far] })
}

/// A short request of 8 bytes and its reply.
pub(super) fn am_ping(device: &str, way: Way) {
    let mut two = bundles(device, way).expect("an endpoint within a process can always be mapped");
    for _ in 0..4 * BURST {
        am_ping_once(&mut two);
    }
    for _ in 0..ROUNDS {
        counted_am_ping(&mut two);
    }
}

#[inline(never)]
fn counted_am_ping(two: &mut Bundles) {
    am_ping_once(two);
}

fn am_ping_once(two: &mut Bundles) {
    two.asked += 1;
    two.asks.request(two.ep, 0, ECHO, &[two.asked as u32, 0]).expect("there is a credit");
    while two.replies.load(Ordering::Relaxed) < two.asked {
        two.answers.poll().expect("it can poll");
        two.asks.poll().expect("it can poll");
    }
}

/// A medium request of 4 KiB, handled by the other side, and its share of acknowledgements.
pub(super) fn am_medium(device: &str, way: Way) {
    let data = vec![7; MEDIUM];
    let mut two = (0..PAIRS).find_map(|_| fetching(device, way, &data)).expect("a process grants memory");
    for _ in 0..ROUNDS / MEDIUM_BURST {
        counted_am_medium(&mut two, &data);
    }
}

/// Two bundles of which one fetches long messages from memory that it was granted. A process that is stopped while its
/// adapters meet, as on a busy machine, may have two whose long messages take the ring for good, which copies them
/// twice. `None`: these are such two.
fn fetching(device: &str, way: Way, data: &[u8]) -> Option<Bundles> {
    let mut two = bundles(device, way).expect("an endpoint within a process can always be mapped");
    let lines = |two: &Bundles| two.devices[0].context().counter("tx_lines").expect("it is counted");
    for _ in 0..16 {
        let before = lines(&two);
        (0..BURST).for_each(|_| am_medium_burst(&mut two, data));
        // By the ring a message takes more than 64.
        if lines(&two) - before < 4 * BURST * MEDIUM_BURST {
            return Some(two);
        }
        // Adapters tell each other of grants beside the messages, for which they look each millisecond of their clock. Here
        // that goes on by turns.
        for _ in 0..TURNS_A_LOOK {
            two.devices.iter().for_each(|device| {
                device.context().device().turn();
            });
        }
    }
    None
}

/// Turns within which the clock of an adapter that counts goes on by more than a millisecond.
const TURNS_A_LOOK: usize = 8000;

/// Requests that are sent before the other side polls.
const MEDIUM_BURST: u64 = 8;

#[inline(never)]
fn counted_am_medium(two: &mut Bundles, data: &[u8]) {
    am_medium_burst(two, data);
}

fn am_medium_burst(two: &mut Bundles, data: &[u8]) {
    for _ in 0..MEDIUM_BURST {
        two.asks.request_medium(two.ep, 0, SINK, &[], data).expect("there is a credit");
    }
    while two.asks.outstanding(two.ep, 0).expect("it is mapped") > 0 {
        two.answers.poll().expect("it can poll");
        two.asks.poll().expect("it can poll");
    }
}

/// A read or a write of 8 bytes of another process's memory.
pub(super) fn global(device: &str, writes: bool) {
    let make = || -> Result<_, Failure> {
        let devices = [open_exactly(&device.parse()?)?, open_exactly(&device.parse()?)?];
        // The clock goes on by looks, and a process that waits looks often: by its clock, the thread of an adapter that
        // has no processor meanwhile is silent for long.
        let (map_timeout, ack_timeout) = (Duration::from_secs(100_000), AckTimeout::new(31));
        let options = Options { map_timeout, ack_timeout, ..Options::default() };
        let open = |d: &Opened| Joining::open_with(d.context(), Way::Verbs, 4096, 2, &options);
        let [a, b] = devices.each_ref().map(open);
        let (a, b) = (a?, b?);
        let names = [a.name()?, b.name()?];
        let of = |joining: Joining, rank| {
            let mut process = joining.join(rank, &names)?;
            let array = process.spread::<u64>(8)?;
            Ok::<_, hca::global::Error>((process, array))
        };
        let (a, b) = std::thread::scope(|s| {
            let other = s.spawn(|| of(b, 1));
            (of(a, 0), other.join().expect("it does not panic"))
        });
        Ok((devices, a?, b?))
    };
    let (_devices, (mut a, array), _b) = make().expect("two processes can always join");
    let there = array.at(1, 0).expect("it is in the array");
    // The first ones go as messages, until the memory is mapped.
    for _ in 0..20_000 {
        global_once(&mut a, there, writes);
    }
    for _ in 0..ROUNDS {
        counted_global(&mut a, there, writes);
    }
}

#[inline(never)]
fn counted_global(process: &mut Process, there: GlobalPtr<u64>, writes: bool) {
    global_once(process, there, writes);
}

fn global_once(process: &mut Process, there: GlobalPtr<u64>, writes: bool) {
    if writes {
        process.write(there, 7).expect("it is there");
    } else {
        black_box(process.read(there).expect("it is there"));
    }
}
