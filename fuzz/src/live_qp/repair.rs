//! Repairs that get a packet past the checks that random bytes never pass.

use hca_core::wire::{Opcode, PacketOp, TransportKind};
use hca_core::{Pkey, Psn};

use super::arena::{AREAS, Arena, GUARD, SECRET};
use super::{Bed, QKEY};

/// Repairs of a packet before it is fed.
pub(super) struct Repair(pub(super) u8);
impl Repair {
    /// The queue pair's number.
    const QPN: u8 = 1;
    /// The PSN: near what the responder expects.
    const PSN: u8 = 1 << 1;
    /// With `PSN`: that of a request under way instead.
    const RESPONSE: u8 = 1 << 2;
    /// A key that exists, an address in or near its region, a short DMA length.
    const KEY: u8 = 1 << 3;
    /// No padding, and a payload of the path MTU where the operation demands it.
    const LENGTH: u8 = 1 << 4;
    /// The service bits of the opcode.
    const SERVICE: u8 = 1 << 5;
    /// Version, P_Key, Q_Key.
    const HEADER: u8 = 1 << 6;
    /// It met congestion on its way.
    const CONGESTION: u8 = 1 << 7;

    fn has(&self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

impl Bed {
    /// A packet arrives.
    pub(super) fn packet(&mut self, target: usize, repair: &Repair, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if bytes.len() < 12 {
            // A fabric drops what has no BTH.
            bytes.resize(12, 0);
        }
        let n = target % 3;
        let stranger = target % 32 == 31;
        if repair.has(Repair::SERVICE) {
            bytes[0] = bytes[0] & 0x1f | [0, 0x20, 0x60][n];
        }
        if repair.has(Repair::HEADER) {
            bytes[1] &= 0xf0;
            bytes[2..4].copy_from_slice(&Pkey::DEFAULT.raw().to_be_bytes());
        }
        if repair.has(Repair::QPN) {
            bytes[5..8].copy_from_slice(&self.pairs[n].qpn.raw().to_be_bytes()[1..]);
        }
        if repair.has(Repair::LENGTH) {
            self.repair_length(&mut bytes);
        }
        self.repair_headers(repair, &mut bytes);
        // What an input brings is never taken for a secret.
        bytes[12..].iter_mut().filter(|b| **b == SECRET).for_each(|b| *b = SECRET - 1);
        if repair.has(Repair::PSN) {
            self.repair_psn(n, repair.has(Repair::RESPONSE), &mut bytes);
        }
        self.wire.lock().unwrap().arriving.push_back((repair.has(Repair::CONGESTION), stranger, bytes));
    }

    fn repair_length(&self, bytes: &mut Vec<u8>) {
        let opcode = Opcode::new(bytes[0]);
        let Some(layout) = opcode.layout() else { return };
        bytes[1] &= 0xcf;
        let headers = usize::from(layout.header_bytes);
        if bytes.len() < headers {
            bytes.resize(headers, 0);
        }
        use PacketOp as P;
        let whole = matches!(
            opcode.op(),
            Some(
                P::SendFirst
                    | P::SendMiddle
                    | P::WriteFirst
                    | P::WriteMiddle
                    | P::ReadResponseFirst
                    | P::ReadResponseMiddle
            )
        );
        let fill = bytes[8];
        if whole {
            bytes.resize(headers + self.mtu.bytes() as usize, fill);
        } else if layout.payload {
            // One byte stands for lengths that few inputs would have otherwise.
            let more = if fill & 0x40 != 0 { usize::from(fill & 0x3f) * 4 } else { 0 };
            bytes.resize((bytes.len() + more).next_multiple_of(4), fill);
        } else {
            bytes.truncate(headers);
        }
    }

    /// Keys, addresses and lengths of the extended headers.
    fn repair_headers(&self, repair: &Repair, bytes: &mut [u8]) {
        let Some(layout) = Opcode::new(bytes[0]).layout() else { return };
        if bytes.len() < usize::from(layout.header_bytes) {
            return;
        }
        if repair.has(Repair::HEADER) && layout.deth != 0 {
            let at = usize::from(layout.deth);
            bytes[at..at + 4].copy_from_slice(&QKEY.to_be_bytes());
        }
        if !repair.has(Repair::KEY) {
            return;
        }
        let payload = bytes.len() - usize::from(layout.header_bytes);
        let at = usize::from(if layout.reth != 0 { layout.reth } else { layout.atomic });
        if at != 0 {
            // The key's last byte chooses the area, the address's last two the place, the length's
            // last two how much.
            let area = usize::from(bytes[at + 11]) % AREAS.len();
            let (range, key) = (Arena::range(AREAS[area].0), self.keys[area].rkey);
            let raw = |i: usize| u16::from_be_bytes([bytes[at + i], bytes[at + i + 1]]);
            let len = match (layout.reth, raw(14) >> 14) {
                (0, _) => 8,
                (_, 0) => payload as u32,
                (_, 1) => payload as u32 + u32::from(raw(14) & 0x3ff),
                _ => u32::from(raw(14) & 0x1fff),
            };
            let raw = raw(6);
            let place = if raw >> 12 == 0xf {
                // So that the access ends close to the end of the region, on either side of it.
                (range.end + usize::from(raw & 0x1f)).saturating_sub(16 + len as usize)
            } else {
                range.start + usize::from(raw) % (range.len() + 8)
            };
            let va = self.arena.addr(place.min(range.end + GUARD / 2)).as_ptr() as u64;
            let word = layout.atomic != 0 || Opcode::new(bytes[0]).op() == Some(PacketOp::AtomicWrite);
            let va = if word && raw & 0x8000 == 0 { va & !7 } else { va };
            bytes[at..at + 8].copy_from_slice(&va.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&key.raw().to_be_bytes());
            if layout.reth != 0 {
                bytes[at + 12..at + 16].copy_from_slice(&len.to_be_bytes());
            }
        }
        if layout.ieth != 0 {
            let at = usize::from(layout.ieth);
            let area = usize::from(bytes[at + 3]) % AREAS.len();
            bytes[at..at + 4].copy_from_slice(&self.keys[area].rkey.raw().to_be_bytes());
        }
    }

    /// The PSN byte is the distance from what is expected, or the index of a request under way.
    fn repair_psn(&self, n: usize, response: bool, bytes: &mut [u8]) {
        let mut wire = self.wire.lock().unwrap();
        let given = bytes[11];
        let psn = if response {
            let known = &wire.requests[n];
            if known.is_empty() {
                return;
            }
            known[usize::from(given) % known.len()]
        } else {
            // Mostly the one that is expected.
            let away = if given < 0xc0 { 0 } else { i32::from(given) - 0xe0 };
            let psn = (wire.expected as i32).wrapping_add(away) as u32 & 0xff_ffff;
            let rc = Opcode::new(bytes[0]).kind() == Some(TransportKind::Rc);
            if away == 0 && rc {
                wire.expected = Psn::new(psn).add(1).raw();
            }
            psn
        };
        bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }
}
