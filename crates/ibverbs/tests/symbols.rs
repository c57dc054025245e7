//! The symbols of the shared object, in their version nodes.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

/// The functions of a release, as (node, name). A line without a release is of release 44.
fn listed(release: u32) -> BTreeSet<(String, String)> {
    let texts = [include_str!("../symbols.txt"), include_str!("../symbols-rdmacm.txt")];
    let mut found = BTreeSet::new();
    for line in texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#')) {
        let (first, node, name) = match line.split(' ').collect::<Vec<_>>()[..] {
            [first, node, name] => (first.parse().unwrap(), node, name),
            [node, name] => (44, node, name),
            _ => panic!("{line}"),
        };
        if first <= release {
            found.insert((node.to_owned(), name.to_owned()));
        }
    }
    found
}

#[test]
fn every_public_function_of_each_release_is_found_by_its_version() {
    // The public functions of libibverbs and of librdmacm, as their map files count them.
    for (release, of_verbs, of_rdmacm) in
        [(44, 75, 68), (56, 75, 68), (59, 78, 68), (60, 78, 71), (62, 80, 71), (64, 83, 71), (65, 94, 74)]
    {
        let listed = listed(release);
        let count = |start: &str| listed.iter().filter(|(node, _)| node.starts_with(start)).count();
        assert_eq!((count("IBVERBS_1."), count("RDMACM_")), (of_verbs, of_rdmacm), "release {release}");
        let missing =
            Vec::from_iter(listed.into_iter().filter(|(node, name)| common::symbol(name, node).is_none()));
        assert!(missing.is_empty(), "release {release}: {missing:?}");
    }
    assert!(common::symbol("ibv_open_device", "IBVERBS_1.0").is_none(), "each has one node");
}

#[test]
fn the_versioned_symbols_are_those_of_the_list_and_no_others() {
    let said =
        Command::new("objdump").arg("-T").arg(common::path()).output().expect("objdump is of binutils");
    let text = String::from_utf8(said.stdout).unwrap();
    let nodes = ["IBVERBS_", "RDMACM_", "EFA_", "HNS_", "IONIC_", "MANA_", "MLX4_", "MLX5_"];
    let found: BTreeSet<_> = text
        .lines()
        .filter(|line| line.contains(" .text"))
        .filter_map(|line| {
            line.split_whitespace()
                .rev()
                .collect::<Vec<_>>()
                .get(..2)
                .map(|w| (w[1].trim_matches(['(', ')']).to_owned(), w[0].to_owned()))
        })
        .filter(|(node, _)| nodes.iter().any(|start| node.starts_with(start)))
        .collect();
    assert_eq!(found, listed(u32::MAX));
}
