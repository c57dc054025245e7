//! The copy of the workspace that the mutants are written into.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const RUNTIME: &str = include_str!("../runtime/lib.rs");
const RUNTIME_MANIFEST: &str =
    "[package]\nname = \"mutant-rt\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n";

/// A copy of what git knows of the workspace. Files keep their times while their text stays, so that little is built again.
pub(crate) struct Tree {
    pub(crate) path: PathBuf,
}

impl Tree {
    /// Brings the copy up to date but for the files that get mutants; `with_runtime`: the manifest of their crate.
    pub(crate) fn new<V>(
        root: &Path,
        path: PathBuf,
        with_runtime: &str,
        mutated: &BTreeMap<&str, V>,
    ) -> Result<Self, String> {
        let tree = Self { path };
        let listed = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(|e| format!("git can't be started: {e}"))?;
        let listed =
            String::from_utf8(listed.stdout).map_err(|e| format!("a file's name is not text: {e}"))?;
        let mut files = HashSet::new();
        for name in listed.split_terminator('\0') {
            // Taken away and not yet committed.
            let Ok(mut bytes) = fs::read(root.join(name)) else { continue };
            if name == with_runtime {
                bytes.extend(b"\n[dependencies.mutant-rt]\npath = \"../../mutant-rt\"\n");
            }
            if !mutated.contains_key(name) {
                tree.write(name, &bytes)?;
            }
            files.insert(tree.path.join(name));
        }
        tree.write("mutant-rt/Cargo.toml", RUNTIME_MANIFEST.as_bytes())?;
        tree.write("mutant-rt/src/lib.rs", RUNTIME.as_bytes())?;
        for kept in ["mutant-rt/Cargo.toml", "mutant-rt/src/lib.rs"] {
            files.insert(tree.path.join(kept));
        }
        remove_others(&tree.path, &files)?;
        Ok(tree)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.path.join(name);
        if fs::read(&path).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        let folder = path.parent().expect("a file of the tree");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, bytes))
            .map_err(|e| format!("{} can't be written: {e}", path.display()))
    }
}

/// Files of an earlier copy would be taken for modules and tests.
fn remove_others(folder: &Path, files: &HashSet<PathBuf>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{} can't be cleared: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            remove_others(&path, files)?;
        } else if !files.contains(&path) {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}
