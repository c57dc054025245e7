//! The events of a process, compared with the expected events.

use portals::v4::{Event, EventKind, ListKind, NiFail, Process, StatusRegister};

use crate::host::{BOX, CELLS, FLOW, Overflow, Role, WINDOW, cell_bytes};
use crate::ops::{Expect, Kind, Op, Seen, combine, is_short};
use crate::world::{Checked, World};

impl World {
    /// Takes all events of a process.
    pub(crate) fn poll(&mut self, h: usize) -> Checked<()> {
        loop {
            let host = self.host(h);
            let got = host.ni.eq_get(host.eq).expect("the queue is there");
            let Some(got) = got else { break };
            if got.dropped {
                return Err(self.broken(format!("n{h}: events were lost where there was room for all")));
            }
            self.tell(h, &got.event)?;
        }
        loop {
            // The small queue is left to fill now and then.
            if !self.finishing && self.rng.chance(0.3) {
                break;
            }
            let host = self.host(h);
            let got = host.ni.eq_get(host.flow_eq).expect("the queue is there");
            let Some(got) = got else { break };
            if got.dropped {
                return Err(self.broken(format!("n{h}: flow control lost events")));
            }
            self.tell(h, &got.event)?;
        }
        Ok(())
    }
    fn tell(&mut self, h: usize, event: &Event) -> Checked<()> {
        if self.sim_prints() {
            self.sim.note(format!("n{h} is told {event:?}"));
        }
        self.report.events += 1;
        let ended = (event.kind as u64) << 8 | event.ni_fail_type as u64 | (h as u64) << 16;
        for word in [self.now().as_nanos(), ended, event.user_ptr, event.match_bits, event.mlength] {
            self.report.told = (self.report.told.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        match event.kind {
            EventKind::Send => self.tell_sent(h, event),
            EventKind::Ack | EventKind::Reply => self.tell_answered(h, event),
            EventKind::Put | EventKind::Get | EventKind::Atomic | EventKind::FetchAtomic => {
                self.tell_done(h, event)
            }
            EventKind::PutOverflow => self.tell_found(h, event),
            EventKind::AutoUnlink | EventKind::AutoFree => self.tell_end(h, event),
            EventKind::Search if event.ni_fail_type == NiFail::NoMatch => Ok(()),
            EventKind::PtDisabled if event.pt_index == FLOW => {
                let now = self.now();
                let wait = self.rng.up_to(std::time::Duration::from_millis(1));
                self.host(h).flow_disabled = Some(now + wait);
                self.report.disabled += 1;
                Ok(())
            }
            _ => Err(self.broken(format!("n{h}: an event that nothing led to: {event:?}"))),
        }
    }
    /// The operation that an event of its initiator is of.
    fn op_of(&self, h: usize, event: &Event) -> Checked<usize> {
        let index = event.user_ptr as usize;
        let incarnation = self.hosts[h].as_ref().expect("it is told").incarnation;
        let op = self.ops.get(index).filter(|op| (op.src, op.incarnation) == (h, incarnation));
        let op =
            op.ok_or_else(|| self.broken(format!("n{h}: an event of no operation of its: {event:?}")))?;
        let fits = event.initiator == self.process(op.dst)
            && (event.pt_index, event.rlength) == (op.pt, op.len as u64)
            && event.match_bits == op.tag | (index as u64) << 16;
        if !fits {
            return Err(self.broken(format!("n{h}: {event:?} is not as {op:?}")));
        }
        Ok(index)
    }
    fn tell_sent(&mut self, h: usize, event: &Event) -> Checked<()> {
        let index = self.op_of(h, event)?;
        let now = self.now();
        let op = &self.ops[index];
        if op.sent.is_some() || !op.kind.writes() || op.answered.is_some() {
            return Err(
                self.broken(format!("operation {index} is sent twice or too late: {event:?}, {op:?}"))
            );
        }
        match event.ni_fail_type {
            NiFail::Ok => {}
            NiFail::Undeliverable if self.is_excused(op, now) => {}
            fail => return Err(self.broken(format!("operation {index} was not sent: {fail:?}, {op:?}"))),
        }
        self.fired(h, index, event.ni_fail_type)?;
        let op = &mut self.ops[index];
        op.sent = Some(event.ni_fail_type);
        let (operand_at, md) = (op.operand_at, op.md);
        let host = self.host(h);
        host.counts[md].failed += u64::from(event.ni_fail_type != NiFail::Ok);
        if let Some(wrong) = operand_at.and_then(|at| host.operands.give_back(at)) {
            return Err(self.broken(format!("operand of operation {index}: {wrong}")));
        }
        Ok(())
    }
    fn tell_answered(&mut self, h: usize, event: &Event) -> Checked<()> {
        let index = self.op_of(h, event)?;
        let now = self.now();
        let op = &self.ops[index];
        let right = op.is_told() && (event.kind == EventKind::Reply) == op.kind.replies();
        if op.answered.is_some() || !right || op.kind.writes() && op.sent.is_none() {
            return Err(
                self.broken(format!("operation {index}: answered twice or too early: {event:?}, {op:?}"))
            );
        }
        let fail = event.ni_fail_type;
        let fits = match (fail, op.expect) {
            (NiFail::Undeliverable, _) => self.is_excused(op, now),
            (NiFail::Ok, Expect::Ok | Expect::OkOr(_)) => true,
            (fail, Expect::Only(wanted) | Expect::OkOr(wanted)) => fail == wanted,
            _ => false,
        };
        if !fits {
            return Err(self.broken(format!("operation {index} ended with {fail:?}: {op:?}")));
        }
        let whole = op.pt != BOX;
        if fail == NiFail::Ok && whole && event.mlength != op.len as u64 {
            return Err(self.broken(format!("operation {index} moved {} bytes: {op:?}", event.mlength)));
        }
        if fail == NiFail::Undeliverable {
            self.report.undeliverable += 1;
            if !self.is_recent(op, now) {
                self.report.late += 1;
            }
        }
        self.heard(index);
        let op = &mut self.ops[index];
        op.answered = Some((fail, event.mlength));
        let retry = matches!(op.expect, Expect::OkOr(again) if again == fail);
        let (src, dst, pt, reply_at, len) = (op.src, op.dst, op.pt, op.reply_at, op.len);
        if retry {
            let wait = self.rng.up_to(std::time::Duration::from_millis(2));
            self.retries.push((now + wait, src, dst, pt));
        }
        let md = if reply_at.is_some() { crate::host::MD_REPLIES } else { self.ops[index].md };
        self.host(h).counts[md].failed += u64::from(fail != NiFail::Ok);
        match reply_at {
            Some(at) => self.take_reply(h, index, at, len, fail),
            None => Ok(()),
        }
    }
    fn take_reply(&mut self, h: usize, index: usize, at: usize, len: usize, fail: NiFail) -> Checked<()> {
        let mut bytes = vec![0; len];
        let host = self.host(h);
        host.replies.memory.read_at(at, &mut bytes);
        match fail {
            NiFail::Ok => host.replies.wrote(at, &bytes),
            NiFail::Undeliverable => host.replies.taint(at, len),
            _ => {}
        }
        if let Some(wrong) = host.replies.give_back(at) {
            return Err(self.broken(format!("reply of operation {index}: {wrong}")));
        }
        let op = &mut self.ops[index];
        if fail == NiFail::Ok {
            op.reply_came = Some(bytes);
        }
        self.check_reply(index)
    }
    fn check_reply(&self, index: usize) -> Checked<()> {
        let op = &self.ops[index];
        match (&op.reply_came, &op.reply_wanted) {
            (Some(came), Some(wanted)) if came != wanted => {
                let at = came.iter().zip(wanted).position(|(a, b)| a != b);
                Err(self
                    .broken(format!("the reply of operation {index} is wrong from byte {at:?} on: {op:?}")))
            }
            _ => Ok(()),
        }
    }

    /// The operation that an event of its target is of.
    fn op_at(&self, h: usize, event: &Event) -> Checked<usize> {
        let index = (event.match_bits >> 16) as usize;
        let broken = || self.broken(format!("n{h}: an event of no operation: {event:?}"));
        let op = self.ops.get(index).ok_or_else(broken)?;
        let hdr_data = if op.kind == Kind::Get { 0 } else { !(index as u64) };
        let told = (event.initiator, event.uid.0, event.pt_index, event.rlength, event.hdr_data);
        let wanted = (self.process(op.src), 1000 + op.src as u32, op.pt, op.len as u64, hdr_data);
        let fits = told == wanted
            && op.dst == h
            && event.match_bits & 0xffff == op.tag
            && event.remote_offset == op.remote as u64
            && !matches!(op.expect, Expect::Only(_));
        if fits { Ok(index) } else { Err(self.broken(format!("n{h}: {event:?} is not as {op:?}"))) }
    }
    fn tell_done(&mut self, h: usize, event: &Event) -> Checked<()> {
        let index = self.op_at(h, event)?;
        let now = self.now();
        let op = self.ops[index].clone();
        let kind = match op.kind {
            Kind::Put => EventKind::Put,
            Kind::Get => EventKind::Get,
            Kind::Atomic(_) => EventKind::Atomic,
            Kind::FetchAtomic(_) | Kind::Swap(_) => EventKind::FetchAtomic,
        };
        if op.seen.is_some() || event.kind != kind {
            return Err(self.broken(format!("n{h}: done twice, or otherwise: {event:?}, {op:?}")));
        }
        let fail = event.ni_fail_type;
        if fail != NiFail::Ok && !(fail == NiFail::Undeliverable && self.is_excused(&op, now)) {
            return Err(self.broken(format!("n{h}: {event:?} failed: {op:?}")));
        }
        self.check_order(h, index, &op)?;
        let role = Role::from_word(event.user_ptr);
        let waits = matches!(role, Some(Role::Overflow(_)));
        if waits != (event.ptl_list == ListKind::Overflow) {
            return Err(self.broken(format!("n{h}: {event:?} is of another list")));
        }
        self.ops[index].seen = Some(Seen { fail, mlength: event.mlength, waits });
        match role {
            Some(Role::Receive(i)) => self.received(h, index, i, event),
            Some(Role::Overflow(i)) => self.unexpected(h, index, i, event),
            Some(Role::Flow(i)) => self.flowed(h, index, i, event),
            Some(Role::Window(tag)) if tag == op.tag && op.pt == WINDOW => self.on_window(h, index, event),
            Some(Role::Log) => self.logged(h, index, event),
            _ => Err(self.broken(format!("n{h}: {event:?} is of an entry that was not for it"))),
        }
    }
    /// Short operations of one process are done in their order.
    fn check_order(&mut self, h: usize, index: usize, op: &Op) -> Checked<()> {
        if op.pt == FLOW || !is_short(op, self.plan.eager) {
            return Ok(());
        }
        let key = (op.src, op.incarnation);
        let before = self.host(h).latest.insert(key, index);
        match before {
            Some(before) if before > index => {
                Err(self
                    .broken(format!("n{h}: operation {index} came behind {before}, which is later: {op:?}")))
            }
            _ => Ok(()),
        }
    }
    /// The bytes of a put must be where the event says, and are there to stay.
    fn bytes_in_buffers(
        &mut self,
        h: usize,
        index: usize,
        event: &Event,
        room: (usize, usize),
    ) -> Checked<()> {
        let op = &self.ops[index];
        let payload = self.payloads[op.payload.0].clone();
        let bytes = &payload[op.payload.1..op.payload.1 + event.mlength as usize];
        let len = op.len;
        let host = self.host(h);
        let at = host.buffers.offset_of(event.start);
        if at < room.0 || at + event.mlength as usize > room.0 + room.1 {
            return Err(self.broken(format!("n{h}: {event:?} is not within its entry's {room:?}")));
        }
        if event.ni_fail_type != NiFail::Ok {
            let most = len.min(room.0 + room.1 - at);
            host.buffers.taint(at, most);
            return Ok(());
        }
        host.buffers.wrote(at, bytes);
        match host.buffers.wrong(at, bytes.len()) {
            Some(wrong) => Err(self.broken(format!("n{h}: the bytes of operation {index}: {wrong}"))),
            None => Ok(()),
        }
    }
    fn received(&mut self, h: usize, index: usize, i: usize, event: &Event) -> Checked<()> {
        let (src, tag, len) = (self.ops[index].src, self.ops[index].tag, self.ops[index].len);
        let host = self.host(h);
        let receive = &mut host.receives[i];
        receive.took += 1;
        let (took, buffer) = (receive.took, receive.buffer.expect("a search takes nothing that comes"));
        let fits = receive.from.is_none_or(|from| from == src) && receive.tag.is_none_or(|t| t == tag);
        host.matched.push((index, i));
        let wanted = if event.is_ok() { len.min(buffer.1) as u64 } else { 0 };
        if !fits || took > 1 || event.mlength != wanted {
            return Err(self.broken(format!("n{h}: receive {i} took {event:?}")));
        }
        self.bytes_in_buffers(h, index, event, buffer)?;
        let host = self.host(h);
        let receive = &mut host.receives[i];
        if receive.unlinked {
            // No event tells that it is unlinked: it is so by now.
            receive.buffer = None;
            if let Some(wrong) = host.buffers.give_back(buffer.0) {
                return Err(self.broken(format!("n{h}: receive {i}: {wrong}")));
            }
        }
        Ok(())
    }
    fn unexpected(&mut self, h: usize, index: usize, i: usize, event: &Event) -> Checked<()> {
        let len = self.ops[index].len as u64;
        let host = self.host(h);
        let overflow = &mut host.overflows[i];
        overflow.headers += 1;
        let Overflow { at, len: room, freed, .. } = *overflow;
        if freed || event.is_ok() && event.mlength != len {
            return Err(self.broken(format!("n{h}: overflow entry {i} took {event:?}")));
        }
        self.report.unexpected += 1;
        self.bytes_in_buffers(h, index, event, (at, room))
    }
    /// A message that waited was found.
    fn tell_found(&mut self, h: usize, event: &Event) -> Checked<()> {
        let index = self.op_at(h, event)?;
        let op = self.ops[index].clone();
        let found = match Role::from_word(event.user_ptr) {
            Some(Role::Receive(i) | Role::Search(i)) => i,
            _ => return Err(self.broken(format!("n{h}: found by nobody: {event:?}"))),
        };
        let seen = op.seen.filter(|seen| seen.waits && seen.fail == event.ni_fail_type);
        let Some(seen) = seen else {
            return Err(self.broken(format!("n{h}: {event:?} did not wait: {op:?}")));
        };
        self.ops[index].seen = Some(Seen { waits: false, ..seen });
        let host = self.host(h);
        let receive = &mut host.receives[found];
        receive.took += 1;
        let quiet = receive.buffer.is_some() && receive.unlinked;
        let once = receive.took == 1 || receive.buffer.is_none();
        let buffer = if quiet { receive.buffer.take() } else { None };
        let fits = receive.from.is_none_or(|from| from == op.src) && receive.tag.is_none_or(|t| t == op.tag);
        host.matched.push((index, found));
        let at = host.buffers.offset_of(event.start);
        let holder = host.overflows.iter_mut().find(|o| !o.freed && o.at <= at && at <= o.at + o.len);
        if let Some(holder) = holder {
            holder.headers -= 1;
        }
        let wrong = host.buffers.wrong(at, event.mlength as usize);
        if let Some((at, _)) = buffer {
            // It was used up without being linked, and no event tells that.
            if let Some(wrong) = host.buffers.give_back(at) {
                return Err(self.broken(format!("n{h}: receive {found} was not used: {wrong}")));
            }
        }
        if !once || !fits || event.mlength != seen.mlength || wrong.is_some() {
            return Err(self.broken(format!("n{h}: {event:?} of {op:?} is wrong: {wrong:?}")));
        }
        self.report.found += 1;
        Ok(())
    }
    fn flowed(&mut self, h: usize, index: usize, i: usize, event: &Event) -> Checked<()> {
        let room = 2 * self.plan.eager;
        let host = self.host(h);
        let entry = &mut host.flow[i];
        let again = std::mem::replace(&mut entry.took, true);
        let at = entry.at;
        if again {
            return Err(self.broken(format!("n{h}: flow entry {i} was used twice: {event:?}")));
        }
        self.bytes_in_buffers(h, index, event, (at, room))
    }
    fn on_window(&mut self, h: usize, index: usize, event: &Event) -> Checked<()> {
        let op = self.ops[index].clone();
        let payload = self.payloads[op.payload.0].clone();
        let each = cell_bytes(&self.plan);
        let host = self.host(h);
        let count = &mut host.window_counts[op.tag as usize];
        count.expected += 1;
        count.failed += u64::from(!event.is_ok());
        let arena = &mut host.window[op.tag as usize].0;
        let at = arena.offset_of(event.start);
        let mlength = if event.is_ok() { op.len as u64 } else { 0 };
        if at != op.remote || event.mlength != mlength {
            return Err(self.broken(format!("n{h}: {event:?} is not where {op:?} wants it")));
        }
        if !event.is_ok() {
            if op.kind.writes() {
                arena.taint(at, op.len);
            }
            return Ok(());
        }
        let known = arena.known(at, op.len).map(<[u8]>::to_vec);
        match op.kind {
            Kind::Put => arena.wrote(at, &payload[op.payload.1..op.payload.1 + op.len]),
            Kind::Get => {}
            kind => {
                let old = known.as_ref().expect("sums are always known");
                let new = combine(kind, old, &op.data, op.operand);
                arena.wrote(at, &new);
            }
        }
        if op.kind == Kind::Put && op.tag == CELLS && at / each != (at + op.len.max(1) - 1) / each {
            return Err(self.broken(format!("operation {index} crosses cells: {op:?}")));
        }
        if op.kind.replies() && (op.len <= self.plan.eager || op.tag != CELLS) {
            self.ops[index].reply_wanted = known;
            self.check_reply(index)?;
        }
        Ok(())
    }
    fn tell_end(&mut self, h: usize, event: &Event) -> Checked<()> {
        let role = Role::from_word(event.user_ptr);
        let plan = self.plan.clone();
        let host = self.host(h);
        let wrong = match (event.kind, role) {
            (EventKind::AutoUnlink, Some(Role::Receive(i))) => {
                let receive = &mut host.receives[i];
                let twice = std::mem::replace(&mut receive.unlinked, true) || receive.took != 1;
                let buffer = receive.buffer.take();
                match buffer {
                    Some((at, _)) if !twice => host.buffers.give_back(at),
                    _ => Some("unlinked twice, or unused".into()),
                }
            }
            (EventKind::AutoUnlink, Some(Role::Flow(i))) => {
                let entry = &host.flow[i];
                if entry.took { host.buffers.give_back(entry.at) } else { Some("unlinked unused".into()) }
            }
            (EventKind::AutoUnlink, Some(Role::Overflow(i))) => {
                let overflow = &mut host.overflows[i];
                let twice = std::mem::replace(&mut overflow.unlinked, true);
                host.refill_overflow(&plan);
                twice.then(|| "unlinked twice".into())
            }
            (EventKind::AutoFree, Some(Role::Overflow(i))) => {
                let overflow = &mut host.overflows[i];
                let twice = std::mem::replace(&mut overflow.freed, true);
                let early = !overflow.unlinked || overflow.headers > 0;
                let wrong = host.buffers.give_back(overflow.at);
                host.refill_overflow(&plan);
                if twice || early { Some("freed twice, or too early".into()) } else { wrong }
            }
            _ => Some("of no entry".into()),
        };
        match wrong {
            Some(wrong) => Err(self.broken(format!("n{h}: {event:?}: {wrong}"))),
            None => Ok(()),
        }
    }
    /// What a process counted of what it refused.
    pub(crate) fn status(&self, h: usize) -> [u64; 3] {
        let ni = &self.hosts[h].as_ref().expect("it is up").ni;
        [StatusRegister::DropCount, StatusRegister::PermissionViolations, StatusRegister::OperationViolations]
            .map(|register| ni.status(register))
    }
    pub(crate) fn process(&self, h: usize) -> Process {
        match self.plan.logical {
            true => Process::logical(portals::v4::Rank(h as u32)),
            false => {
                let card = self.cards.lock().expect("one thread").0[h];
                Process::physical(card.nid, card.pid)
            }
        }
    }
}
