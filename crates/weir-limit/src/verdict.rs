use serde_json::{Value, json};
use smallvec::SmallVec;

use super::{
    decision::Decision,
    descriptor::{Descriptor, Request},
    limit_match::MatchedLimit,
    matched::{DescriptorMatch, Matched, RuleRef},
    place::{IN_FLIGHT, PlaceAsk, PlaceCheck, PlaceDecision, PlaceName},
    request_name::RequestName,
    rule::Metadata,
    tier::{OverLimitPolicy, Tier},
    units::{Hits, Period, Timestamp},
};

#[derive(Debug)]
pub struct Verdict<'a> {
    pub code: Code,
    /// Whether a request over its limits is admitted because the whole service runs in shadow mode.
    pub shadowed: bool,
    /// One per descriptor, in the request's order.
    pub statuses: SmallVec<[Status<'a>; 2]>,
    /// The index of the status nearest to its limit: the last limit (not a quota) that is over, otherwise the first one
    /// with the lowest remaining. None if nothing was counted.
    pub nearest: Option<usize>,
    /// Dynamic metadata for the proxy, if [`Modes::metadata`] is on, or the request is about requests in flight.
    pub metadata: Option<Metadata>,
    /// What it says about requests in flight. Boxed, since few requests are about them.
    pub in_flight: Option<Box<InFlightVerdict<'a>>>,
}

/// What a verdict says about requests in flight.
#[derive(Debug)]
pub struct InFlightVerdict<'a> {
    /// The name that ends the request; none if it has no places.
    pub name: Option<Box<str>>,
    /// [`PlaceDecisions::reserved`].
    pub reserved: Hits,
    /// One for each decision on places, in the request's order.
    pub limits: SmallVec<[InFlightLimit<'a>; 1]>,
}

/// A limit on requests in flight that was asked.
#[derive(Clone, Copy, Debug)]
pub struct InFlightLimit<'a> {
    /// The rule.
    pub rule: RuleRef<'a>,
    /// The most requests at once.
    pub most: u32,
    /// The requests that may begin now.
    pub left: u32,
}

/// The decisions on the places of a request.
#[derive(Clone, Debug, Default)]
pub struct PlaceDecisions {
    /// The name of those that it took.
    pub name: Option<PlaceName>,
    /// The most hits that one of its descriptors has reserved beside its own.
    pub reserved: Hits,
    /// In the order of [`Matched::places`]. None if it was not asked for, since the request was rejected before.
    pub decisions: SmallVec<[Option<PlaceDecision>; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok,
    OverLimit,
}

#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    pub code: Code,
    /// Whether the descriptor is a quota: the request is rejected only if every quota of the request is over.
    pub quota: bool,
    /// The reported limit; none if nothing was counted.
    pub limit: Option<CurrentLimit<'a>>,
    /// Requests that would still be admitted; 2^32-1 for an unlimited rule, 0 if nothing was counted.
    pub remaining: u32,
    /// The [`Decision::reset`], if there is a limit.
    pub reset: Option<Period>,
}

#[derive(Clone, Copy, Debug)]
pub struct CurrentLimit<'a> {
    pub rule: RuleRef<'a>,
    /// The reported tier of the rule; none for its limit on requests in flight.
    pub tier: Option<&'a Tier>,
    /// The requests that it admits: of a pool, the share of the member.
    pub requests: u32,
}

#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "switches of their own, each a variable")]
pub struct Modes {
    /// `SHADOW_MODE`: whether every request is admitted.
    pub shadow: bool,
    /// `QUOTA_MODE`: whether every descriptor is a quota, even without a limit.
    pub quota: bool,
    /// `RESPONSE_DYNAMIC_METADATA`: whether responses describe the request to the proxy.
    pub metadata: bool,
    /// `WEIR_RULE_METADATA`: whether a rejection names its rule to the proxy.
    pub rejecting_rule: bool,
}

// === impl Verdict ===

impl<'a> Verdict<'a> {
    pub fn new(
        request: &Request<'_>,
        matched: &'a Matched<'_>,
        decisions: &[Decision],
        modes: &Modes,
    ) -> Self {
        Self::with_places(request, matched, decisions, None, modes)
    }

    /// Like [`Verdict::new`], with the decisions on the places that `matched` asks for.
    pub fn with_places(
        request: &Request<'_>,
        matched: &'a Matched<'_>,
        decisions: &[Decision],
        places: Option<&PlaceDecisions>,
        modes: &Modes,
    ) -> Self {
        let mut statuses: SmallVec<[Status<'a>; 2]> = SmallVec::new();
        // pushed one by one: `collect` costs more than the statuses
        for descriptor in &matched.matches {
            let status = match descriptor {
                DescriptorMatch::NoLimit => Status::no_limit(modes.quota),
                DescriptorMatch::Unlimited(_) => Status::unlimited(),
                DescriptorMatch::Running => Status::no_limit(false),
                DescriptorMatch::Limited(i) => {
                    let check = &matched.checks[*i];
                    Status::counted(
                        check.rule,
                        check.tiers(),
                        check.over_limit_policy(),
                        &decisions[*i],
                        modes.quota,
                    )
                }
            };
            statuses.push(status);
        }
        for (i, (descriptor, place)) in matched.places.iter().enumerate() {
            let decision = places.and_then(|places| places.decisions[i]);
            statuses[*descriptor].add_place(place, decision, modes.quota);
        }
        let mut verdict = Self::of_statuses(statuses, modes);
        if modes.describes() {
            let rejecting = verdict.nearest.filter(|_| verdict.code == Code::OverLimit);
            verdict.metadata = metadata(request, matched, &verdict.statuses, modes, rejecting);
        }
        if let Some(places) = places {
            verdict.add_places(request.domain, matched, places);
        }
        verdict
    }

    /// Tells of places, and names an admitted request that has some.
    #[cold]
    fn add_places(&mut self, domain: &str, matched: &'a Matched<'_>, places: &PlaceDecisions) {
        let (mut limits, mut held) = (SmallVec::new(), Vec::new());
        for ((_, place), decision) in matched.places.iter().zip(&places.decisions) {
            let Some(decision) = decision.filter(|_| place.ask != PlaceAsk::Nothing) else { continue };
            let (rule, most, takes) =
                (RuleRef::Compiled(place.rule), place.limit.most, place.ask == PlaceAsk::Take);
            if place.is_limited() {
                limits.push(InFlightLimit { rule, most, left: decision.left(most, takes) });
            }
            if takes && !decision.over {
                held.push(place.entries);
            }
        }
        let name = places.name.filter(|_| self.code == Code::Ok && !held.is_empty());
        let name = name.map(|name| RequestName::write(name, held).into_boxed_str());
        let left = limits.iter().map(|limit: &InFlightLimit<'_>| limit.left).min();
        if let Some(left) = left.filter(|_| self.code == Code::Ok) {
            self.metadata.get_or_insert_default().insert("in_flight_left".into(), left.into());
        }
        if let Some(name) = &name {
            let metadata = self.metadata.get_or_insert_default();
            metadata.insert(IN_FLIGHT.into(), (**name).into());
            metadata.insert(format!("{IN_FLIGHT}/{domain}"), (**name).into());
        }
        self.in_flight = Some(Box::new(InFlightVerdict { name, reserved: places.reserved, limits }));
    }

    /// Returns the verdict on these `statuses`, without the metadata that [`Modes::describes`] asks for.
    #[inline]
    pub fn of_statuses(statuses: SmallVec<[Status<'a>; 2]>, modes: &Modes) -> Self {
        let mut combined = Combined::default();
        for (i, status) in statuses.iter().enumerate() {
            combined.add(i, status);
        }
        Self::of(statuses, &combined, modes)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it is made where it is used")]
    pub fn of_status(status: Status<'a>, modes: &Modes) -> Self {
        let mut combined = Combined::default();
        combined.add(0, &status);
        // in its place, which a push is not
        let statuses = SmallVec::from_buf_and_len([status; 2], 1);
        Self::of(statuses, &combined, modes)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it is made where it is used")]
    fn of(statuses: SmallVec<[Status<'a>; 2]>, combined: &Combined, modes: &Modes) -> Self {
        let is_over = combined.is_over();
        Self {
            code: if is_over && !modes.shadow { Code::OverLimit } else { Code::Ok },
            shadowed: is_over && modes.shadow,
            nearest: combined.nearest,
            metadata: None,
            in_flight: None,
            statuses,
        }
    }

    /// Returns the wait until a rejected request would be admitted if nobody else takes hits; none if no limit rejected
    /// it, or one never admits anything. Every limit that is over must admit the request. If only quotas are over, one of
    /// them is enough.
    pub fn retry_after(&self) -> Option<Period> {
        let over = |quota: bool| {
            let is_over = move |status: &&Status<'_>| status.code == Code::OverLimit && status.quota == quota;
            self.statuses.iter().filter(is_over)
        };
        if over(false).any(Status::is_closed) {
            return None;
        }
        let waits = |quota: bool| over(quota).filter(|status| !status.is_closed());
        let waits = |quota: bool| waits(quota).filter_map(|status| status.reset);
        waits(false).max().or_else(|| waits(true).min())
    }
}

// === impl Modes ===

impl Modes {
    pub const fn describes(&self) -> bool {
        self.metadata || self.rejecting_rule
    }
}

#[derive(Default)]
struct Combined {
    limits_over: usize,
    quotas: usize,
    quotas_over: usize,
    /// See [`Verdict::nearest`].
    nearest: Option<usize>,
    /// The remaining requests of the nearest status.
    least: u32,
}

impl Combined {
    /// An unlimited rule's status is no quota.
    #[inline]
    fn add(&mut self, i: usize, status: &Status<'_>) {
        let is_nearer = match self.nearest {
            Some(_) => status.remaining < self.least,
            None => status.remaining < u32::MAX,
        };
        if status.limit.is_some() && is_nearer {
            (self.nearest, self.least) = (Some(i), status.remaining);
        }
        let over = status.code == Code::OverLimit;
        if status.quota {
            self.quotas += 1;
            self.quotas_over += usize::from(over);
        } else if over {
            self.limits_over += 1;
            (self.nearest, self.least) = (Some(i), 0);
        }
    }

    const fn is_over(&self) -> bool {
        self.limits_over > 0 || (self.quotas > 0 && self.quotas == self.quotas_over)
    }
}

// === impl Status ===

impl<'a> Status<'a> {
    /// When to ask again for a place: a hint, as nobody knows when a request ends.
    const IN_FLIGHT_RETRY: Period = Period::from_secs(1);

    /// The status of a descriptor of which nothing is counted, and which may be a `quota`.
    pub const fn no_limit(quota: bool) -> Self {
        Self { code: Code::Ok, quota, limit: None, remaining: 0, reset: None }
    }

    /// Returns whether its limit is [closed](RuleRef::is_closed): there is no time to retry at.
    pub fn is_closed(&self) -> bool {
        self.limit.is_some_and(|limit| limit.requests == 0 && limit.rule.is_closed())
    }

    pub const fn unlimited() -> Self {
        Self { code: Code::Ok, quota: false, limit: None, remaining: u32::MAX, reset: None }
    }

    /// Without a `decision` no place was asked for. A refusal comes after the decision on the tiers beside it.
    fn add_place(&mut self, place: &'a PlaceCheck<'_>, decision: Option<PlaceDecision>, all_quotas: bool) {
        let (rule, most) = (RuleRef::Compiled(place.rule), place.limit.most);
        self.quota = all_quotas || rule.quota_mode();
        match decision {
            Some(decision) if decision.over => {
                self.code = if rule.shadow_mode() { Code::Ok } else { Code::OverLimit };
                self.limit = Some(CurrentLimit { rule, tier: None, requests: most });
                (self.remaining, self.reset) = (0, Some(Self::IN_FLIGHT_RETRY));
            }
            // no limit is reported, since the proxy would show it in place of a rate that has more left
            Some(decision) if self.limit.is_none() => {
                self.remaining = decision.left(most, place.ask == PlaceAsk::Take);
            }
            None if self.limit.is_none() => self.remaining = 0,
            Some(_) | None => {}
        }
    }

    /// Returns the wait of what rejects: at most the time until a schedule gives the rule another limit.
    pub fn reset_by_edge(&self, now: Timestamp) -> Option<Period> {
        let until = self.limit.and_then(|limit| limit.rule.compiled()?.rule.until);
        let edge = until.filter(|_| self.code == Code::OverLimit).map(|until| until.since(now));
        self.reset.into_iter().chain(edge).min()
    }

    /// The status of a descriptor for which there is a `decision`. `all_quotas` is [`Modes::quota`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn of_limit(limit: &MatchedLimit<'a>, decision: &Decision, all_quotas: bool) -> Self {
        let rule = RuleRef::Compiled(limit.rule);
        Self::counted(rule, limit.tiers, limit.over_limit_policy, decision, all_quotas)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn counted(
        rule: RuleRef<'a>,
        tiers: &'a [Tier],
        policy: OverLimitPolicy,
        decision: &Decision,
        all_quotas: bool,
    ) -> Self {
        let tier = &tiers[decision.tier];
        Self {
            code: if decision.over && !rule.shadow_mode() { Code::OverLimit } else { Code::Ok },
            quota: all_quotas || rule.quota_mode(),
            limit: Some(CurrentLimit {
                rule,
                tier: Some(tier),
                requests: decision.share.unwrap_or(tier.requests),
            }),
            remaining: match policy {
                // envoyproxy/ratelimit reports 0 even if fewer hits would have fitted
                OverLimitPolicy::Count if decision.over => 0,
                _ => decision.remaining,
            },
            reset: Some(decision.reset),
        }
    }
}

/// `rejecting` is the status that rejects the request.
#[cold]
fn metadata(
    request: &Request<'_>,
    matched: &Matched<'_>,
    statuses: &[Status<'_>],
    modes: &Modes,
    rejecting: Option<usize>,
) -> Option<Metadata> {
    let mut metadata = modes.metadata.then(|| describe(request, matched, statuses));
    if modes.rejecting_rule
        && let Some(limit) = rejecting.and_then(|rejecting| statuses[rejecting].limit)
    {
        let compiled = limit.rule.compiled();
        let rule = compiled.map_or_else(|| limit.rule.label(), |rule| rule.path.to_string());
        metadata.get_or_insert_default().insert("rejected_by".into(), rule.into());
    }
    metadata
}

/// What envoyproxy/ratelimit sends: the decoded request, and the metadata of the rules that admitted it.
fn describe(request: &Request<'_>, matched: &Matched<'_>, statuses: &[Status<'_>]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("domain".into(), request.domain.into());
    let descriptors = request.descriptors.iter().map(describe_descriptor).collect();
    metadata.insert("descriptors".into(), Value::Array(descriptors));
    if request.hits != 0 {
        metadata.insert("hitsAddend".into(), request.hits.into());
    }
    let mut passed = Metadata::new();
    for (descriptor, status) in matched.matches.iter().zip(statuses) {
        if let (DescriptorMatch::Limited(check), Code::Ok) = (descriptor, status.code)
            && let Some(more) = matched.checks[*check].rule.declared().and_then(|rule| rule.metadata.as_ref())
        {
            merge(&mut passed, more);
        }
    }
    if !passed.is_empty() {
        metadata.insert("metadata".into(), Value::Object(passed));
    }
    metadata
}

fn describe_descriptor(descriptor: &Descriptor<'_>) -> Value {
    let entries: Vec<String> = descriptor.entries.iter().map(ToString::to_string).collect();
    let mut described = Metadata::new();
    described.insert("entries".into(), json!(entries));
    if let Some(limit) = &descriptor.limit {
        let tiers: Vec<String> = limit.tiers().iter().map(describe_tier).collect();
        described.insert("limit".into(), tiers.join("; ").into());
    }
    if let Some(hits) = descriptor.hits {
        described.insert("hitsAddend".into(), hits.into());
    }
    Value::Object(described)
}

fn describe_tier(tier: &Tier) -> String {
    match tier.unit().filter(|_| tier.has_windows()) {
        // protobuf's text format of the override, which omits zero fields
        Some(unit) if tier.requests == 0 => format!("unit:{unit}"),
        Some(unit) => format!("requests_per_unit:{} unit:{unit}", tier.requests),
        None => tier.to_string(),
    }
}

/// Adds the fields of `more` that `metadata` lacks, at every depth.
fn merge(metadata: &mut Metadata, more: &Metadata) {
    for (key, value) in more {
        match (metadata.get_mut(key), value) {
            (None, value) => {
                metadata.insert(key.clone(), value.clone());
            }
            (Some(Value::Object(inner)), Value::Object(more)) => merge(inner, more),
            (Some(_), _) => {}
        }
    }
}
