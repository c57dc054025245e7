//! The function as its client's messages find it.

use std::os::fd::OwnedFd;

use hca_vfio::user::serve::{MappedRegion, Region};
use hca_vfio::user::wire::{
    Area, Capabilities, DmaMap, DmaUnmap, IRQ_MSIX, MAX_DESCRIPTORS, REGION_CONFIG, Request,
};
use rustix::io::Errno;

use crate::bus::pci::CONFIG_BYTES;
use crate::bus::registers::{BAR_BYTES, MAPPED_FROM};
use crate::function::Function;

/// What one message may read or write.
const MAX_TRANSFER: u32 = 64 << 10;
/// The region of the registers and the doorbell pages, and its part that clients may map.
const REGION_BAR: u32 = 0;
const DOORBELL_PAGES: Area = Area { offset: MAPPED_FROM, size: BAR_BYTES - MAPPED_FROM };

impl hca_vfio::user::serve::Function for Function {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.max_msg_fds = MAX_DESCRIPTORS as u32;
        capabilities.max_data_xfer_size = MAX_TRANSFER;
        capabilities.max_dma_maps = self.max_dma_maps();
        capabilities.write_multiple = true;
        capabilities
    }

    fn region(&self, index: u32) -> Region<'_> {
        match index {
            REGION_BAR => {
                let mapped = MappedRegion { file: self.pages.file(), offset: 0, areas: &[DOORBELL_PAGES] };
                Region { bytes: BAR_BYTES, mapped: Some(mapped) }
            }
            REGION_CONFIG => Region { bytes: CONFIG_BYTES as u64, mapped: None },
            _ => Region::default(),
        }
    }

    fn read(&mut self, index: u32, offset: u64, into: &mut [u8]) {
        match index {
            REGION_BAR => self.bar_read(offset, into),
            _ => self.config_read(offset, into),
        }
    }

    fn write(&mut self, index: u32, offset: u64, data: &[u8]) {
        match index {
            REGION_BAR => self.bar_write(offset, data),
            _ => self.config_write(offset, data),
        }
    }

    fn interrupts(&self, kind: u32) -> u32 {
        self.interrupts_of(kind)
    }

    fn listen(&mut self, kind: u32, first: u32, eventfds: Vec<Option<OwnedFd>>) -> Result<(), Errno> {
        if kind == IRQ_MSIX {
            return self.interrupts.listen(first as usize, eventfds);
        }
        if let (Some(script), Some(eventfd)) = (&self.options.script, eventfds.into_iter().next()) {
            script.listen(kind, eventfd);
        }
        Ok(())
    }

    fn fire(&mut self, kind: u32, interrupt: u32) {
        if kind == IRQ_MSIX {
            self.interrupts.fire(interrupt);
        }
    }

    fn mask(&mut self, kind: u32, interrupt: u32, masked: bool) {
        if kind == IRQ_MSIX {
            self.interrupts.mask(interrupt as usize, masked);
        }
    }

    fn dma_map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno> {
        let file = file.map(|file| (file, map.offset));
        self.dma_map(map.address, map.size, (map.read, map.write), file)
    }

    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno> {
        self.dma_unmap(unmap.address, unmap.size)
    }

    fn reset(&mut self) {
        self.reset();
    }

    /// Ends queue pairs and takes keys and ranges back where memory goes, and destroys queue pairs where all go, so
    /// many at a time.
    fn prepare(&mut self, request: &Request<'_>) -> bool {
        let mut before = |region, offset, data: &[u8]| match region {
            REGION_CONFIG => self.piece_before(offset, data),
            REGION_BAR => Self::ends_use(offset, data) && self.destroy_piece(),
            _ => false,
        };
        match request {
            Request::DmaUnmap(unmap) => self.unmap_piece(unmap.address, unmap.size),
            Request::RegionWrite { region, offset, data } => before(*region, *offset, data),
            // Bytes behind the count mean nothing.
            Request::RegionWriteMulti(writes) => writes.iter().any(|w| {
                let written = w.data.get(..w.count as usize).unwrap_or_default();
                before(w.region, w.offset, written)
            }),
            Request::DeviceReset => self.destroy_piece(),
            _ => false,
        }
    }

    /// A script has it hang up.
    fn hangs_up(&self) -> bool {
        self.hung_up
    }
}

#[cfg(test)]
mod tests {
    use hca_vfio::user::serve::Function as _;
    use hca_vfio::user::wire::MultiWrite;

    use super::*;
    use crate::bed::{QpShape, Server};
    use crate::bus::pci::EXPRESS;

    #[test]
    fn what_stands_behind_the_written_bytes_ends_nothing() {
        let mut c = Server::new().client(0);
        let cq = c.cq(4);
        c.qp(QpShape::default(), &cq, &cq);
        // The second byte would be a reset.
        let data = [0x10, 0xa0, 0, 0, 0, 0, 0, 0];
        for (count, left) in [(1, 1), (2, 0)] {
            let write = MultiWrite { region: REGION_CONFIG, offset: EXPRESS as u64 + 8, data, count };
            assert!(!c.function.prepare(&Request::RegionWriteMulti(vec![write])));
            assert_eq!(c.function.objects.qps.len(), left, "{count} bytes");
        }
    }
}
