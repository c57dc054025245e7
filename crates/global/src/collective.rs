//! Collectives: barrier, broadcast, reduction, scan.

use bytemuck::Pod;

use crate::process::ELEMENT;
use crate::state::{BARRIER, DATA};
use crate::{Error, Process};

impl Process {
    /// Waits until all processes have called it.
    ///
    /// # Errors
    /// A process is gone.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.epoch = self.epoch.wrapping_add(1);
        let (epoch, rank, size) = (self.epoch, self.rank(), self.size());
        // In round k each process tells the one 2^k further, and hears of the one 2^k behind.
        let (mut distance, mut round) = (1, 0);
        while distance < size {
            self.request((rank + distance) % size, BARRIER, &[epoch, round])?;
            self.until(|state| state.arrived.remove(&(epoch, round)))?;
            (distance, round) = (2 * distance, round + 1);
        }
        Ok(())
    }
    /// Sends the elements of one process to all. All processes call it, with as many elements.
    ///
    /// # Errors
    /// A process is gone, or calls with another number.
    pub fn broadcast<T: Pod>(&mut self, root: usize, elements: &mut [T]) -> Result<(), Error> {
        let (rank, size) = (self.rank(), self.size());
        if root >= size {
            return Err(Error::Rank { rank: root, size });
        }
        let number = self.begin();
        let own = (rank + size - root) % size;
        // A tree: each process has it from the one whose number lacks the highest bit of its own.
        let mut bit = size.next_power_of_two();
        let parent = (own > 0).then(|| own ^ (1 << own.ilog2()));
        if let Some(parent) = parent {
            self.receive((parent + root) % size, number, elements)?;
        }
        let lowest = if own > 0 { 2 << own.ilog2() } else { 1 };
        while bit >= lowest {
            if own + bit < size {
                self.tell((own + bit + root) % size, number, elements)?;
            }
            bit /= 2;
        }
        Ok(())
    }
    /// Combines the elements of all processes, one by one and in the order of ranks, at one process; the others get back
    /// what they gave. All processes call it, with as many elements.
    ///
    /// # Errors
    /// A process is gone, or calls with another number.
    pub fn reduce<T: Pod>(
        &mut self,
        root: usize,
        elements: &mut [T],
        combine: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        let size = self.size();
        if root >= size {
            return Err(Error::Rank { rank: root, size });
        }
        let mut sums = elements.to_vec();
        self.scan(&mut sums, combine)?;
        let number = self.begin();
        let last = size - 1;
        if self.rank() == last && root != last {
            self.tell(root, number, &sums)?;
        }
        if self.rank() == root {
            if root != last {
                self.receive(last, number, &mut sums)?;
            }
            elements.copy_from_slice(&sums);
        }
        Ok(())
    }
    /// As [`reduce`](Self::reduce), at all processes.
    ///
    /// # Errors
    /// As there.
    pub fn all_reduce<T: Pod>(
        &mut self,
        elements: &mut [T],
        combine: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        self.scan(elements, combine)?;
        self.broadcast(self.size() - 1, elements)
    }
    /// Combines with the elements of all processes of lower ranks, one by one and in the order of ranks. All processes
    /// call it, with as many elements.
    ///
    /// # Errors
    /// A process is gone, or calls with another number.
    pub fn scan<T: Pod>(
        &mut self,
        elements: &mut [T],
        mut combine: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        let (rank, size) = (self.rank(), self.size());
        // In round k each process has combined 2^k processes up to its own.
        let mut distance = 1;
        let mut before = elements.to_vec();
        while distance < size {
            let number = self.begin();
            if rank + distance < size {
                self.tell(rank + distance, number, elements)?;
            }
            if rank >= distance {
                self.receive(rank - distance, number, &mut before)?;
                for (own, before) in elements.iter_mut().zip(&before) {
                    *own = combine(*before, *own);
                }
            }
            distance *= 2;
        }
        Ok(())
    }
    /// Whether all processes have the same value.
    pub(crate) fn agree(&mut self, value: u64) -> Result<(), Error> {
        let mut first = [value];
        self.broadcast(0, &mut first)?;
        let mut wrong = [if first[0] == value { u64::MAX } else { self.rank() as u64 }];
        self.all_reduce(&mut wrong, u64::min)?;
        if wrong[0] == u64::MAX { Ok(()) } else { Err(Error::Mismatch { rank: wrong[0] as usize }) }
    }

    fn begin(&mut self) -> u32 {
        self.collective = self.collective.wrapping_add(1);
        self.collective
    }
    /// Sends elements to a process, as a part of a collective.
    fn tell<T: Pod>(&mut self, rank: usize, number: u32, elements: &[T]) -> Result<(), Error> {
        let (own, bytes) = (self.rank() as u32, bytemuck::cast_slice::<T, u8>(elements));
        // An empty message is one part.
        let parts = bytes.len().div_ceil(ELEMENT).max(1);
        for part in 0..parts {
            let piece = &bytes[part * ELEMENT..bytes.len().min((part + 1) * ELEMENT)];
            // The lowest bits of the length tell apart what differs.
            let args = [number, own, bytes.len() as u32];
            let sent = self.bundle.request_medium(self.ep, rank, DATA, &args, piece);
            sent.map_err(|error| self.failure(rank, error))?;
        }
        Ok(())
    }
    /// Receives elements of a process.
    fn receive<T: Pod>(&mut self, rank: usize, number: u32, elements: &mut [T]) -> Result<(), Error> {
        let bytes = bytemuck::cast_slice_mut::<T, u8>(elements);
        let mut at = 0;
        loop {
            let key = (number, rank as u32);
            let (len, part) = self.until(|state| {
                let parts = state.parts.get_mut(&key)?;
                let part = parts.pop_front();
                if parts.is_empty() {
                    state.parts.remove(&key);
                }
                part
            })?;
            if len.is_some_and(|len| len != bytes.len() as u32) {
                return Err(Error::Mismatch { rank });
            }
            let into = bytes.get_mut(at..at + part.len()).ok_or(Error::Mismatch { rank })?;
            into.copy_from_slice(&part);
            at += part.len();
            if at == bytes.len() {
                return Ok(());
            }
            if part.len() < ELEMENT {
                return Err(Error::Mismatch { rank });
            }
        }
    }
}
