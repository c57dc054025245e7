//! The README's first program is the example `hello`, to the letter.

#[test]
fn the_readme_shows_the_example_that_runs() {
    let readme = include_str!("../../../README.md");
    let example = include_str!("../examples/hello.rs");
    let shown = readme
        .split_once("```rust\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .expect("a block of Rust")
        .0;
    assert_eq!(shown, example, "copy crates/hca/examples/hello.rs into README.md");
}
