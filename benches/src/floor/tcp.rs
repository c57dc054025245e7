//! One TCP stream over loopback, by calls of 1 MiB, as `iperf3 -l 1M` does it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{Far, Figures, Shared};

/// Sends for `time`; what arrived counts.
pub(super) fn send(bytes: usize, shared: &Shared, far: &mut Far, time: Duration) -> io::Result<Figures> {
    let mut stream = TcpStream::connect(("127.0.0.1", far.port(shared)?))?;
    let buf = vec![5; bytes];
    let warm = Instant::now();
    while warm.elapsed() < time / 10 {
        stream.write_all(&buf)?;
    }
    let (before, begin) = (shared.arrived.load(), Instant::now());
    while begin.elapsed() < time {
        stream.write_all(&buf)?;
    }
    let (arrived, seconds) = (shared.arrived.load() - before, begin.elapsed().as_secs_f64());
    Ok(Figures { bytes_per_s: arrived as f64 / seconds, ..Figures::default() })
}

/// Receives until the stream ends.
pub(super) fn sink(bytes: usize, shared: &Shared) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    shared.port.store(listener.local_addr()?.port().into());
    let mut stream = listener.accept()?.0;
    let (mut buf, mut arrived) = (vec![0; bytes], 0);
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            n => arrived += n as u64,
        }
        shared.arrived.store(arrived);
    }
}
