//! `hca stat --watch` in a terminal: tmux is the terminal, and returns the contents of its screen.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const HCA: &str = env!("CARGO_BIN_EXE_hca");
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with a shell in it.
struct Terminal(String);

impl Terminal {
    fn open(columns: u32, lines: u32) -> Self {
        let terminal = Self(format!("hca-test-{}-{columns}", std::process::id()));
        let size = ["-x", &columns.to_string(), "-y", &lines.to_string()].map(str::to_owned);
        let shell = ["env", "PS1=ready> ", "ENV=", "sh"].map(str::to_owned);
        let args = ["-f", "/dev/null", "new-session", "-d"].map(str::to_owned).into_iter();
        terminal.tmux(args.chain(size).chain(shell));
        terminal
    }
    fn tmux<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> String {
        let mut tmux = Command::new("tmux");
        let out = tmux.args(["-L", &self.0]).args(args).stdin(Stdio::null()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }
    fn enter(&self, line: &str) {
        self.tmux(["send-keys", line, "Enter"]);
    }
    fn resize(&self, columns: u32, lines: u32) {
        self.tmux(["resize-window", "-x", &columns.to_string(), "-y", &lines.to_string()]);
    }
    /// Whether the second screen is shown, and whether the cursor is.
    fn modes(&self) -> String {
        self.tmux(["display-message", "-p", "#{alternate_on} #{cursor_flag}"]).trim().to_owned()
    }
    /// The screen, once it is as `what` says.
    fn screen(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let screen = self.tmux(["capture-pane", "-p"]);
            if is_so(&screen) {
                return screen;
            }
            assert!(Instant::now() < until, "{what}, within {PATIENCE:?}:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.0, "kill-server"]).stderr(Stdio::null()).status();
    }
}

/// A measurement that goes on until it is dropped.
struct Measurement(Child);

impl Measurement {
    fn start() -> Self {
        let mut perf = Command::new(HCA);
        perf.args([
            "perf",
            "--device",
            "udp://",
            "--op",
            "send",
            "--size",
            "8",
            "--duration",
            "600",
            "--json",
        ]);
        perf.env_remove("HCA_DEVICE").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(perf.spawn().unwrap())
    }
}
impl Drop for Measurement {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs tmux"]
fn stat_watch_fills_a_terminal_follows_its_size_and_leaves_it_as_it_was() {
    let measurement = Measurement::start();
    let pid = measurement.0.id();
    let terminal = Terminal::open(110, 20);
    terminal.screen("the shell is ready", |screen| screen.starts_with("ready>"));
    terminal.enter(&format!("{HCA} stat --watch --interval 0.1 --pid {pid}; echo ended with $?"));

    // Requests by operation, with the peer: some of SENDs in each second. The first table has no rates yet, and a screen
    // may be caught while it is drawn.
    let is_whole = |screen: &str| {
        let lines: Vec<&str> = screen.lines().collect();
        let connection = lines.iter().find(|line| line.starts_with("  RC 0x"));
        let sends = connection.and_then(|row| row.split_whitespace().nth(5));
        lines.len() > 7
            && sends.is_some_and(|count| count != "0")
            && lines[0] == "1 process with adapters, every 100ms; Ctrl-C ends"
            && lines[2].starts_with("PROCESS")
            && lines[2].contains("tx/s")
            && lines[3].contains("STATE PEER")
            && lines[3].contains("ATOMIC")
            && lines[4].starts_with(&format!("{pid} hca"))
            && lines[5].starts_with(" udp://127.")
            && lines[7..].iter().all(|line| line.is_empty())
    };
    terminal.screen("a table of one connection that sends, and nothing of what stood there before", is_whole);
    assert_eq!(terminal.modes(), "1 0", "the second screen, without a cursor");

    // Fewer columns, then fewer lines.
    terminal.resize(70, 20);
    let is_narrow = |screen: &str| screen.lines().all(|line| line.chars().count() <= 70);
    terminal.screen("fewer columns", |screen| {
        screen.contains(" REQ") && !screen.contains("ATOMIC") && is_narrow(screen)
    });
    terminal.resize(110, 5);
    terminal.screen("fewer lines, of which the top stays", |screen| {
        screen.starts_with("1 process") && screen.contains("more lines; --pid shows one process")
    });

    terminal.resize(110, 20);
    terminal.tmux(["send-keys", "C-c"]);
    let screen = terminal.screen("the shell again", |screen| screen.contains("ended with 130"));
    assert!(!screen.contains("PROCESS"), "the table is gone:\n{screen}");
    assert_eq!(terminal.modes(), "0 1", "the first screen, with its cursor");
}
