//! What a user declares: a tree of nodes for each domain, with a rule at some of them.

use std::{fmt, sync::Arc};

use serde_json::Map;
use smallvec::smallvec;

use super::{
    coordination::RuleCoordination,
    pattern::Values,
    tier::{Algorithm, OverLimitPolicy, Tier, Tiers},
    units::Period,
};

/// Free-form data that a rule hands to whoever asked, under the rules of protobuf's `Struct`.
pub type Metadata = Map<String, serde_json::Value>;

/// A domain with its tree, as declared; [`RuleSet`](super::RuleSet) compiles it.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Its name; not empty.
    pub name: String,
    /// The first level, in the order of declaration: wildcards are tried in it.
    pub nodes: Vec<RuleNode>,
}

/// One level of the tree: a key, the values that it takes, and what lies below.
#[derive(Clone, Debug)]
pub struct RuleNode {
    /// The key that an entry must have; not empty.
    pub key: String,
    /// The values that an entry may have.
    pub values: Values,
    /// The values as written, not the request's value, are part of the counter's key. [`Values::Of`] always shares.
    pub share_threshold: bool,
    /// The request's value is part of the stat's name.
    pub value_to_metric: bool,
    /// The limit for a descriptor that ends here. Without one, such a descriptor passes freely.
    pub rule: Option<Rule>,
    /// The next level.
    pub children: Vec<RuleNode>,
    /// Where it was declared.
    pub origin: Origin,
}

/// A limit and how it is answered.
#[derive(Clone, Debug)]
pub struct Rule {
    /// What is admitted.
    pub limit: Limit,
    /// How its counts are kept together over instances.
    pub coordination: RuleCoordination,
    /// What a user calls it; answers carry it, and `replaces` refers to it.
    pub name: Option<Box<str>>,
    /// Names of rules that do not count where this one matches too.
    pub replaces: Vec<Box<str>>,
    /// Counts and reports, but a descriptor that is over is answered OK.
    pub shadow_mode: bool,
    /// Being over closes the request only when every quota rule of the request is over.
    pub quota_mode: bool,
    /// Every value is part of the stat's name.
    pub detailed_metric: bool,
    /// Handed out when the descriptor passes.
    pub metadata: Option<Arc<Metadata>>,
    /// Where it was declared.
    pub origin: Origin,
}

/// What a rule admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Everything, without counting.
    Unlimited,
    /// What each of these admits; a request must pass all of them. Never empty.
    Tiers {
        /// The limits, in the order of declaration.
        tiers: Tiers,
        /// What becomes of hits that are refused.
        over_limit_policy: OverLimitPolicy,
    },
}

/// A place in a user's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file's path as the user named it; empty for what came over the wire.
    pub file: Arc<str>,
    /// Counted from 1; 0 if unknown.
    pub line: u32,
    /// Counted from 1, in characters; 0 if unknown.
    pub column: u32,
}

// === impl RuleNode ===

impl RuleNode {
    /// A node that is nothing but its key and values: without a rule, children or place.
    #[must_use]
    pub fn new(key: &str, values: Values) -> Self {
        Self {
            key: key.into(),
            values,
            share_threshold: false,
            value_to_metric: false,
            rule: None,
            children: Vec::new(),
            origin: Origin::default(),
        }
    }
}

// === impl Rule ===

impl Rule {
    /// A rule that is nothing but its limit: without name, modes, metadata or place.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            coordination: RuleCoordination::default(),
            name: None,
            replaces: Vec::new(),
            shadow_mode: false,
            quota_mode: false,
            detailed_metric: false,
            metadata: None,
            origin: Origin::default(),
        }
    }

    /// Its tiers; none if it is unlimited.
    #[must_use]
    pub fn tiers(&self) -> &[Tier] {
        self.limit.tiers()
    }
}

// === impl Limit ===

impl Limit {
    /// Its tiers; none if it is unlimited.
    #[must_use]
    pub fn tiers(&self) -> &[Tier] {
        match self {
            Self::Unlimited => &[],
            Self::Tiers { tiers, .. } => tiers,
        }
    }

    /// Returns whether rejected hits count.
    #[must_use]
    pub const fn over_limit_policy(&self) -> OverLimitPolicy {
        match self {
            Self::Tiers { over_limit_policy, .. } => *over_limit_policy,
            Self::Unlimited => OverLimitPolicy::Ignore,
        }
    }

    /// A limit in the reference's spelling: a fixed window in which refused hits count.
    #[must_use]
    pub fn fixed_window(requests: u32, period: Period) -> Self {
        Self::Tiers {
            tiers: smallvec![Tier { requests, period, algorithm: Algorithm::FixedWindow }],
            over_limit_policy: OverLimitPolicy::Count,
        }
    }
}

// === impl Origin ===

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
