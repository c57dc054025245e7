//! The adapter's port: InfiniBand, or Ethernet with RoCE.
//!
//! An InfiniBand port gets its addresses from the subnet manager. A RoCE port gets its addresses from the driver: the
//! link-local address of its MAC, and the program's addresses. Peers' MACs come from their link-local addresses, from
//! the program's table, or from ARP and neighbour discovery (`eth`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hca_core::wire::neighbour::{Mac, Station, usable};
use hca_core::{
    AddressVector, DeviceError, Gid, GidEntry, GidType, Lid, LinkLayer, Mtu, PortAttr, Qpn, StaticRate,
};
use hca_prm::command::hca::{AccessRegIn, AccessRegMod};
use hca_prm::command::vport::{
    AllowedListType, DeleteL2TableEntryIn, MacAddress, ModifyNicVportContextIn, NicVportContext,
    NicVportFieldSelect, QueryNicVportContextIn, QueryNicVportContextOut, QueryVportStateIn,
    QueryVportStateOut, RoceAddr, RoceL3Type, RoceVersion, SetL2TableEntryIn, SetRoceAddressIn,
    VportStateMod,
};
use hca_prm::register::{Pmtu, RegisterId};

use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::error::OpenError;
use crate::infiniband;
use crate::options::Options;
use crate::speed;

/// What a frame has beside an IP packet: addresses and type, a VLAN tag, and the checksum.
pub(crate) const FRAME_OVERHEAD: u32 = 22;
/// From here on LIDs are those of groups.
const MULTICAST_LIDS: u16 = 0xc000;
/// The entry of the port's own MAC in the switch's table.
const OWN_MAC: u32 = 0;
/// Hops of a packet where nothing else is said.
const HOPS: u8 = 64;

/// Where packets to a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// Whether it is RoCE.
    pub(crate) ethernet: bool,
    /// The peer's GID; zero where packets have no global header.
    pub(crate) dgid: Gid,
    /// Which entry of the port's table is the source.
    pub(crate) sgid_index: u32,
    /// The peer's LID; 0 on RoCE, or where an adapter finds it by the GID.
    pub(crate) dlid: u16,
    /// The peer's MAC, on RoCE.
    pub(crate) mac: [u8; 6],
    /// Hops.
    pub(crate) hop_limit: u8,
    /// DSCP and ECN.
    pub(crate) traffic_class: u8,
    /// Flow label, 20 bits.
    pub(crate) flow_label: u32,
    /// UDP source port, on RoCE.
    pub(crate) udp_sport: u16,
    /// Service level, or priority.
    pub(crate) sl: u8,
    /// The highest rate, in the adapter's numbers; 0 for none.
    pub(crate) rate: u32,
}

impl Path {
    /// The same for the connection of a queue pair, whose number spreads those without a flow label over UDP source
    /// ports.
    pub(crate) fn of_queue_pair(self, qpn: Qpn) -> Self {
        let label = if self.flow_label == 0 { qpn.spread(20) } else { self.flow_label };
        Self { udp_sport: udp_source_port(label), ..self }
    }
}

/// The port.
pub(crate) struct Port {
    /// Whether it is an Ethernet port.
    pub(crate) ethernet: bool,
    attr: Mutex<PortAttr>,
    /// The addresses on Ethernet, in the order of the table. That of an InfiniBand port is the manager's to change.
    gids: Vec<Gid>,
    /// The MAC, on Ethernet.
    mac: [u8; 6],
    /// Peers' MACs that the program gave, by GID.
    neighbours: HashMap<Gid, [u8; 6]>,
    /// Peers' LIDs, by GID.
    lids: HashMap<Gid, Lid>,
    /// Rates that it can be limited to, a bit for each of the adapter's numbers.
    rates: u32,
    /// The switch between physical and virtual functions has its MAC in a table.
    in_mac_table: bool,
    /// How much of the headers Ethernet requests are to carry, where the port says it.
    pub(crate) inline_mode: u32,
    /// Its number in commands that name one, on functions that have several; else 0.
    number: u32,
}

impl Port {
    /// Asks an InfiniBand port for its addresses, or gives a RoCE port its own.
    pub(crate) fn open(
        cmd: &CommandQueue,
        caps: &Caps,
        options: &Options,
        name: &str,
    ) -> Result<Self, OpenError> {
        if caps.ethernet {
            Self::open_roce(cmd, caps, options, name)
        } else {
            Self::open_ib(cmd, caps, options, name)
        }
    }

    fn open_ib(cmd: &CommandQueue, caps: &Caps, options: &Options, name: &str) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Command { name: name.to_owned(), source };
        let wrong = |option| OpenError::Option {
            name: name.to_owned(),
            option,
            why: "its port is InfiniBand, which gets its addresses from the subnet manager: leave it out",
        };
        if !options.ip.is_empty() {
            return Err(wrong("ip"));
        }
        if !options.neighbours.is_empty() {
            return Err(wrong("neigh"));
        }
        if options.mtu.is_some() {
            let why = "its port is InfiniBand, which gets its MTU from the subnet manager: leave it out";
            return Err(OpenError::Option { name: name.to_owned(), option: "mtu", why });
        }
        let attr = infiniband::attr(cmd).map_err(failed)?;
        Ok(Self {
            ethernet: false,
            attr: Mutex::new(attr),
            gids: Vec::new(),
            mac: [0; 6],
            neighbours: HashMap::new(),
            lids: options.lids.iter().copied().collect(),
            rates: caps.rates,
            in_mac_table: false,
            inline_mode: 0,
            number: 0,
        })
    }

    fn open_roce(cmd: &CommandQueue, caps: &Caps, options: &Options, name: &str) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Command { name: name.to_owned(), source };
        let lacks = |what, remedy| OpenError::Lacks { name: name.to_owned(), what, remedy };
        if !caps.roce_v2 {
            return Err(lacks(
                "RoCEv2 on its Ethernet port",
                "enable it with `mlxconfig`, or set the port to InfiniBand",
            ));
        }
        let nic: NicVportContext = cmd
            .exec(&QueryNicVportContextIn::new())
            .map_err(failed)?
            .get(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
        let mac = nic.get(NicVportContext::PERMANENT_ADDRESS).mac();
        if mac == [0; 6] {
            return Err(lacks(
                "a MAC address",
                "the host sets the address of a virtual function: `ip link set PF vf N mac 02:…`",
            ));
        }
        let on = ModifyNicVportContextIn::new()
            .with(
                ModifyNicVportContextIn::FIELD_SELECT,
                NicVportFieldSelect::new().with(NicVportFieldSelect::ROCE_EN, true),
            )
            .with(
                ModifyNicVportContextIn::NIC_VPORT_CONTEXT,
                NicVportContext::new().with(NicVportContext::ROCE_EN, true),
            );
        cmd.exec(&on).map_err(failed)?;
        loop_back(cmd, caps).map_err(failed)?;
        // The switch between physical and virtual functions leads frames to those who say that they hear them.
        match list_addresses(cmd, AllowedListType::CurrentUcMacAddress, &[mac]) {
            Ok(()) => {}
            Err(e @ CmdError::Refused { .. }) => tracing::debug!(%e, "the port's address is not listed"),
            Err(e) => return Err(failed(e)),
        }
        let in_mac_table = caps.mac_table && enter(cmd, mac).map_err(failed)?;
        let gids: Vec<Gid> =
            std::iter::once(link_local(mac)).chain(options.ip.iter().map(|ip| Gid::from_ip(*ip))).collect();
        if gids.len() > caps.roce_addresses as usize {
            let why = "more addresses than the GID table has room for; the link-local address takes one";
            return Err(OpenError::Option { name: name.to_owned(), option: "ip", why });
        }
        for (index, gid) in gids.iter().enumerate() {
            set_address(cmd, [caps.port_number, index as u32], Some(*gid), mac).map_err(failed)?;
        }
        let mut attr = roce_attr(cmd, &nic).map_err(failed)?;
        // The first that the program gave, if it gave one.
        attr.gid = gids.get(1).copied().unwrap_or(gids[0]);
        attr.active_mtu = options.mtu.map_or(attr.active_mtu, |most| attr.active_mtu.min(most));
        let neighbours = options.neighbours.iter().map(|(ip, mac)| (Gid::from_ip(*ip), *mac)).collect();
        let (attr, lids) = (Mutex::new(attr), HashMap::new());
        let inline_mode =
            if caps.port_says_inline { nic.get(NicVportContext::MIN_WQE_INLINE_MODE) } else { 0 };
        let (ethernet, rates, number) = (true, caps.rates, caps.port_number);
        Ok(Self { ethernet, attr, gids, mac, neighbours, lids, rates, in_mac_table, inline_mode, number })
    }

    fn lock(&self) -> MutexGuard<'_, PortAttr> {
        // It is whole between any two of its operations.
        self.attr.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The attributes now.
    pub(crate) fn attr(&self) -> PortAttr {
        *self.lock()
    }
    /// It is up, or down. Returns whether it was not.
    pub(crate) fn set_active(&self, active: bool) -> bool {
        let mut attr = self.lock();
        attr.link = attr.link.filter(|_| active);
        core::mem::replace(&mut attr.active, active) != active
    }
    /// Asks again for what may have changed: the link's speed, and what the subnet's manager gives, LID, GID and state.
    pub(crate) fn refresh(&self, cmd: &CommandQueue) -> Result<(), CmdError> {
        if self.ethernet {
            let now = speed::now(cmd, true)?;
            self.lock().link = now;
        } else {
            let now = infiniband::attr(cmd)?;
            *self.lock() = now;
        }
        Ok(())
    }
    /// Its table of addresses: on InfiniBand the one that is used.
    pub(crate) fn gids(&self) -> Vec<GidEntry> {
        let of = |(index, gid, kind)| GidEntry { index, gid, kind, interface: None };
        if self.ethernet {
            return self.gids.iter().zip(0..).map(|(gid, i)| of((i, *gid, GidType::RoceV2))).collect();
        }
        vec![of((0, self.attr().gid, GidType::Ib))]
    }
    /// Takes the addresses of a RoCE port back, before the adapter is stopped.
    pub(crate) fn close(&self, cmd: &CommandQueue) -> Result<(), CmdError> {
        for index in (0..self.gids.len() as u32).filter(|_| self.ethernet) {
            set_address(cmd, [self.number, index], None, self.mac)?;
        }
        if self.ethernet {
            match cmd.exec(&no_addresses(AllowedListType::CurrentUcMacAddress)) {
                Ok(_) | Err(CmdError::Refused { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        if self.in_mac_table {
            cmd.exec(&DeleteL2TableEntryIn::new().with(DeleteL2TableEntryIn::TABLE_INDEX, OWN_MAC))?;
        }
        Ok(())
    }

    /// The addresses on Ethernet; `None` on InfiniBand.
    pub(crate) fn stations(&self) -> Option<Vec<Station>> {
        self.ethernet.then(|| self.gids.iter().map(|gid| self.station(*gid)).collect())
    }
    fn station(&self, gid: Gid) -> Station {
        Station { mac: self.mac, ip: gid.ip() }
    }
    /// The MAC, on Ethernet.
    pub(crate) fn mac(&self) -> Mac {
        self.mac
    }
    /// The way to a peer; `ask` is the way to the MAC of one that is not known: from the station named first.
    pub(crate) fn path(
        &self,
        av: &AddressVector,
        ask: impl FnOnce(Station, IpAddr) -> Result<Mac, DeviceError>,
    ) -> Result<Path, DeviceError> {
        let (dlid, mac, sgid_index) = if self.ethernet {
            let source = self.source_for(av.dgid)?;
            let ask = |peer| ask(self.station(self.gids[source]), peer);
            (Lid::new(0), self.mac_of(av.dgid, ask)?, source as u32)
        } else {
            (self.lid_of(av, &self.attr())?, [0; 6], 0)
        };
        Ok(Path {
            ethernet: self.ethernet,
            dgid: av.dgid,
            sgid_index,
            dlid: dlid.raw(),
            mac,
            hop_limit: if av.hop_limit == 0 { HOPS } else { av.hop_limit },
            traffic_class: av.traffic_class,
            flow_label: av.flow_label & 0xf_ffff,
            udp_sport: udp_source_port(av.flow_label),
            sl: av.sl,
            rate: rate(av.static_rate, self.rates),
        })
    }

    /// A peer's LID: as told, or its own of the port itself, or from the table, or 0.
    fn lid_of(&self, av: &AddressVector, attr: &PortAttr) -> Result<Lid, DeviceError> {
        check_group(av)?;
        if av.dlid.raw() != 0 {
            return Ok(av.dlid);
        }
        let own = (av.dgid == attr.gid).then_some(attr.lid);
        Ok(own.or_else(|| self.lids.get(&av.dgid).copied()).unwrap_or_default())
    }

    /// The entry of the table from which a peer is reached.
    fn source_for(&self, dgid: Gid) -> Result<usize, DeviceError> {
        let kind = |gid: Gid| (gid.is_ipv4(), is_link_local(gid));
        // Where there is none of the kind, a routed IPv6 address reaches a link-local one and the other way round.
        let exact = self.gids.iter().position(|g| kind(*g) == kind(dgid));
        let near = || self.gids.iter().rposition(|g| g.is_ipv4() == dgid.is_ipv4());
        exact.or_else(near).ok_or(DeviceError::NoPath {
            gid: dgid,
            why: "the port has no IPv4 address: give it one when it is opened, as in ?ip=10.0.0.2",
        })
    }

    fn mac_of(
        &self,
        dgid: Gid,
        ask: impl FnOnce(IpAddr) -> Result<Mac, DeviceError>,
    ) -> Result<Mac, DeviceError> {
        if self.gids.contains(&dgid) {
            return Ok(self.mac);
        }
        if let Some(mac) = self.neighbours.get(&dgid).copied().or_else(|| mac_in(dgid)) {
            return Ok(mac);
        }
        if !usable(dgid.ip()) {
            return Err(DeviceError::NoPath { gid: dgid, why: "it is not the address of a single host" });
        }
        ask(dgid.ip())
    }
}

/// Refuses what is no address of an InfiniBand port's.
fn check_group(av: &AddressVector) -> Result<(), DeviceError> {
    let (dgid, dlid) = (av.dgid, av.dlid.raw());
    let why = if dgid.is_ipv4() {
        "an IPv4 address belongs to a RoCE port; this one is InfiniBand"
    } else if dgid.0[0] == 0xff || (dgid == Gid::default() && dlid == 0) {
        "it is a group address or unspecified"
    } else if dlid >= MULTICAST_LIDS {
        "its LID is a group LID: ports have 1 to 49151"
    } else {
        return Ok(());
    };
    Err(DeviceError::NoPath { gid: dgid, why })
}

/// A flow's UDP source port, in the upper quarter: it spreads flows over ways of equal length.
fn udp_source_port(flow_label: u32) -> u16 {
    let label = flow_label & 0xf_ffff;
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

fn is_link_local(gid: Gid) -> bool {
    gid.0[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0]
}
/// The link-local address that a MAC makes (RFC 4291, appendix A).
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
/// The MAC that made a link-local address, if one did.
fn mac_in(gid: Gid) -> Option<[u8; 6]> {
    let o = gid.0;
    let made = is_link_local(gid) && o[11..13] == [0xff, 0xfe];
    made.then_some([o[8] ^ 2, o[9], o[10], o[13], o[14], o[15]])
}

fn set_address(
    cmd: &CommandQueue,
    [port, index]: [u32; 2],
    gid: Option<Gid>,
    mac: [u8; 6],
) -> Result<(), CmdError> {
    let mut entry = RoceAddr::new();
    if let Some(gid) = gid {
        let l3 = if gid.is_ipv4() { RoceL3Type::Ipv4 } else { RoceL3Type::Ipv6 };
        entry.set(RoceAddr::SOURCE_L3_ADDRESS, gid.0);
        entry.set(RoceAddr::ROCE_L3_TYPE, l3.code());
        entry.set(RoceAddr::ROCE_VERSION, RoceVersion::V2.code());
        entry.set_mac(mac);
    }
    let input = SetRoceAddressIn::new()
        .with(SetRoceAddressIn::ROCE_ADDRESS_INDEX, index)
        .with(SetRoceAddressIn::VHCA_PORT_NUM, port)
        .with(SetRoceAddressIn::ROCE_ADDRESS, entry);
    cmd.exec(&input).map(drop)
}

/// Has a port hear what its own queue pairs say to each other: who had the function before may have switched that off.
fn loop_back(cmd: &CommandQueue, caps: &Caps) -> Result<(), CmdError> {
    let [single, groups] = caps.local_loopback;
    if !single && !groups {
        return Ok(());
    }
    let select = NicVportFieldSelect::new()
        .with(NicVportFieldSelect::DISABLE_UC_LOCAL_LB, single)
        .with(NicVportFieldSelect::DISABLE_MC_LOCAL_LB, groups);
    // The context's bits are 0: nothing is switched off.
    match cmd.exec(&ModifyNicVportContextIn::new().with(ModifyNicVportContextIn::FIELD_SELECT, select)) {
        Ok(_) => Ok(()),
        Err(e @ CmdError::Refused { .. }) => {
            tracing::warn!(%e, "loopback between queue pairs of the port keeps its last user's setting");
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// Enters a port's MAC into the table by which the switch between physical and virtual functions leads frames to
/// physical ones. Returns whether it is there.
fn enter(cmd: &CommandQueue, mac: Mac) -> Result<bool, CmdError> {
    let mut address = MacAddress::new();
    address.set_mac(mac);
    let entry = SetL2TableEntryIn::new()
        .with(SetL2TableEntryIn::TABLE_INDEX, OWN_MAC)
        .with(SetL2TableEntryIn::MAC_ADDRESS, address);
    match cmd.exec(&entry) {
        Ok(_) => Ok(true),
        Err(e @ CmdError::Refused { .. }) => {
            tracing::warn!(%e, "the adapter's switch refused the port's MAC: the port may receive nothing");
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// A rate in the adapter's numbers, of which `known` has a bit each: the highest that is not above what is asked for,
/// or else the lowest. 0: there is no limit.
fn rate(asked: StaticRate, known: u32) -> u32 {
    // Those behind the first seven are numbered as PathRecords do, plus 5.
    const FIRST: [u32; 7] = [0, 56_000, 25_000, 100_000, 200_000, 50_000, 400_000];
    let Some(asked) = asked.mbits() else { return 0 };
    let mbits = |code: u32| {
        let first = FIRST.get(code as usize).copied();
        first.or_else(|| StaticRate::new(code as u8 - 5).mbits()).unwrap_or(0)
    };
    let codes = || (1..16).filter(|code| known >> code & 1 != 0);
    let below = codes().filter(|code| mbits(*code) <= asked).max_by_key(|code| mbits(*code));
    below.or_else(|| codes().min_by_key(|code| mbits(*code))).unwrap_or(0)
}

/// Has a port take frames to these MACs, and to no others of their kind but its own.
pub(crate) fn list_addresses(
    cmd: &CommandQueue,
    kind: AllowedListType,
    macs: &[Mac],
) -> Result<(), CmdError> {
    let entry = |mac: &Mac| {
        let mut entry = MacAddress::new();
        entry.set_mac(*mac);
        *entry.as_bytes()
    };
    let list: Vec<u8> = macs.iter().flat_map(entry).collect();
    cmd.exec_with(&addresses(kind, macs.len()), &list, &mut []).map(drop)
}
/// What has it take frames to none of them any more.
pub(crate) fn no_addresses(kind: AllowedListType) -> ModifyNicVportContextIn {
    addresses(kind, 0)
}
fn addresses(kind: AllowedListType, count: usize) -> ModifyNicVportContextIn {
    let context = NicVportContext::new()
        .with(NicVportContext::ALLOWED_LIST_TYPE, kind.code())
        .with(NicVportContext::ALLOWED_LIST_SIZE, count as u32);
    let select = NicVportFieldSelect::new().with(NicVportFieldSelect::ADDRESSES_LIST, true);
    ModifyNicVportContextIn::new()
        .with(ModifyNicVportContextIn::FIELD_SELECT, select)
        .with(ModifyNicVportContextIn::NIC_VPORT_CONTEXT, context)
}

/// The largest packet that the port takes now, if it says.
pub(crate) fn oper_mtu(cmd: &CommandQueue) -> Result<Option<u32>, CmdError> {
    let input = AccessRegIn::new()
        .with(AccessRegIn::OP_MOD, AccessRegMod::Read.code())
        .with(AccessRegIn::REGISTER_ID, RegisterId::Pmtu.code());
    let mut out = [0; Pmtu::SIZE];
    match cmd.exec_with(&input, Pmtu::new().with(Pmtu::LOCAL_PORT, 1).as_bytes(), &mut out) {
        Ok(_) => {
            let answer = Pmtu::from_bytes(&out).expect("the place is as long as the register");
            Ok(Some(answer.get(Pmtu::OPER_MTU)).filter(|mtu| *mtu > 0))
        }
        // A virtual function may not ask.
        Err(CmdError::Refused { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

fn roce_attr(cmd: &CommandQueue, nic: &NicVportContext) -> Result<PortAttr, CmdError> {
    let known = oper_mtu(cmd)?.or(Some(nic.get(NicVportContext::MTU)).filter(|mtu| *mtu > 0));
    let frame = known.unwrap_or(1500 + FRAME_OVERHEAD);
    let link = frame.saturating_sub(FRAME_OVERHEAD);
    let input = QueryVportStateIn::new().with(QueryVportStateIn::OP_MOD, VportStateMod::VnicVport.code());
    let active = match cmd.exec(&input) {
        Ok(answer) => answer.get(QueryVportStateOut::STATE) == 1,
        Err(CmdError::Refused { .. }) => true,
        Err(e) => return Err(e),
    };
    let active_mtu = Mtu::largest_for_link(link).unwrap_or(Mtu::B256);
    let (gid, lid, link_layer) = (Gid::default(), Lid::new(0), LinkLayer::Ethernet);
    Ok(PortAttr { gid, lid, active_mtu, active, link_layer, link: speed::now(cmd, true)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0xa, 0xb, 0xc, 0xd, 0xe];

    fn attr(gid: Gid, lid: Lid, link_layer: LinkLayer) -> PortAttr {
        PortAttr { gid, lid, active_mtu: Mtu::B1024, active: true, link_layer, link: None }
    }

    fn roce(ips: &[&str], neighbours: &[(&str, [u8; 6])]) -> Port {
        let gid = |s: &str| Gid::from_ip(s.parse().unwrap());
        let gids = std::iter::once(link_local(MAC)).chain(ips.iter().map(|ip| gid(ip))).collect();
        let attr = attr(Gid::default(), Lid::new(0), LinkLayer::Ethernet);
        let neighbours = neighbours.iter().map(|(ip, mac)| (gid(ip), *mac)).collect();
        let (attr, lids) = (Mutex::new(attr), HashMap::new());
        let (rates, in_mac_table, inline_mode, number) = (0, false, 0, 0);
        Port {
            ethernet: true,
            attr,
            gids,
            mac: MAC,
            neighbours,
            lids,
            rates,
            in_mac_table,
            inline_mode,
            number,
        }
    }
    /// Nobody is to be asked.
    fn nobody(_: Station, peer: IpAddr) -> Result<Mac, DeviceError> {
        panic!("{peer} is asked for")
    }
    fn to(ip: &str) -> AddressVector {
        AddressVector { dgid: Gid::from_ip(ip.parse().unwrap()), ..AddressVector::default() }
    }

    #[test]
    fn a_peers_mac_comes_from_its_link_local_address_or_from_the_table_and_the_source_is_of_its_kind() {
        let port = roce(
            &["10.0.0.2", "2001:db8::2"],
            &[("10.0.0.3", [2, 0, 0, 0, 0, 3]), ("2001:db8::3", [2, 0, 0, 0, 0, 4])],
        );
        let of = |ip| port.path(&to(ip), nobody).map(|p| (p.mac, p.sgid_index)).unwrap();
        assert_eq!(of("fe80::11:22ff:fe33:4455"), ([2, 0x11, 0x22, 0x33, 0x44, 0x55], 0));
        assert_eq!(of("10.0.0.3"), ([2, 0, 0, 0, 0, 3], 1));
        assert_eq!(of("2001:db8::3"), ([2, 0, 0, 0, 0, 4], 2));
        assert_eq!(of("10.0.0.2"), (MAC, 1), "itself");
        assert_eq!(link_local(MAC).0[8..], [0, 0xa, 0xb, 0xff, 0xfe, 0xc, 0xd, 0xe]);
        assert_eq!(mac_in(link_local(MAC)), Some(MAC));
    }

    #[test]
    fn a_peers_lid_is_that_of_its_address_vector_or_of_the_port_or_of_the_table() {
        let gid = |s: &str| Gid::from_ip(s.parse().unwrap());
        let attr = attr(gid("fe80::1"), Lid::new(3), LinkLayer::InfiniBand);
        let port = Port {
            ethernet: false,
            attr: Mutex::new(attr),
            gids: Vec::new(),
            mac: [0; 6],
            neighbours: HashMap::new(),
            lids: [(gid("fe80::5"), Lid::new(7))].into(),
            rates: 0,
            in_mac_table: false,
            inline_mode: 0,
            number: 0,
        };
        let of = |ip, lid| {
            let path = port.path(&AddressVector { dlid: Lid::new(lid), ..to(ip) }, nobody);
            path.map(|p| (p.dlid, p.dgid != Gid::default())).map_err(|e| e.to_string())
        };
        assert_eq!(of("fe80::5", 0), Ok((7, true)));
        assert_eq!(of("fe80::5", 9), Ok((9, true)));
        assert_eq!(of("fe80::1", 0), Ok((3, true)));
        assert_eq!(of("fe80::6", 0), Ok((0, true)), "a served adapter finds it");
        assert_eq!(of("::", 9), Ok((9, false)), "within the subnet");
        for (ip, lid, why) in [
            ("::", 0, "unspecified"),
            ("::", 0xc000, "49151"),
            ("10.0.0.1", 5, "IPv4"),
            ("ff02::1", 5, "group"),
        ] {
            let e = of(ip, lid).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
    }

    #[test]
    fn who_is_not_known_is_asked_for_from_the_address_of_its_kind() {
        let port = roce(&["10.0.0.2", "2001:db8::2"], &[]);
        let asked = |ip: &str| {
            let mut by = None;
            let path = port.path(&to(ip), |own, peer| {
                by = Some((own.ip.to_string(), peer.to_string()));
                assert_eq!(own.mac, MAC);
                Ok([2, 0, 0, 0, 0, 9])
            });
            assert_eq!(path.unwrap().mac, [2, 0, 0, 0, 0, 9]);
            by.unwrap()
        };
        let of = |own: &str, peer: &str| (own.to_owned(), peer.to_owned());
        assert_eq!(asked("10.0.0.9"), of("10.0.0.2", "10.0.0.9"));
        assert_eq!(asked("2001:db8::9"), of("2001:db8::2", "2001:db8::9"));
        // A link-local address that no MAC made.
        assert_eq!(asked("fe80::9"), of(&link_local(MAC).ip().to_string(), "fe80::9"));
    }

    #[test]
    fn a_peer_that_cant_be_reached_is_refused_with_what_to_do() {
        let port = roce(&["10.0.0.2"], &[]);
        for group in ["224.0.0.1", "255.255.255.255", "ff02::1", "::", "0.0.0.0"] {
            let refused = port.path(&to(group), nobody).unwrap_err().to_string();
            assert!(refused.contains("single host"), "{refused}");
        }
        let bare = roce(&[], &[("10.0.0.3", [2, 0, 0, 0, 0, 3])]);
        let no_source = bare.path(&to("10.0.0.3"), nobody).unwrap_err().to_string();
        assert!(no_source.contains("?ip="), "{no_source}");
    }

    #[test]
    fn flows_have_source_ports_of_the_upper_quarter_and_labels_of_20_bits() {
        let port = roce(&[], &[]);
        let path = port
            .path(&AddressVector { flow_label: 0xfff1_2345, ..to("fe80::11:22ff:fe33:4455") }, nobody)
            .unwrap();
        assert_eq!((path.flow_label, path.hop_limit), (0x1_2345, 64));
        assert!(path.udp_sport >= 0xc000);
        assert_ne!(udp_source_port(1), udp_source_port(2));
    }

    #[test]
    fn a_rate_is_the_highest_that_the_adapter_has_and_is_not_above_what_is_asked_for() {
        let of = |code, known| rate(StaticRate::new(code), known);
        let (gbit25, gbit100, gbit10, gbit40) = (1 << 2, 1 << 3, 1 << 8, 1 << 12);
        let all = gbit25 | gbit100 | gbit10 | gbit40;
        // 10, 40, 100 and 25 Gbit/s as PathRecords number them, and then 30, 56 and 400.
        assert_eq!([3, 7, 16, 15].map(|code| of(code, all)), [8, 12, 3, 2]);
        assert_eq!([4, 12, 21].map(|code| of(code, all)), [2, 12, 3]);
        assert_eq!(
            (of(2, all), of(0, all), of(16, 0)),
            (8, 0, 0),
            "slower than any, no limit, and none that it has"
        );
    }

    #[test]
    fn connections_without_a_flow_label_have_source_ports_of_their_own() {
        let port = roce(&[], &[]);
        let path = |flow_label| {
            let av = AddressVector { flow_label, ..to("fe80::11:22ff:fe33:4455") };
            port.path(&av, nobody).unwrap()
        };
        let ports_of = |label| (0x40..0x80).map(move |n| path(label).of_queue_pair(Qpn::new(n)).udp_sport);
        assert!(ports_of(0).all(|p| p >= 0xc000));
        let distinct = ports_of(0).collect::<std::collections::HashSet<_>>().len();
        assert!(distinct >= 60, "64 connections have {distinct} source ports");
        assert!(ports_of(5).all(|p| p == udp_source_port(5)), "the flow label says the port");
    }
}
