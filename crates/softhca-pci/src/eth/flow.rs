//! Flow tables, which steer received frames. Only tables for reception take effect; the function keeps other tables
//! without applying them.
//!
//! A table's flows stand in groups, each a range of indices whose flows look at the same bits of the headers. Of the
//! flows that match a frame, the flow with the lowest index counts. All flows of a group have one mask, so a group is a
//! map by the masked headers: a frame costs one lookup for each group, however many flows there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hca_prm::command::ethernet::{
    CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut, DeleteFteIn, DestFormat,
    DestinationType, DestroyFlowGroupIn, DestroyFlowTableIn, FlowContext, FlowTableContext, FlowTableType,
    FteMatchParam, ModifyFlowTableIn, SetFlowTableRootIn, SetFteIn,
};
use hca_prm::{CmdStatus, Opcode};

use super::Tir;
use super::frame::Fields;
use super::uses::{Kept, Thing, Uses};
use crate::command::caps::LOG_ETHERNET;
use crate::command::{Numbers, Output, parse};

/// Flows of a table, as a power of two, and of all tables together.
const MAX_LOG_SIZE: u32 = 16;
pub(crate) const MAX_FLOWS: usize = 1 << 13;
/// Destinations of a flow.
const MAX_DESTINATIONS: usize = 64;
/// Tables that one frame comes through, groups after which it comes through no more of them, and places that it is
/// copied to.
const MAX_TABLES: usize = 64;
const MAX_LOOKS: usize = 512;
const MAX_COPIES: usize = 16;
/// The action of a flow.
const DROP: u32 = 2;
const FORWARD: u32 = 4;
/// Actions of flows for what is received.
const ACTIONS: u32 = 0xf;
/// The mask of a flow's changed fields: its action, tag, destinations.
const CHANGES_ACTION: u32 = 1;
const CHANGES_TAG: u32 = 2;
const CHANGES_DESTINATIONS: u32 = 4;
/// A table that frames go to that no flow is for.
const MISS_TABLE: u32 = 1;
/// The variant by which there is no first table any more.
const NO_ROOT: u32 = 1;

/// Bytes of criteria: the outer headers, and all others.
const OUTER: usize = size_of::<Fields>();
const ALL: usize = FteMatchParam::SIZE;
/// Bytes of criteria for which there is one bit each: the outer headers, miscellaneous, the inner headers, and so on.
const PART: usize = 64;

/// A flow.
#[derive(Debug)]
struct Flow {
    /// The first index of its group.
    group: u32,
    /// The bits that the group looks at; `None`: no frame has them, as it wants something of what is not looked at.
    value: Option<Fields>,
    tag: u32,
    action: u32,
    destinations: Vec<Thing>,
}

/// A range of flows that look at the same bits.
#[derive(Debug)]
struct Group {
    number: u32,
    end: u32,
    mask: Box<[u8; ALL]>,
    by_value: HashMap<Fields, BTreeSet<u32>>,
}

/// A table.
#[derive(Debug)]
struct Table {
    kind: u32,
    log_size: u32,
    miss: Option<u32>,
    /// By their first index.
    groups: BTreeMap<u32, Group>,
    flows: BTreeMap<u32, Flow>,
}

/// The tables of a function.
#[derive(Debug, Default)]
pub(super) struct Tables {
    tables: BTreeMap<u32, Table>,
    numbers: Numbers,
    groups: Numbers,
    /// The first table for what is received.
    root: Option<u32>,
    flows: usize,
}

/// Where a frame goes, and with which tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tirn: u32,
    pub(super) tag: u32,
}

impl Group {
    fn outer(&self, fields: &Fields) -> Fields {
        core::array::from_fn(|i| fields[i] & self.mask[i])
    }
}

impl Table {
    /// The flow for a frame with these headers. Each group that is looked at is counted.
    fn find(&self, fields: &Fields, looks: &mut usize) -> Option<&Flow> {
        self.groups.values().find_map(|group| {
            *looks += 1;
            let index = group.by_value.get(&group.outer(fields))?.first()?;
            self.flows.get(index)
        })
    }

    /// Takes a flow out; what it names is let go of.
    fn remove(&mut self, index: u32, uses: &mut Uses) -> Option<Flow> {
        let flow = self.flows.remove(&index)?;
        if let (Some(value), Some(group)) = (flow.value, self.groups.get_mut(&flow.group)) {
            let same = group.by_value.get_mut(&value);
            if same.is_some_and(|same| same.remove(&index) && same.is_empty()) {
                group.by_value.remove(&value);
            }
        }
        flow.destinations.iter().for_each(|thing| uses.remove(*thing));
        Some(flow)
    }

    fn insert(&mut self, index: u32, flow: Flow, uses: &mut Uses) {
        if let (Some(value), Some(group)) = (flow.value, self.groups.get_mut(&flow.group)) {
            group.by_value.entry(value).or_default().insert(index);
        }
        flow.destinations.iter().for_each(|thing| uses.add(*thing));
        self.flows.insert(index, flow);
    }
}

impl Tables {
    /// Where a frame with these headers goes. What it looks at is taken from `steps`.
    pub(super) fn route(&self, fields: &Fields, steps: &mut usize) -> Vec<Place> {
        let mut places = Vec::new();
        let mut tables: Vec<u32> = self.root.into_iter().collect();
        let (mut at, mut looks) = (0, 0);
        while let Some(table) = tables.get(at).and_then(|number| self.tables.get(number)) {
            if looks >= MAX_LOOKS {
                break;
            }
            (at, looks) = (at + 1, looks + 1);
            match table.find(fields, &mut looks) {
                None => tables.extend(table.miss),
                Some(flow) if flow.action & (DROP | FORWARD) == FORWARD => {
                    for thing in &flow.destinations {
                        match thing {
                            Thing::Table(number) => tables.push(*number),
                            Thing::Tir(tirn) => places.push(Place { tirn: *tirn, tag: flow.tag }),
                            _ => {}
                        }
                    }
                }
                Some(_) => {}
            }
            tables.truncate(MAX_TABLES);
            places.truncate(MAX_COPIES);
        }
        *steps = steps.saturating_sub(looks);
        places
    }

    /// A table of this kind.
    fn table(&mut self, number: u32, kind: u32) -> Result<&mut Table, CmdStatus> {
        self.tables.get_mut(&number).filter(|table| table.kind == kind).ok_or(CmdStatus::BadRes)
    }

    /// The table that another one of its kind leads to where no flow is for a frame.
    fn miss(&self, context: &FlowTableContext, kind: u32) -> Result<Option<u32>, CmdStatus> {
        if context.get(FlowTableContext::TABLE_MISS_ACTION) != MISS_TABLE {
            return Ok(None);
        }
        let miss = context.get(FlowTableContext::TABLE_MISS_ID);
        match self.tables.get(&miss) {
            Some(table) if table.kind == kind => Ok(Some(miss)),
            _ => Err(CmdStatus::BadRes),
        }
    }

    pub(super) fn command(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        (tirs, uses): (&Kept<Tir>, &mut Uses),
        out: &mut Output,
    ) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_FLOW_TABLE => self.create_table(&parse(input)?, uses, out),
            Opcode::MODIFY_FLOW_TABLE => self.modify_table(&parse(input)?, uses),
            Opcode::DESTROY_FLOW_TABLE => self.destroy_table(&parse(input)?, uses),
            Opcode::SET_FLOW_TABLE_ROOT => self.set_root(&parse(input)?),
            Opcode::CREATE_FLOW_GROUP => self.create_group(&parse(input)?, out),
            Opcode::DESTROY_FLOW_GROUP => self.destroy_group(&parse(input)?),
            Opcode::SET_FLOW_TABLE_ENTRY => {
                self.set_flow(&parse(input)?, &input[SetFteIn::SIZE..], (tirs, uses))
            }
            Opcode::DELETE_FLOW_TABLE_ENTRY => self.delete_flow(&parse(input)?, uses),
            _ => Err(CmdStatus::BadOp),
        }
    }

    fn create_table(
        &mut self,
        command: &CreateFlowTableIn,
        uses: &mut Uses,
        out: &mut Output,
    ) -> Result<(), CmdStatus> {
        let kind = command.get(CreateFlowTableIn::TABLE_TYPE);
        let context = command.get(CreateFlowTableIn::FLOW_TABLE_CONTEXT);
        let log_size = context.get(FlowTableContext::LOG_SIZE);
        if FlowTableType::from_code(kind).is_none() || log_size > MAX_LOG_SIZE {
            return Err(CmdStatus::BadParam);
        }
        let miss = self.miss(&context, kind)?;
        let number = self.numbers.alloc(LOG_ETHERNET)?;
        miss.iter().for_each(|miss| uses.add(Thing::Table(*miss)));
        let table = Table { kind, log_size, miss, groups: BTreeMap::new(), flows: BTreeMap::new() };
        self.tables.insert(number, table);
        out.put(&CreateFlowTableOut::new().with(CreateFlowTableOut::TABLE_ID, number))
    }

    fn modify_table(&mut self, command: &ModifyFlowTableIn, uses: &mut Uses) -> Result<(), CmdStatus> {
        let (kind, number) =
            (command.get(ModifyFlowTableIn::TABLE_TYPE), command.get(ModifyFlowTableIn::TABLE_ID));
        self.table(number, kind)?;
        if command.get(ModifyFlowTableIn::MODIFY_FIELD_SELECT) & MISS_TABLE != 0 {
            let miss = self.miss(&command.get(ModifyFlowTableIn::FLOW_TABLE_CONTEXT), kind)?;
            let old = std::mem::replace(&mut self.table(number, kind)?.miss, miss);
            miss.iter().for_each(|miss| uses.add(Thing::Table(*miss)));
            old.iter().for_each(|old| uses.remove(Thing::Table(*old)));
        }
        Ok(())
    }

    /// Takes a table away that nothing leads to and that is empty; it may be the first one, as Linux leaves it.
    fn destroy_table(&mut self, command: &DestroyFlowTableIn, uses: &mut Uses) -> Result<(), CmdStatus> {
        let number = command.get(DestroyFlowTableIn::TABLE_ID);
        let table = self.table(number, command.get(DestroyFlowTableIn::TABLE_TYPE))?;
        if !table.groups.is_empty() || uses.has(Thing::Table(number)) {
            return Err(CmdStatus::BadResState);
        }
        if let Some(miss) = table.miss {
            uses.remove(Thing::Table(miss));
        }
        self.tables.remove(&number);
        self.root = self.root.filter(|root| *root != number);
        self.numbers.free(number)
    }

    fn set_root(&mut self, command: &SetFlowTableRootIn) -> Result<(), CmdStatus> {
        let kind = command.get(SetFlowTableRootIn::TABLE_TYPE);
        let received = kind == FlowTableType::NicRx.code();
        if command.get(SetFlowTableRootIn::OP_MOD) == NO_ROOT {
            self.root = self.root.filter(|_| !received);
            return Ok(());
        }
        let number = command.get(SetFlowTableRootIn::TABLE_ID);
        self.table(number, kind)?;
        if received {
            self.root = Some(number);
        }
        Ok(())
    }

    fn create_group(&mut self, command: &CreateFlowGroupIn, out: &mut Output) -> Result<(), CmdStatus> {
        let kind = command.get(CreateFlowGroupIn::TABLE_TYPE);
        let table = command.get(CreateFlowGroupIn::TABLE_ID);
        let (start, end) = (
            command.get(CreateFlowGroupIn::START_FLOW_INDEX),
            command.get(CreateFlowGroupIn::END_FLOW_INDEX),
        );
        let there = self.table(table, kind)?;
        let before = there.groups.range(..=end).next_back();
        if start > end || end >> there.log_size != 0 || before.is_some_and(|(_, group)| group.end >= start) {
            return Err(CmdStatus::BadParam);
        }
        let number = self.groups.alloc(LOG_ETHERNET)?;
        let enabled = command.get(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE);
        let mut mask = Box::new(*command.get(CreateFlowGroupIn::MATCH_CRITERIA).as_bytes());
        for (i, part) in mask.chunks_mut(PART).enumerate() {
            if enabled >> i & 1 == 0 {
                part.fill(0);
            }
        }
        let group = Group { number, end, mask, by_value: HashMap::new() };
        self.table(table, kind)?.groups.insert(start, group);
        out.put(&CreateFlowGroupOut::new().with(CreateFlowGroupOut::GROUP_ID, number))
    }

    fn destroy_group(&mut self, command: &DestroyFlowGroupIn) -> Result<(), CmdStatus> {
        let number = command.get(DestroyFlowGroupIn::GROUP_ID);
        let kind = command.get(DestroyFlowGroupIn::TABLE_TYPE);
        let table = self.table(command.get(DestroyFlowGroupIn::TABLE_ID), kind)?;
        let (start, end) = table.group(number)?;
        if table.flows.range(start..=end).next().is_some() {
            return Err(CmdStatus::BadResState);
        }
        table.groups.remove(&start);
        self.groups.free(number)
    }

    /// Sets a flow, or changes one that is there.
    fn set_flow(
        &mut self,
        command: &SetFteIn,
        list: &[u8],
        (tirs, uses): (&Kept<Tir>, &mut Uses),
    ) -> Result<(), CmdStatus> {
        let (kind, index) = (command.get(SetFteIn::TABLE_TYPE), command.get(SetFteIn::FLOW_INDEX));
        let full = self.flows >= MAX_FLOWS;
        let number = command.get(SetFteIn::TABLE_ID);
        self.table(number, kind)?;
        let context = command.get(SetFteIn::FLOW_CONTEXT);
        let received = kind == FlowTableType::NicRx.code();
        if received && context.get(FlowContext::ACTION) & !ACTIONS != 0 {
            return Err(CmdStatus::BadParam);
        }
        let destinations = self.destinations(&context, list, kind, tirs)?;
        let table = self.table(number, kind)?;
        let (tag, action) = (context.get(FlowContext::FLOW_TAG), context.get(FlowContext::ACTION));
        if command.get(SetFteIn::OP_MOD) != 0 {
            let changed = command.get(SetFteIn::MODIFY_ENABLE_MASK);
            let mut flow = table.remove(index, uses).ok_or(CmdStatus::BadRes)?;
            if changed & CHANGES_ACTION != 0 {
                flow.action = action;
            }
            if changed & CHANGES_TAG != 0 {
                flow.tag = tag;
            }
            if changed & CHANGES_DESTINATIONS != 0 {
                flow.destinations = destinations;
            }
            table.insert(index, flow, uses);
            return Ok(());
        }
        let (start, end) = table.group(context.get(FlowContext::GROUP_ID))?;
        if !(start..=end).contains(&index) {
            return Err(CmdStatus::IxErr);
        }
        let there = table.flows.contains_key(&index);
        if full && !there {
            return Err(CmdStatus::NoRes);
        }
        let group = table.groups.get(&start).ok_or(CmdStatus::BadRes)?;
        let wanted = context.get(FlowContext::MATCH_VALUE);
        let masked: [u8; ALL] = core::array::from_fn(|i| wanted.as_bytes()[i] & group.mask[i]);
        // Of what is not looked at, frames have zeros.
        let possible = masked[OUTER..].iter().all(|byte| *byte == 0);
        let value = masked.first_chunk().copied().filter(|_| possible);
        table.remove(index, uses);
        table.insert(index, Flow { group: start, value, tag, action, destinations }, uses);
        self.flows += usize::from(!there);
        Ok(())
    }

    /// What a flow leads to. Where nobody looks at its table that may be anything.
    fn destinations(
        &self,
        context: &FlowContext,
        list: &[u8],
        kind: u32,
        tirs: &Kept<Tir>,
    ) -> Result<Vec<Thing>, CmdStatus> {
        if context.get(FlowContext::ACTION) & FORWARD == 0 {
            return Ok(Vec::new());
        }
        let count = context.get(FlowContext::DESTINATION_LIST_SIZE) as usize;
        if count > MAX_DESTINATIONS || context.get(FlowContext::EXTENDED_DESTINATION) {
            return Err(CmdStatus::BadParam);
        }
        let list = list.get(..count * DestFormat::SIZE).ok_or(CmdStatus::BadInpLen)?;
        let mut destinations = Vec::with_capacity(count);
        for bytes in list.as_chunks::<{ DestFormat::SIZE }>().0 {
            let place = DestFormat::from_array(*bytes);
            let number = place.get(DestFormat::DESTINATION_ID);
            match DestinationType::from_code(place.get(DestFormat::DESTINATION_TYPE)) {
                Some(DestinationType::Tir) if tirs.get(number).is_some() => {
                    destinations.push(Thing::Tir(number));
                }
                Some(DestinationType::FlowTable)
                    if self.tables.get(&number).is_some_and(|table| table.kind == kind) =>
                {
                    destinations.push(Thing::Table(number));
                }
                Some(DestinationType::Tir | DestinationType::FlowTable) => return Err(CmdStatus::BadRes),
                _ if kind == FlowTableType::NicRx.code() => return Err(CmdStatus::BadParam),
                _ => {}
            }
        }
        Ok(destinations)
    }

    fn delete_flow(&mut self, command: &DeleteFteIn, uses: &mut Uses) -> Result<(), CmdStatus> {
        let table = self.table(command.get(DeleteFteIn::TABLE_ID), command.get(DeleteFteIn::TABLE_TYPE))?;
        table.remove(command.get(DeleteFteIn::FLOW_INDEX), uses).ok_or(CmdStatus::BadRes)?;
        self.flows -= 1;
        Ok(())
    }
}

impl Table {
    /// The range of the group with this number.
    fn group(&self, number: u32) -> Result<(u32, u32), CmdStatus> {
        let found = self.groups.iter().find(|(_, group)| group.number == number);
        found.map(|(start, group)| (*start, group.end)).ok_or(CmdStatus::BadRes)
    }
}
