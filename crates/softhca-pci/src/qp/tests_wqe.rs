//! Work requests of any legal form, against a plain model of their segments' meaning.

use hca_prm::{Cqe64, CqeOpcode, DataSeg, ServiceType, WqeOpcode};
use proptest::prelude::*;

use crate::bed::{Pair, QpShape, Wqe};
use crate::qp::tests::opcode;

/// Bytes of the memory that places are in, and of the place of each message at its receiver.
const MEMORY: u64 = 4096;
const MESSAGE: u64 = 8192;
/// Messages under way at one time, as many as there are receive requests.
const MESSAGES: usize = 16;
/// Bytes of the longest list of segments: those of the longest request without what stands before.
const LONGEST: usize = 16 * (hca_prm::MAX_WQE_DS as usize - 4);

/// A data segment of a request.
#[derive(Clone, Debug)]
enum Seg {
    /// Bytes that stand there.
    Inline(Vec<u8>),
    /// So many bytes of the memory from there on.
    Place(u64, u32),
}

impl Seg {
    /// Bytes of the request.
    fn room(&self) -> usize {
        match self {
            Self::Inline(bytes) => hca_prm::InlineSeg::room(bytes.len()),
            Self::Place(..) => DataSeg::SIZE,
        }
    }
}

/// What a list of segments means.
fn meaning(list: &[Seg], memory: &[u8]) -> Vec<u8> {
    let bytes = |seg: &Seg| match seg {
        Seg::Inline(bytes) => bytes.clone(),
        Seg::Place(from, len) => memory[*from as usize..][..*len as usize].to_vec(),
    };
    list.iter().flat_map(bytes).collect()
}

/// Places alone, as many as there is room for.
fn places() -> impl Strategy<Value = Vec<Seg>> {
    let place = (0..MEMORY - 60, 1_u32..60).prop_map(|(from, len)| Seg::Place(from, len));
    proptest::collection::vec(place, 30..=LONGEST / DataSeg::SIZE)
}

fn list() -> impl Strategy<Value = Vec<Seg>> {
    let bytes = prop_oneof![0_usize..5, 0_usize..70, 0_usize..900];
    let seg = prop_oneof![
        bytes.prop_flat_map(|len| proptest::collection::vec(any::<u8>(), len)).prop_map(Seg::Inline),
        (0..MEMORY - 100, 1_u32..100).prop_map(|(from, len)| Seg::Place(from, len)),
    ];
    proptest::collection::vec(seg, 0..30).prop_map(|mut list| {
        let mut room = LONGEST;
        list.retain(|seg| {
            let fits = seg.room() <= room;
            room -= if fits { seg.room() } else { 0 };
            fits
        });
        list
    })
}

fn with(wqe: Wqe, list: &[Seg], p: &Pair) -> Wqe {
    list.iter().fold(wqe, |wqe, seg| match seg {
        Seg::Inline(bytes) => wqe.inline(bytes),
        Seg::Place(from, len) => wqe.seg(p.a.mr.seg(*from, *len)),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_message_is_what_its_segments_mean_one_after_the_other(
        kinds in proptest::collection::vec((0_usize..5, prop_oneof![3 => list(), 1 => places()]), 1..MESSAGES),
        pause in 0_usize..MESSAGES,
    ) {
        for st in [ServiceType::Rc, ServiceType::Ud] {
            let mut p = Pair::new(QpShape { st, log_sq: 8, ..QpShape::default() });
            let memory: Vec<u8> = (0..MEMORY).map(|i| (i * 7 + i / 256) as u8).collect();
            p.a.fill(0, &memory);
            let gid = p.server.gid();
            let mut expected = Vec::new();
            for (i, (kind, list)) in kinds.iter().enumerate() {
                let at = MEMORY + MESSAGE * i as u64;
                let place = p.b.mr.remote(at);
                let wqe = match (st, kind) {
                    (ServiceType::Ud, _) => Wqe::new(WqeOpcode::Send).datagram(gid, 0, p.b.qp.qpn, 0x1111),
                    (_, 0) => Wqe::new(WqeOpcode::Send),
                    (_, 1) => Wqe::new(WqeOpcode::SendImm).imm(7),
                    (_, 2) => Wqe::new(WqeOpcode::RdmaWrite).to(place),
                    (_, 3) => Wqe::new(WqeOpcode::RdmaWriteImm).imm(7).to(place),
                    _ => Wqe::new(WqeOpcode::SendImm).imm(9).solicited(),
                };
                let front = if st == ServiceType::Ud { 40 } else { 0 };
                if st == ServiceType::Ud || *kind != 2 {
                    p.b.recv(at, MESSAGE as u32);
                }
                p.a.post(&with(wqe, list, &p));
                expected.push((at + front, meaning(list, &memory)));
                if i == pause {
                    p.look();
                }
            }
            for _ in &kinds {
                prop_assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
            }
            for (at, bytes) in expected {
                prop_assert!(p.b.bytes(at, bytes.len()) == bytes, "at {}", at);
            }
            let messages = kinds.iter().filter(|(kind, _)| st == ServiceType::Ud || *kind != 2).count();
            for _ in 0..messages {
                let cqe = p.received();
                prop_assert!(cqe.get(Cqe64::BYTE_CNT) < MESSAGE as u32);
            }
        }
    }
}

#[test]
fn a_request_lists_as_many_places_as_it_has_room_for() {
    let shape = QpShape { log_sq: 8, ..QpShape::default() };
    let mut p = Pair::new(shape);
    let memory: Vec<u8> = (0..MEMORY).map(|i| (i * 11 + i / 256) as u8).collect();
    let place = |i: u64| (64 * i, 1 + i as u32 % 7);
    let all = |from: &[u8], count: u64| -> Vec<u8> {
        (0..count).map(place).flat_map(|(at, len)| from[at as usize..][..len as usize].to_vec()).collect()
    };
    let listed = |wqe: Wqe, p: &Pair, count: u64| {
        (0..count).map(place).fold(wqe, |wqe, (at, len)| wqe.seg(p.a.mr.seg(at, len)))
    };
    // What stands before the places: the control segment, and where the peer's memory is.
    let (send, remote) = (u64::from(hca_prm::MAX_WQE_DS) - 1, u64::from(hca_prm::MAX_WQE_DS) - 2);
    p.a.fill(0, &memory);
    p.b.recv(0, MESSAGE as u32);
    p.a.post(&listed(Wqe::new(WqeOpcode::Send), &p, send));
    assert_eq!(opcode(&p.received()), CqeOpcode::RespSend);
    assert_eq!(p.b.bytes(0, all(&memory, send).len()), all(&memory, send));
    p.sent();
    let to = p.b.mr.remote(MESSAGE);
    p.a.post(&listed(Wqe::new(WqeOpcode::RdmaWrite).to(to), &p, remote));
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    let written = all(&memory, remote);
    assert_eq!(p.b.bytes(MESSAGE, written.len()), written);
    // What was written comes back to where it was read from, one place after the other.
    p.a.fill(0, &[0; MEMORY as usize]);
    p.a.post(&listed(Wqe::new(WqeOpcode::RdmaRead).to(to), &p, remote));
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    assert_eq!(all(&p.a.bytes(0, MEMORY as usize), remote), written);
}
