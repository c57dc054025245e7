//! One package: builds its mutants and tries them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crate::build::{Built, Plan, Program, Spots, build};
use crate::instrument::{Number, instrument, replaced};
use crate::list::Mutant;
use crate::survivors::Judged;
use crate::tree::Tree;
use crate::trial::{HASTE, Outcome, PATIENCE, Trials, by_time, run_whole};

/// The mutants of one package.
pub(crate) struct Work<'a> {
    judged: &'a Judged,
    all: &'a [Mutant],
    /// Of the files with mutants, the text without them.
    texts: BTreeMap<&'a str, String>,
    tree: Tree,
    target: PathBuf,
    /// The folder for the lists of outcomes.
    lists: PathBuf,
    /// What became of each mutant, as it is found.
    outcomes: File,
    jobs: usize,
    begun: Instant,
}

/// What was built.
struct Ready {
    programs: Vec<Program>,
    numbers: Vec<Number>,
    /// Mutants that are tried alone in any case.
    left: Vec<usize>,
    /// Mutants that are tried alone if no test notices them at run time.
    constant: HashSet<usize>,
    unviable: HashSet<usize>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(
        root: &Path,
        output: &Path,
        judged: &'a Judged,
        all: &'a [Mutant],
        jobs: usize,
    ) -> Result<Self, String> {
        let begun = Instant::now();
        let lists = output.join(&judged.package);
        fs::create_dir_all(&lists).map_err(|e| format!("{} can't be made: {e}", lists.display()))?;
        let path = lists.join("outcomes");
        let outcomes = File::create(&path).map_err(|e| format!("{} can't be made: {e}", path.display()))?;
        let mut texts = BTreeMap::new();
        for mutant in all {
            if !texts.contains_key(mutant.file.as_str()) {
                let text = fs::read_to_string(root.join(&mutant.file));
                texts.insert(
                    mutant.file.as_str(),
                    text.map_err(|e| format!("{} can't be read: {e}", mutant.file))?,
                );
            }
        }
        let tree = Tree::new(root, output.join("tree"), &judged.manifest(), &texts)?;
        Ok(Self { judged, all, texts, tree, target: output.join("build"), lists, outcomes, jobs, begun })
    }

    /// The mutants that no test notices, by their places in the list of all.
    pub(crate) fn judge(&self, quick: bool) -> Result<Vec<usize>, String> {
        let Ready { programs, numbers, left, constant, unviable } = self.build_all()?;
        println!(
            "{}: {} mutants, built in {} s",
            self.judged.package,
            self.all.len(),
            self.begun.elapsed().as_secs()
        );
        let bar = crate::bar("tests, without mutants");
        let progress = |done, of| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        };
        let trials = Trials::new(programs, numbers.len(), &self.lists, self.jobs, &progress)?;
        bar.finish_and_clear();
        let mut outcomes = self.run_all(&trials, &numbers);
        outcomes.extend(unviable.into_iter().map(|mutant| (mutant, Outcome::Unviable)));
        let alone: Vec<usize> = outcomes
            .iter()
            .filter(|(mutant, o)| {
                constant.contains(mutant) && matches!(o, Outcome::Missed | Outcome::Unreached)
            })
            .map(|(mutant, _)| *mutant)
            .chain(left)
            .collect();
        if quick {
            for mutant in &alone {
                outcomes.entry(*mutant).or_insert(Outcome::Missed);
            }
        } else {
            self.all_alone(&alone, &mut outcomes)?;
        }
        self.tell(&outcomes, alone.len(), trials.tests.len())
    }

    /// Builds until all mutants that are left compile.
    fn build_all(&self) -> Result<Ready, String> {
        let mut by_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
        for (index, mutant) in self.all.iter().enumerate() {
            by_file.entry(&mutant.file).or_default().push((index, mutant));
        }
        let check = ["check", "--lib", "--package", &self.judged.package].map(str::to_owned).to_vec();
        let tests = ["test", "--no-run"].map(str::to_owned).into_iter();
        let tests = tests.chain(self.judged.tests.iter().cloned()).collect();
        let mut steps = [check, tests].into_iter().peekable();
        let plan = Plan { target: self.target.clone(), all: true };
        let mut unviable = self.refused();
        loop {
            let (mut spots, mut numbers, mut next) = (Spots::new(), Vec::new(), 0);
            let (mut left, mut constant) = (Vec::new(), HashSet::new());
            for (file, mutants) in &by_file {
                let written = instrument(&self.texts[file], mutants, &unviable, &mut next);
                let written = written.map_err(|e| format!("{file} is not understood: {e}"))?;
                self.tree.write(file, written.text.as_bytes())?;
                spots.insert((*file).to_owned(), written.spots);
                numbers.extend(written.numbers);
                left.extend(written.left);
                unviable.extend(written.unviable);
                constant.extend(written.constant);
            }
            loop {
                let step = steps.peek().expect("building the tests is the last step");
                match build(&self.tree, &plan, &spots, step)? {
                    Built::Refused(mutants) => {
                        unviable.extend(mutants);
                        break;
                    }
                    Built::Programs(programs) => {
                        steps.next();
                        if steps.peek().is_none() {
                            self.note_refused(&unviable)?;
                            return Ok(Ready { programs, numbers, left, constant, unviable });
                        }
                    }
                }
            }
        }
    }

    /// Mutants that did not compile the last time, if all that they are of is the same.
    fn refused(&self) -> HashSet<usize> {
        let noted = fs::read_to_string(self.lists.join("refused")).unwrap_or_default();
        let mut lines = noted.lines();
        if lines.next() != Some(self.fingerprint().as_str()) {
            return HashSet::new();
        }
        lines.filter_map(|line| line.parse().ok()).collect()
    }
    fn note_refused(&self, unviable: &HashSet<usize>) -> Result<(), String> {
        let lines: String = unviable.iter().map(|mutant| format!("{mutant}\n")).collect();
        let path = self.lists.join("refused");
        let text = format!("{}\n{lines}", self.fingerprint());
        fs::write(&path, text).map_err(|e| format!("{} can't be written: {e}", path.display()))
    }
    /// Of the texts and their mutants.
    fn fingerprint(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.texts.hash(&mut hasher);
        self.all.iter().for_each(|mutant| mutant.name.hash(&mut hasher));
        format!("{:016x}", hasher.finish())
    }

    /// Writes what became of a mutant behind the others, so that a run which is ended early has told what it found.
    fn note(&self, mutant: usize, outcome: Outcome) {
        let line = format!("{outcome:?}\t{}\n", self.all[mutant].name);
        if let Err(e) = (&self.outcomes).write_all(line.as_bytes()) {
            eprintln!("the outcomes can't be written: {e}");
        }
    }

    /// Tries all; those that took too long once more, alone.
    fn run_all(&self, trials: &Trials, numbers: &[Number]) -> HashMap<usize, Outcome> {
        let bar = crate::bar("mutants");
        bar.set_length(numbers.len() as u64);
        let (next, missed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let outcomes = Mutex::new(HashMap::new());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while let Some(number) = numbers.get(next.fetch_add(1, Relaxed)) {
                        let outcome = trials.run(number.number, number.place, HASTE);
                        self.note(number.mutant, outcome);
                        outcomes.lock().expect("no panics").insert(number.mutant, outcome);
                        if !matches!(outcome, Outcome::Caught | Outcome::CaughtByTime) {
                            bar.set_message(format!("{} missed", missed.fetch_add(1, Relaxed) + 1));
                        }
                        bar.inc(1);
                    }
                });
            }
        });
        bar.finish_and_clear();
        let mut outcomes = outcomes.into_inner().expect("no panics");
        for number in numbers {
            if outcomes[&number.mutant] == Outcome::TooLong {
                let outcome = by_time(trials.run(number.number, number.place, PATIENCE));
                self.note(number.mutant, outcome);
                outcomes.insert(number.mutant, outcome);
            }
        }
        outcomes
    }

    /// Builds and tries these one by one, as cargo-mutants does.
    fn all_alone(&self, alone: &[usize], outcomes: &mut HashMap<usize, Outcome>) -> Result<(), String> {
        if alone.is_empty() {
            return Ok(());
        }
        let bar = crate::bar("mutants alone");
        bar.set_length(alone.len() as u64);
        for (file, text) in &self.texts {
            self.tree.write(file, text.as_bytes())?;
        }
        let plan = Plan { target: self.target.join("alone"), all: false };
        let args = ["test", "--no-run", "--package", &self.judged.package].map(str::to_owned);
        for &mutant in alone {
            let Mutant { file, .. } = &self.all[mutant];
            let text = &self.texts[file.as_str()];
            self.tree.write(file, replaced(text, &self.all[mutant]).as_bytes())?;
            let outcome = match build(&self.tree, &plan, &Spots::new(), &args) {
                Ok(Built::Programs(programs)) => run_whole(&programs),
                Ok(Built::Refused(_)) | Err(_) => Outcome::Unviable,
            };
            self.tree.write(file, text.as_bytes())?;
            self.note(mutant, outcome);
            outcomes.insert(mutant, outcome);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Writes the lists of outcomes and says how many there are.
    fn tell(
        &self,
        outcomes: &HashMap<usize, Outcome>,
        alone: usize,
        tests: usize,
    ) -> Result<Vec<usize>, String> {
        let list = |name: &str, which: &[Outcome]| {
            let is_one = |mutant: &usize| outcomes.get(mutant).is_some_and(|outcome| which.contains(outcome));
            let found: Vec<usize> = (0..self.all.len()).filter(is_one).collect();
            let text: String = found.iter().map(|&mutant| format!("{}\n", self.all[mutant].name)).collect();
            let path = self.lists.join(name);
            fs::write(&path, text).map_err(|e| format!("{} can't be written: {e}", path.display()))?;
            Ok::<_, String>(found)
        };
        let caught = list("caught.txt", &[Outcome::Caught])?;
        let by_time = list("timeout.txt", &[Outcome::CaughtByTime])?;
        let unviable = list("unviable.txt", &[Outcome::Unviable])?;
        let unreached = list("unreached.txt", &[Outcome::Unreached])?;
        let missed = list("missed.txt", &[Outcome::Missed, Outcome::Unreached])?;
        println!(
            "{}: {} do not compile; {} caught, {} more by time; {} missed, {} of them reached by no test; \
             {alone} of what can not be chosen at run time; {tests} tests; {} s",
            self.judged.package,
            unviable.len(),
            caught.len(),
            by_time.len(),
            missed.len(),
            unreached.len(),
            self.begun.elapsed().as_secs()
        );
        Ok(missed)
    }
}
