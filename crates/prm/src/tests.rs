//! Properties of all layouts.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use crate::*;

fn bit(bytes: &[u8], at: u32) -> bool {
    bytes[(at / 8) as usize] >> (7 - at % 8) & 1 != 0
}

#[test]
fn layouts_and_their_fields_have_names_of_their_own() {
    let mut names = HashSet::new();
    for layout in layouts() {
        assert!(names.insert(layout.name), "{}", layout.name);
        let mut fields = HashSet::new();
        for field in layout.fields {
            assert!(fields.insert(field.name), "{}::{}", layout.name, field.name);
        }
    }
}

/// What `facts/layouts.txt` says of each field, by its layout and name; of a layout, its bytes, by no name.
fn facts() -> BTreeMap<(&'static str, &'static str), Vec<&'static str>> {
    let (mut facts, mut layout) = (BTreeMap::new(), "");
    for line in include_str!("../facts/layouts.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap();
        let field = if line.starts_with(' ') { name } else { "" };
        if field.is_empty() {
            (layout, _) = (name, words.next());
        }
        assert!(facts.insert((layout, field), words.collect()).is_none(), "{line} stands there twice");
    }
    facts
}

#[test]
fn names_and_places_are_those_of_the_list_of_facts() {
    let mut facts = facts();
    let mut agrees = |layout: &str, field: &str, numbers: &[u32]| {
        let name = field.to_lowercase();
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        let key = facts.keys().find(|key| **key == (layout, &name)).copied();
        let fact = key.and_then(|key| facts.remove(&key));
        let fact = fact.unwrap_or_else(|| {
            panic!("{layout}::{field} is not in facts/layouts.txt: add `{name} {}`", numbers.join(" "))
        });
        assert!(fact == ["?"] || fact == numbers, "{layout}::{field}: {numbers:?} here, {fact:?} there");
    };
    let status_alone = |info: &&CommandInfo| info.output.name == "StatusOut";
    for info in CommandInfo::all().filter(status_alone) {
        let command = info.input.name.strip_suffix("In").unwrap();
        agrees(&format!("{command}Out"), "", &[info.output.size as u32]);
    }
    for layout in layouts().filter(|layout| layout.name != "StatusOut") {
        agrees(layout.name, "", &[layout.size as u32]);
        let common = match CommandInfo::all().find(|c| [c.input.name, c.output.name].contains(&layout.name)) {
            Some(command) if command.input.name == layout.name => CmdIn::FIELDS.len(),
            Some(_) => CmdOut::FIELDS.len(),
            None => 0,
        };
        for field in &layout.fields[common..] {
            agrees(layout.name, field.name, &[field.start, field.width]);
        }
    }
    assert!(facts.is_empty(), "no layout has {facts:?}");
}

#[test]
fn too_few_bytes_are_refused_with_the_number_that_is_needed() {
    let refused = CmdQueueEntry::from_bytes(&[0; 63]).unwrap_err();
    assert_eq!(refused, TooShort { layout: "CmdQueueEntry", needed: 64, got: 63 });
    assert!(CmdQueueEntry::new().write_to(&mut [0; 63]).is_err());
    assert!(CmdQueueEntry::from_bytes(&[0; 65]).is_ok());
}

#[test]
#[should_panic(expected = "TOKEN holds 8 bits")]
fn a_number_too_large_for_its_field_is_not_cut_off_in_silence() {
    CmdQueueEntry::new().set(CmdQueueEntry::TOKEN, 0x100);
}

#[test]
fn a_layout_is_shown_with_the_fields_that_are_not_zero() {
    let slot =
        CmdQueueEntry::new().with(CmdQueueEntry::TYPE, 7).with(CmdQueueEntry::INPUT_MAILBOX_POINTER, 0x4000);
    assert_eq!(format!("{slot:?}"), "CmdQueueEntry { TYPE: 0x7, INPUT_MAILBOX_POINTER: 0x4000 }");
}

/// `to` with the bits of `field` taken from `from`.
fn with_bits_of(field: &FieldInfo, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut wanted = to.to_vec();
    for at in field.start..field.start + field.width {
        let mask = 1 << (7 - at % 8);
        let byte = &mut wanted[(at / 8) as usize];
        *byte = *byte & !mask | if bit(from, at) { mask } else { 0 };
    }
    wanted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 8 }))]

    #[test]
    fn every_field_of_every_layout_is_read_as_it_was_written_and_touches_no_other_bit(
        from in prop::collection::vec(any::<u8>(), 0x1100),
        to in prop::collection::vec(any::<u8>(), 0x1100),
    ) {
        for layout in layouts() {
            let (from, to) = (&from[..layout.size], &to[..layout.size]);
            for field in layout.fields {
                let mut written = to.to_vec();
                field.copy(from, &mut written);
                prop_assert!(written == with_bits_of(field, from, to), "{}::{}", layout.name, field.name);
                if field.kind == Kind::Bits {
                    let own = field.start..field.start + field.width;
                    let number = own.fold(0_u64, |number, at| number << 1 | u64::from(bit(from, at)));
                    prop_assert_eq!(field.number(&written), number, "{}::{}", layout.name, field.name);
                }
            }
        }
    }
}
