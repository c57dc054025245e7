//! Instruction counts, as valgrind's callgrind sees them, and the record that they are held against.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use hca_perf::Failure;

/// Every function that is counted begins with this.
pub const MARK: &str = "counted_";

/// Counted instructions for each case.
pub type Counts = BTreeMap<String, u64>;

/// A counted case: a program that does so many rounds.
pub struct Counted<'a> {
    /// The program, and its arguments.
    pub command: &'a [&'a str],
    /// A round's instructions are a part of all.
    pub rounds: u64,
    /// Only functions with this in their mangled names are counted, without those that they call.
    pub of: Option<&'a str>,
}

/// Counts the instructions of one case: runs its program under callgrind, collecting inside of the functions whose names
/// begin with [`MARK`] only, and divides by the rounds that it does.
///
/// # Errors
/// valgrind is missing, or the program failed under it.
pub fn count(case: &str, counted: &Counted<'_>, dir: &Path) -> Result<u64, Failure> {
    // Another process may count the same case.
    let out: PathBuf = dir.join(format!("callgrind.{case}.{}", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    // Fair to its threads: without that the one that spins may keep the others from running.
    valgrind.args([
        "--tool=callgrind",
        "--collect-atstart=no",
        "--fair-sched=try",
        "-q",
        "--compress-strings=no",
    ]);
    if counted.of.is_some() {
        // A C program's names are not mangled.
        valgrind.args(["--demangle=no", &format!("--toggle-collect={MARK}*")]);
    } else {
        valgrind.arg(format!("--toggle-collect=*::{MARK}*"));
    }
    let run = valgrind
        .arg(format!("--callgrind-out-file={}", out.display()))
        .args(counted.command)
        .output()
        .map_err(|e| format!("valgrind can't be started: {e}; install it, as by apt-get install valgrind"))?;
    if !run.status.success() {
        let text = String::from_utf8_lossy(&run.stderr);
        return Err(format!("case {case} failed under valgrind: {}: {text}", run.status).into());
    }
    let profile = std::fs::read_to_string(&out)?;
    std::fs::remove_file(&out)?;
    let total = match counted.of {
        Some(name) => Some(total_of(&profile, name)),
        None => total(&profile),
    };
    let total = total.ok_or_else(|| format!("case {case}: callgrind wrote no total"))?;
    if total == 0 {
        return Err(format!("case {case}: no function named {MARK}… was entered").into());
    }
    Ok(total / counted.rounds)
}

/// The instructions of functions with `name` in theirs: the lines behind a function's name, but for those that say what a
/// call took.
fn total_of(profile: &str, name: &str) -> u64 {
    let (mut sum, mut is_of, mut is_call) = (0, false, false);
    for line in profile.lines() {
        if let Some(function) = line.strip_prefix("fn=") {
            is_of = function.contains(name);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok());
            sum += cost.filter(|_| is_of && !is_call).unwrap_or(0);
            is_call = false;
        }
    }
    sum
}

/// The total of a profile: the last line that begins with `summary:` or `totals:`.
fn total(profile: &str) -> Option<u64> {
    let line =
        profile.lines().rev().find_map(|l| l.strip_prefix("totals:").or(l.strip_prefix("summary:")))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How a count stands to its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the tolerance.
    Same,
    /// Fewer: record it.
    Better,
    /// More.
    Worse,
    /// Not recorded yet.
    New,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Same => "",
            Self::Better => "better: record it",
            Self::Worse => "WORSE",
            Self::New => "new: record it",
        })
    }
}

/// Reads a record: a line `case = count` each, `#` begins a comment.
///
/// # Errors
/// A line is neither.
pub fn parse(text: &str) -> Result<Counts, Failure> {
    let lines = text.lines().map(|l| l.split('#').next().unwrap_or_default().trim());
    let parsed = lines.filter(|l| !l.is_empty()).map(|line| {
        let (name, count) = line.split_once('=').ok_or_else(|| format!("`{line}` is not case = count"))?;
        let count = count.trim().parse().map_err(|_| format!("`{line}` has no whole number behind the ="))?;
        Ok((name.trim().to_owned(), count))
    });
    parsed.collect()
}

/// Writes a record.
pub fn render(counts: &Counts) -> String {
    let mut text = String::from(
        "# Instructions a round, as callgrind counts them; rewritten by `instructions --update`.\n",
    );
    for (name, count) in counts {
        text += &format!("{name} = {count}\n");
    }
    text
}

/// Holds a count against its record, with a tolerance as a part of it (0.03: 3 %).
pub fn judge(recorded: Option<u64>, counted: u64, tolerance: f64) -> Verdict {
    let Some(recorded) = recorded else { return Verdict::New };
    let room = recorded as f64 * tolerance;
    match counted as f64 - recorded as f64 {
        more if more > room => Verdict::Worse,
        less if less < -room => Verdict::Better,
        _ => Verdict::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_tolerance_is_worse_and_fewer_is_better() {
        assert_eq!(judge(Some(1000), 1030, 0.03), Verdict::Same);
        assert_eq!(judge(Some(1000), 1031, 0.03), Verdict::Worse);
        assert_eq!(judge(Some(1000), 969, 0.03), Verdict::Better);
        assert_eq!(judge(None, 5, 0.03), Verdict::New);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let counts = Counts::from([("a".to_owned(), 7), ("b".to_owned(), 12_345)]);
        assert_eq!(parse(&render(&counts)).unwrap(), counts);
        assert!(parse("a = x").unwrap_err().to_string().contains("a = x"));
        assert!(parse("a").unwrap_err().to_string().contains("case = count"));
    }

    #[test]
    fn the_total_of_a_profile_is_found() {
        assert_eq!(total("version: 1\nsummary: 7\n\nfn=(1)\ntotals: 4711\n"), Some(4711));
        assert_eq!(total("version: 1\n"), None);
    }

    #[test]
    fn calls_are_not_of_the_function_that_makes_them() {
        let profile = "fn=a_post\n7 3\n+1 2\ncfn=device\ncalls=1 9\n* 50\nfn=device\n9 50\nfn=b_post\n4 1\ntotals: 56\n";
        assert_eq!((total_of(profile, "post"), total_of(profile, "device")), (6, 50));
    }
}
