//! Builds the copy; mutants that do not compile are told by the compiler's errors.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::instrument::Spot;
use crate::tree::Tree;

/// A test program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The folder of its package, where cargo runs it.
    pub(crate) folder: PathBuf,
}

/// A build's end.
pub(crate) enum Built {
    Programs(Vec<Program>),
    /// Mutants that do not compile.
    Refused(HashSet<usize>),
}

#[derive(Deserialize)]
struct Line {
    reason: String,
    message: Option<Message>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    rendered: Option<String>,
    spans: Vec<ErrorSpan>,
    #[serde(default)]
    children: Vec<Message>,
}

#[derive(Deserialize)]
struct ErrorSpan {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

#[derive(Deserialize)]
struct Expansion {
    span: ErrorSpan,
}

/// The texts' spots, by file.
pub(crate) type Spots = HashMap<String, Vec<Spot>>;

/// How it is built.
pub(crate) struct Plan {
    pub(crate) target: PathBuf,
    /// All mutants at once, whose tests run some thousand times; otherwise one.
    pub(crate) all: bool,
}

/// Runs cargo with these arguments in the copy.
pub(crate) fn build(tree: &Tree, plan: &Plan, spots: &Spots, args: &[String]) -> Result<Built, String> {
    let output = Command::new("cargo")
        .current_dir(&tree.path)
        .args(args)
        .args(["--offline", "--message-format=json"])
        .env("CARGO_TARGET_DIR", &plan.target)
        // Mutants are odd, and many. One by itself may have the compiler evaluate without end, which a lint denies.
        .env("RUSTFLAGS", if plan.all { "--cap-lints=allow" } else { "" })
        .env("RUSTC_BOOTSTRAP", "mutant_rt")
        // Overflow stays checked.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", if plan.all { "1" } else { "0" })
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_INCREMENTAL", "1")
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| format!("cargo can't be started: {e}"))?;
    let mut programs = BTreeMap::new();
    let mut refused = HashSet::new();
    let mut others = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else { continue };
        if let (Some(path), Some(manifest)) = (line.executable, &line.manifest_path)
            && line.reason == "compiler-artifact"
        {
            let folder = manifest.parent().expect("a manifest's folder").to_owned();
            programs.insert(path.clone(), Program { path, folder });
        }
        let Some(error) = line.message.filter(|message| message.level == "error") else { continue };
        match at_fault(&error, spots) {
            Some(mutants) => refused.extend(mutants),
            None if error.spans.is_empty() => {}
            None => others.push(error.rendered.unwrap_or_default()),
        }
    }
    if output.status.success() {
        return Ok(Built::Programs(programs.into_values().collect()));
    }
    if refused.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the mutants do not build:\n{}\n{said}", others.join("\n")));
    }
    Ok(Built::Refused(refused))
}

/// The mutants in the smallest spot that an error points to.
fn at_fault<'a>(error: &Message, spots: &'a Spots) -> Option<&'a [usize]> {
    let (first, rest): (Vec<_>, Vec<_>) = error.spans.iter().partition(|span| span.is_primary);
    let further = error.children.iter().flat_map(|child| &child.spans);
    first.into_iter().chain(rest).chain(further).find_map(|span| at(span, spots))
}

fn at<'a>(span: &ErrorSpan, spots: &'a Spots) -> Option<&'a [usize]> {
    let holds = |spot: &&Spot| spot.range.start <= span.byte_start && span.byte_end <= spot.range.end;
    let here = spots.get(&span.file_name).and_then(|spots| {
        let held = spots.iter().filter(holds).min_by_key(|spot| spot.range.len());
        held.map(|spot| spot.mutants.as_slice())
    });
    here.or_else(|| span.expansion.as_ref().and_then(|expansion| at(&expansion.span, spots)))
}
