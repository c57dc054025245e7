//! Small objects: doorbell pages, protection domains, domains of connections, special keys.

use std::collections::{BTreeMap, BTreeSet};

use hca_core::{Device, PdHandle};
use hca_prm::command::resource::{
    AllocPdOut, AllocTransportDomainOut, AllocUarOut, ConfigIntModerationIn, ConfigIntModerationOut,
    DeallocPdIn, DeallocTransportDomainIn, DeallocUarIn, QuerySpecialContextsOut,
};
use hca_prm::{CmdStatus, Opcode};

use super::{Output, parse};
use crate::bus::interrupts::VECTORS;
use crate::eth::uses::Thing;
use crate::function::Function;

/// As powers of two: protection domains, domains of extended connections, transport domains of a function.
pub(super) const LOG_PDS: u32 = 10;
pub(crate) const LOG_XRCDS: u32 = 8;
pub(super) const LOG_TRANSPORT_DOMAINS: u32 = 10;
/// The key for addresses of the bus.
pub(crate) const RESERVED_LKEY: u32 = 0x0000_ff00;

/// Numbers that are given out and taken back, from 1.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    used: BTreeSet<u32>,
}

impl Numbers {
    /// A number that nobody has, of fewer than 2^`log_limit`.
    pub(crate) fn alloc(&mut self, log_limit: u32) -> Result<u32, CmdStatus> {
        if self.used.len() as u32 >= (1 << log_limit) - 1 {
            return Err(CmdStatus::NoRes);
        }
        let free = self.used.iter().zip(1..).find(|(used, n)| **used != *n).map(|(_, n)| n);
        let number = free.unwrap_or(self.used.len() as u32 + 1);
        self.used.insert(number);
        Ok(number)
    }

    /// Takes a number back.
    pub(crate) fn free(&mut self, number: u32) -> Result<(), CmdStatus> {
        if self.used.remove(&number) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }

    /// Whether somebody has it.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.used.contains(&number)
    }
}

/// The small objects of a function.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    pds: BTreeMap<u32, PdHandle>,
    numbers: Numbers,
    transport_domains: Numbers,
}

impl Resources {
    /// The adapter's protection domain behind a number.
    pub(crate) fn pd(&self, pd: u32) -> Option<PdHandle> {
        self.pds.get(&pd).copied()
    }

    /// Whether there is a transport domain with this number.
    pub(crate) fn has_transport_domain(&self, domain: u32) -> bool {
        self.transport_domains.contains(domain)
    }
}

impl Function {
    pub(crate) fn resource_command(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        out: &mut Output,
    ) -> Result<(), CmdStatus> {
        let r = &mut self.resources;
        match opcode {
            Opcode::ALLOC_UAR => {
                let uar = self.pages.alloc().ok_or(CmdStatus::NoRes)?;
                out.put(&AllocUarOut::new().with(AllocUarOut::UAR, uar))
            }
            Opcode::DEALLOC_UAR => {
                let uar = parse::<DeallocUarIn>(input)?.get(DeallocUarIn::UAR);
                self.commands.charge(self.objects.cqs.len() + self.objects.qps.len());
                if self.uses_uar(uar) {
                    return Err(CmdStatus::ResBusy);
                }
                if self.pages.free(uar) { Ok(()) } else { Err(CmdStatus::BadRes) }
            }
            Opcode::ALLOC_PD => self.alloc_pd(out),
            Opcode::DEALLOC_PD => self.dealloc_pd(parse::<DeallocPdIn>(input)?.get(DeallocPdIn::PD)),
            Opcode::ALLOC_XRCD => self.alloc_xrcd(out),
            Opcode::DEALLOC_XRCD => self.dealloc_xrcd(input),
            Opcode::ALLOC_TRANSPORT_DOMAIN => {
                let number = r.transport_domains.alloc(LOG_TRANSPORT_DOMAINS)?;
                out.put(
                    &AllocTransportDomainOut::new().with(AllocTransportDomainOut::TRANSPORT_DOMAIN, number),
                )
            }
            Opcode::DEALLOC_TRANSPORT_DOMAIN => {
                let command: DeallocTransportDomainIn = parse(input)?;
                let number = command.get(DeallocTransportDomainIn::TRANSPORT_DOMAIN);
                if self.ethernet.uses.has(Thing::TransportDomain(number)) {
                    return Err(CmdStatus::BadResState);
                }
                r.transport_domains.free(number)
            }
            Opcode::CONFIG_INT_MODERATION => int_moderation(input, out),
            Opcode::ACCESS_REG => self.access_register(input, out),
            Opcode::NOP => Ok(()),
            _ => Err(CmdStatus::BadOp),
        }
    }

    /// Whether a queue announces its work, or is armed, on a doorbell page.
    fn uses_uar(&self, uar: u32) -> bool {
        self.eqs.use_uar(uar)
            || self.objects.cqs.values().any(|cq| cq.uar == uar)
            || self.objects.qps.values().any(|qp| qp.uar() == Some(uar))
            || self.ethernet.uses_uar(uar)
    }

    fn alloc_pd(&mut self, out: &mut Output) -> Result<(), CmdStatus> {
        let number = self.resources.numbers.alloc(LOG_PDS)?;
        let Ok(handle) = self.hca.alloc_pd() else {
            self.resources.numbers.free(number)?;
            return Err(CmdStatus::NoRes);
        };
        self.resources.pds.insert(number, handle);
        out.put(&AllocPdOut::new().with(AllocPdOut::PD, number))
    }

    fn dealloc_pd(&mut self, number: u32) -> Result<(), CmdStatus> {
        let handle = self.resources.pd(number).ok_or(CmdStatus::BadRes)?;
        // The adapter knows of no key without memory.
        self.commands.charge(self.objects.mkeys.len());
        let is_named = self.objects.mkeys.values().any(|key| key.pd() == handle);
        if is_named || self.ethernet.uses.has(Thing::Pd(number)) {
            return Err(CmdStatus::ResBusy);
        }
        self.hca.dealloc_pd(handle).map_err(|_| CmdStatus::ResBusy)?;
        self.resources.pds.remove(&number);
        self.resources.numbers.free(number)
    }

    /// Gives all of them back; objects are gone by now.
    pub(crate) fn free_resources(&mut self) {
        for handle in self.resources.pds.values() {
            self.objects.leaving.add_domain(*handle);
        }
        self.resources = Resources::default();
        self.pages.clear();
        self.close_port();
    }

    pub(super) fn query_special_contexts(&mut self, out: &mut Output) -> Result<(), CmdStatus> {
        out.put(&QuerySpecialContextsOut::new().with(QuerySpecialContextsOut::RESD_LKEY, RESERVED_LKEY))
    }
}

/// Interrupts come at once, so any pace is kept.
fn int_moderation(input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
    let command: ConfigIntModerationIn = parse(input)?;
    let vector = command.get(ConfigIntModerationIn::INT_VECTOR);
    if vector as usize >= VECTORS {
        return Err(CmdStatus::BadParam);
    }
    let output = ConfigIntModerationOut::new()
        .with(ConfigIntModerationOut::MIN_DELAY, command.get(ConfigIntModerationIn::MIN_DELAY));
    out.put(&output.with(ConfigIntModerationOut::INT_VECTOR, vector))
}
