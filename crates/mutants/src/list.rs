//! The mutants, as cargo-mutants names them.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// What cargo-mutants tells of a mutant.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mutant {
    /// `file:line:column: what is changed in which function`.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) function: Option<Function>,
    pub(crate) span: Span,
    pub(crate) replacement: String,
    pub(crate) genre: Genre,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Function {
    pub(crate) return_type: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Span {
    start: Position,
    end: Position,
}

/// A place in a file; line and column count from 1, columns in characters.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
    #[serde(other)]
    Other,
}

/// All mutants of the files that match.
pub(crate) fn of_files(root: &Path, package: &str, globs: &[String]) -> Result<Vec<Mutant>, String> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["mutants", "--list", "--json", "--no-config", "--package", package]);
    for glob in globs {
        command.args(["--file", glob]);
    }
    let said = command.output().map_err(|e| format!("cargo mutants can't be started: {e}"))?;
    if !said.status.success() {
        let error = String::from_utf8_lossy(&said.stderr);
        return Err(format!(
            "cargo mutants --list: {error}\nif it is missing: cargo install --locked cargo-mutants"
        ));
    }
    serde_json::from_slice(&said.stdout)
        .map_err(|e| format!("what cargo mutants --list says is not understood: {e}"))
}

/// Where the lines of a file begin.
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let after = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(after).collect() }
    }
    /// The byte at a place.
    pub(crate) fn offset(&self, at: Position) -> usize {
        let start = self.starts[at.line - 1];
        let within = self.text[start..].char_indices().nth(at.column - 1);
        within.map_or(self.text.len(), |(bytes, _)| start + bytes)
    }
    pub(crate) fn range(&self, span: Span) -> Range<usize> {
        self.offset(span.start)..self.offset(span.end)
    }
}
