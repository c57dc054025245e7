//! Golden packets: each is parsed to its fields, its ICRC checked, and built again bit for bit.
//!
//! Not under Miri, which takes minutes to parse the rows' JSON: `corpus.rs` runs the same frames.
#![cfg(not(miri))]

use hca_core::wire::frame::{Frame, Network};
use hca_core::wire::{Bth, BthFlags, Opcode, Packet, PacketBuilder};
use serde_json::Value;

const ROWS: &str = include_str!("data/rocev2_packets.json");
const PCAP: &[u8] = include_bytes!("data/rocev2_packets.pcap");

struct Row(Value);

impl Row {
    fn all() -> Vec<Self> {
        let rows: Vec<Value> = serde_json::from_str(ROWS).unwrap();
        assert_eq!(rows.len(), 102);
        rows.into_iter().map(Self).collect()
    }
    fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }
    fn number(&self, field: &str) -> Option<u64> {
        self.0[field].as_u64()
    }
    fn hex(&self, field: &str) -> Option<Vec<u8>> {
        let text = self.0[field].as_str()?;
        assert!(text.len().is_multiple_of(2));
        Some((0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect())
    }
    fn frame(&self) -> Vec<u8> {
        self.hex("frame").unwrap()
    }
}

/// Compares `seen` with the row's field, where the row has it.
fn same(row: &Row, field: &str, seen: impl Into<u64>) {
    if let Some(want) = row.number(field) {
        assert_eq!(seen.into(), want, "{field} of {}", row.name());
    }
}

/// The same packet, made from its parsed parts.
fn rebuild(packet: &Packet<'_>) -> Vec<u8> {
    let bth = packet.bth();
    let mut flags = BthFlags::empty();
    flags.set(BthFlags::SOLICITED, bth.solicited());
    flags.set(BthFlags::ACK_REQ, bth.ack_req());
    flags.set(BthFlags::FECN, bth.fecn());
    flags.set(BthFlags::BECN, bth.becn());
    let mut b = PacketBuilder::new(bth.opcode(), bth.dest_qp(), bth.psn())
        .flags(flags)
        .mig_req(bth.mig_req())
        .pkey(bth.pkey())
        .payload(packet.payload());
    macro_rules! copy {
        ($($header:ident),*) => { $(if let Some(h) = packet.$header() { b = b.$header(*h); })* };
    }
    copy!(rdeth, deth, xrceth, feth, reth, atomic, aeth, atomic_ack, ieth);
    if let Some(data) = packet.imm() {
        b = b.imm(data);
    }
    b.build().unwrap()
}

#[test]
fn every_packet_parses_to_its_fields() {
    for row in Row::all() {
        let bytes = row.frame();
        let frame = Frame::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", row.name()));
        let version = match frame.network {
            Network::V4(_) => 4_u64,
            Network::V6(_) => 6,
        };
        same(&row, "ip", version);
        same(&row, "udp_sport", frame.udp.src_port.get());
        let packet = frame.packet;
        let bth = packet.bth();
        same(&row, "opcode", bth.opcode().raw());
        same(&row, "solicited", bth.solicited());
        same(&row, "migreq", bth.mig_req());
        same(&row, "padcount", bth.pad());
        same(&row, "pkey", bth.pkey().raw());
        same(&row, "fecn", bth.fecn());
        same(&row, "becn", bth.becn());
        same(&row, "dqpn", bth.dest_qp().raw());
        same(&row, "ackreq", bth.ack_req());
        same(&row, "psn", bth.psn().raw());
        let headers = usize::from(bth.opcode().layout().unwrap().header_bytes);
        if let Some(ext) = row.hex("ext_hdr") {
            assert_eq!(packet.bytes()[Bth::BYTES..headers], ext, "{}", row.name());
        }
        if let Some(payload) = row.hex("payload") {
            assert_eq!(packet.payload(), payload, "{}", row.name());
        }
    }
}

#[test]
fn extended_headers_hold_the_values_that_all_rows_share() {
    for row in Row::all().iter().filter(|r| r.number("psn").is_some()) {
        let bytes = row.frame();
        let p = Frame::parse(&bytes).unwrap().packet;
        let name = row.name();
        if let Some(reth) = p.reth() {
            let key = (reth.va.get(), reth.rkey.get());
            assert_eq!(key, (0x1122_3344_5566_7788, 0xdead_beef), "{name}");
        }
        if let Some(atomic) = p.atomic() {
            let key = (atomic.va.get(), atomic.rkey.get());
            assert_eq!(key, (0x1122_3344_5566_7788, 0xdead_beef), "{name}");
        }
        if let Some(deth) = p.deth() {
            assert_eq!((deth.qkey.get(), deth.src_qp.get()), (0x1111_1111, 0x42), "{name}");
        }
        assert!(p.imm().is_none_or(|data| data == 0xcafe_f00d), "{name}");
        assert!(p.ieth().is_none_or(|i| i.rkey.get() == 0xdead_beef), "{name}");
        assert!(p.rdeth().is_none_or(|r| r.eec.get() == 0x77), "{name}");
        assert!(p.xrceth().is_none_or(|x| x.srqn.get() == 0x99), "{name}");
        assert!(p.atomic_ack().is_none_or(|a| a.original.get() == 0x0102_0304_0506_0708), "{name}");
        assert_eq!(p.imm().is_some(), name.contains("IMMEDIATE"), "{name}");
        assert_eq!(p.ieth().is_some(), name.contains("INVALIDATE"), "{name}");
        assert_eq!(p.feth().is_some(), name.contains("FLUSH"), "{name}");
        let acks = ["ACK", "RESPONSE_FIRST", "RESPONSE_LAST", "RESPONSE_ONLY"];
        assert_eq!(p.aeth().is_some(), acks.iter().any(|a| name.contains(a)), "{name}");
    }
}

#[test]
fn every_icrc_is_the_one_on_the_wire_and_a_flipped_bit_is_seen() {
    for row in Row::all() {
        let mut bytes = row.frame();
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(frame.icrc.to_le_bytes()[..], row.hex("icrc").unwrap(), "{}", row.name());
        assert_eq!(frame.icrc, frame.expected_icrc(), "{}", row.name());
        let ident = match frame.network {
            Network::V4(h) => (h.flags_offset.get() == 0x4000).then_some(h.ident.get()),
            Network::V6(_) => Some(0),
        };
        if let Some(ident) = ident {
            assert_eq!(frame.flow().icrc(ident, frame.packet.bytes()), frame.icrc, "{}", row.name());
        }
        let (mut written, mut kept) = (Vec::new(), Vec::new());
        frame.head().write(frame.packet.bytes(), &mut written);
        let payload = [frame.packet.bytes(), &frame.icrc.to_le_bytes()].concat();
        frame.head().write_with_icrc(&payload, &mut kept);
        assert_eq!(kept, written, "{}", row.name());
        let last = bytes.len() - 5;
        bytes[last] ^= 1;
        assert!(!Frame::parse(&bytes).unwrap().icrc_ok(), "{}", row.name());
    }
}

#[test]
fn every_packet_is_built_again_bit_for_bit() {
    for row in Row::all() {
        let bytes = row.frame();
        let frame = Frame::parse(&bytes).unwrap();
        let packet = rebuild(&frame.packet);
        assert_eq!(packet, frame.packet.bytes(), "{}", row.name());
        let mut again = Vec::new();
        frame.head().write(&packet, &mut again);
        assert_eq!(again, bytes, "{}", row.name());
    }
}

#[test]
fn every_opcode_of_the_rows_is_one_that_the_layout_knows_and_no_other_kind_is_left_out() {
    let rows = Row::all();
    let seen: std::collections::BTreeSet<u8> =
        rows.iter().map(|r| r.number("opcode").unwrap() as u8).collect();
    let known: std::collections::BTreeSet<u8> =
        (0..=255).filter(|raw| Opcode::new(*raw).layout().is_some()).collect();
    let unseen: Vec<u8> = known.difference(&seen).copied().collect();
    // RD resync, and the invalidating SENDs of XRC.
    assert_eq!(unseen, [0x55, 0xb6, 0xb7]);
    assert!(seen.is_subset(&known));
}

#[test]
fn the_capture_holds_the_generated_rows() {
    let word = |at: usize| u32::from_le_bytes(PCAP[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "a little-endian pcap file");
    assert_eq!(word(20), 1, "of Ethernet frames");
    let rows = Row::all();
    let mut generated = rows.iter().filter(|r| !r.name().starts_with("HW_"));
    let mut at = 24;
    while at < PCAP.len() {
        let len = word(at + 8) as usize;
        let row = generated.next().expect("no more frames than rows");
        assert_eq!(PCAP[at + 16..at + 16 + len], row.frame(), "{}", row.name());
        at += 16 + len;
    }
    assert!(generated.next().is_none());
}
