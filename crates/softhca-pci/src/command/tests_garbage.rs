//! A driver that writes anything anywhere: the function answers or is silent, and the next driver finds a function
//! without a trace of this one.

use hca_prm::{CMD_TYPE, CmdIfBox, CmdQueueEntry, Opcode};
use proptest::prelude::*;

use crate::bed::{COMMANDS, Driver, Server};
use crate::function::PortKind;

/// What such a driver does.
#[derive(Clone, Debug)]
enum Act {
    Write(u64, Vec<u8>),
    Read(u64, usize),
    Config(u64, Vec<u8>),
    Command { opcode: u16, body: Vec<u8>, output: usize, lie: Option<(u64, u64)> },
    Unmap(u64, u64),
    Reset,
    Look,
}

fn offset() -> impl Strategy<Value = u64> {
    // Registers, vectors, trapped and polled doorbells, anywhere.
    prop_oneof![
        Just(0x10_u64),
        Just(0x14),
        Just(0x18),
        0..0x1100_u64,
        0x2000..0x3100_u64,
        0x1_0000..0x1_2000_u64,
        any::<u64>(),
    ]
}

fn pointer() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0_u64),
        (0..0x800_u64).prop_map(|n| COMMANDS + n * 1024),
        any::<u64>(),
        any::<u64>().prop_map(|n| n & !1023)
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let known = prop::sample::select(Opcode::ALL.iter().map(|code| code.0).collect::<Vec<_>>());
    let bytes = |most| prop::collection::vec(prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], 0..most);
    let lie = prop::option::weighted(0.2, (pointer(), pointer()));
    prop_oneof![
        2 => (offset(), bytes(24)).prop_map(|(at, data)| Act::Write(at, data)),
        1 => (offset(), 0..64_usize).prop_map(|(at, len)| Act::Read(at, len)),
        1 => (prop_oneof![0..0x100_u64, any::<u64>()], bytes(8)).prop_map(|(at, data)| Act::Config(at, data)),
        8 => (prop_oneof![9 => known, 1 => any::<u16>()], bytes(700), 0..5000_usize, lie)
            .prop_map(|(opcode, body, output, lie)| Act::Command { opcode, body, output, lie }),
        1 => (pointer(), 0..1_u64 << 26).prop_map(|(at, len)| Act::Unmap(at, len.max(1))),
        1 => Just(Act::Reset),
        2 => Just(Act::Look),
    ]
}

fn do_it(d: &mut Driver, act: &Act) {
    match act {
        Act::Write(at, data) => d.function.bar_write(*at, data),
        Act::Read(at, len) => d.function.bar_read(*at, &mut vec![0; *len]),
        Act::Config(at, data) => d.function.config_write(*at, data),
        Act::Command { opcode, body, output, lie } => {
            d.attach();
            let mut input = opcode.to_be_bytes().to_vec();
            input.extend_from_slice(&[0; 6]);
            input.extend_from_slice(body);
            d.rewind();
            let mut entry = d.put(0, &input, *output);
            if let Some((first, second)) = lie {
                entry
                    .set(CmdQueueEntry::TYPE, CMD_TYPE)
                    .set(CmdQueueEntry::INPUT_MAILBOX_POINTER, *first)
                    .set(CmdQueueEntry::INPUT_LENGTH, (*second as u32) & 0xf_ffff)
                    .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER, *second);
                d.write(Driver::slot_at(0), entry.as_bytes());
                // A mailbox that names itself.
                let part = CmdIfBox::new().with(CmdIfBox::NEXT_POINTER, *first);
                if (COMMANDS..COMMANDS + (1 << 20)).contains(first) {
                    d.write(*first, part.as_bytes());
                }
            }
            d.store(0x18, 1);
        }
        Act::Unmap(at, len) => {
            let _ = d.function.dma_unmap(*at, *len);
            // Its memory may be there still.
            let _ = d.try_map();
        }
        Act::Reset => d.function.reset(),
        Act::Look => _ = d.function.look(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_driver_writes_the_next_one_finds_the_function_as_new(
        roce in any::<bool>(),
        booted in any::<bool>(),
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let server = Server::new();
        let port = if roce { PortKind::Roce } else { PortKind::InfiniBand };
        let mut d = Driver::new(&server, 0, port);
        if booted {
            d.boot();
            d.uar();
        }
        for act in &acts {
            do_it(&mut d, act);
        }
        d.function.disconnect();
        d.map();
        d.attach();
        d.boot();
        prop_assert_eq!(d.shut(), 24);
    }
}
