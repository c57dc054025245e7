//! The output of many processes, line by line.
//!
//! A line is passed on when its end has come, in one piece with its prefix, so lines of several processes never mix. One
//! without an end gets it when its process's stream has ended.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

/// Bytes of the longest line that is kept together.
const MAX_LINE: usize = 1 << 20;
/// Bytes that are read at a time.
const PIECE: usize = 64 * 1024;
/// Pieces that are read of a pipe once its process has ended: what the largest pipe of a user holds.
const LAST_PIECES: usize = (1 << 20) / PIECE;

/// Takes lines of standard output, or of errors (true).
type Sink = Box<dyn FnMut(bool, &[u8]) -> io::Result<()> + Send>;

/// The streams of all processes.
pub(super) struct Sources {
    all: Vec<Source>,
    sink: Sink,
}

struct Source {
    pipe: OwnedFd,
    /// The rank, where it stands before each line.
    prefix: Option<u32>,
    errors: bool,
    /// What has come of a line.
    begun: Vec<u8>,
}

impl Sources {
    /// None yet; their lines go to this process's own streams.
    pub(super) fn new() -> Self {
        Self::to(Box::new(|errors, lines| {
            let mut to: Box<dyn Write> =
                if errors { Box::new(io::stderr().lock()) } else { Box::new(io::stdout().lock()) };
            to.write_all(lines)?;
            to.flush()
        }))
    }

    fn to(sink: Sink) -> Self {
        Self { all: Vec::new(), sink }
    }

    /// Both streams of a process.
    pub(super) fn add(&mut self, prefix: Option<u32>, out: OwnedFd, err: OwnedFd) -> io::Result<()> {
        for (pipe, errors) in [(out, false), (err, true)] {
            // This end's flag; the process's end blocks as ever.
            fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
            self.all.push(Source { pipe, prefix, errors, begun: Vec::new() });
        }
        Ok(())
    }

    /// Starts to pass lines on.
    pub(super) fn pass_on(self) -> io::Result<Outputs> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let theirs = stop.clone();
        let thread =
            thread::Builder::new().name("hca-run-output".to_owned()).spawn(move || self.serve(&theirs))?;
        Ok(Outputs { stop, thread })
    }

    fn serve(mut self, stop: &OwnedFd) {
        loop {
            let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
            fds.extend(self.all.iter().map(|s| PollFd::new(&s.pipe, PollFlags::IN)));
            if matches!(poll(&mut fds, None), Err(e) if e != Errno::INTR) {
                return;
            }
            let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
            let mut at = 0;
            self.all.retain_mut(|source| {
                at += 1;
                !ready[at] || source.piece(&mut self.sink) != Piece::End
            });
            if ready[0] {
                break;
            }
        }
        // All processes have ended, and what they wrote is here. Who else has their pipes open is not waited for.
        for source in &mut self.all {
            let _ = (0..LAST_PIECES).find(|_| source.piece(&mut self.sink) != Piece::Some);
            source.end(&mut self.sink);
        }
    }
}

/// What a look at a pipe brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Some,
    None,
    End,
}

impl Source {
    /// Takes what has come, up to a limit, and passes on what are lines.
    fn piece(&mut self, sink: &mut Sink) -> Piece {
        let mut room = vec![0; PIECE];
        match rustix::io::read(&self.pipe, &mut room) {
            Ok(0) => {
                self.end(sink);
                Piece::End
            }
            Ok(got) => {
                self.begun.extend_from_slice(&room[..got]);
                let whole = self.begun.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
                let rest = self.begun.split_off(whole);
                let lines = std::mem::replace(&mut self.begun, rest);
                let mut sent = self.send(&lines, sink);
                if self.begun.len() > MAX_LINE {
                    sent &= self.end(sink);
                }
                // Nobody reads any more: the process finds that out at its next line.
                if sent { Piece::Some } else { Piece::End }
            }
            Err(Errno::INTR) => Piece::Some,
            Err(Errno::AGAIN) => Piece::None,
            Err(_) => Piece::End,
        }
    }

    /// Passes on what is there of a line, with an end.
    fn end(&mut self, sink: &mut Sink) -> bool {
        let mut last = std::mem::take(&mut self.begun);
        if last.is_empty() {
            return true;
        }
        last.push(b'\n');
        self.send(&last, sink)
    }

    /// Passes lines on; false if nobody reads them.
    fn send(&self, lines: &[u8], sink: &mut Sink) -> bool {
        if lines.is_empty() {
            return true;
        }
        match self.prefix {
            Some(rank) => sink(self.errors, &prefixed(rank, lines)).is_ok(),
            None => sink(self.errors, lines).is_ok(),
        }
    }
}

/// Lines with the rank before each.
fn prefixed(rank: u32, lines: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(lines.len() + 64);
    for line in lines.split_inclusive(|&b| b == b'\n') {
        write!(text, "[{rank}] ").expect("a vector takes all");
        text.extend_from_slice(line);
    }
    text
}

/// The thread that passes lines on.
pub(super) struct Outputs {
    stop: Arc<OwnedFd>,
    thread: thread::JoinHandle<()>,
}

impl Outputs {
    /// Passes on what is there yet, and ends.
    pub(super) fn finish(self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        // A panic has been reported by its hook.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has come out of streams into which this was written before, and which stay open.
    fn passed(prefix: Option<u32>, bytes: &[u8]) -> Vec<u8> {
        let (mut writer, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        let (_quiet, errors) = std::os::unix::net::UnixStream::pair().unwrap();
        writer.write_all(bytes).unwrap();
        let (came, all) = std::sync::mpsc::channel();
        let mut sources = Sources::to(Box::new(move |_, lines| {
            came.send(lines.to_vec()).unwrap();
            Ok(())
        }));
        sources.add(prefix, ours.into(), errors.into()).unwrap();
        sources.pass_on().unwrap().finish();
        all.iter().flatten().collect()
    }

    #[test]
    fn what_was_written_before_the_end_is_passed_on_though_the_stream_stays_open() {
        let text = "a line of thirty-two characters\n".repeat(5000);
        assert!(text.len() > 2 * PIECE);
        assert_eq!(passed(None, text.as_bytes()), text.as_bytes());
        assert_eq!(passed(Some(3), b"one\ntwo"), b"[3] one\n[3] two\n");
    }

    #[test]
    fn each_line_gets_its_rank() {
        assert_eq!(prefixed(7, b"a\n\nb\n"), b"[7] a\n[7] \n[7] b\n");
    }
}
