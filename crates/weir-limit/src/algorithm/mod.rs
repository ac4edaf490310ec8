//! The algorithms: each is a pure function of (state, now, hits) and knows no store, clock or protocol. Other code names
//! none of them: it asks an [`AlgorithmKind`] or a [`Tier`] what differs.
//!
//! A store keeps one [`CounterState`] per counter and tier.

mod change;
mod counter;
mod fixed_window;
mod refill;
mod sliding_window;
mod span;
mod state;
mod token_bucket;

pub use change::CountChange;
pub use counter::{CounterState, IdleAt};
pub use fixed_window::FixedWindow;
pub use sliding_window::SlidingWindow;
pub use span::Span;
pub use state::{AlgorithmState, Availability, Outcome, Probe};
pub use token_bucket::{Bucket, Refill, TokenBucket};

use crate::tier::Tier;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `requests` in each epoch-aligned window of one period, the algorithm of envoyproxy/ratelimit, or in each
    /// window of a calendar.
    #[default]
    FixedWindow,
    /// At most `requests` in any interval of one period.
    SlidingWindow,
    /// `requests` tokens per period refill a bucket that holds a burst.
    TokenBucket(Bucket),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlgorithmKind {
    #[default]
    FixedWindow,
    SlidingWindow,
    TokenBucket,
}

// === impl Algorithm ===

impl Algorithm {
    pub const fn kind(self) -> AlgorithmKind {
        match self {
            Self::FixedWindow => AlgorithmKind::FixedWindow,
            Self::SlidingWindow => AlgorithmKind::SlidingWindow,
            Self::TokenBucket(_) => AlgorithmKind::TokenBucket,
        }
    }

    pub const fn with_bucket(self, bucket: Bucket) -> Self {
        match self {
            Self::FixedWindow | Self::SlidingWindow => self,
            Self::TokenBucket(_) => Self::TokenBucket(bucket),
        }
    }
}

// === impl Tier ===

impl Tier {
    /// Returns the parameters of a bucket; for other algorithms, a bucket whose burst is the limit.
    pub const fn bucket(&self) -> Bucket {
        match self.algorithm {
            Algorithm::TokenBucket(bucket) => bucket,
            _ => Bucket::of(self.requests),
        }
    }

    /// Returns what tells counters of one key apart: the bits of the period, which is at most 366 days, below the number of
    /// the algorithm, below 4, and the bit of a calendar. A bucket of any pace has no period.
    pub(crate) const fn counter_bits(&self) -> u64 {
        let number = match self.algorithm {
            Algorithm::FixedWindow => 0,
            Algorithm::SlidingWindow => 1,
            Algorithm::TokenBucket(Bucket { refill: Refill::AnyPace, .. }) => return 3 << 55,
            Algorithm::TokenBucket(_) => 2,
        };
        self.period.as_nanos() ^ (number << 55) ^ ((self.calendar.is_some() as u64) << 57)
    }
}

// === impl AlgorithmKind ===

impl AlgorithmKind {
    pub const ALL: [Self; 3] = [Self::FixedWindow, Self::SlidingWindow, Self::TokenBucket];

    pub const NAMES: &'static str = "fixed_window, sliding_window or token_bucket";

    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::TokenBucket => "token_bucket",
        }
    }

    pub const fn summary(self) -> &'static str {
        match self {
            Self::FixedWindow => "At most the limit in each window",
            Self::SlidingWindow => "At most the limit in any period",
            Self::TokenBucket => "A burst, and the limit in each period",
        }
    }

    /// Returns the letter in the keys of stores and to Redis' script.
    pub const fn letter(self) -> char {
        match self {
            Self::FixedWindow => 'f',
            Self::SlidingWindow => 's',
            Self::TokenBucket => 'b',
        }
    }

    /// Returns whether the hits of aligned windows are separate counters, and a window's end frees all of them at once.
    pub const fn has_windows(self) -> bool {
        matches!(self, Self::FixedWindow)
    }

    /// Returns whether hits come back gradually, whenever they were taken. Otherwise each counts for a time.
    pub const fn refills(self) -> bool {
        matches!(self, Self::TokenBucket)
    }

    /// Returns the algorithm with the parameters that a limit of `requests` has by default. A bucket that nothing refills
    /// is a window: both reject everything.
    pub const fn for_limit(self, requests: u32) -> Algorithm {
        match self {
            Self::TokenBucket if requests > 0 => Algorithm::TokenBucket(Bucket::of(requests)),
            Self::FixedWindow | Self::TokenBucket => Algorithm::FixedWindow,
            Self::SlidingWindow => Algorithm::SlidingWindow,
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
