//! The memory of a driver, with an allocator of addresses in it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::sealed;
use crate::function::Function;

/// A file, and where it lies for the function.
pub(crate) struct Memory {
    pub(crate) file: File,
    base: u64,
    len: u64,
    used: u64,
}

impl Memory {
    pub(crate) fn new(base: u64, len: u64) -> Self {
        Self { file: sealed(len), base, len, used: 0 }
    }
    pub(crate) fn map(&self, function: &mut Function) -> Result<(), Errno> {
        let copy: OwnedFd = self.file.try_clone().unwrap().into();
        function.dma_map(self.base, self.len, (true, true), Some((copy, 0)))
    }
    /// A part that nobody has yet, by the function's address.
    pub(crate) fn alloc(&mut self, len: u64, align: u64) -> u64 {
        let at = self.used.next_multiple_of(align);
        self.used = at + len;
        assert!(self.used <= self.len, "the driver has no more memory");
        self.base + at
    }
    pub(crate) fn write(&self, iova: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, iova - self.base).unwrap();
    }
    pub(crate) fn read(&self, iova: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, iova - self.base).unwrap();
        bytes
    }
}
