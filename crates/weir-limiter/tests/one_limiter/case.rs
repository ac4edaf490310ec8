//! A case: rules, and what happens to them one after the other.

use std::time::Duration;

use std::fmt;

use smallvec::SmallVec;
use weir_limit::{Algorithm, OverLimitPolicy, Period, Refill, Tier};

/// The keys of the rules. Each has a rule of its own: the first for any value, the second for any address, which it
/// counts by its prefix, the third for networks, each of which it counts.
pub(crate) const KEYS: [&str; 3] = ["a", "b", "c"];

/// The values of requests, by key: each as some callers write it, and first as its counter is named.
pub(crate) const VALUES: [[&[&str]; 2]; 3] = [
    [&["x"], &["y"]],
    [
        &["10.1.2.0/24", "10.1.2.3", "::ffff:10.1.2.9", "10.1.2.3/32"],
        &["2001:db8::/64", "2001:db8::1", "2001:DB8:0:0:1::2", "2001:db8::/80"],
    ],
    [
        &["10.0.0.0/8", "10.1.2.3", "::ffff:10.255.0.0", "10.4.0.0/14"],
        &["fd00::/8", "fd00::1", "FD12:0::/16"],
    ],
];

/// The key whose rule lists the networks that [`VALUES`] name.
pub(crate) const OF_NETWORKS: usize = 2;

/// The key whose rule counts addresses by the prefixes that [`VALUES`] name.
pub(crate) const OF_PREFIXES: usize = 1;

/// The limit of a rule, or of a request.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) tiers: Vec<Tier>,
    /// Whether it is in envoyproxy/ratelimit's spelling, where rejected requests count. A single fixed window then.
    pub(crate) reference: bool,
    /// `reserve: 0`. Not of a request.
    pub(crate) meters: bool,
}

/// One descriptor of a request.
#[derive(Clone)]
pub(crate) struct Ask {
    /// An index of [`KEYS`].
    pub(crate) key: usize,
    /// An index of the [`VALUES`] of the key.
    pub(crate) value: usize,
    pub(crate) hits: u64,
    pub(crate) gives_back: bool,
    /// A limit that the request carries.
    pub(crate) own: Option<Limit>,
}

#[derive(Clone)]
pub(crate) enum Step {
    /// Time passes.
    Wait(Period),
    /// A request arrives at the instance of this number.
    Request(usize, Vec<Ask>),
    /// The limit of a key changes.
    Reload(usize, Limit),
    /// The shared store fails, or works again.
    Outage(bool),
}

#[derive(Clone)]
pub(crate) struct Case {
    /// One for each of [`KEYS`].
    pub(crate) limits: Vec<Limit>,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    pub(crate) together: bool,
    /// `LOCAL_CACHE_SIZE_IN_BYTES`.
    pub(crate) local_cache: bool,
    /// From an instance to the store and back, in milliseconds; even.
    pub(crate) round_trip: u64,
    pub(crate) instances: usize,
    pub(crate) steps: Vec<Step>,
}

/// What a case may contain. `ONE_LIMITER_WITHOUT` leaves it out, to find what a difference depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Hits that are given back.
    GiveBack,
    /// Checks with 0 hits.
    NoHits,
    /// Requests that carry their limit.
    OwnLimits,
    /// Requests that carry a limit of any algorithm and tiers, which no protocol can send yet.
    RichOwnLimits,
    /// Changed limits.
    Reload,
    /// Limits with other tiers than before.
    OtherTiers,
    /// Descriptors that count all or none.
    Together,
    LocalCache,
    /// Limits in envoyproxy/ratelimit's spelling.
    Reference,
    /// Limits with `reserve: 0`.
    Costs,
    Sliding,
    Buckets,
    StrictBuckets,
    Steps,
    Tiers,
    RoundTrip,
    Outages,
}

// === impl Feature ===

impl Feature {
    pub(crate) const ALL: [Self; 17] = [
        Self::GiveBack,
        Self::NoHits,
        Self::OwnLimits,
        Self::RichOwnLimits,
        Self::Reload,
        Self::OtherTiers,
        Self::Together,
        Self::LocalCache,
        Self::Reference,
        Self::Costs,
        Self::Sliding,
        Self::Buckets,
        Self::StrictBuckets,
        Self::Steps,
        Self::Tiers,
        Self::RoundTrip,
        Self::Outages,
    ];
}

/// Drops descriptors whose counter an earlier one names, unless `keeps` returns true of the first one and it.
fn drop_repeated(asks: &mut Vec<Ask>, keeps: impl Fn(&Ask, &Ask) -> bool) {
    let mut firsts: Vec<Ask> = Vec::new();
    asks.retain(|ask| {
        let first = firsts.iter().find(|first| (first.key, first.value) == (ask.key, ask.value));
        let is_kept = first.is_none_or(|first| keeps(first, ask));
        if first.is_none() {
            firsts.push(ask.clone());
        }
        is_kept
    });
}

// === impl Limit ===

impl Limit {
    /// A cost has no place in a strict bucket.
    pub(crate) fn has_strict_bucket(&self) -> bool {
        self.tiers.iter().any(|tier| tier.bucket().strict)
    }

    pub(crate) fn policy(&self) -> OverLimitPolicy {
        if self.reference { OverLimitPolicy::Count } else { OverLimitPolicy::Ignore }
    }

    pub(crate) fn tiers(&self) -> SmallVec<[Tier; 1]> {
        self.tiers.iter().cloned().collect()
    }
}

// === impl Case ===

impl Case {
    /// Calls `change` on every limit.
    fn limits_mut(&mut self, mut change: impl FnMut(&mut Limit)) {
        self.limits.iter_mut().for_each(&mut change);
        for step in &mut self.steps {
            match step {
                Step::Reload(_, limit) => change(limit),
                Step::Request(_, asks) => {
                    asks.iter_mut().filter_map(|ask| ask.own.as_mut()).for_each(&mut change);
                }
                Step::Wait(_) | Step::Outage(_) => {}
            }
        }
    }

    /// Returns the longest time after which an instance reports hits: a sixtieth of a slow limit's period.
    pub(crate) fn longest_pause(&self) -> Duration {
        let (mut all, mut longest) = (self.clone(), Period::default());
        all.limits_mut(|limit| {
            longest = longest.max(limit.tiers.iter().map(|tier| tier.period).min().unwrap_or_default());
        });
        (Duration::from(longest) / 60).min(Duration::from_mins(1))
    }

    /// Makes limits so small that an instance keeps no unused lease: each of several may keep a hundredth of its part.
    pub(crate) fn shrink_limits(&mut self) {
        let most = 100 * u32::try_from(self.instances).expect("few") - 1;
        self.limits_mut(|limit| {
            for tier in &mut limit.tiers {
                tier.requests = tier.requests.min(most);
                if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
                    bucket.burst = bucket.burst.min(most);
                }
            }
        });
    }

    /// Has no request name one counter under two limits: the second descriptor may be decided before the store has
    /// counted the first one. Of several instances, none takes and gives back hits of a sliding window, of a bucket in
    /// steps, or of a bucket with costs in one request: others may hear of neither, and then an older group ends, or the
    /// next step comes, as if there had been none, and what a bucket cannot owe counts before it is given back.
    pub(crate) fn name_counters_once(&mut self) {
        let mut tells_order = false;
        self.limits_mut(|limit| {
            tells_order |= limit.tiers.iter().any(|tier| match tier.algorithm {
                Algorithm::FixedWindow => false,
                Algorithm::SlidingWindow => true,
                Algorithm::TokenBucket(bucket) => limit.meters || bucket.refill == Refill::Step,
            });
        });
        let hears_of_both = self.instances == 1 || !tells_order;
        for step in &mut self.steps {
            if let Step::Request(_, asks) = step {
                drop_repeated(asks, |first, ask| {
                    first.own == ask.own && (hears_of_both || first.gives_back == ask.gives_back)
                });
            }
        }
    }

    fn asks_mut(&mut self) -> impl Iterator<Item = &mut Ask> {
        self.steps.iter_mut().flat_map(|step| match step {
            Step::Request(_, asks) => asks.as_mut_slice(),
            _ => &mut [],
        })
    }

    /// Removes what is of `feature`.
    pub(crate) fn remove(&mut self, feature: Feature) {
        match feature {
            Feature::GiveBack => self.asks_mut().for_each(|ask| ask.gives_back = false),
            Feature::NoHits => self.asks_mut().for_each(|ask| ask.hits = ask.hits.max(1)),
            Feature::OwnLimits => self.asks_mut().for_each(|ask| ask.own = None),
            Feature::RichOwnLimits => self.asks_mut().for_each(|ask| {
                ask.own.take_if(|own| !own.reference);
            }),
            Feature::Reload => self.steps.retain(|step| !matches!(step, Step::Reload(..))),
            Feature::OtherTiers => {
                let mut last = self.limits.clone();
                for step in &mut self.steps {
                    if let Step::Reload(key, limit) = step {
                        let tiers = last[*key].tiers.iter().zip(limit.tiers.iter().cycle());
                        let tiers =
                            tiers.map(|(old, new)| Tier { requests: new.requests.max(1), ..old.clone() });
                        *limit = Limit { tiers: tiers.collect(), ..last[*key].clone() };
                        last[*key] = limit.clone();
                    }
                }
            }
            Feature::Together => self.together = false,
            Feature::LocalCache => self.local_cache = false,
            Feature::Reference => self.limits_mut(|limit| limit.reference = false),
            Feature::Costs => self.limits_mut(|limit| limit.meters = false),
            Feature::Sliding => self.limits_mut(|limit| {
                for tier in &mut limit.tiers {
                    if tier.algorithm == Algorithm::SlidingWindow {
                        tier.algorithm = Algorithm::FixedWindow;
                    }
                }
                limit.drop_repeated();
            }),
            Feature::Buckets => self.limits_mut(|limit| {
                for tier in &mut limit.tiers {
                    if matches!(tier.algorithm, Algorithm::TokenBucket(_)) {
                        tier.algorithm = Algorithm::FixedWindow;
                    }
                }
                limit.drop_repeated();
            }),
            Feature::StrictBuckets | Feature::Steps => self.limits_mut(|limit| {
                for tier in &mut limit.tiers {
                    if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
                        if feature == Feature::Steps {
                            bucket.refill = Refill::Continuous;
                        } else {
                            bucket.strict = false;
                        }
                    }
                }
            }),
            Feature::Tiers => self.limits_mut(|limit| limit.tiers.truncate(1)),
            Feature::RoundTrip => self.round_trip = 0,
            Feature::Outages => self.steps.retain(|step| !matches!(step, Step::Outage(_))),
        }
    }

    /// Has time pass after each request while the store is away: of what several counters have counted at one instant,
    /// for one key, it is not known later which came first.
    fn spread_requests_of_outages(&mut self) {
        let (mut is_away, mut steps) = (false, Vec::with_capacity(self.steps.len()));
        for step in self.steps.drain(..) {
            if let Step::Outage(begins) = step {
                is_away = begins;
            }
            let is_request = matches!(step, Step::Request(..));
            steps.push(step);
            if is_away && is_request {
                steps.push(Step::Wait(Period::from_millis(1)));
            }
        }
        self.steps = steps;
    }

    /// Makes the case one that the documentation speaks about.
    pub(crate) fn tidy(&mut self) {
        // rejections from the local cache do not count, so what is counted then is not that of other modes, and need not
        // wait for what another descriptor of the request counts
        if self.local_cache {
            self.remove(Feature::Reference);
            for step in &mut self.steps {
                if let Step::Request(_, asks) = step {
                    drop_repeated(asks, |_, _| false);
                }
            }
        }
        if self.instances > 1 {
            // each decides by itself
            self.remove(Feature::Outages);
        }
        if self.steps.iter().any(|step| matches!(step, Step::Outage(_))) {
            // hits that are on their way when the store fails are lost
            self.round_trip = 0;
            // the store counts the hits of a long outage in a bucket that it did not know as of the last of them
            self.remove(Feature::Buckets);
            // without it, rejected hits do not count
            self.remove(Feature::Reference);
            // and a request whose descriptors count all or none takes and gives back
            self.together = false;
            self.spread_requests_of_outages();
        }
        if self.instances > 1 {
            // what another instance gives back is known here when the entry ends
            self.local_cache = false;
        }
        if self.together && self.instances > 1 {
            // an instance that does not know yet that a limit is used up takes hits and gives them back, which may
            // leave others at a later time
            self.remove(Feature::Sliding);
            self.remove(Feature::Buckets);
        }
        if self.together {
            // the descriptors of one request may be decided at different instants of its wait
            self.round_trip = 0;
            let lowers = self.steps.iter().any(|step| match step {
                Step::Reload(..) => true,
                Step::Request(_, asks) => asks.iter().any(|ask| ask.own.is_some()),
                Step::Wait(_) | Step::Outage(_) => false,
            });
            for step in &mut self.steps {
                if let Step::Request(_, asks) = step {
                    // whether hits that are given back to a lowered limit count, if they are not enough, is not
                    // documented
                    if lowers && asks.len() > 1 {
                        for ask in asks.iter_mut() {
                            ask.gives_back = false;
                        }
                    }
                    // nor is the order in which two descriptors of one counter are tried
                    drop_repeated(asks, |_, _| false);
                }
            }
        }
    }
}

impl Limit {
    /// Drops tiers whose algorithm and period an earlier one has.
    pub(crate) fn drop_repeated(&mut self) {
        let mut kept: Vec<Tier> = Vec::new();
        for tier in self.tiers.drain(..) {
            if kept.iter().all(|other| !other.shares_counter(&tier)) {
                kept.push(tier);
            }
        }
        self.tiers = kept;
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tiers: Vec<String> = self.tiers.iter().map(ToString::to_string).collect();
        let spelling = if self.reference { ", rejected hits count" } else { "" };
        let costs = if self.meters { ", reserve: 0" } else { "" };
        write!(f, "{}{spelling}{costs}", tiers.join("; "))
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.gives_back { "give back" } else { "take" };
        write!(f, "{verb} {} of {}={}", self.hits, KEYS[self.key], VALUES[self.key][self.value][0])?;
        match &self.own {
            Some(own) => write!(f, " under its own limit ({own:?})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait(time) => write!(f, "wait {time}"),
            Self::Request(0, asks) => write!(f, "{asks:?}"),
            Self::Request(instance, asks) => write!(f, "at instance {instance}: {asks:?}"),
            Self::Reload(key, limit) => write!(f, "{} becomes {limit:?}", KEYS[*key]),
            Self::Outage(true) => f.write_str("the store fails"),
            Self::Outage(false) => f.write_str("the store works"),
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, together, local_cache, round_trip, instances, steps } = self;
        write!(f, "\n  all or none: {together}, local cache: {local_cache}, ")?;
        write!(f, "round trip: {round_trip}ms, instances: {instances}")?;
        for (key, limit) in KEYS.iter().zip(limits) {
            write!(f, "\n  {key}: {limit:?}")?;
        }
        for (i, step) in steps.iter().enumerate() {
            write!(f, "\n  {i}. {step:?}")?;
        }
        Ok(())
    }
}
