//! Arrays of a power of two of elements, with indices that count without wrapping.
//!
//! Invariants:
//! 1. There is a power of two of elements, so at least one, and `mask` is one less.
#![allow(unsafe_code)]

/// A fixed list of a power of two of elements.
pub(crate) struct Masked<T> {
    elements: Box<[T]>,
    mask: usize,
}

impl<T> Masked<T> {
    /// Of these.
    ///
    /// # Panics
    /// If they are no power of two.
    pub(crate) fn new(elements: impl IntoIterator<Item = T>) -> Self {
        let elements: Box<[T]> = elements.into_iter().collect();
        // (1)
        assert!(elements.len().is_power_of_two(), "{} elements", elements.len());
        Self { mask: elements.len() - 1, elements }
    }
    /// The element of a number.
    #[inline(always)]
    pub(crate) fn get(&self, number: usize) -> &T {
        // SAFETY: (1) what is masked by one less than a power of two is less than that.
        unsafe { self.elements.get_unchecked(number & self.mask) }
    }
    /// One less than there are.
    #[inline(always)]
    pub(crate) fn mask(&self) -> usize {
        self.mask
    }
    /// The same, to be changed.
    pub(crate) fn get_mut(&mut self, number: usize) -> &mut T {
        &mut self.elements[number & self.mask]
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.elements.iter()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_around() {
        let mut m = Masked::new(0..4);
        *m.get_mut(6) += 10;
        let seen = [0, 5, usize::MAX, 2].map(|n| *m.get(n));
        assert_eq!((seen, m.iter().sum::<i32>(), *Masked::new([9]).get(77)), ([0, 1, 3, 12], 16, 9));
        for n in [0, 3] {
            assert!(std::panic::catch_unwind(|| Masked::new(0..n)).is_err());
        }
    }
}
