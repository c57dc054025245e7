//! What the fuzz target `parse` does with its input. The corpus runs through it in `cargo test` too.

use hca_core::wire::frame::{Frame, Network};
use hca_core::wire::neighbour::Message;
use hca_core::wire::{Bth, BthFlags, Packet, PacketBuilder, Syndrome};

/// Takes `data` as a transport packet and as an Ethernet frame, reads all that can be read, and
/// builds again what could be parsed.
pub(crate) fn parse(data: &[u8]) {
    if let Ok(packet) = Packet::parse(data) {
        read(&packet);
    }
    if let Ok(frame) = Frame::parse(data) {
        read(&frame.packet);
        match frame.network {
            Network::V4(h) => assert!(h.version() == 4 && !h.is_fragment()),
            Network::V6(h) => assert_eq!(h.version(), 6),
        }
        let mut again = Vec::new();
        frame.head().write(frame.packet.bytes(), &mut again);
        let again = Frame::parse(&again).expect("a frame that was written is parsed");
        assert!(again.icrc_ok());
        assert_eq!(again.packet.bytes(), frame.packet.bytes());
        assert_eq!(frame.icrc_ok(), frame.icrc == again.icrc);
    }
    neighbour(data);
}

/// What a frame says of neighbours; an answer to it says what it was asked to.
fn neighbour(frame: &[u8]) {
    let mac = [2, 0, 0, 0, 0, 7];
    if let Some(question @ Message::Question { wanted, .. }) = Message::parse(frame) {
        let answer = question.answer(mac).expect("a question has an answer");
        match Message::parse(&answer) {
            Some(Message::Statement { of, .. }) => assert_eq!((of.mac, of.ip), (mac, wanted)),
            // Nobody can have that address.
            other => assert!(other.is_none() && !hca_core::wire::neighbour::usable(wanted), "{other:?}"),
        }
    }
}

/// Every accessor; and a packet made of the same parts differs in reserved bits and padding only.
fn read(packet: &Packet<'_>) {
    let bth = packet.bth();
    let layout = packet.opcode().layout().expect("a parsed packet has an opcode that exists");
    let headers = usize::from(layout.header_bytes);
    assert_eq!(headers + packet.payload().len() + usize::from(bth.pad()), packet.bytes().len());
    assert!(!format!("{packet:?}").is_empty());

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
    if let Some(f) = packet.feth() {
        let _ = (f.placement(), f.selectivity());
    }
    if let Some(s) = packet.aeth().and_then(|a| Syndrome::decode(a.syndrome)) {
        assert_eq!(Syndrome::decode(s.encode()), Some(s));
    }
    // More padding than the payload calls for is legal to parse, not made here.
    let again = b.build().expect("the parts of a parsed packet make a packet");
    assert_eq!(again[Bth::BYTES..headers], packet.bytes()[Bth::BYTES..headers]);
    assert_eq!(Packet::parse(&again).expect("it parses").payload(), packet.payload());
}
