//! The answering side of Portals.

use std::hint::black_box;
use std::sync::Arc;

use ::portals::{Card, Node};
use hca::Opened;
use softhca::Progress;

use super::super::channel::{Channel, ControlError};
use super::super::control::{FromPeer, NodeCard, Phase, ToPeer};
use super::super::peer::{Drain, Limits};
use super::super::plan::Op;
use super::half::Half;
use super::{Case, Other, Settings, open};
use crate::Failure;

/// This side's node, and whose peer it is.
pub(crate) struct Seat {
    node: Node,
    other: Card,
    settings: Settings,
}

impl Seat {
    /// Opens a node, and tells the other side where it is.
    pub(crate) fn open(
        channel: &mut Channel<ToPeer>,
        opened: &Opened,
        settings: Settings,
        NodeCard(other): NodeCard,
        limits: &Limits,
    ) -> Result<Self, Failure> {
        limits.admit(settings.memory())?;
        let directory = Arc::new(Other::default());
        directory.0.set(other).expect("it was empty");
        let node = open(opened, settings, directory)?;
        channel.send(&FromPeer::Node { card: NodeCard(node.card()) })?;
        Ok(Self { node, other, settings })
    }
    /// Serves one measurement.
    pub(crate) fn measurement(
        &self,
        channel: &mut Channel<ToPeer>,
        opened: &Opened,
        case: &Case,
        phase: Phase,
        limits: &Limits,
    ) -> Result<(), Failure> {
        limits.admit(self.settings.memory() + case.memory())?;
        let mut half = Half::new(&self.node, self.other, case, phase, self.settings.eager_bytes.bytes())?;
        channel.send(&FromPeer::Listening)?;
        let received = match (case.op, phase) {
            _ if case.computes => compute(channel),
            (Op::Put, Phase::Latency) => echo(channel, &mut half)?,
            (Op::Put, Phase::Stream) => take(channel, &mut half)?,
            _ => self.stand_by(channel, opened),
        };
        match channel.recv(None)? {
            ToPeer::Stop => {
                half.settle()?;
                Ok(channel.send(&FromPeer::Done { received, errors: 0 })?)
            }
            other => Err(ControlError::OutOfTurn(format!("{other:?}")).into()),
        }
    }
    /// Receives messages while the program is idle.
    fn stand_by(&self, channel: &Channel<ToPeer>, opened: &Opened) -> u64 {
        // An adapter's own thread would share the CPU with a loop here.
        let alone = self.node.is_offloaded() && opened.progress() == Progress::Thread;
        while !alone && !channel.over() {
            self.node.progress();
        }
        0
    }
}

/// Computes until the peer asks it to stop.
fn compute(channel: &Channel<ToPeer>) -> u64 {
    let mut word = 0x5a_u64;
    while !channel.over() {
        for _ in 0..1000 {
            word = black_box(word.wrapping_mul(6364136223846793005).rotate_left(7));
        }
    }
    0
}

/// Answers every put by one.
fn echo(channel: &Channel<ToPeer>, half: &mut Half) -> Result<u64, Failure> {
    let mut received = 0;
    while !channel.over() {
        if half.arrived()? {
            half.post()?;
            received += 1;
        }
    }
    Ok(received)
}

/// Takes a stream of puts, and the event of each.
fn take(channel: &Channel<ToPeer>, half: &mut Half) -> Result<u64, Failure> {
    let (mut received, mut drain) = (0, Drain::default());
    loop {
        let came = half.arrived()?;
        received += u64::from(came);
        if channel.over() && (!came || drain.is_long()) {
            return Ok(received);
        }
    }
}
