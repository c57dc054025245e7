//! The layouts, against the headers that C programs are compiled with.

use std::fmt::Write as _;
use std::process::Command;

/// The name of a type in the header: `IbvSendWr` is `struct ibv_send_wr`.
fn c_type(name: &str) -> String {
    let mut found = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !found.is_empty() {
            found.push('_');
        }
        found.push(c.to_ascii_lowercase());
    }
    format!("struct {found}")
}
/// The name of a field in the header, where it is another.
fn c_field<'a>(of: &str, field: &'a str) -> &'a str {
    match (of, field) {
        ("VerbsContext", "ops") => "query_port",
        ("IbvAhAttr", "flow_label") => "grh.flow_label",
        ("IbvAhAttr", "sgid_index") => "grh.sgid_index",
        ("IbvMw", "kind") => "type",
        ("IbvCqEx", "ops") => "start_poll",
        ("IbvQpEx", "ops") => "wr_atomic_cmp_swp",
        ("IbvModifyCqAttr", "count") => "moderate.cq_count",
        ("IbvModifyCqAttr", "period") => "moderate.cq_period",
        ("IbvDeviceAttrEx", "max_cq_count") => "cq_mod_caps.max_cq_count",
        ("IbvDeviceAttrEx", "max_cq_period") => "cq_mod_caps.max_cq_period",
        (_, "unused") => "mutex",
        (_, "imm_or_rkey") => "imm_data",
        (_, "addr_or_ah") => "wr.ud.ah",
        (_, "second") => "wr.rdma.rkey",
        (_, "swap") => "wr.atomic.swap",
        (_, "atomic_rkey") => "wr.atomic.rkey",
        (_, "remote_srqn") => "qp_type.xrc.remote_srqn",
        _ => field,
    }
}

/// The sizes and offsets that `src/abi.rs` asserts are those of the installed header.
#[test]
#[ignore = "needs libibverbs-dev: compiles a C program"]
fn a_c_compiler_finds_the_same_sizes_and_offsets() {
    compile("infiniband/verbs.h", include_str!("../src/abi.rs"), 50);
}
/// As above, for `src/rdmacm/abi.rs`.
#[test]
#[ignore = "needs librdmacm-dev: compiles a C program"]
fn a_c_compiler_finds_the_same_sizes_and_offsets_of_librdmacm() {
    compile("rdma/rdma_cma.h", include_str!("../src/rdmacm/abi.rs"), 40);
}

fn compile(header: &str, abi: &str, fields_at_least: usize) {
    let rows = abi.split_once("layouts! {\n").unwrap().1.split_once("\n}").unwrap().0;
    let mut program = format!("#include <stddef.h>\n#include <{header}>\n");
    let mut asserted = 0;
    for row in rows.lines() {
        let (head, fields) = row.trim().trim_end_matches('}').split_once('{').unwrap();
        let (name, sizes) = head.trim().split_once(' ').unwrap();
        // A type that the installed header may not have yet.
        if sizes.contains(" since ") {
            continue;
        }
        let c = c_type(name);
        let fits: Vec<_> = sizes.split(" from ").map(|size| format!("sizeof({c}) == {size}")).collect();
        writeln!(program, "_Static_assert({}, \"{c}\");", fits.join(" || ")).unwrap();
        for field in fields.split(',') {
            let (field, offset) = field.trim().split_once(' ').unwrap();
            let field = c_field(name, field);
            writeln!(program, "_Static_assert(offsetof({c}, {field}) == {offset}, \"{c} {field}\");")
                .unwrap();
            asserted += 1;
        }
    }
    assert!(asserted > fields_at_least, "{asserted}");
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.c", header.replace('/', "-")));
    std::fs::write(&file, program).unwrap();
    let said = Command::new("cc").arg("-fsyntax-only").arg(&file).output().expect("there is a C compiler");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}
