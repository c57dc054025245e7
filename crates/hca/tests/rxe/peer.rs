//! The far end: `rxe_peer` of vm/jobs/rxe, a program on libibverbs that executes commands in lines of text.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What is asked of one place of the environment.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: these tests run by `vm/run rxe`"))
}

/// A connection to it, with a device and memory of its own there.
pub(crate) struct Peer {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
    /// Commands that were not sent yet, and how many there are.
    waiting: (String, usize),
    /// The path MTU of its port.
    pub(crate) mtu: usize,
}

impl Peer {
    /// Its device with this address.
    pub(crate) fn open(address: &str) -> Self {
        let at = variable("HCA_RXE_PEER");
        let stream = TcpStream::connect(&at).unwrap_or_else(|e| panic!("no rxe_peer at {at}: {e}"));
        stream.set_nodelay(true).unwrap();
        // Under emulation, beside other work, an answer takes its time; a peer that is dead says nothing for ever.
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap());
        let mut peer = Self { stream, answers, waiting: (String::new(), 0), mtu: 0 };
        peer.mtu = peer.ask(&format!("open {address}")).parse().unwrap();
        peer
    }

    /// A command that is sent with the next ones, and has to succeed.
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.waiting.0, "{command}").unwrap();
        self.waiting.1 += 1;
    }
    /// Has all that was told carried out.
    pub(crate) fn settle(&mut self) {
        let (commands, count) = std::mem::take(&mut self.waiting);
        self.stream.write_all(commands.as_bytes()).unwrap();
        for command in commands.lines().take(count) {
            self.answer().unwrap_or_else(|why| panic!("rxe_peer: `{command}`: {why}"));
        }
    }
    /// What it answers to a command.
    pub(crate) fn try_ask(&mut self, command: &str) -> Result<String, String> {
        self.settle();
        self.stream.write_all(format!("{command}\n").as_bytes()).unwrap();
        self.answer()
    }
    /// As [`try_ask`](Self::try_ask), where it can't refuse.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.try_ask(command).unwrap_or_else(|why| panic!("rxe_peer: `{command}`: {why}"))
    }
    /// One of rxe's own counters.
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        self.ask(&format!("counter {name}")).parse().unwrap()
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("rxe_peer answers within two minutes");
        match line.trim_end().split_once(' ') {
            Some(("ok", rest)) => Ok(rest.to_owned()),
            Some(("no", why)) => Err(why.to_owned()),
            _ if line == "ok\n" => Ok(String::new()),
            _ => panic!("rxe_peer ended, or answered {line:?}"),
        }
    }
}
