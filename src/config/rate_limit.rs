//! What a `rate_limit` says, in either spelling.

use super::{
    duration,
    error::FileReport,
    fields::{Field, Fields},
    keys::Level,
    scalar::brief,
    yaml::{Node, Position},
};
use crate::limit::{Algorithm, Limit, Period, Refused, Tier, Unit};

/// A `rate_limit`.
pub(super) struct RateLimit {
    pub(super) limit: Limit,
    pub(super) name: Option<Box<str>>,
    pub(super) replaces: Vec<Box<str>>,
}

/// The keys of the reference's spelling.
const REFERENCE: [&str; 3] = ["unit", "requests_per_unit", "unit_multiplier"];

/// The keys of the other spelling.
const OURS: [&str; 2] = ["requests", "per"];

/// Reads `node`, whose key is at `key_at`. None if it is not right, which is reported.
pub(super) fn read(node: &Node, key_at: Position, report: &mut FileReport) -> Option<RateLimit> {
    let fields = Fields::new(node, Level::RateLimit, "'rate_limit'", report)?;
    let name = fields.text("name", report);
    let replaces = replaces(&fields, name.map(|name| name.value), report);
    let limit = if fields.flag("unlimited", report) {
        check_unlimited(&fields, report);
        Some(Limit::Unlimited)
    } else {
        let first = |keys: &[&'static str]| keys.iter().find_map(|key| Some((*key, fields.get(key)?.key_at)));
        match (first(&REFERENCE), first(&OURS)) {
            (Some((theirs, _)), Some((ours, at))) => {
                report.error(
                    at,
                    format!(
                        "'{ours}' and '{theirs}' are of two spellings of a limit; write either 'requests' and 'per', or \
                         'requests_per_unit' and 'unit'"
                    ),
                );
                None
            }
            (None, Some(_)) => ours(&fields, report),
            _ => reference(&fields, key_at, report),
        }
    };
    Some(RateLimit { limit: limit?, name: name.map(|name| name.value.into()), replaces })
}

/// `requests_per_unit`, `unit` and `unit_multiplier`.
fn reference(fields: &Fields<'_>, key_at: Position, report: &mut FileReport) -> Option<Limit> {
    let requests = fields.count("requests_per_unit", 0, report);
    let multiplier = fields.count("unit_multiplier", 1, report);
    let field = fields.text("unit", report);
    let text = field.map_or("", |unit| unit.value);
    let Some(unit) = Unit::parse(text) else {
        // a unit that is a list was reported as such
        if field.is_some() || fields.get("unit").is_none() {
            let at = field.map_or(key_at, |unit| unit.at);
            let right = "write second, minute, hour, day, week, month or year";
            report.error(at, format!("invalid rate limit unit '{}'; {right}", brief(text)));
        }
        return None;
    };
    let period = multiplied(unit.period(), multiplier, report)?;
    if fields.get("requests_per_unit").is_none() {
        report.warn(key_at, "'requests_per_unit' is missing, so it is 0 and every request is refused");
        return Some(Limit::reference(0, period));
    }
    Some(Limit::reference(requests?.value, period))
}

fn multiplied(period: Period, multiplier: Option<Field<u32>>, report: &mut FileReport) -> Option<Period> {
    let Some(Field { at, value, .. }) = multiplier else {
        return Some(period);
    };
    let nanos = period.as_nanos().checked_mul(value.into());
    let product = nanos.map(Period::from_nanos).filter(|period| *period <= duration::LONGEST);
    if product.is_none() {
        let longest = duration::LONGEST;
        report.error(
            at,
            format!("{value} times {period} is longer than {longest}, the longest period there is"),
        );
    }
    product
}

/// `requests` and `per`.
fn ours(fields: &Fields<'_>, report: &mut FileReport) -> Option<Limit> {
    let requests = fields.count("requests", 0, report);
    let per = fields.text("per", report);
    for (there, missing, right) in [("per", "requests", "requests: 100"), ("requests", "per", "per: 1m")] {
        if let (Some(field), None) = (fields.get(there), fields.get(missing)) {
            report.error(field.key_at, format!("'{there}' needs '{missing}' beside it, such as '{right}'"));
        }
    }
    let Field { at, value, .. } = per?;
    let Some(period) = duration::parse(value) else {
        report.error(at, format!("'{}' is no period; {}", brief(value), duration::RIGHT));
        return None;
    };
    let tier = Tier { requests: requests?.value, period, algorithm: Algorithm::FixedWindow };
    Some(Limit::Tiers { tiers: vec![tier], refused: Refused::Vanish })
}

/// Reports what makes no sense beside `unlimited: true`.
fn check_unlimited(fields: &Fields<'_>, report: &mut FileReport) {
    for key in REFERENCE.into_iter().chain(OURS) {
        let Some(field) = fields.get(key) else {
            continue;
        };
        let text = fields.text("unit", report).map_or("", |unit| unit.value);
        match key {
            "unit" if Unit::parse(text).is_some() => {
                report.error(field.at, "should not specify rate limit unit when unlimited");
            }
            // the reference takes these, and so the files that have them
            "unit" | "requests_per_unit" => {
                report.warn(field.key_at, format!("'{key}' means nothing beside 'unlimited: true'"));
            }
            _ => report.error(field.key_at, format!("should not specify '{key}' when unlimited")),
        }
    }
}

fn replaces(fields: &Fields<'_>, own: Option<&str>, report: &mut FileReport) -> Vec<Box<str>> {
    let mut names = Vec::new();
    for node in fields.maps("replaces", report) {
        let Some(entry) = Fields::new(node, Level::Replaces, "an entry of 'replaces'", report) else {
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
