//! A table of objects with reused indices, and a generation for each use of an index.

use std::collections::VecDeque;

use hca_core::DeviceError;

pub(crate) struct Slab<T> {
    /// What its objects are called in errors.
    what: &'static str,
    slots: Vec<Slot<T>>,
    /// The slot that was freed longest ago is used again first.
    free: VecDeque<u32>,
    /// So many free slots are left unused as long as there are new ones.
    spared: usize,
    limit: u32,
    len: u32,
    first_generation: u32,
    /// How often a slot was looked at.
    #[cfg(test)]
    looks: core::cell::Cell<u64>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(what: &'static str, limit: u32) -> Self {
        Self {
            what,
            slots: Vec::new(),
            free: VecDeque::new(),
            spared: 0,
            limit,
            len: 0,
            first_generation: 0,
            #[cfg(test)]
            looks: core::cell::Cell::new(0),
        }
    }
    /// A table whose slots begin with this generation, and are used again late: no slot is before so many others were
    /// freed behind it, or the table is full.
    pub(crate) fn beginning_at(what: &'static str, limit: u32, first_generation: u32, spared: usize) -> Self {
        Self { spared, first_generation, ..Self::new(what, limit) }
    }
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
    /// How often a slot was looked at, by whichever way.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.looks.get()
    }
    #[inline(always)]
    fn note_look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }
    /// Index and generation that the next insertion will have, if the table is not full.
    pub(crate) fn vacant(&self) -> Result<(u32, u32), DeviceError> {
        let new = self.slots.len() as u32;
        if new < self.limit && self.free.len() <= self.spared {
            return Ok((new, self.first_generation));
        }
        let oldest = self.free.front().map(|&i| (i, self.slots[i as usize].generation));
        oldest.ok_or(DeviceError::LimitReached { what: self.what, limit: self.limit.into() })
    }
    /// Inserts into the slot that [`vacant`](Self::vacant) names.
    pub(crate) fn insert(&mut self, value: T) -> Result<(u32, u32), DeviceError> {
        let (index, generation) = self.vacant()?;
        match self.slots.get_mut(index as usize) {
            Some(slot) => {
                slot.value = Some(value);
                self.free.pop_front();
            }
            None => self.slots.push(Slot { generation, value: Some(value) }),
        }
        self.len += 1;
        Ok((index, generation))
    }
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.note_look();
        self.slots.get(index as usize)?.value.as_ref()
    }
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.note_look();
        self.slots.get_mut(index as usize)?.value.as_mut()
    }
    #[inline]
    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        self.note_look();
        match self.slots.get(index as usize) {
            Some(Slot { generation: g, value: Some(value) }) if *g == generation => Some(value),
            _ => None,
        }
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        self.note_look();
        match self.slots.get_mut(index as usize) {
            Some(Slot { generation: g, value: Some(value) }) if *g == generation => Some(value),
            _ => None,
        }
    }
    /// As [`get`](Self::get), [`get_mut`](Self::get_mut) and [`remove`](Self::remove), for a program's handle.
    pub(crate) fn known(&self, index: u32, generation: u32) -> Result<&T, DeviceError> {
        self.get(index, generation).ok_or(DeviceError::UnknownHandle { what: self.what, handle: index })
    }
    pub(crate) fn known_mut(&mut self, index: u32, generation: u32) -> Result<&mut T, DeviceError> {
        let unknown = DeviceError::UnknownHandle { what: self.what, handle: index };
        self.get_mut(index, generation).ok_or(unknown)
    }
    pub(crate) fn take(&mut self, index: u32, generation: u32) -> Result<T, DeviceError> {
        let unknown = DeviceError::UnknownHandle { what: self.what, handle: index };
        self.remove(index, generation).ok_or(unknown)
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
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            self.note_look();
            Some((i as u32, s.value.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_generation() {
        let mut s = Slab::new("letter", 1);
        assert_eq!(s.insert('a').unwrap(), (0, 0));
        assert!(matches!(s.insert('b'), Err(DeviceError::LimitReached { what: "letter", limit: 1 })));
        assert_eq!(s.remove(0, 0), Some('a'));
        assert_eq!(s.insert('c').unwrap(), (0, 1));
        assert_eq!((s.get(0, 0), s.get(0, 1), s.len()), (None, Some(&'c'), 1));
    }

    #[test]
    fn a_slot_is_used_again_once_so_many_were_freed_behind_it_or_there_is_no_other() {
        let mut s = Slab::beginning_at("thing", 4, 7, 2);
        let mut used = Vec::new();
        for _ in 0..4 {
            let (index, generation) = s.insert(()).unwrap();
            used.push((index, generation));
            s.remove(index, generation);
        }
        assert_eq!(used, [(0, 7), (1, 7), (2, 7), (0, 8)]);
        let rest = [(); 5].map(|()| s.insert(()).ok());
        assert_eq!(rest, [Some((1, 8)), Some((3, 7)), Some((2, 8)), Some((0, 9)), None]);
    }
}
