//! Programs that must not compile.

#[test]
#[cfg_attr(miri, ignore = "it runs the compiler")]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
