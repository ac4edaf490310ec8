//! Random ids, and which of the requests without a parent are traced.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    sync::atomic::{AtomicU64, Ordering},
};

#[derive(Debug)]
pub(super) struct Sampling {
    /// Traces whose lower 64 bits, without the last, are below it are sampled.
    bound: u64,
    /// A hash of a counter under random keys. `fastrand` depends on the clock, which instances started together share.
    random: RandomState,
    next: AtomicU64,
}

impl Sampling {
    /// `rate` is the fraction of traces, from 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the product is between 0 and 2^63"
    )]
    pub(super) fn new(rate: f64) -> Self {
        // the same traces as in OpenTelemetry's `TraceIDRatioBased`
        let bound = (rate.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
        Self { bound, random: RandomState::new(), next: AtomicU64::new(0) }
    }

    /// Returns the id of a new trace, if it is sampled.
    pub(super) fn trace(&self) -> Option<u128> {
        if self.bound == 0 {
            return None;
        }
        let lower = self.id();
        (lower >> 1 < self.bound).then(|| u128::from(self.id()) << 64 | u128::from(lower))
    }

    pub(super) fn id(&self) -> u64 {
        self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed)).max(1)
    }
}

/// Returns a random UUID, version 4, as text.
#[must_use]
pub fn random_instance_id() -> String {
    let random = Sampling::new(0.0);
    let (a, b) = (random.id(), random.id());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        (b >> 48) & 0x3fff | 0x8000,
        b & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_ratio_of_traces_is_sampled() {
        for (rate, least, most) in
            [(0.0, 0, 0), (0.25, 2_200, 2_800), (0.5, 4_700, 5_300), (1.0, 10_000, 10_000)]
        {
            let sampling = Sampling::new(rate);
            let sampled = (0..10_000).filter(|_| sampling.trace().is_some()).count();
            assert!((least..=most).contains(&sampled), "{rate}: {sampled}");
        }
    }

    #[test]
    fn ids_differ() {
        let sampling = Sampling::new(1.0);
        let ids: BTreeSet<_> = (0..10_000).filter_map(|_| sampling.trace()).collect();
        assert_eq!(ids.len(), 10_000);
        assert_ne!(Sampling::new(1.0).trace(), Sampling::new(1.0).trace());
    }

    #[test]
    fn an_instance_id_is_a_uuid() {
        let id = random_instance_id();
        let lengths: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert!(id.as_bytes()[14] == b'4' && b"89ab".contains(&id.as_bytes()[19]), "{id}");
        assert_ne!(id, random_instance_id());
    }
}
