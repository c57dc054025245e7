//! `hca portals trace`: the path of messages through match lists, step by step.
//!
//! | module | contents |
//! |---|---|
//! | `scenario` | the text of a scenario |
//! | `play` | playing it on nodes of a loopback network |
//! | `told` | the output |

mod play;
mod record;
mod scenario;

use std::io::Read;
use std::path::{Path, PathBuf};

use hca_perf::Failure;
use hca_perf::interrupt::interrupted;
use thiserror::Error;

use crate::args::TraceArgs;
use crate::output::show;
use play::Stage;
use record::Record;
use scenario::{Scenario, ScenarioError};

/// Bytes of a file, at most.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The scenarios that come with the command: name, what it shows, text.
const BUILT_IN: [(&str, &str, &str); 9] = [
    (
        "exact-behind-wildcards",
        "entries are compared in the order of the list, exact or not",
        include_str!("scenarios/exact-behind-wildcards.txt"),
    ),
    (
        "unexpected",
        "a message that came before its entry, found by an append",
        include_str!("scenarios/unexpected.txt"),
    ),
    (
        "flow-control",
        "a portal that is disabled rather than losing a message",
        include_str!("scenarios/flow-control.txt"),
    ),
    ("permission", "an entry that matches and is for another user", include_str!("scenarios/permission.txt")),
    (
        "truncation",
        "messages longer than what they are for: cut off, or passed on",
        include_str!("scenarios/truncation.txt"),
    ),
    ("use-once", "an entry that one message uses up", include_str!("scenarios/use-once.txt")),
    ("source", "entries for one process, one node, or any", include_str!("scenarios/source.txt")),
    (
        "operation",
        "an entry that matches and does not allow this operation",
        include_str!("scenarios/operation.txt"),
    ),
    ("local-offset", "consecutive messages in one entry", include_str!("scenarios/local-offset.txt")),
];

/// The reason why nothing was traced.
#[derive(Debug, Error)]
pub(crate) enum TraceError {
    /// The file can't be read.
    #[error("{path}: {source}; name a scenario file, or - for standard input")]
    File {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// It is larger than a scenario is.
    #[error("{path} has more than {MAX_FILE_BYTES} bytes, which is the limit of a scenario")]
    TooLarge {
        /// The file.
        path: String,
    },
    /// There is no such scenario.
    #[error("there is no scenario `{name}`; there are: {known}")]
    Name {
        /// The requested value.
        name: String,
        /// What there is.
        known: String,
    },
    /// The text is wrong.
    #[error(transparent)]
    Scenario(ScenarioError),
}

/// How a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As all lines that expect something expect.
    AsExpected,
    /// A message ended otherwise than its line expects.
    Otherwise,
}

/// Runs the command.
///
/// # Errors
/// [`TraceError`] for wrong arguments; other errors for failures of the run.
pub(crate) fn trace(args: &TraceArgs) -> Result<Ended, Failure> {
    if args.list {
        for (name, what, _) in BUILT_IN {
            show!("{name:<24}{what}");
        }
        return Ok(Ended::AsExpected);
    }
    let mut ended = Ended::AsExpected;
    for (number, (scenario, what)) in asked(args)?.iter().enumerate() {
        if interrupted() {
            break;
        }
        if !args.json {
            let gap = if number > 0 { "\n" } else { "" };
            show!("{gap}{}{}", scenario.name, what.map(|what| format!(": {what}")).unwrap_or_default());
        }
        let all = played(scenario, number, args.json)?;
        if !args.json {
            show!("{}", record::table(&all));
        }
        if all.iter().any(Record::is_unexpected) {
            ended = Ended::Otherwise;
        }
    }
    Ok(ended)
}

/// Plays a scenario. What refuses a line is an error of the scenario; with `json` each line is printed as it is played.
fn played(scenario: &Scenario, number: usize, json: bool) -> Result<Vec<Record>, Failure> {
    let mut stage = Stage::new(scenario, number)?;
    let mut all = Vec::new();
    for statement in &scenario.statements {
        let record = stage.play(statement).map_err(|e| match e.downcast::<ScenarioError>() {
            Ok(wrong) => Failure::from(TraceError::Scenario(*wrong)),
            Err(other) => other,
        })?;
        if json {
            show!("{}", serde_json::to_string(&record).expect("a record has string keys"));
        }
        if statement.what.is_message() || !record.events.is_empty() || !json {
            all.push(record);
        }
    }
    Ok(all)
}

/// The scenarios that were asked for.
fn asked(args: &TraceArgs) -> Result<Vec<(Scenario, Option<&'static str>)>, TraceError> {
    if let Some(path) = &args.file {
        let (name, text) = read(path)?;
        return Ok(vec![(Scenario::parse(&name, &text).map_err(TraceError::Scenario)?, None)]);
    }
    let of = |(name, what, text): &(&'static str, &'static str, &'static str)| {
        Ok((Scenario::parse(name, text).map_err(TraceError::Scenario)?, Some(*what)))
    };
    if args.scenario.is_empty() {
        return BUILT_IN.iter().map(of).collect();
    }
    let find = |name: &String| {
        let known = || BUILT_IN.map(|(name, ..)| name).join(", ");
        let found = BUILT_IN.iter().find(|(known, ..)| known == name);
        found.ok_or_else(|| TraceError::Name { name: name.clone(), known: known() }).and_then(of)
    };
    args.scenario.iter().map(find).collect()
}

fn read(path: &PathBuf) -> Result<(String, String), TraceError> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".to_owned() } else { path.display().to_string() };
    let refuse = |source| TraceError::File { path: name.clone(), source };
    let mut text = String::new();
    let limit = MAX_FILE_BYTES + 1;
    let read = match is_input {
        true => std::io::stdin().lock().take(limit).read_to_string(&mut text),
        false => std::fs::File::open(path).and_then(|file| file.take(limit).read_to_string(&mut text)),
    };
    if read.map_err(refuse)? as u64 == limit {
        return Err(TraceError::TooLarge { path: name });
    }
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(text: &str) -> Vec<Record> {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1000);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        played(&Scenario::parse("test", text).unwrap(), number, false).unwrap()
    }
    fn why(record: &Record) -> Vec<(&str, &str)> {
        record.compared.iter().map(|c| (c.entry.as_str(), c.why.as_str())).collect()
    }

    #[test]
    fn every_scenario_that_comes_with_the_command_ends_as_it_expects() {
        for (number, (name, _, text)) in BUILT_IN.iter().enumerate() {
            let scenario = Scenario::parse(name, text).unwrap();
            let all = played(&scenario, number, false).unwrap();
            assert!(!all.iter().any(Record::is_unexpected), "{name}:\n{}", record::table(&all));
            let messages = || all.iter().filter_map(|record| record.outcome.as_ref());
            assert!(
                messages().all(|outcome| outcome.expected.is_some()),
                "{name} expects nothing of a message"
            );
        }
    }

    #[test]
    fn each_entry_that_was_asked_says_why_it_did_not_take_a_message() {
        let text = "portal 4\nsender b\npost bits portal=4 bits=0x17\npost from portal=4 bits=7 from=b\n\
             post short portal=4 bits=7 length=4 options=put,no-truncate\npost wild portal=4 ignore=0xff\n\
             post behind portal=4 bits=7\nput portal=4 bits=7";
        let all = play(text);
        let record = all.last().unwrap();
        let said = why(record);
        assert_eq!(said[0], ("bits", "bits differ in 0x10"));
        assert!(said[1].0 == "from" && said[1].1.starts_with("the message is from a"), "{said:?}");
        assert_eq!(said[2], ("short", "8 B do not fit, and it does not truncate"));
        assert_eq!((said[3], said.len()), (("wild", "takes it"), 4), "no entry behind it is asked");
        assert_eq!(record.outcome.as_ref().unwrap().text, "8 B at offset 0 of wild");
    }

    #[test]
    fn at_a_disabled_portal_no_entry_is_asked_until_it_is_enabled() {
        let all = play("portal 4\npost e portal=4\ndisable 4\nput portal=4\nenable 4\nput portal=4");
        assert!(why(&all[3]).is_empty());
        assert!(all[3].outcome.as_ref().unwrap().text.contains("`enable 4`"), "{:?}", all[3]);
        assert_eq!(why(&all[5]), [("e", "takes it")]);
    }

    #[test]
    fn a_line_that_a_call_refuses_is_told_by_its_number() {
        let text = "portal 4\npost e portal=4\nunlink e\nunlink e\nput portal=4";
        let said = played(&Scenario::parse("s", text).unwrap(), 2000, false).unwrap_err().to_string();
        assert!(said.starts_with("s:4: PtlMEUnlink") && said.contains("PTL_ARG_INVALID"), "{said}");
    }

    #[test]
    fn what_is_not_as_expected_is_marked() {
        let all = play("portal 4\nput portal=4 expect=ok");
        assert!(all[1].is_unexpected());
        assert!(record::table(&all).contains("NOT AS EXPECTED: ok"));
    }

    #[test]
    fn the_table_is_aligned_from_line_to_line() {
        let text = "portal 4\npost a_rather_long_name portal=4 bits=0xffff_ffff\npost e portal=4 bits=7\n\
             put portal=4 bits=7\nput portal=4 bits=7";
        let table = record::table(&play(text));
        let ends: Vec<_> = table.lines().filter_map(|line| line.find("priority")).collect();
        assert_eq!(ends.len(), 4, "{table}");
        assert!(ends.iter().all(|at| *at == ends[0]), "{table}");
        assert_eq!(table.lines().next().unwrap().find("list"), Some(ends[0]), "{table}");
    }
}
