//! Connections: their set-up, failure and end.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use hca_core::{
    Access, AddressVector, DeviceError, Gid, MwType, Pkey, Qkey, QpAttr, QpCap, QpInit, QpState, QpType,
    Rkey, Srqn, WcStatus,
};

use super::datagrams::rd_of;
use super::end::{Drain, End, Invalidatable, Lending, Lent, Life, Own, Promise, Role};
use super::host::{Host, xrc_of};
use super::plan::{ConnPlan, recv_limit};
use super::world::{Checked, World};
use super::zone::Zone;
use crate::checker::{Datagrams, Stream};

pub(super) const QKEY: Qkey = Qkey::new(0x1357_9bdf & 0x7fff_ffff);
/// Bytes of a region that the peer takes back.
const INVALIDATABLE_BYTES: usize = 64;

impl World {
    pub(super) fn open_host(&mut self, n: usize, epoch: u32) -> Checked<()> {
        let sharers = self.plan.conns.iter().filter(|c| (0..2).any(|s| c.nodes[s] == n && c.srq[s]));
        let buffer = sharers.map(|c| c.max_message).max();
        let targets = self.plan.conns.iter().filter(|c| c.xrc && c.nodes[1] == n);
        let xrc = targets.map(|c| c.max_message).max().map(|b| (recv_limit(b).min(8), b));
        let depth = self.rng.pick(&[2, 8, 32]).min(buffer.map_or(2, recv_limit));
        let node = self.sim.node(n);
        let mut rng = self.rng.fork();
        let cq_depth = self.cq_depth(n);
        let srq = buffer.map(|b| (depth, b));
        let spares = self.plan.spares(n);
        let host = Host::new(&node, self.plan.arena_bytes, epoch, cq_depth, [srq, xrc], spares, &mut rng);
        let mut host = self.refused("setting up a node", host)?;
        if self.plan.conns.iter().any(|c| c.rd && c.nodes.contains(&n)) {
            let domain = rd_of(&host).and_then(|rd| rd.alloc_rdd());
            host.rdd = Some(self.refused("alloc_rdd", domain)?);
        }
        self.hosts[n] = Some(host);
        self.managers.open(n, epoch)
    }

    /// Creates the two queue pairs of a connection and connects them.
    pub(super) fn connect(&mut self, c: usize) -> Checked<()> {
        self.report.connections += 1;
        let first = self.conns[c].reconnects == 0;
        for side in 0..2 {
            let end = self.create_end(c, side, first)?;
            let e = self.conns[c].ends[side];
            self.by_qp.insert((end.host, end.handle.index, end.handle.generation), e);
            if e < self.ends.len() {
                self.ends[e] = end;
            } else {
                self.ends.push(end);
            }
        }
        let conn = &mut self.conns[c];
        (conn.closed, conn.close_at) = (false, None);
        let links = if self.plan.conns[c].rd { self.link(c)?.map(Some) } else { [None; 2] };
        for (side, link) in links.into_iter().enumerate() {
            let e = self.conns[c].ends[side];
            self.ends[e].eec = link;
            self.bring_up(c, side)?;
        }
        for side in 0..2 {
            self.prepare_memory(c, side)?;
        }
        Ok(())
    }

    fn create_end(&mut self, c: usize, side: usize, first: bool) -> Checked<End> {
        let plan = self.plan.conns[c].clone();
        let host_at = plan.nodes[side];
        let (r1, r2) = (self.rng.next_u64(), self.rng.next_u64());
        let host = self.host(host_at);
        let usable: Vec<usize> = (0..host.cqs.len()).filter(|k| !host.cqs[*k].overran).collect();
        let cqs = [r1, r2].map(|r| usable[(r % usable.len() as u64) as usize]);
        let role = plan.xrc.then_some([Role::Initiator, Role::Target][side]);
        let init = QpInit {
            qp_type: match plan {
                ConnPlan { xrc: true, .. } => QpType::XrcIni,
                ConnPlan { rd: true, .. } => QpType::Rd,
                _ => plan.kind,
            },
            send_cq: host.cqs[cqs[0]].handle,
            recv_cq: host.cqs[cqs[1]].handle,
            srq: host.srq.as_ref().filter(|_| plan.srq[side]).map(|s| s.handle),
            cap: QpCap {
                max_send_wr: plan.send_depth,
                max_recv_wr: plan.recv_depth,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 128,
            },
        };
        let (handle, qpn, send, recv) = if role == Some(Role::Target) {
            let domain = host.xrc.as_ref().expect("a node of a target has a domain").handle;
            let created = xrc_of(&*host.device).and_then(|xrc| xrc.create_xrc_target(domain));
            let (handle, qpn) = self.refused("create_xrc_target", created)?;
            (handle, qpn, None, None)
        } else {
            let created = match host.rdd.filter(|_| plan.rd) {
                Some(rdd) => rd_of(host).and_then(|rd| rd.create_rd_qp(host.pd, rdd, &init)),
                None => host.device.create_qp(host.pd, &init),
            };
            let ports = self.refused("create_qp", created)?;
            (ports.handle, ports.qpn, Some(ports.send), ports.recv)
        };
        let epoch = host.epoch;
        let (sq, rq) = End::new_ledgers();
        let now = self.now();
        // Doubled packets may bring an unreliable message twice.
        let doubles = self.plan.doubles();
        let datagrams = if plan.kind == QpType::Uc && !doubles && !self.plan.reorders() {
            Datagrams::in_order()
        } else {
            Datagrams::new(if doubles { 2 } else { 1 })
        };
        Ok(End {
            conn: c,
            host: host_at,
            epoch,
            peer: self.conns[c].ends[1 - side],
            life: Life::Up,
            handle,
            qpn,
            role,
            names: Srqn::default(),
            cqs,
            overran: false,
            owed: None,
            send,
            shares: recv.is_none() && role.is_none(),
            recv,
            ah: None,
            eec: None,
            group: None,
            sq,
            rq,
            ops: BTreeMap::new(),
            stream: Stream::default(),
            datagrams,
            placed: BTreeMap::new(),
            left: match (role, first) {
                (Some(Role::Target), _) => 0,
                (_, true) => plan.requests,
                (_, false) => plan.requests / 3,
            },
            next_post: now,
            next_recv: now,
            progress_at: now,
            word: None,
            own: None,
            invalidatable: Vec::new(),
            window: None,
            mistake: plan.mistake.filter(|_| side == usize::from(!plan.xrc) && first),
            made: None,
            too_long: false,
            short: 0,
            drain: None,
            resumed_at: now,
            unsignaled: 0,
            forced: false,
            tainted: Vec::new(),
        })
    }

    /// Takes a queue pair from RESET to RTS.
    fn bring_up(&mut self, c: usize, side: usize) -> Checked<()> {
        let plan = self.plan.conns[c].clone();
        let (e, p) = (self.conns[c].ends[side], self.conns[c].ends[1 - side]);
        let (handle, peer_qpn, peer_host) = (self.ends[e].handle, self.ends[p].qpn, self.ends[p].host);
        let shift = self.conns[c].reconnects * 1_000_003;
        let psn = plan.psn.map(|p| p.add(shift));
        let dgid = Gid::from_ip(self.sim.net().address(peer_host));
        let flow_label = (handle.index * 7919 + c as u32 + 1) & 0xf_ffff;
        let traffic_class = plan.traffic_class;
        let av = AddressVector { dgid, flow_label, traffic_class, ..AddressVector::default() };
        let access = Access::BY_PEERS;
        // Reliable datagrams have the path in their end-to-end context.
        let (rc, ud) = (plan.kind == QpType::Rc && !plan.rd, plan.kind == QpType::Ud);
        let datagrams = ud || plan.rd;
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey: Some(Pkey::DEFAULT),
            access: (!datagrams).then_some(access),
            qkey: datagrams.then_some(QKEY),
            ..QpAttr::default()
        };
        let mut rtr = QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() };
        let mut rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        rts.sq_psn = (!plan.rd).then_some(psn[side]);
        if !datagrams {
            rtr.av = Some(av);
            rtr.dest_qpn = Some(peer_qpn);
            rtr.path_mtu = Some(plan.mtu);
            rtr.rq_psn = Some(psn[1 - side]);
        }
        let role = self.ends[e].role;
        if rc && role != Some(Role::Initiator) {
            rtr.max_dest_rd_atomic = Some(plan.rd_atomic);
            rtr.min_rnr_timer = Some(plan.rnr_timer);
        }
        rts.timeout = rc.then_some(plan.timeout);
        if rc && role != Some(Role::Target) {
            rts.retry_cnt = Some(plan.retry_cnt);
            rts.rnr_retry = Some(plan.rnr_retry);
            rts.max_rd_atomic = Some(plan.rd_atomic);
        }
        let host = self.host(self.ends[e].host);
        for attr in [init, rtr, rts] {
            self.refused("modify_qp", host.device.modify_qp(handle, &attr))?;
        }
        if ud {
            let ah = self.refused("create_ah", host.device.create_ah(host.pd, &av))?;
            self.ends[e].ah = Some(ah);
            if self.plan.mix.multicast {
                self.join_group(c, e)?;
            }
        }
        Ok(())
    }

    /// Makes an end a member of its connection's group. After a reconnection that is another one: what is under way to
    /// the members before comes to nobody.
    fn join_group(&mut self, c: usize, e: usize) -> Checked<()> {
        let (c, n) = (c as u8, self.conns[c].reconnects as u16);
        let group = match self.plan.ipv6 {
            true => Gid::from_ip(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, n, c.into()).into()),
            false => Gid::from_ip(Ipv4Addr::new(239, (n >> 8) as u8, n as u8, c).into()),
        };
        let (handle, host) = (self.ends[e].handle, self.host(self.ends[e].host));
        let groups = host.device.multicast().ok_or(DeviceError::Unsupported { what: "multicast" });
        self.refused("attach_mcast", groups.and_then(|groups| groups.attach_mcast(handle, group)))?;
        let av = AddressVector { dgid: group, ..AddressVector::default() };
        let ah = self.refused("create_ah", host.device.create_ah(host.pd, &av))?;
        self.ends[e].group = Some((ah, group));
        Ok(())
    }

    /// Memory at an end's host that its peer works with.
    fn prepare_memory(&mut self, c: usize, side: usize) -> Checked<()> {
        let plan = &self.plan.conns[c];
        if plan.kind != QpType::Rc {
            return Ok(());
        }
        let own = plan.doomed && side == 0 && self.conns[c].reconnects == 0;
        let (e, p) = (self.conns[c].ends[side], self.conns[c].ends[1 - side]);
        let n = self.ends[e].host;
        let mut rng = self.rng.fork();
        let Some(host) = &mut self.hosts[n] else { return Ok(()) };
        if let Some(word) = host.remote.zone.take(8, 8, &mut rng) {
            host.fill(word.start, &[0; 8]);
            host.shadow.open(word.clone());
            self.ends[p].word = Some((word, 0));
        }
        // Regions that the peer takes back lie within what the host's region for local use covers.
        let remote = Access::LOCAL_WRITE | (Access::BY_PEERS - Access::REMOTE_ATOMIC);
        if own && let Some(range) = host.owns.pop() {
            match self.register(n, range.clone(), remote)? {
                Some(keys) => self.ends[e].own = Some(Own { zone: Zone::new(range), keys, revoked: false }),
                None => self.host_mut(n).owns.push(range),
            }
        }
        let windows = self.plan.mix.windows;
        // Nobody takes back what an initiator or a queue pair of RD lends, and a target binds no window.
        let role = self.ends[e].role;
        let rd = self.plan.conns[c].rd;
        let loans = if role == Some(Role::Initiator) || rd {
            0
        } else if windows {
            3
        } else {
            2
        };
        for nth in 0..loans {
            let zone = &mut self.host_mut(n).local.zone;
            let Some(range) = zone.take(INVALIDATABLE_BYTES, 8, &mut rng) else { continue };
            let lent = if windows && nth == 0 && role.is_none() {
                let window = self.host_mut(n).alloc_window(MwType::Two);
                let keys = self.refused("alloc_mw", window)?;
                // The bind chooses the lowest byte.
                let rkey = Rkey::new(keys.rkey.raw() ^ (1 + rng.below(255) as u32));
                Some((Lent::Window(keys.handle), rkey, Lending::Unbound))
            } else {
                let keys = self.register(n, range.clone(), remote | Access::REMOTE_INVALIDATE)?;
                keys.map(|keys| (Lent::Region(keys), keys.rkey, Lending::Lent))
            };
            match lent {
                Some((what, rkey, state)) => {
                    self.ends[e].invalidatable.push(Invalidatable { what, rkey, range, state });
                }
                None => self.host_mut(n).local.zone.give_back(range),
            }
        }
        if !windows {
            return Ok(());
        }
        let window = self.host_mut(n).alloc_window(MwType::One);
        let window = self.refused("alloc_mw", window)?.handle;
        let rkey = self.host(n).bind_window(window);
        self.ends[e].window = Some((window, self.refused("bind_mw", rkey)?));
        Ok(())
    }

    /// Deregisters an end's own region while the peer works with it.
    pub(super) fn revoke(&mut self, c: usize) -> Checked<()> {
        let e = self.conns[c].ends[0];
        let (n, epoch) = (self.ends[e].host, self.ends[e].epoch);
        if self.hosts[n].as_ref().is_none_or(|h| h.epoch != epoch) {
            return Ok(());
        }
        let Some(own) = self.ends[e].own.as_mut().filter(|o| !o.revoked) else { return Ok(()) };
        own.revoked = true;
        let (keys, all) = (own.keys, own.zone.all());
        let Some(host) = &mut self.hosts[n] else { return Ok(()) };
        let done = host.deregister(keys);
        // From here on nothing there may change: what it holds now is what it holds.
        let peer = self.ends[e].peer;
        let spans: Vec<_> = self.ends[peer]
            .ops
            .values()
            .filter_map(|op| match &op.promise {
                Promise::Write { target, .. } => Some(Rc::clone(target)),
                _ => None,
            })
            .chain(self.ends[peer].tainted.iter().map(Rc::clone))
            .filter(|s| s.host == n && all.start <= s.range.start && s.range.end <= all.end)
            .collect();
        for span in spans {
            self.seal(&span);
        }
        self.sim.note(format!("deregistered {} of n{n}", keys.handle));
        self.refused("dereg_mr", done)
    }

    /// An end stops after what it has begun, and tells.
    pub(super) fn drain(&mut self, c: usize, side: usize, pause: Duration) -> Checked<()> {
        let e = self.conns[c].ends[side];
        let end = &mut self.ends[e];
        if end.life != Life::Up || end.drain.is_some() {
            return Ok(());
        }
        end.drain = Some(Drain { drained: None, pause, resume_at: None });
        let attr = QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() };
        if !self.modify_live(e, &attr)? {
            self.ends[e].drain = None;
        }
        // The event of a queue that is empty is here already, and no progress will tell of it.
        self.poll_all()?;
        Ok(())
    }
    /// A drained end goes on.
    pub(super) fn resume(&mut self, e: usize) -> Checked<()> {
        self.ends[e].drain = None;
        self.ends[e].progress_at = self.now();
        self.ends[e].resumed_at = self.now();
        let attr = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        if self.ends[e].life == Life::Up && self.modify_live(e, &attr)? {
            self.report.drains += 1;
        }
        Ok(())
    }
    /// Modifies a queue pair. `false`: it has failed meanwhile, which nobody has seen yet.
    fn modify_live(&mut self, e: usize, attr: &QpAttr) -> Checked<bool> {
        let (n, handle) = (self.ends[e].host, self.ends[e].handle);
        let device = &self.host(n).device;
        let Err(refused) = device.modify_qp(handle, attr) else { return Ok(true) };
        let status = self.refused("query_qp", device.query_qp(handle))?;
        if matches!(status.state, QpState::Error | QpState::Sqe) {
            return Ok(false);
        }
        Err(self.broken(format!(
            "modify_qp to {:?} of {handle} at n{n}, which is in {:?}, was refused: {refused}",
            attr.state, status.state
        )))
    }

    /// Puts both ends in error, expects everything to be flushed, and destroys them. Some go [as they are](Self::goes_live).
    pub(super) fn close(&mut self, c: usize) -> Checked<()> {
        let ends = self.conns[c].ends;
        for e in ends {
            if self.ends[e].life == Life::Gone {
                continue;
            }
            self.ends[e].forced = true;
            self.ends[e].life = Life::Down;
            if self.goes_live(e) {
                self.report.gone_live += 1;
                continue;
            }
            let host = self.host(self.ends[e].host);
            let attr = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
            self.refused("modify_qp to ERROR", host.device.modify_qp(self.ends[e].handle, &attr))?;
        }
        self.poll_all()?;
        for e in ends {
            if self.ends[e].life != Life::Gone {
                self.destroy(e)?;
            }
        }
        for e in ends {
            self.settle_memory(e)?;
        }
        self.conns[c].closed = true;
        self.conns[c].close_at = None;
        Ok(())
    }

    fn destroy(&mut self, e: usize) -> Checked<()> {
        let finished = self.ends[e].sq.finish();
        let rest = self.check(e, "send queue at its end", finished)?;
        for ended in rest {
            self.request_ended(e, ended.wr_id, ended.status)?;
        }
        let finished = self.ends[e].rq.finish();
        for ended in self.check(e, "receive queue at its end", finished)? {
            self.receive_lost(e, ended.wr_id);
        }
        let peer = &self.ends[self.ends[e].peer];
        let refused = peer.too_long && peer.sq.failed() == Some(WcStatus::RemoteInvalidRequest);
        if refused && self.ends[e].short != 1 && !self.ends[e].overran {
            let (qpn, short) = (self.ends[e].qpn, self.ends[e].short);
            return Err(self.broken(format!(
                "the peer's SEND was too long and refused, but {short} receive requests of qp {qpn} ended as too short"
            )));
        }
        let end = &mut self.ends[e];
        end.life = Life::Gone;
        (end.send, end.recv) = (None, None);
        let (n, handle) = (end.host, end.handle);
        let ahs = [end.ah.take(), end.group.take().map(|group| group.0)];
        let host = self.host(n);
        let back = self.refused("destroy_qp", host.device.destroy_qp(handle))?;
        self.came_back(e, &back)?;
        self.messages_broke_off(e);
        let host = self.host(n);
        for ah in ahs.into_iter().flatten() {
            self.refused("destroy_ah", host.device.destroy_ah(ah))?;
        }
        Ok(())
    }

    /// Both queue pairs are gone: no byte changes any more.
    fn settle_memory(&mut self, e: usize) -> Checked<()> {
        for span in core::mem::take(&mut self.ends[e].tainted) {
            self.seal(&span);
            self.release(span);
        }
        let peer = &self.ends[self.ends[e].peer];
        let end = &self.ends[e];
        // What a crashed node had under way may have been done or not.
        let survived = self.hosts[end.host].as_ref().is_some_and(|h| h.epoch == end.epoch);
        let clean = survived && !end.overran && end.made.is_none() && end.sq.failed().is_none();
        let n = peer.host;
        let alive = self.hosts[n].as_ref().is_some_and(|h| h.epoch == peer.epoch);
        if let Some((range, value)) = self.ends[e].word.take().filter(|_| alive) {
            let host = self.host_mut(n);
            if clean && let Some((at, found)) = host.arena.difference(range.start, &value.to_le_bytes()) {
                return Err(self.broken(format!(
                    "the word of qp {} at n{n} is not {value}: byte {at} is {found:#04x}",
                    self.ends[e].qpn
                )));
            }
            let now = host.arena.read(range.clone());
            host.shadow.write(range.start, &now);
            host.shadow.close(range.clone());
            host.remote.zone.give_back(range);
        }
        let (own, invalidatable, window) = (
            self.ends[e].own.take(),
            core::mem::take(&mut self.ends[e].invalidatable),
            self.ends[e].window.take(),
        );
        let (n, epoch) = (self.ends[e].host, self.ends[e].epoch);
        let Some(host) = self.hosts[n].as_mut().filter(|h| h.epoch == epoch) else { return Ok(()) };
        let mut failed = Ok(());
        for own in own.into_iter().filter(|o| !o.revoked) {
            failed = failed.and(host.deregister(own.keys));
            host.owns.push(own.zone.all());
        }
        for Invalidatable { what, range, .. } in invalidatable {
            failed = failed.and(match what {
                Lent::Region(keys) => host.deregister(keys),
                Lent::Window(window) => host.dealloc_window(window),
            });
            host.local.zone.give_back(range);
        }
        if let Some((window, _)) = window {
            failed = failed.and(host.dealloc_window(window));
        }
        self.refused("dereg_mr", failed)
    }

    /// A node's process is gone, and with it its ends and its memory.
    pub(super) fn crash(&mut self, n: usize) {
        let Some(host) = self.hosts[n].take() else { return };
        self.report.crashes += 1;
        let now = self.now();
        self.count_adapter(&host);
        for e in 0..self.ends.len() {
            if self.ends[e].host != n || self.ends[e].life == Life::Gone {
                continue;
            }
            self.recv_bufs.retain(|_, b| b.pieces.first().is_none_or(|p| p.host != n));
            let peer = self.ends[e].peer;
            self.ends[peer].progress_at = self.ends[peer].progress_at.max(now);
            let end = &mut self.ends[e];
            end.life = Life::Gone;
            // The process is gone with all that it held.
            (end.send, end.recv) = (None, None);
            (end.sq, end.rq) = End::new_ledgers();
            // What it was about to write elsewhere stays in doubt.
            let ops = core::mem::take(&mut end.ops);
            for op in ops.into_values() {
                if let Promise::Write { target, .. } = op.promise {
                    self.ends[e].tainted.push(target);
                }
            }
        }
        self.by_qp.retain(|k, _| k.0 != n);
        self.managers.crash(n);
        self.sim.node(n).crash();
        drop(host);
    }

    pub(super) fn restart(&mut self, n: usize) -> Checked<()> {
        self.sim.node(n).restart();
        let epoch = self.report.crashes as u32;
        self.open_host(n, epoch)
    }

    /// Adds up what an adapter counted.
    pub(super) fn count_adapter(&mut self, host: &Host) {
        for c in host.device.counters() {
            match c.name {
                "retransmitted" => self.report.retransmitted += c.value,
                "rnr_nak_sent" => self.report.rnr_naks += c.value,
                "shm_rx_messages" => self.report.near.messages += c.value,
                "shm_tx_messages_blocked" => self.report.near.full += c.value,
                "shm_grants_mapped" => self.report.near.mapped += c.value,
                "shm_grants_revoked" => self.report.near.revoked += c.value,
                "shm_process_fetches" => self.report.near.fetched += c.value,
                "shm_wakeups_received" => self.report.near.woken += c.value,
                "shm_peers_gone" => self.report.near.gone += c.value,
                _ => {}
            }
        }
    }
}
