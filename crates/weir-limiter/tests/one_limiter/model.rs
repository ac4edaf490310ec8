//! A plain model of the limiter, written from `docs/rules.md`.
//!
//! It remembers the hits of each counter and their times, as the documentation promises:
//!
//! - A fixed window counts the hits since the last multiple of its period, or the last edge of its calendar.
//! - A sliding window remembers groups of hits: a hit joins the newest group if less than a twelfth of the period has
//!   passed since that group's first hit. A group counts until one period after its last hit.
//! - A token bucket has exact fractions of tokens. Its docs promise nothing finer than what a limit of 2^k milliseconds
//!   can represent exactly, so the generator uses such periods for buckets.
//! - Each value of a key, spelling, algorithm and period has one counter, whoever brings the limit: a rule, a reloaded
//!   rule, or a request.
//! - A limit with `reserve: 0` counts a cost, more than one hit, also above the limit; a bucket owes one burst at most.
//!   What begins is rejected while nothing is left, and no rejected request counts. Costs, and hits given back to such a
//!   limit, count in any request.
//! - A changed limit applies to what is counted already. A bucket may be forgotten once it would be full by the limit
//!   of its last change; what comes then is open, if its rate has been lowered since.

use std::collections::BTreeMap;

use weir_limit::{Algorithm, Tier, Timestamp};

use crate::{bucket::Level, case::Limit};

/// The number of groups of a sliding window in one period.
const GROUPS: u64 = 12;

/// What one descriptor of a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    /// The entries, such as `a=x`.
    pub(crate) name: String,
    pub(crate) limit: Limit,
    pub(crate) hits: u64,
    pub(crate) gives_back: bool,
}

/// The answer for one descriptor.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) over: bool,
    pub(crate) remaining: u32,
    /// In nanoseconds.
    pub(crate) reset: u64,
    /// The reported limit.
    pub(crate) tier: Tier,
}

/// The counters, by entries, spelling, algorithm and period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model(BTreeMap<Key, Counter>);

type Key = (String, bool, u8, u64);

/// What one counter remembers. Times are in nanoseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counter {
    /// The hits of the window that ends at `end`.
    Fixed {
        end: u64,
        hits: u64,
    },
    /// The groups that count, oldest first.
    Sliding(Vec<Group>),
    Bucket(Level),
}

/// Hits of a sliding window that expire together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    first: u64,
    last: u64,
    hits: u64,
}

// === impl Check ===

impl Check {
    fn is_cost(&self) -> bool {
        self.limit.meters && !self.gives_back && self.hits > 1
    }

    /// Whether it counts whatever becomes of the request.
    fn stands(&self) -> bool {
        self.is_cost() || self.limit.meters && self.gives_back
    }
}

// === impl Model ===

impl Model {
    /// Answers a request whose descriptors count each on its own.
    /// Rejected hits count if `counts_rejected`.
    pub(crate) fn answer(&mut self, check: &Check, counts_rejected: bool, now: Timestamp) -> Answer {
        self.count(check, counts_rejected, now.as_nanos())
    }

    /// Answers a request whose descriptors count all or none.
    pub(crate) fn answer_together(&mut self, checks: &[Check], now: Timestamp) -> Vec<Answer> {
        let now = now.as_nanos();
        let stood: Vec<Option<Answer>> =
            checks.iter().map(|check| check.stands().then(|| self.count(check, false, now))).collect();
        let before = self.clone();
        let others = checks.iter().zip(&stood);
        let mut answers: Vec<Answer> = others
            .map(|(check, stood)| stood.clone().unwrap_or_else(|| self.count(check, false, now)))
            .collect();
        let rejects =
            |(check, answer): (&Check, &Answer)| answer.over && !(check.stands() && check.gives_back);
        if checks.iter().zip(&answers).any(rejects) {
            *self = before;
            for ((check, answer), _) in
                checks.iter().zip(&mut answers).zip(&stood).filter(|(_, stood)| stood.is_none())
            {
                *answer = if answer.over {
                    // a strict bucket notices the try
                    self.count(check, false, now)
                } else {
                    let limit = Limit { meters: false, ..check.limit.clone() };
                    let looks = Check { hits: 0, gives_back: false, limit, ..check.clone() };
                    self.clone().count(&looks, false, now)
                };
            }
        }
        answers
    }

    /// Returns the model of the counters of the entries `name`.
    pub(crate) fn only(&self, name: &str) -> Self {
        let own = self.0.iter().filter(|(key, _)| key.0 == name);
        Self(own.map(|(key, counter)| (key.clone(), counter.clone())).collect())
    }

    /// Returns the model of its counters and those of `other`.
    pub(crate) fn with(&self, other: &Self) -> Self {
        Self(self.0.clone().into_iter().chain(other.0.clone()).collect())
    }

    /// Returns whether a bucket of `checks` may have been forgotten, and its limit was another one then.
    pub(crate) fn is_open(&self, checks: &[Check], now: Timestamp) -> bool {
        let tiers = checks.iter().flat_map(|check| check.limit.tiers.iter().map(move |tier| (check, tier)));
        let mut counters = tiers.filter_map(|(check, tier)| Some((tier, self.0.get(&key(check, tier))?)));
        let now = now.as_nanos();
        counters.any(|(tier, counter)| match counter {
            Counter::Bucket(level) => level.is_open(tier, now),
            _ => false,
        })
    }

    /// Counts the hits of `check`, those that are rejected only if `counts_rejected`.
    fn count(&mut self, check: &Check, counts_rejected: bool, now: u64) -> Answer {
        let tiers = &check.limit.tiers;
        let mut counters: Vec<Counter> = tiers
            .iter()
            .map(|tier| self.0.get(&key(check, tier)).cloned().unwrap_or_else(|| Counter::new(tier, now)))
            .collect();
        let each = || tiers.iter().zip(0_usize..);
        let mut hits = check.hits;
        if check.gives_back {
            if hits > 0 {
                each().for_each(|(tier, i)| counters[i].give_back(tier, hits, now));
            }
            // the answer tells what is left then
            hits = 0;
        }
        let counts_rejected = counts_rejected || check.is_cost();
        let taken = hits;
        if check.limit.meters && !check.gives_back {
            hits = hits.max(1);
        }
        let fits: Vec<bool> = each().map(|(tier, i)| counters[i].fits(tier, hits, now)).collect();
        let over = fits.contains(&false);
        for (tier, i) in each() {
            if !over || counts_rejected {
                counters[i].take(tier, taken, now);
            } else if !fits[i] {
                counters[i].reject(tier, now);
            }
        }
        let chosen = if over {
            let waits =
                each().filter(|(_, i)| !fits[*i]).map(|(tier, i)| (counters[i].wait(tier, hits, now), i));
            // of equal ones the first
            waits.rev_max()
        } else {
            let share =
                |i: usize| (u128::from(counters[i].left(&tiers[i], now)), u128::from(tiers[i].capacity()));
            // compares fractions; a limit of 0 has no share
            (1..tiers.len()).fold(0, |lowest, i| {
                let ((left, capacity), (lowest_left, lowest_capacity)) = (share(i), share(lowest));
                if left * lowest_capacity < lowest_left * capacity { i } else { lowest }
            })
        };
        let (tier, counter) = (&tiers[chosen], &counters[chosen]);
        let left = u32::try_from(counter.left(tier, now)).expect("at most the limit");
        let answer = Answer {
            over,
            // as envoyproxy/ratelimit reports it
            remaining: if over && check.limit.reference { 0 } else { left },
            reset: if over { counter.wait(tier, hits, now) } else { counter.full_at(tier, now) - now },
            tier: tier.clone(),
        };
        for (tier, mut counter) in tiers.iter().zip(counters) {
            if let Counter::Bucket(level) = &mut counter {
                let is_same = self.0.get(&key(check, tier)) == Some(&Counter::Bucket(*level));
                level.note_limit(tier, is_same);
            }
            self.0.insert(key(check, tier), counter);
        }
        answer
    }
}

/// Returns the last element of the greatest value, and of several equal ones the first.
trait FirstMax {
    fn rev_max(self) -> usize;
}

impl<I: Iterator<Item = (u64, usize)>> FirstMax for I {
    fn rev_max(self) -> usize {
        self.max_by_key(|(wait, i)| (*wait, std::cmp::Reverse(*i))).expect("one is over").1
    }
}

fn key(check: &Check, tier: &Tier) -> Key {
    let algorithm = match tier.algorithm {
        Algorithm::FixedWindow => 0,
        Algorithm::SlidingWindow => 1,
        Algorithm::TokenBucket(_) => 2,
    };
    let algorithm = algorithm + 4 * u8::from(tier.calendar.is_some());
    (check.name.clone(), check.limit.reference, algorithm, tier.period.as_nanos())
}

// === impl Counter ===

impl Counter {
    fn new(tier: &Tier, now: u64) -> Self {
        match tier.algorithm {
            Algorithm::FixedWindow => Self::Fixed { end: 0, hits: 0 },
            Algorithm::SlidingWindow => Self::Sliding(Vec::new()),
            Algorithm::TokenBucket(_) => Self::Bucket(Level::new(now)),
        }
    }

    /// Forgets what no longer counts at `now`.
    fn advance(&mut self, tier: &Tier, now: u64) {
        let period = tier.period.as_nanos();
        match self {
            Self::Fixed { end, hits } => {
                if *end <= now {
                    (*end, *hits) = (tier.window(Timestamp::from_nanos(now)).1.as_nanos(), 0);
                }
            }
            Self::Sliding(groups) => groups.retain(|group| group.hits > 0 && now < group.last + period),
            Self::Bucket(level) => *level = level.at(tier, now),
        }
    }

    /// The hits that count; in a bucket, the tokens that are missing, rounded up.
    fn used(&self, tier: &Tier, now: u64) -> u64 {
        let mut counter = self.clone();
        counter.advance(tier, now);
        match counter {
            Self::Fixed { hits, .. } => hits,
            Self::Sliding(groups) => groups.iter().map(|group| group.hits).sum(),
            Self::Bucket(level) => {
                u64::try_from(level.missing.div_ceil(tier.period.as_nanos().into())).expect("few")
            }
        }
    }

    fn left(&self, tier: &Tier, now: u64) -> u64 {
        u64::from(tier.capacity()).saturating_sub(self.used(tier, now))
    }

    fn fits(&self, tier: &Tier, hits: u64, now: u64) -> bool {
        // a check without hits fails only in a fixed window with more hits than the limit, as in envoyproxy/ratelimit
        if hits == 0 && !matches!(self, Self::Fixed { .. }) {
            return true;
        }
        self.used(tier, now).saturating_add(hits) <= tier.capacity().into()
    }

    fn take(&mut self, tier: &Tier, hits: u64, now: u64) {
        if hits == 0 {
            return;
        }
        self.advance(tier, now);
        match self {
            Self::Fixed { hits: counted, .. } => *counted += hits,
            Self::Sliding(groups) => match groups.last_mut() {
                Some(newest) if now < newest.first + tier.period.as_nanos().div_ceil(GROUPS) => {
                    newest.last = now;
                    newest.hits += hits;
                }
                _ => groups.push(Group { first: now, last: now, hits }),
            },
            Self::Bucket(level) => level.take(tier, hits),
        }
    }

    /// Notes that this tier rejected a request.
    fn reject(&mut self, tier: &Tier, now: u64) {
        if let Self::Bucket(level) = self
            && tier.bucket().strict
            && level.since < now
            && !level.is_idle(tier, now)
        {
            // whole tokens that have returned stay, and the wait for the next one begins again
            let full = level.capped(tier);
            let token = u128::from(tier.period.as_nanos());
            let returned = (full - level.at(tier, now).missing) / token;
            (level.since, level.missing) = (now, full - returned * token);
        }
    }

    fn give_back(&mut self, tier: &Tier, mut hits: u64, now: u64) {
        if self.used(tier, now) == 0 {
            return;
        }
        self.advance(tier, now);
        match self {
            Self::Fixed { hits: counted, .. } => *counted = counted.saturating_sub(hits),
            Self::Sliding(groups) => {
                for group in &mut *groups {
                    let given = hits.min(group.hits);
                    group.hits -= given;
                    hits -= given;
                }
                groups.retain(|group| group.hits > 0);
            }
            Self::Bucket(level) => level.give_back(tier, hits),
        }
    }

    /// The time at which nothing counts any more.
    fn full_at(&self, tier: &Tier, now: u64) -> u64 {
        let mut counter = self.clone();
        if !matches!(counter, Self::Bucket(_)) {
            counter.advance(tier, now);
        }
        match counter {
            Self::Fixed { end, .. } => end,
            Self::Sliding(groups) => groups.last().map_or(now, |group| group.last + tier.period.as_nanos()),
            Self::Bucket(level) => level.reaches(tier, 0).max(now),
        }
    }

    /// The time from `now` until `hits` fit; if they never do, until nothing counts.
    fn wait(&self, tier: &Tier, hits: u64, now: u64) -> u64 {
        if self.fits(tier, hits, now) {
            return 0;
        }
        let room = u64::from(tier.capacity()).checked_sub(hits);
        let at = match (self, room) {
            (_, None) | (Self::Fixed { .. }, _) => self.full_at(tier, now),
            (Self::Sliding(groups), _) => {
                let mut ends = groups.iter().map(|group| group.last + tier.period.as_nanos());
                ends.find(|end| self.fits(tier, hits, *end)).expect("an empty window has room")
            }
            (Self::Bucket(level), Some(room)) => {
                level.reaches(tier, u128::from(room) * u128::from(tier.period.as_nanos()))
            }
        };
        at.max(now) - now
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { over, remaining, reset, tier } = self;
        let code = if *over { "OVER" } else { "ok" };
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let seconds = *reset as f64 / 1e9;
        write!(f, "{code}, {remaining} left, reset in {seconds}s ({tier})")
    }
}
