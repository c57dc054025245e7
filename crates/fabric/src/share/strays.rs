//! Packets that a process at a shared address receives for another one, and those that a process reads at the desk.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hca_core::Instant;
use hca_process::NotInChildren;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};

use super::desk::Recipient;
use super::{KEY_BYTES, LOOK_PACKETS, Share, is_own, mailbox};
use crate::cred::{receive_from, send_as_own};
use crate::{ManagementDesk, PacketHeader, RxPacket};

/// The longest packet that is handed on.
pub(super) const MAX_STRAY: usize = 8192;
/// In front of a stray packet: the key, the source, its port, the traffic class, the hop limit.
const STRAY_HEAD: usize = KEY_BYTES + 16 + 2 + 1 + 1;
/// Services of a process at most.
const MAX_SERVICES: usize = 1024;
/// Answers that may be for each process, of one look at most.
const LOOK_ANSWERS_TO_ALL: u32 = 4;

/// Bytes of packets that wait for room at one recipient at most.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Packets are lost if their recipient takes none for this time, as one that is stopped.
const WAITING_PATIENCE: Duration = Duration::from_secs(1);

/// Packets that wait for room at one recipient, the oldest first.
pub(super) struct Waiting {
    to: SocketAddrUnix,
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Since when the recipient takes none.
    full_since: Option<Instant>,
}

/// A service whose requests come to this process: the socket that holds its name.
pub(super) struct Service {
    id: u64,
    socket: OwnedFd,
    _not_in_children: NotInChildren,
}

impl Share {
    /// Passes packets for this process to a sink; a packet for another process is handed on.
    #[inline]
    pub(crate) fn only_own<'a>(
        &'a mut self,
        sink: &'a mut dyn FnMut(&RxPacket<'_>),
    ) -> impl FnMut(&RxPacket<'_>) + 'a {
        let own = u32::from(self.slot);
        move |packet| {
            let number = u32::from_be_bytes([0, packet.bytes[5], packet.bytes[6], packet.bytes[7]]);
            if (number >> 16 == own && number > 1) || self.is_own(packet) {
                sink(packet);
            }
        }
    }

    /// Whether a packet is for this process, too; if not, it is handed on.
    #[cold]
    fn is_own(&mut self, packet: &RxPacket<'_>) -> bool {
        match Recipient::of(packet.bytes, self.slots()) {
            Recipient::Slot(slot) if slot == self.slot => true,
            Recipient::Slot(slot) => {
                let sent = self.names.of_slot(slot).and_then(|name| self.hand_on(packet, &name));
                self.count(sent);
                false
            }
            Recipient::Service(id) if self.services.iter().any(|service| service.id == id) => true,
            Recipient::Service(id) => {
                let sent = self.names.of_service(id).and_then(|name| self.hand_on(packet, &name));
                // A process that reads the desk rejects requests for services that nobody has claimed.
                if matches!(sent, Err(Errno::CONNREFUSED)) {
                    return self.is_for_desk(packet);
                }
                self.count(sent);
                false
            }
            Recipient::All => {
                self.answers_to_all += 1;
                if self.answers_to_all <= LOOK_ANSWERS_TO_ALL {
                    let own = self.slot;
                    for slot in (0..self.slots() as u8).filter(|slot| *slot != own) {
                        // Most slots have no process.
                        let _ = self.names.of_slot(slot).and_then(|name| self.hand_on(packet, &name));
                    }
                }
                true
            }
            Recipient::Any => self.is_for_desk(packet),
        }
    }

    /// Whether this process reads the desk, which a packet is for; if not, the packet is handed on.
    fn is_for_desk(&mut self, packet: &RxPacket<'_>) -> bool {
        if !self.reads_desk {
            let sent = self.names.of_desk().and_then(|name| self.hand_on(packet, &name));
            self.count(sent);
        }
        self.reads_desk
    }

    fn hand_on(&mut self, packet: &RxPacket<'_>, to: &SocketAddrUnix) -> rustix::io::Result<()> {
        let src = match packet.header.src {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let message = [
            &self.common.key[..],
            &src.octets(),
            &packet.header.src_port.to_be_bytes(),
            &[packet.header.traffic_class, packet.header.hop_limit],
            packet.bytes,
        ]
        .concat();
        // None overtakes those that wait.
        let queue = self.waiting.iter().position(|w| w.to == *to);
        let sent = if queue.is_some() { Err(Errno::AGAIN) } else { self.send_on(&message, to) };
        if sent != Err(Errno::AGAIN) {
            return sent;
        }
        let queue = queue.unwrap_or_else(|| {
            self.waiting.push(Waiting {
                to: to.clone(),
                messages: VecDeque::new(),
                bytes: 0,
                full_since: None,
            });
            self.waiting.len() - 1
        });
        let queue = &mut self.waiting[queue];
        if queue.bytes + message.len() > MAX_WAITING_BYTES {
            return sent;
        }
        queue.bytes += message.len();
        queue.messages.push_back(message);
        Ok(())
    }

    fn send_on(&self, message: &[u8], to: &SocketAddrUnix) -> rustix::io::Result<()> {
        send_as_own(&self.mailbox, message, to)
    }

    /// Hands packets on that wait, as far as their recipients have room.
    pub(super) fn hand_on_waiting(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|queue| {
            while let Some(message) = queue.messages.front() {
                match self.send_on(message, &queue.to) {
                    Ok(()) => queue.full_since = None,
                    Err(Errno::AGAIN) if now < *queue.full_since.get_or_insert(now) + WAITING_PATIENCE => {
                        return true;
                    }
                    // They were counted as packets that are handed on.
                    Err(_) => self.counts.strays_lost += 1,
                }
                queue.bytes -= message.len();
                queue.messages.pop_front();
            }
            false
        });
        self.waiting = waiting;
    }

    fn count(&mut self, handed_on: rustix::io::Result<()>) {
        match handed_on {
            Ok(()) => self.counts.strays_handed_on += 1,
            Err(_) => self.counts.strays_lost += 1,
        }
    }

    /// Passes the packets that other processes handed on to a sink, and returns their number.
    pub(crate) fn strays(&mut self, local: IpAddr, sink: &mut dyn FnMut(&RxPacket<'_>)) -> usize {
        let mut packets = 0;
        let desk = self.reads_desk.then(|| self.common.desk_mailbox());
        let own = [&self.mailbox].into_iter().chain(self.services.iter().map(|s| &s.socket));
        for socket in own.chain(desk) {
            for _ in 0..LOOK_PACKETS {
                let Ok((len, user)) = receive_from(socket, &mut self.buffer) else { break };
                // Another user may have had the name of a process that ended, and with it what was for that process,
                // the key too.
                if !user.is_some_and(is_own) {
                    continue;
                }
                let Some(packet) = stray(&self.buffer[..len], &self.common.key, local) else { continue };
                packets += 1;
                sink(&packet);
            }
        }
        self.counts.strays_got += packets as u64;
        packets
    }
}

impl ManagementDesk for Share {
    fn read(&mut self, on: bool) {
        if on == self.reads_desk {
            return;
        }
        for desk in [self.common.desk(), self.common.desk_mailbox()] {
            // One of the processes is enough.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            let changed = if on {
                epoll::add(&self.epoll, desk, epoll::EventData::new_u64(1), flags)
            } else {
                epoll::delete(&self.epoll, desk)
            };
            if let Err(error) = changed {
                tracing::warn!(%error, "the desk of a shared address is not watched: requests wait for the next packet");
            }
        }
        self.reads_desk = on;
    }

    fn claim(&mut self, id: u64) -> io::Result<()> {
        if self.services.iter().any(|service| service.id == id) {
            return Err(Errno::ADDRINUSE.into());
        }
        if self.services.len() >= MAX_SERVICES {
            return Err(Errno::MFILE.into());
        }
        let socket = mailbox()?;
        bind(&socket, &self.names.of_service(id)?)?;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(3), epoll::EventFlags::IN)?;
        let not_in_children = NotInChildren::new(&[socket.as_fd()]);
        self.services.push(Service { id, socket, _not_in_children: not_in_children });
        Ok(())
    }

    fn release(&mut self, id: u64) {
        self.services.retain(|service| service.id != id);
    }
}

/// A packet that a member handed on; `None`: it is no member's.
fn stray<'a>(message: &'a [u8], key: &[u8; KEY_BYTES], local: IpAddr) -> Option<RxPacket<'a>> {
    /// A BTH.
    const LEAST: usize = 12;
    let (head, bytes) = message.split_at_checked(STRAY_HEAD)?;
    let (theirs, rest) = head.split_first_chunk::<KEY_BYTES>()?;
    let (src, rest) = rest.split_first_chunk::<16>()?;
    let &[port_high, port_low, traffic_class, hop_limit] = rest else { return None };
    // All of it is compared, whatever differs first.
    let differs = theirs.iter().zip(key).fold(0, |d, (a, b)| d | a ^ b);
    let src = IpAddr::V6(Ipv6Addr::from(*src)).to_canonical();
    let src_port = u16::from_be_bytes([port_high, port_low]);
    let header = PacketHeader { src, dst: local, src_port, traffic_class, hop_limit };
    (differs == 0 && bytes.len() >= LEAST).then_some(RxPacket { header, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_taken_from_members_alone() {
        let (key, local) = ([7; KEY_BYTES], IpAddr::from([127, 0, 0, 9]));
        let source = [&[0; 10][..], &[0xff, 0xff, 127, 0, 0, 5]].concat();
        let packet = [0x5a; 12];
        let message = [&key[..], &source, &[0xc0, 0x01, 0x02, 64], &packet].concat();
        let got = stray(&message, &key, local).expect("it has the key");
        let src = IpAddr::from([127, 0, 0, 5]);
        let header = PacketHeader { src, dst: local, src_port: 0xc001, traffic_class: 2, hop_limit: 64 };
        assert_eq!((got.header, got.bytes), (header, &packet[..]));
        for at in 0..KEY_BYTES {
            let mut other = message.clone();
            other[at] ^= 1;
            assert!(stray(&other, &key, local).is_none(), "byte {at} of the key");
        }
        for len in 0..message.len() {
            assert!(stray(&message[..len], &key, local).is_none(), "{len} bytes");
        }
    }
}
