//! Reliable datagrams (RD): the end-to-end contexts by which the connections of two nodes go.

use hca_core::{
    Access, AddressVector, DeviceError, Gid, Pkey, QpAttr, QpHandle, QpState, Qpn, ReliableDatagrams,
};

use super::host::Host;
use super::plan::ConnPlan;
use super::world::{Checked, World};

/// The reliable datagrams of an adapter.
pub(super) fn rd_of(host: &Host) -> Result<&dyn ReliableDatagrams, DeviceError> {
    host.device.reliable_datagrams().ok_or(DeviceError::Unsupported { what: "reliable datagrams" })
}

/// One of two end-to-end contexts that are connected to each other.
#[derive(Clone, Copy, Debug)]
struct Context {
    node: usize,
    epoch: u32,
    handle: QpHandle,
    number: Qpn,
}

/// Two end-to-end contexts, and the connections that go by them.
pub(super) struct Link {
    contexts: [Context; 2],
}

/// The end-to-end contexts of a run.
#[derive(Default)]
pub(super) struct Links {
    all: Vec<Link>,
    made: u32,
}

impl World {
    /// The end-to-end contexts for the two ends of a connection. All connections between two nodes have the same, until
    /// one of the contexts has failed or its node has crashed.
    pub(super) fn link(&mut self, c: usize) -> Checked<[QpHandle; 2]> {
        let nodes = self.plan.conns[c].nodes;
        let mut found = None;
        for link in &self.links.all {
            let order = link.contexts.map(|context| context.node);
            let is_ready = link.contexts.iter().all(|context| self.is_ready(context));
            if is_ready && (order == nodes || order == [nodes[1], nodes[0]]) {
                found = Some(link.contexts);
            }
        }
        let contexts = match found {
            Some(contexts) => contexts,
            None => self.new_link(c)?,
        };
        let swapped = contexts[0].node != nodes[0];
        Ok([0, 1].map(|side: usize| contexts[side ^ usize::from(swapped)].handle))
    }

    fn is_current(&self, context: &Context) -> bool {
        self.hosts[context.node].as_ref().is_some_and(|host| host.epoch == context.epoch)
    }
    fn is_ready(&self, context: &Context) -> bool {
        let state = |host: &Host| host.device.query_qp(context.handle).map(|status| status.state);
        self.is_current(context) && state(self.host(context.node)).is_ok_and(|state| state == QpState::Rts)
    }

    fn new_link(&mut self, c: usize) -> Checked<[Context; 2]> {
        let plan = self.plan.conns[c].clone();
        let mut contexts = Vec::new();
        for node in plan.nodes {
            let host = self.host(node);
            let rdd = host.rdd.expect("an adapter of a plan with reliable datagrams has them");
            let created = rd_of(host).and_then(|rd| rd.create_eec(rdd));
            let (handle, number) = self.refused("create_eec", created)?;
            contexts.push(Context { node, epoch: host.epoch, handle, number });
        }
        let contexts = [contexts[0], contexts[1]];
        let shift = self.links.made * 1_000_003;
        for side in 0..2 {
            let peer = &contexts[1 - side];
            let dgid = Gid::from_ip(self.sim.net().address(peer.node));
            for attr in steps(&plan, side, peer.number, dgid, shift) {
                let modified = self.host(plan.nodes[side]).device.modify_qp(contexts[side].handle, &attr);
                self.refused("modify_qp of an end-to-end context", modified)?;
            }
        }
        self.links.made += 1;
        self.links.all.push(Link { contexts });
        Ok(contexts)
    }

    /// Destroys all end-to-end contexts of nodes that have not crashed since.
    pub(super) fn close_links(&mut self) -> Checked<()> {
        for link in core::mem::take(&mut self.links.all) {
            for context in link.contexts.iter().filter(|context| self.is_current(context)) {
                let destroyed = self.host(context.node).device.destroy_qp(context.handle);
                self.refused("destroy_qp of an end-to-end context", destroyed)?;
            }
        }
        Ok(())
    }
}

/// The attributes that take an end-to-end context from RESET to RTS.
fn steps(plan: &ConnPlan, side: usize, peer: Qpn, dgid: Gid, shift: u32) -> [QpAttr; 3] {
    let psn = plan.psn.map(|psn| psn.add(shift));
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    let traffic_class = plan.traffic_class;
    [
        QpAttr {
            pkey: Some(Pkey::DEFAULT),
            access: Some(Access::BY_PEERS - Access::REMOTE_INVALIDATE),
            ..to(QpState::Init)
        },
        QpAttr {
            av: Some(AddressVector {
                dgid,
                flow_label: shift % 0xffff + 1,
                traffic_class,
                ..AddressVector::default()
            }),
            dest_qpn: Some(peer),
            path_mtu: Some(plan.mtu),
            rq_psn: Some(psn[1 - side]),
            max_dest_rd_atomic: Some(plan.rd_atomic),
            min_rnr_timer: Some(plan.rnr_timer),
            ..to(QpState::Rtr)
        },
        QpAttr {
            sq_psn: Some(psn[side]),
            timeout: Some(plan.timeout),
            retry_cnt: Some(plan.retry_cnt),
            rnr_retry: Some(plan.rnr_retry),
            max_rd_atomic: Some(plan.rd_atomic),
            ..to(QpState::Rts)
        },
    ]
}
