//! The use counts of objects: an object that another object names can't be destroyed.

use std::collections::{BTreeMap, HashMap};

use hca_prm::CmdStatus;

use crate::command::Numbers;
use crate::command::caps::LOG_ETHERNET;

/// An object that others name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Thing {
    /// A protection domain.
    Pd(u32),
    /// A transport domain.
    TransportDomain(u32),
    /// A completion queue.
    Cq(u32),
    /// An interface for sending.
    Tis(u32),
    /// A receive queue.
    Rq(u32),
    /// A list of receive queues.
    Rqt(u32),
    /// An interface for receiving.
    Tir(u32),
    /// A table of flows.
    Table(u32),
}

/// How many others name an object.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    named: HashMap<Thing, u32>,
}

impl Uses {
    pub(super) fn add(&mut self, thing: Thing) {
        *self.named.entry(thing).or_default() += 1;
    }

    pub(super) fn remove(&mut self, thing: Thing) {
        if let Some(count) = self.named.get_mut(&thing) {
            *count -= 1;
            if *count == 0 {
                self.named.remove(&thing);
            }
        }
    }

    /// Whether anything names it.
    pub(crate) fn has(&self, thing: Thing) -> bool {
        self.named.contains_key(&thing)
    }

    /// That nothing does: only then it may go.
    pub(super) fn none(&self, thing: Thing) -> Result<(), CmdStatus> {
        if self.has(thing) { Err(CmdStatus::BadResState) } else { Ok(()) }
    }
}

/// Objects of a kind, with the numbers that they were given.
#[derive(Debug)]
pub(super) struct Kept<T> {
    numbers: Numbers,
    items: BTreeMap<u32, T>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { numbers: Numbers::default(), items: BTreeMap::new() }
    }
}

impl<T> Kept<T> {
    pub(super) fn insert(&mut self, item: T) -> Result<u32, CmdStatus> {
        let number = self.numbers.alloc(LOG_ETHERNET)?;
        self.items.insert(number, item);
        Ok(number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Result<T, CmdStatus> {
        let item = self.items.remove(&number).ok_or(CmdStatus::BadRes)?;
        self.numbers.free(number)?;
        Ok(item)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items.get_mut(&number)
    }

    pub(super) fn named(&mut self, number: u32) -> Result<&mut T, CmdStatus> {
        self.items.get_mut(&number).ok_or(CmdStatus::BadRes)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.items.values()
    }
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.items.iter_mut().map(|(number, item)| (*number, item))
    }
}
