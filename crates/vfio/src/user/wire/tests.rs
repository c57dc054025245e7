//! Messages by their bytes, and malformed messages that are refused. The fuzz corpus shows that all parsed messages can
//! be built again.

use super::*;

/// A message by its words, of 4 bytes if not said otherwise.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// A header: number 3, and its command, length and flags.
fn head(command: u16, len: u32, flags: u32) -> Vec<u8> {
    let mut out = [3_u16.to_ne_bytes(), command.to_ne_bytes()].concat();
    out.extend(words(&[len, flags, 0]));
    out
}

#[track_caller]
fn is(message: &[u8], head: Vec<u8>, payload: &[u8]) {
    assert_eq!(message, [&head, payload].concat());
}

#[test]
fn requests_have_the_layout_of_the_protocol() {
    let map = DmaMap { read: true, write: true, offset: 0x1000, address: 0x2_0000_0000, size: 0x4000 };
    let payload = words(&[32, 3, 0x1000, 0, 0, 2, 0x4000, 0]);
    is(&Request::DmaMap(map).build(3, false), head(2, 48, 0), &payload);
    assert_eq!(Request::parse(2, &payload), Ok(Request::DmaMap(map)));

    let unmap = DmaUnmap { address: 0x2_0000_0000, size: 0x4000 };
    is(&Request::DmaUnmap(unmap).build(3, false), head(3, 40, 0), &words(&[24, 0, 0, 2, 0x4000, 0]));
    is(&Request::DeviceGetInfo.build(3, false), head(4, 32, 0), &words(&[16, 0, 0, 0]));
    let region = Request::GetRegionInfo { index: 2, argsz: 4096 };
    is(&region.build(3, false), head(5, 48, 0), &words(&[4096, 0, 2, 0, 0, 0, 0, 0]));
    is(&Request::GetIrqInfo { index: 2 }.build(3, false), head(7, 32, 0), &words(&[16, 0, 2, 0]));
    let (action, data) = (IrqAction::Trigger, IrqData::EventFds);
    let irqs = SetIrqs { index: 2, start: 1, count: 4, action, data };
    is(&Request::SetIrqs(irqs).build(3, false), head(8, 36, 0), &words(&[20, 36, 2, 1, 4]));
    let (start, count, data) = (0, 2, IrqData::Bools(&[1, 0]));
    let irqs = SetIrqs { index: 2, start, count, action: IrqAction::Mask, data };
    let payload = [&words(&[22, 10, 2, 0, 2])[..], &[1, 0]].concat();
    is(&Request::SetIrqs(irqs).build(3, false), head(8, 38, 0), &payload);
    let read = Request::RegionRead { region: 7, offset: 4, count: 2 };
    is(&read.build(3, false), head(9, 32, 0), &words(&[4, 0, 7, 2]));
    let write = Request::RegionWrite { region: 7, offset: 4, data: &[6, 4] };
    is(&write.build(3, true), head(10, 34, 16), &[&words(&[4, 0, 7, 2])[..], &[6, 4]].concat());
    let read = Request::DmaRead { address: 0x1000, count: 64 };
    is(&read.build(3, false), head(11, 32, 0), &words(&[0x1000, 0, 64, 0]));
    is(&Request::DeviceReset.build(3, false), head(13, 16, 0), &[]);
    is(&Request::HcaWake.build(3, false), head(0xff01, 24, 0), &words(&[16, 0]));
}

#[test]
fn replies_have_the_layout_of_the_protocol() {
    let info = DeviceInfo { can_reset: true, is_pci: true, regions: 9, irq_kinds: 5 };
    is(&Reply::DeviceInfo(info).build(3, 0), head(4, 32, 1), &words(&[16, 3, 9, 5]));
    let (maskable, automasked) = (false, false);
    let irqs = IrqInfo { index: 2, count: 8, eventfd: true, maskable, automasked, noresize: true };
    is(&Reply::IrqInfo(irqs).build(3, 0), head(7, 32, 1), &words(&[16, 9, 2, 8]));
    let areas = Some(vec![Area { offset: 0x1000, size: 0x2000 }]);
    let (read, write, mmap, size, offset) = (true, true, true, 0x4000, 0x8000);
    let region = RegionInfo { argsz: 64, index: 2, read, write, mmap, size, offset, areas };
    let whole = words(&[64, 15, 2, 32, 0x4000, 0, 0x8000, 0, 1 | 1 << 16, 0, 1, 0, 0x1000, 0, 0x2000, 0]);
    is(&Reply::RegionInfo(region.clone()).build(3, 64), head(5, 80, 1), &whole);
    assert_eq!(RegionInfo::parse(&whole), Ok(region.clone()));
    // What has no room is told with its place: QEMU asks so first, and refuses the flag without a place.
    let short = words(&[64, 15, 2, 32, 0x4000, 0, 0x8000, 0]);
    is(&Reply::RegionInfo(region.clone()).build(3, 63), head(5, 48, 1), &short);
    assert_eq!(RegionInfo::parse(&short), Ok(RegionInfo { areas: None, ..region }));
    let written = Reply::RegionWrite { region: 7, offset: 4, count: 2 };
    is(&written.build(3, 0), head(10, 32, 1), &words(&[4, 0, 7, 2]));
    let wake = Reply::HcaWake(Wake { word: Some(64) });
    is(&wake.build(3, 0), head(0xff01, 32, 1), &words(&[16, 1, 64, 0]));
    let refused = [&head(2, 16, 33)[..12], &17_u32.to_ne_bytes()].concat();
    assert_eq!(refusal(3, 2, 17)[..], refused);
    // A count of 32 bits, as one side has it in its text, and of 64, as it has it in its code.
    for payload in [words(&[0x1000, 0, 8]), words(&[0x1000, 0, 8, 0])] {
        assert_eq!(Reply::parse(12, &payload), Ok(Reply::DmaWrite { address: 0x1000, count: 8 }));
    }
}

#[test]
fn memory_is_unmapped_as_a_whole_by_a_flag_of_its_own() {
    // As QEMU does where an IOMMU's addresses go, all 2^64 of them.
    let payload = words(&[24, 2, 0, 0, 0, 0]);
    let unmap = DmaUnmap { address: 0, size: u64::MAX };
    assert_eq!(Request::parse(3, &payload), Ok(Request::DmaUnmap(unmap)));
    is(&Request::DmaUnmap(unmap).build(3, false), head(3, 40, 0), &payload);
    is(&Reply::DmaUnmap(unmap).build(3, 0), head(3, 40, 1), &payload);
    for (address, size) in [(0, 1), (1, 0), (0x1000, 0x1000)] {
        let payload = words(&[24, 2, address, 0, size, 0]);
        let refused = Request::parse(3, &payload);
        assert!(matches!(refused, Err(WireError::Value { .. })), "{address:#x}, {size:#x}");
    }
}

/// What QEMU sends first, by its own names.
const QEMU: &str = r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"max_dma_maps":65535,"pgsizes":4096,"write_multiple":true,"migration":{"pgsize":4096}}}"#;

fn version(text: &str) -> Result<Capabilities, WireError> {
    let payload = [&words(&[0])[..], text.as_bytes(), &[0]].concat();
    match Request::parse(1, &payload)? {
        Request::Version(v) => Ok(v.capabilities),
        other => panic!("{other:?}"),
    }
}

#[test]
fn capabilities_are_taken_from_json_and_what_is_not_named_is_the_protocol_s_default() {
    let qemu = version(QEMU).unwrap();
    assert_eq!(qemu, Capabilities { max_msg_fds: 16, write_multiple: true, ..Capabilities::default() });
    assert_eq!(version("{}"), Ok(Capabilities::default()));
    assert_eq!(version(""), Ok(Capabilities::default()));
    let many = version(r#"{"capabilities":{"max_dma_maps":99999999999,"hca_wake":true}}"#).unwrap();
    assert_eq!((many.max_dma_maps, many.hca_wake), (u32::MAX, true));
    for (text, name) in [
        ("[]", "capabilities"),
        ("{", "capabilities"),
        (r#"{"capabilities":7}"#, "capabilities"),
        (r#"{"capabilities":{"max_msg_fds":-1}}"#, "max_msg_fds"),
        (r#"{"capabilities":{"pgsizes":"all"}}"#, "pgsizes"),
        (r#"{"capabilities":{"hca_wake":1}}"#, "hca_wake"),
    ] {
        assert_eq!(version(text), Err(WireError::Capability { name }), "{text}");
    }
    let deep = "[".repeat(4000);
    assert_eq!(version(&deep), Err(WireError::Capability { name: "capabilities" }));
    assert!(matches!(version(&" ".repeat(5000)), Err(WireError::Count { possible: 4096, .. })));
}

#[test]
fn lengths_and_counts_that_do_not_fit_are_refused() {
    let parsed = |len: u32| {
        let whole = head(9, len, 0);
        Header::parse(whole.first_chunk().unwrap())
    };
    assert_eq!(parsed(15), Err(WireError::Size { claimed: 15 }));
    assert_eq!(parsed(u32::MAX), Err(WireError::Size { claimed: u32::MAX }));
    assert_eq!(parsed(MAX_MESSAGE_BYTES as u32).unwrap().payload_bytes, MAX_MESSAGE_BYTES - 16);
    let bad = head(9, 16, 2);
    assert_eq!(Header::parse(bad.first_chunk().unwrap()), Err(WireError::Kind { kind: 2 }));

    let count = |r: Result<Request<'_>, _>| matches!(r, Err(WireError::Count { .. }));
    assert!(count(Request::parse(10, &words(&[0, 0, 7, 5, 0]))), "4 bytes of 5");
    assert!(count(Request::parse(9, &words(&[0, 0, 7, (1 << 20) + 1]))));
    assert!(count(Request::parse(11, &words(&[0, 0, 0, 1]))));
    assert!(count(Request::parse(8, &words(&[20, 36, 2, 2047, 2]))));
    assert!(count(Request::parse(8, &words(&[20, 36, 2, u32::MAX, u32::MAX]))));
    assert!(count(Request::parse(15, &words(&[2, 0, 0, 0, 0, 0, 0, 0]))));
    let value = |r: Result<Request<'_>, _>| matches!(r, Err(WireError::Value { .. }));
    assert!(value(Request::parse(8, &words(&[20, 32 + 4 + 2, 2, 0, 1]))), "two kinds of data");
    assert!(value(Request::parse(8, &words(&[20, 4, 2, 0, 1]))), "no action");
    assert!(value(Request::parse(2, &words(&[32, 3, 0, 0, 0, 0, 0, 0]))), "no bytes");
    assert!(value(Request::parse(3, &words(&[24, 0, u32::MAX, u32::MAX, 2, 0]))), "round the end");
    assert!(value(Request::parse(15, &words(&[1, 0, 0, 0, 0, 9, 0, 0]))), "9 bytes of 8");
    assert_eq!(Request::parse(14, &[]), Err(WireError::Command { code: 14 }));
    let short = WireError::Short { what: "REGION_READ", needs: 12, has: 11 };
    assert_eq!(Request::parse(9, &[0; 11]), Err(short));
}

#[test]
fn a_region_s_areas_lie_within_it_and_their_chain_leads_forward() {
    let region = |cap: u32, size: u32, next: u32, count: u32, area: [u32; 2]| {
        let head = [64, 15, 2, cap, size, 0, 0, 0];
        let cap = [1 | 1 << 16, next, count, 0, area[0], 0, area[1], 0];
        RegionInfo::parse(&words(&[head, cap].concat()))
    };
    let areas = region(32, 0x4000, 0, 1, [0x1000, 0x3000]).unwrap().areas;
    assert_eq!(areas, Some(vec![Area { offset: 0x1000, size: 0x3000 }]));
    assert!(matches!(region(32, 0x4000, 0, 1, [0x1000, 0x3001]), Err(WireError::Count { .. })));
    assert!(matches!(region(32, 0x4000, 0, 257, [0, 1]), Err(WireError::Count { possible: 256, .. })));
    assert!(matches!(region(32, 0x4000, 0, 2, [0, 1]), Err(WireError::Short { .. })));
    assert_eq!(region(16, 0x4000, 0, 1, [0, 1]), Err(WireError::Chain { at: 16 }));
    assert_eq!(region(65, 0x4000, 0, 1, [0, 1]), Err(WireError::Chain { at: 65 }));
    // Of a kind that means nothing here, which names itself as the next one.
    let mut circle = words(&[64, 15, 2, 32, 0x4000, 0, 0, 0, 9, 32, 0, 0, 0, 0, 0, 0]);
    assert_eq!(RegionInfo::parse(&circle), Err(WireError::Chain { at: 32 }));
    circle[36..40].copy_from_slice(&0_u32.to_ne_bytes());
    assert_eq!(RegionInfo::parse(&circle).unwrap().areas, None);
}
