//! Global pointers and spread arrays.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::Error;

/// A place in the memory of a process: of an element of type `T`. Made by [`Spread`], which checks its bounds.
#[derive(Debug)]
pub struct GlobalPtr<T> {
    pub(crate) rank: u32,
    pub(crate) offset: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for GlobalPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for GlobalPtr<T> {}

impl<T> GlobalPtr<T> {
    /// The process that has the memory.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }
}

/// An array that is spread over all processes: each has as many elements. Made by all of them with
/// [`Process::spread`](crate::Process::spread).
#[derive(Debug)]
pub struct Spread<T> {
    pub(crate) offset: u64,
    len: usize,
    size: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Spread<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Spread<T> {}

impl<T: Pod> Spread<T> {
    pub(crate) fn new(offset: u64, len: usize, size: usize) -> Self {
        Self { offset, len, size, of: PhantomData }
    }
    /// The elements that each process has.
    #[allow(clippy::len_without_is_empty)] // an empty one is not made
    pub fn len(&self) -> usize {
        self.len
    }
    /// The place of an element of a process.
    ///
    /// # Errors
    /// There is no such process, or it has fewer elements.
    pub fn at(&self, rank: usize, index: usize) -> Result<GlobalPtr<T>, Error> {
        self.part(rank, index, 1)
    }
    /// The place of the first of `count` elements of a process.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub fn part(&self, rank: usize, first: usize, count: usize) -> Result<GlobalPtr<T>, Error> {
        if rank >= self.size {
            return Err(Error::Rank { rank, size: self.size });
        }
        self.check(first, count)?;
        let offset = self.offset + (first * size_of::<T>()) as u64;
        Ok(GlobalPtr { rank: rank as u32, offset, of: PhantomData })
    }
    /// The place of an element of the whole array, whose elements go round the processes: `a[i]::` of Split-C.
    ///
    /// # Errors
    /// The array has fewer elements.
    pub fn cyclic(&self, index: usize) -> Result<GlobalPtr<T>, Error> {
        self.at(index % self.size, index / self.size)
    }
    pub(crate) fn check(&self, first: usize, count: usize) -> Result<(), Error> {
        match first.checked_add(count) {
            Some(end) if end <= self.len => Ok(()),
            end => Err(Error::Bounds { first, end: end.unwrap_or(usize::MAX), len: self.len }),
        }
    }
}
