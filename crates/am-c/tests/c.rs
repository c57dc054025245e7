//! A program in C against the header and the shared object.

use std::path::Path;
use std::process::Command;

#[test]
fn a_program_in_c_gets_what_each_function_promises_and_each_return_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The shared object lies beside the tests, where cargo builds it.
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("am-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args([
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-cast-function-type",
        "-pthread",
        "-o",
    ]);
    cc.arg(&program).arg(folder.join("tests/am.c")).arg("-I").arg(folder.join("include"));
    cc.arg("-L").arg(&libraries).arg("-lam").arg(format!("-Wl,-rpath,{}", libraries.display()));
    assert!(cc.status().expect("there is a C compiler").success(), "{cc:?}");
    for (way, way_below) in [("0", "verbs"), ("1", "vis")] {
        let device = format!("shm://libam-{way_below}-{}", std::process::id());
        let out = Command::new(&program).args([&device, way]).env_remove("HCA_DEVICE").output().unwrap();
        let said = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(out.status.success(), "over {way_below}: {said:?}");
        assert_eq!(said[0], "each function, each code\n");
    }
    std::fs::remove_file(program).unwrap();
}

#[test]
fn the_program_calls_each_function_of_the_header() {
    let (header, program) = (include_str!("../include/am.h"), include_str!("am.c"));
    let declared =
        header.lines().filter(|line| line.starts_with("int AM_") || line.starts_with("size_t AM_"));
    let names: Vec<_> = declared.map(|line| line.split(['(', ' ']).nth(1).unwrap()).collect();
    assert_eq!(names.len(), 43, "{names:?}");
    for name in names {
        let numbered = (0..=16).any(|n| program.contains(&format!("{name}{n}(")));
        assert!(numbered || program.contains(&format!("{name}(")), "{name}");
    }
}
