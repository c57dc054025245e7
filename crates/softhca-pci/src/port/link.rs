//! The link of a port: whether it is up, and how long its frames may be, by the registers PAOS and PMTU.
//!
//! The link state belongs to the adapter, and not to its driver. On Ethernet the state survives the driver that set it,
//! as with an adapter in silicon, and drivers raise the link. On InfiniBand the subnet manager sets the state, so the
//! next driver finds the link up. A function whose link is down exchanges no packets with other functions of the
//! server.

use hca_core::{Device, Mtu};
use hca_prm::register::{Paos, Pmtu, PortAdmin, PortOper};
use hca_prm::{CmdStatus, Eqe, EventType, PortChangeSubtype, PortStateChangeEvent};

use softhca::SoftHca;

use crate::command::parse;
use crate::function::{Function, FunctionOptions, PortKind};

/// Bytes of the longest frame on Ethernet, which holds any packet.
const MAX_FRAME: u32 = 9978;
/// What drivers count around a frame's payload (header, VLAN tag, checksum), and around a packet's: RoCE's MTU is the
/// largest one of InfiniBand's that leaves room for the longest headers (IP, UDP, transport, ICRC).
const AROUND_FRAME: u32 = 14 + 4 + 4;
const AROUND_PACKET: u32 = 40 + 8 + 12 + 4 + 28 + 4;
/// The number of the only port.
const PORT: u32 = 1;

/// What was asked of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    admin: PortAdmin,
    frame: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { admin: PortAdmin::Up, frame: MAX_FRAME }
    }
}

/// What the data path is told of its function's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wire {
    /// The function.
    pub(crate) number: u16,
    /// Whether it is an Ethernet port.
    pub(crate) ethernet: bool,
    /// Bytes of the longest datagram: the port's active MTU.
    pub(crate) longest_datagram: u32,
}

impl Wire {
    /// Of a function of this adapter whose link is so.
    pub(crate) fn of(options: &FunctionOptions, hca: &SoftHca, link: &Link) -> Self {
        let ethernet = options.port == PortKind::Roce;
        let longest = hca.port().active_mtu;
        let room = link.frame.saturating_sub(AROUND_FRAME + AROUND_PACKET);
        let fits = |mtu: &Mtu| !ethernet || mtu.bytes() <= room;
        let all = [Mtu::B4096, Mtu::B2048, Mtu::B1024, Mtu::B512, Mtu::B256];
        let mtu = all.into_iter().filter(|mtu| mtu.bytes() <= longest.bytes()).find(fits);
        Self { number: options.number, ethernet, longest_datagram: mtu.unwrap_or(Mtu::B256).bytes() }
    }
}

impl Function {
    /// Whether anything goes over the link.
    pub(crate) fn link_is_up(&self) -> bool {
        self.link.admin != PortAdmin::Down && self.hca.port().active
    }

    pub(crate) fn link_status(&self) -> Paos {
        let oper = if self.link_is_up() { PortOper::Up } else { PortOper::Down };
        Paos::new()
            .with(Paos::LOCAL_PORT, PORT)
            .with(Paos::ADMIN_STATUS, self.link.admin.code())
            .with(Paos::OPER_STATUS, oper.code())
    }

    pub(crate) fn set_link_status(&mut self, bytes: &[u8]) -> Result<(), CmdStatus> {
        let asked: Paos = parse(bytes)?;
        let admin = PortAdmin::from_code(asked.get(Paos::ADMIN_STATUS));
        let admin = admin.filter(|a| *a != PortAdmin::Disabled && asked.get(Paos::LOCAL_PORT) == PORT);
        if !asked.get(Paos::ASE) {
            return Ok(());
        }
        let before = self.link_is_up();
        self.link.admin = admin.ok_or(CmdStatus::BadParam)?;
        let up = self.link_is_up();
        if up != before {
            self.tell_link();
            let change = if up { PortChangeSubtype::Active } else { PortChangeSubtype::Down };
            let port = PortStateChangeEvent::new().with(PortStateChangeEvent::PORT_NUM, PORT);
            let event = Eqe::of(EventType::PortChange)
                .with(Eqe::EVENT_SUB_TYPE, change.code())
                .with(Eqe::EVENT_DATA, *port.as_bytes());
            self.raise(EventType::PortChange, event);
        }
        Ok(())
    }

    /// The link is another client's from now on.
    pub(crate) fn inherit_link(&mut self) {
        if self.options.port == PortKind::InfiniBand {
            self.link = Link::default();
            self.tell_link();
        }
    }

    /// Has the others know how the link is.
    fn tell_link(&self) {
        let (number, up) = (self.options.number, self.link_is_up());
        self.directory.lock().set_link(number, up);
        self.directory.switch().set_link(number, up);
    }

    pub(crate) fn packet_sizes(&self) -> Pmtu {
        let (max, now) = match self.options.port {
            PortKind::InfiniBand => {
                let bytes = self.hca.port().active_mtu.bytes();
                (bytes, bytes)
            }
            PortKind::Roce => (MAX_FRAME, self.link.frame),
        };
        let sizes = Pmtu::new().with(Pmtu::LOCAL_PORT, PORT).with(Pmtu::MAX_MTU, max);
        sizes.with(Pmtu::ADMIN_MTU, now).with(Pmtu::OPER_MTU, now)
    }

    pub(crate) fn set_packet_sizes(&mut self, bytes: &[u8]) -> Result<(), CmdStatus> {
        let asked: Pmtu = parse(bytes)?;
        let frame = asked.get(Pmtu::ADMIN_MTU);
        if asked.get(Pmtu::LOCAL_PORT) != PORT || !(1..=MAX_FRAME).contains(&frame) {
            return Err(CmdStatus::BadParam);
        }
        // Packets of InfiniBand have the size that the subnet's manager gives them.
        if self.options.port == PortKind::Roce {
            self.link.frame = frame;
            self.objects.wire = Wire::of(&self.options, &self.hca, &self.link);
        }
        Ok(())
    }
}
