//! One state for each tier, in the space of one.

use std::ops::{Deref, DerefMut};

use crate::limit::algorithm::CounterState;

/// One state for each tier: 24 bytes with one tier, as most limits have.
#[derive(Clone, Debug)]
pub(super) enum States {
    One(CounterState),
    Several(Box<[CounterState]>),
}

// === impl States ===

impl Deref for States {
    type Target = [CounterState];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(state) => std::slice::from_ref(state),
            Self::Several(states) => states,
        }
    }
}

impl DerefMut for States {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::One(state) => std::slice::from_mut(state),
            Self::Several(states) => states,
        }
    }
}

impl FromIterator<CounterState> for States {
    fn from_iter<I: IntoIterator<Item = CounterState>>(states: I) -> Self {
        let mut states = states.into_iter();
        match (states.next(), states.next()) {
            (Some(only), None) => Self::One(only),
            (first, second) => Self::Several(first.into_iter().chain(second).chain(states).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Hits, Timestamp, algorithm::FixedWindow};

    #[test]
    fn any_number_of_states_is_kept_in_24_bytes() {
        assert_eq!(size_of::<States>(), 24);
        let state = |i| CounterState::FixedWindow(FixedWindow::new(Timestamp::from_secs(i), Hits(i)));
        for tiers in 0..4 {
            let expected: Vec<_> = (0..tiers).map(state).collect();
            let mut states: States = expected.iter().cloned().collect();
            assert_eq!(*states, *expected);
            assert_eq!(matches!(states, States::One(_)), tiers == 1);
            states.reverse();
            assert_eq!(states.first(), expected.last());
        }
    }
}
