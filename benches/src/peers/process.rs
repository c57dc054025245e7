//! Programs of others, each bound to a CPU, to a time, and to the life of this process.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::floor::end_with_starter;

/// The first argument of a process that binds itself and then becomes another program.
const LEASH_COMMAND: &str = "__leash";
/// Instead of a CPU: the program binds its own processes.
const ANY_CPU: &str = "-";
/// How long a server may take to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(5);
/// How often a program is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Why a program of others gave no figure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// It is not installed.
    #[error("{program} is missing: apt-get install {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package that holds it.
        package: &'static str,
    },
    /// It, or a file for it, can't be made.
    #[error("{what}: {why}")]
    Start {
        /// What was tried.
        what: String,
        /// The reason.
        why: io::Error,
    },
    /// It took too long to listen, or to measure, and was ended.
    #[error("{program} was not done within {limit:?}, and was ended")]
    Late {
        /// The program.
        program: String,
        /// Its time.
        limit: Duration,
    },
    /// It ended with an error, or said something else than a figure.
    #[error("{program}: {said}")]
    Said {
        /// The program.
        program: String,
        /// Its last words.
        said: String,
    },
}

/// To be called first in `main` of every program that starts programs of others: binds this process, ties it to its
/// starter, and becomes the program.
pub fn leash_if_asked() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|a| a != LEASH_COMMAND) {
        return;
    }
    let cpu = args.next().and_then(|a| a.into_string().ok());
    let cpu: Option<usize> = cpu.filter(|c| c != ANY_CPU).map(|c| c.parse().expect("a CPU's number"));
    let tied = end_with_starter().and_then(|()| cpu.map_or(Ok(()), hca_perf::probe::pin));
    let program = args.next().expect("a program");
    // Where it succeeds nothing comes back.
    let why = tied.err().unwrap_or_else(|| Command::new(&program).args(args).exec());
    eprintln!("{}: {why}", program.display());
    std::process::exit(127);
}

/// Where on the search path a program lies.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// A program under way. It ends with this value.
pub(super) struct Running {
    program: String,
    child: Child,
}

impl Running {
    /// Starts a program on a CPU; `None` leaves it where it likes.
    pub(super) fn start(
        cpu: Option<usize>,
        program: &str,
        args: &[String],
        env: &[(&str, &str)],
    ) -> Result<Self, PeerError> {
        let refuse = |why| PeerError::Start { what: format!("{program} can't be started"), why };
        let cpu = cpu.map_or_else(|| ANY_CPU.to_owned(), |c| c.to_string());
        let child = Command::new(std::env::current_exe().map_err(refuse)?)
            .args([LEASH_COMMAND, &cpu, program].map(OsString::from))
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(refuse)?;
        Ok(Self { program: program.to_owned(), child })
    }

    /// Waits until the program listens on a port.
    pub(super) fn listening(&mut self, port: u16, tcp: bool) -> Result<(), PeerError> {
        let begin = Instant::now();
        while !is_listening(port, tcp) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return Err(self.last_words());
            }
            if begin.elapsed() > LISTEN_LIMIT {
                return Err(PeerError::Late { program: self.program.clone(), limit: LISTEN_LIMIT });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits for its end, and gives what it wrote.
    pub(super) fn finish(mut self, limit: Duration) -> Result<String, PeerError> {
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(None) if begin.elapsed() > limit => {
                    return Err(PeerError::Late { program: self.program.clone(), limit });
                }
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                Ok(Some(status)) => break status,
                Err(why) => return Err(PeerError::Start { what: self.program.clone(), why }),
            }
        };
        if !status.success() {
            return Err(self.last_words());
        }
        Ok(self.output())
    }

    /// What it said, as an error: on standard error, or else on standard output.
    fn last_words(&mut self) -> PeerError {
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(mut err) = self.child.stderr.take() {
            let _ = err.read_to_string(&mut text);
        }
        if text.trim().is_empty() {
            text = self.output();
        }
        PeerError::Said { program: self.program.clone(), said: reason(&text).to_owned() }
    }

    fn output(&mut self) -> String {
        let mut text = Vec::new();
        if let Some(mut out) = self.child.stdout.take() {
            let _ = out.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody has at the moment.
pub(super) fn free_port() -> Result<u16, PeerError> {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    bound.map(|a| a.port()).map_err(|why| PeerError::Start { what: "no free port".to_owned(), why })
}

/// Whether a socket listens on a port (TCP) or is bound to it (UDP), by the system's tables: a connection to find out
/// would be taken for the client's.
fn is_listening(port: u16, tcp: bool) -> bool {
    let (tables, state) = if tcp { (["tcp", "tcp6"], "0A") } else { (["udp", "udp6"], "07") };
    tables.iter().any(|t| {
        let table = std::fs::read_to_string(format!("/proc/net/{t}")).unwrap_or_default();
        table.lines().skip(1).any(|line| holds(line, port, state))
    })
}

/// Whether a line of such a table is of a socket on this port and in this state.
fn holds(line: &str, port: u16, state: &str) -> bool {
    let mut fields = line.split_whitespace().skip(1);
    let (local, _, now) = (fields.next(), fields.next(), fields.next());
    now == Some(state)
        && local.and_then(|l| l.rsplit_once(':')).is_some_and(|(_, p)| u16::from_str_radix(p, 16) == Ok(port))
}

/// What a program's last words come to: a compiler's first error, or else the last line.
fn reason(text: &str) -> &str {
    let first_error = text.lines().find(|l| l.contains(" error: "));
    let said = first_error.or_else(|| text.lines().rev().find(|l| !l.trim().is_empty()));
    said.unwrap_or("ended without a word").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_wait_for_others_are_found_by_their_ports() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // A look at the kernel's list can miss a socket while others come and go.
        let is_found = |port, tcp| (0..1000).any(|_| is_listening(port, tcp));
        assert!(is_found(listener.local_addr().unwrap().port(), true));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(is_found(socket.local_addr().unwrap().port(), false));
    }

    #[test]
    fn a_connection_on_the_port_does_not_listen() {
        let line =
            "   1: 0100007F:36B1 0100007F:9C4A 01 00000000:00000000 00:00000000 00000000     0        0 1 1";
        assert!(!holds(line, 14001, "0A"));
        assert!(holds(&line.replace(" 01 ", " 0A "), 14001, "0A"));
    }

    #[test]
    fn of_a_compilers_words_the_error_is_told() {
        let header = "/tmp/exchange.c:8:10: fatal error: mpi.h: No such file or directory";
        assert_eq!(reason(&format!("{header}\n    8 | #include <mpi.h>\ncompilation terminated.\n")), header);
        assert_eq!(reason("one\n two \n\n"), "two");
        assert_eq!(reason("\n"), "ended without a word");
    }
}
