//! Reads limits on requests in flight.

use super::{
    duration,
    error::ConfigReport,
    fields::{Field, Fields},
    keys::KeyLevel,
    rate_limit::reject_beside,
    scalar::brief,
    yaml::YamlPosition,
};
use weir_limit::{Coordination, InFlight, Limit, Period, Reserve};

/// What is not about a window, beside `in_flight` in a tier.
const OWN: [&str; 3] = ["in_flight", "give_up_after", "share"];

const POOL: &str = "'share': a pool lends what its members leave, and nobody knows when a request ends";

const NO_WINDOW: &str = "'in_flight' has no window: write tiers: [{in_flight: 4}, {requests: 100, per: 1m}]";

/// A limit that was read, and where.
#[derive(Clone, Copy)]
pub(super) struct ReadInFlight {
    pub(super) limit: InFlight,
    pub(super) key_at: YamlPosition,
}

/// Whether `fields` are a limit on requests in flight.
pub(super) fn is_written(fields: &Fields<'_>) -> bool {
    fields.get("in_flight").is_some()
}

/// Reads a limit that is written, and reports the window beside it.
pub(super) fn read(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<ReadInFlight> {
    let field = fields.count("in_flight", 0..=InFlight::MAX, report);
    let is_window = |key: &&str| !OWN.contains(key) && fields.get(key).is_some();
    let window = KeyLevel::Tier.keys().find(is_window).and_then(|key| fields.get(key));
    if let Some(Field { key_at, .. }) = window {
        report.error(key_at, NO_WINDOW);
        return None;
    }
    if let Some(field) = fields.get("share") {
        reject_beside("in_flight", field.key_at, &[(true, POOL)], report);
        return None;
    }
    let give_up_after = age(fields, InFlight::GIVE_UP_AFTER, report)?;
    let Field { key_at, value: most, .. } = field?;
    Some(ReadInFlight { limit: InFlight { most, give_up_after }, key_at })
}

/// The age at which requests are given up, `default` if none is written. None if it is invalid.
pub(super) fn age(fields: &Fields<'_>, default: Period, report: &mut ConfigReport) -> Option<Period> {
    if fields.get("give_up_after").is_none() {
        return Some(default);
    }
    let field = fields.text("give_up_after", report)?;
    let age = duration::parse(field.value).filter(|age| InFlight::AGES.contains(age));
    if age.is_none() {
        let right = "write a whole number and s, m, h, d or w, from 1s to 7d, such as 10m";
        report.error(field.at, format!("invalid age '{}'; {right}", brief(field.value)));
    }
    age
}

/// Reports an age without what it is the age of.
pub(super) fn check_age(fields: &Fields<'_>, reserve: Option<Reserve>, report: &mut ConfigReport) {
    let Some(field) = fields.get("give_up_after").filter(|_| !is_written(fields)) else { return };
    match reserve {
        None if fields.get("reserve").is_some() => {}
        None => report.error(field.key_at, "'give_up_after' needs 'in_flight' or 'reserve'"),
        Some(reserve) if reserve.takes_hits() => {}
        Some(_) => {
            report.warn(
                field.key_at,
                "'give_up_after' has no effect with 'reserve: 0', which reserves nothing",
            );
        }
    }
}

/// Reports what is valid alone, but not beside a limit on requests in flight.
pub(super) fn check_beside(
    read: ReadInFlight,
    fields: &Fields<'_>,
    (limit, is_shared): (&Limit, bool),
    mode: Option<Coordination>,
    report: &mut ConfigReport,
) {
    let is_strict = limit.tiers().iter().any(|tier| tier.bucket().strict);
    let wrong = [
        (is_shared, POOL),
        (fields.get("shadow").is_some(), "'shadow'; try the limit itself with 'shadow_mode: true'"),
        (limit.is_smooth(), "'smooth'"),
        (is_strict, "'strict: true'"),
    ];
    reject_beside("in_flight", read.key_at, &wrong, report);
    let unused = ["give_back", "sync_interval"].into_iter().filter(|_| *limit == Limit::Unlimited);
    for field in unused.filter_map(|key| fields.get(key)) {
        report.warn(field.key_at, "this has no effect with 'in_flight' alone, which counts no hits");
    }
    if *limit == Limit::Unlimited
        && let Some(field) = fields.get("reserve")
    {
        report.error(
            field.key_at,
            "'reserve' is about costs, and 'in_flight' counts requests: write tiers: [{in_flight: 4}, {requests: \
             100000, per: 1m}] beside it",
        );
    }
    if *limit != Limit::Unlimited
        && let Some(field) = fields.get("give_up_after")
    {
        report.error(
            field.key_at,
            "'give_up_after' belongs into the tier of 'in_flight', and 'reserve' follows it",
        );
    }
    if let Some(field) = fields.get("coordination")
        && mode.is_some_and(|mode| !mode.keeps_places())
    {
        report.error(field.at, "places are kept by the store: write auto, strict or local");
    }
}
