//! Bundles and mapped endpoints to test on.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hca_am::{Bundle, EndpointId, EndpointName, Error, Options, Reason, Tag, Way};
use hca_conformance::{Bed as _, Pause};
use hca_verbs::Context;
use softhca::Progress;

use crate::beds::{Net, SoftBed};

/// How long what has to come may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const TAG: Tag = Tag(0x5eed);
/// Bytes of the segments.
pub(crate) const SEGMENT: usize = 1 << 18;

#[derive(Clone, Copy)]
pub(crate) struct Bed {
    net: Net,
    progress: Progress,
    pub(crate) way: Way,
}

/// A bundle with an endpoint that has the tag, a segment, and an error handler.
pub(crate) struct Side {
    pub(crate) bundle: Bundle,
    pub(crate) ep: EndpointId,
    pub(crate) back: Receiver<Back>,
}

/// A returned message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Back {
    pub(crate) reason: Reason,
    pub(crate) index: usize,
    pub(crate) handler: u16,
    pub(crate) args: Vec<u32>,
    pub(crate) data: Vec<u8>,
    pub(crate) range: Option<(u64, u64)>,
}

impl Bed {
    pub(crate) const fn new(net: Net, progress: Progress, way: Way) -> Self {
        Self { net, progress, way }
    }
    pub(crate) fn contexts(&self, n: usize) -> Vec<Context> {
        SoftBed::new(self.net, self.progress).open(n).into_iter().map(Context::new).collect()
    }
    /// Few links, so that a bundle is quick to make.
    pub(crate) fn options(&self) -> Options {
        Options { credits: 4, max_links: 12, ..Options::default() }
    }
    pub(crate) fn side(&self, context: &Context, options: &Options) -> Side {
        let mut bundle = Bundle::open_with(context, self.way, options).expect("a bundle opens");
        let ep = bundle.endpoint().unwrap();
        bundle.set_tag(ep, TAG).unwrap();
        bundle.set_segment(ep, SEGMENT).unwrap();
        let (tell, back) = channel();
        let on_return = move |message: &hca_am::Returned<'_>| {
            let _ = tell.send(Back {
                reason: message.reason,
                index: message.index,
                handler: message.handler,
                args: message.args.to_vec(),
                data: message.data.to_vec(),
                range: message.range,
            });
        };
        bundle.set_error_handler(ep, on_return).unwrap();
        Side { bundle, ep, back }
    }
    pub(crate) fn sides(&self, n: usize) -> Vec<Side> {
        self.contexts(n).iter().map(|context| self.side(context, &self.options())).collect()
    }
    /// Two sides. The first has mapped the second at index 0.
    pub(crate) fn pair(&self) -> [Side; 2] {
        self.pair_with(&self.options())
    }
    pub(crate) fn pair_with(&self, options: &Options) -> [Side; 2] {
        let contexts = self.contexts(2);
        let [mut a, b] = [0, 1].map(|i| self.side(&contexts[i], options));
        a.map(0, &b).expect("they are mapped");
        [a, b]
    }
}

impl Side {
    pub(crate) fn name(&self) -> EndpointName {
        self.bundle.name(self.ep).unwrap()
    }
    pub(crate) fn map(&mut self, index: usize, peer: &Self) -> Result<(), Error> {
        self.bundle.map(self.ep, index, &peer.name(), TAG)
    }
    pub(crate) fn request(&mut self, handler: u16, args: &[u32]) {
        self.bundle.request(self.ep, 0, handler, args).expect("it is sent");
    }
    /// Has handler `handler` tell the arguments of its messages.
    pub(crate) fn hear(&mut self, handler: u16) -> Receiver<Vec<u32>> {
        let (tell, told) = channel();
        let hear = move |message: &hca_am::Message<'_>, _: hca_am::Token<'_>| {
            let _ = tell.send(message.args().to_vec());
        };
        self.bundle.set_handler(self.ep, handler, hear).unwrap();
        told
    }
    /// Has handler `handler` reply its arguments to handler 2.
    pub(crate) fn echo(&mut self, handler: u16) {
        let echo = |message: &hca_am::Message<'_>, token: hca_am::Token<'_>| {
            token.reply(2, message.args()).expect("the reply is sent");
        };
        self.bundle.set_handler(self.ep, handler, echo).unwrap();
    }
}

/// Polls the sides until something is there.
#[track_caller]
pub(crate) fn until<T>(sides: &mut [&mut Side], what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let (end, mut pause) = (Instant::now() + PATIENCE, Pause::new());
    loop {
        if let Some(found) = ready() {
            return found;
        }
        let mut moved = false;
        for side in &mut *sides {
            moved |= side.bundle.poll().unwrap() > 0;
        }
        pause.rest(moved);
        assert!(Instant::now() < end, "{what} has not come in {PATIENCE:?}");
    }
}

/// Polls the sides until a channel has something.
#[track_caller]
pub(crate) fn next<T>(sides: &mut [&mut Side], what: &str, from: &Receiver<T>) -> T {
    until(sides, what, || from.try_recv().ok())
}

/// Polls the sides until all requests of the first to index 0 were answered.
#[track_caller]
pub(crate) fn answered(a: &mut Side, others: &mut [&mut Side]) {
    let (end, mut pause) = (Instant::now() + PATIENCE, Pause::new());
    while a.bundle.outstanding(a.ep, 0).unwrap() > 0 {
        let mut moved = a.bundle.poll().unwrap() > 0;
        for side in &mut *others {
            moved |= side.bundle.poll().unwrap() > 0;
        }
        pause.rest(moved);
        assert!(Instant::now() < end, "requests are not answered");
    }
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 * 7 + 1) as u8).collect()
}
