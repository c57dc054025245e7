//! Mappings of client memory, and accesses to them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use rustix::fs::MemfdFlags;

use super::*;
use crate::bed::sealed;

fn guest() -> (Guest, File) {
    let (mut guest, file) = (Guest::new(), sealed(16 * PAGE));
    guest.set_bus_master(true);
    // Two ranges that follow each other and lie elsewhere in the file, and one that stands alone.
    let ranges = [(0x10_000, 4, 8), (0x14_000, 4, 0), (0x40_000, 2, 12)];
    for (iova, pages, at) in ranges {
        let copy = file.try_clone().unwrap().into();
        guest.map(iova, pages * PAGE, (true, true), Some((copy, at * PAGE))).unwrap();
    }
    (guest, file)
}

#[test]
fn what_is_written_by_address_stands_in_the_clients_file() {
    let (guest, file) = guest();
    // Over the border of two ranges.
    guest.write(0x13_ffc, b"borderline").unwrap();
    let mut seen = [0; 6];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"erline");
    file.read_exact_at(&mut seen[..4], 12 * PAGE - 4).unwrap();
    assert_eq!(&seen[..4], b"bord");
    let mut back = [0; 10];
    guest.read(0x13_ffc, &mut back).unwrap();
    assert_eq!(&back, b"borderline");
    guest.store32(0x40_000, 0x0102_0304).unwrap();
    file.read_exact_at(&mut seen[..4], 12 * PAGE).unwrap();
    assert_eq!(seen[..4], [1, 2, 3, 4]);
    assert!(guest.store32(0x40_002, 1).is_err(), "not aligned");
}

#[test]
fn nothing_is_reached_beyond_what_is_mapped_or_without_bus_mastering_or_against_its_rights() {
    let (mut guest, file) = guest();
    let mut byte = [0; 2];
    for iova in [0, 0xf_fff, 0x17_fff, 0x3f_fff, 0x41_fff, 0x42_000, u64::MAX, u64::MAX - 1] {
        assert!(guest.read(iova, &mut byte).is_err(), "{iova:#x}");
        assert!(guest.write(iova, &byte).is_err(), "{iova:#x}");
        assert!(guest.window(&[(iova, 2)], false).is_err(), "{iova:#x}");
    }
    assert!(guest.window(&[(0x10_000, 0x32_000)], false).is_err(), "there is a gap between its ends");
    assert!(guest.write(0x17_ffe, &[0; 0x28_010]).is_err());
    assert!(guest.window(&[], false).is_err());
    guest.map(0x80_000, PAGE, (true, false), Some((file.try_clone().unwrap().into(), 0))).unwrap();
    assert!(guest.read(0x80_000, &mut byte).is_ok() && guest.write(0x80_000, &byte).is_err());
    assert!(guest.window(&[(0x80_000, 8)], true).is_err());
    assert!(guest.window(&[(0x80_000, 8)], false).is_ok());
    guest.map(0x90_000, PAGE, (true, true), None).unwrap();
    assert!(guest.read(0x90_000, &mut byte).is_err(), "without a descriptor");
    guest.set_bus_master(false);
    assert!(guest.read(0x10_000, &mut byte).is_err() && guest.write(0x10_000, &byte).is_err());
    assert!(guest.window(&[(0x10_000, 8)], false).is_err());
}

#[test]
fn a_file_that_could_be_cut_and_one_that_is_too_short_are_refused() {
    let mut guest = Guest::new();
    let open = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, PAGE).unwrap();
    assert_eq!(guest.map(0, PAGE, (true, true), Some((open, 0))), Err(Errno::PERM));
    let plain: OwnedFd = File::open("/proc/self/exe").unwrap().into();
    assert_eq!(guest.map(0, PAGE, (true, false), Some((plain, 0))), Err(Errno::PERM));
    for (offset, len) in [(PAGE, PAGE), (0, 2 * PAGE), (8, PAGE), (u64::MAX - 4095, PAGE)] {
        let file = sealed(PAGE).into();
        assert_eq!(guest.map(0, len, (true, true), Some((file, offset))), Err(Errno::INVAL), "{offset}");
    }
}

#[test]
fn memory_of_hugetlbfs_is_refused() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = match rustix::fs::memfd_create("client", flags) {
        Ok(file) => file,
        Err(e) => return println!("skipped: the system has no hugetlbfs: {e}"),
    };
    rustix::fs::ftruncate(&file, 2 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert_eq!(Guest::new().map(0, 2 << 20, (true, true), Some((file, 0))), Err(Errno::OPNOTSUPP));
}

#[test]
fn ranges_do_not_overlap_and_go_as_a_whole() {
    let (mut guest, _file) = guest();
    for (iova, pages) in [(0x13_000, 1), (0xf_000, 2), (0, 0x100), (0x10_000, 4)] {
        assert_eq!(guest.map(iova, pages * PAGE, (true, true), None), Err(Errno::EXIST), "{iova:#x}");
    }
    for (iova, size) in [(0x20_001, PAGE), (0x20_000, 5), (0x20_000, 0), (u64::MAX - 4095, PAGE)] {
        assert_eq!(guest.map(iova, size, (true, true), None), Err(Errno::INVAL), "{iova:#x}");
    }
    assert_eq!(unmap(&mut guest, 0x11_000, PAGE), Err(Errno::INVAL), "a part");
    assert_eq!(unmap(&mut guest, 0x12_000, 4 * PAGE), Err(Errno::INVAL), "two parts");
    assert_eq!(unmap(&mut guest, 0x10_000, 5 * PAGE), Err(Errno::INVAL), "one and a part");
    assert_eq!(unmap(&mut guest, 0x20_000, PAGE), Ok(()), "nothing is there");
    // Both at once, with what lies around.
    assert_eq!(unmap(&mut guest, 0xf_000, 16 * PAGE), Ok(()));
    assert!(guest.read(0x10_000, &mut [0]).is_err() && guest.read(0x40_000, &mut [0]).is_ok());
    assert_eq!(unmap(&mut guest, 0, u64::MAX), Ok(()));
    assert!(guest.read(0x40_000, &mut [0]).is_err());
}

#[test]
fn the_upper_half_of_all_addresses_goes_though_no_number_is_its_end() {
    const HALF: u64 = 1 << 63;
    let (mut guest, file) = guest();
    for iova in [HALF, u64::MAX - 4095 - PAGE] {
        guest.map(iova, PAGE, (true, true), Some((file.try_clone().unwrap().into(), 0))).unwrap();
        let window = guest.window(&[(iova, PAGE)], true).unwrap();
        assert!(window.touches(HALF, HALF) && window.touches(0, u64::MAX) && !window.touches(0, HALF));
    }
    assert_eq!(guest.map(HALF, HALF - PAGE, (true, true), None), Err(Errno::EXIST));
    assert_eq!(unmap(&mut guest, HALF, HALF), Ok(()));
    assert!(guest.read(HALF, &mut [0]).is_err() && guest.read(u64::MAX - 4095 - PAGE, &mut [0]).is_err());
    assert!(guest.read(0x40_000, &mut [0]).is_ok(), "the lower half stays");
}

#[test]
fn a_window_tells_of_which_ranges_it_shows_parts() {
    let (guest, _file) = guest();
    let window = guest.window(&[(0x40_000, 0x1000), (0x10_000, 0x800)], true).unwrap();
    assert_eq!(window.len(), 0x1800);
    assert_eq!(window.ranges(), [(0x10_000, 0x14_000), (0x40_000, 0x42_000)]);
    let joined = guest.window(&[(0x14_000, PAGE), (0x10_000, PAGE)], false).unwrap();
    assert_eq!(joined.ranges(), [(0x10_000, 0x18_000)]);
    assert!(window.touches(0x40_000, 1) && window.touches(0, u64::MAX) && window.touches(0x3f_000, 2 * PAGE));
    assert!(!window.touches(0x14_000, 4 * PAGE) && !window.touches(0x42_000, PAGE));
}

#[test]
fn windows_that_threads_make_at_a_time_do_not_take_each_others_place() {
    std::thread::scope(|s| {
        for thread in 0..8_u8 {
            s.spawn(move || {
                let (guest, file) = guest();
                file.write_all_at(&[thread + 1; 16 * PAGE as usize], 0).unwrap();
                for _ in 0..400 {
                    let window = guest.window(&[(0x12_000, PAGE), (0x10_000, 2 * PAGE)], true).unwrap();
                    let mut seen = [0; 3 * PAGE as usize];
                    window.load(0, &mut seen);
                    assert!(seen.iter().all(|byte| *byte == thread + 1), "it shows other memory");
                }
            });
        }
    });
}

/// What the client uses of its part: mappings and bytes.
fn used(guest: &Guest) -> (usize, u64) {
    (guest.used.mappings.load(Ordering::Relaxed), guest.used.bytes.load(Ordering::Relaxed))
}

fn unmap(guest: &mut Guest, iova: u64, size: u64) -> Result<(), Errno> {
    guest.unmap(iova, size, usize::MAX).map(|more| assert!(!more))
}

fn map(guest: &mut Guest, file: &File, iova: u64, (page, pages): (u64, u64)) -> Result<(), Errno> {
    let copy = file.try_clone().unwrap().into();
    guest.map(iova, pages * PAGE, (true, true), Some((copy, page * PAGE)))
}

#[test]
fn one_client_has_only_so_many_ranges_files_and_addresses() {
    let (mut guest, _file) = guest();
    assert_eq!(used(&guest), (1, 16 * PAGE));
    let parts = [
        Part { mappings: 2, ..Part::default() },
        Part { maps: 4, ..Part::default() },
        Part { bytes: 18 * PAGE, ..Part::default() },
    ];
    for part in parts {
        guest.set_part(part);
        let more = [sealed(2 * PAGE), sealed(2 * PAGE)];
        map(&mut guest, &more[0], 0x80_000, (0, 2)).unwrap();
        assert_eq!(map(&mut guest, &more[1], 0x90_000, (0, 1)), Err(Errno::NOSPC), "{part:?}");
        assert!(guest.read(0x80_000, &mut [0]).is_ok(), "what is mapped stays");
        unmap(&mut guest, 0x80_000, 2 * PAGE).unwrap();
        assert_eq!(used(&guest), (1, 16 * PAGE));
    }
}

#[test]
fn a_file_is_mapped_once_however_many_of_its_pages_are() {
    let (mut guest, file) = (Guest::new(), sealed(64 * PAGE));
    guest.set_bus_master(true);
    for page in 0..64 {
        map(&mut guest, &file, (63 - page) * PAGE, (page, 1)).unwrap();
    }
    assert_eq!((used(&guest), guest.files.len()), ((1, 64 * PAGE), 1));
    file.write_all_at(b"last", 0).unwrap();
    file.write_all_at(b"first", 63 * PAGE).unwrap();
    let window = guest.window(&[(0, 64 * PAGE)], true).unwrap();
    assert_eq!((window.ranges(), window._memories.len()), (&[(0, 64 * PAGE)][..], 1));
    let mut seen = [0; 5];
    window.load(63 * PAGE as usize, &mut seen[..4]);
    assert_eq!(&seen[..4], b"last");
    guest.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"first");
    // What is unmapped is out of reach, though its file is mapped.
    unmap(&mut guest, 5 * PAGE, PAGE).unwrap();
    assert!(guest.read(5 * PAGE, &mut seen).is_err() && guest.window(&[(0, 6 * PAGE)], false).is_err());
    assert!(guest.read(4 * PAGE, &mut seen).is_ok() && guest.read(6 * PAGE, &mut seen).is_ok());
    unmap(&mut guest, 0, 64 * PAGE).unwrap();
    assert_eq!(used(&guest), (1, 64 * PAGE), "the window shows it");
    drop(window);
    assert_eq!((used(&guest), guest.read(0, &mut seen).is_err()), ((0, 0), true));
}

#[test]
fn a_file_that_does_not_fit_as_a_whole_or_has_grown_is_mapped_in_parts() {
    let (mut guest, file) = (Guest::new(), sealed(64 * PAGE));
    guest.set_bus_master(true);
    guest.set_part(Part { bytes: 8 * PAGE, ..Part::default() });
    for page in [3, 9] {
        map(&mut guest, &file, page * PAGE, (page, 2)).unwrap();
    }
    assert_eq!(used(&guest), (2, 4 * PAGE));
    guest.write(9 * PAGE, b"ninth").unwrap();
    guest.write(3 * PAGE, b"third").unwrap();
    let mut seen = [0; 5];
    for (page, told) in [(3, b"third"), (9, b"ninth")] {
        file.read_exact_at(&mut seen, page * PAGE).unwrap();
        assert_eq!(&seen, told);
    }
    let window = guest.window(&[(9 * PAGE, PAGE), (3 * PAGE, PAGE)], true).unwrap();
    assert_eq!(window._memories.len(), 2);
    unmap(&mut guest, 0, 64 * PAGE).unwrap();
    drop(window);
    assert_eq!(used(&guest), (0, 0));

    guest.set_part(Part::default());
    for _ in 0..20 {
        map(&mut guest, &sealed(PAGE), 5 * PAGE, (0, 1)).unwrap();
        assert!(guest.files.len() <= 3, "nobody has the other ones");
        unmap(&mut guest, 5 * PAGE, PAGE).unwrap();
    }
    map(&mut guest, &sealed(PAGE), 5 * PAGE, (0, 1)).unwrap();
    unmap(&mut guest, 5 * PAGE, PAGE).unwrap();
    map(&mut guest, &file, 0, (0, 1)).unwrap();
    rustix::fs::ftruncate(&file, 128 * PAGE).unwrap();
    map(&mut guest, &file, PAGE, (127, 1)).unwrap();
    map(&mut guest, &file, 2 * PAGE, (1, 1)).unwrap();
    assert_eq!(used(&guest), (2, 192 * PAGE));
    guest.write(PAGE, b"grown").unwrap();
    file.read_exact_at(&mut seen, 127 * PAGE).unwrap();
    assert_eq!(&seen, b"grown");
}

#[test]
fn the_parts_of_all_functions_are_no_more_than_the_process_has() {
    for functions in 1..=1024 {
        let part = Part::of(functions, 64 << 30);
        assert!(part.maps >= part.mappings && part.maps <= 1 << 20, "{functions} {part:?}");
        assert!(part.maps * functions <= 4 << 20 && part.mappings * functions <= 49_152);
        assert!(part.bytes * functions as u64 <= 32 << 40, "{functions} {part:?}");
        assert!(
            part.queue_bytes * functions <= 16 << 30 && part.queue_bytes <= 1 << 30,
            "{functions} {part:?}"
        );
    }
}

proptest! {
    /// Pages in any order, from any byte to any byte.
    #[test]
    fn a_window_shows_the_bytes_of_its_pages_in_their_order(
        order in proptest::collection::vec(0_u64..8, 1..7),
        (first, last) in (0_u64..PAGE, 1_u64..=PAGE),
    ) {
        let (guest, file) = guest();
        let content: Vec<u8> = (0..16 * PAGE).map(|i| (i * 7 / 3) as u8).collect();
        file.write_all_at(&content, 0).unwrap();
        let len = (order.len() as u64 - 1) * PAGE + last;
        prop_assume!(len > first);
        let pages: Vec<u8> = order.iter().flat_map(|n| (0x10_000 + n * PAGE).to_be_bytes()).collect();
        let window = guest.window_of_pages(&pages, 12, first, len - first, true).unwrap();
        let mut seen = vec![0; window.len()];
        window.load(0, &mut seen);
        // The first range lies at page 8 of the file, the second one at page 0.
        let place = |n: u64| (n + 8) % 12 * PAGE;
        let all: Vec<u8> = order
            .iter()
            .flat_map(|n| &content[place(*n) as usize..][..PAGE as usize])
            .copied()
            .collect();
        prop_assert_eq!(&seen, &all[first as usize..len as usize]);
        // And it is the client's memory, not a copy.
        window.store(window.len() - 1, &[!seen[seen.len() - 1]]);
        let mut byte = [0];
        file.read_exact_at(&mut byte, place(order[order.len() - 1]) + last - 1).unwrap();
        prop_assert_eq!(byte[0], !seen[seen.len() - 1]);
        prop_assert!(guest.window_of_pages(&pages[8..], 12, first, len - first, true).is_err());
    }
}

#[test]
fn a_window_shows_only_so_many_ranges_that_lie_apart() {
    let (mut guest, file) = (Guest::new(), sealed(PAGE));
    guest.set_bus_master(true);
    for n in 0..=MOST_APART as u64 {
        let copy = file.try_clone().unwrap().into();
        guest.map(2 * n * PAGE, PAGE, (true, true), Some((copy, 0))).unwrap();
    }
    let list = |count: usize| -> Vec<u8> {
        (0..count as u64).rev().flat_map(|n| (2 * n * PAGE).to_be_bytes()).collect()
    };
    let shown = guest.window_of_pages(&list(MOST_APART), 12, 0, MOST_APART as u64 * PAGE, true).unwrap();
    assert_eq!(shown.ranges().len(), MOST_APART);
    let one_more = guest.window_of_pages(&list(MOST_APART + 1), 12, 0, (MOST_APART as u64 + 1) * PAGE, true);
    assert_eq!(one_more.err(), Some(NoWindow::Apart));
}
