//! A program of librdmacm at the far end.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time that a program has.
const PATIENCE: Duration = Duration::from_secs(60);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: vm/run cm does"))
}

/// The address of rxe's port.
pub(crate) fn address() -> std::net::IpAddr {
    variable("HCA_CM_ADDRESS").parse().expect("an IP address")
}

/// The adapter of ours.
pub(crate) fn device() -> hca::Context {
    hca::open(&variable("HCA_CM_DEVICE")).unwrap_or_else(|e| panic!("{e}"))
}

/// A program that runs at the far end. What it prints goes to a file, as much as it likes.
pub(crate) struct Program {
    what: String,
    child: Child,
    printed: PathBuf,
    started: Instant,
}

impl Program {
    pub(crate) fn start(line: &str) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let what = format!("{} {line}", variable("HCA_CM_THEIRS"));
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let printed = std::env::temp_dir().join(format!("librdmacm-{}-{number}", std::process::id()));
        let file = File::create(&printed).unwrap();
        let mut words = what.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        let child = command.args(words).stdout(file.try_clone().unwrap()).stderr(file).spawn();
        let child = child.unwrap_or_else(|e| panic!("{what}: {e}"));
        Self { child, what, printed, started: Instant::now() }
    }
    /// Whether it has not ended yet, as it has to in time.
    pub(crate) fn runs(&mut self) -> bool {
        assert!(self.started.elapsed() < PATIENCE, "{} does not end", self.what);
        self.child.try_wait().expect("its own child").is_none()
    }
    /// The output of the program until its end, and whether it succeeded.
    pub(crate) fn output(&mut self) -> (bool, String) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait().expect("its own child") {
                Some(status) => return (status.success(), self.printed()),
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
                None => panic!("{} does not end", self.what),
            }
        }
    }
    /// The kernel's functions that the program's threads wait in, as the kernel shows them.
    fn waits_in(&self) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let of = |task: std::fs::DirEntry| {
            let stack = std::fs::read_to_string(task.path().join("stack")).unwrap_or_default();
            let names = stack.lines().map(|line| line.rsplit(' ').next().unwrap_or(line));
            format!("[{}]", names.collect::<Vec<_>>().join(" < "))
        };
        tasks.map(|tasks| tasks.flatten().map(of).collect::<Vec<_>>().join(" ")).unwrap_or_default()
    }
    fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.printed).unwrap()).into_owned()
    }
    /// It ended well; what it printed.
    pub(crate) fn succeeds(mut self) -> String {
        let (good, printed) = self.output();
        assert!(good, "{} failed", self.what);
        printed
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("its threads wait in: {}", self.waits_in());
        }
        let _ = (self.child.kill(), self.child.wait());
        if std::thread::panicking() {
            println!("{} printed:\n{}", self.what, self.printed());
        }
        let _ = std::fs::remove_file(&self.printed);
    }
}
