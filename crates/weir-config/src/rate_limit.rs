//! Reads a `rate_limit`: one limit, several tiers, or unlimited.

use std::sync::Arc;

use super::{
    calendar,
    checks::redundant_tiers,
    duration,
    error::ConfigReport,
    fields::{Field, Fields},
    in_flight::{self, ReadInFlight},
    keys::KeyLevel,
    scalar::{Meaning, Scalar, brief},
    schedule, share, split, tier,
    yaml::{Value, YamlNode, YamlPosition},
    zone,
};
use weir_limit::{
    AlgorithmKind, Coordination, GiveBack, Hits, Limit, OnStoreFailure, OverLimitPolicy, Period, Reserve,
    ReserveAmount, Rule, RuleCoordination, Tier, Unit, share::Sharing,
};

/// Requests outlast shorter windows.
const LEAST_WINDOW: Period = Period::from_secs(30);

/// Each is a counter for each value, and every request is checked against all of them.
const MAX_TIERS: usize = 64;

/// The parts of a limit: the rates are unlimited if there are requests in flight alone.
#[derive(Default)]
struct ReadLimit {
    limit: Option<Limit>,
    sharing: Option<Sharing>,
    in_flight: Option<ReadInFlight>,
}

pub(super) fn read(node: &YamlNode, key_at: YamlPosition, report: &mut ConfigReport) -> Option<Rule> {
    let fields = Fields::new(node, KeyLevel::RateLimit, "'rate_limit'", report)?;
    let name = fields.text("name", report);
    let replaces = replaces(&fields, name.map(|name| name.value), report);
    let rule = if fields.get("schedule").is_some() {
        schedule::read(&fields, report)
    } else {
        read_limit(&fields, &fields, key_at, report)
    };
    let name: Option<Box<str>> = name.map(|name| name.value.into());
    let mut rule = rule?;
    rule.change_variants(&|rule| {
        rule.name.clone_from(&name);
        rule.replaces.clone_from(&replaces);
    });
    Some(rule)
}

/// Reads the limit that `fields` have. What `common` says is about all limits of its rule.
pub(super) fn read_limit(
    fields: &Fields<'_>,
    common: &Fields<'_>,
    key_at: YamlPosition,
    report: &mut ConfigReport,
) -> Option<Rule> {
    let ReadLimit { mut limit, sharing, in_flight } = if fields.flag("unlimited", report) {
        check_unlimited(fields, report);
        ReadLimit { limit: Some(Limit::Unlimited), ..ReadLimit::default() }
    } else {
        limit(fields, key_at, None, report)
    };
    let reserve = reserve_beside(fields, limit.as_ref(), sharing.is_some(), report);
    in_flight::check_age(fields, reserve, report);
    let mut shadow = shadow_beside(fields, limit.as_ref(), sharing.is_some(), report);
    let timezone = zone::read(common, report);
    calendar::set_timezone(common, timezone.as_ref(), [limit.as_mut(), shadow.as_mut()], report);
    let mut coordination = coordination(common, report);
    if let (Some(read), Some(limit)) = (in_flight, &limit) {
        in_flight::check_beside(read, fields, (limit, sharing.is_some()), coordination.mode, report);
    }
    // instances that reject everything need no store for it
    let is_closed =
        |limit: &Limit| limit.over_limit_policy() == OverLimitPolicy::Ignore && limit.capacity() == 0;
    if limit.as_ref().is_some_and(|limit| *limit != Limit::Unlimited && is_closed(limit)) && sharing.is_none()
    {
        coordination.mode = coordination.mode.or(Some(Coordination::Local));
    }
    let instances_of =
        split::apply(common, limit.as_mut(), shadow.as_mut(), sharing.is_some(), &mut coordination, report);
    let rule = Rule::new(limit?);
    Some(Rule {
        sharing: sharing.map(Arc::new),
        shadow,
        coordination,
        give_back: give_back(common, report),
        reserve,
        in_flight: in_flight.map(|read| read.limit),
        instances_of,
        ..rule
    })
}

/// What a rule may say whose limits are in a table, as a rule without limit.
const BESIDE_TABLE: [&str; 5] = ["name", "replaces", "coordination", "sync_interval", "on_store_failure"];

/// Reads what is beside a table of limits, which come in place of the one that is returned.
pub(super) fn read_beside_table(field: Option<Field<&YamlNode>>, report: &mut ConfigReport) -> Option<Rule> {
    let rule = Rule::new(Limit::Unlimited);
    let Some(field) = field else { return Some(rule) };
    let fields = Fields::new(field.value, KeyLevel::RateLimit, "'rate_limit'", report)?;
    for key in KeyLevel::RateLimit.keys().filter(|key| !BESIDE_TABLE.contains(key)) {
        if let Some(field) = fields.get(key) {
            report.error(
                field.key_at,
                format!("'{key}' cannot be combined with 'limits_from'; write it in the limits of the table, or in its plans"),
            );
        }
    }
    let name = fields.text("name", report);
    let replaces = replaces(&fields, name.map(|name| name.value), report);
    let coordination = coordination(&fields, report);
    Some(Rule { coordination, name: name.map(|name| name.value.into()), replaces, ..rule })
}

/// `inherited` is the algorithm unless `fields` name one.
fn limit(
    fields: &Fields<'_>,
    key_at: YamlPosition,
    inherited: Option<AlgorithmKind>,
    report: &mut ConfigReport,
) -> ReadLimit {
    if fields.get("tiers").is_some() {
        return tiers(fields, inherited, report);
    }
    if in_flight::is_written(fields) {
        let in_flight = in_flight::read(fields, report);
        let limit = in_flight.map(|_| Limit::Unlimited);
        return ReadLimit { limit, in_flight, sharing: None };
    }
    let read = tier::read(fields, key_at, inherited, report);
    let sharing = share::read(fields, read.as_ref(), report);
    let limit = read.map(|read| Limit::Tiers {
        tiers: std::iter::once(read.tier).chain(read.pace).collect(),
        // a limit in the syntax of envoyproxy/ratelimit counts rejected requests, as there
        over_limit_policy: if read.is_reference && sharing.is_none() {
            OverLimitPolicy::Count
        } else {
            OverLimitPolicy::Ignore
        },
    });
    ReadLimit { limit, sharing, in_flight: None }
}

pub(super) fn shadow(
    fields: &Fields<'_>,
    inherited: Option<AlgorithmKind>,
    report: &mut ConfigReport,
) -> Option<Limit> {
    let field = fields.get("shadow")?;
    let fields = Fields::new(field.value, KeyLevel::Shadow, "'shadow'", report)?;
    let ReadLimit { limit, in_flight, .. } = limit(&fields, field.key_at, inherited, report);
    if let Some(ReadInFlight { key_at, .. }) = in_flight {
        report.error(
            key_at,
            "'in_flight' cannot be in a shadow; try the limit itself with 'shadow_mode: true'",
        );
    }
    limit
}

/// The shadow has the algorithm of `enforced` unless it names one. Reports what is valid alone, but not together.
fn shadow_beside(
    fields: &Fields<'_>,
    enforced: Option<&Limit>,
    is_shared: bool,
    report: &mut ConfigReport,
) -> Option<Limit> {
    let field = fields.get("shadow")?;
    let Some(enforced) = enforced else { return shadow(fields, None, report) };
    // `unlimited` reports the keys that have no place beside it
    let first = enforced.tiers().first()?;
    if is_shared {
        report.error(
            field.key_at,
            "a limit that is shared has no 'shadow', because the shares depend on who asks; remove one of both",
        );
        return None;
    }
    let shadow = shadow(fields, Some(first.algorithm.kind()), report)?;
    if shadow == *enforced {
        report.warn(field.key_at, "this 'shadow' is the limit itself, so it would reject the same requests");
    }
    Some(shadow)
}

pub(super) fn coordination(fields: &Fields<'_>, report: &mut ConfigReport) -> RuleCoordination {
    let modes = Coordination::ALL.map(|mode| (mode.name(), mode));
    let mode = fields.choice("coordination", &modes, report);
    let failures = OnStoreFailure::ALL.map(|failure| (failure.name(), failure));
    let on_store_failure = fields.choice("on_store_failure", &failures, report);
    let interval = fields.text("sync_interval", report);
    let sync_interval = interval.and_then(|field| {
        let interval = duration::parse(field.value);
        if interval.is_none() {
            report.error(field.at, format!("invalid interval '{}'; {}", brief(field.value), duration::RIGHT));
        }
        interval
    });
    if let (Some(field), Some(mode)) = (interval, mode)
        && !mode.syncs()
    {
        report.warn(
            field.key_at,
            format!("'sync_interval' has no effect with 'coordination: {}'", mode.name()),
        );
    }
    RuleCoordination { mode, sync_interval, on_store_failure, ..RuleCoordination::default() }
}

pub(super) fn give_back(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<GiveBack> {
    fields.choice("give_back", &GiveBack::ALL.map(|choice| (choice.name(), choice)), report)
}

/// What requests reserve, if their costs are reported after them.
pub(super) fn reserve(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<Reserve> {
    let field = fields.get("reserve")?;
    let amount = match field.value.scalar().map(|scalar| (scalar.meaning(), scalar.text())) {
        Some((Meaning::Text, "auto")) => Some(ReserveAmount::Auto),
        Some((Meaning::Int(hits), _)) => {
            u32::try_from(hits).ok().map(|hits| ReserveAmount::Hits(Hits(hits.into())))
        }
        _ => None,
    };
    if amount.is_none() {
        let written = field.value.scalar().map_or(field.value.kind().into(), Scalar::brief);
        report.error(
            field.at,
            format!(
                "'reserve' is the hits that a request reserves until its cost is reported, not '{written}': write \
                 'reserve: auto', a number up to 'requests', or 0 to count costs only"
            ),
        );
    }
    let give_up_after = in_flight::age(fields, Reserve::NOTHING.give_up_after, report)?;
    Some(Reserve { amount: amount?, give_up_after, ..Reserve::NOTHING })
}

/// Reports what is valid alone, but not beside costs.
fn reserve_beside(
    fields: &Fields<'_>,
    limit: Option<&Limit>,
    is_shared: bool,
    report: &mut ConfigReport,
) -> Option<Reserve> {
    // `unlimited` reports the keys that have no place beside it
    let limit = limit.filter(|limit| **limit != Limit::Unlimited)?;
    let reserve = reserve(fields, report)?;
    let is_strict = limit.tiers().iter().any(|tier| tier.bucket().strict);
    let wrong = [
        (is_shared, "'share': a pool lends what its members leave, and a cost is known too late"),
        (fields.get("shadow").is_some(), "'shadow'; try the limit itself with 'shadow_mode: true'"),
        (limit.is_smooth() || fields.get("smooth").is_some(), "'smooth': a cost comes all at once"),
        (is_strict, "'strict: true': nobody waits for a cost to be accepted"),
    ];
    let at = fields.get("reserve").map_or(fields.at, |field| field.key_at);
    reject_beside("reserve", at, &wrong, report);
    match reserve.amount {
        ReserveAmount::Hits(Hits(hits)) if hits > limit.capacity() => {
            report.error(at, "'reserve' is above 'requests': nothing would pass");
        }
        ReserveAmount::Auto => warn_of_short_windows(limit, at, report),
        ReserveAmount::Hits(_) => {}
    }
    Some(reserve)
}

/// What is not used goes back into its own window only, which has ended before most requests.
fn warn_of_short_windows(limit: &Limit, at: YamlPosition, report: &mut ConfigReport) {
    let is_short = |tier: &&Tier| tier.has_windows() && tier.period < LEAST_WINDOW;
    if let Some(Tier { period, .. }) = limit.tiers().iter().find(is_short) {
        report.warn(
            at,
            format!(
                "requests that outlast a fixed window of {period} give nothing back to it, so that much of the limit is not \
                 used; write 'algorithm: token_bucket'"
            ),
        );
    }
}

/// Reports what is `wrong` beside `key`.
pub(super) fn reject_beside(key: &str, at: YamlPosition, wrong: &[(bool, &str)], report: &mut ConfigReport) {
    for (_, what) in wrong.iter().filter(|(is_wrong, _)| *is_wrong) {
        report.error(at, format!("'{key}' cannot be combined with {what}; remove one of both"));
    }
}

/// The tier that is shared becomes the first one of the limit.
fn tiers(fields: &Fields<'_>, inherited: Option<AlgorithmKind>, report: &mut ConfigReport) -> ReadLimit {
    let is_own = |key: &str| key == "algorithm" || key == "give_up_after" && fields.get("reserve").is_some();
    for key in KeyLevel::Tier.keys().filter(|key| !is_own(key)) {
        if let Some(field) = fields.get(key) {
            report
                .error(field.key_at, format!("'{key}' cannot be combined with 'tiers'; move it into a tier"));
        }
    }
    let inherited = tier::kind(fields, report).or(inherited);
    let Some(list) = fields.get("tiers") else { return ReadLimit::default() };
    if let Value::List(items) = &list.value.value
        && let Some(item) = items.get(MAX_TIERS)
    {
        report.error(
            item.at,
            format!("a limit has at most {MAX_TIERS} tiers, and this one has {}", items.len()),
        );
        return ReadLimit::default();
    }
    let mut tiers: Vec<(Tier, YamlPosition)> = Vec::new();
    let mut all_valid = true;
    let mut shared: Option<(Tier, Sharing)> = None;
    let mut in_flight: Option<ReadInFlight> = None;
    for node in fields.maps("tiers", report) {
        let Some(fields) = Fields::new(node, KeyLevel::Tier, "a tier", report) else {
            all_valid = false;
            continue;
        };
        if in_flight::is_written(&fields) {
            match (in_flight::read(&fields, report), in_flight) {
                (Some(read), None) => in_flight = Some(read),
                (Some(read), Some(_)) => {
                    report
                        .error(read.key_at, "only one tier can limit requests in flight; keep the smallest");
                    all_valid = false;
                }
                (None, _) => all_valid = false,
            }
            continue;
        }
        in_flight::check_age(&fields, None, report);
        let read = tier::read(&fields, node.at, inherited, report);
        let sharing = share::read(&fields, read.as_ref(), report);
        match (read, sharing) {
            (None, _) => all_valid = false,
            (Some(read), None) => {
                tiers.extend(std::iter::once(read.tier).chain(read.pace).map(|tier| (tier, node.at)));
            }
            (Some(read), Some(sharing)) if shared.is_none() => shared = Some((read.tier, sharing)),
            (Some(_), Some(_)) => {
                let at = fields.get("share").map_or(node.at, |field| field.key_at);
                report.error(at, "only one tier can be shared");
                all_valid = false;
            }
        }
    }
    if matches!(&list.value.value, Value::List(items) if items.is_empty()) {
        report.error(
            list.at,
            "'tiers' must not be empty; write at least one tier, such as '- { requests: 100, per: 1m }'",
        );
    }
    if tiers.is_empty() && shared.is_none() {
        let limit = in_flight.filter(|_| all_valid).map(|_| Limit::Unlimited);
        return ReadLimit { limit, in_flight, sharing: None };
    }
    if tiers.len() > MAX_TIERS {
        report.error(
            list.at,
            format!("a limit has at most {MAX_TIERS} tiers; each smooth window is two, itself and its pace"),
        );
        return ReadLimit::default();
    }
    redundant_tiers::check(&tiers, report);
    let (pool, sharing) = shared.unzip();
    let tiers = pool.into_iter().chain(tiers.into_iter().map(|(tier, _)| tier)).collect();
    let limit = Limit::Tiers { tiers, over_limit_policy: OverLimitPolicy::Ignore };
    ReadLimit { limit: all_valid.then_some(limit), sharing, in_flight }
}

fn check_unlimited(fields: &Fields<'_>, report: &mut ConfigReport) {
    for key in KeyLevel::RateLimit.keys().filter(|key| !matches!(*key, "unlimited" | "name" | "replaces")) {
        let Some(field) = fields.get(key) else {
            continue;
        };
        let text = fields.text("unit", report).map_or("", |unit| unit.value);
        match key {
            "unit" if Unit::parse(text).is_some() => {
                report.error(field.at, "should not specify rate limit unit when unlimited");
            }
            // a warning only, since envoyproxy/ratelimit accepts these
            "unit" | "requests_per_unit" => {
                report.warn(field.key_at, format!("'{key}' has no effect with 'unlimited: true'"));
            }
            "shadow" => report.error(
                field.key_at,
                "a limit in the shadow of 'unlimited: true' has none to be compared with; write it as the limit \
                 itself, and 'shadow_mode: true' beside 'rate_limit'",
            ),
            _ => report.error(field.key_at, format!("should not specify '{key}' when unlimited")),
        }
    }
}

fn replaces(fields: &Fields<'_>, own: Option<&str>, report: &mut ConfigReport) -> Vec<Box<str>> {
    let mut names = Vec::new();
    for node in fields.maps("replaces", report) {
        let Some(entry) = Fields::new(node, KeyLevel::Replaces, "an entry of 'replaces'", report) else {
            continue;
        };
        match entry.text("name", report) {
            None if entry.get("name").is_some_and(|name| name.value.scalar().is_none()) => {}
            None => report.error(node.at, "should not have an empty replaces entry"),
            Some(name) if Some(name.value) == own => {
                report.error(name.at, "replaces should not contain name of same descriptor");
            }
            Some(name) => names.push(name.value.into()),
        }
    }
    names
}
