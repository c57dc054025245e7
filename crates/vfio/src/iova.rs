//! Device addresses, and the allocation of free ones.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// An address in a device's address space (IOVA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Iova(pub u64);

impl core::fmt::Display for Iova {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Below it no address is given out, so that a descriptor full of zeros points nowhere.
const LOWEST: u64 = 1 << 20;
/// The address range in which writes are interrupts on x86, regardless of the IOMMU's mappings.
const MSI_WINDOW: RangeInclusive<u64> = 0xfee0_0000..=0xfeef_ffff;

/// The usable parts of the ranges that an IOMMU allows.
pub(crate) fn usable(ranges: &[RangeInclusive<u64>]) -> Vec<RangeInclusive<u64>> {
    let mut out = Vec::new();
    for r in ranges {
        let start = (*r.start()).max(LOWEST);
        if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
            out.push(start..=(*r.end()).min(*MSI_WINDOW.start() - 1));
            out.push(start.max(*MSI_WINDOW.end() + 1)..=*r.end());
        } else {
            out.push(start..=*r.end());
        }
    }
    out.retain(|r| !r.is_empty());
    out
}

/// Ranges of numbers that are free: the lowest place that fits is given out.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    granule: u64,
    /// First and last number of each free range; no two touch.
    free: BTreeMap<u64, u64>,
    /// Numbers in all ranges, free or not.
    total: u64,
}

impl Ranges {
    /// All of these is free, as far as it is whole granules.
    pub(crate) fn new(granule: u64, ranges: &[RangeInclusive<u64>]) -> Self {
        assert!(granule.is_power_of_two());
        let mut sorted: Vec<(u64, u64)> = ranges.iter().map(|r| (*r.start(), *r.end())).collect();
        sorted.sort_unstable();
        let mut this = Self { granule, free: BTreeMap::new(), total: 0 };
        let mut behind = 0_u64;
        for (start, last) in sorted {
            let Some(start) = start.max(behind).checked_next_multiple_of(granule) else { break };
            // The last granule that ends within; the very last number of all stays out, so that ends are numbers.
            let end = last.min(u64::MAX - granule).saturating_add(1) & !(granule - 1);
            if start < end {
                this.insert(start, end - 1);
                this.total += end - start;
                behind = end;
            }
        }
        this
    }

    /// Numbers in all ranges.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
    /// Whether nothing is given out.
    pub(crate) fn all_free(&self) -> bool {
        self.free.iter().map(|(s, l)| l - s + 1).sum::<u64>() == self.total
    }

    /// Takes `len` numbers, rounded up to granules, that begin at a multiple of `align`.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        self.take_like(len, align, 0)
    }

    /// Takes `len` numbers, rounded up to granules, that begin where `like` does within `align`, as whole granules.
    pub(crate) fn take_like(&mut self, len: u64, align: u64, like: u64) -> Option<u64> {
        assert!(align.is_power_of_two() && len > 0);
        let len = len.checked_next_multiple_of(self.granule)?;
        let align = align.max(self.granule);
        let rest = like & (align - 1) & !(self.granule - 1);
        let fits = |(start, last): (&u64, &u64)| {
            // The first number from `start` on whose rest is that; a step is no more than `align - 1`.
            let at = start.checked_add(rest.wrapping_sub(*start) & (align - 1))?;
            let end = at.checked_add(len - 1)?;
            (end <= *last).then_some((*start, *last, at, end))
        };
        let (start, last, at, end) = self.free.iter().find_map(fits)?;
        self.free.remove(&start);
        if start < at {
            self.free.insert(start, at - 1);
        }
        if end < last {
            self.free.insert(end + 1, last);
        }
        Some(at)
    }

    /// Frees a range that [`take`](Self::take) gave out.
    pub(crate) fn give(&mut self, at: u64, len: u64) {
        let len = len.next_multiple_of(self.granule);
        let last = at + (len - 1);
        let before = self.free.range(..=last).next_back();
        assert!(before.is_none_or(|(_, l)| *l < at), "{at:#x} and {len:#x} bytes behind it were free");
        self.insert(at, last);
    }

    /// Adds a range, and makes one of those that touch.
    fn insert(&mut self, mut start: u64, mut last: u64) {
        if let Some((s, l)) = self.free.range(..start).next_back().map(|(s, l)| (*s, *l))
            && l + 1 == start
        {
            self.free.remove(&s);
            start = s;
        }
        if let Some(l) = self.free.remove(&(last + 1)) {
            last = l;
        }
        self.free.insert(start, last);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_window_of_interrupts_and_the_lowest_megabyte_are_not_given_out() {
        let whole = usable(&[0..=u64::MAX]);
        assert_eq!(*whole[0].start(), LOWEST);
        let free = |at: u64| whole.iter().any(|r| r.contains(&at));
        assert!(free(1 << 20) && free(1 << 40) && !free(0) && !free((1 << 20) - 1));
        if cfg!(target_arch = "x86_64") {
            assert!(!free(0xfee0_0000) && !free(0xfeef_ffff) && free(0xfedf_ffff) && free(0xfef0_0000));
        }
        // What the kernel says of an Intel IOMMU of 39 bits.
        let of_kernel = usable(&[0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
        assert_eq!(of_kernel, [LOWEST..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    }

    #[test]
    fn only_whole_granules_of_the_ranges_are_given_out() {
        let mut r = Ranges::new(4096, &[100..=8191, 5000..=12_287, 20_000..=20_001]);
        assert_eq!(r.total(), 8192);
        assert_eq!((r.take(1, 1), r.take(4096, 1), r.take(1, 1)), (Some(4096), Some(8192), None));
        r.give(4096, 1);
        r.give(8192, 4096);
        assert_eq!(r.take(8192, 4096), Some(4096));
        let mut all = Ranges::new(4096, &[0..=u64::MAX]);
        assert_eq!(all.take(u64::MAX, 1), None);
        assert_eq!(all.take(1 << 63, 1 << 63), Some(0));
    }

    #[test]
    #[should_panic(expected = "were free")]
    fn what_is_free_is_not_given_back_again() {
        let mut r = Ranges::new(1, &[0..=9]);
        let at = r.take(3, 1).unwrap();
        r.give(at, 3);
        r.give(at, 3);
    }

    const NUMBERS: usize = 96;

    /// Each number on its own: the plain way to say the same.
    struct Model {
        free: Vec<bool>,
        granule: usize,
    }
    impl Model {
        fn take(&mut self, len: usize, align: usize, like: usize) -> Option<u64> {
            let len = len.next_multiple_of(self.granule);
            let step = align.max(self.granule);
            let fits = |at: &usize| at + len <= NUMBERS && self.free[*at..at + len].iter().all(|f| *f);
            let first = like % step / self.granule * self.granule;
            let at = (first..NUMBERS).step_by(step).find(fits)?;
            self.free[at..at + len].fill(false);
            Some(at as u64)
        }
    }

    proptest! {
        #[test]
        fn ranges_give_out_what_the_plain_model_gives_out(
            granule in prop::sample::select(vec![1_usize, 2, 4]),
            holes in prop::collection::vec((0..NUMBERS as u64, 0..NUMBERS as u64), 1..4),
            steps in prop::collection::vec(
                (any::<bool>(), 1..20_usize, 0..5_u32, 0..99_usize, any::<prop::sample::Index>()),
                1..80,
            ),
        ) {
            let ranges: Vec<_> = holes.iter().map(|(a, b)| *a.min(b)..=*a.max(b)).collect();
            let mut tested = Ranges::new(granule as u64, &ranges);
            // Two ranges that overlap or touch within a granule may count it once at most.
            let mut model = Model { free: vec![false; NUMBERS], granule };
            for (s, l) in &tested.free {
                prop_assert!(ranges.iter().any(|r| r.contains(s)) && ranges.iter().any(|r| r.contains(l)));
                model.free[*s as usize..=*l as usize].fill(true);
            }
            let mut held: Vec<(u64, usize)> = Vec::new();
            for (give, len, align, like, which) in steps {
                if give && !held.is_empty() {
                    let (at, len) = held.swap_remove(which.index(held.len()));
                    tested.give(at, len as u64);
                    let len = len.next_multiple_of(granule);
                    model.free[at as usize..at as usize + len].fill(true);
                } else {
                    let got = tested.take_like(len as u64, 1 << align, like as u64);
                    prop_assert_eq!(got, model.take(len, 1 << align, like));
                    held.extend(got.map(|at| (at, len)));
                }
                let free: u64 = tested.free.iter().map(|(s, l)| l - s + 1).sum();
                prop_assert_eq!(free as usize, model.free.iter().filter(|f| **f).count());
                prop_assert_eq!(tested.all_free(), held.is_empty());
            }
        }
    }
}
