//! The speed and the width of the adapter's link, out of the register of speeds.

use hca_core::LinkSpeed;
use hca_prm::command::hca::{AccessRegIn, AccessRegMod};
use hca_prm::register::{Ptys, RegisterId};

use crate::cmd::{CmdError, CommandQueue};

/// Speeds of one InfiniBand lane in Mbit/s, by the bit in [`Ptys::IB_PROTO_OPER`]: SDR, DDR, QDR, FDR10, FDR, EDR, HDR,
/// NDR, XDR.
const IB_LANES: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
/// Lanes, by the bit in [`Ptys::IB_LINK_WIDTH_OPER`].
const IB_WIDTHS: [u8; 5] = [1, 2, 4, 8, 12];
/// Speeds in Gbit/s and lanes, by the bit in [`Ptys::ETH_PROTO_OPER`].
const ETHERNET: [(u32, u32, u8); 25] = [
    (0, 1, 1),
    (1, 1, 1),
    (2, 10, 4),
    (3, 10, 4),
    (4, 10, 1),
    (5, 20, 2),
    (6, 40, 4),
    (7, 40, 4),
    (8, 56, 4),
    (12, 10, 1),
    (13, 10, 1),
    (14, 10, 1),
    (15, 40, 4),
    (16, 40, 4),
    (18, 50, 2),
    (20, 100, 4),
    (21, 100, 4),
    (22, 100, 4),
    (23, 100, 4),
    (25, 1, 1),
    (26, 10, 1),
    (27, 25, 1),
    (28, 25, 1),
    (29, 25, 1),
    (30, 50, 2),
];
/// The same in [`Ptys::EXT_ETH_PROTO_OPER`].
const EXTENDED: [(u32, u32, u8); 18] = [
    (1, 1, 1),
    (3, 5, 1),
    (4, 10, 1),
    (5, 40, 4),
    (6, 25, 1),
    (7, 50, 2),
    (8, 50, 1),
    (9, 100, 4),
    (10, 100, 2),
    (11, 100, 1),
    (12, 200, 4),
    (13, 200, 2),
    (14, 200, 1),
    (15, 400, 8),
    (16, 400, 4),
    (17, 400, 2),
    (19, 800, 8),
    (20, 800, 4),
];

/// The link's speed now; `None` where there is no link, or the function may not ask.
pub(crate) fn now(cmd: &CommandQueue, ethernet: bool) -> Result<Option<LinkSpeed>, CmdError> {
    let input = AccessRegIn::new()
        .with(AccessRegIn::OP_MOD, AccessRegMod::Read.code())
        .with(AccessRegIn::REGISTER_ID, RegisterId::Ptys.code());
    let asked = Ptys::new()
        .with(Ptys::LOCAL_PORT, 1)
        .with(Ptys::PROTO_MASK, if ethernet { Ptys::EN } else { Ptys::IB });
    let mut out = [0; Ptys::SIZE];
    match cmd.exec_with(&input, asked.as_bytes(), &mut out) {
        Ok(_) => Ok(of(&Ptys::from_bytes(&out).expect("the place is as long as the register"), ethernet)),
        // A virtual function may not ask.
        Err(CmdError::Refused { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

fn of(told: &Ptys, ethernet: bool) -> Option<LinkSpeed> {
    if ethernet {
        let known = |table: &[(u32, u32, u8)], bits: u32| {
            let found = table.iter().find(|(bit, ..)| bits >> bit & 1 != 0);
            found.map(|(_, gbps, lanes)| LinkSpeed { mbps: gbps * 1000, lanes: Some(*lanes) })
        };
        return known(&EXTENDED, told.get(Ptys::EXT_ETH_PROTO_OPER))
            .or_else(|| known(&ETHERNET, told.get(Ptys::ETH_PROTO_OPER)));
    }
    let (speed, width) = (told.get(Ptys::IB_PROTO_OPER), told.get(Ptys::IB_LINK_WIDTH_OPER));
    let lane = IB_LANES.get(speed.checked_ilog2()? as usize)?;
    let lanes = *IB_WIDTHS.get(width.checked_ilog2()? as usize)?;
    Some(LinkSpeed { mbps: lane * u32::from(lanes), lanes: Some(lanes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_all_lanes() {
        let ib = |speed, width| {
            let told = Ptys::new().with(Ptys::IB_PROTO_OPER, speed).with(Ptys::IB_LINK_WIDTH_OPER, width);
            of(&told, false).map(|l| (l.mbps, l.lanes))
        };
        assert_eq!(ib(1 << 5, 1 << 2), Some((100_000, Some(4))), "EDR 4X");
        assert_eq!(ib(1, 1), Some((2_500, Some(1))), "SDR 1X");
        assert_eq!(ib(1 << 6, 1 << 1), Some((100_000, Some(2))), "HDR100 is HDR 2X");
        assert_eq!((ib(0, 4), ib(1, 0), ib(1 << 9, 4), ib(1, 1 << 5)), (None, None, None, None));
        let ethernet = |old, extended| {
            let told = Ptys::new().with(Ptys::ETH_PROTO_OPER, old).with(Ptys::EXT_ETH_PROTO_OPER, extended);
            of(&told, true).map(|l| (l.mbps, l.lanes))
        };
        assert_eq!(ethernet(1 << 20, 0), Some((100_000, Some(4))));
        assert_eq!(ethernet(1 << 20, 1 << 12), Some((200_000, Some(4))), "the newer numbers count");
        assert_eq!((ethernet(0, 0), ethernet(1 << 11, 1 << 31)), (None, None));
    }
}
