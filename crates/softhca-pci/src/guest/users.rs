//! Which objects show which client memory: memory that goes takes its keys and queues with it, and nobody looks at
//! others.

use std::collections::{BTreeMap, btree_map};
use std::iter::Flatten;
use std::ops::{Deref, RangeInclusive};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashSet;

use super::Window;

/// Cells in which the ranges of one object are noted, about, where it has more ranges.
const MOST_CELLS: u64 = 1024;

/// Objects of one kind, by the client memory of which they show parts.
///
/// Addresses are cut into cells, of 4 KiB, 8 KiB and so on. Joined ranges of which an object shows parts are in one or
/// two cells, of the least size that they fit into. Where there are very many the object is in the cells of one size in
/// which they lie.
#[derive(Debug, Default)]
pub(crate) struct Users {
    /// By the logarithm of their size.
    sizes: BTreeMap<u32, BTreeMap<u64, FxHashSet<u32>>>,
}

/// The objects of cells, cell by cell.
pub(crate) type Cells = Flatten<btree_map::IntoValues<u32, BTreeMap<u64, FxHashSet<u32>>>>;

impl Users {
    /// The cells in which ranges lie that are in order, and their sizes; some more than once.
    fn cells(ranges: &[(u64, u64)]) -> impl Iterator<Item = (u32, RangeInclusive<u64>)> {
        let size = |bytes: u64| bytes.checked_next_power_of_two().map_or(63, u64::ilog2).max(12);
        let span = |(begin, end): (u64, u64)| end - begin;
        let all = ranges.first().zip(ranges.last()).map_or((0, 0), |(first, last)| (first.0, last.1));
        let coarse = size(span(all) / MOST_CELLS);
        let many = ranges.len() as u64 > MOST_CELLS;
        let mut noted = None;
        ranges.iter().filter_map(move |&range| {
            let log = if many { coarse } else { size(span(range)) };
            let cells = range.0 >> log..=(range.1 - 1) >> log;
            let new = !many || noted != Some(*cells.end()) || cells.start() != cells.end();
            noted = Some(*cells.end());
            new.then_some((log, cells))
        })
    }
    pub(crate) fn add(&mut self, ranges: &[(u64, u64)], user: u32) {
        for (log, cells) in Self::cells(ranges) {
            let of_size = self.sizes.entry(log).or_default();
            for cell in cells {
                of_size.entry(cell).or_default().insert(user);
            }
        }
    }
    pub(crate) fn remove(&mut self, ranges: &[(u64, u64)], user: u32) {
        for (log, cells) in Self::cells(ranges) {
            let Some(of_size) = self.sizes.get_mut(&log) else { continue };
            for cell in cells {
                let btree_map::Entry::Occupied(mut users) = of_size.entry(cell) else { continue };
                users.get_mut().remove(&user);
                if users.get().is_empty() {
                    users.remove();
                }
            }
        }
    }
    /// Those that may show parts of a range, and maybe others near by; some more than once.
    pub(crate) fn near(&self, iova: u64, size: u64) -> impl Iterator<Item = u32> {
        let last = iova.saturating_add(size.saturating_sub(1));
        let cells = self.sizes.iter().flat_map(move |(log, cells)| cells.range(iova >> log..=last >> log));
        cells.flat_map(|(_, users)| users.iter().copied())
    }
    pub(crate) fn into_cells(self) -> Cells {
        self.sizes.into_values().flatten()
    }
}

/// The objects of a kind, of which each notes and forgets itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedUsers(Arc<Mutex<Users>>);

impl SharedUsers {
    fn with<T>(&self, look: impl FnOnce(&mut Users) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Notes that an object has this memory, for as long as it has.
    pub(crate) fn note<M: Windows>(&self, user: u32, memory: M) -> Noted<M> {
        self.with(|users| memory.windows().for_each(|window| users.add(window.ranges(), user)));
        Noted { memory, user, users: self.clone() }
    }
    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.with(|users| users.near(0, u64::MAX).collect::<FxHashSet<u32>>().len())
    }
    /// So many of those that may show parts of a range, and maybe others near by, for which `is` holds.
    pub(crate) fn near(&self, iova: u64, size: u64, most: usize, is: impl Fn(u32) -> bool) -> Vec<u32> {
        self.with(|users| users.near(iova, size).filter(|user| is(*user)).take(most).collect())
    }
}

/// Client memory in windows.
pub(crate) trait Windows {
    /// The windows.
    fn windows(&self) -> impl Iterator<Item = &Window>;
}

/// The client memory of an object, which is found by it.
#[derive(Debug)]
pub(crate) struct Noted<M: Windows> {
    memory: M,
    user: u32,
    users: SharedUsers,
}

impl<M: Windows> Noted<M> {
    /// Whether a range of which it shows a part lies here, at least in part.
    pub(crate) fn touches(&self, iova: u64, size: u64) -> bool {
        self.memory.windows().any(|window| window.touches(iova, size))
    }
}

impl<M: Windows> Deref for Noted<M> {
    type Target = M;
    #[inline]
    fn deref(&self) -> &M {
        &self.memory
    }
}
impl<M: Windows> Drop for Noted<M> {
    fn drop(&mut self) {
        let Self { memory, user, users } = self;
        users.with(|users| memory.windows().for_each(|window| users.remove(window.ranges(), *user)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guest::PAGE;

    const BASE: u64 = 1 << 32;

    #[test]
    fn what_has_very_many_ranges_is_noted_in_few_cells() {
        let mut of = Users::default();
        let ranges: Vec<(u64, u64)> =
            (0..5000).map(|n| (BASE + 3 * n * PAGE, BASE + (3 * n + 1) * PAGE)).collect();
        of.add(&[(BASE, BASE + PAGE)], 1);
        of.add(&ranges, 2);
        let cells: usize = of.sizes.values().map(std::collections::BTreeMap::len).sum();
        assert!((500..=1030).contains(&cells), "{cells}");
        for (begin, end) in &ranges {
            assert!(of.near(*begin, end - begin).any(|key| key == 2));
        }
        of.remove(&ranges, 2);
        assert_eq!(of.near(0, u64::MAX).collect::<Vec<_>>(), [1]);
    }

    proptest! {
        /// Against a plain list: everything that shows a part of memory that goes is near.
        #[test]
        fn the_users_of_a_range_are_found_whatever_their_sizes(
            keys in prop::collection::vec((0_u64..1 << 20, 1_u64..1 << 14), 1..40),
            gone in prop::collection::vec(any::<bool>(), 40),
            (at, len) in (0_u64..1 << 20, 1_u64..1 << 16),
        ) {
            let mut of = Users::default();
            let ranges: Vec<(u64, u64)> = keys.iter().map(|(at, len)| (at * PAGE, (at + len) * PAGE)).collect();
            for (key, range) in (0..).zip(&ranges) {
                of.add(&[*range], key);
            }
            for ((key, range), _) in (0..).zip(&ranges).zip(&gone).filter(|(_, gone)| **gone) {
                of.remove(&[*range], key);
            }
            let (begin, end) = (at * PAGE, (at + len) * PAGE);
            let near: Vec<u32> = of.near(begin, end - begin).collect();
            for ((key, range), gone) in (0..).zip(&ranges).zip(&gone) {
                let named = range.0 < end && begin < range.1;
                prop_assert!(near.contains(&key) || *gone || !named, "{key}");
                prop_assert!(!near.contains(&key) || !gone);
            }
            let all: std::collections::HashSet<u32> = of.near(0, u64::MAX).collect();
            prop_assert_eq!(all.len(), (0..keys.len()).filter(|i| !gone[*i]).count());
        }
    }
}
