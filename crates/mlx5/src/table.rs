//! Tables of objects: by handle (an index, and a generation that distinguishes reused indices), and by the adapter's
//! number, which events use.

use std::collections::HashMap;

use hca_core::DeviceError;

/// Objects of one kind.
pub(crate) struct Table<T> {
    what: &'static str,
    limit: u32,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Indices of those that have a number.
    numbers: HashMap<u32, u32>,
}

struct Slot<T> {
    generation: u32,
    number: Option<u32>,
    value: Option<T>,
}

impl<T> Table<T> {
    /// An empty table of at most `limit` objects; `what` is the kind's name in errors.
    pub(crate) fn new(what: &'static str, limit: u32) -> Self {
        Self { what, limit, slots: Vec::new(), free: Vec::new(), numbers: HashMap::new() }
    }

    /// Puts an object in and returns its index and generation.
    pub(crate) fn insert(&mut self, value: T) -> Result<(u32, u32), DeviceError> {
        self.insert_with(|_, _| value)
    }
    /// Like [`insert`](Self::insert), of an object that has to know its index and generation.
    pub(crate) fn insert_with(
        &mut self,
        make: impl FnOnce(u32, u32) -> T,
    ) -> Result<(u32, u32), DeviceError> {
        self.check_room()?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, number: None, value: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(make(index, slot.generation));
        Ok((index, slot.generation))
    }
    /// Like [`insert_with`](Self::insert_with), of an object that the adapter knows by a number.
    pub(crate) fn insert_numbered(
        &mut self,
        number: u32,
        make: impl FnOnce(u32, u32) -> T,
    ) -> Result<(u32, u32), DeviceError> {
        let (index, generation) = self.insert_with(make)?;
        self.slots[index as usize].number = Some(number);
        self.numbers.insert(number, index);
        Ok((index, generation))
    }
    /// Whether there is room for another.
    pub(crate) fn check_room(&self) -> Result<(), DeviceError> {
        if self.len() < self.limit {
            return Ok(());
        }
        Err(DeviceError::LimitReached { what: self.what, limit: self.limit.into() })
    }

    /// The object of a handle.
    pub(crate) fn find(&self, index: u32, generation: u32) -> Result<&T, DeviceError> {
        let slot = self.slots.get(index as usize).filter(|s| s.generation == generation);
        slot.and_then(|s| s.value.as_ref()).ok_or_else(|| self.unknown(index))
    }
    /// The object that the adapter knows by this number. Its cost does not grow with the objects.
    pub(crate) fn by_number(&self, number: u32) -> Option<&T> {
        let index = *self.numbers.get(&number)?;
        self.slots[index as usize].value.as_ref()
    }
    /// The object of a handle, to be changed.
    pub(crate) fn find_mut(&mut self, index: u32, generation: u32) -> Result<&mut T, DeviceError> {
        let unknown = self.unknown(index);
        let slot = self.slots.get_mut(index as usize).filter(|s| s.generation == generation);
        slot.and_then(|s| s.value.as_mut()).ok_or(unknown)
    }
    /// Takes the object of a handle out.
    pub(crate) fn remove(&mut self, index: u32, generation: u32) -> Result<T, DeviceError> {
        let unknown = self.unknown(index);
        let slot = self.slots.get_mut(index as usize).filter(|s| s.generation == generation);
        let slot = slot.filter(|s| s.value.is_some()).ok_or(unknown)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        // The adapter may have given its number to another one already.
        if let Some(number) = slot.number.take()
            && self.numbers.get(&number) == Some(&index)
        {
            self.numbers.remove(&number);
        }
        Ok(slot.value.take().expect("it was seen above"))
    }

    /// All objects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|s| s.value.as_ref())
    }
    /// The number.
    pub(crate) fn len(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    fn unknown(&self, index: u32) -> DeviceError {
        DeviceError::UnknownHandle { what: self.what, handle: index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_outlived_its_object_is_refused_and_room_is_used_again() {
        let mut t = Table::new("thing", 2);
        let a = t.insert('a').unwrap();
        let b =
            t.insert_with(|index, generation| if (index, generation) == (1, 0) { 'b' } else { '?' }).unwrap();
        let full = t.insert('c').unwrap_err().to_string();
        assert!(full.contains("another thing") && full.contains("limit is 2"), "{full}");
        assert_eq!(t.remove(a.0, a.1).unwrap(), 'a');
        assert!(t.find(a.0, a.1).is_err() && t.remove(a.0, a.1).is_err() && t.find_mut(a.0, a.1).is_err());
        let c = t.insert('c').unwrap();
        assert_eq!((c.0, t.len()), (a.0, 2));
        assert!(t.find(a.0, a.1).is_err(), "the old handle names nothing");
        *t.find_mut(c.0, c.1).unwrap() = 'd';
        assert_eq!(t.find(b.0, b.1).unwrap(), &'b');
        assert_eq!(t.iter().collect::<String>(), "db");
        assert!(t.find(7, 0).is_err());
    }

    #[test]
    fn an_object_is_found_by_the_adapters_number_until_it_is_gone() {
        let mut t = Table::new("thing", 3);
        let a = t.insert_numbered(0xff_ffff, |_, _| 'a').unwrap();
        let b = t.insert_numbered(7, |_, _| 'b').unwrap();
        let found = |t: &Table<char>, number| t.by_number(number).copied();
        assert_eq!((found(&t, 0xff_ffff), found(&t, 7), found(&t, 0)), (Some('a'), Some('b'), None));
        // The adapter uses a number again before the handle is given back.
        let c = t.insert_numbered(7, |_, _| 'c').unwrap();
        t.remove(b.0, b.1).unwrap();
        assert_eq!(found(&t, 7), Some('c'));
        t.remove(c.0, c.1).unwrap();
        t.remove(a.0, a.1).unwrap();
        assert_eq!((found(&t, 7), found(&t, 0xff_ffff)), (None, None));
        assert_eq!(t.insert('d').unwrap().0, a.0, "room is used again, without the number");
        assert_eq!(found(&t, 0xff_ffff), None);
    }
}
