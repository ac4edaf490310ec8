//! What a counter had counted when it was first seen, so that a replay counts on from there.

use weir_limit::{
    Hits, Period, Tier, Timestamp,
    algorithm::{CounterState, FixedWindow, SlidingWindow, Span, TokenBucket},
};

use crate::fields::RecordingFields;

const FIXED_WINDOW: u8 = 1;
const SLIDING_WINDOW: u8 = 2;
const TOKEN_BUCKET: u8 = 3;
const BUCKET_IN_DEBT: u8 = 4;

/// The state of a tier's counter before a decision. Exact: what is read is what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterBefore {
    /// That of the tier.
    pub period: Period,
    state: StateBefore,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum StateBefore {
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    TokenBucket(TokenBucket),
}

/// Writes the state that `counter` had before `hits` were counted at `at`. Nothing for a counter without a tier.
pub(crate) fn put_state(out: &mut Vec<u8>, tier: &Tier, counter: &CounterState, hits: Hits, at: Timestamp) {
    let mut before = counter.clone();
    if hits > Hits(0) {
        // the very hits, and not the oldest ones
        before.release(tier, at, at, hits);
    }
    let mut put = |kind: u8, numbers: &[u64]| {
        out.push(kind);
        out.extend(tier.period.as_nanos().to_le_bytes());
        out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    };
    match &before {
        CounterState::FixedWindow(window) => put(FIXED_WINDOW, &[window.end().as_nanos(), before.used().0]),
        CounterState::TokenBucket(bucket, _) => {
            let kind = if bucket.is_in_debt() { BUCKET_IN_DEBT } else { TOKEN_BUCKET };
            put(kind, &[bucket.as_of().as_nanos(), bucket.taken()]);
        }
        _ => {
            let window = before.sliding_window().unwrap_or_default();
            put(SLIDING_WINDOW, &[window.opened().as_nanos(), window.spans().len() as u64]);
            for span in window.spans() {
                out.extend(span.last.as_nanos().to_le_bytes());
                out.extend(span.hits.to_le_bytes());
            }
        }
    }
}

// === impl CounterBefore ===

impl CounterBefore {
    pub(crate) fn take(fields: &mut RecordingFields<'_>) -> Option<Self> {
        let (kind, period) = (fields.u8()?, Period::from_nanos(fields.u64()?));
        let (at, number) = (Timestamp::from_nanos(fields.u64()?), fields.u64()?);
        let state = match kind {
            FIXED_WINDOW => StateBefore::FixedWindow(FixedWindow::new(at, Hits(number))),
            TOKEN_BUCKET | BUCKET_IN_DEBT => {
                StateBefore::TokenBucket(TokenBucket::new(at, number, kind == BUCKET_IN_DEBT))
            }
            SLIDING_WINDOW => {
                // a number alone takes no memory
                let mut spans = Vec::new();
                for _ in 0..number {
                    let last = Timestamp::from_nanos(fields.u64()?);
                    spans.push(Span { last, hits: fields.u32()? });
                }
                StateBefore::SlidingWindow(SlidingWindow::new(at, spans))
            }
            _ => return None,
        };
        Some(Self { period, state })
    }

    /// Returns the state as a counter of `tier`; none if that counts in another way.
    pub fn of_tier(&self, tier: &Tier) -> Option<CounterState> {
        if self.period != tier.period {
            return None;
        }
        let counter = match &self.state {
            StateBefore::FixedWindow(window) => CounterState::FixedWindow(*window),
            StateBefore::SlidingWindow(window) => CounterState::from_sliding_window(window.clone(), tier),
            StateBefore::TokenBucket(bucket) => CounterState::from_token_bucket(*bucket, tier),
        };
        counter.is_of(tier.algorithm).then_some(counter)
    }
}
