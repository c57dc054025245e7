//! A table of objects with indices that are reused, and generations that tell so.

use std::collections::VecDeque;

pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The slot that was freed longest ago is used again first.
    free: VecDeque<u32>,
    limit: u32,
    len: u32,
    first_generation: u32,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(limit: u32) -> Self {
        Self::beginning_at(limit, 0)
    }
    /// A table whose slots begin with this generation.
    pub(crate) fn beginning_at(limit: u32, first_generation: u32) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), limit, len: 0, first_generation }
    }
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }
    /// Index and generation that the next insertion will have; `None` if the table is full.
    pub(crate) fn vacant(&self) -> Option<(u32, u32)> {
        match self.free.front() {
            Some(&i) => Some((i, self.slots[i as usize].generation)),
            None if (self.slots.len() as u64) < u64::from(self.limit) => {
                Some((self.slots.len() as u32, self.first_generation))
            }
            None => None,
        }
    }
    /// Inserts into the slot that [`vacant`](Self::vacant) names.
    pub(crate) fn insert(&mut self, value: T) -> Option<(u32, u32)> {
        let (index, generation) = self.vacant()?;
        if self.free.pop_front().is_some() {
            self.slots[index as usize].value = Some(value);
        } else {
            self.slots.push(Slot { generation, value: Some(value) });
        }
        self.len += 1;
        Some((index, generation))
    }
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }
    #[inline]
    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        self.slots.get(index as usize).filter(|s| s.generation == generation)?.value.as_ref()
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize).filter(|s| s.generation == generation)?.value.as_mut()
    }
    pub(crate) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize).filter(|s| s.generation == generation)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(index);
        self.len -= 1;
        Some(value)
    }
    /// All objects with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((i as u32, s.value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_generation() {
        let mut s = Slab::new(1);
        assert_eq!(s.insert('a'), Some((0, 0)));
        assert_eq!(s.insert('b'), None);
        assert_eq!(s.remove(0, 0), Some('a'));
        assert_eq!(s.insert('c'), Some((0, 1)));
        assert_eq!((s.get(0, 0), s.get(0, 1), s.len()), (None, Some(&'c'), 1));
    }
}
