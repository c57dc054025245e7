//! Reception: frames in the ring are parsed, cut if they are super-frames, checked, and given to the sink.

use std::net::IpAddr;

use hca_core::Instant;
use hca_core::wire::ICRC_BYTES;

use super::RoceVersion;
use super::counters::RawCounters;
use super::frame::{self, GSO_UDP_L4, Shown};
use super::sys::{STATUS_CSUM_NOT_READY, STATUS_CSUM_VALID, VNET_BYTES};
use crate::flow::{Checked, RxFlows};
use crate::udp::Counters;
use crate::{Direction, RxPacket, Tap, TapFrame};

/// Kinds of super-frames in a `virtio_net_hdr`.
const GSO_NONE: u8 = 0;
const GSO_ECN: u8 = 0x80;

/// Flags of a `virtio_net_hdr`: the checksum is yet to be put on, or was found right.
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_DATA_VALID: u8 = 2;

/// The status that a slot of the ring would have for a frame of the socket's queue, which follows a `virtio_net_hdr`.
pub(super) fn status(bytes: &[u8]) -> u32 {
    let flags = bytes.first().copied().unwrap_or_default();
    let status = |flag, status| if flags & flag == 0 { 0 } else { status };
    status(VNET_NEEDS_CSUM, STATUS_CSUM_NOT_READY) | status(VNET_DATA_VALID, STATUS_CSUM_VALID)
}

/// What a receive call gives packets to, and counts.
pub(super) struct Account<'a> {
    pub(super) now: Instant,
    pub(super) counters: &'a mut Counters,
    pub(super) raw: &'a mut RawCounters,
    pub(super) tap: &'a mut Option<Box<dyn Tap>>,
    pub(super) sink: &'a mut dyn FnMut(&RxPacket<'_>),
}

/// What a receive call works with beside the ring.
pub(super) struct Receiver {
    version: RoceVersion,
    local: IpAddr,
    /// A `virtio_net_hdr` stands in front of each frame.
    vnet: bool,
    flows: RxFlows,
    /// The groups that are joined, each with its flows.
    groups: Vec<(IpAddr, RxFlows)>,
}

impl Receiver {
    pub(super) fn new(version: RoceVersion, local: IpAddr, vnet: bool) -> Self {
        let flows = match version {
            RoceVersion::V1 => RxFlows::behind_grh(local),
            RoceVersion::V2 => RxFlows::shown(local),
        };
        Self { version, local, vnet, flows, groups: Vec::new() }
    }

    pub(super) fn join(&mut self, group: IpAddr) {
        self.groups.push((group, RxFlows::shown_of_group(group)));
    }
    pub(super) fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|(joined, _)| *joined != group);
    }
    pub(super) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }
    pub(super) fn is_member(&self, group: IpAddr) -> bool {
        self.groups.iter().any(|(joined, _)| *joined == group)
    }

    /// Gives a frame's packets to the sink and returns how many it were. `bytes` begin with a `virtio_net_hdr` if
    /// there is one.
    #[inline]
    pub(super) fn deliver(&mut self, status: u32, bytes: &[u8], account: &mut Account<'_>) -> usize {
        account.counters.rx_trains += 1;
        let Some((segment, frame)) = self.cut_vnet(bytes, account.raw) else { return 0 };
        let trusted = status & (STATUS_CSUM_NOT_READY | STATUS_CSUM_VALID) != 0;
        let Some(shown) = frame::parse(self.version, self.local, trusted, frame) else {
            account.raw.rx_malformed += 1;
            return 0;
        };
        if shown.checksum_wrong {
            account.raw.udp_checksum_errors += 1;
            return 0;
        }
        if segment == 0 || shown.payload.len() <= segment {
            return self.give(&shown, account);
        }
        account.raw.rx_superframes += 1;
        let mut good = 0;
        for (k, payload) in shown.payload.chunks(segment).enumerate() {
            // Cut on its way, the packets would have ascending numbers.
            let ident = shown.ident.wrapping_add(k as u16);
            good += self.give(&Shown { ident, payload, ..shown }, account);
        }
        good
    }

    /// The size of the packets in a super-frame (0: it is none), and the frame.
    #[inline]
    fn cut_vnet<'a>(&self, bytes: &'a [u8], raw: &mut RawCounters) -> Option<(usize, &'a [u8])> {
        if !self.vnet {
            return Some((0, bytes));
        }
        let Some((head, frame)) = bytes.split_first_chunk::<VNET_BYTES>() else {
            raw.rx_malformed += 1;
            return None;
        };
        let size = usize::from(u16::from_ne_bytes([head[4], head[5]]));
        match head[1] & !GSO_ECN {
            GSO_NONE => Some((0, frame)),
            GSO_UDP_L4 if size != 0 => Some((size, frame)),
            _ => {
                raw.rx_superframes_refused += 1;
                None
            }
        }
    }

    /// Checks one packet and gives it to the sink; how many it were.
    #[inline]
    pub(super) fn give(&mut self, shown: &Shown<'_>, account: &mut Account<'_>) -> usize {
        let mut flows = &mut self.flows;
        let header = shown.header;
        if header.dst != self.local {
            let Some((_, of_group)) = self.groups.iter_mut().find(|(group, _)| *group == header.dst) else {
                account.raw.rx_other_groups += 1;
                return 0;
            };
            flows = of_group;
        }
        flows.begin(header.src, header.src_port);
        let checked = flows.check_shown(shown.ident, shown.dont_fragment, shown.payload);
        if account.tap.is_some() {
            self.tapped(shown, checked, account);
        }
        match checked {
            Checked::Good(_) => {
                account.counters.rx_packets += 1;
                account.counters.rx_bytes += shown.payload.len() as u64;
                let bytes = &shown.payload[..shown.payload.len() - ICRC_BYTES];
                (account.sink)(&RxPacket { header, bytes });
                return 1;
            }
            Checked::Bad(_) | Checked::Odd(_) => account.counters.icrc_errors += 1,
            Checked::Short => account.counters.short_packets += 1,
        }
        0
    }

    #[cold]
    fn tapped(&self, shown: &Shown<'_>, checked: Checked, account: &mut Account<'_>) {
        let (Some(tap), Checked::Good(ident) | Checked::Bad(ident) | Checked::Odd(ident)) =
            (&mut *account.tap, checked)
        else {
            return;
        };
        let frame = TapFrame {
            direction: Direction::Rx,
            version: self.version,
            header: shown.header,
            ident,
            payload: shown.payload,
        };
        tap.frame(account.now, &frame);
    }
}
