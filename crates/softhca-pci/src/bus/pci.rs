//! Configuration space: identity, one BAR, and the capabilities that drivers ask for.
//!
//! The function presents itself as a virtual function (device id 15b3:1014), so that its driver asks for nothing that
//! only an adapter's first function has. The capabilities for PCI Express and power management exist because drivers
//! reset and suspend through them.

use crate::bus::interrupts::VECTORS;
use crate::bus::registers::{BAR_BYTES, MSIX_PENDING, MSIX_TABLE};
use crate::function::PortKind;

/// Bytes of the configuration space.
pub(crate) const CONFIG_BYTES: usize = 4096;

const VENDOR: u16 = 0x15b3;
/// A virtual function of a ConnectX-4.
const DEVICE: u16 = 0x1014;
const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const POWER: usize = 0x40;
const MSIX: usize = 0x48;
pub(crate) const EXPRESS: usize = 0x60;
/// Capabilities: a list from here.
const FIRST: usize = POWER;

const BUS_MASTER: u16 = 1 << 2;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;
const MSIX_ENABLE: u16 = 1 << 15;
/// In the device control register of PCI Express: reset this function.
const FUNCTION_RESET: u16 = 1 << 15;

/// What has to be done because of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigEffect {
    None,
    /// A function level reset was asked for.
    Reset,
}

/// A function's configuration space.
#[derive(Debug)]
pub(crate) struct Config {
    port: PortKind,
    bytes: Vec<u8>,
    /// Bits that a write changes.
    writable: Vec<u8>,
}

impl Config {
    pub(crate) fn new(port: PortKind) -> Self {
        let mut this = Self { port, bytes: vec![0; CONFIG_BYTES], writable: vec![0; CONFIG_BYTES] };
        this.reset();
        this
    }

    /// As after power on.
    pub(crate) fn reset(&mut self) {
        self.bytes.fill(0);
        self.writable.fill(0);
        self.put16(0x00, VENDOR, 0);
        self.put16(0x02, DEVICE, 0);
        // Memory space, bus mastering, parity, system errors, no legacy interrupt.
        self.put16(COMMAND, 0, 1 << 1 | BUS_MASTER | 1 << 6 | 1 << 8 | 1 << 10);
        self.put16(0x06, 1 << 4, 0);
        let class = match self.port {
            PortKind::InfiniBand => 0x0207,
            PortKind::Roce => 0x0200,
        };
        self.put16(0x0a, class, 0);
        self.put16(0x0c, 0, 0xffff);
        // 64 bits, prefetchable.
        self.put32(BAR0, 0xc, !(BAR_BYTES as u32 - 1));
        self.put32(BAR0 + 4, 0, !0);
        self.put16(0x2c, VENDOR, 0);
        self.put16(0x2e, 1, 0);
        self.bytes[0x34] = FIRST as u8;
        self.writable[0x3c] = 0xff;
        self.reset_capabilities();
    }

    fn reset_capabilities(&mut self) {
        // Version 3; states D0 and D3hot, from which it comes back as it was.
        self.capability(POWER, 0x01, MSIX);
        self.put16(POWER + 2, 3, 0);
        self.put16(POWER + 4, 1 << 3, 3);
        self.capability(MSIX, 0x11, EXPRESS);
        self.put16(MSIX + 2, VECTORS as u16 - 1, MSIX_ENABLE | MSIX_FUNCTION_MASK);
        self.put32(MSIX + 4, MSIX_TABLE as u32, 0);
        self.put32(MSIX + 8, MSIX_PENDING as u32, 0);
        // Version 2, an endpoint; errors told by role, function level reset; 8 GT/s by 8 lanes.
        self.capability(EXPRESS, 0x10, 0);
        self.put16(EXPRESS + 0x02, 2, 0);
        self.put32(EXPRESS + 0x04, 1 << 28 | 1 << 15, 0);
        self.put16(EXPRESS + 0x08, 0x2010, 0x7fff);
        self.put32(EXPRESS + 0x0c, 8 << 4 | 3, 0);
        self.put16(EXPRESS + 0x10, 0, 0x01c3);
        self.put16(EXPRESS + 0x12, 8 << 4 | 3, 0);
        self.put16(EXPRESS + 0x28, 0, 0x001f);
        self.put16(EXPRESS + 0x30, 3, 0x000f);
    }

    fn capability(&mut self, at: usize, id: u8, next: usize) {
        self.bytes[at] = id;
        self.bytes[at + 1] = next as u8;
    }

    fn put16(&mut self, at: usize, value: u16, writable: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 2].copy_from_slice(&writable.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32, writable: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 4].copy_from_slice(&writable.to_le_bytes());
    }

    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Reads; what lies beyond is zeros.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        for (i, byte) in into.iter_mut().enumerate() {
            let at = usize::try_from(offset).ok().and_then(|o| o.checked_add(i));
            *byte = at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes the bits that can be written.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let effect = if self.resets(offset, data) { ConfigEffect::Reset } else { ConfigEffect::None };
        for (i, byte) in data.iter().enumerate() {
            let Some(at) = usize::try_from(offset).ok().and_then(|o| o.checked_add(i)) else { break };
            let Some(old) = self.bytes.get(at).copied() else { break };
            let mask = self.writable[at];
            self.bytes[at] = old & !mask | byte & mask;
        }
        effect
    }

    /// Whether the function may reach memory.
    pub(crate) fn bus_master(&self) -> bool {
        self.get16(COMMAND) & BUS_MASTER != 0
    }

    /// Whether this write would take that from it.
    pub(crate) fn ends_bus_mastering(&self, offset: u64, data: &[u8]) -> bool {
        let byte = (COMMAND as u64).checked_sub(offset).and_then(|at| data.get(usize::try_from(at).ok()?));
        let stops = byte.is_some_and(|byte| u16::from(*byte) & BUS_MASTER == 0);
        self.bus_master() && stops
    }

    /// Whether this write would reset the function.
    pub(crate) fn resets(&self, offset: u64, data: &[u8]) -> bool {
        let at = (EXPRESS as u64 + 0x09).checked_sub(offset).and_then(|at| usize::try_from(at).ok());
        let byte = at.and_then(|at| data.get(at));
        byte.is_some_and(|byte| u16::from(*byte) << 8 & FUNCTION_RESET != 0)
    }

    /// Whether all vectors are masked.
    pub(crate) fn msix_masked(&self) -> bool {
        self.get16(MSIX + 2) & (MSIX_ENABLE | MSIX_FUNCTION_MASK) == MSIX_ENABLE | MSIX_FUNCTION_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<const N: usize>(c: &Config, at: u64) -> u64 {
        let mut bytes = [0; 8];
        c.read(at, &mut bytes[..N]);
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn it_is_a_virtual_function_of_the_kind_that_its_port_makes_it() {
        let c = Config::new(PortKind::InfiniBand);
        assert_eq!((read::<4>(&c, 0), read::<3>(&c, 9)), (0x1014_15b3, 0x02_0700));
        assert_eq!(read::<3>(&Config::new(PortKind::Roce), 9), 0x02_0000);
        assert_eq!(read::<1>(&c, 0x0e), 0);
    }

    #[test]
    fn its_bar_tells_its_size_and_keeps_an_address() {
        let mut c = Config::new(PortKind::InfiniBand);
        c.write(0x10, &[0xff; 8]);
        let size = !(read::<8>(&c, 0x10) & !0xf) + 1;
        assert_eq!((read::<1>(&c, 0x10) & 0xf, size), (0xc, BAR_BYTES));
        c.write(0x10, &0xfe00_0000_u64.to_le_bytes());
        assert_eq!(read::<8>(&c, 0x10), 0xfe00_000c);
    }

    #[test]
    fn its_capabilities_are_found_and_end() {
        let c = Config::new(PortKind::InfiniBand);
        assert_ne!(read::<2>(&c, 6) & 1 << 4, 0);
        let (mut at, mut found) = (read::<1>(&c, 0x34), Vec::new());
        while at != 0 && found.len() < 10 {
            found.push(read::<1>(&c, at));
            at = read::<1>(&c, at + 1);
        }
        assert_eq!(found, [0x01, 0x11, 0x10]);
    }

    #[test]
    fn only_what_is_writable_is_written() {
        let mut c = Config::new(PortKind::InfiniBand);
        c.write(0, &[0xff; 64]);
        assert_eq!((read::<4>(&c, 0), read::<2>(&c, 4), read::<1>(&c, 0x34)), (0x1014_15b3, 0x546, 0x40));
        assert!(c.bus_master());
        c.write(4, &[0, 0]);
        assert!(!c.bus_master());
        assert_eq!(c.write(u64::MAX, &[1, 2]), ConfigEffect::None);
        assert_eq!(c.write(CONFIG_BYTES as u64 - 1, &[1, 2]), ConfigEffect::None);
        let mut beyond = [7; 4];
        c.read(CONFIG_BYTES as u64 - 2, &mut beyond);
        assert_eq!(beyond, [0; 4]);
    }

    #[test]
    fn a_reset_is_asked_for_in_the_device_control_register_and_not_kept() {
        let mut c = Config::new(PortKind::InfiniBand);
        assert_eq!(c.write(EXPRESS as u64 + 8, &[0x10, 0x20]), ConfigEffect::None);
        assert_eq!(c.write(EXPRESS as u64 + 8, &[0x10, 0xa0]), ConfigEffect::Reset);
        assert_eq!(read::<2>(&c, EXPRESS as u64 + 8), 0x2010);
    }

    #[test]
    fn all_vectors_are_masked_by_one_bit_while_they_are_on() {
        let mut c = Config::new(PortKind::InfiniBand);
        c.write(MSIX as u64 + 2, &(MSIX_FUNCTION_MASK).to_le_bytes());
        assert!(!c.msix_masked());
        c.write(MSIX as u64 + 2, &(MSIX_ENABLE | MSIX_FUNCTION_MASK).to_le_bytes());
        assert!(c.msix_masked());
        assert_eq!(read::<2>(&c, MSIX as u64 + 2) & 0x7ff, VECTORS as u64 - 1);
    }

    #[test]
    fn a_write_that_ends_bus_mastering_is_known_before_it_is_done() {
        let mut config = Config::new(PortKind::Roce);
        assert!(!config.ends_bus_mastering(4, &[0, 0]), "there is none");
        config.write(4, &[6, 0]);
        for (offset, data) in [(4, &[2_u8, 0][..]), (4, &[0]), (0, &[0; 8]), (3, &[0, 0xfb])] {
            assert!(config.ends_bus_mastering(offset, data), "{offset} {data:?}");
            let mut after = Config::new(PortKind::Roce);
            after.write(4, &[6, 0]);
            after.write(offset, data);
            assert!(!after.bus_master());
        }
        for (offset, data) in [(4, &[4_u8, 0][..]), (5, &[0]), (0, &[0; 4]), (4, &[]), (u64::MAX, &[0])] {
            assert!(!config.ends_bus_mastering(offset, data), "{offset} {data:?}");
        }
    }
}
