//! The ring of an Ethernet queue in the client's memory, and its doorbell record.

use hca_prm::{CmdStatus, Wq, pas};

use crate::guest::{Fault, Guest};

/// A ring of entries. What it names is looked up whenever it is read, so memory may come and go.
#[derive(Debug)]
pub(super) struct Ring {
    pages: Vec<u64>,
    log_page: u32,
    /// Where in the first page it begins.
    first: u64,
    pub(super) log_size: u32,
    log_stride: u32,
    record: u64,
}

impl Ring {
    /// That of a context, whose pages follow the command's layout.
    pub(super) fn new(
        wq: &Wq,
        max_log_size: u32,
        log_strides: core::ops::RangeInclusive<u32>,
        list: &[u8],
    ) -> Result<Self, CmdStatus> {
        let (log_size, log_stride) = (wq.get(Wq::LOG_WQ_SZ), wq.get(Wq::LOG_WQ_STRIDE));
        let log_page = wq.get(Wq::LOG_WQ_PG_SZ) + 12;
        let first = u64::from(wq.get(Wq::PAGE_OFFSET)) << (log_page - 6);
        let fits = log_size <= max_log_size
            && log_page <= 30
            && log_strides.contains(&log_stride)
            && first.is_multiple_of(1 << log_stride)
            && !wq.get(Wq::DBR_UMEM_VALID)
            && !wq.get(Wq::WQ_UMEM_VALID);
        if !fits {
            return Err(CmdStatus::BadParam);
        }
        let needed = (first + (1 << (log_size + log_stride))).div_ceil(1 << log_page) as usize;
        // No more than are needed: a client is not to have the rest kept.
        let pages: Vec<u64> = pas::iter(list).take(needed).collect();
        if pages.len() < needed {
            return Err(CmdStatus::BadInpLen);
        }
        Ok(Self { pages, log_page, first, log_size, log_stride, record: wq.get(Wq::DBR_ADDR) })
    }

    /// Copies entries from `index` on; behind the last one comes the first.
    pub(super) fn read(&self, guest: &Guest, index: u16, into: &mut [u8]) -> Result<(), Fault> {
        for (slot, part) in (u64::from(index)..).zip(into.chunks_mut(1 << self.log_stride)) {
            let within = (slot & ((1 << self.log_size) - 1)) << self.log_stride;
            let at = self.first + within;
            let page = self.pages[(at >> self.log_page) as usize];
            guest.read(page.saturating_add(at & ((1 << self.log_page) - 1)), part)?;
        }
        Ok(())
    }

    /// Entries that it has.
    pub(super) fn entries(&self) -> u32 {
        1 << self.log_size
    }

    /// Bytes of an entry.
    pub(super) fn stride(&self) -> usize {
        1 << self.log_stride
    }

    /// The counter in the record's word at `at`; `None`: it can't be read.
    pub(super) fn counter(&self, guest: &Guest, at: u64) -> Option<u16> {
        let mut word = [0; 4];
        guest.read(self.record.checked_add(at)?, &mut word).ok()?;
        let [_, _, high, low] = word;
        Some(u16::from_be_bytes([high, low]))
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }
}
