//! The link of an Ethernet port. While the adapter is open, the link is up and carries frames that are long enough for
//! RoCE's packets.
//!
//! A kernel's driver takes the link of a physical function down when it releases the function, and leaves the frame
//! length of its network interface. Only the next driver raises the link. A virtual function has the link of its
//! physical function, and most of these commands are refused for it; the link then stays as it is.

use std::time::{Duration, Instant};

use hca_prm::Layout;
use hca_prm::command::hca::{AccessRegIn, AccessRegMod};
use hca_prm::command::vport::{
    ModifyNicVportContextIn, ModifyVportStateIn, NicVportContext, NicVportFieldSelect,
    QueryNicVportContextIn, QueryNicVportContextOut, QueryVportStateIn, QueryVportStateOut, VportAdmin,
    VportStateMod,
};
use hca_prm::register::{Paos, Pmtu, PortAdmin, PortOper, RegisterId};

use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::options::Options;
use crate::port::FRAME_OVERHEAD;

/// What an IP packet has beside its payload, at most: IPv6, UDP, the transport's headers, and the sum behind.
const PACKET_OVERHEAD: u32 = 104;
/// The port's number.
const PORT: u32 = 1;
/// Sleeps while a link comes up.
const NAP: Duration = Duration::from_millis(10);

/// What was changed of a link, and how it was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// The register of its state.
    admin: Option<u32>,
    /// The embedded switch's earlier state of the link, if the driver changed it.
    uplink: Option<u32>,
    /// The longest frame of the port.
    frame: Option<u32>,
    /// The longest frame of the function's own port.
    own_frame: Option<u32>,
}

impl Link {
    /// Raises the link of an Ethernet port, if that is asked for, and widens its frames.
    pub(crate) fn raise(
        &mut self,
        cmd: &CommandQueue,
        caps: &Caps,
        options: &Options,
    ) -> Result<(), CmdError> {
        if !caps.ethernet || !options.raise_port {
            return Ok(());
        }
        if let Some(mtu) = options.mtu {
            self.widen(cmd, mtu.bytes() + PACKET_OVERHEAD + FRAME_OVERHEAD)?;
        }
        if caps.uplink_follow {
            self.follow(cmd)?;
        }
        if self.switch_on(cmd)? {
            wait_for(cmd, options.link_wait)?;
        }
        Ok(())
    }

    /// Leaves the link as it was found.
    pub(crate) fn restore(&mut self, cmd: &CommandQueue) -> Result<(), CmdError> {
        let was = core::mem::take(self);
        // Each, whatever came of those before.
        let admin = was.admin.map_or(Ok(false), |admin| write(cmd, RegisterId::Paos, &admin_status(admin)));
        let uplink = was.uplink.map_or(Ok(None), |state| allowed(cmd.exec(&uplink_state(state))));
        let own = was.own_frame.map_or(Ok(None), |bytes| allowed(cmd.exec(&own_frame(bytes))));
        let frame = was.frame.map_or(Ok(false), |bytes| write(cmd, RegisterId::Pmtu, &port_frame(bytes)));
        admin.and(uplink).and(own).and(frame).map(drop)
    }

    /// The same for an adapter that is given up, where nothing is to be done about an error.
    pub(crate) fn restore_if_possible(&mut self, cmd: &CommandQueue) {
        if let Err(e) = self.restore(cmd) {
            tracing::warn!(%e, "restoring the state of the adapter's link failed");
        }
    }

    /// Has the port, and the function's own port, take frames as long as `wanted`, as far as the port can. They are
    /// never made shorter.
    fn widen(&mut self, cmd: &CommandQueue, wanted: u32) -> Result<(), CmdError> {
        let Some(sizes) = read(cmd, RegisterId::Pmtu, &Pmtu::new().with(Pmtu::LOCAL_PORT, PORT))? else {
            return Ok(());
        };
        let wanted = wanted.min(sizes.get(Pmtu::MAX_MTU));
        let found = sizes.get(Pmtu::ADMIN_MTU);
        if (1..wanted).contains(&found) && write(cmd, RegisterId::Pmtu, &port_frame(wanted))? {
            self.frame = Some(found);
        }
        let Some(answer) = allowed(cmd.exec(&QueryNicVportContextIn::new()))? else { return Ok(()) };
        let context: NicVportContext = answer.get(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
        let found = context.get(NicVportContext::MTU);
        if (1..wanted).contains(&found) && allowed(cmd.exec(&own_frame(wanted)))?.is_some() {
            self.own_frame = Some(found);
        }
        Ok(())
    }

    /// Has the embedded switch follow the link, which a kernel's driver makes it not do when it takes the link down.
    fn follow(&mut self, cmd: &CommandQueue) -> Result<(), CmdError> {
        let query = QueryVportStateIn::new().with(QueryVportStateIn::OP_MOD, VportStateMod::Uplink.code());
        let Some(answer) = allowed(cmd.exec(&query))? else { return Ok(()) };
        let found = answer.get(QueryVportStateOut::ADMIN_STATE);
        let is_down = found == VportAdmin::Down.code();
        if is_down && allowed(cmd.exec(&uplink_state(VportAdmin::Follow.code())))?.is_some() {
            self.uplink = Some(found);
        }
        Ok(())
    }

    /// Switches the port on. Returns whether it was off, and its driver's to switch on.
    fn switch_on(&mut self, cmd: &CommandQueue) -> Result<bool, CmdError> {
        let Some(status) = status(cmd)? else { return Ok(false) };
        let found = status.get(Paos::ADMIN_STATUS);
        match PortAdmin::from_code(found) {
            Some(PortAdmin::Down) => {}
            Some(PortAdmin::Disabled) => {
                tracing::warn!(
                    "the adapter's port is disabled by the system, and a driver may not enable it"
                );
                return Ok(false);
            }
            _ => return Ok(false),
        }
        if write(cmd, RegisterId::Paos, &admin_status(PortAdmin::Up.code()))? {
            self.admin = Some(found);
        }
        Ok(self.admin.is_some())
    }
}

/// Waits until a link that was raised is there, or long enough.
fn wait_for(cmd: &CommandQueue, most: Duration) -> Result<(), CmdError> {
    let begun = Instant::now();
    loop {
        let oper = status(cmd)?.map(|status| status.get(Paos::OPER_STATUS));
        if oper == Some(PortOper::Up.code()) {
            return Ok(());
        }
        if begun.elapsed() >= most {
            tracing::warn!(
                ms = most.as_millis() as u64,
                "the adapter's port was raised and is not up yet: check its cable, and that the other end is up"
            );
            return Ok(());
        }
        // The cable's other end decides when; before the event queues are made nothing tells of it.
        std::thread::sleep(NAP.min(most));
    }
}

fn status(cmd: &CommandQueue) -> Result<Option<Paos>, CmdError> {
    read(cmd, RegisterId::Paos, &Paos::new().with(Paos::LOCAL_PORT, PORT))
}
fn admin_status(admin: u32) -> Paos {
    Paos::new().with(Paos::LOCAL_PORT, PORT).with(Paos::ADMIN_STATUS, admin).with(Paos::ASE, true)
}
fn port_frame(bytes: u32) -> Pmtu {
    Pmtu::new().with(Pmtu::LOCAL_PORT, PORT).with(Pmtu::ADMIN_MTU, bytes)
}
fn own_frame(bytes: u32) -> ModifyNicVportContextIn {
    let select = NicVportFieldSelect::new().with(NicVportFieldSelect::MTU, true);
    ModifyNicVportContextIn::new().with(ModifyNicVportContextIn::FIELD_SELECT, select).with(
        ModifyNicVportContextIn::NIC_VPORT_CONTEXT,
        NicVportContext::new().with(NicVportContext::MTU, bytes),
    )
}
fn uplink_state(admin: u32) -> ModifyVportStateIn {
    ModifyVportStateIn::new()
        .with(ModifyVportStateIn::OP_MOD, VportStateMod::Uplink.code())
        .with(ModifyVportStateIn::ADMIN_STATE, admin)
}

/// What a command gave, unless this function may not give it.
fn allowed<T>(outcome: Result<T, CmdError>) -> Result<Option<T>, CmdError> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(e @ CmdError::Refused { .. }) => {
            tracing::debug!(%e, "changing the state of the link failed");
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Reads a register of the port; `None`: this function may not.
fn read<R: Layout>(cmd: &CommandQueue, id: RegisterId, which: &R) -> Result<Option<R>, CmdError> {
    let mut register = R::zeroed();
    let answer = access(cmd, AccessRegMod::Read, id, which, register.as_bytes_mut());
    Ok(allowed(answer)?.map(|()| register))
}
/// Writes a register of the port. Returns whether this function may.
fn write<R: Layout>(cmd: &CommandQueue, id: RegisterId, register: &R) -> Result<bool, CmdError> {
    let mut now = R::zeroed();
    let answer = access(cmd, AccessRegMod::Write, id, register, now.as_bytes_mut());
    Ok(allowed(answer)?.is_some())
}
fn access<R: Layout>(
    cmd: &CommandQueue,
    how: AccessRegMod,
    id: RegisterId,
    register: &R,
    out: &mut [u8],
) -> Result<(), CmdError> {
    let input =
        AccessRegIn::new().with(AccessRegIn::OP_MOD, how.code()).with(AccessRegIn::REGISTER_ID, id.code());
    cmd.exec_with(&input, register.as_bytes(), out).map(drop)
}
