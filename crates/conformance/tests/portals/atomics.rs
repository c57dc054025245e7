//! Atomic operations: every legal pair of operation and type, checked against the engine's arithmetic.

use hca_matching::atomic::apply;
use portals::v4::{
    AckReq, AtomicOp, Datatype, EventKind, Fetch, MdOptions, MeOptions, PtOptions, Put, ReturnCode,
};

use crate::bed::{Bed, MATCHING, Pair, Sink, Source, code, id};

/// Bytes of any pattern are elements; those of an odd one make numbers that are no numbers, and those of this one do
/// not.
fn elements(ty: Datatype, seed: u8) -> Vec<u8> {
    let one = |n: u8| -> Vec<u8> {
        let n = n.wrapping_mul(37).wrapping_add(seed);
        let x87 = |n: u8| {
            // 1.n times a power of two: sign and exponent in the last two of ten bytes.
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(1 << 63 | u64::from(n) << 50).to_ne_bytes());
            bytes[8..10].copy_from_slice(&(0x3fff_u16 + u16::from(n % 5)).to_ne_bytes());
            bytes.to_vec()
        };
        match ty {
            Datatype::F32 => f32::from(n).to_ne_bytes().to_vec(),
            Datatype::F64 => f64::from(n).to_ne_bytes().to_vec(),
            Datatype::C32 => [f32::from(n), -1.5].map(f32::to_ne_bytes).concat(),
            Datatype::C64 => [f64::from(n), -1.5].map(f64::to_ne_bytes).concat(),
            Datatype::LongDouble => x87(n),
            Datatype::LongDoubleComplex => [x87(n), x87(n / 2)].concat(),
            _ => vec![n % 3; ty.size_bytes()],
        }
    };
    (0..4).flat_map(one).collect()
}

fn pairs() -> impl Iterator<Item = (AtomicOp, Datatype)> {
    AtomicOp::ALL.iter().flat_map(|&op| Datatype::ALL.iter().map(move |&ty| (op, ty)))
}

/// Sets both sides' memory and yields what is there after the operation, of `len` bytes.
fn prepare(
    source: &Source,
    sink: &Sink,
    (op, ty): (AtomicOp, Datatype),
    len: usize,
    operand: &[u8],
) -> (Vec<u8>, Vec<u8>) {
    let (there, mine) = (elements(ty, 1), elements(ty, 2));
    sink.memory.write_at(16, &there);
    source.memory.write_at(0, &mine);
    let mut after = there.clone();
    apply(op, ty, &mut after[..len], &mine[..len], operand, None).unwrap();
    (there, after)
}

fn sides(pair: &Pair) -> (Source, Sink) {
    let source = Source::new(&pair.a, 256, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 256, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::OP_GET);
    (source, sink)
}

pub(crate) fn every_legal_pair_is_done_by_atomic(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = sides(&pair);
    let mut done = 0;
    for (op, ty) in pairs() {
        let len = 4 * ty.size_bytes();
        let put = Put {
            remote_offset: 16,
            ack_req: AckReq::Ack,
            hdr_data: 3,
            ..Put::new(source.md, len as u64, id(&pair.b), sink.pt)
        };
        if op.is_swap() || !op.takes(ty) {
            assert_eq!(code(pair.a.atomic(&put, op, ty)), ReturnCode::ArgInvalid, "{op:?} on {ty:?}");
            continue;
        }
        let (_, after) = prepare(&source, &sink, (op, ty), len, &[]);
        pair.a.atomic(&put, op, ty).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Atomic);
        assert_eq!((event.atomic_operation, event.atomic_type), (Some(op), Some(ty)));
        assert_eq!((event.mlength, event.remote_offset, event.hdr_data), (len as u64, 16, 3));
        let ack = pair.event(&pair.a, source.eq, EventKind::Ack);
        assert_eq!((ack.mlength, ack.atomic_operation, ack.atomic_type), (len as u64, Some(op), Some(ty)));
        assert_eq!(sink.memory.to_vec()[16..16 + len], after[..len], "{op:?} on {ty:?}");
        done += 1;
    }
    assert_eq!(done, if cfg!(target_arch = "x86_64") { 98 } else { 92 });
}

pub(crate) fn every_legal_pair_is_done_by_fetch_atomic(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = sides(&pair);
    let got = Source::new(&pair.a, 256, MdOptions::empty());
    for (op, ty) in pairs() {
        let len = 4 * ty.size_bytes();
        let fetch = Fetch {
            remote_offset: 16,
            local_get_offset: 5,
            ..Fetch::new(got.md, source.md, len as u64, id(&pair.b), sink.pt)
        };
        if op.is_swap() || !op.takes(ty) {
            assert_eq!(code(pair.a.fetch_atomic(&fetch, op, ty)), ReturnCode::ArgInvalid, "{op:?} on {ty:?}");
            continue;
        }
        let (before, after) = prepare(&source, &sink, (op, ty), len, &[]);
        pair.a.fetch_atomic(&fetch, op, ty).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::FetchAtomic);
        assert_eq!((event.atomic_operation, event.atomic_type), (Some(op), Some(ty)));
        assert_eq!(pair.event(&pair.a, got.eq, EventKind::Reply).mlength, len as u64);
        assert_eq!(sink.memory.to_vec()[16..16 + len], after[..len], "{op:?} on {ty:?}");
        assert_eq!(got.memory.to_vec()[5..5 + len], before[..len], "{op:?} on {ty:?}");
    }
    pair.settled(&[(&pair.a, source.eq)]);
}

pub(crate) fn every_legal_pair_is_done_by_swap(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = sides(&pair);
    let got = Source::new(&pair.a, 256, MdOptions::empty());
    for (op, ty) in pairs() {
        let size = ty.size_bytes();
        let len = if op == AtomicOp::Swap { 4 * size } else { size };
        let fetch =
            Fetch { remote_offset: 16, ..Fetch::new(got.md, source.md, len as u64, id(&pair.b), sink.pt) };
        // What is there, so that equal and unequal are both tried.
        for operand in [elements(ty, 1), elements(ty, 9)] {
            if !op.is_swap() || !op.takes(ty) {
                assert_eq!(
                    code(pair.a.swap(&fetch, &operand, op, ty)),
                    ReturnCode::ArgInvalid,
                    "{op:?} on {ty:?}"
                );
                continue;
            }
            let (before, after) = prepare(&source, &sink, (op, ty), len, &operand);
            pair.a.swap(&fetch, &operand, op, ty).unwrap();
            pair.event(&pair.b, sink.eq, EventKind::FetchAtomic);
            assert_eq!(pair.event(&pair.a, got.eq, EventKind::Reply).mlength, len as u64);
            assert_eq!(sink.memory.to_vec()[16..16 + len], after[..len], "{op:?} on {ty:?}");
            assert_eq!(got.memory.to_vec()[..len], before[..len], "{op:?} on {ty:?}");
        }
        if op.needs_operand() && op.takes(ty) {
            let short = &elements(ty, 1)[..size - 1];
            assert_eq!(code(pair.a.swap(&fetch, short, op, ty)), ReturnCode::ArgInvalid);
            let two = Fetch { length: 2 * size as u64, ..fetch };
            assert_eq!(code(pair.a.swap(&two, &elements(ty, 1), op, ty)), ReturnCode::ArgInvalid);
        }
    }
}

pub(crate) fn atomics_are_of_whole_elements_up_to_the_limit(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (most, fetched) = (pair.a.limits().max_atomic_size, pair.a.limits().max_fetch_atomic_size);
    assert_eq!((most, fetched), (4096, 4096), "the node's eager bytes");
    let source = Source::new(&pair.a, 8192, MdOptions::EVENT_SEND_DISABLE);
    let got = Source::new(&pair.a, 8192, MdOptions::empty());
    let sink = Sink::new(&pair.b, 8192, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::OP_GET);
    let put = |len| Put { ack_req: AckReq::Ack, ..Put::new(source.md, len, id(&pair.b), sink.pt) };
    let fetch = |len| Fetch::new(got.md, source.md, len, id(&pair.b), sink.pt);
    for len in [0, 8, 248, most] {
        pair.a.atomic(&put(len), AtomicOp::Sum, Datatype::U64).unwrap();
        assert_eq!(pair.event(&pair.a, source.eq, EventKind::Ack).mlength, len);
        pair.a.fetch_atomic(&fetch(len), AtomicOp::Sum, Datatype::U64).unwrap();
        assert_eq!(pair.event(&pair.a, got.eq, EventKind::Reply).mlength, len);
        pair.a.swap(&fetch(len), &[], AtomicOp::Swap, Datatype::U64).unwrap();
        assert_eq!(pair.event(&pair.a, got.eq, EventKind::Reply).mlength, len);
    }
    for len in [7, 9, most + 8] {
        assert_eq!(code(pair.a.atomic(&put(len), AtomicOp::Sum, Datatype::U64)), ReturnCode::ArgInvalid);
        assert_eq!(
            code(pair.a.fetch_atomic(&fetch(len), AtomicOp::Sum, Datatype::U64)),
            ReturnCode::ArgInvalid
        );
        assert_eq!(
            code(pair.a.swap(&fetch(len), &[], AtomicOp::Swap, Datatype::U64)),
            ReturnCode::ArgInvalid
        );
    }
}

pub(crate) fn an_atomic_that_is_truncated_keeps_whole_elements(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 20, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 64, id(&pair.b), sink.pt) };
    pair.a.atomic(&put, AtomicOp::Sum, Datatype::U64).unwrap();
    assert_eq!(pair.event(&pair.a, source.eq, EventKind::Ack).mlength, 16);
    assert_eq!(sink.memory.to_vec()[..16], source.memory.to_vec()[..16]);
    assert_eq!(sink.memory.to_vec()[16..], [0; 4]);
}

pub(crate) fn many_initiators_sum_into_one_cell(bed: &Bed) {
    let nodes = bed.nodes(3);
    let nis: Vec<portals::v4::Ni> = (nodes.iter())
        .map(|node| portals::v4::Ni::init(node, MATCHING, None, &Default::default()).unwrap())
        .collect();
    let sink = Sink::new(&nis[0], 8, PtOptions::empty());
    let ct = nis[0].ct_alloc().unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM | MeOptions::EVENT_COMM_DISABLE;
    let me = portals::v4::Me { ct: Some(ct), ..sink.me(options) };
    nis[0].me_append(sink.pt, &me, portals::v4::ListKind::Priority, 0).unwrap();
    let rounds = 200;
    for (n, ni) in (1..).zip(&nis) {
        let source = Source::new(ni, 8, MdOptions::EVENT_SEND_DISABLE);
        source.memory.store_u64(0, n);
        for _ in 0..rounds {
            ni.atomic(&Put::new(source.md, 8, id(&nis[0]), sink.pt), AtomicOp::Sum, Datatype::U64).unwrap();
        }
    }
    let all: Vec<&portals::v4::Ni> = nis.iter().collect();
    crate::bed::until(&all, "all sums", || (nis[0].ct_get(ct).unwrap().success == 3 * rounds).then_some(()));
    nis[0].atomic_sync();
    assert_eq!(sink.memory.load_u64(0), rounds * (1 + 2 + 3));
}

pub(crate) fn elements_of_vectors_lie_across_their_pieces(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE);
    let cut = |ni: &portals::v4::Ni| [3usize, 0, 10, 51].map(|len| ni.alloc(len).unwrap()).to_vec();
    let (here, there) = (cut(&pair.a), cut(&pair.b));
    let eq = pair.a.eq_alloc(8).unwrap();
    let got =
        pair.a.md_bind(&portals::v4::Md { eq: Some(eq), ..portals::v4::Md::new(here.clone()) }).unwrap();
    let sink = Sink::new(&pair.b, 0, PtOptions::empty());
    let me =
        portals::v4::Me { memory: there.clone().into(), ..sink.me(MeOptions::OP_PUT | MeOptions::OP_GET) };
    pair.b.me_append(sink.pt, &me, portals::v4::ListKind::Priority, 0).unwrap();
    for n in 1..=3u64 {
        let fetch = Fetch::new(got, source.md, 64, id(&pair.b), sink.pt);
        (0..8).for_each(|i| source.memory.store_u64(i * 8, i as u64 + n));
        pair.a.fetch_atomic(&fetch, AtomicOp::Sum, Datatype::U64).unwrap();
        pair.event(&pair.a, eq, EventKind::Reply);
        let all = |pieces: &[portals::Memory]| -> Vec<u64> {
            let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            bytes.chunks(8).map(|cell| u64::from_ne_bytes(cell.try_into().unwrap())).collect()
        };
        // 1 + … + n and n times its place.
        let sum = |n: u64| Vec::from_iter((0..8).map(|i| if n == 0 { 0 } else { n * i + n * (n + 1) / 2 }));
        assert_eq!((all(&there), all(&here)), (sum(n), sum(n - 1)));
    }
}
