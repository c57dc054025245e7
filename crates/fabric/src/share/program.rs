//! The classic BPF program that leads a packet to the process of its destination queue pair.

use libc::sock_filter;

use super::desk::{ATTRIBUTE_AT, CLASS_AT, CM, REMOTE_ID_AT, REQUEST_ID_AT, REQUESTS, RESOLVED};

pub(crate) const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(crate) const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
pub(crate) const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
pub(crate) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
pub(crate) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
pub(crate) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
/// Turns a load at an offset into one at an offset from X.
const FROM_X: u16 = (libc::BPF_ABS ^ libc::BPF_IND) as u16;

/// The word of the BTH that holds the number of the destination queue pair, in its lower 24 bits.
const DEST_QP_WORD: u32 = 4;
/// All of a frame.
const ALL: u32 = u32::MAX;
const NOTHING: u32 = 0;

/// The packets that a packet socket receives, of those to a shared address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Those for the process in this slot.
    Slot(u8),
    /// Those that name no process.
    Desk,
}

const fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Steers among UDP sockets, which see the payload: the index of a packet's socket is the slot of its process, and
/// `slots`, which is the desk's index, where the packet names no process.
pub(crate) fn steering(slots: u16) -> Vec<sock_filter> {
    rule(slots, None, &[op(RETURN_A, 0)], op(RETURN, slots.into()))
}

/// Steers by the first byte of the payload, for a trial.
pub(crate) fn by_first_byte() -> Vec<sock_filter> {
    vec![op(LOAD_BYTE, 0), op(RETURN_A, 0)]
}

/// The end of a packet socket's filter, which passes one part of the frames; `bth` is the offset of the BTH from X.
pub(crate) fn filter(slots: u16, part: Part, bth: u32) -> Vec<sock_filter> {
    match part {
        Part::Slot(slot) => {
            // The desk's packets are dropped as are those of other slots.
            let own = sock_filter { code: IF_EQUAL, jt: 0, jf: 1, k: slot.into() };
            rule(slots, Some(bth), &[own, op(RETURN, ALL)], op(RETURN, NOTHING))
        }
        Part::Desk => rule(slots, Some(bth), &[op(RETURN, NOTHING)], op(RETURN, ALL)),
    }
}

/// [`Recipient::of`](super::desk::Recipient::of) as instructions. Those of `process` follow with the slot in the
/// accumulator where the packet names one, and the one of `desk` where it names none.
fn rule(slots: u16, bth: Option<u32>, process: &[sock_filter], desk: sock_filter) -> Vec<sock_filter> {
    // The places that jumps lead to.
    const RESOLUTION: u8 = 13;
    const ID: u8 = 14;
    const NUMBER: u8 = 16;
    const PROCESS: u8 = 18;
    let to_desk = PROCESS + process.len() as u8;
    let load = |code: u16, at: u32| match bth {
        None => op(code, at),
        Some(bth) => op(code ^ FROM_X, bth + at),
    };
    // Jumps count from the instruction behind them.
    let if_equal = |at: u8, k: u32, to: u8| sock_filter { code: IF_EQUAL, jt: to - at - 1, jf: 0, k };
    let unless_equal = |at: u8, k: u32, to: u8| sock_filter { code: IF_EQUAL, jt: 0, jf: to - at - 1, k };
    let [request, resolve] = REQUESTS.map(u32::from);
    let mut program = vec![
        load(LOAD_WORD, DEST_QP_WORD),
        op(AND, 0xff_ffff),
        if_equal(2, 0, to_desk),
        if_equal(3, 0xff_ffff, to_desk),
        unless_equal(4, 1, NUMBER),
        // A management datagram.
        load(LOAD_BYTE, CLASS_AT as u32),
        unless_equal(6, CM.into(), to_desk),
        load(LOAD_HALF, ATTRIBUTE_AT as u32),
        if_equal(8, request, to_desk),
        if_equal(9, resolve, to_desk),
        if_equal(10, RESOLVED.into(), RESOLUTION),
        load(LOAD_WORD, REMOTE_ID_AT as u32),
        op(JUMP, u32::from(ID) - 13),
        load(LOAD_WORD, REQUEST_ID_AT as u32),
        if_equal(ID, 0, to_desk),
        // The top byte of an ID, as that of a number.
        op(SHIFT_RIGHT, 8),
        op(SHIFT_RIGHT, 16),
        sock_filter { code: IF_AT_LEAST, jt: to_desk - PROCESS, jf: 0, k: slots.into() },
    ];
    program.extend(process);
    program.push(desk);
    program
}

#[cfg(test)]
mod tests {
    use test_support::random::Rng;

    use super::super::desk::Recipient;
    use super::super::machine;
    use super::*;

    fn run(program: &[sock_filter], payload: &[u8]) -> u32 {
        machine::run(program, &|at, len| machine::big_endian(payload, at, len))
    }

    #[test]
    fn a_packet_goes_to_its_queue_pairs_process_and_what_is_of_none_to_the_desk() {
        let program = steering(64);
        let to = |qpn: u32| {
            let mut packet = [0xff; 64];
            packet[4..8].copy_from_slice(&(qpn | 0x8000_0000).to_be_bytes());
            run(&program, &packet)
        };
        for (qpn, socket) in [
            (0, 64),
            (1, 64),
            (2, 0),
            (0xffff, 0),
            (0x01_0000, 1),
            (0x01_0001, 1),
            (0x3f_ffff, 63),
            (0x40_0000, 64),
            (0xff_fffe, 64),
            (0xff_ffff, 64),
        ] {
            assert_eq!(to(qpn), socket, "{qpn:#x}");
        }
        assert_eq!(run(&program, &[0; 7]), 0, "a packet without a BTH");
    }

    /// A management datagram with this class, attribute and data.
    fn mad(class: u8, attribute: u16, data: [u32; 4]) -> Vec<u8> {
        let mut packet = vec![0; 20 + 256];
        packet[7] = 1;
        packet[21] = class;
        packet[36..38].copy_from_slice(&attribute.to_be_bytes());
        for (i, word) in data.into_iter().enumerate() {
            packet[44 + 4 * i..][..4].copy_from_slice(&word.to_be_bytes());
        }
        packet
    }

    #[test]
    fn messages_of_connections_go_by_their_recipients_ids_and_requests_by_their_services() {
        let program = steering(64);
        let (ours, theirs) = (0x05_000001, 0x3e_00000a);
        // REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR.
        for (attribute, data, recipient) in [
            (0x10, [theirs, 0, 0x0106, 0x1d2f], Recipient::Service(0x0106_0000_1d2f)),
            (0x11, [theirs, ours, 0, 0], Recipient::Slot(5)),
            (0x12, [theirs, ours, 0, 0], Recipient::Slot(5)),
            (0x12, [theirs, 0, 0, 0], Recipient::All),
            (0x13, [theirs, ours, 0, 0], Recipient::Slot(5)),
            (0x14, [theirs, ours, 0, 0], Recipient::Slot(5)),
            (0x15, [theirs, ours, 0, 0], Recipient::Slot(5)),
            (0x16, [theirs, ours, 0, 0], Recipient::Slot(5)),
            (0x17, [theirs, 0, 0x0111, 0x1d2f], Recipient::Service(0x0111_0000_1d2f)),
            (0x18, [ours, 0, 0, 0], Recipient::Slot(5)),
            (0x19, [theirs, ours, 0, 0], Recipient::Slot(5)),
            (0x1a, [theirs, 0x40 << 24, 0, 0], Recipient::Any),
        ] {
            let packet = mad(CM, attribute, data);
            assert_eq!(Recipient::of(&packet, 64), recipient, "{attribute:#x}");
            let socket = if let Recipient::Slot(slot) = recipient { slot.into() } else { 64 };
            assert_eq!(run(&program, &packet), socket, "{attribute:#x}");
        }
        assert_eq!(Recipient::of(&mad(4, 1, [theirs, ours, 0, 0]), 64), Recipient::Any);
    }

    #[test]
    fn the_kernel_and_the_processes_follow_one_rule() {
        const SLOTS: u16 = 7;
        /// The bytes in front of a BTH; X is 0.
        const HEAD: usize = 42;
        let program = steering(SLOTS);
        let parts = (0..SLOTS as u8).map(Part::Slot).chain([Part::Desk]);
        let filters: Vec<_> = parts.map(|part| filter(SLOTS, part, HEAD as u32)).collect();
        let mut random = Rng::new(7);
        for _ in 0..100_000 {
            let number = [0, 1, 1, 1, 0xff_ffff, random.next_u64() as u32 & 0x0f_ffff][random.below(6)];
            let word = |r: &mut Rng| [0, 7 << 24, r.next_u64() as u32][r.below(3)];
            let data = [word(&mut random), word(&mut random), word(&mut random), word(&mut random)];
            let mut packet = mad([CM, 4][random.below(2)], random.below(0x20) as u16, data);
            packet[4..8].copy_from_slice(&u32::to_be_bytes(number));
            let socket = match Recipient::of(&packet, SLOTS) {
                Recipient::Slot(slot) => slot.into(),
                _ => SLOTS.into(),
            };
            assert_eq!(run(&program, &packet), socket, "{packet:?}");
            let frame = [&[0xa5; HEAD][..], &packet].concat();
            let passed = filters.iter().map(|filter| run(filter, &frame));
            let expected = (0..=SLOTS).map(|part| if u32::from(part) == socket { ALL } else { NOTHING });
            assert!(passed.eq(expected), "{packet:?}");
        }
    }
}
