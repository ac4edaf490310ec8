//! The wrong tokens of each address: after ten in a minute, an address hears that it is too many.
//!
//! The table has a fixed size. An address has the place that a secret hash chooses; another one may have the same place,
//! and then hears 429 instead of 401. Nobody with a right token is kept out by it.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

pub(super) const MOST_WRONG: u64 = 10;

const PLACES: usize = 4_096;

const MINUTE: u64 = 60;

#[derive(Debug)]
pub(super) struct WrongTokens {
    begun: Instant,
    hasher: RandomState,
    /// The second of the first wrong token in the high half, and their number in the low half.
    places: Box<[AtomicU64]>,
}

// === impl WrongTokens ===

impl Default for WrongTokens {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { begun: Instant::now(), hasher: RandomState::new(), places }
    }
}

impl WrongTokens {
    /// Counts a wrong token of `address`. Returns the seconds that it should wait, if there were too many.
    pub(super) fn add(&self, address: Option<IpAddr>, now: Instant) -> Option<u64> {
        let second = now.saturating_duration_since(self.begun).as_secs();
        let hash = self.hasher.hash_one(address.map(network));
        let place = usize::try_from(hash % PLACES as u64).unwrap_or_default();
        let next = |state: u64| {
            let (first, wrong) = (state >> 32, state & u64::from(u32::MAX));
            if wrong > 0 && second < first + MINUTE {
                state + u64::from(wrong <= MOST_WRONG)
            } else {
                second << 32 | 1
            }
        };
        let before = self.places[place].update(Ordering::Relaxed, Ordering::Relaxed, next);
        let state = next(before);
        let (first, wrong) = (state >> 32, state & u64::from(u32::MAX));
        (wrong > MOST_WRONG).then(|| (first + MINUTE).saturating_sub(second).max(1))
    }
}

/// An IPv4 address, or the /64 of an IPv6 address, which one client has as a whole.
fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => u64::from(u32::from(address)),
        IpAddr::V6(address) => (u128::from(address) >> 64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ten_wrong_tokens_a_minute_are_counted_by_network() {
        let wrong = WrongTokens::default();
        let at = |second| wrong.begun + Duration::from_secs(second);
        let add = |address: &str, second| wrong.add(address.parse().ok(), at(second));
        for i in 0..MOST_WRONG {
            assert_eq!(add(&format!("2001:db8::{i:x}"), 5), None);
        }
        assert_eq!(add("2001:db8::ffff", 35), Some(30));
        assert_eq!(add("2001:db8::1", 64), Some(1));
        assert_eq!(add("2001:db8::1", 65), None, "a minute is over");
        // two of a few networks may have the same place, but not all of them
        let others = ["2001:db8:1::", "192.0.2.1", "::1", "10.1.2.3"].map(|address| {
            for _ in 0..MOST_WRONG {
                add(address, 200);
            }
            add(address, 200).is_some() && add("198.51.100.7", 200).is_none()
        });
        assert!(others.contains(&true));
    }
}
