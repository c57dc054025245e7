//! Tests of the values in structures, beside the tests of their places.

use crate::caps::{AtomicCaps, HcaCap, RoceCap};
use crate::command::cq::{modify, resize};
use crate::command::hca::HcaCapType;
use crate::layout::Kind;
use crate::layout_support::{check_order, fits};
use crate::register::Ptys;
use crate::*;

/// Masks, as the manual numbers their bits.
#[test]
fn bits_of_masks_are_those_of_the_manual() {
    let masks: [(&str, u64, u64); 44] = [
        ("mkey length", mkey_mask::LEN, 0x1),
        ("mkey page size", mkey_mask::PAGE_SIZE, 0x2),
        ("mkey start", mkey_mask::START_ADDR, 0x40),
        ("mkey domain", mkey_mask::PD, 0x80),
        ("mkey remote invalidation", mkey_mask::EN_RINVAL, 0x100),
        ("mkey signatures", mkey_mask::BSF_EN, 0x1000),
        ("mkey tag", mkey_mask::KEY, 0x2000),
        ("mkey queue pair", mkey_mask::QPN, 0x4000),
        ("mkey local read", mkey_mask::LR, 0x2_0000),
        ("mkey local write", mkey_mask::LW, 0x4_0000),
        ("mkey remote read", mkey_mask::RR, 0x8_0000),
        ("mkey remote write", mkey_mask::RW, 0x10_0000),
        ("mkey atomics", mkey_mask::A, 0x20_0000),
        ("mkey relaxed writes", mkey_mask::RELAXED_ORDERING_WRITE, 0x200_0000),
        ("mkey free", mkey_mask::FREE, 0x2000_0000),
        ("mkey relaxed reads", mkey_mask::RELAXED_ORDERING_READ, 0x8000_0000_0000),
        ("alternate path", optpar::ALT_ADDR_PATH.into(), 0x1),
        ("remote read", optpar::RRE.into(), 0x2),
        ("remote atomics", optpar::RAE.into(), 0x4),
        ("remote write", optpar::RWE.into(), 0x8),
        ("partition", optpar::PKEY_INDEX.into(), 0x10),
        ("queue key", optpar::Q_KEY.into(), 0x20),
        ("RNR timer", optpar::RNR_TIMEOUT.into(), 0x40),
        ("primary path", optpar::PRIMARY_ADDR_PATH.into(), 0x80),
        ("initiator depth", optpar::SRA_MAX.into(), 0x100),
        ("responder resources", optpar::RRA_MAX.into(), 0x200),
        ("migration", optpar::PM_STATE.into(), 0x400),
        ("retries", optpar::RETRY_COUNT.into(), 0x1000),
        ("RNR retries", optpar::RNR_RETRY.into(), 0x2000),
        ("timeout", optpar::ACK_TIMEOUT.into(), 0x4000),
        ("receive completions", optpar::CQN_RCV.into(), 0x8_0000),
        ("offload", optpar::OFFLOAD_TYPE.into(), 0x100_0000),
        ("counters", optpar::COUNTER_SET_ID.into(), 0x200_0000),
        ("moderation period", modify::PERIOD.into(), 0x1),
        ("moderation count", modify::COUNT.into(), 0x2),
        ("overrun ignored", modify::OVERRUN.into(), 0x4),
        ("queue length", resize::LOG_SIZE.into(), 0x1),
        ("IPv4", RoceCap::L3_IPV4.into(), 0x2),
        ("IPv6", RoceCap::L3_IPV6.into(), 0x4),
        ("compare and swap", AtomicCaps::COMPARE_SWAP.into(), 0x1),
        ("fetch and add", AtomicCaps::FETCH_ADD.into(), 0x2),
        ("InfiniBand", Ptys::IB.into(), 0x1),
        ("Ethernet", Ptys::EN.into(), 0x4),
        ("first owner", Cqe64::FIRST_OP_OWN.into(), 0xf1),
    ];
    for (what, is, value) in masks {
        assert_eq!(is, value, "{what}");
    }
}

#[test]
fn a_table_of_partition_keys_has_128_entries_and_up_to_32_times_as_many() {
    let entries = |code| HcaCap::new().with(HcaCap::PKEY_TABLE_SIZE, code).pkeys();
    assert_eq!(
        (0..7).map(entries).collect::<Vec<_>>(),
        [128, 256, 512, 1024, 2048, 4096].map(Some).into_iter().chain([None]).collect::<Vec<_>>()
    );
}

#[test]
fn a_query_of_capabilities_says_which_and_of_when() {
    assert_eq!(HcaCapType::Atomic.op_mod(true), 7);
    assert_eq!(HcaCapType::Atomic.op_mod(false), 6);
}

#[test]
fn entries_that_say_why_say_no_time() {
    let without = [CqeOpcode::ReqErr, CqeOpcode::RespErr, CqeOpcode::SigErr, CqeOpcode::Invalid];
    for &opcode in CqeOpcode::ALL {
        assert_eq!(opcode.has_time(), !without.contains(&opcode), "{opcode:?}");
    }
}

#[test]
fn the_owner_of_events_changes_each_round() {
    let owners: Vec<bool> = (0..12).map(|counter| Eqe::sw_owner(counter, 2)).collect();
    assert_eq!(owners, [[false; 4], [true; 4], [false; 4]].concat());
}

#[test]
fn the_mode_of_a_keys_access_is_parted_and_put_together() {
    for mode in 0..32 {
        let mkc = Mkc::new().with(Mkc::ACCESS_MODE_1_0, mode & 3).with(Mkc::ACCESS_MODE_4_2, mode >> 2);
        assert_eq!(mkc.access_mode(), mode);
    }
}

#[test]
fn signatures_of_mailboxes_cover_their_control_part_and_then_all() {
    let mut data = [0; 512];
    data[7] = 0x11;
    let mut mailbox = CmdIfBox::new().with(CmdIfBox::MAILBOX_DATA, data).with(CmdIfBox::BLOCK_NUMBER, 3);
    mailbox.set(CmdIfBox::TOKEN, 0x5a);
    // Whatever stood in place of the signature.
    mailbox.set(CmdIfBox::CTRL_SIGNATURE, 0x77);
    mailbox.sign_ctrl();
    let xor = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum ^ byte);
    // Behind the data come 64 bytes, whose last two are the signatures: of those before them, and of all.
    let all = *mailbox.as_bytes();
    assert_eq!(all[all.len() - 2], !xor(&all[512..all.len() - 2]), "it is over the control part alone");
    assert!(mailbox.is_ctrl_signed() && !mailbox.is_signed());
    mailbox.sign();
    let all = *mailbox.as_bytes();
    assert_eq!(all[all.len() - 2], !xor(&all[512..all.len() - 2]));
    assert_eq!(xor(&all), 0xff);
    assert!(mailbox.is_signed());
}

#[test]
fn what_ends_with_a_mailbox_has_no_part_in_the_next_one() {
    use crate::cmdq::mailbox_part;
    assert_eq!(mailbox_part(16 + 512, 0), 16..16 + 512);
    assert_eq!(mailbox_part(16 + 512, 1), 528..528);
    assert_eq!(mailbox_part(16 + 513, 1), 528..529);
    assert_eq!(mailbox_part(16 + 511, 0), 16..16 + 511);
    assert_eq!(mailbox_part(16, 0), 16..16);
}

#[test]
fn fields_say_their_names_and_places() {
    let field = CmdQueueEntry::TOKEN;
    assert_eq!((field.name(), field.start(), field.width()), ("TOKEN", 480, 8));
    assert_eq!(format!("{field:?}"), "TOKEN at bit 0x1e0, 8 bits");
    assert_eq!(format!("{:?}", Opcode::SET_ISSI), Opcode::SET_ISSI.to_string());
    assert!(!format!("{:?}", Opcode::SET_ISSI).is_empty());
}

#[test]
fn registers_are_rows_of_which_a_field_is_read_and_written() {
    // A number of 8 bits at the top of its row, and the bit of the owner at the bottom.
    let (token, owner) = (CmdQueueEntry::TOKEN, CmdQueueEntry::OWNERSHIP);
    assert_eq!(token.of_row(0xab12_3456), 0xab);
    assert_eq!(token.in_row(0xff12_3456, 0xab), 0xab12_3456);
    assert_eq!(token.in_row(0x0012_3456, 0xff), 0xff12_3456);
    assert!(owner.of_row(1) && !owner.of_row(0xffff_fffe));
    assert_eq!(
        (owner.in_row(0, true), owner.in_row(1, true), owner.in_row(0xffff_ffff, false)),
        (1, 1, 0xffff_fffe)
    );
    let high = InitSegment::INITIALIZING;
    assert!(high.of_row(1 << 31) && !high.of_row(u32::MAX >> 1));
    assert_eq!((high.in_row(0, true), high.in_row(u32::MAX, false)), (1 << 31, u32::MAX >> 1));
    assert_eq!(high.in_row(1 << 31, true), 1 << 31);
}

#[test]
fn a_field_ends_within_its_structure() {
    assert!(fits(0, 32, 4) && fits(24, 8, 4) && fits(0, 0, 0));
    assert!(!fits(25, 8, 4) && !fits(32, 1, 4) && !fits(0, 33, 4));
}

/// Fields at these bits, of this width, declared to lie over others or not.
fn in_order(fields: &[(u32, u32, bool)]) -> bool {
    let infos: Vec<FieldInfo> = fields
        .iter()
        .map(|(start, width, over)| FieldInfo {
            name: "",
            start: *start,
            width: *width,
            kind: Kind::Bits,
            over: *over,
            copied: |_, _, _| (),
        })
        .collect();
    let messages = vec![""; fields.len()];
    std::panic::catch_unwind(|| check_order(&infos, &messages, &messages)).is_ok()
}

#[test]
fn fields_stand_in_order_but_those_that_are_said_to_lie_over_others() {
    assert!(in_order(&[(0, 8, false), (8, 8, false), (32, 4, false)]));
    assert!(!in_order(&[(0, 8, false), (7, 8, false)]));
    assert!(in_order(&[(0, 8, false), (7, 8, true), (15, 1, false)]));
    assert!(!in_order(&[(0, 8, false), (7, 8, true), (14, 1, false)]));
    assert!(!in_order(&[(0, 8, false), (8, 8, true)]));
    // What lies within another field does not end it.
    assert!(!in_order(&[(0, 32, false), (4, 4, true), (8, 8, false)]));
    assert!(in_order(&[(2, 3, false), (5, 1, false)]));
    assert!(!in_order(&[(2, 3, false), (4, 1, false)]));
}
