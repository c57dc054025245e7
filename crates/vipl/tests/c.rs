//! A program in C against the header and the shared object.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/vipl.c`. The shared object lies beside the tests, where cargo builds it.
fn program() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("vipl-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    cc.arg(folder.join("tests/vipl.c")).arg("-I").arg(folder.join("include")).arg("-L").arg(&libraries);
    cc.arg("-lvipl").arg(format!("-Wl,-rpath,{}", libraries.display()));
    assert!(cc.status().expect("there is a C compiler").success(), "{cc:?}");
    program
}

/// The functions that the header declares.
fn declared() -> Vec<&'static str> {
    let header = include_str!("../include/vipl.h");
    let lines = header.lines().filter_map(|line| line.strip_prefix("VIP_RETURN "));
    lines.map(|line| line.split_once('(').expect("a function").0).collect()
}

#[test]
fn a_program_in_c_gets_what_each_function_promises_and_each_return_code() {
    let program = program();
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let [first, second] = [60, 61].map(|net| format!("udp://127.{net}.{high}.{}", low.clamp(1, 254)));
    let domain = format!("shm://vipl{}", std::process::id());
    for [first, second] in [[&first, &second], [&domain, &domain]] {
        let out = Command::new(&program).args([first, second]).env_remove("HCA_DEVICE").output().unwrap();
        let said = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(out.status.success(), "{first}: {said:?}");
        assert_eq!(said[0], "each function, each code\n");
    }
    std::fs::remove_file(program).unwrap();
}

#[test]
fn the_header_has_the_41_functions_of_vipl_and_the_program_calls_each() {
    let names = declared();
    assert_eq!(names.len(), 41, "{names:?}");
    let program = include_str!("vipl.c");
    for name in names {
        assert!(program.contains(&format!("{name}(")), "{name}");
    }
}
