//! Management datagrams: the header that all of them begin with.

use bytemuck::{Pod, Zeroable};

use super::{Be16, Be32, Be64};

/// Common header of a management datagram, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MadHeader {
    /// Version of the base format: 1.
    pub base_version: u8,
    /// Management class; see [`mgmt_class`].
    pub mgmt_class: u8,
    /// Version of the class's format.
    pub class_version: u8,
    /// R (1 bit: a response), Method (7 bits).
    r_method: u8,
    /// Status of a response.
    pub status: Be16,
    /// A field that the class defines (directed routes: hop pointer and hop count).
    pub class_specific: Be16,
    /// The transaction identifier; a response carries its request's.
    pub tid: Be64,
    /// The attribute that is queried or reported.
    pub attr_id: Be16,
    /// Reserved.
    pub reserved: Be16,
    /// Further scope of the attribute, such as a port number.
    pub attr_mod: Be32,
}
const _: () = assert!(size_of::<MadHeader>() == 24 && align_of::<MadHeader>() == 1);

/// The management classes of MADs.
pub mod mgmt_class {
    /// Subnet management, routed by LID.
    pub const SUBN_LID_ROUTED: u8 = 0x01;
    /// Subnet administration.
    pub const SUBN_ADM: u8 = 0x03;
    /// Performance management.
    pub const PERF: u8 = 0x04;
    /// Communication management: connections.
    pub const COMM_MGT: u8 = 0x07;
    /// Subnet management, routed by the path in the datagram.
    pub const SUBN_DIRECTED_ROUTE: u8 = 0x81;
}

/// Methods that all classes share.
pub mod method {
    /// Asks for an attribute.
    pub const GET: u8 = 0x01;
    /// Sets an attribute.
    pub const SET: u8 = 0x02;
    /// A datagram that begins an exchange of its class.
    pub const SEND: u8 = 0x03;
    /// Notice of an event.
    pub const TRAP: u8 = 0x05;
    /// Report of an event that another node forwards.
    pub const REPORT: u8 = 0x06;
    /// Answer to a trap: the sender stops repeating it.
    pub const TRAP_REPRESS: u8 = 0x07;
}

const RESPONSE: u8 = 0x80;

impl MadHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 24;
    /// Bytes of a whole management datagram, this header included.
    pub const MAD_BYTES: usize = 256;

    /// A request of base version 1 with all else 0.
    pub const fn new(mgmt_class: u8, class_version: u8, method: u8, tid: u64, attr_id: u16) -> Self {
        Self {
            base_version: 1,
            mgmt_class,
            class_version,
            r_method: method & !RESPONSE,
            status: Be16::new(0),
            class_specific: Be16::new(0),
            tid: Be64::new(tid),
            attr_id: Be16::new(attr_id),
            reserved: Be16::new(0),
            attr_mod: Be32::new(0),
        }
    }
    /// The method, without the response bit; see [`method`](self::method).
    pub const fn method(&self) -> u8 {
        self.r_method & !RESPONSE
    }
    /// Whether the datagram answers a request.
    pub const fn is_response(&self) -> bool {
        self.r_method & RESPONSE != 0
    }
    /// This header as a response.
    #[must_use]
    pub const fn response(mut self) -> Self {
        self.r_method |= RESPONSE;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        let mut mad = MadHeader::new(mgmt_class::PERF, 1, method::GET, 0x0102_0304_0506_0708, 0x0012);
        mad.attr_mod = Be32::new(0x1122_3344);
        let bytes =
            [1, 4, 1, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x00, 0x12, 0, 0, 0x11, 0x22, 0x33, 0x44];
        assert_eq!(bytemuck::bytes_of(&mad), bytes);
        assert!(!mad.is_response() && mad.response().is_response());
        assert_eq!(mad.response().method(), method::GET);
        assert_eq!(bytemuck::bytes_of(&mad.response())[3], 0x81);
    }
}
