//! A change of a count that was decided elsewhere.

/// Hits that were counted and given back one after the other, where each operation stopped at zero: a count `x` becomes
/// `max(floor, x + hits)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountChange {
    /// The sum of the operations. Negative if more was given back than counted.
    pub hits: i64,
    /// The least count after the operations, which they give to a count of zero. At least `hits`.
    pub floor: u64,
}

// === impl CountChange ===

impl CountChange {
    /// Creates the change of counting `hits`, or of giving them back if they are negative.
    pub fn of(hits: i64) -> Self {
        let mut change = Self::default();
        change.append(hits);
        change
    }

    /// Appends counting `hits`, or giving them back if they are negative.
    pub fn append(&mut self, hits: i64) {
        self.hits = self.hits.saturating_add(hits);
        self.floor = self.floor.saturating_add_signed(hits);
    }

    pub fn append_all(&mut self, later: Self) {
        self.hits = self.hits.saturating_add(later.hits);
        self.floor = self.floor.saturating_add_signed(later.hits).max(later.floor);
    }

    /// Whether adding [`CountChange::hits`] does the same to any count: no return exceeded what was counted before.
    pub fn is_addition(self) -> bool {
        i64::try_from(self.floor).is_ok_and(|floor| floor <= self.hits)
    }

    pub const fn is_none(self) -> bool {
        self.hits == 0 && self.floor == 0
    }

    pub fn apply(self, count: u64) -> u64 {
        count.saturating_add_signed(self.hits).max(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn one_change_equals_its_operations(
            before in vec(-20..20_i64, 0..10),
            after in vec(-20..20_i64, 0..10),
            count in 0..60_u64,
        ) {
            let each = before.iter().chain(&after).fold(count, |count, hits| count.saturating_add_signed(*hits));
            let change = |hits: &[i64]| {
                let mut change = CountChange::default();
                for hits in hits {
                    change.append(*hits);
                }
                change
            };
            let mut all = change(&before);
            all.append_all(change(&after));
            prop_assert_eq!(all, change(&[before, after].concat()));
            prop_assert_eq!(all.apply(count), each);
            let adds = |count: u64| i128::from(all.apply(count)) == i128::from(count) + i128::from(all.hits);
            prop_assert_eq!(all.is_addition(), (0..300).all(adds));
            prop_assert_eq!(all.is_none(), (0..300).all(|count| all.apply(count) == count));
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let mut change = CountChange::of(i64::MAX);
        change.append(i64::MAX);
        assert_eq!(change.apply(u64::MAX), u64::MAX);
        change.append(i64::MIN);
        assert!(change.apply(0) >= CountChange::of(i64::MIN).apply(0));
        assert!(!CountChange { hits: i64::MAX, floor: u64::MAX }.is_addition());
    }
}
