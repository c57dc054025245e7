//! The state that an InfiniBand port gets from the subnet manager: LID, GID prefix, and the active state.
//!
//! A physical function's link restarts whenever the function is reset, and so at each open. The subnet manager then
//! discovers the port and activates it: until then the port has no LID, and can reach no peer.

use std::time::{Duration, Instant};

use hca_core::{Gid, Lid, LinkLayer, Mtu, PortAttr};
use hca_prm::command::vport::{
    HcaVportContext, PortState, QueryHcaVportContextIn, QueryHcaVportContextOut, QueryHcaVportGidIn,
    QueryHcaVportGidOut,
};

use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::options::Options;
use crate::port::oper_mtu;
use crate::speed;

/// Sleeps while the manager has not been here.
const NAP: Duration = Duration::from_millis(10);

/// Waits until an InfiniBand port is active, or long enough, which is told: it may become so later.
pub(crate) fn wait_for_manager(cmd: &CommandQueue, caps: &Caps, options: &Options) -> Result<(), CmdError> {
    let begun = Instant::now();
    while !caps.ethernet && !options.manager_wait.is_zero() {
        let state = state_of(&context(cmd)?);
        if state == PortState::Active {
            break;
        }
        if begun.elapsed() >= options.manager_wait {
            tracing::warn!(
                ms = options.manager_wait.as_millis() as u64,
                "the InfiniBand port is not active yet and reaches no peer: its state is {state}; {}",
                match state {
                    PortState::Init => "start a subnet manager, such as opensm",
                    PortState::Armed => "the subnet manager is configuring it: see its log",
                    _ => "check its cable, and that the other end is up",
                }
            );
            break;
        }
        // The manager decides when; before the event queues are made nothing tells of it.
        std::thread::sleep(NAP.min(options.manager_wait));
    }
    Ok(())
}

/// The present state of the port.
pub(crate) fn attr(cmd: &CommandQueue) -> Result<PortAttr, CmdError> {
    let context = context(cmd)?;
    let mut gid = [0; 16];
    let input = QueryHcaVportGidIn::new();
    let answer = cmd.exec_with(&input, &[], &mut gid)?;
    if answer.get(QueryHcaVportGidOut::GIDS_NUM) == 0 {
        // The manager has not been here: the default prefix, and the port's own number.
        gid[..8].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        gid[8..].copy_from_slice(&context.get(HcaVportContext::PORT_GUID).to_be_bytes());
    }
    let mtu = oper_mtu(cmd)?.unwrap_or(2048);
    let fits = |m: &Mtu| m.bytes() <= mtu;
    Ok(PortAttr {
        gid: Gid(gid),
        lid: Lid::new(context.get(HcaVportContext::LID) as u16),
        active_mtu: Mtu::ALL.into_iter().rev().find(fits).unwrap_or(Mtu::B256),
        active: state_of(&context) == PortState::Active,
        link_layer: LinkLayer::InfiniBand,
        link: speed::now(cmd, false)?,
    })
}

fn context(cmd: &CommandQueue) -> Result<HcaVportContext, CmdError> {
    let answer = cmd.exec(&QueryHcaVportContextIn::new())?;
    Ok(answer.get(QueryHcaVportContextOut::HCA_VPORT_CONTEXT))
}

/// The state of the function's own port, or of the adapter's where that says none.
fn state_of(context: &HcaVportContext) -> PortState {
    let states = [context.get(HcaVportContext::VPORT_STATE), context.get(HcaVportContext::PORT_STATE)];
    let said = states.into_iter().filter_map(PortState::from_code).find(|state| *state != PortState::Nop);
    said.unwrap_or(PortState::Nop)
}
