//! Objects under 32-bit tokens that go over the wire: a token that is made up, or whose object is gone, names nothing.

const INDEX_BITS: u32 = 12;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// A table with a limit. Tokens are never 0.
pub(super) struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    limit: u32,
    len: u32,
}

impl<T> Slab<T> {
    /// `limit` is at most 4096.
    pub(super) fn new(limit: u32) -> Self {
        assert!(limit <= 1 << INDEX_BITS, "an index has {INDEX_BITS} bits");
        Self { slots: Vec::new(), free: Vec::new(), limit, len: 0 }
    }
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }
    pub(super) fn is_full(&self) -> bool {
        self.len == self.limit
    }
    /// # Panics
    /// It is full.
    #[inline]
    pub(super) fn insert(&mut self, value: T) -> u32 {
        assert!(!self.is_full(), "the limit of {} was looked at", self.limit);
        self.len += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((1, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(value);
        slot.0 << INDEX_BITS | index
    }
    #[inline]
    fn slot(&mut self, token: u32) -> Option<&mut (u32, Option<T>)> {
        self.slots.get_mut((token & INDEX_MASK) as usize).filter(|slot| slot.0 == token >> INDEX_BITS)
    }
    #[inline]
    pub(super) fn get_mut(&mut self, token: u32) -> Option<&mut T> {
        self.slot(token)?.1.as_mut()
    }
    #[inline]
    pub(super) fn remove(&mut self, token: u32) -> Option<T> {
        let slot = self.slot(token)?;
        let value = slot.1.take()?;
        slot.0 = slot.0 % (u32::MAX >> INDEX_BITS) + 1;
        self.free.push(token & INDEX_MASK);
        self.len -= 1;
        Some(value)
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.1.as_ref())
    }
    /// Takes all of them.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let tokens: Vec<u32> = (self.slots.iter().enumerate())
            .filter(|(_, slot)| slot.1.is_some())
            .map(|(i, slot)| slot.0 << INDEX_BITS | i as u32)
            .collect();
        tokens.into_iter().filter_map(|token| self.remove(token)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_one_object_only() {
        let mut slab = Slab::new(2);
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert!(slab.is_full() && a != 0 && b != 0);
        assert_eq!((slab.remove(a), slab.remove(a), slab.get_mut(a)), (Some('a'), None, None));
        let c = slab.insert('c');
        assert!(c != a && slab.get_mut(c) == Some(&mut 'c'));
        for made_up in [0, 1, a, u32::MAX, 5 << INDEX_BITS] {
            assert_eq!(slab.remove(made_up), None);
        }
        assert_eq!(slab.drain().len(), 2);
        assert!(slab.is_empty());
        assert_eq!(slab.remove(b), None);
    }

    #[test]
    fn a_place_that_has_had_all_its_tokens_begins_anew_and_not_with_0() {
        let mut slab = Slab::new(1);
        let first = slab.insert('a');
        slab.remove(first);
        slab.slots[0].0 = u32::MAX >> INDEX_BITS;
        let last = slab.insert('b');
        assert_eq!((last >> INDEX_BITS, slab.remove(last)), (u32::MAX >> INDEX_BITS, Some('b')));
        assert_eq!(slab.insert('c'), first);
        assert_eq!(slab.remove(first), Some('c'));
    }
}
