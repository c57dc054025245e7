//! Plays a scenario: a target and its senders as nodes of one loopback network, moved by this thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::portals::trace::{EntryHandle, Reason, Step, Trace};
use ::portals::v4::{
    AckReq, AtomicOp, Datatype, EqHandle, Event, EventKind, Fetch, Get, Limits, ListKind, Md, MdOptions, Me,
    MeHandle, MeOptions, Ni, NiFail, NiOptions, Process, PtOptions, Put, Source, Uid,
};
use ::portals::{Listed, Memory, Nid, Node, NodeOptions, Pid};
use hca::{Opened, open_exactly};
use hca_perf::Failure;

use super::record::{Compared, Happened, Outcome, Record};
use super::scenario::{
    EntryOption, Expect, FIRST_SENDER, From, Kind, Message, PortalOption, Post, Scenario, ScenarioError,
    Statement, What, Wrong,
};

/// How long a message may take inside this process.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process of a scenario.
struct Actor {
    ni: Ni,
    /// Of a sender: what its operations report to.
    eq: EqHandle,
    _device: Opened,
}

/// An entry that was posted.
struct Posted {
    post: Post,
    handle: MeHandle,
    memory: Memory,
}

/// A scenario that is being played.
pub(super) struct Stage<'a> {
    scenario: &'a Scenario,
    cards: Arc<Mutex<Listed>>,
    net: String,
    target: Actor,
    senders: BTreeMap<String, Actor>,
    entries: Vec<Posted>,
    events: BTreeMap<u32, EqHandle>,
    disabled: BTreeSet<u32>,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl<'a> Stage<'a> {
    /// Opens the target and the first sender.
    pub(super) fn new(scenario: &'a Scenario, number: usize) -> Result<Self, Failure> {
        let cards = Arc::new(Mutex::new(Listed::default()));
        let net = format!("loopback://portals-trace-{number}?progress=inline");
        let target = process(&net, &cards, None)?;
        let steps = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&steps);
        target.ni.set_trace(Some(Trace::new(move |step| {
            log.lock().unwrap_or_else(PoisonError::into_inner).push(*step);
        })));
        let first = process(&net, &cards, None)?;
        let senders = BTreeMap::from([(FIRST_SENDER.to_owned(), first)]);
        let (entries, events, disabled) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        Ok(Self { scenario, cards, net, target, senders, entries, events, disabled, steps })
    }

    /// Executes the next statement.
    pub(super) fn play(&mut self, statement: &Statement) -> Result<Record, Failure> {
        let mut record = Record::new(&self.scenario.name, statement);
        let done = match &statement.what {
            What::Sender { name, uid } => self.sender(name, *uid),
            What::Portal { index, options, events } => self.portal(*index, options, *events),
            What::Post(post) => self.post(post),
            What::Unlink { name } => self.unlink(name),
            What::Enable { index } => {
                self.disabled.remove(index);
                Ok(self.target.ni.pt_enable(*index)?)
            }
            What::Disable { index } => {
                self.disabled.insert(*index);
                Ok(self.target.ni.pt_disable(*index)?)
            }
            What::Message(message) => self.message(message, &mut record),
        };
        // A refusal by the interface is a fault of the line; other errors are not.
        done.map_err(|e: Failure| match e.downcast::<::portals::v4::Error>() {
            Ok(refused) => Failure::from(ScenarioError {
                name: self.scenario.name.clone(),
                line: statement.line,
                why: Wrong::Refused(refused.to_string()),
            }),
            Err(other) => other,
        })?;
        record.events = self.happened()?;
        Ok(record)
    }

    fn sender(&mut self, name: &str, uid: Option<u32>) -> Result<(), Failure> {
        let sender = process(&self.net, &self.cards, uid)?;
        self.senders.insert(name.to_owned(), sender);
        Ok(())
    }
    fn portal(&mut self, index: u32, options: &[PortalOption], events: u32) -> Result<(), Failure> {
        let eq = self.target.ni.eq_alloc(events)?;
        let options = options.iter().fold(PtOptions::empty(), |all, option| {
            all | match option {
                PortalOption::FlowControl => PtOptions::FLOWCTRL,
                PortalOption::OnlyUseOnce => PtOptions::ONLY_USE_ONCE,
                PortalOption::OnlyTruncate => PtOptions::ONLY_TRUNCATE,
            }
        });
        self.target.ni.pt_alloc(options, Some(eq), Some(index))?;
        self.events.insert(index, eq);
        Ok(())
    }
    fn post(&mut self, post: &Post) -> Result<(), Failure> {
        let source = match &post.from {
            From::Any => Source::ANY,
            From::Sender(name) => Source::exactly(self.senders[name].ni.phys_id()),
            From::Numbers(nid, pid) => Source::physical(nid.map(Nid), pid.map(Pid)),
        };
        let options = post.options.iter().fold(MeOptions::EVENT_LINK_DISABLE, |all, option| {
            all | match option {
                EntryOption::Put => MeOptions::OP_PUT,
                EntryOption::Get => MeOptions::OP_GET,
                EntryOption::UseOnce => MeOptions::USE_ONCE,
                EntryOption::ManageLocal => MeOptions::MANAGE_LOCAL,
                EntryOption::MayAlign => MeOptions::MAY_ALIGN,
                EntryOption::NoTruncate => MeOptions::NO_TRUNCATE,
                EntryOption::NoHeader => MeOptions::UNEXPECTED_HDR_DISABLE,
            }
        });
        let memory = self.target.ni.alloc(post.length as usize)?;
        let me = Me {
            uid: post.uid.map(Uid),
            options,
            match_id: source,
            match_bits: post.bits,
            ignore_bits: post.ignore,
            min_free: post.min_free,
            ..Me::new(&memory)
        };
        let list = if post.overflow { ListKind::Overflow } else { ListKind::Priority };
        let number = self.entries.len() as u64;
        let handle = self.target.ni.me_append(post.portal, &me, list, number)?;
        self.entries.push(Posted { post: post.clone(), handle, memory });
        Ok(())
    }
    fn unlink(&mut self, name: &str) -> Result<(), Failure> {
        let posted = self.entries.iter().find(|posted| posted.post.name == name);
        Ok(self.target.ni.me_unlink(posted.expect("the reader knows it").handle)?)
    }

    fn message(&mut self, message: &Message, record: &mut Record) -> Result<(), Failure> {
        self.steps().clear();
        let event = self.send(message)?;
        let steps = std::mem::take(&mut *self.steps());
        let sender = self.senders[&message.by].ni.phys_id();
        let closed = self.disabled.contains(&message.portal);
        for step in &steps {
            // At a disabled portal no entry is asked.
            if let Step::Asked { entry, list, refuses } = *step
                && !closed
            {
                record.compared.push(self.compared(message, sender, entry, list, refuses));
            }
        }
        let landed = steps.iter().rev().find_map(|step| match *step {
            Step::Done { entry, list, offset, mlength, .. } => Some((entry, list, offset, mlength)),
            _ => None,
        });
        record.outcome = Some(self.outcome(message, &event, landed, closed));
        Ok(())
    }
    /// Sends a message and waits for the initiator's event.
    fn send(&self, message: &Message) -> Result<Event, Failure> {
        let Actor { ni, eq, .. } = &self.senders[&message.by];
        let memory = ni.alloc(message.length as usize)?;
        let options = MdOptions::EVENT_SEND_DISABLE;
        let md = ni.md_bind(&Md { options, eq: Some(*eq), ..Md::new(&memory) })?;
        let (to, pt, length) = (self.target.ni.phys_id(), message.portal, message.length);
        let (match_bits, remote_offset) = (message.bits, message.offset);
        match message.kind {
            Kind::Put => {
                let ack_req = AckReq::Ack;
                ni.put(&Put { match_bits, remote_offset, ack_req, ..Put::new(md, length, to, pt) })?;
            }
            Kind::Get => ni.get(&Get { match_bits, remote_offset, ..Get::new(md, length, to, pt) })?,
            Kind::FetchAdd => {
                let fetch = Fetch { match_bits, remote_offset, ..Fetch::new(md, md, length, to, pt) };
                ni.fetch_atomic(&fetch, AtomicOp::Sum, Datatype::U64)?;
            }
        }
        let begin = Instant::now();
        loop {
            self.target.ni.node().progress();
            if let Some(got) = ni.eq_get(*eq)? {
                ni.md_release(md)?;
                return Ok(got.event);
            }
            if begin.elapsed() > PATIENCE {
                return Err("a message inside this process was not answered for 10 s".into());
            }
        }
    }

    fn compared(
        &self,
        message: &Message,
        sender: Process,
        entry: EntryHandle,
        list: ListKind,
        refuses: Option<Reason>,
    ) -> Compared {
        let posted = self.posted(entry);
        let Some(posted) = posted else { return Compared::unknown(list, refuses) };
        let Post { bits, ignore, from, .. } = &posted.post;
        let differ = (bits ^ message.bits) & !ignore;
        let why = match refuses {
            None => "takes it".to_owned(),
            Some(Reason::Bits) => format!("bits differ in {differ:#x}"),
            Some(Reason::Source) => format!("the message is from {} ({sender:?})", message.by),
            Some(Reason::Inactive) => format!("has less than {} B left", posted.post.min_free),
            Some(Reason::TooLong) => format!("{} B do not fit, and it does not truncate", message.length),
            Some(Reason::Operation) => "matches, and does not allow this operation".to_owned(),
            Some(Reason::Permission) => {
                let (uid, of) = (posted.post.uid.unwrap_or(0), self.senders[&message.by].ni.uid().0);
                format!("matches, and is for user {uid}; {} is user {of}", message.by)
            }
            Some(Reason::User) => "is for another user or job".to_owned(),
            Some(Reason::NoMemory) => "has no memory".to_owned(),
        };
        Compared {
            entry: posted.post.name.clone(),
            list: list_name(list).to_owned(),
            bits: *bits,
            ignore: *ignore,
            from: match from {
                From::Any => "any".to_owned(),
                From::Sender(name) => name.clone(),
                From::Numbers(nid, pid) => format!("{}:{}", number(*nid), number(*pid)),
            },
            takes: refuses.is_none(),
            why,
        }
    }

    fn outcome(
        &self,
        message: &Message,
        event: &Event,
        landed: Option<(EntryHandle, ListKind, u64, u64)>,
        closed: bool,
    ) -> Outcome {
        let fail = event.ni_fail_type;
        let entry = landed.and_then(|(entry, ..)| self.posted(entry)).map(|posted| posted.post.name.clone());
        let text = match (fail, landed) {
            (NiFail::Ok, Some((_, list, offset, mlength))) => {
                let cut =
                    if mlength < message.length { format!(" of {}", message.length) } else { String::new() };
                let name = entry.as_deref().unwrap_or("an entry");
                let waits = if list == ListKind::Overflow { "; its header waits for an entry" } else { "" };
                format!("{mlength} B{cut} at offset {offset} of {name}{waits}")
            }
            (NiFail::Ok, None) => "taken".to_owned(),
            (NiFail::PtDisabled, _) if closed => {
                format!("portal {0} is disabled: `enable {0}` enables it again", message.portal)
            }
            (NiFail::PtDisabled, _) => {
                format!("no entry takes it, and flow control disables portal {}", message.portal)
            }
            (NiFail::Dropped, _) if !self.events.contains_key(&message.portal) => {
                format!("dropped: there is no portal {}", message.portal)
            }
            (NiFail::Dropped, _) => "dropped: no entry takes it".to_owned(),
            (NiFail::PermViolation, _) => "refused: the entry that matches is for another user".to_owned(),
            (NiFail::OpViolation, _) => {
                "refused: the entry that matches does not allow this operation".to_owned()
            }
            (other, _) => format!("failed: {other:?}"),
        };
        let expected = message.expect.map(|expect| fail == expected(expect));
        let (mlength, offset) = landed.map_or((0, 0), |(_, _, offset, mlength)| (mlength, offset));
        let wanted = message.expect.map(|expect| format!("{expect:?}").to_lowercase());
        Outcome { fail: format!("{fail:?}"), entry, mlength, offset, text, wanted, expected }
    }

    /// What happened at the target.
    fn happened(&mut self) -> Result<Vec<Happened>, Failure> {
        let mut all = Vec::new();
        for (&portal, &eq) in &self.events {
            while let Some(got) = self.target.ni.eq_get(eq)? {
                if got.dropped {
                    all.push(Happened::lost());
                }
                if got.event.kind == EventKind::PtDisabled {
                    self.disabled.insert(portal);
                }
                all.push(self.event(&got.event));
            }
        }
        Ok(all)
    }
    fn event(&self, event: &Event) -> Happened {
        let Event { kind, mlength, start, .. } = *event;
        let entry = match kind {
            EventKind::PtDisabled => None,
            _ => self.entries.get(event.user_ptr as usize).map(|posted| posted.post.name.clone()),
        };
        let holds = |posted: &&Posted| {
            (posted.memory.addr()..posted.memory.addr() + posted.memory.len() as u64).contains(&start)
        };
        let place = self.entries.iter().find(holds);
        let of = entry.as_deref().unwrap_or_default();
        let text = match kind {
            EventKind::PtDisabled => {
                format!("portal {0} is disabled until `enable {0}`", event.pt_index)
            }
            EventKind::PutOverflow
            | EventKind::GetOverflow
            | EventKind::AtomicOverflow
            | EventKind::FetchAtomicOverflow => {
                let place = place.map_or("nowhere", |posted| posted.post.name.as_str());
                format!("{of} finds a message that arrived before it: {mlength} B in {place}")
            }
            EventKind::AutoUnlink => format!("{of} is used up and unlinked"),
            EventKind::AutoFree => format!("no header waits any more for what is in {of}"),
            _ => format!("{mlength} B in {of}"),
        };
        Happened { event: format!("{kind:?}"), entry, mlength, text }
    }

    fn posted(&self, entry: EntryHandle) -> Option<&Posted> {
        self.entries.iter().find(|posted| posted.handle.traced() == entry)
    }
    fn steps(&self) -> std::sync::MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn process(net: &str, cards: &Arc<Mutex<Listed>>, uid: Option<u32>) -> Result<Actor, Failure> {
    let device = open_exactly(&net.parse()?)?;
    let mut options = NodeOptions { directory: cards.clone(), ..NodeOptions::default() };
    if let Some(uid) = uid {
        options.uid = Uid(uid);
    }
    let node = Node::open(device.context(), options)?;
    cards.lock().unwrap_or_else(PoisonError::into_inner).0.push(node.card());
    let ni = Ni::init(&node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default())?;
    let eq = ni.eq_alloc(64)?;
    Ok(Actor { ni, eq, _device: device })
}

fn expected(expect: Expect) -> NiFail {
    match expect {
        Expect::Ok => NiFail::Ok,
        Expect::Dropped => NiFail::Dropped,
        Expect::Disabled => NiFail::PtDisabled,
        Expect::Permission => NiFail::PermViolation,
        Expect::Operation => NiFail::OpViolation,
    }
}

pub(super) fn list_name(list: ListKind) -> &'static str {
    match list {
        ListKind::Priority => "priority",
        ListKind::Overflow => "overflow",
    }
}

/// A node's or a process's number, or any.
fn number(number: Option<u32>) -> String {
    number.map_or("*".to_owned(), |n| n.to_string())
}
