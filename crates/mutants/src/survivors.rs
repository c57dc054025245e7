//! The list of mutants that no test notices.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::list::Mutant;

/// The list: what is judged, and the survivors of it among remarks.
pub(crate) struct Survivors {
    lines: Vec<String>,
    pub(crate) judged: Vec<Judged>,
}

/// A line `#judged PACKAGE FILES... : ARGUMENTS...`: files of a package, and what `cargo test` runs for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) package: String,
    pub(crate) files: Vec<String>,
    pub(crate) tests: Vec<String>,
}

impl Judged {
    fn parse(line: &str) -> Option<Self> {
        let (what, tests) = line.split_once(" : ").unwrap_or((line, ""));
        let mut what = what.split_whitespace().map(str::to_owned);
        let package = what.next()?;
        let files: Vec<_> = what.collect();
        let mut tests: Vec<_> = tests.split_whitespace().map(str::to_owned).collect();
        if tests.is_empty() {
            tests = vec!["--package".to_owned(), package.clone()];
        }
        (!files.is_empty()).then_some(Self { package, files, tests })
    }
    /// The package's manifest: its files are `crates/NAME/...`.
    pub(crate) fn manifest(&self) -> String {
        let folder: Vec<_> = self.files[0].split('/').take(2).collect();
        format!("{}/Cargo.toml", folder.join("/"))
    }
}

impl Survivors {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text =
            std::fs::read_to_string(path).map_err(|e| format!("{} can't be read: {e}", path.display()))?;
        Self::parse(&text)
    }
    fn parse(text: &str) -> Result<Self, String> {
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        let judged = lines.iter().filter_map(|line| line.strip_prefix("#judged "));
        let judged =
            judged.map(|line| Judged::parse(line).ok_or(format!("no package and files: #judged {line}")));
        Ok(Self { judged: judged.collect::<Result<_, _>>()?, lines })
    }
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        std::fs::write(path, self.lines.join("\n") + "\n")
            .map_err(|e| format!("{} can't be written: {e}", path.display()))
    }

    /// Which of those that were missed the list lacks, and which of its lines about what was tried are gone. The same
    /// change in several places of a function is as many lines. `whole_files`: all mutants of their files were tried, so
    /// that a line of which none is left is gone, too.
    pub(crate) fn compare(
        &self,
        tried: &[Mutant],
        missed: &[usize],
        whole_files: bool,
    ) -> (Vec<String>, Vec<String>) {
        let mut listed = HashMap::<&str, isize>::new();
        for line in self.lines.iter().filter(|line| is_mutant(line)) {
            *listed.entry(line).or_default() += 1;
        }
        let mut new = Vec::new();
        for &mutant in missed {
            let name = known_as(&tried[mutant].name);
            match listed.get_mut(name.as_str()) {
                Some(count) if *count > 0 => *count -= 1,
                _ => new.push(tried[mutant].name.clone()),
            }
        }
        let about = |known: &str| match whole_files {
            true => known.split(": ").next().unwrap_or("").to_owned(),
            false => known.to_owned(),
        };
        let tried: HashSet<_> = tried.iter().map(|mutant| about(&known_as(&mutant.name))).collect();
        let mut gone: Vec<_> = listed
            .into_iter()
            .filter(|(line, _)| tried.contains(&about(line)))
            .flat_map(|(line, count)| std::iter::repeat_n(line.to_owned(), count.max(0) as usize))
            .collect();
        gone.sort();
        (new, gone)
    }

    /// Takes lines away, each of them once.
    pub(crate) fn remove(&mut self, gone: &[String]) {
        for line in gone {
            if let Some(at) = self.lines.iter().rposition(|listed| listed == line) {
                self.lines.remove(at);
            }
        }
    }
}

fn is_mutant(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}

/// A mutant's name without line and column, which move with every change.
pub(crate) fn known_as(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    let (file, _line, _column) = (parts.next().unwrap_or(""), parts.next(), parts.next());
    format!("{file}:{}", parts.next().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants(names: &[&str]) -> Vec<Mutant> {
        let mutant = |name: &&str| {
            let file = name.split(':').next();
            let position = serde_json::json!({"line": 1, "column": 1});
            let all = serde_json::json!({"name": name, "file": file, "function": null, "replacement": "",
                "span": {"start": position, "end": position}, "genre": "FnValue"});
            serde_json::from_value(all).expect("a mutant")
        };
        names.iter().map(mutant).collect()
    }

    #[test]
    fn a_survivor_is_known_as_often_as_the_list_has_it() {
        let list = "#judged p crates/p/src/** : --package p --lib\n\n# Why.\na.rs: replace + with - in f\n\
                    a.rs: replace == with != in g\nother.rs: replace + with - in f\n";
        let mut survivors = Survivors::parse(list).expect("a list");
        assert_eq!(survivors.judged[0].tests, ["--package", "p", "--lib"]);
        assert_eq!(survivors.judged[0].manifest(), "crates/p/Cargo.toml");
        let tried =
            mutants(&["a.rs:3:4: replace + with - in f", "a.rs:5:6: replace + with - in f", "a.rs:7:8: x"]);
        let (new, gone) = survivors.compare(&tried, &[0, 1], true);
        assert_eq!(new, ["a.rs:5:6: replace + with - in f"]);
        // What was not tried is not gone.
        assert_eq!(gone, ["a.rs: replace == with != in g"]);
        assert!(survivors.compare(&tried, &[0, 1], false).1.is_empty(), "its name was not tried");
        survivors.remove(&gone);
        assert!(!survivors.lines.contains(&gone[0]));
        assert_eq!(survivors.lines.len(), list.lines().count() - 1);
    }

    #[test]
    fn a_name_keeps_its_colons() {
        assert_eq!(known_as("a.rs:1:2: replace A::b -> c::D with e"), "a.rs: replace A::b -> c::D with e");
    }
}
