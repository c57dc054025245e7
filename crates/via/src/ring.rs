//! The descriptors that a work queue has, by their numbers: they are counted as they are posted.

use crate::{Done, Status};

/// In a queue: a descriptor that was posted, with what is known of its end. Without `DONE` in its status word to be, the
/// device has the descriptor.
impl Done {
    /// Its end is this error.
    pub(crate) fn fail(&mut self, error: Status) {
        (self.status, self.length) = (self.status & Status::OP | Status::DONE | error, 0);
    }
    pub(crate) fn has_end(&self) -> bool {
        self.status.contains(Status::DONE)
    }
    /// Writes the end to the descriptor.
    #[inline]
    pub(crate) fn tell(&self) {
        if let Some(immediate) = self.immediate {
            self.descriptor.set_immediate(immediate);
        }
        self.descriptor.end(self.length, self.status);
    }
}

/// A FIFO.
pub(crate) struct Ring {
    /// A power of two, and more than the FIFO takes: the place behind the last descriptor is free.
    places: Box<[Option<Done>]>,
    first: u64,
    next: u64,
}

impl Ring {
    pub(crate) fn new(depth: usize) -> Self {
        let places = (0..(depth + 1).next_power_of_two()).map(|_| None).collect();
        Self { places, first: 0, next: 0 }
    }
    pub(crate) fn len(&self) -> usize {
        (self.next - self.first) as usize
    }
    /// The number of the first descriptor.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }
    /// The number of the next descriptor.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }
    #[inline]
    fn place(&mut self, number: u64) -> &mut Option<Done> {
        let mask = self.places.len() - 1;
        &mut self.places[number as usize & mask]
    }
    /// The descriptor of a number from the first to the next one, which is not there.
    #[inline]
    pub(crate) fn at(&mut self, number: u64) -> Option<&mut Done> {
        self.place(number).as_mut()
    }
    /// The place of the next descriptor, which is there from now on. The caller has seen that there is room.
    #[inline]
    pub(crate) fn vacant(&mut self) -> &mut Option<Done> {
        let number = self.next;
        self.next += 1;
        let place = self.place(number);
        assert!(place.is_none(), "the place behind the last descriptor is free");
        place
    }
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Done> {
        let posted = self.place(self.first).take()?;
        self.first += 1;
        Some(posted)
    }
}
