//! Tries the mutants that cargo-mutants names, all from one build.
//!
//! cargo-mutants builds each mutant by itself, which takes most of its time. This tool writes all mutants of a crate into
//! a copy of it, builds the copy once, and chooses a mutant by the environment when a test program starts.

mod build;
mod instrument;
mod list;
mod survivors;
mod tree;
mod trial;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use survivors::{Judged, Survivors, known_as};
use work::Work;

/// Tries the mutants of what the list of survivors says is judged, and compares those that no test notices with the list.
#[derive(Parser)]
struct Args {
    /// The list of survivors.
    #[arg(long, default_value = ".ci/survivors")]
    list: PathBuf,
    /// Takes those that are noticed now from the list.
    #[arg(long)]
    update: bool,
    /// Only this package of those that are judged; may be repeated.
    #[arg(long)]
    package: Vec<String>,
    /// Only files that match, as cargo-mutants matches them; may be repeated.
    #[arg(long)]
    file: Vec<String>,
    /// Only mutants with this in their name, as the list writes it; may be repeated.
    #[arg(long)]
    name: Vec<String>,
    /// Builds none alone: mutants of what the compiler evaluates that no test notices at run time count as missed.
    #[arg(long)]
    quick: bool,
    /// Test programs that run at a time.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, |n| n.get()))]
    jobs: usize,
    /// The folder for the copy of the workspace, its build and the lists of outcomes.
    #[arg(long, default_value = "target/mutants")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match judge(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Whether no mutant survives that is not in the list.
fn judge(args: &Args) -> Result<bool, String> {
    let root = std::env::current_dir().map_err(|e| format!("the current folder is unknown: {e}"))?;
    let mut survivors = Survivors::read(&args.list)?;
    let chosen = |judged: &&Judged| args.package.is_empty() || args.package.contains(&judged.package);
    let judged: Vec<Judged> = survivors.judged.iter().filter(chosen).cloned().collect();
    if judged.is_empty() {
        return Err(format!("{} judges no such package", args.list.display()));
    }
    let mut good = true;
    for judged in &judged {
        let files = if args.file.is_empty() { &judged.files } else { &args.file };
        let mut all = list::of_files(&root, &judged.package, files)?;
        all.retain(|mutant| args.name.is_empty() || has_any(&known_as(&mutant.name), &args.name));
        if all.is_empty() {
            continue;
        }
        let missed =
            Work::new(&root, &root.join(&args.output), judged, &all, args.jobs)?.judge(args.quick)?;
        let (new, gone) = survivors.compare(&all, &missed, args.name.is_empty());
        if !gone.is_empty() {
            println!(
                "noticed now, to be taken from {} (--update):\n{}",
                args.list.display(),
                gone.join("\n")
            );
        }
        if !new.is_empty() {
            println!("survive, and are not in {}:\n{}", args.list.display(), new.join("\n"));
            good = false;
        }
        if args.update && !gone.is_empty() {
            survivors.remove(&gone);
            survivors.write(&args.list)?;
        }
    }
    Ok(good)
}

fn has_any(name: &str, parts: &[String]) -> bool {
    parts.iter().any(|part| name.contains(part.as_str()))
}

/// A bar, for those who watch.
fn bar(what: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg} {eta}").expect("a template");
    ProgressBar::new(0).with_style(style).with_prefix(what.to_owned())
}
