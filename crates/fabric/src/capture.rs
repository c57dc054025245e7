//! Captures: a tap that writes the frames of a fabric into a pcapng file, for Wireshark and similar tools.
//!
//! Frames carry Ethernet headers (with addresses derived from the IP addresses, since a socket shows none), and the IP
//! header as the ICRC covers it: the true Identification, "don't fragment", a right checksum. The UDP checksum is 0
//! over IPv4, as RoCEv2 senders set it, and computed over IPv6. RoCEv1 has a GRH instead of both.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hca_core::wire::frame::FrameHead;
use hca_core::wire::{Be16, EthernetHeader, Grh, ether_type};
use hca_core::{Gid, Instant};
use hca_process::Fork;

use crate::{Direction, PacketHeader, RoceVersion, Tap, TapFrame};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const OPT_END: u16 = 0;
const OPT_IF_NAME: u16 = 2;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_EPB_FLAGS: u16 = 2;
/// Timestamps count nanoseconds.
const TSRESOL_NS: u8 = 9;
/// Headers in front of the UDP payload at most: Ethernet, IPv6, UDP.
const MAX_FRAME_HEADERS: usize = 14 + 40 + 8;
/// Bytes that are held back before they are written.
const BUFFER_BYTES: usize = 1 << 18;

/// Writes frames as pcapng.
pub struct Capture<W: Write + Send = CaptureOutput> {
    // An `Option` only so that `into_inner` can take it out of a type that flushes when dropped.
    out: Option<BufWriter<W>>,
    /// Wall-clock time of the adapter's instant 0; found at the first frame if not given.
    wall_at_zero: Option<Duration>,
    written: u64,
    limit: u64,
    left_out: u64,
    error: Option<io::Error>,
    fork: Fork,
}

impl Capture<CaptureOutput> {
    /// Creates a capture file, or replaces an existing one.
    ///
    /// # Errors
    /// The file can't be created or written.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::to_writer(CaptureOutput(File::create(path)?), "rocev2")
    }
}

/// The file of a capture. It is written by system calls, and not by the C library's functions for them, which are
/// cancellation points: a thread of a C program that is cancelled there would leave the adapter's locks held.
#[derive(Debug)]
pub struct CaptureOutput(File);

impl Write for CaptureOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write + Send> Capture<W> {
    /// Writes a capture to any writer; `interface` is the name that Wireshark shows.
    ///
    /// # Errors
    /// The writer refuses.
    pub fn to_writer(out: W, interface: &str) -> io::Result<Self> {
        let mut capture = Self {
            out: Some(BufWriter::with_capacity(BUFFER_BYTES, out)),
            wall_at_zero: None,
            written: 0,
            limit: u64::MAX,
            left_out: 0,
            error: None,
            fork: Fork::new(),
        };
        let mut section = Vec::new();
        section.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        section.extend([1, 0, 0, 0]);
        section.extend((-1_i64).to_le_bytes());
        capture.block(SECTION_HEADER, &[&section])?;
        let mut description = Vec::new();
        description.extend(LINKTYPE_ETHERNET.to_le_bytes());
        description.extend([0; 6]);
        option(&mut description, OPT_IF_NAME, interface.as_bytes());
        option(&mut description, OPT_IF_TSRESOL, &[TSRESOL_NS]);
        option(&mut description, OPT_END, &[]);
        capture.block(INTERFACE_DESCRIPTION, &[&description])?;
        Ok(capture)
    }

    /// Sets the wall-clock time of the adapter's instant 0, as the time since 1970.
    #[must_use]
    pub fn with_wall_at_zero(mut self, wall: Duration) -> Self {
        self.wall_at_zero = Some(wall);
        self
    }

    /// Sets the size of the file at which writing stops; later frames are only counted.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// The number of frames that were not written, because of the limit or an error.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Flushes the buffer and returns the writer.
    ///
    /// # Errors
    /// The writer fails, or failed before.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.flush()?;
        let out = self.out.take().expect("taken only here");
        out.into_inner().map_err(io::IntoInnerError::into_error)
    }

    fn block(&mut self, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
        let body: usize = parts.iter().map(|p| p.len()).sum();
        let total = (12 + body) as u32;
        let out = self.out.as_mut().expect("taken only by into_inner");
        out.write_all(&kind.to_le_bytes())?;
        out.write_all(&total.to_le_bytes())?;
        for part in parts {
            out.write_all(part)?;
        }
        out.write_all(&total.to_le_bytes())?;
        self.written += u64::from(total);
        Ok(())
    }

    fn write(&mut self, now: Instant, frame: &TapFrame<'_>) -> io::Result<()> {
        let since_zero = Duration::from_nanos(now.as_nanos());
        let wall_at_zero = *self.wall_at_zero.get_or_insert_with(|| {
            let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            wall.saturating_sub(since_zero)
        });
        let ns = (wall_at_zero + since_zero).as_nanos() as u64;
        let mut bytes = Vec::with_capacity(MAX_FRAME_HEADERS + frame.payload.len());
        whole(frame, &mut bytes).ok_or_else(|| io::Error::other("addresses of two families"))?;
        let captured = bytes.len() as u32;
        let mut fixed = [0_u8; 20];
        fixed[4..8].copy_from_slice(&((ns >> 32) as u32).to_le_bytes());
        fixed[8..12].copy_from_slice(&(ns as u32).to_le_bytes());
        fixed[12..16].copy_from_slice(&captured.to_le_bytes());
        fixed[16..20].copy_from_slice(&captured.to_le_bytes());
        let padding = [0_u8; 3];
        let padding = &padding[..captured.next_multiple_of(4) as usize - captured as usize];
        let mut options = [0_u8; 12];
        options[..2].copy_from_slice(&OPT_EPB_FLAGS.to_le_bytes());
        options[2] = 4;
        options[4] = match frame.direction {
            Direction::Rx => 1,
            Direction::Tx => 2,
        };
        if self.written + 64 + u64::from(captured) > self.limit {
            self.left_out += 1;
            return Ok(());
        }
        self.block(ENHANCED_PACKET, &[&fixed, &bytes, padding, &options])
    }
}

impl<W: Write + Send> Tap for Capture<W> {
    fn frame(&mut self, now: Instant, frame: &TapFrame<'_>) {
        if self.error.is_some() {
            self.left_out += 1;
            return;
        }
        if let Err(e) = self.write(now, frame) {
            self.left_out += 1;
            self.error = Some(e);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(e) = &self.error {
            return Err(io::Error::new(e.kind(), e.to_string()));
        }
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl<W: Write + Send> Drop for Capture<W> {
    fn drop(&mut self) {
        if self.fork.is_child() {
            // The parent writes its buffered frames; written here too, they would stand in its file twice.
            std::mem::forget(self.out.take());
            return;
        }
        // Who wants to know of an error calls `flush` before.
        let _ = self.flush();
    }
}

/// One tap for several fabrics, or one that is still reachable once installed.
impl<T: Tap> Tap for Arc<Mutex<T>> {
    fn frame(&mut self, now: Instant, frame: &TapFrame<'_>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).frame(now, frame);
    }
    fn flush(&mut self) -> io::Result<()> {
        self.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// A locally administered address that tells the last four bytes of the IP address.
fn mac(ip: IpAddr) -> [u8; 6] {
    let tail = match ip {
        IpAddr::V4(a) => a.octets(),
        IpAddr::V6(a) => (a.to_bits() as u32).to_be_bytes(),
    };
    [2, 0, tail[0], tail[1], tail[2], tail[3]]
}

/// The frame: Ethernet, then IP and UDP, or a GRH, and the payload. `None`: its addresses are of two families.
fn whole(frame: &TapFrame<'_>, out: &mut Vec<u8>) -> Option<()> {
    let PacketHeader { src, dst, src_port, traffic_class, hop_limit } = frame.header;
    let hop_limit = crate::paths::hop_limit(hop_limit);
    let (src_mac, dst_mac) = (mac(src), mac(dst));
    if frame.version == RoceVersion::V1 {
        let ether_type = Be16::new(ether_type::ROCEV1);
        let ethernet = EthernetHeader { dst: dst_mac, src: src_mac, ether_type };
        let (src, dst) = (Gid::from_ip(src), Gid::from_ip(dst));
        let grh = Grh::new(traffic_class, 0, frame.payload.len() as u16, hop_limit, src, dst);
        out.extend_from_slice(bytemuck::bytes_of(&ethernet));
        out.extend_from_slice(bytemuck::bytes_of(&grh));
        out.extend_from_slice(frame.payload);
        return Some(());
    }
    let head = FrameHead::new(src, dst, src_port)?;
    let head = FrameHead { src_mac, dst_mac, traffic_class, hop_limit, ident: frame.ident, ..head };
    head.write_with_icrc(frame.payload, out);
    Some(())
}
