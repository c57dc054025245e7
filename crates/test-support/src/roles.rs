//! Processes of a test: the test program again, in a role that the environment names.
//!
//! A program that starts any has one ignored test which does what [`role`] says, and returns if it says nothing.
//! Parent and child talk in lines over the child's standard input and output. All of these functions panic where the
//! other side ended or can't be started.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "HCA_TEST_ROLE";

/// A child in a role, with the pipes to it.
#[derive(Debug)]
pub struct Helper {
    /// The process.
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Runs `test`, the ignored one that does what [`role`] says, as this user or another.
    pub fn start(test: &str, role: &str, argument: &str, uid: Option<u32>) -> Self {
        Self::start_as(test, role, argument, |command| {
            if let Some(uid) = uid {
                command.uid(uid);
            }
        })
        .unwrap()
    }
    /// The same, by a command that is changed before.
    ///
    /// # Errors
    /// What the system says if it can't be started.
    pub fn start_as(
        test: &str,
        role: &str,
        argument: &str,
        change: impl FnOnce(&mut Command),
    ) -> std::io::Result<Self> {
        // Not by its path, which another user, or who sees other mounts, may be unable to follow.
        let mut command = Command::new("/proc/self/exe");
        command.args(["--exact", "--ignored", "--nocapture", test]);
        command.env(ROLE, format!("{role} {argument}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn()?;
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Ok(Self { child, input, output })
    }
    /// The next line that is for us: the test program prints some of its own.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended");
            if let Some((_, rest)) = line.split_once("> ") {
                return rest.trim().to_owned();
            }
        }
    }
    /// Tells the child a line, for which it waits in [`hear`].
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
    /// Kills the child, and waits until it is gone.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What this process is to do, and with what, if another one started it.
pub fn role() -> Option<(String, String)> {
    let role = std::env::var(ROLE).ok()?;
    let (role, argument) = role.split_once(' ').unwrap();
    Some((role.to_owned(), argument.to_owned()))
}

/// Tells the one that started this process.
pub fn say(line: impl std::fmt::Display) {
    println!("> {line}");
    std::io::stdout().flush().unwrap();
}

/// What the one that started this process tells; nothing if it ended.
pub fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}
