//! Ethernet ports: queues, interfaces, tables of flows, and the switch between the functions of a server.
//!
//! ```text
//!  sq      requests of send queues ─► gathered by keys ─► segments, checksums ─┐
//!  switch  ports with an address and an inbox each, and a gateway that answers for peers beyond ◄┘
//!  rq      inbox ─► flow: tables from the first one on ─► interface ─► hash ─► receive queue ─► scattered by keys
//! ```
//!
//! A function takes frames from its send queues when it polls doorbells, and received frames when it carries out
//! requests. RDMA packets do not pass through this module: the adapter carries them.

pub(crate) mod flow;
pub(crate) mod frame;
pub(crate) mod gateway;
mod hash;
mod reach;
mod ring;
mod rq;
mod sq;
pub(crate) mod switch;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_fixed;
#[cfg(test)]
mod tests_flow;
#[cfg(test)]
mod tests_switch;
pub(crate) mod uses;

use std::collections::{BTreeMap, BTreeSet};

use hca_prm::command::counter::{QueryVportCounterOut, TrafficCounter};
use hca_prm::command::ethernet::{
    CreateRqtIn, CreateTirIn, CreateTisIn, ModifyRqtIn, ModifyTirIn, Rqtc, Tirc, Tisc,
};
use hca_prm::{CmdStatus, Opcode};

use crate::command::{Numbers, Output, caps, parse};
use crate::function::{Function, PortKind};
use flow::Tables;
use frame::{Mac, is_group};
use rq::Rq;
use sq::Sq;
use switch::Loops;
use uses::{Kept, Thing, Uses};

/// Where the output of commands that make something has its number, and the input of those that name it.
const NUMBER: usize = 8;
/// What of an interface is changed: its hash, and which of the port's own frames it takes.
const CHANGES_HASH: u64 = 1 << 2;
const CHANGES_LOOPS: u64 = 1 << 4;
/// Own frames that an interface takes: those for one, and those for several.
const UNICAST: u32 = 1;
const GROUPS: u32 = 2;
/// How frames of an interface find their queue: it names it, or a list of them.
const DIRECT: u32 = 0;
const INDIRECT: u32 = 1;

/// States of queues.
const RESET: u32 = 0;
pub(crate) const READY: u32 = 1;
pub(crate) const ERROR: u32 = 3;

/// Frames and bytes that came or went.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    frames: u64,
    bytes: u64,
}

/// What a port has seen: unicast, multicast, broadcast.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    received: [Traffic; 3],
    sent: [Traffic; 3],
    /// Were not sent, as they came from an address that the function does not have.
    refused: u64,
    /// Came, and were lost as there was no receive request: by the set of counters of the queue.
    pub(crate) out_of_buffer: BTreeMap<u32, u32>,
}

/// An interface for receiving.
#[derive(Debug)]
pub(super) struct Tir {
    context: Tirc,
    names: [Thing; 2],
}

impl Tir {
    /// Whether it takes frames that its own port has sent to this address.
    fn takes_own(&self, to: &Mac) -> bool {
        let bit = if is_group(to) { GROUPS } else { UNICAST };
        self.context.get(Tirc::SELF_LB_BLOCK) & bit != 0
    }
}

/// A list of receive queues.
#[derive(Debug)]
struct Rqt {
    max: u32,
    rqns: Vec<u32>,
}

/// What the Ethernet side of a function keeps.
#[derive(Debug, Default)]
pub(crate) struct Ethernet {
    pub(crate) uses: Uses,
    tises: Kept<u32>,
    tirs: Kept<Tir>,
    rqts: Kept<Rqt>,
    sqs: Kept<Sq>,
    /// Looks at send queues that were rung: another one of them is the first each time.
    looks: usize,
    rqs: Kept<Rq>,
    /// Receive queues in error, of which not all requests are flushed.
    flushing: BTreeSet<u32>,
    tables: Tables,
    counters: Numbers,
    pub(crate) seen: Counters,
}

/// The number that an input names behind its head.
fn named(input: &[u8]) -> Result<u32, CmdStatus> {
    let bytes = input.get(NUMBER..).and_then(|rest| rest.first_chunk()).ok_or(CmdStatus::BadInpLen)?;
    Ok(u32::from_be_bytes(*bytes) & 0xff_ffff)
}

/// Says which number something was given.
fn made(number: Result<u32, CmdStatus>, out: &mut Output) -> Result<(), CmdStatus> {
    out.put_at(NUMBER, &number?.to_be_bytes())
}

/// Whether a queue may come from one state to another by command.
fn may_change(from: u32, to: u32) -> bool {
    from == to || matches!((from, to), (RESET, READY) | (READY, ERROR) | (READY | ERROR, RESET))
}

impl Counters {
    fn kind(to: &Mac) -> usize {
        if *to == [0xff; 6] { 2 } else { usize::from(is_group(to)) }
    }

    fn count_received(&mut self, to: &Mac, bytes: usize) {
        self.received[Self::kind(to)].count(bytes);
    }

    fn count_sent(&mut self, to: &Mac, bytes: usize) {
        self.sent[Self::kind(to)].count(bytes);
    }

    fn count_refused(&mut self, function: u16) {
        if self.refused == 0 {
            tracing::warn!(
                "function {function}: drops frames that come from an Ethernet address that is not its own"
            );
        }
        self.refused += 1;
    }

    fn count_lost(&mut self, set: u32) {
        let count = self.out_of_buffer.entry(set).or_default();
        *count = count.wrapping_add(1);
    }

    /// As a command tells them; `lost` frames did not come through the port.
    pub(crate) fn report(&self, lost: u64) -> QueryVportCounterOut {
        type Out = QueryVportCounterOut;
        let counter = |t: Traffic| {
            TrafficCounter::new()
                .with(TrafficCounter::PACKETS, t.frames)
                .with(TrafficCounter::OCTETS, t.bytes)
        };
        let ([u, m, b], [su, sm, sb]) = (self.received.map(counter), self.sent.map(counter));
        Out::new()
            .with(Out::RECEIVED_ERRORS, TrafficCounter::new().with(TrafficCounter::PACKETS, lost))
            .with(Out::TRANSMIT_ERRORS, TrafficCounter::new().with(TrafficCounter::PACKETS, self.refused))
            .with(Out::RECEIVED_ETH_UNICAST, u)
            .with(Out::RECEIVED_ETH_MULTICAST, m)
            .with(Out::RECEIVED_ETH_BROADCAST, b)
            .with(Out::TRANSMITTED_ETH_UNICAST, su)
            .with(Out::TRANSMITTED_ETH_MULTICAST, sm)
            .with(Out::TRANSMITTED_ETH_BROADCAST, sb)
    }
}

impl Traffic {
    fn count(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

impl Ethernet {
    /// Whether a send queue announces its work on a doorbell page.
    pub(crate) fn uses_uar(&self, uar: u32) -> bool {
        self.sqs.values().any(|sq| sq.uar() == uar)
    }

    /// Interfaces for sending.
    fn tis(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_TIS => {
                let domain = parse::<CreateTisIn>(input)?.get(CreateTisIn::CTX).get(Tisc::TRANSPORT_DOMAIN);
                let number = self.tises.insert(domain)?;
                self.uses.add(Thing::TransportDomain(domain));
                made(Ok(number), out)
            }
            // Its priority, and the port that it sends by, are all one.
            Opcode::MODIFY_TIS => self.tises.named(named(input)?).map(|_| ()),
            _ => {
                let number = named(input)?;
                self.uses.none(Thing::Tis(number))?;
                let domain = self.tises.remove(number)?;
                self.uses.remove(Thing::TransportDomain(domain));
                Ok(())
            }
        }
    }

    /// Interfaces for receiving.
    fn tir(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_TIR => {
                let context = parse::<CreateTirIn>(input)?.get(CreateTirIn::CTX);
                let (rqn, rqt) = (context.get(Tirc::INLINE_RQN), context.get(Tirc::INDIRECT_TABLE));
                let leads = match context.get(Tirc::DISP_TYPE) {
                    DIRECT if self.rqs.get(rqn).is_some() => Thing::Rq(rqn),
                    INDIRECT if self.rqts.get(rqt).is_some() => Thing::Rqt(rqt),
                    DIRECT | INDIRECT => return Err(CmdStatus::BadRes),
                    _ => return Err(CmdStatus::BadParam),
                };
                let names = [leads, Thing::TransportDomain(context.get(Tirc::TRANSPORT_DOMAIN))];
                let number = self.tirs.insert(Tir { context, names })?;
                names.into_iter().for_each(|thing| self.uses.add(thing));
                made(Ok(number), out)
            }
            Opcode::MODIFY_TIR => {
                let command: ModifyTirIn = parse(input)?;
                let tir = self.tirs.named(command.get(ModifyTirIn::TIRN))?;
                // Frames are not joined: of what may be changed, the hash is left, and whether own frames come back.
                let changes = u64::from_be_bytes(command.get(ModifyTirIn::BITMASK));
                let requested = command.get(ModifyTirIn::CTX);
                if changes & CHANGES_LOOPS != 0 {
                    tir.context.set(Tirc::SELF_LB_BLOCK, requested.get(Tirc::SELF_LB_BLOCK));
                }
                if changes & CHANGES_HASH != 0 {
                    tir.context
                        .set(Tirc::RX_HASH_FN, requested.get(Tirc::RX_HASH_FN))
                        .set(Tirc::RX_HASH_SYMMETRIC, requested.get(Tirc::RX_HASH_SYMMETRIC))
                        .set(Tirc::RX_HASH_TOEPLITZ_KEY, requested.get(Tirc::RX_HASH_TOEPLITZ_KEY))
                        .set(
                            Tirc::RX_HASH_FIELD_SELECTOR_OUTER,
                            requested.get(Tirc::RX_HASH_FIELD_SELECTOR_OUTER),
                        );
                }
                Ok(())
            }
            _ => {
                let number = named(input)?;
                self.uses.none(Thing::Tir(number))?;
                let tir = self.tirs.remove(number)?;
                tir.names.into_iter().for_each(|thing| self.uses.remove(thing));
                Ok(())
            }
        }
    }

    /// Lists of receive queues.
    fn rqt(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_RQT => {
                let context = parse::<CreateRqtIn>(input)?.get(CreateRqtIn::RQT_CONTEXT);
                let max = context.get(Rqtc::RQT_MAX_SIZE);
                if max > 1 << caps::LOG_RQT_SIZE {
                    return Err(CmdStatus::LimErr);
                }
                let rqns = self.listed(&context, max, &input[CreateRqtIn::SIZE..])?;
                let number = self.rqts.insert(Rqt { max, rqns: rqns.clone() })?;
                rqns.into_iter().for_each(|rqn| self.uses.add(Thing::Rq(rqn)));
                made(Ok(number), out)
            }
            Opcode::MODIFY_RQT => {
                let command: ModifyRqtIn = parse(input)?;
                let number = command.get(ModifyRqtIn::RQTN);
                let max = self.rqts.named(number)?.max;
                if u64::from_be_bytes(command.get(ModifyRqtIn::BITMASK)) & 1 == 0 {
                    return Ok(());
                }
                let context = command.get(ModifyRqtIn::CTX);
                let rqns = self.listed(&context, max, &input[ModifyRqtIn::SIZE..])?;
                rqns.iter().for_each(|rqn| self.uses.add(Thing::Rq(*rqn)));
                let old = std::mem::replace(&mut self.rqts.named(number)?.rqns, rqns);
                old.into_iter().for_each(|rqn| self.uses.remove(Thing::Rq(rqn)));
                Ok(())
            }
            _ => {
                let number = named(input)?;
                self.uses.none(Thing::Rqt(number))?;
                let rqt = self.rqts.remove(number)?;
                rqt.rqns.into_iter().for_each(|rqn| self.uses.remove(Thing::Rq(rqn)));
                Ok(())
            }
        }
    }

    /// The queues of a list, which are there.
    fn listed(&self, context: &Rqtc, max: u32, list: &[u8]) -> Result<Vec<u32>, CmdStatus> {
        let count = context.get(Rqtc::RQT_ACTUAL_SIZE);
        if count > max {
            return Err(CmdStatus::BadParam);
        }
        let (numbers, _) = list.as_chunks::<4>();
        let numbers = numbers.get(..count as usize).ok_or(CmdStatus::BadInpLen)?;
        let numbers: Vec<u32> =
            numbers.iter().map(|number| u32::from_be_bytes(*number) & 0xff_ffff).collect();
        let there = numbers.iter().all(|rqn| self.rqs.get(*rqn).is_some());
        if there { Ok(numbers) } else { Err(CmdStatus::BadRes) }
    }

    /// How many receive requests were used, and how many frames sent.
    #[cfg(test)]
    pub(crate) fn moved(&mut self) -> (u64, u64) {
        let filled = self.rqs.iter_mut().map(|(_, rq)| u64::from(rq.taken())).sum();
        (filled, self.seen.sent.iter().map(|kind| kind.frames).sum())
    }

    /// The receive queue for a frame with this hash, which an interface leads to.
    fn queue_of(&self, tir: &Tir, hash: u32) -> Option<u32> {
        match tir.names[0] {
            Thing::Rq(rqn) => Some(rqn),
            Thing::Rqt(rqt) => {
                let rqns = &self.rqts.get(rqt)?.rqns;
                rqns.get(hash as usize % rqns.len().max(1)).copied()
            }
            _ => None,
        }
    }
}

impl Function {
    pub(crate) fn ethernet_command(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        out: &mut Output,
    ) -> Result<(), CmdStatus> {
        if self.options.port != PortKind::Roce {
            return Err(CmdStatus::BadOp);
        }
        match opcode {
            Opcode::CREATE_SQ => return self.create_sq(input, out),
            Opcode::CREATE_RQ => return self.create_rq(input, out),
            Opcode::CREATE_TIS => {
                self.has_domain(
                    parse::<CreateTisIn>(input)?.get(CreateTisIn::CTX).get(Tisc::TRANSPORT_DOMAIN),
                )?;
            }
            Opcode::CREATE_TIR => {
                self.has_domain(
                    parse::<CreateTirIn>(input)?.get(CreateTirIn::CTX).get(Tirc::TRANSPORT_DOMAIN),
                )?;
            }
            _ => {}
        }
        let ethernet = &mut self.ethernet;
        match opcode {
            Opcode::MODIFY_SQ => ethernet.modify_sq(&parse(input)?, &self.guest),
            Opcode::QUERY_SQ => ethernet.query_sq(named(input)?, out),
            Opcode::DESTROY_SQ => ethernet.destroy_sq(named(input)?),
            Opcode::MODIFY_RQ => ethernet.modify_rq(&parse(input)?),
            Opcode::QUERY_RQ => {
                let number = named(input)?;
                self.query_rq(number, out)
            }
            Opcode::DESTROY_RQ => ethernet.destroy_rq(named(input)?),
            Opcode::CREATE_TIS | Opcode::MODIFY_TIS | Opcode::DESTROY_TIS => ethernet.tis(opcode, input, out),
            Opcode::CREATE_TIR | Opcode::MODIFY_TIR | Opcode::DESTROY_TIR => {
                let done = ethernet.tir(opcode, input, out);
                self.tell_loops();
                done
            }
            Opcode::CREATE_RQT | Opcode::MODIFY_RQT | Opcode::DESTROY_RQT => ethernet.rqt(opcode, input, out),
            Opcode::ALLOC_FLOW_COUNTER => made(ethernet.counters.alloc(caps::LOG_ETHERNET), out),
            Opcode::DEALLOC_FLOW_COUNTER => ethernet.counters.free(named(input)?),
            _ => ethernet.tables.command(opcode, input, (&ethernet.tirs, &mut ethernet.uses), out),
        }
    }

    /// Has the switch know which of the port's own frames somebody wants back.
    pub(crate) fn tell_loops(&mut self) {
        let wants =
            |bit| self.ethernet.tirs.values().any(|tir| tir.context.get(Tirc::SELF_LB_BLOCK) & bit != 0);
        let [unicast, groups] =
            [(UNICAST, 0), (GROUPS, 1)].map(|(bit, kind)| !self.keeps_own()[kind] && wants(bit));
        self.directory.switch().set_loops(self.options.number, Loops { unicast, groups });
    }

    fn has_domain(&self, domain: u32) -> Result<(), CmdStatus> {
        if self.resources.has_transport_domain(domain) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }
}
