//! The output of many processes, line by line, and this process's own messages.
//!
//! A line is passed on when it is complete, in one piece with its prefix, so lines of several processes never mix. An
//! incomplete line is completed when its process's stream has ended.
//!
//! The reader of this process's output may stop reading, and then a write blocks for ever. So each of the two streams
//! has a [`Stream`]: a thread that only writes, and a queue before it. One thread reads the output of the processes,
//! and stops reading while a queue is full. The main thread waits for neither.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, write};

/// Bytes of the longest line that is kept together.
const MAX_LINE: usize = 1 << 20;
/// Bytes that are read at a time.
const PIECE: usize = 64 * 1024;
/// The number of pieces that are read from a pipe after its process has ended: the size of a user's largest pipe.
const LAST_PIECES: usize = (1 << 20) / PIECE;
/// Bytes that wait to be written to a stream; while there are more, processes that write there wait.
const MAX_WAITING: usize = 1 << 20;

/// An eventfd that wakes its poller.
#[derive(Clone)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(super) fn ring(&self) {
        // It is full only when it has not been read yet.
        let _ = write(&*self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn silence(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One of this process's own streams, and the thread that writes there.
#[derive(Clone)]
pub(super) struct Stream(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Raised when a full queue has room again, when the reader is gone, and when a stream that ends is empty.
    room: Bell,
    idle: Bell,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of the lines, and of those that are being written.
    bytes: usize,
    /// The reader is gone or nothing can be written, and further output is dropped.
    dead: bool,
    /// The reason why nothing can be written, where a reader would have been there.
    failure: Option<Errno>,
    /// A thread waits until all is written.
    ending: bool,
}

impl Stream {
    /// Starts the thread. It ends with the process only, since a write may block for ever.
    pub(super) fn start(
        name: &str,
        to: impl AsFd + Send + 'static,
        room: &Bell,
        idle: &Bell,
    ) -> io::Result<Self> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { queue, changed, room: room.clone(), idle: idle.clone() });
        let theirs = shared.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || theirs.serve(to.as_fd()))?;
        Ok(Self(shared))
    }

    /// Takes lines to be written, however full the queue is.
    pub(super) fn push(&self, lines: Vec<u8>) {
        let mut queue = self.0.lock();
        if !lines.is_empty() && !queue.dead {
            queue.bytes += lines.len();
            queue.lines.push_back(lines);
            self.0.changed.notify_all();
        }
    }

    /// Bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().bytes
    }

    /// Rings the bell whenever all is written, from now on.
    pub(super) fn tell_when_idle(&self) {
        self.0.lock().ending = true;
    }

    /// Waits until all is written, but not for ever.
    pub(super) fn wait_idle(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut queue = self.0.lock();
        while queue.bytes > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.0.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The reason why output is lost, as of a full disk. A reader that has gone wants no more of it.
    pub(super) fn failure(&self) -> Option<Errno> {
        self.0.lock().failure
    }

    fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    fn has_room(&self) -> bool {
        self.0.lock().bytes < MAX_WAITING
    }

    /// Waits for room; returns false if the reader is gone.
    fn wait_room(&self) -> bool {
        let mut queue = self.0.lock();
        while queue.bytes >= MAX_WAITING && !queue.dead {
            queue = self.0.wait(queue);
        }
        !queue.dead
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, to: BorrowedFd<'_>) {
        let mut queue = self.lock();
        loop {
            let Some(lines) = queue.lines.pop_front() else {
                queue = self.wait(queue);
                continue;
            };
            drop(queue);
            let written = write_all(to, &lines);
            queue = self.lock();
            let was_full = queue.bytes >= MAX_WAITING;
            queue.bytes -= lines.len();
            if let Err(e) = written {
                queue.failure = Some(e).filter(|e| *e != Errno::PIPE);
                queue.dead = true;
                queue.lines.clear();
                queue.bytes = 0;
            }
            if queue.dead || was_full && queue.bytes < MAX_WAITING {
                self.room.ring();
            }
            if queue.ending && queue.bytes == 0 {
                self.idle.ring();
            }
            self.changed.notify_all();
        }
    }
}

/// Writes all, however long that takes.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another process with the same stream made it non-blocking.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            },
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The streams of all processes.
pub(super) struct Sources {
    all: Vec<Source>,
    out: Stream,
    err: Stream,
}

struct Source {
    pipe: OwnedFd,
    to: Stream,
    /// The rank, if it prefixes each line.
    prefix: Option<u32>,
    /// The beginning of an incomplete line.
    begun: Vec<u8>,
}

impl Sources {
    /// None yet; their lines go to these.
    pub(super) fn new(out: Stream, err: Stream) -> Self {
        Self { all: Vec::new(), out, err }
    }

    /// Both streams of a process.
    pub(super) fn add(&mut self, prefix: Option<u32>, out: OwnedFd, err: OwnedFd) -> io::Result<()> {
        for (pipe, to) in [(out, self.out.clone()), (err, self.err.clone())] {
            // The flag of this end only; the process's end stays blocking.
            fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
            self.all.push(Source { pipe, to, prefix, begun: Vec::new() });
        }
        Ok(())
    }

    /// Starts to pass lines on, woken by the bell that its streams ring when they have room.
    pub(super) fn pass_on(self, room: &Bell, idle: &Bell) -> io::Result<Outputs> {
        let streams = [self.out.clone(), self.err.clone()];
        let stop = Arc::new(AtomicBool::new(false));
        let over = Over { over: Arc::new(AtomicBool::new(false)), idle: idle.clone() };
        let outputs = Outputs { stop: stop.clone(), over: over.over.clone(), room: room.clone(), streams };
        let wake = room.clone();
        thread::Builder::new().name("hca-run-output".to_owned()).spawn(move || {
            let _over = over;
            self.serve(&stop, &wake);
        })?;
        Ok(outputs)
    }

    fn serve(mut self, stop: &AtomicBool, wake: &Bell) {
        while !stop.load(Ordering::Acquire) {
            // A process whose output has no reader gets SIGPIPE at its next line.
            self.all.retain(|source| !source.to.is_dead());
            let (full, open): (Vec<_>, Vec<_>) =
                self.all.iter().enumerate().partition(|(_, source)| !source.to.has_room());
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            fds.extend(open.iter().map(|(_, source)| PollFd::new(&source.pipe, PollFlags::IN)));
            if matches!(poll(&mut fds, None), Err(e) if e != Errno::INTR) {
                return;
            }
            let came = |at: usize| !fds[at].revents().is_empty();
            let ready: Vec<usize> =
                open.iter().zip(1..).filter(|(_, at)| came(*at)).map(|((n, _), _)| *n).collect();
            if came(0) {
                wake.silence();
            }
            drop((full, open, fds));
            self.turn(&ready);
        }
        // All processes have ended, and their output has arrived. Other holders of their pipes are not waited for.
        for source in &mut self.all {
            let _ = (0..LAST_PIECES).find(|_| !source.to.wait_room() || source.piece() != Piece::Some);
            source.end();
        }
    }

    /// Takes a piece of each of these, as long as there is room.
    fn turn(&mut self, ready: &[usize]) {
        let (mut ended, mut missed) = (Vec::new(), None);
        for &at in ready {
            let source = &mut self.all[at];
            if !source.to.has_room() {
                missed.get_or_insert(at);
            } else if source.piece() == Piece::End {
                ended.push(at);
            }
        }
        // A source that found no room comes first in the next round.
        let first = missed.map_or(0, |at| at - ended.iter().filter(|e| **e < at).count());
        ended.iter().rev().for_each(|at| drop(self.all.remove(*at)));
        self.all.rotate_left(first);
    }
}

/// The result of reading a pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Some,
    None,
    End,
}

impl Source {
    /// Reads up to a limit, and passes on complete lines.
    fn piece(&mut self) -> Piece {
        let mut room = vec![0; PIECE];
        match rustix::io::read(&self.pipe, &mut room) {
            Ok(0) => {
                self.end();
                Piece::End
            }
            Ok(got) => {
                self.begun.extend_from_slice(&room[..got]);
                let whole = self.begun.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
                let rest = self.begun.split_off(whole);
                let lines = std::mem::replace(&mut self.begun, rest);
                self.send(lines);
                if self.begun.len() > MAX_LINE {
                    self.end();
                }
                Piece::Some
            }
            Err(Errno::INTR) => Piece::Some,
            Err(Errno::AGAIN) => Piece::None,
            Err(_) => Piece::End,
        }
    }

    /// Passes on an incomplete line, with a line end.
    fn end(&mut self) {
        let mut last = std::mem::take(&mut self.begun);
        if !last.is_empty() {
            last.push(b'\n');
            self.send(last);
        }
    }

    fn send(&self, lines: Vec<u8>) {
        self.to.push(match self.prefix {
            Some(rank) => prefixed(rank, &lines),
            None => lines,
        });
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

/// Says that the thread that reads has ended, however it did.
struct Over {
    over: Arc<AtomicBool>,
    idle: Bell,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.idle.ring();
    }
}

/// The thread that reads.
pub(super) struct Outputs {
    stop: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    room: Bell,
    streams: [Stream; 2],
}

impl Outputs {
    /// All processes have ended: the bell of the streams is rung when all is passed on.
    pub(super) fn end(&self) {
        self.streams.iter().for_each(Stream::tell_when_idle);
        self.stop.store(true, Ordering::Release);
        self.room.ring();
    }

    /// Whether all is passed on.
    pub(super) fn are_over(&self) -> bool {
        self.over.load(Ordering::Acquire) && self.waiting() == 0
    }

    /// The reason why standard output is lost.
    pub(super) fn failure(&self) -> Option<Errno> {
        self.streams[0].failure()
    }

    /// Bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.streams.iter().map(Stream::waiting).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, pipe};
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// What has come out of streams into which this was written before, and which stay open.
    fn passed(prefix: Option<u32>, bytes: &[u8]) -> Vec<u8> {
        let (mut writer, ours) = UnixStream::pair().unwrap();
        let (_quiet, errors) = UnixStream::pair().unwrap();
        writer.write_all(bytes).unwrap();
        let (room, idle) = (Bell::new().unwrap(), Bell::new().unwrap());
        let file = File::from(memfd_create("output", MemfdFlags::CLOEXEC).unwrap());
        let out = Stream::start("test", file.try_clone().unwrap(), &room, &idle).unwrap();
        let mut sources = Sources::new(out.clone(), out);
        sources.add(prefix, ours.into(), errors.into()).unwrap();
        let outputs = sources.pass_on(&room, &idle).unwrap();
        outputs.end();
        while !outputs.are_over() {
            poll(&mut [PollFd::new(&idle, PollFlags::IN)], None).unwrap();
            idle.silence();
        }
        let mut came = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut came, 0).unwrap();
        came
    }

    #[test]
    fn what_was_written_before_the_end_is_passed_on_though_the_stream_stays_open() {
        let text = "a line of thirty-two characters\n".repeat(5000);
        assert!(text.len() > 2 * PIECE);
        assert_eq!(passed(None, text.as_bytes()), text.as_bytes());
        assert_eq!(passed(Some(3), b"one\ntwo"), b"[3] one\n[3] two\n");
    }

    #[test]
    fn what_nobody_reads_is_left_to_its_writer() {
        let (room, idle) = (Bell::new().unwrap(), Bell::new().unwrap());
        let (mut timed_out, unread) = pipe().unwrap();
        let out = Stream::start("test", unread, &room, &idle).unwrap();
        let mut sources = Sources::new(out.clone(), out.clone());
        let mut writers = Vec::new();
        for rank in 0..3 {
            let (writer, ours) = UnixStream::pair().unwrap();
            let (_, errors) = UnixStream::pair().unwrap();
            writer.set_nonblocking(true).unwrap();
            sources.add(Some(rank), ours.into(), errors.into()).unwrap();
            writers.push(writer);
        }
        let outputs = sources.pass_on(&room, &idle).unwrap();
        // Until the queue is full, and none of their sockets takes more.
        let lines = b"xxxxxxxxx\n".repeat(100);
        let takes = |writer: &UnixStream| rustix::io::write(writer, &lines).is_ok();
        while writers.iter().any(takes) || outputs.waiting() < MAX_WAITING {}
        // And one push: a long line, or a piece of short ones.
        let most = MAX_WAITING + MAX_LINE + 2 * PIECE;
        assert!(outputs.waiting() < most, "{} bytes wait", outputs.waiting());
        // Once somebody reads, it is each one's turn.
        let begins: Vec<String> = (0..3).map(|rank| format!("\n[{rank}] x")).collect();
        let mut said = Vec::new();
        let has = |said: &[u8], begin: &String| said.windows(begin.len()).any(|w| w == begin.as_bytes());
        while !begins.iter().all(|begin| has(&said, begin)) {
            let mut room = vec![0; PIECE];
            let got = timed_out.read(&mut room).unwrap();
            said.extend_from_slice(&room[..got]);
        }
    }

    #[test]
    fn each_line_gets_its_rank() {
        assert_eq!(prefixed(7, b"a\n\nb\n"), b"[7] a\n[7] \n[7] b\n");
    }
}
