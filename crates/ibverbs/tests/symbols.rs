//! The symbols of the shared object, in their version nodes.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

/// The list of a release, as (node, name).
fn listed() -> BTreeSet<(String, String)> {
    let texts = [include_str!("../symbols-44.txt"), include_str!("../symbols-rdmacm.txt")];
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn every_public_function_of_release_44_is_found_by_its_version() {
    let missing =
        Vec::from_iter(listed().into_iter().filter(|(node, name)| common::symbol(name, node).is_none()));
    assert!(missing.is_empty(), "{missing:?}");
    assert!(common::symbol("ibv_open_device", "IBVERBS_1.0").is_none(), "each has one node");
}

#[test]
fn the_versioned_symbols_are_those_of_the_list_and_no_others() {
    let said =
        Command::new("objdump").arg("-T").arg(common::path()).output().expect("objdump is of binutils");
    let text = String::from_utf8(said.stdout).unwrap();
    let nodes = ["IBVERBS_", "RDMACM_", "MLX5_", "EFA_"];
    let found: BTreeSet<_> = text
        .lines()
        .filter(|line| line.contains(" .text"))
        .filter_map(|line| {
            line.split_whitespace()
                .rev()
                .collect::<Vec<_>>()
                .get(..2)
                .map(|w| (w[1].to_owned(), w[0].to_owned()))
        })
        .filter(|(node, _)| nodes.iter().any(|start| node.trim_start_matches('(').starts_with(start)))
        .collect();
    assert_eq!(found, listed());
}
