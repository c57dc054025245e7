//! Global memory: processes are threads with adapters of their own.

use std::time::{Duration, Instant};

use hca_am::{Bundle, EndpointId, EndpointName, Message, Tag, Token, Way};
use hca_global::{Error, Joining, ProcedureId, Process, Spread};
use softhca::Progress;

use crate::bed::Bed;
use crate::beds::Net;

const VERBS: Bed = Bed::new(Net::Shm, Progress::Inline, Way::Verbs);
const VIA: Bed = Bed::new(Net::Shm, Progress::Inline, Way::Via);
const MEMORY: usize = 1 << 20;

/// Runs so many processes. Returns what each of them returns, by rank.
fn run<T: Send>(bed: &Bed, size: usize, each: impl Fn(Process) -> T + Sync) -> Vec<T> {
    run_with(bed, size, |_| MEMORY, each)
}
/// The same, with so many bytes of memory by rank.
fn run_with<T: Send>(
    bed: &Bed,
    size: usize,
    bytes: impl Fn(usize) -> usize,
    each: impl Fn(Process) -> T + Sync,
) -> Vec<T> {
    let open = |(rank, context)| Joining::open(context, bed.way, bytes(rank), size).expect("a process opens");
    let joining: Vec<_> = bed.contexts(size).iter().enumerate().map(open).collect();
    let names: Vec<_> = joining.iter().map(|process| process.name().unwrap()).collect();
    std::thread::scope(|s| {
        let threads: Vec<_> = joining
            .into_iter()
            .enumerate()
            .map(|(rank, process)| {
                let (names, each) = (&names, &each);
                s.spawn(move || each(process.join(rank, names).expect("all join")))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn accesses(bed: &Bed) {
    run(bed, 3, |mut process| {
        let (rank, size) = (process.rank(), process.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let array = process.spread::<u64>(100).unwrap();
        let other = process.spread::<[u8; 3]>(5).unwrap();
        // Written by one, read by all.
        process.write(array.at(next, 7).unwrap(), 1000 + rank as u64).unwrap();
        process.barrier().unwrap();
        for at in 0..size {
            let expected = 1000 + ((at + size - 1) % size) as u64;
            assert_eq!(process.read(array.at(at, 7).unwrap()).unwrap(), expected);
        }
        // Split phases: many are under way.
        for i in 10..60 {
            process.put(array.at(next, i).unwrap(), (rank * 100 + i) as u64).unwrap();
        }
        process.sync().unwrap();
        process.barrier().unwrap();
        let gets: Vec<_> = (10..60).map(|i| process.get(array.at(next, i).unwrap()).unwrap()).collect();
        while process.outstanding() > 0 {
            process.poll().unwrap();
        }
        for (i, get) in gets.into_iter().enumerate() {
            assert_eq!(process.take(get).unwrap(), (rank * 100 + i + 10) as u64);
        }
        process.barrier().unwrap();
        // Stores, counted by the target and waited for by all.
        process.store(other.at(next, 4).unwrap(), [rank as u8; 3]).unwrap();
        process.store_sync(3).unwrap();
        assert_eq!(process.load(&other, 4, 1).unwrap(), [[before as u8; 3]]);
        process.barrier().unwrap();
        for i in 0..5 {
            process.store(other.at(next, i).unwrap(), [i as u8; 3]).unwrap();
        }
        process.all_store_sync().unwrap();
        assert_eq!(process.load(&other, 0, 5).unwrap(), [0, 1, 2, 3, 4].map(|i| [i; 3]));
        // In bulk, beyond the landing place.
        let long = process.spread::<u32>(80_000).unwrap();
        let values: Vec<u32> = (0..80_000).map(|i| i * 3 + rank as u32).collect();
        process.write_bulk(&long, next, 0, &values).unwrap();
        process.barrier().unwrap();
        let mut back = vec![0; 79_000];
        process.read_bulk(&long, next, 1000, &mut back).unwrap();
        assert!(back == values[1000..]);
        process.barrier().unwrap();
        process.store_bulk(&long, before, 5, &values[..9]).unwrap();
        process.store_sync(36).unwrap();
        assert_eq!(process.load(&long, 5, 2).unwrap(), [next as u32, 3 + next as u32]);
        // Without a copy, from the memory of one process to that of another; and while that one's program does not poll.
        let landed = process.spread::<u32>(80_000).unwrap();
        process.put_part(&landed, before, 10, &long, 20, 70_000).unwrap();
        process.sync().unwrap();
        process.barrier().unwrap();
        let values = process.load(&long, 0, 80_000).unwrap();
        let mut theirs = vec![0; 70_000];
        process.read_bulk(&landed, before, 10, &mut theirs).unwrap();
        assert!(theirs == values[20..70_020]);
        process.read_part(&landed, before, 10, &landed, 75_000, 5_000).unwrap();
        assert_eq!(process.load(&landed, 75_000, 5_000).unwrap(), theirs[..5_000]);
        assert!(process.put_part(&landed, before, 79_999, &long, 0, 2).is_err());
        assert!(process.read_part(&landed, before, 0, &long, 79_999, 2).is_err());
        // An access by RDMA comes behind the requests to the same process.
        let counted = process.spread::<u64>(1).unwrap();
        for i in 1..=40 {
            process.store(counted.at(next, 0).unwrap(), i).unwrap();
        }
        assert_eq!(process.read(counted.at(next, 0).unwrap()).unwrap(), 40);
        process.barrier().unwrap();
        // Procedures run one at a time.
        let add = process.register(move |memory, args| {
            let old = memory.load(&array, args[0] as usize).unwrap();
            memory.save(&array, args[0] as usize, old + args[1]).unwrap();
            old
        });
        process.barrier().unwrap();
        for _ in 0..20 {
            process.call(0, add, &[0, 2]).unwrap();
        }
        process.barrier().unwrap();
        assert_eq!(process.read(array.at(0, 0).unwrap()).unwrap(), 120);
        process.finish().unwrap();
    });
}

fn collectives(bed: &Bed, size: usize) {
    run(bed, size, |mut process| {
        let rank = process.rank() as u64;
        for root in 0..size {
            // One part, many parts, none.
            for len in [1, 2000, 0] {
                let mut values = vec![rank; len];
                process.broadcast(root, &mut values).unwrap();
                assert_eq!(values, vec![root as u64; len]);
            }
            let mut sums = [rank, 1];
            process.reduce(root, &mut sums, |a, b| a + b).unwrap();
            let all = [(0..size as u64).sum(), size as u64];
            assert_eq!(sums, if rank == root as u64 { all } else { [rank, 1] });
        }
        // Not commutative: the order of ranks is seen.
        let mut digits = [rank + 1];
        process.scan(&mut digits, |a, b| a * 10_u64.pow(b.ilog10() + 1) + b).unwrap();
        assert_eq!(digits[0], (0..=rank).fold(0, |all, digit| all * 10 + digit + 1));
        let mut most = [rank * 7 % 5];
        process.all_reduce(&mut most, u64::max).unwrap();
        assert_eq!(most[0], (0..size as u64).map(|rank| rank * 7 % 5).max().unwrap());
        process.finish().unwrap();
    });
}

#[test]
fn memory_is_reached_in_each_way_over_verbs() {
    accesses(&VERBS);
}

#[test]
fn memory_is_reached_in_each_way_over_vis() {
    accesses(&VIA);
}

#[test]
fn collectives_give_what_a_loop_over_the_ranks_gives() {
    for size in [1, 2, 5] {
        collectives(&VERBS, size);
    }
    collectives(&VIA, 3);
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    run(&VERBS, 2, |mut process| {
        let array = process.spread::<u64>(10).unwrap();
        assert!(matches!(array.at(2, 0), Err(Error::Rank { rank: 2, size: 2 })));
        assert!(matches!(array.at(0, 10), Err(Error::Bounds { first: 10, end: 11, len: 10 })));
        assert!(matches!(array.part(0, usize::MAX, 2), Err(Error::Bounds { .. })));
        assert!(array.cyclic(19).is_ok() && array.cyclic(20).is_err());
        assert!(process.write_bulk(&array, 1, 5, &[0; 6]).is_err());
        assert!(process.read_bulk(&array, 1, 0, &mut [0; 11]).is_err());
        assert!(process.load(&array, 10, 1).is_err() && process.save(&array, 9, &[0; 2]).is_err());
        assert!(matches!(process.spread::<u64>(0), Err(Error::Room { asked: 0, .. })));
        assert!(matches!(process.spread::<u64>(usize::MAX), Err(Error::Room { .. })));
        assert!(matches!(process.broadcast(2, &mut [0_u8]), Err(Error::Rank { .. })));
        let got = process.get(array.at(1, 0).unwrap()).unwrap();
        // The value may have come already.
        let early = process.take(got);
        assert!(matches!(early, Err(Error::NotSynced) | Ok(0)), "{early:?}");
        process.finish().unwrap();
    });
}

/// A program that maps a process, and is none of this library. Its handlers do nothing.
fn stranger(context: &hca_verbs::Context, process: &EndpointName) -> (Bundle, EndpointId) {
    let mut bundle = Bundle::open_with(context, Way::Verbs, &VERBS.options()).unwrap();
    let ep = bundle.endpoint().unwrap();
    bundle.set_tag(ep, TAG).unwrap();
    for handler in 1..=8 {
        bundle.set_handler(ep, handler, |_, _| {}).unwrap();
    }
    bundle.map(ep, 0, process, TAG).unwrap();
    (bundle, ep)
}

/// The tag of processes, by which a stranger reaches them.
const TAG: Tag = Tag(0x51c);

#[test]
fn messages_that_no_process_sends_change_nothing() {
    let contexts = VERBS.contexts(2);
    // A link more than one process needs.
    let joining = Joining::open(&contexts[0], Way::Verbs, MEMORY, 2).unwrap();
    let name = joining.name().unwrap();
    let mut process = joining.join(0, &[name]).unwrap();
    let (mut other, ep) = stranger(&contexts[1], &name);
    for handler in 1..=10 {
        for count in 0..=16 {
            other.request(ep, 0, handler, &[1; 16][..count]).unwrap();
            let begin = Instant::now();
            while other.outstanding(ep, 0).unwrap() > 0 {
                process.poll().unwrap();
                other.poll().unwrap();
                assert!(begin.elapsed() < PATIENCE, "request {handler} is not answered");
            }
        }
    }
    assert_eq!(process.outstanding(), 0);
    // Nor are they the answer to a read, which a sync waits for.
    let got = process.get(process.word_by_hand().at(0, 0).unwrap()).unwrap();
    assert_eq!(process.outstanding(), 1);
    process.sync().unwrap();
    assert!(process.take(got).is_ok());
    process.finish().unwrap();
}

#[test]
fn a_value_of_another_length_is_an_error() {
    let contexts = VERBS.contexts(2);
    let joining = Joining::open(&contexts[0], Way::Verbs, MEMORY, 2).unwrap();
    let name = joining.name().unwrap();
    let (mut other, ep) = stranger(&contexts[1], &name);
    let reply = |message: &Message<'_>, token: Token<'_>| {
        token.reply_medium(9, &[message.arg(3)], b"odd").unwrap();
    };
    other.set_handler(ep, 1, reply).unwrap();
    let names = [name, other.name(ep).unwrap()];
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let (names, done) = (&names, &done);
        let process = s.spawn(move || {
            let take = std::panic::AssertUnwindSafe(move || {
                let mut process = joining.join(0, names).unwrap();
                let got = process.get(process.word_by_hand().at(1, 0).unwrap()).unwrap();
                process.sync().unwrap();
                process.take(got)
            });
            let ended = std::panic::catch_unwind(take);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            ended
        });
        // The barrier of the join.
        other.request(ep, 0, 6, &[1, 0]).unwrap();
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            other.poll().unwrap();
        }
        let taken = process.join().unwrap().expect("no panic");
        assert!(matches!(taken, Err(Error::NotSynced)), "{taken:?}");
    });
}

#[test]
fn more_memory_than_there_can_be_is_refused() {
    let contexts = VERBS.contexts(1);
    for bytes in [usize::MAX, usize::MAX - 63, usize::MAX / 2] {
        assert!(Joining::open(&contexts[0], Way::Verbs, bytes, 1).is_err(), "{bytes}");
    }
}

#[test]
fn processes_that_differ_in_a_size_are_told() {
    let told = run(&VERBS, 2, |mut process| {
        let made = process.spread::<u64>(10 + process.rank());
        process.finish().unwrap();
        made
    });
    assert!(told.iter().all(|made| matches!(made, Err(Error::Mismatch { rank: 1 }))), "{told:?}");
}

#[test]
fn a_collective_with_another_number_of_elements_is_told_whatever_the_parts_of_its_messages() {
    // 512 elements are one part.
    for (first, second) in [(512, 1024), (1024, 512), (512, 513), (0, 1), (1, 0)] {
        let told = run(&VERBS, 2, |mut process| {
            let mut elements = vec![7_u64; if process.rank() == 0 { first } else { second }];
            process.broadcast(0, &mut elements)
        });
        assert!(told[0].is_ok(), "{first}: {told:?}");
        assert!(matches!(told[1], Err(Error::Mismatch { rank: 0 })), "{first}, {second}: {told:?}");
    }
}

#[test]
fn a_process_without_room_for_an_array_is_told_to_the_others() {
    for lacking in 0..2 {
        let told = run_with(
            &VERBS,
            2,
            |rank| if rank == lacking { 64 } else { MEMORY },
            |mut process| {
                let made = process.spread::<u64>(100);
                // An array that fails at one process takes no room at the others.
                let small = process.spread::<u64>(8);
                process.finish().unwrap();
                (made, small)
            },
        );
        assert!(told.iter().all(|(_, small)| small.is_ok()), "{told:?}");
        let [(lacks, _), (other, _)] = [&told[lacking], &told[1 - lacking]];
        assert!(matches!(lacks, Err(Error::Room { .. })), "{told:?}");
        assert!(matches!(other, Err(Error::Mismatch { .. })), "{told:?}");
    }
}

/// How long the others of a process that is gone may take to notice.
const PATIENCE: Duration = Duration::from_secs(20);

/// Elements of more pieces than are written at a time.
const LONG: usize = 70_000;

/// Runs a call in two processes whose third one has left. Each has to end with its loss, and in time.
fn others_are_told(call: impl Fn(&mut Process, &Spread<u64>, ProcedureId) -> Result<(), Error> + Sync) {
    // A process that leaves while others still join is a loss of the join.
    let joined = std::sync::Barrier::new(3);
    let told = run(&VERBS, 3, |mut process| {
        let array = process.spread::<u64>(LONG).unwrap();
        let procedure = process.register(|_, _| 0);
        joined.wait();
        if process.rank() == 2 {
            return None;
        }
        let begin = Instant::now();
        let told = call(&mut process, &array, procedure);
        // Those that wait for nothing of the process that is gone have to notice as well.
        let told = told.and_then(|()| process.barrier());
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
        Some(told)
    });
    for told in told.into_iter().flatten() {
        assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
    }
}

#[test]
fn a_process_that_is_gone_ends_the_collectives_of_the_others() {
    others_are_told(|process, _, _| process.barrier());
    others_are_told(|process, _, _| process.spread::<u64>(1).map(drop));
    // The sum comes to the root from the process that is gone; no other process waits for that one.
    others_are_told(|process, _, _| {
        let root = process.rank();
        process.reduce(root, &mut [1_u64], |a, b| a + b)
    });
    others_are_told(|process, _, _| process.all_reduce(&mut [1_u64], |a, b| a + b));
    others_are_told(|process, _, _| process.scan(&mut [1_u64], |a, b| a + b));
    others_are_told(|process, _, _| process.broadcast(2, &mut [1_u64]));
    // More than one message has room for, to processes that are there and to the one that is gone.
    others_are_told(|process, _, _| process.broadcast(0, &mut [1_u64; 100_000]));
    others_are_told(|process, _, _| process.all_store_sync());
}

#[test]
fn a_process_that_is_gone_ends_the_accesses_of_the_others() {
    others_are_told(|process, array, _| process.read(array.at(2, 0)?).map(drop));
    others_are_told(|process, array, _| process.write(array.at(2, 0)?, 1));
    others_are_told(|process, array, _| process.read_bulk(array, 2, 0, &mut [0; 8]));
    others_are_told(|process, array, _| process.write_bulk(array, 2, 0, &[1; 8]));
    others_are_told(|process, array, _| process.write_bulk(array, 2, 0, &[1; LONG]));
    others_are_told(|process, array, _| {
        process.put_part(array, 2, 0, array, 0, 8)?;
        process.sync()
    });
    others_are_told(|process, array, _| {
        let got = process.get(array.at(2, 0)?)?;
        process.sync()?;
        process.take(got).map(drop)
    });
    others_are_told(|process, array, _| {
        process.put(array.at(2, 0)?, 1)?;
        process.sync()
    });
    others_are_told(|process, _, procedure| process.call(2, procedure, &[]).map(drop));
    others_are_told(|process, _, _| process.store_sync(1));
}

#[test]
fn a_process_that_is_gone_ends_the_finish_of_the_others() {
    let joined = std::sync::Barrier::new(3);
    let told = run(&VERBS, 3, |process| {
        joined.wait();
        if process.rank() == 2 { Ok(()) } else { process.finish() }
    });
    assert!(told[..2].iter().all(|told| matches!(told, Err(Error::Lost { .. }))), "{told:?}");
}

#[test]
fn a_procedure_that_gives_no_value_is_an_error_of_its_call() {
    let done = std::sync::atomic::AtomicBool::new(false);
    let joined = std::sync::Barrier::new(2);
    run(&VERBS, 2, |mut process| {
        let panics = process.register(|_, _| panic!("as planned"));
        let seven = process.register(|_, _| 7);
        // The other one has not registered it.
        let own = (process.rank() == 1).then(|| process.register(|_, _| 0));
        process.barrier().unwrap();
        joined.wait();
        if let Some(own) = own {
            assert!(matches!(process.call(0, own, &[]), Err(Error::Procedure { rank: 0 })));
            for _ in 0..2 {
                let told = process.call(0, panics, &[]);
                assert!(matches!(told, Err(Error::Returned { rank: 0, .. })), "{told:?}");
                assert_eq!(process.call(0, seven, &[]).unwrap(), 7);
            }
            process.sync().unwrap();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        let begin = Instant::now();
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            assert!(begin.elapsed() < PATIENCE, "the calls have not ended");
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| process.poll()));
        }
        process.finish().unwrap();
    });
}
