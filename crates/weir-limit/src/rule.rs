//! The declared rules: a tree of nodes per domain, some of which have a rule.

use std::{fmt, slice, sync::Arc};

use serde_json::Map;
use smallvec::smallvec;

use super::{
    coordination::RuleCoordination,
    network::CountBy,
    pattern::Values,
    place::InFlight,
    reserve::Reserve,
    schedule::Schedule,
    share::Sharing,
    tier::{self, OverLimitPolicy, Tier, Tiers},
    units::{Period, Timestamp},
};

/// Free-form data that a rule adds to responses, with the types of protobuf's `Struct`.
pub type Metadata = Map<String, serde_json::Value>;

/// A domain with its tree, as declared; [`RuleSet`](super::RuleSet) compiles it.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Its name; not empty.
    pub name: String,
    /// What a rejection of one descriptor of a request affects; the service's settings may widen it.
    pub scope: Scope,
    /// Whether callers may give hits back, for rules that do not say it; [`GiveBack::Allow`] by default.
    pub give_back: Option<GiveBack>,
    /// The first level, in the order of declaration, which is the order in which wildcards are tried.
    pub nodes: Vec<RuleNode>,
}

/// The descriptors that a rejection affects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Only the rejected one. The request's other descriptors count: the default of envoyproxy/ratelimit.
    #[default]
    Descriptor,
    /// All of the request: if one is over its limit, none counts. `all_or_nothing` of a domain, or
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`, with which envoyproxy/ratelimit still counts the rejected one.
    Request,
}

/// Whether callers may give back hits that were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum GiveBack {
    /// They may, whether or not they took as many.
    #[default]
    Allow,
    /// They may not: a descriptor that gives hits back has none.
    Deny,
}

/// A node of the tree: a key, its values, and its children.
#[derive(Clone, Debug)]
pub struct RuleNode {
    /// The key that an entry must have; not empty.
    pub key: String,
    /// The values that an entry may have.
    pub values: Values,
    /// The name of the limit that a table gives to these values. Names them in stats.
    pub plan: Option<Box<str>>,
    /// Whether the counter's key contains the values as written, not the request's value. Always so for [`Values::Of`],
    /// and for [`Values::Networks`] unless `count_by` says otherwise.
    pub share_threshold: bool,
    /// What of its values has a counter of its own.
    pub count_by: CountBy,
    /// Whether the request's value is part of the stat's name.
    pub value_to_metric: bool,
    /// The limit for a descriptor that ends here. Without one, such a descriptor is admitted.
    pub rule: Option<Rule>,
    /// The next level.
    pub children: Vec<RuleNode>,
    /// Where it was declared.
    pub origin: Origin,
}

/// A limit, and how its decisions are reported. A rule of requests in flight alone is [unlimited](Limit::Unlimited).
#[derive(Clone, Debug)]
pub struct Rule {
    /// The requests that it admits.
    pub limit: Limit,
    /// How the values of the last entry share the first tier, a fixed window. None: each value has all of it.
    pub sharing: Option<Arc<Sharing>>,
    /// A limit that is counted as if enforced, and never rejects. [`Rule::limit`] must have tiers that nothing shares.
    pub shadow: Option<Limit>,
    /// How the instances coordinate its counts.
    pub coordination: RuleCoordination,
    /// Whether callers may give its hits back, if it says so itself.
    pub give_back: Option<GiveBack>,
    /// What requests reserve, if their costs are reported after they were admitted. A request of 0 or 1 hits begins while
    /// hits remain; more are a cost, which counts above the limit, too.
    pub reserve: Option<Reserve>,
    /// The limit on requests in flight, beside [`Rule::limit`].
    pub in_flight: Option<InFlight>,
    /// The DNS name of the instances between which the limit, whole so far, is divided when rules are loaded.
    pub instances_of: Option<Box<str>>,
    /// Its name: responses carry it, and `replaces` refers to it.
    pub name: Option<Box<str>>,
    /// Names of the rules that do not count if this one matches too.
    pub replaces: Vec<Box<str>>,
    /// Whether the rule counts and reports, but admits every descriptor.
    pub shadow_mode: bool,
    /// Whether the request is rejected only if every quota rule of the request is over.
    pub quota_mode: bool,
    /// Whether every value is part of the stat's name.
    pub detailed_metric: bool,
    /// The metadata of the response if the descriptor is admitted.
    pub metadata: Option<Arc<Metadata>>,
    /// Its limits by time, one of which it has now.
    pub schedule: Option<Arc<Schedule>>,
    /// When its schedule gives it another limit, by the store's clock.
    pub until: Option<Timestamp>,
    /// Where it was declared.
    pub origin: Origin,
}

/// The requests that a rule admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// All requests, without counting them.
    Unlimited,
    /// Requests that all of these tiers admit.
    Tiers {
        /// The tiers, in the order of declaration. Never empty.
        tiers: Tiers,
        /// Whether rejected hits count.
        over_limit_policy: OverLimitPolicy,
    },
}

/// A place in a user's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The file's path as the user named it; empty if there is no file.
    pub file: Arc<str>,
    /// Counted from 1; 0 if unknown.
    pub line: u32,
    /// Counted from 1, in characters; 0 if unknown.
    pub column: u32,
}

// === impl Domain ===

impl Domain {
    /// Creates a domain in which a rejection affects only the rejected descriptor.
    pub fn new(name: impl Into<String>, nodes: Vec<RuleNode>) -> Self {
        Self { name: name.into(), scope: Scope::default(), give_back: None, nodes }
    }
}

// === impl Scope ===

impl Scope {
    /// Returns the over-limit policy of a limit that declares `policy`, if a rejection affects this scope.
    #[inline]
    pub const fn policy_of(self, policy: OverLimitPolicy) -> OverLimitPolicy {
        match self {
            Self::Descriptor => policy,
            Self::Request => OverLimitPolicy::Ignore,
        }
    }
}

// === impl GiveBack ===

impl GiveBack {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Allow, Self::Deny];

    /// Returns its name in the rule language.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

// === impl RuleNode ===

impl RuleNode {
    /// Creates a node of a key and values, without rule, children or origin.
    pub fn new(key: &str, values: Values) -> Self {
        Self {
            key: key.into(),
            values,
            plan: None,
            share_threshold: false,
            count_by: CountBy::Values,
            value_to_metric: false,
            rule: None,
            children: Vec::new(),
            origin: Origin::default(),
        }
    }
}

// === impl Rule ===

impl Rule {
    /// Creates a rule of a limit, without name, modes, metadata or origin.
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            sharing: None,
            shadow: None,
            coordination: RuleCoordination::default(),
            give_back: None,
            reserve: None,
            in_flight: None,
            instances_of: None,
            name: None,
            replaces: Vec::new(),
            shadow_mode: false,
            quota_mode: false,
            detailed_metric: false,
            metadata: None,
            schedule: None,
            until: None,
            origin: Origin::default(),
        }
    }

    /// Returns the rule with each limit of its schedule; itself if it has none.
    pub fn variants(&self) -> impl Iterator<Item = &Self> {
        let limits = self.schedule.iter().flat_map(|schedule| &schedule.limits);
        let own = if self.schedule.is_some() { &[][..] } else { slice::from_ref(self) };
        limits.map(|limit| &limit.rule).chain(own)
    }

    /// Returns whether it limits requests at some time.
    pub fn may_limit(&self) -> bool {
        self.variants().any(|rule| !rule.is_unlimited())
    }

    /// Changes the rule, and with each limit of its schedule.
    pub fn change_variants(&mut self, change: &impl Fn(&mut Self)) {
        change(self);
        if let Some(schedule) = &mut self.schedule {
            for limit in &mut Arc::make_mut(schedule).limits {
                change(&mut limit.rule);
            }
        }
    }

    /// Returns its tiers; none if it is unlimited, or limits only requests in flight.
    pub fn tiers(&self) -> &[Tier] {
        self.limit.tiers()
    }

    /// Returns whether costs are reported after requests.
    pub const fn meters(&self) -> bool {
        self.reserve.is_some()
    }

    /// Returns the limit on the places of its requests, if they have some; that of a rule whose places only remember what
    /// requests have reserved is [`InFlight::UNLIMITED`].
    pub fn places(&self) -> Option<InFlight> {
        self.in_flight.or_else(|| self.reserve.filter(Reserve::takes_hits).map(|reserve| reserve.place()))
    }

    /// Returns whether it admits every request.
    pub fn is_unlimited(&self) -> bool {
        self.limit == Limit::Unlimited && self.in_flight.is_none()
    }
}

// === impl Limit ===

impl Limit {
    /// Returns its tiers; none if it is unlimited.
    pub fn tiers(&self) -> &[Tier] {
        match self {
            Self::Unlimited => &[],
            Self::Tiers { tiers, .. } => tiers,
        }
    }

    /// Returns whether rejected hits count.
    pub const fn over_limit_policy(&self) -> OverLimitPolicy {
        match self {
            Self::Tiers { over_limit_policy, .. } => *over_limit_policy,
            Self::Unlimited => OverLimitPolicy::Ignore,
        }
    }

    /// Returns the most hits that it can admit at once: the smallest capacity of its tiers; 0 if it is unlimited.
    pub fn capacity(&self) -> u64 {
        tier::capacity(self.tiers())
    }

    /// Returns whether the hits of a window are spread over it: a bucket of its pace follows it.
    pub fn is_smooth(&self) -> bool {
        let is_pace = |window: &Tier, tier: &Tier| *tier == window.pace(tier.capacity());
        self.tiers().windows(2).any(|pair| is_pace(&pair[0], &pair[1]))
    }

    /// Creates a limit as envoyproxy/ratelimit applies it: a fixed window in which rejected hits count.
    pub fn fixed_window(requests: u32, period: Period) -> Self {
        Self::Tiers {
            tiers: smallvec![Tier::fixed_window(requests, period)],
            over_limit_policy: OverLimitPolicy::Count,
        }
    }
}

// === impl Origin ===

/// `file:line:column`; only the file if the line is 0.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column } = self;
        if *line == 0 { f.write_str(file) } else { write!(f, "{file}:{line}:{column}") }
    }
}
