//! Tests that the command parses all command lines and device names in documents and help texts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::Cli;

/// The documents of the project, with those of its crates.
fn documents() -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
            let (path, name) = (entry.path(), entry.file_name());
            let hidden = name.as_encoded_bytes().starts_with(b".");
            if path.is_dir() && !hidden && name != "target" {
                below(&path, found);
            } else if path.extension() == Some(OsStr::new("md")) && name != "CHANGELOG.md" {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    below(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), &mut found);
    found
}

/// The arguments of a call of the command in a line of a block, as `hca` or as `cargo run`; `None` for another line.
fn call(line: &str) -> Option<&str> {
    let line = line.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
    // The rest of the line is a comment, or the shell's.
    let line =
        [" #", " <", " >", " |", " &"].iter().fold(line, |line, end| line.split(end).next().unwrap_or(line));
    let rest = match line.strip_prefix("cargo run") {
        Some(cargo) => {
            let (options, rest) = cargo.split_once(" -- ")?;
            let is_another = ["-p ", "--bin ", "--example "].iter().any(|option| options.contains(option));
            (!is_another || options.ends_with("-p hca-cli")).then_some(rest)?
        }
        None => ["hca ", "./hca ", "target/release/hca "].iter().find_map(|name| line.strip_prefix(name))?,
    };
    // Others are pictures, entries of Cargo.toml and placeholders.
    rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-').then_some(rest)
}

/// The error of a call. `is_whole` marks a line of a block; a call within prose may lack arguments, and hold words such
/// as FILE.
fn fault(call: &str, is_whole: bool) -> Option<String> {
    let words = call.split_whitespace().map(|word| word.trim_matches('\''));
    let placeholders = call.split(|c: char| !c.is_ascii_alphabetic());
    let has_placeholder =
        placeholders.filter(|word| word.len() > 1).any(|word| word.chars().all(|c| c.is_ascii_uppercase()));
    let error = Cli::try_parse_from(std::iter::once("hca").chain(words)).err()?;
    let value = error.get(ContextKind::InvalidValue);
    let lacks_a_value = matches!(value, Some(ContextValue::String(value)) if value.is_empty());
    let is_fine = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand => !is_whole,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !is_whole,
        ErrorKind::InvalidValue if lacks_a_value => !is_whole,
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => has_placeholder,
        _ => false,
    };
    (!is_fine).then(|| error.to_string())
}

/// All calls in a text, and whether they are whole lines of a block.
fn calls(text: &str) -> Vec<(&str, bool)> {
    let mut found = Vec::new();
    let mut in_fence = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_fence = !in_fence;
        } else if in_fence || line.starts_with("    ") {
            found.extend(call(line).map(|call| (call, true)));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).filter_map(call).map(|call| (call, false)));
        }
    }
    // A call with a placeholder is not parsed.
    found.retain(|(call, _)| !call.contains(['…', '[']) && !call.contains("..."));
    found
}

#[test]
fn every_call_of_the_command_in_a_document_is_understood() {
    let (mut faults, mut count) = (Vec::new(), 0);
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for (call, is_whole) in calls(&text) {
            count += 1;
            faults.extend(
                fault(call, is_whole).map(|why| format!("{}: hca {call}: {why}", document.display())),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 60, "only {count} calls were found");
}

/// Names of devices in a text, without kinds alone (`shm://`) and those that hold placeholders.
fn devices(text: &str) -> impl Iterator<Item = &str> {
    let schemes = ["auto", "udp", "uring", "shm", "raw", "loopback", "vfio", "vfio-user"];
    let words = text.split(|c: char| c.is_whitespace() || "`'\"()<>|".contains(c));
    let words =
        words.map(|word| word.trim_start_matches("HCA_DEVICE=").trim_end_matches(['.', ',', ';', ':']));
    words.filter(move |word| {
        let (scheme, rest) = word.split_once("://").unwrap_or_default();
        let has_placeholder = |part: &str| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase());
        schemes.contains(&scheme)
            && !rest.is_empty()
            && !rest.contains(['…', '[', '$', '{'])
            && !rest.split(|c: char| !c.is_ascii_alphabetic()).any(has_placeholder)
    })
}

#[test]
fn every_name_of_a_device_in_a_document_is_understood() {
    let (mut faults, mut count) = (Vec::new(), 0);
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for device in devices(&text) {
            count += 1;
            let error = device.parse::<hca::DeviceUrl>().err();
            faults.extend(error.map(|why| format!("{}: {device}: {why}", document.display())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 30, "only {count} names were found");
}

#[test]
fn every_example_of_a_help_is_understood() {
    fn helps(mut command: clap::Command, found: &mut Vec<String>) {
        command = command.term_width(10_000);
        found.push(command.render_long_help().to_string());
        command.get_subcommands().cloned().for_each(|command| helps(command, found));
    }
    let mut found = Vec::new();
    helps(Cli::command(), &mut found);
    let mut count = 0;
    for help in &found {
        let examples = help.split_once("Examples:").map_or("", |(_, rest)| rest);
        for example in examples.lines().take_while(|line| !line.starts_with("Devices:")).filter_map(call) {
            count += 1;
            assert_eq!(fault(example.split("   ").next().unwrap(), true), None, "hca {example}");
        }
    }
    assert!(count > 15, "only {count} examples were found");
}

#[test]
fn a_call_that_is_wrong_is_noticed() {
    assert!(fault("perf --fabrics shm", false).is_some());
    assert!(fault("perff", false).is_some());
    assert!(fault("run ./program", true).is_some() && fault("run", false).is_none());
    assert!(fault("perf --size 4q", false).is_some() && fault("perf --capture FILE", true).is_none());
    assert_eq!(call("cargo run --release -- perf --json  # rows"), Some("perf --json "));
    assert_eq!(call("cargo run -p hca-sim -- --seed 7"), None);
}
