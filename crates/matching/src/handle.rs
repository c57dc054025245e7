//! Handles, and the tables behind them. A handle of a freed object never names another object.

use std::num::NonZeroU64;

const INDEX_BITS: u32 = 24;
/// The one of the handle that [`NonZeroU64::MAX`] would be is left out.
const LAST_GENERATION: u64 = (u64::MAX >> INDEX_BITS) - 1;
/// How many objects of a kind an interface can hold.
pub(crate) const MAX_OBJECTS: u32 = 1 << INDEX_BITS;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// A handle of 24 bits of index and 40 bits of generation: handles of freed objects are refused.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) Key);

        impl $name {
            /// The handle as a number, to be stored where only numbers are.
            pub const fn to_bits(self) -> u64 {
                self.0.0.get()
            }
            /// The object's index: below the interface's limit for such objects, and unique while the object exists. A
            /// caller that keeps data for each object can use it as the index of a table.
            #[inline]
            pub const fn index(self) -> u32 {
                self.0.index()
            }
            /// A handle from such a number. Calls refuse a made-up handle, 0 included.
            pub const fn from_bits(bits: u64) -> Self {
                Self(Key(match NonZeroU64::new(bits) {
                    Some(bits) => bits,
                    None => NonZeroU64::MAX,
                }))
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({}.{})"), self.0.index(), self.0.generation())
            }
        }
    };
}
handle! { /// Names an entry of a list.
EntryHandle }
handle! { /// Names a memory descriptor: attached to an entry (3.3), or an initiator's.
MdHandle }
handle! { /// Names an event queue.
EqHandle }
handle! { /// Names a counting event.
CtHandle }

/// An object that [`Interface::released`](crate::Interface::released) reports: no operation needs its memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// An entry.
    Entry(EntryHandle),
    /// A memory descriptor.
    Md(MdHandle),
}

/// Index and generation in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Key(NonZeroU64);

impl Key {
    /// Generations begin at 1.
    const fn new(index: u32, generation: u64) -> Self {
        Self(NonZeroU64::new(generation << INDEX_BITS | index as u64).expect("generations are not 0"))
    }
    pub(crate) const fn index(self) -> u32 {
        (self.0.get() & (MAX_OBJECTS as u64 - 1)) as u32
    }
    const fn generation(self) -> u64 {
        self.0.get() >> INDEX_BITS
    }
}

/// A table of objects with a limit.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: u32,
    len: u32,
}

#[derive(Debug)]
struct Slot<T> {
    key: Key,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit: limit.min(MAX_OBJECTS), len: 0 }
    }
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }
    /// `None` if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<Key> {
        if self.len == self.limit {
            return None;
        }
        self.len += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Some(slot.key);
        }
        let key = Key::new(self.slots.len() as u32, 1);
        self.slots.push(Slot { key, value: Some(value) });
        Some(key)
    }
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index() as usize)?;
        if slot.key == key { slot.value.as_ref() } else { None }
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index() as usize)?;
        if slot.key == key { slot.value.as_mut() } else { None }
    }
    /// The object at an index that something live refers to.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> &T {
        self.slots[index as usize].value.as_ref().expect("a live object is referred to")
    }
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut T {
        self.slots[index as usize].value.as_mut().expect("a live object is referred to")
    }
    /// The same with its handle.
    #[inline(always)]
    pub(crate) fn entry_mut(&mut self, index: u32) -> (Key, &mut T) {
        let slot = &mut self.slots[index as usize];
        (slot.key, slot.value.as_mut().expect("a live object is referred to"))
    }
    /// The handle of the object at an index.
    #[inline]
    pub(crate) fn key_at(&self, index: u32) -> Key {
        self.slots[index as usize].key
    }
    /// Frees the place of a live object.
    pub(crate) fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert!(slot.value.is_some(), "a live object is removed");
        slot.value = None;
        slot.key = Key::new(index, slot.key.generation() % LAST_GENERATION + 1);
        self.free.push(index);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_place_has_another_handle() {
        let mut slab = Slab::new(1);
        let a = slab.insert('a').unwrap();
        assert_eq!(slab.insert('b'), None, "the limit");
        slab.remove(a.index());
        let c = slab.insert('c').unwrap();
        assert_eq!((slab.get(a), slab.get(c), slab.len()), (None, Some(&'c'), 1));
        assert_ne!(a, c);
    }

    #[test]
    fn a_place_has_a_trillion_handles_before_the_first_comes_again() {
        let mut slab = Slab::new(1);
        let handles = [1, 2, 3].map(|generation| {
            let key = slab.insert('a').unwrap();
            assert_eq!((key.index(), key.generation()), (0, generation));
            assert_eq!(format!("{:?}", EqHandle(key)), format!("EqHandle(0.{generation})"));
            slab.remove(0);
            key
        });
        assert_eq!(LAST_GENERATION, (1 << 40) - 2);
        slab.slots[0].key = Key::new(0, LAST_GENERATION);
        let last = slab.insert('b').unwrap();
        assert_eq!(slab.get(last), Some(&'b'));
        slab.remove(0);
        assert_eq!(slab.insert('c'), Some(handles[0]));
        // Of no handle's bits are all set: they stand for none.
        assert_ne!(Key::new(MAX_OBJECTS - 1, LAST_GENERATION), EqHandle::from_bits(0).0);
    }

    #[test]
    fn a_made_up_handle_is_refused() {
        let slab: Slab<u8> = Slab::new(4);
        for bits in [0, 1, 1 << 24, u64::MAX] {
            assert_eq!(slab.get(EqHandle::from_bits(bits).0), None);
        }
    }
}
