//! The committed inputs of the fuzz targets.

/// The inputs of a fuzz target by the names of their files, in order.
///
/// # Panics
/// The target has fewer than `at_least` inputs, or they cannot be read.
pub fn of(target: &str, at_least: usize) -> Vec<(String, Vec<u8>)> {
    let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let input = |file: std::fs::DirEntry| {
        (file.file_name().to_string_lossy().into_owned(), std::fs::read(file.path()).unwrap())
    };
    let mut inputs: Vec<_> = files.map(|file| input(file.unwrap())).collect();
    inputs.sort();
    assert!(inputs.len() >= at_least, "{} inputs in {folder}, {at_least} at least", inputs.len());
    inputs
}

/// Gives each of them to the target, and prints the name of each before: of one that fails it is the last.
///
/// # Panics
/// As [`of`], or as the target.
pub fn run(target: &str, at_least: usize, mut each: impl FnMut(&[u8])) {
    for (name, input) in of(target, at_least) {
        println!("{name}");
        each(&input);
    }
}
