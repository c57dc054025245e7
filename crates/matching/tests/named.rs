//! Each option, event, operation and verdict of both interfaces has a test whose name contains its name, word by word.

use hca_matching::*;

/// Where they are.
const SOURCES: [&str; 4] = [
    include_str!("events.rs"),
    include_str!("options.rs"),
    include_str!("counting.rs"),
    include_str!("v3.rs"),
];

/// Asserts that each of these names, in capitals or as a type has it, is in the name of a test.
fn are_tested<'a>(names: impl IntoIterator<Item = &'a str>) {
    let tests: Vec<String> = SOURCES
        .iter()
        .flat_map(|source| source.split("#[test]\nfn ").skip(1))
        .map(|test| format!("_{}_", test.split('(').next().unwrap()))
        .collect();
    assert!(tests.len() > 80, "they are read");
    let missing: Vec<_> =
        names.into_iter().filter(|name| !tests.iter().any(|test| test.contains(&words(name)))).collect();
    assert!(missing.is_empty(), "no test is named after {missing:?}");
}

/// `FetchAtomic` and `FETCH_ATOMIC` as `_fetch_atomic_`.
fn words(name: &str) -> String {
    let mut words = String::from("_");
    let mut before = '_';
    for c in name.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            words.push('_');
        }
        words.extend(c.to_lowercase());
        before = c;
    }
    words + "_"
}

#[test]
fn each_option_of_an_entrys_memory_has_its_test() {
    are_tested(Options::all().iter_names().map(|(name, _)| name));
}

#[test]
fn each_option_of_an_initiators_descriptor_has_its_test() {
    are_tested(MdOptions::all().iter_names().map(|(name, _)| name));
}

#[test]
fn each_option_of_a_portal_has_its_test() {
    are_tested(PortalOptions::all().iter_names().map(|(name, _)| name));
}

#[test]
fn each_event_has_its_test() {
    use EventKind::*;
    let kinds = [
        Get,
        GetOverflow,
        Put,
        PutOverflow,
        Atomic,
        AtomicOverflow,
        FetchAtomic,
        FetchAtomicOverflow,
        Reply,
        Send,
        Ack,
        PtDisabled,
        Link,
        AutoUnlink,
        AutoFree,
        Search,
        GetStart,
        GetEnd,
        PutStart,
        PutEnd,
        GetPutStart,
        GetPutEnd,
        ReplyStart,
        ReplyEnd,
        SendStart,
        SendEnd,
        Unlink,
    ];
    assert!(kinds.iter().enumerate().all(|(number, &kind)| kind as usize == number));
    let names: Vec<_> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
    are_tested(names.iter().map(String::as_str));
}

#[test]
fn what_else_users_of_either_interface_set_has_its_test() {
    are_tested(["threshold", "max_size", "min_free", "unlink", "retain", "uid", "match_id", "insert"]);
    are_tested(["conditional_update", "access_control_list", "users_and_jobs", "abort", "cancelled"]);
    are_tested(["search_only", "search_delete", "acknowledgement", "explain", "logical_addresses"]);
    let triggered =
        "triggered_put_get_atomic_fetch_atomic_and_swap_come_out_in_the_order_of_their_thresholds";
    are_tested([triggered, "triggered_ct_inc_and_ct_set"]);
}
