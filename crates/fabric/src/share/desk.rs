//! Recipients of packets at a shared address: the rule that the [program](super::program) carries out in the kernel,
//! for packets that the kernel leaves to the processes.
//!
//! A management datagram is for queue pair 1, whose number names no process. Those of the connection manager name the
//! connection by the recipient's communication ID, whose top byte is a slot. A request names a service; the process
//! that has claimed the service holds a socket with the service's name. All other datagrams come to the desk, which is
//! read by the processes that have a general services queue pair.

/// Bytes of BTH and DETH.
const MAD: usize = 20;
/// The management class of a datagram.
pub(super) const CLASS_AT: usize = MAD + 1;
/// The attribute of a datagram, two bytes.
pub(super) const ATTRIBUTE_AT: usize = MAD + 16;
/// The ID of a request for a resolution, in the answer: the recipient's.
pub(super) const REQUEST_ID_AT: usize = MAD + 24;
/// The recipient's communication ID in an answer.
pub(super) const REMOTE_ID_AT: usize = MAD + 28;
/// The service that a request is for, eight bytes.
const SERVICE_AT: usize = MAD + 32;
/// The class of connection management.
pub(super) const CM: u8 = 7;
/// The attributes of the messages that begin a connection or a resolution: REQ and SIDR_REQ.
pub(super) const REQUESTS: [u16; 2] = [0x10, 0x17];
/// SIDR_REP.
pub(super) const RESOLVED: u16 = 0x18;

/// The recipient of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// The process in a slot.
    Slot(u8),
    /// The process that has claimed a service.
    Service(u64),
    /// An answer to a process whose ID the sender does not know: each may be the one.
    All,
    /// Any process that reads the desk.
    Any,
}

impl Recipient {
    /// The recipient of a packet, which has a BTH at least.
    pub(super) fn of(packet: &[u8], slots: u16) -> Self {
        let bytes = |at: usize| packet.get(at..).unwrap_or_default();
        let word = |at| bytes(at).first_chunk().map(|word| u32::from_be_bytes(*word));
        let in_slot = |number: u8| if u16::from(number) < slots { Self::Slot(number) } else { Self::Any };
        match word(4).unwrap_or_default() & 0xff_ffff {
            1 => {}
            0 | 0xff_ffff => return Self::Any,
            number => return in_slot((number >> 16) as u8),
        }
        let attribute = bytes(ATTRIBUTE_AT).first_chunk().map(|a| u16::from_be_bytes(*a));
        let (Some(attribute), Some(&CM)) = (attribute, packet.get(CLASS_AT)) else { return Self::Any };
        if REQUESTS.contains(&attribute) {
            let service = bytes(SERVICE_AT).first_chunk().map(|id| u64::from_be_bytes(*id));
            return service.map_or(Self::Any, Self::Service);
        }
        match word(if attribute == RESOLVED { REQUEST_ID_AT } else { REMOTE_ID_AT }) {
            None => Self::Any,
            Some(0) => Self::All,
            Some(id) => in_slot((id >> 24) as u8),
        }
    }
}
